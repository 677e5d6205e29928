//! The demo's frontends: processes that offer the load together, followed until each has reported.

use std::net::SocketAddr;
use std::ops::Range;

use baton_core::Nanos;

use super::DemoError;
use crate::load::{Finished, Message, Progress};
use crate::processes::{ChildEvent, ClusterFile, Note, ProcessError, Processes};

/// Frontend processes, each with an equal share of the load.
pub(super) const FRONTENDS: usize = 2;
/// Load for this long has no end of its own, as people see it.
const ENDLESS_S: f64 = 1e6;
/// Beyond the load itself: outstanding tasks, leaving, a busy machine.
const END_TIMEOUT: Nanos = Nanos::from_millis(60_000);

/// Starts the frontends, which share the load. Returns their numbers.
pub(super) fn start(
    processes: &mut Processes<'_>,
    cluster: &ClusterFile,
    scheduler: SocketAddr,
    rates: &[(String, f64)],
    seconds: f64,
) -> Result<Range<usize>, ProcessError> {
    let share = |(name, rate): &(String, f64)| format!("--rate={name}={}", rate / FRONTENDS as f64);
    let shares: Vec<String> = rates.iter().map(share).collect();
    let (total, models): (f64, usize) = (rates.iter().map(|(_, rate)| rate).sum(), rates.len());
    let what = format!("{total:.0} tasks/s of {models} models");
    start_with(processes, cluster, scheduler, (&shares, &what), seconds)
}

/// Starts the frontends with these arguments, which say what each of them offers; in words for people.
pub(super) fn start_with(
    processes: &mut Processes<'_>,
    cluster: &ClusterFile,
    scheduler: SocketAddr,
    (offers, what): (&[String], &str),
    seconds: f64,
) -> Result<Range<usize>, ProcessError> {
    let (file, scheduler) = (cluster.path.display().to_string(), scheduler.to_string());
    let span = if seconds < ENDLESS_S {
        format!("for {seconds} s")
    } else {
        "until a signal comes".into()
    };
    let seconds = seconds.to_string();
    let first = processes.count();
    for number in 1..=FRONTENDS {
        let seed = number.to_string();
        let mut args = vec!["load", "--config", &file, "--scheduler", &scheduler];
        args.extend(["--seconds", &seconds, "--seed", &seed, "--progress-json"]);
        args.extend(offers.iter().map(String::as_str));
        processes.start(&format!("frontend-{number}"), &args)?;
    }
    processes.tell(Note::Step(&format!("{FRONTENDS} frontends offer {what} {span}")));
    Ok(first..processes.count())
}

/// Follows the load until every frontend has reported or died.
pub(super) fn watch(
    processes: &mut Processes<'_>,
    frontends: Range<usize>,
    seconds: f64,
) -> Result<Vec<Finished>, DemoError> {
    let plain = |_: &mut Processes<'_>, progress: &Progress| progress.to_string();
    watch_with(processes, frontends, seconds, plain)
}

/// The same; `show` makes the line about the progress of all frontends, each time there is news.
pub(super) fn watch_with(
    processes: &mut Processes<'_>,
    frontends: Range<usize>,
    seconds: f64,
    mut show: impl FnMut(&mut Processes<'_>, &Progress) -> String,
) -> Result<Vec<Finished>, DemoError> {
    let bound = processes.now() + Nanos::from_millis_f64(seconds * 1e3) + END_TIMEOUT;
    let mut reports = Reports::new(frontends.clone());
    let mut stopping = false;
    while reports.is_open.contains(&true) {
        follow(processes, &mut reports)?;
        if processes.is_stopping() && !std::mem::replace(&mut stopping, true) {
            processes.terminate(frontends.clone());
        }
        if processes.now() > bound {
            return Err(processes.too_slow(frontends.start, END_TIMEOUT).into());
        }
        if reports.are_fresh() {
            let line = show(processes, &reports.progress());
            processes.tell(Note::Progress(&line));
            reports.fresh.fill(false);
        }
    }
    Ok(reports.finished.into_iter().flatten().collect())
}

/// Takes in the next event under load.
fn follow(processes: &mut Processes<'_>, reports: &mut Reports) -> Result<(), DemoError> {
    match processes.next_event() {
        Some(ChildEvent::Line { child, line }) if reports.frontends.contains(&child) => {
            let name = processes.name(child);
            let message = serde_json::from_str(&line)
                .map_err(|_| DemoError::NoMessage { name: name.to_owned(), line })?;
            reports.add(child, message);
        }
        Some(ChildEvent::Closed { child }) => {
            if !reports.closed(child) {
                processes.died(child)?;
            }
        }
        Some(ChildEvent::Line { .. }) | None => {}
    }
    Ok(())
}

/// What the frontends have said so far. Indexed from the first frontend.
struct Reports {
    /// Their numbers among the children.
    frontends: Range<usize>,
    latest: Vec<Progress>,
    /// Which of these are new since the last time they were shown.
    fresh: Vec<bool>,
    finished: Vec<Option<Finished>>,
    /// Which frontends may still say something.
    is_open: Vec<bool>,
}

impl Reports {
    fn new(frontends: Range<usize>) -> Self {
        let count = frontends.len();
        let latest = vec![Progress::default(); count];
        let (fresh, is_open) = (vec![false; count], vec![true; count]);
        Self { frontends, latest, fresh, finished: vec![None; count], is_open }
    }

    fn add(&mut self, child: usize, message: Message) {
        let index = child - self.frontends.start;
        match message {
            Message::Progress(progress) => {
                self.latest[index] = progress;
                self.fresh[index] = true;
            }
            Message::Finished(counts) => self.finished[index] = Some(counts),
        }
    }

    /// A child's stdout is closed. True if it was a frontend that had reported.
    fn closed(&mut self, child: usize) -> bool {
        if !self.frontends.contains(&child) {
            return false;
        }
        let index = child - self.frontends.start;
        self.is_open[index] = false;
        self.finished[index].is_some()
    }

    /// There is news of each frontend that has any: what one alone did in the last second is no rate.
    fn are_fresh(&self) -> bool {
        let mut both = self.fresh.iter().zip(&self.is_open);
        self.fresh.contains(&true) && both.all(|(is_fresh, is_open)| *is_fresh || !is_open)
    }

    fn progress(&self) -> Progress {
        let mut all = Progress::default();
        self.latest.iter().for_each(|progress| all.merge(progress));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_news_of_each_frontend_that_runs() {
        let progress = || Message::Progress(Progress::default());
        let mut reports = Reports::new(5..7);
        assert!(!reports.are_fresh());
        [0, 1].into_iter().for_each(|_| reports.add(5, progress()));
        assert!(!reports.are_fresh(), "two of one");
        reports.add(6, progress());
        assert!(reports.are_fresh());
        reports.fresh.fill(false);
        reports.closed(5);
        assert!(!reports.are_fresh(), "an end is no news of load");
        reports.add(6, progress());
        assert!(reports.are_fresh());
    }
}
