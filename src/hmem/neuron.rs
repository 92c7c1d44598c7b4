//! Memory of AWS Neuron devices (Trainium, Inferentia), by libnrt.so.1.
//!
//! The runtime copies to a device address, not from one, and does not say whose an address is: an
//! adapter has to read and write this memory itself, by dma-buf, and the application has to name
//! the interface when it registers (fi_mr_regattr).

use super::dl::{find, functions, open};
use super::interface::{self, ExportedBuf, Interface};
use super::MemKind;
use crate::core::params::hmem;
use crate::core::Result;
use crate::types::*;
use core::ffi::c_int;
use std::os::fd::{FromRawFd, OwnedFd};

/// `NRT_STATUS`
type NrtStatus = u32;
const SUCCESS: NrtStatus = 0;

functions! {
    Nrt -> NrtStatus;
    // One of the few functions that may be called before nrt_init.
    cores = c"nrt_get_total_nc_count": fn(*mut u32);
    copy_in = c"nrt_memcpy_to_device": fn(usize, *const u8, usize);
}

/// nrt_get_dmabuf_fd_v2, and its predecessor, which returns no offset.
type ExportAt = unsafe extern "C" fn(u64, u64, *mut c_int, *mut u64) -> NrtStatus;
type ExportBase = unsafe extern "C" fn(u64, u64, *mut c_int) -> NrtStatus;

/// The [`Interface`] of Neuron memory.
struct Neuron {
    f: Nrt,
    export_at: Option<ExportAt>,
    export_base: Option<ExportBase>,
}

/// Installs the interface if the runtime finds a core.
pub(super) fn detect() {
    let Some(lib) = open(c"libnrt.so.1", 0) else {
        return;
    };
    let Some(f) = Nrt::load(lib) else {
        crate::warn_log!(
            FI_LOG_CORE,
            "FI_HMEM_NEURON: libnrt.so.1 lacks nrt_get_total_nc_count or nrt_memcpy_to_device: \
             device memory is not offered"
        );
        return;
    };
    let mut cores = 0;
    // SAFETY: there is a place for the answer.
    if unsafe { (f.cores)(&mut cores) } != SUCCESS || cores == 0 {
        return;
    }
    // SAFETY: the functions of these names have these types.
    let found = unsafe {
        Neuron {
            f,
            export_at: find(lib, c"nrt_get_dmabuf_fd_v2"),
            export_base: find(lib, c"nrt_get_dmabuf_fd"),
        }
    };
    interface::install(MemKind::Neuron, Box::new(found));
}

impl Interface for Neuron {
    unsafe fn copy_in(&self, to: usize, from: *const u8, len: usize) -> Result<()> {
        // SAFETY: the caller vouches for the host's end; the runtime checks the other.
        match unsafe { (self.f.copy_in)(to, from, len) } {
            SUCCESS => Ok(()),
            _ => Err(FI_EIO),
        }
    }

    unsafe fn copy_out(&self, _: *mut u8, _: usize, _: usize) -> Result<()> {
        Err(FI_ENOSYS)
    }

    fn copies(&self) -> (bool, bool) {
        (true, false)
    }

    fn owns(&self, _: usize) -> bool {
        false
    }

    fn export(&self, at: usize, len: usize) -> Result<ExportedBuf> {
        let (mut fd, mut offset) = (-1, 0);
        if !hmem().hmem_neuron_use_dmabuf {
            return Err(FI_EOPNOTSUPP);
        }
        let (va, size) = (at as u64, len as u64);
        // SAFETY: there is a place for each answer; the runtime checks the range.
        let code = unsafe {
            match (self.export_at, self.export_base) {
                (Some(f), _) => f(va, size, &mut fd, &mut offset),
                (None, Some(f)) => f(va, size, &mut fd),
                (None, None) => return Err(FI_EOPNOTSUPP),
            }
        };
        if code != SUCCESS || fd < 0 {
            crate::info_log!(
                FI_LOG_MR,
                "nrt_get_dmabuf_fd of {len} bytes at {at:#x}: status {code}"
            );
            return Err(FI_EOPNOTSUPP);
        }
        Ok(ExportedBuf {
            // SAFETY: the descriptor is new and ours.
            fd: unsafe { OwnedFd::from_raw_fd(fd) },
            offset,
        })
    }

    fn peer_to_peer(&self) -> bool {
        true
    }
}
