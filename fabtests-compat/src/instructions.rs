//! What each call costs in instructions, counted by callgrind: the same from run to run, on any
//! machine.
//!
//! A benchmark program runs as usual, both sides under valgrind; the profiles say how often each
//! entry point of the library was called, and how many instructions it executed. Polls that find
//! nothing are calls, too.

use crate::cases::Case;
use crate::{pair, TargetArgs};
use std::collections::BTreeMap;
use std::path::Path;

/// Calls, and instructions within them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    pub calls: u64,
    pub instructions: u64,
}

impl Cost {
    /// Instructions of one call.
    pub fn each(&self) -> f64 {
        self.instructions as f64 / self.calls.max(1) as f64
    }
}

/// A program, its options, and the entry points to report: module and function of `fabric::abi`.
type Program = (&'static str, &'static str, &'static [&'static str]);

/// Programs over fabric `efa`, with the wire protocol.
const PROGRAMS: &[Program] = &[
    (
        "fi_rdm_tagged_bw",
        "-S 8",
        &["message::tinject", "message::trecv", "cq::cq_read"],
    ),
    (
        "fi_rdm_bw",
        "-S 8",
        &["message::inject", "message::recv", "cq::cq_read"],
    ),
    ("fi_rdm_tagged_bw", "-S 8192", &["message::tsend"]),
    ("fi_rdm_bw", "-S 8192", &["message::send"]),
    ("fi_rma_bw", "-o write -S 8192", &["rma::write"]),
    ("fi_rma_bw", "-o read -S 8", &["rma::read"]),
];

/// The fabric `efa-direct`.
const DIRECT: &[Program] = &[
    (
        "fi_rdm_bw",
        "-S 64 -f efa-direct",
        &["message::send", "message::recv", "cq::cq_read"],
    ),
    (
        "fi_rma_bw",
        "-o write -S 4096 -f efa-direct",
        &["rma::write"],
    ),
    ("fi_rma_bw", "-o read -S 4096 -f efa-direct", &["rma::read"]),
];

/// One entry point over one route.
pub struct Row {
    pub route: &'static str,
    pub program: String,
    pub call: &'static str,
    pub cost: Cost,
}

/// Adds up the costs of calls to the entry points in a profile (callgrind's format, names not
/// compressed).
fn add(profile: &str, into: &mut BTreeMap<String, Cost>) {
    let mut lines = profile.lines();
    let mut callee = "";
    while let Some(line) = lines.next() {
        if let Some(name) = line.strip_prefix("cfn=") {
            callee = name;
        } else if let Some(calls) = line.strip_prefix("calls=") {
            let number = |text: Option<&str>| text.and_then(|t| t.parse::<u64>().ok()).unwrap_or(0);
            let calls = number(calls.split(' ').next());
            // The next line has the position of the call and, last, the cost.
            let within = number(lines.next().and_then(|l| l.split(' ').next_back()));
            if let Some(call) = callee.strip_prefix("fabric::abi::") {
                let cost = into.entry(call.to_string()).or_default();
                cost.calls += calls;
                cost.instructions += within;
            }
        }
    }
}

fn profiles(folder: &Path) -> Result<BTreeMap<String, Cost>, String> {
    let mut all = BTreeMap::new();
    let list = std::fs::read_dir(folder).map_err(|e| e.to_string())?;
    for f in list.flatten() {
        add(
            &std::fs::read_to_string(f.path()).map_err(|e| e.to_string())?,
            &mut all,
        );
    }
    Ok(all)
}

/// Counts every program over shared memory and over the adapter. With `far`: over an EFA adapter
/// alone, with the protocol and without.
pub fn count(at: &TargetArgs, far: bool) -> Result<Vec<Row>, String> {
    let folder = at.bin.join("../callgrind");
    let mut rows = Vec::new();
    let routes: &[_] = if far {
        &["adapter"]
    } else {
        &["shared memory", "adapter"]
    };
    let direct = if far { DIRECT } else { &[] };
    for (program, args, calls) in PROGRAMS.iter().chain(direct) {
        for route in routes.iter().copied() {
            let _ = std::fs::remove_dir_all(&folder);
            std::fs::create_dir_all(&folder).map_err(|e| e.to_string())?;
            let mut case = Case::pair(program, &format!("{args} -I 5000 -w 100"));
            if route == "adapter" {
                case = case.far();
            }
            case.under = ["valgrind", "--tool=callgrind", "--compress-strings=no"]
                .map(str::to_string)
                .to_vec();
            let out = folder.join("%p").display().to_string();
            case.under.push(format!("--callgrind-out-file={out}"));
            pair::run(at, &case)?;
            let costs = profiles(&folder)?;
            for call in *calls {
                rows.push(Row {
                    route,
                    program: format!("{program} {args}"),
                    call,
                    cost: costs.get(*call).copied().unwrap_or_default(),
                });
            }
        }
    }
    let _ = std::fs::remove_dir_all(&folder);
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_their_costs_are_added_up() {
        let text = "fn=main\n10 5\ncfi=a.rs\ncfn=fabric::abi::rma::read\ncalls=3 40\n11 300\n\
                    cfn=memcpy\ncalls=9 1\n12 90\ncfn=fabric::abi::rma::read\ncalls=1 40\n13 60\n";
        let mut all = BTreeMap::new();
        add(text, &mut all);
        let cost = Cost {
            calls: 4,
            instructions: 360,
        };
        assert_eq!(all, BTreeMap::from([("rma::read".to_string(), cost)]));
        assert_eq!(cost.each(), 90.0);
    }
}
