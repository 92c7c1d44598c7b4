//! Hears of memory that the application gives back, moves or empties, through userfaultfd(2).
//!
//! A watched range is one whose write faults userfaultfd could be asked about; none ever is, so
//! that touching it costs nothing. What the kernel does tell of is munmap(2), mremap(2) and
//! madvise(2), and the caller of these does not get on before a thread of ours has read the notice.
//! That thread says first that it reads, and last that it has told everybody ([`Monitor::settle`]
//! waits for that), so whoever asks after such a call hears of it. No function of the C library is
//! patched for this, and where the system forbids it there is no monitor.
//!
//! The thread itself must never give memory back: it would wait for itself; nor wait for one that
//! does, for free(3) gives the end of the heap back, which may be watched. It allocates and frees
//! nothing, and neither does anybody under a lock that it takes.

use crate::core::sync::Mutex;
use crate::device::{host, wait};
use crate::types::*;
use core::ffi::c_void;
use core::mem::size_of;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, OnceLock};

/// Whoever keeps something about memory.
pub(crate) trait Listener: Send + Sync {
    /// These bytes are not what they were. Neither allocates nor frees, nor waits for anybody who
    /// does.
    fn forget(&self, from: usize, to: usize);
}

/// See the module text.
pub(crate) struct Monitor {
    notices: OwnedFd,
    listeners: Mutex<Vec<Arc<dyn Listener>>>,
    /// A notice may have been read that not everybody was told of.
    reading: AtomicBool,
    /// Notices so far.
    heard: AtomicU64,
}

/// `struct uffdio_api`, `struct uffdio_register`, `struct uffd_msg` of linux/userfaultfd.h.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}
#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
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
const USER_MODE_ONLY: i32 = 1;
const WRITE_PROTECT: u64 = 2;
/// Events, as features and in notices.
const TELLS: u64 = 1 << 2 | 1 << 3 | 1 << 6;
const MOVED: u8 = 0x14;
const REMOVED: u8 = 0x15;
const UNMAPPED: u8 = 0x16;

/// Most listeners: their list never grows.
const LISTENERS: usize = 64;
/// Bytes of a page: no range is watched in part.
const PAGE: usize = 4096;

impl Monitor {
    /// The monitor of this process, if the system permits one; started when first asked for.
    pub(crate) fn get() -> Option<&'static Monitor> {
        static MONITOR: OnceLock<Option<Monitor>> = OnceLock::new();
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
        static THREAD: OnceLock<bool> = OnceLock::new();
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
            // SAFETY: numbers are passed; the descriptor is owned as it is made.
            unsafe {
                match libc::syscall(libc::SYS_userfaultfd, flags) {
                    fd @ 0.. => Ok(OwnedFd::from_raw_fd(fd as i32)),
                    _ => Err(std::io::Error::last_os_error()),
                }
            }
        };
        // Linux before 5.11 does not know the flag that needs no privilege.
        let notices = open(flags | USER_MODE_ONLY).or_else(|_| open(flags))?;
        let mut api = Api {
            api: API,
            features: TELLS,
            ioctls: 0,
        };
        // SAFETY: the call's argument, which lives on.
        if unsafe { libc::ioctl(notices.as_raw_fd(), API_CALL, &mut api) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        Ok(Monitor {
            notices,
            listeners: Mutex::new(Vec::with_capacity(LISTENERS)),
            reading: AtomicBool::new(false),
            heard: AtomicU64::new(0),
        })
    }

    /// Tells `who` from now on; `false` when there are too many already.
    pub(crate) fn join(&self, who: Arc<dyn Listener>) -> bool {
        let mut l = self.listeners.lock().unwrap_or_else(|e| e.into_inner());
        let room = l.len() < LISTENERS;
        if room {
            l.push(who);
        }
        room
    }

    /// Tells `who` no more.
    pub(crate) fn leave(&self, who: &Arc<dyn Listener>) {
        let mut l = self.listeners.lock().unwrap_or_else(|e| e.into_inner());
        let at = l.iter().position(|x| Arc::ptr_eq(x, who));
        let gone = at.map(|at| l.swap_remove(at));
        drop(l);
        drop(gone);
    }

    /// Waits until everybody was told of every notice that has been read.
    #[inline]
    pub(crate) fn settle(&self) {
        while self.reading.load(Acquire) {
            std::thread::yield_now();
        }
    }

    /// Notices read so far.
    pub(crate) fn heard(&self) -> u64 {
        self.heard.load(Acquire)
    }

    /// Watches the pages of these bytes; `false` when that cannot be, as for files, or what another
    /// monitor watches.
    pub(crate) fn watch(&self, from: usize, to: usize) -> bool {
        let start = from & !(PAGE - 1);
        let Some(end) = to.checked_next_multiple_of(PAGE) else {
            return false;
        };
        let mut r = Register {
            start: start as u64,
            len: (end - start) as u64,
            mode: WRITE_PROTECT,
            ioctls: 0,
        };
        // SAFETY: the call's argument, which lives on; the kernel checks the range, whose contents
        // stay as they are.
        unsafe { libc::ioctl(self.notices.as_raw_fd(), REGISTER_CALL, &mut r) == 0 }
    }

    /// The bytes of the next notice.
    fn hear(&self) -> Option<(usize, usize)> {
        loop {
            let mut n = Notice::default();
            let len = size_of::<Notice>();
            let to = (&raw mut n).cast::<c_void>();
            // SAFETY: `n` is as long as the kernel's notice.
            let got = unsafe { libc::read(self.notices.as_raw_fd(), to, len) };
            if got != len as isize {
                return None;
            }
            self.heard.fetch_add(1, AcqRel);
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
            self.reading.store(true, SeqCst);
            while let Some((from, to)) = self.hear() {
                let all = self.listeners.lock().unwrap_or_else(|e| e.into_inner());
                all.iter().for_each(|l| l.forget(from, to));
            }
            self.reading.store(false, Release);
        }
    }
}
