//! Long messages of peers on the same host that are fetched (`rendezvous`): an RTS, one copy, a FIN.

use super::{ordinary, received};
use crate::proto::{PeerId, RecvQueue};
use crate::prov::contract::Entry;
use crate::prov::efa::av::Av;
use crate::prov::efa::same_host::rendezvous::{announced, Rendezvous};
use crate::shm::{Record, TxRings};
use crate::types::*;

/// As [`super::message`], one that waits to be fetched: it is, soon, together with those
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
