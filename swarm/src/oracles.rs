//! What must hold, while a run lasts and when it is over.

use std::collections::BTreeSet;
use std::sync::Arc;

use baton_client::{Counters as ClientCounters, DropReason, FailReason};
use baton_core::PIPELINE_DEPTH;
use baton_scheduler::{Counter, ModelThreadCounters, SchedulerCounters};

use crate::accounts;
use crate::applications::Tally;
use crate::breaking::notice;
use crate::faults::{Fault, Who};
use crate::marks::Marks;
use crate::moments;
use crate::network::addr_of;
use crate::process::{BackendProcess, FrontendProcess, SchedulerProcess};
use crate::run::Run;

/// What processes had counted when they ended.
#[derive(Default)]
pub(crate) struct Past {
    clients: Vec<ClientCounters>,
    schedulers: Vec<Arc<SchedulerCounters>>,
    backends: Vec<baton_backend::Counters>,
    /// Clients that gave up before they were let in, or while they were.
    pub(crate) joins_given_up: u64,
}

impl Past {
    pub(crate) fn frontend(&mut self, process: &FrontendProcess) {
        self.clients.extend(process.client().map(|client| client.counters()));
    }

    pub(crate) fn backend(&mut self, process: &BackendProcess) {
        self.backends.push(process.worker.counters());
    }

    pub(crate) fn scheduler(&mut self, process: &SchedulerProcess) {
        self.schedulers.push(Arc::clone(process.assembly.counters()));
    }

    /// Outcomes for which schedulers that are over had no connection.
    fn outcomes_undelivered(&self) -> u64 {
        let threads = self.schedulers.iter().flat_map(|scheduler| &scheduler.model_threads);
        threads.map(|thread| thread.outcomes_undelivered.get()).sum()
    }

    /// What they have reached.
    pub(crate) fn mark(&self, marks: &mut Marks) {
        self.clients.iter().for_each(|counters| marks.note("client", counters.pairs()));
        self.backends.iter().for_each(|counters| marks.note("backend", counters.pairs()));
        for scheduler in &self.schedulers {
            for thread in &scheduler.model_threads {
                marks.note("model_thread", thread.pairs());
            }
            marks.note("rank_thread", scheduler.rank_thread.pairs());
            marks.note("control_thread", scheduler.control_thread.pairs());
        }
    }
}

/// Who the scheduler believes to be a member is one, and the other way round.
pub(crate) fn members_agree(run: &Run) -> bool {
    let Some(scheduler) = &run.world.scheduler else { return false };
    let roster = scheduler.assembly.control.roster();
    let mut names: Vec<&str> =
        roster.backends().map(|(_, backend)| backend.name.as_str()).collect();
    let living = (0..run.backends.len()).filter(|&at| run.backends[at].is_some());
    let mut expected: Vec<&str> =
        living.map(|at| run.plan.cluster.backends[at].name.as_str()).collect();
    names.sort_unstable();
    expected.sort_unstable();
    let all_ready = roster.backends().all(|(_, backend)| backend.is_serving);
    let mut frontends: Vec<_> = roster.frontends().map(|(_, frontend)| frontend.addr).collect();
    let hosts = (0..run.frontends.len()).filter_map(|at| run.host(Who::Frontend(at)));
    let mut addrs: Vec<_> = hosts.map(|host| addr_of(host, 1)).collect();
    frontends.sort_unstable();
    addrs.sort_unstable();
    names == expected && all_ready && frontends == addrs
}

/// Bounds, and that silence is noticed.
pub(crate) fn while_it_runs(run: &mut Run) {
    let said = || run.world.network.watch(|watch| watch.wrong().map(str::to_owned));
    let wrong = beyond_bounds(run)
        .or_else(|| believed_alive(run))
        .or_else(|| believed_there(run))
        .or_else(said);
    if let Some(what) = wrong {
        run.world.fail(what);
    }
}

fn beyond_bounds(run: &Run) -> Option<String> {
    let cluster = &run.plan.cluster;
    let fullest = run.world.network.fullest();
    if fullest > run.plan.link.window {
        return Some(format!("a connection holds {fullest} bytes"));
    }
    let slots = run.world.models.len() as u32 * cluster.frontend.slots_per_model;
    let used = (0..run.world.frontends.len()).map(|at| run.world.slots_in_use(at)).max();
    if used.is_some_and(|used| used > slots) {
        return Some(format!("a frontend uses {used:?} of its {slots} slots"));
    }
    let scheduler = run.world.scheduler.as_ref()?;
    let room: u32 = run.world.models.iter().map(|model| model.queue_capacity).sum();
    let threads = &scheduler.assembly.model_threads;
    let waiting: usize = threads.iter().map(|thread| thread.waiting()).sum();
    if waiting > room as usize {
        return Some(format!("{waiting} tasks wait in queues for {room}"));
    }
    let gpus: u32 = cluster.backends.iter().map(|backend| backend.gpus).sum();
    let stolen: usize = roster_slots(scheduler);
    // A backend's next life may have its slots while the reports of the one before are under way.
    let most = 2 * (gpus as usize + stolen) * usize::from(PIPELINE_DEPTH);
    let in_flight: usize = threads.iter().map(|thread| thread.in_flight()).sum();
    (in_flight > most).then(|| format!("{in_flight} batches are in flight on {gpus} slots"))
}

/// Slots of backends that are none of the cluster file's.
fn roster_slots(scheduler: &SchedulerProcess) -> usize {
    let roster = scheduler.assembly.control.roster();
    roster.backends().filter(|(_, b)| b.name.starts_with("evil")).map(|(_, b)| b.gpus.len()).sum()
}

/// A member of which nothing is heard is no member for long.
fn believed_alive(run: &Run) -> Option<String> {
    let scheduler = run.world.scheduler.as_ref()?;
    let (now, bound) = (run.world.now, notice(&run.plan.cluster));
    if scheduler.frozen_until() + bound > now {
        return None;
    }
    let roster = scheduler.assembly.control.roster();
    let member = |host| {
        let addr = addr_of(host, 1);
        let at = (0..run.backends.len()).find(|&at| run.host(Who::Backend(at)) == Some(host));
        let name = at.map(|at| run.plan.cluster.backends[at].name.as_str());
        roster.frontends().any(|(_, frontend)| frontend.addr == addr)
            || roster.backends().any(|(_, backend)| Some(backend.name.as_str()) == name)
    };
    // A scheduler's host is no member, whatever address an attacker gives as its own.
    let schedulers = run.world.ledger.borrow().schedulers.clone();
    let hosts = run.silent.iter().filter(|(host, _)| !schedulers.contains(host));
    let silent = { hosts }.find(|&(&host, &since)| since + bound < now && member(host));
    silent.map(|(host, since)| {
        format!(
            "{host:?} has been silent since {:.3} ms and still counts as a member",
            since.as_millis_f64()
        )
    })
}

/// A scheduler of which a client hears nothing is none for it for long.
fn believed_there(run: &Run) -> Option<String> {
    let (now, bound) = (run.world.now, notice(&run.plan.cluster));
    let scheduler = run.world.scheduler.as_ref()?.host;
    let deaf =
        run.deaf.iter().filter(|((from, _), since)| *from == scheduler && **since + bound < now);
    let hears = |process: &&FrontendProcess| {
        let stood = process.line.frozen_until() + bound > now;
        !stood && process.client().is_some_and(|client| client.loss().is_none())
    };
    let mut of_deaf = deaf.flat_map(|((_, host), since)| {
        let frontends = run.world.frontends.iter().flatten();
        frontends.filter(move |process| process.host == *host).map(move |process| (process, since))
    });
    let heard = of_deaf.find(|(process, _)| hears(process));
    drop(of_deaf);
    let Some((process, since)) = heard else { return backend_believes(run) };
    Some(format!(
        "frontend {} has heard nothing of its scheduler since {:.3} ms and still counts on it",
        process.number,
        since.as_millis_f64()
    ))
}

/// The same of backends.
fn backend_believes(run: &Run) -> Option<String> {
    let (now, bound) = (run.world.now, notice(&run.plan.cluster));
    let scheduler = run.world.scheduler.as_ref()?.host;
    let is_deaf = |process: &BackendProcess| {
        let since = run.deaf.get(&(scheduler, process.host));
        since.is_some_and(|since| (*since).max(process.line.frozen_until()) + bound < now)
    };
    let counts = |process: &&BackendProcess| {
        process.worker.stage() == baton_backend::Stage::Ready && is_deaf(process)
    };
    let process = run.world.backends.iter().flatten().find(counts)?;
    let at = process.at;
    Some(format!("backend {at} has heard nothing of its scheduler for long and still counts on it"))
}

/// Answers to a frontend do not wait for those to others, to which something happens.
fn held_up(run: &Run) -> Option<String> {
    let plan = &run.plan;
    let faults = || plan.faults.iter().map(|(_, fault)| fault);
    let mild = |fault: &Fault| matches!(fault, Fault::Move(..) | Fault::Join);
    if !plan.attacks.is_empty() || !faults().all(|f| mild(f) || f.concerns().is_some()) {
        return None;
    }
    let concerned: BTreeSet<usize> = faults().filter_map(Fault::concerns).collect();
    let others = concerned.len();
    let most = moments::PROMPT + plan.link.doubt().times(2);
    let slowest = run.applications.slowest.iter();
    let mut bystanders = slowest.filter(|(frontend, _)| !concerned.contains(frontend));
    let (frontend, (took, number)) = bystanders.find(|(_, (took, _))| *took > most)?;
    Some(format!(
        "the answer to task {number} of frontend {frontend} took {took:?}, and something happened to {others} others only"
    ))
}

/// True once nothing is held anywhere, and every backend is back with all its slots.
pub(crate) fn is_drained(run: &Run) -> bool {
    leak(run).is_none() && accounts::slots(run).is_none()
}

pub(crate) fn at_the_end(run: &mut Run) {
    let wrong = leak(run)
        .or_else(|| unaccounted(run))
        .or_else(|| restart_cost(run))
        .or_else(|| held_up(run))
        .or_else(|| removed_for_nothing(run))
        .or_else(|| catalogues_differ(run))
        .or_else(|| lost_for_nothing(run))
        .or_else(|| accounts::wrong(run))
        .or_else(|| disagreement(run));
    if let Some(what) = wrong {
        run.world.fail(what);
    }
}

/// What is held although nothing is asked for any more.
fn leak(run: &Run) -> Option<String> {
    let world = &run.world;
    let slots = (0..world.frontends.len()).find(|&at| world.slots_in_use(at) > 0);
    if let Some(at) = slots {
        return Some(format!("frontend life {at} leaks {} slots", world.slots_in_use(at)));
    }
    let scheduler = world.scheduler.as_ref()?;
    for (number, thread) in scheduler.assembly.model_threads.iter().enumerate() {
        if thread.in_flight() + thread.waiting() > 0 {
            let (batches, tasks) = (thread.in_flight(), thread.waiting());
            return Some(format!("ModelThread {number} keeps {batches} batches, {tasks} tasks"));
        }
    }
    let outstanding = scheduler.assembly.rank.outstanding();
    if outstanding > 0 {
        return Some(format!("the RankThread believes {outstanding} batches outstanding"));
    }
    world.backends.iter().flatten().find_map(backend_leak).or_else(|| connection_leak(run))
}

fn backend_leak(process: &BackendProcess) -> Option<String> {
    let c = process.worker.counters();
    let refused = c.plans_queue_full + c.plans_unknown + c.plans_early + c.plans_malformed;
    let given_up = c.batches_expired + c.batches_abandoned;
    let ended = c.batches_executed + c.engine_errors + given_up + refused;
    let at = process.at;
    if c.plans != ended {
        return Some(format!("backend {at} had {} plans and ended {ended}", c.plans));
    }
    let held = c.transport.credit_held;
    (held > 0).then(|| format!("backend {at} holds {held} bytes of credit"))
}

/// Everybody is connected to every thread of the scheduler once, and backends to frontends.
fn connection_leak(run: &Run) -> Option<String> {
    let threads = run.plan.cluster.scheduler.model_threads as usize + 1;
    let (backends, frontends) = (run.backends.len(), run.frontends.len());
    let count = |who| run.host(who).map(|host| run.world.network.connections(host));
    let mut all = (0..backends)
        .map(|at| (Who::Backend(at), threads + frontends))
        .chain((0..frontends).map(|at| (Who::Frontend(at), threads + backends)));
    let off = all.find(|&(who, expected)| count(who) != Some(expected));
    off.map(|(who, expected)| {
        format!("{who:?} has {:?} connections; {expected} are right", count(who))
    })
}

/// Each task had one outcome, and each client counts so too.
fn unaccounted(run: &Run) -> Option<String> {
    let (tasks, ended) = (run.world.ledger.borrow().len(), run.applications.tally.total());
    if tasks != ended as usize {
        return Some(format!("{tasks} tasks were submitted and {ended} have ended"));
    }
    run.world.frontends.iter().flatten().find_map(|process| {
        let c = process.client()?.counters();
        let ended = c.completed + c.dropped + c.failed;
        let number = process.number;
        (c.submitted != ended)
            .then(|| format!("frontend {number} counts {} tasks and {ended} outcomes", c.submitted))
    })
}

/// Failures for which a calm run gives no reason: all but slow inputs, engines that fail, and a backend
/// that went.
fn needless(tally: &Tally) -> u32 {
    let reasons = [FailReason::FetchTimeout, FailReason::Engine, FailReason::BackendLost];
    tally.failed()
        - reasons.map(|reason| tally.failed[usize::from(reason.code())]).iter().sum::<u32>()
}

/// What a stopping scheduler gives back is kept. If nothing goes wrong but that the scheduler is
/// restarted in order, no task fails for it.
fn restart_cost(run: &Run) -> Option<String> {
    let plan = &run.plan;
    let told = run.applications.tally.dropped[usize::from(DropReason::Shutdown.code())];
    if told > 0 {
        return Some(format!("{told} tasks were dropped because the scheduler stopped"));
    }
    let bearable = |fault: &Fault| fault.is_calm() || matches!(fault, Fault::Stop(_));
    let prompt = moments::PROMPT + plan.link.doubt().times(4);
    let (late, number) = run.world.ledger.borrow().latest_given_up;
    let is_mere_restart = plan.attacks.is_empty()
        && !run.stop_cut_short
        && plan.faults.iter().all(|(_, fault)| bearable(fault));
    // What was added at run time, the next scheduler does not know.
    let unknown = &run.applications.tally.failed[usize::from(FailReason::UnknownModel.code())];
    let forgotten = if plan.changes.is_empty() { 0 } else { *unknown };
    let failed = needless(&run.applications.tally) - forgotten;
    // What the next scheduler gives back was submitted again, under another generation.
    let stops = plan.faults.iter().filter(|(_, fault)| matches!(fault, Fault::Stop(_))).count();
    if is_mere_restart && stops == 1 && late > prompt {
        return Some(format!("task {number} was given back, and given up {late:?} late"));
    }
    let undelivered = run.past.outcomes_undelivered();
    // A client goes once one ModelThread has taken leave. It keeps the tasks for which others have batches.
    let is_one_thread = plan.cluster.scheduler.model_threads == 1;
    if is_mere_restart && is_one_thread && undelivered > 0 {
        return Some(format!("{undelivered} outcomes were not delivered in an orderly restart"));
    }
    (is_mere_restart && failed > 0)
        .then(|| format!("{failed} tasks failed although the scheduler was restarted in order"))
}

/// No task ends because its model was removed unless one was.
fn removed_for_nothing(run: &Run) -> Option<String> {
    let removed = run.applications.tally.dropped[usize::from(DropReason::ModelRemoved.code())];
    (removed > 0 && !run.world.may_remove)
        .then(|| format!("{removed} tasks lost their model, although no model was removed"))
}

/// Every client can use the models that the scheduler serves, and no others.
fn catalogues_differ(run: &Run) -> Option<String> {
    let scheduler = run.world.scheduler.as_ref()?;
    let served = scheduler.assembly.control.models().map(|(_, spec)| spec.name.clone());
    let mut served: Vec<String> = served.collect();
    served.sort_unstable();
    run.world.frontends.iter().flatten().find_map(|process| {
        let models = process.client()?.models();
        let known: Vec<String> = models.iter().map(|model| model.name().to_owned()).collect();
        let number = process.number;
        (known != served).then(|| {
            format!("frontend {number} can use {known:?}, and the scheduler serves {served:?}")
        })
    })
}

/// On a host that had no core for any process, no process takes another for gone.
fn lost_for_nothing(run: &Run) -> Option<String> {
    let plan = &run.plan;
    // One that leaves may join again without all its connections, and is sent away once more.
    let loses_no_process = |fault: &Fault| {
        matches!(fault, Fault::FreezeAll(_) | Fault::Move(..) | Fault::Join | Fault::Slow(..))
    };
    if !plan.attacks.is_empty() || !plan.faults.iter().all(|(_, fault)| loses_no_process(fault)) {
        return None;
    }
    let world = &run.world;
    let scheduler = world.scheduler.as_ref()?;
    // An application waits no longer for its client to join than it said, also when everybody stands still meanwhile.
    let lost = scheduler.assembly.counters().control_thread.lost.get();
    let members = lost.saturating_sub(run.past.joins_given_up);
    let backends = world.backends.iter().flatten().map(|process| process.worker.counters());
    let backends = run.past.backends.iter().copied().chain(backends);
    let clients = world.frontends.iter().flatten().filter_map(|process| process.client());
    let clients = run.past.clients.iter().cloned().chain(clients.map(|client| client.counters()));
    let clients = clients.map(|c| c.reconnects);
    let answers = backends.clone().map(|c| c.answers_lost).sum::<u64>();
    let schedulers = backends.map(|c| c.schedulers_lost).chain(clients).sum::<u64>();
    (members + schedulers + answers > 0).then(|| {
        format!(
            "{members} members were lost to the scheduler, the scheduler to {schedulers}, and {answers} answers, although \
             everybody stood still together"
        )
    })
}

/// In a calm run the scheduler, the backends and the clients must have counted the same.
fn disagreement(run: &Run) -> Option<String> {
    let scheduler = run.world.scheduler.as_ref()?;
    let mut clients = run.past.clients.clone();
    let living = run.world.frontends.iter().flatten();
    clients.extend(living.filter_map(|process| Some(process.client()?.counters())));
    let of_clients = |count: fn(&ClientCounters) -> u64| -> u64 { clients.iter().map(count).sum() };
    let threads = &scheduler.assembly.counters().model_threads;
    let of_threads = |count: fn(&ModelThreadCounters) -> &Counter| -> u64 {
        threads.iter().map(|thread| count(thread).get()).sum()
    };
    let own = of_clients(|c| c.transport.send_full);
    if !run.plan.is_calm() || own > 0 {
        return None;
    }
    let dropped = of_threads(|c| &c.dropped_deadline)
        + of_threads(|c| &c.dropped_window)
        + of_threads(|c| &c.dropped_deadline_passed)
        + of_threads(|c| &c.dropped_queue_full)
        + of_threads(|c| &c.dropped_quota)
        + of_threads(|c| &c.dropped_share)
        + of_threads(|c| &c.dropped_no_backend)
        + of_threads(|c| &c.dropped_model_removed)
        + of_threads(|c| &c.dropped_accuracy)
        + of_threads(|c| &c.cancelled);
    let lives = run.world.backends.iter().flatten().map(|process| process.worker.counters());
    let executed: u64 =
        run.past.backends.iter().copied().chain(lives).map(|c| c.rows_executed).sum();
    let pairs = [
        ("tasks submitted", of_threads(|c| &c.submitted), of_clients(|c| c.submitted)),
        ("tasks dropped", dropped, of_clients(|c| c.dropped)),
        ("tasks completed", executed, of_clients(|c| c.completed)),
        ("outcomes not delivered", of_threads(|c| &c.outcomes_undelivered), 0),
        ("outcomes told twice", of_clients(|c| c.duplicates + c.transport.results_stale), 0),
        ("unexpected messages", of_clients(|c| c.unexpected), 0),
        ("stale reports", of_threads(|c| &c.stale_reports), 0),
        ("tasks executed again", run.world.ledger.borrow().again, 0),
        ("tasks failed without a fault", u64::from(needless(&run.applications.tally)), 0),
    ];
    let off = pairs.into_iter().find(|(_, here, there)| here != there);
    off.map(|(what, here, there)| {
        format!("{what}: {here} on the serving side, {there} at the clients, in a calm run")
    })
}
