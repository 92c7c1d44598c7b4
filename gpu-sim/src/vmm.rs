//! Virtual memory management (cuMemCreate, cuMemMap and relatives): physical memory, addresses, and
//! what connects them. A part of the driver interface.

use crate::driver::{call, gpu, put, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY};
use crate::exports::exports;
use crate::memory::{self, PAGE};
use core::ffi::{c_int, c_uint, c_void};

/// `CUmemLocation`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Location {
    kind: c_uint,
    id: c_int,
}

/// `CUmemAllocationProp`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Properties {
    kind: c_uint,
    handles: c_uint,
    location: Location,
    meta: usize,
    flags: [u8; 8],
}

/// CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE
const PINNED: c_uint = 1;
const ON_DEVICE: c_uint = 1;
/// CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
const POSIX_FD: c_uint = 1;

fn pages(len: usize) -> Result<usize, c_int> {
    (len > 0 && len.is_multiple_of(PAGE))
        .then_some(len)
        .ok_or(INVALID_VALUE)
}

exports! {
    call -> c_int;
    fn cuMemGetAllocationGranularity(to: *mut usize, _p: *const Properties, _option: c_int) {
        put(to, PAGE)
    }
    fn cuMemCreate(to: *mut u64, len: usize, p: *const Properties, _flags: u64) {
        let at = p.as_ref().ok_or(INVALID_VALUE)?.location;
        let gpu = gpu(at.id)?;
        put(to, memory::create(gpu, pages(len)?).ok_or(OUT_OF_MEMORY)?)
    }
    fn cuMemRelease(handle: u64) { memory::release(handle).ok_or(INVALID_VALUE) }
    fn cuMemAddressReserve(
        to: *mut usize, len: usize, _alignment: usize, _wanted: usize, _flags: u64
    ) {
        put(to, memory::reserve(pages(len)?).ok_or(OUT_OF_MEMORY)?)
    }
    fn cuMemAddressFree(at: usize, _len: usize) { memory::unreserve(at).ok_or(INVALID_VALUE) }
    fn cuMemMap(at: usize, len: usize, off: usize, handle: u64, _flags: u64) {
        memory::map_at(at, pages(len)?, off, handle).ok_or(INVALID_VALUE)
    }
    fn cuMemUnmap(at: usize, len: usize) { memory::unmap(at, len).ok_or(INVALID_VALUE) }
    /// Checks the address only: every GPU has full access.
    fn cuMemSetAccess(at: usize, _len: usize, _what: *const u8, _count: usize) {
        memory::find(at).map(|_| ()).ok_or(INVALID_VALUE)
    }
    fn cuMemExportToShareableHandle(to: *mut c_void, handle: u64, kind: c_uint, _flags: u64) {
        if kind != POSIX_FD {
            return Err(NOT_SUPPORTED);
        }
        put(to.cast(), memory::share(handle).ok_or(INVALID_VALUE)?)
    }
    /// The descriptor comes as the value of the pointer, as in C.
    fn cuMemImportFromShareableHandle(to: *mut u64, from: *mut c_void, kind: c_uint) {
        if kind != POSIX_FD {
            return Err(NOT_SUPPORTED);
        }
        put(to, memory::import(from as c_int).ok_or(INVALID_VALUE)?)
    }
    fn cuMemRetainAllocationHandle(to: *mut u64, at: usize) {
        put(to, memory::retain(at).ok_or(INVALID_VALUE)?)
    }
    fn cuMemGetAllocationPropertiesFromHandle(to: *mut Properties, _handle: u64) {
        put(to, Properties {
            kind: PINNED,
            handles: 0,
            location: Location { kind: ON_DEVICE, id: 0 },
            meta: 0,
            // gpuDirectRDMACapable is set.
            flags: [0, 1, 0, 0, 0, 0, 0, 0],
        })
    }
}
