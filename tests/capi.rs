//! Programs in C and C++ against a cluster of processes: the examples, every way to hold the library wrong, and ends in the
//! middle. With BATON_VALGRIND they run in valgrind (`./x c`), unoptimised: it takes what the optimiser makes of an
//! `Option` for a look at uninitialised memory.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

#[path = "../backend/tests/onnx_files/mod.rs"]
#[allow(dead_code, reason = "its other types are for the engine's tests")]
mod onnx_files;
mod support;

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use baton_client::{Clock, Nanos};
use onnx_files::{BOOL, Dim, FLOAT, INT64, model_file};
use support::{Cluster, Folder, run};

const C: &str = "-std=c99";
const CPP: &str = "-std=c++17";

/// Headers, libraries and the pkg-config file, installed as a user would.
struct Installed {
    folder: Folder,
}

impl Installed {
    fn new(test: &str) -> Self {
        let folder = Folder::new(test);
        // Cargo has put the library there that this test was built with.
        let program = env::current_exe().unwrap();
        let built = program.parent().unwrap();
        let install = Self::source("install.sh");
        let installed = Command::new(install).arg(built).arg(folder.path()).output();
        let installed = installed.unwrap();
        assert!(installed.status.success(), "{}", String::from_utf8_lossy(&installed.stderr));
        Self { folder }
    }

    fn source(path: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("capi").join(path)
    }

    /// Compiles a program of `capi/`. What pkg-config says stands in the file that it reads; not every machine has it.
    fn compile(&self, path: &str, standard: &str, link: &[&str]) -> PathBuf {
        let compiler = if standard == CPP { "c++" } else { "cc" };
        let (source, prefix) = (Self::source(path), self.folder.path());
        let program = prefix.join(source.file_stem().unwrap());
        let output = Command::new(compiler)
            .args([
                standard,
                "-Wall",
                "-Wextra",
                "-Werror",
                "-pedantic",
                "-g",
                "-D_POSIX_C_SOURCE=200809L",
            ])
            .arg(source)
            .arg("-o")
            .arg(&program)
            .arg(format!("-I{}/include", prefix.display()))
            .args(link.iter().map(|flag| flag.replace("PREFIX", &prefix.display().to_string())))
            .output();
        let output = output.unwrap_or_else(|error| panic!("{compiler}: {error}"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        program
    }

    fn run(&self, program: &Path, args: &[&str]) -> String {
        let output = self.output(program, args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {stderr}", output.status);
        String::from_utf8(output.stdout).unwrap()
    }

    fn output(&self, program: &Path, args: &[&str]) -> Output {
        let mut command = match env::var_os("BATON_VALGRIND") {
            Some(_) => {
                let mut valgrind = Command::new("valgrind");
                valgrind.args(["-q", "--error-exitcode=9", "--fair-sched=yes"]);
                // A program that ends in the middle loses what its I/O thread has, and so does a forked child.
                valgrind.args(match program.ends_with("outstanding") {
                    true => &["--leak-check=no"][..],
                    false => &[
                        "--leak-check=full",
                        "--show-leak-kinds=definite",
                        "--errors-for-leak-kinds=definite",
                    ],
                });
                valgrind.arg(program);
                valgrind
            }
            None => Command::new(program),
        };
        command.args(args).env("LD_LIBRARY_PATH", self.folder.path().join("lib"));
        command.output().unwrap()
    }
}

/// Links `libbaton.so`.
const SHARED: &[&str] = &["-LPREFIX/lib", "-lbaton"];
/// Links everything into the program.
const STATIC: &[&str] =
    &["PREFIX/lib/libbaton.a", "-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl"];

#[test]
fn examples_in_c_run() {
    let cluster = Cluster::start("capi-c");
    let _backend = cluster.backend("a");
    let installed = Installed::new("capi-c-installed");
    let classify = installed.compile("examples/classify.c", C, SHARED);
    let said = installed.run(&classify, &[cluster.addr(), "m"]);
    assert!(said.starts_with("output: ") || said.starts_with("dropped ("), "{said}");
    let event_loop = installed.compile("examples/event_loop.c", C, SHARED);
    let said = installed.run(&event_loop, &[cluster.addr(), "m", "200"]);
    let counts: Vec<u32> =
        said.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
    let [completed, _late, dropped, failed] = counts[..] else { panic!("{said}") };
    assert!(completed > 0 && completed + dropped + failed == 200, "{said}");
    let refused = installed.output(&classify, &[cluster.addr(), "absent"]);
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && stderr.contains("this client has: m"), "{stderr}");
}

#[test]
fn the_static_library_needs_no_other() {
    let cluster = Cluster::start("capi-static");
    let installed = Installed::new("capi-static-installed");
    let program = installed.compile("tests/programs/misuse.c", C, STATIC);
    let said = installed.run(&program, &[cluster.addr()]);
    assert_eq!(said, "refused as it should be\n");
}

#[test]
fn the_example_in_cpp_runs() {
    if Command::new("c++").arg("--version").output().is_err() {
        eprintln!("SKIPPED: no C++ compiler (Debian: g++)");
        return;
    }
    let cluster = Cluster::start("capi-cpp");
    let _backend = cluster.backend("a");
    let installed = Installed::new("capi-cpp-installed");
    let classify = installed.compile("examples/classify.cpp", CPP, SHARED);
    let said = installed.run(&classify, &[cluster.addr(), "m"]);
    assert!(said.contains("of 16 completed; one was cancelled"), "{said}");
    let refused = installed.output(&classify, &[cluster.addr(), "absent"]);
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && stderr.contains("this client has: m"), "{stderr}");
    let removed = run(&["model", "remove", "m", "--scheduler", cluster.addr()]);
    assert!(removed.status.success(), "{removed:?}");
    let refused = installed.output(&classify, &[cluster.addr()]);
    assert_eq!(String::from_utf8_lossy(&refused.stderr), "the scheduler serves no model\n");
}

#[test]
fn every_mistake_has_a_status_and_words() {
    let cluster = Cluster::start("capi-misuse");
    let installed = Installed::new("capi-misuse-installed");
    let program = installed.compile("tests/programs/misuse.c", C, SHARED);
    let said = installed.run(&program, &[cluster.addr()]);
    assert_eq!(said, "refused as it should be\n");
}

/// Of a model file with two inputs and one output, and of an emulated model.
#[test]
fn a_program_learns_what_each_model_takes_and_gives() {
    let folder = Folder::new("capi-describe");
    let some = [Dim::Dynamic, Dim::Named("seq")];
    let pairs = [Dim::Dynamic, Dim::Fixed(2), Dim::Named("seq")];
    let inputs = [("ids", INT64, &some[..]), ("mask", BOOL, &pairs[..])];
    let outputs = [("scores", FLOAT, &[Dim::Dynamic, Dim::Fixed(3)][..])];
    let nodes = [("Not", "mask", "hidden"), ("Neg", "ids", "negated")];
    let file = model_file(&nodes, &inputs, &outputs);
    std::fs::write(folder.path().join("tokens.onnx"), file).unwrap();
    let cluster = "[[model]]\nname = \"tokens\"\nfile = \"tokens.onnx\"\nslo_ms = 1000\ndims = { seq = 64 }\n\
                   [[model]]\nname = \"m\"\nalpha_ms = 1\nbeta_ms = 4\nslo_ms = 30\ninput_bytes = 24\noutput_bytes = 8\n\
                   [[backend]]\nname = \"a\"\n";
    let cluster = Cluster::of(folder, cluster);
    let installed = Installed::new("capi-describe-installed");
    let program = installed.compile("tests/programs/describe.c", C, SHARED);
    let said = installed.run(&program, &[cluster.addr()]);
    let m =
        "m, 24 to 8 bytes in 30 ms: input input:9 24 in 24 bytes; output output:9 8 in 8 bytes;";
    let tokens = "tokens, 648 to 12 bytes in 1000 ms: input ids:8 up to 64 in 512 bytes; \
                  input mask:13 2 up to 64 in 128 bytes; output scores:1 3 in 12 bytes;";
    assert_eq!(said.lines().collect::<Vec<_>>(), [m, tokens]);
}

/// What a test program says beside a cluster with a backend.
fn said_by(program: &str) -> String {
    let cluster = Cluster::start(&format!("capi-{program}"));
    let _backend = cluster.backend("a");
    let installed = Installed::new(&format!("capi-{program}-installed"));
    let compiled = installed.compile(&format!("tests/programs/{program}.c"), C, SHARED);
    installed.run(&compiled, &[cluster.addr()])
}

#[test]
fn an_input_may_be_written_while_its_task_queues() {
    assert_eq!(said_by("ahead"), "written later\n");
}

#[test]
fn a_program_may_ask_what_it_has() {
    assert_eq!(said_by("asking"), concat!("answered by ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn a_program_may_end_with_tasks_outstanding_and_a_child_is_refused() {
    let cluster = Cluster::start("capi-outstanding");
    let _backend = cluster.backend("a");
    let installed = Installed::new("capi-outstanding-installed");
    let program = installed.compile("tests/programs/outstanding.c", C, SHARED);
    let rounds = if env::var_os("BATON_VALGRIND").is_some() { 1 } else { 10 };
    let clock = Clock::start();
    for _ in 0..rounds {
        for end in ["return", "exit", "fork"] {
            installed.run(&program, &[cluster.addr(), end]);
        }
    }
    assert!(clock.now() < Nanos::from_millis(120_000), "an end waits for nothing");
}

#[test]
fn pkg_config_knows_the_library() {
    let installed = Installed::new("capi-pkg-config");
    let folder = installed.folder.path().join("lib/pkgconfig");
    let asked = Command::new("pkg-config")
        .args(["--cflags", "--libs", "baton"])
        .env("PKG_CONFIG_PATH", folder)
        .output();
    let Ok(said) = asked else {
        eprintln!("SKIPPED: no pkg-config (Debian: pkgconf)");
        return;
    };
    let said = String::from_utf8(said.stdout).unwrap();
    let prefix = installed.folder.path().display();
    assert!(said.contains(&format!("-I{prefix}/include")) && said.contains("-lbaton"), "{said}");
}
