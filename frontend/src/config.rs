//! What an application chooses about its client. Every value has a default that suits a program
//! next to its scheduler; [`ClientConfig::check`] refuses what cannot work.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use baton_leader::SchedulerLocator;
use baton_rdma::TcpConfig;
use baton_topo::{Clock, Cluster, FabricSpec, Idle, ReconnectSpec, TlsSpec};
use baton_types::{Nanos, TaskId};

use crate::error::ConfigError;

/// What bounds the attempts of a first join, as errors name it: a program's own setting, or the cluster file's.
const TIMEOUT_SETTING: &str = "connect_timeout()";
const TIMEOUT_OF_FILE: &str = "start_ms of [reconnect]";

/// Settings of one [`crate::Client`].
///
/// ```
/// use baton_client::ClientConfig;
/// use std::time::Duration;
///
/// let config = ClientConfig::new("127.0.0.1:7700".parse()?)
///     .models(["digits"])
///     .slots_per_model(256)
///     .connect_timeout(Duration::from_secs(2));
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ClientConfig {
    pub(crate) scheduler: SchedulerLocator,
    /// Empty: every model of the catalogue.
    pub(crate) models: Vec<String>,
    pub(crate) slots_per_model: u32,
    /// `None`: as fits where the scheduler is.
    pub(crate) listen: Option<SocketAddr>,
    pub(crate) connect_timeout: Nanos,
    /// Where that was set.
    pub(crate) timeout_setting: &'static str,
    pub(crate) lease_grace: Nanos,
    pub(crate) leave_timeout: Nanos,
    pub(crate) member_timeout: Nanos,
    pub(crate) reconnect: ReconnectSpec,
    pub(crate) idle: Idle,
    pub(crate) core: Option<usize>,
    pub(crate) clock: Option<Clock>,
    pub(crate) first_generation: Option<u32>,
    pub(crate) tcp: TcpConfig,
    pub(crate) fabric: FabricSpec,
}

impl ClientConfig {
    /// The defaults, for the scheduler whose control address is `scheduler`.
    pub fn new(scheduler: SocketAddr) -> Self {
        Self::with_locator(scheduler.into())
    }

    /// The defaults, for a scheduler whose address may change: [`SchedulerLocator::via_etcd`].
    pub fn with_locator(scheduler: SchedulerLocator) -> Self {
        Self {
            connect_timeout: Nanos::from_millis(5_000) + scheduler.succession(),
            timeout_setting: TIMEOUT_SETTING,
            scheduler,
            models: Vec::new(),
            slots_per_model: 128,
            listen: None,
            lease_grace: Nanos::from_millis(1_000),
            leave_timeout: Nanos::from_millis(10_000),
            member_timeout: Nanos::from_millis(1_000),
            reconnect: ReconnectSpec::default(),
            idle: Idle::Park,
            core: None,
            clock: None,
            first_generation: None,
            tcp: TcpConfig::default(),
            fabric: FabricSpec::default(),
        }
    }

    /// The sizes that a cluster file gives its frontends, and the start timeout of its backends.
    /// `scheduler` is a separate argument, because the file may name an address to listen on that
    /// cannot be connected to.
    pub fn from_cluster(cluster: &Cluster, scheduler: impl Into<SchedulerLocator>) -> Self {
        let scheduler = scheduler.into();
        Self {
            connect_timeout: cluster.reconnect.start + scheduler.succession(),
            timeout_setting: TIMEOUT_OF_FILE,
            reconnect: cluster.reconnect,
            slots_per_model: cluster.frontend.slots_per_model,
            lease_grace: cluster.frontend.lease_grace,
            member_timeout: cluster.scheduler.member_timeout,
            fabric: cluster.fabric.clone(),
            ..Self::with_locator(scheduler)
        }
    }

    /// The models to reserve memory for, by name. Without this call: all of the catalogue, also those that are
    /// added while the client is connected.
    pub fn models<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.models = names.into_iter().map(Into::into).collect();
        self
    }

    /// True if memory is to be reserved for the model of this name.
    pub(crate) fn wants(&self, name: &str) -> bool {
        self.models.is_empty() || self.models.iter().any(|wanted| wanted == name)
    }

    /// How many tasks of one model can be outstanding, counting inputs being filled and replies
    /// not dropped yet. Memory is slots × (input + output) bytes per model. Default 128.
    pub fn slots_per_model(mut self, slots: u32) -> Self {
        self.slots_per_model = slots;
        self
    }

    /// Where backends reach this process to pull inputs. Default: an ephemeral port, on loopback
    /// if the scheduler is there, otherwise on every interface.
    pub fn listen(mut self, addr: SocketAddr) -> Self {
        self.listen = Some(addr);
        self
    }

    /// Bound on [`crate::Client::connect`], which retries until then if no scheduler is there. Default
    /// 5 s, and with etcd the leader's lease on top: a dead leader blocks its successor for that long.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = nanos(timeout);
        self.timeout_setting = TIMEOUT_SETTING;
        self
    }

    /// How long past its deadline a task may stay without outcome before this client fails it
    /// (`lease_expired`). Default 1 s.
    pub fn lease_grace(mut self, grace: Duration) -> Self {
        self.lease_grace = nanos(grace);
        self
    }

    /// How long [`crate::Client::leave`] waits for outstanding tasks. Default 10 s.
    pub fn leave_timeout(mut self, timeout: Duration) -> Self {
        self.leave_timeout = nanos(timeout);
        self
    }

    /// How a client that has lost its scheduler looks for it: the pauses between attempts, and how long submits wait
    /// after an orderly stop. Its `start` does not count here: see [`ClientConfig::connect_timeout`].
    pub fn reconnect(mut self, spec: ReconnectSpec) -> Self {
        self.reconnect = spec;
        self
    }

    /// A scheduler that leaves a heartbeat unanswered for this long is taken for lost. Default 1 s.
    pub fn member_timeout(mut self, timeout: Duration) -> Self {
        self.member_timeout = nanos(timeout);
        self
    }

    /// What the I/O thread does without work. Default [`Idle::Park`].
    pub fn idle(mut self, idle: Idle) -> Self {
        self.idle = idle;
        self
    }

    /// Pins the I/O thread to a core. Default: not pinned.
    pub fn core(mut self, core: usize) -> Self {
        self.core = Some(core);
        self
    }

    /// The clock of [`crate::Timing`]'s moments. Default: one of the client's own; give yours to
    /// compare those moments with others of your program.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// The generation of each slot's first task. Default: drawn, so that an answer to an earlier run
    /// of the same frontend number is stale here; give one only to programs that must run the same
    /// way twice.
    pub fn first_generation(mut self, generation: u32) -> Self {
        self.first_generation = Some(generation);
        self
    }

    /// Bounds of the TCP transport.
    pub fn tcp(mut self, tcp: TcpConfig) -> Self {
        self.tcp = tcp;
        self
    }

    /// What backends read the inputs over, and whether connections are encrypted. Default: RDMA with
    /// every backend that has it too, where this host has; otherwise TCP; no TLS.
    pub fn fabric(mut self, fabric: FabricSpec) -> Self {
        self.fabric = fabric;
        self
    }

    /// Encrypts every connection of this client, and accepts only peers with a certificate: what the
    /// cluster file's `[tls]` says. Default: no TLS. A cluster has it on every member or on none.
    pub fn tls(mut self, tls: TlsSpec) -> Self {
        self.fabric.tls = Some(tls);
        self
    }

    /// Refuses settings that cannot work, before anything is started.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if !(1..=TaskId::SLOTS_MAX).contains(&self.slots_per_model) {
            return Err(ConfigError::Slots { slots: self.slots_per_model });
        }
        let timeouts = [
            ("connect_timeout", self.connect_timeout),
            ("leave_timeout", self.leave_timeout),
            ("member_timeout", self.member_timeout),
            ("reconnect.first", self.reconnect.first),
            ("reconnect.longest", self.reconnect.longest),
        ];
        match timeouts.iter().find(|(_, timeout)| *timeout == Nanos::ZERO) {
            Some(&(name, _)) => Err(ConfigError::ZeroTimeout { name }),
            None => Ok(()),
        }
    }
}

/// Inputs of a program that talks to a local scheduler need not be reachable from outside.
pub(crate) fn listen_near(scheduler: IpAddr) -> SocketAddr {
    let ip = match scheduler {
        local if local.is_loopback() => local,
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(ip, 0)
}

/// Saturating: a bound of 600 years is as good as one of 6 000.
pub(crate) fn nanos(span: Duration) -> Nanos {
    Nanos(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> ClientConfig {
        ClientConfig::new("127.0.0.1:7700".parse().unwrap())
    }

    #[test]
    fn absurd_values_are_refused_by_name() {
        assert_eq!(config().check(), Ok(()));
        assert_eq!(config().slots_per_model(0).check(), Err(ConfigError::Slots { slots: 0 }));
        let zero = config().leave_timeout(Duration::ZERO).check();
        assert_eq!(zero, Err(ConfigError::ZeroTimeout { name: "leave_timeout" }));
    }

    #[test]
    fn each_bound_is_the_one_that_was_set() {
        let ms = Duration::from_millis;
        let config = config().connect_timeout(ms(7)).lease_grace(ms(8)).leave_timeout(ms(9));
        let bounds = [config.connect_timeout, config.lease_grace, config.leave_timeout];
        assert_eq!(bounds, [7, 8, 9].map(Nanos::from_millis));
    }

    #[test]
    fn a_local_program_listens_locally() {
        assert!(listen_near(Ipv4Addr::LOCALHOST.into()).ip().is_loopback());
        assert!(listen_near([10, 0, 0, 7].into()).ip().is_unspecified());
        assert!(listen_near(Ipv6Addr::LOCALHOST.into()).is_ipv6());
    }

    #[test]
    fn a_cluster_file_says_what_its_frontends_need() {
        let text = r#"
            [scheduler]
            listen = "127.0.0.1:7700"
            member_timeout_ms = 700

            [frontend]
            slots_per_model = 9
            lease_grace_ms = 40

            [reconnect]
            start_ms = 12_000

            [[model]]
            name = "toy"
            alpha_ms = 1.0
            beta_ms = 5.0
            slo_ms = 25.0
            batch_max = 8
            input_bytes = 1000
            subcluster = "a"
        "#;
        let cluster = baton_topo::check_text(std::path::Path::new("cluster.toml"), text).cluster;
        let addr: SocketAddr = "127.0.0.1:7700".parse().unwrap();
        let config = ClientConfig::from_cluster(&cluster.expect("a sound file"), addr);
        assert_eq!((config.slots_per_model, config.lease_grace), (9, Nanos::from_millis(40)));
        assert_eq!(config.member_timeout, Nanos::from_millis(700));
        assert_eq!(config.connect_timeout, Nanos::from_millis(12_000));
        assert_eq!(
            config.reconnect.start,
            Nanos::from_millis(12_000),
            "and what else it says of that"
        );
    }
}
