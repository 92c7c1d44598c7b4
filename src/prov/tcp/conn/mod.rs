//! A connection: one socket, what leaves by it and what comes in.
//!
//! Data path: `output` sends a header and its payload at once, or queues both while the socket is
//! full; `input` cuts what arrives into headers and payloads, each payload going straight to its
//! place; `saved` keeps messages that have no receive yet. `make` connects and answers requests,
//! `accept` takes connections from the listener, `end` ends them.
//!
//! Invariants: bytes leave and arrive in the order of the calls, so that acknowledgements and
//! answers to reads need no numbers; lengths, counts, keys and numbers of the peer are checked
//! before they are used; a peer that violates the protocol loses its connection, and no other peer
//! is affected.

mod accept;
mod end;
mod input;
mod make;
mod output;
mod saved;

pub(crate) use accept::{accept, log_too_many, next_caller, pending_max, resume_listeners};
pub(crate) use end::{drop_conn, end, lost, refuse};
use end::{leave_to_others, log_lost};
#[cfg(any(test, feature = "internals"))]
pub(crate) use input::consume;
pub(crate) use input::{receive, region_closed};
pub(crate) use make::{conn_for, control_needs, expire, send_control, timeout, writable};
pub(crate) use output::{flush, post, send_rest, watch, Then};
pub(crate) use saved::{deliver, discard, retake};

use super::peers::UNKNOWN_PEER;
use super::recvq::RecvPlace;
use super::state::{MsgInfo, TxOp};
use super::wire::{ByteOrder, HEAD_MAX};
use crate::core::iovs::MAX_IOV;
use crate::device::stream::Stream;
use crate::hmem::UserMem;
use crate::proto::PeerId;
use output::Outbound;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnState {
    /// Ours: the system connects.
    Connecting,
    /// Ours: the peer has our request.
    Requested,
    /// Opened by us: the peer has refused, for now or because its own request is on its way.
    Refused { again: Instant },
    /// The peer's: its request is not here yet.
    Accepted,
    /// Messages may pass.
    Open,
}

/// Where a payload goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PayloadTarget {
    /// Into a receive.
    Recv(RecvPlace),
    /// Into a message that waits for one, by number.
    Saved(u32),
    /// Into the memory of a read of ours.
    Read(TxOp, UserMem),
    /// Into registered memory, by a peer's write, whose keys are `InBody::keys`.
    Write(UserMem),
    /// Nowhere.
    Drop,
}

/// Keys of the regions that a peer's access names; 0 is a key as any other.
pub(crate) type RegionKeys = [Option<u64>; MAX_IOV];

/// A payload that is coming in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InBody {
    to: PayloadTarget,
    msg: MsgInfo,
    /// Bytes that are here, of `msg.len`.
    off: u64,
    /// The peer waits for an acknowledgement of its end.
    ack: bool,
    /// Keys of the regions that it is written to.
    keys: RegionKeys,
}

impl InBody {
    /// A payload of which nothing is here, of no region; `ack`: its end is acknowledged.
    #[inline(always)]
    fn new(to: PayloadTarget, msg: MsgInfo, ack: bool) -> InBody {
        InBody {
            to,
            msg,
            off: 0,
            ack,
            keys: RegionKeys::default(),
        }
    }
}

/// What comes next.
// One per connection, whose size does not matter.
#[allow(clippy::large_enum_variant)]
#[derive(Debug)]
enum Phase {
    /// A control message.
    Control(Vec<u8>),
    /// A header.
    Head,
    /// A payload.
    Body(InBody),
    /// The payload of a saved message, which stays in the socket until it has a receive.
    Held { ack: bool },
}

/// The receiving side of a connection.
#[derive(Debug)]
pub(crate) struct Inbound {
    phase: Phase,
    head: [u8; HEAD_MAX],
    /// Bytes of the header that are here.
    have: usize,
    /// Bytes that were received while the connection is held.
    stash: Vec<u8>,
    /// The last payload was long: most likely the next one is.
    long: bool,
    /// Polls at which it was not read because its peer is ahead.
    passed_over: u8,
}

/// Messages announced on a connection, by the numbers of the protocol, 1 to 255.
type Announced<T> = Vec<(u8, T)>;

/// See the module text.
#[derive(Debug)]
pub(crate) struct Conn {
    pub ep: u32,
    /// Held, unless it is [`UNKNOWN_PEER`].
    pub peer: PeerId,
    pub state: ConnState,
    /// None between attempts.
    stream: Option<Stream>,
    rx: Inbound,
    tx: Outbound,
    order: ByteOrder,
    /// The peer may announce messages, and understands announcements.
    announces: bool,
    remote_pid: u32,
    /// When the socket has to be connected.
    deadline: Instant,
    /// Requests that brought no connection, and the pauses after them, together.
    refused: u32,
    waited: Duration,
    /// Messages that the peer has not acknowledged.
    unacked: VecDeque<TxOp>,
    /// Reads that it has not answered.
    reads: VecDeque<(TxOp, UserMem)>,
    /// Messages that it has not asked for.
    rts: Announced<(TxOp, UserMem)>,
    /// Messages that we have asked for.
    cts: Announced<(RecvPlace, MsgInfo, bool)>,
}

impl Conn {
    /// Its socket, while it has one.
    pub(crate) fn fd(&self) -> Option<i32> {
        self.stream.as_ref().map(Stream::fd)
    }

    pub(crate) fn new(
        ep: u32,
        state: ConnState,
        stream: Option<Stream>,
        deadline: Instant,
    ) -> Conn {
        let phase = match state {
            ConnState::Open => Phase::Head,
            _ => Phase::Control(Vec::new()),
        };
        Conn {
            ep,
            peer: UNKNOWN_PEER,
            state,
            stream,
            rx: Inbound {
                phase,
                head: [0; HEAD_MAX],
                have: 0,
                stash: Vec::new(),
                long: false,
                passed_over: 0,
            },
            tx: Outbound::default(),
            order: ByteOrder::Host,
            announces: false,
            remote_pid: 0,
            deadline,
            refused: 0,
            waited: Duration::ZERO,
            unacked: VecDeque::new(),
            reads: VecDeque::new(),
            rts: Vec::new(),
            cts: Vec::new(),
        }
    }

    /// Sets the byte order of the peer, before anything is sent.
    pub(crate) fn set_order(&mut self, order: ByteOrder) {
        self.order = order;
        self.tx.reorder(order);
    }

    /// The peer understands announcements.
    #[cfg(any(test, feature = "internals"))]
    pub(crate) fn set_announces(&mut self) {
        self.announces = true;
    }

    /// Opens the connection for messages.
    pub(crate) fn opened(&mut self) {
        self.state = ConnState::Open;
        self.rx.phase = Phase::Head;
    }

    /// Whether the connection is not read until a saved message has a receive.
    pub(crate) fn held(&self) -> bool {
        matches!(self.rx.phase, Phase::Held { .. })
    }

    /// Whether what the peer sends is read now.
    pub(crate) fn is_read(&self) -> bool {
        !self.held() && !self.tx.overfull()
    }

    /// A number for a message to announce, if there is one free. `None` to peers without
    /// announcements.
    pub(crate) fn next_announcement(&self) -> Option<Option<u8>> {
        let open = self.state == ConnState::Open && self.announces;
        open.then(|| (1..=u8::MAX).find(|n| self.rts.iter().all(|(used, _)| used != n)))
    }

    /// Records a message that is announced by this number.
    pub(crate) fn announced(&mut self, number: u8, op: TxOp, mem: UserMem) {
        self.rts.push((number, (op, mem)));
    }

    /// Receives that its messages are coming into, or were asked into.
    fn incoming(&self) -> impl Iterator<Item = (&RecvPlace, &MsgInfo)> {
        let body = match &self.rx.phase {
            Phase::Body(b) => match &b.to {
                PayloadTarget::Recv(p) => Some((p, &b.msg)),
                _ => None,
            },
            _ => None,
        };
        body.into_iter()
            .chain(self.cts.iter().map(|(_, (p, m, _))| (p, m)))
    }

    /// As [`Stream::push`].
    pub(crate) fn push(&self) {
        if let Some(stream) = &self.stream {
            stream.push();
        }
    }

    /// As [`Stream::shares_processor`]; `None` without a socket.
    pub(crate) fn shares_processor(&self) -> Option<bool> {
        self.stream.as_ref()?.shares_processor()
    }

    /// For how long its socket has taken nothing of what waits, nanoseconds.
    pub(crate) fn full_for(&self) -> u64 {
        self.tx.full_for()
    }

    #[cfg(test)]
    pub(crate) fn set_full_for(&mut self, ns: u64) {
        self.tx.set_full_for(ns);
    }

    /// Number of messages that wait for the socket.
    pub(crate) fn queued(&self) -> usize {
        self.tx.len()
    }
}
