//! What the books of a scheduler must say at the end of a run, and when outcomes must have come.

use baton_client::DropReason;
use baton_core::{RateLimit, SubclusterId};
use baton_scheduler::{Counter, ModelThreadCounters};
use baton_topo::{Cluster, ModelSpec};

use crate::faults::{Fault, Who};
use crate::network::START_GRACE;
use crate::run::Run;

pub(crate) fn wrong(run: &Run) -> Option<String> {
    slots(run)
        .or_else(|| batches(run))
        .or_else(|| reasons(run))
        .or_else(|| wishes(run))
        .or_else(|| missed(run))
        .or_else(|| quota_kept(run))
        .or_else(|| late(run))
        .or_else(|| expired(run))
}

fn sum(run: &Run, count: fn(&ModelThreadCounters) -> &Counter) -> u64 {
    let threads = run.world.scheduler.iter().flat_map(|s| &s.assembly.counters().model_threads);
    threads.map(|thread| count(thread).get()).sum()
}

/// With nothing outstanding, every slot of every backend can be granted again.
pub(crate) fn slots(run: &Run) -> Option<String> {
    let (present, offered) = run.world.scheduler.as_ref()?.assembly.rank.slots();
    let backends = run.plan.cluster.backends.iter();
    let gpus: u32 = backends.map(|backend| backend.gpus).sum();
    ((present, offered) != (gpus, gpus as usize)).then(|| {
        format!("of {gpus} GPU slots the RankThread counts {present} and offers {offered}")
    })
}

/// Each plan that was sent has ended in one way.
fn batches(run: &Run) -> Option<String> {
    let plans = sum(run, |c| &c.plans) + sum(run, |c| &c.plans_undelivered);
    let ends = sum(run, |c| &c.batches_executed)
        + sum(run, |c| &c.batches_engine_error)
        + sum(run, |c| &c.batches_expired)
        + sum(run, |c| &c.batches_refused)
        + sum(run, |c| &c.batches_backend_lost)
        + sum(run, |c| &c.plans_undelivered);
    (plans != ends).then(|| format!("{plans} plans were made and {ends} have ended"))
}

/// In a calm run the scheduler counts each reason as often as it gives it to clients.
fn reasons(run: &Run) -> Option<String> {
    let tally = &run.applications.tally;
    if !run.plan.is_calm() || tally.abandoned + tally.gone > 0 {
        return None;
    }
    let told = |reasons: &[DropReason]| -> u64 {
        let ledger = run.world.ledger.borrow();
        reasons.iter().map(|&reason| ledger.dropped[usize::from(reason.code())]).sum()
    };
    // To an older client a quota is a full queue.
    let full = [DropReason::QueueFull, DropReason::Quota];
    let pairs = [
        ("deadline", sum(run, |c| &c.dropped_deadline), told(&[DropReason::Deadline])),
        ("window", sum(run, |c| &c.dropped_window), told(&[DropReason::Window])),
        (
            "deadline_passed",
            sum(run, |c| &c.dropped_deadline_passed),
            told(&[DropReason::DeadlinePassed]),
        ),
        ("no_backend", sum(run, |c| &c.dropped_no_backend), told(&[DropReason::NoBackend])),
        ("cancelled", sum(run, |c| &c.cancelled), told(&[DropReason::Cancelled])),
        (
            "queue_full or quota",
            sum(run, |c| &c.dropped_queue_full)
                + sum(run, |c| &c.dropped_quota)
                + sum(run, |c| &c.dropped_share),
            told(&full),
        ),
    ];
    let off = pairs.into_iter().find(|(_, here, there)| here != there);
    off.map(|(what, here, there)| {
        format!(
            "dropped for {what}: {here} by the scheduler, {there} at the clients, in a calm run"
        )
    })
}

/// In a calm run every wish to cancel is heeded, or was too late.
fn wishes(run: &Run) -> Option<String> {
    let sent = run.world.network.watch(|watch| watch.cancels);
    let taken = sum(run, |c| &c.cancelled) + sum(run, |c| &c.cancelled_late);
    (run.plan.is_calm() && sent != taken)
        .then(|| format!("{sent} wishes to cancel were sent and {taken} taken note of"))
}

/// While everything goes as planned, outcomes of every kind come by the deadline, or as much later as
/// a backend waits for a slot, clocks are wrong and words are under way.
fn late(run: &Run) -> Option<String> {
    if !as_planned(run) {
        return None;
    }
    let plan = &run.plan;
    let (late, number) = run.world.ledger.borrow().latest;
    let bound =
        START_GRACE + plan.link.doubt().times(2) + (plan.link.delay + plan.link.jitter).times(2);
    (late > bound).then(|| {
        format!("task {number} had its outcome {:.3} ms after its deadline", late.as_millis_f64())
    })
}

/// GPUs and network do what is planned with, and nothing else happens to anybody.
fn as_planned(run: &Run) -> bool {
    let plan = &run.plan;
    let planned = |fault: &Fault| matches!(fault, Fault::Move(..) | Fault::Join);
    let undisturbed = plan.attacks.is_empty() && plan.faults.iter().all(|(_, f)| planned(f));
    let exact = plan.engines.percent <= 100
        && plan.engines.jitter_percent == 0
        && plan.engines.measured_percent.is_none();
    undisturbed && exact && plan.link.spikes == 0 && answers_fit(run)
}

/// A backend can start every batch in its window.
fn expired(run: &Run) -> Option<String> {
    let expired = sum(run, |c| &c.batches_expired);
    (as_planned(run) && run.plan.network_fits() && expired > 0).then(|| {
        format!("{expired} batches could not start in their window, and all went as planned")
    })
}

/// No answer waits for the ones before it: several batches of them are under way at once.
fn answers_fit(run: &Run) -> bool {
    let batch =
        |model: &ModelSpec| model.output_bytes.saturating_add(64) * model.profile.batch_max();
    let models = run.world.models.iter();
    models.map(batch).max().is_some_and(|bytes| bytes as usize * 4 <= run.plan.link.window)
}

/// No task misses the backends of a sub-cluster to which nothing has happened.
fn missed(run: &Run) -> Option<String> {
    let (plan, models) = (&run.plan, &run.world.models);
    if !plan.attacks.is_empty() {
        return None;
    }
    let mut ledger = run.world.ledger.borrow_mut();
    let mut numbers = 0..ledger.next_number();
    let unfounded = numbers.find(|&number| {
        let subcluster = models[ledger.task(number).model as usize].subcluster;
        let unsettled = |fault: &Fault| unsettles(fault, &plan.cluster, subcluster);
        ledger.task(number).missed && !plan.faults.iter().any(|(_, fault)| unsettled(fault))
    });
    unfounded.map(|number| {
        format!("task {number} found no backend, and nothing has happened to those of its model")
    })
}

/// True for a fault that may keep the sub-cluster's backends from being members, or their scheduler
/// from knowing them.
fn unsettles(fault: &Fault, cluster: &Cluster, subcluster: SubclusterId) -> bool {
    let of = |who: Who| match who {
        Who::Scheduler => true,
        Who::Backend(at) => cluster.backends[at].subcluster == subcluster,
        Who::Frontend(_) => false,
    };
    match *fault {
        Fault::Kill(who, _) | Fault::Vanish(who, _) | Fault::Freeze(who, _) => of(who),
        Fault::Wall(a, b, _) | Fault::Partition(a, b, _) | Fault::Cut(a, b, ..) => of(a) || of(b),
        Fault::FreezeBoth(a, b, _) => of(a) || of(b),
        Fault::EngineDies(at, _) | Fault::Leave(at, _) | Fault::Stall(at, ..) => {
            of(Who::Backend(at))
        }
        Fault::Stop(_) | Fault::FreezeThread(..) => true,
        _ => false,
    }
}

/// No model has let in more than its quota.
fn quota_kept(run: &Run) -> Option<String> {
    let mut ledger = run.world.ledger.borrow_mut();
    // Each life of the scheduler begins with full buckets.
    let lives = ledger.schedulers.len() as f64;
    let seconds = run.world.now.0 as f64 / 1e9;
    let mut admitted = vec![0u32; run.world.models.len()];
    for number in 0..ledger.next_number() {
        let task = ledger.task(number);
        admitted[task.model as usize] += u32::from(task.admitted);
    }
    let limit = |model: &ModelSpec| model.quota.model.map(RateLimit::rps);
    let limited = run.world.models.iter().zip(admitted);
    let mut limited = limited.filter_map(|(model, admitted)| Some((limit(model)?, admitted)));
    let most = |rps: f64| (rps * 0.1).max(16.0) * lives + rps * seconds + 1.0;
    let over = limited.find(|&(rps, admitted)| f64::from(admitted) > most(rps));
    over.map(|(rps, admitted)| {
        format!("{admitted} tasks of a model were let in within {seconds:.3} s at {rps} per second")
    })
}
