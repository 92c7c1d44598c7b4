//! Registered memory that a domain publishes to same-host peers, and their access to it.
//!
//! A domain publishes its regions in a shared [`MrTable`], which peers map read-only. A peer that
//! the system permits to access our memory (process_vm_readv(2) and process_vm_writev(2)) looks a
//! key up there, checks range and rights as an adapter would, and makes the copy: the target's
//! application and its threads take no part. Other peers use the adapter.
//!
//! A region must not vanish under a copy. An initiator writes the key it uses into its own ring
//! ([`RegionUse`]) before it looks it up; withdrawing takes the key out of the table, and fi_close
//! of the region waits until no initiator uses it ([`MrObserver::in_use`]), holding no lock. A
//! process that has ended uses nothing.
//!
//! Device memory is published by the handle with which a peer opens it; the device copies then,
//! while the key is marked as for other copies.
//!
//! Keys are secrets, and peers see the whole table: the table holds a one-way hash of each key
//! ([`KeyHash`]), and seals handles by the key (`device_slots`).

use super::cma::{self, LocalBuffer};
use super::device_slots;
use crate::core::rng::Rng;
use crate::core::slab::Slab;
use crate::core::sync::{Mutex, MutexGuard};
use crate::core::Result;
use crate::device::MrObserver;
use crate::hmem::{self, IpcHandle, MemKind, Piece, Segment, UserMem};
use crate::shm::memfd::MemfdMap;
use crate::shm::ring::RingSegment;
use crate::transport::Status;
use crate::types::*;
use core::sync::atomic::{fence, AtomicBool, AtomicU64, Ordering::*};
use siphasher::sip::SipHasher24;
use std::hash::Hasher;
use std::os::fd::OwnedFd;
use std::sync::Arc;

const ENTRIES: usize = 1 << 16;
const ENTRY: usize = 32;
const HEAD: usize = 4096;
/// Where the handles of device memory are.
const HANDLES: usize = HEAD + ENTRIES * ENTRY;
/// Bytes of the file; what is not used takes no memory.
pub(crate) const FILE: usize = HANDLES + device_slots::BYTES;
/// Slots that may hold a key, from the slot of its hash on. A region that finds none of them free
/// is reached through the adapter.
const TRIES: usize = 16;
/// Word of the head: whether the domain asks for events of accesses.
const EVENTS: usize = 64;
/// Word of the head: whether there has been a region of device memory.
const DEVICES: usize = EVENTS + 8;
/// First word of an entry: the key's tag and what it permits.
const USED: u64 = 1 << 63;
const READ: u64 = 1 << 62;
const WRITE: u64 = 1 << 61;
/// The region is device memory: the last word of the entry is the slot of the handle, and no
/// address.
const DEVICE: u64 = 1 << 60;
/// Bits of the first word that are not the tag's.
const FLAGS: u64 = USED | READ | WRITE | DEVICE;

/// Words of a ring's segment that name the key its writer uses, for its own copies and for accesses
/// it executes.
pub(crate) const COPY_KEY: usize = 192;
pub(crate) const EXECUTE_KEY: usize = COPY_KEY + 8;
/// Words that name the keys of regions of device memory of which copies are under way.
pub(crate) const DEVICE_KEYS: usize = 2048;
pub(crate) const DEVICE_KEYS_COUNT: usize = 8;

/// Most rings that are kept although their readers are gone.
const LEFT_MAX: usize = 256;

/// Whether the writer of a ring has copies under way from or to device memory of ours.
pub(crate) fn names_device_regions(ring: &RingSegment) -> bool {
    let mut words = device_keys().into_iter().map(|at| ring.word(at));
    words.any(|w| w.load(Acquire) != 0)
}

fn device_keys() -> [usize; DEVICE_KEYS_COUNT] {
    core::array::from_fn(|i| DEVICE_KEYS + 8 * i)
}

/// The one-way hash of a key, as it is in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyHash(u64);

impl KeyHash {
    pub(in crate::shm) fn of(key: u64) -> KeyHash {
        let mut h = SipHasher24::new_with_keys(0x6c66_722d_7368_6d32, 0x6b65_7973);
        h.write_u64(key);
        KeyHash(h.finish() & !FLAGS)
    }

    /// Shows the owner of the region, by a word of the ring, that it is in use.
    pub(in crate::shm) fn mark(self, word: &AtomicU64) {
        word.store(self.0 | USED, Relaxed);
        // The mark is visible before the table is read.
        fence(SeqCst);
    }

    /// Takes back [`KeyHash::mark`].
    pub(in crate::shm) fn unmark(word: &AtomicU64) {
        word.store(0, Release);
    }

    fn place(self, i: usize) -> usize {
        HEAD + (self.0 as usize + i) % ENTRIES * ENTRY
    }
}

/// Hashes of the keys used last: most programs use few.
#[derive(Debug, Default)]
pub(crate) struct KeyHashes {
    last: [Option<(u64, KeyHash)>; 2],
}

impl KeyHashes {
    /// The hash of a key.
    #[inline(always)]
    pub(crate) fn of(&mut self, key: u64) -> KeyHash {
        match self.last {
            [Some((k, t)), _] if k == key => t,
            [_, Some((k, t))] if k == key => t,
            _ => self.compute(key),
        }
    }

    #[cold]
    fn compute(&mut self, key: u64) -> KeyHash {
        let t = KeyHash::of(key);
        let [newest, other] = &mut self.last;
        *other = newest.replace((key, t));
        t
    }
}

/// A process that may use our memory: its ring, and whether it has ended.
struct MrUser {
    /// Kept when its reader is gone: the process may still be copying.
    ring: Arc<RingSegment>,
    ended: Arc<AtomicBool>,
}

impl MrUser {
    /// Whether it uses no region now, and begins no access any more.
    fn is_done(&self) -> bool {
        if self.ended.load(SeqCst) {
            return true;
        }
        let gone = self.ring.reader_gone();
        // Whoever marks a region from now on finds that the reader is gone.
        fence(SeqCst);
        let all = [COPY_KEY, EXECUTE_KEY].into_iter().chain(device_keys());
        let mut marks = all.map(|at| self.ring.word(at));
        gone && marks.all(|w| w.load(Acquire) == 0)
    }
}

/// The owner's side. Thread safe.
pub struct MrTable {
    map: MemfdMap,
    /// Slots of handles that are in use.
    slots: Mutex<Slab<()>>,
    /// Held by whoever changes entries: registrations of several threads look for free ones.
    changes: Mutex<()>,
    users: Mutex<Vec<MrUser>>,
    /// A word of our own memory that shows whether a peer can read it.
    probe: Box<u64>,
}

impl MrTable {
    /// An empty table. `FI_ENOMEM` when there is no memory for it.
    pub fn new(seed: u64) -> Result<MrTable> {
        let map = MemfdMap::create(FILE)?;
        map.forbid_writing();
        Ok(MrTable {
            map,
            slots: Mutex::default(),
            changes: Mutex::default(),
            users: Mutex::default(),
            probe: Box::new(Rng::new(seed).bits()),
        })
    }

    /// Its descriptor, and address and value of a word by which a peer tests whether it can read
    /// our memory.
    pub fn offer(&self) -> (i32, u64, u64) {
        let at = core::ptr::from_ref::<u64>(&self.probe);
        (self.map.fd(), at as u64, *self.probe)
    }

    /// Registers a peer that may use our memory, by its ring; `ended` is set when its process has
    /// ended.
    pub fn add_user(&self, ring: &Arc<RingSegment>, ended: &Arc<AtomicBool>) {
        let mut v = self.users();
        // The marks are the peer's: one that never takes them back does not use up our memory.
        let left = v.iter().filter(|u| u.ring.reader_gone()).count();
        if left > LEFT_MAX {
            let oldest = v.iter().position(|u| u.ring.reader_gone());
            oldest.map(|at| v.remove(at));
        }
        v.push(MrUser {
            ring: Arc::clone(ring),
            ended: Arc::clone(ended),
        });
    }

    /// Lets go of the rings of peers that use no region any more.
    pub fn drop_done(&self) {
        drop(self.users());
    }

    /// The peers that may use our memory, without those that no longer do.
    fn users(&self) -> MutexGuard<'_, Vec<MrUser>> {
        let mut v = self.users.lock().unwrap_or_else(|e| e.into_inner());
        v.retain(|u| !u.is_done());
        v
    }

    /// Our own memory that a peer names, valid until its region is withdrawn. `None` for memory
    /// that is not in the table or not permitted: the adapter reports the error, or reaches the
    /// region.
    #[inline]
    pub fn own(&self, tag: KeyHash, addr: u64, len: usize, write: bool) -> Option<Piece> {
        let at = find(&self.map, tag, addr, len as u64, write).ok()?;
        // SAFETY: the region's owner lends it until it is withdrawn (see `MrObserver::add`).
        unsafe { Piece::new(at as *const _, len) }
    }

    fn slots(&self) -> MutexGuard<'_, Slab<()>> {
        self.slots.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Publishes the handle by which peers open device memory; returns its slot. `None` for memory
    /// that cannot be shared, and when all slots are in use.
    fn publish_handle(&self, key: u64, mem: &Segment) -> Option<u64> {
        let handle = hmem::share(mem).ok()?;
        let slot = u64::from(device_slots::take(&mut self.slots())?);
        device_slots::write(&self.map, (HANDLES, slot), key, (mem.kind(), &handle));
        self.map.word(DEVICES).store(1, Release);
        Some(slot)
    }

    /// Whether a live peer names a region in one of these words of its ring.
    fn marked(&self, key: u64, words: impl IntoIterator<Item = usize> + Copy) -> bool {
        let mark = KeyHash::of(key).0 | USED;
        self.users().iter().any(|u| {
            let mut words = words.into_iter();
            words.any(|at| u.ring.word(at).load(Acquire) == mark)
        })
    }

    /// Whether a peer's device may copy to or from a region. As [`MrObserver::in_use`], but a peer
    /// notices the end of such a copy when it polls.
    pub fn used_by_devices(&self, key: u64) -> bool {
        self.marked(key, device_keys())
    }

    /// Asks peers to report their accesses.
    pub fn want_events(&self) {
        self.map.word(EVENTS).store(1, Release);
    }
}

impl MrObserver for MrTable {
    fn add(&self, key: u64, base: u64, mem: &UserMem, access: u64) {
        // Peers can access memory in one piece; the adapter reaches everything else.
        let Some(p) = mem.single().filter(|p| !p.is_empty()) else {
            return;
        };
        let (len, tag) = (p.len(), KeyHash::of(key));
        let _alone = self.changes.lock().unwrap_or_else(|e| e.into_inner());
        let free = (0..TRIES)
            .map(|i| tag.place(i))
            .find(|p| self.map.word(*p).load(Relaxed) == 0);
        let Some(entry) = free else { return };
        let rights = [(FI_REMOTE_READ, READ), (FI_REMOTE_WRITE, WRITE)];
        let rights = rights
            .iter()
            .filter(|(a, _)| access & a != 0)
            .map(|(_, r)| r)
            .sum::<u64>();
        let (at, device) = match p.host() {
            Some(_) => (p.addr() as u64, 0),
            None if rights == 0 => return,
            None => match self.publish_handle(key, &p) {
                Some(slot) => (slot, DEVICE),
                None => return,
            },
        };
        for (i, v) in [base, len as u64, at].into_iter().enumerate() {
            self.map.word(entry + 8 + 8 * i).store(v, Relaxed);
        }
        let word = USED | rights | device | tag.0;
        self.map.word(entry).store(word, Release);
    }

    fn remove(&self, key: u64) {
        let tag = KeyHash::of(key);
        let _alone = self.changes.lock().unwrap_or_else(|e| e.into_inner());
        let of = |w: u64| w & !(READ | WRITE | DEVICE) == USED | tag.0;
        for p in (0..TRIES).map(|i| tag.place(i)) {
            let entry = self.map.word(p);
            let w = entry.load(Relaxed);
            if !of(w) {
                continue;
            }
            entry.store(0, Relaxed);
            fence(SeqCst);
            if w & DEVICE != 0 {
                let slot = self.map.word(p + 24).load(Relaxed);
                self.slots().free(slot as u32);
            }
        }
        fence(SeqCst);
    }

    fn in_use(&self, key: u64) -> bool {
        self.marked(key, [COPY_KEY, EXECUTE_KEY])
    }
}

/// Why a copy was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RmaDenied {
    /// The status that an adapter would report.
    Status(Status),
    /// Not possible through shared memory.
    Unsupported,
}

/// The last word of the entry of a key, and how far an address is from the region's first; an
/// entry of device memory (`device` is [`DEVICE`]), or of host memory (0).
#[inline(always)]
fn entry(
    table: &MemfdMap,
    (tag, device): (KeyHash, u64),
    (addr, len): (u64, u64),
    write: bool,
) -> core::result::Result<(u64, u64), RmaDenied> {
    let need = if write { WRITE } else { READ };
    for p in (0..TRIES).map(|i| tag.place(i)) {
        let entry = table.words::<4>(p);
        let w = entry[0].load(Acquire);
        if w & !(READ | WRITE) != USED | device | tag.0 {
            continue;
        }
        let [base, size, at] = [1, 2, 3].map(|i| entry[i].load(Relaxed));
        fence(Acquire);
        if entry[0].load(Relaxed) != w {
            continue;
        }
        let off = addr.wrapping_sub(base);
        if w & need == 0 || addr < base || off > size || len > size - off {
            return Err(RmaDenied::Status(Status::RemoteBadKey));
        }
        return Ok((at, off));
    }
    // The key is not published, or does not exist: the adapter decides.
    Err(RmaDenied::Unsupported)
}

/// Where in its owner's host memory the bytes are that a key and an address name.
#[inline]
fn find(
    table: &MemfdMap,
    tag: KeyHash,
    addr: u64,
    len: u64,
    write: bool,
) -> core::result::Result<u64, RmaDenied> {
    let (at, off) = entry(table, (tag, 0), (addr, len), write)?;
    Ok(at.wrapping_add(off))
}

/// The initiator's side: a peer's table, and the process it is of.
pub(crate) struct RemoteMrTable {
    pid: i32,
    /// The connection that the table came by has ended: the process may have closed its endpoint,
    /// or be another program, or another process with this number.
    ended: Arc<AtomicBool>,
    table: MemfdMap,
}

impl RemoteMrTable {
    /// A peer's table, if the system lets us into the peer's memory; `peer`: its process, and
    /// whether the connection with it has ended.
    pub(crate) fn new(
        (pid, ended): (i32, &Arc<AtomicBool>),
        table: OwnedFd,
        probe: (u64, u64),
    ) -> Option<RemoteMrTable> {
        let table = MemfdMap::open_to_read(table, FILE..=FILE).ok()?;
        let mut word = [0u8; 8];
        let at = core::ptr::from_mut(&mut word).cast_const().cast();
        // SAFETY: the word lives to the end of this function.
        let local = unsafe { UserMem::new([(at, 8)]) }?;
        let reads = cma::copy(pid, false, &LocalBuffer::Mem(&local), 0, probe.0) == 8;
        (pid > 0 && reads && u64::from_ne_bytes(word) == probe.1).then(|| RemoteMrTable {
            pid,
            ended: Arc::clone(ended),
            table,
        })
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Relaxed)
    }

    /// Whether the peer asks for events of accesses.
    pub(crate) fn events(&self) -> bool {
        self.table.word(EVENTS).load(Relaxed) != 0
    }

    /// Whether the peer has had a region of device memory.
    pub(crate) fn devices(&self) -> bool {
        self.table.word(DEVICES).load(Relaxed) != 0
    }

    /// Whether a key permits reading or writing `len` bytes there, by the table as it is now.
    pub(crate) fn permits(&self, tag: KeyHash, addr: u64, len: usize, write: bool) -> bool {
        find(&self.table, tag, addr, len as u64, write).is_ok()
    }

    /// How the device memory is opened that a key and an address name.
    pub(crate) fn find_device(
        &self,
        (key, tag): (u64, KeyHash),
        at: (u64, u64),
        write: bool,
    ) -> core::result::Result<(MemKind, IpcHandle), RmaDenied> {
        let find = || entry(&self.table, (tag, DEVICE), at, write);
        let (slot, off) = find()?;
        let shared = device_slots::read(&self.table, (HANDLES, slot), key);
        fence(Acquire);
        // The region may have been withdrawn, and its slot be another's.
        let (kind, mut handle) = shared
            .filter(|_| find() == Ok((slot, off)))
            .ok_or(RmaDenied::Unsupported)?;
        handle.offset = handle.offset.wrapping_add(off);
        Ok((kind, handle))
    }

    /// Writes `local` to, or reads it from, memory at an address that the peer has sent. `false`
    /// when not all of it was copied.
    pub(crate) fn cma_copy(&self, write: bool, local: &LocalBuffer, at: u64) -> bool {
        !self.has_ended() && cma::copy_all(self.pid, write, local, at).is_ok() && !self.has_ended()
    }

    /// Fills up to [`MANY`] pieces from memory at addresses that the peer has sent, by one system
    /// call. Returns how many were filled, counted from the first.
    pub(crate) fn cma_read_batch(&self, parts: impl Iterator<Item = (Piece, u64)>) -> usize {
        match self.has_ended() {
            true => 0,
            false => cma::copy_batch(self.pid, false, parts),
        }
    }

    /// Writes `local` to, or reads it from, a region of the peer. `mark` is the word of the ring
    /// that shows the peer that the region is in use.
    pub(crate) fn access(
        &self,
        mark: (&RingSegment, usize),
        write: bool,
        local: &LocalBuffer,
        tag: KeyHash,
        addr: u64,
    ) -> core::result::Result<(), RmaDenied> {
        let _used = RegionUse::new(mark, tag).ok_or(RmaDenied::Unsupported)?;
        if self.has_ended() {
            return Err(RmaDenied::Status(Status::RemoteUnresponsive));
        }
        let at = find(&self.table, tag, addr, local.byte_len() as u64, write)?;
        cma::copy_all(self.pid, write, local, at).map_err(|none| {
            match none && cma::process_gone() {
                true => RmaDenied::Status(Status::RemoteUnresponsive),
                // The system has copied nothing, or not all: the adapter starts again, or reports
                // the error.
                false => RmaDenied::Unsupported,
            }
        })
    }

    /// As [`RemoteMrTable::access`], up to [`MANY`] pieces by one system call. Returns how many
    /// were copied, counted from the first.
    pub(crate) fn access_batch(
        &self,
        mark: (&RingSegment, usize),
        write: bool,
        tag: KeyHash,
        parts: impl Iterator<Item = (Piece, u64)>,
    ) -> usize {
        let used = RegionUse::new(mark, tag);
        if used.is_none() || self.has_ended() {
            return 0;
        }
        let found = parts.map_while(|(piece, addr)| {
            let at = find(&self.table, tag, addr, piece.len() as u64, write);
            Some((piece, at.ok()?))
        });
        cma::copy_batch(self.pid, write, found)
    }
}

/// Keeps a region of the peer from being closed while this value lives.
pub(crate) struct RegionUse<'a>(&'a AtomicU64);

impl RegionUse<'_> {
    /// `None` when the reader of the ring is gone: it no longer looks at the word `at`.
    #[inline]
    pub(crate) fn new((ring, at): (&RingSegment, usize), tag: KeyHash) -> Option<RegionUse<'_>> {
        tag.mark(ring.word(at));
        let used = RegionUse(ring.word(at));
        (!ring.reader_gone()).then_some(used)
    }
}

impl Drop for RegionUse<'_> {
    fn drop(&mut self) {
        KeyHash::unmark(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::MANY;
    use super::*;
    use crate::shm::ring::RingReader;

    fn visit_of(t: &MrTable) -> Option<RemoteMrTable> {
        use std::os::fd::FromRawFd;
        let (fd, at, value) = t.offer();
        // SAFETY: a duplicate of our own descriptor, owned from here on.
        let fd = unsafe { OwnedFd::from_raw_fd(libc::dup(fd)) };
        RemoteMrTable::new(
            (std::process::id() as i32, &Arc::default()),
            fd,
            (at, value),
        )
    }

    fn mem(b: &mut [u8]) -> UserMem {
        // SAFETY: the buffers of these tests outlive what is made of them.
        unsafe { UserMem::new([(b.as_mut_ptr().cast_const().cast(), b.len())]) }.unwrap()
    }

    #[test]
    fn keys_ranges_and_rights_are_checked() {
        let t = MrTable::new(1).unwrap();
        // Without cross-memory attach there is nothing to check.
        let Some(v) = visit_of(&t) else { return };
        let ring = RingSegment::create().unwrap();
        let (mut far, mut near) = ([7u8; 64], [1u8; 16]);
        let far_mem = mem(&mut far);
        t.add(5, 1000, &far_mem, FI_REMOTE_READ);
        let near_mem = mem(&mut near);
        let go = |write, key, addr| {
            v.access(
                (&ring, COPY_KEY),
                write,
                &LocalBuffer::Mem(&near_mem),
                KeyHash::of(key),
                addr,
            )
        };
        assert_eq!(go(false, 5, 1048), Ok(()));
        assert_eq!(
            go(false, 5, 1049),
            Err(RmaDenied::Status(Status::RemoteBadKey))
        );
        assert_eq!(
            go(false, 5, 999),
            Err(RmaDenied::Status(Status::RemoteBadKey))
        );
        assert_eq!(
            go(false, 5, u64::MAX),
            Err(RmaDenied::Status(Status::RemoteBadKey))
        );
        assert_eq!(
            go(true, 5, 1000),
            Err(RmaDenied::Status(Status::RemoteBadKey))
        );
        assert_eq!(go(false, 6, 1000), Err(RmaDenied::Unsupported));
        t.remove(5);
        assert_eq!(go(false, 5, 1000), Err(RmaDenied::Unsupported));
        t.add(5, 0, &far_mem, FI_REMOTE_WRITE | FI_REMOTE_READ);
        let one = [9u8; 16];
        near_mem.store(0, &one);
        assert_eq!(go(true, 5, 48), Ok(()));
        let mut seen = [0; 64];
        far_mem.load(0, &mut seen);
        assert_eq!((seen[47], seen[48], seen[63]), (7, 9, 9));
        assert_eq!(
            v.access(
                (&ring, COPY_KEY),
                true,
                &LocalBuffer::Bytes(&[4, 4]),
                KeyHash::of(5),
                0
            ),
            Ok(())
        );
        far_mem.load(0, &mut seen);
        assert_eq!((seen[1], seen[2]), (4, 7));
        assert_eq!(ring.word(COPY_KEY).load(Relaxed), 0);
    }

    #[test]
    fn nothing_is_copied_once_the_connection_has_ended() {
        let t = MrTable::new(1).unwrap();
        let Some(v) = visit_of(&t) else { return };
        let (mut far, mut near) = ([7u8; 16], [1u8; 16]);
        let at = far.as_ptr() as u64;
        t.add(5, 0, &mem(&mut far), FI_REMOTE_READ);
        let near_mem = mem(&mut near);
        let into = LocalBuffer::Mem(&near_mem);
        assert!(v.cma_copy(false, &into, at));
        v.ended.store(true, SeqCst);
        assert!(!v.cma_copy(false, &into, at));
        let ring = RingSegment::create().unwrap();
        let accessed = v.access((&ring, COPY_KEY), false, &into, KeyHash::of(5), 0);
        let gone = RmaDenied::Status(Status::RemoteUnresponsive);
        assert_eq!(accessed, Err(gone));
    }

    #[test]
    fn several_are_copied_by_one_call() {
        let t = MrTable::new(1).unwrap();
        let Some(v) = visit_of(&t) else { return };
        let ring = RingSegment::create().unwrap();
        let mut far: Vec<u8> = (0..64).collect();
        let mut near = [0u8; 64];
        t.add(5, 1000, &mem(&mut far), FI_REMOTE_READ);
        let near = mem(&mut near).one().unwrap();
        // Two pieces that are adjacent on both sides, one only here, one only there, and an empty
        // one.
        let parts = [(0, 8, 0), (8, 8, 8), (16, 8, 32), (30, 2, 40), (40, 0, 63)];
        let go = |parts: &[(usize, usize, u64)]| {
            let of = |(here, len, there): &(_, _, u64)| (near.part(*here, *len), 1000 + *there);
            v.access_batch(
                (&ring, COPY_KEY),
                false,
                KeyHash::of(5),
                parts.iter().map(of),
            )
        };
        assert_eq!(go(&parts), parts.len());
        let mut seen = [0; 48];
        near.load(&mut seen);
        for (here, len, there) in parts {
            let there = there as u8;
            let is: Vec<u8> = (there..there + len as u8).collect();
            assert_eq!(seen.get(here..here + len), Some(&is[..]));
        }
        // Pieces after one that is not permitted are not copied, and no more than one call takes.
        assert_eq!(go(&[(0, 8, 0), (8, 9, 56), (16, 8, 8)]), 1);
        assert_eq!(go(&[(0, 1, 0); MANY + 1]), MANY);
        assert_eq!(go(&[]), 0);
        assert_eq!(ring.word(COPY_KEY).load(Relaxed), 0);
    }

    #[test]
    fn a_full_neighbourhood_leaves_regions_to_the_adapter_and_slots_come_back() {
        let t = MrTable::new(1).unwrap();
        let Some(v) = visit_of(&t) else { return };
        let ring = RingSegment::create().unwrap();
        let (mut far, mut near) = ([7u8; 64], [1u8; 8]);
        let (far, near) = (mem(&mut far), mem(&mut near));
        for key in 1..=3 * ENTRIES as u64 / 2 {
            t.add(key, 0, &far, FI_REMOTE_READ);
        }
        let reach = |key| {
            v.access(
                (&ring, COPY_KEY),
                false,
                &LocalBuffer::Mem(&near),
                KeyHash::of(key),
                0,
            )
            .is_ok()
        };
        let before = (1..=2000).filter(|k| reach(*k)).count();
        assert!(before > 1000, "{before}");
        for key in 1..=3 * ENTRIES as u64 / 2 {
            t.remove(key);
        }
        assert!(!(1..=2000).any(reach));
        t.add(7, 0, &far, FI_REMOTE_READ);
        assert!(reach(7));
    }

    #[test]
    fn a_region_is_in_use_while_a_live_visitor_marks_it() {
        let t = MrTable::new(1).unwrap();
        let ring = Arc::new(RingSegment::create().unwrap());
        let ended = Arc::new(AtomicBool::new(false));
        t.add_user(&ring, &ended);
        let mut far = [7u8; 64];
        t.add(5, 0, &mem(&mut far), FI_REMOTE_READ);
        assert!(!t.in_use(5));
        ring.word(COPY_KEY).store(USED | KeyHash::of(5).0, SeqCst);
        // `remove` does not wait; fi_close of the region tests `in_use`.
        t.remove(5);
        assert!(t.in_use(5) && !t.in_use(6));
        ring.word(COPY_KEY).store(0, SeqCst);
        assert!(!t.in_use(5));
        ring.word(DEVICE_KEYS + 8)
            .store(USED | KeyHash::of(5).0, SeqCst);
        assert!(t.used_by_devices(5) && !t.in_use(5));
        // A process that ended in the middle of an access is not waited for.
        ring.word(EXECUTE_KEY)
            .store(USED | KeyHash::of(5).0, SeqCst);
        assert!(t.in_use(5));
        ended.store(true, SeqCst);
        assert!(!t.in_use(5) && !t.used_by_devices(5));
    }

    /// The endpoint is closed before the region: what a peer has begun is waited for all the same.
    #[test]
    fn a_region_is_in_use_although_the_reader_of_the_ring_is_gone() {
        let t = MrTable::new(1).unwrap();
        let ring = Arc::new(RingSegment::create().unwrap());
        let reader = RingReader::new(Arc::clone(&ring));
        t.add_user(&ring, &Arc::default());
        let tag = KeyHash::of(5);
        let used = RegionUse::new((&ring, COPY_KEY), tag);
        assert!(used.is_some());
        drop(reader);
        assert!(t.in_use(5));
        assert!(RegionUse::new((&ring, EXECUTE_KEY), tag).is_none());
        drop(used);
        assert!(!t.in_use(5));
        // The table has let go of the ring, which no access uses any more.
        assert_eq!(Arc::strong_count(&ring), 1);
    }

    #[test]
    fn peers_see_no_keys() {
        let t = MrTable::new(1).unwrap();
        let mut far = [7u8; 64];
        let key = 0x0123_4567_89ab_cdef;
        t.add(key, 0, &mem(&mut far), FI_REMOTE_READ);
        for at in (HEAD..FILE).step_by(8) {
            let w = t.map.word(at).load(Relaxed);
            assert!(w & !(USED | READ | WRITE) != key & !(USED | READ | WRITE));
        }
    }
}
