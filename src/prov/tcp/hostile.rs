//! A peer that sends arbitrary bytes on a connection: the harness of the fuzz target `tcp_hostile`
//! and of a seeded test.
//!
//! A byte string is a script ([`Script`]): it chooses what our side does and which bytes arrive,
//! headers that are almost right among them. Invariants:
//!
//! - every operation of ours ends once, at the latest with the connection;
//! - nothing is stored to what is sent, to a receive or the destination of a read after its end, to
//!   a region that permits reading only or is closed, nor beside any memory.

use super::conn::{self, consume, end, post, refuse, Conn, ConnState, Then};
use super::ep::TcpEp;
use super::msg::MsgState;
use super::state::{TcpState, TxOp};
use super::wire::{emit, ByteOrder, Head, XnetOp, ACK, DELIVERY_COMPLETE, HEAD_MAX};
use super::{info, ops};
use crate::core::iovs::{Iovs, RmaIov};
use crate::core::script::Script;
use crate::device::mem_table::{MemTable, Naming};
use crate::device::poller::Poller;
use crate::device::stream::{Stream, StreamRead};
use crate::hmem::fenced::{FencedBuf, LentBuffers};
use crate::hmem::InjectBuf;
use crate::hmem::UserMem;
use crate::prov::contract::{Common, MsgReq, Poster, RecvReq, RmaReq, SendData};
use crate::prov::reports::cq::Cq;
use crate::transport::{Completion, Report};
use crate::types::*;
use std::collections::HashSet;
use std::time::Instant;

/// Steps of one script: longer ones find nothing that shorter ones do not.
const STEPS: u32 = 300;
/// Bytes of a region.
const REGION: usize = 512;
/// Contexts of peeks and of what they claim.
const CLAIMS: u64 = 1 << 40;

struct Region {
    key: u64,
    memory: FencedBuf,
    writable: bool,
}

struct Harness {
    s: TcpState,
    ep: u32,
    conn: u32,
    /// The other end of the connection's socket.
    far: Stream,
    order: ByteOrder,
    script: Script,
    buffers: LentBuffers,
    regions: Vec<Region>,
    /// Receives for many messages: they have an entry for each, and end with FI_MULTI_RECV.
    multi: HashSet<u64>,
    next: u64,
}

fn common(context: u64, flags: Option<u64>) -> Common {
    Common {
        context: context as usize,
        flags,
        ..Common::default()
    }
}

/// A connected endpoint, and the other end of its connection's socket.
pub(super) struct Connected {
    pub s: TcpState,
    pub ep: u32,
    pub conn: u32,
    pub far: Stream,
}

/// Bytes of messages without a receive that are kept.
const SAVED_TOTAL: usize = 256 << 20;

/// By `near` and `far`, which are connected. `None` where the system gives no descriptors.
pub(super) fn connected(order: ByteOrder, (near, far): (Stream, Stream)) -> Option<Connected> {
    let naming = Naming {
        own_keys: true,
        ..Naming::default()
    };
    let mut s = TcpState::new(Poller::new().ok()?, MemTable::new(naming), SAVED_TOTAL);
    let cq = s.cqs.insert(Cq::new(64, FI_WAIT_NONE).ok()?);
    let at = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
    let mut e = TcpEp::at(&info::rdm(), at, None, Some(MsgState::New));
    e.bind_cq(cq, FI_TRANSMIT | FI_RECV).ok()?;
    e.rxq = s.rxqs.insert(Default::default());
    e.enabled = true;
    let ep = s.eps.insert(e);
    let mut c = Conn::new(ep, ConnState::Open, Some(near), Instant::now());
    c.set_order(order);
    c.peer = s.peers.hold_addr(at);
    let conn = s.conns.insert(c);
    s.eps.get_mut(ep)?.msg = Some(MsgState::Conn(conn, Vec::new()));
    Some(Connected { s, ep, conn, far })
}

impl Harness {
    /// `None` where the system gives no descriptors.
    fn new(bytes: &[u8]) -> Option<Harness> {
        let mut script = Script::new(bytes);
        let order = match script.flip() {
            true => ByteOrder::Host,
            false => ByteOrder::Network,
        };
        let Connected {
            mut s,
            ep,
            conn,
            far,
        } = connected(order, Stream::pair().ok()?)?;
        let e = s.eps.get_mut(ep)?;
        (e.tx_flags, e.rx_flags) = (FI_COMPLETION, FI_COMPLETION);
        s.conns.get_mut(conn)?.set_announces();
        let mut regions = Vec::new();
        for (key, access) in [(1, FI_REMOTE_READ), (2, FI_REMOTE_READ | FI_REMOTE_WRITE)] {
            let mut memory = FencedBuf::new(REGION);
            s.mem.insert(memory.mem(), access, Some(key)).ok()?;
            let writable = access & FI_REMOTE_WRITE != 0;
            regions.push(Region {
                key,
                memory,
                writable,
            });
        }
        Some(Harness {
            s,
            ep,
            conn,
            far,
            order,
            script,
            buffers: LentBuffers::default(),
            regions,
            multi: HashSet::new(),
            next: 1,
        })
    }

    /// A buffer for an operation, and its number.
    fn buffer(&mut self) -> (u64, FencedBuf) {
        let len = match self.script.below(4) {
            0 => 0,
            1 => self.script.below(16) as usize,
            2 => self.script.below(400) as usize,
            _ => 5000 + self.script.below(3000) as usize,
        };
        self.next += 1;
        (self.next, FencedBuf::new(len))
    }

    /// Lends the buffer if the operation has begun.
    fn begun(&mut self, id: u64, memory: FencedBuf, stores: bool, r: crate::core::Result<()>) {
        match r {
            Ok(()) => self.buffers.lend(id, memory, stores),
            Err(_) => assert!(memory.is_untouched(), "a failed call has stored"),
        }
        self.ended();
    }

    /// Takes what has ended from the queue.
    fn ended(&mut self) {
        let Some(cq) = self.s.cqs.get_mut(0) else {
            return;
        };
        let mut done = Vec::new();
        loop {
            let list = std::cell::RefCell::new(&mut done);
            let n = cq.take(16, |_, e| {
                list.borrow_mut().push((e.context as u64, e.flags))
            });
            if n > 0 {
                continue;
            }
            match cq.take_error() {
                Some(e) => done.push((e.entry.context as u64, e.entry.flags)),
                None => break,
            }
        }
        for (id, flags) in done {
            let goes_on = self.multi.contains(&id) && flags & FI_MULTI_RECV == 0;
            // 0: a peer's write with data.
            if id != 0 && !goes_on {
                self.buffers.end(id);
            }
        }
    }

    fn tag(&mut self) -> Option<u64> {
        self.script.flip().then(|| u64::from(self.script.below(3)))
    }

    fn receive(&mut self) {
        let (id, mut memory) = self.buffer();
        let flags = self.script.one_in(4).then_some(FI_MULTI_RECV);
        let r = RecvReq {
            mem: memory.mem(),
            src: FI_ADDR_UNSPEC,
            tag: self.tag().map(|t| (t, u64::from(self.script.below(2)))),
            common: common(id, flags),
        };
        if flags.is_some() && r.tag.is_none() {
            self.multi.insert(id);
        }
        let posted = ops::recv(&mut self.s, Poster::Ep(self.ep), &r);
        self.begun(id, memory, true, posted);
    }

    /// Peeks; what is claimed is then received, or discarded.
    fn peek(&mut self) {
        self.next += 1;
        let id = CLAIMS | self.next;
        let tag = self.tag().map(|t| (t, 3));
        let asked = match self.script.below(3) {
            0 => FI_PEEK,
            1 => FI_PEEK | FI_DISCARD,
            _ => FI_PEEK | FI_CLAIM,
        };
        let mut r = RecvReq {
            mem: UserMem::EMPTY,
            src: FI_ADDR_UNSPEC,
            tag,
            common: common(id, Some(asked)),
        };
        self.buffers.lend(id, FencedBuf::new(0), true);
        let _ = ops::recv(&mut self.s, Poster::Ep(self.ep), &r);
        self.ended();
        if asked & FI_CLAIM != 0 {
            let (_, mut memory) = self.buffer();
            r.mem = memory.mem();
            let drop = self.script.flip();
            r.common.flags = Some(if drop {
                FI_CLAIM | FI_DISCARD
            } else {
                FI_CLAIM
            });
            let claimed = ops::recv(&mut self.s, Poster::Ep(self.ep), &r);
            self.begun(id, memory, true, claimed);
        }
    }

    fn send(&mut self) {
        let (id, mut memory) = self.buffer();
        let flags = self.script.flip().then_some(FI_DELIVERY_COMPLETE);
        let mem = memory.mem();
        let common = common(id, flags);
        if self.script.flip() {
            let r = MsgReq {
                data: SendData::User(mem),
                to: 0,
                tag: self.tag(),
                cq_data: self.script.flip().then_some(7),
                common,
            };
            let sent = ops::send(&mut self.s, self.ep, &r);
            return self.begun(id, memory, false, sent);
        }
        let write = self.script.flip();
        let r = RmaReq {
            data: SendData::User(mem),
            peer: 0,
            addr: 0x1000,
            key: 5,
            write,
            cq_data: None,
            common,
        };
        let begun = ops::rma(&mut self.s, self.ep, &r);
        self.begun(id, memory, !write, begun);
    }

    /// A message that the peer has to ask for.
    fn announce(&mut self) {
        let (id, mut memory) = self.buffer();
        let Some(c) = self.s.conns.get_mut(self.conn) else {
            return;
        };
        let Some(Some(number)) = c.next_announcement() else {
            return;
        };
        let mem = memory.mem();
        let op = TxOp {
            ep: self.ep,
            done: Completion {
                context: id as usize,
                len: mem.len(),
                flags: (FI_SEND | FI_TAGGED) as u32,
                report: Report::Entry,
                ..Completion::default()
            },
            confirmed: false,
            silent: false,
        };
        c.announced(number, op, mem);
        let mut h = Head::new(XnetOp::TaggedRts, 0);
        (h.op_data, h.announced) = (number, mem.len() as u64);
        self.buffers.lend(id, memory, false);
        post(
            &mut self.s,
            self.conn,
            &h,
            &SendData::Inject(InjectBuf::default()),
            Then::Nothing,
        );
        self.ended();
    }

    /// Receives bytes from the peer.
    fn come(&mut self, bytes: &[u8]) {
        // A connection that holds a message is not read.
        let held = self.s.conns.get(self.conn).is_none_or(|c| c.held());
        if held {
            return;
        }
        if let Err(why) = consume(&mut self.s, self.conn, bytes) {
            refuse(&mut self.s, self.conn, why);
        }
        self.ended();
    }

    /// A header that is almost right, and its payload, whole or in part.
    fn header(&mut self) {
        use XnetOp::*;
        let all = [Msg, Tagged, ReadReq, ReadRsp, Write, TaggedRts, Cts, Data];
        let op = all[self.script.below(8) as usize];
        let payload = match self.script.below(8) {
            0..=2 => self.script.below(40),
            3 | 4 => self.script.below(600),
            5 => 5000 + self.script.below(3000),
            _ => 0,
        };
        let mut h = Head::new(op, u64::from(payload));
        h.op_data = self.script.below(4) as u8;
        if op == Msg && self.script.one_in(4) {
            (h.op_data, h.payload) = (ACK, 0);
        }
        if self.script.one_in(3) {
            h.flags |= DELIVERY_COMPLETE;
        }
        h.cq_data = self.script.one_in(4).then_some(9);
        h.tag = u64::from(self.script.below(3));
        h.announced = u64::from(self.script.below(600));
        if self.script.one_in(20) {
            h.payload = self.script.length() >> 1;
            h.announced = self.script.length() >> 1;
        }
        if matches!(op, ReadReq | Write) {
            let mut list = Vec::new();
            let count = 1 + self.script.below(3) as usize;
            for _ in 0..count {
                let r = self.script.below(3) as usize;
                let at = self.regions.get(r).map_or(0x1000, |r| r.memory.addr());
                let off = u64::from(self.script.below(REGION as u32 + 9));
                let len = if self.script.one_in(12) {
                    self.script.length() >> 1
                } else {
                    u64::from(self.script.below(64))
                };
                list.push(RmaIov {
                    addr: at.wrapping_add(off),
                    len,
                    key: r as u64 + 1,
                });
            }
            h.iovs = Iovs::new(&list).unwrap_or_default();
            let whole = h.iovs.total().unwrap_or(u64::MAX).min(u64::MAX >> 1);
            h.payload = if op == Write { whole } else { 0 };
        }
        if matches!(op, TaggedRts | Cts) && !self.script.one_in(10) {
            h.payload = 0;
        }
        let mut head = [0; HEAD_MAX];
        let n = emit(&h, self.order, &mut head);
        let mut bytes = head.get(..n).unwrap_or(&[]).to_vec();
        let follows = usize::try_from(h.payload).unwrap_or(usize::MAX).min(9000);
        let follows = if self.script.one_in(6) {
            follows / 2
        } else {
            follows
        };
        bytes.resize(n + follows, 0x77);
        if self.script.one_in(15) {
            let at = self.script.below(n as u32) as usize;
            bytes[at] = self.script.byte();
        }
        // In one piece, or in two.
        let cut = self.script.below(bytes.len() as u32 + 1) as usize;
        let (a, b) = bytes.split_at(if self.script.flip() { cut } else { 0 });
        self.come(a);
        self.come(b);
    }

    fn step(&mut self) {
        match self.script.below(16) {
            0 | 1 => self.receive(),
            2 => self.peek(),
            3 | 4 => self.send(),
            5 => self.announce(),
            6 => {
                let n = self.script.below(40) as usize;
                let bytes: Vec<u8> = (0..n).map(|_| self.script.byte()).collect();
                self.come(&bytes);
            }
            7 => {
                let mut room = [0; 4096];
                while let Ok(StreamRead::Bytes(_)) = self.far.recv(&UserMem::EMPTY, &mut room) {}
                conn::flush(&mut self.s, self.conn);
                self.ended();
            }
            8 if self.script.one_in(8) => {
                let at = self.script.below(2) as usize;
                if at < self.regions.len() {
                    let r = self.regions.remove(at);
                    let _ = self.s.mem.remove(r.key);
                    conn::region_closed(&mut self.s, r.key);
                    self.check(&r);
                    self.buffers.retire(r.memory);
                }
            }
            9 => {
                let context = self.script.below(self.next as u32 + 1) as usize;
                let _ = ops::cancel(&mut self.s, Poster::Ep(self.ep), context);
                self.ended();
            }
            _ => self.header(),
        }
    }

    fn check(&self, r: &Region) {
        r.memory.check("a region");
        assert!(
            r.writable || r.memory.is_untouched(),
            "a store to what may only be read"
        );
    }
}

/// Runs a script. Panics when an invariant does not hold.
pub fn run(script: &[u8]) {
    let Some(mut h) = Harness::new(script) else {
        return;
    };
    for _ in 0..STEPS {
        if h.script.over() || h.s.conns.get(h.conn).is_none() {
            break;
        }
        h.step();
    }
    end(&mut h.s, h.conn, FI_ECONNRESET, "the script is over");
    h.ended();
    h.regions.iter().for_each(|r| h.check(r));
    h.buffers.check_all_ended();
    assert!(h.s.saved.iter().all(|(_, m)| m.have == m.bytes.len()));
}

#[cfg(test)]
mod tests {
    use crate::core::script;

    #[test]
    fn a_peer_that_sends_what_it_likes_breaks_no_invariant() {
        let failed = script::failing(3000, super::run);
        assert!(failed.is_empty(), "seeds {failed:?}");
    }
}
