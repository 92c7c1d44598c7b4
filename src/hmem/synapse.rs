//! Memory of Habana Gaudi devices, by libSynapse.so.
//!
//! The library gives out dma-bufs of memory that was prepared for an adapter, and copies nothing
//! by address: only an adapter reads and writes this memory.

use super::dl::{functions, open};
use super::interface::{self, ExportedBuf, Interface};
use super::MemKind;
use crate::core::params::hmem;
use crate::core::Result;
use crate::types::*;
use core::ffi::c_int;
use std::os::fd::{FromRawFd, OwnedFd};

/// `synStatus`, and the result of hcclLookupDMABuff.
type SynStatus = c_int;
const SUCCESS: SynStatus = 0;

functions! {
    Syn -> SynStatus;
    init = c"synInitialize": fn();
    count = c"synDeviceGetCount": fn(*mut u32);
    lookup = c"hcclLookupDMABuff": fn(u64, u64, *mut c_int);
}

/// The [`Interface`] of Gaudi memory.
struct Synapse(Syn);

/// Installs the interface if the library finds a device.
pub(super) fn detect() {
    let Some(lib) = open(c"libSynapse.so", 0) else {
        return;
    };
    let Some(f) = Syn::load(lib) else {
        crate::warn_log!(
            FI_LOG_CORE,
            "FI_HMEM_SYNAPSEAI: libSynapse.so lacks synInitialize, synDeviceGetCount or \
             hcclLookupDMABuff: device memory is not offered"
        );
        return;
    };
    let mut devices = 0;
    // SAFETY: there is a place for the answer.
    let found = unsafe { (f.init)() == SUCCESS && (f.count)(&mut devices) == SUCCESS };
    if found && devices > 0 {
        interface::install(MemKind::Synapse, Box::new(Synapse(f)));
    }
}

impl Interface for Synapse {
    unsafe fn copy_in(&self, _: usize, _: *const u8, _: usize) -> Result<()> {
        Err(FI_ENOSYS)
    }

    unsafe fn copy_out(&self, _: *mut u8, _: usize, _: usize) -> Result<()> {
        Err(FI_ENOSYS)
    }

    fn copies(&self) -> (bool, bool) {
        (false, false)
    }

    fn owns(&self, _: usize) -> bool {
        false
    }

    /// The library finds a dma-buf by its first byte only.
    fn export(&self, at: usize, len: usize) -> Result<ExportedBuf> {
        let mut fd = -1;
        if !hmem().hmem_synapseai_use_dmabuf {
            return Err(FI_EOPNOTSUPP);
        }
        // SAFETY: there is a place for the answer; the library checks the range.
        let code = unsafe { (self.0.lookup)(at as u64, len as u64, &mut fd) };
        if fd < 0 {
            crate::info_log!(
                FI_LOG_MR,
                "hcclLookupDMABuff of {len} bytes at {at:#x}: {code}"
            );
            return Err(FI_EOPNOTSUPP);
        }
        Ok(ExportedBuf {
            // SAFETY: the descriptor is new and ours.
            fd: unsafe { OwnedFd::from_raw_fd(fd) },
            offset: 0,
        })
    }

    fn peer_to_peer(&self) -> bool {
        true
    }
}
