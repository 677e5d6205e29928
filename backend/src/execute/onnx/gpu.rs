//! Models on a GPU, by ONNX Runtime's CUDA provider.
//!
//! The provider is a library beside ONNX Runtime's own. It needs libraries of CUDA that the dynamic linker may not find by
//! itself, so those that a list beside them names are loaded first, each by its path; the linker then finds them by name.
//! The provider is asked for with an error on failure: ONNX Runtime would otherwise go on with the CPU without a word.

use std::error::Error as _;
use std::path::Path;
use std::sync::OnceLock;

use baton_topo::{OnnxPlace, TensorRt};
use ort::ep::cuda::ConvAlgorithmSearch;
use ort::ep::{ArbitrarilyConfigurableExecutionProvider, ArenaExtendStrategy, CUDA, TensorRT};
use ort::session::Session;
use ort::session::builder::SessionBuilder;

use super::{Fault, text};

/// The provider's file.
const PROVIDER: &str = "libonnxruntime_providers_cuda.so";
/// The file beside it with the path of a library of CUDA on each line, in the order in which they need each other.
const LIST: &str = "cuda-libraries.txt";

/// Once per process: the libraries stay loaded.
static PREPARED: OnceLock<Result<(), Fault>> = OnceLock::new();

/// Loads what the provider needs, the first time. `library` is ONNX Runtime's.
///
/// # Errors
/// This ONNX Runtime has no CUDA provider, or a library of the list cannot be loaded.
pub(super) fn prepare(library: &Path) -> Result<(), Fault> {
    PREPARED.get_or_init(|| preload(library)).clone()
}

fn preload(library: &Path) -> Result<(), Fault> {
    let folder = library.parent().unwrap_or_else(|| Path::new(""));
    if !folder.join(PROVIDER).is_file() {
        let problem = format!("{} has no CUDA provider beside it ({PROVIDER})", library.display());
        return Err(Fault::new(
            problem,
            "for a GPU: export ORT_DYLIB_PATH=\"$(./x onnxruntime --gpu)\"",
        ));
    }
    let list = folder.join(LIST);
    let Ok(paths) = std::fs::read_to_string(&list) else {
        tracing::info!(
            "no {} with the paths of CUDA's libraries: the linker looks for them",
            list.display()
        );
        return Ok(());
    };
    for path in paths.lines().map(str::trim).filter(|line| !line.is_empty()) {
        ort::util::preload_dylib(path).map_err(|error| {
            let why = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            let problem = format!("{path}, of {}, cannot be loaded: {why}", list.display());
            Fault::new(problem, "run `./x onnxruntime --gpu` again: it finds them anew")
        })?;
    }
    Ok(())
}

/// A session on the device with this number. All operators execute there, unless `place` allows others. With a stream, which
/// must outlive the session, its work is put there.
pub(super) fn open(
    builder: SessionBuilder,
    file: &Path,
    (device, stream): (u32, Option<*mut ()>),
    place: OnnxPlace,
) -> Result<Session, String> {
    let provider = CUDA::default()
        .with_device_id(device.cast_signed())
        .with_arena_extend_strategy(ArenaExtendStrategy::SameAsRequested)
        .with_conv_algorithm_search(ConvAlgorithmSearch::Heuristic)
        .with_tf32(place.tf32);
    let provider = match stream {
        Some(stream) => provider
            .with_arbitrary_config("has_user_compute_stream", "1")
            .with_arbitrary_config("user_compute_stream", stream.addr().to_string()),
        None => provider,
    };
    let tensorrt = place.tensorrt.map(|TensorRt { fp16 }| {
        let of_device = TensorRT::default().with_device_id(device.cast_signed());
        of_device.with_fp16(fp16).build().error_on_failure()
    });
    let cuda = provider.build().error_on_failure();
    let providers: Vec<_> = tensorrt.into_iter().chain([cuda]).collect();
    let builder = builder.with_execution_providers(providers).map_err(text)?;
    let mut builder = match place.cpu_operators {
        true => builder,
        false => builder.with_disable_cpu_fallback().map_err(text)?,
    };
    builder.commit_from_file(file).map_err(text)
}

/// Words of ONNX Runtime, of CUDA, and of the dynamic linker; what to do. The first that fits counts.
const FIXES: [(&str, &str); 14] = [
    (
        "libcuda.so.1: cannot open",
        "install NVIDIA's driver on this host (580 or later for CUDA 13), or give device = \"cpu\"",
    ),
    (
        "libnvinfer",
        "install TensorRT 10 where the linker looks for libraries, or remove tensorrt = true",
    ),
    (
        "libonnxruntime_providers_tensorrt.so: cannot open",
        "this ONNX Runtime has no TensorRT provider beside it: `./x onnxruntime --gpu` fetches one",
    ),
    (
        "cannot open shared object file",
        "`./x onnxruntime --gpu` finds the libraries of CUDA on this host, and says which package has those that are missing",
    ),
    (
        "undefined symbol",
        "a library of CUDA has another version than this ONNX Runtime needs: run `./x onnxruntime --gpu` again",
    ),
    (
        "driver version is insufficient",
        "install a newer NVIDIA driver: 580 or later for CUDA 13; `nvidia-smi` shows the one there is",
    ),
    ("invalid device ordinal", "name a GPU that there is: `baton doctor` lists them"),
    ("no CUDA-capable device", "`nvidia-smi` should list a GPU that this process may use"),
    (
        "no kernel image is available",
        "this ONNX Runtime was not built for this GPU: use another version of it",
    ),
    (
        "fallback to CPU EP has been explicitly disabled",
        "some operators of the model cannot execute on the GPU: allow the CPU for them with cpu_operators = true, or export it anew",
    ),
    ("Failed to allocate memory", OUT_OF_MEMORY),
    ("out of memory", OUT_OF_MEMORY),
    (
        "not enabled in this build",
        "this ONNX Runtime has no CUDA provider: export ORT_DYLIB_PATH=\"$(./x onnxruntime --gpu)\"",
    ),
    ("CUDA failure", "`baton doctor` says what is there; `dmesg` may have the driver's words"),
];
const OUT_OF_MEMORY: &str = "the GPU's memory is too small: lower batch_max, serve fewer models there, or name a larger GPU";

/// What an error on the way to a GPU means, if it is one of those.
pub(super) fn explained(error: &str) -> Option<Fault> {
    let &(_, fix) = FIXES.iter().find(|(words, _)| error.contains(words))?;
    Some(Fault::new(plain(error), fix))
}

/// Without the place in ONNX Runtime's sources, where it names one before its own words, and on one line.
fn plain(error: &str) -> String {
    let words = match error.rsplit_once(": FAIL : ") {
        Some((_, words)) => words,
        None => error,
    };
    // Behind the words of CUDA comes where ONNX Runtime called it.
    let words = words.split_once(" ; GPU=").map_or(words, |(words, _)| words);
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_without_the_provider_is_named_with_the_command_that_fetches_one() {
        let fault = preload(Path::new("/no/libonnxruntime.so")).unwrap_err();
        assert!(fault.problem.contains("/no/libonnxruntime.so has no CUDA provider"), "{fault:?}");
        assert!(fault.fix.contains("./x onnxruntime --gpu"), "{fault:?}");
    }

    #[test]
    fn a_list_that_has_grown_old_is_named() {
        let folder = std::env::temp_dir().join(format!("baton-gpu-list-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(PROVIDER), "").unwrap();
        let library = folder.join("libonnxruntime.so");
        assert_eq!(preload(&library), Ok(()), "without a list the linker looks");
        std::fs::write(folder.join(LIST), "\n/no/libcudart.so.13\n").unwrap();
        let fault = preload(&library).unwrap_err();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(fault.problem.starts_with("/no/libcudart.so.13, of "), "{fault:?}");
        assert!(fault.problem.contains("cannot open shared object"), "{fault:?}");
    }

    #[test]
    fn words_are_cut_to_one_line_and_other_errors_are_not_explained() {
        let error = "/src/provider_bridge_ort.cc:2251 Get() [ONNXRuntimeError] : 1 : FAIL : Failed to load library /a/b.so with \
                     error: libcublas.so.13:\n cannot open shared object file";
        let fault = explained(error).unwrap();
        let words = "Failed to load library /a/b.so with error: libcublas.so.13: cannot open shared object file";
        assert_eq!(fault.problem, words);
        assert!(fault.fix.contains("./x onnxruntime --gpu"), "{fault:?}");
        assert_eq!(explained("INVALID_ARGUMENT : got shape [3]"), None);
        let of = |library: &str| {
            let error = format!(
                "Failed to load library /a/libonnxruntime_providers_tensorrt.so with error: {library}: cannot open shared object file"
            );
            explained(&error).unwrap().fix
        };
        assert!(of("libnvinfer.so.10").contains("TensorRT 10"));
        assert!(of("/a/libonnxruntime_providers_tensorrt.so").contains("has no TensorRT provider"));
        assert!(of("libcublas.so.13").contains("finds the libraries of CUDA"));
    }
}
