//! What the events thread watches: listeners, connections, and the processes at their other ends.

use super::*;

/// Bit of an epoll cookie whose other bits are a process id: the process has ended.
pub(super) const DEATH: u64 = 1 << 63;

/// A socket that is watched.
pub(super) enum WatchedSocket {
    /// An endpoint's listener.
    Listener(OwnedFd),
    /// The connection of a peer that has connected to us and whose ring we read.
    Incoming {
        sock: OwnedFd,
        /// The peer's process.
        pid: i32,
        /// Set when the process has ended.
        gone: Arc<AtomicBool>,
    },
    /// The connection to a peer that we have connected to.
    Outgoing {
        /// The endpoint, too, writes to it.
        sock: Arc<OwnedFd>,
        /// The peer's process.
        pid: i32,
    },
}

impl WatchedSocket {
    fn fd(&self) -> i32 {
        match self {
            WatchedSocket::Listener(sock) | WatchedSocket::Incoming { sock, .. } => {
                sock.as_raw_fd()
            }
            WatchedSocket::Outgoing { sock, .. } => sock.as_raw_fd(),
        }
    }

    /// Ends a connection, or listening, also for other holders of the socket.
    fn shut(&self) {
        // SAFETY: no pointers are passed.
        unsafe { libc::shutdown(self.fd(), libc::SHUT_RDWR) };
    }
}

/// A listener or connection of an endpoint.
pub(super) struct Watch {
    pub ep: Weak<EventQueue>,
    pub socket: WatchedSocket,
    /// Address of the peer of an incoming connection, from its greeting.
    pub from: OnceLock<QpAddr>,
    /// The connection has ended: copies from and to the peer's memory check this before the
    /// endpoint handles [`RingEvent::End`].
    pub ended: Arc<AtomicBool>,
}

impl Watch {
    /// Whether this endpoint has it watched.
    pub(super) fn belongs_to(&self, ep: &Arc<EventQueue>) -> bool {
        core::ptr::eq(self.ep.as_ptr(), Arc::as_ptr(ep))
    }

    /// The peer's process, 0 where it cannot be seen.
    fn process(&self) -> i32 {
        match self.socket {
            WatchedSocket::Listener(_) => 0,
            WatchedSocket::Incoming { pid, .. } | WatchedSocket::Outgoing { pid, .. } => pid,
        }
    }
}

/// All that the thread watches.
#[derive(Default)]
pub(super) struct WatchState {
    pub all: HashMap<u64, Watch>,
    /// The number given last.
    last: u64,
    /// Peers' processes.
    pub processes: HashMap<i32, PeerProcess>,
    /// Listeners whose callers find no descriptor, which are not watched for [`PAUSE_MS`], and
    /// since when, nanoseconds.
    pub paused: Vec<(u64, u64)>,
}

/// A peer's process. Its connections do not show its end: a forked child may keep the socket open,
/// and the process may close the socket earlier.
pub(super) struct PeerProcess {
    pub fd: OwnedFd,
    pub connections: Vec<u64>,
    /// Flags set when the process ends, also after its connections have ended.
    pub gone: Vec<Weak<AtomicBool>>,
}

impl WatchState {
    /// Stops watching `id`, and its peer's process if that was its last connection.
    fn remove(&mut self, id: u64) -> Option<(Watch, Option<PeerProcess>)> {
        let w = self.all.remove(&id)?;
        let mut process = None;
        if let Some(p) = self.processes.get_mut(&w.process()) {
            p.connections.retain(|c| *c != id);
            let own = |g: &Weak<AtomicBool>| match &w.socket {
                WatchedSocket::Incoming { gone, .. } => {
                    core::ptr::eq(g.as_ptr(), Arc::as_ptr(gone))
                }
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

impl EventThread {
    pub(super) fn lock(&self) -> MutexGuard<'_, WatchState> {
        self.watched.lock().unpoisoned()
    }

    pub(super) fn watch(&self, ep: Weak<EventQueue>, socket: WatchedSocket) -> u64 {
        let fd = socket.fd();
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
            socket,
            from,
            ended,
        };
        let pid = watched.process();
        let gone = match &watched.socket {
            WatchedSocket::Incoming { gone, .. } => Some(Arc::downgrade(gone)),
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

    /// Watches a connection that an endpoint has made.
    pub(crate) fn watch_outgoing(&self, ep: &Arc<EventQueue>, sock: Arc<OwnedFd>, pid: i32) -> u64 {
        self.watch(Arc::downgrade(ep), WatchedSocket::Outgoing { sock, pid })
    }

    /// Stops watching a listener or connection, and closes it.
    pub(crate) fn forget(&self, id: u64) {
        self.unwatch(&mut self.lock(), id);
    }

    /// Takes a listener or connection out of the epoll set, too. Closing alone does so only once no
    /// process has the socket open: until the endpoint, or a forked child, has closed it, a peer
    /// that has ended would wake the thread again and again.
    pub(super) fn unwatch(&self, w: &mut WatchState, id: u64) {
        let Some((watch, process)) = w.remove(id) else {
            return;
        };
        self.take_out(watch.socket.fd());
        // A forked child that does not exec has the socket open, too: the peer learns all the same.
        watch.socket.shut();
        if let Some(p) = process {
            self.take_out(p.fd.as_raw_fd());
        }
    }

    pub(super) fn take_out(&self, fd: i32) {
        epoll_control(&self.epoll, libc::EPOLL_CTL_DEL, fd, 0, 0);
    }

    /// Closes an endpoint's listener and its incoming connections, also those whose rings the
    /// endpoint has not seen.
    pub(crate) fn close_incoming(&self, ep: &Arc<EventQueue>) {
        ep.closed.store(true, Relaxed);
        let mut w = self.lock();
        let own =
            |x: &Watch| x.belongs_to(ep) && !matches!(x.socket, WatchedSocket::Outgoing { .. });
        let all = w.all.iter().filter(|(_, x)| own(x)).map(|(id, _)| *id);
        for id in all.collect::<Vec<_>>() {
            self.unwatch(&mut w, id);
        }
    }

    /// Whether the process at the other end of a connection is stopped, by a signal or a debugger.
    #[cold]
    pub(crate) fn peer_stopped(&self, id: u64) -> bool {
        let pid = self.lock().all.get(&id).map(Watch::process);
        pid.is_some_and(is_stopped)
    }

    /// Whether the process at the other end of a connection has ended, even if no event has
    /// reported that yet.
    #[cold]
    pub(crate) fn peer_exited(&self, id: u64) -> bool {
        let w = self.lock();
        let Some(x) = w.all.get(&id) else { return true };
        match (w.processes.get(&x.process()), &x.socket) {
            (Some(p), _) => poll_fd(p.fd.as_raw_fd(), libc::POLLIN, 0),
            (None, WatchedSocket::Outgoing { sock, .. }) => {
                poll_fd(sock.as_raw_fd(), libc::POLLRDHUP, 0)
            }
            _ => false,
        }
    }
}

/// Whether a process is stopped: state T or t in its stat (proc(5)), behind its name.
fn is_stopped(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest);
    state.is_some_and(|s| s.starts_with(['T', 't']))
}
