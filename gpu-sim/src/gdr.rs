//! GDRCopy (libgdrapi.so.2): device memory that the processor may access, through a mapping of its
//! own, by GDRCopy's copies. Numbers are those of `gdrapi.h`. A freed allocation takes its mappings
//! with it: a later copy faults.

use crate::driver::put;
use crate::exports::{exports, run};
use crate::{config, memory};
use core::ffi::{c_int, c_void};

/// Version of the library and of its driver.
const VERSION: (c_int, c_int) = (2, 5);
/// GDR_MAPPING_TYPE_WC
const WRITE_COMBINING: c_int = 1;

/// `gdr_info_v2_t`
#[repr(C)]
pub struct Info {
    va: u64,
    mapped_size: u64,
    page_size: u32,
    tm_cycles: u64,
    cycles_per_ms: u32,
    /// Bit 0: mapped; bit 1: write combining.
    flags: u32,
    mapping_type: c_int,
}

fn call(name: &'static str, f: impl FnOnce() -> Option<()>) -> c_int {
    run(name, libc::EINVAL, f)
}

/// Copies between the mapping of a pin and host memory; `view` is the mapping's end.
///
/// # Safety
/// The host's end has `len` bytes.
unsafe fn copy(handle: u64, to: *mut u8, from: *const u8, view: usize, len: usize) -> Option<()> {
    let (_, room, mapped) = memory::pinned(handle)?;
    let off = view.checked_sub(mapped?)?;
    (off <= room && len <= room - off).then_some(())?;
    // SAFETY: one end is the mapping, of that much room; the caller vouches for the other.
    unsafe { core::ptr::copy(from, to, len) };
    Some(())
}

/// NULL where GDRCopy's driver is missing.
///
/// # Safety
/// None.
#[no_mangle]
pub unsafe extern "C" fn gdr_open() -> *mut c_void {
    let open = call("gdr_open", || config::get().gdrcopy.then_some(()));
    match open {
        0 => core::ptr::dangling_mut(),
        _ => core::ptr::null_mut(),
    }
}

/// # Safety
/// Each is NULL or a place for a number.
#[no_mangle]
pub unsafe extern "C" fn gdr_runtime_get_version(major: *mut c_int, minor: *mut c_int) {
    // SAFETY: as promised by the caller.
    let _ = unsafe { put(major, VERSION.0).and(put(minor, VERSION.1)) };
}

exports! {
    call -> c_int;
    fn gdr_close(_gdr: *mut c_void) { Some(()) }
    fn gdr_driver_get_version(_gdr: *mut c_void, major: *mut c_int, minor: *mut c_int) {
        put(major, VERSION.0).and(put(minor, VERSION.1)).ok()
    }
    /// No attribute is supported.
    fn gdr_get_attribute(_gdr: *mut c_void, _what: c_int, to: *mut c_int) { put(to, 0).ok() }
    fn gdr_pin_buffer(
        _gdr: *mut c_void, at: usize, len: usize, _token: u64, _space: u32, handle: *mut u64,
    ) {
        put(handle, memory::pin(at, len)?).ok()
    }
    /// GDR_PIN_FLAG_FORCE_PCIE needs a coherent platform.
    fn gdr_pin_buffer_v2(
        _gdr: *mut c_void, at: usize, len: usize, flags: u32, handle: *mut u64,
    ) {
        (flags == 0).then_some(())?;
        put(handle, memory::pin(at, len)?).ok()
    }
    fn gdr_unpin_buffer(_gdr: *mut c_void, handle: u64) { memory::unpin(handle) }
    fn gdr_get_info_v2(_gdr: *mut c_void, handle: u64, to: *mut Info) {
        let (at, len, view) = memory::pinned(handle)?;
        put(to, Info {
            va: at as u64,
            mapped_size: len as u64,
            page_size: memory::PAGE as u32,
            tm_cycles: 0,
            cycles_per_ms: 0,
            flags: if view.is_some() { 3 } else { 0 },
            mapping_type: if view.is_some() { WRITE_COMBINING } else { 0 },
        }).ok()
    }
    fn gdr_map(_gdr: *mut c_void, handle: u64, view: *mut *mut c_void, len: usize) {
        (len == memory::pinned(handle)?.1).then_some(())?;
        put(view, memory::map_pin(handle)? as *mut c_void).ok()
    }
    fn gdr_unmap(_gdr: *mut c_void, handle: u64, view: *mut c_void, len: usize) {
        let (_, all, mapped) = memory::pinned(handle)?;
        (mapped == Some(view as usize) && len == all).then_some(())?;
        memory::unmap_pin(handle)
    }
    fn gdr_copy_to_mapping(handle: u64, view: *mut u8, from: *const u8, len: usize) {
        copy(handle, view, from, view as usize, len)
    }
    fn gdr_copy_from_mapping(handle: u64, to: *mut u8, view: *const u8, len: usize) {
        copy(handle, to, view, view as usize, len)
    }
}
