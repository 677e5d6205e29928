//! Other rules for a sub-cluster whose models lose tasks: see [`baton_core::Trial`].
//!
//! While models of a sub-cluster lose tasks, every ModelThread records what arrives for them. Once each has handed over its
//! part, a thread of its own tries the rules, and the ModelThreads follow the verdict. One sub-cluster at a time.

use std::mem;

use baton_core::{
    Alternative, Enough, Look, Nanos, Policy, Slowdown, SubclusterId, Trial, Trials, Verdict,
};
use baton_rdma::Transport;

use super::{ControlParts, ControlThread};
use crate::commands::{ModelCommand, RankCommand, RecordedPart};

/// What is under way.
#[derive(Debug)]
enum Step {
    Nothing,
    /// Parts of the recording that are there.
    Recording(SubclusterId, Vec<RecordedPart>),
    /// As many parts of a recording that is not needed any more are still to come.
    Discarding(usize),
    /// All parts; the RankThread is asked for the slots.
    Asking(Vec<RecordedPart>),
    /// Its verdict is awaited.
    Trying,
}

/// The trials of all sub-clusters.
#[derive(Debug)]
pub(super) struct Trying {
    /// By sub-cluster.
    trials: Vec<Trials>,
    step: Step,
}

impl Trying {
    pub(super) fn new(parts: &ControlParts) -> Self {
        let models = parts.homes.len();
        let prefer = parts.common.prefer();
        let trials = parts.catalog.subclusters().map(|_| Trials::new(models, prefer)).collect();
        Self { trials, step: Step::Nothing }
    }

    fn of(&mut self, subcluster: SubclusterId) -> &mut Trials {
        &mut self.trials[subcluster.0 as usize]
    }
}

impl<T: Transport> ControlThread<T> {
    /// Begins a trial where one is due, by what ModelThreads have lost as of the last look.
    pub(super) fn look_at_losses(&mut self, now: Nanos) {
        for subcluster in self.parts.catalog.subclusters().collect::<Vec<_>>() {
            match self.look_at(now, subcluster) {
                Some(Look::Record(enough)) => return self.record(subcluster, enough),
                Some(Look::Follow(rules)) => self.follow(subcluster, rules, None),
                Some(Look::Discard) => self.discard(),
                None => {}
            }
        }
    }

    /// Trials know no weights that have to be loaded. They replay a model with variants as its cheapest: where tasks are
    /// lost, it executes no other.
    fn may_try(&self, subcluster: SubclusterId) -> bool {
        self.parts.common.policy() == Policy::Baton && !self.has_cache(subcluster)
    }

    /// What the sub-cluster's models follow, if the policy has a choice.
    pub(super) fn rules(&self, subcluster: SubclusterId) -> Option<Alternative> {
        let has_choice = self.parts.common.policy() == Policy::Baton;
        has_choice.then(|| self.trying.trials[subcluster.0 as usize].rules())
    }

    fn look_at(&mut self, now: Nanos, subcluster: SubclusterId) -> Option<Look> {
        if !self.may_try(subcluster) {
            return None;
        }
        let Self { parts, trying, .. } = self;
        let is_trying = !matches!(trying.step, Step::Nothing);
        let loads = parts.catalog.served_by(subcluster).map(|(model, _)| parts.load.of(model));
        let counts = loads.map(|load| (load.requests, load.lost));
        trying.of(subcluster).look(now, counts, is_trying)
    }

    fn record(&mut self, subcluster: SubclusterId, enough: Enough) {
        let threads = self.parts.model_threads.len();
        self.trying.step = Step::Recording(subcluster, Vec::with_capacity(threads));
        let enough = enough.split(threads);
        self.tell_model_threads(|| ModelCommand::Record { subcluster, enough });
    }

    /// Another recording is more urgent than the one that is under way. It begins once all parts of this one are there.
    fn discard(&mut self) {
        if let Step::Recording(_, parts) = &self.trying.step {
            self.trying.step = Step::Discarding(self.parts.model_threads.len() - parts.len());
            self.tell_model_threads(|| ModelCommand::EndRecording);
        }
    }

    /// A ModelThread's part. The first one that has enough ends the recording for all.
    pub(super) fn on_recorded(&mut self, part: RecordedPart) {
        if let Step::Discarding(left) = &mut self.trying.step {
            *left -= 1;
            if *left == 0 {
                self.trying.step = Step::Nothing;
            }
            return;
        }
        let Step::Recording(subcluster, parts) = &mut self.trying.step else { return };
        let subcluster = *subcluster;
        parts.push(part);
        let is_first = parts.len() == 1;
        if parts.len() == self.parts.model_threads.len() {
            self.trying.step = Step::Asking(mem::take(parts));
            let slots = self.roster.serving(subcluster) as usize;
            let slowdowns = Vec::with_capacity(slots);
            self.parts.rank.send(RankCommand::TellSlots { subcluster, slowdowns });
        } else if is_first {
            self.tell_model_threads(|| ModelCommand::EndRecording);
        }
    }

    /// The slots that are tried.
    pub(super) fn on_slots(&mut self, subcluster: SubclusterId, slots: Vec<Slowdown>) {
        let Step::Asking(parts) = &mut self.trying.step else { return };
        let parts = mem::take(parts);
        self.trying.step = Step::Trying;
        let (models, records): (Vec<_>, Vec<_>) =
            parts.into_iter().map(|part| (part.models, part.record)).unzip();
        let trial = Trial::new(models.concat(), slots, records);
        let present = self.trying.of(subcluster).rules();
        self.parts.slow_work.try_rules(trial, (subcluster, present), &self.parts.notice_sender);
    }

    /// What came of a trial.
    pub(super) fn on_tried(
        &mut self,
        subcluster: SubclusterId,
        verdict: Result<Option<Verdict>, String>,
    ) {
        self.trying.step = Step::Nothing;
        self.parts.counters.trials.add(1);
        let verdict = verdict.unwrap_or_else(|why| {
            tracing::warn!(why, "no other rules were tried");
            None
        });
        let trials = self.trying.of(subcluster);
        if let Some(rules) = trials.conclude(self.log.now, verdict.as_ref()) {
            self.follow(subcluster, rules, verdict.as_ref());
        }
    }

    /// Has everybody follow other rules. Without a verdict where batches begin at once no longer.
    fn follow(&mut self, subcluster: SubclusterId, rules: Alternative, verdict: Option<&Verdict>) {
        self.parts.counters.rules_changed.add(1);
        self.tell_model_threads(|| ModelCommand::Follow { subcluster, rules });
        let (name, rules) = (self.parts.catalog.subcluster_name(subcluster), rules.name());
        tracing::info!(
            subcluster = name,
            rules,
            tasks = verdict.map(|verdict| verdict.tasks),
            lost = verdict.map(|verdict| verdict.lost),
            lost_least = verdict.map(|verdict| verdict.lost_least),
            "models follow other rules"
        );
    }
}
