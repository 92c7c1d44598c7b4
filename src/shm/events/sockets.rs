//! Reading the watched sockets: new callers, messages of connections, and the ends of both.

use super::watched::{Watch, WatchedSocket};
use super::*;

/// Connections that one event of a listener accepts at most.
const CALLERS: usize = 64;
/// Messages of one connection that are read at once.
const MESSAGES: usize = 64;

impl EventThread {
    /// Reads what has arrived at listener or connection `id`. With `died` the process has ended:
    /// the connection ends after the last of its messages.
    pub(super) fn ready(&self, id: u64, died: bool) {
        let mut w = self.lock();
        let Some(x) = w.all.get(&id) else { return };
        let Some(ep) = x.ep.upgrade() else {
            self.unwatch(&mut w, id);
            return;
        };
        let ended = match &x.socket {
            WatchedSocket::Listener(l) => {
                let (callers, pauses) = self.accept_callers(l, id);
                if pauses {
                    w.paused.push((id, host::now()));
                    self.bell.signal();
                }
                drop(w);
                for (sock, pid) in callers {
                    let gone = Arc::new(AtomicBool::new(false));
                    self.watch(
                        Arc::downgrade(&ep),
                        WatchedSocket::Incoming { sock, pid, gone },
                    );
                }
                return;
            }
            WatchedSocket::Incoming { sock, pid, gone } => {
                x.read_incoming(id, &ep, (sock, *pid, gone))
            }
            WatchedSocket::Outgoing { sock, pid } => self.read_outgoing(id, &ep, x, (sock, *pid)),
        };
        if !(ended || died) {
            return;
        }
        x.ended.store(true, SeqCst);
        if let WatchedSocket::Incoming { pid, gone, .. } = &x.socket {
            // A process that cannot be watched counts as ended when its connection ends.
            gone.fetch_or(died || !w.processes.contains_key(pid), SeqCst);
        }
        self.unwatch(&mut w, id);
        drop(w);
        ep.push(RingEvent::End(id));
        self.answers.signal();
    }

    /// Accepts connections of a listener, and returns them with their processes. Returns as well
    /// whether the listener pauses, because not even the reserve descriptor is left.
    fn accept_callers(&self, listener: &OwnedFd, id: u64) -> (Vec<(OwnedFd, i32)>, bool) {
        let mut callers = Vec::new();
        for _ in 0..CALLERS {
            match accept(listener) {
                Ok(Some(caller)) => callers.push(caller),
                Ok(None) => break,
                Err(_) => {
                    let pauses = !self.refuse_one(listener);
                    if pauses {
                        self.set_events(listener, id, 0);
                    }
                    return (callers, pauses);
                }
            }
        }
        (callers, false)
    }

    /// Reads messages of an outgoing connection. Returns whether it ends.
    fn read_outgoing(
        &self,
        id: u64,
        ep: &EventQueue,
        x: &Watch,
        (sock, pid): (&OwnedFd, i32),
    ) -> bool {
        for _ in 0..MESSAGES {
            match receive(sock) {
                ConnEvent::Nothing => return false,
                ConnEvent::Wake => ep.push_awake(id),
                ConnEvent::Cts(number, there) if !ep.is_full() => {
                    ep.push(RingEvent::Cts(id, number, there));
                }
                ConnEvent::Accepted(table) => {
                    let remote_table = table
                        .and_then(|(probe, fd)| RemoteMrTable::new((pid, &x.ended), fd, probe));
                    ep.push(RingEvent::Accepted(id, remote_table));
                    self.answers.signal();
                }
                ConnEvent::Cts(..) | ConnEvent::Ring(..) | ConnEvent::End => return true,
            }
        }
        false
    }

    /// Ends the connections of a process that has ended.
    #[cold]
    pub(super) fn process_ended(&self, pid: i32) {
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

    /// Wakes the peer of incoming connection `id`.
    #[cold]
    pub(crate) fn wake(&self, id: u64) {
        if let Some(WatchedSocket::Incoming { sock, .. }) =
            self.lock().all.get(&id).map(|w| &w.socket)
        {
            connection::wake(sock);
        }
    }

    /// Sends a CTS to the peer at `from` through its connection to endpoint `ep` (see
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
        let Some(WatchedSocket::Incoming { sock, .. }) =
            w.all.values().find(own).map(|w| &w.socket)
        else {
            return Verdict::Unsupported;
        };
        match connection::send_cts(sock, number, here) {
            Ok(()) => Verdict::Done,
            Err(FI_EAGAIN) => Verdict::NoResources,
            Err(_) => Verdict::Unsupported,
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
        let mut spare = self.spare.lock().unpoisoned();
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
    pub(super) fn resume(&self) -> bool {
        let mut w = self.lock();
        if w.paused.is_empty() {
            return false;
        }
        let now = host::now();
        let mut paused = core::mem::take(&mut w.paused);
        paused.retain(|(id, since)| {
            let pauses = now.saturating_sub(*since) < PAUSE_MS as u64 * 1_000_000;
            let listener = w.all.get(id).map(|x| &x.socket).filter(|_| !pauses);
            if let Some(WatchedSocket::Listener(l)) = listener {
                self.set_events(l, *id, libc::EPOLLIN);
            }
            pauses
        });
        w.paused = paused;
        !w.paused.is_empty()
    }
}

impl Watch {
    /// Reads messages of an incoming connection. Returns whether it ends.
    fn read_incoming(
        &self,
        id: u64,
        ep: &EventQueue,
        (sock, pid, gone): (&OwnedFd, i32, &Arc<AtomicBool>),
    ) -> bool {
        for _ in 0..MESSAGES {
            match receive(sock) {
                ConnEvent::Nothing => return false,
                ConnEvent::Wake => ep.push_awake(id),
                // A connection brings one ring.
                ConnEvent::Ring(from, fd) if self.from.get().is_none() => {
                    let ring = open_ring(&from, fd, pid);
                    let table = ep.table.as_ref().map(|t| t.offer());
                    // A peer whose ring is not mapped, or that the answer does not reach, sends
                    // through the adapter.
                    let ring = ring.filter(|_| connection::answer(sock, table).is_ok());
                    let Some(map) = ring.map(Arc::new) else {
                        return true;
                    };
                    if let Some(t) = &ep.table {
                        t.add_user(&map, gone);
                    }
                    let _ = self.from.set(from);
                    ep.push(RingEvent::Ring(id, from, RingReader::new(map)));
                }
                ConnEvent::Ring(..)
                | ConnEvent::Accepted(_)
                | ConnEvent::Cts(..)
                | ConnEvent::End => return true,
            }
        }
        false
    }
}

/// Maps the ring of a caller, if the calling process listens at the address it gives.
fn open_ring(from: &QpAddr, fd: OwnedFd, pid: i32) -> Option<RingSegment> {
    if connection::owns(from, pid) {
        return RingSegment::open(fd).ok();
    }
    crate::info_log!(
        FI_LOG_EP_CTRL,
        "process {pid} on this host sends by the adapter: it is not known to listen at its \
         address (0: another PID namespace)"
    );
    None
}
