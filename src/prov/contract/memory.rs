//! Registered memory (fi_mr(3)).

use crate::core::Result;
use crate::device::DmaBuf;
use crate::hmem::UserMem;

/// A registered region, as the caller's `fid_mr` remembers it.
#[derive(Debug)]
pub struct Mr {
    /// What peers name it by.
    pub key: u64,
}

/// Memory regions of a domain.
pub trait MemoryRegions {
    /// Registers memory (fi_mr(3)), of a dma-buf with `from`. `FI_ENOKEY` when the key `wanted`
    /// counts and is taken, `FI_ENOMR` when there is no room for one more.
    fn reg_mr(&self, mem: UserMem, from: Option<DmaBuf>, access: u64, wanted: u64) -> Result<Mr>;
    /// Withdraws a registration: nobody uses the memory any more when it returns. `FI_EBUSY` when a
    /// peer does not let go of it; then the region stays open, for another try.
    fn close_mr(&self, mr: &Mr) -> Result<()>;
    /// fi_mr_bind(3) with a counter: `kinds` are FI_REMOTE_READ and FI_REMOTE_WRITE.
    fn bind_mr(&self, mr: &Mr, cntr: u32, kinds: u64) -> Result<()>;
}
