//! Opening a queue pair: its bounce buffers, its completion queue, and the steps to state RTS.

use super::timer::{set_timer, timer};
use super::*;
use crate::device::AdapterAttr;
use core::mem::{size_of, zeroed};

/// Sizes of a queue pair.
struct QueueSizes {
    sends: usize,
    recvs: usize,
    /// Bytes of inline data of a request.
    inline: usize,
    /// The send queue has wide entries, for more inline data.
    wide: bool,
}

impl QueueSizes {
    fn of(attr: &AdapterAttr, mode: Mode, wanted: &RawQp) -> QueueSizes {
        let raw = &attr.raw;
        let wide = raw.wide.filter(|_| wanted.inline > raw.inline);
        let (sends, recvs, inline) = match (mode, wide) {
            (Mode::Packets, _) => {
                let sends = wanted.sends.clamp(attr.sq_depth, attr.sends_most);
                (sends, attr.rq_depth, 0)
            }
            (_, None) => (raw.sends, raw.recvs, raw.inline),
            (_, Some(w)) => (w.sends, raw.recvs, w.inline.min(wanted.inline)),
        };
        QueueSizes {
            sends,
            recvs,
            inline: inline.min(InlineData::MOST),
            wide: wide.is_some(),
        }
    }
}

impl VerbsQp {
    /// A queue pair that is ready to send and receive. `FI_ENOMEM`, `FI_EIO`.
    pub(in crate::device::verbs) fn open(
        dev: Arc<OpenAdapter>,
        mode: Mode,
        wanted: &RawQp,
    ) -> Result<VerbsQp> {
        let a = dev.adapter;
        let QueueSizes {
            sends,
            recvs,
            inline,
            wide,
        } = QueueSizes::of(&a.attr, mode, wanted);
        let (tx, rx) = match mode {
            Mode::Packets => (
                Pool::new(&dev.memory, sends, a.attr.mtu)?,
                Some(Pool::new(&dev.memory, recvs, a.attr.mtu)?),
            ),
            // Of the application's requests, only empty ones need memory of ours.
            _ => (Pool::new(&dev.memory, 1, 64)?, None),
        };
        // What can fail comes before what `drop` alone gives back.
        let (wait, timer) = (WaitSet::new()?, timer()?);
        let (channel, cq) = Self::own_queue(&dev, sends, recvs, wanted)?;
        Self::wait_for(&wait, &timer, channel);
        let mut q = VerbsQp {
            addr: QpAddr {
                gid: a.attr.gid,
                ..QpAddr::default()
            },
            dev,
            mode,
            reports_rnr: false,
            inline,
            wide,
            qp: null_mut(),
            ex: null_mut(),
            cq,
            channel,
            wait,
            timer,
            expected: HashMap::new(),
            silence_reported: Instant::now(),
            polls_since_clock: 0,
            tx,
            rx,
            recvs: Vec::new(),
            slots: Vec::new(),
            extras: Vec::new(),
            sends,
            free: (0..sends as u16).rev().collect(),
            rings: None,
            names: HashMap::default(),
            remotes: RemoteQps::default(),
            batch: Vec::with_capacity(sends),
            refused: Vec::new(),
            again: Vec::new(),
            // Slots are used from the lowest up, so that `recvs` stays short.
            empty: (0..recvs as u16).rev().collect(),
            list: [ibv_wc::default(); BATCH],
            pending: Vec::new(),
            copies_device_memory: false,
            found: FoundRegion::default(),
            senders: HashMap::default(),
            external: wanted.queues.clone(),
            read: wanted.queues.iter().flatten().any(|q| q.seen()),
            _counters: wanted.counters.iter().map(|(c, _)| Arc::clone(c)).collect(),
        };
        q.create(sends, recvs, wanted)?;
        q.refill();
        Ok(q)
    }

    /// The completion queue for what goes to no external one, as [`VerbsQp::queue`].
    fn own_queue(
        dev: &OpenAdapter,
        sends: usize,
        recvs: usize,
        wanted: &RawQp,
    ) -> Result<(*mut ibv_comp_channel, *mut ibv_cq)> {
        let attr = &dev.adapter.attr;
        let [tx_out, rx_out] = [0, 1].map(|i| wanted.queues[i].is_some());
        let entries = if tx_out { 0 } else { sends } + if rx_out { 0 } else { recvs };
        let longest = attr.identity.as_ref().map_or(usize::MAX, |i| i.cq_depth);
        match wanted.completions.min(longest) {
            more if more > entries && attr.caps.unsolicited => {
                // An adapter with shorter queues gets what its own requests need.
                Self::queue(dev, more).or_else(|_| Self::queue(dev, entries.max(1)))
            }
            _ => Self::queue(dev, entries.max(1)),
        }
    }

    /// Adds what a caller waits for: events of the channel, and a timer, which runs from the
    /// beginning where there is no channel.
    fn wait_for(wait: &WaitSet, timer: &OwnedFd, channel: *mut ibv_comp_channel) {
        wait.add(timer.as_raw_fd());
        if channel.is_null() {
            set_timer(timer, TICK);
        } else {
            // SAFETY: the channel is open, and is destroyed by `drop` alone.
            wait.add(unsafe { (*channel).fd });
        }
    }

    /// A completion queue with a channel for events, or without one where the adapter has none.
    pub(super) fn queue(
        dev: &OpenAdapter,
        entries: usize,
    ) -> Result<(*mut ibv_comp_channel, *mut ibv_cq)> {
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

    /// Creates the queue pair and moves it through INIT and RTR to RTS.
    pub(super) fn create(&mut self, sends: usize, recvs: usize, wanted: &RawQp) -> Result<()> {
        self.create_qp(sends, recvs, wanted)?;
        let a = self.dev.adapter;
        // SAFETY: the queue pair was created above, and is destroyed by `drop` alone.
        unsafe {
            self.ex = (a.lib.ibv_qp_to_qp_ex)(self.qp);
            for (c, kinds) in &wanted.counters {
                c.attach(self.qp, *kinds)?;
            }
            // The first generation (0xefa0) has two sub-queues in a completion queue, which `rings`
            // does not support.
            let first = a.attr.identity.as_ref().is_none_or(|i| i.device == 0xefa0);
            if !first && crate::core::params::efa().use_data_path_direct {
                self.rings = QueueRings::open(a.lib, self.qp, self.cq, !self.channel.is_null());
            }
            self.addr.qpn = (*self.qp).qp_num as u16;
        }
        self.addr.qkey = (crate::device::host::random() as u32 & 0x7fff_ffff) | 1;
        self.make_ready(wanted)
    }

    /// Operations that the queue pair may do (`ibv_qp_create_send_ops_flags`).
    fn operations(&self) -> u64 {
        let caps = &self.dev.adapter.attr.caps;
        let reliable = self.mode != Mode::Datagram;
        let mut ops = OP_SEND | OP_SEND_IMM;
        if caps.rdma_read && reliable {
            ops |= OP_READ;
        }
        if caps.rdma_write && reliable {
            ops |= OP_WRITE | OP_WRITE_IMM;
        }
        ops
    }

    /// Creates the queue pair, in state RESET; with service level 0 where the adapter has no other.
    fn create_qp(&mut self, sends: usize, recvs: usize, wanted: &RawQp) -> Result<()> {
        let a = self.dev.adapter;
        let caps = &a.attr.caps;
        let reliable = self.mode != Mode::Datagram;
        // SAFETY: the attributes are valid for the calls; zero is a valid value of all their
        // members.
        unsafe {
            let mut init: ibv_qp_init_attr_ex = zeroed();
            let [tx, rx] = &wanted.queues;
            init.send_cq = tx.as_ref().map_or(self.cq, |q| q.cq());
            init.recv_cq = rx.as_ref().map_or(self.cq, |q| q.cq());
            init.cap = ibv_qp_cap {
                max_send_wr: sends as u32,
                max_recv_wr: recvs as u32,
                max_send_sge: self.pieces() as u32,
                // libefa divides the depth of the receive queue by it.
                max_recv_sge: match self.mode {
                    Mode::Packets => 1,
                    _ => self.pieces() as u32,
                },
                max_inline_data: self.inline as u32,
            };
            init.qp_type = if reliable { IBV_QPT_DRIVER } else { IBV_QPT_UD };
            init.sq_sig_all = 1;
            init.comp_mask = INIT_PD | INIT_SEND_OPS;
            init.pd = self.dev.memory.pd();
            init.send_ops_flags = self.operations();
            let mut efa = efadv_qp_init_attr {
                flags: flag(wanted.unsolicited && caps.unsolicited, QP_UNSOLICITED)
                    | flag(self.wide && caps.rdma_write, QP_INLINE_WRITE),
                sl: match reliable && wanted.low_latency {
                    true => LEVEL_LOW_LATENCY,
                    false => 0,
                },
                ..efadv_qp_init_attr::default()
            };
            let len = size_of::<efadv_qp_init_attr>() as u32;
            self.qp = if reliable {
                (a.lib.efadv_create_qp_ex)(a.context, &mut init, &mut efa, len)
            } else {
                create_qp_ex(a.context, &mut init)
            };
            if self.qp.is_null() && efa.sl != 0 {
                // Adapters and releases of libefa without service levels.
                crate::info_log!(
                    FI_LOG_EP_CTRL,
                    "FI_TC_LOW_LATENCY: adapter {} has no service level {}, and gets level 0",
                    a.attr.name,
                    efa.sl
                );
                efa.sl = 0;
                self.qp = (a.lib.efadv_create_qp_ex)(a.context, &mut init, &mut efa, len);
            }
        }
        match self.qp.is_null() {
            true => Err(failed("a queue pair", &a.attr.name)),
            false => Ok(()),
        }
    }

    /// Moves the queue pair through INIT and RTR to RTS.
    fn make_ready(&mut self, wanted: &RawQp) -> Result<()> {
        let a = self.dev.adapter;
        let reliable = self.mode != Mode::Datagram;
        for (state, mut mask) in [INIT, RTR, RTS] {
            let mut attr = ibv_qp_attr {
                qp_state: state,
                port_num: 1,
                qkey: self.addr.qkey,
                rnr_retry: wanted.rnr_retry,
                ..ibv_qp_attr::default()
            };
            if state == RTS.0 && reliable && a.attr.raw.rnr_limit {
                mask |= SET_RNR_RETRY;
            }
            // SAFETY: the queue pair is destroyed by `drop` alone; the attributes are valid for the
            // call.
            if unsafe { (a.lib.ibv_modify_qp)(self.qp, &mut attr, mask) } != 0 {
                return Err(failed("a state of a queue pair", &a.attr.name));
            }
        }
        Ok(())
    }

    /// As [`Dev::keeps_order`](crate::device::any::Dev::keeps_order).
    pub fn keeps_order(&self, sends: bool) -> bool {
        let operation = if sends { WR_SEND } else { WR_RDMA_WRITE };
        let asks = |flags| {
            let query = self.dev.adapter.lib.ibv_query_qp_data_in_order?;
            // SAFETY: the queue pair is destroyed by `drop` alone.
            Some(unsafe { query(self.qp, operation, flags) } & ORDER_ALIGNED_128_BYTES != 0)
        };
        // Libraries without the second flag refuse it.
        asks(ORDER_RETURN_CAPS | ORDER_DEVICE_ONLY) == Some(true)
            || asks(ORDER_RETURN_CAPS) == Some(true)
    }

    /// The mapped queues: send queue, receive queue, completion queue. `FI_EOPNOTSUPP` where libefa
    /// does not report them.
    pub fn queues(&self) -> Result<[QueueMemory; 3]> {
        let lib = self.dev.adapter.lib;
        // SAFETY: both are destroyed by `drop` alone.
        let found = unsafe {
            (
                rings::query_wqs(lib, self.qp),
                rings::query_cq(lib, self.cq),
            )
        };
        let (Some([s, r]), Some(c)) = found else {
            return Err(FI_EOPNOTSUPP);
        };
        let of = |q: &efadv_wq_attr| QueueMemory {
            buffer: q.buffer as usize,
            doorbell: q.doorbell as usize,
            entry: q.entry_size,
            entries: q.num_entries,
            max_batch: q.max_batch,
            caps: q.caps,
        };
        Ok([of(&s), of(&r), rings::memory(&c)])
    }
}

fn flag(on: bool, bit: u16) -> u16 {
    match on {
        true => bit,
        false => 0,
    }
}

/// Logs a failed call and returns its errno.
pub(super) fn failed(what: &str, adapter: &str) -> crate::core::Errno {
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
