//! Who may submit, and whose tasks wait when not all can.

pub(crate) mod fair_share;
pub(crate) mod quota;
