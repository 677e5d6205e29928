//! What an attacker says: right and nearly right here, wrong in `wild`.

mod wild;

use std::net::Ipv4Addr;

use baton_core::{FrontendId, Nanos, TaskId};
use baton_rdma::frame::encode;
use baton_rdma::wire::{
    ActionDone, Cancel, Hello, JoinBackend, JoinFrontend, ModelDesc, Ping, ProfileDesc, Read,
    ReadReply, Role, SlabDesc, Submit, TRAILER_LEN, Welcome, WireAddr, WireFetch,
};
use rand::RngExt;
use rand::rngs::StdRng;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

use super::knowledge::Knowledge;
use super::{AttackerKind, MARK};

/// Slots of a slab it announces.
const SLOTS: u32 = 64;

pub(super) struct Messages<'a> {
    rng: &'a mut StdRng,
    known: &'a Knowledge,
}

impl<'a> Messages<'a> {
    pub(super) fn new(rng: &'a mut StdRng, known: &'a Knowledge) -> Self {
        Self { rng, known }
    }

    // --- nearly right ----------------------------------------------------------------------------

    pub(super) fn ping(&mut self, out: &mut Vec<u8>) -> u64 {
        let sent = if self.one_in(8) { self.n64() } else { self.known.now.0 };
        encode(out, &Ping { sent_ns: sent.into() }, &[], 0);
        1
    }

    /// A hello of anybody's: mostly one that can be understood.
    pub(super) fn hello(&mut self) -> Hello {
        let roles = [Role::Frontend, Role::Backend, Role::Control, Role::ModelThread];
        let role = roles[self.rng.random_range(0..4)];
        let own = self.known.member.filter(|_| self.rng.random());
        let (member, token) = own.unwrap_or_else(|| (self.n32(), self.n64()));
        let mut hello = Hello::new(role, member, token);
        match self.rng.random_range(0..40) {
            0 => hello.magic = self.n32().into(),
            1 => hello.version_min = self.n16().into(),
            2 => hello.version_max = self.n16().into(),
            3 => hello.role = self.rng.random(),
            4 => hello.reserved = self.rng.random(),
            _ => {}
        }
        hello
    }

    pub(super) fn welcome(&mut self, out: &mut Vec<u8>) -> u64 {
        let member = self.known.member.map_or(0, |own| own.0);
        let mut welcome = Welcome {
            version: 3.into(),
            role: Role::Frontend as u8,
            reserved: 0,
            member: member.into(),
        };
        match self.rng.random_range(0..30) {
            0 => welcome.version = self.n16().into(),
            1 => welcome.role = self.rng.random(),
            2 => welcome.member = self.n32().into(),
            3 => return 0,
            _ => {}
        }
        encode(out, &welcome, &[], 0);
        1
    }

    /// Announcements, then the join; now and then too many, or impossible ones.
    pub(super) fn join(&mut self, kind: AttackerKind, out: &mut Vec<u8>) -> u64 {
        match kind {
            AttackerKind::Stranger => 0,
            AttackerKind::Frontend => self.join_frontend(out),
            AttackerKind::Idler | AttackerKind::Thief => self.join_backend(kind, out),
        }
    }

    fn join_frontend(&mut self, out: &mut Vec<u8>) -> u64 {
        let storm = if self.one_in(8) { self.rng.random_range(0..5_000) } else { 0 };
        let (mut slabs, mut first) = (0, 0);
        for model in self.known.models.clone() {
            let slab = self.slab(first, &model);
            encode(out, &slab, &[], 0);
            (slabs, first) = (slabs + 1, first + SLOTS);
        }
        for _ in 0..storm {
            let slab = self.wild_slab();
            encode(out, &slab, &[], 0);
            slabs += 1;
        }
        let announced = if self.one_in(16) { self.n32() } else { slabs };
        let addr = match self.rng.random_range(0..8) {
            0 => self.addr(),
            _ => WireAddr::new(self.known.addr),
        };
        encode(out, &JoinFrontend { addr, slabs: announced.into() }, &[], 0);
        u64::from(slabs) + 1
    }

    fn slab(&mut self, first: u32, model: &ModelDesc) -> SlabDesc {
        let input = model.input_bytes.get();
        let slab = SlabDesc {
            frontend: 0.into(),
            first_slot: first.into(),
            slots: SLOTS.into(),
            stride: (input + TRAILER_LEN as u32).into(),
            input_bytes: input.into(),
            model: model.model,
        };
        if self.one_in(16) { self.wild_slab() } else { slab }
    }

    fn wild_slab(&mut self) -> SlabDesc {
        SlabDesc {
            frontend: self.n32().into(),
            first_slot: self.n32().into(),
            slots: self.n32().into(),
            stride: self.n32().into(),
            input_bytes: self.n32().into(),
            model: self.model().into(),
        }
    }

    fn join_backend(&mut self, kind: AttackerKind, out: &mut Vec<u8>) -> u64 {
        let mut said = 0;
        for model in self.known.models.clone() {
            let batch_max = model.batch_max.get() as usize;
            let table: Vec<U64> = match self.rng.random_range(0..4) {
                0 => vec![self.n64().max(1).into(); batch_max],
                _ => Vec::new(),
            };
            encode(out, &ProfileDesc { model: model.model, pages: 0.into() }, table.as_bytes(), 0);
            said += 1;
        }
        let subcluster = if self.one_in(8) { self.n32() } else { self.rng.random_range(0..2) };
        let most = if kind == AttackerKind::Thief { 2 } else { 64 };
        let gpus = if self.one_in(8) { self.n32() } else { self.rng.random_range(1..=most) };
        let name = match self.rng.random_range(0..16) {
            0 => "x".repeat(self.rng.random_range(0..30_000)),
            1 => "b0".to_owned(),
            _ => format!("evil{}", self.known.number),
        };
        let join = JoinBackend { subcluster: subcluster.into(), gpus: gpus.into() };
        encode(out, &join, name.as_bytes(), 0);
        said + 1
    }

    /// What its kind of member says to a ModelThread.
    pub(super) fn thread_words(&mut self, kind: AttackerKind, out: &mut Vec<u8>) -> u64 {
        match kind {
            AttackerKind::Frontend if self.one_in(6) => {
                let (task, model) = self.own_task();
                encode(out, &Cancel { task: task.into(), model: model.into() }, &[], 0);
            }
            AttackerKind::Frontend => {
                let submit = self.submit();
                encode(out, &submit, &[], 0);
                if self.one_in(10) {
                    encode(out, &submit, &[], 0);
                    return 2;
                }
            }
            _ => {
                let done = self.batch_done();
                encode(out, &done, &[], 0);
            }
        }
        1
    }

    fn submit(&mut self) -> Submit {
        let within = self.rng.random_range(1_000_000..60_000_000);
        let deadline =
            if self.one_in(8) { self.n64() } else { self.known.scheduler_now() + within };
        let (task, mut model) = self.own_task();
        if self.one_in(16) {
            model = self.model();
        }
        let known = self.known.models.iter().find(|known| known.model.get() == model);
        let input_bytes = known.map_or(1, |known| known.input_bytes.get());
        Submit {
            task: task.into(),
            deadline_ns: deadline.into(),
            model: model.into(),
            input_bytes: if self.one_in(16) { self.n32().into() } else { input_bytes.into() },
            cost: 0.into(),
            accuracy_min: if self.one_in(4) { self.n32().into() } else { 0.into() },
        }
    }

    fn batch_done(&mut self) -> ActionDone {
        let known = self.known.batches.len();
        let (batch, gpu) = match known {
            0 => (self.n64(), self.n32()),
            _ => self.known.batches[self.rng.random_range(0..known)],
        };
        ActionDone {
            action: batch.into(),
            started_ns: self.n64().into(),
            finished_ns: self.n64().into(),
            gpu: gpu.into(),
            rows: self.n16().into(),
            status: if self.one_in(64) { self.rng.random() } else { self.rng.random_range(0..4) },
            variant: if self.one_in(16) { self.rng.random() } else { 0 },
            fetch: WireFetch::new(Nanos(self.rng.random()), Nanos(self.rng.random())),
        }
    }

    /// Answers a READ of one of its inputs, if it does.
    pub(super) fn serve(&mut self, read: &Read, serves: u32, out: &mut Vec<u8>) -> u64 {
        if self.rng.random_range(0..1000) >= serves {
            return 0;
        }
        let mut reply = ReadReply { task: read.task, tag: read.tag, status: 0, reserved: [0; 3] };
        let mut len = read.len.get() as usize + TRAILER_LEN;
        match self.rng.random_range(0..200) {
            0 => reply.status = self.rng.random(),
            1 => reply.tag = self.n32().into(),
            2 => reply.task = self.n64().into(),
            3 => len = self.rng.random_range(0..len + 10),
            _ => {}
        }
        let mut payload = vec![0xff; len];
        if let Some(trailer) = payload.last_chunk_mut::<TRAILER_LEN>() {
            *trailer = if self.one_in(100) { [7; 8] } else { read.task.get().to_le_bytes() };
        }
        if let Some(head) = payload.first_chunk_mut::<8>() {
            *head = MARK.to_le_bytes();
        }
        encode(out, &reply, &[], len);
        let cut = if self.one_in(200) { self.rng.random_range(0..=len) } else { len };
        out.extend_from_slice(&payload[..cut]);
        1
    }

    // --- numbers ---------------------------------------------------------------------------------

    fn one_in(&mut self, n: u32) -> bool {
        self.rng.random_range(0..n) == 0
    }

    fn n16(&mut self) -> u16 {
        [0, 1, 2, 3, 16, u16::MAX, self.rng.random()][self.rng.random_range(0..7)]
    }

    fn n32(&mut self) -> u32 {
        let member = self.known.member.map_or(0, |own| own.0);
        let wild = self.rng.random();
        let all = [0, 1, 2, 63, 64, 1 << 20, u32::MAX, member, self.known.first_gpu, wild];
        all[self.rng.random_range(0..all.len())]
    }

    fn n64(&mut self) -> u64 {
        let (now, wild) = (self.known.scheduler_now(), self.rng.random());
        let soon = now + self.rng.random_range(0..50_000_000);
        let all = [0, 1, u64::MAX, u64::MAX / 2, now, soon, soon, wild];
        all[self.rng.random_range(0..all.len())]
    }

    fn model(&mut self) -> u32 {
        if self.one_in(16) { self.n32() } else { self.rng.random_range(0..4) }
    }

    /// A task of its own, recent or next, and its model.
    fn own_task(&mut self) -> (u64, u32) {
        let me = self.known.member.map_or(0, |own| own.0) as u16;
        let back = self.rng.random_range(0..4);
        let generation = self.known.generation.wrapping_sub(back);
        let models = self.known.models.len().max(1) as u32;
        let slot = self.rng.random_range(0..SLOTS * models);
        let model = self.known.models.get((slot / SLOTS) as usize).map_or(0, |m| m.model.get());
        (TaskId::new(FrontendId(me), slot, generation).0, model)
    }

    /// Anybody's.
    fn task(&mut self) -> u64 {
        if self.one_in(4) {
            return self.n64();
        }
        let (frontend, slot) = (self.rng.random_range(0..6), self.rng.random_range(0..SLOTS));
        TaskId::new(FrontendId(frontend), slot, self.rng.random_range(0..64)).0
    }

    fn addr(&mut self) -> WireAddr {
        let mut addr = WireAddr::new(self.known.addr);
        match self.rng.random_range(0..4) {
            0 => addr.ip = self.rng.random(),
            1 => addr.ip = [0; 16],
            2 => addr.port = self.n16().into(),
            _ => addr.ip[12..].copy_from_slice(&[10, 0, 0, self.rng.random_range(0..8)]),
        }
        if self.known.is_local() && addr.ip != [0; 16] {
            let near = Ipv4Addr::new(127, 0, 0, self.rng.random_range(1..8));
            addr.ip = WireAddr::new((near, 0).into()).ip;
        }
        addr
    }
}
