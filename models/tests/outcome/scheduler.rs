//! A scheduler in one of its lives: the real decisions, and around them what a ModelThread does.

use std::hash::{Hash, Hasher};

use baton_core::{
    Batch, Candidate, DropReason, FailReason, FrontendId, Gpu, GpuId, GpuUpdate, Grant,
    ModelConfig, ModelId, ModelSink, ModelState, Nanos, NetworkDelay, Policy, Prefer, Profile,
    RankLimits, RankSink, RankState, Request, SubclusterId, TaskId, Unserved,
};
use baton_rdma::wire::ActionStatus;

const MODEL: ModelId = ModelId(0);
const SUBCLUSTER: SubclusterId = SubclusterId(0);
/// Time stands still. What takes time is an action of the model.
const NOW: Nanos = Nanos::from_millis(1_000);
const DEADLINE: Nanos = Nanos::from_millis(2_000);

/// A batch of one task on its way to a backend.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Sealed {
    pub(crate) action: u64,
    pub(crate) gpu: Gpu,
    pub(crate) task: TaskId,
}

/// What the decisions lead to.
#[derive(Clone, Default, Debug)]
struct Out {
    candidates: Vec<(Option<Candidate>, u32)>,
    grants: Vec<Grant>,
    updates: Vec<GpuUpdate>,
    batches: Vec<(Gpu, Request)>,
    ends: Vec<(TaskId, Unserved)>,
}

impl ModelSink for Out {
    fn candidate(&mut self, _: ModelId, candidate: Option<Candidate>, grants: u32) {
        self.candidates.push((candidate, grants));
    }

    fn dispatch(&mut self, batch: &Batch<'_>) {
        self.batches.extend(batch.requests().map(|request| (batch.grant.gpu, request)));
    }

    fn gpu(&mut self, update: GpuUpdate) {
        self.updates.push(update);
    }

    fn end_task(&mut self, task: TaskId, why: Unserved) {
        self.ends.push((task, why));
    }
}

impl RankSink for Out {
    fn grant(&mut self, _: ModelId, grant: Grant) {
        self.grants.push(grant);
    }

    fn drained(&mut self, _: Gpu) {}
}

/// See the module documentation.
#[derive(Clone, Debug)]
pub(crate) struct Scheduler {
    pub(crate) life: u8,
    model: ModelState,
    rank: RankState,
    /// Batches that a backend has and has not reported.
    in_flight: Vec<(Sealed, Request)>,
    pub(crate) actions: u64,
    /// Its frontend's number, once that has joined.
    pub(crate) frontend: Option<FrontendId>,
    /// Its backend's slot.
    pub(crate) gpu: Option<Gpu>,
    pub(crate) is_stopping: bool,
    pub(crate) has_removed: bool,
    out: Out,
    /// Actions for the backend, and ends for the frontend, that are to be sent.
    pub(crate) sealed: Vec<Sealed>,
    /// What has ended here.
    ended: Vec<TaskId>,
    pub(crate) ends: Vec<(TaskId, Unserved)>,
    key: u64,
}

impl PartialEq for Scheduler {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Hash for Scheduler {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
    }
}

fn config() -> ModelConfig {
    let profile = Profile::linear(Nanos::from_millis(1), Nanos::from_millis(1), 1);
    ModelConfig {
        id: MODEL,
        profile: profile.expect("it grows"),
        slo: Nanos::from_millis(500),
        queue_capacity: 4,
        policy: Policy::Eager,
        prefer: Prefer::Latency,
        network: NetworkDelay::default(),
    }
}

/// What was counted decides nothing.
fn without_counters(text: &str) -> String {
    let mut pieces = text.split("Counters {");
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |text, piece| text + piece.split_once('}').map_or("", |(_, rest)| rest))
}

impl Scheduler {
    pub(crate) fn new(life: u8) -> Self {
        let limits = RankLimits { gpus: 1, subclusters: 1, copies: 0 };
        let new = Self {
            life,
            model: ModelState::new(config()),
            rank: RankState::new(limits, &[SUBCLUSTER]),
            in_flight: Vec::new(),
            actions: 0,
            frontend: None,
            gpu: None,
            is_stopping: false,
            has_removed: false,
            out: Out::default(),
            sealed: Vec::new(),
            ended: Vec::new(),
            ends: Vec::new(),
            key: 0,
        };
        new.sealed()
    }

    /// Gives the batches and ends of a decision away, and notes what is the same as before.
    fn sealed(mut self) -> Self {
        for (gpu, request) in std::mem::take(&mut self.out.batches) {
            self.actions += 1;
            let sealed = Sealed { action: self.actions, gpu, task: request.task };
            assert!(!self.ended.contains(&request.task), "a task is sealed that has ended here");
            self.in_flight.push((sealed, request));
            self.sealed.push(sealed);
        }
        for (task, why) in std::mem::take(&mut self.out.ends) {
            assert!(!self.ended.contains(&task), "a task ends here twice");
            self.ended.push(task);
            self.ends.push((task, why));
        }
        self.key = 0;
        let mut hasher = std::hash::DefaultHasher::new();
        without_counters(&format!("{self:?}")).hash(&mut hasher);
        self.key = hasher.finish();
        self
    }

    /// The RankThread has something to read.
    pub(crate) fn has_news(&self) -> bool {
        !self.out.candidates.is_empty() || !self.out.updates.is_empty()
    }

    /// The RankThread reads what ModelThreads have told it, and grants.
    pub(crate) fn match_slots(&mut self) {
        let candidates = std::mem::take(&mut self.out.candidates);
        let updates = std::mem::take(&mut self.out.updates);
        self.decide(|it| {
            for (candidate, grants) in candidates {
                it.rank.on_candidate(NOW, MODEL, candidate, grants, &mut it.out);
            }
            for update in updates {
                it.rank.on_gpu(NOW, update, &mut it.out);
            }
        });
    }

    pub(crate) fn has_grant(&self) -> bool {
        !self.out.grants.is_empty()
    }

    /// The ModelThread reads a grant.
    pub(crate) fn take_grant(&mut self) {
        let grant = self.out.grants.remove(0);
        self.decide(|it| it.model.on_grant(NOW, grant, &mut it.out));
    }

    fn decide(&mut self, decision: impl FnOnce(&mut Self)) {
        decision(self);
        *self = self.clone().sealed();
    }

    pub(crate) fn on_submit(&mut self, task: TaskId) {
        let refused = match (self.has_removed, self.is_stopping, self.gpu) {
            (true, ..) => Some(DropReason::ModelRemoved),
            (_, true, _) => Some(DropReason::Shutdown),
            (.., None) => Some(DropReason::NoBackend),
            _ => None,
        };
        self.decide(|it| match refused {
            Some(why) => it.out.ends.push((task, Unserved::Dropped(why))),
            None => it.model.on_request(NOW, Request::new(task, DEADLINE), &mut it.out),
        });
    }

    pub(crate) fn on_cancel(&mut self, task: TaskId) {
        self.decide(|it| {
            it.model.on_cancel(NOW, task, &mut it.out);
        });
    }

    /// A backend's report. One of a batch that is not outstanding is too late.
    pub(crate) fn on_done(&mut self, action: u64, status: ActionStatus) {
        let Some(at) = self.in_flight.iter().position(|(sealed, _)| sealed.action == action) else {
            return;
        };
        let (Sealed { gpu, .. }, request) = self.in_flight.remove(at);
        self.decide(|it| {
            if matches!(status, ActionStatus::Expired | ActionStatus::Refused) {
                it.requeue(request, Unserved::Dropped(DropReason::Deadline));
            }
            it.out.updates.push(GpuUpdate::Finished { gpu, at: NOW, pace: None, fetched_at: None });
        });
    }

    fn requeue(&mut self, request: Request, otherwise: Unserved) {
        let why = if self.frontend.is_none_or(|it| it != request.task.frontend()) {
            Some(DropReason::FrontendLost)
        } else if self.is_stopping {
            Some(DropReason::Shutdown)
        } else {
            self.has_removed.then_some(DropReason::ModelRemoved)
        };
        match why {
            Some(why) => self.out.ends.push((request.task, Unserved::Dropped(why))),
            None => self.model.on_requeue(NOW, request, otherwise, &mut self.out),
        }
    }

    /// A backend joins, in its next life if there was one.
    pub(crate) fn on_backend(&mut self, life: u32) {
        let gpu = Gpu { id: GpuId(0), life };
        self.gpu = Some(gpu);
        self.decide(|it| it.rank.on_gpu_join(NOW, gpu, SUBCLUSTER, &mut it.out));
    }

    pub(crate) fn on_backend_lost(&mut self) {
        let Some(gpu) = self.gpu.take() else { return };
        self.decide(|it| {
            it.rank.on_gpu_leave(gpu);
            for (_, request) in std::mem::take(&mut it.in_flight) {
                it.requeue(request, Unserved::Failed(FailReason::BackendLost));
            }
            // Nothing serves the model any more.
            it.model.drop_all(NOW, DropReason::NoBackend, &mut it.out);
        });
    }

    pub(crate) fn on_frontend(&mut self, number: FrontendId) {
        self.decide(|it| it.frontend = Some(number));
    }

    pub(crate) fn on_frontend_lost(&mut self) {
        let Some(frontend) = self.frontend.take() else { return };
        self.decide(|it| {
            it.model.on_frontend_lost(NOW, frontend, &mut it.out);
            it.ends.clear();
        });
    }

    /// It stops in order: what waits goes back.
    pub(crate) fn stop(&mut self) {
        self.is_stopping = true;
        self.decide(|it| it.model.drop_all(NOW, DropReason::Shutdown, &mut it.out));
    }

    /// What comes from now on is dropped; what waits is still served.
    pub(crate) fn remove_model(&mut self) {
        self.decide(|it| it.has_removed = true);
    }

    /// What the matcher counts is what backends have, once all that was said is heard.
    pub(crate) fn is_sound(&self) -> bool {
        if self.has_news() || self.has_grant() {
            return true;
        }
        let ours = |(sealed, _): &&(Sealed, Request)| Some(sealed.gpu) == self.gpu;
        self.rank.outstanding() == self.in_flight.iter().filter(ours).count()
    }

    pub(crate) fn is_idle(&self) -> bool {
        let decides = self.has_news() || self.has_grant();
        self.in_flight.is_empty() && self.model.waiting() == 0 && !decides
    }
}
