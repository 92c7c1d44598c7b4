//! `efa-sim run [options] -- command`: runs a command, and whatever it starts, on a machine with
//! EFA adapters that are emulated.
//!
//! The command gets a preloaded library (`preload`) and a folder in place of sysfs. Calls on
//! `/dev/infiniband/uverbsN` come here, to the device process, which answers them as the kernel
//! would (`command`, `objects`), and which polls the queues that programs share with it (`engine`).
//! All programs under one `efa-sim run` are on one network.

mod bytes;
mod command;
mod config;
mod counters;
mod device;
mod door;
mod engine;
mod objects;
mod shared;
mod sock;
mod sysfs;
mod uverbs;

use clap::{Parser, Subcommand};
use config::Config;
use device::{Context, Device};
use door::{Op, Reply, Request};
use sock::Incoming;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};

#[derive(Parser)]
#[command(about = "Emulated EFA adapters for unmodified rdma-core and whatever uses it")]
struct Options {
    #[command(subcommand)]
    what: CliCommand,
}

#[derive(Subcommand)]
enum CliCommand {
    /// Checks whether the device process may read the memory of programs that it starts
    /// (exit status 0), as the emulation requires; some containers forbid it
    Probe {
        /// Internal: the process whose memory is read
        #[arg(long, hide = true)]
        child: bool,
    },
    /// Runs a command with emulated adapters.
    Run {
        #[command(flatten)]
        cfg: Box<Config>,
        /// The preload library, if not beside this program.
        #[arg(long)]
        preload: Option<PathBuf>,
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
}

fn main() -> ExitCode {
    let done = match Options::parse().what {
        CliCommand::Run {
            cfg,
            preload,
            command,
        } => run(*cfg, preload, &command),
        CliCommand::Probe { child: true } => probe_child(),
        CliCommand::Probe { child: false } => probe(),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(e) => {
            eprintln!("efa-sim: {e}");
            ExitCode::from(127)
        }
    }
}

/// Bytes that [`probe`] reads from its child.
const WORD: [u8; 8] = *b"efa-sim!";

/// Prints the address of a copy of `WORD`, and waits for the end of its input.
fn probe_child() -> std::io::Result<u8> {
    let word = Box::new(WORD);
    println!("{}", core::ptr::from_ref(word.as_ref()) as usize);
    std::io::stdin().read_line(&mut String::new())?;
    Ok(u8::from(*word != WORD))
}

fn probe() -> std::io::Result<u8> {
    use std::io::BufRead;
    use std::process::Stdio;
    let mut child = Command::new(std::env::current_exe()?)
        .args(["probe", "--child"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        std::io::BufReader::new(out).read_line(&mut line)?;
    }
    let mut word = [0; 8];
    let at = line.trim().parse().unwrap_or(0);
    let read = shared::fetch(child.id(), at, &mut word).is_ok() && word == WORD;
    drop(child.stdin.take());
    child.wait()?;
    if !read {
        eprintln!("efa-sim: this machine forbids process_vm_readv(2): no emulated adapter");
    }
    Ok(u8::from(!read))
}

fn run(cfg: Config, preload: Option<PathBuf>, command: &[String]) -> std::io::Result<u8> {
    let beside = || {
        let exe = std::env::current_exe()?;
        let dir = exe.parent().unwrap_or(Path::new("."));
        Ok::<_, std::io::Error>(dir.join("libefa_sim_preload.so"))
    };
    let preload = match preload {
        Some(p) => p,
        None => beside()?,
    };
    if !preload.exists() {
        let what = format!("{}: no such preload library", preload.display());
        return Err(std::io::Error::other(what));
    }
    // For the socket and the sysfs tree.
    let place = tempfile::Builder::new().prefix("efa-sim-").tempdir()?;
    sysfs::create(&place.path().join("sys"), &cfg)?;
    let socket = place.path().join("door");
    let listener = sock::listen(&socket)?;
    let before = std::env::var("LD_PRELOAD").unwrap_or_default();
    let first = command.first().map_or("", String::as_str);
    let mut c = Command::new(first);
    c.args(command.get(1..).unwrap_or(&[]))
        .env(
            "LD_PRELOAD",
            format!("{} {before}", preload.display()).trim(),
        )
        .env("SYSFS_PATH", place.path().join("sys"))
        .env(door::SOCKET, &socket)
        .env(door::ADAPTERS, cfg.adapters.to_string());
    // Without netlink, which the preload refuses, libfabric cannot find out that fork is safe.
    if std::env::var_os("FI_EFA_FORK_SAFE").is_none() {
        c.env("FI_EFA_FORK_SAFE", "1");
    }
    // SAFETY: one system call between fork and exec.
    unsafe { c.pre_exec(sock::end_with_parent) };
    let mut child = c
        .spawn()
        .map_err(|e| std::io::Error::other(format!("{first}: {e}")))?;
    let status = serve(Device::new(cfg), &listener, &mut child)?;
    Ok(match status.code() {
        Some(n) => n as u8,
        None => 128 + status.signal().unwrap_or(0) as u8,
    })
}

/// Idle turns before the device sleeps. A yield in place of the sleep would last as long as the
/// time slice of a program that polls on this processor, while a short sleep ends on time.
const IDLE_TURNS: u32 = 200;
/// Microseconds of a sleep when nothing happens: the first, and the longest after thousands of
/// sleeps.
const MIN_SLEEP_US: i64 = 20;
const MAX_SLEEP_US: i64 = 500;

/// Serves programs until the command has ended.
fn serve(
    mut dev: Device,
    listener: &OwnedFd,
    child: &mut Child,
) -> std::io::Result<std::process::ExitStatus> {
    let mut callers: Vec<OwnedFd> = Vec::new();
    let mut next = 0;
    let mut idle = 0u32;
    let mut turn = 0u32;
    loop {
        turn = turn.wrapping_add(1);
        let mut some = dev.work();
        if turn.is_multiple_of(8) || idle > IDLE_TURNS {
            while let Some(s) = sock::accept(listener) {
                callers.push(s);
            }
            callers.retain_mut(|s| match sock::read_request(s) {
                Incoming::Nothing => true,
                Incoming::Gone => false,
                Incoming::Asked(r) => {
                    some = true;
                    open(&mut dev, s, &r, &mut next);
                    false
                }
            });
            some |= listen(&mut dev);
        }
        if some {
            idle = 0;
            continue;
        }
        idle = idle.saturating_add(1);
        if idle > IDLE_TURNS || turn.is_multiple_of(1024) {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
        }
        if idle > IDLE_TURNS {
            let mut fds = vec![listener.as_fd()];
            fds.extend(callers.iter().map(AsFd::as_fd));
            fds.extend(dev.contexts.values().map(|c| c.sock.as_fd()));
            let longer = i64::from((idle - IDLE_TURNS) / 200) * 10;
            let us = if dev.waits() {
                MIN_SLEEP_US
            } else {
                (MIN_SLEEP_US + longer).min(MAX_SLEEP_US)
            };
            sock::wait(&fds, us);
        }
    }
}

/// Answers requests of open contexts; whether there was one.
fn listen(dev: &mut Device) -> bool {
    let mut some = false;
    let ids: Vec<u32> = dev.contexts.keys().copied().collect();
    for id in ids {
        let Some(c) = dev.contexts.get(&id) else {
            continue;
        };
        match sock::read_request(&c.sock) {
            Incoming::Nothing => {}
            Incoming::Gone => dev.close(id),
            Incoming::Asked(r) => {
                some = true;
                dev.answer(id, &r);
            }
        }
    }
    some
}

/// Answers a program's [`Op::Open`].
fn open(dev: &mut Device, s: &OwnedFd, r: &Request, next: &mut u32) {
    let mut reply = Reply::default();
    let adapter = r.a as u32;
    if r.op != Op::Open as u32 || adapter >= dev.cfg.adapters {
        reply.error = libc::ENODEV;
    } else if let Ok(own) = s.try_clone() {
        *next += 1;
        dev.contexts.insert(*next, Context::new(adapter, own));
    } else {
        reply.error = libc::EMFILE;
    }
    sock::reply(s, &reply, None);
}
