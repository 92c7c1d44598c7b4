//! Connected endpoints (FI_EP_MSG) and passive endpoints (fi_cm(3)). A provider without them keeps
//! the defaults.

use super::eq::Eq;
use crate::core::{Errno, Info, Result};
use crate::types::*;
use std::sync::Arc;

/// A connection request that has arrived at a passive endpoint.
pub struct ConnRequest<R> {
    /// Info with which an endpoint for the request is opened, except `handle`.
    pub info: Info,
    /// Data of the caller's fi_connect(3).
    pub data: Vec<u8>,
    /// The request itself.
    pub request: R,
}

/// Takes the requests that come to a passive endpoint.
pub type OnRequest<R> = Box<dyn Fn(ConnRequest<R>) + Send>;

/// Where an endpoint reports its connection: an event queue, and the endpoint's handle in the
/// application.
#[derive(Clone)]
pub struct EventTarget {
    /// The queue.
    pub eq: Arc<Eq>,
    /// Address of the application's `fid`.
    pub fid: usize,
    /// `fid.context` when the queue was bound.
    pub context: usize,
}

impl EventTarget {
    /// FI_CONNECTED with the peer's data, or FI_SHUTDOWN.
    pub fn report(&self, event: u32, data: &[u8]) {
        self.eq.push_cm(event, self.fid, 0, data);
    }

    /// Takes back what the application has not read, because it closes the endpoint.
    pub fn forget(&self) {
        self.eq.forget(self.fid);
    }

    /// Reports that the connection failed: an error with the data of the peer's fi_reject(3).
    pub fn report_failed(&self, err: Errno, data: &[u8]) {
        let words = [self.fid, self.context, 0];
        self.eq.push(super::EqEvent {
            event: FI_SHUTDOWN,
            bytes: words.iter().flat_map(|w| w.to_ne_bytes()).collect(),
            err,
            prov_errno: err,
            err_data: data.to_vec(),
        });
    }
}

/// Passive endpoints of a fabric, and connections of a domain's endpoints.
pub trait Connections {
    /// A passive endpoint (fi_passive_ep(3)). Stops listening when dropped.
    type Passive: Send + Sync + 'static;
    /// A connection request. Dropping it refuses the request without an answer.
    type Request: Send + 'static;

    /// Opens a passive endpoint at the source address of `info`. `FI_EADDRINUSE` for an address
    /// that is taken.
    fn open_passive(_info: &Info) -> Result<Self::Passive> {
        Err(FI_ENOSYS)
    }
    /// fi_listen(3): `on_request` is called for each request from now on, by a thread of the
    /// library.
    fn listen(_p: &Self::Passive, _on_request: OnRequest<Self::Request>) -> Result<()> {
        Err(FI_ENOSYS)
    }
    /// The passive endpoint is being closed: no request is reported any more, and its address is
    /// free when this returns.
    fn stop_listening(_p: &Self::Passive) {}
    /// Its raw address (fi_getname(3)).
    fn passive_name(_p: &Self::Passive) -> Result<Vec<u8>> {
        Err(FI_ENOSYS)
    }
    /// fi_setname(3). `FI_EOPBADSTATE` once it listens.
    fn set_passive_name(_p: &Self::Passive, _raw: &[u8]) -> Result<()> {
        Err(FI_ENOSYS)
    }
    /// FI_BACKLOG (fi_control(3)): requests that wait in the system.
    fn set_backlog(_p: &Self::Passive, _n: i32) -> Result<()> {
        Err(FI_ENOSYS)
    }
    /// Most bytes of data in a request or its answer (FI_OPT_CM_DATA_SIZE).
    fn connection_data_size() -> usize {
        0
    }
    /// FI_GET_FD (fi_tcp(7)): the socket of an endpoint. It stays the library's. `FI_EOPBADSTATE`
    /// while there is none, `FI_ENOSYS` for endpoints that are not connected.
    fn socket(&self, _ep: u32) -> Result<i32> {
        Err(FI_ENOSYS)
    }
    /// fi_reject(3), with data for the caller.
    fn reject(_r: Self::Request, _data: &[u8]) -> Result<()> {
        Err(FI_ENOSYS)
    }

    /// Opens an endpoint for a request.
    fn open_requested_ep(&self, _info: &Info, _r: Self::Request) -> Result<u32> {
        Err(FI_ENOSYS)
    }
    /// Opens an endpoint at the address of a passive one, which loses the address.
    fn open_ep_of_passive(&self, _info: &Info, _p: &Self::Passive) -> Result<u32> {
        Err(FI_ENOSYS)
    }
    /// fi_connect(3), which enables the endpoint, too: FI_CONNECTED or an error follows on its
    /// event queue. `FI_ENOEQ` without one, `FI_EINVAL` for a second time, for an address of
    /// another kind, for too much data.
    fn connect(self: &Arc<Self>, _ep: u32, _to: &[u8], _data: &[u8]) -> Result<()> {
        Err(FI_ENOSYS)
    }
    /// fi_accept(3): as [`Connections::connect`], for an endpoint of a request.
    fn accept(self: &Arc<Self>, _ep: u32, _data: &[u8]) -> Result<()> {
        Err(FI_ENOSYS)
    }
    /// fi_shutdown(3).
    fn shutdown(&self, _ep: u32) -> Result<()> {
        Err(FI_ENOSYS)
    }
    /// Raw address of the peer (fi_getpeer(3)). `FI_ENOTCONN` without one.
    fn peer_name(&self, _ep: u32) -> Result<Vec<u8>> {
        Err(FI_ENOSYS)
    }
}
