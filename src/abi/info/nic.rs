//! `struct fid_nic`: the adapter that an info describes. The handle owns its attributes, and has
//! the operations of an object, which fi_freeinfo(3), fi_dupinfo and fi_tostr(3) call.

use super::{string, Blocks};
use crate::core::info::*;
use crate::types::*;
use core::ffi::{c_char, c_int, c_void};
use core::mem::size_of;
use core::ptr::null_mut;

/// Reads a NIC.
///
/// # Safety
/// `n` points to a NIC whose attributes are NULL or valid.
pub(super) unsafe fn read(n: *const fid_nic) -> Nic {
    // SAFETY: every pointer is checked for NULL; what it points to is valid by contract.
    unsafe {
        let n = &*n;
        Nic {
            device: n.device_attr.as_ref().map(|d| DeviceAttr {
                name: string(d.name),
                device_id: string(d.device_id),
                device_version: string(d.device_version),
                vendor_id: string(d.vendor_id),
                driver: string(d.driver),
                firmware: string(d.firmware),
            }),
            bus: n.bus_attr.as_ref().map(|b| BusAttr {
                bus_type: b.bus_type,
                domain_id: b.attr.pci.domain_id,
                bus_id: b.attr.pci.bus_id,
                device_id: b.attr.pci.device_id,
                function_id: b.attr.pci.function_id,
            }),
            link: n.link_attr.as_ref().map(|l| LinkAttr {
                address: string(l.address),
                mtu: l.mtu,
                speed: l.speed,
                state: l.state,
                network_type: string(l.network_type),
            }),
        }
    }
}

unsafe extern "C" fn close(f: *mut fid) -> c_int {
    // SAFETY: this function is only in the table of NICs that `write` made.
    unsafe { free(f.cast()) };
    0
}

unsafe extern "C" fn control(f: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    if command != FI_DUP || arg.is_null() {
        return -FI_ENOSYS;
    }
    // SAFETY: FI_DUP's argument is a place for a fid pointer; `f` is a NIC of ours.
    unsafe {
        let blocks = Blocks::default();
        let copy = blocks.whole(write(&blocks, &read(f.cast())));
        *arg.cast::<*mut fid>() = copy.cast();
        if copy.is_null() {
            -FI_ENOMEM
        } else {
            0
        }
    }
}

unsafe extern "C" fn tostr(f: *const fid, buf: *mut c_char, len: usize) -> c_int {
    // SAFETY: `f` is a NIC of ours; `buf` holds a string and has `len` bytes of room in all.
    unsafe {
        let text = crate::core::describe::nic(&read(f.cast()));
        let used = libc::strnlen(buf, len);
        crate::abi::text::put(buf.add(used), len - used, &text);
    }
    0
}

static OPS: fi_ops = fi_ops {
    size: size_of::<fi_ops>(),
    close: Some(close),
    bind: None,
    control: Some(control),
    ops_open: None,
    tostr: Some(tostr),
    ops_set: None,
};

/// Writes a NIC out, block by block.
pub(super) fn write(b: &Blocks, n: &Nic) -> *mut fid_nic {
    let device_attr = n.device.as_ref().map_or(null_mut(), |d| {
        b.boxed(fi_device_attr {
            name: b.string(d.name.as_deref()),
            device_id: b.string(d.device_id.as_deref()),
            device_version: b.string(d.device_version.as_deref()),
            vendor_id: b.string(d.vendor_id.as_deref()),
            driver: b.string(d.driver.as_deref()),
            firmware: b.string(d.firmware.as_deref()),
        })
    });
    let bus_attr = n.bus.as_ref().map_or(null_mut(), |bus| {
        b.boxed(fi_bus_attr {
            bus_type: bus.bus_type,
            attr: fi_bus_attr_attr {
                pci: fi_pci_attr {
                    domain_id: bus.domain_id,
                    bus_id: bus.bus_id,
                    device_id: bus.device_id,
                    function_id: bus.function_id,
                },
            },
        })
    });
    let link_attr = n.link.as_ref().map_or(null_mut(), |l| {
        b.boxed(fi_link_attr {
            address: b.string(l.address.as_deref()),
            mtu: l.mtu,
            speed: l.speed,
            state: l.state,
            network_type: b.string(l.network_type.as_deref()),
        })
    });
    let ops = (&raw const OPS).cast_mut();
    b.boxed(fid_nic {
        fid: fid {
            fclass: FI_CLASS_NIC,
            context: null_mut(),
            ops,
        },
        device_attr,
        bus_attr,
        link_attr,
        prov_attr: null_mut(),
    })
}

/// Frees a NIC and its attributes.
///
/// # Safety
/// `n` is a NIC made by [`write()`].
unsafe fn free(n: *mut fid_nic) {
    // SAFETY: all blocks were malloc'ed one by one; free(NULL) is harmless.
    unsafe {
        let n0 = &*n;
        if let Some(d) = n0.device_attr.as_ref() {
            for s in [
                d.name,
                d.device_id,
                d.device_version,
                d.vendor_id,
                d.driver,
                d.firmware,
            ] {
                libc::free(s.cast());
            }
        }
        if let Some(l) = n0.link_attr.as_ref() {
            libc::free(l.address.cast());
            libc::free(l.network_type.cast());
        }
        libc::free(n0.device_attr.cast());
        libc::free(n0.bus_attr.cast());
        libc::free(n0.link_attr.cast());
        libc::free(n0.prov_attr);
        libc::free(n.cast());
    }
}
