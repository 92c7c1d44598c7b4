//! The driver interface (libcuda.so.1): `cu*`. Codes and numbers are those of `cuda.h`.

use crate::exports::exports;
use crate::memory::Origin;
use crate::stream::{self, Progress};
use crate::{config, context, counts, memory};
use core::ffi::{c_char, c_int, c_uint, c_void, CStr};
use std::sync::{Arc, OnceLock};

pub const SUCCESS: c_int = 0;
pub const INVALID_VALUE: c_int = 1;
pub const OUT_OF_MEMORY: c_int = 2;
const NOT_INITIALIZED: c_int = 3;
const INVALID_DEVICE: c_int = 101;
const INVALID_CONTEXT: c_int = 201;
const NOT_READY: c_int = 600;
pub const NOT_SUPPORTED: c_int = 801;

/// Version of the interface: 12.4.
pub const VERSION: c_int = 12040;

/// Whether cuInit has been called.
static INITIALIZED: OnceLock<()> = OnceLock::new();

/// Runs a call, unless cuInit was not called or the call is configured to fail.
pub fn call(name: &'static str, f: impl FnOnce() -> Result<(), c_int>) -> c_int {
    counts::count_call(name);
    if let Some(code) = config::failure(name) {
        return code;
    }
    if INITIALIZED.get().is_none() {
        return NOT_INITIALIZED;
    }
    f().err().unwrap_or(SUCCESS)
}

/// Writes a result to the caller's pointer.
///
/// # Safety
/// `to` is NULL or a place for one.
pub unsafe fn put<T>(to: *mut T, v: T) -> Result<(), c_int> {
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: as promised by the caller.
    unsafe { to.write(v) };
    Ok(())
}

pub fn gpu(device: c_int) -> Result<usize, c_int> {
    let n = usize::try_from(device).map_err(|_| INVALID_DEVICE)?;
    (n < config::get().gpus).then_some(n).ok_or(INVALID_DEVICE)
}

/// The context that a call needs.
fn current() -> Result<usize, c_int> {
    context::current().ok_or(INVALID_CONTEXT)
}

/// # Safety
/// None.
#[no_mangle]
pub unsafe extern "C" fn cuInit(_flags: c_uint) -> c_int {
    if let Some(code) = config::failure("cuInit") {
        return code;
    }
    INITIALIZED.get_or_init(|| ());
    SUCCESS
}

const NAMES: &[(c_int, &CStr, &CStr)] = &[
    (SUCCESS, c"CUDA_SUCCESS", c"no error"),
    (
        INVALID_VALUE,
        c"CUDA_ERROR_INVALID_VALUE",
        c"invalid argument",
    ),
    (OUT_OF_MEMORY, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
    (
        NOT_INITIALIZED,
        c"CUDA_ERROR_NOT_INITIALIZED",
        c"initialization error",
    ),
    (
        INVALID_DEVICE,
        c"CUDA_ERROR_INVALID_DEVICE",
        c"invalid device ordinal",
    ),
    (
        INVALID_CONTEXT,
        c"CUDA_ERROR_INVALID_CONTEXT",
        c"invalid device context",
    ),
    (NOT_READY, c"CUDA_ERROR_NOT_READY", c"device not ready"),
    (
        NOT_SUPPORTED,
        c"CUDA_ERROR_NOT_SUPPORTED",
        c"operation not supported",
    ),
];

fn name_of(code: c_int) -> (&'static CStr, &'static CStr) {
    let found = NAMES.iter().find(|(c, ..)| *c == code);
    found.map_or((c"CUDA_ERROR_UNKNOWN", c"unknown error"), |(_, n, t)| {
        (*n, *t)
    })
}

/// The text of a code, for the runtime.
pub fn text_of(code: c_int, name: bool) -> *const c_char {
    let (n, t) = name_of(code);
    if name {
        n.as_ptr()
    } else {
        t.as_ptr()
    }
}

/// Copies at once, between device memory and host memory in any combination.
pub fn copy(to: usize, from: usize, len: usize) -> Result<(), c_int> {
    let to = memory::host_view(to, len).ok_or(INVALID_VALUE)?;
    let from = memory::host_view(from, len).ok_or(INVALID_VALUE)?;
    // SAFETY: both were looked up, or are the caller's host memory.
    unsafe { core::ptr::copy(from.cast_const(), to, len) };
    Ok(())
}

/// The stream that NULL stands for.
pub fn default_stream() -> &'static Arc<Progress> {
    static DEFAULT: OnceLock<Arc<Progress>> = OnceLock::new();
    DEFAULT.get_or_init(Arc::default)
}

/// # Safety
/// NULL, or a stream that was made and not destroyed.
pub unsafe fn stream<'a>(s: *mut c_void) -> &'a Arc<Progress> {
    match s as usize {
        // NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD.
        0..=2 => default_stream(),
        // SAFETY: as promised by the caller.
        _ => unsafe { &*s.cast::<Arc<Progress>>() },
    }
}

/// As [`copy`], asynchronously on stream `s`.
///
/// # Safety
/// As `stream`; both places stay until the copy is done.
pub unsafe fn copy_async(to: usize, from: usize, len: usize, s: *mut c_void) -> Result<(), c_int> {
    let to = memory::host_view(to, len).ok_or(INVALID_VALUE)?;
    let from = memory::host_view(from, len).ok_or(INVALID_VALUE)?;
    // SAFETY: as promised by the caller.
    stream::copy(unsafe { stream(s) }, to, from, len);
    Ok(())
}

/// An event: a stream, and how many copies had been posted when the event was recorded.
pub struct Event(Option<(Arc<Progress>, u64)>);

/// # Safety
/// An event that was made and not destroyed.
unsafe fn event<'a>(e: *mut c_void) -> Result<&'a mut Event, c_int> {
    // SAFETY: as promised by the caller.
    unsafe { e.cast::<Event>().as_mut() }.ok_or(INVALID_VALUE)
}

/// Contents of an IPC handle.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IpcHandle {
    pid: i32,
    fd: i32,
    gpu: u64,
    off: u64,
    len: u64,
    rest: [u64; 4],
}

const _: () = assert!(size_of::<IpcHandle>() == 64);

pub fn ipc_handle(at: usize) -> Result<IpcHandle, c_int> {
    let a = memory::find(at)
        .filter(|a| a.origin == Origin::Own)
        .ok_or(INVALID_VALUE)?;
    Ok(IpcHandle {
        pid: std::process::id() as i32,
        fd: memory::file_of(a.gpu).ok_or(INVALID_VALUE)?,
        gpu: a.gpu as u64,
        off: a.off as u64,
        len: a.len as u64,
        rest: [0; 4],
    })
}

pub fn ipc_open(h: &IpcHandle) -> Result<usize, c_int> {
    // A process cannot open an allocation of its own.
    if h.pid == std::process::id() as i32 {
        return Err(INVALID_CONTEXT);
    }
    let part = (h.off as usize, h.len as usize);
    memory::open(h.pid, h.fd, h.gpu as usize, part).ok_or(INVALID_VALUE)
}

/// Attributes of pointers.
const CONTEXT: c_uint = 1;
const MEMORY_TYPE: c_uint = 2;
const DEVICE_POINTER: c_uint = 3;
const SYNC_MEMOPS: c_uint = 6;
const BUFFER_ID: c_uint = 7;
const DEVICE_ORDINAL: c_uint = 9;
const RANGE_START: c_uint = 11;
const RANGE_SIZE: c_uint = 12;
/// Memory of a device.
pub const DEVICE: c_uint = 2;

/// # Safety
/// `to` has room for the attribute.
unsafe fn attribute(to: *mut c_void, what: c_uint, at: usize) -> Result<(), c_int> {
    // Host memory that is not registered with CUDA has no attributes.
    let a = memory::find(at).ok_or(INVALID_VALUE)?;
    // SAFETY: as promised by the caller.
    unsafe {
        match what {
            CONTEXT if matches!(a.origin, Origin::Mapped(_)) => put(to.cast(), 0usize),
            CONTEXT => put(to.cast(), context::handle(a.gpu)),
            MEMORY_TYPE => put(to.cast(), DEVICE),
            DEVICE_POINTER => put(to.cast(), at),
            BUFFER_ID => put(to.cast(), a.id),
            DEVICE_ORDINAL => put(to.cast(), a.gpu as c_int),
            RANGE_START => put(to.cast(), a.base),
            RANGE_SIZE => put(to.cast(), a.len),
            _ => Err(NOT_SUPPORTED),
        }
    }
}

/// Writes a terminated text.
///
/// # Safety
/// `to` is NULL or has `len` bytes.
unsafe fn text(s: &str, to: *mut c_char, len: c_int) -> Result<(), c_int> {
    let room = usize::try_from(len).unwrap_or(0);
    if to.is_null() || room <= s.len() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: as promised by the caller.
    unsafe {
        core::ptr::copy_nonoverlapping(s.as_ptr().cast(), to, s.len());
        to.add(s.len()).write(0);
    }
    Ok(())
}

/// Attributes of devices.
const UNIFIED_ADDRESSING: c_int = 41;
const GPU_DIRECT_RDMA: c_int = 116;
const DMA_BUF: c_int = 124;
/// Compute capability, major number: that of an H100.
const MAJOR: c_int = 75;
/// CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
const RANGE_DMA_BUF: c_int = 1;

/// CUDA_ERROR_NOT_FOUND
const NOT_FOUND: c_int = 500;

/// A function of this interface by its name without version: the newest.
///
/// # Safety
/// The name is a string.
pub unsafe fn entry_point(name: *const c_char) -> Option<*mut c_void> {
    // SAFETY: as promised by the caller.
    let name = unsafe { CStr::from_ptr(name) }.to_str().ok()?;
    let newest = [format!("{name}_v2\0"), format!("{name}\0")];
    // SAFETY: the names are terminated. This library answers: its symbols come first.
    let find = |n: &String| unsafe { libc::dlsym(own_handle(), n.as_ptr().cast()) };
    newest.iter().map(find).find(|p| !p.is_null())
}

/// This library, for dlsym.
fn own_handle() -> *mut c_void {
    // SAFETY: a plain structure, of which zero is a value; there is a place for the answer, and the
    // name in it is a string.
    unsafe {
        let mut i: libc::Dl_info = core::mem::zeroed();
        libc::dladdr(own_handle as fn() -> *mut c_void as *const c_void, &mut i);
        libc::dlopen(i.dli_fname, libc::RTLD_NOW | libc::RTLD_NOLOAD)
    }
}

exports! {
    call -> c_int;
    fn cuDriverGetVersion(v: *mut c_int) { put(v, VERSION) }

    fn cuGetErrorName(code: c_int, s: *mut *const c_char) { put(s, text_of(code, true)) }
    fn cuGetErrorString(code: c_int, s: *mut *const c_char) { put(s, text_of(code, false)) }

    fn cuDeviceGetCount(n: *mut c_int) { put(n, config::get().gpus as c_int) }
    fn cuDeviceGet(d: *mut c_int, n: c_int) { put(d, gpu(n)? as c_int) }
    fn cuDeviceGetAttribute(v: *mut c_int, what: c_int, d: c_int) {
        gpu(d)?;
        put(v, match what {
            UNIFIED_ADDRESSING => 1,
            MAJOR => 9,
            GPU_DIRECT_RDMA | DMA_BUF => config::get().dmabuf.into(),
            _ => 0,
        })
    }
    fn cuDeviceGetName(s: *mut c_char, len: c_int, d: c_int) {
        gpu(d)?;
        text("gpu-sim", s, len)
    }
    fn cuDeviceGetPCIBusId(s: *mut c_char, len: c_int, d: c_int) {
        text(&format!("0000:{:02x}:00.0", 0x10 + gpu(d)?), s, len)
    }
    fn cuDeviceCanAccessPeer(v: *mut c_int, _a: c_int, _b: c_int) { put(v, 1) }

    /// A GPU has one context here: it is retained once more, and made current.
    fn cuCtxCreate_v2(c: *mut usize, _flags: c_uint, d: c_int) {
        let gpu = gpu(d)?;
        put(c, context::handle(gpu))?;
        context::retain(gpu);
        context::push(gpu);
        Ok(())
    }
    fn cuCtxDestroy_v2(c: usize) {
        let gpu = context::gpu_of(c).ok_or(INVALID_CONTEXT)?;
        context::release(gpu);
        if context::current() == Some(gpu) {
            context::pop();
        }
        Ok(())
    }
    fn cuCtxGetCurrent(c: *mut usize) { put(c, context::current().map_or(0, context::handle)) }
    fn cuCtxSetCurrent(c: usize) {
        match c {
            0 => context::set_current(None),
            c => context::set_current(Some(context::gpu_of(c).ok_or(INVALID_CONTEXT)?)),
        }
        Ok(())
    }
    fn cuCtxPushCurrent_v2(c: usize) {
        context::push(context::gpu_of(c).ok_or(INVALID_CONTEXT)?);
        Ok(())
    }
    fn cuCtxPopCurrent_v2(c: *mut usize) {
        let gpu = context::pop().ok_or(INVALID_CONTEXT)?;
        if !c.is_null() {
            put(c, context::handle(gpu))?;
        }
        Ok(())
    }
    fn cuCtxGetDevice(d: *mut c_int) { put(d, current()? as c_int) }
    fn cuCtxSynchronize() { current().map(|_| ()) }
    fn cuDevicePrimaryCtxRetain(c: *mut usize, d: c_int) {
        let gpu = gpu(d)?;
        put(c, context::handle(gpu))?;
        context::retain(gpu);
        Ok(())
    }
    fn cuDevicePrimaryCtxRelease_v2(d: c_int) {
        context::release(gpu(d)?);
        Ok(())
    }
    fn cuDevicePrimaryCtxGetState(d: c_int, flags: *mut c_uint, active: *mut c_int) {
        let gpu = gpu(d)?;
        put(flags, 0)?;
        put(active, context::active(gpu).into())
    }

    fn cuPointerGetAttribute(to: *mut c_void, what: c_uint, at: usize) { attribute(to, what, at) }
    /// Answers NULL and 0 for memory that is not CUDA's, as the interface defines.
    fn cuPointerGetAttributes(n: c_uint, what: *const c_uint, to: *mut *mut c_void, at: usize) {
        for i in 0..n as usize {
            let (what, to) = (*what.add(i), *to.add(i));
            if attribute(to, what, at).is_err() {
                match what {
                    CONTEXT | DEVICE_POINTER | BUFFER_ID | RANGE_START | RANGE_SIZE => {
                        put(to.cast(), 0u64)?
                    }
                    DEVICE_ORDINAL => put(to.cast(), -2 as c_int)?,
                    _ => put(to.cast(), 0 as c_uint)?,
                }
            }
        }
        Ok(())
    }
    fn cuPointerSetAttribute(v: *const c_void, what: c_uint, at: usize) {
        let a = memory::find(at).ok_or(INVALID_VALUE)?;
        match what {
            SYNC_MEMOPS if matches!(a.origin, Origin::Mapped(_)) => Err(NOT_SUPPORTED),
            SYNC_MEMOPS if !v.is_null() => Ok(()),
            _ => Err(INVALID_VALUE),
        }
    }

    fn cuMemAlloc_v2(p: *mut usize, len: usize) {
        put(p, memory::alloc(current()?, len).ok_or(OUT_OF_MEMORY)?)
    }
    fn cuMemFree_v2(p: usize) {
        memory::free(p).then_some(()).ok_or(INVALID_VALUE)
    }
    fn cuMemGetAddressRange_v2(base: *mut usize, len: *mut usize, at: usize) {
        let a = memory::find(at).ok_or(INVALID_VALUE)?;
        if !base.is_null() {
            put(base, a.base)?;
        }
        if !len.is_null() {
            put(len, a.len)?;
        }
        Ok(())
    }
    fn cuMemHostAlloc(p: *mut *mut c_void, len: usize, _flags: c_uint) {
        put(p, libc::malloc(len))
    }
    fn cuMemFreeHost(p: *mut c_void) {
        libc::free(p);
        Ok(())
    }
    fn cuMemHostRegister_v2(p: *mut c_void, len: usize, _flags: c_uint) {
        current()?;
        (!p.is_null() && len > 0).then_some(()).ok_or(INVALID_VALUE)
    }
    fn cuMemHostUnregister(p: *mut c_void) {
        (!p.is_null()).then_some(()).ok_or(INVALID_VALUE)
    }

    fn cuMemsetD8_v2(to: usize, value: u8, len: usize) {
        current()?;
        let to = memory::host_view(to, len).ok_or(INVALID_VALUE)?;
        core::ptr::write_bytes(to, value, len);
        Ok(())
    }

    fn cuStreamCreate(s: *mut *mut c_void, _flags: c_uint) {
        current()?;
        put(s, Box::into_raw(Box::new(Arc::<Progress>::default())).cast())
    }
    fn cuStreamDestroy_v2(s: *mut c_void) {
        if s as usize <= 2 {
            return Err(INVALID_VALUE);
        }
        drop(Box::from_raw(s.cast::<Arc<Progress>>()));
        Ok(())
    }
    fn cuStreamQuery(s: *mut c_void) {
        let s = stream(s);
        s.reached(s.mark()).then_some(()).ok_or(NOT_READY)
    }
    fn cuStreamSynchronize(s: *mut c_void) {
        let s = stream(s);
        s.wait(s.mark());
        Ok(())
    }
    fn cuEventCreate(e: *mut *mut c_void, _flags: c_uint) {
        current()?;
        put(e, Box::into_raw(Box::new(Event(None))).cast())
    }
    fn cuEventRecord(e: *mut c_void, s: *mut c_void) {
        let s = stream(s);
        event(e)?.0 = Some((Arc::clone(s), s.mark()));
        Ok(())
    }
    fn cuEventQuery(e: *mut c_void) {
        let over = event(e)?.0.as_ref().is_none_or(|(s, mark)| s.reached(*mark));
        over.then_some(()).ok_or(NOT_READY)
    }
    fn cuEventSynchronize(e: *mut c_void) {
        if let Some((s, mark)) = &event(e)?.0 {
            s.wait(*mark);
        }
        Ok(())
    }
    fn cuEventDestroy_v2(e: *mut c_void) {
        if e.is_null() {
            return Err(INVALID_VALUE);
        }
        drop(Box::from_raw(e.cast::<Event>()));
        Ok(())
    }

    fn cuMemGetHandleForAddressRange(
        to: *mut c_void, at: usize, len: usize, kind: c_int, _flags: u64
    ) {
        if !config::get().dmabuf || kind != RANGE_DMA_BUF {
            return Err(NOT_SUPPORTED);
        }
        // A range is made of pages of the system.
        if !at.is_multiple_of(4096) || !len.is_multiple_of(4096) || len == 0 {
            return Err(INVALID_VALUE);
        }
        put(to.cast(), memory::export(at, len).ok_or(INVALID_VALUE)?)
    }
    fn cuMemHostGetDevicePointer_v2(d: *mut usize, p: usize, _flags: c_uint) { put(d, p) }
    fn cuFlushGPUDirectRDMAWrites(_target: c_int, _scope: c_int) { Ok(()) }
    fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int) { put(mode, 0) }
    fn cuGetProcAddress_v2(
        name: *const c_char, f: *mut *mut c_void, _version: c_int, _flags: u64, found: *mut c_int
    ) {
        let p = entry_point(name);
        if !found.is_null() {
            // CU_GET_PROC_ADDRESS_SUCCESS, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND
            put(found, p.is_none().into())?;
        }
        put(f, p.ok_or(NOT_FOUND)?)
    }
    fn cuIpcGetMemHandle(h: *mut IpcHandle, at: usize) { put(h, ipc_handle(at)?) }
    /// The handle comes by value, as in C.
    fn cuIpcOpenMemHandle_v2(p: *mut usize, h: IpcHandle, _flags: c_uint) {
        current()?;
        put(p, ipc_open(&h)?)
    }
    fn cuIpcCloseMemHandle(p: usize) {
        let opened = memory::find(p).is_some_and(|a| a.origin == Origin::Foreign && a.base == p);
        (opened && memory::free(p)).then_some(()).ok_or(INVALID_VALUE)
    }
}

/// Copies, at once and on a stream. The addresses tell device memory from host memory.
macro_rules! copies {
    ($($now:ident $later:ident;)+) => {
        exports! {call -> c_int; $(
            fn $now(to: usize, from: usize, len: usize) {
                current()?;
                copy(to, from, len)
            }
            fn $later(to: usize, from: usize, len: usize, s: *mut c_void) {
                current()?;
                copy_async(to, from, len, s)
            }
        )+}
    };
}

copies! {
    cuMemcpy cuMemcpyAsync;
    cuMemcpyHtoD_v2 cuMemcpyHtoDAsync_v2;
    cuMemcpyDtoH_v2 cuMemcpyDtoHAsync_v2;
    cuMemcpyDtoD_v2 cuMemcpyDtoDAsync_v2;
}
