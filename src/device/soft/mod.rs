//! The software adapter: reliable, unordered datagrams and RDMA over UDP.
//!
//! A queue pair is a UDP socket. Its address consists of the socket's IP address and port, a random
//! key that distinguishes queue pairs that reuse the port, and a random token that a peer presents
//! when it opens a session. There is no daemon: the target's process executes RDMA, in whichever
//! thread drives the engine. The adapter replaces an EFA adapter where there is none, and appears
//! as `efasoft0`.
//!
//! This file opens queue pairs. `engine` runs one queue pair; `engine::session` decides which
//! datagrams the queue pair accepts. `flow` adds reliability, `packet` is the wire format,
//! `mem_table` (in `device`) has the regions that peers may access, `sock` makes the system calls,
//! and `thread` drives queue pairs whose application does not poll. `admission` authenticates peers
//! on this host that connect to a service. `seal` and `keys` encrypt and authenticate datagrams
//! that leave the host.

mod admission;
mod burst;
mod engine;
mod flow;
#[cfg(any(test, feature = "internals"))]
pub mod hostile;
mod keys;

pub mod packet;
mod poll;
mod seal;
mod sock;
mod thread;

use super::host::{now, secret};
use super::interfaces::interface_addrs;
use super::mem_table::MemTable;
pub use super::mem_table::Naming;
use super::{
    gid_of, AdapterAttr, AmHeader, Caps, Data, Device, DirectLimits, Event, Events, HeldPeers,
    MrObserver, PacketQp, QpAddr, QueuePair, RawQp,
};
use crate::core::params;
use crate::core::Result;
use crate::hmem::{InjectBuf, UserMem};
use crate::transport::{
    Completion, Payload, PeerId, Report, Status, Transport, TransportCaps, Verdict,
};
use crate::types::*;
use burst::PostBurst;
use engine::{Engine, EngineConfig};
use poll::PolledEvents;
use sock::Sock;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;
use thread::SharedEngine;

/// Socket buffer of a queue pair, bytes.
const SOCKET_BYTES: usize = 16 << 20;
/// Largest read or write, bytes.
const MAX_RDMA: usize = 1 << 30;
/// Attempts to bind consecutive ports for a group of queue pairs.
const GROUP_TRIES: usize = 64;

/// A software adapter, opened by one domain.
pub struct SoftDevice {
    attr: AdapterAttr,
    ip: IpAddr,
    mem: Arc<MemTable>,
    mr_observer: Option<Arc<dyn MrObserver>>,
    cfg: EngineConfig,
}

/// A queue pair of a [`SoftDevice`].
pub struct SoftQp {
    shared: Arc<SharedEngine>,
    addr: QpAddr,
    /// Largest message, bytes.
    mtu: usize,
    /// The application uses the queue pair without the RDM protocol; see `send_framed`.
    raw: bool,
    /// Addresses of peers, indexed by [`PeerId`].
    peers: Vec<Option<QpAddr>>,
    /// Events of the last poll that are not taken yet.
    found: PolledEvents,
    /// Nothing was posted since the last `ring`.
    rung: bool,
    burst: PostBurst,
    depth: usize,
    /// Posted operations whose completion `poll_all` has not reported yet.
    outstanding: usize,
}

/// Key of a queue pair whose number the application chose (a service given to fi_getinfo(3)). Peers
/// compute the key from the number, so that host and service suffice to address the queue pair. The
/// key is not a secret, and no secret is derived from it.
pub fn public_key(qpn: u16) -> u32 {
    0x0efa_0000 | u32::from(qpn)
}

fn key_for(qpn: u16) -> Result<u32> {
    Ok(match qpn {
        0 => (secret()? as u32).max(1),
        n => public_key(n),
    })
}

fn interface_mtu(name: &str) -> Option<usize> {
    let text = std::fs::read_to_string(format!("/sys/class/net/{name}/mtu")).ok()?;
    text.trim().parse().ok()
}

/// Address of the named interface, IPv4 before IPv6.
fn interface_addr(name: &str) -> Option<IpAddr> {
    // Link-local addresses need a scope that a GID cannot carry.
    let usable = |ip: &IpAddr| match ip {
        IpAddr::V4(_) => true,
        IpAddr::V6(ip) => ip.segments()[0] & 0xffc0 != 0xfe80,
    };
    let addrs = interface_addrs();
    let own = addrs.iter().filter(|a| a.name == name).map(|a| a.ip);
    own.filter(usable).min_by_key(IpAddr::is_ipv6)
}

/// The interface that has the address.
fn interface_of(ip: &IpAddr) -> Option<String> {
    let addrs = interface_addrs();
    addrs.into_iter().find(|a| a.ip == *ip).map(|a| a.name)
}

fn link_of(netdev: &str) -> (usize, u64, bool) {
    let mtu = interface_mtu(netdev).unwrap_or(1500);
    let read = |f: &str| std::fs::read_to_string(format!("/sys/class/net/{netdev}/{f}")).ok();
    let speed = read("speed")
        .and_then(|s| s.trim().parse::<i64>().ok())
        .filter(|s| *s > 0);
    let up = read("operstate").is_none_or(|s| s.trim() != "down");
    (mtu, speed.map_or(0, |s| s as u64 * 1_000_000), up)
}

impl SoftDevice {
    /// Attributes and IP address of the adapter, without opening a socket: those of loopback, or of
    /// the interface that `FI_EFA_SOFT_IFACE` names. `FI_ENODEV` (with a log line) when that
    /// interface has no address.
    pub fn discover() -> Result<(AdapterAttr, IpAddr)> {
        let (netdev, ip) = match params::efa().soft_iface.clone() {
            None => ("lo".to_string(), IpAddr::V4(Ipv4Addr::LOCALHOST)),
            Some(name) => {
                let ip = name
                    .parse()
                    .ok()
                    .or_else(|| interface_addr(&name))
                    .ok_or_else(|| {
                        crate::warn_log!(
                            FI_LOG_FABRIC,
                            "FI_EFA_SOFT_IFACE={name}: no such interface, or it has no address"
                        );
                        FI_ENODEV
                    })?;
                (interface_of(&ip).unwrap_or(name), ip)
            }
        };
        let (link_mtu, speed, up) = link_of(&netdev);
        let segment = engine::segment_for(link_mtu, ip.is_ipv6(), keys::wanted(ip));
        let depth = params::efa().tx_queue_size.clamp(2048, 65536);
        let attr = AdapterAttr {
            name: "efasoft0".into(),
            mtu: engine::message_for(segment),
            max_rdma: MAX_RDMA,
            sq_depth: depth,
            sends_most: depth,
            rq_depth: 4096,
            recvs_most: 65536,
            gid: gid_of(ip),
            speed,
            up,
            link_mtu,
            caps: Caps {
                rdma_read: true,
                rdma_write: true,
                unsolicited: true,
                homogeneous: true,
                remote_events: true,
                sessions: true,
                application_keys: SoftDevice::scalable(),
                // 64 random bits.
                key_size: 8,
            },
            raw: DirectLimits {
                sends: 2048,
                recvs: 4096,
                inline: 4096,
                pieces: crate::hmem::MAX_SEGS,
                // A message waits at its receiver until a receive is posted.
                rnr_limit: false,
                wide: None,
                counters: 0,
                counts_to: 0,
            },
            identity: None,
        };
        Ok((attr, ip))
    }

    /// Whether every domain uses the application's keys and offset addressing, for applications
    /// that rely on both whatever mr_mode they are given.
    fn scalable() -> bool {
        params::efa().soft_mr_mode.as_deref() == Some("scalable")
    }

    /// Reports every region registered or closed from now on to `d`.
    pub fn publish(&mut self, d: Arc<dyn MrObserver>) {
        self.mr_observer = Some(d);
    }

    /// Opens a queue pair on `sock`; `service`: the application chose the queue pair's number.
    fn qp(&self, sock: Sock, (qkey, token): (u32, u64), service: bool) -> Result<SoftQp> {
        let addr = QpAddr {
            gid: self.attr.gid,
            qpn: sock.port(),
            qkey,
            token,
        };
        let listener = match service {
            true => Some(admission::listen(&addr)?),
            false => None,
        };
        let mem = Arc::clone(&self.mem);
        let engine = Engine::new(addr, sock, mem, self.cfg.clone(), service)?;
        let shared = SharedEngine::start(engine, listener)?;
        Ok(SoftQp {
            shared,
            addr,
            mtu: self.attr.mtu,
            raw: false,
            peers: Vec::new(),
            found: PolledEvents::default(),
            rung: true,
            burst: PostBurst::default(),
            depth: self.cfg.depth,
            outstanding: 0,
        })
    }

    /// Opens the adapter for a domain.
    pub fn open(naming: Naming) -> Result<SoftDevice> {
        let (attr, ip) = Self::discover()?;
        let cfg = EngineConfig {
            segment: engine::segment_for(attr.link_mtu, ip.is_ipv6(), keys::wanted(ip)),
            message: attr.mtu,
            // A quarter more than `sq_depth`: one peer may fill `sq_depth`, and others still have
            // room.
            depth: attr.sq_depth + attr.sq_depth / 4,
            timeout: params::efa().peer_timeout_ms() * 1_000_000,
            gso: !ip.is_loopback(),
            fault: params::efa().soft_fault.clone(),
            keys: keys::load(ip)?,
        };
        if !ip.is_loopback() && cfg.keys.is_none() {
            crate::warn_log!(
                FI_LOG_FABRIC,
                "the software adapter listens on {ip}: its packets are neither encrypted nor \
                 authenticated, use a trusted network or FI_EFA_SOFT_KEY_FILE"
            );
        }
        Ok(SoftDevice {
            attr,
            ip,
            mem: Arc::new(MemTable::new(naming)),
            mr_observer: None,
            cfg,
        })
    }
}

impl Device for SoftDevice {
    type Qp = SoftQp;

    fn attr(&self) -> &AdapterAttr {
        &self.attr
    }

    fn open_qp(&self, qpn: u16, _: PacketQp) -> Result<SoftQp> {
        let names = (key_for(qpn)?, secret()?);
        self.qp(Sock::bind(self.ip, qpn, SOCKET_BYTES)?, names, qpn != 0)
    }

    fn open_raw(&self, wanted: &RawQp) -> Result<SoftQp> {
        let mut q = self.open_qp(wanted.qpn, PacketQp::DEFAULT)?;
        q.raw = true;
        Ok(q)
    }

    fn open_group(&self, qpn: u16, count: usize) -> Result<Vec<SoftQp>> {
        let names = (key_for(qpn)?, secret()?);
        for _ in 0..GROUP_TRIES {
            let first = Sock::bind(self.ip, qpn, SOCKET_BYTES)?;
            let base = first.port();
            let rest: Result<Vec<Sock>> = (1..count as u16)
                .map(|i| {
                    let port = base.checked_add(i).ok_or(FI_EADDRINUSE)?;
                    Sock::bind(self.ip, port, SOCKET_BYTES)
                })
                .collect();
            if let Ok(rest) = rest {
                return core::iter::once(first)
                    .chain(rest)
                    .map(|s| self.qp(s, names, qpn != 0))
                    .collect();
            }
        }
        crate::warn_log!(
            FI_LOG_EP_CTRL,
            "no {count} free ports in a row for the contexts of a scalable endpoint"
        );
        Err(FI_EADDRINUSE)
    }

    fn reg_mr(&self, mem: UserMem, access: u64, wanted: Option<u64>) -> Result<u64> {
        let (key, base) = self.mem.insert(mem, access, wanted)?;
        if let Some(d) = &self.mr_observer {
            d.add(key, base, &mem, access);
        }
        Ok(key)
    }

    fn dereg_mr(&self, key: u64) -> Result<()> {
        // First: once the key is free, another thread may register it anew.
        if let Some(d) = &self.mr_observer {
            d.remove(key);
        }
        self.mem.remove(key)
    }

    fn target(
        &self,
        key: u64,
        addr: u64,
        len: u64,
        access: u64,
    ) -> core::result::Result<UserMem, Status> {
        self.mem.access().find(key, addr, len, access)
    }
}

impl Transport for SoftQp {
    type Header<'a> = AmHeader<'a>;

    fn caps(&self, _: PeerId) -> TransportCaps {
        TransportCaps {
            am_short: self.mtu,
            am_bcopy: self.mtu,
            am_zcopy: self.mtu,
            put: MAX_RDMA,
            get: MAX_RDMA,
            atomic: false,
        }
    }

    fn am_short(&mut self, done: Completion, head: AmHeader, data: InjectBuf) -> Verdict {
        self.send_framed(done, head, Payload::Inject(data))
    }

    fn am_bcopy(&mut self, done: Completion, head: AmHeader, data: Payload) -> Verdict {
        match data {
            Payload::Inject(_) => self.send_framed(done, head, data),
            lent => {
                let mem = lent.lent();
                let mut copy = vec![0; mem.len()];
                mem.load(0, &mut copy);
                self.send_framed(done, head, Payload::Inject(copy.as_slice().into()))
            }
        }
    }

    fn am_zcopy(&mut self, done: Completion, head: AmHeader, data: Payload) -> Verdict {
        self.send_framed(done, head, data)
    }

    fn put(&mut self, done: Completion, data: Payload, imm: Option<u64>) -> Verdict {
        let imm = imm.map(|i| i as u32);
        self.post((done.peer, done.len), |e, to| {
            e.write(done, to, data, imm, now())
        })
    }

    fn get(&mut self, done: Completion, into: Payload) -> Verdict {
        self.post((done.peer, 0), |e, to| e.read(done, to, into.lent(), now()))
    }
}

impl QueuePair for SoftQp {
    fn addr(&self) -> QpAddr {
        self.addr
    }

    fn connect(&mut self, peer: PeerId, at: &QpAddr) -> Result<()> {
        let i = peer as usize;
        if self.peers.len() <= i {
            let more = i + 1 - self.peers.len();
            self.peers.try_reserve(more).map_err(|_| FI_ENOMEM)?;
            self.peers.resize(i + 1, None);
        }
        self.disconnect(peer);
        if let Some(p) = self.peers.get_mut(i) {
            *p = Some(*at);
        }
        Ok(())
    }

    #[inline]
    fn connected(&self, peer: PeerId) -> bool {
        self.peer(peer).is_ok()
    }

    fn busy_with(&self, peer: PeerId) -> bool {
        self.shared.lock().busy_with(peer)
    }

    fn disconnect(&mut self, peer: PeerId) {
        let known = self.peers.get_mut(peer as usize).and_then(Option::take);
        if let Some(at) = known {
            self.shared.lock().forget(&at);
        }
    }

    fn ring(&mut self) {
        if !self.rung {
            self.rung = true;
            self.shared.lock().ring(now());
        }
    }

    fn ring_burst(&mut self) {
        if !self.rung && !self.burst.waits() {
            self.ring();
        }
    }

    fn poll_all(&mut self, into: &mut Events) {
        if !self.found.rest(into) {
            self.begin_poll();
            self.shared.poll(into);
        }
        if self.raw {
            let Events { list, arena } = into;
            for e in list {
                if let Event::Recv { data, imm, .. } = e {
                    let whole = core::mem::replace(data, Data::Arena(0, 0));
                    (*data, *imm) = unframe(arena, whole);
                }
            }
        }
        let done = into
            .list
            .iter()
            .filter(|e| matches!(e, Event::Done { .. }))
            .count();
        self.outstanding -= done.min(self.outstanding);
    }

    fn idle(&self) -> bool {
        self.outstanding == 0
    }

    fn room(&self) -> bool {
        self.outstanding < self.depth
    }

    fn room_for(&self, peer: PeerId, count: usize) -> bool {
        let engine = || {
            self.peer(peer)
                .is_ok_and(|to| self.shared.lock().room(&to, count))
        };
        self.outstanding + count <= self.depth && engine()
    }

    fn expect(&mut self, peer: &QpAddr, on: bool) {
        self.shared.lock().expect(peer, on, now());
    }

    fn hold(&mut self, begins: fn(&[u8]) -> bool, held: HeldPeers) {
        self.shared.lock().hold = (begins, held);
    }

    fn cancel_reads(&mut self, to: Report) {
        self.shared.lock().cancel_reads(to);
    }

    fn report_remote(&mut self) {
        self.shared.lock().remote_events = true;
    }

    fn wait_fd(&self) -> i32 {
        self.shared.event_fd()
    }

    fn arm(&mut self) -> bool {
        !self.found.any() && self.shared.arm()
    }

    fn armed(&self) -> bool {
        self.shared.armed()
    }
}

impl SoftQp {
    /// Before a poll of the engine, which also sends off what was posted.
    #[inline]
    fn begin_poll(&mut self) {
        self.shared.record_poll();
        self.burst.polled();
        self.rung = true;
    }

    /// Address of a peer.
    #[inline]
    fn peer(&self, peer: PeerId) -> Result<QpAddr> {
        let known = self.peers.get(peer as usize).copied().flatten();
        known.ok_or(FI_EINVAL)
    }

    /// Hands the engine an operation that brings a peer so many bytes.
    fn post(
        &mut self,
        (peer, len): (PeerId, usize),
        f: impl FnOnce(&mut Engine, &QpAddr) -> Result<()>,
    ) -> Verdict {
        // A completion that no poll has reported counts as outstanding: the backlog stores it.
        if !self.room() {
            return Verdict::NoResources;
        }
        let posted = self.peer(peer).and_then(|to| {
            let mut e = self.shared.lock();
            // The thread waits without a time-out while a queue pair that it drives has no timers.
            let asleep = self.shared.is_thread_driven() && !e.busy();
            let posted = f(&mut e, &to);
            drop(e);
            if asleep {
                thread::wake();
            }
            posted
        });
        if posted.is_ok() {
            self.rung = false;
            (self.burst.to, self.burst.len) = (peer, len);
            self.outstanding += 1;
        }
        Verdict::posted(posted)
    }

    /// Sends a message. On a raw queue pair a byte precedes the message, then the immediate data if
    /// there is any (see [`WITH_IMM`]).
    fn send_framed(&mut self, done: Completion, head: AmHeader, data: Payload) -> Verdict {
        let mut framed = [0; 9];
        let head = match (self.raw, head.imm) {
            (false, _) => head.as_slice(),
            (true, None) => &framed[..1],
            (true, Some(imm)) => {
                let (mark, rest) = framed.split_at_mut(1);
                mark.copy_from_slice(&[WITH_IMM]);
                rest.copy_from_slice(&imm.to_le_bytes());
                &framed[..]
            }
        };
        self.post((done.peer, done.len), |e, to| {
            e.send(done, to, head, data, now())
        })
    }
}

/// First byte of a message on a raw queue pair: eight bytes of immediate data follow.
const WITH_IMM: u8 = 1;

/// Splits a message framed by [`SoftQp::send_framed`] into data and immediate data.
fn unframe(arena: &[u8], data: Data) -> (Data, Option<u64>) {
    let bytes = Events::bytes(arena, &data);
    let (skip, imm) = match bytes.split_first() {
        Some((&WITH_IMM, rest)) => match rest.first_chunk::<8>() {
            Some(imm) => (9, Some(u64::from_le_bytes(*imm))),
            None => (bytes.len(), None),
        },
        Some(_) => (1, None),
        None => (0, None),
    };
    let data = match data {
        Data::Arena(from, to) => Data::Arena(from + skip as u32, to),
        Data::Own(mut v) => {
            v.drain(..skip);
            Data::Own(v)
        }
    };
    (data, imm)
}

impl Drop for SoftQp {
    /// Waits until posted operations are acknowledged, at most one second, then sends BYE.
    fn drop(&mut self) {
        let mut events = Events::default();
        thread::wait_for(Duration::from_secs(1), || {
            self.shared.poll(&mut events);
            self.shared.lock().drained()
        });
        self.shared.lock().send_bye(now());
        self.shared.stop();
    }
}

#[cfg(test)]
mod tests;
