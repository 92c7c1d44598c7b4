//! `struct fi_info` in and out: the caller's layout on one side, [`Info`] on the other.
//!
//! Everything handed out is malloc(3) memory, one block per struct and string, because
//! applications free and replace members themselves and `fi_freeinfo` frees what they put there.

mod nic;

use super::layout::{grow, Layout};
use crate::core::info::*;
use crate::types::*;
use core::cell::{Cell, RefCell};
use core::ffi::{c_char, c_void, CStr};
use core::mem::size_of;
use core::ptr::null_mut;

/// Longest address accepted, bytes.
const ADDR_MAX: usize = 1 << 20;
/// Longest authorization key accepted, bytes.
const KEY_MAX: usize = 1 << 20;

/// A C string as an owned Rust one; `None` for NULL. Bytes that are no UTF-8 are replaced.
///
/// # Safety
/// `p` is NULL or a NUL-terminated string.
pub(crate) unsafe fn string(p: *const c_char) -> Option<String> {
    if p.is_null() {
        return None;
    }
    // SAFETY: the caller promises a terminated string.
    Some(unsafe { CStr::from_ptr(p) }.to_string_lossy().into_owned())
}

/// # Safety
/// `p` is NULL or points to `len` readable bytes.
unsafe fn bytes(p: *const u8, len: usize, max: usize) -> Option<Vec<u8>> {
    if p.is_null() || len == 0 || len > max {
        return None;
    }
    // SAFETY: the caller promises `len` readable bytes.
    Some(unsafe { core::slice::from_raw_parts(p, len) }.to_vec())
}

/// `malloc` and copy; NULL when memory is short.
fn dup_bytes(b: &[u8]) -> *mut u8 {
    // SAFETY: the block is as long as what is copied into it.
    unsafe {
        let p = libc::malloc(b.len().max(1)).cast::<u8>();
        if !p.is_null() {
            core::ptr::copy_nonoverlapping(b.as_ptr(), p, b.len());
        }
        p
    }
}

/// A malloc'ed, NUL-terminated copy of a string; NULL for `None`.
pub(crate) fn dup_string(s: Option<&str>) -> *mut c_char {
    let Some(s) = s else { return null_mut() };
    let mut v = s.as_bytes().to_vec();
    v.retain(|b| *b != 0);
    v.push(0);
    dup_bytes(&v).cast()
}

/// The blocks of one info while it is made: when one cannot be had, all are given back.
#[derive(Default)]
struct Blocks {
    made: RefCell<Vec<*mut c_void>>,
    failed: Cell<bool>,
}

impl Blocks {
    fn keep<T>(&self, p: *mut T) -> *mut T {
        match p.is_null() {
            true => self.failed.set(true),
            false => self.made.borrow_mut().push(p.cast()),
        }
        p
    }

    fn bytes(&self, b: Option<&[u8]>) -> *mut u8 {
        b.map_or(null_mut(), |b| self.keep(dup_bytes(b)))
    }

    fn string(&self, s: Option<&str>) -> *mut c_char {
        s.map_or(null_mut(), |s| self.keep(dup_string(Some(s))))
    }

    fn boxed<T>(&self, v: T) -> *mut T {
        // SAFETY: malloc aligns for any of these structs, and the block is as long as `T`.
        let p = unsafe {
            let p = libc::malloc(size_of::<T>()).cast::<T>();
            if !p.is_null() {
                p.write(v);
            }
            p
        };
        self.keep(p)
    }

    /// What has been made, if every block of it could be had.
    fn whole<T>(&self, all: *mut T) -> *mut T {
        if !self.failed.get() {
            return all;
        }
        for p in self.made.take() {
            // SAFETY: each was malloc'ed here, and nothing of the info is handed out.
            unsafe { libc::free(p) };
        }
        null_mut()
    }
}

// ---- reading --------------------------------------------------------------------------------

fn read_tx(a: &fi_tx_attr) -> TxAttr {
    TxAttr {
        caps: a.caps,
        mode: a.mode,
        op_flags: a.op_flags,
        msg_order: a.msg_order,
        comp_order: a.comp_order,
        inject_size: a.inject_size,
        size: a.size,
        iov_limit: a.iov_limit,
        rma_iov_limit: a.rma_iov_limit,
        tclass: a.tclass,
    }
}

fn read_rx(a: &fi_rx_attr) -> RxAttr {
    RxAttr {
        caps: a.caps,
        mode: a.mode,
        op_flags: a.op_flags,
        msg_order: a.msg_order,
        comp_order: a.comp_order,
        total_buffered_recv: a.total_buffered_recv,
        size: a.size,
        iov_limit: a.iov_limit,
    }
}

/// # Safety
/// `a.auth_key` is NULL or points to `a.auth_key_size` bytes.
unsafe fn read_ep(a: &fi_ep_attr) -> EpAttr {
    EpAttr {
        type_: a.r#type,
        protocol: a.protocol,
        protocol_version: a.protocol_version,
        max_msg_size: a.max_msg_size,
        msg_prefix_size: a.msg_prefix_size,
        max_order_raw_size: a.max_order_raw_size,
        max_order_war_size: a.max_order_war_size,
        max_order_waw_size: a.max_order_waw_size,
        mem_tag_format: a.mem_tag_format,
        tx_ctx_cnt: a.tx_ctx_cnt,
        rx_ctx_cnt: a.rx_ctx_cnt,
        // SAFETY: as promised by the caller.
        auth_key: unsafe { bytes(a.auth_key, a.auth_key_size, KEY_MAX) },
        auth_key_size: a.auth_key_size,
        xpu_ctx: a.xpu_ctx as usize,
    }
}

/// # Safety
/// The name is NULL or a string, the key NULL or as long as it says.
unsafe fn read_domain(a: &fi_domain_attr) -> DomainAttr {
    DomainAttr {
        domain: a.domain as usize,
        // SAFETY: as promised by the caller.
        name: unsafe { string(a.name) },
        threading: a.threading,
        control_progress: a.control_progress,
        progress: a.progress,
        resource_mgmt: a.resource_mgmt,
        av_type: a.av_type,
        mr_mode: a.mr_mode,
        mr_key_size: a.mr_key_size,
        cq_data_size: a.cq_data_size,
        cq_cnt: a.cq_cnt,
        ep_cnt: a.ep_cnt,
        tx_ctx_cnt: a.tx_ctx_cnt,
        rx_ctx_cnt: a.rx_ctx_cnt,
        max_ep_tx_ctx: a.max_ep_tx_ctx,
        max_ep_rx_ctx: a.max_ep_rx_ctx,
        max_ep_stx_ctx: a.max_ep_stx_ctx,
        max_ep_srx_ctx: a.max_ep_srx_ctx,
        cntr_cnt: a.cntr_cnt,
        mr_iov_limit: a.mr_iov_limit,
        caps: a.caps,
        mode: a.mode,
        // SAFETY: as promised by the caller.
        auth_key: unsafe { bytes(a.auth_key, a.auth_key_size, KEY_MAX) },
        auth_key_size: a.auth_key_size,
        max_err_data: a.max_err_data,
        mr_cnt: a.mr_cnt,
        tclass: a.tclass,
        max_ep_auth_key: a.max_ep_auth_key,
        max_group_id: a.max_group_id,
        max_cntr_value: a.max_cntr_value,
        max_err_cntr_value: a.max_err_cntr_value,
        max_xpu_ctx_cnt: a.max_xpu_ctx_cnt,
    }
}

/// # Safety
/// The names are NULL or strings.
unsafe fn read_fabric(a: &fi_fabric_attr) -> FabricAttr {
    // SAFETY: as promised by the caller.
    let (name, prov_name) = unsafe { (string(a.name), string(a.prov_name)) };
    FabricAttr {
        fabric: a.fabric as usize,
        name,
        prov_name,
        prov_version: a.prov_version,
        api_version: a.api_version,
    }
}

/// Reads one info in the layout of a node; `None` for NULL.
///
/// # Safety
/// `p` is NULL or points to an info of that layout whose pointers are NULL or valid.
pub(crate) unsafe fn read(p: *const fi_info, l: &Layout) -> Option<Info> {
    if p.is_null() {
        return None;
    }
    // SAFETY: the caller promises structs of the sizes in `l`; all of them are valid when zero.
    unsafe {
        let i = grow(p, l.info);
        let part = |p: *mut fi_tx_attr| (!p.is_null()).then(|| grow(p, l.tx));
        Some(Info {
            caps: i.caps,
            mode: i.mode,
            addr_format: i.addr_format,
            src_addr: bytes(i.src_addr.cast(), i.src_addrlen, ADDR_MAX),
            dest_addr: bytes(i.dest_addr.cast(), i.dest_addrlen, ADDR_MAX),
            handle: i.handle as usize,
            tx: part(i.tx_attr).map(|a| read_tx(&a)),
            rx: i.rx_attr.as_ref().map(read_rx),
            ep: (!i.ep_attr.is_null()).then(|| read_ep(&grow(i.ep_attr, l.ep))),
            domain: (!i.domain_attr.is_null()).then(|| read_domain(&grow(i.domain_attr, l.domain))),
            fabric: (!i.fabric_attr.is_null()).then(|| read_fabric(&grow(i.fabric_attr, l.fabric))),
            nic: (!i.nic.is_null()).then(|| nic::read(i.nic)),
        })
    }
}

/// Reads single attribute structs in today's layout, for fi_tostr(3) and fi_fabric(3).
pub(crate) mod parts {
    use super::*;

    /// # Safety
    /// `p` points to a valid struct.
    pub(crate) unsafe fn tx(p: *const fi_tx_attr) -> TxAttr {
        // SAFETY: as promised by the caller.
        read_tx(unsafe { &*p })
    }
    /// # Safety
    /// `p` points to a valid struct.
    pub(crate) unsafe fn rx(p: *const fi_rx_attr) -> RxAttr {
        // SAFETY: as promised by the caller.
        read_rx(unsafe { &*p })
    }
    /// # Safety
    /// `p` points to a valid struct.
    pub(crate) unsafe fn ep(p: *const fi_ep_attr) -> EpAttr {
        // SAFETY: as promised by the caller.
        unsafe { read_ep(&*p) }
    }
    /// # Safety
    /// `p` points to a valid struct.
    pub(crate) unsafe fn domain(p: *const fi_domain_attr) -> DomainAttr {
        // SAFETY: as promised by the caller.
        unsafe { read_domain(&*p) }
    }
    /// # Safety
    /// `p` points to a struct of at least `len` bytes.
    pub(crate) unsafe fn fabric(p: *const fi_fabric_attr, len: usize) -> FabricAttr {
        // SAFETY: as promised by the caller.
        unsafe { read_fabric(&grow(p, len)) }
    }
    /// # Safety
    /// `p` points to a valid NIC.
    pub(crate) unsafe fn nic(p: *const fid_nic) -> Nic {
        // SAFETY: as promised by the caller.
        unsafe { nic::read(p) }
    }
}

// ---- writing --------------------------------------------------------------------------------

fn write_domain(b: &Blocks, a: &DomainAttr) -> *mut fi_domain_attr {
    b.boxed(fi_domain_attr {
        domain: a.domain as *mut fid_domain,
        name: b.string(a.name.as_deref()),
        threading: a.threading,
        control_progress: a.control_progress,
        progress: a.progress,
        resource_mgmt: a.resource_mgmt,
        av_type: a.av_type,
        mr_mode: a.mr_mode,
        mr_key_size: a.mr_key_size,
        cq_data_size: a.cq_data_size,
        cq_cnt: a.cq_cnt,
        ep_cnt: a.ep_cnt,
        tx_ctx_cnt: a.tx_ctx_cnt,
        rx_ctx_cnt: a.rx_ctx_cnt,
        max_ep_tx_ctx: a.max_ep_tx_ctx,
        max_ep_rx_ctx: a.max_ep_rx_ctx,
        max_ep_stx_ctx: a.max_ep_stx_ctx,
        max_ep_srx_ctx: a.max_ep_srx_ctx,
        cntr_cnt: a.cntr_cnt,
        mr_iov_limit: a.mr_iov_limit,
        caps: a.caps,
        mode: a.mode,
        auth_key: b.bytes(a.auth_key.as_deref()),
        auth_key_size: a.auth_key_size,
        max_err_data: a.max_err_data,
        mr_cnt: a.mr_cnt,
        tclass: a.tclass,
        max_ep_auth_key: a.max_ep_auth_key,
        max_group_id: a.max_group_id,
        max_cntr_value: a.max_cntr_value,
        max_err_cntr_value: a.max_err_cntr_value,
        max_xpu_ctx_cnt: a.max_xpu_ctx_cnt,
    })
}

fn write_ep(b: &Blocks, a: &EpAttr) -> *mut fi_ep_attr {
    b.boxed(fi_ep_attr {
        r#type: a.type_,
        protocol: a.protocol,
        protocol_version: a.protocol_version,
        max_msg_size: a.max_msg_size,
        msg_prefix_size: a.msg_prefix_size,
        max_order_raw_size: a.max_order_raw_size,
        max_order_war_size: a.max_order_war_size,
        max_order_waw_size: a.max_order_waw_size,
        mem_tag_format: a.mem_tag_format,
        tx_ctx_cnt: a.tx_ctx_cnt,
        rx_ctx_cnt: a.rx_ctx_cnt,
        auth_key_size: a.auth_key_size,
        auth_key: b.bytes(a.auth_key.as_deref()),
        xpu_ctx: a.xpu_ctx as *mut fid_xpu_ctx,
    })
}

fn write_tx(b: &Blocks, a: &TxAttr) -> *mut fi_tx_attr {
    b.boxed(fi_tx_attr {
        caps: a.caps,
        mode: a.mode,
        op_flags: a.op_flags,
        msg_order: a.msg_order,
        comp_order: a.comp_order,
        inject_size: a.inject_size,
        size: a.size,
        iov_limit: a.iov_limit,
        rma_iov_limit: a.rma_iov_limit,
        tclass: a.tclass,
    })
}

fn write_rx(b: &Blocks, a: &RxAttr) -> *mut fi_rx_attr {
    b.boxed(fi_rx_attr {
        caps: a.caps,
        mode: a.mode,
        op_flags: a.op_flags,
        msg_order: a.msg_order,
        comp_order: a.comp_order,
        total_buffered_recv: a.total_buffered_recv,
        size: a.size,
        iov_limit: a.iov_limit,
    })
}

fn write_fabric(b: &Blocks, a: &FabricAttr) -> *mut fi_fabric_attr {
    b.boxed(fi_fabric_attr {
        fabric: a.fabric as *mut fid_fabric,
        name: b.string(a.name.as_deref()),
        prov_name: b.string(a.prov_name.as_deref()),
        prov_version: a.prov_version,
        api_version: a.api_version,
    })
}

/// Writes one info out for a node; NULL when memory is short.
pub(crate) fn write(i: &Info, l: &Layout) -> *mut fi_info {
    let has_nic = l.info > core::mem::offset_of!(fi_info, nic);
    let blocks = Blocks::default();
    let b = &blocks;
    let info = b.boxed(fi_info {
        next: null_mut(),
        caps: i.caps,
        mode: i.mode,
        addr_format: i.addr_format,
        src_addrlen: i.src_addr.as_ref().map_or(0, Vec::len),
        dest_addrlen: i.dest_addr.as_ref().map_or(0, Vec::len),
        src_addr: b.bytes(i.src_addr.as_deref()).cast(),
        dest_addr: b.bytes(i.dest_addr.as_deref()).cast(),
        handle: i.handle as fid_t,
        tx_attr: i.tx.as_ref().map_or(null_mut(), |a| write_tx(b, a)),
        rx_attr: i.rx.as_ref().map_or(null_mut(), |a| write_rx(b, a)),
        ep_attr: i.ep.as_ref().map_or(null_mut(), |a| write_ep(b, a)),
        domain_attr: i.domain.as_ref().map_or(null_mut(), |a| write_domain(b, a)),
        fabric_attr: i.fabric.as_ref().map_or(null_mut(), |a| write_fabric(b, a)),
        nic: i
            .nic
            .as_ref()
            .filter(|_| has_nic)
            .map_or(null_mut(), |n| nic::write(b, n)),
    });
    blocks.whole(info)
}

/// Writes a list out; NULL for an empty one, and when memory is short.
pub(crate) fn write_list(list: &[Info], l: &Layout) -> *mut fi_info {
    let mut head = null_mut();
    for i in list.iter().rev() {
        let p = write(i, l);
        if p.is_null() {
            // SAFETY: what has been made so far is a list in this layout.
            unsafe { free_list(head, l) };
            return p;
        }
        // SAFETY: `p` was just made and is ours.
        unsafe { (*p).next = head };
        head = p;
    }
    head
}

// ---- freeing --------------------------------------------------------------------------------

/// Frees a list of infos in the layout of a node.
///
/// # Safety
/// `p` is NULL or a list whose blocks, strings and addresses are malloc'ed or NULL.
pub(crate) unsafe fn free_list(mut p: *mut fi_info, l: &Layout) {
    while !p.is_null() {
        // SAFETY: as promised by the caller; members beyond the node's layout are not touched.
        unsafe {
            let i = grow(p, l.info);
            libc::free(i.src_addr);
            libc::free(i.dest_addr);
            libc::free(i.tx_attr.cast());
            libc::free(i.rx_attr.cast());
            if !i.ep_attr.is_null() {
                libc::free(grow(i.ep_attr, l.ep).auth_key.cast());
                libc::free(i.ep_attr.cast());
            }
            if !i.domain_attr.is_null() {
                let d = grow(i.domain_attr, l.domain);
                libc::free(d.auth_key.cast());
                libc::free(d.name.cast());
                libc::free(i.domain_attr.cast());
            }
            if !i.fabric_attr.is_null() {
                let f = grow(i.fabric_attr, l.fabric);
                libc::free(f.name.cast());
                libc::free(f.prov_name.cast());
                libc::free(i.fabric_attr.cast());
            }
            if let Some(close) = i
                .nic
                .as_ref()
                .and_then(|n| n.fid.ops.as_ref())
                .and_then(|o| o.close)
            {
                close(i.nic.cast());
            }
            libc::free(p.cast());
            p = i.next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::*;
    use super::*;

    fn sample() -> Info {
        let mut i = Info::empty();
        i.caps = 7;
        i.src_addr = Some(vec![1, 2, 3]);
        i.handle = 0x1000;
        let d = i.domain.as_mut().unwrap();
        d.name = Some("dom".into());
        d.max_xpu_ctx_cnt = 9;
        d.max_ep_srx_ctx = 8;
        d.auth_key = Some(vec![5; 4]);
        d.auth_key_size = 4;
        i.nic = Some(Nic {
            device: Some(DeviceAttr {
                name: Some("n".into()),
                ..DeviceAttr::default()
            }),
            ..Nic::default()
        });
        i
    }

    #[test]
    fn every_layout_survives_a_round_trip() {
        for l in [V1_0, V1_1, V1_2, V1_3, V1_7, V1_8, V1_9, V1_10] {
            let p = write_list(&[sample(), sample()], &l);
            // SAFETY: `p` is what `write_list` made for this layout.
            unsafe {
                let back = read(p, &l).unwrap();
                assert_eq!((back.caps, back.handle), (7, 0x1000));
                assert_eq!(back.src_addr.as_deref(), Some(&[1u8, 2, 3][..]));
                let d = back.domain.unwrap();
                assert_eq!(d.name.as_deref(), Some("dom"));
                assert_eq!(d.max_ep_srx_ctx, 8);
                assert_eq!(d.auth_key_size, if l.domain >= 184 { 4 } else { 0 });
                assert_eq!(d.max_xpu_ctx_cnt, if l == V1_10 { 9 } else { 0 });
                assert_eq!(back.nic.is_some(), l.info == 120);
                assert!(!(*p).next.is_null());
                if l == V1_0 {
                    libc::free((*(*p).domain_attr).auth_key.cast());
                    libc::free((*(*(*p).next).domain_attr).auth_key.cast());
                }
                free_list(p, &l);
            }
        }
    }
}
