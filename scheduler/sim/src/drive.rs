//! The event loop: advances virtual time to whatever happens next.

use baton_core::{Nanos, Request, TaskId};

use crate::arrivals::Arrivals;
use crate::cluster::{Cluster, Finished};

/// A policy under test: hears of tasks, ends of batches and time, and gives batches to the cluster.
pub(crate) trait Scheduler {
    /// A task arrived for a model.
    fn on_arrival(&mut self, now: Nanos, model: u32, request: Request, cluster: &mut Cluster);
    /// A GPU slot ended a batch.
    fn on_finished(&mut self, now: Nanos, finished: Finished, cluster: &mut Cluster);
    /// When [`Scheduler::on_timer`] must be called; [`Nanos::MAX`] while nothing is pending.
    fn next_timer(&self) -> Nanos;
    /// Does everything that is due; what it leaves pending lies after `now`.
    fn on_timer(&mut self, now: Nanos, cluster: &mut Cluster);
}

/// Runs until nothing is left to happen. At one moment batches end before tasks arrive, and timers
/// come last. `slos[m]` is added to the arrival of a task of model m. A task's id is its arrival
/// time: what its latency is counted from, without a table of tasks.
pub(crate) fn drive(
    scheduler: &mut impl Scheduler,
    arrivals: &mut Arrivals,
    slos: &[Nanos],
    cluster: &mut Cluster,
) {
    loop {
        let (end, arrival, timer) = (cluster.next_end(), arrivals.due(), scheduler.next_timer());
        let now = end.min(arrival).min(timer);
        if now == Nanos::MAX {
            return;
        }
        if end == now {
            let finished = cluster.take_ended().expect("a batch ends now");
            scheduler.on_finished(now, finished, cluster);
        } else if arrival == now {
            let (_, model) = arrivals.take().expect("a task arrives now");
            let request = Request { task: TaskId(now.0), deadline: now + slos[model as usize] };
            cluster.tally().submitted(model, request.task);
            scheduler.on_arrival(now, model, request, cluster);
        } else {
            scheduler.on_timer(now, cluster);
        }
    }
}
