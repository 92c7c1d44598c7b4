//! The EFA adapters of this machine: opened once, when they are first asked for, and never closed.

use super::forks;
use super::sys::*;
use crate::core::process::PerProcess;
use crate::core::Result;
use crate::device::{AdapterAttr, Caps, DirectLimits, Identity, PciAddr, WideLimits};
use crate::types::*;
use core::ffi::{c_char, CStr};
use core::mem::{size_of, zeroed};
use std::path::{Path, PathBuf};

/// An opened adapter.
pub struct Adapter {
    pub lib: &'static Lib,
    pub context: *mut ibv_context,
    pub attr: AdapterAttr,
    pub limits: efadv_device_attr,
    /// Whether packet buffers may use huge pages.
    pub huge_pages: bool,
}

// SAFETY: contexts of libibverbs may be used by any thread; nothing in here changes.
unsafe impl Send for Adapter {}
// SAFETY: as above.
unsafe impl Sync for Adapter {}

/// All EFA adapters, in the order of libibverbs. `FI_EINVAL` when the job's parameters contradict
/// each other.
pub fn adapters() -> Result<&'static [Adapter]> {
    static LIST: PerProcess<Result<Vec<Adapter>>> = PerProcess::new();
    let list = LIST.get_or_init(|| lib().map_or(Ok(Vec::new()), find));
    list.as_ref().map(Vec::as_slice).map_err(|e| *e)
}

fn find(lib: &'static Lib) -> Result<Vec<Adapter>> {
    forks::prepare(lib);
    let mut list = Vec::new();
    let mut count = 0;
    // SAFETY: the list has `count` devices and is freed once; contexts stay open.
    unsafe {
        let devices = (lib.ibv_get_device_list)(&mut count);
        if devices.is_null() {
            return Ok(list);
        }
        for i in 0..usize::try_from(count).unwrap_or(0) {
            let device = *devices.add(i);
            let name = text((lib.ibv_get_device_name)(device));
            let context = (lib.ibv_open_device)(device);
            if context.is_null() {
                crate::warn_log!(FI_LOG_FABRIC, "{name}: cannot be opened");
                continue;
            }
            match describe(lib, context, &name) {
                Some((attr, limits)) => list.push(Adapter {
                    lib,
                    context,
                    attr,
                    limits,
                    huge_pages: false,
                }),
                // Not an EFA adapter.
                None => drop((lib.ibv_close_device)(context)),
            }
        }
        (lib.ibv_free_device_list)(devices);
    }
    if !list.is_empty() {
        let allowed = forks::huge_pages(lib)?;
        list.iter_mut().for_each(|a| a.huge_pages = allowed);
    }
    Ok(list)
}

/// # Safety
/// `p` is NULL or a C string.
unsafe fn text(p: *const c_char) -> String {
    if p.is_null() {
        return String::new();
    }
    // SAFETY: as promised by the caller.
    unsafe { CStr::from_ptr(p).to_string_lossy().into_owned() }
}

/// Attributes of an adapter; `None` when it is not an EFA, or a query fails.
///
/// # Safety
/// `context` is open.
unsafe fn describe(
    lib: &Lib,
    context: *mut ibv_context,
    name: &str,
) -> Option<(AdapterAttr, efadv_device_attr)> {
    let mut limits = efadv_device_attr::default();
    let mut port = ibv_port_attr::default();
    let mut gid = [0; 16];
    // SAFETY: the out-parameters have the right types.
    let d = unsafe {
        let mut d: ibv_device_attr = zeroed();
        let len = size_of::<efadv_device_attr>() as u32;
        if (lib.efadv_query_device)(context, &mut limits, len) != 0
            || (lib.ibv_query_device)(context, &mut d) != 0
            || (lib.ibv_query_port)(context, 1, &mut port) != 0
            || (lib.ibv_query_gid)(context, 1, 0, &mut gid) != 0
        {
            return None;
        }
        d
    };
    let pieces = usize::from(limits.max_sq_sge.min(limits.max_rq_sge)).clamp(1, 2);
    let caps = |bit| limits.device_caps & bit != 0;
    let sys = sysfs(name);
    // SAFETY: the firmware version ends within its array.
    let firmware = unsafe { text(d.fw_ver.as_ptr()) };
    // SAFETY: as promised by the caller.
    let counters = unsafe { counters(lib, context, &limits) };
    let attr = AdapterAttr {
        name: name.to_string(),
        mtu: port.max_msg_sz as usize,
        max_rdma: limits.max_rdma_size as usize,
        sq_depth: (limits.max_sq_wr as usize).min(super::SENDS),
        sends_most: (limits.max_sq_wr as usize).min(super::SENDS_MOST),
        rq_depth: (limits.max_rq_wr as usize).min(super::RECVS),
        recvs_most: limits.max_rq_wr as usize,
        gid,
        speed: speed(port.active_width, port.active_speed),
        up: port.state == 4,
        link_mtu: port.max_msg_sz as usize,
        caps: Caps {
            rdma_read: caps(CAP_RDMA_READ),
            rdma_write: caps(CAP_RDMA_WRITE),
            unsolicited: caps(CAP_UNSOLICITED),
            homogeneous: false,
            remote_events: false,
            sessions: false,
            application_keys: false,
            key_size: 4,
        },
        raw: DirectLimits {
            sends: (limits.max_sq_wr as usize).min(super::RAW_SENDS),
            recvs: (limits.max_rq_wr as usize / pieces).min(super::RAW_RECVS),
            inline: limits.inline_buf_size.into(),
            pieces,
            rnr_limit: caps(CAP_RNR_RETRY),
            // SAFETY: as promised by the caller.
            wide: unsafe { wide(lib, context, &limits, pieces) },
            counters: counters.max_counters as usize,
            counts_to: counters.max_value,
        },
        identity: Some(Identity {
            vendor: d.vendor_id,
            device: d.vendor_part_id,
            version: first_line(&root().join("class/infiniband_verbs/abi_version")),
            firmware,
            driver: base(&sys.join("device/driver")),
            bus: bus(&base(&sys.join("device"))),
            regions: d.max_mr.max(0) as usize,
            queue_pairs: d.max_qp.max(0) as usize,
            queues: d.max_cq.max(0) as usize,
            cq_depth: d.max_cqe.max(0) as usize,
        }),
    };
    Some((attr, limits))
}

/// Limits of the adapter's wide work requests; `None` without them.
///
/// # Safety
/// `context` is open.
unsafe fn wide(
    lib: &Lib,
    context: *mut ibv_context,
    limits: &efadv_device_attr,
    pieces: usize,
) -> Option<WideLimits> {
    let depth = lib.efadv_get_max_sq_depth?;
    if limits.inline_buf_size_ex <= limits.inline_buf_size {
        return None;
    }
    let write = limits.device_caps & CAP_RDMA_WRITE != 0;
    let mut a = efadv_sq_depth_attr {
        flags: if write { DEPTH_INLINE_WRITE } else { 0 },
        max_send_sge: pieces as u32,
        max_rdma_sge: 1,
        max_inline_data: limits.inline_buf_size_ex.into(),
        ..efadv_sq_depth_attr::default()
    };
    let len = size_of::<efadv_sq_depth_attr>() as u32;
    // SAFETY: as promised by the caller; the attributes have their place.
    let most = usize::try_from(unsafe { depth(context, &mut a, len) }).ok()?;
    (most > 0).then_some(WideLimits {
        inline: limits.inline_buf_size_ex.into(),
        sends: most.min(super::RAW_SENDS),
    })
}

/// Capabilities of the adapter's counters; zeros where the adapter or the libraries have none.
///
/// # Safety
/// `context` is open.
unsafe fn counters(
    lib: &Lib,
    context: *mut ibv_context,
    limits: &efadv_device_attr,
) -> ibv_comp_cntr_caps {
    let mut caps = ibv_comp_cntr_caps::default();
    match &lib.counters {
        Some(c) if limits.device_caps & CAP_COUNTERS != 0 => {
            // SAFETY: as promised by the caller; the answer has its place.
            match unsafe { (c.caps)(context, &mut caps, size_of::<ibv_comp_cntr_caps>()) } {
                0 => caps,
                _ => ibv_comp_cntr_caps::default(),
            }
        }
        _ => caps,
    }
}

fn root() -> PathBuf {
    std::env::var_os("SYSFS_PATH").map_or_else(|| PathBuf::from("/sys"), PathBuf::from)
}

fn sysfs(name: &str) -> PathBuf {
    root().join("class/infiniband").join(name)
}

fn first_line(p: &Path) -> String {
    let s = std::fs::read_to_string(p).unwrap_or_default();
    s.lines().next().unwrap_or_default().to_string()
}

/// File name of the target of a symbolic link.
fn base(p: &Path) -> String {
    let to = std::fs::canonicalize(p).unwrap_or_default();
    to.file_name()
        .map_or(String::new(), |n| n.to_string_lossy().into_owned())
}

/// A PCI address: domain, bus, device, function.
fn bus(s: &str) -> Option<PciAddr> {
    let hex = |s: &str| u16::from_str_radix(s, 16).ok();
    let (domain, rest) = s.split_once(':')?;
    let (number, rest) = rest.split_once(':')?;
    let (device, function) = rest.split_once('.')?;
    Some(PciAddr {
        domain: hex(domain)?,
        bus: hex(number)? as u8,
        device: hex(device)? as u8,
        function: hex(function)? as u8,
    })
}

/// Bits per second of a link, by the codes of ibv_query_port(3).
fn speed(width: u8, speed: u8) -> u64 {
    let lanes = match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 0,
    };
    let mbits = match speed {
        1 => 2_500,
        2 => 5_000,
        4 | 8 => 10_000,
        16 => 14_000,
        32 => 25_000,
        64 => 50_000,
        128 => 100_000,
        _ => 0,
    };
    lanes * mbits * 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_speeds_are_read() {
        let b = bus("0000:9b:00.1").unwrap();
        assert_eq!((b.domain, b.bus, b.device, b.function), (0, 0x9b, 0, 1));
        assert!(bus("usb1").is_none() && bus("0:1:2").is_none());
        assert_eq!(speed(2, 32), 100_000_000_000);
        assert_eq!(speed(3, 32), 0);
    }
}
