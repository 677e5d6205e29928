//! The conversation as a state machine. Pure but for the transport that it is handed.
//!
//! In: time, and what happens on the connections to the scheduler. Out: connections, pings, `Ready`, `Leave`, and errors.
//! An error changes nothing by itself: the member ends what depends on the scheduler and calls [`Membership::fail`],
//! which tries again if that can help. Each call must be answered before the next pass.

mod attempt;
mod links;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use baton_rdma::wire::{Body, Leave, Message, Ready, Role};
use baton_rdma::{CloseReason, ConnId, Peer, SendError, Transport};
use baton_topo::PARK_MAX;
use baton_types::Nanos;

use crate::backoff::Backoff;
use crate::catalogue::Catalogue;
use crate::clock_sync::ClockSync;
use crate::error::MembershipError;
use crate::heartbeat::{Beat, Heartbeat};
use crate::member::{Member, Received, Step};
use crate::stage::Stage;
use links::ThreadLinks;

/// Stands for an address that is not known.
const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// See the module documentation.
#[derive(Clone, Debug)]
pub struct Membership {
    member: Member,
    stage: Stage,
    /// When the present stage times out, or the pause is over. [`Nanos::MAX`]: never.
    stage_ends: Nanos,
    /// When the attempts to join for the first time began.
    began: Option<Nanos>,
    /// The log already says that there is no scheduler yet.
    has_logged: bool,
    backoff: Backoff,
    /// The scheduler of the last attempt.
    scheduler: SocketAddr,
    control: Option<ConnId>,
    catalogue: Catalogue,
    threads: ThreadLinks,
    heartbeat: Heartbeat,
    number: u32,
    token: u64,
    /// How often this member has been Ready.
    life: u32,
}

impl Membership {
    /// A membership that begins to join at its first [`Membership::poll`].
    pub fn new(member: Member) -> Self {
        Self {
            stage: Stage::Away,
            stage_ends: Nanos::ZERO,
            began: None,
            has_logged: false,
            backoff: Backoff::new(member.reconnect, member.seed),
            scheduler: member.scheduler.addr().unwrap_or(NOWHERE),
            control: None,
            catalogue: Catalogue::default(),
            threads: ThreadLinks::default(),
            heartbeat: Heartbeat::new(member.member_timeout),
            number: 0,
            token: 0,
            life: 0,
            member,
        }
    }

    /// Counts the time to join from `began`, not from the first poll: some of it has passed.
    pub fn count_from(&mut self, began: Nanos) {
        self.began = Some(began);
    }

    /// Where the conversation stands.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// True if requests and actions may travel.
    pub fn is_ready(&self) -> bool {
        self.stage == Stage::Ready
    }

    /// How often this member has been Ready.
    pub fn life(&self) -> u32 {
        self.life
    }

    /// The number that the scheduler has given this member; 0 before.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The secret by which other members recognise this one; 0 before it is admitted.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// The scheduler of the last attempt.
    pub fn scheduler(&self) -> SocketAddr {
        self.scheduler
    }

    /// The scheduler's clock against ours.
    pub fn sync(&self) -> &ClockSync {
        self.heartbeat.sync()
    }

    /// What the scheduler has announced and this member has not taken yet.
    pub fn catalogue_mut(&mut self) -> &mut Catalogue {
        &mut self.catalogue
    }

    /// True for the connection to the ControlThread.
    pub fn is_control(&self, conn: ConnId) -> bool {
        self.control == Some(conn)
    }

    /// How many ModelThreads there are; 0 before the catalogue is complete.
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// The connection to a ModelThread.
    pub fn thread(&self, number: u32) -> Option<ConnId> {
        self.threads.conn(number)
    }

    /// The protocol version that is spoken with a ModelThread; 0 before the connection is open.
    pub fn thread_version(&self, number: u32) -> u16 {
        self.threads.version(number)
    }

    /// The number of the ModelThread at the other end of a connection.
    pub fn thread_of(&self, conn: ConnId) -> Option<u32> {
        self.threads.number_of(conn)
    }

    /// Every open or opening connection to a ModelThread.
    pub fn thread_conns(&self) -> impl Iterator<Item = ConnId> + '_ {
        self.threads.conns()
    }

    /// Does what is due. Call at the start of each pass, before the transport is polled: a pong is then stamped with a
    /// time that is read after it arrived. `has_work`: the member has tasks outstanding.
    ///
    /// # Errors
    /// The attempt has failed, or the scheduler has fallen silent.
    pub fn poll<T: Transport>(
        &mut self,
        now: Nanos,
        has_work: bool,
        transport: &mut T,
    ) -> Result<Step, MembershipError> {
        let beat = self.heartbeat.poll(now, has_work || self.stage != Stage::Ready);
        if let Some(beat) = &beat {
            self.beat(beat, transport);
        }
        let has_unread = self.control.is_some_and(|conn| transport.has_unread(conn));
        let is_silent = self.heartbeat.is_silent(has_unread);
        if self.stage == Stage::Linking && self.threads.are_open() && self.heartbeat.is_synced() {
            return self.become_ready(transport).map(|()| Step::Ready);
        }
        // An attempt to join has a bound of its own.
        if is_silent && !self.stage.is_joining() {
            return Err(MembershipError::Silent { timeout_ms: in_ms(self.member.member_timeout) });
        }
        if now >= self.stage_ends {
            return self.on_stage_end(now, transport).map(|()| Step::Connecting);
        }
        Ok(if beat.is_some() { Step::Pinged } else { Step::Idle })
    }

    /// When [`Membership::poll`] has something to do.
    pub fn next_timer(&self) -> Option<Nanos> {
        let stage = (self.stage_ends < Nanos::MAX).then_some(self.stage_ends);
        // Silence does not end an attempt to join: it would be due again and again.
        let heartbeat = match self.stage.is_joining() {
            true => self.heartbeat.next_ping(),
            false => self.heartbeat.next_timer(),
        };
        stage.into_iter().chain(heartbeat).min()
    }

    /// For how long the member's thread may sleep in one piece.
    pub fn sleep_max(&self) -> Nanos {
        match self.stage {
            Stage::Ready => self.heartbeat.sleep_max(),
            _ => PARK_MAX,
        }
    }

    /// A connection that this side began is up. Returns false if it does not lead to the scheduler.
    ///
    /// # Errors
    /// Another program is there.
    pub fn on_opened(
        &mut self,
        now: Nanos,
        conn: ConnId,
        peer: &Peer,
    ) -> Result<bool, MembershipError> {
        let Some((what, addr)) = self.link_of(conn) else { return Ok(false) };
        if self.is_control(conn) && peer.role == Role::Control {
            self.stage = Stage::Catalogue;
            self.stage_ends = self.join_ends(now);
        } else if !self.threads.open(conn, peer) {
            let reason = format!("it is no scheduler but says it is {:?}", peer.role);
            return Err(MembershipError::Unfit { what, addr, reason });
        }
        Ok(true)
    }

    /// A connection is gone. Returns false if it did not lead to the scheduler.
    ///
    /// # Errors
    /// The attempt has failed, the scheduler is lost, or it cannot confirm the leave any more.
    pub fn on_closed(
        &mut self,
        conn: ConnId,
        reason: &CloseReason,
    ) -> Result<bool, MembershipError> {
        let (Some(link), was_control) = (self.link_of(conn), self.is_control(conn)) else {
            return Ok(false);
        };
        self.forget(conn);
        let is_lost = match self.stage {
            Stage::Away | Stage::Left => false,
            // The ModelThreads may be quicker than the confirmation.
            Stage::Leaving => was_control,
            _ => true,
        };
        match is_lost {
            true => {
                let (role, is_joining) = (self.member.role, self.stage.is_joining());
                Err(MembershipError::closed(link, reason, role, is_joining))
            }
            false => Ok(true),
        }
    }

    /// A connection has closed, which matters no longer.
    pub fn forget(&mut self, conn: ConnId) {
        self.control.take_if(|control| *control == conn);
        self.threads.forget(conn);
    }

    /// A message on the control connection.
    ///
    /// # Errors
    /// The catalogue contradicts itself, or a ModelThread cannot be reached.
    pub fn on_control<'m, T: Transport>(
        &mut self,
        message: Message<'m>,
        transport: &mut T,
    ) -> Result<Received<'m>, MembershipError> {
        match (self.stage, message) {
            (_, Message::Pong(pong)) => self.heartbeat.on_pong(pong),
            (Stage::Catalogue, Message::CatalogEnd(_)) => {
                self.threads = ThreadLinks::new(self.catalogue.threads()?);
                return Ok(Received::Complete);
            }
            (Stage::Catalogue, message) => {
                if !self.catalogue.take_in(&message, self.scheduler.ip())? {
                    return Ok(Received::Other(message));
                }
            }
            (Stage::Joining, Message::JoinAck(ack)) => {
                self.admit(ack, transport)?;
                return Ok(Received::Admitted(ack));
            }
            (Stage::Leaving, Message::LeaveAck(_)) => {
                self.end();
                return Ok(Received::Left);
            }
            (_, message) => return Ok(Received::Other(message)),
        }
        Ok(Received::Handled)
    }

    /// Asks to be admitted: `join` is the last word of what the member brings.
    ///
    /// # Errors
    /// As [`Membership::send`].
    pub fn ask_to_join<T: Transport>(
        &mut self,
        now: Nanos,
        join: &impl Body,
        tail: &[u8],
        transport: &mut T,
    ) -> Result<(), MembershipError> {
        debug_assert_eq!(
            self.stage,
            Stage::Catalogue,
            "asked once, when the catalogue is complete"
        );
        self.send(join, tail, transport)?;
        self.stage = Stage::Joining;
        self.heartbeat.start(now);
        Ok(())
    }

    /// A message to the ControlThread.
    ///
    /// # Errors
    /// It cannot be queued: the scheduler is gone, or does not read.
    pub fn send<T: Transport>(
        &self,
        body: &impl Body,
        tail: &[u8],
        transport: &mut T,
    ) -> Result<(), MembershipError> {
        let sent = match self.control {
            Some(control) => transport.send(control, body, tail),
            None => Err(SendError::Closed),
        };
        sent.map_err(|error| MembershipError::Closed {
            what: String::from("the scheduler"),
            addr: self.scheduler,
            reason: error.to_string(),
        })
    }

    fn become_ready<T: Transport>(&mut self, transport: &mut T) -> Result<(), MembershipError> {
        self.send(&Ready { reserved: 0.into() }, &[], transport)?;
        self.stage = Stage::Ready;
        self.stage_ends = Nanos::MAX;
        self.life += 1;
        self.backoff.reset();
        Ok(())
    }

    /// Asks to leave, if this member is Ready. The confirmation may take until `bound`. Returns true if it is awaited.
    ///
    /// # Errors
    /// As [`Membership::send`].
    pub fn leave<T: Transport>(
        &mut self,
        bound: Nanos,
        transport: &mut T,
    ) -> Result<bool, MembershipError> {
        if self.stage == Stage::Ready {
            self.send(&Leave { reserved: 0.into() }, &[], transport)?;
            self.stage = Stage::Leaving;
            self.stage_ends = bound;
        }
        Ok(self.stage == Stage::Leaving)
    }

    /// This side stood still for `span`, which does not count against the confirmation of a leave.
    pub fn excuse(&mut self, span: Nanos) {
        if self.stage == Stage::Leaving {
            self.stage_ends = self.stage_ends + span;
        }
    }

    /// The conversation is over.
    pub fn end(&mut self) {
        self.stage = Stage::Left;
        self.stage_ends = Nanos::MAX;
        self.heartbeat.stop();
    }

    fn beat<T: Transport>(&self, beat: &Beat, transport: &mut T) {
        if let Some(control) = self.control {
            // What cannot be queued goes unanswered: the silence is noticed.
            let _ = beat.pace.map(|pace| transport.send(control, &pace, &[]));
            let _ = transport.send(control, &beat.ping, &[]);
        }
    }

    /// The error of a scheduler that does what no scheduler of this version does.
    pub fn unfit(&self, problem: &str) -> MembershipError {
        let (what, reason) = (String::from("the scheduler"), problem.to_owned());
        MembershipError::Unfit { what, addr: self.scheduler, reason }
    }

    /// The error of a ModelThread that is as good as gone.
    pub fn lost_thread(&self, number: u32, problem: String) -> MembershipError {
        let what = format!("ModelThread {number}");
        MembershipError::Closed { what, addr: self.threads.addr(number), reason: problem }
    }

    /// The name and the address of what is at the other end of a connection that this side began.
    fn link_of(&self, conn: ConnId) -> Option<(String, SocketAddr)> {
        if self.is_control(conn) {
            return Some((String::from("the scheduler"), self.scheduler));
        }
        let number = self.threads.number_of(conn)?;
        Some((format!("ModelThread {number}"), self.threads.addr(number)))
    }
}

fn in_ms(span: Nanos) -> u64 {
    span.0 / 1_000_000
}
