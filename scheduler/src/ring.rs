//! A bounded queue from one thread to one other, of messages that are a few words.
//!
//! Only what a pass leaves behind is worth a cache line's way to the other core: what is pushed stays
//! invisible until it is announced, and the receiver takes all that has been announced at once, so
//! that the lines it lies in travel together. No lock, and no instruction that waits for the other
//! core. The words are atomics only so that this is safe code; nothing but the two positions orders
//! them.

use std::sync::Arc;

use crate::sync::{AtomicU64, Ordering};

/// Makes both ends of a ring with room for at least `capacity` messages of `W` words.
pub(crate) fn ring<const W: usize>(capacity: usize) -> (RingSender<W>, RingReceiver<W>) {
    let places = capacity.next_power_of_two();
    let shared = Arc::new(Shared {
        words: (0..places * W).map(|_| AtomicU64::new(0)).collect(),
        announced: Position::default(),
        taken: Position::default(),
    });
    let sender =
        RingSender { shared: Arc::clone(&shared), places: places as u64, next: 0, taken: 0 };
    (sender, RingReceiver { shared, places: places as u64, next: 0 })
}

#[derive(Debug)]
struct Shared {
    words: Box<[AtomicU64]>,
    /// Messages announced since the start; the sender's.
    announced: Position,
    /// Messages taken since the start; the receiver's.
    taken: Position,
}

/// In cache lines of its own: processors fetch them in pairs.
#[derive(Default, Debug)]
#[repr(align(128))]
struct Position(AtomicU64);

/// The sending end.
#[derive(Debug)]
pub(crate) struct RingSender<const W: usize> {
    shared: Arc<Shared>,
    places: u64,
    /// Messages pushed since the start.
    next: u64,
    /// Messages known to have been taken.
    taken: u64,
}

/// The receiving end.
#[derive(Debug)]
pub(crate) struct RingReceiver<const W: usize> {
    shared: Arc<Shared>,
    places: u64,
    /// Messages taken since the start.
    next: u64,
}

impl<const W: usize> RingSender<W> {
    /// Appends a message; false if there is no room. It arrives once it is announced.
    #[must_use]
    pub(crate) fn push(&mut self, message: [u64; W]) -> bool {
        if self.next - self.taken == self.places {
            self.taken = self.shared.taken.0.load(Ordering::Acquire);
            if self.next - self.taken == self.places {
                return false;
            }
        }
        for (place, word) in self.shared.at::<W>(self.next, self.places).iter().zip(message) {
            place.store(word, Ordering::Relaxed);
        }
        self.next += 1;
        true
    }

    /// The receiver may take what has been pushed.
    pub(crate) fn announce(&self) {
        self.shared.announced.0.store(self.next, Ordering::Release);
    }
}

impl<const W: usize> RingReceiver<W> {
    /// Moves everything announced to the end of `messages`, oldest first.
    pub(crate) fn take_all(&mut self, messages: &mut Vec<[u64; W]>) {
        let announced = self.shared.announced.0.load(Ordering::Acquire);
        if announced == self.next {
            return;
        }
        messages.extend((self.next..announced).map(|at| {
            let message = self.shared.at::<W>(at, self.places);
            std::array::from_fn(|i| message[i].load(Ordering::Relaxed))
        }));
        self.next = announced;
        self.shared.taken.0.store(announced, Ordering::Release);
    }
}

impl Shared {
    fn at<const W: usize>(&self, message: u64, places: u64) -> &[AtomicU64] {
        let first = (message & (places - 1)) as usize * W;
        &self.words[first..first + W]
    }
}

/// Every interleaving and every reordering the memory model allows, in miniature; see `board`.
#[cfg(all(test, loom))]
mod loom_models {
    use super::*;

    #[test]
    fn messages_arrive_whole_in_order_and_only_as_many_as_there_is_room_for() {
        loom::model(|| {
            let (mut sender, mut receiver) = ring::<2>(2);
            let sending = loom::thread::spawn(move || {
                let mut sent = 0;
                for n in 1..=3 {
                    if !sender.push([n, n + 10]) {
                        break;
                    }
                    sent = n;
                    sender.announce();
                }
                sent
            });
            let mut arrived = Vec::new();
            receiver.take_all(&mut arrived);
            let sent = sending.join().expect("the sender does not panic");
            receiver.take_all(&mut arrived);
            let expected: Vec<[u64; 2]> = (1..=sent).map(|n| [n, n + 10]).collect();
            assert_eq!(arrived, expected);
            assert!(sent >= 2, "there was room for two");
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_announced_has_not_arrived() {
        let (mut sender, mut receiver) = ring::<1>(4);
        let mut arrived = Vec::new();
        assert!(sender.push([7]) && sender.push([8]));
        receiver.take_all(&mut arrived);
        assert!(arrived.is_empty());
        sender.announce();
        receiver.take_all(&mut arrived);
        receiver.take_all(&mut arrived);
        assert_eq!(arrived, [[7], [8]]);
    }

    #[test]
    fn a_full_ring_refuses_until_something_was_taken() {
        let (mut sender, mut receiver) = ring::<3>(2);
        let mut arrived = Vec::new();
        for round in 0..5 {
            assert!(sender.push([round; 3]) && sender.push([round + 1; 3]));
            assert!(!sender.push([99; 3]), "there is room for two");
            sender.announce();
            assert!(!sender.push([99; 3]), "nothing was taken yet");
            receiver.take_all(&mut arrived);
            assert_eq!(arrived, [[round; 3], [round + 1; 3]]);
            arrived.clear();
        }
    }

    #[test]
    fn beside_a_sender_everything_arrives_in_order() {
        const LAST: u64 = if cfg!(miri) { 100 } else { 200_000 };
        let (mut sender, mut receiver) = ring::<2>(64);
        let sending = std::thread::spawn(move || {
            for n in 0..LAST {
                while !sender.push([n, !n]) {
                    sender.announce();
                    std::thread::yield_now();
                }
                if n % 7 == 0 || n + 1 == LAST {
                    sender.announce();
                }
            }
        });
        let (mut arrived, mut next) = (Vec::new(), 0);
        while next < LAST {
            receiver.take_all(&mut arrived);
            for message in arrived.drain(..) {
                assert_eq!(message, [next, !next]);
                next += 1;
            }
            std::thread::yield_now();
        }
        sending.join().expect("the sender does not panic");
    }
}
