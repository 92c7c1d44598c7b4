//! Commands of programs, as the kernel's uverbs and its EFA driver answer them: by ioctl, by write
//! commands within an ioctl, and by write(2). The numbers are in `uverbs`; layouts are those of
//! `rdma_user_ioctl_cmds.h`, `ib_user_verbs.h` and `efa-abi.h`.

use crate::bytes::{FieldWriter, Fields};
use crate::counters::{self, CounterMemory};
use crate::device::*;
use crate::door::{Op, Reply, Request};
use crate::objects::*;
use crate::shared::{fetch, store, Shared, PAGE};
use crate::uverbs::{attr, cmd, method, object, DRIVER_EFA, UHW_IN, UHW_OUT};
use libc::{EFAULT, EINVAL, ENODATA, ENOENT, ENOMEM, ENOSPC, ENOTTY, EOPNOTSUPP};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

/// The command is not supported: rdma-core may try another interface.
const UNKNOWN: i32 = libc::EPROTONOSUPPORT;
/// The only port of an adapter.
const PORT: u64 = 1;
/// `struct ib_uverbs_ioctl_hdr` and `struct ib_uverbs_attr`: bytes.
const IOCTL_HEAD: usize = 24;
const IOCTL_ATTR: usize = 16;

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
    object: u16,
    method: u16,
    attrs: Vec<Attr>,
    /// A descriptor to pass on, and where its number goes.
    fd: Option<(OwnedFd, u64, u32)>,
}

impl IoctlCall {
    /// Reads a call from the program's memory.
    fn fetch(r: &Request) -> Answer<IoctlCall> {
        let mut head = [0; IOCTL_HEAD];
        fetch(r.pid, r.a, &mut head).map_err(|()| EFAULT)?;
        let h = Fields(&head);
        let (len, count) = (h.u16(0), h.u16(6));
        if h.u64(8) != 0 || h.u32(20) != 0 {
            return Err(UNKNOWN);
        }
        let whole = IOCTL_HEAD + IOCTL_ATTR * usize::from(count);
        if usize::from(len) != whole || h.u32(16) != DRIVER_EFA {
            return Err(EINVAL);
        }
        let mut attrs = Vec::new();
        for i in 0..u64::from(count) {
            let at = r.a + IOCTL_HEAD as u64 + IOCTL_ATTR as u64 * i;
            let mut b = [0; IOCTL_ATTR];
            fetch(r.pid, at, &mut b).map_err(|()| EFAULT)?;
            let f = Fields(&b);
            attrs.push(Attr {
                id: f.u16(0),
                len: f.u16(2),
                data: f.u64(8),
                at: at + 8,
            });
        }
        Ok(IoctlCall {
            pid: r.pid,
            object: h.u16(2),
            method: h.u16(4),
            attrs,
            fd: None,
        })
    }

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
        let mut call = IoctlCall::fetch(r)?;
        let (object, method) = (call.object, call.method);
        if self.cfg.verbose {
            let ids: Vec<_> = call.attrs.iter().map(|a| (a.id, a.len)).collect();
            eprintln!("efa-sim: object {object} method {method:#x} attributes {ids:x?}");
        }
        let first = object == object::DEVICE
            && [method::GET_CONTEXT, method::INVOKE_WRITE].contains(&method);
        if !self.context(id)?.ready && !first {
            return Err(EINVAL);
        }
        match (object, method) {
            (object::DEVICE, _) => self.device_method(id, &mut call)?,
            (object::PD, method::PD_DESTROY) => self.dealloc_pd(id, call.object(attr::HANDLE)?)?,
            (object::AH, method::AH_DESTROY) => self.destroy_ah(id, call.object(attr::HANDLE)?)?,
            (object::MR, _) => self.mr_method(id, &call)?,
            (object::CQ, _) => self.cq_method(id, &call)?,
            (object::QP, _) => self.qp_method(id, &call)?,
            (object::COMP_CNTR, _) => self.counter_method(id, &call)?,
            // Asynchronous events never happen, but rdma-core opens the descriptor.
            (object::ASYNC_EVENT, method::ASYNC_EVENT_ALLOC) => {
                let (ours, theirs) = crate::sock::pair().map_err(|_| ENOMEM)?;
                self.context(id)?.events.push(ours);
                let at = call.find(attr::HANDLE).ok_or(EINVAL)?.at;
                call.fd = Some((theirs, at, 8));
            }
            _ => return Err(UNKNOWN),
        }
        Ok(call.fd)
    }

    fn device_method(&mut self, id: ContextId, call: &mut IoctlCall) -> Answer<()> {
        match call.method {
            method::INVOKE_WRITE => self.invoke_write(id, call),
            method::QUERY_PORT => {
                if call.number(attr::QUERY_PORT_PORT_NUM)? != PORT {
                    return Err(EINVAL);
                }
                let mut port = self.port();
                port.resize(48, 0);
                call.output(attr::QUERY_PORT_RESP, &port)
            }
            method::GET_CONTEXT => {
                let driver = self.get_context(id, &call.input(UHW_IN)?)?;
                call.output(attr::GET_CONTEXT_NUM_COMP_VECTORS, &VECTORS.to_le_bytes())?;
                // Optional access flags of memory regions are understood.
                call.output(attr::GET_CONTEXT_CORE_SUPPORT, &1u64.to_le_bytes())?;
                call.output(UHW_OUT, &driver)
            }
            method::QUERY_GID_TABLE => {
                let size = call.number(attr::QUERY_GID_TABLE_ENTRY_SIZE)? as usize;
                let mut e = self.gid_entry(id)?;
                e.resize(size.max(32), 0);
                call.output(attr::QUERY_GID_TABLE_RESP_ENTRIES, &e)?;
                call.output(attr::QUERY_GID_TABLE_RESP_NUM_ENTRIES, &1u64.to_le_bytes())
            }
            method::QUERY_GID_ENTRY => {
                if call.number(attr::QUERY_GID_ENTRY_PORT)? != PORT {
                    return Err(EINVAL);
                }
                if call.number(attr::QUERY_GID_ENTRY_GID_INDEX)? != 0 {
                    return Err(ENODATA);
                }
                let e = self.gid_entry(id)?;
                call.output(attr::QUERY_GID_ENTRY_RESP_ENTRY, &e)
            }
            method::QUERY_COMP_CNTR_CAPS => {
                if self.cfg.no_counters {
                    return Err(EOPNOTSUPP);
                }
                let (max, ops) = (counters::MAX.to_le_bytes(), counters::ALL.to_le_bytes());
                call.output(attr::COMP_CNTR_CAPS_MAX_COUNTERS, &max)?;
                let value = counters::MAX_VALUE.to_le_bytes();
                call.output(attr::COMP_CNTR_CAPS_MAX_VALUE, &value)?;
                call.output(attr::COMP_CNTR_CAPS_SUPPORTED_QP_ATTACH_OPS, &ops)
            }
            _ => Err(UNKNOWN),
        }
    }

    fn mr_method(&mut self, id: ContextId, call: &IoctlCall) -> Answer<()> {
        match call.method {
            method::MR_DESTROY => self.dereg_mr(id, call.object(attr::HANDLE)?),
            method::REG_DMABUF_MR => {
                let mr = Mr {
                    context: id,
                    pd: call.object(attr::REG_DMABUF_MR_PD_HANDLE)?,
                    pid: call.pid,
                    iova: call.number(attr::REG_DMABUF_MR_IOVA)?,
                    start: 0,
                    len: call.number(attr::REG_DMABUF_MR_LENGTH)?,
                    access: call.number(attr::REG_DMABUF_MR_ACCESS_FLAGS)? as u32,
                    mapped: None,
                };
                let fd = call.find(attr::REG_DMABUF_MR_FD).ok_or(EINVAL)?.data as i32;
                let offset = call.number(attr::REG_DMABUF_MR_OFFSET)?;
                let (handle, key) = self.reg_dmabuf(mr, fd, offset)?;
                call.made(attr::HANDLE, handle)?;
                call.output(attr::REG_DMABUF_MR_RESP_LKEY, &key.to_le_bytes())?;
                call.output(attr::REG_DMABUF_MR_RESP_RKEY, &key.to_le_bytes())
            }
            method::EFA_MR_QUERY => {
                let handle = call.object(attr::EFA_QUERY_MR_HANDLE)?;
                self.context(id)?.mrs.get(&handle).ok_or(ENOENT)?;
                // No interconnect is named.
                for a in
                    attr::EFA_QUERY_MR_RESP_IC_ID_VALIDITY..=attr::EFA_QUERY_MR_RESP_RDMA_RECV_IC_ID
                {
                    call.output(a, &0u16.to_le_bytes())?;
                }
                Ok(())
            }
            _ => Err(UNKNOWN),
        }
    }

    fn cq_method(&mut self, id: ContextId, call: &IoctlCall) -> Answer<()> {
        match call.method {
            method::CQ_CREATE => {
                let channel = call.find(attr::CREATE_CQ_COMP_CHANNEL);
                let args = CqArgs {
                    entries: call.number(attr::CREATE_CQ_CQE)? as u32,
                    user: call.number(attr::CREATE_CQ_USER_HANDLE)?,
                    vector: call.number(attr::CREATE_CQ_COMP_VECTOR)? as u32,
                    channel: channel.map(|a| a.data as i32),
                    external: match call.find(attr::CREATE_CQ_BUFFER_FD) {
                        Some(a) => Some((
                            a.data as i32,
                            call.number(attr::CREATE_CQ_BUFFER_OFFSET)?,
                            call.number(attr::CREATE_CQ_BUFFER_LENGTH)?,
                        )),
                        None => None,
                    },
                    driver: call.input(UHW_IN)?,
                };
                let (handle, entries, driver) = self.create_cq(id, call.pid, &args)?;
                call.made(attr::HANDLE, handle)?;
                call.output(attr::CREATE_CQ_RESP_CQE, &entries.to_le_bytes())?;
                call.output(UHW_OUT, &driver)
            }
            method::CQ_DESTROY => {
                let events = self.destroy_cq(id, call.object(attr::HANDLE)?)?;
                call.output(attr::DESTROY_CQ_RESP, &u64::from(events).to_le_bytes())
            }
            _ => Err(UNKNOWN),
        }
    }

    fn qp_method(&mut self, id: ContextId, call: &IoctlCall) -> Answer<()> {
        match call.method {
            method::QP_CREATE => {
                let mut cap = [0; 20];
                let given = call.input(attr::CREATE_QP_CAP)?;
                for (to, b) in cap.iter_mut().zip(given) {
                    *to = b;
                }
                const SIGNAL_ALL: u64 = 0x1000;
                if call.number(attr::CREATE_QP_FLAGS).unwrap_or(0) & !SIGNAL_ALL != 0 {
                    return Err(EOPNOTSUPP);
                }
                let args = QpArgs {
                    pd: call.object(attr::CREATE_QP_PD_HANDLE)?,
                    send_cq: call.object(attr::CREATE_QP_SEND_CQ_HANDLE)?,
                    recv_cq: call.object(attr::CREATE_QP_RECV_CQ_HANDLE)?,
                    kind: call.number(attr::CREATE_QP_TYPE)? as u8,
                    cap,
                    driver: call.input(UHW_IN)?,
                };
                let (handle, number, driver) = self.create_qp(id, &args)?;
                call.made(attr::HANDLE, handle)?;
                call.output(attr::CREATE_QP_RESP_CAP, &cap)?;
                let number = u32::from(number).to_le_bytes();
                call.output(attr::CREATE_QP_RESP_QP_NUM, &number)?;
                call.output(UHW_OUT, &driver)
            }
            method::QP_DESTROY => {
                self.destroy_qp(id, call.object(attr::HANDLE)?)?;
                call.output(attr::DESTROY_QP_RESP, &[0; 4])
            }
            method::QP_ATTACH_COMP_CNTR => {
                let qp = call.object(attr::HANDLE)?;
                let counter = call.object(attr::QP_ATTACH_COMP_CNTR_CNTR_HANDLE)?;
                let ops = call.number(attr::QP_ATTACH_COMP_CNTR_OP_MASK)? as u32;
                self.attach_counter(id, qp, counter, ops)
            }
            _ => Err(UNKNOWN),
        }
    }

    fn counter_method(&mut self, id: ContextId, call: &IoctlCall) -> Answer<()> {
        match call.method {
            method::COMP_CNTR_CREATE => {
                let place = |id| CounterMemory::of(call.pid, &call.input(id)?);
                let places = [
                    place(attr::EFA_CREATE_COMP_CNTR_COMP_BUFFER)?,
                    place(attr::EFA_CREATE_COMP_CNTR_ERR_BUFFER)?,
                ];
                let handle = self.create_counter(id, places)?;
                call.made(attr::HANDLE, handle)
            }
            method::COMP_CNTR_DESTROY => self.destroy_counter(id, call.object(attr::HANDLE)?),
            method::COMP_CNTR_MODIFY => {
                let how = (
                    call.number(attr::MODIFY_COMP_CNTR_ENTRY)?,
                    call.number(attr::MODIFY_COMP_CNTR_OP)?,
                    call.number(attr::MODIFY_COMP_CNTR_VALUE)?,
                );
                self.modify_counter(id, call.object(attr::HANDLE)?, how)
            }
            method::COMP_CNTR_READ => {
                let counter = call.object(attr::HANDLE)?;
                let v = self.read_counter(id, counter, call.number(attr::READ_COMP_CNTR_ENTRY)?)?;
                call.output(attr::READ_COMP_CNTR_RESP_VALUE, &v.to_le_bytes())
            }
            _ => Err(UNKNOWN),
        }
    }

    fn invoke_write(&mut self, id: ContextId, call: &mut IoctlCall) -> Answer<()> {
        let command = call.number(attr::WRITE_CMD)? as u32;
        let (core, driver) = (call.input(attr::CORE_IN)?, call.input(UHW_IN)?);
        // rdma-core's probe for this method passes no output buffer.
        let room = call.find(attr::CORE_OUT).map_or(0, |a| usize::from(a.len));
        if command == cmd::QUERY_DEVICE && room < 176 {
            return Err(ENOSPC);
        }
        let done = self.command(id, call.pid, command, &core, &driver, room)?;
        let mut bytes = done.core;
        bytes.resize(bytes.len().max(room), 0);
        call.output(attr::CORE_OUT, &bytes)?;
        call.output(UHW_OUT, &done.driver)?;
        if let Some((fd, off)) = done.fd {
            let at = call.find(attr::CORE_OUT).ok_or(EINVAL)?.data + off as u64;
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
        if command & cmd::EXTENDED != 0 {
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
            cmd::GET_CONTEXT | cmd::QUERY_DEVICE | cmd::ALLOC_PD | cmd::CREATE_COMP_CHANNEL => 8,
            cmd::QUERY_PORT => 16,
            cmd::DEALLOC_PD | cmd::DESTROY_AH | cmd::DEREG_MR => 4,
            cmd::CREATE_AH => 56,
            cmd::REG_MR => 40,
            cmd::CREATE_CQ => 32,
            cmd::DESTROY_CQ | cmd::QUERY_QP | cmd::DESTROY_QP => 16,
            cmd::CREATE_QP => 56,
            cmd::MODIFY_QP => 112,
            _ => return Err(EINVAL),
        };
        let core = b.get(8..8 + core_len).ok_or(EINVAL)?;
        let driver = b.get(8 + core_len..).unwrap_or(&[]);
        let response = Fields(core).u64(0);
        if command == cmd::GET_CONTEXT {
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
            cmd::QUERY_DEVICE => out.core = self.device_attr(id)?,
            cmd::EX_QUERY_DEVICE => (out.core, out.driver) = self.query_device_ex(id, room)?,
            cmd::QUERY_PORT => out.core = self.port(),
            cmd::ALLOC_PD => {
                let c = self.context(id)?;
                let handle = c.handle();
                c.pds.insert(handle, 0);
                out.core = handle.to_le_bytes().to_vec();
                let mut e = FieldWriter::new(8);
                e.u16(4, handle as u16);
                out.driver = e.0;
            }
            cmd::DEALLOC_PD => self.dealloc_pd(id, f.u32(0))?,
            cmd::CREATE_AH => {
                let (handle, number) = self.create_ah(id, f.u32(16), f.gid(24))?;
                out.core = handle.to_le_bytes().to_vec();
                let mut e = FieldWriter::new(8);
                e.u16(4, number);
                out.driver = e.0;
            }
            cmd::DESTROY_AH => self.destroy_ah(id, f.u32(0))?,
            cmd::REG_MR => {
                let (handle, key) = self.reg_mr(id, pid, &f)?;
                let mut e = FieldWriter::new(12);
                e.u32(0, handle).u32(4, key).u32(8, key);
                out.core = e.0;
            }
            cmd::DEREG_MR => self.dereg_mr(id, f.u32(0))?,
            cmd::CREATE_COMP_CHANNEL => {
                out.core = vec![0; 4];
                out.fd = Some((self.create_channel(id)?, 0));
            }
            cmd::CREATE_CQ => {
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
            cmd::DESTROY_CQ => {
                let events = self.destroy_cq(id, f.u32(8))?;
                out.core = u64::from(events).to_le_bytes().to_vec();
            }
            cmd::CREATE_QP => {
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
            cmd::QUERY_QP => out.core = self.query_qp(id, f.u32(8))?,
            cmd::MODIFY_QP => self.modify_qp(id, &f)?,
            cmd::DESTROY_QP => {
                self.destroy_qp(id, f.u32(8))?;
                out.core = vec![0; 4];
            }
            _ => return Err(UNKNOWN),
        }
        Ok(out)
    }

    /// The attributes of the extended query, as many bytes as the caller has room for, and the
    /// driver's.
    fn query_device_ex(&mut self, id: ContextId, room: usize) -> Answer<(Vec<u8>, Vec<u8>)> {
        let mut base = self.device_attr(id)?;
        base.resize(304, 0);
        let len = room.clamp(184, 304) as u32;
        base[180..184].copy_from_slice(&len.to_le_bytes());
        base.truncate(len as usize);
        let c = &self.cfg;
        let mut e = FieldWriter::new(24);
        e.u32(4, c.send_queue).u32(8, c.recv_queue);
        e.u16(12, 2)
            .u16(14, 2)
            .u32(16, c.rdma_size)
            .u32(20, c.caps());
        Ok((base, e.0))
    }

    /// Creates a completion channel. Returns the caller's end.
    fn create_channel(&mut self, id: ContextId) -> Answer<OwnedFd> {
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
        Ok(theirs)
    }
}

fn raw(fd: &OwnedFd) -> i32 {
    use std::os::fd::AsRawFd;
    fd.as_raw_fd()
}
