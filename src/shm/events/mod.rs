//! The events thread: waits for new connections, wake-ups and exits of peers, which shared memory
//! cannot signal.
//!
//! Each process has one, started with the first endpoint; the thread waits in epoll(7) and queues
//! what it receives for the endpoint ([`EventQueue`]). An endpoint reads one flag with every poll
//! and makes no system call of its own. `watched` has the sockets and processes in the epoll set,
//! `sockets` reads them, `initiators` executes accesses of an application that does not poll.

mod initiators;
mod queue;
mod sockets;
mod watched;

use super::connection::{self, accept, receive, ConnEvent};
use super::ring::{asymmetric_fence, RingReader, RingSegment};
use super::rma::{Executed, Initiator, MrTable, RemoteMrTable};
use crate::core::process::PerProcess;
use crate::core::sync::{Mutex, MutexGuard, Unpoisoned};
use crate::core::Result;
use crate::device::wait::{no_descriptor, poll_fd, watch, WaitSet};
use crate::device::{host, QpAddr};
use crate::transport::Verdict;
use crate::types::*;
use initiators::PendingInitiator;
pub(crate) use queue::{EventQueue, RingEvent};
use std::collections::HashMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, OnceLock, Weak};
use watched::{WatchState, DEATH};

/// Milliseconds between two checks of pending accesses.
const CHECK_MS: i32 = 1;
/// Milliseconds for which a listener is not watched whose callers find no descriptor.
const PAUSE_MS: i32 = 10;
/// The bell's id; connections' ids begin at 1.
const BELL: u64 = 0;

/// See the module text.
pub(crate) struct EventThread {
    started: AtomicBool,
    epoll: OwnedFd,
    watched: Mutex<WatchState>,
    /// Initiators with unsignaled accesses, and the descriptor that announces a new one.
    initiators: Mutex<Vec<PendingInitiator>>,
    bell: WaitSet,
    /// Signalled with each answer to a call, for threads that wait for one. (Endpoints' own signals
    /// are for callers that are blocked on a queue: another must not take them.)
    answers: WaitSet,
    /// A reserve descriptor: closed for a moment when no other is left
    /// ([`EventThread::refuse_one`]).
    spare: Mutex<Option<OwnedFd>>,
}

static THREAD: PerProcess<EventThread> = PerProcess::new();

/// epoll_ctl(2): from now on `events` of `fd` come with `id`.
fn epoll_control(epoll: &OwnedFd, operation: i32, fd: i32, events: i32, id: u64) {
    let _ = watch(epoll.as_raw_fd(), operation, fd, events, id);
}

impl EventThread {
    fn new() -> Result<EventThread> {
        // SAFETY: plain numbers are passed; the descriptor is owned from here on.
        let epoll = unsafe {
            let fd = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            if fd < 0 {
                return Err(no_descriptor("no shared memory: epoll_create1(2)"));
            }
            OwnedFd::from_raw_fd(fd)
        };
        let bell = WaitSet::new()?;
        epoll_control(&epoll, libc::EPOLL_CTL_ADD, bell.fd(), libc::EPOLLIN, BELL);
        Ok(EventThread {
            started: AtomicBool::new(false),
            spare: Mutex::new(epoll.try_clone().ok()),
            epoll,
            watched: Mutex::default(),
            initiators: Mutex::default(),
            bell,
            answers: WaitSet::new()?,
        })
    }

    /// The thread of this process, started when it is first asked for. `FI_EMFILE` without a
    /// descriptor, `FI_EAGAIN` without a thread.
    pub(crate) fn get() -> Result<&'static EventThread> {
        let t = THREAD.get_or_try_init(EventThread::new)?;
        if !t.started.swap(true, SeqCst) {
            host::start(c"fi-shm", || t.run()).inspect_err(|_| t.started.store(false, SeqCst))?;
        }
        Ok(t)
    }

    /// Forgets the answers that were signalled until now: their events are queued.
    pub(crate) fn clear_answers() {
        if let Some(t) = THREAD.get() {
            t.answers.clear();
        }
    }

    /// Waits for an answer, or until `sock` is readable, at most `timeout_ms` milliseconds.
    pub(crate) fn wait_answer(&self, sock: i32, timeout_ms: i32) {
        self.answers.wait_signal_or(sock, timeout_ms);
    }

    /// Waits up to `most` milliseconds (-1: without limit) for events and processes them. Returns
    /// whether there was one. The bell wakes the events thread only: it stays set unless
    /// `answered`.
    fn wait_events(&self, most: i32, answered: bool) -> bool {
        let mut e = [libc::epoll_event { events: 0, u64: 0 }; 64];
        // SAFETY: `e` has room for the events asked for.
        let n = unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), e.as_mut_ptr(), 64, most) };
        let mut some = false;
        for ev in e.iter().take(usize::try_from(n).unwrap_or(0)) {
            let heard = ev.u64;
            some |= heard != BELL;
            match heard {
                BELL if answered => self.bell.clear(),
                BELL => {}
                id if id & DEATH != 0 => self.process_ended((id & !DEATH) as i32),
                id => self.ready(id, false),
            }
        }
        some
    }

    fn run(&self) {
        let mut most = -1;
        loop {
            self.wait_events(most, true);
            most = match (self.check_initiators(), self.resume()) {
                (true, _) => CHECK_MS,
                (_, true) => PAUSE_MS,
                _ => -1,
            };
        }
    }

    /// Processes pending events in place of the thread: an application that polls without success
    /// on the thread's processor may keep the thread from running for milliseconds. Returns whether
    /// there was an event.
    pub(crate) fn poll_events() -> bool {
        let t = THREAD.get();
        t.is_some_and(|t| t.wait_events(0, false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An application that computes for minutes does not take the end of a peer in.
    #[test]
    fn the_end_of_a_peer_wakes_the_thread_once() {
        let t = EventThread::new().unwrap();
        let ep = Arc::new(EventQueue::new(None).unwrap());
        let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
        let near = Arc::new(OwnedFd::from(near));
        t.watch_outgoing(&ep, Arc::clone(&near), 0);
        drop(far);
        assert!(t.wait_events(0, true));
        assert!(matches!(ep.take()[..], [RingEvent::End(_)]));
        assert!(!t.wait_events(0, true));
    }
}
