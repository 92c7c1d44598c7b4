//! Sessions: the handshake after which two queue pairs accept each other's datagrams.
//!
//! A peer gets no entry, and few answers, until it has proved that it may use this queue pair and
//! that it receives at its source address. The side that has packets to send is the caller:
//!
//! ```text
//! HELLO    presents the key and the token of the receiver's address (64 random bits), names a
//!          token of its own
//! WELCOME  names a token computed from the caller's address and token, and a session number
//! data     presents that token: only now the receiver makes an entry for the caller
//! ```
//!
//! The computed token is a keyed hash (a stateless cookie), so that a HELLO costs no memory and a
//! forged source address gains nothing. After the handshake each side accepts only datagrams that
//! carry the token it gave.
//!
//! Peers address a queue pair whose number the application chose (a service) by host and number
//! alone: the address has no token. Callers on the same host prove their user id over a Unix socket
//! instead (`admission`). Callers on other hosts are accepted if they can be reached.
//!
//! Invariants: a session begins with empty flows on both sides. It ends with RESET, BYE, a time-out
//! or the first verified datagram of a newer session; every operation that depended on the session
//! then fails ([`Event::PeerDown`]), and after BYE further ones, too, unless the peer is a service.
//! If two HELLOs cross, the session whose caller has the smaller address is used.

use super::*;
use crate::device::any::public_key;
use crate::device::interfaces::interface_addrs;
use admission::Caller;
use siphasher::sip::SipHasher24;
use std::hash::Hasher;

/// Lifetime of a token from WELCOME, in milliseconds; a later caller sends HELLO again.
const TOKEN_LIFE_MS: i32 = 10_000;
/// Ended sessions whose tokens are stored, so that a late datagram does not reopen its session, and
/// queue pairs that are stored as closed, so that operations for them fail soon.
const RECENT: usize = 256;
/// First and longest wait for the answer to a HELLO.
const HELLO_FIRST: u64 = 5 * MS;
const HELLO_LONGEST: u64 = 200 * MS;
/// RESETs per service interval (1 ms): a peer with an outdated session is informed soon, and a
/// flood of datagrams costs little time.
const RESETS: u32 = 1;

/// State of a session's handshake; packets can be sent once it is `Open`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SessionState {
    /// No session, and no HELLO sent.
    Idle,
    /// HELLO, or a call to `admission`, was sent first at `since`. It is repeated at `next`, after
    /// a back-off of `wait`. Nanoseconds.
    HelloSent {
        since: u64,
        next: u64,
        wait: u64,
    },
    Open,
}

/// One peer's session.
#[derive(Clone, Copy, Debug)]
pub(super) struct Session {
    pub state: SessionState,
    pub number: u32,
    /// What the peer has to present, and what we present.
    pub token_in: u64,
    pub token_out: u64,
    /// The peer's verification tag.
    pub vtag_out: u32,
    /// The peer is the caller: this queue pair chose the session number and `token_in`.
    ours: bool,
    /// The peer has sent a datagram in this session.
    confirmed: bool,
    /// The last session number that this queue pair had given when `confirmed` became true: the
    /// peer accepts no WELCOME since, so that datagrams of sessions up to it are late ones.
    given: u32,
}

impl Session {
    pub(super) const NONE: Session = Session {
        state: SessionState::Idle,
        number: 0,
        token_in: 0,
        token_out: 0,
        vtag_out: 0,
        ours: false,
        confirmed: false,
        given: 0,
    };
}

/// The last [`RECENT`] values that were added.
struct Recent<T> {
    values: Vec<T>,
    /// Place of the oldest value, which is overwritten first.
    oldest: usize,
}

impl<T: PartialEq> Recent<T> {
    /// `FI_ENOMEM` without memory.
    fn new() -> Result<Recent<T>> {
        let mut values = Vec::new();
        values.try_reserve_exact(RECENT).map_err(|_| FI_ENOMEM)?;
        Ok(Recent { values, oldest: 0 })
    }

    fn add(&mut self, value: T) {
        if self.values.len() < RECENT {
            self.values.push(value);
            return;
        }
        if let Some(v) = self.values.get_mut(self.oldest) {
            *v = value;
        }
        self.oldest = (self.oldest + 1) % RECENT;
    }

    fn contains(&self, value: &T) -> bool {
        self.values.contains(value)
    }
}

/// What all sessions of a queue pair share.
pub(super) struct Sessions {
    /// Key of the hash.
    secret: (u64, u64),
    /// Last number given.
    last: u32,
    /// Tokens of sessions that have ended.
    ended: Recent<u64>,
    /// Queue pairs that have sent BYE.
    closed: Recent<QpAddr>,
    /// RESETs that may be sent until the next [`Engine::service`].
    resets: u32,
    local: LocalAddrs,
}

/// Addresses of this host. They are read at most once in [`LocalAddrs::LIFE`]: each HELLO to a
/// service asks for them.
#[derive(Default)]
struct LocalAddrs {
    list: Vec<IpAddr>,
    read_at: Option<u64>,
}

impl LocalAddrs {
    const LIFE: u64 = 1000 * MS;

    /// Whether this host has the address, as far as it can tell.
    fn have(&mut self, ip: IpAddr, now: u64) -> bool {
        let fresh = |at: u64| now.saturating_sub(at) < Self::LIFE;
        if !self.read_at.is_some_and(fresh) {
            self.list = interface_addrs().iter().map(|a| a.ip).collect();
            self.read_at = Some(now);
        }
        self.list.is_empty() || self.list.contains(&ip)
    }
}

impl Sessions {
    /// `FI_ENOSYS` where the system has no random numbers, `FI_ENOMEM` without memory.
    pub(super) fn new() -> Result<Sessions> {
        Ok(Sessions {
            secret: (secret()?, secret()?),
            last: 0,
            ended: Recent::new()?,
            closed: Recent::new()?,
            resets: RESETS,
            local: LocalAddrs::default(),
        })
    }

    /// The token for a caller at `from` that named `theirs`, in session `number`.
    fn token(&self, from: &SocketAddr, qkey: u32, theirs: u64, number: u32) -> u64 {
        let mut h = SipHasher24::new_with_keys(self.secret.0, self.secret.1);
        h.write(&gid_of(from.ip()));
        h.write(&from.port().to_le_bytes());
        h.write(&qkey.to_le_bytes());
        h.write(&theirs.to_le_bytes());
        h.write(&number.to_le_bytes());
        h.finish()
    }

    /// A new session number: the time in milliseconds, and greater than the last number. Once
    /// the numbers are half of [`TOKEN_LIFE_MS`] ahead of the clock, the last number is given
    /// again, because [`Sessions::opens`] derives the age of a token from the number. A last number
    /// that is neither a little behind nor a little ahead is none, or of weeks ago.
    fn number(&mut self, now: u64) -> u32 {
        let ms = (now / MS) as u32;
        let ahead = dist(self.last, ms);
        self.last = match ahead {
            0.. if ahead < TOKEN_LIFE_MS / 2 => self.last.wrapping_add(1),
            0.. if ahead < TOKEN_LIFE_MS => self.last,
            _ => ms,
        };
        self.last
    }

    /// No session number given until now is greater.
    fn given(&self, now: u64) -> u32 {
        let ms = (now / MS) as u32;
        match dist(self.last, ms) {
            0..TOKEN_LIFE_MS => self.last,
            _ => ms,
        }
    }

    /// Whether a datagram presents an unexpired, unused token from a WELCOME of this queue pair.
    fn opens(&self, from: &SocketAddr, h: &PacketHead, now: u64) -> bool {
        let age = dist((now / MS) as u32, h.session);
        (-TOKEN_LIFE_MS..TOKEN_LIFE_MS).contains(&age)
            && h.dst == self.token(from, h.src_qkey, h.src, h.session)
            && !self.ended.contains(&h.dst)
    }

    /// A queue pair has sent BYE. A service may begin again under the same address; the key of
    /// another queue pair is random, and its address never comes again.
    pub(super) fn closed(&mut self, addr: QpAddr) {
        if addr.qkey != public_key(addr.qpn) {
            self.closed.add(addr);
        }
    }

    /// Whether a queue pair is known to be closed for good.
    pub(super) fn is_closed(&self, addr: &QpAddr) -> bool {
        self.closed.contains(addr)
    }
}

/// Outcome of the session check of a datagram.
pub(super) enum SessionLookup {
    /// The datagram belongs to the open session with this peer.
    EnginePeer(u32),
    /// The datagram was part of a handshake and is handled, or is to be dropped.
    Done,
}

impl EnginePeer {
    /// A header of the session with this peer, from the queue pair with this key and verification
    /// tag.
    pub(super) fn head(
        &self,
        (src_qkey, vtag): (u32, u32),
        kind: PacketKind,
        psn: u32,
    ) -> PacketHead {
        PacketHead {
            session: self.session.number,
            dst: self.session.token_out,
            src: self.session.token_in,
            psn,
            una: self.tx.una(),
            ack: None,
            src_qkey,
            to_vtag: self.session.vtag_out,
            vtag,
            kind,
        }
    }
}

impl Engine {
    /// Sends a datagram outside a session (HELLO, WELCOME, RESET); `dst` and `to_vtag` are the
    /// receiver's.
    fn push_bare(
        &mut self,
        to: SocketAddr,
        kind: PacketKind,
        session: u32,
        (dst, to_vtag): (u64, u32),
        src: u64,
    ) {
        let head = PacketHead {
            session,
            dst,
            src,
            psn: 0,
            una: 0,
            ack: None,
            src_qkey: self.me.qkey,
            to_vtag,
            vtag: self.vtag,
            kind,
        };
        let d = self.out.add(to);
        d.body = UserMem::EMPTY;
        d.head_len = head.emit(&mut d.head);
    }

    /// Sends RESET: the sender of a datagram has no session here. A RESET is no longer than the
    /// datagram, carries the sender's own token as a proof, and is rate-limited ([`RESETS`]).
    fn reset(&mut self, to: SocketAddr, h: &PacketHead) {
        if self.sessions.resets == 0 || !(h.kind.reliable() || h.kind == PacketKind::Hello) {
            return;
        }
        self.sessions.resets -= 1;
        self.push_bare(to, PacketKind::Reset, h.session, (h.src, h.vtag), 0);
    }

    /// Handles a handshake datagram; for any other, finds its session or opens one.
    pub(super) fn resolve_session(
        &mut self,
        from: SocketAddr,
        h: &PacketHead,
        list: &mut Vec<Event>,
        now: u64,
    ) -> SessionLookup {
        let vtag = match h.kind {
            PacketKind::Hello => self.me.qkey,
            _ => self.vtag,
        };
        // The socket filter does the same check, once there is one.
        if vtag != h.to_vtag {
            if self.service && h.kind.reliable() {
                // A peer of the queue pair that had this service before learns that it is gone.
                self.reset(from, h);
            }
            self.reject();
            return SessionLookup::Done;
        }
        let known = self.by_token.get(&h.dst).copied();
        let known = known.and_then(|pi| self.peers.get(pi).map(|p| (pi, p.to, p.session)));
        let known = known.filter(|(_, to, _)| *to == from);
        match (h.kind, known) {
            (PacketKind::Hello, _) => self.hello(from, h, now),
            (PacketKind::Welcome, Some((pi, _, s))) => {
                if matches!(s.state, SessionState::HelloSent { .. }) {
                    self.welcome(pi, h, now);
                }
            }
            (PacketKind::Reset, Some((pi, _, _))) => {
                self.end_session(pi, Status::RemoteBadQpn, list, now);
            }
            (PacketKind::Welcome | PacketKind::Reset, None) => {}
            (_, Some((pi, _, s))) if s.state == SessionState::Open && s.number == h.session => {
                if let Some(p) = self.peers.get_mut(pi) {
                    if !p.session.confirmed {
                        p.session.confirmed = true;
                        p.session.given = self.sessions.given(now);
                    }
                    p.last_rx_at = now;
                }
                return SessionLookup::EnginePeer(pi);
            }
            _ if self.sessions.opens(&from, h, now) => {
                return match self.open(from, h, list, now) {
                    Some(pi) => SessionLookup::EnginePeer(pi),
                    None => SessionLookup::Done,
                };
            }
            _ => self.reset(from, h),
        }
        SessionLookup::Done
    }

    /// Handles HELLO: sends WELCOME to a caller that may use this queue pair, else RESET.
    fn hello(&mut self, from: SocketAddr, h: &PacketHead, now: u64) {
        let token = h.dst == self.me.token;
        if self.service && h.dst == 0 && self.me.ip().is_loopback() {
            // Callers of a service on loopback use `admission`.
            return self.reject();
        }
        let service = self.service && h.dst == 0 && !self.same_host(from.ip(), now);
        if !(token || service) {
            self.reset(from, h);
            return self.reject();
        }
        self.admit(from, (h.src_qkey, h.vtag), h.src, now);
    }

    /// Sends WELCOME to a caller that may use this queue pair: it presented the token of our
    /// address, or proved its user id, or calls a service from another host. Stores nothing.
    pub(crate) fn admit(
        &mut self,
        from: SocketAddr,
        (qkey, vtag): (u32, u32),
        theirs: u64,
        now: u64,
    ) {
        let number = self.sessions.number(now);
        let token = self.sessions.token(&from, qkey, theirs, number);
        self.push_bare(from, PacketKind::Welcome, number, (theirs, vtag), token);
    }

    /// As [`Engine::admit`], for a caller from `admission`; flushes the WELCOME at once.
    pub(crate) fn admit_from(&mut self, c: &Caller, now: u64) {
        self.admit(socket_addr(&c.addr), (c.addr.qkey, c.vtag), c.token, now);
        self.flush(now);
    }

    /// Handles WELCOME, the answer to our HELLO: opens the session.
    fn welcome(&mut self, pi: u32, h: &PacketHead, now: u64) {
        if let Some(p) = self.peers.get_mut(pi) {
            p.session = Session {
                state: SessionState::Open,
                number: h.session,
                token_out: h.src,
                vtag_out: h.vtag,
                ours: false,
                confirmed: false,
                ..p.session
            };
            p.last_rx_at = now;
        }
        self.activate(pi);
    }

    /// Opens the session of a verified datagram; `None` when the datagram is to be dropped.
    fn open(
        &mut self,
        from: SocketAddr,
        h: &PacketHead,
        list: &mut Vec<Event>,
        now: u64,
    ) -> Option<u32> {
        let addr = QpAddr {
            gid: gid_of(from.ip()),
            qpn: from.port(),
            qkey: h.src_qkey,
            token: 0,
        };
        // A socket is one queue pair's: another key is that of the one that has it now.
        if let Some(old) = self.by_socket.get(&from).copied() {
            let old_peer = self.peers.get(old).filter(|p| p.addr != addr);
            if let Some(number) = old_peer.map(|p| p.session.number) {
                if dist(h.session, number) <= 0 {
                    return None;
                }
                self.end_session(old, Status::RemoteBadQpn, list, now);
            }
        }
        let pi = match self.by_addr.get(&addr) {
            Some(pi) => *pi,
            None if self.peers.len() >= PEERS_MAX => {
                crate::warn_limited!(
                    FI_LOG_EP_CTRL,
                    "{PEERS_MAX} peers are connected to one endpoint: {addr} is not let in"
                );
                return None;
            }
            None => self.peer(&addr, now),
        };
        let smaller = (self.me.gid, self.me.qpn, self.me.qkey) < (addr.gid, addr.qpn, addr.qkey);
        let s = self.peers.get(pi)?.session;
        if addr == self.me {
            // A queue pair's session with itself: one entry stands for both sides, and presents the
            // token that it accepts.
            return match s.ours {
                true => None,
                false => self.establish(pi, h, h.dst, now),
            };
        }
        if s.state == SessionState::Open {
            if s.confirmed && dist(h.session, s.given) <= 0 {
                // A late datagram of an older session.
                return None;
            }
            if !s.confirmed && !s.ours {
                if smaller {
                    return None;
                }
                // HELLOs crossed, and the peer's session is used. The peer has accepted no packet
                // of ours.
                if let Some(p) = self.peers.get_mut(pi) {
                    p.tx.send_again();
                    p.rx = None;
                }
            } else {
                self.end_session(pi, Status::RemoteBadQpn, list, now);
            }
        }
        // `end_session` may have removed the entry.
        let pi = self.peer(&addr, now);
        self.establish(pi, h, h.src, now)
    }

    /// Opens the session that the peer's HELLO asked for, in which we present `token_out`.
    fn establish(&mut self, pi: u32, h: &PacketHead, token_out: u64, now: u64) -> Option<u32> {
        let old = self.peers.get(pi)?.session.token_in;
        self.by_token.remove(&old);
        self.by_token.try_reserve(1).ok()?;
        self.by_socket.try_reserve(1).ok()?;
        self.by_token.insert(h.dst, pi);
        let p = self.peers.get_mut(pi)?;
        self.by_socket.insert(p.to, pi);
        p.session = Session {
            state: SessionState::Open,
            number: h.session,
            token_in: h.dst,
            token_out,
            vtag_out: h.vtag,
            ours: true,
            confirmed: true,
            given: h.session,
        };
        p.last_rx_at = now;
        self.activate(pi);
        Some(pi)
    }

    /// Begins the handshake with a peer that has packets waiting, or repeats it after a back-off.
    pub(super) fn call(&mut self, pi: u32, now: u64) {
        let Some(p) = self.peers.get_mut(pi) else {
            return;
        };
        let (since, wait) = match p.session.state {
            SessionState::Open => return,
            SessionState::HelloSent { next, .. } if now < next => return,
            SessionState::HelloSent { since, wait, .. } => (since, (2 * wait).min(HELLO_LONGEST)),
            SessionState::Idle => {
                let Ok(token) = secret() else { return };
                if self.by_token.try_reserve(1).is_err() {
                    return;
                }
                self.by_token.insert(token, pi);
                p.session.token_in = token;
                (now, HELLO_FIRST)
            }
        };
        p.session.state = SessionState::HelloSent {
            since,
            next: now + wait,
            wait,
        };
        let (to, token, addr) = (p.to, p.session.token_in, p.addr);
        // A service on this host admits callers by their user id. Where no service listens, HELLO
        // gets no answer, or a RESET from the queue pair that has the port.
        let caller = Caller {
            addr: self.me,
            vtag: self.vtag,
            token,
        };
        if addr.token == 0 && self.same_host(to.ip(), now) && admission::ask(&caller, &addr) {
            return;
        }
        self.push_bare(to, PacketKind::Hello, 0, (addr.token, addr.qkey), token);
    }

    /// Whether an address is of this host.
    fn same_host(&mut self, ip: IpAddr, now: u64) -> bool {
        ip.is_loopback() || gid_of(ip) == self.me.gid || self.sessions.local.have(ip, now)
    }

    /// Ends a session: fails every operation that depends on it and removes the peer's entry.
    pub(super) fn end_session(&mut self, pi: u32, status: Status, list: &mut Vec<Event>, now: u64) {
        let Some(p) = self.peers.get_mut(pi) else {
            return;
        };
        let (token, addr) = (p.session.token_in, p.addr);
        p.session = Session::NONE;
        if let (Some(seal), Some(salt)) = (self.seal.as_mut(), p.salt.take()) {
            seal.end_sender(&salt, now);
        }
        if token != 0 {
            self.by_token.remove(&token);
            self.sessions.ended.add(token);
        }
        self.fail_peer(pi, status, list, now);
        self.drop_run(pi);
        if let Some(p) = self.peers.remove(pi) {
            self.incomplete -= p.parts.len();
            self.by_addr.remove(&addr);
            if self.by_socket.get(&p.to) == Some(&pi) {
                self.by_socket.remove(&p.to);
            }
            self.active.retain(|i| *i != pi);
            self.ack_pending.retain(|i| *i != pi);
        }
    }

    /// Timer work of sessions: refills the RESET budget, forgets old senders of sealed datagrams.
    pub(super) fn service_sessions(&mut self, now: u64) {
        self.sessions.resets = RESETS;
        if let Some(seal) = &mut self.seal {
            seal.sweep(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_sessions_follow_the_clock_whatever_the_uptime() {
        const DAY: u64 = 86_400_000 * MS;
        // The clock in milliseconds has passed half of 32 bits after 25 days, all after 50.
        let mut fresh = [0, 24, 25, 30, 49, 50, 75].map(|d| (d * DAY, Sessions::new().unwrap()));
        for (now, s) in &mut fresh {
            let numbers = [0, 0, 1, 5].map(|ms| s.number(*now + ms * MS));
            for pair in numbers.windows(2) {
                assert!(dist(pair[1], pair[0]) > 0, "{numbers:?}");
            }
            assert!(dist(numbers[0], (*now / MS) as u32).abs() <= 1);
            // Weeks without a caller.
            let later = *now + 30 * DAY;
            assert_eq!(s.number(later), (later / MS) as u32);
        }
        let mut many = Sessions::new().unwrap();
        let ahead = (0..20_000).map(|_| dist(many.number(DAY), (DAY / MS) as u32));
        assert_eq!(ahead.max(), Some(TOKEN_LIFE_MS / 2));
    }
}
