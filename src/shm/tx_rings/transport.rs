//! The rings to peers as a [`Transport`]. A message is done when its record is written. Reads,
//! writes, atomics, and messages whose delivery is to be confirmed are done when a poll reports
//! their end.

use super::*;
use crate::hmem::InjectBuf;
use crate::shm::ring::RECORD_MAX;
use crate::transport::{AtomicRequest, Payload, Transport, TransportCaps};

/// What goes in front of a message's data: up to two words, or bytes.
#[derive(Clone, Copy)]
pub struct RecordHead<'a> {
    what: RecordHeader,
    words: [u64; 2],
    count: usize,
    bytes: &'a [u8],
}

impl<'a> RecordHead<'a> {
    /// The first `count` of these words.
    #[inline(always)]
    pub fn words(what: RecordHeader, words: [u64; 2], count: usize) -> RecordHead<'static> {
        RecordHead {
            what,
            words,
            count,
            bytes: &[],
        }
    }

    /// These bytes.
    pub fn bytes(what: RecordHeader, bytes: &'a [u8]) -> RecordHead<'a> {
        RecordHead {
            what,
            words: [0; 2],
            count: 0,
            bytes,
        }
    }

    /// Bytes in front of the data.
    #[inline]
    fn len(&self) -> usize {
        8 * self.count + self.bytes.len()
    }
}

impl Transport for TxRings {
    type Header<'a> = RecordHead<'a>;

    fn caps(&self, peer: PeerId) -> TransportCaps {
        if !self.has_route(peer) {
            return TransportCaps::default();
        }
        // Without access to the peer's memory the adapter does reads and writes.
        let rma = if self.reaches_memory(peer) {
            RMA_MAX
        } else {
            0
        };
        TransportCaps {
            am_short: MESSAGE_MAX,
            am_bcopy: MESSAGE_MAX,
            am_zcopy: 0,
            put: rma,
            get: rma,
            atomic: true,
        }
    }

    #[inline(always)]
    fn am_short(&mut self, done: Completion, head: RecordHead, data: InjectBuf) -> Verdict {
        let Some(TxRoute::Ring(out)) = self.routes.get_mut(done.peer as usize) else {
            return Verdict::Unsupported;
        };
        let RecordHead {
            what, words, count, ..
        } = head;
        let written = out.ring.write_short(what, words, count, data.piece());
        out.outcome(written, done.peer, &mut self.blocked_peers)
    }

    #[inline]
    fn am_bcopy(&mut self, done: Completion, head: RecordHead, data: Payload) -> Verdict {
        if head.what.kind == kind::CONFIRMED {
            return self.send_confirmed(done, head, data);
        }
        let Some(TxRoute::Ring(out)) = self.routes.get_mut(done.peer as usize) else {
            return Verdict::Unsupported;
        };
        if head.len() + data.byte_len() > RECORD_MAX {
            return Verdict::Unsupported;
        }
        let mut words = [0; 16];
        for (to, w) in words.chunks_exact_mut(8).zip(head.words) {
            to.copy_from_slice(&w.to_ne_bytes());
        }
        let front = match head.bytes {
            [] => words.get(..8 * head.count).unwrap_or(&[]),
            bytes => bytes,
        };
        let lent;
        let (body, bytes) = match data {
            Payload::Inject(b) => (&UserMem::EMPTY, b.bytes()),
            Payload::User(m) => (m, &[][..]),
            Payload::Piece(p) => {
                lent = UserMem::from(p);
                (&lent, &[][..])
            }
        };
        let written = out.ring.write(head.what, front, body, bytes);
        out.outcome(written, done.peer, &mut self.blocked_peers)
    }

    fn am_zcopy(&mut self, _: Completion, _: RecordHead, _: Payload) -> Verdict {
        Verdict::Unsupported
    }

    #[inline(always)]
    fn put(&mut self, done: Completion, data: Payload, imm: Option<u64>) -> Verdict {
        let (data, unsignaled) = match data {
            Payload::Piece(p) => (LocalBuffer::Piece(p), false),
            Payload::Inject(b) => (LocalBuffer::Piece(b.piece()), true),
            Payload::User(m) => match m.one() {
                Some(p) => (LocalBuffer::Piece(p), false),
                None => return Verdict::Unsupported,
            },
        };
        let a = RmaRequest {
            kind: kind::WRITE,
            flags: if imm.is_some() { kind::WITH_DATA } else { 0 },
            word: imm.unwrap_or(0),
            data,
            into: Piece::EMPTY,
            unsignaled,
        };
        self.post(&a, done)
    }

    #[inline(always)]
    fn get(&mut self, done: Completion, into: Payload) -> Verdict {
        let into = match into {
            Payload::Piece(p) => p,
            Payload::Inject(_) => return Verdict::Unsupported,
            Payload::User(m) => match m.one() {
                Some(p) => p,
                None => return Verdict::Unsupported,
            },
        };
        let a = RmaRequest {
            kind: kind::READ,
            flags: 0,
            word: 0,
            data: LocalBuffer::Piece(Piece::EMPTY),
            into,
            unsignaled: false,
        };
        self.post(&a, done)
    }

    #[inline]
    fn atomic(&mut self, done: Completion, a: &AtomicRequest) -> Verdict {
        let a = RmaRequest {
            kind: kind::ATOMIC,
            flags: 0,
            word: a.word,
            data: LocalBuffer::Bytes(a.data),
            into: a.result,
            unsignaled: false,
        };
        self.post(&a, done)
    }
}

/// Longest message in one record, with two words in front of it.
pub(in crate::shm) const MESSAGE_MAX: usize = RECORD_MAX - 16;
/// Longest read or write in one record.
pub(in crate::shm) const RMA_MAX: usize = RECORD_MAX - crate::shm::ACCESS_HEAD;

impl TxRings {
    /// Sends a message whose completion means that the peer has received it. Its first word is data
    /// for the peer's completion.
    fn send_confirmed(&mut self, done: Completion, head: RecordHead, data: Payload) -> Verdict {
        let lent;
        let data = match data {
            Payload::Inject(b) => LocalBuffer::Bytes(b.bytes()),
            Payload::User(m) => LocalBuffer::Mem(m),
            Payload::Piece(p) => {
                lent = UserMem::from(p);
                LocalBuffer::Mem(&lent)
            }
        };
        let [word, _] = head.words;
        let a = RmaRequest {
            kind: kind::CONFIRMED,
            flags: head.what.flags,
            word,
            data,
            into: Piece::EMPTY,
            unsignaled: false,
        };
        self.post(&a, done)
    }
}
