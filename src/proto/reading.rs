//! Transfers whose bytes the receiver reads from the sender's memory, by RDMA reads of the adapter.
//!
//! A transfer waits in `Endpoint::reading` until the adapter has taken all of its reads. When the
//! adapter refuses one, the sender is asked to send the rest (READ_NACK; protocol, 4.7).

use super::endpoint::Endpoint;
use super::peer::Parts;
use super::recv::{Rx, RxKind, REGION_CLOSED};
use super::recvq::RecvQueue;
use super::{Body, Failure, Port, ReadPost};
use crate::types::*;
use crate::wire::{Iovs, Repr, RmaIov};

/// Memory of the sender that is to be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    pub(super) from: Iovs,
    /// Bytes the sender sends ahead.
    pub(super) runt: u64,
    /// Offset of the first read, offset up to which reads are posted, and offset where the reads
    /// end.
    pub(super) start: u64,
    pub(super) at: u64,
    pub(super) end: u64,
    /// Reads under way.
    pub(super) under_way: u32,
    /// The adapter refused the read: READ_NACK is sent once all bytes sent ahead have arrived.
    pub(super) refused: bool,
    /// The target region was closed: the sender gets PEER_ERROR once no read is under way.
    pub(super) closed: bool,
}

impl Reading {
    /// Value of [`Rx::got`] for a transfer of `total` bytes once all bytes sent ahead have arrived.
    pub(super) fn ahead(&self, total: u64) -> u64 {
        total - self.end + self.start
    }
}

impl Endpoint {
    /// Plans to read what follows the first `skip` bytes of a transfer, as far as there is room.
    pub(super) fn plan_read(&mut self, rx: &mut Rx, send_id: u32, memory: Iovs, skip: u64) {
        let room = match rx.kind {
            RxKind::Message { place, .. } => place.room,
            _ => rx.total,
        };
        let end = rx.total.min(memory.total().unwrap_or(0));
        let stop = end.min(room).max(skip.min(end));
        rx.send_id = send_id;
        // Bytes beyond the buffer are not read, and bytes beyond the sender's memory cannot be:
        // count them as received.
        rx.got = rx.total - stop;
        rx.reading = Some(Reading {
            from: memory,
            runt: skip.min(rx.total),
            start: skip.min(stop),
            at: skip.min(stop),
            end: stop,
            under_way: 0,
            refused: false,
            closed: false,
        });
    }

    /// Posts reads, as many as the adapter takes.
    pub(super) fn push_reads(&mut self, port: &mut impl Port) {
        while let Some(id) = self.reading.front().copied() {
            if self.end_closed(id, port) {
                continue;
            }
            match self.read_one(id, port) {
                ReadPost::Busy => return,
                ReadPost::Posted => {
                    self.reading.pop_front();
                }
                ReadPost::Refused => {
                    self.reading.pop_front();
                    self.refuse_read(id, port);
                }
            }
        }
    }

    /// Ends a write whose target region was closed, if no read into the region is under way, and
    /// sends PEER_ERROR. Returns whether the transfer is gone.
    pub(super) fn end_closed(&mut self, id: u32, port: &mut impl Port) -> bool {
        let Some(rx) = self.rxs.get(id) else {
            return false;
        };
        let over = rx
            .reading
            .as_ref()
            .is_some_and(|r| r.closed && r.under_way == 0);
        if over {
            let (from, send_id) = (rx.from, rx.send_id);
            self.reading.retain(|r| *r != id);
            self.send_peer_error(from, send_id, REGION_CLOSED, port);
            self.drop_rx(id, port);
        }
        over
    }

    /// Posts all reads of a transfer.
    fn read_one(&mut self, id: u32, port: &mut impl Port) -> ReadPost {
        let segment = self.cfg.policy.read_segment;
        while let Some(rx) = self.rxs.get_mut(id) {
            let wanted = |r: &&mut Reading| r.at < r.end && rx.failed.is_none();
            let Some(r) = rx.reading.as_mut().filter(wanted) else {
                break;
            };
            // The piece of the sender's memory that holds the next byte.
            let mut before = 0;
            let piece = r.from.as_slice().iter().find(|v| {
                let here = r.at < before + v.len;
                before += if here { 0 } else { v.len };
                here
            });
            let Some(piece) = piece else { break };
            let within = r.at - before;
            let len = (piece.len - within).min(r.end - r.at).min(segment);
            let remote = RmaIov {
                addr: piece.addr.wrapping_add(within),
                len,
                key: piece.key,
            };
            let into = Body {
                ctx: rx.ctx,
                off: rx.base + r.at,
                len: len as usize,
            };
            match port.read(rx.from, remote, into, id) {
                ReadPost::Posted => {
                    r.at += len;
                    r.under_way += 1;
                }
                ReadPost::Refused if r.under_way > 0 => return ReadPost::Busy,
                other => return other,
            }
        }
        ReadPost::Posted
    }

    /// The adapter is done with a read of operation `id`.
    pub fn read_done(
        &mut self,
        id: u32,
        failure: Option<Failure>,
        rq: &mut RecvQueue,
        port: &mut impl Port,
    ) {
        let Some(rx) = self.rxs.get_mut(id) else {
            return;
        };
        let Some(r) = rx.reading.as_mut() else { return };
        r.under_way = r.under_way.saturating_sub(1);
        if let Some(f) = failure {
            let news = rx.failed.is_none();
            rx.failed.get_or_insert(f);
            r.end = r.at;
            // A peer that lives waits for the end of the read.
            if news && !matches!(f.errno, FI_ECONNABORTED | FI_ENOTCONN) {
                let (from, send_id) = (rx.from, rx.send_id);
                self.send_peer_error(from, send_id, f, port);
            }
        }
        let gone = failure.is_some_and(|f| matches!(f.errno, FI_ECONNABORTED | FI_ENOTCONN));
        if !gone && self.end_closed(id, port) {
            return;
        }
        let Some(rx) = self.rxs.get_mut(id) else {
            return;
        };
        let Some(r) = rx.reading.as_mut() else { return };
        if r.under_way > 0 || r.at < r.end {
            return;
        }
        if rx.failed.is_none() {
            rx.got = rx.got.saturating_add(r.end - r.start).min(rx.total);
            r.start = r.end;
        }
        if rx.failed.is_some() || rx.complete() {
            self.reading.retain(|r| *r != id);
            self.close_rx(id, rq, port);
        }
    }

    /// Asks the sender to send what our adapter cannot read, once all bytes sent ahead have arrived
    /// (protocol, 4.7).
    pub(super) fn refuse_read(&mut self, id: u32, port: &mut impl Port) {
        let Some(rx) = self.rxs.get_mut(id) else {
            return;
        };
        let (got, total) = (rx.got, rx.total);
        let Some(r) = rx.reading.as_mut() else { return };
        r.refused = true;
        if got < r.ahead(total) {
            return;
        }
        let (from, send_id) = (rx.from, rx.send_id);
        // The sender goes on behind what it has sent ahead.
        rx.got = r.runt;
        rx.reading = None;
        if let RxKind::Message {
            msg_id, several, ..
        } = &mut rx.kind
        {
            // The long-CTS request that follows carries the message number.
            *several = true;
            let msg_id = *msg_id;
            let parts = &mut self.peers.get(from).parts;
            parts.insert(msg_id, Parts::Rx(id));
        } else {
            // A write is sent again from its beginning and names its target again.
            self.drop_rx(id, port);
        }
        let r = Repr::ReadNack {
            send_id,
            recv_id: id,
        };
        self.control_repr(from, &r, port);
    }
}
