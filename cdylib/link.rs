//! How the shared objects are linked, for their build scripts.

use std::path::{Path, PathBuf};
use std::process::Command;

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

/// Tells the linker the soname, and what is exported.
pub fn shared_object(soname: &str, map: &Path) {
    let mut options = vec![
        // GNU ld takes one version script, and rustc brings one.
        "-fuse-ld=lld".to_owned(),
        format!("-Wl,-soname,{soname}"),
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
