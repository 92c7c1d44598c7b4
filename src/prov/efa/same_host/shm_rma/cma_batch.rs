//! Batches of reads and writes by cross-memory attach: one system call costs as much as the copy of
//! several KiB.
//!
//! The first access is copied at once, or by the target if it is short. While the application posts
//! others without polling in between they are collected: until there are as many as one call takes,
//! or until the application polls ([`super::collect`]), which it has to for their completions.

use super::SHORT;
use crate::device::host;
use crate::hmem::Piece;
use crate::proto::PeerId;
use crate::prov::efa::same_host::cost_model::{CopyMethod, CostModel};
use crate::shm::{LocalBuffer, RmaDenied, TxRings, MANY};
use crate::transport::{Completion, Status};

/// Most bytes of a batch of several accesses: bounds how long the first waits.
const MOST_BYTES: usize = 256 << 10;

/// An access of a batch.
pub(crate) struct Wait {
    pub mem: Piece,
    pub done: Completion,
}

/// An access that the system refused, or to a region that is not published: the adapter decides.
pub(crate) struct Refused {
    pub write: bool,
    pub wait: Wait,
}

/// The batch: accesses of one peer and key, all reads or all writes.
#[derive(Default)]
pub(crate) struct CmaBatch {
    to: PeerId,
    write: bool,
    key: u64,
    waiting: Vec<Wait>,
    bytes: usize,
    /// The application has posted one since its last poll: those that follow wait. Bytes that were
    /// copied since then.
    gathers: bool,
    copied: usize,
    refused: Vec<Refused>,
}

impl CmaBatch {
    /// 0 when there is nothing to do for a poll.
    #[inline(always)]
    pub(crate) fn load(&self) -> usize {
        self.waiting.len() | self.refused.len() | usize::from(self.gathers)
    }

    /// Takes the accesses that the adapter has to carry out.
    pub(crate) fn refused(&mut self) -> Vec<Refused> {
        core::mem::take(&mut self.refused)
    }

    /// Whether accesses to this peer wait.
    pub(crate) fn has_outstanding_to(&self, peer: PeerId) -> bool {
        let refused = self.refused.iter().any(|r| r.wait.done.peer == peer);
        refused || self.to == peer && !self.waiting.is_empty()
    }

    /// Has later accesses wait for the next poll.
    pub(crate) fn gather(&mut self) {
        self.gathers = true;
    }

    /// Whether they wait for the next poll.
    #[inline(always)]
    pub(crate) fn gathers(&self) -> bool {
        self.gathers
    }

    /// Whether one more fits into the batch.
    fn takes(&self, to: PeerId, (key, write): (u64, bool), len: usize) -> bool {
        let room = self.waiting.len() < MANY && self.bytes + len <= MOST_BYTES;
        self.waiting.is_empty() || room && (self.to, self.key, self.write) == (to, key, write)
    }
}

/// What copying a batch takes, and where its accesses go afterwards.
pub(crate) struct Carrier<'a> {
    pub rings: &'a mut TxRings,
    pub costs: &'a mut CostModel,
    pub ended: &'a mut Vec<(Completion, Status)>,
}

impl CmaBatch {
    /// Adds an access that [`TxRings::permits`]. Whether so much was copied that the caller should
    /// poll.
    pub(crate) fn join(&mut self, mut c: Carrier, write: bool, w: Wait) -> bool {
        let (to, key, len) = (w.done.peer, w.done.remote.key, w.mem.len());
        if !self.takes(to, (key, write), len) {
            self.carry(&mut c);
        }
        (self.to, self.key, self.write) = (to, key, write);
        self.bytes += len;
        self.waiting.push(w);
        // Another like it would find no room.
        if !self.gathers || !self.takes(to, (key, write), len) {
            self.carry(&mut c);
        }
        self.gathers = true;
        self.copied >= MOST_BYTES
    }

    /// Copies the batch, when the application polls.
    pub(crate) fn poll(&mut self, mut c: Carrier) {
        self.carry(&mut c);
        (self.gathers, self.copied) = (false, 0);
    }

    /// Copies the batch.
    fn carry(&mut self, c: &mut Carrier) {
        let n = self.waiting.len();
        if n == 0 {
            return;
        }
        let (to, key, write) = (self.to, self.key, self.write);
        let began = host::now();
        let bytes = core::mem::take(&mut self.bytes);
        self.copied += bytes;
        let parts = self.waiting.iter().map(|w| (w.mem, w.done.remote.addr));
        let done = c.rings.access_batch(to, write, key, parts);
        if done == n && bytes > n * SHORT {
            c.costs
                .measured_copy(CopyMethod::Cma, n, bytes, (began, host::now()));
        }
        for (i, wait) in self.waiting.drain(..).enumerate() {
            let local = LocalBuffer::Piece(wait.mem);
            let went = match i < done {
                true => Ok(false),
                false => c.rings.cma_access(to, write, &local, wait.done.remote),
            };
            let status = match went {
                Ok(_) => Status::Ok,
                Err(RmaDenied::Status(s)) => s,
                Err(RmaDenied::Unsupported) => {
                    self.refused.push(Refused { write, wait });
                    continue;
                }
            };
            c.ended.push((wait.done, status));
        }
    }
}
