//! What `baton profile` found: the profile file, and the same for people.

use std::fmt;

use baton_topo::{EngineSpec, MeasuredSize, ModelSpec, ProfileFile};
use baton_types::Nanos;

use super::Runs;
use crate::execute::{interpolate, staircase};

/// Characters of the longest bar.
const BAR: f64 = 24.0;
/// A half that differs from the other by more says that the machine was not quiet.
const DRIFT_MAX: f64 = 0.1;

/// A profile, and what is to be known of it.
#[derive(Clone, PartialEq, Debug)]
pub struct ProfileReport {
    /// What goes into the file.
    pub file: ProfileFile,
    /// What throws doubt on it.
    pub remarks: Vec<String>,
}

impl ProfileReport {
    pub(super) fn new(model: &ModelSpec, device: String, is_fake: bool, runs: &[Runs]) -> Self {
        let measured: Vec<MeasuredSize> = runs.iter().map(Runs::measured).collect();
        let (alpha_ms, beta_ms) = line(&measured);
        let error = |size: &MeasuredSize| {
            (alpha_ms * f64::from(size.batch) + beta_ms - size.p50_ms).abs() / size.p50_ms
        };
        let file = ProfileFile {
            model: model.name.clone(),
            model_bytes: file_bytes(&model.engine),
            engine: model.engine.name().to_owned(),
            device,
            is_fake,
            alpha_ms,
            beta_ms,
            fit_error: measured.iter().map(error).fold(0.0, f64::max),
            latency_ms: latency_ms(runs, model.is_captured()),
            measured,
        };
        let remarks = remarks(runs, &file);
        Self { file, remarks }
    }
}

/// ℓ(1), ℓ(2), …: medians, never falling; between measured sizes on straight lines, of CUDA graphs as the next larger one.
pub(super) fn latency_ms(runs: &[Runs], is_captured: bool) -> Vec<f64> {
    let points: Vec<(u32, Nanos)> = runs.iter().map(|runs| (runs.batch(), runs.median())).collect();
    let table = if is_captured { staircase(&points) } else { interpolate(&points) };
    table.iter().map(|latency| latency.as_millis_f64()).collect()
}

fn file_bytes(engine: &EngineSpec) -> u64 {
    match engine {
        EngineSpec::Onnx { file, .. } => {
            std::fs::metadata(file).map_or(0, |metadata| metadata.len())
        }
        EngineSpec::Emulated { .. } | EngineSpec::Cuda => 0,
    }
}

fn remarks(runs: &[Runs], file: &ProfileFile) -> Vec<String> {
    let mut remarks = Vec::new();
    if file.is_fake {
        remarks.push("FAKE GPU: these times mean nothing".into());
    }
    let off = |runs: &&Runs| (runs.drift() - 1.0).abs() > DRIFT_MAX;
    let unsteady: Vec<&Runs> = runs.iter().filter(off).collect();
    if let Some(worst) =
        unsteady.iter().max_by(|a, b| a.drift().ln().abs().total_cmp(&b.drift().ln().abs()))
    {
        remarks.push(format!(
            "{} of {} sizes were not steady: at b = {} the second half of the executions took {:.2} times the first. \
             Measure again on a quiet machine",
            unsteady.len(),
            runs.len(),
            worst.batch(),
            worst.drift()
        ));
    }
    let falls = |pair: &&[Runs]| pair[1].median() < pair[0].median();
    if let Some(pair) = runs.windows(2).find(falls) {
        let [less, more] = [pair[0].batch(), pair[1].batch()];
        remarks.push(format!(
            "batches of {more} took less than those of {less}; a profile never falls, so both have the longer time"
        ));
    }
    remarks
}

/// α and β ≥ 0 of the line with the least squares of relative errors, ms.
fn line(measured: &[MeasuredSize]) -> (f64, f64) {
    let (mut w, mut wb, mut wbb, mut wy, mut wby) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for size in measured {
        let (b, y) = (f64::from(size.batch), size.p50_ms.max(1e-6));
        let weight = 1.0 / (y * y);
        w += weight;
        wb += weight * b;
        wbb += weight * b * b;
        wy += weight * y;
        wby += weight * b * y;
    }
    let determinant = w * wbb - wb * wb;
    // One size: all of it is β.
    if determinant <= f64::EPSILON * w * wbb {
        return (0.0, wy / w);
    }
    let (alpha, beta) = ((w * wby - wb * wy) / determinant, (wbb * wy - wb * wby) / determinant);
    match (alpha < 0.0, beta < 0.0) {
        (true, _) => (0.0, wy / w),
        (false, true) => (wby / wbb, 0.0),
        (false, false) => (alpha, beta),
    }
}

impl fmt::Display for ProfileReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ProfileFile { model, engine, device, alpha_ms, beta_ms, fit_error, .. } = &self.file;
        writeln!(f, "{model}, engine {engine}, on {device}")?;
        writeln!(
            f,
            "    b     p50 ms     p99 ms  longest ms  longest/p50    runs  inputs/s  ℓ(b)"
        )?;
        let most = self.file.measured.iter().map(|size| size.p50_ms).fold(0.0, f64::max);
        for size in &self.file.measured {
            let MeasuredSize { batch, p50_ms, p99_ms, longest_ms, runs, .. } = size;
            let (ratio, rate) = (longest_ms / p50_ms, f64::from(*batch) / p50_ms * 1e3);
            let bar = "█".repeat((p50_ms / most * BAR).round().max(1.0) as usize);
            writeln!(
                f,
                "{batch:5} {p50_ms:10.3} {p99_ms:10.3} {longest_ms:11.3} {ratio:12.2} {runs:7} {rate:9.0}  {bar}"
            )?;
        }
        let tails = self.file.measured.iter().filter_map(|size| Some((size, size.p9999_ms?)));
        for (size, p9999_ms) in tails {
            writeln!(f, "p99.99/p50 at b = {}: {:.4}", size.batch, p9999_ms / size.p50_ms)?;
        }
        writeln!(
            f,
            "ℓ(b) ≈ {alpha_ms:.4}·b + {beta_ms:.4} ms, off by at most {:.1} %",
            fit_error * 100.0
        )?;
        self.remarks.iter().try_for_each(|remark| writeln!(f, "note: {remark}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_models::emulated;

    fn sizes(points: &[(u32, f64)]) -> Vec<MeasuredSize> {
        let runs = |&(batch, ms): &(u32, f64)| {
            Runs::new(batch, vec![Nanos::from_millis_f64(ms); 4]).measured()
        };
        points.iter().map(runs).collect()
    }

    #[test]
    fn a_line_is_found_and_never_falls_or_begins_below_zero() {
        let near = |(alpha, beta): (f64, f64), wanted: (f64, f64)| {
            assert!((alpha - wanted.0).abs() < 1e-3, "{alpha} {beta}");
            assert!((beta - wanted.1).abs() < 1e-3, "{alpha} {beta}");
        };
        near(line(&sizes(&[(1, 7.0), (2, 9.0), (16, 37.0)])), (2.0, 5.0));
        // A millisecond off counts for more where batches are short.
        near(line(&sizes(&[(1, 2.0), (2, 5.0), (8, 10.0)])), (1.238_938, 0.973_451));
        near(line(&sizes(&[(1, 3.0)])), (0.0, 3.0));
        near(line(&sizes(&[(1, 3.0), (8, 3.0)])), (0.0, 3.0));
        let (alpha, beta) = line(&sizes(&[(1, 4.0), (2, 3.0)]));
        assert!(alpha == 0.0 && (3.0..4.0).contains(&beta), "{alpha} {beta}");
        let (alpha, beta) = line(&sizes(&[(1, 1.0), (2, 4.0)]));
        assert!(beta == 0.0 && (1.0..2.0).contains(&alpha), "{alpha} {beta}");
    }

    #[test]
    fn the_table_does_not_fall_and_what_is_doubtful_is_said() {
        let ms = Nanos::from_millis;
        let runs = vec![
            Runs::new(1, vec![ms(4); 4]),
            Runs::new(2, vec![ms(3); 4]),
            Runs::new(4, vec![ms(6), ms(6), ms(9), ms(9)]),
        ];
        let report = ProfileReport::new(&emulated("toy", 0, 4, 4), "cpu".into(), true, &runs);
        assert_eq!(report.file.latency_ms, [4.0, 4.0, 5.0, 6.0]);
        assert_eq!(latency_ms(&runs, true), [4.0, 4.0, 6.0, 6.0], "the graph of 4 executes 3");
        let text = report.to_string();
        let steady = ProfileReport::new(&emulated("toy", 0, 4, 1), "cpu".into(), false, &runs[..1]);
        assert_eq!(steady.remarks, [""; 0]);
        for said in ["toy, engine emulated", "FAKE GPU", "b = 4", "1.50 times", "batches of 2"] {
            assert!(text.contains(said), "{said}: {text}");
        }
    }
}
