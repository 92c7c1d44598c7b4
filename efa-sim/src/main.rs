//! `efa-sim run [options] -- command`: runs a command, and whatever it starts, on a machine with
//! EFA adapters that are emulated.
//!
//! The command gets a library in front of its C library (`preload`) and a tree in place of sysfs.
//! Calls on `/dev/infiniband/uverbsN` come here, to the device process, which answers them as the
//! kernel would (`command`, `objects`), and which watches the queues that programs share with it
//! (`engine`). All programs under one `efa-sim run` are on one network.

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

use clap::{Parser, Subcommand};
use config::Config;
use device::{Context, Device};
use door::{Op, Reply, Request};
use sock::Heard;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};

#[derive(Parser)]
#[command(about = "Emulated EFA adapters for unmodified rdma-core and whatever uses it")]
struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Says whether this machine lets the device process at the memory of the programs it starts
    /// (exit status 0), which it needs; some containers do not
    Probe {
        /// Used by itself: the program that is looked at
        #[arg(long, hide = true)]
        child: bool,
    },
    /// Runs a command with emulated adapters.
    Run {
        #[command(flatten)]
        cfg: Config,
        /// The preload library, if not beside this program.
        #[arg(long)]
        preload: Option<PathBuf>,
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
}

/// A place for the socket and the tree, gone with the process.
struct Place(PathBuf);

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn main() -> ExitCode {
    let done = match Options::parse().what {
        What::Run {
            cfg,
            preload,
            command,
        } => run(cfg, preload, &command),
        What::Probe { child: true } => be_looked_at(),
        What::Probe { child: false } => probe(),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(e) => {
            eprintln!("efa-sim: {e}");
            ExitCode::from(127)
        }
    }
}

/// What [`probe`] looks for.
const WORD: [u8; 8] = *b"efa-sim!";

/// Tells where a word is, and waits for the end of its input.
fn be_looked_at() -> std::io::Result<u8> {
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
    let place = Place(std::env::temp_dir().join(format!("efa-sim-{}", std::process::id())));
    std::fs::create_dir(&place.0)?;
    sysfs::create(&place.0.join("sys"), &cfg)?;
    let socket = place.0.join("door");
    let listener = sock::listen(&socket)?;
    let before = std::env::var("LD_PRELOAD").unwrap_or_default();
    let first = command.first().map_or("", String::as_str);
    let mut c = Command::new(first);
    c.args(command.get(1..).unwrap_or(&[]))
        .env(
            "LD_PRELOAD",
            format!("{} {before}", preload.display()).trim(),
        )
        .env("SYSFS_PATH", place.0.join("sys"))
        .env(door::SOCKET, &socket)
        .env(door::ADAPTERS, cfg.adapters.to_string());
    // Without netlink, which the preload refuses, libfabric cannot know that fork is safe.
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

/// Turns without anything to do before the device naps. It does not yield instead: on a processor
/// with programs that poll, a yield lasts as long as their time slice, while a short sleep ends on
/// time.
const RESTLESS: u32 = 200;
/// How long it naps when nothing happens, microseconds: at first, and, after thousands of naps, at
/// most.
const NAP: i64 = 20;
const SLEEP: i64 = 500;

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
        if turn.is_multiple_of(8) || idle > RESTLESS {
            while let Some(s) = sock::accept(listener) {
                callers.push(s);
            }
            callers.retain_mut(|s| match sock::hear(s) {
                Heard::Nothing => true,
                Heard::Gone => false,
                Heard::Asked(r) => {
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
        if idle > RESTLESS || turn.is_multiple_of(1024) {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
        }
        if idle > RESTLESS {
            let mut fds = vec![listener.as_fd()];
            fds.extend(callers.iter().map(AsFd::as_fd));
            fds.extend(dev.contexts.values().map(|c| c.sock.as_fd()));
            let longer = i64::from((idle - RESTLESS) / 200) * 10;
            let us = if dev.waits() {
                NAP
            } else {
                (NAP + longer).min(SLEEP)
            };
            sock::wait(&fds, us);
        }
    }
}

/// Takes commands of programs in.
fn listen(dev: &mut Device) -> bool {
    let mut some = false;
    let ids: Vec<u32> = dev.contexts.keys().copied().collect();
    for id in ids {
        let Some(c) = dev.contexts.get(&id) else {
            continue;
        };
        match sock::hear(&c.sock) {
            Heard::Nothing => {}
            Heard::Gone => dev.close(id),
            Heard::Asked(r) => {
                some = true;
                dev.answer(id, &r);
            }
        }
    }
    some
}

/// A program opens an adapter.
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
