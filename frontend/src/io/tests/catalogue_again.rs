//! The scheduler that a client joins again has other models, or calls them otherwise.

use baton_rdma::wire::{ModelDesc, RefuseCode, Role};
use baton_types::{FailReason, Nanos};

use super::rejoining::{LONG, NUMBER, submits};
use super::world::*;
use crate::{Client, Loss, Outcome};

/// A scheduler with these models takes the client in; the slabs it hears of.
fn take_back(world: &mut World, models: &[(ModelDesc, &str)]) -> Vec<(u32, u32)> {
    world.await_client();
    world.control.take();
    world.announce_descs(models);
    let heard = world.control.take();
    let slabs: Vec<_> = heard
        .iter()
        .filter_map(|heard| match heard {
            Heard::Slab { model, first_slot, .. } => Some((*model, *first_slot)),
            _ => None,
        })
        .collect();
    assert_eq!(heard.last(), Some(&Heard::Join { slabs: slabs.len() as u32 }));
    world.admit_as(NUMBER, TOKEN + u64::from(NUMBER));
    world.steps(40);
    world.connect_backend(Role::Backend, TOKEN + u64::from(NUMBER));
    slabs
}

fn names(client: &Client) -> Vec<String> {
    client.models().iter().map(|model| model.name().to_owned()).collect()
}

#[test]
fn models_go_on_under_other_numbers() {
    let (mut world, client) = World::open();
    let alpha = client.model("alpha").unwrap();
    let ticket = world.submit(&alpha, 7, LONG);
    world.lose_scheduler();
    world.threads.iter_mut().for_each(|thread| drop(thread.take()));
    let slo = Nanos::from_millis(60);
    let models =
        [(model_desc(5), "beta"), (ModelDesc { slo_ns: slo.0.into(), ..model_desc(9) }, "alpha")];
    assert_eq!(take_back(&mut world, &models), [(9, 0), (5, SLOTS)]);
    assert_eq!((client.loss(), names(&client)), (None, vec!["alpha".into(), "beta".into()]));
    assert_eq!(alpha.slo().as_nanos() as u64, slo.0);
    let heard = world.threads[1].take();
    let Some(&Heard::Submit { task, model: 9, .. }) = heard.last() else { panic!("{heard:?}") };
    world.answer(task, &[1; OUTPUT]);
    assert!(matches!(ticket.wait(), Outcome::Completed(_)));
    let next = world.submit(&alpha, 8, LONG);
    let heard = world.threads[1].take();
    assert!(matches!(heard[..], [Heard::Submit { model: 9, .. }]), "the handle is good: {heard:?}");
    world.answer(next.task(), &[2; OUTPUT]);
    assert!(matches!(next.wait(), Outcome::Completed(_)));
}

#[test]
fn a_model_that_is_missing_or_of_other_sizes_is_removed() {
    let larger = ModelDesc { input_bytes: (INPUT as u32 + 1).into(), ..model_desc(0) };
    let longer = ModelDesc { output_bytes: (OUTPUT as u32 + 1).into(), ..model_desc(0) };
    let others: [&[(ModelDesc, &str)]; 3] = [
        &[(model_desc(1), "beta")],
        &[(larger, "alpha"), (model_desc(1), "beta")],
        &[(longer, "alpha"), (model_desc(1), "beta")],
    ];
    for models in others {
        let (mut world, client) = World::open();
        let alpha = client.model("alpha").unwrap();
        let ticket = world.submit(&alpha, 1, LONG);
        let beta = world.submit(&client.model("beta").unwrap(), 2, LONG);
        world.lose_scheduler();
        world.threads.iter_mut().for_each(|thread| drop(thread.take()));
        let slabs = take_back(&mut world, models);
        assert_eq!(client.loss(), None);
        assert!(alpha.is_removed());
        assert_eq!(client.model("alpha").is_ok(), models.len() == 2);
        assert!(matches!(ticket.wait(), Outcome::Failed(FailReason::UnknownModel, _)));
        assert_eq!(submits(&mut world, 0), [], "the scheduler would not know it");
        let (task, _) = submits(&mut world, 1)[0];
        world.answer(task, &[1; OUTPUT]);
        assert!(matches!(beta.wait(), Outcome::Completed(_)));
        assert!(slabs.contains(&(1, SLOTS)), "beta's: {slabs:?}");
        assert_eq!((slabs.len(), client.slots_in_use()), (models.len(), 0));
    }
}

#[test]
fn a_client_that_names_no_models_goes_on_with_a_scheduler_that_has_none() {
    let (mut world, client) = World::open();
    world.lose_scheduler();
    world.threads.iter_mut().for_each(|thread| drop(thread.take()));
    assert_eq!(take_back(&mut world, &[]), []);
    assert_eq!((client.loss(), names(&client)), (None, vec![]));
}

/// What waits for the next scheduler was submitted to none.
#[test]
fn a_task_that_waited_for_a_scheduler_without_its_model_fails() {
    let (mut world, client) = World::open();
    world.stop_scheduler();
    let ticket = world.submit(&client.model("alpha").unwrap(), 1, LONG);
    take_back(&mut world, &[(model_desc(1), "beta")]);
    assert!(matches!(ticket.wait(), Outcome::Failed(FailReason::UnknownModel, _)));
    world.steps(2);
    assert_eq!((client.slots_in_use(), client.models().len()), (0, 1));
}

#[test]
fn a_model_that_came_meanwhile_is_used() {
    for wanted in [&["alpha", "beta"][..], &[]] {
        let (mut world, client) = World::open_with(|config| config.models(wanted.iter().copied()));
        world.lose_scheduler();
        let models = [(model_desc(0), "alpha"), (model_desc(1), "beta"), (model_desc(2), "gamma")];
        let slabs = take_back(&mut world, &models);
        let is_wanted = wanted.is_empty();
        assert_eq!(slabs.len(), 2 + usize::from(is_wanted));
        assert_eq!(client.model("gamma").is_ok(), is_wanted);
        if let Ok(gamma) = client.model("gamma") {
            let ticket = world.submit(&gamma, 3, LONG);
            assert_eq!(u32::from(ticket.task().frontend().0), NUMBER);
            world.answer(ticket.task(), &[1; OUTPUT]);
            assert!(matches!(ticket.wait(), Outcome::Completed(_)));
        }
    }
}

#[test]
fn a_slab_whose_scheduler_was_lost_before_it_was_known_goes_with_the_next_join() {
    let (mut world, client) = World::open();
    world.add_model(model_desc(2), "gamma");
    world.lose_scheduler();
    let models = [(model_desc(0), "alpha"), (model_desc(1), "beta"), (model_desc(2), "gamma")];
    assert_eq!(take_back(&mut world, &models).len(), 3);
    assert!(client.model("gamma").is_ok());
    world.slab_known(NUMBER, 2 * SLOTS);
    assert_eq!(client.counters().unexpected, 1, "it was known by the join");
}

/// The scheduler may have removed it after it sent the catalogue.
#[test]
fn a_slab_that_is_refused_is_matched_with_the_next_catalogue() {
    let (mut world, client) = World::open();
    world.lose_scheduler();
    world.await_client();
    world.announce();
    world.end_scheduler(RefuseCode::BadRequest);
    assert!(matches!(client.loss(), Some(Loss::Scheduler(_))), "{:?}", client.loss());
    take_back(&mut world, &[(model_desc(1), "beta")]);
    assert_eq!((client.loss(), names(&client)), (None, vec!["beta".into()]));
}

/// Changes that come while the client is being let in count like those that come afterwards.
#[test]
fn the_catalogue_may_change_before_the_client_is_in() {
    let mut world = World::new(|config| config);
    world.announce();
    world.add_model(model_desc(2), "gamma");
    world.remove_model(1);
    world.admit();
    world.steps(40);
    let client = world.joining.poll().unwrap().unwrap();
    assert_eq!(names(&client), ["alpha"], "gamma's slab is not known yet");
    world.slab_known(MEMBER, 2 * SLOTS);
    assert_eq!(names(&client), ["alpha", "gamma"]);
    assert_eq!(client.counters().unexpected, 0);
}

/// There is nothing that it could lose; what is there is new.
#[test]
fn a_client_whose_models_were_all_removed_goes_on_with_another_scheduler() {
    let (mut world, client) = World::open();
    world.remove_model(0);
    world.remove_model(1);
    assert_eq!(client.models().len(), 0);
    world.lose_scheduler();
    take_back(&mut world, &[(model_desc(0), "alpha")]);
    assert_eq!((client.loss(), names(&client)), (None, vec!["alpha".into()]));
}
