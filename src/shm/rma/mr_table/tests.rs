//! Tests of the table by both its sides.

use super::super::MANY;
use super::*;
use crate::shm::ring::RingReader;
use crate::shm::rma::cma::LocalBuffer;
use std::os::fd::OwnedFd;

/// The table as a peer sees it; `None` without cross-memory attach.
fn remote_of(t: &MrTable) -> Option<RemoteMrTable> {
    use std::os::fd::FromRawFd;
    if !crate::shm::tests::has_cma() {
        return None;
    }
    let (fd, at, value) = t.offer();
    // SAFETY: a duplicate of our own descriptor, owned from here on.
    let fd = unsafe { OwnedFd::from_raw_fd(libc::dup(fd)) };
    let pid = (std::process::id() as i32, &Arc::default());
    Some(RemoteMrTable::new(pid, fd, (at, value)).expect("no table"))
}

fn mem(b: &mut [u8]) -> UserMem {
    // SAFETY: the buffers of these tests outlive what is made of them.
    unsafe { UserMem::new([(b.as_mut_ptr().cast_const().cast(), b.len())]) }.unwrap()
}

#[test]
fn keys_ranges_and_rights_are_checked() {
    let t = MrTable::new(1).unwrap();
    // Without cross-memory attach there is nothing to check.
    let Some(v) = remote_of(&t) else { return };
    let ring = RingSegment::create().unwrap();
    let (mut far, mut near) = ([7u8; 64], [1u8; 16]);
    let far_mem = mem(&mut far);
    t.add(5, 1000, &far_mem, FI_REMOTE_READ);
    let near_mem = mem(&mut near);
    let go = |write, key, addr| {
        v.access(
            (&ring, COPY_KEY),
            write,
            &LocalBuffer::Mem(&near_mem),
            KeyHash::of(key),
            addr,
        )
    };
    assert_eq!(go(false, 5, 1048), Ok(()));
    assert_eq!(
        go(false, 5, 1049),
        Err(RmaDenied::Status(Status::RemoteBadKey))
    );
    assert_eq!(
        go(false, 5, 999),
        Err(RmaDenied::Status(Status::RemoteBadKey))
    );
    assert_eq!(
        go(false, 5, u64::MAX),
        Err(RmaDenied::Status(Status::RemoteBadKey))
    );
    assert_eq!(
        go(true, 5, 1000),
        Err(RmaDenied::Status(Status::RemoteBadKey))
    );
    assert_eq!(go(false, 6, 1000), Err(RmaDenied::Unsupported));
    t.remove(5);
    assert_eq!(go(false, 5, 1000), Err(RmaDenied::Unsupported));
    t.add(5, 0, &far_mem, FI_REMOTE_WRITE | FI_REMOTE_READ);
    let one = [9u8; 16];
    near_mem.store(0, &one);
    assert_eq!(go(true, 5, 48), Ok(()));
    let mut seen = [0; 64];
    far_mem.load(0, &mut seen);
    assert_eq!((seen[47], seen[48], seen[63]), (7, 9, 9));
    assert_eq!(
        v.access(
            (&ring, COPY_KEY),
            true,
            &LocalBuffer::Bytes(&[4, 4]),
            KeyHash::of(5),
            0
        ),
        Ok(())
    );
    far_mem.load(0, &mut seen);
    assert_eq!((seen[1], seen[2]), (4, 7));
    assert_eq!(ring.word(COPY_KEY).load(Relaxed), 0);
}

#[test]
fn nothing_is_copied_once_the_connection_has_ended() {
    let t = MrTable::new(1).unwrap();
    let Some(v) = remote_of(&t) else { return };
    let (mut far, mut near) = ([7u8; 16], [1u8; 16]);
    let at = far.as_ptr() as u64;
    t.add(5, 0, &mem(&mut far), FI_REMOTE_READ);
    let near_mem = mem(&mut near);
    let into = LocalBuffer::Mem(&near_mem);
    assert!(v.cma_copy(false, &into, at));
    v.ended.store(true, SeqCst);
    assert!(!v.cma_copy(false, &into, at));
    let ring = RingSegment::create().unwrap();
    let accessed = v.access((&ring, COPY_KEY), false, &into, KeyHash::of(5), 0);
    let gone = RmaDenied::Status(Status::RemoteUnresponsive);
    assert_eq!(accessed, Err(gone));
}

#[test]
fn several_are_copied_by_one_call() {
    let t = MrTable::new(1).unwrap();
    let Some(v) = remote_of(&t) else { return };
    let ring = RingSegment::create().unwrap();
    let mut far: Vec<u8> = (0..64).collect();
    let mut near = [0u8; 64];
    t.add(5, 1000, &mem(&mut far), FI_REMOTE_READ);
    let near = mem(&mut near).one().unwrap();
    // Two pieces that are adjacent on both sides, one only here, one only there, and an empty
    // one.
    let parts = [(0, 8, 0), (8, 8, 8), (16, 8, 32), (30, 2, 40), (40, 0, 63)];
    let go = |parts: &[(usize, usize, u64)]| {
        let of = |(here, len, there): &(_, _, u64)| (near.part(*here, *len), 1000 + *there);
        v.access_batch(
            (&ring, COPY_KEY),
            false,
            KeyHash::of(5),
            parts.iter().map(of),
        )
    };
    assert_eq!(go(&parts), parts.len());
    let mut seen = [0; 48];
    near.load(&mut seen);
    for (here, len, there) in parts {
        let there = there as u8;
        let is: Vec<u8> = (there..there + len as u8).collect();
        assert_eq!(seen.get(here..here + len), Some(&is[..]));
    }
    // Pieces after one that is not permitted are not copied, and no more than one call takes.
    assert_eq!(go(&[(0, 8, 0), (8, 9, 56), (16, 8, 8)]), 1);
    assert_eq!(go(&[(0, 1, 0); MANY + 1]), MANY);
    assert_eq!(go(&[]), 0);
    assert_eq!(ring.word(COPY_KEY).load(Relaxed), 0);
}

#[test]
fn regions_beyond_full_neighbourhoods_go_to_the_adapter_until_slots_are_free() {
    let t = MrTable::new(1).unwrap();
    let Some(v) = remote_of(&t) else { return };
    let ring = RingSegment::create().unwrap();
    let (mut far, mut near) = ([7u8; 64], [1u8; 8]);
    let (far, near) = (mem(&mut far), mem(&mut near));
    for key in 1..=3 * ENTRIES as u64 / 2 {
        t.add(key, 0, &far, FI_REMOTE_READ);
    }
    let reach = |key| {
        v.access(
            (&ring, COPY_KEY),
            false,
            &LocalBuffer::Mem(&near),
            KeyHash::of(key),
            0,
        )
        .is_ok()
    };
    let before = (1..=2000).filter(|k| reach(*k)).count();
    assert!(before > 1000, "{before}");
    for key in 1..=3 * ENTRIES as u64 / 2 {
        t.remove(key);
    }
    assert!(!(1..=2000).any(reach));
    t.add(7, 0, &far, FI_REMOTE_READ);
    assert!(reach(7));
}

#[test]
fn a_region_is_in_use_while_a_live_peer_marks_it() {
    let t = MrTable::new(1).unwrap();
    let ring = Arc::new(RingSegment::create().unwrap());
    let ended = Arc::new(AtomicBool::new(false));
    t.add_user(&ring, &ended);
    let mut far = [7u8; 64];
    t.add(5, 0, &mem(&mut far), FI_REMOTE_READ);
    assert!(!t.in_use(5));
    ring.word(COPY_KEY).store(USED | KeyHash::of(5).0, SeqCst);
    // `remove` does not wait; fi_close of the region tests `in_use`.
    t.remove(5);
    assert!(t.in_use(5) && !t.in_use(6));
    ring.word(COPY_KEY).store(0, SeqCst);
    assert!(!t.in_use(5));
    ring.word(DEVICE_KEYS + 8)
        .store(USED | KeyHash::of(5).0, SeqCst);
    assert!(t.used_by_devices(5) && !t.in_use(5));
    // A process that ended in the middle of an access is not waited for.
    ring.word(EXECUTE_KEY)
        .store(USED | KeyHash::of(5).0, SeqCst);
    assert!(t.in_use(5));
    ended.store(true, SeqCst);
    assert!(!t.in_use(5) && !t.used_by_devices(5));
}

/// The endpoint is closed before the region: what a peer has begun is waited for all the same.
#[test]
fn a_region_is_in_use_although_the_reader_of_the_ring_is_gone() {
    let t = MrTable::new(1).unwrap();
    let ring = Arc::new(RingSegment::create().unwrap());
    let reader = RingReader::new(Arc::clone(&ring));
    t.add_user(&ring, &Arc::default());
    let hash = KeyHash::of(5);
    let used = RegionUse::new((&ring, COPY_KEY), hash);
    assert!(used.is_some());
    drop(reader);
    assert!(t.in_use(5));
    assert!(RegionUse::new((&ring, EXECUTE_KEY), hash).is_none());
    drop(used);
    assert!(!t.in_use(5));
    // The table has released the ring, which no access uses any more.
    assert_eq!(Arc::strong_count(&ring), 1);
}

#[test]
fn peers_see_no_keys() {
    let t = MrTable::new(1).unwrap();
    let mut far = [7u8; 64];
    let key = 0x0123_4567_89ab_cdef;
    t.add(key, 0, &mem(&mut far), FI_REMOTE_READ);
    for at in (HEAD..FILE).step_by(8) {
        let w = t.map.word(at).load(Relaxed);
        assert!(w & !(USED | READ | WRITE) != key & !(USED | READ | WRITE));
    }
}
