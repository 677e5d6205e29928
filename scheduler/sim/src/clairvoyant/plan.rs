//! A plan with foresight: feasible, and good enough to know what can be reached.
//!
//! A beam search over the tasks in their order. A state is what has been decided about the tasks up
//! to one: how many are served, and when each slot is free. Batches are of consecutive tasks and
//! run on the slot that is free first. Few states are kept for each task: those with the most
//! served less a price for the work that is still outstanding.

use super::tasks::Tasks;

/// Batches of consecutive tasks: index of the first, and how many.
pub(super) type Plan = Vec<(usize, usize)>;

#[derive(Clone)]
struct State {
    /// Ascending.
    free: Vec<u64>,
    served: u32,
    worth: f64,
    /// The last batch, and the node of those before it.
    batch: Option<(usize, usize)>,
    node: usize,
}

/// A batch of a plan and the node of those before it; node 0 is none.
type Node = ((usize, usize), usize);

/// States kept for each task: for 16 slots or fewer, and at least one.
const WIDTH: usize = 16;
/// A nanosecond of outstanding work over the largest batch's share of tasks in it. Found by trying:
/// below 0.7 and above 0.9 plans get worse.
const PRICES: [f64; 3] = [0.8, 0.85, 0.75];

/// A plan that serves at least `goal` tasks, if one is found.
pub(super) fn plan(tasks: &Tasks, goal: f64) -> Option<Plan> {
    let batch = tasks.batch_max();
    if batch == 0 {
        return None;
    }
    let unit = batch as f64 / tasks.took(batch) as f64;
    let plans = PRICES.iter().map(|price| search(tasks, price * unit));
    plans.into_iter().find(|plan| served(tasks, plan).is_some_and(|served| served as f64 >= goal))
}

/// Executes the plan: how many tasks it serves, or `None` if it cannot be executed.
pub(super) fn served(tasks: &Tasks, plan: &Plan) -> Option<usize> {
    let mut free = vec![0; tasks.gpus];
    let (mut next, mut served) = (0, 0);
    for &(first, batch) in plan {
        let arrivals =
            tasks.arrivals.get(first..first + batch).filter(|batch| !batch.is_empty())?;
        let slot = free.iter_mut().min()?;
        let start = arrivals[batch - 1].max(*slot);
        let end = start + tasks.latency.get(batch - 1)?;
        if first < next || end > arrivals[0] + tasks.slo {
            return None;
        }
        *slot = end;
        (next, served) = (first + batch, served + batch);
    }
    Some(served)
}

pub(super) fn search(tasks: &Tasks, price: f64) -> Plan {
    let (count, reach) = (tasks.len(), tasks.batch_max() + 1);
    let width = (WIDTH * 16 / tasks.gpus).clamp(1, WIDTH);
    let mut nodes: Vec<Node> = vec![((0, 0), 0)];
    // By the number of tasks decided about, modulo `reach`.
    let mut open: Vec<Vec<State>> = vec![Vec::new(); reach];
    open[0].push(State { free: vec![0; tasks.gpus], served: 0, worth: 0.0, batch: None, node: 0 });
    for first in 0..count {
        let mut states = std::mem::take(&mut open[first % reach]);
        keep_best(&mut states, tasks.arrivals[first], price, width);
        for mut state in states {
            if let Some(batch) = state.batch.take() {
                nodes.push((batch, state.node));
                state.node = nodes.len() - 1;
            }
            for (batch, next) in successors(tasks, first, &state) {
                open[(first + batch) % reach].push(next);
            }
            open[(first + 1) % reach].push(state);
        }
    }
    let last = open[count % reach].iter().max_by_key(|state| state.served);
    last.map_or_else(Plan::new, |state| batches(&nodes, state))
}

fn keep_best(states: &mut Vec<State>, now: u64, price: f64, width: usize) {
    for state in states.iter_mut() {
        let outstanding: u64 = state.free.iter().map(|free| free.saturating_sub(now)).sum();
        state.worth = f64::from(state.served) - price * outstanding as f64;
    }
    states.sort_by(|a, b| b.worth.total_cmp(&a.worth));
    states.dedup_by(|worse, better| worse.free == better.free);
    states.truncate(width);
}

/// With a batch of each size that is possible, from `first` on.
fn successors<'a>(
    tasks: &'a Tasks,
    first: usize,
    state: &'a State,
) -> impl Iterator<Item = (usize, State)> + 'a {
    let sizes = 1..=tasks.batch_max().min(tasks.len() - first);
    let start = move |batch: usize| state.free[0].max(tasks.arrivals[first + batch - 1]);
    let sizes = sizes.take_while(move |&batch| start(batch) <= tasks.latest(first, batch));
    sizes.map(move |batch| {
        let end = start(batch) + tasks.took(batch);
        let mut free = state.free.clone();
        free[0] = end;
        free.sort_unstable();
        let served = state.served + batch as u32;
        (batch, State { free, served, worth: 0.0, batch: Some((first, batch)), node: state.node })
    })
}

fn batches(nodes: &[Node], state: &State) -> Plan {
    let mut plan: Plan = state.batch.into_iter().collect();
    let mut at = state.node;
    while at != 0 {
        let (batch, before) = nodes[at];
        plan.push(batch);
        at = before;
    }
    plan.reverse();
    plan
}
