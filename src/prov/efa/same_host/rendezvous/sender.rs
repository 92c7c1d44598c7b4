//! The sender of long messages (see `rendezvous`): writes them eagerly, lends them to be fetched,
//! or writes them when a CTS asks for them.

use super::port::{ArrivedRecord, PeerRings, RendezvousPort};
use super::rts::RtsWords;
use super::{copy_chunk, plain, Rendezvous};
use super::{CTS_IS_FIN, FIRST, LOST, SHM_EAGER_MAX};
use crate::hmem::{self, Piece, UserMem};
use crate::proto::{Failure, PeerId};
use crate::prov::efa::same_host::cost_model::CopyMethod;
use crate::prov::efa::same_host::POLL_BUDGET;
use crate::shm::kind;
use crate::shm::SplitCopy;
use crate::transport::{Completion, Flow, Verdict};

/// Bytes of a DATA record.
const REST: usize = 32 << 10;
/// Longest message of device memory that is copied by both sides, even if the receiver could open
/// the memory: GDRCopy copies as much by the processor.
const SHARED_MIN: usize = 3072;
/// Messages to a peer that could not open the memory, after which one is announced by its handle
/// again.
const UNOPENED: u32 = 256;

/// Copy methods of messages that need no CTS: eager, or fetched.
const EAGER_OR_FETCHED: [CopyMethod; 2] = [CopyMethod::Ring, CopyMethod::Cma];

/// Tag and data of a message.
type Words = (Option<u64>, Option<u64>);

/// A message that is being sent.
pub(super) struct SendState {
    mem: UserMem,
    done: Completion,
    sent: usize,
    /// The receiver's number of the message, from its CTS.
    there: Option<u32>,
    /// Chunks of a split copy that were copied from here.
    helped: u32,
    /// It ends with a FIN, not when its last byte is written.
    delivery: bool,
}

impl SendState {
    fn new(mem: UserMem, (done, delivery): (Completion, bool), sent: usize) -> SendState {
        SendState {
            mem,
            done,
            sent,
            there: None,
            helped: 0,
            delivery,
        }
    }

    fn ends<P: RendezvousPort>(self, result: Result<(), Failure>, port: &mut P) {
        port.sent(&self.done, result);
    }
}

impl Rendezvous {
    /// Whether a message to this peer is under way.
    pub(crate) fn sends_to(&self, peer: PeerId) -> bool {
        self.sending.iter().any(|(_, o)| o.done.peer == peer)
    }

    /// Sends a message of one piece of memory that is to be fetched, as a whole; else
    /// `Unsupported`, and nothing is done.
    pub(crate) fn lend<R: PeerRings>(
        &mut self,
        rings: &mut R,
        words: Words,
        mem: Piece,
        done: Completion,
    ) -> Verdict {
        let len = mem.len();
        let fetched = match len <= SHM_EAGER_MAX {
            true => self.eager_costs.next(len, &EAGER_OR_FETCHED) == CopyMethod::Cma,
            false => self.fetched,
        };
        match fetched {
            true => self.announce(rings, words, mem, (done, false)),
            false => Verdict::Unsupported,
        }
    }

    /// Sends the RTS of a message that is to be fetched.
    fn announce<R: PeerRings>(
        &mut self,
        rings: &mut R,
        words: Words,
        mem: Piece,
        (done, delivery): (Completion, bool),
    ) -> Verdict {
        let (peer, len) = (done.peer, mem.len());
        if !rings.reaches_memory(peer) {
            return Verdict::Unsupported;
        }
        let state = SendState::new(mem.into(), (done, delivery), 0);
        let number = self.sending.insert(state);
        let asked = Some((number, mem.addr() as u64));
        let rts = RtsWords::new(words, len, asked, rings.now()).delivery(delivery);
        let sent = rings.send_words(peer, rts.what, rts.as_slice());
        if sent == Verdict::Done {
            self.eager_costs.count_use(len);
            return Verdict::Queued;
        }
        self.sending.remove(number);
        sent
    }

    /// As [`Rendezvous::handle_fin`], for a message without an operation record: returns its
    /// completion. `None`, and nothing done, when the general path has to handle the FIN.
    pub(crate) fn ended(
        &mut self,
        from: PeerId,
        record: &impl ArrivedRecord,
    ) -> Option<Completion> {
        let o = self.answers(from, record, |o| o.done.op().is_none())?;
        Some(o.done)
    }

    /// Removes the message that a FIN names, if it went to that peer and `such` accepts it.
    fn answers(
        &mut self,
        from: PeerId,
        record: &impl ArrivedRecord,
        such: impl FnOnce(&SendState) -> bool,
    ) -> Option<SendState> {
        let ours = record.word(0) as u32;
        self.sending
            .get(ours)
            .filter(|o| o.done.peer == from && such(o))?;
        let o = self.sending.remove(ours)?;
        self.ready.retain(|n| *n != ours);
        // After a CTS it came through the ring.
        if o.mem.is_host() && o.there.is_none() {
            self.learn(o.done.len, Some([16, 24].map(|off| record.word(off))));
        }
        Some(o)
    }

    /// Takes from a FIN what messages like this one cost the receiver by each method; or, from a
    /// CTS, that it was not fetched.
    fn learn(&mut self, len: usize, fetched: Option<[u64; 2]>) {
        if len > SHM_EAGER_MAX {
            self.fetched = fetched.is_some();
        } else if let Some([ring, fetched]) = fetched {
            for (way, cost) in [(CopyMethod::Ring, ring), (CopyMethod::Cma, fetched)] {
                if cost > 0 {
                    self.eager_costs.set_cost(way, len, cost);
                }
            }
        }
    }

    /// Sends a message of which `done` is reported; with `delivery`, when it is in the receiver's
    /// memory. `NoResources` and `Unsupported` change nothing.
    pub(crate) fn send<P: RendezvousPort>(
        &mut self,
        port: &mut P,
        words: Words,
        mem: &UserMem,
        (done, delivery): (Completion, bool),
    ) -> Verdict {
        let peer = done.peer;
        if let Some(sent) = self.share(port, words, mem, (done, delivery)) {
            return sent;
        }
        let Some(rings) = port.rings() else {
            return Verdict::Unsupported;
        };
        let len = mem.len();
        let place = mem.one().filter(|_| rings.reaches_memory(peer));
        if let Some(p) = place {
            let sent = match delivery {
                false => self.lend(rings, words, p, done),
                true if len > FIRST => self.announce(rings, words, p, (done, true)),
                true => Verdict::Unsupported,
            };
            if sent != Verdict::Unsupported {
                return sent;
            }
        }
        let whole = len <= SHM_EAGER_MAX && !delivery;
        if whole && !rings.check_room(peer, len.div_ceil(FIRST), FIRST + 32) {
            return Verdict::NoResources;
        }
        let now = rings.now();
        if whole {
            let rts = RtsWords::new(words, len, None, now);
            let mut sent = Verdict::NoResources;
            let mut all = |m: &UserMem| sent = write_eager(port, peer, &rts, m);
            match mem.is_host() {
                true => all(mem),
                false => {
                    // One copy by the device. If that fails, the copies for the records say so.
                    let copied = hmem::read_staged(mem, |host, _| {
                        all(&host.into());
                        true
                    });
                    if !copied {
                        all(mem);
                    }
                }
            }
            if sent == Verdict::Done {
                self.eager_costs.count_use(len);
                port.sent(&done, Ok(()));
            }
            return sent;
        }
        let state = SendState::new(*mem, (done, delivery), FIRST);
        let number = self.sending.insert(state);
        let at = place.map_or(0, |p| p.addr() as u64);
        let rts = RtsWords::new(words, len, Some((number, at)), now).delivery(delivery);
        let sent = port.send(peer, rts.what, rts.as_slice(), &mem.part(0, FIRST));
        if sent != Verdict::Done {
            self.sending.remove(number);
            return sent;
        }
        self.eager_costs.count_use(len);
        Verdict::Queued
    }

    /// As [`Rendezvous::send`], one piece of device memory that the receiver may open; `None`, and
    /// nothing done, for any other.
    fn share<P: RendezvousPort>(
        &mut self,
        port: &mut P,
        words: Words,
        mem: &UserMem,
        (done, delivery): (Completion, bool),
    ) -> Option<Verdict> {
        if mem.is_host() {
            return None;
        }
        let p = mem.single().filter(|p| p.len() > SHARED_MIN)?;
        let asks_instead = |u: &&mut (PeerId, u32)| u.0 == done.peer;
        match self.unopened.iter_mut().find(asks_instead) {
            Some((_, left)) if *left > 0 => {
                *left -= 1;
                return None;
            }
            _ => self.unopened.retain(|u| u.0 != done.peer),
        }
        let handle = port.share(&p).ok()?;
        let now = port.rings()?.now();
        let state = SendState::new(*mem, (done, delivery), 0);
        let number = self.sending.insert(state);
        let rts = RtsWords::shared(words, mem.len(), number, (p.kind(), handle), now);
        let rts = rts.delivery(delivery);
        let sent = port.send(done.peer, rts.what, rts.as_slice(), &UserMem::EMPTY);
        if sent == Verdict::Done {
            return Some(Verdict::Queued);
        }
        self.sending.remove(number);
        Some(sent)
    }

    /// Writes DATA records of messages that have a CTS, as far as there is room.
    pub(super) fn write_data<P: RendezvousPort>(&mut self, port: &mut P) {
        let mut left = POLL_BUDGET;
        let mut full = None;
        let mut at = 0;
        self.more = false;
        while let Some(n) = self.ready.get(at).copied() {
            let Some(o) = self.sending.get_mut(n) else {
                self.ready.remove(at);
                continue;
            };
            let mem = o.mem;
            let head = [u64::from(o.there.unwrap_or(u32::MAX))];
            if !mem.is_host() && full != Some(o.done.peer) {
                let part = mem.part(o.sent, left);
                let sent = write_staged_data(port, o.done.peer, &head, &part);
                o.sent += sent;
                left -= sent;
            }
            while full != Some(o.done.peer) && o.sent < mem.len() && left > 0 {
                let part = mem.part(o.sent, REST);
                if port.send(o.done.peer, plain(kind::DATA), &head, &part) == Verdict::Done {
                    o.sent += part.len();
                    left = left.saturating_sub(part.len());
                } else {
                    full = Some(o.done.peer);
                }
            }
            if o.sent >= mem.len() {
                self.ready.remove(at);
                if o.delivery {
                    continue;
                }
                if let Some(o) = self.sending.remove(n) {
                    o.ends(Ok(()), port);
                }
            } else if left == 0 {
                self.more = true;
                return;
            } else {
                at += 1;
            }
        }
    }

    /// Handles a CTS: the receiver requests the data of message `ours`, whose number there is
    /// `theirs`. Where no ring leads back, `theirs` may stand for a FIN.
    pub(crate) fn handle_cts<P: RendezvousPort>(
        &mut self,
        from: PeerId,
        ours: u32,
        theirs: u32,
        port: &mut P,
    ) {
        let ends = theirs == CTS_IS_FIN;
        let waits =
            |o: &&mut SendState| o.done.peer == from && (o.there.is_none() || ends && o.delivery);
        let Some(o) = self.sending.get_mut(ours).filter(waits) else {
            return;
        };
        if ends {
            self.ready.retain(|n| *n != ours);
            if let Some(o) = self.sending.remove(ours) {
                o.ends(Ok(()), port);
            }
            return;
        }
        o.there = Some(theirs);
        self.ready.push_back(ours);
        let (len, host) = (o.done.len, o.mem.is_host());
        if host {
            self.learn(len, None);
        } else if o.sent == 0 && self.unopened.iter().all(|u| u.0 != from) {
            // The receiver could not open the memory.
            self.unopened.push((from, UNOPENED));
        }
    }

    /// A FIN has arrived: ends the message.
    pub(super) fn handle_fin<P: RendezvousPort>(
        &mut self,
        from: PeerId,
        record: &impl ArrivedRecord,
        port: &mut P,
    ) {
        if let Some(o) = self.answers(from, record, |_| true) {
            o.ends(Ok(()), port);
        }
    }

    /// Handles a SPLIT_COPY: copies chunks of our message to the receiver's memory. `Deferred`:
    /// there may be more chunks.
    pub(super) fn handle_split_copy<P: RendezvousPort>(
        &mut self,
        from: PeerId,
        record: &impl ArrivedRecord,
        port: &mut P,
    ) -> Flow {
        let [which, share, at, how, room] = [0, 8, 16, 24, 32].map(|off| record.word(off));
        let (ours, theirs) = (which as u32, which >> 32);
        let (chunk, got) = (how as u32 as usize, (how >> 32) as usize);
        let share = SplitCopy::of(share);
        let now = self.chunks_now(chunk);
        let o = self.sending.get_mut(ours).filter(|o| o.done.peer == from);
        let Some((o, rings)) = o.zip(port.rings()) else {
            return Flow::Taken;
        };
        let Some(mem) = o.mem.one().filter(|_| rings.reaches_memory(from)) else {
            return Flow::Taken;
        };
        let rest: Piece = mem.part(got, room as usize);
        let copy = |c| copy_chunk(rings, (from, true), (rest, at), (c, chunk));
        // A chunk is copied once, whatever the peer writes into the word of the transfer.
        let left = share.chunks.saturating_sub(o.helped);
        let most = left.min(now);
        let how = match record.copy_split(share, most, copy) {
            Some(n) => {
                o.helped = o.helped.saturating_add(n);
                self.copied = self
                    .copied
                    .saturating_add((n as usize).saturating_mul(chunk));
                if left > 0 && n == most {
                    return Flow::Deferred;
                }
                0
            }
            None => LOST,
        };
        if how == LOST || o.helped > 0 {
            self.send_control(from, kind::SPLIT_DONE, [theirs, how, 0, 0, 0], port);
        }
        Flow::Taken
    }

    /// A peer is gone: messages that it has not taken fail.
    pub(super) fn sends_fail<P: RendezvousPort>(
        &mut self,
        peer: PeerId,
        why: Failure,
        port: &mut P,
    ) {
        self.unopened.retain(|u| u.0 != peer);
        let out = self.sending.select(|o| o.done.peer == peer);
        self.ready.retain(|n| !out.contains(n));
        for n in out {
            if let Some(o) = self.sending.remove(n) {
                o.ends(Err(why), port);
            }
        }
    }
}

/// Writes all of a message that needs no CTS; there is room for all its records.
fn write_eager<P: RendezvousPort, const N: usize>(
    port: &mut P,
    to: PeerId,
    rts: &RtsWords<N>,
    mem: &UserMem,
) -> Verdict {
    let sent = port.send(to, rts.what, rts.as_slice(), &mem.part(0, FIRST));
    if sent != Verdict::Done {
        return sent;
    }
    let mut off = FIRST;
    while off < mem.len() {
        let part = mem.part(off, FIRST);
        let sent = port.send(to, plain(kind::EAGER_FRAG), &[], &part);
        debug_assert_eq!(sent, Verdict::Done, "there was room");
        off += FIRST;
    }
    Verdict::Done
}

/// Writes DATA records of device memory, as many as fit now, which the device copies to host memory
/// first, all at once. Returns how many bytes were written.
fn write_staged_data<P: RendezvousPort>(
    port: &mut P,
    to: PeerId,
    head: &[u64],
    part: &UserMem,
) -> usize {
    let fits = |n: &usize| {
        let rings = port.rings();
        rings.is_some_and(|r| r.check_room(to, *n, REST + 32))
    };
    let most = part.len().div_ceil(REST);
    let Some(n) = (1..=most).rev().find(fits) else {
        return 0;
    };
    let mut sent = 0;
    hmem::read_staged(&part.part(0, n * REST), |host, _| {
        let mut off = 0;
        while off < host.len() {
            let now = UserMem::from(host.part(off, REST));
            if port.send(to, plain(kind::DATA), head, &now) != Verdict::Done {
                return false;
            }
            off += now.len();
            sent += now.len();
        }
        true
    });
    sent
}
