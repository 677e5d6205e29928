//! Which actions a state allows, what they lead to, and what must hold.

use super::*;

impl Bounds {
    fn client_actions(self, state: &State, actions: &mut Vec<Action>) {
        let client = &state.client;
        let is_new = client.task.is_none() && client.tickets < self.tickets;
        if is_new && client.is_ready && client.slab.is_free() {
            actions.push(Action::Submit);
        }
        if client.task.is_some() && client.cancels < self.cancels {
            actions.push(Action::Cancel);
        }
        if client.is_pending && client.is_ready && client.resubmits < self.resubmits {
            actions.push(Action::Resubmit);
        }
    }

    fn messages(state: &State, actions: &mut Vec<Action>) {
        let has_scheduler = state.scheduler.is_some();
        let is = |what: fn(&Scheduler) -> bool| state.scheduler.as_deref().is_some_and(what);
        let heard = [
            (is(Scheduler::has_news), Action::Match),
            (is(Scheduler::has_grant), Action::Grant),
            (!state.requests.is_empty() && has_scheduler, Action::HearClient),
            (!state.actions.is_empty(), Action::HearBatch),
            (!state.ends.is_empty(), Action::HearEnd),
            (!state.answers.is_empty(), Action::HearAnswer),
            (!state.reports.is_empty() && has_scheduler, Action::HearReport),
        ];
        actions.extend(heard.into_iter().filter(|heard| heard.0).map(|heard| heard.1));
    }

    fn backend_actions(state: &State, is_kind: bool, actions: &mut Vec<Action>) {
        for (at, held) in state.backend.held.iter().enumerate() {
            actions.push(match held.phase {
                Phase::Waiting => Action::Read(at),
                Phase::Reading(_) => Action::EndRead(at),
                Phase::Here(_) | Phase::Lost => Action::Execute(at),
            });
            if !is_kind && matches!(held.phase, Phase::Waiting | Phase::Here(_)) {
                actions.push(Action::GiveBack(at));
            }
        }
    }

    fn joins(state: &State, actions: &mut Vec<Action>) {
        match &state.scheduler {
            None => actions.push(Action::Succeed),
            Some(scheduler) if scheduler.is_stopping => {
                let is_over = scheduler.is_idle() && state.requests.is_empty();
                actions.extend(is_over.then_some(Action::KillScheduler));
            }
            Some(scheduler) => {
                // A backend answers what it has before it joins again.
                if scheduler.gpu.is_none() && state.backend.held.is_empty() {
                    actions.push(Action::BackendJoins);
                }
                if !state.client.is_ready {
                    actions.push(Action::ClientJoins);
                }
                let is_introduced = scheduler.gpu.is_some() && scheduler.frontend.is_some();
                if is_introduced && state.backend.link.is_none() {
                    actions.push(Action::Reconnect);
                }
            }
        }
    }

    fn faults(state: &State, actions: &mut Vec<Action>) {
        if let Some(scheduler) = &state.scheduler {
            if !scheduler.is_stopping {
                actions.extend([Action::KillScheduler, Action::StopScheduler]);
            }
            if state.client.is_ready {
                actions.push(Action::BreakClient);
            }
            if !scheduler.has_removed {
                actions.push(Action::RemoveModel);
            }
        }
        if state.backend.link.is_some() {
            actions.extend([Action::KillBackend, Action::BreakLink]);
        }
        if state.client.task.is_some() {
            actions.push(Action::Expire);
        }
    }

    fn apply(state: &mut State, action: Action) {
        match action {
            Action::Submit => {
                let task = state.client.submit();
                state.requests.extend(task.map(Request::Submit));
            }
            Action::Cancel => {
                let task = state.client.cancel();
                state.requests.extend(task.map(Request::Cancel));
            }
            Action::Resubmit => {
                let task = state.client.resubmit();
                state.requests.extend(task.map(Request::Submit));
            }
            Action::Expire => state.client.expire(),
            Action::HearClient => state.hear_client(),
            Action::HearBatch => {
                let report = state.actions.pop_front().and_then(|it| state.backend.on_action(it));
                state.reports.extend(report);
            }
            Action::HearEnd => {
                if let Some((task, why)) = state.ends.pop_front() {
                    state.client.on_end(task, why);
                }
            }
            Action::HearAnswer => state.hear_answer(),
            Action::HearReport => state.hear_report(),
            Action::Match => state.scheduler_mut().into_iter().for_each(Scheduler::match_slots),
            Action::Grant => state.scheduler_mut().into_iter().for_each(Scheduler::take_grant),
            Action::Read(at) => state.read(at),
            Action::EndRead(at) => state.end_read(at),
            Action::Execute(at) => state.execute(at),
            Action::GiveBack(at) => {
                let report = state.backend.give_back(at);
                state.reports.extend(report);
            }
            action => Self::break_or_mend(state, action),
        }
        state.send_decisions();
    }

    fn break_or_mend(state: &mut State, action: Action) {
        match action {
            Action::Succeed => {
                state.lives += 1;
                state.scheduler = Some(Arc::new(Scheduler::new(state.lives)));
            }
            Action::ClientJoins => state.client_joins(),
            Action::BackendJoins => state.backend_joins(),
            Action::Reconnect => state.introduce(),
            Action::KillScheduler => state.kill_scheduler(),
            Action::KillBackend => state.kill_backend(),
            Action::BreakLink => state.cut_link(),
            Action::BreakClient => state.break_client(),
            Action::StopScheduler => state.scheduler_mut().into_iter().for_each(Scheduler::stop),
            Action::RemoveModel => {
                state.scheduler_mut().into_iter().for_each(|it| it.remove_model());
            }
            _ => unreachable!("the others are applied elsewhere"),
        }
    }

    /// A state machine that panics has broken a rule of its own.
    fn applied(state: &State, action: Action) -> State {
        let mut next = state.clone();
        let applied = catch_unwind(AssertUnwindSafe(|| Self::apply(&mut next, action)));
        match applied {
            Ok(()) => next,
            Err(panic) => State { broken: Some(said(&*panic)), ..state.clone() },
        }
    }

    /// Nothing is left to happen.
    fn is_quiet(state: &State) -> bool {
        let mut actions = Vec::new();
        Self::messages(state, &mut actions);
        Self::backend_actions(state, true, &mut actions);
        Self::joins(state, &mut actions);
        actions.is_empty() && !(state.client.is_pending && state.client.is_ready)
    }
}

fn is_fault(action: Action) -> bool {
    use Action::{BreakClient, BreakLink, Expire, KillBackend, KillScheduler};
    use Action::{RemoveModel, StopScheduler};
    matches!(
        action,
        BreakClient
            | BreakLink
            | Expire
            | KillBackend
            | KillScheduler
            | RemoveModel
            | StopScheduler
    )
}

impl Model for Bounds {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        self.client_actions(state, actions);
        Self::messages(state, actions);
        Self::backend_actions(state, false, actions);
        Self::joins(state, actions);
        if state.faults < self.faults {
            Self::faults(state, actions);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = Self::applied(state, action);
        next.faults += u8::from(is_fault(action));
        Some(next)
    }

    fn within_boundary(&self, state: &State) -> bool {
        let generations = state.client.task.map_or(0, |task| task.id.generation());
        let sealed = state.scheduler.as_ref().map_or(0, |it| it.actions);
        generations <= u32::from(self.tickets + self.resubmits) + 1 && sealed <= self.actions
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = always();
        properties.extend(sometimes());
        properties
    }
}

fn always() -> Vec<Property<Bounds>> {
    vec![
        Property::always("no state machine breaks a rule of its own", |_, it: &State| {
            it.broken.is_none() && it.client.broken.is_none()
        }),
        Property::always("each accepted task has one outcome at most", |_, it: &State| {
            let ended = |ticket| it.client.outcomes.iter().filter(|end| end.0 == ticket).count();
            let outstanding = it.client.task.map(|task| task.ticket);
            (0..it.client.tickets)
                .all(|ticket| ended(ticket) == usize::from(outstanding != Some(ticket)))
        }),
        Property::always("an answer is that of the ticket's own input", |_, it: &State| {
            it.client
                .outcomes
                .iter()
                .all(|&(ticket, outcome)| outcome.is_err() || outcome == Ok(ticket))
        }),
        Property::always(
            "matcher and ModelThread agree on what is outstanding",
            |_, it: &State| it.scheduler.as_deref().is_none_or(Scheduler::is_sound),
        ),
        Property::always("a task ends before nothing is left to happen", |_, it: &State| {
            it.client.task.is_none() || it.is_answer_lost || !Bounds::is_quiet(it)
        }),
    ]
}

fn sometimes() -> Vec<Property<Bounds>> {
    vec![
        Property::sometimes("every task is answered", |bounds: &Bounds, it: &State| {
            let answered = it.client.outcomes.iter().filter(|end| end.1.is_ok());
            answered.count() == usize::from(bounds.tickets)
        }),
        Property::sometimes("a task is answered that was submitted again", |_, it: &State| {
            it.client.resubmits > 0 && it.client.outcomes.iter().any(|end| end.1.is_ok())
        }),
        Property::sometimes("an answer comes for a task of before", |_, it: &State| {
            let now = it.client.task.map(|task| task.id);
            let is_old =
                |task: TaskId| now.is_some_and(|now| now.slot() == task.slot() && now != task);
            it.answers.iter().any(|answer| match *answer {
                Answer::Result(task, _) | Answer::End(task, _) => is_old(task),
            })
        }),
        Property::sometimes("a task is cancelled", |bounds: &Bounds, it: &State| {
            let why = Err(Unserved::Dropped(DropReason::Cancelled));
            bounds.cancels == 0 || it.client.outcomes.iter().any(|end| end.1 == why)
        }),
        Property::sometimes("a task comes too late for its model", |_, it: &State| {
            it.client.outcomes.iter().any(|end| end.1 == Err(REMOVED))
        }),
    ]
}

#[test]
fn each_of_two_tasks_ends_once_if_one_thing_breaks() {
    let bounds = Bounds { tickets: 2, cancels: 1, faults: 1, resubmits: 1, actions: 2 };
    let test = ("outcome", "model::each_of_two_tasks_ends_once_if_one_thing_breaks");
    Run { test, states_min: 5_000 }.check(&bounds);
}

#[test]
fn a_task_ends_once_if_two_things_break() {
    let bounds = match is_wide() {
        false => Bounds { tickets: 1, cancels: 0, faults: 2, resubmits: 2, actions: 2 },
        true => Bounds { tickets: 2, cancels: 1, faults: 2, resubmits: 3, actions: 4 },
    };
    let test = ("outcome", "model::a_task_ends_once_if_two_things_break");
    Run { test, states_min: 5_000 }.check(&bounds);
}
