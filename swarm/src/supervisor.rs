//! What supervisors and applications do: start processes, notice that they ended, start them again.

use baton_backend::BackendError;
use baton_core::Nanos;
use baton_rdma::wire::RefuseCode;
use baton_topo::Agent as _;

use crate::faults::Who;
use crate::network::HostId;
use crate::process::BackendProcess;
use crate::run::{Run, Step};

/// From a process's end to its next start.
const RESTART: Nanos = Nanos::from_millis(15);

/// A backend that leaves waits for the word of the ControlThread, also while ModelThreads say farewell. Returns what is not
/// so.
fn left_in_error(process: &BackendProcess) -> Option<String> {
    let Err(BackendError::Membership(error)) = process.worker.result()? else { return None };
    let is_farewell = error.code() == Some(RefuseCode::Shutdown);
    let (at, error) = (process.at, error.to_string());
    (process.is_leaving && is_farewell && error.contains("ModelThread"))
        .then(|| format!("backend {at} was asked to leave, and ended with an error: {error}"))
}

impl Run {
    pub(crate) fn start(&mut self, who: Who) {
        self.starting.retain(|&other| other != who);
        match who {
            Who::Scheduler if self.world.scheduler.is_none() => {
                // A wall stands before the former one: the next hears everybody.
                let living: Vec<HostId> = self.living().collect();
                self.silent.retain(|host, _| !living.contains(host));
                self.world.start_scheduler();
            }
            Who::Backend(at) if self.backends[at].is_none() => {
                self.backends[at] = Some(self.world.start_backend(at));
            }
            Who::Frontend(at) if self.frontends[at].is_none() => {
                self.frontends[at] = Some(self.world.start_frontend(at));
            }
            _ => {}
        }
    }

    pub(crate) fn start_after(&mut self, who: Who, after: Nanos) {
        if !self.starting.contains(&who) {
            self.starting.push(who);
            self.at(self.world.now + after, Step::Start(who));
        }
    }

    /// What a supervisor does: takes note of processes that ended, and starts them again.
    pub(crate) fn supervise(&mut self) {
        for at in 0..self.backends.len() {
            let Some(place) = self.backends[at] else { continue };
            let process = self.world.backends[place].as_ref().expect("it is the present life");
            if let Some(result) = process.worker.result() {
                let line = format!("backend {at} ended: {result:?}");
                self.world.trace.event(self.world.now, format_args!("{line}"));
                self.past.backend(process);
                if let Some(what) = left_in_error(process) {
                    self.world.fail(what);
                }
                self.world.backends[place] = None;
                self.backends[at] = None;
                self.start_after(Who::Backend(at), RESTART);
            }
        }
        for at in 0..self.frontends.len() {
            self.supervise_frontend(at);
        }
        let frontends = &mut self.world.frontends;
        self.departing.retain(|&place| {
            let over = frontends[place].as_ref().is_none_or(|process| process.io.finished());
            if over {
                frontends[place] = None;
            }
            !over
        });
    }

    /// An application that could not join, or whose client has found a scheduler it cannot go on with,
    /// connects anew.
    fn supervise_frontend(&mut self, at: usize) {
        let Some(place) = self.frontends[at] else { return };
        let process = self.world.frontends[place].as_mut().expect("it is the present life");
        if process.refused.is_none() && !process.io.finished() {
            return;
        }
        let line = match (&process.refused, process.client().and_then(|client| client.loss())) {
            (Some(error), _) => format!("frontend {at} could not join: {error}"),
            (None, loss) => format!("frontend {at} lost its scheduler: {loss:?}"),
        };
        self.past.joins_given_up += u64::from(process.refused.is_some());
        self.world.trace.event(self.world.now, format_args!("{line}"));
        self.end_frontend(at);
        self.start_after(Who::Frontend(at), RESTART);
    }

    /// The process is over; what it counted is kept.
    pub(crate) fn end_frontend(&mut self, at: usize) {
        let Some(place) = self.frontends[at].take() else { return };
        let world = &mut self.world;
        if let Some(process) = &world.frontends[place] {
            self.past.frontend(process);
        }
        self.applications.lose(world, place);
        world.frontends[place] = None;
    }
}
