//! A ticket: waited for, cancelled.

use std::sync::Arc;
use std::time::Duration;

use baton_client::SharedTicket;

use super::outcome::put;
use super::pointers::{Out, OutStruct};
use super::structs::{OutcomeStruct, TicketHandle};
use crate::handles::Table;
use crate::status::{OK, PENDING, call};

pub(super) static TICKETS: Table<Arc<SharedTicket>> = Table::new(4, "ticket");

#[unsafe(no_mangle)]
pub extern "C" fn baton_ticket_wait(
    ticket: TicketHandle,
    timeout_ns: u64,
    outcome: OutStruct<OutcomeStruct>,
) -> i32 {
    call(|| {
        let (shared, out) = (TICKETS.get(ticket.id)?, outcome.given()?);
        match shared.wait(Duration::from_nanos(timeout_ns))? {
            Some(outcome) => {
                TICKETS.remove(ticket.id)?;
                put(out, outcome)?;
                Ok(OK)
            }
            None => Ok(PENDING),
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn baton_ticket_cancel(ticket: TicketHandle) -> i32 {
    call(|| {
        TICKETS.get(ticket.id)?.cancel();
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn baton_ticket_task(ticket: TicketHandle, task: Out<u64>) -> i32 {
    call(|| {
        let (shared, out) = (TICKETS.get(ticket.id)?, task.given("task")?);
        out.put(shared.task().0);
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn baton_ticket_free(ticket: TicketHandle) -> i32 {
    call(|| TICKETS.remove(ticket.id).map(|_ticket| OK))
}
