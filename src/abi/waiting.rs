//! What completion queues and counters have in common: their wait objects (fi_control(3)), and the
//! wait sets that they belong to.

use super::entry::{ControlArg, FromC};
use super::handles::AnyObject;
use super::sets::{Member, WaitBody};
use crate::core::Result;
use crate::prov::contract::*;
use crate::types::*;
use core::ffi::c_int;
use core::ptr::NonNull;
use std::sync::Arc;

/// fi_control(3) of a queue or counter: its wait object.
pub(super) fn control(
    w: Option<&Arc<WaitSet>>,
    obj: fi_wait_obj,
    command: c_int,
    arg: &ControlArg,
) -> Result<()> {
    match command {
        FI_GETWAIT => {
            let w = w.ok_or(FI_ENODATA)?;
            if obj != FI_WAIT_MUTEX_COND {
                return put_descriptor(arg, obj, Ok(w.fd()));
            }
            let (mutex, cond) = w.mutex_cond();
            // SAFETY: the argument is a place for mutex and condition.
            unsafe { arg.place()? }.put(fi_mutex_cond { mutex, cond });
        }
        // SAFETY: the argument is a place for an enum fi_wait_obj.
        FI_GETWAITOBJ => unsafe { arg.place::<fi_wait_obj>()? }.put(chosen(obj)),
        _ => return Err(FI_ENOSYS),
    }
    Ok(())
}

/// FI_GETWAIT of an object with one descriptor, which is always the same: the descriptor, or with
/// FI_WAIT_POLLFD what poll(2) takes (fi_poll(3)). `FI_EINVAL` for NULL, before an error of `fd`;
/// `FI_ETOOSMALL` when the caller's list has no entry.
pub(super) fn put_descriptor(arg: &ControlArg, obj: fi_wait_obj, fd: Result<c_int>) -> Result<()> {
    if obj != FI_WAIT_POLLFD {
        // SAFETY: the argument is a place for a descriptor.
        unsafe { arg.place::<c_int>()? }.put(fd?);
        return Ok(());
    }
    // SAFETY: the argument is a struct fi_wait_pollfd whose list has `nfds` entries.
    let list = unsafe { arg.get::<fi_wait_pollfd>()? };
    let fd = fd?;
    let room = core::mem::replace(&mut list.nfds, 1);
    list.change_index = 1;
    if room == 0 {
        return Err(FI_ETOOSMALL);
    }
    let entry = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let at = NonNull::new(list.fd).ok_or(FI_EINVAL)?;
    // SAFETY: as above.
    unsafe { at.write(entry) };
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
pub(super) const WAITS: [fi_wait_obj; 7] = [
    FI_WAIT_NONE,
    FI_WAIT_UNSPEC,
    FI_WAIT_SET,
    FI_WAIT_FD,
    FI_WAIT_POLLFD,
    FI_WAIT_MUTEX_COND,
    FI_WAIT_YIELD,
];

/// `FI_ENOSYS`, with a line, for a wait object that is not in `known`.
pub(super) fn wait_obj(call: &str, obj: fi_wait_obj, known: &[fi_wait_obj]) -> Result<()> {
    if known.contains(&obj) {
        return Ok(());
    }
    let names: Vec<String> = known
        .iter()
        .map(|w| crate::core::tostr::wait_obj(*w))
        .collect();
    crate::warn_log!(
        FI_LOG_CORE,
        "{call}: wait_obj: wanted {}, accepted {}",
        crate::core::tostr::wait_obj(obj),
        names.join(", ")
    );
    Err(FI_ENOSYS)
}

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
