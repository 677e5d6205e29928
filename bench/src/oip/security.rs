//! What a server asks of its clients before it answers: TLS, by an authority's certificate, and a bearer token.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hyper::header::HeaderValue;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::url::{Protocol, Url};

/// A bearer token. It is not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(pub String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// Why a server cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum SecurityError {
    /// Whom to believe is not said.
    #[error(
        "{0} speaks TLS: give --ca FILE, the PEM certificate of the authority that has signed the server's"
    )]
    NoAuthority(Box<Url>),
    /// There is nothing to check.
    #[error("--ca is for TLS: write https:// or grpcs:// instead of {0}")]
    NoTls(Box<Url>),
    /// The authority's certificate.
    #[error("--ca {}: {problem}", file.display())]
    Authority {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The token.
    #[error("--token is no line of printable characters without spaces")]
    Token,
    /// The host's name.
    #[error("{0} names no host that a certificate can have")]
    Host(Box<Url>),
    /// The server's certificate, or it has none.
    #[error(
        "{url}: no agreement about TLS ({why}); is --ca the authority of the server's certificate, and does that name the host? Without TLS write http:// or grpc://"
    )]
    Refused {
        /// The server.
        url: Box<Url>,
        /// What was found.
        why: String,
    },
}

/// A server, and how it is reached.
pub(super) struct Server {
    pub(super) url: Url,
    pub(super) authorization: Option<HeaderValue>,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

/// A connection, with TLS or without.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

impl Server {
    pub(super) fn new(
        url: &Url,
        ca: Option<&Path>,
        token: Option<&Token>,
    ) -> Result<Self, SecurityError> {
        let tls = match (url.is_secure, ca) {
            (false, None) => None,
            (false, Some(_)) => return Err(SecurityError::NoTls(Box::new(url.clone()))),
            (true, None) => return Err(SecurityError::NoAuthority(Box::new(url.clone()))),
            (true, Some(ca)) => Some((connector(url.protocol, ca)?, name(url)?)),
        };
        let authorization = token.map(|Token(token)| bearer(token)).transpose()?;
        Ok(Self { url: url.clone(), authorization, tls })
    }

    /// A stream to send requests over.
    pub(super) async fn greet(&self, stream: TcpStream) -> Result<Box<dyn Stream>, SecurityError> {
        let Some((connector, name)) = &self.tls else { return Ok(Box::new(stream)) };
        let refused = |error: std::io::Error| {
            let url = Box::new(self.url.clone());
            SecurityError::Refused { url, why: error.to_string() }
        };
        let stream = connector.connect(name.clone(), stream).await.map_err(refused)?;
        Ok(Box::new(stream))
    }
}

fn bearer(token: &str) -> Result<HeaderValue, SecurityError> {
    let is_token = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    let value = is_token.then(|| HeaderValue::from_str(&format!("Bearer {token}")));
    let mut value = value.and_then(Result::ok).ok_or(SecurityError::Token)?;
    value.set_sensitive(true);
    Ok(value)
}

/// The host, without its port, as a certificate has it.
fn name(url: &Url) -> Result<ServerName<'static>, SecurityError> {
    let host = url.authority.rsplit_once(':').map_or(&url.authority[..], |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    ServerName::try_from(host.to_owned()).map_err(|_| SecurityError::Host(Box::new(url.clone())))
}

fn connector(protocol: Protocol, ca: &Path) -> Result<TlsConnector, SecurityError> {
    let wrong = |problem: String| SecurityError::Authority { file: ca.to_owned(), problem };
    let certificates: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(ca)
        .and_then(Iterator::collect)
        .map_err(|error| wrong(format!("cannot be read: {error}")))?;
    let mut roots = RootCertStore::empty();
    if roots.add_parsable_certificates(certificates).0 == 0 {
        return Err(wrong("holds no certificate".to_owned()));
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_protocol_versions(&[&TLS13]);
    let builder = builder.map_err(|error| wrong(error.to_string()))?;
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    let alpn = match protocol {
        Protocol::Http => b"http/1.1".to_vec(),
        Protocol::Grpc => b"h2".to_vec(),
    };
    config.alpn_protocols = vec![alpn];
    Ok(TlsConnector::from(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(url: &str, ca: Option<&Path>, token: Option<&str>) -> String {
        let token = token.map(|token| Token(token.to_owned()));
        let made = Server::new(&url.parse().unwrap(), ca, token.as_ref());
        made.err().expect("refused").to_string()
    }

    #[test]
    fn half_of_what_tls_needs_is_named_with_the_other_half() {
        let none = Path::new("/none.pem");
        assert!(refused("https://h:1", None, None).contains("https://h:1 speaks TLS: give --ca"));
        assert!(refused("http://h:1", Some(none), None).contains("write https:// or grpcs://"));
        assert!(refused("grpcs://h:1", Some(none), None).contains("/none.pem: cannot be read"));
        let empty = std::env::temp_dir().join(format!("baton-load-ca-{}", std::process::id()));
        std::fs::write(&empty, "nothing").unwrap();
        assert!(refused("https://h:1", Some(&empty), None).contains("holds no certificate"));
        std::fs::remove_file(&empty).unwrap();
    }

    #[test]
    fn a_token_is_one_word_and_is_shown_nowhere() {
        for token in ["", "two words", "line\n", "ä"] {
            let said = refused("http://h:1", None, Some(token));
            assert!(said.starts_with("--token is no line"), "{token}: {said}");
        }
        let token = Token("0123456789abcdef".into());
        let server = Server::new(&"http://h:1".parse().unwrap(), None, Some(&token)).unwrap();
        let header = server.authorization.unwrap();
        assert_eq!(header, "Bearer 0123456789abcdef");
        assert!(!format!("{header:?}{token:?}").contains("0123"));
    }

    #[test]
    fn a_certificate_is_for_the_host_alone() {
        let of = |text: &str| name(&text.parse().unwrap()).unwrap().to_str().into_owned();
        assert_eq!(of("https://gateway.test:8443/a"), "gateway.test");
        assert_eq!(of("grpcs://127.0.0.1:1"), "127.0.0.1");
        assert_eq!(of("grpcs://[::1]:1"), "::1");
    }
}
