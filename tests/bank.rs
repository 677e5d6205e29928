//! The bank of planted bugs (`docs/testing.md`): each patch says what it is, and still applies.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// What a header names besides the bug itself.
const KEYS: [&str; 4] = ["place", "tests", "swarm", "found"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn patches() -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join("bank")).expect("the bank is there");
    let paths = entries.map(|entry| entry.expect("readable").path());
    let mut patches: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|ending| ending == "patch")).collect();
    patches.sort();
    assert!(patches.len() > 40, "the scan sees the bank");
    patches
}

/// The lines `# KEY: VALUE` of the header.
fn value<'a>(patch: &'a str, key: &str) -> Option<&'a str> {
    let header = patch.lines().take_while(|line| line.starts_with('#'));
    let mut values =
        header.filter_map(|line| line[1..].trim().strip_prefix(key)?.strip_prefix(": "));
    values.next()
}

/// A hunk: the file that it changes, what it says of its lengths, and the lines before and after the change.
struct Hunk {
    file: String,
    lengths: Option<(usize, usize)>,
    before: String,
    after: String,
}

/// The numbers of lines in `@@ -12,7 +12,6 @@`.
fn lengths(line: &str) -> Option<(usize, usize)> {
    let mut sides = line.split(' ').skip(1).map(|side| side.split_once(',')?.1.parse().ok());
    sides.next()?.zip(sides.next()?)
}

fn hunks(patch: &str) -> Vec<Hunk> {
    let (mut file, mut hunks) = (String::new(), Vec::<Hunk>::new());
    let body = patch.lines().skip_while(|line| line.starts_with('#'));
    for line in body.filter(|line| !line.starts_with("--- ")) {
        if let Some(name) = line.strip_prefix("+++ b/") {
            name.clone_into(&mut file);
        } else if line.starts_with("@@ ") {
            let (before, after) = (String::new(), String::new());
            hunks.push(Hunk { file: file.clone(), lengths: lengths(line), before, after });
        } else if let Some(hunk) = hunks.last_mut() {
            let (mark, text) = line.split_at_checked(1).unwrap_or((" ", ""));
            for (side, other) in [(&mut hunk.before, "+"), (&mut hunk.after, "-")] {
                if mark != other {
                    side.push_str(text);
                    side.push('\n');
                }
            }
        }
    }
    hunks
}

#[test]
fn every_planted_bug_still_applies() {
    let mut problems = Vec::new();
    for path in patches() {
        let hunks = hunks(&read(&path));
        assert!(!hunks.is_empty(), "{} changes nothing", path.display());
        for hunk in hunks {
            let text = read(&root().join(&hunk.file));
            let found = text.matches(&hunk.before).count();
            let lengths = (hunk.before.lines().count(), hunk.after.lines().count());
            let is_whole = hunk.lengths == Some(lengths) && hunk.before != hunk.after;
            if found != 1 || !is_whole {
                problems.push(format!(
                    "{}: its lines occur {found} times in {}",
                    path.display(),
                    hunk.file
                ));
            }
        }
    }
    assert!(problems.is_empty(), "make these patches anew:\n{}", problems.join("\n"));
}

#[test]
fn every_planted_bug_says_what_it_is_and_who_should_find_it() {
    let manifests = [
        "backend",
        "bench",
        "capi",
        "cuda",
        "frontend",
        "gateway",
        "leader",
        "membership",
        "metrics",
        "models",
        "rdma",
        "supernet",
        "topo",
        "types",
    ]
    .into_iter()
    .chain(["scheduler", "scheduler/core", "scheduler/sim", "swarm", "."]);
    let packages: BTreeSet<String> = manifests
        .filter_map(|folder| {
            let manifest = read(&root().join(folder).join("Cargo.toml"));
            let name = manifest.lines().find_map(|line| line.strip_prefix("name = \""));
            name.map(|name| name.trim_end_matches('"').to_owned())
        })
        .collect();
    let mut numbers = BTreeSet::new();
    for path in patches() {
        let (text, name) = (read(&path), path.display());
        let stem = path.file_stem().and_then(|stem| stem.to_str()).expect("plain names");
        let number = stem.split('-').next().filter(|number| number.len() == 3);
        assert!(
            number.is_some_and(|number| numbers.insert(number.to_owned())),
            "{name}: its number"
        );
        let about = text.lines().next().and_then(|line| line.strip_prefix("# "));
        let is_key = |about: &str| KEYS.iter().any(|key| about.starts_with(&format!("{key}: ")));
        assert!(about.is_some_and(|about| !is_key(about)), "{name}: say what the bug is");
        let tests = value(&text, "tests").unwrap_or_default();
        let unknown = tests.split(' ').find(|package| !packages.contains(*package));
        assert_eq!(unknown, None, "{name}: there is no such package");
        assert!(matches!(value(&text, "swarm"), Some("yes" | "no")), "{name}: swarm: yes or no");
        let place = value(&text, "place").unwrap_or_default();
        assert!(hunks(&text).iter().all(|hunk| place.contains(&hunk.file)), "{name}: its place");
        assert!(matches!(value(&text, "found"), None | Some("nothing yet")), "{name}: found");
    }
}
