//! The scheduler's agents with generators for transports, before anything runs them: on threads
//! ([`super::harness`]), or step by step ([`super::stepped`]).

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use baton_core::{Gpu, GpuId, Nanos, SubclusterId};
use baton_scheduler::{HotPath, ModelCommand, RankCommand, RankPlace, SchedulerCounters};
use baton_topo::{Agent, Waker};

use super::generator::{FRONTEND, GPUS_PER_BACKEND, Generator, TOKEN, backend_of};
use super::traffic::Traffic;
use super::workload::Workload;

/// See the module documentation.
pub(super) struct Agents {
    pub(super) path: HotPath<Generator>,
    pub(super) counters: Arc<SchedulerCounters>,
    /// Set: the generators make no more requests.
    pub(super) quiet: Arc<AtomicBool>,
    /// What went through each generator.
    pub(super) traffic: Vec<Arc<Traffic>>,
}

impl Agents {
    /// With generators that make the requests up.
    pub(super) fn new(workload: &Workload) -> Self {
        let Ok(agents) = Self::with(workload, |thread, quiet, traffic| {
            Ok::<_, Infallible>(Generator::new(workload, thread, quiet, traffic))
        });
        agents
    }

    /// With what `generator` makes for each ModelThread.
    pub(super) fn with<E>(
        workload: &Workload,
        mut generator: impl FnMut(u32, Arc<AtomicBool>, Arc<Traffic>) -> Result<Generator, E>,
    ) -> Result<Self, E> {
        let threads = workload.shape.model_threads;
        let quiet = Arc::new(AtomicBool::new(false));
        let counters = Arc::new(SchedulerCounters::new(threads as usize));
        let traffic: Vec<Arc<Traffic>> = (0..threads).map(|_| Arc::default()).collect();
        let made = (0..).zip(&traffic);
        let transports = made
            .map(|(thread, seen)| generator(thread, Arc::clone(&quiet), Arc::clone(seen)))
            .collect::<Result<_, E>>()?;
        let path = HotPath::new(
            &workload.cluster(),
            transports,
            (RankPlace::Own, Waker::new(|| ())),
            &counters,
        );
        join_members(&path, workload.shape.gpus);
        Ok(Self { path, counters, quiet, traffic })
    }

    /// One pass of every ModelThread.
    pub(super) fn poll_model_threads(&mut self, now: Nanos) {
        for thread in &mut self.path.model_threads {
            thread.poll(now);
        }
    }
}

/// Plays the ControlThread: one frontend and all backends are members from the start.
fn join_members(path: &HotPath<Generator>, gpus: u32) {
    let all: Vec<Gpu> = (0..gpus).map(|id| Gpu { id: GpuId(id), life: 0 }).collect();
    let subcluster = SubclusterId(0);
    for thread in &path.model_commands {
        thread.send(ModelCommand::FrontendUp { frontend: FRONTEND, token: TOKEN });
        for gpus in all.chunks(GPUS_PER_BACKEND as usize) {
            let backend = backend_of(gpus[0].id.0);
            thread.send(ModelCommand::BackendUp { backend, token: TOKEN, gpus: gpus.to_vec() });
        }
        thread.send(ModelCommand::Serving { subcluster, gpus });
    }
    path.rank_commands.send(RankCommand::Join { gpus: all, subcluster, memory: Vec::new() });
}
