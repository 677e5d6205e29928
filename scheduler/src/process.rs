//! Putting the scheduler together: transports, threads, and the handle that stops them.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use baton_core::{Nanos, SubclusterId};
use baton_rdma::wire::Role;
use baton_rdma::{Credentials, CredentialsError, Identity, TcpConfig, TcpTransport, Transport};
use baton_topo::{
    Agent, Clock, Cluster, Fenced, Journal, JournalError, LeaseDeadline, Placement, Replayed,
    SharedThread, Waker,
};
use crossbeam_channel::{Receiver, Sender};

use crate::cache::CacheLimits;
use crate::catalog::Catalog;
use crate::commands::ModelCommand;
use crate::control::{CachedSubclusters, ControlParts, ControlThread, SlowWork};
use crate::counters::{ControlThreadCounters, ModelThreadCounters, RankThreadCounters};
use crate::hot_path::{HotPath, RankPlace};
use crate::limits::{CONNECTIONS_MAX, HOST_CONNECTIONS_MAX, MODEL_THREADS_MAX};
use crate::link::CommandSender;
use crate::metrics::SchedulerMetrics;
use crate::model_config::CommonConfig;
use crate::model_thread::ModelThread;
use crate::rank_thread::RankThread;
use crate::roster::Roster;

/// Why the scheduler could not start.
#[derive(Debug, thiserror::Error)]
pub enum SchedulerError {
    /// An address could not be bound.
    #[error(
        "cannot listen on {addr} ({source}); is another scheduler running, or the address not this host's?"
    )]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The files of `[tls]` cannot be used.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// The changes of former schedulers cannot be read.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Spawn(io::Error),
    /// The thread count is out of range.
    #[error("model_threads = {0}; it must be 1 to {MODEL_THREADS_MAX}")]
    ModelThreads(u32),
}

/// A running scheduler. Dropping it stops the threads without ceremony; prefer
/// [`SchedulerHandle::stop`].
#[derive(Debug)]
pub struct SchedulerHandle {
    addr: SocketAddr,
    models: Vec<String>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    /// Disconnected when the ModelThreads have ended, and when the ControlThread has.
    ended: [Receiver<()>; 2],
    model_threads: Vec<CommandSender<ModelCommand>>,
    control_shutdown: Option<Sender<()>>,
    wakers: Vec<Waker>,
    counters: Arc<SchedulerCounters>,
    metrics: SchedulerMetrics,
    lease_deadline: LeaseDeadline,
}

/// Everything the scheduler counts.
#[derive(Debug)]
pub struct SchedulerCounters {
    /// Per ModelThread.
    pub model_threads: Vec<Arc<ModelThreadCounters>>,
    /// The RankThread.
    pub rank_thread: Arc<RankThreadCounters>,
    /// The ControlThread.
    pub control_thread: Arc<ControlThreadCounters>,
}

impl SchedulerCounters {
    /// All zero, for as many ModelThreads.
    pub fn new(model_threads: usize) -> Self {
        Self {
            model_threads: (0..model_threads).map(|_| Arc::default()).collect(),
            rank_thread: Arc::default(),
            control_thread: Arc::default(),
        }
    }

    /// Names and values; those of the ModelThreads are summed.
    pub fn pairs(&self) -> Vec<(&'static str, u64)> {
        let mut threads = self.model_threads.iter().map(|thread| thread.pairs());
        let mut pairs = threads.next().unwrap_or_default();
        for other in threads {
            pairs.iter_mut().zip(other).for_each(|(sum, (_, value))| sum.1 += value);
        }
        pairs.extend(self.rank_thread.pairs());
        pairs.extend(self.control_thread.pairs());
        pairs
    }
}

/// How long [`SchedulerHandle::stop`] waits for outstanding batches, and for the farewell.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// Starts the scheduler of `cluster` and returns once it listens.
///
/// # Errors
/// An address is taken, the thread count is out of range, or the system has no more threads.
pub fn start(cluster: &Cluster, clock: Clock) -> Result<SchedulerHandle, SchedulerError> {
    start_within(cluster, clock, &LeaseDeadline::until(Nanos::MAX))
}

/// As [`start`], for as long as `lease_deadline` lasts: at its end every thread of the scheduler ends where it is,
/// and its connections break.
///
/// # Errors
/// As [`start`].
pub fn start_within(
    cluster: &Cluster,
    clock: Clock,
    lease_deadline: &LeaseDeadline,
) -> Result<SchedulerHandle, SchedulerError> {
    let spec = &cluster.scheduler;
    if !(1..=MODEL_THREADS_MAX).contains(&spec.model_threads) {
        return Err(SchedulerError::ModelThreads(spec.model_threads));
    }
    let journal = spec.journal.as_deref().map(Journal::open).transpose()?;
    let replayed = journal.as_ref().map(|journal| journal.replay(cluster));
    let cluster = replayed.as_ref().map_or(cluster, |replayed| &replayed.cluster);
    let tls = cluster.fabric.tls.as_ref();
    let credentials = tls.map(Credentials::load_and_warn).transpose()?;
    let bind = |addr, role, member| bind(addr, role, member, credentials.as_ref());
    let control = bind(spec.listen, Role::Control, 0)?;
    let any_port = SocketAddr::new(spec.listen.ip(), 0);
    let transports = (0..spec.model_threads)
        .map(|number| bind(any_port, Role::ModelThread, number))
        .collect::<Result<Vec<_>, _>>()?;
    let mut assembly = Assembly::new(cluster, control, transports);
    if let (Some(journal), Some(Replayed { tables, .. })) = (journal, &replayed) {
        assembly.control.keep_journal(journal, tables.clone());
    }
    assembly.launch(cluster, clock, lease_deadline)
}

fn bind(
    addr: SocketAddr,
    role: Role,
    member: u32,
    credentials: Option<&Credentials>,
) -> Result<TcpTransport, SchedulerError> {
    TcpTransport::bind_with(Some(addr), Identity { role, member }, bounds(), credentials)
        .map_err(|source| SchedulerError::Listen { addr, source })
}

/// Of each thread's connections.
fn bounds() -> TcpConfig {
    TcpConfig {
        connections_max: CONNECTIONS_MAX,
        host_connections_max: HOST_CONNECTIONS_MAX,
        ..TcpConfig::default()
    }
}

/// The agents of a scheduler, connected to one another and not running yet: to be given threads,
/// or stepped by hand.
pub struct Assembly<T> {
    /// The ControlThread's agent.
    pub control: ControlThread<T>,
    /// The RankThread's agent.
    pub rank: RankThread,
    /// The ModelThreads' agents.
    pub model_threads: Vec<ModelThread<T>>,
    commands: Vec<CommandSender<ModelCommand>>,
    /// `None` once the ControlThread is to end.
    control_shutdown: Option<Sender<()>>,
    counters: Arc<SchedulerCounters>,
    metrics: SchedulerMetrics,
}

fn cached(cluster: &Cluster) -> CachedSubclusters {
    let subclusters = (0..cluster.subclusters.len() as u32).map(SubclusterId);
    let smallest = subclusters.map(|id| cluster.smallest_weights_cache(id));
    let slots = CacheLimits::of(cluster).map_or(0, |limits| limits.slots);
    CachedSubclusters { smallest: smallest.collect(), slots }
}

impl<T: Transport> Assembly<T> {
    /// Spreads the cluster's models over as many ModelThreads as there are `transports`.
    pub fn new(cluster: &Cluster, control: T, transports: Vec<T>) -> Self {
        let counters = Arc::new(SchedulerCounters::new(transports.len()));
        let addrs: Vec<SocketAddr> = transports.iter().map(Transport::local_addr).collect();
        let wakers = (RankPlace::of(cluster), control.waker());
        let path = HotPath::new(cluster, transports, wakers, &counters);
        let (control_shutdown, shutdown) = crossbeam_channel::bounded(1);
        let (metrics, state_asks) = SchedulerMetrics::new(Arc::clone(&counters), control.waker());
        let epoch = Roster::default().token();
        let parts = ControlParts {
            catalog: Catalog::new(cluster, &addrs, &path.homes, epoch),
            common: CommonConfig::of(cluster),
            slow_work: SlowWork::InPlace,
            homes: path.homes,
            load: path.load,
            cached: cached(cluster),
            tasks: path.tasks,
            levels: path.levels,
            model_threads: path.model_commands.clone(),
            rank: path.rank_commands,
            notices: path.notices,
            notice_sender: path.notice_sender,
            state_asks,
            member_timeout: cluster.scheduler.member_timeout,
            shutdown,
            counters: Arc::clone(&counters.control_thread),
        };
        Self {
            control: ControlThread::new(control, parts),
            rank: path.rank,
            model_threads: path.model_threads,
            commands: path.model_commands,
            control_shutdown: Some(control_shutdown),
            counters,
            metrics,
        }
    }

    /// What the agents count.
    pub fn counters(&self) -> &Arc<SchedulerCounters> {
        &self.counters
    }

    /// What it shows to Prometheus. The caller must step the agents while another thread reads it.
    pub fn metrics(&self) -> &SchedulerMetrics {
        &self.metrics
    }

    /// The first step of an orderly end, as in [`SchedulerHandle::stop`]: ModelThreads give waiting tasks
    /// back, and have finished once no batch is outstanding. No member joins any more.
    pub fn stop_serving(&self) {
        begin_to_stop(self.control_shutdown.as_ref(), &self.commands);
    }

    /// The second step, when they have finished or it took too long: the ControlThread takes leave.
    pub fn take_leave(&mut self) {
        self.control_shutdown = None;
    }
}

/// The ControlThread learns it first: a client that is given a task back finds no scheduler here to join.
fn begin_to_stop(control: Option<&Sender<()>>, model_threads: &[CommandSender<ModelCommand>]) {
    if let Some(control) = control {
        // It has room for the only one.
        let _ = control.try_send(());
    }
    model_threads.iter().for_each(|thread| thread.send(ModelCommand::Shutdown));
}

impl Assembly<TcpTransport> {
    fn launch(
        mut self,
        cluster: &Cluster,
        clock: Clock,
        lease_deadline: &LeaseDeadline,
    ) -> Result<SchedulerHandle, SchedulerError> {
        self.control.do_slow_work(SlowWork::Aside);
        let (models_alive, models_ended) = crossbeam_channel::bounded(0);
        let (control_alive, control_ended) = crossbeam_channel::bounded(0);
        let mut handle = SchedulerHandle {
            addr: self.control.local_addr(),
            models: cluster.models.iter().map(|model| model.name.clone()).collect(),
            stop: Arc::new(AtomicBool::new(false)),
            threads: Vec::new(),
            ended: [models_ended, control_ended],
            model_threads: self.commands,
            control_shutdown: self.control_shutdown,
            wakers: Vec::new(),
            counters: self.counters,
            metrics: self.metrics,
            lease_deadline: lease_deadline.clone(),
        };
        let mut cores = cluster.scheduler.cores.iter().copied();
        let mut place =
            |name: String| Placement { name, core: cores.next(), idle: cluster.scheduler.idle };
        match RankPlace::of(cluster) {
            RankPlace::Own => {
                handle.spawn(self.rank, place("rank".into()), clock, None)?;
                for (number, thread) in self.model_threads.into_iter().enumerate() {
                    let alive = Some(models_alive.clone());
                    handle.spawn(thread, place(format!("model-{number}")), clock, alive)?;
                }
            }
            RankPlace::Shared => {
                let thread = self.model_threads.pop().expect("there is one");
                let both = SharedThread::new(thread, self.rank);
                handle.spawn(both, place("model-rank".into()), clock, Some(models_alive))?;
            }
        }
        handle.spawn(self.control, place("control".into()), clock, Some(control_alive))?;
        Ok(handle)
    }
}

impl SchedulerHandle {
    /// Where members join.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The models that it served at its start: those of the cluster file, and the changes of the journal.
    pub fn models(&self) -> &[String] {
        &self.models
    }

    /// What the scheduler counts.
    pub fn counters(&self) -> &SchedulerCounters {
        &self.counters
    }

    /// What it shows to Prometheus.
    pub fn metrics(&self) -> &SchedulerMetrics {
        &self.metrics
    }

    /// True once one of its threads has ended unasked: it has panicked, which the log says. The
    /// others cannot serve without it. Members join the next scheduler when this process ends.
    pub fn has_died(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Gives every waiting task back (`shutdown`: its client keeps it for the next scheduler), lets backends
    /// finish what they have, tells every member, and stops the threads. Takes two seconds at most for either step.
    pub fn stop(mut self) {
        let [model_threads, control] = self.ended.clone();
        begin_to_stop(self.control_shutdown.as_ref(), &self.model_threads);
        // Nothing is ever sent; the disconnection is the news.
        let _ = model_threads.recv_timeout(STOP_TIMEOUT);
        drop(self.control_shutdown.take());
        self.wakers.iter().for_each(Waker::wake);
        let _ = control.recv_timeout(STOP_TIMEOUT);
        self.halt();
    }

    fn spawn(
        &mut self,
        agent: impl Agent + Send + 'static,
        placement: Placement,
        clock: Clock,
        alive: Option<Sender<()>>,
    ) -> Result<(), SchedulerError> {
        let mut agent = Fenced::new(agent, self.lease_deadline.clone());
        self.wakers.push(agent.waker());
        let stop = Arc::clone(&self.stop);
        let builder = std::thread::Builder::new().name(placement.name.clone());
        let body = move || {
            baton_topo::run(&mut agent, clock, &placement, &stop);
            drop(alive);
        };
        self.threads.push(builder.spawn(body).map_err(SchedulerError::Spawn)?);
        Ok(())
    }

    fn halt(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.wakers.iter().for_each(Waker::wake);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a scheduler thread panicked; please report this");
            }
        }
    }
}

impl Drop for SchedulerHandle {
    fn drop(&mut self) {
        self.halt();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{BACKENDS_MAX, FRONTENDS_MAX};

    #[test]
    fn every_member_can_connect_and_no_host_takes_more_than_half_of_the_connections() {
        let bounds = bounds();
        assert!(bounds.connections_max >= (FRONTENDS_MAX + BACKENDS_MAX) as usize);
        assert_eq!(bounds.host_connections_max, bounds.connections_max / 2);
    }
}
