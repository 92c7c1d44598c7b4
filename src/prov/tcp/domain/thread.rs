//! Progress without calls (FI_PROGRESS_AUTO, FI_WAIT_MUTEX_COND): a thread that waits for the
//! domain's sockets.
//!
//! While the application makes progress itself, the thread only tests now and then whether it still
//! does ([`LOOK_MAX`]): two threads that read the sockets slow each other down.

use super::TcpDomain;
use crate::core::Result;
use crate::device::host;
use crate::device::wait::wait_readable;
use crate::prov::reports;
use crate::prov::tcp::progress::{look, settle};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Time between two tests whether the application polls: at first, and while it does.
const LOOK: Duration = Duration::from_millis(1);
const LOOK_MAX: Duration = Duration::from_millis(4);
/// Polls without success before the thread sleeps.
const VAIN: u32 = 16;

impl TcpDomain {
    /// Starts the thread, once.
    pub(super) fn progress_thread(self: &Arc<Self>) -> Result<()> {
        if self.thread.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        let me = Arc::downgrade(self);
        host::start(c"fi-progress", move || run(&me))
    }
}

fn run(domain: &Weak<TcpDomain>) {
    let mut seen = 0;
    let mut pause = LOOK;
    loop {
        let Some(d) = domain.upgrade() else { return };
        if d.closing.load(Ordering::SeqCst) {
            return;
        }
        let calls = d.calls.load(Ordering::Relaxed);
        if calls != seen {
            seen = calls;
            drop(d);
            std::thread::sleep(pause);
            pause = LOOK_MAX.min(2 * pause);
            continue;
        }
        pause = LOOK;
        d.wake.clear();
        let (tell, most) = {
            let mut s = d.state.lock_from_library();
            let s = &mut *s;
            // A stream comes in pieces, and sleeping costs as much as several of them.
            let mut vain = 0;
            while vain < VAIN {
                vain = if look(s) { 0 } else { vain + 1 };
            }
            let most = settle(s);
            (reports::take_news(&mut s.cqs, &mut s.cntrs), most)
        };
        for w in tell {
            w.broadcast();
        }
        // The wait is limited: the domain may be gone without a signal.
        wait_readable(d.wake.fd(), if most < 0 { 100 } else { most });
    }
}
