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

/// Values of the members of a header, by name, with where and how long they are: those of the
/// structures that it begins with, too.
fn members(f: &Value, name: &str, base: usize, into: &mut Vec<(String, usize, usize)>) {
    for m in f["structs"][name]["members"].as_array().unwrap() {
        let at = base + m["offset"].as_u64().unwrap() as usize;
        let (kind, len) = (m["type"].as_str().unwrap(), m["size"].as_u64());
        match (kind.strip_prefix("struct "), m["name"].as_str(), len) {
            (Some(inner), Some("hdr"), _) => members(f, inner, at, into),
            (_, Some(name), Some(len)) => into.push((name.to_string(), at, len as usize)),
            _ => {}
        }
    }
}

/// What `src/wire` writes, against the protocol's headers: length, packet number, and the place of
/// each field.
#[test]
fn wire_headers_have_the_recorded_layout() {
    use fabric::wire::*;
    let f = facts("efa-rdm-protocol-v4.json");
    let none = Iovs::default();
    let opt = Opt::default();
    let (length, send_id, recv_id, offset) = (0x1112_1314, 0x2122, 0x3132, 0x4142);
    let (msg_id, tag, credits, runt, window) = (0x5152, Some(0x6162), 0x7172, 0x8182, 0x9192);
    let (datatype, op, kind, errno) = (0xa1, 0xb1, 1, 0xc1);
    let values = [
        ("msg_id", u64::from(msg_id)),
        ("tag", tag.unwrap()),
        ("msg_length", length),
        ("seg_length", length),
        ("recv_length", length),
        ("send_id", send_id.into()),
        ("tx_id", send_id.into()),
        ("op_id", send_id.into()),
        ("recv_id", recv_id.into()),
        ("seg_offset", offset),
        ("credit_request", credits.into()),
        ("runt_length", runt),
        ("atomic_datatype", datatype.into()),
        ("atomic_op", op.into()),
        ("ref_kind", kind.into()),
        ("prov_errno", errno.into()),
        ("rma_iov_count", 0),
        ("read_iov_count", 0),
        ("padding", 0),
        ("reserved", 0),
    ];
    let rtm = |tag, kind, receipt| {
        Repr::Rtm(Rtm {
            msg_id,
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
        runt,
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
    let rta = |kind| {
        Repr::Rta(Rta {
            msg_id,
            opt,
            to: none,
            datatype,
            op,
            kind,
        })
    };
    let id = Some(send_id);
    let cts = Repr::Cts {
        send_id,
        recv_id,
        length,
        read: false,
    };
    let ctsdata = Repr::CtsData {
        recv_id,
        length,
        offset,
    };
    let readrsp = Repr::ReadRsp {
        recv_id,
        send_id,
        length,
    };
    let receipt = Repr::Receipt {
        tx_id: send_id,
        msg_id,
    };
    let peer_error = Repr::PeerError {
        op_id: send_id,
        kind,
        errno,
    };
    // The packet, and its header where that has another name.
    let all = [
        ("eager_msgrtm", "", rtm(None, eager, None)),
        ("eager_tagrtm", "", rtm(tag, eager, None)),
        ("medium_msgrtm", "", rtm(None, medium, None)),
        ("medium_tagrtm", "", rtm(tag, medium, None)),
        ("longcts_msgrtm", "", rtm(None, long, None)),
        ("longcts_tagrtm", "", rtm(tag, long, None)),
        ("longread_msgrtm", "", rtm(None, read, None)),
        ("longread_tagrtm", "", rtm(tag, read, None)),
        ("runtread_msgrtm", "", rtm(None, runt, None)),
        ("runtread_tagrtm", "", rtm(tag, runt, None)),
        ("dc_eager_msgrtm", "", rtm(None, eager, id)),
        ("dc_eager_tagrtm", "", rtm(tag, eager, id)),
        ("dc_medium_msgrtm", "", rtm(None, medium, id)),
        ("dc_medium_tagrtm", "", rtm(tag, medium, id)),
        ("dc_longcts_msgrtm", "", rtm(None, long, id)),
        ("dc_longcts_tagrtm", "", rtm(tag, long, id)),
        ("eager_rtw", "", rtw(RtwKind::Eager, None)),
        ("dc_eager_rtw", "", rtw(RtwKind::Eager, id)),
        ("longcts_rtw", "", rtw(rtw_long, None)),
        ("dc_longcts_rtw", "", rtw(rtw_long, id)),
        ("longread_rtw", "", rtw(rtw_read, None)),
        ("short_rtr", "rtr", rtr(None)),
        ("longcts_rtr", "rtr", rtr(Some(window))),
        ("write_rta", "rta", rta(RtaKind::Write)),
        ("dc_write_rta", "rta", rta(RtaKind::WriteReceipt(send_id))),
        ("fetch_rta", "rta", rta(RtaKind::Fetch(recv_id))),
        ("compare_rta", "rta", rta(RtaKind::Compare(recv_id))),
        ("cts", "", cts),
        ("ctsdata", "", ctsdata),
        ("readrsp", "", readrsp),
        ("atomrsp", "", Repr::AtomRsp { recv_id, length }),
        ("eor", "", Repr::Eor { send_id, recv_id }),
        ("read_nack", "", Repr::ReadNack { send_id, recv_id }),
        ("receipt", "", receipt),
        ("peer_error", "", peer_error),
    ];
    let mut compared = 0;
    for (packet, header, p) in all {
        let header = if header.is_empty() { packet } else { header };
        let mut bytes = [0u8; HEADER_MAX];
        let n = p.emit(None, &mut bytes) as u64;
        let name = format!("efa_rdm_{header}_hdr");
        assert_eq!(n, f["structs"][&name]["size"].as_u64().unwrap(), "{packet}");
        let number = &f["values"][format!("EFA_RDM_{}_PKT", packet.to_uppercase())];
        assert_eq!(Some(bytes[0].into()), number.as_u64(), "{packet}");
        let mut fields = Vec::new();
        members(&f, &name, 0, &mut fields);
        for (field, at, len) in fields {
            let found = values.iter().find(|(n, _)| *n == field);
            let mut want = found.unwrap_or_else(|| panic!("{packet}: {field}")).1;
            if header == "rtr" && field == "recv_length" && packet == "longcts_rtr" {
                want = window.into();
            }
            let mut word = [0; 8];
            word[..len].copy_from_slice(&bytes[at..at + len]);
            assert_eq!(u64::from_le_bytes(word), want, "{packet}: {field}");
            compared += 1;
        }
    }
    assert!(compared > 120, "only {compared} fields compared");
    for (name, ours) in [
        ("RDMA_READ", extra::RDMA_READ),
        ("DELIVERY_COMPLETE", extra::DELIVERY_COMPLETE),
        ("RUNT", extra::RUNT),
        ("RDMA_WRITE", extra::RDMA_WRITE),
        ("READ_NACK", extra::READ_NACK),
        ("REQUEST_USER_RECV_QP", extra::USER_RECV_QP),
        ("UNSOLICITED_WRITE_RECV", extra::UNSOLICITED_WRITE_RECV),
        ("PEER_ERROR", extra::PEER_ERROR),
    ] {
        let recorded = &f["values"][format!("EFA_RDM_EXTRA_FEATURE_{name}")];
        assert_eq!(Some(ours), recorded.as_u64(), "{name}");
    }
    for (name, ours) in [
        ("CONSTANT_HEADER_LENGTH", extra::CONSTANT_HEADER),
        ("CONNID_HEADER", extra::CONNID_HEADER),
    ] {
        let recorded = &f["values"][format!("EFA_RDM_EXTRA_REQUEST_{name}")];
        assert_eq!(Some(ours), recorded.as_u64(), "{name}");
    }
}

/// The symbols of the built library (`make`), each at its node of the version script.
#[test]
fn the_library_exports_the_recorded_symbols() {
    let f = facts("fabric-2.7.json");
    let lib = root().join("build/lib/libfabric.so.1");
    let found = Command::new("nm")
        .args(["-D", "--with-symbol-versions", "--defined-only"])
        .arg(&lib)
        .output()
        .unwrap();
    assert!(found.status.success(), "{}: run make", lib.display());
    let text = String::from_utf8(found.stdout).unwrap();
    let functions = text.lines().filter_map(|l| l.split_once(" T "));
    let mut found: Vec<_> = functions.map(|(_, name)| name.to_string()).collect();
    let recorded = f["exports"].as_array().unwrap().iter().map(|e| {
        let at = if e["default"] == true { "@@" } else { "@" };
        let text = |of: &str| e[of].as_str().unwrap().to_string();
        text("symbol") + at + &text("version")
    });
    let mut recorded: Vec<_> = recorded.collect();
    found.sort();
    recorded.sort();
    assert_eq!(found, recorded);
}
