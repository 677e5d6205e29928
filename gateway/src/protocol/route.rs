//! What a path asks for.

use std::borrow::Cow;

use super::problem::{Kind, Problem};
use super::render::VERSION;

/// A call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Route<'a> {
    /// Whether the process lives.
    Live,
    /// Whether it serves.
    Ready,
    /// What it is.
    Server,
    /// Whether a model can be used.
    ModelReady(Cow<'a, str>),
    /// What a model takes and gives.
    Metadata(Cow<'a, str>),
    /// The same in the words of its configuration.
    Config(Cow<'a, str>),
    /// What was inferred, of one model or all.
    Statistics(Option<Cow<'a, str>>),
    /// An inference.
    Infer(Cow<'a, str>),
    /// The models there are.
    Index,
    /// Makes a model usable.
    Load(Cow<'a, str>),
    /// Takes it away.
    Unload(Cow<'a, str>),
    /// What is registered under a name, or all.
    MemoryStatus(Option<Cow<'a, str>>),
    /// Registers memory under a name.
    MemoryRegister(Cow<'a, str>),
    /// Forgets it, or all.
    MemoryUnregister(Option<Cow<'a, str>>),
    /// The protocol has it and this gateway has not: what, and what to do.
    NotDone(&'static str),
    /// Always succeeds: there is nothing to undo.
    Nothing,
}

impl Route<'_> {
    /// Whether it is a POST; the others are GETs.
    pub fn is_post(&self) -> bool {
        matches!(
            self,
            Self::Infer(_)
                | Self::Index
                | Self::Load(_)
                | Self::Unload(_)
                | Self::MemoryRegister(_)
                | Self::MemoryUnregister(_)
                | Self::Nothing
        )
    }
}

/// Parts of the longest path behind `v2`.
const PARTS_MAX: usize = 6;

const CUDA: &str =
    "this gateway has no shared memory of CUDA's: use the system's, or send tensors in requests";
const SETTINGS: &str =
    "this gateway has no trace and log settings: RUST_LOG sets its log when it starts";
const GENERATE: &str = "this gateway has no generate extension: use infer";

/// The call of a path. Whatever stands before `v2` is a prefix of the client's.
///
/// # Errors
/// There is none.
pub fn route(path: &str) -> Result<Route<'_>, Problem> {
    let unknown = || {
        Problem::new(
            Kind::NotFound,
            format!(
                "there is nothing at {path}; GET /v2/models/NAME describes a model, \
                 POST /v2/repository/index lists all, and POST /v2/models/NAME/infer infers"
            ),
        )
    };
    let mut all = path.split('/').filter(|part| !part.is_empty());
    all.find(|part| *part == "v2").ok_or_else(unknown)?;
    let (mut parts, mut count) = ([""; PARTS_MAX], 0);
    for part in all {
        *parts.get_mut(count).ok_or_else(unknown)? = part;
        count += 1;
    }
    Ok(match parts[..count] {
        [] => Route::Server,
        ["health", "live"] => Route::Live,
        ["health", "ready"] => Route::Ready,
        ["models", "stats"] => Route::Statistics(None),
        ["models", model, "versions", version, ref rest @ ..] => {
            check_version(version)?;
            of_model(model, rest).ok_or_else(unknown)?
        }
        ["models", model, ref rest @ ..] => of_model(model, rest).ok_or_else(unknown)?,
        ["repository", "index"] => Route::Index,
        ["repository", "models", model, "load"] => Route::Load(decoded(model).ok_or_else(unknown)?),
        ["repository", "models", model, "unload"] => {
            Route::Unload(decoded(model).ok_or_else(unknown)?)
        }
        ["systemsharedmemory", "status"] => Route::MemoryStatus(None),
        ["systemsharedmemory", "unregister"] => Route::MemoryUnregister(None),
        ["systemsharedmemory", "region", region, call] => {
            of_region(region, call).ok_or_else(unknown)?
        }
        ["cudasharedmemory", .., "unregister"] => Route::Nothing,
        ["cudasharedmemory", ..] => Route::NotDone(CUDA),
        ["trace", "setting"] | ["logging"] => Route::NotDone(SETTINGS),
        _ => return Err(unknown()),
    })
}

fn of_model<'a>(model: &'a str, rest: &[&str]) -> Option<Route<'a>> {
    let name = decoded(model)?;
    Some(match rest {
        [] => Route::Metadata(name),
        ["ready"] => Route::ModelReady(name),
        ["config"] => Route::Config(name),
        ["stats"] => Route::Statistics(Some(name)),
        ["infer"] => Route::Infer(name),
        ["trace", "setting"] => Route::NotDone(SETTINGS),
        ["generate"] | ["generate_stream"] => Route::NotDone(GENERATE),
        _ => return None,
    })
}

fn of_region<'a>(region: &'a str, call: &str) -> Option<Route<'a>> {
    let name = decoded(region)?;
    Some(match call {
        "status" => Route::MemoryStatus(Some(name)),
        "register" => Route::MemoryRegister(name),
        "unregister" => Route::MemoryUnregister(Some(name)),
        _ => return None,
    })
}

/// Every model has one version.
///
/// # Errors
/// It is another one.
pub fn check_version(version: &str) -> Result<(), Problem> {
    if ["", VERSION].contains(&version) {
        return Ok(());
    }
    let text = format!("there is no version {version:?}: every model has version {VERSION} only");
    Err(Problem::new(Kind::NotFound, text))
}

/// A path's part without its percent signs; `None` if it is no text.
fn decoded(part: &str) -> Option<Cow<'_, str>> {
    if !part.contains('%') {
        return Some(part.into());
    }
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let (code, after) = rest.split_at_checked(2)?;
        let digit = |at: usize| char::from(code[at]).to_digit(16);
        bytes.push((digit(0)? * 16 + digit(1)?) as u8);
        rest = after;
    }
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_the_protocol() {
        let model = || Cow::Borrowed("m");
        let cases = [
            ("/v2", Route::Server),
            ("/v2/", Route::Server),
            ("/behind/a/proxy/v2/health/live", Route::Live),
            ("/v2/health/ready", Route::Ready),
            ("/v2/models/m", Route::Metadata(model())),
            ("/v2/models/m/versions/1", Route::Metadata(model())),
            ("/v2/models/m/ready", Route::ModelReady(model())),
            ("/v2/models/m/config", Route::Config(model())),
            ("/v2/models/stats", Route::Statistics(None)),
            ("/v2/models/m/versions/1/stats", Route::Statistics(Some(model()))),
            ("/v2/models/m/infer", Route::Infer(model())),
            ("/v2/models/%6d/versions/1/infer", Route::Infer(model())),
            ("/v2/models/a%2Fb%20%c3%a4/infer", Route::Infer("a/b ä".into())),
            ("/v2/repository/index", Route::Index),
            ("/v2/repository/models/m/load", Route::Load(model())),
            ("/v2/repository/models/%6d/unload", Route::Unload(model())),
            ("/v2/cudasharedmemory/region/r/register", Route::NotDone(CUDA)),
            ("/v2/cudasharedmemory/unregister", Route::Nothing),
            ("/v2/trace/setting", Route::NotDone(SETTINGS)),
            ("/v2/logging", Route::NotDone(SETTINGS)),
            ("/v2/models/m/trace/setting", Route::NotDone(SETTINGS)),
            ("/v2/models/m/generate", Route::NotDone(GENERATE)),
            ("/v2/models/m/generate_stream", Route::NotDone(GENERATE)),
            ("/v2/systemsharedmemory/status", Route::MemoryStatus(None)),
            ("/v2/systemsharedmemory/unregister", Route::MemoryUnregister(None)),
            ("/v2/systemsharedmemory/region/%6d/status", Route::MemoryStatus(Some(model()))),
            ("/v2/systemsharedmemory/region/m/register", Route::MemoryRegister(model())),
            ("/v2/systemsharedmemory/region/m/unregister", Route::MemoryUnregister(Some(model()))),
        ];
        for (path, expected) in cases {
            assert_eq!(route(path), Ok(expected), "{path}");
        }
    }

    /// What changes something, and what has a body.
    #[test]
    fn the_protocol_says_which_calls_are_posts() {
        let posts = [
            "models/m/infer",
            "repository/index",
            "repository/models/m/load",
            "repository/models/m/unload",
            "systemsharedmemory/region/m/register",
            "systemsharedmemory/region/m/unregister",
            "systemsharedmemory/unregister",
            "cudasharedmemory/unregister",
        ];
        let gets = [
            "",
            "health/live",
            "health/ready",
            "models/stats",
            "models/m",
            "models/m/ready",
            "models/m/config",
            "systemsharedmemory/status",
            "systemsharedmemory/region/m/status",
            "trace/setting",
        ];
        let is_post = |path: &str| route(&format!("/v2/{path}")).unwrap().is_post();
        for (paths, expected) in [(&posts[..], true), (&gets[..], false)] {
            for path in paths {
                assert_eq!(is_post(path), expected, "{path}");
            }
        }
    }

    #[test]
    fn other_paths_and_versions_are_not_found() {
        let others = [
            "/",
            "/v1/models/m",
            "/v2/models",
            "/v2/models/m/other",
            "/v2/models/m/versions/2/infer",
            "/v2/systemsharedmemory/region/r/map",
            "/v2/systemsharedmemory/register",
            "/v2/models/%/infer",
            "/v2/models/%6/infer",
            "/v2/models/%ff/infer",
            "/v2/models/%+6/infer",
            "/v2/models/%ä/infer",
        ];
        for path in others {
            assert_eq!(route(path).map_err(|problem| problem.kind), Err(Kind::NotFound), "{path}");
        }
    }
}
