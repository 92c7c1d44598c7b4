//! Drives client and server processes of the benchmark programs from a table of cases.
//!
//! Works with any `libfabric.so.1` (`--lib`: its folder, put first on `LD_LIBRARY_PATH`) and any
//! folder of fabtests binaries (`--bin`): ours, or an installed upstream one. Every case is two
//! processes over loopback; what is started is waited for, and killed by pid when its time is up.

mod cases;
mod pair;

use cases::Case;
use clap::{Args, Parser, Subcommand};
use comfy_table::{presets, Table};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

#[derive(Parser)]
#[command(about = "Runs fabtests programs in pairs against a libfabric.so.1")]
struct Cli {
    #[command(subcommand)]
    what: What,
}

#[derive(Args, Clone)]
struct Where {
    /// Folder of the libfabric.so.1 to test
    #[arg(long)]
    lib: PathBuf,
    /// Folder of the fabtests binaries
    #[arg(long)]
    bin: PathBuf,
    /// Provider to ask for
    #[arg(long, default_value = "efa")]
    provider: String,
    /// Seconds a case may take
    #[arg(long, default_value_t = 120)]
    limit: u64,
}

#[derive(Subcommand)]
enum What {
    /// All cases, with verification: a table of pass or fail and time
    Run {
        #[command(flatten)]
        at: Where,
        /// Only cases whose name contains this
        #[arg(long, default_value = "")]
        filter: String,
    },
    /// The main job: fi_rma_bw write between two processes, 1 B to 8 MiB
    Demo {
        #[command(flatten)]
        at: Where,
    },
    /// Speed of every program; with --peer alternating with another library, medians and ratio
    Bench {
        #[command(flatten)]
        at: Where,
        /// Another libfabric.so.1, compared in the same run
        #[arg(long)]
        peer: Option<PathBuf>,
        /// Provider to ask the other library for
        #[arg(long, default_value = "tcp")]
        peer_provider: String,
        /// Runs of each
        #[arg(long, default_value_t = 5)]
        runs: usize,
    },
}

fn run(at: &Where, filter: &str) -> bool {
    let mut table = Table::new();
    table
        .load_preset(presets::UTF8_BORDERS_ONLY)
        .set_header(["case", "result", "seconds"]);
    let (mut passed, mut failed) = (0, 0);
    let all: Vec<Case> = cases::all(&at.bin)
        .into_iter()
        .filter(|c| c.name.contains(filter))
        .collect();
    for c in all {
        let t = Instant::now();
        let r = pair::run(at, &c);
        let word = match &r {
            Ok(_) => "pass".to_string(),
            Err(why) => {
                eprintln!("--- {}\n{why}", c.name);
                format!("FAIL: {}", why.lines().last().unwrap_or(""))
            }
        };
        if r.is_ok() {
            passed += 1;
        } else {
            failed += 1;
        }
        table.add_row([
            c.name.clone(),
            word,
            format!("{:.2}", t.elapsed().as_secs_f64()),
        ]);
    }
    println!("{table}\n{passed} passed, {failed} failed");
    failed == 0 && passed > 0
}

fn bench(at: &Where, peer: Option<&PathBuf>, peer_provider: &str, runs: usize) -> bool {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_BORDERS_ONLY);
    table.set_header([
        "program",
        "bytes",
        "us/xfer",
        "MB/s",
        "peer us/xfer",
        "peer MB/s",
        "ratio of time",
    ]);
    let other = peer.map(|p| Where {
        lib: p.parent().map(PathBuf::from).unwrap_or_default(),
        provider: peer_provider.to_string(),
        ..at.clone()
    });
    for (program, args) in cases::BENCH {
        for size in ["8", "1024", "4096", "65536", "1048576"] {
            let c = Case::bench(program, args, size);
            let mut ours = Vec::new();
            let mut theirs = Vec::new();
            for _ in 0..runs.max(1) {
                match pair::run(at, &c) {
                    Ok(out) => ours.extend(pair::row(&out)),
                    Err(why) => {
                        eprintln!("{}: {why}", c.name);
                        return false;
                    }
                }
                if let Some(o) = &other {
                    theirs.extend(pair::run(o, &c).ok().and_then(|out| pair::row(&out)));
                }
            }
            let ours = pair::median(ours);
            let theirs = pair::median(theirs);
            let cell = |v: Option<(f64, f64)>, f: fn((f64, f64)) -> f64| {
                v.map_or("-".into(), |v| format!("{:.2}", f(v)))
            };
            let ratio = match (ours, theirs) {
                (Some(a), Some(b)) => format!("{:.2}", a.0 / b.0),
                _ => "-".into(),
            };
            table.add_row([
                format!("{program} {args}"),
                size.to_string(),
                cell(ours, |v| v.0),
                cell(ours, |v| v.1),
                cell(theirs, |v| v.0),
                cell(theirs, |v| v.1),
                ratio,
            ]);
        }
    }
    println!("{table}");
    true
}

fn main() -> ExitCode {
    let ok = match Cli::parse().what {
        What::Run { at, filter } => run(&at, &filter),
        What::Demo { at } => {
            let c = Case::demo();
            match pair::run(&at, &c) {
                Ok(out) => {
                    println!("{} {}\n{out}", c.program, c.args.join(" "));
                    true
                }
                Err(why) => {
                    eprintln!("{why}");
                    false
                }
            }
        }
        What::Bench {
            at,
            peer,
            peer_provider,
            runs,
        } => bench(&at, peer.as_ref(), &peer_provider, runs),
    };
    if ok {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
