//! Libraries of devices, which are loaded by `dlopen` and never closed.

use core::ffi::{c_int, c_void, CStr};
use core::mem::transmute_copy;

/// A struct of functions of a library, which return `$code`.
macro_rules! functions {
    ($table:ident -> $code:ty; $($name:ident = $symbol:literal: fn($($t:ty),*);)+) => {
        /// The functions that are used.
        struct $table {
            $($name: unsafe extern "C" fn($($t),*) -> $code,)+
        }

        impl $table {
            /// `None` when one of them is missing.
            fn load(lib: *mut core::ffi::c_void) -> Option<$table> {
                // SAFETY: the library is open and stays so; the functions of these names have these
                // types, as the library's header declares.
                unsafe {
                    Some($table {
                        $($name: $crate::hmem::dl::find(lib, $symbol)?,)+
                    })
                }
            }
        }
    };
}
pub(super) use functions;

/// A function of a library, which not every version has.
///
/// # Safety
/// The library stays open, and `F` is the type of a pointer to the function of this name.
pub(crate) unsafe fn find<F>(lib: *mut c_void, name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: the library is open; a missing symbol is NULL, which represents `None`.
    unsafe {
        let p = libc::dlsym(lib, name.as_ptr());
        transmute_copy::<*mut c_void, Option<F>>(&p)
    }
}

/// Loads a library; `None` where the machine lacks it.
pub(super) fn open(name: &CStr, flags: c_int) -> Option<*mut c_void> {
    // SAFETY: the name is a C string. The library is never closed.
    let p = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL | flags) };
    (!p.is_null()).then_some(p)
}

/// How many libraries have been loaded so far. Asking costs a fraction of what [`loaded`] does,
/// which searches the disk for a library that is not there.
pub(super) fn loads() -> u64 {
    unsafe extern "C" fn first(
        info: *mut libc::dl_phdr_info,
        _: libc::size_t,
        to: *mut c_void,
    ) -> c_int {
        // SAFETY: the linker passes a valid struct, and `loads` passes a number that it waits for.
        unsafe { *to.cast::<u64>() = (*info).dlpi_adds };
        // Every entry has the same number.
        1
    }
    let mut n = 0u64;
    // SAFETY: the function fits the call, and does not keep the pointer.
    unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut n).cast()) };
    n
}

/// Whether the program has loaded a library.
pub(super) fn loaded(name: &CStr) -> bool {
    open(name, libc::RTLD_NOLOAD).is_some()
}
