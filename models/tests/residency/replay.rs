//! Does the actions of a state again, with a real backend, a real LoadState and a real matcher, and looks at the result.

use baton_backend::Stage;
use baton_core::{
    Gpu, GpuId, Grant, Load, LoadDone, LoadLimits, LoadOutcome, LoadRule, LoadSink, LoadState,
    ModelId, Nanos, RankLimits, RankSink, RankState, Readiness, SubclusterId, Weights,
};

use crate::Action;
use crate::party::{FAILED, LATE, LOADED, Said};
use crate::world::{ActionSpec, FrontendSide, MODEL, PAGES, SMALL, World};

/// The backend's and the wire's names of the scheduler's models 0 and 1. The first takes all pages, so it and the other
/// never have room together.
const WIRE: [u32; 2] = [MODEL, SMALL];
const PAGES_OF: [u32; 2] = [PAGES, 1];
const MODELS: [ModelId; 2] = [ModelId(0), ModelId(1)];
const SUBCLUSTER: SubclusterId = SubclusterId(0);
const MS: Nanos = Nanos::from_millis(1);
/// Longer than every window and its grace.
const ALL_LATE: Nanos = Nanos::from_millis(8);
/// A message needs no more passes to get where it goes and back.
const PASSES: usize = 4;

/// What can be seen of a backend and its scheduler.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Seen {
    pub(crate) is_ready: bool,
    pub(crate) asks_to_join: bool,
    pub(crate) lives: u8,
    pub(crate) sent: u8,
    /// Models of the LOADs of this life without a report.
    pub(crate) loads: Vec<u32>,
    /// Batches of this life without one.
    pub(crate) batches: u8,
    /// Every window has closed.
    pub(crate) is_late: bool,
    /// A batch executes; another one waits for that or for its model.
    pub(crate) executes: bool,
    pub(crate) waits: bool,
    /// The model that is being copied, and what the executor does with one.
    pub(crate) copies: Option<u32>,
    pub(crate) performs: Option<(&'static str, u32)>,
    /// The executor holds the model; LoadState has it resident; the matcher grants the slot for it.
    pub(crate) is_held: [bool; 2],
    pub(crate) is_resident: [bool; 2],
    pub(crate) may_run: [bool; 2],
    pub(crate) has_stray_report: bool,
    pub(crate) pages_differ: bool,
    pub(crate) failures: u8,
    pub(crate) evicted: u8,
}

struct NoGrants;

impl RankSink for NoGrants {
    fn grant(&mut self, _: ModelId, _: Grant) {}

    fn drained(&mut self, _: Gpu) {}
}

/// What LoadState decides: the model, and who leaves for it.
#[derive(Default)]
struct Decided(Vec<(ModelId, Vec<ModelId>)>);

impl LoadSink for Decided {
    fn load(&mut self, load: &Load<'_>) {
        self.0.push((load.model, load.victims.to_vec()));
    }

    fn readiness(&mut self, _: ModelId, _: Readiness) {}
}

struct Replay {
    world: World,
    client: FrontendSide,
    loads: LoadState,
    rank: RankState,
    has_scheduler: bool,
    /// Names of the LOADs and batches of this life that are not reported.
    open_loads: Vec<(u64, ModelId)>,
    open_batches: Vec<u64>,
    seen: Seen,
}

/// What is there after these actions.
pub(crate) fn after(actions: &[Action]) -> Seen {
    let mut world = World::cached(PAGES_OF);
    let client = world.connected_frontend(1);
    let limits = RankLimits { gpus: 1, subclusters: 1, copies: 1 };
    let rank = RankState::new(limits, &[SUBCLUSTER; 2]);
    let seen = Seen { lives: 1, ..Seen::default() };
    let (open_loads, open_batches) = (Vec::new(), Vec::new());
    let has_scheduler = true;
    let loads = new_loads();
    let mut replay =
        Replay { world, client, loads, rank, has_scheduler, open_loads, open_batches, seen };
    replay.begin_life();
    for &action in actions {
        replay.act(action);
        replay.settle();
    }
    replay.look();
    replay.seen
}

fn new_loads() -> LoadState {
    let (rule, outstanding) = (LoadRule::Commanded, MS);
    let limits = LoadLimits { gpus: 1, copies: 1, residents: 2, rule, outstanding };
    let of = |pages| Weights { pages, load: MS, is_guess: false, alone: MS };
    LoadState::new(limits, &PAGES_OF.map(of))
}

impl Replay {
    fn gpu(&self) -> Gpu {
        Gpu { id: GpuId(0), life: u32::from(self.seen.lives) }
    }

    /// The scheduler believes what the backend says of its memory when it joins.
    fn begin_life(&mut self) {
        let (gpu, now) = (self.gpu(), self.world.now);
        self.loads = new_loads();
        for model in MODELS {
            self.rank.forget(model);
            self.rank.serve_where_resident(model, SUBCLUSTER);
        }
        self.rank.on_gpu_join(now, gpu, SUBCLUSTER, &mut NoGrants);
        let (pages, models) = self.said_memory();
        self.loads.on_gpu_join(now, gpu, pages);
        for model in MODELS.into_iter().filter(|model| models.contains(&WIRE[model.0 as usize])) {
            let fits = self.loads.place(now, model, gpu, &mut Decided::default());
            assert!(fits, "a slot holds more than it has room for");
            assert!(self.rank.on_resident(now, model, gpu, &mut NoGrants), "it is there once");
        }
        self.world.control.heard.clear();
    }

    fn said_memory(&self) -> (u32, Vec<u32>) {
        let memory = self.world.control.heard.iter().find_map(|said| match said {
            Said::Memory { pages, models } => Some((*pages, models.clone())),
            _ => None,
        });
        memory.expect("a backend with a cache says what it holds")
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Load(model) => self.load(MODELS[model]),
            Action::Infer => self.infer(),
            Action::Finish => {
                let now = self.world.now;
                self.world.hands[0].finish(now, now);
            }
            Action::Copy => self.world.hands[0].finish_aside(),
            Action::Fail => {
                self.seen.failures += 1;
                self.world.hands[0].fail_aside();
            }
            Action::Settle => self.finish_job(),
            Action::Late => {
                self.world.pass_awake(ALL_LATE);
                self.seen.is_late = true;
            }
            Action::Restart => {
                self.rank.on_gpu_leave(self.gpu());
                self.has_scheduler = false;
                self.world.restart_scheduler();
                self.open_loads.clear();
                self.open_batches.clear();
                self.world.pass_awake(Nanos::from_millis(120));
            }
            Action::Join => {
                self.world.let_in();
                self.has_scheduler = true;
                self.seen.lives += 1;
                self.begin_life();
                self.client = self.world.connected_frontend(u16::from(self.seen.lives));
            }
        }
    }

    /// As the RankThread does: what leaves is not granted any more before the LOAD is sent.
    fn load(&mut self, model: ModelId) {
        let (gpu, now, mut decided) = (self.gpu(), self.world.now, Decided::default());
        if !self.loads.load(now, model, gpu, &mut decided) {
            return;
        }
        for (model, victims) in decided.0 {
            victims.iter().for_each(|&victim| self.rank.on_evicted(victim, gpu));
            self.seen.evicted += victims.len() as u8;
            let victims: Vec<u32> = victims.iter().map(|victim| WIRE[victim.0 as usize]).collect();
            let name = self.world.load(WIRE[model.0 as usize], &victims);
            self.open_loads.push((name, model));
        }
        (self.seen.sent, self.seen.is_late) = (self.seen.sent + 1, false);
    }

    fn infer(&mut self) {
        let now = self.world.now;
        self.loads.on_granted(now, MODELS[0], self.gpu());
        let task = self.client.submit(1);
        let name = self.world.infer(&ActionSpec::default(), &[task]);
        self.open_batches.push(name);
        (self.seen.sent, self.seen.is_late) = (self.seen.sent + 1, false);
    }

    /// The executor has a model from the moment at which it has taken it in.
    fn finish_job(&mut self) {
        let job = self.world.hands[0].other();
        self.world.hands[0].finish_other();
        if let Some(("install", model)) = job {
            self.seen.is_held[model as usize] = true;
        }
    }

    /// The executor has not a model any more from the moment at which it begins to give it up.
    fn settle(&mut self) {
        for _ in 0..PASSES {
            self.world.step();
            self.client.party.poll(self.world.now);
            if let Some(("remove", model)) = self.world.hands[0].other() {
                self.seen.is_held[model as usize] = false;
            }
        }
        for said in self.world.thread.take() {
            match said {
                Said::Done { batch, .. } => self.on_done(batch),
                Said::Loaded { load, status, pages_free, .. } => {
                    self.on_loaded(load, status, pages_free);
                }
                _ => {}
            }
        }
    }

    fn on_done(&mut self, name: u64) {
        let Some(at) = self.open_batches.iter().position(|open| *open == name) else {
            self.seen.has_stray_report = true;
            return;
        };
        self.open_batches.remove(at);
        self.loads.on_ended(self.world.now, MODELS[0], self.gpu());
    }

    fn on_loaded(&mut self, name: u64, status: u8, pages_free: u32) {
        let Some(at) = self.open_loads.iter().position(|(open, _)| *open == name) else {
            self.seen.has_stray_report = true;
            return;
        };
        let (_, model) = self.open_loads.remove(at);
        let outcome = match status {
            LOADED => LoadOutcome::Loaded { took: MS },
            LATE => LoadOutcome::Late,
            FAILED => LoadOutcome::Failed,
            _ => LoadOutcome::NoPages,
        };
        let (gpu, now) = (self.gpu(), self.world.now);
        self.loads.on_load_done(now, LoadDone { model, gpu, outcome }, &mut Decided::default());
        if self.loads.is_resident(model, gpu) {
            assert!(self.rank.on_resident(now, model, gpu, &mut NoGrants), "there is room for one");
        }
        // Other LOADs have pages, also those that a former scheduler has ordered.
        if self.open_loads.is_empty() && self.world.hands[0].aside().is_none() {
            self.seen.pages_differ |= self.loads.free_pages(gpu.id) != pages_free;
        }
    }

    fn look(&mut self) {
        let gpu = self.gpu();
        let (world, seen) = (&self.world, &mut self.seen);
        seen.is_ready = world.stage() == Stage::Ready && self.has_scheduler;
        seen.asks_to_join = world.stage() == Stage::Catalogue;
        seen.loads = self.open_loads.iter().map(|(_, model)| model.0).collect();
        seen.batches = self.open_batches.len() as u8;
        seen.executes = world.hands[0].batch().is_some();
        seen.copies = world.hands[0].aside();
        seen.performs = world.hands[0].other();
        seen.is_resident = MODELS.map(|model| self.loads.is_resident(model, gpu));
        seen.may_run = MODELS.map(|model| self.rank.may_run(model, gpu));
        seen.waits = seen.batches > u8::from(seen.executes);
    }
}
