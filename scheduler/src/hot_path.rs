//! The agents on a task's way and what connects them, without the ControlThread: the owner of the
//! command senders plays its part.

use std::sync::Arc;

use baton_core::SubclusterId;
use baton_rdma::Transport;
use baton_topo::{Cluster, Idle, ModelSpec, Waker};
use crossbeam_channel::Receiver;

use crate::cache::levels::CacheLevels;
use crate::cache::link::{CacheLink, cache_links};
use crate::cache::{Cache, CacheLimits};
use crate::commands::{ModelCommand, Notice, RankCommand};
use crate::link::{CommandSender, NoticeSender, Sleeper, command_queue, link};
use crate::migration::load_board::LoadBoard;
use crate::migration::placement::at_start;
use crate::model_config::CommonConfig;
use crate::model_thread::{ModelThread, Resident};
use crate::process::SchedulerCounters;
use crate::rank_thread::{Home, RankThread};
use crate::task_board::{TaskBoard, TaskBoards};

/// ModelThreads and RankThread, connected and not running yet.
pub struct HotPath<T> {
    /// The RankThread's agent.
    pub rank: RankThread,
    /// The ModelThreads' agents.
    pub model_threads: Vec<ModelThread<T>>,
    /// Membership and shutdown, per ModelThread.
    pub model_commands: Vec<CommandSender<ModelCommand>>,
    /// What the ModelThreads report on being asked: requests per model.
    pub load: Arc<LoadBoard>,
    /// What has become of tasks, on each ModelThread.
    pub tasks: TaskBoards,
    /// How caches of weights fare; `None`: there are none.
    pub(crate) levels: Option<Arc<CacheLevels>>,
    /// Where each model lives at first: the number of its ModelThread.
    pub homes: Vec<usize>,
    /// Slots that come and go.
    pub rank_commands: CommandSender<RankCommand>,
    /// What the agents have to say about members and models.
    pub notices: Receiver<Notice>,
    /// The other end of it.
    pub notice_sender: NoticeSender,
}

/// Which thread the RankThread's agent runs on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RankPlace {
    /// One of its own.
    Own,
    /// That of the only ModelThread: neither has to wake the other.
    Shared,
}

impl RankPlace {
    /// Threads that sleep without work spend more on waking one another than on their work. Several ModelThreads, a thread
    /// that polls and cores that the operator has chosen are reasons for a thread of its own.
    pub fn of(cluster: &Cluster) -> Self {
        let spec = &cluster.scheduler;
        let is_small = spec.model_threads == 1 && spec.cores.is_empty();
        if is_small && is_sleepy(cluster) { Self::Shared } else { Self::Own }
    }

    /// What the RankThread's agent sleeps on, and what wakes it.
    fn sleep<T: Transport>(self, transports: &[T]) -> (Sleeper, Waker) {
        let (sleeper, waker) = Sleeper::new();
        match self {
            Self::Own => (sleeper, waker),
            Self::Shared => (sleeper, transports[0].waker()),
        }
    }
}

impl<T: Transport> HotPath<T> {
    /// Spreads the cluster's models over as many ModelThreads as there are `transports`. `control`
    /// wakes the reader of the notices.
    pub fn new(
        cluster: &Cluster,
        transports: Vec<T>,
        (rank_place, control): (RankPlace, Waker),
        counters: &SchedulerCounters,
    ) -> Self {
        let homes = homes(cluster, transports.len());
        let (models, threads) = (homes.len(), transports.len());
        let (notice_sender, notices) = NoticeSender::new(control, threads, models);
        let (load, boards) = boards(models, threads);
        let (sleeper, rank_waker) = rank_place.sleep(&transports);
        let (mut model_threads, mut links, mut model_commands) = (vec![], vec![], vec![]);
        let sizes = (models, cluster.subclusters.len());
        let (cache, mut cache_links) = cache(cluster, models, threads);
        for (number, transport) in transports.into_iter().enumerate() {
            let wakers = (transport.waker(), rank_waker.clone());
            let (model_link, rank_link, commands) =
                link(models, is_sleepy(cluster), wakers, notice_sender.clone(), cache_links.next());
            let residents = residents(cluster, &homes, number);
            let boards = (Arc::clone(&load), Arc::clone(&boards[number]));
            let counters = Arc::clone(&counters.model_threads[number]);
            let thread =
                ModelThread::new(residents, sizes, transport, model_link, boards, counters);
            model_threads.push(thread);
            links.push(rank_link);
            model_commands.push(commands);
        }
        let (rank_commands, rank_inbox) = command_queue(rank_waker.clone());
        let rank = RankThread::new(
            (&homes, sizes.1 as u32),
            links,
            rank_inbox,
            notice_sender.clone(),
            (sleeper, rank_waker),
            cache,
            Arc::clone(&counters.rank_thread),
        );
        Self {
            levels: rank.cache_levels(),
            rank,
            model_threads,
            model_commands,
            load,
            tasks: TaskBoards::new(boards),
            homes: homes.into_iter().map(|home| home.thread).collect(),
            rank_commands,
            notices,
            notice_sender,
        }
    }
}

fn is_sleepy(cluster: &Cluster) -> bool {
    cluster.scheduler.idle == Idle::Park
}

/// The weights of models, if backends have not room for all of them, and the ModelThreads' ends.
fn cache(
    cluster: &Cluster,
    models: usize,
    threads: usize,
) -> ((Option<Cache>, u32), impl Iterator<Item = CacheLink>) {
    let limits = CacheLimits::of(cluster);
    let made = limits.map(|limits| {
        let (ends, links) = cache_links(threads, models, limits.slots as usize);
        (Cache::new(cluster, limits, models, ends), links)
    });
    let (cache, links) = made.unzip();
    ((cache, limits.map_or(0, |limits| limits.copies)), links.into_iter().flatten())
}

/// What each model is asked for, and what has become of tasks on each ModelThread.
fn boards(models: usize, threads: usize) -> (Arc<LoadBoard>, Vec<Arc<TaskBoard>>) {
    let boards = (0..threads).map(|_| Arc::new(TaskBoard::new(models)));
    (Arc::new(LoadBoard::new(models)), boards.collect())
}

fn homes(cluster: &Cluster, threads: usize) -> Vec<Home> {
    let rates: Vec<Option<f64>> = cluster.models.iter().map(|model| model.expected_rps).collect();
    let place =
        |(thread, model): (usize, &ModelSpec)| Home { thread, subcluster: model.subcluster };
    let mut homes: Vec<Home> =
        at_start(&rates, threads).into_iter().zip(&cluster.models).map(place).collect();
    // Numbers that no model has yet.
    let vacant = Home { thread: 0, subcluster: SubclusterId(0) };
    homes.resize(cluster.models_max() as usize, vacant);
    homes
}

fn residents(cluster: &Cluster, homes: &[Home], thread: usize) -> Vec<Resident> {
    let common = CommonConfig::of(cluster);
    let lives_here = |model: &&ModelSpec| homes[model.id.0 as usize].thread == thread;
    cluster.models.iter().filter(lives_here).map(|model| common.resident(model)).collect()
}
