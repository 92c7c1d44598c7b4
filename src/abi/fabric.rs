//! `fid_fabric` and `fid_eq`.

use super::entry::{entry, ControlArg, FromC, OutParam, TextOut};
use super::handles::{AnyObject, Handles};
use super::object::*;
use super::sets::Member;
use super::waiting::{chosen, put_descriptor, wait_member, wait_obj, watch};
use crate::core::info::FabricAttr;
use crate::core::sync::{Mutex, Unpoisoned};
use crate::core::{Info, Result};
use crate::prov::contract::*;
use crate::types::*;
use core::ffi::{c_char, c_int, c_void};
use core::mem::size_of;
use std::sync::Arc;

/// Body of a `fid_fabric`.
pub(crate) type FabricBody = Arc<Fabric>;

type LeaveSet = Box<dyn Fn() + Send + Sync>;

/// Body of a `fid_eq`.
pub(crate) struct EqBody {
    pub eq: Arc<Eq>,
    fabric: Arc<Fabric>,
    /// More about the error that was read last, for callers that bring no room for it.
    err_data: Mutex<Vec<u8>>,
    /// Takes it out of its wait set.
    leave_set: Option<LeaveSet>,
}

/// Opens a fabric of a provider, and returns its handle.
pub(crate) fn open<P: Provider>(
    p: &P,
    attr: &FabricAttr,
    context: usize,
) -> Result<*mut fid_fabric> {
    let name = attr.name.as_deref().ok_or(FI_EINVAL)?;
    p.check_fabric(name)?;
    let fabric = Fabric::new(name, attr.api_version);
    let f = fid_fabric {
        fid: new_fid(
            FI_CLASS_FABRIC,
            context as *mut c_void,
            Tables::<P::Domain>::FABRIC_FI_OPS,
        ),
        ops: table(Tables::<P::Domain>::FABRIC_OPS),
        api_version: attr.api_version,
    };
    let handle = hand_out::<_, FabricBody>(f, Arc::clone(&fabric));
    fabric.opened.fabric(handle as usize, p.name(), name);
    Ok(handle)
}

close! {
    fn fabric_close(b: FabricBody as fid_fabric) {
        b.close()
    }
}

entry! {
    fn fabric_ops_open<D: Domain>(
        fabric: *mut fid as &FabricBody,
        name: *const c_char as String,
        flags: u64,
        ops: *mut *mut c_void as OutParam<*mut c_void>,
        _context: *mut c_void,
    ) -> c_int = "fi_open_ops" {
        super::domain::open_extension::<D>(flags, &ops, || D::fabric_extension(fabric, &name))
    }
}

impl<D: Domain> Tables<D> {
    const FABRIC_FI_OPS: &'static fi_ops = &fi_ops {
        ops_open: Some(fabric_ops_open::<D>),
        ..ops(fabric_close, no_bind, no_control)
    };
}

entry! {
    fn domain<D: Domain>(
        fabric: *mut fid_fabric as &FabricBody,
        info: *mut fi_info as Info,
        out: *mut *mut fid_domain as OutParam<*mut fid_domain>,
        context: *mut c_void,
    ) -> c_int = "fi_domain" {
        super::domain::open::<D>(fabric, info, context).map(|d| out.put(d))
    }
}

entry! {
    fn domain2<D: Domain>(
        fabric: *mut fid_fabric as &FabricBody,
        info: *mut fi_info as Info,
        out: *mut *mut fid_domain as OutParam<*mut fid_domain>,
        flags: u64,
        context: *mut c_void,
    ) -> c_int = "fi_domain2" {
        match flags {
            0 => super::domain::open::<D>(fabric, info, context).map(|d| out.put(d)),
            f if f & FI_PEER != 0 => Err(FI_ENOSYS),
            _ => Err(FI_EBADFLAGS),
        }
    }
}

entry! {
    fn eq_open<D: Domain>(
        fabric: *mut fid_fabric as &FabricBody,
        attr: *mut fi_eq_attr as Option<&fi_eq_attr>,
        out: *mut *mut fid_eq as OutParam<*mut fid_eq>,
        context: *mut c_void,
    ) -> c_int = "fi_eq_open" {
        let (flags, wait) = attr.map_or((0, FI_WAIT_NONE), |a| (a.flags, a.wait_obj));
        if flags & !(FI_WRITE | FI_AFFINITY) != 0 {
            crate::warn_log!(FI_LOG_EQ, "fi_eq_open: flags {flags:#x}: wanted FI_WRITE");
            return Err(FI_EBADFLAGS);
        }
        wait_obj(
            "fi_eq_open",
            wait,
            &[
                FI_WAIT_NONE,
                FI_WAIT_UNSPEC,
                FI_WAIT_SET,
                FI_WAIT_FD,
                FI_WAIT_POLLFD,
                FI_WAIT_YIELD,
            ],
        )?;
        let set = wait_member::<D>(wait, attr.map_or(core::ptr::null_mut(), |a| a.wait_set))?;
        let eq = Arc::new(Eq::new(flags, wait)?);
        let watched = watch(set, eq.fd().ok(), Member::Eq(Arc::downgrade(&eq)));
        let leave_set = watched.map(|(set, fd)| Box::new(move || set.remove(fd)) as LeaveSet);
        fabric.hold();
        let b = EqBody {
            eq,
            fabric: Arc::clone(fabric),
            err_data: Mutex::default(),
            leave_set,
        };
        let f = fid_eq {
            fid: new_fid(FI_CLASS_EQ, context, &EQ_FI_OPS),
            ops: table(&EQ_OPS),
        };
        out.put(hand_out(f, b));
        Ok(())
    }
}

entry! {
    /// fi_trywait(3): `FI_EAGAIN` when one of the objects must be read first, because there is
    /// something to read or because only a call makes the progress that is due.
    fn trywait<D: Domain>(
        _fabric: *mut fid_fabric,
        (fids: *mut *mut fid, count: c_int) as objects: Handles<D>,
    ) -> c_int = "fi_trywait" {
        for object in objects.iter() {
            let most = match object? {
                AnyObject::Eq(q) if !q.eq.is_empty() => return Err(FI_EAGAIN),
                AnyObject::Eq(_) => -1,
                AnyObject::Cq(q) => q.domain.arm_cq(q.id)?,
                AnyObject::Cntr(c) => {
                    // What has changed since the application read it must be read first.
                    let (value, errors) = c.domain.seen_cntr(c.id)?;
                    c.domain.arm_cntr(c.id, value.saturating_add(1), errors)?
                }
                AnyObject::Wait(w) => w.try_wait()?,
                _ => return Err(FI_EINVAL),
            };
            // The application may sleep without limit.
            if most >= 0 {
                return Err(FI_EAGAIN);
            }
        }
        Ok(())
    }
}

impl<D: Domain> Tables<D> {
    pub(crate) const FABRIC_OPS: &'static fi_ops_fabric = &fi_ops_fabric {
        size: size_of::<fi_ops_fabric>(),
        domain: Some(domain::<D>),
        passive_ep: Some(super::cm::passive_ep::<D>),
        eq_open: Some(eq_open::<D>),
        wait_open: Some(super::sets::wait_open::<D>),
        trywait: Some(trywait::<D>),
        domain2: Some(domain2::<D>),
    };
}

// ---- event queues ----------------------------------------------------------------------------

close! {
    fn eq_close(b: EqBody as fid_eq) {
        if Arc::strong_count(&b.eq) > 1 {
            crate::warn_log!(
                FI_LOG_EQ,
                "fi_close: this event queue is still bound to a domain or endpoint"
            );
            return Err(FI_EBUSY);
        }
        if let Some(leave) = &b.leave_set {
            leave();
        }
        b.fabric.release();
        Ok(())
    }
}

entry! {
    fn eq_control(
        b: *mut fid as &EqBody,
        command: c_int,
        arg: *mut c_void as ControlArg,
    ) -> c_int = "fi_control" {
        match command {
            FI_GETWAIT => return put_descriptor(&arg, b.eq.wait_obj, b.eq.fd()),
            // SAFETY: FI_GETWAITOBJ's argument is a place for an enum fi_wait_obj.
            FI_GETWAITOBJ => unsafe { arg.place::<fi_wait_obj>()? }.put(chosen(b.eq.wait_obj)),
            _ => return Err(FI_ENOSYS),
        }
        Ok(())
    }
}

static EQ_FI_OPS: fi_ops = ops(eq_close, no_bind, eq_control);

/// Where an event is written: a place for its number, and room for its entry.
struct EventOut {
    event: Option<OutParam<u32>>,
    buf: *mut u8,
    len: usize,
}

impl FromC<(*mut u32, *mut c_void, usize)> for EventOut {
    unsafe fn from_c((event, buf, len): (*mut u32, *mut c_void, usize)) -> Result<Self> {
        Ok(EventOut {
            // SAFETY: the place is NULL or the caller's.
            event: unsafe { FromC::from_c(event)? },
            buf: buf.cast(),
            len: if buf.is_null() { 0 } else { len },
        })
    }
}

impl EventOut {
    /// Writes an event, as much of its entry as there is room for, which includes the data of a
    /// peer (fi_eq(3)); returns the number of bytes.
    fn give(&self, e: &EqEvent) -> usize {
        if let Some(event) = &self.event {
            event.put(e.event);
        }
        let n = e.bytes.len().min(self.len);
        if !self.buf.is_null() {
            // SAFETY: the caller has so much room.
            unsafe { core::ptr::copy_nonoverlapping(e.bytes.as_ptr(), self.buf, n) }
        }
        n
    }
}

entry! {
    fn eq_read(
        q: *mut fid_eq as &EqBody,
        (event: *mut u32, buf: *mut c_void, len: usize) as out: EventOut,
        flags: u64,
    ) -> isize = "fi_eq_read" {
        Ok(out.give(&q.eq.read(flags & FI_PEEK != 0)?))
    }
}

entry! {
    fn eq_sread(
        q: *mut fid_eq as &EqBody,
        (event: *mut u32, buf: *mut c_void, len: usize) as out: EventOut,
        timeout: c_int,
        flags: u64,
    ) -> isize = "fi_eq_sread" {
        Ok(out.give(&q.eq.sread(timeout, flags & FI_PEEK != 0)?))
    }
}

entry! {
    fn eq_readerr(
        q: *mut fid_eq as &EqBody,
        to: *mut fi_eq_err_entry as &mut fi_eq_err_entry,
        _flags: u64,
    ) -> isize = "fi_eq_readerr" {
        let e = q.eq.read_error()?;
        // Errors have the words of a `fi_eq_entry`.
        let words: Vec<usize> = e
            .bytes
            .chunks_exact(size_of::<usize>())
            .map(|w| usize::from_ne_bytes(w.try_into().unwrap_or_default()))
            .collect();
        let &[fid, context, data] = &words[..] else {
            return Err(FI_EOTHER);
        };
        (to.fid, to.context, to.data) = (fid as fid_t, context as *mut c_void, data as u64);
        (to.err, to.prov_errno) = (e.err, e.prov_errno);
        let mut kept = q.err_data.lock().unpoisoned();
        *kept = e.err_data;
        if to.err_data.is_null() || to.err_data_size == 0 {
            // Ours, until the next read.
            to.err_data = match kept.is_empty() {
                true => core::ptr::null_mut(),
                false => kept.as_mut_ptr().cast(),
            };
            to.err_data_size = kept.len();
        } else {
            to.err_data_size = to.err_data_size.min(kept.len());
            // SAFETY: the caller offers as many bytes.
            unsafe {
                core::ptr::copy_nonoverlapping(kept.as_ptr(), to.err_data.cast(), to.err_data_size);
            }
        }
        Ok(size_of::<fi_eq_err_entry>())
    }
}

entry! {
    fn eq_write(
        q: *mut fid_eq as &EqBody,
        event: u32,
        (buf: *const c_void, len: usize) as entry: EventEntry,
        _flags: u64,
    ) -> isize = "fi_eq_write" {
        if !q.eq.writable {
            crate::warn_log!(
                FI_LOG_EQ,
                "fi_eq_write: the queue was opened without FI_WRITE"
            );
            return Err(FI_EINVAL);
        }
        q.eq.push(EqEvent {
            event,
            bytes: entry.0.to_vec(),
            ..EqEvent::default()
        });
        Ok(entry.0.len())
    }
}

/// The entry of an event that the application writes.
struct EventEntry<'a>(&'a [u8]);

/// `FI_EINVAL` for NULL with a length, and for more than 64 KiB.
impl FromC<(*const c_void, usize)> for EventEntry<'_> {
    unsafe fn from_c((buf, len): (*const c_void, usize)) -> Result<Self> {
        // SAFETY: as promised by the caller.
        let bytes: Option<&[u8]> = unsafe { FromC::from_c((buf, len))? };
        match (bytes, len) {
            (_, 0) => Ok(EventEntry(&[])),
            (Some(b), ..=0x10000) => Ok(EventEntry(b)),
            _ => Err(FI_EINVAL),
        }
    }
}

entry! {
    fn eq_strerror(
        _eq: *mut fid_eq,
        prov_errno: c_int,
        _err_data: *const c_void,
        (buf: *mut c_char, len: usize) as out: TextOut,
    ) -> *const c_char = "fi_eq_strerror" {
        let copied = out.put(&crate::core::errno::text(prov_errno));
        Ok(copied.unwrap_or_else(|| super::exports::strerror(prov_errno)))
    }
}

static EQ_OPS: fi_ops_eq = fi_ops_eq {
    size: size_of::<fi_ops_eq>(),
    read: Some(eq_read),
    readerr: Some(eq_readerr),
    write: Some(eq_write),
    sread: Some(eq_sread),
    strerror: Some(eq_strerror),
};
