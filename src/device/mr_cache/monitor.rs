//! Memory monitor: reports memory that the application unmaps, moves or empties, by userfaultfd(2).
//!
//! A watched range is registered in write-protect mode, but no page is ever protected, so that
//! accesses cost nothing. The kernel does report munmap(2), mremap(2) and madvise(2) of the range,
//! and blocks their caller until the monitor's thread has read the notice. The thread is `busy`
//! before it reads, and until it has notified all listeners; [`Monitor::settle`] waits for that. A
//! look-up after such a call therefore sees the change; on Linux before 5.15 unless two threads
//! unmap at once, because the kernel forgets there that the second has not been read. No function
//! of the C library is patched, and where the system forbids userfaultfd there is no monitor.
//!
//! Watched ranges are mappings of their own, of which a process may have 65,530
//! (vm.max_map_count): [`Monitor::unwatch`] ends the watch of a registration that is evicted.
//!
//! The thread must never unmap memory, or it would wait for itself. Nor may it wait for another
//! thread that does: free(3) returns the end of the heap, which may be watched. So the thread
//! allocates and frees nothing, and no other thread does so under a lock that the monitor takes.

use crate::core::process::PerProcess;
use crate::core::sync::{Mutex, Unpoisoned};
use crate::device::{host, wait};
use crate::types::*;
use core::ffi::c_void;
use core::mem::size_of;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Receives notices of a [`Monitor`].
pub(crate) trait Listener: Send + Sync {
    /// The pages of these bytes have changed. Must not allocate or free, nor wait for a thread that
    /// does.
    fn invalidate(&self, from: usize, to: usize);
    /// Cuts off `range`, whole pages of `page` bytes, what this listener needs to be watched. Must
    /// not allocate or free either.
    fn exclude_watched(&self, range: &mut Range<usize>, page: usize);
}

/// See the module text.
pub(crate) struct Monitor {
    notices: OwnedFd,
    /// Bytes of a page: watched ranges are whole pages.
    page: usize,
    listeners: Mutex<Vec<Arc<dyn Listener>>>,
    /// Threads that change what is watched, or that may have read a notice which was not yet passed
    /// to all listeners.
    busy: AtomicUsize,
    /// Notices so far.
    notices_read: AtomicU64,
}

/// `struct uffdio_api`, `struct uffdio_register`, `struct uffd_msg` of linux/userfaultfd.h.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}
#[repr(C)]
struct UffdioRegister {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}
/// `struct uffdio_writeprotect`.
#[repr(C)]
struct UffdioWriteProtect {
    start: u64,
    len: u64,
    mode: u64,
}
/// `struct uffdio_range`.
#[repr(C)]
struct UffdioRange {
    start: u64,
    len: u64,
}
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Notice {
    event: u8,
    reserved: [u8; 7],
    args: [u64; 3],
}

const API: u64 = 0xaa;
const API_CALL: libc::c_ulong = 0xc018_aa3f;
const REGISTER_CALL: libc::c_ulong = 0xc020_aa00;
const UNREGISTER_CALL: libc::c_ulong = 0x8010_aa01;
const WRITE_PROTECT_CALL: libc::c_ulong = 0xc018_aa06;
const USER_MODE_ONLY: i32 = 1;
const WRITE_PROTECT: u64 = 2;
/// Events: as feature bits (UFFD_FEATURE_EVENT_*), and as codes in notices.
const TELLS: u64 = 1 << 2 | 1 << 3 | 1 << 6;
const MOVED: u8 = 0x14;
const REMOVED: u8 = 0x15;
const UNMAPPED: u8 = 0x16;

/// How often [`Monitor::settle`] yields, then waits for [`WAIT`], and when it gives up.
const YIELDS: u32 = 200;
const WAIT: Duration = Duration::from_micros(50);
const MOST_WAITS: u32 = 600;

/// Most listeners: the list never grows, because the thread takes the list's lock.
const LISTENERS: usize = 64;

impl Monitor {
    /// The monitor of this process, if the system permits one; started when first asked for.
    pub(crate) fn get() -> Option<&'static Monitor> {
        static MONITOR: PerProcess<Option<Monitor>> = PerProcess::new();
        let m = MONITOR.get_or_init(|| {
            Monitor::open()
                .inspect_err(|e| {
                    crate::info_log!(
                        FI_LOG_MR,
                        "registrations are not kept between operations: userfaultfd: {e}"
                    )
                })
                .ok()
        });
        static THREAD: PerProcess<bool> = PerProcess::new();
        let runs = m.is_some()
            && *THREAD.get_or_init(|| {
                let run = || {
                    if let Some(m) = MONITOR.get().and_then(Option::as_ref) {
                        m.run();
                    }
                };
                host::start(c"fi-mr", run).is_ok()
            });
        m.as_ref().filter(|_| runs)
    }

    fn open() -> std::io::Result<Monitor> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        let open = |flags: i32| {
            // SAFETY: only numbers are passed; the new descriptor is owned at once.
            unsafe {
                match libc::syscall(libc::SYS_userfaultfd, flags) {
                    fd @ 0.. => Ok(OwnedFd::from_raw_fd(fd as i32)),
                    _ => Err(std::io::Error::last_os_error()),
                }
            }
        };
        // Linux before 5.11 does not have UFFD_USER_MODE_ONLY, which needs no privilege.
        let notices = open(flags | USER_MODE_ONLY).or_else(|_| open(flags))?;
        let mut api = Api {
            api: API,
            features: TELLS,
            ioctls: 0,
        };
        // SAFETY: `api` is the argument of this call, and outlives it.
        if unsafe { libc::ioctl(notices.as_raw_fd(), API_CALL, &mut api) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        Ok(Monitor {
            notices,
            page: crate::hmem::page_size(),
            listeners: Mutex::new(Vec::with_capacity(LISTENERS)),
            busy: AtomicUsize::new(0),
            notices_read: AtomicU64::new(0),
        })
    }

    /// Adds a listener; `false` when there are too many.
    pub(crate) fn join(&self, who: Arc<dyn Listener>) -> bool {
        let mut l = self.listeners.lock().unpoisoned();
        let room = l.len() < LISTENERS;
        if room {
            l.push(who);
        }
        room
    }

    /// Removes a listener.
    pub(crate) fn leave(&self, who: &Arc<dyn Listener>) {
        let mut l = self.listeners.lock().unpoisoned();
        let at = l.iter().position(|x| Arc::ptr_eq(x, who));
        let gone = at.map(|at| l.swap_remove(at));
        drop(l);
        drop(gone);
    }

    /// Waits until every change of watched memory that has begun was passed to all listeners. The
    /// kernel makes unmapped addresses available before it queues the notice; until the notice is
    /// read, it answers UFFDIO_WRITEPROTECT of whatever range with EAGAIN.
    /// `false`: the change goes on, because the thread that makes it does not run.
    #[inline]
    pub(crate) fn settle(&self) -> bool {
        for tries in 0.. {
            match tries {
                _ if !self.changing() => break,
                // A caller of real-time priority gets in the way of others when it yields.
                ..YIELDS => std::thread::yield_now(),
                YIELDS..MOST_WAITS => std::thread::sleep(WAIT),
                _ => return false,
            }
        }
        while self.busy.load(Acquire) > 0 {
            std::thread::yield_now();
        }
        true
    }

    /// Whether a change has begun whose notice was not read.
    fn changing(&self) -> bool {
        let mut none = UffdioWriteProtect {
            start: 0,
            len: 0,
            mode: 0,
        };
        // SAFETY: `none` is the argument of this call, and outlives it; the kernel refuses an empty
        // range.
        let refused =
            unsafe { libc::ioctl(self.notices.as_raw_fd(), WRITE_PROTECT_CALL, &mut none) };
        refused != 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN)
    }

    /// Notices read so far.
    pub(crate) fn notices_read(&self) -> u64 {
        self.notices_read.load(Acquire)
    }

    /// Watches the pages of these bytes; `false` when that is not possible, as for files on disk,
    /// or memory that another userfaultfd watches.
    pub(crate) fn watch(&self, from: usize, to: usize) -> bool {
        let Some(pages) = pages(from, to, self.page) else {
            return false;
        };
        let mut r = UffdioRegister {
            start: pages.start as u64,
            len: pages.len() as u64,
            mode: WRITE_PROTECT,
            ioctls: 0,
        };
        // SAFETY: `r` is the argument of this call, and outlives it; the kernel checks the range,
        // and does not change its contents.
        unsafe { libc::ioctl(self.notices.as_raw_fd(), REGISTER_CALL, &mut r) == 0 }
    }

    /// Ends the watch of the pages of these bytes, but for what a listener still needs. A
    /// registration that another thread is about to keep may be of memory which is not watched any
    /// more: it is not kept, or invalidated.
    pub(crate) fn unwatch(&self, from: usize, to: usize) {
        let Some(mut pages) = pages(from, to, self.page) else {
            return;
        };
        self.busy.fetch_add(1, SeqCst);
        let all = self.listeners.lock().unpoisoned();
        all.iter()
            .for_each(|l| l.exclude_watched(&mut pages, self.page));
        if !pages.is_empty() {
            let mut r = UffdioRange {
                start: pages.start as u64,
                len: pages.len() as u64,
            };
            // SAFETY: `r` is the argument of this call, and outlives it; the kernel checks the
            // range, and does not change its contents.
            unsafe { libc::ioctl(self.notices.as_raw_fd(), UNREGISTER_CALL, &mut r) };
            self.notices_read.fetch_add(1, AcqRel);
            all.iter()
                .for_each(|l| l.invalidate(pages.start, pages.end));
        }
        drop(all);
        self.busy.fetch_sub(1, Release);
    }

    /// Reads the next notice, and returns its address range.
    fn read_notice(&self) -> Option<(usize, usize)> {
        loop {
            let mut n = Notice::default();
            let len = size_of::<Notice>();
            let to = (&raw mut n).cast::<c_void>();
            // SAFETY: `n` is as long as the kernel's notice.
            let got = unsafe { libc::read(self.notices.as_raw_fd(), to, len) };
            if got != len as isize {
                return None;
            }
            self.notices_read.fetch_add(1, AcqRel);
            let [a, b, c] = n.args.map(|v| v as usize);
            match n.event {
                MOVED => return Some((a, a.saturating_add(c))),
                REMOVED | UNMAPPED => return Some((a, b)),
                _ => {}
            }
        }
    }

    fn run(&self) {
        loop {
            wait::wait_readable(self.notices.as_raw_fd(), -1);
            self.busy.fetch_add(1, SeqCst);
            while let Some((from, to)) = self.read_notice() {
                let all = self.listeners.lock().unpoisoned();
                all.iter().for_each(|l| l.invalidate(from, to));
            }
            self.busy.fetch_sub(1, Release);
        }
    }
}

/// The pages of these bytes.
pub(super) fn pages(from: usize, to: usize, page: usize) -> Option<Range<usize>> {
    Some(from & !(page - 1)..to.checked_next_multiple_of(page)?)
}
