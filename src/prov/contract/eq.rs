//! Event queues (fi_eq(3)): control events, and whatever applications write themselves.

use crate::core::sync::{Mutex, MutexGuard, Unpoisoned};
use crate::core::{Errno, Result};
use crate::device::wait::{wait_interruptibly, WaitSet};
use crate::types::*;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// An event as it was written: its number and its bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EqEvent {
    /// FI_AV_COMPLETE, FI_JOIN_COMPLETE, ...
    pub event: u32,
    /// The entry, as the caller gets it.
    pub bytes: Vec<u8>,
    /// Positive `FI_E*` of an error, which fi_eq_readerr(3) reads; 0 otherwise.
    pub err: Errno,
    /// The provider's own number of an error.
    pub prov_errno: i32,
    /// More about an error: the data of fi_reject(3).
    pub err_data: Vec<u8>,
}

/// Unread events beyond which errors without an operation are dropped: peers can cause such errors.
const UNREAD_MAX: usize = 256;

/// One event queue. Thread safe.
pub struct Eq {
    /// What a caller may block on.
    pub wait_obj: fi_wait_obj,
    /// The application may write events (FI_WRITE).
    pub writable: bool,
    events: Mutex<VecDeque<EqEvent>>,
    wait: Option<WaitSet>,
}

impl Eq {
    /// An empty queue. Its size is a hint: it grows.
    pub fn new(flags: u64, wait_obj: fi_wait_obj) -> Result<Eq> {
        let wait = match wait_obj {
            FI_WAIT_NONE => None,
            _ => Some(WaitSet::new()?),
        };
        Ok(Eq {
            wait_obj,
            writable: flags & FI_WRITE != 0,
            events: Mutex::default(),
            wait,
        })
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<EqEvent>> {
        self.events.lock().unpoisoned()
    }

    /// Appends an event.
    pub fn push(&self, e: EqEvent) {
        let mut q = self.lock();
        q.push_back(e);
        // Under the lock: a reader that takes the event clears the signal.
        if let Some(w) = &self.wait {
            w.signal();
        }
    }

    /// Takes out the events that name `fid`, because the application closes it.
    pub fn forget(&self, fid: usize) -> Vec<EqEvent> {
        let mut q = self.lock();
        let of_fid = |e: &EqEvent| e.bytes.starts_with(&fid.to_ne_bytes());
        let (gone, left): (Vec<_>, Vec<_>) = q.drain(..).partition(of_fid);
        *q = left.into();
        if !gone.is_empty() {
            self.clear_if_empty(&q);
        }
        gone
    }

    /// Reports an error that belongs to no operation: FI_NOTIFY with a `fi_eq_entry` of zeros.
    pub fn report_error(&self, err: Errno, prov_errno: i32) {
        if self.lock().len() < UNREAD_MAX {
            self.push(EqEvent {
                event: FI_NOTIFY,
                bytes: vec![0; core::mem::size_of::<fi_eq_entry>()],
                err,
                prov_errno,
                err_data: Vec::new(),
            });
        }
    }

    /// Appends a `fi_eq_cm_entry`: the application's `fid` and `info`, by address, and the peer's
    /// data.
    pub fn push_cm(&self, event: u32, fid: usize, info: usize, data: &[u8]) {
        let head = [fid, info];
        let mut bytes: Vec<u8> = head.iter().flat_map(|w| w.to_ne_bytes()).collect();
        bytes.extend_from_slice(data);
        self.push(EqEvent {
            event,
            bytes,
            ..EqEvent::default()
        });
    }

    /// Reads the next event, leaving it there with `peek`. `FI_EAGAIN` when there is none,
    /// `FI_EAVAIL` when it is an error.
    pub fn read(&self, peek: bool) -> Result<EqEvent> {
        let mut q = self.lock();
        match q.front() {
            None => Err(FI_EAGAIN),
            Some(e) if e.err != 0 => Err(FI_EAVAIL),
            Some(e) if peek => Ok(e.clone()),
            Some(_) => self.pop(&mut q),
        }
    }

    /// Reads the next event if it is an error; `FI_EAGAIN` otherwise.
    pub fn read_error(&self) -> Result<EqEvent> {
        let mut q = self.lock();
        match q.front() {
            Some(e) if e.err != 0 => self.pop(&mut q),
            _ => Err(FI_EAGAIN),
        }
    }

    fn pop(&self, q: &mut VecDeque<EqEvent>) -> Result<EqEvent> {
        let e = q.pop_front().ok_or(FI_EAGAIN)?;
        self.clear_if_empty(q);
        Ok(e)
    }

    fn clear_if_empty(&self, q: &VecDeque<EqEvent>) {
        if let Some(w) = self.wait.as_ref().filter(|_| q.is_empty()) {
            w.clear();
        }
    }

    /// As [`Eq::read`], waiting up to `timeout_ms` (negative: without limit).
    /// `FI_ENOSYS` without a wait object, `FI_EINTR` when a signal handler has run.
    pub fn sread(&self, timeout_ms: i32, peek: bool) -> Result<EqEvent> {
        let w = self.wait.as_ref().ok_or(FI_ENOSYS)?;
        let until = deadline(timeout_ms);
        loop {
            match self.read(peek) {
                Err(FI_EAGAIN) => {}
                other => return other,
            }
            let left = remaining(until);
            if left == 0 {
                return Err(FI_EAGAIN);
            }
            wait_interruptibly(w.fd(), left)?;
        }
    }

    /// Descriptor for FI_GETWAIT; `FI_ENOSYS` without one.
    pub fn fd(&self) -> Result<i32> {
        self.wait.as_ref().map(WaitSet::fd).ok_or(FI_ENOSYS)
    }

    /// Whether the queue has no event.
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }
}

/// When a time-out of so many milliseconds ends; `None`: never.
pub fn deadline(timeout_ms: i32) -> Option<Instant> {
    u64::try_from(timeout_ms)
        .ok()
        .map(|ms| Instant::now() + Duration::from_millis(ms))
}

/// Milliseconds left, rounded up; -1 without limit.
pub fn remaining(until: Option<Instant>) -> i32 {
    match until {
        None => -1,
        Some(t) => {
            let left = t.saturating_duration_since(Instant::now());
            i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX)
        }
    }
}

/// The shorter of two times, where negative ones are without end.
pub fn shorter(a: i32, b: i32) -> i32 {
    match (a < 0, b < 0) {
        (true, _) => b,
        (_, true) => a,
        _ => a.min(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_out_in_order_and_peeking_leaves_them() {
        let q = Eq::new(FI_WRITE, FI_WAIT_FD).unwrap();
        assert_eq!(q.read(false), Err(FI_EAGAIN));
        for event in 0..3 {
            q.push(EqEvent {
                event,
                bytes: vec![event as u8; 8],
                ..EqEvent::default()
            });
        }
        assert_eq!(q.read(true).unwrap().event, 0);
        for event in 0..3 {
            assert_eq!(q.sread(1000, false).unwrap().event, event);
        }
        assert_eq!(q.sread(1, false), Err(FI_EAGAIN));
    }

    #[test]
    fn events_of_a_closed_object_are_taken_out() {
        let q = Eq::new(0, FI_WAIT_FD).unwrap();
        for fid in [7, 8, 7] {
            q.push_cm(FI_SHUTDOWN, fid, 0, b"data");
        }
        assert_eq!(q.forget(7).len(), 2);
        assert_eq!(q.forget(7).len(), 0);
        assert!(q
            .read(false)
            .unwrap()
            .bytes
            .starts_with(&8usize.to_ne_bytes()));
        assert_eq!(q.read(false), Err(FI_EAGAIN));
    }
}
