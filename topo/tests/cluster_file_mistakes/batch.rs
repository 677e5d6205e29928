//! Model files whose batch is not the first dimension of everything, and inputs that all rows share.

use crate::checking::{check, lines};

/// A cluster with one model of such tensors, as the keys of a file on a server say them.
fn text(tensors: &[&str], keys: &str) -> String {
    format!(
        "[[model]]\nname = \"m\"\nslo_ms = 50\nfile = \"http://models/m.onnx\"\nsha256 = \"{}\"\nfile_bytes = 9\n\
         tensors = {tensors:?}\n{keys}\n[[backend]]\nname = \"b\"\n",
        "0".repeat(64)
    )
}

fn refused(tensors: &[&str], keys: &str) -> Vec<String> {
    lines(&check(&text(tensors, keys)).cluster.expect_err("the file is bad"))
}

/// What `baton config check` prints of the model's tensors.
fn understood(tensors: &[&str], keys: &str) -> String {
    let checked = check(&text(tensors, keys));
    let cluster = checked.cluster.map_err(|problems| lines(&problems)).expect("the file is good");
    let summary = cluster.to_string();
    let model = summary.lines().find(|line| line.contains("model m ")).expect("its model");
    model.split_once("by its backends, ").expect("it is measured").1.to_owned()
}

/// A detector of speech: samples, the state of a recurrent layer, and a rate that all tasks have.
const NAMED: [&str; 5] = [
    "in f32[batch, samples] input",
    "in f32[2, batch, 128] state",
    "in i64[] sr",
    "out f32[batch, 1] output",
    "out f32[layers, batch, 128] stateN",
];
/// The same without names: each open dimension is called by its place.
const UNNAMED: [&str; 5] = [
    "in f32[input.0, input.1] input",
    "in f32[2, state.1, 128] state",
    "in i64[] sr",
    "out f32[output.0, 1] output",
    "out f32[stateN.0, stateN.1, stateN.2] stateN",
];

#[test]
fn a_batch_that_has_a_name_is_found_and_constants_are_no_input() {
    let keys = "dims = { samples = 512, layers = 2 }\nconstants = { sr = 16000 }";
    assert_eq!(
        understood(&NAMED, keys),
        "input f32[≤512], state f32[2, 128] → output f32[1], stateN f32[≤2, 128]; \
         the batch is dimension 1 of state, stateN; constant sr = 16000"
    );
}

#[test]
fn a_variant_is_an_int64_of_one_element_and_its_file_need_not_name_the_variants() {
    let variants = "[[model.variant]]\nname = \"a\"\naccuracy = 70\n[[model.variant]]\nname = \"b\"\naccuracy = 71";
    let with = |control: &str| {
        let checked =
            check(&text(&["in f32[batch, 3] x", control, "out f32[batch, 1] y"], variants));
        (checked.cluster.is_ok(), checked.warnings.len())
    };
    for control in ["in i64[] variant", "in i64[1] variant"] {
        assert_eq!(with(control), (true, 0), "{control}");
    }
    for control in ["in i32[] variant", "in i64[2] variant", "in i64[] other"] {
        assert_eq!(with(control), (false, 0), "{control}");
    }
}

#[test]
fn a_batch_without_a_name_is_stated() {
    let keys = "dims = { \"input.1\" = 512, \"stateN.0\" = 2, \"stateN.2\" = 128 }\nconstants = { sr = 16000 }\n\
                batch_dim = { state = 1, stateN = 1 }";
    let row = "input f32[≤512], state f32[2, 128] → output f32[1], stateN f32[≤2, ≤128]";
    assert!(understood(&UNNAMED, keys).starts_with(row), "{}", understood(&UNNAMED, keys));
    let fixed = ["in f32[4, 8] x", "in f32[2, 4] h", "out f32[4, 8] y"];
    assert_eq!(
        understood(&fixed, "batch_dim = { h = 1 }\nbatch_max = 4"),
        "x f32[8], h f32[2] → y f32[8]; the batch is dimension 1 of h"
    );
}

#[test]
fn a_model_without_a_batch_executes_one_task_at_a_time() {
    let tensors = ["in f32[steps, 576] x", "in f32[1, 1, 128] h", "in f32[] t", "out f32[steps] p"];
    assert_eq!(
        understood(&tensors, "batched = false\ndims = { steps = 32 }"),
        "x f32[≤32, 576], h f32[1, 1, 128], t f32[] → p f32[≤32]; no dimension is the batch"
    );
    let batch_max = refused(&tensors, "batched = false\ndims = { steps = 32 }\nbatch_max = 2");
    assert_eq!(
        batch_max,
        [
            "c.toml:10: model[0].batch_max: is 2; fix: give a whole number from 1 to 1, the most that its file or batched = false allows"
        ]
    );
}

#[test]
fn what_keeps_a_file_from_being_served_is_said_with_what_to_write() {
    let otherwise = "; otherwise export it with the batch as a dimension of every input, or let each task execute alone: batched = false";
    let scales = ["in i64[n, t] ids", "in f32[3] scales", "out f32[n, t] y"];
    let fixed = ["in f32[1, 576] x", "in f32[2, 1, 128] h", "out f32[1] y"];
    let rate = "constants = { sr = 16000 }";
    let cases: [(&[&str], &str, &str); 5] = [
        (
            &NAMED,
            "",
            "input `sr` has no dimensions; fix: give the value that all rows share: constants = { sr = 1 }",
        ),
        (
            &UNNAMED,
            rate,
            "the batch dimension is 2 in `state` f32[2, state.1, 128] and open in `input`; fix: if dimension 1 of it is the batch: batch_dim = { state = 1 }",
        ),
        (
            &scales,
            "",
            "the batch dimension is 3 in `scales` f32[3] and open in `ids`; fix: if all rows share `scales`, give its value: constants = { scales = [1.0, 1.0, 1.0] }",
        ),
        (
            &fixed,
            "",
            "the batch dimension is 1 in `x` f32[1, 576] and 2 in `h` f32[2, 1, 128]; fix: if dimension 1 of it is the batch: batch_dim = { h = 1 }",
        ),
        (
            &["in f32[4, 5] x", "in f32[6, 7] h", "out f32[4] y"],
            "",
            "the batch dimension is 4 in `x` f32[4, 5] and 6 in `h` f32[6, 7]; fix: say which it is: batch_dim = { NAME = 1 }",
        ),
    ];
    for (tensors, keys, expected) in cases {
        let end = if expected.contains("has no dimensions") { "" } else { otherwise };
        let expected = format!("c.toml:4: model[0].file: {expected}{end}");
        assert_eq!(refused(tensors, keys), [expected]);
    }
}

#[test]
fn keys_that_do_not_fit_the_file_are_refused() {
    let cases = [
        ("batch_dim = { stat = 1 }", "batch_dim: names `stat`, and no input or output is called that; fix: name one of input, state, output, stateN".to_owned()),
        ("batch_dim = { state = 3 }", "batch_dim: says 3 for `state` f32[2, batch, 128]; fix: count its dimensions from 0".to_owned()),
        ("batch_dim = 1", "batch_dim: is 1; fix: give a table: { state = 1 }".to_owned()),
        ("batch_dim = { state = -1 }", "batch_dim: has an entry that is -1; fix: give a whole number from 0 to 8".to_owned()),
        ("batched = false\nbatch_dim = { state = 1 }", "batch_dim: means nothing with batched = false; fix: remove one of them".to_owned()),
    ];
    for (keys, expected) in cases {
        let keys =
            format!("{keys}\nconstants = {{ sr = 16000 }}\ndims = {{ samples = 512, layers = 2 }}");
        let line = if keys.starts_with("batched") { 9 } else { 8 };
        assert_eq!(refused(&NAMED, &keys), [format!("c.toml:{line}: model[0].{expected}")]);
    }
    let constants = [
        (
            "rate = 16000",
            "names `rate`, and no input is called that; fix: name one of input, state, sr",
        ),
        ("sr = 1.5", "gives 1.5 for `sr` i64[]; fix: give what is i64"),
        ("sr = [1, 2]", "gives 2 number(s) for `sr` i64[]; fix: give 1"),
        (
            "sr = \"fast\"",
            "has an entry that is the string \"fast\"; fix: give a number, or a list of numbers",
        ),
    ];
    for (entry, expected) in constants {
        let found = refused(&NAMED, &format!("constants = {{ {entry} }}"));
        let expected = format!("c.toml:8: model[0].constants: {expected}");
        assert_eq!(
            found.iter().filter(|line| line.contains("constants:")).collect::<Vec<_>>(),
            [&expected],
            "{found:?}"
        );
    }
}

/// A recogniser of texts whose file calls its output `[1, seqlen]`, though it has three dimensions.
#[test]
fn the_shape_of_an_output_is_stated_where_the_file_says_it_wrong() {
    let file = ["in f32[1, 1, 64, width] image", "out f32[1, seqlen] text"];
    let keys = "dims = { width = 200, time = 25 }";
    assert_eq!(
        understood(
            &file,
            &format!(
                "{keys}\nshapes = {{ text = [\"time\", \"batch\", 8210] }}\nbatch_dim = {{ text = 1 }}"
            )
        ),
        "image f32[1, 64, ≤200] → text f32[≤25, 8210]; the batch is dimension 1 of text"
    );
    let fix = "list the dimensions: a length, or a name where it may vary";
    let cases = [
        (
            "image = [1]",
            "names `image`, and no output is called that; fix: name one of text".to_owned(),
        ),
        ("text = 3", format!("has an entry that is 3; fix: {fix}")),
        ("text = [1.5]", format!("has an entry that is 1.5; fix: {fix}")),
        ("text = [\"\"]", format!("has an entry that is the string \"\"; fix: {fix}")),
        (
            "text = [0]",
            "has an entry that is 0; fix: give a whole number from 1 to 268435456".to_owned(),
        ),
    ];
    for (entry, expected) in cases {
        let found = refused(&file, &format!("{keys}\nshapes = {{ {entry} }}"));
        let expected = format!("c.toml:9: model[0].shapes: {expected}");
        assert!(found.contains(&expected), "{found:?}");
    }
}
