//! What the protocol sees of the world: this endpoint's queue pair, buffers and completion queues.

use super::peers::Peers;
use super::{Bound, UserOp, WR_CONTROL, WR_RMA, WR_TX};
use crate::core::slab::Slab;
use crate::device::soft::SoftQp;
use crate::device::{Payload, QpAddr, QueuePair, Remote, Status};
use crate::proto::{Body, Failure, PeerId, Port, Received, Token};
use crate::prov::efa::av::Av;
use crate::prov::efa::cntr::Cntr;
use crate::prov::efa::cq::{Cq, Entry, ErrEntry};
use crate::types::*;

/// Borrowed parts of an endpoint and its domain, for the length of one call.
pub struct EpPort<'a> {
    pub qp: &'a mut SoftQp,
    pub peers: &'a mut Peers,
    pub ops: &'a mut Slab<UserOp>,
    pub cqs: &'a mut Slab<Cq>,
    pub cntrs: &'a mut Slab<Cntr>,
    pub av: Option<&'a Av>,
    pub tx: Option<Bound>,
    pub rx: Option<Bound>,
    pub to_cntrs: [Option<u32>; 6],
    /// Data of the operation being posted, when it is to be copied.
    pub inject: Option<&'a [u8]>,
    /// The application asked for sources (FI_SOURCE).
    pub source: bool,
}

/// Index into the endpoint's counters for the operation that a completion's flags describe.
fn cntr_index(flags: u64) -> usize {
    if flags & FI_RECV != 0 {
        1
    } else if flags & FI_WRITE != 0 {
        2
    } else if flags & FI_READ != 0 {
        3
    } else {
        0
    }
}

impl EpPort<'_> {
    fn count(&mut self, at: usize, len: usize, ok: bool) {
        let id = self.to_cntrs.get(at).copied().flatten();
        if let Some(c) = id.and_then(|c| self.cntrs.get_mut(c)) {
            if ok {
                c.count(len);
            } else {
                c.add_error(1);
            }
        }
    }

    fn fi_addr(&self, p: PeerId) -> fi_addr_t {
        match (self.av, self.peers.addr(p)) {
            (Some(av), Some(a)) => av.reverse(a),
            _ => FI_ADDR_NOTAVAIL,
        }
    }

    /// What went wrong, for people: operation, peer, memory, likely cause.
    fn explain(&self, op: &UserOp, peer: PeerId, f: &Failure) -> String {
        let what = match (
            op.flags & (FI_RECV | FI_READ | FI_WRITE),
            op.flags & FI_TAGGED != 0,
        ) {
            (FI_RECV, true) => "tagged receive",
            (FI_RECV, false) => "receive",
            (FI_READ, _) => "RMA read",
            (FI_WRITE, _) => "RMA write",
            (_, true) => "tagged send",
            (_, false) => "send",
        };
        let who = self
            .peers
            .addr(peer)
            .map_or("an unknown peer".into(), |a| a.to_string());
        let cause = match Status::from_code(i32::from(f.status)) {
            Some(s) if s != Status::Ok => s.text().to_string(),
            _ => crate::core::errno::text(f.errno),
        };
        if op.flags & FI_RMA != 0 {
            format!(
                "{what} of {} bytes, peer {who}, remote address {:#x}, key {:#x}: {cause}",
                op.len, op.raddr, op.key
            )
        } else {
            format!("{what} of {} bytes, peer {who}: {cause}", op.len)
        }
    }

    /// Ends a transmit-side operation.
    pub fn end(&mut self, op: UserOp, result: Result<(), Failure>) {
        let len = op.len;
        self.count(cntr_index(op.flags), len, result.is_ok());
        let Some(cq) = self.tx.map(|b| b.cq) else {
            return;
        };
        let entry = Entry {
            context: op.context,
            flags: op.flags,
            len,
            src: FI_ADDR_NOTAVAIL,
            ..Entry::default()
        };
        match result {
            Ok(()) => {
                if let Some(q) = self.cqs.get_mut(cq).filter(|_| op.report) {
                    q.push(entry);
                }
            }
            Err(f) => {
                let text = self.explain(&op, op.peer, &f);
                let src = self.fi_addr(op.peer);
                if let Some(q) = self.cqs.get_mut(cq) {
                    q.push_error(ErrEntry {
                        entry: Entry { src, ..entry },
                        err: f.errno,
                        prov_errno: i32::from(f.status),
                        text,
                        ..ErrEntry::default()
                    });
                }
            }
        }
    }

    /// A peer has written with immediate data.
    pub fn remote_write(&mut self, from: &QpAddr, imm: u32, len: u32) {
        self.count(4, len as usize, true);
        let src = match self.av {
            Some(av) if self.source => av.reverse(from),
            _ => FI_ADDR_NOTAVAIL,
        };
        if let Some(q) = self.rx.and_then(|b| self.cqs.get_mut(b.cq)) {
            q.push(Entry {
                flags: FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA,
                len: len as usize,
                data: u64::from(imm),
                src,
                ..Entry::default()
            });
        }
    }

    /// One adapter request of an RMA operation is done.
    pub fn rma_done(&mut self, ctx: u32, failed: Option<Failure>, waiting: &mut Vec<u32>) {
        let Some(op) = self.ops.get_mut(ctx) else {
            return;
        };
        op.parts -= 1;
        if op.failed.is_none() {
            op.failed = failed;
        }
        if op.parts > 0 {
            return;
        }
        if op.failed.is_none() && op.late_imm.is_some() {
            waiting.push(ctx);
            return;
        }
        if let Some(op) = self.ops.remove(ctx) {
            let result = op.failed.map_or(Ok(()), Err);
            self.end(op, result);
        }
    }

    /// Posts the immediate data of a write that needed several requests.
    pub fn post_late_imm(&mut self, ctx: u32) -> bool {
        let Some(op) = self.ops.get_mut(ctx) else {
            return true;
        };
        let (Some(imm), Some(to)) = (op.late_imm, self.peers.addr(op.peer)) else {
            return true;
        };
        let remote = Remote {
            to: *to,
            addr: op.raddr,
            key: op.key,
        };
        let r = self.qp.post_write(
            WR_RMA | u64::from(ctx),
            Payload::Copy(&[]),
            &remote,
            Some(imm),
        );
        if r.is_err() {
            return false;
        }
        op.late_imm = None;
        op.parts = 1;
        true
    }
}

impl Port for EpPort<'_> {
    #[inline]
    fn room(&self) -> bool {
        self.qp.room()
    }

    #[inline]
    fn send(&mut self, to: PeerId, head: &[u8], body: Option<Body>, token: Token) -> bool {
        let Some(addr) = self.peers.addr(to) else {
            return false;
        };
        let wr_id = match token {
            Token::Tx(id) => WR_TX | u64::from(id),
            Token::Control => WR_CONTROL,
        };
        let payload = match (body, self.inject) {
            (None, _) => Payload::Copy(&[]),
            (Some(b), Some(data)) => {
                let at = b.off as usize;
                Payload::Copy(data.get(at..at + b.len).unwrap_or(&[]))
            }
            (Some(b), None) => match self.ops.get(b.ctx) {
                Some(op) => Payload::User(op.mem.part(b.off as usize, b.len)),
                None => return false,
            },
        };
        self.qp.post_send(wr_id, addr, head, payload).is_ok()
    }

    #[inline]
    fn store(&mut self, ctx: u32, off: u64, bytes: &[u8]) {
        if let Some(op) = self.ops.get(ctx) {
            op.mem.store(off as usize, bytes);
        }
    }

    fn sent(&mut self, ctx: u32, result: Result<(), Failure>) {
        if let Some(op) = self.ops.remove(ctx) {
            self.end(op, result);
        }
    }

    fn received(&mut self, ctx: u32, msg: Received, result: Result<(), Failure>) {
        let Some(op) = self.ops.remove(ctx) else {
            return;
        };
        let room = op.mem.len();
        let len = usize::try_from(msg.len).unwrap_or(usize::MAX).min(room);
        self.count(1, len, result.is_ok());
        let src = if self.source {
            self.fi_addr(msg.from)
        } else {
            FI_ADDR_NOTAVAIL
        };
        let entry = Entry {
            context: op.context,
            flags: op.flags
                | if msg.cq_data.is_some() {
                    FI_REMOTE_CQ_DATA
                } else {
                    0
                },
            len,
            buf: op.mem.addr(),
            data: msg.cq_data.unwrap_or(0),
            tag: msg.tag,
            src,
        };
        let Some(cq) = self.rx.map(|b| b.cq) else {
            return;
        };
        match result {
            Ok(()) => {
                if let Some(q) = self.cqs.get_mut(cq).filter(|_| op.report) {
                    q.push(entry);
                }
            }
            Err(f) => {
                let olen = usize::try_from(msg.len)
                    .unwrap_or(usize::MAX)
                    .saturating_sub(room);
                let mut text = self.explain(&op, msg.from, &f);
                if f.errno == FI_ETRUNC {
                    text = format!(
                        "{text}: the message has {} bytes, the buffer {room}",
                        msg.len
                    );
                }
                if let Some(q) = self.cqs.get_mut(cq) {
                    q.push_error(ErrEntry {
                        entry,
                        olen,
                        err: f.errno,
                        prov_errno: i32::from(f.status),
                        text,
                    });
                }
            }
        }
    }

    fn expect(&mut self, peer: PeerId, on: bool) {
        if let Some(a) = self.peers.addr(peer) {
            self.qp.expect(a, on);
        }
    }
}
