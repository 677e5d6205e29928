//! Where members find the scheduler: at a fixed address, or at the leader's address in etcd (`lookup`).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use baton_topo::EtcdSpec;
use baton_types::Nanos;

use crate::StartError;
#[cfg(feature = "etcd")]
use crate::lookup::Lookup;
#[cfg(not(feature = "etcd"))]
use crate::no_lookup::Lookup;

/// Why the locator has no address.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unknown {
    /// etcd has not answered yet.
    #[error("etcd has not said yet which scheduler leads")]
    NotYet,
    /// No scheduler leads.
    #[error("no scheduler leads: etcd has no key {key}; start one with this cluster file")]
    NoLeader {
        /// The key of the leader.
        key: String,
    },
    /// What leads has no address.
    #[error("etcd's key {key} holds no address; delete it, unless it is another program's")]
    NoAddress {
        /// The key.
        key: String,
    },
    /// etcd does not answer, and never has.
    #[cfg(feature = "etcd")]
    #[error(transparent)]
    Etcd(#[from] crate::EtcdError),
}

/// Where the scheduler is. Clones share the thread, which ends with the last of them.
#[derive(Clone, Debug)]
pub struct SchedulerLocator(Kind);

#[derive(Clone, Debug)]
enum Kind {
    At(SocketAddr),
    Led(Arc<Lookup>),
}

impl From<SocketAddr> for SchedulerLocator {
    fn from(addr: SocketAddr) -> Self {
        Self(Kind::At(addr))
    }
}

impl SchedulerLocator {
    /// The leader's address in `spec`'s etcd. The first request is sent at once.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn via_etcd(spec: &EtcdSpec) -> Result<Self, StartError> {
        Ok(Self(Kind::Led(Arc::new(Lookup::start(spec)?))))
    }

    /// Makes the thread ask etcd. Call when the scheduler is lost and a `pause` begins: the address that
    /// [`SchedulerLocator::addr`] returns at its end is fresh.
    pub fn ask(&self, pause: Nanos) {
        if let Kind::Led(lookup) = &self.0 {
            lookup.ask(pause);
        }
    }

    /// Where the scheduler is, by the last answer. An etcd that does not answer leaves the answer before.
    ///
    /// # Errors
    /// It is not known.
    pub fn addr(&self) -> Result<SocketAddr, Unknown> {
        match &self.0 {
            Kind::At(addr) => Ok(*addr),
            Kind::Led(lookup) => lookup.addr(),
        }
    }

    /// How long a leader that has just died may keep others from leading; zero at a fixed address.
    pub fn succession(&self) -> Nanos {
        match &self.0 {
            Kind::At(_) => Nanos::ZERO,
            Kind::Led(lookup) => lookup.succession(),
        }
    }

    /// Blocks until the scheduler's address is known, for `timeout` at most.
    ///
    /// # Errors
    /// It is not known by then.
    pub fn wait(&self, timeout: Duration) -> Result<SocketAddr, Unknown> {
        match &self.0 {
            Kind::At(addr) => Ok(*addr),
            Kind::Led(lookup) => lookup.wait(timeout),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(feature = "etcd")]
    use crate::played_etcd::PlayedEtcd;

    /// As many members are lost at once, the one thread of a locator asks for them.
    #[test]
    #[cfg(feature = "etcd")]
    fn who_has_lost_the_scheduler_asks_etcd_again() {
        let etcd = PlayedEtcd::start();
        let locator = SchedulerLocator::via_etcd(&etcd.spec(7)).unwrap();
        assert_eq!(locator.succession(), Nanos::from_millis(7_000));
        for _ in 0..3 {
            // It hangs up without a word.
            drop(etcd.next());
            assert!(locator.addr().is_err());
            locator.ask(Nanos::ZERO);
        }
    }

    #[test]
    fn an_address_is_known_without_asking() {
        let addr: SocketAddr = "127.0.0.1:7700".parse().unwrap();
        let fixed = SchedulerLocator::from(addr);
        fixed.ask(Nanos::ZERO);
        assert_eq!(fixed.addr(), Ok(addr));
        assert_eq!(fixed.wait(Duration::ZERO), Ok(addr));
    }
}
