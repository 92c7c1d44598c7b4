//! Support for fork(2): initialises that of libibverbs, and decides whether packet buffers may use
//! huge pages.
//!
//! Before Linux 5.12 the kernel does not copy pinned pages for the child of a fork. The parent's
//! next store then gets a new page (copy-on-write), while the adapter still uses the old one.
//! ibv_fork_init(3) keeps registered pages out of children; it has to be called before other calls,
//! and does not support huge pages.

use super::sys::Lib;
use crate::core::{params, Result};
use crate::types::*;

/// `IBV_FORK_ENABLED` of ibv_is_fork_initialized(3): registered pages are kept out of children.
const KEPT_OUT: core::ffi::c_int = 1;

/// Calls ibv_fork_init(3) if FI_EFA_FORK_SAFE asks for fork support. Has to come before any other
/// call of libibverbs.
pub(super) fn prepare(lib: &Lib) {
    if !params::efa().fork_safe {
        return;
    }
    // SAFETY: no arguments.
    let e = unsafe { (lib.ibv_fork_init)() };
    if e != 0 {
        crate::warn_log!(
            FI_LOG_FABRIC,
            "FI_EFA_FORK_SAFE: ibv_fork_init failed ({}): something has registered memory before; \
             processes that call \
             fork() may lose what is registered, unless the kernel is 5.12 or newer",
            crate::core::errno::text(e)
        );
    }
}

/// Whether packet buffers may use huge pages. `FI_EINVAL` when the job's parameters demand both
/// huge pages and fork support.
pub(super) fn huge_pages(lib: &Lib) -> Result<bool> {
    let kept_out = match lib.ibv_is_fork_initialized {
        // SAFETY: no arguments. RDMAV_FORK_SAFE in the environment counts, too.
        Some(f) => unsafe { f() == KEPT_OUT },
        // An rdma-core before 39 does not detect kernels that copy pinned pages.
        None => params::efa().fork_safe,
    };
    decide(kept_out, params::efa().use_huge_page)
}

fn decide(kept_out: bool, wanted: Option<bool>) -> Result<bool> {
    if kept_out && wanted == Some(true) {
        crate::warn_log!(
            FI_LOG_FABRIC,
            "FI_EFA_USE_HUGE_PAGE=1 with FI_EFA_FORK_SAFE=1 (or RDMAV_FORK_SAFE): The usage of \
             huge page is incompatible with rdma-core's fork support, which this kernel needs. No \
             adapter is used: unset one of them, or run a kernel from 5.12 on"
        );
        return Err(FI_EINVAL);
    }
    Ok(!kept_out && wanted.unwrap_or(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_and_fork_support_exclude_each_other() {
        assert_eq!(decide(true, Some(true)), Err(FI_EINVAL));
        assert_eq!(decide(true, None), Ok(false));
        assert_eq!(decide(true, Some(false)), Ok(false));
        assert_eq!(decide(false, None), Ok(true));
        assert_eq!(decide(false, Some(true)), Ok(true));
        assert_eq!(decide(false, Some(false)), Ok(false));
    }
}
