//! Learns of forks.

use std::ffi::c_int;
use std::sync::Once;

use crate::status::note_fork;

unsafe extern "C" {
    fn pthread_atfork(
        prepare: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> c_int;
}

extern "C" fn in_child() {
    note_fork();
}

/// From the first client on, calls in a child are refused.
pub(super) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler stores one atomic, and the library is never unloaded (`build.rs`).
        let failed = unsafe { pthread_atfork(None, None, Some(in_child)) };
        debug_assert_eq!(failed, 0, "it fails for want of memory only");
    });
}
