"""Baton's client library: inputs are written where backends read them, and every task has one outcome by its deadline.

The guide is docs/python.md. `connect` is where programs begin.
"""

import os as _os

from . import _native
from ._aio import connect_async
from ._native import (
    DROP_REASONS,
    FAIL_REASONS,
    BatonError,
    Client,
    ClientClosedError,
    Completed,
    CompletionQueue,
    ConnectError,
    DeadlinePassedError,
    Dropped,
    Failed,
    ForkedError,
    Input,
    LeaveError,
    Model,
    ModelRemovedError,
    NoSlotError,
    QueueFullError,
    Reply,
    SchedulerLostError,
    TensorError,
    TensorSpec,
    Ticket,
    TicketBusyError,
    UnknownModelError,
    __version__,
    connect,
)
from ._sync import as_completed

Outcome = Completed | Dropped | Failed

_os.register_at_fork(after_in_child=_native._note_fork)

__all__ = [
    "DROP_REASONS",
    "FAIL_REASONS",
    "BatonError",
    "Client",
    "ClientClosedError",
    "Completed",
    "CompletionQueue",
    "ConnectError",
    "DeadlinePassedError",
    "Dropped",
    "Failed",
    "ForkedError",
    "Input",
    "LeaveError",
    "Model",
    "ModelRemovedError",
    "NoSlotError",
    "Outcome",
    "QueueFullError",
    "Reply",
    "SchedulerLostError",
    "TensorError",
    "TensorSpec",
    "Ticket",
    "TicketBusyError",
    "UnknownModelError",
    "__version__",
    "as_completed",
    "connect",
    "connect_async",
]
