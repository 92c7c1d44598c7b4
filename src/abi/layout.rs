//! Layouts of `struct fi_info` and its parts, by symbol version.
//!
//! A binary that was linked against an old libfabric asks by an old node (`fi_getinfo@FABRIC_1.3`)
//! and has the structs of that time. Every later layout only appends members, so a layout is a set
//! of sizes: a hint is read no further than its struct reached, an answer is written whole (an old
//! reader looks at its prefix) except for members that the node's struct does not have.

use crate::types::*;
use core::ffi::CStr;
use core::mem::size_of;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes of each struct at one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub info: usize,
    pub tx: usize,
    pub ep: usize,
    pub domain: usize,
    pub fabric: usize,
}

const INFO_OLD: usize = 112;
const TX_OLD: usize = 72;
/// `fi_fabric_attr` before `api_version`.
const FABRIC_OLD: usize = 28;

const fn layout(info: usize, tx: usize, ep: usize, domain: usize) -> Layout {
    Layout {
        info,
        tx,
        ep,
        domain,
        fabric: size_of::<fi_fabric_attr>(),
    }
}

const INFO: usize = size_of::<fi_info>();
const TX: usize = size_of::<fi_tx_attr>();

/// FABRIC_1.0
pub(crate) const V1_0: Layout = Layout {
    fabric: FABRIC_OLD,
    ..layout(INFO_OLD, TX_OLD, 80, 120)
};
/// FABRIC_1.1
pub(crate) const V1_1: Layout = layout(INFO_OLD, TX_OLD, 96, 184);
/// FABRIC_1.2
pub(crate) const V1_2: Layout = layout(INFO, TX_OLD, 96, 184);
/// FABRIC_1.3
pub(crate) const V1_3: Layout = layout(INFO, TX, 96, 192);
/// FABRIC_1.7
pub(crate) const V1_7: Layout = layout(INFO, TX, 96, 200);
/// FABRIC_1.8
pub(crate) const V1_8: Layout = layout(INFO, TX, 96, 208);
/// FABRIC_1.9
pub(crate) const V1_9: Layout = layout(INFO, TX, 96, 224);
/// FABRIC_1.10, the default
pub(crate) const V1_10: Layout = layout(
    INFO,
    TX,
    size_of::<fi_ep_attr>(),
    size_of::<fi_domain_attr>(),
);

/// The layout of node FABRIC_1.`minor`.
pub(crate) const fn of_node(minor: u32) -> Layout {
    match minor {
        0 => V1_0,
        1 => V1_1,
        2 => V1_2,
        3 => V1_3,
        7 => V1_7,
        8 => V1_8,
        9 => V1_9,
        10 => V1_10,
        _ => panic!("no such version of these functions"),
    }
}

/// Layouts by version node, newest first.
static NODES: [(&CStr, Layout); 8] = [
    (c"FABRIC_1.10", V1_10),
    (c"FABRIC_1.9", V1_9),
    (c"FABRIC_1.8", V1_8),
    (c"FABRIC_1.7", V1_7),
    (c"FABRIC_1.3", V1_3),
    (c"FABRIC_1.2", V1_2),
    (c"FABRIC_1.1", V1_1),
    (c"FABRIC_1.0", V1_0),
];

/// Which of [`NODES`] applications have.
static CALLERS: AtomicUsize = AtomicUsize::new(0);

/// Layout of the structs that applications bring to fabrics, domains and endpoints: today's, unless
/// they come through another library that is older.
pub(crate) fn callers() -> &'static Layout {
    let node = NODES.get(CALLERS.load(Relaxed));
    node.map_or(&V1_10, |(_, layout)| layout)
}

/// Applications come through a library whose newest version node is the first for which `has` says
/// true. Where none is to be seen, the library is part of a program, and taken for the oldest that
/// loads provider files. Of several libraries the oldest counts: what a struct has beyond its
/// layout is not looked at.
pub(crate) fn expect_node(has: impl Fn(&CStr) -> bool) {
    let newest = NODES.iter().position(|(node, _)| has(node));
    let oldest = NODES.iter().position(|(_, layout)| *layout == V1_3);
    CALLERS.fetch_max(newest.or(oldest).unwrap_or(0), Relaxed);
}

/// Copies a struct of `len` bytes into its current form, zero where it was shorter.
///
/// # Safety
/// `p` points to `len` readable bytes laid out as the beginning of a `T`; all-zero is a valid `T`.
pub(crate) unsafe fn grow<T: Copy>(p: *const T, len: usize) -> T {
    let mut v = core::mem::MaybeUninit::<T>::zeroed();
    // SAFETY: at most size_of::<T>() bytes are copied from readable memory into `v`, which is a
    // valid T when zero and stays one with the caller's prefix.
    unsafe {
        core::ptr::copy_nonoverlapping(
            p.cast::<u8>(),
            v.as_mut_ptr().cast::<u8>(),
            len.min(size_of::<T>()),
        );
        v.assume_init()
    }
}
