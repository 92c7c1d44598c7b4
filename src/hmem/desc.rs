//! Kinds of memory, and the descriptors that carry them.
//!
//! `fi_mr_desc` gives the application a descriptor for each region, and the application passes that
//! descriptor to every call that uses the region. The descriptor of host memory is the region's
//! handle, which is not read. The descriptor of device memory is the number of its kind, so that
//! the data path needs no look-up; its uppermost bit is set, which no user-space pointer has.

use crate::types::*;
use core::ffi::c_void;

/// A kind of memory, which determines how it is accessed and copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum MemKind {
    /// The processor reads and writes it.
    #[default]
    Host = 0,
    /// FI_HMEM_CUDA
    Cuda = 1,
    /// FI_HMEM_ROCR
    Rocr = 2,
    /// FI_HMEM_NEURON
    Neuron = 3,
    /// FI_HMEM_SYNAPSEAI
    Synapse = 4,
}

/// The kinds of device memory, in the order of their numbers.
pub(super) const DEVICE_KINDS: [MemKind; 4] = [
    MemKind::Cuda,
    MemKind::Rocr,
    MemKind::Neuron,
    MemKind::Synapse,
];
/// How many kinds there are.
pub(super) const KINDS: usize = 1 + DEVICE_KINDS.len();

const DEVICE: usize = 1 << (usize::BITS - 1);

impl MemKind {
    /// The kind of a descriptor that the application passed.
    #[inline(always)]
    pub fn of_desc(desc: *mut c_void) -> MemKind {
        match (desc as isize) < 0 {
            true => MemKind::of_device(desc as usize),
            false => MemKind::Host,
        }
    }

    #[cold]
    fn of_device(desc: usize) -> MemKind {
        match desc & !DEVICE {
            1 => MemKind::Cuda,
            2 => MemKind::Rocr,
            3 => MemKind::Neuron,
            4 => MemKind::Synapse,
            // Not a descriptor of ours.
            _ => MemKind::Host,
        }
    }

    /// The kind of an `iface` of fi_mr_regattr(3); `None` for one that is not known here.
    pub fn of_iface(iface: fi_hmem_iface) -> Option<MemKind> {
        match iface {
            FI_HMEM_SYSTEM => Some(MemKind::Host),
            FI_HMEM_CUDA => Some(MemKind::Cuda),
            FI_HMEM_ROCR => Some(MemKind::Rocr),
            FI_HMEM_NEURON => Some(MemKind::Neuron),
            FI_HMEM_SYNAPSEAI => Some(MemKind::Synapse),
            _ => None,
        }
    }

    /// The device kind of this number; `None` for any other number.
    pub fn of_number(n: u64) -> Option<MemKind> {
        DEVICE_KINDS.into_iter().find(|k| *k as u64 == n)
    }

    /// The descriptor of a region of device memory; NULL for host memory.
    pub fn desc(self) -> *mut c_void {
        match self {
            MemKind::Host => core::ptr::null_mut(),
            device => (DEVICE | device as usize) as *mut c_void,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_tell_device_memory_from_everything_else() {
        for k in DEVICE_KINDS {
            assert_eq!(MemKind::of_desc(k.desc()), k);
        }
        let local = 0u64;
        for p in [0, 1, &raw const local as usize, usize::MAX >> 1, usize::MAX] {
            assert_eq!(MemKind::of_desc(p as *mut c_void), MemKind::Host);
        }
    }
}
