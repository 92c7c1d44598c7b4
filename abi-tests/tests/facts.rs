//! Rust types and public headers against the recorded facts (`facts/*.json`).

use serde_json::Value;
use std::collections::HashMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

fn facts(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("facts")
        .join(name);
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_path_buf()
}

#[test]
fn rust_structs_have_the_recorded_layout() {
    let f = facts("fabric-2.7.json");
    let ours: HashMap<_, _> = abi_tests::all()
        .into_iter()
        .map(|(n, s, m)| (n, (s, m)))
        .collect();
    let mut compared = 0;
    for (name, v) in f["structs"].as_object().unwrap() {
        if v["kind"] != "struct" {
            continue;
        }
        let (size, members) = ours
            .get(name.as_str())
            .unwrap_or_else(|| panic!("{name} is missing"));
        assert_eq!(*size as u64, v["size"].as_u64().unwrap(), "size of {name}");
        for (m, (rust, at)) in v["members"].as_array().unwrap().iter().zip(members) {
            assert_eq!(*at as u64, m["offset"].as_u64().unwrap(), "{name}.{rust}");
            compared += 1;
        }
    }
    assert!(compared > 600, "only {compared} members compared");
}

#[test]
fn rust_constants_have_the_recorded_values() {
    let f = facts("fabric-2.7.json");
    let ours: HashMap<_, _> = abi_tests::constants::all().into_iter().collect();
    let mut compared = 0;
    let mut check = |name: &str, v: &Value| {
        if name == "FI_LIB_SUFFIX" {
            return;
        }
        let want = v
            .as_i64()
            .map(i128::from)
            .or(v.as_u64().map(i128::from))
            .unwrap();
        assert_eq!(ours.get(name).copied(), Some(want), "{name}");
        compared += 1;
    };
    for e in f["enums"].as_object().unwrap().values() {
        e.as_object().unwrap().iter().for_each(|(k, v)| check(k, v));
    }
    f["macros"]
        .as_object()
        .unwrap()
        .iter()
        .for_each(|(k, v)| check(k, v));
    assert!(compared > 450, "only {compared} constants compared");
}

/// A program of assertions about our headers: every size, offset, value and function.
fn header_program(cxx: bool) -> String {
    let f = facts("fabric-2.7.json");
    let assert = if cxx {
        "static_assert"
    } else {
        "_Static_assert"
    };
    let mut c = String::new();
    for h in [
        "fabric.h",
        "fi_errno.h",
        "fi_domain.h",
        "fi_endpoint.h",
        "fi_eq.h",
        "fi_cm.h",
        "fi_rma.h",
        "fi_tagged.h",
        "fi_atomic.h",
        "fi_collective.h",
        "fi_trigger.h",
        "fi_ext.h",
        "fi_ext_efa.h",
        "fi_profile.h",
        "fi_xpu.h",
        "providers/fi_prov.h",
        "providers/fi_log.h",
        "providers/fi_peer.h",
    ] {
        writeln!(c, "#include <rdma/{h}>").unwrap();
    }
    for (name, v) in f["structs"].as_object().unwrap() {
        let kind = v["kind"].as_str().unwrap();
        writeln!(
            c,
            "{assert}(sizeof({kind} {name}) == {}, \"{name}\");",
            v["size"]
        )
        .unwrap();
        for m in v["members"].as_array().unwrap() {
            let inner = m["members"].as_array();
            let names: Vec<&str> = match (m["name"].as_str(), inner) {
                (Some(n), _) => vec![n],
                (None, Some(i)) => i.iter().filter_map(|x| x["name"].as_str()).collect(),
                (None, None) => vec![],
            };
            for n in names {
                writeln!(
                    c,
                    "{assert}(offsetof({kind} {name}, {n}) == {}, \"{name}.{n}\");",
                    m["offset"]
                )
                .unwrap();
            }
        }
    }
    for (k, v) in f["enums"]
        .as_object()
        .unwrap()
        .values()
        .flat_map(|e| e.as_object().unwrap())
    {
        writeln!(c, "{assert}((long long) {k} == {v}LL, \"{k}\");").unwrap();
    }
    for (k, v) in f["macros"].as_object().unwrap() {
        if k != "FI_LIB_SUFFIX" {
            writeln!(
                c,
                "{assert}((unsigned long long) ({k}) == {v}ULL, \"{k}\");"
            )
            .unwrap();
        }
    }
    writeln!(c, "const void *functions[] = {{").unwrap();
    for k in f["functions"].as_object().unwrap().keys() {
        writeln!(c, "\t(const void *) {k},").unwrap();
    }
    for e in f["exports"].as_array().unwrap() {
        if e["default"] == true {
            writeln!(c, "\t(const void *) {},", e["symbol"].as_str().unwrap()).unwrap();
        }
    }
    writeln!(c, "}};\nconst char *strings[] = {{").unwrap();
    for k in f["string_macros"].as_object().unwrap().keys() {
        writeln!(c, "\t{k},").unwrap();
    }
    writeln!(c, "}};").unwrap();
    c
}

fn compile(compiler: &str, std: &str, ext: &str) {
    let dir = std::env::temp_dir().join(format!("fi-headers-{}-{std}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let file = dir.join(format!("facts.{ext}"));
    std::fs::write(&file, header_program(ext == "cc")).unwrap();
    let out = Command::new(compiler)
        .args([
            &format!("-std={std}"),
            "-D_GNU_SOURCE",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-c",
            "-o",
        ])
        .arg(dir.join("facts.o"))
        .arg(format!("-I{}", root().join("include").display()))
        .arg(&file)
        .output()
        .unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
}

#[test]
fn headers_match_as_c99() {
    compile("cc", "c99", "c");
}

#[test]
fn headers_match_as_c11() {
    compile("cc", "c11", "c");
}

#[test]
fn headers_match_as_cxx17() {
    compile("c++", "c++17", "cc");
}

/// Lengths that `src/wire` writes, against the protocol's headers.
#[test]
fn wire_headers_have_the_recorded_size() {
    use fabric::wire::*;
    let f = facts("efa-rdm-protocol-v4.json");
    let none = Iovs::default();
    let (length, send_id, recv_id, offset) = (1, 2, 3, 4);
    let opt = Opt::default();
    let rtm = |tag, kind, receipt| {
        Repr::Rtm(Rtm {
            msg_id: 0,
            tag,
            opt,
            kind,
            receipt,
            after_nack: false,
        })
    };
    let rtw = |kind, receipt| {
        Repr::Rtw(Rtw {
            opt,
            to: none,
            kind,
            receipt,
            after_nack: false,
        })
    };
    let credits = 5;
    let eager = RtmKind::Eager;
    let medium = RtmKind::Medium { length, offset };
    let long = RtmKind::LongCts {
        length,
        send_id,
        credits,
    };
    let read = RtmKind::LongRead {
        length,
        send_id,
        from: none,
    };
    let runt = RtmKind::RuntRead {
        length,
        send_id,
        offset,
        runt: 6,
        from: none,
    };
    let rtw_long = RtwKind::LongCts {
        length,
        send_id,
        credits,
    };
    let rtw_read = RtwKind::LongRead {
        length,
        send_id,
        from: none,
    };
    let rtr = |window| {
        Repr::Rtr(Rtr {
            opt,
            from: none,
            length,
            recv_id,
            window,
        })
    };
    let rta = Repr::Rta(Rta {
        msg_id: 0,
        opt,
        to: none,
        datatype: 0,
        op: 0,
        kind: RtaKind::Write,
    });
    let (one, id) = (Some(1), Some(send_id));
    let all = [
        ("eager_msgrtm", rtm(None, eager, None)),
        ("eager_tagrtm", rtm(one, eager, None)),
        ("medium_msgrtm", rtm(None, medium, None)),
        ("medium_tagrtm", rtm(one, medium, None)),
        ("longcts_msgrtm", rtm(None, long, None)),
        ("longcts_tagrtm", rtm(one, long, None)),
        ("longread_msgrtm", rtm(None, read, None)),
        ("longread_tagrtm", rtm(one, read, None)),
        ("runtread_msgrtm", rtm(None, runt, None)),
        ("runtread_tagrtm", rtm(one, runt, None)),
        ("dc_eager_msgrtm", rtm(None, eager, id)),
        ("dc_eager_tagrtm", rtm(one, eager, id)),
        ("dc_medium_msgrtm", rtm(None, medium, id)),
        ("dc_medium_tagrtm", rtm(one, medium, id)),
        ("dc_longcts_msgrtm", rtm(None, long, id)),
        ("dc_longcts_tagrtm", rtm(one, long, id)),
        ("eager_rtw", rtw(RtwKind::Eager, None)),
        ("dc_eager_rtw", rtw(RtwKind::Eager, id)),
        ("longcts_rtw", rtw(rtw_long, None)),
        ("dc_longcts_rtw", rtw(rtw_long, id)),
        ("longread_rtw", rtw(rtw_read, None)),
        ("rtr", rtr(None)),
        ("rtr", rtr(Some(7))),
        ("rta", rta),
        (
            "cts",
            Repr::Cts {
                send_id,
                recv_id,
                length,
                read: false,
            },
        ),
        (
            "ctsdata",
            Repr::CtsData {
                recv_id,
                length,
                offset,
            },
        ),
        (
            "readrsp",
            Repr::ReadRsp {
                recv_id,
                send_id,
                length,
            },
        ),
        ("atomrsp", Repr::AtomRsp { recv_id, length }),
        ("eor", Repr::Eor { send_id, recv_id }),
        ("read_nack", Repr::ReadNack { send_id, recv_id }),
        (
            "receipt",
            Repr::Receipt {
                tx_id: send_id,
                msg_id: 0,
            },
        ),
        (
            "peer_error",
            Repr::PeerError {
                op_id: 0,
                kind: 0,
                errno: 0,
            },
        ),
    ];
    for (name, p) in all {
        let n = p.emit(None, &mut [0u8; HEADER_MAX]) as u64;
        let recorded = &f["structs"][format!("efa_rdm_{name}_hdr")];
        assert_eq!(n, recorded["size"].as_u64().unwrap(), "{name}");
    }
}
