//! Memory as a race detector sees it.

use std::collections::BTreeMap;

/// What an actor knows of the others' operations, by actor: 0 is the host, the rest are streams.
#[derive(Clone, Default, Debug)]
pub(super) struct Clock(Vec<u64>);

impl Clock {
    pub(super) fn of(&self, actor: usize) -> u64 {
        self.0.get(actor).copied().unwrap_or(0)
    }

    pub(super) fn join(&mut self, other: &Self) {
        self.0.resize(self.0.len().max(other.0.len()), 0);
        self.0.iter_mut().zip(&other.0).for_each(|(own, other)| *own = (*own).max(*other));
    }

    pub(super) fn tick(&mut self, actor: usize) {
        self.0.resize(self.0.len().max(actor + 1), 0);
        self.0[actor] += 1;
    }
}

/// Memory that is watched.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Place {
    /// A block of the device.
    Device(u32),
    /// A block of the host that belongs to the driver.
    Host(u32),
    /// Memory of the device that belongs to a graph, by its address.
    Foreign(u64),
    /// A batch's rows, where READs land.
    Rows(usize),
}

/// An access, by whom and by which call.
#[derive(Clone, Debug)]
struct Access {
    actor: usize,
    at: u64,
    call: String,
}

#[derive(Default, Debug)]
struct Cell {
    content: Vec<u8>,
    write: Option<Access>,
    /// Since then.
    reads: Vec<Access>,
}

#[derive(Default, Debug)]
pub(super) struct Memory {
    cells: BTreeMap<Place, Cell>,
    pub(super) violations: Vec<String>,
}

impl Memory {
    pub(super) fn read(
        &mut self,
        place: Place,
        actor: usize,
        clock: &Clock,
        call: &str,
    ) -> Vec<u8> {
        let cell = self.cells.entry(place).or_default();
        let late = cell.write.iter().filter(|write| clock.of(write.actor) < write.at);
        self.violations.extend(late.map(|write| {
            format!("read of {place:?} by {call} not ordered after write by {}", write.call)
        }));
        cell.reads.push(Access { actor, at: clock.of(actor), call: call.to_owned() });
        cell.content.clone()
    }

    pub(super) fn write(
        &mut self,
        place: Place,
        content: Vec<u8>,
        (actor, clock): (usize, &Clock),
        call: &str,
    ) {
        let cell = self.cells.entry(place).or_default();
        let before = cell.reads.iter().map(|read| ("read", read));
        let before = before.chain(cell.write.iter().map(|write| ("write", write)));
        let late = before.filter(|(_, access)| clock.of(access.actor) < access.at);
        self.violations.extend(late.map(|(kind, access)| {
            format!("write of {place:?} by {call} not ordered after {kind} by {}", access.call)
        }));
        cell.reads.clear();
        cell.write = Some(Access { actor, at: clock.of(actor), call: call.to_owned() });
        cell.content = content;
    }

    /// Until an operation has written it, nothing is known of it.
    pub(super) fn poison(&mut self, place: Place) {
        self.cells.entry(place).or_default().content = vec![0xcd; 16];
    }

    pub(super) fn content(&self, place: Place) -> &[u8] {
        self.cells.get(&place).map_or(&[], |cell| &cell.content)
    }

    pub(super) fn forget(&mut self, place: Place) {
        self.cells.remove(&place);
    }
}
