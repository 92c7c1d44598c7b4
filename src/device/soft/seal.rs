//! Sealed datagrams: what the engine sends and receives, encrypted and authenticated by
//! AES-256-GCM.
//!
//! ```text
//!  0 magic u16  2 version u8  3 zero  4 id of the key u32  8 counter u64  16 salt of the sender
//! 32 the datagram of `packet`, encrypted; then a tag of 16 bytes
//! ```
//!
//! A sender is a queue pair. It draws a random salt when it opens, and seals with a key that is
//! derived from a shared key (`keys`) and the salt. The counter, which never repeats, is the nonce.
//! The additional authenticated data are the envelope and both socket addresses, so that a packet
//! can be neither reflected nor redirected.
//!
//! Invariants: the encrypted part of a datagram is not used before the datagram is authenticated.
//! State is stored only for senders whose session is open, or was within [`ENDED_SENDER_NS`]; each
//! datagram of such a sender is accepted once. A datagram that is replayed later opens no session,
//! because the token in the datagram has expired by then.

use super::keys::{Keys, Salt};
use super::packet::{DATA_HEAD, HEAD_MAX};
use super::sock::{Datagram, RxDatagram, BATCH};
use crate::core::hash::ByWords;
use crate::core::{process, Result};
use crate::device::gid_of;
use crate::device::host::secret;
use crate::hmem::UserMem;
use crate::types::*;
use core::ffi::c_void;
use ring::aead::{Aad, LessSafeKey, Nonce};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

/// First bytes of a sealed datagram.
pub(crate) const MAGIC: u16 = 0x5efb;
const VERSION: u8 = 1;
const ENVELOPE: usize = 32;
/// Byte offset of the key's id.
pub(crate) const KEY_AT: usize = 4;
const TAG: usize = 16;
/// Bytes that sealing adds to a datagram.
pub(crate) const OVERHEAD: usize = ENVELOPE + TAG;
/// Time for which a sender is remembered after its session, nanoseconds: longer than the lifetime
/// of a token that opens sessions (`TOKEN_LIFE_MS` in `engine::session`).
const ENDED_SENDER_NS: u64 = 30_000_000_000;
/// Words of the replay window, which covers the last `64 * (WORDS - 1)` counters; datagrams with an
/// older counter are dropped.
const WORDS: usize = 32;

/// Which counters of a sender have been received (RFC 6479).
struct ReplayWindow {
    top: u64,
    bits: [u64; WORDS],
}

impl ReplayWindow {
    /// A window in which everything up to `below` counts as seen.
    fn after(below: u64) -> ReplayWindow {
        let mut w = ReplayWindow {
            top: below,
            bits: [0; WORDS],
        };
        if below > 0 {
            w.bits = [u64::MAX; WORDS];
            let word = (below / 64) as usize % WORDS;
            if let Some(b) = w.bits.get_mut(word) {
                *b = u64::MAX >> (63 - below % 64);
            }
        }
        w
    }

    fn fresh(&self, n: u64) -> bool {
        if n > self.top {
            return true;
        }
        let bit = self.bits.get((n / 64) as usize % WORDS).copied();
        self.top - n < (WORDS as u64 - 1) * 64 && bit.is_some_and(|b| b >> (n % 64) & 1 == 0)
    }

    fn mark(&mut self, n: u64) {
        let (word, top) = (n / 64, self.top / 64);
        for clear in (top + 1..=word).rev().take(WORDS) {
            if let Some(b) = self.bits.get_mut(clear as usize % WORDS) {
                *b = 0;
            }
        }
        self.top = self.top.max(n);
        if let Some(b) = self.bits.get_mut(word as usize % WORDS) {
            *b |= 1 << (n % 64);
        }
    }
}

struct SenderState {
    key: LessSafeKey,
    window: ReplayWindow,
}

/// A sender whose session is over.
struct EndedSender {
    at: u64,
    top: u64,
}

/// Sender and counter of an authenticated datagram.
pub(crate) struct Authenticated {
    pub salt: Salt,
    counter: u64,
    /// The sender's derived key, when `Seal` has no state for the sender.
    key: Option<LessSafeKey>,
}

/// The seal of one queue pair.
pub(crate) struct Seal {
    keys: Arc<Keys>,
    me: SocketAddr,
    /// A forked copy must not seal: it would use the parent's nonces again.
    process: u64,
    salt: Salt,
    key: LessSafeKey,
    counter: u64,
    senders: HashMap<Salt, SenderState, ByWords>,
    gone: HashMap<Salt, EndedSender>,
    swept: u64,
    /// Sealed datagrams of a batch.
    buffer: Vec<u8>,
    slot: usize,
}

/// Additional authenticated data: the envelope and the addresses of both sockets.
fn context(envelope: &[u8; ENVELOPE], from: &SocketAddr, to: &SocketAddr) -> [u8; ENVELOPE + 36] {
    let mut all = [0; ENVELOPE + 36];
    all[..ENVELOPE].copy_from_slice(envelope);
    all[ENVELOPE..ENVELOPE + 16].copy_from_slice(&gid_of(from.ip()));
    all[ENVELOPE + 16..ENVELOPE + 18].copy_from_slice(&from.port().to_le_bytes());
    all[ENVELOPE + 18..ENVELOPE + 34].copy_from_slice(&gid_of(to.ip()));
    all[ENVELOPE + 34..].copy_from_slice(&to.port().to_le_bytes());
    all
}

fn nonce(counter: u64) -> Nonce {
    let mut n = [0; 12];
    n[4..].copy_from_slice(&counter.to_le_bytes());
    Nonce::assume_unique_for_key(n)
}

impl Seal {
    /// The seal of a queue pair at `me` whose packets carry up to `segment` bytes. `FI_ENOMEM`, or
    /// `FI_ENOSYS` without random numbers.
    pub(crate) fn new(keys: Arc<Keys>, me: SocketAddr, segment: usize) -> Result<Seal> {
        let mut salt = [0; 16];
        salt[..8].copy_from_slice(&secret()?.to_le_bytes());
        salt[8..].copy_from_slice(&secret()?.to_le_bytes());
        let key = keys.derive(keys.first(), &salt).ok_or(FI_EINVAL)?;
        let slot = HEAD_MAX.max(segment + DATA_HEAD) + OVERHEAD;
        let mut buffer = Vec::new();
        buffer
            .try_reserve_exact(BATCH * slot)
            .map_err(|_| FI_ENOMEM)?;
        buffer.resize(BATCH * slot, 0);
        Ok(Seal {
            keys,
            me,
            process: process::generation(),
            salt,
            key,
            counter: 0,
            senders: HashMap::default(),
            gone: HashMap::new(),
            swept: 0,
            buffer,
            slot,
        })
    }

    /// Replaces up to [`BATCH`] datagrams by sealed datagrams, which are valid until the next call.
    /// `false` in a forked copy, which must not send.
    pub(crate) fn seal(&mut self, batch: &mut [Datagram]) -> bool {
        if self.process != process::generation() {
            return false;
        }
        for (d, slot) in batch
            .iter_mut()
            .zip(self.buffer.chunks_exact_mut(self.slot))
        {
            let len = d.head_len + d.body.len();
            let (Some(whole), Some(head)) =
                (slot.get_mut(..len + OVERHEAD), d.head.get(..d.head_len))
            else {
                d.head_len = 0;
                d.body = UserMem::EMPTY;
                continue;
            };
            self.counter += 1;
            let mut envelope = [0; ENVELOPE];
            envelope[..2].copy_from_slice(&MAGIC.to_le_bytes());
            envelope[2] = VERSION;
            envelope[KEY_AT..KEY_AT + 4].copy_from_slice(&self.keys.first().to_le_bytes());
            envelope[8..16].copy_from_slice(&self.counter.to_le_bytes());
            envelope[16..].copy_from_slice(&self.salt);
            let aad = Aad::from(context(&envelope, &self.me, &d.to));
            let (front, rest) = whole.split_at_mut(ENVELOPE);
            let (text, tag) = rest.split_at_mut(len);
            let (text_head, text_body) = text.split_at_mut(d.head_len);
            front.copy_from_slice(&envelope);
            text_head.copy_from_slice(head);
            d.body.load(0, text_body);
            d.head_len = 0;
            let sealed = self
                .key
                .seal_in_place_separate_tag(nonce(self.counter), aad, text);
            let Ok(t) = sealed else {
                d.body = UserMem::EMPTY;
                continue;
            };
            tag.copy_from_slice(t.as_ref());
            // SAFETY: the buffer belongs to this seal, and is written again by the next call only.
            let m = unsafe { UserMem::new([(whole.as_ptr().cast::<c_void>(), whole.len())]) };
            d.body = m.unwrap_or(UserMem::EMPTY);
        }
        true
    }

    /// Opens a datagram in place. `None` when it is not authentic, or has come before.
    pub(crate) fn open(
        &mut self,
        g: &RxDatagram,
        arena: &mut [u8],
    ) -> Option<(RxDatagram, Authenticated)> {
        let bytes = arena.get_mut(g.at..g.at.checked_add(g.len)?)?;
        let (envelope, text) = bytes.split_first_chunk_mut::<ENVELOPE>()?;
        if envelope[..2] != MAGIC.to_le_bytes() || envelope[2] != VERSION || envelope[3] != 0 {
            return None;
        }
        let id = u32::from_le_bytes(*envelope[KEY_AT..].first_chunk()?);
        let counter = u64::from_le_bytes(*envelope[8..].first_chunk()?);
        let salt: Salt = *envelope[16..].first_chunk()?;
        let aad = Aad::from(context(envelope, &g.from, &self.me));
        let (len, key) = match self.senders.get_mut(&salt) {
            Some(s) => {
                if !s.window.fresh(counter) {
                    return None;
                }
                let len = s.key.open_in_place(nonce(counter), aad, text).ok()?.len();
                s.window.mark(counter);
                (len, None)
            }
            None => {
                if self.gone.get(&salt).is_some_and(|g| counter <= g.top) {
                    return None;
                }
                let key = self.keys.derive(id, &salt)?;
                let len = key.open_in_place(nonce(counter), aad, text).ok()?.len();
                (len, Some(key))
            }
        };
        let at = g.at + ENVELOPE;
        let from = g.from;
        Some((
            RxDatagram { from, at, len },
            Authenticated { salt, counter, key },
        ))
    }

    /// Adds a replay window for the sender of a datagram, whose session is open.
    pub(crate) fn track_sender(&mut self, o: Authenticated) {
        let Some(key) = o.key else { return };
        let mut window = ReplayWindow::after(self.gone.remove(&o.salt).map_or(0, |g| g.top));
        window.mark(o.counter);
        self.senders.insert(o.salt, SenderState { key, window });
    }

    /// Records that the session with a sender has ended.
    pub(crate) fn end_sender(&mut self, salt: &Salt, now: u64) {
        if let Some(s) = self.senders.remove(salt) {
            let top = s.window.top;
            self.gone.insert(*salt, EndedSender { at: now, top });
        }
    }

    /// Forgets senders whose recorded datagrams can no longer open a session.
    pub(crate) fn sweep(&mut self, now: u64) {
        if now.saturating_sub(self.swept) > ENDED_SENDER_NS / 8 {
            self.swept = now;
            self.gone
                .retain(|_, g| now.saturating_sub(g.at) < ENDED_SENDER_NS);
        }
    }

    /// Numbers of stored senders: with a session, and after its end.
    #[cfg(test)]
    pub(crate) fn kept(&self) -> (usize, usize) {
        (self.senders.len(), self.gone.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_counts_once() {
        // Against a model that remembers everything.
        let mut w = ReplayWindow::after(0);
        let mut seen = std::collections::HashSet::new();
        let (mut top, mut x) = (0u64, 9u64);
        for _ in 0..200_000 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(99);
            let n = match x >> 60 {
                0 => top + (x >> 20) % 5000,
                1..=7 => top + 1,
                _ => top.saturating_sub((x >> 20) % 2500),
            };
            let old = top.saturating_sub(n) >= (WORDS as u64 - 1) * 64;
            assert_eq!(
                w.fresh(n),
                n > top || !old && !seen.contains(&n),
                "{n} of {top}"
            );
            if w.fresh(n) {
                w.mark(n);
                seen.insert(n);
                top = top.max(n);
            }
        }
    }

    const TEXT: &[u8] = b"attack at dawn";

    fn seal(port: u16, key: &str) -> Seal {
        let keys = Keys::parse(&key.repeat(32)).unwrap();
        Seal::new(Arc::new(keys), SocketAddr::from(([10, 0, 0, 1], port)), 100).unwrap()
    }

    /// The sealed datagram by which `from` sends [`TEXT`] to `to`.
    fn sealed(from: &mut Seal, to: &Seal) -> Vec<u8> {
        let mut d = Datagram {
            to: to.me,
            head: [0; HEAD_MAX],
            head_len: TEXT.len(),
            body: UserMem::EMPTY,
        };
        d.head[..TEXT.len()].copy_from_slice(TEXT);
        assert!(from.seal(core::slice::from_mut(&mut d)));
        d.flatten()
    }

    /// What `to` takes a datagram for that comes from the socket at `from`.
    fn opened(to: &mut Seal, from: SocketAddr, bytes: &[u8]) -> Option<Authenticated> {
        let mut arena = bytes.to_vec();
        let len = arena.len();
        let (g, by) = to.open(&RxDatagram { from, at: 0, len }, &mut arena)?;
        assert_eq!(arena.get(g.at..g.at + g.len), Some(TEXT));
        Some(by)
    }

    #[test]
    fn a_datagram_of_a_session_is_accepted_once() {
        let (mut a, mut b) = (seal(1, "ab"), seal(2, "ab"));
        let all: Vec<_> = (0..4).map(|_| sealed(&mut a, &b)).collect();
        let by = opened(&mut b, a.me, &all[1]).unwrap();
        b.track_sender(by);
        assert!(opened(&mut b, a.me, &all[1]).is_none(), "the first again");
        // Before and after the datagram that opened the session.
        for d in [&all[2], &all[0]] {
            assert!(opened(&mut b, a.me, d).is_some());
            assert!(opened(&mut b, a.me, d).is_none(), "a replay");
        }
        b.end_sender(&a.salt, 0);
        for d in &all[..3] {
            assert!(opened(&mut b, a.me, d).is_none(), "after the session");
        }
        // A new session of the sender begins behind what it has sent.
        let by = opened(&mut b, a.me, &all[3]).unwrap();
        b.track_sender(by);
        for d in &all {
            assert!(opened(&mut b, a.me, d).is_none(), "in the next session");
        }
    }

    #[test]
    fn a_datagram_counts_between_its_two_sockets_only() {
        let (mut a, mut b, mut c) = (seal(1, "ab"), seal(2, "ab"), seal(3, "ab"));
        let d = sealed(&mut a, &b);
        assert!(opened(&mut b, c.me, &d).is_none(), "from another socket");
        assert!(opened(&mut c, a.me, &d).is_none(), "to another socket");
        let at = a.me;
        assert!(opened(&mut a, at, &d).is_none(), "back to its sender");
        assert!(opened(&mut seal(2, "cd"), at, &d).is_none(), "another key");
        assert!(opened(&mut b, at, &d).is_some());
    }

    #[test]
    fn a_replay_window_after_a_number_refuses_all_up_to_it() {
        for top in [1, 63, 64, 65, 2047, 2048, 5000] {
            let mut w = ReplayWindow::after(top);
            w.mark(top + 3);
            assert!((0..=top).all(|n| !w.fresh(n)), "{top}");
            assert!(w.fresh(top + 1) && w.fresh(top + 2) && w.fresh(top + 4));
        }
    }
}
