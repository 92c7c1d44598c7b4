//! An endpoint as the port of reads and writes of same-host peers.

use super::port::{RmaPort, RmaRings};
use crate::device::host;
use crate::hmem::{Piece, UserMem};
use crate::proto::{Failure, PeerId};
use crate::prov::contract::{RmaReq, SendData};
use crate::prov::efa::ops::rma::rma_op;
use crate::prov::efa::port::EpPort;
use crate::prov::efa::same_host::event_words;
use crate::shm::{kind, AdapterRetry, LocalBuffer, RecordHeader, RmaDenied, SplitCopy, TxRings};
use crate::transport::{Completion, Payload, Poll, RemoteAddr, Status, Transport, Verdict};

/// Bytes of the record of an event.
const EVENT_LEN: usize = 24;

impl RmaRings for TxRings {
    fn now(&self) -> u64 {
        host::now()
    }

    fn admit_rma(&mut self, peer: PeerId) -> bool {
        TxRings::admit_rma(self, peer)
    }

    fn wants_events(&self, peer: PeerId) -> bool {
        TxRings::wants_events(self, peer)
    }

    fn permits(&mut self, peer: PeerId, at: RemoteAddr, len: usize, write: bool) -> bool {
        TxRings::permits(self, peer, at, len, write)
    }

    fn put(&mut self, done: Completion, data: Payload, imm: Option<u64>) -> Verdict {
        Transport::put(self, done, data, imm)
    }

    fn get(&mut self, done: Completion, into: Payload) -> Verdict {
        Transport::get(self, done, into)
    }

    fn cma_access(
        &mut self,
        peer: PeerId,
        write: bool,
        local: &LocalBuffer,
        at: RemoteAddr,
    ) -> Result<(), RmaDenied> {
        TxRings::cma_access(self, peer, write, local, at).map(|_| ())
    }

    fn access_batch(
        &mut self,
        peer: PeerId,
        write: bool,
        key: u64,
        parts: impl Iterator<Item = (Piece, u64)>,
    ) -> usize {
        TxRings::access_batch(self, peer, write, key, parts)
    }

    fn ensure_open(&mut self, peer: PeerId, at: RemoteAddr, write: bool, local: &UserMem) -> bool {
        TxRings::ensure_open(self, peer, at, write, local)
    }

    fn start_device_copy(
        &mut self,
        peer: PeerId,
        at: RemoteAddr,
        write: bool,
        local: &UserMem,
    ) -> Result<Option<u32>, RmaDenied> {
        TxRings::start_device_copy(self, peer, at, write, local)
    }

    fn poll_device_copy(&mut self, n: u32) -> Option<Result<(), RmaDenied>> {
        TxRings::poll_device_copy(self, n)
    }

    fn ask_for_help(&mut self, peer: PeerId, words: [u64; 6]) {
        let head = RecordHeader {
            kind: kind::SPLIT_RMA,
            flags: 0,
            message: false,
        };
        // Without help the chunks are copied here.
        let _ = self.send_words(peer, head, &words);
    }

    fn take_chunk(&mut self, peer: PeerId, s: SplitCopy) -> Option<u32> {
        TxRings::take_chunk(self, peer, s)
    }

    fn mark_copied(&mut self, peer: PeerId, s: SplitCopy) {
        TxRings::mark_copied(self, peer, s);
    }

    fn split_failed(&self, peer: PeerId, s: SplitCopy) -> bool {
        TxRings::split_failed(self, peer, s)
    }

    fn fits_event(&mut self, peer: PeerId) -> bool {
        self.check_room(peer, 1, EVENT_LEN)
    }

    fn send_event(&mut self, peer: PeerId, what: (u64, usize, Option<u64>, bool)) -> Verdict {
        let (head, words) = event_words(what);
        self.send_words(peer, head, &words)
    }

    fn add_retry(&mut self, again: AdapterRetry) {
        TxRings::add_retry(self, again);
    }

    fn poll_ended(&mut self, ended: &mut Vec<(Completion, Status)>) {
        if self.has_outstanding() {
            self.poll(usize::MAX, ended);
        }
    }
}

impl RmaPort for EpPort<'_> {
    type Rings = TxRings;

    fn rings(&mut self) -> Option<&mut TxRings> {
        self.rings.as_deref_mut()
    }

    fn open(&mut self, r: &RmaReq<SendData>, done: Completion) -> u32 {
        self.ops.insert(rma_op(self.id, r, done))
    }

    fn discard(&mut self, ctx: u32) {
        self.ops.remove(ctx);
    }

    fn add_part(&mut self, ctx: u32) {
        if let Some(op) = self.ops.get_mut(ctx) {
            op.parts += 1;
        }
    }

    fn parts(&self, ctx: u32) -> Option<(u32, usize, bool)> {
        let op = self.ops.get(ctx)?;
        Some((op.parts, op.done.len, op.failed.is_some()))
    }

    fn part_done(&mut self, ctx: u32, failed: Option<Failure>) {
        EpPort::part_done(self, ctx, failed);
    }

    fn complete(&mut self, done: &Completion, result: Result<(), Failure>) {
        EpPort::complete(self, done, result);
    }
}
