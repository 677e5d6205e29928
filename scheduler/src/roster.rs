//! Who is joined: ids, tokens, slots. Pure bookkeeping of the ControlThread.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::SocketAddr;

use baton_core::{BackendId, FrontendId, Gpu, GpuId, SubclusterId};
use baton_rdma::ConnId;
use baton_rdma::wire::SlabDesc;

use crate::commands::SlotMemory;
use crate::limits::{BACKENDS_MAX, FRONTENDS_MAX, GPUS_MAX};
use crate::profiles::Profiles;

/// A joined frontend.
#[derive(Clone, Debug)]
pub struct Frontend {
    /// Its control connection.
    pub conn: ConnId,
    /// What it, and backends towards it, present.
    pub token: u64,
    /// Where backends pull from.
    pub addr: SocketAddr,
    /// Where its inputs lie.
    pub slabs: Vec<SlabDesc>,
}

/// A joined backend.
#[derive(Clone, Debug)]
pub struct Backend {
    /// Its control connection.
    pub conn: ConnId,
    /// Its name, unique among the joined.
    pub name: String,
    /// What it presents.
    pub token: u64,
    /// Where its slots belong.
    pub subcluster: SubclusterId,
    /// Its slots, numbered in a row.
    pub gpus: Vec<Gpu>,
    /// The models it has loaded, by their ids.
    pub loaded: Vec<u32>,
    /// The memory for weights of each of its slots; empty: they hold every model.
    pub memory: Vec<SlotMemory>,
    /// What it has measured, by model.
    pub profiles: Vec<(u32, Profiles)>,
    /// Connected to every ModelThread.
    pub is_ready: bool,
    /// It is ready and has loaded every model of its sub-cluster: its slots get batches.
    pub is_serving: bool,
    /// Slots that still have batches, once it has asked to leave.
    pub draining: Option<usize>,
}

impl Backend {
    /// What [`Backend::state`] may be.
    pub const STATES: [&'static str; 4] = ["serving", "joining", "loading", "draining"];

    /// How far it is, in a word.
    pub fn state(&self) -> &'static str {
        let [serving, joining, loading, draining] = Self::STATES;
        match self {
            Self { draining: Some(_), .. } => draining,
            Self { is_ready: false, .. } => joining,
            Self { is_serving: false, .. } => loading,
            Self { .. } => serving,
        }
    }
}

/// Everything joined.
#[derive(Debug)]
pub struct Roster {
    frontends: Vec<Option<Frontend>>,
    backends: Vec<Option<Backend>>,
    /// Oldest first, so that an id rests as long as possible before it is given out again.
    free_frontends: VecDeque<FrontendId>,
    free_backends: VecDeque<BackendId>,
    /// Per slot number: whether it is taken, and which life is next.
    slots: Vec<(bool, u32)>,
    tokens: RandomState,
    issued: u64,
}

impl Default for Roster {
    fn default() -> Self {
        Self {
            frontends: vec![None; FRONTENDS_MAX as usize],
            backends: vec![None; BACKENDS_MAX as usize],
            free_frontends: (0..FRONTENDS_MAX).map(|id| FrontendId(id as u16)).collect(),
            free_backends: (0..BACKENDS_MAX).map(BackendId).collect(),
            slots: vec![(false, 0); GPUS_MAX as usize],
            tokens: RandomState::new(),
            issued: 0,
        }
    }
}

impl Roster {
    /// Admits a frontend; `None` when there is no room.
    pub fn add_frontend(
        &mut self,
        conn: ConnId,
        addr: SocketAddr,
        slabs: Vec<SlabDesc>,
    ) -> Option<FrontendId> {
        let id = self.free_frontends.pop_front()?;
        let token = self.token();
        self.frontends[usize::from(id.0)] = Some(Frontend { conn, token, addr, slabs });
        Some(id)
    }

    /// Admits a backend with `gpus` slots in a row; `None` when there is no room.
    pub fn add_backend(
        &mut self,
        conn: ConnId,
        name: &str,
        subcluster: SubclusterId,
        gpus: u32,
    ) -> Option<BackendId> {
        let gpus = self.take_slots(gpus as usize)?;
        let Some(id) = self.free_backends.pop_front() else {
            self.free_slots(&gpus);
            return None;
        };
        let token = self.token();
        let name = name.to_owned();
        let backend = Backend {
            conn,
            name,
            token,
            subcluster,
            gpus,
            loaded: Vec::new(),
            memory: Vec::new(),
            profiles: Vec::new(),
            is_ready: false,
            is_serving: false,
            draining: None,
        };
        self.backends[id.0 as usize] = Some(backend);
        Some(id)
    }

    /// Forgets a frontend.
    pub fn remove_frontend(&mut self, id: FrontendId) -> Option<Frontend> {
        let frontend = self.frontends.get_mut(usize::from(id.0))?.take()?;
        self.free_frontends.push_back(id);
        Some(frontend)
    }

    /// Forgets a backend; its slot numbers may be given out again, in their next life.
    pub fn remove_backend(&mut self, id: BackendId) -> Option<Backend> {
        let backend = self.backends.get_mut(id.0 as usize)?.take()?;
        self.free_slots(&backend.gpus);
        self.free_backends.push_back(id);
        Some(backend)
    }

    /// The frontend with this id.
    pub fn frontend(&self, id: FrontendId) -> Option<&Frontend> {
        self.frontends.get(usize::from(id.0))?.as_ref()
    }

    /// The frontend with this id.
    pub fn frontend_mut(&mut self, id: FrontendId) -> Option<&mut Frontend> {
        self.frontends.get_mut(usize::from(id.0))?.as_mut()
    }

    /// A model was removed: its slabs and profiles go with it.
    pub fn forget_model(&mut self, id: u32) {
        for frontend in self.frontends.iter_mut().flatten() {
            frontend.slabs.retain(|slab| slab.model.get() != id);
        }
        for backend in self.backends.iter_mut().flatten() {
            backend.loaded.retain(|&loaded| loaded != id);
            backend.profiles.retain(|&(measured, _)| measured != id);
        }
    }

    /// The backend with this id.
    pub fn backend(&mut self, id: BackendId) -> Option<&mut Backend> {
        self.backends.get_mut(id.0 as usize)?.as_mut()
    }

    /// Every joined frontend.
    pub fn frontends(&self) -> impl Iterator<Item = (FrontendId, &Frontend)> {
        let numbered = self.frontends.iter().enumerate();
        numbered.filter_map(|(id, f)| Some((FrontendId(id as u16), f.as_ref()?)))
    }

    /// Every joined backend.
    pub fn backends(&self) -> impl Iterator<Item = (BackendId, &Backend)> {
        let numbered = self.backends.iter().enumerate();
        numbered.filter_map(|(id, b)| Some((BackendId(id as u32), b.as_ref()?)))
    }

    /// The backend that has the slot in this life.
    pub fn owner(&self, gpu: Gpu) -> Option<BackendId> {
        self.backends().find(|(_, b)| b.gpus.contains(&gpu)).map(|(id, _)| id)
    }

    /// Slots of the sub-cluster that take batches.
    pub fn serving(&self, subcluster: SubclusterId) -> u32 {
        let takes =
            |b: &Backend| b.is_serving && b.draining.is_none() && b.subcluster == subcluster;
        self.backends().filter(|(_, b)| takes(b)).map(|(_, b)| b.gpus.len() as u32).sum()
    }

    /// A number that a process cannot guess: keyed by the operating system's randomness at
    /// start.
    pub fn token(&mut self) -> u64 {
        self.issued += 1;
        let mut hasher = self.tokens.build_hasher();
        hasher.write_u64(self.issued);
        hasher.finish().max(1)
    }

    /// The lowest run of `count` free slots.
    fn take_slots(&mut self, count: usize) -> Option<Vec<Gpu>> {
        let first = self.slots.windows(count).position(|run| run.iter().all(|slot| !slot.0))?;
        let slots = self.slots[first..first + count].iter_mut().enumerate();
        let take = |(at, slot): (usize, &mut (bool, u32))| {
            slot.0 = true;
            Gpu { id: GpuId((first + at) as u32), life: slot.1 }
        };
        Some(slots.map(take).collect())
    }

    fn free_slots(&mut self, gpus: &[Gpu]) {
        for gpu in gpus {
            self.slots[gpu.id.0 as usize] = (false, gpu.life.wrapping_add(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    fn addr() -> SocketAddr {
        "127.0.0.1:1".parse().unwrap()
    }

    fn backend(roster: &mut Roster, gpus: u32) -> Option<BackendId> {
        roster.add_backend(ConnId(1), "b", SubclusterId(0), gpus)
    }

    #[test]
    fn slots_are_given_in_a_row_and_come_back_in_another_life() {
        let mut roster = Roster::default();
        let first = backend(&mut roster, 2).unwrap();
        let second = backend(&mut roster, 3).unwrap();
        let gpus = roster.backend(second).unwrap().gpus.clone();
        assert_eq!(gpus.iter().map(|g| g.id.0).collect::<Vec<_>>(), [2, 3, 4]);
        roster.remove_backend(first).unwrap();
        let third = backend(&mut roster, 2).unwrap();
        assert_ne!(third, first, "ids rest before they are reused");
        let frontend = roster.add_frontend(ConnId(1), addr(), Vec::new()).unwrap();
        roster.remove_frontend(frontend).unwrap();
        let next = roster.add_frontend(ConnId(1), addr(), Vec::new()).unwrap();
        assert_ne!(next, frontend, "theirs too");
        let reused = roster.backend(third).unwrap().gpus[0];
        assert_eq!((reused.id.0, reused.life), (0, 1));
        assert_eq!(roster.owner(reused), Some(third));
        assert_eq!(roster.owner(Gpu { life: 0, ..reused }), None);
    }

    /// A backend that comes later would hear of a slab of a model that it cannot know.
    #[test]
    fn nothing_is_left_of_a_removed_model() {
        let mut roster = Roster::default();
        let slab = |model: u32| SlabDesc { model: model.into(), ..SlabDesc::new_zeroed() };
        let frontend = roster.add_frontend(ConnId(1), addr(), vec![slab(5), slab(6)]).unwrap();
        let id = backend(&mut roster, 1).unwrap();
        let record = roster.backend(id).unwrap();
        record.loaded = vec![6, 5];
        record.profiles = vec![(5, Profiles::default()), (6, Profiles::default())];
        roster.forget_model(5);
        let slabs = roster.frontend(frontend).unwrap().slabs.iter().map(|slab| slab.model.get());
        assert_eq!(slabs.collect::<Vec<_>>(), [6]);
        let record = roster.backend(id).unwrap();
        assert_eq!((record.loaded.as_slice(), record.profiles.len()), (&[6][..], 1));
    }

    #[test]
    fn the_bounds_hold() {
        let mut roster = Roster::default();
        assert!(backend(&mut roster, GPUS_MAX).is_some());
        assert!(backend(&mut roster, 1).is_none(), "no slot left");
        for _ in 0..FRONTENDS_MAX {
            assert!(roster.add_frontend(ConnId(1), addr(), Vec::new()).is_some());
        }
        assert!(roster.add_frontend(ConnId(1), addr(), Vec::new()).is_none());
    }

    #[test]
    fn one_backend_too_many_keeps_no_slot() {
        let mut roster = Roster::default();
        let all: Vec<_> = (0..BACKENDS_MAX).map(|_| backend(&mut roster, 1).unwrap()).collect();
        assert!(backend(&mut roster, 1).is_none(), "no number left, but slots");
        roster.remove_backend(all[0]).unwrap();
        assert!(
            backend(&mut roster, GPUS_MAX - BACKENDS_MAX).is_some(),
            "all that are behind theirs"
        );
    }

    #[test]
    fn who_has_gone_makes_room() {
        let mut roster = Roster::default();
        for _ in 0..2 * BACKENDS_MAX {
            let id = roster.add_frontend(ConnId(1), addr(), Vec::new()).expect("there is room");
            assert!(roster.remove_frontend(id).is_some());
            let id = backend(&mut roster, 1).expect("there is room");
            assert!(roster.remove_backend(id).is_some());
        }
    }

    #[test]
    fn only_ready_backends_that_stay_serve() {
        let mut roster = Roster::default();
        let id = backend(&mut roster, 2).unwrap();
        assert_eq!(roster.serving(SubclusterId(0)), 0);
        roster.backend(id).unwrap().is_serving = true;
        assert_eq!(roster.serving(SubclusterId(0)), 2);
        assert_eq!(roster.serving(SubclusterId(1)), 0);
        roster.backend(id).unwrap().draining = Some(2);
        assert_eq!(roster.serving(SubclusterId(0)), 0);
    }

    #[test]
    fn tokens_differ() {
        let mut roster = Roster::default();
        assert_ne!(roster.token(), roster.token());
        assert_ne!(roster.token(), Roster::default().token(), "keyed anew at each start");
    }
}
