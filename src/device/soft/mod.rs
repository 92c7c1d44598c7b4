//! The software adapter: reliable, unordered datagrams and RDMA over UDP.
//!
//! A queue pair is a UDP socket; its address is the socket's IP address and port, a random key that
//! tells it from others with the same port, and a random token that callers have to know.
//! No daemon: RDMA is executed inside the target's process, by whichever of its threads drives the
//! engine. It stands in for an EFA adapter where there is none, and appears as `efasoft0`.
//!
//! `adapter` (here) opens queue pairs; `engine` runs one, `engine::session` says who may talk to it;
//! `flow` makes it reliable; `packet` is the wire format; `mem` what peers may touch; `sock` the
//! system calls; `thread` serves the idle; `admission` lets callers on this host find services.

mod admission;
mod engine;
mod flow;
mod mem;
pub mod packet;
mod sock;
mod thread;

use super::host::{now, secret};
use super::{
    Caps, Device, DeviceAttr, Directory, Event, Events, Payload, QpAddr, QueuePair, Raw, RawQp,
    Remote,
};
use crate::core::params;
use crate::core::Result;
use crate::hmem::UserMem;
use crate::types::*;
use engine::{Config, Engine};
use mem::MemTable;
pub use mem::Naming;
use sock::Sock;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;
use thread::Shared;

/// Socket buffer of a queue pair, bytes.
const SOCKET_BYTES: usize = 16 << 20;
/// Attempts at finding ports in a row.
const GROUP_TRIES: usize = 64;

/// A software adapter, opened by one domain.
pub struct SoftDevice {
    attr: DeviceAttr,
    ip: IpAddr,
    mem: Arc<MemTable>,
    directory: Option<Arc<dyn Directory>>,
    cfg: Config,
}

/// One of its queue pairs.
pub struct SoftQp {
    shared: Arc<Shared>,
    addr: QpAddr,
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
    pub fn discover() -> Result<(DeviceAttr, IpAddr)> {
        let (netdev, ip) = match params::efa_str("soft_iface") {
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
        let gid = match ip {
            IpAddr::V4(v) => v.to_ipv6_mapped().octets(),
            IpAddr::V6(v) => v.octets(),
        };
        let attr = DeviceAttr {
            name: "efasoft0".into(),
            mtu: engine::segment_for(link_mtu, ip.is_ipv6()),
            max_rdma: 1 << 30,
            sq_depth: params::efa_size("tx_queue_size", 0)
                .clamp(0, 65536)
                .max(2048),
            rq_depth: 4096,
            gid,
            speed,
            up,
            link_mtu,
            netdev,
            caps: Caps {
                rdma_read: true,
                rdma_write: true,
                remote_events: true,
                unsolicited: true,
                sure: true,
                sessions: true,
            },
            raw: Raw {
                sends: 2048,
                recvs: 4096,
                inline: 4096,
                pieces: crate::hmem::MAX_SEGS,
                // A message waits for its receive.
                rnr_limit: true,
                wide: None,
                counts_to: 0,
            },
            identity: None,
        };
        Ok((attr, ip))
    }

    /// Whether every domain is to have the application's keys and offsets, for applications that use
    /// those whatever mr_mode they are given.
    pub fn scalable() -> bool {
        params::efa_str("soft_mr_mode").as_deref() == Some("scalable")
    }

    /// From now on `d` hears of every region.
    pub fn publish(&mut self, d: Arc<dyn Directory>) {
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
        let shared = Shared::start(engine, listener)?;
        Ok(SoftQp {
            shared,
            addr,
            rung: true,
            depth: self.cfg.depth,
            outstanding: 0,
        })
    }

    /// Opens the adapter for a domain.
    pub fn open(naming: Naming) -> Result<SoftDevice> {
        let (attr, ip) = Self::discover()?;
        let cfg = Config {
            segment: attr.mtu,
            // One peer may use as much as was promised, and leaves some to the others.
            depth: attr.sq_depth + attr.sq_depth / 4,
            timeout: params::efa_size("soft_timeout_ms", 5000).clamp(50, 3_600_000) as u64
                * 1_000_000,
            gso: !ip.is_loopback(),
            fault: params::efa_str("soft_fault"),
        };
        if !ip.is_loopback() {
            crate::warn_log!(
                FI_LOG_FABRIC,
                "the software adapter listens on {ip}: its packets are not authenticated, use a trusted network"
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

    fn attr(&self) -> &DeviceAttr {
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
    ) -> core::result::Result<UserMem, super::Status> {
        self.mem.access().find(key, addr, len, access)
    }
}

impl QueuePair for SoftQp {
    fn addr(&self) -> QpAddr {
        self.addr
    }

    fn post_send(
        &mut self,
        wr_id: u64,
        to: &QpAddr,
        header: &[u8],
        payload: Payload,
    ) -> Result<()> {
        self.shared.lock().send(wr_id, to, header, payload, now())?;
        self.rung = false;
        self.outstanding += 1;
        Ok(())
    }

    fn post_write(
        &mut self,
        wr_id: u64,
        local: Payload,
        remote: &Remote,
        imm: Option<u32>,
    ) -> Result<()> {
        self.shared.lock().write(wr_id, local, remote, imm, now())?;
        self.rung = false;
        self.outstanding += 1;
        Ok(())
    }

    fn post_read(&mut self, wr_id: u64, local: UserMem, remote: &Remote) -> Result<()> {
        self.shared.lock().read(wr_id, local, remote, now())?;
        self.rung = false;
        self.outstanding += 1;
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

    fn cancel_reads(&mut self, wr_id: u64) {
        self.shared.lock().cancel_reads(wr_id);
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
mod tests {
    use super::*;
    use crate::device::{Data, Status};

    fn device(fault: Option<&str>) -> SoftDevice {
        let (attr, ip) = SoftDevice::discover().unwrap();
        let cfg = Config {
            segment: attr.mtu,
            depth: 256,
            timeout: 2_000_000_000,
            gso: false,
            fault: fault.map(str::to_string),
        };
        SoftDevice {
            attr,
            ip,
            mem: Arc::new(MemTable::new(Naming::default())),
            directory: None,
            cfg,
        }
    }

    fn mem(b: &mut [u8]) -> UserMem {
        // SAFETY: the tests keep their buffers alive until their operations are done.
        unsafe { UserMem::new([(b.as_mut_ptr() as *const core::ffi::c_void, b.len())]) }.unwrap()
    }

    /// Polls until `want` operations are done; messages are appended to `msgs`.
    fn drive(qp: &mut SoftQp, want: usize, msgs: &mut Vec<Vec<u8>>) -> Vec<(u64, Status)> {
        let mut done = Vec::new();
        let mut ev = Events::default();
        let t0 = now();
        while done.len() < want {
            assert!(now() - t0 < 60_000_000_000, "stuck with {done:?}");
            qp.poll(&mut ev);
            let Events { list, arena } = &mut ev;
            for e in list.drain(..) {
                match e {
                    Event::Done { wr_id, status } => done.push((wr_id, status)),
                    Event::Recv { data, .. } | Event::Stranger { data, .. } => {
                        msgs.push(Events::bytes(arena, &data).to_vec())
                    }
                    Event::WriteImm { imm, .. } => msgs.push(imm.to_le_bytes().to_vec()),
                    _ => {}
                }
            }
        }
        done
    }

    #[test]
    fn messages_and_rdma_reach_a_target_that_never_polls() {
        for fault in [None, Some("loss=5,dup=5,reorder=40,delay=500,seed=9")] {
            let (a_dev, b_dev) = (device(fault), device(fault));
            let mut a = a_dev.open_qp(0).unwrap();
            let mut b = b_dev.open_qp(0).unwrap();
            let mut far: Vec<u8> = vec![0; 3 << 20];
            let mut near: Vec<u8> = (0..3 << 20).map(|i| (i % 251) as u8).collect();
            let key = b_dev
                .reg_mr(mem(&mut far), FI_REMOTE_READ | FI_REMOTE_WRITE, None)
                .unwrap();
            let remote = Remote {
                to: b.addr(),
                addr: far.as_ptr() as u64,
                key,
            };
            a.post_send(7, &b.addr(), b"head", Payload::Copy(b"body"))
                .unwrap();
            a.post_write(1, Payload::User(mem(&mut near)), &remote, Some(77))
                .unwrap();
            a.ring();
            let mut none = Vec::new();
            let mut got = drive(&mut a, 2, &mut none);
            got.sort_unstable_by_key(|g| g.0);
            assert_eq!(got, [(1, Status::Ok), (7, Status::Ok)]);
            assert_eq!(far, near);
            let mut back = vec![0u8; 3 << 20];
            a.post_read(2, mem(&mut back), &remote).unwrap();
            a.ring();
            assert_eq!(drive(&mut a, 1, &mut none), [(2, Status::Ok)]);
            assert_eq!(back, near);
            let mut msgs = Vec::new();
            b.post_send(3, &a.addr(), b"x", Payload::Copy(b"")).unwrap();
            b.ring();
            drive(&mut b, 1, &mut msgs);
            msgs.sort();
            assert_eq!(msgs, [77u32.to_le_bytes().to_vec(), b"headbody".to_vec()]);
        }
    }

    #[test]
    fn bad_keys_and_vanished_peers_end_in_errors() {
        let (a_dev, b_dev) = (device(None), device(None));
        let mut a = a_dev.open_qp(0).unwrap();
        let b = b_dev.open_qp(0).unwrap();
        let mut far = vec![0u8; 64];
        let mut near = vec![1u8; 65];
        let key = b_dev.reg_mr(mem(&mut far), FI_REMOTE_WRITE, None).unwrap();
        let at = far.as_ptr() as u64;
        let mut none = Vec::new();
        let cases = [
            (
                Remote {
                    to: b.addr(),
                    addr: at,
                    key: key ^ 1 << 30,
                },
                Status::RemoteBadKey,
            ),
            (
                Remote {
                    to: b.addr(),
                    addr: at,
                    key,
                },
                Status::RemoteBadKey,
            ),
        ];
        for (r, want) in cases {
            a.post_write(1, Payload::User(mem(&mut near)), &r, None)
                .unwrap();
            a.ring();
            assert_eq!(drive(&mut a, 1, &mut none), [(1, want)]);
        }
        a.post_read(2, mem(&mut near).part(0, 8), &cases[1].0)
            .unwrap();
        a.ring();
        assert_eq!(drive(&mut a, 1, &mut none), [(2, Status::RemoteBadKey)]);
        assert_eq!(far, [0u8; 64]);
        // Same port, other key: the peer was restarted.
        let mut ghost = b.addr();
        ghost.qkey ^= 1;
        a.post_send(3, &ghost, b"hello?", Payload::Copy(b""))
            .unwrap();
        a.ring();
        assert_eq!(drive(&mut a, 1, &mut none), [(3, Status::RemoteBadQpn)]);
        let gone = b.addr();
        drop(b);
        a.post_send(4, &gone, b"hello?", Payload::Copy(b""))
            .unwrap();
        a.ring();
        assert_eq!(drive(&mut a, 1, &mut none), [(4, Status::RemoteBadQpn)]);
        // Nobody is left to say that it is gone.
        a.post_send(5, &gone, b"hello?", Payload::Copy(b""))
            .unwrap();
        a.ring();
        assert_eq!(
            drive(&mut a, 1, &mut none),
            [(5, Status::RemoteUnresponsive)]
        );
        assert_eq!(a.shared.lock().peer_count(), 0);
    }

    /// A socket of somebody who knows where a queue pair is, and what its packets look like.
    struct Attacker {
        sock: std::net::UdpSocket,
        to: std::net::SocketAddr,
        qkey: u32,
    }

    impl Attacker {
        fn of(victim: &SoftQp) -> Attacker {
            let sock = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            let wait = Duration::from_millis(50);
            sock.set_read_timeout(Some(wait)).unwrap();
            let addr = victim.addr();
            Attacker {
                sock,
                to: std::net::SocketAddr::from(([127, 0, 0, 1], addr.qpn)),
                qkey: addr.qkey,
            }
        }

        fn send(&self, head: packet::Head, payload: &[u8]) {
            let mut bytes = [0; packet::HEAD_MAX];
            let n = head.emit(&mut bytes);
            let whole = [&bytes[..n], payload].concat();
            self.sock.send_to(&whole, self.to).unwrap();
        }

        fn head(&self, kind: packet::Kind, dst: u64) -> packet::Head {
            packet::Head {
                session: 0,
                dst,
                src: 7,
                psn: self.qkey,
                una: 0,
                ack: None,
                src_qkey: 9,
                kind,
            }
        }

        /// The next answer.
        fn hear(&self) -> Option<packet::Head> {
            let mut bytes = [0; 2048];
            let n = self.sock.recv(&mut bytes).ok()?;
            packet::Head::parse(&bytes[..n]).map(|(h, _)| h)
        }
    }

    fn poll(qp: &mut SoftQp, times: usize) -> usize {
        let mut events = Events::default();
        let mut seen = 0;
        for _ in 0..times {
            qp.poll(&mut events);
            seen += events.list.len();
        }
        seen
    }

    #[test]
    fn who_does_not_know_the_token_gets_nothing() {
        let dev = device(None);
        let mut b = dev.open_qp(0).unwrap();
        let mut far = vec![0u8; 64];
        let access = FI_REMOTE_WRITE | FI_REMOTE_READ;
        let key = dev.reg_mr(mem(&mut far), access, None).unwrap();
        let at = far.as_ptr() as u64;
        let a = Attacker::of(&b);
        let write = packet::Kind::Write {
            op: 1,
            key,
            addr: at,
            total: 4,
            imm: None,
        };
        let read = packet::Kind::ReadReq {
            id: 1,
            key,
            addr: at,
            len: 64,
        };
        // Even the key of the region is known here; the token is not.
        for dst in [0, 1, u64::from(a.qkey), !b.addr().token] {
            for kind in [packet::Kind::Send, write, read, packet::Kind::Ping] {
                a.send(a.head(kind, dst), b"evil");
            }
            a.send(a.head(packet::Kind::Hello, dst), b"");
            assert_eq!(poll(&mut b, 20), 0);
            while let Some(h) = a.hear() {
                assert_eq!(h.kind, packet::Kind::Reset);
            }
        }
        assert_eq!(far, [0u8; 64]);
        assert_eq!(b.shared.lock().peer_count(), 0);
    }

    #[test]
    fn who_knows_the_token_must_be_reachable_and_keeps_to_its_session() {
        let (dev, other) = (device(None), device(None));
        let mut b = dev.open_qp(0).unwrap();
        let a = Attacker::of(&b);
        let token = b.addr().token;
        // Calls cost no memory, and are answered by no more than they are long.
        for _ in 0..1000 {
            a.send(a.head(packet::Kind::Hello, token), b"");
            poll(&mut b, 1);
        }
        assert_eq!(b.shared.lock().peer_count(), 0);
        let mut welcome = None;
        while let Some(h) = a.hear() {
            assert_eq!((h.kind, h.dst), (packet::Kind::Welcome, 7));
            welcome = Some(h);
        }
        let w = welcome.unwrap();
        // The token is good for the one it was given to, in its session alone.
        let c = Attacker::of(&b);
        let mut h = packet::Head {
            session: w.session,
            psn: 0,
            ..a.head(packet::Kind::Send, w.src)
        };
        c.send(h, b"stolen");
        h.session ^= 1;
        a.send(h, b"stolen");
        assert_eq!(poll(&mut b, 50), 0);
        assert_eq!(b.shared.lock().peer_count(), 0);
        h.session = w.session;
        a.send(h, b"mine");
        assert_eq!(poll(&mut b, 50), 1);
        assert_eq!(b.shared.lock().peer_count(), 1);
        // Another peer's session is out of its reach.
        let mut peer = other.open_qp(0).unwrap();
        peer.post_send(1, &b.addr(), b"x", Payload::Copy(b""))
            .unwrap();
        peer.ring();
        let mut none = Vec::new();
        drive(&mut peer, 1, &mut none);
        for kind in [packet::Kind::Reset, packet::Kind::Send] {
            h.kind = kind;
            h.src_qkey = peer.addr().qkey;
            a.send(h, b"");
        }
        poll(&mut b, 50);
        peer.post_send(2, &b.addr(), b"y", Payload::Copy(b""))
            .unwrap();
        peer.ring();
        assert_eq!(drive(&mut peer, 1, &mut none), [(2, Status::Ok)]);
    }

    #[test]
    fn peers_that_come_and_go_leave_nothing() {
        let (dev, other) = (device(None), device(None));
        let mut b = dev.open_qp(0).unwrap();
        let mut none = Vec::new();
        for i in 0..200 {
            let mut peer = other.open_qp(0).unwrap();
            peer.post_send(i, &b.addr(), b"x", Payload::Copy(b""))
                .unwrap();
            peer.ring();
            drive(&mut peer, 1, &mut none);
            poll(&mut b, 2);
        }
        poll(&mut b, 10);
        assert_eq!(b.shared.lock().peer_count(), 0);
    }

    #[test]
    fn one_peer_that_takes_nothing_leaves_room_for_others() {
        let (dev, other) = (device(None), device(None));
        let mut a = dev.open_qp(0).unwrap();
        let (stuck, mut takes) = (other.open_qp(0).unwrap(), other.open_qp(0).unwrap());
        stuck.shared.lock().hold = Some(|_| true);
        let mut posted = 0;
        while a
            .post_send(posted, &stuck.addr(), b"x", Payload::Copy(b""))
            .is_ok()
        {
            posted += 1;
        }
        a.ring();
        assert!(posted >= 200, "one peer alone had room for {posted}");
        for i in 0..50 {
            a.post_send(1000 + i, &takes.addr(), b"x", Payload::Copy(b""))
                .unwrap();
            a.ring();
            let mut none = Vec::new();
            let done = drive(&mut a, 1, &mut none);
            assert_eq!(done, [(1000 + i, Status::Ok)]);
            poll(&mut takes, 1);
        }
    }

    #[test]
    fn a_service_is_found_by_its_number_and_admits_its_own_user() {
        let (dev, other) = (device(None), device(None));
        let free = Sock::bind(IpAddr::V4(Ipv4Addr::LOCALHOST), 0, 0).unwrap();
        let port = free.port();
        drop(free);
        let b = dev.open_qp(port).unwrap();
        let mut a = other.open_qp(0).unwrap();
        let to = QpAddr {
            token: 0,
            ..b.addr()
        };
        a.post_send(1, &to, b"x", Payload::Copy(b"")).unwrap();
        a.ring();
        let mut none = Vec::new();
        assert_eq!(drive(&mut a, 1, &mut none), [(1, Status::Ok)]);
        // By UDP alone nobody gets in.
        let c = Attacker::of(&b);
        c.send(c.head(packet::Kind::Hello, 0), b"");
        assert_eq!(c.hear().map(|h| h.kind), Some(packet::Kind::Reset));
    }

    #[test]
    fn a_region_closed_during_a_read_ends_the_read_and_nothing_else() {
        let (a_dev, b_dev) = (device(None), device(None));
        let mut a = a_dev.open_qp(0).unwrap();
        let mut b = b_dev.open_qp(0).unwrap();
        // So long that it cannot be over before the region is closed.
        let mut far = vec![0u8; 256 << 20];
        let mut near = vec![0u8; 256 << 20];
        let key = b_dev.reg_mr(mem(&mut far), FI_REMOTE_READ, None).unwrap();
        let remote = Remote {
            to: b.addr(),
            addr: far.as_ptr() as u64,
            key,
        };
        a.post_read(1, mem(&mut near), &remote).unwrap();
        a.ring();
        let mut none = Vec::new();
        let mut events = Events::default();
        // The request is there when it is being answered.
        while !b.shared.lock().serves() {
            drive(&mut a, 0, &mut none);
            a.poll(&mut events);
            b.poll(&mut events);
        }
        b_dev.dereg_mr(key).unwrap();
        assert_eq!(drive(&mut a, 1, &mut none), [(1, Status::RemoteAbort)]);
        a.post_send(2, &b.addr(), b"still here", Payload::Copy(b""))
            .unwrap();
        a.ring();
        assert_eq!(drive(&mut a, 1, &mut none), [(2, Status::Ok)]);
    }

    #[test]
    fn messages_wait_for_a_receiver_that_sleeps() {
        let (a_dev, b_dev) = (device(None), device(None));
        let mut a = a_dev.open_qp(0).unwrap();
        let mut b = b_dev.open_qp(0).unwrap();
        let mut none = Vec::new();
        for i in 0..200u64 {
            a.post_send(i, &b.addr(), &i.to_le_bytes(), Payload::Copy(&[0; 1000]))
                .unwrap();
        }
        a.ring();
        assert_eq!(drive(&mut a, 200, &mut none).len(), 200);
        let mut msgs = Vec::new();
        b.post_send(1, &a.addr(), b"", Payload::Copy(b"")).unwrap();
        b.ring();
        while msgs.len() < 200 {
            drive(&mut b, 0, &mut msgs);
            let mut ev = Events::default();
            b.poll(&mut ev);
            let Events { list, arena } = &mut ev;
            for e in list.drain(..) {
                if let Event::Recv {
                    data: d @ (Data::Own(_) | Data::Arena(..)),
                    ..
                } = e
                {
                    msgs.push(Events::bytes(arena, &d).to_vec());
                }
            }
        }
        let mut seen: Vec<u8> = msgs.iter().filter_map(|m| m.first().copied()).collect();
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..200));
    }
}
