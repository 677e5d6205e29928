//! The pull protocol between endpoints of one process: the same frames and bounds as TCP, without a
//! socket, and with one-sided READs as on verbs (the target's owner need not poll).
//!
//! Everything happens in `poll` and `flush`, in the order they are called, so a test that steps its
//! endpoints by hand on one thread is deterministic. What is sent is seen by the receiver's next
//! poll after the sender's flush; a READ completes in the poll after the flush that asked for it.
//! Endpoints may also live on threads of their own.

mod endpoint;
mod link;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use baton_types::Nanos;

use crate::memory::slab::Exposed;
use crate::tcp::TcpConfig;
use crate::transport::Identity;
pub use endpoint::InprocTransport;

/// Endpoints that can reach each other. Cloning gives another handle to the same network.
#[derive(Clone, Default)]
pub struct InprocNetwork {
    ports: Arc<Mutex<Vec<Weak<Port>>>>,
}

impl InprocNetwork {
    /// A network without endpoints.
    pub fn new() -> Self {
        Self::default()
    }

    /// A new endpoint, with the bounds TCP has by default.
    ///
    /// # Panics
    /// More than 65,535 endpoints were made: there are no more addresses.
    pub fn endpoint(&self, identity: Identity) -> InprocTransport {
        self.endpoint_with(identity, TcpConfig::default())
    }

    /// A new endpoint with the given bounds.
    ///
    /// # Panics
    /// As [`InprocNetwork::endpoint`].
    pub fn endpoint_with(&self, identity: Identity, cfg: TcpConfig) -> InprocTransport {
        let mut ports = lock(&self.ports);
        let number = u16::try_from(ports.len() + 1).expect("no more than 65,535 endpoints");
        let port = Arc::new(Port::new(SocketAddr::from((Ipv4Addr::LOCALHOST, number))));
        ports.push(Arc::downgrade(&port));
        drop(ports);
        InprocTransport::new(self.clone(), port, identity, cfg)
    }

    /// The living endpoint at an address.
    fn find(&self, addr: SocketAddr) -> Option<Arc<Port>> {
        let at = usize::from(addr.port()).checked_sub(1)?;
        let port = lock(&self.ports).get(at)?.upgrade()?;
        (port.addr == addr).then_some(port)
    }
}

/// What of an endpoint others touch.
struct Port {
    addr: SocketAddr,
    /// Connections its owner has not looked at yet; `None` once the owner is gone.
    incoming: Mutex<Option<Vec<Arc<Pipe>>>>,
    slabs: Mutex<Exposed>,
    /// Set when there may be something to do.
    bell: Mutex<bool>,
    rung: Condvar,
    reads_served: AtomicU64,
    reads_refused: AtomicU64,
}

impl Port {
    fn new(addr: SocketAddr) -> Self {
        Self {
            addr,
            incoming: Mutex::new(Some(Vec::new())),
            slabs: Mutex::default(),
            bell: Mutex::default(),
            rung: Condvar::new(),
            reads_served: AtomicU64::new(0),
            reads_refused: AtomicU64::new(0),
        }
    }

    /// Leaves a connection for the owner; false if the owner is gone.
    fn offer(&self, pipe: Arc<Pipe>) -> bool {
        let taken = lock(&self.incoming).as_mut().map(|incoming| incoming.push(pipe));
        self.ring();
        taken.is_some()
    }

    fn ring(&self) {
        *lock(&self.bell) = true;
        self.rung.notify_one();
    }

    /// Blocks until the bell has been rung since the last call, or `timeout` has passed.
    fn listen(&self, timeout: Option<Nanos>) {
        let mut bell = lock(&self.bell);
        if !*bell {
            bell = match timeout {
                None => self.rung.wait(bell).unwrap_or_else(PoisonError::into_inner),
                Some(Nanos(ns)) => {
                    let waited = self.rung.wait_timeout(bell, Duration::from_nanos(ns));
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        *bell = false;
    }

    fn count_read(&self, served: bool) {
        let counter = if served { &self.reads_served } else { &self.reads_refused };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// A connection: one way in each direction, and the ports at its two ends.
struct Pipe {
    ends: [Arc<Port>; 2],
    /// `ways[i]` leads from end `i` to the other.
    ways: [Mutex<Way>; 2],
}

impl Pipe {
    fn new(connector: &Arc<Port>, acceptor: &Arc<Port>) -> Arc<Self> {
        Arc::new(Self { ends: [connector.clone(), acceptor.clone()], ways: Default::default() })
    }

    /// Nothing will come from end `side` any more.
    fn close(&self, side: usize) {
        lock(&self.ways[side]).closed = true;
        self.ends[1 - side].ring();
    }
}

/// Whole frames under way.
#[derive(Default)]
struct Way {
    bytes: Vec<u8>,
    /// The sender will send no more.
    closed: bool,
}

/// Every critical section here leaves its data consistent, so a panic elsewhere poisons nothing.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
