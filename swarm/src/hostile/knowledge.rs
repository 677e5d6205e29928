//! What an attacker has learnt, which is what makes its messages nearly right.

use std::net::{IpAddr, SocketAddr};

use baton_core::Nanos;
use baton_rdma::wire::{Message, ModelDesc, Read};

use super::AttackerKind;
/// Something that was said to an attacker and matters to it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Learned {
    Thread(SocketAddr),
    Model(ModelDesc),
    CatalogEnd,
    Joined { member: u32, token: u64, first_gpu: u32 },
    SchedulerTime(u64),
    Hello,
    Read(Read),
    Action { name: u64, gpu: u32 },
}

impl Learned {
    /// What of a message from this host matters.
    pub(super) fn of(message: &Message<'_>, from: IpAddr) -> Option<Self> {
        Some(match message {
            Message::ThreadDesc(desc) => Self::Thread(desc.addr.resolve(from)),
            Message::ModelDesc(desc, _) => Self::Model(**desc),
            Message::CatalogEnd(_) => Self::CatalogEnd,
            Message::JoinAck(ack) => Self::Joined {
                member: ack.member.get(),
                token: ack.token.get(),
                first_gpu: ack.first_gpu.get(),
            },
            Message::Pong(pong) => Self::SchedulerTime(pong.scheduler_ns.get()),
            Message::Hello(_) => Self::Hello,
            Message::Read(read) => Self::Read(**read),
            Message::Action(action, _) => {
                Self::Action { name: action.action.get(), gpu: action.gpu.get() }
            }
            _ => return None,
        })
    }
}

/// Batches a thief remembers.
const BATCHES_MAX: usize = 64;

/// What it knows now.
#[derive(Debug)]
pub(super) struct Knowledge {
    pub(super) kind: AttackerKind,
    /// Its own, for a name.
    pub(super) number: u32,
    pub(super) addr: SocketAddr,
    pub(super) now: Nanos,
    pub(super) threads: Vec<SocketAddr>,
    pub(super) models: Vec<ModelDesc>,
    /// Its number and token, while it is a member.
    pub(super) member: Option<(u32, u64)>,
    pub(super) first_gpu: u32,
    /// The scheduler's clock, and when it showed that.
    pub(super) scheduler: (u64, Nanos),
    pub(super) batches: Vec<(u64, u32)>,
    /// Of its next task.
    pub(super) generation: u32,
}

impl Knowledge {
    pub(super) fn new(kind: AttackerKind, number: u32, addr: SocketAddr) -> Self {
        Self {
            kind,
            number,
            addr,
            now: Nanos::ZERO,
            threads: Vec::new(),
            models: Vec::new(),
            member: None,
            first_gpu: 0,
            scheduler: (0, Nanos::ZERO),
            batches: Vec::new(),
            generation: 0,
        }
    }

    /// All of it happens on this machine.
    pub(super) fn is_local(&self) -> bool {
        self.addr.ip().is_loopback()
    }

    /// It is no member any more; the next catalogue is another.
    pub(super) fn left(&mut self) {
        self.member = None;
        self.threads.clear();
        self.models.clear();
        self.batches.clear();
    }

    /// The scheduler's clock, roughly.
    pub(super) fn scheduler_now(&self) -> u64 {
        self.scheduler.0 + (self.now - self.scheduler.1).0
    }

    pub(super) fn learn(&mut self, heard: &Learned) {
        match *heard {
            Learned::Thread(addr) => self.threads.push(addr),
            Learned::Model(desc) if !self.models.iter().any(|m| m.model == desc.model) => {
                self.models.push(desc);
            }
            Learned::Joined { member, token, first_gpu } => {
                self.member = Some((member, token));
                self.first_gpu = first_gpu;
            }
            Learned::SchedulerTime(shown) => self.scheduler = (shown, self.now),
            Learned::Action { name, gpu } if self.batches.len() < BATCHES_MAX => {
                self.batches.push((name, gpu));
            }
            _ => {}
        }
    }
}
