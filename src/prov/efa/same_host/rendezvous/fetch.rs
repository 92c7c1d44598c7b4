//! Long messages that the receiver copies from their sender's memory, alone or together with the
//! sender.
//!
//! They wait in `fetching`, in order. Each poll copies up to its budget of them (`fetch_on`). In a
//! copy that is split, each side takes the next free chunk; the message ends when the chunks of
//! both sides are there. A message whose copy failed ends once its sender no longer writes
//! (`stopping`).

use super::port::{ArrivedRecord, PeerRings, RendezvousPort};
use super::receiver::{fetch_methods, RecvState};
use super::{copy_chunk, Rendezvous, LOST};
use crate::hmem::UserMem;
use crate::proto::{PeerId, RecvQueue};
use crate::prov::efa::same_host::cost_model::CopyMethod;
use crate::prov::efa::same_host::split::SplitRings;
use crate::prov::efa::same_host::DEVICE_BUDGET;
use crate::shm::kind;
use crate::shm::{LocalBuffer, SplitCopy};

/// Bytes of a chunk, of which a split copy has at least two.
const CHUNK: core::ops::RangeInclusive<usize> = 128 << 10..=512 << 10;
/// Chunks of a split copy, where their size permits.
const CHUNKS: usize = 8;

/// A message that is being copied from its sender's memory.
#[derive(Clone, Copy)]
pub(super) struct FetchState {
    /// Bytes of the rest of the message that fit into its receive, and bytes that were copied; of a
    /// split copy, chunks that were copied here.
    room: usize,
    copied: usize,
    /// The copy that the sender helps with, and bytes of a chunk. Whether chunks may be left.
    split: Option<(SplitCopy, usize)>,
    left: bool,
    /// The destination is host memory: the time is measured.
    measured: bool,
    /// Nanoseconds that earlier polls spent on it.
    ns: u64,
}

impl RecvState {
    /// The copy that the sender helps with.
    fn split(&self) -> Option<SplitCopy> {
        self.fetch?.split.map(|(s, _)| s)
    }
}

/// How the copy of a message has ended.
enum FetchOutcome {
    Here,
    /// The kernel refused the copy: a CTS can still request the message.
    Refused,
    /// A chunk could not be copied.
    Stopped,
    /// The message has ended already.
    Gone,
}

impl Rendezvous {
    /// Queues the rest of a matched message to be copied from the sender's memory, by this method
    /// or the one that is chosen then.
    pub(super) fn fetch<P: RendezvousPort>(
        &mut self,
        n: u32,
        method: Option<CopyMethod>,
        rq: &mut RecvQueue,
        port: &mut P,
    ) {
        self.fetching.push_back((n, method));
        self.fetch_on(rq, port);
    }

    /// Begins a copy, split with the sender or not: both sides work on one message at a time.
    fn open_fetch<P: RendezvousPort>(
        &mut self,
        n: u32,
        method: CopyMethod,
        port: &mut P,
    ) -> Option<FetchState> {
        let (into, _) = self.fetched_into(n, port)?;
        let (i, rings) = (self.receiving.get_mut(n)?, port.rings()?);
        let (from, got, number, room) = (i.from, i.got, i.number, into.len());
        // Two chunks at least: else there is nothing to share, as with a receive that has no room.
        let half = room.div_ceil(2).next_multiple_of(4096).max(4096);
        let chunk = (room / CHUNKS)
            .clamp(*CHUNK.start(), *CHUNK.end())
            .min(half);
        let piece = into
            .one()
            .filter(|_| method == CopyMethod::CmaBoth && room > chunk);
        let split = piece.and_then(|p| {
            let s = rings.open_split(from, room.div_ceil(chunk) as u32)?;
            Some((s, p))
        });
        let f = FetchState {
            room,
            copied: 0,
            split: split.map(|(s, _)| (s, chunk)),
            left: true,
            measured: into.is_host(),
            ns: 0,
        };
        i.fetch = Some(f);
        if let Some((s, piece)) = split {
            let words = [
                u64::from(number.unwrap_or(0)) | u64::from(n) << 32,
                s.packed(),
                piece.addr() as u64,
                chunk as u64 | (got as u64) << 32,
                room as u64,
            ];
            self.send_control(from, kind::SPLIT_COPY, words, port);
        }
        Some(f)
    }

    /// The destination of the rest of a matched message, and its address in the sender's memory.
    fn fetched_into<P: RendezvousPort>(&self, n: u32, port: &P) -> Option<(UserMem, u64)> {
        let i = self.receiving.get(n)?;
        let (place, _) = (i.place?, i.number?);
        let room = (place.room as usize)
            .saturating_sub(i.got)
            .min(i.len - i.got);
        let mem = port.buffer(place.ctx);
        let into = mem.map_or(UserMem::EMPTY, |m| {
            m.part(place.base as usize + i.got, room)
        });
        Some((into, i.at.wrapping_add(i.got as u64)))
    }

    /// Copies as much as one call may of the messages that are being fetched.
    pub(super) fn fetch_on<P: RendezvousPort>(&mut self, rq: &mut RecvQueue, port: &mut P) {
        let mut at = 0;
        self.fetches = false;
        while let Some((n, method)) = self.fetching.get(at).copied() {
            let mut fetch = self.receiving.get(n).and_then(|i| i.fetch);
            if fetch.is_none() {
                if self.fetches {
                    return;
                }
                let len = self.receiving.get(n).map_or(0, |i| i.len);
                let method = method.unwrap_or_else(|| self.costs.choose(len, fetch_methods(len)));
                if method == CopyMethod::Ring {
                    self.fetching.remove(at);
                    self.request_rest(n, port);
                    continue;
                }
                fetch = self.open_fetch(n, method, port);
            }
            let began = port.rings().map_or(0, |r| r.now());
            let ends = match fetch {
                Some(f) if f.left && self.budget() == 0 => None,
                Some(f) => match f.split {
                    None => self.fetch_alone(n, f, port),
                    Some(split) => self.fetch_split(n, split, port),
                },
                None => Some(FetchOutcome::Gone),
            };
            let Some(ends) = ends else {
                let now = port.rings().map_or(began, |r| r.now());
                let ns = now.saturating_sub(began);
                self.costs.count_other((began, now));
                let fetch = self.receiving.get_mut(n).and_then(|i| i.fetch.as_mut());
                if let Some(f) = fetch {
                    f.ns += ns;
                    self.fetches |= f.left;
                }
                at += 1;
                continue;
            };
            self.fetching.remove(at);
            match ends {
                FetchOutcome::Here => self.fetched(n, began, rq, port),
                FetchOutcome::Refused => self.request_rest(n, port),
                FetchOutcome::Stopped => self.stop(n, port),
                FetchOutcome::Gone => {}
            }
        }
    }

    /// Copies the next bytes of a message; `None` when there are more.
    fn fetch_alone<P: RendezvousPort>(
        &mut self,
        n: u32,
        f: FetchState,
        port: &mut P,
    ) -> Option<FetchOutcome> {
        let most = if f.measured { 0 } else { DEVICE_BUDGET };
        let part = (f.room - f.copied).min(self.budget().max(most));
        self.copied += part;
        if part > 0 {
            let (into, at) = self.fetched_into(n, port)?;
            let i = self.receiving.get_mut(n)?;
            let local = into.part(f.copied, part);
            let at = at.wrapping_add(f.copied as u64);
            if !port
                .rings()?
                .cma_copy(i.from, false, &LocalBuffer::Mem(&local), at)
            {
                // After a CTS the sender writes all of the rest, whatever was copied.
                i.fetch = None;
                return Some(FetchOutcome::Refused);
            }
            i.fetch = Some(FetchState {
                copied: f.copied + part,
                ..f
            });
        }
        (f.copied + part == f.room).then_some(FetchOutcome::Here)
    }

    /// Copies chunks of a message that its sender copies, too; `None` when some are not there yet.
    fn fetch_split<P: RendezvousPort>(
        &mut self,
        n: u32,
        (split, chunk): (SplitCopy, usize),
        port: &mut P,
    ) -> Option<FetchOutcome> {
        let (into, at) = self.fetched_into(n, port)?;
        let count = self.chunks_now(chunk);
        let i = self.receiving.get_mut(n)?;
        let (piece, from, rings) = (into.one()?, i.from, port.rings()?);
        let f = i.fetch.as_mut()?;
        if f.left {
            let copy = |c| copy_chunk(rings, (from, false), (piece, at), (c, chunk));
            // A chunk is copied once, whatever the peer writes into the word of the transfer.
            let count = count.min(split.chunks.saturating_sub(f.copied as u32));
            let Some(ours) = rings.copy_split(from, split, count, copy) else {
                return Some(FetchOutcome::Stopped);
            };
            self.copied += ours as usize * chunk;
            f.copied += ours as usize;
            f.left = ours > 0 && ours == count;
        }
        // The sender may still copy its last chunk; its SPLIT_DONE comes behind all that is in the
        // ring, and wakes us.
        rings.split_done(from, split).then_some(FetchOutcome::Here)
    }

    /// Handles a SPLIT_DONE: the sender has copied its chunks, or could not.
    pub(super) fn handle_split_done<P: RendezvousPort>(
        &mut self,
        from: PeerId,
        record: &impl ArrivedRecord,
        rq: &mut RecvQueue,
        port: &mut P,
    ) {
        let (n, how) = (record.word(0) as u32, record.word(8));
        let helped = |i: &RecvState| i.from == from && i.split().is_some();
        if self.receiving.get(n).is_some_and(helped) && !self.stopping.contains(&n) {
            let now = port.rings().map_or(0, |r| r.now());
            match how & LOST {
                0 => self.fetched(n, now, rq, port),
                _ => self.stop(n, port),
            }
        }
    }

    /// Ends a message whose chunks on this side are copied, the last ones since `began`, unless the
    /// sender still copies one.
    fn fetched<P: RendezvousPort>(&mut self, n: u32, began: u64, rq: &mut RecvQueue, port: &mut P) {
        let (Some(i), Some(rings)) = (self.receiving.get_mut(n), port.rings()) else {
            return;
        };
        let split = i.split();
        let over = split.is_none_or(|s| rings.end_split(i.from, s));
        if !over {
            return;
        }
        let method = split.map_or(CopyMethod::Cma, |_| CopyMethod::CmaBoth);
        let (len, earlier, now) = (i.len, i.fetch.map_or(0, |f| f.ns), rings.now());
        let measured = i.fetch.is_none_or(|f| f.measured);
        let began = match earlier {
            0 => i.began,
            ns => began.saturating_sub(ns),
        };
        i.got = len;
        self.fetching.retain(|(f, _)| *f != n);
        match earlier {
            _ if !measured => {}
            0 => self.costs.measured_arrival(method, 1, len, (began, now)),
            _ => self.costs.measured_copy(method, 1, len, (began, now)),
        }
        self.send_fin(n, port);
        self.ends(n, rq, port);
    }

    /// Copies no more chunks of a message that the system would not copy, here or at the sender.
    #[cold]
    fn stop<P: RendezvousPort>(&mut self, n: u32, port: &mut P) {
        self.fetching.retain(|(f, _)| *f != n);
        self.stopping.push(n);
        self.poll_stopping(port);
    }

    /// Sends a CTS for stopped messages whose sender copies nothing into their receives any more.
    pub(super) fn poll_stopping<P: RendezvousPort>(&mut self, port: &mut P) {
        let mut at = 0;
        while let Some(n) = self.stopping.get(at).copied() {
            let split = self
                .receiving
                .get(n)
                .and_then(|i| Some((i.from, i.split()?)));
            let writes = match (split, port.rings()) {
                (Some((from, split)), Some(rings)) => !rings.stop_split(from, split),
                _ => false,
            };
            if writes {
                at += 1;
                continue;
            }
            self.stopping.swap_remove(at);
            if let Some(i) = self.receiving.get_mut(n) {
                i.fetch = None;
            }
            self.request_rest(n, port);
        }
    }
}
