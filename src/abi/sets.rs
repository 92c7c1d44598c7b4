//! Poll sets and wait sets (fi_poll(3)): completion queues and counters watched together.
//!
//! A poll set remembers the handles that were added and looks at each when asked. A wait set
//! watches the wait objects of queues and counters opened with FI_WAIT_SET.

use super::domain::of;
use super::object::*;
use super::queues::{cntr, cq};
use crate::core::Result;
use crate::prov::contract::*;
use crate::types::*;
use core::ffi::{c_int, c_void};
use core::mem::size_of;
use std::sync::{Arc, Mutex};

/// Body of a `fid_poll`: what was added, and the last value seen of a counter.
struct PollBody<D: Domain> {
    _domain: Arc<D>,
    members: Mutex<Vec<(usize, u64)>>,
}

pub(crate) unsafe extern "C" fn poll_open<D: Domain>(
    d: *mut fid_domain,
    attr: *mut fi_poll_attr,
    out: *mut *mut fid_poll,
) -> c_int {
    guard_int("fi_poll_open", || {
        if out.is_null() {
            return Err(FI_EINVAL);
        }
        // SAFETY: `d` is a domain of ours; the attributes are NULL or valid.
        unsafe {
            let domain = of::<D>(d)?;
            if attr.as_ref().is_some_and(|a| a.flags != 0) {
                return Err(FI_EBADFLAGS);
            }
            let f = fid_poll {
                fid: new_fid(
                    FI_CLASS_POLL,
                    core::ptr::null_mut(),
                    Tables::<D>::POLL_FI_OPS,
                ),
                ops: table(Tables::<D>::POLL_OPS),
            };
            let b = PollBody {
                _domain: Arc::clone(domain),
                members: Mutex::default(),
            };
            *out = hand_out(f, b);
        }
        Ok(())
    })
}

unsafe extern "C" fn poll_close<D: Domain>(f: *mut fid) -> c_int {
    let close = || {
        // SAFETY: only poll sets have this table.
        unsafe { take::<fid_poll, PollBody<D>>(f.cast())? };
        Ok(())
    };
    // SAFETY: only objects of ours have this table.
    unsafe { guard_close(f, close) }
}

unsafe extern "C" fn poll_add<D: Domain>(p: *mut fid_poll, f: *mut fid, flags: u64) -> c_int {
    guard_int("fi_poll_add", || {
        // SAFETY: `p` is ours; `f` is NULL or an open object.
        unsafe {
            let b = body::<fid_poll, PollBody<D>>(p)?;
            if flags != 0 {
                return Err(FI_EBADFLAGS);
            }
            let seen = match f.as_ref().ok_or(FI_EINVAL)?.fclass {
                FI_CLASS_CQ => 0,
                FI_CLASS_CNTR => {
                    let c = cntr::<D>(f.cast())?;
                    c.domain.read_cntr(c.id)?.0
                }
                _ => return Err(FI_EINVAL),
            };
            let mut members = b.members.lock().unwrap_or_else(|e| e.into_inner());
            if !members.iter().any(|(m, _)| *m == f as usize) {
                members.push((f as usize, seen));
            }
        }
        Ok(())
    })
}

unsafe extern "C" fn poll_del<D: Domain>(p: *mut fid_poll, f: *mut fid, flags: u64) -> c_int {
    guard_int("fi_poll_del", || {
        // SAFETY: `p` is ours.
        let b = unsafe { body::<fid_poll, PollBody<D>>(p)? };
        if flags != 0 {
            return Err(FI_EBADFLAGS);
        }
        let mut members = b.members.lock().unwrap_or_else(|e| e.into_inner());
        members.retain(|(m, _)| *m != f as usize);
        Ok(())
    })
}

unsafe extern "C" fn poll<D: Domain>(
    p: *mut fid_poll,
    contexts: *mut *mut c_void,
    count: c_int,
) -> c_int {
    guard("fi_poll", || {
        // SAFETY: `p` is ours; its members are open, as fi_poll(3) asks; there is room for `count`.
        unsafe {
            let b = body::<fid_poll, PollBody<D>>(p)?;
            let mut n = 0;
            let mut members = b.members.lock().unwrap_or_else(|e| e.into_inner());
            for (m, seen) in members.iter_mut() {
                let f = *m as *mut fid;
                let news = if (*f).fclass == FI_CLASS_CQ {
                    let q = cq::<D>(f.cast())?;
                    q.domain.cq_has_any(q.id)?
                } else {
                    let c = cntr::<D>(f.cast())?;
                    let (value, errors) = c.domain.read_cntr(c.id)?;
                    let now = value.wrapping_add(errors);
                    core::mem::replace(seen, now) != now
                };
                if news && n < count as isize {
                    if contexts.is_null() {
                        return Err(FI_EINVAL);
                    }
                    *contexts.offset(n) = (*f).context;
                    n += 1;
                }
            }
            Ok(n)
        }
    }) as c_int
}

impl<D: Domain> Tables<D> {
    pub(crate) const POLL_FI_OPS: &'static fi_ops = &ops(poll_close::<D>, no_bind, no_control);
}
impl<D: Domain> Tables<D> {
    pub(crate) const POLL_OPS: &'static fi_ops_poll = &fi_ops_poll {
        size: size_of::<fi_ops_poll>(),
        poll: Some(poll::<D>),
        poll_add: Some(poll_add::<D>),
        poll_del: Some(poll_del::<D>),
    };
}

// ---- wait sets -------------------------------------------------------------------------------

/// Something a wait set watches.
pub(crate) enum Member<D: Domain> {
    Cq(Arc<D>, u32),
    Cntr(Arc<D>, u32),
}

impl<D: Domain> Clone for Member<D> {
    fn clone(&self) -> Member<D> {
        match self {
            Member::Cq(d, id) => Member::Cq(Arc::clone(d), *id),
            Member::Cntr(d, id) => Member::Cntr(Arc::clone(d), *id),
        }
    }
}

/// Body of a `fid_wait`.
pub(crate) struct WaitBody<D: Domain> {
    set: WaitSet,
    members: Mutex<Vec<(i32, Member<D>)>>,
}

impl<D: Domain> WaitBody<D> {
    /// Watches a queue or counter, whose wait object has this descriptor.
    pub(crate) fn add(&self, fd: i32, m: Member<D>) {
        self.set.add(fd);
        self.lock().push((fd, m));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(i32, Member<D>)>> {
        self.members.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The queue or counter of this descriptor is closed.
    pub(crate) fn remove(&self, fd: i32) {
        self.set.remove(fd);
        self.lock().retain(|(f, _)| *f != fd);
    }
}

/// The wait set behind a handle; `FI_EINVAL` for NULL.
///
/// # Safety
/// `w` is NULL or a wait set of ours.
pub(crate) unsafe fn wait_set<'a, D: Domain>(w: *mut fid_wait) -> Result<&'a Arc<WaitBody<D>>> {
    // SAFETY: as promised by the caller.
    unsafe { body::<fid_wait, Arc<WaitBody<D>>>(w) }
}

pub(crate) unsafe extern "C" fn wait_open<D: Domain>(
    _: *mut fid_fabric,
    attr: *mut fi_wait_attr,
    out: *mut *mut fid_wait,
) -> c_int {
    guard_int("fi_wait_open", || {
        // SAFETY: the attributes are NULL or valid.
        let attr = unsafe { attr.as_ref() }.ok_or(FI_EINVAL)?;
        if out.is_null() {
            return Err(FI_EINVAL);
        }
        if attr.flags != 0 {
            return Err(FI_EBADFLAGS);
        }
        if !matches!(attr.wait_obj, FI_WAIT_UNSPEC | FI_WAIT_FD) {
            crate::warn_log!(
                FI_LOG_FABRIC,
                "fi_wait_open: wait_obj {}: wanted FI_WAIT_UNSPEC or FI_WAIT_FD",
                attr.wait_obj
            );
            return Err(FI_ENOSYS);
        }
        let f = fid_wait {
            fid: new_fid(
                FI_CLASS_WAIT,
                core::ptr::null_mut(),
                Tables::<D>::WAIT_FI_OPS,
            ),
            ops: table(Tables::<D>::WAIT_OPS),
        };
        let b = Arc::new(WaitBody::<D> {
            set: WaitSet::new()?,
            members: Mutex::default(),
        });
        // SAFETY: `out` is a place for a pointer.
        unsafe { *out = hand_out(f, b) };
        Ok(())
    })
}

unsafe extern "C" fn wait_close<D: Domain>(f: *mut fid) -> c_int {
    let close = || {
        // SAFETY: only wait sets have this table.
        unsafe {
            if !wait_set::<D>(f.cast())?.lock().is_empty() {
                crate::warn_log!(
                    FI_LOG_FABRIC,
                    "fi_close: this wait set still has queues or counters"
                );
                return Err(FI_EBUSY);
            }
            take::<fid_wait, Arc<WaitBody<D>>>(f.cast())?;
        }
        Ok(())
    };
    // SAFETY: only objects of ours have this table.
    unsafe { guard_close(f, close) }
}

unsafe extern "C" fn wait_control<D: Domain>(
    f: *mut fid,
    command: c_int,
    arg: *mut c_void,
) -> c_int {
    guard_int("fi_control", || {
        // SAFETY: only wait sets have this table; `arg` is what the command wants.
        unsafe {
            let b = wait_set::<D>(f.cast())?;
            if arg.is_null() {
                return Err(FI_EINVAL);
            }
            match command {
                FI_GETWAIT => *arg.cast::<c_int>() = b.set.fd(),
                _ => return Err(FI_ENOSYS),
            }
        }
        Ok(())
    })
}

/// fi_wait(3): 0 when something can be read, `FI_ETIMEDOUT` after `timeout` milliseconds.
unsafe extern "C" fn wait<D: Domain>(w: *mut fid_wait, timeout: c_int) -> c_int {
    guard_int("fi_wait", || {
        // SAFETY: `w` is NULL or ours.
        let b = unsafe { Arc::clone(wait_set::<D>(w)?) };
        let until = deadline(timeout);
        loop {
            let members: Vec<Member<D>> = b.lock().iter().map(|(_, m)| m.clone()).collect();
            for m in members {
                let armed = match m {
                    Member::Cq(d, id) => d.arm_cq(id),
                    Member::Cntr(d, id) => {
                        let (value, errors) = d.read_cntr(id)?;
                        d.arm_cntr(id, value + 1, errors)
                    }
                };
                match armed {
                    Ok(_) => {}
                    Err(FI_EAGAIN) => return Ok(()),
                    Err(e) => return Err(e),
                }
            }
            let left = remaining(until);
            if left == 0 {
                return Err(FI_ETIMEDOUT);
            }
            if b.set.wait(left) {
                return Ok(());
            }
        }
    })
}

impl<D: Domain> Tables<D> {
    pub(crate) const WAIT_FI_OPS: &'static fi_ops =
        &ops(wait_close::<D>, no_bind, wait_control::<D>);
}
impl<D: Domain> Tables<D> {
    pub(crate) const WAIT_OPS: &'static fi_ops_wait = &fi_ops_wait {
        size: size_of::<fi_ops_wait>(),
        wait: Some(wait::<D>),
    };
}
