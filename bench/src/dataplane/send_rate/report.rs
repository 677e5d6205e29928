//! What a run came to.

use std::fmt;

use serde::Serialize;

use super::super::report::{Recorder, Times, not_usable};
use super::SendRate;
use crate::machine::Unusable;

/// A run's result. Rates are those of the median stretch.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct SendRateReport {
    /// Which.
    pub bench: &'static str,
    /// What carried them: `tcp` or `rdma`.
    pub transport: String,
    /// Messages under way.
    pub depth: u32,
    /// Bytes of a message on the wire.
    pub bytes: u32,
    /// Stretches, over the transport; as many over bare sockets.
    pub stretches: u64,
    /// Messages in a stretch, each sent and answered.
    pub stretch: u64,
    /// Time of a stretch.
    pub stretch_us: Times,
    /// Messages sent and answered, per second.
    pub round_trips_per_s: f64,
    /// Messages in both directions, per second: twice as many.
    pub messages_per_s: f64,
    /// Round trips over all stretches' time, per second: the host's interruptions are in it.
    pub mean_round_trips_per_s: f64,
    /// Round trips per second in the quickest stretch: what a host does that leaves it alone.
    pub best_round_trips_per_s: f64,
    /// Round trips of the same bytes over bare sockets in the same run, per second; `null` over RDMA.
    pub floor_round_trips_per_s: Option<f64>,
    /// Theirs in their quickest stretch.
    pub floor_best_round_trips_per_s: Option<f64>,
    /// The transport's rate over the bare sockets'.
    pub efficiency: Option<f64>,
    /// Share of the CPU time that went to other machines' work; `null` where unknown.
    pub steal_fraction: Option<f64>,
    /// Why the figures are not to be used; empty if nothing is known against them.
    pub not_usable: Unusable,
}

impl SendRateReport {
    pub(super) fn new(
        run: &SendRate,
        ours: &Recorder,
        bare: Option<&Recorder>,
        steal_fraction: Option<f64>,
    ) -> Self {
        let SendRate { transport, depth, bytes, .. } = *run;
        let stretch = run.stretch();
        let rate = |us: f64| stretch as f64 * 1e6 / us.max(1e-3);
        let (took, floor) = (ours.times(), bare.map(Recorder::times));
        let round_trips_per_s = rate(took.p50);
        let floor_round_trips_per_s = floor.map(|floor| rate(floor.p50));
        let efficiency = floor_round_trips_per_s.map(|floor| round_trips_per_s / floor);
        Self {
            bench: "send-rate",
            transport: transport.to_string(),
            depth,
            bytes,
            stretches: ours.count(),
            stretch,
            stretch_us: took,
            round_trips_per_s,
            messages_per_s: 2.0 * round_trips_per_s,
            mean_round_trips_per_s: ours.per_s(),
            best_round_trips_per_s: rate(took.min),
            floor_round_trips_per_s,
            floor_best_round_trips_per_s: floor.map(|floor| rate(floor.min)),
            efficiency,
            steal_fraction,
            not_usable: not_usable(steal_fraction, efficiency),
        }
    }
}

impl fmt::Display for SendRateReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bench, transport, depth, bytes, stretches, stretch, .. } = self;
        let Times { min, p50, p99, p999, .. } = self.stretch_us;
        let millions = |rate: f64| rate / 1e6;
        writeln!(
            f,
            "{bench} over {transport}: {depth} messages of {bytes} bytes under way, {stretches} stretches of \
             {stretch}"
        )?;
        writeln!(f, "  stretch min {min:.1}  p50 {p50:.1}  p99 {p99:.1}  p99.9 {p999:.1} µs")?;
        writeln!(
            f,
            "  {:.2} M messages/s sent and answered ({:.2} M both ways; mean {:.2} M, best {:.2} M)",
            millions(self.round_trips_per_s),
            millions(self.messages_per_s),
            millions(self.mean_round_trips_per_s),
            millions(self.best_round_trips_per_s),
        )?;
        let floor = (self.floor_round_trips_per_s, self.floor_best_round_trips_per_s);
        if let ((Some(floor), Some(best)), Some(efficiency)) = (floor, self.efficiency) {
            let (floor, best) = (millions(floor), millions(best));
            writeln!(
                f,
                "  floor   {floor:.2} M/s over bare sockets, best {best:.2} M/s  efficiency {efficiency:.2}"
            )?;
        }
        super::super::report::write_steal(f, self.steal_fraction)?;
        self.not_usable.write(f)
    }
}

#[cfg(test)]
mod tests {
    use baton_core::Nanos;
    use baton_topo::{Idle, TransportChoice};

    use super::*;

    #[test]
    fn rates_are_those_of_the_median_stretch() {
        let (transport, idle) = (TransportChoice::Tcp, Idle::Park);
        let run = SendRate { transport, depth: 32, bytes: 64, seconds: 1.0, idle };
        let (mut ours, mut bare) = (Recorder::new(), Recorder::new());
        // 2,048 messages a stretch: one in three is slow, and only the mean knows it.
        for millis in [1, 1, 4] {
            ours.record(Nanos::from_millis(millis), run.stretch());
        }
        bare.record(Nanos::from_micros(500), run.stretch());
        let report = SendRateReport::new(&run, &ours, Some(&bare), None);
        assert!((report.round_trips_per_s / 2_048_000.0 - 1.0).abs() < 0.01, "{report:?}");
        assert!((report.messages_per_s / 4_096_000.0 - 1.0).abs() < 0.01, "{report:?}");
        assert!((report.mean_round_trips_per_s / 1_024_000.0 - 1.0).abs() < 0.01, "{report:?}");
        assert!((report.best_round_trips_per_s / 2_048_000.0 - 1.0).abs() < 0.01, "{report:?}");
        let floor = report.floor_best_round_trips_per_s.unwrap();
        assert!((floor / 4_096_000.0 - 1.0).abs() < 0.01, "{report:?}");
        assert!((report.efficiency.unwrap() - 0.5).abs() < 0.01, "{report:?}");
        assert_eq!((report.stretches, report.stretch), (3, 2_048));
    }
}
