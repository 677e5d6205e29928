//! The agents on a task's way and what connects them, without the ControlThread: whoever has the
//! command senders plays its part.

use std::sync::Arc;

use baton_core::{ModelConfig, NetworkDelay, Policy, Prefer, SubclusterId};
use baton_rdma::Transport;
use baton_topo::{Cluster, Idle, ModelSpec, NetworkSpec, SchedulerSpec, Waker};
use crossbeam_channel::Receiver;

use crate::commands::{ModelCommand, Notice, RankCommand};
use crate::link::{CommandSender, NoticeSender, Sleeper, command_queue, link};
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
    /// What the agents have to say about members and models.
    pub notices: Receiver<Notice>,
    /// The other end of it.
    pub notice_sender: NoticeSender,
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
        let models = homes.len();
        let (notice_sender, notices) = NoticeSender::new(control, transports.len(), models);
        let load = Arc::new(LoadBoard::new(models));
        let (sleeper, rank_waker) = Sleeper::new();
        let (mut model_threads, mut links, mut model_commands) =
            (Vec::new(), Vec::new(), Vec::new());
        for (number, transport) in transports.into_iter().enumerate() {
            let residents = residents(cluster, &homes, number);
            let (model_link, rank_link, commands) = link(
                models,
                cluster.scheduler.idle == Idle::Park,
                transport.waker(),
                rank_waker.clone(),
                notice_sender.clone(),
            );
            model_threads.push(ModelThread::new(
                residents,
                models,
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
            notice_sender.clone(),
            (sleeper, rank_waker),
            Arc::clone(&counters.rank_thread),
        );
        let homes = homes.into_iter().map(|home| home.thread).collect();
        Self {
            rank,
            model_threads,
            model_commands,
            load,
            homes,
            rank_commands,
            notices,
            notice_sender,
        }
    }
}

/// What every model's configuration has in common.
#[derive(Clone, Debug)]
pub struct CommonConfig {
    policy: Policy,
    prefer: Prefer,
    network: NetworkSpec,
}

impl CommonConfig {
    /// As the cluster file says.
    pub fn of(cluster: &Cluster) -> Self {
        let SchedulerSpec { policy, prefer, .. } = cluster.scheduler;
        Self { policy, prefer, network: cluster.network }
    }

    /// The delays that objectives must leave room for.
    pub(crate) fn network(&self) -> &NetworkSpec {
        &self.network
    }

    /// A model on a ModelThread, without tasks.
    pub(crate) fn resident(&self, model: &ModelSpec) -> Resident {
        let NetworkSpec { ctrl, data_per_task, response, jitter } = self.network;
        Resident {
            config: ModelConfig {
                id: model.id,
                profile: model.profile.clone(),
                slo: model.slo,
                queue_capacity: model.queue_capacity,
                policy: self.policy,
                prefer: self.prefer,
                network: NetworkDelay { ctrl, data_per_task, response, jitter },
            },
            subcluster: model.subcluster,
            quota: model.quota,
        }
    }
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
