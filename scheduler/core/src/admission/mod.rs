//! Who may submit, and whose tasks wait when not all can.

pub(crate) mod quota;
pub(crate) mod standing;
