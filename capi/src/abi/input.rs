//! An input: written in place, submitted once.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use baton_client::{CostHint, Deadline, Input, SharedTicket};

use super::pointers::Out;
use super::structs::{InputHandle, TicketHandle};
use super::ticket::TICKETS;
use crate::handles::Table;
use crate::status::{OK, Refusal, call};

/// Stands for the model's own objective.
const SLO: u64 = u64::MAX;

pub(super) static INPUTS: Table<Input> = Table::new(3, "input");

#[unsafe(no_mangle)]
pub extern "C" fn baton_input_data(
    input: InputHandle,
    data: Out<*mut c_void>,
    bytes: Out<usize>,
) -> i32 {
    call(|| {
        let data = data.given("data")?;
        INPUTS.with(input.id, |input| {
            data.put(input.as_mut_ptr().cast());
            bytes.put_if_given(input.len());
        })?;
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn baton_input_truncate(input: InputHandle, bytes: usize) -> i32 {
    call(|| INPUTS.with(input.id, |input| input.truncate(bytes)).map(|()| OK))
}

#[unsafe(no_mangle)]
pub extern "C" fn baton_input_cost(input: InputHandle, units: u32) -> i32 {
    call(|| {
        let taken = INPUTS.take(input.id)?;
        INPUTS.put_back(input.id, taken.with_cost(CostHint::of_units(units)));
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn baton_input_submit(
    input: InputHandle,
    within_ns: u64,
    ticket: Out<TicketHandle>,
) -> i32 {
    call(|| {
        let out = ticket.given("ticket")?;
        let deadline = match within_ns {
            SLO => Deadline::Slo,
            ns => Deadline::within(Duration::from_nanos(ns)),
        };
        match INPUTS.take(input.id)?.submit(deadline) {
            Ok(ticket) => {
                INPUTS.forget(input.id);
                out.put(TicketHandle { id: TICKETS.insert(Arc::new(SharedTicket::new(ticket)))? });
                Ok(OK)
            }
            Err(refused) => {
                INPUTS.put_back(input.id, refused.input);
                Err(Refusal::from(refused.reason))
            }
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn baton_input_free(input: InputHandle) -> i32 {
    call(|| INPUTS.remove(input.id).map(|_input| OK))
}
