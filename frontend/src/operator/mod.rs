//! An operator's connection: reads the catalogue of a running scheduler, changes it, and asks how the cluster fares. It is no
//! member and sees no task.

mod io;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use baton_leader::{SchedulerLocator, Unknown};
use baton_rdma::status::ClusterStatus;
use baton_rdma::wire::{ChangeKind, Role};
use baton_rdma::{Credentials, CredentialsError, Identity, TcpConfig, TcpTransport};
use baton_topo::{Agent, Clock, PARK_MAX, TlsSpec};

pub use io::{OperatorIo, ServedModel};

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
    /// What it says makes no sense.
    #[error("{0}; use the scheduler's version of baton")]
    Incomprehensible(String),
    /// The change was not made.
    #[error("{0}")]
    Refused(String),
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

    /// How the cluster fares. Blocks for `timeout` at most.
    ///
    /// # Errors
    /// See [`OperatorError`].
    pub fn status(&mut self, timeout: Duration) -> Result<ClusterStatus, OperatorError> {
        let asked = self.io.ask_status();
        asked.map_err(|error| OperatorError::unreachable(self.scheduler, error))?;
        self.until(Some(timeout), OperatorIo::has_status, |_| ())?;
        let status = self.io.take_status().expect("it is here");
        status.map_err(OperatorError::Incomprehensible)
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
        self.until(None, OperatorIo::has_answer, waiting)?;
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
        self.io.close();
    }
}
