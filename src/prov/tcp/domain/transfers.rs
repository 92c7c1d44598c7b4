//! Data transfer of a domain's endpoints: each call takes the domain's lock once.

use super::TcpDomain;
use crate::core::Result;
use crate::prov::contract::*;
use crate::prov::tcp::ops;
use crate::types::*;

impl Transfers for TcpDomain {
    #[inline]
    fn send(&self, ep: u32, r: &MsgReq) -> Result<()> {
        ops::send(&mut self.lock(), ep, r)
    }

    #[inline]
    fn recv(&self, who: Poster, r: &RecvReq) -> Result<()> {
        ops::recv(&mut self.lock(), who, r)
    }

    #[inline]
    fn rma(&self, ep: u32, r: &RmaReq) -> Result<()> {
        ops::rma(&mut self.lock(), ep, r)
    }

    fn atomic(&self, _: u32, _: &AtomicReq) -> Result<()> {
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
