//! Device memory: ranges of addresses without access, whose bytes are in a memfd per GPU.
//!
//! An address of GPU `n` lies in that GPU's window, `WINDOW` bytes of reserved address space. Byte
//! `i` of the window stands for byte `i` of the memfd, which is mapped a second time, with access,
//! for this library's copies (the shadow). Memory of another process that was opened by IPC gets
//! addresses and a shadow of its own.

use crate::config;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, OnceLock};

/// Bytes of memory of a GPU.
pub const WINDOW: usize = 32 << 30;
/// Alignment of an allocation.
const ALIGN: usize = 512;
/// Page size of a GPU: large allocations, cuMemCreate and cuMemMap use whole pages.
pub const PAGE: usize = 64 << 10;

/// One allocation, or one that is open by IPC.
#[derive(Clone, Copy, Debug)]
pub struct Allocation {
    pub gpu: usize,
    pub base: usize,
    pub len: usize,
    /// Where this library sees its first byte.
    shadow: usize,
    /// Offset in the owner's memfd.
    pub off: usize,
    /// CU_POINTER_ATTRIBUTE_BUFFER_ID
    pub id: u64,
    pub origin: Origin,
}

/// Where an allocation comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// cuMemAlloc
    Own,
    /// Another process, by an IPC handle.
    Foreign,
    /// cuMemMap: physical memory of this number. It is of no context, and no other process can open
    /// it by IPC.
    Mapped(u64),
}

/// Memory of cuMemCreate, or of cuMemImportFromShareableHandle.
struct Physical {
    gpu: usize,
    off: usize,
    len: usize,
    /// Where this library sees memory that was imported; its bytes are in another file.
    imported: Option<usize>,
    /// Handles and mappings.
    users: usize,
}

struct Gpu {
    base: usize,
    shadow: usize,
    file: OwnedFd,
    /// Free ranges of the window: offset and bytes.
    free: BTreeMap<usize, usize>,
}

/// Memory that GDRCopy has pinned.
struct Pin {
    gpu: usize,
    at: usize,
    len: usize,
    /// Offset in the GPU's memfd.
    off: usize,
    /// Where the processor may access the memory, once it is mapped.
    view: Option<usize>,
}

struct Memory {
    gpus: Vec<Gpu>,
    all: BTreeMap<usize, Allocation>,
    physical: BTreeMap<u64, Physical>,
    /// Address space of cuMemAddressReserve: first address and bytes.
    reserved: BTreeMap<usize, usize>,
    pins: BTreeMap<u64, Pin>,
    next_handle: u64,
}

fn map(len: usize, prot: i32, flags: i32, fd: i32, off: usize) -> Option<usize> {
    // SAFETY: a new mapping, placed by the kernel, disturbs nothing.
    let p = unsafe { libc::mmap(core::ptr::null_mut(), len, prot, flags, fd, off as i64) };
    (p != libc::MAP_FAILED).then_some(p as usize)
}

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;
const ANON_NORESERVE: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

impl Gpu {
    fn new() -> Option<Gpu> {
        // SAFETY: the name is terminated; the descriptor is new and ours.
        let file = unsafe {
            let fd = libc::memfd_create(c"gpu-sim".as_ptr(), libc::MFD_CLOEXEC);
            (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))?
        };
        // SAFETY: plain numbers are passed.
        if unsafe { libc::ftruncate(file.as_raw_fd(), WINDOW as i64) } != 0 {
            return None;
        }
        let shared = libc::MAP_SHARED | libc::MAP_NORESERVE;
        let room = map(WINDOW + PAGE, libc::PROT_NONE, ANON_NORESERVE, -1, 0)?;
        Some(Gpu {
            base: room.next_multiple_of(PAGE),
            shadow: map(WINDOW, READ_WRITE, shared, file.as_raw_fd(), 0)?,
            file,
            free: BTreeMap::from([(0, WINDOW)]),
        })
    }

    /// Takes `len` bytes that begin at a multiple of `align`.
    fn take(&mut self, len: usize, align: usize) -> Option<usize> {
        let fit = |(room, size): (&usize, &usize)| {
            let off = room.next_multiple_of(align);
            (off + len <= room + size).then_some((*room, *size, off))
        };
        let (room, size, off) = self.free.iter().find_map(fit)?;
        self.free.remove(&room);
        for (at, end) in [(room, off), (off + len, room + size)] {
            if at < end {
                self.free.insert(at, end - at);
            }
        }
        Some(off)
    }

    fn give_back(&mut self, off: usize, len: usize) {
        let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: plain numbers are passed; no allocation uses these bytes any more.
        unsafe { libc::fallocate(self.file.as_raw_fd(), hole, off as i64, len as i64) };
        let (mut off, mut len) = (off, len);
        if let Some(more) = self.free.remove(&(off + len)) {
            len += more;
        }
        if let Some((&before, &room)) = self.free.range(..off).next_back() {
            if before + room == off {
                (off, len) = (before, len + room);
            }
        }
        self.free.insert(off, len);
    }
}

fn memory() -> MutexGuard<'static, Memory> {
    static MEMORY: OnceLock<Mutex<Memory>> = OnceLock::new();
    let make = || {
        let gpus = (0..config::get().gpus).map_while(|_| Gpu::new()).collect();
        Mutex::new(Memory {
            gpus,
            all: BTreeMap::new(),
            physical: BTreeMap::new(),
            reserved: BTreeMap::new(),
            pins: BTreeMap::new(),
            next_handle: 1,
        })
    };
    let m = MEMORY.get_or_init(make);
    m.lock().unwrap_or_else(|e| e.into_inner())
}

/// Allocates; `None` when the memory is used up.
pub fn alloc(gpu: usize, len: usize) -> Option<usize> {
    let mut m = memory();
    let len = len.max(1).next_multiple_of(ALIGN);
    // Large allocations are whole pages, as on a GPU.
    let align = if len >= PAGE { PAGE } else { ALIGN };
    let len = len.next_multiple_of(align);
    let g = m.gpus.get_mut(gpu)?;
    let off = g.take(len, align)?;
    let a = Allocation {
        gpu,
        base: g.base + off,
        len,
        shadow: g.shadow + off,
        off,
        id: 0,
        origin: Origin::Own,
    };
    Some(m.add(a))
}

/// Frees an allocation, or closes one that was opened. `false` when there is none at this address.
pub fn free(at: usize) -> bool {
    let mut m = memory();
    let of = |a: &Allocation| !matches!(a.origin, Origin::Mapped(_));
    if !m.all.get(&at).is_some_and(of) {
        return false;
    }
    let Some(a) = m.all.remove(&at) else {
        return false;
    };
    m.revoke(a.base, a.len);
    if a.origin == Origin::Foreign {
        // SAFETY: mapped by `open`; the allocation is removed, so nothing uses the addresses.
        unsafe {
            libc::munmap(a.base as *mut _, a.len);
            libc::munmap(a.shadow as *mut _, a.len);
        }
    } else if let Some(g) = m.gpus.get_mut(a.gpu) {
        g.give_back(a.off, a.len);
    }
    true
}

/// The allocation that an address is in.
pub fn find(at: usize) -> Option<Allocation> {
    let m = memory();
    let (_, a) = m.all.range(..=at).next_back()?;
    (at < a.base + a.len).then_some(*a)
}

impl Memory {
    /// A number that was not given before.
    fn number(&mut self) -> u64 {
        self.next_handle += 1;
        self.next_handle - 1
    }

    /// Adds an allocation, with an id that no other has had, and returns its address.
    fn add(&mut self, a: Allocation) -> usize {
        let id = self.number();
        self.all.insert(a.base, Allocation { id, ..a });
        a.base
    }

    /// The allocation of this process, up to `end`, whose pages contain a range. Imported memory is
    /// its owner's to export and pin.
    fn around(
        &self,
        (at, len): (usize, usize),
        page: usize,
        end: impl Fn(&Allocation) -> usize,
    ) -> Option<Allocation> {
        let contains = |a: &&Allocation| {
            let (from, to) = (a.base & !(page - 1), end(a).next_multiple_of(page));
            a.origin != Origin::Foreign && from <= at && at + len <= to
        };
        let mut near = self.all.range(..at + page).rev().map(|(_, a)| a);
        let a = near.find(contains)?;
        if let Origin::Mapped(handle) = a.origin {
            self.physical
                .get(&handle)
                .filter(|p| p.imported.is_none())?;
        }
        Some(*a)
    }

    /// Takes the mappings of freed memory away, as GDRCopy's driver does: an access faults. A page
    /// that small allocations share is freed with the last of them.
    fn revoke(&mut self, base: usize, len: usize) {
        let freed = |p: &&Pin| p.at < base + len && base < p.at + p.len;
        let live = |p: &Pin| {
            let mut before = self.all.range(..p.at + p.len).rev().map(|(_, a)| a);
            before.any(|a| a.base + a.len > p.at)
        };
        for p in self.pins.values().filter(freed).filter(|p| !live(p)) {
            if let Some(view) = p.view {
                // SAFETY: mapped by `map_pin`; only GDRCopy's user refers to it.
                unsafe { libc::mprotect(view as *mut _, p.len, libc::PROT_NONE) };
            }
        }
    }

    /// Where the memory ends that begins with an allocation: mappings of cuMemMap that follow each
    /// other, in the GPU's memory as well, are one range for copies and dma-bufs.
    fn range_end(&self, a: &Allocation) -> usize {
        let (mut end, mut shadow) = (a.base + a.len, a.shadow + a.len);
        while let Some(next) = self.all.get(&end).filter(|n| n.shadow == shadow) {
            if !matches!(
                (a.origin, next.origin),
                (Origin::Mapped(_), Origin::Mapped(_))
            ) {
                break;
            }
            (end, shadow) = (end + next.len, shadow + next.len);
        }
        end
    }
}

/// Where this library sees `len` bytes: of an allocation, or of the host as they are. `None` beyond
/// the end of an allocation, or in a GPU's window where nothing is allocated.
pub fn host_view(at: usize, len: usize) -> Option<*mut u8> {
    let found = find(at);
    let m = memory();
    if let Some(a) = found {
        return (len <= m.range_end(&a) - at).then_some((a.shadow + (at - a.base)) as *mut u8);
    }
    let window = |g: &Gpu| (g.base..g.base + WINDOW).contains(&at);
    let reserved = m.reserved.range(..=at).next_back();
    let reserved = reserved.is_some_and(|(base, len)| at < base + len);
    (!reserved && !m.gpus.iter().any(window)).then_some(at as *mut u8)
}

/// A descriptor of `len` bytes from `at` on, as a dma-buf: a mapping must begin at the descriptor's
/// file position. The range must lie within one allocation, rounded to pages of the system, or in
/// mappings that follow each other.
pub fn export(at: usize, len: usize) -> Option<i32> {
    const PAGE: usize = 4096;
    let m = memory();
    let a = m.around((at, len), PAGE, |a| m.range_end(a))?;
    reopen(m.gpus.get(a.gpu)?, a.off + at - a.base)
}

/// A new description of a GPU's file, because a file position belongs to the description.
fn reopen(g: &Gpu, position: usize) -> Option<i32> {
    let path = format!("/proc/self/fd/{}\0", g.file.as_raw_fd());
    // SAFETY: the path is terminated.
    let fd = unsafe { libc::open(path.as_ptr().cast(), libc::O_RDWR | libc::O_CLOEXEC) };
    // SAFETY: plain numbers are passed.
    let set = fd >= 0 && unsafe { libc::lseek(fd, position as i64, libc::SEEK_SET) } >= 0;
    set.then_some(fd)
}

/// The memfd of a GPU, for other processes.
pub fn file_of(gpu: usize) -> Option<i32> {
    memory().gpus.get(gpu).map(|g| g.file.as_raw_fd())
}

/// Opens an allocation of another process: bytes `off` to `off` + `len` of its descriptor `fd`.
pub fn open(pid: i32, fd: i32, gpu: usize, (off, len): (usize, usize)) -> Option<usize> {
    let path = format!("/proc/{pid}/fd/{fd}\0");
    // SAFETY: the path is terminated; the descriptor is new and ours.
    let file = unsafe {
        let fd = libc::open(path.as_ptr().cast(), libc::O_RDWR | libc::O_CLOEXEC);
        (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))?
    };
    // A mapping begins at a page of the system.
    let skew = off % 4096;
    let shadow = map(
        len + skew,
        READ_WRITE,
        libc::MAP_SHARED,
        file.as_raw_fd(),
        off - skew,
    )?;
    let base = map(len + skew, libc::PROT_NONE, ANON_NORESERVE, -1, 0)?;
    let a = Allocation {
        gpu,
        base: base + skew,
        len,
        shadow: shadow + skew,
        off,
        id: 0,
        origin: Origin::Foreign,
    };
    Some(memory().add(a))
}

/// Physical memory without addresses (cuMemCreate): its handle.
pub fn create(gpu: usize, len: usize) -> Option<u64> {
    let mut m = memory();
    let off = m.gpus.get_mut(gpu)?.take(len, PAGE)?;
    let handle = m.number();
    let users = 1;
    m.physical.insert(
        handle,
        Physical {
            gpu,
            off,
            len,
            imported: None,
            users,
        },
    );
    Some(handle)
}

/// Bits of a shareable handle's file position that hold the length, in pages; those above hold the
/// offset, in pages.
const LENGTH_BITS: u32 = 20;

/// A descriptor by which any process can import physical memory
/// (CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR). Its file position names the memory.
pub fn share(handle: u64) -> Option<i32> {
    let m = memory();
    let p = m.physical.get(&handle).filter(|p| p.imported.is_none())?;
    let at = (p.off / PAGE) << LENGTH_BITS | (p.len / PAGE);
    reopen(m.gpus.get(p.gpu)?, at)
}

/// Physical memory behind a descriptor of [`share`]: its handle. The descriptor stays the caller's.
pub fn import(fd: i32) -> Option<u64> {
    // SAFETY: plain numbers are passed.
    let at = usize::try_from(unsafe { libc::lseek(fd, 0, libc::SEEK_CUR) }).ok()?;
    let (off, len) = (
        (at >> LENGTH_BITS) * PAGE,
        (at & ((1 << LENGTH_BITS) - 1)) * PAGE,
    );
    if len == 0 {
        return None;
    }
    let imported = Some(map(len, READ_WRITE, libc::MAP_SHARED, fd, off)?);
    let mut m = memory();
    let handle = m.number();
    let (gpu, users) = (0, 1);
    m.physical.insert(
        handle,
        Physical {
            gpu,
            off,
            len,
            imported,
            users,
        },
    );
    Some(handle)
}

impl Memory {
    /// Drops one user; the last one frees the memory.
    fn release(&mut self, handle: u64) -> Option<()> {
        let p = self.physical.get_mut(&handle)?;
        p.users -= 1;
        if p.users > 0 {
            return Some(());
        }
        let p = self.physical.remove(&handle)?;
        match p.imported {
            // SAFETY: mapped by `import`; no mapping refers to the memory any more.
            Some(at) => unsafe {
                libc::munmap(at as *mut _, p.len);
            },
            None => self.gpus.get_mut(p.gpu)?.give_back(p.off, p.len),
        }
        Some(())
    }
}

/// Pins whole pages of one allocation of this process (gdr_pin_buffer): their handle.
pub fn pin(at: usize, len: usize) -> Option<u64> {
    if len == 0 || !at.is_multiple_of(PAGE) || !len.is_multiple_of(PAGE) {
        return None;
    }
    let mut m = memory();
    let a = m.around((at, len), PAGE, |a| a.base + a.len)?;
    let handle = m.number();
    let (gpu, off, view) = (a.gpu, (a.off + at) - a.base, None);
    m.pins.insert(
        handle,
        Pin {
            gpu,
            at,
            len,
            off,
            view,
        },
    );
    Some(handle)
}

/// Maps pinned memory for the processor (gdr_map).
pub fn map_pin(handle: u64) -> Option<usize> {
    let mut m = memory();
    let p = m.pins.get(&handle).filter(|p| p.view.is_none())?;
    let fd = m.gpus.get(p.gpu)?.file.as_raw_fd();
    let view = map(p.len, READ_WRITE, libc::MAP_SHARED, fd, p.off)?;
    m.pins.get_mut(&handle)?.view = Some(view);
    Some(view)
}

/// Removes the mapping of pinned memory (gdr_unmap).
pub fn unmap_pin(handle: u64) -> Option<()> {
    let mut m = memory();
    let p = m.pins.get_mut(&handle)?;
    let view = p.view.take()?;
    // SAFETY: mapped by `map_pin`; the caller gives the mapping up.
    unsafe { libc::munmap(view as *mut _, p.len) };
    Some(())
}

/// Ends a pin without a mapping (gdr_unpin_buffer).
pub fn unpin(handle: u64) -> Option<()> {
    let mut m = memory();
    m.pins.get(&handle).filter(|p| p.view.is_none())?;
    m.pins.remove(&handle).map(|_| ())
}

/// First address and length of pinned memory, and where it is mapped.
pub fn pinned(handle: u64) -> Option<(usize, usize, Option<usize>)> {
    let m = memory();
    m.pins.get(&handle).map(|p| (p.at, p.len, p.view))
}

/// Gives a handle up.
pub fn release(handle: u64) -> Option<()> {
    memory().release(handle)
}

/// Addresses without memory (cuMemAddressReserve).
pub fn reserve(len: usize) -> Option<usize> {
    let room = map(len + PAGE, libc::PROT_NONE, ANON_NORESERVE, -1, 0)?;
    let base = room.next_multiple_of(PAGE);
    memory().reserved.insert(base, len);
    Some(base)
}

/// Releases reserved addresses; the kernel's mapping stays, so that nothing else gets them.
pub fn unreserve(base: usize) -> Option<()> {
    memory().reserved.remove(&base).map(|_| ())
}

/// Puts physical memory, from `off` on, at reserved addresses.
pub fn map_at(base: usize, len: usize, off: usize, handle: u64) -> Option<()> {
    let mut m = memory();
    let (first, room) = m.reserved.range(..=base).next_back()?;
    if base + len > first + room {
        return None;
    }
    let p = m.physical.get_mut(&handle).filter(|p| off + len <= p.len)?;
    p.users += 1;
    let (gpu, within, imported) = (p.gpu, off, p.imported);
    let off = p.off + off;
    let shadow = match imported {
        Some(at) => at + within,
        None => m.gpus.get(gpu)?.shadow + off,
    };
    let origin = Origin::Mapped(handle);
    let a = Allocation {
        gpu,
        base,
        len,
        shadow,
        off,
        id: 0,
        origin,
    };
    m.add(a);
    Some(())
}

/// Removes every mapping in a range.
pub fn unmap(base: usize, len: usize) -> Option<()> {
    let mut m = memory();
    let there: Vec<_> = m
        .all
        .range(base..base + len)
        .map(|(at, a)| (*at, a.origin))
        .collect();
    for (at, origin) in &there {
        let Origin::Mapped(handle) = origin else {
            return None;
        };
        let (handle, at) = (*handle, *at);
        m.all.remove(&at);
        m.revoke(base, len);
        m.release(handle);
    }
    (!there.is_empty()).then_some(())
}

/// The physical memory behind an address, with one more user: its handle.
pub fn retain(at: usize) -> Option<u64> {
    let Origin::Mapped(handle) = find(at)?.origin else {
        return None;
    };
    memory().physical.get_mut(&handle)?.users += 1;
    Some(handle)
}
