//! The adapter's thread: serves queue pairs whose application is not polling.
//!
//! RDMA, acknowledgements and retransmission must not wait for the application. While an
//! application polls, its own calls drive the engine, and the thread only checks once per [`TICK`]
//! that the polls continue. When the application stops polling, or waits on a descriptor, the
//! thread adds the socket to its epoll set and drives the engine itself: events wait in the
//! backlog, and the descriptor of an armed queue pair becomes readable. An application that polls
//! again takes the socket out of the set ([`SharedEngine::take_back`]): as long as it is there,
//! each packet wakes the thread, which on the application's processor takes ten microseconds. There
//! is one thread per process, started with the first queue pair; the thread blocks without a
//! time-out while there is nothing to do.

use super::admission::AdmissionListener;
use super::engine::Engine;
use super::sock::new_arena;
use crate::core::process::PerProcess;
use crate::core::sync::{Mutex, MutexGuard, Unpoisoned};
use crate::core::Result;
use crate::device::host::{self, now};
use crate::device::wait::{no_descriptor, watch};
use crate::device::Events;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Interval at which the thread checks that applications still poll, milliseconds.
const TICK: i32 = 1;

/// Polls beside the thread after which an application that had stopped polling counts as polling
/// again.
const POLLS: u32 = 8;

/// Interval at which the thread drives idle queue pairs, to probe their peers, milliseconds.
const PROBE_MS: i32 = 5000;
/// Most connections accepted from callers in one pass.
const CALLERS: usize = 1024;

/// A queue pair as the application and the thread share it.
pub(crate) struct SharedEngine {
    engine: Mutex<Engine>,
    /// Counts the application's polls, so that the thread sees whether the application still polls.
    polls: AtomicU32,
    /// The thread drives the engine: the socket is in its epoll set. Changed under `handing_over`.
    thread_driven: AtomicBool,
    /// The system watches no more descriptors: the thread has to look.
    unwatched: AtomicBool,
    /// The queue pair is closed: the thread has nothing to do with it any more.
    handing_over: Mutex<bool>,
    /// Polls by the application since the thread has begun to drive the engine.
    polls_beside: AtomicU32,
    /// The application waits on `event_fd`.
    armed: AtomicBool,
    /// Signals of `event_fd` that no poll has taken. Counted before the signal is written: the
    /// write may wake a caller on this processor, which polls before this thread runs again.
    signals: AtomicU32,
    socket: i32,
    event_fd: i32,
    /// Where callers on this host ask to be admitted.
    /// Of a service; `None` also after [`SharedEngine::stop`].
    listener: Mutex<Option<AdmissionListener>>,
}

impl SharedEngine {
    /// Locks the engine; blocks while the adapter's thread drives it.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock().unpoisoned()
    }

    /// Notes a poll by the application.
    pub(crate) fn record_poll(&self) {
        self.polls.store(
            self.polls.load(Ordering::Relaxed).wrapping_add(1),
            Ordering::Relaxed,
        );
        // The thread that polls may be another one than the thread that waits on `event_fd`.
        if self.signals.load(Ordering::Relaxed) > 0 {
            self.take_signals();
        }
        if self.thread_driven.load(Ordering::Relaxed) {
            self.take_back();
        }
    }

    /// Resets `event_fd`. A signal that is counted and not yet written is left to a later poll.
    #[cold]
    fn take_signals(&self) {
        self.armed.store(false, Ordering::SeqCst);
        let mut n = 0u64;
        // SAFETY: reads eight bytes into a variable of eight bytes.
        unsafe { libc::read(self.event_fd, (&raw mut n).cast(), 8) };
        self.signals.fetch_sub(n as u32, Ordering::SeqCst);
    }

    /// Takes the queue pair back from the thread once the application polls again.
    #[cold]
    fn take_back(&self) {
        if self.armed() {
            return;
        }
        let polls = self.polls_beside.load(Ordering::Relaxed) + 1;
        self.polls_beside.store(polls, Ordering::Relaxed);
        if polls < POLLS {
            return;
        }
        if let Ok(r) = Reactor::get() {
            self.hand_over(r, false);
            // The thread may be blocked without a time-out.
            r.check_soon();
        }
    }

    /// Has the thread drive the engine (`on`), or leaves the engine to the application, unless that
    /// waits on `event_fd`.
    fn hand_over(&self, r: &Reactor, on: bool) {
        let stopped = self.handing_over.lock().unpoisoned();
        // An application that arms sets `armed` before it takes the lock.
        let waits = !on && self.armed.load(Ordering::SeqCst);
        if *stopped || waits || self.thread_driven.swap(on, Ordering::SeqCst) == on {
            return;
        }
        self.polls_beside.store(0, Ordering::Relaxed);
        if on {
            let unwatched = !r.watch(self.socket, 0);
            self.unwatched.store(unwatched, Ordering::Relaxed);
            if unwatched {
                r.wake();
            }
        } else {
            r.forget(self.socket);
        }
    }

    /// The application's poll of the engine.
    #[inline]
    pub(crate) fn poll(&self, into: &mut Events) {
        let mut e = self.lock();
        // Under the lock, as `arm` changes it.
        let alone = !self.thread_driven.load(Ordering::Relaxed);
        e.poll(into, alone, now());
    }

    /// Whether the thread drives the engine.
    #[inline]
    pub(crate) fn is_thread_driven(&self) -> bool {
        self.thread_driven.load(Ordering::SeqCst)
    }

    /// Whether nothing has happened since [`SharedEngine::arm`].
    pub(crate) fn armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed)
    }

    /// Descriptor that is readable when something happened after [`SharedEngine::arm`].
    pub(crate) fn event_fd(&self) -> i32 {
        self.event_fd
    }

    /// Hands the queue pair to the thread and asks for a signal. `false` when events wait already.
    pub(crate) fn arm(&self) -> bool {
        let mut e = self.lock();
        e.before_wait(now());
        if e.has_events() {
            return false;
        }
        self.armed.store(true, Ordering::SeqCst);
        if let Ok(r) = Reactor::get() {
            self.hand_over(r, true);
            // Wakes the thread when timers (retransmission) are running.
            if e.busy() {
                r.wake();
            }
        }
        true
    }

    /// Sends WELCOME to callers on this host that have proved their user id.
    fn admit(&self) {
        let mut listener = self.listener();
        let Some(l) = &mut *listener else { return };
        let mut callers = Vec::new();
        let watch = |fd| {
            if let Ok(r) = Reactor::get() {
                r.watch(fd, libc::EPOLLET);
            }
        };
        l.accept(CALLERS, |caller| callers.push(caller), watch);
        drop(listener);
        if callers.is_empty() {
            return;
        }
        let mut e = self.lock();
        for caller in callers {
            e.admit_from(&caller, now());
        }
    }

    fn signal(&self) {
        if self.armed.load(Ordering::SeqCst) {
            self.signals.fetch_add(1, Ordering::SeqCst);
            self.write_signal();
        }
    }

    fn write_signal(&self) {
        let one = 1u64;
        // SAFETY: writes eight bytes from a variable of eight bytes.
        unsafe { libc::write(self.event_fd, (&raw const one).cast(), 8) };
    }

    /// As [`SharedEngine::signal`], with polls just before and just after the signal is written.
    #[cfg(test)]
    pub(crate) fn signal_between_polls(&self) {
        self.signals.fetch_add(1, Ordering::SeqCst);
        self.record_poll();
        self.write_signal();
        self.record_poll();
    }

    /// Shares an engine with the thread.
    pub(crate) fn start(
        engine: Engine,
        listener: Option<AdmissionListener>,
    ) -> Result<Arc<SharedEngine>> {
        // SAFETY: no pointers are passed.
        let event_fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if event_fd < 0 {
            return Err(no_descriptor("no endpoint: eventfd(2)"));
        }
        let socket = engine.fd();
        let listener_fd = listener.as_ref().map(AdmissionListener::fd);
        let s = Arc::new(SharedEngine {
            engine: Mutex::new(engine),
            polls: AtomicU32::new(0),
            thread_driven: AtomicBool::new(false),
            unwatched: AtomicBool::new(false),
            handing_over: Mutex::default(),
            polls_beside: AtomicU32::new(0),
            armed: AtomicBool::new(false),
            signals: AtomicU32::new(0),
            socket,
            event_fd,
            listener: Mutex::new(listener),
        });
        let r = Reactor::get()?;
        if let Some(fd) = listener_fd {
            // EPOLLET: the thread does not spin while no descriptor is left to accept a caller.
            r.watch(fd, libc::EPOLLET);
        }
        r.list().push(Arc::downgrade(&s));
        r.wake();
        Ok(s)
    }

    /// Takes the queue pair away from the thread, for good.
    pub(crate) fn stop(&self) {
        let mut stopped = self.handing_over.lock().unpoisoned();
        *stopped = true;
        if let Ok(r) = Reactor::get() {
            r.forget(self.socket);
        }
        drop(stopped);
        // The thread may have a reference for a while, and another queue pair may need the port.
        *self.listener() = None;
        self.lock().close();
    }

    fn listener(&self) -> MutexGuard<'_, Option<AdmissionListener>> {
        self.listener.lock().unpoisoned()
    }
}

impl Drop for SharedEngine {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours and closed once.
        unsafe { libc::close(self.event_fd) };
    }
}

struct Reactor {
    started: AtomicBool,
    epoll: OwnedFd,
    wake_fd: OwnedFd,
    /// A timer in the epoll set, and whether it runs; see [`Reactor::check_soon`].
    timer_fd: OwnedFd,
    timer_runs: AtomicBool,
    list: Mutex<Vec<Weak<SharedEngine>>>,
}

static REACTOR: PerProcess<Reactor> = PerProcess::new();

impl Reactor {
    fn get() -> Result<&'static Reactor> {
        let r = REACTOR.get_or_try_init(Reactor::new)?;
        if !r.started.swap(true, Ordering::SeqCst) {
            host::start(c"efasoft", || r.run())
                .inspect_err(|_| r.started.store(false, Ordering::SeqCst))?;
        }
        Ok(r)
    }

    /// `FI_EMFILE` without descriptors, or another errno of the calls.
    fn new() -> Result<Reactor> {
        // SAFETY: the descriptor is new, and owned at once.
        let owned = |fd: i32| (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) });
        let timer = libc::TFD_NONBLOCK | libc::TFD_CLOEXEC;
        // SAFETY: no pointers are passed.
        let all = unsafe {
            (
                owned(libc::epoll_create1(libc::EPOLL_CLOEXEC)),
                owned(libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)),
                owned(libc::timerfd_create(libc::CLOCK_MONOTONIC, timer)),
            )
        };
        let (Some(epoll), Some(wake_fd), Some(timer_fd)) = all else {
            return Err(no_descriptor(
                "no endpoint: epoll_create1(2), eventfd(2), timerfd_create(2)",
            ));
        };
        let r = Reactor {
            started: AtomicBool::new(false),
            epoll,
            wake_fd,
            timer_fd,
            timer_runs: AtomicBool::new(false),
            list: Mutex::default(),
        };
        r.watch(r.wake_fd.as_raw_fd(), 0);
        r.watch(r.timer_fd.as_raw_fd(), 0);
        Ok(r)
    }

    fn list(&self) -> MutexGuard<'_, Vec<Weak<SharedEngine>>> {
        self.list.lock().unpoisoned()
    }

    /// Adds `fd` to the epoll set for EPOLLIN; `how` is 0, or EPOLLET for edge-triggered events.
    /// Returns whether it worked.
    fn watch(&self, fd: i32, how: i32) -> bool {
        let (epoll, events) = (self.epoll.as_raw_fd(), libc::EPOLLIN | how);
        watch(epoll, libc::EPOLL_CTL_ADD, fd, events, fd as u64).is_ok()
    }

    fn forget(&self, fd: i32) {
        let _ = watch(self.epoll.as_raw_fd(), libc::EPOLL_CTL_DEL, fd, 0, 0);
    }

    /// Wakes the thread after [`TICK`], by which an application that polls has got on with it.
    fn check_soon(&self) {
        if self.timer_runs.swap(true, Ordering::SeqCst) {
            return;
        }
        let (none, tick) = (
            libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            libc::timespec {
                tv_sec: 0,
                tv_nsec: i64::from(TICK) * 1_000_000,
            },
        );
        let once = libc::itimerspec {
            it_interval: none,
            it_value: tick,
        };
        // SAFETY: reads the time given; no old value is asked for.
        unsafe {
            libc::timerfd_settime(self.timer_fd.as_raw_fd(), 0, &once, core::ptr::null_mut())
        };
    }

    fn wake(&self) {
        let one = 1u64;
        // SAFETY: writes eight bytes from a variable of eight bytes.
        unsafe { libc::write(self.wake_fd.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    fn wait(&self, timeout_ms: i32) {
        let mut e = [libc::epoll_event { events: 0, u64: 0 }; 16];
        // SAFETY: `e` has room for the sixteen events asked for.
        let n = unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), e.as_mut_ptr(), 16, timeout_ms) };
        for ev in e.iter().take(usize::try_from(n).unwrap_or(0)) {
            for fd in [&self.wake_fd, &self.timer_fd].map(AsRawFd::as_raw_fd) {
                if ev.u64 == fd as u64 {
                    let mut n = 0u64;
                    // SAFETY: reads eight bytes into a variable of eight bytes.
                    unsafe { libc::read(fd, (&raw mut n).cast(), 8) };
                    // The read would consume the expiry of a timer that is set now: clear the flag
                    // after it. The pass that follows handles the requests of callers that have
                    // found the flag set.
                    if fd == self.timer_fd.as_raw_fd() {
                        self.timer_runs.store(false, Ordering::SeqCst);
                    }
                }
            }
        }
    }

    /// Body of the thread.
    fn run(&'static self) {
        let mut arena = Vec::new();
        let mut seen: Vec<(usize, u32)> = Vec::new();
        let mut live: Vec<Arc<SharedEngine>> = Vec::new();
        loop {
            live.clear();
            self.list().retain(|w| match w.upgrade() {
                Some(s) => {
                    live.push(s);
                    true
                }
                None => false,
            });
            let mut polling = false;
            let mut timers = false;
            let mut peers = false;
            for s in &live {
                s.admit();
                let key = Arc::as_ptr(s) as usize;
                let polls = s.polls.load(Ordering::Relaxed);
                let before = seen.iter().find(|(k, _)| *k == key).map(|(_, n)| *n);
                let armed = s.armed.load(Ordering::SeqCst);
                if before != Some(polls) && !armed {
                    // The application polls. A new queue pair counts as polling, too.
                    seen.retain(|(k, _)| *k != key);
                    seen.push((key, polls));
                    polling = true;
                    s.hand_over(self, false);
                    continue;
                }
                s.hand_over(self, true);
                if arena.is_empty() {
                    let Some(new) = new_arena() else {
                        timers = true;
                        continue;
                    };
                    arena = new;
                }
                let mut e = match s.engine.try_lock() {
                    Ok(e) => e,
                    Err(_) if armed => s.lock(),
                    // The application drives the engine. A readable socket in the epoll set would
                    // keep this thread running, on a single processor in place of the application.
                    Err(_) => {
                        polling = true;
                        s.hand_over(self, false);
                        continue;
                    }
                };
                let events = e.poll_for_thread(&mut arena, now());
                timers |= e.busy() || s.unwatched.load(Ordering::Relaxed);
                peers |= e.has_peers();
                drop(e);
                if events {
                    s.signal();
                }
            }
            seen.retain(|(k, _)| live.iter().any(|s| Arc::as_ptr(s) as usize == *k));
            live.clear();
            self.wait(if polling {
                TICK
            } else if timers {
                1
            } else if peers {
                PROBE_MS
            } else {
                -1
            });
        }
    }
}

/// Has the thread look at its queue pairs: one of them has got timers.
#[cold]
pub(crate) fn wake() {
    if let Ok(r) = Reactor::get() {
        r.wake();
    }
}

/// Waits until `f` holds, at most `limit`; evaluates `f` every 200 µs. For closing only.
pub(crate) fn wait_for(limit: Duration, mut f: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + limit;
    while !f() {
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    true
}
