#!/usr/bin/env python3
"""Train the digits supernet; write its checkpoint (supernet.toml, weights.safetensors) and heldout.bin beside this file.

One network with elastic depth, width and expansion. Each step trains the largest subnet on the labels, and the smallest and two others
on the labels and the largest one's answers (sandwich rule, distillation in place). After that, one pass over the training images gives each
subnet its own statistics. `baton supernet export supernet.toml` makes the ONNX file. README.md describes all of it.
"""

import argparse
import os
import struct
from pathlib import Path

# One thread: the order of additions must not depend on the number of cores.
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from safetensors.numpy import save_file  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402

SEED = 21
HELDOUT = 450
NOISE = 0.25  # standard deviation of each pixel, of 0..1, in training and in testing
NOISE_DRAWS = 40  # of the held-out images, for an accuracy
EPOCHS = 60
BATCH = 64
LEARNING_RATE = 3e-3
EPSILON = 1e-5
SIDE, CLASSES = 8, 10
BLOCKS = 3  # of each of the two stages
LARGEST = {"stem": 24, "fine_hidden": 24, "coarse": 48, "coarse_hidden": 48}


def subnet(name, stem, expand, depth):
    """`expand` is the hidden part of a block over its channels, `depth` the blocks of each stage that are executed."""
    dims = {"stem": stem, "fine_hidden": int(stem * expand), "coarse": 2 * stem, "coarse_hidden": int(2 * stem * expand)}
    return {"name": name, "dims": dims, "depth": depth}


SUBNETS = [
    subnet("w4-d1", 4, 1, 1),
    subnet("w6-d1", 6, 1, 1),
    subnet("w6-d2", 6, 1, 2),
    subnet("w12-d2", 12, 0.5, 2),
    subnet("w12-d3", 12, 1, 3),
    subnet("w24-d2", 24, 0.5, 2),
    subnet("w24-d3", 24, 1, 3),
]


def convolutions():
    """(name, input dimension, output dimension, stride), in the order of the network."""
    yield "stem", None, "stem", 1
    for i in range(BLOCKS):
        yield f"fine{i}.grow", "stem", "fine_hidden", 1
        yield f"fine{i}.shrink", "fine_hidden", "stem", 1
    yield "down", "stem", "coarse", 2
    for i in range(BLOCKS):
        yield f"coarse{i}.grow", "coarse", "coarse_hidden", 1
        yield f"coarse{i}.shrink", "coarse_hidden", "coarse", 1


def initial(rng):
    """He initialisation; the last norm of each block begins at 0, so that each block begins as the identity."""
    params = {}
    for name, dim_in, dim_out, _ in convolutions():
        fan_in = 9 * (LARGEST[dim_in] if dim_in else 1)
        shape = (LARGEST[dim_out], fan_in // 9, 3, 3)
        params[f"{name}.weight"] = rng.standard_normal(shape) * np.sqrt(2 / fan_in)
        params[f"{name}.norm.weight"] = np.full(shape[0], 0.1 if name.endswith("shrink") else 1.0)
        params[f"{name}.norm.bias"] = np.zeros(shape[0])
    params["classes.weight"] = rng.standard_normal((CLASSES, LARGEST["coarse"])) * 0.1
    params["classes.bias"] = np.zeros(CLASSES)
    return {name: jnp.asarray(value, jnp.float32) for name, value in params.items()}


def convolve(x, weight, stride):
    """3x3, zero padding 1, as one matrix product over unfolded patches."""
    _, _, height, width = x.shape
    padded = jnp.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    shifts = [padded[:, :, i : i + height : stride, j : j + width : stride] for i in range(3) for j in range(3)]
    patches = jnp.stack(shifts, axis=2).transpose(0, 3, 4, 1, 2)
    flat = patches.reshape(-1, patches.shape[3] * 9) @ weight.reshape(len(weight), -1).T
    return flat.reshape(*patches.shape[:3], -1).transpose(0, 3, 1, 2)


def normalise(x, params, name, stats, seen):
    """With the statistics of the batch, which are written into `seen`, or with `stats`."""
    channels = x.shape[1]
    if stats is None:
        mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3))
    else:
        mean, variance = stats[name]
    seen[name] = (mean, variance)
    scale = params[f"{name}.weight"][:channels] / jnp.sqrt(variance + EPSILON)
    return (x - mean[:, None, None]) * scale[:, None, None] + params[f"{name}.bias"][:channels, None, None]


def forward(params, subnet, x, stats=None):
    """Logits, and the statistics of every norm."""
    dims, seen = subnet["dims"], {}

    def conv(x, name, dim_in, dim_out, stride=1):
        weight = params[f"{name}.weight"][: dims[dim_out], : dims[dim_in] if dim_in else 1]
        return normalise(convolve(x, weight, stride), params, f"{name}.norm", stats, seen)

    def stage(x, name, dim):
        for i in range(subnet["depth"]):
            hidden = jax.nn.relu(conv(x, f"{name}{i}.grow", dim, f"{name}_hidden"))
            x = jax.nn.relu(x + conv(hidden, f"{name}{i}.shrink", f"{name}_hidden", dim))
        return x

    x = jax.nn.relu(conv(x, "stem", None, "stem"))
    dims = {**dims, "fine": dims["stem"]}
    x = stage(x, "fine", "fine")
    x = jax.nn.relu(conv(x, "down", "stem", "coarse", stride=2))
    x = stage(x, "coarse", "coarse").mean((2, 3))
    return x @ params["classes.weight"][:, : x.shape[1]].T + params["classes.bias"], seen


def split(rng):
    """Images scaled to 0..1 as [n, 1, 8, 8] with their labels: (train, held out). None of the held-out ones is trained on."""
    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)[:, np.newaxis]
    order = rng.permutation(len(images))
    heldout, train = order[:HELDOUT], order[HELDOUT:]
    return (images[train], digits.target[train]), (images[heldout], digits.target[heldout])


def shifted(rng, images):
    """Each image moved by at most one pixel each way."""
    padded = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))
    rows, cols = rng.integers(0, 3, size=(2, len(images)))
    return np.stack([p[:, r : r + SIDE, c : c + SIDE] for p, r, c in zip(padded, rows, cols)])


def noisy(rng, images):
    return (images + NOISE * rng.standard_normal(images.shape)).astype(np.float32)


def cross_entropy(logits, target):
    return -(target * jax.nn.log_softmax(logits)).sum(1).mean()


def losses():
    """For each subnet: a compiled function of the parameters, images and targets to the loss with logits, and the gradient."""

    def loss_of(subnet):
        def loss(params, x, target):
            logits, _ = forward(params, subnet, x)
            return cross_entropy(logits, target), logits

        return jax.jit(jax.value_and_grad(loss, has_aux=True))

    return [loss_of(subnet) for subnet in SUBNETS]


def step(rng, losses, params, x, labels):
    """The sum of the gradients of four subnets, and the largest one's loss."""
    target = jax.nn.one_hot(labels, CLASSES)
    (loss, logits), gradient = losses[-1](params, x, target)
    taught = 0.5 * target + 0.5 * jax.nn.softmax(logits)
    others = rng.choice(np.arange(1, len(losses) - 1), 2, replace=False)
    for other in [0, *others]:
        _, more = losses[other](params, x, taught)
        gradient = jax.tree.map(jnp.add, gradient, more)
    return gradient, float(loss)


@jax.jit
def adam(params, mean, square, gradient, count, rate):
    mean = jax.tree.map(lambda m, g: m + 0.1 * (g - m), mean, gradient)
    square = jax.tree.map(lambda s, g: s + 0.001 * (g * g - s), square, gradient)

    def moved(p, m, s):
        return p - rate * (m / (1 - 0.9**count)) / (jnp.sqrt(s / (1 - 0.999**count)) + 1e-8)

    return jax.tree.map(moved, params, mean, square), mean, square


def train(rng, params, images, labels):
    compiled = losses()
    mean = jax.tree.map(jnp.zeros_like, params)
    square, count = mean, 0
    steps = len(images) // BATCH
    for epoch in range(EPOCHS):
        order = rng.permutation(len(images))
        for at in range(steps):
            chosen = order[at * BATCH : (at + 1) * BATCH]
            x = noisy(rng, shifted(rng, images[chosen]))
            gradient, loss = step(rng, compiled, params, x, labels[chosen])
            count += 1
            rate = LEARNING_RATE * 0.5 * (1 + np.cos(np.pi * count / (EPOCHS * steps)))
            params, mean, square = adam(params, mean, square, gradient, float(count), rate)
        print(f"epoch {epoch + 1} of {EPOCHS}: loss of the largest subnet {loss:.4f}", flush=True)
    return params


def statistics(rng, params, subnet, images):
    """Each norm's mean and variance over the training images, layer after layer in one pass."""
    x = np.concatenate([noisy(rng, shifted(rng, images)) for _ in range(4)])
    _, seen = jax.jit(lambda params, x: forward(params, subnet, x))(params, x)
    return seen


def accuracy(logits, labels):
    return 100 * float((np.asarray(logits).argmax(1) == labels).mean())


def description(accuracies):
    """The checkpoint's text: docs/supernets.md, *A checkpoint*."""
    lines = ["# Written by train.py.", 'name = "digits-super"', 'weights = "weights.safetensors"', "", "[input]", 'name = "image"']
    lines += [f"shape = [1, {SIDE}, {SIDE}]", "", "[output]", 'name = "logits"', "", "[dims]"]
    lines += [f"{dim} = {size}" for dim, size in LARGEST.items()]

    def conv(prefix, name, dim_out, stride=1):
        table = f"[[{prefix}]]"
        lines.extend(["", table, 'kind = "conv"', f'name = "{name}"', f'out = "{dim_out}"', f"stride = {stride}", "padding = 1"])
        lines.extend(["", table, 'kind = "batch_norm"', f'name = "{name}.norm"'])

    def relu(prefix):
        lines.extend(["", f"[[{prefix}]]", 'kind = "relu"'])

    def stage(name, dim):
        for i in range(BLOCKS):
            lines.extend(["", "[[layer]]", 'kind = "block"', f'name = "{name}{i}"', "residual = true"])
            conv("layer.layer", f"{name}{i}.grow", f"{name}_hidden")
            relu("layer.layer")
            conv("layer.layer", f"{name}{i}.shrink", dim)
            relu("layer")

    conv("layer", "stem", "stem")
    relu("layer")
    stage("fine", "stem")
    conv("layer", "down", "coarse", stride=2)
    relu("layer")
    stage("coarse", "coarse")
    lines.extend(["", "[[layer]]", 'kind = "global_average_pool"', "", "[[layer]]", 'kind = "linear"', 'name = "classes"', f"out = {CLASSES}"])
    for subnet, percent in zip(SUBNETS, accuracies):
        skipped = [f'"{stage}{i}"' for stage in ("fine", "coarse") for i in range(subnet["depth"], BLOCKS)]
        dims = ", ".join(f"{dim} = {size}" for dim, size in subnet["dims"].items())
        lines.extend(["", "[[variant]]", f'name = "{subnet["name"]}"', f"accuracy = {percent:.2f}", f"dims = {{ {dims} }}"])
        lines.append(f"skip = [{', '.join(skipped)}]")
    return "\n".join(lines) + "\n"


def tensors(params, stats):
    """The parameters, and each norm's statistics of every subnet: [subnets, channels]. Channels that a subnet lacks have mean 0, variance 1."""
    arrays = {name: np.asarray(value) for name, value in params.items()}
    for name in [name.removesuffix(".bias") for name in arrays if name.endswith(".norm.bias")]:
        channels = len(arrays[f"{name}.bias"])
        mean, variance = np.zeros((len(stats), channels), np.float32), np.ones((len(stats), channels), np.float32)
        for row, seen in enumerate(stats):
            if name in seen:
                one, other = seen[name]
                mean[row, : len(one)], variance[row, : len(other)] = one, other
        arrays[f"{name}.mean"], arrays[f"{name}.variance"] = mean, variance
    return arrays


def heldout_bytes(images, logits, labels):
    """Images with noise, each with the answer of every subnet. README.md has the layout."""
    subnets = len(logits)
    header = b"BDGS" + struct.pack("<5I", 1, len(images), SIDE * SIDE, CLASSES, subnets)
    answers = np.stack(logits, axis=1).astype("<f4")
    records = [
        image.astype("<f4").tobytes() + rows.tobytes() + struct.pack("<I", label)
        for image, rows, label in zip(images, answers, labels)
    ]
    return header + b"".join(records)


def main():
    parser = argparse.ArgumentParser(description="train the digits supernet")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder for the output files")
    out = parser.parse_args().out

    rng = np.random.default_rng(SEED)
    (images, labels), (heldout_images, heldout_labels) = split(rng)
    params = train(rng, initial(rng), images, labels)
    stats = [statistics(np.random.default_rng(SEED), params, subnet, images) for subnet in SUBNETS]
    run = [jax.jit(lambda params, stats, x, subnet=subnet: forward(params, subnet, x, stats)[0]) for subnet in SUBNETS]
    draws = [noisy(rng, heldout_images) for _ in range(NOISE_DRAWS)]
    accuracies = [
        float(np.mean([accuracy(run[i](params, stats[i], draw), heldout_labels) for draw in draws])) for i in range(len(SUBNETS))
    ]
    for i, subnet in enumerate(SUBNETS):
        borrowed = {name: tuple(v[: len(stats[i][name][0])] for v in stats[-1][name]) for name in stats[i]}
        clean = accuracy(run[i](params, stats[i], heldout_images), heldout_labels)
        wrong = accuracy(run[i](params, borrowed, draws[0]), heldout_labels)
        print(f"{subnet['name']}: {accuracies[i]:.2f} %, without noise {clean:.2f} %, with the largest's statistics {wrong:.2f} %")

    out.mkdir(parents=True, exist_ok=True)
    (out / "supernet.toml").write_text(description(accuracies))
    save_file(tensors(params, stats), out / "weights.safetensors")
    logits = [np.asarray(run[i](params, stats[i], draws[0])) for i in range(len(SUBNETS))]
    (out / "heldout.bin").write_bytes(heldout_bytes(draws[0], logits, heldout_labels))


if __name__ == "__main__":
    main()
