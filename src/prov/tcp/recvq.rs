//! Receives that wait for messages, and messages that wait for receives (fi_msg(3), fi_tagged(3)).
//!
//! `proto::matching` decides which receive takes which message. A message without a posted receive
//! is a [`SavedMsg`]: its bytes are kept as they arrive, or, where too much is kept already, left
//! in the connection, which is not read until the message has a receive.

use super::peers::TcpPeers;
use super::state::TcpState;
use crate::core::slab::Slab;
use crate::hmem::UserMem;
use crate::proto::matching::{Matcher, Posted};
use crate::proto::PeerId;
use std::collections::HashMap;

/// A receive.
#[derive(Debug)]
pub(crate) struct TcpRecv {
    pub context: usize,
    /// FI_RECV, and FI_TAGGED or FI_MSG.
    pub flags: u64,
    pub mem: UserMem,
    pub report: bool,
    /// With FI_MULTI_RECV: the buffer is given back when less than this is left of it.
    pub multi: Option<usize>,
    /// Bytes of the buffer that messages have taken.
    pub used: usize,
    /// Messages on their way into it.
    pub live: u32,
    /// No further message is matched.
    pub closed: bool,
}

/// Where a message goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecvPlace {
    pub recv: u32,
    pub mem: UserMem,
    /// Address of the first byte, also of an empty message in a multi-receive buffer.
    pub at: usize,
}

impl RecvPlace {
    /// The whole buffer of a receive.
    pub(crate) fn whole(recv: u32, mem: UserMem) -> RecvPlace {
        RecvPlace {
            recv,
            mem,
            at: mem.addr(),
        }
    }
}

/// State of a message without a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SavedState {
    /// All of it is here.
    Whole,
    /// It is coming in.
    Coming,
    /// Its bytes stay in the connection.
    Held,
    /// Its sender waits for a CTS with this number, and at its end for an acknowledgement if `ack`.
    Announced { number: u8, ack: bool },
}

/// A message without a receive.
#[derive(Debug)]
pub(crate) struct SavedMsg {
    /// Endpoint it came to.
    pub ep: u32,
    /// The connection it comes by; of no meaning once it is whole.
    pub conn: u32,
    /// Its sender, of which a reference is held.
    pub from: PeerId,
    pub tag: Option<u64>,
    pub cq_data: Option<u64>,
    pub len: u64,
    pub state: SavedState,
    pub bytes: Vec<u8>,
    /// How many of `bytes` have arrived.
    pub have: usize,
}

impl SavedMsg {
    /// Bytes that a message takes beside its payload, also in the queue's lists.
    pub(crate) const RECORD: usize = size_of::<SavedMsg>() + 128;

    /// What it counts for FI_TCP_SAVED_TOTAL.
    pub(crate) fn cost(&self) -> usize {
        Self::RECORD + self.bytes.len()
    }
}

/// Source and tag of the messages that a receive takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecvMatch {
    pub src: PeerId,
    pub tag: Option<(u64, u64)>,
}

/// Receives and messages of one endpoint or shared receive context.
#[derive(Debug, Default)]
pub(crate) struct TcpRecvQueue {
    untagged: Matcher<u32, u32>,
    tagged: Matcher<u32, u32>,
    /// Messages set aside by FI_CLAIM, by the context of the call.
    pub claimed: HashMap<usize, u32>,
    /// Bytes of messages that are kept.
    pub bytes: usize,
}

impl TcpRecvQueue {
    fn side(&mut self, tagged: bool) -> &mut Matcher<u32, u32> {
        match tagged {
            true => &mut self.tagged,
            false => &mut self.untagged,
        }
    }

    /// Posts a receive that found no message.
    pub(crate) fn post(&mut self, w: &RecvMatch, recv: u32) {
        let (tag, ignore) = w.tag.unwrap_or((0, 0));
        self.side(w.tag.is_some()).post(Posted {
            src: w.src,
            tag,
            ignore,
            what: recv,
        });
    }

    /// The place for a message of so many bytes, if a receive waits for it.
    #[inline]
    pub(crate) fn place(
        &mut self,
        recvs: &mut Slab<TcpRecv>,
        from: PeerId,
        tag: Option<u64>,
        len: u64,
    ) -> Option<RecvPlace> {
        let m = self.side(tag.is_some());
        let id = m.find_receive(from, tag.unwrap_or(0))?;
        let recv = *m.receive_mut(id)?;
        let r = recvs.get_mut(recv)?;
        r.live += 1;
        let Some(least) = r.multi else {
            m.take_receive(id);
            return Some(RecvPlace::whole(recv, r.mem));
        };
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let mem = r.mem.part(r.used, len);
        let at = match mem.is_empty() {
            true => r.mem.addr().wrapping_add(r.used),
            false => mem.addr(),
        };
        r.used += mem.len();
        if r.mem.len() - r.used < least.max(1) {
            r.closed = true;
            m.take_receive(id);
        }
        Some(RecvPlace { recv, mem, at })
    }

    /// The oldest message that a receive would take, left there.
    pub(crate) fn find(&mut self, w: &RecvMatch) -> Option<u32> {
        let (tag, ignore) = w.tag.unwrap_or((0, 0));
        let m = self.side(w.tag.is_some());
        let id = m.find_message(w.src, tag, ignore)?;
        m.message(id).copied()
    }

    /// As [`TcpRecvQueue::find`], taken out.
    pub(crate) fn take(&mut self, w: &RecvMatch) -> Option<u32> {
        let (tag, ignore) = w.tag.unwrap_or((0, 0));
        let m = self.side(w.tag.is_some());
        let id = m.find_message(w.src, tag, ignore)?;
        m.take_message(id)
    }

    /// Keeps a message.
    pub(crate) fn keep(&mut self, number: u32, m: &SavedMsg) {
        self.bytes += m.cost();
        self.side(m.tag.is_some())
            .keep(m.from, m.tag.unwrap_or(0), number);
    }

    /// Takes back the first posted receive that `pick` accepts, by its number.
    pub(crate) fn cancel(&mut self, mut pick: impl FnMut(u32) -> bool) -> Option<u32> {
        let hit = self.untagged.cancel(|r| pick(*r));
        let hit = hit.or_else(|| self.tagged.cancel(|r| pick(*r)));
        hit.map(|p| p.what)
    }

    /// Drops the messages that `pick` accepts, by their numbers.
    pub(crate) fn drop_messages(&mut self, pick: impl Fn(u32) -> bool) {
        self.untagged.retain_messages(|n| !pick(*n));
        self.tagged.retain_messages(|n| !pick(*n));
        self.claimed.retain(|_, n| !pick(*n));
    }
}

/// Forgets a message that is no longer in a queue.
pub(crate) fn forget(s: &mut TcpState, number: u32) -> Option<SavedMsg> {
    let m = s.saved.remove(number)?;
    release(&mut s.peers, &m);
    let rxq = s.eps.get(m.ep).map(|e| e.rxq);
    if let Some(q) = rxq.and_then(|q| s.rxqs.get_mut(q)) {
        q.bytes = q.bytes.saturating_sub(m.cost());
    }
    Some(m)
}

fn release(peers: &mut TcpPeers, m: &SavedMsg) {
    if let Some(saved) = peers.saved(m.from) {
        *saved = saved.saturating_sub(m.cost());
    }
    peers.release(m.from);
}
