//! What every change keeps to, checked by reading the sources and the documentation: see `CONTRIBUTING.md`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// A file that is longer says two things.
const FILE_LINES_MAX: usize = 450;
/// A longer function is two; most have less than half as many lines.
const FUNCTION_LINES_MAX: usize = 50;

/// Folders that are not ours, or not sources.
const SKIPPED: [&str; 3] = ["target", ".git", "fuzz"];

/// What joins a scheduler.
const MEMBER: &[&str] = &[
    "baton-types",
    "baton-topo",
    "baton-rdma",
    "baton-leader",
    "baton-membership",
    "baton-metrics",
];

/// Which of our packages each may depend on, development dependencies not counted.
const EDGES: [(&str, &[&str]); 22] = [
    ("types", &[]),
    ("scheduler/core", &["baton-types"]),
    ("topo", &["baton-types"]),
    ("rdma", &["baton-types", "baton-topo"]),
    ("leader", &["baton-types", "baton-topo"]),
    ("metrics", &[]),
    ("models", &[]),
    ("supernet", &[]),
    ("scheduler/sim", &["baton-core", "baton-topo"]),
    ("scheduler", &["baton-core", "baton-topo", "baton-rdma", "baton-metrics"]),
    ("membership", &["baton-types", "baton-topo", "baton-rdma", "baton-leader"]),
    ("frontend", MEMBER),
    ("gateway", &["baton-client", "baton-metrics"]),
    ("capi", &["baton-client"]),
    ("python", &["baton-client"]),
    ("cuda", &["baton-types", "baton-rdma"]),
    ("cuda/fake", &[]),
    ("cuda/sim", &["baton-cuda", "baton-types"]),
    (
        "backend",
        &[
            "baton-types",
            "baton-topo",
            "baton-rdma",
            "baton-leader",
            "baton-membership",
            "baton-metrics",
            "baton-cuda",
        ],
    ),
    (
        "swarm",
        &[
            "baton-backend",
            "baton-client",
            "baton-core",
            "baton-rdma",
            "baton-scheduler",
            "baton-topo",
        ],
    ),
    (
        "bench",
        &[
            "baton-client",
            "baton-core",
            "baton-cuda",
            "baton-cuda-sim",
            "baton-leader",
            "baton-rdma",
            "baton-scheduler",
            "baton-sim",
            "baton-topo",
        ],
    ),
    (
        ".",
        &[
            "baton-backend",
            "baton-bench",
            "baton-client",
            "baton-core",
            "baton-cuda",
            "baton-gateway",
            "baton-leader",
            "baton-metrics",
            "baton-rdma",
            "baton-scheduler",
            "baton-sim",
            "baton-supernet",
            "baton-swarm",
            "baton-topo",
        ],
    ),
];

/// Which rooms of `bench/src` each may use besides itself.
const BENCH_ROOMS: [(&str, &[&str]); 15] = [
    ("machine", &[]),
    ("plot", &[]),
    ("load", &["machine", "plot"]),
    ("processes", &["machine"]),
    ("oip", &["load", "machine", "processes"]),
    ("two_models", &["load", "machine", "processes"]),
    ("demo", &["load", "machine", "processes"]),
    ("sched", &["machine", "plot"]),
    ("gpu", &["machine"]),
    ("dataplane", &["machine"]),
    ("reproduce", &["machine", "plot"]),
    ("overload", &["machine", "processes", "two_models"]),
    ("soak", &["load", "machine", "plot", "processes", "two_models"]),
    ("chaos", &["load", "processes"]),
    ("path", &["load", "machine", "plot", "processes"]),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Tests hold tables, which have as many lines as they need.
fn is_test(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == "tests")
}

/// Every file below the folder whose name ends so.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let paths = entries.map(|entry| entry.expect("readable").path());
    let below = |path: PathBuf| {
        let name =
            path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        match path.is_dir() {
            true if SKIPPED.contains(&name.as_str()) => Vec::new(),
            true => files(&path, ending),
            false if name.ends_with(ending) => vec![path],
            false => Vec::new(),
        }
    };
    paths.flat_map(below).collect()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// `a/{b,c}.rs` is two paths.
fn alternatives(path: &str) -> Vec<String> {
    let Some((before, rest)) = path.split_once('{') else { return vec![path.to_owned()] };
    let Some((choices, after)) = rest.split_once('}') else { return Vec::new() };
    choices.split(',').map(|choice| format!("{before}{choice}{after}")).collect()
}

/// What stands in backticks and looks like a path of this repository. What a build makes is none:
/// `target` holds what was built there last.
fn paths_named(text: &str) -> Vec<String> {
    let quoted = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    let is_path = |word: &&str| {
        let folder = word.split('/').next().unwrap_or_default();
        let ours = !["", "target"].contains(&folder) && root().join(folder).is_dir();
        ours && word.contains('/') && !word.contains([' ', '*', '…', '<', ':'])
    };
    quoted.filter(is_path).flat_map(alternatives).collect()
}

#[test]
fn every_path_named_in_the_documentation_exists() {
    let mut missing = Vec::new();
    let documents = files(root(), ".md");
    for document in &documents {
        let named = paths_named(&read(document));
        let gone = named.into_iter().filter(|path| !root().join(path).exists());
        missing.extend(gone.map(|path| format!("{}: `{path}`", document.display())));
    }
    assert!(documents.len() > 10, "the scan sees the documents");
    assert!(missing.is_empty(), "there is no such file:\n{}", missing.join("\n"));
}

/// What a reader can find on a page: its headings, and the words that begin its paragraphs and items.
fn is_section(page: &str, name: &str) -> bool {
    let text = page.split_whitespace().collect::<Vec<_>>().join(" ");
    let is_heading = |line: &str| line.starts_with('#') && line.contains(name);
    page.lines().any(is_heading) || text.contains(&format!("*{name}"))
}

/// The sections named as "`docs/page.md`, *Section*", each with the path of its page.
fn sections_named(text: &str) -> Vec<(PathBuf, String)> {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let after = text.split("`docs/").skip(1).filter_map(|rest| rest.split_once(".md`, *"));
    let one = |(page, rest): (&str, &str)| {
        let name = rest.split_once('*')?.0.to_owned();
        let is_page = page.chars().all(|letter| letter.is_ascii_lowercase() || letter == '-');
        is_page.then(|| (root().join(format!("docs/{page}.md")), name))
    };
    after.filter_map(one).collect()
}

#[test]
fn every_section_named_in_the_documentation_exists() {
    let (mut missing, mut count) = (Vec::new(), 0);
    for document in files(root(), ".md").into_iter().filter(|path| !path.ends_with("CHANGELOG.md"))
    {
        for (page, name) in sections_named(&read(&document)) {
            count += 1;
            if !is_section(&read(&page), &name) {
                missing.push(format!("{}: {}, {name}", document.display(), page.display()));
            }
        }
    }
    assert!(count > 50, "the scan sees the names of sections");
    assert!(missing.is_empty(), "there is no such section:\n{}", missing.join("\n"));
}

#[test]
fn no_file_is_longer_than_a_reader_keeps_in_mind() {
    let sources = files(root(), ".rs");
    assert!(sources.len() > 300, "the scan sees the sources");
    let lines = |path: &PathBuf| (read(path).lines().count(), path.display().to_string());
    let long: Vec<_> = sources.iter().map(lines).filter(|file| file.0 > FILE_LINES_MAX).collect();
    assert!(long.is_empty(), "more than {FILE_LINES_MAX} lines: {long:?}");
}

/// The functions of a formatted source: name, first line, how many lines.
fn functions(text: &str) -> Vec<(String, usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let begins = |line: &str| {
        let words = line.trim_start().split(|c: char| !c.is_alphanumeric() && c != '_');
        let mut words = words.skip_while(|word| *word != "fn").skip(1);
        let is_item = ["pub", "fn", "const", "unsafe", "extern"]
            .into_iter()
            .any(|start| line.trim_start().starts_with(start));
        words.next().filter(|_| is_item).map(str::to_owned)
    };
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(name) = begins(line) else { continue };
        let indent = &line[..line.len() - line.trim_start().len()];
        let ends = |line: &&str| line.strip_prefix(indent).is_some_and(|rest| rest == "}");
        let signature = lines[at..].iter().find(|line| line.ends_with(['{', '}', ';']));
        let has_lines = signature.is_some_and(|line| line.ends_with('{'));
        let last = lines[at..].iter().position(ends).filter(|_| has_lines);
        found.extend(last.map(|last| (name, at + 1, last + 1)));
    }
    found
}

#[test]
fn no_function_is_longer_than_a_page() {
    let sources = files(root(), ".rs");
    let mut long = Vec::new();
    let mut seen = 0;
    for path in sources.iter().filter(|path| !is_test(path)) {
        let functions = functions(&read(path));
        seen += functions.len();
        let too_long = functions.into_iter().filter(|function| function.2 > FUNCTION_LINES_MAX);
        long.extend(too_long.map(|(name, line, lines)| {
            format!("{}:{line}: {name} has {lines} lines", path.display())
        }));
    }
    assert!(seen > 3_000, "the scan sees the functions, of which it found {seen}");
    assert!(long.is_empty(), "more than {FUNCTION_LINES_MAX} lines:\n{}", long.join("\n"));
}

#[test]
fn a_module_with_children_is_a_mod_file() {
    let beside: Vec<_> =
        files(root(), ".rs").into_iter().filter(|file| file.with_extension("").is_dir()).collect();
    let beside: Vec<_> = beside.iter().filter(|path| !is_test(path)).collect();
    assert!(beside.is_empty(), "move each to mod.rs in the folder of its name: {beside:?}");
}

/// The packages of ours below `[dependencies]`.
fn dependencies(manifest: &str) -> Vec<String> {
    let section = manifest.lines().skip_while(|line| *line != "[dependencies]").skip(1);
    let lines = section.take_while(|line| !line.starts_with('['));
    let names = lines.filter_map(|line| line.split(['.', ' ', '=']).next());
    names.filter(|name| name.starts_with("baton")).map(str::to_owned).collect()
}

#[test]
fn packages_depend_on_each_other_in_one_direction() {
    let allowed: BTreeMap<&str, &[&str]> = EDGES.into_iter().collect();
    let manifests = files(root(), "Cargo.toml");
    assert_eq!(manifests.len(), EDGES.len(), "a package is missing in EDGES: {manifests:?}");
    for manifest in manifests {
        let folder =
            manifest.parent().and_then(|at| at.strip_prefix(root()).ok()).expect("below the root");
        let folder = folder.to_str().filter(|name| !name.is_empty()).unwrap_or(".");
        let may = allowed.get(folder).unwrap_or_else(|| panic!("{folder} is missing in EDGES"));
        for dependency in dependencies(&read(&manifest)) {
            assert!(may.contains(&dependency.as_str()), "{folder} must not depend on {dependency}");
        }
    }
}

#[test]
fn rooms_of_the_benches_use_each_other_in_one_direction() {
    let bench = root().join("bench/src");
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut seen = 0;
    for (room, may) in BENCH_ROOMS {
        for source in files(&bench.join(room), ".rs") {
            let text = read(&source);
            let used =
                text.split("crate::").skip(1).filter_map(|rest| rest.split(|c| !is_name(c)).next());
            for name in used.filter(|name| *name != room) {
                assert!(may.contains(&name), "{} must not use {name}", source.display());
            }
            seen += 1;
        }
    }
    assert_eq!(seen + 1, files(&bench, ".rs").len(), "a room is missing in BENCH_ROOMS");
}

/// The code map of ARCHITECTURE.md names the files of each step, once.
#[test]
fn each_step_from_submit_to_outcome_is_numbered_in_one_row() {
    let text = read(&root().join("ARCHITECTURE.md"));
    for step in 1..=9 {
        let rows = text.lines().filter(|line| line.starts_with(&format!("| {step} |"))).count();
        assert_eq!(rows, 1, "step {step} has {rows} rows in the code map");
    }
}

/// The names that the glossary has replaced.
fn retired_names() -> Vec<String> {
    let glossary = read(&root().join("docs/glossary.md"));
    let (_, last) =
        glossary.rsplit_once("as names in the sources:").expect("the glossary's last line");
    last.trim().trim_end_matches('.').split(", ").map(str::to_owned).collect()
}

#[test]
fn names_that_the_glossary_has_replaced_do_not_come_back() {
    let retired = retired_names();
    assert!(retired.len() >= 5, "{retired:?}");
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for source in files(root(), ".rs") {
        let text = read(&source);
        let mut words = text.split(|c| !is_name(c));
        if let Some(word) = words.find(|word| retired.iter().any(|name| name == word)) {
            found.push(format!("{}: {word}", source.display()));
        }
    }
    assert!(found.is_empty(), "docs/glossary.md has other words for these: {found:?}");
}

/// Phrases that hide who does something, or are no English.
const UNPLAIN: [&str; 12] = [
    "is told",
    "are told",
    "was told",
    "were told",
    "be told",
    "been told",
    "nobody",
    "whoever",
    "somebody",
    "so many",
    "is looked for",
    "are looked for",
];

/// The change log tells what was, and CONTRIBUTING.md names the phrases.
fn is_exempt(path: &Path) -> bool {
    ["CHANGELOG.md", "CONTRIBUTING.md"].iter().any(|name| path.ends_with(name))
}

/// The prose of a document, or the doc comments of a source: single spaces, lower case, one word as one word.
fn prose(path: &Path) -> String {
    let text = read(path);
    let is_doc = |line: &&str| line.starts_with("///") || line.starts_with("//!");
    let lines = text.lines().map(str::trim_start);
    let of_source = || lines.clone().filter(is_doc).map(|line| &line[3..]).collect::<Vec<_>>();
    let is_source = path.extension().is_some_and(|ending| ending == "rs");
    let lines = if is_source { of_source() } else { lines.clone().collect() };
    let words = lines.join(" ").to_lowercase();
    let words = words.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    format!(" {} ", words.collect::<Vec<_>>().join(" "))
}

/// CONTRIBUTING.md, *Words*.
#[test]
fn documentation_says_who_does_what() {
    let documents = files(root(), ".md").into_iter().filter(|path| !is_exempt(path));
    let mut found = Vec::new();
    for path in documents.chain(files(root(), ".rs")) {
        let prose = prose(&path);
        let phrases = UNPLAIN.iter().filter(|phrase| prose.contains(&format!(" {phrase} ")));
        found.extend(phrases.map(|phrase| format!("{}: {phrase}", path.display())));
    }
    assert!(found.is_empty(), "name the one who does it: {found:#?}");
}
