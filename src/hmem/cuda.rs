//! CUDA memory, by libcuda.so.1, which is loaded by `dlopen` at first use.
//!
//! Nothing here initialises CUDA or creates a context: a program that passes CUDA memory has
//! initialised CUDA. A copy runs in the context of the pointer or, for memory of cuMemMap, which
//! has no context, in the primary context of its GPU if that is active. The copy runs on a stream
//! of our own that does not synchronise with the default stream, because a kernel of the program
//! may be waiting for this very copy.

use super::dl::{find, functions, loaded as library_loaded, open};
use super::gdr::Gdr;
use super::interface::{self, ExportedBuf, Interface, IpcHandle};
use super::MemKind;
use crate::core::params::hmem;
use crate::core::sync::{Mutex, Unpoisoned};
use crate::core::Result;
use crate::types::*;
use core::ffi::{c_int, c_uint, c_void};
use std::collections::HashMap;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;

type CudaCode = c_int;
const SUCCESS: CudaCode = 0;
/// CU_POINTER_ATTRIBUTE_*, and CU_MEMORYTYPE_DEVICE.
const CONTEXT: c_uint = 1;
const MEMORY_TYPE: c_uint = 2;
const BUFFER_ID: c_uint = 7;
const DEVICE_ORDINAL: c_uint = 9;
const MEMORY_DEVICE: c_uint = 2;
/// CU_STREAM_NON_BLOCKING, CU_EVENT_DISABLE_TIMING, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
const NON_BLOCKING: c_uint = 1;
const NO_TIMING: c_uint = 2;
const LAZY_PEER_ACCESS: c_uint = 1;
/// CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, CU_MEMHOSTREGISTER_PORTABLE
const SYNC_MEMOPS: c_uint = 6;
const PORTABLE: c_uint = 1;
/// CUDA_ERROR_NOT_READY
const NOT_READY: CudaCode = 600;

functions! {
    Functions -> CudaCode;
    pointer_attribute = c"cuPointerGetAttribute": fn(*mut c_void, c_uint, usize);
    set_attribute = c"cuPointerSetAttribute": fn(*const c_void, c_uint, usize);
    host_register = c"cuMemHostRegister_v2": fn(usize, usize, c_uint);
    host_unregister = c"cuMemHostUnregister": fn(usize);
    push = c"cuCtxPushCurrent_v2": fn(usize);
    pop = c"cuCtxPopCurrent_v2": fn(*mut usize);
    primary_state = c"cuDevicePrimaryCtxGetState": fn(c_int, *mut c_uint, *mut c_int);
    primary_retain = c"cuDevicePrimaryCtxRetain": fn(*mut usize, c_int);
    stream_create = c"cuStreamCreate": fn(*mut *mut c_void, c_uint);
    stream_wait = c"cuStreamSynchronize": fn(*mut c_void);
    copy = c"cuMemcpyAsync": fn(usize, usize, usize, *mut c_void);
    device_attribute = c"cuDeviceGetAttribute": fn(*mut c_int, c_int, c_int);
    device_count = c"cuDeviceGetCount": fn(*mut c_int);
    range = c"cuMemGetAddressRange_v2": fn(*mut usize, *mut usize, usize);
    event_create = c"cuEventCreate": fn(*mut *mut c_void, c_uint);
    event_record = c"cuEventRecord": fn(*mut c_void, *mut c_void);
    event_query = c"cuEventQuery": fn(*mut c_void);
    event_wait = c"cuEventSynchronize": fn(*mut c_void);
    event_destroy = c"cuEventDestroy_v2": fn(*mut c_void);
    ipc_get = c"cuIpcGetMemHandle": fn(*mut CudaIpc, usize);
    ipc_open = c"cuIpcOpenMemHandle_v2": fn(*mut usize, CudaIpc, c_uint);
    ipc_close = c"cuIpcCloseMemHandle": fn(usize);
}

/// CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD and
/// CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE.
const DMA_BUF_SUPPORTED: c_int = 124;
const DMA_BUF: c_int = 1;
const BY_PCIE: u64 = 1;
/// CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_INITIALIZED, CUDA_ERROR_NOT_SUPPORTED.
const INVALID_VALUE: CudaCode = 1;
const NOT_INITIALIZED: CudaCode = 3;
const NOT_SUPPORTED: CudaCode = 801;

/// cuMemGetHandleForAddressRange
type Export = unsafe extern "C" fn(*mut c_void, usize, usize, c_int, u64) -> CudaCode;

/// `CUipcMemHandle`, which goes by value.
#[repr(C)]
struct CudaIpc([u64; 8]);

/// A stream of our own.
struct CudaStream(*mut c_void);
// SAFETY: streams may be used by any thread.
unsafe impl Send for CudaStream {}

/// The [`Interface`] of CUDA memory.
pub(super) struct Cuda {
    f: Functions,
    /// Of CUDA 11.7 on.
    export: Option<Export>,
    /// GDRCopy, which is looked for when memory is registered for the first time.
    gdr: OnceLock<Option<Gdr>>,
    /// Our streams, by context.
    streams: Mutex<HashMap<usize, CudaStream>>,
}

/// Number of GPUs, from the management library (NVML), which creates no context.
fn nvml_device_count() -> c_uint {
    let count = || {
        let lib = open(c"libnvidia-ml.so.1", 0)?;
        let mut n = 0;
        // SAFETY: the functions of these names have these types (nvml.h).
        unsafe {
            let init = find::<unsafe extern "C" fn() -> CudaCode>(lib, c"nvmlInit_v2")?;
            let get: unsafe extern "C" fn(*mut c_uint) -> CudaCode =
                find(lib, c"nvmlDeviceGetCount_v2")?;
            (init() == SUCCESS && get(&mut n) == SUCCESS).then_some(n)
        }
    };
    count().unwrap_or(0)
}

/// Whether the program has loaded the driver's library.
pub(super) fn loaded() -> bool {
    library_loaded(c"libcuda.so.1")
}

/// Whether the kernel can register device memory by its address.
fn peermem() -> bool {
    let modules = ["nvidia_peermem", "nv_peer_mem"];
    let loaded = |m: &&str| Path::new("/sys/module").join(m).exists();
    modules.iter().any(loaded)
}

/// Installs the interface if this machine has a GPU and the driver's library.
pub(super) fn detect() {
    let Some(lib) = open(c"libcuda.so.1", 0) else {
        return;
    };
    // The management library starts a helper program where the device files are missing, so the
    // device files are tested first.
    if !Path::new("/dev/nvidiactl").exists() && nvml_device_count() == 0 {
        return;
    }
    match Functions::load(lib) {
        Some(f) => interface::install(
            MemKind::Cuda,
            Box::new(Cuda {
                f,
                // SAFETY: the function of this name has this type (cuda.h).
                export: unsafe { find(lib, c"cuMemGetHandleForAddressRange") },
                gdr: OnceLock::new(),
                streams: Mutex::default(),
            }),
        ),
        None => crate::warn_log!(
            FI_LOG_CORE,
            "FI_HMEM_CUDA: libcuda.so.1 lacks functions of CUDA 11: device memory is not offered"
        ),
    }
}

fn check(code: CudaCode, what: &str) -> Result<()> {
    static SAID: OnceLock<()> = OnceLock::new();
    if code == SUCCESS {
        return Ok(());
    }
    if SAID.set(()).is_ok() {
        crate::warn_log!(FI_LOG_CORE, "CUDA: {what} failed with error {code}");
    }
    Err(FI_EIO)
}

impl Cuda {
    fn attribute<T: Default>(&self, what: c_uint, at: usize) -> Option<T> {
        let mut v = T::default();
        // SAFETY: `v` has the type of the attribute.
        let code = unsafe { (self.f.pointer_attribute)((&raw mut v).cast(), what, at) };
        (code == SUCCESS).then_some(v)
    }

    /// Id of the allocation at an address, which no other allocation has had.
    fn buffer(&self, at: usize) -> Option<u64> {
        self.attribute(BUFFER_ID, at)
    }

    /// The context for operations on a pointer.
    fn context(&self, at: usize) -> Result<usize> {
        if let Some(c) = self.attribute::<usize>(CONTEXT, at).filter(|c| *c != 0) {
            return Ok(c);
        }
        self.primary(self.attribute(DEVICE_ORDINAL, at).ok_or(FI_EFAULT)?)
    }

    /// The primary context of a GPU, if it is active.
    fn primary(&self, gpu: c_int) -> Result<usize> {
        let (mut flags, mut active, mut context) = (0, 0, 0);
        // SAFETY: there is a place for each answer.
        unsafe {
            check(
                (self.f.primary_state)(gpu, &mut flags, &mut active),
                "cuDevicePrimaryCtxGetState",
            )?;
            if active == 0 {
                return Err(FI_EIO);
            }
            check(
                (self.f.primary_retain)(&mut context, gpu),
                "cuDevicePrimaryCtxRetain",
            )?;
        }
        Ok(context)
    }

    /// Runs `f` with an existing context of the program made current.
    fn within<T>(&self, context: usize, f: impl FnOnce() -> Result<T>) -> Result<T> {
        // SAFETY: the context is an existing one of the program; it is popped below.
        unsafe { check((self.f.push)(context), "cuCtxPushCurrent")? };
        let done = f();
        let mut popped = 0;
        // SAFETY: as above.
        unsafe { (self.f.pop)(&mut popped) };
        done
    }

    /// GDRCopy, if memory is mapped by it.
    fn gdr(&self) -> Option<&Gdr> {
        self.gdr.get()?.as_ref()
    }

    /// Copies and waits; `device` is whichever of `to` and `from` is device memory.
    fn copy_and_wait(&self, to: usize, from: usize, len: usize, device: usize) -> Result<()> {
        let context = self.context(device)?;
        self.within(context, || {
            let stream = self.stream(context)?;
            // SAFETY: one end is host memory that the caller vouches for, the other is checked by
            // CUDA.
            unsafe {
                check((self.f.copy)(to, from, len, stream), "cuMemcpyAsync")?;
                check((self.f.stream_wait)(stream), "cuStreamSynchronize")
            }
        })
    }

    /// Our stream in `context`, which is current.
    fn stream(&self, context: usize) -> Result<*mut c_void> {
        let mut all = self.streams.lock().unpoisoned();
        let stream = match all.get(&context) {
            Some(s) => s.0,
            None => {
                let mut s = core::ptr::null_mut();
                // SAFETY: there is a place for the answer.
                unsafe {
                    check(
                        (self.f.stream_create)(&mut s, NON_BLOCKING),
                        "cuStreamCreate",
                    )?
                };
                all.insert(context, CudaStream(s));
                s
            }
        };
        Ok(stream)
    }
}

impl Interface for Cuda {
    unsafe fn copy_in(&self, to: usize, from: *const u8, len: usize) -> Result<()> {
        // SAFETY: as the caller vouches.
        let short = |g: &Gdr| unsafe { g.copy_in((to, from, len), |at| self.buffer(at)) };
        if self.gdr().is_some_and(short) {
            return Ok(());
        }
        self.copy_and_wait(to, from as usize, len, to)
    }

    unsafe fn copy_out(&self, to: *mut u8, from: usize, len: usize) -> Result<()> {
        // SAFETY: as the caller vouches.
        let short = |g: &Gdr| unsafe { g.copy_out((to, from, len), |at| self.buffer(at)) };
        if self.gdr().is_some_and(short) {
            return Ok(());
        }
        self.copy_and_wait(to as usize, from, len, from)
    }

    /// Memory of cuMemMap refuses the attribute, and does without.
    fn prepare(&self, at: usize) {
        let on: c_uint = 1;
        // SAFETY: the attribute's value is an unsigned int, which outlives the call.
        unsafe { (self.f.set_attribute)((&raw const on).cast(), SYNC_MEMOPS, at) };
    }

    fn map(&self, at: usize, len: usize) -> Option<u64> {
        let gdr = self.gdr.get_or_init(Gdr::new).as_ref()?;
        gdr.map(at, len, self.buffer(at)?)
    }

    fn unmap(&self, id: u64) {
        if let Some(g) = self.gdr() {
            g.unmap(id);
        }
    }

    fn register_host(&self, at: usize, len: usize, near: usize) -> bool {
        let register = || {
            // SAFETY: the memory is ours, and stays until it is unregistered.
            let code = unsafe { (self.f.host_register)(at, len, PORTABLE) };
            check(code, "cuMemHostRegister")
        };
        let context = self.context(near);
        context.and_then(|c| self.within(c, register)).is_ok()
    }

    fn unregister_host(&self, at: usize) {
        // SAFETY: registered by `register_host`, once.
        unsafe { (self.f.host_unregister)(at) };
    }

    fn owns(&self, at: usize) -> bool {
        self.attribute(MEMORY_TYPE, at) == Some(MEMORY_DEVICE)
    }

    /// Exports only the pages around the range, not the allocation: memory of cuMemMap has none.
    fn export(&self, at: usize, len: usize) -> Result<ExportedBuf> {
        let permitted = hmem().hmem_cuda_use_dmabuf;
        let export = self.export.filter(|_| permitted).ok_or(FI_EOPNOTSUPP)?;
        // A dma-buf begins and ends at a page of the system.
        let page = super::page_size();
        let start = at & !(page - 1);
        let end = at.checked_add(len).ok_or(FI_EINVAL)?;
        let pages = end.next_multiple_of(page) - start;
        let mut fd: c_int = -1;
        let mut ask = |flags| {
            // SAFETY: there is a place for the descriptor; CUDA checks the range.
            unsafe { export((&raw mut fd).cast(), start, pages, DMA_BUF, flags) }
        };
        let code = match ask(BY_PCIE) {
            // Drivers before 12.8, and platforms without the PCIe mapping type.
            INVALID_VALUE | NOT_SUPPORTED => ask(0),
            code => code,
        };
        if code != SUCCESS || fd < 0 {
            crate::info_log!(
                FI_LOG_MR,
                "cuMemGetHandleForAddressRange of {pages} bytes at {start:#x}: error {code}"
            );
            return Err(FI_EOPNOTSUPP);
        }
        Ok(ExportedBuf {
            // SAFETY: the descriptor is new and ours.
            fd: unsafe { OwnedFd::from_raw_fd(fd) },
            offset: (at - start) as u64,
        })
    }

    /// Memory of cuMemMap has no handle.
    fn share(&self, at: usize) -> Result<IpcHandle> {
        let (mut base, mut len, mut handle) = (0, 0, CudaIpc([0; 8]));
        // The thread that registers or sends may have no context of its own.
        let context = self.context(at)?;
        let named = self.within(context, || {
            // SAFETY: there is a place for each answer.
            let codes = unsafe {
                [
                    (self.f.range)(&mut base, &mut len, at),
                    (self.f.ipc_get)(&mut handle, at),
                ]
            };
            Ok(codes == [SUCCESS; 2])
        })?;
        let id = self.buffer(at).filter(|_| named);
        Ok(IpcHandle {
            words: handle.0,
            id: id.ok_or(FI_EOPNOTSUPP)?,
            offset: (at - base) as u64,
        })
    }

    fn open_shared(&self, h: &IpcHandle, near: Option<usize>) -> Result<(usize, usize)> {
        let context = match near {
            Some(at) => self.context(at)?,
            None => {
                let mut n = 0;
                // SAFETY: there is a place for the answer.
                unsafe { (self.f.device_count)(&mut n) };
                (0..n)
                    .find_map(|g| self.primary(g).ok())
                    .ok_or(FI_EOPNOTSUPP)?
            }
        };
        self.within(context, || {
            let (mut at, mut base, mut len) = (0, 0, 0);
            // SAFETY: there is a place for each answer; CUDA checks the handle, and refuses the
            // process that made it and processes without permission.
            let opened = unsafe {
                (self.f.ipc_open)(&mut at, CudaIpc(h.words), LAZY_PEER_ACCESS) == SUCCESS
                    && (self.f.range)(&mut base, &mut len, at) == SUCCESS
            };
            opened.then_some((at, len)).ok_or(FI_EOPNOTSUPP)
        })
    }

    fn close_shared(&self, base: usize) {
        let close = || {
            // SAFETY: opened by `open_shared`, closed once.
            unsafe { check((self.f.ipc_close)(base), "cuIpcCloseMemHandle") }
        };
        let _ = self.context(base).and_then(|c| self.within(c, close));
    }

    unsafe fn start_copy(&self, to: usize, from: usize, len: usize) -> Result<usize> {
        let context = self.context(from).or_else(|_| self.context(to))?;
        self.within(context, || {
            let stream = self.stream(context)?;
            let mut event = core::ptr::null_mut();
            // SAFETY: the caller vouches for both ends; there is a place for the event.
            unsafe {
                check(
                    (self.f.event_create)(&mut event, NO_TIMING),
                    "cuEventCreate",
                )?;
                let started = check((self.f.copy)(to, from, len, stream), "cuMemcpyAsync");
                let started = started
                    .and_then(|()| check((self.f.event_record)(event, stream), "cuEventRecord"));
                let started = match hmem().hmem_cuda_enable_async_copy {
                    true => started,
                    false => started
                        .and_then(|()| check((self.f.event_wait)(event), "cuEventSynchronize")),
                };
                if started.is_err() {
                    (self.f.event_destroy)(event);
                }
                started.map(|()| event as usize)
            }
        })
    }

    fn test_copy(&self, id: usize, wait: bool) -> Result<bool> {
        let event = id as *mut c_void;
        // SAFETY: the event is of `start_copy`; the caller does not use it again once it is
        // destroyed.
        unsafe {
            let code = match wait {
                true => (self.f.event_wait)(event),
                false => (self.f.event_query)(event),
            };
            if code == NOT_READY {
                return Ok(false);
            }
            (self.f.event_destroy)(event);
            check(code, "cuMemcpyAsync").map(|()| true)
        }
    }

    /// If the program has not initialised CUDA yet, the driver does not answer: dma-buf support is
    /// assumed, and a later registration shows whether it exists.
    fn peer_to_peer(&self) -> bool {
        let mut yes = 0;
        // SAFETY: there is a place for the answer.
        let code = unsafe { (self.f.device_attribute)(&mut yes, DMA_BUF_SUPPORTED, 0) };
        let supported = code == NOT_INITIALIZED || code == SUCCESS && yes != 0;
        peermem() || self.export.is_some() && hmem().hmem_cuda_use_dmabuf && supported
    }
}
