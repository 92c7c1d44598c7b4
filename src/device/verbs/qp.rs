//! A queue pair of an EFA adapter.
//!
//! A work request has a slot: what it was for, and memory for one packet, which sends copy into, and short reads and writes
//! of memory that is not registered. Several go to the adapter together, with `ring`. Receives are always posted, and posted
//! again when their packets have been taken out. Whatever a peer was not ready for is sent again after a while.
//!
//! An adapter tells of a peer's end only who sends to it: of peers from whom an answer is awaited the owner is reminded now and
//! then, to send them something.

use super::mem::{Found, Lent};
use super::pool::Pool;
use super::rings::{self, Rings, SendWqe};
use super::short::{Short, Way};
use super::sys::*;
use super::{Handle, Opened};
use crate::core::Result;
use crate::device::wait::WaitSet;
use crate::device::{Data, Event, Events, Payload, QpAddr, QueueMemory, QueuePair, Remote, Status};
use crate::hmem::UserMem;
use crate::types::*;
use core::ffi::c_int;
use core::mem::{size_of, zeroed};
use core::ptr::null_mut;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Marks receives in `wr_id`; the rest of it is the slot.
pub(super) const RECV: u64 = 1 << 63;
/// Completions taken at once, and at most in one poll.
const BATCH: usize = 16;
const MOST: usize = 128;
/// Receives are posted so many at a time.
const REFILL: usize = 16;
/// How long a peer that was not ready is left alone: at first, doubled with each try, and at most.
const BACK_OFF: Duration = Duration::from_micros(50);
const BACK_OFF_MAX: Duration = Duration::from_millis(10);
/// How long a closing queue pair waits for what it has posted.
const LINGER: Duration = Duration::from_secs(1);
/// Without notifications, waiting programs look so often.
const TICK: Duration = Duration::from_millis(1);
/// Of peers from whom something is awaited the owner is reminded so often; the clock is looked at with every so-manieth poll.
const REMIND: Duration = Duration::from_secs(1);
const LOOKS: u32 = 512;

#[derive(Clone, Copy)]
enum Op {
    Send,
    Write,
    Read,
}

/// What a queue pair is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Packets of the library, in its own memory.
    Packets,
    /// Work requests of the application, on its own memory.
    Direct,
    /// As [`Mode::Direct`], unreliably.
    Datagram,
}

/// A work request as the adapter gets it.
#[derive(Clone, Copy)]
struct Request {
    op: Op,
    to: Handle,
    local: ibv_sge,
    /// A second piece of a message.
    more: Option<ibv_sge>,
    rkey: u32,
    raddr: u64,
    imm: Option<u32>,
}

/// A work request under way.
struct Wr {
    wr_id: u64,
    peer: QpAddr,
    request: Request,
    /// Memory registered for it alone.
    _lent: Option<Lent>,
    /// Where a read's bytes belong that came into the slot.
    back: Option<UserMem>,
    tries: u32,
}

/// Hashes addresses, which an application chose, and which are few.
#[derive(Default)]
struct AddrHasher(u64);
type Quick = BuildHasherDefault<AddrHasher>;

impl Hasher for AddrHasher {
    #[inline]
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }

    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        for b in bytes.chunks(8) {
            let mut v = [0; 8];
            for (to, from) in v.iter_mut().zip(b) {
                *to = *from;
            }
            self.write_u64(u64::from_le_bytes(v));
        }
    }

    #[inline]
    fn write_u16(&mut self, v: u16) {
        self.write_u64(v.into());
    }

    #[inline]
    fn write_u32(&mut self, v: u32) {
        self.write_u64(v.into());
    }

    #[inline]
    fn write_usize(&mut self, _: usize) {}

    #[inline]
    fn write_u64(&mut self, v: u64) {
        self.0 = (self.0.rotate_left(5) ^ v).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// See the module text.
pub struct VerbsQp {
    pub(super) dev: Arc<Opened>,
    mode: Mode,
    addr: QpAddr,
    qp: *mut ibv_qp,
    ex: *mut ibv_qp_ex,
    cq: *mut ibv_cq,
    channel: *mut ibv_comp_channel,
    /// What waiting programs wait on: the channel, and a timer for reminders, or in place of a channel.
    wait: WaitSet,
    timer: OwnedFd,
    /// From whom something is awaited, how often, and when the owner was last reminded.
    expected: HashMap<QpAddr, u32>,
    reminded: Instant,
    looks: u32,
    tx: Pool,
    /// Packets' receives; the application brings its own.
    rx: Option<Pool>,
    /// Its receives, by slot.
    taking: Vec<u64>,
    wrs: Vec<Option<Wr>>,
    pub(super) free: Vec<u16>,
    /// The queues themselves, where they can be had.
    pub(super) rings: Option<Rings>,
    /// Requests of the short way, by slot, and the peers of it.
    pub(super) shorts: Vec<Option<Short>>,
    pub(super) short_recvs: Vec<Option<Short>>,
    pub(super) ways: Vec<Way>,
    /// Between `wr_start` and `wr_complete`: slots that were handed over.
    batch: Vec<u16>,
    /// Those the library did not take.
    pub(super) refused: Vec<u16>,
    /// Those to be sent again, and when.
    pub(super) again: Vec<(Instant, u16)>,
    /// Receives to be posted, or that can be.
    pub(super) empty: Vec<u16>,
    /// Completions just taken, and those that `arm` came across.
    list: [ibv_wc; BATCH],
    pub(super) pending: Vec<ibv_wc>,
    /// Where the application's memory was last found to be registered.
    pub(super) found: Found,
    routes: HashMap<QpAddr, Handle, Quick>,
    senders: HashMap<(u16, u16), QpAddr, Quick>,
}

// SAFETY: libibverbs takes calls from any thread; the owner serialises them.
unsafe impl Send for VerbsQp {}

impl VerbsQp {
    /// A queue pair that is ready to send and receive. `FI_ENOMEM`, `FI_EIO`.
    pub(super) fn open(dev: Arc<Opened>, mode: Mode, unsolicited: bool) -> Result<VerbsQp> {
        let a = dev.adapter;
        let mtu = a.attr.mtu;
        let packets = mode == Mode::Packets;
        let (sends, recvs) = if packets {
            (a.attr.sq_depth, a.attr.rq_depth)
        } else {
            (a.attr.raw.sends, a.attr.raw.recvs)
        };
        // Of the application's requests only those without a byte need memory of ours.
        let tx = if packets {
            Pool::new(&dev.memory, sends, mtu, true)?
        } else {
            Pool::new(&dev.memory, 1, 64, true)?
        };
        let rx = match mode {
            Mode::Packets => Some(Pool::new(&dev.memory, recvs, mtu, true)?),
            _ => None,
        };
        let (channel, cq) = Self::queue(&dev, sends + recvs)?;
        let (wait, timer) = (WaitSet::new()?, timer()?);
        wait.add(timer.as_raw_fd());
        if channel.is_null() {
            tick(&timer, TICK);
        } else {
            // SAFETY: the channel is open.
            wait.add(unsafe { (*channel).fd });
        }
        let mut q = VerbsQp {
            addr: QpAddr {
                gid: a.attr.gid,
                ..QpAddr::default()
            },
            dev,
            mode,
            qp: null_mut(),
            ex: null_mut(),
            cq,
            channel,
            wait,
            timer,
            expected: HashMap::new(),
            reminded: Instant::now(),
            looks: 0,
            tx,
            rx,
            taking: if packets { Vec::new() } else { vec![0; recvs] },
            wrs: (0..sends).map(|_| None).collect(),
            free: (0..sends as u16).rev().collect(),
            rings: None,
            shorts: Vec::new(),
            short_recvs: Vec::new(),
            ways: Vec::new(),
            batch: Vec::with_capacity(sends),
            refused: Vec::new(),
            again: Vec::new(),
            empty: (0..recvs as u16).collect(),
            list: [ibv_wc::default(); BATCH],
            pending: Vec::new(),
            found: Found::default(),
            routes: HashMap::default(),
            senders: HashMap::default(),
        };
        q.create(sends, recvs, unsolicited)?;
        if q.mode == Mode::Direct && q.rings.is_some() {
            q.shorts = vec![None; sends];
            q.short_recvs = vec![None; recvs];
        }
        q.refill();
        Ok(q)
    }

    /// A completion queue that notifies, or, where the adapter cannot, one that does not.
    fn queue(dev: &Opened, entries: usize) -> Result<(*mut ibv_comp_channel, *mut ibv_cq)> {
        let a = dev.adapter;
        let entries = entries as c_int;
        // SAFETY: the context is open; what is created here is destroyed by `drop`, or below.
        unsafe {
            let channel = (a.lib.ibv_create_comp_channel)(a.context);
            if !channel.is_null() {
                let fd = (*channel).fd;
                libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK);
                let cq = (a.lib.ibv_create_cq)(a.context, entries, null_mut(), channel, 0);
                if !cq.is_null() {
                    return Ok((channel, cq));
                }
                (a.lib.ibv_destroy_comp_channel)(channel);
            }
            let cq = (a.lib.ibv_create_cq)(a.context, entries, null_mut(), null_mut(), 0);
            if cq.is_null() {
                return Err(failed("a completion queue", &a.attr.name));
            }
            Ok((null_mut(), cq))
        }
    }

    /// Creates the queue pair and takes it through its states.
    fn create(&mut self, sends: usize, recvs: usize, unsolicited: bool) -> Result<()> {
        let a = self.dev.adapter;
        let caps = &a.attr.caps;
        let mut ops = OP_SEND | OP_SEND_IMM;
        let reliable = self.mode != Mode::Datagram;
        ops |= if caps.rdma_read && reliable {
            OP_READ
        } else {
            0
        };
        ops |= if caps.rdma_write && reliable {
            OP_WRITE | OP_WRITE_IMM
        } else {
            0
        };
        let qkey = (crate::device::soft::random() as u32 & 0x7fff_ffff) | 1;
        // SAFETY: the attributes are valid for the calls; zero is a valid value of all their members.
        unsafe {
            let mut init: ibv_qp_init_attr_ex = zeroed();
            init.send_cq = self.cq;
            init.recv_cq = self.cq;
            init.cap = ibv_qp_cap {
                max_send_wr: sends as u32,
                max_recv_wr: recvs as u32,
                max_send_sge: self.pieces() as u32,
                max_recv_sge: self.pieces() as u32,
                max_inline_data: if self.mode == Mode::Packets {
                    0
                } else {
                    a.attr.raw.inline as u32
                },
            };
            init.qp_type = if reliable { IBV_QPT_DRIVER } else { IBV_QPT_UD };
            init.sq_sig_all = 1;
            init.comp_mask = INIT_PD | INIT_SEND_OPS;
            init.pd = self.dev.memory.pd();
            init.send_ops_flags = ops;
            let mut efa = efadv_qp_init_attr {
                flags: if unsolicited && caps.unsolicited {
                    QP_UNSOLICITED
                } else {
                    0
                },
                ..efadv_qp_init_attr::default()
            };
            let len = size_of::<efadv_qp_init_attr>() as u32;
            self.qp = if reliable {
                (a.lib.efadv_create_qp_ex)(a.context, &mut init, &mut efa, len)
            } else {
                create_qp_ex(a.context, &mut init)
            };
            if self.qp.is_null() {
                return Err(failed("a queue pair", &a.attr.name));
            }
            self.ex = (a.lib.ibv_qp_to_qp_ex)(self.qp);
            // The oldest generation has two rings in a completion queue.
            let first = a.attr.identity.as_ref().is_none_or(|i| i.device == 0xefa0);
            if !first && crate::core::params::efa_bool("use_data_path_direct", true) {
                self.rings = Rings::open(a.lib, self.qp, self.cq, !self.channel.is_null());
            }
            self.addr.qpn = (*self.qp).qp_num as u16;
            self.addr.qkey = qkey;
            for (state, mut mask) in [INIT, RTR, RTS] {
                let mut attr = ibv_qp_attr {
                    qp_state: state,
                    port_num: 1,
                    qkey,
                    // The adapter tries for ever, as long as it can be told so.
                    rnr_retry: 7,
                    ..ibv_qp_attr::default()
                };
                if state == RTS.0 && reliable && a.limits.device_caps & CAP_RNR_RETRY != 0 {
                    mask |= SET_RNR_RETRY;
                }
                if (a.lib.ibv_modify_qp)(self.qp, &mut attr, mask) != 0 {
                    return Err(failed("a state of a queue pair", &a.attr.name));
                }
            }
        }
        Ok(())
    }

    /// Most pieces of a message.
    fn pieces(&self) -> usize {
        if self.mode == Mode::Packets {
            1
        } else {
            self.dev.adapter.attr.raw.pieces
        }
    }

    /// Posts receives, of packets.
    fn refill(&mut self) {
        let Some(rx) = &self.rx else { return };
        if let Some(r) = &mut self.rings {
            let length = self.dev.adapter.attr.mtu as u32;
            let lkey = rx.lkey();
            for slot in self.empty.drain(..) {
                let addr = rx.addr(slot);
                r.recv(slot, &[ibv_sge { addr, length, lkey }]);
            }
            return r.ring_recv();
        }
        while !self.empty.is_empty() {
            let n = self.empty.len().min(REFILL);
            let at = self.empty.len() - n;
            let mut sges = [ibv_sge::default(); REFILL];
            // SAFETY: a work request that is all zero is a valid value.
            let mut list: [ibv_recv_wr; REFILL] = unsafe { zeroed() };
            let slots = self.empty.get(at..).unwrap_or(&[]);
            let pairs = slots.iter().zip(list.iter_mut().zip(sges.iter_mut()));
            for (slot, (wr, sge)) in pairs {
                *sge = ibv_sge {
                    addr: rx.addr(*slot),
                    length: self.dev.adapter.attr.mtu as u32,
                    lkey: rx.lkey(),
                };
                wr.wr_id = RECV | u64::from(*slot);
                wr.sg_list = sge;
                wr.num_sge = 1;
            }
            let first = list.as_mut_ptr();
            let mut bad = null_mut();
            // SAFETY: the list is linked within its array and lives for the call; its memory is the pool's.
            let taken = unsafe {
                for i in 1..n {
                    (*first.add(i - 1)).next = first.add(i);
                }
                ((*(*self.qp).context).post_recv)(self.qp, first, &mut bad) == 0
            };
            if !taken {
                // As many are posted as the queue has room for: that is not so, and nothing is lost by waiting.
                return;
            }
            self.empty.truncate(at);
        }
    }

    /// Its queues in memory: of sends, of receives, of completions. `FI_EOPNOTSUPP` where the libraries do not say.
    pub fn queues(&self) -> Result<[QueueMemory; 3]> {
        // SAFETY: both are open.
        let found = unsafe { rings::query(self.dev.adapter.lib, self.qp, self.cq) };
        let (s, r, c) = found.ok_or(FI_EOPNOTSUPP)?;
        let of = |q: &efadv_wq_attr| QueueMemory {
            buffer: q.buffer as usize,
            doorbell: q.doorbell as usize,
            entry: q.entry_size,
            entries: q.num_entries,
            max_batch: q.max_batch,
            caps: q.caps,
        };
        let done = QueueMemory {
            buffer: c.buffer as usize,
            doorbell: c.doorbell as usize,
            entry: c.entry_size,
            entries: c.num_entries,
            ..QueueMemory::default()
        };
        Ok([of(&s), of(&r), done])
    }

    /// Number of a peer's address handle.
    pub fn handle_of(&mut self, peer: &QpAddr) -> Result<u16> {
        self.route(peer).map(|h| h.number)
    }

    /// How a peer is reached; its packets are known by it, too.
    pub(super) fn route(&mut self, peer: &QpAddr) -> Result<Handle> {
        if let Some(h) = self.routes.get(peer) {
            return Ok(*h);
        }
        let h = self.dev.handle(&peer.gid)?;
        self.routes.insert(*peer, h);
        self.senders.insert((h.number, peer.qpn), *peer);
        Ok(h)
    }

    /// Hands a request over; `inline` in place of its memory.
    #[inline]
    fn submit(&mut self, slot: u16, r: &Request, peer: &QpAddr, inline: Option<&[u8]>) {
        if let Some(q) = &mut self.rings {
            return q.send(&SendWqe {
                op: match r.op {
                    Op::Send => rings::SEND,
                    Op::Write => rings::WRITE,
                    Op::Read => rings::READ,
                },
                slot,
                to_qpn: peer.qpn,
                qkey: peer.qkey,
                ah: r.to.number,
                imm: r.imm,
                local: r.local,
                more: r.more,
                inline,
                remote: (r.raddr, r.rkey),
            });
        }
        let x = self.ex;
        // SAFETY: `x` is the open queue pair; calls come in the order that ibv_wr_post(3) asks for.
        unsafe {
            if self.batch.is_empty() {
                ((*x).wr_start)(x);
            }
            (*x).wr_id = slot.into();
            match (r.op, r.imm) {
                (Op::Send, None) => ((*x).wr_send)(x),
                (Op::Send, Some(i)) => ((*x).wr_send_imm)(x, i),
                (Op::Write, None) => ((*x).wr_rdma_write)(x, r.rkey, r.raddr),
                (Op::Write, Some(i)) => ((*x).wr_rdma_write_imm)(x, r.rkey, r.raddr, i),
                (Op::Read, _) => ((*x).wr_rdma_read)(x, r.rkey, r.raddr),
            }
            match (inline, r.more) {
                (Some(b), _) => {
                    ((*x).wr_set_inline_data)(x, b.as_ptr().cast_mut().cast(), b.len());
                }
                (None, None) => {
                    ((*x).wr_set_sge)(x, r.local.lkey, r.local.addr, r.local.length);
                }
                (None, Some(more)) => {
                    let both = [r.local, more];
                    ((*x).wr_set_sge_list)(x, both.len(), both.as_ptr());
                }
            }
            ((*x).wr_set_ud_addr)(x, r.to.ah, peer.qpn.into(), peer.qkey);
        }
        self.batch.push(slot);
    }

    fn post(&mut self, slot: u16, wr: Wr, inline: Option<&[u8]>) {
        let (r, peer) = (wr.request, wr.peer);
        if let Some(at) = self.wrs.get_mut(usize::from(slot)) {
            *at = Some(wr);
        }
        self.submit(slot, &r, &peer, inline);
    }

    /// Registered memory of the application, piece by piece. `FI_EINVAL` when there are too many, or one is not registered.
    fn lent(&mut self, mem: &UserMem, write: bool) -> Result<([ibv_sge; 2], usize)> {
        let mut list = [ibv_sge::default(); 2];
        let mut n = 0;
        for (addr, len) in mem.pieces() {
            let key = self.dev.memory.lkey(&mut self.found, addr, len, write);
            let most = self.pieces();
            let at = list.get_mut(n).filter(|_| n < most);
            let (Some(lkey), Some(at)) = (key, at) else {
                return Err(unregistered(addr, len, most));
            };
            *at = ibv_sge {
                addr: addr as u64,
                length: len as u32,
                lkey,
            };
            n += 1;
        }
        Ok((list, n))
    }

    /// Slot of our own memory that goes with a request's.
    fn own(&self, slot: u16) -> u16 {
        if self.mode == Mode::Packets {
            slot
        } else {
            0
        }
    }

    /// A slot, and the way to a peer.
    fn begin(&mut self, peer: &QpAddr) -> Result<(u16, Handle)> {
        let to = self.route(peer)?;
        let slot = self.free.pop().ok_or(FI_EAGAIN)?;
        Ok((slot, to))
    }

    /// Local memory of a read or write: where it is registered, in the slot, or registered for this operation.
    /// The second is a place to copy to in the end.
    fn local(
        &mut self,
        slot: u16,
        mem: &UserMem,
        write: bool,
    ) -> Result<(ibv_sge, Option<UserMem>, Option<Lent>)> {
        let mut pieces = mem.pieces();
        let first = pieces.next().unwrap_or((0, 0));
        let single = pieces.next().is_none();
        let length = mem.len() as u32;
        if single && mem.is_empty() {
            let sge = ibv_sge {
                addr: self.tx.addr(self.own(slot)),
                length: 0,
                lkey: self.tx.lkey(),
            };
            return Ok((sge, None, None));
        }
        let (memory, found) = (&self.dev.memory, &mut self.found);
        let known = |addr: usize| memory.lkey(found, addr, mem.len(), !write);
        if let Some(lkey) = Some(first.0).filter(|_| single).and_then(known) {
            let addr = first.0 as u64;
            return Ok((ibv_sge { addr, length, lkey }, None, None));
        }
        if self.mode != Mode::Packets {
            return Err(unregistered(first.0, first.1, 1));
        }
        if mem.len() <= self.dev.adapter.attr.mtu {
            if write {
                self.tx.put_mem(slot, 0, mem);
            }
            let sge = ibv_sge {
                addr: self.tx.addr(slot),
                length,
                lkey: self.tx.lkey(),
            };
            return Ok((sge, (!write).then_some(*mem), None));
        }
        if !single {
            return Err(FI_EINVAL);
        }
        let lent = self.dev.memory.lend(first.0, first.1, !write)?;
        let sge = ibv_sge {
            addr: first.0 as u64,
            length,
            lkey: lent.lkey(),
        };
        Ok((sge, None, Some(lent)))
    }

    /// Takes completions in, `BATCH` at most.
    #[inline]
    fn take(&mut self) -> usize {
        let into = &mut self.list;
        if let Some(r) = &mut self.rings {
            return r.poll(into, RECV);
        }
        // SAFETY: the queue is open; there is room for as many.
        let n =
            unsafe { ((*(*self.cq).context).poll_cq)(self.cq, BATCH as c_int, into.as_mut_ptr()) };
        usize::try_from(n).unwrap_or(0)
    }

    fn completed(&mut self, wc: &ibv_wc, into: &mut Events) {
        let slot = wc.wr_id as u16;
        if wc.wr_id == 0 && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM {
            // It has taken no receive.
            let from = self.sender(wc);
            return into.list.push(Event::WriteImm {
                from,
                imm: wc.imm_data,
                len: wc.byte_len,
            });
        }
        if wc.wr_id & RECV != 0 {
            self.arrived(slot, wc, into);
            return;
        }
        let short = self.shorts.get_mut(usize::from(slot));
        if let Some(short) = short.and_then(Option::take) {
            self.free.push(slot);
            into.list.push(Event::Short {
                short,
                status: status_of(wc),
                taken: None,
            });
            return;
        }
        self.ended(slot, status_of(wc), into);
    }

    /// Who a completion is from; a key of 0 is not known, nor a host of zero.
    pub(super) fn sender(&self, wc: &ibv_wc) -> QpAddr {
        let qpn = wc.src_qp as u16;
        let known = self.senders.get(&(wc.slid, qpn)).copied();
        known.unwrap_or_else(|| QpAddr {
            gid: self.dev.host(wc.slid).unwrap_or_default(),
            qpn,
            qkey: 0,
        })
    }

    fn arrived(&mut self, slot: u16, wc: &ibv_wc, into: &mut Events) {
        self.empty.push(slot);
        if self.mode != Mode::Packets {
            return self.taken(slot, wc, into);
        }
        if wc.status != 0 {
            return;
        }
        let from = self.sender(wc);
        if wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM {
            return into.list.push(Event::WriteImm {
                from,
                imm: wc.imm_data,
                len: wc.byte_len,
            });
        }
        let Some(rx) = &self.rx else { return };
        let bytes = rx.bytes(slot, wc.byte_len as usize);
        let at = into.arena.len();
        into.arena.extend_from_slice(bytes);
        let data = Data::Arena(at as u32, into.arena.len() as u32);
        into.list.push(if from.qkey != 0 {
            Event::Recv { from, data }
        } else {
            Event::Stranger { from, data }
        });
    }

    /// A receive of the application is over.
    fn taken(&mut self, slot: u16, wc: &ibv_wc, into: &mut Events) {
        let imm = (wc.wc_flags & WC_WITH_IMM != 0).then_some(wc.imm_data);
        let write = wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM;
        let short = self.short_recvs.get_mut(usize::from(slot));
        if let Some(short) = short.and_then(Option::take) {
            into.list.push(Event::Short {
                short,
                status: status_of(wc),
                taken: Some((self.sender(wc), wc.byte_len, imm, write)),
            });
            return;
        }
        into.list.push(Event::Taken {
            wr_id: self.taking.get(usize::from(slot)).copied().unwrap_or(0),
            from: self.sender(wc),
            len: wc.byte_len,
            imm,
            status: status_of(wc),
            write,
        });
    }

    /// A work request is over, unless it is to be sent again.
    fn ended(&mut self, slot: u16, status: Status, into: &mut Events) {
        let Some(at) = self.wrs.get_mut(usize::from(slot)) else {
            return;
        };
        if status == Status::RemoteNotReady && self.mode == Mode::Packets {
            if let Some(w) = at {
                let wait = BACK_OFF * (1 << w.tries.min(8));
                w.tries += 1;
                self.again
                    .push((Instant::now() + wait.min(BACK_OFF_MAX), slot));
                return;
            }
        }
        let Some(w) = at.take() else { return };
        if let (Some(mem), Status::Ok) = (&w.back, status) {
            mem.store(0, self.tx.bytes(slot, mem.len()));
        }
        self.free.push(slot);
        into.list.push(Event::Done {
            wr_id: w.wr_id,
            status,
        });
        use Status::{RemoteBadQpn, RemoteUnreachable, RemoteUnresponsive};
        if matches!(
            status,
            RemoteBadQpn | RemoteUnreachable | RemoteUnresponsive
        ) {
            into.list.push(Event::PeerDown {
                peer: w.peer,
                status,
            });
        }
    }

    /// Sends again what has waited long enough.
    fn send_again(&mut self) {
        let now = Instant::now();
        let mut i = 0;
        while let Some((when, slot)) = self.again.get(i).copied() {
            if when > now {
                i += 1;
                continue;
            }
            self.again.swap_remove(i);
            let w = self.wrs.get(usize::from(slot)).and_then(Option::as_ref);
            if let Some((r, peer)) = w.map(|w| (w.request, w.peer)) {
                self.submit(slot, &r, &peer, None);
            }
        }
        self.ring();
    }

    /// Names the peers from whom something is awaited, when the time has come.
    fn remind(&mut self, into: &mut Events) {
        if self.reminded.elapsed() < REMIND {
            return;
        }
        self.reminded = Instant::now();
        let peers = self.expected.keys();
        into.list.extend(peers.map(|p| Event::Silent { peer: *p }));
    }

    /// Takes events off the channel; each has to be acknowledged before the queue can go.
    fn hear(&mut self) {
        read_timer(&self.timer);
        if self.channel.is_null() {
            return;
        }
        let lib = self.dev.adapter.lib;
        let (mut cq, mut context) = (null_mut(), null_mut());
        // SAFETY: the channel and its one queue are open; the descriptor does not block.
        unsafe {
            while (lib.ibv_get_cq_event)(self.channel, &mut cq, &mut context) == 0 {
                (lib.ibv_ack_cq_events)(cq, 1);
                if let Some(r) = &mut self.rings {
                    r.heard();
                }
            }
        }
    }
}

impl QueuePair for VerbsQp {
    fn addr(&self) -> QpAddr {
        self.addr
    }

    fn idle(&self) -> bool {
        self.free.len() == self.wrs.len()
    }

    fn room(&self) -> bool {
        !self.free.is_empty()
    }

    fn takes(&self, mem: &UserMem) -> bool {
        mem.len() <= self.dev.adapter.attr.mtu || mem.pieces().count() <= 1
    }

    fn post_send(
        &mut self,
        wr_id: u64,
        to: &QpAddr,
        header: &[u8],
        payload: Payload,
    ) -> Result<()> {
        let len = match &payload {
            Payload::Copy(b) => b.len(),
            Payload::User(m) => m.len(),
        };
        if header.len() + len > self.dev.adapter.attr.mtu {
            return Err(FI_EMSGSIZE);
        }
        let (slot, handle) = self.begin(to)?;
        self.tx.put(slot, 0, header);
        match &payload {
            Payload::Copy(b) => self.tx.put(slot, header.len(), b),
            Payload::User(m) => self.tx.put_mem(slot, header.len(), m),
        }
        let local = ibv_sge {
            addr: self.tx.addr(slot),
            length: (header.len() + len) as u32,
            lkey: self.tx.lkey(),
        };
        let request = Request {
            op: Op::Send,
            to: handle,
            local,
            more: None,
            rkey: 0,
            raddr: 0,
            imm: None,
        };
        let w = Wr {
            wr_id,
            peer: *to,
            request,
            _lent: None,
            back: None,
            tries: 0,
        };
        self.post(slot, w, None);
        Ok(())
    }

    fn post_write(
        &mut self,
        wr_id: u64,
        local: Payload,
        remote: &Remote,
        imm: Option<u32>,
    ) -> Result<()> {
        let (slot, to) = self.begin(&remote.to)?;
        let place = match &local {
            Payload::Copy(b) if b.len() > self.tx.room() => Err(FI_EMSGSIZE),
            Payload::Copy(b) => {
                let own = self.own(slot);
                self.tx.put(own, 0, b);
                let sge = ibv_sge {
                    addr: self.tx.addr(own),
                    length: b.len() as u32,
                    lkey: self.tx.lkey(),
                };
                Ok((sge, None, None))
            }
            Payload::User(m) => self.local(slot, m, true),
        };
        self.rdma(slot, to, wr_id, Op::Write, place, remote, imm)
    }

    fn post_read(&mut self, wr_id: u64, local: UserMem, remote: &Remote) -> Result<()> {
        let (slot, to) = self.begin(&remote.to)?;
        let place = self.local(slot, &local, false);
        self.rdma(slot, to, wr_id, Op::Read, place, remote, None)
    }

    fn ring(&mut self) {
        if let Some(r) = &mut self.rings {
            return r.ring();
        }
        if self.batch.is_empty() {
            return;
        }
        let x = self.ex;
        // SAFETY: a batch was started.
        let e = unsafe { ((*x).wr_complete)(x) };
        if e != 0 {
            self.refused.append(&mut self.batch);
        }
        self.batch.clear();
    }

    fn poll(&mut self, into: &mut Events) {
        into.arena.clear();
        if !self.refused.is_empty() || !self.pending.is_empty() {
            for slot in core::mem::take(&mut self.refused) {
                self.ended(slot, Status::LocalQpError, into);
            }
            for wc in core::mem::take(&mut self.pending) {
                self.completed(&wc, into);
            }
        }
        let mut seen = 0;
        while seen < MOST {
            let n = self.take();
            for i in 0..n {
                if let Some(wc) = self.list.get(i).copied() {
                    self.completed(&wc, into);
                }
            }
            seen += n;
            if n < BATCH {
                break;
            }
        }
        if self.empty.len() >= REFILL {
            self.refill();
        }
        if !self.again.is_empty() {
            self.send_again();
        }
        if !self.expected.is_empty() {
            self.looks += 1;
            if seen == 0 && self.looks >= LOOKS {
                self.looks = 0;
                self.remind(into);
            }
        }
    }

    fn meet(&mut self, peer: &QpAddr) -> bool {
        self.routes.remove(peer);
        self.route(peer).is_ok()
    }

    fn expect(&mut self, peer: &QpAddr, on: bool) {
        if on {
            if self.expected.is_empty() {
                self.reminded = Instant::now();
            }
            *self.expected.entry(*peer).or_default() += 1;
        } else if let Some(n) = self.expected.get_mut(peer) {
            *n -= 1;
            if *n == 0 {
                self.expected.remove(peer);
            }
        }
    }

    fn hold(&mut self, _: Option<fn(&[u8]) -> bool>) {}

    fn report_remote(&mut self) {}

    fn wait_fd(&self) -> i32 {
        self.wait.fd()
    }

    fn arm(&mut self) -> bool {
        self.hear();
        self.refill();
        // Who waits polls seldom: the next one looks at the clock.
        self.looks = LOOKS;
        if !self.channel.is_null() {
            match &mut self.rings {
                Some(r) => r.arm(),
                // SAFETY: the queue is open.
                None => unsafe {
                    ((*(*self.cq).context).req_notify_cq)(self.cq, 0);
                },
            }
            let awaits = !self.expected.is_empty();
            tick(&self.timer, if awaits { REMIND } else { Duration::ZERO });
        }
        // What came before the queue was armed makes no event.
        let n = self.take();
        self.pending.extend(self.list.iter().take(n));
        self.pending.is_empty() && self.again.is_empty() && self.refused.is_empty()
    }
}

/// Local memory of a request, as [`VerbsQp::local`] finds it.
type Local = Result<(ibv_sge, Option<UserMem>, Option<Lent>)>;

impl VerbsQp {
    /// Posts a read or write whose local memory was found, or was not.
    #[allow(clippy::too_many_arguments)]
    fn rdma(
        &mut self,
        slot: u16,
        to: Handle,
        wr_id: u64,
        op: Op,
        local: Local,
        remote: &Remote,
        imm: Option<u32>,
    ) -> Result<()> {
        let (local, back, lent) = local.inspect_err(|_| self.free.push(slot))?;
        let request = Request {
            op,
            to,
            local,
            more: None,
            rkey: remote.key as u32,
            raddr: remote.addr,
            imm,
        };
        let w = Wr {
            wr_id,
            peer: remote.to,
            request,
            _lent: lent,
            back,
            tries: 0,
        };
        self.post(slot, w, None);
        Ok(())
    }

    /// Sends a message of the application: `Payload::Copy` in the work request itself, other memory from where it lies.
    /// `FI_EAGAIN`, `FI_EMSGSIZE`, `FI_EINVAL` for memory that is not registered.
    pub fn post_message(
        &mut self,
        wr_id: u64,
        to: &QpAddr,
        payload: Payload,
        imm: Option<u32>,
    ) -> Result<()> {
        let a = &self.dev.adapter.attr;
        let (inline, mem) = match payload {
            Payload::Copy(b) if b.len() > a.raw.inline => return Err(FI_EMSGSIZE),
            Payload::Copy(b) => (Some(b), UserMem::EMPTY),
            Payload::User(m) if m.len() > a.mtu => return Err(FI_EMSGSIZE),
            Payload::User(m) if m.is_empty() => (Some(&[][..]), m),
            Payload::User(m) => (None, m),
        };
        let (sges, n) = self.lent(&mem, false)?;
        let (slot, handle) = self.begin(to)?;
        let request = Request {
            op: Op::Send,
            to: handle,
            local: sges[0],
            more: (n > 1).then_some(sges[1]),
            rkey: 0,
            raddr: 0,
            imm,
        };
        let w = Wr {
            wr_id,
            peer: *to,
            request,
            _lent: None,
            back: None,
            tries: 0,
        };
        self.post(slot, w, inline);
        Ok(())
    }

    /// Posts a receive of the application; [`Event::Taken`] tells of its end. Errors as [`VerbsQp::post_message`].
    pub fn post_recv(&mut self, wr_id: u64, mem: UserMem) -> Result<()> {
        let (mut sges, n) = self.lent(&mem, true)?;
        let slot = self.empty.pop().ok_or(FI_EAGAIN)?;
        if n == 0 {
            // An adapter wants a piece: one without a byte.
            sges[0] = ibv_sge {
                addr: self.tx.addr(0),
                length: 0,
                lkey: self.tx.lkey(),
            };
        }
        if let Some(at) = self.taking.get_mut(usize::from(slot)) {
            *at = wr_id;
        }
        if let Some(r) = &mut self.rings {
            r.recv(slot, sges.get(..n.max(1)).unwrap_or(&[]));
            r.ring_recv();
            return Ok(());
        }
        let mut wr = ibv_recv_wr {
            wr_id: RECV | u64::from(slot),
            next: null_mut(),
            sg_list: sges.as_mut_ptr(),
            num_sge: n.max(1) as c_int,
        };
        let mut bad = null_mut();
        // SAFETY: the request and its list live for the call; the memory is lent until the receive ends.
        let e = unsafe { ((*(*self.qp).context).post_recv)(self.qp, &mut wr, &mut bad) };
        if e != 0 {
            self.empty.push(slot);
            return Err(FI_EAGAIN);
        }
        Ok(())
    }
}

impl Drop for VerbsQp {
    fn drop(&mut self) {
        let lib = self.dev.adapter.lib;
        if !self.qp.is_null() {
            self.ring();
            let until = Instant::now() + LINGER;
            let mut events = Events::default();
            while !self.idle() && Instant::now() < until {
                self.poll(&mut events);
                events.list.clear();
                std::thread::yield_now();
            }
        }
        // SAFETY: each was made once and is destroyed once, in the order of their use.
        unsafe {
            if !self.qp.is_null() {
                (lib.ibv_destroy_qp)(self.qp);
            }
            self.hear();
            (lib.ibv_destroy_cq)(self.cq);
            if !self.channel.is_null() {
                (lib.ibv_destroy_comp_channel)(self.channel);
            }
        }
    }
}

/// How a completion ended, in the adapter's own words.
fn status_of(wc: &ibv_wc) -> Status {
    match wc.status {
        0 => Status::Ok,
        _ => Status::from_code(wc.vendor_err as i32).unwrap_or(Status::LocalQpError),
    }
}

#[cold]
fn unregistered(addr: usize, len: usize, pieces: usize) -> crate::core::Errno {
    crate::warn_log!(
        FI_LOG_EP_DATA,
        "buffer of {len} bytes at {addr:#x}: wanted at most {pieces} pieces, each in memory registered with \
         fi_mr_reg (FI_MR_LOCAL), for FI_RECV or FI_READ where the adapter writes to it"
    );
    FI_EINVAL
}

/// One log line, and the errno.
fn failed(what: &str, adapter: &str) -> crate::core::Errno {
    let e = std::io::Error::last_os_error();
    crate::warn_log!(
        FI_LOG_EP_CTRL,
        "{adapter}: {what} cannot be had: {e}. ENOMEM: too many are open, or the locked memory \
         (ulimit -l) is used up"
    );
    match e.raw_os_error() {
        Some(libc::ENOMEM) => FI_ENOMEM,
        _ => FI_EIO,
    }
}

/// A descriptor that becomes readable when its time has come.
fn timer() -> Result<OwnedFd> {
    // SAFETY: plain numbers are passed; the descriptor is owned from here on.
    unsafe {
        let flags = libc::TFD_NONBLOCK | libc::TFD_CLOEXEC;
        let fd = libc::timerfd_create(libc::CLOCK_MONOTONIC, flags);
        if fd < 0 {
            return Err(FI_ENOMEM);
        }
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// From now on every so often, or never.
fn tick(t: &OwnedFd, every: Duration) {
    let every = libc::timespec {
        tv_sec: every.as_secs() as _,
        tv_nsec: every.subsec_nanos() as _,
    };
    let often = libc::itimerspec {
        it_interval: every,
        it_value: every,
    };
    // SAFETY: the descriptor is a timer's, the setting valid.
    unsafe { libc::timerfd_settime(t.as_raw_fd(), 0, &often, null_mut()) };
}

fn read_timer(t: &OwnedFd) {
    let mut b = [0u8; 8];
    // SAFETY: room for the eight bytes of a timer.
    unsafe { libc::read(t.as_raw_fd(), b.as_mut_ptr().cast(), b.len()) };
}
