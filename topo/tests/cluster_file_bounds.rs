//! The table `[gateway]`, and what a model's files decide, at their bounds.
mod checking;

use checking::{check, lines, model_with};

/// The problems and warnings of a file with this table.
fn said(gateway: &str) -> Vec<String> {
    let checked = check(&(model_with("") + "[gateway]\n" + gateway + "\n"));
    let warnings = lines(&checked.warnings);
    let problems = checked.cluster.err().map_or(Vec::new(), |problems| lines(&problems));
    [problems, warnings].concat()
}

fn tokens(count: usize) -> String {
    let one = |n| format!("[[gateway.token]]\nname = \"t{n}\"\nfile = \"t\"\n");
    (0..count).map(one).collect()
}

#[test]
fn a_gateway_has_1024_tokens_at_most() {
    let many = |count| said(&tokens(count)).iter().any(|line| line.contains("there are more than"));
    assert!(!many(1_024));
    assert!(many(1_025));
}

#[test]
fn an_image_is_of_a_model_of_the_file_and_has_one_number_or_three() {
    let image = |keys: &str| said(&format!("[[gateway.image]]\n{keys}"));
    assert_eq!(image("model = \"m\""), [""; 0]);
    assert_eq!(image("model = \"m\"\nmean = [1, 2, 3]\nstd = [2]"), [""; 0]);
    let two = image("model = \"m\"\nmean = [1, 2]");
    assert!(two[0].contains("mean: has neither one number nor three"), "{two:?}");
    let other = image("model = \"n\"");
    assert!(other[0].contains("`n` is no [[model]] of this file"), "{other:?}");
}

#[test]
fn what_executes_on_a_gpu_and_which_files_it_has() {
    let model = |keys: &str| {
        let text =
            format!("[[model]]\nname = \"m\"\nslo_ms = 9\n{keys}\n[[backend]]\nname = \"b\"\n");
        let cluster = check(&text).cluster.unwrap_or_else(|all| panic!("{:#?}", lines(&all)));
        let model = &cluster.models[0];
        (model.engine.is_on_gpu(), model.files().len())
    };
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/digits/digits.onnx");
    assert_eq!(model("alpha_ms = 1\nbeta_ms = 1"), (false, 0));
    assert_eq!(model("engine = \"cuda\"\nalpha_ms = 1\nbeta_ms = 1"), (true, 0));
    assert_eq!(model(&format!("file = \"{file}\"")), (false, 1));
    assert_eq!(model(&format!("file = \"{file}\"\ndevice = \"cuda:0\"")), (true, 1));
    let keys = "device = \"cuda:0\"\ntf32 = true\ntensorrt = true\nfp16 = true";
    assert_eq!(model(&format!("file = \"{file}\"\n{keys}")), (true, 1));
}

/// Two models whose files together take between one MiB and two, and one without a file.
fn two_models(mib: u32, subcluster: &str) -> String {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/digits-super/digits-super.onnx");
    let variant =
        |name, accuracy| format!("[[model.variant]]\nname = \"{name}\"\naccuracy = {accuracy}\n");
    let variants = variant("small", 70) + &variant("large", 80);
    let model = |name| {
        format!(
            "[[model]]\nname = \"{name}\"\nslo_ms = 9\nfile = \"{file}\"\nbatch_max = 2\nsubcluster = \"its\"\n{variants}"
        )
    };
    format!(
        "{}{}[[model]]\nname = \"e\"\nslo_ms = 9\nalpha_ms = 1\nbeta_ms = 1\nsubcluster = \"{subcluster}\"\n\
         [[backend]]\nname = \"a\"\nsubcluster = \"its\"\n\
         [[backend]]\nname = \"b\"\nsubcluster = \"{subcluster}\"\nmodel_memory_mib = {mib}\n",
        model("m"),
        model("n")
    )
}

#[test]
fn a_backend_whose_memory_is_too_small_for_the_files_of_its_own_models_is_refused() {
    let problems = |mib, subcluster| {
        let checked = check(&two_models(mib, subcluster));
        lines(&checked.cluster.err().unwrap_or_default())
    };
    assert_eq!(problems(2, "its"), [""; 0]);
    let refused = problems(1, "its");
    assert!(refused[0].contains("the files of its models take 2 MiB, and it has 1"), "{refused:?}");
    assert_eq!(problems(1, "other"), [""; 0], "none of them is its own");
}

#[test]
fn a_file_on_a_server_is_as_large_as_its_table_says() {
    let model = |name| {
        format!(
            "[[model]]\nname = \"{name}\"\nslo_ms = 9\nfile = \"http://models/{name}.onnx\"\nfile_bytes = 3145728\n\
             sha256 = \"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\"\n\
             tensors = [\"in f32[batch, 8] x\", \"out f32[batch, 8] y\"]\n"
        )
    };
    let problems = |mib: u32| {
        let backend = format!("[[backend]]\nname = \"b\"\nmodel_memory_mib = {mib}\n");
        let checked = check(&[model("m"), model("n"), backend].concat());
        lines(&checked.cluster.err().unwrap_or_default())
    };
    assert_eq!(problems(6), [""; 0]);
    let refused = problems(5);
    assert!(refused[0].contains("the files of its models take 6 MiB, and it has 5"), "{refused:?}");
}
