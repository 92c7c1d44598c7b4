//! What finding a receive or a message costs, by how many others wait: `depth DEPTH ROUNDS KIND`.
//!
//! To be run under callgrind, which counts instructions (`make depth`): the cost of one message is
//! the difference of the counts for two values of ROUNDS, divided by the difference of ROUNDS. KIND
//! is `posted` (a message finds one of DEPTH receives), `unexpected` (a receive finds one of DEPTH
//! messages), or either with `-any`: some receives then have wildcards of source and tag bits.

use fabric::proto::matching::{Matcher, Posted, ANY};

fn posted(depth: u64, rounds: u64, any: bool) -> u64 {
    let mut m: Matcher<u64, u64> = Matcher::default();
    let receive = |tag: u64| Posted {
        src: if any && tag.is_multiple_of(3) {
            ANY
        } else {
            (tag % 7) as u32
        },
        tag,
        ignore: if any && tag.is_multiple_of(5) {
            0xff << 48
        } else {
            0
        },
        what: tag,
    };
    for tag in 0..depth {
        m.post(receive(tag));
    }
    let mut sum = 0;
    for i in 0..rounds {
        // A different receive in the middle each time.
        let tag = (i * 7919) % depth;
        let id = m.find_receive((tag % 7) as u32, tag).expect("posted above");
        sum += m.take_receive(id).map_or(0, |p| p.what);
        m.post(receive(tag));
    }
    sum
}

fn unexpected(depth: u64, rounds: u64, any: bool) -> u64 {
    let mut m: Matcher<u64, u64> = Matcher::default();
    // The lists of a mask are made when it is first used.
    m.find_message(ANY, 0, 0xff << 48);
    for tag in 0..depth {
        m.keep((tag % 7) as u32, tag, tag);
    }
    let mut sum = 0;
    for i in 0..rounds {
        let tag = (i * 7919) % depth;
        let src = if any && tag.is_multiple_of(3) {
            ANY
        } else {
            (tag % 7) as u32
        };
        let ignore = if any && tag.is_multiple_of(5) {
            0xff << 48
        } else {
            0
        };
        let id = m.find_message(src, tag, ignore).expect("kept above");
        sum += m.take_message(id).unwrap_or(0);
        m.keep((tag % 7) as u32, tag, tag);
    }
    sum
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number = |i: usize, default| args.get(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    let (depth, rounds) = (number(1, 10u64), number(2, 1000u64));
    let kind = args.get(3).map_or("posted", String::as_str);
    let any = kind.ends_with("-any");
    let sum = if kind.starts_with("unexpected") {
        unexpected(depth, rounds, any)
    } else {
        posted(depth, rounds, any)
    };
    println!("{sum}");
}
