//! Model → rank: the latest candidate of every model, from one ModelThread.
//!
//! Candidates supersede one another, so this is not a queue: a slot per model holds the newest
//! value, and a dirty bit says that it changed. One writer (the ModelThread), one reader (the
//! RankThread), no lock; a value overwritten before it was read was not worth reading.

use std::sync::Arc;

use baton_core::{Candidate, Nanos};

use crate::sync::{AtomicU64, Ordering, fence};

/// A candidate and the number of grants it takes into account.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Published {
    /// `None`: nothing to run.
    pub candidate: Option<Candidate>,
    /// See [`baton_core::RankState::on_candidate`].
    pub grants: u32,
    /// How often the model had moved to another ModelThread: the board of its last home counts.
    pub moves: u32,
}

/// Makes a board for `models` models, by their ids. A thread writes those that live on it.
pub(crate) fn board(models: usize) -> (BoardWriter, BoardReader) {
    let shared = Arc::new(Shared {
        slots: (0..models).map(|_| LatestSlot::default()).collect(),
        dirty: (0..models.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
    });
    (BoardWriter(Arc::clone(&shared)), BoardReader(shared))
}

/// The ModelThread's end.
#[derive(Debug)]
pub(crate) struct BoardWriter(Arc<Shared>);

/// The RankThread's end.
#[derive(Debug)]
pub struct BoardReader(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    slots: Box<[LatestSlot]>,
    /// Bit m of word m / 64: slot m has been written since it was last collected.
    dirty: Box<[AtomicU64]>,
}

impl BoardWriter {
    /// The model's candidate as last published here; none before that.
    pub(crate) fn last(&self, model: usize) -> Published {
        let words = self.0.slots[model].read();
        unpack(words.expect("nobody else writes"))
    }

    /// Replaces the model's candidate.
    pub(crate) fn publish(&self, model: usize, value: Published) {
        self.0.slots[model].write(pack(value));
        self.0.dirty[model / 64].fetch_or(1 << (model % 64), Ordering::Release);
    }
}

impl BoardReader {
    /// Hands every candidate that changed since the last call to `each`; returns how many.
    pub fn collect(&self, mut each: impl FnMut(usize, Published)) -> usize {
        let mut found = 0;
        for (word, dirty) in self.0.dirty.iter().enumerate() {
            if dirty.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut bits = dirty.swap(0, Ordering::Acquire);
            while bits != 0 {
                let model = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                // A slot being written right now is marked dirty again when the write is done.
                if let Some(words) = self.0.slots[model].read() {
                    each(model, unpack(words));
                    found += 1;
                }
            }
        }
        found
    }

    /// True if a candidate may have changed since the last [`BoardReader::collect`].
    pub fn is_dirty(&self) -> bool {
        self.0.dirty.iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }
}

const WORDS: usize = 6;

/// A sequence lock over atomics: the version is odd while the words are being written. The reader
/// never waits for the writer. One cache line, so that neighbours do not disturb each other.
#[derive(Default, Debug)]
#[repr(align(64))]
struct LatestSlot {
    version: AtomicU64,
    words: [AtomicU64; WORDS],
}

impl LatestSlot {
    /// One writer only.
    fn write(&self, words: [u64; WORDS]) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Relaxed);
        // No word may become visible before the odd version.
        fence(Ordering::Release);
        for (slot, word) in self.words.iter().zip(words) {
            slot.store(word, Ordering::Relaxed);
        }
        self.version.store(version + 2, Ordering::Release);
    }

    /// The words, or `None` if a write was in progress.
    fn read(&self) -> Option<[u64; WORDS]> {
        let before = self.version.load(Ordering::Acquire);
        let words = std::array::from_fn(|i| self.words[i].load(Ordering::Relaxed));
        // The words are read before the version is looked at again.
        fence(Ordering::Acquire);
        let after = self.version.load(Ordering::Relaxed);
        (before == after && before.is_multiple_of(2)).then_some(words)
    }
}

/// A batch of zero marks "no candidate"; no candidate has one.
fn pack(value: Published) -> [u64; WORDS] {
    let grants = u64::from(value.grants) << 32;
    let moves = u64::from(value.moves) << 32;
    match value.candidate {
        None => [grants, 0, 0, 0, moves, 0],
        Some(c) => {
            let head = grants | u64::from(c.batch);
            let tail = moves | u64::from(c.bad_rate);
            [head, c.exec_at.0, c.invalid_after.0, c.urgency.0, tail, c.delay.0]
        }
    }
}

fn unpack([head, exec_at, invalid_after, urgency, tail, delay]: [u64; WORDS]) -> Published {
    let batch = head as u32;
    let candidate = (batch > 0).then_some(Candidate {
        batch,
        exec_at: Nanos(exec_at),
        invalid_after: Nanos(invalid_after),
        urgency: Nanos(urgency),
        bad_rate: tail as u32,
        delay: Nanos(delay),
    });
    Published { candidate, grants: (head >> 32) as u32, moves: (tail >> 32) as u32 }
}

/// Every interleaving and every reordering the memory model allows, in miniature:
/// `RUSTFLAGS="--cfg loom" cargo test -p baton-scheduler --release --lib loom`
#[cfg(all(test, loom))]
mod loom_models {
    use super::*;

    fn published(n: u64) -> Published {
        let [batch, bad_rate, grants, moves] = [n as u32; 4];
        let [exec_at, invalid_after, urgency, delay] = [Nanos(n); 4];
        let candidate = Candidate { batch, exec_at, invalid_after, urgency, bad_rate, delay };
        Published { candidate: Some(candidate), grants, moves }
    }

    #[test]
    fn no_value_is_torn_and_the_last_one_arrives() {
        loom::model(|| {
            let (writer, reader) = board(1);
            let writing = loom::thread::spawn(move || {
                (1..=2).for_each(|n| writer.publish(0, published(n)));
            });
            let mut last = 0;
            let mut collect = || {
                reader.collect(|_, value| {
                    let n = u64::from(value.grants);
                    assert_eq!(value, published(n), "torn");
                    assert!(n >= last, "went back");
                    last = n;
                });
            };
            collect();
            writing.join().expect("the writer does not panic");
            collect();
            assert_eq!(last, 2, "the last value was lost");
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn published(n: u64) -> Published {
        let candidate = Candidate {
            batch: n as u32,
            exec_at: Nanos(n),
            invalid_after: Nanos(n + 1),
            urgency: Nanos(n + 2),
            bad_rate: n as u32 + 4,
            delay: Nanos(n + 3),
        };
        let candidate = (n > 0).then_some(candidate);
        Published { candidate, grants: n as u32, moves: n as u32 + 5 }
    }

    #[test]
    fn only_what_changed_is_collected_and_only_the_latest() {
        let (writer, reader) = board(130);
        for model in [0, 64, 129] {
            writer.publish(model, published(1));
            writer.publish(model, published(2));
        }
        let mut seen = Vec::new();
        assert_eq!(reader.collect(|model, value| seen.push((model, value))), 3);
        assert_eq!(seen, [0, 64, 129].map(|model| (model, published(2))));
        assert_eq!(reader.collect(|_, _| panic!("nothing changed")), 0);
    }

    #[test]
    fn no_candidate_survives_the_packing() {
        let none = Published { candidate: None, grants: u32::MAX, moves: u32::MAX - 1 };
        assert_eq!(unpack(pack(none)), none);
        assert_eq!(unpack(pack(published(7))), published(7));
    }

    #[test]
    fn a_reader_beside_a_writer_never_sees_a_torn_value_and_ends_with_the_last() {
        const LAST: u64 = if cfg!(miri) { 100 } else { 200_000 };
        let (writer, reader) = board(1);
        let writing = std::thread::spawn(move || {
            (1..=LAST).for_each(|n| writer.publish(0, published(n)));
        });
        let mut last = 0;
        while last < LAST {
            reader.collect(|_, value| {
                let candidate = value.candidate.expect("never cleared");
                let n = candidate.exec_at.0;
                assert_eq!(value, published(n), "torn");
                assert!(n >= last, "went back");
                last = n;
            });
            std::thread::yield_now();
        }
        writing.join().expect("the writer does not panic");
    }
}
