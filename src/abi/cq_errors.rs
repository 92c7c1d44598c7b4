//! Errors of a completion queue: fi_cq_readerr(3) and fi_cq_strerror(3).
//!
//! The error data of an entry is its text. The library lends it, or copies it to a buffer that the
//! application offers.

use super::cq::CqBody;
use super::entry::{entry, FromC, TextOut};
use crate::core::sync::Unpoisoned;
use crate::core::{version, Result};
use crate::prov::contract::*;
use crate::types::*;
use core::ffi::{c_char, c_int, c_void};
use core::mem::size_of;
use core::ptr::null_mut;
use std::collections::VecDeque;

/// Error texts lent to the application. Several threads may read errors of one queue: a text stays
/// where it is until as many others have followed.
#[derive(Default)]
pub(super) struct ErrorTexts {
    lent: VecDeque<(i32, Vec<u8>)>,
    /// The buffer that an application has offered and got no data in.
    unused: Option<usize>,
}

/// Error texts that are valid at once.
pub(super) const TEXTS_LENT: usize = 64;

impl ErrorTexts {
    /// Lends a text, terminated, for this provider error.
    fn lend(&mut self, prov_errno: i32, text: String) -> &[u8] {
        if self.lent.len() >= TEXTS_LENT {
            self.lent.pop_front();
        }
        let mut bytes = text.into_bytes();
        bytes.retain(|b| *b != 0);
        bytes.push(0);
        self.lent.push_back((prov_errno, bytes));
        self.lent.back().map_or(&[0], |(_, t)| t)
    }

    /// The text at this address, if it is lent.
    fn at(&self, p: *const u8) -> Option<&[u8]> {
        let lent = self.lent.iter().find(|(_, t)| core::ptr::eq(t.as_ptr(), p));
        lent.map(|(_, t)| t.as_slice())
    }

    /// The latest text, if it is of this provider error.
    fn latest(&self, prov_errno: i32) -> Option<&[u8]> {
        let last = self.lent.back().filter(|(e, _)| *e == prov_errno);
        last.map(|(_, t)| t.as_slice())
    }
}

/// Largest buffer for error data that an application is believed to offer, bytes.
const ERR_DATA_MAX: usize = 1 << 16;

/// Length of `struct fi_cq_err_entry` in this API version.
fn err_entry_size(api: u32) -> usize {
    if api < version(1, 5) {
        72
    } else if api < version(1, 20) {
        80
    } else {
        size_of::<fi_cq_err_entry>()
    }
}

/// An error entry to fill in, of the length that the caller's API version gives it.
struct ErrEntryOut(*mut fi_cq_err_entry);

impl FromC<*mut fi_cq_err_entry> for ErrEntryOut {
    unsafe fn from_c(p: *mut fi_cq_err_entry) -> Result<Self> {
        match p.is_null() {
            true => Err(FI_EINVAL),
            false => Ok(ErrEntryOut(p)),
        }
    }
}

impl ErrEntryOut {
    /// The buffer that the application offers for error data, since 1.5. Programs that expect none
    /// leave these members uninitialised: sizes beyond reason are no offer.
    fn offered(&self, api: u32) -> Option<(*mut c_void, usize)> {
        if api < version(1, 5) {
            return None;
        }
        // SAFETY: an entry of this version has both members.
        let (data, size) = unsafe { ((*self.0).err_data, (*self.0).err_data_size) };
        ((1..=ERR_DATA_MAX).contains(&size) && !data.is_null()).then_some((data, size))
    }

    /// Fills it with `e`, and with data that is copied to the buffer offered, or lent.
    fn fill(&self, e: &ErrEntry, api: u32, text: Option<&[u8]>) {
        let (data, size) = match (text, self.offered(api)) {
            (None, None) => (null_mut(), 0),
            (None, Some((theirs, _))) => (theirs, 0),
            (Some(text), None) => (text.as_ptr().cast_mut().cast(), text.len()),
            (Some(text), Some((theirs, room))) => {
                let size = text.len().min(room);
                // SAFETY: the application offers `room` bytes, at least one; the text has one, too.
                unsafe {
                    let to = theirs.cast::<u8>();
                    core::ptr::copy_nonoverlapping(text.as_ptr(), to, size - 1);
                    // A text that does not fit ends, too.
                    to.add(size - 1).write(0);
                }
                (theirs, size)
            }
        };
        let full = fi_cq_err_entry {
            op_context: e.entry.context as *mut c_void,
            flags: e.entry.flags,
            len: e.entry.len,
            buf: e.entry.buf as *mut c_void,
            data: e.entry.data,
            tag: e.entry.tag,
            olen: e.olen,
            err: e.err,
            prov_errno: e.prov_errno,
            err_data: data,
            err_data_size: size,
            src_addr: e.entry.src,
        };
        // SAFETY: the application's entry is as long as its API version has it.
        unsafe {
            core::ptr::copy_nonoverlapping(
                (&raw const full).cast::<u8>(),
                self.0.cast::<u8>(),
                err_entry_size(api),
            );
        }
    }
}

entry! {
    pub(super) fn cq_readerr<D: Domain>(
        q: *mut fid_cq as &CqBody<D>,
        out: *mut fi_cq_err_entry as ErrEntryOut,
        _flags: u64,
    ) -> isize = "fi_cq_readerr" {
        let mut e = q.domain.read_cq_error(q.id)?;
        let api = q.domain.fabric().api;
        // What can happen without anything being wrong carries no data.
        let text = core::mem::take(&mut e.text);
        let mut errors = q.errors.lock().unpoisoned();
        let text = errors.lend(e.prov_errno, text);
        let expected = matches!(e.err, FI_ENOMSG | FI_ECANCELED | FI_ETRUNC);
        let unused = out.offered(api).filter(|_| expected);
        out.fill(&e, api, (!expected).then_some(text));
        errors.unused = unused.map(|(at, _)| at as usize);
        Ok(1)
    }
}

/// The queue whose error is explained; `None` for one that is closed.
struct ClosedOr<'a, D: Domain>(Option<&'a CqBody<D>>);

impl<D: Domain> FromC<*mut fid_cq> for ClosedOr<'_, D> {
    unsafe fn from_c(q: *mut fid_cq) -> Result<Self> {
        // SAFETY: as promised by the caller.
        Ok(ClosedOr(unsafe { FromC::from_c(q) }.ok()))
    }
}

entry! {
    pub(super) fn cq_strerror<D: Domain>(
        q: *mut fid_cq as ClosedOr<D>,
        prov_errno: c_int,
        err_data: *const c_void,
        (buf: *mut c_char, len: usize) as out: TextOut,
    ) -> *const c_char = "fi_cq_strerror" {
        let ClosedOr(Some(q)) = q else {
            return Ok(c"closed completion queue".as_ptr());
        };
        let mut errors = q.errors.lock().unpoisoned();
        // Without data the text of the error read last is meant, if it is of this kind.
        let none = err_data.is_null() || errors.unused == Some(err_data as usize);
        let lent = match none {
            true => errors.latest(prov_errno),
            false => errors.at(err_data.cast()),
        };
        let text = match lent {
            Some(text) => text,
            None => {
                let text = match none {
                    true => D::error_text(prov_errno),
                    // SAFETY: a copy of error data that the application made is a terminated
                    // string.
                    false => unsafe { super::info::string(err_data.cast()) }.unwrap_or_default(),
                };
                errors.lend(prov_errno, text)
            }
        };
        let copied = out.put(String::from_utf8_lossy(text).trim_end_matches('\0'));
        Ok(copied.unwrap_or(text.as_ptr().cast()))
    }
}
