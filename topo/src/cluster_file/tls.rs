//! The keys of `[tls]`, TLS between the members. The files named here are read by `baton-rdma`.

use std::path::{Path, PathBuf};

use crate::cluster_file::section::Section;

/// `[tls]`: every connection of the cluster is encrypted, and both ends show a certificate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsSpec {
    /// PEM: the certificates of the authorities whose certificates count.
    pub ca: PathBuf,
    /// PEM: this member's certificate, followed by those between it and the authority's.
    pub cert: PathBuf,
    /// PEM: the private key of `cert`.
    pub key: PathBuf,
    /// Names that may act as scheduler; `None`: any peer with a certificate.
    pub schedulers: Option<Vec<String>>,
    /// Names that may act as backend.
    pub backends: Option<Vec<String>>,
    /// Names that may act as frontend.
    pub frontends: Option<Vec<String>>,
    /// Names that may change the catalogue; `None`: those in `schedulers`.
    pub operators: Option<Vec<String>>,
}

impl TlsSpec {
    /// These files, and no list: any certificate of the authority may act in any role.
    pub fn new(ca: PathBuf, cert: PathBuf, key: PathBuf) -> Self {
        let (schedulers, backends, frontends, operators) = (None, None, None, None);
        Self { ca, cert, key, schedulers, backends, frontends, operators }
    }
}

/// The table, if the file has it. An incomplete table is refused: half of TLS is no TLS.
pub(crate) fn tls(root: &Section<'_>, folder: &Path) -> Option<TlsSpec> {
    if !root.has("tls") {
        return None;
    }
    let section = root.table("tls");
    let (ca, cert, key) =
        (pem(&section, "ca", folder), pem(&section, "cert", folder), pem(&section, "key", folder));
    let names = |key| {
        let names = section.names(key);
        if !section.has(key) {
            section.warn(
                key,
                "is missing: any certificate of the authority may act in this role",
                "list the names that may",
            );
        }
        names
    };
    let (schedulers, backends, frontends) =
        (names("schedulers"), names("backends"), names("frontends"));
    let operators = section.names("operators");
    section.refuse_unread();
    Some(TlsSpec { ca: ca?, cert: cert?, key: key?, schedulers, backends, frontends, operators })
}

/// The PEM file that `key` names. It must be there.
pub(crate) fn pem(section: &Section<'_>, key: &'static str, folder: &Path) -> Option<PathBuf> {
    section.require(key, "name the PEM file; docs/operating.md says how to make one");
    let file = folder.join(section.text(key)?);
    if !file.is_file() {
        let what = format!("there is no file {}", file.display());
        let fix = "give a path relative to this cluster file, or an absolute one";
        section.refuse(key, what, fix);
    }
    Some(file)
}
