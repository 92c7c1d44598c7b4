//! Poll sets and wait sets (fi_poll(3)): completion queues and counters watched together.
//!
//! A poll set remembers the handles that were added and looks at each when asked. A wait set
//! watches the wait objects of queues and counters opened with FI_WAIT_SET.

use super::domain::of;
use super::object::*;
use super::queues::{cntr, cq};
use crate::core::Result;
use crate::prov::efa::domain::Domain;
use crate::prov::efa::eq::{deadline, remaining};
use crate::prov::efa::WaitSet;
use crate::types::*;
use core::ffi::{c_int, c_void};
use core::mem::size_of;
use std::sync::{Arc, Mutex};

/// Body of a `fid_poll`: what was added, and the last value seen of a counter.
struct PollBody {
    _domain: Arc<Domain>,
    members: Mutex<Vec<(usize, u64)>>,
}

pub unsafe extern "C" fn poll_open(
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
            let domain = of(d)?;
            if attr.as_ref().is_some_and(|a| a.flags != 0) {
                return Err(FI_EBADFLAGS);
            }
            let f = fid_poll {
                fid: new_fid(FI_CLASS_POLL, core::ptr::null_mut(), &POLL_FI_OPS),
                ops: table(&POLL_OPS),
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

unsafe extern "C" fn poll_close(f: *mut fid) -> c_int {
    let close = || {
        // SAFETY: only poll sets have this table.
        unsafe { take::<fid_poll, PollBody>(f.cast())? };
        Ok(())
    };
    // SAFETY: only objects of ours have this table.
    unsafe { guard_close(f, close) }
}

unsafe extern "C" fn poll_add(p: *mut fid_poll, f: *mut fid, flags: u64) -> c_int {
    guard_int("fi_poll_add", || {
        // SAFETY: `p` is ours; `f` is NULL or an open object.
        unsafe {
            let b = body::<fid_poll, PollBody>(p)?;
            if flags != 0 {
                return Err(FI_EBADFLAGS);
            }
            let seen = match f.as_ref().ok_or(FI_EINVAL)?.fclass {
                FI_CLASS_CQ => 0,
                FI_CLASS_CNTR => {
                    let c = cntr(f.cast())?;
                    c.domain.with_cntr(c.id, |c| c.value())?
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

unsafe extern "C" fn poll_del(p: *mut fid_poll, f: *mut fid, flags: u64) -> c_int {
    guard_int("fi_poll_del", || {
        // SAFETY: `p` is ours.
        let b = unsafe { body::<fid_poll, PollBody>(p)? };
        if flags != 0 {
            return Err(FI_EBADFLAGS);
        }
        let mut members = b.members.lock().unwrap_or_else(|e| e.into_inner());
        members.retain(|(m, _)| *m != f as usize);
        Ok(())
    })
}

unsafe extern "C" fn poll(p: *mut fid_poll, contexts: *mut *mut c_void, count: c_int) -> c_int {
    guard("fi_poll", || {
        // SAFETY: `p` is ours; its members are open, as fi_poll(3) asks; there is room for `count`.
        unsafe {
            let b = body::<fid_poll, PollBody>(p)?;
            let mut n = 0;
            let mut members = b.members.lock().unwrap_or_else(|e| e.into_inner());
            for (m, seen) in members.iter_mut() {
                let f = *m as *mut fid;
                let news = if (*f).fclass == FI_CLASS_CQ {
                    let q = cq(f.cast())?;
                    q.domain.cq_has_any(q.id)?
                } else {
                    let c = cntr(f.cast())?;
                    let now = c
                        .domain
                        .with_cntr(c.id, |c| c.value().wrapping_add(c.errors()))?;
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

static POLL_FI_OPS: fi_ops = ops(poll_close, no_bind, no_control);
static POLL_OPS: fi_ops_poll = fi_ops_poll {
    size: size_of::<fi_ops_poll>(),
    poll: Some(poll),
    poll_add: Some(poll_add),
    poll_del: Some(poll_del),
};

// ---- wait sets -------------------------------------------------------------------------------

/// Something a wait set watches.
#[derive(Clone)]
pub enum Member {
    Cq(Arc<Domain>, u32),
    Cntr(Arc<Domain>, u32),
}

/// Body of a `fid_wait`.
pub struct WaitBody {
    set: WaitSet,
    members: Mutex<Vec<(i32, Member)>>,
}

impl WaitBody {
    /// Watches a queue or counter, whose wait object has this descriptor.
    pub fn add(&self, fd: i32, m: Member) {
        self.set.add(fd);
        self.lock().push((fd, m));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(i32, Member)>> {
        self.members.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The queue or counter of this descriptor is closed.
    pub fn remove(&self, fd: i32) {
        self.set.remove(fd);
        self.lock().retain(|(f, _)| *f != fd);
    }
}

/// The wait set behind a handle; `FI_EINVAL` for NULL.
///
/// # Safety
/// `w` is NULL or a wait set of ours.
pub unsafe fn wait_set<'a>(w: *mut fid_wait) -> Result<&'a Arc<WaitBody>> {
    // SAFETY: as promised by the caller.
    unsafe { body::<fid_wait, Arc<WaitBody>>(w) }
}

pub unsafe extern "C" fn wait_open(
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
            fid: new_fid(FI_CLASS_WAIT, core::ptr::null_mut(), &WAIT_FI_OPS),
            ops: table(&WAIT_OPS),
        };
        let b = Arc::new(WaitBody {
            set: WaitSet::new()?,
            members: Mutex::default(),
        });
        // SAFETY: `out` is a place for a pointer.
        unsafe { *out = hand_out(f, b) };
        Ok(())
    })
}

unsafe extern "C" fn wait_close(f: *mut fid) -> c_int {
    let close = || {
        // SAFETY: only wait sets have this table.
        unsafe {
            if !wait_set(f.cast())?.lock().is_empty() {
                crate::warn_log!(
                    FI_LOG_FABRIC,
                    "fi_close: this wait set still has queues or counters"
                );
                return Err(FI_EBUSY);
            }
            take::<fid_wait, Arc<WaitBody>>(f.cast())?;
        }
        Ok(())
    };
    // SAFETY: only objects of ours have this table.
    unsafe { guard_close(f, close) }
}

unsafe extern "C" fn wait_control(f: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    guard_int("fi_control", || {
        // SAFETY: only wait sets have this table; `arg` is what the command wants.
        unsafe {
            let b = wait_set(f.cast())?;
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
unsafe extern "C" fn wait(w: *mut fid_wait, timeout: c_int) -> c_int {
    guard_int("fi_wait", || {
        // SAFETY: `w` is NULL or ours.
        let b = unsafe { Arc::clone(wait_set(w)?) };
        let until = deadline(timeout);
        loop {
            let members: Vec<Member> = b.lock().iter().map(|(_, m)| m.clone()).collect();
            for m in members {
                let armed = match m {
                    Member::Cq(d, id) => d.arm_cq(id),
                    Member::Cntr(d, id) => {
                        let (value, errors) = d.with_cntr(id, |c| (c.value(), c.errors()))?;
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

static WAIT_FI_OPS: fi_ops = ops(wait_close, no_bind, wait_control);
static WAIT_OPS: fi_ops_wait = fi_ops_wait {
    size: size_of::<fi_ops_wait>(),
    wait: Some(wait),
};
