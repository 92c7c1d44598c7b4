//! The call direction between rooms (ARCHITECTURE.md): lists every import against it.

use std::path::{Path, PathBuf};

/// Each room and the rooms it may use.
const ROOMS: &[(&str, &[&str])] = &[
    ("types", &[]),
    ("core", &["types"]),
    ("wire", &["types", "core"]),
    // `hmem` for `Piece`, the memory of a receive without flags, which `proto` only passes on.
    ("proto", &["wire", "transport", "hmem", "types", "core"]),
    ("hmem", &["types", "core"]),
    ("transport", &["hmem", "types", "core"]),
    ("device", &["transport", "hmem", "types", "core"]),
    // `device` for its addresses and wait primitives.
    ("shm", &["transport", "device", "hmem", "types", "core"]),
    (
        "prov",
        &[
            "proto",
            "wire",
            "transport",
            "device",
            "shm",
            "hmem",
            "types",
            "core",
        ],
    ),
    // `hmem` because `abi` makes a `UserMem` of the caller's buffers.
    ("abi", &["prov", "hmem", "types", "core"]),
];
/// Rooms whose code may be unsafe.
const UNSAFE: &[&str] = &["abi", "device", "hmem", "shm"];

fn files(dir: &Path, out: &mut Vec<PathBuf>) {
    for e in std::fs::read_dir(dir).unwrap() {
        let p = e.unwrap().path();
        if p.is_dir() {
            files(&p, out);
        } else if p.extension().is_some_and(|e| e == "rs") {
            out.push(p);
        }
    }
}

fn for_each_line(mut f: impl FnMut(&str, &Path, usize, &str)) {
    let src = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .join("src");
    for (room, _) in ROOMS {
        let mut list = Vec::new();
        files(&src.join(room), &mut list);
        assert!(!list.is_empty(), "no files in {room}");
        for p in list {
            for (n, line) in std::fs::read_to_string(&p).unwrap().lines().enumerate() {
                f(room, &p, n + 1, line);
            }
        }
    }
}

#[test]
fn calls_go_down_only() {
    let mut wrong = Vec::new();
    let mut seen = 0;
    for_each_line(|room, p, n, line| {
        let allowed = ROOMS.iter().find(|r| r.0 == room).unwrap().1;
        // An import for each room, so that every line can be read by itself.
        if line.contains("crate::{") {
            wrong.push(format!("{}:{n}: a group of rooms", p.display()));
        }
        for (at, _) in line.match_indices("crate::") {
            let rest = &line[at + 7..];
            let end = rest
                .find(|c: char| !(c.is_alphanumeric() || c == '_'))
                .unwrap_or(rest.len());
            let to = &rest[..end];
            seen += 1;
            if ROOMS.iter().any(|r| r.0 == to) && to != room && !allowed.contains(&to) {
                wrong.push(format!(
                    "{}:{n}: {room} uses {to}: {}",
                    p.display(),
                    line.trim()
                ));
            }
        }
    });
    assert!(seen > 100, "the scan found only {seen} imports");
    assert!(
        wrong.is_empty(),
        "against the call direction:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn unsafe_code_stays_in_its_rooms() {
    let mut wrong = Vec::new();
    for_each_line(|room, p, n, line| {
        let code = line.split("//").next().unwrap_or("");
        let word = code
            .split(|c: char| !(c.is_alphanumeric() || c == '_'))
            .any(|w| w == "unsafe");
        // Mirrors declare function pointers, which are unsafe to call.
        if word && !UNSAFE.contains(&room) && !(room == "types" && code.contains("extern \"C\" fn"))
        {
            wrong.push(format!("{}:{n}: {}", p.display(), line.trim()));
        }
    });
    assert!(
        wrong.is_empty(),
        "unsafe code outside its rooms:\n{}",
        wrong.join("\n")
    );
}

/// The type that a line defines.
fn defines(line: &str) -> Option<&str> {
    let mut rest = line.trim_end();
    if let Some(after) = rest.strip_prefix("pub") {
        rest = match after.strip_prefix('(') {
            Some(within) => within.split_once(')')?.1,
            None => after,
        };
    }
    let (word, rest) = rest.trim_start().split_once(' ')?;
    // An indented `type` is an associated type.
    if word == "type" && line.starts_with(' ') {
        return None;
    }
    let kinds = ["struct", "enum", "trait", "union", "type"];
    let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_'));
    let name = &rest[..end.unwrap_or(rest.len())];
    (kinds.contains(&word) && !name.is_empty()).then_some(name)
}

#[test]
fn a_type_name_is_used_once() {
    let mut seen = std::collections::HashMap::new();
    let mut twice = Vec::new();
    for_each_line(|_, p, n, line| {
        if let Some(name) = defines(line) {
            let here = format!("{}:{n}", p.display());
            if let Some(before) = seen.insert(name.to_string(), here.clone()) {
                twice.push(format!("{name}: {before} and {here}"));
            }
        }
    });
    assert!(seen.len() > 200, "the scan found only {} types", seen.len());
    assert!(twice.is_empty(), "{}", twice.join("\n"));
}

/// Other rooms query an adapter's capabilities, never its type (`device/any.rs`).
#[test]
fn only_the_device_room_names_adapters() {
    let mut wrong = Vec::new();
    for_each_line(|room, p, n, line| {
        let code = line.split("//").next().unwrap_or("");
        let adapters = ["verbs::", "soft::", "::Verbs", "::Soft"];
        if room != "device" && adapters.iter().any(|a| code.contains(a)) {
            wrong.push(format!("{}:{n}: {}", p.display(), line.trim()));
        }
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Providers are private to `prov`, so the compiler keeps `abi` from naming one. The contract is
/// inside `prov`, so that it needs this test.
#[test]
fn the_contract_names_no_provider() {
    let (mut seen, mut wrong) = (0, Vec::new());
    for_each_line(|_, p, n, line| {
        if p.components().any(|c| c.as_os_str() == "contract") {
            seen += 1;
            if ["efa", "tcp"].iter().any(|p| {
                line.contains(&format!("prov::{p}")) || line.contains(&format!("super::{p}"))
            }) || ["crate::proto", "crate::wire"]
                .iter()
                .any(|other| line.contains(other))
            {
                wrong.push(format!("{}:{n}: {}", p.display(), line.trim()));
            }
        }
    });
    assert!(seen > 100, "the scan found only {seen} lines");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
