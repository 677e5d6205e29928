//! `baton.h` is written by hand: here it is compared with the sources, and compiled.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use baton::abi::{HANDLES, constants, layouts};

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn header() -> String {
    let text = fs::read_to_string(folder().join("include/baton.h")).unwrap();
    // Without comments, one space between words.
    let mut code = String::new();
    for part in text.split("/*") {
        code.push_str(part.split_once("*/").map_or(part, |(_, rest)| rest));
    }
    code
}

/// Compiles a program; what the compiler said.
fn compile(compiler: &str, name: &str, program: &str, flags: &[&str]) -> String {
    let file = env::temp_dir().join(format!("baton-header-{}-{name}", std::process::id()));
    fs::write(&file, program).unwrap();
    let output = Command::new(compiler)
        .args(flags)
        .args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", "-I"])
        .arg(folder().join("include"))
        .arg(&file)
        .output()
        .unwrap_or_else(|error| panic!("{compiler}: {error}; install it (Debian: gcc, g++)"));
    fs::remove_file(&file).unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.success(), said.is_empty(), "{said}");
    said
}

/// C99 has no static assertions.
fn assert_line(number: usize, condition: &str) -> String {
    format!("typedef char check_{number}[({condition}) ? 1 : -1]; /* {condition} */\n")
}

#[test]
fn structs_and_constants_are_those_of_the_sources() {
    let mut conditions: Vec<String> =
        constants().iter().map(|(name, value)| format!("BATON_{name} == ({value})")).collect();
    for (name, bytes, fields) in layouts() {
        conditions.push(format!("sizeof({name}) == {bytes}"));
        for (field, offset, bytes) in fields {
            conditions.push(format!("offsetof({name}, {field}) == {offset}"));
            conditions.push(format!("sizeof((({name} *)0)->{field}) == {bytes}"));
        }
    }
    conditions.extend(HANDLES.iter().map(|name| format!("sizeof({name}) == 8")));
    let lines = conditions.iter().enumerate().map(|(at, condition)| assert_line(at, condition));
    let program = format!("#include <baton.h>\n{}", lines.collect::<String>());
    assert_eq!(compile("cc", "layout.c", &program, &["-std=c99"]), "");
    let wrong = format!("{program}{}", assert_line(conditions.len(), "sizeof(baton_outcome) == 1"));
    assert_ne!(compile("cc", "wrong.c", &wrong, &["-std=c99"]), "", "the assertions assert");
}

#[test]
fn the_header_names_no_constant_and_no_field_besides() {
    let known: BTreeSet<String> = constants().into_iter().map(|(name, _)| name).collect();
    let header = header();
    let defined = header.lines().filter_map(|line| line.strip_prefix("#define BATON_"));
    let defined = defined.filter_map(|line| line.split_once(' '));
    let numbers = defined.filter(|(_, value)| !value.trim().starts_with("UINT64_MAX"));
    let named: BTreeSet<String> = numbers.map(|(name, _)| name.to_owned()).collect();
    assert_eq!(named, known);
    for (name, _, fields) in layouts() {
        let (_, body) = header.split_once(&format!("typedef struct {name} {{")).unwrap();
        let (body, _) = body.split_once('}').unwrap();
        assert_eq!(body.matches(';').count(), fields.len(), "{name}");
    }
}

#[test]
fn headers_compile_by_themselves_as_c_and_as_cpp() {
    for standard in ["-std=c99", "-std=c11"] {
        assert_eq!(compile("cc", "alone.c", "#include <baton.h>\n", &[standard]), "");
    }
    if Command::new("c++").arg("--version").output().is_err() {
        eprintln!("SKIPPED: no C++ compiler (Debian: g++)");
        return;
    }
    for standard in ["-std=c++17", "-std=c++20"] {
        let both = "#include <baton.h>\n#include <baton.hpp>\n";
        assert_eq!(compile("c++", "alone.cpp", both, &[standard]), "");
    }
}

/// The programs of the guide: those that include a header.
#[test]
fn programs_in_the_guide_compile() {
    let guide = fs::read_to_string(folder().join("../docs/c.md")).unwrap();
    let has_cpp = Command::new("c++").arg("--version").output().is_ok();
    for (compiler, standard, begin) in
        [("cc", "-std=c99", "```c\n"), ("c++", "-std=c++17", "```cpp\n")]
    {
        let blocks = guide.split(begin).skip(1).filter_map(|rest| rest.split("```").next());
        let programs: Vec<&str> = blocks.filter(|block| block.starts_with("#include")).collect();
        assert!(!programs.is_empty(), "the guide has a program for {compiler}");
        for program in programs.iter().filter(|_| compiler == "cc" || has_cpp) {
            let name = if compiler == "cc" { "guide.c" } else { "guide.cpp" };
            assert_eq!(compile(compiler, name, program, &[standard]), "");
        }
    }
}

/// The declarations of the header: `int32_t baton_x(baton_client client, uint64_t *now_ns)`.
fn declared() -> BTreeSet<String> {
    let header = header();
    let header: Vec<&str> = header.lines().filter(|line| !line.starts_with('#')).collect();
    let statements = header.join(" ");
    let statements = statements.split([';', '{', '}']).map(str::trim);
    let functions = statements.filter(|text| text.ends_with(')') && text.contains("baton_"));
    functions.map(plain).collect()
}

/// One space between words, none before or behind a star.
fn plain(text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    words.replace(" *", "*").replace("* ", "*").replace("( ", "(")
}

/// The functions of the sources, as C writes them.
fn exported() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(folder().join("src/abi")).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        for function in text.split("pub extern \"C\" fn ").skip(1) {
            let (head, _) = function.split_once(" {").unwrap();
            found.insert(in_c(head));
        }
    }
    found
}

/// `baton_x(client: ClientHandle, now_ns: Out<u64>) -> i32` in C.
fn in_c(head: &str) -> String {
    let (name, rest) = head.split_once('(').unwrap();
    let (arguments, result) = rest.rsplit_once(") -> ").unwrap();
    let arguments = arguments.split(',').map(str::trim).filter(|argument| !argument.is_empty());
    let arguments: Vec<String> = arguments
        .map(|argument| {
            let (name, kind) = argument.split_once(": ").unwrap();
            format!("{} {name}", c_type(kind))
        })
        .collect();
    let arguments = if arguments.is_empty() { "void".to_owned() } else { arguments.join(", ") };
    plain(&format!("{} {name}({arguments})", c_type(result)))
}

fn c_type(kind: &str) -> String {
    let inner = |prefix: &str| kind.strip_prefix(prefix)?.strip_suffix('>');
    if let Some(inner) = inner("Out<").or_else(|| inner("OutStruct<")) {
        return format!("{} *", c_type(inner));
    }
    if let Some(inner) = inner("InStruct<") {
        return format!("const {} *", c_type(inner));
    }
    let name = match kind.trim_start_matches("super::") {
        "i32" => "int32_t",
        "u32" => "uint32_t",
        "u64" => "uint64_t",
        "usize" => "size_t",
        "c_int" => "int",
        "Str" | "*const c_char" => "const char *",
        "Buffer" => "char *",
        "*mut c_void" => "void *",
        "*const c_void" => "const void *",
        "ClientHandle" => "baton_client",
        "ModelHandle" => "baton_model",
        "InputHandle" => "baton_input",
        "TicketHandle" => "baton_ticket",
        "ReplyHandle" => "baton_reply",
        "QueueHandle" => "baton_queue",
        "Key" => "baton_key",
        "Config" => "baton_config",
        "ModelInfo" => "baton_model_info",
        "Tensor" => "baton_tensor",
        "OutcomeStruct" => "baton_outcome",
        other => panic!("no C type is known for {other}"),
    };
    name.to_owned()
}

#[test]
fn functions_have_the_arguments_of_the_sources() {
    let (declared, exported) = (declared(), exported());
    assert!(exported.len() > 30, "the scan sees the functions: {exported:#?}");
    assert_eq!(declared, exported);
}

/// Where Cargo has put the library that this test was built with.
fn library() -> PathBuf {
    let program = env::current_exe().unwrap();
    program.parent().unwrap().join("libbaton.so")
}

#[test]
fn the_library_exports_the_declared_functions_and_no_other() {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(library()).output();
    let output = output.expect("nm runs (Debian: binutils)");
    let text = String::from_utf8(output.stdout).unwrap();
    let symbols: BTreeSet<&str> =
        text.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    let names = names();
    assert_eq!(symbols, names.iter().map(String::as_str).collect());
}

/// Of the declared functions.
fn names() -> BTreeSet<String> {
    let name = |text: &String| {
        let (head, _) = text.split_once('(').unwrap();
        head.rsplit([' ', '*']).next().unwrap().to_owned()
    };
    declared().iter().map(name).collect()
}

/// `tests/capi.rs` runs them.
#[test]
fn every_function_is_called_by_a_test_program() {
    let files = fs::read_dir(folder().join("tests/programs")).unwrap();
    let programs: String =
        files.map(|file| fs::read_to_string(file.unwrap().path()).unwrap()).collect();
    let is_called = |name: &&String| programs.contains(&format!("{name}("));
    let names = names();
    let never: Vec<&String> = names.iter().filter(|name| !is_called(name)).collect();
    assert!(never.is_empty(), "{never:?}");
}
