//! What completion queues and counters have in common: their wait objects (fi_control(3)), and the
//! wait sets that they belong to.

use super::entry::{ControlArg, FromC};
use super::handles::AnyObject;
use super::sets::{Member, WaitBody};
use crate::core::Result;
use crate::prov::contract::*;
use crate::types::*;
use core::ffi::c_int;
use std::sync::Arc;

/// fi_control(3) of a queue or counter: its wait object.
pub(super) fn control(
    w: Option<&Arc<WaitSet>>,
    obj: fi_wait_obj,
    command: c_int,
    arg: &ControlArg,
) -> Result<()> {
    // SAFETY: each command takes the address of what is put there: with FI_WAIT_MUTEX_COND the
    // mutex and condition, else the descriptor.
    unsafe {
        match command {
            FI_GETWAIT => {
                let w = w.ok_or(FI_ENODATA)?;
                if obj == FI_WAIT_MUTEX_COND {
                    let (mutex, cond) = w.mutex_cond();
                    arg.place()?.put(fi_mutex_cond { mutex, cond });
                } else {
                    arg.place::<c_int>()?.put(w.fd());
                }
            }
            FI_GETWAITOBJ => arg.place::<fi_wait_obj>()?.put(chosen(obj)),
            _ => return Err(FI_ENOSYS),
        }
    }
    Ok(())
}

/// The kind of wait object that there is where the application left it open.
pub(crate) fn chosen(obj: fi_wait_obj) -> fi_wait_obj {
    match obj {
        FI_WAIT_UNSPEC => FI_WAIT_FD,
        other => other,
    }
}

/// Wait objects that a queue or counter may be opened with.
pub(super) const WAITS: [fi_wait_obj; 6] = [
    FI_WAIT_NONE,
    FI_WAIT_UNSPEC,
    FI_WAIT_SET,
    FI_WAIT_FD,
    FI_WAIT_MUTEX_COND,
    FI_WAIT_YIELD,
];

/// The wait set an object opened with FI_WAIT_SET belongs to.
pub(super) fn wait_member<D: Domain>(
    obj: fi_wait_obj,
    set: *mut fid_wait,
) -> Result<Option<Arc<WaitBody<D>>>> {
    if obj != FI_WAIT_SET {
        return Ok(None);
    }
    // SAFETY: with FI_WAIT_SET the attributes of an open call name a wait set, or NULL.
    let object: AnyObject<D> = unsafe { FromC::from_c(set.cast::<fid>())? };
    match object {
        AnyObject::Wait(set) => Ok(Some(Arc::clone(set))),
        _ => Err(FI_EINVAL),
    }
}

/// Has a wait set watch what has a wait object with this descriptor, by which it is known.
pub(super) fn watch<D: Domain>(
    set: Option<Arc<WaitBody<D>>>,
    fd: Option<i32>,
    member: Member<D>,
) -> Option<(Arc<WaitBody<D>>, i32)> {
    let watched = set.zip(fd);
    if let Some((set, fd)) = &watched {
        set.add(*fd, member);
    }
    watched
}
