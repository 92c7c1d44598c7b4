//! Tables of a queue pair: requests under way, by slot, and peers, by number.

use super::super::mem::RegionRef;
use super::super::rings::{SendWqe, WqeOp};
use super::super::sys::ibv_sge;
use super::super::Handle;
use crate::device::QpAddr;
use crate::hmem::{Piece, UserMem};
use crate::transport::Completion;
use std::sync::Arc;

/// A work request under way.
#[derive(Clone, Copy)]
pub(in crate::device::verbs) struct TxSlot {
    pub done: Completion,
    pub op: WqeOp,
    /// How often the request has met "receiver not ready".
    pub tries: u8,
    /// The request has a [`TxExtra`].
    pub extra: bool,
    pub imm: Option<u32>,
    pub local: ibv_sge,
}

impl TxSlot {
    pub(in crate::device::verbs) fn new(done: Completion, op: WqeOp, local: ibv_sge) -> TxSlot {
        TxSlot {
            done,
            op,
            tries: 0,
            extra: false,
            imm: None,
            local,
        }
    }
}

/// Additional state that few requests need.
#[derive(Default)]
pub(in crate::device::verbs) struct TxExtra {
    /// A second piece of a message.
    pub more: Option<ibv_sge>,
    /// The registration made for this request.
    pub lent: Option<Arc<RegionRef>>,
    /// Where to copy the bytes of a read that arrive in the slot.
    pub back: Option<UserMem>,
}

impl TxExtra {
    pub(super) fn is_needed(&self) -> bool {
        self.more.is_some() || self.lent.is_some() || self.back.is_some()
    }
}

/// A posted receive of the application; its memory is empty if an operation record holds it.
#[derive(Clone, Copy)]
pub(in crate::device::verbs) struct PostedRecv {
    pub done: Completion,
    pub into: Piece,
}

/// Address of a peer in work requests.
#[derive(Clone, Copy)]
pub(in crate::device::verbs) struct RemoteQp {
    pub handle: Handle,
    pub qpn: u16,
    pub qkey: u32,
}

impl RemoteQp {
    /// The work request of `slot` to this peer.
    #[inline(always)]
    pub(in crate::device::verbs) fn request(&self, slot: u16, t: &TxSlot) -> SendWqe<'static> {
        SendWqe {
            op: t.op,
            slot,
            to_qpn: self.qpn,
            qkey: self.qkey,
            ah: self.handle.number,
            imm: t.imm,
            local: t.local,
            more: None,
            inline: None,
            remote: (t.done.remote.addr, t.done.remote.key as u32),
        }
    }
}

/// The peers of a queue pair.
#[derive(Default)]
pub(in crate::device::verbs) struct RemoteQps {
    list: Vec<Option<RemoteQp>>,
    addrs: Vec<QpAddr>,
}

impl RemoteQps {
    /// Address of a peer in work requests; `None` when the peer is not connected.
    #[inline(always)]
    pub(in crate::device::verbs) fn get(&self, peer: u32) -> Option<&RemoteQp> {
        self.list.get(peer as usize)?.as_ref()
    }

    /// Endpoint address of a peer.
    pub(super) fn addr(&self, peer: u32) -> Option<QpAddr> {
        self.get(peer)?;
        self.addrs.get(peer as usize).copied()
    }

    pub(super) fn set(&mut self, peer: u32, at: &QpAddr, handle: Handle) {
        let i = peer as usize;
        if self.list.len() <= i {
            self.list.resize(i + 1, None);
            self.addrs.resize(i + 1, QpAddr::default());
        }
        if let (Some(to), Some(addr)) = (self.list.get_mut(i), self.addrs.get_mut(i)) {
            *to = Some(RemoteQp {
                handle,
                qpn: at.qpn,
                qkey: at.qkey,
            });
            *addr = *at;
        }
    }

    /// Removes a peer and returns its address.
    pub(super) fn remove(&mut self, peer: u32) -> Option<QpAddr> {
        let addr = self.addr(peer);
        if let Some(to) = self.list.get_mut(peer as usize) {
            *to = None;
        }
        addr
    }
}
