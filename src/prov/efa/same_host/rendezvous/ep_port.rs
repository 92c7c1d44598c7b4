//! An endpoint as the port of rendezvous.

use super::port::{PeerRings, RendezvousPort, WORDS};
use crate::core::Result;
use crate::device::host;
use crate::hmem::{self, IpcHandle, MemKind, Piece, Segment, UserMem};
use crate::proto::{Failure, PeerId, Port, Received, RecvEntryMatch};
use crate::prov::efa::port::EpPort;
use crate::shm::{LocalBuffer, RecordHead, RecordHeader, SplitCopy, TxRings};
use crate::transport::{Completion, Payload, Report, Transport, Verdict};
use crate::types::*;

impl PeerRings for TxRings {
    #[inline(always)]
    fn now(&self) -> u64 {
        host::now()
    }

    fn has_route(&self, peer: PeerId) -> bool {
        TxRings::has_route(self, peer)
    }

    #[inline(always)]
    fn reaches_memory(&self, peer: PeerId) -> bool {
        TxRings::reaches_memory(self, peer)
    }

    #[inline(always)]
    fn check_room(&mut self, peer: PeerId, count: usize, len: usize) -> bool {
        TxRings::check_room(self, peer, count, len)
    }

    #[inline(always)]
    fn send_words(&mut self, peer: PeerId, what: RecordHeader, words: &[u64]) -> Verdict {
        TxRings::send_words(self, peer, what, words)
    }

    fn cma_copy(&self, peer: PeerId, write: bool, local: &LocalBuffer, at: u64) -> bool {
        TxRings::cma_copy(self, peer, write, local, at)
    }

    fn cma_read_batch(&self, peer: PeerId, parts: impl Iterator<Item = (Piece, u64)>) -> usize {
        TxRings::cma_read_batch(self, peer, parts)
    }

    fn copy_split(
        &self,
        peer: PeerId,
        s: SplitCopy,
        most: u32,
        copy: impl FnMut(u32) -> bool,
    ) -> Option<u32> {
        TxRings::copy_split(self, peer, s, most, copy)
    }

    fn split_done(&self, peer: PeerId, s: SplitCopy) -> bool {
        TxRings::split_done(self, peer, s)
    }
}

impl RendezvousPort for EpPort<'_> {
    type Rings = TxRings;

    fn id(&self) -> u32 {
        self.id
    }

    #[inline(always)]
    fn rings(&mut self) -> Option<&mut TxRings> {
        self.rings.as_deref_mut()
    }

    fn send(&mut self, to: PeerId, what: RecordHeader, words: &[u64], mem: &UserMem) -> Verdict {
        let (Some(rings), Some(addr)) = (&mut self.rings, self.peers.addr(to)) else {
            return Verdict::Unsupported;
        };
        if mem.is_empty() && words.len() <= RECORD_WORDS {
            return rings.send_words_routed(to, addr, what, words);
        }
        let mut head = [0; 8 * WORDS];
        for (to, w) in head.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&w.to_ne_bytes());
        }
        let head = head.get(..8 * words.len()).unwrap_or(&[]);
        if !rings.ensure_route(to, addr) {
            return Verdict::NoResources;
        }
        let head = RecordHead::bytes(what, head);
        let done = Completion::internal(Report::Nowhere, to);
        rings.am_bcopy(done, head, Payload::User(mem))
    }

    fn send_cts(&mut self, to: PeerId, number: u32, there: u32) -> Verdict {
        match (&mut self.rings, self.peers.addr(to)) {
            (Some(rings), Some(addr)) => rings.send_cts(addr, number, there),
            _ => Verdict::Unsupported,
        }
    }

    #[inline]
    fn buffer(&self, ctx: u32) -> Option<UserMem> {
        self.ops.get(ctx).map(|op| op.mem)
    }

    fn adopt(&mut self, recv: RecvEntryMatch) -> u32 {
        Port::adopt(self, recv)
    }

    fn received(&mut self, ctx: u32, msg: Received, result: core::result::Result<(), Failure>) {
        Port::received(self, ctx, msg, result);
    }

    fn sent(&mut self, done: &Completion, result: core::result::Result<(), Failure>) {
        match done.op() {
            Some(ctx) => Port::sent(self, ctx, result),
            None => self.complete(done, result),
        }
    }

    fn share(&mut self, mem: &Segment) -> Result<IpcHandle> {
        hmem::share(mem)
    }

    fn start_copy(
        &mut self,
        from: PeerId,
        shared: (MemKind, &IpcHandle),
        into: &UserMem,
    ) -> Result<u32> {
        let rings = self.rings.as_deref_mut().ok_or(FI_EOPNOTSUPP)?;
        let copy = rings.open_memory.start(from, shared, into, false)?;
        Ok(self.shm.copies.insert(copy))
    }

    fn poll_copy(&mut self, copy: u32) -> Result<bool> {
        let c = self.shm.copies.get_mut(copy).ok_or(FI_EIO)?;
        let rings = self.rings.as_deref_mut().ok_or(FI_EIO)?;
        let over = rings.open_memory.poll(c);
        if over != Ok(false) {
            self.shm.copies.remove(copy);
        }
        over
    }

    fn abort_copy(&mut self, copy: u32) {
        let (copy, rings) = (self.shm.copies.remove(copy), self.rings.as_deref_mut());
        if let Some((c, rings)) = copy.zip(rings) {
            let _ = rings.open_memory.wait(c);
        }
    }

    fn forget_shared(&mut self, peer: PeerId) {
        if let Some(rings) = &mut self.rings {
            rings.open_memory.forget(peer);
        }
    }
}

/// Most words of a record that [`TxRings::send_words`] sends.
const RECORD_WORDS: usize = 7;
