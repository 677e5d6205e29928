//! Finds, in a first run, what an explanation was asked for.

use baton_core::{Nanos, NetworkDelay, TaskId};

use super::Subject;
use super::slots::Slots;
use super::story::{BusyGpu, CandidateView, ModelMoment, Moment, ms};
use crate::observer::{Event, Observer};
use crate::scenario::Scenario;
use crate::tally::SimError;

/// A task and its model.
pub(super) type Key = (u32, TaskId);

/// What the second run is to tell of.
#[derive(Default)]
pub(super) struct Found {
    pub(super) tasks: Vec<Key>,
    /// A batch and its head.
    pub(super) batch: Option<(u64, Key)>,
    pub(super) moment: Option<Moment>,
}

/// See the module documentation.
pub(super) struct Locator {
    subject: Subject,
    /// Tasks that arrived before are no examples.
    from: Nanos,
    network: NetworkDelay,
    names: Vec<String>,
    slots: Slots,
    /// Waiting tasks and candidate of each model.
    models: Vec<(u32, Option<CandidateView>)>,
    found: Found,
}

impl Locator {
    pub(super) fn new(subject: Subject, scenario: &Scenario) -> Self {
        let models = &scenario.models;
        Self {
            subject,
            from: scenario.warmup,
            network: scenario.network,
            names: models.iter().map(|model| model.name.clone()).collect(),
            slots: Slots::new(scenario),
            models: vec![(0, None); models.len()],
            found: Found::default(),
        }
    }

    /// What was found. No examples are a finding, too; a task or batch that does not exist is not.
    pub(super) fn found(mut self, scenario: &Scenario) -> Result<Found, SimError> {
        match self.subject {
            Subject::Task(task) if self.found.tasks.is_empty() => Err(SimError::NoTask { task }),
            Subject::Batch(batch) if self.found.batch.is_none() => {
                Err(SimError::NoBatch { batch, batches: self.slots.count() })
            }
            Subject::At { at_ms } if !(0.0..=ms(scenario.end())).contains(&at_ms) => {
                Err(SimError::OutsideOfRun { at_ms, end_ms: ms(scenario.end()) })
            }
            Subject::At { at_ms } => {
                self.stand_still(at_ms);
                Ok(self.found)
            }
            _ => Ok(self.found),
        }
    }

    fn example(&mut self, model: u32, task: TaskId, most: usize) {
        if task.0 >= self.from.0 && self.found.tasks.len() < most {
            self.found.tasks.push((model, task));
        }
    }

    /// Describes the state as it is, if that has not been done.
    fn stand_still(&mut self, at_ms: f64) {
        if self.found.moment.is_some() {
            return;
        }
        let name = |model: u32| self.names[model as usize].clone();
        let busy = self.slots.under_way().map(|sealed| BusyGpu {
            gpu: sealed.gpu,
            batch: sealed.number,
            model: name(sealed.model),
            tasks: sealed.requests.len() as u32,
            exec_at_ms: ms(sealed.exec_at),
        });
        let waits = |&(_, &(waiting, _)): &(usize, &(u32, _))| waiting > 0;
        let models = self.models.iter().enumerate().filter(waits);
        let models = models.map(|(m, &(waiting, candidate))| ModelMoment {
            model: name(m as u32),
            waiting,
            candidate,
        });
        self.found.moment = Some(Moment {
            at_ms,
            busy: busy.collect(),
            idle_gpus: self.slots.idle(Nanos::from_millis_f64(at_ms)),
            models: models.collect(),
        });
    }
}

impl Observer for Locator {
    fn event(&mut self, now: Nanos, event: Event<'_>) {
        if let Subject::At { at_ms } = self.subject
            && ms(now) > at_ms
        {
            self.stand_still(at_ms);
        }
        match (event, self.subject) {
            (Event::Arrived { model, request }, Subject::Task(task)) if request.task.0 == task => {
                self.found.tasks.push((model, request.task));
            }
            (Event::Ended { model, task, .. }, Subject::Dropped(most)) => {
                self.example(model, task, most);
            }
            (Event::Sealed(batch), subject) => {
                let sealed = self.slots.seal(batch);
                let wanted = match subject {
                    Subject::Batch(number) => sealed.number == number,
                    Subject::At { at_ms } => ms(now) > at_ms && self.found.batch.is_none(),
                    _ => false,
                };
                if wanted {
                    let head = sealed.requests[0].task;
                    self.found.batch = Some((sealed.number, (sealed.model, head)));
                }
            }
            (Event::Finished(finished), subject) => {
                let ended = self.slots.finish(finished);
                if let (Some(sealed), Subject::Late(most)) = (ended, subject) {
                    let late = sealed.requests.iter().filter(|request| now > request.deadline);
                    late.for_each(|request| self.example(sealed.model, request.task, most));
                }
            }
            (Event::Requeued { request, .. }, _) => self.slots.forget(request.task),
            (Event::Looked { model, state }, Subject::At { .. }) => {
                let view = |candidate| CandidateView::of(candidate, state, &self.network);
                let candidate = state.candidate().map(view);
                self.models[model as usize] = (state.waiting() as u32, candidate);
            }
            _ => {}
        }
    }
}
