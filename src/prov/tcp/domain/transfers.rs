//! Data transfer of a domain's endpoints: each call takes the domain's lock once.

use super::TcpDomain;
use crate::core::iovs::Iovs;
use crate::core::Result;
use crate::prov::contract::*;
use crate::prov::tcp::ops;
use crate::types::*;

impl Transfers for TcpDomain {
    #[inline]
    fn send<D: SendBuffer, C: Call>(&self, ep: u32, r: &MsgReq<D, C>) -> Result<()> {
        ops::send(&mut self.lock(), ep, &r.to_general())
    }

    #[inline]
    fn recv<M: RecvBuffer, C: Call>(&self, who: Poster, r: &RecvReq<M, C>) -> Result<()> {
        ops::recv(&mut self.lock(), who, &r.to_general())
    }

    #[inline]
    fn rma<D: SendBuffer, C: Call>(&self, ep: u32, r: &RmaReq<D, C>) -> Result<()> {
        ops::rma(&mut self.lock(), ep, &r.to_general())
    }

    fn rma_pieces(&self, ep: u32, r: &RmaReq<SendData>, remote: &Iovs) -> Result<()> {
        ops::rma_pieces(&mut self.lock(), ep, r, remote)
    }

    fn atomic<D: SendBuffer, M: RecvBuffer, T: AtomicMemory, C: Call>(
        &self,
        _: u32,
        _: &AtomicReq<D, M, T, C>,
    ) -> Result<()> {
        Err(FI_ENOSYS)
    }

    fn atomic_count(&self, _: fi_datatype, _: fi_op, _: AtomicCall) -> Result<usize> {
        Err(FI_EOPNOTSUPP)
    }

    fn trigger(&self, _: Trigger) -> Result<()> {
        Err(FI_ENOSYS)
    }

    fn cancel_work(&self, _: usize) -> Result<()> {
        Err(FI_ENOSYS)
    }

    fn flush_work(&self) {}
}

impl Collectives for TcpDomain {
    const SET_ADDR: fi_addr_t = FI_ADDR_NOTAVAIL;
}

impl Extensions for TcpDomain {}
