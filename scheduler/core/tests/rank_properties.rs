//! RankState against a model of it that searches everything at every step. Random candidates,
//! answers to grants, reports, slots that come and go; a failing case is shrunk, printed, and kept
//! in a file beside this one to be replayed first.

use baton_core::{
    Candidate, Gpu, GpuId, GpuUpdate, Grant, ModelId, Nanos, PIPELINE_DEPTH, RankLimits, RankSink,
    RankState, SlotPart, Slowdown, SubclusterId,
};
use proptest::prelude::*;

/// `HOME[m]`: model m's sub-cluster. Slot g belongs to sub-cluster g % 2.
const HOME: [SubclusterId; 5] =
    [SubclusterId(0), SubclusterId(1), SubclusterId(0), SubclusterId(0), SubclusterId(1)];
const GPUS: usize = 5;

#[derive(Clone, Debug)]
enum Op {
    Pass {
        span: u64,
    },
    /// `stale`: it has not seen the latest grant.
    Candidate {
        model: usize,
        exec_in: u64,
        window: u64,
        delay: u64,
        bad_rate: u32,
        early: bool,
        stale: bool,
    },
    Withdraw {
        model: usize,
    },
    /// Answers the oldest open grant.
    Plan {
        latency: u64,
    },
    Return,
    Finish {
        gpu: usize,
        ago: u64,
    },
    Join {
        gpu: usize,
    },
    Leave {
        gpu: usize,
    },
    Drain {
        gpu: usize,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let bad_rate = prop_oneof![2 => Just(0), 1 => 0..4_000u32];
    let times = (0..30u64, 0..30u64, 0..4u64);
    let flags = (prop::bool::weighted(0.3), prop::bool::weighted(0.1));
    let candidate = (0..HOME.len(), times, bad_rate, flags);
    prop_oneof![
        6 => (0..20u64).prop_map(|span| Op::Pass { span }),
        9 => candidate.prop_map(|(model, (exec_in, window, delay), bad_rate, (early, stale))| {
            Op::Candidate { model, exec_in, window, delay, bad_rate, early, stale }
        }),
        1 => (0..HOME.len()).prop_map(|model| Op::Withdraw { model }),
        7 => prop_oneof![4 => 1..40u64, 1 => 1..400u64].prop_map(|latency| Op::Plan { latency }),
        1 => Just(Op::Return),
        6 => (0..GPUS, 0..5u64).prop_map(|(gpu, ago)| Op::Finish { gpu, ago }),
        2 => (0..GPUS).prop_map(|gpu| Op::Join { gpu }),
        1 => (0..GPUS).prop_map(|gpu| Op::Leave { gpu }),
        1 => (0..GPUS).prop_map(|gpu| Op::Drain { gpu }),
    ]
}

#[derive(Default)]
struct Out {
    grants: Vec<(ModelId, Grant)>,
    drained: Vec<Gpu>,
}

impl RankSink for Out {
    fn grant(&mut self, model: ModelId, grant: Grant) {
        // `spare_slots.rs` tests what is left to others.
        self.grants.push((model, Grant { spare: 1, others_lose: false, ..grant }));
    }
    fn drained(&mut self, gpu: Gpu) {
        self.drained.push(gpu);
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Stage {
    /// Not due yet.
    Waiting,
    /// Due, without a slot.
    Ready,
    /// Granted, expired or withdrawn: RankState waits for another.
    Spent,
}

#[derive(Clone, Copy)]
struct Model {
    candidate: Option<Candidate>,
    stage: Stage,
    /// What it is ordered by once it is ready.
    urgency: Nanos,
    grants: u32,
}

/// A slot by what is known of it: its unfinished batches and when the last report came.
#[derive(Clone, Default)]
struct Slot {
    life: u32,
    is_present: bool,
    is_leaving: bool,
    is_granted: bool,
    idle_since: Nanos,
    batches: Vec<(Nanos, Nanos)>,
}

impl Slot {
    /// The batches run one after the other, none before its planned start.
    fn free_at(&self) -> Nanos {
        let run = |free_at: Nanos, &(start, latency): &(Nanos, Nanos)| free_at.max(start) + latency;
        self.batches.iter().fold(self.idle_since, run)
    }

    fn is_open(&self, id: usize, subcluster: SubclusterId) -> bool {
        let has_room = self.batches.len() < usize::from(PIPELINE_DEPTH);
        let usable = self.is_present && !self.is_leaving && !self.is_granted && has_room;
        usable && id as u32 % 2 == subcluster.0
    }
}

/// One per cent of bad tasks is worth a turn.
fn urgency(turn: &[u64; 2], model: usize, candidate: Candidate) -> Nanos {
    let turns = u64::from(candidate.bad_rate) * 100;
    candidate.urgency - Nanos((turn[HOME[model].0 as usize] * turns) >> 16)
}

struct Pair {
    rank: RankState,
    out: Out,
    now: Nanos,
    models: Vec<Model>,
    slots: Vec<Slot>,
    /// Per sub-cluster: the moving mean of planned executions, and it over the slots there were.
    execution: [u64; 2],
    turn: [u64; 2],
    /// Granted and not answered, oldest first.
    open: Vec<(usize, Grant)>,
    /// What RankState ought to have said so far.
    granted: Vec<(ModelId, Grant)>,
    drained: Vec<Gpu>,
}

impl Pair {
    fn new() -> Self {
        let limits = RankLimits { gpus: GPUS as u32, subclusters: 2, copies: 0 };
        let model = Model { candidate: None, stage: Stage::Spent, urgency: Nanos::ZERO, grants: 0 };
        Self {
            rank: RankState::new(limits, &HOME),
            out: Out::default(),
            now: Nanos(1_000),
            models: vec![model; HOME.len()],
            slots: vec![Slot::default(); GPUS],
            execution: [0; 2],
            turn: [0; 2],
            open: Vec::new(),
            granted: Vec::new(),
            drained: Vec::new(),
        }
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Pass { span } => self.pass(self.now + Nanos(span)),
            Op::Candidate { model, exec_in, window, delay, bad_rate, early, stale } => {
                let exec_at = self.now + Nanos(exec_in + delay);
                let invalid_after = exec_at + Nanos(window);
                let (urgency, delay) = (exec_at + Nanos(window / 2), Nanos(delay));
                let candidate = Candidate {
                    batch: 1,
                    exec_at,
                    invalid_after,
                    urgency,
                    bad_rate,
                    delay,
                    latest: exec_at,
                    latency: Nanos(30),
                    alone: Nanos(30),
                    slack: Nanos::ZERO,
                    dispersion: 16,
                    excess: if early { 0 } else { Candidate::NOT_EARLY },
                    run: 0,
                };
                self.candidate(model, Some(candidate), stale);
            }
            Op::Withdraw { model } => self.candidate(model, None, false),
            Op::Plan { latency } => self.answer(Some(Nanos(latency))),
            Op::Return => self.answer(None),
            Op::Finish { gpu, ago } => self.finish(gpu, self.now - Nanos(ago)),
            Op::Join { gpu } => self.join(gpu),
            Op::Leave { gpu } => self.leave(gpu),
            Op::Drain { gpu } => self.drain(gpu),
        }
        self.compare();
    }

    fn pass(&mut self, until: Nanos) {
        while let Some(at) = self.rank.next_timer().filter(|&at| at <= until) {
            self.now = self.now.max(at);
            self.rank.on_timer(self.now, &mut self.out);
            self.decide();
            self.compare();
        }
        self.now = until;
    }

    fn candidate(&mut self, model: usize, candidate: Option<Candidate>, stale: bool) {
        let grants = self.models[model].grants.wrapping_sub(u32::from(stale));
        let id = ModelId(model as u32);
        self.rank.on_candidate(self.now, id, candidate, grants, &mut self.out);
        if !stale {
            let stage = if candidate.is_some() { Stage::Waiting } else { Stage::Spent };
            self.models[model] = Model { candidate, stage, urgency: Nanos::ZERO, grants };
            self.decide();
        }
    }

    fn answer(&mut self, latency: Option<Nanos>) {
        if self.open.is_empty() {
            return;
        }
        let (_, Grant { gpu, free_at, .. }) = self.open.remove(0);
        let start = self.now.max(free_at);
        let update = match latency {
            Some(latency) => {
                // No work: nothing is kept for anybody.
                GpuUpdate::Planned { gpu, start, latency, work: Nanos::ZERO, fetched_at: None }
            }
            None => GpuUpdate::Returned { gpu },
        };
        self.rank.on_gpu(self.now, update, &mut self.out);
        if let Some(slot) = self.living(gpu) {
            slot.is_granted = false;
            slot.batches.extend(latency.map(|latency| (start, latency)));
            self.learn_turn(gpu.id, latency);
            self.say_if_drained(gpu);
        }
        self.decide();
    }

    /// 1/32 of the mean is replaced by each planned execution.
    fn learn_turn(&mut self, id: GpuId, latency: Option<Nanos>) {
        let (at, Some(latency)) = (id.0 as usize % 2, latency) else { return };
        let here =
            |(id, slot): &(usize, &Slot)| id % 2 == at && slot.is_present && !slot.is_leaving;
        let present = self.slots.iter().enumerate().filter(here).count() as u64;
        self.execution[at] = self.execution[at] - self.execution[at] / 32 + latency.0 / 32;
        self.turn[at] = self.execution[at] / present.max(1);
    }

    /// The slot's oldest batch ended. Reports come in order and only for what was planned.
    fn finish(&mut self, id: usize, at: Nanos) {
        if self.slots[id].batches.is_empty() {
            return;
        }
        let gpu = self.gpu(id);
        self.rank.on_gpu(
            self.now,
            GpuUpdate::Finished { gpu, at, pace: None, fetched_at: None },
            &mut self.out,
        );
        if let Some(slot) = self.living(gpu) {
            slot.batches.remove(0);
            slot.idle_since = at;
            self.say_if_drained(gpu);
        }
        self.decide();
    }

    fn join(&mut self, id: usize) {
        let life = self.slots[id].life + 1;
        let now = self.now;
        self.slots[id] = Slot { life, is_present: true, idle_since: now, ..Slot::default() };
        let home = SubclusterId(id as u32 % 2);
        self.rank.on_gpu_join(now, self.gpu(id), home, &mut self.out);
        self.decide();
    }

    fn leave(&mut self, id: usize) {
        self.rank.on_gpu_leave(self.gpu(id));
        self.slots[id].is_present = false;
    }

    fn drain(&mut self, id: usize) {
        let gpu = self.gpu(id);
        let asked_before = self.slots[id].is_present && self.slots[id].is_leaving;
        self.rank.on_gpu_drain(gpu, &mut self.out);
        self.slots[id].is_leaving = true;
        if !self.slots[id].is_present {
            self.drained.push(gpu); // it has nothing, certainly
        } else if !asked_before {
            self.say_if_drained(gpu);
        }
    }

    fn say_if_drained(&mut self, gpu: Gpu) {
        let slot = &self.slots[gpu.id.0 as usize];
        if slot.is_leaving && !slot.is_granted && slot.batches.is_empty() {
            self.drained.push(gpu);
        }
    }

    fn gpu(&self, id: usize) -> Gpu {
        Gpu { id: GpuId(id as u32), life: self.slots[id].life }
    }

    fn living(&mut self, gpu: Gpu) -> Option<&mut Slot> {
        let slot = &mut self.slots[gpu.id.0 as usize];
        (slot.is_present && slot.life == gpu.life).then_some(slot)
    }

    /// Grants as the definition says: the most urgent due candidate of a sub-cluster, as long as
    /// there is a slot for it.
    fn decide(&mut self) {
        let waiting = |(_, model): &(usize, &mut Model)| model.stage == Stage::Waiting;
        for (m, model) in self.models.iter_mut().enumerate().filter(waiting) {
            let due = model.candidate.filter(|c| c.exec_at - c.delay <= self.now);
            let Some(candidate) = due else { continue };
            (model.stage, model.urgency) = (Stage::Ready, urgency(&self.turn, m, candidate));
        }
        self.serve();
        while let Some(m) = self.early() {
            let candidate = self.models[m].candidate.expect("it waits");
            self.models[m].stage = Stage::Ready;
            self.models[m].urgency = urgency(&self.turn, m, candidate);
            self.serve();
        }
    }

    /// Of the candidates that need not wait, the one that is due first, if a slot is idle for it.
    fn early(&self) -> Option<usize> {
        let may = |&m: &usize| {
            let Model { candidate, stage, .. } = self.models[m];
            let is_early = candidate.is_some_and(|c| c.excess != Candidate::NOT_EARLY);
            stage == Stage::Waiting && is_early && self.has_idle(HOME[m])
        };
        let due = |&m: &usize| self.models[m].candidate.map(|c| c.exec_at - c.delay);
        (0..HOME.len()).filter(may).min_by_key(due)
    }

    fn has_idle(&self, subcluster: SubclusterId) -> bool {
        let open = |&id: &usize| self.slots[id].is_open(id, subcluster);
        let idle =
            |id: usize| self.slots[id].batches.is_empty() && self.slots[id].free_at() <= self.now;
        (0..GPUS).filter(open).any(idle)
    }

    fn serve(&mut self) {
        for subcluster in [SubclusterId(0), SubclusterId(1)] {
            while let Some((model, candidate)) = self.most_urgent(subcluster) {
                let start = self.now + candidate.delay;
                let Some(id) = self.available(subcluster, start) else { break };
                self.models[model].stage = Stage::Spent;
                if start <= candidate.invalid_after {
                    self.grant(model, id);
                }
            }
        }
    }

    fn most_urgent(&self, subcluster: SubclusterId) -> Option<(usize, Candidate)> {
        let ready = |m: &usize| HOME[*m] == subcluster && self.models[*m].stage == Stage::Ready;
        let ready = (0..HOME.len()).filter(ready);
        let most = ready.min_by_key(|&m| self.models[m].urgency)?;
        Some((most, self.models[most].candidate?))
    }

    /// Truly idle before overdue, by number; else the first to be free, if by `start`.
    fn available(&self, subcluster: SubclusterId, start: Nanos) -> Option<usize> {
        let open = || (0..GPUS).filter(|&id| self.slots[id].is_open(id, subcluster));
        let idle = open().filter(|&id| self.slots[id].free_at() <= self.now);
        let soon = open().filter(|&id| self.slots[id].free_at() <= start);
        let overdue = |&id: &usize| !self.slots[id].batches.is_empty();
        let first_free = || soon.min_by_key(|&id| self.slots[id].free_at());
        idle.min_by_key(overdue).or_else(first_free)
    }

    /// When a candidate falls due, or a slot is about to be free for the most urgent one.
    fn next_moment(&self) -> Option<Nanos> {
        let waiting = self.models.iter().filter(|model| model.stage == Stage::Waiting);
        let due = waiting.filter_map(|m| m.candidate).map(|c| c.exec_at - c.delay);
        let served = [SubclusterId(0), SubclusterId(1)].into_iter().filter_map(|subcluster| {
            let (_, candidate) = self.most_urgent(subcluster)?;
            let open = (0..GPUS).filter(|&id| self.slots[id].is_open(id, subcluster));
            Some(open.map(|id| self.slots[id].free_at()).min()? - candidate.delay)
        });
        due.chain(served).min()
    }

    fn grant(&mut self, model: usize, id: usize) {
        // So short a time says nothing about the traffic.
        let (slot_wait, longest) = (Nanos::ZERO, Nanos::MAX);
        let (gpu, free_at) = (self.gpu(id), self.slots[id].free_at());
        let port_wait = Nanos::ZERO;
        let grant = Grant {
            gpu,
            free_at,
            port_wait,
            slowdown: Slowdown::NONE,
            slot_wait,
            longest,
            spare: 1,
            part: SlotPart::NONE,
            is_short_of_slots: false,
            others_lose: false,
        };
        self.slots[id].is_granted = true;
        self.models[model].grants += 1;
        self.open.push((model, grant));
        self.granted.push((ModelId(model as u32), grant));
    }

    fn compare(&mut self) {
        let order = |grants: &mut Vec<(ModelId, Grant)>| grants.sort_by_key(|g| g.1.gpu.id);
        order(&mut self.out.grants);
        order(&mut self.granted);
        assert_eq!(std::mem::take(&mut self.out.grants), std::mem::take(&mut self.granted));
        assert_eq!(self.out.drained, self.drained);
        assert_eq!(self.rank.next_timer(), self.next_moment());
        for subcluster in [SubclusterId(0), SubclusterId(1)] {
            let member = |&id: &usize| id as u32 % 2 == subcluster.0;
            let stays = |&id: &usize| self.slots[id].is_present && !self.slots[id].is_leaving;
            let present = (0..GPUS).filter(member).filter(stays).count();
            assert_eq!(self.rank.gpus_present(subcluster) as usize, present);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn it_agrees_with_searching_everything(ops in prop::collection::vec(op(), 1..150)) {
        let mut pair = Pair::new();
        (0..3).for_each(|gpu| pair.join(gpu));
        ops.iter().for_each(|op| pair.apply(op));
        pair.pass(pair.now + Nanos(200));
    }
}
