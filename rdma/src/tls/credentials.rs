//! What this process shows its peers, and whom it accepts: loaded once, shared by every connection.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use baton_topo::TlsSpec;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use rustls::pki_types::pem::{Error as PemError, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, ServerConfig,
    SignatureScheme,
};
use webpki::EndEntityCert;

use super::explain::explain;
use crate::protocol::wire::Role;

/// Why the files of `[tls]` cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// A file cannot be read.
    #[error("tls.{key}: {} cannot be read ({source}); does it belong to this user?", file.display())]
    Unreadable {
        /// `ca`, `cert` or `key`.
        key: &'static str,
        /// The file.
        file: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A file is not what it should be.
    #[error("tls.{key}: {} {problem}", file.display())]
    Content {
        /// `ca`, `cert` or `key`.
        key: &'static str,
        /// The file.
        file: PathBuf,
        /// What is wrong, and the fix.
        problem: String,
    },
}

/// What this process shows its peers, and whom it accepts. Cheap to clone.
#[derive(Clone)]
pub struct Credentials(Arc<Loaded>);

struct Loaded {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    roots: Arc<ByAuthority>,
    clients: Arc<dyn ClientCertVerifier>,
    chain: Vec<CertificateDer<'static>>,
    spec: TlsSpec,
}

impl Credentials {
    /// Reads the files. They are not read again: a new certificate counts from the next start.
    ///
    /// # Errors
    /// A file is missing, holds something else, or key and certificate do not belong together. A
    /// certificate out of its time is no error here: see [`Credentials::problems`].
    pub fn load(spec: &TlsSpec) -> Result<Self, CredentialsError> {
        let provider = Arc::new(ring::default_provider());
        let roots = Arc::new(roots(&spec.ca)?);
        let chain = certificates("cert", &spec.cert)?;
        let key = PrivateKeyDer::from_pem_file(&spec.key)
            .map_err(|error| unreadable("key", &spec.key, error, "private key"))?;
        let mismatch = |error: Error| content("key", &spec.key, unfit(&error));
        let clients =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
                .build()
                .map_err(|error| content("ca", &spec.ca, format!("cannot be used: {error}")))?;
        let roots = Arc::new(ByAuthority { roots, provider: Arc::clone(&provider) });

        let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(mismatch)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::clone(&roots) as Arc<dyn ServerCertVerifier>)
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .map_err(mismatch)?;
        client.enable_sni = false;
        client.resumption = Resumption::disabled();
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(mismatch)?
            .with_client_cert_verifier(Arc::clone(&clients))
            .with_single_cert(chain.clone(), key)
            .map_err(mismatch)?;
        // Every connection shows its certificate anew, and the server sends no unsolicited tickets.
        server.send_tls13_tickets = 0;
        let (client, server, spec) = (Arc::new(client), Arc::new(server), spec.clone());
        Ok(Self(Arc::new(Loaded { client, server, roots, clients, chain, spec })))
    }

    /// [`Credentials::load`] for a process that starts: [`Credentials::problems`] go to the log.
    ///
    /// # Errors
    /// As [`Credentials::load`].
    pub fn load_and_warn(spec: &TlsSpec) -> Result<Self, CredentialsError> {
        let loaded = Self::load(spec)?;
        for problem in loaded.problems() {
            tracing::warn!("{problem}");
        }
        Ok(loaded)
    }

    /// What peers with the same `ca` would say of this side's certificate just now; empty if nothing.
    pub fn problems(&self) -> Vec<String> {
        let (now, own) = (UnixTime::now(), &self.0.chain);
        let Some((leaf, between)) = own.split_first() else { return Vec::new() };
        let as_server = self.0.roots.check(leaf, between, now).err();
        let as_client = self.0.clients.verify_client_cert(leaf, between, now).err();
        let mut problems: Vec<String> =
            as_server.iter().chain(&as_client).map(|error| self.of_own(error)).collect();
        problems.dedup();
        problems
    }

    pub(crate) fn client(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.0.client)
    }

    pub(crate) fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.0.server)
    }

    /// Whether the owner of `leaf` may act as `role`; otherwise why not, for both sides to read.
    pub(crate) fn allow(&self, leaf: &CertificateDer<'_>, role: Role) -> Result<(), String> {
        let spec = &self.0.spec;
        let (list, key) = match role {
            Role::Control | Role::ModelThread => (&spec.schedulers, "schedulers"),
            Role::Backend => (&spec.backends, "backends"),
            Role::Frontend => (&spec.frontends, "frontends"),
            Role::Operator if spec.operators.is_none() => (&spec.schedulers, "operators"),
            Role::Operator => (&spec.operators, "operators"),
        };
        let Some(list) = list else { return Ok(()) };
        let names = names(leaf);
        if names.iter().any(|name| list.iter().any(|pattern| is_match(pattern, name))) {
            return Ok(());
        }
        let names = if names.is_empty() { "no DNS name".to_owned() } else { names.join(", ") };
        Err(format!(
            "the certificate of {names} may not act as {role:?}; add a name of it to tls.{key}"
        ))
    }

    fn of_own(&self, error: &Error) -> String {
        let explained = explain(error).replace("the peer's certificate", "");
        format!("tls.cert: {}{explained}", self.0.spec.cert.display())
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({})", self.0.spec.cert.display())
    }
}

/// Accepts servers by who issued their certificate. Members are reached by address, and a host's
/// address says nothing: which names count is for the lists to say.
#[derive(Debug)]
struct ByAuthority {
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl ByAuthority {
    fn check(
        &self,
        leaf: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        let leaf = ParsedCertificate::try_from(leaf)?;
        let known = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&leaf, &self.roots, between, now, known)
    }
}

impl ServerCertVerifier for ByAuthority {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(leaf, between, now).map(|()| ServerCertVerified::assertion())
    }

    /// Never asked: the configuration has TLS 1.3 only.
    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(CertificateError::BadSignature.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// The DNS names a certificate is for.
fn names(leaf: &CertificateDer<'_>) -> Vec<String> {
    EndEntityCert::try_from(leaf)
        .map(|leaf| leaf.valid_dns_names().map(str::to_owned).collect())
        .unwrap_or_default()
}

/// `*.` stands for exactly one part of a name.
fn is_match(pattern: &str, name: &str) -> bool {
    match pattern.strip_prefix("*.") {
        Some(rest) => name
            .split_once('.')
            .is_some_and(|(first, tail)| !first.is_empty() && tail.eq_ignore_ascii_case(rest)),
        None => pattern.eq_ignore_ascii_case(name),
    }
}

fn roots(file: &Path) -> Result<RootCertStore, CredentialsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates("ca", file)? {
        roots.add(certificate).map_err(|error| {
            content("ca", file, format!("holds a certificate that is none: {error}"))
        })?;
    }
    Ok(roots)
}

fn certificates(
    key: &'static str,
    file: &Path,
) -> Result<Vec<CertificateDer<'static>>, CredentialsError> {
    let found = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    let found: Vec<_> = found.map_err(|error| unreadable(key, file, error, "certificate"))?;
    if found.is_empty() {
        return Err(unreadable(key, file, PemError::NoItemsFound, "certificate"));
    }
    Ok(found)
}

fn unreadable(key: &'static str, file: &Path, error: PemError, what: &str) -> CredentialsError {
    match error {
        PemError::Io(source) => CredentialsError::Unreadable { key, file: file.to_owned(), source },
        PemError::NoItemsFound => {
            content(key, file, format!("holds no {what}; give one in PEM (-----BEGIN …)"))
        }
        other => content(key, file, format!("is damaged: {other}; copy it anew")),
    }
}

fn content(key: &'static str, file: &Path, problem: String) -> CredentialsError {
    CredentialsError::Content { key, file: file.to_owned(), problem }
}

fn unfit(error: &Error) -> String {
    match error {
        Error::InconsistentKeys(_) => {
            "is not the key of tls.cert; give the one that was made for it".into()
        }
        other => format!("cannot be used: {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_one_part_of_a_name() {
        for name in ["b.example", "B.Example"] {
            assert!(is_match("*.example", name) && is_match("b.example", name), "{name}");
        }
        for name in [".example", "example", "a.b.example", "b.example.org"] {
            assert!(!is_match("*.example", name), "{name}");
        }
    }
}
