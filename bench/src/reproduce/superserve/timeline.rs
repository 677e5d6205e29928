//! Accuracy and load over time: Figs. 11a and 12, and a burst.

use baton_sim::{Run, Scenario, run_traced};

use super::super::ReproduceError;
use super::super::precision::Precision;
use super::super::runner::Runner;
use super::cells::Column;
use super::scenario::{P0, Setup};
use crate::machine::in_parallel;

/// Points of a line.
const POINTS: usize = 120;

/// A set-up to look at over time.
pub(super) struct Course {
    pub(super) title: &'static str,
    pub(super) setup: Setup,
}

pub(super) const COURSES: [Course; 5] = [
    Course { title: "Fig. 11a: 8 → 4 GPUs", setup: Setup::steady(3500.0, 2.0).with_faults() },
    Course { title: "Fig. 12: 7000, CV² 2", setup: Setup::bursty(1500.0, 5500.0, 2.0) },
    Course { title: "7000, CV² 8", setup: Setup::bursty(1500.0, 5500.0, 8.0) },
    Course { title: "Fig. 12: to 7400, τ 250", setup: Setup::ramp(7400.0, 250.0) },
    Course { title: "to 7400, τ 5000", setup: Setup::ramp(7400.0, 5000.0) },
];

/// Who is drawn.
pub(super) const DRAWN: [Column; 2] = [Column::Ours, Column::SlackFit];

/// One policy's run of a course.
pub(super) struct Timeline {
    pub(super) column: Column,
    /// Seconds and per cent.
    pub(super) accuracy: Vec<(f64, f64)>,
    /// Seconds and executed tasks per second.
    pub(super) rate: Vec<(f64, f64)>,
}

/// For each course, a timeline of each that is drawn.
pub(super) fn measure(runner: &Runner) -> Result<Vec<Vec<Timeline>>, ReproduceError> {
    let jobs: Vec<(&Course, Column)> =
        COURSES.iter().flat_map(|course| DRAWN.map(|column| (course, column))).collect();
    let precision = runner.precision;
    let done = in_parallel(&jobs, |&(course, column)| timeline(&course.setup, column, precision));
    let mut done = done.into_iter();
    let mut of_course = |_| done.by_ref().take(DRAWN.len()).collect();
    (0..COURSES.len()).map(&mut of_course).collect()
}

fn timeline(
    setup: &Setup,
    column: Column,
    precision: Precision,
) -> Result<Timeline, ReproduceError> {
    let scenario = Scenario::parse(&setup.scenario(precision, column.alone(), 1))?;
    let (policy, seed) = (column.policy().parsed(), scenario.seed);
    let run = Run { policy, rate_rps: setup.rate_rps(), seed };
    let (_, trace) = run_traced(&scenario, run)?;
    let end_s = scenario.end().as_millis_f64() / 1e3;
    let (accuracy, rate) = over_time(&String::from_utf8_lossy(&trace), end_s);
    Ok(Timeline { column, accuracy, rate })
}

type Points = Vec<(f64, f64)>;

/// Mean accuracy and executed tasks per second of each span of the trace.
fn over_time(trace: &str, end_s: f64) -> (Points, Points) {
    let mut tasks = [0.0; POINTS];
    let mut accuracy = [0.0; POINTS];
    for (at_s, count, variant) in trace.lines().filter_map(batch) {
        let span = ((at_s / end_s * POINTS as f64) as usize).min(POINTS - 1);
        tasks[span] += count;
        accuracy[span] += count * P0[variant].0;
    }
    let span_s = end_s / POINTS as f64;
    let at = |span: usize| (span as f64 + 0.5) * span_s;
    let busy = |&span: &usize| tasks[span] > 0.0;
    (
        (0..POINTS).filter(busy).map(|span| (at(span), accuracy[span] / tasks[span])).collect(),
        (0..POINTS).map(|span| (at(span), tasks[span] / span_s)).collect(),
    )
}

/// `batch model=0 gpu=1 tasks=2 variant=5 100ns 200ns`: when it began in s, tasks, variant.
fn batch(line: &str) -> Option<(f64, f64, usize)> {
    let mut words = line.strip_prefix("batch ")?.split(' ');
    let mut value = |key: &str| words.find_map(|word| word.strip_prefix(key));
    let tasks = value("tasks=")?.parse().ok()?;
    let variant = value("variant=")?.parse().ok()?;
    let start: f64 = words.next()?.strip_suffix("ns")?.parse().ok()?;
    Some((start / 1e9, tasks, variant))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_trace_is_read() {
        let line = "batch model=0 gpu=1 tasks=3 variant=5 1500000000ns 1600000000ns";
        assert_eq!(batch(line), Some((1.5, 3.0, 5)));
        assert_eq!(batch("drop model=0 arrived=1ns late"), None);
    }

    #[test]
    fn spans_have_their_tasks_and_mean_accuracy() {
        let line = |at_ns: u64, tasks: u32, variant: u32| {
            format!("batch model=0 gpu=0 tasks={tasks} variant={variant} {at_ns}ns 1ns")
        };
        let trace = [line(0, 1, 0), line(1, 3, 5), line(119_999_999_999, 2, 1)].join("\n");
        let (accuracy, rate) = over_time(&trace, 120.0);
        assert_eq!(accuracy.len(), 2);
        assert!((accuracy[0].1 - (73.82 + 3.0 * 80.16) / 4.0).abs() < 1e-9);
        assert_eq!((rate[0].1, rate[119].1), (4.0, 2.0));
    }
}
