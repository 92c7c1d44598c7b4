//! Steal time: processor time that a hypervisor gives to other machines (`steal`, proc_stat(5)). A
//! run that lost much of it does not measure the library.

use std::time::Instant;

/// Largest share of processor time that an undisturbed run may lose; one tick is always permitted.
const MAX_STEAL_SHARE: f64 = 0.02;

/// Clock ticks stolen since the machine started, the mean of all processors; 0 where the kernel
/// reports none.
fn ticks(stat: &str) -> f64 {
    let steal = |l: &str| l.split_whitespace().nth(8)?.parse::<f64>().ok();
    let mut cpus = stat.lines().filter(|l| l.starts_with("cpu"));
    let all = cpus.next().and_then(steal).unwrap_or(0.0);
    all / cpus.count().max(1) as f64
}

fn now() -> f64 {
    ticks(&std::fs::read_to_string("/proc/stat").unwrap_or_default())
}

/// Runs `f`; returns whether the run was undisturbed, and its result.
pub fn watched<T>(f: impl FnOnce() -> T) -> (bool, T) {
    // A tick is 10 ms in this file, whatever the kernel's own is (USER_HZ).
    const TICK: f64 = 0.01;
    let (before, t) = (now(), Instant::now());
    let r = f();
    let lost = (now() - before) * TICK;
    (
        lost <= (MAX_STEAL_SHARE * t.elapsed().as_secs_f64()).max(TICK),
        r,
    )
}

#[cfg(test)]
mod tests {
    #[test]
    fn stolen_time_is_read_from_proc_stat() {
        let stat = "cpu  4051 0 1938 82190 309 0 120 5813 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n\
                    cpu1 1\nintr 9\n";
        assert_eq!(super::ticks(stat), 5813.0 / 2.0);
        assert_eq!(super::ticks(""), 0.0);
    }
}
