//! Drives client and server processes of the benchmark programs from a table of cases.
//!
//! Works with any `libfabric.so.1` (`--lib`: its folder, put first on `LD_LIBRARY_PATH`) and any
//! folder of fabtests binaries (`--bin`): ours, or an installed upstream one. A case is one or two
//! processes over loopback; a process that exceeds the time limit is killed by its pid.

mod cases;
mod floors;
mod hosts;
mod instructions;
mod pair;
mod plot;
mod steal;

use cases::Case;
use clap::{Args, Parser, Subcommand};
use comfy_table::{presets, Table};
use hosts::{Hosts, Link};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

#[derive(Parser)]
#[command(about = "Runs fabtests programs in pairs against a libfabric.so.1")]
struct Cli {
    #[command(subcommand)]
    what: CliCommand,
}

#[derive(Args, Clone)]
struct TargetArgs {
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
    /// One processor for the server, another for the client
    #[arg(long)]
    pin: bool,
}

#[derive(Subcommand)]
enum CliCommand {
    /// All cases, with verification: a table of pass or fail and time
    Run {
        #[command(flatten)]
        at: TargetArgs,
        /// Only cases whose name contains this
        #[arg(long, default_value = "")]
        filter: String,
    },
    /// Cases for an EFA adapter, real or emulated (`efa-sim run -- ...`)
    Adapter {
        #[command(flatten)]
        at: TargetArgs,
        /// Only cases whose name contains this
        #[arg(long, default_value = "")]
        filter: String,
    },
    /// The case of `make demo`: fi_rma_bw write between two processes, 1 B to 8 MiB
    Demo {
        #[command(flatten)]
        at: TargetArgs,
        /// With memory of a GPU.
        #[arg(long)]
        cuda: bool,
    },
    /// Instructions of each call, by valgrind
    Instructions {
        #[command(flatten)]
        at: TargetArgs,
        /// Over an EFA adapter alone (`efa-sim run -- ...`), with the protocol and without
        #[arg(long)]
        far: bool,
    },
    /// Speed of every program; with --peer alternating with another library, medians and ratio
    Bench {
        #[command(flatten)]
        at: TargetArgs,
        /// Another libfabric.so.1, compared in the same run
        #[arg(long)]
        peer: Option<PathBuf>,
        /// Provider to ask the other library for
        #[arg(long, default_value = "tcp")]
        peer_provider: String,
        /// Server and client on two hosts (network namespaces), with this MTU of their link
        #[arg(long)]
        hosts: Option<u16>,
        /// Packets of a thousand that this link loses
        #[arg(long, default_value_t = 0, requires = "hosts")]
        loss: u16,
        /// Runs of each
        #[arg(long, default_value_t = 5)]
        runs: usize,
        /// Only programs whose name and options contain this
        #[arg(long, default_value = "")]
        filter: String,
        /// As JSON, one object, in place of the table
        #[arg(long)]
        json: bool,
        /// Also as a picture (SVG): time and bandwidth over size
        #[arg(long)]
        plot: Option<PathBuf>,
    },
}

fn run(at: &TargetArgs, cases: Vec<Case>, filter: &str) -> bool {
    let mut table = Table::new();
    table
        .load_preset(presets::UTF8_BORDERS_ONLY)
        .set_header(["case", "result", "seconds"]);
    let mut passed = 0;
    // Printed after the table, what was printed first and the verdicts last, so that the end of a
    // log shows them.
    let mut failures = Vec::new();
    let mut verdicts = Vec::new();
    let all: Vec<Case> = cases
        .into_iter()
        .filter(|c| c.name.contains(filter))
        .collect();
    for c in all {
        let t = Instant::now();
        let r = pair::run(at, &c);
        let word = match &r {
            Ok(_) => "pass".to_string(),
            Err(why) => {
                let verdict = format!("FAIL: {}", why.lines().last().unwrap_or(""));
                failures.push(format!("--- {}\n{why}", c.name));
                verdicts.push(format!("{}: {verdict}", c.name));
                verdict
            }
        };
        passed += usize::from(r.is_ok());
        table.add_row([
            c.name.clone(),
            word,
            format!("{:.2}", t.elapsed().as_secs_f64()),
        ]);
    }
    println!("{table}");
    for line in failures.iter().chain(&verdicts) {
        println!("{line}");
    }
    println!("{passed} passed, {} failed", failures.len());
    failures.is_empty() && passed > 0
}

/// One program at one size: medians of both libraries.
#[derive(serde::Serialize)]
struct Measured {
    program: String,
    bytes: u64,
    /// Microseconds per transfer, and MB/s.
    ours: Option<(f64, f64)>,
    peer: Option<(f64, f64)>,
    /// Our time to the peer's: the median of the runs' ratios, because both libraries of one run
    /// meet the same phase of a machine whose speed changes.
    ratio: Option<f64>,
    /// Microseconds of one copy from process to process, on one host and where it takes most of the
    /// time.
    floor: Option<f64>,
    /// Number of runs behind the medians: those without steal time, or all runs if too few were
    /// undisturbed.
    runs: usize,
    disturbed: bool,
}

/// Everything that one run of the benchmarks found.
#[derive(serde::Serialize)]
struct Report {
    floors: floors::Floors,
    rows: Vec<Measured>,
}

/// Upper limit of runs, as a multiple of `runs`, while too few runs were undisturbed.
const MAX_RUNS_FACTOR: usize = 4;

/// Bytes from which on the copy takes most of a transfer's time on one host.
const FLOOR_FROM: u64 = 65536;

/// Microseconds per transfer and MB/s of both libraries in one run.
type RunPair = (Option<(f64, f64)>, Option<(f64, f64)>);

/// Runs both libraries in turn and takes the medians.
fn measure(
    at: &TargetArgs,
    other: Option<&TargetArgs>,
    runs: usize,
    c: &Case,
    bytes: u64,
) -> Result<Measured, String> {
    let (mut calm, mut all) = (Vec::new(), Vec::new());
    for _ in 0..MAX_RUNS_FACTOR * runs.max(1) {
        let (peace, both) = steal::watched(|| {
            let row = |text: String| pair::row(&text, bytes);
            let ours = row(pair::run(at, c)?);
            // A case that the other library cannot run has no figure.
            let theirs = other.and_then(|o| row(pair::run(o, c).ok()?));
            Ok::<_, String>((ours, theirs))
        });
        let both = both?;
        all.push(both);
        calm.extend(peace.then_some(both));
        if calm.len() >= runs {
            break;
        }
    }
    let disturbed = 2 * calm.len() < runs;
    let of = if disturbed { all } else { calm };
    let ours = pair::median(of.iter().filter_map(|b| b.0).collect());
    let peer = pair::median(of.iter().filter_map(|b| b.1).collect());
    let ratio = |b: &RunPair| b.0.zip(b.1).map(|(a, b)| (a.0 / b.0, 0.0));
    let ratio = pair::median(of.iter().filter_map(ratio).collect());
    Ok(Measured {
        program: String::new(),
        bytes,
        ours,
        peer,
        ratio: ratio.map(|r| r.0),
        floor: None,
        runs: of.len(),
        disturbed,
    })
}

fn bench(
    at: &TargetArgs,
    other: Option<&TargetArgs>,
    runs: usize,
    filter: &str,
    hosts: Option<&Arc<Hosts>>,
) -> Result<Report, String> {
    let mut rows = Vec::new();
    for (program, args) in cases::BENCH {
        let name = format!("{program} {args}").trim().to_string();
        if !name.contains(filter) {
            continue;
        }
        for size in cases::BENCH_SIZES {
            let mut c = Case::pair(program, &format!("{args} -S {size}"));
            if let Some(hosts) = hosts {
                c = c.between(hosts);
            }
            let bytes = size.parse().unwrap_or(0);
            let m = measure(at, other, runs, &c, bytes)?;
            let copied = hosts.is_none() && bytes >= FLOOR_FROM;
            rows.push(Measured {
                program: name.clone(),
                floor: copied.then(|| floors::one_copy_us(bytes as usize)),
                ..m
            });
        }
    }
    let floors = floors::measure();
    Ok(Report { floors, rows })
}

fn show(r: &Report) {
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
        "one copy us",
        "runs",
    ]);
    let cell = |v: Option<f64>| v.map_or("-".into(), |v| format!("{v:.2}"));
    for m in &r.rows {
        table.add_row([
            m.program.clone(),
            m.bytes.to_string(),
            cell(m.ours.map(|v| v.0)),
            cell(m.ours.map(|v| v.1)),
            cell(m.peer.map(|v| v.0)),
            cell(m.peer.map(|v| v.1)),
            cell(m.ratio),
            cell(m.floor),
            format!("{}{}", m.runs, if m.disturbed { ", disturbed" } else { "" }),
        ]);
    }
    let f = &r.floors;
    println!("{table}");
    println!(
        "this machine: cache line from core to core {:.0} ns; process_vm_writev 8 bytes {:.0} ns, \
         1 MiB {:.1} GB/s; memcpy 1 MiB {:.1} GB/s",
        f.hand_over_ns, f.attach_ns, f.attach_gb, f.memcpy_gb
    );
}

fn main() -> ExitCode {
    let ok = match Cli::parse().what {
        CliCommand::Run { at, filter } => run(&at, cases::all(&at.bin), &filter),
        CliCommand::Adapter { at, filter } => run(&at, cases::adapter(&at.bin), &filter),
        CliCommand::Demo { at, cuda } => {
            let c = match cuda {
                true => Case::cuda_demo(),
                false => Case::demo(),
            };
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
        CliCommand::Instructions { at, far } => match instructions::count(&at, far) {
            Ok(rows) => {
                let mut table = Table::new();
                table.load_preset(presets::UTF8_BORDERS_ONLY);
                table.set_header(["route", "program", "call", "calls", "instructions each"]);
                for r in rows {
                    table.add_row([
                        r.route.to_string(),
                        r.program,
                        r.call.to_string(),
                        r.cost.calls.to_string(),
                        format!("{:.0}", r.cost.each()),
                    ]);
                }
                println!("{table}");
                true
            }
            Err(why) => {
                eprintln!("{why}");
                false
            }
        },
        CliCommand::Bench {
            at,
            peer,
            peer_provider,
            hosts,
            loss,
            runs,
            filter,
            json,
            plot,
        } => {
            let other = peer.map(|p| TargetArgs {
                lib: p.parent().map(PathBuf::from).unwrap_or_default(),
                provider: peer_provider,
                ..at.clone()
            });
            let link = hosts.map(|mtu| Link {
                mtu,
                loss,
                sealed: false,
            });
            let result = link.map(Hosts::new).transpose().and_then(|hosts| {
                let hosts = hosts.map(Arc::new);
                bench(&at, other.as_ref(), runs, &filter, hosts.as_ref())
            });
            let result = result.and_then(|r| match &plot {
                Some(file) => plot::draw(&r, file).map(|()| r),
                None => Ok(r),
            });
            match result {
                Ok(r) if json => match serde_json::to_string_pretty(&r) {
                    Ok(text) => {
                        println!("{text}");
                        true
                    }
                    Err(_) => false,
                },
                Ok(r) => {
                    show(&r);
                    true
                }
                Err(why) => {
                    eprintln!("{why}");
                    false
                }
            }
        }
    };
    if ok {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
