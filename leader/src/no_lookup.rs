//! What stands for the lookup in etcd in a build without the feature `etcd`: there is none.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use baton_topo::EtcdSpec;
use baton_types::Nanos;

use crate::{StartError, Unknown};

#[derive(Debug)]
pub(crate) struct Lookup(Infallible);

impl Lookup {
    pub(crate) fn start(_: &EtcdSpec) -> Result<Self, StartError> {
        Err(StartError::NotBuilt)
    }

    pub(crate) fn ask(&self, _: Nanos) {
        match self.0 {}
    }

    pub(crate) fn addr(&self) -> Result<SocketAddr, Unknown> {
        match self.0 {}
    }

    pub(crate) fn succession(&self) -> Nanos {
        match self.0 {}
    }

    pub(crate) fn wait(&self, _: Duration) -> Result<SocketAddr, Unknown> {
        match self.0 {}
    }
}
