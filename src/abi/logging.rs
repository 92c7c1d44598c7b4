//! `fi_import_log`: an application takes the log lines over.

use super::entry::{entry, FromC};
use super::object::*;
use crate::core::log::{self, LogLine, LogSink};
use crate::core::sync::{Mutex, Unpoisoned};
use crate::core::Result;
use crate::types::*;
use core::ffi::{c_int, c_void};
use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// A provider as the C logger sees it: its name counts.
struct ProvBox(fi_provider);
// SAFETY: the struct is read-only and refers to a string that stays.
unsafe impl Sync for ProvBox {}
// SAFETY: as above.
unsafe impl Send for ProvBox {}

/// The struct of the provider of this name, which stays.
fn provider(name: &str) -> &'static fi_provider {
    static ALL: Mutex<Vec<(String, &'static ProvBox)>> = Mutex::new(Vec::new());
    let mut all = ALL.lock().unpoisoned();
    if let Some((_, p)) = all.iter().find(|(known, _)| known == name) {
        return &p.0;
    }
    let text: &'static CStr = Box::leak(CString::new(name).unwrap_or_default().into_boxed_c_str());
    let p: &'static ProvBox = Box::leak(Box::new(ProvBox(fi_provider {
        version: crate::core::PROV_VERSION,
        fi_version: crate::core::API_VERSION,
        context: fi_context {
            internal: [core::ptr::null_mut(); 4],
        },
        name: text.as_ptr(),
        getinfo: None,
        fabric: None,
        cleanup: None,
    })));
    all.push((name.to_string(), p));
    &p.0
}

struct CLogger(fi_ops_log);
// SAFETY: fi_import_log(3) demands that the functions may be called from any thread.
unsafe impl Send for CLogger {}
// SAFETY: as above.
unsafe impl Sync for CLogger {}

impl LogSink for CLogger {
    fn enabled(&self, prov: &str, level: fi_log_level, subsys: fi_log_subsys) -> Option<bool> {
        // SAFETY: the function is the application's, called as its header declares.
        self.0
            .enabled
            .map(|f| unsafe { f(provider(prov), level, subsys, 0) } != 0)
    }

    fn line(&self, l: &LogLine) -> bool {
        let text = format!("{}\n", l.text);
        let (Ok(func), Ok(text)) = (CString::new(l.func), CString::new(text)) else {
            return true;
        };
        let Some(f) = self.0.log else { return false };
        // SAFETY: as above; the strings live until the call returns.
        unsafe {
            f(
                provider(l.prov),
                l.level,
                l.subsys,
                func.as_ptr(),
                l.line as c_int,
                text.as_ptr(),
            )
        };
        true
    }
}

/// Which importer a `fid` from fi_open(3) is.
pub(crate) enum Import {
    Logging,
    /// The registration cache: it watches memory by itself, so that a monitor is never asked.
    MrCache,
}

close! {
    fn close_import(_b: Import as fid_logging) {
        Ok(())
    }
}

/// An object that the application exports.
enum Exported<'a> {
    Logging(&'a mut fid_logging),
    Monitor(&'a mut fid_mem_monitor),
    Other,
}

/// `FI_EINVAL` for NULL.
impl FromC<*mut fid> for Exported<'_> {
    unsafe fn from_c(f: *mut fid) -> Result<Self> {
        // SAFETY: the object is NULL, or of the class that it says.
        unsafe {
            Ok(match f.as_ref().ok_or(FI_EINVAL)?.fclass {
                FI_CLASS_LOG => Exported::Logging(&mut *f.cast()),
                FI_CLASS_MEM_MONITOR => Exported::Monitor(&mut *f.cast()),
                _ => Exported::Other,
            })
        }
    }
}

/// Lines go to the application's logger from now on.
fn import_logger(with: &mut fid_logging) -> Result<()> {
    // SAFETY: the table is NULL or the application's.
    let ops = unsafe { with.ops.as_ref() }.ok_or(FI_EINVAL)?;
    if ops.size < core::mem::size_of::<fi_ops_log>() {
        return Err(FI_EINVAL);
    }
    LOGGER_IMPORTED.store(true, SeqCst);
    log::set_sink(Some(Box::new(CLogger(*ops))));
    with.fid.ops = table(&IMPORTED_LOGGER);
    Ok(())
}

/// Takes a memory monitor, which is never asked.
fn import_monitor(m: &mut fid_mem_monitor) -> Result<()> {
    // SAFETY: the table is NULL or the application's.
    let export = unsafe { m.export_ops.as_ref() }.ok_or(FI_EINVAL)?;
    if export.size < core::mem::size_of::<fi_ops_mem_monitor>() {
        crate::warn_log!(
            FI_LOG_MR,
            "fi_import_fid: fid_mem_monitor.export_ops->size: wanted {}, had {}",
            core::mem::size_of::<fi_ops_mem_monitor>(),
            export.size
        );
        return Err(FI_EINVAL);
    }
    if MONITOR_IMPORTED.swap(true, SeqCst) {
        crate::warn_log!(
            FI_LOG_MR,
            "fi_import_fid: a memory monitor is imported already"
        );
        return Err(FI_EBUSY);
    }
    m.import_ops = table(&NOTIFY);
    m.fid.context = (&raw const MONITOR_IMPORTED).cast_mut().cast();
    m.fid.ops = table(&IMPORTED_MONITOR);
    Ok(())
}

entry! {
    fn bind(
        importer: *mut fid as &Import,
        with: *mut fid as Exported,
        flags: u64,
    ) -> c_int = "fi_import_fid" {
        if flags != 0 {
            return Err(FI_EINVAL);
        }
        match (importer, with) {
            (Import::Logging, Exported::Logging(l)) => import_logger(l),
            (Import::MrCache, Exported::Monitor(m)) => import_monitor(m),
            _ => Err(FI_EINVAL),
        }
    }
}

/// Whether an imported logger is open.
static LOGGER_IMPORTED: AtomicBool = AtomicBool::new(false);
/// Whether an imported memory monitor is open.
static MONITOR_IMPORTED: AtomicBool = AtomicBool::new(false);

/// fi_close(3) of a monitor that the application exported to us.
unsafe extern "C" fn close_monitor(_: *mut fid) -> c_int {
    MONITOR_IMPORTED.store(false, SeqCst);
    FI_SUCCESS
}

/// fi_close(3) of a logger that the application exported to us: lines go to the default again.
unsafe extern "C" fn close_logger(_: *mut fid) -> c_int {
    if LOGGER_IMPORTED.swap(false, SeqCst) {
        log::set_sink(None);
    }
    FI_SUCCESS
}

static IMPORTED_MONITOR: fi_ops = ops(close_monitor, no_bind, no_control);
static IMPORTED_LOGGER: fi_ops = ops(close_logger, no_bind, no_control);

unsafe extern "C" fn notify(_: *mut fid_mem_monitor, _: *const c_void, _: usize) {}

static NOTIFY: fi_ops_mem_notify = fi_ops_mem_notify {
    size: core::mem::size_of::<fi_ops_mem_notify>(),
    notify: Some(notify),
};

static OPS: fi_ops = ops(close_import, bind, no_control);

/// Opens an importer by name; `None` for an unknown name. `FI_EALREADY` for the log's while a
/// logger is imported.
pub(crate) fn open(name: &str, context: *mut c_void) -> Result<Option<*mut fid>> {
    let (kind, class) = match name {
        "logging" if LOGGER_IMPORTED.load(SeqCst) => return Err(FI_EALREADY),
        "logging" => (Import::Logging, FI_CLASS_LOG),
        "mr_cache" => (Import::MrCache, FI_CLASS_MR_CACHE),
        _ => return Ok(None),
    };
    let f = fid_logging {
        fid: new_fid(class, context, &OPS),
        ops: core::ptr::null_mut(),
    };
    Ok(Some(hand_out(f, kind).cast()))
}
