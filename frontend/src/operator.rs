//! An operator's connection: reads the catalogue of a running scheduler, and changes it. It is no member and sees no task.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use baton_core::Nanos;
use baton_leader::{SchedulerLocator, Unknown};
use baton_rdma::wire::{
    CatalogChange, ChangeKind, Hello, Message, ModelDesc, RefuseCode, Role, TensorDesc,
};
use baton_rdma::{
    CloseReason, ConnId, Credentials, CredentialsError, Event, Events, Identity, TcpConfig,
    TcpTransport, Transport,
};
use baton_topo::signature::TensorSpec;
use baton_topo::{Clock, TlsSpec};

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

/// See the module documentation. Calls block; one change at a time.
pub struct Operator {
    transport: TcpTransport,
    control: ConnId,
    scheduler: SocketAddr,
    clock: Clock,
    subclusters: Vec<(u32, String)>,
    models: Vec<ServedModel>,
    is_complete: bool,
    answer: Option<(bool, String)>,
    closed: Option<String>,
}

impl fmt::Debug for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operator").field("scheduler", &self.scheduler).finish_non_exhaustive()
    }
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
        let unreachable =
            |error: std::io::Error| OperatorError::Unreachable { addr, problem: error.to_string() };
        let identity = Identity { role: Role::Operator, member: 0 };
        let cfg = TcpConfig::default();
        let mut transport = TcpTransport::bind_with(None, identity, cfg, credentials.as_ref())
            .map_err(unreachable)?;
        let hello = Hello::new(Role::Operator, 0, 0);
        let control = transport.connect(addr, hello).map_err(unreachable)?;
        let mut operator = Self {
            transport,
            control,
            scheduler: addr,
            clock: Clock::start(),
            subclusters: Vec::new(),
            models: Vec::new(),
            is_complete: false,
            answer: None,
            closed: None,
        };
        let wait = Nanos(timeout.as_nanos() as u64);
        operator.until(Some(wait), |operator| operator.is_complete, |_| ())?;
        Ok(operator)
    }

    /// The models that are served, as of the connection.
    pub fn models(&self) -> &[ServedModel] {
        &self.models
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

    /// Changes a model: `table` is a `[[model]]` table with its `name` and the keys that change.
    ///
    /// # Errors
    /// See [`OperatorError`].
    pub fn set(&mut self, table: &str) -> Result<String, OperatorError> {
        self.change(ChangeKind::Set, table, |_| ())
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
        let change = CatalogChange { kind: kind as u8, reserved: [0; 3] };
        let sent = self.transport.send(self.control, &change, text.as_bytes());
        sent.map_err(|error| OperatorError::Refused(error.to_string()))?;
        self.until(None, |operator| operator.answer.is_some(), waiting)?;
        match self.answer.take() {
            Some((true, done)) => Ok(done),
            Some((false, why)) => Err(OperatorError::Refused(why)),
            None => Err(OperatorError::Silent { addr: self.scheduler }),
        }
    }

    /// Polls until something is so; for `timeout` at most, if there is one.
    fn until(
        &mut self,
        timeout: Option<Nanos>,
        is_so: impl Fn(&Self) -> bool,
        mut waiting: impl FnMut(Duration),
    ) -> Result<(), OperatorError> {
        let began = self.clock.now();
        let mut told = Duration::ZERO;
        loop {
            self.poll();
            if is_so(self) {
                return Ok(());
            }
            if let Some(problem) = self.closed.take() {
                return Err(OperatorError::Unreachable { addr: self.scheduler, problem });
            }
            let waited = Duration::from_nanos((self.clock.now() - began).0);
            if timeout.is_some_and(|timeout| waited.as_nanos() >= u128::from(timeout.0)) {
                return Err(OperatorError::Silent { addr: self.scheduler });
            }
            if waited >= told + TELL_EVERY {
                told = waited;
                waiting(waited);
            }
            self.transport.wait(Some(Nanos::from_millis(100)));
        }
    }

    fn poll(&mut self) {
        let mut events = Events::new();
        self.transport.poll(self.clock.now(), &mut events);
        for event in events.drain() {
            match event {
                Event::Message { message, .. } => self.on_message(message),
                Event::Closed { reason, .. } => self.closed = Some(in_words(&reason)),
                Event::Opened { .. } | Event::Read(_) | Event::Result { .. } => {}
            }
        }
        self.transport.flush();
    }

    fn on_message(&mut self, message: Message<'_>) {
        match message {
            Message::SubclusterDesc(desc, name) => {
                self.subclusters.push((desc.subcluster.get(), name.to_owned()));
            }
            Message::ModelDesc(desc, name) => self.on_model(desc, name),
            Message::TensorDesc(desc, name) => self.on_tensor(desc, name),
            Message::CatalogEnd(_) => self.is_complete = true,
            Message::CatalogChanged(changed, text) => {
                self.answer = Some((changed.status == 0, text.to_owned()));
            }
            _ => {}
        }
    }

    fn on_model(&mut self, desc: &ModelDesc, name: &str) {
        let id = desc.subcluster.get();
        let subcluster = self.subclusters.iter().find(|(known, _)| *known == id);
        self.models.push(ServedModel {
            id: desc.model.get(),
            name: name.to_owned(),
            subcluster: subcluster.map_or_else(|| id.to_string(), |(_, name)| name.clone()),
            model_thread: desc.thread.get(),
            batch_max: desc.batch_max.get(),
            slo: Nanos(desc.slo_ns.get()),
            row_bytes: [desc.input_bytes.get(), desc.output_bytes.get()],
            tensors: [Vec::new(), Vec::new()],
        });
    }

    fn on_tensor(&mut self, desc: &TensorDesc, name: &str) {
        let model = self.models.iter_mut().find(|model| model.id == desc.model.get());
        let side = model.and_then(|model| model.tensors.get_mut(usize::from(desc.side)));
        if let (Some(side), Some(spec)) = (side, desc.spec(name)) {
            side.push(spec);
        }
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.transport.close(self.control, RefuseCode::Shutdown, "the operator is done");
        self.transport.flush();
    }
}

fn in_words(reason: &CloseReason) -> String {
    match reason {
        CloseReason::Refused { detail, .. } => detail.clone(),
        other => other.to_string(),
    }
}
