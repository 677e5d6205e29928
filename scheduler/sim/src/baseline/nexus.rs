//! Nexus: GPUs partitioned among models by an epoch plan, frontends that spread tasks round robin
//! without knowing of each other, and backends that drop early to keep their batch size.

use std::collections::VecDeque;

use baton_core::{Nanos, Profile, Request};

use crate::baseline::nexus_plan::{self, Demand};
use crate::baseline::queue::enqueue;
use crate::cluster::{Cluster, Finished, Lost};
use crate::drive::Scheduler;
use crate::random::{Concern, Stream};
use crate::scenario::{Scenario, SimModel};

/// One model's queue at one GPU.
#[derive(Debug)]
struct Session {
    model: u32,
    /// Batch size of the plan.
    target: u32,
    /// In the order of deadlines.
    queue: VecDeque<Request>,
}

/// One GPU: its sessions take turns.
#[derive(Debug)]
struct Node {
    sessions: Vec<Session>,
    turn: usize,
    is_busy: bool,
}

/// Where a model is served, and the part of its tasks that goes there.
#[derive(Clone, Copy, Debug)]
struct Route {
    node: usize,
    session: usize,
    weight: f64,
}

/// See the module documentation.
pub(crate) struct Nexus {
    profiles: Vec<Profile>,
    nodes: Vec<Node>,
    /// Per model.
    routes: Vec<Vec<Route>>,
    /// Per frontend and model: what each route is owed.
    credits: Vec<Vec<Vec<f64>>>,
    frontend: Stream,
}

impl Nexus {
    /// Plans for the rates of the run, known exactly.
    pub(crate) fn new(scenario: &Scenario, frontends: u32, rate_rps: f64, seed: u64) -> Self {
        let demand = |model| demand(model, rate_rps);
        let demands: Vec<Demand<'_>> = scenario.models.iter().map(demand).collect();
        let plan = nexus_plan::plan(&demands, scenario.gpus as usize);
        let mut routes = vec![Vec::new(); scenario.models.len()];
        for (node, planned) in plan.iter().enumerate() {
            for (session, s) in planned.sessions.iter().enumerate() {
                routes[s.model].push(Route { node, session, weight: s.rate_rps });
            }
        }
        let owed: Vec<Vec<f64>> = routes.iter().map(|routes| vec![0.0; routes.len()]).collect();
        Self {
            profiles: scenario.models.iter().map(|model| model.profile.clone()).collect(),
            nodes: plan.iter().map(Node::new).collect(),
            routes,
            credits: vec![owed; frontends as usize],
            frontend: Stream::new(seed, Concern::Frontend),
        }
    }

    /// The route that the task's frontend, drawn at random, has owed most (smooth weighted round
    /// robin); `None` if the plan has no place for the model.
    fn route(&mut self, model: u32) -> Option<Route> {
        let frontend = self.frontend.next_u64() % self.credits.len() as u64;
        let routes = &self.routes[model as usize];
        let credits = &mut self.credits[frontend as usize][model as usize];
        let mut total = 0.0;
        for (credit, route) in credits.iter_mut().zip(routes) {
            *credit += route.weight;
            total += route.weight;
        }
        let (most, _) = credits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1))?;
        credits[most] -= total;
        Some(routes[most])
    }

    /// Gives the GPU to the next session that has a batch.
    fn start(&mut self, now: Nanos, gpu: usize, cluster: &mut Cluster) {
        let node = &mut self.nodes[gpu];
        let sessions = node.sessions.len();
        for _ in 0..sessions {
            let session = &mut node.sessions[node.turn];
            node.turn = (node.turn + 1) % sessions;
            let batch = session.batch(now, &self.profiles[session.model as usize], cluster);
            if batch > 0 {
                node.is_busy = true;
                let requests = session.queue.drain(..batch);
                return cluster.execute(gpu as u32, session.model, now, requests);
            }
        }
    }
}

fn demand(model: &SimModel, total_rps: f64) -> Demand<'_> {
    let (slo_s, rate_rps) = (model.slo_ms / 1e3, total_rps * model.share);
    Demand { profile: &model.profile, slo_s, rate_rps }
}

impl Scheduler for Nexus {
    fn on_arrival(&mut self, now: Nanos, model: u32, request: Request, cluster: &mut Cluster) {
        let Some(Route { node, session, .. }) = self.route(model) else {
            return cluster.give_up(model, request.task, "no_backend");
        };
        enqueue(&mut self.nodes[node].sessions[session].queue, request);
        if !self.nodes[node].is_busy {
            self.start(now, node, cluster);
        }
    }

    fn on_finished(&mut self, now: Nanos, finished: Finished, cluster: &mut Cluster) {
        self.nodes[finished.gpu as usize].is_busy = false;
        self.start(now, finished.gpu as usize, cluster);
    }

    fn on_gpu_loss(&mut self, _now: Nanos, _gpu: u32, _lost: Vec<Lost>, _cluster: &mut Cluster) {
        unreachable!("one plan for all GPUs: scenarios whose GPUs leave or come are refused");
    }

    fn on_gpu_join(&mut self, _now: Nanos, _gpu: u32, _cluster: &mut Cluster) {
        unreachable!("one plan for all GPUs: scenarios whose GPUs leave or come are refused");
    }

    fn next_timer(&self) -> Nanos {
        Nanos::MAX
    }

    fn on_timer(&mut self, _now: Nanos, _cluster: &mut Cluster) {}
}

impl Node {
    fn new(planned: &nexus_plan::Node) -> Self {
        let session = |s: &nexus_plan::Session| Session {
            model: s.model as u32,
            target: s.batch,
            queue: VecDeque::new(),
        };
        Self { sessions: planned.sessions.iter().map(session).collect(), turn: 0, is_busy: false }
    }
}

impl Session {
    /// Early drop: gives up the heads that cannot wait for a batch of target size, or of all that
    /// wait behind them; returns the size of the batch that is left.
    fn batch(&mut self, now: Nanos, profile: &Profile, cluster: &mut Cluster) -> usize {
        loop {
            let batch = self.queue.len().min(self.target as usize);
            let Some(head) = self.queue.front() else { return 0 };
            if now + profile.latency(batch as u32) <= head.deadline {
                return batch;
            }
            cluster.give_up(self.model, head.task, "window");
            self.queue.pop_front();
        }
    }
}
