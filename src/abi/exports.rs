//! The exported functions: what `libfabric.map` lists.
//!
//! Every function has a plain Rust name; in the shared library (`cdylib/`) a stub per symbol and
//! version jumps to it.

mod fabrics;
mod infos;
mod log_calls;
mod own_providers;
mod parameters;
mod texts;

use super::entry::{entry, FromC, OutParam};
use super::info;
use crate::core::{params, Result, API_NEWEST, API_VERSION};
use crate::types::*;
use core::ffi::{c_char, c_int, c_void};
use core::ptr::null_mut;
pub use fabrics::{fabric, fabric2, fabric_1_0};
pub use infos::*;
pub use log_calls::{log_enabled, log_line, log_ready};
pub(crate) use own_providers::register_own;
pub use parameters::{freeparams, getparams, param_define, param_get};
use std::sync::Once;
pub use texts::{strerror, strerror_c, tostr, tostr_r};

/// Registers the providers, once.
fn init() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        params::define_all(None, parameters::CORE_PARAMS);
        register_own();
        super::external::load_all();
    });
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
