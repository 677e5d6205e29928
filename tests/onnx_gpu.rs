//! Models of ONNX files on a GPU, as far as a host without one shows it: each thing that is missing is named with the fix.
//!
//! ORT_GPU_DYLIB_PATH names an ONNX Runtime with the CUDA provider; `./x onnxruntime --gpu` prints one.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod support;

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Output;

use support::{Folder, baton, has_onnx_runtime};

const DIGITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/digits/digits.onnx");

/// `baton config check` of the digits on a GPU, as a backend loads them.
fn check(folder: &Folder, library: &Path, more: &str, links: Option<&Path>) -> (bool, String) {
    let text = format!(
        "[[model]]\nname = \"d\"\nfile = \"{DIGITS}\"\nslo_ms = 50\n{more}\n[[backend]]\nname = \"b\"\n"
    );
    let file = folder.write("cluster.toml", &text);
    let mut command = baton();
    command.args(["config", "check", &file]).env("ORT_DYLIB_PATH", library);
    links.map(|links| command.env("LD_LIBRARY_PATH", links));
    let Output { status, stdout, .. } = command.output().unwrap();
    (status.success(), String::from_utf8(stdout).unwrap())
}

/// A folder with links to that ONNX Runtime, and a list of libraries of its own.
fn with_provider(folder: &Folder, libraries: &str) -> Option<PathBuf> {
    let named = std::env::var_os("ORT_GPU_DYLIB_PATH").filter(|path| !path.is_empty());
    let Some(named) = named.map(PathBuf::from) else {
        eprintln!("SKIPPED: ORT_GPU_DYLIB_PATH is not set; export it: $(./x onnxruntime --gpu)");
        return None;
    };
    for name in ["libonnxruntime_providers_shared.so", "libonnxruntime_providers_cuda.so"] {
        symlink(named.with_file_name(name), folder.path().join(name)).unwrap();
    }
    let library = folder.path().join("libonnxruntime.so");
    symlink(&named, &library).unwrap();
    folder.write("cuda-libraries.txt", libraries);
    Some(library)
}

#[test]
fn an_onnx_runtime_without_the_provider_is_refused_at_the_model() {
    if !has_onnx_runtime() {
        return;
    }
    let folder = Folder::new("gpu-no-provider");
    let library = PathBuf::from(std::env::var_os("ORT_DYLIB_PATH").unwrap());
    if library.with_file_name("libonnxruntime_providers_cuda.so").is_file() {
        return;
    }
    let (sound, text) = check(&folder, &library, "device = \"cuda:0\"", None);
    assert!(!sound && text.contains("has no CUDA provider beside it"), "{text}");
    assert!(
        text.contains("cluster.toml:3: model[0].file") && text.contains("./x onnxruntime --gpu")
    );
    assert!(text.contains("digits.onnx on cuda:0"), "{text}");
    assert!(check(&folder, &library, "device = \"cpu\"", None).0);
}

#[test]
fn libraries_that_the_provider_needs_are_named() {
    let folder = Folder::new("gpu-no-libraries");
    let Some(library) = with_provider(&folder, "") else { return };
    assert!(check(&folder, &library, "", None).0, "it serves the CPU as well");
    let (sound, text) = check(&folder, &library, "device = \"cuda:0\"", None);
    // A host that has them where the linker looks gets further.
    assert!(sound || text.contains("fix: "), "{text}");
    let none = ["libcublasLt.so.13: cannot open shared object", "./x onnxruntime --gpu"];
    let elsewhere = Path::new("/usr/local/cuda").exists();
    assert!(elsewhere || none.iter().all(|words| text.contains(words)), "{text}");
    folder.write("cuda-libraries.txt", "/no/libcudart.so.13\n");
    let (sound, text) = check(&folder, &library, "device = \"cuda:0\"", None);
    assert!(!sound && text.contains("/no/libcudart.so.13, of "), "{text}");
}

#[test]
fn with_its_libraries_the_provider_gets_as_far_as_the_driver() {
    let folder = Folder::new("gpu-driver");
    let Some(library) = with_provider(&folder, "") else { return };
    let real = PathBuf::from(std::env::var_os("ORT_GPU_DYLIB_PATH").unwrap());
    let list = std::fs::read_to_string(real.with_file_name("cuda-libraries.txt")).unwrap();
    if list.is_empty() {
        eprintln!("SKIPPED: `./x onnxruntime --gpu` has found no libraries of CUDA on this host");
        return;
    }
    folder.write("cuda-libraries.txt", &list);
    let fake = std::env::current_exe().unwrap().parent().unwrap().join("libbaton_cuda_fake.so");
    symlink(fake, folder.path().join("libcuda.so.1")).unwrap();
    let links = Some(folder.path());
    let (sound, text) = check(&folder, &library, "device = \"cuda:0\"", links);
    assert!(
        !sound && text.contains("driver version is insufficient"),
        "the fake is no driver: {text}"
    );
    assert!(text.contains("580 or later"), "{text}");
}

#[test]
fn a_device_that_is_none_and_keys_that_mean_nothing_are_refused() {
    let folder = Folder::new("gpu-keys");
    for (keys, said) in [
        ("device = \"gpu\"", "device: is \"gpu\"; fix: write cpu, or cuda:N"),
        ("device = \"cuda:999\"", "device: is \"cuda:999\"; fix: write cpu, or cuda:N"),
        ("device = 0", "device: is 0; fix: give a string in quotes"),
        ("tf32 = true", "tf32: means nothing on the CPU; fix: name a GPU"),
        ("cuda_graphs = false", "cuda_graphs: means nothing on the CPU; fix: name a GPU"),
        ("tensorrt = true", "tensorrt: means nothing on the CPU; fix: name a GPU"),
        (
            "device = \"cuda:0\"\nfp16 = true",
            "fp16: means nothing without TensorRT; fix: add tensorrt",
        ),
        ("device = \"cuda:0\"\ncpu_operators = 1", "cpu_operators: is 1; fix: give true or false"),
    ] {
        let (sound, text) = check(&folder, Path::new(""), keys, None);
        assert!(!sound && text.contains(said), "{keys}: {text}");
    }
}
