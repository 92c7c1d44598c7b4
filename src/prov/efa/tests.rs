//! Transfers between two endpoints of one process, over every route, from and into every kind of
//! memory.

use crate::core::iovs::{Iovs, RmaIov};
use crate::core::registry::Query;
use crate::core::version;
use crate::hmem::{fake, UserMem};
use crate::prov::contract::*;
use crate::prov::efa::domain::EfaDomain;
use crate::prov::efa::endpoint::LiveEndpoint;
use crate::prov::efa::Efa;
use crate::prov::progress_thread::{Background, Next};
use crate::types::*;
use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An endpoint and the objects it is bound to.
#[derive(Clone)]
struct TestEndpoint {
    domain: Arc<EfaDomain>,
    av: u32,
    cq: u32,
    ep: u32,
}

impl TestEndpoint {
    /// Whose sends have these flags by default.
    fn new(over_shm: bool, op_flags: u64) -> TestEndpoint {
        let q = Query {
            api: version(1, 21),
            ..Query::default()
        };
        let mut all = Efa.getinfo(&q).unwrap().into_iter();
        let mut info = all.find(|i| i.caps & FI_TAGGED != 0).unwrap();
        info.tx.as_mut().unwrap().op_flags = op_flags;
        let name = info.fabric.as_ref().and_then(|f| f.name.as_deref());
        let fabric = Fabric::new(name.unwrap(), version(1, 21));
        TestEndpoint::of_domain(EfaDomain::open(fabric, info).unwrap(), over_shm)
    }

    /// One more of a domain.
    fn of_domain(domain: Arc<EfaDomain>, over_shm: bool) -> TestEndpoint {
        let attr = AvAttr {
            type_: FI_AV_TABLE,
            count: 4,
            rx_ctx_bits: 0,
            name: None,
            reader: false,
        };
        let av = domain.open_av(&attr).unwrap();
        let cq = domain.open_cq(0, FI_WAIT_NONE).unwrap().id;
        let ep = domain.open_ep(&domain.info).unwrap();
        domain.bind_av(ep, av).unwrap();
        domain.bind_cq(ep, cq, FI_TRANSMIT | FI_RECV).unwrap();
        let shm = OptionValue::Bool(over_shm);
        domain
            .set_option(ep, FI_OPT_SHARED_MEMORY_PERMITTED, shm)
            .unwrap();
        domain.enable_ep(ep).unwrap();
        TestEndpoint { domain, av, cq, ep }
    }

    /// Inserts the address of `other` into this endpoint's address vector.
    fn insert_addr_of(&self, other: &TestEndpoint) -> fi_addr_t {
        let raw = other.domain.name(other.ep).unwrap();
        self.domain.insert_addr(self.av, &raw).unwrap()
    }

    fn live<R>(&self, f: impl FnOnce(&mut LiveEndpoint) -> R) -> R {
        let mut s = self.domain.lock();
        let live = s.eps.get_mut(self.ep).and_then(|e| e.live.as_mut());
        f(live.unwrap())
    }

    fn poll(&self) -> usize {
        let last = Cell::new(0);
        let each = |_: usize, e: &Entry| last.set(e.context);
        match self.domain.read_cq::<false>(self.cq, 1, each) {
            Ok(_) => last.get(),
            Err(FI_EAGAIN) => 0,
            Err(e) => panic!("{e}: {:?}", self.domain.read_cq_error(self.cq)),
        }
    }

    fn close(self) {
        let domain = self.close_in_domain();
        domain.close().unwrap();
    }

    fn close_in_domain(self) -> Arc<EfaDomain> {
        self.domain.close_ep(self.ep).unwrap();
        self.domain.close_cq(self.cq).unwrap();
        self.domain.close_av(self.av).unwrap();
        self.domain
    }
}

/// Two endpoints, and the address of `b` in the vector of `a`.
struct TestPair {
    a: TestEndpoint,
    b: TestEndpoint,
    to_b: fi_addr_t,
}

const SENT: usize = 1;
const RECEIVED: usize = 2;

impl TestPair {
    fn new(over_shm: bool) -> TestPair {
        TestPair::with_flags(over_shm, 0)
    }

    fn with_flags(over_shm: bool, op_flags: u64) -> TestPair {
        let [a, b] = [(); 2].map(|()| TestEndpoint::new(over_shm, op_flags));
        let to_b = a.insert_addr_of(&b);
        b.insert_addr_of(&a);
        TestPair { a, b, to_b }
    }

    /// The same endpoints, each in the other's place.
    fn reversed(&self) -> TestPair {
        let (a, b) = (self.b.clone(), self.a.clone());
        let to_b = a.insert_addr_of(&b);
        TestPair { a, b, to_b }
    }

    /// Tries `post` until there is room.
    fn post(&self, mut post: impl FnMut() -> crate::core::Result<()>) {
        let until = Instant::now() + Duration::from_secs(60);
        while let Err(e) = post() {
            assert!(e == FI_EAGAIN && Instant::now() < until, "error {e}");
            self.a.poll();
            self.b.poll();
        }
    }

    /// Polls until the contexts in bit mask `a` have completed at endpoint `a`, and those in `b` at
    /// `b`.
    fn wait(&self, mut a: usize, mut b: usize) {
        let until = Instant::now() + Duration::from_secs(60);
        while a | b != 0 {
            assert!(Instant::now() < until, "{a} and {b} have not completed");
            a &= !self.a.poll();
            b &= !self.b.poll();
        }
    }

    fn message(&self, from: UserMem, into: UserMem, expected: bool) {
        let recv = RecvReq {
            mem: into,
            src: FI_ADDR_UNSPEC,
            tag: Some((7, 0)),
            common: common(RECEIVED),
        };
        let send = MsgReq {
            data: SendData::User(from),
            to: self.to_b,
            tag: Some(7),
            cq_data: None,
            common: common(SENT),
        };
        let receive = || self.b.domain.recv(Poster::Ep(self.b.ep), &recv);
        if expected {
            self.post(receive);
        }
        self.post(|| self.a.domain.send(self.a.ep, &send));
        if !expected {
            for _ in 0..100 {
                assert_eq!(self.b.poll(), 0);
            }
            self.post(receive);
        }
        self.wait(SENT, RECEIVED);
    }

    fn rma(&self, local: UserMem, remote: UserMem, write: bool) {
        let mr = self.post_rma(local, remote, write);
        self.wait(SENT, 0);
        self.b.domain.close_mr(&mr).unwrap();
    }

    /// Posts an access to a region of `b`, which is returned.
    fn post_rma(&self, local: UserMem, remote: UserMem, write: bool) -> Mr {
        let rights = FI_REMOTE_READ | FI_REMOTE_WRITE;
        let mr = self.b.domain.reg_mr(remote, None, rights, 0).unwrap();
        let r = RmaReq {
            data: SendData::User(local),
            peer: self.to_b,
            addr: remote.addr() as u64,
            key: mr.key,
            write,
            cq_data: None,
            common: common(SENT),
        };
        self.post(|| self.a.domain.rma(self.a.ep, &r));
        mr
    }

    fn sum(&self, operand: UserMem, former: UserMem, remote: UserMem) {
        let rights = FI_REMOTE_READ | FI_REMOTE_WRITE;
        let mr = self.b.domain.reg_mr(remote, None, rights, 0).unwrap();
        let at = RmaIov {
            addr: remote.addr() as u64,
            len: remote.len() as u64,
            key: mr.key,
        };
        let r = AtomicReq {
            data: SendData::User(operand),
            fetch: Fetch::Former(former),
            peer: self.to_b,
            to: Iovs::new(&[at]).unwrap(),
            datatype: FI_UINT64,
            op: FI_SUM,
            common: common(SENT),
        };
        self.post(|| self.a.domain.atomic(self.a.ep, &r));
        self.wait(SENT, 0);
        self.b.domain.close_mr(&mr).unwrap();
    }

    fn close(self) {
        self.a.close();
        self.b.close();
    }
}

fn common(context: usize) -> Common {
    Common {
        context,
        ..Common::default()
    }
}

/// Where a buffer is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum BufferPlace {
    Host,
    Device,
}

/// Memory with these bytes.
fn buffer(place: BufferPlace, bytes: &[u8]) -> UserMem {
    match place {
        BufferPlace::Host => fake::host(bytes),
        BufferPlace::Device => fake::alloc(bytes),
    }
}

fn zeroed(place: BufferPlace, len: usize) -> UserMem {
    buffer(place, &vec![0; len])
}

const SIZES: [usize; 6] = [8, 4096, 9000, 60_000, 300_000, 2 << 20];
const PLACES: [[BufferPlace; 2]; 4] = [
    [BufferPlace::Host, BufferPlace::Host],
    [BufferPlace::Host, BufferPlace::Device],
    [BufferPlace::Device, BufferPlace::Host],
    [BufferPlace::Device, BufferPlace::Device],
];

fn each_case(mut f: impl FnMut(&TestPair, [BufferPlace; 2], &[u8])) {
    for over_shm in [true, false] {
        let p = TestPair::new(over_shm);
        for places in PLACES {
            for len in SIZES {
                let bytes: Vec<u8> = (0..len).map(|i| (i % 249 + 1) as u8).collect();
                f(&p, places, &bytes);
            }
        }
        p.close();
    }
}

#[test]
fn messages_arrive_from_and_in_memory_of_any_kind() {
    each_case(|p, [from, into], bytes| {
        for expected in [true, false] {
            let src = buffer(from, bytes);
            let dst = zeroed(into, bytes.len());
            p.message(src, dst, expected);
            let what = (from, into, bytes.len(), expected);
            assert!(fake::bytes(&dst) == bytes, "{what:?}");
        }
    });
}

/// MPI libraries have FI_DELIVERY_COMPLETE as the default of their endpoints.
#[test]
fn deliveries_on_one_host_take_no_packets() {
    let p = TestPair::with_flags(true, FI_DELIVERY_COMPLETE);
    let injected = [7; 100];
    for len in [0, 1, 5000, 10_000, 65_536, 100_000, 2_000_000] {
        let bytes: Vec<u8> = (0..len).map(|i| (i % 243) as u8).collect();
        for expected in [true, false] {
            let dst = zeroed(BufferPlace::Host, len);
            p.message(buffer(BufferPlace::Host, &bytes), dst, expected);
            assert!(fake::bytes(&dst) == bytes, "{len} {expected}");
        }
    }
    let send = MsgReq {
        data: SendData::Inject((&injected[..]).into()),
        to: p.to_b,
        tag: Some(7),
        cq_data: None,
        common: common(SENT),
    };
    p.post(|| p.a.domain.send(p.a.ep, &send));
    let state = p.a.domain.lock();
    let live = state.eps.get(p.a.ep).unwrap().live.as_ref();
    let counts = live.unwrap().proto.counts();
    drop(state);
    assert_eq!(
        (
            counts.eager,
            counts.medium,
            counts.long_cts,
            counts.long_read
        ),
        (0, 0, 0, 0)
    );
    // The end of a send tells that its message has been taken.
    let (mem, dst) = (
        buffer(BufferPlace::Host, &[5; 6000]),
        zeroed(BufferPlace::Host, 6000),
    );
    let send = MsgReq {
        data: SendData::User(mem),
        tag: Some(8),
        ..send
    };
    p.post(|| p.a.domain.send(p.a.ep, &send));
    for _ in 0..1000 {
        assert_eq!((p.a.poll(), p.b.poll()), (0, 0));
    }
    let recv = RecvReq {
        mem: dst,
        src: FI_ADDR_UNSPEC,
        tag: Some((8, 0)),
        common: common(RECEIVED),
    };
    p.post(|| p.b.domain.recv(Poster::Ep(p.b.ep), &recv));
    p.wait(SENT, RECEIVED);
    p.close();
}

/// The progress thread sleeps until an event; what arrives after the event was taken raises none.
#[test]
fn a_poll_that_takes_an_event_wakes_the_progress_thread() {
    let p = TestPair::new(true);
    let bytes = vec![3; 1_000_000];
    let (src, dst) = (
        buffer(BufferPlace::Host, &bytes),
        zeroed(BufferPlace::Host, bytes.len()),
    );
    let back = p.reversed();
    let thread = p.b.domain.thread();
    let falls_asleep = || {
        let until = Instant::now() + Duration::from_secs(60);
        while !matches!(p.b.domain.turn().1, Next::Sleep(_)) {
            assert!(Instant::now() < until);
        }
        thread.wake.clear();
        assert!(!thread.wake.wait(0));
    };
    // Each side gets the other's handshake.
    p.message(src, dst, true);
    back.message(src, dst, true);

    falls_asleep();
    p.message(src, dst, true);
    assert!(thread.wake.wait(5000));

    falls_asleep();
    // A write raises no event here.
    let mr = back.post_rma(src, dst, true);
    let written = p.b.poll();
    assert!(thread.wake.wait(5000));
    p.wait(0, SENT & !written);
    p.a.domain.close_mr(&mr).unwrap();
    p.close();
}

/// Ranks wait for a peer on another host while the ring from one on this host is open.
#[test]
fn a_packet_is_found_soon_although_a_ring_is_open() {
    let p = TestPair::new(true);
    let far = TestEndpoint::new(false, 0);
    let to_b = far.insert_addr_of(&p.b);
    let bytes = [5; 100];
    let into = zeroed(BufferPlace::Host, bytes.len());
    let send_from_far = || {
        let recv = RecvReq {
            mem: into,
            src: FI_ADDR_UNSPEC,
            tag: Some((9, 0)),
            common: common(RECEIVED),
        };
        p.post(|| p.b.domain.recv(Poster::Ep(p.b.ep), &recv));
        let send = MsgReq {
            data: SendData::Inject((&bytes[..]).into()),
            to: to_b,
            tag: Some(9),
            cq_data: None,
            common: common(SENT),
        };
        p.post(|| far.domain.send(far.ep, &send));
    };
    let polls = || {
        (1..1 << 20).find(|_| {
            far.poll();
            p.b.poll() == RECEIVED
        })
    };
    // The first message opens a session.
    send_from_far();
    polls().expect("the first message");
    let dst = zeroed(BufferPlace::Host, bytes.len());
    p.message(buffer(BufferPlace::Host, &bytes), dst, true);
    for _ in 0..200 {
        p.b.poll();
    }
    send_from_far();
    let n = polls().expect("the second message");
    assert!(n < 300, "{n} polls");
    p.close();
    far.close();
}

/// A program reads a queue for each of its threads, of which few have anything to do.
#[test]
fn an_idle_adapter_is_polled_seldom_while_rings_of_other_endpoints_are_used() {
    let p = TestPair::new(true);
    let idle = TestEndpoint::of_domain(p.b.domain.clone(), true);
    let most_skipped = |polls| {
        let each = (0..polls).map(|_| {
            idle.poll();
            idle.live(|l| l.skipped_polls)
        });
        each.max().unwrap()
    };
    // No ring is used before the first message, and none is long after the last.
    assert_eq!(most_skipped(500), 0);
    let dst = zeroed(BufferPlace::Host, 100);
    for _ in 0..10 {
        p.message(buffer(BufferPlace::Host, &[5; 100]), dst, true);
    }
    assert_eq!(most_skipped(500), 32);
    most_skipped(2000);
    idle.live(|l| l.empty_polls = 64);
    assert_eq!(most_skipped(500), 0);
    // It has been idle for long.
    assert_eq!(most_skipped(2000), 32);
    idle.close_in_domain();
    p.close();
}

#[test]
fn of_idle_adapters_that_are_polled_in_turn_each_is_polled_now_and_then() {
    let a = TestEndpoint::new(false, 0);
    let b = TestEndpoint::of_domain(a.domain.clone(), false);
    let polls_adapter = |last: u64| {
        a.live(|l| l.idle_poll_at = last);
        let before = a.live(|l| l.empty_polls);
        a.poll();
        a.live(|l| l.empty_polls) > before
    };
    for _ in 0..100 {
        a.poll();
    }
    b.poll();
    assert!(!polls_adapter(u64::MAX));
    // It alone is polled.
    assert!(polls_adapter(u64::MAX));
    b.poll();
    assert!(polls_adapter(0));
    b.close_in_domain();
    a.close();
}

#[test]
fn an_address_that_is_removed_may_be_inserted_again() {
    let (sender, receiver) = (1, 2);
    for over_shm in [true, false] {
        for which in [sender, receiver, sender | receiver] {
            let mut p = TestPair::new(over_shm);
            let to_a = p.b.insert_addr_of(&p.a);
            p.b.domain.remove_addr(p.b.av, to_a).unwrap();
            for round in 1..4 {
                for i in 0..3 {
                    let src = buffer(BufferPlace::Host, &[round, i]);
                    let dst = zeroed(BufferPlace::Host, 2);
                    p.message(src, dst, true);
                    assert_eq!(fake::bytes(&dst), [round, i], "{over_shm} {which}");
                }
                if which & sender != 0 {
                    p.a.domain.remove_addr(p.a.av, p.to_b).unwrap();
                    p.to_b = p.a.insert_addr_of(&p.b);
                }
                if which & receiver != 0 {
                    p.b.domain.remove_addr(p.b.av, to_a).unwrap();
                    assert_eq!(p.b.insert_addr_of(&p.a), to_a);
                }
            }
            p.close();
        }
    }
}

/// The packets of a message without a receive are not taken for those of a message that has the
/// same number since its sender numbers anew.
#[test]
fn a_waiting_message_keeps_its_packets_when_its_peer_numbers_anew() {
    let mut p = TestPair::new(false);
    // Of two packets.
    let lens = [65_001, 64_002, 65_003];
    let all = lens.map(|len| vec![len as u8; len]);
    for (tag, bytes) in (0..).zip(&all) {
        let send = MsgReq {
            data: SendData::User(buffer(BufferPlace::Host, bytes)),
            to: p.to_b,
            tag: Some(tag),
            cq_data: None,
            common: common(SENT),
        };
        p.post(|| p.a.domain.send(p.a.ep, &send));
        p.wait(SENT, 0);
        p.a.domain.remove_addr(p.a.av, p.to_b).unwrap();
        p.to_b = p.a.insert_addr_of(&p.b);
    }
    for (tag, bytes) in (0..).zip(&all) {
        let dst = zeroed(BufferPlace::Host, bytes.len());
        let recv = RecvReq {
            mem: dst,
            src: FI_ADDR_UNSPEC,
            tag: Some((tag, 0)),
            common: common(RECEIVED),
        };
        p.post(|| p.b.domain.recv(Poster::Ep(p.b.ep), &recv));
        p.wait(0, RECEIVED);
        assert!(fake::bytes(&dst) == *bytes, "message {tag}");
    }
    p.close();
}

#[test]
fn messages_between_host_and_device_pieces_arrive() {
    for over_shm in [true, false] {
        let p = TestPair::new(over_shm);
        for len in SIZES {
            let bytes: Vec<u8> = (0..2 * len).map(|i| (i % 247) as u8).collect();
            let parts = [BufferPlace::Host, BufferPlace::Device];
            let [x, y] = [0, 1].map(|i| buffer(parts[i], &bytes[i * len..][..len]));
            let [u, v] = [1, 0].map(|i| zeroed(parts[i], len));
            p.message(x.join(&y).unwrap(), u.join(&v).unwrap(), true);
            assert!(
                [fake::bytes(&u), fake::bytes(&v)].concat() == bytes,
                "{len}"
            );
        }
        p.close();
    }
}

#[test]
fn writes_and_reads_reach_memory_of_any_kind() {
    each_case(|p, [local, remote], bytes| {
        let src = buffer(local, bytes);
        let dst = zeroed(remote, bytes.len());
        p.rma(src, dst, true);
        assert!(
            fake::bytes(&dst) == bytes,
            "write {local:?} {remote:?} {}",
            bytes.len()
        );
        let back = zeroed(local, bytes.len());
        p.rma(back, dst, false);
        assert!(
            fake::bytes(&back) == bytes,
            "read {local:?} {remote:?} {}",
            bytes.len()
        );
    });
}

#[test]
fn atomics_reach_memory_of_any_kind() {
    for over_shm in [true, false] {
        let p = TestPair::new(over_shm);
        for [local, remote] in PLACES {
            let of = |v: [u64; 4]| v.map(u64::to_ne_bytes).concat();
            let operand = buffer(local, &of([1, 2, 3, 4]));
            let former = zeroed(local, 32);
            let target = buffer(remote, &of([10, 20, 30, 40]));
            p.sum(operand, former, target);
            assert_eq!(
                fake::bytes(&former),
                of([10, 20, 30, 40]),
                "{local:?} {remote:?}"
            );
            assert_eq!(
                fake::bytes(&target),
                of([11, 22, 33, 44]),
                "{local:?} {remote:?}"
            );
        }
        p.close();
    }
}
