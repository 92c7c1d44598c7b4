//! Tells the linker what makes a provider file.

#[path = "../cdylib/link.rs"]
mod link;

use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=efa-fi.map");
    let map = Path::new(env!("CARGO_MANIFEST_DIR")).join("efa-fi.map");
    link::shared_object("libefa-fi.so", &map);
}
