//! Carries out peers' accesses to our memory.

use crate::device::any::Dev;
use crate::device::Device;
use crate::hmem::{arith, atomic, UserMem};
use crate::proto::{AtomicKind, PeerId, RecvQueue, WriteWithData};
use crate::prov::efa::ops::direct;
use crate::prov::efa::port::{copied, EpPort};
use crate::shm::kind::{self, WITH_DATA};
use crate::shm::{KeyHashes, MrTable, Record, ACCESS_HEAD};
use crate::transport::Status;
use crate::types::*;
use crate::wire::{Iovs, RmaIov};

/// The right that a peer's access needs.
pub(crate) fn remote_right(write: bool) -> u64 {
    match write {
        true => FI_REMOTE_WRITE,
        false => FI_REMOTE_READ,
    }
}

/// What a peer has accessed.
pub(crate) struct ServedAccess {
    pub key: u64,
    pub len: usize,
    pub write: bool,
    pub data: Option<u64>,
}

/// Whether a record is an access to memory.
#[inline]
pub(crate) fn is(record: &Record) -> bool {
    (kind::WRITE..=kind::ATOMIC).contains(&record.kind)
}

/// The tables in which the target looks up registered memory.
#[derive(Clone, Copy)]
pub(crate) struct TargetMemory<'a> {
    pub dev: &'a Dev,
    pub table: Option<&'a MrTable>,
}

/// Buffers for atomics.
#[derive(Default)]
pub(crate) struct Scratch {
    data: Vec<u8>,
    former: Vec<u8>,
    tags: KeyHashes,
}

/// Carries out what a record asks for, unless the peer has done so already; `None` when it failed.
#[inline]
pub(crate) fn serve(
    memory: TargetMemory,
    record: &Record,
    scratch: &mut Scratch,
) -> Option<ServedAccess> {
    let [key, addr, word] = record.words();
    let mut len = record.len.saturating_sub(ACCESS_HEAD);
    let write = record.kind == kind::WRITE;
    let mut counts_as_write = write;
    let done = match record.kind {
        _ if record.done => record.outcome().status(),
        kind::WRITE | kind::READ => {
            serve_plain(memory, record, (key, addr, len), write, &mut scratch.tags)
        }
        _ => {
            let a = TargetAtomic::of(key, addr, word);
            counts_as_write = a.counts_as_write();
            let n = serve_word(memory, record, &a, &mut scratch.tags)
                .map_or_else(|| serve_atomic(memory.dev, record, &a, scratch), Ok);
            n.map(|n| len = n)
        }
    };
    if let Err(s) = done {
        if !record.done {
            record.outcome().refuse(s);
        }
        return None;
    }
    Some(ServedAccess {
        key,
        len,
        write: counts_as_write,
        data: (write && record.flags & WITH_DATA != 0).then_some(word & 0xffff_ffff),
    })
}

#[inline]
fn serve_plain(
    memory: TargetMemory,
    record: &Record,
    (key, addr, len): (u64, u64, usize),
    write: bool,
    tags: &mut KeyHashes,
) -> Result<(), Status> {
    let tag = tags.of(key);
    if let Some(p) = memory.table.and_then(|t| t.own(tag, addr, len, write)) {
        if write {
            record.copy_piece(ACCESS_HEAD, p);
        } else {
            record.fill_piece(p);
        }
        return Ok(());
    }
    let mem = (memory.dev).target(key, addr, len as u64, remote_right(write))?;
    if write {
        record.copy_mem(ACCESS_HEAD, &mem);
    } else {
        record.fill(&mem);
    }
    copied(&mem, Status::RemoteCopyFailed)
}

/// Executes an atomic on one element that the processor can change atomically, as most are; returns
/// the bytes of the element. `None`, and nothing done, for other atomics and without permission.
#[inline]
fn serve_word(
    memory: TargetMemory,
    record: &Record,
    a: &TargetAtomic,
    tags: &mut KeyHashes,
) -> Option<usize> {
    let to = a.to.as_slice().first()?;
    let size = arith::size_of(a.datatype).filter(|n| *n as u64 == to.len)?;
    let compares = a.kind == AtomicKind::Compare;
    let fetches = compares || a.kind == AtomicKind::Fetch;
    let operands = if compares { 2 * size } else { size };
    if size > atomic::WORD || a.reads() || record.len < ACCESS_HEAD + operands {
        return None;
    }
    let table = memory.table?;
    let tag = tags.of(to.key);
    let mem = table.own(tag, to.addr, size, true)?;
    if fetches {
        table.own(tag, to.addr, size, false)?;
    }
    let f = arith::element(a.datatype, a.op)?;
    let mut bytes = [0; 2 * atomic::WORD];
    let bytes = bytes.get_mut(..operands)?;
    record.load(ACCESS_HEAD, bytes);
    let (src, cmp) = bytes.split_at_checked(size)?;
    let former = atomic::word(mem, f, src, cmp)?;
    if fetches {
        record.fill_bytes(former.get(..size)?);
    }
    Some(size)
}

fn serve_atomic(
    dev: &Dev,
    record: &Record,
    a: &TargetAtomic,
    s: &mut Scratch,
) -> Result<usize, Status> {
    record.copy(ACCESS_HEAD, &mut s.data);
    s.former.clear();
    let len = a.apply(dev, &s.data, &mut s.former)?;
    if !matches!(a.kind, AtomicKind::Write { .. }) {
        record.fill_bytes(&s.former);
    }
    Ok(len)
}

/// An atomic on our memory.
pub(crate) struct TargetAtomic {
    pub to: Iovs,
    pub datatype: fi_datatype,
    pub op: fi_op,
    pub kind: AtomicKind,
}

impl TargetAtomic {
    /// Decodes an access of this key, address and word (see [`super::atomic_word`]).
    fn of(key: u64, addr: u64, word: u64) -> TargetAtomic {
        let len = word >> 32;
        TargetAtomic {
            to: Iovs::new(&[RmaIov { addr, len, key }]).unwrap_or_default(),
            datatype: (word as u8).into(),
            op: ((word >> 8) as u8).into(),
            kind: match (word >> 16) as u8 {
                0 => AtomicKind::Write { receipt: false },
                1 => AtomicKind::Fetch,
                _ => AtomicKind::Compare,
            },
        }
    }

    /// Whether it changes nothing.
    pub(crate) fn reads(&self) -> bool {
        self.op == FI_ATOMIC_READ
    }

    /// Whether counters of FI_REMOTE_WRITE count it: fetching and comparing ones are remote reads
    /// (fi_endpoint(3)).
    pub(crate) fn counts_as_write(&self) -> bool {
        matches!(self.kind, AtomicKind::Write { .. })
    }

    /// Executes the atomic on operands `data`, which the compare values follow; appends the former
    /// values to `former`. Returns the bytes of memory.
    pub(crate) fn apply(
        &self,
        dev: &Dev,
        data: &[u8],
        former: &mut Vec<u8>,
    ) -> Result<usize, Status> {
        let size = arith::size_of(self.datatype).ok_or(Status::LocalUnsupported)?;
        let f = arith::element(self.datatype, self.op).ok_or(Status::LocalUnsupported)?;
        let compares = self.kind == AtomicKind::Compare;
        let fetches = compares || self.kind == AtomicKind::Fetch;
        let mut access = if fetches { FI_REMOTE_READ } else { 0 };
        access |= if self.reads() { 0 } else { FI_REMOTE_WRITE };
        let mem = find(dev, &self.to, access)?;
        let (src, cmp) = match compares {
            true => data.split_at_checked(mem.len()),
            false => Some((data, &[][..])),
        }
        .ok_or(Status::RemoteBadLength)?;
        let short = (!self.reads() && src.len() < mem.len()) || (compares && cmp.len() < mem.len());
        let beyond = fetches && mem.len() > dev.attr().mtu;
        if mem.len() % size != 0 || short || beyond {
            return Err(Status::RemoteBadLength);
        }
        if self.reads() {
            atomic::fetch(&mem, size, former);
        } else {
            atomic::apply(&mem, size, f, src, cmp, former);
        }
        copied(&mem, Status::RemoteCopyFailed)?;
        Ok(mem.len())
    }
}

/// All of the memory that a request names; `Err` for the first piece that may not be used so.
pub(crate) fn find(dev: &Dev, at: &Iovs, access: u64) -> Result<UserMem, Status> {
    let mut all = UserMem::EMPTY;
    for v in at.as_slice() {
        let m = dev.target(v.key, v.addr, v.len, access)?;
        all = all.join(&m).ok_or(Status::RemoteBadLength)?;
    }
    Ok(all)
}

/// Executes the access of a record.
pub(crate) fn handle_access(from: PeerId, record: &Record, rq: &mut RecvQueue, port: &mut EpPort) {
    let memory = TargetMemory {
        dev: port.dev,
        table: port.table,
    };
    let did = serve(memory, record, &mut port.shm.scratch);
    if let Some(d) = did {
        if let Some(data) = d.data {
            let len = d.len;
            direct::written(port, rq, from, WriteWithData { len, data });
        }
        port.remote_access(d.key, d.len, d.write);
    }
}
