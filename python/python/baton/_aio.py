"""Tickets and slots in event loops.

Each loop watches two descriptors. The library makes them readable, and the loop's own thread sets the results: no other
thread enters the interpreter.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Generator
from typing import Any

from ._native import Client, Completed, Dropped, Failed, Input, Model, Ticket, Watch, connect

# Tickets in one `Watch`; a loop with more has several.
_CAPACITY = 4096

_watches: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, list[Watch]] = weakref.WeakKeyDictionary()


def _new_watch(loop: asyncio.AbstractEventLoop, watches: list[Watch]) -> Watch:
    watch = Watch(_CAPACITY)
    for fd in watch.filenos():
        loop.add_reader(fd, watch.settle)
    watches.append(watch)
    return watch


def _watches_of(loop: asyncio.AbstractEventLoop) -> list[Watch]:
    watches = _watches.get(loop)
    if watches is None:
        # Futures that still wait keep a loop that ended in the middle, and so its watches.
        for other in list(_watches):
            if other.is_closed():
                for watch in _watches.pop(other, []):
                    watch.close()
        watches = _watches[loop] = []
        _new_watch(loop, watches)
    return watches


def _enter(ticket: Ticket, future: asyncio.Future[Any], loop: asyncio.AbstractEventLoop) -> Watch:
    """The loop will set the future's result."""
    watches = _watches_of(loop)
    if ticket.is_queued:
        for watch in watches:
            if watch.join(ticket, future):
                return watch
    for watch in watches:
        if watch.add(ticket, future):
            return watch
    watch = _new_watch(loop, watches)
    watch.add(ticket, future)
    return watch


def await_ticket(ticket: Ticket) -> Generator[Any, None, Completed | Dropped | Failed]:
    """`Ticket.__await__`. A cancelled coroutine cancels the task."""
    outcome = ticket.poll()
    if outcome is not None:
        return outcome
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Completed | Dropped | Failed] = loop.create_future()
    watch = _enter(ticket, future, loop)
    try:
        return (yield from future)
    except BaseException:
        # Also of a coroutine that is closed or forgotten.
        watch.forget(ticket, future)
        ticket.cancel()
        raise


async def input_ready(model: Model) -> Input:
    """`Model.input_ready`."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Input] = loop.create_future()
    watch = _watches_of(loop)[0]
    at = watch.add_slot(model, future)
    try:
        return await future
    finally:
        watch.forget_slot(at, future)


async def infer(
    model: Model, values: Any, within: float | None, cost: int | None, accuracy_min: float | None
) -> Completed | Dropped | Failed:
    """`Model.infer`."""
    ticket = model._try_submit(values, within, cost, accuracy_min)
    if ticket is None:
        input = await input_ready(model)
        input.write(values)
        ticket = input.submit(within=within, cost=cost, accuracy_min=accuracy_min)
        del input
    outcome = await ticket
    if isinstance(outcome, Completed):
        outcome.detach()
    return outcome


async def connect_async(scheduler: str | None = None, **settings: Any) -> Client:
    """As `connect`, without blocking the event loop."""
    return await asyncio.to_thread(connect, scheduler, **settings)


async def entered(client: Client) -> Client:
    """`Client.__aenter__`."""
    return client


async def left(client: Client) -> None:
    """`Client.leave_async`."""
    await asyncio.to_thread(client.leave)
