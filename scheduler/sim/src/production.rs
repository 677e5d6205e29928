//! The production scheduler under the simulator: real [`ModelState`]s, the real [`RankState`], and
//! between them messages that arrive in order, after `lag`.

use std::collections::VecDeque;

use baton_core::{
    Batch, Candidate, Gpu, GpuId, GpuUpdate, Grant, IndexedHeap, ModelConfig, ModelId, ModelSink,
    ModelState, Nanos, Policy, RankLimits, RankSink, RankState, Request, SubclusterId, TaskId,
    Unserved,
};

use crate::cluster::{Cluster, Finished};
use crate::drive::Scheduler;
use crate::scenario::Scenario;

#[derive(Clone, Copy)]
enum Message {
    Candidate(ModelId, Option<Candidate>, u32),
    Gpu(GpuUpdate),
    Grant(ModelId, Grant),
}

/// Messages under way, oldest first. One lag for all keeps them in order.
struct Mail {
    lag: Nanos,
    queue: VecDeque<(Nanos, Message)>,
}

/// See the module documentation.
pub(crate) struct Production {
    models: Vec<ModelState>,
    rank: RankState,
    timers: IndexedHeap<Nanos>,
    mail: Mail,
}

/// Every slot lives once: no GPU leaves.
const LIFE: u32 = 0;

impl Production {
    pub(crate) fn new(scenario: &Scenario, policy: Policy, rate_rps: f64) -> Self {
        let models = scenario.models.len();
        let config = |(m, model): (usize, &crate::SimModel)| ModelConfig {
            id: ModelId(m as u32),
            profile: model.profile.clone(),
            slo: model.slo(),
            queue_capacity: queue_capacity(rate_rps * model.share * model.slo_ms / 1e3),
            policy,
            network: scenario.network,
        };
        let configs = scenario.models.iter().enumerate().map(config);
        let limits = RankLimits { gpus: scenario.gpus, subclusters: 1 };
        let mut rank = RankState::new(limits, &vec![SubclusterId(0); models]);
        let mut mail = Mail { lag: scenario.message_lag, queue: VecDeque::new() };
        for id in (0..scenario.gpus).map(GpuId) {
            let gpu = Gpu { id, life: LIFE };
            rank.on_gpu_join(Nanos::ZERO, gpu, SubclusterId(0), &mut mail.at(Nanos::ZERO));
        }
        let models = configs.map(ModelState::new).collect();
        Self { models, rank, timers: IndexedHeap::new(scenario.models.len()), mail }
    }

    /// Delivers what is due, until both sides fall silent.
    fn settle(&mut self, now: Nanos, cluster: &mut Cluster) {
        while let Some(&(due, message)) = self.mail.queue.front() {
            if due > now {
                return;
            }
            self.mail.queue.pop_front();
            self.deliver(now, message, cluster);
        }
    }

    fn deliver(&mut self, now: Nanos, message: Message, cluster: &mut Cluster) {
        match message {
            Message::Candidate(model, candidate, grants) => {
                self.rank.on_candidate(now, model, candidate, grants, &mut self.mail.at(now));
            }
            Message::Gpu(update) => self.rank.on_gpu(now, update, &mut self.mail.at(now)),
            Message::Grant(id, grant) => {
                let mail = self.mail.at(now);
                let model = &mut self.models[id.0 as usize];
                model.on_grant(now, grant, &mut Outbox { model: id.0, mail, cluster });
                self.rearm(id.0);
            }
        }
    }

    fn rearm(&mut self, model: u32) {
        match self.models[model as usize].next_timer() {
            Some(at) => self.timers.set(model, at),
            None => drop(self.timers.remove(model)),
        }
    }
}

impl Scheduler for Production {
    fn on_arrival(&mut self, now: Nanos, model: u32, request: Request, cluster: &mut Cluster) {
        let mut outbox = Outbox { model, mail: self.mail.at(now), cluster };
        self.models[model as usize].on_request(now, request, &mut outbox);
        self.rearm(model);
        self.settle(now, cluster);
    }

    fn on_finished(&mut self, now: Nanos, finished: Finished, cluster: &mut Cluster) {
        let Finished { gpu, model, batch, took } = finished;
        self.models[model as usize].on_measured(batch, took);
        let gpu = Gpu { id: GpuId(gpu), life: LIFE };
        self.mail.at(now).post(Message::Gpu(GpuUpdate::Finished { gpu, at: now }));
        self.settle(now, cluster);
    }

    fn next_timer(&self) -> Nanos {
        let model = self.timers.peek().map_or(Nanos::MAX, |(at, _)| at);
        let mail = self.mail.queue.front().map_or(Nanos::MAX, |&(due, _)| due);
        model.min(mail).min(self.rank.next_timer().unwrap_or(Nanos::MAX))
    }

    fn on_timer(&mut self, now: Nanos, cluster: &mut Cluster) {
        self.settle(now, cluster);
        while let Some((_, model)) = self.timers.pop_up_to(now) {
            let mut outbox = Outbox { model, mail: self.mail.at(now), cluster };
            self.models[model as usize].on_timer(now, &mut outbox);
            self.rearm(model);
            self.settle(now, cluster);
        }
        self.rank.on_timer(now, &mut self.mail.at(now));
        self.settle(now, cluster);
    }
}

/// Room for eight times what arrives within the objective: only a load that is hopeless anyway
/// fills the queue.
fn queue_capacity(within_objective: f64) -> u32 {
    1024 + (8.0 * within_objective).min(1e6) as u32
}

/// Puts messages into the mail.
struct Post<'a> {
    due: Nanos,
    queue: &'a mut VecDeque<(Nanos, Message)>,
}

impl Mail {
    fn at(&mut self, now: Nanos) -> Post<'_> {
        Post { due: now + self.lag, queue: &mut self.queue }
    }
}

impl Post<'_> {
    fn post(&mut self, message: Message) {
        self.queue.push_back((self.due, message));
    }
}

impl RankSink for Post<'_> {
    fn grant(&mut self, model: ModelId, grant: Grant) {
        self.post(Message::Grant(model, grant));
    }

    fn drained(&mut self, _gpu: Gpu) {}
}

/// What a model decides: plans and ends take effect at once, the rest is mail.
struct Outbox<'a> {
    model: u32,
    mail: Post<'a>,
    cluster: &'a mut Cluster,
}

impl ModelSink for Outbox<'_> {
    fn candidate(&mut self, model: ModelId, candidate: Option<Candidate>, grants: u32) {
        self.mail.post(Message::Candidate(model, candidate, grants));
    }

    fn dispatch(&mut self, batch: &Batch<'_>) {
        let gpu = batch.grant.gpu.id.0;
        self.cluster.execute(gpu, self.model, batch.exec_at, batch.requests());
    }

    fn gpu(&mut self, update: GpuUpdate) {
        self.mail.post(Message::Gpu(update));
    }

    fn end_task(&mut self, task: TaskId, why: Unserved) {
        let why = match why {
            Unserved::Dropped(why) => why.as_str(),
            Unserved::Failed(why) => why.as_str(),
        };
        self.cluster.give_up(self.model, task, why);
    }
}
