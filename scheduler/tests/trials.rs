//! Other rules are tried and followed where models lose tasks: two models on two ModelThreads, which share two slots of a
//! scripted backend.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod stage;

use baton_core::{Alternative, ModelId, Nanos, Policy, Profile, Rules, SplitMix64, SubclusterId};
use baton_rdma::Transport;
use baton_rdma::wire::{
    ActionDone, ActionStatus, ChangeKind, JoinBackend, ProfileDesc, Ready, Role, WireFetch,
};
use baton_topo::{Cluster, ModelSpec, SchedulerSpec, VariantSpec, WeightsCacheSpec, WeightsSpec};
use stage::asking::status;
use stage::cached::{PAGE, announce};
use stage::caches::with_cache;
use stage::changes::{TABLE, answer, ask, loaded, newest};
use stage::{Member, Stage, Told, cluster, ms};

const US: Nanos = Nanos(1_000);
/// A batch of one takes more than half of it.
const OBJECTIVE: Nanos = Nanos(5_751_000);
/// In which enough tasks for one trial come once some are lost, and not for two.
const BURSTS_ENOUGH: usize = 32;
/// Of β. α is 457 µs.
const SHORT: Nanos = Nanos(3_163_000);

fn shared(policy: Policy) -> Cluster {
    of_models(policy, SHORT, OBJECTIVE)
}

fn of_models(policy: Policy, beta: Nanos, slo: Nanos) -> Cluster {
    let base = cluster(policy, 2);
    let model = |model: &ModelSpec| ModelSpec {
        subcluster: SubclusterId(0),
        profile: Profile::linear(US.times(457), beta, 8).unwrap(),
        slo,
        ..model.clone()
    };
    let models = base.models.iter().map(model).collect();
    // The members here say nothing while they have nothing to say.
    let scheduler = SchedulerSpec { member_timeout: ms(600_000), ..base.scheduler };
    Cluster { models, scheduler, ..base }
}

/// Everybody, and what the backend executes.
struct Play {
    stage: Stage,
    frontend: Member,
    backend: Member,
    /// End, batch, slot, model.
    running: Vec<(Nanos, u64, u32, u32)>,
    /// When each slot is free.
    free_at: [Nanos; 2],
    tasks: u32,
    beta: Nanos,
    objective: Nanos,
}

impl Play {
    fn new(policy: Policy) -> Self {
        Self::of(&shared(policy))
    }

    fn of(cluster: &Cluster) -> Self {
        let mut stage = Stage::new(cluster);
        let frontend = stage.frontend();
        let mut backend = stage.member(Role::Backend);
        let pages = u32::from(cluster.models[0].weights.is_some());
        for model in 0..2 {
            backend.send(&ProfileDesc { model: model.into(), pages: pages.into() }, &[]);
        }
        (0..2 * pages).for_each(|slot| announce(&mut backend, slot, (2, PAGE), &[0, 1]));
        backend.send(&JoinBackend { subcluster: 0.into(), gpus: 2.into() }, b"b");
        stage.connect(&mut backend);
        backend.send(&Ready { reserved: 0.into() }, &[]);
        stage.exchange(&mut backend);
        let (running, free_at) = (Vec::new(), [Nanos::ZERO; 2]);
        let ModelSpec { profile, slo: objective, .. } = &cluster.models[0];
        let (beta, objective) = (profile.latency(1) - US.times(457), *objective);
        Self { stage, frontend, backend, running, free_at, tasks: 0, beta, objective }
    }

    /// A task comes for a model.
    fn submit(&mut self, model: u32) {
        self.tasks += 1;
        let task = self.frontend.task(self.tasks % 1_024, self.tasks / 1_024);
        let deadline = self.stage.now + self.objective;
        self.frontend.submit(model, task, deadline);
        self.frontend.transport.flush();
        self.stage.settle();
        self.frontend.listen(self.stage.now);
        self.execute();
    }

    /// Takes up plans, if there are any.
    fn execute(&mut self) {
        let threads = &self.stage.scheduler.model_threads;
        let planned: usize = threads.iter().map(|thread| thread.in_flight()).sum();
        if planned == self.running.len() {
            return;
        }
        for told in self.stage.exchange(&mut self.backend) {
            let Told::Action { batch, gpu, model, exec_at, tasks, .. } = told else { continue };
            let free_at = &mut self.free_at[gpu as usize];
            let latency = self.beta + US.times(457 * tasks.len() as u64);
            *free_at = exec_at.max(*free_at) + latency;
            self.running.push((*free_at, batch, gpu, model));
        }
    }

    /// Lets time pass, and batches end.
    fn advance(&mut self, by: Nanos) {
        let end = self.stage.now + by;
        while self.stage.now < end {
            let first = self.running.iter().map(|running| running.0).min();
            // Plans are taken up within a millisecond.
            let next = first.unwrap_or(end).min(self.stage.now + ms(1)).min(end);
            self.stage.advance(next.max(self.stage.now) - self.stage.now);
            let now = self.stage.now;
            for (at, batch, gpu, model) in self.running.extract_if(.., |batch| batch.0 <= now) {
                let done = ActionDone {
                    action: batch.into(),
                    started_ns: (at - self.beta - US.times(457)).0.into(),
                    finished_ns: at.0.into(),
                    gpu: gpu.into(),
                    rows: 0.into(),
                    status: ActionStatus::Executed as u8,
                    variant: 0,
                    fetch: WireFetch::NOT_MEASURED,
                };
                let conn = self.backend.threads[self.frontend.models[model as usize].1 as usize];
                self.backend.transport.send(conn, &done, &[]).unwrap();
            }
            self.execute();
        }
    }

    /// Ten bursts of eight tasks, of these models in turn, in 100 ms.
    fn bursts(&mut self, models: &[u32]) {
        for &model in models.iter().cycle().take(10) {
            for _ in 0..8 {
                self.submit(model);
                self.advance(US.times(600));
            }
            self.advance(US.times(5_200));
        }
    }

    fn trials(&self) -> (u64, u64) {
        let counters = &self.stage.scheduler.counters().control_thread;
        (counters.trials.get(), counters.rules_changed.get())
    }

    fn rules(&self, thread: usize) -> Rules {
        self.stage.scheduler.model_threads[thread].model(0).rules()
    }

    /// Until other rules are followed.
    fn until_changed(&mut self, models: &[u32]) {
        for _ in 0..60 {
            self.bursts(models);
            if self.trials().1 > 0 {
                return;
            }
        }
        panic!("{:?} trials and changes", self.trials());
    }
}

#[test]
fn other_rules_are_followed_where_bursts_lose_tasks() {
    let mut play = Play::new(Policy::Baton);
    play.until_changed(&[0, 1]);
    let others = play.rules(0);
    assert_ne!(others, Alternative::Own.rules());
    assert_eq!(play.rules(1), others, "both ModelThreads follow them");
    let is_one = |rules: &Alternative| rules.rules() == others;
    assert!(Alternative::ALL.iter().any(is_one), "{others:?}");
    assert!(play.stage.scheduler.control.move_model(ModelId(0), 1));
    play.advance(ms(1));
    let moved = play.stage.scheduler.model_threads[1].model(1).rules();
    assert_eq!(moved, others, "a model that moves follows what its sub-cluster follows");
}

/// Trials know no weights that have to be loaded. All are, and as many tasks are lost.
#[test]
fn no_other_rules_are_tried_where_there_are_caches() {
    let base = shared(Policy::Baton);
    let weights = Some(WeightsSpec { bytes: PAGE, load: ms(5), is_guess: false });
    let models = base.models.iter().map(|model| ModelSpec { weights, ..model.clone() }).collect();
    let backends = vec![with_cache(WeightsCacheSpec { pages: 2, page_bytes: PAGE })];
    let mut play = Play::of(&Cluster { models, backends, ..base });
    (0..60).for_each(|_| play.bursts(&[0, 1]));
    assert_eq!(play.trials(), (0, 0));
    let threads = &play.stage.scheduler.model_threads;
    let ended: u64 = threads.iter().map(|thread| thread.model(0).counters().given_up).sum();
    assert!(ended > 100, "{ended} lost");
}

/// Each has a second one, for which there is never the time.
#[test]
fn other_rules_are_followed_where_every_model_has_variants() {
    let variant = |name: &str, accuracy, beta| VariantSpec {
        name: name.to_owned(),
        accuracy,
        profile: Profile::linear(US.times(457), beta, 8).unwrap(),
        file: None,
        sha256: None,
    };
    let mut cluster = shared(Policy::Baton);
    for model in &mut cluster.models {
        let beta = US.times(3_163);
        model.variants = vec![variant("a", 70_000, beta), variant("b", 75_000, OBJECTIVE)];
    }
    let mut play = Play::of(&cluster);
    play.until_changed(&[0, 1]);
    assert_ne!(play.rules(0), Alternative::Own.rules());
}

/// One that moves brings the rules along; one that is added has only its ModelThread to know them from.
#[test]
fn a_model_that_is_added_follows_what_its_subcluster_follows() {
    let mut play = Play::new(Policy::Baton);
    play.until_changed(&[0, 1]);
    let others = play.rules(0);
    play.advance(ms(50));
    let mut operator = play.stage.member(Role::Operator);
    ask(&mut play.stage, &mut operator, ChangeKind::Add, TABLE);
    loaded(&mut play.stage, &mut play.backend, 2);
    let (is_done, told) = answer(&mut play.stage, &mut operator);
    assert!(is_done, "{told}");
    play.stage.exchange(&mut play.frontend);
    let (id, thread) = newest(&play.frontend);
    // Behind the one that has lived there from the start.
    let added = play.stage.scheduler.model_threads[thread].model(1);
    assert_eq!((id, added.id(), added.rules()), (2, ModelId(2), others));
}

/// It is for batches that begin at once, and would last for seconds yet: nothing is lost when it begins.
#[test]
fn losses_do_not_wait_for_a_recording_of_calm_arrivals() {
    let mut play = Play::new(Policy::Baton);
    for task in 0..30 {
        play.submit(task % 2);
        play.advance(ms(20));
    }
    assert_eq!(play.trials(), (0, 0));
    (0..BURSTS_ENOUGH).for_each(|_| play.bursts(&[0, 1]));
    assert_eq!(play.trials(), (1, 1));
}

/// One ModelThread stands still, while the other one's part of a recording of calm arrivals comes and then losses do.
#[test]
fn losses_do_not_wait_either_where_a_part_of_such_a_recording_has_come() {
    let mut play = Play::new(Policy::Baton);
    for task in 0..30 {
        play.submit(task % 2);
        play.advance(ms(20));
    }
    let idle = play.stage.scheduler.model_threads.pop().unwrap();
    for _ in 0..100 {
        play.submit(0);
        play.advance(ms(100));
    }
    (0..4).for_each(|_| play.bursts(&[0]));
    assert_eq!(play.trials(), (0, 0));
    play.stage.scheduler.model_threads.push(idle);
    play.until_changed(&[0]);
}

/// 64 single tasks in eight seconds, then bursts that lose some: with what came before, more than ten seconds are known soon.
#[test]
fn of_rare_tasks_those_count_that_came_before_some_were_lost() {
    let mut play = Play::new(Policy::Baton);
    for _ in 0..64 {
        play.submit(0);
        play.advance(ms(125));
    }
    for task in 0..12 * 12 {
        play.submit(0);
        play.advance(if task % 12 == 11 { ms(250) } else { US.times(300) });
    }
    assert!(play.trials().0 > 0, "no trial within four seconds of the first burst");
}

/// Every recording ends, also on a ModelThread for which nothing comes.
#[test]
fn a_recording_ends_on_a_thread_without_traffic() {
    let mut play = Play::new(Policy::Baton);
    play.until_changed(&[0]);
    assert_eq!(play.rules(1), play.rules(0));
    let shown = status(&mut play.stage).subclusters[0].rules.clone();
    assert!(
        Alternative::ALL.iter().any(|rules| {
            rules.rules() == play.rules(0) && shown.as_deref() == Some(rules.name())
        })
    );
}

/// Who chooses another policy has it.
#[test]
fn another_policy_stays_what_it_is() {
    let mut play = Play::new(Policy::Eager);
    (0..50).for_each(|_| play.bursts(&[0]));
    assert!(play.stage.scheduler.model_threads[0].model(0).counters().given_up > 100);
    assert_eq!(play.trials(), (0, 0));
    assert_eq!(play.rules(0), Rules::of(Policy::Eager));
    assert_eq!(status(&mut play.stage).subclusters[0].rules, None);
}

/// Two slots serve the tasks in small batches, too, which begin at once. The own rules gather larger ones. Then a flood comes.
#[test]
fn batches_begin_at_once_while_none_is_lost_and_no_longer() {
    let mut cluster = of_models(Policy::Baton, ms(20), ms(90));
    cluster.models.iter_mut().for_each(|model| model.queue_capacity = 256);
    let mut play = Play::of(&cluster);
    let mut random = SplitMix64::new(7);
    for task in 0..12_000 {
        if play.trials().1 > 0 {
            break;
        }
        play.submit(task % 2);
        let unit = (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        play.advance(Nanos((-8.0e6 * (1.0 - unit).ln()) as u64));
    }
    assert_eq!(play.rules(0), Alternative::AtOnce.rules(), "{:?}", play.trials());
    let trials = play.trials().0;
    for task in 0..2_000 {
        play.submit(task % 2);
        play.advance(US.times(200));
    }
    assert_eq!(play.trials(), (trials, 2), "losses need no trial");
    assert_eq!(play.rules(1), Alternative::Own.rules());
}
