//! Model files that lie on a server, pulled by the backends that serve them.
//!
//! In: the description of a model whose files are URLs. Out: the files in this backend's folder, compared with their SHA-256.
//! A thread of its own pulls one model's files at a time, so that neither the I/O thread nor a slot's loading thread waits for a
//! server.

mod folder;
mod give_up;
mod server;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use baton_topo::{ModelFolderSpec, ModelSpec, Problem, Sha256, Waker, read_model};
use crossbeam_channel::{Receiver, TryRecvError, bounded};

pub use folder::{ModelFolder, Pulled};
pub use give_up::GiveUp;

/// Why a model's file is not here.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PullError {
    /// The server does not give it.
    #[error(
        "{url} cannot be pulled: {problem}; see that this host reaches the server and that it has the file"
    )]
    Server {
        /// The file.
        url: String,
        /// What is wrong.
        problem: String,
    },
    /// The server is not there, or too busy. It may come back.
    #[error(
        "{url} cannot be pulled: {problem}; see that this host reaches the server, and that the server runs"
    )]
    Away {
        /// The file.
        url: String,
        /// What is wrong.
        problem: String,
    },
    /// The server stopped in the middle.
    #[error("{url}: {got_bytes} of {bytes} bytes came ({why}); see the server, and try again")]
    Cut {
        /// The file.
        url: String,
        /// What came.
        got_bytes: u64,
        /// What was to come.
        bytes: u64,
        /// How it ended.
        why: String,
    },
    /// It is longer than a model can be.
    #[error("{url} has {bytes} bytes, and an ONNX file has 2 GiB at most; correct the URL")]
    TooLarge {
        /// The file.
        url: String,
        /// Its size.
        bytes: u64,
    },
    /// It is another file.
    #[error(
        "{url}: its SHA-256 is {found}, and that of the model is {expected}; put the right file there, or exchange the model"
    )]
    Different {
        /// The file.
        url: String,
        /// That of the model.
        expected: Sha256,
        /// What came.
        found: Sha256,
    },
    /// The authorities that vouch for a server cannot be read.
    #[error("{}: {problem}; name the server's authority with model_ca in [[backend]]", file.display())]
    Authorities {
        /// Where they should be.
        file: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// There is no folder for it.
    #[error(
        "there is no folder for model files: neither XDG_CACHE_HOME nor HOME is set; give model_folder in [[backend]]"
    )]
    NoFolder,
    /// Another process has the folder.
    #[error("another process keeps its model files in {}; give each backend its own model_folder", folder.display())]
    Taken {
        /// The folder.
        folder: PathBuf,
    },
    /// The folder has no room left.
    #[error(
        "the file takes {} MiB, and {} has {} MiB beside the files of other models; raise model_folder_mib in [[backend]], or \
         serve fewer models",
        needs_bytes.div_ceil(1 << 20), folder.display(), free_bytes >> 20
    )]
    Full {
        /// The folder.
        folder: PathBuf,
        /// What the file takes.
        needs_bytes: u64,
        /// What could be freed.
        free_bytes: u64,
    },
    /// The folder cannot be read or written.
    #[error("{}: {problem}; see that this user may write there and that the disk has room", path.display())]
    Disk {
        /// Where.
        path: PathBuf,
        /// The system's message.
        problem: String,
    },
    /// The table does not describe a model.
    #[error("{0}")]
    Table(String),
    /// No peer wants it any more.
    #[error("it was removed")]
    GivenUp,
    /// No thread can be started.
    #[error("a thread cannot be started for it: {0}; raise the limit of threads")]
    Thread(String),
}

/// What a pull has brought.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Brought {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
}

type Outcome = Result<Brought, PullError>;

/// Pulls a model's files beside the I/O thread, one model at a time.
#[derive(Debug)]
pub(crate) struct ModelPulls {
    spec: ModelFolderSpec,
    backend: String,
    /// Opened with the first pull: who pulls nothing needs none.
    folder: Option<Arc<ModelFolder>>,
    /// How it ends, and whether it is not wanted any more.
    under_way: Option<(Receiver<Outcome>, Arc<GiveUp>)>,
}

impl ModelPulls {
    pub(crate) fn new(spec: ModelFolderSpec, backend: &str) -> Self {
        Self { spec, backend: backend.to_owned(), folder: None, under_way: None }
    }

    /// Where the files are, or will be.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        folder::path_of(&self.spec, &self.backend).ok()
    }

    /// Pulls what a backend's own models need before it joins, and says where it is. Blocks, also while their server is away.
    ///
    /// # Errors
    /// The model that cannot be pulled, and why.
    pub(crate) fn pull_at_start(&mut self, models: &mut [ModelSpec]) -> Result<(), String> {
        if models.iter().all(|model| model.remote_files().is_empty()) {
            return Ok(());
        }
        let folder = self.folder().map_err(|error| error.to_string())?;
        let (mut in_use, give_up) = (BTreeSet::new(), GiveUp::default());
        let path = self.path().expect("the folder is open");
        in_use.extend(models.iter().flat_map(|model| pulled(model, &path)));
        for model in models {
            pull_patiently(PAUSES, &give_up, || pull_all(&folder, model, &in_use, &give_up))
                .map_err(|error| format!("model `{}`: {error}", model.name))?;
            *model = model.clone().pulled_into(&path);
        }
        Ok(())
    }

    /// Begins to pull the files of the model that this table describes, and `patiently` waits for a server that is away. Wakes
    /// `owner` when that has ended.
    pub(crate) fn begin(
        &mut self,
        table: &str,
        in_use: BTreeSet<PathBuf>,
        patiently: bool,
        owner: Waker,
    ) {
        let (ended, outcome) = bounded(1);
        let give_up = Arc::new(GiveUp::default());
        let (table, theirs) = (table.to_owned(), Arc::clone(&give_up));
        let folder = self.folder();
        let again = ended.clone();
        let work = move || {
            let pull = |folder: Arc<ModelFolder>| {
                let pull = || pull_table(&folder, &table, &in_use, &theirs);
                if patiently { pull_patiently(PAUSES, &theirs, pull) } else { pull() }
            };
            let brought = folder.and_then(pull);
            // The owner may not want it any more.
            let _ = ended.send(brought);
            owner.wake();
        };
        let thread = std::thread::Builder::new().name("baton-pull".to_owned()).spawn(work);
        if let Err(error) = thread {
            let _ = again.try_send(Err(PullError::Thread(error.to_string())));
        }
        self.under_way = Some((outcome, give_up));
    }

    /// How the pull has ended, once it has.
    pub(crate) fn poll(&mut self) -> Option<Outcome> {
        let (outcome, _) = self.under_way.as_ref()?;
        let ended = match outcome.try_recv() {
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => {
                Err(PullError::Thread("it panicked; see the log above".to_owned()))
            }
            Ok(ended) => ended,
        };
        self.under_way = None;
        Some(ended)
    }

    /// No peer wants the model any more. The thread ends with the server's next bytes, or when it has waited long enough for them.
    pub(crate) fn give_up(&mut self) {
        if let Some((_, give_up)) = self.under_way.take() {
            give_up.set();
        }
    }

    fn folder(&mut self) -> Result<Arc<ModelFolder>, PullError> {
        if let Some(folder) = &self.folder {
            return Ok(Arc::clone(folder));
        }
        let path = folder::path_of(&self.spec, &self.backend)?;
        let folder = Arc::new(ModelFolder::open(path, &self.spec)?);
        self.folder = Some(Arc::clone(&folder));
        Ok(folder)
    }
}

impl Drop for ModelPulls {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// From the first attempt to the second, and at most; twice as long each time.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];

/// Pulls again and again while the server is away, or stops in the middle.
fn pull_patiently(
    [mut pause, longest]: [Duration; 2],
    give_up: &GiveUp,
    mut pull: impl FnMut() -> Outcome,
) -> Outcome {
    loop {
        match pull() {
            Err(error @ (PullError::Away { .. } | PullError::Cut { .. })) => {
                let again_in_s = pause.as_secs();
                tracing::warn!(%error, again_in_s, "a model's file is not to be had yet; this backend serves once it is");
                if give_up.wait(pause) {
                    return Err(PullError::GivenUp);
                }
                pause = (2 * pause).min(longest);
            }
            ended => return ended,
        }
    }
}

/// Whether a table may name files on servers. Who reads it knows.
pub(crate) fn may_be_remote(table: &str) -> bool {
    table.contains("://")
}

fn pull_table(
    folder: &ModelFolder,
    table: &str,
    in_use: &BTreeSet<PathBuf>,
    give_up: &GiveUp,
) -> Outcome {
    let read = read_model(table, Path::new(""), None);
    let model = read.map_err(|problems| PullError::Table(Problem::lines(&problems)))?.spec;
    pull_all(folder, &model, in_use, give_up)
}

fn pull_all(
    folder: &ModelFolder,
    model: &ModelSpec,
    in_use: &BTreeSet<PathBuf>,
    give_up: &GiveUp,
) -> Outcome {
    let (mut in_use, mut brought) = (in_use.clone(), Brought::default());
    for (url, sha256) in model.remote_files() {
        let Pulled { path, bytes } = folder.pull(&url, Some(sha256), &in_use, give_up)?;
        tracing::info!(model = model.name, url, bytes, "a model's file is here");
        in_use.insert(path);
        brought.files += u64::from(bytes > 0);
        brought.bytes += bytes;
    }
    Ok(brought)
}

/// Where the model's remote files lie once they are here.
fn pulled(model: &ModelSpec, folder: &Path) -> Vec<PathBuf> {
    let here = model.clone().pulled_into(folder);
    here.files().into_iter().map(Path::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;

    fn away() -> Outcome {
        Err(PullError::Away { url: "http://x/m.onnx".to_owned(), problem: "refused".to_owned() })
    }

    fn cut() -> Outcome {
        let (url, why) = ("http://x/m.onnx".to_owned(), "closed".to_owned());
        Err(PullError::Cut { url, got_bytes: 1, bytes: 2, why })
    }

    #[test]
    fn a_server_that_is_away_is_asked_again_until_it_is_back() {
        let brought = Brought { files: 1, bytes: 2 };
        let mut answers = vec![away(), cut(), away(), Ok(brought)].into_iter();
        let pull = || answers.next().expect("it has ended");
        let ended = pull_patiently([Duration::ZERO; 2], &GiveUp::default(), pull);
        assert_eq!(ended, Ok(brought));
    }

    /// It was pulled before the last end of this backend.
    #[test]
    fn a_start_makes_no_room_of_files_that_its_other_models_have() {
        let path = std::env::temp_dir().join(format!("baton-{}-pull-start", std::process::id()));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let model = |name: &str, content: &str| {
            let (sha256, bytes) = (Sha256::of(content.as_bytes()), content.len());
            let text = format!(
                "[[model]]\nname = \"{name}\"\nfile = \"{url}/{name}.onnx\"\nsha256 = \"{sha256}\"\n\
                 file_bytes = {bytes}\ntensors = [\"in f32[batch, 2] x\", \"out f32[batch, 2] y\"]\n\
                 slo_ms = 25\nbatch_max = 8\n"
            );
            read_model(&text, Path::new(""), None).unwrap().spec
        };
        let mut models = [model("new", "twenty bytes it takes"), model("kept", "here")];
        std::fs::create_dir_all(&path).unwrap();
        let kept = pulled(&models[1], &path).remove(0);
        std::fs::write(&kept, "here").unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, mut request) = (stream.unwrap(), [0; 4096]);
                let read = stream.read(&mut request).unwrap();
                let answer = match request[..read].starts_with(b"GET /new.onnx ") {
                    true => "200 OK\r\ncontent-length: 21\r\n\r\ntwenty bytes it takes",
                    false => "404 Not Found\r\ncontent-length: 0\r\n\r\n",
                };
                let _ = stream.write_all(format!("HTTP/1.1 {answer}").as_bytes());
            }
        });
        let bytes = 24;
        let spec =
            ModelFolderSpec { path: Some(path.clone()), bytes, ..ModelFolderSpec::default() };
        let problem = ModelPulls::new(spec, "b").pull_at_start(&mut models).unwrap_err();
        assert!(problem.contains("`new`: the file takes") && kept.exists(), "{problem}");
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn what_does_not_pass_is_told_at_once() {
        let mut answers = vec![away(), Err(PullError::NoFolder)].into_iter();
        let pull = || answers.next().expect("it has ended");
        let ended = pull_patiently([Duration::ZERO; 2], &GiveUp::default(), pull);
        assert_eq!(ended, Err(PullError::NoFolder));
    }

    #[test]
    fn a_pull_that_is_not_wanted_any_more_waits_for_no_server() {
        let give_up = GiveUp::default();
        give_up.set();
        let ended = pull_patiently([Duration::MAX; 2], &give_up, away);
        assert_eq!(ended, Err(PullError::GivenUp));
    }
}
