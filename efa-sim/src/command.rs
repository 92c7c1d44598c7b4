//! Commands of programs, as the kernel's uverbs and its EFA driver answer them: by ioctl, by write
//! commands within an ioctl, and by write(2). Numbers and layouts are those of
//! `rdma_user_ioctl_cmds.h`, `ib_user_verbs.h` and `efa-abi.h`.

use crate::bytes::{FieldWriter, Fields};
use crate::counters::{self, CounterMemory};
use crate::device::*;
use crate::door::{Op, Reply, Request};
use crate::objects::*;
use crate::shared::{fetch, store, Shared, PAGE};
use libc::{EFAULT, EINVAL, ENODATA, ENOENT, ENOMEM, ENOSPC, ENOTTY, EOPNOTSUPP};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

/// The command is not supported: rdma-core may try another interface.
const UNKNOWN: i32 = libc::EPROTONOSUPPORT;
const DRIVER: u32 = 17;

/// Objects and methods of the ioctl interface.
const DEVICE: u16 = 0;
const COUNTER: u16 = 19;
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
struct IoctlCall {
    pid: u32,
    attrs: Vec<Attr>,
    /// A descriptor to pass on, and where its number goes.
    fd: Option<(OwnedFd, u64, u32)>,
}

impl IoctlCall {
    fn find(&self, id: u16) -> Option<&Attr> {
        self.attrs.iter().find(|a| a.id == id)
    }

    /// Input of an attribute; empty when the attribute is absent.
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
        Ok(match a.len {
            1 => a.data & 0xff,
            4 => a.data & 0xffff_ffff,
            _ => a.data,
        })
    }

    /// The handle of an object.
    fn object(&self, id: u16) -> Answer<u32> {
        Ok(self.find(id).ok_or(EINVAL)?.data as u32)
    }

    /// Writes to an output attribute, cut to its length.
    fn output(&self, id: u16, bytes: &[u8]) -> Answer<()> {
        let Some(a) = self.find(id) else {
            return Ok(());
        };
        let n = bytes.len().min(a.len.into());
        store(self.pid, a.data, &bytes[..n]).map_err(|()| EFAULT)
    }

    /// Returns the handle of a new object to the caller.
    fn made(&self, id: u16, handle: u32) -> Answer<()> {
        let a = self.find(id).ok_or(EINVAL)?;
        store(self.pid, a.at, &u64::from(handle).to_le_bytes()).map_err(|()| EFAULT)
    }
}

/// Response of a write command: core and driver parts, and a descriptor with its place in the
/// core part.
#[derive(Default)]
struct WriteResponse {
    core: Vec<u8>,
    driver: Vec<u8>,
    fd: Option<(OwnedFd, usize)>,
}

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
        let mut call = IoctlCall {
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
            (DEVICE, 8) => {
                if self.cfg.no_counters {
                    return Err(EOPNOTSUPP);
                }
                call.output(0, &counters::MAX.to_le_bytes())?;
                call.output(1, &counters::MAX_VALUE.to_le_bytes())?;
                call.output(2, &counters::ALL.to_le_bytes())?;
            }
            // Asynchronous events never happen, but rdma-core opens the descriptor.
            (16, 0) => {
                let (ours, theirs) = crate::sock::pair().map_err(|_| ENOMEM)?;
                self.context(id)?.events.push(ours);
                let at = call.find(0).ok_or(EINVAL)?.at;
                call.fd = Some((theirs, at, 8));
            }
            (1, 0) => self.dealloc_pd(id, call.object(0)?)?,
            (7, 1) => self.dereg_mr(id, call.object(0)?)?,
            (7, 4) => {
                let mr = Mr {
                    context: id,
                    pd: call.object(1)?,
                    pid: r.pid,
                    iova: call.number(4)?,
                    start: 0,
                    len: call.number(3)?,
                    access: call.number(6)? as u32,
                    mapped: None,
                };
                let fd = call.find(5).ok_or(EINVAL)?.data as i32;
                let (handle, key) = self.reg_dmabuf(mr, fd, call.number(2)?)?;
                call.made(0, handle)?;
                call.output(7, &key.to_le_bytes())?;
                call.output(8, &key.to_le_bytes())?;
            }
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
                    external: match call.find(10) {
                        Some(a) => Some((a.data as i32, call.number(11)?, call.number(9)?)),
                        None => None,
                    },
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
            (4, 2) => {
                let (qp, counter) = (call.object(0)?, call.object(1)?);
                self.attach_counter(id, qp, counter, call.number(2)? as u32)?;
            }
            (COUNTER, 0) => {
                let place = |id| CounterMemory::of(r.pid, &call.input(id)?);
                let handle = self.create_counter(id, [place(0x1000)?, place(0x1001)?])?;
                call.made(0, handle)?;
            }
            (COUNTER, 1) => self.destroy_counter(id, call.object(0)?)?,
            (COUNTER, 2) => {
                let how = (call.number(1)?, call.number(2)?, call.number(3)?);
                self.modify_counter(id, call.object(0)?, how)?;
            }
            (COUNTER, 3) => {
                let v = self.read_counter(id, call.object(0)?, call.number(1)?)?;
                call.output(2, &v.to_le_bytes())?;
            }
            (6, 0) => self.destroy_ah(id, call.object(0)?)?,
            _ => return Err(UNKNOWN),
        }
        Ok(call.fd)
    }

    fn invoke_write(&mut self, id: ContextId, call: &mut IoctlCall) -> Answer<()> {
        let command = call.number(2)? as u32;
        let (core, driver) = (call.input(0)?, call.input(UHW_IN)?);
        // rdma-core's probe for this method passes no output buffer.
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
            let mut out = FieldWriter::new(8);
            out.u32(4, VECTORS);
            let done = WriteResponse {
                core: out.0,
                driver,
                fd: Some((theirs, 0)),
            };
            return self.respond(r.pid, response, done, 0);
        }
        let done = self.command(id, r.pid, command, core, driver, 0)?;
        self.respond(r.pid, response, done, 0)
    }

    /// Writes the response of a write command: the core part, then the driver part.
    fn respond(
        &self,
        pid: u32,
        at: u64,
        mut done: WriteResponse,
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
    ) -> Answer<WriteResponse> {
        if !self.context(id)?.ready {
            return Err(EINVAL);
        }
        let f = Fields(core);
        let mut out = WriteResponse::default();
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
                let mut e = FieldWriter::new(24);
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
                let mut e = FieldWriter::new(8);
                e.u16(4, handle as u16);
                out.driver = e.0;
            }
            4 => self.dealloc_pd(id, f.u32(0))?,
            5 => {
                let (handle, number) = self.create_ah(id, f.u32(16), f.gid(24))?;
                out.core = handle.to_le_bytes().to_vec();
                let mut e = FieldWriter::new(8);
                e.u16(4, number);
                out.driver = e.0;
            }
            8 => self.destroy_ah(id, f.u32(0))?,
            9 => {
                let (handle, key) = self.reg_mr(id, pid, &f)?;
                let mut e = FieldWriter::new(12);
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
                    external: None,
                    driver: driver.to_vec(),
                };
                let (handle, entries, driver) = self.create_cq(id, pid, &args)?;
                let mut e = FieldWriter::new(8);
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
                let mut e = FieldWriter::new(32);
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
}

fn raw(fd: &OwnedFd) -> i32 {
    use std::os::fd::AsRawFd;
    fd.as_raw_fd()
}
