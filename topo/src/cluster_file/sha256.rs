//! The SHA-256 of model files: what makes a model the same one on every host.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::str::FromStr;

use ring::digest::{Context, SHA256, SHA256_OUTPUT_LEN};
use toml::{Table, Value};

use crate::cluster_file::section::Section;

/// What is read of a file at a time.
const PIECE_BYTES: usize = 1 << 18;

/// The SHA-256 of a file's content. Its text is 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sha256([u8; SHA256_OUTPUT_LEN]);

/// A text is no SHA-256.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("give the 64 hexadecimal digits that `sha256sum FILE` prints")]
pub struct NoSha256;

impl Sha256 {
    /// Of a content.
    pub fn of(content: &[u8]) -> Self {
        let mut context = Context::new(&SHA256);
        context.update(content);
        Self::end(context)
    }

    /// Of a file, which is read piece by piece.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn of_file(file: &Path) -> io::Result<Self> {
        let (mut file, mut context) = (File::open(file)?, Context::new(&SHA256));
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            match file.read(&mut piece) {
                Ok(0) => return Ok(Self::end(context)),
                Ok(bytes) => context.update(&piece[..bytes]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn end(context: Context) -> Self {
        let mut bytes = [0; SHA256_OUTPUT_LEN];
        bytes.copy_from_slice(context.finish().as_ref());
        Self(bytes)
    }
}

impl fmt::Display for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for Sha256 {
    type Err = NoSha256;

    fn from_str(text: &str) -> Result<Self, NoSha256> {
        let digit = |digit: u8| char::from(digit).to_digit(16).ok_or(NoSha256);
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let mut bytes = [0; SHA256_OUTPUT_LEN];
        if pairs.len() != bytes.len() || !rest.is_empty() {
            return Err(NoSha256);
        }
        for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
            *byte = (digit(*high)? << 4 | digit(*low)?) as u8;
        }
        Ok(Self(bytes))
    }
}

/// Reads the key `sha256`, which belongs to the key `file` beside it.
pub(crate) fn of_section(section: &Section<'_>) -> Option<Sha256> {
    let text = section.has("sha256").then(|| section.text("sha256")).flatten()?;
    if !section.has("file") {
        section.refuse("sha256", "says nothing without file", "remove it, or give file");
    }
    let refuse = |error: NoSha256| section.refuse("sha256", "is no SHA-256", error.to_string());
    text.parse().map_err(refuse).ok()
}

/// The text of a `[[model]]` table with the SHA-256 of each file that it names and gives none for. Who reads it on another host
/// finds out whether the file there is the same.
///
/// # Errors
/// A file cannot be read.
pub fn with_checksums(text: &str) -> Result<String, String> {
    let parsed: Result<Table, _> = toml::from_str(text);
    let mut root = parsed.map_err(|error| error.to_string())?;
    let models = root.get_mut("model").and_then(Value::as_array_mut);
    let mut is_changed = false;
    for model in models.into_iter().flatten().filter_map(Value::as_table_mut) {
        is_changed |= add_checksum(model)?;
        let variants = model.get_mut("variant").and_then(Value::as_array_mut);
        for variant in variants.into_iter().flatten().filter_map(Value::as_table_mut) {
            is_changed |= add_checksum(variant)?;
        }
    }
    if !is_changed {
        return Ok(text.to_owned());
    }
    // What distinguishes one table from another may stand in a comment above it.
    let comments = text.lines().take_while(|line| line.starts_with('#'));
    let comments: String = comments.map(|line| format!("{line}\n")).collect();
    let table = toml::to_string(&root).map_err(|error| error.to_string())?;
    Ok(comments + &table)
}

fn add_checksum(table: &mut Table) -> Result<bool, String> {
    let Some(Value::String(file)) = table.get("file").filter(|_| !table.contains_key("sha256"))
    else {
        return Ok(false);
    };
    let found = Sha256::of_file(Path::new(file)).map_err(|error| format!("{file}: {error}"))?;
    table.insert("sha256".to_owned(), found.to_string().into());
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FIPS 180-4's examples.
    const OF_ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    const OF_NOTHING: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn file(name: &str, content: &[u8]) -> std::path::PathBuf {
        let file = std::env::temp_dir().join(format!("baton-{}-{name}", std::process::id()));
        std::fs::write(&file, content).expect("a scratch file");
        file
    }

    #[test]
    fn contents_files_and_texts_agree() {
        assert_eq!(Sha256::of(b"abc").to_string(), OF_ABC);
        assert_eq!(OF_ABC.parse(), Ok(Sha256::of(b"abc")));
        assert_eq!(OF_ABC.to_uppercase().parse(), Ok(Sha256::of(b"abc")));
        assert_eq!(Sha256::of(b"").to_string(), OF_NOTHING);
        let large: Vec<u8> = (0..3 * PIECE_BYTES + 5).map(|at| at as u8).collect();
        let path = file("sha256-large", &large);
        assert_eq!(Sha256::of_file(&path).expect("it is there"), Sha256::of(&large));
        std::fs::remove_file(&path).expect("it is ours");
        assert!(Sha256::of_file(&path).is_err());
    }

    #[test]
    fn what_is_no_sha256_is_refused() {
        let cut = &OF_ABC[1..];
        for text in [
            "",
            cut,
            &format!("{OF_ABC}0"),
            &format!("{OF_ABC}00"),
            &format!("g{cut}"),
            &format!("{cut}ä"),
        ] {
            assert_eq!(text.parse::<Sha256>(), Err(NoSha256), "{text}");
        }
    }

    #[test]
    fn a_table_gets_the_checksum_of_each_file_that_has_none_and_keeps_its_comment() {
        let path = file("sha256-table", b"abc");
        let model = |rest: &str| format!("# the second\n[[model]]\nname = \"a\"\n{rest}");
        let named = format!("file = \"{}\"\n", path.display());
        let stamped = with_checksums(&model(&named)).expect("it can be read");
        assert!(stamped.starts_with("# the second\n"), "{stamped}");
        assert!(stamped.contains(OF_ABC), "{stamped}");
        let variants = format!("[[model.variant]]\n{named}[[model.variant]]\n{named}");
        let stamped = with_checksums(&model(&variants)).expect("it can be read");
        assert_eq!(stamped.matches(OF_ABC).count(), 2, "{stamped}");
        for unchanged in ["", &format!("{named}sha256 = \"{OF_NOTHING}\"\n")] {
            assert_eq!(with_checksums(&model(unchanged)), Ok(model(unchanged)));
        }
        std::fs::remove_file(&path).expect("it is ours");
        let error = with_checksums(&model(&named)).expect_err("it is gone");
        assert!(error.contains("sha256-table"), "{error}");
    }
}
