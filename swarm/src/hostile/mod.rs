//! Peers that speak the real protocol mostly right.
//!
//! An [`Attacker`] is a process of the simulation that is none of ours: it joins as a frontend or as a
//! backend, or connects to any listener, keeps to the protocol for most of what it says, and breaks
//! it in between: wrong order, wrong numbers, stale generations, bytes that are no frame, floods that
//! it does not read the answers of, connections dropped in the middle of a frame. All of it follows
//! from the seed. It stops when the load does; what it leaves behind is for the oracles to find.

mod knowledge;
mod line;
mod messages;

use std::net::SocketAddr;

use baton_core::Nanos;
use baton_rdma::Net;
use baton_rdma::wire::{Hello, Role};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;

use knowledge::{Knowledge, Learned};
use line::{Line, Whom};
use messages::Messages;

/// The first bytes of every input an attacker serves: no task has this number.
pub(crate) const MARK: u64 = u64::MAX;
/// Bytes an attacker keeps for a peer that does not take them.
const BACKLOG_MAX: usize = 128 * 1024;

/// What an attacker makes itself out to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AttackerKind {
    /// Connects to any listener, and joins nothing.
    Stranger,
    /// Joins as a frontend.
    Frontend,
    /// Joins as a backend that never says that it can serve.
    Idler,
    /// Joins as a backend, is given batches, and executes none of them.
    Thief,
}

/// One attacker, as the seed decides it.
#[derive(Clone, Copy, Debug)]
pub struct Attack {
    /// What it makes itself out to be.
    pub kind: AttackerKind,
    /// When it begins, counted from the moment everybody had joined.
    pub from: Nanos,
    /// Mean time between two bursts.
    pub pace: Nanos,
    /// Messages of a burst, at most.
    pub burst: u32,
    /// Connections it opens at a time, at most.
    pub lines: usize,
    /// Of 1,000 messages, how many break the rules.
    pub illegal: u32,
    /// Of 1,000 READs of its inputs, how many it answers.
    pub serves: u32,
}

impl Attack {
    /// Some attackers for a run of `span`.
    pub(crate) fn draw(rng: &mut StdRng, span: Nanos) -> Vec<Self> {
        let one = |rng: &mut StdRng| Self {
            kind: match rng.random_range(0..8) {
                0..3 => AttackerKind::Stranger,
                3..6 => AttackerKind::Frontend,
                6 => AttackerKind::Idler,
                _ => AttackerKind::Thief,
            },
            from: Nanos(rng.random_range(0..span.0 / 2)),
            pace: Nanos(rng.random_range(10_000..=100_000)),
            burst: rng.random_range(1..=32),
            lines: rng.random_range(1..=8),
            illegal: [0, 2, 20, 200][rng.random_range(0..4)],
            serves: [0, 500, 990, 1000][rng.random_range(0..4)],
        };
        (0..rng.random_range(1..=3)).map(|_| one(rng)).collect()
    }
}

/// What attackers did, and what became of it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Hostility {
    /// Messages said, the malformed included.
    pub messages: u64,
    /// Bytes that the peers took.
    pub bytes: u64,
    /// Connections opened.
    pub connections: u64,
    /// Connections that the peer closed, saying why.
    pub refused: u64,
    /// Connections that ended otherwise before the attacker let go of them.
    pub ended: u64,
    /// Joins that succeeded.
    pub joins: u64,
}

impl Hostility {
    /// Takes in what others did.
    pub fn add(&mut self, other: &Self) {
        self.messages += other.messages;
        self.bytes += other.bytes;
        self.connections += other.connections;
        self.refused += other.refused;
        self.ended += other.ended;
        self.joins += other.joins;
    }
}

/// Who can be connected to.
#[derive(Default, Debug)]
pub struct Targets {
    /// Where members join.
    pub control: Option<SocketAddr>,
    /// The other listeners.
    pub others: Vec<SocketAddr>,
}

/// A peer that is none of ours and speaks nearly as one, over a network of the simulation's or the
/// operating system's. Over loopback it names no address outside this machine.
pub struct Attacker<N: Net> {
    /// When it acts next.
    pub next: Nanos,
    /// What it has done.
    pub done: Hostility,
    attack: Attack,
    port: N,
    rng: StdRng,
    lines: Vec<Line<N::Stream>>,
    known: Knowledge,
}

impl<N: Net> Attacker<N> {
    /// One that listens and connects at `port`; `number` distinguishes it from others.
    pub fn new(attack: Attack, number: u32, port: N, seed: u64, now: Nanos) -> Self {
        let known = Knowledge::new(attack.kind, number, port.local_addr());
        Self {
            next: now,
            done: Hostility::default(),
            attack,
            port,
            rng: StdRng::seed_from_u64(seed),
            lines: Vec::new(),
            known,
        }
    }

    /// One burst: it takes in what has come, says something, and maybe leaves a peer.
    pub fn act(&mut self, now: Nanos, targets: &Targets) {
        self.next = now + Nanos(self.rng.random_range(1_000..=2 * self.attack.pace.0));
        self.known.now = now;
        self.accept();
        self.listen();
        self.keep_control(targets);
        for _ in 0..self.rng.random_range(1..=self.attack.burst) {
            self.say(targets);
        }
        for line in &mut self.lines {
            self.done.bytes += line.flush();
        }
        self.forget_lines();
    }

    /// Where the ModelThreads are, as far as it has learned.
    pub fn threads(&self) -> &[SocketAddr] {
        &self.known.threads
    }

    fn accept(&mut self) {
        while let Ok((stream, from)) = self.port.accept() {
            let deaf = self.rng.random_range(0..16) == 0;
            self.lines.push(Line::new(stream, from.ip(), Whom::Backend, deaf));
            self.done.connections += 1;
        }
    }

    fn listen(&mut self) {
        for at in 0..self.lines.len() {
            for heard in self.lines[at].listen() {
                self.react(at, heard);
            }
        }
    }

    fn forget_lines(&mut self) {
        let (done, known) = (&mut self.done, &mut self.known);
        self.lines.retain(|line| {
            if line.over {
                done.refused += u64::from(line.refused);
                done.ended += u64::from(!line.refused);
                if line.whom == Whom::Control {
                    known.left();
                }
            }
            !line.over
        });
    }

    /// Joins, if it wants to and has not.
    fn keep_control(&mut self, targets: &Targets) {
        let has = self.lines.iter().any(|line| line.whom == Whom::Control);
        if let (Some(role), Some(control), false) = (self.role(), targets.control, has) {
            self.known.left();
            self.open(control, Whom::Control, Hello::new(role, 0, 0), false);
        }
    }

    fn role(&self) -> Option<Role> {
        match self.attack.kind {
            AttackerKind::Stranger => None,
            AttackerKind::Frontend => Some(Role::Frontend),
            AttackerKind::Idler | AttackerKind::Thief => Some(Role::Backend),
        }
    }

    fn open(&mut self, to: SocketAddr, whom: Whom, hello: Hello, deaf: bool) {
        let Ok(stream) = self.port.connect(to) else { return };
        let mut line = Line::new(stream, to.ip(), whom, deaf);
        line.say(&hello, &[]);
        self.lines.push(line);
        self.done.connections += 1;
        self.done.messages += 1;
    }

    /// Connects to anybody, as anybody.
    fn intrude(&mut self, targets: &Targets) {
        let all = targets.control.iter().chain(&targets.others);
        let count = all.clone().count();
        if count == 0 || self.lines.len() >= self.attack.lines {
            return;
        }
        let to = *all.clone().nth(self.rng.random_range(0..count)).expect("below the count");
        let deaf = self.rng.random_range(0..8) == 0;
        let hello = Messages::new(&mut self.rng, &self.known).hello();
        if self.rng.random_range(0..10) > 0 {
            return self.open(to, Whom::Anybody, hello, deaf);
        }
        // One that says nothing, or something else first.
        if let Ok(stream) = self.port.connect(to) {
            self.lines.push(Line::new(stream, to.ip(), Whom::Anybody, deaf));
            self.done.connections += 1;
        }
    }

    fn say(&mut self, targets: &Targets) {
        let own = self.lines.len();
        match self.rng.random_range(0..400) {
            0 if own > 0 => {
                // Let go of in the middle of whatever it was.
                let at = self.rng.random_range(0..own);
                self.lines[at].cut(&mut self.rng);
            }
            1..=8 => self.intrude(targets),
            _ if own > 0 => {
                let at = self.rng.random_range(0..own);
                self.speak(at);
            }
            _ => self.intrude(targets),
        }
    }

    fn speak(&mut self, at: usize) {
        let line = &mut self.lines[at];
        if line.over || line.backlog() > BACKLOG_MAX {
            return;
        }
        let breaks_rules = self.rng.random_range(0..1000) < self.attack.illegal;
        let mut words = Messages::new(&mut self.rng, &self.known);
        let whom = line.whom;
        self.done.messages += match whom {
            _ if breaks_rules => words.illegal(line.out()),
            Whom::Anybody => words.arbitrary(line.out()),
            Whom::Control => words.ping(line.out()),
            Whom::Thread => words.thread_words(self.attack.kind, line.out()),
            Whom::Backend => 0,
        };
        if whom == Whom::Thread && self.attack.kind == AttackerKind::Frontend {
            self.known.generation = self.known.generation.wrapping_add(1);
        }
    }

    fn react(&mut self, at: usize, heard: Learned) {
        let mut words = Messages::new(&mut self.rng, &self.known);
        let line = &mut self.lines[at];
        match heard {
            Learned::CatalogEnd if line.whom == Whom::Control => {
                self.done.messages += words.join(self.attack.kind, line.out());
            }
            Learned::Joined { .. } if line.whom == Whom::Control => {
                self.known.learn(&heard);
                self.done.joins += 1;
                self.link();
            }
            Learned::Read(read) => {
                let serves = self.attack.serves;
                self.done.messages += words.serve(&read, serves, line.out());
            }
            Learned::Hello => self.done.messages += words.welcome(line.out()),
            other => self.known.learn(&other),
        }
    }

    /// Connects to the ModelThreads, as a member does.
    fn link(&mut self) {
        let Some((member, token)) = self.known.member else { return };
        let Some(role) = self.role() else { return };
        for to in self.known.threads.clone() {
            self.open(to, Whom::Thread, Hello::new(role, member, token), false);
        }
        if self.attack.kind == AttackerKind::Thief
            && let Some(control) = self.lines.iter_mut().find(|line| line.whom == Whom::Control)
        {
            control.say(&baton_rdma::wire::Ready { reserved: 0.into() }, &[]);
            self.done.messages += 1;
        }
    }
}
