"""Every way to get an outcome, and every kind."""

from __future__ import annotations

import select
import threading
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

import baton

ZEROS = np.zeros(4096, np.uint8)


def test_outcomes_are_values_to_match(client: baton.Client) -> None:
    match client.model("quick").submit(ZEROS, within=10).wait():
        case baton.Completed(output, late=False) as done:
            assert output.shape == (8,) and done.batch_size >= 1
            assert 0 < done.execution_s < done.latency_s < 10
            assert "completed in time" in done.explain()
        case other:
            pytest.fail(repr(other))
    match client.model("unserved").submit(bytes(64)).wait():
        case baton.Dropped("no_backend", ended_by="scheduler") as dropped:
            assert dropped.explain().startswith("dropped (no_backend)")
            assert dropped.retry_after_s is None and dropped.latency_s >= 0
        case other:
            pytest.fail(repr(other))
    match client.model("slow").submit(bytes(64), within=0.1).wait():
        case baton.Dropped("deadline_passed" | "deadline"):
            pass
        case other:
            pytest.fail(repr(other))


def test_a_timeout_leaves_the_task(client: baton.Client) -> None:
    ticket = client.model("slow").submit(bytes(64))
    assert ticket.poll() is None
    with pytest.raises(TimeoutError):
        ticket.wait(timeout=0.01)
    outcome = ticket.wait()
    assert isinstance(outcome, baton.Completed)
    assert ticket.wait() is outcome and ticket.poll() is outcome, "it stays"


def test_another_thread_cancels(client: baton.Client) -> None:
    model = client.model("slow")
    tickets = [model.submit(bytes(64)) for _ in range(4)]
    threading.Timer(0.05, tickets[3].cancel).start()
    outcome = tickets[3].wait()
    assert isinstance(outcome, baton.Dropped) and outcome.reason == "cancelled"
    for ticket in tickets:
        ticket.cancel()


def test_one_thread_waits(client: baton.Client) -> None:
    ticket = client.model("slow").submit(bytes(64))
    ends: list[object] = []

    def wait() -> None:
        try:
            ends.append(ticket.wait())
        except baton.TicketBusyError as error:
            ends.append(error)

    threads = [threading.Thread(target=wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    outcomes = {id(end) for end in ends if not isinstance(end, baton.TicketBusyError)}
    assert len(ends) == 4 and len(outcomes) == 1, "all that have an outcome have the same one"


def test_a_queue_gives_outcomes_as_they_come(client: baton.Client) -> None:
    quick, slow = client.model("quick"), client.model("slow")
    queue = baton.CompletionQueue(2)
    last = slow.submit(bytes(64))
    queue.add(last, "slow")
    queue.add(quick.submit(ZEROS), "quick")
    with pytest.raises(baton.QueueFullError, match="all 2 places"):
        queue.add(quick.submit(ZEROS))
    with pytest.raises(baton.TicketBusyError):
        last.wait()
    assert select.select([queue], [], [], 60)[0] == [queue]
    assert [tag for tag, _ in queue] == ["quick", "slow"]
    assert len(queue) == 0 and queue.poll() is None and queue.wait() is None
    assert isinstance(last.wait(), baton.Completed), "the ticket has it, too"
    queue.add(slow.submit(bytes(64)))
    queue.add(slow.submit(bytes(64)))
    assert queue.wait(timeout=0.001) is None
    del queue  # cancels


def test_as_completed(client: baton.Client) -> None:
    slow, quick = client.model("slow").submit(bytes(64)), client.model("quick").submit(ZEROS)
    order = [ticket for ticket, _ in baton.as_completed([slow, quick])]
    assert order == [quick, slow]
    with pytest.raises(TimeoutError, match="1 tickets"):
        list(baton.as_completed([client.model("slow").submit(bytes(64))], timeout=0.01))


def test_mistakes_have_words(cluster: object, client: baton.Client) -> None:
    with pytest.raises(baton.UnknownModelError, match="this client has: .*quick"):
        client.model("absent")
    with pytest.raises(ValueError, match="IP:PORT"):
        baton.connect("nowhere")
    with pytest.raises(ValueError, match="scheduler's address"):
        baton.connect()
    with pytest.raises(baton.ConnectError, match="127.0.0.1:1"):
        baton.connect("127.0.0.1:1", connect_timeout=0.05)
    model = client.model("quick")
    with pytest.raises(baton.DeadlinePassedError, match="positive"):
        model.submit(ZEROS, within=0)
    for wrong in [-1.0, float("nan")]:
        with pytest.raises(ValueError, match="seconds, 0 or more"):
            model.submit(ZEROS, within=wrong)
    assert client.slots_in_use == 0


def test_a_client_that_has_left_refuses(cluster: Any) -> None:
    client = baton.connect(cluster.scheduler, models=["quick"])
    model = client.model("quick")
    client.leave()
    with pytest.raises(baton.ClientClosedError, match="connect a new one"):
        model.submit(ZEROS)


def test_the_description_of_a_model(client: baton.Client) -> None:
    model = client.model("quick")
    assert [model.name for model in client.models()][:2] == ["quick", "slow"] or "digits" in client.models()[0].name
    assert (model.slo_s, model.input_bytes, model.output_bytes) == (2.0, 4096, 8)
    (spec,) = model.inputs
    assert (spec.name, spec.dtype, spec.shape, spec.is_fixed) == ("input", "uint8", (4096,), True)
    assert spec == client.model("quick").inputs[0] and not model.is_removed
    assert model.retry_after_s is None and client.loss is None
    model.submit(ZEROS).wait()
    assert client.counters()["completed"] == 1


def test_the_stub_names_every_reason() -> None:
    """The type checker's reasons are those of the library."""
    stub = (Path(baton.__file__).parent / "_native.pyi").read_text()
    scope: dict[str, object] = {}
    for name, reasons in [("DropReason", baton.DROP_REASONS), ("FailReason", baton.FAIL_REASONS)]:
        text = stub.split(f"{name}: TypeAlias = ")[1].split("]")[0] + "]"
        exec(f"from typing import Literal\nnamed = {text}", scope)
        assert get_args(scope["named"]) == reasons
