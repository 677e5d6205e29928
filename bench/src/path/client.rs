//! The process that offers the load, followed until it has reported; what the processes have used is read while
//! it goes on.

use std::net::SocketAddr;

use baton_core::Nanos;

use super::cluster::MODEL;
use super::costs::{PROCESSES, Reading, all_live_on};
use super::{Pace, PathBench, PathError};
use crate::load::{Finished, Message, Progress};
use crate::machine::StealMeter;
use crate::processes::{ChildEvent, ClusterFile, Note, ProcessError, Processes};

/// Seconds between two words of the client.
const TELL_EVERY_S: f64 = 0.05;
/// Load before the first reading, as a share of the measurement, and at least and at most.
const WARM_UP_SHARE: f64 = 0.25;
const WARM_UP_S: [f64; 2] = [0.2, 1.0];
/// Load after the second one: words may come late.
const AFTER_S: f64 = 0.2;
/// Beyond the load itself: outstanding tasks, leaving, a busy machine.
const END_TIMEOUT: Nanos = Nanos::from_millis(60_000);
/// How often the state of affairs is shown.
const SHOW_INTERVAL: Nanos = Nanos::from_millis(1_000);
/// Numbers among the children, which start in this order.
const SCHEDULER: usize = 0;
const BACKEND: usize = 1;

/// What was seen.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    pub(super) from: Reading,
    pub(super) to: Reading,
    /// CPU time others took between the readings; `None` where unknown.
    pub(super) steal_fraction: Option<f64>,
    /// What became of all tasks of the load.
    pub(super) finished: Finished,
}

/// Starts the client and follows it to its end.
pub(super) fn run(
    processes: &mut Processes<'_>,
    file: &ClusterFile,
    scheduler: SocketAddr,
    bench: &PathBench,
    pace: Pace,
) -> Result<Measured, PathError> {
    let [least, most] = WARM_UP_S;
    let warm_up_s = (bench.seconds * WARM_UP_SHARE).clamp(least, most);
    let end_s = warm_up_s + bench.seconds;
    let client = start(processes, file, scheduler, bench, pace, end_s + AFTER_S)?;
    let mut watch = Watch { client, at_s: [warm_up_s, end_s], from: None, to: None };
    let finished = watch.follow(processes)?;
    let (Some((from, _)), Some((to, steal_fraction)), Some(finished)) =
        (watch.from, watch.to, finished)
    else {
        return Err(PathError::NoReport);
    };
    if !all_live_on(&from, &to) {
        return Err(PathError::NoReport);
    }
    Ok(Measured { from, to, steal_fraction, finished })
}

/// Starts it; its number.
fn start(
    processes: &mut Processes<'_>,
    file: &ClusterFile,
    scheduler: SocketAddr,
    bench: &PathBench,
    pace: Pace,
    seconds: f64,
) -> Result<usize, ProcessError> {
    let number = processes.count();
    let load = match pace {
        Pace::Closed { outstanding } => format!("--outstanding={outstanding}"),
        Pace::Poisson { rate } => format!("--rate={MODEL}={rate}"),
    };
    let (file, scheduler) = (file.path.display().to_string(), scheduler.to_string());
    let [seed, seconds, every] =
        [bench.seed.to_string(), seconds.to_string(), TELL_EVERY_S.to_string()];
    let mut args = vec!["load", "--config", &file, "--scheduler", &scheduler, "--seed", &seed];
    args.extend([
        "--idle",
        bench.idle.as_str(),
        "--seconds",
        &seconds,
        "--progress-json",
        "--progress-every",
        &every,
        &load,
    ]);
    processes.start("client", &args)?;
    Ok(number)
}

/// What is known of the client so far.
struct Watch {
    /// Its number among the children.
    client: usize,
    /// When to read, by the client's time.
    at_s: [f64; 2],
    from: Option<(Reading, StealMeter)>,
    to: Option<(Reading, Option<f64>)>,
}

impl Watch {
    /// Until it has ended. What it said last, if it came to that.
    fn follow(&mut self, processes: &mut Processes<'_>) -> Result<Option<Finished>, PathError> {
        let mut finished = None;
        let mut next_show = processes.now() + SHOW_INTERVAL;
        let bound = processes.now() + Nanos::from_millis_f64(self.at_s[1] * 1e3) + END_TIMEOUT;
        loop {
            match processes.next_event() {
                Some(ChildEvent::Line { child, line }) if child == self.client => {
                    match serde_json::from_str(&line) {
                        Ok(Message::Progress(progress)) => {
                            self.read(processes, progress)?;
                            show(processes, &progress, &mut next_show);
                        }
                        Ok(Message::Finished(last)) => finished = Some(last),
                        Err(_) => return Err(PathError::NoMessage { line }),
                    }
                }
                Some(ChildEvent::Closed { child }) if child == self.client => {
                    if finished.is_none() {
                        processes.died(child)?;
                    }
                    return Ok(finished);
                }
                Some(ChildEvent::Closed { child }) => processes.died(child)?,
                Some(ChildEvent::Line { .. }) | None => {}
            }
            if processes.is_stopping() {
                return Err(ProcessError::Interrupted.into());
            }
            if processes.now() > bound {
                return Err(processes.too_slow(self.client, END_TIMEOUT).into());
            }
        }
    }

    /// Reads what the processes have used, if it is time.
    fn read(&mut self, processes: &Processes<'_>, progress: Progress) -> Result<(), PathError> {
        let [from_s, to_s] = self.at_s;
        if self.from.is_none() && progress.seconds >= from_s {
            let reading = self.reading(processes, progress)?;
            self.from = Some((reading, StealMeter::start()));
        } else if let Some((_, steal)) = self.from
            && self.to.is_none()
            && progress.seconds >= to_s
        {
            self.to = Some((self.reading(processes, progress)?, steal.fraction()));
        }
        Ok(())
    }

    fn reading(&self, processes: &Processes<'_>, progress: Progress) -> Result<Reading, PathError> {
        let numbers = [self.client, SCHEDULER, BACKEND];
        let threads = numbers.map(|number| processes.threads(number));
        match threads.iter().position(Vec::is_empty) {
            Some(at) => Err(PathError::NoThreads { name: PROCESSES[at] }),
            None => Ok(Reading { progress, threads }),
        }
    }
}

fn show(processes: &mut Processes<'_>, progress: &Progress, next_show: &mut Nanos) {
    let now = processes.now();
    if now >= *next_show {
        processes.tell(Note::Progress(&progress.to_string()));
        *next_show = now + SHOW_INTERVAL;
    }
}
