//! How `libbaton.so` is linked: under which name programs ask for it, and that it stays loaded. An I/O thread executes its
//! code, so `dlclose` must not take it away.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for arg in ["-Wl,-soname,libbaton.so.0", "-Wl,-z,nodelete"] {
        println!("cargo::rustc-cdylib-link-arg={arg}");
    }
}
