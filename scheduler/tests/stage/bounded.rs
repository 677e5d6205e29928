//! How a stage is built.

use baton_rdma::wire::{Role, VERSION_MAX};
use baton_rdma::{Identity, InprocNetwork, TcpConfig, Transport};
use baton_scheduler::Assembly;
use baton_topo::Cluster;

use super::{Stage, ms};

impl Stage {
    /// With these bounds of the ControlThread's connections.
    pub fn bounded(cluster: &Cluster, bounds: TcpConfig) -> Self {
        let network = InprocNetwork::new();
        let identity = |role, member| Identity { role, member };
        let control = network.endpoint_with(identity(Role::Control, 0), bounds);
        let addr = control.local_addr();
        let threads = (0..cluster.scheduler.model_threads)
            .map(|number| network.endpoint(identity(Role::ModelThread, number)))
            .collect();
        let scheduler = Assembly::new(cluster, control, threads);
        Self { network, scheduler, now: ms(1_000), speaks: VERSION_MAX, control: addr }
    }
}
