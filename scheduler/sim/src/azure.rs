//! Load like that of Microsoft's serverless functions (Shahrad et al., ATC '20), as Clockwork replays it (§6.5): many functions
//! per model, few of them with nearly all of the load, and counts that change from minute to minute.
//!
//! The shares follow the published statistics of that trace: rates are log-normal, so that 45 % of the functions run at most once an
//! hour and 81 % at most once a minute. How functions vary over time is invented: timers, spikes, on and off. A minute's count becomes a
//! Poisson process over that minute.

use std::io;

use serde::Deserialize;

use crate::load::Load;
use crate::random::{Concern, Stream};
use crate::scenario::SimModel;
use crate::scenario_file::{ScenarioError, check};

/// As a scenario file has it.
#[derive(Deserialize, Clone, Copy)]
#[serde(deny_unknown_fields)]
pub(crate) struct Azure {
    functions: u32,
    /// The rate at which functions below one a minute have their own rate, tasks per second; at others all are scaled.
    #[serde(default = "reported_rps")]
    rate_rps: f64,
}

/// Clockwork §6.5.
fn reported_rps() -> f64 {
    9_638.0
}

/// Of log₁₀ of a function's rate per minute.
const MEAN: f64 = -1.556;
const DEVIATION: f64 = 1.772;
/// The most a function runs in a minute.
const RATE_MAX: f64 = 12_000.0;
/// Functions that run at most so often in a minute may be timers.
const RARE: f64 = 2.0;
/// Their periods, minutes.
const PERIODS: [u32; 6] = [1, 5, 15, 30, 60, 240];
/// Those that run more often than [`RARE`] and at most so often may be spikes.
const SPIKE_MAX: f64 = 600.0;

/// How a function's rate goes.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Course {
    Level,
    /// The whole period's count in one minute of it.
    Minute {
        period: u32,
        offset: u32,
    },
    /// On for 60 s on average, at ten times the rate, then off for 540 s.
    OnOff,
}

impl Azure {
    pub(crate) fn check(&self) -> Result<(), ScenarioError> {
        check("popularity.functions", self.functions.into(), 1.0, 1e6)?;
        check("popularity.rate_rps", self.rate_rps, 0.001, 1e9)
    }
}

/// Gives each model the functions that are its own: their mean rate in the measured span, (from, until) in seconds, as its share, and
/// their course by minutes. The busiest functions go to models in turn, the first copy of each first.
pub(crate) fn share_out(azure: Azure, models: &mut [SimModel], span: (f64, f64), seed: u64) {
    let minutes = (span.1 / 60.0).ceil().max(1.0) as usize;
    let mut per_minute = vec![vec![0.0; minutes]; models.len()];
    let order = in_turn(models);
    let mut stream = Stream::new(seed, Concern::Functions);
    for (function, rate) in rates(azure, &mut stream).into_iter().enumerate() {
        let own = &mut per_minute[order[function % order.len()] as usize];
        add_function(own, rate, &mut stream);
    }
    for (model, rates) in models.iter_mut().zip(per_minute) {
        model.share = mean(&rates, span);
        model.load = (model.share > 0.0).then(|| Load::Steps {
            points: rates
                .into_iter()
                .enumerate()
                .map(|(m, rate)| (m as f64 * 60.0, rate))
                .collect(),
        });
    }
}

/// Positions of models: the first of each name's copies, then the second of each, and so on.
pub(crate) fn in_turn(models: &[SimModel]) -> Vec<u32> {
    let mut order: Vec<(u32, u32)> =
        (0..).zip(models).map(|(at, model)| (model.copy, at)).collect();
    order.sort_unstable();
    order.into_iter().map(|(_, at)| at).collect()
}

fn drawn(functions: u32, stream: &mut Stream) -> Vec<f64> {
    let draw = |_| 10f64.powf(MEAN + DEVIATION * stream.normal()).min(RATE_MAX);
    (0..functions).map(draw).collect()
}

/// Per minute, the highest first; together the rate that is asked for.
fn rates(azure: Azure, stream: &mut Stream) -> Vec<f64> {
    let mut rates = drawn(azure.functions, stream);
    let (rare, frequent): (Vec<f64>, Vec<f64>) = rates.iter().partition(|&&rate| rate <= 1.0);
    let (rare, frequent): (f64, f64) = (rare.iter().sum(), frequent.iter().sum());
    let wanted = azure.rate_rps * 60.0 - rare;
    if wanted > 0.0 && frequent > 0.0 {
        let above_one = rates.iter_mut().filter(|rate| **rate > 1.0);
        above_one.for_each(|rate| *rate *= wanted / frequent);
    }
    rates.sort_unstable_by(|a, b| b.total_cmp(a));
    rates
}

fn add_function(per_minute: &mut [f64], rate: f64, stream: &mut Stream) {
    match course(rate, stream) {
        Course::Level => per_minute.iter_mut().for_each(|sum| *sum += rate),
        Course::Minute { period, offset } => {
            let minutes = per_minute.iter_mut().skip(offset as usize).step_by(period as usize);
            minutes.for_each(|sum| *sum += rate * f64::from(period));
        }
        Course::OnOff => add_on_off(per_minute, rate, stream),
    }
}

fn course(rate: f64, stream: &mut Stream) -> Course {
    let (kind, phase) = (stream.unit(), stream.unit());
    let minute = |period: u32| {
        let offset = ((phase * f64::from(period)) as u32).min(period - 1);
        Course::Minute { period, offset }
    };
    if rate <= RARE {
        let nearest = |&period: &u32| (f64::from(period).ln() + rate.ln()).abs();
        let period = PERIODS.into_iter().min_by(|a, b| nearest(a).total_cmp(&nearest(b)));
        return match kind {
            kind if kind <= 0.3 => minute(period.unwrap_or(1)),
            kind if kind <= 0.5 => Course::OnOff,
            _ => Course::Level,
        };
    }
    match kind {
        kind if kind <= 0.1 && rate <= SPIKE_MAX => {
            minute(if stream.unit() <= 0.3 { 15 } else { 5 })
        }
        kind if kind <= 0.3 => Course::OnOff,
        _ => Course::Level,
    }
}

fn add_on_off(per_minute: &mut [f64], rate: f64, stream: &mut Stream) {
    let end = per_minute.len() as f64;
    let mut is_on = stream.unit() <= 0.1;
    let mut at = 0.0;
    while at < end {
        let until = (at + stream.exponential() * if is_on { 1.0 } else { 9.0 }).min(end);
        if is_on {
            let mut from = at;
            while from < until {
                let minute = (from as usize).min(per_minute.len() - 1);
                let to = until.min(minute as f64 + 1.0);
                per_minute[minute] += 10.0 * rate * (to - from);
                from = if to > from { to } else { until };
            }
        }
        (at, is_on) = (until, !is_on);
    }
}

/// Functions whose counts are drawn.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Functions {
    /// How many.
    pub count: u32,
    /// Tasks per second of all together.
    pub rate_rps: f64,
    /// For how many minutes.
    pub minutes: u32,
    /// Same seed, same counts.
    pub seed: u64,
}

/// Writes them as the public trace has its functions (`invocations.rs`), the busiest first.
///
/// # Errors
/// Of the writer.
pub fn write_functions(of: &Functions, out: &mut impl io::Write) -> io::Result<()> {
    writeln!(
        out,
        "# Generated by Baton, with the shares of the public trace: it is not the trace."
    )?;
    let minutes = (1..=of.minutes).map(|minute| minute.to_string()).collect::<Vec<_>>();
    writeln!(out, "HashOwner,HashApp,HashFunction,Trigger,{}", minutes.join(","))?;
    let azure = Azure { functions: of.count, rate_rps: of.rate_rps };
    let mut stream = Stream::new(of.seed, Concern::Functions);
    for (number, rate) in (1..).zip(rates(azure, &mut stream)) {
        let mut means = vec![0.0; of.minutes as usize];
        add_function(&mut means, rate, &mut stream);
        write!(out, "generated,generated,{number},http")?;
        for mean in means {
            write!(out, ",{}", poisson(mean, &mut stream))?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// How many arrivals of a Poisson process fall into a time in which `mean` do on average.
fn poisson(mean: f64, stream: &mut Stream) -> u64 {
    let (mut count, mut at) = (0, stream.exponential());
    while at < mean {
        (count, at) = (count + 1, at + stream.exponential());
    }
    count
}

/// Mean per minute within (from, until), seconds.
fn mean(per_minute: &[f64], (from, until): (f64, f64)) -> f64 {
    let within = |(minute, rate): (usize, &f64)| {
        let begins = minute as f64 * 60.0;
        rate * ((begins + 60.0).min(until) - begins.max(from)).max(0.0)
    };
    per_minute.iter().enumerate().map(within).sum::<f64>() / (until - from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_of_functions_are_those_of_the_trace() {
        let azure = Azure { functions: 46_000, rate_rps: reported_rps() };
        let drawn = drawn(azure.functions, &mut Stream::new(1, Concern::Functions));
        let part = |most: f64| drawn.iter().filter(|&&rate| rate <= most).count() as f64 / 46e3;
        assert!((part(1.0 / 60.0) - 0.45).abs() < 0.01, "{}", part(1.0 / 60.0));
        assert!((part(1.0) - 0.81).abs() < 0.01, "{}", part(1.0));
        let rates = rates(azure, &mut Stream::new(1, Concern::Functions));
        let sum: f64 = rates.iter().sum();
        assert!((sum / 60.0 - reported_rps()).abs() < 1.0, "{sum}");
        let top: f64 = rates[..460].iter().sum();
        assert!((0.8..0.88).contains(&(top / sum)), "top 1 %: {}", top / sum);
    }

    #[test]
    fn written_functions_are_read_again_and_have_the_rate() {
        let written = |seed| {
            let of = Functions { count: 1_000, rate_rps: 200.0, minutes: 60, seed };
            let mut text = Vec::new();
            write_functions(&of, &mut text).unwrap();
            text
        };
        assert!(written(3) == written(3), "the same seed, the same file");
        let options = crate::ReplayOptions::new(&["m"]);
        let rate_rps = |seed| {
            let replay = crate::Replay::read("f".as_ref(), &*written(seed), &options).unwrap();
            assert_eq!(replay.lasts(), baton_core::Nanos::from_millis(3_600_000));
            replay.rate_rps()
        };
        // One function of a file may be a fifth of its rate, and off for most of the hour.
        let rates: Vec<f64> = (0..12).map(rate_rps).collect();
        let mean = rates.iter().sum::<f64>() / 12.0;
        assert!((mean / 200.0 - 1.0).abs() < 0.15, "{mean}: {rates:?}");
    }

    #[test]
    fn the_mean_is_of_the_span_alone() {
        assert_eq!(
            mean(&[60.0, 120.0, 0.0], (30.0, 150.0)),
            75.0,
            "half a minute, and a whole one"
        );
        assert_eq!(mean(&[60.0, 120.0, 0.0], (0.0, 180.0)), 60.0);
        assert_eq!(mean(&[60.0, 120.0, 0.0], (70.0, 80.0)), 120.0);
    }

    #[test]
    fn a_function_that_goes_on_and_off_keeps_its_rate() {
        let mut minutes = vec![0.0; 1_000_000];
        add_on_off(&mut minutes, 3.0, &mut Stream::new(1, Concern::Functions));
        let mean = minutes.iter().sum::<f64>() / minutes.len() as f64;
        assert!((mean - 3.0).abs() < 0.1, "{mean}");
        let mut level = [0.0; 60];
        add_function(&mut level, 1.0, &mut Stream::new(2, Concern::Functions));
        assert!(level.iter().sum::<f64>() > 0.0);
    }
}
