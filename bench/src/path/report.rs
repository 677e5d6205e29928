//! What a measurement came to: for scripts as JSON, for people as text.

use std::fmt;

use serde::Serialize;

use super::client::Measured;
use super::cluster::MODEL;
use super::costs::{Costs, OfProcesses, PROCESSES, ThreadCost};
use super::floor::Floor;
use super::{Pace, PathBench, PathError};
use crate::load::{Circumstances, Reasons, Report, Totals, write_reasons};
use crate::machine::{Unusable, percent, stolen, too_good};

/// The part of the tasks that may go without an answer before costs per answer say little.
const LOST_MAX: f64 = 0.01;
const MISSED: &str = "the floor was missed, measure for longer: tasks over messages are";

/// A measurement of one pace.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PathReport {
    /// `closed` or `poisson`.
    pub mode: &'static str,
    /// Bytes of an input, and of a message of the bare sockets.
    pub bytes: u32,
    /// Tasks in a batch at most.
    pub batch: u32,
    /// Emulated GPU slots.
    pub slots: u32,
    /// What threads do without work: `spin` or `park`.
    pub idle: &'static str,
    /// What inputs came over: `tcp`, `rdma`, `shared memory`, or one of the latter two and TCP.
    pub transport: String,
    /// Tasks per second offered; `null` in a closed loop.
    pub rate: Option<f64>,
    /// Tasks under way in a closed loop; `null` otherwise.
    pub outstanding: Option<u32>,
    /// Length of the measurement: the time between the two readings of what processes use.
    pub seconds: f64,
    /// Tasks answered in it, per second.
    pub tasks_per_s: f64,
    /// Messages per second over bare sockets: the better of the two measurements.
    pub floor_per_s: f64,
    /// Those before the path and after it.
    pub floors_per_s: [f64; 2],
    /// Tasks over messages, per second.
    pub ratio: f64,
    /// CPU time, µs, of each process.
    pub cpu_us_per_task: OfProcesses,
    /// CPU time of both ends per message over bare sockets, µs, in the better measurement.
    pub floor_cpu_us: f64,
    /// Context switches of each process, of its own accord and not.
    pub switches_per_task: OfProcesses,
    /// The same figures by thread.
    pub threads: Vec<ThreadCost>,
    /// What became of the whole load's tasks, also of those before the measurement and after it. Latency counts from the
    /// submit in a closed loop, otherwise from when the task was due.
    #[serde(flatten)]
    pub tasks: Totals,
    /// Why tasks were dropped, and how many for each reason.
    pub dropped_by_reason: Reasons,
    /// Why tasks failed.
    pub failed_by_reason: Reasons,
    /// Tasks in a batch.
    pub mean_batch: Option<f64>,
    /// Every task has had one outcome.
    pub conserved: bool,
    /// Processes that died.
    pub lost: Vec<String>,
    /// Share of the CPU time that went to other machines' work; `null` where unknown.
    pub steal_fraction: Option<f64>,
    /// Why the figures are not to be used; empty if nothing is known against them.
    pub not_usable: Unusable,
}

/// Costs are per answer; tasks without one cost something too.
fn unanswered(tasks: &Totals) -> Option<String> {
    let (lost, submitted) = (tasks.dropped + tasks.failed, tasks.submitted);
    let many = lost as f64 > LOST_MAX * submitted as f64;
    many.then(|| format!("{lost} of {submitted} tasks were dropped or failed"))
}

/// Inputs that go through no socket may come faster than over bare ones.
fn missed(transport: &str, ratio: f64) -> Option<String> {
    too_good((transport == "tcp").then_some(ratio), MISSED)
}

/// The mode's name, the rate offered, and the tasks under way.
fn terms(pace: Pace) -> (&'static str, Option<f64>, Option<u32>) {
    match pace {
        Pace::Closed { outstanding } => ("closed", None, Some(outstanding)),
        Pace::Poisson { rate } => ("poisson", Some(rate), None),
    }
}

fn better([before, after]: [Floor; 2]) -> Floor {
    if before.per_s > after.per_s { before } else { after }
}

impl PathReport {
    pub(super) fn new(
        bench: &PathBench,
        pace: Pace,
        floors: [Floor; 2],
        measured: &Measured,
        lost: Vec<String>,
    ) -> Result<Self, PathError> {
        let Measured { from, to, steal_fraction, finished } = measured;
        let costs = Costs::between(from, to);
        let load = Report::of_generators(std::slice::from_ref(finished), Circumstances::default());
        let (conserved, tasks) = (load.conserved, load.totals);
        let model = load.models.into_iter().next().expect("the load is of one model");
        if costs.tasks == 0 {
            return Err(PathError::Nothing { failed: tasks.failed, dropped: tasks.dropped });
        }
        let ((mode, rate, outstanding), floor) = (terms(pace), better(floors));
        let tasks_per_s = costs.tasks as f64 / costs.seconds;
        let ratio = tasks_per_s / floor.per_s;
        Ok(Self {
            mode,
            bytes: bench.bytes,
            batch: bench.batch,
            slots: bench.slots,
            idle: bench.idle.as_str(),
            transport: finished.transport.clone(),
            rate,
            outstanding,
            seconds: costs.seconds,
            tasks_per_s,
            floor_per_s: floor.per_s,
            floors_per_s: floors.map(|floor| floor.per_s),
            ratio,
            cpu_us_per_task: costs.of_processes(|thread| thread.cpu_us_per_task),
            floor_cpu_us: floor.cpu_us,
            switches_per_task: costs.of_processes(|thread| thread.switches_per_task),
            threads: costs.threads,
            dropped_by_reason: model.dropped_by_reason,
            failed_by_reason: model.failed_by_reason,
            mean_batch: model.mean_batch,
            conserved,
            lost,
            steal_fraction: *steal_fraction,
            not_usable: Unusable::because([
                stolen(*steal_fraction),
                missed(&finished.transport, ratio),
                unanswered(&tasks),
            ]),
            tasks,
        })
    }

    /// True if no task and no process was lost, and no answer was wrong.
    pub fn is_good(&self) -> bool {
        self.conserved && self.tasks.wrong_answers == 0 && self.lost.is_empty()
    }

    fn write_head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, batch, slots, idle, transport, seconds, .. } = self;
        let Self { tasks_per_s, floor_per_s, ratio, .. } = self;
        match (self.outstanding, self.rate) {
            (Some(outstanding), _) => write!(f, "closed loop, {outstanding} tasks under way")?,
            (None, rate) => write!(f, "Poisson, {:.0} tasks/s offered", rate.unwrap_or(0.0))?,
        }
        writeln!(f, "; {bytes} bytes over {transport}, {seconds:.1} s")?;
        let batches = self.mean_batch.map_or_else(|| "–".to_owned(), |mean| format!("{mean:.1}"));
        write!(f, "batches of {batches} on average, {batch} at most; {slots} GPU slots; ")?;
        writeln!(f, "idle = {idle}")?;
        let [before, after] = self.floors_per_s;
        writeln!(f, "{tasks_per_s:>10.0} tasks/s, {ratio:.4} of the floor")?;
        writeln!(f, "{floor_per_s:>10.0} messages/s over bare sockets ({before:.0}, {after:.0})")?;
        let ms = |ms: Option<f64>| ms.map_or_else(|| "–".to_owned(), |ms| format!("{ms:.2}"));
        writeln!(f, "latency p50 {} ms, p99 {} ms", ms(self.tasks.p50_ms), ms(self.tasks.p99_ms))
    }

    fn write_costs(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (cpu, switches) = (&self.cpu_us_per_task, &self.switches_per_task);
        let of = |of: &OfProcesses| [of.client, of.scheduler, of.backend];
        writeln!(f, "{:<24} {:>14} {:>14}", "per task", "CPU time, µs", "switches")?;
        for ((name, cpu), switches) in PROCESSES.iter().zip(of(cpu)).zip(of(switches)) {
            cost(f, name, cpu, switches)?;
            let has_cost =
                |thread: &&ThreadCost| thread.process == *name && thread.cpu_us_per_task > 0.0;
            for thread in self.threads.iter().filter(has_cost) {
                let many =
                    if thread.count > 1 { format!(" × {}", thread.count) } else { String::new() };
                let name = format!("  {}{many}", thread.thread);
                cost(f, &name, thread.cpu_us_per_task, thread.switches_per_task)?;
            }
        }
        cost(f, "all three", cpu.sum, switches.sum)?;
        writeln!(f, "{:<24} {:>14.3}", "bare sockets, both ends", self.floor_cpu_us)
    }
}

fn cost(f: &mut fmt::Formatter<'_>, name: &str, cpu_us: f64, switches: f64) -> fmt::Result {
    writeln!(f, "{name:<24} {cpu_us:>14.3} {switches:>14.4}")
}

impl fmt::Display for PathReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_head(f)?;
        self.write_costs(f)?;
        writeln!(f, "CPU stolen {}", percent(self.steal_fraction, "unknown"))?;
        for name in &self.lost {
            writeln!(f, "LOST: {name}")?;
        }
        let Totals { submitted, completed, late, dropped, failed, wrong_answers, .. } = &self.tasks;
        let conserved = if self.conserved { "conserved" } else { "NOT CONSERVED" };
        writeln!(f, "{conserved}: {submitted} submitted, {completed} completed ({late} late),")?;
        writeln!(f, "  {dropped} dropped, {failed} failed; {wrong_answers} wrong")?;
        write_reasons(f, MODEL, "dropped", &self.dropped_by_reason)?;
        write_reasons(f, MODEL, "failed", &self.failed_by_reason)?;
        self.not_usable.write(f)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use baton_topo::{Idle, TransportChoice};

    use super::*;
    use crate::load::{Finished, Tally};
    use crate::path::costs::tests::readings;
    use crate::processes::ChildConfig;

    pub(in crate::path) fn report(pace: Pace, dropped: u64) -> PathReport {
        let [from, to] = readings();
        let tally = Tally {
            submitted: 1_000 + dropped,
            completed: 1_000,
            dropped: (dropped > 0).then(|| ("window".to_owned(), dropped)).into_iter().collect(),
            batches: 10.0,
            ..Tally::default()
        };
        let finished = Finished {
            seconds: 3.0,
            transport: "tcp".to_owned(),
            engines: vec!["emulated".to_owned()],
            tallies: vec![tally],
        };
        let children =
            ChildConfig { exe: "baton".into(), common_args: Vec::new(), variables: Vec::new() };
        let paces = vec![pace];
        let bench = PathBench {
            children,
            bytes: 64,
            batch: 256,
            paces,
            seconds: 2.0,
            slots: 2,
            engine: ("emulated", [0.001, 0.5]),
            idle: Idle::Park,
            transport: TransportChoice::Tcp,
            seed: 1,
        };
        let floors =
            [(1_000.0, 2.0), (2_000.0, 1.5)].map(|(per_s, cpu_us)| Floor { per_s, cpu_us });
        let measured = Measured { from, to, steal_fraction: Some(0.0), finished };
        PathReport::new(&bench, pace, floors, &measured, Vec::new()).unwrap()
    }

    #[test]
    fn people_get_a_table_within_80_columns() {
        let text = report(Pace::Closed { outstanding: 1_024 }, 0).to_string();
        let expected = "\
closed loop, 1024 tasks under way; 64 bytes over tcp, 2.0 s
batches of 100.0 on average, 256 at most; 2 GPU slots; idle = park
       500 tasks/s, 0.2500 of the floor
      2000 messages/s over bare sockets (1000, 2000)
latency p50 – ms, p99 – ms
per task                   CPU time, µs       switches
client                            1.200         0.0030
  baton                           1.000         0.0000
  late                            0.200         0.0030
scheduler                         5.000         1.5000
  model                           4.000         1.0000
  rank                            1.000         0.5000
backend                           2.000         0.2000
  gpu × 2                         2.000         0.2000
all three                         8.200         1.7030
bare sockets, both ends           1.500
CPU stolen 0.0 %
conserved: 1000 submitted, 1000 completed (0 late),
  0 dropped, 0 failed; 0 wrong
";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_run_that_lost_tasks_is_conserved_and_not_usable() {
        let report = report(Pace::Poisson { rate: 600.0 }, 11);
        assert!(report.is_good() && report.rate == Some(600.0), "{report:?}");
        let text = report.to_string();
        assert!(text.contains("not usable: 11 of 1011 tasks were dropped or failed"), "{text}");
        let json = serde_json::to_value(&report).unwrap();
        for key in "tasks_per_s floor_per_s ratio cpu_us_per_task switches_per_task threads \
                    submitted completed dropped failed late p50_ms p99_ms steal_fraction mode \
                    bytes batch idle rate seconds"
            .split_whitespace()
        {
            assert!(json.get(key).is_some(), "{key}");
        }
        assert!(json["cpu_us_per_task"]["sum"].as_f64().is_some());
    }
}
