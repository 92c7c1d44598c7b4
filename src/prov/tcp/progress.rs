//! Progress of a domain's connections.
//!
//! The connection that received last is read first, by the system call that also returns its bytes;
//! the other sockets are polled every few calls.

use super::conn::{accept, expire, flush, receive, writable};
use super::state::{TcpState, NO_CONN};

/// Calls per poll of all sockets; the other calls read the last connection only.
const ALONE: u32 = 4;

/// Takes in what has arrived, and sends what waits.
#[inline]
pub(crate) fn progress(s: &mut TcpState) {
    s.turns = s.turns.wrapping_add(1);
    if s.last_active != NO_CONN {
        let last_active = s.last_active;
        let any = receive(s, last_active);
        let every = if any { 4 * ALONE } else { ALONE };
        if s.full == 0 && !s.turns.is_multiple_of(every) {
            return;
        }
    }
    look(s);
}

/// Handles every socket that is ready; returns whether there was one.
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
            s.last_active = id;
        }
    }
    let any = !ready.is_empty();
    s.ready = ready;
    if !s.making.is_empty() {
        expire(s);
    }
    any
}

/// Makes all possible progress once, before a caller blocks. Returns whether further progress
/// depends on the sockets only.
pub(crate) fn settle(s: &mut TcpState) -> bool {
    look(s);
    for id in s.conns.select(|c| c.queued() > 0) {
        flush(s, id);
    }
    s.making.is_empty()
}
