//! Trials of other rules in the simulated scheduler. What a trial costs takes no virtual time.

use baton_core::{
    Alternative, Look, ModelId, ModelState, Nanos, Policy, Prefer, RankState, Recent, Recorded,
    Recording, SubclusterId, Trial, Trials,
};

use crate::scenario::Scenario;

/// One sub-cluster's trials.
pub(crate) struct Trying {
    subcluster: SubclusterId,
    /// Positions of its models among all.
    models: Vec<usize>,
    trials: Trials,
    next_look: Nanos,
    recent: Recent,
    recording: Option<Recording>,
}

impl Trying {
    /// Of every sub-cluster; none where nothing else is tried.
    pub(crate) fn all(scenario: &Scenario, policy: Policy, homes: &[SubclusterId]) -> Vec<Self> {
        let may_try = policy == Policy::Baton && scenario.memory.is_none();
        let subclusters = (0..scenario.subclusters.count()).filter(|_| may_try).map(SubclusterId);
        subclusters.map(|subcluster| Self::new(homes, subcluster, scenario.prefer)).collect()
    }

    /// For the models of a sub-cluster.
    fn new(homes: &[SubclusterId], subcluster: SubclusterId, prefer: Prefer) -> Self {
        let models: Vec<usize> = (0..homes.len()).filter(|&m| homes[m] == subcluster).collect();
        let trials = Trials::new(models.len(), prefer);
        let (recent, next_look) = (Recent::default(), Trials::LOOK_EVERY);
        Self { subcluster, models, trials, next_look, recent, recording: None }
    }

    /// Its models, by their positions among all.
    pub(crate) fn models(&self) -> &[usize] {
        &self.models
    }

    /// A task came. Returns the rules that the models follow from now on, if that changes.
    pub(crate) fn arrived(
        &mut self,
        now: Nanos,
        (model, deadline): (u32, Nanos),
        (models, rank): (&[ModelState], &RankState),
    ) -> Option<Alternative> {
        let task = Recorded { at: now, model: ModelId(model), budget: deadline - now };
        self.recent.arrived(task);
        let is_over = |recording: &mut Recording| !recording.arrived(task);
        if let Some(recording) = self.recording.take_if(is_over) {
            return self.conclude(now, recording, (models, rank));
        }
        if now < self.next_look { None } else { self.look(now, models) }
    }

    fn look(&mut self, now: Nanos, models: &[ModelState]) -> Option<Alternative> {
        self.next_look = now + Trials::LOOK_EVERY;
        let counters = self.models.iter().map(|&m| models[m].counters());
        let counts = counters.map(|counters| (counters.received, counters.given_up));
        match self.trials.look(now, counts, self.recording.is_some())? {
            Look::Record(enough) => {
                self.recording = Some(Recording::new(now, enough, &self.recent, |_| true));
            }
            Look::Discard => self.recording = None,
            Look::Follow(rules) => return Some(rules),
        }
        None
    }

    fn conclude(
        &mut self,
        now: Nanos,
        recording: Recording,
        (models, rank): (&[ModelState], &RankState),
    ) -> Option<Alternative> {
        let replicas = self.models.iter().map(|&m| models[m].replica()).collect();
        let trial = Trial::new(
            replicas,
            rank.slowdowns(self.subcluster).collect(),
            vec![recording.end(now)],
        );
        let verdict = trial.verdict(self.trials.rules());
        self.trials.conclude(now, verdict.as_ref())
    }
}
