"""Outcomes of many tickets, for threads without an event loop."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from ._native import Completed, CompletionQueue, Dropped, Failed, Ticket


def as_completed(
    tickets: Iterable[Ticket], timeout: float | None = None
) -> Iterator[tuple[Ticket, Completed | Dropped | Failed]]:
    """Each ticket with its outcome, as they come. Raises `TimeoutError` after `timeout` seconds in all."""
    waiting, ended = [], []
    for ticket in tickets:
        outcome = ticket.poll()
        if outcome is None:
            waiting.append(ticket)
        else:
            ended.append((ticket, outcome))
    queue = CompletionQueue(len(waiting))
    for ticket in waiting:
        queue.add(ticket, ticket)
    del waiting
    until = None if timeout is None else time.monotonic() + timeout
    yield from ended
    while len(queue):
        left = None if until is None else max(0.0, until - time.monotonic())
        done = queue.wait(left)
        if done is None:
            raise TimeoutError(f"{len(queue)} tickets have no outcome within the timeout: wait for those, or drop them")
        yield done
