//! The models that are served, and what members learn of them: ModelThreads, sub-clusters, models.
//!
//! A model has a number, by which every thread knows it, and an id, by which members do: the number with a count of the
//! models that had it before, so that an id is not used again.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use baton_core::{ModelId, Profile, SubclusterId};
use baton_rdma::wire::{
    CatalogEnd, ModelDesc, ModelTable, Role, SubclusterDesc, TensorDesc, ThreadDesc, VariantDesc,
    WireAddr,
};
use baton_rdma::{ConnId, SendError, Transport};
use baton_topo::{Cluster, EngineSpec, ModelSpec, VariantSpec};

use crate::profiles::Profiles;

/// Bits of an id that are the model's number.
const NUMBER_BITS: u32 = 16;

/// The id of the model that has this number in this life.
pub(crate) fn model_id(number: ModelId, life: u16) -> u32 {
    u32::from(life) << NUMBER_BITS | number.0
}

/// The number and the life that an id stands for.
pub(crate) fn number_and_life(id: u32) -> (ModelId, u16) {
    (ModelId(id & ((1 << NUMBER_BITS) - 1)), (id >> NUMBER_BITS) as u16)
}

/// Where a model is between its addition and its removal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ModelStage {
    /// Backends load it. Clients do not know it.
    Loading,
    /// Clients use it.
    Serving,
    /// The ControlThread has told clients that it goes. Its last tasks are served.
    Leaving,
}

/// One model.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) stage: ModelStage,
    desc: ModelDesc,
    tensors: Vec<(TensorDesc, String)>,
    variants: Vec<(VariantDesc, String)>,
    pub(crate) spec: ModelSpec,
    /// The model whose place it takes once it is served.
    pub(crate) replaces: Option<ModelId>,
    /// Another model has its name now.
    is_replaced: bool,
    /// Its `[[model]]` table, if it was added at run time: backends do not have it in their cluster files.
    table: Option<String>,
}

/// What a number stands for.
#[derive(Clone, Debug, Default)]
struct Numbered {
    life: u16,
    entry: Option<Entry>,
    /// Grants and moves of the models that had the number before. RankState counts on.
    grants: u32,
    moves: u32,
}

/// What an id stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Known {
    /// The model with this number.
    Now(ModelId),
    /// A model that was removed.
    Before,
    /// No model, ever.
    Never,
}

/// See the module documentation.
#[derive(Clone, Debug)]
pub struct Catalog {
    threads: Vec<ThreadDesc>,
    subclusters: Vec<(SubclusterDesc, String)>,
    /// By number.
    models: Vec<Numbered>,
    end: CatalogEnd,
}

impl Catalog {
    /// `addrs[t]` is where ModelThread t listens, `thread_of[m]` the ModelThread of model m.
    pub fn new(
        cluster: &Cluster,
        addrs: &[SocketAddr],
        thread_of: &[usize],
        scheduler_epoch: u64,
    ) -> Self {
        let thread = |(number, &addr): (usize, &SocketAddr)| ThreadDesc {
            thread: (number as u32).into(),
            addr: WireAddr::new(addr),
        };
        let subcluster = |(number, name): (usize, &String)| {
            (SubclusterDesc { subcluster: (number as u32).into() }, name.clone())
        };
        let mut catalog = Self {
            threads: addrs.iter().enumerate().map(thread).collect(),
            subclusters: cluster.subclusters.iter().enumerate().map(subcluster).collect(),
            models: vec![Numbered::default(); cluster.models_max() as usize],
            end: CatalogEnd { scheduler_epoch: scheduler_epoch.into() },
        };
        for (spec, &thread) in cluster.models.iter().zip(thread_of) {
            catalog.enter(spec.clone(), None);
            let _ = catalog.serve(spec.id, thread);
        }
        catalog
    }

    /// These models, by name, were added at run time, if to a former scheduler. `tables` are theirs.
    pub(crate) fn know_tables(&mut self, mut tables: BTreeMap<String, String>) {
        for entry in self.models.iter_mut().filter_map(|numbered| numbered.entry.as_mut()) {
            entry.table = tables.remove(&entry.spec.name);
        }
    }

    /// A free number for one more model; `None` if there are as many as there may be.
    pub(crate) fn vacancy(&self) -> Option<ModelId> {
        // Of the free ones that which was used least: an id comes back only after all lives of its number.
        let free = self.models.iter().enumerate().filter(|(_, model)| model.entry.is_none());
        free.min_by_key(|(_, model)| model.life).map(|(number, _)| ModelId(number as u32))
    }

    /// Writes a model down under the number in its `spec`, which is free. Backends may load it.
    pub(crate) fn enter(&mut self, spec: ModelSpec, table: Option<String>) {
        let numbered = &mut self.models[spec.id.0 as usize];
        assert!(numbered.entry.is_none(), "the number is free");
        let id = model_id(spec.id, numbered.life);
        let desc = describe(&spec, id);
        let (tensors, variants) = (tensors(&spec, id), variants(&spec, id));
        let (stage, replaces, is_replaced) = (ModelStage::Loading, None, false);
        numbered.entry =
            Some(Entry { stage, desc, tensors, variants, spec, replaces, is_replaced, table });
    }

    /// The model lives on this ModelThread, and clients may use it. Returns the model whose place it has taken.
    pub(crate) fn serve(&mut self, model: ModelId, thread: usize) -> Option<ModelId> {
        let entry = self.models[model.0 as usize].entry.as_mut().expect("it was entered");
        entry.set_thread(thread);
        entry.stage = ModelStage::Serving;
        let replaced = entry.replaces.take();
        if let Some(former) = replaced.and_then(|former| self.entry_mut(former)) {
            former.is_replaced = true;
        }
        replaced
    }

    /// The model that is to take this one's place.
    pub(crate) fn replacement_of(&self, model: ModelId) -> Option<ModelId> {
        let mut entries = self.entries();
        entries.find(|(_, entry)| entry.replaces == Some(model)).map(|(new, _)| new)
    }

    /// The model is gone. Its number is free for another, which has made `grants` fewer than RankState counted.
    pub(crate) fn free(&mut self, model: ModelId, grants: u32) {
        let life = self.next_life(model);
        let numbered = &mut self.models[model.0 as usize];
        numbered.entry = None;
        numbered.life = life;
        numbered.grants = grants;
    }

    /// How many models will have had this number once the present one is gone.
    pub(crate) fn next_life(&self, model: ModelId) -> u16 {
        self.models[model.0 as usize].life.wrapping_add(1)
    }

    /// The model moves to another ModelThread, or gets its first. Returns how often the number has by now.
    pub(crate) fn count_move(&mut self, model: ModelId) -> u32 {
        let moves = &mut self.models[model.0 as usize].moves;
        *moves = moves.wrapping_add(1);
        *moves
    }

    /// Grants to the models that had this number before.
    pub(crate) fn grants_before(&self, model: ModelId) -> u32 {
        self.models[model.0 as usize].grants
    }

    /// What an id stands for.
    pub(crate) fn known(&self, id: u32) -> Known {
        let (number, life) = number_and_life(id);
        let Some(numbered) = self.models.get(number.0 as usize) else { return Known::Never };
        match (&numbered.entry, numbered.life == life) {
            (Some(_), true) => Known::Now(number),
            _ if life < numbered.life => Known::Before,
            _ => Known::Never,
        }
    }

    /// The model with this number.
    pub(crate) fn entry(&self, model: ModelId) -> Option<&Entry> {
        self.models.get(model.0 as usize)?.entry.as_ref()
    }

    /// The model with this number.
    pub(crate) fn entry_mut(&mut self, model: ModelId) -> Option<&mut Entry> {
        self.models.get_mut(model.0 as usize)?.entry.as_mut()
    }

    /// The model of this name: not one that is to have it, nor one that had it.
    pub(crate) fn named(&self, name: &str) -> Option<ModelId> {
        let has_name = |entry: &Entry| {
            entry.spec.name == name && entry.replaces.is_none() && !entry.is_replaced
        };
        self.entries().find(|(_, entry)| has_name(entry)).map(|(number, _)| number)
    }

    /// Every model, by number.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (ModelId, &Entry)> + Clone {
        let numbered = (0..).map(ModelId).zip(&self.models);
        numbered.filter_map(|(number, model)| Some((number, model.entry.as_ref()?)))
    }

    /// Sends everything to a new connection.
    ///
    /// # Errors
    /// The peer is gone or its send queue too short for the catalogue.
    pub fn send(
        &self,
        transport: &mut impl Transport,
        conn: ConnId,
        role: Role,
    ) -> Result<(), SendError> {
        for desc in &self.threads {
            transport.send(conn, desc, &[])?;
        }
        for (desc, name) in &self.subclusters {
            transport.send(conn, desc, name.as_bytes())?;
        }
        for (_, entry) in self.entries().filter(|(_, entry)| entry.is_for(role)) {
            entry.send(transport, conn, role)?;
        }
        transport.send(conn, &self.end, &[])
    }

    /// Says that what was sent is complete.
    pub(crate) fn end(&self) -> CatalogEnd {
        self.end
    }

    /// How many models there may be.
    pub fn models_max(&self) -> usize {
        self.models.len()
    }

    /// The models a sub-cluster serves, by number.
    pub(crate) fn served_by(
        &self,
        subcluster: SubclusterId,
    ) -> impl Iterator<Item = (ModelId, &Entry)> + Clone {
        self.entries().filter(move |(_, entry)| entry.spec.subcluster == subcluster)
    }

    /// As in the cluster file.
    pub fn subcluster_name(&self, subcluster: SubclusterId) -> &str {
        &self.subclusters[subcluster.0 as usize].1
    }

    /// The sub-cluster of this name.
    pub(crate) fn subcluster_named(&self, name: &str) -> Option<SubclusterId> {
        self.subclusters().find(|&id| self.subcluster_name(id) == name)
    }

    /// Every sub-cluster.
    pub fn subclusters(&self) -> impl Iterator<Item = SubclusterId> + use<> {
        (0..self.subclusters.len() as u32).map(SubclusterId)
    }
}

impl Entry {
    /// Its id: what members know it by.
    pub(crate) fn id(&self) -> u32 {
        self.desc.model.get()
    }

    /// Its table, if it was added at run time.
    pub(crate) fn table(&self) -> Option<&str> {
        self.table.as_deref()
    }

    /// Backends are not expected to have it in their cluster files.
    pub(crate) fn is_added(&self) -> bool {
        self.table.is_some()
    }

    /// Another model has its name now.
    pub(crate) fn is_replaced(&self) -> bool {
        self.is_replaced
    }

    /// Clients use it.
    pub(crate) fn is_served(&self) -> bool {
        self.stage == ModelStage::Serving
    }

    /// It lives on this ModelThread. Clients learn it from [`Entry::send_desc`].
    pub(crate) fn set_thread(&mut self, thread: usize) {
        self.desc.thread = (thread as u32).into();
    }

    /// The profile that counts until a backend has measured one.
    pub(crate) fn profile(&self) -> &Profile {
        &self.spec.profile
    }

    /// The profiles of all variants that count until a backend has measured them.
    pub(crate) fn profiles(&self) -> Profiles {
        (0..self.spec.variant_count()).map(|v| self.spec.profile_of(v).clone()).collect()
    }

    /// Another latency objective. Members learn it from [`Entry::send_desc`].
    pub(crate) fn set_objective(&mut self, slo: baton_core::Nanos) {
        self.spec.slo = slo;
        self.desc.slo_ns = slo.0.into();
    }

    /// Backends hold a model from its first to its last task; clients and operators know those that are served.
    fn is_for(&self, role: Role) -> bool {
        role == Role::Backend || self.is_served()
    }

    /// Sends the model's description, its tensors and variants, and to backends its table.
    ///
    /// # Errors
    /// As [`Catalog::send`].
    pub(crate) fn send(
        &self,
        transport: &mut impl Transport,
        conn: ConnId,
        role: Role,
    ) -> Result<(), SendError> {
        self.send_desc(transport, conn)?;
        for (desc, name) in &self.tensors {
            transport.send(conn, desc, name.as_bytes())?;
        }
        for (desc, name) in &self.variants {
            transport.send(conn, desc, name.as_bytes())?;
        }
        match &self.table {
            Some(table) if role == Role::Backend => {
                transport.send(conn, &ModelTable { model: self.desc.model }, table.as_bytes())
            }
            _ => Ok(()),
        }
    }

    /// Sends the model's description alone.
    ///
    /// # Errors
    /// As [`Catalog::send`].
    pub(crate) fn send_desc(
        &self,
        transport: &mut impl Transport,
        conn: ConnId,
    ) -> Result<(), SendError> {
        transport.send(conn, &self.desc, self.spec.name.as_bytes())
    }
}

fn describe(spec: &ModelSpec, id: u32) -> ModelDesc {
    ModelDesc {
        model: id.into(),
        thread: 0.into(),
        subcluster: spec.subcluster.0.into(),
        batch_max: spec.profile.batch_max().into(),
        input_bytes: spec.input_bytes.into(),
        output_bytes: spec.output_bytes.into(),
        slo_ns: spec.slo.0.into(),
    }
}

fn variants(spec: &ModelSpec, id: u32) -> Vec<(VariantDesc, String)> {
    let desc = |variant: &VariantSpec| {
        let desc = VariantDesc { model: id.into(), accuracy: variant.accuracy.into() };
        (desc, variant.name.clone())
    };
    spec.variants.iter().map(desc).collect()
}

/// The messages about a model's tensors. Emulated models take bytes, and that needs no words.
fn tensors(spec: &ModelSpec, id: u32) -> Vec<(TensorDesc, String)> {
    let EngineSpec::Onnx { signature, .. } = &spec.engine else { return Vec::new() };
    let sides = [(false, &signature.input), (true, &signature.output)];
    let descs = sides.into_iter().flat_map(|(of_output, row)| {
        let desc = move |tensor| TensorDesc::new(id, of_output, tensor);
        row.tensors().iter().map(move |tensor| (desc(tensor), tensor.name.clone()))
    });
    descs.collect()
}
