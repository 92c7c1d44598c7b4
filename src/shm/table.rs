//! Registered memory as same-host peers see it, and how they reach it.
//!
//! A domain publishes its regions in a shared [`Table`], which peers map read-only. A peer that the
//! system lets into our address space (process_vm_readv(2) and process_vm_writev(2)) looks a key up
//! there, checks range and rights as an adapter would, and copies by itself: the target's
//! application and its threads have no part in it. Whoever may not goes through the adapter.
//!
//! A region must not vanish under a copy. A visitor writes the key it uses into its own ring
//! ([`Visit`]) before it looks it up; withdrawing takes the key out of the table, and whoever
//! closes the region waits until no visitor uses it ([`Directory::in_use`]), holding no lock. A
//! process that has ended uses nothing.
//!
//! Keys are secrets, and peers see the whole table: what stands in it is a one-way hash of a key
//! ([`Tag`]).

use super::bed::Bed;
use super::segment::Map;
use crate::core::rng::Rng;
use crate::core::sync::Mutex;
use crate::core::Result;
use crate::device::{Directory, Status};
use crate::hmem::{Piece, UserMem};
use crate::types::*;
use core::sync::atomic::{fence, AtomicBool, AtomicU64, Ordering::*};
use siphasher::sip::SipHasher24;
use std::hash::Hasher;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

const ENTRIES: usize = 1 << 16;
const ENTRY: usize = 32;
const HEAD: usize = 4096;
/// Bytes of the file; what is not used takes no memory.
pub const FILE: usize = HEAD + ENTRIES * ENTRY;
/// Places a key may be in, from its own on. A region that finds none of them free is reached
/// through the adapter.
const TRIES: usize = 16;
/// Pieces that one call of the system copies at most.
pub const MANY: usize = 16;
/// Word of the head: whether the domain wants to hear of accesses.
const EVENTS: usize = 64;
/// First word of an entry: the key's tag and what it permits.
const USED: u64 = 1 << 63;
const READ: u64 = 1 << 62;
const WRITE: u64 = 1 << 61;

/// Where in its ring's file a visitor says which key it uses, and where for accesses it takes back.
pub const VISIT: usize = 192;
pub const VISIT_ASIDE: usize = VISIT + 8;

/// What stands for a key in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag(u64);

impl Tag {
    pub(super) fn of(key: u64) -> Tag {
        let mut h = SipHasher24::new_with_keys(0x6c66_722d_7368_6d32, 0x6b65_7973);
        h.write_u64(key);
        Tag(h.finish() & !(USED | READ | WRITE))
    }

    fn place(self, i: usize) -> usize {
        HEAD + (self.0 as usize + i) % ENTRIES * ENTRY
    }
}

/// The tags of the keys used last: most programs use few.
#[derive(Debug, Default)]
pub struct Tags {
    last: [Option<(u64, Tag)>; 2],
}

impl Tags {
    /// The tag of a key.
    #[inline(always)]
    pub fn of(&mut self, key: u64) -> Tag {
        match self.last {
            [Some((k, t)), _] if k == key => t,
            [_, Some((k, t))] if k == key => t,
            _ => self.compute(key),
        }
    }

    #[cold]
    fn compute(&mut self, key: u64) -> Tag {
        let t = Tag::of(key);
        let [newest, other] = &mut self.last;
        *other = newest.replace((key, t));
        t
    }
}

/// A process that may use our memory: its ring, and whether it has ended.
struct Visitor {
    ring: Weak<Bed>,
    ended: Arc<AtomicBool>,
}

/// The owner's side. Thread safe.
pub struct Table {
    map: Map,
    visitors: Mutex<Vec<Visitor>>,
    /// A word of our own memory that shows whether a peer can read it.
    probe: Box<u64>,
}

impl Table {
    /// An empty table. `FI_ENOMEM` when there is no memory for it.
    pub fn new(seed: u64) -> Result<Table> {
        let map = Map::create(FILE)?;
        map.forbid_writing();
        Ok(Table {
            map,
            visitors: Mutex::default(),
            probe: Box::new(Rng::new(seed).bits()),
        })
    }

    /// Its descriptor, and address and value of a word that tells whether our memory can be read.
    pub fn offer(&self) -> (i32, u64, u64) {
        let at = core::ptr::from_ref::<u64>(&self.probe);
        (self.map.fd(), at as u64, *self.probe)
    }

    /// A peer that may come in, by the ring it has given us; `ended` when its process has.
    pub fn visitor(&self, ring: &Arc<Bed>, ended: &Arc<AtomicBool>) {
        let mut v = self.visitors.lock().unwrap_or_else(|e| e.into_inner());
        v.retain(|w| w.ring.strong_count() > 0);
        v.push(Visitor {
            ring: Arc::downgrade(ring),
            ended: Arc::clone(ended),
        });
    }

    /// Our own memory that a peer names, as long as its region is not withdrawn; `None` for the
    /// adapter to say what is wrong, or where it is.
    #[inline]
    pub fn own(&self, tag: Tag, addr: u64, len: usize, write: bool) -> Option<Piece> {
        let at = find(&self.map, tag, addr, len as u64, write).ok()?;
        // SAFETY: the region's owner lends it until it is withdrawn (see `Directory::add`).
        unsafe { Piece::new(at as *const _, len) }
    }

    /// Asks visitors to report what they did.
    pub fn want_events(&self) {
        self.map.word(EVENTS).store(1, Release);
    }
}

impl Directory for Table {
    fn add(&self, key: u64, base: u64, mem: &UserMem, access: u64) {
        let mut pieces = mem.pieces();
        let (Some((at, len)), None) = (pieces.next(), pieces.next()) else {
            return;
        };
        let tag = Tag::of(key);
        let free = (0..TRIES)
            .map(|i| tag.place(i))
            .find(|p| self.map.word(*p).load(Relaxed) == 0);
        let Some(p) = free else { return };
        let rights = [(FI_REMOTE_READ, READ), (FI_REMOTE_WRITE, WRITE)];
        let rights = rights
            .iter()
            .filter(|(a, _)| access & a != 0)
            .map(|(_, r)| r)
            .sum::<u64>();
        for (i, v) in [base, len as u64, at as u64].into_iter().enumerate() {
            self.map.word(p + 8 + 8 * i).store(v, Relaxed);
        }
        self.map.word(p).store(USED | rights | tag.0, Release);
    }

    fn remove(&self, key: u64) {
        let tag = Tag::of(key);
        let of = |w: u64| w & !(READ | WRITE) == USED | tag.0;
        let all = (0..TRIES).map(|i| self.map.word(tag.place(i)));
        for w in all {
            if of(w.load(Relaxed)) {
                w.store(0, Relaxed);
            }
        }
        fence(SeqCst);
    }

    fn in_use(&self, key: u64) -> bool {
        let mark = Tag::of(key).0 | USED;
        let v = self.visitors.lock().unwrap_or_else(|e| e.into_inner());
        let live = v.iter().filter(|v| !v.ended.load(SeqCst));
        live.filter_map(|v| v.ring.upgrade()).any(|ring| {
            let uses = |at| ring.word(at).load(Acquire) == mark;
            uses(VISIT) || uses(VISIT_ASIDE)
        })
    }
}

/// Why a visit came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// As an adapter would say it.
    Status(Status),
    /// Not possible this way.
    Elsewhere,
}

/// Where in its owner's memory the bytes are that a key and an address name.
#[inline]
fn find(
    table: &Map,
    tag: Tag,
    addr: u64,
    len: u64,
    write: bool,
) -> core::result::Result<u64, Denied> {
    let need = if write { WRITE } else { READ };
    for p in (0..TRIES).map(|i| tag.place(i)) {
        let entry = table.words::<4>(p);
        let w = entry[0].load(Acquire);
        if w & !(READ | WRITE) != USED | tag.0 {
            continue;
        }
        let [base, size, at] = [1, 2, 3].map(|i| entry[i].load(Relaxed));
        fence(Acquire);
        if entry[0].load(Relaxed) != w {
            continue;
        }
        let off = addr.wrapping_sub(base);
        if w & need == 0 || addr < base || off > size || len > size - off {
            return Err(Denied::Status(Status::RemoteBadKey));
        }
        return Ok(at.wrapping_add(off));
    }
    // Not published, or not there: the adapter knows.
    Err(Denied::Elsewhere)
}

/// The visitor's side: a peer's memory.
pub struct Visit {
    pid: i32,
    table: Map,
}

/// Our end of a copy.
#[derive(Clone, Copy)]
pub enum Local<'a> {
    Mem(&'a UserMem),
    Piece(Piece),
    /// Bytes to write.
    Bytes(&'a [u8]),
    /// So many bytes of shared memory, at an offset.
    Shared(&'a Bed, usize, usize),
}

impl Local<'_> {
    /// Bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Local::Mem(m) => m.len(),
            Local::Piece(p) => p.len(),
            Local::Bytes(b) => b.len(),
            Local::Shared(_, _, n) => *n,
        }
    }

    /// Whether there is not one byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Moves bytes between us and another process, our own from the `off`th on. Returns how many were
/// moved.
fn copy(pid: i32, write: bool, local: &Local, off: usize, at: u64) -> usize {
    let mut iov = [libc::iovec {
        iov_base: core::ptr::null_mut(),
        iov_len: 0,
    }; crate::hmem::MAX_SEGS];
    let mut n = 0;
    let mut put = |(addr, len): (usize, usize)| {
        if let Some(to) = iov.get_mut(n) {
            to.iov_base = addr as *mut _;
            to.iov_len = len;
            n += 1;
        }
    };
    match local {
        Local::Mem(m) => m.part(off, usize::MAX).pieces().for_each(&mut put),
        // Bytes are there to be read.
        Local::Bytes(_) if !write => return 0,
        Local::Bytes(b) => {
            let b = b.get(off..).unwrap_or(&[]);
            put((b.as_ptr() as usize, b.len()));
        }
        Local::Piece(p) => {
            let p = p.part(off, usize::MAX);
            put((p.addr(), p.len()));
        }
        Local::Shared(m, at, n) => match m.address(*at, *n) {
            Some(a) => put((a + off.min(*n), n - off.min(*n))),
            None => return 0,
        },
    }
    let n = n as libc::c_ulong;
    let far = libc::iovec {
        iov_base: at.wrapping_add(off as u64) as *mut _,
        iov_len: local.len().saturating_sub(off),
    };
    // SAFETY: the local pieces are lent by the application (see `UserMem::new`), a slice that is
    // only read, or lie in shared memory that stays mapped as long as the borrow; what is read or
    // written in the other process is what it has published for that, as its table said a moment
    // ago.
    let moved = unsafe {
        if write {
            libc::process_vm_writev(pid, iov.as_ptr(), n, &far, 1, 0)
        } else {
            libc::process_vm_readv(pid, iov.as_ptr(), n, &far, 1, 0)
        }
    };
    usize::try_from(moved).unwrap_or(0)
}

/// Whether the system has just said that there is no such process.
fn gone() -> bool {
    std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

impl Visit {
    /// A peer's table, if the system lets us into the peer's memory.
    pub fn new(pid: i32, table: OwnedFd, probe: (u64, u64)) -> Option<Visit> {
        let table = Map::open_to_read(table, FILE..=FILE).ok()?;
        let mut word = [0u8; 8];
        let at = core::ptr::from_mut(&mut word).cast_const().cast();
        // SAFETY: the word lives to the end of this function.
        let local = unsafe { UserMem::new([(at, 8)]) }?;
        let reads = copy(pid, false, &Local::Mem(&local), 0, probe.0) == 8;
        (pid > 0 && reads && u64::from_ne_bytes(word) == probe.1).then_some(Visit { pid, table })
    }

    /// Whether the peer wants to hear of accesses.
    pub fn events(&self) -> bool {
        self.table.word(EVENTS).load(Relaxed) != 0
    }

    /// Whether a key permits reading or writing so many bytes there, as things stand.
    pub fn permits(&self, tag: Tag, addr: u64, len: usize, write: bool) -> bool {
        find(&self.table, tag, addr, len as u64, write).is_ok()
    }

    /// Writes `local` to, or reads it from, memory that the peer has named for that. `false` when
    /// not all of it is there.
    pub fn carry(&self, write: bool, local: &Local, at: u64) -> bool {
        let mut off = 0;
        while off < local.len() {
            match copy(self.pid, write, local, off, at) {
                0 => return false,
                n => off += n,
            }
        }
        true
    }

    /// Fills pieces, up to [`MANY`], from memory that the peer has named for that, by one call of
    /// the system: how many are filled, from the first on.
    pub fn bring(&self, parts: impl Iterator<Item = (Piece, u64)>) -> usize {
        self.copy_all(false, parts)
    }

    /// Copies pieces, up to [`MANY`], to or from memory of the peer by one call of the system: how
    /// many, from the first on.
    fn copy_all(&self, write: bool, parts: impl Iterator<Item = (Piece, u64)>) -> usize {
        let none = libc::iovec {
            iov_base: core::ptr::null_mut(),
            iov_len: 0,
        };
        let (mut near, mut far, mut lens) = ([none; MANY], [none; MANY], [0; MANY]);
        let (mut n, mut all) = (0usize, 0);
        // Those that lie one behind the other are one to the system, which takes its time for each.
        let mut ends = (0, 0);
        for (len, (piece, at)) in lens.iter_mut().zip(parts) {
            let begins = (piece.addr(), at as usize);
            if n == 0 || begins != ends {
                if let Some((to, of)) = near.get_mut(n).zip(far.get_mut(n)) {
                    to.iov_base = begins.0 as *mut _;
                    of.iov_base = begins.1 as *mut _;
                }
                n += 1;
            }
            *len = piece.len();
            let both = [near.get_mut(n - 1), far.get_mut(n - 1)];
            both.into_iter().flatten().for_each(|v| v.iov_len += *len);
            ends = (begins.0.wrapping_add(*len), begins.1.wrapping_add(*len));
            all += 1;
        }
        let count = n as libc::c_ulong;
        // SAFETY: the pieces are lent by the application (see `Piece::new`); what is read or
        // written in the other process is what it has named for that, as `copy` has it.
        let moved = unsafe {
            if write {
                libc::process_vm_writev(self.pid, near.as_ptr(), count, far.as_ptr(), count, 0)
            } else {
                libc::process_vm_readv(self.pid, near.as_ptr(), count, far.as_ptr(), count, 0)
            }
        };
        let mut left = usize::try_from(moved).unwrap_or(0);
        let whole = |len: &&usize| match left.checked_sub(**len) {
            Some(rest) => {
                left = rest;
                true
            }
            None => false,
        };
        lens.iter().take(all).take_while(whole).count()
    }

    /// Writes `local` to, or reads it from, a region of the peer. `mark` is the word by which the
    /// peer knows of it.
    pub fn access(
        &self,
        mark: &AtomicU64,
        write: bool,
        local: &Local,
        tag: Tag,
        addr: u64,
    ) -> core::result::Result<(), Denied> {
        let _used = Mark::new(mark, tag);
        find(&self.table, tag, addr, local.len() as u64, write).and_then(|at| {
            let mut off = 0;
            while off < local.len() {
                match copy(self.pid, write, local, off, at) {
                    0 if off == 0 && gone() => {
                        return Err(Denied::Status(Status::RemoteUnresponsive))
                    }
                    // The system copies nothing, or not all: the adapter begins anew, or knows why
                    // not.
                    0 => return Err(Denied::Elsewhere),
                    n => off += n,
                }
            }
            Ok(())
        })
    }

    /// As [`Visit::access`], pieces, up to [`MANY`], by one call of the system: how many are there,
    /// from the first on.
    pub fn access_all(
        &self,
        mark: &AtomicU64,
        write: bool,
        tag: Tag,
        parts: impl Iterator<Item = (Piece, u64)>,
    ) -> usize {
        let _used = Mark::new(mark, tag);
        let found = parts.map_while(|(piece, addr)| {
            let at = find(&self.table, tag, addr, piece.len() as u64, write);
            Some((piece, at.ok()?))
        });
        self.copy_all(write, found)
    }
}

/// As long as it lives the peer's region is there.
struct Mark<'a>(&'a AtomicU64);

impl Mark<'_> {
    fn new(word: &AtomicU64, tag: Tag) -> Mark<'_> {
        word.store(tag.0 | USED, Relaxed);
        // It is seen before the table is looked at.
        fence(SeqCst);
        Mark(word)
    }
}

impl Drop for Mark<'_> {
    fn drop(&mut self) {
        self.0.store(0, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visit_of(t: &Table) -> Option<Visit> {
        use std::os::fd::FromRawFd;
        let (fd, at, value) = t.offer();
        // SAFETY: a duplicate of our own descriptor, owned from here on.
        let fd = unsafe { OwnedFd::from_raw_fd(libc::dup(fd)) };
        Visit::new(std::process::id() as i32, fd, (at, value))
    }

    fn mem(b: &mut [u8]) -> UserMem {
        // SAFETY: the buffers of these tests outlive what is made of them.
        unsafe { UserMem::new([(b.as_mut_ptr().cast_const().cast(), b.len())]) }.unwrap()
    }

    #[test]
    fn keys_ranges_and_rights_are_checked() {
        let t = Table::new(1).unwrap();
        // Where nobody is let in there is nothing to check.
        let Some(v) = visit_of(&t) else { return };
        let ring = Bed::create().unwrap();
        let (mut far, mut near) = ([7u8; 64], [1u8; 16]);
        let far_mem = mem(&mut far);
        t.add(5, 1000, &far_mem, FI_REMOTE_READ);
        let near_mem = mem(&mut near);
        let go = |write, key, addr| {
            v.access(
                ring.word(VISIT),
                write,
                &Local::Mem(&near_mem),
                Tag::of(key),
                addr,
            )
        };
        assert_eq!(go(false, 5, 1048), Ok(()));
        assert_eq!(
            go(false, 5, 1049),
            Err(Denied::Status(Status::RemoteBadKey))
        );
        assert_eq!(go(false, 5, 999), Err(Denied::Status(Status::RemoteBadKey)));
        assert_eq!(
            go(false, 5, u64::MAX),
            Err(Denied::Status(Status::RemoteBadKey))
        );
        assert_eq!(go(true, 5, 1000), Err(Denied::Status(Status::RemoteBadKey)));
        assert_eq!(go(false, 6, 1000), Err(Denied::Elsewhere));
        t.remove(5);
        assert_eq!(go(false, 5, 1000), Err(Denied::Elsewhere));
        t.add(5, 0, &far_mem, FI_REMOTE_WRITE | FI_REMOTE_READ);
        let one = [9u8; 16];
        near_mem.store(0, &one);
        assert_eq!(go(true, 5, 48), Ok(()));
        let mut seen = [0; 64];
        far_mem.load(0, &mut seen);
        assert_eq!((seen[47], seen[48], seen[63]), (7, 9, 9));
        assert_eq!(
            v.access(
                ring.word(VISIT),
                true,
                &Local::Bytes(&[4, 4]),
                Tag::of(5),
                0
            ),
            Ok(())
        );
        far_mem.load(0, &mut seen);
        assert_eq!((seen[1], seen[2]), (4, 7));
        assert_eq!(ring.word(VISIT).load(Relaxed), 0);
    }

    #[test]
    fn several_are_copied_by_one_call() {
        let t = Table::new(1).unwrap();
        let Some(v) = visit_of(&t) else { return };
        let ring = Bed::create().unwrap();
        let mut far: Vec<u8> = (0..64).collect();
        let mut near = [0u8; 64];
        t.add(5, 1000, &mem(&mut far), FI_REMOTE_READ);
        let near = mem(&mut near).one().unwrap();
        // Two that lie one behind the other, one that does so here alone, one there alone, and one
        // that is empty.
        let parts = [(0, 8, 0), (8, 8, 8), (16, 8, 32), (30, 2, 40), (40, 0, 63)];
        let go = |parts: &[(usize, usize, u64)]| {
            let of = |(here, len, there): &(_, _, u64)| (near.part(*here, *len), 1000 + *there);
            v.access_all(ring.word(VISIT), false, Tag::of(5), parts.iter().map(of))
        };
        assert_eq!(go(&parts), parts.len());
        let mut seen = [0; 48];
        near.load(&mut seen);
        for (here, len, there) in parts {
            let there = there as u8;
            let is: Vec<u8> = (there..there + len as u8).collect();
            assert_eq!(seen.get(here..here + len), Some(&is[..]));
        }
        // What lies behind one that is not permitted is left alone, and what is too much for a
        // call.
        assert_eq!(go(&[(0, 8, 0), (8, 9, 56), (16, 8, 8)]), 1);
        assert_eq!(go(&[(0, 1, 0); MANY + 1]), MANY);
        assert_eq!(go(&[]), 0);
        assert_eq!(ring.word(VISIT).load(Relaxed), 0);
    }

    #[test]
    fn a_full_neighbourhood_leaves_regions_to_the_adapter_and_slots_come_back() {
        let t = Table::new(1).unwrap();
        let Some(v) = visit_of(&t) else { return };
        let ring = Bed::create().unwrap();
        let (mut far, mut near) = ([7u8; 64], [1u8; 8]);
        let (far, near) = (mem(&mut far), mem(&mut near));
        for key in 1..=3 * ENTRIES as u64 / 2 {
            t.add(key, 0, &far, FI_REMOTE_READ);
        }
        let reach = |key| {
            v.access(ring.word(VISIT), false, &Local::Mem(&near), Tag::of(key), 0)
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
        let t = Table::new(1).unwrap();
        let ring = Arc::new(Bed::create().unwrap());
        let ended = Arc::new(AtomicBool::new(false));
        t.visitor(&ring, &ended);
        let mut far = [7u8; 64];
        t.add(5, 0, &mem(&mut far), FI_REMOTE_READ);
        assert!(!t.in_use(5));
        ring.word(VISIT).store(USED | Tag::of(5).0, SeqCst);
        // Withdrawing does not wait; whoever closes the region looks whether it is in use.
        t.remove(5);
        assert!(t.in_use(5) && !t.in_use(6));
        ring.word(VISIT).store(0, SeqCst);
        assert!(!t.in_use(5));
        // A process that ended in the middle of an access is not waited for.
        ring.word(VISIT_ASIDE).store(USED | Tag::of(5).0, SeqCst);
        assert!(t.in_use(5));
        ended.store(true, SeqCst);
        assert!(!t.in_use(5));
    }

    #[test]
    fn peers_see_no_keys() {
        let t = Table::new(1).unwrap();
        let mut far = [7u8; 64];
        let key = 0x0123_4567_89ab_cdef;
        t.add(key, 0, &mem(&mut far), FI_REMOTE_READ);
        for at in (HEAD..FILE).step_by(8) {
            let w = t.map.word(at).load(Relaxed);
            assert!(w & !(USED | READ | WRITE) != key & !(USED | READ | WRITE));
        }
    }
}
