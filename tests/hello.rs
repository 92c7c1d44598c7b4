//! The example programs run: `examples/hello.rs` as server and client.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The example beside this test's own program; cargo builds both.
fn example() -> PathBuf {
    let own = std::env::current_exe().expect("current_exe");
    let build = own.ancestors().nth(2).expect("folder of the build");
    build.join("examples/hello")
}

#[test]
fn hello_sends_what_hello_receives() {
    let mut server = Command::new(example())
        .stdout(Stdio::piped())
        .spawn()
        .expect("examples/hello");
    let mut lines = BufReader::new(server.stdout.take().expect("stdout")).lines();
    let first = lines.next().expect("address").expect("address");
    let address = first.split_whitespace().last().expect("address");
    let client = Command::new(example())
        .arg(address)
        .status()
        .expect("client");
    if !client.success() {
        let _ = server.kill();
    }
    assert!(client.success());
    assert_eq!(
        lines.next().expect("message").expect("message"),
        "got \"hello\""
    );
    assert!(server.wait().expect("server").success());
}
