//! What each thread of a process has used, as `/proc` tells it.

use std::fs;
use std::path::Path;

use baton_core::Nanos;

/// What one thread has used since it began.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ThreadUsage {
    /// Its number, unlike any other's.
    pub(crate) id: u32,
    /// Its name, of which the kernel keeps 15 bytes.
    pub(crate) name: String,
    /// Time on a core, user and kernel.
    pub(crate) cpu: Nanos,
    /// How often it left its core: to wait, or because another was to run.
    pub(crate) switches: u64,
}

/// Of each thread of the process with this number that lives now. Empty once the process has ended, or where the
/// system does not tell.
pub(crate) fn thread_usage(process: u32) -> Vec<ThreadUsage> {
    let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { return Vec::new() };
    threads.filter_map(|thread| of_thread(&thread.ok()?.path())).collect()
}

/// `None` if the thread has ended meanwhile.
fn of_thread(thread: &Path) -> Option<ThreadUsage> {
    let read = |file: &str| fs::read_to_string(thread.join(file)).ok();
    Some(ThreadUsage {
        id: thread.file_name()?.to_str()?.parse().ok()?,
        name: read("comm")?.trim_end().to_owned(),
        // Time on a core, time in line for one, how often.
        cpu: Nanos(read("schedstat")?.split_whitespace().next()?.parse().ok()?),
        switches: switches(&read("status")?)?,
    })
}

/// Of its own accord and not.
fn switches(status: &str) -> Option<u64> {
    let count = |key: &str| -> Option<u64> {
        status.lines().find_map(|line| line.strip_prefix(key))?.trim().parse().ok()
    };
    Some(count("voluntary_ctxt_switches:")? + count("nonvoluntary_ctxt_switches:")?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::thread_time;

    fn named(name: &str) -> ThreadUsage {
        let all = thread_usage(std::process::id());
        all.into_iter().find(|thread| thread.name == name).expect("it lives")
    }

    #[test]
    fn a_thread_that_works_and_rests_has_used_time_and_switched() {
        let name = "usage-test";
        let work = move || {
            let before = named(name);
            baton_topo::park_thread(Some(Nanos::from_millis(5)));
            let mut sum = 0u64;
            while thread_time() < before.cpu + Nanos::from_millis(20) {
                sum = std::hint::black_box(sum + 1);
            }
            (before, named(name))
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(work).unwrap();
        let (before, after) = thread.join().unwrap();
        assert_eq!(before.id, after.id);
        assert!(after.cpu > before.cpu && after.switches > before.switches, "{before:?} {after:?}");
    }

    #[test]
    fn both_kinds_of_switches_count_and_no_process_has_no_threads() {
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t3\n";
        assert_eq!((switches(status), switches("Name:\tx\n")), (Some(15), None));
        assert_eq!(thread_usage(u32::MAX), []);
    }
}
