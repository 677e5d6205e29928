//! Certificate authorities for tests: each makes a folder of PEM files, removed at the end.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use baton_topo::TlsSpec;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, date_time_ymd,
};

/// Authorities made by this process.
static MADE: AtomicUsize = AtomicUsize::new(0);

/// When a certificate counts.
#[derive(Clone, Copy)]
pub enum Valid {
    Now,
    Formerly,
    InFuture,
}

/// One that issues certificates.
pub struct Authority {
    folder: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

impl Authority {
    pub fn new() -> Self {
        Self::named("Baton test authority")
    }

    pub fn named(authority: &str) -> Self {
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("baton-test-ca-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, authority);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        fs::write(folder.join("ca.pem"), issuer.pem()).unwrap();
        Self { folder, issuer }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn ca(&self) -> PathBuf {
        self.folder.join("ca.pem")
    }

    /// A certificate for `name` with its key; what a member of that name says in `[tls]`.
    pub fn issue(&self, name: &str) -> TlsSpec {
        self.issue_with(name, Valid::Now, |_| {})
    }

    pub fn issue_with(
        &self,
        name: &str,
        valid: Valid,
        change: impl FnOnce(&mut CertificateParams),
    ) -> TlsSpec {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        match valid {
            Valid::Now => {}
            Valid::Formerly => params.not_after = date_time_ymd(2001, 1, 1),
            Valid::InFuture => params.not_before = date_time_ymd(3001, 1, 1),
        }
        change(&mut params);
        let own = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&own, &self.issuer).unwrap();
        let spec = TlsSpec::new(
            self.ca(),
            self.folder.join(format!("{name}.pem")),
            self.folder.join(format!("{name}.key")),
        );
        fs::write(&spec.cert, certificate.pem()).unwrap();
        fs::write(&spec.key, own.serialize_pem()).unwrap();
        spec
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}
