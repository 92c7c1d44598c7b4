//! Passive endpoints (fi_passive_ep(3)): they listen, and report requests to the application.
//!
//! Each has a thread while it listens, which accepts connections, reads the request of each, and
//! reports it. Callers that send nothing are dropped after FI_TCP_CONNECT_TIMEOUT_MS. The number of
//! such callers is limited, and that of requests which the application has not answered.

use super::conn::{control_needs, log_too_many, next_caller, pending_max, timeout};
use super::wire::{emit_control, parse_control, ByteOrder, ControlKind, CONTROL};
use crate::core::slab::Slab;
use crate::core::sockaddr as addr;
use crate::core::sync::{Mutex, MutexGuard, Unpoisoned};
use crate::core::{errno, Info, Result};
use crate::device::host;
use crate::device::poller::{Poller, Ready};
use crate::device::stream::{Stream, StreamListener, StreamRead, BACKLOG};
use crate::device::wait::{wait_readable, WaitSet};
use crate::hmem::UserMem;
use crate::prov::contract::{ConnRequest, OnRequest};
use crate::types::*;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Requests that the application has neither accepted nor rejected.
const REQUESTS_MAX: usize = 4096;

/// A request to connect, as the application holds it.
pub(crate) struct TcpRequest {
    pub stream: Stream,
    pub order: ByteOrder,
    /// Counts the request while the application holds it.
    _held: Arc<()>,
}

impl TcpRequest {
    /// fi_reject(3).
    pub(crate) fn reject(self, data: &[u8]) {
        let bytes = emit_control(ControlKind::Reject, data);
        if self.stream.send_bytes(&bytes, false) != Ok(bytes.len()) {
            crate::info_log!(FI_LOG_EP_CTRL, "fi_reject: the caller is gone");
        }
        self.stream.shut();
    }
}

/// See the module text.
pub(crate) struct TcpPassive {
    shared: Arc<PassiveShared>,
}

struct PassiveShared {
    info: Info,
    state: Mutex<PassiveState>,
    /// Wakes the thread.
    wake: WaitSet,
}

struct PassiveState {
    /// None once an endpoint has its socket.
    listener: Option<Arc<StreamListener>>,
    backlog: i32,
    /// Where requests go; set from fi_listen until the passive endpoint is closed.
    on_request: Option<OnRequest<TcpRequest>>,
}

impl PassiveShared {
    fn lock(&self) -> MutexGuard<'_, PassiveState> {
        self.state.lock().unpoisoned()
    }
}

impl TcpPassive {
    /// Binds the source address of `info`. `FI_EINVAL` for another endpoint type, `FI_EADDRINUSE`
    /// for an address that is taken.
    pub(crate) fn open(info: &Info) -> Result<TcpPassive> {
        let type_ = info.ep.as_ref().map_or(FI_EP_UNSPEC, |e| e.type_);
        if type_ != FI_EP_MSG {
            crate::warn_log!(
                FI_LOG_EP_CTRL,
                "fi_passive_ep: ep_attr->type: wanted {}, had FI_EP_MSG",
                crate::core::tostr::ep_type(type_)
            );
            return Err(FI_EINVAL);
        }
        let listener = super::ep::bind(super::ep::source(info))?;
        let state = PassiveState {
            listener: Some(Arc::new(listener)),
            backlog: BACKLOG,
            on_request: None,
        };
        Ok(TcpPassive {
            shared: Arc::new(PassiveShared {
                info: info.clone(),
                state: Mutex::new(state),
                wake: WaitSet::new()?,
            }),
        })
    }

    /// fi_listen(3). `FI_EINVAL` when it listens, or an endpoint has its address.
    pub(crate) fn listen(&self, on_request: OnRequest<TcpRequest>) -> Result<()> {
        let mut s = self.shared.lock();
        let l = s.listener.clone().filter(|_| s.on_request.is_none());
        let l = l.ok_or(FI_EINVAL)?;
        l.listen(s.backlog)?;
        let poller = Poller::new()?;
        poller.add(l.fd(), LISTENER, true, false)?;
        poller.add(self.shared.wake.fd(), WAKE, true, false)?;
        s.on_request = Some(on_request);
        let mut thread = ListenThread {
            shared: Arc::clone(&self.shared),
            poller,
            listener: l,
            pending: Slab::default(),
            held: Arc::new(()),
        };
        let started = host::start(c"fi-listen", move || thread.run());
        if started.is_err() {
            s.on_request = None;
        }
        started
    }

    /// Ends listening: afterwards no request is reported, and the address can be bound again.
    pub(crate) fn stop(&self) {
        let mut s = self.shared.lock();
        let listened = s.on_request.take().is_some();
        // The thread closes the socket, but perhaps later.
        if let Some(l) = s.listener.take().filter(|_| listened) {
            l.stop();
        }
        drop(s);
        self.shared.wake.signal();
    }

    /// FI_BACKLOG (fi_control(3)). `FI_EINVAL` for a negative number.
    pub(crate) fn set_backlog(&self, n: i32) -> Result<()> {
        if n < 0 {
            return Err(FI_EINVAL);
        }
        let mut s = self.shared.lock();
        s.backlog = n;
        match (&s.listener, &s.on_request) {
            (Some(l), Some(_)) => l.listen(n),
            _ => Ok(()),
        }
    }

    /// Where it is bound. `FI_EOPBADSTATE` once an endpoint has its address.
    pub(crate) fn addr(&self) -> Result<SocketAddr> {
        let s = self.shared.lock();
        s.listener.as_ref().map(|l| l.addr()).ok_or(FI_EOPBADSTATE)
    }

    /// fi_setname(3). `FI_EOPBADSTATE` once it listens.
    pub(crate) fn set_addr(&self, at: SocketAddr) -> Result<()> {
        let mut s = self.shared.lock();
        if s.on_request.is_some() {
            return Err(FI_EOPBADSTATE);
        }
        if s.listener.as_ref().is_none_or(|l| l.addr() != at) {
            s.listener = Some(Arc::new(super::ep::bind(at)?));
        }
        Ok(())
    }

    /// Its socket, for an endpoint. `FI_EOPBADSTATE` once it listens or has none.
    pub(crate) fn take_socket(&self) -> Result<StreamListener> {
        let mut s = self.shared.lock();
        if s.on_request.is_some() {
            return Err(FI_EOPBADSTATE);
        }
        let l = s.listener.take().ok_or(FI_EOPBADSTATE)?;
        Arc::try_unwrap(l).map_err(|_| FI_EOPBADSTATE)
    }
}

impl Drop for TcpPassive {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The poller's names of the descriptors; those of callers follow.
const LISTENER: u64 = 0;
const WAKE: u64 = 1;
const FIRST: u64 = 2;

/// A connection whose request is not here yet.
struct PendingCaller {
    stream: Stream,
    received: Vec<u8>,
    deadline: Instant,
}

/// The thread of a passive endpoint that listens.
struct ListenThread {
    shared: Arc<PassiveShared>,
    poller: Poller,
    listener: Arc<StreamListener>,
    pending: Slab<PendingCaller>,
    /// Has one more reference for each request that the application holds.
    held: Arc<()>,
}

impl ListenThread {
    fn run(&mut self) {
        let mut ready: Vec<Ready> = Vec::new();
        while self.shared.lock().on_request.is_some() {
            wait_readable(
                self.poller.fd(),
                if self.pending.is_empty() { -1 } else { 100 },
            );
            self.poller.poll(&mut ready);
            for r in &ready {
                match r.name {
                    LISTENER => self.accept_callers(),
                    WAKE => self.shared.wake.clear(),
                    n => self.read_request((n - FIRST) as u32),
                }
            }
            let now = Instant::now();
            for id in self.pending.select(|c| c.deadline <= now) {
                self.drop_caller(id, "it sent no request in time");
            }
        }
    }

    fn accept_callers(&mut self) {
        loop {
            let next = next_caller(self, |s| Some(&s.listener), Self::drop_oldest);
            let stream = match next {
                Ok(Some(stream)) => stream,
                Ok(None) => return,
                // The connections stay in the backlog; the pause keeps the loop from spinning.
                Err(_) => return std::thread::sleep(Duration::from_millis(10)),
            };
            if self.pending.len() >= pending_max() {
                self.drop_oldest();
            }
            let fd = stream.fd();
            let id = self.pending.insert(PendingCaller {
                stream,
                received: Vec::new(),
                deadline: Instant::now() + timeout(),
            });
            if self
                .poller
                .add(fd, FIRST + u64::from(id), true, false)
                .is_err()
            {
                self.pending.remove(id);
            }
        }
    }

    /// Turns away the caller that has waited longest, if there is one.
    fn drop_oldest(&mut self) -> bool {
        let oldest = self.pending.iter().min_by_key(|(_, c)| c.deadline);
        let Some(id) = oldest.map(|(id, _)| id) else {
            return false;
        };
        log_too_many(self.pending.len());
        self.drop_caller(id, "others wait behind it");
        true
    }

    fn drop_caller(&mut self, id: u32, why: &str) {
        if let Some(c) = self.pending.remove(id) {
            let from = c.stream.peer_addr();
            let from = from.map_or("?".to_string(), |a| a.to_string());
            crate::info_log!(FI_LOG_EP_CTRL, "fi_listen: {from} is turned away: {why}");
            self.poller.remove(c.stream.fd());
        }
    }

    /// Reads no more than the request: the bytes after it belong to the endpoint.
    fn read_request(&mut self, id: u32) {
        loop {
            let Some(c) = self.pending.get_mut(id) else {
                return;
            };
            let Some(needs) = control_needs(&c.received) else {
                return self.drop_caller(id, "it does not speak this protocol");
            };
            if needs == 0 {
                return self.report_request(id);
            }
            let have = c.received.len();
            c.received.resize(have + needs, 0);
            let room = c.received.get_mut(have..).unwrap_or(&mut []);
            let n = match c.stream.recv(&UserMem::EMPTY, room) {
                Ok(StreamRead::Bytes(n)) => n,
                Ok(StreamRead::Nothing) => return c.received.truncate(have),
                Ok(StreamRead::Closed) => return self.drop_caller(id, "it has hung up"),
                Err(e) => return self.drop_caller(id, &errno::text(e)),
            };
            c.received.truncate(have + n);
        }
    }

    /// Reports a request that has arrived.
    fn report_request(&mut self, id: u32) {
        let Some(c) = self.pending.get(id) else {
            return;
        };
        let control = c.received.first_chunk::<CONTROL>().map(parse_control);
        let (Some(Ok(control)), Some(peer)) = (control, c.stream.peer_addr()) else {
            return self.drop_caller(id, "its request is malformed");
        };
        if control.kind != ControlKind::Request {
            return self.drop_caller(id, "it makes no request");
        }
        if Arc::strong_count(&self.held) > REQUESTS_MAX {
            crate::warn_log!(
                FI_LOG_EP_CTRL,
                "fi_listen: {REQUESTS_MAX} requests are neither accepted nor rejected: one more is \
                 turned away"
            );
            return self.drop_caller(id, "too many requests");
        }
        let Some(c) = self.pending.remove(id) else {
            return;
        };
        self.poller.remove(c.stream.fd());
        let mut info = self.shared.info.clone();
        info.dest_addr = Some(addr::to_raw(&peer));
        info.src_addr = c.stream.local_addr().as_ref().map(addr::to_raw);
        let request = ConnRequest {
            info,
            data: c.received.get(CONTROL..).unwrap_or(&[]).to_vec(),
            request: TcpRequest {
                stream: c.stream,
                order: control.order,
                _held: Arc::clone(&self.held),
            },
        };
        // Under the lock: no request is reported after the passive endpoint is closed.
        if let Some(on_request) = &self.shared.lock().on_request {
            on_request(request);
        }
    }
}
