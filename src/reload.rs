//! Files that the gateway reads again when they change: its tokens, its certificate and the cluster file that names them.

use std::error::Error;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use baton_gateway::{Gateway, TlsFiles, Token};
use baton_topo::GatewaySpec;

use crate::certificates::Certificates;
use crate::output::load_cluster;

/// What changes of a file when its content does: its number, its length, when it was written last.
type Stamp = Option<(u64, u64, i64, i64)>;

/// The files, and what was seen of them.
pub(crate) struct Reload {
    config: PathBuf,
    certificates: Certificates,
    files: Vec<PathBuf>,
    /// When they were read.
    read: Vec<Stamp>,
    /// At the look before.
    seen: Vec<Stamp>,
}

impl Reload {
    /// Of a gateway that has just read them.
    pub(crate) fn new(config: &Path, spec: &GatewaySpec, certificates: Certificates) -> Self {
        certificates.read_of_clients(spec.tls.as_ref().map(|tls| &*tls.cert));
        let files = files(config, spec);
        let stamps = stamps(&files);
        Self { config: config.to_owned(), certificates, files, read: stamps.clone(), seen: stamps }
    }

    /// Reads them again if they have changed and, since the look before, come to rest: a file may be half written. After an
    /// error the gateway goes on with what it has, until they change again.
    pub(crate) fn look(&mut self, gateway: &Gateway) {
        let now = stamps(&self.files);
        let rests = now == self.seen;
        self.seen = now;
        if !rests || self.seen == self.read {
            return;
        }
        self.read.clone_from(&self.seen);
        match self.reload(gateway) {
            Ok(()) => tracing::info!("the gateway has read its tokens and its certificate again"),
            Err(error) => {
                tracing::error!(%error, "the gateway goes on with the tokens and the certificate that it has: correct the file");
            }
        }
    }

    fn reload(&mut self, gateway: &Gateway) -> Result<(), Box<dyn Error>> {
        let cluster = load_cluster(&self.config).inspect_err(|_| gateway.count_failed_reload())?;
        let spec = cluster.gateway;
        // Also those that cannot be used yet: they are watched until they can.
        self.files = files(&self.config, &spec);
        self.read = stamps(&self.files);
        self.seen.clone_from(&self.read);
        let (tls, tokens) = access(spec);
        gateway.reload(tls.as_ref(), &tokens)?;
        self.certificates.read_of_clients(tls.as_ref().map(|tls| &*tls.cert));
        Ok(())
    }
}

/// What the gateway is given of its table.
pub(crate) fn access(spec: GatewaySpec) -> (Option<TlsFiles>, Vec<Token>) {
    let tls = spec.tls.map(|tls| TlsFiles { cert: tls.cert, key: tls.key });
    let tokens = spec.tokens.into_iter().map(|token| Token {
        name: token.name,
        file: token.file,
        max_rps: token.max_rps,
        models: token.models,
        operator: token.operator,
    });
    (tls, tokens.collect())
}

fn files(config: &Path, spec: &GatewaySpec) -> Vec<PathBuf> {
    let tls = spec.tls.iter().flat_map(|tls| [tls.cert.clone(), tls.key.clone()]);
    let tokens = spec.tokens.iter().map(|token| token.file.clone());
    [config.to_owned()].into_iter().chain(tls).chain(tokens).collect()
}

fn stamps(files: &[PathBuf]) -> Vec<Stamp> {
    let stamp = |file: &PathBuf| {
        let said = fs::metadata(file).ok()?;
        Some((said.ino(), said.len(), said.mtime(), said.mtime_nsec()))
    };
    files.iter().map(stamp).collect()
}
