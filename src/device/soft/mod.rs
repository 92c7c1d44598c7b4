//! The software adapter: reliable, unordered datagrams and RDMA over UDP.
//!
//! A queue pair is a UDP socket; its address is the socket's IP address and port, a random key that
//! tells it from others with the same port, and a random token that callers have to know.
//! No daemon: RDMA is executed inside the target's process, by whichever of its threads drives the
//! engine. It stands in for an EFA adapter where there is none, and appears as `efasoft0`.
//!
//! `adapter` (here) opens queue pairs; `engine` runs one, `engine::session` says who may talk to
//! it; `flow` makes it reliable; `packet` is the wire format; `mem` what peers may touch; `sock`
//! the system calls; `thread` serves the idle; `admission` lets callers on this host find services;
//! `seal` and `keys` encrypt and authenticate what leaves the host.

mod admission;
mod engine;
mod flow;
#[cfg(any(test, feature = "internals"))]
pub mod hostile;
mod keys;

pub mod packet;
mod seal;
mod sock;
mod thread;

use super::host::{now, secret};
use super::mem_table::MemTable;
pub use super::mem_table::Naming;
use super::{
    AdapterAttr, Caps, Device, Event, Events, MrObserver, Payload, QpAddr, QueuePair, Raw, RawQp,
};
use crate::core::params;
use crate::core::Result;
use crate::hmem::UserMem;
use crate::transport::{Completion, PeerId, Report, Status};
use crate::types::*;
use engine::{Engine, EngineConfig};
use sock::Sock;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;
use thread::SharedEngine;

/// Socket buffer of a queue pair, bytes.
const SOCKET_BYTES: usize = 16 << 20;
/// Attempts at finding ports in a row.
const GROUP_TRIES: usize = 64;

/// A software adapter, opened by one domain.
pub struct SoftDevice {
    attr: AdapterAttr,
    ip: IpAddr,
    mem: Arc<MemTable>,
    directory: Option<Arc<dyn MrObserver>>,
    cfg: EngineConfig,
}

/// One of its queue pairs.
pub struct SoftQp {
    shared: Arc<SharedEngine>,
    addr: QpAddr,
    /// Peers' addresses, by the owner's numbers.
    peers: Vec<Option<QpAddr>>,
    /// Nothing was posted since the last `ring`.
    rung: bool,
    depth: usize,
    /// Operations posted whose end `poll` has not reported.
    outstanding: usize,
}

/// Key of a queue pair whose number the application chose (a service given to fi_getinfo(3)): it is
/// there to be found by host and service alone. No secret, and none is derived from it.
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
    let mut found: Option<IpAddr> = None;
    let mut list: *mut libc::ifaddrs = core::ptr::null_mut();
    // SAFETY: on success `list` is a list that we walk read-only and free once; every address is
    // read according to its family.
    unsafe {
        if libc::getifaddrs(&mut list) != 0 {
            return None;
        }
        let mut at = list;
        while !at.is_null() {
            let a = &*at;
            at = a.ifa_next;
            if a.ifa_addr.is_null()
                || core::ffi::CStr::from_ptr(a.ifa_name).to_bytes() != name.as_bytes()
            {
                continue;
            }
            match i32::from((*a.ifa_addr).sa_family) {
                libc::AF_INET => {
                    let s = a.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned();
                    found = Some(IpAddr::V4(Ipv4Addr::from(s.sin_addr.s_addr.to_ne_bytes())));
                    break;
                }
                libc::AF_INET6 if found.is_none() => {
                    let s = a.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned();
                    let ip = std::net::Ipv6Addr::from(s.sin6_addr.s6_addr);
                    // Link-local addresses need a scope that a GID cannot carry.
                    if ip.segments()[0] & 0xffc0 != 0xfe80 {
                        found = Some(IpAddr::V6(ip));
                    }
                }
                _ => {}
            }
        }
        libc::freeifaddrs(list);
    }
    found
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
    /// What the adapter would be, without opening anything: loopback, or the interface that
    /// `FI_EFA_SOFT_IFACE` names. `FI_ENODEV` (with a log line) when that has no address.
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
                (name, ip)
            }
        };
        let (link_mtu, speed, up) = link_of(&netdev);
        let attr = AdapterAttr {
            name: "efasoft0".into(),
            mtu: engine::segment_for(link_mtu, ip.is_ipv6(), keys::wanted(ip)),
            max_rdma: 1 << 30,
            sq_depth: params::efa().tx_queue_size.clamp(2048, 65536),
            rq_depth: 4096,
            gid: engine::gid_of(ip),
            speed,
            up,
            link_mtu,
            caps: Caps {
                rdma_read: true,
                rdma_write: true,
                unsolicited: true,
                homogeneous: true,
                sessions: true,
                application_keys: SoftDevice::scalable(),
                // 64 random bits.
                key_size: 8,
            },
            raw: Raw {
                sends: 2048,
                recvs: 4096,
                inline: 4096,
                pieces: crate::hmem::MAX_SEGS,
                // A message waits for its receive.
                rnr_limit: true,
                wide: None,
                counters: 0,
                counts_to: 0,
            },
            identity: None,
        };
        Ok((attr, ip))
    }

    /// Whether every domain is to have the application's keys and offsets, for applications that
    /// use those whatever mr_mode they are given.
    fn scalable() -> bool {
        params::efa().soft_mr_mode.as_deref() == Some("scalable")
    }

    /// From now on `d` hears of every region.
    pub fn publish(&mut self, d: Arc<dyn MrObserver>) {
        self.directory = Some(d);
    }

    /// A queue pair on `sock`; `service`: its number is the application's choice.
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
            peers: Vec::new(),
            rung: true,
            depth: self.cfg.depth,
            outstanding: 0,
        })
    }

    /// Opens the adapter for a domain.
    pub fn open(naming: Naming) -> Result<SoftDevice> {
        let (attr, ip) = Self::discover()?;
        let cfg = EngineConfig {
            segment: attr.mtu,
            // One peer may use as much as was promised, and leaves some to the others.
            depth: attr.sq_depth + attr.sq_depth / 4,
            timeout: params::efa().soft_timeout_ms.clamp(50, 3_600_000) as u64 * 1_000_000,
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
            directory: None,
            cfg,
        })
    }
}

impl Device for SoftDevice {
    type Qp = SoftQp;

    fn attr(&self) -> &AdapterAttr {
        &self.attr
    }

    fn open_qp(&self, qpn: u16) -> Result<SoftQp> {
        let names = (key_for(qpn)?, secret()?);
        self.qp(Sock::bind(self.ip, qpn, SOCKET_BYTES)?, names, qpn != 0)
    }

    fn open_raw(&self, wanted: &RawQp) -> Result<SoftQp> {
        self.open_qp(wanted.qpn)
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
        if let Some(d) = &self.directory {
            d.add(key, base, &mem, access);
        }
        Ok(key)
    }

    fn dereg_mr(&self, key: u64) -> Result<()> {
        self.mem.remove(key)?;
        if let Some(d) = &self.directory {
            d.remove(key);
        }
        Ok(())
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
        if let Some(p) = self.peers.get_mut(i) {
            *p = Some(*at);
        }
        Ok(())
    }

    /// A peer whose token is not known is asked about again: it may be known by now.
    #[inline]
    fn connected(&self, peer: PeerId) -> bool {
        self.peer(peer).is_ok_and(|a| a.token != 0)
    }

    fn disconnect(&mut self, peer: PeerId) {
        if let Some(p) = self.peers.get_mut(peer as usize) {
            *p = None;
        }
    }

    fn post_send(&mut self, done: Completion, header: &[u8], payload: Payload) -> Result<()> {
        let to = self.peer(done.peer)?;
        self.shared.lock().send(done, &to, header, payload, now())?;
        self.posted();
        Ok(())
    }

    fn post_write(&mut self, done: Completion, local: Payload, imm: Option<u32>) -> Result<()> {
        let to = self.peer(done.peer)?;
        self.shared.lock().write(done, &to, local, imm, now())?;
        self.posted();
        Ok(())
    }

    fn post_read(&mut self, done: Completion, local: UserMem) -> Result<()> {
        let to = self.peer(done.peer)?;
        self.shared.lock().read(done, &to, local, now())?;
        self.posted();
        Ok(())
    }

    fn ring(&mut self) {
        if !self.rung {
            self.rung = true;
            self.shared.lock().ring(now());
        }
    }

    fn poll(&mut self, into: &mut Events) {
        self.shared.polled();
        self.rung = true;
        self.shared.lock().poll(into, now());
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

    fn expect(&mut self, peer: &QpAddr, on: bool) {
        self.shared.lock().expect(peer, on, now());
    }

    fn hold(&mut self, held: Option<fn(&[u8]) -> bool>) {
        self.shared.lock().hold = held;
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
        self.shared.arm()
    }

    fn armed(&self) -> bool {
        self.shared.armed()
    }
}

impl SoftQp {
    /// Address of a peer.
    #[inline]
    fn peer(&self, peer: PeerId) -> Result<QpAddr> {
        let known = self.peers.get(peer as usize).copied().flatten();
        known.ok_or(FI_EINVAL)
    }

    /// An operation was posted.
    fn posted(&mut self) {
        self.rung = false;
        self.outstanding += 1;
    }
}

impl Drop for SoftQp {
    /// What was posted still goes out: closing waits for its acknowledgement, a second at most.
    fn drop(&mut self) {
        let mut events = Events::default();
        thread::wait_for(Duration::from_secs(1), || {
            let mut e = self.shared.lock();
            e.poll(&mut events, now());
            e.drained()
        });
        self.shared.lock().farewell(now());
        self.shared.stop();
    }
}

#[cfg(test)]
mod tests;
