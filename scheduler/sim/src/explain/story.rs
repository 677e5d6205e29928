//! An explanation as `baton sim explain --json` prints it. Times are milliseconds of the run.

use baton_core::{Candidate, ModelState, Nanos, NetworkDelay};
use serde::Serialize;

/// What was asked for: batches, tasks, or a moment.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Explanation {
    /// The policy, as on the command line.
    pub policy: String,
    /// Tasks per second that were offered.
    pub rate_rps: f64,
    /// The run's seed.
    pub seed: u64,
    /// The state at the moment that was asked for.
    pub moment: Option<Moment>,
    /// In the order of sealing.
    pub batches: Vec<BatchStory>,
    /// In the order of arrival.
    pub tasks: Vec<TaskStory>,
}

/// How things stood.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Moment {
    /// When.
    pub at_ms: f64,
    /// Slots without a batch.
    pub idle_gpus: u32,
    /// Batches under way, by slot.
    pub busy: Vec<BusyGpu>,
    /// Models with waiting tasks.
    pub models: Vec<ModelMoment>,
}

/// A batch under way.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct BusyGpu {
    /// The slot.
    pub gpu: u32,
    /// Number of the batch.
    pub batch: u64,
    /// Its model.
    pub model: String,
    /// Its tasks.
    pub tasks: u32,
    /// Planned start.
    pub exec_at_ms: f64,
}

/// A model with waiting tasks.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ModelMoment {
    /// Its name.
    pub model: String,
    /// Tasks that wait.
    pub waiting: u32,
    /// Its candidate.
    pub candidate: Option<CandidateView>,
}

/// A candidate in milliseconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct CandidateView {
    /// Tasks.
    pub tasks: u32,
    /// It may start from here on …
    pub exec_at_ms: f64,
    /// … until here.
    pub invalid_after_ms: f64,
    /// When it stops growing: dl − ℓ(b + 1) − d_data.
    pub frontrun_ms: f64,
    /// By which it competes for slots.
    pub urgency_ms: f64,
}

/// A batch, and how its head came to be its head.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct BatchStory {
    /// In the order of sealing, from 1.
    pub batch: u64,
    /// Its model.
    pub model: String,
    /// The slot.
    pub gpu: u32,
    /// When the model sealed it.
    pub sealed_ms: f64,
    /// Planned start.
    pub exec_at_ms: f64,
    /// Latest start.
    pub invalid_after_ms: f64,
    /// Measured end; `None` if it never ended.
    pub end_ms: Option<f64>,
    /// Ids of its tasks, head first.
    pub tasks: Vec<u64>,
    /// Ids of the tasks that were given up for it.
    pub given_up: Vec<u64>,
    /// Tasks that waited behind it.
    pub left_behind: u32,
    /// Its tasks that ended too late.
    pub late: u32,
    /// The first of `tasks`.
    pub head: TaskStory,
}

/// What happened to a task.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct TaskStory {
    /// Its id: its arrival in nanoseconds.
    pub task: u64,
    /// Its model.
    pub model: String,
    /// Arrival.
    pub arrived_ms: f64,
    /// Its execution must have ended by then.
    pub deadline_ms: f64,
    /// How it ended.
    pub outcome: Outcome,
    /// Everything that concerned it, in order.
    pub steps: Vec<Step>,
}

/// How a task ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Executed in time.
    InTime,
    /// Executed, and ended after its deadline.
    Late,
    /// Given up.
    Dropped,
    /// Not at all: the run ended first.
    Open,
}

/// One moment of a task's life.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Step {
    /// When.
    pub at_ms: f64,
    /// What.
    #[serde(flatten)]
    pub what: What,
}

/// What concerned a task.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum What {
    /// It reached its model.
    Queued {
        /// Why: it arrived, or it came back from a slot that is gone.
        cause: Cause,
        /// Its place in the queue, from 1.
        number: u32,
        /// Tasks in the queue with it.
        waiting: u32,
    },
    /// The model's candidate changed.
    Candidate {
        /// What made the model look.
        cause: Cause,
        /// The candidate.
        candidate: CandidateView,
        /// The task's part in it.
        place: Place,
        /// Whether it may start, and why.
        decision: Decision,
        /// Tasks it would give up.
        gives_up: u32,
        /// Tasks that wait.
        waiting: u32,
        /// Slots without a batch.
        idle_gpus: u32,
        /// The batch size at which arrival and execution balance within the objective.
        target: u32,
        /// The batch size that heads are given up for.
        floor: u32,
        /// Arrivals expected within β; `None` before the first estimate of λ.
        beta_lambda: Option<u64>,
    },
    /// No slot holds its model, and none is loading it.
    Cold {
        /// How long a LOAD takes.
        load_ms: f64,
    },
    /// It waits for a LOAD of its model.
    Loading {
        /// When that should be done.
        until_ms: f64,
    },
    /// A slot holds its model now.
    Loaded {
        /// How long the task waited for that.
        waited_ms: f64,
    },
    /// No batch of the waiting tasks could run.
    NoCandidate,
    /// The model got a slot.
    Granted {
        /// The slot.
        gpu: u32,
        /// When the slot has executed what it has; in the past if it is idle.
        free_at_ms: f64,
        /// How long the candidate had been due.
        due_for_ms: f64,
        /// Slots that went to other models meanwhile.
        others_first: u32,
    },
    /// It is in a batch.
    Sealed {
        /// The batch, in the order of sealing from 1.
        batch: u64,
        /// The slot.
        gpu: u32,
        /// Its tasks.
        tasks: u32,
        /// The task's number among them, from 1.
        number: u32,
        /// Planned start.
        exec_at_ms: f64,
        /// Latest start.
        invalid_after_ms: f64,
        /// Tasks given up for it.
        given_up: u32,
    },
    /// A batch was sealed without it, of tasks before it.
    LeftBehind {
        /// The batch.
        batch: u64,
        /// Its tasks.
        tasks: u32,
        /// What one more task would have taken beyond the head's deadline; 0 if it was the largest.
        over_ms: f64,
    },
    /// The model gave the slot back.
    Returned {
        /// The slot.
        gpu: u32,
    },
    /// It was given up.
    Dropped {
        /// The reason, as frontends receive it.
        reason: &'static str,
        /// From the earliest start that was left to its deadline.
        room_ms: f64,
        /// Tasks that can be executed in that.
        fits: u32,
        /// ℓ(1).
        alone_ms: f64,
        /// The batch that was sealed instead, and its tasks.
        instead: Option<(u64, u32)>,
        /// The batch size that heads are given up for.
        floor: u32,
    },
    /// Its batch has been executed.
    Executed {
        /// Time from its deadline to the end; negative if it was in time.
        late_by_ms: f64,
    },
}

/// What made a model look at its queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// A task came.
    Arrival,
    /// A slot was granted.
    Grant,
    /// A task came back from a slot that is gone.
    SlotLost,
    /// Time alone: the batch as formed stopped fitting.
    Timer,
}

/// A task's part in a candidate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// It would be executed, as this one from 1.
    InBatch {
        /// Its number.
        number: u32,
    },
    /// It would be given up.
    GivenUp,
    /// It would go on waiting.
    Behind,
}

/// Whether a candidate may start.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Not before the moment at which one more task would not fit.
    WaitsForFrontrun,
    /// Not before another moment: until then enough tasks are expected to be worth the wait.
    WaitsForMore,
    /// At once: one more task would not fit in time.
    Frontrun,
    /// At once: it is the largest batch of the profile.
    Largest,
    /// At once: it has more than βλ tasks.
    Filled,
    /// At once: too few tasks are expected to be worth the wait.
    FewExpected,
    /// At once: its head has waited for two fifths of the objective.
    WaitedLongEnough,
    /// At once: the policy never waits.
    AtOnce,
}

pub(super) fn ms(at: Nanos) -> f64 {
    at.as_millis_f64()
}

/// `a − b`, which may be negative.
pub(super) fn ms_between(a: Nanos, b: Nanos) -> f64 {
    ms(a - b) - ms(b - a)
}

/// When the candidate stops growing: one more task would make its head late.
pub(super) fn frontrun(candidate: Candidate, state: &ModelState, network: &NetworkDelay) -> Nanos {
    let one_more = state.latency().of(candidate.batch + 1) - state.latency().of(candidate.batch);
    candidate.invalid_after - one_more - network.data_per_task
}

impl CandidateView {
    pub(super) fn of(candidate: Candidate, state: &ModelState, network: &NetworkDelay) -> Self {
        Self {
            tasks: candidate.batch,
            exec_at_ms: ms(candidate.exec_at),
            invalid_after_ms: ms(candidate.invalid_after),
            frontrun_ms: ms(frontrun(candidate, state, network)),
            urgency_ms: ms(candidate.urgency),
        }
    }
}
