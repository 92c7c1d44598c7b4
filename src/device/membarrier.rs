//! Asymmetric memory fences by membarrier(2): the side that synchronises seldom pays the whole
//! cost.
//!
//! Two threads that each store a word and then load the other's word need a full fence in between,
//! on both sides. The frequent side can omit its fence if the rare side executes one on every
//! processor between its own store and load.

use crate::core::process::PerProcess;

const GLOBAL_EXPEDITED: i32 = 1 << 1;
const REGISTER_GLOBAL_EXPEDITED: i32 = 1 << 2;
const PRIVATE_EXPEDITED: i32 = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;

fn membarrier(command: i32) -> bool {
    // SAFETY: takes plain numbers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Registers this process for [`own`]. On `true` its threads can omit their fences towards threads
/// that call [`own`]. `false` with the thread sanitizer, which does not model membarrier.
pub fn register_private() -> bool {
    !cfg!(feature = "tsan") && membarrier(REGISTER_PRIVATE_EXPEDITED)
}

/// Executes a barrier on every processor that runs a thread of this process.
pub fn own() -> bool {
    membarrier(PRIVATE_EXPEDITED)
}

/// Registers this process for [`all`]. On `true` its threads can omit their fences towards
/// processes that call [`all`]. The first call takes milliseconds in a process with several
/// threads, and almost no time in a process with one.
pub fn register_global() -> bool {
    static JOINED: PerProcess<bool> = PerProcess::new();
    *JOINED.get_or_init(|| !cfg!(feature = "tsan") && membarrier(REGISTER_GLOBAL_EXPEDITED))
}

/// Executes a barrier on every processor that runs a registered process. `false` where the system
/// forbids that.
pub fn all() -> bool {
    membarrier(GLOBAL_EXPEDITED)
}
