//! Tests of queue pairs of one process with each other, and (`attacker`) against an attacker.

mod attacker;
mod frequent_peer;

use super::*;
use crate::device::verbs::poll::PolledPacket;
use crate::device::{Data, HeldPeers};
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
fn messages_and_rdma_reach_a_target_that_never_polls() {
    let bad = Some("loss=5,dup=5,reorder=40,delay=500,seed=9");
    let key = "5e".repeat(32);
    let key = Some(key.as_str());
    for (fault, key) in [(None, None), (bad, None), (None, key), (bad, key)] {
        let (a_dev, b_dev) = (device_with(fault, key), device_with(fault, key));
        let mut a = a_dev.open_qp(0, PacketQp::DEFAULT).unwrap();
        let mut b = b_dev.open_qp(0, PacketQp::DEFAULT).unwrap();
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
        let mut a = a_dev.open_qp(0, PacketQp::DEFAULT).unwrap();
        let mut b = b_dev.open_qp(0, PacketQp::DEFAULT).unwrap();
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
    let mut a = a_dev.open_qp(0, PacketQp::DEFAULT).unwrap();
    let b = b_dev.open_qp(0, PacketQp::DEFAULT).unwrap();
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
    b.shared.lock().hold = (|_| true, HeldPeers::All);
    a.send(4, &gone, b"hello?", inject(b"")).unwrap();
    a.ring();
    drop(b);
    assert_eq!(drive(&mut a, 1, &mut none), [(4, Status::RemoteBadQpn)]);
    // No answer is awaited from a queue pair that has sent BYE.
    a.send(5, &gone, b"hello?", inject(b"")).unwrap();
    a.ring();
    assert_eq!(drive(&mut a, 1, &mut none), [(5, Status::RemoteBadQpn)]);
    assert_eq!(a.shared.lock().peer_count(), 0);
}

#[test]
fn peers_that_come_and_go_leave_nothing() {
    let (dev, other) = (device(None), device(None));
    let mut b = dev.open_qp(0, PacketQp::DEFAULT).unwrap();
    let mut none = Vec::new();
    for i in 0..200 {
        let mut peer = other.open_qp(0, PacketQp::DEFAULT).unwrap();
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
    let mut a = dev.open_qp(0, PacketQp::DEFAULT).unwrap();
    let (stuck, mut takes) = (
        other.open_qp(0, PacketQp::DEFAULT).unwrap(),
        other.open_qp(0, PacketQp::DEFAULT).unwrap(),
    );
    stuck.shared.lock().hold = (|_| true, HeldPeers::All);
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
fn a_region_closed_during_a_read_ends_the_read_and_nothing_else() {
    let (a_dev, b_dev) = (device(None), device(None));
    let mut a = a_dev.open_qp(0, PacketQp::DEFAULT).unwrap();
    let mut b = b_dev.open_qp(0, PacketQp::DEFAULT).unwrap();
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

/// A reader that takes one message of several and then blocks is woken.
#[test]
fn a_queue_pair_with_unread_events_cannot_be_armed() {
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
    let mut a = a_dev.open_qp(0, PacketQp::DEFAULT).unwrap();
    let mut b = b_dev.open_qp(0, PacketQp::DEFAULT).unwrap();
    // Both have a session with each other.
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

/// Else each packet would wake the thread, too, after a pause of the application.
#[test]
fn an_application_that_polls_again_takes_its_queue_pair_back() {
    let mut a = device(None).open_qp(0, PacketQp::DEFAULT).unwrap();
    // The thread may have the queue pair again before the look at it.
    let taken_back = (0..100).any(|_| {
        while !a.shared.is_thread_driven() {
            std::thread::yield_now();
        }
        poll(&mut a, 16);
        !a.shared.is_thread_driven()
    });
    assert!(taken_back);
}

#[test]
fn a_signal_that_is_written_during_a_poll_is_taken_by_the_next() {
    let qp = device(None).open_qp(0, PacketQp::DEFAULT).unwrap();
    qp.shared.signal_between_polls();
    let mut fd = libc::pollfd {
        fd: qp.shared.event_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one descriptor's entry is passed.
    assert_eq!(unsafe { libc::poll(&mut fd, 1, 0) }, 0);
}

#[test]
fn a_burst_leaves_although_its_application_no_longer_polls() {
    let d = device(None);
    let mut a = d.open_qp(0, PacketQp::DEFAULT).unwrap();
    let mut b = d.open_qp(0, PacketQp::DEFAULT).unwrap();
    let to = b.addr();
    a.send(0, &to, &[0], inject(&[])).unwrap();
    a.ring();
    let mut got = Vec::new();
    while drive_once(&mut a, &mut got).is_empty() {
        drive_once(&mut b, &mut got);
    }
    a.burst.trust();
    for n in 1..=10 {
        a.send(u64::from(n), &to, &[n], inject(&[])).unwrap();
        a.ring_burst();
    }
    assert!(!a.rung, "the last one waits");
    while got.len() < 11 {
        drive_once(&mut b, &mut got);
    }
    assert_eq!(got.concat(), (0..=10).collect::<Vec<u8>>());
}

/// A caller sleeps on the descriptor of its queue pair, and another thread posts.
#[test]
fn what_is_posted_while_the_adapters_thread_sleeps_has_its_time_out() {
    let d = device(None);
    let mut a = d.open_qp(0, PacketQp::DEFAULT).unwrap();
    let gone = d.open_qp(0, PacketQp::DEFAULT).unwrap();
    let to = gone.addr();
    drop(gone);
    // Nothing answers at that address.
    let _silent = attacker::in_place_of(&to);
    assert!(a.arm() && a.shared.is_thread_driven());
    // Time for the thread to fall asleep: if it has not, the test tests nothing.
    thread::wait_for(Duration::from_millis(50), || false);
    a.send(1, &to, b"x", inject(b"")).unwrap();
    a.ring();
    let mut waits = libc::pollfd {
        fd: a.wait_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one element, which outlives the call.
    assert_eq!(unsafe { libc::poll(&raw mut waits, 1, 20_000) }, 1);
    let mut none = Vec::new();
    let ended = drive(&mut a, 1, &mut none);
    assert_eq!(ended, [(1, Status::RemoteUnresponsive)]);
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
        let mut a = a_dev.open_qp(0, PacketQp::DEFAULT).unwrap();
        let mut b = b_dev.open_qp(0, PacketQp::DEFAULT).unwrap();
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
    let mut a = a_dev.open_qp(0, PacketQp::DEFAULT).unwrap();
    let mut b = b_dev.open_qp(0, PacketQp::DEFAULT).unwrap();
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
