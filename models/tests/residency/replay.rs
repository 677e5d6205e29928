//! Does the actions of a state again, with a real backend and a real matcher, and looks at the result.

use baton_backend::Stage;
use baton_core::{
    Gpu, GpuId, Grant, ModelId, Nanos, RankLimits, RankSink, RankState, SubclusterId,
};

use crate::Action;
use crate::party::Said;
use crate::world::{
    ActionSpec, ENGINE_ERROR, EXECUTED, FIRST_GPU, FrontendSide, LOAD, MODEL, UNLOAD, World,
};

/// The matcher's numbers of model, slot and sub-cluster.
const RANKED: ModelId = ModelId(0);
const SUBCLUSTER: SubclusterId = SubclusterId(0);
/// Longer than every window and its grace.
const LATE: Nanos = Nanos::from_millis(8);
/// A message needs no more passes to get where it goes and back.
const PASSES: usize = 4;

/// What can be seen of a backend and its scheduler.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Seen {
    pub(crate) is_ready: bool,
    pub(crate) asks_to_join: bool,
    pub(crate) lives: u8,
    pub(crate) sent: u8,
    /// Actions of this life without a report: what they are.
    pub(crate) open: Vec<u8>,
    /// Every window has closed.
    pub(crate) is_late: bool,
    /// A batch executes; another one waits for that or for its model.
    pub(crate) executes: bool,
    pub(crate) waits: bool,
    /// What the executor does with the model.
    pub(crate) performs: Option<&'static str>,
    /// The executor holds the model.
    pub(crate) is_held: bool,
    /// The matcher grants the slot for the model.
    pub(crate) may_run: bool,
    pub(crate) has_stray_report: bool,
    pub(crate) failures: u8,
    pub(crate) loads: u8,
}

struct NoGrants;

impl RankSink for NoGrants {
    fn grant(&mut self, _: ModelId, _: Grant) {}

    fn drained(&mut self, _: Gpu) {}
}

struct Replay {
    world: World,
    client: FrontendSide,
    rank: RankState,
    has_scheduler: bool,
    /// What the last report says.
    is_reported_held: bool,
    /// Names and kinds of the actions of this life that are not reported.
    open: Vec<(u64, u8)>,
    seen: Seen,
}

/// What is there after these actions.
pub(crate) fn after(actions: &[Action]) -> Seen {
    let mut world = World::ready();
    let client = world.connected_frontend(1);
    let limits = RankLimits { gpus: 1, subclusters: 1, copies: 1 };
    let rank = RankState::new(limits, &[SUBCLUSTER]);
    let seen = Seen { lives: 1, is_held: true, ..Seen::default() };
    let (has_scheduler, open) = (true, Vec::new());
    let is_reported_held = true;
    let mut replay = Replay { world, client, rank, has_scheduler, is_reported_held, open, seen };
    replay.begin_life();
    for &action in actions {
        replay.act(action);
        replay.settle();
    }
    replay.look();
    replay.seen
}

impl Replay {
    fn gpu(&self) -> Gpu {
        Gpu { id: GpuId(0), life: u32::from(self.seen.lives) }
    }

    /// The scheduler takes for granted that a backend which joins has loaded its models.
    fn begin_life(&mut self) {
        let (gpu, now) = (self.gpu(), self.world.now);
        self.rank.forget(RANKED);
        self.rank.serve_where_resident(RANKED, SUBCLUSTER);
        self.rank.on_gpu_join(now, gpu, SUBCLUSTER, &mut NoGrants);
        self.is_reported_held = true;
        self.tell_matcher();
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Load | Action::Unload | Action::Infer => self.send(action),
            Action::Finish => {
                let now = self.world.now;
                self.world.hands[0].finish(now, now);
            }
            Action::Succeed | Action::Fail => self.finish_job(action == Action::Succeed),
            Action::Late => {
                self.world.pass_awake(LATE);
                self.seen.is_late = true;
            }
            Action::Restart => {
                self.rank.on_gpu_leave(self.gpu());
                self.has_scheduler = false;
                self.world.restart_scheduler();
                self.open.clear();
                self.world.pass_awake(Nanos::from_millis(120));
            }
            Action::Join => {
                self.world.let_in();
                self.has_scheduler = true;
                self.seen.lives += 1;
                self.client = self.world.connected_frontend(u16::from(self.seen.lives));
                self.begin_life();
            }
        }
    }

    fn send(&mut self, action: Action) {
        let kind = match action {
            Action::Load => LOAD,
            Action::Unload => UNLOAD,
            _ => 0,
        };
        let tasks = (kind == 0).then(|| self.client.submit(1));
        let spec = ActionSpec { kind, model: MODEL, gpu: FIRST_GPU, ..ActionSpec::default() };
        let name = self.world.infer(&spec, tasks.as_slice());
        self.open.push((name, kind));
        self.tell_matcher();
        (self.seen.sent, self.seen.is_late) = (self.seen.sent + 1, false);
    }

    /// The executor is done with a LOAD or an UNLOAD. What a failed LOAD leaves behind is not known, so it counts as nothing.
    fn finish_job(&mut self, succeeds: bool) {
        let is_load = self.seen.performs_now(&self.world) == Some("load");
        self.world.hands[0].finish_other(self.world.now, succeeds);
        self.seen.is_held = is_load && succeeds;
        self.seen.loads += u8::from(is_load && succeeds);
        self.seen.failures += u8::from(is_load && !succeeds);
    }

    fn settle(&mut self) {
        for _ in 0..PASSES {
            self.world.step();
            self.client.party.poll(self.world.now);
            if self.seen.performs_now(&self.world) == Some("unload") {
                self.seen.is_held = false;
            }
        }
        for said in self.world.thread.take() {
            if let Said::Done { batch, status, .. } = said {
                self.on_report(batch, status);
            }
        }
    }

    fn on_report(&mut self, name: u64, status: u8) {
        let Some(at) = self.open.iter().position(|(open, _)| *open == name) else {
            self.seen.has_stray_report = true;
            return;
        };
        let (_, kind) = self.open.remove(at);
        let is_over = [EXECUTED, ENGINE_ERROR].contains(&status);
        if is_over && [LOAD, UNLOAD].contains(&kind) {
            self.is_reported_held = kind == LOAD && status == EXECUTED;
        }
        self.tell_matcher();
    }

    /// The rule that a sender of LOAD and UNLOAD must keep: the slot is offered while the last report says that it holds
    /// the model and no UNLOAD is under way.
    fn tell_matcher(&mut self) {
        let (gpu, now) = (self.gpu(), self.world.now);
        let is_leaving = self.open.iter().any(|&(_, kind)| kind == UNLOAD);
        if self.is_reported_held && !is_leaving {
            let is_known = self.rank.on_resident(now, RANKED, gpu, &mut NoGrants);
            assert!(is_known, "there is room for one copy");
        } else {
            self.rank.on_evicted(RANKED, gpu);
        }
    }

    fn look(&mut self) {
        let (world, seen) = (&self.world, &mut self.seen);
        seen.is_ready = world.stage() == Stage::Ready && self.has_scheduler;
        seen.asks_to_join = world.stage() == Stage::Catalogue;
        seen.open = self.open.iter().map(|(_, kind)| *kind).collect();
        seen.executes = world.hands[0].batch().is_some();
        seen.waits = world.hands[0].prepared() > 0;
        seen.performs = seen.performs_now(world);
        seen.may_run = self.rank.may_run(RANKED, Gpu { id: GpuId(0), life: u32::from(seen.lives) });
    }
}

impl Seen {
    fn performs_now(&self, world: &World) -> Option<&'static str> {
        world.hands[0].other().map(|(what, _)| what)
    }
}
