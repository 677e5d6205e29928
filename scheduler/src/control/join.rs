//! How members join: what they announce, what is checked, which members learn of it.

use std::mem;

use baton_core::{BackendId, FrontendId, ModelId, Patience, SubclusterId, TaskId};
use baton_rdma::wire::{
    JoinAck, JoinBackend, JoinFrontend, PeerUp, ProfileDesc, RefuseCode, Role, SlabDesc, WireAddr,
};
use baton_rdma::{ConnId, Transport};
use baton_topo::GPUS_PER_BACKEND_MAX;
use zerocopy::little_endian::U64;

use super::status::EventKind;
use super::{ControlThread, Conversation, Handled, Refusal, refuse};
use crate::catalog::{Entry, Known};
use crate::commands::{ModelCommand, SlotMemory};
use crate::limits::NAME_MAX;
use crate::peers::Member;
use crate::profiles::{Profiles, measured_profiles, slowest_of};
use crate::roster::{Backend, Frontend};

impl<T: Transport> ControlThread<T> {
    pub(super) fn on_slab(&mut self, conn: ConnId, slab: &SlabDesc) -> Handled {
        let models = self.parts.catalog.models_max();
        let end = slab.first_slot.get().checked_add(slab.slots.get());
        let model = self.parts.catalog.known(slab.model.get());
        // Backends receive every slab as it is, and must be able to rely on it.
        if model == Known::Never || end.is_none_or(|end| end > TaskId::SLOTS_MAX) {
            let detail = "a slab is of no model, or its slots are out of range";
            return refuse(RefuseCode::BadRequest, detail);
        }
        if let Some(Member::Frontend(id)) = self.member(conn) {
            if model == Known::Before {
                // The frontend is about to hear that its model was removed.
                self.tell_slab_known(conn, id, slab.first_slot.get());
                return Ok(());
            }
            return self.on_new_slab(conn, id, slab);
        }
        let conversation = self.announcing(conn, Role::Frontend)?;
        if conversation.slabs.len() >= models {
            return refuse(RefuseCode::Limit, "more slabs announced than there are models");
        }
        conversation.slabs.push(*slab);
        Ok(())
    }

    pub(super) fn on_profile(
        &mut self,
        conn: ConnId,
        desc: &ProfileDesc,
        table: &[U64],
    ) -> Handled {
        let model = desc.model.get();
        let number = match self.parts.catalog.known(model) {
            Known::Now(number) => number,
            Known::Before => return Ok(()),
            Known::Never => {
                return refuse(RefuseCode::BadRequest, format!("there is no model {model}"));
            }
        };
        self.check_pages(number, desc.pages.get())?;
        let entry = self.parts.catalog.entry(number).expect("there is such a model");
        let expected = (entry.profile().batch_max(), entry.spec.variant_count());
        let measured = measured_profiles(model, expected, table);
        let measured =
            measured.map_err(|detail| Refusal { code: RefuseCode::BadRequest, detail })?;
        if let Some(Member::Backend(id)) = self.member(conn) {
            if let Some(backend) = self.roster.backend(id) {
                backend.profiles.retain(|&(of, _)| of != model);
                backend.profiles.extend(measured.map(|measured| (model, measured)));
            }
            self.on_loaded(id, number, model);
            return Ok(());
        }
        let conversation = self.announcing(conn, Role::Backend)?;
        if conversation.profiles.iter().any(|&(known, _)| known == model) {
            let detail = format!("the profile of model {model} is announced twice");
            return refuse(RefuseCode::BadRequest, detail);
        }
        conversation.profiles.push((model, measured));
        Ok(())
    }

    pub(super) fn on_join_frontend(&mut self, conn: ConnId, join: &JoinFrontend) -> Handled {
        let conversation = self.announcing(conn, Role::Frontend)?;
        let mut slabs = mem::take(&mut conversation.slabs);
        if slabs.len() != join.slabs.get() as usize {
            let detail = format!("{} slabs announced, {} in the join", slabs.len(), join.slabs);
            return refuse(RefuseCode::BadRequest, detail);
        }
        let addr = join.addr.resolve(conversation.peer.addr.ip());
        let catalog = &self.parts.catalog;
        slabs.retain(|slab| matches!(catalog.known(slab.model.get()), Known::Now(_)));
        let Some(id) = self.roster.add_frontend(conn, addr, slabs) else {
            return refuse(RefuseCode::Limit, "no room for another frontend");
        };
        self.parts.counters.frontends_joined.add(1);
        self.set_member(conn, Member::Frontend(id));
        let frontend = self.roster.frontend(id).expect("just added").clone();
        self.tell_model_threads(|| ModelCommand::FrontendUp {
            frontend: id,
            token: frontend.token,
        });
        let ack = JoinAck {
            member: u32::from(id.0).into(),
            first_gpu: 0.into(),
            token: frontend.token.into(),
        };
        self.send_or_drop(conn, |transport| transport.send(conn, &ack, &[]).is_ok());
        let backends: Vec<ConnId> = self.roster.backends().map(|(_, b)| b.conn).collect();
        for backend in backends {
            self.introduce(backend, id, &frontend);
        }
        self.note_event(EventKind::Joined, &format!("frontend {}", id.0), &format!("from {addr}"));
        if self.log.of_member() {
            tracing::info!(frontend = id.0, %addr, "frontend joined");
        }
        Ok(())
    }

    pub(super) fn on_join_backend(
        &mut self,
        conn: ConnId,
        join: &JoinBackend,
        name: &str,
    ) -> Handled {
        let conversation = self.announcing(conn, Role::Backend)?;
        let profiles = mem::take(&mut conversation.profiles);
        let memory = mem::take(&mut conversation.memory);
        let (subcluster, gpus) = (join.subcluster.get(), join.gpus.get());
        self.check_backend(name, subcluster, gpus, &profiles)?;
        let subcluster = SubclusterId(subcluster);
        self.check_memory(subcluster, gpus, &memory)?;
        let id = self.add_backend(conn, name, (subcluster, gpus), memory)?;
        self.parts.counters.backends_joined.add(1);
        self.set_member(conn, Member::Backend(id));
        let record = self.roster.backend(id).expect("just added");
        record.loaded = profiles.iter().map(|&(model, _)| model).collect();
        let measured = profiles.into_iter().filter_map(|(model, profile)| Some((model, profile?)));
        record.profiles = measured.collect();
        let backend = record.clone();
        let (token, gpus) = (backend.token, backend.gpus);
        let first_gpu = gpus[0].id.0;
        self.tell_model_threads(|| ModelCommand::BackendUp {
            backend: id,
            token,
            gpus: gpus.clone(),
        });
        let ack = JoinAck { member: id.0.into(), first_gpu: first_gpu.into(), token: token.into() };
        self.send_or_drop(conn, |transport| transport.send(conn, &ack, &[]).is_ok());
        let frontends: Vec<(FrontendId, Frontend)> =
            self.roster.frontends().map(|(id, f)| (id, f.clone())).collect();
        for (frontend, record) in frontends {
            self.introduce(conn, frontend, &record);
        }
        self.forget_busy(&gpus);
        let with = match gpus.len() {
            1 => format!("with GPU slot {first_gpu}"),
            count => format!("with {count} GPU slots from {first_gpu} on"),
        };
        self.note_event(EventKind::Joined, &format!("backend {name}"), &with);
        if self.log.of_member() {
            tracing::info!(backend = id.0, name, first_gpu, "backend joined");
        }
        Ok(())
    }

    fn add_backend(
        &mut self,
        conn: ConnId,
        name: &str,
        (subcluster, gpus): (SubclusterId, u32),
        memory: Vec<(u64, SlotMemory)>,
    ) -> Result<BackendId, Refusal> {
        let memory: Vec<SlotMemory> = memory.into_iter().map(|(_, memory)| memory).collect();
        let Some(id) = self.roster.add_backend(conn, name, subcluster, gpus) else {
            return refuse(RefuseCode::Limit, "no room for another backend or its GPU slots");
        };
        let first = self.roster.backend(id).map_or(0, |backend| backend.gpus[0].id.0);
        if !self.has_cache_room(first, &memory) {
            self.roster.remove_backend(id);
            let detail = "more than twice as many GPU slots as the scheduler's cluster file has; add the backend to it";
            return refuse(RefuseCode::Limit, detail);
        }
        self.roster.backend(id).into_iter().for_each(|backend| backend.memory.clone_from(&memory));
        Ok(id)
    }

    fn check_backend(
        &self,
        name: &str,
        subcluster: u32,
        gpus: u32,
        profiles: &[(u32, Option<Profiles>)],
    ) -> Handled {
        if name.len() > NAME_MAX {
            let detail = format!("a backend's name has at most {NAME_MAX} bytes");
            return refuse(RefuseCode::BadRequest, detail);
        }
        if name.is_empty() {
            return refuse(RefuseCode::BadRequest, "a backend needs a name");
        }
        if self.roster.backends().any(|(_, b)| b.name == name) {
            let detail = format!(
                "a backend named '{name}' is joined already; stop that one, or be another [[backend]] of the file"
            );
            return refuse(RefuseCode::DuplicateJoin, detail);
        }
        if !(1..=GPUS_PER_BACKEND_MAX).contains(&gpus) {
            let detail = format!("{gpus} GPU slots; a backend has 1 to {GPUS_PER_BACKEND_MAX}");
            return refuse(RefuseCode::BadRequest, detail);
        }
        let Some(subcluster) = self.parts.catalog.subclusters().find(|id| id.0 == subcluster)
        else {
            return refuse(RefuseCode::BadRequest, format!("there is no sub-cluster {subcluster}"));
        };
        // It gets no batches before it has loaded them: models that were added, and those of its file that the scheduler
        // before had removed.
        let is_missing = |entry: &Entry| !profiles.iter().any(|&(model, _)| model == entry.id());
        let served = self.parts.catalog.served_by(subcluster).map(|(_, entry)| entry);
        let missing: Vec<&str> = served
            .filter(|entry| is_missing(entry))
            .map(|entry| entry.spec.name.as_str())
            .collect();
        if !missing.is_empty() {
            tracing::info!(backend = name, ?missing, "a backend serves once it has loaded these");
        }
        Ok(())
    }

    /// As [`ControlThread::adopt_profiles`], by the models' ids.
    pub(super) fn adopt_profiles_of(&mut self, ids: &[u32]) {
        let catalog = &self.parts.catalog;
        let known = ids.iter().filter_map(|&id| match catalog.known(id) {
            Known::Now(model) => Some(model),
            Known::Before | Known::Never => None,
        });
        let models: Vec<ModelId> = known.collect();
        self.adopt_profiles(models.into_iter());
    }

    /// Those of all variants that the model is planned with.
    pub(super) fn planned_profiles(&self, entry: &Entry) -> Profiles {
        self.profiles.get(&entry.spec.id).cloned().unwrap_or_else(|| entry.profiles())
    }

    /// Models are planned with the profile of the slowest backend that serves; if none of them has
    /// measured one, with the cluster file's. `models` are those for which that may have changed.
    pub(super) fn adopt_profiles(&mut self, models: impl Iterator<Item = ModelId>) {
        for model in models {
            let Some(entry) = self.parts.catalog.entry(model) else { continue };
            let (model_id, file) = (entry.id(), entry.profiles());
            let of_model = |b: &Backend| b.profiles.iter().find(|(id, _)| *id == model_id).cloned();
            let serving = self.roster.backends().filter(|(_, backend)| backend.is_serving);
            let measured = serving.filter_map(|(_, backend)| Some(of_model(backend)?.1));
            let slowest = measured.reduce(|a, b| slowest_of(&a, &b));
            let profiles = slowest.unwrap_or(file);
            if self.planned_profiles(entry) == profiles {
                continue;
            }
            self.profiles.insert(model, profiles.clone());
            let patience = Patience::new(&profiles[0]);
            self.tell_model_threads(|| ModelCommand::Profiles {
                model,
                profiles: profiles.clone(),
                patience: patience.clone(),
            });
        }
    }

    /// Tells a backend where a frontend's inputs lie.
    fn introduce(&mut self, backend: ConnId, id: FrontendId, frontend: &Frontend) {
        let number = u32::from(id.0);
        let up = PeerUp {
            frontend: number.into(),
            reserved: 0.into(),
            token: frontend.token.into(),
            addr: WireAddr::new(frontend.addr),
            slabs: (frontend.slabs.len() as u16).into(),
            reserved2: 0.into(),
        };
        self.send_or_drop(backend, |transport| {
            let mut slabs = frontend.slabs.iter();
            slabs.all(|slab| {
                let slab = SlabDesc { frontend: number.into(), ..*slab };
                transport.send(backend, &slab, &[]).is_ok()
            }) && transport.send(backend, &up, &[]).is_ok()
        });
    }

    /// The conversation, if it is with this role and has not joined yet.
    pub(super) fn announcing(
        &mut self,
        conn: ConnId,
        role: Role,
    ) -> Result<&mut Conversation, Refusal> {
        match self.conversations.get_mut(&conn) {
            Some(c) if c.member.is_some() => {
                refuse(RefuseCode::DuplicateJoin, "this connection has joined already")
            }
            Some(c) if c.peer.role == role => Ok(c),
            _ => refuse(RefuseCode::UnexpectedMessage, "that is for the other kind of member"),
        }
    }
}
