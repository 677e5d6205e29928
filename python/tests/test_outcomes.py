"""Every way to get an outcome, and every kind."""

from __future__ import annotations

import gc
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


def test_a_quota_says_when_to_come_again(client: baton.Client) -> None:
    """One task a second, and sixteen at once: the next one is a second away, less what has passed."""
    model = client.model("few")
    refused = []
    for _ in range(3):
        tickets = [model.submit(bytes(64), within=60) for _ in range(8)]
        outcomes = [ticket.wait() for ticket in tickets]
        del tickets
        refused += [one for one in outcomes if isinstance(one, baton.Dropped)]
        del outcomes
    assert {one.reason for one in refused} == {"quota"}
    for one in refused:
        assert one.ended_by == "scheduler" and one.retry_after_s is not None and 0 < one.retry_after_s <= 10
    assert max(one.retry_after_s or 0 for one in refused) > 0.01
    assert model.retry_after_s is None or 0 < model.retry_after_s <= 10


def test_a_timeout_leaves_the_task(client: baton.Client) -> None:
    ticket = client.model("slow").submit(bytes(64))
    assert ticket.poll() is None
    with pytest.raises(TimeoutError):
        ticket.wait(timeout=0.01)
    outcome = ticket.wait()
    assert isinstance(outcome, baton.Completed)
    assert ticket.wait() is outcome and ticket.poll() is outcome, "it stays"


def test_an_input_is_written_while_its_task_queues(client: baton.Client) -> None:
    model = client.model("quick")
    expected = model.submit(np.full(4096, 7, np.uint8), within=10).wait()
    assert isinstance(expected, baton.Completed)
    with model.input() as later:
        with pytest.raises(ValueError, match="not submitted yet"):
            later.finish()
        later[...] = 9
        ticket = later.submit_ahead(within=10)
        with pytest.raises(TimeoutError):
            ticket.wait(timeout=0.1)
        for early in (later.submit, later.submit_ahead, lambda: later.truncate(1)):
            with pytest.raises(ValueError, match="submitted already"):
                early()
        array = later.array()
        array[:] = 7
        with pytest.raises(BufferError):
            later.finish()
        del array
        later.finish()
        with pytest.raises(ValueError, match="used once"):
            later.finish()
    outcome = ticket.wait()
    assert isinstance(outcome, baton.Completed), outcome
    assert (outcome.output == expected.output).all()


def test_an_input_that_never_comes_ends_its_task(client: baton.Client) -> None:
    model = client.model("quick")
    with pytest.raises(RuntimeError, match="no image"):
        with model.input() as later:
            ticket = later.submit_ahead(within=10)
            raise RuntimeError("no image")
    assert isinstance(outcome := ticket.wait(), baton.Dropped) and outcome.reason == "cancelled"
    with model.input() as later:
        late = later.submit_ahead(within=0.3).wait()
    assert isinstance(late, baton.Dropped) and late.reason.startswith("deadline"), late


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


def test_as_completed(client: baton.Client) -> None:
    slow, quick = client.model("slow").submit(bytes(64)), client.model("quick").submit(ZEROS)
    order = [ticket for ticket, _ in baton.as_completed([slow, quick])]
    assert order == [quick, slow]
    again = list(baton.as_completed([slow, quick]))
    assert [ticket for ticket, _ in again] == [slow, quick] and again[0][1] is slow.wait(), "those that have ended, too"
    assert list(baton.as_completed([])) == []


def test_as_completed_leaves_the_tickets_behind(client: baton.Client) -> None:
    *blockers, ticket = (client.model("slow").submit(bytes(64)) for _ in range(4))
    quick = client.model("quick").submit(ZEROS)
    quick.wait()
    for _ in range(2):
        with pytest.raises(TimeoutError, match="1 tickets"):
            list(baton.as_completed([ticket, quick], timeout=0.01))
        assert not ticket.is_queued
    del blockers
    assert isinstance(ticket.wait(), baton.Completed), "it can still be waited for"


def test_a_queue_that_is_gone_gives_its_tickets_back(client: baton.Client) -> None:
    slow = client.model("slow")
    kept, queue = slow.submit(bytes(64)), baton.CompletionQueue(3)
    queue.add(kept)
    queue.add(slow.submit(bytes(64)))
    ended = client.model("quick").submit(ZEROS)
    queue.add(ended)
    assert select.select([queue], [], [], 60)[0] == [queue]
    del queue
    assert isinstance(kept.wait(), baton.Completed) and isinstance(ended.poll(), baton.Completed)
    del kept, ended
    _wait_until_free(client)


def test_the_garbage_collector_finds_a_queue_that_its_tags_refer_to(client: baton.Client) -> None:
    slow, queue = client.model("slow"), baton.CompletionQueue(2)
    blocker = slow.submit(bytes(64))
    queue.add(slow.submit(bytes(64)), {"queue": queue})
    del queue
    gc.collect()
    assert isinstance(blocker.wait(), baton.Completed)
    del blocker
    _wait_until_free(client)
    assert client.counters()["completed"] == 1, "the other task was cancelled"


def _wait_until_free(client: baton.Client) -> None:
    """Until each slot is. What is cancelled ends within a moment."""
    client.leave()
    assert client.slots_in_use == 0


def test_a_ticket_that_has_ended_enters_no_queue(client: baton.Client) -> None:
    ticket = client.model("quick").submit(ZEROS)
    outcome = ticket.wait()
    queue = baton.CompletionQueue(1)
    with pytest.raises(baton.TicketBusyError, match="was taken before"):
        queue.add(ticket)
    assert len(queue) == 0 and ticket.poll() is outcome
    queue.add(client.model("quick").submit(ZEROS))
    assert queue.wait() is not None, "the refused one took no place"


def test_variants_and_a_least_accuracy(client: baton.Client) -> None:
    model, row = client.model("supernet"), bytes(64)
    assert list(model.variants.items()) == [("small", 73.5), ("large", 80.25)]
    match model.submit(row, within=0.1).wait():
        case baton.Completed(variant="small", accuracy=73.5):
            pass
        case other:
            pytest.fail(other.explain())
    match model.submit(row, within=5, accuracy_min=75).wait():
        case baton.Completed(variant="large", accuracy=80.25):
            pass
        case other:
            pytest.fail(other.explain())
    match model.submit(row, within=0.1, accuracy_min=75).wait():
        case baton.Dropped("accuracy") as dropped:
            assert "accurate" in dropped.explain()
        case other:
            pytest.fail(other.explain())
    for wrong in [-1.0, 100.5, float("nan")]:
        with pytest.raises(ValueError, match="from 0 to 100"):
            model.submit(row, accuracy_min=wrong)
    plain = client.model("quick").submit(ZEROS, accuracy_min=99, cost=7).wait()
    assert isinstance(plain, baton.Completed) and plain.variant is None and plain.accuracy is None
    assert client.model("quick").variants == {}


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
    assert {"few", "quick", "slow"} <= {model.name for model in client.models()}
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
