//! Settings of the emulated GPUs, from the environment: `GPU_SIM_GPUS` (number of GPUs),
//! `GPU_SIM_DELAY_US` (delay of a copy on a stream), `GPU_SIM_DMABUF` (0: no dma-bufs),
//! `GPU_SIM_GDRCOPY` (0: GDRCopy's driver is missing),
//! `GPU_SIM_FAIL` (comma list of functions that fail, `name` or `name=code`).

use std::sync::OnceLock;
use std::time::Duration;

pub struct Config {
    pub gpus: usize,
    pub delay: Duration,
    pub dmabuf: bool,
    pub gdrcopy: bool,
    fail: Vec<(String, i32)>,
}

/// CUDA_ERROR_UNKNOWN
const UNKNOWN: i32 = 999;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn failing(list: &str) -> Vec<(String, i32)> {
    let one = |s: &str| match s.split_once('=') {
        Some((name, code)) => (name.to_string(), code.parse().unwrap_or(UNKNOWN)),
        None => (s.to_string(), UNKNOWN),
    };
    list.split(',').filter(|s| !s.is_empty()).map(one).collect()
}

/// The settings, read once.
pub fn get() -> &'static Config {
    static CONFIG: OnceLock<Config> = OnceLock::new();
    CONFIG.get_or_init(|| Config {
        gpus: number("GPU_SIM_GPUS").unwrap_or(1) as usize,
        delay: Duration::from_micros(number("GPU_SIM_DELAY_US").unwrap_or(0)),
        dmabuf: number("GPU_SIM_DMABUF") != Some(0),
        gdrcopy: number("GPU_SIM_GDRCOPY") != Some(0),
        fail: failing(&std::env::var("GPU_SIM_FAIL").unwrap_or_default()),
    })
}

/// The code that a function is configured to fail with, if any.
pub fn failure(name: &str) -> Option<i32> {
    let all = &get().fail;
    all.iter().find(|(n, _)| n == name).map(|(_, code)| *code)
}
