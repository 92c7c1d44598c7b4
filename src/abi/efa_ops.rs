//! Extensions of provider efa (`<rdma/fi_ext_efa.h>`): what `fi_open_ops` gives out for a domain.
//!
//! `fi_efa_ops_domain` tells how the adapter reaches a region, `fi_efa_ops_gda` gives out addresses, keys and queues for devices
//! that drive them by themselves. On an adapter without such things (the software's, or with older libraries) the answer is
//! `FI_EOPNOTSUPP`, or `FI_ENOSYS` for a region.

use super::ep::ep;
use super::mr;
use super::object::guard_int;
use super::queues::cq;
use crate::core::Result;
use crate::prov::efa::domain::{Poster, QueueMemory};
use crate::types::*;
use core::ffi::{c_int, c_void};

fn own(who: Poster) -> Result<u32> {
    match who {
        Poster::Ep(id) => Ok(id),
        Poster::Srx(_) => Err(FI_EINVAL),
    }
}

unsafe extern "C" fn query_mr(m: *mut fid_mr, out: *mut fi_efa_mr_attr) -> c_int {
    guard_int("query_mr", || {
        // SAFETY: the caller names an open region and a place for the answer.
        let (region, out) = unsafe { (mr::region(m)?, out.as_mut().ok_or(FI_EINVAL)?) };
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

/// "efa domain ops"
pub static DOMAIN: fi_efa_ops_domain = fi_efa_ops_domain {
    query_mr: Some(query_mr),
};

unsafe extern "C" fn query_addr(
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
            let b = ep(e)?;
            (*ahn, *qpn, *qkey) = b.domain.way_to(own(b.who)?, addr)?;
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

unsafe extern "C" fn query_qp_wqs(
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
            let b = ep(e)?;
            let [s, r, _] = b.domain.queue_memory(own(b.who)?)?;
            (*sq, *rq) = (wq(&s), wq(&r));
        }
        Ok(())
    })
}

unsafe extern "C" fn query_cq(q: *mut fid_cq, out: *mut fi_efa_cq_attr) -> c_int {
    guard_int("query_cq", || {
        // SAFETY: the caller names an open queue and a place for the answer.
        let (b, out) = unsafe { (cq(q)?, out.as_mut().ok_or(FI_EINVAL)?) };
        let m = b.domain.cq_memory(b.id)?;
        *out = fi_efa_cq_attr {
            buffer: m.buffer as *mut u8,
            entry_size: m.entry,
            num_entries: m.entries,
        };
        Ok(())
    })
}

unsafe extern "C" fn cq_open_ext(
    _: *mut fid_domain,
    _: *mut fi_cq_attr,
    _: *mut fi_efa_cq_init_attr,
    _: *mut *mut fid_cq,
    _: *mut c_void,
) -> c_int {
    -FI_EOPNOTSUPP
}

unsafe extern "C" fn get_mr_lkey(m: *mut fid_mr) -> u64 {
    // SAFETY: the caller names an open region.
    let region = unsafe { mr::region(m) };
    let key = region.ok().and_then(|r| r.domain.lkey(&r.mr));
    key.map_or(FI_KEY_NOTAVAIL, u64::from)
}

unsafe extern "C" fn cntr_open_ext(
    _: *mut fid_domain,
    _: *mut fi_cntr_attr,
    _: *mut *mut fid_cntr,
    _: *mut c_void,
    _: *mut fi_efa_comp_cntr_init_attr,
) -> c_int {
    -FI_EOPNOTSUPP
}

/// "efa gda ops"
pub static GDA: fi_efa_ops_gda = fi_efa_ops_gda {
    query_addr: Some(query_addr),
    query_qp_wqs: Some(query_qp_wqs),
    query_cq: Some(query_cq),
    cq_open_ext: Some(cq_open_ext),
    get_mr_lkey: Some(get_mr_lkey),
    cntr_open_ext: Some(cntr_open_ext),
};
