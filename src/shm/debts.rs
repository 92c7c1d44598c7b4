//! Accesses that have been written into a ring and are not known to be done.
//!
//! Whoever writes one leaves a [`Note`], which comes back with its end ([`Ended`]) and what was
//! read. Its record is kept until then: a read's answer lies in it. Which accesses go into the ring
//! at all is decided here, by how the last ones fared: a target that does not poll is waited for
//! once, for [`WAIT`], and then left alone for a while.

use super::claim::{self, Back, Ledger, Outcome};
use super::ring::Writer;
use super::table::Local;
use super::thread::Thread;
use super::PeerId;
use crate::core::fifo::Fifo;
use crate::device::host::now;
use crate::device::Status;
use crate::hmem::Piece;
use core::sync::atomic::{compiler_fence, Ordering::*};
use std::collections::VecDeque;
use std::sync::Arc;

/// A target that has done nothing for so long is not waited for, nanoseconds: longer than the
/// pauses of a shared processor, which are some 130 us.
const WAIT: u64 = 300_000;
/// The clock is read with every so-manieth look in vain.
const LOOKS: u32 = 64;
/// So many accesses we do ourselves before we try the ring again; after each failure twice as many.
const ALONE: (u32, u32) = (8, 8192);
/// So many accesses are taken back at once, so that a target that has come to its senses may go on.
const BATCH: usize = 8;
/// Accesses that nobody waits for go into the ring after so many of them: a thread looks after them
/// then.
const BURST: u32 = 16;

/// A read, write or atomic of a peer's memory.
#[derive(Clone, Copy)]
pub struct Access<'a> {
    /// [`claim::WRITE`] or another of these.
    pub kind: u8,
    /// The caller's; the highest bit is not.
    pub flags: u8,
    pub key: u64,
    pub addr: u64,
    /// The caller's.
    pub word: u64,
    /// What is written, or operands.
    pub data: Local<'a>,
    /// Where what was read goes.
    pub into: Piece,
    /// Nobody may ever ask for its end.
    pub silent: bool,
}

/// What the caller wants to know when an access has ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct Note {
    pub context: usize,
    pub len: usize,
    pub flags: u64,
    /// Number of an operation.
    pub op: Option<u32>,
    /// Success is worth a completion.
    pub report: bool,
    /// Success has been told already.
    pub told: bool,
}

#[derive(Clone, Copy, Default)]
struct Debt {
    start: u64,
    end: u64,
    into: Piece,
    /// What is written, unless the application has it back already.
    from: Piece,
    write: bool,
    flags: u8,
    note: Note,
    atomic: bool,
}

/// A read or write that cannot be done through shared memory after all: the adapter is to do it.
pub struct Again {
    pub note: Note,
    pub write: bool,
    /// As in [`Access::flags`] and [`Access::word`].
    pub flags: u8,
    pub word: u64,
    pub key: u64,
    pub addr: u64,
    pub mem: Piece,
    /// What is written, where the application has its memory back.
    pub bytes: Option<Box<[u8]>>,
}

impl Debt {
    #[cold]
    fn again(&self, ring: &Writer, (key, addr): (u64, u64)) -> Again {
        let (word, data) = ring.contents(self.start, self.note.len);
        let lent = if self.write { self.from } else { self.into };
        Again {
            note: self.note,
            write: self.write,
            flags: self.flags,
            word,
            key,
            addr,
            mem: lent,
            bytes: (self.write && lent.is_empty()).then_some(data),
        }
    }
}

impl Note {
    /// Of a piece of an operation, which knows the rest.
    pub fn piece(op: u32, len: usize) -> Note {
        Note {
            context: 0,
            len,
            flags: 0,
            op: Some(op),
            report: false,
            told: false,
        }
    }
}

/// The end of an access.
#[derive(Clone, Copy)]
pub struct Ended {
    pub note: Note,
    pub status: Status,
    /// Of one that failed.
    pub key: u64,
    pub addr: u64,
}

/// Those of one ring.
#[derive(Default)]
pub struct Debts {
    owed: Fifo<Debt>,
    /// What the target said last: how far it is; and how many failures have been told.
    done: u64,
    faults: u64,
    /// Atomics and messages among them: what comes after one cannot be taken back.
    atomics: u32,
    /// Accesses to do ourselves, and how many it was last time.
    alone: u32,
    penalty: u32,
    /// Its reader was awake when last looked, or was to be woken.
    awake: bool,
    /// What we had taken back when last looked.
    back: u64,
    /// Silent accesses that we did ourselves.
    silent: u32,
    /// Looks in vain, and since when.
    vain: u32,
    since: u64,
}

impl Debts {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.owed.is_empty()
    }

    /// Whether reads and writes go into the ring at present.
    #[inline]
    pub fn willing(&mut self, ring: &Writer) -> bool {
        if self.alone > 0 {
            self.alone -= 1;
            return false;
        }
        if ring.asleep() && self.awake {
            // It has not polled for long, or has had nothing to find: it is woken when it has been
            // left alone as after a failure.
            self.awake = false;
            self.leave_alone();
            return false;
        }
        self.atomics == 0
    }

    fn leave_alone(&mut self) {
        self.penalty = (2 * self.penalty).clamp(ALONE.0, ALONE.1);
        self.alone = self.penalty;
    }

    /// Whether an access shall go into the ring.
    #[inline]
    pub fn trusts(&mut self, a: &Access, ring: &Writer, ledger: Option<&Ledger>) -> bool {
        if claim::is_target_s(a.kind) {
            return true;
        }
        let Some(ledger) = ledger else { return false };
        if !self.willing(ring) {
            return false;
        }
        if a.silent && !ledger.watched.load(Relaxed) {
            self.silent += 1;
            return self.silent >= BURST;
        }
        true
    }

    /// An access has been written at `start`. Whether it is the only one.
    #[inline]
    pub fn owe(
        &mut self,
        ring: &mut Writer,
        ledger: Option<&Arc<Ledger>>,
        a: &Access,
        start: u64,
        note: Note,
        thread: &'static Thread,
    ) -> bool {
        // Whoever slept is woken by it.
        self.awake = true;
        let first = self.owed.is_empty();
        let end = ring.at();
        let atomic = claim::is_target_s(a.kind);
        if first {
            ring.keep(Some(start));
            // What came before the last one that is owed is done.
            self.done = self.done.max(start);
            (self.vain, self.since) = (0, 0);
        }
        if atomic {
            self.atomics += 1;
        } else if let Some(l) = ledger {
            l.owe(start, end, self.done);
            // Asked now: the thread looks once more after it has said that it goes.
            compiler_fence(SeqCst);
            if a.silent && !l.watched.load(Relaxed) {
                self.silent = 0;
                thread.look_after(l);
            }
        }
        self.owed.push(Debt {
            start,
            end,
            into: a.into,
            from: match a.data {
                Local::Piece(p) if !a.silent => p,
                _ => Piece::EMPTY,
            },
            write: a.kind == claim::WRITE,
            flags: a.flags,
            note,
            atomic,
        });
        first
    }

    /// Tells of those that have ended, until `each` will not hear of one; `false` in that case.
    /// `again` gets those that have to go another way.
    #[inline]
    pub fn reap(
        &mut self,
        ring: &mut Writer,
        ledger: Option<&Ledger>,
        mut again: impl FnMut(Again),
        mut each: impl FnMut(&Ended) -> bool,
    ) -> bool {
        let (done, faults) = claim::done(ring.file());
        let Some(first) = self.owed.get(0) else {
            return true;
        };
        if done < first.end {
            self.press(ring, ledger);
            return true;
        }
        self.done = done.min(ring.at());
        (self.vain, self.since) = (0, 0);
        let mut all = true;
        while let Some(d) = self.owed.get(0).filter(|d| d.end <= done) {
            let mut e = Ended {
                note: d.note,
                status: Status::Ok,
                key: 0,
                addr: 0,
            };
            if faults != self.faults {
                let outcome;
                (outcome, e.key, e.addr) = ring.fate(d.start);
                match outcome {
                    Outcome::Status(s) => e.status = s,
                    Outcome::Elsewhere => {
                        again(d.again(ring, (e.key, e.addr)));
                        self.faults = self.faults.wrapping_add(1);
                        self.atomics -= u32::from(d.atomic);
                        self.owed.drop_first();
                        continue;
                    }
                }
            }
            if e.status == Status::Ok && !d.into.is_empty() {
                ring.answer(d.start, d.into);
            }
            if !each(&e) {
                all = false;
                break;
            }
            // A failure may be counted before its access is said to be done: what is counted here
            // is what was told.
            if e.status != Status::Ok {
                self.faults = self.faults.wrapping_add(1);
            }
            self.atomics -= u32::from(d.atomic);
            self.owed.drop_first();
        }
        let kept = self.owed.get(0).map(|d| d.start);
        ring.keep(kept);
        if let (Some(l), Some(at)) = (ledger, kept) {
            l.begins(at);
        }
        if all {
            self.judge(ledger);
        }
        all
    }

    /// What the last accesses say of the target.
    #[inline]
    fn judge(&mut self, ledger: Option<&Ledger>) {
        let Some(l) = ledger else { return };
        let back = l.count();
        if back == self.back {
            self.penalty = 0;
            return;
        }
        self.back = back;
        self.leave_alone();
    }

    /// A look in vain: after long ones we do what the target does not.
    #[inline]
    pub fn press(&mut self, ring: &Writer, ledger: Option<&Ledger>) {
        self.vain += 1;
        if self.vain.is_multiple_of(LOOKS) {
            self.press_hard(ring, ledger);
        }
    }

    #[cold]
    fn press_hard(&mut self, ring: &Writer, ledger: Option<&Ledger>) {
        let Some(l) = ledger else { return };
        let t = now();
        let moved = claim::done(ring.file()).0 > self.done;
        if self.since == 0 || moved {
            self.since = t;
        } else if t.saturating_sub(self.since) >= WAIT {
            match l.take_back(BATCH) {
                Back::Claimed => self.since = t,
                // There is nothing of ours in its way, and no room: it is left alone.
                Back::Did(0) => {
                    self.since = t;
                    self.leave_alone();
                }
                Back::Did(_) => {}
            }
        }
    }

    /// Does whatever can be done from here, before the owner sleeps. `false` when the rest is not
    /// to be slept for.
    pub fn settle(&mut self, ring: &Writer, ledger: Option<&Ledger>) -> bool {
        if let Some(l) = ledger {
            while l.pending().is_some() {
                match l.take_back(usize::MAX) {
                    Back::Did(n) if n > 0 => self.back = l.count(),
                    // The target is at work, or everything else is atomics.
                    _ => break,
                }
            }
        }
        let Some(d) = self.owed.get(0) else {
            return true;
        };
        let ended = || claim::done(ring.file()).0 >= d.end;
        // A target wakes those that wait for atomics, and nobody else.
        !ended() && d.atomic && ring.want_done(ended)
    }

    /// The peer is gone: what it has not done is lost.
    pub fn write_off(
        &mut self,
        ring: &mut Writer,
        peer: PeerId,
        lost: &mut VecDeque<(PeerId, Ended)>,
    ) {
        // The adapter is told nothing more of a peer that is gone.
        let mut refused = Vec::new();
        let mut ended = Vec::new();
        self.reap(
            ring,
            None,
            |a| refused.push((a.note, a.key, a.addr)),
            |e| {
                ended.push(*e);
                true
            },
        );
        lost.extend(ended.into_iter().map(|e| (peer, e)));
        let status = Status::RemoteUnresponsive;
        lost.extend(refused.into_iter().map(|(note, key, addr)| {
            let e = Ended {
                note,
                status,
                key,
                addr,
            };
            (peer, e)
        }));
        while let Some(d) = self.owed.remove(0) {
            let (_, key, addr) = ring.fate(d.start);
            let (note, status) = (d.note, Status::RemoteUnresponsive);
            let ended = Ended {
                note,
                status,
                key,
                addr,
            };
            lost.push_back((peer, ended));
        }
    }
}
