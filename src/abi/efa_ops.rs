//! Extensions of provider efa (`<rdma/fi_ext_efa.h>`): what `fi_open_ops` gives out for a domain.
//!
//! `fi_efa_ops_domain` tells how the adapter reaches a region, `fi_efa_ops_gda` gives out
//! addresses, keys and queues for devices that drive them by themselves. On an adapter without such
//! things (the software's, or with older libraries) the answer is `FI_EOPNOTSUPP`, or `FI_ENOSYS`
//! for a region.

use super::cntr::external_cntr;
use super::cq::{cq_format, external_cq, CqBody};
use super::entry::{entry, FromC, OutParam};
use super::ep::EpBody;
use super::mr::MrBody;
use super::object::Tables;
use crate::core::Result;
use crate::prov::contract::*;
use crate::types::*;
use core::ffi::{c_int, c_void};
use core::marker::PhantomData;
use std::sync::Arc;

fn own(who: Poster) -> Result<u32> {
    match who {
        Poster::Ep(id) => Ok(id),
        Poster::Srx(_) => Err(FI_EINVAL),
    }
}

entry! {
    fn query_mr<D: Domain>(
        region: *mut fid_mr as &MrBody<D>,
        out: *mut fi_efa_mr_attr as OutParam<fi_efa_mr_attr>,
    ) -> c_int = "query_mr" {
        let [ic_id_validity, recv_ic_id, rdma_read_ic_id, rdma_recv_ic_id] =
            region.domain.query_mr(&region.mr)?;
        out.put(fi_efa_mr_attr {
            ic_id_validity,
            recv_ic_id,
            rdma_read_ic_id,
            rdma_recv_ic_id,
        });
        Ok(())
    }
}

impl<D: Domain> Tables<D> {
    /// "efa domain ops"
    pub(crate) const EFA_DOMAIN_OPS: &'static fi_efa_ops_domain = &fi_efa_ops_domain {
        query_mr: Some(query_mr::<D>),
    };
}

entry! {
    fn query_addr<D: Domain>(
        b: *mut fid_ep as &EpBody<D>,
        addr: fi_addr_t,
        ahn: *mut u16 as OutParam<u16>,
        qpn: *mut u16 as OutParam<u16>,
        qkey: *mut u32 as OutParam<u32>,
    ) -> c_int = "query_addr" {
        let (handle, number, key) = b.domain.peer_handle(own(b.who)?, addr)?;
        ahn.put(handle);
        qpn.put(number);
        qkey.put(key);
        Ok(())
    }
}

fn wq(m: &QueueMemory) -> fi_efa_wq_attr {
    fi_efa_wq_attr {
        buffer: m.buffer as *mut u8,
        entry_size: m.entry,
        num_entries: m.entries,
        doorbell: m.doorbell as *mut u32,
        max_batch: m.max_batch,
        caps: m.caps,
    }
}

entry! {
    fn query_qp_wqs<D: Domain>(
        b: *mut fid_ep as &EpBody<D>,
        sq: *mut fi_efa_wq_attr as OutParam<fi_efa_wq_attr>,
        rq: *mut fi_efa_wq_attr as OutParam<fi_efa_wq_attr>,
    ) -> c_int = "query_qp_wqs" {
        let [s, r, _] = b.domain.queue_memory(own(b.who)?)?;
        sq.put(wq(&s));
        rq.put(wq(&r));
        Ok(())
    }
}

entry! {
    fn query_cq<D: Domain>(
        b: *mut fid_cq as &CqBody<D>,
        out: *mut fi_efa_cq_attr as OutParam<fi_efa_cq_attr>,
    ) -> c_int = "query_cq" {
        let m = b.domain.cq_memory(b.id)?;
        out.put(fi_efa_cq_attr {
            buffer: m.buffer as *mut u8,
            entry_size: m.entry,
            num_entries: m.entries,
        });
        Ok(())
    }
}

/// Entries of a queue whose size was left open.
const QUEUE_SIZE: usize = 1024;

/// `FI_EINVAL` without memory, `FI_ENOSYS` for a wait object: no call can wait for a queue that a
/// device reads.
fn queue_place(
    attr: &fi_cq_attr,
    init: &fi_efa_cq_init_attr,
) -> Result<(fi_cq_format, QueuePlace)> {
    let m = init.ext_mem_dmabuf;
    if attr.wait_obj != FI_WAIT_NONE {
        crate::warn_log!(
            FI_LOG_CQ,
            "cq_open_ext: wait_obj {}: wanted FI_WAIT_NONE",
            attr.wait_obj
        );
        return Err(FI_ENOSYS);
    }
    if init.flags != FI_EFA_CQ_INIT_FLAGS_EXT_MEM_DMABUF as u64 || m.length == 0 {
        crate::warn_log!(
            FI_LOG_CQ,
            "cq_open_ext: flags {:#x}, length {}: wanted FI_EFA_CQ_INIT_FLAGS_EXT_MEM_DMABUF and \
             memory",
            init.flags,
            m.length
        );
        return Err(FI_EINVAL);
    }
    let place = QueuePlace {
        at: m.buffer as usize,
        len: m.length,
        offset: m.offset,
        fd: m.fd,
    };
    Ok((cq_format(attr)?, place))
}

entry! {
    fn cq_open_ext<D: Domain>(
        domain: *mut fid_domain as &Arc<D>,
        attr: *mut fi_cq_attr as &fi_cq_attr,
        init: *mut fi_efa_cq_init_attr as &fi_efa_cq_init_attr,
        out: *mut *mut fid_cq as OutParam<*mut fid_cq>,
        context: *mut c_void,
    ) -> c_int = "cq_open_ext" {
        let (format, place) = queue_place(attr, init)?;
        let entries = match attr.size {
            0 => QUEUE_SIZE,
            n => n.min(u32::MAX as usize),
        };
        let q = domain.open_external_cq(entries, &place)?;
        out.put(external_cq((domain, q), format, place.at != 0, context));
        Ok(())
    }
}

/// The local key of a region, for requests that a device writes.
struct RegionKey<D>(u64, PhantomData<D>);

/// FI_KEY_NOTAVAIL for a closed region, and where there is no adapter.
impl<D: Domain> FromC<*mut fid_mr> for RegionKey<D> {
    unsafe fn from_c(m: *mut fid_mr) -> Result<Self> {
        // SAFETY: the caller names an open region.
        let region: Result<&MrBody<D>> = unsafe { FromC::from_c(m) };
        let key = region.ok().and_then(|r| r.domain.lkey(&r.mr));
        Ok(RegionKey(
            key.map_or(FI_KEY_NOTAVAIL, u64::from),
            PhantomData,
        ))
    }
}

entry! {
    fn get_mr_lkey<D: Domain>(key: *mut fid_mr as RegionKey<D>) -> u64 = "get_mr_lkey" {
        Ok(key.0)
    }
}

/// Where the numbers shall be. `FI_EINVAL` for a place of an unknown kind, or without memory.
fn counter_places(init: &fi_efa_comp_cntr_init_attr) -> Result<CounterPlaces> {
    const COMP: u32 = FI_EFA_COMP_CNTR_INIT_WITH_COMP_EXTERNAL_MEM as u32;
    const ERR: u32 = FI_EFA_COMP_CNTR_INIT_WITH_ERR_EXTERNAL_MEM as u32;
    if init.comp_mask != 0 || init.flags & !(COMP | ERR) != 0 {
        crate::warn_log!(
            FI_LOG_CNTR,
            "cntr_open_ext: comp_mask {:#x}, flags {:#x}: wanted 0, and bits of {:#x}",
            init.comp_mask,
            init.flags,
            COMP | ERR
        );
        return Err(FI_EINVAL);
    }
    let place = |bit, m: fi_efa_memory_location| {
        if init.flags & bit == 0 {
            return Ok(None);
        }
        match m.r#type.into() {
            FI_EFA_MEMORY_LOCATION_VA if !m.ptr.is_null() => Ok(Some(m)),
            FI_EFA_MEMORY_LOCATION_DMABUF => Ok(Some(m)),
            t => {
                crate::warn_log!(
                    FI_LOG_CNTR,
                    "cntr_open_ext: memory of type {t} at {:?}: wanted FI_EFA_MEMORY_LOCATION_VA \
                     with an address, or \
                     FI_EFA_MEMORY_LOCATION_DMABUF",
                    m.ptr
                );
                Err(FI_EINVAL)
            }
        }
    };
    Ok([
        place(COMP, init.comp_cntr_ext_mem)?,
        place(ERR, init.err_cntr_ext_mem)?,
    ])
}

entry! {
    fn cntr_open_ext<D: Domain>(
        domain: *mut fid_domain as &Arc<D>,
        attr: *mut fi_cntr_attr as Option<&fi_cntr_attr>,
        out: *mut *mut fid_cntr as OutParam<*mut fid_cntr>,
        context: *mut c_void,
        init: *mut fi_efa_comp_cntr_init_attr as &fi_efa_comp_cntr_init_attr,
    ) -> c_int = "cntr_open_ext" {
        let places = counter_places(init)?;
        let (events, wait, flags) = attr.map_or((FI_CNTR_EVENTS_COMP, FI_WAIT_UNSPEC, 0), |a| {
            (a.events, a.wait_obj, a.flags)
        });
        let known = events == FI_CNTR_EVENTS_COMP || events == FI_CNTR_EVENTS_BYTES;
        if !known || !matches!(wait, FI_WAIT_NONE | FI_WAIT_UNSPEC) || flags != 0 {
            crate::warn_log!(
                FI_LOG_CNTR,
                "cntr_open_ext: events {events}, wait_obj {wait}, flags {flags:#x}: wanted \
                 FI_CNTR_EVENTS_COMP or _BYTES, FI_WAIT_NONE or _UNSPEC, 0"
            );
            return Err(FI_EOPNOTSUPP);
        }
        // An adapter that counts wakes no thread: a waiting thread polls.
        let c = domain.open_external_cntr(events, &places)?;
        out.put(external_cntr(domain, c, context));
        Ok(())
    }
}

impl<D: Domain> Tables<D> {
    /// "efa gda ops"
    pub(crate) const EFA_GDA_OPS: &'static fi_efa_ops_gda = &fi_efa_ops_gda {
        query_addr: Some(query_addr::<D>),
        query_qp_wqs: Some(query_qp_wqs::<D>),
        query_cq: Some(query_cq::<D>),
        cq_open_ext: Some(cq_open_ext::<D>),
        get_mr_lkey: Some(get_mr_lkey::<D>),
        cntr_open_ext: Some(cntr_open_ext::<D>),
    };
}
