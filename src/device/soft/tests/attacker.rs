//! Tests against an attacker: tokens, sessions, keys.

use super::*;

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

#[test]
fn datagrams_without_the_token_are_refused() {
    let dev = device(None);
    let mut b = dev.open_qp(0, PacketQp::DEFAULT).unwrap();
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
    let mut b = dev.open_qp(0, PacketQp::DEFAULT).unwrap();
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
    let mut peer = other.open_qp(0, PacketQp::DEFAULT).unwrap();
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

/// The first datagrams without a tag of ours are dropped by the engine, further ones by the kernel.
#[test]
fn the_kernel_drops_further_datagrams_without_a_tag() {
    let mut b = device(None).open_qp(0, PacketQp::DEFAULT).unwrap();
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
    // The thread that read the last one has attached the filter under this lock.
    let _engine = b.shared.lock();
    c.send(strange, b"");
    assert_eq!(queued(), 0);
    // The key alone, which is no secret where the queue pair is a service, is not enough.
    let token = b.addr().token;
    for dst in [0, !token, token ^ 1, token ^ 1 << 63] {
        c.send(c.head(packet::PacketKind::Hello, dst), b"");
    }
    assert_eq!(queued(), 0);
    c.send(c.head(packet::PacketKind::Hello, token), b"");
    assert_eq!(queued(), base);
    c.send(c.head(packet::PacketKind::Ping, 0), b"");
    assert_eq!(queued(), base);
}

/// A socket belongs to one queue pair: a caller that uses many keys has one session.
#[test]
fn a_socket_has_one_session() {
    let mut b = device(None).open_qp(0, PacketQp::DEFAULT).unwrap();
    let a = Attacker::of(&b);
    let mut of_before = None;
    for src_qkey in 1..20 {
        let hello = packet::PacketHead {
            src_qkey,
            ..a.head(packet::PacketKind::Hello, b.addr().token)
        };
        a.send(hello, b"");
        poll(&mut b, 2);
        let mut replies = core::iter::from_fn(|| a.recv_reply());
        let w = replies.find(|h| h.kind == packet::PacketKind::Welcome);
        let w = w.unwrap();
        let first = packet::PacketHead {
            session: w.session,
            src_qkey,
            ..a.head(packet::PacketKind::Send, w.src)
        };
        a.send(first, b"hello");
        // The message, and the end of the session before.
        let ended = usize::from(src_qkey > 1);
        assert_eq!(poll(&mut b, 20), 1 + ended);
        // A late datagram does not bring that session back.
        if let Some(late) = of_before.replace(first) {
            a.send(late, b"late");
            assert_eq!(poll(&mut b, 20), 0);
        }
        assert_eq!(b.shared.lock().peer_count(), 1);
    }
}

/// A socket in the place of the queue pair at `addr`, which has been closed.
pub(super) fn in_place_of(addr: &QpAddr) -> std::net::UdpSocket {
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
    let mut b = dev.open_qp(0, PacketQp::DEFAULT).unwrap();
    let a = Attacker::of(&b);
    // The attacker knows the token but not the key.
    a.send(a.head(packet::PacketKind::Hello, b.addr().token), b"");
    let mut none = Vec::new();
    for (text, want) in [
        (key_text(2), Status::RemoteUnresponsive),
        (key_text(1), Status::Ok),
    ] {
        let other = sealed(&text);
        let mut peer = other.open_qp(0, PacketQp::DEFAULT).unwrap();
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
            x.open_qp(0, PacketQp::DEFAULT).unwrap(),
            y.open_qp(0, PacketQp::DEFAULT).unwrap(),
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
    let mut b = y.open_qp(0, PacketQp::DEFAULT).unwrap();
    let mut a = x.open_qp(0, PacketQp::DEFAULT).unwrap();
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
    let mut c = y.open_qp(0, PacketQp::DEFAULT).unwrap();
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
    let mut b = y.open_qp(0, PacketQp::DEFAULT).unwrap();
    let mut none = Vec::new();
    for i in 0..50 {
        let mut a = x.open_qp(0, PacketQp::DEFAULT).unwrap();
        a.send(i, &b.addr(), b"x", inject(b"")).unwrap();
        a.ring();
        drive(&mut a, 1, &mut none);
        poll(&mut b, 2);
    }
    poll(&mut b, 10);
    let mut e = b.shared.lock();
    assert_eq!(e.sealed_senders(), (0, 50));
    e.poll(&mut Events::default(), false, now() + 60_000_000_000);
    assert_eq!(e.sealed_senders(), (0, 0));
}

#[test]
fn a_service_is_found_by_its_number_and_admits_its_own_user() {
    let (dev, other) = (device(None), device(None));
    let free = Sock::bind(IpAddr::V4(Ipv4Addr::LOCALHOST), 0, 0).unwrap();
    let port = free.port();
    drop(free);
    let b = dev.open_qp(port, PacketQp::DEFAULT).unwrap();
    let mut a = other.open_qp(0, PacketQp::DEFAULT).unwrap();
    let to = QpAddr {
        token: 0,
        ..b.addr()
    };
    a.send(1, &to, b"x", inject(b"")).unwrap();
    a.ring();
    let mut none = Vec::new();
    assert_eq!(drive(&mut a, 1, &mut none), [(1, Status::Ok)]);
    // A HELLO over UDP opens no session with a service on loopback, unless it has the token.
    let c = Attacker::of(&b);
    c.send(c.head(packet::PacketKind::Hello, 0), b"");
    assert_eq!(c.recv_reply(), None);
    // A session with a former queue pair of the service ends at once.
    let mut of_before = c.head(packet::PacketKind::Ping, 1);
    of_before.to_vtag ^= 1;
    c.send(of_before, b"");
    let answer = c.recv_reply().unwrap();
    assert_eq!(
        (answer.kind, answer.dst),
        (packet::PacketKind::Reset, of_before.src)
    );
    let mut a = other.open_qp(0, PacketQp::DEFAULT).unwrap();
    a.send(2, &b.addr(), b"x", inject(b"")).unwrap();
    a.ring();
    assert_eq!(drive(&mut a, 1, &mut none), [(2, Status::Ok)]);
}
