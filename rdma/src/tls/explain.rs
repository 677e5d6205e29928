//! What went wrong, in words that name the fix. The words of `rustls` are those of the standard, and
//! its readers are not the operators of a cluster.

use std::io;

use rustls::{AlertDescription, CertificateError, Error};

/// Why there is no secure connection. Travels inside an [`io::Error`] up to the connection's owner.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct TlsProblem(pub(crate) String);

impl TlsProblem {
    pub(super) fn new(error: &Error) -> Self {
        Self(explain(error))
    }

    pub(super) fn into_io(self) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, self)
    }

    /// The text, if `error` is one of these.
    pub(crate) fn of(error: &io::Error) -> Option<String> {
        Some(error.get_ref()?.downcast_ref::<Self>()?.0.clone())
    }
}

/// What `error` means to an operator of the cluster.
pub(super) fn explain(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(error) => certificate(error),
        Error::NoCertificatesPresented => {
            "the peer shows no certificate; give it cert and key in [tls]".into()
        }
        Error::InvalidMessage(_) => {
            "the peer does not speak TLS; give it the [tls] of this cluster, or correct the address"
                .into()
        }
        Error::DecryptError => "what the peer sent was altered on its way".into(),
        Error::AlertReceived(alert) => refused(*alert),
        other => format!("{other}; is the peer a Baton of this version?"),
    }
}

/// What is wrong with a peer's certificate.
fn certificate(error: &CertificateError) -> String {
    match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "the peer's certificate has expired; renew it, or correct this host's clock".into()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the peer's certificate is not valid yet; correct its first day, or this host's clock"
                .into()
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "the peer's certificate is of no authority in this side's [tls] ca; have it issued by \
             one, or add the authority to that file"
                .into()
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "the peer's certificate is not for this purpose; its extendedKeyUsage must have both \
             serverAuth and clientAuth"
                .into()
        }
        other => format!("the peer's certificate cannot be used: {other}; have it issued anew"),
    }
}

/// The peer's alert: why it does not want this side.
fn refused(alert: AlertDescription) -> String {
    let own = "the peer refused this side's certificate: ";
    match alert {
        AlertDescription::CertificateExpired => {
            format!("{own}expired or not valid yet; renew it, or correct the clocks")
        }
        // The latter if an authority of the peer's has the same name and another key.
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            format!("{own}of no authority in the peer's [tls] ca; have it issued by one of those")
        }
        AlertDescription::CertificateRequired => {
            format!("{own}there is none; give cert and key in [tls]")
        }
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::CertificateRevoked => format!("{own}{alert:?}; see the peer's log"),
        other => format!("the peer broke the handshake off ({other:?}); see its log"),
    }
}
