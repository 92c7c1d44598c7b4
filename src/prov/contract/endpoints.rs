//! Endpoints and shared receive contexts (fi_endpoint(3), fi_cm(3)): opening, binding, options.

use super::connections::EventTarget;
use super::request::Poster;
use crate::core::{Info, Result};
use crate::types::*;
use std::fmt;

/// An option's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionValue {
    /// `size_t`.
    Size(usize),
    /// `int`.
    Int(i32),
    /// `bool`.
    Bool(bool),
}

impl fmt::Display for OptionValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OptionValue::Size(n) => n.fmt(f),
            OptionValue::Int(n) => n.fmt(f),
            OptionValue::Bool(b) => b.fmt(f),
        }
    }
}

/// Endpoints of a domain, by number. `FI_EBADF` for a number there is none of.
pub trait Endpoints {
    /// Opens an endpoint as `info` describes it. `FI_EINVAL` for an info of another endpoint type.
    fn open_ep(&self, info: &Info) -> Result<u32>;
    /// fi_enable(3): `FI_ENOAV` and `FI_ENOCQ` name what is missing.
    fn enable_ep(&self, ep: u32) -> Result<()>;
    /// Closes an endpoint; `FI_EBUSY` while it has aliases.
    fn close_ep(&self, ep: u32) -> Result<()>;
    /// Counts an alias that was opened or closed (fi_ep_alias(3)).
    fn alias_ep(&self, ep: u32, opens: bool) -> Result<()>;

    /// Binds the address vector that names its peers.
    fn bind_av(&self, ep: u32, av: u32) -> Result<()>;
    /// Binds the event queue for reports that belong to no operation.
    fn bind_eq(&self, ep: u32, to: EventTarget) -> Result<()>;
    /// `flags` are FI_TRANSMIT, FI_RECV, FI_SELECTIVE_COMPLETION.
    fn bind_cq(&self, ep: u32, cq: u32, flags: u64) -> Result<()>;
    /// `flags` are the kinds of operations to count: FI_SEND, FI_REMOTE_WRITE, ...
    fn bind_cntr(&self, ep: u32, cntr: u32, flags: u64) -> Result<()>;
    /// Binds a shared receive context, from which the endpoint takes its receives.
    fn bind_srx(&self, ep: u32, srx: u32) -> Result<()>;

    /// Default flags of its operations (fi_endpoint(3), FI_GETOPSFLAG).
    fn op_flags(&self, ep: u32, recv: bool) -> Result<u64>;
    /// Sets default flags; FI_TRANSMIT or FI_RECV in `flags` selects the direction.
    fn set_op_flags(&self, ep: u32, flags: u64) -> Result<()>;

    /// Name of an option of level FI_OPT_ENDPOINT, and a value of its type; `None` for an unknown
    /// one.
    fn option_kind(name: i32) -> Option<(&'static str, OptionValue)>;
    /// `FI_ENOPROTOOPT` for an unknown option.
    fn get_option(&self, ep: u32, name: i32) -> Result<OptionValue>;
    /// `FI_EINVAL` for a value that is not accepted, `FI_EOPBADSTATE` when it comes too late.
    fn set_option(&self, ep: u32, name: i32, value: OptionValue) -> Result<()>;

    /// Its raw address (fi_getname(3)).
    fn name(&self, ep: u32) -> Result<Vec<u8>>;
    /// fi_setname(3), before it is enabled.
    fn set_name(&self, ep: u32, raw: &[u8]) -> Result<()>;

    /// fi_cancel(3): `FI_ENOENT` when no receive has this context.
    fn cancel(&self, who: Poster, context: usize) -> Result<()>;

    /// The endpoints that make a scalable endpoint (fi_scalable_ep(3)).
    fn open_contexts(&self, _info: &Info) -> Result<Vec<u32>> {
        Err(FI_ENOSYS)
    }
    /// Closes a transmit (`side` 0) or receive context of a scalable endpoint.
    fn close_context(&self, _ep: u32, _side: usize) {}

    /// Opens a shared receive context (fi_srx_context(3)).
    fn open_srx(&self, caps: Option<u64>, flags: u64) -> Result<u32>;
    /// Closes it; `FI_EBUSY` while endpoints use it.
    fn close_srx(&self, srx: u32) -> Result<()>;
}
