//! Taking in connections at an endpoint's listener. A caller waits without a time limit until its
//! request has arrived; beyond [`pending_max`] callers the oldest one is ended.

use super::super::ep::listener_name;
use super::super::state::TcpState;
use super::end::drop_conn;
use super::input::receive;
use super::{Conn, ConnState};
use crate::core::{errno, params, Result};
use crate::device::host::descriptors_max;
use crate::device::stream::{Stream, StreamListener};
use crate::types::*;
use std::time::{Duration, Instant};

/// Accepted connections without a request yet, at one endpoint; one more ends the oldest.
const PENDING_MAX: usize = 1024;
/// How long a listener is not looked at after a connection could not be taken in.
const LISTENER_PAUSE: Duration = Duration::from_millis(20);

/// The next connection at the listener of `s`, if there is one. Where no descriptor is left,
/// `end_oldest` makes room once. Fails when none can be accepted now.
pub(crate) fn next_caller<S>(
    s: &mut S,
    listener: impl Fn(&S) -> Option<&StreamListener>,
    end_oldest: impl FnOnce(&mut S) -> bool,
) -> Result<Option<Stream>> {
    let accept = |s: &S| listener(s).map_or(Ok(None), accept_one);
    match accept(s) {
        Err(_) if end_oldest(s) => accept(s),
        accepted => accepted,
    }
}

fn accept_one(l: &StreamListener) -> Result<Option<Stream>> {
    let accepted = l.accept().inspect_err(|e| {
        crate::warn_limited!(
            FI_LOG_EP_CTRL,
            "cannot take a connection in: {} (ulimit -n)",
            errno::text(*e)
        );
    })?;
    let Some((stream, _)) = accepted else {
        return Ok(None);
    };
    stream.tune(params::tcp().nodelay);
    Ok(Some(stream))
}

/// Most callers of a listener that have not sent their request: the application, too, needs
/// descriptors.
pub(crate) fn pending_max() -> usize {
    PENDING_MAX.min(descriptors_max() / 4).max(1)
}

/// Logs that the oldest connection without a request is closed for a new one.
pub(crate) fn log_too_many(count: usize) {
    crate::warn_limited!(
        FI_LOG_EP_CTRL,
        "{count} connections are not identified yet: the oldest is ended"
    );
}

/// Ends the caller that has been without a request for longest, if there is one.
fn end_oldest_caller(s: &mut TcpState, ep: u32) -> bool {
    let Some(e) = s.eps.get_mut(ep) else {
        return false;
    };
    let count = e.callers.len();
    let Some(oldest) = e.callers.pop_front() else {
        return false;
    };
    log_too_many(count);
    drop_conn(s, oldest);
    true
}

/// Takes in connections that wait at an endpoint's listener.
pub(crate) fn accept(s: &mut TcpState, ep: u32) {
    loop {
        let next = next_caller(
            s,
            |s| s.eps.get(ep)?.listener.as_ref(),
            |s| end_oldest_caller(s, ep),
        );
        let stream = match next {
            Ok(Some(stream)) => stream,
            Ok(None) => return,
            Err(_) => return pause_listener(s, ep),
        };
        let fd = stream.fd();
        // A caller has no time limit: it may have connected and then begun to compute.
        let c = Conn::new(ep, ConnState::Accepted, Some(stream), Instant::now());
        let id = s.conns.insert(c);
        if let Some(e) = s.eps.get_mut(ep) {
            e.callers.push_back(id);
            if e.callers.len() > pending_max() {
                end_oldest_caller(s, ep);
            }
        }
        if s.poller.add(fd, u64::from(id), true, false).is_err() {
            drop_conn(s, id);
            continue;
        }
        // Most often the request has arrived already.
        receive(s, id);
    }
}

/// Does not watch an endpoint's listener for a while: new connections stay in the backlog.
fn pause_listener(s: &mut TcpState, ep: u32) {
    if let Some(l) = s.eps.get(ep).and_then(|e| e.listener.as_ref()) {
        s.poller.remove(l.fd());
        s.paused_listeners
            .push((ep, Instant::now() + LISTENER_PAUSE));
    }
}

/// Watches the listeners again whose pause is over.
pub(crate) fn resume_listeners(s: &mut TcpState) {
    let now = Instant::now();
    let (eps, poller) = (&s.eps, &s.poller);
    let watched = |ep: u32| match eps.get(ep).and_then(|e| e.listener.as_ref()) {
        Some(l) => poller.add(l.fd(), listener_name(ep), true, false).is_ok(),
        None => true,
    };
    s.paused_listeners
        .retain(|(ep, until)| *until > now || !watched(*ep));
}
