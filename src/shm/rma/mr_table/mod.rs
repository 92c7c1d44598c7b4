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
//! ([`KeyHash`]), and seals handles by the key (`device_slots`). `remote` is the initiator's side.

mod key_hash;
mod remote;
#[cfg(test)]
mod tests;

use super::device_slots;
use crate::core::rng::Rng;
use crate::core::slab::Slab;
use crate::core::sync::{Mutex, MutexGuard, Unpoisoned};
use crate::core::Result;
use crate::device::MrObserver;
use crate::hmem::{self, IpcHandle, MemKind, Piece, Segment, UserMem};
use crate::shm::memfd::MemfdMap;
use crate::shm::ring::RingSegment;
use crate::transport::Status;
use crate::types::*;
use core::sync::atomic::{fence, AtomicBool, AtomicU64, Ordering::*};
use std::sync::Arc;

pub(crate) use key_hash::{KeyHash, KeyHashes};
pub(crate) use remote::{RegionUse, RemoteMrTable, RmaDenied};

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
/// First word of an entry: the key's hash and what it permits.
const USED: u64 = 1 << 63;
const READ: u64 = 1 << 62;
const WRITE: u64 = 1 << 61;
/// The region is device memory: the last word of the entry is the slot of the handle, and no
/// address.
const DEVICE: u64 = 1 << 60;
/// Bits of the first word that are not the hash's.
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
        // A peer that marks a region from now on finds that the reader is gone.
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
    /// Held while entries change: several threads may look for free ones.
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

    /// Releases the rings of peers that use no region any more.
    pub fn drop_done(&self) {
        drop(self.users());
    }

    /// The peers that may use our memory, without those that no longer do.
    fn users(&self) -> MutexGuard<'_, Vec<MrUser>> {
        let mut v = self.users.lock().unpoisoned();
        v.retain(|u| !u.is_done());
        v
    }

    /// Our own memory that a peer names, valid until its region is withdrawn. `None` for memory
    /// that is not in the table or not permitted: the adapter reports the error, or reaches the
    /// region.
    #[inline]
    pub fn own(&self, hash: KeyHash, addr: u64, len: usize, write: bool) -> Option<Piece> {
        let at = find(&self.map, hash, addr, len as u64, write).ok()?;
        // SAFETY: the region's owner lends it until it is withdrawn (see `MrObserver::add`).
        unsafe { Piece::new(at as *const _, len) }
    }

    fn slots(&self) -> MutexGuard<'_, Slab<()>> {
        self.slots.lock().unpoisoned()
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
        let (len, hash) = (p.len(), KeyHash::of(key));
        let _alone = self.changes.lock().unpoisoned();
        let free = (0..TRIES)
            .map(|i| hash.place(i))
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
        let word = USED | rights | device | hash.0;
        self.map.word(entry).store(word, Release);
    }

    fn remove(&self, key: u64) {
        let hash = KeyHash::of(key);
        let _alone = self.changes.lock().unpoisoned();
        let of = |w: u64| w & !(READ | WRITE | DEVICE) == USED | hash.0;
        for p in (0..TRIES).map(|i| hash.place(i)) {
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

/// The last word of the entry of a key, and how far an address is from the region's first; an
/// entry of device memory (`device` is [`DEVICE`]), or of host memory (0).
#[inline(always)]
fn entry(
    table: &MemfdMap,
    (hash, device): (KeyHash, u64),
    (addr, len): (u64, u64),
    write: bool,
) -> core::result::Result<(u64, u64), RmaDenied> {
    let need = if write { WRITE } else { READ };
    for p in (0..TRIES).map(|i| hash.place(i)) {
        let entry = table.words::<4>(p);
        let w = entry[0].load(Acquire);
        if w & !(READ | WRITE) != USED | device | hash.0 {
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
    hash: KeyHash,
    addr: u64,
    len: u64,
    write: bool,
) -> core::result::Result<u64, RmaDenied> {
    let (at, off) = entry(table, (hash, 0), (addr, len), write)?;
    Ok(at.wrapping_add(off))
}
