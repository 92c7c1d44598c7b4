//! Receives that wait for messages, and messages that wait for receives.
//!
//! An endpoint has one queue; several endpoints share the queue of a shared receive context. A
//! posted receive is a [`RecvSlot`]. A multi-receive buffer (FI_MULTI_RECV) keeps its place among
//! the receives and hands out its space piece by piece. Messages without a receive (`unexpected`)
//! are kept whole; their bytes are counted, so that the provider can throttle senders.

use super::matching::{Id, Matcher, Posted};
use super::unexpected::{PeekResult, UnexpectedMessage, WholeMessage};
use super::PeerId;
use crate::core::hash::ByWords;
use crate::core::slab::Slab;
use crate::hmem::Piece;
use std::collections::HashMap;

/// Stands for no operation: what is received for it is dropped.
pub const NO_CTX: u32 = u32::MAX;

/// Bytes counted for a kept packet, in addition to its length.
const PART_OVERHEAD: usize = 64;

/// The bit of a tag that marks messages of collective operations, at endpoints that have them.
pub const COLLECTIVE_TAG: u64 = 1 << 63;

/// Arguments of [`RecvQueue::post`].
#[derive(Clone, Copy, Debug)]
pub struct RecvArgs {
    /// Source, or [`super::ANY`].
    pub src: PeerId,
    pub ctx: u32,
    pub len: u64,
    pub tagged: bool,
    pub tag: u64,
    pub ignore: u64,
    /// With FI_MULTI_RECV: the buffer is released when fewer bytes than this are left
    /// (FI_OPT_MIN_MULTI_RECV).
    pub multi: Option<u64>,
}

impl RecvArgs {
    fn full_tag(&self) -> Option<u64> {
        self.tagged.then_some(self.tag)
    }
}

/// A receive into one piece of memory, without per-operation state: it becomes an operation of the
/// provider only when its message needs one.
#[derive(Debug, Clone, Copy)]
pub struct RecvEntry {
    pub context: usize,
    pub into: Piece,
    /// A successful receive writes a completion.
    pub report: bool,
    pub tagged: bool,
}

/// A [`RecvEntry`] with its match criteria.
#[derive(Debug, Clone, Copy)]
pub struct RecvEntryMatch {
    pub what: RecvEntry,
    pub src: PeerId,
    pub tag: u64,
}

#[derive(Debug, Clone, Copy)]
enum RecvSlot {
    One { ctx: u32, len: u64 },
    Multi(u32),
    RecvEntry(RecvEntry),
}

/// Fills unused slots of the [`Fifo`](crate::core::fifo::Fifo), which are never read.
impl Default for RecvSlot {
    fn default() -> RecvSlot {
        RecvSlot::Multi(u32::MAX)
    }
}

#[derive(Debug)]
struct Multi {
    ctx: u32,
    len: u64,
    used: u64,
    least: u64,
    /// Messages that are arriving in the buffer.
    live: u32,
    /// No further message gets in.
    closed: bool,
}

/// The part of a receive's buffer that a message is stored in.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The receive, the offset in its buffer, and the bytes available from there on.
    pub ctx: u32,
    pub base: u64,
    pub room: u64,
    multi: Option<u32>,
}

impl Place {
    /// The whole buffer of a receive.
    pub fn whole(ctx: u32, len: u64) -> Place {
        Place {
            ctx,
            base: 0,
            room: len,
            multi: None,
        }
    }

    /// No place: the message is dropped as it comes in.
    pub fn nowhere() -> Place {
        Place::whole(NO_CTX, 0)
    }
}

/// Outcome of a cancelled receive.
#[derive(Clone, Copy, Debug)]
pub enum CancelOutcome {
    /// The receive has ended; it was this operation.
    Now(u32),
    /// The receive has ended; it was not an operation yet.
    RecvEntry(RecvEntryMatch),
    /// Messages are arriving in its buffer: the receive ends with the last of them.
    Later,
}

/// See the module text.
#[derive(Debug, Default)]
pub struct RecvQueue {
    untagged: Matcher<RecvSlot, UnexpectedMessage>,
    tagged: Matcher<RecvSlot, UnexpectedMessage>,
    /// Tagged messages of collective operations, where the endpoint has them.
    collective: Option<Box<Matcher<RecvSlot, UnexpectedMessage>>>,
    multis: Slab<Multi>,
    /// Messages set aside by FI_CLAIM, by the context of the call.
    claimed: HashMap<usize, UnexpectedMessage>,
    bytes: usize,
}

impl RecvQueue {
    /// Keeps tagged messages with [`COLLECTIVE_TAG`] apart from now on.
    pub fn with_collectives(&mut self) {
        self.collective = Some(Box::default());
    }

    #[inline]
    fn side(&mut self, tag: Option<u64>) -> &mut Matcher<RecvSlot, UnexpectedMessage> {
        match (tag, &mut self.collective) {
            (None, _) => &mut self.untagged,
            (Some(t), Some(m)) if t & COLLECTIVE_TAG != 0 => m,
            _ => &mut self.tagged,
        }
    }

    /// Posts a receive, or returns the message that it takes at once.
    pub fn post(&mut self, a: &RecvArgs) -> Option<UnexpectedMessage> {
        if a.multi.is_none() {
            if let Some(u) = self.take(a) {
                return Some(u);
            }
        }
        let slot = match a.multi {
            None => RecvSlot::One {
                ctx: a.ctx,
                len: a.len,
            },
            Some(least) => RecvSlot::Multi(self.multis.insert(Multi {
                ctx: a.ctx,
                len: a.len,
                used: 0,
                least,
                live: 0,
                closed: false,
            })),
        };
        self.side(a.full_tag()).post(Posted {
            src: a.src,
            tag: a.tag,
            ignore: a.ignore,
            what: slot,
        });
        None
    }

    /// Posts a [`RecvEntry`]. Returns `None` and does nothing if an unexpected message matches it.
    #[inline(always)]
    pub fn post_entry(
        &mut self,
        src: PeerId,
        tag: Option<(u64, u64)>,
        what: RecvEntry,
    ) -> Option<()> {
        let (m, (tag, ignore)) = match tag {
            None => (&mut self.untagged, (0, 0)),
            Some(t) => (&mut self.tagged, t),
        };
        if m.waiting() > 0 && m.find_message(src, tag, ignore).is_some() {
            return None;
        }
        m.post(Posted {
            src,
            tag,
            ignore,
            what: RecvSlot::RecvEntry(what),
        });
        Some(())
    }

    /// Removes and returns the receive that a message matches, if that is a [`RecvEntry`] with room
    /// for `len` bytes.
    #[inline(always)]
    pub fn take_entry(&mut self, from: PeerId, tag: Option<u64>, len: usize) -> Option<RecvEntry> {
        self.take_entry_if(from, tag, len, |_| true)
    }

    /// As [`RecvQueue::take_entry`], if `fill` returns `true`, too.
    #[inline(always)]
    pub fn take_entry_if(
        &mut self,
        from: PeerId,
        tag: Option<u64>,
        len: usize,
        fill: impl FnOnce(&RecvEntry) -> bool,
    ) -> Option<RecvEntry> {
        let m = match tag {
            None => &mut self.untagged,
            Some(_) => &mut self.tagged,
        };
        m.take_if(from, tag.unwrap_or(0), |slot| match slot {
            RecvSlot::RecvEntry(s) if len <= s.into.len() && fill(s) => Some(*s),
            _ => None,
        })
    }

    /// The next unexpected message for a multi-receive buffer just posted, with its place there.
    pub fn fill(
        &mut self,
        a: &RecvArgs,
        adopt: impl FnOnce(RecvEntryMatch) -> u32,
    ) -> Option<(UnexpectedMessage, Place)> {
        let m = self.side(a.full_tag());
        let id = m.find_message(a.src, a.tag, a.ignore)?;
        let u = m.message(id)?;
        let (from, tag, len) = (u.from, u.rtm.tag, u.byte_len());
        let place = self.place(from, tag, len, adopt)?;
        let u = self.side(a.full_tag()).take_message(id)?;
        self.bytes = self.bytes.saturating_sub(u.weight());
        Some((u, place))
    }

    /// The oldest unexpected message for these arguments, taken out.
    pub fn take(&mut self, a: &RecvArgs) -> Option<UnexpectedMessage> {
        let m = self.side(a.full_tag());
        let id = m.find_message(a.src, a.tag, a.ignore)?;
        let u = m.take_message(id)?;
        self.bytes = self.bytes.saturating_sub(u.weight());
        Some(u)
    }

    /// The oldest unexpected message for a [`RecvEntry`], taken out, if it can be copied without
    /// the protocol: endpoint `ep` has received all of it, and the sender awaits no answer.
    pub fn take_whole(
        &mut self,
        ep: u32,
        src: PeerId,
        tag: Option<(u64, u64)>,
        room: usize,
    ) -> Option<WholeMessage> {
        let (m, (tag, ignore)) = match tag {
            None => (&mut self.untagged, (0, 0)),
            Some(t) => (&mut self.tagged, t),
        };
        let id = m.find_message(src, tag, ignore)?;
        m.message(id)
            .filter(|u| u.is_whole() && u.ep == ep && u.payload.len() <= room)?;
        let u = m.take_message(id)?;
        self.bytes = self.bytes.saturating_sub(u.weight());
        Some(u.into_whole())
    }

    /// Looks for the oldest unexpected message for these arguments.
    pub fn peek(&mut self, a: &RecvArgs) -> Option<PeekResult> {
        let m = self.side(a.full_tag());
        let id = m.find_message(a.src, a.tag, a.ignore)?;
        m.message(id).map(UnexpectedMessage::peeked)
    }

    /// Sets the message that [`RecvQueue::peek`] found aside for `context`.
    pub fn claim(&mut self, a: &RecvArgs, context: usize) {
        if let Some(u) = self.take(a) {
            self.bytes += u.weight();
            self.claimed.insert(context, u);
        }
    }

    /// The message set aside for `context`.
    pub fn claimed(&mut self, context: usize) -> Option<UnexpectedMessage> {
        let u = self.claimed.remove(&context)?;
        self.bytes = self.bytes.saturating_sub(u.weight());
        Some(u)
    }

    /// Cancels the first posted receive whose number `pick` accepts, or that is a [`RecvEntry`]
    /// with this context.
    pub fn cancel(
        &mut self,
        context: usize,
        mut pick: impl FnMut(u32) -> bool,
    ) -> Option<CancelOutcome> {
        let multis = &mut self.multis;
        let mut by = |s: &RecvSlot| match s {
            RecvSlot::One { ctx, .. } => pick(*ctx),
            RecvSlot::Multi(m) => multis.get(*m).is_some_and(|m| pick(m.ctx)),
            RecvSlot::RecvEntry(s) => s.context == context,
        };
        let p = match self.untagged.cancel(&mut by) {
            Some(p) => p,
            None => self.tagged.cancel(&mut by)?,
        };
        match p.what {
            RecvSlot::One { ctx, .. } => Some(CancelOutcome::Now(ctx)),
            RecvSlot::RecvEntry(what) => Some(CancelOutcome::RecvEntry(RecvEntryMatch {
                what,
                src: p.src,
                tag: p.tag,
            })),
            RecvSlot::Multi(id) => {
                let m = self.multis.get_mut(id)?;
                m.closed = true;
                if m.live > 0 {
                    return Some(CancelOutcome::Later);
                }
                self.multis.remove(id).map(|m| CancelOutcome::Now(m.ctx))
            }
        }
    }

    /// Cancels the first receive of a collective operation that `pick` accepts.
    pub fn cancel_collective(&mut self, mut pick: impl FnMut(u32) -> bool) -> Option<u32> {
        let m = self.collective.as_mut()?;
        let p = m.cancel(|s| matches!(s, RecvSlot::One { ctx, .. } if pick(*ctx)))?;
        match p.what {
            RecvSlot::One { ctx, .. } => Some(ctx),
            RecvSlot::Multi(_) | RecvSlot::RecvEntry(_) => None,
        }
    }

    /// Whether a receive names this peer as its source, or a message came from it.
    pub fn mentions(&self, peer: PeerId) -> bool {
        let collective = self.collective.as_ref();
        self.untagged.mentions(peer)
            || self.tagged.mentions(peer)
            || collective.is_some_and(|m| m.mentions(peer))
            || self.claimed.values().any(|u| u.from == peer)
    }

    /// Number of posted receives, without those of collective operations.
    pub fn posted(&self) -> usize {
        self.untagged.posted() + self.tagged.posted()
    }

    /// Number of unexpected and reserved messages.
    #[cfg(any(test, feature = "internals"))]
    pub fn unexpected(&self) -> usize {
        let collective = self.collective.as_ref().map_or(0, |m| m.waiting());
        self.untagged.waiting() + self.tagged.waiting() + collective + self.claimed.len()
    }

    /// Adds a kept further packet of a message without a receive, of `len` bytes, to the memory in
    /// use.
    pub(super) fn add_part(&mut self, len: usize) {
        self.bytes += len + PART_OVERHEAD;
    }

    /// Subtracts a packet of `len` bytes that is no longer kept.
    pub(super) fn remove_part(&mut self, len: usize) {
        self.bytes = self.bytes.saturating_sub(len + PART_OVERHEAD);
    }

    /// The peers whose messages for an endpoint without a receive take more memory than the
    /// average, and than `least` bytes.
    pub fn heaviest(&mut self, ep: u32, least: usize) -> Vec<PeerId> {
        let mut by_peer: HashMap<PeerId, usize, ByWords> = HashMap::default();
        let mut add = |u: &mut UnexpectedMessage| {
            if u.ep == ep {
                *by_peer.entry(u.from).or_default() += u.weight();
            }
        };
        self.untagged.each_message(&mut add);
        self.tagged.each_message(&mut add);
        self.claimed.values_mut().for_each(add);
        let average = by_peer.values().sum::<usize>() / by_peer.len().max(1);
        let heavy = by_peer.into_iter();
        let heavy = heavy.filter(|(_, bytes)| *bytes >= average.max(least));
        heavy.map(|(peer, _)| peer).collect()
    }

    /// Memory of messages without a receive, bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Drops the messages that arrived for an endpoint which is being closed.
    pub fn forget(&mut self, ep: u32) {
        self.retain(|u| u.ep != ep);
    }

    /// Drops the incomplete messages of a peer that is gone: the rest of them will never arrive.
    pub(super) fn forget_incomplete(&mut self, ep: u32, from: PeerId) {
        let whole =
            |u: &UnexpectedMessage| u.coming.is_some() || u.byte_len() == u.payload.len() as u64;
        self.retain(|u| u.ep != ep || u.from != from || whole(u));
    }

    /// Drops a peer's message of several requests, by its number.
    pub(super) fn forget_numbered(&mut self, ep: u32, from: PeerId, msg_id: u32) {
        let named = |u: &UnexpectedMessage| (u.ep, u.from, u.rtm.msg_id) == (ep, from, msg_id);
        self.retain(|u| !(named(u) && u.rtm.kind.several_requests()));
    }

    /// Drops the incomplete messages outside the RDM protocol whose number `pick` accepts.
    pub fn forget_partial(&mut self, ep: u32, pick: impl Fn(u32) -> bool) {
        self.retain(|u| u.ep != ep || !u.coming.is_some_and(|c| pick(c.number)));
    }

    /// Changes the number under which further packets of a peer's unexpected message are kept.
    pub(super) fn renumber(&mut self, ep: u32, from: PeerId, old: u32, new: u32) {
        let mut each = |u: &mut UnexpectedMessage| {
            let named = (u.ep, u.from, u.rtm.msg_id) == (ep, from, old);
            if named && u.rtm.kind.several_requests() {
                u.rtm.msg_id = new;
            }
        };
        self.untagged.each_message(&mut each);
        self.tagged.each_message(&mut each);
        if let Some(m) = &mut self.collective {
            m.each_message(&mut each);
        }
        self.claimed.values_mut().for_each(each);
    }

    fn retain(&mut self, keep: impl Fn(&UnexpectedMessage) -> bool) {
        let mut freed = 0;
        let mut pick = |u: &UnexpectedMessage| {
            let k = keep(u);
            freed += if k { 0 } else { u.weight() };
            k
        };
        self.untagged.retain_messages(&mut pick);
        self.tagged.retain_messages(&mut pick);
        if let Some(m) = &mut self.collective {
            m.retain_messages(&mut pick);
        }
        self.claimed.retain(|_, u| pick(u));
        self.bytes = self.bytes.saturating_sub(freed);
    }

    /// Takes the matching receive for a message and returns its place; `adopt` turns a
    /// [`RecvEntry`] into an operation.
    pub fn place(
        &mut self,
        from: PeerId,
        tag: Option<u64>,
        len: u64,
        adopt: impl FnOnce(RecvEntryMatch) -> u32,
    ) -> Option<Place> {
        // As `side`, borrowing one field only.
        let multis = &mut self.multis;
        let m = match (tag, &mut self.collective) {
            (None, _) => &mut self.untagged,
            (Some(t), Some(m)) if t & COLLECTIVE_TAG != 0 => m,
            _ => &mut self.tagged,
        };
        let id = m.find_receive(from, tag.unwrap_or(0))?;
        let slot = *m.receive_mut(id)?;
        match slot {
            RecvSlot::One { ctx, len: room } => {
                m.take_receive(id);
                Some(Place {
                    ctx,
                    base: 0,
                    room,
                    multi: None,
                })
            }
            RecvSlot::Multi(at) => Self::piece(multis, m, id, at, len),
            RecvSlot::RecvEntry(what) => {
                let p = m.take_receive(id)?;
                let (src, tag) = (p.src, p.tag);
                let ctx = adopt(RecvEntryMatch { what, src, tag });
                Some(Place::whole(ctx, what.into.len() as u64))
            }
        }
    }

    /// A piece of a multi-receive buffer. The buffer is closed when too little is left.
    fn piece(
        multis: &mut Slab<Multi>,
        m: &mut Matcher<RecvSlot, UnexpectedMessage>,
        id: Id,
        at: u32,
        len: u64,
    ) -> Option<Place> {
        let b = multis.get_mut(at)?;
        let left = b.len - b.used;
        let p = Place {
            ctx: b.ctx,
            base: b.used,
            room: left.min(len),
            multi: Some(at),
        };
        b.used += p.room;
        b.live += 1;
        if b.len - b.used < b.least.max(1) {
            b.closed = true;
            m.take_receive(id);
        }
        Some(p)
    }

    /// Marks the message at a place as ended; returns whether its receive stays posted.
    pub fn ended(&mut self, p: &Place) -> bool {
        let Some(at) = p.multi else { return false };
        let Some(b) = self.multis.get_mut(at) else {
            return false;
        };
        b.live = b.live.saturating_sub(1);
        if b.closed && b.live == 0 {
            self.multis.remove(at);
            return false;
        }
        true
    }

    /// Keeps a message for which no receive is posted.
    pub fn keep(&mut self, u: UnexpectedMessage) {
        self.bytes += u.weight();
        let tag = u.rtm.tag;
        self.side(tag).keep(u.from, tag.unwrap_or(0), u);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heaviest_peers_have_more_than_the_average() {
        let mut q = RecvQueue::default();
        for (ep, from, count) in [(1, 1, 100), (1, 2, 1), (1, 3, 1), (2, 4, 200)] {
            for n in 0..count {
                let tag = (n % 2 == 0).then_some(5);
                let bytes = Box::new([0; 1000]);
                q.keep(UnexpectedMessage::whole(ep, from, tag, None, bytes));
            }
        }
        assert_eq!(q.heaviest(1, 0), [1]);
        assert_eq!(q.heaviest(1, 1 << 20), []);
        assert_eq!(q.heaviest(2, 0), [4]);
    }

    #[test]
    fn a_receive_that_matches_no_waiting_message_is_posted() {
        let mut q = RecvQueue::default();
        for tag in [5, 6] {
            let bytes = vec![tag as u8; 10].into_boxed_slice();
            q.keep(UnexpectedMessage::whole(1, 2, Some(tag), None, bytes));
        }
        let what = RecvEntry {
            context: 0,
            into: Piece::EMPTY,
            report: true,
            tagged: true,
        };
        for tag in [5, 6] {
            assert!(q
                .post_entry(crate::proto::ANY, Some((tag, 0)), what)
                .is_none());
        }
        assert!(q.post_entry(2, Some((7, 0)), what).is_some());
        assert!(q.take_entry(2, Some(7), 0).is_some());
        // Another endpoint's, one that does not fit, and then the oldest of both.
        assert!(q.take_whole(3, 2, Some((6, 0)), 10).is_none());
        assert!(q.take_whole(1, 2, Some((6, 0)), 9).is_none());
        let u = q.take_whole(1, 2, Some((0, u64::MAX)), 10).unwrap();
        assert_eq!((u.tag, u.payload[0], q.unexpected()), (Some(5), 5, 1));
    }
}
