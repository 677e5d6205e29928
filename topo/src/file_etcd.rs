//! The keys of `[scheduler]` about etcd.

use std::net::SocketAddr;

use crate::cluster::EtcdSpec;
use crate::file_section::{Section, shorten};

/// Members of an etcd cluster; more than nine are of no use to anybody.
const ENDPOINTS_MAX: usize = 16;
/// Where a cluster's keys are unless the file says otherwise.
const PREFIX: &str = "/baton/default";
/// etcd as it is set up by default grants no shorter lease.
const LEASE_TTL_S: u32 = 2;

/// `None` without `etcd`, or if that was refused.
pub(crate) fn etcd(section: &Section<'_>) -> Option<EtcdSpec> {
    let endpoints = section.texts("etcd");
    let prefix = section.name("etcd_prefix");
    let lease_ttl_s = section.integer("lease_ttl_s", LEASE_TTL_S..=60);
    if !section.has("etcd") {
        for key in ["etcd_prefix", "lease_ttl_s"] {
            if section.has(key) {
                section.refuse(key, "is of no use without etcd", "remove it, or add etcd = […]");
            }
        }
    }
    let endpoints = endpoints?;
    if !(1..=ENDPOINTS_MAX).contains(&endpoints.len()) {
        let what = format!("has {} endpoints", endpoints.len());
        section.refuse("etcd", what, format!("give 1 to {ENDPOINTS_MAX}"));
    }
    endpoints.iter().for_each(|endpoint| check(section, endpoint));
    Some(EtcdSpec {
        endpoints,
        prefix: prefix.unwrap_or(PREFIX).trim_end_matches('/').to_owned(),
        lease_ttl_s: lease_ttl_s.unwrap_or(LEASE_TTL_S),
    })
}

fn check(section: &Section<'_>, endpoint: &str) {
    let fix = match endpoint.starts_with("https://") {
        true => "give a plain http:// endpoint: Baton speaks no TLS with etcd",
        false => "write \"http://127.0.0.1:2379\"",
    };
    if !endpoint.strip_prefix("http://").is_some_and(is_host_and_port) {
        section.refuse("etcd", format!("\"{}\" is no endpoint", shorten(endpoint)), fix);
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
