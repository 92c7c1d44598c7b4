//! The runtime interface (libcudart.so): `cuda*`. A call makes the primary context of the thread's
//! GPU current, GPU 0's until the thread chooses.

use crate::driver::{self, IpcHandle, INVALID_VALUE, OUT_OF_MEMORY, SUCCESS};
use crate::{config, context, counts, memory};
use core::ffi::{c_char, c_int, c_uint, c_void};
use std::cell::Cell;

thread_local! {
    static LAST: Cell<c_int> = const { Cell::new(SUCCESS) };
}

/// The thread's GPU, whose primary context is made current.
fn gpu() -> usize {
    // SAFETY: takes no pointer.
    unsafe { driver::cuInit(0) };
    context::current().unwrap_or_else(|| {
        context::retain(0);
        context::set_current(Some(0));
        0
    })
}

fn call(name: &'static str, f: impl FnOnce(usize) -> Result<(), c_int>) -> c_int {
    counts::count_call(name);
    let code = match config::failure(name) {
        Some(code) => code,
        None => f(gpu()).err().unwrap_or(SUCCESS),
    };
    if code != SUCCESS {
        LAST.set(code);
    }
    code
}

macro_rules! exports {
    ($($(#[$doc:meta])* fn $name:ident($gpu:ident $(, $arg:ident: $t:ty)*) $body:block)+) => {$(
        $(#[$doc])*
        /// # Safety
        /// Pointers are as the interface requires.
        #[no_mangle]
        pub unsafe extern "C" fn $name($($arg: $t),*) -> c_int {
            // SAFETY: as promised by the caller. Some need no promise.
            #[allow(unused_unsafe)]
            call(stringify!($name), |$gpu| unsafe { $body })
        }
    )+};
}

/// # Safety
/// None.
#[no_mangle]
pub unsafe extern "C" fn cudaGetErrorName(code: c_int) -> *const c_char {
    driver::text_of(code, true)
}

/// # Safety
/// None.
#[no_mangle]
pub unsafe extern "C" fn cudaGetErrorString(code: c_int) -> *const c_char {
    driver::text_of(code, false)
}

/// # Safety
/// None.
#[no_mangle]
pub unsafe extern "C" fn cudaGetLastError() -> c_int {
    LAST.replace(SUCCESS)
}

/// # Safety
/// `to` is NULL or a place for a value.
unsafe fn put<T>(to: *mut T, v: T) -> Result<(), c_int> {
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: as promised by the caller.
    unsafe { to.write(v) };
    Ok(())
}

/// # Safety
/// The name is a string; `f` is NULL or a place, `found` too.
unsafe fn driver_entry(
    name: *const c_char,
    f: *mut *mut c_void,
    found: *mut c_int,
) -> Result<(), c_int> {
    // SAFETY: as promised by the caller.
    unsafe {
        let p = driver::entry_point(name);
        if !found.is_null() {
            // cudaDriverEntryPointSuccess, cudaDriverEntryPointSymbolNotFound
            put(found, p.is_none().into())?;
        }
        put(f, p.unwrap_or(core::ptr::null_mut()))
    }
}

/// `struct cudaPointerAttributes`
#[repr(C)]
pub struct Attributes {
    kind: c_uint,
    device: c_int,
    device_pointer: usize,
    host_pointer: usize,
}

exports! {
    fn cudaGetDeviceCount(_gpu, n: *mut c_int) { put(n, config::get().gpus as c_int) }
    fn cudaGetDevice(gpu, d: *mut c_int) { put(d, gpu as c_int) }
    fn cudaSetDevice(_gpu, d: c_int) {
        let gpu = usize::try_from(d).ok().filter(|g| *g < config::get().gpus);
        let gpu = gpu.ok_or(INVALID_VALUE)?;
        context::retain(gpu);
        context::set_current(Some(gpu));
        Ok(())
    }
    fn cudaDeviceSynchronize(_gpu) {
        let s = driver::default_stream();
        s.wait(s.mark());
        Ok(())
    }
    fn cudaMalloc(gpu, p: *mut usize, len: usize) {
        put(p, memory::alloc(gpu, len).ok_or(OUT_OF_MEMORY)?)
    }
    fn cudaFree(_gpu, p: usize) {
        (p == 0 || memory::free(p)).then_some(()).ok_or(INVALID_VALUE)
    }
    fn cudaRuntimeGetVersion(_gpu, v: *mut c_int) { put(v, driver::VERSION) }
    fn cudaDriverGetVersion(_gpu, v: *mut c_int) { put(v, driver::VERSION) }
    /// Driver functions by name.
    fn cudaGetDriverEntryPoint(
        _gpu, name: *const c_char, f: *mut *mut c_void, _flags: u64, found: *mut c_int
    ) {
        driver_entry(name, f, found)
    }
    fn cudaGetDriverEntryPointByVersion(
        _gpu, name: *const c_char, f: *mut *mut c_void, _version: c_uint, _flags: u64,
        found: *mut c_int
    ) {
        driver_entry(name, f, found)
    }
    fn cudaDeviceFlushGPUDirectRDMAWrites(_gpu, _target: c_int, _scope: c_int) { Ok(()) }
    fn cudaHostAlloc(_gpu, p: *mut *mut c_void, len: usize, _flags: c_uint) {
        put(p, libc::malloc(len))
    }
    fn cudaMallocHost(_gpu, p: *mut *mut c_void, len: usize) { put(p, libc::malloc(len)) }
    fn cudaFreeHost(_gpu, p: *mut c_void) {
        libc::free(p);
        Ok(())
    }
    fn cudaHostRegister(_gpu, p: *mut c_void, len: usize, _flags: c_uint) {
        (!p.is_null() && len > 0).then_some(()).ok_or(INVALID_VALUE)
    }
    fn cudaHostUnregister(_gpu, p: *mut c_void) {
        (!p.is_null()).then_some(()).ok_or(INVALID_VALUE)
    }
    fn cudaMemcpy(_gpu, to: usize, from: usize, len: usize, _kind: c_int) {
        driver::copy(to, from, len)
    }
    fn cudaMemcpyAsync(_gpu, to: usize, from: usize, len: usize, _kind: c_int, s: *mut c_void) {
        driver::copy_async(to, from, len, s)
    }
    fn cudaMemset(_gpu, to: usize, value: c_int, len: usize) {
        let to = memory::host_view(to, len).ok_or(INVALID_VALUE)?;
        core::ptr::write_bytes(to, value as u8, len);
        Ok(())
    }
    fn cudaPointerGetAttributes(_gpu, a: *mut Attributes, at: usize) {
        let found = memory::find(at);
        put(a, Attributes {
            kind: found.map_or(0, |_| driver::DEVICE),
            device: found.map_or(-1, |f| f.gpu as c_int),
            device_pointer: found.map_or(0, |_| at),
            host_pointer: if found.is_some() { 0 } else { at },
        })
    }
    fn cudaIpcGetMemHandle(_gpu, h: *mut IpcHandle, at: usize) { put(h, driver::ipc_handle(at)?) }
    fn cudaIpcOpenMemHandle(_gpu, p: *mut usize, h: IpcHandle, _flags: c_uint) {
        put(p, driver::ipc_open(&h)?)
    }
    fn cudaIpcCloseMemHandle(_gpu, p: usize) {
        memory::free(p).then_some(()).ok_or(INVALID_VALUE)
    }
    fn cudaDeviceGetPCIBusId(_gpu, s: *mut c_char, len: c_int, d: c_int) {
        match driver::cuDeviceGetPCIBusId(s, len, d) {
            SUCCESS => Ok(()),
            code => Err(code),
        }
    }
    fn cudaStreamCreateWithFlags(_gpu, s: *mut *mut c_void, flags: c_uint) {
        match driver::cuStreamCreate(s, flags) {
            SUCCESS => Ok(()),
            code => Err(code),
        }
    }
    fn cudaStreamSynchronize(_gpu, s: *mut c_void) {
        let s = driver::stream(s);
        s.wait(s.mark());
        Ok(())
    }
    fn cudaStreamDestroy(_gpu, s: *mut c_void) {
        match driver::cuStreamDestroy_v2(s) {
            SUCCESS => Ok(()),
            code => Err(code),
        }
    }
}
