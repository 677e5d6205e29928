//! Loading a model beside a running executor, on a thread of its own.
//!
//! In: orders to load, and models that are no longer needed. Out: the loaded model, with its measured profile. The thread
//! is started with its executor, so that it is pinned to no core, and parks while there is nothing to load.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use baton_topo::{ModelSpec, Problem, Waker, read_model};
use baton_types::ModelId;
use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded};

use super::budget::{Budget, Share};
use super::measure::Profiles;
use super::{Engine, EngineError, HostStore, LooseModel, measure};

/// Models on their way to be dropped, and the one to be loaded. One more is dropped where it is.
const ERRANDS_MAX: usize = 8;

/// What is to be loaded beside the batches.
#[derive(Clone, Debug)]
pub struct LoadOrder {
    /// The number that batches will name it by.
    pub model: ModelId,
    /// What it is made from.
    pub source: ModelSource,
    /// Whether to measure ℓ(b), if the description can only guess it.
    pub measure: bool,
    /// Whether its files stay in the host's memory, for LOADs to be made from.
    pub keeps_files: bool,
}

/// What a model is made from.
#[derive(Clone, Debug)]
pub enum ModelSource {
    /// The `[[model]]` table of a model that was added.
    Table {
        /// What the model is called.
        name: String,
        /// The table.
        text: String,
        /// Where those of its files are that were pulled.
        folder: PathBuf,
        /// LOADs bring it; else it is loaded at once, whatever its weights.
        has_weights: bool,
    },
    /// A description that has been read.
    Spec(Box<ModelSpec>),
}

/// A model that was loaded aside.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// Its description, under the number of the [`LoadOrder`].
    pub spec: ModelSpec,
    /// Its ℓ(b), if it was measured.
    pub profiles: Option<Profiles>,
}

/// A loaded model between two engines, with its share of the memory for models, which goes back last.
pub(super) struct Resident {
    pub(super) model: LooseModel,
    pub(super) share: Share,
}

/// A loaded model on its way to an executor's thread.
pub(super) struct Installable {
    pub(super) spec: ModelSpec,
    pub(super) resident: Resident,
}

/// What the thread is to do.
pub(super) enum Errand {
    Load(Box<LoadOrder>),
    /// Give a model's memory back, which may take a while.
    Drop(Resident),
    /// The same of files that were kept in memory.
    DropFiles(Vec<Arc<[u8]>>),
}

type Outcome = Result<(Loaded, Resident), EngineError>;

/// Starts a thread that does errands, and says how loading went.
type Spawn =
    Box<dyn Fn(Receiver<Errand>, Sender<Outcome>) -> std::io::Result<JoinHandle<()>> + Send>;

/// The I/O thread's handle on the thread that loads.
pub(super) struct Aside {
    spawn: Spawn,
    /// `None` only while dropping: closing the channel ends the thread.
    errands: Option<Sender<Errand>>,
    outcomes: Receiver<Outcome>,
    thread: Option<JoinHandle<()>>,
    is_loading: bool,
    /// Loaded and not installed.
    installable: Vec<Installable>,
}

impl std::fmt::Debug for Aside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { is_loading, installable, .. } = self;
        write!(f, "Aside {{ is_loading: {is_loading}, installable: {installable:?} }}")
    }
}

impl std::fmt::Debug for Installable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Installable({})", self.spec.name)
    }
}

impl Aside {
    /// Starts the thread, and returns where models are sent to be dropped. It loads with an engine from `make` for each model,
    /// and wakes `owner` whenever a load has ended.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn start<E: Engine>(
        name: String,
        make: impl Fn() -> E + Clone + Send + 'static,
        (budget, store): (Budget, HostStore),
        owner: Waker,
    ) -> std::io::Result<(Self, Sender<Errand>)> {
        let spawn: Spawn = Box::new(move |errands, outcomes| {
            let (make, owner) = (make.clone(), owner.clone());
            let memory = (budget.clone(), store.clone());
            let work = move || work(&errands, &outcomes, &make, &memory, &owner);
            std::thread::Builder::new().name(name.clone()).spawn(work)
        });
        let (errands, errands_in) = bounded(ERRANDS_MAX);
        let (outcomes_out, outcomes) = bounded(1);
        let (kept, thread) = (Some(errands.clone()), Some(spawn(errands_in, outcomes_out)?));
        let (is_loading, installable) = (false, Vec::new());
        let aside = Self { spawn, errands: kept, outcomes, thread, is_loading, installable };
        Ok((aside, errands))
    }

    /// The thread hangs: another one takes its place. What it loads yet, it drops.
    ///
    /// # Errors
    /// There is no other thread.
    pub(super) fn replace(&mut self) -> std::io::Result<()> {
        let (errands, errands_in) = bounded(ERRANDS_MAX);
        let (outcomes_out, outcomes) = bounded(1);
        self.thread = Some((self.spawn)(errands_in, outcomes_out)?);
        (self.errands, self.outcomes, self.is_loading) = (Some(errands), outcomes, false);
        Ok(())
    }

    /// Begins to load.
    pub(super) fn load(&mut self, order: LoadOrder) {
        debug_assert!(!self.is_loading, "one model at a time");
        self.is_loading = true;
        if let Some(errands) = &self.errands {
            // It has room for a load; that its thread has died is noticed by `poll`.
            let _ = errands.try_send(Errand::Load(Box::new(order)));
        }
    }

    /// How the loading went.
    pub(super) fn poll(&mut self) -> Option<Result<Loaded, EngineError>> {
        if !self.is_loading {
            return None;
        }
        let outcome = match self.outcomes.try_recv() {
            Ok(outcome) => outcome,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => Err(died()),
        };
        self.is_loading = false;
        Some(outcome.map(|(loaded, resident)| {
            self.installable.push(Installable { spec: loaded.spec.clone(), resident });
            loaded
        }))
    }

    /// The loaded model, which is the executor thread's from now on.
    pub(super) fn take(&mut self, model: ModelId) -> Option<Installable> {
        let at = self.installable.iter().position(|loaded| loaded.spec.id == model)?;
        Some(self.installable.remove(at))
    }

    /// A model that was loaded and not installed is no longer needed.
    pub(super) fn discard(&mut self, model: ModelId) {
        if let Some(loaded) = self.take(model)
            && let Some(errands) = &self.errands
        {
            drop_aside(errands, Errand::Drop(loaded.resident));
        }
    }

    /// What a model's files took is given back.
    pub(super) fn drop_files(&self, files: Vec<Arc<[u8]>>) {
        if let Some(errands) = &self.errands
            && !files.is_empty()
        {
            drop_aside(errands, Errand::DropFiles(files));
        }
    }

    /// Ends the thread once the executor's has ended. One that loads, which may take long, is left to itself.
    pub(super) fn end(&mut self) {
        drop(self.errands.take());
        if !self.is_loading
            && let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("a loading thread panicked");
        }
    }
}

/// Ends when no sender of errands is left.
fn work<E: Engine>(
    errands: &Receiver<Errand>,
    outcomes: &Sender<Outcome>,
    make: &impl Fn() -> E,
    (budget, store): &(Budget, HostStore),
    owner: &Waker,
) {
    for errand in errands {
        match errand {
            Errand::Load(order) => {
                // The owner may be gone, or wait no longer.
                let _ = outcomes.send(load(&order, &mut make(), budget, store));
                owner.wake();
            }
            Errand::Drop(resident) => drop(resident),
            Errand::DropFiles(files) => drop(files),
        }
    }
}

/// Gives a model's memory back on the loading thread, or here if that has too much to do.
pub(super) fn drop_aside(errands: &Sender<Errand>, what: Errand) {
    // The other half is room for a load, also while two threads send at once.
    if errands.len() < ERRANDS_MAX / 2 {
        drop(errands.try_send(what));
    }
}

fn died() -> EngineError {
    let (engine, problem) = ("loading", "its thread died".into());
    EngineError::Library { engine, problem, fix: "see the log above, and restart this backend" }
}

fn load(
    order: &LoadOrder,
    engine: &mut impl Engine,
    budget: &Budget,
    store: &HostStore,
) -> Outcome {
    let spec = order.describe()?;
    if !order.keeps_files {
        return load_described(order, spec, engine, budget);
    }
    let kept = store.add(&spec)?;
    if kept < spec.files().len() {
        let model = &spec.name;
        tracing::warn!(
            model,
            "not all of its files are in memory: each LOAD reads them; see host_weights_mib"
        );
    }
    let loaded = load_described(order, spec, engine, budget);
    if loaded.is_err() {
        store.remove(order.model);
    }
    loaded
}

fn load_described(
    order: &LoadOrder,
    spec: ModelSpec,
    engine: &mut impl Engine,
    budget: &Budget,
) -> Outcome {
    let (share, profiles) = load_measured(engine, budget, &spec, order.measure)?;
    let model = engine.take(spec.id).expect("loaded above");
    Ok((Loaded { spec, profiles }, Resident { model, share }))
}

impl LoadOrder {
    /// The model that is to be loaded. Reads the files that a table names.
    ///
    /// # Errors
    /// A table does not describe the model.
    pub fn describe(&self) -> Result<ModelSpec, EngineError> {
        match &self.source {
            ModelSource::Spec(spec) => Ok(ModelSpec { id: self.model, ..(**spec).clone() }),
            ModelSource::Table { name, text, folder, has_weights } => {
                let spec = described(name, text, self.model)?.pulled_into(folder);
                let weights = spec.weights.filter(|_| *has_weights);
                Ok(ModelSpec { weights, ..spec })
            }
        }
    }
}

/// What a table and the files that it names describe.
fn described(name: &str, text: &str, id: ModelId) -> Result<ModelSpec, EngineError> {
    let refused = |problem| EngineError::Table { model: name.to_owned(), problem };
    let read = read_model(text, Path::new(""), None);
    let table = read.map_err(|problems| refused(Problem::lines(&problems)))?;
    if table.spec.name != name {
        let other = table.spec.name;
        return Err(refused(format!("its table is that of `{other}`; remove it and add it again")));
    }
    Ok(ModelSpec { id, ..table.spec })
}

/// Loads a model, if there is memory for it; with `wanted` measures it too, if its profile is a guess.
pub(super) fn load_measured(
    engine: &mut dyn Engine,
    budget: &Budget,
    spec: &ModelSpec,
    wanted: bool,
) -> Result<(Share, Option<Profiles>), EngineError> {
    let share = load_within(engine, budget, spec)?;
    let profiles =
        (wanted && spec.engine.is_measured()).then(|| measure(engine, spec)).transpose()?;
    Ok((share, profiles))
}

/// Loads a model, if there is memory for it: by its description before, and by what the engine measured after.
pub(super) fn load_within(
    engine: &mut dyn Engine,
    budget: &Budget,
    spec: &ModelSpec,
) -> Result<Share, EngineError> {
    let mut share = budget.take(&spec.name, engine.model_bytes(spec))?;
    engine.load(spec)?;
    let taken = engine.taken_bytes(spec.id).unwrap_or(0);
    if let Err(error) = share.grow(&spec.name, taken) {
        engine.unload(spec.id);
        return Err(error);
    }
    Ok(share)
}

#[cfg(test)]
#[path = "aside_tests.rs"]
mod tests;
