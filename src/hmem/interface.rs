//! Device memory: one [`Interface`] for each kind.
//!
//! A kind whose library is missing has an interface whose copies fail.

use super::desc::{MemKind, DEVICE_KINDS, KINDS};
use super::{Segment, UserMem};
use crate::core::params::hmem;
use crate::core::process::{generation, PerProcess};
use crate::core::sync::{Mutex, MutexGuard};
use crate::core::Result;
use crate::types::*;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::OnceLock;

/// Operations of a kind of device memory. Thread safe; no call creates a context.
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

    /// Whether [`Interface::copy_in`] and [`Interface::copy_out`] work.
    fn copies(&self) -> (bool, bool) {
        (true, true)
    }

    /// Prepares device memory that the application has registered: what a device does there is
    /// visible to the adapter in order.
    fn prepare(&self, _at: usize) {}

    /// Maps device memory for the processor, so that [`Interface::copy_in`] and
    /// [`Interface::copy_out`] need no call of the device's library for a few bytes. Returns the
    /// mapping's id; `None` where this is not possible, and the memory is copied as before.
    fn map(&self, _at: usize, _len: usize) -> Option<u64> {
        None
    }

    /// Removes a mapping of [`Interface::map`]; a copy that uses it has ended when the call
    /// returns.
    fn unmap(&self, _id: u64) {}

    /// Registers host memory of ours with the device's library, which copies to and from it without
    /// a buffer in between. `near` is device memory in whose context this happens. Returns whether
    /// it was registered.
    fn register_host(&self, _at: usize, _len: usize, _near: usize) -> bool {
        false
    }

    /// Withdraws a registration of [`Interface::register_host`].
    fn unregister_host(&self, _at: usize) {}

    /// Whether an address is in device memory of this kind.
    fn owns(&self, at: usize) -> bool;

    /// Exports the pages around `len` bytes at `at` as a dma-buf. `FI_EOPNOTSUPP` where that is not
    /// possible.
    fn export(&self, _at: usize, _len: usize) -> Result<ExportedBuf> {
        Err(FI_EOPNOTSUPP)
    }

    /// Whether adapters are expected to access this kind of memory directly.
    fn peer_to_peer(&self) -> bool {
        false
    }

    /// A handle by which another process of this host can open the allocation around `at`.
    /// `FI_EOPNOTSUPP` for memory that cannot be shared.
    fn share(&self, _at: usize) -> Result<IpcHandle> {
        Err(FI_EOPNOTSUPP)
    }

    /// Opens an allocation that another process shares; returns its first address and its length.
    /// The allocation is opened for copies in the context of the device memory at `near`, or in any
    /// context for copies to host memory (`None`).
    fn open_shared(&self, _h: &IpcHandle, _near: Option<usize>) -> Result<(usize, usize)> {
        Err(FI_EOPNOTSUPP)
    }

    /// Closes an allocation of [`Interface::open_shared`]; no copy is under way.
    fn close_shared(&self, _base: usize) {}

    /// Starts a copy of `len` bytes from `from` to `to`, of which one at least is device memory,
    /// and returns its id.
    ///
    /// # Safety
    /// Both ranges stay valid until the copy is over, and `to` may be written.
    unsafe fn start_copy(&self, _to: usize, _from: usize, _len: usize) -> Result<usize> {
        Err(FI_EOPNOTSUPP)
    }

    /// Tests whether copy `id` of [`Interface::start_copy`] is over, or waits for the copy
    /// (`wait`). `FI_EIO` when the copy failed. A copy that is over is released: `id` must not be
    /// used again.
    fn test_copy(&self, _id: usize, _wait: bool) -> Result<bool> {
        Ok(true)
    }
}

/// Words of an [`IpcHandle`].
pub const IPC_WORDS: usize = 10;

/// Names device memory to another process of this host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IpcHandle {
    /// The interface's own handle of the allocation.
    pub words: [u64; 8],
    /// Id of the allocation, which no other allocation has had.
    pub id: u64,
    /// Offset of the memory in the allocation, bytes.
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
    /// Offset of the range in the dma-buf, bytes.
    pub offset: u64,
}

/// The interface of a kind whose library is missing.
struct MissingInterface;

impl Interface for MissingInterface {
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

/// Installs the interface of a kind; the first one stays.
pub(crate) fn install(kind: MemKind, i: Box<dyn Interface>) {
    if let Some(place) = INSTALLED.get(kind as usize) {
        let _ = place.set(i);
    }
}

/// The interface of this kind.
pub(crate) fn of(kind: MemKind) -> &'static dyn Interface {
    let known = INSTALLED.get(kind as usize).and_then(OnceLock::get);
    known.map_or(&MissingInterface, |i| &**i)
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
    DONE.get_or_init(|| {
        super::cuda::detect();
        super::rocr::detect();
        super::neuron::detect();
        super::synapse::detect();
    });
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
        false => {
            "this machine shows no device (libcuda.so.1 and /dev/nvidiactl, libhsa-runtime64.so.1, \
             libnrt.so.1, libSynapse.so)"
        }
    }
}

/// Whether adapters may be expected to read and write all of this machine's device memory.
pub(crate) fn peer_to_peer() -> bool {
    !hmem().hmem_disable_p2p && usable().all(|i| i.peer_to_peer())
}

/// As [`Interface::share`], for one piece of device memory.
pub(crate) fn share(p: &Segment) -> Result<IpcHandle> {
    of(p.kind()).share(p.addr())
}

/// As [`Interface::copies`].
pub(crate) fn copies(kind: MemKind) -> (bool, bool) {
    of(kind).copies()
}

/// As [`Interface::export`].
pub(crate) fn export(kind: MemKind, at: usize, len: usize) -> Result<ExportedBuf> {
    of(kind).export(at, len)
}

/// Device memory that the processor copies from and to by itself, until this is dropped.
#[derive(Debug)]
pub(crate) struct CpuMapping {
    kind: MemKind,
    id: u64,
}

impl Drop for CpuMapping {
    fn drop(&mut self) {
        of(self.kind).unmap(self.id);
    }
}

/// Prepares memory that the application has registered, if it is device memory. If the library may
/// have to copy it (`copied`), the memory is mapped for the processor where that is possible.
pub(crate) fn registered(mem: &UserMem, copied: bool) -> Option<CpuMapping> {
    let p = mem.pieces().find(|p| p.kind() != MemKind::Host)?;
    let kind = p.kind();
    of(kind).prepare(p.addr());
    if !copied {
        return None;
    }
    super::bounce::register(kind, p.addr());
    let id = of(kind).map(p.addr(), p.len())?;
    Some(CpuMapping { kind, id })
}

/// An endpoint may be passed device memory.
static IN_USE: AtomicBool = AtomicBool::new(false);

/// From now on a buffer without a descriptor may be device memory.
pub(crate) fn expect_device_memory() {
    IN_USE.store(true, Ordering::Relaxed);
}

/// Whether a buffer without a descriptor may be device memory.
#[inline(always)]
pub(crate) fn device_memory_expected() -> bool {
    IN_USE.load(Ordering::Relaxed)
}

/// Failed copies: address and length of device memory, until the operation that uses it ends.
static FAILED: PerProcess<Mutex<Vec<(usize, usize)>>> = PerProcess::new();
static FAILURES: AtomicUsize = AtomicUsize::new(0);
/// Most failures that are recorded: a device that fails does so with every copy.
const FAILED_MAX: usize = 1024;

fn failed() -> MutexGuard<'static, Vec<(usize, usize)>> {
    FAILED.lock()
}

/// Records a failed copy.
#[cold]
pub(super) fn note_failure(at: usize, len: usize) {
    let mut all = failed();
    if all.contains(&(at, len)) {
        return;
    }
    if all.len() < FAILED_MAX && all.try_reserve(1).is_ok() {
        all.push((at, len));
    } else if let Some(last) = all.last_mut() {
        // No failure is lost: other memory in between counts as failed, too.
        let end = (last.0 + last.1).max(at + len);
        last.0 = last.0.min(at);
        last.1 = end - last.0;
    }
    FAILURES.store(all.len(), Ordering::Relaxed);
}

/// Removes the recorded failures of this memory, and returns whether there were any.
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

/// The kind of device memory at an address; `None` for host memory, and for devices whose library
/// does not say whose an address is. Detection is needed only once the device's library is loaded:
/// a program with such memory has loaded it, even without FI_HMEM.
pub(crate) fn owner(at: usize) -> Option<MemKind> {
    /// Libraries that had been loaded when those of devices were last looked for.
    static SEEN: AtomicU64 = AtomicU64::new(0);
    // In the child of a fork a thread of the parent may have the lock that `loads` takes.
    let loads = (generation() == 1).then(super::dl::loads);
    if loads != Some(SEEN.load(Ordering::Relaxed)) {
        if super::cuda::loaded() || super::rocr::loaded() {
            detect();
        }
        // Last: until then other threads look as well.
        if let Some(loads) = loads {
            SEEN.store(loads, Ordering::Relaxed);
        }
    }
    let known = INSTALLED.iter().skip(1).zip(DEVICE_KINDS);
    let mut known = known.filter_map(|(i, kind)| Some((i.get()?, kind)));
    known.find(|(i, _)| i.owns(at)).map(|(_, kind)| kind)
}
