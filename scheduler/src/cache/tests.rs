use std::path::Path;

use baton_core::{Grant, RankLimits, Readiness};
use baton_topo::check_text;

use super::link::{CacheLink, LoadReport, cache_links};
use super::news::{Failure, LoadEnd};
use super::*;

const MODELS: usize = 4;
/// Of the other sub-cluster, whose backend holds it always.
const UNBOUND: ModelId = ModelId(3);
const SLOT: Gpu = Gpu { id: GpuId(0), life: 0 };

/// Three models of two pages, in a sub-cluster of four-page caches, and one in a sub-cluster without; `gpus` slots each.
fn cluster(gpus: u32) -> Cluster {
    let model = |id: u32| {
        let (subcluster, keys) = match id {
            3 => ("plain", ""),
            _ => ("cached", "weights_mib = 2\nload_ms = 5\n"),
        };
        format!(
            "[[model]]\nname = \"m{id}\"\nalpha_ms = 1\nbeta_ms = 4\nslo_ms = 100\nsubcluster = \"{subcluster}\"\n{keys}"
        )
    };
    let backend = |name: &str, keys: &str| {
        format!("[[backend]]\nname = \"{name}\"\nsubcluster = \"{name}\"\ngpus = {gpus}\n{keys}")
    };
    let text = (0..MODELS as u32).map(model).collect::<String>()
        + &backend("cached", "weights_cache_mib = 4\npage_mib = 1\n")
        + &backend("plain", "");
    check_text(Path::new("cluster.toml"), &text).cluster.unwrap()
}

/// What was granted.
#[derive(Default)]
struct Granted(Vec<ModelId>);

impl RankSink for Granted {
    fn grant(&mut self, model: ModelId, _: Grant) {
        self.0.push(model);
    }
    fn drained(&mut self, _: Gpu) {}
}

struct Bed {
    cache: Cache,
    rank: RankState,
    links: Vec<CacheLink>,
    told: Vec<usize>,
}

impl Bed {
    /// Two ModelThreads, and no slot.
    fn new() -> Self {
        let cluster = cluster(1);
        let limits = CacheLimits::of(&cluster).unwrap();
        let (ends, links) = cache_links(2, MODELS, limits.slots as usize);
        let cache = Cache::new(&cluster, limits, MODELS, ends);
        let serving: Vec<SubclusterId> =
            cluster.models.iter().map(|model| model.subcluster).collect();
        let sizes = RankLimits { gpus: 64, subclusters: 2, copies: limits.copies };
        let mut rank = RankState::new(sizes, &serving);
        cache.bind(&mut rank);
        Self { cache, rank, links, told: Vec::new() }
    }

    /// A slot of four pages that holds these models, as it says.
    fn with_slot(held: &[u32]) -> Self {
        let mut bed = Self::new();
        let models = held.iter().map(|&model| ModelId(model)).collect();
        bed.rank.on_gpu_join(Nanos::ZERO, SLOT, SubclusterId(0), &mut Granted::default());
        let memory = SlotMemory { pages: 4, models };
        bed.cache.join(Nanos::ZERO, SLOT, &memory, &mut bed.rank, &mut Granted::default());
        bed
    }

    /// Every model lives on this thread.
    fn settle(&mut self, now: Nanos, home: usize) -> usize {
        let told = &mut self.told;
        self.cache.settle(now, &mut self.rank, |_| home, |thread| told.push(thread))
    }

    fn take_reports(&mut self, now: Nanos) -> usize {
        self.cache.take_reports(now, &mut self.rank, &mut Granted::default())
    }

    fn orders(&self, thread: usize) -> Vec<CacheOrder> {
        std::iter::from_fn(|| self.links[thread].order()).collect()
    }

    /// Whether a batch of the model that is due gets the slot.
    fn serves(mut self, model: u32) -> bool {
        let at = Nanos::from_millis(50);
        let candidate = Candidate {
            batch: 1,
            exec_at: Nanos::ZERO,
            invalid_after: at,
            urgency: at,
            bad_rate: 0,
            delay: Nanos::ZERO,
            latest: at,
            latency: Nanos::from_millis(5),
            alone: Nanos::from_millis(5),
            slack: Nanos::ZERO,
            dispersion: 16,
            excess: Candidate::NOT_EARLY,
            run: 0,
        };
        let mut out = Granted::default();
        self.rank.note_candidate(Nanos::ZERO, ModelId(model), Some(candidate), 0);
        self.rank.on_timer(Nanos::ZERO, &mut out);
        out.0 == [ModelId(model)]
    }

    fn resident(&self) -> Vec<u32> {
        (0..MODELS as u32).filter(|&m| self.cache.loads.is_resident(ModelId(m), SLOT)).collect()
    }
}

/// The first LOAD's name.
fn load_in(orders: &[CacheOrder]) -> Option<(u64, ModelId)> {
    orders.iter().find_map(|order| match order {
        CacheOrder::Load(load) => Some((load.name, load.model)),
        CacheOrder::Readiness(..) => None,
    })
}

#[test]
fn there_is_room_for_twice_the_slots_of_the_file_and_for_a_few_in_any_case() {
    let limits =
        |gpus| CacheLimits::of(&cluster(gpus)).map(|limits| (limits.slots, limits.residents));
    assert_eq!([1, 16, 20].map(limits), [64, 64, 80].map(|slots| Some((slots, 4))));
    let mut plain = cluster(1);
    plain.backends.remove(0);
    assert_eq!(CacheLimits::of(&plain), None);
}

#[test]
fn at_first_the_home_of_each_model_that_has_to_be_loaded_learns_that_and_once() {
    let mut bed = Bed::new();
    assert_eq!(bed.settle(Nanos::ZERO, 1), 3);
    let cold = Readiness::Cold { load: Nanos::from_millis(5) };
    let news = |model| CacheOrder::Readiness(ModelId(model), cold);
    assert_eq!(bed.orders(1), [0, 1, 2].map(news));
    assert_eq!(bed.settle(Nanos(1), 1), 0);
    assert_eq!(bed.told, [1; 3]);
    // Model 0 has a new home.
    bed.cache.has_moved(ModelId(0));
    bed.cache.has_moved(ModelId(0));
    bed.cache.has_moved(UNBOUND);
    assert_eq!(bed.settle(Nanos(2), 0), 1);
    assert_eq!(bed.orders(0), [news(0)]);
}

#[test]
fn a_task_is_counted_at_the_next_count_and_only_its_model_is_loaded() {
    let mut bed = Bed::with_slot(&[]);
    assert_eq!(bed.settle(Nanos::ZERO, 0), 3, "news alone: no task has come");
    bed.orders(0);
    bed.links[0].arrived(ModelId(1), true);
    let due = bed.cache.next_timer();
    assert_eq!(due, COUNT_EVERY);
    assert_eq!(bed.settle(due - Nanos(1), 0), 0);
    assert_eq!(bed.settle(due, 0), 2, "a LOAD, and when it will be there");
    let (name, model) = load_in(&bed.orders(0)).unwrap();
    assert_eq!(model, ModelId(1));
    assert_eq!(bed.settle(due + COUNT_EVERY, 0), 0, "it is counted once");
    let end = LoadEnd::Loaded { took: Nanos::from_millis(5) };
    for name in [name + 1, name] {
        bed.links[0].report(LoadReport { name, slot: SLOT.id, end });
    }
    assert_eq!(bed.take_reports(due + COUNT_EVERY), 2, "one names no LOAD");
    assert_eq!(bed.resident(), [1]);
}

#[test]
fn a_load_that_no_model_thread_takes_has_failed_and_counts_as_over_after_a_pause() {
    let mut bed = Bed::with_slot(&[]);
    bed.settle(Nanos::ZERO, 0);
    bed.links[0].arrived(ModelId(1), true);
    bed.links.clear();
    let at = COUNT_EVERY + Nanos(7);
    bed.settle(at, 0);
    assert_eq!(bed.cache.counters().loads, 1);
    let over = at + FAILED_PAUSE;
    assert_eq!(bed.take_reports(over - Nanos(1)), 0);
    bed.settle(over - Nanos(1), 0);
    assert_eq!(bed.cache.counters().loads, 1, "the slot is not asked again at once");
    assert_eq!(bed.cache.next_timer(), over);
    assert_eq!(bed.take_reports(over), 1);
    assert_eq!(bed.cache.counters().failed, 1);
    let of_it = bed.cache.levels().model(ModelId(1));
    assert_eq!((of_it.failed, of_it.failure), (1, Some(Failure::Unsent)));
    assert_eq!(bed.cache.loads.free_pages(SLOT.id), 4);
}

#[test]
fn pages_of_models_that_cannot_be_counted_there_are_taken_all_the_same() {
    let held = Bed::with_slot(&[2, 0]);
    assert_eq!((held.resident(), held.cache.loads.free_pages(SLOT.id)), (vec![0, 2], 0));
    // One of another sub-cluster, of whose pages this one knows nothing.
    let strange = Bed::with_slot(&[3, 1]);
    assert_eq!((strange.resident(), strange.cache.loads.free_pages(SLOT.id)), (vec![1], 2));
    // One too many, and two pages are not to be relied on.
    let full = Bed::with_slot(&[0, 1, 2]);
    assert_eq!((full.resident(), full.cache.loads.free_pages(SLOT.id)), (vec![0], 0));
    let shown = full.cache.levels().pages_free(SLOT.id);
    assert_eq!(shown, Some(0));
    let serves = |model| Bed::with_slot(&[0, 1, 2]).serves(model);
    assert_eq!([0, 1, 2].map(serves), [true, false, false]);
}

#[test]
fn a_model_that_is_removed_leaves_its_pages() {
    let mut bed = Bed::with_slot(&[0, 1]);
    assert!(bed.cache.forget(UNBOUND), "there is nothing to forget");
    assert_eq!((bed.resident(), bed.cache.levels().pages_free(SLOT.id)), (vec![0, 1], Some(0)));
    assert!(bed.cache.forget(ModelId(0)));
    assert_eq!((bed.resident(), bed.cache.levels().pages_free(SLOT.id)), (vec![1], Some(2)));
    assert!(!bed.cache.is_bound(ModelId(0)) && bed.cache.is_bound(ModelId(1)));
}

/// They came after the last count.
#[test]
fn tasks_of_a_removed_model_are_not_those_of_the_next_with_its_number() {
    let mut bed = Bed::with_slot(&[]);
    bed.settle(Nanos::ZERO, 0);
    bed.links[0].arrived(ModelId(1), true);
    assert!(bed.cache.forget(ModelId(1)));
    let (load, alone) = (Nanos::from_millis(5), Nanos::from_millis(5));
    let weights = Weights { pages: 2, load, is_guess: false, alone };
    bed.cache.serve(ModelId(1), SubclusterId(0), weights, &mut bed.rank);
    bed.settle(COUNT_EVERY, 0);
    assert_eq!(load_in(&bed.orders(0)), None);
}

#[test]
fn a_slot_that_has_left_holds_nothing() {
    let mut bed = Bed::with_slot(&[0, 1]);
    bed.cache.leave(Nanos::ZERO, SLOT);
    assert_eq!((bed.resident(), bed.cache.levels().pages_free(SLOT.id)), (vec![], Some(4)));
}

/// A thread that has no room for them now hears of them later.
#[test]
fn news_for_which_a_thread_has_no_room_waits() {
    let mut bed = Bed::with_slot(&[]);
    let full = CacheOrder::Readiness(UNBOUND, Readiness::Resident);
    while bed.cache.ends.threads[1].try_send(full.clone()).is_ok() {}
    assert_eq!(bed.settle(Nanos::ZERO, 1), 0);
    bed.orders(1);
    assert_eq!(bed.settle(Nanos(1), 1), 3, "each model's, and once");
    assert_eq!(bed.orders(1).len(), 3);
    assert_eq!(bed.settle(Nanos(2), 1), 0);
}

#[test]
fn a_load_that_failed_counts_as_over_when_its_pause_is() {
    let mut bed = Bed::with_slot(&[]);
    bed.settle(Nanos::ZERO, 0);
    bed.orders(0);
    bed.links[0].arrived(ModelId(1), true);
    bed.settle(COUNT_EVERY, 0);
    let (name, _) = load_in(&bed.orders(0)).unwrap();
    let end = LoadEnd::Failed(Failure::Hung);
    bed.links[0].report(LoadReport { name, slot: SLOT.id, end });
    let at = COUNT_EVERY + Nanos(3);
    assert_eq!(bed.take_reports(at), 1);
    bed.settle(COUNT_EVERY.times(2), 0);
    assert_eq!(bed.cache.next_timer(), at + FAILED_PAUSE, "before the next count");
}
