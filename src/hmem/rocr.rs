//! Memory of AMD GPUs, by libhsa-runtime64.so.1 (ROCr).
//!
//! The runtime has no contexts: every GPU of the process sees every allocation. A copy of
//! `hsa_memory_copy` waits; one between two GPU ranges runs on the runtime's copy engines and ends
//! a signal of its own. hsa_init(3) counts its callers: ours is never taken back.

use super::dl::{functions, loaded as library_loaded, open};
use super::interface::{self, ExportedBuf, Interface, IpcHandle};
use super::MemKind;
use crate::core::params::hmem;
use crate::core::Result;
use crate::types::*;
use core::ffi::{c_int, c_void, CStr};
use std::os::fd::{FromRawFd, OwnedFd};

const LIBRARY: &CStr = c"libhsa-runtime64.so.1";

/// `hsa_status_t`
type HsaStatus = u32;
const SUCCESS: HsaStatus = 0;
/// HSA_AGENT_INFO_DEVICE, and HSA_DEVICE_TYPE_GPU.
const AGENT_DEVICE: u32 = 17;
const GPU: u32 = 1;
/// HSA_EXT_POINTER_TYPE_HSA and _IPC: device allocations, own and attached.
const ALLOCATED: u32 = 1;
const ATTACHED: u32 = 4;

/// `hsa_amd_pointer_info_t`
#[repr(C)]
#[derive(Default)]
struct PointerInfo {
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

/// Called for each agent.
type AgentCallback = unsafe extern "C" fn(u64, *mut c_void) -> HsaStatus;

functions! {
    Hsa -> HsaStatus;
    init = c"hsa_init": fn();
    iterate = c"hsa_iterate_agents": fn(AgentCallback, *mut c_void);
    agent_info = c"hsa_agent_get_info": fn(u64, u32, *mut c_void);
    pointer_info = c"hsa_amd_pointer_info":
        fn(usize, *mut PointerInfo, usize, *mut u32, *mut *mut u64);
    copy = c"hsa_memory_copy": fn(usize, usize, usize);
    copy_async = c"hsa_amd_memory_async_copy":
        fn(usize, u64, usize, u64, usize, u32, *const u64, u64);
    signal_create = c"hsa_signal_create": fn(i64, u32, *const u64, *mut u64);
    signal_destroy = c"hsa_signal_destroy": fn(u64);
    export = c"hsa_amd_portable_export_dmabuf": fn(usize, usize, *mut c_int, *mut u64);
    ipc_create = c"hsa_amd_ipc_memory_create": fn(usize, usize, *mut [u64; 4]);
    ipc_attach = c"hsa_amd_ipc_memory_attach":
        fn(*const [u64; 4], usize, u32, *const u64, *mut usize);
    ipc_detach = c"hsa_amd_ipc_memory_detach": fn(usize);
}

functions! {
    Signals -> i64;
    load = c"hsa_signal_load_scacquire": fn(u64);
    wait = c"hsa_signal_wait_scacquire": fn(u64, u32, i64, u64, u32);
}

/// HSA_SIGNAL_CONDITION_LT, and HSA_WAIT_STATE_BLOCKED.
const LESS: u32 = 2;
const BLOCKED: u32 = 0;
/// Id of a copy that was over when it returned.
const OVER: usize = 0;

/// The [`Interface`] of memory of AMD GPUs.
struct Rocr {
    f: Hsa,
    signals: Signals,
}

/// Whether the program has loaded the runtime.
pub(super) fn loaded() -> bool {
    library_loaded(LIBRARY)
}

/// Counts an agent if it is a GPU: `data` is the functions and the count.
unsafe extern "C" fn count_gpu(agent: u64, data: *mut c_void) -> HsaStatus {
    // SAFETY: `detect` passes its own variable of this type, and waits for this call; nothing else
    // refers to the variable meanwhile.
    let (f, gpus) = unsafe { &mut *data.cast::<(&Hsa, u32)>() };
    *gpus += u32::from(f.is_gpu(agent));
    SUCCESS
}

/// Installs the interface if the runtime finds a GPU.
pub(super) fn detect() {
    let Some(lib) = open(LIBRARY, 0) else {
        return;
    };
    let (Some(f), Some(signals)) = (Hsa::load(lib), Signals::load(lib)) else {
        crate::warn_log!(
            FI_LOG_CORE,
            "FI_HMEM_ROCR: libhsa-runtime64.so.1 lacks functions of ROCm 5.6: device memory is \
             not offered"
        );
        return;
    };
    let mut found = (&f, 0);
    // SAFETY: the runtime calls back before it returns.
    let initialised = unsafe {
        (f.init)() == SUCCESS && (f.iterate)(count_gpu, (&raw mut found).cast()) == SUCCESS
    };
    if initialised && found.1 > 0 {
        interface::install(MemKind::Rocr, Box::new(Rocr { f, signals }));
    }
}

fn check(code: HsaStatus, what: &str) -> Result<()> {
    if code == SUCCESS {
        return Ok(());
    }
    crate::info_log!(FI_LOG_CORE, "ROCr: {what} failed with status {code:#x}");
    Err(FI_EIO)
}

impl Hsa {
    fn is_gpu(&self, agent: u64) -> bool {
        let mut kind = 0u32;
        // SAFETY: the attribute is a `hsa_device_type_t`.
        let code = unsafe { (self.agent_info)(agent, AGENT_DEVICE, (&raw mut kind).cast()) };
        code == SUCCESS && kind == GPU
    }

    /// The allocation that an address is in, if it is a GPU's.
    fn allocation(&self, at: usize) -> Option<PointerInfo> {
        let mut info = PointerInfo {
            size: size_of::<PointerInfo>() as u32,
            ..PointerInfo::default()
        };
        let none = core::ptr::null_mut();
        // SAFETY: the answer has its place, and says how long it is; the list is not asked for.
        let code = unsafe { (self.pointer_info)(at, &mut info, 0, none, none.cast()) };
        let device = code == SUCCESS && matches!(info.kind, ALLOCATED | ATTACHED);
        (device && self.is_gpu(info.agent)).then_some(info)
    }
}

impl Interface for Rocr {
    unsafe fn copy_in(&self, to: usize, from: *const u8, len: usize) -> Result<()> {
        // SAFETY: the caller vouches for the host's end; the runtime checks the other.
        check(
            unsafe { (self.f.copy)(to, from as usize, len) },
            "hsa_memory_copy",
        )
    }

    unsafe fn copy_out(&self, to: *mut u8, from: usize, len: usize) -> Result<()> {
        // SAFETY: as above.
        check(
            unsafe { (self.f.copy)(to as usize, from, len) },
            "hsa_memory_copy",
        )
    }

    fn owns(&self, at: usize) -> bool {
        self.f.allocation(at).is_some()
    }

    fn export(&self, at: usize, len: usize) -> Result<ExportedBuf> {
        let (mut fd, mut offset) = (-1, 0);
        if !hmem().hmem_rocr_use_dmabuf {
            return Err(FI_EOPNOTSUPP);
        }
        // SAFETY: there is a place for each answer; the runtime checks the range.
        let code = unsafe { (self.f.export)(at, len, &mut fd, &mut offset) };
        if check(code, "hsa_amd_portable_export_dmabuf").is_err() || fd < 0 {
            return Err(FI_EOPNOTSUPP);
        }
        Ok(ExportedBuf {
            // SAFETY: the descriptor is new and ours.
            fd: unsafe { OwnedFd::from_raw_fd(fd) },
            offset,
        })
    }

    fn peer_to_peer(&self) -> bool {
        hmem().hmem_rocr_use_dmabuf
    }

    /// A handle names the kernel's buffer: a later allocation at the same address has another.
    fn share(&self, at: usize) -> Result<IpcHandle> {
        let a = self.f.allocation(at).filter(|a| a.kind == ALLOCATED);
        let a = a.ok_or(FI_EOPNOTSUPP)?;
        let mut handle = [0; 4];
        // SAFETY: there is a place for the answer; the runtime checks the range.
        let code = unsafe { (self.f.ipc_create)(a.base, a.len, &mut handle) };
        check(code, "hsa_amd_ipc_memory_create").map_err(|_| FI_EOPNOTSUPP)?;
        let [w0, w1, w2, w3] = handle;
        let mix = |id: u64, w: &u64| (id ^ w).wrapping_mul(0x100_0000_01b3);
        Ok(IpcHandle {
            words: [w0, w1, w2, w3, a.len as u64, 0, 0, 0],
            id: handle.iter().fold(0xcbf2_9ce4_8422_2325, mix),
            offset: (at - a.base) as u64,
        })
    }

    fn open_shared(&self, h: &IpcHandle, _near: Option<usize>) -> Result<(usize, usize)> {
        let [w0, w1, w2, w3, len, ..] = h.words;
        let (mut at, len) = (0, usize::try_from(len).map_err(|_| FI_EINVAL)?);
        // SAFETY: there is a place for the answer; the runtime checks the handle.
        let code =
            unsafe { (self.f.ipc_attach)(&[w0, w1, w2, w3], len, 0, core::ptr::null(), &mut at) };
        check(code, "hsa_amd_ipc_memory_attach").map_err(|_| FI_EOPNOTSUPP)?;
        // The length comes from the peer, and is not trusted: the runtime returns how much is
        // mapped.
        let info = self.f.allocation(at);
        let mapped = info.map(|i| i.len.saturating_sub(at.saturating_sub(i.base)));
        match mapped.filter(|n| *n > 0) {
            Some(n) => Ok((at, len.min(n))),
            None => {
                self.close_shared(at);
                Err(FI_EOPNOTSUPP)
            }
        }
    }

    fn close_shared(&self, base: usize) {
        // SAFETY: attached by `open_shared`, detached once.
        let _ = check(
            unsafe { (self.f.ipc_detach)(base) },
            "hsa_amd_ipc_memory_detach",
        );
    }

    unsafe fn start_copy(&self, to: usize, from: usize, len: usize) -> Result<usize> {
        let ends = (self.f.allocation(to), self.f.allocation(from));
        let (Some(to_info), Some(from_info)) = ends else {
            // The copy engines reach only pinned host memory.
            // SAFETY: the caller vouches for both ends.
            let code = unsafe { (self.f.copy)(to, from, len) };
            return check(code, "hsa_memory_copy").map(|()| OVER);
        };
        let mut signal = 0;
        let none = core::ptr::null();
        // SAFETY: there is a place for the signal; the caller vouches for both ends.
        unsafe {
            check(
                (self.f.signal_create)(1, 0, none, &mut signal),
                "hsa_signal_create",
            )?;
            let (to_agent, from_agent) = (to_info.agent, from_info.agent);
            let code = (self.f.copy_async)(to, to_agent, from, from_agent, len, 0, none, signal);
            if code != SUCCESS {
                (self.f.signal_destroy)(signal);
            }
            check(code, "hsa_amd_memory_async_copy").map(|()| signal as usize)
        }
    }

    fn test_copy(&self, id: usize, wait: bool) -> Result<bool> {
        if id == OVER {
            return Ok(true);
        }
        let signal = id as u64;
        // SAFETY: the signal is of `start_copy`; the caller does not use it again once it is
        // destroyed. The copy decrements it, or makes it negative when it fails.
        unsafe {
            let value = match wait {
                true => (self.signals.wait)(signal, LESS, 1, u64::MAX, BLOCKED),
                false => (self.signals.load)(signal),
            };
            if value > 0 {
                return Ok(false);
            }
            (self.f.signal_destroy)(signal);
            match value {
                0 => Ok(true),
                _ => Err(FI_EIO),
            }
        }
    }
}
