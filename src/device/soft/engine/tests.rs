//! What one peer can have an engine keep, and do.

use super::parts::{INCOMPLETE_MAX, PARTIAL_MAX};
use super::*;
use crate::device::mem_table::Naming;
use std::net::Ipv4Addr;

/// An engine, and addresses of two peers.
fn engine() -> (Engine, [QpAddr; 2]) {
    let ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let sock = Sock::bind(ip, 0, 0).unwrap();
    let me = QpAddr {
        gid: gid_of(ip),
        qpn: sock.port(),
        ..QpAddr::default()
    };
    let cfg = EngineConfig {
        segment: 512,
        message: 1536,
        depth: 16,
        timeout: 1 << 40,
        gso: false,
        fault: None,
        keys: None,
    };
    let mem = Arc::new(MemTable::new(Naming::default()));
    let peers = [1, 2].map(|qpn| QpAddr { qpn, ..me });
    (Engine::new(me, sock, mem, cfg, false).unwrap(), peers)
}

/// A packet at `off` of a message of 1,000 bytes.
fn part(op: u32, off: u32) -> MessagePart {
    MessagePart {
        op,
        total: 1000,
        off,
        at: 0,
        len: 100,
    }
}

/// A message that was just coming when its peer's session ended does not become one of the peer
/// that gets the place.
#[test]
fn a_run_ends_with_its_session() {
    let (mut e, [first, next]) = engine();
    let mut arena = vec![7; 512];
    let pi = e.peer(&first, 1);
    assert!(e.prepare_part(pi, &part(3, 0), true, &arena));
    assert!(e.take_part(pi, &part(3, 0), &mut arena).is_none());
    e.end_session(pi, Status::RemoteBadQpn, &mut Vec::new(), 2);
    assert_eq!(e.peer(&next, 3), pi);
    e.end_run(&arena);
    assert!(e.peers.get(pi).unwrap().parts.is_empty());
}

#[test]
fn messages_in_part_are_bounded_for_each_peer() {
    let (mut e, peers) = engine();
    let mut arena = vec![7; 512];
    let [one, other] = peers.map(|p| e.peer(&p, 1));
    for op in 0..PARTIAL_MAX as u32 {
        assert!(e.prepare_part(one, &part(op, 100), true, &arena), "{op}");
        assert!(e.take_part(one, &part(op, 100), &mut arena).is_none());
    }
    for off in [0, 100] {
        assert!(!e.prepare_part(one, &part(999, off), true, &arena));
    }
    // Another peer is not held up, nor are the messages that have begun.
    assert!(e.prepare_part(other, &part(999, 100), true, &arena));
    assert!(e.prepare_part(one, &part(0, 200), true, &arena));
    assert_eq!(e.peers.get(one).unwrap().parts.len(), PARTIAL_MAX);
    // All peers together: beyond a bound, no peer has a second one.
    e.incomplete = INCOMPLETE_MAX;
    assert!(!e.prepare_part(other, &part(998, 100), true, &arena));
    let late = e.peer(&QpAddr { qpn: 3, ..peers[0] }, 1);
    assert!(e.prepare_part(late, &part(998, 100), true, &arena));
    e.incomplete = PARTIAL_MAX + 2;
    for pi in [one, other, late] {
        e.end_session(pi, Status::RemoteBadQpn, &mut Vec::new(), 2);
    }
    assert_eq!(e.incomplete, 0);
}

/// A packet of no session.
fn head(kind: PacketKind, psn: u32) -> PacketHead {
    PacketHead {
        session: 0,
        dst: 0,
        src: 0,
        psn,
        una: 0,
        ack: None,
        src_qkey: 0,
        to_vtag: 0,
        vtag: 0,
        kind,
    }
}

/// The packets of two peers come in turn, in one poll: a message of many packets is moved together
/// in the arena, and a message of one packet stays there until the poll ends.
#[test]
fn messages_that_come_in_turn_keep_their_bytes() {
    let (mut e, peers) = engine();
    let [one, other] = peers.map(|p| e.peer(&p, 1));
    let mem = Arc::clone(&e.mem);
    // Ten packets of a message of 1,000 bytes, each followed by a message of 50 bytes.
    let mut arena = vec![0; 10 * 200];
    for (i, slot) in arena.chunks_exact_mut(200).enumerate() {
        slot[..100].fill(i as u8);
        slot[150..].fill(100 + i as u8);
    }
    let mut list = Vec::new();
    for i in 0..10u32 {
        let at = 200 * i as usize;
        let part = PacketKind::SendPart {
            op: 1,
            total: 1000,
            off: 100 * i,
        };
        for (pi, kind, place) in [
            (one, part, at..at + 100),
            (other, PacketKind::Send, at + 150..at + 200),
        ] {
            let mut sink = EventSink {
                list: &mut list,
                app_polls: true,
            };
            let (access, arena) = (mem.access(), &mut arena);
            e.data(pi, &head(kind, i), place, arena, &mut sink, &access, 1);
        }
    }
    e.end_run(&arena);
    let mut short = 0;
    for event in &list {
        let Event::Recv { data, .. } = event else {
            panic!("an event of another kind")
        };
        match Events::bytes(&arena, data) {
            b if b.len() == 50 => {
                assert_eq!(b, [100 + short; 50]);
                short += 1;
            }
            b => assert!((0..1000).all(|i| b[i] == (i / 100) as u8)),
        }
    }
    assert_eq!((short, list.len()), (10, 11));
}

/// A peer that guesses keys is answered in a burst, then once per millisecond.
#[test]
fn wrong_keys_are_refused_slowly() {
    let (mut e, [one, _]) = engine();
    let start = 1 << 40;
    let pi = e.peer(&one, start);
    let p = e.peers.get_mut(pi).unwrap();
    p.rx = Some(RxFlow::new(0));
    let mut psn = 0;
    for (ms, most) in [(0, REFUSALS), (0, 0), (10, 10), (11, 1), (60_000, REFUSALS)] {
        let mut refused = 0;
        for _ in 0..2 * REFUSALS {
            // The peer knows about each refusal before it guesses again.
            p.rx.as_mut().unwrap().forget_refusals(psn);
            if p.refuse(psn, Status::RemoteBadAddress, start + ms * MS) {
                refused += 1;
                psn += 1;
            }
        }
        assert_eq!(refused, most, "after {ms} ms");
    }
}

#[test]
fn reads_served_at_once_are_bounded_for_each_peer() {
    let (mut e, peers) = engine();
    let memory = [7u8; 8];
    let at = core::iter::once((memory.as_ptr().cast(), memory.len()));
    // SAFETY: `memory` outlives the engine's use of it, which ends with `e`.
    let region = unsafe { UserMem::new(at) }.unwrap();
    let (key, addr) = e.mem.insert(region, FI_REMOTE_READ, None).unwrap();
    let [one, other] = peers.map(|p| e.peer(&p, 1));
    let mem = Arc::clone(&e.mem);
    let mut ask = |pi, psn: u32| {
        let id = u64::from(psn);
        let len = 8;
        let h = head(PacketKind::ReadReq { id, key, addr, len }, psn);
        let mut sink = EventSink {
            list: &mut Vec::new(),
            app_polls: true,
        };
        e.data(pi, &h, 0..0, &mut [], &mut sink, &mem.access(), 1);
        e.peers.get(pi).unwrap().serving
    };
    for psn in 0..SERVING_MAX + 10 {
        assert_eq!(ask(one, psn), SERVING_MAX.min(psn + 1));
    }
    assert_eq!(ask(other, 0), 1);
}

#[test]
fn the_messages_of_some_peers_can_be_held() {
    let (mut e, peers) = engine();
    let [one, other] = peers.map(|p| e.peer(&p, 1));
    let mem = Arc::clone(&e.mem);
    let mut psn = 0;
    let mut taken = |e: &mut Engine| {
        psn += 1;
        [one, other].map(|pi| {
            let mut list = Vec::new();
            let mut sink = EventSink {
                list: &mut list,
                app_polls: true,
            };
            let h = head(PacketKind::Send, psn - 1);
            e.data(pi, &h, 0..4, &mut [7; 4], &mut sink, &mem.access(), 1);
            list.len()
        })
    };
    assert_eq!(taken(&mut e), [1, 1]);
    e.hold = (|_| true, HeldPeers::Of([peers[0]].into()));
    assert_eq!(taken(&mut e), [0, 1]);
    e.hold.1 = HeldPeers::All;
    assert_eq!(taken(&mut e), [0, 0]);
    e.hold.1 = HeldPeers::None;
    assert_eq!(taken(&mut e), [1, 1]);
}
