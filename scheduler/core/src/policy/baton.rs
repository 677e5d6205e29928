//! `baton`, our own policy and the default: a batch waits while the tasks still to come are worth the wait, and gives
//! heads up only for a batch that is worth them. While slots are to spare it does not wait at all. `docs/scheduling.md`,
//! *The policy `baton`*, derives the rules; `model/sizing.rs` prices waiting, `rank/reserve/` and `rank/spare.rs` say
//! how many slots are to spare.

use super::{Deferral, Floor, Order, Rules};

pub(super) const RULES: Rules = Rules {
    floor: Floor::Efficient,
    passes_over: false,
    deferral: Deferral::Expectation,
    yields: true,
    order: Order::LatestStart,
    splits: false,
};
