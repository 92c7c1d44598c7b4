//! Threads that post, poll, insert addresses, open, enable and close at the same time in one domain
//! (FI_THREAD_SAFE), with the progress thread on. `make tsan` runs this test under the thread
//! sanitizer.

use fabric::core::registry::Query;
use fabric::core::{version, Info};
use fabric::hmem::UserMem;
use fabric::prov::contract::*;
use fabric::types::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

struct End {
    id: u32,
    cq: u32,
    self_addr: fi_addr_t,
}

fn open<D: Domain>(d: &Arc<D>, info: &Info, av: u32) -> End {
    let cq = d.open_cq(0, FI_WAIT_FD).unwrap().id;
    let id = d.open_ep(info).unwrap();
    d.bind_av(id, av).unwrap();
    d.bind_cq(id, cq, FI_TRANSMIT | FI_RECV).unwrap();
    d.enable_ep(id).unwrap();
    let self_addr = d.insert_addr(av, &d.name(id).unwrap()).unwrap();
    End { id, cq, self_addr }
}

fn close<D: Domain>(d: &Arc<D>, e: &End) {
    d.close_ep(e.id).unwrap();
    d.close_cq(e.cq).unwrap();
}

fn mem(b: &mut [u8]) -> UserMem {
    // SAFETY: every test buffer outlives the operations on it: they are waited for.
    unsafe { UserMem::new([(b.as_mut_ptr() as *const core::ffi::c_void, b.len())]) }.unwrap()
}

/// Sends to itself and waits for both completions.
fn round_trip<D: Domain>(d: &Arc<D>, e: &End, n: u8, len: usize) {
    let (mut from, mut to) = (vec![n; len], vec![0u8; len]);
    let recv = RecvReq {
        mem: mem(&mut to),
        src: FI_ADDR_UNSPEC,
        tag: None,
        common: Common::default(),
    };
    d.recv(Poster::Ep(e.id), &recv).unwrap();
    let send = MsgReq {
        data: SendData::User(mem(&mut from)),
        to: e.self_addr,
        tag: None,
        cq_data: None,
        common: Common::default(),
    };
    d.send(e.id, &send).unwrap();
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

fn everything_at_once<P: Provider>(p: &P) {
    let q = Query {
        api: version(1, 21),
        ..Query::default()
    };
    let mut all = p.getinfo(&q).unwrap().into_iter();
    let rdm = |i: &Info| i.ep.as_ref().is_some_and(|e| e.type_ == FI_EP_RDM);
    let info = all.find(|i| rdm(i) && i.caps & FI_TAGGED != 0).unwrap();
    let name = info.fabric.as_ref().and_then(|f| f.name.as_deref());
    let fabric = Fabric::new(name.unwrap(), version(1, 21));
    let domain = P::Domain::open(fabric, info.clone()).unwrap();
    domain.start_progress().unwrap();
    let attr = AvAttr {
        type_: FI_AV_TABLE,
        count: 16,
        rx_ctx_bits: 0,
        name: None,
        reader: false,
    };
    let av = domain.open_av(&attr).unwrap();
    let shared = Arc::new(open(&domain, &info, av));
    let stop = Arc::new(AtomicBool::new(false));
    let mut threads = Vec::new();
    // Two threads that open an endpoint, use it and close it again.
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
    // One thread polls the shared queue, one inserts addresses, one posts to the shared endpoint.
    let spare = |f: fn(&Arc<P::Domain>, u32, &End, u16)| {
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
            let raw = d.resolve("127.0.0.1", Some(&n.to_string())).unwrap();
            let a = d.insert_addr(av, &raw).unwrap();
            d.remove_addr(av, a).unwrap();
        }),
        spare(|d, _, e, _| {
            let send = MsgReq {
                data: SendData::Inject(b"to whoever polls"[..].into()),
                to: e.self_addr,
                tag: Some(1),
                cq_data: None,
                common: Common::default(),
            };
            if d.send(e.id, &send).is_ok() {
                let mut none = [0u8; 0];
                let recv = RecvReq {
                    mem: mem(&mut none),
                    src: FI_ADDR_UNSPEC,
                    tag: Some((1, 0)),
                    common: Common::default(),
                };
                d.recv(Poster::Ep(e.id), &recv).unwrap();
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

struct EveryProvider;

impl ProviderVisitor for EveryProvider {
    fn visit<P: Provider>(&mut self, p: P) {
        everything_at_once(&p);
    }
}

#[test]
fn posting_polling_inserting_opening_and_closing_at_once() {
    fabric::prov::visit(&mut EveryProvider);
}
