//! What makes the figures of a run worthless.

use std::fmt;

use serde::Serialize;

/// A host that gives more of its CPU time to others measures them.
const STEAL_MAX: f64 = 0.01;
/// What is measured may be this much better than what it is compared with, and no more.
const RATIO_MAX: f64 = 1.1;

/// Why the figures of a run are not to be used; empty if nothing is known against them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(transparent)]
pub struct Unusable(Vec<String>);

impl Unusable {
    /// For these reasons.
    pub(crate) fn because(reasons: impl IntoIterator<Item = Option<String>>) -> Self {
        Self(reasons.into_iter().flatten().collect())
    }

    /// The last line for people; nothing of a run that can be used.
    pub(crate) fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { writeln!(f, "not usable: {}", self.0.join("; ")) }
    }
}

/// Too much of the CPU time went to other machines' work.
pub(crate) fn stolen(fraction: Option<f64>) -> Option<String> {
    let much = fraction.filter(|&fraction| fraction > STEAL_MAX)?;
    Some(format!("{:.1} % of the CPU was stolen, and {} % is much", much * 1e2, STEAL_MAX * 1e2))
}

/// Better than can be: what it is compared with was measured badly. `what` names the ratio and what was missed.
pub(crate) fn too_good(ratio: Option<f64>, what: &str) -> Option<String> {
    let ratio = ratio.filter(|ratio| !(..=RATIO_MAX).contains(ratio))?;
    Some(format!("{what} {ratio:.2}, above {RATIO_MAX}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Shown(Unusable);

    impl fmt::Display for Shown {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.write(f)
        }
    }

    #[test]
    fn reasons_make_one_line_and_none_make_none() {
        let fine = Unusable::because([stolen(None), stolen(Some(0.01)), too_good(Some(1.1), "")]);
        assert_eq!((Shown(fine.clone()).to_string(), fine), (String::new(), Unusable::default()));
        let missed = too_good(Some(2.0), "the peak was missed: the ratio is");
        let both = Unusable::because([stolen(Some(0.042)), None, missed]);
        assert_eq!(serde_json::to_value(&both).unwrap().as_array().map(Vec::len), Some(2));
        assert_eq!(
            Shown(both).to_string(),
            "not usable: 4.2 % of the CPU was stolen, and 1 % is much; \
             the peak was missed: the ratio is 2.00, above 1.1\n"
        );
        assert!(too_good(Some(f64::NAN), "x").is_some(), "nothing was measured");
    }
}
