//! Neuron (libnrt.so.1: `nrt_*`) and Gaudi (libSynapse.so: `syn*`), as far as libfabric and the
//! tests use them: memory of GPU 0 under another name. Neither library copies from the device.

use crate::exports::{exports, run};
use crate::{config, driver, memory};
use core::ffi::{c_char, c_int, c_void};

const INVALID: c_int = 1;

fn call(name: &'static str, f: impl FnOnce() -> Option<()>) -> c_int {
    run(name, INVALID, f)
}

/// A descriptor of the dma-buf that begins at this address, which must be a page's.
fn export(at: u64, len: u64) -> Option<c_int> {
    let (at, len) = (at as usize, (len as usize).next_multiple_of(4096));
    let fd = (at.is_multiple_of(4096)).then(|| memory::export(at, len))?;
    fd.filter(|_| config::get().dmabuf)
}

exports! {
    call -> c_int;
    fn nrt_get_total_nc_count(to: *mut u32) {
        driver::put(to, config::get().gpus as u32).ok()
    }
    fn nrt_tensor_allocate(
        _placement: c_int, _core: c_int, len: usize, _name: *const c_char, to: *mut usize,
    ) {
        driver::put(to, memory::alloc(0, len)?).ok()
    }
    fn nrt_memcpy_to_device(to: usize, from: *const c_void, len: usize) {
        core::ptr::copy(from.cast::<u8>(), memory::host_view(to, len)?, len);
        Some(())
    }
    fn nrt_get_dmabuf_fd(at: u64, len: u64, fd: *mut c_int) {
        driver::put(fd, export(at, len)?).ok()
    }
    fn synInitialize() { Some(()) }
    fn synDeviceGetCount(to: *mut u32) {
        driver::put(to, config::get().gpus as u32).ok()
    }
    fn synDeviceMalloc(
        _device: u32, len: u64, _wanted: u64, _flags: u32, to: *mut u64,
    ) {
        driver::put(to, memory::alloc(0, len as usize)? as u64).ok()
    }
    fn hcclLookupDMABuff(at: u64, len: u64, fd: *mut c_int) {
        driver::put(fd, export(at, len)?).ok()
    }
    /// For tests: copies device memory of any kind, which no real library can.
    fn gpu_sim_copy(to: usize, from: usize, len: usize) {
        core::ptr::copy(memory::host_view(from, len)?, memory::host_view(to, len)?, len);
        Some(())
    }
}

/// A tensor is its address.
///
/// # Safety
/// None.
#[no_mangle]
pub unsafe extern "C" fn nrt_tensor_get_va(tensor: usize) -> usize {
    tensor
}
