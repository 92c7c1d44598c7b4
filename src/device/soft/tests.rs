//! Tests of queue pairs of one process with each other and against an attacker.

use super::*;
use crate::device::verbs::poll::PolledPacket;
use crate::device::Data;
use crate::hmem::fake;
use crate::transport::{Flow, Poll, RemoteAddr, Sink};

fn device(fault: Option<&str>) -> SoftDevice {
    device_with(fault, None)
}

/// A device whose packets are sealed by the keys in this text.
fn sealed(text: &str) -> SoftDevice {
    device_with(None, Some(text))
}

fn device_with(fault: Option<&str>, keys: Option<&str>) -> SoftDevice {
    let (attr, ip) = SoftDevice::discover().unwrap();
    let cfg = EngineConfig {
        segment: attr.mtu,
        message: attr.mtu,
        depth: 256,
        timeout: 2_000_000_000,
        gso: keys.is_some(),
        fault: fault.map(str::to_string),
        keys: keys.map(|text| Arc::new(keys::Keys::parse(text).unwrap())),
    };
    SoftDevice {
        attr,
        ip,
        mem: Arc::new(MemTable::new(Naming::default())),
        mr_observer: None,
        cfg,
    }
}

fn mem(b: &mut [u8]) -> UserMem {
    // SAFETY: the tests keep their buffers alive until their operations are done.
    unsafe { UserMem::new([(b.as_mut_ptr() as *const core::ffi::c_void, b.len())]) }.unwrap()
}

/// Memory of a queue pair.
#[derive(Clone, Copy)]
struct RemoteRegion {
    to: QpAddr,
    addr: u64,
    key: u64,
}

/// A payload that posting copies.
fn inject(b: &[u8]) -> Payload<'_> {
    Payload::Inject(b.into())
}

/// Operations that the tests tell apart by their context.
trait PostById {
    fn send(&mut self, id: u64, to: &QpAddr, head: &[u8], payload: Payload) -> Result<()>;
    fn write(&mut self, id: u64, local: Payload, r: &RemoteRegion, imm: Option<u64>) -> Result<()>;
    fn read(&mut self, id: u64, local: UserMem, r: &RemoteRegion) -> Result<()>;
}

fn completion(id: u64, r: Option<&RemoteRegion>) -> Completion {
    Completion {
        context: id as usize,
        remote: r.map_or(RemoteAddr::default(), |r| RemoteAddr {
            addr: r.addr,
            key: r.key,
        }),
        ..Completion::default()
    }
}

impl PostById for SoftQp {
    fn send(&mut self, id: u64, to: &QpAddr, head: &[u8], payload: Payload) -> Result<()> {
        self.connect(0, to)?;
        let head = AmHeader::bytes(head);
        self.am_zcopy(completion(id, None), head, payload).result()
    }
    fn write(&mut self, id: u64, local: Payload, r: &RemoteRegion, imm: Option<u64>) -> Result<()> {
        self.connect(0, &r.to)?;
        self.put(completion(id, Some(r)), local, imm).result()
    }
    fn read(&mut self, id: u64, local: UserMem, r: &RemoteRegion) -> Result<()> {
        self.connect(0, &r.to)?;
        self.get(completion(id, Some(r)), Payload::User(&local))
            .result()
    }
}

/// Polls once. Returns the operations that are done; messages are appended to `msgs`.
fn drive_once(qp: &mut SoftQp, msgs: &mut Vec<Vec<u8>>) -> Vec<(u64, Status)> {
    let mut done = Vec::new();
    let mut ev = Events::default();
    qp.poll_all(&mut ev);
    let Events { list, arena } = &mut ev;
    for e in list.drain(..) {
        match e {
            Event::Done { done: d, status } => done.push((d.context as u64, status)),
            Event::Recv { data, .. } | Event::UnknownSender { data, .. } => {
                msgs.push(Events::bytes(arena, &data).to_vec())
            }
            Event::WriteImm { imm, .. } => msgs.push(imm.to_le_bytes().to_vec()),
            _ => {}
        }
    }
    done
}

/// Polls until `want` operations are done; messages are appended to `msgs`.
fn drive(qp: &mut SoftQp, want: usize, msgs: &mut Vec<Vec<u8>>) -> Vec<(u64, Status)> {
    let mut done = Vec::new();
    let t0 = now();
    while done.len() < want {
        assert!(now() - t0 < 60_000_000_000, "stuck with {done:?}");
        done.extend(drive_once(qp, msgs));
    }
    done
}

#[test]
fn messages_and_rdma_reach_a_target_that_never_polls() {
    let bad = Some("loss=5,dup=5,reorder=40,delay=500,seed=9");
    let key = "5e".repeat(32);
    let key = Some(key.as_str());
    for (fault, key) in [(None, None), (bad, None), (None, key), (bad, key)] {
        let (a_dev, b_dev) = (device_with(fault, key), device_with(fault, key));
        let mut a = a_dev.open_qp(0, RnrPolicy::FOR_EVER).unwrap();
        let mut b = b_dev.open_qp(0, RnrPolicy::FOR_EVER).unwrap();
        let mut far: Vec<u8> = vec![0; 3 << 20];
        let mut near: Vec<u8> = (0..3 << 20).map(|i| (i % 251) as u8).collect();
        let key = b_dev
            .reg_mr(mem(&mut far), FI_REMOTE_READ | FI_REMOTE_WRITE, None)
            .unwrap();
        let remote = RemoteRegion {
            to: b.addr(),
            addr: far.as_ptr() as u64,
            key,
        };
        a.send(7, &b.addr(), b"head", inject(b"body")).unwrap();
        a.write(1, Payload::User(&mem(&mut near)), &remote, Some(77))
            .unwrap();
        a.ring();
        let mut none = Vec::new();
        let mut got = drive(&mut a, 2, &mut none);
        got.sort_unstable_by_key(|g| g.0);
        assert_eq!(got, [(1, Status::Ok), (7, Status::Ok)]);
        assert_eq!(far, near);
        let mut back = vec![0u8; 3 << 20];
        a.read(2, mem(&mut back), &remote).unwrap();
        a.ring();
        assert_eq!(drive(&mut a, 1, &mut none), [(2, Status::Ok)]);
        assert_eq!(back, near);
        let mut msgs = Vec::new();
        b.send(3, &a.addr(), b"x", inject(b"")).unwrap();
        b.ring();
        drive(&mut b, 1, &mut msgs);
        msgs.sort();
        assert_eq!(msgs, [77u32.to_le_bytes().to_vec(), b"headbody".to_vec()]);
    }
}

#[test]
fn device_memory_goes_through_copies_of_the_library() {
    let bad = Some("loss=5,dup=5,reorder=40,delay=500,seed=9");
    for fault in [None, bad] {
        let (a_dev, b_dev) = (device(fault), device(fault));
        let mut a = a_dev.open_qp(0, RnrPolicy::FOR_EVER).unwrap();
        let mut b = b_dev.open_qp(0, RnrPolicy::FOR_EVER).unwrap();
        let bytes: Vec<u8> = (0..300_000).map(|i| (i % 251) as u8).collect();
        let (near, back) = (fake::alloc(&bytes), fake::alloc(&vec![0; bytes.len()]));
        let far = fake::alloc(&vec![0; bytes.len()]);
        let rights = FI_REMOTE_READ | FI_REMOTE_WRITE;
        let remote = RemoteRegion {
            to: b.addr(),
            addr: far.addr() as u64,
            key: b_dev.reg_mr(far, rights, None).unwrap(),
        };
        a.send(1, &b.addr(), b"head", Payload::User(&near.part(5, 100)))
            .unwrap();
        a.write(2, Payload::User(&near), &remote, None).unwrap();
        a.ring();
        assert_eq!(drive(&mut a, 2, &mut Vec::new()).len(), 2);
        assert_eq!(fake::bytes(&far), bytes);
        a.read(3, back, &remote).unwrap();
        a.ring();
        assert_eq!(drive(&mut a, 1, &mut Vec::new()), [(3, Status::Ok)]);
        assert_eq!(fake::bytes(&back), bytes);
        let mut msgs = Vec::new();
        b.send(4, &a.addr(), b"x", inject(b"")).unwrap();
        b.ring();
        drive(&mut b, 1, &mut msgs);
        assert_eq!(msgs, [[b"head", &bytes[5..105]].concat()]);
    }
}

#[test]
fn bad_keys_and_vanished_peers_end_in_errors() {
    let (a_dev, b_dev) = (device(None), device(None));
    let mut a = a_dev.open_qp(0, RnrPolicy::FOR_EVER).unwrap();
    let b = b_dev.open_qp(0, RnrPolicy::FOR_EVER).unwrap();
    let mut far = vec![0u8; 64];
    let mut near = vec![1u8; 65];
    let key = b_dev.reg_mr(mem(&mut far), FI_REMOTE_WRITE, None).unwrap();
    let at = far.as_ptr() as u64;
    let mut none = Vec::new();
    let cases = [
        (
            RemoteRegion {
                to: b.addr(),
                addr: at,
                key: key ^ 1 << 30,
            },
            Status::RemoteBadKey,
        ),
        (
            RemoteRegion {
                to: b.addr(),
                addr: at,
                key,
            },
            Status::RemoteBadKey,
        ),
    ];
    for (r, want) in cases {
        a.write(1, Payload::User(&mem(&mut near)), &r, None)
            .unwrap();
        a.ring();
        assert_eq!(drive(&mut a, 1, &mut none), [(1, want)]);
    }
    a.read(2, mem(&mut near).part(0, 8), &cases[1].0).unwrap();
    a.ring();
    assert_eq!(drive(&mut a, 1, &mut none), [(2, Status::RemoteBadKey)]);
    assert_eq!(far, [0u8; 64]);
    // Same port, other key, as after a restart of the peer: a HELLO with a wrong key gets no
    // answer.
    let mut ghost = b.addr();
    ghost.qkey ^= 1;
    a.send(3, &ghost, b"hello?", inject(b"")).unwrap();
    a.ring();
    assert_eq!(
        drive(&mut a, 1, &mut none),
        [(3, Status::RemoteUnresponsive)]
    );
    let gone = b.addr();
    // The peer accepts the message in no thread, so that the message is under way when the peer
    // closes.
    b.shared.lock().hold = Some(|_| true);
    a.send(4, &gone, b"hello?", inject(b"")).unwrap();
    a.ring();
    drop(b);
    assert_eq!(drive(&mut a, 1, &mut none), [(4, Status::RemoteBadQpn)]);
    // The closed queue pair cannot send RESET.
    a.send(5, &gone, b"hello?", inject(b"")).unwrap();
    a.ring();
    assert_eq!(
        drive(&mut a, 1, &mut none),
        [(5, Status::RemoteUnresponsive)]
    );
    assert_eq!(a.shared.lock().peer_count(), 0);
}

/// Socket of an attacker that knows a queue pair's port, key and verification tag, and the wire
/// format.
struct Attacker {
    sock: std::net::UdpSocket,
    to: std::net::SocketAddr,
    qkey: u32,
    vtag: u32,
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
            vtag: victim.shared.lock().vtag,
        }
    }

    fn send(&self, head: packet::PacketHead, payload: &[u8]) {
        let mut bytes = [0; packet::HEAD_MAX];
        let n = head.emit(&mut bytes);
        let whole = [&bytes[..n], payload].concat();
        self.sock.send_to(&whole, self.to).unwrap();
    }

    fn head(&self, kind: packet::PacketKind, dst: u64) -> packet::PacketHead {
        packet::PacketHead {
            session: 0,
            dst,
            src: 7,
            psn: 0,
            una: 0,
            ack: None,
            src_qkey: 9,
            to_vtag: match kind {
                packet::PacketKind::Hello => self.qkey,
                _ => self.vtag,
            },
            vtag: 5,
            kind,
        }
    }

    /// The next answer.
    fn recv_reply(&self) -> Option<packet::PacketHead> {
        let mut bytes = [0; 2048];
        let n = self.sock.recv(&mut bytes).ok()?;
        packet::PacketHead::parse(&bytes[..n]).map(|(h, _)| h)
    }
}

fn poll(qp: &mut SoftQp, times: usize) -> usize {
    let mut events = Events::default();
    let mut seen = 0;
    for _ in 0..times {
        qp.poll_all(&mut events);
        seen += events.list.len();
    }
    seen
}

#[test]
fn datagrams_without_the_token_are_refused() {
    let dev = device(None);
    let mut b = dev.open_qp(0, RnrPolicy::FOR_EVER).unwrap();
    let mut far = vec![0u8; 64];
    let access = FI_REMOTE_WRITE | FI_REMOTE_READ;
    let key = dev.reg_mr(mem(&mut far), access, None).unwrap();
    let at = far.as_ptr() as u64;
    let a = Attacker::of(&b);
    let write = packet::PacketKind::Write {
        op: 1,
        key,
        addr: at,
        total: 4,
        imm: None,
    };
    let read = packet::PacketKind::ReadReq {
        id: 1,
        key,
        addr: at,
        len: 64,
    };
    // The attacker knows even the region's key, but not the token.
    for dst in [0, 1, u64::from(a.qkey), !b.addr().token] {
        for kind in [
            packet::PacketKind::Send,
            write,
            read,
            packet::PacketKind::Ping,
        ] {
            a.send(a.head(kind, dst), b"evil");
        }
        a.send(a.head(packet::PacketKind::Hello, dst), b"");
        assert_eq!(poll(&mut b, 20), 0);
        while let Some(h) = a.recv_reply() {
            assert_eq!(h.kind, packet::PacketKind::Reset);
        }
    }
    assert_eq!(far, [0u8; 64]);
    assert_eq!(b.shared.lock().peer_count(), 0);
}

#[test]
fn a_token_is_valid_for_one_address_and_session() {
    let (dev, other) = (device(None), device(None));
    let mut b = dev.open_qp(0, RnrPolicy::FOR_EVER).unwrap();
    let a = Attacker::of(&b);
    let token = b.addr().token;
    // A HELLO costs no memory, and its answer is no longer than the HELLO.
    for _ in 0..1000 {
        a.send(a.head(packet::PacketKind::Hello, token), b"");
        poll(&mut b, 1);
    }
    assert_eq!(b.shared.lock().peer_count(), 0);
    let mut welcome = None;
    while let Some(h) = a.recv_reply() {
        assert_eq!((h.kind, h.dst), (packet::PacketKind::Welcome, 7));
        welcome = Some(h);
    }
    let w = welcome.unwrap();
    // The token is valid only for the address that it was given to, and in its session.
    let c = Attacker::of(&b);
    let mut h = packet::PacketHead {
        session: w.session,
        psn: 0,
        ..a.head(packet::PacketKind::Send, w.src)
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
    // The attacker cannot reach another peer's session.
    let mut peer = other.open_qp(0, RnrPolicy::FOR_EVER).unwrap();
    peer.send(1, &b.addr(), b"x", inject(b"")).unwrap();
    peer.ring();
    let mut none = Vec::new();
    drive(&mut peer, 1, &mut none);
    for kind in [packet::PacketKind::Reset, packet::PacketKind::Send] {
        h.kind = kind;
        h.src_qkey = peer.addr().qkey;
        a.send(h, b"");
    }
    poll(&mut b, 50);
    peer.send(2, &b.addr(), b"y", inject(b"")).unwrap();
    peer.ring();
    assert_eq!(drive(&mut peer, 1, &mut none), [(2, Status::Ok)]);
}

#[test]
fn peers_that_come_and_go_leave_nothing() {
    let (dev, other) = (device(None), device(None));
    let mut b = dev.open_qp(0, RnrPolicy::FOR_EVER).unwrap();
    let mut none = Vec::new();
    for i in 0..200 {
        let mut peer = other.open_qp(0, RnrPolicy::FOR_EVER).unwrap();
        peer.send(i, &b.addr(), b"x", inject(b"")).unwrap();
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
    let mut a = dev.open_qp(0, RnrPolicy::FOR_EVER).unwrap();
    let (stuck, mut takes) = (
        other.open_qp(0, RnrPolicy::FOR_EVER).unwrap(),
        other.open_qp(0, RnrPolicy::FOR_EVER).unwrap(),
    );
    stuck.shared.lock().hold = Some(|_| true);
    let mut posted = 0;
    while a.send(posted, &stuck.addr(), b"x", inject(b"")).is_ok() {
        posted += 1;
    }
    a.ring();
    assert!(posted >= 200, "one peer alone had room for {posted}");
    for i in 0..50 {
        a.send(1000 + i, &takes.addr(), b"x", inject(b"")).unwrap();
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
    let b = dev.open_qp(port, RnrPolicy::FOR_EVER).unwrap();
    let mut a = other.open_qp(0, RnrPolicy::FOR_EVER).unwrap();
    let to = QpAddr {
        token: 0,
        ..b.addr()
    };
    a.send(1, &to, b"x", inject(b"")).unwrap();
    a.ring();
    let mut none = Vec::new();
    assert_eq!(drive(&mut a, 1, &mut none), [(1, Status::Ok)]);
    // A HELLO over UDP opens no session with a service on loopback.
    let c = Attacker::of(&b);
    c.send(c.head(packet::PacketKind::Hello, 0), b"");
    assert_eq!(c.recv_reply(), None);
}

/// The first datagrams without a tag of ours are dropped by the engine, further ones by the kernel.
#[test]
fn the_kernel_drops_what_strangers_go_on_sending() {
    let mut b = device(None).open_qp(0, RnrPolicy::FOR_EVER).unwrap();
    let fd = b.shared.lock().fd();
    let queued = || {
        let mut n: core::ffi::c_int = 0;
        // SAFETY: writes the number of bytes that wait.
        unsafe { libc::ioctl(fd, libc::FIONREAD, &raw mut n) };
        n
    };
    let c = Attacker::of(&b);
    let strange = packet::PacketHead {
        to_vtag: !c.vtag,
        ..c.head(packet::PacketKind::Ping, 0)
    };
    let base = packet::BASE as core::ffi::c_int;
    for n in 0..64 {
        // Neither this test nor the adapter's thread reads the socket while the engine is locked.
        let engine = b.shared.lock();
        c.send(strange, b"");
        assert_eq!(queued(), base, "after {n}");
        drop(engine);
        while queued() > 0 {
            poll(&mut b, 1);
        }
    }
    // Whoever has read the last one has attached the filter under this lock.
    let _engine = b.shared.lock();
    c.send(strange, b"");
    assert_eq!(queued(), 0);
    c.send(c.head(packet::PacketKind::Ping, 0), b"");
    assert_eq!(queued(), base);
}

#[test]
fn a_region_closed_during_a_read_ends_the_read_and_nothing_else() {
    let (a_dev, b_dev) = (device(None), device(None));
    let mut a = a_dev.open_qp(0, RnrPolicy::FOR_EVER).unwrap();
    let mut b = b_dev.open_qp(0, RnrPolicy::FOR_EVER).unwrap();
    // Large enough that the read cannot end before the region is closed.
    let mut far = vec![0u8; 256 << 20];
    let mut near = vec![0u8; 256 << 20];
    let key = b_dev.reg_mr(mem(&mut far), FI_REMOTE_READ, None).unwrap();
    let remote = RemoteRegion {
        to: b.addr(),
        addr: far.as_ptr() as u64,
        key,
    };
    a.read(1, mem(&mut near), &remote).unwrap();
    a.ring();
    let mut none = Vec::new();
    let mut events = Events::default();
    // The request has arrived once the target serves the read.
    while !b.shared.lock().serves() {
        drive(&mut a, 0, &mut none);
        a.poll_all(&mut events);
        b.poll_all(&mut events);
    }
    b_dev.dereg_mr(key).unwrap();
    assert_eq!(drive(&mut a, 1, &mut none), [(1, Status::RemoteAbort)]);
    a.send(2, &b.addr(), b"still here", inject(b"")).unwrap();
    a.ring();
    assert_eq!(drive(&mut a, 1, &mut none), [(2, Status::Ok)]);
}

/// A reader that takes one message of several and goes to sleep is not left asleep.
#[test]
fn what_a_poll_left_keeps_the_queue_pair_from_arming() {
    struct One(usize);
    impl Sink<PolledPacket<'_>> for One {
        fn completed(&mut self, _: &Completion, _: Status) -> Flow {
            Flow::Taken
        }
        fn message(&mut self, p: PolledPacket) -> Flow {
            assert_eq!(p.bytes, b"m");
            self.0 += 1;
            Flow::Enough
        }
    }
    let (a_dev, b_dev) = (device(None), device(None));
    let mut a = a_dev.open_qp(0, RnrPolicy::FOR_EVER).unwrap();
    let mut b = b_dev.open_qp(0, RnrPolicy::FOR_EVER).unwrap();
    // Both know each other.
    let mut none = Vec::new();
    a.send(0, &b.addr(), b"m", inject(b"")).unwrap();
    a.ring();
    drive(&mut a, 1, &mut none);
    b.send(0, &a.addr(), b"m", inject(b"")).unwrap();
    b.ring();
    drive(&mut b, 1, &mut none);
    for i in 1..4 {
        a.send(i, &b.addr(), b"m", inject(b"")).unwrap();
    }
    a.ring();
    // The thread takes them in: one poll finds all three.
    drive(&mut a, 3, &mut none);
    let mut got = One(0);
    for taken in 1..4 {
        b.poll(usize::MAX, &mut got);
        assert_eq!(got.0, taken);
        assert_eq!(b.arm(), taken == 3, "after {taken} of 3");
    }
}

/// Messages of up to six packets, over links that lose, double and reorder, to a receiver that
/// polls and to one that does not yet, sealed or not.
#[test]
fn messages_of_several_packets_arrive_whole() {
    let bad = Some("loss=5,dup=5,reorder=40,delay=300,seed=4");
    let key = "5e".repeat(32);
    let key = Some(key.as_str());
    for (fault, key, polls) in [
        (None, None, true),
        (None, None, false),
        (bad, None, true),
        (bad, None, false),
        (None, key, true),
        (bad, key, true),
    ] {
        let [a_dev, b_dev] = [(); 2].map(|()| {
            let mut d = device_with(fault, key);
            (d.cfg.segment, d.cfg.message) = (1000, 6000);
            d
        });
        let mut a = a_dev.open_qp(0, RnrPolicy::FOR_EVER).unwrap();
        let mut b = b_dev.open_qp(0, RnrPolicy::FOR_EVER).unwrap();
        let data: Vec<u8> = (0..6000u32).map(|i| ((i * i) >> 3) as u8).collect();
        let sent: Vec<Vec<u8>> = (0..200u32)
            .map(|n| [&n.to_le_bytes()[..], &data[..(n as usize * 997) % 5990]].concat())
            .collect();
        let (mut done, mut got, mut next) = (0, Vec::new(), 0);
        while done < sent.len() {
            if let Some(m) = sent.get(next) {
                let body = inject(&m[4..]);
                next += usize::from(a.send(next as u64, &b.addr(), &m[..4], body).is_ok());
                a.ring();
            }
            let ends = drive_once(&mut a, &mut got);
            assert!(ends.iter().all(|(_, s)| *s == Status::Ok));
            done += ends.len();
            if polls {
                drive_once(&mut b, &mut got);
            }
        }
        let t0 = now();
        while got.len() < sent.len() {
            assert!(now() - t0 < 60_000_000_000, "{} came", got.len());
            drive_once(&mut b, &mut got);
        }
        got.sort_unstable_by_key(|m| u32::from_le_bytes(m[..4].try_into().unwrap()));
        assert!(got == sent, "{fault:?} {polls}");
    }
}

#[test]
fn messages_wait_for_a_receiver_that_sleeps() {
    let (a_dev, b_dev) = (device(None), device(None));
    let mut a = a_dev.open_qp(0, RnrPolicy::FOR_EVER).unwrap();
    let mut b = b_dev.open_qp(0, RnrPolicy::FOR_EVER).unwrap();
    let mut none = Vec::new();
    for i in 0..200u64 {
        a.send(i, &b.addr(), &i.to_le_bytes(), inject(&[0; 1000]))
            .unwrap();
    }
    a.ring();
    assert_eq!(drive(&mut a, 200, &mut none).len(), 200);
    let mut msgs = Vec::new();
    b.send(1, &a.addr(), b"", inject(b"")).unwrap();
    b.ring();
    while msgs.len() < 200 {
        drive(&mut b, 0, &mut msgs);
        let mut ev = Events::default();
        b.poll_all(&mut ev);
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

/// A socket in the place of the queue pair at `addr`, which has been closed.
fn in_place_of(addr: &QpAddr) -> std::net::UdpSocket {
    // The adapter's thread may hold on to the socket for a moment.
    let bind = || std::net::UdpSocket::bind(("127.0.0.1", addr.qpn));
    let mut sock = bind();
    thread::wait_for(Duration::from_secs(10), || {
        sock.is_ok() || {
            sock = bind();
            false
        }
    });
    let sock = sock.unwrap();
    let wait = Duration::from_millis(20);
    sock.set_read_timeout(Some(wait)).unwrap();
    sock
}

fn key_text(byte: u8) -> String {
    format!("{byte:02x}").repeat(32)
}

#[test]
fn datagrams_sealed_without_the_key_are_dropped() {
    let dev = sealed(&key_text(1));
    let mut b = dev.open_qp(0, RnrPolicy::FOR_EVER).unwrap();
    let a = Attacker::of(&b);
    // The attacker knows the token but not the key.
    a.send(a.head(packet::PacketKind::Hello, b.addr().token), b"");
    let mut none = Vec::new();
    for (text, want) in [
        (key_text(2), Status::RemoteUnresponsive),
        (key_text(1), Status::Ok),
    ] {
        let other = sealed(&text);
        let mut peer = other.open_qp(0, RnrPolicy::FOR_EVER).unwrap();
        peer.send(1, &b.addr(), b"x", inject(b"")).unwrap();
        peer.ring();
        assert_eq!(drive(&mut peer, 1, &mut none), [(1, want)]);
        poll(&mut b, 5);
    }
    assert!(
        a.recv_reply().is_none(),
        "an answer to a datagram without seal"
    );
}

#[test]
fn keys_change_while_programs_run() {
    let (old, new) = (key_text(1), key_text(2));
    let steps = [
        (old.clone(), format!("{old}\n{new}")),
        (format!("{old}\n{new}"), format!("{new}\n{old}")),
        (format!("{new}\n{old}"), new),
    ];
    for (before, after) in steps {
        let (x, y) = (sealed(&before), sealed(&after));
        let (mut a, mut b) = (
            x.open_qp(0, RnrPolicy::FOR_EVER).unwrap(),
            y.open_qp(0, RnrPolicy::FOR_EVER).unwrap(),
        );
        let mut none = Vec::new();
        a.send(1, &b.addr(), b"x", inject(b"")).unwrap();
        a.ring();
        assert_eq!(drive(&mut a, 1, &mut none), [(1, Status::Ok)]);
        b.send(2, &a.addr(), b"x", inject(b"")).unwrap();
        b.ring();
        assert_eq!(drive(&mut b, 1, &mut none), [(2, Status::Ok)]);
    }
}

#[test]
fn sealed_datagrams_cannot_be_changed_replayed_or_led_elsewhere() {
    let (x, y) = (sealed(&key_text(1)), sealed(&key_text(1)));
    let mut b = y.open_qp(0, RnrPolicy::FOR_EVER).unwrap();
    let mut a = x.open_qp(0, RnrPolicy::FOR_EVER).unwrap();
    let mut none = Vec::new();
    // Every datagram that `a` sends from now on is recorded.
    let kept = a.shared.lock().tap();
    for i in 0..20 {
        a.send(i, &b.addr(), b"once", inject(b"")).unwrap();
        a.ring();
        assert_eq!(drive(&mut a, 1, &mut none), [(i, Status::Ok)]);
    }
    let mut msgs = Vec::new();
    drive(&mut b, 0, &mut msgs);
    while msgs.len() < 20 {
        b.send(1, &a.addr(), b"", inject(b"")).unwrap();
        b.ring();
        drive(&mut b, 1, &mut msgs);
        poll(&mut a, 1);
    }
    let sent: Vec<Vec<u8>> = kept.lock().unwrap().clone();
    assert!(sent.len() >= 20);
    assert!(sent.iter().all(|d| !d.windows(4).any(|w| w == b"once")));
    let (from, to) = (a.addr(), b.addr());
    drop(a);
    poll(&mut b, 20);
    assert_eq!(b.shared.lock().peer_count(), 0);
    // The attacker now has the sender's address, and the sender's datagrams are only seconds old.
    let path = in_place_of(&from);
    let victim = ("127.0.0.1", to.qpn);
    for d in &sent {
        path.send_to(d, victim).unwrap();
        for at in [0, 5, 9, 20, 33, d.len() - 1] {
            let mut changed = d.clone();
            changed[at] ^= 1;
            path.send_to(&changed, victim).unwrap();
        }
        path.send_to(&d[..d.len() - 1], victim).unwrap();
        assert_eq!(poll(&mut b, 8), 0);
    }
    assert_eq!(b.shared.lock().peer_count(), 0);
    // Another receiver with the key does not accept the datagrams either.
    let mut c = y.open_qp(0, RnrPolicy::FOR_EVER).unwrap();
    for d in &sent {
        path.send_to(d, ("127.0.0.1", c.addr().qpn)).unwrap();
    }
    assert_eq!(poll(&mut c, 50), 0);
    while let Ok(n) = path.recv(&mut [0; 2048]) {
        // A HELLO is answered to its source address, by a datagram that the attacker cannot read.
        assert!(n <= sent[0].len());
    }
}

#[test]
fn nothing_is_kept_of_senders_long_after_their_sessions() {
    let (x, y) = (sealed(&key_text(1)), sealed(&key_text(1)));
    let mut b = y.open_qp(0, RnrPolicy::FOR_EVER).unwrap();
    let mut none = Vec::new();
    for i in 0..50 {
        let mut a = x.open_qp(0, RnrPolicy::FOR_EVER).unwrap();
        a.send(i, &b.addr(), b"x", inject(b"")).unwrap();
        a.ring();
        drive(&mut a, 1, &mut none);
        poll(&mut b, 2);
    }
    poll(&mut b, 10);
    let mut e = b.shared.lock();
    assert_eq!(e.sealed_senders(), (0, 50));
    e.poll(&mut Events::default(), now() + 60_000_000_000);
    assert_eq!(e.sealed_senders(), (0, 0));
}
