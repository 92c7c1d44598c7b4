//! A peer that stores arbitrary bytes into the rings it shares with us, while we read and write
//! them: the harness of the fuzz target `shm_hostile` and of a seeded test.
//!
//! A byte string is a script ([`Script`]): it chooses what our side does and which words the peer
//! changes. The peer changes some between our calls, in between keeping to the rules, and a thread
//! of its own changes others all the time. Two rings are used: one that we write, with messages,
//! accesses and shared transfers, and one that we read. Invariants:
//!
//! - memory that we send from never changes, nor does anything beside a buffer or a region;
//! - nothing is stored to a read's destination after its end, nor to a region that permits reading
//!   only;
//! - an access ends once, and all have ended when the peer is given up;
//! - a helper copies no chunk that the transfer does not have.

use super::events::EventThread;
use super::kind::{self, ACCESS};
use super::ring::{
    Lookup, Record, RecordHeader, RingReader, RingSegment, RingWriter, WriteBlocked, DATA, FILE,
    LINE, RX_ARMED, RX_PAUSED, SIZE, TAKEN, TX_ARMED,
};
use super::rma::{
    self, Initiator, KeyHash, LocalBuffer, MrTable, OutstandingRma, RemoteMrTable, RmaRequest,
    COPY_KEY, EXECUTE_KEY,
};
use super::split_copy::SplitCopy;
use crate::core::script::Script;
use crate::device::MrObserver;
use crate::hmem::fenced::{FencedBuf, LentBuffers};
use crate::hmem::UserMem;
use crate::transport::{Completion, Flow, RemoteAddr, Status};
use crate::types::*;
use core::sync::atomic::{AtomicBool, Ordering::*};
use std::collections::VecDeque;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;

/// Bytes of a region.
const REGION: usize = 4096;
/// Steps of one script: longer ones find nothing that shorter ones do not.
const STEPS: u32 = 400;
/// Control words in front of the records.
const CONTROL: [usize; 13] = [
    TAKEN,
    RX_PAUSED,
    RX_ARMED,
    TX_ARMED,
    COPY_KEY,
    EXECUTE_KEY,
    4 * LINE,
    4 * LINE + 8,
    4 * LINE + 16,
    8 * LINE,
    16 * LINE,
    17 * LINE,
    23 * LINE,
];

/// A store of the peer.
#[derive(Clone, Copy)]
struct Store {
    ours: bool,
    off: usize,
    value: u64,
}

impl Store {
    fn carry_out(self, written: &RingSegment, read: &RingSegment) {
        let ring = if self.ours { written } else { read };
        ring.word(self.off % FILE).store(self.value, Relaxed);
    }
}

struct RingHarness {
    script: Script,
    writer: RingWriter,
    initiator: Arc<Initiator>,
    outstanding: OutstandingRma,
    thread: &'static EventThread,
    reader: RingReader,
    /// The file of the ring that we read.
    read: Arc<RingSegment>,
    /// The peer's ends of the rings.
    peer_writer: RingWriter,
    peer_reader: RingReader,
    /// Tables of our regions and of the peer's.
    own: MrTable,
    peers: MrTable,
    peers_region: FencedBuf,
    writable: FencedBuf,
    readable: FencedBuf,
    /// Buffers of the accesses, by the context of each.
    buffers: LentBuffers,
    next: usize,
}

const WRITABLE: u64 = 1;
const READABLE: u64 = 2;
const PEERS: u64 = 3;

/// A descriptor of our own for the file that `fd` refers to.
fn duplicate(fd: i32) -> Option<OwnedFd> {
    // SAFETY: the duplicate is a new descriptor, which nothing else owns.
    unsafe {
        let fd = libc::dup(fd);
        (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))
    }
}

impl RingHarness {
    fn new(bytes: &[u8]) -> Option<RingHarness> {
        let writer = RingWriter::new().ok()?;
        let peers = MrTable::new(1).ok()?;
        let mut peers_region = FencedBuf::new(REGION);
        let both = FI_REMOTE_READ | FI_REMOTE_WRITE;
        peers.add(PEERS, 0, &peers_region.mem(), both);
        let (fd, at, value) = peers.offer();
        let pid = i32::try_from(std::process::id()).ok()?;
        let remote_table = RemoteMrTable::new((pid, &Arc::default()), duplicate(fd)?, (at, value))?;
        let written = Arc::clone(writer.file());
        let initiator = Arc::new(Initiator::new(Arc::clone(&written), remote_table));
        let read = Arc::new(RingSegment::create().ok()?);
        let own = MrTable::new(2).ok()?;
        let (mut writable, mut readable) = (FencedBuf::new(REGION), FencedBuf::new(REGION));
        own.add(WRITABLE, 0, &writable.mem(), both);
        own.add(READABLE, 0, &readable.mem(), FI_REMOTE_READ);
        Some(RingHarness {
            script: Script::new(bytes),
            writer,
            initiator,
            outstanding: OutstandingRma::default(),
            thread: EventThread::get().ok()?,
            reader: RingReader::new(Arc::clone(&read)),
            peer_writer: RingWriter::over(Arc::clone(&read)),
            peer_reader: RingReader::new(Arc::clone(&written)),
            read,
            own,
            peers,
            peers_region,
            writable,
            readable,
            buffers: LentBuffers::default(),
            next: 0,
        })
    }

    /// A store that the peer may find useful.
    fn store(&mut self) -> Store {
        let s = &mut self.script;
        let ours = s.flip();
        let at = if ours { self.writer.at() } else { 0 };
        let near = u64::from(s.byte()) * LINE as u64;
        let off = match s.below(4) {
            0 | 1 => CONTROL[s.below(CONTROL.len() as u32) as usize % CONTROL.len()],
            2 => DATA + at.wrapping_sub(near) as usize % SIZE + 8 * s.below(8) as usize,
            _ => DATA + near as usize + 8 * s.below(8) as usize,
        };
        let value = match s.below(4) {
            0 => at.wrapping_sub(near),
            1 => {
                let kinds = [
                    kind::PACKET,
                    kind::WRITE,
                    kind::READ,
                    kind::ATOMIC,
                    kind::CONFIRMED,
                ];
                let kind = kinds[s.below(5) as usize % 5];
                let flags = if kind == 1 { s.byte() } else { ACCESS };
                s.length() & 0xffff_ffff | u64::from(kind) << 32 | u64::from(flags) << 40
            }
            2 => u64::from(s.byte()),
            _ => s.length(),
        };
        Store { ours, off, value }
    }

    fn message(&mut self) {
        let mut source = FencedBuf::new(self.script.byte() as usize * 40);
        let what = RecordHeader {
            kind: 1,
            flags: self.script.byte() & 0x7f,
            message: self.script.flip(),
        };
        let body = source.mem();
        let _ = match self.script.below(3) {
            0 => self.writer.write(what, b"header", &body, &[]),
            1 => self.writer.write_words(what, &[1, 2, 3]),
            _ => self.writer.write_short(what, [1, 2], 2, source.piece()),
        };
        source.check("a message");
        assert!(source.is_untouched(), "a store to what is sent");
    }

    fn post(&mut self) {
        let kinds = [kind::WRITE, kind::READ, kind::ATOMIC, kind::CONFIRMED];
        let kind = kinds[self.script.below(4) as usize % 4];
        let len = self.script.byte() as usize * 20;
        let mut memory = FencedBuf::new(len);
        let piece = memory.piece();
        let reads = matches!(kind, kind::READ | kind::ATOMIC);
        let key = if self.script.one_in(8) { 77 } else { PEERS };
        let remote = RemoteAddr {
            addr: u64::from(self.script.byte()) * 8,
            key,
        };
        let access = RmaRequest {
            kind,
            flags: 0,
            word: 0,
            data: LocalBuffer::Piece(if reads { Default::default() } else { piece }),
            into: if reads { piece } else { Default::default() },
            unsignaled: false,
        };
        if !self
            .outstanding
            .admit_request(&access, &self.writer, Some(&self.initiator))
        {
            return;
        }
        let what = RecordHeader {
            kind,
            flags: ACCESS,
            message: kind == kind::CONFIRMED,
        };
        let words = [remote.key, remote.addr, access.word];
        let room = access.into.len();
        if let Ok((_, start)) = self.writer.access(what, words, &access.data, room) {
            let done = Completion {
                context: self.next,
                len,
                remote,
                ..Completion::default()
            };
            let l = Some(&self.initiator);
            let w = &mut self.writer;
            self.outstanding
                .track(w, l, &access, start, done, self.thread);
            self.buffers.lend(self.next as u64, memory, reads);
            self.next += 1;
        }
    }

    fn poll_done(&mut self) {
        let refuses = self.script.one_in(4);
        let (mut ended, mut again) = (Vec::new(), Vec::new());
        let (w, l) = (&mut self.writer, Some(&*self.initiator));
        self.outstanding.poll(
            w,
            l,
            |a| again.push(a.done.context),
            |done, _| {
                if refuses && !ended.is_empty() {
                    return Flow::Deferred;
                }
                ended.push(done.context);
                Flow::Taken
            },
        );
        for context in ended.into_iter().chain(again) {
            self.buffers.end(context as u64);
        }
    }

    /// Takes some records in, as an endpoint does.
    fn read(&mut self) {
        for _ in 0..self.script.below(8) {
            let mut buffer = FencedBuf::new(self.script.byte() as usize * 16);
            let (kind, len) = match self.reader.next_record() {
                Lookup::Nothing => break,
                Lookup::Broken => {
                    // The endpoint gives such a ring up.
                    self.read = match RingSegment::create() {
                        Ok(ring) => Arc::new(ring),
                        Err(_) => return,
                    };
                    self.reader = RingReader::new(Arc::clone(&self.read));
                    self.peer_writer = RingWriter::over(Arc::clone(&self.read));
                    break;
                }
                Lookup::Record(r) => {
                    serve(&self.own, &r, &mut buffer);
                    (r.kind, r.len)
                }
            };
            buffer.check("a receive");
            self.reader.take(len);
            if kind >= kind::WRITE {
                self.reader.mark_done(kind, len);
            }
        }
        self.reader.settle();
    }

    fn share(&mut self) {
        let s = SplitCopy {
            word: self.script.byte() % 8,
            round: u16::from(self.script.byte()),
            chunks: self.script.below(50),
        };
        let ring = Arc::clone(self.writer.file());
        s.open(&ring);
        let mut copied = 0;
        s.work(&ring, s.chunks, |chunk| {
            assert!(chunk < s.chunks, "a chunk that is not there");
            copied += 1;
            // The peer resets the count of chunks taken.
            if copied < 200 && self.script.flip() {
                s.open(&ring);
            }
            true
        });
        assert!(copied <= s.chunks, "more chunks than there are");
        s.over(&ring);
        SplitCopy::stop(s.word, &ring);
    }

    /// The peer writes a well-formed record with arbitrary contents.
    fn peer_writes(&mut self) {
        let s = &mut self.script;
        let kinds = [
            kind::WRITE,
            kind::READ,
            kind::ATOMIC,
            kind::CONFIRMED,
            kind::PACKET,
        ];
        let kind = kinds[s.below(5) as usize % 5];
        let what = RecordHeader {
            kind,
            flags: if kind == 1 { 0 } else { ACCESS },
            message: false,
        };
        let keys = [WRITABLE, READABLE, PEERS];
        let key = keys[s.below(3) as usize % 3];
        let addr = if s.flip() {
            s.length()
        } else {
            u64::from(s.byte()) * 16
        };
        let bytes = [1; 1024];
        let data = LocalBuffer::Bytes(bytes.get(..s.byte() as usize * 4).unwrap_or(&[]));
        let room = s.byte() as usize * 4;
        let _ = self
            .peer_writer
            .access(what, [key, addr, s.length()], &data, room);
    }

    /// The peer takes records as the protocol defines.
    fn peer_reads(&mut self) {
        for _ in 0..self.script.below(8) {
            let Lookup::Record(r) = self.peer_reader.next_record() else {
                break;
            };
            serve(&self.peers, &r, &mut FencedBuf::new(64));
            let (kind, len) = (r.kind, r.len);
            self.peer_reader.take(len);
            if kind >= kind::WRITE {
                self.peer_reader.mark_done(kind, len);
            }
        }
        self.peer_reader.settle();
    }

    fn step(&mut self) {
        match self.script.below(20) {
            0 | 1 => self.message(),
            2..=4 => self.post(),
            5 | 6 => self.poll_done(),
            7 => {
                self.initiator
                    .execute_pending(self.script.below(12) as usize);
            }
            8 => {
                self.outstanding.settle(&self.writer, Some(&self.initiator));
            }
            9 => {
                let (count, len) = (self.script.byte() as usize, self.script.byte() as usize);
                self.writer.find_room(count, len * 100);
                self.writer.widen();
                self.writer.request_wakeup(WriteBlocked::Room);
                self.reader.hold(self.script.flip());
                self.reader.arm_wakeup();
                self.reader.can_sleep();
            }
            10 => self.share(),
            11 | 12 => self.read(),
            13 | 14 => self.peer_writes(),
            15 => self.peer_reads(),
            _ => {
                let store = self.store();
                store.carry_out(self.writer.file(), &self.read);
            }
        }
        self.writable.check("a region");
        self.readable.check("a region");
        self.peers_region.check("a region of the peer");
        assert!(
            self.readable.is_untouched(),
            "a store to a region for reading"
        );
    }
}

/// What an endpoint does with a record.
fn serve(own: &MrTable, r: &Record, buffer: &mut FencedBuf) {
    let [key, addr, _] = r.words();
    let len = r.len.saturating_sub(rma::HEAD);
    let write = r.kind == kind::WRITE;
    match r.kind {
        kind::WRITE | kind::READ if r.done => {}
        kind::WRITE | kind::READ => match own.own(KeyHash::of(key), addr, len, write) {
            Some(p) if write => r.copy_piece(rma::HEAD, p),
            Some(p) => r.fill_piece(p),
            None => r.outcome().refuse(Status::RemoteBadKey),
        },
        kind::ATOMIC => r.fill_bytes(&[7; 8]),
        _ => {
            let into: UserMem = buffer.mem();
            r.copy_mem(8, &into);
            let mut head = [0; 24];
            r.load(0, &mut head);
            let mut bytes = Vec::new();
            r.copy(16, &mut bytes);
            assert!(bytes.len() <= r.len, "more than the record has");
            let s = SplitCopy::of(r.word(0));
            r.copy_split(s, s.chunks.min(64), |chunk| {
                assert!(chunk < s.chunks, "a chunk that is not there");
                true
            });
        }
    }
}

/// Runs a script. Panics where an invariant of the module text does not hold.
pub fn run(bytes: &[u8]) {
    let Some(mut h) = RingHarness::new(bytes) else {
        return;
    };
    let count = h.script.below(6);
    let noise: Vec<Store> = (0..count).map(|_| h.store()).collect();
    let (written, read) = (Arc::clone(h.writer.file()), Arc::clone(&h.read));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        if !noise.is_empty() {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    noise.iter().for_each(|s| s.carry_out(&written, &read));
                }
            });
        }
        // The thread is stopped also when a step panics.
        let steps = std::panic::AssertUnwindSafe(|| {
            for _ in 0..STEPS {
                if h.script.over() {
                    break;
                }
                h.step();
            }
        });
        let ended = std::panic::catch_unwind(steps);
        stop.store(true, Relaxed);
        if let Err(panic) = ended {
            std::panic::resume_unwind(panic);
        }
    });
    let mut lost = VecDeque::new();
    h.outstanding.abort(&mut h.writer, &mut lost);
    lost.iter()
        .for_each(|(done, _)| h.buffers.end(done.context as u64));
    h.buffers.check_all_ended();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::script;

    #[test]
    fn a_peer_that_changes_the_rings_breaks_no_invariant() {
        let failed = script::failing(150, run);
        assert!(failed.is_empty(), "seeds {failed:?}");
    }
}
