//! How this library's functions become symbols of C.

use crate::{config, counts};
use core::ffi::c_int;

/// Exports functions that return a code of type `$code`. Each body runs within `$call`, which gets
/// the function's name.
macro_rules! exports {
    (
        $call:ident -> $code:ty;
        $($(#[$doc:meta])* fn $name:ident($($arg:ident: $t:ty),* $(,)?) $body:block)+
    ) => {$(
        $(#[$doc])*
        /// # Safety
        /// Pointers are as the interface requires.
        #[no_mangle]
        pub unsafe extern "C" fn $name($($arg: $t),*) -> $code {
            // SAFETY: as promised by the caller. Some need no promise.
            #[allow(unused_unsafe)]
            $call(stringify!($name), || unsafe { $body })
        }
    )+};
}
pub(crate) use exports;

/// Runs a call, unless it is configured to fail; `error` is the code for one that fails by itself.
pub(crate) fn run(name: &'static str, error: c_int, f: impl FnOnce() -> Option<()>) -> c_int {
    counts::count_call(name);
    let code = config::failure(name);
    code.unwrap_or_else(|| f().map_or(error, |()| 0))
}
