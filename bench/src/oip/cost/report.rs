//! What a request cost, and how that compares with the goals.

use std::fmt;

use baton_core::Nanos;
use serde::Serialize;

use super::{GatewayBench, GatewayCancels};
use crate::machine::{ThreadUsage, Unusable, stolen};
use crate::oip::outcome::Refused;
use crate::oip::url::Protocol;

/// The threads of a gateway that serve connections; its others are the client library's.
const SERVING: &str = "baton-gateway";
/// Of a stretch's requests: more that are refused make it say little.
const REFUSED_MAX: f64 = 0.01;
/// The most that a request may cost, over the bare server's.
const GOALS: [(Protocol, u32, f64); 4] = [
    (Protocol::Http, 256, 2.5),
    (Protocol::Http, 150_528, 1.5),
    (Protocol::Grpc, 256, 1.3),
    (Protocol::Grpc, 150_528, 1.0),
];

/// What became of the requests of a while.
#[derive(Clone, PartialEq, Default, Debug)]
pub(super) struct Stretch {
    pub(super) answered: u64,
    pub(super) refused: u64,
    /// Why the first was refused.
    pub(super) why: Option<String>,
}

impl Stretch {
    pub(super) fn refuse(&mut self, refused: &Refused) {
        self.refused += 1;
        self.why.get_or_insert_with(|| format!("{refused:?}"));
    }

    pub(super) fn add(&mut self, other: Self) {
        self.answered += other.answered;
        self.refused += other.refused;
        self.why = self.why.take().or(other.why);
    }
}

/// CPU time of a server for each request that it answered, µs.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub(super) struct Costs {
    /// All of its threads.
    all_us: f64,
    /// Those that serve connections.
    serving_us: f64,
    requests: u64,
    refused: u64,
}

impl Costs {
    pub(super) fn between(from: &[ThreadUsage], to: &[ThreadUsage], stretch: &Stretch) -> Self {
        let used = |is_counted: fn(&ThreadUsage) -> bool| {
            let before = |id| from.iter().find(|t| t.id == id).map_or(Nanos::ZERO, |t| t.cpu);
            let used = to.iter().filter(|t| is_counted(t)).map(|t| (t.cpu - before(t.id)).0);
            used.sum::<u64>() as f64 / 1e3 / stretch.answered as f64
        };
        Self {
            all_us: used(|_| true),
            serving_us: used(|thread| thread.name.starts_with(SERVING)),
            requests: stretch.answered,
            refused: stretch.refused,
        }
    }
}

/// One kind of request.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct GatewayRow {
    /// `http, binary` or `grpc`.
    pub protocol: &'static str,
    /// Bytes of its input.
    pub bytes: u32,
    /// CPU time of the bare server, µs: the middle one of the rounds, as all of these.
    pub bare_us: f64,
    /// Of the gateway.
    pub gateway_us: f64,
    /// Of its threads that serve connections. The others are those of the client library: submits, and inputs on their way to backends.
    pub serving_us: f64,
    /// The gateway's over the bare server's, of one round.
    pub ratio: f64,
    /// The same of the threads that serve connections.
    pub serving_ratio: f64,
    /// The ratio that it is to have at most, if there is a goal.
    pub goal: Option<f64>,
    /// Requests that the gateway answered.
    pub requests: u64,
    /// Requests that it refused.
    pub refused: u64,
}

pub(super) const fn name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Http => "http, binary",
        Protocol::Grpc => "grpc",
    }
}

impl GatewayRow {
    pub(super) fn new(protocol: Protocol, bytes: u32, rounds: &[[Costs; 2]]) -> Self {
        let middle = |of: fn(&[Costs; 2]) -> f64| {
            let mut all: Vec<f64> = rounds.iter().map(of).collect();
            all.sort_by(f64::total_cmp);
            all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
        };
        let goal = GOALS.iter().find(|goal| (goal.0, goal.1) == (protocol, bytes));
        Self {
            protocol: name(protocol),
            bytes,
            bare_us: middle(|[bare, _]| bare.all_us),
            gateway_us: middle(|[_, gateway]| gateway.all_us),
            serving_us: middle(|[_, gateway]| gateway.serving_us),
            ratio: middle(|[bare, gateway]| gateway.all_us / bare.all_us),
            serving_ratio: middle(|[bare, gateway]| gateway.serving_us / bare.all_us),
            goal: goal.map(|goal| goal.2),
            requests: rounds.iter().map(|[_, gateway]| gateway.requests).sum(),
            refused: rounds.iter().flatten().map(|costs| costs.refused).sum(),
        }
    }

    fn refused_much(&self) -> Option<String> {
        let share = self.refused as f64 / (self.requests + self.refused) as f64;
        let Self { protocol, bytes, refused, .. } = self;
        (share > REFUSED_MAX).then(|| format!("{refused} {protocol} of {bytes} bytes were refused"))
    }
}

impl fmt::Display for GatewayRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { protocol, bytes, bare_us, gateway_us, serving_us, .. } = self;
        write!(f, "{protocol:12} {bytes:>9} B  bare {bare_us:7.1} µs  gateway {gateway_us:7.1}")?;
        let Self { ratio, serving_ratio, .. } = self;
        write!(f, " ({ratio:.2} ×), its serving threads {serving_us:7.1} ({serving_ratio:.2} ×)")?;
        self.goal.map_or(Ok(()), |goal| write!(f, "  goal {goal:.1} ×"))
    }
}

/// What was measured.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct GatewayReport {
    /// Requests under way.
    pub outstanding: u32,
    /// Turns of bare server and gateway.
    pub rounds: u32,
    /// Each kind of request.
    pub rows: Vec<GatewayRow>,
    /// Requests that were given up, over each protocol.
    pub cancels: Vec<GatewayCancels>,
    /// Why the figures are not to be used.
    pub not_usable: Unusable,
}

impl GatewayReport {
    pub(super) fn new(
        bench: &GatewayBench,
        rows: Vec<GatewayRow>,
        cancels: Vec<GatewayCancels>,
        steal: Option<f64>,
    ) -> Self {
        let refused = rows.iter().map(GatewayRow::refused_much);
        let not_usable = Unusable::because(refused.chain([stolen(steal)]));
        let GatewayBench { outstanding, rounds, .. } = *bench;
        Self { outstanding, rounds, rows, cancels, not_usable }
    }
}

impl fmt::Display for GatewayReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { outstanding, rounds, .. } = self;
        writeln!(
            f,
            "CPU time per request, {outstanding} under way, middle one of {rounds} rounds"
        )?;
        self.rows.iter().try_for_each(|row| writeln!(f, "{row}"))?;
        self.cancels.iter().try_for_each(|row| writeln!(f, "{row}"))?;
        self.not_usable.write(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(id: u32, name: &str, cpu_us: u64) -> ThreadUsage {
        ThreadUsage { id, name: name.to_owned(), cpu: Nanos(cpu_us * 1_000), switches: 0 }
    }

    #[test]
    fn a_request_costs_what_threads_have_used_since_over_the_answers() {
        let before = [thread(1, "baton-gateway-0", 100), thread(2, "baton-client", 50)];
        let after = [
            thread(1, "baton-gateway-0", 300),
            thread(2, "baton-client", 150),
            thread(3, "new", 100),
        ];
        let stretch = Stretch { answered: 10, refused: 1, why: None };
        let costs = Costs::between(&before, &after, &stretch);
        assert_eq!((costs.all_us, costs.serving_us), (40.0, 20.0));
        assert_eq!((costs.requests, costs.refused), (10, 1));
    }

    #[test]
    fn the_middle_round_is_shown_and_refusals_make_it_worthless() {
        let costs = |all_us, refused| Costs { all_us, serving_us: 1.0, requests: 100, refused };
        let rounds = [(10.0, 30.0), (20.0, 30.0), (10.0, 15.0)];
        let rounds = rounds.map(|(bare, gateway)| [costs(bare, 0), costs(gateway, 2)]);
        let row = GatewayRow::new(Protocol::Grpc, 256, &rounds);
        assert_eq!((row.bare_us, row.gateway_us, row.ratio), (10.0, 30.0, 1.5));
        assert_eq!((row.goal, row.requests, row.refused), (Some(1.3), 300, 6));
        assert!(row.refused_much().unwrap().contains("6 grpc of 256 bytes"));
        let few = [costs(1.0, 0), costs(1.0, 1)];
        assert_eq!(GatewayRow::new(Protocol::Http, 7, &[few]).refused_much(), None);
    }
}
