//! Processes that stand still, one by one or as a host that has no core for any of them.

use baton_core::Nanos;
use rand::RngExt;

use crate::faults::Who;
use crate::process::Line;
use crate::run::Run;
use crate::world::World;

/// How far apart those of one host go on, at most: a core is found for one after the other.
pub(crate) const APART: Nanos = Nanos::from_millis(20);

impl World {
    /// Every process stands still from now on, and goes on some time between `until` and 20 ms later.
    pub fn freeze_everybody(&mut self, until: Nanos) {
        let Self { scheduler, backends, frontends, rng, .. } = self;
        let threads = scheduler.iter_mut().flat_map(|process| process.lines_mut());
        let backends = backends.iter_mut().flatten().map(|process| &mut process.line);
        let frontends = frontends.iter_mut().flatten().map(|process| &mut process.line);
        let freeze = |line: &mut Line| line.freeze(until + Nanos(rng.random_range(0..=APART.0)));
        threads.chain(backends).chain(frontends).for_each(freeze);
    }

    /// The scheduler stands still.
    pub fn freeze_scheduler(&mut self, until: Nanos) {
        let threads = self.scheduler.iter_mut().flat_map(|process| process.lines_mut());
        threads.for_each(|line| line.freeze(until));
    }

    /// The backend in this place of [`World::backends`] stands still.
    pub fn freeze_backend(&mut self, place: usize, until: Nanos) {
        if let Some(process) = &mut self.backends[place] {
            process.line.freeze(until);
        }
    }

    /// The frontend in this place of [`World::frontends`] stands still.
    pub fn freeze_frontend(&mut self, place: usize, until: Nanos) {
        if let Some(process) = &mut self.frontends[place] {
            process.line.freeze(until);
        }
    }
}

impl Run {
    pub(crate) fn freeze(&mut self, who: Who, until: Nanos) {
        match who {
            Who::Scheduler => {
                self.world.network.scheduler_sleeps(until);
                self.world.freeze_scheduler(until);
            }
            Who::Backend(at) => {
                let Some(place) = self.backends[at] else { return };
                self.world.freeze_backend(place, until);
            }
            Who::Frontend(at) => {
                let Some(Some(place)) = self.frontends.get(at).copied() else { return };
                self.world.freeze_frontend(place, until);
            }
        }
    }

    /// Observer and observed stand still together, and go on one after the other.
    pub(crate) fn freeze_both(&mut self, who: [Who; 2], until: Nanos) {
        for who in who {
            let apart = Nanos(self.world.rng.random_range(0..=APART.0));
            self.freeze(who, until + apart);
        }
    }

    /// The programs on that host stand still as well: they ask for nothing meanwhile.
    pub(crate) fn freeze_everybody(&mut self, until: Nanos) {
        self.world.freeze_everybody(until);
        self.world.network.scheduler_sleeps(until + APART);
        self.asks_from = self.asks_from.max(until);
    }
}
