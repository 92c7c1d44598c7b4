//! What a queue pair remembers of requests under way, by slot, and of its peers, by number.

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
    /// How often its peer was not ready for it.
    pub tries: u8,
    /// It has a [`TxExtra`].
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

/// What few requests have.
#[derive(Default)]
pub(in crate::device::verbs) struct TxExtra {
    /// A second piece of a message.
    pub more: Option<ibv_sge>,
    /// Memory registered for it alone.
    pub lent: Option<Arc<RegionRef>>,
    /// Where a read's bytes belong that came into the slot.
    pub back: Option<UserMem>,
}

impl TxExtra {
    pub(super) fn is_needed(&self) -> bool {
        self.more.is_some() || self.lent.is_some() || self.back.is_some()
    }
}

/// A receive of the application that is posted, and its memory, if nobody else knows.
#[derive(Clone, Copy)]
pub(in crate::device::verbs) struct PostedRecv {
    pub done: Completion,
    pub into: Piece,
}

/// A peer, as requests name it.
#[derive(Clone, Copy)]
pub(in crate::device::verbs) struct RemoteQp {
    pub handle: Handle,
    pub qpn: u16,
    pub qkey: u32,
}

impl RemoteQp {
    /// The request in `slot`, to this peer.
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
    /// How a peer is reached.
    #[inline(always)]
    pub(in crate::device::verbs) fn get(&self, peer: u32) -> Option<&RemoteQp> {
        self.list.get(peer as usize)?.as_ref()
    }

    /// Its address.
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

    /// Takes a peer out: its address.
    pub(super) fn remove(&mut self, peer: u32) -> Option<QpAddr> {
        let addr = self.addr(peer);
        if let Some(to) = self.list.get_mut(peer as usize) {
            *to = None;
        }
        addr
    }
}
