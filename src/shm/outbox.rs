//! The way out: which way packets reach each peer, and its ring.

use super::ring::{Full, Writer};
use super::sock;
use super::table::{Denied, Local, Visit};
use super::thread::{Shared, Thread};
use super::{PeerId, Sent, What, RECORD_MAX};
use crate::device::QpAddr;
use crate::hmem::{Piece, UserMem};
use crate::types::*;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// How packets reach a peer.
enum Route {
    Unknown,
    Adapter,
    Ring(Box<Out>),
}

/// A ring to a peer.
struct Out {
    ring: Writer,
    sock: Arc<OwnedFd>,
    conn: u64,
    to: QpAddr,
    /// The peer's memory, where the system lets us in.
    visit: Option<Visit>,
    /// What stopped the last record, until [`Outbox::arm`] has seen to it.
    stopped: Option<Full>,
}

impl Out {
    /// What came of writing a record.
    #[inline]
    fn outcome(
        &mut self,
        written: core::result::Result<bool, Full>,
        peer: PeerId,
        stopped: &mut Vec<PeerId>,
    ) -> Sent {
        match written {
            Ok(false) => Sent::Done,
            Ok(true) => {
                sock::wake(&self.sock);
                Sent::Done
            }
            Err(why) => {
                if self.stopped.replace(why).is_none() {
                    stopped.push(peer);
                }
                Sent::Busy
            }
        }
    }
}
/// The way out: a ring to every peer that can be reached.
pub struct Outbox {
    pub(super) own: QpAddr,
    shared: Arc<Shared>,
    thread: &'static Thread,
    routes: Vec<Route>,
    /// Peers for whom something was stopped.
    stopped: Vec<PeerId>,
}

impl Outbox {
    /// Of the endpoint at `own`.
    pub(super) fn new(own: QpAddr, shared: Arc<Shared>, thread: &'static Thread) -> Outbox {
        Outbox {
            own,
            shared,
            thread,
            routes: Vec::new(),
            stopped: Vec::new(),
        }
    }

    /// First contact: finds out how the peer is reached. `false` when it has too many callers just now: it is called
    /// again with the next packet, and gets none in another way, for messages keep their order only on one.
    #[cold]
    fn call(&mut self, peer: PeerId, addr: &QpAddr) -> bool {
        let at = peer as usize;
        if self.routes.len() <= at {
            self.routes.resize_with(at + 1, || Route::Unknown);
        }
        let route = match self.open(addr) {
            Ok(out) => Route::Ring(Box::new(out)),
            Err(FI_EAGAIN) => return false,
            Err(_) => Route::Adapter,
        };
        if let Some(r) = self.routes.get_mut(at) {
            *r = route;
        }
        true
    }

    fn open(&self, addr: &QpAddr) -> crate::core::Result<Out> {
        if addr.gid != self.own.gid {
            return Err(FI_EHOSTUNREACH);
        }
        let mut ring = Writer::new()?;
        let (sock, pid) = sock::connect(&self.own, addr, ring.fd())?;
        ring.passed();
        let sock = Arc::new(sock);
        let conn = self.thread.called(&self.shared, Arc::clone(&sock), pid);
        Ok(Out {
            ring,
            sock,
            conn,
            to: *addr,
            visit: None,
            stopped: None,
        })
    }

    pub(super) fn may_visit(&mut self, conn: u64, visit: Visit) {
        let to = |r: &&mut Route| matches!(r, Route::Ring(o) if o.conn == conn);
        if let Some(Route::Ring(o)) = self.routes.iter_mut().find(to) {
            o.visit = Some(visit);
        }
    }

    /// Whether the peer's memory can be reached from here.
    #[inline]
    pub fn visits(&self, peer: PeerId) -> bool {
        matches!(self.routes.get(peer as usize), Some(Route::Ring(o)) if o.visit.is_some())
    }

    /// Writes `local` to a peer's region, or fills it from there. Whether the peer wants to hear of it.
    pub fn access(
        &mut self,
        peer: PeerId,
        write: bool,
        local: &Local,
        (key, addr): (u64, u64),
    ) -> core::result::Result<bool, Denied> {
        let Some(Route::Ring(o)) = self.routes.get_mut(peer as usize) else {
            return Err(Denied::Elsewhere);
        };
        let v = o.visit.as_ref().ok_or(Denied::Elsewhere)?;
        v.access(o.ring.file(), write, local, key, addr)?;
        Ok(v.events())
    }

    /// The peer of a connection that has ended. What is sent to it from now on, the adapter answers: nobody is
    /// there.
    pub(super) fn hang_up(&mut self, conn: u64) -> Option<QpAddr> {
        let of = |r: &Route| match r {
            Route::Ring(o) if o.conn == conn => Some(o.to),
            _ => None,
        };
        let (r, to) = self
            .routes
            .iter_mut()
            .find_map(|r| of(r).map(|to| (r, to)))?;
        *r = Route::Adapter;
        Some(to)
    }

    /// Hands a packet of up to [`RECORD_MAX`] bytes to a peer: `head`, then `body` or, without one, `bytes`.
    #[inline]
    pub fn send(
        &mut self,
        peer: PeerId,
        addr: &QpAddr,
        what: What,
        head: &[u8],
        body: &UserMem,
        bytes: &[u8],
    ) -> Sent {
        if let None | Some(Route::Unknown) = self.routes.get(peer as usize) {
            if !self.call(peer, addr) {
                return Sent::Busy;
            }
        }
        self.send_known(peer, what, head, body, bytes)
    }

    /// As [`Outbox::send`], to a peer that was sent to before; to others `Elsewhere`.
    #[inline]
    pub fn send_known(
        &mut self,
        peer: PeerId,
        what: What,
        head: &[u8],
        body: &UserMem,
        bytes: &[u8],
    ) -> Sent {
        let len = head.len() + body.len() + bytes.len();
        let Some(Route::Ring(out)) = self
            .routes
            .get_mut(peer as usize)
            .filter(|_| len <= RECORD_MAX)
        else {
            return Sent::Elsewhere;
        };
        let written = out.ring.write(what, head, body, bytes);
        out.outcome(written, peer, &mut self.stopped)
    }

    /// As [`Outbox::send_known`], a record of up to two words and a piece of memory.
    #[inline(always)]
    pub fn send_short(
        &mut self,
        peer: PeerId,
        what: What,
        words: ([u64; 2], usize),
        body: Piece,
    ) -> Sent {
        let Some(Route::Ring(out)) = self.routes.get_mut(peer as usize) else {
            return Sent::Elsewhere;
        };
        let written = out.ring.write_short(what, words.0, words.1, body);
        out.outcome(written, peer, &mut self.stopped)
    }

    /// Whether a peer's ring has room for `count` records of `len` bytes now; also where there is no ring yet.
    #[inline]
    pub fn fits(&mut self, peer: PeerId, count: usize, len: usize) -> bool {
        let Some(Route::Ring(o)) = self.routes.get_mut(peer as usize) else {
            return true;
        };
        let fits = o.ring.fits(count, len);
        if !fits && o.stopped.replace(Full::Room).is_none() {
            self.stopped.push(peer);
        }
        fits
    }

    /// Much is to be written to a peer.
    pub fn widen(&mut self, peer: PeerId) {
        if let Some(Route::Ring(o)) = self.routes.get_mut(peer as usize) {
            o.ring.widen();
        }
    }

    /// Asks peers that could not take a record to wake us when they can; `false` when one can now.
    pub fn arm(&mut self) -> bool {
        let mut quiet = true;
        for peer in self.stopped.drain(..) {
            if let Some(Route::Ring(o)) = self.routes.get_mut(peer as usize) {
                quiet &= o.stopped.take().is_none_or(|why| o.ring.want(why));
            }
        }
        quiet
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        for r in &self.routes {
            if let Route::Ring(o) = r {
                self.thread.forget(o.conn);
            }
        }
    }
}
