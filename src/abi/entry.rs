//! Entry points: from C arguments to Rust values, in one way for all of them.
//!
//! [`entry!`] makes a function of an operations table. An argument written `name: C as R` reaches
//! the body as an `R`, and `(buf: C, len: C) as name: R` makes one value of several arguments;
//! [`FromC`] converts them. A handle becomes the body of its object, a pointer to a struct a
//! reference, a string a `String`, a place for a result an [`OutParam`]. An argument that cannot be
//! converted (NULL where the call needs something, a closed object) ends the call with `FI_EINVAL`
//! or `FI_EBADF`. The body of the function is safe code; its error goes back as a negative errno,
//! and a panic as `-FI_EOTHER`.
//!
//! Invariant: each conversion relies on the pointer rules of [`super`]. `entry!` vouches for them
//! where the arguments of a call arrive; a conversion made of others (a message and its fields), or
//! a call whose argument depends on another one, calls [`FromC::from_c`] itself and says why it
//! may.

use crate::core::log::explained;
use crate::core::{errno, Errno, Info, Result};
use crate::types::*;
use core::cell::Cell;
use core::ffi::{c_char, c_int, c_void};
use core::ptr::NonNull;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// What an entry point makes of a C argument, or of several.
pub(crate) trait FromC<C>: Sized {
    /// `FI_EINVAL` where the argument is not what the call needs, `FI_EBADF` for a closed object.
    ///
    /// # Safety
    /// The argument keeps the pointer rules of [`super`].
    unsafe fn from_c(c: C) -> Result<Self>;
}

/// See the module text.
macro_rules! entry {
    (
        $(#[$attr:meta])*
        $vis:vis fn $name:ident $(<$d:ident: $bound:ident>)? ($($args:tt)*)
        -> $ret:ty = $call:literal $body:block
    ) => {
        $crate::abi::entry::entry! {
            @next { [$(#[$attr])* $vis] $name [$(<$d: $bound>)?] $ret, $call, $body }
            [] [] $($args)* ,
        }
    };
    // The next argument: several that make one value, one that is converted, one that is not.
    (
        @next $f:tt [$($params:tt)*] [$($lets:tt)*]
        ($($part:ident: $part_c:ty),+) as $arg:ident: $r:ty, $($rest:tt)*
    ) => {
        $crate::abi::entry::entry! {
            @next $f [$($params)* $($part: $part_c,)+]
            [$($lets)* let $arg: $r = convert(($($part),+));] $($rest)*
        }
    };
    (
        @next $f:tt [$($params:tt)*] [$($lets:tt)*]
        $arg:ident: $c:ty as $r:ty, $($rest:tt)*
    ) => {
        $crate::abi::entry::entry! {
            @next $f [$($params)* $arg: $c,] [$($lets)* let $arg: $r = convert($arg);] $($rest)*
        }
    };
    (@next $f:tt [$($params:tt)*] $lets:tt $arg:ident: $c:ty, $($rest:tt)*) => {
        $crate::abi::entry::entry! { @next $f [$($params)* $arg: $c,] $lets $($rest)* }
    };
    // No more.
    (
        @next { [$($head:tt)*] $name:ident [$($generics:tt)*] $ret:ty, $call:literal, $body:block }
        [$($params:tt)*] [$(let $arg:ident: $r:ty = convert($from:expr);)*] $(,)?
    ) => {
        $($head)* unsafe extern "C" fn $name $($generics)* ($($params)*) -> $ret {
            $crate::abi::entry::guard::<$ret, _>($call, || {
                $(
                    // SAFETY: the caller keeps the pointer rules of `abi`.
                    let $arg: $r = unsafe { $crate::abi::entry::FromC::from_c($from)? };
                )*
                $body
            })
        }
    };
}
pub(crate) use entry;

// ---- how a call ends -----------------------------------------------------------------------

/// What an entry point returns: a number, negative for an error.
pub(crate) trait ReturnCode: Copy {
    fn of_error(e: Errno) -> Self;
}

impl ReturnCode for c_int {
    #[inline(always)]
    fn of_error(e: Errno) -> c_int {
        -e
    }
}

impl ReturnCode for isize {
    #[inline(always)]
    fn of_error(e: Errno) -> isize {
        -(e as isize)
    }
}

/// 0, where a call returns a count.
impl ReturnCode for u64 {
    fn of_error(_: Errno) -> u64 {
        0
    }
}

impl Answer<u64> for u64 {
    #[inline(always)]
    fn answer(self) -> u64 {
        self
    }
}

/// NULL, where a call returns a pointer.
impl<T> ReturnCode for *const T {
    fn of_error(_: Errno) -> *const T {
        core::ptr::null()
    }
}

/// The result of a call that succeeds, as the number that C gets.
pub(crate) trait Answer<R> {
    fn answer(self) -> R;
}

impl Answer<c_int> for () {
    #[inline(always)]
    fn answer(self) -> c_int {
        FI_SUCCESS
    }
}

impl Answer<isize> for () {
    #[inline(always)]
    fn answer(self) -> isize {
        0
    }
}

impl Answer<isize> for usize {
    #[inline(always)]
    fn answer(self) -> isize {
        self as isize
    }
}

impl Answer<c_int> for usize {
    #[inline(always)]
    fn answer(self) -> c_int {
        self as c_int
    }
}

impl<T> Answer<*const T> for *const T {
    fn answer(self) -> *const T {
        self
    }
}

/// Runs a call: an errno becomes negative, a panic a log line and `-FI_EOTHER`.
#[inline(always)]
pub(crate) fn guard<R: ReturnCode, T: Answer<R>>(call: &str, f: impl FnOnce() -> Result<T>) -> R {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(v)) => v.answer(),
        Ok(Err(e)) => {
            if e != FI_EAGAIN {
                log_refusal(call, e);
            }
            R::of_error(e)
        }
        Err(_) => R::of_error(panicked(call)),
    }
}

/// Calls by which programs find out what there is: their errors need no line.
const PROBES: [&str; 4] = ["fi_open_ops", "fi_getopt", "fi_setopt", "fi_av_lookup"];

/// Logs why a call is refused, where no line has given the reason yet.
#[cold]
fn log_refusal(call: &str, e: Errno) {
    if explained() || PROBES.contains(&call) {
        return;
    }
    let why = match e {
        FI_EINVAL => "an argument has no valid value (an address: it is not in the address vector)",
        FI_EOPBADSTATE => "before fi_enable, or too late: the object is in use",
        FI_EBADF => "the object, or one that it needs, is closed",
        FI_ENOAV => "no address vector is bound",
        FI_ENOCQ => "no completion queue is bound for this direction",
        FI_ENOEQ => "no event queue is bound",
        FI_ENOKEY => "the key is in use already, or out of range",
        FI_EBADFLAGS => "flags that this call does not have",
        FI_ENOMEM => "memory, or what the system or the adapter has of something, is used up",
        FI_EMSGSIZE => "longer than the endpoint's limit",
        _ => return,
    };
    crate::warn_limited!(FI_LOG_CORE, "{call}: {}: {why}", errno::text(e));
}

#[cold]
fn panicked(call: &str) -> Errno {
    crate::warn_log!(
        FI_LOG_CORE,
        "{call}: internal error (a panic was caught): please report it"
    );
    FI_EOTHER
}

// ---- pointers to structs and places -----------------------------------------------------------

impl<T> FromC<*const T> for &T {
    #[inline(always)]
    unsafe fn from_c(p: *const T) -> Result<Self> {
        // SAFETY: a struct is NULL or laid out as its header says, and lent for the call.
        unsafe { p.as_ref() }.ok_or(FI_EINVAL)
    }
}

impl<T> FromC<*mut T> for &T {
    #[inline(always)]
    unsafe fn from_c(p: *mut T) -> Result<Self> {
        // SAFETY: as above.
        unsafe { p.as_ref() }.ok_or(FI_EINVAL)
    }
}

impl<T> FromC<*mut T> for &mut T {
    #[inline(always)]
    unsafe fn from_c(p: *mut T) -> Result<Self> {
        // SAFETY: as above; nothing else looks at it during the call.
        unsafe { p.as_mut() }.ok_or(FI_EINVAL)
    }
}

impl<T> FromC<*mut T> for Option<&T> {
    #[inline(always)]
    unsafe fn from_c(p: *mut T) -> Result<Self> {
        // SAFETY: as above.
        Ok(unsafe { p.as_ref() })
    }
}

impl<T> FromC<*mut T> for Option<&mut T> {
    #[inline(always)]
    unsafe fn from_c(p: *mut T) -> Result<Self> {
        // SAFETY: as above.
        Ok(unsafe { p.as_mut() })
    }
}

/// Where a call leaves a result; what is there before need not be initialised.
pub(crate) struct OutParam<T>(NonNull<T>);

impl<T> OutParam<T> {
    #[inline(always)]
    pub(crate) fn put(&self, v: T) {
        // SAFETY: the place is the caller's, for one `T`, until the call returns.
        unsafe { self.0.write(v) }
    }
}

impl<T> FromC<*mut T> for OutParam<T> {
    #[inline(always)]
    unsafe fn from_c(p: *mut T) -> Result<Self> {
        NonNull::new(p).map(OutParam).ok_or(FI_EINVAL)
    }
}

impl<T> FromC<*mut T> for Option<OutParam<T>> {
    #[inline(always)]
    unsafe fn from_c(p: *mut T) -> Result<Self> {
        Ok(NonNull::new(p).map(OutParam))
    }
}

/// Where a call leaves a number of results.
pub(crate) struct OutParams<T> {
    at: *mut T,
    count: usize,
}

impl<T> OutParams<T> {
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn is_null(&self) -> bool {
        self.at.is_null()
    }

    /// Writes the `i`th result, if there is a place for it.
    pub(crate) fn put(&self, i: usize, v: T) {
        if !self.at.is_null() && i < self.count {
            // SAFETY: the caller has room for `count` results.
            unsafe { self.at.add(i).write(v) }
        }
    }
}

impl<T> FromC<(*mut T, usize)> for OutParams<T> {
    #[inline(always)]
    unsafe fn from_c((at, count): (*mut T, usize)) -> Result<Self> {
        Ok(OutParams { at, count })
    }
}

/// The argument of fi_control(3), whose type the command says.
pub(crate) struct ControlArg(*mut c_void);

impl ControlArg {
    /// The place of a result. `FI_EINVAL` for NULL.
    ///
    /// # Safety
    /// The command takes the address of a `T`.
    pub(crate) unsafe fn place<T>(&self) -> Result<OutParam<T>> {
        NonNull::new(self.0.cast()).map(OutParam).ok_or(FI_EINVAL)
    }

    /// A struct or number. `FI_EINVAL` for NULL.
    ///
    /// # Safety
    /// As [`ControlArg::place`], of an initialised one.
    #[allow(clippy::mut_from_ref)] // Of the caller's memory, not of the argument.
    pub(crate) unsafe fn get<T>(&self) -> Result<&mut T> {
        // SAFETY: as promised by the caller.
        unsafe { self.0.cast::<T>().as_mut() }.ok_or(FI_EINVAL)
    }

    pub(crate) fn raw(&self) -> *mut c_void {
        self.0
    }
}

impl FromC<*mut c_void> for ControlArg {
    #[inline(always)]
    unsafe fn from_c(p: *mut c_void) -> Result<Self> {
        Ok(ControlArg(p))
    }
}

impl FromC<*mut fi_info> for Info {
    unsafe fn from_c(p: *mut fi_info) -> Result<Self> {
        // SAFETY: the info is NULL or valid, in the layout that applications have.
        unsafe { super::info::read(p, super::layout::callers()) }.ok_or(FI_EINVAL)
    }
}

// ---- strings and bytes ------------------------------------------------------------------------

impl FromC<*const c_char> for Option<String> {
    unsafe fn from_c(p: *const c_char) -> Result<Self> {
        // SAFETY: a string is NULL or terminated.
        Ok(unsafe { super::info::string(p) })
    }
}

impl FromC<*const c_char> for String {
    unsafe fn from_c(p: *const c_char) -> Result<Self> {
        // SAFETY: as above.
        unsafe { super::info::string(p) }.ok_or(FI_EINVAL)
    }
}

/// Bytes that the caller brings; NULL is `None`. `FI_EINVAL` for more than an object can have.
impl FromC<(*const c_void, usize)> for Option<&[u8]> {
    unsafe fn from_c((p, len): (*const c_void, usize)) -> Result<Self> {
        if p.is_null() {
            return Ok(None);
        }
        if isize::try_from(len).is_err() {
            return Err(FI_EINVAL);
        }
        // SAFETY: a buffer is as long as the caller says, and lent for the call.
        Ok(Some(unsafe {
            core::slice::from_raw_parts(p.cast::<u8>(), len)
        }))
    }
}

/// As above; `FI_EINVAL` for NULL.
impl FromC<(*mut c_void, usize)> for &[u8] {
    unsafe fn from_c((p, len): (*mut c_void, usize)) -> Result<Self> {
        // SAFETY: as promised by the caller.
        let bytes: Option<&[u8]> = unsafe { FromC::from_c((p.cast_const(), len))? };
        bytes.ok_or(FI_EINVAL)
    }
}

/// Room for bytes, and the length that is read from the caller and replaced by the whole length.
pub(crate) struct SizedOut<'a> {
    out: *mut u8,
    len: &'a Cell<usize>,
}

impl SizedOut<'_> {
    /// Copies as much as fits and writes the whole length. Returns whether all of it fitted.
    pub(crate) fn give(&self, raw: &[u8]) -> bool {
        let room = self.len.replace(raw.len());
        let n = match self.out.is_null() {
            true => 0,
            false => room.min(raw.len()),
        };
        // SAFETY: `n` bytes fit: the caller has passed the buffer's length.
        unsafe { core::ptr::copy_nonoverlapping(raw.as_ptr(), self.out, n) };
        n == raw.len()
    }

    /// As [`SizedOut::give`], all or nothing. `FI_ETOOSMALL`, with the length, where it does not
    /// fit.
    pub(crate) fn give_whole(&self, raw: &[u8]) -> Result<()> {
        if self.out.is_null() || self.len.get() < raw.len() {
            self.len.set(raw.len());
            return Err(FI_ETOOSMALL);
        }
        self.give(raw);
        Ok(())
    }

    pub(crate) fn is_null(&self) -> bool {
        self.out.is_null()
    }
}

impl FromC<(*mut c_void, *mut usize)> for SizedOut<'_> {
    unsafe fn from_c((out, len): (*mut c_void, *mut usize)) -> Result<Self> {
        // SAFETY: the length is NULL or the caller's.
        let len = unsafe { len.as_mut() }.ok_or(FI_EINVAL)?;
        let (out, len) = (out.cast(), Cell::from_mut(len));
        Ok(SizedOut { out, len })
    }
}

/// Room for a text.
pub(crate) struct TextOut {
    buf: *mut c_char,
    len: usize,
}

impl TextOut {
    /// Copies a text, cut short where it does not fit; `None` when there is no room at all.
    pub(crate) fn put(&self, text: &str) -> Option<*const c_char> {
        if self.buf.is_null() || self.len == 0 {
            return None;
        }
        // SAFETY: the buffer is as long as the caller said.
        unsafe { super::text::put(self.buf, self.len, text) };
        Some(self.buf)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.buf.is_null() || self.len == 0
    }

    pub(crate) fn as_ptr(&self) -> *const c_char {
        self.buf
    }
}

impl FromC<(*mut c_char, usize)> for TextOut {
    unsafe fn from_c((buf, len): (*mut c_char, usize)) -> Result<Self> {
        Ok(TextOut { buf, len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    entry! {
        fn halve(n: *const u32 as &u32, half: *mut u32 as OutParam<u32>) -> c_int = "halve" {
            half.put(n.checked_sub(2).ok_or(FI_EIO)? / 2);
            assert!(*n != 6, "on purpose");
            Ok(())
        }
    }

    entry! {
        fn length((buf: *const c_void, len: usize) as bytes: Option<&[u8]>) -> isize = "length" {
            Ok(bytes.ok_or(FI_ENODATA)?.len())
        }
    }

    #[test]
    fn arguments_are_converted_and_errors_negative() {
        let mut out = 0;
        // SAFETY: the pointers are NULL or valid.
        unsafe {
            assert_eq!((halve(&4, &mut out), out), (0, 1));
            assert_eq!(halve(&1, &mut out), -FI_EIO);
            assert_eq!(halve(core::ptr::null(), &mut out), -FI_EINVAL);
            assert_eq!(halve(&4, core::ptr::null_mut()), -FI_EINVAL);
            assert_eq!(length([1u8, 2, 3].as_ptr().cast(), 3), 3);
            assert_eq!(length(core::ptr::null(), 3), -(FI_ENODATA as isize));
            assert_eq!(
                length([0u8].as_ptr().cast(), usize::MAX),
                -(FI_EINVAL as isize)
            );
        }
    }

    #[test]
    fn panics_do_not_reach_c() {
        let mut out = 0;
        // SAFETY: both are valid.
        assert_eq!(unsafe { halve(&6, &mut out) }, -FI_EOTHER);
    }
}
