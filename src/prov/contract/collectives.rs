//! Collective operations (fi_collective(3)). A provider without them keeps the defaults.

use super::eq::{Eq, EqEvent};
use super::request::{Alloc, CollReq, Needs};
use crate::core::Result;
use crate::hmem::UserMem;
use crate::types::*;
use std::sync::Arc;

/// Groups and collective operations of a domain.
pub trait Collectives {
    /// The address of a set of addresses, which fi_join_collective(3) takes.
    const SET_ADDR: fi_addr_t;

    /// Largest number of elements, and the size of one (fi_query_collective(3)).
    fn query_collective(
        &self,
        _what: fi_collective_op,
        _dt: fi_datatype,
        _op: fi_op,
    ) -> Result<(usize, usize)> {
        Err(FI_EOPNOTSUPP)
    }

    /// Starts an operation on the buffers that `mem` makes from what is needed of them.
    fn collective(
        &self,
        _ep: u32,
        _r: &CollReq,
        _mem: impl FnOnce(Needs) -> Result<(UserMem, UserMem)>,
        _alloc: Alloc,
    ) -> Result<()> {
        Err(FI_EOPNOTSUPP)
    }

    /// Members of a group.
    fn members(&self, _ep: u32, _group: fi_addr_t) -> Result<usize> {
        Err(FI_EOPNOTSUPP)
    }

    /// Whether an address may be given to fi_join_collective(3): that of a set or of a group.
    fn joinable(&self, _ep: u32, _addr: fi_addr_t) -> bool {
        false
    }

    /// A new group of the members `addrs`, whose address `made` gets; the event is written after
    /// that, when all have joined.
    fn join(
        &self,
        _ep: u32,
        _addrs: &[fi_addr_t],
        _told: (Arc<Eq>, EqEvent),
        _alloc: Alloc,
        _made: impl FnOnce(fi_addr_t),
    ) -> Result<()> {
        Err(FI_EOPNOTSUPP)
    }

    /// Leaves a group; `FI_EBUSY` while an operation of it is under way.
    fn leave(&self, _group: fi_addr_t) -> Result<()> {
        Err(FI_EBADF)
    }
}
