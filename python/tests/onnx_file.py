"""A small ONNX file by hand: just enough of the format for a few element-wise nodes."""

from __future__ import annotations

FLOAT, INT64 = 1, 7


def _varint(value: int) -> bytes:
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + _varint(rest) if rest else bytes([low])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _nested(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _text(field: int, value: str) -> bytes:
    return _nested(field, value.encode())


def _value(name: str, element: int, shape: list[int | str]) -> bytes:
    dims = [_nested(1, _text(2, dim) if isinstance(dim, str) else _number(1, dim)) for dim in ["batch", *shape]]
    tensor = _number(1, element) + _nested(2, b"".join(dims))
    return _text(1, name) + _nested(2, _nested(1, tensor))


def pair() -> bytes:
    """Takes `ids`, of up to as many int64 as the cluster file says, and `scale`, three float32; negates both."""
    nodes = [("ids", "minus_ids"), ("scale", "minus_scale")]
    graph = b"".join(_nested(1, _text(1, source) + _text(2, to) + _text(4, "Neg")) for source, to in nodes)
    graph += _text(2, "pair")
    for source, to in nodes:
        element, shape = (INT64, ["n"]) if source == "ids" else (FLOAT, [3])
        graph += _nested(11, _value(source, element, [*shape])) + _nested(12, _value(to, element, [*shape]))
    return _number(1, 8) + _nested(7, graph) + _nested(8, _number(2, 17))
