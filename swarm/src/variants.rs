//! Models with variants: which there are, what tasks ask for, and what an answer must be.

use baton_core::{Nanos, Profile};
use baton_topo::{ModelSpec, VariantSpec};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// The accuracy of the cheapest variant, and what each further one adds, in 1/100,000.
const ACCURACIES: (u32, u32) = (70_000, 1_500);

/// Gives one model in three up to six variants, each 10 to 80 % slower than the one before.
pub(crate) fn draw(seed: u64, models: &mut [ModelSpec]) {
    let mut rng = StdRng::seed_from_u64(seed ^ 0x7661_7269);
    for model in models {
        if rng.random_range(0..3) > 0 {
            continue;
        }
        let mut profile = model.profile.clone();
        for place in 0..rng.random_range(2..=6) {
            let (name, accuracy) = (format!("v{place}"), ACCURACIES.0 + place * ACCURACIES.1);
            model.variants.push(VariantSpec {
                name,
                accuracy,
                profile: profile.clone(),
                file: None,
                sha256: None,
            });
            profile = slower(&profile, rng.random_range(110..=180));
        }
    }
}

fn slower(profile: &Profile, percent: u64) -> Profile {
    let table: Vec<Nanos> = profile.table().iter().map(|l| Nanos(l.0 * percent / 100)).collect();
    Profile::from_table(&table).expect("it still rises")
}

/// What a task asks for, 1/100,000: one in four for a variant that there is, and one in forty for more than there is.
pub(crate) fn asked(model: &ModelSpec, number: u64) -> u32 {
    let variants = model.variants.len() as u64;
    match (variants, number % 40) {
        (0, _) => 0,
        (_, 7) => 99_999,
        (_, rest) if rest % 4 == 1 => model.variants[(number / 4 % variants) as usize].accuracy,
        _ => 0,
    }
}

/// What is wrong with the variant that a reply names: its place and its accuracy.
pub(crate) fn misfit(model: &ModelSpec, named: Option<(u16, u32)>, asked: u32) -> Option<String> {
    let Some((place, accuracy)) = named else {
        let variants = model.variants.len();
        return (variants > 0).then(|| format!("the answer names none of {variants} variants"));
    };
    match model.variants.get(usize::from(place)) {
        Some(variant) if variant.accuracy != accuracy => {
            Some(format!("variant {place} has another accuracy than {accuracy}"))
        }
        Some(variant) if variant.accuracy < asked => {
            Some(format!("variant {place} answered, and an accuracy of {asked} was asked for"))
        }
        Some(_) => None,
        None => Some(format!("the model has no variant {place}")),
    }
}
