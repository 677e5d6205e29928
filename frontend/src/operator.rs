//! An operator's connection: reads the catalogue of a running scheduler, and changes it. It is no member and sees no task.

use std::net::SocketAddr;
use std::time::Duration;
use std::{fmt, io};

use baton_core::Nanos;
use baton_leader::{SchedulerLocator, Unknown};
use baton_membership::{Catalogue, DescribedModel};
use baton_rdma::wire::{CatalogChange, ChangeKind, Hello, Message, RefuseCode, Role};
use baton_rdma::{
    CloseReason, ConnId, Credentials, CredentialsError, Event, Events, Identity, SendError,
    TcpConfig, TcpTransport, Transport,
};
use baton_topo::signature::TensorSpec;
use baton_topo::{Agent, Clock, PARK_MAX, TlsSpec, Waker};

/// Why an operator has no answer.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// The files of `[tls]` cannot be used.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// The scheduler's address is unknown.
    #[error("no scheduler leads: {0}")]
    NoScheduler(#[from] Unknown),
    /// No connection.
    #[error("cannot connect to the scheduler at {addr}: {problem}")]
    Unreachable {
        /// The address.
        addr: SocketAddr,
        /// What the system, or the scheduler, said.
        problem: String,
    },
    /// The scheduler did not answer in time.
    #[error("the scheduler at {addr} does not answer")]
    Silent {
        /// The address.
        addr: SocketAddr,
    },
    /// The change was not made.
    #[error("{0}")]
    Refused(String),
}

/// A model of the catalogue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServedModel {
    /// Its id, which no other model will have.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// The sub-cluster that serves it.
    pub subcluster: String,
    /// The ModelThread on which it lives.
    pub model_thread: u32,
    /// The largest batch.
    pub batch_max: u32,
    /// Its latency objective.
    pub slo: Nanos,
    /// Bytes of the longest input row, and of the longest output row.
    pub row_bytes: [u32; 2],
    /// What it takes and gives; empty for an emulated model, which takes and gives bytes.
    pub tensors: [Vec<TensorSpec>; 2],
}

/// An operator's side of the conversation, for who moves time by hand; [`Operator`] runs one.
pub struct OperatorIo<T> {
    transport: T,
    control: ConnId,
    scheduler: SocketAddr,
    /// While it arrives.
    catalogue: Catalogue,
    models: Vec<ServedModel>,
    is_complete: bool,
    answer: Option<Result<String, String>>,
    closed: Option<String>,
}

impl<T: Transport> OperatorIo<T> {
    /// Begins to connect to the scheduler.
    ///
    /// # Errors
    /// The address cannot be reached at all.
    pub fn new(mut transport: T, scheduler: SocketAddr) -> io::Result<Self> {
        let control = transport.connect(scheduler, Hello::new(Role::Operator, 0, 0))?;
        Ok(Self {
            transport,
            control,
            scheduler,
            catalogue: Catalogue::default(),
            models: Vec::new(),
            is_complete: false,
            answer: None,
            closed: None,
        })
    }

    fn take_in(&mut self, now: Nanos) -> usize {
        let mut events = Events::new();
        let taken = self.transport.poll(now, &mut events);
        for event in events.drain() {
            match event {
                Event::Message { message, .. } => self.on_message(message),
                Event::Closed { reason, .. } => self.closed = Some(in_words(&reason)),
                Event::Opened { .. } | Event::Read(_) | Event::Result { .. } => {}
            }
        }
        self.transport.flush();
        taken
    }

    /// Whether the catalogue is here: from then on [`OperatorIo::ask`] may be called.
    pub fn is_connected(&self) -> bool {
        self.is_complete
    }

    /// Why the connection has ended, once it has.
    pub fn closed(&self) -> Option<&str> {
        self.closed.as_deref()
    }

    /// The models that were served when it connected.
    pub fn models(&self) -> &[ServedModel] {
        &self.models
    }

    /// Asks for a change: see [`Operator`] for the texts. One at a time.
    ///
    /// # Errors
    /// The connection is over, or the text is longer than a message may be.
    pub fn ask(&mut self, kind: ChangeKind, text: &str) -> Result<(), SendError> {
        let change = CatalogChange { kind: kind as u8, reserved: [0; 3] };
        self.transport.send(self.control, &change, text.as_bytes())
    }

    /// How the change went, in words, once it is complete.
    pub fn take_answer(&mut self) -> Option<Result<String, String>> {
        self.answer.take()
    }

    fn on_message(&mut self, message: Message<'_>) {
        match message {
            Message::CatalogEnd(_) => self.complete(),
            Message::CatalogChanged(changed, text) => {
                let text = text.to_owned();
                self.answer = Some(if changed.status == 0 { Ok(text) } else { Err(text) });
            }
            message if !self.is_complete => {
                if let Err(error) = self.catalogue.take_in(&message, self.scheduler.ip()) {
                    self.closed = Some(error.to_string());
                }
            }
            _ => {}
        }
    }

    fn complete(&mut self) {
        self.is_complete = true;
        let catalogue = std::mem::take(&mut self.catalogue);
        let named = |model: &DescribedModel| {
            let subcluster = model.desc.subcluster.get();
            let name = catalogue.subcluster_name(subcluster);
            served(model, name.map_or_else(|| subcluster.to_string(), str::to_owned))
        };
        self.models = catalogue.models().iter().map(named).collect();
    }
}

fn served(model: &DescribedModel, subcluster: String) -> ServedModel {
    let desc = &model.desc;
    ServedModel {
        id: model.id(),
        name: model.name.clone(),
        subcluster,
        model_thread: desc.thread.get(),
        batch_max: desc.batch_max.get(),
        slo: Nanos(desc.slo_ns.get()),
        row_bytes: [desc.input_bytes.get(), desc.output_bytes.get()],
        tensors: model.tensors.clone(),
    }
}

impl<T: Transport> Agent for OperatorIo<T> {
    fn poll(&mut self, now: Nanos) -> usize {
        self.take_in(now)
    }

    fn next_timer(&self) -> Option<Nanos> {
        None
    }

    fn wait(&mut self, timeout: Option<Nanos>) {
        self.transport.wait(timeout);
    }

    fn waker(&self) -> Waker {
        self.transport.waker()
    }

    fn finished(&self) -> bool {
        self.closed.is_some()
    }
}

impl<T> fmt::Debug for OperatorIo<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OperatorIo").field("models", &self.models.len()).finish_non_exhaustive()
    }
}

/// See the module documentation. Calls block; one change at a time.
#[derive(Debug)]
pub struct Operator {
    io: OperatorIo<TcpTransport>,
    scheduler: SocketAddr,
    clock: Clock,
}

/// How often the caller hears that it waits.
const TELL_EVERY: Duration = Duration::from_secs(1);

impl Operator {
    /// Connects to the scheduler that leads and reads its catalogue. Blocks for `timeout` at most.
    ///
    /// # Errors
    /// See [`OperatorError`].
    pub fn connect(
        scheduler: &SchedulerLocator,
        tls: Option<&TlsSpec>,
        timeout: Duration,
    ) -> Result<Self, OperatorError> {
        let credentials = tls.map(Credentials::load_and_warn).transpose()?;
        let addr = scheduler.wait(timeout)?;
        let identity = Identity { role: Role::Operator, member: 0 };
        let bounds = TcpConfig::default();
        let io = TcpTransport::bind_with(None, identity, bounds, credentials.as_ref())
            .and_then(|transport| OperatorIo::new(transport, addr))
            .map_err(|error| OperatorError::unreachable(addr, error))?;
        let mut operator = Self { io, scheduler: addr, clock: Clock::start() };
        operator.until(Some(timeout), OperatorIo::is_connected, |_| ())?;
        Ok(operator)
    }

    /// The models that are served, as of the connection.
    pub fn models(&self) -> &[ServedModel] {
        self.io.models()
    }

    /// Adds a model: `table` is its `[[model]]` table, with absolute paths. Blocks until every backend of its sub-cluster
    /// has loaded it and clients can use it, and calls `waiting` about once a second. Returns what was done, in words.
    ///
    /// # Errors
    /// See [`OperatorError`].
    pub fn add(
        &mut self,
        table: &str,
        waiting: impl FnMut(Duration),
    ) -> Result<String, OperatorError> {
        self.change(ChangeKind::Add, table, waiting)
    }

    /// Changes a model: `table` is a `[[model]]` table with its `name` and the keys that change. With others than `slo_ms`,
    /// `max_rps`, `frontend_max_rps` and the profile, such as `file`, a model of that table takes the place of the former one
    /// as soon as every backend has loaded it: it keeps the objective, the limits and the sub-cluster. Blocks until then,
    /// and calls `waiting` about once a second.
    ///
    /// # Errors
    /// See [`OperatorError`].
    pub fn set(
        &mut self,
        table: &str,
        waiting: impl FnMut(Duration),
    ) -> Result<String, OperatorError> {
        self.change(ChangeKind::Set, table, waiting)
    }

    /// Removes a model. Blocks until its last task has ended, and calls `waiting` about once a second.
    ///
    /// # Errors
    /// See [`OperatorError`].
    pub fn remove(
        &mut self,
        name: &str,
        waiting: impl FnMut(Duration),
    ) -> Result<String, OperatorError> {
        self.change(ChangeKind::Remove, name, waiting)
    }

    fn change(
        &mut self,
        kind: ChangeKind,
        text: &str,
        waiting: impl FnMut(Duration),
    ) -> Result<String, OperatorError> {
        let asked = self.io.ask(kind, text);
        asked.map_err(|error| OperatorError::unreachable(self.scheduler, error))?;
        self.until(None, |io| io.answer.is_some(), waiting)?;
        let answer = self.io.take_answer().expect("it is here");
        answer.map_err(OperatorError::Refused)
    }

    /// Polls until something is so; for `timeout` at most, if there is one.
    fn until(
        &mut self,
        timeout: Option<Duration>,
        is_so: impl Fn(&OperatorIo<TcpTransport>) -> bool,
        mut waiting: impl FnMut(Duration),
    ) -> Result<(), OperatorError> {
        let began = self.clock.now();
        let mut told = Duration::ZERO;
        loop {
            self.io.poll(self.clock.now());
            if is_so(&self.io) {
                return Ok(());
            }
            if let Some(problem) = self.io.closed() {
                return Err(OperatorError::unreachable(self.scheduler, problem));
            }
            let waited = Duration::from_nanos((self.clock.now() - began).0);
            if timeout.is_some_and(|timeout| waited >= timeout) {
                return Err(OperatorError::Silent { addr: self.scheduler });
            }
            if waited >= told + TELL_EVERY {
                told = waited;
                waiting(waited);
            }
            self.io.wait(Some(PARK_MAX));
        }
    }
}

impl OperatorError {
    fn unreachable(addr: SocketAddr, problem: impl fmt::Display) -> Self {
        Self::Unreachable { addr, problem: problem.to_string() }
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let OperatorIo { transport, control, .. } = &mut self.io;
        transport.close(*control, RefuseCode::Shutdown, "the operator is done");
        transport.flush();
    }
}

fn in_words(reason: &CloseReason) -> String {
    match reason {
        CloseReason::Refused { detail, .. } => detail.clone(),
        other => other.to_string(),
    }
}
