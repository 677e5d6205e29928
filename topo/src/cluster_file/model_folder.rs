//! `model_folder`, `model_folder_mib` and `model_ca` of a backend: where the model files go that it pulls from servers.

use std::path::{Path, PathBuf};

use crate::cluster_file::section::Section;
use crate::cluster_file::sha256::Sha256;

/// How much it may hold if the file does not say, MiB.
const FOLDER_MIB: u32 = 64 << 10;
const MIB: u64 = 1 << 20;

/// See the module documentation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ModelFolderSpec {
    /// The folder; `None`: where programs of this user cache files.
    pub path: Option<PathBuf>,
    /// What the files in it may take together.
    pub bytes: u64,
    /// The authorities of servers with `https://`, as PEM; `None`: the system's.
    pub ca: Option<PathBuf>,
}

impl Default for ModelFolderSpec {
    fn default() -> Self {
        Self { path: None, bytes: u64::from(FOLDER_MIB) * MIB, ca: None }
    }
}

pub(super) fn of_backend(section: &Section<'_>, folder: &Path) -> ModelFolderSpec {
    let path = |key| section.has(key).then(|| section.text(key)).flatten().map(|p| folder.join(p));
    let mib = section.integer("model_folder_mib", 1..=u32::MAX).unwrap_or(FOLDER_MIB);
    ModelFolderSpec {
        path: path("model_folder"),
        bytes: u64::from(mib) * MIB,
        ca: path("model_ca"),
    }
}

/// A file that was pulled is named by its content.
pub fn pulled_file(folder: &Path, sha256: Sha256) -> PathBuf {
    folder.join(format!("{sha256}.onnx"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_content_has_a_file_of_its_own() {
        let digits = ["ab", "01"].map(|byte| byte.repeat(32));
        let file = |digits: &String| pulled_file(Path::new("/cache"), digits.parse().unwrap());
        let expected = |digits: &String| PathBuf::from(format!("/cache/{digits}.onnx"));
        assert_eq!(digits.each_ref().map(file), digits.each_ref().map(expected));
    }
}
