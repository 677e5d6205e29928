//! A scheduler of several, of which one leads by a lease in etcd.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use baton_leader::{ElectionThread, LeaderEvent};
use baton_scheduler::SchedulerHandle;
use baton_topo::{Clock, Cluster, EtcdSpec, LeaseDeadline};

use super::exposed::Exposed;
use super::{DIED, begin, end};
use crate::CommandResult;
use crate::output::say;
use crate::process::Signals;

/// How often a standby looks whether a signal has come; news of the election end the wait.
const ELECTION_INTERVAL: Duration = Duration::from_millis(50);
/// How often a leader looks whether it still leads. Its threads know by themselves.
const LEADER_INTERVAL: Duration = Duration::from_millis(250);

/// Stands by until it leads, then serves until a signal comes. Ends with an error once it does not lead
/// any more: its supervisor starts it again, as a standby.
pub(super) fn run(
    cluster: &Cluster,
    etcd: &EtcdSpec,
    exposed: &Exposed,
    signals: &mut Signals,
) -> CommandResult {
    let clock = Clock::start();
    let election = ElectionThread::start(etcd, reachable(cluster.scheduler.listen)?, clock)?;
    while !signals.has_stop() {
        match election.next_event(ELECTION_INTERVAL) {
            None => {}
            Some(LeaderEvent::Standby { leader }) => {
                tracing::info!(?leader, "another scheduler leads");
                say("standby")?;
            }
            Some(LeaderEvent::Leads { epoch, lease_deadline }) => {
                tracing::info!(epoch, "leads");
                let scheduler = baton_scheduler::start_within(cluster, clock, &lease_deadline)?;
                begin(cluster, &scheduler, exposed)?;
                return lead(scheduler, &election, &lease_deadline, signals);
            }
            Some(LeaderEvent::Lost { problem }) => return Err(lost(&problem)),
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The election outlives the scheduler: its lease goes only when no thread serves any more.
fn lead(
    scheduler: SchedulerHandle,
    election: &ElectionThread,
    lease_deadline: &LeaseDeadline,
    signals: &mut Signals,
) -> CommandResult {
    while signals.wait(LEADER_INTERVAL) {
        if let Some(LeaderEvent::Lost { problem }) = election.next_event(Duration::ZERO) {
            return Err(lost(&problem));
        }
        // The agents may know before the election does.
        if lease_deadline.ends().is_none() {
            return Err(lost("the lease could not be renewed in time"));
        }
        if scheduler.has_died() {
            return Err(DIED.into());
        }
        signals.log_if_asked(|| scheduler.counters().pairs());
    }
    end(scheduler);
    Ok(ExitCode::SUCCESS)
}

fn lost(problem: &str) -> Box<dyn std::error::Error> {
    format!("this scheduler does not lead any more ({problem}); start it again as a standby").into()
}

/// Each member connects to this address from its own host.
fn reachable(listen: SocketAddr) -> Result<SocketAddr, String> {
    if listen.ip().is_unspecified() || listen.port() == 0 {
        return Err(format!(
            "members cannot reach this scheduler at {listen}; with etcd, give \
             --listen an address of this host and a port"
        ));
    }
    Ok(listen)
}
