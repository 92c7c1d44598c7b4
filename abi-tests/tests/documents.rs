//! Documents name files and environment variables that exist; sources have short lines.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_path_buf()
}

/// Files of the project, relative to its root.
fn tracked() -> Vec<String> {
    let out = Command::new("git")
        .args([
            "-C",
            root().to_str().unwrap(),
            "ls-files",
            "-co",
            "--exclude-standard",
        ])
        .output()
        .expect("git ls-files");
    let text = String::from_utf8(out.stdout).unwrap();
    let list: Vec<String> = text.lines().map(str::to_string).collect();
    assert!(list.len() > 200, "git lists only {} files", list.len());
    list
}

/// Texts between backquotes, outside code blocks.
fn quoted(text: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut in_block = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
            continue;
        }
        if !in_block {
            let parts = line.split('`').skip(1).step_by(2);
            all.extend(parts.map(str::to_string));
        }
    }
    all
}

fn is_path(s: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    let ends = [".rs", ".c", ".h", ".sh", ".md", ".toml"];
    let file = ends.iter().any(|e| s.ends_with(e) && s.len() > e.len());
    // Paths of the system and of other projects begin with `/`, `.` or `-`.
    s.chars().all(plain) && !s.starts_with(['/', '.', '-']) && (file || s.ends_with('/'))
}

/// Whether the project has a file whose path ends in `path`, or such a folder (`path/`).
fn exists(files: &[String], path: &str) -> bool {
    let inside = format!("/{path}");
    files.iter().any(|f| {
        let f = format!("/{f}");
        match path.ends_with('/') {
            true => f.contains(&inside),
            false => f.ends_with(&inside),
        }
    })
}

#[test]
fn every_path_that_a_document_names_exists() {
    let files = tracked();
    let (mut missing, mut seen) = (Vec::new(), 0);
    for doc in files.iter().filter(|f| f.ends_with(".md")) {
        let text = std::fs::read_to_string(root().join(doc)).unwrap();
        for path in quoted(&text).into_iter().filter(|q| is_path(q)) {
            seen += 1;
            if !exists(&files, &path) && !BUILT.contains(&path.as_str()) {
                missing.push(format!("{doc}: {path}"));
            }
        }
    }
    assert!(seen > 30, "only {seen} paths were found");
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

/// Folders that a build creates.
const BUILT: &[&str] = &[
    "build/",
    "build/lib/",
    "build/bin/",
    "target/",
    "fuzz/target/",
];

/// The identifiers in a text that begin with `prefix`.
fn names<'a>(text: &'a str, prefix: &'a str) -> impl Iterator<Item = &'a str> {
    let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
    text.split(word).filter(move |w| w.starts_with(prefix))
}

fn source(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

/// Parameters of device memory, which belong to no provider.
fn hmem_params() -> Vec<String> {
    let table = source("src/core/params/hmem.rs");
    let lines = table.lines().filter_map(|l| l.strip_prefix("    hmem"));
    let names = lines.filter_map(|l| l.split_once(": "));
    let all: Vec<_> = names
        .map(|(rest, _)| format!("FI_HMEM{}", rest.to_uppercase()))
        .collect();
    assert!(all.len() > 2, "{all:?}");
    all
}

/// Variables of the parameters in a table: used ones are `name: kind = default`, those without a
/// default or an effect `name: "..."`.
fn params(table: &str, prefix: &str) -> Vec<String> {
    let used = table.lines().filter_map(|l| {
        let (name, rest) = l.strip_prefix("    ")?.split_once(": ")?;
        let plain = name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        let kinds = ["text = ", "flag = ", "int = ", "size = ", "limit = "];
        (plain && kinds.iter().any(|k| rest.starts_with(k))).then_some(name)
    });
    let others = table
        .lines()
        .filter_map(|l| l.trim().strip_prefix("name: \"")?.split('"').next());
    let all = used.chain(others);
    all.map(|n| format!("{prefix}{}", n.to_uppercase()))
        .collect()
}

#[test]
fn the_man_pages_have_every_parameter_and_every_option() {
    let pages = source("man/fi_efa.7") + &source("man/fi_efa_soft.7") + &source("man/fi_tcp.7");
    let pages = pages + &source("README.md");
    let told: BTreeSet<_> = names(&pages, "FI_").collect();
    let mut env = hmem_params();
    for (table, prefix, least) in [
        ("src/core/params/efa.rs", "FI_EFA_", 40),
        ("src/core/params/tcp.rs", "FI_TCP_", 12),
        ("src/abi/exports/parameters.rs", "FI_", 8),
    ] {
        let found = params(&source(table), prefix);
        assert!(found.len() >= least, "{table}: {found:?}");
        env.extend(found);
    }
    let options = source("src/prov/efa/endpoint/options.rs");
    let options: BTreeSet<_> = names(&options, "FI_OPT_")
        .filter(|n| *n != "FI_OPT_ENDPOINT")
        .map(str::to_string)
        .collect();
    assert!(
        options.len() > 20,
        "only {} options were found",
        options.len()
    );
    let missing: Vec<_> = env
        .iter()
        .chain(&options)
        .filter(|n| !told.contains(n.as_str()))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn every_parameter_that_a_document_names_is_read() {
    let files = tracked();
    let mut sources = String::new();
    for f in files
        .iter()
        .filter(|f| f.ends_with(".rs") || f.ends_with(".h"))
    {
        sources += &std::fs::read_to_string(root().join(f)).unwrap();
    }
    let mut missing = BTreeSet::new();
    let mut seen = BTreeSet::new();
    for doc in files
        .iter()
        .filter(|f| f.ends_with(".md") || f.ends_with(".7"))
    {
        let text = std::fs::read_to_string(root().join(doc)).unwrap();
        for name in names(&text, "FI_EFA_") {
            let lower = name.trim_start_matches("FI_EFA_").to_lowercase();
            // Constants of the C headers stand in the sources as they are.
            let known = [
                format!("\"{lower}\""),
                format!(" {lower}: "),
                name.to_string(),
            ]
            .iter()
            .any(|n| sources.contains(n));
            seen.insert(name.to_string());
            if !known {
                missing.insert(format!("{doc}: {name}"));
            }
        }
    }
    assert!(seen.len() > 10, "only {} names were found", seen.len());
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn lines_have_up_to_a_hundred_columns() {
    let (mut seen, mut long) = (0, Vec::new());
    for path in tracked() {
        let source = [".rs", ".c", ".h"].iter().any(|e| path.ends_with(e));
        // cbindgen breaks the lines of the headers that it writes.
        if !source || path.contains("/gen/") {
            continue;
        }
        let Ok(text) = std::fs::read_to_string(root().join(&path)) else {
            continue;
        };
        seen += 1;
        for (n, line) in text.lines().enumerate() {
            if line.chars().count() > 100 {
                long.push(format!("{path}:{}", n + 1));
            }
        }
    }
    assert!(seen > 300, "the scan found only {seen} files");
    assert!(long.is_empty(), "{}", long.join("\n"));
}
