//! Streams and events: a thread carries copies out, in order, after the delay that was asked for.

use crate::config;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Instant;

/// One copy between places that this library sees.
struct CopyRequest {
    from: usize,
    to: usize,
    len: usize,
    due: Instant,
    done: Arc<Progress>,
}

/// How far a stream has come: copies posted, and carried out.
#[derive(Default)]
pub struct Progress {
    counts: Mutex<(u64, u64)>,
    moved: Condvar,
}

impl Progress {
    fn posted(&self) -> u64 {
        let mut c = self.counts.lock().unwrap_or_else(|e| e.into_inner());
        c.0 += 1;
        c.0
    }

    fn carried(&self) {
        self.counts.lock().unwrap_or_else(|e| e.into_inner()).1 += 1;
        self.moved.notify_all();
    }

    /// What has been posted so far.
    pub fn mark(&self) -> u64 {
        self.counts.lock().unwrap_or_else(|e| e.into_inner()).0
    }

    /// Whether everything up to a mark is done.
    pub fn reached(&self, mark: u64) -> bool {
        self.counts.lock().unwrap_or_else(|e| e.into_inner()).1 >= mark
    }

    /// Waits until everything up to a mark is done.
    pub fn wait(&self, mark: u64) {
        let mut c = self.counts.lock().unwrap_or_else(|e| e.into_inner());
        while c.1 < mark {
            c = self.moved.wait(c).unwrap_or_else(|e| e.into_inner());
        }
    }
}

#[derive(Default)]
struct Queue {
    copies: Mutex<VecDeque<CopyRequest>>,
    posted: Condvar,
}

fn queue() -> &'static Queue {
    static QUEUE: OnceLock<Queue> = OnceLock::new();
    let q = QUEUE.get_or_init(Queue::default);
    static STARTED: OnceLock<()> = OnceLock::new();
    STARTED.get_or_init(|| {
        std::thread::spawn(|| carry_out(queue()));
    });
    q
}

fn carry_out(q: &Queue) {
    loop {
        let mut all = q.copies.lock().unwrap_or_else(|e| e.into_inner());
        let next = loop {
            match all.pop_front() {
                Some(c) => break c,
                None => all = q.posted.wait(all).unwrap_or_else(|e| e.into_inner()),
            }
        };
        drop(all);
        let rest = next.due.saturating_duration_since(Instant::now());
        if !rest.is_zero() {
            std::thread::sleep(rest);
        }
        // SAFETY: the caller of the copy vouches for both places until the copy is done.
        unsafe { core::ptr::copy(next.from as *const u8, next.to as *mut u8, next.len) };
        next.done.carried();
    }
}

/// Posts a copy on a stream.
pub fn copy(stream: &Arc<Progress>, to: *mut u8, from: *const u8, len: usize) {
    stream.posted();
    let c = CopyRequest {
        from: from as usize,
        to: to as usize,
        len,
        due: Instant::now() + config::get().delay,
        done: Arc::clone(stream),
    };
    let q = queue();
    q.copies
        .lock()
        .unwrap_or_else(|e| e.into_inner())
        .push_back(c);
    q.posted.notify_one();
}
