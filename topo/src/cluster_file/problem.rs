//! What is wrong with a cluster file, where, and what to do about it.
//!
//! The reader reports into one [`Findings`]; it prints or returns nothing before it has read the
//! whole file.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::machine::CpuSet;

/// One finding. Prints as `file:line: key: what is wrong; fix: what to do`; where the text is of no file, from the key on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// The cluster file.
    pub file: PathBuf,
    /// Line, counted from 1; `None` when the file as a whole is meant.
    pub line: Option<usize>,
    /// The key, with its table: `model[0].slo_ms`. Tables of an array count from 0.
    pub key: String,
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub fix: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.file.as_os_str().is_empty() {
            write!(f, "{}:", self.file.display())?;
            if let Some(line) = self.line {
                write!(f, "{line}:")?;
            }
            f.write_str(" ")?;
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        write!(f, "{}; fix: {}", self.what, self.fix)
    }
}

impl std::error::Error for Problem {}

impl Problem {
    /// One line for each.
    pub fn lines(problems: &[Self]) -> String {
        problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    }

    pub(crate) fn unreadable(file: &Path, error: &io::Error) -> Self {
        let fix = if error.kind() == io::ErrorKind::InvalidData {
            "save the file as UTF-8"
        } else {
            "name a readable cluster file"
        };
        Self::whole_file(file, format!("cannot be read: {error}"), fix)
    }

    pub(crate) fn too_long(file: &Path, bytes_max: u64) -> Self {
        let what = format!("is longer than {} MiB", bytes_max >> 20);
        Self::whole_file(file, what, "name a cluster file")
    }

    fn whole_file(file: &Path, what: String, fix: &str) -> Self {
        Self { file: file.to_owned(), line: None, key: String::new(), what, fix: fix.to_owned() }
    }
}

/// A place in the text: a span of bytes and the key found there.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) span: Range<usize>,
    pub(crate) key: String,
}

/// Tables of which a file has several.
const TABLES: [&str; 2] = ["model", "backend"];
/// What the parser calls a key, or a table, that comes twice.
const DUPLICATE: &str = "duplicate key";

/// Everything found in one file so far.
#[derive(Debug)]
pub(crate) struct Findings<'a> {
    file: &'a Path,
    /// The CPUs of the host that the file is checked for; `None`: any host.
    pub(crate) host_cpus: Option<&'a CpuSet>,
    /// Byte offset of every line's first byte.
    line_starts: Vec<usize>,
    problems: RefCell<Vec<Problem>>,
    warnings: RefCell<Vec<Problem>>,
}

impl<'a> Findings<'a> {
    pub(crate) fn new(file: &'a Path, text: &str) -> Self {
        let after_newlines =
            text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(i, _)| i + 1);
        let line_starts = std::iter::once(0).chain(after_newlines).collect();
        Self {
            file,
            host_cpus: None,
            line_starts,
            problems: RefCell::default(),
            warnings: RefCell::default(),
        }
    }

    pub(crate) fn problem(&self, place: Place, what: impl Into<String>, fix: impl Into<String>) {
        self.problems.borrow_mut().push(self.found(place, what.into(), fix.into()));
    }

    pub(crate) fn warning(&self, place: Place, what: impl Into<String>, fix: impl Into<String>) {
        self.warnings.borrow_mut().push(self.found(place, what.into(), fix.into()));
    }

    pub(crate) fn syntax_error(&self, error: &toml::de::Error) {
        let place = Place { span: error.span().unwrap_or(0..0), key: String::new() };
        let what = format!("not TOML: {}", error.message());
        self.problem(place, what, "correct the syntax here (see https://toml.io)");
    }

    /// Of a `[model]` or `[backend]` that comes twice this only says so: else each key of each would be a duplicate.
    pub(crate) fn syntax_errors(&self, text: &str, errors: &[toml::de::Error]) {
        let repeated = |error: &toml::de::Error| {
            let word = text.get(error.span()?)?;
            let heading = TABLES.into_iter().find(|&table| table == word)?;
            (error.message() == DUPLICATE).then_some(heading)
        };
        let headings = errors.iter().filter_map(|error| Some((error, repeated(error)?)));
        for (error, heading) in headings.clone() {
            let place = Place { span: error.span().unwrap_or(0..0), key: heading.to_owned() };
            let fix = format!("write [[{heading}]] once for every {heading}");
            self.problem(place, format!("[{heading}] comes twice"), fix);
        }
        let is_explained = headings.count() > 0;
        let others = errors.iter().filter(|error| !is_explained || error.message() != DUPLICATE);
        others.for_each(|error| self.syntax_error(error));
    }

    /// Problems and warnings, each in the order of the lines.
    pub(crate) fn into_sorted(self) -> (Vec<Problem>, Vec<Problem>) {
        let sorted = |list: RefCell<Vec<Problem>>| {
            let mut list = list.into_inner();
            list.sort_by_key(|problem| problem.line);
            list
        };
        (sorted(self.problems), sorted(self.warnings))
    }

    /// The line of a place, counted from 1.
    pub(crate) fn line(&self, place: &Place) -> usize {
        self.line_starts.partition_point(|&start| start <= place.span.start)
    }

    fn found(&self, place: Place, what: String, fix: String) -> Problem {
        let line = Some(self.line(&place));
        Problem { file: self.file.to_owned(), line, key: place.key, what, fix }
    }
}
