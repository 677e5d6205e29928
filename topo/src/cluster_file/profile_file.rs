//! A profile file: ℓ(b) of one model on one engine, as `baton profile` has measured it.

use std::fs;
use std::io::Read as _;
use std::path::Path;

use baton_types::{BATCH_MAX, Nanos, Profile};
use serde::{Deserialize, Serialize};

use crate::cluster_file::cluster::EngineSpec;
use crate::cluster_file::model::MS_MAX;

/// The first line, by which `baton profile` knows a file that it may write over.
const FIRST_LINE: &str =
    "# Written by `baton profile`. A cluster file names it: profile = \"FILE\"\n";
/// A longer file is not read: one of the most sizes has a tenth of it.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// What was measured of one batch size.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredSize {
    /// Rows of the batch.
    pub batch: u32,
    /// The median of its executions, ms.
    pub p50_ms: f64,
    /// Their 99th percentile, ms.
    pub p99_ms: f64,
    /// Their 99.99th percentile, ms; `None` of less than 10,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p9999_ms: Option<f64>,
    /// The longest, ms.
    pub longest_ms: f64,
    /// How many there were.
    pub runs: u32,
}

/// ℓ(b) of a model on an engine.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileFile {
    /// The model's name.
    pub model: String,
    /// Bytes of its file; 0 without one.
    pub model_bytes: u64,
    /// What executed it: `emulated`, `cuda` or `onnx`.
    pub engine: String,
    /// The device that did.
    pub device: String,
    /// There was no device, but Baton's fake driver: the times mean nothing.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_fake: bool,
    /// α of the line α·b + β with the least squares of relative errors, ms.
    pub alpha_ms: f64,
    /// Its β, ms.
    pub beta_ms: f64,
    /// The largest of those errors, as a part of what was measured.
    pub fit_error: f64,
    /// ℓ(1), ℓ(2), …, ms: never falling, medians at the sizes that were measured and straight lines between.
    pub latency_ms: Vec<f64>,
    /// The sizes that were measured, ascending.
    pub measured: Vec<MeasuredSize>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

impl ProfileFile {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, is no profile file, or holds a table that is no ℓ(b): what is wrong, in words.
    pub fn read(path: &Path) -> Result<Self, String> {
        let mut text = String::new();
        let file = fs::File::open(path).map_err(|error| format!("cannot be read: {error}"))?;
        let read = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text);
        match read {
            Err(error) => return Err(format!("cannot be read: {error}")),
            Ok(bytes) if bytes as u64 > FILE_BYTES_MAX => {
                return Err("is too long for a profile file".into());
            }
            Ok(_) => {}
        }
        Self::parse(&text)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let file: Self = toml::from_str(text).map_err(|error| {
            let message = error.message().lines().next().unwrap_or_default().to_owned();
            format!("is no profile file: {message}")
        })?;
        let ms = 0.0..=MS_MAX;
        if !file.latency_ms.iter().all(|latency| ms.contains(latency)) {
            return Err(format!("latency_ms has an entry that is not from 0 to {MS_MAX}"));
        }
        if file.latency_ms.len() > BATCH_MAX as usize {
            return Err(format!("latency_ms has more than {BATCH_MAX} entries"));
        }
        Profile::from_table(&file.table()).map_err(|error| format!("latency_ms: {error}"))?;
        Ok(file)
    }

    /// The file's text.
    ///
    /// # Errors
    /// A number that TOML cannot write.
    pub fn text(&self) -> Result<String, toml::ser::Error> {
        Ok(format!("{FIRST_LINE}{}", toml::to_string(self)?))
    }

    /// Whether a text was written by `baton profile`.
    pub fn is_ours(text: &str) -> bool {
        text.starts_with(FIRST_LINE)
    }

    /// ℓ(1), ℓ(2), …
    pub fn table(&self) -> Vec<Nanos> {
        self.latency_ms.iter().copied().map(Nanos::from_millis_f64).collect()
    }

    /// Whether it is of a model that `engine` executes.
    pub(crate) fn check(&self, engine: &EngineSpec) -> Result<(), String> {
        let name = engine.name();
        if self.engine == name {
            return Ok(());
        }
        Err(format!(
            "was measured with engine = \"{}\", and this model's is \"{name}\"",
            self.engine
        ))
    }

    /// What does not fit the model any more, and may still be near enough.
    pub(crate) fn warnings(&self, engine: &EngineSpec) -> Vec<String> {
        let mut warnings = Vec::new();
        if let EngineSpec::Onnx { file, .. } = engine
            && let Ok(metadata) = fs::metadata(file)
            && metadata.len() != self.model_bytes
        {
            let (then, now) = (self.model_bytes, metadata.len());
            warnings.push(format!(
                "was measured of a file of {then} bytes, and {} has {now}",
                file.display()
            ));
        }
        if self.is_fake {
            warnings.push("was measured on the fake CUDA driver: its times mean nothing".into());
        }
        warnings
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster_file::{BatchLayout, OnnxPlace};
    use crate::signature::{Row, Signature};

    fn file() -> ProfileFile {
        let size = |batch, p50_ms| MeasuredSize {
            batch,
            p50_ms,
            p99_ms: p50_ms + 0.5,
            p9999_ms: None,
            longest_ms: p50_ms + 1.0,
            runs: 50,
        };
        ProfileFile {
            model: "encoder".into(),
            model_bytes: 12,
            engine: "onnx".into(),
            device: "cpu".into(),
            is_fake: false,
            alpha_ms: 1.0,
            beta_ms: 2.0,
            fit_error: 0.01,
            latency_ms: vec![3.0, 4.0],
            measured: vec![size(1, 3.0), size(2, 4.0)],
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let text = file().text().unwrap();
        assert!(ProfileFile::is_ours(&text) && !ProfileFile::is_ours("[[model]]\n"));
        assert_eq!(ProfileFile::parse(&text), Ok(file()));
        let fake = ProfileFile { is_fake: true, ..file() };
        assert_eq!(ProfileFile::parse(&fake.text().unwrap()), Ok(fake));
    }

    #[test]
    fn a_profile_of_another_file_is_warned_of() {
        let own = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
        let engine = EngineSpec::Onnx {
            file: own.to_owned(),
            sha256: None,
            signature: Signature { input: Row::opaque("x", 1), output: Row::opaque("y", 1) },
            layout: BatchLayout::default(),
            is_measured: false,
            place: OnnxPlace::CPU,
        };
        let warnings = |model_bytes| ProfileFile { model_bytes, ..file() }.warnings(&engine);
        let bytes = fs::metadata(own).unwrap().len();
        assert_eq!(warnings(bytes), [""; 0]);
        assert_eq!(warnings(bytes + 1).len(), 1);
    }

    #[test]
    fn a_file_that_gives_no_profile_is_refused_with_the_reason() {
        let with = |latency_ms: &[f64]| {
            let file = ProfileFile { latency_ms: latency_ms.to_vec(), ..file() };
            ProfileFile::parse(&file.text().unwrap()).unwrap_err()
        };
        assert!(with(&[]).contains("latency_ms"), "{}", with(&[]));
        assert!(with(&[2.0, 1.0]).contains("latency_ms"), "{}", with(&[2.0, 1.0]));
        assert!(with(&[1.0, f64::NAN]).contains("not from 0 to"));
        assert!(with(&[-1.0]).contains("not from 0 to"));
        assert!(with(&[1.0; 1025]).contains("more than 1024"));
        assert!(ProfileFile::parse("[[model]]\n").unwrap_err().contains("no profile file"));
        let missing = ProfileFile::read(Path::new("/no/such.toml")).unwrap_err();
        assert!(missing.contains("cannot be read"), "{missing}");
    }
}
