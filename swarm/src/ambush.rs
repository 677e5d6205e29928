//! Faults that wait for a message: a process ends, stops or moves its work just when that message is on its way. Moments drawn
//! from a whole run seldom meet the few in which a member joins, leaves or loads; here rare messages are as good a moment
//! as frequent ones.
//!
//! Drawn apart from everything else, so that a run without them is what it would be.

use baton_core::Nanos;
use baton_rdma::wire::Kind;
use baton_topo::Cluster;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::faults::{Fault, Who};
use crate::network::HostId;
use crate::run::{Run, Step};

/// A fault, and the message that it waits for.
#[derive(Clone, Copy, Debug)]
pub struct Ambush {
    /// The kind of message.
    pub kind: Kind,
    /// How many of them pass first.
    pub passes: u32,
    /// How long after that message it happens.
    pub after: Nanos,
    deed: Deed,
    /// It happens to who receives the message, not to who has sent it.
    to_receiver: bool,
    /// How long it lasts, or until what it ends starts again.
    long: Nanos,
    /// Which of several, where there is a choice.
    pick: usize,
    model: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Deed {
    Kill,
    Leave,
    Freeze,
    FreezeThread,
    Cut,
    Wall,
    Stop,
    Move,
}

const DEEDS: [Deed; 10] = [
    Deed::Kill,
    Deed::Kill,
    Deed::Leave,
    Deed::Leave,
    Deed::Freeze,
    Deed::FreezeThread,
    Deed::Cut,
    Deed::Wall,
    Deed::Stop,
    Deed::Move,
];

/// Ambushes of a run at most.
const AMBUSHES_MAX: u32 = 3;

/// In one run of five: what waits for which messages.
pub(crate) fn draw(seed: u64, cluster: &Cluster) -> Vec<Ambush> {
    let mut rng = StdRng::seed_from_u64(seed ^ 0x616d_6275);
    if rng.random_range(0..5) > 0 {
        return Vec::new();
    }
    let kinds = Kind::ALL.iter().filter(|kind| happens(**kind)).copied();
    let kinds: Vec<Kind> = kinds.collect();
    (0..rng.random_range(1..=AMBUSHES_MAX)).map(|_| one(&mut rng, &kinds, cluster)).collect()
}

/// Messages of a cluster that is up; what only a simulated network never carries is left out.
fn happens(kind: Kind) -> bool {
    let code = kind as u8;
    (10..70).contains(&code) && !matches!(kind, Kind::StatusAsk | Kind::StatusPart)
}

fn one(rng: &mut StdRng, kinds: &[Kind], cluster: &Cluster) -> Ambush {
    // At once, or a few messages later.
    let latest = [20_000, 400_000, 4_000_000][rng.random_range(0..3)];
    let many = 1 << rng.random_range(0..6);
    Ambush {
        kind: kinds[rng.random_range(0..kinds.len())],
        passes: rng.random_range(0..many),
        after: Nanos(rng.random_range(0..latest)),
        deed: DEEDS[rng.random_range(0..DEEDS.len())],
        to_receiver: rng.random_bool(0.5),
        long: Nanos::from_micros(rng.random_range(500..=60_000)),
        pick: rng.random_range(0..8),
        model: rng.random_range(0..cluster.models.len() as u32),
    }
}

impl Ambush {
    /// What happens to the two; `None` where it cannot.
    fn fault(&self, from: Who, to: Who, threads: usize) -> Option<Fault> {
        let who = if self.to_receiver { to } else { from };
        let long = self.long;
        Some(match (self.deed, who) {
            // One backend in four stays away.
            (Deed::Kill, Who::Backend(_)) if self.pick < 2 => Fault::Kill(who, None),
            (Deed::Kill, _) => Fault::Kill(who, Some(long)),
            (Deed::Leave, Who::Backend(at)) => Fault::Leave(at, long),
            (Deed::Leave, Who::Frontend(at)) => Fault::Depart(at, long),
            (Deed::Leave, Who::Scheduler) | (Deed::Stop, _) => Fault::Stop(long),
            (Deed::Freeze, _) => Fault::Freeze(who, long),
            (Deed::FreezeThread, _) => Fault::FreezeThread(self.pick, long),
            (Deed::Cut, _) => Fault::Cut(from, to, self.pick, true),
            (Deed::Wall, _) => Fault::Wall(from, to, long),
            (Deed::Move, _) => Fault::Move(self.model, self.pick % threads),
        })
    }
}

impl Run {
    /// The faults of this run that wait do so from now on.
    pub(crate) fn lie_in_wait(&mut self) {
        let waiting = self.plan.ambushes.iter().map(|ambush| (ambush.kind, ambush.passes));
        self.world.network.lie_in_wait(waiting.collect());
    }

    /// Those whose message has passed happen soon.
    pub(crate) fn spring(&mut self) {
        for (which, from, to) in self.world.network.take_sprung() {
            let ambush = self.plan.ambushes[which];
            let (Some(from), Some(to)) = (self.who(from), self.who(to)) else { continue };
            let threads = self.plan.cluster.scheduler.model_threads as usize;
            let Some(fault) = ambush.fault(from, to, threads) else { continue };
            let at = self.world.now + ambush.after;
            // What oracles ask of the faults of a run they ask of these too.
            self.plan.faults.push((at, fault));
            self.at(at, Step::Fault(fault));
        }
    }

    /// Whose life this is, if it is the present one.
    fn who(&self, host: HostId) -> Option<Who> {
        let backends = (0..self.backends.len()).map(Who::Backend);
        let frontends = (0..self.frontends.len()).map(Who::Frontend);
        let mut all = [Who::Scheduler].into_iter().chain(backends).chain(frontends);
        all.find(|&who| self.host(who) == Some(host))
    }
}
