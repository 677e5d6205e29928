//! What a task costs: the threads' CPU time and context switches between two readings, over the tasks answered
//! between them.

use baton_core::Nanos;
use serde::Serialize;

use crate::load::Progress;
use crate::machine::ThreadUsage;

/// The processes, in the order of the path.
pub(super) const PROCESSES: [&str; 3] = ["client", "scheduler", "backend"];

/// What the processes had used when so much had become of the load.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Reading {
    pub(super) progress: Progress,
    /// In the order of [`PROCESSES`].
    pub(super) threads: [Vec<ThreadUsage>; 3],
}

/// A figure of each process, per task.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize)]
pub struct OfProcesses {
    /// The process that submits the tasks, its load generator included.
    pub client: f64,
    /// The scheduler.
    pub scheduler: f64,
    /// The backend, its emulated engines included.
    pub backend: f64,
    /// Of all three.
    pub sum: f64,
}

/// What the threads of one name cost, per task; names that differ in a number alone are one.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ThreadCost {
    /// Of which process.
    pub process: &'static str,
    /// Its name.
    pub thread: String,
    /// How many of them there are.
    pub count: u32,
    /// CPU time, µs.
    pub cpu_us_per_task: f64,
    /// Context switches.
    pub switches_per_task: f64,
}

/// What a task cost between two readings.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Costs {
    /// Time between the readings.
    pub(super) seconds: f64,
    /// Tasks answered in it.
    pub(super) tasks: u64,
    /// Dearest first, process by process.
    pub(super) threads: Vec<ThreadCost>,
}

/// No thread that the first reading has is missing in the second: what one has used that ended in between is lost.
pub(super) fn all_live_on(from: &Reading, to: &Reading) -> bool {
    let lives = |thread: &ThreadUsage, then: &[ThreadUsage]| then.iter().any(|t| t.id == thread.id);
    from.threads.iter().zip(&to.threads).all(|(now, then)| now.iter().all(|t| lives(t, then)))
}

impl Costs {
    pub(super) fn between(from: &Reading, to: &Reading) -> Self {
        let tasks = to.progress.completed - from.progress.completed;
        let of_process = |(at, process): (usize, &'static str)| {
            let mut costs = by_name(process, &from.threads[at], &to.threads[at], tasks);
            costs.sort_by(|a, b| b.cpu_us_per_task.total_cmp(&a.cpu_us_per_task));
            costs
        };
        let seconds = to.progress.seconds - from.progress.seconds;
        let threads = PROCESSES.into_iter().enumerate().flat_map(of_process).collect();
        Self { seconds, tasks, threads }
    }

    /// A figure of the threads, process by process.
    pub(super) fn of_processes(&self, figure: fn(&ThreadCost) -> f64) -> OfProcesses {
        let of = |name: &str| {
            let threads = self.threads.iter().filter(|thread| thread.process == name);
            threads.map(figure).sum()
        };
        let [client, scheduler, backend] = PROCESSES.map(of);
        OfProcesses { client, scheduler, backend, sum: client + scheduler + backend }
    }
}

/// Threads of one name together. One that has begun since the first reading counts from its beginning.
fn by_name(
    process: &'static str,
    from: &[ThreadUsage],
    to: &[ThreadUsage],
    tasks: u64,
) -> Vec<ThreadCost> {
    let mut costs: Vec<ThreadCost> = Vec::new();
    for thread in to {
        let before = from.iter().find(|earlier| earlier.id == thread.id);
        let cpu = thread.cpu - before.map_or(Nanos::ZERO, |before| before.cpu);
        let switches = thread.switches - before.map_or(0, |before| before.switches);
        let name = without_number(&thread.name);
        let at = costs.iter().position(|cost| cost.thread == name).unwrap_or_else(|| {
            costs.push(ThreadCost::nothing(process, name.clone()));
            costs.len() - 1
        });
        let cost = &mut costs[at];
        cost.count += 1;
        cost.cpu_us_per_task += cpu.0 as f64 / 1e3 / tasks as f64;
        cost.switches_per_task += switches as f64 / tasks as f64;
    }
    costs
}

/// `baton-gpu3` is `baton-gpu`, and `model-0` is `model`.
fn without_number(name: &str) -> String {
    let stem = name.replace(|c: char| c.is_ascii_digit(), "");
    stem.trim_end_matches('-').to_owned()
}

impl ThreadCost {
    fn nothing(process: &'static str, thread: String) -> Self {
        Self { process, thread, count: 0, cpu_us_per_task: 0.0, switches_per_task: 0.0 }
    }
}

/// CPU time of all of them.
pub(super) fn cpu_total(threads: &[ThreadUsage]) -> Nanos {
    threads.iter().fold(Nanos::ZERO, |sum, thread| sum + thread.cpu)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn thread(id: u32, name: &str, cpu_us: u64, switches: u64) -> ThreadUsage {
        ThreadUsage { id, name: name.to_owned(), cpu: Nanos::from_micros(cpu_us), switches }
    }

    /// Two readings, two seconds and 1,000 tasks apart.
    pub(in crate::path) fn readings() -> [Reading; 2] {
        let at = |seconds, completed, threads| {
            let progress = Progress { seconds, completed, ..Progress::default() };
            Reading { progress, threads }
        };
        let client = vec![thread(1, "baton", 500, 5)];
        let scheduler = vec![thread(2, "rank", 0, 0), thread(3, "model-0", 100, 10)];
        let gpus = |cpu_us, switches| {
            [4, 5].map(|id| thread(id, &format!("gpu-{id}"), cpu_us, switches)).to_vec()
        };
        let from = at(1.0, 200, [client, scheduler, gpus(7, 1)]);
        let client = vec![thread(1, "baton", 1_500, 5), thread(9, "late", 200, 3)];
        let scheduler = vec![thread(2, "rank", 1_000, 500), thread(3, "model-0", 4_100, 1_010)];
        [from, at(3.0, 1_200, [client, scheduler, gpus(1_007, 101)])]
    }

    #[test]
    fn threads_cost_what_they_used_between_the_readings_over_the_tasks() {
        let [from, to] = readings();
        let costs = Costs::between(&from, &to);
        assert_eq!((costs.seconds, costs.tasks), (2.0, 1_000));
        assert!(all_live_on(&from, &to) && !all_live_on(&to, &from));
        let names: Vec<_> = costs.threads.iter().map(|c| (c.thread.as_str(), c.count)).collect();
        assert_eq!(names, [("baton", 1), ("late", 1), ("model", 1), ("rank", 1), ("gpu", 2)]);
        let cpu = costs.of_processes(|thread| thread.cpu_us_per_task);
        let near = |is: f64, expected: f64| assert!((is - expected).abs() < 1e-9, "{is}");
        near(cpu.client, 1.2);
        near(cpu.scheduler, 5.0);
        near(cpu.backend, 2.0);
        near(cpu.sum, 8.2);
        near(costs.of_processes(|thread| thread.switches_per_task).sum, 1.703);
    }
}
