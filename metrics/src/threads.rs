//! How long a process's threads have run, and waited for a core, as the kernel counts it: nothing on a task's way counts it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::{Metric, Value};

/// Of this process's threads by name. The kernel may not say it; then there are no series.
pub fn threads() -> [Metric; 2] {
    shown(&read(Path::new("/proc/self/task")))
}

/// Nanoseconds run and waited, by name: threads of one name are one.
type Times = BTreeMap<String, (u64, u64)>;

fn shown(times: &Times) -> [Metric; 2] {
    let seconds = |name: &str, help, of: fn(&(u64, u64)) -> u64| {
        let level = |(name, times): (&String, &(u64, u64))| {
            (vec![name.clone()], Value::Seconds(of(times) as f64 / 1e9))
        };
        let series = times.iter().map(level).collect();
        Metric { series, ..Metric::counters(name, help, &["thread"]) }
    };
    [
        seconds("baton_thread_cpu_seconds", "Time that threads of a name had a core", |times| {
            times.0
        }),
        seconds(
            "baton_thread_wait_seconds",
            "Time that threads of a name could have run, and other threads had the cores",
            |times| times.1,
        ),
    ]
}

/// A thread may end while it is read.
fn read(tasks: &Path) -> Times {
    let mut times = Times::new();
    for task in fs::read_dir(tasks).into_iter().flatten().flatten() {
        let text = |file: &str| fs::read_to_string(task.path().join(file)).ok();
        let Some((name, stat)) = text("comm").zip(text("schedstat")) else { continue };
        let mut numbers = stat.split_whitespace().map(str::parse::<u64>);
        if let (Some(Ok(ran)), Some(Ok(waited))) = (numbers.next(), numbers.next()) {
            let sum = times.entry(name.trim_end().to_owned()).or_default();
            *sum = (sum.0 + ran, sum.1 + waited);
        }
    }
    times
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_one_name_are_added_up_and_what_cannot_be_read_is_left_out() {
        let tasks = std::env::temp_dir().join(format!("baton-threads-{}", std::process::id()));
        let task = |number: &str, name: &str, stat: &str| {
            let folder = tasks.join(number);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("comm"), name).unwrap();
            fs::write(folder.join("schedstat"), stat).unwrap();
        };
        task("1", "baton\n", "2500000000 500000000 7\n");
        task("2", "worker\n", "1000000000 1 7\n");
        task("3", "worker\n", "2000000000 2 7\n");
        task("4", "odd\n", "");
        fs::create_dir_all(tasks.join("5")).unwrap();
        let times = read(&tasks);
        fs::remove_dir_all(&tasks).unwrap();
        let own = |name: &str| name.to_owned();
        let wanted =
            [(own("baton"), (2_500_000_000, 500_000_000)), (own("worker"), (3_000_000_000, 3))];
        assert_eq!(times, Times::from(wanted));
        let [cpu, wait] = shown(&times);
        assert_eq!(cpu.full_name(), "baton_thread_cpu_seconds_total");
        assert_eq!(cpu.series[0], (vec![own("baton")], Value::Seconds(2.5)));
        assert_eq!(wait.series[0], (vec![own("baton")], Value::Seconds(0.5)));
        assert_eq!(read(&tasks), Times::new(), "it is gone");
    }
}
