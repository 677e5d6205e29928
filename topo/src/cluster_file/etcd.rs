//! The keys of `[scheduler]` about etcd.

use std::net::SocketAddr;
use std::path::Path;

use crate::cluster_file::cluster::{EtcdIdentity, EtcdSpec, EtcdTlsSpec};
use crate::cluster_file::section::{Section, shorten};
use crate::cluster_file::tls;

/// Members of an etcd cluster; more than nine have no use.
const ENDPOINTS_MAX: usize = 16;
/// The default prefix of a cluster's keys.
const PREFIX: &str = "/baton/default";
/// etcd as it is set up by default grants no shorter lease.
const LEASE_TTL_S: u32 = 2;
const HTTPS: &str = "https://";
const TLS_KEYS: [&str; 3] = ["etcd_ca", "etcd_cert", "etcd_key"];

/// `None` without `etcd`, or if that was refused. Files are relative to `folder`.
pub(crate) fn etcd(section: &Section<'_>, folder: &Path) -> Option<EtcdSpec> {
    let endpoints = section.texts("etcd");
    let prefix = section.name("etcd_prefix");
    let lease_ttl_s = section.integer("lease_ttl_s", LEASE_TTL_S..=60);
    let tls_keys = TLS_KEYS.map(|key| section.has(key).then_some(key));
    let tls_keys: Vec<&'static str> = tls_keys.into_iter().flatten().collect();
    if !section.has("etcd") {
        let others = ["etcd_prefix", "lease_ttl_s"].into_iter().filter(|key| section.has(key));
        for key in others.chain(tls_keys.iter().copied()) {
            section.refuse(key, "is of no use without etcd", "remove it, or add etcd = […]");
        }
    }
    let endpoints = endpoints?;
    if !(1..=ENDPOINTS_MAX).contains(&endpoints.len()) {
        let what = format!("has {} endpoints", endpoints.len());
        section.refuse("etcd", what, format!("give 1 to {ENDPOINTS_MAX}"));
    }
    endpoints.iter().for_each(|endpoint| check(section, endpoint));
    let tls = tls(section, &endpoints, &tls_keys, folder);
    Some(EtcdSpec {
        endpoints,
        prefix: prefix.unwrap_or(PREFIX).trim_end_matches('/').to_owned(),
        lease_ttl_s: lease_ttl_s.unwrap_or(LEASE_TTL_S),
        tls,
    })
}

/// With `https://` endpoints, and only with them. One that is reached without TLS would undo the others'.
fn tls(
    section: &Section<'_>,
    endpoints: &[String],
    keys: &[&'static str],
    folder: &Path,
) -> Option<EtcdTlsSpec> {
    let secure = endpoints.iter().filter(|endpoint| endpoint.starts_with(HTTPS)).count();
    if secure == 0 {
        for key in keys {
            let fix = "write the endpoints with https://, or remove it";
            section.refuse(key, "is of no use with http:// endpoints", fix);
        }
        return None;
    }
    if secure < endpoints.len() {
        section.refuse("etcd", "has http:// and https:// endpoints", "write https:// everywhere");
    }
    let ca = tls::pem(section, "etcd_ca", folder);
    let identity = if keys.iter().any(|key| *key != "etcd_ca") {
        let cert = tls::pem(section, "etcd_cert", folder);
        let key = tls::pem(section, "etcd_key", folder);
        cert.zip(key).map(|(cert, key)| EtcdIdentity { cert, key })
    } else {
        None
    };
    Some(EtcdTlsSpec { ca: ca?, identity })
}

fn check(section: &Section<'_>, endpoint: &str) {
    let rest = endpoint.strip_prefix("http://").or_else(|| endpoint.strip_prefix(HTTPS));
    if !rest.is_some_and(is_host_and_port) {
        let what = format!("\"{}\" is no endpoint", shorten(endpoint));
        section.refuse("etcd", what, "write \"http://127.0.0.1:2379\", or https:// with etcd_ca");
    }
}

fn is_host_and_port(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
    let is_named = text.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty()
            && host.chars().all(plain)
            && port.parse::<u16>().is_ok_and(|port| port > 0)
    });
    is_named || text.parse::<SocketAddr>().is_ok_and(|addr| addr.port() > 0)
}
