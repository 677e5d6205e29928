//! Membership: frontends and backends join, prove they live, drain and leave while the rest runs.
//!
//! Off the request path. The ControlThread alone decides who is a member. It sends commands to
//! ModelThreads and the RankThread; backends learn of frontends by `PeerUp` and `PeerDown`.

mod autoscale;
mod balance;
mod changes;
mod join;
mod leave;
mod log;
mod memory;
mod silence;
mod slabs;
mod status;
mod trials;

use std::collections::BTreeMap;
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;

use baton_core::{ModelId, Nanos};
use baton_rdma::wire::{Message, PING_EVERY, RefuseCode, Role, SlabDesc};
use baton_rdma::{ConnId, Event, Events, Peer, Transport};
use baton_topo::{Agent, Journal, ModelSpec, Waker};
use crossbeam_channel::{Receiver, TryRecvError};

use crate::cache::levels::CacheLevels;
use crate::catalog::Catalog;
use crate::commands::{ModelCommand, Notice, RankCommand, SlotMemory};
use crate::counters::ControlThreadCounters;
use crate::link::{CommandSender, NoticeSender};
use crate::metrics::StateAsks;
use crate::migration::load_board::LoadBoard;
use crate::model_config::CommonConfig;
use crate::peers::Member;
use crate::profiles::Profiles;
use crate::roster::Roster;
use crate::task_board::TaskBoards;

use autoscale::Autoscale;
use balance::Balance;
use changes::{Changes, JournalKeeper};
use log::Log;
use silence::Hearing;
use slabs::Slabs;
use status::{LossReason, Status};
use trials::Trying;

pub(crate) use changes::SlowWork;
pub(crate) use memory::CachedSubclusters;

/// One connection, from its hello on.
struct Conversation {
    peer: Peer,
    /// Set by a successful join.
    member: Option<Member>,
    /// It asked to leave, and has the answer that nothing is outstanding any more.
    left: bool,
    /// What a frontend announced ahead of its join.
    slabs: Vec<SlabDesc>,
    /// What a backend announced ahead of its join: models it has loaded, with measured profiles.
    profiles: Vec<(u32, Option<Profiles>)>,
    /// Also: the memory for weights of its slots, with the bytes of a page.
    memory: Vec<(u64, SlotMemory)>,
    /// An operator's change is under way.
    is_changing: bool,
    /// An operator's question that waits: see [`wire::StatusAsk`](baton_rdma::wire::StatusAsk).
    asks_from: Option<u64>,
    /// In time for which the ControlThread has been awake.
    last_heard: Nanos,
    /// How often it pings.
    ping_every: Nanos,
    /// When it joined.
    joined_at: Nanos,
    /// Closed by us, and why; what was under way is ignored.
    ended: Option<(LossReason, String)>,
}

/// Why a message was not accepted: the connection is closed with this.
struct Refusal {
    code: RefuseCode,
    detail: String,
}

type Handled = Result<(), Refusal>;

fn refuse<T>(code: RefuseCode, detail: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal { code, detail: detail.into() })
}

const SHUTTING_DOWN: &str = "the scheduler is shutting down";

/// Everything the ControlThread needs from its start.
pub struct ControlParts {
    /// What new members learn.
    pub catalog: Catalog,
    /// What the configurations of all models have in common.
    pub common: CommonConfig,
    /// Where the files of models are read, the journal is written, and rules are tried.
    pub(crate) slow_work: SlowWork,
    /// Where each model lives at first: the number of its ModelThread.
    pub homes: Vec<usize>,
    /// Requests per model, as ModelThreads report them.
    pub load: Arc<LoadBoard>,
    /// Which sub-clusters have caches for weights.
    pub(crate) cached: CachedSubclusters,
    /// What has become of tasks, as ModelThreads count them.
    pub tasks: TaskBoards,
    /// How caches of weights fare; `None`: there are none.
    pub(crate) levels: Option<Arc<CacheLevels>>,
    /// To every ModelThread, by number.
    pub model_threads: Vec<CommandSender<ModelCommand>>,
    /// To the RankThread.
    pub rank: CommandSender<RankCommand>,
    /// From the other threads.
    pub notices: Receiver<Notice>,
    /// Questions of the metrics thread.
    pub(crate) state_asks: StateAsks,
    /// For a thread that reads a table.
    pub notice_sender: NoticeSender,
    /// Silence after which a member counts as dead.
    pub member_timeout: Nanos,
    /// Brings something when the scheduler begins to stop, and is closed when this thread is to take leave.
    pub shutdown: Receiver<()>,
    /// What is counted.
    pub counters: Arc<ControlThreadCounters>,
}

/// The agent that owns the [`Roster`].
pub struct ControlThread<T> {
    transport: T,
    events: Events,
    parts: ControlParts,
    roster: Roster,
    /// In order of connection: who is closed first must not depend on chance.
    conversations: BTreeMap<ConnId, Conversation>,
    /// What each model is planned with, where that is not, or was not, the cluster file's.
    profiles: BTreeMap<ModelId, Profiles>,
    changes: Changes,
    journal: Option<JournalKeeper>,
    slabs: Slabs,
    hearing: Hearing,
    balance: Balance,
    autoscale: Autoscale,
    trying: Trying,
    status: Status,
    /// The scheduler stops: who joined it now would have to find the next one at once.
    stopping: bool,
    finished: bool,
    log: Log,
}

impl<T: Transport> ControlThread<T> {
    /// No member has joined yet.
    pub fn new(transport: T, parts: ControlParts) -> Self {
        let (balance, autoscale) = (Balance::new(&parts), Autoscale::new(&parts));
        let trying = Trying::new(&parts);
        let hearing = Hearing::new(parts.member_timeout);
        Self {
            transport,
            events: Events::new(),
            parts,
            roster: Roster::default(),
            conversations: BTreeMap::new(),
            profiles: BTreeMap::new(),
            changes: Changes::default(),
            journal: None,
            slabs: Slabs::default(),
            hearing,
            balance,
            autoscale,
            trying,
            status: Status::default(),
            stopping: false,
            finished: false,
            log: Log::default(),
        }
    }

    /// Does what takes long there from now on.
    pub(crate) fn do_slow_work(&mut self, slow_work: SlowWork) {
        self.parts.slow_work = slow_work;
    }

    /// Writes changes of the catalogue down there from now on. `tables` are those of the models that it has from there.
    pub fn keep_journal(&mut self, journal: Journal, tables: BTreeMap<String, String>) {
        self.parts.catalog.know_tables(tables);
        self.journal = Some(JournalKeeper::new(journal));
    }

    /// Where members join.
    pub fn local_addr(&self) -> SocketAddr {
        self.transport.local_addr()
    }

    /// The models that clients use, by number.
    pub fn models(&self) -> impl Iterator<Item = (ModelId, &ModelSpec)> {
        let served = self.parts.catalog.entries().filter(|(_, entry)| entry.is_served());
        served.map(|(model, entry)| (model, &entry.spec))
    }

    /// Who is joined.
    pub fn roster(&self) -> &Roster {
        &self.roster
    }

    fn take_events(&mut self, now: Nanos) -> usize {
        let mut events = mem::take(&mut self.events);
        let taken = self.transport.poll(now, &mut events);
        for event in events.drain() {
            match event {
                Event::Opened { conn, peer } => self.on_opened(conn, peer),
                Event::Message { conn, message } => self.on_message(now, conn, message),
                Event::Closed { conn, reason } => self.on_closed(conn, &reason),
                // The ControlThread posts no READs and exposes no slabs.
                Event::Read(_) | Event::Result { .. } => {}
            }
        }
        self.events = events;
        taken
    }

    fn on_opened(&mut self, conn: ConnId, peer: Peer) {
        if !matches!(peer.role, Role::Frontend | Role::Backend | Role::Operator) {
            self.parts.counters.conversations_refused.add(1);
            let detail = "only frontends, backends and operators talk to a scheduler";
            return self.transport.close(conn, RefuseCode::BadRequest, detail);
        }
        let conversation = Conversation {
            peer,
            member: None,
            left: false,
            slabs: Vec::new(),
            profiles: Vec::new(),
            memory: Vec::new(),
            is_changing: false,
            asks_from: None,
            last_heard: self.hearing.moment(),
            ping_every: PING_EVERY,
            joined_at: self.log.now,
            ended: None,
        };
        let role = conversation.peer.role;
        self.conversations.insert(conn, conversation);
        self.hearing.be_alert();
        if self.parts.catalog.send(&mut self.transport, conn, role).is_err() {
            self.undeliverable(conn);
        }
    }

    fn on_message(&mut self, now: Nanos, conn: ConnId, message: Message<'_>) {
        let running = self.conversations.get_mut(&conn).filter(|c| c.ended.is_none());
        let Some(conversation) = running else { return };
        conversation.last_heard = self.hearing.moment();
        let handled = match message {
            Message::Ping(ping) => self.on_ping(now, conn, ping),
            Message::Pace(pace) => self.on_pace(conn, pace),
            Message::SlabDesc(slab) => self.on_slab(conn, slab),
            Message::ProfileDesc(desc, table) => self.on_profile(conn, desc, table),
            Message::SlotMemory(memory, models) => self.on_memory(conn, memory, models),
            Message::JoinFrontend(_) | Message::JoinBackend(..) if self.stopping => {
                refuse(RefuseCode::Shutdown, SHUTTING_DOWN)
            }
            Message::JoinFrontend(join) => self.on_join_frontend(conn, join),
            Message::JoinBackend(join, name) => self.on_join_backend(conn, join, name),
            Message::Ready(_) => self.on_ready(conn),
            Message::Leave(_) => self.on_leave(conn),
            Message::SlabKnown(known) => self.on_slab_known(conn, known),
            Message::ModelFailed(failed, why) => self.on_model_failed(conn, failed, why),
            Message::CatalogChange(change, text) => self.on_change(conn, change, text),
            Message::StatusAsk(ask) => self.on_status_ask(conn, ask),
            _ => refuse(
                RefuseCode::UnexpectedMessage,
                "this message does not belong on a control connection",
            ),
        };
        if let Err(Refusal { code, detail }) = handled {
            self.count_refusal(code);
            if self.log.refused.allows(now) {
                let addr =
                    self.conversations.get(&conn).map(|c| tracing::field::display(c.peer.addr));
                tracing::warn!(addr, ?code, detail, "refused a member");
            }
            self.end(conn, code, &detail);
        }
    }

    fn take_notices(&mut self) -> usize {
        let mut taken = 0;
        while let Ok(notice) = self.parts.notices.try_recv() {
            taken += 1;
            match notice {
                Notice::Drained(gpu) => self.on_drained(gpu),
                Notice::FrontendLost(id) => self.evict(Member::Frontend(id)),
                Notice::BackendLost(id) => self.evict(Member::Backend(id)),
                Notice::Adopted(model) => self.on_adopted(model),
                Notice::TableRead(read) => self.on_table_read(*read),
                Notice::Recorded(part) => self.on_recorded(*part),
                Notice::Slots { subcluster, slowdowns } => self.on_slots(subcluster, slowdowns),
                Notice::Tried { subcluster, verdict } => self.on_tried(subcluster, verdict),
                Notice::JournalWritten(result) => self.on_journal_written(&result),
                Notice::Ranked(model) => self.on_ranked(model),
                Notice::Served(model) => self.on_served(model),
                Notice::Retired(model) => self.on_retired(model),
                Notice::Unranked { model, grants } => self.on_unranked(model, grants),
                Notice::Forgotten(model) => self.on_forgotten(model),
            }
        }
        taken
    }

    fn check_shutdown(&mut self) -> usize {
        if self.finished {
            return 0;
        }
        match self.parts.shutdown.try_recv() {
            // Nothing to do before somebody asks to join, so nobody wakes this thread for it.
            Ok(()) => self.stopping = true,
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => {
                self.take_leave();
                return 1;
            }
        }
        0
    }

    fn take_leave(&mut self) {
        for conn in self.conversations.keys() {
            self.transport.close(*conn, RefuseCode::Shutdown, SHUTTING_DOWN);
        }
        self.finished = true;
    }

    fn announce_serving(&mut self) {
        for subcluster in self.parts.catalog.subclusters() {
            let gpus = self.roster.serving(subcluster);
            self.tell_model_threads(|| ModelCommand::Serving { subcluster, gpus });
        }
    }

    fn tell_model_threads(&self, command: impl Fn() -> ModelCommand) {
        self.parts.model_threads.iter().for_each(|thread| thread.send(command()));
    }

    fn member(&self, conn: ConnId) -> Option<Member> {
        self.conversations.get(&conn)?.member
    }

    fn set_member(&mut self, conn: ConnId, member: Member) {
        if let Some(conversation) = self.conversations.get_mut(&conn) {
            conversation.member = Some(member);
            conversation.joined_at = self.log.now;
        }
    }

    fn send_or_drop(&mut self, conn: ConnId, send: impl FnOnce(&mut T) -> bool) {
        if !send(&mut self.transport) {
            self.undeliverable(conn);
        }
    }

    /// A member that does not read its control connection cannot be kept informed.
    fn undeliverable(&mut self, conn: ConnId) {
        if self.conversations.get(&conn).is_some_and(|c| c.ended.is_none()) {
            self.parts.counters.undelivered.add(1);
            let detail = "the control connection is not being read";
            self.end_as(conn, RefuseCode::Limit, LossReason::NotReading, detail);
        }
    }

    fn end(&mut self, conn: ConnId, code: RefuseCode, detail: &str) {
        self.end_as(conn, code, LossReason::of_refusal(code), detail);
    }

    fn end_as(&mut self, conn: ConnId, code: RefuseCode, reason: LossReason, detail: &str) {
        if let Some(conversation) = self.conversations.get_mut(&conn) {
            conversation.ended = Some((reason, detail.to_owned()));
        }
        self.transport.close(conn, code, detail);
    }

    fn count_refusal(&self, code: RefuseCode) {
        let counters = &self.parts.counters;
        match code {
            RefuseCode::DuplicateJoin => counters.joins_duplicate.add(1),
            RefuseCode::Limit => counters.joins_over_limit.add(1),
            RefuseCode::BadRequest => counters.joins_refused.add(1),
            _ => counters.conversations_refused.add(1),
        }
    }
}

impl<T: Transport> Agent for ControlThread<T> {
    fn poll(&mut self, now: Nanos) -> usize {
        self.hearing.pass(now);
        self.log.now = now;
        self.log.tell_left_out();
        self.take_load_news();
        let work = [
            // Before events: who joins in this pass would join a scheduler that stops.
            self.check_shutdown(),
            self.take_events(now),
            self.take_notices(),
            self.check_silence(now),
            self.check_loads(now),
            self.answer_ask(now),
            self.answer_scrape(now),
        ];
        self.transport.flush();
        work.into_iter().sum()
    }

    fn next_timer(&self) -> Option<Nanos> {
        Some(self.hearing.next_check().min(self.balance.next_timer()))
    }

    fn wait(&mut self, timeout: Option<Nanos>) {
        self.transport.wait(timeout);
    }

    fn sleep_max(&self) -> Nanos {
        self.hearing.step()
    }

    fn waker(&self) -> Waker {
        self.transport.waker()
    }

    fn finished(&self) -> bool {
        self.finished
    }
}
