//! Extensions of provider efa (`<rdma/fi_ext_efa.h>`): what `fi_open_ops` gives out for a domain.
//!
//! `fi_efa_ops_domain` tells how the adapter reaches a region, `fi_efa_ops_gda` gives out
//! addresses, keys and queues for devices that drive them by themselves. On an adapter without such
//! things (the software's, or with older libraries) the answer is `FI_EOPNOTSUPP`, or `FI_ENOSYS`
//! for a region.

use super::domain::of;
use super::ep::ep;
use super::mr;
use super::object::{guard_int, Tables};
use super::queues::{cq, external_cntr, external_cq};
use crate::core::Result;
use crate::prov::contract::*;
use crate::types::*;
use core::ffi::{c_int, c_void};

fn own(who: Poster) -> Result<u32> {
    match who {
        Poster::Ep(id) => Ok(id),
        Poster::Srx(_) => Err(FI_EINVAL),
    }
}

unsafe extern "C" fn query_mr<D: Domain>(m: *mut fid_mr, out: *mut fi_efa_mr_attr) -> c_int {
    guard_int("query_mr", || {
        // SAFETY: the caller names an open region and a place for the answer.
        let (region, out) = unsafe { (mr::region::<D>(m)?, out.as_mut().ok_or(FI_EINVAL)?) };
        let [ic_id_validity, recv_ic_id, rdma_read_ic_id, rdma_recv_ic_id] =
            region.domain.query_mr(&region.mr)?;
        *out = fi_efa_mr_attr {
            ic_id_validity,
            recv_ic_id,
            rdma_read_ic_id,
            rdma_recv_ic_id,
        };
        Ok(())
    })
}

impl<D: Domain> Tables<D> {
    /// "efa domain ops"
    pub(crate) const EFA_DOMAIN_OPS: &'static fi_efa_ops_domain = &fi_efa_ops_domain {
        query_mr: Some(query_mr::<D>),
    };
}

unsafe extern "C" fn query_addr<D: Domain>(
    e: *mut fid_ep,
    addr: fi_addr_t,
    ahn: *mut u16,
    qpn: *mut u16,
    qkey: *mut u32,
) -> c_int {
    guard_int("query_addr", || {
        if ahn.is_null() || qpn.is_null() || qkey.is_null() {
            return Err(FI_EINVAL);
        }
        // SAFETY: the caller names an open endpoint; the places were looked at.
        unsafe {
            let b = ep::<D>(e)?;
            (*ahn, *qpn, *qkey) = b.domain.peer_handle(own(b.who)?, addr)?;
        }
        Ok(())
    })
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

unsafe extern "C" fn query_qp_wqs<D: Domain>(
    e: *mut fid_ep,
    sq: *mut fi_efa_wq_attr,
    rq: *mut fi_efa_wq_attr,
) -> c_int {
    guard_int("query_qp_wqs", || {
        if sq.is_null() || rq.is_null() {
            return Err(FI_EINVAL);
        }
        // SAFETY: as above.
        unsafe {
            let b = ep::<D>(e)?;
            let [s, r, _] = b.domain.queue_memory(own(b.who)?)?;
            (*sq, *rq) = (wq(&s), wq(&r));
        }
        Ok(())
    })
}

unsafe extern "C" fn query_cq<D: Domain>(q: *mut fid_cq, out: *mut fi_efa_cq_attr) -> c_int {
    guard_int("query_cq", || {
        // SAFETY: the caller names an open queue and a place for the answer.
        let (b, out) = unsafe { (cq::<D>(q)?, out.as_mut().ok_or(FI_EINVAL)?) };
        let m = b.domain.cq_memory(b.id)?;
        *out = fi_efa_cq_attr {
            buffer: m.buffer as *mut u8,
            entry_size: m.entry,
            num_entries: m.entries,
        };
        Ok(())
    })
}

/// Entries of a queue whose size was left open.
const QUEUE_SIZE: usize = 1024;

/// `FI_EINVAL` without memory, `FI_ENOSYS` for a wait object: nobody can wait for what a device
/// reads.
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
    Ok((super::queues::cq_format(attr)?, place))
}

unsafe extern "C" fn cq_open_ext<D: Domain>(
    d: *mut fid_domain,
    attr: *mut fi_cq_attr,
    init: *mut fi_efa_cq_init_attr,
    out: *mut *mut fid_cq,
    context: *mut c_void,
) -> c_int {
    guard_int("cq_open_ext", || {
        // SAFETY: `d` is a domain of ours; the attributes are NULL or valid.
        let (domain, attr, init) = unsafe { (of::<D>(d)?, attr.as_ref(), init.as_ref()) };
        let (Some(attr), Some(init), false) = (attr, init, out.is_null()) else {
            return Err(FI_EINVAL);
        };
        let (format, place) = queue_place(attr, init)?;
        let entries = match attr.size {
            0 => QUEUE_SIZE,
            n => n.min(u32::MAX as usize),
        };
        let q = domain.open_external_cq(entries, &place)?;
        // SAFETY: `out` is a place for a pointer.
        unsafe { *out = external_cq((domain, q), format, place.at != 0, context) };
        Ok(())
    })
}

unsafe extern "C" fn get_mr_lkey<D: Domain>(m: *mut fid_mr) -> u64 {
    // SAFETY: the caller names an open region.
    let region = unsafe { mr::region::<D>(m) };
    let key = region.ok().and_then(|r| r.domain.lkey(&r.mr));
    key.map_or(FI_KEY_NOTAVAIL, u64::from)
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

unsafe extern "C" fn cntr_open_ext<D: Domain>(
    d: *mut fid_domain,
    attr: *mut fi_cntr_attr,
    out: *mut *mut fid_cntr,
    context: *mut c_void,
    init: *mut fi_efa_comp_cntr_init_attr,
) -> c_int {
    guard_int("cntr_open_ext", || {
        // SAFETY: `d` is a domain of ours; the attributes are NULL or valid.
        let (domain, attr, init) = unsafe { (of::<D>(d)?, attr.as_ref(), init.as_ref()) };
        let (Some(init), false) = (init, out.is_null()) else {
            return Err(FI_EINVAL);
        };
        let places = counter_places(init)?;
        let (events, wait, flags) = attr.map_or((FI_CNTR_EVENTS_COMP, FI_WAIT_UNSPEC, 0), |a| {
            (a.events, a.wait_obj, a.flags)
        });
        let known = events == FI_CNTR_EVENTS_COMP || events == FI_CNTR_EVENTS_BYTES;
        if !known || !matches!(wait, FI_WAIT_NONE | FI_WAIT_UNSPEC) || flags != 0 {
            crate::warn_log!(
                FI_LOG_CNTR,
                "cntr_open_ext: events {events}, wait_obj {wait}, flags {flags:#x}: wanted \
                 FI_CNTR_EVENTS_COMP or _BYTES, \
                 FI_WAIT_NONE or _UNSPEC, 0"
            );
            return Err(FI_EOPNOTSUPP);
        }
        // Nobody is woken by an adapter that counts: who waits polls.
        let c = domain.open_external_cntr(events, &places)?;
        // SAFETY: `out` is a place for a pointer.
        unsafe { *out = external_cntr(domain, c, context) };
        Ok(())
    })
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
