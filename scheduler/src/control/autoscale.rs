//! How many GPUs the traffic of each sub-cluster needs: what an autoscaler reads.

use std::collections::VecDeque;

use baton_core::{Nanos, SubclusterId, gpus_needed};
use baton_rdma::Transport;

use super::{ControlParts, ControlThread};
use crate::migration::load_board::ModelLoad;

/// At least this long passes between two reports of a change.
const TELL_EVERY: Nanos = Nanos::from_millis(10_000);
/// A need that has been lower for this long has fallen. A task now and then, of which nothing is left after five seconds, would
/// otherwise be two changes.
const FALL_LASTS: Nanos = Nanos::from_millis(60_000);

/// A scheduler that has looked for less does not know what the traffic needs: its estimates are means of so long.
const LEARNS_FOR: Nanos = Nanos::from_millis(5_000);

/// Requests that say what part of all is lost: of fewer, chance alone may lose the 1 % that asks for another GPU.
const REQUESTS_ENOUGH: u64 = 300;
/// Looks that count while their requests are fewer: five seconds, of which the load is the mean too.
const LOOKS_MAX: usize = 5;
/// Fewer lost tasks may be chance, however few came.
const LOST_MIN: u64 = 3;

/// What was known at the last look, by sub-cluster.
#[derive(Debug)]
pub(super) struct Autoscale {
    /// Requests and lost tasks in total.
    seen: Vec<(u64, u64)>,
    /// What came between the last looks, the newest first.
    looks: Vec<VecDeque<(u64, u64)>>,
    /// Tasks in total that found no GPU at all, and when one of them last came.
    unserved: Vec<(u64, Option<Nanos>)>,
    needed: Vec<u32>,
    /// GPUs that may not go meanwhile, until it knows what is needed.
    kept: Vec<u32>,
    told: Vec<u32>,
    /// Since when the need is below the one told.
    lower_since: Vec<Option<Nanos>>,
    next_tell: Nanos,
    /// When it looked first.
    began: Option<Nanos>,
}

impl Autoscale {
    pub(super) fn new(parts: &ControlParts) -> Self {
        Self::of(parts.catalog.subclusters().count())
    }

    fn of(subclusters: usize) -> Self {
        let nothing = vec![0; subclusters];
        Self {
            seen: vec![(0, 0); subclusters],
            looks: vec![VecDeque::with_capacity(LOOKS_MAX); subclusters],
            unserved: vec![(0, None); subclusters],
            needed: nothing.clone(),
            kept: nothing.clone(),
            told: nothing,
            lower_since: vec![None; subclusters],
            next_tell: Nanos::ZERO,
            began: None,
        }
    }

    /// GPUs that the sub-cluster needs, as of the last look.
    pub(super) fn needed(&self, subcluster: SubclusterId) -> u32 {
        let at = subcluster.0 as usize;
        self.needed[at].max(self.kept[at])
    }

    /// Those that all of them need.
    pub(super) fn needed_in_all(&self) -> u32 {
        (0..self.needed.len() as u32).map(|id| self.needed(SubclusterId(id))).sum()
    }

    /// The traffic of the last look needs none.
    pub(super) fn is_idle(&self) -> bool {
        self.needed.iter().all(|&needed| needed == 0)
    }

    /// Whether it has looked for long enough.
    fn knows(&mut self, now: Nanos) -> bool {
        now >= *self.began.get_or_insert(now) + LEARNS_FOR
    }

    /// The sub-clusters whose need has changed since the last report, if another one is due.
    fn news(&mut self, now: Nanos) -> Vec<SubclusterId> {
        let is_due = now >= self.next_tell;
        let mut news = Vec::new();
        for (at, (&needed, told)) in self.needed.iter().zip(&mut self.told).enumerate() {
            let since = &mut self.lower_since[at];
            *since = (needed < *told).then(|| since.unwrap_or(now));
            let has_fallen = since.is_some_and(|since| now >= since + FALL_LASTS);
            if is_due && (needed > *told || has_fallen) {
                (*told, *since) = (needed, None);
                news.push(SubclusterId(at as u32));
            }
        }
        if !news.is_empty() {
            self.next_tell = now + TELL_EVERY;
        }
        news
    }

    /// GPUs for the tasks that came in the last five seconds and found none: the first one, whose work then says how many more.
    /// `unserved` counts them since the start.
    fn needed_at_all(&mut self, subcluster: usize, unserved: u64, now: Nanos) -> u32 {
        let (seen, last) = &mut self.unserved[subcluster];
        if unserved > *seen {
            *last = Some(now);
        }
        *seen = unserved;
        u32::from(last.is_some_and(|last| now < last + LEARNS_FOR))
    }

    /// The part of the requests of the last second that was lost, or of up to five where they are few, in 1/65536.
    fn bad_rate(&mut self, subcluster: usize, requests: u64, lost: u64) -> u32 {
        let (requests_seen, lost_seen) =
            std::mem::replace(&mut self.seen[subcluster], (requests, lost));
        // What a removed model had is not counted any more.
        let news = (requests.saturating_sub(requests_seen), lost.saturating_sub(lost_seen));
        let looks = &mut self.looks[subcluster];
        looks.truncate(LOOKS_MAX - 1);
        looks.push_front(news);
        let (mut requests, mut lost) = (0, 0);
        for look in looks.iter() {
            (requests, lost) = (requests + look.0, lost + look.1);
            if requests >= REQUESTS_ENOUGH {
                break;
            }
        }
        let is_chance = lost < LOST_MIN;
        if is_chance { 0 } else { ((lost << 16) / requests.max(1)).min(u32::MAX.into()) as u32 }
    }
}

/// Requests, lost tasks and busy slots of these models together.
fn sums(loads: impl Iterator<Item = ModelLoad>) -> [u64; 3] {
    loads.fold([0; 3], |[requests, lost, slots], load| {
        [requests + load.requests, lost + load.lost, slots + load.slots]
    })
}

impl<T: Transport> ControlThread<T> {
    /// Counts the GPUs that are needed, and writes down what has changed. Before it knows, none that serves may go.
    pub(super) fn check_needs(&mut self, now: Nanos) {
        let subclusters: Vec<SubclusterId> = self.parts.catalog.subclusters().collect();
        self.autoscale.needed = subclusters.iter().map(|&id| self.needed(id, now)).collect();
        let knows = self.autoscale.knows(now);
        let kept = |&id: &SubclusterId| if knows { 0 } else { self.roster.serving(id) };
        self.autoscale.kept = subclusters.iter().map(kept).collect();
        self.parts.counters.gpus_needed.set(self.autoscale.needed_in_all().into());
        if !knows {
            return;
        }
        for id in self.autoscale.news(now) {
            let (subcluster, gpus) =
                (self.parts.catalog.subcluster_name(id), self.roster.serving(id));
            let gpus_needed = self.autoscale.needed(id);
            tracing::info!(subcluster, gpus_needed, gpus, "what the traffic needs has changed");
        }
    }

    fn needed(&mut self, subcluster: SubclusterId, now: Nanos) -> u32 {
        let models = || self.parts.catalog.served_by(subcluster).map(|(model, _)| model);
        let [requests, lost, slots] = sums(models().map(|model| self.parts.load.of(model)));
        let unserved = models().map(|model| self.parts.tasks.model(model).unserved).sum();
        let (at, present) = (subcluster.0 as usize, self.roster.serving(subcluster));
        let at_all = self.autoscale.needed_at_all(at, unserved, now);
        let bad_rate = self.autoscale.bad_rate(at, requests, lost);
        gpus_needed(slots, bad_rate, present).max(at_all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_needed_is_told_when_it_changes_and_not_too_often() {
        let mut scale = Autoscale::of(3);
        let start = Nanos::from_millis(1_000);
        assert_eq!(scale.news(start), []);
        scale.needed = vec![0, 2, 1];
        assert_eq!(scale.news(start), [SubclusterId(1), SubclusterId(2)]);
        scale.needed = vec![0, 3, 1];
        assert_eq!(scale.news(start + TELL_EVERY - Nanos(1)), [], "it was told a moment ago");
        assert_eq!(scale.news(start + TELL_EVERY), [SubclusterId(1)]);
        assert_eq!(scale.news(start + TELL_EVERY.times(3)), []);
    }

    #[test]
    fn models_of_a_subcluster_count_together() {
        let load = |requests, lost, slots| {
            let others =
                ModelLoad { refused: 1_000, ended: 1_000, waiting: 1_000, ..Default::default() };
            ModelLoad { requests, lost, slots, ..others }
        };
        assert_eq!(sums([load(1, 20, 300), load(4, 50, 600)].into_iter()), [5, 70, 900]);
        assert_eq!(sums(std::iter::empty()), [0; 3]);
    }

    /// A task every ten seconds needs a GPU for five of them.
    #[test]
    fn a_need_that_comes_and_goes_is_told_once_and_its_end_once_it_has_lasted() {
        let mut scale = Autoscale::of(1);
        let mut told_at = Vec::new();
        let start = Nanos::from_millis(1_000);
        for second in 0..600 {
            scale.needed = vec![u32::from(second < 300 && second % 10 < 5)];
            let news = scale.news(start + Nanos::from_millis(1_000 * second));
            told_at.extend(news.iter().map(|_| second));
        }
        assert_eq!(told_at, [0, 355], "the last of its seconds is 294");
    }

    #[test]
    fn a_fall_behind_one_that_was_told_has_to_last_as_long() {
        let mut scale = Autoscale::of(1);
        let second = |second: u64| Nanos::from_millis(1_000 * second);
        let mut told_at = Vec::new();
        for now in 1..=200 {
            scale.needed = vec![match scale.told[0] {
                _ if now < 10 => 3,
                3 => 2,
                _ => 1,
            }];
            told_at.extend(scale.news(second(now)).iter().map(|_| now));
        }
        assert_eq!(told_at, [1, 70, 131]);
    }

    #[test]
    fn it_is_idle_only_if_no_subcluster_needs_anything() {
        let mut scale = Autoscale::of(2);
        for (needed, is_idle) in [([0, 0], true), ([0, 3], false), ([3, 0], false)] {
            scale.needed = needed.to_vec();
            assert_eq!(scale.is_idle(), is_idle, "{needed:?}");
        }
    }

    /// In a cluster that has run for long, what is lost now would be a small part of all requests.
    #[test]
    fn losses_are_a_part_of_the_requests_since_the_last_look() {
        let mut scale = Autoscale::of(2);
        assert_eq!(scale.bad_rate(1, 1_000_000, 0), 0);
        assert_eq!(scale.bad_rate(1, 1_000_400, 100), 1 << 14);
        assert_eq!(scale.bad_rate(1, 1_000_700, 100), 0, "no more were lost");
        assert_eq!(scale.bad_rate(0, 16, 4), 1 << 14, "of another sub-cluster");
        assert_eq!(scale.bad_rate(1, 50, 0), 0, "a model has gone");
        assert_eq!(scale.bad_rate(1, 450, 200), 1 << 15, "what counts is what has come since");
    }

    /// Otherwise an autoscaler that has taken the last GPU away would never bring one back.
    #[test]
    fn tasks_that_find_no_gpu_ask_for_one_for_five_seconds() {
        let mut scale = Autoscale::of(2);
        let second = |second: u64| Nanos::from_millis(1_000 * second);
        assert_eq!(scale.needed_at_all(0, 0, second(1)), 0);
        assert_eq!(scale.needed_at_all(0, 1, second(2)), 1, "one task is no chance");
        assert_eq!(scale.needed_at_all(1, 0, second(2)), 0, "of another sub-cluster");
        let after: Vec<u32> = (3..=7).map(|at| scale.needed_at_all(0, 1, second(at))).collect();
        assert_eq!(after, [1, 1, 1, 1, 0], "it came at 2 s");
        assert_eq!(scale.needed_at_all(0, 0, second(8)), 0, "a model has gone");
        assert_eq!(scale.needed_at_all(0, 1, second(9)), 1, "of another one");
    }

    /// One of twenty tasks is 5 %, and says nothing; twenty a second of which each second loses one say it in the third.
    #[test]
    fn few_losses_of_few_tasks_are_chance_until_five_seconds_say_the_same() {
        let mut scale = Autoscale::of(2);
        let one_percent = (1 << 16) / 100;
        assert_eq!(scale.bad_rate(0, 20, 1), 0);
        assert_eq!(scale.bad_rate(0, 40, 2), 0);
        assert!(scale.bad_rate(0, 60, 3) > one_percent);
        let later: Vec<u32> = (4..=8).map(|look| scale.bad_rate(0, 20 * look, 3)).collect();
        assert!(later[..2].iter().all(|rate| *rate > one_percent), "{later:?}");
        assert_eq!(later[2..], [0, 0, 0], "the first of the three is five seconds old");
        assert_eq!(scale.bad_rate(1, 290, 2), 0);
        assert!(scale.bad_rate(1, 580, 5) < one_percent, "of all requests that were needed");
    }
}
