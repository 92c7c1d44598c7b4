//! The EFA adapters of this machine: opened when they are first asked for, and never closed once
//! they are listed.

use super::forks;
use super::sys::*;
use crate::core::process::PerProcess;
use crate::core::{Errno, Result};
use crate::device::local::errno;
use crate::device::{AdapterAttr, Caps, DirectLimits, Identity, PciAddr, WideLimits};
use crate::types::*;
use core::ffi::{c_char, c_int, c_void, CStr};
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

impl Drop for Adapter {
    fn drop(&mut self) {
        // SAFETY: the context is open; this adapter was not handed out.
        unsafe { (self.lib.ibv_close_device)(self.context) };
    }
}

// SAFETY: contexts of libibverbs may be used by any thread; nothing in here changes.
unsafe impl Send for Adapter {}
// SAFETY: as above.
unsafe impl Sync for Adapter {}

/// All EFA adapters, in the order of libibverbs. `FI_EINVAL` when the job's parameters contradict
/// each other; the errno of the system, or `FI_ENODEV`, where there are adapters and none of them
/// can be used, which the next call finds out anew.
pub fn adapters() -> Result<&'static [Adapter]> {
    static LIST: PerProcess<Vec<Adapter>> = PerProcess::new();
    match lib() {
        Ok(lib) => Ok(LIST.get_or_try_init(|| find(lib))?),
        Err(why) => none_expected(&why).map(|()| -> &[Adapter] { &[] }),
    }
}

/// No adapter was found, which is right unless the kernel has one.
#[cold]
fn none_expected(why: &str) -> Result<()> {
    let all = match std::fs::read_dir(root().join("class/infiniband")) {
        Ok(all) => all,
        Err(e) => match e.raw_os_error() {
            Some(e @ (libc::EMFILE | libc::ENFILE)) => return Err(e),
            _ => return Ok(()),
        },
    };
    let mut names = all.flatten().map(|d| d.file_name());
    let Some(name) = names.find(|n| is_efa(&n.to_string_lossy())) else {
        return Ok(());
    };
    unusable(&name.to_string_lossy(), why);
    Err(FI_ENODEV)
}

/// Whether the kernel has an EFA adapter of this name.
fn is_efa(name: &str) -> bool {
    base(&sysfs(name).join("device/driver")) == "efa"
}

fn find(lib: &'static Lib) -> Result<Vec<Adapter>> {
    forks::prepare(lib);
    let mut list = Vec::new();
    let mut failed = None;
    let mut count = 0;
    // SAFETY: the list has `count` devices and is freed once; contexts stay open.
    unsafe {
        let devices = (lib.ibv_get_device_list)(&mut count);
        if devices.is_null() {
            return match errno() {
                e @ (libc::EMFILE | libc::ENFILE | FI_ENOMEM) => {
                    unusable("RDMA devices", &failed_call("ibv_get_device_list", e));
                    Err(e)
                }
                // A kernel without RDMA.
                _ => Ok(list),
            };
        }
        for i in 0..usize::try_from(count).unwrap_or(0) {
            let device = *devices.add(i);
            let name = text((lib.ibv_get_device_name)(device));
            match open(lib, device, &name) {
                Ok(Some(a)) => list.push(a),
                Ok(None) => {}
                Err((call, e)) => {
                    unusable(&name, &failed_call(call, e));
                    failed = Some(e);
                }
            }
        }
        (lib.ibv_free_device_list)(devices);
    }
    match (list.is_empty(), failed) {
        (true, Some(e)) => return Err(e),
        (true, None) => none_expected("libibverbs does not list it")?,
        (false, _) => {
            let allowed = forks::huge_pages(lib)?;
            list.iter_mut().for_each(|a| a.huge_pages = allowed);
        }
    }
    Ok(list)
}

fn failed_call(call: &str, e: Errno) -> String {
    format!("{call}: {}", std::io::Error::from_raw_os_error(e))
}

fn unusable(name: &str, why: &str) {
    crate::warn_limited!(
        FI_LOG_FABRIC,
        "{name} cannot be used as EFA: {why} (FI_EFA_SOFT=on takes the software adapter)"
    );
}

/// A call of libibverbs or libefa that failed, and its errno.
type Failed = (&'static str, Errno);

/// Opens a device; `None` for one that is no EFA adapter.
///
/// # Safety
/// The device is in a list that has not been freed.
unsafe fn open(
    lib: &'static Lib,
    device: *mut c_void,
    name: &str,
) -> core::result::Result<Option<Adapter>, Failed> {
    // SAFETY: as promised by the caller.
    let context = unsafe { (lib.ibv_open_device)(device) };
    if context.is_null() {
        let e = errno();
        return match is_efa(name) {
            true => Err(("ibv_open_device", e)),
            false => Ok(None),
        };
    }
    // SAFETY: the context was just opened; it is closed once.
    unsafe {
        let found = describe(lib, context, name);
        if !matches!(found, Ok(Some(_))) {
            (lib.ibv_close_device)(context);
        }
        Ok(found?.map(|(attr, limits)| Adapter {
            lib,
            context,
            attr,
            limits,
            huge_pages: false,
        }))
    }
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

/// Attributes of an adapter; `None` when it is not an EFA.
///
/// # Safety
/// `context` is open.
unsafe fn describe(
    lib: &Lib,
    context: *mut ibv_context,
    name: &str,
) -> core::result::Result<Option<(AdapterAttr, efadv_device_attr)>, Failed> {
    let mut limits = efadv_device_attr::default();
    let mut port = ibv_port_attr::default();
    let mut gid = [0; 16];
    // SAFETY: the out-parameters have the right types.
    let d = unsafe {
        let mut d: ibv_device_attr = zeroed();
        let len = size_of::<efadv_device_attr>() as u32;
        match (lib.efadv_query_device)(context, &mut limits, len) {
            0 => {}
            libc::EOPNOTSUPP => return Ok(None),
            e => return Err(("efadv_query_device", e)),
        }
        let done = |call, ret: c_int| match ret {
            0 => Ok(()),
            // What ibv_query_gid(3) returns is no errno.
            e if e < 0 => Err((call, errno())),
            e => Err((call, e)),
        };
        done("ibv_query_device", (lib.ibv_query_device)(context, &mut d))?;
        let ret = (lib.ibv_query_port)(context, 1, &mut port);
        done("ibv_query_port", ret)?;
        let ret = (lib.ibv_query_gid)(context, 1, 0, &mut gid);
        done("ibv_query_gid", ret)?;
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
    Ok(Some((attr, limits)))
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
