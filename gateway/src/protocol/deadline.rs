//! How much time a request gives: the least of what it says, else its model's objective.

use std::time::Duration;

use super::problem::Problem;

/// Taken off the time after which a peer gives up, for the answer's way back: it learns the reason instead of its own
/// time-out.
const WAY_BACK: Duration = Duration::from_millis(1);
/// Digits that `grpc-timeout` may have.
const DIGITS_MAX: usize = 8;

/// The time that gRPC clients give a call.
pub const GRPC_TIMEOUT: &str = "grpc-timeout";
/// The time that Envoy gives a request.
pub const ENVOY_TIMEOUT: &str = "x-envoy-expected-rq-timeout-ms";
/// The time that any HTTP client may give.
pub const BATON_TIMEOUT: &str = "baton-timeout-us";
/// The headers that state a time.
pub const TIMEOUTS: [&str; 3] = [GRPC_TIMEOUT, ENVOY_TIMEOUT, BATON_TIMEOUT];

/// What the headers of a request say of its time. Spans count from the arrival of the headers.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Stated {
    /// `grpc-timeout`.
    pub grpc: Option<Duration>,
    /// `x-envoy-expected-rq-timeout-ms`.
    pub envoy: Option<Duration>,
    /// `baton-timeout-us`.
    pub baton: Option<Duration>,
}

impl Stated {
    /// Of the values of [`TIMEOUTS`], in that order.
    ///
    /// # Errors
    /// A value is no time.
    pub fn of([grpc, envoy, baton]: [Option<&str>; 3]) -> Result<Self, Problem> {
        let grpc = grpc.map(grpc_timeout).transpose()?;
        let envoy = envoy.map(|text| whole(ENVOY_TIMEOUT, "milliseconds", text)).transpose()?;
        let baton = baton.map(|text| whole(BATON_TIMEOUT, "microseconds", text)).transpose()?;
        // Envoy's zero means that it waits for ever.
        let envoy = envoy.filter(|&ms| ms > 0).map(Duration::from_millis);
        Ok(Self { grpc, envoy, baton: baton.map(Duration::from_micros) })
    }

    /// When a gRPC client gives up, less the way back.
    pub fn gives_up(&self) -> Option<Duration> {
        self.grpc.map(|span| span.saturating_sub(WAY_BACK))
    }

    /// What is left of it after a while.
    pub fn after(&self, span: Duration) -> Self {
        let left = |given: Option<Duration>| given.map(|given| given.saturating_sub(span));
        Self { grpc: left(self.grpc), envoy: left(self.envoy), baton: left(self.baton) }
    }

    /// By when the answer must be there. `timeout` is the request's parameter, of which zero says nothing.
    pub fn allowed(&self, timeout: Option<Duration>, slo: Duration) -> Duration {
        let of_peer = |span: Duration| span.saturating_sub(WAY_BACK);
        let peers = [self.grpc.map(of_peer), self.envoy.map(of_peer)];
        let own = [self.baton, timeout.filter(|span| !span.is_zero())];
        peers.into_iter().chain(own).flatten().min().unwrap_or(slo)
    }
}

/// `grpc-timeout`: at most eight digits and a unit.
fn grpc_timeout(text: &str) -> Result<Duration, Problem> {
    let wrong = || {
        let fix = "give 1 to 8 digits and one of the units H, M, S, m, u, n";
        Problem::invalid(format!("{GRPC_TIMEOUT}: {text:?} is no time: {fix}"))
    };
    let (digits, unit) = text.split_at_checked(text.len().wrapping_sub(1)).ok_or_else(wrong)?;
    if digits.len() > DIGITS_MAX || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let count: u64 = digits.parse().map_err(|_| wrong())?;
    Ok(match unit {
        "H" => Duration::from_secs(count * 3_600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return Err(wrong()),
    })
}

fn whole(name: &str, unit: &str, text: &str) -> Result<u64, Problem> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits).ok_or_else(|| {
        Problem::invalid(format!("{name}: {text:?} is no time: give a whole number of {unit}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLO: Duration = Duration::from_millis(25);

    fn stated(headers: &[(&str, &'static str)]) -> Result<Stated, Problem> {
        let value = |name| headers.iter().find(|header| header.0 == name).map(|header| header.1);
        Stated::of(TIMEOUTS.map(value))
    }

    #[test]
    fn the_least_counts_and_without_any_the_objective() {
        let ms = Duration::from_millis;
        assert_eq!(stated(&[]).unwrap().allowed(None, SLO), SLO);
        assert_eq!(stated(&[]).unwrap().allowed(Some(Duration::ZERO), SLO), SLO);
        let longer = stated(&[(BATON_TIMEOUT, "900000")]).unwrap();
        assert_eq!(
            longer.allowed(None, SLO),
            ms(900),
            "more than the objective, if it is asked for"
        );
        assert_eq!(longer.allowed(Some(ms(20)), SLO), ms(20));
        let all = [(BATON_TIMEOUT, "30000"), (ENVOY_TIMEOUT, "20"), (GRPC_TIMEOUT, "500m")];
        let all = stated(&all).unwrap();
        assert_eq!(all.allowed(Some(ms(40)), SLO), ms(19), "less the way back");
        assert_eq!(stated(&[(ENVOY_TIMEOUT, "0")]).unwrap().allowed(None, SLO), SLO);
    }

    #[test]
    fn a_client_that_gives_up_hears_the_reason_before() {
        let ms = Duration::from_millis;
        assert_eq!(stated(&[]).unwrap().gives_up(), None);
        let stated = stated(&[(GRPC_TIMEOUT, "20m"), (BATON_TIMEOUT, "30000")]).unwrap();
        assert_eq!(
            (stated.gives_up(), stated.after(ms(5)).gives_up()),
            (Some(ms(19)), Some(ms(14)))
        );
        assert_eq!(stated.after(ms(25)).allowed(None, SLO), ms(0));
        for (name, value) in
            [(BATON_TIMEOUT, "50000"), (ENVOY_TIMEOUT, "51"), (GRPC_TIMEOUT, "51m")]
        {
            let left = self::stated(&[(name, value)]).unwrap().after(ms(5)).allowed(None, SLO);
            assert_eq!(left, ms(45), "{name}");
        }
    }

    #[test]
    fn units_are_those_of_grpc() {
        let grpc = |text| stated(&[(GRPC_TIMEOUT, text)]).map(|stated| stated.grpc.unwrap());
        let nanos = |text| grpc(text).unwrap().as_nanos();
        assert_eq!(
            ["2H", "2M", "2S"].map(nanos),
            [7_200_000_000_000, 120_000_000_000, 2_000_000_000]
        );
        assert_eq!(["2m", "2u", "2n"].map(nanos), [2_000_000, 2_000, 2]);
        assert_eq!(grpc("99999999H").unwrap(), Duration::from_secs(99_999_999 * 3_600));
    }

    #[test]
    fn what_is_no_time_is_refused_by_name() {
        for text in ["", "m", "123456789m", "-1m", "+1m", "1", "1x", "1ä", "ä"] {
            let refused = stated(&[(GRPC_TIMEOUT, text)]).unwrap_err();
            assert!(refused.text.contains(GRPC_TIMEOUT), "{text}: {refused:?}");
        }
        for text in ["", "1.5", "-3", "+3", "99999999999999999999"] {
            let refused = stated(&[(BATON_TIMEOUT, text)]).unwrap_err();
            assert!(refused.text.contains(BATON_TIMEOUT), "{text}: {refused:?}");
        }
    }
}
