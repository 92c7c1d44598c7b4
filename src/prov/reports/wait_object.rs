//! The wait object of a completion queue or counter (FI_WAIT_*), and the endpoints that report
//! there.
//!
//! A blocked call arms the object, makes sure that nothing has come meanwhile, and sleeps on its
//! [`WaitSet`]; what comes while it is armed wakes it, once.

use super::spin::SpinTrial;
use crate::core::Result;
use crate::device::host::now;
use crate::device::wait::WaitSet;
use crate::types::*;
use std::sync::Arc;

/// Idle endpoints whose adapters a read polls while reads follow one another within `SOON_NS`.
const IN_TURN: usize = 2;
const SOON_NS: u64 = 5_000;

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
    /// The endpoint that a read polls first, and when the last read ended.
    turn: usize,
    last_read: u64,
    /// Whether blocked calls poll before they sleep.
    pub spin: SpinTrial,
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
            last_read: 0,
            spin: SpinTrial::default(),
        })
    }

    /// The place in `eps` from which a read polls them, and how many from there on are in turn: a
    /// few while reads follow one another, all where the last read was longer ago.
    #[inline(always)]
    pub(crate) fn next_turn(&mut self) -> (usize, usize) {
        let len = self.eps.len();
        if len <= IN_TURN {
            return (0, len);
        }
        let next = self.turn + IN_TURN;
        self.turn = if next < len { next } else { next - len };
        match now().saturating_sub(self.last_read) < SOON_NS {
            true => (self.turn, IN_TURN),
            false => (self.turn, len),
        }
    }

    /// Ends a read that [`WaitObject::next_turn`] began.
    #[inline(always)]
    pub(crate) fn end_turn(&mut self) {
        if self.eps.len() > IN_TURN {
            self.last_read = now();
        }
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
    fn every_endpoint_gets_its_turn() {
        let mut w = WaitObject::new(FI_WAIT_NONE).unwrap();
        assert_eq!((w.next_turn(), w.in_turn(0, 0)), ((0, 0), None));
        w.eps = vec![7, 8, 9];
        // The first read, and those that come late, poll all.
        assert_eq!(w.next_turn(), (2, 3));
        let orders: Vec<Vec<u32>> = (0..3)
            .map(|_| {
                w.last_read = now();
                let (turn, some) = w.next_turn();
                assert!(some == IN_TURN || now() - w.last_read > SOON_NS);
                (0..).map_while(|i| w.in_turn(turn, i)).collect()
            })
            .collect();
        assert_eq!(orders, [[8, 9, 7], [7, 8, 9], [9, 7, 8]]);
        // Fewer endpoints report here than when the turn began.
        let (turn, _) = w.next_turn();
        w.eps.truncate(1);
        assert_eq!(
            (turn, w.in_turn(turn, 0), w.in_turn(turn, 1)),
            (1, Some(7), None)
        );
    }
}
