//! The address of an endpoint (fi_getname(3), fi_setname(3)).

use crate::core::Result;
use crate::device::{Device, QueuePair};
use crate::prov::efa::addr;
use crate::prov::efa::domain::State;
use crate::types::*;

/// Address of an endpoint. Before fi_enable its queue pair number is the requested one, or 0.
pub(crate) fn name(s: &State, id: u32) -> Result<[u8; addr::LEN]> {
    let ep = s.eps.get(id).ok_or(FI_EBADF)?;
    Ok(match &ep.live {
        Some(l) => addr::to_raw(&l.qp.addr()),
        None if ep.context.is_some() => {
            let qp = ep.context.as_ref().ok_or(FI_EBADF)?;
            addr::to_raw(&qp.addr())
        }
        None => {
            let a = crate::device::QpAddr {
                gid: s.dev.attr().gid,
                qpn: ep.qpn,
                ..Default::default()
            };
            addr::to_raw(&a)
        }
    })
}

/// fi_setname(3): the queue pair number to ask for. `FI_EOPBADSTATE` after enabling,
/// `FI_EADDRNOTAVAIL` for an address of another adapter.
pub(crate) fn set_name(s: &mut State, id: u32, raw: &[u8]) -> Result<()> {
    let gid = s.dev.attr().gid;
    let ep = s.eps.get_mut(id).ok_or(FI_EBADF)?;
    if ep.enabled() {
        return Err(FI_EOPBADSTATE);
    }
    let a = addr::from_raw(raw).ok_or(FI_EINVAL)?;
    if a.gid != gid && a.gid != [0; 16] {
        return Err(FI_EADDRNOTAVAIL);
    }
    ep.qpn = a.qpn;
    Ok(())
}
