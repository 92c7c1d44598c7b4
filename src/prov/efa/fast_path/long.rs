//! Long messages of fast-path calls to peers on the same host that the receiver fetches
//! (`rendezvous`): an RTS, one copy, a FIN.

use super::poll::{ordinary, received};
use crate::core::Result;
use crate::proto::{PeerId, RecvQueue};
use crate::prov::contract::{Entry, FastSend};
use crate::prov::efa::av::Av;
use crate::prov::efa::domain::State;
use crate::prov::efa::same_host::rendezvous::{announced, Rendezvous};
use crate::prov::reports::completion::{reported, send_flags};
use crate::shm::{Record, TxRings};
use crate::transport::{Completion, RemoteAddr, Verdict};
use crate::types::*;

/// As [`super::send`], a message that is too long for one record.
#[inline(never)]
pub(crate) fn send(s: &mut State, id: u32, p: &FastSend) -> Option<Result<()>> {
    let ep = s.eps.get_mut(id)?;
    let fast = &ep.fast;
    let [msg, tagged] = fast.longest;
    let longest = if p.tag.is_some() { tagged } else { msg };
    let (context, len) = (p.context?, p.data.len());
    if len > longest {
        return None;
    }
    let peer = s.avs.get(fast.av)?.known(p.to)?;
    let live = ep.live.as_mut()?;
    let done = Completion {
        context,
        len,
        flags: send_flags(p.tag.is_some()),
        peer,
        report: reported(fast.sent_to.is_some()),
        remote: RemoteAddr::default(),
    };
    let rings = &mut live.shm_ep.as_mut()?.tx;
    let rendezvous = &mut live.rendezvous;
    match rendezvous.lend(rings, (p.tag, p.cq_data), p.data, done) {
        Verdict::Unsupported => None,
        Verdict::NoResources => Some(Err(FI_EAGAIN)),
        Verdict::Done | Verdict::Queued => Some(Ok(())),
    }
}

/// As [`super::poll::message`], one that waits to be fetched: it is, soon, together with those
/// behind it. Whether `each` takes more; `None`, and it stays where it is: it takes more than that,
/// once what has gathered is fetched.
#[inline(never)]
pub(super) fn gather(
    record: &Record,
    from: PeerId,
    (rq, av): (&mut RecvQueue, Option<&Av>),
    (rendezvous, rings): (&mut Rendezvous, &mut TxRings),
    mut each: impl FnMut(Entry, bool) -> bool,
) -> Option<bool> {
    let m = announced(record).filter(|m| ordinary(m.head.tag))?;
    let mut more = true;
    if !rendezvous.gathers_more(from, m.len) {
        more = bring(av, (rendezvous, rings), &mut each);
    }
    if !rendezvous.gather(rings, from, &m, rq) {
        return None;
    }
    // Nothing shall be left when `each` has enough.
    if !rendezvous.gathers_more(from, m.len) {
        more = bring(av, (rendezvous, rings), each);
    }
    Some(more)
}

/// Fetches what has gathered; whether `each` takes more.
#[inline(never)]
pub(super) fn bring(
    av: Option<&Av>,
    (rendezvous, rings): (&mut Rendezvous, &mut TxRings),
    mut each: impl FnMut(Entry, bool) -> bool,
) -> bool {
    let mut more = true;
    rendezvous.bring(rings, |from, r, len, words| {
        let src = av.map_or(FI_ADDR_NOTAVAIL, |av| av.reverse(from));
        more = each(received(r, len, words, src), r.report);
    });
    more
}
