//! Two endpoints, a virtual network with a seed, and the promise that every message arrives
//! once, complete, in order, whatever the network does to the packets' order.

use super::*;
use crate::core::rng::Rng;
use crate::types::*;
use std::collections::HashMap;

/// What an endpoint did to the world.
#[derive(Default)]
struct World {
    /// Packets on their way: (due, bytes, sender's token).
    air: Vec<(u64, Vec<u8>, Token)>,
    depth: usize,
    memory: HashMap<u32, Vec<u8>>,
    sent: Vec<(u32, Result<(), Failure>)>,
    received: Vec<(u32, Received, Result<(), Failure>)>,
    expecting: i64,
    clock: u64,
    jitter: Vec<u64>,
}

impl Port for World {
    fn room(&self) -> bool {
        self.air.len() < self.depth
    }

    fn send(&mut self, _to: PeerId, head: &[u8], body: Option<Body>, token: Token) -> bool {
        if !self.room() {
            return false;
        }
        let mut p = head.to_vec();
        if let Some(b) = body {
            p.extend_from_slice(&self.memory[&b.ctx][b.off as usize..b.off as usize + b.len]);
        }
        let late = self.jitter.pop().unwrap_or(0);
        self.air.push((self.clock + late, p, token));
        true
    }

    fn store(&mut self, ctx: u32, off: u64, bytes: &[u8]) {
        let m = self.memory.entry(ctx).or_default();
        let (off, len) = (off as usize, m.len());
        let n = bytes.len().min(len.saturating_sub(off));
        if n > 0 {
            m[off..off + n].copy_from_slice(&bytes[..n]);
        }
    }

    fn sent(&mut self, ctx: u32, result: Result<(), Failure>) {
        self.sent.push((ctx, result));
    }

    fn received(&mut self, ctx: u32, msg: Received, result: Result<(), Failure>) {
        self.received.push((ctx, msg, result));
    }

    fn expect(&mut self, _peer: PeerId, on: bool) {
        self.expecting += if on { 1 } else { -1 };
    }
}

struct Side {
    ep: Endpoint,
    world: World,
}

fn side(mtu: usize) -> Side {
    let mut ep = Endpoint::new(mtu, [3; 32], 0, None);
    assert_eq!(ep.add_peer(), 0);
    Side {
        ep,
        world: World {
            depth: 40,
            ..World::default()
        },
    }
}

/// Hands packets that are due to the other side, and their completions back.
fn deliver(from: &mut Side, to: &mut Side, now: u64) {
    from.world.clock = now;
    to.world.clock = now;
    let mut i = 0;
    while i < from.world.air.len() {
        if from.world.air[i].0 > now {
            i += 1;
            continue;
        }
        let (_, bytes, token) = from.world.air.swap_remove(i);
        to.ep.packet(0, &bytes, &mut to.world);
        if let Token::Tx(id) = token {
            from.ep.packet_done(id, None, &mut from.world);
        }
    }
    from.ep.progress(&mut from.world);
}

fn pattern(n: u64, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u64 * 7 + n) as u8).collect()
}

#[test]
fn every_message_arrives_once_in_order_and_whole() {
    for seed in 0..500 {
        let mut rng = Rng::new(seed);
        let mtu = 200 + rng.below(400) as usize;
        let (mut a, mut b) = (side(mtu), side(mtu));
        let count = 1 + rng.below(60) as u32;
        let lens: Vec<usize> = (0..count)
            .map(|_| if rng.below(3) == 0 { rng.below(20_000) } else { rng.below(300) } as usize)
            .collect();
        let tags: Vec<Option<u64>> = (0..count)
            .map(|_| (rng.below(2) == 0).then(|| rng.below(3)))
            .collect();
        let (mut next_send, mut next_recv, mut now) = (0u32, 0u32, 0u64);
        while a.world.sent.len() < count as usize || b.world.received.len() < count as usize {
            now += 1;
            assert!(now < 200_000, "seed {seed} stuck");
            a.world.jitter = (0..64).map(|_| rng.below(30)).collect();
            b.world.jitter = (0..64).map(|_| rng.below(30)).collect();
            if next_send < count && rng.below(2) == 0 {
                let n = next_send as usize;
                a.world.memory.insert(next_send, pattern(n as u64, lens[n]));
                let args = SendArgs {
                    peer: 0,
                    ctx: next_send,
                    len: lens[n] as u64,
                    tag: tags[n],
                    cq_data: n.is_multiple_of(3).then_some(n as u64),
                    receipt: n.is_multiple_of(4),
                };
                if a.ep.send(&args, &mut a.world).is_ok() {
                    next_send += 1;
                }
            }
            if next_recv < count && rng.below(2) == 0 {
                // Receives are posted in the order of the messages: the n-th takes the n-th of
                // its kind and tag.
                let n = next_recv as usize;
                b.world.memory.insert(next_recv, vec![0; lens[n]]);
                let args = RecvArgs {
                    src: if rng.below(2) == 0 { ANY } else { 0 },
                    ctx: next_recv,
                    len: lens[n] as u64,
                    tagged: tags[n].is_some(),
                    tag: tags[n].unwrap_or(0),
                    ignore: 0,
                };
                b.ep.recv(&args, &mut b.world);
                next_recv += 1;
            }
            deliver(&mut a, &mut b, now);
            deliver(&mut b, &mut a, now);
        }
        for (ctx, msg, result) in &b.world.received {
            let n = *ctx as usize;
            assert_eq!(*result, Ok(()), "seed {seed} message {n}");
            assert_eq!(msg.len as usize, lens[n]);
            assert_eq!(msg.cq_data, n.is_multiple_of(3).then_some(n as u64));
            assert_eq!(
                b.world.memory[ctx],
                pattern(*ctx as u64, lens[n]),
                "seed {seed} message {n}"
            );
        }
        for _ in 0..100 {
            now += 1;
            deliver(&mut a, &mut b, now);
            deliver(&mut b, &mut a, now);
        }
        assert_eq!((a.ep.sending(), b.ep.unexpected()), (0, 0));
        assert_eq!((a.world.expecting, b.world.expecting), (0, 0));
    }
}

#[test]
fn a_short_buffer_truncates_and_says_so() {
    for len in [100usize, 5000] {
        let (mut a, mut b) = (side(300), side(300));
        a.world.memory.insert(0, pattern(0, len));
        b.world.memory.insert(0, vec![0; 60]);
        let args = SendArgs {
            peer: 0,
            ctx: 0,
            len: len as u64,
            tag: None,
            cq_data: None,
            receipt: true,
        };
        a.ep.send(&args, &mut a.world).unwrap();
        let args = RecvArgs {
            src: ANY,
            ctx: 0,
            len: 60,
            tagged: false,
            tag: 0,
            ignore: 0,
        };
        b.ep.recv(&args, &mut b.world);
        for now in 1..200 {
            deliver(&mut a, &mut b, now);
            deliver(&mut b, &mut a, now);
        }
        let (_, msg, result) = b.world.received[0];
        assert_eq!(
            (msg.len as usize, result),
            (
                len,
                Err(Failure {
                    errno: FI_ETRUNC,
                    status: 0
                })
            )
        );
        assert_eq!(b.world.memory[&0], pattern(0, len)[..60]);
        assert_eq!(a.world.sent, [(0, Ok(()))]);
    }
}

#[test]
fn a_peer_that_dies_fails_what_it_owed() {
    let (mut a, mut b) = (side(300), side(300));
    a.world.memory.insert(0, pattern(0, 5000));
    b.world.memory.insert(0, vec![0; 5000]);
    let args = SendArgs {
        peer: 0,
        ctx: 0,
        len: 5000,
        tag: Some(1),
        cq_data: None,
        receipt: false,
    };
    a.ep.send(&args, &mut a.world).unwrap();
    let args = RecvArgs {
        src: ANY,
        ctx: 0,
        len: 5000,
        tagged: true,
        tag: 1,
        ignore: 0,
    };
    b.ep.recv(&args, &mut b.world);
    deliver(&mut a, &mut b, 1);
    let dead = Failure {
        errno: FI_EHOSTDOWN,
        status: 13,
    };
    b.ep.peer_down(0, dead, &mut b.world);
    a.ep.peer_down(0, dead, &mut a.world);
    assert_eq!(a.world.sent, [(0, Err(dead))]);
    assert_eq!(b.world.received.len(), 1);
    assert_eq!(b.world.received[0].2, Err(dead));
    assert_eq!((a.world.expecting, b.world.expecting), (0, 0));
    // Packets that come late find nothing and do no harm.
    deliver(&mut b, &mut a, 9);
    assert_eq!(a.world.sent.len(), 1);
}
