//! Nexus' epoch plan: which GPU serves which models in batches of what size (Nexus, SOSP '19,
//! "squishy bin packing"). Pure arithmetic on known rates.

use baton_core::Profile;

/// What the plan needs to know about a model; seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand<'a> {
    pub(crate) profile: &'a Profile,
    pub(crate) slo_s: f64,
    pub(crate) rate_rps: f64,
}

/// One model's part of a GPU.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Session {
    pub(crate) model: usize,
    /// Largest batch it may execute.
    pub(crate) batch: u32,
    /// What it is meant to serve; weighs the routing.
    pub(crate) rate_rps: f64,
}

/// One GPU: its sessions each execute once in a duty cycle.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Node {
    pub(crate) duty_s: f64,
    pub(crate) sessions: Vec<Session>,
}

/// The plan for the demand scaled as far up, or down, as the GPUs allow: all of them are used in the
/// proportion of the demand.
pub(crate) fn plan(demands: &[Demand<'_>], gpus: usize) -> Vec<Node> {
    let scaled = |factor: f64| pack(demands, factor, gpus);
    let (mut low, mut high, mut best) = (0.0, 1.0, Vec::new());
    while let Some(nodes) = scaled(high).filter(|_| high < SCALE_MAX) {
        (low, high, best) = (high, high * 2.0, nodes);
    }
    for _ in 0..BISECTIONS {
        let middle = (low + high) / 2.0;
        match scaled(middle) {
            Some(nodes) => (low, best) = (middle, nodes),
            None => high = middle,
        }
    }
    best.iter_mut().for_each(|node| stretch(demands, node));
    best
}

/// Demand is never scaled beyond this factor.
const SCALE_MAX: f64 = 1e6;
const BISECTIONS: u32 = 30;

/// Nodes for `factor` times the demand, or `None` if that takes more than `gpus`.
fn pack(demands: &[Demand<'_>], factor: f64, gpus: usize) -> Option<Vec<Node>> {
    let (mut nodes, mut residual) = (Vec::new(), Vec::new());
    for (model, demand) in demands.iter().enumerate() {
        let rate_rps = demand.rate_rps * factor;
        let batch = saturated_batch(demand);
        let duty_s = demand.latency_s(batch);
        let each_rps = f64::from(batch) / duty_s;
        let full = (rate_rps / each_rps).floor();
        if nodes.len() as f64 + full > gpus as f64 {
            return None;
        }
        let session = Session { model, batch, rate_rps: each_rps };
        nodes.extend((0..full as usize).map(|_| Node { duty_s, sessions: vec![session] }));
        let rest_rps = rate_rps - full * each_rps;
        if rest_rps > 0.0 {
            residual.push(residual_node(model, demand, rest_rps));
        }
    }
    nodes.extend(merged(demands, residual));
    (nodes.len() <= gpus).then_some(nodes)
}

/// The largest b with 2·ℓ(b) ≤ SLO: a task that just missed a batch waits for a whole one.
fn saturated_batch(demand: &Demand<'_>) -> u32 {
    demand.largest(|batch| 2.0 * demand.latency_s(batch))
}

/// A node for what is left of a model: the largest b that gathers and executes within the objective.
fn residual_node(model: usize, demand: &Demand<'_>, rate_rps: f64) -> Node {
    let gathered = |batch: u32| f64::from(batch) / rate_rps;
    let batch = demand.largest(|batch| gathered(batch) + demand.latency_s(batch));
    // A task that comes alone must still find its turn in time.
    let duty_s = gathered(batch).min((demand.slo_s - demand.latency_s(batch)).max(0.0));
    Node { duty_s, sessions: vec![Session { model, batch, rate_rps }] }
}

/// Puts each residual node, fullest first, into the node it fills best.
fn merged(demands: &[Demand<'_>], mut residual: Vec<Node>) -> Vec<Node> {
    residual.sort_by(|a, b| occupancy(demands, b).total_cmp(&occupancy(demands, a)));
    let mut nodes: Vec<Node> = Vec::new();
    for node in residual {
        let fits = nodes.iter().enumerate().filter_map(|(at, other)| {
            let merged = merge(demands, other, &node)?;
            Some((at, occupancy(demands, &merged), merged))
        });
        match fits.max_by(|a, b| a.1.total_cmp(&b.1)) {
            Some((at, _, merged)) => nodes[at] = merged,
            None => nodes.push(node),
        }
    }
    nodes
}

/// Both on one GPU, in the shorter of the two duty cycles and with batches as small as that takes.
fn merge(demands: &[Demand<'_>], a: &Node, b: &Node) -> Option<Node> {
    let duty_s = a.duty_s.min(b.duty_s);
    let squished = |session: &Session| {
        let batch = (session.rate_rps * duty_s).ceil().clamp(1.0, f64::from(session.batch));
        Session { batch: batch as u32, ..*session }
    };
    let sessions = a.sessions.iter().chain(&b.sessions).map(squished).collect();
    let node = Node { duty_s, sessions };
    (occupancy(demands, &node) <= 1.0).then_some(node)
}

/// Lets batches grow, one task each in turn, while a task of any session that just missed its turn
/// could still wait for a whole round. The cycle was planned for the mean of the load; this is for
/// its bursts.
fn stretch(demands: &[Demand<'_>], node: &mut Node) {
    let mut grew = true;
    while grew {
        grew = false;
        for at in 0..node.sessions.len() {
            let profile = demands[node.sessions[at].model].profile;
            node.sessions[at].batch += 1;
            if node.sessions[at].batch <= profile.batch_max() && survives_a_miss(demands, node) {
                grew = true;
            } else {
                node.sessions[at].batch -= 1;
            }
        }
    }
}

fn survives_a_miss(demands: &[Demand<'_>], node: &Node) -> bool {
    let latency_s = |session: &Session| demands[session.model].latency_s(session.batch);
    let round_s: f64 = node.sessions.iter().map(latency_s).sum();
    node.sessions.iter().all(|session| round_s + latency_s(session) <= demands[session.model].slo_s)
}

/// Part of the duty cycle that the sessions execute.
fn occupancy(demands: &[Demand<'_>], node: &Node) -> f64 {
    let latency_s = |session: &Session| demands[session.model].latency_s(session.batch);
    node.sessions.iter().map(latency_s).sum::<f64>() / node.duty_s
}

impl Demand<'_> {
    fn latency_s(&self, batch: u32) -> f64 {
        self.profile.latency(batch).as_millis_f64() / 1e3
    }

    /// The largest batch for which `takes_s`, which rises, is within the objective; at least 1.
    fn largest(&self, takes_s: impl Fn(u32) -> f64) -> u32 {
        let fits = |&batch: &u32| takes_s(batch) <= self.slo_s;
        (1..=self.profile.batch_max()).take_while(fits).last().unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_core::Nanos;

    fn linear(alpha_ms: u64, beta_ms: u64) -> Profile {
        Profile::linear(Nanos::from_millis(alpha_ms), Nanos::from_millis(beta_ms), 64).unwrap()
    }

    #[test]
    fn one_model_gets_every_gpu_in_batches_of_half_the_objective() {
        let profile = linear(1, 5);
        let demand = Demand { profile: &profile, slo_s: 0.030, rate_rps: 100.0 };
        let nodes = plan(&[demand], 4);
        assert_eq!(nodes.len(), 4);
        // ℓ(10) = 15 ms
        assert!(nodes.iter().all(|node| node.sessions[0].batch == 10), "{nodes:?}");
    }

    #[test]
    fn models_with_little_load_share_a_gpu() {
        let profile = linear(1, 5);
        let demand = Demand { profile: &profile, slo_s: 0.100, rate_rps: 50.0 };
        let nodes = pack(&[demand; 3], 1.0, 8).unwrap();
        assert_eq!(nodes.len(), 1);
        assert_eq!(nodes[0].sessions.len(), 3);
        let busy_s: f64 = nodes[0].sessions.iter().map(|s| demand.latency_s(s.batch)).sum();
        assert!(busy_s <= nodes[0].duty_s);
        let slowest_s = nodes[0].sessions.iter().map(|s| demand.latency_s(s.batch));
        assert!(slowest_s.fold(0.0, f64::max) + nodes[0].duty_s <= demand.slo_s + 1e-9);
    }

    #[test]
    fn every_model_has_a_session_and_no_gpu_is_planned_twice() {
        let (light, heavy) = (linear(1, 5), linear(20, 10));
        let demands: Vec<Demand<'_>> = [(&light, 0.040, 300.0), (&heavy, 0.200, 30.0)]
            .map(|(profile, slo_s, rate_rps)| Demand { profile, slo_s, rate_rps })
            .into();
        for gpus in [2, 3, 10] {
            let nodes = plan(&demands, gpus);
            assert!(nodes.len() <= gpus);
            for model in 0..2 {
                let serves = |node: &Node| node.sessions.iter().any(|s| s.model == model);
                assert!(nodes.iter().any(serves), "model {model} on {gpus} GPUs: {nodes:?}");
            }
        }
    }
}
