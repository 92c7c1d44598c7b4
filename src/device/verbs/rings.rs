//! The adapter's queues, written and read in place (efadv_query_qp_wqs(3), efadv_query_cq(3)): no
//! call of a library on the data path.
//!
//! A work request is 64 bytes (128 if wide) in device memory; the doorbell tells the adapter how
//! many there are. A completion is valid when its phase bit is that of the current round. Layouts
//! are those of `providers/efa/efa_io_defs.h` of rdma-core. The library's own indexes of the queues
//! are not updated: a queue pair driven here never posts or polls through libibverbs.

use super::cqe::Cqe;
use super::sys::*;
use crate::device::QueueMemory;
use core::mem::zeroed;
use core::ptr::null_mut;
use core::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering::*};

/// Bytes of a work request, of a wide one, and of a posted receive.
const NARROW: u32 = 64;
const WIDE: u32 = 128;
const RECV_WQE: u32 = 16;

/// Kinds of work requests, as the adapter numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum WqeOp {
    Send = 0,
    Read = 1,
    Write = 2,
}

/// `ctrl1`: flags beside the kind.
const HAS_IMM: u8 = 0x10;
const INLINE: u8 = 0x20;
const META_DESC: u8 = 0x80;
/// `ctrl2`: first and last entry of the request, completion requested; the lowest bit is the phase.
const WHOLE: u8 = 0x04 | 0x08 | 0x10;
/// `lkey_ctrl` of a receive: first and last piece.
const FIRST: u32 = 1 << 30;
const LAST: u32 = 1 << 31;
/// Doorbell of a completion queue: the bit that requests an event.
const ARM: u32 = 1 << 31;

/// A queue of work requests.
struct Queue {
    at: *mut u8,
    doorbell: *mut u32,
    mask: u32,
    /// Entries written in total, modulo 2^32.
    put: u32,
    /// Value of `put` at the last doorbell.
    rung: u32,
    batch: u32,
}

impl Queue {
    fn of(a: &efadv_wq_attr) -> Option<Queue> {
        let entries = u16::try_from(a.num_entries).ok()?;
        if a.buffer.is_null() || a.doorbell.is_null() || !entries.is_power_of_two() {
            return None;
        }
        let entries = u32::from(entries);
        let batch = match a.max_batch {
            0 => entries,
            n => n,
        };
        Some(Queue {
            at: a.buffer,
            doorbell: a.doorbell,
            mask: entries - 1,
            put: 0,
            rung: 0,
            batch: batch.min(entries),
        })
    }

    /// Writes the next entry completely, word by word.
    #[inline(always)]
    fn write<const N: usize>(&mut self, entry: &[u64; N]) {
        let slot = (self.put & self.mask) as usize;
        // SAFETY: the slot lies in the mapped queue, whose entries have this size (see `open`).
        let slot = unsafe { &*self.at.add(slot * N * 8).cast::<[AtomicU64; N]>() };
        for (to, w) in slot.iter().zip(entry) {
            to.store(*w, Relaxed);
        }
        self.put = self.put.wrapping_add(1);
    }

    /// Rings the doorbell if entries were written since the last time.
    #[inline]
    fn ring(&mut self) {
        if self.rung != self.put {
            self.ring_now();
        }
    }

    #[inline(always)]
    fn ring_now(&mut self) {
        let put = self.put;
        self.rung = put;
        store_fence();
        // SAFETY: libefa reported the register, which is aligned, and mapped while the queue pair
        // is open.
        unsafe { AtomicU32::from_ptr(self.doorbell) }.store(put & 0xffff, Relaxed);
    }
}

/// Orders stores to device memory, which is write-combining, before later stores.
#[inline]
fn store_fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has the instruction.
    unsafe {
        core::arch::x86_64::_mm_sfence();
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier, nothing else.
    unsafe {
        core::arch::asm!("dsb st", options(nostack, preserves_flags));
    }
    fence(Release);
}

/// The reader of a mapped completion queue.
pub(crate) struct Completions {
    at: *mut u8,
    /// Bytes of an entry, as a power of two.
    shift: u32,
    mask: u32,
    /// Completions taken in total, modulo 2^32.
    taken: u32,
}

impl Completions {
    /// `None` for a queue that is not mapped into the process, or has an unknown entry size.
    ///
    /// # Safety
    /// The memory stays while the value is used.
    pub(crate) unsafe fn of(c: &efadv_cq_attr) -> Option<Completions> {
        let known = matches!(c.entry_size, 16 | 32)
            && c.num_entries.is_power_of_two()
            && !c.buffer.is_null();
        known.then_some(Completions {
            at: c.buffer,
            shift: c.entry_size.trailing_zeros(),
            mask: c.num_entries.wrapping_sub(1),
            taken: 0,
        })
    }

    /// Word `i` of the `n`th entry.
    #[inline(always)]
    fn word(&self, n: u32, i: usize) -> &AtomicU64 {
        let slot = (n & self.mask) as usize;
        // SAFETY: the slot lies in the mapped queue, and entries are multiples of 8 bytes.
        let p = unsafe { self.at.add((slot << self.shift) + 8 * i) };
        // SAFETY: aligned; the adapter writes to it, the process does not.
        unsafe { AtomicU64::from_ptr(p.cast()) }
    }

    /// Takes the next completion, except for its last word.
    #[inline(always)]
    fn poll_cqe(&mut self) -> Option<Cqe> {
        let n = self.taken;
        let odd = n & (self.mask + 1) != 0;
        let first = self.word(n, 0).load(Acquire);
        if (first >> 24) & 1 == u64::from(odd) {
            return None;
        }
        let second = self.word(n, 1).load(Relaxed);
        self.taken = n.wrapping_add(1);
        Some(Cqe::new([first, second, 0]))
    }

    /// The last word of the completion taken last; 0 for 16-byte entries.
    fn rest(&self) -> u64 {
        match self.shift {
            0..=4 => 0,
            _ => self.word(self.taken.wrapping_sub(1), 2).load(Relaxed),
        }
    }

    /// Takes the next completion.
    pub(crate) fn next(&mut self) -> Option<Cqe> {
        let c = self.poll_cqe()?;
        Some(c.with(self.rest()))
    }
}

/// See the module text.
pub(crate) struct QueueRings {
    sq: Queue,
    /// [`QueueRings::send`] may have written requests that no doorbell has announced.
    unrung: bool,
    /// The entries of the send queue are wide.
    wide: bool,
    rq: Queue,
    done: Completions,
    cq_doorbell: *mut u32,
    /// Completion events received: the command sequence number of the doorbell.
    heard: u32,
}

/// A work request for the send queue.
pub(crate) struct SendWqe<'a> {
    pub op: WqeOp,
    pub slot: u16,
    pub to_qpn: u16,
    pub qkey: u32,
    pub ah: u16,
    pub imm: Option<u32>,
    pub local: ibv_sge,
    pub more: Option<ibv_sge>,
    pub inline: Option<&'a InlineData>,
    pub remote: (u64, u32),
}

/// Bytes that travel in the work request itself.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InlineData {
    words: [u64; InlineData::MOST / 8],
    len: u16,
}

impl InlineData {
    /// Most inline data of any adapter, bytes.
    pub(crate) const MOST: usize = 80;

    /// Sets the length to `len`, at most [`InlineData::MOST`]. `copy` writes the bytes to the
    /// address that it is passed.
    ///
    /// # Safety
    /// `len` is at most [`InlineData::MOST`], and `copy` writes at most `len` bytes.
    #[inline(always)]
    pub(crate) unsafe fn fill(&mut self, len: usize, copy: impl FnOnce(*mut u8)) {
        self.len = len as u16;
        copy(self.words.as_mut_ptr().cast());
    }

    /// These bytes as inline data, cut after [`InlineData::MOST`].
    pub(crate) fn of(bytes: &[u8]) -> InlineData {
        let mut i = InlineData::default();
        let len = bytes.len().min(InlineData::MOST);
        // SAFETY: there is room for the bytes, which are there to be read.
        unsafe {
            i.fill(len, |to| {
                core::ptr::copy_nonoverlapping(bytes.as_ptr(), to, len)
            });
        }
        i
    }
}

/// Encodes a scatter-gather entry for the adapter.
#[inline]
fn piece(s: &ibv_sge) -> [u64; 2] {
    [u64::from(s.length) | u64::from(s.lkey) << 32, s.addr]
}

/// The word of a read or write that holds its length and its remote key.
#[inline]
fn remote_len(bytes: u32, w: &SendWqe) -> u64 {
    u64::from(bytes) | u64::from(w.remote.1) << 32
}

/// Where a completion queue is; `None` when libefa does not report that.
///
/// # Safety
/// The queue is open.
pub(crate) unsafe fn query_cq(lib: &Lib, cq: *mut ibv_cq) -> Option<efadv_cq_attr> {
    let of = lib.efadv_query_cq?;
    // SAFETY: as promised by the caller; the out-parameter has the right type, and all-zero is a
    // valid value of it.
    unsafe {
        let mut c: efadv_cq_attr = zeroed();
        let told = of(cq, &mut c, size_of::<efadv_cq_attr>() as u32) == 0;
        told.then_some(c)
    }
}

/// Where the send and the receive queue of a queue pair are; `None` when libefa does not report
/// that.
///
/// # Safety
/// The queue pair is open.
pub(crate) unsafe fn query_wqs(lib: &Lib, qp: *mut ibv_qp) -> Option<[efadv_wq_attr; 2]> {
    let of = lib.efadv_query_qp_wqs?;
    // SAFETY: as above.
    unsafe {
        let (mut sq, mut rq): (efadv_wq_attr, efadv_wq_attr) = (zeroed(), zeroed());
        let len = size_of::<efadv_wq_attr>() as u32;
        (of(qp, &mut sq, &mut rq, len) == 0).then_some([sq, rq])
    }
}

/// Describes a completion queue, for a device or program that drives it without the library.
pub(crate) fn memory(c: &efadv_cq_attr) -> QueueMemory {
    QueueMemory {
        buffer: c.buffer as usize,
        doorbell: c.doorbell as usize,
        entry: c.entry_size,
        entries: c.num_entries,
        ..QueueMemory::default()
    }
}

impl QueueRings {
    /// The queues of a queue pair and its completion queue. `None` unless libefa maps them and
    /// their entry sizes are known. A completion queue that notifies has to have a doorbell.
    ///
    /// # Safety
    /// Both are open and stay so while the value is used; nothing was posted to them yet.
    pub(crate) unsafe fn open(
        lib: &Lib,
        qp: *mut ibv_qp,
        cq: *mut ibv_cq,
        notifies: bool,
    ) -> Option<QueueRings> {
        // SAFETY: as promised by the caller.
        let ([sq, rq], c) = unsafe { (query_wqs(lib, qp)?, query_cq(lib, cq)?) };
        let known = matches!(sq.entry_size, NARROW | WIDE)
            && rq.entry_size == RECV_WQE
            && (!notifies || !c.doorbell.is_null());
        known.then_some(())?;
        Some(QueueRings {
            unrung: false,
            sq: Queue::of(&sq)?,
            wide: sq.entry_size == WIDE,
            rq: Queue::of(&rq)?,
            // SAFETY: as promised by the caller.
            done: unsafe { Completions::of(&c)? },
            cq_doorbell: if notifies { c.doorbell } else { null_mut() },
            heard: 0,
        })
    }

    /// Writes a work request. The doorbell rings with [`QueueRings::ring`], or when as many
    /// requests are unannounced as one doorbell may announce (`max_batch`).
    #[inline]
    pub(crate) fn send(&mut self, w: &SendWqe) {
        self.put(w);
        self.unrung = true;
        if self.sq.put.wrapping_sub(self.sq.rung) >= self.sq.batch {
            self.sq.ring();
        }
    }

    /// Writes a work request and rings the doorbell.
    #[inline(always)]
    pub(crate) fn send_now(&mut self, w: &SendWqe) {
        self.put(w);
        self.sq.ring_now();
    }

    #[inline(always)]
    fn put(&mut self, w: &SendWqe) {
        if let Some(i) = w.inline {
            return self.put_inline(w, i);
        }
        let pieces = if w.more.is_some() { 2 } else { 1 };
        let [head, meta, key] = self.meta(w, pieces, 0);
        let [c, d] = piece(&w.local);
        let [a, b, c, d] = match (w.op, &w.more) {
            (WqeOp::Send, None) => [c, d, 0, 0],
            (WqeOp::Send, Some(more)) => [c, d, piece(more)[0], piece(more)[1]],
            _ => [remote_len(w.local.length, w), w.remote.0, c, d],
        };
        let e = [head, meta, key, 0, a, b, c, d];
        match self.wide {
            false => self.sq.write(&e),
            true => self.put_wide(e),
        }
    }

    /// Writes a request without inline data into a wide entry: the first half is the narrow layout.
    #[cold]
    fn put_wide(&mut self, e: [u64; 8]) {
        let mut wide = [0; 16];
        for (to, word) in wide.iter_mut().zip(e) {
            *to = word;
        }
        self.sq.write(&wide);
    }

    /// The first three words; `count` is the number of pieces, or of bytes of inline data.
    #[inline(always)]
    fn meta(&self, w: &SendWqe, count: u16, flags: u8) -> [u64; 3] {
        // The phase bit alternates from round to round.
        let phase = u8::from(self.sq.put & (self.sq.mask + 1) != 0);
        let imm = if w.imm.is_some() { HAS_IMM } else { 0 };
        let ctrl1 = w.op as u8 | flags | imm | META_DESC;
        let head = u64::from(w.slot)
            | u64::from(ctrl1) << 16
            | u64::from(phase | WHOLE) << 24
            | u64::from(w.to_qpn) << 32
            | u64::from(count) << 48;
        // The data of a completion is in network order.
        let meta = u64::from(w.imm.unwrap_or(0).swap_bytes()) | u64::from(w.ah) << 32;
        [head, meta, w.qkey.into()]
    }

    /// Writes a request with inline data: up to 32 bytes of a message, or up to 80 bytes of a
    /// message or write where requests are wide.
    fn put_inline(&mut self, w: &SendWqe, inline: &InlineData) {
        let [head, meta, key] = self.meta(w, inline.len, INLINE);
        let [a, b, c, d, e, f, g, h, i, j] = inline.words;
        let len = remote_len(inline.len.into(), w);
        match (self.wide, w.op) {
            (false, _) => self.sq.write(&[head, meta, key, 0, a, b, c, d]),
            (true, WqeOp::Send) => self
                .sq
                .write(&[head, meta, key, 0, a, b, c, d, e, f, g, h, i, j, 0, 0]),
            (true, _) => self.sq.write(&[
                head, meta, key, 0, len, w.remote.0, a, b, c, d, e, f, g, h, i, j,
            ]),
        }
    }

    /// Whether the doorbell has announced everything that was written.
    #[inline(always)]
    pub(crate) fn rung(&self) -> bool {
        !self.unrung
    }

    /// Rings the doorbell of the send queue, if requests were written since the last time.
    #[inline]
    pub(crate) fn ring(&mut self) {
        self.unrung = false;
        self.sq.ring();
    }

    /// Posts a receive of one or two pieces.
    #[inline]
    pub(crate) fn recv(&mut self, slot: u16, pieces: &[ibv_sge]) {
        let last = pieces.len().saturating_sub(1);
        for (i, s) in pieces.iter().enumerate() {
            let mut ctrl = s.lkey;
            ctrl |= if i == 0 { FIRST } else { 0 };
            ctrl |= if i == last { LAST } else { 0 };
            let len = s.length.min(u16::MAX.into());
            let slot = if i == 0 { slot } else { 0 };
            let rest = u64::from(slot) | u64::from(len) << 16 | u64::from(ctrl) << 32;
            self.rq.write(&[s.addr, rest]);
        }
    }

    /// Rings the doorbell of the receive queue, if receives were posted since the last time.
    #[inline]
    pub(crate) fn ring_recv(&mut self) {
        self.rq.ring();
    }

    /// Takes the next completion, which is always of this queue pair.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<Cqe> {
        self.done.next()
    }

    /// As [`QueueRings::next`], without the last word, which few completions need.
    #[inline(always)]
    pub(crate) fn poll_cqe(&mut self) -> Option<Cqe> {
        self.done.poll_cqe()
    }

    /// Adds the last word to the completion that [`QueueRings::poll_cqe`] took last.
    pub(crate) fn whole(&self, c: Cqe) -> Cqe {
        c.with(self.done.rest())
    }

    /// Takes completions, in the form of libibverbs; `recv` marks receives in `wr_id`.
    #[inline]
    pub(crate) fn poll(&mut self, into: &mut [ibv_wc], recv: u64) -> usize {
        let mut n = 0;
        for to in into {
            let Some(c) = self.next() else { break };
            *to = c.wc(recv);
            n += 1;
        }
        n
    }

    /// Requests an event with the next completion.
    pub(crate) fn arm(&mut self) {
        self.tell(ARM);
    }

    /// Counts a received event: the next doorbell needs the next sequence number.
    pub(crate) fn heard(&mut self) {
        self.heard = self.heard.wrapping_add(1);
    }

    fn tell(&self, arm: u32) {
        if !self.cq_doorbell.is_null() {
            let v = self.done.taken & 0xffff | (self.heard & 3) << 29 | arm;
            // SAFETY: as in `ring_now`; NULL was excluded.
            unsafe { AtomicU32::from_ptr(self.cq_doorbell) }.store(v, Release);
        }
    }
}
