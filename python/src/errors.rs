//! What calls raise: a caller's mistake, or a connection that is not there. How a task ended is a value.

use baton_client::{InputError, SubmitReason};
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

create_exception!(baton, BatonError, PyException, "What every error of this package is.");
create_exception!(baton, ConnectError, BatonError, "The client could not join a scheduler.");
create_exception!(baton, UnknownModelError, BatonError, "The client has no model of this name.");
create_exception!(baton, NoSlotError, BatonError, "Every slot of the model is in use.");
create_exception!(baton, ModelRemovedError, BatonError, "An operator has removed the model.");
create_exception!(baton, ClientClosedError, BatonError, "The client has left.");
create_exception!(baton, DeadlinePassedError, BatonError, "The deadline had passed at the submit.");
create_exception!(
    baton,
    SchedulerLostError,
    BatonError,
    "The scheduler is lost; the client reconnects by itself."
);
create_exception!(baton, LeaveError, BatonError, "The client has ended, but not in order.");
create_exception!(baton, TensorError, BatonError, "These are not the tensors of the model.");
create_exception!(baton, QueueFullError, BatonError, "The completion queue is full.");
create_exception!(baton, TicketBusyError, BatonError, "Another waits for this ticket.");
create_exception!(baton, ForkedError, BatonError, "The object belongs to the parent process.");

pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let all = [
        ("BatonError", py.get_type::<BatonError>()),
        ("ConnectError", py.get_type::<ConnectError>()),
        ("UnknownModelError", py.get_type::<UnknownModelError>()),
        ("NoSlotError", py.get_type::<NoSlotError>()),
        ("ModelRemovedError", py.get_type::<ModelRemovedError>()),
        ("ClientClosedError", py.get_type::<ClientClosedError>()),
        ("DeadlinePassedError", py.get_type::<DeadlinePassedError>()),
        ("SchedulerLostError", py.get_type::<SchedulerLostError>()),
        ("LeaveError", py.get_type::<LeaveError>()),
        ("TensorError", py.get_type::<TensorError>()),
        ("QueueFullError", py.get_type::<QueueFullError>()),
        ("TicketBusyError", py.get_type::<TicketBusyError>()),
        ("ForkedError", py.get_type::<ForkedError>()),
    ];
    all.into_iter().try_for_each(|(name, class)| module.add(name, class))
}

pub(crate) fn of_input(error: &InputError) -> PyErr {
    let words = error.to_string();
    match error {
        InputError::SlabExhausted { .. } => NoSlotError::new_err(words),
        InputError::WrongSize { .. } | InputError::Tensors { .. } => TensorError::new_err(words),
        InputError::ModelRemoved { .. } => ModelRemovedError::new_err(words),
        InputError::ClientClosed => ClientClosedError::new_err(words),
    }
}

pub(crate) fn of_submit(reason: SubmitReason) -> PyErr {
    let words = reason.to_string();
    match reason {
        SubmitReason::DeadlinePassed => DeadlinePassedError::new_err(words),
        SubmitReason::SchedulerLost => SchedulerLostError::new_err(words),
        SubmitReason::ClientClosed => ClientClosedError::new_err(words),
        SubmitReason::ModelRemoved => ModelRemovedError::new_err(words),
    }
}
