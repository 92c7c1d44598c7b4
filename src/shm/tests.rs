//! Endpoints of one process exchange messages through shared memory.

use super::rma::RmaRequest;
use super::rx_rings::{AWAKE_RINGS, IDLE_POLLS};
use super::*;
use crate::device::MrObserver;
use crate::hmem::{Piece, UserMem};
use crate::transport::{Completion, Payload, RemoteAddr, Report, Status, Transport, Verdict};
use crate::transport::{Flow, Poll};
use core::ptr::null;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::SeqCst;

fn endpoint(qpn: u16) -> ShmEndpoint {
    // The process id gives other runs of these tests different addresses.
    let [a, b, c, d] = std::process::id().to_ne_bytes();
    let own = QpAddr {
        gid: [3, a, b, c, d, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3],
        qpn,
        qkey: std::process::id(),
        token: 0,
    };
    let listening = connection::listen(&QpAddr { qkey: 0, ..own }).unwrap();
    ShmEndpoint::open(own, listening.as_raw_fd(), None).unwrap()
}

fn readable(fd: i32) -> bool {
    let mut p = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry is passed, which outlives the call.
    unsafe { libc::poll(&mut p, 1, 10_000) > 0 }
}

const WHAT: RecordHeader = RecordHeader {
    kind: 1,
    flags: 0,
    message: true,
};

/// Sends a record to a peer that may not have been called yet.
fn record(tx: &mut TxRings, peer: PeerId, addr: &QpAddr, text: &[u8]) -> Verdict {
    if !tx.ensure_route(peer, addr) {
        return Verdict::NoResources;
    }
    let done = Completion::internal(Report::Nowhere, peer);
    tx.am_bcopy(done, RecordHead::bytes(WHAT, text), Payload::EMPTY)
}

fn send(from: &mut ShmEndpoint, to: &ShmEndpoint, text: &[u8]) -> Verdict {
    let addr = to.tx.own;
    loop {
        let sent = record(&mut from.tx, 9, &addr, text);
        if sent != Verdict::NoResources {
            return sent;
        }
        // The first record waits until the peer reads the ring.
        from.rx.take_events_for_tests();
        from.gone();
    }
}

/// A peer that computes takes nothing for a while: MPI libraries do nothing else while a send is
/// refused.
#[test]
fn a_reader_that_takes_nothing_gets_a_larger_ring() {
    let (mut a, b) = (endpoint(75), endpoint(76));
    let text = [7; 2000];
    assert_eq!(send(&mut a, &b, &text), Verdict::Done);
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    let (mut sent, mut refused) = (1, 0);
    while sent < 500 {
        assert!(
            std::time::Instant::now() < until,
            "{sent} messages have room"
        );
        match record(&mut a.tx, 9, &b.tx.own, &text) {
            Verdict::Done => sent += 1,
            _ => refused += 1,
        }
    }
    assert!(refused > 0);
}

#[test]
fn a_called_peer_is_found_by_what_an_adapter_says_of_it() {
    let (mut a, b) = (endpoint(71), endpoint(72));
    let own = b.tx.own;
    assert_eq!(a.tx.peer_at(&own.gid, 72), None);
    assert_eq!(send(&mut a, &b, b"first"), Verdict::Done);
    assert_eq!(a.tx.peer_at(&own.gid, 72), Some((9, own)));
    // An adapter without an address handle for the sender reports its number only.
    assert_eq!(a.tx.peer_at(&[0; 16], 72), Some((9, own)));
    assert_eq!(a.tx.peer_at(&own.gid, 71), None);
    assert_eq!(a.tx.peer_at(&[1; 16], 72), None);
}

/// Takes records in until there are `n`, sleeping in between as a waiting application does.
fn take(h: &mut ShmEndpoint, n: usize) -> Vec<Vec<u8>> {
    let mut got = Vec::new();
    while got.len() < n {
        let some = h.rx.poll_all(|_, _, r| {
            let mut b = Vec::new();
            r.copy(0, &mut b);
            got.push(b);
            Flow::Taken
        });
        if !some && h.rx.arm() {
            assert!(readable(h.fd()), "nothing within ten seconds");
        }
    }
    got
}

#[test]
fn sleepers_are_woken_for_every_record() {
    let (mut a, mut b) = (endpoint(1), endpoint(2));
    for i in 0..200u8 {
        assert_eq!(send(&mut a, &b, &[i]), Verdict::Done);
        assert_eq!(take(&mut b, 1), [[i]]);
        assert_eq!(send(&mut b, &a, &[i, i]), Verdict::Done);
        assert_eq!(take(&mut a, 1), [[i, i]]);
    }
}

/// The number of a split copy stands for another one after 2^16: a peer that finds the request of
/// the first one then must not take chunks of the second.
#[test]
fn numbers_of_split_copies_are_not_used_again_before_the_peer_has_looked() {
    let (mut a, mut b) = (endpoint(73), endpoint(74));
    let copy = |a: &mut ShmEndpoint| {
        let Some(split) = a.tx.open_split(9, 1) else {
            return false;
        };
        assert_eq!(a.tx.take_chunk(9, split), Some(0));
        a.tx.mark_copied(9, split);
        a.tx.end_split(9, split)
    };
    assert_eq!(send(&mut a, &b, b"request"), Verdict::Done);
    for i in 1..1 << 16 {
        assert!(copy(&mut a), "{i}");
    }
    assert!(!copy(&mut a) && !copy(&mut a));
    // The reader gives room back after many records.
    for _ in 0..1000 {
        take(&mut b, 1);
        assert_eq!(send(&mut a, &b, &[0; 100]), Verdict::Done);
    }
    assert!(copy(&mut a));
}

/// A peer that sends seldom costs a poll almost nothing, but a wake-up takes twenty times as long
/// as its message.
#[test]
fn idle_rings_beyond_awake_rings_are_parked() {
    let mut b = endpoint(3);
    let idle = |b: &mut ShmEndpoint| {
        for _ in 0..2 * IDLE_POLLS {
            b.rx.poll_all(|_, _, _| panic!("there is nothing"));
        }
        assert!(!b.rx.in_use());
    };
    let mut peers = Vec::new();
    for i in 0..AWAKE_RINGS {
        let mut a = endpoint(300 + i as u16);
        send(&mut a, &b, b"one");
        peers.push(a);
    }
    take(&mut b, peers.len());
    idle(&mut b);
    assert_eq!(b.rx.parked_for_tests(), 0);
    for i in 0..4 {
        let mut a = endpoint(400 + i);
        send(&mut a, &b, b"one");
        peers.push(a);
    }
    take(&mut b, 4);
    idle(&mut b);
    assert_eq!(b.rx.parked_for_tests(), 4);
    for a in &mut peers {
        send(a, &b, b"two");
    }
    assert_eq!(take(&mut b, peers.len()), vec![b"two"; peers.len()]);
    assert!(b.rx.in_use());
}

#[test]
fn records_of_a_closed_peer_are_read_before_its_end_is_reported() {
    let (mut a, mut b) = (endpoint(5), endpoint(6));
    send(&mut b, &a, b"hello");
    take(&mut a, 1);
    for i in 0..100u8 {
        assert_eq!(send(&mut a, &b, &[i]), Verdict::Done);
    }
    let gone = a.tx.own;
    drop(a);
    assert_eq!(take(&mut b, 100).len(), 100);
    let mut dead = Vec::new();
    while dead.is_empty() {
        b.rx.poll_all(|_, _, _| panic!("there is nothing more"));
        dead = b.gone();
    }
    assert!(dead.iter().all(|d| *d == gone));
    // The peer is returned again when our ring to it has ended, too; from then on the adapter
    // answers.
    while b.tx.has_route(9) {
        b.rx.poll_all(|_, _, _| panic!("there is nothing more"));
        assert!(b.gone().iter().all(|d| *d == gone));
    }
    let addr = gone;
    let sent = record(&mut b.tx, 9, &addr, b"?");
    assert_eq!(sent, Verdict::Unsupported);
}

#[test]
fn unreachable_peers_use_the_adapter() {
    let (mut a, b) = (endpoint(7), endpoint(8));
    for to in [
        QpAddr {
            gid: [4; 16],
            ..b.tx.own
        },
        QpAddr { qpn: 9, ..b.tx.own },
    ] {
        let at = u32::from(to.qpn);
        let sent = record(&mut a.tx, at, &to, b"?");
        assert_eq!(sent, Verdict::Unsupported);
    }
}

// ---- accesses ----------------------------------------------------------------------------------

/// Memory that a test lends for as long as it runs.
fn lend(b: &mut [u8]) -> (Piece, UserMem) {
    let at = b.as_mut_ptr().cast_const().cast();
    // SAFETY: the buffers of these tests outlive what is made of them.
    let p = unsafe { Piece::new(at, b.len()) }.unwrap();
    (p, p.into())
}

fn endpoint_with(qpn: u16, table: &Arc<MrTable>) -> ShmEndpoint {
    let own = QpAddr {
        gid: [3; 16],
        qpn,
        qkey: std::process::id(),
        token: 0,
    };
    let listening = connection::listen(&QpAddr { qkey: 0, ..own }).unwrap();
    ShmEndpoint::open(own, listening.as_raw_fd(), Some(Arc::clone(table))).unwrap()
}

/// Whether the system has cross-memory attach, which qemu's emulation of another processor lacks:
/// tests that need it are left out there, and only there.
pub(super) fn has_cma() -> bool {
    // SAFETY: no bytes are copied.
    let known = unsafe { libc::process_vm_readv(libc::getpid(), null(), 0, null(), 0, 0) } == 0;
    let errno = std::io::Error::last_os_error().raw_os_error();
    let missing = !known && errno == Some(libc::ENOSYS);
    if missing {
        eprintln!("left out: the system has no process_vm_readv(2)");
    }
    !missing
}

/// Two endpoints, of which the second reaches the first's memory. `None` without cross-memory
/// attach.
fn neighbours(qpns: [u16; 2]) -> Option<(ShmEndpoint, ShmEndpoint, Arc<MrTable>)> {
    if !has_cma() {
        return None;
    }
    let table = Arc::new(MrTable::new(1).unwrap());
    let (a, mut b) = (
        endpoint_with(qpns[0], &table),
        endpoint_with(qpns[1], &table),
    );
    let mut a = a;
    send(&mut b, &a, b"hello");
    take(&mut a, 1);
    let begun = std::time::Instant::now();
    while !b.tx.reaches_memory(9) {
        assert!(begun.elapsed().as_secs() < 60, "no memory is reached");
        b.rx.poll_all(|_, _, _| Flow::Taken);
        b.gone();
        std::thread::yield_now();
    }
    Some((a, b, table))
}

fn access(write: bool, mem: Piece) -> RmaRequest<'static> {
    RmaRequest {
        kind: if write { kind::WRITE } else { kind::READ },
        flags: 0,
        word: 0,
        data: LocalBuffer::Piece(if write { mem } else { Piece::EMPTY }),
        into: if write { Piece::EMPTY } else { mem },
        unsignaled: false,
    }
}

/// Completion of an access to memory of peer 9.
fn at(key: u64, addr: u64) -> Completion {
    Completion {
        peer: 9,
        report: Report::Entry,
        remote: RemoteAddr { addr, key },
        ..Completion::default()
    }
}

/// Does what records ask for, as an endpoint does; how many of them their writer had done.
fn serve(h: &mut ShmEndpoint, table: &MrTable) -> usize {
    let mut back = 0;
    h.rx.poll_all(|_, _, r| {
        let [key, addr, _] = r.words();
        let len = r.len - ACCESS_HEAD;
        back += usize::from(r.done);
        match table.own(
            KeyHashes::default().of(key),
            addr,
            len,
            r.kind == kind::WRITE,
        ) {
            _ if r.done => {}
            Some(p) if r.kind == kind::WRITE => r.copy_piece(ACCESS_HEAD, p),
            Some(p) => r.fill_piece(p),
            None => r.outcome().refuse(Status::RemoteBadKey),
        }
        Flow::Taken
    });
    back
}

fn ended(h: &mut ShmEndpoint) -> Vec<Status> {
    let mut all = Vec::new();
    h.tx.poll(usize::MAX, &mut all);
    all.into_iter().map(|(_, status)| status).collect()
}

#[test]
fn a_target_that_polls_does_accesses_and_says_what_failed() {
    let Some((mut a, mut b, table)) = neighbours([9, 10]) else {
        return;
    };
    let (mut far, mut near, mut back) = ([1u8; 64], [2u8; 16], [0u8; 16]);
    table.add(5, 1000, &lend(&mut far).1, FI_REMOTE_READ | FI_REMOTE_WRITE);
    let (near, back) = (lend(&mut near).0, lend(&mut back).0);
    for (w, key, addr, mem) in [
        (true, 5, 1008, near),
        (false, 5, 1000, back),
        (true, 6, 1000, near),
        (true, 5, 1050, near),
        (false, 5, 1000, back),
    ] {
        let sent = b.tx.post(&access(w, mem), at(key, addr));
        assert_eq!(sent, Verdict::Queued);
    }
    assert_eq!(ended(&mut b), []);
    assert_eq!(serve(&mut a, &table), 0);
    use Status::{Ok, RemoteBadKey as Bad};
    assert_eq!(ended(&mut b), [Ok, Ok, Bad, Bad, Ok]);
    assert!(!b.tx.has_outstanding());
    let mut seen = [0; 16];
    UserMem::from(back).load(0, &mut seen);
    assert_eq!(seen, [1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2]);
}

#[test]
fn what_a_target_does_not_do_is_taken_back_once() {
    let Some((mut a, mut b, table)) = neighbours([11, 12]) else {
        return;
    };
    let (mut far, mut near) = ([1u8; 8], [2u8; 8]);
    let far = lend(&mut far).1;
    table.add(5, 0, &far, FI_REMOTE_WRITE);
    let near = lend(&mut near).0;
    for key in [5, 5, 7] {
        b.tx.post(&access(true, near), at(key, 0));
    }
    let mut all = Vec::new();
    while all.len() < 2 || !b.tx.has_retries() {
        all.extend(ended(&mut b));
    }
    assert_eq!(all, [Status::Ok, Status::Ok]);
    // The adapter reports the error of a key that is not published.
    let again = b.tx.take_retries();
    let is = |a: &AdapterRetry| {
        let done = a.done;
        (done.peer, done.remote.key, a.write, a.mem.len()) == (9, 7, true, 8)
    };
    assert!(again.len() == 1 && again.iter().all(is));
    let mut seen = [0; 8];
    far.load(0, &mut seen);
    assert_eq!(seen, [2; 8]);
    // The target does not repeat an access that was executed from here.
    far.store(0, &[3; 8]);
    assert_eq!(serve(&mut a, &table), 3);
    far.load(0, &mut seen);
    assert_eq!(seen, [3; 8]);
    // The back-off lets accesses bypass the ring.
    let sent = b.tx.post(&access(true, near), at(5, 0));
    assert_eq!(sent, Verdict::Unsupported);
}

#[test]
fn unsignaled_writes_complete_without_a_poll() {
    let Some((_a, mut b, table)) = neighbours([13, 14]) else {
        return;
    };
    let mut far = [0u8; 8];
    let far = lend(&mut far).1;
    table.add(5, 0, &far, FI_REMOTE_WRITE);
    let mut n = 0u64;
    let mut posted = 0;
    while posted < 40 {
        n += 1;
        let mut bytes = n.to_ne_bytes();
        let mut a = access(true, lend(&mut bytes).0);
        a.unsignaled = true;
        posted += usize::from(b.tx.post(&a, at(5, 0)) == Verdict::Queued);
    }
    let mut seen = [0; 8];
    while u64::from_ne_bytes(seen) != n {
        std::thread::yield_now();
        far.load(0, &mut seen);
    }
}

#[test]
fn a_closed_endpoint_has_its_posted_write_done() {
    let Some((_a, mut b, table)) = neighbours([15, 16]) else {
        return;
    };
    let (mut far, mut near) = ([1u8; 8], [2u8; 8]);
    let far = lend(&mut far).1;
    table.add(5, 0, &far, FI_REMOTE_WRITE);
    let near = lend(&mut near).0;
    assert_eq!(b.tx.post(&access(true, near), at(5, 0)), Verdict::Queued);
    drop(b);
    let mut seen = [0; 8];
    far.load(0, &mut seen);
    assert_eq!(seen, [2; 8]);
}

#[test]
fn both_sides_at_work_do_everything_once_and_in_order() {
    let Some((mut a, mut b, table)) = neighbours([17, 18]) else {
        return;
    };
    let mut far = [0u8; 8];
    let far = lend(&mut far).1;
    table.add(5, 0, &far, FI_REMOTE_WRITE | FI_REMOTE_READ);
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (over, keys) = (Arc::clone(&stop), Arc::clone(&table));
    // A target that polls for a while, and then does something else for longer than it is waited
    // for.
    let t = std::thread::spawn(move || {
        let mut back = 0;
        while !over.load(SeqCst) {
            for _ in 0..2000 {
                back += serve(&mut a, &keys);
            }
            let until = crate::device::host::now() + 300_000;
            while crate::device::host::now() < until {}
        }
        back
    });
    for n in 1..=20_000u64 {
        let (mut out, mut got) = (n.to_ne_bytes(), [0u8; 8]);
        let (out, into) = (lend(&mut out).0, lend(&mut got).0);
        let mut left = 0;
        for x in [access(true, out), access(false, into)] {
            loop {
                match b.tx.post(&x, at(5, 0)) {
                    Verdict::Done | Verdict::Queued => {
                        left += 1;
                        break;
                    }
                    Verdict::Unsupported => {
                        let local = LocalBuffer::Piece(if left == 0 && x.kind == kind::WRITE {
                            out
                        } else {
                            into
                        });
                        // A copy made from here must not overtake accesses in the ring.
                        while left > 0 {
                            left -= ended(&mut b).len();
                        }
                        let write = x.kind == kind::WRITE;
                        b.tx.cma_access(9, write, &local, at(5, 0).remote).unwrap();
                        break;
                    }
                    Verdict::NoResources => {
                        ended(&mut b);
                    }
                    Verdict::Failed(e) => panic!("errno {e}"),
                }
            }
        }
        while left > 0 {
            let e = ended(&mut b);
            assert!(e.iter().all(|s| *s == Status::Ok));
            left -= e.len();
        }
        assert_eq!(got, n.to_ne_bytes());
    }
    stop.store(true, SeqCst);
    t.join().unwrap();
}

#[test]
fn a_lock_held_by_an_exited_writer_does_not_block_its_records() {
    let Some((mut a, mut b, table)) = neighbours([19, 20]) else {
        return;
    };
    let (mut far, mut near) = ([1u8; 8], [2u8; 8]);
    let far = lend(&mut far).1;
    table.add(5, 0, &far, FI_REMOTE_WRITE);
    let write = access(true, lend(&mut near).0);
    assert_eq!(b.tx.post(&write, at(5, 0)), Verdict::Queued);
    assert_eq!(send(&mut b, &a, b"bye"), Verdict::Done);
    b.tx.abandon_lock(9);
    assert_eq!(serve(&mut a, &table), 0);
    drop(b);
    let mut seen = [0; 8];
    let mut heard = false;
    while !heard {
        a.rx.poll_all(|_, _, r| {
            if r.kind == kind::WRITE {
                let p = table
                    .own(KeyHashes::default().of(5), 0, r.len - ACCESS_HEAD, true)
                    .unwrap();
                r.copy_piece(ACCESS_HEAD, p);
            } else {
                heard = true;
            }
            Flow::Taken
        });
    }
    far.load(0, &mut seen);
    assert_eq!(seen, [2; 8]);
}

#[test]
fn a_third_process_cannot_speak_for_another() {
    let (mut a, mut b) = (endpoint(41), endpoint(42));
    send(&mut a, &b, b"from a");
    assert_eq!(take(&mut b, 1), [b"from a"]);
    let (claimed, to) = (a.tx.own, b.tx.own);
    let ring = ring::RingWriter::new().unwrap();
    // SAFETY: the child makes system calls and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = connection::connect(&claimed, &to, ring.fd()).is_ok_and(|(c, _)| {
            readable(c.as_raw_fd()) && matches!(connection::receive(&c), connection::ConnEvent::End)
        });
        // SAFETY: ends the process.
        unsafe { libc::_exit(if refused { 7 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: the status is written into a variable of its kind.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(
        libc::WEXITSTATUS(status),
        7,
        "it was let in, or not answered"
    );
    // The first two endpoints are still connected.
    b.rx.take_events_for_tests();
    assert!(b.gone().is_empty());
    send(&mut a, &b, b"still here");
    assert_eq!(take(&mut b, 1), [b"still here"]);
}

#[test]
fn a_service_is_reached_by_those_who_know_its_number_only() {
    let [a, b, c, d] = std::process::id().to_ne_bytes();
    let service = QpAddr {
        gid: [4, a, b, c, d, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4],
        qpn: 51,
        qkey: crate::device::any::public_key(51),
        token: 77,
    };
    let private = QpAddr { qkey: 9, ..service };
    let _listening = [service, private].map(|own| connection::listen(&own).unwrap());
    let ring = ring::RingWriter::new().unwrap();
    let reached = |to: QpAddr| connection::connect(&service, &to, ring.fd()).is_ok();
    let without = |to: QpAddr| QpAddr { token: 0, ..to };
    assert!(reached(service) && reached(without(service)));
    assert!(reached(private) && !reached(without(private)));
}

#[test]
fn a_caller_that_gives_up_an_unused_ring_is_not_gone() {
    let (a, mut b) = (endpoint(61), endpoint(62));
    let ring = ring::RingWriter::new().unwrap();
    let (conn, _) = connection::connect(&a.tx.own, &b.tx.own, ring.fd()).unwrap();
    assert!(readable(conn.as_raw_fd()), "no answer");
    while b.rx.count_for_tests() == 0 {
        b.rx.poll_all(|_, _, _| panic!("nothing was sent"));
    }
    drop(conn);
    while b.rx.count_for_tests() > 0 {
        b.rx.poll_all(|_, _, _| panic!("nothing was sent"));
        assert!(b.gone().is_empty(), "the caller counts as gone");
        std::thread::yield_now();
    }
}

#[test]
fn a_peer_that_is_gone_is_not_taken_for_one_that_gives_up_its_ring() {
    let (mut a, b) = (endpoint(63), endpoint(64));
    assert_eq!(send(&mut a, &b, b"first"), Verdict::Done);
    let ring = ring::RingWriter::new().unwrap();
    let (conn, _) = connection::connect(&b.tx.own, &a.tx.own, ring.fd()).unwrap();
    assert!(readable(conn.as_raw_fd()), "no answer");
    while a.rx.count_for_tests() == 0 {
        a.rx.poll_all(|_, _, _| panic!("nothing was sent"));
    }
    let own = b.tx.own;
    drop(b);
    while a.tx.has_ring(9) {
        a.rx.poll_all(|_, _, _| panic!("nothing was sent"));
        assert!(a.gone().is_empty(), "the ring is read to its end first");
        std::thread::yield_now();
    }
    drop(conn);
    while a.rx.count_for_tests() > 0 {
        a.rx.poll_all(|_, _, _| panic!("nothing was sent"));
        std::thread::yield_now();
    }
    assert_eq!(a.gone(), [own]);
}
