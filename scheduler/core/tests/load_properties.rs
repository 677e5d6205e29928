//! LoadState through random walks, beside a naive account of what each slot holds. A walk that fails is shrunk, printed,
//! and kept in a file beside this one to be replayed first.

mod load_world;

use baton_core::LoadRule;
use load_world::{GPUS, MODELS, Step, World};
use proptest::prelude::*;

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..MODELS, 0..60u8).prop_map(|(model, ms)| Step::Want(model, ms)),
        3 => (0..MODELS).prop_map(Step::Content),
        4 => (0..MODELS).prop_map(Step::Grant),
        4 => Just(Step::End),
        6 => (0..GPUS, 0..8u8).prop_map(|(slot, how)| Step::Done(slot, how)),
        1 => (0..GPUS).prop_map(Step::Leave),
        2 => (0..GPUS).prop_map(Step::Join),
        4 => (0..40u8).prop_map(Step::Wait),
    ]
}

fn rule() -> impl Strategy<Value = LoadRule> {
    prop_oneof![Just(LoadRule::Commanded), Just(LoadRule::Clockwork), Just(LoadRule::Baton)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn it_agrees_with_what_the_slots_hold(
        rule in rule(),
        outstanding_ms in 0..8u64,
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut world = World::new(rule, outstanding_ms);
        (0..GPUS).for_each(|slot| world.join(slot));
        steps.iter().for_each(|step| world.step(step));
    }
}
