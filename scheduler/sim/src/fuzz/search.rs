//! The highest good rate, of policies for which a good rate may lie above a bad one.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::goodput::PROBES;

/// Neighbouring rates differ by this factor.
const STEP: f64 = 1.0025;
/// The lowest rate that is tried, over the unit, and the highest: the analytic bound is, in practice,
/// the ceiling.
const LOWEST: f64 = 0.001;
const HIGHEST: f64 = 1.28;
/// The first stride up or down, about 2 %; each is twice the one before.
const STRIDE: i32 = 8;

/// Rates in geometric progression around a unit.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Grid {
    pub(crate) unit_rps: f64,
}

impl Grid {
    pub(crate) fn rps(self, index: i32) -> f64 {
        self.unit_rps * STEP.powi(index)
    }
}

/// The index of the rate that is `factor` times the unit, rounded.
pub(crate) fn steps(factor: f64) -> i32 {
    (factor.ln() / STEP.ln()).round() as i32
}

/// What a search found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Edge {
    /// The highest index that was judged good; `None` if none was.
    pub(crate) highest: Option<i32>,
    /// Some lower index was judged bad.
    pub(crate) good_above_bad: bool,
}

/// Asks a judge whether rates are good, each at most once. Indices refer to a [`Grid`].
pub(crate) struct Search<J> {
    judge: J,
    judged: BTreeMap<i32, bool>,
}

impl<J, E> Search<J>
where
    J: FnMut(i32) -> Result<bool, E>,
{
    pub(crate) fn new(judge: J) -> Self {
        Self { judge, judged: BTreeMap::new() }
    }

    /// Whether this index or one of the probes above it is good.
    pub(crate) fn reaches(&mut self, index: i32) -> Result<bool, E> {
        Ok(self.good(index)? || self.probe(index)?.is_some())
    }

    /// The highest good index that can be found from `start`: one whose upper neighbour is bad, as
    /// are all probes above it.
    pub(crate) fn edge(&mut self, start: i32) -> Result<Edge, E> {
        let start = start.clamp(steps(LOWEST), steps(HIGHEST));
        let above = if self.good(start)? { Some(start) } else { self.probe(start)? };
        let mut from = if above.is_some() { above } else { self.descend(start)? };
        let mut highest = None;
        while let Some(good) = from {
            let edge = self.climb(good)?;
            highest = Some(edge);
            from = self.probe(edge)?;
        }
        let good_above_bad =
            highest.is_some_and(|edge| self.judged.range(..edge).any(|(_, &good)| !good));
        Ok(Edge { highest, good_above_bad })
    }

    fn good(&mut self, index: i32) -> Result<bool, E> {
        if index > steps(HIGHEST) {
            return Ok(false);
        }
        if let Some(&known) = self.judged.get(&index) {
            return Ok(known);
        }
        let good = (self.judge)(index)?;
        self.judged.insert(index, good);
        Ok(good)
    }

    /// The first good index in longer and longer strides down from `start`.
    fn descend(&mut self, start: i32) -> Result<Option<i32>, E> {
        let (mut index, mut stride) = (start, STRIDE);
        loop {
            if self.good(index)? {
                return Ok(Some(index));
            }
            if index == steps(LOWEST) {
                return Ok(None);
            }
            index = (index - stride).max(steps(LOWEST));
            stride *= 2;
        }
    }

    /// From a good index to one whose upper neighbour is bad: in strides to a bad one, then by
    /// bisection.
    fn climb(&mut self, good: i32) -> Result<i32, E> {
        let (mut low, mut stride) = (good, STRIDE);
        let known = self.judged.range(good..).find(|(_, good)| !**good).map(|(&bad, _)| bad);
        let mut high = known.unwrap_or(low + stride);
        while self.good(high)? {
            stride *= 2;
            (low, high) = (high, high + stride);
        }
        while high - low > 1 {
            let middle = i32::midpoint(low, high);
            if self.good(middle)? { low = middle } else { high = middle }
        }
        Ok(low)
    }

    /// The first good probe above an index.
    fn probe(&mut self, index: i32) -> Result<Option<i32>, E> {
        for above in PROBES.iter().map(|&factor| index + steps(factor)) {
            if self.good(above)? {
                return Ok(Some(above));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// The edge of these good rates, from every start, and how many rates were judged at most.
    fn edges(good: impl Fn(i32) -> bool + Copy) -> (Vec<Edge>, usize) {
        let (mut edges, mut most) = (Vec::new(), 0);
        for start in [-3_000, -900, -100, -30, -3, 0, 1, 50, 200] {
            let mut search = Search::new(|index| Ok::<_, Infallible>(good(index)));
            edges.push(search.edge(start).unwrap());
            most = most.max(search.judged.len());
        }
        (edges, most)
    }

    #[test]
    fn the_edge_of_a_step_is_found_from_everywhere() {
        for edge in [-2_000, -345, -31, -1, 0, 7, 98] {
            let (edges, most) = edges(|index| index <= edge);
            let expected = Edge { highest: Some(edge), good_above_bad: false };
            assert_eq!(edges, [expected; 9], "{edge}");
            assert!(most <= 40, "{edge}: {most}");
        }
        let never = Edge { highest: None, good_above_bad: false };
        assert_eq!(edges(|_| false).0, [never; 9]);
        let ceiling = Edge { highest: Some(steps(HIGHEST)), good_above_bad: false };
        assert_eq!(edges(|_| true).0, [ceiling; 9]);
    }

    #[test]
    fn a_good_rate_a_few_per_cent_above_bad_ones_is_found() {
        // Good to −200, bad, and good again around −188, 3 % higher.
        let (edges, _) = edges(|index| index <= -200 || (-190..=-185).contains(&index));
        assert!(edges.iter().all(|edge| edge.highest == Some(-185)), "{edges:?}");
        // Strides that jump over the bad rates do not see them.
        assert!(edges.iter().any(|edge| edge.good_above_bad), "{edges:?}");
    }

    #[test]
    fn a_search_goes_on_from_every_island_it_finds() {
        // A rate 8 % higher, and from there one 15 % higher.
        let first = -200 + steps(1.08);
        let second = first + steps(1.15);
        let good = |index: i32| index <= -200 || index == first || index == second;
        let mut search = Search::new(|index| Ok::<_, Infallible>(good(index)));
        let found = search.edge(-230).unwrap();
        assert_eq!(found, Edge { highest: Some(second), good_above_bad: true });
    }

    #[test]
    fn reaching_looks_at_the_index_and_above() {
        let reaches = |good: fn(i32) -> bool, index| {
            Search::new(|index| Ok::<_, Infallible>(good(index))).reaches(index).unwrap()
        };
        assert!(reaches(|index| index <= 0, 0) && !reaches(|index| index <= 0, 1));
        assert!(reaches(|index| index == 12, 0), "3 % above");
    }

    #[test]
    fn a_grid_is_geometric() {
        let grid = Grid { unit_rps: 1_000.0 };
        assert_eq!(grid.rps(0), 1_000.0);
        assert!((grid.rps(steps(1.3)) / 1_300.0 - 1.0).abs() < 0.00125);
    }
}
