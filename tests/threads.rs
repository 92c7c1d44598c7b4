//! Threads that post, poll, insert addresses, open, enable and close at the same time in one domain
//! (FI_THREAD_SAFE), with the progress thread on. A plain test here; under the thread sanitizer it
//! is `make tsan`.

use fabric::core::{version, Info};
use fabric::hmem::UserMem;
use fabric::prov::efa::addr;
use fabric::prov::efa::av::Av;
use fabric::prov::efa::cq::Cq;
use fabric::prov::efa::domain::{Domain, Fabric};
use fabric::prov::efa::rdm::{self, Common, MsgReq, Poster, RecvReq, SendData};
use fabric::types::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

struct End {
    id: u32,
    cq: u32,
    self_addr: fi_addr_t,
}

fn info() -> Info {
    let q = fabric::core::registry::Query {
        api: version(1, 21),
        node: None,
        service: None,
        flags: 0,
        hints: None,
    };
    fabric::prov::efa::info::getinfo(&q).unwrap().remove(0)
}

fn open(d: &Arc<Domain>, info: &Info, av: u32) -> End {
    let cq = d
        .open_cq(Cq::new(FI_CQ_FORMAT_DATA, 0, FI_WAIT_FD).unwrap())
        .unwrap();
    let id = d.open_ep(info).unwrap();
    let mut s = d.lock();
    let s = &mut *s;
    let e = s.eps.get_mut(id).unwrap();
    e.bind_av(av).unwrap();
    e.bind_cq(cq, FI_TRANSMIT | FI_RECV).unwrap();
    let fd = rdm::enable(s, id).unwrap();
    d.watch(fd);
    let raw = rdm::name(s, id).unwrap();
    let self_addr = s
        .avs
        .get_mut(av)
        .unwrap()
        .insert(&raw, &mut s.peers)
        .unwrap();
    End { id, cq, self_addr }
}

fn close(d: &Arc<Domain>, e: &End) {
    let (gone, fd) = rdm::close(&mut d.lock(), e.id).unwrap();
    if let Some(fd) = fd {
        d.unwatch(fd);
    }
    drop(gone);
    d.close_cq(e.cq).unwrap();
}

fn mem(b: &mut [u8]) -> UserMem {
    // SAFETY: every test buffer outlives the operations on it: they are waited for.
    unsafe { UserMem::new([(b.as_mut_ptr() as *const core::ffi::c_void, b.len())]) }.unwrap()
}

/// Sends to itself and waits for both completions.
fn round_trip(d: &Arc<Domain>, e: &End, n: u8, len: usize) {
    let (mut from, mut to) = (vec![n; len], vec![0u8; len]);
    let recv = RecvReq {
        mem: mem(&mut to),
        src: FI_ADDR_UNSPEC,
        tag: None,
        common: Common::default(),
    };
    rdm::recv(&mut d.lock(), Poster::Ep(e.id), &recv).unwrap();
    let send = MsgReq {
        data: SendData::User(mem(&mut from)),
        to: e.self_addr,
        tag: None,
        cq_data: None,
        common: Common::default(),
    };
    rdm::send(&mut d.lock(), e.id, &send).unwrap();
    let mut done = 0;
    let until = Instant::now() + Duration::from_secs(60);
    while done < 2 {
        assert!(Instant::now() < until, "{done} of 2 completions");
        match d.sread_cq(e.cq, 2 - done, 1, 1000, |_, _| ()) {
            Ok(n) => done += n,
            Err(FI_EAGAIN) => {}
            Err(err) => panic!("error {err}"),
        }
    }
    assert!(from == to);
}

#[test]
fn posting_polling_inserting_opening_and_closing_at_once() {
    let info = info();
    let fabric = Fabric::open(None, version(1, 21)).unwrap();
    let domain = Domain::open(fabric, info.clone()).unwrap();
    domain.progress_thread().unwrap();
    let av = domain.lock().avs.insert(Av::new(FI_AV_TABLE, 16, 0));
    let shared = Arc::new(open(&domain, &info, av));
    let stop = Arc::new(AtomicBool::new(false));
    let mut threads = Vec::new();
    // Two that open an endpoint, use it and close it again.
    for t in 0..2u8 {
        let (d, info) = (Arc::clone(&domain), info.clone());
        threads.push(std::thread::spawn(move || {
            for i in 0..15u8 {
                let e = open(&d, &info, av);
                round_trip(&d, &e, i ^ t, 100);
                round_trip(&d, &e, i, 200_000);
                close(&d, &e);
            }
        }));
    }
    // One that polls somebody else's queue, one that inserts, one that posts where others poll.
    let spare = |f: fn(&Arc<Domain>, u32, &End, u16)| {
        let (d, e, stop) = (Arc::clone(&domain), Arc::clone(&shared), Arc::clone(&stop));
        std::thread::spawn(move || {
            let mut n = 1;
            while !stop.load(Ordering::SeqCst) {
                f(&d, av, &e, n);
                n = n.wrapping_add(1).max(1);
            }
        })
    };
    let background = [
        spare(|d, _, e, _| {
            let _ = d.read_cq::<true>(e.cq, 4, |_, _| ());
        }),
        spare(|d, av, _, n| {
            let mut gid = [0u8; 16];
            gid[10..].copy_from_slice(&[0xff, 0xff, 127, 0, 0, 1]);
            let raw = addr::to_raw(&fabric::device::QpAddr {
                gid,
                qpn: n,
                qkey: 7,
                ..Default::default()
            });
            let mut s = d.lock();
            let s = &mut *s;
            let v = s.avs.get_mut(av).unwrap();
            let a = v.insert(&raw, &mut s.peers).unwrap();
            v.remove(a).unwrap();
        }),
        spare(|d, _, e, _| {
            let send = MsgReq {
                data: SendData::Inject(b"to whoever polls"),
                to: e.self_addr,
                tag: Some(1),
                cq_data: None,
                common: Common::default(),
            };
            let mut s = d.lock();
            if rdm::send(&mut s, e.id, &send).is_ok() {
                let mut none = [0u8; 0];
                let recv = RecvReq {
                    mem: mem(&mut none),
                    src: FI_ADDR_UNSPEC,
                    tag: Some((1, 0)),
                    common: Common::default(),
                };
                rdm::recv(&mut s, Poster::Ep(e.id), &recv).unwrap();
            }
        }),
    ];
    for t in threads {
        t.join().unwrap();
    }
    stop.store(true, Ordering::SeqCst);
    for t in background {
        t.join().unwrap();
    }
    close(&domain, &shared);
    domain.close_av(av).unwrap();
    domain.close().unwrap();
}
