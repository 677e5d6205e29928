//! The agents on their threads, and the phases of a run: warm up, measure, run dry.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use baton_core::Nanos;
use baton_rdma::Transport as _;
use baton_scheduler::{ModelThread, RankThread};
use baton_topo::{Agent, Clock, Placement, park_thread, run};

use super::SchedError;
use super::agents::Agents;
use super::counts::{ModelCounts, RankCounts};
use super::generator::Generator;
use super::layout::Layout;
use super::memory::{Memory, MemoryMeter};
use super::metered::{Metered, Usage};
use super::sender::Sender;
use super::traffic::{self, Traffic, TrafficCounts};
use super::workload::Workload;
use crate::machine::StealMeter;

/// Agents ready to run.
pub(super) struct Harness {
    agents: Agents,
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
        Self { agents: Agents::new(workload), senders: Vec::new() }
    }

    /// Requests come over TCP, from a sender for each ModelThread.
    ///
    /// # Errors
    /// The system has no more sockets.
    pub(super) fn over_tcp(workload: &Workload) -> Result<Self, SchedError> {
        let mut senders = Vec::new();
        let agents = Agents::with(workload, |thread, quiet, traffic| {
            let transport = Generator::over_tcp(workload, thread, Arc::clone(&traffic))?;
            let addr = transport.local_addr();
            senders.push(Sender::new(workload, thread, addr, quiet, traffic)?);
            Ok(transport)
        });
        Ok(Self { agents: agents.map_err(SchedError::Socket)?, senders })
    }

    /// Runs the agents; `measure` is the length of the measured phase.
    pub(super) fn run(self, measure: Nanos) -> Result<Outcome, SchedError> {
        let (clock, phases) = (Clock::start(), Phases::default());
        let Agents { path, counters, quiet, traffic } = self.agents;
        let layout = Layout::of(path.model_threads.len(), self.senders.len());
        let mut numbers = 0..;
        let mut next_place = move || layout.place(numbers.next().expect("there is no end of them"));
        let of_rank = Arc::clone(&counters.rank_thread);
        let count = move |_: &RankThread| RankCounts::read(&of_rank);
        let rank = spawn(path.rank, clock, next_place(), phases.clone(), count)?;
        let mut model_threads = Vec::new();
        for (agent, counters) in path.model_threads.into_iter().zip(&counters.model_threads) {
            let counters = Arc::clone(counters);
            let count = move |agent: &ModelThread<Generator>| ModelCounts::read(agent, &counters);
            model_threads.push(spawn(agent, clock, next_place(), phases.clone(), count)?);
        }
        let send = |sender| spawn(sender, clock, next_place(), phases.clone(), Sender::sent);
        let senders: Vec<_> = self.senders.into_iter().map(send).collect::<Result<_, _>>()?;
        let measured = conduct(clock, &phases, &quiet, &traffic, measure);
        let model_threads = join_all(model_threads)?;
        let rank = join(rank)?;
        let senders = join_all(senders)?;
        let mut with_traffic = model_threads.iter().zip(&traffic);
        with_traffic.try_for_each(|(thread, seen)| check_conserved(thread, seen))?;
        Ok(Outcome {
            elapsed: measured.elapsed,
            model_threads: model_threads.into_iter().map(|f| f.used(ModelCounts::since)).collect(),
            rank: rank.used(RankCounts::since),
            senders: senders.into_iter().map(|f| f.used(|after, before| after - before)).collect(),
            pinned: layout == Layout::Own,
            steal: measured.steal,
            traffic: measured.traffic,
            memory: measured.memory,
        })
    }
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

fn join_all<A, C>(threads: Vec<Running<A, C>>) -> Result<Vec<Finished<A, C>>, SchedError> {
    threads.into_iter().map(join).collect()
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
    /// In the measured phase.
    fn used(self, since: impl Fn(C, &C) -> C) -> ThreadUsage<C> {
        let [before, after, _] = self.counts;
        let counts = since(after, &before);
        ThreadUsage { usage: self.usage, counts }
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
