use super::*;

#[path = "../../../backend/tests/onnx_files/mod.rs"]
#[allow(dead_code, reason = "other tests need the rest")]
mod onnx_files;

fn digits() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/digits/digits.onnx")
}

/// A folder of its own, removed at the end.
struct Repository(PathBuf);

impl Repository {
    fn new(test: &str, models: &[(&str, &str, &str)]) -> Self {
        let dir = std::env::temp_dir().join(format!("baton-triton-{}-{test}", std::process::id()));
        for (name, version, config) in models {
            let folder = dir.join(name).join(version);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::copy(digits(), folder.join("model.onnx")).unwrap();
            std::fs::write(dir.join(name).join("config.pbtxt"), config).unwrap();
        }
        Self(dir)
    }
}

impl Drop for Repository {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const DEFAULTS: Defaults = Defaults { slo_ms: 100.0, cpu: false };
const ON_TWO: &str = "platform: \"onnxruntime_onnx\"\nmax_batch_size: 32\ninstance_group { kind: KIND_CPU count: 2 }";

#[test]
fn a_repository_becomes_a_cluster_file_that_is_good() {
    let on_gpu = "backend: \"onnxruntime\" max_batch_size: 8";
    let repository =
        Repository::new("good", &[("a", "1", ON_TWO), ("b", "7", on_gpu), ("b", "10", on_gpu)]);
    let dir = &repository.0;
    let Imported { text, models, notes } = import(dir, DEFAULTS).unwrap();
    assert_eq!(models, ["a", "b"]);
    let checked = check_text(&dir.join("cluster.toml"), &text);
    let cluster = checked.cluster.unwrap_or_else(|problems| panic!("{text}\n{problems:?}"));
    assert_eq!(cluster.models[0].profile.batch_max(), 32);
    assert!(text.contains(&format!("file = \"{}/b/10/model.onnx\"", dir.display())), "{text}");
    let backends: Vec<(&str, u32)> =
        cluster.backends.iter().map(|backend| (backend.name.as_str(), backend.gpus)).collect();
    assert_eq!(backends, [("cpu", 2), ("gpu", 1)]);
    let said = listed(&notes);
    assert!(said.contains("a, b: slo_ms is 100.0: Triton's models have no objective"), "{said}");
    let Imported { text, .. } = import(dir, Defaults { cpu: true, ..DEFAULTS }).unwrap();
    assert!(!text.contains("cuda") && !text.contains("\"gpu\""), "{text}");
}

#[test]
fn a_model_that_cannot_be_served_is_left_out_by_name() {
    let mut models = vec![
        ("bad", "1", "max_batch_size 8"),
        ("trt", "1", "platform: \"tensorrt_plan\""),
        ("none", "x", ""),
        ("ragged", "1", "batch_input { kind: BATCH_ELEMENT_COUNT target_name: \"n\" }"),
        ("spaced", "1", "name: \"two words\""),
        ("large", "1", "max_batch_size: 1000000"),
    ];
    let left_out = [
        "bad: config.pbtxt:1: left out: a colon is missing",
        "trt: config.pbtxt:1: left out: platform is tensorrt_plan",
        "ragged: config.pbtxt:1: left out: batch_input: Triton makes it",
        "none: left out: it has no folder of a version",
        "spaced: left out: model[0].name: \"two words\" is not a name; fix: use 1 to",
        "large: left out: model[0].batch_max: ",
    ];
    let repository = Repository::new("left-out", &models);
    std::fs::write(repository.0.join("README.md"), "no model").unwrap();
    let error = import(&repository.0, DEFAULTS).unwrap_err().to_string();
    assert!(error.contains("no model of it can be served"), "{error}");
    assert!(!error.contains("README"), "a file is no model: {error}");
    models.extend([("a", "1", ON_TWO), ("also-a", "1", "name: \"a\"")]);
    let repository = Repository::new("others-left-out", &models);
    let imported = import(&repository.0, DEFAULTS).unwrap();
    assert_eq!(imported.models, ["a"]);
    let said = listed(&imported.notes);
    for words in left_out.into_iter().chain(["also-a: left out: another folder has a model `a`"]) {
        assert!(
            said.contains(words) && (error.contains(words) || words.contains("also")),
            "{words}: {said}"
        );
    }
    let nowhere = import(&repository.0.join("nowhere"), DEFAULTS);
    assert!(matches!(nowhere, Err(ImportError::Unreadable { .. })));
}

/// What a `config.pbtxt` says.
fn config(text: &str) -> Config {
    model::read(&text::parse(text).unwrap(), "m", true).0.unwrap()
}

#[test]
fn an_extent_that_the_file_leaves_open_is_the_configurations_or_a_guess() {
    let tensor = |name| -> onnx_files::Value<'_> {
        (name, onnx_files::FLOAT, &[onnx_files::Dim::Dynamic, onnx_files::Dim::Named("seq")])
    };
    let bytes = onnx_files::model_file(&[("Neg", "x", "y")], &[tensor("x")], &[tensor("y")]);
    let repository = Repository::new("open", &[("m", "1", "")]);
    std::fs::write(repository.0.join("m/1/model.onnx"), bytes).unwrap();
    let dims = |text: &str| {
        let (table, notes) = table::of(&repository.0.join("m"), &config(text), DEFAULTS).unwrap();
        let line = table.lines().find(|line| line.starts_with("dims")).unwrap_or_default();
        (line.to_owned(), listed(&notes).contains("which is a guess"))
    };
    let shape = |batch: u32, name: &str, dims: &str| {
        format!(
            "max_batch_size: {batch}\ninput {{ name: \"{name}\" data_type: TYPE_FP32 dims: [{dims}] }}"
        )
    };
    assert_eq!(dims(""), ("dims = { \"seq\" = 128 }".into(), true));
    assert_eq!(dims(&shape(4, "x", "9")), ("dims = { \"seq\" = 9 }".into(), false));
    assert_eq!(dims(&shape(0, "x", "-1, 7")), ("dims = { \"seq\" = 7 }".into(), false));
    assert_eq!(dims(&shape(4, "x", "-1")), ("dims = { \"seq\" = 128 }".into(), true));
    assert_eq!(dims(&shape(4, "z", "9")), ("dims = { \"seq\" = 128 }".into(), true));
}

#[test]
fn a_configuration_may_be_missing_but_not_too_long_or_unreadable() {
    let repository = Repository::new("long", &[("m", "1", "")]);
    let folder = repository.0.join("m");
    let write = |bytes: u64| {
        let file = std::fs::File::create(folder.join("config.pbtxt")).unwrap();
        file.set_len(bytes).unwrap();
    };
    write(CONFIG_BYTES_MAX);
    assert_eq!(read_config(&folder).unwrap().len() as u64, CONFIG_BYTES_MAX);
    write(CONFIG_BYTES_MAX + 1);
    assert_eq!(read_config(&folder).unwrap_err().to_string(), "it is longer than 16 MiB");
    std::fs::remove_file(folder.join("config.pbtxt")).unwrap();
    assert_eq!(read_config(&folder).unwrap(), "", "the ONNX file says the rest");
    std::fs::create_dir(folder.join("config.pbtxt")).unwrap();
    assert!(read_config(&folder).is_err());
}

#[test]
fn what_a_configuration_cannot_say_here_is_noted_without_its_folder() {
    assert_eq!(understand("max_batch_size 8"), None);
    let notes = |text: &str| understand(text).unwrap().len();
    assert_eq!(notes("max_batch_size: 0"), notes("") + 1, "it is not said where it is not stated");
    let lines = |text: &str| -> Vec<Option<usize>> {
        understand(text).unwrap().iter().map(|note| note.line).collect()
    };
    let (served, more) = ("max_batch_size: 8", "\nversion_policy { all {} }");
    assert_eq!(lines(&(served.to_owned() + more)), [vec![Some(2)], lines(served)].concat());
    for (policy, is_noted) in [
        ("latest { num_versions: 1 }", false),
        ("latest { num_versions: 2 }", true),
        ("specific { versions: [3] }", false),
        ("specific { versions: [3, 4] }", true),
    ] {
        let text = format!("{served}\nversion_policy {{ {policy} }}");
        assert_eq!(lines(&text).contains(&Some(2)), is_noted, "{policy}");
    }
}

#[test]
fn a_model_that_is_left_out_says_why_and_no_more_and_hidden_folders_are_none() {
    let python = "backend: \"python\"\nmax_batch_size: 0\nmodel_warmup { name: \"w\" }";
    let models = [("py", "1", python), ("none", "x", "max_batch_size: 0"), ("a", "1", ON_TWO)];
    let repository = Repository::new("hidden", &models);
    std::fs::create_dir(repository.0.join(".git")).unwrap();
    let Imported { models, notes, .. } = import(&repository.0, DEFAULTS).unwrap();
    assert_eq!(models, ["a"]);
    let lines = lines(&notes);
    let of = |name: &str| lines.iter().filter(|line| line.contains(name)).count();
    assert_eq!((of("py:"), of("none:"), of(".git"), of("a:")), (1, 1, 0, 1), "{lines:?}");
}

#[test]
fn a_name_that_is_not_the_folders_is_served_and_said() {
    let models = [
        ("here", "1", "max_batch_size: 8\nname: \"there\""),
        ("same", "1", "name: \"same\""),
        ("none", "1", "name: \"\""),
    ];
    let repository = Repository::new("names", &models);
    let Imported { models, notes, .. } = import(&repository.0, DEFAULTS).unwrap();
    assert_eq!(models, ["there", "none", "same"]);
    let lines = lines(&notes);
    let said: Vec<&String> = lines.iter().filter(|line| line.contains("refuses")).collect();
    assert_eq!(said.len(), 1, "{lines:?}");
    assert!(
        said[0].starts_with("there: config.pbtxt:2: name is not the folder's, `here`"),
        "{said:?}"
    );
}

#[test]
fn what_is_true_of_many_models_is_said_once() {
    let note =
        |model: &str, line, text: &str| Note { model: model.into(), line, text: text.into() };
    let mut notes = vec![
        note("a", Some(1), "choose one"),
        note("a", None, "choose one"),
        note("b", Some(2), "choose one"),
        note("a", Some(3), "not carried over"),
        note("b", Some(3), "not carried over"),
        note("b", None, "choose one"),
        note("c", None, "another"),
    ];
    let said = [
        "a: config.pbtxt:1: choose one",
        "a, b: choose one",
        "b: config.pbtxt:2: choose one",
        "a: config.pbtxt:3: not carried over",
        "b: config.pbtxt:3: not carried over",
        "c: another",
    ];
    assert_eq!(lines(&notes), said);
    notes.extend((0..9).map(|n| note(&format!("m{n}"), None, "choose one")));
    assert_eq!(lines(&notes)[1], "a, b, m0, m1, m2, m3, m4, m5 and 3 more: choose one");
}
