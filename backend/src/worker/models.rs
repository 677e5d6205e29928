//! Models that come and go while the backend serves: the steps from an order to the scheduler's answer.
//!
//! One executor after the other loads the model aside. Then every batch slot gets room for it, each when it is free, and
//! every executor takes the model in between two jobs. Only then do actions find it. Nothing here waits for anything.

use baton_rdma::Transport;
use baton_types::{ModelId, Nanos};

use super::Worker;
use crate::config::{BATCH_MEMORY_MAX, ConfigError};
use crate::error::BackendError;
use crate::execute::{EngineError, Executor, Loaded};
use crate::gpu::Gpu;
use crate::loader::Loader;
use crate::memory::Room;
use crate::models::Step;

impl<T: Transport, E: Executor> Worker<T, E> {
    /// Takes the next step of what is to be loaded or removed. Returns how much there was to do.
    pub(super) fn tend_models(&mut self, now: Nanos) -> usize {
        let removed = self.remove_unwanted(now);
        let is_member = self.join.membership.stage().is_admitted();
        if is_member {
            self.begin_next();
        }
        let Some(loading) = self.models.loading() else { return removed };
        if loading.awaited_as().is_some() && !is_member {
            return removed;
        }
        removed
            + match loading.step {
                Step::Pulling => self.follow_pull(now),
                Step::Waiting => self.begin_aside(now),
                Step::Aside(gpu) => self.follow_aside(gpu, now),
                Step::Room => self.make_room(now),
                Step::Installing => self.follow_installing(now),
            }
    }

    fn begin_next(&mut self) {
        let Some(loading) = self.models.begin_next() else { return };
        let table = loading.remote_table().unwrap_or_default().to_owned();
        // Nobody waits for a backend that does not serve yet: it waits itself.
        let patiently = !self.join.serves;
        self.pulls.begin(&table, self.models.files(), patiently, self.transport.waker());
    }

    /// Once its files are here, the model waits for the loading thread.
    fn follow_pull(&mut self, now: Nanos) -> usize {
        let Some(loading) = self.models.loading() else { return 0 };
        if loading.is_removed() {
            self.pulls.give_up();
            self.give_up("it was removed", now);
            return 1;
        }
        let Some(outcome) = self.pulls.poll() else { return 0 };
        match outcome {
            Ok(brought) => {
                loading.step = Step::Waiting;
                self.counters.model_files_pulled += brought.files;
                self.counters.model_bytes_pulled += brought.bytes;
            }
            Err(error) => {
                self.counters.model_pulls_failed += 1;
                self.give_up(&error.to_string(), now);
            }
        }
        1
    }

    /// The first executor begins to load it, unless its loading thread does a LOAD: it has one thing to do at a time.
    fn begin_aside(&mut self, now: Nanos) -> usize {
        let is_copying = self.gpus[0].loader.as_ref().is_some_and(Loader::is_copying);
        let Some(loading) = self.models.loading().filter(|_| !is_copying) else { return 0 };
        if loading.is_removed() {
            self.give_up("it was removed", now);
            return 1;
        }
        loading.step = Step::Aside(0);
        if let Some(order) = self.models.next_order() {
            self.gpus[0].executor.load_aside(order);
        }
        1
    }

    fn remove_unwanted(&mut self, now: Nanos) -> usize {
        let unwanted = self.models.take_unwanted();
        for &model in &unwanted {
            self.counters.models_removed += 1;
            match self.config.weights_cache {
                None => self.gpus.iter_mut().for_each(|gpu| gpu.remove(model)),
                Some(_) => self.remove_weights(model, now),
            }
        }
        let gpus = &self.gpus;
        self.models.forget(|model| gpus.iter().any(|gpu| gpu.has_left_over(model)));
        unwanted.len()
    }

    /// An executor loads the model; when it has, the next one does.
    fn follow_aside(&mut self, gpu: usize, now: Nanos) -> usize {
        let Some(outcome) = self.gpus[gpu].executor.poll_loaded() else { return 0 };
        if let Err(why) = self.loaded_by(gpu, outcome) {
            self.give_up(&why, now);
        }
        1
    }

    fn loaded_by(
        &mut self,
        gpu: usize,
        outcome: Result<Loaded, EngineError>,
    ) -> Result<(), String> {
        let loaded = outcome.map_err(|error| {
            self.counters.engine_failed(&error);
            error.to_string()
        })?;
        if gpu == 0 {
            self.models.first_has(loaded)?;
            self.check_room()?;
        }
        let Some(loading) = self.models.loading() else { return Ok(()) };
        if loading.is_removed() {
            return Err(String::from("it was removed"));
        }
        if self.config.weights_cache.is_some() {
            // It is what it should be. LOADs bring it from now on.
            self.gpus[gpu].executor.discard(loading.local());
            loading.step = Step::Room;
            return Ok(());
        }
        if gpu + 1 == self.gpus.len() {
            loading.step = Step::Room;
            return Ok(());
        }
        loading.step = Step::Aside(gpu + 1);
        if let Some(order) = self.models.next_order() {
            self.gpus[gpu + 1].executor.load_aside(order);
        }
        Ok(())
    }

    /// Whether the batch slots may become as large as the model wants them.
    fn check_room(&mut self) -> Result<(), String> {
        let Some(loading) = self.models.loading() else { return Ok(()) };
        let Some(room) = loading.spec().map(Room::of) else { return Ok(()) };
        let each = self.gpus.iter().map(|gpu| gpu.bytes_with(room));
        let bytes = each.fold(0, usize::saturating_add);
        if bytes <= BATCH_MEMORY_MAX {
            return Ok(());
        }
        let (backend, model) = (self.config.name.clone(), loading.name().to_owned());
        Err(ConfigError::Memory { backend, model, gib: bytes >> 30 }.to_string())
    }

    /// Makes room in one free batch slot, so that no pass takes long; once all have it, the executors take the model in.
    fn make_room(&mut self, now: Nanos) -> usize {
        let Some(loading) = self.models.loading() else { return 0 };
        if loading.is_removed() {
            self.give_up("it was removed", now);
            return 1;
        }
        let Some(room) = loading.spec().map(Room::of) else { return 0 };
        if self.gpus.iter().all(|gpu| gpu.has_room(room)) {
            let local = loading.local();
            loading.step = Step::Installing;
            self.admission.reserve(room.rows);
            match self.config.weights_cache {
                None => self.gpus.iter_mut().for_each(|gpu| gpu.install(local)),
                Some(_) => self.serve_added(local, now),
            }
            return 1;
        }
        let transport = &mut self.transport;
        let mut grown = self.gpus.iter_mut().map(|gpu| gpu.grow(room, transport));
        match grown.find(|grown| *grown != Ok(false)) {
            None => 0,
            Some(Ok(_)) => 1,
            Some(Err(why)) => {
                self.give_up(&why, now);
                1
            }
        }
    }

    /// Once every executor has the model, it is served.
    fn follow_installing(&mut self, now: Nanos) -> usize {
        let Some(local) = self.models.loading().map(|loading| loading.local()) else { return 0 };
        if !self.gpus.iter().all(|gpu: &Gpu<E>| gpu.holds(local)) {
            return 0;
        }
        self.serve_added(local, now);
        1
    }

    /// Actions find the model from now on, and LOADs.
    fn serve_added(&mut self, local: ModelId, now: Nanos) {
        let Some(served) = self.models.hold() else { return };
        self.counters.models_added += 1;
        let name = self.models.spec(local).map(|spec| &*spec.name);
        tracing::info!(model = served.id.0, name, "a model was added");
        let weights = self.models.spec(local).and_then(|spec| spec.weights);
        let pages = self.config.weights_cache.zip(weights).map(|(cache, of)| cache.pages_of(of));
        let profiles = self.models.profiles(local);
        let told = self.join.tell_loaded(served.id.0, pages, profiles, &mut self.transport);
        let served = self.join.served.serve(served).map_err(BackendError::from);
        if let Err(error) = served.and_then(|()| Ok(told?)) {
            self.fail(error, now);
        }
    }

    /// The model cannot be loaded, or is not needed any more: everything else goes on.
    fn give_up(&mut self, why: &str, now: Nanos) {
        let Some(loading) = self.models.give_up() else { return };
        self.gpus.iter_mut().for_each(|gpu| gpu.executor.discard(loading.local()));
        self.gpus[0].executor.drop_files(loading.local());
        let Some(id) = loading.awaited_as() else { return };
        self.counters.model_load_failures += 1;
        let why = match why.contains(&format!("model `{}`", loading.name())) {
            true => why.to_owned(),
            false => format!("model `{}`: {why}", loading.name()),
        };
        tracing::error!(why, "a model could not be added");
        if let Err(error) = self.join.tell_failed(id, &why, &mut self.transport) {
            self.fail(error.into(), now);
        }
    }
}
