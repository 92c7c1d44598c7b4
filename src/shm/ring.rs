//! A ring of records in shared memory, from one process to another: the records, and the end that
//! writes. `reader` is the other one.
//!
//! A record is a word (length and kind) and its bytes, beginning at a multiple of a cache line, so
//! that a short one crosses over in a single line. The writer first makes the word after the record
//! zero, then fills the record, and stores its word last; the reader looks at the word where the
//! next record is due. Neither touches a line of the other's otherwise, but for the reader's
//! position, which it gives back a few pages at a time, and for the flag by which it asks to be
//! woken.
//!
//! Nothing the peer writes is believed: positions are each side's own, a length that does not fit
//! breaks the ring.

use super::bed::{Bed, DATA, SIZE};
use super::claim::{self, Outcome};
use super::table::Local;
use crate::core::Result;
use crate::device::membarrier;
use crate::hmem::{Piece, UserMem};
use core::sync::atomic::{compiler_fence, fence, Ordering::*};
use std::sync::Arc;

/// Bytes of records that are used, and take memory, until long messages come: with all of them
/// lines come back to the writer when they have left the reader's cache, which doubles the speed.
const SMALL: usize = 192 << 10;
/// Longest record, bytes.
pub const RECORD_MAX: usize = 64 << 10;
/// The reader gives back so many bytes at a time.
pub(super) const GIVE_BACK: u64 = 32 << 10;

pub(super) const LINE: usize = 64;
/// The reader's line: what it has taken, whether it wants no messages, whether it sleeps; and
/// whether the writer sleeps until it may write.
pub(super) const TAKEN: usize = 2 * LINE;
pub(super) const HOLD: usize = TAKEN + 8;
pub(super) const ASLEEP: usize = TAKEN + 12;
pub(super) const WANTED: usize = TAKEN + 16;

/// Kinds of records, in the byte of a word above its length; the byte above that is the caller's.
const KIND: u32 = 32;
const FLAGS: u32 = 40;
/// The next record is at the beginning.
pub(super) const WRAP: u64 = 0xff << KIND;

/// Bytes a record takes.
pub(super) const fn span(len: usize) -> usize {
    (8 + len + LINE - 1) & !(LINE - 1)
}

/// The word of a record, taken apart.
#[derive(Clone, Copy)]
pub(super) struct Header {
    pub len: usize,
    pub kind: u8,
    pub flags: u8,
}

/// Takes the word of the record at `pos` apart; `None` when there is none, or none that fits there.
#[inline(always)]
pub(super) fn header(word: u64, pos: usize) -> Option<Header> {
    let (len, kind) = (word as u32 as usize, (word >> KIND) as u8);
    let bad = kind == 0 || kind == 0xff || len > RECORD_MAX || pos + span(len) > SIZE;
    (!bad).then_some(Header {
        len,
        kind,
        flags: (word >> FLAGS) as u8,
    })
}

impl Header {
    /// Bytes it takes in the ring.
    pub fn span(&self) -> usize {
        span(self.len)
    }
}

/// The end that writes.
pub struct Writer {
    map: Arc<Bed>,
    at: u64,
    /// So far it may write, by what the reader had taken when last asked, and what [`Writer::keep`]
    /// permits.
    limit: u64,
    /// What lies from here on is not written over.
    kept: u64,
    /// Bytes of the ring that are used.
    used: usize,
    /// The barrier between a record and the look at the reader's flags is left to the reader.
    light: bool,
}

/// What a record is to its reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct What {
    /// 1 to 254.
    pub kind: u8,
    pub flags: u8,
    /// It may be held off.
    pub message: bool,
}

/// Why a record was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// No room before the reader takes something.
    Room,
    /// The reader wants no messages now.
    Held,
}

impl Writer {
    /// A new ring.
    pub fn new() -> Result<Writer> {
        Bed::create().map(|map| Writer::over(Arc::new(map)))
    }

    /// The writing end of a ring in this file, which is empty.
    pub(super) fn over(map: Arc<Bed>) -> Writer {
        let light = membarrier::join_all();
        Writer {
            map,
            at: 0,
            limit: SIZE as u64,
            kept: u64::MAX,
            used: SMALL,
            light,
        }
    }

    /// The ring's descriptor, for the reader.
    pub fn fd(&self) -> i32 {
        self.map.fd()
    }

    /// Uses all of the ring from now on: much is to be written.
    #[inline]
    pub fn widen(&mut self) {
        self.used = SIZE;
    }

    /// Its file.
    pub fn file(&self) -> &Arc<Bed> {
        &self.map
    }

    /// The reader has the descriptor.
    pub fn passed(&mut self) {
        if let Some(m) = Arc::get_mut(&mut self.map) {
            m.close_fd();
        }
    }

    /// Position of the next record.
    #[inline]
    pub fn at(&self) -> u64 {
        self.at
    }

    /// What lies from `at` on stays, taken or not, until this is called again; `None`: nothing.
    #[inline]
    pub fn keep(&mut self, at: Option<u64>) {
        self.kept = at.unwrap_or(u64::MAX);
    }

    /// Whether the reader sleeps, and is woken by the next record.
    #[inline]
    pub fn asleep(&self) -> bool {
        self.map.half(ASLEEP).load(Relaxed) != 0
    }

    /// Whether `count` records of `len` bytes have room now.
    #[inline]
    pub fn fits(&mut self, count: usize, len: usize) -> bool {
        let pos = self.at as usize % SIZE;
        let here = self.used.saturating_sub(pos) / span(len);
        let wrap = if here < count {
            SIZE - (pos + here * span(len))
        } else {
            0
        };
        self.has(wrap + count * span(len))
    }

    /// Whether so many bytes are free, and the line of the word after them.
    #[inline(always)]
    fn has(&mut self, bytes: usize) -> bool {
        self.at + (bytes + LINE) as u64 <= self.limit || self.has_now(bytes)
    }

    #[inline(never)]
    fn has_now(&mut self, bytes: usize) -> bool {
        self.limit = self.given() + SIZE as u64;
        self.at + (bytes + LINE) as u64 <= self.limit
    }

    /// Asks the reader to wake us when what stopped us is over; `false` when it is.
    pub fn want(&self, why: Full) -> bool {
        self.map.half(WANTED).store(1, Relaxed);
        fence(SeqCst);
        let stopped = match why {
            Full::Room => self.given() + SIZE as u64 == self.limit,
            Full::Held => self.map.half(HOLD).load(Relaxed) != 0,
        };
        if !stopped {
            self.map.half(WANTED).store(0, Relaxed);
        }
        stopped
    }

    /// Asks the reader to wake us when it has done something; `false` when there is no need any
    /// more.
    pub fn want_done(&self, ended: impl Fn() -> bool) -> bool {
        self.map.half(WANTED).store(1, Relaxed);
        fence(SeqCst);
        !ended()
    }

    /// What may be written over.
    fn given(&self) -> u64 {
        let taken = self.map.word(TAKEN).load(Acquire);
        taken.min(self.at).min(self.kept)
    }

    /// Writes a record of two parts. `Ok(true)` when the reader sleeps and has to be woken.
    #[inline]
    pub fn write(
        &mut self,
        what: What,
        head: &[u8],
        body: &UserMem,
        bytes: &[u8],
    ) -> core::result::Result<bool, Full> {
        let len = head.len() + body.len() + bytes.len();
        let at = self.begin(what, len)?;
        self.map.put(at, head);
        if body.is_empty() {
            self.map.put(at + head.len(), bytes);
        } else {
            self.map.put_mem(at + head.len(), body);
        }
        Ok(self.end(what, len))
    }

    /// Writes a record of the first `count` words, two at most, and a piece of memory.
    #[inline(always)]
    pub fn write_short(
        &mut self,
        what: What,
        words: [u64; 2],
        count: usize,
        body: Piece,
    ) -> core::result::Result<bool, Full> {
        let len = 8 * count + body.len();
        let at = self.begin(what, len)?;
        if count > 0 {
            self.map.word(at).store(words[0], Relaxed);
        }
        if count > 1 {
            self.map.word(at + 8).store(words[1], Relaxed);
        }
        self.map.put_piece(at + 8 * count, body);
        Ok(self.end(what, len))
    }

    /// Writes a record of these words, a line at most.
    #[inline]
    pub fn write_words(&mut self, what: What, words: &[u64]) -> core::result::Result<bool, Full> {
        let len = 8 * words.len();
        let at = self.begin(what, len)?;
        for (to, w) in self.map.line(at).iter().skip(1).zip(words) {
            to.store(*w, Relaxed);
        }
        Ok(self.end(what, len))
    }

    /// Writes an access: three words, and `data` or, where that is more, `room` for the answer.
    /// Whether the reader has to be woken, and the access's position.
    #[inline(always)]
    pub fn access(
        &mut self,
        what: What,
        words: [u64; 3],
        data: &Local,
        room: usize,
    ) -> core::result::Result<(bool, u64), Full> {
        let len = claim::HEAD + data.len().max(room);
        let at = self.begin(what, len)?;
        let start = self.at;
        let [key, addr, word] = words;
        self.map.word(at).store(key, Relaxed);
        self.map.word(at + 8).store(addr, Relaxed);
        self.map.word(at + 16).store(word, Relaxed);
        match data {
            Local::Piece(p) => self.map.put_piece(at + claim::HEAD, *p),
            Local::Bytes(b) => self.map.put(at + claim::HEAD, b),
            Local::Mem(m) => self.map.put_mem(at + claim::HEAD, m),
            Local::Shared(..) => {}
        }
        Ok((self.end(what, len), start))
    }

    /// Copies the answer to the access at position `start`.
    #[inline]
    pub fn answer(&self, start: u64, into: Piece) {
        let at = self.word_at(start) + 8 + claim::HEAD;
        self.map.get_piece(at, into.len(), into);
    }

    /// Outcome, key and address of the access at position `start`.
    #[cold]
    pub fn fate(&self, start: u64) -> (Outcome, u64, u64) {
        let at = self.word_at(start);
        let [w, key, addr] = [0, 8, 16].map(|o| self.map.word(at + o).load(Relaxed));
        (claim::outcome_of(w), key, addr)
    }

    /// The word and the data, `len` bytes, of the access at position `start`.
    #[cold]
    pub fn contents(&self, start: u64, len: usize) -> (u64, Box<[u8]>) {
        let at = self.word_at(start) + 8;
        let mut data = Vec::new();
        self.map.get(at + claim::HEAD, len, &mut data);
        (self.map.word(at + 16).load(Relaxed), data.into())
    }

    fn word_at(&self, start: u64) -> usize {
        DATA + start as usize % SIZE
    }

    /// Makes room for a record of `len` bytes: where they go.
    #[inline(always)]
    fn begin(&mut self, what: What, len: usize) -> core::result::Result<usize, Full> {
        if what.message && self.map.half(HOLD).load(Relaxed) != 0 {
            return Err(Full::Held);
        }
        let need = span(len);
        if len > RECORD_MAX {
            return Err(Full::Room);
        }
        if self.at as usize % SIZE + need > self.used {
            self.wrap(need)?;
        } else if !self.has(need) {
            return Err(Full::Room);
        }
        Ok(DATA + self.at as usize % SIZE + 8)
    }

    /// Goes on at the beginning of the ring, where a record of `need` bytes has room.
    #[inline(never)]
    fn wrap(&mut self, need: usize) -> core::result::Result<(), Full> {
        let pos = self.at as usize % SIZE;
        let rest = SIZE - pos;
        if !self.has(rest + need) {
            return Err(Full::Room);
        }
        self.map.word(DATA).store(0, Relaxed);
        self.map.word(DATA + pos).store(WRAP, Release);
        self.at += rest as u64;
        Ok(())
    }

    /// Gives the record that [`Writer::begin`] began, and that has been filled, to the reader.
    /// `true` when it sleeps and has to be woken.
    #[inline(always)]
    fn end(&mut self, what: What, len: usize) -> bool {
        let (pos, need) = (self.at as usize % SIZE, span(len));
        let word = |pos: usize| self.map.word(DATA + pos % SIZE);
        word(pos + need).store(0, Relaxed);
        let kind = u64::from(what.kind) << KIND | u64::from(what.flags) << FLAGS;
        word(pos).store(kind | len as u64, Release);
        self.at += need as u64;
        // The next short record makes the word there zero: the line is with the reader since the
        // ring's last round.
        self.map.soon_written(DATA + (pos + need + LINE) % SIZE);
        // The reader looks at the ring after it has said that it sleeps.
        if self.light {
            compiler_fence(SeqCst);
        } else {
            fence(SeqCst);
        }
        let asleep = self.map.half(ASLEEP);
        asleep.load(Relaxed) != 0 && asleep.swap(0, Relaxed) != 0
    }
}

/// What writers store from now on they store after they can see that we lay down; what they have
/// stored we see. `false` where the system forbids it: such a process can have no readers.
pub fn barrier() -> bool {
    fence(SeqCst);
    membarrier::all()
}

#[cfg(test)]
mod tests {
    use super::super::reader::{Found, Reader};
    use super::*;
    use crate::core::rng::Rng;
    use std::os::fd::{FromRawFd, OwnedFd};

    fn pair() -> (Writer, Reader) {
        let w = Writer::new().unwrap();
        // SAFETY: a duplicate of our own descriptor, owned from here on.
        let fd = unsafe { OwnedFd::from_raw_fd(libc::dup(w.fd())) };
        let r = Reader::new(Arc::new(Bed::open(fd).unwrap()));
        (w, r)
    }

    const PLAIN: What = What {
        kind: 1,
        flags: 0,
        message: false,
    };
    const HELD: What = What {
        message: true,
        ..PLAIN
    };

    /// The next record's bytes, or whether the ring is broken.
    fn read(r: &mut Reader, into: &mut Vec<u8>) -> core::result::Result<bool, ()> {
        let len = match r.look() {
            Found::Nothing => return Ok(false),
            Found::Broken => return Err(()),
            Found::Record(rec) => {
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
        assert!(!w.fits(1, 1000) && w.want(Full::Room));
        let (mut got, mut woken) = (Vec::new(), 0);
        while let Found::Record(rec) = r.look() {
            let len = rec.len;
            woken += i32::from(r.take(len));
            n -= 1;
        }
        assert_eq!((n, woken), (0, 1));
        assert!(!w.want(Full::Room) && w.fits(1, 1000));
        assert!(!r.hold(true) && w.want(Full::Held));
        assert!(r.hold(false) && !w.want(Full::Held));
        r.hold(true);
        assert_eq!(w.write(HELD, &[2], &UserMem::EMPTY, &[]), Err(Full::Held));
        assert_eq!(w.write(PLAIN, &[2], &UserMem::EMPTY, &[]), Ok(false));
        r.lie_down();
        assert!(!r.sleeps());
        assert_eq!(read(&mut r, &mut got), Ok(true));
        r.lie_down();
        barrier();
        assert!(r.sleeps());
        assert_eq!(w.write(PLAIN, &[3], &UserMem::EMPTY, &[]), Ok(true));
        assert_eq!(w.write(PLAIN, &[3], &UserMem::EMPTY, &[]), Ok(false));
        let long = vec![0; RECORD_MAX + 1];
        assert_eq!(w.write(PLAIN, &long, &UserMem::EMPTY, &[]), Err(Full::Room));
    }

    #[test]
    fn what_fits_can_be_written() {
        let (mut w, mut r) = pair();
        let mut rng = Rng::new(5);
        for i in 0..20_000 {
            let (count, len) = (1 + rng.bits() as usize % 9, rng.bits() as usize % 9000);
            if w.fits(count, len) {
                for _ in 0..count {
                    let done = w.write(PLAIN, &vec![7; len], &UserMem::EMPTY, &[]);
                    assert_eq!(done, Ok(false), "{i}");
                }
            } else if let Found::Record(rec) = r.look() {
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
                let off = (rng.bits() as usize % (super::super::bed::FILE / 8)) * 8;
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
