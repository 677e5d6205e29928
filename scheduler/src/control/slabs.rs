//! Slabs that joined frontends announce: for models that were added after they had joined.
//!
//! A frontend may use a slab once every backend knows it: an action could overtake the news.

use std::collections::{BTreeMap, BTreeSet};

use baton_core::{BackendId, FrontendId};
use baton_rdma::wire::{RefuseCode, SlabDesc, SlabKnown};
use baton_rdma::{ConnId, Transport};

use super::{ControlThread, Handled, refuse};
use crate::peers::Member;

/// The slabs that some backend has yet to hear of.
#[derive(Debug, Default)]
pub(super) struct Slabs(BTreeMap<(FrontendId, u32), Announced>);

#[derive(Debug)]
struct Announced {
    /// The model's id.
    model: u32,
    backends: BTreeSet<BackendId>,
}

impl Slabs {
    /// The model was removed, and its slabs with it: nothing is awaited of them.
    fn forget_model(&mut self, id: u32) {
        let of_it = self.0.values_mut().filter(|slab| slab.model == id);
        of_it.for_each(|slab| slab.backends.clear());
    }

    pub(super) fn forget_frontend(&mut self, frontend: FrontendId) {
        self.0.retain(|(of, _), _| *of != frontend);
    }

    /// The backend knows the slab.
    fn known(&mut self, slab: (FrontendId, u32), backend: BackendId) {
        if let Some(announced) = self.0.get_mut(&slab) {
            announced.backends.remove(&backend);
        }
    }

    /// Nothing is awaited from this backend any more.
    fn forget_backend(&mut self, backend: BackendId) {
        self.0.values_mut().for_each(|slab| _ = slab.backends.remove(&backend));
    }

    /// Takes out the slabs that every backend knows.
    fn take_complete(&mut self) -> Vec<(FrontendId, u32)> {
        self.0.extract_if(.., |_, slab| slab.backends.is_empty()).map(|(slab, _)| slab).collect()
    }
}

/// Whether two slabs share a slot. Their ends were checked.
fn overlap(a: &SlabDesc, b: &SlabDesc) -> bool {
    let end = |slab: &SlabDesc| slab.first_slot.get() + slab.slots.get();
    a.first_slot.get() < end(b) && b.first_slot.get() < end(a)
}

impl<T: Transport> ControlThread<T> {
    /// A joined frontend has one more slab.
    pub(super) fn on_new_slab(&mut self, conn: ConnId, id: FrontendId, slab: &SlabDesc) -> Handled {
        let models = self.parts.catalog.models_max();
        let Some(frontend) = self.roster.frontend_mut(id) else { return Ok(()) };
        // It uses the slots of removed models again.
        frontend.slabs.retain(|other| !overlap(other, slab));
        if frontend.slabs.len() >= models {
            return refuse(RefuseCode::Limit, "more slabs announced than there may be models");
        }
        let number = u32::from(id.0);
        let slab = SlabDesc { frontend: number.into(), ..*slab };
        frontend.slabs.push(slab);
        debug_assert_eq!(frontend.conn, conn);
        let backends: Vec<(BackendId, ConnId)> =
            self.roster.backends().map(|(backend, record)| (backend, record.conn)).collect();
        let announced = Announced {
            model: slab.model.get(),
            backends: backends.iter().map(|&(backend, _)| backend).collect(),
        };
        self.slabs.0.insert((id, slab.first_slot.get()), announced);
        for (_, conn) in backends {
            self.send_or_drop(conn, |transport| transport.send(conn, &slab, &[]).is_ok());
        }
        self.tell_known();
        Ok(())
    }

    /// A backend knows a slab.
    pub(super) fn on_slab_known(&mut self, conn: ConnId, known: &SlabKnown) -> Handled {
        let member = self.member(conn);
        let Some(Member::Backend(backend)) = member else {
            return refuse(RefuseCode::UnexpectedMessage, "only a joined backend knows slabs");
        };
        if let Ok(frontend) = u16::try_from(known.frontend.get()) {
            self.slabs.known((FrontendId(frontend), known.first_slot.get()), backend);
            self.tell_known();
        }
        Ok(())
    }

    /// A backend is gone: no slab waits for it.
    pub(super) fn slabs_without(&mut self, backend: BackendId) {
        self.slabs.forget_backend(backend);
        self.tell_known();
    }

    /// A model was removed. Its slabs count as known, so that their frontends can use the slots again.
    pub(super) fn slabs_without_model(&mut self, id: u32) {
        self.slabs.forget_model(id);
        self.tell_known();
    }

    fn tell_known(&mut self) {
        for (id, first_slot) in self.slabs.take_complete() {
            if let Some(conn) = self.roster.frontend(id).map(|frontend| frontend.conn) {
                self.tell_slab_known(conn, id, first_slot);
            }
        }
    }

    /// Of a slab that every backend knows, or whose model was removed.
    pub(super) fn tell_slab_known(&mut self, conn: ConnId, id: FrontendId, first_slot: u32) {
        let known = SlabKnown { frontend: u32::from(id.0).into(), first_slot: first_slot.into() };
        self.send_or_drop(conn, |transport| transport.send(conn, &known, &[]).is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of two frontends with a slab of each of two models, for two backends.
    fn awaited() -> Slabs {
        let backends = BTreeSet::from([BackendId(0), BackendId(1)]);
        let announced = |frontend, model: u32| {
            let slab = (FrontendId(frontend), 10 * model);
            (slab, Announced { model, backends: backends.clone() })
        };
        Slabs([(0, 1), (0, 2), (1, 1), (1, 2)].map(|(of, model)| announced(of, model)).into())
    }

    #[test]
    fn a_slab_is_awaited_from_each_backend_that_is_there_while_it_has_an_owner_and_a_model() {
        let slots = |slabs: Vec<(FrontendId, u32)>| -> Vec<(u16, u32)> {
            slabs.into_iter().map(|(of, slot)| (of.0, slot)).collect()
        };
        let complete = |forget: fn(&mut Slabs)| {
            let mut slabs = awaited();
            slabs.forget_backend(BackendId(1));
            assert!(slabs.take_complete().is_empty(), "the other one has yet to say so");
            forget(&mut slabs);
            let complete = slots(slabs.take_complete());
            (complete, slots(slabs.0.into_keys().collect()))
        };
        let all = vec![(0, 10), (0, 20), (1, 10), (1, 20)];
        assert_eq!(complete(|slabs| slabs.forget_backend(BackendId(0))), (all, vec![]));
        let of_model_1 = vec![(0, 10), (1, 10)];
        assert_eq!(complete(|slabs| slabs.forget_model(2)), (vec![(0, 20), (1, 20)], of_model_1));
        let of_frontend_0 = vec![(0, 10), (0, 20)];
        let without_1 = complete(|slabs| slabs.forget_frontend(FrontendId(1)));
        assert_eq!(without_1, (vec![], of_frontend_0));
        let known = |slabs: &mut Slabs| {
            slabs.known((FrontendId(1), 10), BackendId(0));
            slabs.known((FrontendId(1), 30), BackendId(0));
        };
        assert_eq!(complete(known), (vec![(1, 10)], vec![(0, 10), (0, 20), (1, 20)]));
    }

    #[test]
    fn slabs_side_by_side_share_no_slot() {
        let slab = |first_slot: u32, slots: u32| SlabDesc {
            frontend: 0.into(),
            first_slot: first_slot.into(),
            slots: slots.into(),
            stride: 64.into(),
            input_bytes: 16.into(),
            model: 0.into(),
        };
        let shares = |first_slot, slots| overlap(&slab(4, 4), &slab(first_slot, slots));
        assert_eq!(
            [(0, 4), (0, 5), (5, 1), (7, 4), (8, 4)].map(|(at, n)| shares(at, n)),
            [false, true, true, true, false]
        );
    }
}
