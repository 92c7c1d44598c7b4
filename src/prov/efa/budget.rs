//! The budget of unexpected messages (`FI_EFA_UNEXPECTED_SIZE`).
//!
//! Unexpected messages take memory. Beyond the budget senders have to wait, unless posted receives
//! may match what they send. Beyond [`MUCH`] times the budget the peers wait whose messages take
//! most of it, so that one of them does not hold up the others; beyond [`TOO_MUCH`] times all of
//! them. Where the process is short of memory the peers with most of the messages wait, whatever
//! the budget; without posted receives, or when memory is nearly used up, all.

use crate::core::memory;
use crate::device::{Device, HeldPeers, QueuePair};
use crate::prov::efa::domain::State;
use crate::prov::efa::endpoint::LiveEndpoint;
use crate::wire::pkt;
use std::time::{Duration, Instant};

/// See the module text.
const MUCH: usize = 4;
const TOO_MUCH: usize = 16;
/// A peer that waits has this part of the budget at least, and as much as the average peer.
const PART: usize = 16;
/// The peers that have to wait are determined again after this time.
const AGAIN: Duration = Duration::from_millis(10);

/// Which peers have to wait before they send another message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Holding {
    #[default]
    None,
    /// Those that had most of the unexpected messages at this time.
    Some(Instant),
    All,
}

/// Whether a packet starts a message, which may be unexpected and take memory. Replies, and packets
/// of messages that have begun, are never held back.
pub(super) fn is_message(packet: &[u8]) -> bool {
    packet.first().is_some_and(|t| *t >= pkt::REQ_FIRST)
}

/// Pauses and resumes the reception of messages.
pub(super) fn watch(s: &mut State, id: u32) {
    let Some(ep) = s.eps.get(id) else { return };
    let Some(q) = s.rxqs.get(ep.rxq) else { return };
    let (bytes, budget, before) = (q.bytes(), s.budget, ep.holding);
    // The later packets of a matched message are requests, too, and must not be held back.
    let parts = || ep.live.as_ref().is_some_and(|l| l.proto.awaits_parts());
    let unmatched = || q.posted() == 0 && !parts();
    // In a process that may have little memory the multiples end below it.
    let most = |n: usize| (s.budget_most / (TOO_MUCH / n)).max(budget);
    let times = |n: usize| budget.saturating_mul(n).min(most(n));
    // An EFA adapter fills every posted buffer: only the peers of this host can be held there.
    let holds_peers = !s.dev.attr().is_hardware();
    let can = holds_peers || ep.live.as_ref().is_some_and(|l| l.shm_ep.is_some());
    let short = memory::short();
    let much = match short {
        true => budget / PART,
        false => times(MUCH),
    };
    let all = match before {
        _ if !can => false,
        _ if short => memory::is_nearly_used_up() && bytes > much || unmatched(),
        Holding::All => bytes > budget / 2 && (bytes > times(TOO_MUCH / 2) || unmatched()),
        _ => bytes > times(TOO_MUCH) || bytes > budget && unmatched(),
    };
    let now = match before {
        _ if all => Holding::All,
        _ if !can => Holding::None,
        Holding::Some(at) if bytes > much / 8 * 7 => match at.elapsed() < AGAIN {
            true => before,
            false => Holding::Some(Instant::now()),
        },
        _ if bytes > much => Holding::Some(Instant::now()),
        _ => Holding::None,
    };
    if now != before {
        hold(s, id, now);
    }
}

fn hold(s: &mut State, id: u32, now: Holding) {
    let Some(ep) = s.eps.get_mut(id) else { return };
    let Some(q) = s.rxqs.get_mut(ep.rxq) else {
        return;
    };
    let (bytes, budget) = (q.bytes(), s.budget);
    let held = match now {
        Holding::None => HeldPeers::None,
        Holding::All => HeldPeers::All,
        Holding::Some(_) => {
            let least = match memory::short() {
                true => 0,
                false => budget / PART,
            };
            let heavy = q.heaviest(id, least).into_iter();
            let addrs = heavy.filter_map(|p| s.peers.addr(p).copied());
            HeldPeers::Of(addrs.collect())
        }
    };
    let waiting = match &held {
        HeldPeers::None => None,
        HeldPeers::Of(peers) => Some(format!("the {} senders of most of them wait", peers.len())),
        HeldPeers::All => Some("all senders wait".to_string()),
    };
    if waiting.is_some() && memory::short() {
        memory::explain("senders of messages without a receive wait");
    }
    // The peers that wait are chosen anew each time: only the first choice is logged.
    let first = !matches!((ep.holding, now), (Holding::Some(_), Holding::Some(_)));
    ep.holding = now;
    if let Some(LiveEndpoint { qp, shm_ep, .. }) = &mut ep.live {
        qp.hold(is_message, held.clone());
        if let Some(h) = shm_ep {
            h.rx.hold(held);
        }
    }
    if let Some(waiting) = waiting.filter(|_| first) {
        crate::info_log!(
            crate::types::FI_LOG_EP_DATA,
            "{bytes} bytes of unexpected messages: {waiting} (FI_EFA_UNEXPECTED_SIZE {budget})"
        );
    }
}
