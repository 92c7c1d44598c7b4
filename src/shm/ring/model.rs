//! A model checker of the ring: all orders in which two processors can execute its steps.
//!
//! A model of `ring` on processors that keep stores in a buffer for a while (total store order, as
//! x86): a writer of some records, which tests for a blocked reader and blocks when the ring is
//! full, and a reader that takes records, blocks when there are none, and wakes the writer. All
//! reachable states are visited: records arrive once, in order and whole, and neither side blocks
//! for ever. Without the reader's barrier the search finds the lost wake-up, as expected.

use std::collections::{HashSet, VecDeque};

/// Places of the ring, and records that go through it.
const SLOTS: usize = 3;
const RECORDS: u8 = 5;

/// Shared memory: words of the records, their bytes, and the flags.
const WORD: usize = 0;
const BYTES: usize = SLOTS;
const RX_ARMED: usize = 2 * SLOTS;
const TX_ARMED: usize = RX_ARMED + 1;
const TAKEN: usize = RX_ARMED + 2;

#[derive(Clone, PartialEq, Eq, Hash, Default)]
struct Processor {
    /// The next instruction, and how many records are done.
    at: u8,
    done: u8,
    /// Stores that others do not see yet.
    stores: VecDeque<(usize, u8)>,
    /// Wake-ups that it has not taken.
    woken: u8,
}

#[derive(Clone, PartialEq, Eq, Hash, Default)]
struct Machine {
    memory: [u8; TAKEN + 1],
    writer: Processor,
    reader: Processor,
}

impl Processor {
    fn load(&self, memory: &[u8], at: usize) -> u8 {
        let own = self.stores.iter().rev().find(|(a, _)| *a == at);
        own.map_or(memory[at], |(_, v)| *v)
    }

    fn store(&mut self, at: usize, value: u8, next: u8) {
        self.stores.push_back((at, value));
        self.at = next;
    }

    fn drain_stores(&mut self, memory: &mut [u8]) {
        for (at, v) in self.stores.drain(..) {
            memory[at] = v;
        }
    }

    /// An atomic exchange with zero, which empties the buffer.
    fn take(&mut self, memory: &mut [u8], at: usize) -> u8 {
        self.drain_stores(memory);
        core::mem::take(&mut memory[at])
    }
}

impl Machine {
    /// `RingWriter::write` and `RingWriter::request_wakeup`. `false` when it can do nothing.
    fn write(&mut self) -> bool {
        let (w, memory) = (&mut self.writer, &mut self.memory);
        let slot = usize::from(w.done) % SLOTS;
        let full =
            |w: &Processor, memory: &[u8]| usize::from(w.done - w.load(memory, TAKEN)) > SLOTS - 2;
        match w.at {
            0 if w.done == RECORDS => return false,
            0 => w.at = if full(w, memory) { 10 } else { 1 },
            1 => w.store(WORD + (slot + 1) % SLOTS, 0, 2),
            2 => w.store(BYTES + slot, w.done, 3),
            3 => {
                w.store(WORD + slot, 1, 4);
                w.done += 1;
            }
            4 => w.at = if w.load(memory, RX_ARMED) != 0 { 5 } else { 0 },
            5 => {
                self.reader.woken += w.take(memory, RX_ARMED);
                w.at = 0;
            }
            10 => w.store(TX_ARMED, 1, 11),
            11 => {
                w.drain_stores(memory);
                w.at = 12;
            }
            12 => w.at = if full(w, memory) { 14 } else { 13 },
            13 => w.store(TX_ARMED, 0, 0),
            _ if w.woken == 0 => return false,
            _ => {
                w.woken -= 1;
                w.at = 0;
            }
        }
        true
    }

    /// `RingReader::next_record`, `take`, `arm_wakeup`, `can_sleep`. `false` when it can do
    /// nothing.
    fn read(&mut self, barrier: bool) -> bool {
        let (r, memory) = (&mut self.reader, &mut self.memory);
        let slot = usize::from(r.done) % SLOTS;
        match r.at {
            0 if r.done == RECORDS => return false,
            0 => {
                r.at = if r.load(memory, WORD + slot) != 0 {
                    1
                } else {
                    5
                }
            }
            1 => {
                assert_eq!(
                    r.load(memory, BYTES + slot),
                    r.done,
                    "out of order, or not whole"
                );
                r.done += 1;
                r.store(TAKEN, r.done, 2);
            }
            2 => {
                r.drain_stores(memory);
                r.at = 3;
            }
            3 => r.at = if r.load(memory, TX_ARMED) != 0 { 4 } else { 0 },
            4 => {
                self.writer.woken += r.take(memory, TX_ARMED);
                r.at = 0;
            }
            5 => r.store(RX_ARMED, 1, 6),
            6 => {
                if barrier {
                    r.drain_stores(memory);
                    self.writer.drain_stores(memory);
                }
                r.at = 7;
            }
            7 => {
                r.at = if r.load(memory, WORD + slot) != 0 {
                    8
                } else {
                    9
                }
            }
            8 => r.store(RX_ARMED, 0, 0),
            _ if r.woken == 0 => return false,
            _ => {
                r.woken -= 1;
                r.store(RX_ARMED, 0, 0);
            }
        }
        true
    }

    /// The states that may follow.
    fn next(&self, barrier: bool) -> Vec<Machine> {
        let mut all = Vec::new();
        let mut from = |step: &dyn Fn(&mut Machine) -> bool| {
            let mut m = self.clone();
            if step(&mut m) {
                all.push(m);
            }
        };
        from(&Machine::write);
        from(&|m| m.read(barrier));
        // The oldest store of either side comes out of its buffer.
        let flush = |s: &mut Processor, memory: &mut [u8]| {
            s.stores.pop_front().map(|(at, v)| memory[at] = v).is_some()
        };
        from(&|m| flush(&mut m.writer, &mut m.memory));
        from(&|m| flush(&mut m.reader, &mut m.memory));
        all
    }
}

/// Visits every state. Returns how many there are, and whether one has no successor before all
/// records are taken.
fn search(barrier: bool) -> (usize, bool) {
    let mut seen = HashSet::from([Machine::default()]);
    let mut open = vec![Machine::default()];
    let mut stuck = false;
    while let Some(m) = open.pop() {
        let next = m.next(barrier);
        stuck |= next.is_empty() && (m.writer.done < RECORDS || m.reader.done < RECORDS);
        for n in next {
            if seen.insert(n.clone()) {
                open.push(n);
            }
        }
    }
    (seen.len(), stuck)
}

#[test]
fn records_come_in_order_and_no_wake_up_is_lost() {
    let (states, stuck) = search(true);
    assert!(!stuck && states > 1000, "{states} states");
}

#[test]
fn without_the_barrier_a_wake_up_is_lost() {
    assert!(search(false).1);
}
