//! How many GPUs the traffic needs, whatever is done with those there are.

/// A load of one slot.
const SLOT: u64 = 1 << 16;

/// GPUs for the sum of the models' [`ModelState::load`](crate::ModelState::load), `load`: as many as
/// efficient batches keep busy, rounded up, and a quarter of a standard deviation of a Poisson
/// distribution for chance. Nothing needs none. While more than 1 % of all tasks are lost
/// (`bad_rate`, in 1/65536) the estimate is at least one above those `present`: the profiles then
/// promise more than the GPUs do.
///
/// Unlike the part of their time that GPUs are idle (Symphony §4.4) this does not depend on whether
/// batches wait until load gathers on few GPUs.
pub fn gpus_needed(load: u64, bad_rate: u32, present: u32) -> u32 {
    let chance = (load * SLOT).isqrt() / 4;
    let needed = (load + chance).div_ceil(SLOT).min(u32::MAX.into()) as u32;
    let is_short = u64::from(bad_rate) * 100 > SLOT;
    if is_short { needed.max(present.saturating_add(1)) } else { needed }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_is_rounded_up_with_a_margin_for_chance() {
        let needed = |slots: f64| gpus_needed((slots * SLOT as f64) as u64, 0, 9);
        assert_eq!([0.0, 0.5, 1.0, 3.4, 3.9, 60.0].map(needed), [0, 1, 2, 4, 5, 62]);
    }

    #[test]
    fn lost_tasks_ask_for_another_gpu() {
        assert_eq!(gpus_needed(2 * SLOT, 655, 9), 3, "0.999 %");
        assert_eq!(gpus_needed(2 * SLOT, 656, 9), 10);
        assert_eq!(gpus_needed(20 * SLOT, 656, 9), 22);
    }
}
