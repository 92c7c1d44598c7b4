//! Atomics. The request is ordered among the peer's messages; the target executes it and answers if
//! the operation fetches (protocol, 3.3).
//!
//! An atomic that is not injected asks for a receipt, so that a wrong key is reported to the
//! initiator.

use super::endpoint::Endpoint;
use super::send::{AckKind, Tx};
use super::{PacketPayload, PeerId, Port, Token};
use crate::core::Result;
use crate::types::*;
use crate::wire::{Iovs, Repr, Rta, RtaKind, HEADER_MAX};

/// What an atomic returns to its initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicKind {
    /// Nothing; with `receipt` the target confirms it.
    Write { receipt: bool },
    /// The former values.
    Fetch,
    /// The former values; the data is operands followed by values to compare with.
    Compare,
}

/// Arguments of [`Endpoint::atomic`].
#[derive(Clone, Copy, Debug)]
pub struct AtomicArgs<'a> {
    pub peer: PeerId,
    /// The provider's number of the operation, whose memory receives the former values.
    pub ctx: u32,
    pub to: Iovs,
    pub datatype: u32,
    pub op: u32,
    pub kind: AtomicKind,
    /// The operands; for a compare the comparison values follow them.
    pub data: &'a [u8],
}

impl Endpoint {
    /// Sends an atomic. `FI_EAGAIN` when the adapter has no room, `FI_EMSGSIZE` when the data does
    /// not fit into one packet.
    pub fn atomic(&mut self, a: &AtomicArgs, port: &mut impl Port) -> Result<()> {
        if !port.room() {
            return Err(FI_EAGAIN);
        }
        let opt = self.opt(a.peer, None);
        let mut tx = Tx::new(a.ctx, a.peer, 0);
        tx.awaits = match a.kind {
            AtomicKind::Write { receipt: false } => AckKind::None,
            AtomicKind::Write { receipt: true } => AckKind::Receipt,
            AtomicKind::Fetch | AtomicKind::Compare => AckKind::Former(a.to.total().unwrap_or(0)),
        };
        let awaited = tx.awaits != AckKind::None;
        tx.expecting = awaited;
        let id = self.txs.insert(tx);
        let rta = Rta {
            msg_id: self.peers.get(a.peer).next_msg_id,
            opt,
            to: a.to,
            datatype: a.datatype,
            op: a.op,
            kind: match a.kind {
                AtomicKind::Write { receipt: false } => RtaKind::Write,
                AtomicKind::Write { receipt: true } => RtaKind::WriteReceipt(id),
                AtomicKind::Fetch => RtaKind::Fetch(id),
                AtomicKind::Compare => RtaKind::Compare(id),
            },
        };
        let mut head = [0u8; HEADER_MAX];
        let n = Repr::Rta(rta).emit(None, &mut head);
        let head = head.get(..n).unwrap_or(&[]);
        let refused = if n + a.data.len() > self.cfg.mtu {
            Some(FI_EMSGSIZE)
        } else if !port.send(a.peer, head, PacketPayload::Bytes(a.data), Token::Tx(id)) {
            Some(FI_EAGAIN)
        } else {
            None
        };
        if let Some(e) = refused {
            self.txs.remove(id);
            return Err(e);
        }
        self.peers.get(a.peer).take_msg_id();
        self.counts.atomic += 1;
        if awaited {
            port.expect(a.peer, true);
        }
        Ok(())
    }

    /// A peer's atomic whose turn has come.
    pub(super) fn atomic_request(
        &mut self,
        from: PeerId,
        r: &Rta,
        data: &[u8],
        port: &mut impl Port,
    ) {
        let mut former = core::mem::take(&mut self.former);
        former.clear();
        let done = port.atomic(r, data, &mut former);
        match (r.kind, done) {
            (RtaKind::Write, Ok(())) => {}
            (RtaKind::Write, Err(f)) => crate::warn_limited!(
                FI_LOG_EP_DATA,
                "an injected atomic of a peer failed: {}",
                crate::core::errno::text(f.errno)
            ),
            (RtaKind::WriteReceipt(tx_id), Ok(())) => {
                let msg_id = r.msg_id;
                self.control_repr(from, &Repr::Receipt { tx_id, msg_id }, port);
            }
            (RtaKind::Fetch(recv_id) | RtaKind::Compare(recv_id), Ok(())) => {
                let length = former.len() as u64;
                self.answer(from, &Repr::AtomRsp { recv_id, length }, &former, port);
            }
            (RtaKind::WriteReceipt(id) | RtaKind::Fetch(id) | RtaKind::Compare(id), Err(f)) => {
                self.send_peer_error(from, id, f, port)
            }
        }
        self.former = former;
    }

    /// Stores the former values that a peer returns. The packet counts only if it has exactly as
    /// many bytes as the atomic fetches.
    pub(super) fn atomic_answer(
        &mut self,
        from: PeerId,
        id: u32,
        data: &[u8],
        port: &mut impl Port,
    ) {
        let answer = AckKind::Former(data.len() as u64);
        let awaits = |t: &&Tx| t.peer == from && t.awaits == answer;
        if let Some(t) = self.txs.get(id).filter(awaits) {
            port.store(t.ctx, 0, data);
            self.answered(from, id, answer, port);
        }
    }
}
