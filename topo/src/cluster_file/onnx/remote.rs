//! A model file on a file server: `file` is its URL, and three keys beside it say what a reader would find in it, so that nothing
//! but a backend need pull it: `sha256`, `file_bytes` and `tensors`.

use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::file::{self, Dim, OnnxFile, Tensor};
use crate::cluster_file::section::Section;
use crate::cluster_file::sha256::Sha256;
use crate::signature::ElementType;

/// Keys that only such a file has.
const KEYS: [&str; 2] = ["file_bytes", "tensors"];
const FIX: &str = "take the keys from `baton model add URL … --print`";

/// Whether a file is named by its URL.
pub fn is_url(file: &str) -> bool {
    file.starts_with("http://") || file.starts_with("https://")
}

/// Where the file is that a table in this folder names: a path, or a URL as it stands.
pub(in crate::cluster_file) fn located(folder: &Path, file: &str) -> PathBuf {
    if is_url(file) { PathBuf::from(file) } else { folder.join(file) }
}

/// What the keys say of the file, and its size. `None`: there are problems.
pub(super) fn read(section: &Section<'_>) -> Option<(OnnxFile, u64)> {
    let all = ["sha256", KEYS[0], KEYS[1]].map(|key| section.require(key, FIX));
    let bytes = section.integer("file_bytes", 1..=u32::MAX);
    let lines = section.texts("tensors");
    let refuse = |line: String| section.refuse("tensors", format!("has \"{line}\""), FIX);
    let file = of_lines(&lines?).map_err(refuse).ok()?;
    all.iter().all(|&there| there).then_some((file, bytes?.into()))
}

/// A file that is here says these things itself.
pub(super) fn refuse_keys(section: &Section<'_>) {
    for key in KEYS.into_iter().filter(|&key| section.has(key)) {
        section.refuse(key, "belongs to a file on a server", "remove it, or give the file's URL");
    }
}

/// Writes down in a `[[model]]` or `[[model.variant]]` table, whose `file` is a URL, what the file is. `pulled` has its content.
///
/// # Errors
/// It is no model, keeps weights in other files, or is another file than the table says.
pub fn describe_pulled(table: &mut Table, pulled: &Path) -> Result<(), String> {
    let content = file::content(pulled)?;
    let read = file::parse(&content)?;
    if let Some(other) = read.others.first() {
        return Err(format!("it keeps weights in another file (`{other}`); export it as one file"));
    }
    let found = Sha256::of(&content).to_string();
    let stated = table.get("sha256").and_then(Value::as_str);
    if let Some(other) = stated.filter(|stated| !stated.eq_ignore_ascii_case(&found)) {
        return Err(format!("its SHA-256 is {found}, and the key sha256 says {other}"));
    }
    if let Some((_, why)) = read.unserved.first().filter(|_| !table.contains_key("outputs")) {
        return Err(format!("{why}; choose from its other outputs: outputs=[\"NAME\"]"));
    }
    let lines = lines_of(&read)?;
    let bytes = u32::try_from(content.len()).map_err(|_| "it is too long".to_owned())?;
    table.insert("sha256".to_owned(), found.into());
    table.insert("file_bytes".to_owned(), i64::from(bytes).into());
    table.insert("tensors".to_owned(), lines.into());
    Ok(())
}

/// One line for each tensor: `in f32[batch, 1, 8, 8] image`.
fn lines_of(file: &OnnxFile) -> Result<Vec<String>, String> {
    let sides = [("in", &file.inputs), ("out", &file.outputs)];
    let lines: Vec<String> = sides
        .into_iter()
        .flat_map(|(side, tensors)| tensors.iter().map(move |tensor| line_of(side, tensor)))
        .collect();
    let again = of_lines(&lines).ok();
    if again.is_none_or(|again| (&again.inputs, &again.outputs) != (&file.inputs, &file.outputs)) {
        return Err(
            "a dimension's name has a comma, a bracket or a digit at its beginning; export \
                    it with plain names"
                .to_owned(),
        );
    }
    Ok(lines)
}

fn line_of(side: &str, Tensor { name, element, dims, .. }: &Tensor) -> String {
    let dim = |dim: &Dim| match dim {
        Dim::Fixed(extent) => extent.to_string(),
        Dim::Symbol(name) => name.clone(),
    };
    let dims: Vec<String> = dims.iter().map(dim).collect();
    format!("{side} {element}[{}] {name}", dims.join(", "))
}

/// The file that such lines describe.
///
/// # Errors
/// The line that is none.
fn of_lines(lines: &[String]) -> Result<OnnxFile, String> {
    let mut file = OnnxFile::default();
    for line in lines {
        let (is_input, tensor) = of_line(line).ok_or_else(|| line.clone())?;
        let side = if is_input { &mut file.inputs } else { &mut file.outputs };
        side.push(tensor);
    }
    Ok(file)
}

fn of_line(line: &str) -> Option<(bool, Tensor)> {
    let (side, rest) = line.split_once(' ')?;
    let is_input = side == "in";
    let (element, rest) = rest.split_once('[').filter(|_| is_input || side == "out")?;
    let element = ElementType::ALL.iter().copied().find(|one| one.name() == element)?;
    let (dims, name) = rest.split_once("] ").filter(|(_, name)| !name.is_empty())?;
    let dims = dims.split(", ").filter(|_| !dims.is_empty()).map(dim).collect::<Option<_>>()?;
    let batch_axis = Some(0);
    Some((is_input, Tensor { name: name.to_owned(), element, dims, batch_axis }))
}

fn dim(text: &str) -> Option<Dim> {
    if text.is_empty() {
        return None;
    }
    match text.starts_with(|first: char| first.is_ascii_digit()) {
        true => text.parse().ok().map(Dim::Fixed),
        false => Some(Dim::Symbol(text.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, dims: &[Dim]) -> Tensor {
        let (name, dims, batch_axis) = (name.to_owned(), dims.to_vec(), Some(0));
        Tensor { name, element: ElementType::F32, dims, batch_axis }
    }

    fn file(inputs: Vec<Tensor>, outputs: Vec<Tensor>) -> OnnxFile {
        OnnxFile { inputs, outputs, ..OnnxFile::default() }
    }

    fn symbol(name: &str) -> Dim {
        Dim::Symbol(name.to_owned())
    }

    #[test]
    fn a_file_on_a_server_is_not_looked_for_in_the_folder() {
        for (file, place) in
            [("a.onnx", "/f/a.onnx"), ("http://a/b", "http://a/b"), ("https://a/b", "https://a/b")]
        {
            assert_eq!(located(Path::new("/f"), file), PathBuf::from(place));
        }
    }

    #[test]
    fn what_a_file_takes_and_gives_is_the_same_when_read_back() {
        let ids = tensor("the ids [0]", &[symbol("batch"), symbol("past + 1"), Dim::Fixed(8)]);
        let file = file(vec![ids], vec![tensor("score", &[symbol("batch")]), tensor("y", &[])]);
        let lines = lines_of(&file).expect("plain names");
        assert_eq!(lines[0], "in f32[batch, past + 1, 8] the ids [0]");
        assert_eq!(lines[2], "out f32[] y");
        assert_eq!(of_lines(&lines), Ok(file));
    }

    #[test]
    fn names_that_would_be_read_as_something_else_are_refused() {
        for name in ["a, b", "a] b", "7th", "7"] {
            let file = file(vec![tensor("x", &[symbol(name)])], vec![]);
            assert!(lines_of(&file).is_err(), "{name}");
        }
    }

    #[test]
    fn lines_that_are_none_are_named() {
        for line in
            ["", "in", "up f32[] x", "in f31[] x", "in f32[1 x", "in f32[1,2] x", "in f32[] "]
        {
            assert_eq!(of_lines(&[line.to_owned()]), Err(line.to_owned()));
        }
    }
}
