//! The [`Port`] of the harness: checks every effect of the endpoint (see `hostile`).

use super::{KEY, MTU, REGION_LEN};
use crate::core::script::Script;
use crate::proto::*;
use crate::types::*;
use crate::wire::{Repr, Rta};
use std::collections::HashMap;

/// What the memory of an operation is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Data on its way out: never stored to.
    Source,
    /// A receive, a read, the result of an atomic.
    Destination,
    /// A region that the peer writes, or reads.
    Target { write: bool },
}

#[derive(Debug)]
pub(super) struct AppMemory {
    pub used: Use,
    pub len: u64,
    /// Reads of the adapter that write here.
    pub reads: u32,
}

/// A packet or read that the adapter has not finished.
pub(super) enum PostedKind {
    Packet(u32),
    Read { id: u32, into: Body },
}

pub(super) struct HostilePort {
    pub memory: HashMap<u32, AppMemory>,
    next: u32,
    pub posted: Vec<PostedKind>,
    /// Calls of [`Port::expect`] that are not taken back.
    pub awaited: i64,
    pub completions: u64,
    /// Packets that say that a read is over (EOR).
    pub eors: u32,
    pub script: Script,
}

impl HostilePort {
    /// A port without operations.
    pub(super) fn new(script: Script) -> HostilePort {
        HostilePort {
            memory: HashMap::new(),
            next: 0,
            posted: Vec::new(),
            awaited: 0,
            completions: 0,
            eors: 0,
            script,
        }
    }

    /// The number of an operation with memory of this use and length.
    pub(super) fn add(&mut self, used: Use, len: u64) -> u32 {
        self.next += 1;
        let reads = 0;
        self.memory
            .insert(self.next, AppMemory { used, len, reads });
        self.next
    }

    fn complete(&mut self, ctx: u32) {
        if ctx == NO_CTX {
            return;
        }
        let m = self.memory.remove(&ctx);
        let m = m.unwrap_or_else(|| panic!("operation {ctx} completes twice"));
        assert_eq!(m.reads, 0, "operation {ctx} completes with reads under way");
        self.completions += 1;
    }
}

impl Port for HostilePort {
    fn room(&self) -> bool {
        self.posted.len() < 64
    }

    fn send(&mut self, _to: PeerId, head: &[u8], load: PacketPayload, token: Token) -> bool {
        if !self.room() || self.script.byte() == 1 {
            return false;
        }
        let len = match load {
            PacketPayload::None => 0,
            PacketPayload::Bytes(b) => b.len(),
            PacketPayload::Body(b) => {
                let m = self.memory.get(&b.ctx);
                let m =
                    m.unwrap_or_else(|| panic!("a packet of operation {} after its end", b.ctx));
                assert!(
                    b.off + b.len as u64 <= m.len,
                    "a packet beyond its operation's memory"
                );
                assert!(m.used != Use::Destination && m.used != Use::Target { write: true });
                b.len
            }
        };
        assert!(head.len() + len <= MTU, "a packet longer than the MTU");
        if let Some(id) = token.tx() {
            self.posted.push(PostedKind::Packet(id));
        }
        let packet = Repr::parse(head).map(|(r, _)| r);
        self.eors += u32::from(matches!(packet, Some(Repr::Eor { .. })));
        true
    }

    fn store(&mut self, ctx: u32, off: u64, bytes: &[u8]) {
        if ctx == NO_CTX {
            return;
        }
        let m = self.memory.get(&ctx);
        let m = m.unwrap_or_else(|| panic!("a store to operation {ctx} after its end"));
        assert!(
            matches!(m.used, Use::Destination | Use::Target { write: true }),
            "a store to memory that is only read: {m:?}"
        );
        let end = off.checked_add(bytes.len() as u64);
        assert!(
            end.is_some_and(|e| e <= m.len),
            "a store beyond the operation's memory"
        );
    }

    fn sent(&mut self, ctx: u32, _result: Result<(), Failure>) {
        self.complete(ctx);
    }

    fn adopt(&mut self, recv: RecvEntryMatch) -> u32 {
        recv.what.context as u32
    }

    fn received(&mut self, ctx: u32, msg: Received, _result: Result<(), Failure>) {
        if !msg.stays {
            self.complete(ctx);
        } else {
            assert!(self.memory.contains_key(&ctx));
        }
    }

    fn expect(&mut self, _peer: PeerId, on: bool) {
        self.awaited += if on { 1 } else { -1 };
        assert!(self.awaited >= 0, "awaited answers below zero");
    }

    fn expose(&mut self, ctx: u32) -> Option<Iovs> {
        let len = self.memory.get(&ctx)?.len;
        let piece = RmaIov {
            addr: 0,
            len,
            key: KEY,
        };
        Iovs::new(&[piece])
    }

    fn read(&mut self, _from: PeerId, _piece: RmaIov, into: Body, id: u32) -> ReadPost {
        match self.script.byte() % 8 {
            0 => return ReadPost::Refused,
            1 => return ReadPost::Busy,
            _ if !self.room() => return ReadPost::Busy,
            _ => {}
        }
        let m = self.memory.get_mut(&into.ctx);
        let m = m.unwrap_or_else(|| panic!("a read into operation {} after its end", into.ctx));
        assert!(matches!(
            m.used,
            Use::Destination | Use::Target { write: true }
        ));
        let end = into.off.checked_add(into.len as u64);
        assert!(
            end.is_some_and(|e| e <= m.len),
            "a read beyond the operation's memory"
        );
        m.reads += 1;
        self.posted.push(PostedKind::Read { id, into });
        ReadPost::Posted
    }

    fn open_target(&mut self, at: &Iovs, write: bool) -> Result<u32, Failure> {
        let v = at.as_slice().first().copied().unwrap_or_default();
        let end = v.addr.checked_add(v.len);
        if at.as_slice().len() != 1 || v.key != KEY || end.is_none_or(|e| e > REGION_LEN) {
            return Err(Failure {
                errno: FI_EKEYREJECTED,
                status: 64,
            });
        }
        Ok(self.add(Use::Target { write }, v.len))
    }

    fn close_target(&mut self, ctx: u32, _done: bool) -> Result<(), Failure> {
        self.complete(ctx);
        Ok(())
    }

    fn written(&mut self, _from: PeerId, _cq_data: Option<u64>, _len: u64) {}

    fn atomic(&mut self, _: &Rta, data: &[u8], former: &mut Vec<u8>) -> Result<(), Failure> {
        former.extend_from_slice(data.get(..8).unwrap_or(&[]));
        Ok(())
    }
}
