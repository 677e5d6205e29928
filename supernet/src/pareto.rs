//! Which variants are worth serving.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A variant and how long it takes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// Its name.
    pub name: String,
    /// In per cent.
    pub accuracy: f64,
    /// Its own ONNX file, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// ℓ(1), ℓ(2), …, ms.
    pub latency_ms: Vec<f64>,
}

/// A variant that is not worth serving.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Left {
    /// Its name.
    pub name: String,
    /// Which one is no less accurate and takes no longer.
    pub because_of: String,
}

/// What is worth serving, by cost, and what is not.
#[derive(Clone, PartialEq, Debug)]
pub struct Pareto {
    /// The cheapest first; accuracy rises, and ℓ(b) does not fall for any b.
    pub kept: Vec<Measured>,
    /// The rest.
    pub left: Vec<Left>,
    /// By how much the times of a variant that is dearer for large batches, and cheaper for small ones, were raised at most: a part of what was
    /// measured, for each of `kept`.
    pub raised: Vec<f64>,
}

/// Keeps the variants that no other beats in accuracy at no more cost, where cost is ℓ of the largest batch. Ends of profiles of different
/// lengths are left out.
pub fn pareto(mut variants: Vec<Measured>) -> Pareto {
    let sizes = variants.iter().map(|variant| variant.latency_ms.len()).min().unwrap_or(0);
    for variant in &mut variants {
        variant.latency_ms.truncate(sizes);
    }
    let cost = |variant: &Measured| variant.latency_ms.last().copied().unwrap_or(0.0);
    variants.sort_by(|a, b| {
        cost(a).total_cmp(&cost(b)).then_with(|| b.accuracy.total_cmp(&a.accuracy))
    });
    let mut found = Pareto { kept: Vec::new(), left: Vec::new(), raised: Vec::new() };
    for mut variant in variants {
        match found.kept.last() {
            Some(cheaper) if cheaper.accuracy >= variant.accuracy => {
                let because_of = cheaper.name.clone();
                found.left.push(Left { name: variant.name, because_of });
                continue;
            }
            Some(cheaper) => found.raised.push(raise(&mut variant, &cheaper.latency_ms)),
            None => found.raised.push(0.0),
        }
        found.kept.push(variant);
    }
    found
}

/// Nowhere less than the cheaper one: what is planned with may be too long, and never too short.
fn raise(variant: &mut Measured, cheaper: &[f64]) -> f64 {
    let mut raised = 0.0_f64;
    for (latency, &least) in variant.latency_ms.iter_mut().zip(cheaper) {
        raised = raised.max(least / *latency - 1.0);
        *latency = latency.max(least);
    }
    raised
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variant(name: &str, accuracy: f64, latency_ms: &[f64]) -> Measured {
        Measured { name: name.into(), accuracy, file: None, latency_ms: latency_ms.to_vec() }
    }

    #[test]
    fn what_another_beats_is_left_out_and_times_never_fall() {
        let found = pareto(vec![
            variant("large", 80.0, &[4.0, 9.0]),
            variant("small", 70.0, &[1.0, 2.0]),
            variant("beaten", 75.0, &[1.0, 8.0]),
            variant("middle", 76.0, &[0.5, 6.0, 7.0]),
            variant("same", 80.0, &[5.0, 9.0]),
        ]);
        let names: Vec<&str> = found.kept.iter().map(|variant| variant.name.as_str()).collect();
        assert_eq!(names, ["small", "middle", "large"]);
        assert_eq!(found.kept[1].latency_ms, [1.0, 6.0]);
        assert_eq!(found.raised, [0.0, 1.0, 0.0]);
        let left: Vec<_> = found.left.iter().map(|l| (&*l.name, &*l.because_of)).collect();
        assert_eq!(left, [("beaten", "middle"), ("same", "large")]);
    }

    #[test]
    fn a_time_is_raised_to_that_of_the_next_cheaper_variant() {
        let found = pareto(vec![
            variant("small", 70.0, &[1.0, 2.0]),
            variant("middle", 76.0, &[3.0, 4.0]),
            variant("large", 80.0, &[2.0, 8.0]),
        ]);
        assert_eq!((&found.kept[2].latency_ms[..], found.raised[2]), (&[3.0, 8.0][..], 0.5));
    }

    #[test]
    fn the_cheaper_of_two_that_cost_the_same_is_the_more_accurate() {
        let found = pareto(vec![variant("a", 70.0, &[1.0]), variant("b", 71.0, &[1.0])]);
        assert_eq!(found.kept.len(), 1);
        assert_eq!(found.kept[0].name, "b");
    }
}
