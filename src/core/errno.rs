//! Error numbers and their text (fi_errno(3)).
//!
//! Inside the library an error is a positive `FI_E*` value; `abi` negates it on the way out.

use crate::types::*;
use core::ffi::{c_int, CStr};

/// A positive `FI_E*` value.
pub type Errno = c_int;
/// Result of everything that can fail with an errno.
pub type Result<T> = core::result::Result<T, Errno>;

/// Text of the errors that only libfabric has, by value minus `FI_ERRNO_OFFSET`.
const OWN: [&CStr; 16] = [
    c"Unspecified error",
    c"Provided buffer is too small",
    c"Operation not permitted in current state",
    c"Error available",
    c"Flags not supported",
    c"Missing or unavailable event queue",
    c"Invalid resource domain",
    c"Missing or unavailable completion queue",
    c"CRC error",
    c"Truncation error",
    c"Required key not available",
    c"Missing or unavailable address vector",
    c"Queue has been overrun",
    c"Receiver not ready, no receive buffers available",
    c"Memory registration limit exceeded",
    c"Host unreachable due to firewall",
];

/// Text for a libfabric-only error, or `None` where the system's strerror(3) has the answer.
/// The sign of `errnum` does not matter.
pub fn own_text(errnum: c_int) -> Option<&'static CStr> {
    let e = errnum.unsigned_abs();
    if e < FI_ERRNO_OFFSET as u32 {
        return None;
    }
    let own = OWN.get((e - FI_ERRNO_OFFSET as u32) as usize);
    Some(own.copied().unwrap_or(c"Unspecified error"))
}

/// Text of any error number, for log lines and error entries.
pub fn text(errnum: c_int) -> String {
    match own_text(errnum) {
        Some(t) => t.to_string_lossy().into_owned(),
        None => {
            let e = std::io::Error::from_raw_os_error(errnum.wrapping_abs());
            let full = e.to_string();
            match full.find(" (os error") {
                Some(cut) => full[..cut].to_string(),
                None => full,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_errors_have_their_text_whatever_the_sign() {
        assert_eq!(own_text(FI_ETRUNC), Some(c"Truncation error"));
        assert_eq!(own_text(-FI_ETRUNC), Some(c"Truncation error"));
        assert_eq!(own_text(FI_EINVAL), None);
        assert_eq!(own_text(10_000), Some(c"Unspecified error"));
        assert_eq!(text(FI_EINVAL), "Invalid argument");
    }
}
