//! A model checker of the ring on processors that reorder more than x86, such as aarch64.
//!
//! As `model`, with weaker memory. Every place keeps its stores in order, and a processor has for
//! each place the newest store that it knows. A load may return any store that is not older than
//! the known store. A store may be inserted before stores of others that its processor does not
//! know. An acquiring load of a releasing store takes over what the storing processor knew. A fence
//! takes over what all fences before it knew, and leaves the result to later fences. These are the
//! view semantics of C11, without loads that pass stores; [`Orders::taken`] models the one such
//! load that matters. All reachable states are visited. The search finds the error when an order
//! that the code relies on is missing.

use std::collections::HashSet;

/// Places of the ring: one more word than records at a time, because the writer clears the word
/// after each record.
const SLOTS: usize = 3;
const BODIES: usize = SLOTS - 1;
/// Records that go through it.
const RECORDS: u8 = 5;

/// Shared memory: words of the records, their bytes, and the flags.
const WORD: usize = 0;
const BYTES: usize = SLOTS;
const RX_ARMED: usize = BYTES + BODIES;
const TX_ARMED: usize = RX_ARMED + 1;
const TAKEN: usize = RX_ARMED + 2;
const PLACES: usize = TAKEN + 1;

/// For each place, how many of its kept stores are older than what is known.
type View = [u8; PLACES];

fn join(a: &mut View, b: &View) {
    for (a, b) in a.iter_mut().zip(b) {
        *a = (*a).max(*b);
    }
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct KeptStore {
    value: u8,
    /// For a releasing store: what its processor knew.
    released: Option<View>,
    /// An exchange: no other store comes between the store before it and this store.
    exchange: bool,
}

/// Memory orders that a search assumes; the code keeps all of them.
#[derive(Clone, Copy)]
struct Orders {
    /// The reader's fence on all processors.
    barrier: bool,
    /// A record's word is released, and acquired.
    word: bool,
    /// TAKEN is released: no load of the record's bytes comes after it.
    taken: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
struct RingSide {
    /// The next instruction, and how many records are done.
    at: u8,
    done: u8,
    view: View,
    /// Wake-ups that it has not taken.
    woken: u8,
    /// The writer: the newest TAKEN that it has read.
    limit: u8,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct WeakMachine {
    memory: [Vec<KeptStore>; PLACES],
    writer: RingSide,
    reader: RingSide,
    fences: View,
}

impl WeakMachine {
    fn new() -> WeakMachine {
        let zero = KeptStore {
            value: 0,
            released: None,
            exchange: false,
        };
        WeakMachine {
            memory: core::array::from_fn(|_| vec![zero.clone()]),
            writer: RingSide::default(),
            reader: RingSide::default(),
            fences: [0; PLACES],
        }
    }

    fn side(&mut self, reads: bool) -> &mut RingSide {
        match reads {
            true => &mut self.reader,
            false => &mut self.writer,
        }
    }

    /// Values that a load may return, each with the machine after the load.
    fn load(&self, reads: bool, place: usize, acquire: bool) -> Vec<(WeakMachine, u8)> {
        let mut all = Vec::new();
        let known = if reads { self.reader } else { self.writer }.view[place];
        for (i, s) in self.memory[place].iter().enumerate().skip(known.into()) {
            let mut m = self.clone();
            let view = &mut m.side(reads).view;
            view[place] = i as u8;
            if let (true, Some(released)) = (acquire, &s.released) {
                join(view, released);
            }
            all.push((m, s.value));
        }
        all
    }

    /// Changes every view: of both sides, of the fences, and those that stores release.
    fn each_view(&mut self, change: impl Fn(&mut View)) {
        let sides = [&mut self.reader.view, &mut self.writer.view];
        let kept = self.memory.iter_mut().flatten();
        let released = kept.filter_map(|s| s.released.as_mut());
        let all = sides.into_iter().chain([&mut self.fences]);
        all.chain(released).for_each(change);
    }

    /// Puts a store at index `i` of its place.
    fn insert(&mut self, reads: bool, place: usize, i: usize, mut s: KeptStore, release: bool) {
        self.each_view(|v| v[place] += u8::from(usize::from(v[place]) >= i));
        let side = self.side(reads);
        side.view[place] = i as u8;
        s.released = release.then_some(side.view);
        self.memory[place].insert(i, s);
    }

    /// Machines that may follow a store.
    fn store(&self, reads: bool, place: usize, value: u8, release: bool) -> Vec<WeakMachine> {
        let mut all = Vec::new();
        let kept = &self.memory[place];
        let known = if reads { self.reader } else { self.writer }.view[place];
        for i in usize::from(known) + 1..=kept.len() {
            if kept.get(i).is_some_and(|next| next.exchange) {
                continue;
            }
            let mut m = self.clone();
            let s = KeptStore {
                value,
                released: None,
                exchange: false,
            };
            m.insert(reads, place, i, s, release);
            all.push(m);
        }
        all
    }

    /// A relaxed exchange with zero: the machine after it, and what was there.
    fn take(&self, reads: bool, place: usize) -> (WeakMachine, u8) {
        let mut m = self.clone();
        let end = m.memory[place].len();
        let was = m.memory[place][end - 1].value;
        let s = KeptStore {
            value: 0,
            released: None,
            exchange: true,
        };
        m.insert(reads, place, end, s, false);
        (m, was)
    }

    /// A sequentially consistent fence of one side.
    fn fence(&mut self, reads: bool) {
        let mut all = self.fences;
        join(&mut all, &self.side(reads).view);
        self.side(reads).view = all;
        self.fences = all;
    }

    /// Drops stores that no side can load any more.
    fn forget(mut self) -> WeakMachine {
        for place in 0..PLACES {
            let old = self.reader.view[place].min(self.writer.view[place]);
            let kept = &mut self.memory[place];
            kept.drain(..usize::from(old));
            kept[0].exchange = false;
            self.each_view(|v| v[place] = v[place].saturating_sub(old));
        }
        self
    }

    /// `RingWriter::write` and `RingWriter::request_wakeup`: what may follow.
    fn write(&self, o: Orders) -> Vec<WeakMachine> {
        let w = &self.writer;
        let slot = usize::from(w.done) % SLOTS;
        let body = usize::from(w.done) % BODIES;
        let then = |all: Vec<WeakMachine>, next: u8| {
            let step = |mut m: WeakMachine| {
                m.writer.at = next;
                m
            };
            all.into_iter().map(step).collect::<Vec<_>>()
        };
        // What the writer does next depends on how much it finds taken.
        let room = |free: u8, full: u8| {
            let step = |(mut m, taken): (WeakMachine, u8)| {
                m.writer.limit = taken;
                let is_full = usize::from(w.done - taken) >= BODIES;
                m.writer.at = if is_full { full } else { free };
                m
            };
            let all = self.load(false, TAKEN, true).into_iter();
            all.map(step).collect::<Vec<_>>()
        };
        match w.at {
            0 if w.done == RECORDS => Vec::new(),
            0 => room(1, 10),
            1 => then(self.store(false, WORD + (slot + 1) % SLOTS, 0, false), 2),
            2 => then(self.store(false, BYTES + body, w.done, false), 3),
            3 => {
                let mut all = then(self.store(false, WORD + slot, 1, o.word), 4);
                all.iter_mut().for_each(|m| m.writer.done += 1);
                all
            }
            4 => {
                let step = |(mut m, armed): (WeakMachine, u8)| {
                    m.writer.at = if armed != 0 { 5 } else { 0 };
                    m
                };
                let all = self.load(false, RX_ARMED, false).into_iter();
                all.map(step).collect()
            }
            5 => {
                let (mut m, was) = self.take(false, RX_ARMED);
                m.reader.woken += was;
                then(vec![m], 0)
            }
            10 => then(self.store(false, TX_ARMED, 1, false), 11),
            11 => {
                let mut m = self.clone();
                m.fence(false);
                then(vec![m], 12)
            }
            12 => room(13, 14),
            13 => then(self.store(false, TX_ARMED, 0, false), 0),
            _ if w.woken == 0 => Vec::new(),
            _ => {
                let mut m = self.clone();
                m.writer.woken -= 1;
                then(vec![m], 0)
            }
        }
    }

    /// `RingReader::next_record`, `take`, `arm_wakeup`, `can_sleep`: what may follow.
    fn read(&self, o: Orders, torn: &mut bool) -> Vec<WeakMachine> {
        let r = &self.reader;
        let slot = usize::from(r.done) % SLOTS;
        let body = usize::from(r.done) % BODIES;
        let then = |all: Vec<WeakMachine>, next: u8| {
            let step = |mut m: WeakMachine| {
                m.reader.at = next;
                m
            };
            all.into_iter().map(step).collect::<Vec<_>>()
        };
        let branch = |place: usize, acquire: bool, some: u8, none: u8| {
            let step = |(mut m, v): (WeakMachine, u8)| {
                m.reader.at = if v != 0 { some } else { none };
                m
            };
            let all = self.load(true, place, acquire).into_iter();
            all.map(step).collect::<Vec<_>>()
        };
        // The record's bytes are loaded before TAKEN, or after it where nothing forbids that.
        let mut bytes = |next: u8| {
            let all = self.load(true, BYTES + body, false).into_iter();
            let step = |(mut m, v): (WeakMachine, u8)| {
                *torn |= v != r.done;
                m.reader.at = next;
                m
            };
            all.map(step).collect::<Vec<_>>()
        };
        let taken = |next: u8| {
            let mut all = then(self.store(true, TAKEN, r.done + 1, o.taken), next);
            if next == 2 {
                all.iter_mut().for_each(|m| m.reader.done += 1);
            }
            all
        };
        match r.at {
            0 if r.done == RECORDS => Vec::new(),
            0 => branch(WORD + slot, o.word, 1, 5),
            1 => {
                let mut all = bytes(20);
                if !o.taken {
                    all.extend(taken(21));
                }
                all
            }
            20 => taken(2),
            21 => {
                let mut all = bytes(2);
                all.iter_mut().for_each(|m| m.reader.done += 1);
                all
            }
            2 => {
                let mut m = self.clone();
                m.fence(true);
                then(vec![m], 3)
            }
            3 => branch(TX_ARMED, false, 4, 0),
            4 => {
                let (mut m, was) = self.take(true, TX_ARMED);
                m.writer.woken += was;
                then(vec![m], 0)
            }
            5 => then(self.store(true, RX_ARMED, 1, false), 6),
            6 => {
                let mut m = self.clone();
                if o.barrier {
                    // Every processor passes a fence between this one's two.
                    m.fence(true);
                    m.fence(false);
                    m.fence(true);
                }
                then(vec![m], 7)
            }
            7 => branch(WORD + slot, true, 8, 9),
            8 => then(self.store(true, RX_ARMED, 0, false), 0),
            _ if r.woken == 0 => Vec::new(),
            _ => {
                let mut m = self.clone();
                m.reader.woken -= 1;
                let all = m.store(true, RX_ARMED, 0, false);
                then(all, 0)
            }
        }
    }
}

/// What a search has found.
#[derive(Debug)]
struct Found {
    states: usize,
    /// A state from which nothing follows, before all records are taken.
    stuck: bool,
    /// Bytes of a record were loaded that is not the announced record.
    torn: bool,
}

/// Visits every state, or those up to the first that is wrong.
fn search(o: Orders) -> Found {
    let first = WeakMachine::new();
    let mut seen = HashSet::from([first.clone()]);
    let mut open = vec![first];
    let (mut stuck, mut torn) = (false, false);
    while let Some(m) = open.pop() {
        let mut next = m.write(o);
        next.extend(m.read(o, &mut torn));
        stuck |= next.is_empty() && (m.writer.done < RECORDS || m.reader.done < RECORDS);
        if stuck || torn {
            break;
        }
        for n in next.into_iter().map(WeakMachine::forget) {
            if seen.insert(n.clone()) {
                open.push(n);
            }
        }
    }
    let states = seen.len();
    Found {
        states,
        stuck,
        torn,
    }
}

const RIGHT: Orders = Orders {
    barrier: true,
    word: true,
    taken: true,
};

#[test]
fn records_come_whole_and_no_wake_up_is_lost() {
    let f = search(RIGHT);
    assert!(!f.stuck && !f.torn && f.states > 1000, "{f:?}");
}

#[test]
fn each_order_is_needed() {
    let barrier = false;
    assert!(search(Orders { barrier, ..RIGHT }).stuck);
    let word = false;
    assert!(search(Orders { word, ..RIGHT }).torn);
    let taken = false;
    assert!(search(Orders { taken, ..RIGHT }).torn);
}
