//! What has happened lately: who came, went or was lost and why, which models changed. The last ones, and how many there were.

use std::collections::VecDeque;

use baton_core::Nanos;
use baton_rdma::CloseReason;
use baton_rdma::status::{EventStatus, rounded, shortened};
use baton_rdma::wire::RefuseCode;

use super::window::seconds;
use crate::limits::EVENTS_MAX;

/// What happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::control) enum EventKind {
    /// A member joined.
    Joined,
    /// A member left in order.
    Left,
    /// A member is one no more.
    Lost(LossReason),
    /// A model is served.
    ModelAdded,
    /// A model is planned with other numbers.
    ModelChanged,
    /// A model is gone.
    ModelRemoved,
}

/// Why a member was lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::control) enum LossReason {
    /// Nothing was heard of it for too long.
    Silent,
    /// It may not be what it says.
    Unauthorised,
    /// Its connection to the ControlThread or to a ModelThread broke.
    ConnectionBroken,
    /// It said what does not belong.
    Protocol,
    /// It does not read what it is sent.
    NotReading,
    /// It closed the connection, with a reason of its own, or asked for what cannot be.
    Refused,
}

#[derive(Debug)]
struct Event {
    at: Nanos,
    kind: EventKind,
    subject: String,
    detail: String,
}

/// See the module documentation.
#[derive(Default, Debug)]
pub(super) struct EventLog {
    last: VecDeque<Event>,
    total: u64,
}

impl EventLog {
    /// Forgets the oldest if there is no more room.
    pub(super) fn note(&mut self, at: Nanos, kind: EventKind, subject: &str, detail: &str) {
        if self.last.len() == EVENTS_MAX {
            self.last.pop_front();
        }
        let (subject, detail) = (shortened(subject), shortened(detail));
        self.last.push_back(Event { at, kind, subject, detail });
        self.total += 1;
    }

    /// Since the start.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Those that are remembered, oldest first, each with its number since the start.
    pub(super) fn records(&self, now: Nanos) -> impl Iterator<Item = (u64, EventStatus)> {
        let first = self.total - self.last.len() as u64;
        (first..).zip(self.last.iter().map(move |event| event.record(now)))
    }
}

impl Event {
    fn record(&self, now: Nanos) -> EventStatus {
        let reason = match self.kind {
            EventKind::Lost(reason) => Some(reason.as_str().to_owned()),
            _ => None,
        };
        EventStatus {
            age_s: rounded(seconds(now - self.at)),
            event: self.kind.as_str().to_owned(),
            subject: self.subject.clone(),
            reason,
            detail: self.detail.clone(),
        }
    }
}

impl EventKind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Joined => "joined",
            Self::Left => "left",
            Self::Lost(_) => "lost",
            Self::ModelAdded => "model_added",
            Self::ModelChanged => "model_changed",
            Self::ModelRemoved => "model_removed",
        }
    }
}

impl LossReason {
    /// As it stands in the log and in the answer to an operator.
    pub(in crate::control) const fn as_str(self) -> &'static str {
        match self {
            Self::Silent => "silent",
            Self::Unauthorised => "unauthorised",
            Self::ConnectionBroken => "connection_broken",
            Self::Protocol => "protocol",
            Self::NotReading => "not_reading",
            Self::Refused => "refused",
        }
    }

    /// Of a member that the scheduler refused.
    pub(in crate::control) const fn of_refusal(code: RefuseCode) -> Self {
        match code {
            RefuseCode::Silent => Self::Silent,
            RefuseCode::Unauthorised => Self::Unauthorised,
            RefuseCode::Malformed | RefuseCode::UnexpectedMessage => Self::Protocol,
            _ => Self::Refused,
        }
    }

    /// Of a member whose connection ended otherwise.
    pub(in crate::control) const fn of_close(reason: &CloseReason) -> Self {
        match reason {
            CloseReason::Malformed(_) | CloseReason::Unexpected(_) => Self::Protocol,
            CloseReason::SendQueueFull => Self::NotReading,
            CloseReason::Refused { .. } => Self::Refused,
            CloseReason::Tls(_) | CloseReason::NotAllowed(_) => Self::Unauthorised,
            _ => Self::ConnectionBroken,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_events_stay_and_all_are_counted() {
        let mut log = EventLog::default();
        for number in 0..EVENTS_MAX as u64 + 3 {
            log.note(Nanos(number), EventKind::Joined, &format!("frontend {number}"), "");
        }
        let now = Nanos::from_millis(2_000);
        let records: Vec<(u64, EventStatus)> = log.records(now).collect();
        assert_eq!((log.total(), records.len()), (EVENTS_MAX as u64 + 3, EVENTS_MAX));
        assert_eq!((records[0].0, records[0].1.subject.as_str()), (3, "frontend 3"));
        assert_eq!(records[0].1.age_s, 2.0);
        let endless = "x".repeat(10_000);
        log.note(now, EventKind::Joined, &endless, &endless);
        let (_, last) = log.records(now).last().expect("it is the last");
        assert!(last.subject.len() < 1_000 && last.detail.len() < 1_000);
    }

    #[test]
    fn silence_is_not_taken_for_a_want_of_authority() {
        let silent = LossReason::of_refusal(RefuseCode::Silent);
        assert_eq!((silent.as_str(), EventKind::Lost(silent).as_str()), ("silent", "lost"));
        let refused = LossReason::of_refusal(RefuseCode::Unauthorised);
        assert_eq!(refused, LossReason::Unauthorised);
    }

    #[test]
    fn an_operator_reads_why_a_connection_ended() {
        let words = String::new;
        let cases = [
            (CloseReason::SendQueueFull, "not_reading"),
            (CloseReason::Refused { code: None, detail: words() }, "refused"),
            (CloseReason::Tls(words()), "unauthorised"),
            (CloseReason::NotAllowed(words()), "unauthorised"),
            (CloseReason::Eof, "connection_broken"),
            (CloseReason::HandshakeTimeout, "connection_broken"),
        ];
        for (reason, said) in cases {
            assert_eq!(LossReason::of_close(&reason).as_str(), said, "{reason:?}");
        }
    }
}
