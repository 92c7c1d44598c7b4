//! Device memory: an interface for each kind, behind one contract.
//!
//! An interface whose library is not there copies nothing and says so.

use super::desc::{MemKind, DEVICE_KINDS, KINDS};
use super::{Segment, UserMem};
use crate::core::params::hmem;
use crate::core::Result;
use crate::types::*;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

/// What every kind of device memory can do. Thread safe; no call creates a context.
pub trait Interface: Send + Sync {
    /// Copies `len` bytes of host memory at `from` to device memory at `to`, and waits.
    ///
    /// # Safety
    /// `from` has `len` readable bytes.
    unsafe fn copy_in(&self, to: usize, from: *const u8, len: usize) -> Result<()>;

    /// Copies `len` bytes of device memory at `from` to host memory at `to`, and waits.
    ///
    /// # Safety
    /// `to` has `len` writable bytes.
    unsafe fn copy_out(&self, to: *mut u8, from: usize, len: usize) -> Result<()>;

    /// Whether an address is in device memory of this kind.
    fn owns(&self, at: usize) -> bool;

    /// The pages around `len` bytes at `at` as a dma-buf. `FI_EOPNOTSUPP` where there is none to be
    /// had.
    fn export(&self, _at: usize, _len: usize) -> Result<ExportedBuf> {
        Err(FI_EOPNOTSUPP)
    }

    /// Whether adapters may be expected to read and write it themselves.
    fn peer_to_peer(&self) -> bool {
        false
    }

    /// What another process of this host needs to reach the allocation around `at`.
    /// `FI_EOPNOTSUPP` for memory that cannot be shared.
    fn share(&self, _at: usize) -> Result<IpcHandle> {
        Err(FI_EOPNOTSUPP)
    }

    /// Opens what another process shares, for copies in the context of device memory at `near`, or
    /// in any for host memory (`None`): first address and bytes.
    fn open_shared(&self, _h: &IpcHandle, _near: Option<usize>) -> Result<(usize, usize)> {
        Err(FI_EOPNOTSUPP)
    }

    /// Closes it again; no copy is under way.
    fn close_shared(&self, _base: usize) {}

    /// Starts a copy of `len` bytes of device memory at `from` to memory of either kind at `to`.
    ///
    /// # Safety
    /// Both stay as they are until the copy is over, and `to` may be written.
    unsafe fn start_copy(&self, _to: usize, _from: usize, _len: usize) -> Result<usize> {
        Err(FI_EOPNOTSUPP)
    }

    /// Whether copy `id` of [`Interface::start_copy`] is over; `wait`: when it is. `FI_EIO` when it
    /// failed. It is not asked again once it is over.
    fn copy_over(&self, _id: usize, _wait: bool) -> Result<bool> {
        Ok(true)
    }
}

/// Words of an [`IpcHandle`].
pub const IPC_WORDS: usize = 10;

/// What another process of this host needs to reach device memory: a handle of the interface's, a
/// number that no other allocation has had, and where in the allocation the memory begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IpcHandle {
    /// For the interface.
    pub words: [u64; 8],
    /// Of the allocation.
    pub id: u64,
    /// Bytes from its beginning.
    pub offset: u64,
}

impl IpcHandle {
    /// As words of a record.
    pub fn to_words(&self) -> [u64; IPC_WORDS] {
        let mut w = [0; IPC_WORDS];
        w[..8].copy_from_slice(&self.words);
        (w[8], w[9]) = (self.id, self.offset);
        w
    }

    /// From words of a record.
    pub fn of_words(w: [u64; IPC_WORDS]) -> IpcHandle {
        let [words @ .., id, offset] = w;
        IpcHandle { words, id, offset }
    }
}

/// Device memory as a dma-buf.
#[derive(Debug)]
pub struct ExportedBuf {
    /// Its descriptor.
    pub fd: OwnedFd,
    /// Where the range begins in it, bytes.
    pub offset: u64,
}

/// An interface without its library.
struct Absent;

impl Interface for Absent {
    unsafe fn copy_in(&self, _: usize, _: *const u8, _: usize) -> Result<()> {
        Err(FI_ENOSYS)
    }
    unsafe fn copy_out(&self, _: *mut u8, _: usize, _: usize) -> Result<()> {
        Err(FI_ENOSYS)
    }
    fn owns(&self, _: usize) -> bool {
        false
    }
}

static INSTALLED: [OnceLock<Box<dyn Interface>>; KINDS] = [const { OnceLock::new() }; KINDS];

/// Makes an interface known. The first of a kind stays.
pub(crate) fn install(kind: MemKind, i: Box<dyn Interface>) {
    if let Some(place) = INSTALLED.get(kind as usize) {
        let _ = place.set(i);
    }
}

/// The interface of this kind.
pub(crate) fn of(kind: MemKind) -> &'static dyn Interface {
    let known = INSTALLED.get(kind as usize).and_then(OnceLock::get);
    known.map_or(&Absent, |i| &**i)
}

/// Name of a kind in FI_HMEM.
fn name(kind: MemKind) -> &'static str {
    match kind {
        MemKind::Host => "system",
        MemKind::Cuda => "cuda",
        MemKind::Rocr => "rocr",
        MemKind::Neuron => "neuron",
        MemKind::Synapse => "synapseai",
    }
}

/// Looks for the interfaces of this machine, once: no context is made, and nothing is allocated on
/// a device.
fn detect() {
    static DONE: OnceLock<()> = OnceLock::new();
    DONE.get_or_init(super::cuda::detect);
}

/// The interfaces of this machine that may be used (FI_HMEM).
fn usable() -> impl Iterator<Item = &'static dyn Interface> {
    detect();
    let all = INSTALLED.iter().skip(1).zip(DEVICE_KINDS);
    all.filter(|(_, kind)| hmem().permits(name(*kind)))
        .filter_map(|(i, _)| Some(&**i.get()?))
}

/// Whether this machine has an interface of this kind, which may be used.
pub(crate) fn present(kind: MemKind) -> bool {
    detect();
    let installed = |i: &OnceLock<_>| i.get().is_some();
    let device = INSTALLED.get(kind as usize).is_some_and(installed);
    kind == MemKind::Host || device && hmem().permits(name(kind))
}

/// Whether this machine has device memory that may be used.
pub(crate) fn any() -> bool {
    usable().next().is_some()
}

/// Why there is no device memory that may be used.
pub(crate) fn why_none() -> &'static str {
    match INSTALLED.iter().any(|i| i.get().is_some()) {
        true => "the variable FI_HMEM names none of this machine's",
        false => "this machine shows no GPU (libcuda.so.1 and /dev/nvidiactl)",
    }
}

/// Whether adapters may be expected to read and write all of this machine's device memory.
pub(crate) fn peer_to_peer() -> bool {
    !hmem().hmem_disable_p2p && usable().all(|i| i.peer_to_peer())
}

/// As [`Interface::share`], of one piece of device memory.
pub(crate) fn share(p: &Segment) -> Result<IpcHandle> {
    of(p.kind()).share(p.addr())
}

/// As [`Interface::export`].
pub(crate) fn export(kind: MemKind, at: usize, len: usize) -> Result<ExportedBuf> {
    of(kind).export(at, len)
}

/// An endpoint may be handed device memory.
static IN_USE: AtomicBool = AtomicBool::new(false);

/// From now on buffers without a descriptor may be a device's, too.
pub(crate) fn expect_device_memory() {
    IN_USE.store(true, Ordering::Relaxed);
}

/// Whether a buffer without a descriptor may be a device's.
#[inline(always)]
pub(crate) fn device_memory_expected() -> bool {
    IN_USE.load(Ordering::Relaxed)
}

/// Copies that failed: addresses of device memory, until the operation ends whose memory it is.
static FAILED: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());
static FAILURES: AtomicUsize = AtomicUsize::new(0);
/// As many are kept: a device that fails does so with every copy.
const FAILED_MAX: usize = 1024;

fn failed() -> MutexGuard<'static, Vec<(usize, usize)>> {
    FAILED.lock().unwrap_or_else(|e| e.into_inner())
}

/// Takes note of a copy that failed.
#[cold]
pub(super) fn note_failure(at: usize, len: usize) {
    let mut all = failed();
    if all.len() < FAILED_MAX && all.try_reserve(1).is_ok() {
        all.push((at, len));
    }
    FAILURES.store(all.len(), Ordering::Relaxed);
}

/// Whether a copy of this memory has failed since an operation with it ended last.
pub(crate) fn take_failure(mem: &UserMem) -> bool {
    if FAILURES.load(Ordering::Relaxed) == 0 || mem.is_host() {
        return false;
    }
    let of = |at: usize, len: usize| {
        let touches = |p: Segment| p.addr() < at + len && at < p.addr() + p.len();
        mem.pieces()
            .any(|p| p.kind() != MemKind::Host && touches(p))
    };
    let mut all = failed();
    let before = all.len();
    all.retain(|(at, len)| !of(*at, *len));
    FAILURES.store(all.len(), Ordering::Relaxed);
    all.len() < before
}

/// The kind of device memory that an address is in, if it is. A program that has such memory has
/// loaded its library, whether it has asked for FI_HMEM or not.
pub(crate) fn owner(at: usize) -> Option<MemKind> {
    if super::cuda::loaded() {
        detect();
    }
    let known = INSTALLED.iter().skip(1).zip(DEVICE_KINDS);
    let mut known = known.filter_map(|(i, kind)| Some((i.get()?, kind)));
    known.find(|(i, _)| i.owns(at)).map(|(_, kind)| kind)
}
