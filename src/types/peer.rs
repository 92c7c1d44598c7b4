//! Mirror of `<rdma/providers/fi_peer.h>`: values and layouts only. Behaviour is documented in
//! fi_peer(3).

use core::ffi::{c_int, c_void};
use libc::{iovec, ssize_t};

#[allow(unused_imports)]
use super::*;

/// Only ever pointed to; the public headers never complete it.
#[repr(C)]
pub struct fi_peer_av_set {
    _opaque: [u8; 0],
}

/// Operations table; `size` is its size in bytes as the provider knows it. See fi_peer(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_av_owner {
    pub size: usize,
    pub query:
        Option<unsafe extern "C" fn(peer_av: *mut fid_peer_av, av_attr: *mut fi_av_attr) -> c_int>,
    pub ep_addr:
        Option<unsafe extern "C" fn(peer_av: *mut fid_peer_av, ep: *mut fid_ep) -> fi_addr_t>,
}

/// `struct fid_peer_av` of the public headers; see fi_peer(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_peer_av {
    pub fid: fid,
    pub owner_ops: *mut fi_ops_av_owner,
}

/// `struct fi_peer_av_context` of the public headers; see fi_peer(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_peer_av_context {
    pub size: usize,
    pub av: *mut fid_peer_av,
}

/// Operations table; `size` is its size in bytes as the provider knows it. See fi_peer(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_av_set_owner {
    pub size: usize,
    pub members: Option<
        unsafe extern "C" fn(
            peer_av_set: *mut fid_peer_av_set,
            addr: *mut fi_addr_t,
            len: *mut usize,
        ) -> c_int,
    >,
}

/// `struct fid_peer_av_set` of the public headers; see fi_peer(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_peer_av_set {
    pub fid: fid,
    pub owner_ops: *mut fi_ops_av_set_owner,
}

/// `struct fi_peer_av_set_context` of the public headers; see fi_peer(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_peer_av_set_context {
    pub size: usize,
    pub av_set: *mut fi_peer_av_set,
}

/// Operations table; `size` is its size in bytes as the provider knows it. See fi_peer(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_cq_owner {
    pub size: usize,
    pub write: Option<
        unsafe extern "C" fn(
            peer_cq: *mut fid_peer_cq,
            buf: *mut c_void,
            flags: u64,
            len: usize,
            buf2: *mut c_void,
            flags2: u64,
            flags3: u64,
            addr: fi_addr_t,
        ) -> ssize_t,
    >,
    pub writeerr: Option<
        unsafe extern "C" fn(
            peer_cq: *mut fid_peer_cq,
            cq_err_entry: *const fi_cq_err_entry,
        ) -> ssize_t,
    >,
}

/// `struct fid_peer_cq` of the public headers; see fi_peer(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_peer_cq {
    pub fid: fid,
    pub owner_ops: *mut fi_ops_cq_owner,
}

/// `struct fi_peer_cq_context` of the public headers; see fi_peer(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_peer_cq_context {
    pub size: usize,
    pub cq: *mut fid_peer_cq,
}

/// Operations table; `size` is its size in bytes as the provider knows it. See fi_peer(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_cntr_owner {
    pub size: usize,
    pub inc: Option<unsafe extern "C" fn(peer_cntr: *mut fid_peer_cntr)>,
    pub incerr: Option<unsafe extern "C" fn(peer_cntr: *mut fid_peer_cntr)>,
}

/// `struct fid_peer_cntr` of the public headers; see fi_peer(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_peer_cntr {
    pub fid: fid,
    pub owner_ops: *mut fi_ops_cntr_owner,
}

/// `struct fi_peer_cntr_context` of the public headers; see fi_peer(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_peer_cntr_context {
    pub size: usize,
    pub cntr: *mut fid_peer_cntr,
}

/// `struct fi_peer_domain_context` of the public headers; see fi_peer(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_peer_domain_context {
    pub size: usize,
    pub domain: *mut fid_domain,
}

/// `struct fi_peer_eq_context` of the public headers; see fi_peer(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_peer_eq_context {
    pub size: usize,
    pub eq: *mut fid_eq,
}

/// `struct fi_peer_rx_entry` of the public headers; see fi_peer(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_peer_rx_entry {
    pub srx: *mut fid_peer_srx,
    pub addr: fi_addr_t,
    pub msg_size: usize,
    pub tag: u64,
    pub cq_data: u64,
    pub flags: u64,
    pub context: *mut c_void,
    pub count: usize,
    pub desc: *mut *mut c_void,
    pub peer_context: *mut c_void,
    pub owner_context: *mut c_void,
    pub iov: *mut iovec,
}

/// `struct fi_peer_match_attr` of the public headers; see fi_peer(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_peer_match_attr {
    pub addr: fi_addr_t,
    pub msg_size: usize,
    pub tag: u64,
}

/// Operations table; `size` is its size in bytes as the provider knows it. See fi_peer(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_srx_owner {
    pub size: usize,
    pub get_msg: Option<
        unsafe extern "C" fn(
            peer_srx: *mut fid_peer_srx,
            peer_match_attr: *mut fi_peer_match_attr,
            peer_rx_entry: *mut *mut fi_peer_rx_entry,
        ) -> c_int,
    >,
    pub get_tag: Option<
        unsafe extern "C" fn(
            peer_srx: *mut fid_peer_srx,
            peer_match_attr: *mut fi_peer_match_attr,
            peer_rx_entry: *mut *mut fi_peer_rx_entry,
        ) -> c_int,
    >,
    pub queue_msg: Option<unsafe extern "C" fn(peer_rx_entry: *mut fi_peer_rx_entry) -> c_int>,
    pub queue_tag: Option<unsafe extern "C" fn(peer_rx_entry: *mut fi_peer_rx_entry) -> c_int>,
    pub foreach_unspec_addr: Option<
        unsafe extern "C" fn(
            peer_srx: *mut fid_peer_srx,
            get_addr: Option<
                unsafe extern "C" fn(peer_rx_entry: *mut fi_peer_rx_entry) -> fi_addr_t,
            >,
        ),
    >,
    pub free_entry: Option<unsafe extern "C" fn(peer_rx_entry: *mut fi_peer_rx_entry)>,
}

/// Operations table; `size` is its size in bytes as the provider knows it. See fi_peer(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_srx_peer {
    pub size: usize,
    pub start_msg: Option<unsafe extern "C" fn(peer_rx_entry: *mut fi_peer_rx_entry) -> c_int>,
    pub start_tag: Option<unsafe extern "C" fn(peer_rx_entry: *mut fi_peer_rx_entry) -> c_int>,
    pub discard_msg: Option<unsafe extern "C" fn(peer_rx_entry: *mut fi_peer_rx_entry) -> c_int>,
    pub discard_tag: Option<unsafe extern "C" fn(peer_rx_entry: *mut fi_peer_rx_entry) -> c_int>,
}

/// `struct fid_peer_srx` of the public headers; see fi_peer(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_peer_srx {
    pub ep_fid: fid_ep,
    pub owner_ops: *mut fi_ops_srx_owner,
    pub peer_ops: *mut fi_ops_srx_peer,
}

/// `struct fi_peer_srx_context` of the public headers; see fi_peer(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_peer_srx_context {
    pub size: usize,
    pub srx: *mut fid_peer_srx,
}

/// Operations table; `size` is its size in bytes as the provider knows it. See fi_peer(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_transfer_peer {
    pub size: usize,
    pub complete: Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            cq_tagged_entry: *mut fi_cq_tagged_entry,
            addr: fi_addr_t,
        ) -> ssize_t,
    >,
    pub comperr: Option<
        unsafe extern "C" fn(ep: *mut fid_ep, cq_err_entry: *mut fi_cq_err_entry) -> ssize_t,
    >,
}

/// `struct fi_peer_transfer_context` of the public headers; see fi_peer(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_peer_transfer_context {
    pub size: usize,
    pub info: *mut fi_info,
    pub ep: *mut fid_ep,
    pub peer_ops: *mut fi_ops_transfer_peer,
}
