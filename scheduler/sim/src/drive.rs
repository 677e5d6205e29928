//! The event loop: advances virtual time to whatever happens next.

use baton_core::{Nanos, Request, TaskId};

use crate::arrivals::{Arrivals, Arrived};
use crate::cluster::{Cluster, Finished, Lost};
use crate::faults::{GpuChange, GpuEvent};
use crate::loaders::LoadEnd;

/// A policy under test: hears of tasks, ends of batches and time, and gives batches to the cluster.
pub(crate) trait Scheduler {
    /// The run begins.
    fn begin(&mut self, _cluster: &mut Cluster) {}
    /// A task arrived for a model.
    fn on_arrival(&mut self, now: Nanos, model: u32, request: Request, cluster: &mut Cluster);
    /// A GPU slot ended a batch.
    fn on_finished(&mut self, now: Nanos, finished: Finished, cluster: &mut Cluster);
    /// A LOAD has ended, or was not begun.
    fn on_loaded(&mut self, _now: Nanos, _load: LoadEnd, _cluster: &mut Cluster) {}
    /// A GPU slot is gone, and these batches with it: their tasks wait again, or end.
    fn on_gpu_loss(&mut self, now: Nanos, gpu: u32, lost: Vec<Lost>, cluster: &mut Cluster);
    /// An idle GPU slot has come.
    fn on_gpu_join(&mut self, now: Nanos, gpu: u32, cluster: &mut Cluster);
    /// GPUs that the traffic of the last seconds needs, by a scheduler that reckons it.
    fn gpus_needed(&self, _now: Nanos) -> Option<u32> {
        None
    }
    /// When [`Scheduler::on_timer`] must be called; [`Nanos::MAX`] while nothing is pending.
    fn next_timer(&self) -> Nanos;
    /// Does everything that is due; what it leaves pending lies after `now`.
    fn on_timer(&mut self, now: Nanos, cluster: &mut Cluster);
}

/// Runs until nothing is left to happen, or the tally is decided. At one moment batches end first, then LOADs,
/// then slots leave and come, tasks arrive, and timers come last. A task's id is its arrival time:
/// what its latency is counted from, without a table of tasks.
pub(crate) fn drive(
    scheduler: &mut impl Scheduler,
    arrivals: &mut Arrivals,
    mut gpu_events: &[GpuEvent],
    cluster: &mut Cluster,
) {
    scheduler.begin(cluster);
    loop {
        let (end, arrival, timer) = (cluster.next_end(), arrivals.due(), scheduler.next_timer());
        let gpu_event = gpu_events.first().map_or(Nanos::MAX, |event| event.at);
        let load = cluster.next_load();
        let now = end.min(arrival).min(timer).min(gpu_event).min(load);
        if now == Nanos::MAX || cluster.tally().decided {
            return;
        }
        if end == now {
            let finished = cluster.take_ended().expect("a batch ends now");
            scheduler.on_finished(now, finished, cluster);
        } else if load == now {
            let load = cluster.take_loaded(now).expect("a LOAD ends now");
            scheduler.on_loaded(now, load, cluster);
        } else if gpu_event == now {
            let event = gpu_events.split_off_first().expect("a slot changes now");
            change(scheduler, *event, cluster);
        } else if arrival == now {
            let Arrived { model, deadline, .. } = arrivals.take().expect("a task arrives now");
            let accuracy_min = cluster.accuracy_min(model);
            let request = Request { accuracy_min, ..Request::new(TaskId(now.0), deadline) };
            cluster.submitted(model, request.task);
            scheduler.on_arrival(now, model, request, cluster);
        } else {
            scheduler.on_timer(now, cluster);
        }
        cluster.take_again().for_each(|(model, at)| arrivals.again(model, at));
    }
}

fn change(scheduler: &mut impl Scheduler, event: GpuEvent, cluster: &mut Cluster) {
    let GpuEvent { at, gpu, change } = event;
    match change {
        GpuChange::Loss => {
            let lost = cluster.lose(at, gpu);
            scheduler.on_gpu_loss(at, gpu, lost, cluster);
        }
        GpuChange::Join => scheduler.on_gpu_join(at, gpu, cluster),
    }
}
