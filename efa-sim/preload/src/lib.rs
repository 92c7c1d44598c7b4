//! Loaded in front of the C library by `efa-sim run` (LD_PRELOAD): calls on
//! `/dev/infiniband/uverbsN` go to the device process.
//!
//! A command descriptor is the socket to that process, so that `dup`, `fork`, close-on-exec and
//! `select` need no help. Only what a socket cannot do is answered here: it looks like a character
//! device, takes `ioctl` and `write`, and can be mapped. Netlink sockets for RDMA are refused, for
//! a kernel with RDMA would hide the emulated devices.

#![allow(non_snake_case)]

#[path = "../../src/door.rs"]
mod door;

use core::ffi::{c_char, c_int, c_ulong, c_void, CStr};
use core::mem::{size_of, transmute, zeroed};
use core::ptr::{addr_of, null_mut};
use core::sync::atomic::{AtomicPtr, Ordering::*};
use door::{Op, Reply, Request, ADAPTERS, MAJOR, MINOR, REPLY, REQUEST, SOCKET};
use libc::{mode_t, off_t, size_t, ssize_t, stat as Stat};
use std::sync::Mutex;

/// `RDMA_VERBS_IOCTL`.
const RDMA_VERBS_IOCTL: c_ulong = 0xc018_1b01;
/// Netlink's RDMA family.
const NETLINK_RDMA: c_int = 20;

/// Calls the next definition of a function of the C library.
macro_rules! real {
    ($name:ident: fn($($t:ty),*) -> $r:ty; $($v:expr),*) => {{
        static AT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
        let mut p = AT.load(Relaxed);
        if p.is_null() {
            let name = concat!(stringify!($name), "\0");
            p = libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast());
            AT.store(p, Relaxed);
        }
        transmute::<*mut c_void, unsafe extern "C" fn($($t),*) -> $r>(p)($($v),*)
    }};
}

/// A command descriptor: its number, the inode of the socket, and the adapter.
#[derive(Clone, Copy)]
struct Command {
    fd: c_int,
    inode: u64,
    adapter: u32,
}

/// Opened descriptors. A number may have been reused since; [`Command::inode`] shows that.
static COMMANDS: Mutex<Vec<Command>> = Mutex::new(Vec::new());
/// One request at a time.
static REQUEST_LOCK: Mutex<()> = Mutex::new(());

fn lock<T>(m: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(|e| e.into_inner())
}

fn fail(e: c_int) -> c_int {
    // SAFETY: errno is this thread's.
    unsafe { *libc::__errno_location() = e };
    -1
}

/// The adapter that a path names.
fn adapter_of(path: *const c_char) -> Option<u32> {
    if path.is_null() {
        return None;
    }
    // SAFETY: paths are C strings.
    let path = unsafe { CStr::from_ptr(path) }.to_str().ok()?;
    let n = path.strip_prefix("/dev/infiniband/uverbs")?.parse().ok()?;
    let count: u32 = std::env::var(ADAPTERS).ok()?.parse().ok()?;
    (n < count).then_some(n)
}

fn inode(fd: c_int) -> Option<u64> {
    // SAFETY: `s` is a place for the answer.
    unsafe {
        let mut s: Stat = zeroed();
        (libc::syscall(libc::SYS_fstat, fd, &raw mut s) == 0).then_some(s.st_ino)
    }
}

/// The command descriptor with the number `fd`, if `fd` is one.
fn command(fd: c_int) -> Option<Command> {
    let list = lock(&COMMANDS);
    let c = *list.iter().rev().find(|c| c.fd == fd)?;
    drop(list);
    (inode(fd)? == c.inode).then_some(c)
}

fn open_adapter(n: u32, flags: c_int) -> c_int {
    let Ok(path) = std::env::var(SOCKET) else {
        return fail(libc::ENOENT);
    };
    // SAFETY: plain system calls on our own descriptor and address.
    let fd = unsafe {
        let mut a: libc::sockaddr_un = zeroed();
        a.sun_family = libc::AF_UNIX as _;
        if path.len() >= a.sun_path.len() {
            return fail(libc::ENAMETOOLONG);
        }
        for (to, b) in a.sun_path.iter_mut().zip(path.bytes()) {
            *to = b as c_char;
        }
        let kind = libc::SOCK_SEQPACKET
            | if flags & libc::O_CLOEXEC != 0 {
                libc::SOCK_CLOEXEC
            } else {
                0
            };
        let fd = libc::syscall(libc::SYS_socket, libc::AF_UNIX, kind, 0) as c_int;
        if fd < 0 {
            return -1;
        }
        let len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
        if libc::connect(fd, addr_of!(a).cast(), len) != 0 {
            libc::close(fd);
            return fail(libc::ENODEV);
        }
        fd
    };
    let done = ask(fd, Op::Open, u64::from(n), 0).and_then(|_| {
        let inode = inode(fd).ok_or(libc::EIO)?;
        let mut list = lock(&COMMANDS);
        list.retain(|c| c.fd != fd);
        list.push(Command {
            fd,
            inode,
            adapter: n,
        });
        Ok(())
    });
    match done {
        Ok(()) => fd,
        Err(e) => {
            // SAFETY: our own descriptor.
            unsafe { libc::close(fd) };
            fail(e)
        }
    }
}

/// Sends a request and waits for its reply, with the descriptor that came along.
fn ask(fd: c_int, op: Op, a: u64, b: u64) -> Result<(Reply, Option<c_int>), c_int> {
    let _one = lock(&REQUEST_LOCK);
    // SAFETY: getpid(2) cannot fail.
    let pid = unsafe { libc::getpid() } as u32;
    let request = Request {
        op: op as u32,
        pid,
        a,
        b,
    };
    let mut reply = Reply::default();
    let mut room = [0u64; 8];
    // SAFETY: the buffers are ours and as long as stated; the control message is read as the kernel
    // wrote it.
    unsafe {
        let sent = libc::syscall(
            libc::SYS_sendto,
            fd,
            &raw const request,
            REQUEST,
            libc::MSG_NOSIGNAL,
            0,
            0,
        );
        if sent != REQUEST as i64 {
            return Err(libc::EIO);
        }
        let mut part = libc::iovec {
            iov_base: (&raw mut reply).cast(),
            iov_len: REPLY,
        };
        let mut m: libc::msghdr = zeroed();
        m.msg_iov = &mut part;
        m.msg_iovlen = 1;
        m.msg_control = room.as_mut_ptr().cast();
        m.msg_controllen = size_of::<[u64; 8]>();
        loop {
            let n = libc::recvmsg(fd, &mut m, libc::MSG_CMSG_CLOEXEC);
            if n == REPLY as isize {
                break;
            }
            if n >= 0 || *libc::__errno_location() != libc::EINTR {
                return Err(libc::EIO);
            }
        }
        let c = libc::CMSG_FIRSTHDR(&m);
        let came = (!c.is_null() && (*c).cmsg_type == libc::SCM_RIGHTS)
            .then(|| libc::CMSG_DATA(c).cast::<c_int>().read_unaligned());
        if let (Some(n), true) = (came, reply.store_at != 0) {
            match reply.store_width {
                4 => (reply.store_at as *mut u32).write_unaligned(n as u32),
                8 => (reply.store_at as *mut u64).write_unaligned(n as u64),
                _ => {}
            }
        }
        match reply.error {
            0 => Ok((reply, came)),
            e => Err(e),
        }
    }
}

/// Makes `s` describe the adapter's character device.
///
/// # Safety
/// `s` points to a `struct stat`.
unsafe fn describe(n: u32, s: *mut Stat) -> c_int {
    // SAFETY: as promised by the caller.
    unsafe {
        *s = zeroed();
        (*s).st_mode = libc::S_IFCHR | 0o666;
        (*s).st_nlink = 1;
        (*s).st_rdev = libc::makedev(MAJOR, MINOR + n);
    }
    0
}

/// Defines an `open` of this name.
macro_rules! open {
    ($name:ident) => {
        /// # Safety
        /// As open(2).
        #[no_mangle]
        pub unsafe extern "C" fn $name(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
            match adapter_of(path) {
                Some(n) => open_adapter(n, flags),
                // SAFETY: handed on as it came.
                None => unsafe {
                    real!($name: fn(*const c_char, c_int, mode_t) -> c_int; path, flags, mode)
                },
            }
        }
    };
}
open!(open);
open!(open64);

/// Defines an `openat` of this name.
macro_rules! openat {
    ($name:ident) => {
        /// # Safety
        /// As openat(2).
        #[no_mangle]
        pub unsafe extern "C" fn $name(
            dir: c_int,
            path: *const c_char,
            flags: c_int,
            mode: mode_t,
        ) -> c_int {
            match adapter_of(path) {
                Some(n) => open_adapter(n, flags),
                // SAFETY: handed on as it came.
                None => unsafe {
                    real!($name: fn(c_int, *const c_char, c_int, mode_t) -> c_int;
                        dir, path, flags, mode)
                },
            }
        }
    };
}
openat!(openat);
openat!(openat64);

/// Defines an `open` of this name, without a mode (fortified).
macro_rules! open_2 {
    ($name:ident) => {
        /// # Safety
        /// As open(2).
        #[no_mangle]
        pub unsafe extern "C" fn $name(path: *const c_char, flags: c_int) -> c_int {
            match adapter_of(path) {
                Some(n) => open_adapter(n, flags),
                // SAFETY: handed on as it came.
                None => unsafe { real!($name: fn(*const c_char, c_int) -> c_int; path, flags) },
            }
        }
    };
}
open_2!(__open_2);
open_2!(__open64_2);

/// Defines a `stat` of this name.
macro_rules! stat {
    ($name:ident) => {
        /// # Safety
        /// As stat(2).
        #[no_mangle]
        pub unsafe extern "C" fn $name(path: *const c_char, s: *mut Stat) -> c_int {
            // SAFETY: handed on as it came, or filled in.
            unsafe {
                match adapter_of(path) {
                    Some(n) => describe(n, s),
                    None => real!($name: fn(*const c_char, *mut Stat) -> c_int; path, s),
                }
            }
        }
    };
}
stat!(stat);
stat!(stat64);

/// Defines an `fstat` of this name.
macro_rules! fstat {
    ($name:ident) => {
        /// # Safety
        /// As fstat(2).
        #[no_mangle]
        pub unsafe extern "C" fn $name(fd: c_int, s: *mut Stat) -> c_int {
            // SAFETY: handed on as it came, or filled in.
            unsafe {
                match command(fd) {
                    Some(c) => describe(c.adapter, s),
                    None => real!($name: fn(c_int, *mut Stat) -> c_int; fd, s),
                }
            }
        }
    };
}
fstat!(fstat);
fstat!(fstat64);

/// Defines a versioned `stat` of this name, as libraries built before glibc 2.33 call it.
macro_rules! xstat {
    ($name:ident) => {
        /// # Safety
        /// As stat(2).
        #[no_mangle]
        pub unsafe extern "C" fn $name(v: c_int, path: *const c_char, s: *mut Stat) -> c_int {
            // SAFETY: handed on as it came, or filled in.
            unsafe {
                match adapter_of(path) {
                    Some(n) => describe(n, s),
                    None => real!($name: fn(c_int, *const c_char, *mut Stat) -> c_int; v, path, s),
                }
            }
        }
    };
}
xstat!(__xstat);
xstat!(__xstat64);

/// As above, for `fstat`.
macro_rules! fxstat {
    ($name:ident) => {
        /// # Safety
        /// As fstat(2).
        #[no_mangle]
        pub unsafe extern "C" fn $name(v: c_int, fd: c_int, s: *mut Stat) -> c_int {
            // SAFETY: handed on as it came, or filled in.
            unsafe {
                match command(fd) {
                    Some(c) => describe(c.adapter, s),
                    None => real!($name: fn(c_int, c_int, *mut Stat) -> c_int; v, fd, s),
                }
            }
        }
    };
}
fxstat!(__fxstat);
fxstat!(__fxstat64);

/// # Safety
/// As ioctl(2).
#[no_mangle]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int {
    if request & 0xffff_ffff == RDMA_VERBS_IOCTL && command(fd).is_some() {
        return match ask(fd, Op::Ioctl, arg as u64, 0) {
            Ok(_) => 0,
            Err(e) => fail(e),
        };
    }
    // SAFETY: handed on as it came.
    unsafe { real!(ioctl: fn(c_int, c_ulong, *mut c_void) -> c_int; fd, request, arg) }
}

/// # Safety
/// As write(2).
#[no_mangle]
pub unsafe extern "C" fn write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t {
    if lock(&COMMANDS).iter().any(|c| c.fd == fd) && command(fd).is_some() {
        return match ask(fd, Op::Write, buf as u64, len as u64) {
            Ok(_) => len as ssize_t,
            Err(e) => fail(e) as ssize_t,
        };
    }
    // SAFETY: handed on as it came.
    unsafe { real!(write: fn(c_int, *const c_void, size_t) -> ssize_t; fd, buf, len) }
}

/// Defines an `mmap` of this name.
macro_rules! mmap {
    ($name:ident) => {
        /// # Safety
        /// As mmap(2).
        #[no_mangle]
        pub unsafe extern "C" fn $name(
            at: *mut c_void,
            len: size_t,
            prot: c_int,
            flags: c_int,
            fd: c_int,
            off: off_t,
        ) -> *mut c_void {
            // SAFETY: as the caller promises. A system call, because the C library's own `mmap`
            // may not be resolvable yet.
            let map = |fd: c_int, off: off_t| unsafe {
                libc::syscall(libc::SYS_mmap, at, len, prot, flags, fd, off) as *mut c_void
            };
            if fd < 0 || flags & libc::MAP_SHARED == 0 || command(fd).is_none() {
                return map(fd, off);
            }
            match ask(fd, Op::Map, off as u64, len as u64) {
                Ok((r, Some(file))) => {
                    let p = map(file, r.value as off_t);
                    // SAFETY: the descriptor came for this mapping.
                    unsafe { libc::syscall(libc::SYS_close, file) };
                    p
                }
                Ok(_) => {
                    fail(libc::EIO);
                    libc::MAP_FAILED
                }
                Err(e) => {
                    fail(e);
                    libc::MAP_FAILED
                }
            }
        }
    };
}
mmap!(mmap);
mmap!(mmap64);

/// # Safety
/// As socket(2).
#[no_mangle]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if domain == libc::AF_NETLINK && protocol == NETLINK_RDMA {
        return fail(libc::EPROTONOSUPPORT);
    }
    // SAFETY: handed on as it came.
    unsafe { real!(socket: fn(c_int, c_int, c_int) -> c_int; domain, kind, protocol) }
}
