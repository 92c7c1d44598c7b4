//! Handles: Rust objects that hold the C caller's `fid`.
//!
//! An open call boxes an [`Obj`] and hands out a pointer to its `fid`; a call comes back with it.
//! Calls borrow the body shared: what they change lies behind a lock. Closing takes the body out,
//! points the operations at a table that answers `FI_EBADF`, and keeps the empty shell for a while,
//! so that a second close or a late call finds no freed memory. In the child of a fork closing does
//! nothing: the queues and sockets are the parent's.
//!
//! A handle that comes through its own operations table is of the type that the table says. One
//! that is passed to another object's call ([`AnyObject`], to bind it for example) may belong to
//! another provider: its class and the type of its body, which every object carries, say what it
//! is.
//!
//! [`AnyObject`]: super::handles::AnyObject

use super::entry::guard;
use crate::core::process::{self, PerProcess};
use crate::core::sync::Mutex;
use crate::core::Result;
use crate::types::*;
use core::any::TypeId;
use core::ffi::{c_char, c_int, c_void};
use core::marker::PhantomData;
use core::mem::{offset_of, size_of};
use core::ptr::null_mut;
use std::collections::VecDeque;
use std::sync::Once;

/// Shells of closed objects kept before they are freed.
const KEPT: usize = 4096;

/// What every object begins with.
#[repr(C)]
struct ObjectHeader {
    /// The type of its body.
    body_type: TypeId,
    /// [`process::generation`] of the process that opened it.
    opened_by: u64,
}

/// An object as the C caller holds it; `F` is its `struct fid_*`.
#[repr(C)]
struct Obj<F, B> {
    header: ObjectHeader,
    f: F,
    body: Option<B>,
}

/// Distance from the object to its `fid`, the same for every class.
const FID_AT: usize = size_of::<ObjectHeader>();

/// The object that a handle belongs to.
///
/// # Safety
/// `p` was handed out as an object of these types.
#[inline(always)]
unsafe fn object<F, B>(p: *mut F) -> *mut Obj<F, B> {
    const { assert!(offset_of!(Obj<F, B>, f) == FID_AT) };
    // SAFETY: as promised by the caller: the `fid` lies this far into its object.
    unsafe { p.byte_sub(FID_AT).cast() }
}

/// What an object begins with.
///
/// # Safety
/// `f` was handed out by [`hand_out`], as an object of any class.
unsafe fn header<'a>(f: *mut fid) -> &'a ObjectHeader {
    // SAFETY: as promised by the caller; a shell stays after its object is closed.
    unsafe { &*f.byte_sub(FID_AT).cast::<ObjectHeader>() }
}

unsafe extern "C" fn in_child() {
    process::forked();
}

/// Has every later fork noticed. Repeated calls do nothing.
pub(super) fn watch_forks() {
    static WATCHED: Once = Once::new();
    // SAFETY: the function stays loaded (the library is linked with -z nodelete) and only counts.
    WATCHED.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(in_child));
    });
}

/// A fid of a class with its table; `ops` must be the table of that class.
pub(crate) fn new_fid(fclass: usize, context: *mut c_void, ops: &'static fi_ops) -> fid {
    fid {
        fclass,
        context,
        ops: table(ops),
    }
}

/// The operations tables of the objects of a provider's domain: each module adds its own.
pub(crate) struct Tables<D>(PhantomData<D>);

/// A static table as a pointer of the type that the C structs have.
pub(crate) const fn table<T>(t: &'static T) -> *mut T {
    (t as *const T).cast_mut()
}

/// Boxes an object and returns the pointer for the caller.
pub(crate) fn hand_out<F, B: 'static>(f: F, body: B) -> *mut F {
    watch_forks();
    let o = Box::into_raw(Box::new(Obj {
        header: ObjectHeader {
            body_type: TypeId::of::<B>(),
            opened_by: process::generation(),
        },
        f,
        body: Some(body),
    }));
    // SAFETY: the box was just made.
    unsafe { &raw mut (*o).f }
}

/// The body of an object; `FI_EINVAL` for NULL, `FI_EBADF` for a closed one.
///
/// # Safety
/// `p` is NULL or was handed out as an object of these types.
#[inline]
pub(crate) unsafe fn body<'a, F, B>(p: *mut F) -> Result<&'a B> {
    if p.is_null() {
        return Err(FI_EINVAL);
    }
    // SAFETY: a handed-out pointer stays valid while the object is open and long after.
    unsafe { (*object::<F, B>(p)).body.as_ref() }.ok_or(FI_EBADF)
}

/// As [`body`], of an object whose class, but not whose provider, is known: `FI_EINVAL`, with a
/// line in the log, when its body is of another type.
///
/// # Safety
/// `f` was handed out by [`hand_out`], and an object with such a body is a `struct` `F`.
pub(crate) unsafe fn body_of_type<'a, F, B: 'static>(f: *mut fid) -> Result<&'a B> {
    // SAFETY: as promised by the caller.
    unsafe {
        if header(f).body_type != TypeId::of::<B>() {
            crate::warn_log!(
                FI_LOG_CORE,
                "object of class {}: wanted one of the same provider",
                (*f).fclass
            );
            return Err(FI_EINVAL);
        }
        body::<F, B>(f.cast())
    }
}

struct Shell(*mut c_void, unsafe fn(*mut c_void));
// SAFETY: a shell is only freed, by whichever thread pushes it out of the list.
unsafe impl Send for Shell {}

static SHELLS: PerProcess<Mutex<VecDeque<Shell>>> = PerProcess::new();

/// Closes an object: its body, for the caller to take down.
///
/// # Safety
/// As [`body`]; no other call on the object is under way.
pub(crate) unsafe fn take<F, B>(p: *mut F) -> Result<B> {
    // SAFETY: as promised by the caller.
    unsafe {
        body::<F, B>(p)?;
        let o = object::<F, B>(p);
        let b = (*o).body.take().ok_or(FI_EBADF)?;
        // `F` begins with a fid, whatever its class.
        let head = p.cast::<fid>();
        (*head).ops = table(&DEAD);
        let mut q = SHELLS.lock();
        q.push_back(Shell(o.cast(), free_shell::<F, B>));
        let over = q.len() > KEPT;
        let old = if over { q.pop_front() } else { None };
        drop(q);
        if let Some(Shell(old, free)) = old {
            free(old);
        }
        Ok(b)
    }
}

/// # Safety
/// `p` came from `hand_out` with these types and is freed once.
unsafe fn free_shell<F, B>(p: *mut c_void) {
    // SAFETY: as promised by the caller.
    drop(unsafe { Box::from_raw(p.cast::<Obj<F, B>>()) });
}

/// fi_close(3) of an object: `closing` takes its body down, or refuses, and the object stays open.
/// In the child of a fork, which must not touch what the parent uses, it succeeds and does nothing.
///
/// # Safety
/// As [`take`].
pub(crate) unsafe fn close_object<F, B>(
    f: *mut fid,
    closing: impl FnOnce(&B) -> Result<()>,
) -> c_int {
    // SAFETY: as promised by the caller.
    if unsafe { header(f) }.opened_by != process::generation() {
        return FI_SUCCESS;
    }
    guard("fi_close", || {
        // SAFETY: as above.
        closing(unsafe { body::<F, B>(f.cast())? })?;
        // SAFETY: as above.
        unsafe { take::<F, B>(f.cast()) }.map(drop)
    })
}

/// The function of an operations table that closes an object with this body: see [`close_object`].
macro_rules! close {
    (
        fn $name:ident $(<$d:ident: $bound:ident>)?
        ($b:ident: $body:ty as $fid:ty) $closing:block
    ) => {
        unsafe extern "C" fn $name $(<$d: $bound>)? (f: *mut fid) -> c_int {
            let closing = |$b: &$body| -> $crate::core::Result<()> { $closing };
            // SAFETY: only objects with this body have this function in their table.
            unsafe { $crate::abi::object::close_object::<$fid, $body>(f, closing) }
        }
    };
}
pub(crate) use close;

// ---- tables of what an object does not do ----------------------------------------------------

unsafe extern "C" fn dead_close(_: *mut fid) -> c_int {
    crate::warn_log!(FI_LOG_CORE, "fi_close: the object is closed already");
    -FI_EBADF
}
unsafe extern "C" fn dead_bind(_: *mut fid, _: *mut fid, _: u64) -> c_int {
    -FI_EBADF
}
unsafe extern "C" fn dead_control(_: *mut fid, _: c_int, _: *mut c_void) -> c_int {
    -FI_EBADF
}
unsafe extern "C" fn dead_open(
    _: *mut fid,
    _: *const c_char,
    _: u64,
    _: *mut *mut c_void,
    _: *mut c_void,
) -> c_int {
    -FI_EBADF
}

static DEAD: fi_ops = fi_ops {
    size: size_of::<fi_ops>(),
    close: Some(dead_close),
    bind: Some(dead_bind),
    control: Some(dead_control),
    ops_open: Some(dead_open),
    tostr: None,
    ops_set: None,
};

/// `bind` of objects that nothing can be bound to.
pub(crate) unsafe extern "C" fn no_bind(_: *mut fid, _: *mut fid, _: u64) -> c_int {
    -FI_ENOSYS
}
/// `control` of objects without commands.
pub(crate) unsafe extern "C" fn no_control(_: *mut fid, _: c_int, _: *mut c_void) -> c_int {
    -FI_ENOSYS
}
/// `ops_open` of objects without extensions.
pub(crate) unsafe extern "C" fn no_ops_open(
    _: *mut fid,
    _: *const c_char,
    _: u64,
    ops: *mut *mut c_void,
    _: *mut c_void,
) -> c_int {
    if !ops.is_null() {
        // SAFETY: the caller passed a place for the table.
        unsafe { *ops = null_mut() };
    }
    -FI_ENOSYS
}

/// A table of common operations with what most objects do not have.
pub(crate) const fn ops(
    close: unsafe extern "C" fn(*mut fid) -> c_int,
    bind: unsafe extern "C" fn(*mut fid, *mut fid, u64) -> c_int,
    control: unsafe extern "C" fn(*mut fid, c_int, *mut c_void) -> c_int,
) -> fi_ops {
    fi_ops {
        size: size_of::<fi_ops>(),
        close: Some(close),
        bind: Some(bind),
        control: Some(control),
        ops_open: Some(no_ops_open),
        tostr: None,
        ops_set: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_object_is_noticed() {
        static OPS: fi_ops = ops(dead_close, no_bind, no_control);
        let p = hand_out(
            fid_stx {
                fid: new_fid(FI_CLASS_STX_CTX, null_mut(), &OPS),
                ops: null_mut(),
            },
            5u32,
        );
        // SAFETY: `p` was just handed out with these types.
        unsafe {
            assert_eq!(body::<fid_stx, u32>(p).copied(), Ok(5));
            assert_eq!(take::<fid_stx, u32>(p), Ok(5));
            assert_eq!(take::<fid_stx, u32>(p), Err(FI_EBADF));
            assert_eq!(body::<fid_stx, u32>(p).copied(), Err(FI_EBADF));
            assert_eq!(((*(*p).fid.ops).close.unwrap())(p.cast()), -FI_EBADF);
            assert_eq!(body::<fid_stx, u32>(null_mut()).copied(), Err(FI_EINVAL));
        }
    }

    #[test]
    fn an_object_of_another_type_is_refused() {
        static OPS: fi_ops = ops(dead_close, no_bind, no_control);
        let new = || fid_stx {
            fid: new_fid(FI_CLASS_STX_CTX, null_mut(), &OPS),
            ops: null_mut(),
        };
        let (a, b) = (hand_out(new(), 5u32), hand_out(new(), 5u64));
        // SAFETY: both were just handed out, as what they are taken for at last.
        unsafe {
            let of = |p: *mut fid_stx| body_of_type::<fid_stx, u32>(p.cast()).copied();
            assert_eq!((of(a), of(b)), (Ok(5), Err(FI_EINVAL)));
            assert_eq!(take::<fid_stx, u32>(a), Ok(5));
            assert_eq!(take::<fid_stx, u64>(b), Ok(5));
        }
    }
}
