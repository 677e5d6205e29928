//! `eager`: work-conserving. What can run together with the head is schedulable at once; no head is given up for a
//! larger batch.

use super::{Deferral, Floor, Order, Rules};

pub(super) const RULES: Rules = Rules {
    floor: Floor::One,
    passes_over: false,
    deferral: Deferral::None,
    yields: false,
    order: Order::Frontrun,
    splits: false,
};
