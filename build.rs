//! Compiles the C shim of the two variadic exports (stable Rust cannot define those) into the
//! library build; tests and tools that link the rlib do not need it.

fn main() {
    println!("cargo:rerun-if-changed=src/abi/varargs.c");
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_EXPORTS").is_some() {
        cc::Build::new()
            .file("src/abi/varargs.c")
            .warnings(true)
            .compile("fi_varargs");
    }
}
