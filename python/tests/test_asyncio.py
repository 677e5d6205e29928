"""Awaiting: tickets, slots, and many at once, all settled by the loop's own thread."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

import baton

ZEROS = np.zeros(4096, np.uint8)


def run(cluster: Any, act: Any, **settings: Any) -> Any:
    async def main() -> Any:
        async with await baton.connect_async(cluster.scheduler, **settings) as client:
            return await asyncio.wait_for(act(client), 100)

    return asyncio.run(main())


def test_infer(cluster: Any) -> None:
    async def act(client: baton.Client) -> None:
        outcome = await client.model("quick").infer(ZEROS, within=10)
        assert isinstance(outcome, baton.Completed) and not outcome.late
        assert client.slots_in_use == 0, "the answer was copied out of its slot"
        assert outcome.output.shape == (8,)

    run(cluster, act)


def test_a_thousand_at_once_wait_for_eight_slots(cluster: Any) -> None:
    async def act(client: baton.Client) -> None:
        model = client.model("quick")
        inputs = np.arange(1000, dtype=np.uint16)
        rows = [np.full(2048, number).view(np.uint8) for number in inputs]
        outcomes = await asyncio.gather(*(model.infer(row, within=90) for row in rows))
        outputs = {bytes(done.output) for done in outcomes if isinstance(done, baton.Completed)}
        assert len(outputs) == 1000, "each has its own answer"
        assert client.slots_in_use == 0 and client.counters()["completed"] == 1000

    run(cluster, act, slots_per_model=8)


def test_one_who_waits_for_a_slot_keeps_what_it_asked_for(cluster: Any) -> None:
    async def act(client: baton.Client) -> None:
        model = client.model("supernet")
        held = model.input()
        waits = asyncio.create_task(model.infer(bytes(64), within=30, accuracy_min=75))
        refused = asyncio.create_task(model.infer(bytes(64), within=0.05, accuracy_min=75))
        await asyncio.sleep(0)
        held.close()
        outcome, dropped = await waits, await refused
        assert isinstance(outcome, baton.Completed) and outcome.variant == "large"
        assert isinstance(dropped, baton.Dropped) and dropped.reason == "accuracy"

    run(cluster, act, slots_per_model=1)


def test_more_tickets_than_one_watch_holds(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import baton._aio

    monkeypatch.setattr(baton._aio, "_CAPACITY", 4)

    async def act(client: baton.Client) -> None:
        model = client.model("quick")
        tickets = [model.submit(ZEROS) for _ in range(30)]
        outcomes = await asyncio.gather(*tickets)
        assert all(isinstance(done, baton.Completed) for done in outcomes)

    run(cluster, act)


def test_a_ticket_is_awaited_twice_and_after_its_end(cluster: Any) -> None:
    async def act(client: baton.Client) -> None:
        ticket = client.model("slow").submit(bytes(64))
        both = await asyncio.gather(ticket, ticket)
        assert both[0] is both[1] and await ticket is both[0] and ticket.wait() is both[0]

    run(cluster, act)


def test_a_cancelled_coroutine_cancels_its_task(cluster: Any) -> None:
    async def act(client: baton.Client) -> None:
        model = client.model("slow")
        first, ticket = model.submit(bytes(64)), model.submit(bytes(64))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ticket, 0.01)
        outcome = await ticket
        assert isinstance(outcome, baton.Dropped) and outcome.reason == "cancelled"
        assert isinstance(await first, baton.Completed)

    run(cluster, act)


def test_a_cancelled_infer_frees_its_slot_without_the_loop(cluster: Any) -> None:
    """The loop ends before the outcomes come: none is left to take them."""
    with baton.connect(cluster.scheduler, slots_per_model=4) as client:

        async def main(count: int) -> None:
            waits = [asyncio.create_task(client.model("slow").infer(bytes(64))) for _ in range(count)]
            await asyncio.sleep(0)
            waits[0].cancel()

        for count in [1, 3, 9]:
            asyncio.run(main(count))
        client.leave()
        assert client.slots_in_use == 0 and client.counters()["submitted"] > 0


def test_a_loop_that_was_closed_in_the_middle_keeps_nothing(cluster: Any) -> None:
    with baton.connect(cluster.scheduler, slots_per_model=4) as client:
        ticket = client.model("slow").submit(bytes(64))

        async def wait(ticket: baton.Ticket) -> object:
            return await ticket

        loop = asyncio.new_event_loop()
        tasks = [loop.create_task(wait(one)) for one in [ticket, client.model("slow").submit(bytes(64))]]
        loop.call_soon(loop.stop)
        loop.run_forever()
        assert ticket.is_queued
        loop.close()
        assert isinstance(asyncio.run(wait(client.model("slow").submit(bytes(64)))), baton.Completed)
        assert not ticket.is_queued, "the next loop has swept up"
        assert isinstance(ticket.wait(), baton.Completed), "it is its owner's again"
        for task in tasks:
            task._log_destroy_pending = False


def test_one_of_two_who_await_a_ticket_gives_up(cluster: Any) -> None:
    async def act(client: baton.Client) -> None:
        blocker, ticket = (client.model("slow").submit(bytes(64)) for _ in range(2))
        first, second = asyncio.ensure_future(_awaited(ticket)), asyncio.ensure_future(_awaited(ticket))
        await asyncio.sleep(0)
        first.cancel()
        outcome = await second
        assert isinstance(outcome, baton.Dropped) and outcome.reason == "cancelled"
        blocker.cancel()

    run(cluster, act)


def test_many_who_stop_waiting_for_slots_leave_the_line(cluster: Any) -> None:
    async def act(client: baton.Client) -> None:
        model = client.model("quick")
        held = model.input()
        for _ in range(50):
            waits = [asyncio.ensure_future(model.input_ready()) for _ in range(20)]
            await asyncio.sleep(0)
            for wait in waits[:-1]:
                wait.cancel()
            held.close()
            held = await waits[-1]
        held.close()
        assert client.slots_in_use == 0

    run(cluster, act, slots_per_model=1)


def test_one_who_stops_waiting_for_a_slot_gives_its_place_up(cluster: Any) -> None:
    async def act(client: baton.Client) -> None:
        model = client.model("quick")
        held = [model.input(), model.input()]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(model.input_ready(), 0.01)
        second = asyncio.ensure_future(model.input_ready())
        await asyncio.sleep(0)
        held.pop().close()
        input = await second
        assert client.slots_in_use == 2
        input.close()

    run(cluster, act, slots_per_model=2)


def test_those_who_wait_for_a_slot_hear_that_the_client_leaves(cluster: Any) -> None:
    async def act(client: baton.Client) -> None:
        held = client.model("quick").input()
        waits = asyncio.ensure_future(client.model("quick").input_ready())
        await asyncio.sleep(0)
        leaving = asyncio.ensure_future(client.leave_async())
        with pytest.raises(baton.ClientClosedError):
            await waits
        held.close()
        await leaving

    run(cluster, act, slots_per_model=1)


def test_loops_one_after_the_other_and_at_once(cluster: Any, client: baton.Client) -> None:
    model = client.model("quick")

    async def one() -> None:
        assert isinstance(await model.submit(ZEROS), baton.Completed)

    for _ in range(3):
        asyncio.run(one())
    threads = [threading.Thread(target=asyncio.run, args=(one(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert client.counters()["completed"] == 7

    async def elsewhere(ticket: baton.Ticket) -> None:
        with pytest.raises(baton.TicketBusyError):
            await ticket

    async def here() -> None:
        ticket = client.model("slow").submit(bytes(64))
        waits = asyncio.ensure_future(_awaited(ticket))
        await asyncio.sleep(0)
        await asyncio.to_thread(asyncio.run, elsewhere(ticket))
        assert isinstance(await waits, baton.Completed)

    asyncio.run(here())


async def _awaited(ticket: baton.Ticket) -> object:
    return await ticket


def test_no_other_thread_sets_results(cluster: Any) -> None:
    async def act(client: baton.Client) -> None:
        ticket = client.model("quick").submit(ZEROS)
        future = asyncio.ensure_future(_awaited(ticket))
        threads: list[int] = []
        future.add_done_callback(lambda _: threads.append(threading.get_ident()))
        await future
        await asyncio.sleep(0)
        assert threads == [threading.get_ident()]
        assert threading.active_count() <= 2, "the I/O thread is none of Python's"

    run(cluster, act)
