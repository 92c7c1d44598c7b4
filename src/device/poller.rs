//! An epoll(7) set over many sockets.

use super::wait::{no_descriptor, watch};
use core::ffi::c_int;

/// A ready socket: its name, and whether it can be read or written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    pub name: u64,
    pub read: bool,
    pub write: bool,
}

/// The system call that lists events: the one that libc makes, which no seccomp profile of a
/// container forbids. Not by libc: its function is a cancellation point.
#[cfg(target_arch = "x86_64")]
const EPOLL_WAIT: libc::c_long = libc::SYS_epoll_wait;
#[cfg(not(target_arch = "x86_64"))]
const EPOLL_WAIT: libc::c_long = libc::SYS_epoll_pwait;

/// Most events of one [`Poller::poll`].
pub(crate) const READY_MAX: usize = 64;

/// An epoll(7) set, level triggered. Each socket has a name.
#[derive(Debug)]
pub(crate) struct Poller {
    epoll: i32,
}

impl Poller {
    /// `FI_EMFILE` when descriptors are used up.
    pub(crate) fn new() -> Result<Poller, c_int> {
        // SAFETY: no pointers are passed.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if epoll < 0 {
            return Err(no_descriptor("sockets cannot be watched: epoll_create1(2)"));
        }
        Ok(Poller { epoll })
    }

    /// Readable while a socket is ready.
    pub(crate) fn fd(&self) -> i32 {
        self.epoll
    }

    fn control(
        &self,
        what: c_int,
        fd: i32,
        name: u64,
        read: bool,
        write: bool,
    ) -> Result<(), c_int> {
        let mut events = 0;
        if read {
            events |= libc::EPOLLIN;
        }
        if write {
            events |= libc::EPOLLOUT;
        }
        if events == 0 {
            // epoll always reports errors and hang-ups; with this, once.
            events = libc::EPOLLONESHOT;
        }
        watch(self.epoll, what, fd, events, name)
    }

    /// Watches a socket. Fails when the system watches no more.
    pub(crate) fn add(&self, fd: i32, name: u64, read: bool, write: bool) -> Result<(), c_int> {
        self.control(libc::EPOLL_CTL_ADD, fd, name, read, write)
    }

    /// Changes the events that a socket is watched for. One that is watched for nothing is reported
    /// once, when its connection fails or both directions are closed.
    pub(crate) fn change(&self, fd: i32, name: u64, read: bool, write: bool) {
        let _ = self.control(libc::EPOLL_CTL_MOD, fd, name, read, write);
    }

    /// No longer watches a socket.
    pub(crate) fn remove(&self, fd: i32) {
        let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0, false, false);
    }

    /// Lists the sockets that are ready now. Errors and hang-ups count as readable and writable.
    #[inline]
    pub(crate) fn poll(&self, out: &mut Vec<Ready>) {
        let none = libc::epoll_event { events: 0, u64: 0 };
        let mut list = [none; READY_MAX];
        // SAFETY: the list has room for so many events.
        let n = unsafe {
            let (at, no_mask) = (list.as_mut_ptr(), core::ptr::null::<libc::sigset_t>());
            libc::syscall(EPOLL_WAIT, self.epoll, at, READY_MAX, 0, no_mask, 0)
        };
        out.clear();
        let n = usize::try_from(n).unwrap_or(0);
        out.extend(list.iter().take(n).map(|e| {
            let events = e.events as i32;
            let over = events & (libc::EPOLLERR | libc::EPOLLHUP) != 0;
            Ready {
                name: e.u64,
                read: over || events & libc::EPOLLIN != 0,
                write: over || events & libc::EPOLLOUT != 0,
            }
        }));
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours and closed once.
        unsafe { libc::close(self.epoll) };
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::device::wait::poll_fd;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    #[test]
    fn a_socket_watched_for_nothing_wakes_once_when_its_peer_is_gone() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        let poller = Poller::new().unwrap();
        poller.add(near.as_raw_fd(), 7, true, false).unwrap();
        poller.change(near.as_raw_fd(), 7, false, false);
        // Unread bytes make the end a reset.
        near.write_all(&[1; 8]).unwrap();
        assert!(poll_fd(far.as_raw_fd(), libc::POLLIN, 10_000));
        drop(far);
        assert!(poll_fd(poller.fd(), libc::POLLIN, 10_000), "the end");
        let mut ready = Vec::new();
        poller.poll(&mut ready);
        assert_eq!(ready.len(), 1, "the end of the connection");
        assert!(!poll_fd(poller.fd(), libc::POLLIN, 0), "a second time");
        poller.change(near.as_raw_fd(), 7, true, false);
        assert!(poll_fd(poller.fd(), libc::POLLIN, 0), "read again");
    }
}
