//! fi_getparams(3), fi_param_get(3) and fi_param_define(3), and the parameters of no provider.

use super::{init, ProviderName};
use crate::abi::entry::{entry, FromC, OutParam};
use crate::abi::info;
use crate::core::{params, Result};
use crate::types::*;
use core::ffi::{c_char, c_int, c_void};
use core::mem::size_of;
use std::ffi::CString;

/// Parameters of the library itself.
pub(super) const CORE_PARAMS: &[params::Def] = &[
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
    /// The pointer rules of [`crate::abi`].
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
/// The pointer rules of [`crate::abi`].
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
    /// The pointer rules of [`crate::abi`].
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
