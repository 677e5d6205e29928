//! The memory of a batch slot, and how it grows for a larger model.

use std::sync::Arc;

use baton_rdma::{BatchBuffer, NoMemory, Transport};
use baton_topo::ModelSpec;

use crate::config::{BackendConfig, batch_bytes};
use crate::execute::{BatchMemory, Outputs};

/// How large a batch may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Room {
    /// Tasks.
    pub(crate) rows: u32,
    /// Bytes of their inputs.
    input_bytes: usize,
    /// Bytes of their answers.
    output_bytes: usize,
}

impl Room {
    /// For any batch of the models in the cluster file.
    pub(crate) fn at_start(config: &BackendConfig) -> Self {
        Self {
            rows: config.batch_max(),
            input_bytes: config.input_bytes(),
            output_bytes: config.output_bytes(),
        }
    }

    /// For the largest batch of a model.
    pub(crate) fn of(spec: &ModelSpec) -> Self {
        Self {
            rows: spec.profile.batch_max(),
            input_bytes: batch_bytes(spec, spec.input_bytes),
            output_bytes: batch_bytes(spec, spec.output_bytes),
        }
    }

    /// For either.
    fn or(self, other: Self) -> Self {
        Self {
            rows: self.rows.max(other.rows),
            input_bytes: self.input_bytes.max(other.input_bytes),
            output_bytes: self.output_bytes.max(other.output_bytes),
        }
    }

    fn bytes(self) -> usize {
        self.input_bytes.saturating_add(self.output_bytes)
    }
}

/// The memory of one batch slot: room for the largest batch of any model that this backend has had.
#[derive(Debug)]
pub(crate) struct Memory {
    /// Rows as they are pulled.
    pub(crate) inputs: Arc<BatchBuffer>,
    /// How long each row is; empty while the executor has them.
    pub(crate) lens: Vec<u32>,
    /// Answers as the engine writes them; empty while the executor has them.
    pub(crate) outputs: Outputs,
    room: Room,
}

impl Memory {
    /// # Errors
    /// The machine does not give that much.
    pub(crate) fn new(room: Room, source: &dyn BatchMemory) -> Result<Self, NoMemory> {
        Ok(Self {
            inputs: source.inputs(room.input_bytes)?,
            lens: Vec::with_capacity(room.rows as usize),
            outputs: source.outputs(room.rows, room.output_bytes)?,
            room,
        })
    }

    /// Whether such a batch fits.
    pub(crate) fn has(&self, room: Room) -> bool {
        self.room.or(room) == self.room
    }

    /// Bytes that it takes once it has room for such a batch too.
    pub(crate) fn bytes_with(&self, room: Room) -> usize {
        self.room.or(room).bytes()
    }

    /// Makes room for such a batch too. Only of a free batch slot: what the memory holds is lost.
    ///
    /// # Errors
    /// Why there is no more memory, and what to do. The room is what it was.
    pub(crate) fn grow<T: Transport>(
        &mut self,
        room: Room,
        source: &dyn BatchMemory,
        transport: &mut T,
    ) -> Result<(), String> {
        let room = self.room.or(room);
        let refused = |error: NoMemory| error.to_string();
        let outputs = source.outputs(room.rows, room.output_bytes).map_err(refused)?;
        if room.input_bytes > self.room.input_bytes {
            let inputs = source.inputs(room.input_bytes).map_err(refused)?;
            transport.land_in(&inputs).map_err(|error| error.to_string())?;
            transport.release(&std::mem::replace(&mut self.inputs, inputs));
        }
        self.outputs = outputs;
        self.lens.clear();
        self.lens.reserve(room.rows as usize);
        self.room = room;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use baton_rdma::wire::Role;
    use baton_rdma::{Identity, InprocNetwork};

    use super::*;
    use crate::execute::HostMemory;

    fn room(rows: u32, input_bytes: usize, output_bytes: usize) -> Room {
        Room { rows, input_bytes, output_bytes }
    }

    #[test]
    fn memory_grows_where_it_is_too_small_and_never_shrinks() {
        let mut transport =
            InprocNetwork::new().endpoint(Identity { role: Role::Backend, member: 0 });
        let mut memory = Memory::new(room(4, 4_096, 32), &HostMemory).unwrap();
        transport.land_in(&memory.inputs).unwrap();
        let before = Arc::clone(&memory.inputs);
        memory.grow(room(8, 64, 64), &HostMemory, &mut transport).unwrap();
        assert!(Arc::ptr_eq(&memory.inputs, &before), "these had room");
        assert!(memory.has(room(8, 4_096, 64)) && !memory.has(room(8, 4_097, 64)));
        memory.grow(room(1, 8_192, 8), &HostMemory, &mut transport).unwrap();
        assert!(memory.has(room(8, 8_192, 64)));
        assert_eq!(transport.counters().memory_bytes, 8_192);
    }

    #[test]
    fn memory_that_is_not_there_is_said_and_changes_nothing() {
        let mut transport =
            InprocNetwork::new().endpoint(Identity { role: Role::Backend, member: 0 });
        let usual = room(4, 4_096, 32);
        let mut memory = Memory::new(usual, &HostMemory).unwrap();
        for absurd in [room(4, usize::MAX, 32), room(4, 4_096, usize::MAX)] {
            let why = memory.grow(absurd, &HostMemory, &mut transport).unwrap_err();
            assert!(why.contains("use smaller batches"), "{why}");
            assert!(memory.has(usual) && !memory.has(absurd));
        }
    }
}
