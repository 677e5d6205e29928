//! CPU time of the calling thread: what a cost is measured in where cores are shared.
//! A duration only; it is never compared with the process's clock.

use baton_core::Nanos;
use rustix::time::{ClockId, clock_gettime};

/// CPU time the calling thread has used, user and kernel.
pub(crate) fn thread_time() -> Nanos {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_takes_cpu_time_and_waiting_does_not() {
        let start = thread_time();
        baton_topo::park_thread(Some(Nanos::from_millis(50)));
        let waited = thread_time() - start;
        assert!(waited < Nanos::from_millis(25), "{waited:?}");
        let mut sum = 0u64;
        while thread_time() == start + waited {
            sum = std::hint::black_box(sum + 1);
        }
    }
}
