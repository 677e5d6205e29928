//! One GET of a model file: its bytes, counted, with bounds on how long each step may take.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::ring;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

use super::PullError;

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
}

/// A file that a server has begun to send.
pub(super) struct Download {
    url: String,
    /// How long it says that the file is.
    pub(super) bytes: u64,
    body: Body,
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
        let failed = |error: ureq::Error| server(url, describe(&error));
        let body = agent.get(url).call().map_err(failed)?.into_body();
        let length = body.content_length();
        let bytes = length.ok_or_else(|| server(url, "it does not say how long the file is"))?;
        Ok(Self { url: url.to_owned(), bytes, body })
    }

    /// Gives the file to `take` piece by piece, which may stop it.
    ///
    /// # Errors
    /// The server does not send all of it; or what `take` says.
    pub(super) fn receive(
        mut self,
        mut take: impl FnMut(&[u8]) -> Result<(), PullError>,
    ) -> Result<(), PullError> {
        let mut reader = self.body.as_reader();
        let (mut piece, mut got) = (vec![0; PIECE_BYTES], 0);
        while got < self.bytes {
            let cut = |why: String| {
                let url = self.url.clone();
                PullError::Cut { url, got_bytes: got, bytes: self.bytes, why }
            };
            match reader.read(&mut piece) {
                Ok(0) => return Err(cut("it closed the connection".to_owned())),
                Ok(read) => {
                    take(&piece[..read])?;
                    got += read as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(cut(error.to_string())),
            }
        }
        Ok(())
    }
}

/// What is held of a file at a time.
const PIECE_BYTES: usize = 256 << 10;

fn agent(url: &str, ca: Option<&Path>, patience: Patience) -> Result<Agent, PullError> {
    let Patience { step, whole } = patience;
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

fn describe(error: &ureq::Error) -> String {
    match error {
        ureq::Error::StatusCode(status) => format!("it answers with status {status}"),
        ureq::Error::Timeout(step) => format!("it takes too long ({step})"),
        other => other.to_string(),
    }
}
