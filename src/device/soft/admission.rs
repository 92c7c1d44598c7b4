//! Who may call a service on this host: processes of its own user.
//!
//! A queue pair whose number the application chose has no secret in its address. It listens on a
//! Unix socket of the abstract namespace, named after its address; a caller connects, both sides
//! look at the other's user id (SO_PEERCRED), and the caller names its address and token. What
//! follows, the WELCOME, goes to that address by UDP, so that a process that names another's gains
//! nothing. The socket accepts in the adapter's thread (`thread`); calling never waits.

use crate::core::Result;
use crate::device::local::{self, Incoming};
use crate::device::QpAddr;
use crate::types::*;
use std::os::fd::OwnedFd;

/// Bytes of a call: gid, queue pair number, key, verification tag, token.
const CALL: usize = 16 + 2 + 4 + 4 + 8;

/// Who calls: its address, its verification tag, and the token that it has named.
pub(crate) struct Caller {
    pub addr: QpAddr,
    pub vtag: u32,
    pub token: u64,
}
/// Callers that may wait to be accepted.
const BACKLOG: i32 = 256;

fn name(a: &QpAddr) -> String {
    let gid = u128::from_be_bytes(a.gid);
    format!("libfabric-efa-admit/{gid:032x}/{}", a.qpn)
}

/// Listens for callers of the service at `own`. `FI_EADDRINUSE` when somebody has the name.
pub(crate) fn listen(own: &QpAddr) -> Result<OwnedFd> {
    local::listen(&name(own), BACKLOG).map_err(|e| {
        if e == FI_EMFILE {
            return e;
        }
        crate::warn_log!(
            FI_LOG_EP_CTRL,
            "service {}: another process holds the socket by which callers on this host are \
             admitted",
            own.qpn
        );
        FI_EADDRINUSE
    })
}

/// Asks the service at `to` to admit us. `false` when there is no such
/// service; `true` also when it cannot answer now, or is another user's, which a line says.
pub(crate) fn ask(own: &Caller, to: &QpAddr) -> bool {
    let fd = match local::connect(&name(to)) {
        Ok((fd, _)) => fd,
        // It has too many callers, is another user's, or we have no descriptor.
        Err(FI_EAGAIN | FI_EACCES | FI_EMFILE | libc::ENFILE | FI_ENOMEM) => return true,
        Err(_) => return false,
    };
    let mut call = [0u8; CALL];
    let parts: [&[u8]; 5] = [
        &own.addr.gid,
        &own.addr.qpn.to_le_bytes(),
        &own.addr.qkey.to_le_bytes(),
        &own.vtag.to_le_bytes(),
        &own.token.to_le_bytes(),
    ];
    let bytes = parts.into_iter().flatten();
    call.iter_mut()
        .zip(bytes)
        .for_each(|(to, from)| *to = *from);
    local::send(&fd, &call);
    true
}

/// Takes the calls that wait, at most `most`: each of our user.
pub(crate) fn accept(listener: &OwnedFd, most: usize, mut each: impl FnMut(Caller)) {
    for _ in 0..most {
        let fd = match local::accept(listener) {
            Ok(Incoming::Process(fd, _)) => fd,
            Ok(Incoming::OtherUser) => continue,
            Ok(Incoming::Nobody) | Err(_) => return,
        };
        let mut call = [0u8; CALL];
        if local::recv(&fd, &mut call) != Some(CALL) {
            continue;
        }
        if let Some(caller) = parse(&call) {
            each(caller);
        }
    }
}

fn parse(call: &[u8; CALL]) -> Option<Caller> {
    let (gid, rest) = call.split_first_chunk::<16>()?;
    let (qpn, rest) = rest.split_first_chunk::<2>()?;
    let (qkey, rest) = rest.split_first_chunk::<4>()?;
    let (vtag, rest) = rest.split_first_chunk::<4>()?;
    let (token, _) = rest.split_first_chunk::<8>()?;
    let addr = QpAddr {
        gid: *gid,
        qpn: u16::from_le_bytes(*qpn),
        qkey: u32::from_le_bytes(*qkey),
        token: 0,
    };
    Some(Caller {
        addr,
        vtag: u32::from_le_bytes(*vtag),
        token: u64::from_le_bytes(*token),
    })
}
