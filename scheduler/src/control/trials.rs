//! Other rules for a sub-cluster whose models lose tasks: see [`baton_core::Trial`].
//!
//! While models of a sub-cluster lose tasks, every ModelThread records what arrives for them. Once each has handed over its
//! part, a thread of its own tries the rules, and the ModelThreads follow the verdict. One sub-cluster at a time.

use std::mem;

use baton_core::{
    Alternative, ModelConfig, Nanos, Policy, Recorded, SubclusterId, Trial, Trials, Verdict,
};
use baton_rdma::Transport;

use super::{ControlParts, ControlThread};
use crate::commands::{ModelCommand, RecordedPart};

/// What is under way.
#[derive(Debug)]
enum Step {
    Nothing,
    /// Parts of the recording that are there.
    Recording(SubclusterId, Vec<RecordedPart>),
    /// Its verdict is awaited.
    Trying,
}

/// The trials of all sub-clusters.
#[derive(Debug)]
pub(super) struct Trying {
    /// By sub-cluster.
    trials: Vec<Trials>,
    step: Step,
    /// As of the last look.
    now: Nanos,
}

/// All that a trial needs, on another thread.
#[derive(Debug)]
pub(in crate::control) struct TrialParts {
    pub(in crate::control) subcluster: SubclusterId,
    present: Alternative,
    slots: u32,
    models: Vec<ModelConfig>,
    arrivals: Vec<Recorded>,
}

impl Trying {
    pub(super) fn new(parts: &ControlParts) -> Self {
        let models = parts.homes.len();
        let trials = parts.catalog.subclusters().map(|_| Trials::new(models)).collect();
        Self { trials, step: Step::Nothing, now: Nanos::ZERO }
    }

    /// What the sub-cluster's models follow.
    pub(super) fn rules(&self, subcluster: SubclusterId) -> Alternative {
        self.trials[subcluster.0 as usize].rules()
    }
}

impl TrialParts {
    /// Of what ModelThreads have recorded. `None` without slots.
    fn of(
        subcluster: SubclusterId,
        (present, slots): (Alternative, u32),
        parts: Vec<RecordedPart>,
    ) -> Option<Self> {
        let until = parts.iter().map(|part| part.until).min()?;
        let mut models: Vec<ModelConfig> = Vec::new();
        let mut arrivals: Vec<Recorded> = Vec::new();
        for part in parts {
            models.extend(part.models);
            arrivals.extend(part.arrivals.into_iter().filter(|task| task.at < until));
        }
        models.sort_by_key(|model| model.id.0);
        arrivals.sort_by_key(|task| task.at);
        // A model that is on its way to another ModelThread is left out.
        arrivals.retain_mut(|task| {
            let position = models.binary_search_by_key(&task.model, |model| model.id.0);
            task.model = position.map_or(u32::MAX, |at| at as u32);
            position.is_ok()
        });
        (slots > 0).then_some(Self { subcluster, present, slots, models, arrivals })
    }

    pub(in crate::control) fn verdict(&self) -> Verdict {
        let Self { present, slots, models, arrivals, .. } = self;
        Trial { models, slots: *slots, arrivals }.verdict(*present)
    }
}

impl<T: Transport> ControlThread<T> {
    /// Begins a trial where one is due. ModelThreads have just been asked for what they lose.
    pub(super) fn look_at_losses(&mut self, now: Nanos) {
        self.trying.now = now;
        for subcluster in self.parts.catalog.subclusters().collect::<Vec<_>>() {
            if self.may_try(subcluster)
                && let Some(most) = self.look_at(now, subcluster)
            {
                return self.record(subcluster, most);
            }
        }
    }

    /// Trials know neither variants nor weights that have to be loaded.
    fn may_try(&self, subcluster: SubclusterId) -> bool {
        let mut models = self.parts.catalog.served_by(subcluster);
        matches!(self.trying.step, Step::Nothing)
            && self.parts.common.policy() == Policy::Baton
            && !self.has_cache(subcluster)
            && models.all(|(_, entry)| entry.spec.variants.is_empty())
    }

    /// What the sub-cluster's models follow, if the policy has a choice.
    pub(super) fn rules(&self, subcluster: SubclusterId) -> Option<Alternative> {
        let has_choice = self.parts.common.policy() == Policy::Baton;
        has_choice.then(|| self.trying.rules(subcluster))
    }

    fn look_at(&mut self, now: Nanos, subcluster: SubclusterId) -> Option<usize> {
        let Self { parts, trying, .. } = self;
        let loads = parts.catalog.served_by(subcluster).map(|(model, _)| parts.load.of(model));
        let counts = loads.map(|load| (load.requests, load.lost));
        trying.trials[subcluster.0 as usize].look(now, counts)
    }

    fn record(&mut self, subcluster: SubclusterId, most: usize) {
        let threads = self.parts.model_threads.len();
        self.trying.step = Step::Recording(subcluster, Vec::with_capacity(threads));
        let most = most.div_ceil(threads);
        self.tell_model_threads(|| ModelCommand::Record { subcluster, most });
    }

    /// A ModelThread's part. The first one that has enough ends the recording for all.
    pub(super) fn on_recorded(&mut self, part: RecordedPart) {
        let Step::Recording(subcluster, parts) = &mut self.trying.step else { return };
        let subcluster = *subcluster;
        parts.push(part);
        let is_first = parts.len() == 1;
        if parts.len() == self.parts.model_threads.len() {
            let parts = mem::take(parts);
            self.try_rules(subcluster, parts);
        } else if is_first {
            self.tell_model_threads(|| ModelCommand::EndRecording);
        }
    }

    fn try_rules(&mut self, subcluster: SubclusterId, parts: Vec<RecordedPart>) {
        let present = (self.trying.rules(subcluster), self.roster.serving(subcluster));
        match TrialParts::of(subcluster, present, parts) {
            Some(parts) => {
                self.trying.step = Step::Trying;
                self.parts.slow_work.try_rules(parts, &self.parts.notice_sender);
            }
            None => self.end_trial(subcluster, None),
        }
    }

    /// What came of a trial.
    pub(super) fn on_tried(&mut self, subcluster: SubclusterId, verdict: Result<Verdict, String>) {
        self.parts.counters.trials.add(1);
        if let Err(why) = &verdict {
            tracing::warn!(why, "no other rules were tried");
        }
        self.end_trial(subcluster, verdict.ok());
    }

    fn end_trial(&mut self, subcluster: SubclusterId, verdict: Option<Verdict>) {
        let Trying { trials, step, now } = &mut self.trying;
        *step = Step::Nothing;
        let trials = &mut trials[subcluster.0 as usize];
        let Some(rules) = trials.conclude(*now, verdict.as_ref()) else { return };
        self.parts.counters.rules_changed.add(1);
        self.tell_model_threads(|| ModelCommand::Follow { subcluster, rules });
        let (name, rules) = (self.parts.catalog.subcluster_name(subcluster), rules.name());
        tracing::info!(subcluster = name, rules, ?verdict, "models follow other rules");
    }
}
