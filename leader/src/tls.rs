//! TLS towards etcd: the files of `etcd_ca`, `etcd_cert` and `etcd_key`, read once, and errors that name
//! the fix.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use baton_topo::{EtcdIdentity, EtcdTlsSpec};
use rustls::crypto::ring;
use rustls::pki_types::pem::{Error as PemError, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{AlertDescription, CertificateError, Error, RootCertStore};
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

/// Why the files for etcd cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum EtcdFilesError {
    /// A file cannot be read.
    #[error("scheduler.{key}: {} cannot be read ({source}); does it belong to this user?", file.display())]
    Unreadable {
        /// `etcd_ca`, `etcd_cert` or `etcd_key`.
        key: &'static str,
        /// The file.
        file: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A file is not what it should be.
    #[error("scheduler.{key}: {} {problem}", file.display())]
    Content {
        /// `etcd_ca`, `etcd_cert` or `etcd_key`.
        key: &'static str,
        /// The file.
        file: PathBuf,
        /// What is wrong, and the fix.
        problem: String,
    },
}

/// Reads the files. They are not read again: new ones count from the next start.
///
/// # Errors
/// A file is missing, holds something else, or key and certificate do not belong together.
pub(crate) fn load(spec: &EtcdTlsSpec) -> Result<TlsConfig, EtcdFilesError> {
    let provider = Arc::new(ring::default_provider());
    let roots = certificates("etcd_ca", &spec.ca)?;
    let mut store = RootCertStore::empty();
    for root in &roots {
        let none = |error| content("etcd_ca", &spec.ca, format!("holds no authority: {error}"));
        store.add(root.clone()).map_err(none)?;
    }
    let client = spec.identity.as_ref().map(|identity| own(identity, &provider)).transpose()?;
    let roots = roots.iter().map(|root| Certificate::from_der(root).to_owned());
    Ok(TlsConfig::builder()
        .root_certs(RootCerts::from(roots))
        .client_cert(client)
        .unversioned_rustls_crypto_provider(provider)
        .build())
}

/// Looks whether the files can be used, as a start would.
///
/// # Errors
/// What a start would say.
pub fn check_files(spec: &EtcdTlsSpec) -> Result<(), EtcdFilesError> {
    load(spec).map(drop)
}

/// What this process shows to etcd.
fn own(
    EtcdIdentity { cert, key }: &EtcdIdentity,
    provider: &rustls::crypto::CryptoProvider,
) -> Result<ClientCert, EtcdFilesError> {
    let chain = certificates("etcd_cert", cert)?;
    let file = |error| unreadable("etcd_key", key, error, "private key");
    let pem = std::fs::read(key).map_err(|error| file(PemError::Io(error)))?;
    let secret = PrivateKeyDer::from_pem_slice(&pem).map_err(file)?;
    let fits = CertifiedKey::from_der(chain.clone(), secret, provider);
    fits.map_err(|error| content("etcd_key", key, unfit(&error)))?;
    let secret = PrivateKey::from_pem(&pem)
        .map_err(|error| content("etcd_key", key, format!("cannot be used: {error}")))?;
    let chain: Vec<_> = chain.iter().map(|der| Certificate::from_der(der).to_owned()).collect();
    Ok(ClientCert::new_with_certs(&chain, secret))
}

fn certificates(
    key: &'static str,
    file: &Path,
) -> Result<Vec<CertificateDer<'static>>, EtcdFilesError> {
    let found = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    let found: Vec<_> = found.map_err(|error| unreadable(key, file, error, "certificate"))?;
    if found.is_empty() {
        return Err(unreadable(key, file, PemError::NoItemsFound, "certificate"));
    }
    Ok(found)
}

fn unreadable(key: &'static str, file: &Path, error: PemError, what: &str) -> EtcdFilesError {
    match error {
        PemError::Io(source) => EtcdFilesError::Unreadable { key, file: file.to_owned(), source },
        PemError::NoItemsFound => {
            content(key, file, format!("holds no {what}; give one in PEM (-----BEGIN …)"))
        }
        other => content(key, file, format!("is damaged: {other}; copy it anew")),
    }
}

fn content(key: &'static str, file: &Path, problem: String) -> EtcdFilesError {
    EtcdFilesError::Content { key, file: file.to_owned(), problem }
}

fn unfit(error: &Error) -> String {
    match error {
        Error::InconsistentKeys(_) => {
            "is not the key of etcd_cert; give the one that was made for it".into()
        }
        other => format!("cannot be used: {other}"),
    }
}

/// Why the connection to etcd is not secure; `None` if the error has another cause.
pub(crate) fn explain(error: &ureq::Error) -> Option<String> {
    let error = match error {
        ureq::Error::Rustls(error) => error,
        ureq::Error::Io(error) => error.get_ref()?.downcast_ref::<Error>()?,
        _ => return None,
    };
    Some(match error {
        Error::InvalidCertificate(error) => certificate(error),
        Error::InvalidMessage(_) => "it speaks no TLS; write http:// in `etcd`".into(),
        Error::AlertReceived(alert) => refused(*alert),
        other => other.to_string(),
    })
}

fn certificate(error: &CertificateError) -> String {
    match error {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "its certificate is of no authority in etcd_ca; add its authority to that file".into()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "its certificate is for other hosts; write the endpoint as the certificate names it, or have \
             one issued with this name or address"
                .into()
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "its certificate has expired; renew it, or correct this host's clock".into()
        }
        other => format!("its certificate cannot be used: {other}; have it issued anew"),
    }
}

/// etcd's alert: why it does not want this side.
fn refused(alert: AlertDescription) -> String {
    match alert {
        // Go sends the second when a certificate is missing, in TLS 1.3 the first.
        AlertDescription::CertificateRequired | AlertDescription::BadCertificate => {
            "it wants a certificate of an authority in its --trusted-ca-file; give such etcd_cert and \
             etcd_key".into()
        }
        AlertDescription::UnknownCA => {
            "it does not know the authority of etcd_cert; see its --trusted-ca-file".into()
        }
        other => format!("it refuses this side ({other:?}); see etcd's log"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    /// A folder of one test's, with an authority's certificate and key.
    struct Files(PathBuf);

    impl Files {
        fn new(test: &str) -> Self {
            let folder = format!("baton-etcd-tls-{}-{test}", std::process::id());
            let folder = std::env::temp_dir().join(folder);
            fs::create_dir_all(&folder).unwrap();
            let files = Self(folder);
            files.issue("own");
            files.issue("other");
            files
        }

        fn issue(&self, name: &str) {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new([name.to_owned()]).unwrap();
            let certificate = params.self_signed(&key).unwrap();
            fs::write(self.at(&format!("{name}.pem")), certificate.pem()).unwrap();
            fs::write(self.at(&format!("{name}.key")), key.serialize_pem()).unwrap();
        }

        fn at(&self, name: &str) -> PathBuf {
            self.0.join(name)
        }

        fn spec(&self, ca: &str, cert: &str, key: &str) -> EtcdTlsSpec {
            let identity = EtcdIdentity { cert: self.at(cert), key: self.at(key) };
            EtcdTlsSpec { ca: self.at(ca), identity: Some(identity) }
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn good_files_are_taken_with_a_certificate_of_ones_own_or_without() {
        let files = Files::new("good");
        let both = load(&files.spec("own.pem", "own.pem", "own.key")).unwrap();
        assert!(both.client_cert().is_some());
        let none = load(&EtcdTlsSpec { ca: files.at("own.pem"), identity: None }).unwrap();
        assert!(none.client_cert().is_none());
        assert!(matches!(none.root_certs(), RootCerts::Specific(roots) if roots.len() == 1));
        assert!(!none.disable_verification());
    }

    #[test]
    fn what_is_wrong_with_a_file_is_said_by_key_and_file() {
        let files = Files::new("wrong");
        let damaged = "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n";
        fs::write(files.at("damaged.pem"), damaged).unwrap();
        let empty = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        fs::write(files.at("empty.pem"), empty).unwrap();
        let cases = [
            (["none.pem", "own.pem", "own.key"], "etcd_ca", "none.pem cannot be read"),
            (["own.key", "own.pem", "own.key"], "etcd_ca", "own.key holds no certificate"),
            (["damaged.pem", "own.pem", "own.key"], "etcd_ca", "damaged.pem is damaged"),
            (["empty.pem", "own.pem", "own.key"], "etcd_ca", "empty.pem holds no authority"),
            (["own.pem", "own.key", "own.key"], "etcd_cert", "own.key holds no certificate"),
            (["own.pem", "own.pem", "none.key"], "etcd_key", "none.key cannot be read"),
            (["own.pem", "own.pem", "own.pem"], "etcd_key", "own.pem holds no private key"),
            (["own.pem", "own.pem", "other.key"], "etcd_key", "is not the key of etcd_cert"),
        ];
        for ([ca, cert, key], which, what) in cases {
            let error = check_files(&files.spec(ca, cert, key)).unwrap_err().to_string();
            assert!(error.starts_with(&format!("scheduler.{which}: ")), "{error}");
            assert!(error.contains(what), "{error}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_connection_is_said_with_what_to_do() {
        use AlertDescription::{BadCertificate, CertificateRequired, HandshakeFailure, UnknownCA};
        use CertificateError::{Expired, NotValidForName, Revoked, UnknownIssuer};
        use rustls::InvalidMessage;
        let cases = [
            (Error::AlertReceived(CertificateRequired), "give such etcd_cert"),
            (Error::AlertReceived(BadCertificate), "give such etcd_cert"),
            (Error::AlertReceived(UnknownCA), "does not know the authority of etcd_cert"),
            (Error::AlertReceived(HandshakeFailure), "HandshakeFailure"),
            (Error::InvalidCertificate(UnknownIssuer), "no authority in etcd_ca"),
            (Error::InvalidCertificate(NotValidForName), "for other hosts"),
            (Error::InvalidCertificate(Expired), "has expired"),
            (Error::InvalidCertificate(Revoked), "have it issued anew"),
            (Error::InvalidMessage(InvalidMessage::InvalidContentType), "write http:// in `etcd`"),
            (Error::NoCertificatesPresented, "peer sent no certificates"),
        ];
        for (error, what) in cases {
            let inside = ureq::Error::Io(io::Error::other(error.clone()));
            for error in [ureq::Error::Rustls(error), inside] {
                let text = explain(&error).expect("TLS is the cause");
                assert!(text.contains(what), "{text}");
            }
        }
        let other = io::Error::other("no route");
        assert_eq!(explain(&ureq::Error::Io(other)), None);
    }
}
