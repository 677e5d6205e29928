//! The shipped supernets: their files are what `baton supernet export` makes of their checkpoints, and answer as the trained network.
//! Execution needs `ORT_DYLIB_PATH`; says so loudly when it is not set.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::path::{Path, PathBuf};

use baton_supernet::{Checkpoint, Form, export, variants_of};

use support::{Input, Runtime};

/// Answers of the exported graph and of the trained network differ by no more.
const TOLERANCE: f32 = 1e-3;

fn example(folder: &str, file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(folder).join(file)
}

/// Inputs that took no part in training, and the trained network's answers: `heldout.bin`.
struct Heldout {
    inputs: Vec<u8>,
    row_bytes: usize,
    labels: Vec<usize>,
    classes: usize,
    /// By variant, then input.
    logits: Vec<Vec<f32>>,
}

impl Heldout {
    fn read(path: &Path, magic: &[u8], element_bytes: usize) -> Self {
        let file = std::fs::read(path).unwrap();
        let u32_at = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize;
        assert_eq!((&file[..4], u32_at(4)), (magic, 1), "magic and version");
        let [count, elements, classes, variants] = [8, 12, 16, 20].map(u32_at);
        let row_bytes = elements * element_bytes;
        let record = row_bytes + (variants * classes + 1) * 4;
        assert_eq!(file.len(), 24 + count * record);
        let mut all = Self {
            inputs: vec![],
            row_bytes,
            labels: vec![],
            classes,
            logits: vec![vec![]; variants],
        };
        for row in file[24..].chunks_exact(record) {
            all.inputs.extend(&row[..row_bytes]);
            let answers = floats(&row[row_bytes..record - 4]);
            for (to, from) in all.logits.iter_mut().zip(answers.chunks_exact(classes)) {
                to.extend(from);
            }
            let label = u32::from_le_bytes(row[record - 4..].try_into().unwrap());
            all.labels.push(label as usize);
        }
        all
    }

    fn accuracy(&self, logits: &[f32]) -> f64 {
        let largest = |row: &[f32]| {
            (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).expect("a row has classes")
        };
        let rows = logits.chunks_exact(self.classes).zip(&self.labels);
        let right = rows.filter(|(row, label)| largest(row) == **label).count();
        100.0 * right as f64 / self.labels.len() as f64
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// The committed file, which is what the checkpoint makes today.
fn committed(folder: &str) -> Vec<u8> {
    let checkpoint = Checkpoint::read(&example(folder, "supernet.toml")).unwrap();
    let [made] = export(&checkpoint, Form::Super, &[]).unwrap().try_into().unwrap();
    let file = std::fs::read(example(folder, &format!("{folder}.onnx"))).unwrap();
    assert!(made.bytes == file, "export the checkpoint of {folder} again");
    assert_eq!(variants_of(&file).unwrap(), made.variants);
    let rises = |pair: &[baton_supernet::NamedVariant]| pair[0].accuracy < pair[1].accuracy;
    assert!(made.variants.windows(2).all(rises), "{:?}", made.variants);
    file
}

fn answers_as_the_reference(runtime: &Runtime, file: &[u8], heldout: &Heldout, input: &Input<'_>) {
    let mut session = runtime.open(file);
    for (variant, reference) in heldout.logits.iter().enumerate() {
        // In batches of several sizes: none is favoured.
        let mut ours = Vec::new();
        let mut rest = &heldout.inputs[..];
        for batch in [1, 3, 16].into_iter().cycle() {
            let (rows, after) = rest.split_at(rest.len().min(batch * heldout.row_bytes));
            ours.extend(runtime.run(&mut session, input, rows, Some(variant)));
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        assert_eq!(ours.len(), reference.len());
        let worst = ours.iter().zip(reference).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < TOLERANCE, "variant {variant}: {worst}");
    }
}

#[test]
fn the_digits_supernet_answers_as_the_trained_network_with_each_variant() {
    let file = committed("digits-super");
    assert!(file.len() <= 1_500_000, "{} bytes", file.len());
    let heldout = Heldout::read(&example("digits-super", "heldout.bin"), b"BDGS", 4);
    let accuracies: Vec<f64> =
        heldout.logits.iter().map(|logits| heldout.accuracy(logits)).collect();
    assert!(accuracies.len() >= 6);
    assert!(accuracies.is_sorted(), "{accuracies:?}");
    assert!(accuracies.last().unwrap() - accuracies[0] >= 8.0, "{accuracies:?}");
    let Some(runtime) = Runtime::find() else { return };
    let input = Input::Floats { name: "image", shape: &[1, 8, 8] };
    answers_as_the_reference(&runtime, &file, &heldout, &input);
}

#[test]
fn the_words_supernet_answers_as_the_trained_network_with_each_variant() {
    let file = committed("words-super");
    let heldout = Heldout::read(&example("words-super", "heldout.bin"), b"BWDS", 8);
    assert_eq!((heldout.logits.len(), heldout.labels.len()), (5, 700));
    let [smallest, largest] = [0, 4].map(|variant| heldout.accuracy(&heldout.logits[variant]));
    assert!(largest - smallest >= 5.0, "{smallest} {largest}");
    let Some(runtime) = Runtime::find() else { return };
    let input = Input::Integers { name: "letters", shape: &[10] };
    answers_as_the_reference(&runtime, &file, &heldout, &input);
}
