//! Objects that commands create, query and destroy: the adapter's attributes, protection domains,
//! memory regions, address handles, completion queues and queue pairs, with the checks of the
//! kernel's EFA driver.

use crate::bytes::{FieldWriter, Fields};
use crate::config::Config;
use crate::device::*;
use crate::shared::{fetch, Mapping, Shared, PAGE};
use libc::{EBUSY, EFAULT, EINVAL, ENOENT, ENOMEM, EOPNOTSUPP};

/// Result of a command: a value, or the errno.
pub type Answer<T> = Result<T, i32>;

/// Offsets of the doorbells in their pages, and of the first entry in device memory.
const SQ_BELL: usize = 0x40;
const RQ_BELL: usize = 0x80;
pub const CQ_BELL: usize = 0x20;
const LLQ_AT: usize = 64;

/// Completion vectors of an adapter; programs that wait use more than one.
pub const VECTORS: u32 = 4;

/// Entries of a completion queue, at most.
const MAX_CQE: u32 = 65536;

/// Arguments of queue pair creation, by ioctl or by write command.
pub struct QpArgs {
    pub pd: u32,
    pub send_cq: u32,
    pub recv_cq: u32,
    pub kind: u8,
    pub cap: [u8; 20],
    pub driver: Vec<u8>,
}

/// Kinds of queue pairs.
const UD: u8 = 4;
const DRIVER_QP: u8 = 0xff;

impl QpArgs {
    /// `EOPNOTSUPP` for another kind, `EINVAL` for what exceeds the adapter.
    fn check(&self, cfg: &Config) -> Answer<()> {
        if self.kind != UD && self.kind != DRIVER_QP {
            return Err(EOPNOTSUPP);
        }
        if self.driver.len() < 16 {
            return Err(EINVAL);
        }
        let (d, cap) = (Fields(&self.driver), Fields(&self.cap));
        let too_much = cap.u32(0) > cfg.send_queue
            || cap.u32(4) > cfg.recv_queue
            || cap.u32(8) > 2
            || cap.u32(12) > 2
            || cap.u32(16) > cfg.inline;
        let no_level = !cfg.service_levels.contains(&d.u8(18));
        let refused = self.unsolicited() && cfg.no_unsolicited;
        if too_much || no_level || d.u32(0) != 0 || refused {
            return Err(EINVAL);
        }
        Ok(())
    }

    /// Writes with immediate data need no receive.
    fn unsolicited(&self) -> bool {
        Fields(&self.driver).u16(16) & 1 != 0
    }
}

/// Arguments of completion queue creation.
pub struct CqArgs {
    pub entries: u32,
    pub user: u64,
    pub vector: u32,
    pub channel: Option<i32>,
    /// A dma-buf for it: descriptor, offset, length.
    pub external: Option<(i32, u64, u64)>,
    pub driver: Vec<u8>,
}

impl Device {
    pub fn context(&mut self, id: ContextId) -> Answer<&mut Context> {
        self.contexts.get_mut(&id).ok_or(EINVAL)
    }

    // ---- device, port, context -----------------------------------------------------------

    pub fn get_context(&mut self, id: ContextId, driver: &[u8]) -> Answer<Vec<u8>> {
        const TX_BATCH: u32 = 1;
        let knows = Fields(driver).u32(0);
        if self.cfg.max_batch != 0 && knows & TX_BATCH == 0 {
            return Err(EOPNOTSUPP);
        }
        let c = self.context(id)?;
        if c.ready {
            return Err(EINVAL);
        }
        c.ready = true;
        let cfg = &self.cfg;
        let mut e = FieldWriter::new(24);
        // Driver data of QUERY_DEVICE and CREATE_AH is understood.
        e.u32(4, 3).u16(8, cfg.sub_cqs as u16);
        e.u16(10, cfg.inline.min(32) as u16).u32(12, cfg.llq_size());
        e.u16(16, cfg.max_batch as u16);
        e.u16(
            20,
            if cfg.inline > 32 {
                cfg.inline as u16
            } else {
                0
            },
        );
        Ok(e.0)
    }

    pub fn device_attr(&mut self, id: ContextId) -> Answer<Vec<u8>> {
        let adapter = self.context(id)?.adapter;
        let c = &self.cfg;
        let gid = c.gid_of(adapter);
        let mut e = FieldWriter::new(176);
        e.put(8, &gid[8..]).u64(24, 1 << 40).u64(32, 0xffff_f000);
        e.u32(40, 0x1d0f).u32(44, c.device_id).u32(48, c.device_id);
        e.u32(52, MAX_QP).u32(56, c.send_queue.min(c.recv_queue));
        e.u32(64, 2).u32(68, 1).u32(72, 2048).u32(76, MAX_CQE);
        e.u32(80, c.max_mr)
            .u32(84, 1024)
            .u32(144, u32::from(UNKNOWN_AH));
        e.u16(168, 1).u8(171, 1);
        Ok(e.0)
    }

    pub fn port(&self) -> Vec<u8> {
        let mut e = FieldWriter::new(40);
        e.u32(4, self.cfg.mtu).u32(16, 1).u16(20, 1);
        // Active or down, 4096 bytes, 100 Gbit/s, link up or disabled.
        let (state, link) = if self.link_down() { (1, 3) } else { (4, 5) };
        e.u8(26, state).u8(27, 5).u8(28, 5).u8(29, 1).u8(30, 1);
        e.u8(34, 2).u8(35, 32).u8(36, link);
        e.0
    }

    pub fn gid_entry(&mut self, id: ContextId) -> Answer<Vec<u8>> {
        let adapter = self.context(id)?.adapter;
        let mut e = FieldWriter::new(32);
        e.put(0, &self.cfg.gid_of(adapter)).u32(20, 1);
        Ok(e.0)
    }

    // ---- protection domains, memory, address handles -------------------------------------

    pub fn dealloc_pd(&mut self, id: ContextId, handle: u32) -> Answer<()> {
        let c = self.context(id)?;
        match c.pds.get(&handle) {
            None => Err(ENOENT),
            Some(0) => {
                c.pds.remove(&handle);
                Ok(())
            }
            Some(_) => Err(EBUSY),
        }
    }

    pub fn count_pd_user(&mut self, id: ContextId, handle: u32, on: bool) -> Answer<()> {
        let n = self.context(id)?.pds.get_mut(&handle).ok_or(ENOENT)?;
        *n = if on { *n + 1 } else { n.saturating_sub(1) };
        Ok(())
    }

    pub fn reg_mr(&mut self, id: ContextId, pid: u32, f: &Fields) -> Answer<(u32, u32)> {
        let mr = Mr {
            context: id,
            pd: f.u32(32),
            pid,
            iova: f.u64(24),
            start: f.u64(8),
            len: f.u64(16),
            access: f.u32(36),
            mapped: None,
        };
        // Hardware pins the pages: the first and the last one must be mapped now.
        for at in [mr.start, mr.start + mr.len.saturating_sub(1)] {
            if mr.len > 0 {
                fetch(pid, at, &mut [0]).map_err(|()| EFAULT)?;
            }
        }
        self.enter_mr(mr)
    }

    /// A region of a dma-buf: descriptor `fd` of the program, from `offset` on. `mr` has the other
    /// attributes.
    pub fn reg_dmabuf(&mut self, mut mr: Mr, fd: i32, offset: u64) -> Answer<(u32, u32)> {
        let mapped = Mapping::of_program(mr.pid, fd, offset, mr.len)?;
        (mr.pid, mr.start) = (std::process::id(), mapped.start());
        mr.mapped = Some(mapped);
        self.enter_mr(mr)
    }

    fn enter_mr(&mut self, mut mr: Mr) -> Answer<(u32, u32)> {
        const OPTIONAL: u32 = 0x3ff << 20;
        mr.access &= !OPTIONAL;
        let cfg = &self.cfg;
        let mut may = LOCAL_WRITE;
        may |= if cfg.no_rdma_read { 0 } else { REMOTE_READ };
        may |= if cfg.no_rdma_write { 0 } else { REMOTE_WRITE };
        if (mr.start ^ mr.iova) & (PAGE as u64 - 1) != 0
            || mr.access & REMOTE_WRITE != 0 && mr.access & LOCAL_WRITE == 0
        {
            return Err(EINVAL);
        }
        if mr.access & !may != 0 {
            return Err(EOPNOTSUPP);
        }
        let (id, pd) = (mr.context, mr.pd);
        self.count_pd_user(id, pd, true)?;
        let adapter = self.context(id)?.adapter;
        let Some(key) = self.register(adapter, mr) else {
            self.count_pd_user(id, pd, false)?;
            return Err(ENOMEM);
        };
        let c = self.context(id)?;
        let handle = c.handle();
        c.mrs.insert(handle, key);
        Ok((handle, key))
    }

    pub fn dereg_mr(&mut self, id: ContextId, handle: u32) -> Answer<()> {
        let c = self.context(id)?;
        let key = c.mrs.remove(&handle).ok_or(ENOENT)?;
        let adapter = c.adapter;
        if let Some(mr) = self.mrs.remove(&(adapter, key)) {
            self.count_pd_user(id, mr.pd, false)?;
        }
        Ok(())
    }

    pub fn create_ah(&mut self, id: ContextId, pd: u32, gid: [u8; 16]) -> Answer<(u32, u16)> {
        if self.adapter_of(&gid).is_none() {
            return Err(EINVAL);
        }
        self.count_pd_user(id, pd, true)?;
        let c = self.context(id)?;
        let free = || (1..UNKNOWN_AH).find(|n| c.peers.values().all(|(m, _)| m != n));
        let number = match c.peers.get(&gid) {
            Some((n, _)) => *n,
            None => free().ok_or(ENOMEM)?,
        };
        c.peers.entry(gid).or_insert((number, 0)).1 += 1;
        let handle = c.handle();
        c.ahs.insert(handle, (pd, gid));
        Ok((handle, number))
    }

    pub fn destroy_ah(&mut self, id: ContextId, handle: u32) -> Answer<()> {
        let c = self.context(id)?;
        let (pd, gid) = c.ahs.remove(&handle).ok_or(ENOENT)?;
        if let Some(p) = c.peers.get_mut(&gid) {
            p.1 -= 1;
            if p.1 == 0 {
                c.peers.remove(&gid);
            }
        }
        self.count_pd_user(id, pd, false)
    }

    // ---- completion queues ---------------------------------------------------------------

    /// Creates a completion queue: its handle, entries of a sub-queue, driver data.
    pub fn create_cq(
        &mut self,
        id: ContextId,
        pid: u32,
        a: &CqArgs,
    ) -> Answer<(u32, u32, Vec<u8>)> {
        let d = Fields(&a.driver);
        let (entry, sub_cqs, flags) = (d.u32(4), u32::from(d.u16(8)), d.u8(10));
        let sgid = flags & 2 != 0;
        if a.entries > MAX_CQE || a.vector >= VECTORS || sub_cqs != self.cfg.sub_cqs {
            return Err(EINVAL);
        }
        if entry != 32 && (entry != 16 || sgid) || flags & !3 != 0 {
            return Err(EINVAL);
        }
        if sgid && self.cfg.no_sgid || flags & 1 != 0 && self.cfg.no_notify {
            return Err(EOPNOTSUPP);
        }
        let entries = a.entries.max(1).next_power_of_two();
        let bytes = (entry * entries * sub_cqs) as usize;
        let channel = match a.channel {
            Some(n) => {
                let inode = inode_of(&format!("/proc/{pid}/fd/{n}"))?;
                let known = &self.context(id)?.channels;
                Some(known.iter().find(|c| c.inode == inode).ok_or(libc::EBADF)?)
            }
            None => None,
        };
        let channel = channel.cloned();
        let bell = Shared::new(PAGE)?;
        let ring = match a.external {
            Some(_) if self.cfg.no_external => return Err(EOPNOTSUPP),
            Some((_, _, len)) if len < bytes as u64 => return Err(EINVAL),
            Some((fd, offset, len)) => {
                Entries::External(Mapping::of_program(pid, fd, offset, len)?)
            }
            None => Entries::Own(Shared::new(bytes)?),
        };
        let c = self.context(id)?;
        let handle = c.handle();
        let bell_key = c.offer(&bell, 0, PAGE);
        let mut e = FieldWriter::new(40);
        e.u32(0, 1);
        if let Entries::Own(ring) = &ring {
            e.u64(8, c.offer(ring, 0, bytes));
            e.u64(16, bytes.next_multiple_of(PAGE) as u64);
        }
        e.u16(24, handle as u16).u32(28, CQ_BELL as u32);
        e.u64(32, bell_key);
        let q = Cq {
            ring,
            bell: Some(bell),
            entry: entry as usize,
            depth: entries as usize,
            put: vec![0; sub_cqs as usize],
            sgid,
            user: a.user,
            channel,
            armed: false,
            served: None,
            events: 0,
            users: 0,
        };
        c.cqs.insert(handle, q);
        Ok((handle, entries, e.0))
    }

    /// Returns how many events of the queue the program has read: libibverbs waits until the
    /// program has acknowledged them.
    pub fn destroy_cq(&mut self, id: ContextId, handle: u32) -> Answer<u32> {
        let c = self.context(id)?;
        if c.cqs.get(&handle).ok_or(ENOENT)?.users > 0 {
            return Err(EBUSY);
        }
        let q = c.cqs.remove(&handle).ok_or(ENOENT)?;
        let Some(channel) = &q.channel else {
            return Ok(0);
        };
        // Unread events go with the queue; events of other queues stay.
        let mut others = Vec::new();
        let mut unread = 0;
        let mut b = [0; 8];
        while crate::sock::receive(&channel.theirs, &mut b).is_ok_and(|n| n == 8) {
            if u64::from_le_bytes(b) == q.user {
                unread += 1;
            } else {
                others.push(b);
            }
        }
        for b in others {
            crate::sock::send(&channel.ours, &b);
        }
        Ok(q.events - unread)
    }

    // ---- queue pairs ---------------------------------------------------------------------

    /// Creates a queue pair: its handle, number, driver data.
    pub fn create_qp(&mut self, id: ContextId, a: &QpArgs) -> Answer<(u32, u16, Vec<u8>)> {
        a.check(&self.cfg)?;
        let d = Fields(&a.driver);
        let (rq_bytes, sq_bytes) = (d.u32(4) as usize, d.u32(8) as usize);
        let cap = Fields(&a.cap);
        let (sends, recvs) = (cap.u32(0), cap.u32(4));
        let c = self.context(id)?;
        for cq in [a.send_cq, a.recv_cq] {
            c.cqs.get(&cq).ok_or(ENOENT)?;
        }
        self.count_pd_user(id, a.pd, true)?;
        let adapter = self.context(id)?.adapter;
        let number = self.qp_number(adapter).ok_or(ENOMEM)?;
        let bells = Shared::new(PAGE)?;
        let subs = self.cfg.sub_cqs as usize;
        // With several rings in a completion queue, sends and receives use different ones.
        let sub = (0, if subs > 1 { 1 } else { 0 });
        let mut e = FieldWriter::new(64);
        e.u32(4, RQ_BELL as u32).u32(8, SQ_BELL as u32);
        e.u32(12, LLQ_AT as u32);
        e.u16(56, sub.0 as u16).u16(58, sub.1 as u16);
        let c = self.context(id)?;
        let (mut sq, mut rq) = (None, None);
        if sends > 0 && sq_bytes > 0 {
            let memory = Shared::new(sq_bytes + LLQ_AT)?;
            e.u64(40, c.offer(&bells, 0, PAGE));
            e.u64(48, c.offer(&memory, 0, sq_bytes + LLQ_AT));
            sq = Some(Ring {
                memory,
                at: LLQ_AT,
                bell: SQ_BELL,
                entry: sq_bytes / sends as usize,
                depth: sends as u16,
                taken: 0,
            });
        }
        if recvs > 0 && rq_bytes > 0 {
            let memory = Shared::new(rq_bytes)?;
            e.u64(16, c.offer(&memory, 0, rq_bytes));
            e.u64(24, rq_bytes.next_multiple_of(PAGE) as u64);
            e.u64(32, c.offer(&bells, 0, PAGE));
            rq = Some(Ring {
                memory,
                at: 0,
                bell: RQ_BELL,
                entry: 16,
                depth: (rq_bytes / 16) as u16,
                taken: 0,
            });
        }
        let handle = c.handle();
        c.qps.insert(handle, (adapter, number));
        for cq in [a.send_cq, a.recv_cq] {
            if let Some(q) = c.cqs.get_mut(&cq) {
                q.users += 1;
            }
        }
        let qp = Qp {
            context: id,
            adapter,
            number,
            pd: a.pd,
            state: RESET,
            qkey: 0,
            sq_psn: 0,
            datagram: a.kind == UD,
            unsolicited: a.unsolicited(),
            // 7 retries without limit; the default until `modify_qp` sets another value.
            rnr_retry: 7,
            bells,
            sq,
            rq,
            send_cq: a.send_cq,
            recv_cq: a.recv_cq,
            sub,
            cap: a.cap,
            counters: Vec::new(),
        };
        self.qps.insert((adapter, number), qp);
        Ok((handle, number, e.0))
    }

    pub fn destroy_qp(&mut self, id: ContextId, handle: u32) -> Answer<()> {
        let c = self.context(id)?;
        let qp = c.qps.remove(&handle).ok_or(ENOENT)?;
        let Some(q) = self.qps.remove(&qp) else {
            return Ok(());
        };
        let c = self.context(id)?;
        for (counter, _) in &q.counters {
            if let Some(n) = c.counters.get_mut(counter) {
                n.users -= 1;
            }
        }
        for cq in [q.send_cq, q.recv_cq] {
            if let Some(cq) = c.cqs.get_mut(&cq) {
                cq.users -= 1;
            }
        }
        self.count_pd_user(id, q.pd, false)
    }

    pub fn query_qp(&mut self, id: ContextId, handle: u32) -> Answer<Vec<u8>> {
        let at = *self.context(id)?.qps.get(&handle).ok_or(ENOENT)?;
        let q = self.qps.get(&at).ok_or(ENOENT)?;
        let mut e = FieldWriter::new(128);
        e.put(64, &q.cap).u32(84, q.qkey).u32(92, q.sq_psn);
        e.u8(108, q.state).u8(116, 1).u8(119, q.rnr_retry);
        Ok(e.0)
    }

    pub fn modify_qp(&mut self, id: ContextId, f: &Fields) -> Answer<()> {
        const STATE: u32 = 1;
        const PORT: u32 = 0x20;
        const QKEY: u32 = 0x40;
        const RNR: u32 = 0x800;
        const PSN: u32 = 0x1_0000;
        const KNOWN: u32 = STATE | 2 | 4 | 0x10 | PORT | QKEY | RNR | PSN;
        let at = *self.context(id)?.qps.get(&f.u32(64)).ok_or(ENOENT)?;
        let no_rnr = self.cfg.no_rnr_retry;
        let q = self.qps.get_mut(&at).ok_or(ENOENT)?;
        let mask = f.u32(68);
        if mask & !KNOWN != 0
            || mask & PORT != 0 && f.u8(104) != 1
            || mask & 0x10 != 0 && f.u16(92) != 0
            || mask & RNR != 0 && (no_rnr || q.datagram)
        {
            return Err(EOPNOTSUPP);
        }
        let to = if mask & STATE != 0 { f.u8(96) } else { q.state };
        let required = match (q.state, to) {
            (RESET, INIT) => 0x10 | PORT | QKEY,
            (INIT, INIT) | (INIT, RTR) => 0,
            (RTR, RTS) => PSN,
            (RTS | SQD | SQE, RTS) | (RTS | SQD, SQD) => 0,
            (_, RESET) | (INIT..=ERR, ERR) => 0,
            _ => return Err(EINVAL),
        };
        if mask & required != required {
            return Err(EINVAL);
        }
        if mask & QKEY != 0 {
            q.qkey = f.u32(72);
        }
        if mask & PSN != 0 {
            q.sq_psn = f.u32(80);
        }
        if mask & RNR != 0 {
            q.rnr_retry = f.u8(107);
        }
        q.state = to;
        if to == RESET {
            for r in [&mut q.sq, &mut q.rq].into_iter().flatten() {
                q.bells.store(r.bell, 0);
                r.taken = 0;
            }
        }
        if to == ERR {
            self.flush(at);
        }
        Ok(())
    }
}

/// The inode of the socket that a link in /proc leads to.
pub fn inode_of(link: &str) -> Answer<u64> {
    let to = std::fs::read_link(link).map_err(|_| libc::EBADF)?;
    let to = to.to_string_lossy().into_owned();
    let n = to
        .strip_prefix("socket:[")
        .and_then(|r| r.strip_suffix(']'));
    n.and_then(|n| n.parse().ok()).ok_or(libc::EBADF)
}
