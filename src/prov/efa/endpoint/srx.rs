//! Shared receive contexts (fi_srx_context(3)): one receive queue for several endpoints.
//!
//! A message of any of the endpoints takes the oldest receive that fits; its completion goes to
//! that endpoint's queue.

use crate::core::Info;
use crate::proto::RecvQueue;
use crate::prov::efa::domain::State;

/// See the module text.
#[derive(Debug)]
pub(crate) struct Srx {
    pub rxq: u32,
    pub caps: u64,
    pub rx_flags: u64,
    pub min_multi_recv: usize,
}

impl Srx {
    /// A context with an empty queue, for a domain opened with `info`; returns its number.
    pub(crate) fn open(s: &mut State, info: &Info, caps: Option<u64>, rx_flags: u64) -> u32 {
        let rxq = s.rxqs.insert(RecvQueue::default());
        s.srxs.insert(Srx {
            rxq,
            caps: caps.filter(|c| *c != 0).unwrap_or(info.caps),
            rx_flags,
            min_multi_recv: crate::prov::efa::endpoint::options::MIN_MULTI_RECV,
        })
    }

    /// Closes a context that no endpoint uses.
    pub(crate) fn close(s: &mut State, id: u32) {
        crate::prov::efa::ops::drop_ops(s, crate::prov::efa::ops::SRX_OWNER | id);
        if let Some(x) = s.srxs.remove(id) {
            s.rxqs.remove(x.rxq);
        }
    }
}
