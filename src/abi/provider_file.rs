//! A provider of ours as a provider file of another libfabric (fi_provider(3)): `libefa-fi.so`
//! exports `fi_prov_ini` alone (crate `provider-file`), which a host library calls when it loads
//! the file.
//!
//! The host is the library that the call came from. Its newest version node says which layout its
//! structs have; its fi_log and fi_param_* take our lines and parameters. From then on it calls
//! the functions of the struct it was given, and its applications the objects' own tables.
//! Providers are not searched for, and FI_PROVIDER_PATH is not read: that is the host's part.

use super::entry::{entry, guard, FromC, OutParam};
use super::info;
use super::layout;
use crate::core::info::FabricAttr;
use crate::core::layering::INTERNAL;
use crate::core::log::{self, LogLine, LogSink};
use crate::core::params::{self, ParamHost, Value};
use crate::core::registry::{self, Query};
use crate::core::{Info, Result};
use crate::types::*;
use core::ffi::{c_char, c_int, c_void, CStr};
use core::mem::transmute_copy;
use core::ptr::null_mut;
use std::ffi::CString;
use std::sync::OnceLock;

/// The provider that the file is for.
static NAME: OnceLock<&'static CStr> = OnceLock::new();

/// A host's functions, `None` for those it does not export.
#[derive(Clone, Copy)]
struct HostLibrary {
    /// The argument by which its functions identify this provider.
    provider: *const fi_provider,
    enabled: Option<LogEnabled>,
    line: Option<Log>,
    define: Option<ParamDefine>,
    get: Option<ParamGet>,
}

type LogEnabled = unsafe extern "C" fn(*const fi_provider, fi_log_level, fi_log_subsys) -> c_int;
type Log = unsafe extern "C" fn(
    *const fi_provider,
    fi_log_level,
    fi_log_subsys,
    *const c_char,
    c_int,
    *const c_char,
    ...
);
type ParamDefine = unsafe extern "C" fn(
    *const fi_provider,
    *const c_char,
    fi_param_type,
    *const c_char,
    ...
) -> c_int;
type ParamGet = unsafe extern "C" fn(*const fi_provider, *const c_char, *mut c_void) -> c_int;

// SAFETY: a host's functions may be called from any thread; the struct stays for good.
unsafe impl Send for HostLibrary {}
// SAFETY: as above.
unsafe impl Sync for HostLibrary {}

impl LogSink for HostLibrary {
    fn enabled(&self, _: &str, level: fi_log_level, subsys: fi_log_subsys) -> Option<bool> {
        // SAFETY: a function of the host's library, which stays loaded, with the provider that the
        // library gave us; its header declares the call so.
        self.enabled
            .map(|f| unsafe { f(self.provider, level, subsys) } != 0)
    }

    fn line(&self, l: &LogLine) -> bool {
        let (Ok(func), Ok(text)) = (CString::new(l.func), CString::new(l.text)) else {
            return true;
        };
        let Some(f) = self.line else { return false };
        let (format, line) = (c"%s\n".as_ptr(), l.line as c_int);
        // SAFETY: as above; the format takes one string, and all of them live until the return.
        unsafe {
            f(
                self.provider,
                l.level,
                l.subsys,
                func.as_ptr(),
                line,
                format,
                text.as_ptr(),
            );
        }
        true
    }
}

impl ParamHost for HostLibrary {
    fn define(&self, name: &str, kind: fi_param_type, help: &str) {
        let (Ok(name), Ok(help)) = (CString::new(name), CString::new(help)) else {
            return;
        };
        if let Some(f) = self.define {
            let format = c"%s".as_ptr();
            // SAFETY: as above; the host copies the strings.
            unsafe { f(self.provider, name.as_ptr(), kind, format, help.as_ptr()) };
        }
    }

    fn get(&self, name: &str, kind: fi_param_type) -> Result<Value> {
        let name = CString::new(name).map_err(|_| FI_EINVAL)?;
        let f = self.get.ok_or(FI_ENOSYS)?;
        let (mut text, mut int, mut size) = (null_mut::<c_char>(), 0 as c_int, 0usize);
        let place: *mut c_void = match kind {
            FI_PARAM_STRING => (&raw mut text).cast(),
            FI_PARAM_SIZE_T => (&raw mut size).cast(),
            _ => (&raw mut int).cast(),
        };
        // SAFETY: as above; the place has the type that this kind of parameter is written as, and
        // a string stays the host's.
        unsafe {
            match f(self.provider, name.as_ptr(), place) {
                0 => {}
                e => return Err(e.wrapping_neg()),
            }
            Ok(match kind {
                FI_PARAM_STRING => Value::Str(info::string(text).unwrap_or_default()),
                FI_PARAM_SIZE_T => Value::Size(size),
                FI_PARAM_BOOL => Value::Bool(int != 0),
                _ => Value::Int(int),
            })
        }
    }
}

/// The library that this address lies in, open.
///
/// # Safety
/// None: any address may be asked for.
unsafe fn library_of(address: *const c_void) -> *mut c_void {
    // SAFETY: the answer has its place, and its name stays as long as the library; a library that
    // is loaded is only counted.
    unsafe {
        let mut at: libc::Dl_info = core::mem::zeroed();
        let known = libc::dladdr(address, &mut at) != 0 && !at.dli_fname.is_null();
        let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
        let open = match known {
            true => libc::dlopen(at.dli_fname, flags),
            false => null_mut(),
        };
        match open.is_null() {
            // It is part of the program.
            true => libc::dlopen(core::ptr::null(), libc::RTLD_LAZY),
            false => open,
        }
    }
}

/// A function of a library.
///
/// # Safety
/// The symbol of this name is such a function.
unsafe fn function<F>(library: *mut c_void, name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: the library is open; NULL is `None`.
    unsafe {
        let p = libc::dlsym(library, name.as_ptr());
        transmute_copy::<*mut c_void, Option<F>>(&p)
    }
}

/// `fi_prov_ini` of a provider file for the provider `name`; `caller` is an address in the host.
/// Each host gets a struct of its own, in which it keeps its own data. NULL on failure.
///
/// # Safety
/// A libfabric has called it as fi_prov.h declares it, from `caller`.
pub unsafe fn ini(caller: *const c_void, name: &'static CStr) -> *mut fi_provider {
    let mut out = null_mut();
    let _: c_int = guard("fi_prov_ini", || {
        let name = *NAME.get_or_init(|| name);
        let provider = Box::leak(Box::new(fi_provider {
            version: 0,
            fi_version: crate::core::API_VERSION,
            context: fi_context {
                internal: [null_mut(); 4],
            },
            name: name.as_ptr(),
            getinfo: Some(getinfo),
            fabric: Some(fabric),
            cleanup: Some(cleanup),
        }));
        // SAFETY: functions of these names have these types, in any libfabric.
        let (host, version) = unsafe {
            let library = library_of(caller);
            layout::expect_node(|node| {
                !libc::dlvsym(library, c"fi_getinfo".as_ptr(), node.as_ptr()).is_null()
            });
            let version: Option<unsafe extern "C" fn() -> u32> = function(library, c"fi_version");
            let host = HostLibrary {
                provider,
                enabled: function(library, c"fi_log_enabled"),
                line: function(library, c"fi_log"),
                define: function(library, c"fi_param_define"),
                get: function(library, c"fi_param_get"),
            };
            (host, version.map(|f| f()))
        };
        if let Some(v) = version {
            provider.fi_version = provider.fi_version.min(v);
        }
        if host.enabled.is_some() && host.line.is_some() {
            log::set_sink(Some(Box::new(host)));
        }
        params::set_host(&name.to_string_lossy(), Box::new(host));
        super::exports::register_own();
        let own = registry::by_name(&name.to_string_lossy()).ok_or(FI_ENODEV)?;
        provider.version = own.version();
        out = provider;
        Ok(())
    });
    out
}

/// The provider of this file.
fn own() -> Result<std::sync::Arc<dyn registry::RegisteredProvider>> {
    let name = NAME.get().ok_or(FI_ENODEV)?;
    registry::by_name(&name.to_string_lossy()).ok_or(FI_ENODEV)
}

/// The hints of the host, in its layout.
struct HostHints(Option<Info>);

impl FromC<*const fi_info> for HostHints {
    unsafe fn from_c(p: *const fi_info) -> Result<Self> {
        // SAFETY: the host calls with structs of its own version.
        Ok(HostHints(unsafe { info::read(p, layout::callers()) }))
    }
}

entry! {
    fn getinfo(
        api: u32,
        node: *const c_char as Option<String>,
        service: *const c_char as Option<String>,
        flags: u64,
        hints: *const fi_info as HostHints,
        out: *mut *mut fi_info as OutParam<*mut fi_info>,
    ) -> c_int = "fi_getinfo" {
        out.put(null_mut());
        let q = Query {
            api,
            node: node.as_deref(),
            service: service.as_deref(),
            flags: flags & !INTERNAL,
            hints: hints.0.as_ref(),
        };
        // The host puts the provider's name to each.
        let mut list = own()?.getinfo(&q)?;
        list.iter_mut()
            .filter_map(|i| i.fabric.as_mut())
            .for_each(|f| f.prov_name = None);
        if list.is_empty() {
            return Err(FI_ENODATA);
        }
        let list = info::write_list(&list, layout::callers());
        if list.is_null() {
            return Err(FI_ENOMEM);
        }
        out.put(list);
        Ok(())
    }
}

/// The attributes of a fabric, in the host's layout.
struct HostFabric(FabricAttr);

impl FromC<*mut fi_fabric_attr> for HostFabric {
    unsafe fn from_c(attr: *mut fi_fabric_attr) -> Result<Self> {
        if attr.is_null() {
            return Err(FI_EINVAL);
        }
        // SAFETY: the host calls with structs of its own version.
        let a = unsafe { info::parts::fabric(attr, layout::callers().fabric) };
        Ok(HostFabric(a))
    }
}

entry! {
    fn fabric(
        attr: *mut fi_fabric_attr as HostFabric,
        out: *mut *mut fid_fabric as OutParam<*mut fid_fabric>,
        context: *mut c_void,
    ) -> c_int = "fi_fabric" {
        own()?.open_fabric(&attr.0, context as usize).map(|f| out.put(f))
    }
}

/// What is open then is the application's to close.
unsafe extern "C" fn cleanup() {}
