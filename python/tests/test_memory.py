"""Slots as memory of Python's: no copy, and yours until submitted."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import baton


def test_an_array_lies_in_the_slot(client: baton.Client) -> None:
    model = client.model("quick")
    input = model.input()
    array = input.array()
    assert array.dtype == np.uint8 and array.shape == (4096,)
    assert array.flags.writeable and not array.flags.owndata
    other = np.frombuffer(memoryview(input), np.uint8)
    array[:] = 7
    assert other[4095] == 7, "both look at the same bytes"
    assert array.ctypes.data == other.ctypes.data
    del array, other
    input.close()


def test_a_slot_that_is_looked_at_is_not_submitted(client: baton.Client) -> None:
    input = client.model("quick").input()
    array = input.array()
    part = array[3:9]
    del array
    with pytest.raises(BufferError, match="still look at this input"):
        input.submit()
    with pytest.raises(BufferError, match="still look"):
        input.close()
    with pytest.raises(BufferError, match="still look"):
        input.truncate(3)
    view, other = memoryview(input), memoryview(input)
    del part, other
    with pytest.raises(BufferError, match="1 arrays or memoryviews"):
        input.submit()
    del view
    ticket = input.submit()
    with pytest.raises(BufferError, match="submitted, closed or taken"):
        memoryview(input)
    with pytest.raises(ValueError, match="used once"):
        input.submit()
    with pytest.raises(BufferError):
        input[:] = 1
    assert isinstance(ticket.wait(), baton.Completed)


def test_assignments_leave_no_view(client: baton.Client) -> None:
    model = client.model("quick")
    input = model.input()
    input[:] = 1
    input[:2] = [3, 4]
    assert bytes(input)[:3] == b"\x03\x04\x01"
    input.submit().cancel()


def test_what_is_written_is_what_the_backend_reads(client: baton.Client) -> None:
    """The emulated engine answers with a checksum: equal inputs, equal answers, however they were written."""
    model = client.model("quick")
    values = np.arange(4096, dtype=np.uint8)
    ways = [
        model.submit(values),
        model.submit(values.tobytes()),
        model.submit(values.astype(np.int64)),
        model.submit(values[::-1][::-1]),
        model.submit(memoryview(values.tobytes())),
    ]
    input = model.input()
    input[...] = values
    ways.append(input.submit())
    answers = [ticket.wait() for ticket in ways]
    outputs = []
    for answer in answers:
        assert isinstance(answer, baton.Completed), answer.explain()
        outputs.append(bytes(answer.output))
    assert len(set(outputs)) == 1
    other = model.submit(np.zeros(4096, np.uint8)).wait()
    assert isinstance(other, baton.Completed) and bytes(other.output) != outputs[0]


def test_an_input_is_written_with_itself(client: baton.Client) -> None:
    input = client.model("quick").input()
    input[:] = 7
    input.write(input)
    input.write(memoryview(input))
    input.write(input.array()[::-1])
    assert bytes(input) == b"\x07" * 4096
    input.close()


def test_a_slot_that_is_used_again_shows_nothing_through_old_arrays(client: baton.Client) -> None:
    """Eight slots, each used many times: an answer that Python looks at stays what it was."""
    model = client.model("quick")
    outcome = model.submit(np.full(4096, 1, np.uint8)).wait()
    assert isinstance(outcome, baton.Completed)
    output = outcome.output
    before = bytes(output)
    del outcome
    for value in range(40):
        other = model.submit(np.full(4096, value + 2, np.uint8)).wait()
        assert isinstance(other, baton.Completed) and bytes(other.output) != before
    assert bytes(output) == before
    del other, output
    assert client.slots_in_use == 0


def test_values_that_do_not_fit_are_refused(client: baton.Client) -> None:
    model = client.model("quick")
    with pytest.raises(ValueError, match="broadcast"):
        model.submit(np.zeros(4095, np.uint8))
    with pytest.raises((TypeError, ValueError)):
        model.submit("text")
    assert client.slots_in_use == 0, "a refused submit keeps no slot"
    with pytest.raises(baton.TensorError, match="shape"):
        model.input_of({"input": np.zeros(5, np.uint8)})
    with pytest.raises(baton.TensorError, match='no input "absent"'):
        model.input_of({"absent": np.zeros(4096, np.uint8)})
    input = model.input_of({model.inputs[0].name: np.full(4096, 3)})
    assert bytes(input) == b"\x03" * 4096


def test_a_reply_keeps_its_slot_as_long_as_it_is_looked_at(client: baton.Client) -> None:
    model = client.model("quick")
    outcome = model.submit(bytes(4096)).wait()
    assert isinstance(outcome, baton.Completed)
    output = outcome.output
    assert not output.flags.writeable and not output.flags.owndata
    before = bytes(output)
    assert client.slots_in_use == 1
    assert outcome.detach() is outcome
    assert client.slots_in_use == 1, "the array still looks at it"
    del output
    assert client.slots_in_use == 0
    assert bytes(outcome.output) == before
    assert bytes(outcome.outputs["output"]) == before
    other = model.submit(bytes(4096)).wait()
    assert isinstance(other, baton.Completed)
    view = memoryview(other.buffer)
    del other
    assert view.readonly and client.slots_in_use == 1, "so does any other view"
    assert bytes(view) == before
    del view
    assert client.slots_in_use == 0


def test_several_tensors_of_several_lengths(onnx: None, client: baton.Client) -> None:
    model = client.model("pair")
    ids, scale = model.inputs
    assert (ids.name, ids.dtype, ids.shape, ids.is_fixed) == ("ids", "int64", (9,), False)
    assert (scale.name, scale.dtype, scale.shape, scale.is_fixed) == ("scale", "float32", (3,), True)
    tickets = {}
    for count in [1, 4, 9]:
        tensors = {"scale": [0.5, count, -1], "ids": np.arange(count, dtype=np.int32)}
        tickets[count] = model.input_of(tensors).submit()
    for count, ticket in tickets.items():
        outcome = ticket.wait()
        assert isinstance(outcome, baton.Completed), outcome.explain()
        for _ in range(2):
            outputs = outcome.outputs
            assert list(outputs) == ["minus_ids", "minus_scale"]
            assert outputs["minus_ids"].dtype == np.int64 and outputs["minus_scale"].dtype == np.float32
            np.testing.assert_array_equal(outputs["minus_ids"], -np.arange(count))
            np.testing.assert_array_equal(outputs["minus_scale"], np.array([-0.5, -count, 1], np.float32))
            assert not outputs["minus_ids"].flags.owndata
            outcome.detach()
        with pytest.raises(baton.TensorError, match="use outputs"):
            _ = outcome.output
    with pytest.raises(baton.TensorError, match="use model.input_of"):
        model.input().array()
    with pytest.raises(baton.TensorError, match="use model.input_of"):
        model.submit(np.zeros(3))
    with pytest.raises(baton.TensorError, match="without the batch"):
        model.input_of({"ids": np.zeros(10), "scale": np.zeros(3)})
    with pytest.raises(baton.TensorError, match="scale .* is missing"):
        model.input_of({"ids": np.zeros(1)})


def test_tensors_by_name_go_wherever_values_go(onnx: None, client: baton.Client) -> None:
    model = client.model("pair")

    def ids_of(outcome: object) -> list[int]:
        assert isinstance(outcome, baton.Completed), outcome
        return [-int(value) for value in outcome.outputs["minus_ids"]]

    assert ids_of(model.submit({"ids": [4, 5], "scale": [1, 1, 1]}).wait()) == [4, 5]
    input = model.input()
    input.write({"ids": [4], "scale": [1, 1, 1]})
    input.write({"ids": range(9), "scale": [1, 1, 1]})
    assert ids_of(input.submit().wait()) == list(range(9))

    async def more_than_there_are_slots() -> list[object]:
        several = [{"ids": [number], "scale": [1, 1, 1]} for number in range(400)]
        return list(await asyncio.gather(*(model.infer(tensors, within=20.0) for tensors in several)))

    assert [ids_of(outcome) for outcome in asyncio.run(more_than_there_are_slots())] == [[n] for n in range(400)]


def test_values_of_another_type_are_converted(onnx: None, client: baton.Client) -> None:
    """As wide or not: what is written is the number, not its bytes."""
    model = client.model("digits")
    pixels = (np.arange(64) % 17).reshape(1, 8, 8)
    answers = []
    for kind in ["f4", "i4", "u4", "f8", "u1", ">f4", ">i4"]:
        outcome = model.submit(pixels.astype(kind)).wait()
        assert isinstance(outcome, baton.Completed), outcome.explain()
        assert outcome.output.dtype == np.float32 and outcome.output.shape == (10,)
        answers.append(outcome.detach().output)
    assert all(np.allclose(answer, answers[0], rtol=1e-4) for answer in answers)
    outcome = model.submit(pixels.astype(np.float32).tobytes()).wait()
    assert isinstance(outcome, baton.Completed) and np.allclose(outcome.output, answers[0], rtol=1e-4), "its bytes"


def test_slots_are_the_bound(client: baton.Client) -> None:
    model = client.model("quick")
    inputs = [model.input() for _ in range(8)]
    with pytest.raises(baton.NoSlotError, match="all 8 slots of quick"):
        model.input()
    with pytest.raises(baton.NoSlotError):
        model.input(timeout=0.05)
    inputs.pop().close()
    with model.input(timeout=10):
        assert client.slots_in_use == 8
    assert client.slots_in_use == 7
