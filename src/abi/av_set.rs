//! `fid_av_set`: ordered subsets of an address vector, fi_av_set(3). A set is a list of addresses;
//! what it is good for is being joined (`collective`).

use super::av::AvBody;
use super::entry::{entry, OutParam};
use super::object::*;
use crate::core::sync::{Mutex, MutexGuard, Unpoisoned};
use crate::core::Result;
use crate::prov::contract::*;
use crate::types::*;
use core::ffi::{c_int, c_void};
use core::mem::size_of;
use std::sync::Arc;

/// Body of a `fid_av_set`.
pub(crate) struct SetBody<D: Domain> {
    domain: Arc<D>,
    av: u32,
    addrs: Mutex<Vec<fi_addr_t>>,
    /// Most members; 0 without limit.
    most: usize,
}

impl<D: Domain> SetBody<D> {
    fn lock(&self) -> MutexGuard<'_, Vec<fi_addr_t>> {
        self.addrs.lock().unpoisoned()
    }

    /// Its members, in order.
    pub(crate) fn members(&self) -> Vec<fi_addr_t> {
        self.lock().clone()
    }

    fn room(&self, len: usize) -> Result<()> {
        if self.most > 0 && len >= self.most {
            crate::warn_log!(
                FI_LOG_AV,
                "AV set: attr->count: no more than {} members",
                self.most
            );
            return Err(FI_ENOMEM);
        }
        Ok(())
    }
}

/// The addresses that the attributes name. `FI_EINVAL` for a range without stride or for half of
/// one.
fn range<D: Domain>(domain: &D, av: u32, a: &fi_av_set_attr) -> Result<Vec<fi_addr_t>> {
    let len = domain.av_info(av)?.end as u64;
    let (mut from, mut to, mut stride) = (a.start_addr, a.end_addr, a.stride);
    if a.flags & FI_UNIVERSE != 0 {
        (from, to, stride) = (0, len.saturating_sub(1), 1);
        if len == 0 {
            return Ok(Vec::new());
        }
    }
    if from == FI_ADDR_NOTAVAIL && to == FI_ADDR_NOTAVAIL {
        return Ok(Vec::new());
    }
    if from == FI_ADDR_NOTAVAIL || to == FI_ADDR_NOTAVAIL || stride == 0 {
        crate::warn_log!(
            FI_LOG_AV,
            "fi_av_set: start_addr {from:#x}, end_addr {to:#x}, stride {stride}: wanted all three, \
             or FI_ADDR_NOTAVAIL twice"
        );
        return Err(FI_EINVAL);
    }
    let mut list = Vec::new();
    let mut at = from;
    // Beyond the end of the vector nothing is valid.
    let end = to.min(len);
    while at <= end {
        if domain.lookup_addr(av, at).is_ok() {
            list.push(at);
        }
        at = match at.checked_add(stride) {
            Some(next) => next,
            None => break,
        };
    }
    if a.count > 0 && list.len() > a.count {
        crate::warn_log!(
            FI_LOG_AV,
            "fi_av_set: count {}: the range has {} addresses",
            a.count,
            list.len()
        );
        return Err(FI_EINVAL);
    }
    Ok(list)
}

entry! {
    pub(crate) fn av_set<D: Domain>(
        av: *mut fid_av as &AvBody<D>,
        attr: *mut fi_av_set_attr as &fi_av_set_attr,
        out: *mut *mut fid_av_set as OutParam<*mut fid_av_set>,
        context: *mut c_void,
    ) -> c_int = "fi_av_set" {
        if attr.comm_key_size != 0 {
            crate::warn_log!(
                FI_LOG_AV,
                "fi_av_set: comm_key_size {}: wanted 0, there is no manager of groups",
                attr.comm_key_size
            );
            return Err(FI_EOPNOTSUPP);
        }
        let addrs = range::<D>(&av.domain, av.id, attr)?;
        av.domain.hold_av(av.id, true);
        let f = fid_av_set {
            fid: new_fid(FI_CLASS_AV_SET, context, Tables::<D>::AV_SET_FI_OPS),
            ops: table(Tables::<D>::AV_SET_OPS),
        };
        let b = SetBody {
            domain: Arc::clone(&av.domain),
            av: av.id,
            addrs: Mutex::new(addrs),
            most: attr.count,
        };
        out.put(hand_out(f, b));
        Ok(())
    }
}

close! {
    fn set_close<D: Domain>(b: SetBody<D> as fid_av_set) {
        b.domain.hold_av(b.av, false);
        Ok(())
    }
}

/// The members of a set that shall change another one of the same address vector.
fn other_members<D: Domain>(
    call: &str,
    dst: &SetBody<D>,
    src: &SetBody<D>,
) -> Result<Vec<fi_addr_t>> {
    if dst.av != src.av || !Arc::ptr_eq(&dst.domain, &src.domain) {
        crate::warn_log!(FI_LOG_AV, "{call}: the sets belong to different vectors");
        return Err(FI_EINVAL);
    }
    Ok(src.members())
}

entry! {
    fn union<D: Domain>(
        dst: *mut fid_av_set as &SetBody<D>,
        src: *const fid_av_set as &SetBody<D>,
    ) -> c_int = "fi_av_set_union" {
        let other = other_members("fi_av_set_union", dst, src)?;
        let mut list = dst.lock();
        for a in other {
            if !list.contains(&a) {
                dst.room(list.len())?;
                list.push(a);
            }
        }
        Ok(())
    }
}

entry! {
    fn intersect<D: Domain>(
        dst: *mut fid_av_set as &SetBody<D>,
        src: *const fid_av_set as &SetBody<D>,
    ) -> c_int = "fi_av_set_intersect" {
        let other = other_members("fi_av_set_intersect", dst, src)?;
        dst.lock().retain(|a| other.contains(a));
        Ok(())
    }
}

entry! {
    fn diff<D: Domain>(
        dst: *mut fid_av_set as &SetBody<D>,
        src: *const fid_av_set as &SetBody<D>,
    ) -> c_int = "fi_av_set_diff" {
        let other = other_members("fi_av_set_diff", dst, src)?;
        dst.lock().retain(|a| !other.contains(a));
        Ok(())
    }
}

entry! {
    fn insert<D: Domain>(s: *mut fid_av_set as &SetBody<D>, addr: fi_addr_t) -> c_int
        = "fi_av_set_insert"
    {
        let known = s.domain.lookup_addr(s.av, addr).is_ok();
        let mut list = s.lock();
        if !known || list.contains(&addr) {
            crate::warn_log!(
                FI_LOG_AV,
                "fi_av_set_insert: {addr:#x}: wanted an address of the vector that is not in the \
                 set"
            );
            return Err(FI_EINVAL);
        }
        s.room(list.len())?;
        list.push(addr);
        Ok(())
    }
}

entry! {
    fn remove<D: Domain>(s: *mut fid_av_set as &SetBody<D>, addr: fi_addr_t) -> c_int
        = "fi_av_set_remove"
    {
        let mut list = s.lock();
        let at = list.iter().position(|a| *a == addr).ok_or(FI_EINVAL)?;
        list.remove(at);
        Ok(())
    }
}

entry! {
    fn addr<D: Domain>(
        _set: *mut fid_av_set as &SetBody<D>,
        out: *mut fi_addr_t as OutParam<fi_addr_t>,
    ) -> c_int = "fi_av_set_addr" {
        out.put(D::SET_ADDR);
        Ok(())
    }
}

impl<D: Domain> Tables<D> {
    pub(crate) const AV_SET_FI_OPS: &'static fi_ops = &ops(set_close::<D>, no_bind, no_control);
}
impl<D: Domain> Tables<D> {
    pub(crate) const AV_SET_OPS: &'static fi_ops_av_set = &fi_ops_av_set {
        size: size_of::<fi_ops_av_set>(),
        set_union: Some(union::<D>),
        intersect: Some(intersect::<D>),
        diff: Some(diff::<D>),
        insert: Some(insert::<D>),
        remove: Some(remove::<D>),
        addr: Some(addr::<D>),
    };
}
