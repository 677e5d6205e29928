//! One GET of a model file: its bytes, counted, with bounds on how long each step may take.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use baton_topo::Clock;
use rustls::crypto::ring;
use ureq::http::HeaderMap;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

use super::{GiveUp, PullError};

/// Followed at most.
const REDIRECTS_MAX: u32 = 5;
/// Where the system keeps the authorities that it trusts, unless this variable names another file, as for OpenSSL.
const SYSTEM_CA: &str = "/etc/ssl/certs/ca-certificates.crt";
const SYSTEM_CA_VARIABLE: &str = "SSL_CERT_FILE";

/// How long a server may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// Until it is connected, begins to answer, or sends the next bytes.
    pub(super) step: Duration,
    /// For the whole file.
    pub(super) whole: Duration,
    /// Between a connection that broke and the next one; twice as long each time.
    pub(super) pause: Duration,
}

/// Connections that may be made anew for one file.
const AGAIN_MAX: u32 = 4;

/// A file that a server has begun to send.
pub(super) struct Download {
    url: String,
    /// How long it says that the file is.
    pub(super) bytes: u64,
    got: u64,
    /// Names this version of the file, as HTTP's If-Range has it. Without one, what is missing might be another file's.
    version: Option<String>,
    body: Body,
    agent: Agent,
    patience: Patience,
    clock: Clock,
    again: u32,
}

/// What comes next of a file that broke off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Resumed {
    /// What was missing.
    Here,
    /// The whole file: its server has no ranges, or another version.
    Anew,
}

impl Download {
    /// Asks for the file.
    ///
    /// # Errors
    /// The server cannot be reached or trusted, does not have the file, or does not say how long it is.
    pub(super) fn begin(
        url: &str,
        ca: Option<&Path>,
        patience: Patience,
    ) -> Result<Self, PullError> {
        let agent = agent(url, ca, patience)?;
        let answer = agent.get(url).call().map_err(|error| failed(url, &error))?;
        let version = version(answer.headers());
        let body = answer.into_body();
        let length = body.content_length();
        let bytes = length.ok_or_else(|| server(url, "it does not say how long the file is"))?;
        let (url, clock) = (url.to_owned(), Clock::start());
        Ok(Self { url, bytes, got: 0, version, body, agent, patience, clock, again: 0 })
    }

    /// Gives the file to `take` piece by piece, which may stop it.
    ///
    /// # Errors
    /// The server does not send all of it; or what `take` says.
    pub(super) fn receive(
        &mut self,
        mut take: impl FnMut(&[u8]) -> Result<(), PullError>,
    ) -> Result<(), PullError> {
        let mut reader = self.body.as_reader();
        let mut piece = vec![0; PIECE_BYTES];
        while self.got < self.bytes {
            let cut = |why: String| {
                let url = self.url.clone();
                PullError::Cut { url, got_bytes: self.got, bytes: self.bytes, why }
            };
            match read_some(&mut reader, &mut piece) {
                Ok(0) => return Err(cut("it closed the connection".to_owned())),
                Ok(read) => {
                    take(&piece[..read])?;
                    self.got += read as u64;
                }
                Err(error) => return Err(cut(error.to_string())),
            }
        }
        Ok(())
    }

    /// Asks for what is missing, after a pause, and again if that comes to nothing. `is_known`: the whole will be compared with
    /// what it should be.
    ///
    /// # Errors
    /// `cut`, once it was tried often or long enough; or the file is not wanted any more.
    pub(super) fn resume(
        &mut self,
        cut: PullError,
        is_known: bool,
        give_up: &GiveUp,
    ) -> Result<Resumed, PullError> {
        while self.again < AGAIN_MAX {
            if give_up.wait(self.patience.pause * (1 << self.again)) {
                return Err(PullError::GivenUp);
            }
            self.again += 1;
            let (url, missing) = (self.url.clone(), self.bytes - self.got);
            match self.ask_again(is_known) {
                Ok(resumed) => {
                    tracing::info!(url, missing, ?resumed, "a model file that broke off goes on");
                    return Ok(resumed);
                }
                Err(why) => tracing::warn!(url, missing, why, "a model file that broke off"),
            }
        }
        Err(cut)
    }

    fn ask_again(&mut self, is_known: bool) -> Result<Resumed, String> {
        let left = self.patience.whole.saturating_sub(Duration::from_nanos(self.clock.now().0));
        let mut request = self.agent.get(&self.url).config().timeout_global(Some(left)).build();
        if self.got > 0 && (is_known || self.version.is_some()) {
            request = request.header("range", format!("bytes={}-", self.got));
        }
        if let Some(version) = &self.version {
            request = request.header("if-range", version);
        }
        let answer = request.call().map_err(|error| describe(&error))?;
        let resumed = if answer.status() == 206 { Resumed::Here } else { Resumed::Anew };
        let named = answer.headers().get("content-range").and_then(|range| range.to_str().ok());
        let (from, range) =
            (self.got, format!("bytes {}-{}/{}", self.got, self.bytes - 1, self.bytes));
        let (expected, version) = match resumed {
            Resumed::Here if named != Some(&range) => {
                return Err(format!("it sends {named:?} for {range}"));
            }
            Resumed::Here => (self.bytes - from, self.version.take()),
            Resumed::Anew => (self.bytes, version(answer.headers())),
        };
        let body = answer.into_body();
        if body.content_length() != Some(expected) {
            return Err(format!("{:?} bytes come, and not {expected}", body.content_length()));
        }
        (self.body, self.version) = (body, version);
        self.got = if resumed == Resumed::Here { from } else { 0 };
        Ok(resumed)
    }
}

/// A strong ETag, or when the file was changed last.
fn version(headers: &HeaderMap) -> Option<String> {
    let text = |name| headers.get(name).and_then(|value| Some(value.to_str().ok()?.to_owned()));
    text("etag").filter(|tag| tag.starts_with('"')).or_else(|| text("last-modified"))
}

/// What is held of a file at a time.
const PIECE_BYTES: usize = 256 << 10;

fn agent(url: &str, ca: Option<&Path>, patience: Patience) -> Result<Agent, PullError> {
    let Patience { step, whole, .. } = patience;
    let mut config = Agent::config_builder()
        .timeout_global(Some(whole))
        .timeout_resolve(Some(step))
        .timeout_connect(Some(step))
        .timeout_recv_response(Some(step))
        .timeout_per_read(Some(step))
        .max_redirects(REDIRECTS_MAX)
        .user_agent("baton")
        .proxy(None);
    if url.starts_with("https://") {
        config = config.https_only(true).tls_config(tls(ca)?);
    }
    Ok(config.build().into())
}

/// Read anew for each file, so that new authorities count at once.
fn tls(ca: Option<&Path>) -> Result<TlsConfig, PullError> {
    let system =
        || std::env::var_os(SYSTEM_CA_VARIABLE).map_or_else(|| SYSTEM_CA.into(), PathBuf::from);
    let file = ca.map_or_else(system, Path::to_owned);
    let unusable = |problem: String| PullError::Authorities { file: file.clone(), problem };
    let pem = std::fs::read(&file).map_err(|error| unusable(error.to_string()))?;
    let certificate = |item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    };
    let roots: Vec<Certificate<'static>> = parse_pem(&pem).filter_map(certificate).collect();
    if roots.is_empty() {
        return Err(unusable("it holds no certificate in PEM".to_owned()));
    }
    Ok(TlsConfig::builder()
        .root_certs(RootCerts::from(roots.into_iter()))
        .unversioned_rustls_crypto_provider(Arc::new(ring::default_provider()))
        .build())
}

fn server(url: &str, problem: impl Into<String>) -> PullError {
    PullError::Server { url: url.to_owned(), problem: problem.into() }
}

fn failed(url: &str, error: &ureq::Error) -> PullError {
    match error {
        ureq::Error::StatusCode(429 | 500..)
        | ureq::Error::Timeout(_)
        | ureq::Error::HostNotFound
        | ureq::Error::ConnectionFailed => away(url, error),
        // A certificate that is not accepted is invalid data.
        ureq::Error::Io(broken) if broken.kind() != io::ErrorKind::InvalidData => away(url, error),
        _ => server(url, describe(error)),
    }
}

fn away(url: &str, error: &ureq::Error) -> PullError {
    PullError::Away { url: url.to_owned(), problem: describe(error) }
}

fn describe(error: &ureq::Error) -> String {
    match error {
        ureq::Error::StatusCode(status) => format!("it answers with status {status}"),
        ureq::Error::Timeout(step) => format!("it takes too long ({step})"),
        other => other.to_string(),
    }
}

/// What comes next. A signal ends no read.
fn read_some(reader: &mut impl Read, piece: &mut [u8]) -> io::Result<usize> {
    loop {
        match reader.read(piece) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each answer once.
    struct Answers(Vec<io::Result<usize>>);

    impl Read for Answers {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            self.0.remove(0)
        }
    }

    #[test]
    fn a_read_that_a_signal_interrupts_is_tried_again() {
        let interrupted = || Err(io::ErrorKind::Interrupted.into());
        let mut answers = Answers(vec![interrupted(), interrupted(), Ok(7)]);
        assert_eq!(read_some(&mut answers, &mut []).unwrap(), 7);
        let mut answers = Answers(vec![Err(io::ErrorKind::ConnectionReset.into())]);
        let error = read_some(&mut answers, &mut []).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }
}
