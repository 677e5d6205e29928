//! A completion queue: many tickets, one descriptor.

use std::ffi::c_int;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::Arc;
use std::time::Duration;

use baton_client::{CompletionKey, CompletionQueue};

use super::outcome::put;
use super::pointers::{Out, OutStruct};
use super::structs::{Key, OutcomeStruct, QueueHandle, TicketHandle};
use super::ticket::TICKETS;
use crate::handles::Table;
use crate::status::{E_BUSY, E_HANDLE, E_QUEUE_FULL, E_SYSTEM, EMPTY, OK, PENDING, Refusal, call};

static QUEUES: Table<Arc<CompletionQueue>> = Table::new(6, "queue");

#[unsafe(no_mangle)]
pub extern "C" fn baton_queue_new(capacity: usize, queue: Out<QueueHandle>) -> i32 {
    call(|| {
        let out = queue.given("queue")?;
        let made = CompletionQueue::new(capacity).map_err(|error| {
            Refusal::new(E_SYSTEM, format!("no completion queue of {capacity} places: {error}"))
        })?;
        out.put(QueueHandle { id: QUEUES.insert(Arc::new(made))? });
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn baton_queue_free(queue: QueueHandle) -> i32 {
    call(|| QUEUES.remove(queue.id).map(|_queue| OK))
}

#[unsafe(no_mangle)]
pub extern "C" fn baton_queue_fd(queue: QueueHandle, fd: Out<c_int>) -> i32 {
    call(|| {
        let (queue, fd) = (QUEUES.get(queue.id)?, fd.given("fd")?);
        fd.put(queue.as_fd().as_raw_fd());
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn baton_queue_add(
    queue: QueueHandle,
    ticket: TicketHandle,
    tag: u64,
    key: Out<Key>,
) -> i32 {
    call(|| {
        let (queue, shared) = (QUEUES.get(queue.id)?, TICKETS.get(ticket.id)?);
        let taken = shared.take().ok_or_else(|| {
            Refusal::new(
                E_BUSY,
                "another thread waits for this ticket: add it before, or wait there",
            )
        })?;
        match queue.add(taken, tag) {
            Ok(added) => {
                TICKETS.remove(ticket.id)?;
                key.put_if_given(Key { id: added.to_bits() });
                Ok(OK)
            }
            Err(full) => {
                let refusal = Refusal::new(E_QUEUE_FULL, &full);
                shared.put_back(full.ticket);
                Err(refusal)
            }
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn baton_queue_next(
    queue: QueueHandle,
    timeout_ns: u64,
    tag: Out<u64>,
    outcome: OutStruct<OutcomeStruct>,
) -> i32 {
    call(|| {
        let (queue, out) = (QUEUES.get(queue.id)?, outcome.given()?);
        let done = match timeout_ns {
            0 => queue.poll(),
            ns => queue.wait(Duration::from_nanos(ns)),
        };
        match done {
            Some(done) => {
                tag.put_if_given(done.tag);
                put(out, done.outcome)?;
                Ok(OK)
            }
            None => Ok(if queue.is_empty() { EMPTY } else { PENDING }),
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn baton_queue_cancel(queue: QueueHandle, key: Key) -> i32 {
    call(|| match QUEUES.get(queue.id)?.cancel(CompletionKey::from_bits(key.id)) {
        true => Ok(OK),
        false => {
            let words = "this key's outcome was taken already, or it is of another queue";
            Err(Refusal::new(E_HANDLE, words))
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn baton_queue_len(queue: QueueHandle, len: Out<usize>) -> i32 {
    call(|| {
        let len = len.given("len")?;
        len.put(QUEUES.get(queue.id)?.len());
        Ok(OK)
    })
}
