//! Compiles the C shim of the two variadic exports, which stable Rust cannot define, and tells the
//! linker the soname, the symbol versions and the rest of what makes a `libfabric.so.1`.

mod link;

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The name that programs look for, beside the library that cargo leaves: LD_LIBRARY_PATH needs no
/// more. A system that cannot link has a library without that name.
fn link_soname() {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());
    // OUT_DIR is target/PROFILE/build/PACKAGE/out.
    if let Some(profile) = out.ancestors().nth(3) {
        let _ = symlink("libfabric.so", profile.join("libfabric.so.1"));
    }
}

fn main() {
    println!("cargo:rerun-if-changed=varargs.c");
    println!("cargo:rerun-if-changed=libfabric.map");
    cc::Build::new()
        .file("varargs.c")
        .warnings(true)
        .link_lib_modifier("+whole-archive")
        .compile("fi_varargs");
    link_soname();
    let map = Path::new(env!("CARGO_MANIFEST_DIR")).join("libfabric.map");
    link::shared_object("libfabric.so.1", &map);
}
