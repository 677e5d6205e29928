//! How much memory the models of one GPU slot may take.
//!
//! What an engine states is taken before it loads a model, and given back after the model's memory is: by whichever thread
//! that happens on. So a model that does not fit is refused with nothing begun. What an engine measures while it loads may be
//! more, and is taken then.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::EngineError;

/// A GPU slot's memory for models. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    bound: u64,
    taken: Arc<AtomicU64>,
}

impl Budget {
    /// `None`: no bound.
    pub(super) fn new(bound: Option<u64>) -> Self {
        Self { bound: bound.unwrap_or(u64::MAX), taken: Arc::default() }
    }

    /// Takes `bytes` for a model.
    ///
    /// # Errors
    /// They are not free.
    pub(super) fn take(&self, model: &str, bytes: u64) -> Result<Share, EngineError> {
        let more = |taken: u64| taken.checked_add(bytes).filter(|&taken| taken <= self.bound);
        let taken = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.map_err(|taken| EngineError::Memory {
            model: model.to_owned(),
            needs_bytes: bytes,
            free_bytes: self.bound - taken,
        })?;
        Ok(Share { budget: self.clone(), bytes })
    }

    /// Bytes that are taken.
    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }
}

/// What one loaded model has of it. Dropping it gives that back.
#[derive(Debug)]
pub(super) struct Share {
    budget: Budget,
    bytes: u64,
}

impl Share {
    /// Takes more, up to `bytes` for the model.
    ///
    /// # Errors
    /// They are not free. It has what it had.
    pub(super) fn grow(&mut self, model: &str, bytes: u64) -> Result<(), EngineError> {
        let more = self.budget.take(model, bytes.saturating_sub(self.bytes));
        let mut more = more.map_err(|error| match error {
            EngineError::Memory { model, free_bytes, .. } => {
                let free_bytes = free_bytes + self.bytes;
                EngineError::Memory { model, needs_bytes: bytes, free_bytes }
            }
            other => other,
        })?;
        self.bytes += std::mem::take(&mut more.bytes);
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.taken.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_with_the_numbers_and_fits_once_there_is_room() {
        let budget = Budget::new(Some(10 << 20));
        let first = budget.take("first", 7 << 20).unwrap();
        let refused = budget.take("second", (3 << 20) + 1).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "model `second` takes 4 MiB of memory, and 3 MiB are free; raise model_memory_mib of its [[backend]], or serve \
             fewer or smaller models"
        );
        let exactly = budget.take("second", 3 << 20).unwrap();
        assert!(budget.take("third", 0).is_ok(), "that needs none");
        drop(first);
        assert_eq!(budget.taken(), 3 << 20);
        assert!(budget.take("third", 7 << 20).is_ok());
        drop(exactly);
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn a_share_grows_to_what_its_model_takes_and_gives_all_of_it_back() {
        let budget = Budget::new(Some(10));
        let mut share = budget.take("model", 3).unwrap();
        let _other = budget.take("other", 2).unwrap();
        share.grow("model", 8).unwrap();
        assert_eq!(budget.taken(), 10);
        share.grow("model", 4).unwrap();
        assert_eq!(budget.taken(), 10, "it takes no less than it was said to");
        let refused = share.grow("model", 9).unwrap_err();
        let (needs_bytes, free_bytes) = (9, 8);
        assert_eq!(refused, EngineError::Memory { model: "model".into(), needs_bytes, free_bytes });
        assert_eq!(budget.taken(), 10);
        drop(share);
        assert_eq!(budget.taken(), 2);
    }

    #[test]
    fn without_a_bound_everything_fits_that_can_be_counted() {
        let budget = Budget::new(None);
        let _much = budget.take("much", u64::MAX - 1).unwrap();
        assert!(budget.take("more", 2).is_err());
    }
}
