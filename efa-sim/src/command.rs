//! Commands of programs, as the kernel's uverbs and its EFA driver answer them: by ioctl, by write commands within an ioctl,
//! and by write(2). Numbers and layouts are those of `rdma_user_ioctl_cmds.h`, `ib_user_verbs.h` and `efa-abi.h`.

use crate::bytes::{Fields, Filled};
use crate::device::*;
use crate::door::{Op, Reply, Request};
use crate::shared::{fetch, store, Shared, PAGE};
use libc::{EBUSY, EFAULT, EINVAL, ENODATA, ENOENT, ENOMEM, ENOSPC, ENOTTY, EOPNOTSUPP};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

type Answer<T> = Result<T, i32>;

/// Nothing of that kind is known: the caller may try another way.
const UNKNOWN: i32 = libc::EPROTONOSUPPORT;
const DRIVER: u32 = 17;

/// Where doorbells are in their pages, and the first entry in device memory.
const SQ_BELL: usize = 0x40;
const RQ_BELL: usize = 0x80;
pub const CQ_BELL: usize = 0x20;
const LLQ_AT: usize = 64;

/// Objects and methods of the ioctl interface.
const DEVICE: u16 = 0;
const INVOKE_WRITE: u16 = 0;
/// Attributes of driver data.
const UHW_IN: u16 = 0x1000;
const UHW_OUT: u16 = 0x1001;

/// One attribute.
struct Attr {
    id: u16,
    len: u16,
    data: u64,
    /// Address of its data member.
    at: u64,
}

/// A call by ioctl.
struct Call {
    pid: u32,
    attrs: Vec<Attr>,
    /// A descriptor to pass on, and where its number goes.
    fd: Option<(OwnedFd, u64, u32)>,
}

impl Call {
    fn find(&self, id: u16) -> Option<&Attr> {
        self.attrs.iter().find(|a| a.id == id)
    }

    /// What came in with an attribute; nothing when it is absent.
    fn input(&self, id: u16) -> Answer<Vec<u8>> {
        let Some(a) = self.find(id) else {
            return Ok(Vec::new());
        };
        if a.len <= 8 {
            return Ok(a.data.to_le_bytes()[..a.len.into()].to_vec());
        }
        let mut b = vec![0; a.len.into()];
        fetch(self.pid, a.data, &mut b).map_err(|()| EFAULT)?;
        Ok(b)
    }

    fn number(&self, id: u16) -> Answer<u64> {
        let a = self.find(id).ok_or(EINVAL)?;
        Ok(if a.len == 4 {
            a.data & 0xffff_ffff
        } else {
            a.data
        })
    }

    /// The handle of an object.
    fn object(&self, id: u16) -> Answer<u32> {
        Ok(self.find(id).ok_or(EINVAL)?.data as u32)
    }

    /// Gives bytes out, as many as there is room for.
    fn output(&self, id: u16, bytes: &[u8]) -> Answer<()> {
        let Some(a) = self.find(id) else {
            return Ok(());
        };
        let n = bytes.len().min(a.len.into());
        store(self.pid, a.data, &bytes[..n]).map_err(|()| EFAULT)
    }

    /// Gives the handle of a new object out.
    fn made(&self, id: u16, handle: u32) -> Answer<()> {
        let a = self.find(id).ok_or(EINVAL)?;
        store(self.pid, a.at, &u64::from(handle).to_le_bytes()).map_err(|()| EFAULT)
    }
}

/// What a write command answers: core and driver parts, and a descriptor with its place in the core part.
#[derive(Default)]
struct Written {
    core: Vec<u8>,
    driver: Vec<u8>,
    fd: Option<(OwnedFd, usize)>,
}

/// What a queue pair is created with, whichever way.
struct QpArgs {
    pd: u32,
    send_cq: u32,
    recv_cq: u32,
    kind: u8,
    cap: [u8; 20],
    driver: Vec<u8>,
}

/// What a completion queue is created with.
struct CqArgs {
    entries: u32,
    user: u64,
    vector: u32,
    channel: Option<i32>,
    driver: Vec<u8>,
}

/// Completion vectors of an adapter; waiting programs want more than one.
const VECTORS: u32 = 4;

impl Device {
    /// Answers a request.
    pub fn answer(&mut self, id: ContextId, r: &Request) {
        let mut reply = Reply::default();
        let mut fd: Option<OwnedFd> = None;
        let mut map: Option<Rc<Shared>> = None;
        let done = match r.op {
            o if o == Op::Ioctl as u32 => self.ioctl(id, r).map(|made| {
                if let Some((f, at, width)) = made {
                    (reply.store_at, reply.store_width) = (at, width);
                    fd = Some(f);
                }
            }),
            o if o == Op::Write as u32 => self.write(id, r).map(|made| {
                if let Some((f, at)) = made {
                    (reply.store_at, reply.store_width) = (at, 4);
                    fd = Some(f);
                }
            }),
            o if o == Op::Map as u32 => self.map(id, r).map(|(m, at)| {
                reply.value = at;
                map = Some(m);
            }),
            _ => Err(EINVAL),
        };
        if let Err(e) = done {
            reply.error = e;
        }
        if self.cfg.verbose {
            eprintln!("efa-sim: {r:?} -> {reply:?}");
        }
        let Some(c) = self.contexts.get(&id) else {
            return;
        };
        // SAFETY: the memory keeps its descriptor open while it is borrowed here.
        let mapped = map
            .as_ref()
            .map(|m| unsafe { BorrowedFd::borrow_raw(m.fd()) });
        let passed = fd.as_ref().map(AsFd::as_fd).or(mapped);
        crate::sock::reply(&c.sock, &reply, passed);
    }

    fn context(&mut self, id: ContextId) -> Answer<&mut Context> {
        self.contexts.get_mut(&id).ok_or(EINVAL)
    }

    fn map(&mut self, id: ContextId, r: &Request) -> Answer<(Rc<Shared>, u64)> {
        let len = r.b.next_multiple_of(PAGE as u64);
        match self.context(id)?.maps.get(&r.a) {
            Some((m, at, n)) if *n == len => Ok((Rc::clone(m), *at)),
            _ => Err(EINVAL),
        }
    }

    // ---- ioctl ---------------------------------------------------------------------------

    fn ioctl(&mut self, id: ContextId, r: &Request) -> Answer<Option<(OwnedFd, u64, u32)>> {
        if self.cfg.old_kernel {
            return Err(ENOTTY);
        }
        let mut head = [0; 24];
        fetch(r.pid, r.a, &mut head).map_err(|()| EFAULT)?;
        let h = Fields(&head);
        let (len, object, method, count) = (h.u16(0), h.u16(2), h.u16(4), h.u16(6));
        if h.u64(8) != 0 || h.u32(20) != 0 {
            return Err(UNKNOWN);
        }
        if usize::from(len) != 24 + 16 * usize::from(count) || h.u32(16) != DRIVER {
            return Err(EINVAL);
        }
        let mut call = Call {
            pid: r.pid,
            attrs: Vec::new(),
            fd: None,
        };
        for i in 0..u64::from(count) {
            let at = r.a + 24 + 16 * i;
            let mut b = [0; 16];
            fetch(r.pid, at, &mut b).map_err(|()| EFAULT)?;
            let f = Fields(&b);
            call.attrs.push(Attr {
                id: f.u16(0),
                len: f.u16(2),
                data: f.u64(8),
                at: at + 8,
            });
        }
        if self.cfg.verbose {
            let ids: Vec<_> = call.attrs.iter().map(|a| (a.id, a.len)).collect();
            eprintln!("efa-sim: object {object} method {method:#x} attributes {ids:x?}");
        }
        let ready = self.context(id)?.ready;
        if !ready && (object, method) != (DEVICE, 3) && (object, method) != (DEVICE, INVOKE_WRITE) {
            return Err(EINVAL);
        }
        match (object, method) {
            (DEVICE, INVOKE_WRITE) => self.invoke_write(id, &mut call)?,
            (DEVICE, 2) => {
                if call.number(0)? != 1 {
                    return Err(EINVAL);
                }
                let mut port = self.port();
                port.resize(48, 0);
                call.output(1, &port)?;
            }
            (DEVICE, 3) => {
                let driver = self.get_context(id, &call.input(UHW_IN)?)?;
                call.output(0, &VECTORS.to_le_bytes())?;
                // Optional access flags of memory regions are understood.
                call.output(1, &1u64.to_le_bytes())?;
                call.output(UHW_OUT, &driver)?;
            }
            (DEVICE, 5) => {
                let size = call.number(0)? as usize;
                let mut e = self.gid_entry(id)?;
                e.resize(size.max(32), 0);
                call.output(2, &e)?;
                call.output(3, &1u64.to_le_bytes())?;
            }
            (DEVICE, 6) => {
                if call.number(0)? != 1 || call.number(1)? != 0 {
                    return Err(if call.number(0)? == 1 {
                        ENODATA
                    } else {
                        EINVAL
                    });
                }
                let e = self.gid_entry(id)?;
                call.output(3, &e)?;
            }
            // Asynchronous events: there are none, but the descriptor is asked for.
            (16, 0) => {
                let (ours, theirs) = crate::sock::pair().map_err(|_| ENOMEM)?;
                self.context(id)?.events.push(ours);
                let at = call.find(0).ok_or(EINVAL)?.at;
                call.fd = Some((theirs, at, 8));
            }
            (1, 0) => self.dealloc_pd(id, call.object(0)?)?,
            (7, 1) => self.dereg_mr(id, call.object(0)?)?,
            (7, 0x1000) => {
                self.context(id)?
                    .mrs
                    .get(&call.object(0x1000)?)
                    .ok_or(ENOENT)?;
                for a in 0x1001..=0x1004 {
                    call.output(a, &0u16.to_le_bytes())?;
                }
            }
            (3, 0) => {
                let args = CqArgs {
                    entries: call.number(1)? as u32,
                    user: call.number(2)?,
                    vector: call.number(4)? as u32,
                    channel: call.find(3).map(|a| a.data as i32),
                    driver: call.input(UHW_IN)?,
                };
                let (handle, entries, driver) = self.create_cq(id, r.pid, &args)?;
                call.made(0, handle)?;
                call.output(6, &entries.to_le_bytes())?;
                call.output(UHW_OUT, &driver)?;
            }
            (3, 1) => {
                let events = self.destroy_cq(id, call.object(0)?)?;
                call.output(1, &u64::from(events).to_le_bytes())?;
            }
            (4, 0) => {
                let mut cap = [0; 20];
                let given = call.input(8)?;
                for (to, b) in cap.iter_mut().zip(given) {
                    *to = b;
                }
                const SIGNAL_ALL: u64 = 0x1000;
                if call.number(10).unwrap_or(0) & !SIGNAL_ALL != 0 {
                    return Err(EOPNOTSUPP);
                }
                let args = QpArgs {
                    pd: call.object(2)?,
                    send_cq: call.object(4)?,
                    recv_cq: call.object(5)?,
                    kind: call.number(9)? as u8,
                    cap,
                    driver: call.input(UHW_IN)?,
                };
                let (handle, number, driver) = self.create_qp(id, &args)?;
                call.made(0, handle)?;
                call.output(13, &cap)?;
                call.output(14, &u32::from(number).to_le_bytes())?;
                call.output(UHW_OUT, &driver)?;
            }
            (4, 1) => {
                self.destroy_qp(id, call.object(0)?)?;
                call.output(1, &[0; 4])?;
            }
            (6, 0) => self.destroy_ah(id, call.object(0)?)?,
            _ => return Err(UNKNOWN),
        }
        Ok(call.fd)
    }

    fn invoke_write(&mut self, id: ContextId, call: &mut Call) -> Answer<()> {
        let command = call.number(2)? as u32;
        let (core, driver) = (call.input(0)?, call.input(UHW_IN)?);
        // The probe whether this method exists brings nothing.
        let room = call.find(1).map_or(0, |a| usize::from(a.len));
        if command == 1 && room < 176 {
            return Err(ENOSPC);
        }
        let done = self.command(id, call.pid, command, &core, &driver, room)?;
        let mut bytes = done.core;
        bytes.resize(bytes.len().max(room), 0);
        call.output(1, &bytes)?;
        call.output(UHW_OUT, &done.driver)?;
        if let Some((fd, off)) = done.fd {
            let at = call.find(1).ok_or(EINVAL)?.data + off as u64;
            call.fd = Some((fd, at, 4));
        }
        Ok(())
    }

    // ---- write(2) ------------------------------------------------------------------------

    /// A command by write(2); returns a descriptor to pass on, and where its number goes.
    fn write(&mut self, id: ContextId, r: &Request) -> Answer<Option<(OwnedFd, u64)>> {
        let mut b = vec![0; r.b.min(4096) as usize];
        fetch(r.pid, r.a, &mut b).map_err(|()| EFAULT)?;
        let h = Fields(&b);
        let (command, words) = (h.u32(0), usize::from(h.u16(4)));
        if command >> 31 != 0 {
            let (response, room) = (h.u64(8), usize::from(h.u16(6)) * 8);
            let core_len = words * 8;
            let core = b.get(24..24 + core_len).ok_or(EINVAL)?;
            let driver = b.get(24 + core_len..).unwrap_or(&[]);
            let done = self.command(id, r.pid, command, core, driver, room)?;
            return self.respond(r.pid, response, done, room);
        }
        if words * 4 != b.len() {
            return Err(EINVAL);
        }
        let core_len = match command {
            0 => 8,
            1 | 3 | 17 => 8,
            2 => 16,
            4 | 8 | 13 => 4,
            5 => 56,
            9 => 40,
            18 => 32,
            20 | 25 | 27 => 16,
            24 => 56,
            26 => 112,
            _ => return Err(EINVAL),
        };
        let core = b.get(8..8 + core_len).ok_or(EINVAL)?;
        let driver = b.get(8 + core_len..).unwrap_or(&[]);
        let response = Fields(core).u64(0);
        if command == 0 {
            let driver = self.get_context(id, driver)?;
            let (ours, theirs) = crate::sock::pair().map_err(|_| ENOMEM)?;
            self.context(id)?.events.push(ours);
            let mut out = Filled::new(8);
            out.u32(4, VECTORS);
            let done = Written {
                core: out.0,
                driver,
                fd: Some((theirs, 0)),
            };
            return self.respond(r.pid, response, done, 0);
        }
        let done = self.command(id, r.pid, command, core, driver, 0)?;
        self.respond(r.pid, response, done, 0)
    }

    /// Gives the answer of a write command out: the driver's part follows the core's.
    fn respond(
        &self,
        pid: u32,
        at: u64,
        mut done: Written,
        room: usize,
    ) -> Answer<Option<(OwnedFd, u64)>> {
        done.core.resize(done.core.len().max(room), 0);
        let fd = done.fd.take().map(|(fd, off)| (fd, at + off as u64));
        done.core.append(&mut done.driver);
        if !done.core.is_empty() {
            store(pid, at, &done.core).map_err(|()| EFAULT)?;
        }
        Ok(fd)
    }

    // ---- write commands, whichever way they come -----------------------------------------

    fn command(
        &mut self,
        id: ContextId,
        pid: u32,
        command: u32,
        core: &[u8],
        driver: &[u8],
        room: usize,
    ) -> Answer<Written> {
        if !self.context(id)?.ready {
            return Err(EINVAL);
        }
        let f = Fields(core);
        let mut out = Written::default();
        match command {
            1 => out.core = self.device_attr(id)?,
            0x8000_0001 => {
                let mut base = self.device_attr(id)?;
                base.resize(304, 0);
                let len = room.clamp(184, 304) as u32;
                base[180..184].copy_from_slice(&len.to_le_bytes());
                base.truncate(len as usize);
                out.core = base;
                let c = &self.cfg;
                let mut e = Filled::new(24);
                e.u32(4, c.send_queue).u32(8, c.recv_queue);
                e.u16(12, 2)
                    .u16(14, 2)
                    .u32(16, c.rdma_size)
                    .u32(20, c.caps());
                out.driver = e.0;
            }
            2 => out.core = self.port(),
            3 => {
                let c = self.context(id)?;
                let handle = c.handle();
                c.pds.insert(handle, 0);
                out.core = handle.to_le_bytes().to_vec();
                let mut e = Filled::new(8);
                e.u16(4, handle as u16);
                out.driver = e.0;
            }
            4 => self.dealloc_pd(id, f.u32(0))?,
            5 => {
                let (handle, number) = self.create_ah(id, f.u32(16), f.gid(24))?;
                out.core = handle.to_le_bytes().to_vec();
                let mut e = Filled::new(8);
                e.u16(4, number);
                out.driver = e.0;
            }
            8 => self.destroy_ah(id, f.u32(0))?,
            9 => {
                let (handle, key) = self.reg_mr(id, pid, &f)?;
                let mut e = Filled::new(12);
                e.u32(0, handle).u32(4, key).u32(8, key);
                out.core = e.0;
            }
            13 => self.dereg_mr(id, f.u32(0))?,
            17 => {
                if self.cfg.no_notify {
                    return Err(EOPNOTSUPP);
                }
                let (ours, theirs) = crate::sock::pair().map_err(|_| ENOMEM)?;
                let copy = theirs.try_clone().map_err(|_| ENOMEM)?;
                let channel = Channel {
                    inode: inode_of(&format!("/proc/self/fd/{}", raw(&copy)))?,
                    ours,
                    theirs: copy,
                };
                self.context(id)?.channels.push(Rc::new(channel));
                out.core = vec![0; 4];
                out.fd = Some((theirs, 0));
            }
            18 => {
                let channel = f.u32(24) as i32;
                let args = CqArgs {
                    entries: f.u32(16),
                    user: f.u64(8),
                    vector: f.u32(20),
                    channel: (channel >= 0).then_some(channel),
                    driver: driver.to_vec(),
                };
                let (handle, entries, driver) = self.create_cq(id, pid, &args)?;
                let mut e = Filled::new(8);
                e.u32(0, handle).u32(4, entries);
                (out.core, out.driver) = (e.0, driver);
            }
            20 => {
                let events = self.destroy_cq(id, f.u32(8))?;
                out.core = u64::from(events).to_le_bytes().to_vec();
            }
            24 => {
                let mut cap = [0; 20];
                cap.copy_from_slice(core.get(32..52).ok_or(EINVAL)?);
                let args = QpArgs {
                    pd: f.u32(16),
                    send_cq: f.u32(20),
                    recv_cq: f.u32(24),
                    kind: f.u8(53),
                    cap,
                    driver: driver.to_vec(),
                };
                let (handle, number, driver) = self.create_qp(id, &args)?;
                let mut e = Filled::new(32);
                e.u32(0, handle).u32(4, number.into()).put(8, &cap);
                (out.core, out.driver) = (e.0, driver);
            }
            25 => out.core = self.query_qp(id, f.u32(8))?,
            26 => self.modify_qp(id, &f)?,
            27 => {
                self.destroy_qp(id, f.u32(8))?;
                out.core = vec![0; 4];
            }
            _ => return Err(UNKNOWN),
        }
        Ok(out)
    }

    // ---- device, port, context -----------------------------------------------------------

    fn get_context(&mut self, id: ContextId, driver: &[u8]) -> Answer<Vec<u8>> {
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
        let mut e = Filled::new(24);
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

    fn device_attr(&mut self, id: ContextId) -> Answer<Vec<u8>> {
        let adapter = self.context(id)?.adapter;
        let c = &self.cfg;
        let gid = c.gid_of(adapter);
        let mut e = Filled::new(176);
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

    fn port(&self) -> Vec<u8> {
        let mut e = Filled::new(40);
        e.u32(4, self.cfg.mtu).u32(16, 1).u16(20, 1);
        // Active, 4096 bytes, 100 Gbit/s, link up.
        e.u8(26, 4).u8(27, 5).u8(28, 5).u8(29, 1).u8(30, 1);
        e.u8(34, 2).u8(35, 32).u8(36, 5);
        e.0
    }

    fn gid_entry(&mut self, id: ContextId) -> Answer<Vec<u8>> {
        let adapter = self.context(id)?.adapter;
        let mut e = Filled::new(32);
        e.put(0, &self.cfg.gid_of(adapter)).u32(20, 1);
        Ok(e.0)
    }

    // ---- protection domains, memory, address handles -------------------------------------

    fn dealloc_pd(&mut self, id: ContextId, handle: u32) -> Answer<()> {
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

    fn uses_pd(&mut self, id: ContextId, handle: u32, on: bool) -> Answer<()> {
        let n = self.context(id)?.pds.get_mut(&handle).ok_or(ENOENT)?;
        *n = if on { *n + 1 } else { n.saturating_sub(1) };
        Ok(())
    }

    fn reg_mr(&mut self, id: ContextId, pid: u32, f: &Fields) -> Answer<(u32, u32)> {
        const OPTIONAL: u32 = 0x3ff << 20;
        let (start, len, iova, pd) = (f.u64(8), f.u64(16), f.u64(24), f.u32(32));
        let access = f.u32(36) & !OPTIONAL;
        let mut may = LOCAL_WRITE;
        may |= if self.cfg.no_rdma_read {
            0
        } else {
            REMOTE_READ
        };
        may |= if self.cfg.no_rdma_write {
            0
        } else {
            REMOTE_WRITE
        };
        if (start ^ iova) & (PAGE as u64 - 1) != 0
            || access & REMOTE_WRITE != 0 && access & LOCAL_WRITE == 0
        {
            return Err(EINVAL);
        }
        if access & !may != 0 {
            return Err(EOPNOTSUPP);
        }
        // Hardware pins the pages: both ends have to be there.
        for at in [start, start + len.saturating_sub(1)] {
            if len > 0 {
                fetch(pid, at, &mut [0]).map_err(|()| EFAULT)?;
            }
        }
        self.uses_pd(id, pd, true)?;
        let adapter = self.context(id)?.adapter;
        let mr = Mr {
            context: id,
            pd,
            pid,
            iova,
            start,
            len,
            access,
        };
        let Some(key) = self.register(adapter, mr) else {
            self.uses_pd(id, pd, false)?;
            return Err(ENOMEM);
        };
        let c = self.context(id)?;
        let handle = c.handle();
        c.mrs.insert(handle, key);
        Ok((handle, key))
    }

    fn dereg_mr(&mut self, id: ContextId, handle: u32) -> Answer<()> {
        let c = self.context(id)?;
        let key = c.mrs.remove(&handle).ok_or(ENOENT)?;
        let adapter = c.adapter;
        if let Some(mr) = self.mrs.remove(&(adapter, key)) {
            self.uses_pd(id, mr.pd, false)?;
        }
        Ok(())
    }

    fn create_ah(&mut self, id: ContextId, pd: u32, gid: [u8; 16]) -> Answer<(u32, u16)> {
        if self.adapter_of(&gid).is_none() {
            return Err(EINVAL);
        }
        self.uses_pd(id, pd, true)?;
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

    fn destroy_ah(&mut self, id: ContextId, handle: u32) -> Answer<()> {
        let c = self.context(id)?;
        let (pd, gid) = c.ahs.remove(&handle).ok_or(ENOENT)?;
        if let Some(p) = c.peers.get_mut(&gid) {
            p.1 -= 1;
            if p.1 == 0 {
                c.peers.remove(&gid);
            }
        }
        self.uses_pd(id, pd, false)
    }

    // ---- completion queues ---------------------------------------------------------------

    /// Handle, entries of a sub-queue, driver data.
    fn create_cq(&mut self, id: ContextId, pid: u32, a: &CqArgs) -> Answer<(u32, u32, Vec<u8>)> {
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
        let (ring, bell) = (Shared::new(bytes)?, Shared::new(PAGE)?);
        let c = self.context(id)?;
        let handle = c.handle();
        let ring_key = c.offer(&ring, 0, bytes);
        let bell_key = c.offer(&bell, 0, PAGE);
        let mut e = Filled::new(40);
        e.u32(0, 1).u64(8, ring_key);
        e.u64(16, bytes.next_multiple_of(PAGE) as u64);
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

    /// How many of its events the program has read, which it waits to have acknowledged.
    fn destroy_cq(&mut self, id: ContextId, handle: u32) -> Answer<u32> {
        let c = self.context(id)?;
        if c.cqs.get(&handle).ok_or(ENOENT)?.users > 0 {
            return Err(EBUSY);
        }
        let q = c.cqs.remove(&handle).ok_or(ENOENT)?;
        let Some(channel) = &q.channel else {
            return Ok(0);
        };
        // Events that nobody has read go with the queue; those of others stay.
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

    /// Handle, number, driver data.
    fn create_qp(&mut self, id: ContextId, a: &QpArgs) -> Answer<(u32, u16, Vec<u8>)> {
        const UD: u8 = 4;
        const DRIVER_QP: u8 = 0xff;
        if a.driver.len() < 16 || a.kind != UD && a.kind != DRIVER_QP {
            return Err(if a.kind == UD || a.kind == DRIVER_QP {
                EINVAL
            } else {
                EOPNOTSUPP
            });
        }
        let d = Fields(&a.driver);
        let (rq_bytes, sq_bytes, flags) = (d.u32(4) as usize, d.u32(8) as usize, d.u16(16));
        let cap = Fields(&a.cap);
        let (sends, recvs) = (cap.u32(0), cap.u32(4));
        let cfg = &self.cfg;
        let too_much = sends > cfg.send_queue
            || recvs > cfg.recv_queue
            || cap.u32(8) > 2
            || cap.u32(12) > 2
            || cap.u32(16) > cfg.inline;
        let unsolicited = flags & 1 != 0;
        if too_much || d.u32(0) != 0 || unsolicited && cfg.no_unsolicited {
            return Err(EINVAL);
        }
        let c = self.context(id)?;
        for cq in [a.send_cq, a.recv_cq] {
            c.cqs.get(&cq).ok_or(ENOENT)?;
        }
        self.uses_pd(id, a.pd, true)?;
        let adapter = self.context(id)?.adapter;
        let number = self.qp_number(adapter).ok_or(ENOMEM)?;
        let bells = Shared::new(PAGE)?;
        let subs = self.cfg.sub_cqs as usize;
        // Where there are several rings in a queue, sends and receives have their own.
        let sub = (0, if subs > 1 { 1 } else { 0 });
        let mut e = Filled::new(64);
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
            unsolicited,
            // Where it cannot be chosen, the adapter never gives up.
            rnr_retry: 7,
            bells,
            sq,
            rq,
            send_cq: a.send_cq,
            recv_cq: a.recv_cq,
            sub,
            cap: a.cap,
        };
        self.qps.insert((adapter, number), qp);
        Ok((handle, number, e.0))
    }

    fn destroy_qp(&mut self, id: ContextId, handle: u32) -> Answer<()> {
        let c = self.context(id)?;
        let qp = c.qps.remove(&handle).ok_or(ENOENT)?;
        let Some(q) = self.qps.remove(&qp) else {
            return Ok(());
        };
        let c = self.context(id)?;
        for cq in [q.send_cq, q.recv_cq] {
            if let Some(cq) = c.cqs.get_mut(&cq) {
                cq.users -= 1;
            }
        }
        self.uses_pd(id, q.pd, false)
    }

    fn query_qp(&mut self, id: ContextId, handle: u32) -> Answer<Vec<u8>> {
        let at = *self.context(id)?.qps.get(&handle).ok_or(ENOENT)?;
        let q = self.qps.get(&at).ok_or(ENOENT)?;
        let mut e = Filled::new(128);
        e.put(64, &q.cap).u32(84, q.qkey).u32(92, q.sq_psn);
        e.u8(108, q.state).u8(116, 1).u8(119, q.rnr_retry);
        Ok(e.0)
    }

    fn modify_qp(&mut self, id: ContextId, f: &Fields) -> Answer<()> {
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

/// Entries of a completion queue, at most.
const MAX_CQE: u32 = 65536;

fn raw(fd: &OwnedFd) -> i32 {
    use std::os::fd::AsRawFd;
    fd.as_raw_fd()
}

/// The inode of the socket that a link in /proc leads to.
fn inode_of(link: &str) -> Answer<u64> {
    let to = std::fs::read_link(link).map_err(|_| libc::EBADF)?;
    let to = to.to_string_lossy().into_owned();
    let n = to
        .strip_prefix("socket:[")
        .and_then(|r| r.strip_suffix(']'));
    n.and_then(|n| n.parse().ok()).ok_or(libc::EBADF)
}
