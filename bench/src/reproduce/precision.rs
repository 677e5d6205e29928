//! How thoroughly to measure.

/// From seconds to an hour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Precision {
    /// For tests: two points of every axis and spans too short to mean anything.
    Smoke,
    /// Minutes: one seed, short spans, fewer points. Rates are off by a few per cent.
    Quick,
    /// Over an hour on two cores: every point, from one short seed. Rates are off by a per cent or two.
    Brief,
    /// About an hour on two cores: three seeds of half a minute.
    Full,
}

impl Precision {
    /// The name in files.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Smoke => "smoke",
            Self::Quick => "quick",
            Self::Brief => "brief",
            Self::Full => "full",
        }
    }

    /// Seeds of a goodput search.
    pub(crate) fn seeds(self) -> u32 {
        match self {
            Self::Smoke | Self::Quick | Self::Brief => 1,
            Self::Full => 3,
        }
    }

    /// Warm-up and measured span of a run, s.
    pub(crate) fn spans_s(self) -> (f64, f64) {
        match self {
            Self::Smoke => (0.02, 0.06),
            Self::Quick => (3.0, 5.0),
            Self::Brief => (4.0, 8.0),
            Self::Full => (6.0, 30.0),
        }
    }

    /// The same where caches are empty at first and have to fill, s.
    pub(crate) fn cache_spans_s(self) -> (f64, f64) {
        match self {
            Self::Smoke => (0.02, 0.06),
            Self::Quick => (15.0, 20.0),
            Self::Brief => (60.0, 60.0),
            Self::Full => (120.0, 180.0),
        }
    }

    /// The points of an axis.
    pub(crate) fn points<T>(self, full: &'static [T], quick: &'static [T]) -> &'static [T] {
        match self {
            Self::Smoke => &quick[..quick.len().min(2)],
            Self::Quick => quick,
            Self::Brief | Self::Full => full,
        }
    }

    /// How many of something without an order.
    pub(crate) fn count(self, full: usize, quick: usize) -> usize {
        match self {
            Self::Smoke => quick.min(2),
            Self::Quick => quick,
            Self::Brief | Self::Full => full,
        }
    }

    /// One line for captions.
    pub(crate) fn caption(self, seeds: u32, (warmup_s, span_s): (f64, f64)) -> String {
        let noun = if seeds == 1 { "seed" } else { "seeds" };
        let spans = format!("{seeds} {noun}, {span_s} s after {warmup_s} s of warm-up");
        match self {
            Self::Brief | Self::Full => format!("Virtual time, {spans}"),
            Self::Quick | Self::Smoke => {
                format!("{} RUN, not the published figure: {spans}", self.as_str().to_uppercase())
            }
        }
    }
}
