//! Enums over the adapters that a domain can have: EFA or software. A call costs one match, and no
//! dynamic dispatch.

/// How regions get their keys, and the key of a queue pair whose number the application chose.
pub use super::soft::{public_key, Naming};
use super::soft::{SoftDevice, SoftQp};
use super::verbs::{adapters, Adapter, VerbsDevice, VerbsQp};
use super::{
    AdapterAttr, AmHeader, Device, DmaBuf, Events, HeldPeers, MrObserver, PacketQp, QpAddr,
    QueueMemory, QueuePair, RawQp,
};
use crate::core::{params, Result};
use crate::hmem::{InjectBuf, Piece, UserMem};
use crate::transport::{
    Completion, Payload, PeerId, Poll, PollStatus, Report, Sink, Status, Transport, TransportCaps,
    Verdict,
};
use crate::types::*;
use std::sync::Arc;

/// The queue pair of an adapter whose queues are mapped, and what a poll of it finds.
pub use super::verbs::poll::{FilledRecv, OwnRequests, PolledPacket};
pub use super::verbs::VerbsQp as NativeQp;
/// Completion queues and counters in memory of an application or a device: only hardware has them.
pub use super::verbs::{count, CounterPlaces, ExternalCounter, ExternalQueue, QueuePlace};

/// An adapter, opened by a domain.
// One per domain, whose size does not matter.
#[allow(clippy::large_enum_variant)]
pub enum Dev {
    Soft(SoftDevice),
    Verbs(VerbsDevice),
}

/// A queue pair.
// One per endpoint, whose size does not matter.
#[allow(clippy::large_enum_variant)]
pub enum AnyQp {
    Soft(SoftQp),
    Verbs(VerbsQp),
}

/// Calls the same method of either variant.
macro_rules! each {
    ($s:expr, $t:ident, $x:ident => $call:expr) => {
        match $s {
            $t::Soft($x) => $call,
            $t::Verbs($x) => $call,
        }
    };
}

/// When the software adapter is offered (FI_EFA_SOFT).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Soft {
    /// If there is no EFA adapter.
    Auto,
    Always,
    Never,
}

fn soft() -> Soft {
    let [_, on, off] = params::SOFT_WORDS;
    match params::efa().soft.as_deref() {
        Some(word) if off.contains(&word) => Soft::Never,
        Some(word) if on.contains(&word) => Soft::Always,
        _ => Soft::Auto,
    }
}

/// The EFA adapters; none where there are some that cannot be used and FI_EFA_SOFT=on asks for the
/// software adapter.
fn hardware() -> Result<&'static [Adapter]> {
    adapters().or_else(|e| match soft() {
        Soft::Always if e != FI_EINVAL => Ok(&[]),
        _ => Err(e),
    })
}

/// The available adapters, EFA adapters first. `FI_ENODATA` when there is none, `FI_EINVAL` when
/// the job's parameters contradict each other.
pub fn list() -> Result<Vec<AdapterAttr>> {
    let mut list: Vec<AdapterAttr> = hardware()?.iter().map(|a| a.attr.clone()).collect();
    let wanted = soft();
    if wanted == Soft::Always || wanted == Soft::Auto && list.is_empty() {
        if list.is_empty() {
            crate::info_log!(
                FI_LOG_FABRIC,
                "no EFA adapter found: using the software adapter"
            );
        }
        list.push(SoftDevice::discover()?.0);
    }
    if list.is_empty() {
        crate::info_log!(FI_LOG_FABRIC, "no EFA adapter, and FI_EFA_SOFT=off");
        return Err(FI_ENODATA);
    }
    Ok(list)
}

/// Warns once that the adapter is software, unless FI_EFA_SOFT asks for that adapter: by the
/// provider's name, applications expect an EFA adapter.
fn not_hardware(attr: &AdapterAttr) {
    crate::warn_once!(
        FI_LOG_FABRIC,
        "no EFA adapter here: {} is software over UDP, and shared memory within the host \
         (FI_EFA_SOFT=on leaves this line out, FI_EFA_SOFT=off the software adapter)",
        attr.name
    );
}

impl Dev {
    /// Opens the adapter of this name; without one, the first. `FI_ENODEV` when there is none of
    /// that name.
    pub fn open(name: Option<&str>, naming: Naming) -> Result<Dev> {
        let known = hardware()?;
        let real = match name {
            Some(n) => known.iter().find(|a| a.attr.name == n),
            None => known.first().filter(|_| soft() != Soft::Always),
        };
        if let Some(a) = real {
            return Ok(Dev::Verbs(VerbsDevice::open(a, naming.local)?));
        }
        if soft() == Soft::Never {
            return Err(FI_ENODEV);
        }
        let dev = SoftDevice::open(naming)?;
        if name.is_some_and(|n| n != dev.attr().name) {
            return Err(FI_ENODEV);
        }
        if soft() == Soft::Auto {
            not_hardware(dev.attr());
        }
        Ok(Dev::Soft(dev))
    }

    /// Opens a completion queue in memory of the application's. `FI_EOPNOTSUPP` where the adapter
    /// does not support one, `FI_EINVAL`.
    pub fn open_queue(&self, entries: usize, place: &QueuePlace) -> Result<ExternalQueue> {
        match self {
            Dev::Soft(_) => no_hardware("cq_open_ext"),
            Dev::Verbs(d) => d.open_queue(entries, place),
        }
    }

    /// Opens a hardware counter of operations or of `bytes` that has to count to `most`. Errors as
    /// for [`Dev::open_queue`].
    pub fn open_counter(
        &self,
        places: &CounterPlaces,
        bytes: bool,
        most: u64,
    ) -> Result<ExternalCounter> {
        match self {
            Dev::Soft(_) => no_hardware("cntr_open_ext"),
            Dev::Verbs(d) => d.open_counter(places, bytes, most),
        }
    }

    /// Whether each aligned 128 bytes of what a peer sends, or else writes, reach memory in order:
    /// of its bytes none is there before those in front of it.
    pub fn keeps_order(&self, sends: bool) -> bool {
        match self {
            Dev::Soft(_) => false,
            Dev::Verbs(d) => d.keeps_order(sends),
        }
    }

    /// Reports regions to the observer `to` from now on.
    pub fn publish(&mut self, to: Arc<dyn MrObserver>) {
        match self {
            Dev::Soft(d) => d.publish(to),
            Dev::Verbs(d) => d.publish(to),
        }
    }
}

impl AnyQp {
    /// The queue pair of an EFA adapter, which can post the application's own messages and
    /// receives, and whose queues the fast path drives; `None` for the software adapter.
    #[inline(always)]
    pub fn native(&mut self) -> Option<&mut NativeQp> {
        match self {
            AnyQp::Verbs(q) => Some(q),
            AnyQp::Soft(_) => None,
        }
    }

    /// As [`AnyQp::native`].
    #[inline(always)]
    pub fn native_ref(&self) -> Option<&NativeQp> {
        match self {
            AnyQp::Verbs(q) => Some(q),
            AnyQp::Soft(_) => None,
        }
    }

    /// Whether [`Poll`] can deliver packets in the buffers in which they arrived.
    #[inline]
    pub fn polls_packets(&self) -> bool {
        each!(self, AnyQp, q => q.polls_packets())
    }

    /// Whether a queue pair of another process may get the number of one that has gone.
    #[inline]
    pub fn reuses_numbers(&self) -> bool {
        self.native_ref().is_some()
    }

    /// A peer's address handle. `FI_EOPNOTSUPP` where the adapter has none.
    pub fn handle_of(&mut self, to: &QpAddr) -> Result<u16> {
        self.native().ok_or(FI_EOPNOTSUPP)?.handle_of(to)
    }

    /// The mapped queues. `FI_EOPNOTSUPP` where there are none.
    pub fn queues(&mut self) -> Result<[QueueMemory; 3]> {
        self.native().ok_or(FI_EOPNOTSUPP)?.queues()
    }
}

fn no_hardware<T>(call: &str) -> Result<T> {
    crate::warn_log!(
        FI_LOG_DOMAIN,
        "{call}: this is the software adapter: wanted an EFA adapter"
    );
    Err(FI_EOPNOTSUPP)
}

impl Device for Dev {
    type Qp = AnyQp;

    fn attr(&self) -> &AdapterAttr {
        each!(self, Dev, d => d.attr())
    }

    fn open_qp(&self, qpn: u16, wanted: PacketQp) -> Result<AnyQp> {
        Ok(match self {
            Dev::Soft(d) => AnyQp::Soft(d.open_qp(qpn, wanted)?),
            Dev::Verbs(d) => AnyQp::Verbs(d.open_qp(qpn, wanted)?),
        })
    }

    fn open_raw(&self, wanted: &RawQp) -> Result<AnyQp> {
        Ok(match self {
            Dev::Soft(d) => AnyQp::Soft(d.open_raw(wanted)?),
            Dev::Verbs(d) => AnyQp::Verbs(d.open_raw(wanted)?),
        })
    }

    fn open_group(&self, qpn: u16, count: usize) -> Result<Vec<AnyQp>> {
        Ok(match self {
            Dev::Soft(d) => d
                .open_group(qpn, count)?
                .into_iter()
                .map(AnyQp::Soft)
                .collect(),
            Dev::Verbs(d) => d
                .open_group(qpn, count)?
                .into_iter()
                .map(AnyQp::Verbs)
                .collect(),
        })
    }

    fn reg_mr(&self, mem: UserMem, access: u64, wanted: Option<u64>) -> Result<u64> {
        each!(self, Dev, d => d.reg_mr(mem, access, wanted))
    }

    fn reg_dmabuf(
        &self,
        mem: UserMem,
        from: DmaBuf,
        access: u64,
        wanted: Option<u64>,
    ) -> Result<u64> {
        each!(self, Dev, d => d.reg_dmabuf(mem, from, access, wanted))
    }

    fn dereg_mr(&self, key: u64) -> Result<()> {
        each!(self, Dev, d => d.dereg_mr(key))
    }

    fn release_mr(&self, key: u64) {
        each!(self, Dev, d => d.release_mr(key))
    }

    fn target(
        &self,
        key: u64,
        addr: u64,
        len: u64,
        access: u64,
    ) -> core::result::Result<UserMem, Status> {
        each!(self, Dev, d => d.target(key, addr, len, access))
    }

    fn query_mr(&self, key: u64) -> Result<[u16; 4]> {
        each!(self, Dev, d => d.query_mr(key))
    }

    fn lkey(&self, key: u64) -> Option<u32> {
        each!(self, Dev, d => d.lkey(key))
    }

    fn reach(&self, peer: &QpAddr) -> Result<()> {
        each!(self, Dev, d => d.reach(peer))
    }
}

impl Transport for AnyQp {
    type Header<'a> = AmHeader<'a>;

    #[inline]
    fn caps(&self, peer: PeerId) -> TransportCaps {
        each!(self, AnyQp, q => q.caps(peer))
    }

    #[inline(always)]
    fn am_short(&mut self, done: Completion, head: AmHeader, data: InjectBuf) -> Verdict {
        each!(self, AnyQp, q => q.am_short(done, head, data))
    }

    #[inline]
    fn am_bcopy(&mut self, done: Completion, head: AmHeader, data: Payload) -> Verdict {
        each!(self, AnyQp, q => q.am_bcopy(done, head, data))
    }

    #[inline(always)]
    fn am_zcopy(&mut self, done: Completion, head: AmHeader, data: Payload) -> Verdict {
        each!(self, AnyQp, q => q.am_zcopy(done, head, data))
    }

    #[inline(always)]
    fn put(&mut self, done: Completion, data: Payload, imm: Option<u64>) -> Verdict {
        each!(self, AnyQp, q => q.put(done, data, imm))
    }

    #[inline(always)]
    fn get(&mut self, done: Completion, into: Payload) -> Verdict {
        each!(self, AnyQp, q => q.get(done, into))
    }
}

impl Poll for AnyQp {
    type Message<'a> = PolledPacket<'a>;

    #[inline(always)]
    fn poll<S>(&mut self, budget: usize, sink: &mut S) -> PollStatus
    where
        S: for<'a> Sink<PolledPacket<'a>>,
    {
        each!(self, AnyQp, q => q.poll(budget, sink))
    }
}

impl QueuePair for AnyQp {
    fn addr(&self) -> QpAddr {
        each!(self, AnyQp, q => q.addr())
    }

    #[inline]
    fn idle(&self) -> bool {
        each!(self, AnyQp, q => q.idle())
    }

    #[inline]
    fn room(&self) -> bool {
        each!(self, AnyQp, q => q.room())
    }

    fn room_for(&self, peer: PeerId, count: usize) -> bool {
        each!(self, AnyQp, q => q.room_for(peer, count))
    }

    fn copy_device_memory(&mut self, on: bool) {
        each!(self, AnyQp, q => q.copy_device_memory(on))
    }

    #[inline(always)]
    fn takes(&mut self, data: &Payload, key: u64) -> bool {
        each!(self, AnyQp, q => q.takes(data, key))
    }

    #[inline]
    fn connect(&mut self, peer: PeerId, at: &QpAddr) -> Result<()> {
        each!(self, AnyQp, q => q.connect(peer, at))
    }

    #[inline]
    fn connected(&self, peer: PeerId) -> bool {
        each!(self, AnyQp, q => q.connected(peer))
    }

    fn disconnect(&mut self, peer: PeerId) {
        each!(self, AnyQp, q => q.disconnect(peer))
    }

    fn busy_with(&self, peer: PeerId) -> bool {
        each!(self, AnyQp, q => q.busy_with(peer))
    }

    #[inline(always)]
    fn send_piece(
        &mut self,
        done: impl Fn() -> Completion,
        imm: Option<u64>,
        p: Piece,
        inject: bool,
    ) -> Verdict {
        each!(self, AnyQp, q => q.send_piece(done, imm, p, inject))
    }

    #[inline(always)]
    fn ring(&mut self) {
        each!(self, AnyQp, q => q.ring());
    }

    #[inline(always)]
    fn ring_burst(&mut self) {
        each!(self, AnyQp, q => q.ring_burst());
    }

    #[inline]
    fn poll_all(&mut self, into: &mut Events) {
        each!(self, AnyQp, q => q.poll_all(into));
    }

    fn expect(&mut self, peer: &QpAddr, on: bool) {
        each!(self, AnyQp, q => q.expect(peer, on));
    }

    fn hold(&mut self, begins: fn(&[u8]) -> bool, held: HeldPeers) {
        each!(self, AnyQp, q => q.hold(begins, held));
    }

    fn cancel_reads(&mut self, to: Report) {
        each!(self, AnyQp, q => q.cancel_reads(to));
    }

    fn report_remote(&mut self) {
        each!(self, AnyQp, q => q.report_remote());
    }

    fn wait_fd(&self) -> i32 {
        each!(self, AnyQp, q => q.wait_fd())
    }

    fn arm(&mut self) -> bool {
        each!(self, AnyQp, q => q.arm())
    }

    fn armed(&self) -> bool {
        each!(self, AnyQp, q => q.armed())
    }
}
