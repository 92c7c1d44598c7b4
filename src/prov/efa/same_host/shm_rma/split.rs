//! Long reads and writes that both sides copy.
//!
//! The initiator opens a split copy (`shm::SplitCopy`) and asks its target for help by SPLIT_RMA
//! records. Each lets the target copy [`POLL_BUDGET`] bytes; the initiator sends one more for each
//! part that it copies itself. It copies all chunks when the target does not poll, or does not
//! reach its memory. When a copy fails on either side, no more chunks are taken; once the target
//! copies none any more, the access ends, or is copied again by the initiator alone.

use super::cma_batch::LongCopy;
use super::port::RmaRings;
use super::remote_right;
use crate::device::any::Dev;
use crate::device::Device;
use crate::hmem::Piece;
use crate::proto::PeerId;
use crate::prov::efa::same_host::split::chunk;
use crate::prov::efa::same_host::POLL_BUDGET;
use crate::shm::{LocalBuffer, Record, RmaDenied, SplitCopy, TxRings};
use crate::transport::RemoteAddr;

/// Bytes of a chunk.
pub(super) const CHUNK: usize = 128 << 10;
/// Bit of the last word: it is a write.
pub(super) const WRITE: u64 = 1 << 63;

/// The course of a split copy at its initiator.
#[derive(Clone, Copy)]
pub(super) enum SplitPhase {
    /// It is not open yet.
    Wanted,
    /// Chunks are copied here, too, while some may be `left`.
    Open { split: SplitCopy, left: bool },
    /// It has failed, and the target may still copy a chunk. Without a reason it is the target's
    /// copy that failed.
    Stopping(SplitCopy, Option<RmaDenied>),
}

/// What a part of a split copy has led to.
pub(super) enum SplitStep {
    /// There are more chunks to copy here.
    More,
    /// The target may still copy a chunk.
    Waits,
    /// The initiator has to copy everything alone.
    Alone,
    Ended(Result<(), RmaDenied>),
}

/// Continues an access in phase `phase`, by about `most` bytes. Returns how many were copied here.
pub(super) fn split_on<R: RmaRings>(
    l: &mut LongCopy,
    phase: SplitPhase,
    rings: &mut R,
    most: usize,
) -> (usize, SplitStep) {
    let (peer, len) = (l.done.peer, l.mem.len());
    let Some(piece) = l.mem.one() else {
        return (0, SplitStep::Alone);
    };
    let (split, left) = match phase {
        SplitPhase::Wanted => {
            let chunks = len.div_ceil(CHUNK) as u32;
            let Some(split) = rings.open_split(peer, chunks) else {
                return (0, SplitStep::Alone);
            };
            l.began = rings.now();
            rings.ask_for_help(peer, help_words(l, split, piece));
            (split, true)
        }
        SplitPhase::Open { split, left } => (split, left),
        SplitPhase::Stopping(split, why) => return (0, stop(l, rings, split, why)),
    };
    let (mut copied, mut left) = (0, left);
    while left && copied < most {
        let Some(c) = rings.take_chunk(peer, split) else {
            left = false;
            break;
        };
        let (part, at) = chunk((piece, l.done.remote.addr), (c, CHUNK));
        let at = RemoteAddr {
            addr: at,
            ..l.done.remote
        };
        let went = rings.cma_access(peer, l.write, &LocalBuffer::Piece(part), at);
        rings.mark_copied(peer, split);
        copied += part.len();
        if let Err(why) = went {
            return (copied, stop(l, rings, split, Some(why)));
        }
    }
    l.split = Some(SplitPhase::Open { split, left });
    if left {
        rings.ask_for_help(peer, help_words(l, split, piece));
        return (copied, SplitStep::More);
    }
    if rings.end_split(peer, split) {
        return (copied, SplitStep::Ended(Ok(())));
    }
    let step = match rings.split_failed(peer, split) {
        true => stop(l, rings, split, None),
        false => SplitStep::Waits,
    };
    (copied, step)
}

/// Ends a split copy that has failed, if the target copies no chunk any more.
fn stop<R: RmaRings>(
    l: &mut LongCopy,
    rings: &mut R,
    split: SplitCopy,
    why: Option<RmaDenied>,
) -> SplitStep {
    if !rings.stop_split(l.done.peer, split) {
        l.split = Some(SplitPhase::Stopping(split, why));
        return SplitStep::Waits;
    }
    match why {
        Some(why) => SplitStep::Ended(Err(why)),
        None => SplitStep::Alone,
    }
}

/// The words of a SPLIT_RMA: key and address of the region, the split copy, our memory, its length,
/// and the direction.
fn help_words(l: &LongCopy, split: SplitCopy, mem: Piece) -> [u64; 6] {
    let at = l.done.remote;
    let how = if l.write { WRITE } else { 0 };
    let (ours, len) = (mem.addr() as u64, mem.len() as u64);
    [at.key, at.addr, split.packed(), ours, len, how]
}

/// Handles a SPLIT_RMA at the target: copies chunks between the initiator's memory and ours, if the
/// access is permitted; returns how many bytes. A record that cannot be served is ignored: the
/// initiator copies then.
pub(crate) fn help(dev: &Dev, rings: &TxRings, from: PeerId, record: &Record) -> usize {
    let [key, addr, split, theirs, len, how] = [0, 8, 16, 24, 32, 40].map(|off| record.word(off));
    let write = how & WRITE != 0;
    if !rings.reaches_memory(from) {
        return 0;
    }
    let Ok(mem) = dev.target(key, addr, len, remote_right(write)) else {
        return 0;
    };
    let Some(piece) = mem.one().filter(|_| mem.is_host()) else {
        return 0;
    };
    let most = (POLL_BUDGET / CHUNK) as u32;
    let copied = record.copy_split(SplitCopy::of(split), most, |c| {
        let (part, at) = chunk((piece, theirs), (c, CHUNK));
        // The initiator's memory is the source of a write.
        rings.cma_copy(from, !write, &LocalBuffer::Piece(part), at)
    });
    copied.map_or(POLL_BUDGET, |n| n as usize * CHUNK)
}
