//! What must hold of reported moments: an answer's are those of its execution, and no task runs out
//! of time for want of a scheduler that is there.

use baton_client::{DropReason, EndRecord, EndedBy, FailReason, Timing};
use baton_core::Nanos;

use crate::faults::Fault;
use crate::network::HostId;
use crate::process::FrontendProcess;
use crate::run::Run;
use crate::world::World;

/// How long after everybody is back a task may still be without a scheduler, not counting the way: a
/// client asks again every 20 ms.
const TAKEN_UP: Nanos = Nanos::from_millis(30);
/// How long answers, and the word that there is none, may take beside the way: a backend waits so long
/// for a frontend that takes none.
pub(crate) const PROMPT: Nanos = Nanos::from_millis(20);
/// No clock is so uncertain once a client is open.
const DOUBT_MAX: Nanos = Nanos::from_millis(1_000);

/// An answer says when its execution began and ended, on its client's clock, as wrong as the client's
/// clock and the backend's may be. Returns what is not so.
pub(crate) fn misdated(world: &World, frontend: usize, number: u64, t: &Timing) -> Option<String> {
    let process = world.frontends[frontend].as_ref()?;
    let (clock, lives) = (process.clock, process.lives());
    // Of the life before the last no clock is kept: all that is said then is that the answer is there.
    if t.clock_error == Nanos::MAX && lives > 2 && t.started == t.landed && t.finished == t.landed {
        return None;
    }
    let drift = world.network.drift_in_pauses();
    let doubt = t.clock_error + world.conditions.link.doubt() + drift;
    let mut ledger = world.ledger.borrow_mut();
    let mut starts = ledger.task(number).runs.iter().map(|run| clock.at(run.started));
    let is_true = starts.any(|start| start <= t.started + doubt && t.started <= start + doubt);
    let in_order = t.started <= t.finished && t.finished <= t.landed + doubt;
    let is_known = t.clock_error < DOUBT_MAX;
    (!is_true || !in_order || !is_known).then(|| {
        format!(
            "task {number} reports that it executed from {:?} to {:?}, {doubt:?} more or less, and \
             landed at {:?}: {}",
            t.started,
            t.finished,
            t.landed,
            match (is_known, is_true) {
                (false, _) => "its client does not know the time",
                (true, false) => "it did not begin then",
                (true, true) => "in the wrong order",
            }
        )
    })
}

/// Where nothing holds anybody up, an answer is there soon after its execution. Returns what is not so.
pub(crate) fn tardy(world: &World, number: u64, t: &Timing) -> Option<String> {
    let took = t.landed - t.finished;
    let most = PROMPT + world.conditions.link.doubt().times(2);
    (took > most).then(|| format!("the answer to task {number} took {took:?}, more than {most:?}"))
}

/// The same of the word that a task is dropped, after its deadline.
pub(crate) fn told_late(world: &World, number: u64, c: &EndRecord) -> Option<String> {
    let late = c.ended - c.deadline;
    let most = PROMPT + world.conditions.link.doubt().times(4);
    (late > most).then(|| {
        format!("the drop of task {number} was reported {late:?} late, more than {most:?}")
    })
}

/// True if a client gave a task up because it had no scheduler to send it to.
pub(crate) fn is_for_want_of_a_scheduler(
    why: Result<DropReason, FailReason>,
    c: &EndRecord,
) -> bool {
    let reason = matches!(why, Ok(DropReason::Deadline) | Err(FailReason::SchedulerLost));
    reason && c.by == EndedBy::Client
}

/// A task that its client drops for want of a scheduler was given back, or its scheduler has stopped in order. Where that
/// scheduler broke, the task has failed. Returns what is not so.
pub(crate) fn blamed_wrongly(world: &World, number: u64) -> Option<String> {
    let mut ledger = world.ledger.borrow_mut();
    let task = ledger.task(number);
    let (life, host, submitted) = (task.life, task.host, task.submitted);
    let lives = &ledger.schedulers[life.saturating_sub(1)..];
    let has_stopped = lives.iter().any(|life| ledger.stopped.contains(life));
    let returned = world.network.watch(|watch| watch.last_return(host));
    let is_returned = returned.is_some_and(|at| at >= submitted);
    (!has_stopped && !is_returned).then(|| {
        format!("task {number} was dropped as if its scheduler had stopped in order, and none had")
    })
}

/// A client that is back takes up what was left: no task waits for a scheduler while all have one.
pub(crate) fn left_behind(run: &Run, number: u64) -> Option<String> {
    let since = run.whole.since.filter(|_| is_whole(run))?;
    let plan = &run.plan;
    let may_wait = |fault: &Fault| fault.may_hold_inputs();
    let excused = !plan.attacks.is_empty() || plan.faults.iter().any(|(_, fault)| may_wait(fault));
    let by = since + TAKEN_UP + plan.link.doubt().times(2);
    (!excused && by < run.world.now).then(|| {
        format!(
            "task {number} had no scheduler, and everybody has one since {:.3} ms",
            since.as_millis_f64()
        )
    })
}

/// Since when everybody is a member and open, and what the scheduler had counted of its members then.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub(crate) struct Whole {
    since: Option<Nanos>,
    membership: (Option<HostId>, u64),
}

/// The same at this moment. Conditions are looked at every so often; a member that was gone between two
/// looks shows in what the scheduler has counted.
pub(crate) fn whole(run: &Run, look: bool) -> Whole {
    let membership = membership(run);
    let known = run.whole.since.filter(|_| membership == run.whole.membership);
    let since = if look { is_whole(run).then(|| known.unwrap_or(run.world.now)) } else { known };
    Whole { since, membership }
}

/// Which scheduler there is, and how often a member has come or gone.
fn membership(run: &Run) -> (Option<HostId>, u64) {
    let Some(scheduler) = &run.world.scheduler else { return (None, 0) };
    let c = &scheduler.assembly.counters().control_thread;
    let changes = [&c.frontends_joined, &c.backends_joined, &c.left, &c.lost];
    (Some(scheduler.host), changes.iter().map(|count| count.get()).sum())
}

/// Every process is a member, every client is open, and the scheduler is not stopping.
pub(crate) fn is_whole(run: &Run) -> bool {
    let open = |process: &FrontendProcess| process.client().is_some_and(|c| c.loss().is_none());
    !run.is_stopping() && run.is_whole() && run.world.frontends.iter().flatten().all(open)
}

#[cfg(test)]
mod tests {
    use baton_core::Nanos;

    use crate::faults::{Fault, Who};
    use crate::plan::Plan;
    use crate::run::Run;

    #[test]
    fn a_backend_that_is_back_before_the_next_look_was_gone() {
        let plan = (0..).map(Plan::of).find(|plan| plan.is_calm()).expect("one in five is");
        let mut run = Run::new(plan, false);
        run.come_up();
        run.pass(Nanos::from_millis(50));
        let (before, now) = (run.whole.since.expect("nothing has happened"), run.world.now);
        assert!(before < now);
        run.break_something(Fault::Kill(Who::Backend(0), Some(Nanos::from_micros(1))));
        run.next_look = now + Nanos::from_millis(500);
        assert!(run.pass_until(Nanos::from_millis(400), Run::is_whole), "it joins again");
        assert_eq!(run.whole.since, None, "nobody has looked since");
    }
}
