//! Device memory for tests: an interface whose addresses are offsets into a vector, so that an
//! access by the processor or the system faults.

use super::{interface, Interface, IpcHandle, MemKind, UserMem};
use crate::core::sync::{Mutex, MutexGuard, Unpoisoned};
use crate::core::Result;
use crate::types::*;
use core::ffi::c_void;

/// The kind that tests use for this memory.
pub(crate) const KIND: MemKind = MemKind::Synapse;
/// Address of the first byte: in the page at 0, which is never mapped.
const BASE: usize = 8;

static MEMORY: Mutex<Vec<u8>> = Mutex::new(Vec::new());

fn memory() -> MutexGuard<'static, Vec<u8>> {
    MEMORY.lock().unpoisoned()
}

struct Fake;

impl Interface for Fake {
    unsafe fn copy_in(&self, to: usize, from: *const u8, len: usize) -> Result<()> {
        // SAFETY: as the caller vouches.
        let bytes = unsafe { core::slice::from_raw_parts(from, len) };
        let mut all = memory();
        let part = all.get_mut(to - BASE..to - BASE + len).ok_or(FI_EFAULT)?;
        part.copy_from_slice(bytes);
        Ok(())
    }

    unsafe fn copy_out(&self, to: *mut u8, from: usize, len: usize) -> Result<()> {
        let all = memory();
        let part = all.get(from - BASE..from - BASE + len).ok_or(FI_EFAULT)?;
        // SAFETY: as the caller vouches.
        unsafe { to.copy_from_nonoverlapping(part.as_ptr(), len) };
        Ok(())
    }

    fn open_shared(&self, h: &IpcHandle, _near: Option<usize>) -> Result<(usize, usize)> {
        let [base, len, ..] = h.words;
        Ok((base as usize, len as usize))
    }

    unsafe fn start_copy(&self, to: usize, from: usize, len: usize) -> Result<usize> {
        let mut bytes = vec![0; len];
        // SAFETY: as the caller vouches; what is not device memory is host memory.
        unsafe {
            match self.owns(from) {
                true => self.copy_out(bytes.as_mut_ptr(), from, len)?,
                false => bytes.copy_from_slice(core::slice::from_raw_parts(from as *const u8, len)),
            }
            match self.owns(to) {
                true => self.copy_in(to, bytes.as_ptr(), len)?,
                false => (to as *mut u8).copy_from_nonoverlapping(bytes.as_ptr(), len),
            }
        }
        Ok(0)
    }

    fn owns(&self, at: usize) -> bool {
        (BASE..BASE + memory().len()).contains(&at)
    }
}

/// Allocates device memory with these bytes.
pub(crate) fn alloc(bytes: &[u8]) -> UserMem {
    interface::install(KIND, Box::new(Fake));
    let mut all = memory();
    let at = BASE + all.len();
    all.extend_from_slice(bytes);
    drop(all);
    // SAFETY: this is device memory, which only its interface accesses.
    unsafe { UserMem::of_kinds([(at as *const c_void, bytes.len(), KIND)]) }.expect("one piece")
}

/// The handle by which another process would open this memory.
pub(crate) fn handle(mem: &UserMem) -> IpcHandle {
    let mut words = [0; 8];
    (words[0], words[1]) = (mem.addr() as u64, mem.len() as u64);
    let (id, offset) = (1, 0);
    IpcHandle { words, id, offset }
}

/// Host memory with these bytes, which stays for ever.
pub(crate) fn host(bytes: &[u8]) -> UserMem {
    let kept = Vec::leak(bytes.to_vec());
    let at = kept.as_mut_ptr().cast::<c_void>().cast_const();
    // SAFETY: nothing else refers to the memory.
    unsafe { UserMem::new([(at, kept.len())]) }.expect("one piece")
}

/// The contents of memory of either kind.
pub(crate) fn bytes(mem: &UserMem) -> Vec<u8> {
    let mut all = vec![0; mem.len()];
    assert_eq!(mem.load(0, &mut all), all.len());
    all
}
