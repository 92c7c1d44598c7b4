//! The log: one line per event that a user may have to act on, on standard error.
//!
//! `FI_LOG_LEVEL` (warn, trace, info, debug; warn when unset, `none` silences), `FI_LOG_PROV` and
//! `FI_LOG_SUBSYS` (comma lists, a leading `^` excludes) select the lines. What providers share is
//! provider "core". `fi_import_log` redirects the lines to the application; `abi` then installs a
//! [`LogSink`]. The data path logs only failures.

use super::sync::RwLock;
use super::trusted_env::trusted_var;
use crate::types::*;
use std::cell::Cell;
use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::OnceLock;

/// Where log lines go instead of standard error. `abi` implements it for an imported C logger.
pub trait LogSink: Send + Sync {
    /// Whether a line of this provider, level and subsystem is wanted; `None`: as without a sink.
    fn enabled(&self, prov: &str, level: fi_log_level, subsys: fi_log_subsys) -> Option<bool>;
    /// Takes one line, without a newline at its end; `false`: it is to be printed.
    fn line(&self, line: &LogLine) -> bool;
}

/// One line.
pub struct LogLine<'a> {
    /// Provider.
    pub prov: &'a str,
    /// Level.
    pub level: fi_log_level,
    /// Subsystem.
    pub subsys: fi_log_subsys,
    /// Where it comes from.
    pub func: &'a str,
    /// Where it comes from.
    pub line: u32,
    /// The text.
    pub text: &'a str,
}

struct Filter {
    names: Vec<String>,
    exclude: bool,
}

impl Filter {
    fn from_env(var: &str) -> Filter {
        let value = std::env::var(var).unwrap_or_default();
        let exclude = value.starts_with('^');
        let names = value
            .trim_start_matches('^')
            .split(',')
            .filter(|s| !s.is_empty())
            .map(str::to_ascii_lowercase)
            .collect();
        Filter { names, exclude }
    }

    fn allows(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|n| n == name) != self.exclude
    }

    /// As [`Self::allows`], for a provider's lines. A filter that lists providers allows the lines
    /// of [`SHARED`] code, too.
    fn allows_provider(&self, name: &str) -> bool {
        self.allows(name) || name == SHARED && !self.exclude
    }
}

struct LogConfig {
    /// Highest level printed, or `None` for silence.
    level: Option<fi_log_level>,
    prov: Filter,
    subsys: Filter,
    to: LogTarget,
}

/// Where lines go without a sink.
enum LogTarget {
    Stderr,
    Stdout,
    File(File),
}

impl LogConfig {
    fn from_env() -> LogConfig {
        let location = trusted_var("FI_LOG_LOCATION").unwrap_or_default();
        let to = match location.as_str() {
            "" | "stderr" => LogTarget::Stderr,
            "stdout" => LogTarget::Stdout,
            path => log_file(path).map_or(LogTarget::Stderr, LogTarget::File),
        };
        LogConfig {
            level: level_of(&std::env::var("FI_LOG_LEVEL").unwrap_or_default()),
            prov: Filter::from_env("FI_LOG_PROV"),
            subsys: Filter::from_env("FI_LOG_SUBSYS"),
            to,
        }
    }
}

/// The highest level printed by this FI_LOG_LEVEL, or `None` for silence.
fn level_of(name: &str) -> Option<fi_log_level> {
    match name.to_ascii_lowercase().as_str() {
        "none" | "off" => None,
        "" | "warn" | "error" => Some(FI_LOG_WARN),
        "trace" => Some(FI_LOG_TRACE),
        "info" => Some(FI_LOG_INFO),
        "debug" => Some(FI_LOG_DEBUG),
        _ => {
            let text = format!(
                "libfabric: FI_LOG_LEVEL={name} counts as warn: there are none, warn, trace, info \
                 and debug\n"
            );
            let _ = std::io::stderr().write_all(text.as_bytes());
            Some(FI_LOG_WARN)
        }
    }
}

/// The file that FI_LOG_LOCATION names, in the mode of fopen(3) that FI_LOG_LOCATION_MODE does.
fn log_file(path: &str) -> Option<File> {
    let mode = std::env::var("FI_LOG_LOCATION_MODE").unwrap_or_default();
    let append = mode.starts_with('a');
    let mut how = File::options();
    how.create(true).write(true).append(append);
    match how.truncate(!append).open(path) {
        Ok(file) => Some(file),
        Err(e) => {
            let text = format!("libfabric: FI_LOG_LOCATION={path}: {e}\n");
            let _ = std::io::stderr().write_all(text.as_bytes());
            None
        }
    }
}

static CONFIG: OnceLock<LogConfig> = OnceLock::new();
static SINK: RwLock<Option<Box<dyn LogSink>>> = RwLock::new(None);

fn config() -> &'static LogConfig {
    CONFIG.get_or_init(LogConfig::from_env)
}

/// Lower-case name of a subsystem, as `FI_LOG_SUBSYS` spells it.
pub fn subsys_name(s: fi_log_subsys) -> &'static str {
    match s {
        FI_LOG_CORE => "core",
        FI_LOG_FABRIC => "fabric",
        FI_LOG_DOMAIN => "domain",
        FI_LOG_EP_CTRL => "ep_ctrl",
        FI_LOG_EP_DATA => "ep_data",
        FI_LOG_AV => "av",
        FI_LOG_CQ => "cq",
        FI_LOG_EQ => "eq",
        FI_LOG_MR => "mr",
        FI_LOG_CNTR => "cntr",
        _ => "unknown",
    }
}

/// Lower-case name of a level, as `FI_LOG_LEVEL` spells it.
pub fn level_name(l: fi_log_level) -> &'static str {
    match l {
        FI_LOG_WARN => "warn",
        FI_LOG_TRACE => "trace",
        FI_LOG_INFO => "info",
        FI_LOG_DEBUG => "debug",
        _ => "unknown",
    }
}

/// Whether a line would be printed; ask before building an expensive one.
pub fn enabled(prov: &str, level: fi_log_level, subsys: fi_log_subsys) -> bool {
    if let Ok(sink) = SINK.read() {
        let asked = sink.as_ref().and_then(|s| s.enabled(prov, level, subsys));
        if let Some(wanted) = asked {
            return wanted;
        }
    }
    let c = config();
    c.level.is_some_and(|max| level <= max)
        && c.prov.allows_provider(prov)
        && c.subsys.allows(subsys_name(subsys))
}

thread_local! {
    /// A line was printed, or left out for being one of many, since [`explained`] was called.
    static EXPLAINED: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread has logged a reason since the last call of this function.
pub fn explained() -> bool {
    EXPLAINED.replace(false)
}

/// Prints one line unconditionally; callers ask [`enabled`] first (the macros do).
pub fn line(
    prov: &str,
    level: fi_log_level,
    subsys: fi_log_subsys,
    func: &str,
    line_no: u32,
    text: &str,
) {
    EXPLAINED.set(true);
    if let Ok(sink) = SINK.read() {
        let line = LogLine {
            prov,
            level,
            subsys,
            func,
            line: line_no,
            text,
        };
        if sink.as_ref().is_some_and(|s| s.line(&line)) {
            return;
        }
    }
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.as_secs());
    // In one piece: the lines of several processes at one terminal stay apart.
    let whole = format!(
        "libfabric:{}:{}:{}:{}:{}():{}<{}> {}\n",
        std::process::id(),
        now,
        prov,
        subsys_name(subsys),
        func,
        line_no,
        level_name(level),
        text
    );
    let _ = match &config().to {
        LogTarget::Stderr => std::io::stderr().write_all(whole.as_bytes()),
        LogTarget::Stdout => std::io::stdout().write_all(whole.as_bytes()),
        LogTarget::File(file) => (&*file).write_all(whole.as_bytes()),
    };
}

/// Milliseconds since the first call, plus one, so that the result is never 0; for rate limits.
pub fn milliseconds() -> u64 {
    static START: OnceLock<std::time::Instant> = OnceLock::new();
    START
        .get_or_init(std::time::Instant::now)
        .elapsed()
        .as_millis() as u64
        + 1
}

/// Sends all further lines to `sink`, or back to standard error with `None`. Thread safe.
pub fn set_sink(sink: Option<Box<dyn LogSink>>) {
    if let Ok(mut s) = SINK.write() {
        *s = sink;
    }
}

/// Limits a log line to one per second: for lines that a peer can trigger at any rate.
pub struct RateLimit {
    next: AtomicU64,
    skipped: AtomicU64,
}

impl Default for RateLimit {
    fn default() -> Self {
        Self::new()
    }
}

impl RateLimit {
    /// Nothing printed yet.
    pub const fn new() -> RateLimit {
        RateLimit {
            next: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
        }
    }

    /// Returns the number of suppressed lines since the last one if a line may be printed now;
    /// counts the line as suppressed otherwise.
    pub fn pass(&self) -> Option<u64> {
        let now = milliseconds();
        let next = self.next.load(Relaxed);
        if now < next
            || self
                .next
                .compare_exchange(next, now + 1000, Relaxed, Relaxed)
                .is_err()
        {
            self.skipped.fetch_add(1, Relaxed);
            EXPLAINED.set(true);
            return None;
        }
        Some(self.skipped.swap(0, Relaxed))
    }
}

/// Last path segment of `module_path!()`, which stands for the function in a line.
pub fn place(module: &'static str) -> &'static str {
    module.rsplit("::").next().unwrap_or(module)
}

/// The name in lines of what all providers use.
const SHARED: &str = "core";

/// The name under which a module's lines are logged: a provider's, or `core`. A provider's
/// modules lie in a folder of its name in `prov`; `efa` has those of its protocol and its adapters
/// as well.
pub const fn provider(module: &str) -> &str {
    let (room, part) = (segment(module, 1), segment(module, 2));
    match (room.as_bytes(), part.as_bytes()) {
        (b"prov", b"" | b"contract" | b"reports" | b"progress_thread") => SHARED,
        (b"prov", _) => part,
        (b"device", b"any" | b"mr_cache" | b"soft" | b"verbs") => "efa",
        (b"proto" | b"shm", _) => "efa",
        _ => SHARED,
    }
}

/// The segment `n` of a module's path, counted from 0; empty where the path is shorter.
const fn segment(path: &str, n: usize) -> &str {
    let bytes = path.as_bytes();
    let (mut from, mut to, mut before) = (0, 0, 0);
    while to < bytes.len() {
        if bytes[to] == b':' {
            if before == n {
                break;
            }
            before += 1;
            // A segment ends with two colons.
            to += 1;
            from = to + 1;
        }
        to += 1;
    }
    if before < n {
        return "";
    }
    let (upto, _) = path.split_at(to);
    upto.split_at(from).1
}

/// `log_at!(FI_LOG_WARN, FI_LOG_CQ, "text {}", x)`: one line in the name of the module's provider.
#[macro_export]
macro_rules! log_at {
    ($level:expr, $subsys:expr, $($arg:tt)*) => {{
        const PROV: &str = $crate::core::log::provider(module_path!());
        if $crate::core::log::enabled(PROV, $level, $subsys) {
            $crate::core::log::line(
                PROV,
                $level,
                $subsys,
                $crate::core::log::place(module_path!()),
                line!(),
                &format!($($arg)*),
            );
        }
    }};
}

/// A line at level warn: something failed, and why.
#[macro_export]
macro_rules! warn_log {
    ($subsys:expr, $($arg:tt)*) => {
        $crate::log_at!($crate::types::FI_LOG_WARN, $subsys, $($arg)*)
    };
}

/// As [`warn_log`], once in a process, for a line that would repeat unchanged.
#[macro_export]
macro_rules! warn_once {
    ($subsys:expr, $($arg:tt)*) => {{
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| $crate::warn_log!($subsys, $($arg)*));
    }};
}

/// As [`warn_log`], for what a peer can cause: at most one line a second, with the number of those
/// left out.
#[macro_export]
macro_rules! warn_limited {
    ($subsys:expr, $($arg:tt)*) => {{
        static LIMIT: $crate::core::log::RateLimit = $crate::core::log::RateLimit::new();
        if let Some(skipped) = LIMIT.pass() {
            match skipped {
                0 => $crate::warn_log!($subsys, $($arg)*),
                n => $crate::warn_log!($subsys, "{} ({n} more like it)", format_args!($($arg)*)),
            }
        }
    }};
}

/// A line at level info: a choice was made, or a candidate was rejected.
#[macro_export]
macro_rules! info_log {
    ($subsys:expr, $($arg:tt)*) => {
        $crate::log_at!($crate::types::FI_LOG_INFO, $subsys, $($arg)*)
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_include_and_exclude() {
        let none = Filter {
            names: vec![],
            exclude: false,
        };
        assert!(none.allows("efa"));
        let only = Filter {
            names: vec!["efa".into()],
            exclude: false,
        };
        assert!(only.allows("efa") && !only.allows("tcp"));
        let but = Filter {
            names: vec!["efa".into()],
            exclude: true,
        };
        assert!(!but.allows("efa") && but.allows("tcp"));
        assert!(only.allows_provider("core") && !only.allows_provider("tcp"));
        assert!(none.allows_provider("core") && but.allows_provider("core"));
    }

    #[test]
    fn lines_have_the_name_of_their_provider() {
        for (module, name) in [
            ("fabric::prov::tcp::ep", "tcp"),
            ("fabric::prov::tcp", "tcp"),
            ("fabric::prov::efa::domain::memory", "efa"),
            ("fabric::prov::another::info", "another"),
            ("fabric::prov::reports::cq", "core"),
            ("fabric::prov::contract::fabric", "core"),
            ("fabric::prov::progress_thread", "core"),
            ("fabric::shm", "efa"),
            ("fabric::shm::events", "efa"),
            ("fabric::device::mr_cache::monitor", "efa"),
            ("fabric::device::any", "efa"),
            ("fabric::device::stream", "core"),
            ("fabric::device", "core"),
            ("fabric::hmem::cuda", "core"),
            ("fabric::abi::mr", "core"),
            ("fabric::core::params", "core"),
        ] {
            assert_eq!(provider(module), name, "{module}");
        }
    }
}
