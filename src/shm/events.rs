//! The events thread: waits for new connections, wake-ups and exits of peers, which shared memory
//! cannot signal.
//!
//! Each process has one, started with the first endpoint; the thread waits in epoll(7) and queues
//! what it receives for the endpoint ([`EventQueue`]). An endpoint reads one flag with every poll
//! and makes no system call of its own.

use super::connection::{self, accept, receive, ConnEvent};
use super::ring::{asymmetric_fence, RingReader, RingSegment};
use super::rma::{Executed, Initiator, MrTable, RemoteMrTable};
use crate::core::process::PerProcess;
use crate::core::sync::{Mutex, MutexGuard};
use crate::core::Result;
use crate::device::wait::{no_descriptor, poll_fd, watch, WaitSet};
use crate::device::{host, QpAddr};
use crate::transport::Verdict;
use crate::types::*;
use std::collections::HashMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, OnceLock, Weak};

/// An event that the thread queues for an endpoint.
pub(crate) enum RingEvent {
    /// A peer has opened a ring to us; the number names the connection.
    Ring(u64, QpAddr, RingReader),
    /// A peer that we connected to reads our ring from now on; with its table of registered memory,
    /// if the system permits access.
    Accepted(u64, Option<RemoteMrTable>),
    /// CTS: the peer of this connection asks for the rest of a message: its number here, and there.
    Cts(u64, u32, u32),
    /// Wake-up: this connection's ring has a record, or room.
    Awake(u64),
    /// This connection has ended.
    End(u64),
}

/// The part of an endpoint that its owner and the events thread share.
pub(crate) struct EventQueue {
    pub news: AtomicBool,
    list: Mutex<Vec<RingEvent>>,
    /// Registered memory that is offered to peers.
    table: Option<Arc<MrTable>>,
    /// Readable when an event is queued; the adapter's descriptor is in the set, too.
    pub wait: WaitSet,
    /// The endpoint is closed: it takes no callers.
    closed: AtomicBool,
}

impl EventQueue {
    /// An empty queue.
    pub(crate) fn new(table: Option<Arc<MrTable>>) -> Result<EventQueue> {
        Ok(EventQueue {
            news: AtomicBool::new(false),
            list: Mutex::default(),
            table,
            wait: WaitSet::new()?,
            closed: AtomicBool::new(false),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<RingEvent>> {
        self.list.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Takes the events queued since the last call.
    pub(crate) fn take(&self) -> Vec<RingEvent> {
        let mut l = self.lock();
        self.news.store(false, Relaxed);
        core::mem::take(&mut l)
    }

    /// Takes the answer to our request on connection `id` out of the queue, if it has arrived. The
    /// end of the connection is returned, and stays in the queue as well.
    pub(crate) fn answer(&self, id: u64) -> Option<RingEvent> {
        let mut l = self.lock();
        if l.iter()
            .any(|n| matches!(n, RingEvent::End(conn) if *conn == id))
        {
            return Some(RingEvent::End(id));
        }
        let accepted = |n: &RingEvent| matches!(n, RingEvent::Accepted(conn, _) if *conn == id);
        l.iter().position(accepted).map(|at| l.remove(at))
    }

    fn push(&self, n: RingEvent) {
        self.lock().push(n);
        self.signal();
    }

    /// Queues a wake-up, unless one of this connection is in the queue.
    fn push_awake(&self, id: u64) {
        let mut l = self.lock();
        let same = |n: &RingEvent| matches!(n, RingEvent::Awake(conn) if *conn == id);
        if !l.iter().any(same) {
            l.push(RingEvent::Awake(id));
        }
        drop(l);
        self.signal();
    }

    /// Whether the queue has more events than peers that obey have reason to send.
    fn is_full(&self) -> bool {
        self.lock().len() >= QUEUED_MAX
    }

    /// Reports that the queue has an event: sets the flag and makes the descriptor readable.
    pub(crate) fn signal(&self) {
        self.news.store(true, Release);
        self.wait.signal();
    }
}

enum WatchedSocket {
    Listener(OwnedFd),
    /// A peer that has connected to us and whose ring we read, its process, and the flag that is
    /// set when the process has ended.
    Caller(OwnedFd, i32, Arc<AtomicBool>),
    /// A peer that we have connected to, and its process; the endpoint, too, writes to the
    /// descriptor.
    Called(Arc<OwnedFd>, i32),
}

impl WatchedSocket {
    fn fd(&self) -> i32 {
        match self {
            WatchedSocket::Listener(f) | WatchedSocket::Caller(f, _, _) => f.as_raw_fd(),
            WatchedSocket::Called(f, _) => f.as_raw_fd(),
        }
    }

    /// Ends a connection, or listening, also for whoever else has the socket open.
    fn shut(&self) {
        // SAFETY: no pointers are passed.
        unsafe { libc::shutdown(self.fd(), libc::SHUT_RDWR) };
    }
}

struct Watch {
    ep: Weak<EventQueue>,
    what: WatchedSocket,
    /// Address of a caller, from its greeting.
    from: OnceLock<QpAddr>,
    /// The connection has ended: whoever copies from or to the peer's memory sees it here before
    /// the endpoint handles [`RingEvent::End`].
    ended: Arc<AtomicBool>,
}

impl Watch {
    /// Whether this endpoint has it watched.
    fn belongs_to(&self, ep: &Arc<EventQueue>) -> bool {
        core::ptr::eq(self.ep.as_ptr(), Arc::as_ptr(ep))
    }

    /// The peer's process, 0 where it cannot be seen.
    fn process(&self) -> i32 {
        match self.what {
            WatchedSocket::Listener(_) => 0,
            WatchedSocket::Caller(_, pid, _) | WatchedSocket::Called(_, pid) => pid,
        }
    }
}

/// What the thread watches.
#[derive(Default)]
struct WatchState {
    all: HashMap<u64, Watch>,
    /// The number given last.
    last: u64,
    /// Peers' processes.
    processes: HashMap<i32, PeerProcess>,
    /// Listeners whose callers find no descriptor, which are not watched for [`PAUSE_MS`], and
    /// since when, nanoseconds.
    paused: Vec<(u64, u64)>,
}

/// A peer's process. Its connections do not show its end: a forked child may keep the socket open,
/// and the process may close the socket earlier.
struct PeerProcess {
    fd: OwnedFd,
    connections: Vec<u64>,
    /// Flags set when the process ends, also after its connections have ended.
    gone: Vec<Weak<AtomicBool>>,
}

impl WatchState {
    /// Stops watching `id`, and its peer's process if that was its last connection.
    fn remove(&mut self, id: u64) -> Option<(Watch, Option<PeerProcess>)> {
        let w = self.all.remove(&id)?;
        let mut process = None;
        if let Some(p) = self.processes.get_mut(&w.process()) {
            p.connections.retain(|c| *c != id);
            let own = |g: &Weak<AtomicBool>| match &w.what {
                WatchedSocket::Caller(_, _, gone) => core::ptr::eq(g.as_ptr(), Arc::as_ptr(gone)),
                _ => false,
            };
            p.gone.retain(|g| g.strong_count() > usize::from(own(g)));
            if p.connections.is_empty() && p.gone.is_empty() {
                process = self.processes.remove(&w.process());
            }
        }
        Some((w, process))
    }
}

/// Bit of an epoll cookie whose other bits are a process id: the process has ended.
const DEATH: u64 = 1 << 63;

/// A descriptor of a process; `None` where it cannot be seen from here, or the system is older than
/// Linux 5.3.
fn process(pid: i32) -> Option<OwnedFd> {
    if pid <= 0 {
        return None;
    }
    // SAFETY: plain numbers are passed; the descriptor, which exec closes, is owned from here on.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0)?;
        Some(OwnedFd::from_raw_fd(fd))
    }
}

/// epoll_ctl(2): from now on `events` of `fd` come with `id`.
fn epoll_control(epoll: &OwnedFd, operation: i32, fd: i32, events: i32, id: u64) {
    let _ = watch(epoll.as_raw_fd(), operation, fd, events, id);
}

/// See the module text.
pub(crate) struct EventThread {
    started: AtomicBool,
    epoll: OwnedFd,
    watched: Mutex<WatchState>,
    /// Initiators with unsignaled accesses, and the descriptor that announces a new one.
    initiators: Mutex<Vec<PendingInitiator>>,
    bell: WaitSet,
    /// Signalled with each answer to a call, for those who wait for one. (Endpoints' own signals
    /// are for callers that are blocked on a queue: another must not take them.)
    answers: WaitSet,
    /// A reserve descriptor: closed for a moment when no other is left
    /// ([`EventThread::refuse_one`]).
    spare: Mutex<Option<OwnedFd>>,
}

/// An initiator whose application may never poll again.
struct PendingInitiator {
    initiator: Arc<Initiator>,
    /// The first pending position at the last check, and the number of checks without accesses.
    seen: Option<u64>,
    idle: u32,
}

/// Connections that one event of a listener accepts at most.
const CALLERS: usize = 64;
/// Milliseconds between two checks of pending accesses, and checks without accesses after which
/// they stop.
const LOOK_MS: i32 = 1;
const IDLE_LOOKS: u32 = 8;
/// Milliseconds for which a listener is not watched whose callers find no descriptor.
const PAUSE_MS: i32 = 10;
/// Accesses that are executed from here under one lock.
const BATCH: usize = 64;
/// Messages of one connection that are read at once.
const MESSAGES: usize = 64;
/// Events in an endpoint's queue, above which a peer that asks for more is cut off.
const QUEUED_MAX: usize = 1 << 16;
/// The bell's id; connections' ids begin at 1.
const BELL: u64 = 0;

static THREAD: PerProcess<EventThread> = PerProcess::new();

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

    fn lock(&self) -> MutexGuard<'_, WatchState> {
        self.watched.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn watch(&self, ep: Weak<EventQueue>, what: WatchedSocket) -> u64 {
        let fd = what.fd();
        let mut w = self.lock();
        w.last += 1;
        let id = w.last;
        let closed = |ep: Arc<EventQueue>| ep.closed.load(Relaxed);
        if ep.upgrade().is_some_and(closed) {
            return id;
        }
        let add = |fd: i32, id: u64| {
            let events = libc::EPOLLIN | libc::EPOLLRDHUP;
            epoll_control(&self.epoll, libc::EPOLL_CTL_ADD, fd, events, id);
        };
        add(fd, id);
        let from = OnceLock::new();
        let ended = Arc::default();
        let watched = Watch {
            ep,
            what,
            from,
            ended,
        };
        let pid = watched.process();
        let gone = match &watched.what {
            WatchedSocket::Caller(_, _, gone) => Some(Arc::downgrade(gone)),
            _ => None,
        };
        w.all.insert(id, watched);
        if let Some(p) = w.processes.get_mut(&pid) {
            p.connections.push(id);
            p.gone.extend(gone);
        } else if let Some(fd) = process(pid) {
            add(fd.as_raw_fd(), pid as u64 | DEATH);
            let p = PeerProcess {
                fd,
                connections: vec![id],
                gone: gone.into_iter().collect(),
            };
            w.processes.insert(pid, p);
        }
        id
    }

    /// Listens for an endpoint.
    pub(crate) fn listen(&self, ep: &Arc<EventQueue>, fd: OwnedFd) {
        self.watch(Arc::downgrade(ep), WatchedSocket::Listener(fd));
    }

    /// Watches the end of a peer that an endpoint has called.
    pub(crate) fn called(&self, ep: &Arc<EventQueue>, fd: Arc<OwnedFd>, pid: i32) -> u64 {
        self.watch(Arc::downgrade(ep), WatchedSocket::Called(fd, pid))
    }

    /// Stops watching a listener or connection, and closes it.
    pub(crate) fn forget(&self, id: u64) {
        self.unwatch(&mut self.lock(), id);
    }

    /// Takes a listener or connection out of the epoll set, too. Closing alone does so only once
    /// nobody has the socket open: until the endpoint, or a forked child, has closed it, a peer
    /// that is gone would keep the thread awake.
    fn unwatch(&self, w: &mut WatchState, id: u64) {
        let Some((watch, process)) = w.remove(id) else {
            return;
        };
        self.take_out(watch.what.fd());
        // A forked child that does not exec has the socket open, too: the peer learns all the same.
        watch.what.shut();
        if let Some(p) = process {
            self.take_out(p.fd.as_raw_fd());
        }
    }

    fn take_out(&self, fd: i32) {
        epoll_control(&self.epoll, libc::EPOLL_CTL_DEL, fd, 0, 0);
    }

    /// Closes an endpoint's listener and the connections of its callers, also of those whose rings
    /// the endpoint has not seen.
    pub(crate) fn close_callers(&self, ep: &Arc<EventQueue>) {
        ep.closed.store(true, Relaxed);
        let mut w = self.lock();
        let own = |x: &Watch| x.belongs_to(ep) && !matches!(x.what, WatchedSocket::Called(..));
        let all = w.all.iter().filter(|(_, x)| own(x)).map(|(id, _)| *id);
        for id in all.collect::<Vec<_>>() {
            self.unwatch(&mut w, id);
        }
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

    /// Wakes the peer that has called us on connection `id`.
    #[cold]
    pub(crate) fn wake(&self, id: u64) {
        if let Some(WatchedSocket::Caller(c, _, _)) = self.lock().all.get(&id).map(|w| &w.what) {
            connection::wake(c);
        }
    }

    /// Sends a CTS to the caller at `from` through its connection to endpoint `ep` (see
    /// [`connection::send_cts`]).
    #[cold]
    pub(crate) fn send_cts(
        &self,
        ep: &Arc<EventQueue>,
        from: &QpAddr,
        number: u32,
        here: u32,
    ) -> Verdict {
        let w = self.lock();
        let own = |w: &&Watch| w.belongs_to(ep) && w.from.get() == Some(from);
        let Some(WatchedSocket::Caller(c, _, _)) = w.all.values().find(own).map(|w| &w.what) else {
            return Verdict::Unsupported;
        };
        match connection::send_cts(c, number, here) {
            Ok(()) => Verdict::Done,
            Err(FI_EAGAIN) => Verdict::NoResources,
            Err(_) => Verdict::Unsupported,
        }
    }

    /// Whether the process at the other end of a connection has ended, even if no event says so
    /// yet.
    #[cold]
    pub(crate) fn peer_exited(&self, id: u64) -> bool {
        let w = self.lock();
        let Some(x) = w.all.get(&id) else { return true };
        match (w.processes.get(&x.process()), &x.what) {
            (Some(p), _) => poll_fd(p.fd.as_raw_fd(), libc::POLLIN, 0),
            (None, WatchedSocket::Called(c, _)) => poll_fd(c.as_raw_fd(), libc::POLLRDHUP, 0),
            _ => false,
        }
    }

    /// Ends the connections of a process that has ended.
    #[cold]
    fn process_ended(&self, pid: i32) {
        let Some(p) = self.lock().processes.remove(&pid) else {
            return;
        };
        self.take_out(p.fd.as_raw_fd());
        for gone in p.gone.iter().filter_map(Weak::upgrade) {
            gone.store(true, SeqCst);
        }
        for id in p.connections {
            self.ready(id, true);
        }
    }

    /// Reads what has arrived at listener or connection `id`. With `died` the process has ended:
    /// the connection ends after the last of its messages.
    fn ready(&self, id: u64, died: bool) {
        let mut fresh = Vec::new();
        let mut w = self.lock();
        let Some(x) = w.all.get(&id) else { return };
        let Some(ep) = x.ep.upgrade() else {
            self.unwatch(&mut w, id);
            return;
        };
        let (mut ended, mut paused) = (false, false);
        match &x.what {
            WatchedSocket::Listener(l) => {
                for _ in 0..CALLERS {
                    match accept(l) {
                        Ok(Some(caller)) => fresh.push(caller),
                        Ok(None) => break,
                        Err(_) => {
                            paused = !self.refuse_one(l);
                            if paused {
                                self.set_events(l, id, 0);
                            }
                            break;
                        }
                    }
                }
            }
            WatchedSocket::Caller(c, pid, gone) => {
                for _ in 0..MESSAGES {
                    match receive(c) {
                        ConnEvent::Nothing => break,
                        ConnEvent::Wake => ep.push_awake(id),
                        // A connection brings one ring.
                        ConnEvent::Ring(..) if x.from.get().is_some() => {
                            ended = true;
                            break;
                        }
                        ConnEvent::Ring(from, fd) => {
                            let ring = match connection::owns(&from, *pid) {
                                true => RingSegment::open(fd).ok(),
                                false => {
                                    crate::info_log!(
                                        FI_LOG_EP_CTRL,
                                        "process {pid} on this host sends by the adapter: it is \
                                         not known to listen at its address (0: another PID \
                                         namespace)"
                                    );
                                    None
                                }
                            };
                            let table = ep.table.as_ref().map(|t| t.offer());
                            // A peer whose ring is not mapped, or that the answer does not
                            // reach, sends through the adapter.
                            let ring = ring.filter(|_| connection::answer(c, table).is_ok());
                            let Some(map) = ring.map(Arc::new) else {
                                ended = true;
                                break;
                            };
                            if let Some(t) = &ep.table {
                                t.add_user(&map, gone);
                            }
                            let _ = x.from.set(from);
                            ep.push(RingEvent::Ring(id, from, RingReader::new(map)));
                        }
                        ConnEvent::Accepted(_) | ConnEvent::Cts(..) | ConnEvent::End => {
                            ended = true;
                            break;
                        }
                    }
                }
            }
            WatchedSocket::Called(c, pid) => {
                for _ in 0..MESSAGES {
                    match receive(c) {
                        ConnEvent::Nothing => break,
                        ConnEvent::Wake => ep.push_awake(id),
                        ConnEvent::Cts(..) if ep.is_full() => {
                            ended = true;
                            break;
                        }
                        ConnEvent::Cts(number, there) => ep.push(RingEvent::Cts(id, number, there)),
                        ConnEvent::Accepted(table) => {
                            let remote_table = table.and_then(|(probe, fd)| {
                                RemoteMrTable::new((*pid, &x.ended), fd, probe)
                            });
                            ep.push(RingEvent::Accepted(id, remote_table));
                            self.answers.signal();
                        }
                        ConnEvent::Ring(..) | ConnEvent::End => {
                            ended = true;
                            break;
                        }
                    }
                }
            }
        }
        if ended || died {
            x.ended.store(true, SeqCst);
            if let WatchedSocket::Caller(_, pid, gone) = &x.what {
                // A process that cannot be watched counts as ended when its connection ends.
                gone.fetch_or(died || !w.processes.contains_key(pid), SeqCst);
            }
            self.unwatch(&mut w, id);
            drop(w);
            ep.push(RingEvent::End(id));
            self.answers.signal();
            return;
        }
        if paused {
            w.paused.push((id, host::now()));
            self.bell.signal();
        }
        drop(w);
        for (fd, pid) in fresh {
            let gone = Arc::new(AtomicBool::new(false));
            self.watch(Arc::downgrade(&ep), WatchedSocket::Caller(fd, pid, gone));
        }
    }

    /// Refuses one connection when no descriptor is left: accepts it with the reserve descriptor
    /// and closes it, so that the peer sends through the adapter. Returns `false` when not even the
    /// reserve is left.
    #[cold]
    fn refuse_one(&self, listener: &OwnedFd) -> bool {
        crate::warn_limited!(
            FI_LOG_EP_CTRL,
            "shm: no file descriptor left for a caller (ulimit -n): it is reached by the adapter"
        );
        let mut spare = self.spare.lock().unwrap_or_else(|e| e.into_inner());
        let refused = spare.take().is_some() && accept(listener).is_ok();
        *spare = self.epoll.try_clone().ok();
        refused
    }

    /// Asks for other events of a listener.
    fn set_events(&self, listener: &OwnedFd, id: u64, events: i32) {
        let fd = listener.as_raw_fd();
        epoll_control(&self.epoll, libc::EPOLL_CTL_MOD, fd, events, id);
    }

    /// Watches the listeners again whose pause is over. Returns whether any pauses.
    fn resume(&self) -> bool {
        let mut w = self.lock();
        if w.paused.is_empty() {
            return false;
        }
        let now = host::now();
        let mut paused = core::mem::take(&mut w.paused);
        paused.retain(|(id, since)| {
            let pauses = now.saturating_sub(*since) < PAUSE_MS as u64 * 1_000_000;
            let listener = w.all.get(id).map(|x| &x.what).filter(|_| !pauses);
            if let Some(WatchedSocket::Listener(l)) = listener {
                self.set_events(l, *id, libc::EPOLLIN);
            }
            pauses
        });
        w.paused = paused;
        !w.paused.is_empty()
    }

    fn guarded(&self) -> MutexGuard<'_, Vec<PendingInitiator>> {
        self.initiators.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Has the events thread execute a ring's accesses although the application does not poll.
    #[cold]
    pub(crate) fn watch_initiator(&self, initiator: &Arc<Initiator>) {
        initiator.watched.store(true, SeqCst);
        self.guarded().push(PendingInitiator {
            initiator: Arc::clone(initiator),
            seen: None,
            idle: 0,
        });
        self.bell.signal();
    }

    /// Checks the accesses of all watched initiators. Returns whether any initiator is left.
    fn look(&self) -> bool {
        let mut all = self.guarded();
        all.retain_mut(PendingInitiator::look);
        !all.is_empty()
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
            most = match (self.look(), self.resume()) {
                (true, _) => LOOK_MS,
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

impl PendingInitiator {
    /// Executes the accesses that the target has not touched since the last check. Returns whether
    /// another check is due.
    fn look(&mut self) -> bool {
        // Its peer is gone, or its endpoint closed.
        if Arc::strong_count(&self.initiator) == 1 {
            return false;
        }
        let pending = self.initiator.pending();
        if pending.is_none() {
            self.seen = None;
            self.idle += 1;
            if self.idle < IDLE_LOOKS {
                return true;
            }
            // An access written after this store signals the bell; an access written before is
            // visible below.
            self.initiator.watched.store(false, SeqCst);
            asymmetric_fence();
            if self.initiator.pending().is_none() {
                return false;
            }
            self.initiator.watched.store(true, SeqCst);
        }
        self.idle = 0;
        if self.seen == pending {
            while matches!(self.initiator.execute_pending(BATCH), Executed::Count(n) if n > 0) {}
            self.seen = None;
        } else {
            self.seen = pending;
        }
        true
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
        t.called(&ep, Arc::clone(&near), 0);
        drop(far);
        assert!(t.wait_events(0, true));
        assert!(matches!(ep.take()[..], [RingEvent::End(_)]));
        assert!(!t.wait_events(0, true));
    }
}
