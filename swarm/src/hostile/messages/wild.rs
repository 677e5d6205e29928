//! What belongs nowhere: any message with any content, bytes, or half of either.

use baton_rdma::frame::encode;
use baton_rdma::wire::{
    Action, ActionTask, Body, Cancel, CatalogChange, CatalogChanged, CatalogEnd, ControlAnswer,
    ControlOffer, ControlStart, FabricAnswer, FabricOffer, FabricSlab, FrameHeader, JoinAck,
    JoinBackend, JoinFrontend, Kind, Leave, LeaveAck, Load, LoadDone, MemoryOffer, ModelDesc,
    ModelDown, ModelFailed, ModelTable, Pace, PeerDown, PeerUp, Pong, ProfileDesc, Read, ReadReply,
    Ready, ReadyAck, Refuse, SlabKnown, SlotMemory, StatusAsk, StatusPart, SubclusterDesc, Submit,
    TaskEnd, TaskResult, TensorDesc, ThreadDesc, VariantDesc,
};
use rand::RngExt;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use super::super::AttackerKind;
use super::Messages;

impl Messages<'_> {
    /// Something that does not belong: any message, bytes, or half of either.
    pub(in super::super) fn illegal(&mut self, out: &mut Vec<u8>) -> u64 {
        let from = out.len();
        let said = match self.rng.random_range(0..8) {
            0 => self.noise(out),
            1 => self.wild_header(out),
            _ => self.arbitrary(out),
        };
        if self.one_in(4) && !self.could_name_another_machine(out[from..].first()) {
            self.mangle(out, from);
        }
        said
    }

    /// Whether a frame that begins so could, with a byte changed, send our backends to a machine that has
    /// no part in this.
    fn could_name_another_machine(&self, kind: Option<&u8>) -> bool {
        self.known.is_local() && kind == Some(&(Kind::JoinFrontend as u8))
    }

    fn noise(&mut self, out: &mut Vec<u8>) -> u64 {
        let len = self.rng.random_range(1..200);
        out.extend((0..len).map(|_| self.rng.random::<u8>()));
        1
    }

    fn wild_header(&mut self, out: &mut Vec<u8>) -> u64 {
        let kind = Kind::ALL[self.rng.random_range(0..Kind::ALL.len())];
        let mut header = FrameHeader::new(kind, 0, 0);
        header.body_len = self.n16().into();
        header.payload_len = if self.one_in(2) { 0.into() } else { self.n32().into() };
        header.reserved = u8::from(self.one_in(8));
        out.extend_from_slice(header.as_bytes());
        self.noise(out)
    }

    fn mangle(&mut self, out: &mut Vec<u8>, from: usize) {
        let len = out.len() - from;
        if len == 0 {
            return;
        }
        let at = from + self.rng.random_range(0..len);
        match self.rng.random_range(0..3) {
            0 => out[at] = self.rng.random(),
            1 => out.truncate(at),
            _ => {
                let again = out[from..].to_vec();
                out.extend_from_slice(&again);
            }
        }
    }

    /// Any message of the protocol, with any content.
    pub(in super::super) fn arbitrary(&mut self, out: &mut Vec<u8>) -> u64 {
        match Kind::ALL[self.rng.random_range(0..Kind::ALL.len())] {
            Kind::Hello | Kind::Welcome | Kind::Refuse if !self.one_in(16) => {
                return self.ping(out);
            }
            // A member that says so gets batches: only a thief does, whose effects are expected.
            Kind::Ready if self.known.kind == AttackerKind::Idler => {
                return self.ping(out);
            }
            kind => self.of_kind(kind, out),
        }
        1
    }

    fn of_kind(&mut self, kind: Kind, out: &mut Vec<u8>) {
        match kind {
            Kind::Hello => self.put(out, |w| w.hello()),
            Kind::Welcome => drop(self.welcome(out)),
            Kind::Refuse => self.put(out, |w| Refuse { code: w.n16().into() }),
            Kind::ThreadDesc => self.put(out, Self::thread_desc),
            Kind::ModelDesc | Kind::TensorDesc | Kind::VariantDesc => self.of_desc_kind(kind, out),
            Kind::CatalogEnd => self.put(out, |w| CatalogEnd { scheduler_epoch: w.n64().into() }),
            Kind::JoinFrontend
            | Kind::SlabDesc
            | Kind::JoinBackend
            | Kind::ProfileDesc
            | Kind::SlotMemory
            | Kind::JoinAck
            | Kind::Ready
            | Kind::ReadyAck
            | Kind::Leave
            | Kind::LeaveAck
            | Kind::Pong
            | Kind::PeerUp
            | Kind::PeerDown => self.of_member_kind(kind, out),
            Kind::SubclusterDesc
            | Kind::ModelTable
            | Kind::ModelDown
            | Kind::SlabKnown
            | Kind::ModelFailed
            | Kind::CatalogChange
            | Kind::CatalogChanged
            | Kind::StatusAsk
            | Kind::StatusPart => self.of_catalogue_kind(kind, out),
            Kind::Load | Kind::LoadDone => self.of_load_kind(kind, out),
            Kind::Ping => drop(self.ping(out)),
            Kind::Pace => self.put(out, |w| Pace { every_ns: w.n64().into() }),
            Kind::Submit
            | Kind::Cancel
            | Kind::TaskEnd
            | Kind::Action
            | Kind::ActionDone
            | Kind::Read
            | Kind::ReadReply
            | Kind::TaskResult => self.of_task_kind(kind, out),
            Kind::FabricOffer
            | Kind::FabricAnswer
            | Kind::FabricSlab
            | Kind::ControlOffer
            | Kind::ControlAnswer
            | Kind::ControlStart
            | Kind::MemoryOffer => self.of_fabric_kind(kind, out),
        }
    }

    fn of_desc_kind(&mut self, kind: Kind, out: &mut Vec<u8>) {
        match kind {
            Kind::ModelDesc => self.put(out, Self::model_desc),
            Kind::TensorDesc => self.put(out, Self::tensor_desc),
            _ => self.put(out, Self::variant_desc),
        }
    }

    fn of_catalogue_kind(&mut self, kind: Kind, out: &mut Vec<u8>) {
        match kind {
            Kind::SubclusterDesc => {
                self.put(out, |w| SubclusterDesc { subcluster: w.n32().into() });
            }
            Kind::ModelTable => self.put(out, |w| ModelTable { model: w.model().into() }),
            Kind::ModelDown => self.put(out, |w| ModelDown { model: w.model().into() }),
            Kind::ModelFailed => self.put(out, |w| ModelFailed { model: w.model().into() }),
            Kind::SlabKnown => self
                .put(out, |w| SlabKnown { frontend: w.n32().into(), first_slot: w.n32().into() }),
            Kind::CatalogChange => self
                .put(out, |w| CatalogChange { kind: w.rng.random_range(0..5), reserved: [0; 3] }),
            Kind::CatalogChanged => self.put(out, |w| CatalogChanged {
                status: w.rng.random_range(0..3),
                reserved: [0; 3],
            }),
            Kind::StatusAsk => self.put(out, |w| StatusAsk { from: w.n64().into() }),
            Kind::StatusPart => self.put(out, |w| StatusPart { next: w.n64().into() }),
            other => unreachable!("{other:?} is written elsewhere"),
        }
    }

    fn of_member_kind(&mut self, kind: Kind, out: &mut Vec<u8>) {
        match kind {
            Kind::JoinFrontend => {
                self.put(out, |w| JoinFrontend { addr: w.addr(), slabs: w.n32().into() });
            }
            Kind::SlabDesc => self.put(out, Self::wild_slab),
            Kind::JoinBackend => {
                self.put(out, |w| JoinBackend { subcluster: w.n32().into(), gpus: w.n32().into() });
            }
            Kind::ProfileDesc => {
                let model = self.model();
                let table = vec![U64::new(self.n64()); self.rng.random_range(0..40)];
                let desc = ProfileDesc { model: model.into(), pages: self.n32().into() };
                encode(out, &desc, table.as_bytes(), 0);
            }
            Kind::SlotMemory => {
                let models = self.some_models();
                let memory = SlotMemory {
                    slot: self.n32().into(),
                    pages: self.n32().into(),
                    page_bytes: self.n64().into(),
                };
                encode(out, &memory, models.as_bytes(), 0);
            }
            Kind::JoinAck => self.put(out, |w| JoinAck {
                member: w.n32().into(),
                first_gpu: w.n32().into(),
                token: w.n64().into(),
            }),
            Kind::Ready => self.put(out, |w| Ready { reserved: w.n32().into() }),
            Kind::ReadyAck => self.put(out, |_| ReadyAck {}),
            Kind::Leave => self.put(out, |w| Leave { reserved: w.n32().into() }),
            Kind::LeaveAck => self.put(out, |w| LeaveAck { reserved: w.n32().into() }),
            Kind::Pong => {
                self.put(out, |w| Pong { sent_ns: w.n64().into(), scheduler_ns: w.n64().into() });
            }
            Kind::PeerUp => self.put(out, Self::peer_up),
            Kind::PeerDown => self.put(out, |w| PeerDown { frontend: w.n32().into() }),
            other => unreachable!("{other:?} is written elsewhere"),
        }
    }

    fn of_task_kind(&mut self, kind: Kind, out: &mut Vec<u8>) {
        match kind {
            Kind::Submit => self.put(out, |w| Submit {
                task: w.task().into(),
                deadline_ns: w.n64().into(),
                model: w.model().into(),
                input_bytes: w.n32().into(),
                cost: w.n32().into(),
                accuracy_min: w.n32().into(),
            }),
            Kind::Cancel => {
                self.put(out, |w| Cancel { task: w.task().into(), model: w.model().into() });
            }
            Kind::ActionDone => self.put(out, Self::batch_done),
            Kind::TaskEnd => self.put(out, |w| TaskEnd {
                task: w.task().into(),
                kind: w.rng.random(),
                reason: w.rng.random(),
                retry_ms: w.n16().into(),
            }),
            Kind::Action => {
                let action = self.wild_action();
                let count = self.rng.random_range(0..40);
                let tasks: Vec<ActionTask> = (0..count).map(|_| self.wild_action_task()).collect();
                encode(out, &action, tasks.as_bytes(), 0);
            }
            Kind::Read => self.put(out, |w| Read {
                task: w.task().into(),
                tag: w.n32().into(),
                len: w.n32().into(),
            }),
            Kind::ReadReply => self.put(out, |w| ReadReply {
                task: w.task().into(),
                tag: w.n32().into(),
                status: w.rng.random_range(0..4),
                reserved: [0; 3],
            }),
            Kind::TaskResult => self.put(out, |w| TaskResult {
                task: w.task().into(),
                started_ns: w.n64().into(),
                finished_ns: w.n64().into(),
                batch_size: w.n16().into(),
                variant: w.n16().into(),
                gpu: w.n32().into(),
            }),
            other => unreachable!("{other:?} is written elsewhere"),
        }
    }

    fn of_load_kind(&mut self, kind: Kind, out: &mut Vec<u8>) {
        match kind {
            Kind::Load => {
                let victims = self.some_models();
                let load = Load {
                    load: self.n64().into(),
                    latest_ns: self.n64().into(),
                    model: self.model().into(),
                    gpu: self.n32().into(),
                };
                encode(out, &load, victims.as_bytes(), 0);
            }
            _ => self.put(out, |w| LoadDone {
                load: w.n64().into(),
                started_ns: w.n64().into(),
                finished_ns: w.n64().into(),
                gpu: w.n32().into(),
                pages_free: w.n32().into(),
                status: w.rng.random_range(0..5),
                fault: w.rng.random_range(0..5),
                reserved: [0; 2],
            }),
        }
    }

    fn some_models(&mut self) -> Vec<U32> {
        let count = self.rng.random_range(0..4);
        (0..count).map(|_| U32::new(self.model())).collect()
    }

    fn of_fabric_kind(&mut self, kind: Kind, out: &mut Vec<u8>) {
        match kind {
            Kind::FabricOffer => self.put(out, |w| FabricOffer {
                epoch: w.n32().into(),
                pair: w.n32().into(),
                first_psn: w.n32().into(),
                lid: w.n16().into(),
                read_depth: w.rng.random(),
                mtu: w.rng.random(),
                gid: w.rng.random(),
                read_timeout_us: w.n32().into(),
                reserved: 0.into(),
            }),
            Kind::FabricAnswer => self.put(out, |w| FabricAnswer {
                epoch: w.n32().into(),
                pair: w.n32().into(),
                first_psn: w.n32().into(),
                lid: w.n16().into(),
                read_depth: w.rng.random(),
                mtu: w.rng.random(),
                gid: w.rng.random(),
                read_timeout_us: w.n32().into(),
                slabs: w.n32().into(),
            }),
            Kind::FabricSlab => self.put(out, |w| FabricSlab {
                first_slot: w.n32().into(),
                slots: w.n32().into(),
                stride: w.n32().into(),
                input_bytes: w.n32().into(),
                addr: w.n64().into(),
                rkey: w.n32().into(),
                reserved: 0.into(),
            }),
            other => self.of_control_kind(other, out),
        }
    }

    fn of_control_kind(&mut self, kind: Kind, out: &mut Vec<u8>) {
        match kind {
            Kind::ControlOffer => self.put(out, |w| ControlOffer {
                pair: w.n32().into(),
                first_psn: w.n32().into(),
                lid: w.n16().into(),
                window: w.n16().into(),
                gid: w.rng.random(),
                buffer_bytes: w.n32().into(),
                timeout_us: w.n32().into(),
                mtu: w.rng.random(),
                reserved: [0; 3],
            }),
            Kind::ControlAnswer => self.put(out, |w| ControlAnswer {
                pair: w.n32().into(),
                first_psn: w.n32().into(),
                lid: w.n16().into(),
                window: w.n16().into(),
                gid: w.rng.random(),
                buffer_bytes: w.n32().into(),
                timeout_us: w.n32().into(),
                mtu: w.rng.random(),
                reserved: [0; 3],
            }),
            Kind::ControlStart => self.put(out, |_| ControlStart {}),
            Kind::MemoryOffer => {
                self.put(out, |w| MemoryOffer { cookie: w.n64().into(), socket: w.rng.random() });
            }
            other => unreachable!("{other:?} is written elsewhere"),
        }
    }

    fn put<B: Body>(&mut self, out: &mut Vec<u8>, make: impl FnOnce(&mut Self) -> B) {
        let body = make(self);
        // A tail where one belongs is text; where none does, it is one more mistake.
        let tail = if self.one_in(4) { "tail" } else { "" };
        let takes = matches!(
            B::KIND,
            Kind::Refuse
                | Kind::ModelDesc
                | Kind::TensorDesc
                | Kind::VariantDesc
                | Kind::SubclusterDesc
                | Kind::JoinBackend
                | Kind::ModelTable
                | Kind::ModelFailed
                | Kind::CatalogChange
                | Kind::CatalogChanged
                | Kind::StatusPart
                | Kind::FabricOffer
                | Kind::FabricAnswer
                | Kind::ControlOffer
                | Kind::ControlAnswer
        );
        let tail = if takes || self.one_in(16) { tail } else { "" };
        encode(out, &body, tail.as_bytes(), 0);
    }

    fn wild_action(&mut self) -> Action {
        Action {
            action: self.n64().into(),
            earliest_ns: self.n64().into(),
            latest_ns: self.n64().into(),
            model: self.model().into(),
            gpu: self.n32().into(),
            kind: self.rng.random_range(0..4),
            floor: if self.one_in(4) { self.rng.random() } else { 0 },
            variant: if self.one_in(4) { self.n16().into() } else { 0.into() },
        }
    }

    fn wild_action_task(&mut self) -> ActionTask {
        ActionTask {
            task: self.task().into(),
            input_bytes: self.n32().into(),
            cost: self.n32().into(),
        }
    }

    fn model_desc(&mut self) -> ModelDesc {
        ModelDesc {
            model: self.model().into(),
            thread: self.n32().into(),
            subcluster: self.n32().into(),
            batch_max: self.n32().into(),
            input_bytes: self.n32().into(),
            output_bytes: self.n32().into(),
            slo_ns: self.n64().into(),
        }
    }

    fn thread_desc(&mut self) -> ThreadDesc {
        ThreadDesc { thread: self.n32().into(), addr: self.addr() }
    }

    fn variant_desc(&mut self) -> VariantDesc {
        VariantDesc { model: self.model().into(), accuracy: self.n32().into() }
    }

    fn tensor_desc(&mut self) -> TensorDesc {
        TensorDesc {
            model: self.model().into(),
            side: self.rng.random_range(0..3),
            element: self.rng.random_range(0..16),
            rank: self.rng.random_range(0..12),
            reserved: 0,
            extents: std::array::from_fn(|_| self.n32().into()),
        }
    }

    fn peer_up(&mut self) -> PeerUp {
        PeerUp {
            frontend: self.n32().into(),
            reserved: 0.into(),
            token: self.n64().into(),
            addr: self.addr(),
            slabs: self.n16().into(),
            reserved2: 0.into(),
        }
    }
}
