//! `fid_cntr`: counters (fi_cntr(3)).

use super::entry::{entry, ControlArg, OutParam};
use super::object::*;
use super::sets::{Member, WaitBody};
use super::waiting::{control, wait_member, wait_obj, watch, WAITS};
use crate::prov::contract::*;
use crate::types::*;
use core::ffi::{c_int, c_void};
use core::mem::size_of;
use core::ptr::null_mut;
use std::sync::Arc;

/// Body of a `fid_cntr`.
pub(crate) struct CntrBody<D: Domain> {
    pub domain: Arc<D>,
    pub id: u32,
    wait: Option<Arc<WaitSet>>,
    wait_obj: fi_wait_obj,
    set: Option<(Arc<WaitBody<D>>, i32)>,
}

entry! {
    pub(crate) fn cntr_open<D: Domain>(
        domain: *mut fid_domain as &Arc<D>,
        attr: *mut fi_cntr_attr as Option<&fi_cntr_attr>,
        out: *mut *mut fid_cntr as OutParam<*mut fid_cntr>,
        context: *mut c_void,
    ) -> c_int = "fi_cntr_open" {
        let (events, wait, flags) = attr.map_or((FI_CNTR_EVENTS_COMP, FI_WAIT_NONE, 0), |a| {
            (a.events, a.wait_obj, a.flags)
        });
        if events > FI_CNTR_EVENTS_BYTES {
            crate::warn_log!(
                FI_LOG_CNTR,
                "fi_cntr_open: events {events}: wanted FI_CNTR_EVENTS_COMP or _BYTES"
            );
            return Err(FI_EINVAL);
        }
        if flags != 0 {
            return Err(FI_EBADFLAGS);
        }
        wait_obj("fi_cntr_open", wait, &WAITS)?;
        let set = wait_member(wait, attr.map_or(null_mut(), |a| a.wait_set))?;
        let c = domain.open_cntr(events, wait)?;
        let watched = watch(set, c.fd(), Member::Cntr(Arc::clone(domain), c.id));
        let b = CntrBody {
            domain: Arc::clone(domain),
            id: c.id,
            wait: c.wait,
            wait_obj: wait,
            set: watched,
        };
        out.put(new_cntr(b, context));
        Ok(())
    }
}

fn new_cntr<D: Domain>(b: CntrBody<D>, context: *mut c_void) -> *mut fid_cntr {
    let f = fid_cntr {
        fid: new_fid(FI_CLASS_CNTR, context, Tables::<D>::CNTR_FI_OPS),
        ops: table(Tables::<D>::CNTR_OPS),
    };
    hand_out(f, b)
}

/// The handle of a counter of the adapter's.
pub(crate) fn external_cntr<D: Domain>(
    domain: &Arc<D>,
    c: OpenedQueue,
    context: *mut c_void,
) -> *mut fid_cntr {
    let b = CntrBody {
        domain: Arc::clone(domain),
        id: c.id,
        wait: None,
        wait_obj: FI_WAIT_NONE,
        set: None,
    };
    new_cntr(b, context)
}

close! {
    fn cntr_close<D: Domain>(b: CntrBody<D> as fid_cntr) {
        b.domain.close_cntr(b.id)?;
        if let Some((set, fd)) = &b.set {
            set.remove(*fd);
        }
        Ok(())
    }
}

entry! {
    fn cntr_control<D: Domain>(
        c: *mut fid as &CntrBody<D>,
        command: c_int,
        arg: *mut c_void as ControlArg,
    ) -> c_int = "fi_control" {
        control(c.wait.as_ref(), c.wait_obj, command, &arg)
    }
}

impl<D: Domain> Tables<D> {
    pub(crate) const CNTR_FI_OPS: &'static fi_ops =
        &ops(cntr_close::<D>, no_bind, cntr_control::<D>);
}

entry! {
    fn cntr_read<D: Domain>(c: *mut fid_cntr as &CntrBody<D>) -> u64 = "fi_cntr_read" {
        Ok(c.domain.read_cntr(c.id)?.0)
    }
}

entry! {
    fn cntr_readerr<D: Domain>(c: *mut fid_cntr as &CntrBody<D>) -> u64 = "fi_cntr_readerr" {
        Ok(c.domain.read_cntr(c.id)?.1)
    }
}

entry! {
    fn cntr_add<D: Domain>(c: *mut fid_cntr as &CntrBody<D>, n: u64) -> c_int = "fi_cntr_add" {
        c.domain.change_cntr(c.id, false, false, n)
    }
}

entry! {
    fn cntr_set<D: Domain>(c: *mut fid_cntr as &CntrBody<D>, n: u64) -> c_int = "fi_cntr_set" {
        c.domain.change_cntr(c.id, false, true, n)
    }
}

entry! {
    fn cntr_adderr<D: Domain>(c: *mut fid_cntr as &CntrBody<D>, n: u64) -> c_int
        = "fi_cntr_adderr"
    {
        c.domain.change_cntr(c.id, true, false, n)
    }
}

entry! {
    fn cntr_seterr<D: Domain>(c: *mut fid_cntr as &CntrBody<D>, n: u64) -> c_int
        = "fi_cntr_seterr"
    {
        c.domain.change_cntr(c.id, true, true, n)
    }
}

entry! {
    fn cntr_wait<D: Domain>(
        c: *mut fid_cntr as &CntrBody<D>,
        threshold: u64,
        timeout: c_int,
    ) -> c_int = "fi_cntr_wait" {
        c.domain.wait_cntr(c.id, threshold, timeout)
    }
}

impl<D: Domain> Tables<D> {
    pub(crate) const CNTR_OPS: &'static fi_ops_cntr = &fi_ops_cntr {
        size: size_of::<fi_ops_cntr>(),
        read: Some(cntr_read::<D>),
        readerr: Some(cntr_readerr::<D>),
        add: Some(cntr_add::<D>),
        set: Some(cntr_set::<D>),
        wait: Some(cntr_wait::<D>),
        adderr: Some(cntr_adderr::<D>),
        seterr: Some(cntr_seterr::<D>),
        export_xpu: None,
    };
}
