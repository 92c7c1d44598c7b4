//! Both halves of a flow, over a network that a seed makes.

use super::*;
use crate::core::rng::Rng;

#[test]
fn numbers_wrap_and_each_is_fresh_once() {
    let mut r = RxFlow::new(u32::MAX - 1);
    for psn in [0, u32::MAX, u32::MAX - 1, 1] {
        assert!(r.fresh(psn));
        r.take(psn);
        assert!(!r.fresh(psn));
    }
    assert_eq!(r.cum(), 2);
    assert!(!r.fresh(2u32.wrapping_add(WINDOW)));
    assert!(!r.fresh(1));
}

#[test]
fn a_packet_that_never_arrives_is_noticed_although_others_do() {
    let mut tx: TxFlow<u32> = TxFlow::new(7, 1 << 20);
    let mut done = Vec::new();
    let long = tx.push(1, 9000, MS);
    for ms in 2..20 {
        let short = tx.push(2, 8, ms * MS);
        tx.ack_sel(short, &mut done);
        tx.ack_end(ms * MS);
        assert_eq!((tx.silence(ms * MS), tx.stuck(ms * MS)), (0, (ms - 1) * MS));
    }
    // Its receiver may have no buffer for it.
    tx.not_ready(long, 30 * MS);
    assert_eq!(tx.stuck(31 * MS), MS);
    tx.ack_sel(long, &mut done);
    tx.ack_end(32 * MS);
    assert_eq!(tx.stuck(90 * MS), 0);
}

/// Per cent of packets lost and doubled, and delays, nanoseconds.
#[derive(Clone, Copy)]
struct Network {
    loss: u64,
    double: u64,
    delay: u64,
    jitter: u64,
}

/// What a sender did.
#[derive(Default)]
struct Outcome {
    /// Packets sent, probes and repetitions included.
    sent: u32,
    ended_at: u64,
}

/// First number; the window is announced, so that numbers wrap early.
const FIRST: u32 = u32::MAX - 20;
const STEP: u64 = 50_000;

/// Sends `count` packets; the receiver takes nothing from `pause.0` to `pause.1`. `None` is a
/// probe.
fn send(seed: u64, count: u32, net: Network, pause: (u64, u64)) -> Outcome {
    let mut rng = Rng::new(seed);
    let mut tx: TxFlow<Option<u32>> = TxFlow::new(FIRST, 1 << 20);
    let mut rx = RxFlow::new(FIRST);
    let mut o = Outcome::default();
    let (mut now, mut next, mut got, mut done) = (0u64, 0u32, Vec::new(), Vec::new());
    let mut air: Vec<(u64, u32, Option<u32>)> = Vec::new();
    let mut acks: Vec<(u64, u32, Vec<u64>)> = Vec::new();
    while done.iter().flatten().count() < count as usize {
        now += STEP;
        assert!(now < 300_000 * MS, "seed {seed} stuck: {} done", done.len());
        let arrival = |rng: &mut Rng| now + net.delay + rng.below(net.jitter.max(1));
        if tx.tick(now) {
            if tx.has_number() {
                let psn = tx.push(None, 0, now);
                air.push((arrival(&mut rng), psn, None));
            } else if let Some((psn, what)) = tx.resend_oldest(now) {
                air.push((arrival(&mut rng), psn, *what));
            }
            o.sent += 1;
        }
        while let Some((psn, what)) = tx.resend(now) {
            air.push((arrival(&mut rng), psn, *what));
            o.sent += 1;
        }
        while next < count && tx.may_send(100) {
            let psn = tx.push(Some(next), 100, now);
            air.push((arrival(&mut rng), psn, Some(next)));
            next += 1;
            o.sent += 1;
        }
        let mut again = Vec::new();
        air.retain(|(at, psn, what)| {
            if *at > now || (pause.0..pause.1).contains(&now) {
                return true;
            }
            if rng.below(100) < net.loss {
                return false;
            }
            if rng.below(100) < net.double {
                again.push((arrival(&mut rng), *psn, *what));
            }
            if rx.fresh(*psn) {
                rx.take(*psn);
                got.extend(*what);
            }
            let mut w = [0; MAX_WORDS];
            let n = rx.words(&mut w);
            acks.push((arrival(&mut rng), rx.cum(), w[..n].to_vec()));
            false
        });
        air.extend(again);
        acks.retain(|(at, cum, words)| {
            if *at > now {
                return true;
            }
            if rng.below(100) >= net.loss {
                tx.ack_below(*cum, &mut done);
                for (i, w) in words.iter().enumerate() {
                    for b in (0..64).filter(|b| w >> b & 1 == 1) {
                        tx.ack_sel(cum.wrapping_add(i as u32 * 64 + b), &mut done);
                    }
                }
                tx.ack_end(now);
            }
            false
        });
    }
    got.sort_unstable();
    assert!(got.iter().copied().eq(0..count), "seed {seed}");
    let mut done: Vec<u32> = done.into_iter().flatten().collect();
    done.sort_unstable();
    assert!(done.iter().copied().eq(0..count), "seed {seed}");
    o.ended_at = now;
    o
}

const NEVER: (u64, u64) = (0, 0);

#[test]
fn everything_arrives_once_over_a_bad_network() {
    let net = Network {
        loss: 10,
        double: 10,
        delay: 0,
        jitter: 2 * MS,
    };
    for seed in 0..200 {
        send(seed, 300, net, NEVER);
    }
}

/// A receiver that another process keeps from its processor for 50 ms: probes, but nothing is sent
/// again.
#[test]
fn silence_is_not_loss() {
    let net = Network {
        loss: 0,
        double: 0,
        delay: 100_000,
        jitter: 0,
    };
    let o = send(1, 2000, net, (MS, 51 * MS));
    let extra = o.sent - 2000;
    assert!((1..=6).contains(&extra), "{extra} packets too many");
    assert!(o.ended_at < 70 * MS, "{} ms", o.ended_at / MS);
}

/// The last packets of a message are missed no later than by one probe.
#[test]
fn a_lost_tail_is_found_by_a_probe() {
    let mut tx: TxFlow<u32> = TxFlow::new(0, 1 << 20);
    let mut done = Vec::new();
    for n in 0..10 {
        tx.push(n, 100, 0);
    }
    // All but the last two arrive.
    tx.ack_below(8, &mut done);
    tx.ack_end(100_000);
    assert!(!tx.tick(4 * MS));
    assert!(tx.tick(6 * MS));
    let probe = tx.push(99, 0, 6 * MS);
    assert!(tx.resend(6 * MS).is_none());
    tx.ack_sel(probe, &mut done);
    tx.ack_end(6 * MS + 100_000);
    for n in [8, 9] {
        assert_eq!(tx.resend(7 * MS), Some((n, &n)));
    }
    assert_eq!(tx.resend(7 * MS), None);
    tx.ack_below(11, &mut done);
    tx.ack_end(8 * MS);
    assert!(tx.idle());
}

/// A network that reorders causes some packets to be sent twice, until the flow has measured by how
/// much it reorders.
#[test]
fn a_network_that_reorders_is_learned() {
    let net = Network {
        loss: 0,
        double: 0,
        delay: 100_000,
        jitter: 200_000,
    };
    let o = send(3, 20_000, net, NEVER);
    assert!(
        o.sent - 20_000 < 1000,
        "{} packets too many",
        o.sent - 20_000
    );
}

/// 1 % of the packets lost: few are sent twice, and the window stays open.
#[test]
fn one_per_cent_of_loss_costs_little() {
    let net = Network {
        loss: 1,
        double: 0,
        delay: 100_000,
        jitter: 0,
    };
    for seed in 0..20 {
        let o = send(seed, 10_000, net, NEVER);
        assert!(o.sent < 10_250, "seed {seed}: {} sent", o.sent);
    }
}

/// A link that passes nothing but probes: what is sent again, and lost again, narrows the window.
#[test]
fn each_round_of_losses_narrows_the_window() {
    let mut tx: TxFlow<u32> = TxFlow::new(0, 1 << 20);
    let mut done = Vec::new();
    while tx.may_send(1000) {
        tx.push(1, 1000, MS);
    }
    let mut rounds = Vec::new();
    for round in 1..10 {
        let now = round * 10 * MS;
        let probe = tx.push(99, 0, now);
        tx.ack_sel(probe, &mut done);
        // The engine has one time for a poll.
        tx.ack_end(now);
        let mut again = 0;
        while tx.resend(now).is_some() {
            again += 1;
        }
        rounds.push(again);
    }
    let (first, last) = (rounds[0], rounds[8]);
    assert!(first > 20 && last <= 4, "packets of each round: {rounds:?}");
}
