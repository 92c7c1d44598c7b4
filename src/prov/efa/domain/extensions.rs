//! Extensions of provider efa (fi_efa(7)): how the adapter reaches memory, peers and queues, for
//! devices that drive it without the library.

use super::EfaDomain;
use crate::core::Result;
use crate::device::any::{CounterPlaces, QueuePlace};
use crate::device::{Device, QueueMemory};
use crate::prov::contract::{Extension, Extensions, Fabric, Mr, OpenedQueue};
use crate::prov::efa::info::DIRECT;
use crate::prov::reports::cntr::Cntr;
use crate::prov::reports::cq::Cq;
use crate::prov::reports::domain::ReportingDomain;
use crate::types::*;
use std::sync::Arc;

/// FI_EFA_FEATURE_OPS
const FEATURES: &str = "efa feature ops";

impl Extensions for EfaDomain {
    fn extension(&self, name: &str) -> Result<Extension> {
        match name {
            FEATURES if self.direct() => Ok(Extension::EfaFeatures),
            FEATURES => Ok(Extension::EfaNoFeatures),
            "efa domain ops" => Ok(Extension::EfaDomain),
            "efa gda ops" if self.direct() => Ok(Extension::EfaGda),
            "efa gda ops" => Err(FI_EOPNOTSUPP),
            _ => Err(FI_ENOSYS),
        }
    }

    fn fabric_extension(fabric: &Fabric, name: &str) -> Result<Extension> {
        match name {
            FEATURES if fabric.name == DIRECT => Ok(Extension::EfaFeatures),
            FEATURES => Ok(Extension::EfaNoFeatures),
            _ => Err(FI_ENOSYS),
        }
    }

    fn has_feature(name: &str) -> bool {
        name == "mixed_hmem_iov"
    }

    fn query_mr(&self, mr: &Mr) -> Result<[u16; 4]> {
        self.lock_control().dev.query_mr(mr.key)
    }

    fn lkey(&self, mr: &Mr) -> Option<u32> {
        self.lock_control().dev.lkey(mr.key)
    }

    fn peer_handle(&self, ep: u32, addr: fi_addr_t) -> Result<(u16, u16, u32)> {
        let mut s = self.lock_control();
        let s = &mut *s;
        let e = s.eps.get_mut(ep).ok_or(FI_EBADF)?;
        let av = e.av().and_then(|a| s.avs.get(a)).ok_or(FI_EINVAL)?;
        let to = av.lookup(addr)?;
        let handle = e.qp_mut().ok_or(FI_EINVAL)?.handle_of(&to)?;
        Ok((handle, to.qpn, to.qkey))
    }

    fn queue_memory(&self, ep: u32) -> Result<[QueueMemory; 3]> {
        let mut s = self.lock_control();
        let e = s.eps.get_mut(ep).ok_or(FI_EBADF)?;
        e.qp_mut().ok_or(FI_EINVAL)?.queues()
    }

    fn cq_memory(&self, cq: u32) -> Result<QueueMemory> {
        let eps = {
            let s = self.lock_control();
            let q = s.cqs.get(cq).ok_or(FI_EBADF)?;
            if let Some(x) = &q.external {
                return x.memory();
            }
            q.wait.eps.clone()
        };
        match eps.as_slice() {
            [one] => self.queue_memory(*one).map(|[_, _, c]| c),
            _ => Err(FI_EOPNOTSUPP),
        }
    }

    fn open_external_cq(
        self: &Arc<Self>,
        entries: usize,
        place: &QueuePlace,
    ) -> Result<OpenedQueue> {
        let mut cq = Cq::new(entries, FI_WAIT_NONE)?;
        let q = self.lock_control().dev.open_queue(entries, place)?;
        cq.external = Some(Arc::new(q));
        self.insert_cq(cq)
    }

    fn open_external_cntr(
        self: &Arc<Self>,
        events: fi_cntr_events,
        places: &CounterPlaces,
    ) -> Result<OpenedQueue> {
        let mut c = Cntr::new(events, FI_WAIT_NONE)?;
        let d = self.info.domain.as_ref();
        let most = d.map_or(0, |d| d.max_cntr_value.max(d.max_err_cntr_value));
        let n = self
            .lock_control()
            .dev
            .open_counter(places, c.bytes, most)?;
        c.external = Some(Arc::new(n));
        self.insert_cntr(c)
    }
}
