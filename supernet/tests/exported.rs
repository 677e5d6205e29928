//! Random supernets: what their exported files answer is what a plain computation of their layers comes to.
//! Needs `ORT_DYLIB_PATH`; says so loudly when it is not set.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod drawn;
mod plain;
mod support;

use baton_supernet::{Checkpoint, Element, Form, export};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use plain::{Plain, Values};
use support::{Input, Runtime};

/// Seeds of a usual run.
const SEEDS: u64 = 12;
const BATCH: usize = 3;

fn seeds() -> Vec<u64> {
    match std::env::var("SUPERNET_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..SEEDS).collect(),
    }
}

/// Rows of random input: as the plain computation takes them, and as bytes.
fn rows(rng: &mut StdRng, checkpoint: &Checkpoint) -> (Vec<Values>, Vec<u8>) {
    let input = &checkpoint.description.input;
    let count: usize = input.shape.iter().product();
    let mut all = (Vec::new(), Vec::new());
    for _ in 0..BATCH {
        let mut data = Vec::new();
        for _ in 0..count {
            match input.element {
                Element::F32 => {
                    let number = rng.random_range(-1.0..1.0_f32);
                    data.push(f64::from(number));
                    all.1.extend(number.to_le_bytes());
                }
                Element::I64 => {
                    let word = rng.random_range(0..drawn::WORDS);
                    data.push(word as f64);
                    all.1.extend(i64::try_from(word).unwrap().to_le_bytes());
                }
            }
        }
        all.0.push(Values { shape: input.shape.clone(), data });
    }
    all
}

fn agree(seed: u64, what: &str, expected: &[f64], answers: &[f32]) {
    assert_eq!(expected.len(), answers.len());
    for (at, (&expected, &answer)) in expected.iter().zip(answers).enumerate() {
        let close = (expected - f64::from(answer)).abs() < 1e-4 * (1.0 + expected.abs());
        let again =
            format!("SUPERNET_SEED={seed} cargo nextest run -p baton-supernet --test exported");
        assert!(close, "{what}, number {at}: {expected} and {answer}; again: {again}");
    }
}

fn check(runtime: &Runtime, seed: u64, checkpoint: &Checkpoint) {
    let mut rng = StdRng::seed_from_u64(seed);
    let (plain_rows, bytes) = rows(&mut rng, checkpoint);
    let spec = &checkpoint.description.input;
    let input = match spec.element {
        Element::F32 => Input::Floats { name: &spec.name, shape: &spec.shape },
        Element::I64 => Input::Integers { name: &spec.name, shape: &spec.shape },
    };
    let [all] = export(checkpoint, Form::Super, &[]).unwrap().try_into().unwrap();
    let mut session = runtime.open(&all.bytes);
    let files = export(checkpoint, Form::Static, &[]).unwrap();
    for (variant, file) in files.iter().enumerate() {
        let of = |row: &Values| Plain::new(checkpoint, variant).answer(row.clone()).data;
        let expected: Vec<f64> = plain_rows.iter().flat_map(of).collect();
        let answers = runtime.run(&mut session, &input, &bytes, Some(variant));
        agree(seed, &format!("variant {variant}"), &expected, &answers);
        let answers = runtime.run(&mut runtime.open(&file.bytes), &input, &bytes, None);
        agree(seed, &format!("the file of variant {variant}"), &expected, &answers);
    }
    // Others in another order: each keeps its own weights and statistics.
    let last = files.len() - 1;
    let names = [last, 0].map(|at| files[at].variants[0].name.clone());
    let [two] = export(checkpoint, Form::Super, &names).unwrap().try_into().unwrap();
    let mut session = runtime.open(&two.bytes);
    for (place, variant) in [last, 0].into_iter().enumerate() {
        let of = |row: &Values| Plain::new(checkpoint, variant).answer(row.clone()).data;
        let expected: Vec<f64> = plain_rows.iter().flat_map(of).collect();
        let answers = runtime.run(&mut session, &input, &bytes, Some(place));
        agree(seed, &format!("variant {variant} in place {place}"), &expected, &answers);
    }
}

#[test]
fn random_networks_of_convolutions_answer_as_computed_plainly() {
    let Some(runtime) = Runtime::find() else { return };
    for seed in seeds() {
        check(&runtime, seed, &drawn::convolutions(seed));
    }
}

#[test]
fn random_transformers_answer_as_computed_plainly() {
    let Some(runtime) = Runtime::find() else { return };
    for seed in seeds() {
        check(&runtime, seed, &drawn::transformer(seed));
    }
}
