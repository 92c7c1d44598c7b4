//! Memory regions of a domain (fi_mr(3)), and what an adapter tells of them, of peers and of queues
//! to who drives it without us (fi_efa(7)).

use super::{Domain, Mr};
use crate::core::Result;
use crate::device::{Device, DmaBuf, MrObserver, QueueMemory, QueuePair};
use crate::hmem::UserMem;
use crate::prov::efa::rdm::OpKind;
use crate::shm::MrTable;
use crate::types::*;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Waits, holding no lock, until no process on this host uses a region that is withdrawn.
fn wait_unused(table: &MrTable, key: u64) -> Result<()> {
    if !table.in_use(key) {
        return Ok(());
    }
    let most = crate::core::params::efa_size("soft_timeout_ms", 5000) as u64;
    let until = Instant::now() + Duration::from_millis(most);
    let mut looks = 0;
    loop {
        // The end of a process is heard of by a thread, which may not have a processor now.
        crate::shm::attend();
        if !table.in_use(key) {
            return Ok(());
        }
        if Instant::now() > until {
            crate::warn_log!(
                FI_LOG_MR,
                "fi_close: a process on this host has been using this memory region for {most} ms \
                 (FI_EFA_SOFT_TIMEOUT_MS): it stays open"
            );
            return Err(FI_EBUSY);
        }
        looks += 1;
        match looks {
            0..=SPINS => std::thread::yield_now(),
            _ => std::thread::sleep(Duration::from_micros(100)),
        }
    }
}

/// Looks at a region's users before the caller sleeps in between.
const SPINS: u32 = 1000;

impl Domain {
    /// Registers memory (fi_mr(3)). `FI_ENOMR` when the adapter's table is full.
    /// `FI_ENOKEY` when `wanted` counts (`FI_EFA_SOFT_MR_MODE`) and is taken.
    pub fn reg_mr(
        &self,
        mem: UserMem,
        from: Option<DmaBuf>,
        access: u64,
        wanted: u64,
    ) -> Result<Mr> {
        crate::core::memory::check()?;
        let dev = &self.lock().dev;
        let key = match from {
            None => dev.reg_mr(mem, access, Some(wanted))?,
            Some(from) => dev.reg_dmabuf(mem, from, access, Some(wanted))?,
        };
        self.mrs.fetch_add(1, Ordering::Relaxed);
        Ok(Mr { key })
    }

    /// Withdraws a registration: nobody uses the memory any more when it returns. `FI_EBUSY` when a
    /// process on this host does not let go of it; then the region stays open, for another try.
    pub fn close_mr(&self, mr: &Mr) -> Result<()> {
        let table = self.lock().table.clone();
        if let Some(t) = table {
            t.remove(mr.key);
            wait_unused(&t, mr.key)?;
        }
        let mut s = self.lock();
        let s = &mut *s;
        s.dev.dereg_mr(mr.key)?;
        // What peers were doing to it in software stops here, adapter reads into it included.
        let mut targets = Vec::new();
        for (ctx, op) in s.ops.iter_mut() {
            if op.kind != OpKind::User && op.keys.contains(&mr.key) {
                op.mem = UserMem::EMPTY;
                targets.push(ctx);
            }
        }
        if !targets.is_empty() {
            for (_, ep) in s.eps.iter_mut() {
                ep.close_targets(&targets);
            }
        }
        s.mr_cntrs.retain(|(key, _, _)| *key != mr.key);
        self.mrs.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }

    /// fi_mr_bind(3) with a counter: `kinds` are FI_REMOTE_READ and FI_REMOTE_WRITE.
    pub fn bind_mr(&self, mr: &Mr, cntr: u32, kinds: u64) -> Result<()> {
        if kinds == 0 || kinds & !(FI_REMOTE_READ | FI_REMOTE_WRITE) != 0 {
            return Err(FI_EBADFLAGS);
        }
        let mut s = self.lock();
        if s.cntrs.get(cntr).ok_or(FI_EBADF)?.external.is_some() {
            crate::warn_log!(
                FI_LOG_MR,
                "fi_mr_bind: an adapter counts for endpoints: wanted a counter of fi_cntr_open"
            );
            return Err(FI_EOPNOTSUPP);
        }
        s.mr_cntrs.push((mr.key, cntr, kinds));
        for (_, ep) in s.eps.iter_mut() {
            if let Some(qp) = ep.qp_mut() {
                qp.report_remote();
            }
        }
        if let Some(t) = &s.table {
            t.want_events();
        }
        Ok(())
    }

    /// See `fi_efa_ops_domain` (fi_efa(7)).
    pub fn query_mr(&self, mr: &Mr) -> Result<[u16; 4]> {
        self.lock().dev.query_mr(mr.key)
    }

    /// A region's local key, at a real adapter.
    pub fn lkey(&self, mr: &Mr) -> Option<u32> {
        self.lock().dev.lkey(mr.key)
    }

    /// A peer as the adapter's requests name it: address handle, queue pair number, key.
    /// `FI_EINVAL` for an unknown one, `FI_EOPNOTSUPP` without a real adapter.
    pub fn way_to(&self, ep: u32, addr: fi_addr_t) -> Result<(u16, u16, u32)> {
        let mut s = self.lock();
        let s = &mut *s;
        let e = s.eps.get_mut(ep).ok_or(FI_EBADF)?;
        let av = e.av().and_then(|a| s.avs.get(a)).ok_or(FI_EINVAL)?;
        let to = av.lookup(addr)?;
        let handle = e.qp_mut().ok_or(FI_EINVAL)?.handle_of(&to)?;
        Ok((handle, to.qpn, to.qkey))
    }

    /// An enabled endpoint's queues in memory. `FI_EINVAL` before, `FI_EOPNOTSUPP` where they are
    /// not to be had.
    pub fn queue_memory(&self, ep: u32) -> Result<[QueueMemory; 3]> {
        let mut s = self.lock();
        let e = s.eps.get_mut(ep).ok_or(FI_EBADF)?;
        e.qp_mut().ok_or(FI_EINVAL)?.queues()
    }

    /// The memory of a completion queue: the application's, or that of the one endpoint which
    /// reports there.
    pub fn cq_memory(&self, cq: u32) -> Result<QueueMemory> {
        let eps = {
            let s = self.lock();
            let q = s.cqs.get(cq).ok_or(FI_EBADF)?;
            if let Some(x) = &q.external {
                return x.memory();
            }
            q.eps.clone()
        };
        match eps.as_slice() {
            [one] => self.queue_memory(*one).map(|[_, _, c]| c),
            _ => Err(FI_EOPNOTSUPP),
        }
    }
}
