//! Endpoints of one process talk to each other through their hubs.

use super::inbox::PATIENCE;
use super::*;
use crate::hmem::UserMem;
use std::os::fd::AsRawFd;

fn hub(qpn: u16) -> Hub {
    let own = QpAddr {
        gid: [3; 16],
        qpn,
        qkey: std::process::id(),
    };
    let listening = sock::listen(&QpAddr { qkey: 0, ..own }).unwrap();
    Hub::open(own, listening.as_raw_fd(), None).unwrap()
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

const WHAT: What = What {
    kind: 1,
    flags: 0,
    message: true,
};

fn send(from: &mut Hub, to: &Hub, text: &[u8]) -> Sent {
    let addr = to.outbox.own;
    from.outbox.send(9, &addr, WHAT, text, &UserMem::EMPTY, &[])
}

/// Takes records in until there are `n`, sleeping in between as a waiting application does.
fn take(h: &mut Hub, n: usize) -> Vec<Vec<u8>> {
    let mut got = Vec::new();
    while got.len() < n {
        let some = h.inbox.poll(|_, _, r| {
            let mut b = Vec::new();
            r.copy(0, &mut b);
            got.push(b);
        });
        if !some && h.inbox.arm() {
            assert!(readable(h.fd()), "nothing within ten seconds");
        }
    }
    got
}

#[test]
fn sleepers_are_woken_for_every_record() {
    let (mut a, mut b) = (hub(1), hub(2));
    for i in 0..200u8 {
        assert_eq!(send(&mut a, &b, &[i]), Sent::Done);
        assert_eq!(take(&mut b, 1), [[i]]);
        assert_eq!(send(&mut b, &a, &[i, i]), Sent::Done);
        assert_eq!(take(&mut a, 1), [[i, i]]);
    }
}

#[test]
fn a_ring_falls_asleep_and_wakes_again() {
    let (mut a, mut b) = (hub(3), hub(4));
    send(&mut a, &b, b"one");
    take(&mut b, 1);
    for _ in 0..2 * PATIENCE {
        b.inbox.poll(|_, _, _| panic!("there is nothing"));
    }
    assert!(!b.inbox.lively());
    send(&mut a, &b, b"two");
    assert_eq!(take(&mut b, 1), [b"two"]);
    assert!(b.inbox.lively());
}

#[test]
fn the_last_words_of_a_peer_are_heard_before_its_end() {
    let (mut a, mut b) = (hub(5), hub(6));
    send(&mut b, &a, b"hello");
    take(&mut a, 1);
    for i in 0..100u8 {
        assert_eq!(send(&mut a, &b, &[i]), Sent::Done);
    }
    let gone = a.outbox.own;
    drop(a);
    assert_eq!(take(&mut b, 100).len(), 100);
    let mut dead = Vec::new();
    while dead.is_empty() {
        b.inbox.poll(|_, _, _| panic!("there is nothing more"));
        dead = b.gone();
    }
    assert!(dead.iter().all(|d| *d == gone));
    // From now on the adapter answers.
    let addr = gone;
    let sent = b.outbox.send(9, &addr, WHAT, b"?", &UserMem::EMPTY, &[]);
    assert_eq!(sent, Sent::Elsewhere);
}

#[test]
fn strangers_go_by_the_adapter() {
    let (mut a, b) = (hub(7), hub(8));
    for to in [
        QpAddr {
            gid: [4; 16],
            ..b.outbox.own
        },
        QpAddr {
            qpn: 9,
            ..b.outbox.own
        },
    ] {
        let at = u32::from(to.qpn);
        let sent = a.outbox.send(at, &to, WHAT, b"?", &UserMem::EMPTY, &[]);
        assert_eq!(sent, Sent::Elsewhere);
    }
}
