//! Measuring ℓ(b) of each variant of a supernet, and what it costs to switch between them: `baton supernet profile`.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use baton_topo::{Clock, Device, MeasuredSize, ModelSpec, VariantSpec, per_cent};
use baton_types::Nanos;

use super::report::latency_ms;
use super::runs::{Runs, quantile};
use super::{Bench, OpenLibrary, ProfileError, Progress, RunLimits, described, loaded, placed};
use crate::execute::{EngineError, Trial};

/// Rounds for each pair of variants: a batch behind the other variant, and one behind its own.
const SWITCHES: usize = 15;
/// Of the rounds, those that count: what else a machine does makes an execution longer, and never shorter.
const QUIETEST: f64 = 0.1;

/// One variant.
#[derive(Clone, PartialEq, Debug)]
pub struct MeasuredVariant {
    /// Its name.
    pub name: String,
    /// In per cent.
    pub accuracy: f64,
    /// ℓ(1), ℓ(2), …, ms: medians, between measured sizes on straight lines, never falling.
    pub latency_ms: Vec<f64>,
    /// The sizes that were measured, ascending.
    pub measured: Vec<MeasuredSize>,
}

/// What the first batch of a variant takes longer than the next one, for the pair of variants where that is most. SuperServe calls
/// it the actuation of a subnet (§3, Fig. 5b).
#[derive(Clone, PartialEq, Debug)]
pub struct Switching {
    /// Rows of the batches.
    pub batch: u32,
    /// The difference of the tenth percentiles, ms; 0 if the first batch is as fast.
    pub worst_ms: f64,
    /// Which variant executed before,
    pub before: String,
    /// and which then.
    pub after: String,
}

/// What `baton supernet profile` found.
#[derive(Clone, PartialEq, Debug)]
pub struct SupernetReport {
    /// The model.
    pub model: String,
    /// Its engine.
    pub engine: String,
    /// What it was executed on.
    pub device: String,
    /// Whether that was Baton's fake GPU: then the times mean nothing.
    pub is_fake: bool,
    /// In the order of the model.
    pub variants: Vec<MeasuredVariant>,
    /// For single tasks, and for the largest batch.
    pub switching: Vec<Switching>,
}

/// As [`profile`](super::profile), of each variant.
///
/// # Errors
/// See [`ProfileError`].
pub fn profile_variants(
    model: &ModelSpec,
    device: Device,
    limits: RunLimits,
    open: OpenLibrary,
    stop: &AtomicBool,
    on_size: impl FnMut(Progress),
) -> Result<SupernetReport, ProfileError> {
    if model.variants.is_empty() {
        return Err(ProfileError::NoVariants { model: model.name.clone() });
    }
    let clock = Clock::start();
    let model = &placed(model, device);
    let mut engine = loaded(model, device, open, clock)?;
    let mut bench = Bench { trial: Trial::new(&mut *engine, model)?, limits, clock, stop };
    let runs = bench.all(model.variant_count(), model, on_size)?;
    let sizes = runs.iter().map(Vec::len).sum();
    let stopped = ProfileError::Stopped { done: sizes, sizes };
    let switching = switching(&mut bench, model)?.ok_or(stopped)?;
    let variant = |(spec, runs): (&VariantSpec, &Vec<Runs>)| MeasuredVariant {
        name: spec.name.clone(),
        accuracy: per_cent(spec.accuracy),
        latency_ms: latency_ms(runs, model.is_captured()),
        measured: runs.iter().map(Runs::measured).collect(),
    };
    let variants = model.variants.iter().zip(&runs).map(variant).collect();
    let (device, is_fake) = described(device, open);
    let (model, engine) = (model.name.clone(), model.engine.name().to_owned());
    Ok(SupernetReport { model, engine, device, is_fake, variants, switching })
}

/// `None`: `stop` was set.
fn switching(
    bench: &mut Bench<'_>,
    model: &ModelSpec,
) -> Result<Option<Vec<Switching>>, EngineError> {
    let mut found = Vec::new();
    let most = model.profile.batch_max();
    for batch in if most > 1 { vec![1, most] } else { vec![1] } {
        let pairs = (0..model.variant_count())
            .flat_map(|before| (0..model.variant_count()).map(move |after| (before, after)));
        let mut worst = (Nanos::ZERO, (0, 0));
        for pair in pairs.filter(|(before, after)| before != after) {
            let Some(longer) = longer_behind(bench, pair, batch)? else { return Ok(None) };
            worst = worst.max((longer, pair));
        }
        let name = |variant: u16| model.variants[usize::from(variant)].name.clone();
        let (longer, (before, after)) = worst;
        let (worst_ms, before, after) = (longer.as_millis_f64(), name(before), name(after));
        found.push(Switching { batch, worst_ms, before, after });
    }
    Ok(Some(found))
}

/// How much longer a batch of the second variant takes behind one of the first than behind one of its own. `None`: `stop` was set.
fn longer_behind(
    bench: &mut Bench<'_>,
    (before, after): (u16, u16),
    batch: u32,
) -> Result<Option<Nanos>, EngineError> {
    let (mut switched, mut repeated) = (Vec::new(), Vec::new());
    for _ in 0..SWITCHES {
        if bench.stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        bench.trial.run(before, batch)?;
        switched.push(bench.trial.run(after, batch)?);
        repeated.push(bench.trial.run(after, batch)?);
    }
    let [switched, repeated] = [switched, repeated].map(|mut times| {
        times.sort_unstable();
        quantile(&times, QUIETEST)
    });
    Ok(Some(switched - repeated))
}

impl fmt::Display for SupernetReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, engine {}, on {}", self.model, self.engine, self.device)?;
        if self.is_fake {
            writeln!(f, "FAKE GPU: these times mean nothing")?;
        }
        let shown: Vec<u32> =
            (0..).map(|power| 1 << power).take_while(|&b| b <= self.most()).collect();
        let heads: String =
            shown.iter().map(|b| format!(" {:>10}", format!("ℓ({b}) ms"))).collect();
        writeln!(f, "{:20} {:>10}{heads}", "variant", "accuracy")?;
        for MeasuredVariant { name, accuracy, latency_ms, .. } in &self.variants {
            let times: String =
                shown.iter().map(|&b| format!(" {:10.3}", latency_ms[b as usize - 1])).collect();
            writeln!(f, "{name:20} {:>10}{times}", format!("{accuracy:.2} %"))?;
        }
        for Switching { batch, worst_ms, before, after } in &self.switching {
            writeln!(
                f,
                "switching, b = {batch}: {worst_ms:.3} ms longer at most ({after} behind {before})"
            )?;
        }
        Ok(())
    }
}

impl SupernetReport {
    fn most(&self) -> u32 {
        self.variants.iter().map(|variant| variant.latency_ms.len()).min().unwrap_or(0) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_shows_the_powers_of_two_up_to_the_largest_batch() {
        let variant = |name: &str, base: f64| MeasuredVariant {
            name: name.into(),
            accuracy: 70.5,
            latency_ms: (0..5).map(|more| base + f64::from(more)).collect(),
            measured: Vec::new(),
        };
        let variants = vec![variant("small", 1.0), variant("large", 10.0)];
        let (before, after) = ("small".to_owned(), "large".to_owned());
        let report = SupernetReport {
            model: "net".into(),
            engine: "onnx".into(),
            device: "cpu".into(),
            is_fake: false,
            variants,
            switching: vec![Switching { batch: 4, worst_ms: 0.5, before, after }],
        };
        let text = report.to_string();
        let words: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[0], ["net,", "engine", "onnx,", "on", "cpu"]);
        assert_eq!(words[1][2..], ["ℓ(1)", "ms", "ℓ(2)", "ms", "ℓ(4)", "ms"]);
        assert_eq!(words[2], ["small", "70.50", "%", "1.000", "2.000", "4.000"]);
        assert_eq!(words[3][3..], ["10.000", "11.000", "13.000"]);
        let switching = "switching, b = 4: 0.500 ms longer at most (large behind small)";
        assert_eq!(text.lines().last(), Some(switching));
    }
}
