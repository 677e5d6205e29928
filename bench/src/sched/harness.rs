//! The agents on their threads, and the phases of a run: warm up, measure, run dry.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use baton_core::{Gpu, GpuId, Nanos, SubclusterId};
use baton_rdma::Transport as _;
use baton_scheduler::{
    HotPath, ModelCommand, ModelThread, RankCommand, RankThread, SchedulerCounters,
};
use baton_topo::{Agent, Clock, Placement, Waker, park_thread, run};

use super::SchedError;
use super::generator::{FRONTEND, GPUS_PER_BACKEND, Generator, TOKEN, backend_of};
use super::layout::Layout;
use super::memory::{Memory, MemoryMeter};
use super::metered::{Metered, Usage};
use super::sender::Sender;
use super::traffic::{self, Traffic, TrafficCounts};
use super::workload::Workload;
use crate::machine::StealMeter;
use hdrhistogram::Histogram;

/// Agents ready to run.
pub(super) struct Harness {
    path: HotPath<Generator>,
    counters: Arc<SchedulerCounters>,
    quiet: Arc<AtomicBool>,
    traffic: Vec<Arc<Traffic>>,
    /// Without them the transports make the requests up.
    senders: Vec<Sender>,
}

/// What a run came to.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) elapsed: Nanos,
    pub(super) model_threads: Vec<ThreadUsage<ModelCounts>>,
    pub(super) rank: ThreadUsage<RankCounts>,
    /// With the requests they sent.
    pub(super) senders: Vec<ThreadUsage<u64>>,
    /// The agents had a core each and spun on it.
    pub(super) pinned: bool,
    pub(super) steal: Option<f64>,
    pub(super) traffic: TrafficCounts,
    pub(super) memory: Option<Memory>,
}

/// One thread's share of the measured phase.
#[derive(Debug)]
pub(super) struct ThreadUsage<C> {
    pub(super) usage: Usage,
    pub(super) counts: C,
}

/// What a ModelThread did. Counts since start, or between two moments.
#[derive(Clone, Debug)]
pub(super) struct ModelCounts {
    pub(super) requests: u64,
    pub(super) batches: u64,
    pub(super) planned: u64,
    pub(super) dropped: u64,
    pub(super) queue_full: u64,
    pub(super) deadline_passed: u64,
    pub(super) undelivered: u64,
    pub(super) delays: Histogram<u64>,
}

/// What the RankThread did.
#[derive(Clone, Copy, Debug)]
pub(super) struct RankCounts {
    pub(super) candidates: u64,
    pub(super) grants: u64,
}

/// The switches of a run; set once each, in this order.
#[derive(Clone, Default)]
struct Phases {
    warm: Arc<AtomicBool>,
    measured: Arc<AtomicBool>,
    dry: Arc<AtomicBool>,
}

const WARM_UP: Nanos = Nanos::from_millis(150);
/// Longer than the SLO: whatever waits is planned or dropped by then.
const RUN_DRY: Nanos = Nanos::from_millis(150);

impl Harness {
    pub(super) fn new(workload: &Workload) -> Self {
        let quiet = Arc::new(AtomicBool::new(false));
        let threads = workload.shape.model_threads;
        let counters = Arc::new(SchedulerCounters::new(threads as usize));
        let traffic: Vec<Arc<Traffic>> = (0..threads).map(|_| Arc::default()).collect();
        let generator = |(thread, traffic): (u32, &Arc<Traffic>)| {
            Generator::new(workload, thread, Arc::clone(&quiet), Arc::clone(traffic))
        };
        let transports = (0..).zip(&traffic).map(generator).collect();
        Self::of(workload, transports, counters, quiet, traffic, Vec::new())
    }

    /// Requests come over TCP, from a sender for each ModelThread.
    ///
    /// # Errors
    /// The system has no more sockets.
    pub(super) fn over_tcp(workload: &Workload) -> Result<Self, SchedError> {
        let quiet = Arc::new(AtomicBool::new(false));
        let threads = workload.shape.model_threads;
        let counters = Arc::new(SchedulerCounters::new(threads as usize));
        let (mut transports, mut senders, mut traffic) = (Vec::new(), Vec::new(), Vec::new());
        for thread in 0..threads {
            let seen: Arc<Traffic> = Arc::default();
            let transport = Generator::over_tcp(workload, thread, Arc::clone(&seen));
            let transport = transport.map_err(SchedError::Socket)?;
            let addr = transport.local_addr();
            let sender = Sender::new(workload, thread, addr, Arc::clone(&quiet), Arc::clone(&seen));
            senders.push(sender.map_err(SchedError::Socket)?);
            transports.push(transport);
            traffic.push(seen);
        }
        Ok(Self::of(workload, transports, counters, quiet, traffic, senders))
    }

    fn of(
        workload: &Workload,
        transports: Vec<Generator>,
        counters: Arc<SchedulerCounters>,
        quiet: Arc<AtomicBool>,
        traffic: Vec<Arc<Traffic>>,
        senders: Vec<Sender>,
    ) -> Self {
        let path = HotPath::new(&workload.cluster(), transports, Waker::new(|| ()), &counters);
        join_members(&path, workload.shape.gpus);
        Self { path, counters, quiet, traffic, senders }
    }

    /// Runs the agents; `measure` is the length of the measured phase.
    pub(super) fn run(self, measure: Nanos) -> Result<Outcome, SchedError> {
        let (clock, phases) = (Clock::start(), Phases::default());
        let layout = Layout::of(self.path.model_threads.len(), self.senders.len());
        let mut numbers = 0..;
        let mut next_place = move || layout.place(numbers.next().expect("there is no end of them"));
        let counters = Arc::clone(&self.counters.rank_thread);
        let count = move |_: &RankThread| RankCounts {
            candidates: counters.candidates.get() + counters.superseded.get(),
            grants: counters.grants.get(),
        };
        let rank = spawn(self.path.rank, clock, next_place(), phases.clone(), count)?;
        let mut model_threads = Vec::new();
        for (agent, counters) in
            self.path.model_threads.into_iter().zip(&self.counters.model_threads)
        {
            let counters = Arc::clone(counters);
            let count = move |agent: &ModelThread<Generator>| ModelCounts::read(agent, &counters);
            model_threads.push(spawn(agent, clock, next_place(), phases.clone(), count)?);
        }
        let send = |sender| spawn(sender, clock, next_place(), phases.clone(), Sender::sent);
        let senders: Vec<_> = self.senders.into_iter().map(send).collect::<Result<_, _>>()?;
        let measured = conduct(clock, &phases, &self.quiet, &self.traffic, measure);
        let laps: Vec<Finished<_, _>> =
            model_threads.into_iter().map(join).collect::<Result<_, _>>()?;
        let rank = join(rank)?;
        let senders: Vec<Finished<_, _>> =
            senders.into_iter().map(join).collect::<Result<_, _>>()?;
        laps.iter()
            .zip(&self.traffic)
            .try_for_each(|(thread, seen)| check_conserved(thread, seen))?;
        Ok(Outcome {
            elapsed: measured.elapsed,
            model_threads: laps.into_iter().map(|f| f.thread(ModelCounts::since)).collect(),
            rank: rank.thread(RankCounts::since),
            senders: senders
                .into_iter()
                .map(|f| f.thread(|after, before| after - before))
                .collect(),
            pinned: layout == Layout::Own,
            steal: measured.steal,
            traffic: measured.traffic,
            memory: measured.memory,
        })
    }
}

/// Plays the ControlThread: one frontend and all backends are members from the start.
pub(super) fn join_members(path: &HotPath<Generator>, gpus: u32) {
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
    path.rank_commands.send(RankCommand::Join { gpus: all, subcluster });
}

/// What is seen of a measured phase from outside the threads.
struct Measured {
    elapsed: Nanos,
    steal: Option<f64>,
    traffic: TrafficCounts,
    memory: Option<Memory>,
}

/// Throws the switches.
fn conduct(
    clock: Clock,
    phases: &Phases,
    quiet: &AtomicBool,
    generators: &[Arc<Traffic>],
    measure: Nanos,
) -> Measured {
    wait(clock, WARM_UP);
    let (start, meter, seen) = (clock.now(), StealMeter::start(), traffic::read(generators));
    phases.warm.store(true, Ordering::Relaxed);
    let mut memory = MemoryMeter::start();
    for _ in 0..MEMORY_READINGS {
        wait(clock, Nanos(measure.0 / MEMORY_READINGS));
        memory.read();
    }
    phases.measured.store(true, Ordering::Relaxed);
    let (elapsed, traffic) = (clock.now() - start, traffic::read(generators).since(seen));
    let steal = meter.fraction();
    quiet.store(true, Ordering::Relaxed);
    wait(clock, RUN_DRY);
    phases.dry.store(true, Ordering::Relaxed);
    Measured { elapsed, steal, traffic, memory: memory.finish(elapsed) }
}

/// Readings of the process's memory in the measured phase.
const MEMORY_READINGS: u64 = 20;

fn wait(clock: Clock, span: Nanos) {
    let end = clock.now() + span;
    while clock.now() < end {
        park_thread(Some(end - clock.now()));
    }
}

/// What a thread returns: its agent, and the counts at the start and the end of the measured
/// phase and at the very end.
struct Finished<A, C> {
    agent: A,
    usage: Usage,
    counts: [C; 3],
}

type Running<A, C> = JoinHandle<Finished<A, C>>;

fn spawn<A: Agent + Send + 'static, C: Send + 'static>(
    agent: A,
    clock: Clock,
    placement: Placement,
    phases: Phases,
    count: impl Fn(&A) -> C + Send + 'static,
) -> Result<Running<A, C>, SchedError> {
    let body = move || {
        let mut agent = Metered::new(agent);
        run(&mut agent, clock, &placement, &phases.warm);
        let (before, counts_before) = (agent.read(), count(&agent.agent));
        run(&mut agent, clock, &placement, &phases.measured);
        let (usage, counts_after) = (agent.read().since(before), count(&agent.agent));
        run(&mut agent, clock, &placement, &phases.dry);
        let counts = [counts_before, counts_after, count(&agent.agent)];
        Finished { agent: agent.agent, usage, counts }
    };
    std::thread::Builder::new().spawn(body).map_err(SchedError::Spawn)
}

fn join<A, C>(thread: Running<A, C>) -> Result<Finished<A, C>, SchedError> {
    thread.join().map_err(|_| SchedError::Panicked)
}

/// Every task that came in, or came back, was planned, has ended, or still waits; and none had two
/// outcomes.
fn check_conserved(
    thread: &Finished<ModelThread<Generator>, ModelCounts>,
    seen: &Traffic,
) -> Result<(), SchedError> {
    let [_, _, end] = &thread.counts;
    let waiting = thread.agent.waiting() as u64;
    let (submitted, accounted) =
        (end.requests + seen.given_back.get(), end.planned + end.dropped + waiting);
    if submitted != accounted {
        return Err(SchedError::Lost { submitted, accounted });
    }
    let (violations, open) = (seen.violations.get(), seen.open.get());
    if violations > 0 || open != waiting {
        return Err(SchedError::Oracle { violations, open, waiting });
    }
    Ok(())
}

impl<A, C> Finished<A, C> {
    fn thread(self, since: impl Fn(C, &C) -> C) -> ThreadUsage<C> {
        let [before, after, _] = self.counts;
        let counts = since(after, &before);
        ThreadUsage { usage: self.usage, counts }
    }
}

impl ModelCounts {
    pub(super) fn read(
        agent: &ModelThread<Generator>,
        counters: &baton_scheduler::ModelThreadCounters,
    ) -> Self {
        let dropped = counters.dropped_deadline.get()
            + counters.dropped_window.get()
            + counters.dropped_deadline_passed.get()
            + counters.dropped_queue_full.get()
            + counters.dropped_share.get();
        Self {
            requests: counters.submitted.get(),
            batches: counters.plans.get(),
            planned: counters.planned_tasks.get(),
            dropped,
            queue_full: counters.dropped_queue_full.get(),
            deadline_passed: counters.dropped_deadline_passed.get(),
            undelivered: counters.plans_undelivered.get(),
            delays: agent.dispatch_delays().clone(),
        }
    }

    fn since(mut self, earlier: &Self) -> Self {
        self.requests -= earlier.requests;
        self.batches -= earlier.batches;
        self.planned -= earlier.planned;
        self.dropped -= earlier.dropped;
        self.queue_full -= earlier.queue_full;
        self.deadline_passed -= earlier.deadline_passed;
        self.undelivered -= earlier.undelivered;
        let subtracted = self.delays.subtract(&earlier.delays);
        subtracted.expect("what was counted earlier is counted still");
        self
    }
}

impl RankCounts {
    fn since(self, earlier: &Self) -> Self {
        Self {
            candidates: self.candidates - earlier.candidates,
            grants: self.grants - earlier.grants,
        }
    }
}

impl Outcome {
    pub(super) fn total(&self, of: impl Fn(&ModelCounts) -> u64) -> u64 {
        self.model_threads.iter().map(|thread| of(&thread.counts)).sum()
    }

    pub(super) fn requests_per_s(&self) -> f64 {
        self.per_s(self.total(|counts| counts.requests))
    }

    pub(super) fn per_s(&self, count: u64) -> f64 {
        count as f64 / self.elapsed.0 as f64 * 1e9
    }

    /// Times the kernel took a thread's core away, in sum.
    pub(super) fn interruptions(&self) -> u64 {
        let models: u64 =
            self.model_threads.iter().map(|thread| thread.usage.interruptions()).sum();
        models + self.rank.usage.interruptions()
    }

    pub(super) fn mean_batch(&self) -> f64 {
        self.total(|counts| counts.planned) as f64
            / self.total(|counts| counts.batches).max(1) as f64
    }
}
