//! An operator asks for the status.

use baton_rdma::status::ClusterStatus;
use baton_rdma::wire::{Role, StatusAsk};

use super::{Member, Stage, Told};

/// One part of the answer: its records, and where the next one begins.
pub fn part(stage: &mut Stage, operator: &mut Member, from: u64) -> (u64, String) {
    operator.send(&StatusAsk { from: from.into() }, &[]);
    match &stage.exchange(operator)[..] {
        [Told::Status { next, text }] => (*next, text.clone()),
        other => panic!("expected a part, received {other:?}"),
    }
}

/// All of it.
pub fn status(stage: &mut Stage) -> ClusterStatus {
    let mut operator = stage.member(Role::Operator);
    let mut status = ClusterStatus::default();
    let mut from = 0;
    loop {
        let (next, text) = part(stage, &mut operator, from);
        status.take_in(&text).unwrap();
        from = next;
        if from == 0 {
            return status;
        }
    }
}
