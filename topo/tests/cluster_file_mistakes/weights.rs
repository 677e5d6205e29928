//! Caches for weights: what goes together, and what does not.

use baton_topo::{WeightsCacheSpec, WeightsSpec};
use baton_types::{Nanos, SubclusterId};

use crate::checking::check;
use crate::{problems, warnings};

const MODEL: &str = "[[model]]\nname = \"m\"\nalpha_ms = 1\nbeta_ms = 5\nslo_ms = 50\n";

fn file(model: &str, backends: &str) -> String {
    format!("{MODEL}{model}\n{backends}")
}

#[test]
fn sizes_become_pages_and_times() {
    let backends = "[[backend]]\nname = \"a\"\nweights_cache_mib = 100\n[[backend]]\nname = \"b\"\nweights_cache_mib = 160";
    let cluster = check(&file("weights_mib = 33", backends)).cluster.unwrap();
    let weights = cluster.models[0].weights.unwrap();
    assert_eq!(weights.bytes, 33 << 20);
    let expected = Nanos::from_millis_f64(f64::from(33 << 20) / 12.3e6);
    assert_eq!(weights.load, expected, "by size, as no load_ms is given");
    assert!(!weights.is_guess, "only files take longer than they are large");
    let page_bytes = 16 << 20;
    let caches: Vec<_> = cluster.backends.iter().map(|b| b.weights_cache.unwrap()).collect();
    assert_eq!(caches, [6, 10].map(|pages| WeightsCacheSpec { pages, page_bytes }));
    assert_eq!(caches[0].pages_of(weights), 3, "rounded up");
    assert_eq!(caches[0].pages_of(WeightsSpec { bytes: 2 * page_bytes, ..weights }), 2);
    assert_eq!(cluster.weights_cache(SubclusterId(0)), Some(caches[1]), "the largest");
    let timed = check(&file("weights_mib = 0.5\nload_ms = 7.5", backends)).cluster.unwrap();
    let expected =
        WeightsSpec { bytes: 1 << 19, load: Nanos::from_millis_f64(7.5), is_guess: false };
    assert_eq!(timed.models[0].weights, Some(expected));
}

#[test]
fn what_does_not_go_together_is_refused_with_the_fix() {
    let cached = "[[backend]]\nname = \"a\"\nweights_cache_mib = 64";
    let cases = [
        (
            file("", cached),
            "weights_mib: is missing, and the backends of its sub-cluster have weights_cache_mib; fix: say how large",
        ),
        (
            file("weights_mib = 65", cached),
            "weights_mib: is more than the 64 MiB of a backend's weights_cache_mib; fix: give that backend more",
        ),
        (
            file(
                "weights_mib = 65",
                "[[backend]]\nname = \"b\"\nweights_cache_mib = 128\n[[backend]]\nname = \"a\"\nweights_cache_mib = 64",
            ),
            "weights_mib: is more than the 64 MiB of a backend's weights_cache_mib; fix: give that backend more",
        ),
        (
            file("load_ms = 3", ""),
            "load_ms: says nothing without weights_mib; fix: give weights_mib",
        ),
        (
            file("weights_mib = 9\nengine = \"cuda\"", cached),
            "engine: is \"cuda\", and weights caches serve emulated models and ONNX models on the CPU alone; fix: put the model",
        ),
        (
            file("weights_mib = 9", "[[backend]]\nname = \"a\"\nhost_weights_mib = 8"),
            "host_weights_mib: says nothing without weights_cache_mib; fix: remove it",
        ),
        (
            file("weights_mib = 9", &format!("{cached}\n[[backend]]\nname = \"b\"")),
            "weights_cache_mib: is missing, and backend a of the same sub-cluster has it; fix: give it: weights_cache_mib = 64",
        ),
        (
            file("weights_mib = 9", &format!("{cached}\nmodel_memory_mib = 9")),
            "model_memory_mib: does not go with weights_cache_mib; fix: remove it",
        ),
        (
            file("weights_mib = 9", &format!("{cached}\npage_mib = 128")),
            "weights_cache_mib: is less than a page; fix: give at least 128",
        ),
        (
            file(
                "weights_mib = 9",
                &format!(
                    "{cached}\n[[backend]]\nname = \"b\"\nweights_cache_mib = 64\npage_mib = 8"
                ),
            ),
            "page_mib: differs from that of another backend; fix: give all of them 16",
        ),
        (
            file(
                "weights_mib = 9",
                "[[backend]]\nname = \"a\"\nweights_cache_mib = 0\npage_mib = 8\nhost_weights_mib = 8",
            ),
            "weights_cache_mib: is 0; fix: give a whole number",
        ),
        (
            file("", "[[backend]]\nname = \"a\"\npage_mib = 8"),
            "page_mib: says nothing without weights_cache_mib; fix: remove it",
        ),
    ];
    for (text, expected) in cases {
        let found = problems(&text);
        assert!(found.iter().any(|line| line.contains(expected)), "{text}\n{found:#?}");
        assert_eq!(found.len(), 1, "{text}\n{found:#?}");
    }
}

#[test]
fn weights_without_a_cache_change_nothing_and_say_so() {
    let text = file("weights_mib = 9", "[[backend]]\nname = \"a\"");
    let found = warnings(&text);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(
        found[0].contains("weights_mib: changes nothing: no backend of its sub-cluster has"),
        "{found:#?}"
    );
}

#[test]
fn weights_in_files_are_as_large_as_these_and_how_long_they_load_is_a_guess() {
    let digits = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/digits/digits.onnx");
    let file = |keys: &str| {
        format!(
            "[[model]]\nname = \"m\"\nslo_ms = 50\nfile = \"{digits}\"\n{keys}\n\
             [[backend]]\nname = \"a\"\nweights_cache_mib = 4\npage_mib = 1\nhost_weights_mib = 8"
        )
    };
    let cluster = check(&file("")).cluster.unwrap();
    let weights = cluster.models[0].weights.unwrap();
    assert_eq!(weights.bytes, std::fs::metadata(digits).unwrap().len());
    assert!(weights.is_guess && weights.load > Nanos::from_millis(5), "{weights:?}");
    assert_eq!(cluster.backends[0].host_weights, 8 << 20);
    let stated = check(&file("load_ms = 2")).cluster.unwrap().models[0].weights.unwrap();
    assert_eq!((stated.bytes, stated.load), (weights.bytes, Nanos::from_millis(2)));
    assert!(!stated.is_guess);
    let larger = check(&file("weights_mib = 3")).cluster.unwrap().models[0].weights.unwrap();
    assert_eq!(larger.bytes, 3 << 20);
    let variants = file("").replace(&format!("file = \"{digits}\""), "") + "\n";
    let variant = |name: &str, accuracy: u32| {
        format!(
            "[[model.variant]]\nname = \"{name}\"\naccuracy = {accuracy}\nfile = \"{digits}\"\n"
        )
    };
    let (model, backend) = variants.split_once("[[backend]]").unwrap();
    let variants = format!("{model}{}{}[[backend]]{backend}", variant("a", 70), variant("b", 80));
    let both = check(&variants).cluster.unwrap().models[0].weights.unwrap();
    assert_eq!(both.bytes, 2 * weights.bytes, "a slot holds all variants");
    let found = problems(&file("device = \"cuda:0\""));
    assert!(found[0].contains("device: is \"cuda:0\", and weights caches serve"), "{found:#?}");
}
