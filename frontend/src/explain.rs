//! An outcome in words: what happened to the task, and when, from its own moments.

use std::fmt;

use baton_types::{DropReason, FailReason, Nanos};

use crate::outcome::{EndRecord, EndedBy, Outcome, Timing};

/// What became of a task and when. [`fmt::Display`] writes one line of what, and one line per moment.
#[derive(Clone, PartialEq, Debug)]
pub struct Explanation {
    /// One sentence.
    pub summary: String,
    /// In order of time.
    pub moments: Vec<Moment>,
    /// What else is known.
    pub notes: Vec<String>,
}

/// A moment of a task.
#[derive(Clone, PartialEq, Debug)]
pub struct Moment {
    /// Since the submit, ms. Slightly negative where another machine's clock is concerned, perhaps.
    pub after_ms: f64,
    /// What happened.
    pub what: String,
}

impl Outcome {
    /// What happened to the task, and when.
    pub fn explain(&self) -> Explanation {
        match self {
            Self::Completed(reply) => reply.timing().explain(),
            Self::Dropped(reason, record) => {
                let summary = format!("dropped ({}): {}", reason.as_str(), why_dropped(*reason));
                unserved(summary, record)
            }
            Self::Failed(reason, record) => {
                let summary = format!("failed ({}): {}", reason.as_str(), why_failed(*reason));
                unserved(summary, record)
            }
        }
    }
}

impl Timing {
    /// As [`Outcome::explain`], of a completed task.
    pub fn explain(&self) -> Explanation {
        completed(self)
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.summary)?;
        for moment in &self.moments {
            write!(f, "\n{:>12.3} ms  {}", moment.after_ms, moment.what)?;
        }
        self.notes.iter().try_for_each(|note| write!(f, "\n{note}"))
    }
}

fn completed(timing: &Timing) -> Explanation {
    let at = |moment, what: String| Moment { after_ms: ms_after(timing.submitted, moment), what };
    let latency = timing.latency().as_secs_f64() * 1e3;
    let mut moments = vec![
        at(timing.submitted, "submitted".into()),
        at(timing.started, format!("execution began on GPU slot {}", timing.gpu.0)),
        at(timing.finished, format!("execution ended, a batch of {}", timing.batch_size)),
        at(timing.landed, "the answer was there".into()),
        at(timing.deadline, "deadline".into()),
    ];
    // Stable: what happened at the same moment stays in the order of a task's life.
    moments.sort_by(|a, b| a.after_ms.total_cmp(&b.after_ms));
    let when = if timing.late() { "late" } else { "in time" };
    let cold = timing
        .cold
        .then(|| "no GPU slot held the model when it came: it waited for a LOAD".to_owned());
    Explanation {
        summary: format!("completed {when}, {latency:.3} ms after the submit"),
        moments,
        notes: cold.into_iter().chain([clock_note(timing.clock_error)]).collect(),
    }
}

fn clock_note(error: Nanos) -> String {
    match error {
        Nanos::MAX => "the clock of its execution is no longer known".into(),
        Nanos(_) => {
            format!("the backend's moments may be wrong by {:.3} ms", error.as_millis_f64())
        }
    }
}

fn unserved(summary: String, record: &EndRecord) -> Explanation {
    let at = |moment, what: &str| Moment {
        after_ms: ms_after(record.submitted, moment),
        what: what.to_owned(),
    };
    let told = match record.by {
        EndedBy::Scheduler => "the client received the scheduler's message that it had ended",
        EndedBy::Backend => "the client received a backend's message that it had ended",
        EndedBy::Client => "ended by the client itself",
    };
    let mut moments = vec![
        at(record.submitted, "submitted"),
        at(record.deadline, "deadline"),
        at(record.ended, told),
    ];
    moments.sort_by(|a, b| a.after_ms.total_cmp(&b.after_ms));
    let mut notes = Vec::new();
    if record.resubmitted > 0 {
        notes.push(format!("submitted again {} times, to later schedulers", record.resubmitted));
    }
    if record.retry_after > Nanos::ZERO {
        let ms = record.retry_after.as_millis_f64();
        notes.push(format!("another task may be let in {ms:.0} ms after that word"));
    }
    Explanation { summary, moments, notes }
}

/// Signed: clocks differ.
fn ms_after(from: Nanos, moment: Nanos) -> f64 {
    (moment - from).as_millis_f64() - (from - moment).as_millis_f64()
}

/// Why the scheduler dropped a task, in words.
pub fn why_dropped(reason: DropReason) -> &'static str {
    match reason {
        DropReason::Deadline => "no GPU, or no scheduler, could serve it by its deadline any more",
        DropReason::Window => {
            "the scheduler gave it up so that the tasks behind it form an efficient batch"
        }
        DropReason::DeadlinePassed => {
            "its deadline had passed, or was shorter than one execution, when it reached the scheduler"
        }
        DropReason::QueueFull => {
            "the model's queue, or the connection to its ModelThread, was full"
        }
        DropReason::Cancelled => "the application cancelled it, dropped its ticket, or left",
        DropReason::FrontendLost => "the scheduler took this client for gone",
        DropReason::NoBackend => "no backend served its model",
        DropReason::Shutdown => "the scheduler was stopping",
        DropReason::Quota => {
            "more was asked for than the quota of the model or of this client allows"
        }
        DropReason::ModelRemoved => "an operator had removed its model",
        DropReason::Accuracy => {
            "no variant of the model as accurate as asked for could answer it by its deadline any more"
        }
    }
}

/// What broke, in words.
pub fn why_failed(reason: FailReason) -> &'static str {
    match reason {
        FailReason::BackendLost => "its backend died and the deadline left no time for another",
        FailReason::StaleGeneration => {
            "its input's slot had gone to another task, or the outcome was taken before"
        }
        FailReason::FetchTimeout => {
            "the backend did not get its input before the batch had to start"
        }
        FailReason::FetchFailed => "the connection broke while the backend read its input",
        FailReason::Engine => {
            "the engine reported an error, or an answer of the wrong size; the backend's log says which"
        }
        FailReason::UnknownModel => "the scheduler does not know its model",
        FailReason::WrongSize => {
            "its input is no row of the model's; tensors of lengths that differ are given by their names"
        }
        FailReason::SchedulerLost => {
            "the scheduler died, was not back in time, and no backend answered"
        }
        FailReason::LeaseExpired => "no outcome came by its deadline and the grace after it",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: EndRecord = EndRecord {
        submitted: Nanos(5_000_000),
        deadline: Nanos(30_000_000),
        ended: Nanos(17_250_000),
        by: EndedBy::Scheduler,
        resubmitted: 0,
        retry_after: Nanos::ZERO,
    };

    #[test]
    fn moments_are_listed_in_order_and_relative_to_the_submit() {
        let text = Outcome::Dropped(DropReason::Window, RECORD).explain().to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("dropped (window): "), "{text}");
        assert_eq!(lines[1].trim(), "0.000 ms  submitted");
        assert_eq!(
            lines[2].trim(),
            "12.250 ms  the client received the scheduler's message that it had ended"
        );
        assert_eq!(lines[3].trim(), "25.000 ms  deadline");
        assert_eq!(lines.len(), 4, "nothing else is known: {text}");
    }

    /// Clocks differ, and some deadlines have passed at the submit.
    #[test]
    fn what_came_before_the_submit_comes_first_and_with_a_minus() {
        let record = EndRecord { deadline: Nanos(3_500_000), ..RECORD };
        let moments = Outcome::Dropped(DropReason::DeadlinePassed, record).explain().moments;
        let listed: Vec<_> = moments.iter().take(2).map(|m| (m.after_ms, &*m.what)).collect();
        assert_eq!(listed, [(-1.5, "deadline"), (0.0, "submitted")]);
    }

    #[test]
    fn what_the_scheduler_advised_and_what_the_client_did_is_explained() {
        let record = EndRecord {
            ended: Nanos(31_000_000),
            by: EndedBy::Client,
            resubmitted: 2,
            retry_after: Nanos::from_millis(7),
            ..RECORD
        };
        let explanation = Outcome::Failed(FailReason::LeaseExpired, record).explain();
        assert!(explanation.summary.starts_with("failed (lease_expired): "));
        assert_eq!(explanation.moments.last().unwrap().what, "ended by the client itself");
        assert_eq!(explanation.notes.len(), 2);
        assert!(explanation.notes[0].contains("2 times") && explanation.notes[1].contains("7 ms"));
    }

    #[test]
    fn every_reason_has_its_own_words() {
        let drops = DropReason::ALL.iter().map(|&reason| why_dropped(reason));
        let mut words: Vec<&str> =
            drops.chain(FailReason::ALL.iter().map(|&reason| why_failed(reason))).collect();
        words.sort_unstable();
        let all = words.len();
        words.dedup();
        assert_eq!(words.len(), all);
    }

    #[test]
    fn a_completed_task_says_what_it_took() {
        let ms = Nanos::from_millis;
        let timing = Timing {
            submitted: ms(5),
            started: ms(11),
            finished: ms(16),
            landed: ms(17),
            deadline: ms(30),
            clock_error: Nanos(10_000),
            batch_size: 3,
            gpu: baton_types::GpuId(2),
            variant: 0,
            cold: false,
        };
        let text = timing.explain().to_string();
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        assert_eq!(lines[0], "completed in time, 12.000 ms after the submit");
        assert_eq!(lines[2], "6.000 ms  execution began on GPU slot 2");
        assert_eq!(lines[3], "11.000 ms  execution ended, a batch of 3");
        let late = Timing { landed: ms(31), ..timing }.explain();
        assert_eq!(late.summary, "completed late, 26.000 ms after the submit");
        assert_eq!(late.moments.last().unwrap().what, "the answer was there");
    }
}
