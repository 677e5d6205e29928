//! What LoadState loads, and what leaves for it, under the rule `baton`: step by step.

mod load_world;

use baton_core::{Candidate, GpuId, GpuUpdate, LoadRule, ModelId, Readiness, Weights};
use load_world::{MS, PAGES, Step, World, candidate, pages};

/// A batch waits, which must begin within the time.
fn waits(world: &mut World, model: u32, within_ms: u64, change: impl FnOnce(&mut Candidate)) {
    let mut waiting = candidate(world.out.now + MS.times(within_ms));
    change(&mut waiting);
    world.state.on_candidate(world.out.now, ModelId(model), Some(waiting));
}

#[test]
fn a_model_that_is_wanted_everywhere_is_loaded_and_the_least_wanted_leaves() {
    let mut world = World::new(LoadRule::Baton, 1);
    world.join(0);
    // Models 0, 4 and 8 take one page each, 3 and 7 four: the slot is full with 3 and 7.
    for model in [3, 7] {
        world.step(&Step::Want(model, 50));
        world.step(&Step::Done(0, 5));
        world.step(&Step::Content(model));
    }
    (0..9).for_each(|_| world.step(&Step::Want(3, 50)));
    world.step(&Step::Content(3));
    world.step(&Step::Want(0, 50));
    let held: Vec<u32> = world.out.slots[0].held.keys().copied().collect();
    assert_eq!(held, [0, 3], "7 had one task, 3 ten");
}

/// Its pages are free, its number is another model's, and nothing is loaded for the tasks it had.
#[test]
fn a_model_that_is_removed_leaves_nothing_to_the_next_with_its_number() {
    let mut world = World::new(LoadRule::Baton, 1);
    world.join(0);
    world.step(&Step::Want(3, 50));
    assert!(!world.state.forget(ModelId(3)), "its LOAD is under way");
    world.step(&Step::Done(0, 5));
    assert_eq!(world.state.free_pages(GpuId(0)), PAGES - pages(3));
    assert!(world.state.forget(ModelId(3)));
    world.out.slots[0].held.clear();
    // A model that is gone hears nothing.
    world.out.readiness.remove(&3);
    assert_eq!(world.state.free_pages(GpuId(0)), PAGES);
    world.step(&Step::Wait(1));
    assert!(world.out.slots[0].held.is_empty(), "nothing waits for it any more");

    let weights = Weights { pages: 1, load: MS.times(9), is_guess: false, alone: MS };
    world.state.serve(ModelId(3), weights, &mut world.out);
    assert_eq!(world.out.readiness[&3], Readiness::Cold { load: MS.times(9) });
    waits(&mut world, 3, 50, |_| ());
    world.state.on_timer(world.out.now, &mut world.out);
    assert_eq!(world.state.free_pages(GpuId(0)), PAGES - 1, "as many as the new one takes");
}

#[test]
fn a_cold_model_that_is_removed_is_not_loaded() {
    let mut world = World::new(LoadRule::Baton, 1);
    waits(&mut world, 3, 50, |_| ());
    world.state.on_tasks(world.out.now, ModelId(7), 5);
    assert!([3, 7].into_iter().all(|model| world.state.forget(ModelId(model))));
    world.join(0);
    world.step(&Step::Wait(1));
    assert!(world.out.slots[0].held.is_empty());
}

#[test]
fn the_only_copy_stays_while_tasks_wait_for_it() {
    let mut world = World::new(LoadRule::Baton, 1);
    world.join(0);
    for model in [3, 7] {
        world.step(&Step::Want(model, 50));
        world.step(&Step::Done(0, 5));
    }
    world.step(&Step::Want(0, 50));
    let held: Vec<u32> = world.out.slots[0].held.keys().copied().collect();
    assert_eq!(held, [3, 7]);
    world.step(&Step::Content(7));
    let held: Vec<u32> = world.out.slots[0].held.keys().copied().collect();
    assert_eq!(held, [0, 3], "the LOAD follows as soon as 7 may leave");
}

/// Five LOADs of 5 ms until 16 ms from now: three are in time, and those with tasks are chosen.
#[test]
fn no_load_is_spent_on_tasks_that_expire_meanwhile() {
    let mut world = World::new(LoadRule::Baton, 0);
    world.join(0);
    for model in [0, 4, 8, 1, 5] {
        waits(&mut world, model, 16, |candidate| candidate.batch = model + 1);
    }
    for _ in 0..5 {
        world.step(&Step::Done(0, 5));
        world.step(&Step::Wait(5));
    }
    let held: Vec<u32> = world.out.slots[0].held.keys().copied().collect();
    assert_eq!(held, [4, 5, 8], "of 0, 1, 4, 5 and 8 those with the most tasks");
}

/// Two loaders make four LOADs of 5 ms until 11 ms from now: only that for the fewest tasks is left out, and there is no need to
/// begin with those for the most.
#[test]
fn two_loaders_have_time_for_twice_as_many_loads() {
    let mut world = World::new(LoadRule::Baton, 0);
    (0..2).for_each(|slot| world.join(slot));
    for model in [0, 4, 8, 1, 5] {
        waits(&mut world, model, 11, |candidate| candidate.batch = model + 1);
    }
    world.state.on_timer(world.out.now, &mut world.out);
    assert_eq!([held_by(&world, 0), held_by(&world, 1)], [[4], [1]]);
}

/// Tasks that cannot wait for a LOAD are given up without a candidate: their model is loaded for the next ones, if it is worth
/// more than what leaves.
#[test]
fn a_model_whose_tasks_cannot_wait_for_a_load_is_loaded_for_the_next() {
    let mut world = World::new(LoadRule::Baton, 1);
    world.join(0);
    for model in [3, 7] {
        (0..3).for_each(|_| world.step(&Step::Want(model, 50)));
        world.step(&Step::Done(0, 5));
        world.step(&Step::Content(model));
    }
    let held = |world: &World| world.out.slots[0].held.keys().copied().collect::<Vec<u32>>();
    for tasks in 1..=4 {
        world.state.on_tasks(world.out.now, ModelId(0), 1);
        world.step(&Step::Wait(0));
        let expected: &[u32] = if tasks > 3 { &[0, 7] } else { &[3, 7] };
        assert_eq!(held(&world), expected, "{tasks} tasks, of 3 and 7 three each");
    }
}

/// In a tick of 100 ms a slot executes this much of each of its models.
fn execute(world: &mut World, slot: u32, of_models: &[(u32, u64)]) {
    let (gpu, now) = (world.gpu(slot), world.out.now);
    for &(model, ms) in of_models {
        let (model, latency) = (ModelId(model), MS.times(ms));
        world.state.on_granted(now, model, gpu);
        let planned =
            GpuUpdate::Planned { gpu, start: now, latency, work: latency, fetched_at: None };
        world.state.on_planned(now, model, planned);
        world.state.on_ended(now, model, gpu);
    }
    world.step(&Step::Wait(100));
}

/// Two slots; the first holds models 0 and 4, the second nothing.
fn uneven() -> World {
    let mut world = World::new(LoadRule::Baton, 1);
    world.join(0);
    for model in [0, 4] {
        world.step(&Step::Want(model, 50));
        world.step(&Step::Done(0, 5));
        world.step(&Step::Content(model));
    }
    world.join(1);
    world.step(&Step::Wait(0));
    world
}

fn held_by(world: &World, slot: usize) -> Vec<u32> {
    world.out.slots[slot].held.keys().copied().collect()
}

#[test]
fn a_slot_that_has_been_busy_for_a_second_shares_the_model_with_the_most_work() {
    let mut world = uneven();
    let mut ticks = 0;
    while held_by(&world, 1).is_empty() && ticks < 30 {
        (_, ticks) = (execute(&mut world, 0, &[(0, 40), (4, 60)]), ticks + 1);
    }
    assert_eq!((held_by(&world, 1), world.state.counters().copied), (vec![4], 1));
    assert!((12..=15).contains(&ticks), "a mean of 80 % over some 8 ticks: after {ticks}");
    world = uneven();
    (0..30).for_each(|_| execute(&mut world, 0, &[(0, 30), (4, 45)]));
    assert_eq!(held_by(&world, 1), [], "75 % is not busy");
}

#[test]
fn a_model_that_loses_tasks_gets_another_slot_that_has_time() {
    for (bad_rate, expected) in [(328, vec![]), (329, vec![0])] {
        let mut world = uneven();
        waits(&mut world, 0, 50, |candidate| candidate.bad_rate = bad_rate);
        (0..2).for_each(|_| execute(&mut world, 0, &[(4, 10)]));
        assert_eq!(held_by(&world, 1), expected, "{bad_rate} of 65536 are lost");
    }
}

/// Tasks of the next model with its number that come in vain are as worth a LOAD as those of any cold model.
#[test]
fn a_model_that_is_removed_while_tasks_wait_leaves_none_to_the_next_with_its_number() {
    let mut world = World::new(LoadRule::Baton, 1);
    waits(&mut world, 3, 50, |_| ());
    assert!(world.state.forget(ModelId(3)));
    world.join(0);
    let weights = Weights { pages: 1, load: MS.times(9), is_guess: false, alone: MS };
    world.state.serve(ModelId(3), weights, &mut world.out);
    let mut taken = || {
        world.state.on_timer(world.out.now, &mut world.out);
        let taken = PAGES - world.state.free_pages(GpuId(0));
        world.state.on_tasks(world.out.now, ModelId(3), 5);
        taken
    };
    assert_eq!([taken(), taken()], [0, 1], "it is loaded for tasks that come");
}
