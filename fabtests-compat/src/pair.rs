//! One case: processes, a port, a time limit, and what they printed.

use crate::cases::Case;
use crate::hosts::Side;
use crate::TargetArgs;
use nix::sys::memfd::{memfd_create, MFdFlags};
use std::ffi::OsString;
use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A port that is free now, for the out-of-band connection.
fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|l| l.local_addr())
        .map_or(0, |a| a.port())
}

/// Whether a socket of the host of process `pid` listens on this port. Does not connect: the server
/// accepts only once.
fn listening(pid: u32, port: u16) -> bool {
    let of = |name| std::fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default();
    let (text, six) = (of("tcp"), of("tcp6"));
    let want = format!(":{port:04X} ");
    text.lines().chain(six.lines()).any(|l| {
        let mut f = l.split_whitespace();
        let local = f.nth(1).unwrap_or("");
        let state = f.nth(1).unwrap_or("");
        format!("{local} ").ends_with(&want) && state == "0A"
    })
}

/// Output of a process, in a memfd: unlike with a pipe, the process never blocks on its reader, and
/// the reader does not wait for descendants that inherited the output.
struct CapturedOutput(File);

impl CapturedOutput {
    fn new() -> Result<CapturedOutput, String> {
        let fd = memfd_create(c"printed", MFdFlags::MFD_CLOEXEC);
        fd.map(|fd| CapturedOutput(fd.into()))
            .map_err(|e| e.to_string())
    }

    fn stdio(&self) -> Result<Stdio, String> {
        let copy = self.0.try_clone().map_err(|e| e.to_string())?;
        Ok(copy.into())
    }

    fn text(&self) -> String {
        let len = self.0.metadata().map_or(0, |m| m.len());
        let mut bytes = vec![0; len as usize];
        match self.0.read_exact_at(&mut bytes, 0) {
            Ok(()) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(e) => e.to_string(),
        }
    }
}

struct Proc {
    child: Child,
    out: CapturedOutput,
    err: CapturedOutput,
}

impl Proc {
    fn start(at: &TargetArgs, c: &Case, side: Side, extra: &[String]) -> Result<Proc, String> {
        let program = at.bin.join(&c.program).into_os_string();
        let host = c.hosts.as_ref().map(|h| h.inside(side));
        let host = host.iter().flatten().map(OsString::from);
        let mut words = host
            .chain(c.under.iter().map(OsString::from))
            .chain([program]);
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words);
        let (out, err) = (CapturedOutput::new()?, CapturedOutput::new()?);
        let child = command
            .args(&c.args)
            .args(extra)
            .env("LD_LIBRARY_PATH", first(&at.lib))
            .envs(c.env.iter().cloned())
            .stdin(Stdio::null())
            .stdout(out.stdio()?)
            .stderr(err.stdio()?)
            .spawn()
            .map_err(|e| format!("{}: {e}", c.program))?;
        Ok(Proc { child, out, err })
    }

    fn ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Whether it succeeded, how it ended, and everything printed. The log comes first: the end of
    /// the text is the program's own output.
    fn finish(mut self) -> (bool, String, String) {
        let (ok, end) = match self.child.wait() {
            Ok(status) => (status.success(), status.to_string()),
            Err(e) => (false, e.to_string()),
        };
        (ok, end, self.err.text() + &self.out.text())
    }
}

fn wait(procs: &mut [&mut Proc], limit: Duration) -> bool {
    let until = Instant::now() + limit;
    while !procs.iter_mut().all(|p| p.ended()) {
        if Instant::now() > until {
            for p in procs {
                let _ = p.child.kill();
            }
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// LD_LIBRARY_PATH with this folder in front of what is there.
fn first(lib: &Path) -> OsString {
    let mut path = lib.as_os_str().to_owned();
    if let Some(rest) = std::env::var_os("LD_LIBRARY_PATH") {
        path.push(":");
        path.push(rest);
    }
    path
}

/// Runs a case. Returns what the client printed, or why the case failed.
pub fn run(at: &TargetArgs, c: &Case) -> Result<String, String> {
    let limit = Duration::from_secs(c.limit.unwrap_or(at.limit));
    if !c.pair {
        let mut p = Proc::start(at, c, Side::Server, &[])?;
        let in_time = wait(&mut [&mut p], limit);
        let (ok, end, text) = p.finish();
        return match (in_time, ok) {
            (true, true) => Ok(text),
            (true, false) => Err(format!("{text}\n{end}")),
            (false, _) => Err(format!("{text}\ntime limit")),
        };
    }
    let port = free_port();
    let options = |letter: &str| {
        let port = if c.pingpong_ports {
            vec![format!("-{letter}"), port.to_string()]
        } else {
            vec![format!("-E={port}")]
        };
        let provider = c.provider.unwrap_or(&at.provider);
        let mut all = vec!["-p".to_string(), provider.to_string()];
        // Unless they ask for a fabric, programs would take the first that is offered:
        // `efa-direct`.
        if provider == "efa" && !c.pingpong_ports && !c.args.iter().any(|a| a == "-f") {
            all.extend(["-f", "efa"].map(str::to_string));
        }
        [all, port].concat()
    };
    let pin = |core| {
        if at.pin {
            crate::floors::pin(core);
        }
    };
    pin(0);
    let mut server = Proc::start(at, c, Side::Server, &options("B"))?;
    let until = Instant::now() + limit;
    while !listening(server.child.id(), port) {
        if server.ended() || Instant::now() > until {
            let _ = server.child.kill();
            return Err(format!("{}\nthe server did not start", server.finish().2));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut args = options("P");
    let address = c.hosts.as_ref().map_or("127.0.0.1", |h| h.server());
    args.push(address.into());
    pin(1);
    let mut client = Proc::start(at, c, Side::Client, &args)?;
    let in_time = wait(&mut [&mut server, &mut client], limit);
    let (s_ok, s_end, s_text) = server.finish();
    let (c_ok, c_end, c_text) = client.finish();
    if s_ok && c_ok && in_time {
        return Ok(c_text);
    }
    let why = if in_time {
        format!("server {s_end}, client {c_end}")
    } else {
        "time limit".to_string()
    };
    Err(format!("server:\n{s_text}\nclient:\n{c_text}\n{why}"))
}

/// Microseconds per transfer of `bytes` and MB/s of the last row of a table; lines of the log may
/// follow it. The rate gives the time, which the table prints to 0.01 only.
pub fn row(text: &str, bytes: u64) -> Option<(f64, f64)> {
    let (us, rate): (f64, f64) = text.lines().rev().find_map(|line| {
        let f: Vec<&str> = line.split_whitespace().collect();
        let n = f.len();
        let number = |back: usize| f.get(n.checked_sub(back)?)?.parse().ok();
        let _rate: f64 = number(1)?;
        Some((number(2)?, number(3)?))
    })?;
    let precise = bytes as f64 / rate;
    let time = match (precise - us).abs() {
        off if off <= 0.01 => precise,
        _ => us,
    };
    Some((time, rate))
}

/// The median run, by time.
pub fn median(mut v: Vec<(f64, f64)>) -> Option<(f64, f64)> {
    v.sort_by(|a, b| a.0.total_cmp(&b.0));
    v.get(v.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    #[test]
    fn rows_are_read_from_the_end_of_a_program_output() {
        let t = "bytes   iters   total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                 64k     1k      62m         0.07s   1841.49      35.59       0.03\n";
        assert_eq!(super::row(t, 65536), Some((65536.0 / 1841.49, 1841.49)));
        let logged = format!("{t}libfabric:1:2:efa:fabric:any():82<warn> a line of 3 words\n");
        assert_eq!(super::row(&logged, 0), Some((35.59, 1841.49)));
        assert_eq!(super::row("", 8), None);
        assert_eq!(
            super::median(vec![(3.0, 1.0), (1.0, 3.0), (2.0, 2.0)]),
            Some((2.0, 2.0))
        );
    }
}
