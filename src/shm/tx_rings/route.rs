//! The route to a peer: a connection request, its answer, and the end of a connection.

use super::*;
use std::os::fd::AsRawFd;

/// An answer that a caller waits for, without a lock.
pub(crate) struct PendingAnswer {
    /// Which answer it is.
    pub(crate) conn: u64,
    sock: Arc<OwnedFd>,
    thread: &'static EventThread,
}

impl PendingAnswer {
    /// Waits until an answer has arrived, at most `timeout_ms` milliseconds. The events thread
    /// takes the answer from the socket, unless it has no processor: then the caller has to
    /// ([`EventThread::poll_events`]).
    pub(crate) fn wait(&self, timeout_ms: i32) {
        self.thread.wait_answer(self.sock.as_raw_fd(), timeout_ms);
    }
}

/// Whether a peer that was asked at `since` should have answered by now, nanoseconds.
fn is_late(since: u64, now: u64) -> bool {
    now.saturating_sub(since) > ANSWER
}

impl TxRings {
    /// Connects to a peer to find the route to it. Returns `false` while the route is not known: no
    /// packet takes another route meanwhile, because messages keep their order on one route only. A
    /// peer that does not answer within [`ANSWER`] is reached through the adapter; one that is
    /// stopped is waited for.
    #[cold]
    fn call(&mut self, peer: PeerId, addr: &QpAddr) -> bool {
        let at = peer as usize;
        if self.routes.len() <= at {
            let more = at + 1 - self.routes.len();
            if self.routes.try_reserve(more).is_err() {
                return false;
            }
            self.routes.resize_with(at + 1, || TxRoute::Unknown);
        }
        let now = host::now();
        let since_full = match self.routes.get(at) {
            Some(TxRoute::Unknown) => None,
            Some(TxRoute::BacklogFull(since)) => Some(*since),
            Some(TxRoute::Calling(_, call)) => {
                let late = is_late(call.since, now);
                return self.take_answer(at) || late && self.call_late(at, now);
            }
            _ => return true,
        };
        let route = match self.open(addr) {
            Ok(out) => {
                let call = RingRequest {
                    since: now,
                    stopped: false,
                };
                TxRoute::Calling(Box::new(out), call)
            }
            Err(FI_EAGAIN) if !since_full.is_some_and(|since| is_late(since, now)) => {
                TxRoute::BacklogFull(since_full.unwrap_or(now))
            }
            Err(e) => {
                crate::info_log!(
                    FI_LOG_EP_CTRL,
                    "a peer on this host gets its messages by the adapter: no ring to it: {}",
                    std::io::Error::from_raw_os_error(e)
                );
                TxRoute::Adapter
            }
        };
        self.set_route(at, route);
        self.take_answer(at)
    }

    /// Decides about the peers that have not answered within [`ANSWER`], also where no operation
    /// waits for them any more.
    #[cold]
    pub(super) fn check_late_calls(&mut self) {
        let now = host::now();
        for at in 0..self.routes.len() {
            match self.routes.get(at) {
                Some(TxRoute::Calling(_, call)) if is_late(call.since, now) => {
                    let _ = self.take_answer(at) || self.call_late(at, now);
                }
                _ => {}
            }
        }
    }

    /// The peer has not answered within [`ANSWER`], of which a part may have passed before it
    /// continued. Returns whether the route is known.
    fn call_late(&mut self, at: usize, now: u64) -> bool {
        let Some(TxRoute::Calling(out, call)) = self.routes.get_mut(at) else {
            return true;
        };
        let stops = self.thread.peer_stopped(out.conn);
        let stopped = core::mem::replace(&mut call.stopped, stops);
        match (stopped, stops) {
            (false, true) => {
                self.pending_routes -= 1;
                crate::info_log!(
                    FI_LOG_EP_CTRL,
                    "a peer on this host is stopped: what goes to it waits"
                );
            }
            (true, false) => self.pending_routes += 1,
            _ => {}
        }
        if stops || stopped {
            call.since = now;
            return false;
        }
        self.thread.forget(out.conn);
        self.set_route(at, TxRoute::Adapter);
        crate::info_log!(
            FI_LOG_EP_CTRL,
            "a peer on this host gets its messages by the adapter: it has not answered"
        );
        true
    }

    /// Sets the route to a peer; returns the former route.
    pub(super) fn set_route(&mut self, at: usize, route: TxRoute) -> TxRoute {
        let Some(r) = self.routes.get_mut(at) else {
            return TxRoute::Unknown;
        };
        let (before, after) = (r.is_pending(), route.is_pending());
        self.pending_routes = self.pending_routes + usize::from(after) - usize::from(before);
        core::mem::replace(r, route)
    }

    /// Takes the answer to a connection request, if it has arrived. Returns whether the route is
    /// known.
    fn take_answer(&mut self, at: usize) -> bool {
        if let Some(TxRoute::Calling(out, call)) = self.routes.get(at) {
            let conn = out.conn;
            // A caller that polls for the answer may keep the events thread from running, which
            // receives it.
            if !call.stopped {
                EventThread::poll_events();
            }
            if let Some(RingEvent::Accepted(_, remote_table)) = self.shared.take_answer(conn) {
                self.accepted(conn, remote_table);
            }
        }
        let route = self.routes.get(at);
        matches!(route, Some(TxRoute::Ring(_) | TxRoute::Adapter))
    }

    /// The answer of the peer that was called last and has not answered yet, if that one is not
    /// known to be stopped.
    pub(crate) fn pending_answer(&self) -> Option<PendingAnswer> {
        let calling = self.routes.iter().filter_map(|r| match r {
            TxRoute::Calling(out, call) if !call.stopped => Some(out),
            _ => None,
        });
        let last = calling.max_by_key(|out| out.conn)?;
        Some(PendingAnswer {
            conn: last.conn,
            sock: Arc::clone(&last.sock),
            thread: self.thread,
        })
    }

    fn open(&self, addr: &QpAddr) -> crate::core::Result<TxRing> {
        if addr.gid != self.own.gid {
            return Err(FI_EHOSTUNREACH);
        }
        let mut ring = RingWriter::new()?;
        ring.set_cpu(crate::shm::cpu::here());
        let (sock, pid) = connection::connect(&self.own, addr, ring.fd())?;
        ring.passed();
        let sock = Arc::new(sock);
        let conn = self
            .thread
            .watch_outgoing(&self.shared, Arc::clone(&sock), pid);
        Ok(TxRing {
            ring,
            sock,
            conn,
            to: *addr,
            initiator: None,
            tags: KeyHashes::default(),
            outstanding: OutstandingRma::default(),
            blocked_by: None,
            stalled: None,
            split_words: 0,
            split_round: 0,
            half_began: 0,
            device_marks: DeviceMarks::default(),
        })
    }

    /// Makes the ring of connection `conn` the route: the peer reads the ring from now on, and
    /// `remote_table` is its memory if we can access it.
    pub(in crate::shm) fn accepted(&mut self, conn: u64, remote_table: Option<RemoteMrTable>) {
        let to = |r: &TxRoute| matches!(r, TxRoute::Calling(o, _) if o.conn == conn);
        let Some(at) = self.routes.iter().position(to) else {
            return;
        };
        let TxRoute::Calling(mut o, _) = self.set_route(at, TxRoute::Adapter) else {
            return;
        };
        if let Some(remote_table) = remote_table {
            let ring = Arc::clone(o.ring.file());
            o.initiator = Some(Arc::new(Initiator::new(ring, remote_table)));
        }
        self.set_route(at, TxRoute::Ring(o));
    }

    /// Sends a CTS to a peer to which no ring leads: asks for the rest of its message `number`,
    /// which has number `here` at this side.
    pub fn send_cts(&self, from: &QpAddr, number: u32, here: u32) -> Verdict {
        self.thread.send_cts(&self.shared, from, number, here)
    }

    /// The peer to which the ring of connection `conn` leads.
    pub fn peer_of(&self, conn: u64) -> Option<PeerId> {
        let of = |r: &TxRoute| matches!(r, TxRoute::Ring(o) if o.conn == conn);
        let at = self.routes.iter().position(of)?;
        PeerId::try_from(at).ok()
    }

    /// Drops the ring of a connection that has ended, and returns its peer; the adapter answers
    /// later sends to that peer with an error. Returns `None` for a peer that never read our ring:
    /// nothing is lost, and the adapter reaches the peer.
    pub(in crate::shm) fn disconnect(&mut self, conn: u64) -> Option<QpAddr> {
        let of =
            |r: &TxRoute| matches!(r, TxRoute::Ring(o) | TxRoute::Calling(o, _) if o.conn == conn);
        let at = self.routes.iter().position(of)?;
        let TxRoute::Ring(mut o) = self.set_route(at, TxRoute::Adapter) else {
            return None;
        };
        let peer = at as PeerId;
        self.peers_outstanding.retain(|p| *p != peer);
        o.outstanding.abort(&mut o.ring, &mut self.lost);
        Some(o.to)
    }

    /// Whether the route to a peer is known; connects to a peer without a route. Returns `false`
    /// while the peer has not answered, or while its backlog is full.
    #[inline]
    pub fn ensure_route(&mut self, peer: PeerId, addr: &QpAddr) -> bool {
        match self.routes.get(peer as usize) {
            Some(TxRoute::Ring(_) | TxRoute::Adapter) => true,
            _ => self.call(peer, addr),
        }
    }
}
