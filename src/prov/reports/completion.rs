//! The end of an operation: the counter that counts it, and its entry in a completion queue.

use crate::core::slab::Slab;
use crate::core::Result;
use crate::prov::contract::Entry;
use crate::prov::reports::cntr::Cntr;
use crate::transport::{Completion, Report};
use crate::types::*;

/// Kinds of operations that a counter of an endpoint counts (fi_cntr(3)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CntrKind {
    Send,
    Recv,
    Write,
    Read,
    RemoteWrite,
    RemoteRead,
}

use CntrKind::*;

impl CntrKind {
    pub(crate) const ALL: [CntrKind; 6] = [Send, Recv, Write, Read, RemoteWrite, RemoteRead];
    /// The kinds that an endpoint initiates.
    pub(crate) const INITIATED: [CntrKind; 3] = [Send, Write, Read];

    /// The kind of the operation that a completion's flags describe.
    #[inline]
    pub(crate) fn of(flags: u32) -> CntrKind {
        let flags = u64::from(flags);
        if flags & FI_RECV != 0 {
            Recv
        } else if flags & FI_WRITE != 0 {
            Write
        } else if flags & FI_READ != 0 {
            Read
        } else {
            Send
        }
    }

    /// A peer's access to our memory.
    pub(crate) fn remote(write: bool) -> CntrKind {
        match write {
            true => RemoteWrite,
            false => RemoteRead,
        }
    }

    /// The flag by which a counter is bound to it.
    pub(crate) fn flag(self) -> u64 {
        match self {
            Send => FI_SEND,
            Recv => FI_RECV,
            Write => FI_WRITE,
            Read => FI_READ,
            RemoteWrite => FI_REMOTE_WRITE,
            RemoteRead => FI_REMOTE_READ,
        }
    }
}

/// The counters of an endpoint, by what they count.
#[derive(Clone, Debug, Default)]
pub(crate) struct BoundCntrs([Option<u32>; CntrKind::ALL.len()]);

impl BoundCntrs {
    /// Flags of every kind there is.
    pub(crate) fn flags() -> u64 {
        CntrKind::ALL.iter().map(|k| k.flag()).sum()
    }

    /// Has a counter count the kinds that `flags` name. `FI_EINVAL`, with a line, where another
    /// one counts any of them (fi_endpoint(3)).
    pub(crate) fn bind(&mut self, cntr: u32, flags: u64) -> Result<()> {
        let other = |(k, c)| flags & CntrKind::flag(k) != 0 && c != cntr;
        if self.each().any(other) {
            crate::warn_log!(
                FI_LOG_EP_CTRL,
                "fi_ep_bind: flags {flags:#x}: another counter counts these operations already"
            );
            return Err(FI_EINVAL);
        }
        let slots = self.0.iter_mut().zip(CntrKind::ALL);
        for (slot, _) in slots.filter(|(_, k)| flags & k.flag() != 0) {
            *slot = Some(cntr);
        }
        Ok(())
    }

    /// The counter of a kind.
    #[inline(always)]
    pub(crate) fn of(&self, kind: CntrKind) -> Option<u32> {
        self.0.get(kind as usize).copied().flatten()
    }

    /// Whether one of these kinds is counted.
    pub(crate) fn any(&self, kinds: &[CntrKind]) -> bool {
        kinds.iter().any(|k| self.of(*k).is_some())
    }

    /// Each counter, with what it counts.
    pub(crate) fn each(&self) -> impl Iterator<Item = (CntrKind, u32)> + '_ {
        let kinds = CntrKind::ALL.into_iter().zip(self.0);
        kinds.filter_map(|(k, id)| Some((k, id?)))
    }

    /// Takes out the counters for which `which` is true.
    pub(crate) fn take(&mut self, which: impl Fn(u32) -> bool) -> Vec<u32> {
        let slots = self.0.iter_mut();
        slots.filter_map(|s| s.take_if(|id| which(*id))).collect()
    }

    /// Counts an operation of this kind, of so many bytes, that has ended well.
    #[inline(always)]
    pub(crate) fn count(&self, cntrs: &mut Slab<Cntr>, kind: CntrKind, len: usize) {
        if let Some(c) = self.of(kind).and_then(|c| cntrs.get_mut(c)) {
            c.count(len);
        }
    }

    /// Counts an operation of this kind that has failed.
    pub(crate) fn count_error(&self, cntrs: &mut Slab<Cntr>, kind: CntrKind) {
        if let Some(c) = self.of(kind).and_then(|c| cntrs.get_mut(c)) {
            c.add_error();
        }
    }
}

/// Has a counter count accesses to a region (fi_mr_bind(3)), in a list of keys, counters and kinds.
pub(crate) fn bind_region(list: &mut Vec<(u64, u32, u64)>, key: u64, cntr: u32, kinds: u64) {
    match list.iter_mut().find(|(k, c, _)| (*k, *c) == (key, cntr)) {
        Some((_, _, all)) => *all |= kinds,
        None => list.push((key, cntr, kinds)),
    }
}

/// Flags of a send's completion.
#[inline]
pub(crate) fn send_flags(tagged: bool) -> u32 {
    (FI_SEND | if tagged { FI_TAGGED } else { FI_MSG }) as u32
}

/// Flags of the completion of a read or write.
#[inline]
pub(crate) fn rma_flags(write: bool) -> u32 {
    (FI_RMA | if write { FI_WRITE } else { FI_READ }) as u32
}

/// Flags of the completion of an atomic that changes remote memory only, or returns what was there.
#[inline]
pub(crate) fn atomic_flags(changes: bool) -> u32 {
    (FI_ATOMIC | if changes { FI_WRITE } else { FI_READ }) as u32
}

/// Report of an operation: with an entry, or to counters only.
#[inline]
pub(crate) fn reported(entry: bool) -> Report {
    match entry {
        true => Report::Entry,
        false => Report::Counters,
    }
}

/// The entry of an operation of the transmit side.
#[inline]
pub(crate) fn ended_entry(done: &Completion) -> Entry {
    Entry {
        context: done.context,
        flags: done.flags.into(),
        len: done.len,
        src: FI_ADDR_NOTAVAIL,
        ..Entry::default()
    }
}
