//! What an operator may choose about the fabric that carries inputs. Every value has a default.

use std::fmt;

use baton_types::Nanos;

use crate::cluster_file::tls::TlsSpec;

/// Which fabric carries the inputs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TransportChoice {
    /// Verbs or nothing: a host or a peer without is an error.
    Rdma,
    /// TCP; no RDMA device is opened.
    Tcp,
    /// Verbs with every peer that has it too; without a device, memory shared with peers of this host; TCP with the others. The reason
    /// is logged.
    #[default]
    Auto,
}

/// `[rdma]`: the verbs side of a transport.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VerbsConfig {
    /// The device, by name; `None`: the first with an active port.
    pub device: Option<String>,
    /// The port, from 1.
    pub port: u8,
    /// The GID to speak from, by its place in the port's table; `None`: chosen by rank.
    pub gid_index: Option<u32>,
    /// Largest packet, bytes: 256 to 4096; `None`: what the port has.
    pub mtu: Option<u32>,
    /// RoCE: the IP traffic class (DSCP and ECN bits) of data packets.
    pub traffic_class: u8,
    /// InfiniBand and lossless Ethernet: the service level.
    pub service_level: u8,
    /// READs under way per queue pair, wanted; the devices of both sides may allow fewer.
    pub read_depth: u8,
    /// Peers the device's budget of READs to answer is divided by.
    pub peers: u32,
    /// Backends read inputs in pieces of at most this many bytes, so that sources can take turns.
    pub slice_bytes: u32,
    /// A READ that has not completed this long after it was posted is abandoned, and its connection closed.
    /// A frontend lets a slot whose task ended without an answer rest for as long.
    pub read_timeout: Nanos,
    /// The device's own retransmission timer, as verbs count it: 4.096 µs · 2^n.
    pub ack_timeout: u8,
    /// Retransmissions before the device gives a peer up, at most 6 (7 never ends on Soft-RoCE).
    pub retries: u8,
}

impl TransportChoice {
    /// As the cluster file spells it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rdma => "rdma",
            Self::Tcp => "tcp",
            Self::Auto => "auto",
        }
    }
}

impl fmt::Display for TransportChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a cluster's members are connected by, and how.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FabricSpec {
    /// `[network] transport`.
    pub transport: TransportChoice,
    /// `[rdma]`.
    pub verbs: VerbsConfig,
    /// `[tls]`; `None`: connections are plain TCP, and one that is encrypted is refused.
    pub tls: Option<TlsSpec>,
}

impl Default for VerbsConfig {
    fn default() -> Self {
        Self {
            device: None,
            port: 1,
            gid_index: None,
            mtu: None,
            traffic_class: 106,
            service_level: 0,
            read_depth: 16,
            peers: 16,
            slice_bytes: 64 * 1024,
            // So that a dead peer is noticed within 50 ms: drained and told included.
            read_timeout: Nanos::from_millis(40),
            ack_timeout: 11,
            retries: 6,
        }
    }
}
