//! The wait object of a completion queue or counter (FI_WAIT_*), and the endpoints that report
//! there.
//!
//! A blocked call arms the object, makes sure that nothing has come meanwhile, and sleeps on its
//! [`WaitSet`]; what comes while it is armed wakes it, once.

use crate::core::Result;
use crate::device::wait::WaitSet;
use crate::types::*;
use std::sync::Arc;

/// See the module text.
pub(crate) struct WaitObject {
    kind: fi_wait_obj,
    /// What blocked calls wait on; `None` with FI_WAIT_NONE.
    pub set: Option<Arc<WaitSet>>,
    /// A call waits: what comes must signal.
    pub armed: bool,
    /// With FI_WAIT_MUTEX_COND: wakes the domain's progress thread. Only that thread takes the
    /// mutex, and not under the domain's lock: a caller may hold the mutex during a call.
    progress_wake: Option<Arc<WaitSet>>,
    /// Something has come since the thread last signalled the condition.
    news: bool,
    /// Endpoints that report here.
    pub eps: Vec<u32>,
    /// The endpoint that a read polls first.
    turn: usize,
}

impl WaitObject {
    /// An object of this kind that no endpoint reports to. Fails when descriptors are used up.
    pub(crate) fn new(kind: fi_wait_obj) -> Result<WaitObject> {
        let set = match kind {
            FI_WAIT_NONE => None,
            _ => Some(Arc::new(WaitSet::new()?)),
        };
        Ok(WaitObject {
            kind,
            set,
            armed: false,
            progress_wake: None,
            news: false,
            eps: Vec::new(),
            turn: 0,
        })
    }

    /// The place in `eps` from which a read polls them: each is first in turn.
    #[inline(always)]
    pub(crate) fn next_turn(&mut self) -> usize {
        self.turn = if self.turn + 1 < self.eps.len() {
            self.turn + 1
        } else {
            0
        };
        self.turn
    }

    /// The endpoint `i` places behind that at `turn`; `None` past the last.
    #[inline(always)]
    pub(crate) fn in_turn(&self, turn: usize, i: usize) -> Option<u32> {
        let len = self.eps.len();
        let at = if turn + i < len {
            turn + i
        } else {
            turn + i - len
        };
        self.eps.get(at).copied().filter(|_| i < len)
    }

    /// With FI_WAIT_MUTEX_COND, has `wake` wake the domain's progress thread, which `start` starts.
    pub(crate) fn use_thread(
        &mut self,
        wake: &Arc<WaitSet>,
        start: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        if self.kind == FI_WAIT_MUTEX_COND {
            self.progress_wake = Some(Arc::clone(wake));
            start()?;
        }
        Ok(())
    }

    /// Has the next thing that comes signal. `FI_EAGAIN` when something is `found` already,
    /// `FI_ENOSYS` for FI_WAIT_NONE.
    pub(crate) fn arm(&mut self, found: bool) -> Result<Arc<WaitSet>> {
        let set = self.set.clone().ok_or(FI_ENOSYS)?;
        if found {
            return Err(FI_EAGAIN);
        }
        set.clear();
        self.armed = true;
        Ok(set)
    }

    /// Something has come.
    #[inline(always)]
    pub(crate) fn wake(&mut self) {
        if self.armed || self.progress_wake.is_some() {
            self.wake_waiters();
        }
    }

    #[cold]
    fn wake_waiters(&mut self) {
        if let Some(p) = &self.progress_wake {
            self.news = true;
            p.signal();
        }
        if self.armed {
            self.armed = false;
            if let Some(w) = &self.set {
                w.signal();
            }
        }
    }

    /// Wakes blocked calls: another thread has taken the event that they wait for.
    pub(crate) fn signal_if_armed(&mut self) {
        if self.armed {
            self.wake_waiters();
        }
    }

    /// For the progress thread: what it is to signal, if something has come since it asked last.
    pub(crate) fn take_news(&mut self) -> Option<Arc<WaitSet>> {
        match core::mem::take(&mut self.news) {
            true => self.set.clone(),
            false => None,
        }
    }

    /// Lets an endpoint report here from now on; `fd` joins the wait set.
    pub(crate) fn attach(&mut self, ep: u32, fd: i32) {
        if !self.eps.contains(&ep) {
            self.eps.push(ep);
            if let Some(w) = &self.set {
                w.add(fd);
            }
            // A caller that sleeps has not armed this endpoint.
            self.signal_if_armed();
        }
    }

    /// An endpoint is closed; `fd` leaves the wait set if the endpoint had been attached.
    pub(crate) fn detach(&mut self, ep: u32, fd: i32) {
        let Some(at) = self.eps.iter().position(|e| *e == ep) else {
            return;
        };
        self.eps.remove(at);
        if let Some(w) = &self.set {
            w.remove(fd);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_endpoint_is_first_in_turn() {
        let mut w = WaitObject::new(FI_WAIT_NONE).unwrap();
        assert_eq!((w.next_turn(), w.in_turn(0, 0)), (0, None));
        w.eps = vec![7, 8, 9];
        let orders: Vec<Vec<u32>> = (0..3)
            .map(|_| {
                let turn = w.next_turn();
                (0..).map_while(|i| w.in_turn(turn, i)).collect()
            })
            .collect();
        assert_eq!(orders, [[8, 9, 7], [9, 7, 8], [7, 8, 9]]);
        // Fewer endpoints report here than when the turn began.
        let turn = w.next_turn();
        w.eps.truncate(1);
        assert_eq!(
            (turn, w.in_turn(turn, 0), w.in_turn(turn, 1)),
            (1, Some(7), None)
        );
    }
}
