//! The writing end of a ring.

use super::layout::{
    span, RecordHeader, FLAGS, KIND, LINE, RECORD_MAX, RX_ARMED, RX_PAUSED, TAKEN, TX_ARMED, WRAP,
    WRITER_CPU,
};
use super::segment::{RingSegment, DATA, SIZE};
use crate::core::Result;
use crate::device::membarrier;
use crate::hmem::{Piece, UserMem};
use crate::shm::rma::{self, LocalBuffer, RmaOutcome};
use core::sync::atomic::{compiler_fence, fence, Ordering::*};
use std::sync::Arc;

/// Bytes of records that are used, and take memory, until the reader computes for a while. With all
/// of them long messages are no faster.
const SMALL: usize = 192 << 10;
/// Lines of the next record that are requested when one has been written, at most. More would cost
/// time where the next record comes at once.
const LINES_AHEAD: usize = 16;
/// Behind a record of more bytes one line of the next is requested: the others hide in its copy.
const AHEAD_MAX: usize = 4096;

/// The end that writes.
pub(crate) struct RingWriter {
    map: Arc<RingSegment>,
    at: u64,
    /// Position up to which it may write, by what the reader had taken when last asked, and by
    /// [`RingWriter::keep`].
    limit: u64,
    /// What lies from here on is not written over.
    kept: u64,
    /// Bytes of the ring that are used.
    used: usize,
    /// The fence between a record and the test of the reader's flags is the reader's
    /// (membarrier(2)).
    fence_by_reader: bool,
}

/// Why a record was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteBlocked {
    /// No room before the reader takes something.
    Room,
    /// The reader has paused messages.
    Paused,
}

impl RingWriter {
    /// A new ring.
    pub(crate) fn new() -> Result<RingWriter> {
        RingSegment::create().map(|map| RingWriter::over(Arc::new(map)))
    }

    /// The writing end of a ring in this file, which is empty.
    pub(in crate::shm) fn over(map: Arc<RingSegment>) -> RingWriter {
        let fence_by_reader = membarrier::register_global();
        RingWriter {
            map,
            at: 0,
            limit: SIZE as u64,
            kept: u64::MAX,
            used: SMALL,
            fence_by_reader,
        }
    }

    /// Publishes where this process runs.
    pub(crate) fn set_cpu(&self, word: u64) {
        self.map.word(WRITER_CPU).store(word, Relaxed);
    }

    /// The ring's descriptor, for the reader.
    pub(crate) fn fd(&self) -> i32 {
        self.map.fd()
    }

    /// Uses all of the ring from now on: the reader computes.
    #[inline]
    pub(crate) fn widen(&mut self) {
        self.used = SIZE;
    }

    /// Whether all of the ring is used.
    pub(crate) fn is_wide(&self) -> bool {
        self.used == SIZE
    }

    /// Its file.
    pub(crate) fn file(&self) -> &Arc<RingSegment> {
        &self.map
    }

    /// The reader has the descriptor.
    pub(crate) fn passed(&mut self) {
        if let Some(m) = Arc::get_mut(&mut self.map) {
            m.close_fd();
        }
    }

    /// Position of the next record.
    #[inline]
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// What lies from `at` on stays, taken or not, until this is called again; `None`: nothing.
    #[inline]
    pub(crate) fn keep(&mut self, at: Option<u64>) {
        self.kept = at.unwrap_or(u64::MAX);
    }

    /// Whether the reader has asked for a wake-up with the next record.
    #[inline]
    pub(crate) fn reader_armed(&self) -> bool {
        self.map.half(RX_ARMED).load(Relaxed) != 0
    }

    /// Returns whether `count` records of `len` bytes have room now. Reads the reader's position
    /// where the last known one leaves too little.
    #[inline]
    pub(crate) fn find_room(&mut self, count: usize, len: usize) -> bool {
        let pos = self.at as usize % SIZE;
        let here = self.used.saturating_sub(pos) / span(len);
        let wrap = if here < count {
            SIZE - (pos + here * span(len))
        } else {
            0
        };
        self.find_bytes(wrap + count * span(len))
    }

    /// As [`RingWriter::find_room`], for so many bytes and the line of the word after them.
    #[inline(always)]
    fn find_bytes(&mut self, bytes: usize) -> bool {
        self.at + (bytes + LINE) as u64 <= self.limit || self.refresh_limit(bytes)
    }

    #[inline(never)]
    fn refresh_limit(&mut self, bytes: usize) -> bool {
        self.limit = self.given() + SIZE as u64;
        self.at + (bytes + LINE) as u64 <= self.limit
    }

    /// Asks the reader to wake us when what stopped us is over; `false` when it is.
    pub(crate) fn request_wakeup(&self, why: WriteBlocked) -> bool {
        self.map.half(TX_ARMED).store(1, Relaxed);
        fence(SeqCst);
        let stopped = match why {
            WriteBlocked::Room => self.given() + SIZE as u64 == self.limit,
            WriteBlocked::Paused => self.map.half(RX_PAUSED).load(Relaxed) != 0,
        };
        if !stopped {
            self.map.half(TX_ARMED).store(0, Relaxed);
        }
        stopped
    }

    /// Asks the reader to wake us when it has done something; `false` when there is no need any
    /// more.
    pub(crate) fn request_done_wakeup(&self, ended: impl Fn() -> bool) -> bool {
        self.map.half(TX_ARMED).store(1, Relaxed);
        fence(SeqCst);
        !ended()
    }

    /// Whether the reader has taken everything before `at`.
    pub(crate) fn is_taken(&self, at: u64) -> bool {
        self.map.word(TAKEN).load(Acquire) >= at
    }

    /// What may be written over.
    fn given(&self) -> u64 {
        self.taken().min(self.at).min(self.kept)
    }

    /// How far the reader has read, as it has published.
    pub(crate) fn taken(&self) -> u64 {
        self.map.word(TAKEN).load(Acquire)
    }

    /// Writes a record of two parts. `Ok(true)` when the reader has to be woken.
    #[inline]
    pub(crate) fn write(
        &mut self,
        what: RecordHeader,
        head: &[u8],
        body: &UserMem,
        bytes: &[u8],
    ) -> core::result::Result<bool, WriteBlocked> {
        let len = head.len() + body.len() + bytes.len();
        let at = self.begin(what, len, len)?;
        self.map.put(at, head);
        if body.is_empty() {
            self.map.put(at + head.len(), bytes);
        } else {
            self.map.put_mem(at + head.len(), body);
        }
        Ok(self.end(what, len, len))
    }

    /// Writes a record of the first `count` words, two at most, and a piece of memory.
    #[inline(always)]
    pub(crate) fn write_short(
        &mut self,
        what: RecordHeader,
        words: [u64; 2],
        count: usize,
        body: Piece,
    ) -> core::result::Result<bool, WriteBlocked> {
        let len = 8 * count + body.len();
        let at = self.begin(what, len, len)?;
        if count > 0 {
            self.map.word(at).store(words[0], Relaxed);
        }
        if count > 1 {
            self.map.word(at + 8).store(words[1], Relaxed);
        }
        self.map.put_piece(at + 8 * count, body);
        Ok(self.end(what, len, len))
    }

    /// Writes a record of these words, a line at most.
    #[inline]
    pub(crate) fn write_words(
        &mut self,
        what: RecordHeader,
        words: &[u64],
    ) -> core::result::Result<bool, WriteBlocked> {
        let len = 8 * words.len();
        let at = self.begin(what, len, len)?;
        for (to, w) in self.map.line(at).iter().skip(1).zip(words) {
            to.store(*w, Relaxed);
        }
        Ok(self.end(what, len, len))
    }

    /// Writes an access: three words, and `data` or, where that is more, `room` for the answer.
    /// Whether the reader has to be woken, and the access's position.
    #[inline(always)]
    pub(crate) fn access(
        &mut self,
        what: RecordHeader,
        words: [u64; 3],
        data: &LocalBuffer,
        room: usize,
    ) -> core::result::Result<(bool, u64), WriteBlocked> {
        let filled = rma::HEAD + data.byte_len();
        let len = filled.max(rma::HEAD + room);
        let at = self.begin(what, len, filled)?;
        let start = self.at;
        let [key, addr, word] = words;
        self.map.word(at).store(key, Relaxed);
        self.map.word(at + 8).store(addr, Relaxed);
        self.map.word(at + 16).store(word, Relaxed);
        match data {
            LocalBuffer::Piece(p) => self.map.put_piece(at + rma::HEAD, *p),
            LocalBuffer::Bytes(b) => self.map.put(at + rma::HEAD, b),
            LocalBuffer::Mem(m) => self.map.put_mem(at + rma::HEAD, m),
            LocalBuffer::Shared(..) => {}
        }
        Ok((self.end(what, len, filled), start))
    }

    /// Copies the answer to the access at position `start`.
    #[inline]
    pub(crate) fn copy_answer(&self, start: u64, into: Piece) {
        let at = self.word_at(start) + 8 + rma::HEAD;
        self.map.get_piece(at, into.len(), into);
    }

    /// How the access at position `start` went.
    #[cold]
    pub(crate) fn access_outcome(&self, start: u64) -> RmaOutcome {
        rma::outcome_of(self.map.word(self.word_at(start)).load(Relaxed))
    }

    /// The word and the data, `len` bytes, of the access at position `start`.
    #[cold]
    pub(crate) fn contents(&self, start: u64, len: usize) -> (u64, Box<[u8]>) {
        let at = self.word_at(start) + 8;
        let mut data = Vec::new();
        self.map.get(at + rma::HEAD, len, &mut data);
        (self.map.word(at + 16).load(Relaxed), data.into())
    }

    fn word_at(&self, start: u64) -> usize {
        DATA + start as usize % SIZE
    }

    /// Makes room for a record of `len` bytes, of which the first `filled` are to be written:
    /// where they go.
    ///
    /// Their lines are requested before the first is written, which the reader polls: it would take
    /// that line back while the others come.
    #[inline(always)]
    fn begin(
        &mut self,
        what: RecordHeader,
        len: usize,
        filled: usize,
    ) -> core::result::Result<usize, WriteBlocked> {
        if what.message && self.map.half(RX_PAUSED).load(Relaxed) != 0 {
            return Err(WriteBlocked::Paused);
        }
        let need = span(len);
        if len > RECORD_MAX {
            return Err(WriteBlocked::Room);
        }
        if self.at as usize % SIZE + need > self.used {
            self.wrap(need)?;
        } else if !self.find_bytes(need) {
            return Err(WriteBlocked::Room);
        }
        let at = DATA + self.at as usize % SIZE + 8;
        // The line of the next record, which a short one alone needs, was requested before.
        let lines = span(filled) / LINE;
        if lines > 1 {
            self.map.prefetch_write(at, lines);
        }
        Ok(at)
    }

    /// Goes on at the beginning of the ring, where a record of `need` bytes has room.
    #[inline(never)]
    fn wrap(&mut self, need: usize) -> core::result::Result<(), WriteBlocked> {
        let pos = self.at as usize % SIZE;
        let rest = SIZE - pos;
        if !self.find_bytes(rest + need) {
            return Err(WriteBlocked::Room);
        }
        self.map.word(DATA).store(0, Relaxed);
        self.map.word(DATA + pos).store(WRAP, Release);
        self.at += rest as u64;
        Ok(())
    }

    /// Gives the record that [`RingWriter::begin`] began, and whose first `filled` bytes have been
    /// written, to the reader. `true` when it waits and has to be woken.
    #[inline(always)]
    fn end(&mut self, what: RecordHeader, len: usize, filled: usize) -> bool {
        let (pos, need) = (self.at as usize % SIZE, span(len));
        let word = |pos: usize| self.map.word(DATA + pos % SIZE);
        word(pos + need).store(0, Relaxed);
        let kind = u64::from(what.kind) << KIND | u64::from(what.flags) << FLAGS;
        word(pos).store(kind | len as u64, Release);
        self.at += need as u64;
        // The lines of a next record like this one are with the reader since the ring's last round.
        // A short record, the most frequent one, needs no loop.
        match filled > LINE && filled <= AHEAD_MAX {
            true => {
                let lines = filled.div_ceil(LINE).min(LINES_AHEAD);
                self.map.prefetch_write(pos + need, lines);
            }
            // Lines with room for an answer are written by the reader.
            false if filled < len => self.map.prefetch_write(pos + 2 * need - LINE, 1),
            false => self.map.prefetch_write(pos + need, 1),
        }
        // The reader tests the ring after it has set the flag.
        if self.fence_by_reader {
            compiler_fence(SeqCst);
        } else {
            fence(SeqCst);
        }
        let asleep = self.map.half(RX_ARMED);
        asleep.load(Relaxed) != 0 && asleep.swap(0, Relaxed) != 0
    }
}

/// An asymmetric fence: the reader pays for both sides. Writers' later stores follow their view of
/// our flag; their earlier stores are visible to us. `false` where the system forbids it: such a
/// process can have no readers.
pub(crate) fn asymmetric_fence() -> bool {
    fence(SeqCst);
    membarrier::all()
}

#[cfg(test)]
mod tests {
    use super::super::reader::{Lookup, RingReader};
    use super::*;
    use crate::core::rng::Rng;
    use std::os::fd::{FromRawFd, OwnedFd};

    fn pair() -> (RingWriter, RingReader) {
        let w = RingWriter::new().unwrap();
        // SAFETY: a duplicate of our own descriptor, owned from here on.
        let fd = unsafe { OwnedFd::from_raw_fd(libc::dup(w.fd())) };
        let r = RingReader::new(Arc::new(RingSegment::open(fd).unwrap()));
        (w, r)
    }

    const PLAIN: RecordHeader = RecordHeader {
        kind: 1,
        flags: 0,
        message: false,
    };
    const HELD: RecordHeader = RecordHeader {
        message: true,
        ..PLAIN
    };

    /// The next record's bytes, or whether the ring is broken.
    fn read(r: &mut RingReader, into: &mut Vec<u8>) -> core::result::Result<bool, ()> {
        let len = match r.next_record() {
            Lookup::Nothing => return Ok(false),
            Lookup::Broken => return Err(()),
            Lookup::Record(rec) => {
                rec.copy(0, into);
                rec.len
            }
        };
        r.take(len);
        Ok(true)
    }

    fn bytes(n: u64) -> Vec<u8> {
        let len = match n % 7 {
            0 => 0,
            1..=4 => (n * 13 % 200) as usize,
            5 => (n * 911 % 8000) as usize,
            _ => (n * 7919) as usize % RECORD_MAX,
        };
        (0..len).map(|i| (n as usize + i * 3) as u8).collect()
    }

    #[test]
    fn records_come_out_as_they_went_in_across_threads() {
        let (mut w, mut r) = pair();
        const N: u64 = 20_000;
        let t = std::thread::spawn(move || {
            for n in 0..N {
                let b = bytes(n);
                let (head, rest) = b.split_at(b.len() / 3);
                while w.write(PLAIN, head, &UserMem::EMPTY, rest).is_err() {
                    std::thread::yield_now();
                }
            }
        });
        let mut got = Vec::new();
        for n in 0..N {
            loop {
                match read(&mut r, &mut got) {
                    Ok(true) => break,
                    Ok(false) => std::thread::yield_now(),
                    Err(()) => panic!("record {n}"),
                }
            }
            assert_eq!(got, bytes(n), "record {n}");
        }
        t.join().unwrap();
        assert_eq!(read(&mut r, &mut got), Ok(false));
    }

    #[test]
    fn a_full_ring_says_so_and_a_held_one_lets_answers_through() {
        let (mut w, mut r) = pair();
        let mut n = 0;
        while w.write(PLAIN, &[1; 1000], &UserMem::EMPTY, &[]).is_ok() {
            n += 1;
        }
        assert!(n > SMALL / 1100 && n < SMALL / 1000);
        // It sleeps until there is room, and is woken once.
        assert!(!w.find_room(1, 1000) && w.request_wakeup(WriteBlocked::Room));
        let (mut got, mut woken) = (Vec::new(), 0);
        while let Lookup::Record(rec) = r.next_record() {
            let len = rec.len;
            woken += i32::from(r.take(len));
            n -= 1;
        }
        assert_eq!((n, woken), (0, 1));
        assert!(!w.request_wakeup(WriteBlocked::Room) && w.find_room(1, 1000));
        assert!(!r.hold(true) && w.request_wakeup(WriteBlocked::Paused));
        assert!(r.hold(false) && !w.request_wakeup(WriteBlocked::Paused));
        r.hold(true);
        assert_eq!(
            w.write(HELD, &[2], &UserMem::EMPTY, &[]),
            Err(WriteBlocked::Paused)
        );
        assert_eq!(w.write(PLAIN, &[2], &UserMem::EMPTY, &[]), Ok(false));
        r.arm_wakeup();
        assert!(!r.can_sleep());
        assert_eq!(read(&mut r, &mut got), Ok(true));
        r.arm_wakeup();
        asymmetric_fence();
        assert!(r.can_sleep());
        assert_eq!(w.write(PLAIN, &[3], &UserMem::EMPTY, &[]), Ok(true));
        assert_eq!(w.write(PLAIN, &[3], &UserMem::EMPTY, &[]), Ok(false));
        let long = vec![0; RECORD_MAX + 1];
        assert_eq!(
            w.write(PLAIN, &long, &UserMem::EMPTY, &[]),
            Err(WriteBlocked::Room)
        );
    }

    #[test]
    fn what_fits_can_be_written() {
        let (mut w, mut r) = pair();
        let mut rng = Rng::new(5);
        for i in 0..20_000 {
            let (count, len) = (1 + rng.bits() as usize % 9, rng.bits() as usize % 9000);
            if w.find_room(count, len) {
                for _ in 0..count {
                    let done = w.write(PLAIN, &vec![7; len], &UserMem::EMPTY, &[]);
                    assert_eq!(done, Ok(false), "{i}");
                }
            } else if let Lookup::Record(rec) = r.next_record() {
                let len = rec.len;
                r.take(len);
            } else {
                panic!("an empty ring has room");
            }
            if i == 10_000 {
                w.widen();
            }
        }
    }

    #[test]
    fn random_bytes_of_a_peer_do_no_harm() {
        let mut rng = Rng::new(7);
        for _ in 0..2000 {
            let (w, mut r) = pair();
            for _ in 0..200 {
                let off = (rng.bits() as usize % (super::super::segment::FILE / 8)) * 8;
                w.map.word(off).store(rng.bits(), Relaxed);
            }
            for i in 0..64 {
                let kind = rng.bits() % 4;
                w.map
                    .word(DATA + i * 64)
                    .store((kind << 32) | (rng.bits() % 300_000), Relaxed);
            }
            let mut got = Vec::new();
            for _ in 0..1000 {
                match read(&mut r, &mut got) {
                    Ok(true) => assert!(got.len() <= RECORD_MAX),
                    Ok(false) | Err(()) => break,
                }
            }
        }
    }
}
