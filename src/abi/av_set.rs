//! `fid_av_set`: ordered subsets of an address vector, fi_av_set(3). A set is a list of addresses;
//! what it is good for is being joined (`collective`).

use super::av::AvBody;
use super::object::*;
use crate::core::Result;
use crate::prov::contract::*;
use crate::types::*;
use core::ffi::{c_int, c_void};
use core::mem::size_of;
use std::sync::{Arc, Mutex, MutexGuard};

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
        self.addrs.lock().unwrap_or_else(|e| e.into_inner())
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

/// # Safety
/// `s` is NULL or a set of ours.
pub(crate) unsafe fn set<'a, D: Domain>(s: *const fid_av_set) -> Result<&'a SetBody<D>> {
    // SAFETY: as promised by the caller.
    unsafe { body::<fid_av_set, SetBody<D>>(s.cast_mut()) }
}

/// The addresses that the attributes name. `FI_EINVAL` for a range without stride or for half of
/// one.
fn range<D: Domain>(domain: &D, av: u32, a: &fi_av_set_attr) -> Result<Vec<fi_addr_t>> {
    let len = domain.av_info(av)?.len as u64;
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

pub(crate) unsafe extern "C" fn av_set<D: Domain>(
    v: *mut fid_av,
    attr: *mut fi_av_set_attr,
    out: *mut *mut fid_av_set,
    context: *mut c_void,
) -> c_int {
    guard_int("fi_av_set", || {
        // SAFETY: `v` is an address vector of ours, the attributes are NULL or valid.
        let (av, attr) = unsafe { (body::<fid_av, AvBody<D>>(v)?, attr.as_ref()) };
        let attr = attr.filter(|_| !out.is_null()).ok_or(FI_EINVAL)?;
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
        // SAFETY: `out` is a place for a pointer.
        unsafe { *out = hand_out(f, b) };
        Ok(())
    })
}

unsafe extern "C" fn close<D: Domain>(f: *mut fid) -> c_int {
    let close = || {
        // SAFETY: only sets have this table.
        let b = unsafe { take::<fid_av_set, SetBody<D>>(f.cast())? };
        b.domain.hold_av(b.av, false);
        Ok(())
    };
    // SAFETY: only objects of ours have this table.
    unsafe { guard_close(f, close) }
}

/// Changes a set by another one of the same address vector.
///
/// # Safety
/// Both are NULL or sets of ours.
unsafe fn change<D: Domain>(
    call: &str,
    dst: *mut fid_av_set,
    src: *const fid_av_set,
    f: impl FnOnce(&SetBody<D>, &mut Vec<fi_addr_t>, &[fi_addr_t]) -> Result<()>,
) -> c_int {
    guard_int(call, || {
        // SAFETY: as promised by the caller.
        let (d, s) = unsafe { (set::<D>(dst)?, set::<D>(src)?) };
        if d.av != s.av || !Arc::ptr_eq(&d.domain, &s.domain) {
            crate::warn_log!(FI_LOG_AV, "{call}: the sets belong to different vectors");
            return Err(FI_EINVAL);
        }
        let other = s.members();
        f(d, &mut d.lock(), &other)
    })
}

unsafe extern "C" fn union<D: Domain>(dst: *mut fid_av_set, src: *const fid_av_set) -> c_int {
    // SAFETY: as promised by our caller.
    unsafe {
        change::<D>("fi_av_set_union", dst, src, |d, list, other| {
            for a in other {
                if !list.contains(a) {
                    d.room(list.len())?;
                    list.push(*a);
                }
            }
            Ok(())
        })
    }
}

unsafe extern "C" fn intersect<D: Domain>(dst: *mut fid_av_set, src: *const fid_av_set) -> c_int {
    // SAFETY: as promised by our caller.
    unsafe {
        change::<D>("fi_av_set_intersect", dst, src, |_, list, other| {
            list.retain(|a| other.contains(a));
            Ok(())
        })
    }
}

unsafe extern "C" fn diff<D: Domain>(dst: *mut fid_av_set, src: *const fid_av_set) -> c_int {
    // SAFETY: as promised by our caller.
    unsafe {
        change::<D>("fi_av_set_diff", dst, src, |_, list, other| {
            list.retain(|a| !other.contains(a));
            Ok(())
        })
    }
}

unsafe extern "C" fn insert<D: Domain>(s: *mut fid_av_set, addr: fi_addr_t) -> c_int {
    guard_int("fi_av_set_insert", || {
        // SAFETY: only sets have this table.
        let b = unsafe { set::<D>(s)? };
        let known = b.domain.lookup_addr(b.av, addr).is_ok();
        let mut list = b.lock();
        if !known || list.contains(&addr) {
            crate::warn_log!(
                FI_LOG_AV,
                "fi_av_set_insert: {addr:#x}: wanted an address of the vector that is not in the \
                 set"
            );
            return Err(FI_EINVAL);
        }
        b.room(list.len())?;
        list.push(addr);
        Ok(())
    })
}

unsafe extern "C" fn remove<D: Domain>(s: *mut fid_av_set, addr: fi_addr_t) -> c_int {
    guard_int("fi_av_set_remove", || {
        // SAFETY: only sets have this table.
        let mut list = unsafe { set::<D>(s)? }.lock();
        let at = list.iter().position(|a| *a == addr).ok_or(FI_EINVAL)?;
        list.remove(at);
        Ok(())
    })
}

unsafe extern "C" fn addr<D: Domain>(s: *mut fid_av_set, out: *mut fi_addr_t) -> c_int {
    guard_int("fi_av_set_addr", || {
        // SAFETY: only sets have this table; `out` is NULL or a place for an address.
        unsafe {
            set::<D>(s)?;
            *out.as_mut().ok_or(FI_EINVAL)? = D::SET_ADDR;
        }
        Ok(())
    })
}

impl<D: Domain> Tables<D> {
    pub(crate) const AV_SET_FI_OPS: &'static fi_ops = &ops(close::<D>, no_bind, no_control);
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
