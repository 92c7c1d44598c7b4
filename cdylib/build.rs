//! Compiles the C shim of the two variadic exports, which stable Rust cannot define, and tells the
//! linker the soname, the symbol versions and the rest of what makes a `libfabric.so.1`.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The name that programs look for, beside the library that cargo leaves: LD_LIBRARY_PATH needs no
/// more. A system that cannot link has a library without that name.
fn link_soname() {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());
    // OUT_DIR is target/PROFILE/build/PACKAGE/out.
    if let Some(profile) = out.ancestors().nth(3) {
        let _ = symlink("libfabric.so", profile.join("libfabric.so.1"));
    }
}

/// The folder of rustup's own lld, which serves every target; where it is missing, the C compiler
/// looks for the system's.
fn bundled_lld() -> Option<PathBuf> {
    let rustc = std::env::var_os("RUSTC")?;
    let sysroot = Command::new(rustc).args(["--print", "sysroot"]).output();
    let sysroot = String::from_utf8(sysroot.ok()?.stdout).ok()?;
    let host = std::env::var("HOST").ok()?;
    let dir = Path::new(sysroot.trim()).join(format!("lib/rustlib/{host}/bin/gcc-ld"));
    dir.is_dir().then_some(dir)
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
    let mut options = vec![
        // GNU ld takes one version script, and rustc brings one.
        "-fuse-ld=lld".to_owned(),
        "-Wl,-soname,libfabric.so.1".to_owned(),
        format!("-Wl,--version-script={}", map.display()),
        // The map names symbols whose definitions carry a version of their own.
        "-Wl,--undefined-version".to_owned(),
        // An application may keep pointers into the library after it has closed it.
        "-Wl,-z,nodelete,-z,relro,-z,now".to_owned(),
    ];
    options.extend(bundled_lld().map(|dir| format!("-B{}", dir.display())));
    for option in options {
        println!("cargo:rustc-cdylib-link-arg={option}");
    }
}
