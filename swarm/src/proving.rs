//! What a repaired cluster must still be able to do: serve everybody, and move models.

use baton_core::{ModelId, Nanos};
use baton_topo::ModelSpec;
use rand::RngExt;

use crate::moments;
use crate::run::Run;

/// How often a repaired cluster may fail to serve a task, as networks with rare long delays do.
const PROBES: usize = 8;
/// Whatever is under way arrives: replies that are kept, and tasks whose ticket was dropped, may still
/// hold every slot.
const SETTLING: Nanos = Nanos::from_millis(30);

impl Run {
    /// The repaired cluster completes tasks of every model from every frontend, unless it plans with
    /// a network that is faster than the one it has; at first with all the time in the world, then
    /// with as much as it takes if they run one after another.
    pub(crate) fn prove_service(&mut self) {
        self.stay_whole();
        self.move_a_model();
        let within = [Some(Nanos::from_millis(1_000)), self.time_enough()];
        for within in within.into_iter().flatten() {
            if self.go_on() {
                self.serve_everybody(within);
            }
        }
        // A GPU that died without having anything to do is noticed when it has.
        if self.go_on() {
            self.stay_whole();
        }
    }

    /// What broke at the last moment shows only now; a process that lost a peer by it comes back.
    fn stay_whole(&mut self) {
        self.pass(SETTLING);
        let longest = self.plan.cluster.scheduler.member_timeout.times(3) + self.plan.link.patience;
        if !self.pass_until(longest, moments::is_whole) && self.go_on() {
            self.world.fail("the repaired cluster does not stay whole".into());
        }
    }

    fn serve_everybody(&mut self, within: Nanos) {
        let models = self.served();
        let places: Vec<usize> = self.frontends.iter().flatten().copied().collect();
        let mut unserved: Vec<(usize, usize)> =
            places.iter().flat_map(|&at| models.iter().map(move |&model| (at, model))).collect();
        for _ in 0..PROBES {
            self.serve_round(&mut unserved, within);
            if unserved.is_empty() || !self.plan.network_fits() || !self.go_on() {
                return;
            }
        }
        let (frontend, model) = unserved[0];
        self.world.fail(format!(
            "the repaired cluster does not serve: no task of frontend life {frontend} to model {model} \
             is completed within {:.3} ms",
            within.as_millis_f64()
        ));
    }

    /// The models that are served, by their place in [`crate::world::World::models`].
    fn served(&self) -> Vec<usize> {
        let Some(process) = &self.world.scheduler else { return Vec::new() };
        let key = |spec: &ModelSpec| (spec.name.clone(), spec.input_bytes, spec.profile.clone());
        let served = process.assembly.control.models().map(|(_, spec)| key(spec));
        let place = |served| self.world.models.iter().position(|spec| key(spec) == served);
        served.filter_map(place).collect()
    }

    /// Asks for those that are left, and strikes out who is served.
    fn serve_round(&mut self, unserved: &mut Vec<(usize, usize)>, within: Nanos) {
        self.pass(SETTLING);
        let passed_on = self.passed_on();
        let numbers = self.probe(unserved, within);
        self.pass_until(Nanos::from_millis(4_000), |run| run.applications.outstanding() == 0);
        // A model may have moved by itself meanwhile; then what follows it is passed on.
        let more =
            |(moved, before)| self.passed_on().is_some_and(|now| now.0 == moved && now.1 > before);
        if passed_on.is_some_and(more) {
            self.world.fail("tasks still go to the former home of their model".into());
        }
        let mut ledger = self.world.ledger.borrow_mut();
        let mut served =
            numbers.into_iter().map(|number| number.is_some_and(|n| ledger.task(n).answered));
        unserved.retain(|_| !served.next().unwrap_or(false));
    }

    /// Twice what it takes to serve everybody once, one task after another; `None` where executions do
    /// not take what is planned with.
    fn time_enough(&self) -> Option<Nanos> {
        let (plan, cluster) = (&self.plan, &self.plan.cluster);
        let exact = plan.engines.percent == 100 && plan.engines.jitter_percent == 0;
        if !exact || plan.link.spikes > 0 || !plan.network_fits() {
            return None;
        }
        let percent = plan.engines.measured_percent.unwrap_or(100).max(100);
        let models = &self.world.models;
        let alone: u64 = models.iter().map(|model| model.profile.latency(1).0).sum();
        let executions = Nanos(alone * self.frontends.len() as u64 * percent / 100);
        let network = &cluster.network;
        let delays = network.ctrl + network.data_per_task.times(16) + network.response;
        Some((executions + delays + network.jitter).times(2) + Nanos::from_millis(5))
    }

    fn probe(&mut self, unserved: &[(usize, usize)], within: Nanos) -> Vec<Option<u64>> {
        let mut numbers = Vec::new();
        for &(at, model) in unserved {
            let task = self.world.submit(at, model, within);
            numbers.push(task.as_ref().map(|task| task.number));
            if let Some(task) = task {
                self.applications.take(at, task);
            }
        }
        numbers
    }

    /// With nothing on its way, any model can be moved.
    fn move_a_model(&mut self) {
        let threads = self.plan.cluster.scheduler.model_threads as usize;
        let Some(process) = self.world.scheduler.as_mut() else { return };
        let control = &mut process.assembly.control;
        let numbers: Vec<u32> = control.models().map(|(model, _)| model.0).collect();
        if numbers.is_empty() {
            return;
        }
        let model = numbers[self.world.rng.random_range(0..numbers.len())];
        if threads == 1 {
            return;
        }
        let to = (control.homes()[model as usize] + 1) % threads;
        if !control.move_model(ModelId(model), to) {
            self.world.fail(format!("model {model} cannot be moved although none is on its way"));
        }
    }

    /// What has been passed on behind models that moved, and how many have; `None` while batches may be reported to where
    /// their model was.
    fn passed_on(&self) -> Option<(u64, u64)> {
        let assembly = &self.world.scheduler.as_ref()?.assembly;
        let idle = assembly.model_threads.iter().all(|thread| thread.in_flight() == 0);
        let threads = assembly.counters().model_threads.iter();
        let moved = assembly.counters().control_thread.models_moved.get();
        idle.then(|| (moved, threads.map(|thread| thread.passed_on.get()).sum()))
    }
}
