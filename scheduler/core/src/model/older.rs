//! What came before the last five seconds, and what was given up of it: it fades over about a minute. Of a
//! dozen tasks a second, one that is lost in five seconds says nothing yet.

use super::rate::{Counts, scale};

/// One part in this many fades with each bucket, so that half is left after 35 s …
const FADES: u64 = 512;
/// … which is the time of 355 buckets.
const HALF: usize = 355;
/// Counts are in this part of a task, so that single ones fade, too.
const TASK: u64 = FADES;
/// A thousand tasks within five seconds tell the bad rate well enough.
const ENOUGH: u64 = 1_000;
/// Tasks that every bad rate starts from, none of them bad.
const ASSUMED: u64 = 100;

/// See the module documentation.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Older {
    came: u64,
    bad: u64,
    unready: u64,
}

impl Older {
    /// A bucket is older than five seconds from now on.
    pub(super) fn add(&mut self, bucket: &Counts) {
        let Self { came, bad, unready } = self;
        let of_bucket = [bucket.came(), bucket.bad + bucket.refused, bucket.unready];
        for (count, new) in [came, bad, unready].into_iter().zip(of_bucket) {
            *count = *count - *count / FADES + new * TASK;
        }
    }

    /// Nothing came during these further buckets.
    pub(super) fn fade(&mut self, buckets: usize) {
        let halvings = (buckets / HALF).min(63);
        let Self { came, bad, unready } = self;
        [came, bad, unready].into_iter().for_each(|count| *count >>= halvings);
    }

    /// Nothing of it was bad.
    pub(super) fn forget_losses(&mut self) {
        (self.bad, self.unready) = (0, 0);
    }

    /// Bad tasks over all, in 1/65536, with the `lately` counted ones: of these alone if they are enough.
    pub(super) fn bad_rate(&self, lately: &Counts, with_unready: bool) -> u32 {
        let older = if lately.came() < ENOUGH { *self } else { Self::default() };
        let unready = if with_unready { lately.unready * TASK + older.unready } else { 0 };
        let bad = (lately.bad + lately.refused) * TASK + older.bad + unready;
        let came = (lately.came() + ASSUMED) * TASK + older.came;
        scale(bad, 1 << 16, came).min(1 << 16) as u32
    }
}
