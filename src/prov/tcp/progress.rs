//! Progress of a domain's connections.
//!
//! The connection that received last is read at each call, by the system call that also returns its
//! bytes: between two hosts of one machine a ping-pong of 8 bytes takes 3.26 us so, and 3.59 when
//! epoll(7) is asked first. Every [`ALONE`] calls, and when the connection has had nothing for
//! [`MISSES`] of them, epoll reports which connections have bytes. Epoll is also used while much
//! arrives: a read of an empty socket takes its lock, and a packet that arrives meanwhile has to
//! wait, where otherwise its sender's processor delivers it.
//!
//! Progress is of all connections, whichever queue is read. Reads of other queues shortly after it
//! make none: of sixty queues that are read in turn a few call the kernel.

use super::bursts;
use super::conn::{accept, expire, flush, receive, resume_listeners, retake, writable};
use super::state::{TcpState, NO_CONN};
use crate::device::host::now;
use crate::prov::reports::PolledObject;

/// Calls per poll of all sockets while one connection is read at each call.
const ALONE: u32 = 16;
/// Calls without bytes after which a connection is no longer read at each call.
pub(super) const MISSES: u32 = 256;
/// Longest wait in milliseconds while connections are being made, or cannot be taken in, or
/// messages wait for memory: all have deadlines.
const MAKING_MS: i32 = 10;
/// Bytes of one system call from which on much arrives.
pub(super) const MUCH: usize = 6 << 10;

/// Nanoseconds after progress within which a read of another queue makes none.
const SOON_NS: u64 = 500;

/// As [`progress`], for a read of a queue or counter.
#[inline]
pub(crate) fn progress_for(s: &mut TcpState, reader: PolledObject) {
    if s.reader == Some(reader) {
        return progress(s);
    }
    if now().saturating_sub(s.progressed_at) >= SOON_NS {
        progress(s);
        s.reader = Some(reader);
        s.progressed_at = now();
    }
}

/// Takes in what has arrived, and sends what waits.
#[inline]
pub(crate) fn progress(s: &mut TcpState) {
    s.turns = s.turns.wrapping_add(1);
    s.bursts.answering();
    read(s);
    bursts::answered(s);
}

/// Reads the connection that received last, and now and then all of them.
#[inline]
fn read(s: &mut TcpState) {
    if s.last_active != NO_CONN {
        let last_active = s.last_active;
        if !receive(s, last_active) {
            s.misses = s.misses.saturating_add(1);
        }
        if s.misses >= MISSES {
            s.last_active = NO_CONN;
        }
        if s.full == 0 && !s.turns.is_multiple_of(ALONE) {
            return;
        }
    }
    poll_sockets(s);
}

/// Handles every socket that is ready; returns whether there was one.
pub(crate) fn poll_sockets(s: &mut TcpState) -> bool {
    let mut ready = core::mem::take(&mut s.ready);
    s.poller.poll(&mut ready);
    for r in &ready {
        let id = r.name as u32;
        if r.name >> 32 != 0 {
            accept(s, id);
            continue;
        }
        if r.write {
            writable(s, id);
        }
        if r.read && receive(s, id) && s.misses < MISSES {
            s.last_active = id;
        }
    }
    s.delivered = false;
    let any = !ready.is_empty();
    s.ready = ready;
    if !s.making.is_empty() {
        expire(s);
    }
    if !s.paused_listeners.is_empty() {
        resume_listeners(s);
    }
    if !s.starved.is_empty() {
        retake(s);
    }
    any
}

/// Makes all possible progress once, before a caller blocks. Returns for how many milliseconds it
/// may at most (negative: until a socket is ready).
pub(crate) fn settle(s: &mut TcpState) -> i32 {
    poll_sockets(s);
    bursts::end(s);
    if s.full > 0 {
        for id in s.conns.select(|c| c.queued() > 0) {
            flush(s, id);
        }
    }
    match s.making.is_empty() && s.paused_listeners.is_empty() && s.starved.is_empty() {
        true => -1,
        false => MAKING_MS,
    }
}
