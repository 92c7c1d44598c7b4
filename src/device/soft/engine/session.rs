//! Sessions: how two queue pairs come to trust each other's datagrams.
//!
//! Nothing is kept for, and little is sent to, whoever has not shown that it may talk to this queue
//! pair and that it is where it says. The side that has something to send calls:
//!
//! ```text
//! HELLO    presents the key and the token of the receiver's address (64 random bits), names a
//!          token of its own
//! WELCOME  names a token computed from the caller's address and token, and a session number
//! data     presents that token: only now the receiver makes an entry for the caller
//! ```
//!
//! The computed token is a keyed hash, so that a HELLO costs no memory and a forged source address
//! gains nothing. From then on both sides accept only datagrams with the token that they gave.
//!
//! A queue pair whose number the application chose (a service) is to be found by host and number
//! alone, and has no token in its address. Callers on the same host show their user id over a Unix
//! socket instead (`admission`); others are let in, as far as they can be reached.
//!
//! Invariants: a session begins with empty flows on both sides. It ends with RESET, BYE, silence,
//! or the verified beginning of a newer one, and then everything that depended on it has failed
//! ([`Event::PeerDown`]). Of two calls that cross, the one of the smaller address counts.

use super::*;
use admission::Caller;
use siphasher::sip::SipHasher24;
use std::hash::Hasher;

/// A caller presents its token within so many milliseconds, or calls again.
const FRESH_MS: i32 = 10_000;
/// Ended sessions whose late datagrams are recognised.
const REMEMBERED: usize = 256;
/// First and longest wait for the answer to a HELLO.
const HELLO_FIRST: u64 = 5 * MS;
const HELLO_LONGEST: u64 = 200 * MS;
/// RESETs per service interval (1 ms): a restarted peer hears of it soon, and who floods a queue
/// pair gets little of its time.
const RESETS: u32 = 1;

/// Whether packets can go to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    /// Nobody has called.
    Idle,
    /// We have called.
    Calling {
        since: u64,
        next: u64,
        wait: u64,
    },
    Open,
}

/// One peer's session.
#[derive(Clone, Copy, Debug)]
pub(super) struct Session {
    pub link: Link,
    pub number: u32,
    /// What the peer has to present, and what we present.
    pub token_in: u64,
    pub token_out: u64,
    /// The peer's verification tag.
    pub vtag_out: u32,
    /// The peer called, and the number and token are ours.
    ours: bool,
    /// The peer has sent something in it.
    confirmed: bool,
    /// When it opened, in our milliseconds.
    opened: u32,
}

impl Session {
    pub(super) const NONE: Session = Session {
        link: Link::Idle,
        number: 0,
        token_in: 0,
        token_out: 0,
        vtag_out: 0,
        ours: false,
        confirmed: false,
        opened: 0,
    };
}

/// What all sessions of a queue pair share.
pub(super) struct Sessions {
    /// Key of the hash.
    secret: (u64, u64),
    /// Last number given.
    last: u32,
    /// Tokens of sessions that have ended, the oldest overwritten first.
    ended: Vec<u64>,
    oldest: usize,
    /// RESETs that may be sent until the next [`Engine::service`].
    resets: u32,
}

impl Sessions {
    /// `FI_ENOSYS` where the system has no random numbers.
    pub(super) fn new() -> Result<Sessions> {
        Ok(Sessions {
            secret: (secret()?, secret()?),
            last: 0,
            ended: Vec::with_capacity(REMEMBERED),
            oldest: 0,
            resets: RESETS,
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

    /// A number for a session: the time, and higher than any before, unless so many call at once
    /// that the numbers would leave the clock behind, by which they are told to be fresh.
    fn number(&mut self, now: u64) -> u32 {
        let ms = (now / MS) as u32;
        self.last = match dist(ms, self.last) {
            1.. => ms,
            ahead if ahead > -FRESH_MS / 2 => self.last.wrapping_add(1),
            _ => self.last,
        };
        self.last
    }

    /// Whether a datagram opens a session that we have welcomed a moment ago.
    fn opens(&self, from: &SocketAddr, h: &PacketHead, now: u64) -> bool {
        let age = dist((now / MS) as u32, h.session);
        (-FRESH_MS..FRESH_MS).contains(&age)
            && h.dst == self.token(from, h.src_qkey, h.src, h.session)
            && !self.ended.contains(&h.dst)
    }

    fn remember(&mut self, token: u64) {
        if self.ended.len() < REMEMBERED {
            self.ended.push(token);
            return;
        }
        if let Some(e) = self.ended.get_mut(self.oldest % REMEMBERED) {
            *e = token;
        }
        self.oldest = (self.oldest + 1) % REMEMBERED;
    }
}

/// What a datagram is to a queue pair.
pub(super) enum Hearing {
    /// Of the session with this peer.
    EnginePeer(u32),
    /// Nothing, or dealt with.
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
    /// Says something that is not part of a session: `dst` and `to_vtag` are the receiver's.
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
        let mut d = Datagram {
            to,
            head: [0; HEAD_MAX],
            head_len: 0,
            body: UserMem::EMPTY,
        };
        d.head_len = head.emit(&mut d.head);
        self.out.push(d);
    }

    /// Tells the sender of a datagram that it has no session here. The answer is shorter, carries
    /// the sender's own token as a proof, and is rare.
    fn reset(&mut self, to: SocketAddr, h: &PacketHead) {
        if self.sessions.resets == 0 || !(h.kind.reliable() || h.kind == PacketKind::Hello) {
            return;
        }
        self.sessions.resets -= 1;
        self.push_bare(to, PacketKind::Reset, h.session, (h.src, h.vtag), 0);
    }

    /// Looks a datagram's session up, or opens it.
    pub(super) fn hear(
        &mut self,
        from: SocketAddr,
        h: &PacketHead,
        list: &mut Vec<Event>,
        now: u64,
    ) -> Hearing {
        let vtag = match h.kind {
            PacketKind::Hello => self.me.qkey,
            _ => self.vtag,
        };
        // As the kernel does where it can.
        if h.to_vtag != vtag {
            return Hearing::Done;
        }
        let known = self.by_token.get(&h.dst).copied();
        let known = known.and_then(|pi| self.peers.get(pi).map(|p| (pi, p.to, p.session)));
        let known = known.filter(|(_, to, _)| *to == from);
        match (h.kind, known) {
            (PacketKind::Hello, _) => self.hello(from, h, now),
            (PacketKind::Welcome, Some((pi, _, s))) => {
                if matches!(s.link, Link::Calling { .. }) {
                    self.welcome(pi, h, now);
                }
            }
            (PacketKind::Reset, Some((pi, _, _))) => {
                self.end_session(pi, Status::RemoteBadQpn, list, now);
            }
            (PacketKind::Welcome | PacketKind::Reset, None) => {}
            (_, Some((pi, _, s))) if s.link == Link::Open && s.number == h.session => {
                if let Some(p) = self.peers.get_mut(pi) {
                    p.session.confirmed = true;
                    p.heard_at = now;
                }
                return Hearing::EnginePeer(pi);
            }
            _ if self.sessions.opens(&from, h, now) => {
                return match self.open(from, h, list, now) {
                    Some(pi) => Hearing::EnginePeer(pi),
                    None => Hearing::Done,
                };
            }
            _ => self.reset(from, h),
        }
        Hearing::Done
    }

    /// Somebody calls.
    fn hello(&mut self, from: SocketAddr, h: &PacketHead, now: u64) {
        let token = h.dst == self.me.token;
        let service = self.service && h.dst == 0 && !self.same_host(from.ip());
        if !(token || service) {
            return self.reset(from, h);
        }
        self.admit(from, (h.src_qkey, h.vtag), h.src, now);
    }

    /// Welcomes a caller that may talk to this queue pair: by the token of our address, or because
    /// it has shown its user id. Nothing is kept of it.
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

    /// As [`Engine::admit`], of a caller on this host, at once.
    pub(crate) fn admit_from(&mut self, c: &Caller, now: u64) {
        self.admit(socket_addr(&c.addr), (c.addr.qkey, c.vtag), c.token, now);
        self.flush(now);
    }

    /// Our call is answered.
    fn welcome(&mut self, pi: u32, h: &PacketHead, now: u64) {
        if let Some(p) = self.peers.get_mut(pi) {
            p.session = Session {
                link: Link::Open,
                number: h.session,
                token_out: h.src,
                vtag_out: h.vtag,
                ours: false,
                confirmed: false,
                opened: (now / MS) as u32,
                ..p.session
            };
            p.heard_at = now;
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
            // A queue pair's session with itself: one entry calls and is called, and presents the
            // token that it accepts.
            return match s.ours {
                true => None,
                false => self.establish(pi, h, h.dst, now),
            };
        }
        if s.link == Link::Open {
            if dist(h.session, if s.ours { s.number } else { s.opened }) <= 0 && s.confirmed {
                // A late datagram of an older session.
                return None;
            }
            if !s.confirmed && !s.ours {
                if smaller {
                    return None;
                }
                // The peer's call counts; it has accepted nothing of ours.
                if let Some(p) = self.peers.get_mut(pi) {
                    p.tx.send_again();
                    p.rx = None;
                }
            } else {
                self.end_session(pi, Status::RemoteBadQpn, list, now);
            }
        }
        // The entry may have gone with its session.
        let pi = self.peer(&addr, now);
        self.establish(pi, h, h.src, now)
    }

    /// Opens the session that a peer has called for, in which we present `token_out`.
    fn establish(&mut self, pi: u32, h: &PacketHead, token_out: u64, now: u64) -> Option<u32> {
        let old = self.peers.get(pi)?.session.token_in;
        self.by_token.remove(&old);
        self.by_token.try_reserve(1).ok()?;
        self.by_token.insert(h.dst, pi);
        let p = self.peers.get_mut(pi)?;
        p.session = Session {
            link: Link::Open,
            number: h.session,
            token_in: h.dst,
            token_out,
            vtag_out: h.vtag,
            ours: true,
            confirmed: true,
            opened: (now / MS) as u32,
        };
        p.heard_at = now;
        self.activate(pi);
        Some(pi)
    }

    /// Calls a peer that something is to be sent to, or calls again.
    pub(super) fn call(&mut self, pi: u32, now: u64) {
        let Some(p) = self.peers.get_mut(pi) else {
            return;
        };
        let (since, wait) = match p.session.link {
            Link::Open => return,
            Link::Calling { next, .. } if now < next => return,
            Link::Calling { since, wait, .. } => (since, (2 * wait).min(HELLO_LONGEST)),
            Link::Idle => {
                let Ok(token) = secret() else { return };
                if self.by_token.try_reserve(1).is_err() {
                    return;
                }
                self.by_token.insert(token, pi);
                p.session.token_in = token;
                (now, HELLO_FIRST)
            }
        };
        p.session.link = Link::Calling {
            since,
            next: now + wait,
            wait,
        };
        let (to, token, addr) = (p.to, p.session.token_in, p.addr);
        // A service on this host admits callers by their user id. Without a service the datagram
        // goes unanswered, or is refused by whoever has the port.
        let caller = Caller {
            addr: self.me,
            vtag: self.vtag,
            token,
        };
        if addr.token == 0 && self.same_host(to.ip()) && admission::ask(&caller, &addr) {
            return;
        }
        self.push_bare(to, PacketKind::Hello, 0, (addr.token, addr.qkey), token);
    }

    /// Whether an address is of this host.
    fn same_host(&self, ip: IpAddr) -> bool {
        ip.is_loopback() || gid_of(ip) == self.me.gid || is_local(ip)
    }

    /// A session is over: everything that depended on it fails, and the entry goes when nothing new
    /// waits for the peer.
    pub(super) fn end_session(&mut self, pi: u32, status: Status, list: &mut Vec<Event>, now: u64) {
        let Some(p) = self.peers.get_mut(pi) else {
            return;
        };
        let (token, addr) = (p.session.token_in, p.addr);
        p.session = Session::NONE;
        if let (Some(seal), Some(salt)) = (self.seal.as_mut(), p.salt.take()) {
            seal.leave(&salt, now);
        }
        if token != 0 {
            self.by_token.remove(&token);
            self.sessions.remember(token);
        }
        self.fail_peer(pi, status, list, now);
        if self.peers.remove(pi).is_some() {
            self.by_addr.remove(&addr);
            self.active.retain(|i| *i != pi);
            self.owed.retain(|i| *i != pi);
        }
    }

    /// Time for sessions: budgets are filled up.
    pub(super) fn service_sessions(&mut self, now: u64) {
        self.sessions.resets = RESETS;
        if let Some(seal) = &mut self.seal {
            seal.sweep(now);
        }
    }
}

/// Whether this host has the address: then a socket can be bound to it.
fn is_local(ip: IpAddr) -> bool {
    Sock::bind(ip, 0, 0).is_ok()
}
