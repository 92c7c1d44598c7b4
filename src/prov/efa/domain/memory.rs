//! Memory regions of a domain (fi_mr(3)).

use super::EfaDomain;
use crate::core::Result;
use crate::device::{Device, DmaBuf, MrObserver, QueuePair};
use crate::hmem::{MemKind, UserMem};
use crate::prov::contract::{MemoryRegions, Mr};
use crate::prov::efa::ops::OpKind;
use crate::prov::reports::completion::bind_region;
use crate::prov::reports::endpoint::check_region_kinds;
use crate::shm::MrTable;
use crate::types::*;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Waits, holding no lock, until no process on this host uses a region that is withdrawn. A peer
/// may wait for us as well: `poll` is called meanwhile, which ends what this process has under way.
fn wait_unused(table: &MrTable, key: u64, poll: impl Fn()) -> Result<()> {
    let most = crate::core::params::efa().peer_timeout_ms();
    let began = Instant::now();
    let mut looks = 0;
    loop {
        let used = table.in_use(key);
        let waited = began.elapsed();
        let copied = waited < DEVICE_COPY && table.used_by_devices(key);
        if !used && !copied {
            return Ok(());
        }
        if used && waited > Duration::from_millis(most) {
            crate::warn_log!(
                FI_LOG_MR,
                "fi_close: a process on this host has been using this memory region for {most} ms \
                 (FI_EFA_SOFT_TIMEOUT_MS): it stays open"
            );
            return Err(FI_EBUSY);
        }
        // The thread that reports a peer's exit may not be scheduled now: do its work here.
        crate::shm::poll_events();
        poll();
        looks += 1;
        match looks {
            0..=SPINS => std::thread::yield_now(),
            _ => std::thread::sleep(Duration::from_micros(100)),
        }
    }
}

/// Time after which a copy by a device is taken to be over: parts are at most 256 MiB. A peer that
/// does not poll does not notice the end.
const DEVICE_COPY: Duration = Duration::from_secs(1);
/// Polls of a region's users before the caller sleeps between polls.
const SPINS: u32 = 1000;

impl EfaDomain {
    /// Asks devices for copies that are over; the endpoints' polls report them.
    fn poll_device_copies(&self) {
        let mut s = self.lock_control();
        for (_, ep) in s.eps.iter_mut() {
            let Some(live) = &mut ep.live else { continue };
            if let Some(h) = &mut live.shm_ep {
                live.rma.poll_device(&mut h.tx);
            }
        }
    }
}

impl MemoryRegions for EfaDomain {
    fn reg_mr(&self, mem: UserMem, from: Option<DmaBuf>, access: u64, wanted: u64) -> Result<Mr> {
        crate::core::memory::check()?;
        if mem.addr() == 0 && !mem.is_empty() {
            crate::warn_log!(
                FI_LOG_MR,
                "fi_mr_reg: buf: NULL with a length of {} bytes: wanted an address",
                mem.len()
            );
            return Err(FI_EINVAL);
        }
        // Without the domain's lock: to pin much memory takes the driver seconds.
        let dev = Arc::clone(&self.lock_control().dev);
        let key = match from {
            None => dev.reg_mr(mem, access, Some(wanted))?,
            Some(from) => dev.reg_dmabuf(mem, from, access, Some(wanted))?,
        };
        if self.direct() && dev.attr().is_hardware() && dev.lkey(key).is_none() {
            // efa-direct copies nothing. A log line gives the reason why the adapter cannot access
            // the memory.
            dev.dereg_mr(key)?;
            return Err(FI_EOPNOTSUPP);
        }
        let uncopied = |kind| {
            // A receive may bring less than a packet even where the adapter reaches the memory.
            let (within, out) = crate::hmem::copies(kind);
            !within || !out && dev.lkey(key).is_none()
        };
        let device = mem.pieces().map(|p| p.kind()).find(|k| *k != MemKind::Host);
        let in_place = self.direct() && dev.attr().is_hardware();
        if let Some(kind) = device.filter(|k| !in_place && uncopied(*k)) {
            dev.dereg_mr(key)?;
            crate::warn_log!(
                FI_LOG_MR,
                "fi_mr_regattr: memory of {kind:?} is not copied by its library: wanted efa-direct \
                 over an adapter that reaches it, or for Neuron fabric efa with peer-to-peer"
            );
            return Err(FI_EOPNOTSUPP);
        }
        if device.is_some() {
            let mapping = crate::hmem::registered(&mem, !in_place);
            self.lock_control().mapped.extend(mapping.map(|m| (key, m)));
        }
        self.mrs.fetch_add(1, Ordering::Relaxed);
        Ok(Mr { key })
    }

    fn close_mr(&self, mr: &Mr) -> Result<()> {
        let table = self.lock_control().table.clone();
        if let Some(t) = table {
            t.remove(mr.key);
            wait_unused(&t, mr.key, || self.poll_device_copies())?;
        }
        let mut s = self.lock_control();
        let s = &mut *s;
        s.dev.dereg_mr(mr.key)?;
        // Ends peers' accesses that are under way in software, and RDMA reads into the region.
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
        s.mapped.remove(&mr.key);
        s.mr_cntrs.retain(|(key, _, _)| *key != mr.key);
        self.mrs.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }

    fn bind_mr(&self, mr: &Mr, cntr: u32, kinds: u64) -> Result<()> {
        check_region_kinds(kinds)?;
        let mut s = self.lock_control();
        if s.cntrs.get(cntr).ok_or(FI_EBADF)?.external.is_some() {
            crate::warn_log!(
                FI_LOG_MR,
                "fi_mr_bind: an adapter counts for endpoints: wanted a counter of fi_cntr_open"
            );
            return Err(FI_EOPNOTSUPP);
        }
        if !s.dev.attr().caps.remote_events {
            crate::warn_log!(
                FI_LOG_MR,
                "fi_mr_bind: an EFA adapter does not tell what peers access: wanted no counter \
                 of a region"
            );
            return Err(FI_ENOSYS);
        }
        bind_region(&mut s.mr_cntrs, mr.key, cntr, kinds);
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
}
