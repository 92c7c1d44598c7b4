//! Property tests. Whatever order the network delivers packets in, every message arrives once,
//! complete and in order, every read, write and atomic takes effect once, and no state is left
//! over. When a peer dies at any step, every operation that needs the peer ends in an error.

use super::*;
use std::collections::HashSet;

#[test]
fn everything_happens_once_in_order_and_whole() {
    for seed in 0..seeds(10_000) {
        let mut rng = Rng::new(seed);
        let mut sides = vec![side(0, &mut rng), side(1, &mut rng)];
        let plan = {
            let n = 1 + rng.below(50) as u32;
            plans(&mut rng, n)
        };
        let sends: Vec<(u32, usize, Option<u64>)> = (0u32..)
            .zip(&plan)
            .filter_map(|(i, p)| match p {
                Plan::Send { len, tag, .. } => Some((i, *len, *tag)),
                _ => None,
            })
            .collect();
        let (mut started, mut posted, mut now) = (0, 0, 0u64);
        let done = |sides: &[ProtoSimEndpoint]| {
            sides[0].port.sent.len() == plan.len() && sides[1].port.received.len() == sends.len()
        };
        while !done(&sides) || !sides.iter().all(settled) {
            now += 1;
            assert!(now < 200_000, "seed {seed} stuck: {plan:?}");
            if started < plan.len() && rng.below(2) == 0 {
                started += usize::from(start(&mut sides[0], 1, started as u32, plan[started]));
            }
            if posted < sends.len() && rng.below(2) == 0 {
                // Receives are posted in the order of the messages: each takes its own.
                let (ctx, len, tag) = sends[posted];
                post(&mut sides[1], ctx, len, tag, rng.below(2) == 0);
                posted += 1;
            }
            deliver(&mut sides, now, None);
        }
        check(seed, &plan, &sides);
    }
}

fn check(seed: u64, plan: &[Plan], sides: &[ProtoSimEndpoint]) {
    let (a, b) = (&sides[0], &sides[1]);
    for (ctx, r) in &a.port.sent {
        assert_eq!(*r, Ok(()), "seed {seed} operation {ctx}");
    }
    let mut seen = HashSet::new();
    for (ctx, msg, result) in &b.port.received {
        assert!(seen.insert(ctx));
        assert_eq!(*result, Ok(()), "seed {seed} message {ctx}");
        assert_eq!(
            msg.cq_data,
            ctx.is_multiple_of(3).then_some(u64::from(*ctx))
        );
        assert!(
            b.port.memory[ctx] == a.port.memory[ctx],
            "seed {seed} message {ctx}"
        );
    }
    let mut sums = [0u64; CELLS];
    let mut seen = vec![HashSet::new(); CELLS];
    for (ctx, p) in (0u32..).zip(plan) {
        let mine = &a.port.memory[&ctx];
        match *p {
            Plan::Send { .. } => {}
            Plan::Write { at, len } => {
                assert!(
                    b.port.region[at..at + len] == mine[..],
                    "seed {seed} write {ctx}"
                );
            }
            Plan::Read { at, len } => {
                assert!(
                    b.port.region[at..at + len] == mine[..],
                    "seed {seed} read {ctx}"
                );
            }
            Plan::Sum { cell, fetch } => {
                sums[cell] += 1;
                if fetch {
                    let old = u64::from_le_bytes(mine[..].try_into().unwrap());
                    assert!(seen[cell].insert(old), "seed {seed}: {old} fetched twice");
                }
            }
        }
    }
    let writes = plan.iter().filter(|p| matches!(p, Plan::Write { .. }));
    let with_data = b.port.written.iter();
    assert_eq!(with_data.count(), writes.count(), "seed {seed}");
    for (cell, sum) in b.port.region.chunks(8).zip(sums) {
        assert_eq!(cell, sum.to_le_bytes(), "seed {seed}");
    }
    assert_eq!((b.rq.unexpected(), b.rq.posted(), b.rq.bytes()), (0, 0, 0));
    assert_nothing_left(seed, sides);
}

/// Three endpoints; the last one dies at a random step.
#[test]
fn the_end_of_a_peer_fails_the_operations_with_it_alone() {
    for seed in 0..seeds(10_000) {
        let mut rng = Rng::new(seed ^ 0xdead);
        let mut sides: Vec<ProtoSimEndpoint> = (0..3).map(|i| side(i, &mut rng)).collect();
        let n = 4 + rng.below(30) as u32;
        let plan = plans(&mut rng, n);
        let death = rng.below(400);
        let (mut started, mut now, mut dead) = (0usize, 0u64, None);
        // Even operations go to the side that lives, odd ones to the one that dies.
        loop {
            now += 1;
            assert!(now < 200_000, "seed {seed} stuck");
            if now == death {
                dead = Some(2);
                let gone = Failure {
                    errno: FI_ECONNABORTED,
                    status: 13,
                };
                for s in sides.iter_mut().take(2) {
                    fail_peer(s, 2, gone);
                }
            }
            if started < plan.len() && (dead.is_none() || started % 2 == 0) {
                let to = if started % 2 == 0 { 1 } else { 2 };
                if start(&mut sides[0], to, started as u32, plan[started]) {
                    if let Plan::Send { len, tag, .. } = plan[started] {
                        post(&mut sides[to as usize], started as u32, len, tag, false);
                    }
                    started += 1;
                }
            } else if started < plan.len() {
                sides[0].port.sent.insert(started as u32, Ok(()));
                started += 1;
            }
            deliver(&mut sides, now, dead);
            let over = started == plan.len() && sides[0].port.sent.len() == plan.len();
            if over && now > death && sides.iter().take(2).all(settled) {
                break;
            }
        }
        for (ctx, r) in &sides[0].port.sent {
            if ctx % 2 == 0 {
                assert_eq!(*r, Ok(()), "seed {seed} operation {ctx}");
            }
        }
        assert_nothing_left(seed, sides.iter().take(2));
    }
}

/// Side 1 closes regions while writes into them and reads from them are under way.
#[test]
fn closing_a_region_ends_the_accesses_to_it() {
    let mut failed = [0; 2];
    for seed in 0..seeds(5_000) {
        let mut rng = Rng::new(seed ^ 0xc105e);
        let mut sides = vec![side(0, &mut rng), side(1, &mut rng)];
        // Few requests of the adapter are free, so that reads wait for room.
        sides[1].port.depth = 1 + rng.below(4) as usize;
        let writes = 2 + rng.below(6) as u32;
        let (mut started, mut now) = (0, 0u64);
        while sides[0].port.sent.len() < writes as usize || !sides.iter().all(settled) {
            now += 1;
            assert!(now < 100_000, "seed {seed} stuck");
            let at = CELLS * 8 + started as usize * 4000;
            let len = 2000 + rng.below(2000) as usize;
            let plan = match started % 2 {
                0 => Plan::Write { at, len },
                _ => Plan::Read { at, len },
            };
            // The features of side 1 are known once the first write has ended.
            let known = started == 0 || !sides[0].port.sent.is_empty();
            if known && started < writes && start(&mut sides[0], 1, started, plan) {
                started += 1;
            }
            if rng.below(5) == 0 {
                let target = sides[1].port.targets.keys().min().copied();
                let reads = sides[1].ep.close_targets(|ctx| Some(ctx) == target);
                for id in reads {
                    cancel_reads(&mut sides[1], id);
                }
            }
            deliver(&mut sides, now, None);
        }
        for (ctx, _) in sides[0].port.sent.iter().filter(|(_, r)| r.is_err()) {
            failed[*ctx as usize % 2] += 1;
        }
        assert_nothing_left(seed, &sides);
    }
    assert!(
        failed.iter().all(|n| *n > 0),
        "{failed:?} writes and reads have failed"
    );
}

/// The device of side 1 fails to copy half of the region: the accesses to that half fail at their
/// initiator, the others do not.
#[test]
fn what_a_device_fails_to_copy_fails_at_the_initiator() {
    for seed in 0..seeds(2_000) {
        let mut rng = Rng::new(seed ^ 0xdead);
        let mut sides = vec![side(0, &mut rng), side(1, &mut rng)];
        // What the adapter reads, no device copies.
        sides[0].port.readable = false;
        sides[1].port.depth = 1 + rng.below(4) as usize;
        sides[1].port.broken = true;
        let count = 8;
        let (mut started, mut now) = (0, 0u64);
        while sides[0].port.sent.len() < count as usize || !sides.iter().all(settled) {
            now += 1;
            assert!(now < 100_000, "seed {seed} stuck");
            let at = match started % 4 < 2 {
                true => CELLS * 8,
                false => REGION_LEN / 2,
            } + started as usize * 1000;
            let len = 1 + rng.below(4000) as usize;
            let plan = match started % 2 {
                0 => Plan::Write { at, len },
                _ => Plan::Read { at, len },
            };
            if started < count && start(&mut sides[0], 1, started, plan) {
                started += 1;
            }
            deliver(&mut sides, now, None);
        }
        for (ctx, result) in &sides[0].port.sent {
            let wanted = if ctx % 4 < 2 { Ok(()) } else { Err(NOT_COPIED) };
            assert_eq!(*result, wanted, "seed {seed} operation {ctx}");
        }
        assert_nothing_left(seed, &sides);
    }
}

#[test]
fn a_short_buffer_truncates_and_says_so() {
    for len in [100usize, 1500, 5000, 50_000] {
        for seed in 0..seeds(40) {
            let mut rng = Rng::new(seed);
            let mut sides = vec![side(0, &mut rng), side(1, &mut rng)];
            let plan = Plan::Send {
                len,
                tag: None,
                receipt: true,
            };
            assert!(start(&mut sides[0], 1, 0, plan));
            post(&mut sides[1], 0, 60, None, true);
            let mut now = 0;
            while sides[0].port.sent.is_empty() || !sides.iter().all(settled) {
                now += 1;
                assert!(now < 10_000, "seed {seed} length {len}");
                deliver(&mut sides, now, None);
            }
            let (_, msg, result) = sides[1].port.received[0];
            let short = Failure {
                errno: FI_ETRUNC,
                status: 0,
            };
            assert_eq!((msg.len as usize, result), (len, Err(short)), "seed {seed}");
            assert_eq!(sides[1].port.memory[&0], pattern(0, len)[..60]);
            assert_eq!(sides[0].port.sent[&0], Ok(()));
        }
    }
}

#[test]
fn a_multi_receive_buffer_takes_messages_until_it_is_full() {
    for seed in 0..seeds(200) {
        let mut rng = Rng::new(seed);
        let mut sides = vec![side(0, &mut rng), side(1, &mut rng)];
        let lens: Vec<usize> = (0..12).map(|_| rng.below(2000) as usize).collect();
        let room = 6000usize;
        sides[1].port.memory.insert(99, vec![0; room]);
        let a = RecvArgs {
            src: ANY,
            ctx: 99,
            len: room as u64,
            tagged: false,
            tag: 0,
            ignore: 0,
            multi: Some(2000),
        };
        let (mut now, mut next, mut posted) = (0, 0, false);
        let when = rng.below(300);
        let over = |s: &ProtoSimEndpoint| s.port.received.last().is_some_and(|r| !r.1.stays);
        while !over(&sides[1]) && now < 50_000 {
            now += 1;
            if next < lens.len() {
                let plan = Plan::Send {
                    len: lens[next],
                    tag: None,
                    receipt: false,
                };
                next += usize::from(start(&mut sides[0], 1, next as u32, plan));
            }
            if now >= when && !posted {
                posted = true;
                let s = &mut sides[1];
                assert!(s.rq.post(&a).is_none());
                while let Some((u, place)) = s.rq.fill(&a, |_| unreachable!("none is plain")) {
                    s.ep.start_unexpected(place, &u, &mut s.rq, &mut s.port);
                }
            }
            deliver(&mut sides, now, None);
        }
        let b = &sides[1].port;
        let total: usize = b.received.iter().map(|r| r.1.len as usize).sum();
        let all: usize = lens.iter().sum();
        // Closed when less than 2000 is left, or never when the messages are too few.
        assert!(over(&sides[1]) || all <= room - 2000, "seed {seed}");
        for (_, msg, r) in &b.received {
            let n = (0..lens.len() as u32).find(|n| {
                let p = pattern(*n, lens[*n as usize]);
                let at = msg.base as usize;
                lens[*n as usize] == msg.len as usize && b.memory[&99][at..at + p.len()] == p
            });
            assert!(n.is_some() && r.is_ok(), "seed {seed}");
        }
        assert!(total <= room, "seed {seed}");
    }
}
