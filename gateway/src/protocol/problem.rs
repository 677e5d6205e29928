//! Why a request has no answer: the kind, which decides status and repetition, and the words.

use std::time::Duration;

use baton_client::{
    DropReason, EndRecord, FailReason, InputError, SubmitReason, why_dropped, why_failed,
};

/// Bytes of a problem's words: they may repeat what the client has written.
const TEXT_MAX: usize = 1_000;
/// When to ask again after what ends by itself soon: a lost scheduler or a gateway that drains.
const UNAVAILABLE_RETRY: Duration = Duration::from_millis(500);

macro_rules! kinds {
    ($($(#[doc = $doc:literal])* $name:ident = $status:literal $code:literal $text:literal;)*) => {
        /// What went wrong, as far as a client acts on it. The later of two is the worse.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Kind { $($(#[doc = $doc])* $name,)* }

        impl Kind {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The HTTP status.
            pub const fn status(self) -> u16 {
                match self { $(Self::$name => $status,)* }
            }

            /// The gRPC status.
            pub const fn grpc_code(self) -> u8 {
                match self { $(Self::$name => $code,)* }
            }

            /// A word for metrics.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

kinds! {
    /// Overload: the same request may be accepted a little later.
    Shed = 429 8 "shed";
    /// The answer could not be there by its deadline.
    Deadline = 504 4 "deadline";
    /// Part of the cluster is not there.
    Unavailable = 503 14 "unavailable";
    /// The request has no token, or none that is known.
    Unauthenticated = 401 16 "unauthenticated";
    /// The token does not allow it.
    Forbidden = 403 7 "forbidden";
    /// There is no such model, version or path.
    NotFound = 404 5 "not_found";
    /// The request makes no sense, or not for this model.
    Invalid = 400 3 "invalid";
    /// The path has other methods.
    Method = 405 12 "method";
    /// The body did not arrive in time.
    Slow = 408 4 "slow";
    /// The body is longer than the gateway takes.
    TooLarge = 413 8 "too_large";
    /// The body has an encoding that the gateway does not read.
    Encoding = 415 12 "encoding";
    /// The protocol has it and this gateway has not.
    NotDone = 501 12 "not_done";
    /// The engine failed, or Baton is at fault.
    Internal = 500 13 "internal";
}

/// A request's end without an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// What kind.
    pub kind: Kind,
    /// What is wrong, and what to do.
    pub text: String,
    /// The outcome of the task that decided it, such as `dropped/quota`.
    pub outcome: Option<String>,
    /// When the same request might be accepted; `None`: repeating it does not help.
    pub retry_after: Option<Duration>,
}

/// The time that a task had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Given {
    /// From the request's arrival to its deadline.
    pub allowed: Duration,
    /// The model's objective: the time in which a queue that is full now is another one.
    pub slo: Duration,
}

impl Problem {
    /// Not caused by a task, and not to be repeated.
    pub fn new(kind: Kind, text: impl Into<String>) -> Self {
        Self { kind, text: shortened(text.into()), outcome: None, retry_after: None }
    }

    /// The request is wrong.
    pub fn invalid(text: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, text)
    }

    /// The part of Baton that it needs is away for a moment.
    pub fn unavailable(text: impl Into<String>) -> Self {
        Self { retry_after: Some(UNAVAILABLE_RETRY), ..Self::new(Kind::Unavailable, text) }
    }

    /// No room now; there may be some after `retry_after`.
    pub fn shed(text: &str, retry_after: Duration) -> Self {
        let text = format!("{text}; {}", again_in(retry_after));
        Self { retry_after: Some(retry_after), ..Self::new(Kind::Shed, text) }
    }

    /// Its time was over before it could be submitted.
    pub fn too_late(allowed: Duration) -> Self {
        let words = "its time was over before its input was there";
        let text = format!("dropped: deadline_passed ({words}); {} were given", ms(allowed));
        let outcome = Some(outcome_of("dropped", DropReason::DeadlinePassed.as_str()));
        Self { outcome, ..Self::new(Kind::Deadline, text) }
    }

    /// A task that was dropped.
    pub fn dropped(reason: DropReason, record: &EndRecord, given: Given) -> Self {
        let kind = match reason {
            DropReason::Deadline | DropReason::DeadlinePassed | DropReason::Accuracy => {
                Kind::Deadline
            }
            DropReason::Window | DropReason::QueueFull | DropReason::Quota => Kind::Shed,
            DropReason::NoBackend
            | DropReason::Shutdown
            | DropReason::FrontendLost
            | DropReason::Cancelled => Kind::Unavailable,
            DropReason::ModelRemoved => Kind::NotFound,
        };
        let why = (reason.as_str(), why_dropped(reason));
        Self::ended(kind, "dropped", why, record, given)
    }

    /// A task that failed.
    pub fn failed(reason: FailReason, record: &EndRecord, given: Given) -> Self {
        let kind = match reason {
            FailReason::BackendLost
            | FailReason::SchedulerLost
            | FailReason::LeaseExpired
            | FailReason::FetchTimeout
            | FailReason::FetchFailed => Kind::Unavailable,
            FailReason::UnknownModel => Kind::NotFound,
            FailReason::Engine | FailReason::WrongSize | FailReason::StaleGeneration => {
                Kind::Internal
            }
        };
        let why = (reason.as_str(), why_failed(reason));
        Self::ended(kind, "failed", why, record, given)
    }

    fn ended(
        kind: Kind,
        how: &str,
        (why, words): (&str, &str),
        record: &EndRecord,
        given: Given,
    ) -> Self {
        let stated = Duration::from_nanos(record.retry_after.0);
        let retry_after = match kind {
            Kind::Shed if stated.is_zero() => Some(given.slo),
            Kind::Shed => Some(stated),
            Kind::Unavailable => Some(UNAVAILABLE_RETRY),
            _ => None,
        };
        let mut text = format!("{how}: {why} ({words}); {} were given", ms(given.allowed));
        if let Some(after) = retry_after {
            text = format!("{text}; {}", again_in(after));
        }
        Self { kind, text, outcome: Some(outcome_of(how, why)), retry_after }
    }

    /// No slot for an input. `slo` as in [`Given`].
    pub fn no_input(error: &InputError, slo: Duration) -> Self {
        match error {
            InputError::SlabExhausted { slots, .. } => {
                let text =
                    format!("all {slots} slots that this gateway has of the model are in use");
                Self::shed(&text, slo)
            }
            InputError::ModelRemoved { .. } => Self::new(Kind::NotFound, error.to_string()),
            InputError::ClientClosed => Self::unavailable("this gateway ends"),
            InputError::WrongSize { .. } | InputError::Tensors { .. } => {
                Self::invalid(error.to_string())
            }
        }
    }

    /// A task that could not be submitted.
    pub fn not_submitted(reason: SubmitReason, allowed: Duration) -> Self {
        match reason {
            SubmitReason::DeadlinePassed => Self::too_late(allowed),
            SubmitReason::SchedulerLost => {
                let text = "the gateway is not connected to a scheduler and reconnects";
                Self::unavailable(format!("{text}; {}", again_in(UNAVAILABLE_RETRY)))
            }
            SubmitReason::ClientClosed => Self::unavailable("this gateway ends"),
            SubmitReason::ModelRemoved => {
                Self::new(Kind::NotFound, "the model was removed from the cluster")
            }
        }
    }
}

fn outcome_of(how: &str, why: &str) -> String {
    format!("{how}/{why}")
}

fn again_in(after: Duration) -> String {
    format!("asked again in {} ms it might be accepted", millis(after))
}

/// Whole milliseconds, rounded up: asking too early is refused again.
pub fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Whole seconds, rounded up, as `Retry-After` has them.
pub fn seconds(span: Duration) -> u64 {
    millis(span).div_ceil(1_000)
}

fn ms(span: Duration) -> String {
    format!("{} ms", span.as_micros() as f64 / 1e3)
}

fn shortened(text: String) -> String {
    match text.char_indices().nth(TEXT_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use baton_client::{EndedBy, Nanos};

    use super::*;

    const SLO: Duration = Duration::from_millis(25);
    const GIVEN: Given = Given { allowed: Duration::from_micros(20_500), slo: SLO };

    fn record(retry_after: u64) -> EndRecord {
        EndRecord {
            submitted: Nanos(5_000_000),
            deadline: Nanos(25_500_000),
            ended: Nanos(6_000_000),
            by: EndedBy::Scheduler,
            resubmitted: 0,
            retry_after: Nanos(retry_after),
        }
    }

    #[test]
    fn each_reason_has_its_status() {
        let status = |reason| Problem::dropped(reason, &record(0), GIVEN).kind.status();
        let dropped: Vec<u16> = DropReason::ALL.iter().map(|&reason| status(reason)).collect();
        assert_eq!(dropped, [504, 429, 504, 429, 503, 503, 503, 503, 429, 404, 504]);
        let status = |reason| Problem::failed(reason, &record(0), GIVEN).kind.status();
        let failed: Vec<u16> = FailReason::ALL.iter().map(|&reason| status(reason)).collect();
        assert_eq!(failed, [503, 500, 503, 503, 500, 404, 500, 503, 503]);
        let codes: Vec<u8> = Kind::ALL.iter().map(|kind| kind.grpc_code()).collect();
        assert_eq!(codes, [8, 4, 14, 16, 7, 5, 3, 12, 4, 8, 12, 12, 13]);
    }

    #[test]
    fn a_shed_task_says_when_to_come_again_and_a_late_one_does_not() {
        let quota = Problem::dropped(DropReason::Quota, &record(136_200_000), GIVEN);
        let words = "dropped: quota (more was asked for than the quota of the model or of this client allows); \
                     20.5 ms were given; asked again in 137 ms it might be accepted";
        assert_eq!((&quota.text[..], quota.outcome.as_deref()), (words, Some("dropped/quota")));
        let after = quota.retry_after.unwrap();
        assert_eq!((millis(after), seconds(after)), (137, 1));
        let window = Problem::dropped(DropReason::Window, &record(0), GIVEN);
        assert_eq!(window.retry_after, Some(SLO), "no time was sent");
        let late = Problem::dropped(DropReason::Deadline, &record(0), GIVEN);
        assert_eq!(
            (late.retry_after, &late.text[..]),
            (
                None,
                "dropped: deadline (no GPU, or no scheduler, could serve it by its deadline any more); 20.5 ms were given"
            )
        );
    }

    #[test]
    fn whatever_asks_for_patience_says_how_much() {
        for &reason in DropReason::ALL {
            let problem = Problem::dropped(reason, &record(0), GIVEN);
            let again = matches!(problem.kind, Kind::Shed | Kind::Unavailable);
            assert_eq!(problem.retry_after.is_some(), again, "{reason}");
        }
    }

    #[test]
    fn words_of_a_client_come_back_shortened() {
        let problem = Problem::invalid("ä".repeat(1_000_000));
        assert_eq!(problem.text.chars().count(), TEXT_MAX + 1);
    }

    #[test]
    fn metrics_have_a_word_for_each_kind() {
        let mut words: Vec<&str> = Kind::ALL.iter().map(|kind| kind.as_str()).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), Kind::ALL.len());
    }
}
