//! Data transfer (fi_msg(3), fi_tagged(3), fi_rma(3), fi_atomic(3), fi_trigger(3)).

use super::deferred::Trigger;
use super::request::*;
use crate::core::iovs::Iovs;
use crate::core::Result;
use crate::types::*;

/// What an atomic call brings back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicCall {
    /// Nothing.
    Write,
    /// The former values.
    Fetch,
    /// The former values, after a comparison.
    Compare,
}

/// Operations of an endpoint. `FI_EAGAIN` when there is no room for one more; any error means that
/// nothing was done. The memory of a request is lent until its completion.
pub trait Transfers {
    /// fi_send(3), fi_tsend(3) and their variants.
    fn send<D: SendBuffer, C: Call>(&self, ep: u32, r: &MsgReq<D, C>) -> Result<()>;
    /// fi_recv(3), fi_trecv(3) and their variants.
    fn recv<M: RecvBuffer, C: Call>(&self, who: Poster, r: &RecvReq<M, C>) -> Result<()>;
    /// fi_read(3), fi_write(3) and their variants.
    fn rma<D: SendBuffer, C: Call>(&self, ep: u32, r: &RmaReq<D, C>) -> Result<()>;
    /// As [`Transfers::rma`], with `remote`, several pieces, in the place of the remote memory that
    /// `r` names. `FI_EINVAL` (with a log line) where `tx_attr->rma_iov_limit` is 1, and where the
    /// local memory is not as long as they are together.
    fn rma_pieces(&self, ep: u32, r: &RmaReq<SendData>, remote: &Iovs) -> Result<()> {
        let _ = (ep, r);
        crate::warn_log!(
            FI_LOG_EP_DATA,
            "rma_iov_count: wanted {}, had 1 (rma_iov_limit)",
            remote.count()
        );
        Err(FI_EINVAL)
    }
    /// fi_atomic(3) and its variants.
    fn atomic<D: SendBuffer, M: RecvBuffer, T: AtomicMemory, C: Call>(
        &self,
        ep: u32,
        r: &AtomicReq<D, M, T, C>,
    ) -> Result<()>;

    /// Elements that one atomic may have; `FI_EOPNOTSUPP` where the operation does not exist for
    /// the datatype or call (fi_atomicvalid(3)).
    fn atomic_count(&self, dt: fi_datatype, op: fi_op, call: AtomicCall) -> Result<usize>;

    /// Queues an operation for a counter, or starts it when the counter has reached the threshold.
    fn trigger(&self, t: Trigger) -> Result<()>;
    /// FI_CANCEL_WORK: takes back deferred work that has not started. `FI_ENOENT` when there is
    /// none of this name.
    fn cancel_work(&self, name: usize) -> Result<()>;
    /// FI_FLUSH_WORK: takes all deferred work of the domain back.
    fn flush_work(&self);
}
