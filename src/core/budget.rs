//! Defaults that follow the memory which the process may have.
//!
//! Messages without a receive take memory at their senders' pace. A default that is too large for
//! a small container would have the kernel end the process there: malloc(3) does not fail below a
//! cgroup's limit, so that [`memory`](super::memory) never notices. The limits are read when a
//! domain is opened: physical memory, and the limits of the process's cgroup and of its parents.
//! One that cannot be read counts as none. `ulimit -v` and `-d` do not count: malloc(3) fails
//! there, and messages may take what is left.

use crate::types::FI_LOG_CORE;

/// Text of the file at a path, if it can be read.
type ReadFile<'a> = &'a dyn Fn(&str) -> Option<String>;

/// A limit, bytes, and its name for the log.
type MemoryLimit = (u64, String);

/// The default of parameter `name`: `most` bytes, or a `part`th of the memory that the process may
/// have if that is less.
pub fn share(name: &str, most: usize, part: usize) -> usize {
    let Some((bytes, of)) = limit() else {
        return most;
    };
    let own = in_parts(bytes, part);
    if own < most {
        crate::info_log!(
            FI_LOG_CORE,
            "{name} is {own} in place of {most}: the process may have {bytes} bytes ({of})"
        );
    }
    own.min(most)
}

/// A `part`th of the memory that the process may have, bytes.
pub fn part_of_memory(part: usize) -> usize {
    limit().map_or(usize::MAX, |(bytes, _)| in_parts(bytes, part))
}

fn in_parts(bytes: u64, part: usize) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX) / part
}

fn limit() -> Option<MemoryLimit> {
    least(&|path| std::fs::read_to_string(path).ok())
}

/// The smallest limit.
fn least(read: ReadFile) -> Option<MemoryLimit> {
    let all = [physical(read), cgroups(read)];
    all.into_iter().flatten().min()
}

fn physical(read: ReadFile) -> Option<MemoryLimit> {
    let text = read("/proc/meminfo")?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some((kib.checked_mul(1024)?, "MemTotal".into()))
}

/// The smallest limit of the process's cgroups and their parents, in both versions of cgroups(7).
fn cgroups(read: ReadFile) -> Option<MemoryLimit> {
    let own = read("/proc/self/cgroup")?;
    let mounts = read("/proc/self/mountinfo")?;
    let limits = own.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let (kind, files): (_, &[&str]) = match controllers {
            // memory.high stops no process, but slows it to a crawl.
            "" => ("cgroup2", &["memory.max", "memory.high"]),
            v1 if v1.split(',').any(|c| c == "memory") => ("cgroup", &["memory.limit_in_bytes"]),
            _ => return None,
        };
        let (root, at) = mounts.lines().find_map(|l| mount_point(l, kind))?;
        branch_limit(read, (&at, below(path, &root)), files)
    });
    limits.min()
}

/// Root and mount point of the cgroup file system of this kind, from a line of mountinfo
/// (proc_pid_mountinfo(5)); the first version has one for each controller.
fn mount_point(line: &str, kind: &str) -> Option<(String, String)> {
    let (mount, system) = line.split_once(" - ")?;
    let mut system = system.split(' ');
    let (fs, options) = (system.next()?, system.nth(1)?);
    let has_memory = kind == "cgroup2" || options.split(',').any(|o| o == "memory");
    if fs != kind || !has_memory {
        return None;
    }
    let mut fields = mount.split(' ').skip(3);
    let mut path = || Some(fields.next()?.replace("\\040", " "));
    Some((path()?, path()?))
}

/// The path of a cgroup below the root of its mount; empty where it is not visible there, because
/// of a namespace.
fn below<'a>(path: &'a str, root: &str) -> &'a str {
    let rest = path.strip_prefix(root.trim_end_matches('/')).unwrap_or("");
    let inside = rest.starts_with('/') && !rest.split('/').any(|name| name == "..");
    if inside {
        rest.trim_end_matches('/')
    } else {
        ""
    }
}

/// The smallest value in these files of a cgroup and its parents, up to the mount point.
fn branch_limit(
    read: ReadFile,
    (at, mut path): (&str, &str),
    files: &[&str],
) -> Option<MemoryLimit> {
    let mut limit: Option<MemoryLimit> = None;
    loop {
        for file in files {
            let name = format!("{at}{path}/{file}");
            // "max" stands for none.
            let bytes = read(&name).and_then(|t| t.trim().parse().ok());
            let own = bytes.map(|b: u64| (b, name));
            limit = limit.into_iter().chain(own).min();
        }
        match path.rsplit_once('/') {
            Some((parent, _)) => path = parent,
            None => return limit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V2: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
    const V1: &str = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      35 31 0:32 /docker/ab /sys/fs/cgroup/memory rw master:9 - cgroup cgroup \
                      rw,memory\n";

    fn least_of(files: &[(&str, &str)]) -> Option<u64> {
        let text = |path: &str| files.iter().find(|f| f.0 == path).map(|f| f.1.to_string());
        least(&text).map(|l| l.0)
    }

    #[test]
    fn the_smallest_of_all_limits_counts() {
        assert_eq!(least_of(&[]), None);
        let memory = ("/proc/meminfo", "MemTotal:       1024 kB\nMemFree: 5 kB\n");
        assert_eq!(least_of(&[memory]), Some(1 << 20));
        let own = ("/proc/self/cgroup", "0::/\n");
        let mounts = ("/proc/self/mountinfo", V2);
        let max = ("/sys/fs/cgroup/memory.max", "900000\n");
        assert_eq!(least_of(&[memory, own, mounts, max]), Some(900_000));
    }

    #[test]
    fn parents_of_a_cgroup_limit_it() {
        let own = ("/proc/self/cgroup", "0::/job/task\n");
        let mounts = ("/proc/self/mountinfo", V2);
        let task = ("/sys/fs/cgroup/job/task/memory.max", "max\n");
        let job = ("/sys/fs/cgroup/job/memory.max", "5000\n");
        let high = ("/sys/fs/cgroup/job/task/memory.high", "4000\n");
        assert_eq!(least_of(&[own, mounts, task]), None);
        assert_eq!(least_of(&[own, mounts, task, job]), Some(5000));
        assert_eq!(least_of(&[own, mounts, task, job, high]), Some(4000));
        // In a cgroup namespace, and beside one.
        let root = ("/sys/fs/cgroup/memory.max", "7000\n");
        for path in ["0::/\n", "0::/../other\n"] {
            let own = ("/proc/self/cgroup", path);
            assert_eq!(least_of(&[own, mounts, root, job]), Some(7000));
        }
    }

    #[test]
    fn the_first_version_has_a_mount_for_the_controller() {
        let mounts = ("/proc/self/mountinfo", V1);
        let file = "/sys/fs/cgroup/memory/memory.limit_in_bytes";
        let limit = (file, "134217728\n");
        for path in ["/docker/ab", "/docker/abc", "/elsewhere"] {
            let own = format!("5:cpu:{path}\n4:memory:{path}\n0::/\n");
            let own = ("/proc/self/cgroup", own.as_str());
            assert_eq!(least_of(&[own, mounts, limit]), Some(128 << 20), "{path}");
        }
        let own = ("/proc/self/cgroup", "4:memory:/docker/ab/inner\n");
        let inner = "/sys/fs/cgroup/memory/inner/memory.limit_in_bytes";
        assert_eq!(least_of(&[own, mounts, limit, (inner, "999")]), Some(999));
    }

    #[test]
    fn a_share_is_at_most_the_default() {
        assert_eq!(in_parts(128 << 20, 16), 8 << 20);
        assert!(share("FI_X", 1000, 16) <= 1000);
        assert!(part_of_memory(4) > 0);
    }
}
