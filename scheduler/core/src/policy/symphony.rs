//! `symphony`: Symphony's deferred batches (§4.3, App. C). A batch is schedulable once βλ tasks wait or its frontrun
//! moment has come; heads are given up for the target batch size.

use super::{Deferral, Floor, Order, Rules};

pub(super) const RULES: Rules = Rules {
    floor: Floor::Target,
    passes_over: false,
    deferral: Deferral::Fill,
    yields: false,
    order: Order::Frontrun,
    splits: false,
};
