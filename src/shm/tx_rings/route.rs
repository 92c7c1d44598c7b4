//! How a peer is reached: a first call, its answer, and the end of a connection.

use super::*;

impl TxRings {
    /// First contact: finds out how the peer is reached. `false` while that is not known: the peer
    /// gets no packet in another way meanwhile, for messages keep their order only on one. One that
    /// does not answer for [`ANSWER`] is reached by the adapter.
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
        let late = |since: u64| now.saturating_sub(since) > ANSWER;
        let since_full = match self.routes.get(at) {
            Some(TxRoute::Unknown) => None,
            Some(TxRoute::WriteBlocked(since)) => Some(*since),
            Some(TxRoute::Calling(out, since)) => {
                if !late(*since) {
                    return self.hear_answer(at);
                }
                self.thread.forget(out.conn);
                self.set_route(at, TxRoute::Adapter);
                return true;
            }
            _ => return true,
        };
        let route = match self.open(addr) {
            Ok(out) => TxRoute::Calling(Box::new(out), now),
            Err(FI_EAGAIN) if !since_full.is_some_and(late) => {
                TxRoute::WriteBlocked(since_full.unwrap_or(now))
            }
            Err(_) => TxRoute::Adapter,
        };
        self.set_route(at, route);
        self.hear_answer(at)
    }

    /// From now on packets reach a peer this way; returns how they did.
    pub(super) fn set_route(&mut self, at: usize, route: TxRoute) -> TxRoute {
        let Some(r) = self.routes.get_mut(at) else {
            return TxRoute::Unknown;
        };
        let (before, after) = (r.is_open(), route.is_open());
        self.calling = self.calling + usize::from(after) - usize::from(before);
        core::mem::replace(r, route)
    }

    /// Takes the answer to a call, if it has come. Whether it is known how the peer is reached.
    fn hear_answer(&mut self, at: usize) -> bool {
        if let Some(TxRoute::Calling(out, _)) = self.routes.get(at) {
            let conn = out.conn;
            // Whoever polls for an answer may keep the thread that hears it from running.
            EventThread::attend();
            if let Some(RingEvent::Accepted(_, visit)) = self.shared.answer(conn) {
                self.accepted(conn, visit);
            }
        }
        let route = self.routes.get(at);
        matches!(route, Some(TxRoute::Ring(_) | TxRoute::Adapter))
    }

    /// The connection to a peer that has been called and has not answered yet, for a caller that
    /// waits for the answer.
    pub fn called(&self) -> Option<Arc<OwnedFd>> {
        self.routes.iter().find_map(|r| match r {
            TxRoute::Calling(out, _) => Some(Arc::clone(&out.sock)),
            _ => None,
        })
    }

    fn open(&self, addr: &QpAddr) -> crate::core::Result<TxRing> {
        if addr.gid != self.own.gid {
            return Err(FI_EHOSTUNREACH);
        }
        let mut ring = RingWriter::new()?;
        let (sock, pid) = connection::connect(&self.own, addr, ring.fd())?;
        ring.passed();
        let sock = Arc::new(sock);
        let conn = self.thread.called(&self.shared, Arc::clone(&sock), pid);
        Ok(TxRing {
            ring,
            sock,
            conn,
            to: *addr,
            initiator: None,
            tags: KeyHashes::default(),
            outstanding: OutstandingRma::default(),
            stopped: None,
            shares: 0,
            round: 0,
        })
    }

    /// The peer of a connection reads our ring, and may let us into its memory.
    pub(in crate::shm) fn accepted(&mut self, conn: u64, visit: Option<RemoteMrTable>) {
        let to = |r: &TxRoute| matches!(r, TxRoute::Calling(o, _) if o.conn == conn);
        let Some(at) = self.routes.iter().position(to) else {
            return;
        };
        let TxRoute::Calling(mut o, _) = self.set_route(at, TxRoute::Adapter) else {
            return;
        };
        if let Some(visit) = visit {
            let ring = Arc::clone(o.ring.file());
            o.initiator = Some(Arc::new(Initiator::new(ring, visit)));
        }
        self.set_route(at, TxRoute::Ring(o));
    }

    /// Asks a peer to which no ring leads for the rest of message `number` of its, which is our
    /// `here`.
    pub fn send_cts(&self, from: &QpAddr, number: u32, here: u32) -> Verdict {
        self.thread.send_cts(&self.shared, from, number, here)
    }

    /// The peer that a ring leads to by connection `conn`.
    pub fn peer_of(&self, conn: u64) -> Option<PeerId> {
        let of = |r: &TxRoute| matches!(r, TxRoute::Ring(o) if o.conn == conn);
        let at = self.routes.iter().position(of)?;
        PeerId::try_from(at).ok()
    }

    /// The peer of a connection that has ended. What is sent to it from now on, the adapter answers
    /// with an error. Of one that never read our ring nothing is lost: it is reached by the
    /// adapter.
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

    /// Finds out how a peer is reached whom nothing was sent to yet: what is read or written now
    /// goes by the adapter, what comes later perhaps not. `false` when it has too many callers just
    /// now.
    #[inline]
    pub fn ensure_route(&mut self, peer: PeerId, addr: &QpAddr) -> bool {
        match self.routes.get(peer as usize) {
            Some(TxRoute::Ring(_) | TxRoute::Adapter) => true,
            _ => self.call(peer, addr),
        }
    }
}
