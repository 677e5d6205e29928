//! Which model the next request is for, and when it arrives: the simulator's Poisson arrivals, drawn
//! before the run, so that making up a request costs two loads. Drawn as they are taken, they would cost as much as the
//! scheduler does: 55 to 135 ns.

use baton_core::Nanos;

/// Draws kept; a power of two. The sequence repeats after that many requests.
const DRAWS: usize = 1 << 16;

/// The requests of one ModelThread.
#[derive(Debug)]
pub(super) struct Arrivals {
    models: Box<[u32]>,
    /// Spans between arrivals, ns; empty when requests come as fast as they are taken.
    gaps: Box<[u64]>,
    next: usize,
    /// When the next request arrives; set by the first call.
    due: Option<Nanos>,
}

impl Arrivals {
    /// `models` to draw from, all equally popular. `rate_rps` of this thread, if it is paced.
    pub(super) fn new(models: &[u32], rate_rps: Option<f64>, seed: u64) -> Self {
        // Which models come in which order does not depend on the rate.
        let each = rate_rps.unwrap_or(1e6) / models.len() as f64;
        let mut drawn = baton_sim::Arrivals::poisson(&vec![each; models.len()], seed);
        let (mut draws, mut gaps, mut before) = (Vec::new(), Vec::new(), Nanos::ZERO);
        for arrived in std::iter::from_fn(|| drawn.take()).take(DRAWS) {
            draws.push(models[arrived.model as usize]);
            gaps.push((arrived.at - before).0);
            before = arrived.at;
        }
        if rate_rps.is_none() {
            gaps.clear();
        }
        Self { models: draws.into(), gaps: gaps.into(), next: 0, due: None }
    }

    /// Takes the next request if it has arrived by `now`: its model and when it arrived.
    pub(super) fn take(&mut self, now: Nanos) -> Option<(u32, Nanos)> {
        let at = self.next % DRAWS;
        let arrived = match self.gaps.get(at) {
            None => now,
            Some(&gap) => {
                let due = *self.due.get_or_insert(now);
                if due > now {
                    return None;
                }
                self.due = Some(due + Nanos(gap));
                due
            }
        };
        self.next += 1;
        Some((self.models[at], arrived))
    }

    /// Requests come at a rate, and not as fast as they are taken.
    pub(super) fn is_paced(&self) -> bool {
        !self.gaps.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paced_requests_keep_the_rate_and_come_from_every_model() {
        let mut arrivals = Arrivals::new(&[3, 8], Some(1e6), 7);
        let (start, end) = (Nanos::from_millis(1), Nanos::from_millis(41));
        assert!(arrivals.take(start).is_some(), "the clock starts with the first call");
        let mut counts = [0u32; 9];
        while let Some((model, arrived)) = arrivals.take(end) {
            assert!((start..=end).contains(&arrived));
            counts[model as usize] += 1;
        }
        let total = counts[3] + counts[8];
        assert!((39_000..41_000).contains(&total), "{total} in 40 ms at 10⁶/s");
        assert!(counts[3].abs_diff(counts[8]) < 1_500, "{counts:?}");
    }
}
