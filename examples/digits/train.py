#!/usr/bin/env python3
"""Train the digits model and write digits.onnx and heldout.bin beside this file.

The network is trained in plain numpy, so that nothing but numpy decides the weights:
    conv 3x3, 1 -> 8, ReLU | conv 3x3 stride 2, 8 -> 16, ReLU | fully connected 256 -> 64, ReLU | fully connected 64 -> 10
The held-out images take no part in training and in no choice made by it: the number of epochs is fixed in advance.
README.md describes the two output files.
"""

import argparse
import os
import struct
from pathlib import Path

# One thread, set before numpy loads its BLAS: the order of additions must not depend on the number of cores.
for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import numpy as np  # noqa: E402
import onnx  # noqa: E402
import onnxruntime  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402

SEED = 20
HELDOUT = 450
EPOCHS = 60
BATCH = 32
LEARNING_RATE = 2e-3
SIDE = 8
CLASSES = 10

HELDOUT_MAGIC = b"BDIG"
HELDOUT_VERSION = 1

# Low enough for every ONNX Runtime the Rust side accepts (1.24 and later).
OPSET = 17
IR_VERSION = 8


class Conv:
    """3x3 convolution, zero padding 1, as one matrix product over unfolded patches."""

    def __init__(self, rng, channels_in, channels_out, stride):
        fan_in = channels_in * 9
        self.weight = normal(rng, (channels_out, channels_in, 3, 3), fan_in)
        self.bias = np.zeros(channels_out, np.float32)
        self.stride = stride

    def forward(self, x):
        self.shape = x.shape
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
        windows = windows[:, :, :: self.stride, :: self.stride]
        n, _, rows, cols = windows.shape[:4]
        self.patches = windows.transpose(0, 2, 3, 1, 4, 5).reshape(n * rows * cols, -1)
        flat = self.patches @ self.weight.reshape(len(self.bias), -1).T + self.bias
        return flat.reshape(n, rows, cols, -1).transpose(0, 3, 1, 2)

    def backward(self, grad):
        n, channels_out, rows, cols = grad.shape
        flat = grad.transpose(0, 2, 3, 1).reshape(-1, channels_out)
        self.gradients = [(flat.T @ self.patches).reshape(self.weight.shape), flat.sum(axis=0)]
        patches = flat @ self.weight.reshape(channels_out, -1)
        return self.fold(patches.reshape(n, rows, cols, self.shape[1], 3, 3), rows, cols)

    def fold(self, patches, rows, cols):
        """The reverse of unfolding: every patch adds its share to the pixels it was cut from."""
        n, channels, height, width = self.shape
        padded = np.zeros((n, channels, height + 2, width + 2), np.float32)
        for i in range(3):
            for j in range(3):
                row_end, col_end = i + rows * self.stride, j + cols * self.stride
                share = patches[..., i, j].transpose(0, 3, 1, 2)
                padded[:, :, i : row_end : self.stride, j : col_end : self.stride] += share
        return padded[:, :, 1:-1, 1:-1]

    def node(self, name, source, target):
        return helper.make_node(
            "Conv", [source, f"{name}.weight", f"{name}.bias"], [target], name=name,
            kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[self.stride, self.stride],
        )


class Linear:
    """Fully connected layer; flattens whatever comes in, channel first, as ONNX Flatten does."""

    def __init__(self, rng, size_in, size_out):
        self.weight = normal(rng, (size_out, size_in), size_in)
        self.bias = np.zeros(size_out, np.float32)

    def forward(self, x):
        self.shape = x.shape
        self.flat = x.reshape(len(x), -1)
        return self.flat @ self.weight.T + self.bias

    def backward(self, grad):
        self.gradients = [grad.T @ self.flat, grad.sum(axis=0)]
        return (grad @ self.weight).reshape(self.shape)

    def node(self, name, source, target):
        return helper.make_node("Gemm", [source, f"{name}.weight", f"{name}.bias"], [target], name=name, transB=1)


class Network:
    def __init__(self, rng):
        self.layers = {
            "conv1": Conv(rng, 1, 8, stride=1),
            "conv2": Conv(rng, 8, 16, stride=2),
            "fc1": Linear(rng, 16 * (SIDE // 2) ** 2, 64),
            "fc2": Linear(rng, 64, CLASSES),
        }

    def forward(self, x):
        self.active = []
        for layer in list(self.layers.values())[:-1]:
            x = layer.forward(x)
            self.active.append(x > 0)
            x = np.maximum(x, 0)
        return self.layers["fc2"].forward(x)

    def backward(self, grad):
        layers = list(self.layers.values())
        grad = layers[-1].backward(grad)
        for layer, active in zip(reversed(layers[:-1]), reversed(self.active)):
            grad = layer.backward(grad * active)

    def parameters(self):
        return [p for layer in self.layers.values() for p in (layer.weight, layer.bias)]

    def gradients(self):
        return [g for layer in self.layers.values() for g in layer.gradients]


class Adam:
    def __init__(self, parameters):
        self.parameters = parameters
        self.mean = [np.zeros_like(p) for p in parameters]
        self.square = [np.zeros_like(p) for p in parameters]
        self.step_count = 0

    def step(self, gradients, rate):
        self.step_count += 1
        for p, g, mean, square in zip(self.parameters, gradients, self.mean, self.square):
            mean += 0.1 * (g - mean)
            square += 0.001 * (g * g - square)
            unbiased_mean = mean / (1 - 0.9**self.step_count)
            unbiased_square = square / (1 - 0.999**self.step_count)
            p -= rate * unbiased_mean / (np.sqrt(unbiased_square) + 1e-8)


def normal(rng, shape, fan_in):
    """He initialisation: keeps the variance through ReLU layers."""
    return (rng.standard_normal(shape) * np.sqrt(2 / fan_in)).astype(np.float32)


def split(rng):
    """Images scaled to 0..1 as [n, 1, 8, 8] with their labels: (train, held out)."""
    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)[:, np.newaxis]
    order = rng.permutation(len(images))
    heldout, train = order[:HELDOUT], order[HELDOUT:]
    return (images[train], digits.target[train]), (images[heldout], digits.target[heldout])


def shifted(rng, images):
    """Each image moved by at most one pixel each way: 1347 training images are few."""
    padded = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))
    rows, cols = rng.integers(0, 3, size=(2, len(images)))
    return np.stack([p[:, r : r + SIDE, c : c + SIDE] for p, r, c in zip(padded, rows, cols)])


def loss_gradient(logits, labels):
    """Gradient of the mean cross entropy with respect to the logits."""
    shifted_logits = logits - logits.max(axis=1, keepdims=True)
    probability = np.exp(shifted_logits)
    probability /= probability.sum(axis=1, keepdims=True)
    probability[np.arange(len(labels)), labels] -= 1
    return probability / len(labels)


def train(rng, network, images, labels):
    optimiser = Adam(network.parameters())
    for epoch in range(EPOCHS):
        rate = LEARNING_RATE * 0.5 * (1 + np.cos(np.pi * epoch / EPOCHS))
        order = rng.permutation(len(images))
        for start in range(0, len(order), BATCH):
            chosen = order[start : start + BATCH]
            logits = network.forward(shifted(rng, images[chosen]))
            network.backward(loss_gradient(logits, labels[chosen]))
            optimiser.step(network.gradients(), rate)


def to_onnx(network):
    """Input `image` f32 [batch, 1, 8, 8], output `logits` f32 [batch, 10]; `batch` is symbolic."""
    nodes, initialisers, source = [], [], "image"
    for name, layer in network.layers.items():
        if name == "fc1":
            nodes.append(helper.make_node("Flatten", [source], ["flat"], name="flatten"))
            source = "flat"
        last = name == "fc2"
        nodes.append(layer.node(name, source, "logits" if last else f"{name}.out"))
        if not last:
            source = f"{name}.relu"
            nodes.append(helper.make_node("Relu", [f"{name}.out"], [source], name=source))
        initialisers.append(numpy_helper.from_array(layer.weight, f"{name}.weight"))
        initialisers.append(numpy_helper.from_array(layer.bias, f"{name}.bias"))
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, SIDE, SIDE])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", CLASSES])
    graph = helper.make_graph(nodes, "digits", [image], [logits], initialisers)
    opsets = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="baton-digits")
    onnx.checker.check_model(model, full_check=True)
    return model


def reference_logits(model_bytes, images):
    """What ONNX Runtime answers, one image at a time: no batch size is favoured."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model_bytes, options, providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(["logits"], {"image": image[np.newaxis]})[0] for image in images])


def heldout_bytes(images, logits, labels):
    header = HELDOUT_MAGIC + struct.pack("<4I", HELDOUT_VERSION, len(images), SIDE * SIDE, CLASSES)
    records = [
        image.astype("<f4").tobytes() + row.astype("<f4").tobytes() + struct.pack("<I", label)
        for image, row, label in zip(images, logits, labels)
    ]
    return header + b"".join(records)


def accuracy(logits, labels):
    return float((logits.argmax(axis=1) == labels).mean())


def main():
    parser = argparse.ArgumentParser(description="train the digits model")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder for the two output files")
    out = parser.parse_args().out

    rng = np.random.default_rng(SEED)
    (images, labels), (heldout_images, heldout_labels) = split(rng)
    network = Network(rng)
    train(rng, network, images, labels)

    model_bytes = to_onnx(network).SerializeToString(deterministic=True)
    logits = reference_logits(model_bytes, heldout_images)
    difference = float(np.abs(logits - network.forward(heldout_images)).max())
    if difference > 1e-4:
        raise SystemExit(f"the exported graph differs from the trained network by {difference}")

    out.mkdir(parents=True, exist_ok=True)
    (out / "digits.onnx").write_bytes(model_bytes)
    (out / "heldout.bin").write_bytes(heldout_bytes(heldout_images, logits, heldout_labels))
    print(f"training accuracy {accuracy(network.forward(images), labels):.4f} on {len(images)} images")
    print(f"held-out accuracy {accuracy(logits, heldout_labels):.4f} on {len(heldout_images)} images")


if __name__ == "__main__":
    main()
