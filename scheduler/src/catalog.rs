//! What a new member is told before it joins: ModelThreads, sub-clusters, models.

use std::net::SocketAddr;

use baton_core::{Profile, SubclusterId};
use baton_rdma::wire::{CatalogEnd, ModelDesc, SubclusterDesc, TensorDesc, ThreadDesc, WireAddr};
use baton_rdma::{ConnId, SendError, Transport};
use baton_topo::{Cluster, EngineSpec, ModelSpec};

/// The messages of the catalogue, ready to send.
#[derive(Clone, Debug)]
pub struct Catalog {
    threads: Vec<ThreadDesc>,
    subclusters: Vec<(SubclusterDesc, String)>,
    models: Vec<(ModelDesc, String)>,
    /// Of the models whose tensors are known.
    tensors: Vec<(TensorDesc, String)>,
    /// The cluster file's, by model.
    profiles: Vec<Profile>,
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
        let model = |(number, model): (usize, &ModelSpec)| {
            let desc = ModelDesc {
                model: (number as u32).into(),
                thread: (thread_of[number] as u32).into(),
                subcluster: model.subcluster.0.into(),
                batch_max: model.profile.batch_max().into(),
                input_bytes: model.input_bytes.into(),
                output_bytes: model.output_bytes.into(),
                slo_ns: model.slo.0.into(),
            };
            (desc, model.name.clone())
        };
        Self {
            threads: addrs.iter().enumerate().map(thread).collect(),
            subclusters: cluster.subclusters.iter().enumerate().map(subcluster).collect(),
            models: cluster.models.iter().enumerate().map(model).collect(),
            tensors: (0..).zip(&cluster.models).flat_map(tensors).collect(),
            profiles: cluster.models.iter().map(|model| model.profile.clone()).collect(),
            end: CatalogEnd { scheduler_epoch: scheduler_epoch.into() },
        }
    }

    /// The model lives on another ModelThread from now on; returns what members are told.
    pub fn moved(&mut self, model: usize, thread: usize) -> &(ModelDesc, String) {
        let entry = &mut self.models[model];
        entry.0.thread = (thread as u32).into();
        entry
    }

    /// Sends everything to a new connection.
    ///
    /// # Errors
    /// The peer is gone or its send queue too short for the catalogue.
    pub fn send(&self, transport: &mut impl Transport, conn: ConnId) -> Result<(), SendError> {
        for desc in &self.threads {
            transport.send(conn, desc, &[])?;
        }
        for (desc, name) in &self.subclusters {
            transport.send(conn, desc, name.as_bytes())?;
        }
        for (desc, name) in &self.models {
            transport.send(conn, desc, name.as_bytes())?;
        }
        for (desc, name) in &self.tensors {
            transport.send(conn, desc, name.as_bytes())?;
        }
        transport.send(conn, &self.end, &[])
    }

    /// How many models there are.
    pub fn models(&self) -> usize {
        self.models.len()
    }

    /// The cluster file's profile of a model.
    pub fn profile(&self, model: u32) -> Option<&Profile> {
        self.profiles.get(model as usize)
    }

    /// The largest batch of a model, if there is such a model.
    pub fn batch_max(&self, model: u32) -> Option<u32> {
        Some(self.models.get(model as usize)?.0.batch_max.get())
    }

    /// The models a sub-cluster serves; `None` if there is no such sub-cluster.
    pub fn served_by(&self, subcluster: u32) -> Option<impl Iterator<Item = (u32, &str)>> {
        self.subclusters.get(subcluster as usize)?;
        let models = self.models.iter().filter(move |(d, _)| d.subcluster.get() == subcluster);
        Some(models.map(|(desc, name)| (desc.model.get(), name.as_str())))
    }

    /// As in the cluster file.
    pub fn subcluster_name(&self, subcluster: SubclusterId) -> &str {
        &self.subclusters[subcluster.0 as usize].1
    }

    /// Every sub-cluster.
    pub fn subclusters(&self) -> impl Iterator<Item = SubclusterId> {
        (0..self.subclusters.len()).map(|id| SubclusterId(id as u32))
    }
}

/// The messages about a model's tensors. Emulated models take bytes, and that needs no words.
fn tensors((number, model): (u32, &ModelSpec)) -> Vec<(TensorDesc, String)> {
    let EngineSpec::Onnx { signature, .. } = &model.engine else { return Vec::new() };
    let sides = [(false, &signature.input), (true, &signature.output)];
    let descs = sides.into_iter().flat_map(|(of_output, row)| {
        let desc = move |spec| TensorDesc::new(number, of_output, spec);
        row.tensors().iter().map(move |spec| (desc(spec), spec.name.clone()))
    });
    descs.collect()
}
