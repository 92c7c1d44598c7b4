//! The way in: the rings of peers, which a poll looks into.

use super::claim;
use super::reader::{Found, Reader};
use super::ring::barrier;
use super::table::Visit;
use super::thread::{News, Shared, Thread};
use super::{PeerId, Record};
use crate::device::QpAddr;
use std::sync::atomic::Ordering::*;
use std::sync::Arc;

/// Polls without a record after which a ring is no longer looked into.
pub(super) const PATIENCE: u32 = 4096;
/// Records taken from one ring before the next one's turn.
const BURST: u32 = 64;
/// A ring from a peer.
struct In {
    ring: Reader,
    from: QpAddr,
    /// The peer's number, as [`Inbox::poll`]'s caller knows it.
    peer: Option<PeerId>,
    conn: u64,
    /// Polls since the last record.
    idle: u32,
    ended: bool,
}

impl In {
    /// Whether it has been empty for long.
    fn tired(&self) -> bool {
        self.idle >= PATIENCE
    }

    /// The record of this kind and length that was looked at is the past. `true` when the writer
    /// has to be woken.
    #[inline]
    fn took(&mut self, kind: u8, len: usize) -> bool {
        let wake = self.ring.take(len);
        if kind >= claim::WRITE {
            self.ring.did(kind, len);
        }
        wake
    }

    /// Its writer is gone: it is read to its end.
    fn end(&mut self) {
        self.ended = true;
        self.ring.inherit();
    }

    /// A poll found nothing; whether [`Inbox::rest`] has to see to it.
    #[inline]
    fn missed(&mut self) -> bool {
        self.idle += 1;
        self.tired() || self.ended
    }
}

/// What [`Inbox::glance`]'s caller did with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Taken,
    /// Taken, and it takes no more now.
    Last,
    /// The record is to stay where it is.
    Left,
}

impl Verdict {
    /// A record was taken; `more`: another one is welcome.
    #[inline(always)]
    pub fn after(more: bool) -> Verdict {
        match more {
            true => Verdict::Taken,
            false => Verdict::Last,
        }
    }
}

/// What [`Inbox::glance`] saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Whatever there was has been taken.
    All,
    /// Something is left that takes [`Inbox::poll`].
    More,
}

/// What [`Inbox::drain`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// No ring has a record.
    Nothing,
    /// There is something that takes [`Inbox::glance`] or [`Inbox::poll`].
    Left,
    /// Records were taken from one ring.
    Some,
}

/// The way in: the rings of peers.
pub struct Inbox {
    shared: Arc<Shared>,
    thread: &'static Thread,
    listener: u64,
    /// Rings that are looked into, and those that sleep.
    hot: Vec<In>,
    cold: Vec<In>,
    held: bool,
    /// The ring that [`Inbox::glance`] begins with.
    turn: usize,
    /// Somebody may wait on the descriptor, and rings that are polled ask for a signal: until there
    /// is one, for whoever polls meanwhile may be somebody else.
    armed: bool,
    pub(super) down: Vec<QpAddr>,
    /// Connections that have ended, and that were accepted, for the outbox.
    pub(super) hung_up: Vec<u64>,
    pub(super) accepted: Vec<(u64, Option<Visit>)>,
    /// Messages that peers want the rest of: the connection, the number here and there.
    cts: Vec<(u64, u32, u32)>,
}

impl Inbox {
    /// Of an endpoint that listens for callers as `listener`.
    pub(super) fn new(shared: Arc<Shared>, thread: &'static Thread, listener: u64) -> Inbox {
        Inbox {
            shared,
            thread,
            listener,
            hot: Vec::new(),
            cold: Vec::new(),
            held: false,
            turn: 0,
            armed: false,
            down: Vec::new(),
            hung_up: Vec::new(),
            accepted: Vec::new(),
            cts: Vec::new(),
        }
    }

    /// Messages of ours that peers without a ring to us want the rest of: the connection, the
    /// number of the message here and there.
    pub fn take_cts(&mut self) -> Vec<(u64, u32, u32)> {
        core::mem::take(&mut self.cts)
    }

    /// Whether a ring of this peer is read.
    pub(super) fn has_ring(&self, peer: PeerId) -> bool {
        let all = self.hot.iter().chain(&self.cold);
        all.filter_map(|i| i.peer).any(|p| p == peer)
    }

    pub(super) fn fd(&self) -> i32 {
        self.shared.wait.fd()
    }

    /// Whether nothing has happened since [`Inbox::arm`].
    #[inline]
    pub fn armed(&self) -> bool {
        self.armed
    }

    pub(super) fn rouse(&self) {
        self.shared.rouse();
    }

    /// Whether any peer has been heard lately.
    #[inline]
    pub fn lively(&self) -> bool {
        !self.hot.is_empty()
    }

    /// A poll that finds nothing, as most do: `false` when there may be something, and nothing has
    /// been done.
    #[inline]
    pub fn quiet(&mut self) -> bool {
        if self.shared.news.load(Acquire) || self.hot.iter().any(|i| i.ring.ready()) {
            return false;
        }
        let mut tired = false;
        for i in &mut self.hot {
            tired |= i.missed();
        }
        if tired {
            self.rest();
        }
        true
    }

    /// A poll that offers records to `each`, with the number of their peer, until it leaves one
    /// where it is or has enough. Rings take turns to be the first.
    #[inline(always)]
    pub fn glance(&mut self, mut each: impl FnMut(PeerId, &Record) -> Verdict) -> Seen {
        if self.shared.news.load(Acquire) {
            return Seen::More;
        }
        let n = self.hot.len();
        let mut tired = false;
        let mut at = self.turn;
        for _ in 0..n {
            at = if at >= n { 0 } else { at };
            let Some(i) = self.hot.get_mut(at) else { break };
            at += 1;
            let mut taken = false;
            let verdict = loop {
                let (verdict, kind, len) = match (i.ring.look(), i.peer) {
                    (Found::Nothing, _) => break Verdict::Taken,
                    (Found::Record(r), Some(peer)) => (each(peer, &r), r.kind, r.len),
                    _ => break Verdict::Left,
                };
                if verdict == Verdict::Left {
                    break verdict;
                }
                if i.took(kind, len) {
                    self.thread.wake(i.conn);
                }
                taken = true;
                if verdict == Verdict::Last {
                    break verdict;
                }
            };
            if i.ring.settle() {
                self.thread.wake(i.conn);
            }
            match verdict {
                Verdict::Taken => {}
                Verdict::Left => return Seen::More,
                Verdict::Last => {
                    i.idle = 0;
                    self.turn = at;
                    return Seen::All;
                }
            }
            if taken {
                i.idle = 0;
            } else {
                tired |= i.missed();
            }
        }
        if tired {
            self.rest();
        }
        Seen::All
    }

    /// Offers up to `most` messages of the first ring that has any to `each`, until it leaves one
    /// where it is: nothing but what a message takes.
    #[inline(never)]
    pub fn drain(&mut self, most: usize, mut each: impl FnMut(PeerId, &Record) -> bool) -> Drained {
        if self.shared.news.load(Acquire) {
            return Drained::Left;
        }
        let n = self.hot.len();
        let mut tired = false;
        for _ in 0..n {
            self.turn = if self.turn >= n { 0 } else { self.turn };
            let Some(i) = self.hot.get_mut(self.turn) else {
                break;
            };
            let Some(peer) = i.peer else {
                return Drained::Left;
            };
            let (mut taken, mut left, mut wake) = (0, false, false);
            // Behind a message that was waited for there is none, mostly: looking there takes the
            // line from its writer.
            let most = if i.idle > 0 { 1 } else { most };
            while taken < most {
                let len = match i.ring.look() {
                    Found::Nothing => break,
                    Found::Record(r) if each(peer, &r) => r.len,
                    _ => {
                        left = true;
                        break;
                    }
                };
                wake |= i.ring.take(len);
                taken += 1;
            }
            if i.ring.settle() | wake {
                self.thread.wake(i.conn);
            }
            if taken > 0 {
                i.idle = 0;
                self.turn += 1;
                return Drained::Some;
            }
            if left {
                return Drained::Left;
            }
            tired |= i.missed();
            self.turn += 1;
        }
        if tired {
            self.rest();
        }
        Drained::Nothing
    }

    /// Takes records in: `each` gets the peer's address, a place for its number, and the record.
    /// Whether there were any.
    #[inline]
    pub fn poll(&mut self, mut each: impl FnMut(&QpAddr, &mut Option<PeerId>, &Record)) -> bool {
        if self.shared.news.load(Acquire) {
            self.hear();
        }
        let mut some = false;
        let mut tired = false;
        let thread = self.thread;
        for i in &mut self.hot {
            let mut n = 0;
            while n < BURST {
                let (kind, len) = match i.ring.look() {
                    Found::Nothing => break,
                    Found::Record(r) => {
                        each(&i.from, &mut i.peer, &r);
                        (r.kind, r.len)
                    }
                    Found::Broken => {
                        i.ended = true;
                        break;
                    }
                };
                if i.took(kind, len) {
                    thread.wake(i.conn);
                }
                n += 1;
            }
            if i.ring.settle() {
                thread.wake(i.conn);
            }
            if n > 0 {
                i.idle = 0;
                some = true;
            } else {
                tired |= i.missed();
            }
        }
        if tired {
            self.rest();
        }
        some
    }

    /// Rings that have been empty for long go to sleep, those of dead peers go.
    #[cold]
    fn rest(&mut self) {
        if self.hot.iter().any(In::tired) {
            for i in self.hot.iter().filter(|i| i.tired()) {
                i.ring.lie_down();
            }
            barrier();
        }
        let mut at = 0;
        while let Some(i) = self.hot.get(at) {
            if i.ended && i.idle > 0 {
                let i = self.hot.swap_remove(at);
                self.thread.forget(i.conn);
                self.down.push(i.from);
            } else if i.tired() && i.ring.sleeps() {
                let i = self.hot.swap_remove(at);
                self.cold.push(i);
            } else {
                at += 1;
            }
        }
    }

    fn wake(&mut self, conn: u64) -> Option<&mut In> {
        if let Some(at) = self.cold.iter().position(|i| i.conn == conn) {
            let mut i = self.cold.swap_remove(at);
            i.ring.awake();
            i.idle = 0;
            self.hot.push(i);
            return self.hot.last_mut();
        }
        self.hot.iter_mut().find(|i| i.conn == conn)
    }

    /// Takes note of what the thread has heard, without a look into the rings.
    #[cfg(test)]
    pub fn hear_for_tests(&mut self) {
        self.hear();
    }

    #[cold]
    fn hear(&mut self) {
        if self.armed {
            self.armed = false;
            self.shared.wait.clear();
            for i in &self.hot {
                i.ring.awake();
            }
        }
        for n in self.shared.take() {
            match n {
                News::Ring(conn, from, ring) => {
                    ring.hold(self.held);
                    self.hot.push(In {
                        ring,
                        peer: None,
                        from,
                        conn,
                        idle: 0,
                        ended: false,
                    });
                }
                News::Accepted(conn, visit) => self.accepted.push((conn, visit)),
                News::Cts(conn, number, there) => self.cts.push((conn, number, there)),
                News::Awake(conn) => {
                    self.wake(conn);
                }
                News::End(conn) => match self.wake(conn) {
                    Some(i) => i.end(),
                    None => self.hung_up.push(conn),
                },
            }
        }
    }

    /// Marks the ring of a peer that is gone, if there is one, to be read to its end.
    pub(super) fn last_words(&mut self, from: &QpAddr) -> bool {
        let all = self.hot.iter().chain(&self.cold);
        let Some(conn) = all.filter(|i| i.from == *from).map(|i| i.conn).next() else {
            return false;
        };
        if let Some(i) = self.wake(conn) {
            i.end();
        }
        true
    }

    /// Whether messages are held off (see [`Outbox::send`]).
    pub fn hold(&mut self, on: bool) {
        self.held = on;
        for i in self.hot.iter().chain(&self.cold) {
            if i.ring.hold(on) {
                self.thread.wake(i.conn);
            }
        }
    }

    /// Asks for a signal on the descriptor; `false` when there is something already.
    pub fn arm(&mut self) -> bool {
        self.armed = true;
        // A signal may come when what it is about has been heard of already.
        self.shared.wait.clear();
        for i in &self.hot {
            i.ring.lie_down();
        }
        barrier();
        let awake = self.hot.iter().all(|i| !i.ended && i.ring.sleeps());
        awake && !self.shared.news.load(SeqCst)
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.thread.forget(self.listener);
        for i in self.hot.iter().chain(&self.cold) {
            self.thread.forget(i.conn);
        }
    }
}
