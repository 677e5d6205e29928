//! Model → rank: the latest candidate of every model, from one ModelThread.
//!
//! Candidates supersede one another, so this is not a queue: a slot per model holds the newest
//! value. One writer (the ModelThread), one reader (the RankThread), no lock; a value overwritten
//! before it was read was not worth reading. Which slots have changed, the writer keeps as a set of
//! bits until it tells the reader (`link`), once per pass.

use std::array;
use std::sync::Arc;

use baton_core::{Candidate, Nanos};

use crate::sync::{AtomicU64, Ordering, fence};

/// A candidate and the number of grants it takes into account.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PublishedCandidate {
    /// `None`: nothing to run.
    pub candidate: Option<Candidate>,
    /// See [`baton_core::RankState::on_candidate`].
    pub grants: u32,
    /// How often the model had moved to another ModelThread: the board of its last home counts.
    pub moves: u32,
}

/// Makes a board for `models` models, by their ids. A thread writes those that live on it.
pub(crate) fn board(models: usize) -> (BoardWriter, BoardReader) {
    let slots: Arc<[LatestSlot]> = (0..models).map(|_| LatestSlot::default()).collect();
    let changed = vec![0; models.div_ceil(64)].into_boxed_slice();
    (BoardWriter { slots: Arc::clone(&slots), changed }, BoardReader(slots))
}

/// The ModelThread's end.
#[derive(Debug)]
pub(crate) struct BoardWriter {
    slots: Arc<[LatestSlot]>,
    /// Bit m of word m / 64: slot m holds a candidate that the writer has not announced yet.
    changed: Box<[u64]>,
}

/// The RankThread's end.
#[derive(Debug)]
pub struct BoardReader(Arc<[LatestSlot]>);

impl BoardWriter {
    /// The model's candidate as last published here; none before that.
    pub(crate) fn last(&self, model: usize) -> PublishedCandidate {
        unpack(self.slots[model].read().expect("no other thread writes"))
    }

    /// Replaces the model's candidate.
    pub(crate) fn publish(&mut self, model: usize, value: PublishedCandidate) {
        self.slots[model].write(pack(value));
        self.changed[model / 64] |= 1 << (model % 64);
    }

    /// Hands the bits of each word with changed slots to `tell`, until it returns false. True if
    /// `tell` took them all.
    pub(crate) fn tell_changed(&mut self, mut tell: impl FnMut(u32, u64) -> bool) -> bool {
        let changed = self.changed.iter_mut().enumerate().filter(|(_, models)| **models != 0);
        for (word, models) in changed {
            if !tell(word as u32, *models) {
                return false;
            }
            *models = 0;
        }
        true
    }
}

impl BoardReader {
    /// Appends the candidates of the models that the bits of a word stand for to `found`. A slot that
    /// is being written is left out: the writer has yet to tell of it.
    ///
    /// Nothing is done with one slot before the next is read, so that their cache lines travel at
    /// the same time.
    pub(crate) fn read(
        &self,
        word: u32,
        mut models: u64,
        found: &mut Vec<(usize, PublishedCandidate)>,
    ) {
        while models != 0 {
            let model = word as usize * 64 + models.trailing_zeros() as usize;
            models &= models - 1;
            found.extend(self.0[model].read().map(|words| (model, unpack(words))));
        }
    }
}

const WORDS: usize = 7;

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
        let words = array::from_fn(|i| self.words[i].load(Ordering::Relaxed));
        // The words are read before the version is looked at again.
        fence(Ordering::Acquire);
        let after = self.version.load(Ordering::Relaxed);
        (before == after && before.is_multiple_of(2)).then_some(words)
    }
}

/// A batch of zero marks "no candidate"; no candidate has one.
fn pack(value: PublishedCandidate) -> [u64; WORDS] {
    let grants = u64::from(value.grants) << 32;
    let moves = u64::from(value.moves) << 32;
    match value.candidate {
        None => [grants, 0, 0, 0, moves, 0, 0],
        Some(c) => {
            let head =
                grants | u64::from(c.run) << 22 | u64::from(c.excess) << 11 | u64::from(c.batch);
            let tail = moves | u64::from(c.dispersion) << 16 | u64::from(c.bad_rate.min(0xffff));
            let delays = halves(c.delay.0, (c.invalid_after - c.latest).0);
            let lengths = halves(c.latency.0 >> COARSE, c.slack.0 >> COARSE);
            let order = halves((c.invalid_after - c.urgency).0 >> COARSE, c.alone.0 >> COARSE);
            [head, c.exec_at.0, c.invalid_after.0, order, tail, delays, lengths]
        }
    }
}

/// For lengths that say which slots are kept, which batches are too long, or who comes first, not when
/// anything starts: units of 1.024 µs do, and an hour fits 32 bits.
pub(crate) const COARSE: u32 = 10;

/// Two numbers in a word. What does not fit 32 bits becomes the largest that does: 4.3 s of delivery,
/// or of growth, is as good as more.
fn halves(high: u64, low: u64) -> u64 {
    let fit = |number: u64| number.min(u32::MAX.into());
    fit(high) << 32 | fit(low)
}

fn unpack(words: [u64; WORDS]) -> PublishedCandidate {
    let [head, exec_at, invalid_after, order, tail, delays, lengths] = words;
    let (delay, growth) = (delays >> 32, delays as u32);
    let [batch, excess, run] = [head, head >> 11, head >> 22].map(|bits| bits as u16 & 0x7ff);
    let candidate = (batch > 0).then_some(Candidate {
        batch: batch.into(),
        exec_at: Nanos(exec_at),
        invalid_after: Nanos(invalid_after),
        urgency: Nanos(invalid_after) - Nanos((order >> 32) << COARSE),
        bad_rate: u32::from(tail as u16),
        delay: Nanos(delay),
        latest: Nanos(invalid_after) - Nanos(growth.into()),
        latency: Nanos((lengths >> 32) << COARSE),
        alone: Nanos(u64::from(order as u32) << COARSE),
        slack: Nanos(u64::from(lengths as u32) << COARSE),
        dispersion: (tail >> 16) as u16,
        excess,
        run: run & Candidate::RUN_MAX,
    });
    PublishedCandidate { candidate, grants: (head >> 32) as u32, moves: (tail >> 32) as u32 }
}

/// A value that differs in every field from that of another `n`; nothing for 0.
#[cfg(test)]
fn published(n: u64) -> PublishedCandidate {
    let candidate = Candidate {
        batch: n as u32 % 1024 + 1,
        exec_at: Nanos(n),
        invalid_after: Nanos(n + (9 << COARSE)),
        urgency: Nanos(n + (2 << COARSE)),
        bad_rate: (n as u16).wrapping_add(4).into(),
        delay: Nanos(n + 3),
        latest: Nanos(n + 4),
        latency: Nanos(n << COARSE),
        alone: Nanos((n + 2) << COARSE),
        slack: Nanos((n + 1) << COARSE),
        dispersion: (n as u16).wrapping_add(6),
        excess: n as u16 & Candidate::NOT_EARLY,
        run: (n as u16).wrapping_add(7) & Candidate::RUN_MAX,
    };
    let candidate = (n > 0).then_some(candidate);
    PublishedCandidate { candidate, grants: n as u32, moves: n as u32 + 5 }
}

/// Every interleaving and every reordering the memory model allows, in miniature:
/// `RUSTFLAGS="--cfg loom" cargo test -p baton-scheduler --release --lib loom`
#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use crate::ring::ring;

    #[test]
    fn no_value_is_torn_and_the_last_one_arrives() {
        loom::model(|| {
            let (mut writer, reader) = board(1);
            let (mut sender, mut receiver) = ring::<2>(2);
            let writing = loom::thread::spawn(move || {
                for n in 1..=2 {
                    writer.publish(0, published(n));
                    assert!(writer.tell_changed(|word, models| sender.push([word.into(), models])));
                    sender.announce();
                }
            });
            let (mut last, mut told, mut found) = (0, Vec::new(), Vec::new());
            let mut collect = || {
                receiver.take_all(&mut told);
                for [word, models] in told.drain(..) {
                    reader.read(word as u32, models, &mut found);
                }
                for (_, value) in found.drain(..) {
                    let n = u64::from(value.grants);
                    assert_eq!(value, published(n), "torn");
                    assert!(n >= last, "went back");
                    last = n;
                }
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

    /// What the writer has to tell.
    fn changed(writer: &mut BoardWriter) -> Vec<(u32, u64)> {
        let mut told = Vec::new();
        writer.tell_changed(|word, models| {
            told.push((word, models));
            true
        });
        told
    }

    #[test]
    fn only_what_changed_is_announced_and_only_the_latest_is_read() {
        let (mut writer, reader) = board(130);
        for model in [0, 64, 65, 129] {
            writer.publish(model, published(1));
            writer.publish(model, published(2));
        }
        let told = changed(&mut writer);
        assert_eq!(told, [(0, 1), (1, 3), (2, 2)]);
        let mut seen = Vec::new();
        told.into_iter().for_each(|(word, models)| reader.read(word, models, &mut seen));
        assert_eq!(seen, [0, 64, 65, 129].map(|model| (model, published(2))));
        assert_eq!(changed(&mut writer), [], "all of it was announced");
    }

    #[test]
    fn what_finds_no_room_is_announced_later() {
        let (mut writer, _reader) = board(130);
        [0, 64, 129].into_iter().for_each(|model| writer.publish(model, published(1)));
        let mut room = 1;
        let told_all = writer.tell_changed(|_, _| {
            room -= 1;
            room >= 0
        });
        assert!(!told_all);
        writer.publish(70, published(1));
        assert_eq!(changed(&mut writer), [(1, 1 | 1 << 6), (2, 2)]);
    }

    #[test]
    fn many_changes_of_one_word_are_all_read() {
        let (mut writer, reader) = board(64);
        (0..64).for_each(|model| writer.publish(model, published(model as u64 + 1)));
        let mut seen = Vec::new();
        reader.read(0, u64::MAX, &mut seen);
        let all: Vec<_> = (0..64).map(|model| (model, published(model as u64 + 1))).collect();
        assert_eq!(seen, all);
    }

    #[test]
    fn no_candidate_survives_the_packing() {
        let none = PublishedCandidate { candidate: None, grants: u32::MAX, moves: u32::MAX - 1 };
        assert_eq!(unpack(pack(none)), none);
        assert_eq!(unpack(pack(published(7))), published(7));
    }

    /// Whatever the numbers: a model that loses all its tasks does not look like one that loses none.
    #[test]
    fn what_is_too_large_for_its_place_counts_as_the_largest_that_is_not() {
        let candidate = published(7).candidate.unwrap();
        let packed = |candidate| {
            let value = PublishedCandidate { candidate: Some(candidate), grants: 1, moves: 2 };
            unpack(pack(value)).candidate.unwrap()
        };
        for bad_rate in [0, 1, 0xfffe, 0xffff, 0x1_0000, u32::MAX] {
            let expected = Candidate { bad_rate: bad_rate.min(0xffff), ..candidate };
            assert_eq!(packed(Candidate { bad_rate, ..candidate }), expected);
        }
        let (fine, coarse) = (u64::from(u32::MAX), u64::from(u32::MAX) << COARSE);
        for (span, fine, coarse) in [
            (Nanos(5 << COARSE), 5 << COARSE, 5 << COARSE),
            (Nanos(fine + 1), fine, (fine + 1) >> COARSE << COARSE),
            (Nanos(coarse + (1 << COARSE)), fine, coarse),
        ] {
            let urgency = candidate.invalid_after;
            let given = Candidate {
                delay: span,
                latency: span,
                alone: span,
                slack: span,
                urgency,
                ..candidate
            };
            let (delay, coarse) = (Nanos(fine), Nanos(coarse));
            let expected =
                Candidate { delay, latency: coarse, alone: coarse, slack: coarse, ..given };
            assert_eq!(packed(given), expected);
        }
    }

    #[test]
    fn a_reader_beside_a_writer_never_sees_a_torn_value_and_ends_with_the_last() {
        const LAST: u64 = if cfg!(miri) { 100 } else { 200_000 };
        let (mut writer, reader) = board(1);
        let writing = std::thread::spawn(move || {
            (1..=LAST).for_each(|n| writer.publish(0, published(n)));
        });
        let (mut last, mut found) = (0, Vec::new());
        while last < LAST {
            let is_over = writing.is_finished();
            reader.read(0, 1, &mut found);
            for (_, value) in found.drain(..) {
                let n = value.candidate.map_or(0, |candidate| candidate.exec_at.0);
                assert!(n == 0 || value == published(n), "torn");
                assert!(n >= last, "went back");
                last = n;
            }
            assert!(last == LAST || !is_over, "the last value was lost, or the writer panicked");
            std::thread::yield_now();
        }
        writing.join().expect("the writer does not panic");
    }
}
