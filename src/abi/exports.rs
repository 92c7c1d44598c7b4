//! The exported functions: what `libfabric.map` lists.
//!
//! Every function has a plain Rust name; in the shared library (`cdylib/`) a stub per symbol and
//! version jumps to it. The eight versions of fi_getinfo, fi_freeinfo and fi_dupinfo differ in the
//! layout of their structs only, see `layout`.

use super::info;
use super::layout::{self, Layout};
use super::object::guard_int;
use super::text;
use crate::core::info::FabricAttr;
use crate::core::registry::{self, Preference, Query, RegisteredProvider};
use crate::core::{errno, log, params, Info, Result, API_VERSION};
use crate::prov::contract::{Provider, ProviderVisitor};
use crate::types::*;
use core::ffi::{c_char, c_int, c_void};
use core::mem::size_of;
use core::ptr::null_mut;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, Once};

/// A provider of the library's own.
struct Native<P>(P);

impl<P: Provider> RegisteredProvider for Native<P> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn version(&self) -> u32 {
        self.0.version()
    }

    fn getinfo(&self, q: &Query) -> Result<Vec<Info>> {
        self.0.getinfo(q)
    }

    fn open_fabric(&self, attr: &FabricAttr, context: usize) -> Result<*mut fid_fabric> {
        super::fabric::open(&self.0, attr, context)
    }
}

struct RegisterEach;

impl ProviderVisitor for RegisterEach {
    fn visit<P: Provider>(&mut self, p: P) {
        p.define_params();
        registry::register(Arc::new(Native(p)), Preference::Version);
    }
}

/// Registers the providers, once.
fn init() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        params::define_all(None, CORE_PARAMS);
        register_own();
        super::external::load_all();
    });
}

/// Registers the library's own providers, once.
pub(crate) fn register_own() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| crate::prov::visit(&mut RegisterEach));
}

const CORE_PARAMS: &[params::Def] = &[
    params::Def {
        name: "provider",
        kind: FI_PARAM_STRING,
        help: "Comma list of providers to use; a leading ^ lists those not to use. Default: all.",
    },
    params::Def {
        name: "provider_path",
        kind: FI_PARAM_STRING,
        help: "Colon list of directories with external providers (lib*-fi.so); +FILE: a file to \
               prefer; @ in front of the list: files before the library's own providers, whatever \
               their versions. Default: libfabric beside the library.",
    },
    params::Def {
        name: "log_level",
        kind: FI_PARAM_STRING,
        help: "none, warn, trace, info or debug. Default warn.",
    },
    params::Def {
        name: "log_prov",
        kind: FI_PARAM_STRING,
        help: "Comma list of providers to log; a leading ^ excludes.",
    },
    params::Def {
        name: "log_subsys",
        kind: FI_PARAM_STRING,
        help: "Comma list of subsystems to log (core, fabric, domain, ep_ctrl, ep_data, av, cq, \
               eq, mr, cntr); a leading ^ excludes.",
    },
];

/// # Safety
/// As fi_getinfo(3), in the layout of the node.
unsafe fn getinfo(
    l: &Layout,
    api: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    out: *mut *mut fi_info,
) -> c_int {
    guard_int("fi_getinfo", || {
        if out.is_null() {
            return Err(FI_EINVAL);
        }
        init();
        // SAFETY: as promised by the caller.
        unsafe {
            *out = null_mut();
            let (node, service) = (info::string(node), info::string(service));
            let hints = info::read(hints, l);
            let q = Query {
                api,
                node: node.as_deref(),
                service: service.as_deref(),
                flags,
                hints: hints.as_ref(),
            };
            let list = registry::getinfo(&q)?;
            *out = info::write_list(&list, l);
            if (*out).is_null() {
                return Err(FI_ENOMEM);
            }
        }
        Ok(())
    })
}

/// # Safety
/// As fi_dupinfo(3), in the layout of the node.
unsafe fn dupinfo(l: &Layout, i: *const fi_info) -> *mut fi_info {
    let mut copy = null_mut();
    guard_int("fi_dupinfo", || {
        // SAFETY: as promised by the caller.
        let i = unsafe { info::read(i, l) }.unwrap_or_else(Info::empty);
        copy = info::write(&i, l);
        Ok(())
    });
    copy
}

/// # Safety
/// As fi_freeinfo(3), in the layout of the node.
unsafe fn freeinfo(l: &Layout, i: *mut fi_info) {
    guard_int("fi_freeinfo", || {
        // SAFETY: as promised by the caller.
        unsafe { info::free_list(i, l) };
        Ok(())
    });
}

macro_rules! info_calls {
    ($($layout:ident: $get:ident $dup:ident $free:ident;)+) => {$(
        /// fi_getinfo(3), in the layout of one version.
        ///
        /// # Safety
        /// The pointer rules of [`super`].
        pub unsafe extern "C" fn $get(
            api: u32,
            node: *const c_char,
            service: *const c_char,
            flags: u64,
            hints: *const fi_info,
            out: *mut *mut fi_info,
        ) -> c_int {
            // SAFETY: as promised by our caller, whose structs are of this node.
            unsafe { getinfo(&layout::$layout, api, node, service, flags, hints, out) }
        }
        /// fi_dupinfo(3), in the layout of one version.
        ///
        /// # Safety
        /// The pointer rules of [`super`].
        pub unsafe extern "C" fn $dup(i: *const fi_info) -> *mut fi_info {
            // SAFETY: as above.
            unsafe { dupinfo(&layout::$layout, i) }
        }
        /// fi_freeinfo(3), in the layout of one version.
        ///
        /// # Safety
        /// The pointer rules of [`super`].
        pub unsafe extern "C" fn $free(i: *mut fi_info) {
            // SAFETY: as above.
            unsafe { freeinfo(&layout::$layout, i) }
        }
    )+};
}

info_calls! {
    V1_0: getinfo_1_0 dupinfo_1_0 freeinfo_1_0;
    V1_1: getinfo_1_1 dupinfo_1_1 freeinfo_1_1;
    V1_2: getinfo_1_2 dupinfo_1_2 freeinfo_1_2;
    V1_3: getinfo_1_3 dupinfo_1_3 freeinfo_1_3;
    V1_7: getinfo_1_7 dupinfo_1_7 freeinfo_1_7;
    V1_8: getinfo_1_8 dupinfo_1_8 freeinfo_1_8;
    V1_9: getinfo_1_9 dupinfo_1_9 freeinfo_1_9;
    V1_10: getinfo_1_10 dupinfo_1_10 freeinfo_1_10;
}

/// # Safety
/// `out` is NULL or a place for a pointer.
unsafe fn open_fabric(
    attr: &FabricAttr,
    out: *mut *mut fid_fabric,
    context: *mut c_void,
) -> Result<()> {
    if out.is_null() {
        return Err(FI_EINVAL);
    }
    init();
    let (Some(prov), Some(_)) = (attr.prov_name.as_deref(), attr.name.as_deref()) else {
        crate::warn_log!(
            FI_LOG_FABRIC,
            "fi_fabric: attr->prov_name and attr->name must be set"
        );
        return Err(FI_EINVAL);
    };
    let Some(p) = registry::by_name(prov) else {
        let all = registry::providers();
        let names: Vec<&str> = all.iter().map(|p| p.name()).collect();
        crate::warn_log!(
            FI_LOG_FABRIC,
            "fi_fabric: prov_name: wanted {prov}, had {}",
            names.join(", ")
        );
        return Err(FI_ENODEV);
    };
    let f = p.open_fabric(attr, context as usize)?;
    // SAFETY: as promised by the caller.
    unsafe { *out = f };
    Ok(())
}

/// fi_fabric(3): opens a fabric of the provider that `attr` names.
///
/// Errors: `-FI_EINVAL` without `attr`, `out` or a name; `-FI_ENODEV` for an unknown provider.
///
/// # Safety
/// The pointer rules of [`super`].
pub unsafe extern "C" fn fabric(
    attr: *mut fi_fabric_attr,
    out: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int {
    guard_int("fi_fabric", || {
        if attr.is_null() {
            return Err(FI_EINVAL);
        }
        // SAFETY: the attributes are valid in today's layout.
        unsafe {
            let a = info::parts::fabric(attr, layout::V1_10.fabric);
            open_fabric(&a, out, context)
        }
    })
}

/// fi_fabric(3) of FABRIC_1.0, whose attributes have no API version.
///
/// Errors: As [`fabric`].
///
/// # Safety
/// The pointer rules of [`super`].
pub unsafe extern "C" fn fabric_1_0(
    attr: *mut fi_fabric_attr,
    out: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int {
    guard_int("fi_fabric", || {
        if attr.is_null() {
            return Err(FI_EINVAL);
        }
        // SAFETY: the attributes are valid in the layout of FABRIC_1.0, without API version.
        unsafe {
            let mut a = info::parts::fabric(attr, layout::V1_0.fabric);
            a.api_version = crate::core::version(1, 0);
            open_fabric(&a, out, context)
        }
    })
}

/// fi_fabric2(3): opens the fabric of an info.
///
/// Errors: `-FI_EBADFLAGS` for any flag; else as [`fabric`].
///
/// # Safety
/// The pointer rules of [`super`].
pub unsafe extern "C" fn fabric2(
    i: *mut fi_info,
    out: *mut *mut fid_fabric,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    guard_int("fi_fabric2", || {
        if i.is_null() {
            return Err(FI_EINVAL);
        }
        if flags != 0 {
            crate::warn_log!(FI_LOG_FABRIC, "fi_fabric2: flags {flags:#x}: wanted none");
            return Err(FI_EBADFLAGS);
        }
        // SAFETY: the info is valid in today's layout.
        unsafe {
            let attr = (*i).fabric_attr;
            if attr.is_null() {
                return Err(FI_EINVAL);
            }
            let a = info::parts::fabric(attr, layout::V1_10.fabric);
            open_fabric(&a, out, context)
        }
    })
}

/// fi_open(3): an object of the library itself, `logging` or `mr_cache`.
///
/// Errors: `-FI_EINVAL` without a name or with attributes or flags; `-FI_ENOSYS` for another name
/// or a later API.
///
/// # Safety
/// The pointer rules of [`super`].
pub unsafe extern "C" fn open(
    api: u32,
    name: *const c_char,
    attr: *mut c_void,
    attr_len: usize,
    flags: u64,
    out: *mut *mut fid,
    context: *mut c_void,
) -> c_int {
    guard_int("fi_open", || {
        if out.is_null() || name.is_null() {
            return Err(FI_EINVAL);
        }
        init();
        if api > API_VERSION {
            return Err(FI_ENOSYS);
        }
        if flags != 0 || (!attr.is_null() && attr_len > 0) {
            return Err(FI_EINVAL);
        }
        // SAFETY: the name is a string, `out` a place for a pointer.
        unsafe {
            *out = null_mut();
            let name = info::string(name).unwrap_or_default();
            *out = super::logging::open(&name, context).ok_or_else(|| {
                crate::info_log!(
                    FI_LOG_CORE,
                    "fi_open: name: wanted {name}, had logging, mr_cache"
                );
                FI_ENOSYS
            })?;
        }
        Ok(())
    })
}

/// fi_version(3): the version of the API.
///
/// # Safety
/// None: it is `unsafe` as all of C's entry points are.
pub unsafe extern "C" fn version() -> u32 {
    API_VERSION
}

/// Text of an error number, valid for good.
pub fn strerror(errnum: c_int) -> *const c_char {
    static TEXTS: Mutex<Option<HashMap<c_int, CString>>> = Mutex::new(None);
    if let Some(t) = errno::own_text(errnum) {
        return t.as_ptr();
    }
    let e = errnum.wrapping_abs();
    let mut all = TEXTS.lock().unwrap_or_else(|e| e.into_inner());
    let all = all.get_or_insert_with(HashMap::new);
    // A table that only grows by error numbers the system knows, and one entry for the others.
    let e = if e > 4096 { -1 } else { e };
    all.entry(e)
        .or_insert_with(|| CString::new(errno::text(e)).unwrap_or_default())
        .as_ptr()
}

/// fi_strerror(3). The text stays valid.
///
/// # Safety
/// None: it is `unsafe` as all of C's entry points are.
pub unsafe extern "C" fn strerror_c(errnum: c_int) -> *const c_char {
    strerror(errnum)
}

/// fi_tostr(3) into the caller's buffer. NULL for a buffer of no length or no data.
///
/// # Safety
/// The pointer rules of [`super`].
pub unsafe extern "C" fn tostr_r(
    buf: *mut c_char,
    len: usize,
    data: *const c_void,
    kind: fi_type,
) -> *mut c_char {
    if buf.is_null() || len == 0 || data.is_null() {
        return null_mut();
    }
    guard_int("fi_tostr_r", || {
        // SAFETY: as fi_tostr(3) demands of its caller.
        unsafe { text::put(buf, len, &text::describe(data, kind)) };
        Ok(())
    });
    buf
}

/// fi_tostr(3) into a buffer of the thread, which the next call overwrites.
///
/// # Safety
/// The pointer rules of [`super`].
pub unsafe extern "C" fn tostr(data: *const c_void, kind: fi_type) -> *mut c_char {
    const LEN: usize = 8192;
    thread_local! {
        // One buffer per thread: unlike the C library's, a second thread does not overwrite it.
        static BUF: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    BUF.with(|b| {
        let mut b = b.borrow_mut();
        b.resize(LEN, 0);
        // SAFETY: the buffer has that many bytes and stays where it is.
        unsafe { tostr_r(b.as_mut_ptr().cast(), LEN, data, kind) }
    })
}

/// fi_getparams(3): every parameter that has been defined.
///
/// Errors: `-FI_EINVAL` without a place for the result, `-FI_ENOMEM`.
///
/// # Safety
/// The pointer rules of [`super`].
pub unsafe extern "C" fn getparams(out: *mut *mut fi_param, count: *mut c_int) -> c_int {
    guard_int("fi_getparams", || {
        if out.is_null() || count.is_null() {
            return Err(FI_EINVAL);
        }
        init();
        let all = params::all();
        // SAFETY: one zeroed entry more than there are parameters: its NULL name ends the list for
        // fi_freeparams.
        unsafe {
            let p = libc::calloc(all.len() + 1, size_of::<fi_param>()).cast::<fi_param>();
            if p.is_null() {
                return Err(FI_ENOMEM);
            }
            for (i, a) in all.iter().enumerate() {
                p.add(i).write(fi_param {
                    name: info::dup_string(Some(&a.env)),
                    r#type: a.kind,
                    help_string: info::dup_string(Some(&a.help)),
                    value: info::dup_string(std::env::var(&a.env).ok().as_deref()),
                });
            }
            *out = p;
            *count = all.len() as c_int;
        }
        Ok(())
    })
}

/// fi_freeparams(3).
///
/// # Safety
/// The pointer rules of [`super`].
pub unsafe extern "C" fn freeparams(p: *mut fi_param) {
    if p.is_null() {
        return;
    }
    // SAFETY: the list is one of `getparams`, which ends with a NULL name.
    unsafe {
        let mut at = p;
        while !(*at).name.is_null() {
            libc::free((*at).name.cast_mut().cast());
            libc::free((*at).help_string.cast_mut().cast());
            libc::free((*at).value.cast_mut().cast());
            at = at.add(1);
        }
        libc::free(p.cast());
    }
}

/// # Safety
/// `p` is NULL (the core) or a provider with a name.
unsafe fn prov_name(p: *const fi_provider) -> Option<String> {
    if p.is_null() {
        return None;
    }
    // SAFETY: as promised by the caller.
    unsafe { info::string((*p).name) }
}

/// fi_param_get(3): a parameter's value from the environment.
///
/// Errors: `-FI_ENODATA` for one that is not set, `-FI_EINVAL` for a value that is not of its type.
///
/// # Safety
/// The pointer rules of [`super`].
pub unsafe extern "C" fn param_get(
    prov: *mut fi_provider,
    name: *const c_char,
    value: *mut c_void,
) -> c_int {
    guard_int("fi_param_get", || {
        if name.is_null() || value.is_null() {
            return Err(FI_EINVAL);
        }
        // SAFETY: the name is a string; `value` is a place of the parameter's type. Strings are
        // the environment's own, which fi_param_get(3) lends without copying.
        unsafe {
            let prov = prov_name(prov);
            let name = info::string(name).unwrap_or_default();
            match params::get(prov.as_deref(), &name)? {
                params::Value::Str(_) => {
                    let env = CString::new(params::env_name(prov.as_deref(), &name));
                    let env = env.map_err(|_| FI_EINVAL)?;
                    *value.cast::<*mut c_char>() = libc::getenv(env.as_ptr());
                }
                params::Value::Int(v) => *value.cast::<c_int>() = v,
                params::Value::Bool(v) => *value.cast::<c_int>() = c_int::from(v),
                params::Value::Size(v) => *value.cast::<usize>() = v,
            }
        }
        Ok(())
    })
}

/// Second half of `fi_param_define`, behind its C shim.
///
/// # Safety
/// As fi_param_define(3).
pub unsafe extern "C" fn param_define(
    prov: *const fi_provider,
    name: *const c_char,
    kind: c_int,
    help: *const c_char,
) -> c_int {
    guard_int("fi_param_define", || {
        // SAFETY: as promised by the caller.
        let (prov, name, help) =
            unsafe { (prov_name(prov), info::string(name), info::string(help)) };
        let (Some(name), Ok(kind)) = (name.filter(|n| !n.is_empty()), u32::try_from(kind)) else {
            return Err(FI_EINVAL);
        };
        if kind > FI_PARAM_SIZE_T {
            return Err(FI_EINVAL);
        }
        params::define(prov.as_deref(), &name, kind, help.as_deref().unwrap_or(""));
        Ok(())
    })
}

/// Second half of `fi_log`, behind its C shim.
///
/// # Safety
/// As fi_log in fi_log.h.
pub unsafe extern "C" fn log_line(
    prov: *const fi_provider,
    level: c_int,
    subsys: c_int,
    func: *const c_char,
    line: c_int,
    text: *const c_char,
) -> c_int {
    guard_int("fi_log", || {
        // SAFETY: as promised by the caller.
        let (prov, func, text) =
            unsafe { (prov_name(prov), info::string(func), info::string(text)) };
        log::line(
            prov.as_deref().unwrap_or("core"),
            level as u32,
            subsys as u32,
            func.as_deref().unwrap_or("?"),
            line as u32,
            text.as_deref().unwrap_or("").trim_end(),
        );
        Ok(())
    })
}

/// fi_log_enabled of fi_log(3): whether a line of that level and subsystem is printed.
///
/// # Safety
/// The pointer rules of [`super`].
pub unsafe extern "C" fn log_enabled(
    prov: *const fi_provider,
    level: fi_log_level,
    subsys: fi_log_subsys,
) -> c_int {
    // SAFETY: the provider is NULL or valid.
    let name = unsafe { prov_name(prov) };
    c_int::from(log::enabled(
        name.as_deref().unwrap_or("core"),
        level,
        subsys,
    ))
}

/// fi_log_ready of fi_log(3): as [`log_enabled`], at most once in two seconds for a call site.
///
/// # Safety
/// The pointer rules of [`super`].
pub unsafe extern "C" fn log_ready(
    prov: *const fi_provider,
    level: fi_log_level,
    subsys: fi_log_subsys,
    showtime: *mut u64,
) -> c_int {
    const INTERVAL_MS: u64 = 2000;
    // SAFETY: the provider is NULL or valid, `showtime` NULL or the call site's own.
    unsafe {
        if log_enabled(prov, level, subsys) == 0 {
            return 0;
        }
        let now = log::milliseconds();
        if showtime.is_null() {
            return 1;
        }
        if now < *showtime {
            return 0;
        }
        *showtime = now + INTERVAL_MS;
    }
    1
}
