//! The sending side of a connection.
//!
//! With an empty queue, a message goes to the socket straight from the call. Bytes that the socket
//! does not take are queued, and sent when it is writable again, several messages by one system
//! call.

use super::super::bursts::ConnBurst;
use super::super::state::{FailReason, MsgInfo, TcpState, TxOp};
use super::super::wire::{emit, parse, ByteOrder, Head, HEAD_MAX, ID_AT};
use super::{leave_to_others, log_lost, ConnState, RegionKeys};
use crate::core::errno::Errno;
use crate::device::host::now;
use crate::device::stream::Gather;
use crate::hmem::UserMem;
use crate::prov::contract::{SendBuffer, SendData};
use core::ops::Range;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Payload of a queued message.
#[derive(Debug)]
enum OutBody {
    /// Memory that is lent until the operation is over.
    Lent(UserMem),
    /// A copy.
    Own(Box<[u8]>),
    /// A part of a copy of several messages, from an offset on.
    Shared(Arc<[u8]>, Range<usize>),
}

impl OutBody {
    fn len(&self) -> usize {
        match self {
            OutBody::Lent(m) => m.len(),
            OutBody::Own(b) => b.len(),
            OutBody::Shared(_, part) => part.len(),
        }
    }
}

/// What happens when the last byte of a message is in the socket.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Then {
    Nothing,
    /// The operation is over.
    Done(TxOp),
    /// It is over when the peer has acknowledged it.
    Acknowledged(TxOp),
    /// It is over when the answer has come.
    Answered(TxOp, UserMem),
    /// A peer's read of these regions is over.
    RemoteRead(MsgInfo, RegionKeys),
}

impl Then {
    /// Whether the message answers one of the peer.
    fn answers(&self) -> bool {
        matches!(self, Then::Nothing | Then::RemoteRead(..))
    }

    /// The operation that ends when the message, or what the peer does then, has ended.
    fn op(self) -> Option<TxOp> {
        match self {
            Then::Done(n) | Then::Acknowledged(n) | Then::Answered(n, _) => Some(n),
            Then::Nothing | Then::RemoteRead(..) => None,
        }
    }
}

/// A message that waits for the socket.
#[derive(Debug)]
struct OutItem {
    head: [u8; HEAD_MAX],
    head_len: usize,
    body: OutBody,
    then: Then,
}

impl OutItem {
    fn len(&self) -> usize {
        self.head_len + self.body.len()
    }

    /// Appends what is left of it after `sent` bytes.
    fn gather<'a>(&'a self, sent: usize, g: &mut Gather<'a>) {
        if let Some(h) = self.head.get(sent..self.head_len) {
            g.bytes(h);
        }
        let off = sent.saturating_sub(self.head_len);
        match &self.body {
            OutBody::Lent(m) => g.mem(&m.part(off, m.len())),
            OutBody::Own(b) => g.bytes(b.get(off..).unwrap_or(&[])),
            OutBody::Shared(b, part) => {
                let from = part.start.saturating_add(off);
                g.bytes(b.get(from..part.end).unwrap_or(&[]));
            }
        }
    }
}

/// See the module text.
#[derive(Debug, Default)]
pub(crate) struct Outbound {
    queue: VecDeque<OutItem>,
    /// Bytes of the first that have left.
    sent: usize,
    /// When the socket took bytes last, or the queue began, nanoseconds.
    moved_at: u64,
    /// Number of the next header.
    next_id: u8,
    /// Whether the poller watches for room in the socket.
    waits: bool,
    /// Messages of the queue that answer the peer.
    answers: usize,
    /// Why nothing can be sent any more.
    failed: Option<FailReason>,
    burst: ConnBurst,
}

impl Outbound {
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    /// For how long the socket has taken nothing of the queue, nanoseconds.
    #[cold]
    pub(super) fn full_for(&self) -> u64 {
        now().saturating_sub(self.moved_at)
    }

    /// As if it had been so for so long.
    #[cfg(test)]
    pub(super) fn set_full_for(&mut self, ns: u64) {
        self.moved_at = now().saturating_sub(ns);
    }

    /// Sets the byte order of the peer, before anything is sent.
    pub(super) fn reorder(&mut self, order: ByteOrder) {
        if order == ByteOrder::Host {
            return;
        }
        for item in &mut self.queue {
            let (id, head) = (item.head[ID_AT], item.head);
            let head = head.get(..item.head_len).unwrap_or(&[]);
            if let Ok(h) = parse(head, ByteOrder::Host) {
                emit(&h, order, &mut item.head);
                item.head[ID_AT] = id;
            }
        }
    }

    /// Takes over the queue of a connection that has sent nothing of it.
    pub(super) fn take_over(&mut self, from: &mut Outbound) {
        core::mem::swap(&mut self.queue, &mut from.queue);
        core::mem::swap(&mut self.answers, &mut from.answers);
        for item in &mut self.queue {
            item.head[ID_AT] = self.next_id;
            self.next_id = self.next_id.wrapping_add(1);
        }
    }

    /// Takes out the messages that wait; the operations that would have ended with them.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = TxOp> + '_ {
        (self.sent, self.answers) = (0, 0);
        self.queue.drain(..).filter_map(|i| i.then.op())
    }

    /// Whether the poller is to tell when the socket is writable.
    pub(super) fn waits(&self) -> bool {
        self.waits
    }

    /// Copies what peers are reading of a region before the region is closed; each byte once, where
    /// they read the same. `false`: that is more than [`COPIED_MAX`], or than there is memory.
    pub(super) fn region_closed(&mut self, key: u64) -> bool {
        let mut reads: Vec<_> = self
            .queue
            .iter_mut()
            .filter_map(|i| match (&i.then, &i.body) {
                (Then::RemoteRead(_, keys), OutBody::Lent(m)) if keys.contains(&Some(key)) => {
                    let mem = *m;
                    Some((&mut i.body, mem))
                }
                _ => None,
            })
            .collect();
        let single = reads.iter().all(|(_, m)| m.single().is_some());
        let from = reads.iter().map(|(_, m)| m.addr()).min().unwrap_or(0);
        let to = reads.iter().map(|(_, m)| m.addr().saturating_add(m.len()));
        let span = to.max().unwrap_or(0).saturating_sub(from);
        let total = reads
            .iter()
            .try_fold(0usize, |n, (_, m)| n.checked_add(m.len()));
        let together = single && total.is_none_or(|n| span <= n);
        if together && reads.len() > 1 {
            let Some(mut copy) = zeroed(span) else {
                return false;
            };
            reads.sort_unstable_by_key(|(_, m)| m.addr());
            // Up to here everything that is read has been copied.
            let mut done = 0usize;
            for (_, m) in &reads {
                let at = m.addr() - from;
                let skip = done.saturating_sub(at);
                let left = m.part(skip.min(m.len()), m.len());
                if let Some(to) = copy.get_mut(at + skip..at + m.len()) {
                    left.load(0, to);
                    done = at + m.len();
                }
            }
            let copy: Arc<[u8]> = copy.into();
            for (body, m) in reads {
                let at = m.addr() - from;
                *body = OutBody::Shared(Arc::clone(&copy), at..at + m.len());
            }
            return true;
        }
        if total.is_none_or(|n| n > COPIED_MAX) {
            return false;
        }
        for (body, m) in &mut reads {
            let Some(mut copy) = zeroed(m.len()) else {
                return false;
            };
            m.load(0, &mut copy);
            **body = OutBody::Own(copy.into_boxed_slice());
        }
        true
    }

    /// Whether so many answers wait that the peer's requests are not read: a peer that asks and
    /// does not read would have no end of them.
    pub(super) fn overfull(&self) -> bool {
        self.answers >= ANSWERS_MAX
    }
}

/// Bytes that the closing of a region copies for one connection at most.
const COPIED_MAX: usize = 256 << 20;
/// Answers to reads and acknowledgements that wait for one socket at most. Two processes that wait
/// for one another's answers would wait for ever, so that it is more than programs ask for.
const ANSWERS_MAX: usize = 1 << 17;

/// `None` for more than [`COPIED_MAX`], and without memory.
fn zeroed(len: usize) -> Option<Vec<u8>> {
    let len = Some(len).filter(|n| *n <= COPIED_MAX)?;
    let mut v = Vec::new();
    v.try_reserve_exact(len).ok()?;
    v.resize(len, 0);
    Some(v)
}

/// Bytes up to which a message leaves by one system call, and most bytes of a call for a longer
/// one. A call keeps the socket from taking in acknowledgements while it copies, and TCP sends
/// slowly when they are late, and behind a packet that is not full: by these calls a message of
/// 1 MiB takes a third of the time.
const WHOLE: usize = 66_000;
const PIECE: usize = 64 << 10;
/// Bytes of a call where a packet may have more than a quarter of [`PIECE`] (within a host).
const LARGE_PACKETS: usize = 56 << 10;

/// Bytes of a call for a longer message, which fill packets of `segment` bytes.
fn piece(segment: usize) -> usize {
    match (1..=PIECE / 4).contains(&segment) {
        true => PIECE - PIECE % segment,
        false => LARGE_PACKETS,
    }
}

/// Bytes of header and payload up to which both are sent as one piece: the system takes longer for
/// two.
const SHORT: usize = 256;

/// A short message in one piece, and its length.
#[inline]
fn short(head: &[u8; HEAD_MAX], head_len: usize, data: &SendData) -> Option<([u8; SHORT], usize)> {
    let len = head_len + data.len();
    if len > SHORT {
        return None;
    }
    let mut all = [0; SHORT];
    all[..HEAD_MAX].copy_from_slice(head);
    let to = all.get_mut(head_len..len)?;
    match data {
        SendData::User(m) => {
            m.load(0, to);
        }
        SendData::Inject(b) => to.copy_from_slice(b.bytes()),
    }
    Some((all, len))
}

/// Sends a message, or queues it. Injected data is copied where it cannot leave at once.
#[inline]
pub(crate) fn post(s: &mut TcpState, id: u32, h: &Head, data: &SendData, then: Then) {
    let Some(c) = s.conns.get_mut(id) else { return };
    if let Some(why) = &c.tx.failed {
        let why = why.clone();
        return then.op().map_or((), |op| s.tx_failed(&op, &why));
    }
    let mut head = [0; HEAD_MAX];
    let head_len = emit(h, c.order, &mut head);
    head[ID_AT] = c.tx.next_id;
    c.tx.next_id = c.tx.next_id.wrapping_add(1);
    let total = head_len + data.len();
    let mut sent = 0;
    let mut failed = None;
    let at_once = c.state == ConnState::Open && c.tx.queue.is_empty();
    if at_once && total <= WHOLE {
        if let Some(stream) = &c.stream {
            let more = s.bursts.holds(id, &mut c.tx.burst, total, stream);
            let left = match short(&head, head_len, data) {
                Some((all, len)) => stream.send_bytes(all.get(..len).unwrap_or(&[]), more),
                None => {
                    let mut g = Gather::new();
                    g.bytes(head.get(..head_len).unwrap_or(&[]));
                    match data {
                        SendData::User(m) => g.mem(m),
                        SendData::Inject(b) => g.bytes(b.bytes()),
                    }
                    stream.send(&g, more)
                }
            };
            match left {
                Ok(n) if n == total => return ended(s, id, then),
                Ok(n) => sent = n,
                Err(e) => failed = Some(e),
            }
        }
    }
    let Some(c) = s.conns.get_mut(id) else { return };
    if c.tx.queue.is_empty() {
        (c.tx.sent, c.tx.moved_at) = (sent, now());
    }
    let overfull = c.tx.overfull();
    c.tx.answers += usize::from(then.answers());
    let stops = !overfull && c.tx.overfull();
    c.tx.queue.push_back(OutItem {
        head,
        head_len,
        body: match data {
            SendData::User(m) => OutBody::Lent(*m),
            SendData::Inject(b) => OutBody::Own(b.bytes().into()),
        },
        then,
    });
    match failed {
        Some(e) => sends_fail(s, id, e),
        None if at_once && total > WHOLE => flush(s, id),
        None => wait_writable(s, id),
    }
    if stops {
        watch(s, id);
    }
}

/// The socket takes nothing any more: fails what waits for it. What the peer has sent before it
/// went away is still received, and the connection ends behind it. A new message to the peer of an
/// RDM endpoint takes a new connection.
#[cold]
fn sends_fail(s: &mut TcpState, id: u32, e: Errno) {
    let why = (e, log_lost(s, id, e, "sending to"));
    let Some(c) = s.conns.get_mut(id) else { return };
    c.tx.failed = Some(why.clone());
    if let Some(stream) = &c.stream {
        // The peer must learn of it, too: it would wait for the rest of a message.
        stream.shut_sending();
    }
    let waiting: Vec<_> = c.tx.drain().collect();
    let of = (c.ep, c.peer);
    leave_to_others(s, id, of);
    for op in waiting {
        s.tx_failed(&op, &why);
    }
    wait_writable(s, id);
}

/// Has the poller tell when the socket is writable, if something waits for that.
fn wait_writable(s: &mut TcpState, id: u32) {
    let Some(c) = s.conns.get_mut(id) else { return };
    if c.state != ConnState::Open {
        return;
    }
    let waits = !c.tx.queue.is_empty();
    if waits != c.tx.waits {
        c.tx.waits = waits;
        match waits {
            true => s.full += 1,
            false => s.full -= 1,
        }
        watch(s, id);
    }
}

/// Tells the poller what an open connection waits for.
pub(crate) fn watch(s: &mut TcpState, id: u32) {
    let Some(c) = s.conns.get(id) else { return };
    if let Some(stream) = &c.stream {
        s.poller
            .change(stream.fd(), u64::from(id), c.is_read(), c.tx.waits);
    }
}

/// Sends what waits, as far as the socket takes it.
pub(crate) fn flush(s: &mut TcpState, id: u32) {
    let mut moved = false;
    loop {
        let Some(c) = s.conns.get_mut(id) else { return };
        if c.state != ConnState::Open || c.tx.queue.is_empty() {
            break;
        }
        let Some(stream) = &c.stream else { return };
        let mut skip = c.tx.sent;
        let whole = c.tx.queue.front().is_some_and(|i| i.len() - skip <= WHOLE);
        let mut g = Gather::limited(match whole {
            true => WHOLE,
            false => piece(c.tx.burst.segment(stream)),
        });
        for item in &c.tx.queue {
            if !g.has_room() {
                break;
            }
            item.gather(skip, &mut g);
            skip = 0;
        }
        let sent = match stream.send(&g, false) {
            Ok(n) => n,
            Err(e) => return sends_fail(s, id, e),
        };
        let full = sent < g.len();
        c.tx.sent += sent;
        moved |= sent > 0;
        if full && moved {
            c.tx.moved_at = now();
        }
        while let Some(c) = s.conns.get_mut(id) {
            let first = c.tx.queue.front().map(OutItem::len);
            match first {
                Some(n) if n <= c.tx.sent => c.tx.sent -= n,
                _ => break,
            }
            if let Some(item) = c.tx.queue.pop_front() {
                let overfull = c.tx.overfull();
                c.tx.answers -= usize::from(item.then.answers());
                if overfull && !c.tx.overfull() {
                    watch(s, id);
                }
                ended(s, id, item.then);
            }
        }
        if full {
            break;
        }
    }
    wait_writable(s, id);
}

/// What still waits at an endpoint's connections.
pub(crate) struct Unsent {
    /// The descriptor of a socket that is full.
    pub full: i32,
    /// For how long none of the sockets has taken anything.
    pub full_for: Duration,
}

/// Sends what waits at an endpoint's connections, as far as the sockets take it; `None` when that
/// is all.
pub(crate) fn send_rest(s: &mut TcpState, ep: u32) -> Option<Unsent> {
    let waiting = s
        .conns
        .select(|c| c.ep == ep && c.state == ConnState::Open && !c.tx.queue.is_empty());
    let mut unsent: Option<Unsent> = None;
    for id in waiting {
        flush(s, id);
        let c = s.conns.get(id).filter(|c| !c.tx.queue.is_empty());
        let Some((c, stream)) = c.and_then(|c| Some((c, c.stream.as_ref()?))) else {
            continue;
        };
        let full_for = Duration::from_nanos(c.tx.full_for());
        match &mut unsent {
            Some(u) => u.full_for = u.full_for.min(full_for),
            None => {
                let full = stream.fd();
                unsent = Some(Unsent { full, full_for });
            }
        }
    }
    unsent
}

/// Handles a message whose last byte is in the socket.
#[inline]
fn ended(s: &mut TcpState, id: u32, then: Then) {
    match then {
        Then::Nothing => {}
        Then::Done(n) => s.tx_done(&n),
        Then::Acknowledged(n) => {
            if let Some(c) = s.conns.get_mut(id) {
                c.unacked.push_back(n);
            }
        }
        Then::Answered(n, mem) => {
            if let Some(c) = s.conns.get_mut(id) {
                c.reads.push_back((n, mem));
            }
        }
        Then::RemoteRead(m, keys) => {
            if let Some(ep) = s.conns.get(id).map(|c| c.ep) {
                s.remote_done(ep, false, &m, &keys);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_of(key: u64, mem: UserMem) -> OutItem {
        let msg = MsgInfo {
            from: 0,
            tag: None,
            cq_data: None,
            len: mem.len() as u64,
        };
        OutItem {
            head: [0; HEAD_MAX],
            head_len: 0,
            body: OutBody::Lent(mem),
            then: Then::RemoteRead(msg, [Some(key), None, None, None]),
        }
    }

    /// Key 0 is one as any other; bytes that several reads name are copied once.
    #[test]
    fn what_is_read_of_a_closed_region_is_copied() {
        let memory: Vec<u8> = (0..=255).collect();
        let all = crate::hmem::leaked(&memory);
        let parts = [(10, 100), (0, 256), (50, 10), (200, 56)];
        for (key, closed) in [(7, 7), (0, 0), (7, 0)] {
            let mut out = Outbound::default();
            let reads = parts.map(|(at, len)| read_of(key, all.part(at, len)));
            out.queue.extend(reads);
            assert!(out.region_closed(closed));
            for (item, (at, len)) in out.queue.iter().zip(parts) {
                let bytes = match &item.body {
                    OutBody::Shared(b, part) => &b[part.clone()],
                    OutBody::Lent(_) if key != closed => continue,
                    other => panic!("{other:?}"),
                };
                assert_eq!(bytes, &memory[at..at + len]);
            }
        }
    }

    #[test]
    fn calls_for_long_messages_fill_packets() {
        assert_eq!([1448, 8948].map(piece), [45 * 1448, 7 * 8948]);
        assert_eq!([0, 65_483].map(piece), [56 << 10; 2]);
    }
}
