//! A member between a ControlThread and a ModelThread, stepped by hand.

use std::net::SocketAddr;

use baton_membership::{Member, Membership, MembershipError, Received, Stage, Step};
use baton_rdma::wire::{
    Body, CatalogEnd, JoinAck, JoinFrontend, Message, Pong, RefuseCode, Role, ThreadDesc, WireAddr,
};
use baton_rdma::{ConnId, Event, Events, Identity, InprocNetwork, InprocTransport, Transport};
use baton_topo::ReconnectSpec;
use baton_types::Nanos;

pub(crate) const STEP: Nanos = Nanos::from_millis(10);
pub(crate) const JOIN_TIMEOUT: Nanos = Nanos::from_millis(3_000);
pub(crate) const MEMBER_TIMEOUT: Nanos = Nanos::from_millis(1_000);

/// One endpoint of the scheduler and its last connection.
pub(crate) struct Party {
    pub(crate) transport: InprocTransport,
    pub(crate) conn: Option<ConnId>,
    /// The kinds of what it has heard, other than pings.
    pub(crate) heard: Vec<&'static str>,
    pings: Vec<u64>,
}

impl Party {
    pub(crate) fn new(network: &InprocNetwork, role: Role) -> Self {
        let transport = network.endpoint(Identity { role, member: 0 });
        Self { transport, conn: None, heard: Vec::new(), pings: Vec::new() }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.transport.local_addr()
    }

    pub(crate) fn step(&mut self, now: Nanos) {
        let mut events = Events::new();
        self.transport.poll(now, &mut events);
        for event in events.drain() {
            match event {
                Event::Opened { conn, .. } => self.conn = Some(conn),
                Event::Closed { conn, .. } => {
                    self.conn.take_if(|open| *open == conn);
                }
                Event::Message { message: Message::Ping(ping), .. } => {
                    self.pings.push(ping.sent_ns.get());
                }
                Event::Message { message, .. } => self.heard.push(match message {
                    Message::JoinFrontend(_) => "join",
                    Message::Ready(_) => "ready",
                    Message::Leave(_) => "leave",
                    _ => "something else",
                }),
                Event::Read(_) | Event::Result { .. } => unreachable!("no data here"),
            }
        }
        self.transport.flush();
    }

    pub(crate) fn send(&mut self, body: &impl Body) {
        self.send_with(body, &[]);
    }

    pub(crate) fn send_with(&mut self, body: &impl Body, tail: &[u8]) {
        self.transport.send(self.conn.expect("connected"), body, tail).expect("it can be sent");
    }

    pub(crate) fn close(&mut self, code: RefuseCode) {
        self.transport.close(self.conn.take().expect("connected"), code, "as the test wants it");
        self.transport.flush();
    }
}

pub(crate) struct World {
    pub(crate) now: Nanos,
    pub(crate) membership: Membership,
    pub(crate) transport: InprocTransport,
    pub(crate) control: Party,
    pub(crate) thread: Party,
    pub(crate) answers_pings: bool,
    /// The ModelThread takes connections.
    pub(crate) thread_polls: bool,
    /// What the membership reported last.
    pub(crate) error: Option<MembershipError>,
    pub(crate) readies: u32,
    pub(crate) pings: u32,
    pub(crate) has_work: bool,
    pub(crate) admissions: u32,
    /// Messages that the membership has left to the member.
    pub(crate) others: u32,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::of(Role::Frontend)
    }

    pub(crate) fn of(role: Role) -> Self {
        Self::with(role, JOIN_TIMEOUT)
    }

    pub(crate) fn with(role: Role, join_timeout: Nanos) -> Self {
        let network = InprocNetwork::new();
        let control = Party::new(&network, Role::Control);
        let thread = Party::new(&network, Role::ModelThread);
        let membership = Membership::new(Member {
            role,
            scheduler: control.addr().into(),
            reconnect: ReconnectSpec::default(),
            seed: 7,
            join_timeout,
            join_timeout_setting: "join_timeout",
            member_timeout: MEMBER_TIMEOUT,
        });
        let transport = network.endpoint(Identity { role, member: 0 });
        let (now, error) = (Nanos::from_millis(1_000), None);
        let mut world = Self {
            now,
            membership,
            transport,
            control,
            thread,
            answers_pings: true,
            thread_polls: true,
            error,
            readies: 0,
            pings: 0,
            has_work: false,
            admissions: 0,
            others: 0,
        };
        world.steps(2);
        world
    }

    /// As a member's agent does it, with errors kept for the test.
    pub(crate) fn step(&mut self) {
        self.now = self.now + STEP;
        match self.membership.poll(self.now, self.has_work, &mut self.transport) {
            Ok(step) => {
                self.readies += u32::from(step == Step::Ready);
                self.pings += u32::from(step == Step::Pinged);
            }
            Err(error) => self.error = Some(error),
        }
        let mut events = Events::new();
        self.transport.poll(self.now, &mut events);
        for event in events.drain() {
            let met = match event {
                Event::Opened { conn, peer } => {
                    self.membership.on_opened(self.now, conn, &peer).map(drop)
                }
                Event::Closed { conn, reason } => {
                    self.membership.on_closed(conn, &reason).map(drop)
                }
                Event::Message { message, .. } => self
                    .membership
                    .on_control(message, &mut self.transport)
                    .and_then(|received| match received {
                        Received::Complete => self.membership.ask_to_join(
                            self.now,
                            &JoinFrontend { addr: WireAddr::new(LATER), slabs: 0.into() },
                            &[],
                            &mut self.transport,
                        ),
                        Received::Admitted(ack) => {
                            assert_eq!(ack.member.get(), 5, "the number that it was given");
                            self.admissions += 1;
                            Ok(())
                        }
                        Received::Other(_) => {
                            self.others += 1;
                            Ok(())
                        }
                        _ => Ok(()),
                    }),
                _ => Ok(()),
            };
            if let Err(error) = met {
                self.error = Some(error);
            }
        }
        self.transport.flush();
        self.control.step(self.now);
        if self.thread_polls {
            self.thread.step(self.now);
        }
        for sent in std::mem::take(&mut self.control.pings) {
            if self.answers_pings && self.control.conn.is_some() {
                let pong = Pong { sent_ns: sent.into(), scheduler_ns: (sent + 1).into() };
                self.control.send(&pong);
            }
        }
        self.control.transport.flush();
    }

    pub(crate) fn steps(&mut self, count: usize) {
        (0..count).for_each(|_| self.step());
    }

    pub(crate) fn announce(&mut self) {
        let addr = WireAddr::new(self.thread.addr());
        self.control.send(&ThreadDesc { thread: 0.into(), addr });
        self.control.send(&CatalogEnd { scheduler_epoch: 1.into() });
        self.steps(2);
    }

    pub(crate) fn admit(&mut self) {
        self.control.send(&JoinAck { member: 5.into(), first_gpu: 0.into(), token: 77.into() });
        self.steps(2);
    }

    /// Its first scheduler has stopped.
    pub(crate) fn sent_away() -> Self {
        let mut world = Self::new();
        world.control.close(RefuseCode::Shutdown);
        world.step();
        world.fail().expect("it looks for the next one");
        world
    }

    pub(crate) fn ready() -> Self {
        Self::new().become_ready()
    }

    pub(crate) fn become_ready(mut self) -> Self {
        self.announce();
        self.admit();
        self.steps(30);
        assert_eq!((self.membership.stage(), self.readies), (Stage::Ready, 1));
        self
    }

    /// Every attempt to join is refused, as by a scheduler that stops.
    pub(crate) fn refused_until_it_gives_up(&mut self) -> MembershipError {
        let began = self.now;
        while self.now - began < JOIN_TIMEOUT.times(2) {
            if self.control.conn.is_some() {
                self.control.close(RefuseCode::Shutdown);
            }
            self.step();
            if self.error.is_some()
                && let Err(error) = self.fail()
            {
                return error;
            }
        }
        panic!("it tries for ever");
    }

    /// What the member does with an error that it does not survive.
    pub(crate) fn fail(&mut self) -> Result<(), MembershipError> {
        let error = self.error.take().expect("something went wrong");
        let failed = self.membership.fail(self.now, error);
        self.membership.let_go("the test wants it", &mut self.transport);
        failed
    }
}

const LATER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);
