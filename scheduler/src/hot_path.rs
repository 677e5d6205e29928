//! The agents on a task's way and what connects them, without the ControlThread: whoever has the
//! command senders plays its part.

use std::sync::Arc;

use baton_core::{ModelConfig, NetworkDelay};
use baton_rdma::Transport;
use baton_topo::{Cluster, Idle, Waker};
use crossbeam_channel::Receiver;

use crate::link::{
    CommandSender, ModelCommand, Notice, NoticeSender, RankCommand, Sleeper, command_queue, link,
};
use crate::migration::load_board::LoadBoard;
use crate::migration::placement::at_start;
use crate::model_thread::{ModelThread, Resident};
use crate::process::SchedulerCounters;
use crate::rank_thread::{Home, RankThread};

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
    /// Where each model lives at first: the number of its ModelThread.
    pub homes: Vec<usize>,
    /// Slots that come and go.
    pub rank_commands: CommandSender<RankCommand>,
    /// What the agents have to say about members.
    pub notices: Receiver<Notice>,
}

impl<T: Transport> HotPath<T> {
    /// Spreads the cluster's models over as many ModelThreads as there are `transports`. `control`
    /// wakes whoever reads the notices.
    pub fn new(
        cluster: &Cluster,
        transports: Vec<T>,
        control: Waker,
        counters: &SchedulerCounters,
    ) -> Self {
        let homes = homes(cluster, transports.len());
        let (notice_sender, notices) = NoticeSender::new(control, transports.len());
        let load = Arc::new(LoadBoard::new(cluster.models.len()));
        let (sleeper, rank_waker) = Sleeper::new();
        let (mut model_threads, mut links, mut model_commands) =
            (Vec::new(), Vec::new(), Vec::new());
        for (number, transport) in transports.into_iter().enumerate() {
            let residents = residents(cluster, &homes, number);
            let (model_link, rank_link, commands) = link(
                cluster.models.len(),
                cluster.scheduler.idle == Idle::Park,
                transport.waker(),
                rank_waker.clone(),
                notice_sender.clone(),
            );
            model_threads.push(ModelThread::new(
                residents,
                cluster.models.len(),
                cluster.subclusters.len(),
                transport,
                model_link,
                Arc::clone(&load),
                Arc::clone(&counters.model_threads[number]),
            ));
            links.push(rank_link);
            model_commands.push(commands);
        }
        let (rank_commands, rank_inbox) = command_queue(rank_waker.clone());
        let rank = RankThread::new(
            &homes,
            cluster.subclusters.len() as u32,
            links,
            rank_inbox,
            notice_sender,
            (sleeper, rank_waker),
            Arc::clone(&counters.rank_thread),
        );
        let homes = homes.into_iter().map(|home| home.thread).collect();
        Self { rank, model_threads, model_commands, load, homes, rank_commands, notices }
    }
}

fn homes(cluster: &Cluster, threads: usize) -> Vec<Home> {
    let rates: Vec<Option<f64>> = cluster.models.iter().map(|model| model.expected_rps).collect();
    let place = |(thread, model): (usize, &baton_topo::ModelSpec)| Home {
        thread,
        subcluster: model.subcluster,
    };
    at_start(&rates, threads).into_iter().zip(&cluster.models).map(place).collect()
}

fn residents(cluster: &Cluster, homes: &[Home], thread: usize) -> Vec<Resident> {
    let network = NetworkDelay {
        ctrl: cluster.network.ctrl,
        data_per_task: cluster.network.data_per_task,
        response: cluster.network.response,
        jitter: cluster.network.jitter,
    };
    let policy = cluster.scheduler.policy;
    let resident = |model: &baton_topo::ModelSpec| Resident {
        config: ModelConfig {
            id: model.id,
            profile: model.profile.clone(),
            slo: model.slo,
            queue_capacity: model.queue_capacity,
            policy,
            prefer: cluster.scheduler.prefer,
            network,
        },
        subcluster: model.subcluster,
        quota: model.quota,
    };
    let lives_here = |model: &&baton_topo::ModelSpec| homes[model.id.0 as usize].thread == thread;
    cluster.models.iter().filter(lives_here).map(resident).collect()
}
