//! The exported functions: what `libfabric.map` lists.
//!
//! Every function has a plain Rust name; in the shared library (`cdylib/`) a stub per symbol and
//! version jumps to it. The eight versions of fi_getinfo, fi_freeinfo and fi_dupinfo differ in the
//! layout of their structs only, see `layout`.

use super::entry::{entry, guard, FromC, OutParam, TextOut};
use super::info;
use super::layout::{self, Layout};
use super::text;
use crate::core::info::FabricAttr;
use crate::core::layering::INTERNAL;
use crate::core::registry::{self, Preference, Query, RegisteredProvider};
use crate::core::sync::Unpoisoned;
use crate::core::{errno, log, params, Info, Result, API_NEWEST, API_VERSION};
use crate::prov::contract::{Provider, ProviderVisitor};
use crate::types::*;
use core::ffi::{c_char, c_int, c_void};
use core::mem::size_of;
use core::ptr::null_mut;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, Once};

/// A provider of the library's own, and the address of its `struct fi_provider`, for hooks.
struct Native<P>(P, usize);

impl<P: Provider> Native<P> {
    fn new(p: P) -> Native<P> {
        let name = CString::new(p.name()).unwrap_or_default();
        let about = Box::leak(Box::new(fi_provider {
            version: p.version(),
            fi_version: API_VERSION,
            context: fi_context {
                internal: [null_mut(); 4],
            },
            name: name.into_raw(),
            getinfo: None,
            fabric: None,
            cleanup: None,
        }));
        let at = &raw const *about as usize;
        Native(p, at)
    }
}

impl<P: Provider> RegisteredProvider for Native<P> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn version(&self) -> u32 {
        self.0.version()
    }

    fn getinfo(&self, q: &Query) -> Result<Vec<Info>> {
        let flags = q.flags & !INTERNAL;
        self.0.getinfo(&Query { flags, ..*q })
    }

    fn open_fabric(&self, attr: &FabricAttr, context: usize) -> Result<*mut fid_fabric> {
        super::fabric::open(&self.0, attr, context)
    }

    fn c_struct(&self) -> usize {
        self.1
    }
}

struct RegisterEach;

impl ProviderVisitor for RegisterEach {
    fn visit<P: Provider>(&mut self, p: P) {
        p.define_params();
        registry::register(Arc::new(Native::new(p)), Preference::Version);
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
    ONCE.call_once(|| {
        super::object::watch_forks();
        crate::prov::visit(&mut RegisterEach);
    });
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
        name: "hook",
        kind: FI_PARAM_STRING,
        help: "List of hooking providers, separated by ;, to wrap around each fabric, the first \
               innermost. Default: none.",
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
    params::Def {
        name: "log_location",
        kind: FI_PARAM_STRING,
        help: "stderr, stdout or a file for log lines. Default stderr.",
    },
    params::Def {
        name: "log_location_mode",
        kind: FI_PARAM_STRING,
        help: "Mode of that file, as for fopen(3): w or a. Default w.",
    },
    params::Def {
        name: "addr_format",
        kind: FI_PARAM_STRING,
        help:
            "Address format of the infos that fi_getinfo returns, as FI_SOCKADDR_IN. Default: any.",
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
    guard("fi_getinfo", || {
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
    let copy: *const fi_info = guard("fi_dupinfo", || {
        // SAFETY: as promised by the caller.
        let i = unsafe { info::read(i, l) }.unwrap_or_else(Info::empty);
        Ok(info::write(&i, l).cast_const())
    });
    copy.cast_mut()
}

/// # Safety
/// As fi_freeinfo(3), in the layout of the node.
unsafe fn freeinfo(l: &Layout, i: *mut fi_info) {
    // SAFETY: as promised by the caller.
    let _: c_int = guard("fi_freeinfo", || unsafe {
        info::free_list(i, l);
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

/// Opens the fabric that attributes name.
fn open_fabric(attr: &FabricAttr, context: *mut c_void) -> Result<*mut fid_fabric> {
    init();
    let (Some(prov), Some(_)) = (attr.prov_name.as_deref(), attr.name.as_deref()) else {
        crate::warn_log!(
            FI_LOG_FABRIC,
            "fi_fabric: attr->prov_name and attr->name must be set"
        );
        return Err(FI_EINVAL);
    };
    let Some(p) = registry::by_name(prov) else {
        crate::warn_log!(
            FI_LOG_FABRIC,
            "fi_fabric: prov_name: wanted {prov}, had {}",
            registry::names(|_| true)
        );
        return Err(FI_ENODEV);
    };
    let fabric = p.open_fabric(attr, context as usize)?;
    Ok(hooked(fabric, &*p))
}

/// The fabric as the hooking providers wrap it that `FI_HOOK` names, each around the one before. A
/// hook that is not here, or fails, is left out.
fn hooked(mut fabric: *mut fid_fabric, p: &dyn RegisteredProvider) -> *mut fid_fabric {
    let hooks = std::env::var("FI_HOOK").unwrap_or_default();
    for name in hooks.split(';').map(str::trim).filter(|n| !n.is_empty()) {
        let Some(hook) = registry::hook(name) else {
            continue;
        };
        let attr = FabricAttr {
            fabric: fabric as usize,
            ..FabricAttr::default()
        };
        match hook.open_fabric(&attr, p.c_struct()) {
            Ok(wrapped) => fabric = wrapped,
            Err(e) => crate::warn_log!(
                FI_LOG_FABRIC,
                "FI_HOOK: {name} does not wrap this fabric: {}",
                errno::text(e)
            ),
        }
    }
    fabric
}

/// Attributes of a fabric, in today's layout.
impl FromC<*mut fi_fabric_attr> for FabricAttr {
    unsafe fn from_c(attr: *mut fi_fabric_attr) -> Result<Self> {
        if attr.is_null() {
            return Err(FI_EINVAL);
        }
        // SAFETY: the attributes are valid in today's layout.
        Ok(unsafe { info::parts::fabric(attr, layout::V1_10.fabric) })
    }
}

/// Attributes of a fabric in the layout of FABRIC_1.0, which has no API version.
struct FabricAttr10(FabricAttr);

impl FromC<*mut fi_fabric_attr> for FabricAttr10 {
    unsafe fn from_c(attr: *mut fi_fabric_attr) -> Result<Self> {
        if attr.is_null() {
            return Err(FI_EINVAL);
        }
        // SAFETY: the attributes are valid in this layout.
        let mut a = unsafe { info::parts::fabric(attr, layout::V1_0.fabric) };
        a.api_version = crate::core::version(1, 0);
        Ok(FabricAttr10(a))
    }
}

/// The attributes of an info's fabric.
struct FabricOfInfo(FabricAttr);

impl FromC<*mut fi_info> for FabricOfInfo {
    unsafe fn from_c(i: *mut fi_info) -> Result<Self> {
        // SAFETY: the info is NULL or valid in today's layout.
        unsafe { FabricAttr::from_c(i.as_ref().ok_or(FI_EINVAL)?.fabric_attr) }.map(FabricOfInfo)
    }
}

entry! {
    /// fi_fabric(3): opens a fabric of the provider that `attr` names.
    ///
    /// Errors: `-FI_EINVAL` without `attr`, `out` or a name; `-FI_ENODEV` for an unknown provider.
    ///
    /// # Safety
    /// The pointer rules of [`super`].
    pub fn fabric(
        attr: *mut fi_fabric_attr as FabricAttr,
        out: *mut *mut fid_fabric as OutParam<*mut fid_fabric>,
        context: *mut c_void,
    ) -> c_int = "fi_fabric" {
        open_fabric(&attr, context).map(|f| out.put(f))
    }
}

entry! {
    /// fi_fabric(3) of FABRIC_1.0, whose attributes have no API version.
    ///
    /// Errors: As [`fabric`].
    ///
    /// # Safety
    /// The pointer rules of [`super`].
    pub fn fabric_1_0(
        attr: *mut fi_fabric_attr as FabricAttr10,
        out: *mut *mut fid_fabric as OutParam<*mut fid_fabric>,
        context: *mut c_void,
    ) -> c_int = "fi_fabric" {
        open_fabric(&attr.0, context).map(|f| out.put(f))
    }
}

entry! {
    /// fi_fabric2(3): opens the fabric of an info.
    ///
    /// Errors: `-FI_EBADFLAGS` for any flag; else as [`fabric`].
    ///
    /// # Safety
    /// The pointer rules of [`super`].
    pub fn fabric2(
        info: *mut fi_info as FabricOfInfo,
        out: *mut *mut fid_fabric as OutParam<*mut fid_fabric>,
        flags: u64,
        context: *mut c_void,
    ) -> c_int = "fi_fabric2" {
        if flags != 0 {
            crate::warn_log!(FI_LOG_FABRIC, "fi_fabric2: flags {flags:#x}: wanted none");
            return Err(FI_EBADFLAGS);
        }
        open_fabric(&info.0, context).map(|f| out.put(f))
    }
}

entry! {
    /// fi_open(3): an object of the library itself, `logging` or `mr_cache`.
    ///
    /// Errors: `-FI_EINVAL` without a name or with attributes or flags; `-FI_ENOSYS` for another
    /// name or a later API.
    ///
    /// # Safety
    /// The pointer rules of [`super`].
    pub fn open(
        api: u32,
        name: *const c_char as String,
        attr: *mut c_void,
        attr_len: usize,
        flags: u64,
        out: *mut *mut fid as OutParam<*mut fid>,
        context: *mut c_void,
    ) -> c_int = "fi_open" {
        // Providers are not registered here: programs import loggers before main, and set
        // variables of providers after that.
        if api > API_NEWEST {
            return Err(FI_ENOSYS);
        }
        if !attr.is_null() && attr_len > 0 {
            return Err(FI_EINVAL);
        }
        if flags != 0 {
            return Err(FI_EBADFLAGS);
        }
        out.put(null_mut());
        let Some(object) = super::logging::open(&name, context)? else {
            crate::info_log!(
                FI_LOG_CORE,
                "fi_open: name: wanted {name}, had logging, mr_cache"
            );
            return Err(FI_ENOSYS);
        };
        out.put(object);
        Ok(())
    }
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
    let mut all = TEXTS.lock().unpoisoned();
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

/// What fi_tostr(3) describes.
struct Described {
    data: *const c_void,
    kind: fi_type,
}

impl FromC<(*const c_void, fi_type)> for Described {
    unsafe fn from_c((data, kind): (*const c_void, fi_type)) -> Result<Self> {
        match data.is_null() {
            true => Err(FI_EINVAL),
            false => Ok(Described { data, kind }),
        }
    }
}

impl Described {
    fn text(&self) -> String {
        // SAFETY: the data is of the kind that the caller says, as fi_tostr(3) demands.
        unsafe { text::describe(self.data, self.kind) }
    }
}

entry! {
    /// fi_tostr(3) into the caller's buffer. NULL for a buffer of no length or no data.
    ///
    /// # Safety
    /// The pointer rules of [`super`].
    pub fn tostr_r(
        (buf: *mut c_char, len: usize) as out: TextOut,
        (data: *const c_void, kind: fi_type) as what: Described,
    ) -> *const c_char = "fi_tostr_r" {
        if out.is_empty() {
            return Err(FI_EINVAL);
        }
        Ok(out.put(&what.text()).unwrap_or(core::ptr::null()))
    }
}

entry! {
    /// fi_tostr(3) into a buffer of the thread, which the next call overwrites. NULL for no data.
    ///
    /// # Safety
    /// The pointer rules of [`super`].
    pub fn tostr((data: *const c_void, kind: fi_type) as what: Described) -> *const c_char
        = "fi_tostr"
    {
        const LEN: usize = 8192;
        thread_local! {
            // One buffer per thread: unlike the C library's, a second thread does not overwrite it.
            static BUF: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
        }
        let text = what.text().into_bytes();
        let whole = || text.iter().take(LEN - 1).chain(&[0]);
        let shown = BUF.try_with(|b| {
            let mut b = b.borrow_mut();
            // It stays where it is.
            b.resize(LEN, 0);
            for (to, c) in b.iter_mut().zip(whole()) {
                *to = *c;
            }
            b.as_ptr()
        });
        // A handler that runs while the thread ends finds no buffer: this one stays.
        let shown = shown.unwrap_or_else(|_| whole().copied().collect::<Vec<u8>>().leak().as_ptr());
        Ok(shown.cast())
    }
}

/// A malloc'ed list of the parameters, which a NULL name ends; NULL when memory is short.
fn param_list(all: &[params::Param]) -> *mut fi_param {
    // SAFETY: the block has one entry more than there are parameters, all zero.
    unsafe {
        let p = libc::calloc(all.len() + 1, size_of::<fi_param>()).cast::<fi_param>();
        if p.is_null() {
            return p;
        }
        for (i, a) in all.iter().enumerate() {
            p.add(i).write(fi_param {
                name: info::dup_string(Some(&a.env)),
                r#type: a.kind,
                help_string: info::dup_string(Some(&a.help)),
                value: info::dup_string(std::env::var(&a.env).ok().as_deref()),
            });
        }
        p
    }
}

entry! {
    /// fi_getparams(3): every parameter that has been defined.
    ///
    /// Errors: `-FI_EINVAL` without a place for the result, `-FI_ENOMEM`.
    ///
    /// # Safety
    /// The pointer rules of [`super`].
    pub fn getparams(
        out: *mut *mut fi_param as OutParam<*mut fi_param>,
        count: *mut c_int as OutParam<c_int>,
    ) -> c_int = "fi_getparams" {
        init();
        let all = params::all();
        let list = param_list(&all);
        if list.is_null() {
            return Err(FI_ENOMEM);
        }
        out.put(list);
        count.put(all.len() as c_int);
        Ok(())
    }
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

/// The name of the provider that a call is for; `None` is the core.
struct ProviderName(Option<String>);

impl FromC<*const fi_provider> for ProviderName {
    unsafe fn from_c(p: *const fi_provider) -> Result<Self> {
        // SAFETY: it is NULL, or a provider whose name is NULL or a string.
        Ok(ProviderName(unsafe {
            p.as_ref().and_then(|p| info::string(p.name))
        }))
    }
}

impl ProviderName {
    fn or_core(&self) -> &str {
        self.0.as_deref().unwrap_or("core")
    }
}

/// The place of a parameter's value, which is of the parameter's type.
struct ParamPlace(*mut c_void);

/// `FI_EINVAL` for NULL.
impl FromC<*mut c_void> for ParamPlace {
    unsafe fn from_c(p: *mut c_void) -> Result<Self> {
        match p.is_null() {
            true => Err(FI_EINVAL),
            false => Ok(ParamPlace(p)),
        }
    }
}

impl ParamPlace {
    fn put(&self, v: &params::Value, env: &CString) {
        // SAFETY: the place is of the parameter's type. Strings are the environment's own, which
        // fi_param_get(3) lends without copying.
        unsafe {
            match v {
                params::Value::Str(_) => {
                    *self.0.cast::<*mut c_char>() = libc::getenv(env.as_ptr());
                }
                params::Value::Int(v) => *self.0.cast::<c_int>() = *v,
                params::Value::Bool(v) => *self.0.cast::<c_int>() = c_int::from(*v),
                params::Value::Size(v) => *self.0.cast::<usize>() = *v,
            }
        }
    }
}

entry! {
    /// fi_param_get(3): a parameter's value from the environment.
    ///
    /// Errors: `-FI_ENODATA` for one that is not set, `-FI_EINVAL` for a value that is not of its
    /// type.
    ///
    /// # Safety
    /// The pointer rules of [`super`].
    pub fn param_get(
        prov: *const fi_provider as ProviderName,
        name: *const c_char as String,
        value: *mut c_void as ParamPlace,
    ) -> c_int = "fi_param_get" {
        let prov = prov.0.as_deref();
        let v = params::get(prov, &name)?;
        let env = CString::new(params::env_name(prov, &name)).map_err(|_| FI_EINVAL)?;
        value.put(&v, &env);
        Ok(())
    }
}

entry! {
    /// Second half of `fi_param_define`, behind its C shim.
    ///
    /// # Safety
    /// As fi_param_define(3).
    pub fn param_define(
        prov: *const fi_provider as ProviderName,
        name: *const c_char as String,
        kind: c_int,
        help: *const c_char as Option<String>,
    ) -> c_int = "fi_param_define" {
        let kind = u32::try_from(kind).map_err(|_| FI_EINVAL)?;
        if name.is_empty() || kind > FI_PARAM_SIZE_T {
            return Err(FI_EINVAL);
        }
        params::define(prov.0.as_deref(), &name, kind, help.as_deref().unwrap_or(""));
        Ok(())
    }
}

entry! {
    /// Second half of `fi_log`, behind its C shim.
    ///
    /// # Safety
    /// As fi_log in fi_log.h.
    pub fn log_line(
        prov: *const fi_provider as ProviderName,
        level: c_int,
        subsys: c_int,
        func: *const c_char as Option<String>,
        line: c_int,
        text: *const c_char as Option<String>,
    ) -> c_int = "fi_log" {
        log::line(
            prov.or_core(),
            level as u32,
            subsys as u32,
            func.as_deref().unwrap_or("?"),
            line as u32,
            text.as_deref().unwrap_or("").trim_end(),
        );
        Ok(())
    }
}

entry! {
    /// fi_log_enabled of fi_log(3): 1 when a line of that level and subsystem is printed.
    ///
    /// # Safety
    /// The pointer rules of [`super`].
    pub fn log_enabled(
        prov: *const fi_provider as ProviderName,
        level: fi_log_level,
        subsys: fi_log_subsys,
    ) -> c_int = "fi_log_enabled" {
        Ok(usize::from(log::enabled(prov.or_core(), level, subsys)))
    }
}

entry! {
    /// fi_log_ready of fi_log(3): as [`log_enabled`], at most once in two seconds for a call site.
    ///
    /// # Safety
    /// The pointer rules of [`super`].
    pub fn log_ready(
        prov: *const fi_provider as ProviderName,
        level: fi_log_level,
        subsys: fi_log_subsys,
        showtime: *mut u64 as Option<&mut u64>,
    ) -> c_int = "fi_log_ready" {
        const INTERVAL_MS: u64 = 2000;
        if !log::enabled(prov.or_core(), level, subsys) {
            return Ok(0);
        }
        let now = log::milliseconds();
        match showtime {
            Some(t) if now < *t => return Ok(0),
            Some(t) => *t = now + INTERVAL_MS,
            None => {}
        }
        Ok(1)
    }
}
