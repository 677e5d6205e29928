#!/usr/bin/env python3
"""Writes a network of ResNet-50's shape with made-up weights: python3 bench/resnet50.py FILE.onnx

Input `x`: f32, N × 3 × 224 × 224. Output `y`: f32, N × 1000. The layers, and so the work of a batch, are those of ResNet-50 v1.5
with its batch normalisations folded into the convolutions. Needs Python alone. Two runs write the same file.
"""

import array
import math
import random
import sys

# Random numbers of -1 to 1, again and again: weights only have to keep activations alive.
NOISE = array.array("f", (random.Random(1).uniform(-1, 1) for _ in range(1 << 16)))


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(out + bytes([number]))


def field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def weights(name: str, shape: list[int], scale: float) -> bytes:
    """A TensorProto."""
    count = math.prod(shape)
    block = array.array("f", (scale * number for number in NOISE)).tobytes()
    raw = (block * (count * 4 // len(block) + 1))[: count * 4]
    return b"".join(field(1, extent) for extent in shape) + field(2, 1) + field(8, name) + field(9, raw)


def ints(name: str, values: list[int]) -> bytes:
    """An AttributeProto."""
    return field(1, name) + b"".join(field(8, value) for value in values) + field(20, 7)


def value(name: str, shape: list[int]) -> bytes:
    """A ValueInfoProto of f32, whose first extent is N."""
    extents = [field(1, field(2, "N"))] + [field(1, field(1, extent)) for extent in shape]
    return field(1, name) + field(2, field(1, field(1, 1) + field(2, b"".join(extents))))


class Network:
    def __init__(self) -> None:
        self.nodes: list[bytes] = []
        self.weights: list[bytes] = []

    def node(self, kind: str, inputs: list[str], *attributes: bytes, output: str = "") -> str:
        output = output or f"{kind.lower()}{len(self.nodes)}"
        parts = [field(1, name) for name in inputs] + [field(2, output), field(4, kind)]
        self.nodes.append(b"".join(parts + [field(5, attribute) for attribute in attributes]))
        return output

    def add_weights(self, shape: list[int], fan_in: int) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(weights(name, shape, math.sqrt(3 / fan_in) if fan_in else 0.01))
        return name

    def convolution(self, x: str, shape: tuple[int, int, int], stride: int = 1, then_relu: bool = True) -> str:
        before, after, side = shape
        kernel = self.add_weights([after, before, side, side], before * side * side)
        inputs = [x, kernel, self.add_weights([after], 0)]
        pads = ints("pads", [side // 2] * 4)
        y = self.node("Conv", inputs, ints("kernel_shape", [side] * 2), ints("strides", [stride] * 2), pads)
        return self.node("Relu", [y]) if then_relu else y

    def bottleneck(self, x: str, before: int, width: int, stride: int) -> str:
        y = self.convolution(x, (before, width, 1))
        y = self.convolution(y, (width, width, 3), stride)
        y = self.convolution(y, (width, 4 * width, 1), then_relu=False)
        if before != 4 * width or stride != 1:
            x = self.convolution(x, (before, 4 * width, 1), stride, then_relu=False)
        return self.node("Relu", [self.node("Add", [x, y])])


def resnet50() -> bytes:
    """A ModelProto."""
    net = Network()
    x = net.convolution("x", (3, 64, 7), 2)
    x = net.node("MaxPool", [x], ints("kernel_shape", [3, 3]), ints("strides", [2, 2]), ints("pads", [1] * 4))
    channels = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            x = net.bottleneck(x, channels, width, 2 if block == 0 and width != 64 else 1)
            channels = 4 * width
    x = net.node("Flatten", [net.node("GlobalAveragePool", [x])])
    net.node("Gemm", [x, net.add_weights([2048, 1000], 2048), net.add_weights([1000], 0)], output="y")
    graph = [field(1, node) for node in net.nodes] + [field(2, "resnet50")]
    graph += [field(5, tensor) for tensor in net.weights]
    graph += [field(11, value("x", [3, 224, 224])), field(12, value("y", [1000]))]
    return field(1, 8) + field(8, field(1, "") + field(2, 17)) + field(7, b"".join(graph))


if len(sys.argv) != 2:
    sys.exit(__doc__)
with open(sys.argv[1], "wb") as file:
    file.write(resnet50())
