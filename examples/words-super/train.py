#!/usr/bin/env python3
"""Train the words supernet; write its checkpoint (supernet.toml, weights.safetensors) and heldout.bin beside this file.

A small transformer that says of which language a word is, with elastic depth and width (heads and hidden layers) like DynaBERT's. Each step trains the
largest subnet on the labels, and the smallest and two others on the labels and the largest one's answers (sandwich rule,
distillation in place). Layer norms need no statistics. `baton supernet export supernet.toml` makes the ONNX file. README.md describes all of it.
"""

import argparse
import os
import struct
import unicodedata
from pathlib import Path

# One thread: the order of additions must not depend on the number of cores.
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from safetensors.numpy import save_file  # noqa: E402
from spellchecker import SpellChecker  # noqa: E402

SEED = 22
LANGUAGES = ["de", "en", "es", "fr", "it", "nl", "pt"]
WORDS = 6_000  # the most frequent of each language, without those of several
HELDOUT = 100  # of each language, of which none is trained on
TESTED = 500  # of each language, for an accuracy; `heldout.bin` has the first HELDOUT
LETTERS = 10
STEPS = 2_400
BATCH = 256
LEARNING_RATE = 3e-3
FEATURES, HEADS, HEAD_SIZE, HIDDEN, DEPTH = 32, 4, 8, 96, 3
EPSILON = 1e-5

# name, heads, hidden, depth; the cheapest first
SUBNETS = [("d1-h1", 1, 16, 1), ("d1-h2", 2, 48, 1), ("d1-h4", 4, 96, 1), ("d2-h2", 2, 48, 2), ("d2-h4", 4, 96, 2), ("d3-h4", 4, 96, 3)]


def plain(word):
    """The letters a to z of a word, accents left out."""
    return unicodedata.normalize("NFKD", word.lower()).encode("ascii", "ignore").decode()


def words():
    """Of each language its most frequent words that no other language has, the most frequent first."""
    lists = {}
    for language in LANGUAGES:
        frequency = SpellChecker(language=language).word_frequency.dictionary
        ranked = sorted(frequency.items(), key=lambda item: (-item[1], item[0]))
        unique = dict.fromkeys(plain(word) for word, _ in ranked)
        fit = (word for word in unique if word.isalpha() and 3 <= len(word) <= LETTERS)
        lists[language] = [word for word, _ in zip(fit, range(4 * WORDS))]
    own = {}
    for language, listed in lists.items():
        others = set().union(*(set(other) for name, other in lists.items() if name != language))
        own[language] = [word for word in listed if word not in others][:WORDS]
    return own


def tokens(listed):
    """Places in the alphabet from 1, and 0 behind the word."""
    return np.array([[ord(c) - 96 for c in word.ljust(LETTERS, "`")] for word in listed], np.int64)


def data(rng):
    train, heldout = ([], []), ([], [])
    for label, listed in enumerate(words().values()):
        order = rng.permutation(len(listed))
        for (rows, labels), chosen in [(heldout, order[:TESTED]), (train, order[TESTED:])]:
            rows.append(tokens([listed[i] for i in chosen]))
            labels.append(np.full(len(chosen), label))
    return [(np.concatenate(rows), np.concatenate(labels)) for rows, labels in (train, heldout)]


def initial(rng):
    params = {"letters.weight": 0.5 * rng.standard_normal((27, FEATURES)), "places.weight": 0.1 * rng.standard_normal((LETTERS, FEATURES))}

    def linear(name, out, size_in, scale=1.0):
        params[f"{name}.weight"] = scale * rng.standard_normal((out, size_in)) / np.sqrt(size_in)
        params[f"{name}.bias"] = np.zeros(out)

    def norm(name):
        params[f"{name}.weight"], params[f"{name}.bias"] = np.ones(FEATURES), np.zeros(FEATURES)

    for i in range(DEPTH):
        norm(f"layer{i}.before")
        for part in ("query", "key", "value"):
            linear(f"layer{i}.attention.{part}", HEADS * HEAD_SIZE, FEATURES)
        linear(f"layer{i}.attention.out", FEATURES, HEADS * HEAD_SIZE, 0.5)
        norm(f"layer{i}.between")
        linear(f"layer{i}.grow", HIDDEN, FEATURES)
        linear(f"layer{i}.shrink", FEATURES, HIDDEN, 0.5)
    norm("last")
    linear("languages", len(LANGUAGES), FEATURES)
    return {name: jnp.asarray(value, jnp.float32) for name, value in params.items()}


def forward(params, subnet, letters):
    _, heads, hidden, depth = subnet

    def norm(x, name):
        centred = x - x.mean(-1, keepdims=True)
        scale = jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + EPSILON)
        return centred * scale * params[f"{name}.weight"] + params[f"{name}.bias"]

    def linear(x, name, out, size_in):
        return x @ params[f"{name}.weight"][:out, :size_in].T + params[f"{name}.bias"][:out]

    def attention(x, name):
        inner = heads * HEAD_SIZE
        parts = [linear(x, f"{name}.{part}", inner, FEATURES) for part in ("query", "key", "value")]
        q, k, v = [part.reshape(*part.shape[:2], heads, HEAD_SIZE).transpose(0, 2, 1, 3) for part in parts]
        mixed = jax.nn.softmax(q @ k.transpose(0, 1, 3, 2) / np.sqrt(HEAD_SIZE)) @ v
        return linear(mixed.transpose(0, 2, 1, 3).reshape(*x.shape[:2], inner), f"{name}.out", FEATURES, inner)

    x = params["letters.weight"][letters] + params["places.weight"]
    for i in range(depth):
        x = x + attention(norm(x, f"layer{i}.before"), f"layer{i}.attention")
        grown = jax.nn.gelu(linear(norm(x, f"layer{i}.between"), f"layer{i}.grow", hidden, FEATURES), approximate=False)
        x = x + linear(grown, f"layer{i}.shrink", FEATURES, hidden)
    return linear(norm(x, "last").mean(1), "languages", len(LANGUAGES), FEATURES)


def losses():
    """For each subnet: a compiled function of the parameters, words and targets to the loss with logits, and the gradient."""

    def loss_of(subnet):
        def loss(params, x, target):
            logits = forward(params, subnet, x)
            return -(target * jax.nn.log_softmax(logits)).sum(1).mean(), logits

        return jax.jit(jax.value_and_grad(loss, has_aux=True))

    return [loss_of(subnet) for subnet in SUBNETS]


@jax.jit
def adam(params, mean, square, gradient, count, rate):
    mean = jax.tree.map(lambda m, g: m + 0.1 * (g - m), mean, gradient)
    square = jax.tree.map(lambda s, g: s + 0.001 * (g * g - s), square, gradient)

    def moved(p, m, s):
        return p - rate * (m / (1 - 0.9**count)) / (jnp.sqrt(s / (1 - 0.999**count)) + 1e-8)

    return jax.tree.map(moved, params, mean, square), mean, square


def train(rng, params, rows, labels):
    compiled = losses()
    mean = jax.tree.map(jnp.zeros_like, params)
    square = mean
    for count in range(1, STEPS + 1):
        chosen = rng.integers(0, len(rows), BATCH)
        x, target = rows[chosen], jax.nn.one_hot(labels[chosen], len(LANGUAGES))
        (loss, logits), gradient = compiled[-1](params, x, target)
        taught = 0.5 * target + 0.5 * jax.nn.softmax(logits)
        others = rng.choice(np.arange(1, len(SUBNETS) - 1), 2, replace=False)
        for other in [0, *others]:
            gradient = jax.tree.map(jnp.add, gradient, compiled[other](params, x, taught)[1])
        rate = LEARNING_RATE * 0.5 * (1 + np.cos(np.pi * count / STEPS))
        params, mean, square = adam(params, mean, square, gradient, float(count), rate)
        if count % 100 == 0:
            print(f"step {count} of {STEPS}: loss of the largest subnet {float(loss):.4f}", flush=True)
    return params


def description(offered):
    """The checkpoint's text, with these subnets and their accuracies: docs/supernets.md, *A checkpoint*."""
    text = f"""# Written by train.py.
name = "words-super"
weights = "weights.safetensors"

[input]
name = "letters"
element = "i64"
shape = [{LETTERS}]

[output]
name = "logits"

[dims]
heads = {HEADS}
hidden = {HIDDEN}

[[layer]]
kind = "embedding"
name = "letters"
out = {FEATURES}

[[layer]]
kind = "position"
name = "places"
"""
    for i in range(DEPTH):
        text += f"""
[[layer]]
kind = "block"
name = "layer{i}"

[[layer.layer]]
kind = "block"
name = "layer{i}.attention"
residual = true
layer = [
    {{ kind = "layer_norm", name = "layer{i}.before" }},
    {{ kind = "attention", name = "layer{i}.attention", heads = "heads", head_size = {HEAD_SIZE} }},
]

[[layer.layer]]
kind = "block"
name = "layer{i}.feed_forward"
residual = true
layer = [
    {{ kind = "layer_norm", name = "layer{i}.between" }},
    {{ kind = "linear", name = "layer{i}.grow", out = "hidden" }},
    {{ kind = "gelu" }},
    {{ kind = "linear", name = "layer{i}.shrink", out = {FEATURES} }},
]
"""
    text += f"""
[[layer]]
kind = "layer_norm"
name = "last"

[[layer]]
kind = "mean_of_tokens"

[[layer]]
kind = "linear"
name = "languages"
out = {len(LANGUAGES)}
"""
    for (name, heads, hidden, depth), percent in offered:
        skipped = ", ".join(f'"layer{i}"' for i in range(depth, DEPTH))
        text += f"""
[[variant]]
name = "{name}"
accuracy = {percent:.2f}
dims = {{ heads = {heads}, hidden = {hidden} }}
skip = [{skipped}]
"""
    return text


def heldout_bytes(rows, logits, labels):
    """Words, each with the answer of every subnet. README.md has the layout."""
    header = b"BWDS" + struct.pack("<5I", 1, len(rows), LETTERS, len(LANGUAGES), len(logits))
    answers = np.stack(logits, axis=1).astype("<f4")
    records = [row.astype("<i8").tobytes() + many.tobytes() + struct.pack("<I", label) for row, many, label in zip(rows, answers, labels)]
    return header + b"".join(records)


def main():
    parser = argparse.ArgumentParser(description="train the words supernet")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder for the output files")
    out = parser.parse_args().out

    rng = np.random.default_rng(SEED)
    (rows, labels), (heldout, heldout_labels) = data(rng)
    print(f"{len(rows)} words to train on, {len(heldout)} held out")
    params = train(rng, initial(rng), rows, labels)
    answers = [np.asarray(jax.jit(lambda p, x, s=subnet: forward(p, s, x))(params, heldout)) for subnet in SUBNETS]
    accuracies = [100 * float((logits.argmax(1) == heldout_labels).mean()) for logits in answers]
    for (name, *_), percent in zip(SUBNETS, accuracies):
        print(f"{name}: {percent:.2f} %")

    out.mkdir(parents=True, exist_ok=True)
    # A subnet that is no more accurate than a cheaper one is not offered.
    offered = [at for at, percent in enumerate(accuracies) if percent > max(accuracies[:at], default=0)]
    (out / "supernet.toml").write_text(description([(SUBNETS[at], accuracies[at]) for at in offered]))
    save_file({name: np.asarray(value) for name, value in params.items()}, out / "weights.safetensors")
    first = np.concatenate([np.arange(HELDOUT) + TESTED * i for i in range(len(LANGUAGES))])
    logits = [answers[at][first] for at in offered]
    (out / "heldout.bin").write_bytes(heldout_bytes(heldout[first], logits, heldout_labels[first]))


if __name__ == "__main__":
    main()
