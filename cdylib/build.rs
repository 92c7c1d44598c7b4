//! Compiles the C shim of the two variadic exports, which stable Rust cannot define, and tells the
//! linker the soname, the symbol versions and the rest of what makes a `libfabric.so.1`.

mod link;

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Links `libfabric.so.1`, the name that programs load, to the library that cargo builds, in the
/// same folder, so that setting LD_LIBRARY_PATH suffices. Where symbolic links fail, that name is
/// missing.
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
