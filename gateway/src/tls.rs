//! TLS towards the gateway's clients.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::TLS13;
use tokio_rustls::TlsAcceptor;

/// A certificate towards clients.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsFiles {
    /// PEM: the certificate, followed by those between it and the authority's.
    pub cert: PathBuf,
    /// PEM: its private key.
    pub key: PathBuf,
}

/// Why the gateway's certificate cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("gateway.{which}: {} {problem}", file.display())]
pub struct TlsError {
    which: &'static str,
    file: PathBuf,
    problem: String,
}

/// What accepts connections, over TLS 1.3. Clients show no certificate.
pub(crate) fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor, TlsError> {
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(&files.cert)
        .and_then(Iterator::collect)
        .map_err(|error| wrong("cert", &files.cert, format!("cannot be read: {error}")))?;
    if chain.is_empty() {
        return Err(wrong("cert", &files.cert, "holds no certificate"));
    }
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|error| wrong("key", &files.key, format!("cannot be read: {error}")))?;
    let unfit = |error: rustls::Error| {
        wrong("key", &files.key, format!("does not belong to the certificate: {error}"))
    };
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&TLS13])
        .map_err(unfit)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(unfit)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn wrong(which: &'static str, file: &Path, problem: impl Into<String>) -> TlsError {
    TlsError { which, file: file.to_owned(), problem: problem.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_no_certificate_are_named() {
        let empty = std::env::temp_dir().join(format!("baton-gateway-tls-{}", std::process::id()));
        std::fs::write(&empty, "nothing").unwrap();
        let of = |cert: &Path| {
            let files = TlsFiles { cert: cert.to_owned(), key: empty.clone() };
            acceptor(&files).err().unwrap().to_string()
        };
        assert!(of(Path::new("/none.pem")).starts_with("gateway.cert: /none.pem cannot be read"));
        assert!(of(&empty).contains("holds no certificate"));
        std::fs::remove_file(&empty).unwrap();
    }
}
