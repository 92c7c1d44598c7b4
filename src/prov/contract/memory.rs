//! Registered memory (fi_mr(3)).

use crate::core::Result;
use crate::device::DmaBuf;
use crate::hmem::UserMem;

/// A registered region, as the caller's `fid_mr` remembers it.
#[derive(Debug)]
pub struct Mr {
    /// Key by which peers name it.
    pub key: u64,
}

/// Memory regions of a domain.
pub trait MemoryRegions {
    /// Registers memory (fi_mr(3)), of a dma-buf with `from`. `FI_ENOKEY` when the application
    /// chooses keys and `wanted` is in use, `FI_ENOMR` when there is no room for one more.
    fn reg_mr(&self, mem: UserMem, from: Option<DmaBuf>, access: u64, wanted: u64) -> Result<Mr>;
    /// Withdraws a registration: nothing uses the memory any more after the return. `FI_EBUSY`
    /// while a peer still uses it; the region stays open then, and the call may be repeated.
    fn close_mr(&self, mr: &Mr) -> Result<()>;
    /// fi_mr_bind(3) with a counter: `kinds` are FI_REMOTE_READ and FI_REMOTE_WRITE.
    fn bind_mr(&self, mr: &Mr, cntr: u32, kinds: u64) -> Result<()>;
}
