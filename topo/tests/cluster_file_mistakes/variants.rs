//! Mistakes in the variants of a model.

use crate::checking::check;
use crate::problems;

/// A model whose first variant is sound, with more lines behind it. The first of these is line 9.
fn supernet(keys: &str, more: &str) -> String {
    format!(
        "[[model]]\nname = \"m\"\nslo_ms = 36\n{keys}\n[[model.variant]]\nname = \"a\"\naccuracy = 70\n\
         latency_ms = [2, 3]\n{more}\n[[backend]]\nname = \"b\"\n"
    )
}

fn variant(name: &str, accuracy: &str, latency: &str) -> String {
    format!("[[model.variant]]\nname = \"{name}\"\naccuracy = {accuracy}\n{latency}")
}

#[test]
fn each_mistake_in_the_variants_is_one_problem_with_its_line_and_fix() {
    let order =
        "list the cheapest variant first; leave out one that takes longer and is not more accurate";
    let cases = [
        (
            variant("a", "71", "latency_ms = [2, 3]"),
            ":10: model[0].variant[1].name: there are two named \"a\"; fix: rename one".to_owned(),
        ),
        (
            variant("b", "70", "latency_ms = [2, 3]"),
            format!(":11: model[0].variant[1].accuracy: variant b is not more accurate than the variant before; fix: {order}"),
        ),
        (
            variant("b", "71", "latency_ms = [2, 2]"),
            format!(":11: model[0].variant[1].accuracy: variant b takes less time for 2 tasks than the variant before; fix: {order}"),
        ),
        (
            variant("b", "71", "latency_ms = [2, 3, 4]"),
            ":11: model[0].variant[1].accuracy: variant b has batches of up to 3 tasks, and the first variant has up to 2; \
             fix: give every latency_ms the same number of entries, or alpha_ms and beta_ms"
                .to_owned(),
        ),
        (
            variant("b", "170", "latency_ms = [2, 3]"),
            ":11: model[0].variant[1].accuracy: is 170; fix: give a number from 0 to 100".to_owned(),
        ),
        (
            variant("b", "71", "latency_ms = [2, 3]\nalfa_ms = 3"),
            ":13: model[0].variant[1].alfa_ms: is not a key of this table; fix: write alpha_ms, or another of: file, \
             latency_ms, alpha_ms, beta_ms, name, accuracy, sha256"
                .to_owned(),
        ),
        (
            variant("b", "71", "latency_ms = [2, 3]\nfile = \"b.onnx\""),
            ":5: model[0].variant[0].file: is missing; fix: name the model file: file = \"model.onnx\"".to_owned(),
        ),
    ];
    for (more, expected) in cases {
        let found = problems(&supernet("", &more));
        assert!(
            found.iter().any(|problem| problem.ends_with(&expected)),
            "{found:#?}\nlack {expected}"
        );
    }
    let many: Vec<String> = (1..17)
        .map(|n| {
            variant(&format!("v{n}"), &format!("7{n}").replace("71", "71.5"), "latency_ms = [2, 3]")
        })
        .collect();
    let found = problems(&supernet("", &many.join("\n")));
    assert!(found[0].contains("variant"), "{found:#?}");
}

#[test]
fn sizes_that_need_not_be_measured_may_be_many() {
    let head = "[[model]]\nname = \"m\"\nslo_ms = 36\nbatch_max = 1024\n";
    let variant = |n: u32| {
        variant(&format!("v{n}"), &format!("7{n}"), &format!("alpha_ms = 1\nbeta_ms = {n}\n"))
    };
    let variants: String = (1..=4).map(variant).collect();
    let checked = check(&format!("{head}{variants}[[backend]]\nname = \"b\"\n"));
    assert!(checked.cluster.is_ok(), "{:#?}", checked.cluster);
}

#[test]
fn what_belongs_elsewhere_is_sent_there() {
    let found = problems(
        "[[model]]\nname = \"m\"\nslo_ms = 9\nalpha_ms = 1\nbeta_ms = 1\n[[variant]]\nname = \"a\"\n[[backend]]\nname = \"b\"\n",
    );
    assert_eq!(
        found,
        [
            "c.toml:6: variant: is not a key of this table; fix: write [[model.variant]] behind its [[model]]"
        ]
    );
    let found = problems(
        "gpus = 2\n[[model]]\nname = \"m\"\nslo_ms = 9\nalpha_ms = 1\nbeta_ms = 1\n[[backend]]\nname = \"b\"\n",
    );
    assert!(
        found[0].ends_with("fix: it is a scenario's; give that file with --scenario"),
        "{found:#?}"
    );
}

#[test]
fn what_a_model_with_variants_cannot_have_besides_is_refused() {
    let found = problems(&supernet("alpha_ms = 1", ""));
    let expected = "c.toml:4: model[0].alpha_ms: has no effect beside [[model.variant]], which has its own; fix: remove it";
    assert_eq!(found, [expected]);
    let found = problems(&supernet("engine = \"cuda\"", "file = \"x.onnx\""));
    assert!(
        found[0].contains("variant[0].file: does not belong to engine = \"cuda\""),
        "{found:#?}"
    );
    let found =
        problems("[[model]]\nname = \"m\"\nslo_ms = 36\nvariant = 3\n[[backend]]\nname = \"b\"\n");
    assert!(
        found.iter().any(|p| p.contains("write [[model.variant]] once for every variant")),
        "{found:#?}"
    );
}
