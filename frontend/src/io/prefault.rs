//! Takes the pages of a client's inputs before its tasks need them, a step in each pass.
//!
//! A page that the kernel gives when an input is first written costs that task several times what the writing does, and all of them
//! cost the first half second of an overload. With RDMA registration takes all pages. Without it, a client of many
//! models may have far more memory reserved than it ever uses: so only a part is taken ahead, and the rest as it is used. Slots are
//! taken last in, first out: the pages at the beginning of each slab are those that are used.

use baton_rdma::Transport;
use baton_types::Nanos;

use super::ClientIo;
use super::models::{Models, Served};

/// Bytes of inputs that a client takes ahead, of all its models.
const MOST: usize = 256 << 20;
/// Bytes in one pass: less than a millisecond, as a rule. Whole pages.
const STEP: usize = 2 << 20;

/// Of one model's inputs.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Prefaulted {
    /// Bytes that are there.
    bytes: usize,
    /// There is nothing left to take.
    is_over: bool,
}

impl<T: Transport> ClientIo<T> {
    pub(super) fn prefault(&mut self) {
        let Some(serving) = self.serving.as_mut().filter(|serving| serving.prefaults) else {
            return;
        };
        serving.prefaults = serving.models.prefault_next(STEP, MOST);
        self.hand_over();
    }

    /// The next pass is due at once while there is more to take.
    pub(super) fn prefault_timer(&self) -> Option<Nanos> {
        self.serving.as_ref()?.prefaults.then_some(Nanos::ZERO)
    }
}

impl Models {
    /// At most `step` bytes, and `most` in all. False if there is nothing more to take.
    fn prefault_next(&mut self, step: usize, most: usize) -> bool {
        let taken: usize = self.iter().map(|served| served.prefaulted.bytes).sum();
        let mut left = step.min(most.saturating_sub(taken));
        for served in self.iter_mut().filter(|served| !served.prefaulted.is_over) {
            if left == 0 {
                break;
            }
            left -= served.prefault(left);
        }
        left == 0 && taken < most
    }
}

impl Served {
    /// At most `most` bytes; returns how many.
    fn prefault(&mut self, most: usize) -> usize {
        let Prefaulted { bytes, is_over } = &mut self.prefaulted;
        let got = self.model.slabs.prefault(*bytes, most);
        *bytes += got;
        *is_over = got < most;
        got
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use baton_rdma::Backing;
    use baton_topo::signature::{Row, Signature};
    use baton_types::ModelId;

    use super::*;
    use crate::served::Announced;

    const PAGE: usize = 4_096;

    /// Each with 16 slots of less than a page.
    fn models(count: u32) -> Models {
        let mut models = Models::new(16, 0);
        for id in 0..count {
            let announced = Announced {
                id: ModelId(id),
                name: Arc::from(format!("{id}")),
                slo: Nanos::from_millis(10),
                input_bytes: 3_900,
                output_bytes: 8,
                signature: Arc::new(Signature {
                    input: Row::opaque("in", 3_900),
                    output: Row::opaque("out", 8),
                }),
                variants: None,
                thread: 0,
            };
            models.reserve(&announced, Backing::Private).unwrap();
        }
        models
    }

    fn taken(models: &Models) -> Vec<usize> {
        models.iter().map(|served| served.prefaulted.bytes / PAGE).collect()
    }

    #[test]
    fn a_step_takes_so_many_pages_of_one_model_after_the_other_and_the_last_says_so() {
        let mut models = models(3);
        let mut steps = Vec::new();
        while models.prefault_next(20 * PAGE, 1_000 * PAGE) {
            steps.push(taken(&models));
        }
        assert_eq!(steps, [[16, 4, 0], [16, 16, 8]]);
        assert_eq!(taken(&models), [16, 16, 16]);
        assert!(!models.prefault_next(20 * PAGE, 1_000 * PAGE));
    }

    #[test]
    fn what_is_taken_ahead_is_bounded_for_all_models_together() {
        let mut models = models(3);
        while models.prefault_next(7 * PAGE, 25 * PAGE) {}
        assert_eq!(taken(&models), [16, 9, 0]);
        assert!(!models.prefault_next(7 * PAGE, 25 * PAGE));
        assert_eq!(taken(&models), [16, 9, 0]);
    }
}
