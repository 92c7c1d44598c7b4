//! The turns of the domain's progress thread (`prov::progress_thread`).

use super::TcpDomain;
use crate::device::wait::WaitSet;
use crate::prov::progress_thread::{Background, Next, ProgressThread};
use crate::prov::reports;
use crate::prov::tcp::progress::{poll_sockets, settle};
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// Polls without success before the thread sleeps.
const VAIN: u32 = 16;
/// Polls of one turn: for so long the thread holds the domain's lock while much comes.
const POLLS: u32 = 64;

impl Background for TcpDomain {
    fn thread(&self) -> &ProgressThread {
        &self.thread
    }

    fn turn(&self) -> (Vec<Arc<WaitSet>>, Next) {
        let polled = self.calls.swap(0, Ordering::Relaxed) > 0;
        let mut guard = self.state.lock_from_library();
        let next = match polled {
            true => Next::Pause,
            false => {
                // A stream comes in pieces, and sleeping costs as much as several of them.
                let mut vain = 0;
                for _ in 0..POLLS {
                    vain = if poll_sockets(&mut guard) {
                        0
                    } else {
                        vain + 1
                    };
                    let called = guard.is_wanted() || self.calls.load(Ordering::Relaxed) > 0;
                    if vain == VAIN || called {
                        break;
                    }
                }
                let most = settle(&mut guard);
                match vain < VAIN {
                    true => Next::Again,
                    false => Next::Sleep(most),
                }
            }
        };
        let s = &mut *guard;
        (reports::take_news(&mut s.cqs, &mut s.cntrs), next)
    }

    fn give_way(&self) {
        self.state.give_way();
    }
}
