//! GPU slots that have not room for every model: which there are, how long LOADs take, and which of them go wrong.

use baton_core::{Nanos, SubclusterId};
use baton_topo::{Cluster, ModelSpec, WeightsCacheSpec, WeightsSpec};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::changes::Change;

const PAGE_BYTES: u64 = 1 << 20;
/// Of 1,000 LOADs, how many fail, and how many hang.
const FAILURES: u32 = 40;
const HANGS: u32 = 10;
/// How long a LOAD hangs: longer than most runs.
const HANG: Nanos = Nanos::from_millis(2_000);

/// Gives every backend of one run in three a cache, in which one model fits at least and one at least does not.
pub(crate) fn draw(seed: u64, cluster: &mut Cluster) {
    let mut rng = StdRng::seed_from_u64(seed ^ 0x6361_6368);
    if rng.random_range(0..3) > 0 {
        return;
    }
    for id in (0..cluster.subclusters.len() as u32).map(SubclusterId) {
        let mut models: Vec<&mut ModelSpec> =
            cluster.models.iter_mut().filter(|model| model.subcluster == id).collect();
        let mut pages = Vec::new();
        for model in &mut models {
            let load = Nanos::from_micros(rng.random_range(200..=5_000));
            pages.push(rng.random_range(1..=4));
            let bytes = pages[pages.len() - 1] * PAGE_BYTES - rng.random_range(0..100);
            model.weights = Some(WeightsSpec { bytes, load, is_guess: bytes.is_multiple_of(2) });
        }
        let largest = pages.iter().copied().max().unwrap_or(1) as u32;
        let all = pages.iter().sum::<u64>() as u32;
        let pages = (largest + rng.random_range(0..=2)).min(all.max(largest + 1) - 1);
        let cache = WeightsCacheSpec { pages, page_bytes: PAGE_BYTES };
        let backends = cluster.backends.iter_mut().filter(|backend| backend.subcluster == id);
        backends.for_each(|backend| backend.weights_cache = Some(cache));
    }
}

/// Gives models that are added weights: one in eight has none, or more than there is room for.
pub(crate) fn weigh(seed: u64, cluster: &Cluster, changes: &mut [(Nanos, Change)]) {
    let mut rng = StdRng::seed_from_u64(seed ^ 0x7765_6967);
    for (_, change) in changes {
        let (Change::Add(spec) | Change::Exchange(spec)) = change else { continue };
        let room = cluster.smallest_weights_cache(spec.subcluster).map_or(1, |cache| cache.pages);
        let pages = match rng.random_range(0..16) {
            0 => continue,
            1 => u64::from(room) + 1,
            _ => rng.random_range(1..=u64::from(room)),
        };
        let load = Nanos::from_micros(rng.random_range(200..=5_000));
        spec.weights = Some(WeightsSpec { bytes: pages * PAGE_BYTES, load, is_guess: false });
    }
}

/// LOADs for which a slot has memory for one model alone, whatever its backend says: one slot in eight has some.
pub(crate) fn short(rng: &mut StdRng) -> u32 {
    if rng.random_range(0..8) == 0 { rng.random_range(1..=20) } else { 0 }
}

/// How a LOAD goes.
pub(crate) struct Course {
    /// How long it takes.
    pub(crate) takes: Nanos,
    pub(crate) fails: bool,
    pub(crate) hangs: bool,
}

/// Of a LOAD that should take `load`.
pub(crate) fn course(rng: &mut StdRng, load: Nanos) -> Course {
    let hangs = rng.random_range(0..1000) < HANGS;
    let takes = Nanos(load.0 * rng.random_range(50..=250) / 100);
    let takes = if hangs { HANG } else { takes };
    Course { takes, fails: rng.random_range(0..1000) < FAILURES, hangs }
}
