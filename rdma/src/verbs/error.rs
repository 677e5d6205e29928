//! What can be wrong with RDMA on a host. Each names the fix.

use std::io;

/// Why verbs cannot be used, or one of its objects not be had.
#[derive(Debug, thiserror::Error)]
pub enum VerbsError {
    /// The library is not installed.
    #[error(
        "{library} cannot be loaded ({problem}); install rdma-core (Debian: libibverbs1 ibverbs-providers)"
    )]
    NoLibrary {
        /// Its file name.
        library: &'static str,
        /// The dynamic linker's words.
        problem: String,
    },
    /// The library lacks a function.
    #[error("the installed libibverbs has no {symbol}; upgrade rdma-core to version 34 or later")]
    OldLibrary {
        /// What is missing.
        symbol: &'static str,
    },
    /// The kernel knows no RDMA.
    #[error(
        "the kernel has no RDMA support; load ib_uverbs and the driver of your card (modprobe ib_uverbs)"
    )]
    NoKernelSupport,
    /// There is no card.
    #[error(
        "there is no RDMA device; load the driver of your card, or for Soft-RoCE: rdma link add rxe0 type rxe netdev ETH"
    )]
    NoDevice,
    /// There is no card of that name.
    #[error("there is no RDMA device `{name}`; this host has: {known}")]
    UnknownDevice {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// The port does not carry traffic.
    #[error("port {port} of {device} is not active; check the cable and `rdma link`")]
    PortDown {
        /// The device.
        device: String,
        /// The port.
        port: u8,
    },
    /// The device cannot scatter a READ over two places.
    #[error(
        "{device} takes {max_sge_rd} pieces per READ, 2 are needed (iWARP cards are not supported); use transport = \"tcp\""
    )]
    FewPieces {
        /// The device.
        device: String,
        /// Its limit.
        max_sge_rd: u32,
    },
    /// No address of the port can be used.
    #[error(
        "no GID of {device} port {port} can be used{tried}; give the port's network interface an IPv4 address"
    )]
    NoGid {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// Which were tried, and how it went.
        tried: String,
    },
    /// The GID that was asked for cannot be used.
    #[error(
        "gid_index = {index} of {device} cannot be used: {problem}; leave gid_index out to have it chosen"
    )]
    BadGid {
        /// The device.
        device: String,
        /// The index asked for.
        index: u32,
        /// What is wrong with it.
        problem: String,
    },
    /// The process may not pin as much memory as it needs.
    #[error(
        "{bytes} bytes of {what} cannot be registered: this process may lock {limit} bytes of memory; \
         raise it (ulimit -l unlimited, or LimitMEMLOCK=infinity for a service or a container runtime)"
    )]
    Memlock {
        /// What was to be registered.
        what: &'static str,
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: u64,
    },
    /// The device's queues have no room for another peer's messages.
    #[error(
        "{device} has room for the messages of {most} peers and no more; use transport = \"auto\", which \
         leaves those of the others to TCP"
    )]
    ManyPeers {
        /// The device.
        device: String,
        /// What its queues hold.
        most: u32,
    },
    /// The library or the driver refused something else.
    #[error("{what} on {device}: {source}")]
    Refused {
        /// What was asked for.
        what: &'static str,
        /// Of which device.
        device: String,
        /// The system's answer.
        source: io::Error,
    },
}
