//! A connected peer that sends arbitrary datagrams to one [`Engine`]: the harness of the fuzz
//! target `soft_hostile` and of a seeded test.
//!
//! A byte string is a script ([`Script`]): it chooses what the application posts and when, which
//! datagrams the peer sends in its session, and how time passes. The peer has a session, the key of
//! a region that it may write, and the key of a region that it may read. The harness checks,
//! on real memory, that:
//!
//! - a source buffer or a read-only region never changes, nor do bytes next to a region or buffer;
//! - nothing is stored to a read's destination after its end, nor to a region after it was closed;
//! - an operation ends once, and all have ended when the peer has been silent for long;
//! - a numbered datagram takes effect once.

use super::engine::{Engine, EngineConfig};
use super::packet::{PacketHead, PacketKind, HEAD_MAX, MAX_ERRS, MAX_WORDS};
use super::sock::Sock;
use crate::core::script::Script;
use crate::core::sync::{Mutex, Unpoisoned};
use crate::device::mem_table::{MemTable, Naming};
use crate::device::{Event, Events, QpAddr};
use crate::hmem::fenced::{FencedBuf, LentBuffers};
use crate::transport::{Completion, Payload, RemoteAddr};
use crate::types::*;
use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

const SEGMENT: usize = 512;
const DEPTH: usize = 64;
const TIMEOUT: u64 = 1_000_000_000;
/// Bytes of a region.
const REGION: usize = 4096;
/// Longest operation of the application.
const LONGEST: usize = 3000;

struct EngineHarness {
    engine: Engine,
    events: Events,
    now: u64,
    script: Script,
    peer: SocketAddr,
    peer_addr: QpAddr,
    sent: Arc<Mutex<Vec<Vec<u8>>>>,
    /// Header template of the peer: session, tokens, and the engine's verification tag. `next_psn`:
    /// the first sequence number that the peer has not used.
    open: Option<PacketHead>,
    next_psn: u32,
    /// Ids of reads that the engine has requested from the peer.
    asked: Vec<u64>,
    messages: HashSet<u32>,
    received: usize,
    /// Buffers of the application's operations.
    buffers: LentBuffers,
    next_id: u64,
    write: ExposedRegion,
    read: ExposedRegion,
    mem: Arc<MemTable>,
}

struct ExposedRegion {
    memory: FencedBuf,
    key: u64,
}

impl ExposedRegion {
    fn new(mem: &MemTable, access: u64) -> ExposedRegion {
        let mut memory = FencedBuf::new(REGION);
        let found = mem.insert(memory.mem(), access, None);
        let (key, _) = found.unwrap_or_default();
        ExposedRegion { memory, key }
    }
}

impl EngineHarness {
    fn new(bytes: &[u8]) -> Option<EngineHarness> {
        let ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let sock = Sock::bind(ip, 0, 0).ok()?;
        let mem = Arc::new(MemTable::new(Naming::default()));
        let me = QpAddr {
            gid: Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets(),
            qpn: sock.port(),
            qkey: 77,
            token: 0x1234_5678_9abc_def0,
        };
        let cfg = EngineConfig {
            segment: SEGMENT,
            message: 3 * SEGMENT,
            depth: DEPTH,
            timeout: TIMEOUT,
            gso: false,
            fault: None,
            keys: None,
        };
        let mut engine = Engine::new(me, sock, Arc::clone(&mem), cfg, false).ok()?;
        let sent = engine.tap();
        // No socket is bound to this port: the harness reads the engine's datagrams from the tap.
        let peer = SocketAddr::new(ip, 1);
        let peer_addr = QpAddr {
            qpn: 1,
            qkey: 88,
            token: 5,
            ..me
        };
        Some(EngineHarness {
            engine,
            events: Events::default(),
            now: 1 << 40,
            script: Script::new(bytes),
            peer,
            peer_addr,
            sent,
            open: None,
            next_psn: 0,
            asked: Vec::new(),
            messages: HashSet::new(),
            received: 0,
            buffers: LentBuffers::default(),
            next_id: 0,
            write: ExposedRegion::new(&mem, FI_REMOTE_WRITE),
            read: ExposedRegion::new(&mem, FI_REMOTE_READ),
            mem,
        })
    }

    /// Removes and returns the headers of the datagrams that the tap has recorded.
    fn heard(&self) -> Vec<PacketHead> {
        let mut sent = self.sent.lock().unpoisoned();
        let heads = sent
            .iter()
            .filter_map(|d| Some(PacketHead::parse(d)?.0))
            .collect();
        sent.clear();
        heads
    }

    fn inject(&mut self, h: PacketHead, payload: &[u8]) {
        let mut bytes = vec![0; HEAD_MAX];
        let n = h.emit(&mut bytes);
        bytes.truncate(n);
        bytes.extend_from_slice(payload);
        let mut list = core::mem::take(&mut self.events.list);
        self.engine.inject(self.peer, &bytes, &mut list, self.now);
        self.take(&mut list);
        self.events.list = list;
    }

    fn take(&mut self, list: &mut Vec<Event>) {
        for e in list.drain(..) {
            match e {
                Event::Recv { .. } => self.received += 1,
                Event::Done { done, .. } => self.buffers.end(done.context as u64),
                Event::PeerDown { .. } => {
                    self.open = None;
                    self.next_psn = 0;
                    self.messages.clear();
                    self.received = 0;
                }
                _ => {}
            }
        }
        assert!(
            self.received <= self.messages.len(),
            "a datagram took effect twice"
        );
    }

    fn poll(&mut self) {
        let mut events = core::mem::take(&mut self.events);
        self.engine.poll(&mut events, false, self.now);
        self.take(&mut events.list);
        self.events = events;
    }

    /// The peer sends HELLO, gets WELCOME, and sends its first datagram.
    fn connect(&mut self) {
        if let Some(h) = self.call() {
            self.inject(h, b"");
        }
    }

    /// The peer sends HELLO, and gets WELCOME; its first datagram.
    fn call(&mut self) -> Option<PacketHead> {
        let me = self.engine.me;
        let mut h = PacketHead {
            session: 0,
            dst: me.token,
            src: 9,
            psn: 0,
            una: 0,
            ack: None,
            src_qkey: self.peer_addr.qkey,
            to_vtag: me.qkey,
            vtag: 3,
            kind: PacketKind::Hello,
        };
        self.heard();
        self.inject(h, b"");
        self.engine.ring(self.now);
        let heard = self.heard();
        let w = heard.iter().find(|h| h.kind == PacketKind::Welcome)?;
        h.session = w.session;
        h.dst = w.src;
        h.to_vtag = w.vtag;
        h.kind = PacketKind::Ping;
        self.open = Some(h);
        self.next_psn = 1;
        self.messages.clear();
        self.received = 0;
        Some(h)
    }

    fn post(&mut self) {
        let len = (self.script.byte() as usize * 12).min(LONGEST);
        let kind = self.script.below(3);
        let mut memory = FencedBuf::new(if kind == 0 {
            len.min(3 * SEGMENT - 8)
        } else {
            len
        });
        let user = memory.mem();
        let id = self.next_id;
        self.next_id += 1;
        let done = Completion {
            context: id as usize,
            remote: RemoteAddr {
                addr: self.script.length(),
                key: 4,
            },
            ..Completion::default()
        };
        let imm = self.script.flip().then_some(6);
        let to = self.peer_addr;
        let posted = match kind {
            0 => self
                .engine
                .send(done, &to, b"header", Payload::User(&user), self.now),
            1 => self
                .engine
                .write(done, &to, Payload::User(&user), imm, self.now),
            _ => self.engine.read(done, &to, user, self.now),
        };
        match posted {
            Ok(()) => self.buffers.lend(id, memory, kind == 2),
            Err(e) => assert_eq!(e, FI_EAGAIN, "posting fails"),
        }
        assert!(self.buffers.count() <= DEPTH, "more than was asked for");
        self.engine.ring(self.now);
    }

    /// A sequence number: mostly the next, or an old or far one.
    fn psn(&mut self) -> u32 {
        match self.script.below(4) {
            0 => self.script.below(64),
            1 => self.script.length() as u32,
            _ => {
                self.next_psn = self.next_psn.wrapping_add(1);
                self.next_psn - 1
            }
        }
    }

    /// Key and address of a region, or wrong ones.
    fn place(&mut self) -> (u64, u64) {
        let (key, at) = match self.script.below(4) {
            0 => (self.read.key, self.read.memory.addr()),
            1 => (self.script.length(), self.write.memory.addr()),
            _ => (self.write.key, self.write.memory.addr()),
        };
        let off = match self.script.flip() {
            true => self.script.length(),
            false => u64::from(self.script.byte()) * 17,
        };
        (key, at.wrapping_add(off))
    }

    fn attack(&mut self) {
        let Some(open) = self.open else {
            return self.connect();
        };
        let (s, mut payload) = (&mut self.script, Vec::new());
        let len = s.byte() as usize * 2;
        payload.resize(len, s.byte());
        let kind = match self.script.below(12) {
            0 => PacketKind::Send,
            1 | 2 => {
                let (key, addr) = self.place();
                let s = &mut self.script;
                let (op, total) = (s.below(4), s.length() as u32);
                let imm = s.flip().then_some(1);
                PacketKind::Write {
                    op,
                    key,
                    addr,
                    total,
                    imm,
                }
            }
            3 => {
                let (key, addr) = self.place();
                let (id, len) = (self.script.length(), self.script.length() as u32);
                PacketKind::ReadReq { id, key, addr, len }
            }
            4 | 5 => {
                for h in self.heard() {
                    if let PacketKind::ReadReq { id, .. } = h.kind {
                        self.asked.push(id);
                    }
                }
                let s = &mut self.script;
                // Mostly the id of a recent read.
                let back = s.below(4) as usize;
                let asked = self.asked.iter().rev().nth(back).copied();
                let id = asked.filter(|_| !s.one_in(8)).unwrap_or_else(|| s.length());
                let off = match s.flip() {
                    true => s.length(),
                    false => u64::from(s.byte()) * 8,
                };
                PacketKind::ReadResp { id, off }
            }
            6 | 7 => {
                let s = &mut self.script;
                let (words, errs) = (s.below(MAX_WORDS as u32 + 1), s.below(MAX_ERRS as u32 + 1));
                payload = (0..8 * (words + errs)).map(|_| s.byte()).collect();
                PacketKind::Ack {
                    bytes: s.length() as u32,
                    packets: s.length() as u16,
                    words: words as u8,
                    errs: errs as u8,
                    bye: s.one_in(50),
                }
            }
            8 => PacketKind::Ping,
            9 | 10 => {
                let s = &mut self.script;
                PacketKind::SendPart {
                    op: s.below(80),
                    total: s.below(4) * SEGMENT as u32,
                    off: s.below(4) * SEGMENT as u32 / 2,
                }
            }
            _ if self.script.one_in(20) => PacketKind::Reset,
            _ => PacketKind::Welcome,
        };
        let ack = self.script.flip().then(|| self.script.length() as u32);
        let una = match self.script.one_in(4) {
            true => self.script.length() as u32,
            false => 0,
        };
        let h = PacketHead {
            kind,
            psn: self.psn(),
            una,
            ack,
            ..open
        };
        if matches!(kind, PacketKind::Send | PacketKind::SendPart { .. }) {
            self.messages.insert(h.psn);
        }
        self.inject(h, &payload);
    }

    fn step(&mut self) {
        match self.script.below(16) {
            0 | 1 => self.post(),
            2 | 3 => self.poll(),
            4 => {
                // Milliseconds, or a good part of the time-out.
                let ms = u64::from(self.script.byte());
                self.now += ms * 1_000_000;
                self.poll();
            }
            5 if self.script.one_in(30) => {
                assert!(self.mem.remove(self.write.key).is_ok());
                let new = ExposedRegion::new(&self.mem, FI_REMOTE_WRITE);
                let old = core::mem::replace(&mut self.write, new);
                self.buffers.retire(old.memory);
            }
            6 if self.script.one_in(60) => self.connect(),
            _ => self.attack(),
        }
        assert!(
            self.read.memory.is_untouched(),
            "a store to a region for reading"
        );
        self.write.memory.check("a region");
        self.read.memory.check("a region");
        assert!(
            self.engine.peer_count() <= 2,
            "entries of peers that are not there"
        );
    }
}

/// Runs a script. Panics where an invariant of the module text does not hold.
pub fn run(bytes: &[u8]) {
    let Some(mut w) = EngineHarness::new(bytes) else {
        return;
    };
    w.connect();
    while !w.script.over() {
        w.step();
    }
    // The peer is silent from now on; probes of idle sessions, too, go unanswered.
    for _ in 0..100 {
        w.now += TIMEOUT / 5;
        w.poll();
    }
    w.buffers.check_all_ended();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::script;

    fn resident_kib() -> u64 {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages = text.split_whitespace().nth(1).unwrap();
        4 * pages.parse::<u64>().unwrap()
    }

    /// Each peer opens a session, sends a message, and closes with BYE or vanishes. From half of
    /// them on, as many are found out to have vanished as come.
    #[test]
    fn sessions_of_many_peers_leave_no_entries() {
        let count = std::env::var("FABRIC_PEERS").map_or(20_000, |n| n.parse().unwrap());
        let mut w = EngineHarness::new(&[]).unwrap();
        let (mut before, mut entries) = (0, 0);
        for i in 0..count {
            let [_, a, b, c] = u32::to_be_bytes(i);
            w.peer = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, a, b, c)), 1);
            w.now += 1_000_000;
            w.connect();
            let mut h = w.open.unwrap();
            h.kind = PacketKind::Send;
            h.psn = 1;
            w.messages.insert(1);
            w.inject(h, b"hello");
            assert_eq!(w.received, 1);
            if i % 2 == 0 {
                h.kind = PacketKind::Ack {
                    bytes: 1000,
                    packets: 10,
                    words: 0,
                    errs: 0,
                    bye: true,
                };
                w.inject(h, b"");
            }
            if i % 16 == 0 {
                w.poll();
            }
            if i == count / 2 {
                (before, entries) = (resident_kib(), w.engine.entries());
            }
        }
        let after = resident_kib();
        println!("{count} peers: {before} KiB after half, {after} KiB after all");
        let now = w.engine.entries();
        assert!(now < entries + 100, "{entries} entries, then {now}");
        // Probes detect the peers that vanished without BYE.
        for _ in 0..150 {
            w.now += TIMEOUT / 5;
            w.poll();
        }
        assert_eq!(w.engine.entries(), 0);
    }

    /// Two HELLOs cross. A datagram of the session that is not used comes late, when the peer has
    /// taken the other one.
    #[test]
    fn a_late_datagram_of_a_crossed_handshake_ends_no_session() {
        let mut w = EngineHarness::new(&[]).unwrap();
        // The session of the smaller address is used, the engine's.
        w.peer.set_port(u16::MAX);
        w.peer_addr.qpn = u16::MAX;
        assert!(w.engine.me.qpn < u16::MAX);
        w.post();
        w.engine.ring(w.now);
        let hello = w.heard()[0];
        assert_eq!(hello.kind, PacketKind::Hello);
        let ours = PacketHead {
            session: 500,
            dst: hello.src,
            src: 6,
            psn: 0,
            una: 0,
            ack: None,
            src_qkey: w.peer_addr.qkey,
            to_vtag: hello.vtag,
            vtag: 3,
            kind: PacketKind::Welcome,
        };
        w.inject(ours, b"");
        // The second answer within a millisecond: the numbers of sessions are ahead of the clock.
        let late = w.call().and_then(|_| w.call()).unwrap();
        for (session, psn) in [("used", 0), ("late", 0), ("used", 1)] {
            let h = match session {
                "used" => PacketHead { psn, ..ours },
                _ => late,
            };
            w.messages.insert(psn);
            let kind = PacketKind::Send;
            w.inject(PacketHead { kind, ..h }, b"hello");
        }
        assert_eq!((w.received, w.engine.peer_count()), (2, 1));
    }

    /// The time for which this process was stopped does not count against its peers.
    #[test]
    fn a_pause_of_this_process_ends_no_session() {
        let mut w = EngineHarness::new(&[]).unwrap();
        w.connect();
        w.poll();
        w.post();
        w.now += 3 * TIMEOUT;
        w.poll();
        assert_eq!(w.engine.peer_count(), 1);
        for _ in 0..10 {
            w.now += TIMEOUT / 5;
            w.poll();
        }
        assert_eq!(w.engine.peer_count(), 0);
        w.buffers.check_all_ended();
    }

    #[test]
    fn a_hostile_peer_breaks_no_invariant() {
        let failed = script::failing(300, run);
        assert!(failed.is_empty(), "seeds {failed:?}");
    }
}
