//! What one link still has to send, in order: bytes of frames, bounded.

/// Sent bytes are kept until they are worth a move.
const COMPACT: usize = 64 * 1024;

/// A queue of bytes.
#[derive(Default)]
pub(super) struct Outbox {
    bytes: Vec<u8>,
    sent: usize,
    limit: usize,
}

impl Outbox {
    /// A queue of at most `limit` bytes; a single longer frame passes if nothing else is queued.
    pub(super) fn new(limit: usize) -> Self {
        Self { bytes: Vec::new(), sent: 0, limit }
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Queues `len` bytes that `encode` appends, unless they do not fit.
    pub(super) fn push(&mut self, len: usize, encode: impl FnOnce(&mut Vec<u8>)) -> bool {
        let fits = self.len() == 0 || self.len() + len <= self.limit;
        if fits {
            encode(&mut self.bytes);
        }
        fits
    }

    /// The next bytes, at most `len`.
    pub(super) fn front(&self, len: usize) -> &[u8] {
        &self.bytes[self.sent..self.sent + len.min(self.len())]
    }

    /// The first `len` of them are gone.
    pub(super) fn advance(&mut self, len: usize) {
        self.sent += len;
        if self.sent == self.bytes.len() {
            self.bytes.clear();
            self.sent = 0;
        } else if self.sent >= COMPACT && self.sent >= self.len() {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_makes_room_and_a_long_frame_passes_alone() {
        let mut outbox = Outbox::new(10);
        let mut push = |sent, len| {
            outbox.advance(sent);
            outbox.push(len, |queued| queued.resize(queued.len() + len, 0))
        };
        let steps =
            [(0, 6), (0, 5), (3, 7), (0, 1), (10, 30), (0, 1)].map(|(sent, len)| push(sent, len));
        assert_eq!(steps, [true, false, true, false, true, false]);
    }

    #[test]
    fn what_is_left_stays_in_order_however_much_is_gone() {
        let mut outbox = Outbox::new(usize::MAX);
        let bytes: Vec<u8> = (0..3 * COMPACT).map(|at| (at % 251) as u8).collect();
        assert!(outbox.push(bytes.len(), |queued| queued.extend_from_slice(&bytes)));
        let mut gone = 0;
        for step in [COMPACT + 1, COMPACT / 2 + 7, COMPACT / 2, COMPACT / 4] {
            outbox.advance(step);
            gone += step;
            assert_eq!(
                (outbox.len(), outbox.front(9)),
                (bytes.len() - gone, &bytes[gone..gone + 9])
            );
        }
    }
}
