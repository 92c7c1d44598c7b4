//! Same-host transport: packets between processes of one host through shared memory.
//!
//! An endpoint has a [`Hub`]. To a peer with the same GID it opens a ring when the first packet is for it
//! (`sock`): an anonymous file that the peer reads (`ring`, `segment`). Where that fails, for a peer in another
//! container, of another user or another library, or with the transport off, the adapter carries the packets; the
//! protocol above puts them in order whichever way they come. A poll looks into the rings in use; one that has
//! been empty for long asks its writer for a wake-up instead, so that polling costs nothing for peers that
//! are quiet. `thread` hears of new peers, wake-ups and deaths.

#[cfg(test)]
mod model;
mod ring;
mod segment;
mod sock;
mod table;
mod thread;

use crate::core::params;
use crate::device::QpAddr;
use crate::hmem::{Piece, UserMem};
use crate::types::*;
use ring::{barrier, Found, Full, Reader, Writer};
pub use ring::{Record, What, RECORD_MAX};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::*;
use std::sync::Arc;
use table::Visit;
pub use table::{Denied, Local, Table};
use thread::{News, Shared, Thread};

/// The caller's number of a peer.
type PeerId = u32;

/// Polls without a record after which a ring is no longer looked into.
const PATIENCE: u32 = 4096;
/// Records taken from one ring before the next one's turn.
const BURST: u32 = 64;

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

/// What [`Inbox::glance`] saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Whatever there was has been taken.
    All,
    /// Something is left that takes [`Inbox::poll`].
    More,
}

/// What came of handing a packet over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It is with the peer.
    Done,
    /// Not now.
    Busy,
    /// This peer is not reached this way.
    Elsewhere,
}

/// The way out: a ring to every peer that can be reached.
pub struct Outbox {
    own: QpAddr,
    shared: Arc<Shared>,
    thread: &'static Thread,
    routes: Vec<Route>,
    /// Peers for whom something was stopped.
    stopped: Vec<PeerId>,
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
    /// Somebody may wait on the descriptor: its signal has to be taken back.
    armed: bool,
    down: Vec<QpAddr>,
    /// Connections that have ended, and tables that came, for the outbox.
    hung_up: Vec<u64>,
    tables: Vec<(u64, Visit)>,
}

/// See the module text. Not thread safe by itself: the owner serialises the calls.
pub struct Hub {
    pub inbox: Inbox,
    pub outbox: Outbox,
}

impl Hub {
    /// The hub of the queue pair at `own`, whose descriptor joins the hub's own; `None` with
    /// `FI_EFA_ENABLE_SHM_TRANSFER=0` or where the system denies something it needs.
    pub fn open(own: QpAddr, adapter_fd: i32, table: Option<Arc<Table>>) -> Option<Hub> {
        if !params::efa_bool("enable_shm_transfer", true) {
            return None;
        }
        let open = || {
            if !barrier() {
                return Err(FI_ENOSYS);
            }
            let thread = Thread::get()?;
            let shared = Arc::new(Shared::new(table.clone())?);
            shared.wait.add(adapter_fd);
            let listener = thread.listen(&shared, sock::listen(&own)?);
            let outbox = Outbox {
                own,
                shared: Arc::clone(&shared),
                thread,
                routes: Vec::new(),
                stopped: Vec::new(),
            };
            let inbox = Inbox {
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
                tables: Vec::new(),
            };
            Ok::<Hub, crate::core::Errno>(Hub { inbox, outbox })
        };
        open()
            .map_err(|e| {
                crate::info_log!(
                    FI_LOG_EP_CTRL,
                    "shm is not used by this endpoint: {}",
                    crate::core::errno::text(e)
                )
            })
            .ok()
    }

    /// Descriptor that becomes readable after [`Inbox::arm`] when there is something, here or at the adapter.
    pub fn fd(&self) -> i32 {
        self.inbox.shared.wait.fd()
    }

    /// Takes note of peers whose memory can be reached, lets go of rings to peers that are gone, and returns
    /// those peers, once their last packets are taken in. A peer may be told of twice.
    pub fn gone(&mut self) -> Vec<QpAddr> {
        for (conn, visit) in core::mem::take(&mut self.inbox.tables) {
            self.outbox.may_visit(conn, visit);
        }
        for conn in core::mem::take(&mut self.inbox.hung_up) {
            let Some(to) = self.outbox.hang_up(conn) else {
                continue;
            };
            // A ring from the same peer still has its last words.
            if !self.inbox.last_words(&to) {
                self.inbox.down.push(to);
            }
        }
        // Its ring and ours have both ended.
        self.inbox.down.dedup();
        core::mem::take(&mut self.inbox.down)
    }

    /// Whether [`Hub::gone`] has something to say.
    #[inline]
    pub fn lost(&self) -> bool {
        let i = &self.inbox;
        !(i.hung_up.is_empty() && i.down.is_empty() && i.tables.is_empty())
    }
}

impl Outbox {
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

    fn may_visit(&mut self, conn: u64, visit: Visit) {
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
    fn hang_up(&mut self, conn: u64) -> Option<QpAddr> {
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

impl Inbox {
    /// Whether any peer has been heard lately.
    #[inline]
    pub fn lively(&self) -> bool {
        !self.hot.is_empty()
    }

    /// A poll that finds nothing, as most do: `false` when there may be something, and nothing has been done.
    #[inline]
    pub fn quiet(&mut self) -> bool {
        let heard = self.armed || self.shared.news.load(Acquire);
        if heard || self.hot.iter().any(|i| i.ring.ready()) {
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

    /// A poll that offers records to `each`, with the number of their peer, until it leaves one where it is or has
    /// enough. Rings take turns to be the first.
    #[inline(always)]
    pub fn glance(&mut self, mut each: impl FnMut(PeerId, &Record) -> Verdict) -> Seen {
        if self.armed || self.shared.news.load(Acquire) {
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
            loop {
                let (verdict, len) = match i.ring.look() {
                    Found::Nothing => break,
                    Found::Broken => return Seen::More,
                    Found::Record(r) => match i.peer {
                        Some(peer) => (each(peer, &r), r.len),
                        None => return Seen::More,
                    },
                };
                if verdict == Verdict::Left {
                    return Seen::More;
                }
                if i.ring.take(len) {
                    self.thread.wake(i.conn);
                }
                taken = true;
                if verdict == Verdict::Last {
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

    /// Takes records in: `each` gets the peer's address, a place for its number, and the record. Whether there were any.
    #[inline]
    pub fn poll(&mut self, mut each: impl FnMut(&QpAddr, &mut Option<PeerId>, &Record)) -> bool {
        if self.armed || self.shared.news.load(Acquire) {
            self.hear();
        }
        let mut some = false;
        let mut tired = false;
        let thread = self.thread;
        for i in &mut self.hot {
            let mut n = 0;
            while n < BURST {
                let len = match i.ring.look() {
                    Found::Nothing => break,
                    Found::Record(r) => {
                        each(&i.from, &mut i.peer, &r);
                        r.len
                    }
                    Found::Broken => {
                        i.ended = true;
                        break;
                    }
                };
                if i.ring.take(len) {
                    thread.wake(i.conn);
                }
                n += 1;
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
                News::Table(conn, visit) => self.tables.push((conn, visit)),
                News::Awake(conn) => {
                    self.wake(conn);
                }
                News::End(conn) => match self.wake(conn) {
                    Some(i) => i.ended = true,
                    None => self.hung_up.push(conn),
                },
            }
        }
    }

    /// Marks the ring of a peer that is gone, if there is one, to be read to its end.
    fn last_words(&mut self, from: &QpAddr) -> bool {
        let all = self.hot.iter().chain(&self.cold);
        let Some(conn) = all.filter(|i| i.from == *from).map(|i| i.conn).next() else {
            return false;
        };
        if let Some(i) = self.wake(conn) {
            i.ended = true;
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    fn hub(qpn: u16) -> Hub {
        let own = QpAddr {
            gid: [3; 16],
            qpn,
            qkey: std::process::id(),
        };
        let listening = sock::listen(&QpAddr { qkey: 0, ..own }).unwrap();
        Hub::open(own, listening.as_raw_fd(), None).unwrap()
    }

    fn readable(fd: i32) -> bool {
        let mut p = libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one entry is passed, which outlives the call.
        unsafe { libc::poll(&mut p, 1, 10_000) > 0 }
    }

    const WHAT: What = What {
        kind: 1,
        flags: 0,
        message: true,
    };

    fn send(from: &mut Hub, to: &Hub, text: &[u8]) -> Sent {
        let addr = to.outbox.own;
        from.outbox.send(9, &addr, WHAT, text, &UserMem::EMPTY, &[])
    }

    /// Takes records in until there are `n`, sleeping in between as a waiting application does.
    fn take(h: &mut Hub, n: usize) -> Vec<Vec<u8>> {
        let mut got = Vec::new();
        while got.len() < n {
            let some = h.inbox.poll(|_, _, r| {
                let mut b = Vec::new();
                r.copy(0, &mut b);
                got.push(b);
            });
            if !some && h.inbox.arm() {
                assert!(readable(h.fd()), "nothing within ten seconds");
            }
        }
        got
    }

    #[test]
    fn sleepers_are_woken_for_every_record() {
        let (mut a, mut b) = (hub(1), hub(2));
        for i in 0..200u8 {
            assert_eq!(send(&mut a, &b, &[i]), Sent::Done);
            assert_eq!(take(&mut b, 1), [[i]]);
            assert_eq!(send(&mut b, &a, &[i, i]), Sent::Done);
            assert_eq!(take(&mut a, 1), [[i, i]]);
        }
    }

    #[test]
    fn a_ring_falls_asleep_and_wakes_again() {
        let (mut a, mut b) = (hub(3), hub(4));
        send(&mut a, &b, b"one");
        take(&mut b, 1);
        for _ in 0..2 * PATIENCE {
            b.inbox.poll(|_, _, _| panic!("there is nothing"));
        }
        assert!(!b.inbox.lively());
        send(&mut a, &b, b"two");
        assert_eq!(take(&mut b, 1), [b"two"]);
        assert!(b.inbox.lively());
    }

    #[test]
    fn the_last_words_of_a_peer_are_heard_before_its_end() {
        let (mut a, mut b) = (hub(5), hub(6));
        send(&mut b, &a, b"hello");
        take(&mut a, 1);
        for i in 0..100u8 {
            assert_eq!(send(&mut a, &b, &[i]), Sent::Done);
        }
        let gone = a.outbox.own;
        drop(a);
        assert_eq!(take(&mut b, 100).len(), 100);
        let mut dead = Vec::new();
        while dead.is_empty() {
            b.inbox.poll(|_, _, _| panic!("there is nothing more"));
            dead = b.gone();
        }
        assert!(dead.iter().all(|d| *d == gone));
        // From now on the adapter answers.
        let addr = gone;
        let sent = b.outbox.send(9, &addr, WHAT, b"?", &UserMem::EMPTY, &[]);
        assert_eq!(sent, Sent::Elsewhere);
    }

    #[test]
    fn strangers_go_by_the_adapter() {
        let (mut a, b) = (hub(7), hub(8));
        for to in [
            QpAddr {
                gid: [4; 16],
                ..b.outbox.own
            },
            QpAddr {
                qpn: 9,
                ..b.outbox.own
            },
        ] {
            let at = u32::from(to.qpn);
            let sent = a.outbox.send(at, &to, WHAT, b"?", &UserMem::EMPTY, &[]);
            assert_eq!(sent, Sent::Elsewhere);
        }
    }
}
