//! Counters: the adapter counts what queue pairs complete, in memory that the program names, by
//! address or as a dma-buf.

use crate::bytes::Fields;
use crate::device::*;
use crate::objects::Answer;
use crate::shared::{fetch, store, Mapping};
use libc::{EBUSY, EFAULT, EINVAL, ENOENT, EOPNOTSUPP};

/// Kinds of operations, as bits of what a counter counts.
pub const SEND: u32 = 1;
pub const RECV: u32 = 1 << 1;
pub const READ: u32 = 1 << 2;
pub const REMOTE_READ: u32 = 1 << 3;
pub const WRITE: u32 = 1 << 4;
pub const REMOTE_WRITE: u32 = 1 << 5;
pub const ALL: u32 = 0x3f;

/// Counters of an adapter, at most, and their largest value.
pub const MAX: u32 = 256;
pub const MAX_VALUE: u64 = (1 << 32) - 1;

/// Where the value of a counter is stored.
pub enum CounterMemory {
    /// In a program, at an address.
    Program(u32, u64),
    DmaBuf(Mapping),
}

impl CounterMemory {
    /// From a `struct ib_uverbs_buffer_desc` of a program.
    pub fn of(pid: u32, desc: &[u8]) -> Answer<CounterMemory> {
        const DMABUF: u32 = 0;
        const VA: u32 = 1;
        let d = Fields(desc);
        let (kind, at, len) = (d.u32(0), d.u64(16), d.u64(24));
        if desc.len() < 32 || len < 8 || d.u32(8) != 0 || !at.is_multiple_of(8) {
            return Err(EINVAL);
        }
        match kind {
            DMABUF => Mapping::of_program(pid, d.u32(4) as i32, at, len).map(CounterMemory::DmaBuf),
            // Hardware pins the page: the page must be mapped now.
            VA => fetch(pid, at, &mut [0; 8])
                .map(|()| CounterMemory::Program(pid, at))
                .map_err(|()| EFAULT),
            _ => Err(EINVAL),
        }
    }

    fn write(&self, v: u64) {
        match self {
            // The store fails when the program has unmapped the memory: no error to report.
            CounterMemory::Program(pid, at) => drop(store(*pid, *at, &v.to_le_bytes())),
            CounterMemory::DmaBuf(m) => m.publish(0, &v.to_le_bytes()),
        }
    }
}

/// A counter: successes and errors.
pub struct Counter {
    pub values: [u64; 2],
    pub places: [CounterMemory; 2],
    pub users: u32,
}

impl Counter {
    fn change(&mut self, entry: usize, change: impl FnOnce(u64) -> u64) {
        let v = change(self.values[entry]) & MAX_VALUE;
        self.values[entry] = v;
        self.places[entry].write(v);
    }
}

impl Device {
    /// Creates a counter at zero; returns its handle.
    pub fn create_counter(&mut self, id: ContextId, places: [CounterMemory; 2]) -> Answer<u32> {
        if self.cfg.no_counters {
            return Err(EOPNOTSUPP);
        }
        let c = self.context(id)?;
        if c.counters.len() >= MAX as usize {
            return Err(libc::ENOMEM);
        }
        let handle = c.handle();
        let mut n = Counter {
            values: [0; 2],
            places,
            users: 0,
        };
        n.change(0, |_| 0);
        n.change(1, |_| 0);
        c.counters.insert(handle, n);
        Ok(handle)
    }

    pub fn destroy_counter(&mut self, id: ContextId, handle: u32) -> Answer<()> {
        let c = self.context(id)?;
        if c.counters.get(&handle).ok_or(ENOENT)?.users > 0 {
            return Err(EBUSY);
        }
        c.counters.remove(&handle);
        Ok(())
    }

    /// Sets (`op` 0) or raises an entry: successes (0) or errors.
    pub fn modify_counter(
        &mut self,
        id: ContextId,
        handle: u32,
        (entry, op, value): (u64, u64, u64),
    ) -> Answer<()> {
        let n = self.context(id)?.counters.get_mut(&handle);
        let n = n.ok_or(ENOENT)?;
        if entry > 1 || op > 1 || value > MAX_VALUE {
            return Err(EINVAL);
        }
        n.change(entry as usize, |v| match op {
            0 => value,
            _ => v + value,
        });
        Ok(())
    }

    pub fn read_counter(&mut self, id: ContextId, handle: u32, entry: u64) -> Answer<u64> {
        let n = self.context(id)?.counters.get(&handle).ok_or(ENOENT)?;
        n.values.get(entry as usize).copied().ok_or(EINVAL)
    }

    /// Attaches a counter to the operations `what` of a queue pair.
    pub fn attach_counter(&mut self, id: ContextId, qp: u32, handle: u32, what: u32) -> Answer<()> {
        if what == 0 || what & !ALL != 0 {
            return Err(EINVAL);
        }
        let c = self.context(id)?;
        let qp = *c.qps.get(&qp).ok_or(ENOENT)?;
        let n = c.counters.get_mut(&handle).ok_or(ENOENT)?;
        n.users += 1;
        let q = self.qps.get_mut(&qp).ok_or(ENOENT)?;
        q.counters.push((handle, what));
        Ok(())
    }

    /// Counts an ended operation of kind `what`: a success (`well`) or an error.
    pub fn count(&mut self, qp: QpId, what: u32, well: bool) {
        let Some(q) = self.qps.get(&qp).filter(|q| !q.counters.is_empty()) else {
            return;
        };
        let Some(c) = self.contexts.get_mut(&q.context) else {
            return;
        };
        for (handle, of) in &q.counters {
            if of & what != 0 {
                if let Some(n) = c.counters.get_mut(handle) {
                    n.change(usize::from(!well), |v| v + 1);
                }
            }
        }
    }
}
