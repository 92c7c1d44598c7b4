//! Moving a domain's connections along.
//!
//! The connection that something came by last is looked at first, by the one system call that also
//! brings what is there; all others are asked for every few looks.

use super::conn::{accept, expire, flush, receive, writable};
use super::state::{TcpState, NO_CONN};

/// Looks at the last connection alone, in between.
const ALONE: u32 = 4;

/// Takes in what has arrived, and sends what waits.
#[inline]
pub(crate) fn progress(s: &mut TcpState) {
    s.turns = s.turns.wrapping_add(1);
    if s.hot != NO_CONN {
        let hot = s.hot;
        let any = receive(s, hot);
        let every = if any { 4 * ALONE } else { ALONE };
        if s.full == 0 && !s.turns.is_multiple_of(every) {
            return;
        }
    }
    look(s);
}

/// Looks at every socket that is ready; whether there was one.
pub(crate) fn look(s: &mut TcpState) -> bool {
    let mut ready = core::mem::take(&mut s.ready);
    s.poller.look(&mut ready);
    for r in &ready {
        let id = r.name as u32;
        if r.name >> 32 != 0 {
            accept(s, id);
            continue;
        }
        if r.write {
            writable(s, id);
        }
        if r.read && receive(s, id) {
            s.hot = id;
        }
    }
    let any = !ready.is_empty();
    s.ready = ready;
    if !s.making.is_empty() {
        expire(s);
    }
    any
}

/// Everything once, before a caller sleeps; whether nothing is left to do but what the sockets
/// tell.
pub(crate) fn settle(s: &mut TcpState) -> bool {
    look(s);
    for id in s.conns.select(|c| c.queued() > 0) {
        flush(s, id);
    }
    s.making.is_empty()
}
