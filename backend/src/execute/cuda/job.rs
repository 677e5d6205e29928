//! A batch of the backend as a job of the pipeline, and what executes it.

use std::sync::Arc;

use baton_cuda::{CHECKSUM_BYTES, Graph, HostSource, Job, Room, Work};
use baton_topo::ModelSpec;
use baton_topo::signature::Row;
use baton_types::Nanos;

use super::super::BatchJob;
use super::super::measure::{Profiles, profiles_of};
use super::super::onnx::Graphs;

/// A model that is loaded.
#[derive(Clone, Debug)]
pub(in super::super) struct Model {
    pub(super) durations: Durations,
    /// `None`: the kernel answers with checksums.
    pub(super) graphs: Option<Arc<Graphs>>,
    pub(super) room: Room,
}

impl Model {
    pub(super) fn new(spec: &ModelSpec, graphs: Option<Graphs>) -> Self {
        let (rows, signature) = (spec.profile.batch_max(), spec.signature());
        let bytes = |row: &Row| rows as usize * row.bytes_max() as usize;
        let (row_bytes, answer_bytes) = (bytes(&signature.input), bytes(&signature.output));
        let room = Room { row_bytes, rows, answer_bytes };
        let durations = Durations::new(spec, graphs.is_some());
        Self { durations, graphs: graphs.map(Arc::new), room }
    }
}

/// How long a model's batches should execute: by the kernel exactly as planned, by a graph as long as the last of that size.
#[derive(Clone, Debug)]
pub(super) struct Durations {
    /// Of each variant.
    profiles: Profiles,
    /// By variant and rows; zero where none was seen. The kernel has no variants here.
    seen: Vec<Vec<Nanos>>,
}

impl Durations {
    fn new(spec: &ModelSpec, by_graphs: bool) -> Self {
        let variants = if by_graphs { spec.variant_count() } else { 0 };
        let rows = spec.profile.batch_max() as usize + 1;
        let seen = vec![vec![Nanos::ZERO; rows]; usize::from(variants)];
        Self { profiles: profiles_of(spec), seen }
    }

    /// How long a batch should execute.
    pub(super) fn of(&self, variant: u16, rows: u32) -> Nanos {
        let variant = usize::from(variant);
        let seen = self.seen.get(variant).and_then(|seen| seen.get(rows as usize));
        if let Some(&seen) = seen.filter(|&&seen| seen > Nanos::ZERO) {
            return seen;
        }
        self.profiles.get(variant).map_or(Nanos::ZERO, |profile| profile.latency(rows))
    }

    /// How long one did.
    pub(super) fn saw(&mut self, variant: u16, rows: u32, execution: Nanos) {
        let seen = self.seen.get_mut(usize::from(variant));
        if let Some(seen) = seen.and_then(|seen| seen.get_mut(rows as usize)) {
            *seen = execution;
        }
    }
}

/// A batch on its way.
pub(super) struct DeviceJob {
    pub(super) batch: BatchJob,
    /// What executes it; `None`: the kernel. A model that is removed meanwhile stays until its batches are back.
    pub(super) graphs: Option<Arc<Graphs>>,
}

impl Job<Graph> for DeviceJob {
    fn work(&self) -> Work<'_, Graph> {
        let (variant, rows) = (self.batch.start_by.planned(), self.batch.lens.len() as u32);
        self.graphs
            .as_ref()
            .map_or(Work::Checksum, |graphs| Work::Graph(graphs.program(variant, rows)))
    }

    fn rows(&self) -> HostSource {
        HostSource::Registered(self.batch.rows.as_ptr().addr())
    }

    fn stride(&self) -> u32 {
        self.batch.stride
    }

    fn lens(&self) -> &[u32] {
        &self.batch.lens
    }

    fn start_by(&self) -> Nanos {
        self.batch.start_by.last()
    }

    fn take(&mut self, answers: &[u8]) {
        let BatchJob { lens, outputs, start_by, .. } = &mut self.batch;
        if let Some(graphs) = &self.graphs {
            return graphs.answer(lens, answers, outputs);
        }
        let variant = u64::from(start_by.planned()) << 32;
        for (row, answer) in answers.as_chunks::<CHECKSUM_BYTES>().0.iter().enumerate() {
            let answer = u64::from_le_bytes(*answer) | variant;
            outputs.row_mut(row as u32).copy_from_slice(&answer.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_models::{captured, kernel, supernet};

    #[test]
    fn a_model_needs_room_for_its_largest_batch_and_its_answers() {
        let spec = captured(0);
        let Room { row_bytes, rows, answer_bytes } = Model::new(&spec, None).room;
        assert_eq!((row_bytes, rows, answer_bytes), (3 * 4, 3, 3 * 12));
        assert_eq!(Model::new(&kernel(), None).room, Room::of_checksums(3, 3 * 4));
    }

    #[test]
    fn a_graph_should_last_as_long_as_the_last_batch_of_its_variant_and_rows() {
        let spec = supernet("net", 0, 4, 3);
        let mut durations = Durations::new(&spec, true);
        let planned = |variant, rows| spec.profile_of(variant).latency(rows);
        durations.saw(1, 2, Nanos(7));
        durations.saw(1, 3, Nanos(9));
        durations.saw(1, 2, Nanos(5));
        for (variant, rows) in [(0, 1), (0, 2), (0, 3), (1, 1)] {
            assert_eq!(durations.of(variant, rows), planned(variant, rows), "{variant}, {rows}");
        }
        assert_eq!((durations.of(1, 2), durations.of(1, 3)), (Nanos(5), Nanos(9)));
    }

    #[test]
    fn the_kernel_lasts_as_long_as_planned_whatever_was_seen() {
        let spec = supernet("net", 0, 4, 3);
        let mut model = Model::new(&spec, None);
        model.durations.saw(1, 3, Nanos(7));
        assert_eq!(model.durations.of(1, 3), spec.profile_of(1).latency(3));
    }
}
