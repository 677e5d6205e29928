//! Which of the waiting tasks to run together: batch formation over the deadline-ordered queue.
//!
//! Both questions are monotone in what they bisect: a larger batch ends later, and a later head
//! has a later deadline. So nothing is rescanned.

use crate::latency::Latency;
use crate::model::NetworkDelay;
use crate::policy::Formation;
use crate::queue::DeadlineQueue;
use crate::time::Nanos;

/// When a batch could start, and whether it would end in time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Horizon<'a> {
    pub(crate) now: Nanos,
    /// The slot is not free before; zero while no slot is known.
    pub(crate) free_at: Nanos,
    pub(crate) latency: &'a Latency,
    pub(crate) network: NetworkDelay,
}

impl Horizon<'_> {
    /// Earliest start of a batch of this size.
    pub(crate) fn start(&self, batch: u32) -> Nanos {
        (self.now + self.network.before(batch)).max(self.free_at)
    }

    /// Whether a batch of this size would end by `deadline`.
    pub(crate) fn fits(&self, batch: u32, deadline: Nanos) -> bool {
        self.start(batch) + self.latency.of(batch) <= deadline
    }
}

/// Ranks `head .. head + batch` of the queue. `batch` is 0 when nothing can run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Window {
    pub(crate) head: usize,
    pub(crate) batch: u32,
}

/// Forms the batch the policy wants. The queue's head must fit alone if there is one.
pub(crate) fn form(
    queue: &DeadlineQueue,
    horizon: &Horizon<'_>,
    formation: Formation,
    target: u32,
) -> Window {
    let head = match formation {
        Formation::Prefix => 0,
        Formation::Window => window_head(queue, horizon, target),
    };
    let waiting = (queue.len() - head) as u32;
    if waiting == 0 {
        return Window { head: 0, batch: 0 };
    }
    let deadline = queue.deadline(head);
    let most = waiting.min(horizon.latency.batch_max());
    Window { head, batch: largest(1, most, |b| horizon.fits(b, deadline)) }
}

/// The first head that leaves room for a batch of target size, or of all that wait behind it.
fn window_head(queue: &DeadlineQueue, horizon: &Horizon<'_>, target: u32) -> usize {
    let spoils = |head: usize| {
        let wanted = ((queue.len() - head) as u32).min(target);
        !horizon.fits(wanted, queue.deadline(head))
    };
    // Usually the very first head is good: gallop from there. Every head before `low` spoils.
    let (mut low, mut step) = (0, 1);
    let mut high = loop {
        let probe = low + step - 1;
        if probe >= queue.len() {
            break queue.len();
        }
        if !spoils(probe) {
            break probe;
        }
        low = probe + 1;
        step *= 2;
    };
    while low < high {
        let middle = usize::midpoint(low, high);
        if spoils(middle) { low = middle + 1 } else { high = middle }
    }
    high
}

/// The largest value in `low..=high` that `fits`, which holds up to some value and not beyond;
/// `low` if none does. Asks about `high` first: growing is the common case.
pub(crate) fn largest(low: u32, high: u32, fits: impl Fn(u32) -> bool) -> u32 {
    if fits(high) {
        return high;
    }
    let (mut good, mut bad) = (low, high);
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        if fits(middle) { good = middle } else { bad = middle }
    }
    good
}
