//! Models move from a busy ModelThread to an idle one, one at a time, while everything runs.

use baton_core::{ModelId, Nanos, Trials};
use baton_rdma::Transport;

use super::{ControlParts, ControlThread};
use crate::commands::ModelCommand;
use crate::migration::channel::channel;
use crate::migration::placement::{Move, relief};

/// How often loads are looked at.
const LOOK_EVERY: Nanos = Nanos::from_millis(1_000);
/// Looks in a row that must find the loads uneven before a model moves.
const LOOKS: u32 = 2;
/// With fewer requests per second than this in total, no ModelThread is overloaded.
const BUSY_RPS: f64 = 1_000.0;

/// Where models live, and how busy they are.
#[derive(Debug)]
pub(super) struct Balance {
    homes: Vec<usize>,
    threads: usize,
    /// Requests of each model at the last look.
    seen: Vec<u64>,
    seen_at: Option<Nanos>,
    next_look: Nanos,
    /// When the ModelThreads are asked next what they have served and lost.
    next_report: Nanos,
    /// Looks in a row that found the loads uneven.
    uneven: u32,
    /// The model that is on its way. There is one at most.
    moving: Option<ModelId>,
}

impl Balance {
    pub(super) fn new(parts: &ControlParts) -> Self {
        let threads = parts.model_threads.len();
        Self {
            homes: parts.homes.clone(),
            threads,
            seen: vec![0; parts.homes.len()],
            seen_at: None,
            next_look: Nanos::ZERO,
            next_report: Nanos::ZERO,
            uneven: 0,
            moving: None,
        }
    }

    /// Where the model lives, or will once it has arrived.
    pub(super) fn home(&self, model: ModelId) -> usize {
        self.homes[model.0 as usize]
    }

    /// A model was added.
    pub(super) fn set_home(&mut self, model: ModelId, thread: usize) {
        self.homes[model.0 as usize] = thread;
    }

    /// A model was removed; the next one with its number is counted from nothing.
    pub(super) fn forget(&mut self, model: ModelId) {
        self.seen[model.0 as usize] = 0;
    }

    pub(super) fn is_moving(&self, model: ModelId) -> bool {
        self.moving == Some(model)
    }

    pub(super) fn next_look(&self) -> Nanos {
        self.next_look
    }

    /// The next look, or the next report of what is lost: see [`ControlThread::check_loads`].
    pub(super) fn next_timer(&self) -> Nanos {
        self.next_look.min(self.next_report)
    }

    /// Requests per second of each model since the last look; `None` at the first.
    fn rates(&mut self, now: Nanos, totals: impl Iterator<Item = u64>) -> Option<Vec<f64>> {
        let span = self.seen_at.replace(now).map(|before| (now - before).0 as f64 / 1e9);
        let grown = |(seen, total)| total - std::mem::replace(seen, total);
        let grown: Vec<u64> = self.seen.iter_mut().zip(totals).map(grown).collect();
        Some(grown.into_iter().map(|requests| requests as f64 / span.unwrap_or(1.0)).collect())
            .filter(|_| span.is_some_and(|span| span > 0.0))
    }

    /// The move to make now, if any.
    fn look(&mut self, rates: &[f64]) -> Option<Move> {
        let busy = rates.iter().sum::<f64>() >= BUSY_RPS && self.moving.is_none();
        let relief = relief(rates, &self.homes, self.threads).filter(|_| busy);
        self.uneven = if relief.is_some() { self.uneven + 1 } else { 0 };
        relief.filter(|_| self.uneven >= LOOKS)
    }
}

impl<T: Transport> ControlThread<T> {
    /// Where each model lives, or will once it has arrived: the number of its ModelThread.
    pub fn homes(&self) -> &[usize] {
        &self.balance.homes
    }

    /// Moves a model to ModelThread `to`; its tasks go with it. False if it is there already, or
    /// there is no such model or thread, or another model is on its way, or the scheduler stops.
    pub fn move_model(&mut self, model: ModelId, to: usize) -> bool {
        // A ModelThread that has ended takes in no model.
        self.check_shutdown();
        let balance = &mut self.balance;
        let (Some(home), Some(thread)) =
            (balance.homes.get_mut(model.0 as usize), self.parts.model_threads.get(to))
        else {
            return false;
        };
        let is_served = self.parts.catalog.entry(model).is_some_and(|entry| entry.is_served());
        if *home == to || balance.moving.is_some() || !is_served || self.stopping {
            return false;
        }
        let (out, end) = channel(thread.waker());
        let from = std::mem::replace(home, to);
        balance.moving = Some(model);
        thread.send(ModelCommand::Adopt { model, from: end });
        self.parts.model_threads[from].send(ModelCommand::Release { model, to: out });
        self.parts.catalog.count_move(model);
        self.parts.counters.models_moved.add(1);
        tracing::info!(model = model.0, from, to, "a model moves to another ModelThread");
        true
    }

    /// Looks at what the models are asked for, and several times as often at what they lose.
    pub(super) fn check_loads(&mut self, now: Nanos) -> usize {
        if now < self.balance.next_timer() {
            return 0;
        }
        // The answers to the last question are there; the next ones will be at the next look.
        if now >= self.balance.next_look {
            self.look_at_loads(now);
        }
        self.look_at_losses(now);
        if self.has_nothing_to_report() {
            self.balance.next_report = self.balance.next_look;
        } else {
            self.balance.next_report = now + Trials::LOOK_EVERY;
            self.note_report(now);
            self.tell_model_threads(|| ModelCommand::ReportLoad);
        }
        1
    }

    /// Who should move, how many GPUs are needed.
    fn look_at_loads(&mut self, now: Nanos) {
        self.balance.next_look = now + LOOK_EVERY;
        let requests = self.parts.load.read().map(|load| load.requests);
        let rates = self.balance.rates(now, requests);
        self.check_needs(now);
        self.look_at_window(now);
        if let Some(Move { model, to }) = rates.and_then(|rates| self.balance.look(&rates)) {
            self.move_model(ModelId(model as u32), to);
        }
    }

    /// No member has work, and what the ModelThreads last reported needs no GPU: asking again would only wake them.
    fn has_nothing_to_report(&self) -> bool {
        self.hearing.is_idle() && self.autoscale.is_idle()
    }

    /// The model serves at its new home: frontends send their requests there.
    pub(super) fn on_adopted(&mut self, model: ModelId) {
        self.balance.moving = None;
        self.send_held(model);
        let home = self.balance.home(model);
        let Some(entry) = self.parts.catalog.entry_mut(model) else { return };
        entry.set_thread(home);
        if entry.is_served() {
            let entry = entry.clone();
            self.tell_clients(|transport, conn| entry.send_desc(transport, conn));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn balance() -> Balance {
        let (homes, seen, next) = (vec![0, 0], vec![0; 2], Nanos::ZERO);
        let (next_look, next_report, seen_at) = (next, next, None);
        Balance {
            homes,
            threads: 2,
            seen,
            seen_at,
            next_look,
            next_report,
            uneven: 0,
            moving: None,
        }
    }

    #[test]
    fn rates_are_per_second_between_two_looks() {
        let mut balance = balance();
        let mut rates =
            |at_ms, totals: [u64; 2]| balance.rates(Nanos::from_millis(at_ms), totals.into_iter());
        assert_eq!(rates(1_000, [10, 20]), None, "the first look has nothing to compare with");
        assert_eq!(rates(3_000, [16, 20]), Some(vec![3.0, 0.0]));
        assert_eq!(rates(3_000, [17, 20]), None, "no time has passed");
        assert_eq!(rates(3_500, [17, 21]), Some(vec![0.0, 2.0]));
    }

    #[test]
    fn a_model_moves_after_uneven_looks_in_a_row() {
        let mut balance = balance();
        let mut moves = |rps: f64| balance.look(&[rps, rps]).is_some();
        assert_eq!([9_000.0, 0.0, 9_000.0, 9_000.0].map(&mut moves), [false, false, false, true]);
        let mut moves = |rps: f64| (0..4).any(|_| balance.look(&[rps, rps]).is_some());
        assert!(!moves(499.0), "no thread is overloaded by this");
        assert!(moves(500.0));
        balance.moving = Some(ModelId(0));
        assert!(!(0..4).any(|_| balance.look(&[9_000.0, 9_000.0]).is_some()), "one at a time");
    }
}
