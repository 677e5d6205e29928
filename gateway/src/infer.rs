//! An inference, whatever protocol it came by: tasks in, replies or a problem out.
//!
//! Dropping the future cancels the tasks: a client that goes away frees its slots.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use baton_client::{
    Deadline, Input, ModelHandle, Nanos, Outcome, Reply, TensorRef, Ticket, Timing,
};
use bytes::Buf;

use crate::gateway::App;
use crate::memory::Used;
use crate::protocol::fill::fill;
use crate::protocol::memory::Part;
use crate::protocol::problem::{Given, Kind, Problem};
use crate::protocol::render::Head;
use crate::protocol::request::Request;

/// When a request came, and how long it gives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowed {
    /// The arrival of its headers.
    pub(crate) arrived: Nanos,
    /// From then to its deadline.
    pub(crate) span: Duration,
}

impl Allowed {
    /// What is left of it for a task that is submitted now, less what the gateway will take.
    pub(crate) fn left(self, app: &App) -> Result<Duration, Problem> {
        app.lag.left(self.span, self.waited(app)).ok_or_else(|| Problem::too_late(self.span))
    }

    /// An answer that is handed on now is late.
    pub(crate) fn is_over(self, app: &App) -> bool {
        self.waited(app) > self.span
    }

    fn waited(self, app: &App) -> Duration {
        Duration::from_nanos((app.clock.now() - self.arrived).0)
    }
}

/// Submits a request. `binary` is what follows its JSON. Neither is needed any more afterwards.
pub(crate) fn submit(
    app: &App,
    model: &ModelHandle,
    request: &Request<'_>,
    binary: &mut impl Buf,
    allowed: Allowed,
) -> Result<Tasks, Problem> {
    let used = Used::by(&app.memory, request)?;
    // 1. All slots or none.
    let mut inputs = Vec::with_capacity(request.batch);
    for _ in 0..request.batch {
        let input = model.input().map_err(|error| Problem::no_input(&error, model.slo()))?;
        inputs.push(input);
    }
    // 2. The only copy of binary data.
    let row = &model.signature().input;
    let len = fill(request, model.inputs(), row, &mut inputs, binary, &used)?;
    // 3. One deadline for all.
    let left = allowed.left(app)?;
    let submit = |mut input: Input| {
        input.truncate(len);
        let ticket = input.submit(Deadline::Within(left));
        ticket.map_err(|error| Problem::not_submitted(error.reason, allowed.span))
    };
    let submit = |input| submit(input).map(Task::Waiting);
    let tasks = inputs.into_iter().map(submit).collect::<Result<_, _>>()?;
    Ok(Tasks { tasks, given: Given { allowed: allowed.span, slo: model.slo() }, used })
}

/// The tasks of a request.
pub(crate) struct Tasks {
    tasks: Vec<Task>,
    given: Given,
    used: Used,
}

impl Tasks {
    /// All answers, or the worst of the outcomes that are there when one has none. `places` are of the request.
    pub(crate) async fn replies(
        &mut self,
        model: &ModelHandle,
        places: &[(usize, Part)],
    ) -> Result<Vec<Reply>, Problem> {
        let Self { tasks, given, used } = self;
        let replies = poll_fn(|context| poll_all(tasks, context, *given)).await?;
        // What its client reads elsewhere.
        if !places.is_empty() {
            let rows = rows(model, &replies)?;
            for (index, part) in places {
                let tensors = rows.iter().map(|row| &row[*index]);
                used.write(part, tensors)?;
            }
        }
        Ok(replies)
    }
}

/// The tensors of answers, a row for each task.
pub(crate) fn rows<'a>(
    model: &'a ModelHandle,
    replies: &'a [Reply],
) -> Result<Vec<Vec<TensorRef<'a>>>, Problem> {
    let rows: Result<_, _> = replies.iter().map(|reply| model.tensors_of(reply.bytes())).collect();
    rows.map_err(|error| {
        Problem::new(Kind::Internal, format!("the answer is none of this model: {error}"))
    })
}

/// What an answer says beside its tensors.
pub(crate) fn head_of<'a>(
    model: &'a str,
    id: Option<&'a str>,
    replies: &'a [Reply],
    is_late: bool,
) -> Head<'a> {
    let variants = replies.iter().filter_map(Reply::variant);
    let least = variants.min_by_key(|variant| variant.index());
    let variant = least.map(|variant| (variant.name(), variant.accuracy()));
    let is_cold = is_cold(replies.iter().map(Reply::timing));
    Head { model, id, is_late, is_cold, variant }
}

/// One of its tasks waited for weights.
fn is_cold<'a>(mut tasks: impl Iterator<Item = &'a Timing>) -> bool {
    tasks.any(|timing| timing.cold)
}

/// A task of a request.
enum Task {
    Waiting(Ticket),
    Answered(Reply),
}

/// Ready when every task is answered, or one is not. The others are cancelled then: no part of an answer is one.
fn poll_all(
    tasks: &mut Vec<Task>,
    context: &mut Context<'_>,
    given: Given,
) -> Poll<Result<Vec<Reply>, Problem>> {
    let mut worst: Option<Problem> = None;
    let mut waiting = 0;
    for task in tasks.iter_mut() {
        let Task::Waiting(ticket) = task else { continue };
        let Poll::Ready(outcome) = Pin::new(ticket).poll(context) else {
            waiting += 1;
            continue;
        };
        match ended(outcome, given) {
            Ok(reply) => *task = Task::Answered(reply),
            Err(problem) => worst = worse(worst, problem),
        }
    }
    if let Some(problem) = worst {
        tasks.clear();
        return Poll::Ready(Err(problem));
    }
    if waiting > 0 {
        return Poll::Pending;
    }
    let reply = |task| match task {
        Task::Answered(reply) => Some(reply),
        Task::Waiting(_) => None,
    };
    Poll::Ready(Ok(std::mem::take(tasks).into_iter().filter_map(reply).collect()))
}

pub(crate) fn ended(outcome: Outcome, given: Given) -> Result<Reply, Problem> {
    match outcome {
        Outcome::Completed(reply) => Ok(reply),
        Outcome::Dropped(reason, record) => Err(Problem::dropped(reason, &record, given)),
        Outcome::Failed(reason, record) => Err(Problem::failed(reason, &record, given)),
    }
}

/// The first of equals stands.
fn worse(known: Option<Problem>, other: Problem) -> Option<Problem> {
    match known {
        Some(known) if known.kind >= other.kind => Some(known),
        _ => Some(other),
    }
}

#[cfg(test)]
mod tests {
    use baton_client::GpuId;

    use super::*;

    #[test]
    fn a_request_was_cold_if_any_of_its_tasks_was() {
        let warm = Timing {
            submitted: Nanos(1),
            started: Nanos(2),
            finished: Nanos(3),
            landed: Nanos(4),
            deadline: Nanos(9),
            clock_error: Nanos::ZERO,
            batch_size: 1,
            gpu: GpuId(0),
            variant: 0,
            cold: false,
        };
        let cold = Timing { cold: true, ..warm };
        for (tasks, expected) in
            [([warm, warm], false), ([warm, cold], true), ([cold, warm], true), ([cold; 2], true)]
        {
            assert_eq!(is_cold(tasks.iter()), expected);
        }
    }

    #[test]
    fn the_worst_outcome_is_the_requests() {
        let problem = |kind, text| Problem::new(kind, text);
        let kinds = [Kind::Shed, Kind::Unavailable, Kind::Deadline, Kind::Unavailable];
        let all = kinds.into_iter().zip(["a", "b", "c", "d"]);
        let worst = all.fold(None, |worst, (kind, text)| worse(worst, problem(kind, text)));
        assert_eq!(worst, Some(problem(Kind::Unavailable, "b")));
    }

    #[test]
    fn an_answer_that_is_late_says_so_and_nothing_of_weights() {
        let said = |is_late| {
            let head = head_of("m", Some("7"), &[], is_late);
            (head.model, head.id, head.is_late, head.is_cold, head.variant)
        };
        assert_eq!(said(true), ("m", Some("7"), true, false, None));
        assert_eq!(said(false), ("m", Some("7"), false, false, None));
    }
}
