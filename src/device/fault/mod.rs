//! Fault injection: drops, duplicates, reorders and delays datagrams by a seeded random number.
//!
//! [`Faults`] sits between the software adapter's reliability and its socket, on the sending side.
//! `FI_EFA_SOFT_FAULT` enables it with a list such as `loss=5,dup=5,reorder=30,delay=2000,seed=1`:
//! percentages, and for reordered datagrams a maximum delay in microseconds. No code of this module
//! runs when the variable is unset.

use crate::core::rng::Rng;

/// Fault rates (percent), and the datagrams held back.
#[derive(Debug)]
pub struct Faults<D> {
    loss: u64,
    dup: u64,
    reorder: u64,
    delay_ns: u64,
    rng: Rng,
    held: Vec<(u64, D)>,
}

/// The fault to apply to one datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultAction {
    Send,
    Lose,
    Double,
    /// Hold back until this time.
    Hold(u64),
}

impl<D> Faults<D> {
    /// Parses the list of the module text; `None` when the list is invalid or requests no fault.
    pub fn parse(text: &str) -> Option<Faults<D>> {
        let mut f = Faults {
            loss: 0,
            dup: 0,
            reorder: 0,
            delay_ns: 1_000_000,
            rng: Rng::new(1),
            held: Vec::new(),
        };
        for part in text.split(',').filter(|p| !p.trim().is_empty()) {
            let (name, value) = part.split_once('=')?;
            let v: u64 = value.trim().parse().ok()?;
            match name.trim() {
                "loss" => f.loss = v.min(100),
                "dup" => f.dup = v.min(100),
                "reorder" => f.reorder = v.min(100),
                "delay" => f.delay_ns = v.saturating_mul(1000),
                "seed" => f.rng = Rng::new(v),
                _ => return None,
            }
        }
        (f.loss + f.dup + f.reorder > 0).then_some(f)
    }

    /// Decides for the next datagram.
    pub fn next_action(&mut self, now: u64) -> FaultAction {
        if self.rng.below(100) < self.loss {
            FaultAction::Lose
        } else if self.rng.below(100) < self.dup {
            FaultAction::Double
        } else if self.rng.below(100) < self.reorder {
            FaultAction::Hold(now + 1 + self.rng.below(self.delay_ns))
        } else {
            FaultAction::Send
        }
    }

    /// Keeps a datagram until `at`.
    pub fn hold(&mut self, at: u64, d: D) {
        self.held.push((at, d));
    }

    /// Removes and returns the held datagrams that are due.
    pub fn due(&mut self, now: u64) -> Vec<D> {
        let mut out = Vec::new();
        let mut i = 0;
        while let Some((at, _)) = self.held.get(i) {
            if *at <= now {
                out.push(self.held.swap_remove(i).1);
            } else {
                i += 1;
            }
        }
        out
    }

    /// When the next held datagram is due.
    pub fn next_due(&self) -> Option<u64> {
        self.held.iter().map(|(at, _)| *at).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_faults() {
        let fates = |t: &str| {
            let mut f: Faults<()> = Faults::parse(t).unwrap();
            (0..1000).map(|n| f.next_action(n)).collect::<Vec<_>>()
        };
        let a = fates("loss=5,dup=5,reorder=30,seed=3");
        assert_eq!(a, fates("loss=5,dup=5,reorder=30,seed=3"));
        assert_ne!(a, fates("loss=5,dup=5,reorder=30,seed=4"));
        let lost = a.iter().filter(|f| **f == FaultAction::Lose).count();
        assert!((20..100).contains(&lost), "{lost}");
        assert!(Faults::<()>::parse("").is_none());
        assert!(Faults::<()>::parse("loss=x").is_none());
    }

    #[test]
    fn held_datagrams_come_out_when_due() {
        let mut f = Faults::parse("reorder=100").unwrap();
        f.hold(10, 'a');
        f.hold(5, 'b');
        assert_eq!(f.next_due(), Some(5));
        assert_eq!(f.due(7), vec!['b']);
        assert_eq!(f.due(10), vec!['a']);
    }
}
