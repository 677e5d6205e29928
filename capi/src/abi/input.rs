//! An input: written in place, then submitted once; or submitted, then written and finished.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use baton_client::{CostHint, Deadline, Input, InputAhead, SharedTicket, SubmitError, Ticket};

use super::pointers::Out;
use super::structs::{InputHandle, TicketHandle};
use super::ticket::TICKETS;
use crate::handles::Table;
use crate::status::{E_BUSY, OK, Refusal, Result, call};

/// Stands for the model's own objective.
const SLO: u64 = u64::MAX;

/// What a handle stands for.
pub(super) enum Slot {
    /// To be submitted.
    Free(Input),
    /// Of a task that queues already.
    Ahead(InputAhead),
}

pub(super) static INPUTS: Table<Slot> = Table::new(3, "input");

fn is_ahead() -> Refusal {
    let words =
        "the input is submitted already: write it, and baton_input_finish or baton_input_free it";
    Refusal::new(E_BUSY, words)
}

#[unsafe(no_mangle)]
pub extern "C" fn baton_input_data(
    input: InputHandle,
    data: Out<*mut c_void>,
    bytes: Out<usize>,
) -> i32 {
    call(|| {
        let data = data.given("data")?;
        INPUTS.with(input.id, |slot| {
            let slot: &mut [u8] = match slot {
                Slot::Free(input) => input,
                Slot::Ahead(input) => input,
            };
            data.put(slot.as_mut_ptr().cast());
            bytes.put_if_given(slot.len());
        })?;
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn baton_input_truncate(input: InputHandle, bytes: usize) -> i32 {
    call(|| {
        INPUTS.with(input.id, |slot| match slot {
            Slot::Free(input) => {
                input.truncate(bytes);
                Ok(OK)
            }
            Slot::Ahead(_) => Err(is_ahead()),
        })?
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn baton_input_cost(input: InputHandle, units: u32) -> i32 {
    call(|| {
        let taken = take_free(input)?.with_cost(CostHint::of_units(units));
        INPUTS.put_back(input.id, Slot::Free(taken));
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn baton_input_submit(
    input: InputHandle,
    within_ns: u64,
    ticket: Out<TicketHandle>,
) -> i32 {
    submit(input, ticket, |input| Ok((None, input.submit(deadline(within_ns))?)))
}

#[unsafe(no_mangle)]
pub extern "C" fn baton_input_submit_ahead(
    input: InputHandle,
    within_ns: u64,
    ticket: Out<TicketHandle>,
) -> i32 {
    submit(input, ticket, |input| {
        let (ahead, ticket) = input.submit_ahead(deadline(within_ns))?;
        Ok((Some(ahead), ticket))
    })
}

/// Hands the input over, and keeps what of it is still to be written.
fn submit(
    input: InputHandle,
    ticket: Out<TicketHandle>,
    by: impl FnOnce(Input) -> std::result::Result<(Option<InputAhead>, Ticket), SubmitError>,
) -> i32 {
    call(|| {
        let out = ticket.given("ticket")?;
        match by(take_free(input)?) {
            Ok((ahead, ticket)) => {
                match ahead {
                    Some(ahead) => INPUTS.put_back(input.id, Slot::Ahead(ahead)),
                    None => INPUTS.forget(input.id),
                }
                out.put(handle(ticket)?);
                Ok(OK)
            }
            Err(refused) => {
                INPUTS.put_back(input.id, Slot::Free(refused.input));
                Err(Refusal::from(refused.reason))
            }
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn baton_input_finish(input: InputHandle) -> i32 {
    call(|| match INPUTS.take(input.id)? {
        Slot::Ahead(ahead) => {
            INPUTS.forget(input.id);
            ahead.finish();
            Ok(OK)
        }
        free @ Slot::Free(_) => {
            INPUTS.put_back(input.id, free);
            let words = "the input is not submitted yet: baton_input_submit_ahead comes first, or baton_input_submit does both";
            Err(Refusal::argument(words))
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn baton_input_free(input: InputHandle) -> i32 {
    call(|| INPUTS.remove(input.id).map(|_slot| OK))
}

/// The input, if it is still to be submitted. Its handle is busy until it is put back or forgotten.
fn take_free(input: InputHandle) -> Result<Input> {
    match INPUTS.take(input.id)? {
        Slot::Free(free) => Ok(free),
        ahead @ Slot::Ahead(_) => {
            INPUTS.put_back(input.id, ahead);
            Err(is_ahead())
        }
    }
}

fn deadline(within_ns: u64) -> Deadline {
    match within_ns {
        SLO => Deadline::Slo,
        ns => Deadline::within(Duration::from_nanos(ns)),
    }
}

fn handle(ticket: Ticket) -> Result<TicketHandle> {
    Ok(TicketHandle { id: TICKETS.insert(Arc::new(SharedTicket::new(ticket)))? })
}
