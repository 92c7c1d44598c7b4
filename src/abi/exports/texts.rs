//! fi_strerror(3) and fi_tostr(3).

use crate::abi::entry::{entry, FromC, TextOut};
use crate::abi::text;
use crate::core::process::PerProcess;
use crate::core::sync::Mutex;
use crate::core::{errno, Result};
use crate::types::*;
use core::ffi::{c_char, c_int, c_void};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::CString;

/// Text of an error number, valid for good.
pub fn strerror(errnum: c_int) -> *const c_char {
    // The child of a fork cannot wait for a thread of its parent.
    static TEXTS: PerProcess<Mutex<HashMap<c_int, CString>>> = PerProcess::new();
    if let Some(t) = errno::own_text(errnum) {
        return t.as_ptr();
    }
    let e = errnum.wrapping_abs();
    let mut all = TEXTS.lock();
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
    /// The pointer rules of [`crate::abi`].
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
    /// The pointer rules of [`crate::abi`].
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
