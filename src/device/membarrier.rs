//! Memory barriers on the processors of others, membarrier(2): all the cost is with who seldom
//! asks.
//!
//! Two sides that each store a word and then look at the other's need a barrier between the two on
//! both sides. The one that does it often can do without, if the other has every processor take
//! notice before it looks.

use std::sync::OnceLock;

const GLOBAL_EXPEDITED: i32 = 1 << 1;
const REGISTER_GLOBAL_EXPEDITED: i32 = 1 << 2;
const PRIVATE_EXPEDITED: i32 = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;

fn membarrier(command: i32) -> bool {
    // SAFETY: takes plain numbers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Whether the threads of this process can do without from now on, thanks to [`own`]. The thread
/// sanitizer does not know membarrier.
pub fn join_own() -> bool {
    !cfg!(feature = "tsan") && membarrier(REGISTER_PRIVATE_EXPEDITED)
}

/// A barrier on every processor that runs a thread of this process.
pub fn own() -> bool {
    membarrier(PRIVATE_EXPEDITED)
}

/// Whether this process can do without towards other processes, thanks to [`all`]. The first time
/// takes milliseconds where the process has several threads, and nothing where it has one.
pub fn join_all() -> bool {
    static JOINED: OnceLock<bool> = OnceLock::new();
    *JOINED.get_or_init(|| !cfg!(feature = "tsan") && membarrier(REGISTER_GLOBAL_EXPEDITED))
}

/// A barrier on every processor that runs a process which has joined. `false` where the system
/// forbids it.
pub fn all() -> bool {
    membarrier(GLOBAL_EXPEDITED)
}
