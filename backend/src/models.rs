//! The models of this process: those that are loaded, the one that is being loaded, and those that wait for that. Pure.
//!
//! In: what the scheduler says of its models, and how loading goes. Out: which models are served, what is to be loaded
//! next, and what is no longer needed. A model without a table is that of our cluster file; a table decides over the
//! file. Sizes and batch sizes must agree with the scheduler's, because memory and profiles are made from them.

use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

use baton_membership::{DescribedModel, MODELS_MAX};
use baton_topo::ModelSpec;
use baton_types::{ModelId, Nanos, Profile};

use crate::action::START_GRACE;
use crate::admit::Admitted;
use crate::execute::{LoadOrder, Loaded, Measured, ModelSource, Profiles, StartBy};
use crate::pull;
use crate::served::{CatalogueError, ServedModel, ServedModels, difference};

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Models {
    /// The cluster file's.
    file: Vec<ModelSpec>,
    /// Every executor holds these.
    held: Vec<Held>,
    /// To be loaded, in this order.
    waiting: VecDeque<DescribedModel>,
    loading: Option<Loading>,
    /// Held by the executors, to be removed; they do not know yet.
    unwanted: Vec<ModelId>,
    /// The executors know.
    removing: Vec<ModelId>,
    /// LOADs bring them.
    has_cache: bool,
    /// Where files are that were pulled.
    folder: PathBuf,
}

/// A model that is loaded.
#[derive(Debug)]
struct Held {
    spec: ModelSpec,
    /// What it was made from; `None`: the cluster file.
    table: Option<String>,
    /// Its measured ℓ(b).
    profiles: Option<Profiles>,
}

/// The model that is being loaded.
#[derive(Debug)]
pub(crate) struct Loading {
    pub(crate) step: Step,
    /// This process's number of it.
    local: ModelId,
    model: DescribedModel,
    interest: Interest,
    /// From the first executor on.
    loaded: Option<Loaded>,
}

/// Who wants to know how loading went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Interest {
    /// The scheduler.
    Scheduler,
    /// No peer: the scheduler is lost. Its successor may want the model.
    None,
    /// The model was removed before it was there.
    Removed,
}

/// How far loading has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Its files are pulled.
    Pulling,
    /// They are here. The first GPU slot's loading thread has something else to do yet.
    Waiting,
    /// This GPU slot's executor loads it aside; those before have.
    Aside(usize),
    /// Batch slots get room for its batches.
    Room,
    /// The executors take it in.
    Installing,
}

impl Loading {
    /// What the next executor is to load. The first one measures.
    fn order(&self, file: &[ModelSpec], has_weights: bool, folder: &Path) -> LoadOrder {
        let DescribedModel { name, table, .. } = &self.model;
        let source = match (&self.loaded, table) {
            (Some(loaded), _) => ModelSource::Spec(Box::new(loaded.spec.clone())),
            (None, Some(text)) => ModelSource::Table {
                name: name.clone(),
                text: text.clone(),
                folder: folder.to_owned(),
                has_weights,
            },
            (None, None) => {
                let spec = file.iter().find(|spec| spec.name == *name);
                ModelSource::Spec(Box::new(spec.expect("checked when it was described").clone()))
            }
        };
        let measure = self.loaded.is_none();
        LoadOrder { model: self.local, source, measure, keeps_files: has_weights }
    }

    /// Its number here.
    pub(crate) fn local(&self) -> ModelId {
        self.local
    }

    /// What it is called.
    pub(crate) fn name(&self) -> &str {
        &self.model.name
    }

    /// Its table, if that may name files to be pulled.
    pub(crate) fn remote_table(&self) -> Option<&str> {
        self.model.table.as_deref().filter(|table| pull::may_be_remote(table))
    }

    /// What was loaded; `None` before the first executor has it.
    pub(crate) fn spec(&self) -> Option<&ModelSpec> {
        self.loaded.as_ref().map(|loaded| &loaded.spec)
    }

    /// The scheduler's id of the model, if the scheduler waits for it.
    pub(crate) fn awaited_as(&self) -> Option<u32> {
        (self.interest == Interest::Scheduler).then(|| self.model.id())
    }

    /// True if it is no longer needed.
    pub(crate) fn is_removed(&self) -> bool {
        self.interest == Interest::Removed
    }

    /// Whether this is what the scheduler describes.
    fn is(&self, other: &DescribedModel) -> bool {
        let same = (&self.model.name, &self.model.table) == (&other.name, &other.table);
        same && self.spec().is_none_or(|spec| difference(other, spec).is_none())
    }
}

impl Models {
    /// The executors have loaded the models of the cluster file.
    pub(crate) fn new(
        file: Vec<ModelSpec>,
        mut measured: Measured,
        has_cache: bool,
        folder: PathBuf,
    ) -> Self {
        let mut profiles_of = |id| {
            let at = measured.iter().position(|(model, _)| *model == id)?;
            Some(measured.swap_remove(at).1)
        };
        let hold = |spec: &ModelSpec| {
            let profiles = profiles_of(spec.id);
            Held { spec: spec.clone(), table: None, profiles }
        };
        let held = file.iter().map(hold).collect();
        let (waiting, unwanted, removing) = (VecDeque::new(), Vec::new(), Vec::new());
        Self { file, held, waiting, loading: None, unwanted, removing, has_cache, folder }
    }

    /// The measured ℓ(b) of a model that is loaded.
    pub(crate) fn profiles(&self, local: ModelId) -> Option<&Profiles> {
        self.held(local)?.profiles.as_ref()
    }

    /// A model that is loaded, or that LOADs may bring.
    pub(crate) fn spec(&self, local: ModelId) -> Option<&ModelSpec> {
        self.held(local).map(|held| &held.spec)
    }

    fn held(&self, local: ModelId) -> Option<&Held> {
        // Models of the cluster file mostly stand where their numbers say.
        let there = self.held.get(local.0 as usize).filter(|held| held.spec.id == local);
        there.or_else(|| self.held.iter().find(|held| held.spec.id == local))
    }

    /// How long a batch of `rows` rows should take with this variant; [`Nanos::MAX`] if the model is not loaded.
    pub(crate) fn latency(&self, local: ModelId, variant: u16, rows: u32) -> Nanos {
        self.held(local).map_or(Nanos::MAX, |held| held.profile(variant).latency(rows))
    }

    /// By when which variant must start a batch of `rows` rows, so that it ends when the planned one would.
    pub(crate) fn start_by(&self, admitted: &Admitted, rows: u32) -> StartBy {
        let Admitted { model, variant, floor, latest, .. } = *admitted;
        let takes = |variant| self.latency(model.local, variant, rows);
        let planned = takes(variant);
        StartBy::new(latest, START_GRACE, (floor, variant), |cheaper| planned - takes(cheaper))
    }

    /// The catalogue is complete: serves what is loaded, and lets the rest wait to be loaded. What was added and is not
    /// wanted again goes.
    ///
    /// # Errors
    /// A model is unknown here, or described differently.
    pub(crate) fn meet(
        &mut self,
        described: Vec<DescribedModel>,
        served: &mut ServedModels,
    ) -> Result<(), CatalogueError> {
        self.lose_scheduler();
        for model in described {
            self.add(model, served)?;
        }
        let locals: Vec<ModelId> = served.iter().map(|model| model.local).collect();
        self.release(|held| held.table.is_some() && !locals.contains(&held.spec.id));
        if let Some(loading) = &mut self.loading
            && loading.interest == Interest::None
        {
            loading.interest = Interest::Removed;
        }
        Ok(())
    }

    /// A model of our sub-cluster: serves it if it is loaded, or lets it wait to be loaded.
    ///
    /// # Errors
    /// It is unknown here, or described differently; or there are too many.
    pub(crate) fn add(
        &mut self,
        model: DescribedModel,
        served: &mut ServedModels,
    ) -> Result<(), CatalogueError> {
        if self.is_known(model.id(), served) {
            return Err(CatalogueError::Malformed("a model is listed twice"));
        }
        if model.table.is_none() {
            self.check_file(&model)?;
        }
        if let Some(held) = self.held.iter().find(|held| held.is(&model)) {
            return served.serve(ServedModel::new(model.id(), &held.spec));
        }
        // The table decides; but a model that is served goes when the scheduler removes it.
        let locals: Vec<ModelId> = served.iter().map(|model| model.local).collect();
        self.release(|held| {
            held.table.is_none() && held.spec.name == model.name && !locals.contains(&held.spec.id)
        });
        match &mut self.loading {
            Some(loading) if !loading.is_removed() && loading.is(&model) => {
                (loading.model, loading.interest) = (model, Interest::Scheduler);
            }
            _ if self.waiting.len() >= MODELS_MAX => {
                return Err(CatalogueError::Malformed("too many models are to be loaded"));
            }
            _ => self.waiting.push_back(model),
        }
        Ok(())
    }

    /// The scheduler has removed a model: it is not served any more, or not loaded at all.
    pub(crate) fn remove(&mut self, id: u32, served: &mut ServedModels) {
        if let Some(gone) = served.remove(id) {
            return self.release(|held| held.spec.id == gone.local);
        }
        self.waiting.retain(|model| model.id() != id);
        if let Some(loading) = &mut self.loading
            && loading.awaited_as() == Some(id)
        {
            loading.interest = Interest::Removed;
        }
    }

    /// The scheduler is lost: what is loaded stays, and no scheduler waits for more.
    pub(crate) fn lose_scheduler(&mut self) {
        self.waiting.clear();
        if let Some(loading) = &mut self.loading
            && loading.interest == Interest::Scheduler
        {
            loading.interest = Interest::None;
        }
    }

    /// Begins with the next model, if none is being loaded. Returns the one whose files are to be pulled first, if that is so.
    pub(crate) fn begin_next(&mut self) -> Option<&Loading> {
        if self.loading.is_some() {
            return None;
        }
        let (model, interest) = (self.waiting.pop_front()?, Interest::Scheduler);
        let local = self.free_number();
        let step = Step::Waiting;
        let loading = self.loading.insert(Loading { step, local, model, interest, loaded: None });
        loading.remote_table()?;
        loading.step = Step::Pulling;
        Some(loading)
    }

    /// The files of models that are loaded, or that LOADs may bring.
    pub(crate) fn files(&self) -> BTreeSet<PathBuf> {
        let specs = self.held.iter().map(|held| &held.spec).chain(&self.file);
        specs.flat_map(ModelSpec::files).map(Path::to_owned).collect()
    }

    /// The order of the next executor.
    pub(crate) fn next_order(&self) -> Option<LoadOrder> {
        let loading = self.loading.as_ref()?;
        Some(loading.order(&self.file, self.has_cache, &self.folder))
    }

    /// True while a model is loaded aside, or the next one waits for that.
    pub(crate) fn need_loading_thread(&self) -> bool {
        let waits = !self.waiting.is_empty();
        let needs = |step| matches!(step, Step::Waiting | Step::Aside(_));
        self.loading.as_ref().map_or(waits, |loading| needs(loading.step))
    }

    /// The model that is being loaded.
    pub(crate) fn loading(&mut self) -> Option<&mut Loading> {
        self.loading.as_mut()
    }

    /// The first executor has loaded it.
    ///
    /// # Errors
    /// It is not what the scheduler describes.
    pub(crate) fn first_has(&mut self, loaded: Loaded) -> Result<(), String> {
        let Some(loading) = &mut self.loading else { return Ok(()) };
        let awaited = loading.interest == Interest::Scheduler;
        let difference = difference(&loading.model, &loaded.spec).filter(|_| awaited);
        loading.loaded = Some(loaded);
        let Some((what, theirs, ours)) = difference else { return Ok(()) };
        Err(format!(
            "{what} is {theirs} at the scheduler and {ours} here; copy the model's file to every host, remove the model and \
             add it again"
        ))
    }

    /// It could not be loaded.
    pub(crate) fn give_up(&mut self) -> Option<Loading> {
        self.loading.take()
    }

    /// Every executor holds it, and every batch slot has room. Returns it with the scheduler's id if that waits for it.
    pub(crate) fn hold(&mut self) -> Option<ServedModel> {
        let Loading { local, model, interest, loaded, .. } = self.loading.take()?;
        let Loaded { spec, profiles } = loaded?;
        let served = ServedModel::new(model.id(), &spec);
        match interest {
            Interest::Removed => self.unwanted.push(local),
            _ => self.held.push(Held { spec, table: model.table, profiles }),
        }
        (interest == Interest::Scheduler).then_some(served)
    }

    /// Models that the executors are to forget, each once. Their numbers are taken until
    /// [`Models::forget`].
    pub(crate) fn take_unwanted(&mut self) -> Vec<ModelId> {
        let unwanted = std::mem::take(&mut self.unwanted);
        self.removing.extend(&unwanted);
        unwanted
    }

    /// Frees the numbers of models that no executor knows any more.
    pub(crate) fn forget(&mut self, is_known: impl Fn(ModelId) -> bool) {
        self.removing.retain(|&model| is_known(model));
    }

    /// These are not needed any more.
    fn release(&mut self, is_unwanted: impl Fn(&Held) -> bool) {
        let unwanted = &mut self.unwanted;
        self.held.retain(|held| {
            let goes = is_unwanted(held);
            unwanted.extend(goes.then_some(held.spec.id));
            !goes
        });
    }

    fn is_known(&self, id: u32, served: &ServedModels) -> bool {
        served.model(id).is_some()
            || self.waiting.iter().any(|model| model.id() == id)
            || self.loading.as_ref().and_then(Loading::awaited_as) == Some(id)
    }

    /// A model without a table is that of our cluster file.
    fn check_file(&self, model: &DescribedModel) -> Result<(), CatalogueError> {
        let spec = self.file.iter().find(|spec| spec.name == model.name);
        let spec = spec.ok_or_else(|| CatalogueError::UnknownModel(model.name.clone()))?;
        let Some((what, theirs, ours)) = difference(model, spec) else { return Ok(()) };
        Err(CatalogueError::Mismatch { model: model.name.clone(), what, theirs, ours })
    }

    /// The smallest number that means no model to any executor.
    fn free_number(&self) -> ModelId {
        let held = self.held.iter().map(|held| held.spec.id);
        let mut taken: Vec<ModelId> =
            held.chain(self.unwanted.iter().chain(&self.removing).copied()).collect();
        taken.sort_unstable();
        let free = (0..).map(ModelId).zip(&taken).find(|(free, taken)| free != *taken);
        free.map_or(ModelId(taken.len() as u32), |(free, _)| free)
    }
}

impl Held {
    fn profile(&self, variant: u16) -> &Profile {
        let measured = self.profiles.as_ref().and_then(|all| all.get(usize::from(variant)));
        measured.unwrap_or_else(|| self.spec.profile_of(variant))
    }

    /// Whether this is what the scheduler describes.
    fn is(&self, model: &DescribedModel) -> bool {
        let same = (&self.spec.name, &self.table) == (&model.name, &model.table);
        same && difference(model, &self.spec).is_none()
    }
}
