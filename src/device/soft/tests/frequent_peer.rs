//! Queue pairs whose sockets are connected to each other: `sock::frequent`.

use super::*;

/// Sends a message and polls both until it is there.
fn tell(from: &mut SoftQp, to: &mut SoftQp) {
    from.send(1, &to.addr(), b"hello", inject(b"")).unwrap();
    from.ring();
    let mut msgs = Vec::new();
    while msgs.is_empty() {
        drive_once(from, &mut Vec::new());
        drive_once(to, &mut msgs);
    }
}

/// Exchanges messages between the two until both have connected a socket.
fn exchange(a: &mut SoftQp, b: &mut SoftQp) {
    let t0 = now();
    while !(a.shared.lock().has_peer_socket() && b.shared.lock().has_peer_socket()) {
        assert!(now() - t0 < 60_000_000_000, "not connected");
        tell(a, b);
        tell(b, a);
    }
}

#[test]
fn a_connected_queue_pair_hears_others() {
    for keys in [None, Some("5e".repeat(32))] {
        let dev = || device_with(None, keys.as_deref());
        let (a_dev, b_dev, c_dev) = (dev(), dev(), dev());
        let mut a = a_dev.open_qp(0, PacketQp::DEFAULT).unwrap();
        let mut b = b_dev.open_qp(0, PacketQp::DEFAULT).unwrap();
        exchange(&mut a, &mut b);
        let mut c = c_dev.open_qp(0, PacketQp::DEFAULT).unwrap();
        c.send(2, &b.addr(), b"a third", inject(b"")).unwrap();
        c.ring();
        let (mut msgs, mut none) = (Vec::new(), Vec::new());
        let t0 = now();
        while msgs.is_empty() {
            assert!(now() - t0 < 60_000_000_000, "not heard");
            drive_once(&mut c, &mut none);
            drive_once(&mut b, &mut msgs);
        }
        assert_eq!(msgs, [b"a third"]);
        exchange(&mut a, &mut b);
    }
}

#[test]
fn the_adapters_thread_serves_a_connected_queue_pair() {
    let (a_dev, b_dev) = (device(None), device(None));
    let mut a = a_dev.open_qp(0, PacketQp::DEFAULT).unwrap();
    let mut b = b_dev.open_qp(0, PacketQp::DEFAULT).unwrap();
    let mut far = vec![7u8; 1 << 20];
    let key = b_dev.reg_mr(mem(&mut far), FI_REMOTE_READ, None).unwrap();
    let remote = RemoteRegion {
        to: b.addr(),
        addr: far.as_ptr() as u64,
        key,
    };
    for i in 0..3 {
        exchange(&mut a, &mut b);
        // B polls no more.
        let mut near = vec![0u8; 1 << 20];
        a.read(10 + i, mem(&mut near), &remote).unwrap();
        a.ring();
        let mut done = Vec::new();
        while done.last() != Some(&(10 + i, Status::Ok)) {
            done.extend(drive(&mut a, 1, &mut Vec::new()));
        }
        assert_eq!(near, far);
        assert!(!b.shared.lock().has_peer_socket());
    }
}

#[test]
fn a_connected_queue_pair_that_waits_is_woken() {
    let (a_dev, b_dev) = (device(None), device(None));
    let mut a = a_dev.open_qp(0, PacketQp::DEFAULT).unwrap();
    let mut b = b_dev.open_qp(0, PacketQp::DEFAULT).unwrap();
    for _ in 0..3 {
        exchange(&mut a, &mut b);
        let mut none = Vec::new();
        while !b.arm() {
            drive_once(&mut b, &mut none);
        }
        assert!(!b.shared.lock().has_peer_socket());
        a.send(3, &b.addr(), b"wake up", inject(b"")).unwrap();
        a.ring();
        let mut fd = libc::pollfd {
            fd: b.shared.event_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one descriptor's entry is passed.
        assert_eq!(unsafe { libc::poll(&mut fd, 1, 60_000) }, 1);
        let mut msgs = Vec::new();
        while msgs.is_empty() {
            drive_once(&mut b, &mut msgs);
        }
        assert_eq!(msgs, [b"wake up"]);
    }
}
