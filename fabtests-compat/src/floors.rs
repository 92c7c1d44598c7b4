//! Limits of the machine itself, measured beside the libraries: no library can be faster.

use nix::sys::uio::{process_vm_writev, RemoteIoVec};
use nix::unistd::Pid;
use std::io::IoSlice;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Times and rates of the machine.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Floors {
    /// One cache line from core to core and no more, nanoseconds.
    pub hand_over_ns: f64,
    /// 8 bytes by process_vm_writev(2), nanoseconds; 0 where it is forbidden.
    pub attach_ns: f64,
    /// 1 MiB by process_vm_writev(2), GB/s.
    pub attach_gb: f64,
    /// 1 MiB by memcpy within a process, GB/s.
    pub memcpy_gb: f64,
}

/// A word on a cache line of its own, with its neighbour left alone.
#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU64);

/// Puts the calling thread, and what it starts, on one core.
pub fn pin(core: usize) {
    // A thread that is on one core no longer sees the others.
    static ALL: OnceLock<Vec<core_affinity::CoreId>> = OnceLock::new();
    let all = ALL.get_or_init(|| core_affinity::get_core_ids().unwrap_or_default());
    if let Some(id) = all.get(core % all.len().max(1)) {
        core_affinity::set_for_current(*id);
    }
}

fn hand_over() -> f64 {
    const ROUNDS: u64 = 300_000;
    let (ping, pong) = (Line::default(), Line::default());
    let mut taken = Duration::ZERO;
    std::thread::scope(|s| {
        s.spawn(|| {
            pin(1);
            for i in 1..=ROUNDS {
                while ping.0.load(Acquire) != i {
                    std::hint::spin_loop();
                }
                pong.0.store(i, Release);
            }
        });
        s.spawn(|| {
            pin(0);
            let t = Instant::now();
            for i in 1..=ROUNDS {
                ping.0.store(i, Release);
                while pong.0.load(Acquire) != i {
                    std::hint::spin_loop();
                }
            }
            taken = t.elapsed();
        });
    });
    taken.as_nanos() as f64 / (2 * ROUNDS) as f64
}

/// Seconds of one call of `f`, the median of 201.
fn time(mut f: impl FnMut()) -> f64 {
    let mut v: Vec<f64> = (0..201)
        .map(|_| {
            let t = Instant::now();
            f();
            t.elapsed().as_secs_f64()
        })
        .collect();
    v.sort_by(f64::total_cmp);
    v.get(v.len() / 2).copied().unwrap_or(0.0)
}

/// Seconds of a copy of `len` bytes by process_vm_writev(2); `None` where it is forbidden.
fn attach(len: usize) -> Option<f64> {
    let (from, to) = (vec![1u8; len], vec![0u8; len]);
    let remote = [RemoteIoVec {
        base: to.as_ptr() as usize,
        len,
    }];
    let go = || process_vm_writev(Pid::this(), &[IoSlice::new(&from)], &remote);
    if go() != Ok(len) {
        return None;
    }
    let s = time(|| {
        let _ = go();
    });
    // Check that the bytes have arrived.
    (std::hint::black_box(&to).first() == Some(&1)).then_some(s)
}

/// Seconds of a copy of `len` bytes by memcpy.
fn memcpy(len: usize) -> f64 {
    let (from, mut to) = (vec![1u8; len], vec![0u8; len]);
    time(|| {
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&to);
    })
}

/// Microseconds in which one process can copy a message or an access of `len` bytes into another
/// process: by process_vm_writev(2), or by memcpy where that is forbidden. From one buffer into one
/// other, which are those that the benchmark programs use. Two processes that copy a half each can
/// be faster.
pub fn one_copy_us(len: usize) -> f64 {
    attach(len).unwrap_or_else(|| memcpy(len)) * 1e6
}

/// Measures all limits; takes half a second.
pub fn measure() -> Floors {
    const MB: usize = 1 << 20;
    let copy = memcpy(MB);
    let rate = |s: f64| MB as f64 / s / 1e9;
    Floors {
        hand_over_ns: hand_over(),
        attach_ns: attach(8).map_or(0.0, |s| s * 1e9),
        attach_gb: attach(MB).map_or(0.0, rate),
        memcpy_gb: rate(copy),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn floors_are_measured_and_grow_with_the_length() {
        let f = super::measure();
        assert!(f.hand_over_ns > 1.0 && f.memcpy_gb > 0.1, "{f:?}");
        assert!(super::one_copy_us(1 << 20) > super::one_copy_us(1 << 12));
    }
}
