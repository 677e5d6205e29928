//! The frontends this backend pulls from and answers to.
//!
//! In: the scheduler's membership messages, and what happens on the frontends' connections. Out:
//! which connection leads to a task's input, if its slab matches the model. The scheduler decides
//! which frontends are members. The backend reopens a broken connection to a member, and closes the
//! connection when the membership ends.

use std::net::{IpAddr, SocketAddr};

use baton_rdma::wire::{ActionTask, COLD_SINCE, Hello, PeerUp, RefuseCode, Role, SlabDesc};
use baton_rdma::{CloseReason, ConnId, LogLimit, Peer, Transport};
use baton_types::{FailReason, FrontendId, ModelId, Nanos, TaskId};

use crate::action::BatchTask;
use crate::served::ServedModel;

/// From one attempt to connect to a frontend to the next. One that stood for longer is opened anew
/// at once: what is to be read and answered then waits for it to be up, and is not lost.
const RECONNECT_AFTER: Nanos = Nanos::from_millis(50);

/// Slabs of one frontend.
const SLABS_MAX: usize = u16::MAX as usize;
const TOO_MANY: &str = "more slabs announced than a frontend can have";

/// The joined frontends.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    /// By [`FrontendId`].
    frontends: Vec<Option<Frontend>>,
    /// Slabs announced for the next `PeerUp`.
    announced: Vec<SlabDesc>,
    /// When the first broken connection is due; `None` while all stand.
    retry_at: Option<Nanos>,
    log: LogLimit,
}

#[derive(Debug)]
struct Frontend {
    addr: SocketAddr,
    token: u64,
    conn: Option<ConnId>,
    /// The protocol version of its connection; 0 until that is up.
    version: u16,
    /// When it was last tried to connect.
    tried: Option<Nanos>,
    /// When its connection last had room for an answer.
    took: Nanos,
    /// The log has that it is not connected.
    is_told: bool,
    slabs: Vec<Slab>,
}

#[derive(Clone, Copy, Debug)]
struct Slab {
    model: ModelId,
    first_slot: u32,
    slots: u32,
    input_bytes: u32,
}

impl Peers {
    /// A slab of a frontend whose `PeerUp` follows.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn announce(&mut self, desc: &SlabDesc) -> Result<(), &'static str> {
        check_range(desc)?;
        if self.announced.len() >= SLABS_MAX {
            return Err(TOO_MANY);
        }
        self.announced.push(*desc);
        Ok(())
    }

    /// True for a frontend that has joined and is not gone.
    pub(crate) fn is_up(&self, frontend: u32) -> bool {
        self.frontends.get(frontend as usize).is_some_and(Option::is_some)
    }

    /// One more slab of a frontend that has joined. Slabs in the same slots are gone: those of a model that is removed, whose
    /// slots the frontend uses again.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn extend(&mut self, desc: &SlabDesc) -> Result<(), &'static str> {
        check_range(desc)?;
        let frontend = self.frontends.get_mut(desc.frontend.get() as usize);
        let slabs = &mut frontend.and_then(Option::as_mut).ok_or("no such frontend")?.slabs;
        let slab = Slab::new(desc);
        slabs.retain(|other| !other.overlaps(&slab));
        if slabs.len() >= SLABS_MAX {
            return Err(TOO_MANY);
        }
        slabs.push(slab);
        Ok(())
    }

    /// A model was removed, and the frontends' slabs of it with it.
    pub(crate) fn forget_model(&mut self, model: ModelId) {
        let frontends = self.frontends.iter_mut().flatten();
        frontends.for_each(|frontend| frontend.slabs.retain(|slab| slab.model != model));
    }

    /// A frontend has joined; its connection is opened by [`Peers::connect_due`]. Returns its id,
    /// under which an earlier member may still be known: end that one first.
    ///
    /// # Errors
    /// What is wrong with the message or the slabs announced for it.
    pub(crate) fn up(&mut self, message: &PeerUp, seen: IpAddr) -> Result<(), &'static str> {
        let announced = std::mem::take(&mut self.announced);
        let id = message.frontend.get();
        let index = usize::from(u16::try_from(id).map_err(|_| "a frontend's id is out of range")?);
        if announced.len() != usize::from(message.slabs.get())
            || announced.iter().any(|desc| desc.frontend.get() != id)
        {
            return Err("a frontend's slabs were not announced before it");
        }
        if self.is_up(id) {
            return Err("a frontend was announced twice");
        }
        if self.frontends.len() <= index {
            self.frontends.resize_with(index + 1, || None);
        }
        self.frontends[index] = Some(Frontend {
            addr: message.addr.resolve(seen),
            token: message.token.get(),
            conn: None,
            version: 0,
            tried: None,
            took: Nanos::ZERO,
            is_told: false,
            slabs: announced.iter().map(Slab::new).collect(),
        });
        self.retry_at = Some(Nanos::ZERO);
        Ok(())
    }

    /// A frontend is gone. Returns its connection, which the caller closes.
    pub(crate) fn down(&mut self, frontend: FrontendId) -> Option<ConnId> {
        self.frontends.get_mut(usize::from(frontend.0))?.take()?.conn
    }

    /// Opens the connections that are missing, if it is time. `member` is this backend's id.
    /// Returns how many were tried.
    pub(crate) fn connect_due<T: Transport>(
        &mut self,
        now: Nanos,
        member: u32,
        transport: &mut T,
    ) -> usize {
        if self.retry_at.is_none_or(|at| at > now) {
            return 0;
        }
        self.retry_at = None;
        let mut tried = 0;
        for frontend in self.frontends.iter_mut().flatten().filter(|f| f.conn.is_none()) {
            if frontend.due() > now {
                self.retry_at = sooner(self.retry_at, frontend.due());
                continue;
            }
            tried += 1;
            frontend.tried = Some(now);
            let hello = Hello::new(Role::Backend, member, frontend.token);
            match transport.connect(frontend.addr, hello) {
                Ok(conn) => frontend.conn = Some(conn),
                Err(error) => {
                    if self.log.allows(now) {
                        tracing::warn!(addr = %frontend.addr, %error, "cannot connect to a frontend");
                    }
                    self.retry_at = sooner(self.retry_at, frontend.due());
                }
            }
        }
        tried
    }

    /// Writes down that a connection ended, unless too many do. A frontend that has gone is tried again until the scheduler
    /// says so: that it refuses then is no news.
    pub(crate) fn log_end(&mut self, frontend: FrontendId, reason: &CloseReason, now: Nanos) {
        let known = self.frontends.get_mut(usize::from(frontend.0)).and_then(Option::as_mut);
        let was_told = known.is_some_and(|known| std::mem::replace(&mut known.is_told, true));
        if !was_told && self.log.allows(now) {
            tracing::info!(frontend = frontend.0, %reason, "a frontend's connection ended");
        }
    }

    /// What the log does not show.
    pub(crate) fn tell_left_out(&mut self, now: Nanos) {
        if let Some(count) = self.log.left_out(now) {
            tracing::warn!("... and {count} more with frontends in the last second");
        }
    }

    /// When [`Peers::connect_due`] has something to do.
    pub(crate) fn next_retry(&self) -> Option<Nanos> {
        self.retry_at
    }

    /// A connection is up. False if it does not lead to the frontend we wanted. We can be quicker
    /// than the scheduler's answer to the frontend's own join: until then it calls itself 0.
    pub(crate) fn opened(&mut self, conn: ConnId, peer: &Peer) -> bool {
        let Some(owner) = self.owner(conn) else { return false };
        let is_it = peer.member == u32::from(owner.0) || peer.member == 0;
        let is_wanted = !peer.accepted && peer.role == Role::Frontend && is_it;
        if let Some(frontend) = self.frontends[usize::from(owner.0)].as_mut() {
            frontend.is_told &= !is_wanted;
            frontend.version = peer.version;
        }
        is_wanted
    }

    /// A connection is gone. Returns the member it led to; it will be tried again.
    pub(crate) fn closed(&mut self, conn: ConnId, now: Nanos) -> Option<FrontendId> {
        let owner = self.owner(conn)?;
        let frontend = self.frontends[usize::from(owner.0)].as_mut()?;
        (frontend.conn, frontend.version) = (None, 0);
        self.retry_at = sooner(self.retry_at, frontend.due().max(now));
        Some(owner)
    }

    /// True if every one of these tasks has a frontend that is a member, as far as this backend knows.
    pub(crate) fn know_all(&self, tasks: &[ActionTask]) -> bool {
        tasks.iter().all(|task| {
            let frontend = TaskId(task.task.get()).frontend();
            self.known(frontend).is_some()
        })
    }

    /// The connection to a frontend, which may still be opening.
    pub(crate) fn conn(&self, frontend: FrontendId) -> Option<ConnId> {
        self.known(frontend)?.conn
    }

    /// Whether answers to the frontend may say that their task was cold.
    pub(crate) fn hears_cold(&self, frontend: FrontendId) -> bool {
        self.known(frontend).is_some_and(|frontend| frontend.version >= COLD_SINCE)
    }

    fn known(&self, frontend: FrontendId) -> Option<&Frontend> {
        self.frontends.get(usize::from(frontend.0))?.as_ref()
    }

    /// An answer went to a frontend.
    pub(crate) fn took_answer(&mut self, frontend: FrontendId, now: Nanos) {
        if let Some(Some(frontend)) = self.frontends.get_mut(usize::from(frontend.0)) {
            frontend.took = now;
        }
    }

    /// This process was stopped for `pause`, which does not count against any frontend.
    pub(crate) fn excuse(&mut self, pause: Nanos) {
        self.frontends
            .iter_mut()
            .flatten()
            .for_each(|frontend| frontend.took = frontend.took + pause);
    }

    /// When the last answer of any batch went to a frontend.
    pub(crate) fn last_took(&self, frontend: FrontendId) -> Nanos {
        self.known(frontend).map_or(Nanos::ZERO, |frontend| frontend.took)
    }

    /// Where `task`'s input can be read, for an execution of `model`.
    ///
    /// # Errors
    /// [`FailReason::FetchFailed`] if its frontend is unknown or out of reach,
    /// [`FailReason::WrongSize`] if its slot holds no input of that model, or one of a length that the model
    /// does not take.
    pub(crate) fn locate(
        &self,
        task: BatchTask,
        model: &ServedModel,
    ) -> Result<ConnId, FailReason> {
        let frontend = self
            .frontends
            .get(usize::from(task.id.frontend().0))
            .and_then(Option::as_ref)
            .ok_or(FailReason::FetchFailed)?;
        let slab = frontend.slabs.iter().find(|slab| slab.holds(task.id.slot()));
        let fits = model.takes(task.input_bytes)
            && slab.is_some_and(|slab| {
                slab.model == model.id && slab.input_bytes == model.input_bytes
            });
        if !fits {
            return Err(FailReason::WrongSize);
        }
        frontend.conn.ok_or(FailReason::FetchFailed)
    }

    /// Closes every connection, telling the frontends why. Returns how many.
    pub(crate) fn close_all<T: Transport>(&self, transport: &mut T, why: &str) -> usize {
        let mut closed = 0;
        for conn in self.frontends.iter().flatten().filter_map(|frontend| frontend.conn) {
            transport.close(conn, RefuseCode::Shutdown, why);
            closed += 1;
        }
        closed
    }

    fn owner(&self, conn: ConnId) -> Option<FrontendId> {
        let is_owner = |f: &Option<Frontend>| f.as_ref().is_some_and(|f| f.conn == Some(conn));
        let index = self.frontends.iter().position(is_owner)?;
        Some(FrontendId(index as u16))
    }
}

impl Frontend {
    /// When it may be tried to connect.
    fn due(&self) -> Nanos {
        self.tried.map_or(Nanos::ZERO, |at| at + RECONNECT_AFTER)
    }
}

fn sooner(known: Option<Nanos>, at: Nanos) -> Option<Nanos> {
    Some(known.map_or(at, |known| known.min(at)))
}

fn check_range(desc: &SlabDesc) -> Result<(), &'static str> {
    let end = desc.first_slot.get().checked_add(desc.slots.get());
    let is_inside = end.is_some_and(|end| end <= TaskId::SLOTS_MAX);
    is_inside.then_some(()).ok_or("a slab's slots are out of range")
}

impl Slab {
    fn new(desc: &SlabDesc) -> Self {
        Self {
            model: ModelId(desc.model.get()),
            first_slot: desc.first_slot.get(),
            slots: desc.slots.get(),
            input_bytes: desc.input_bytes.get(),
        }
    }

    fn overlaps(&self, other: &Self) -> bool {
        // Neither ends beyond all slots.
        self.first_slot < other.first_slot + other.slots
            && other.first_slot < self.first_slot + self.slots
    }

    fn holds(&self, slot: u32) -> bool {
        slot.checked_sub(self.first_slot).is_some_and(|at| at < self.slots)
    }
}

#[cfg(test)]
#[path = "peers_tests.rs"]
mod tests;
