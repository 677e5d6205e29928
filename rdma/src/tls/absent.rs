//! What stands for TLS in a build without the feature `tls`: credentials that cannot be had, so that nothing of what needs
//! them can happen.

use std::convert::Infallible;
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::net::SocketAddr;

use baton_topo::TlsSpec;
use mio::net::TcpStream;

use crate::protocol::wire::Role;

/// Why there are no credentials.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// This program was built without TLS.
    #[error(
        "[tls] asks for TLS, and this program was built without it: build baton-client with its feature `tls`"
    )]
    NotBuilt,
}

/// There are none.
#[derive(Clone, Debug)]
pub struct Credentials(Infallible);

impl Credentials {
    /// Refuses.
    ///
    /// # Errors
    /// Always.
    pub fn load(_: &TlsSpec) -> Result<Self, CredentialsError> {
        Err(CredentialsError::NotBuilt)
    }

    /// Refuses.
    ///
    /// # Errors
    /// Always.
    pub fn load_and_warn(spec: &TlsSpec) -> Result<Self, CredentialsError> {
        Self::load(spec)
    }

    /// There are no credentials to ask.
    pub fn problems(&self) -> Vec<String> {
        match self.0 {}
    }
}

/// No error is one of TLS.
pub(crate) struct TlsProblem;

impl TlsProblem {
    pub(crate) fn of(_: &io::Error) -> Option<String> {
        None
    }
}

/// A connection that there is none of.
pub struct TlsStream(Infallible);

impl TlsStream {
    pub(crate) fn connecting(
        _: TcpStream,
        _: SocketAddr,
        credentials: &Credentials,
    ) -> io::Result<Self> {
        match credentials.0 {}
    }

    pub(crate) fn accepted(_: TcpStream, credentials: &Credentials) -> io::Result<Self> {
        match credentials.0 {}
    }

    pub(crate) fn tcp(&mut self) -> &mut TcpStream {
        match self.0 {}
    }

    pub(crate) fn finish_connect(&mut self) -> io::Result<bool> {
        match self.0 {}
    }

    pub(crate) fn may_act_as(&self, _: Role) -> Result<(), String> {
        match self.0 {}
    }

    pub(crate) fn send(&mut self, _: &[IoSlice<'_>]) -> io::Result<usize> {
        match self.0 {}
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        match self.0 {}
    }

    pub(crate) fn has_unsent(&self) -> bool {
        match self.0 {}
    }

    pub(crate) fn has_unread(&self) -> bool {
        match self.0 {}
    }

    pub(crate) fn finish_sending(&mut self) -> io::Result<()> {
        match self.0 {}
    }
}

impl Read for TlsStream {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        match self.0 {}
    }

    fn read_vectored(&mut self, _: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self.0 {}
    }
}
