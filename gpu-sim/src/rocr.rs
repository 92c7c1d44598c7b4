//! The runtime of AMD GPUs (libhsa-runtime64.so.1): `hsa_*`, as far as libfabric and the tests use
//! it. Agent `n` + 1 is GPU `n`; agent 1000 is the processor. A signal is a boxed number.

use crate::exports::{exports, run};
use crate::memory::{self, Origin};
use crate::{config, driver};
use core::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};

/// `hsa_status_t`
const SUCCESS: u32 = 0;
const ERROR: u32 = 0x1000;
const INVALID_ARGUMENT: u32 = 0x1001;

const PROCESSOR: u64 = 1000;
/// HSA_AGENT_INFO_DEVICE
const AGENT_DEVICE: u32 = 17;

/// `hsa_amd_pointer_info_t`
#[repr(C)]
pub struct PointerInfo {
    size: u32,
    kind: u32,
    base: usize,
    host_base: usize,
    len: usize,
    user: usize,
    agent: u64,
    flags: u32,
    registered: bool,
}

fn call(name: &'static str, f: impl FnOnce() -> Option<()>) -> u32 {
    run(name, INVALID_ARGUMENT as c_int, f) as u32
}

fn gpu_of(agent: u64) -> Option<usize> {
    let gpu = usize::try_from(agent).ok()?.checked_sub(1)?;
    (gpu < config::get().gpus).then_some(gpu)
}

exports! {
    call -> u32;
    fn hsa_init() { Some(()) }
    fn hsa_iterate_agents(
        each: unsafe extern "C" fn(u64, *mut c_void) -> u32,
        data: *mut c_void,
    ) {
        let agents = (1..=config::get().gpus as u64).chain([PROCESSOR]);
        for agent in agents {
            each(agent, data);
        }
        Some(())
    }
    fn hsa_agent_get_info(agent: u64, what: u32, to: *mut u32) {
        let gpu = u32::from(gpu_of(agent).is_some());
        (what == AGENT_DEVICE && !to.is_null()).then(|| to.write(gpu))
    }
    fn hsa_memory_allocate(region: u64, len: usize, to: *mut usize) {
        driver::put(to, memory::alloc(gpu_of(region)?, len)?).ok()
    }
    fn hsa_memory_free(at: usize) { memory::free(at).then_some(()) }
    fn hsa_memory_copy(to: usize, from: usize, len: usize) {
        core::ptr::copy(memory::host_view(from, len)?, memory::host_view(to, len)?, len);
        Some(())
    }
    fn hsa_amd_pointer_info(
        at: usize,
        to: *mut PointerInfo,
        _alloc: usize,
        _count: *mut u32,
        _agents: *mut *mut u64,
    ) {
        let to = to.as_mut()?;
        (to.kind, to.agent) = (0, 0);
        if let Some(a) = memory::find(at) {
            to.kind = if a.origin == Origin::Foreign { 4 } else { 1 };
            (to.base, to.len, to.agent) = (a.base, a.len, a.gpu as u64 + 1);
        }
        Some(())
    }
    fn hsa_signal_create(value: i64, _count: u32, _consumers: *const u64, to: *mut u64) {
        let signal = Box::into_raw(Box::new(AtomicI64::new(value)));
        driver::put(to, signal as u64).ok()
    }
    fn hsa_signal_destroy(signal: u64) {
        drop(Box::from_raw(signal as *mut AtomicI64));
        Some(())
    }
    /// Copies later, by a thread, as a copy engine does.
    fn hsa_amd_memory_async_copy(
        to: usize,
        _to_agent: u64,
        from: usize,
        _from_agent: u64,
        len: usize,
        _count: u32,
        _first: *const u64,
        signal: u64,
    ) {
        let (from, to) = (memory::host_view(from, len)?, memory::host_view(to, len)?);
        let (from, to) = (from as usize, to as usize);
        std::thread::spawn(move || {
            std::thread::sleep(config::get().delay);
            // SAFETY: both ends stay until the copy is over, and so does the signal.
            unsafe {
                core::ptr::copy(from as *const u8, to as *mut u8, len);
                (*(signal as *const AtomicI64)).fetch_sub(1, SeqCst);
            }
        });
        Some(())
    }
    fn hsa_amd_portable_export_dmabuf(at: usize, len: usize, fd: *mut c_int, off: *mut u64) {
        let start = at & !4095;
        let pages = (at + len).next_multiple_of(4096) - start;
        driver::put(fd, memory::export(start, pages).filter(|_| config::get().dmabuf)?).ok()?;
        driver::put(off, (at - start) as u64).ok()
    }
    fn hsa_amd_ipc_memory_create(at: usize, _len: usize, to: *mut [u64; 4]) {
        let a = memory::find(at).filter(|a| a.base == at && a.origin == Origin::Own)?;
        let file = memory::file_of(a.gpu)? as u64;
        let owner = u64::from(std::process::id()) << 32 | file;
        driver::put(to, [owner, a.gpu as u64, a.off as u64, a.len as u64]).ok()
    }
    fn hsa_amd_ipc_memory_attach(
        handle: *const [u64; 4],
        len: usize,
        _count: u32,
        _agents: *const u64,
        to: *mut usize,
    ) {
        let [owner, gpu, off, whole] = *handle.as_ref()?;
        let (pid, fd) = ((owner >> 32) as i32, owner as u32 as i32);
        let fits = len <= whole as usize && pid != std::process::id() as i32;
        let at = fits.then(|| memory::open(pid, fd, gpu as usize, (off as usize, len)))??;
        driver::put(to, at).ok()
    }
    fn hsa_amd_ipc_memory_detach(at: usize) { memory::free(at).then_some(()) }
}

/// # Safety
/// The signal exists.
#[no_mangle]
pub unsafe extern "C" fn hsa_signal_load_scacquire(signal: u64) -> i64 {
    // SAFETY: as promised by the caller.
    unsafe { (*(signal as *const AtomicI64)).load(SeqCst) }
}

/// Waits until the value is less than `than` (HSA_SIGNAL_CONDITION_LT); other conditions are not
/// needed.
///
/// # Safety
/// The signal exists.
#[no_mangle]
pub unsafe extern "C" fn hsa_signal_wait_scacquire(
    signal: u64,
    condition: u32,
    than: i64,
    _timeout: u64,
    _state: u32,
) -> i64 {
    loop {
        // SAFETY: as promised by the caller.
        let value = unsafe { hsa_signal_load_scacquire(signal) };
        if value < than || condition != 2 {
            return value;
        }
        std::thread::yield_now();
    }
}

/// hsa_status_string(3), of which only the codes above are known.
///
/// # Safety
/// `to` is NULL or a place for a string.
#[no_mangle]
pub unsafe extern "C" fn hsa_status_string(code: u32, to: *mut *const core::ffi::c_char) -> u32 {
    let text = match code {
        SUCCESS => c"success",
        INVALID_ARGUMENT => c"invalid argument",
        _ => c"error",
    };
    // SAFETY: as promised by the caller.
    match unsafe { driver::put(to, text.as_ptr()) } {
        Ok(()) => SUCCESS,
        Err(_) => ERROR,
    }
}
