//! Which ModelThread a model lives on: at the start by the rates that are expected, later by those
//! that are seen. What a request costs does not depend on the model, so rates are load.

/// A model and the ModelThread it should move to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Move {
    pub(crate) model: usize,
    pub(crate) to: usize,
}

/// The ModelThread of each model, of `threads`. Models with an expected rate go, the busiest first,
/// to the thread with the lowest sum of rates; then the others, in turn, to the one with the fewest
/// models.
pub(crate) fn at_start(expected_rps: &[Option<f64>], threads: usize) -> Vec<usize> {
    let mut homes = vec![0; expected_rps.len()];
    let (mut load, mut models) = (vec![0.0f64; threads], vec![0usize; threads]);
    let rate = |model: usize| expected_rps[model].unwrap_or(0.0);
    let mut order: Vec<usize> = (0..homes.len()).collect();
    // Stable: models without a rate keep the order of the cluster file.
    order.sort_by(|&a, &b| rate(b).total_cmp(&rate(a)));
    for model in order {
        let known = expected_rps[model].is_some();
        let by_load = |&a: &usize, &b: &usize| load[a].total_cmp(&load[b]);
        let by_count = |&a: &usize, &b: &usize| models[a].cmp(&models[b]);
        let least = |a: &usize, b: &usize| {
            if known {
                by_load(a, b).then(by_count(a, b))
            } else {
                by_count(a, b).then(by_load(a, b))
            }
        };
        let home = (0..threads).min_by(least).expect("there is a thread");
        homes[model] = home;
        load[home] += rate(model);
        models[home] += 1;
    }
    homes
}

/// A thread is overloaded beside the others when it has this many times the mean load.
const UNEVEN: f64 = 1.25;
/// A move must take this share of its load off the busiest thread, or it is not worth the trouble.
const WORTH: f64 = 0.05;

/// The move that relieves the busiest thread most, if there is one worth making: the larger of the
/// two threads' loads becomes as small as one move can make it. `homes` and `rates_rps` by model.
pub(crate) fn relief(rates_rps: &[f64], homes: &[usize], threads: usize) -> Option<Move> {
    let mut load = vec![0.0f64; threads];
    homes.iter().zip(rates_rps).for_each(|(&home, rate)| load[home] += rate);
    let by_load = |a: &usize, b: &usize| load[*a].total_cmp(&load[*b]);
    let (busiest, idlest) = ((0..threads).max_by(by_load)?, (0..threads).min_by(by_load)?);
    let mean = load.iter().sum::<f64>() / threads as f64;
    if load[busiest] <= UNEVEN * mean {
        return None;
    }
    let after = |rate: f64| (load[busiest] - rate).max(load[idlest] + rate);
    let movable = (0..homes.len()).filter(|&model| homes[model] == busiest);
    let best = movable
        .map(|model| (model, after(rates_rps[model])))
        .min_by(|(_, a), (_, b)| a.total_cmp(b));
    let (model, left) = best?;
    (left <= (1.0 - WORTH) * load[busiest]).then_some(Move { model, to: idlest })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads(rates: &[f64], homes: &[usize], threads: usize) -> Vec<f64> {
        let mut load = vec![0.0; threads];
        homes.iter().zip(rates).for_each(|(&home, rate)| load[home] += rate);
        load
    }

    #[test]
    fn without_rates_models_are_dealt_in_turn() {
        assert_eq!(at_start(&[None; 5], 2), [0, 1, 0, 1, 0]);
    }

    #[test]
    fn models_without_a_rate_go_where_the_fewest_are() {
        assert_eq!(at_start(&[Some(1_000.0), None, None, None], 2), [0, 1, 1, 0]);
    }

    #[test]
    fn of_threads_with_the_same_load_the_one_with_fewer_models_gets_the_next() {
        let rates = [10.0, 5.0, 5.0, 4.0].map(Some);
        assert_eq!(at_start(&rates, 2), [0, 1, 1, 0]);
        assert_eq!(at_start(&[Some(1.0), Some(0.0), Some(0.0), None], 3), [0, 1, 2, 1]);
    }

    #[test]
    fn with_rates_the_loads_are_even() {
        let rates = [Some(70.0), Some(10.0), None, Some(40.0), Some(30.0)];
        let homes = at_start(&rates, 2);
        let known: Vec<f64> = rates.iter().map(|rate| rate.unwrap_or(0.0)).collect();
        let load = loads(&known, &homes, 2);
        assert!(load[0].max(load[1]) <= 80.0, "{homes:?} {load:?}");
        let mut counts = [0; 2];
        homes.iter().for_each(|&home| counts[home] += 1);
        assert_eq!(counts.iter().max(), Some(&3), "{homes:?}");
    }

    #[test]
    fn the_busiest_thread_is_relieved_by_what_evens_it_out_best() {
        let rates = [50.0, 30.0, 20.0, 10.0];
        assert_eq!(relief(&rates, &[0, 0, 0, 1], 2), Some(Move { model: 0, to: 1 }));
        assert_eq!(relief(&rates, &[1, 0, 0, 1], 2), None, "even enough");
        assert_eq!(relief(&[100.0, 1.0], &[0, 1], 2), None, "one model cannot be divided");
        assert_eq!(relief(&[0.0; 4], &[0; 4], 2), None, "nothing happens");
        assert_eq!(relief(&rates, &[0; 4], 1), None, "there is no other thread");
    }

    proptest::proptest! {
        #[test]
        fn moves_never_make_the_busiest_busier_and_come_to_an_end(
            rates in proptest::collection::vec(0.0..1_000.0f64, 1..40),
            threads in 1usize..6,
            seed in 0usize..100,
        ) {
            let mut homes: Vec<usize> =
                (0..rates.len()).map(|model| (model * seed / 7) % threads).collect();
            let mut highest = f64::INFINITY;
            for _ in 0..rates.len() * threads * 4 {
                let load = loads(&rates, &homes, threads);
                let most = load.iter().copied().fold(0.0, f64::max);
                proptest::prop_assert!(most <= highest * (1.0 + 1e-12), "{highest} then {most}");
                highest = most;
                let Some(Move { model, to }) = relief(&rates, &homes, threads) else { return Ok(()) };
                proptest::prop_assert!(homes[model] != to);
                homes[model] = to;
            }
            proptest::prop_assert!(false, "it goes on for ever");
        }
    }
}
