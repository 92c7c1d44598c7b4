//! Entry points of collectives, fi_collective(3): joining a group, and operations in it.
//!
//! How long the buffers of a call must be depends on the group and on the caller's place in it: the
//! provider says so (`coll::Needs`), and only that much of them is looked at.

use super::atomic::pieces;
use super::av_set;
use super::domain::of;
use super::ep::{ep, EpBody};
use super::object::*;
use super::transfer::{flagged, plain, user};
use crate::core::Result;
use crate::hmem::{Owned, UserMem};
use crate::prov::contract::*;
use crate::types::*;
use core::ffi::{c_int, c_void};
use core::mem::size_of;
use core::ptr::{null, null_mut};
use std::sync::{Arc, OnceLock};

/// Scratch memory of an operation.
fn alloc(len: usize) -> Owned {
    // SAFETY: `coll` keeps it with the operation, and beyond the endpoint's closing until its queue
    // pair is gone.
    unsafe { Owned::new(len) }
}

/// Carries a call out: `mem` makes its buffers from what it needs of them.
///
/// # Safety
/// `e` is NULL or an endpoint of ours.
unsafe fn call<D: Domain>(
    name: &str,
    e: *mut fid_ep,
    r: &CollReq,
    mem: impl FnOnce(Needs) -> Result<(UserMem, UserMem)>,
) -> isize {
    guard_op(name, || {
        // SAFETY: as promised by the caller.
        let b = unsafe { ep::<D>(e)? };
        b.domain.collective(b.id()?, r, mem, &alloc)?;
        Ok(())
    })
}

/// Buffers of a call with one piece each.
///
/// # Safety
/// Both have as many bytes as are needed, until completion, or are NULL where none are.
unsafe fn whole(
    (buf, desc): (*const c_void, *mut c_void),
    (result, result_desc): (*mut c_void, *mut c_void),
) -> impl FnOnce(Needs) -> Result<(UserMem, UserMem)> {
    // SAFETY: as promised by the caller.
    move |n: Needs| unsafe {
        let result = user((result.cast_const(), n.result, result_desc))?;
        Ok((user((buf, n.input, desc))?, result))
    }
}

/// What a call of [`OPS`] has in common: kind, group, root, count, datatype, operation.
type Args = (
    fi_collective_op,
    fi_addr_t,
    fi_addr_t,
    usize,
    fi_datatype,
    fi_op,
);

fn req(a: Args, flags: u64, context: *mut c_void) -> CollReq {
    let (what, group, root, count, datatype, op) = a;
    let common = if flags == 0 {
        plain(context)
    } else {
        flagged(context, flags)
    };
    CollReq {
        what,
        group,
        root,
        count,
        datatype,
        op,
        common,
    }
}

const NOBODY: fi_addr_t = FI_ADDR_NOTAVAIL;

unsafe extern "C" fn barrier<D: Domain>(
    e: *mut fid_ep,
    group: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: as promised by our caller.
    unsafe { barrier2::<D>(e, group, 0, context) }
}

unsafe extern "C" fn barrier2<D: Domain>(
    e: *mut fid_ep,
    group: fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> isize {
    let r = req(
        (FI_BARRIER, group, NOBODY, 0, FI_VOID, FI_NOOP),
        flags,
        context,
    );
    // SAFETY: as promised by our caller.
    unsafe {
        call::<D>(
            "fi_barrier",
            e,
            &r,
            whole((null(), null_mut()), (null_mut(), null_mut())),
        )
    }
}

unsafe extern "C" fn broadcast<D: Domain>(
    e: *mut fid_ep,
    buf: *mut c_void,
    count: usize,
    desc: *mut c_void,
    group: fi_addr_t,
    root: fi_addr_t,
    dt: fi_datatype,
    flags: u64,
    context: *mut c_void,
) -> isize {
    let r = req(
        (FI_BROADCAST, group, root, count, dt, FI_NOOP),
        flags,
        context,
    );
    // SAFETY: as promised by our caller.
    unsafe {
        call::<D>(
            "fi_broadcast",
            e,
            &r,
            whole((buf.cast_const(), desc), (null_mut(), null_mut())),
        )
    }
}

/// Entry points with input and result; some have a root, some an operation, one has both.
macro_rules! entry {
    ($name:ident, $text:literal, $what:ident $(, root $root:ident)? $(, op $op:ident)?) => {
        unsafe extern "C" fn $name<D: Domain>(
            e: *mut fid_ep,
            buf: *const c_void,
            count: usize,
            desc: *mut c_void,
            result: *mut c_void,
            result_desc: *mut c_void,
            group: fi_addr_t,
            $($root: fi_addr_t,)?
            dt: fi_datatype,
            $($op: fi_op,)?
            flags: u64,
            context: *mut c_void,
        ) -> isize {
            let (_root, _op) = (NOBODY, FI_NOOP);
            $(let _root = $root;)?
            $(let _op = $op;)?
            let r = req(($what, group, _root, count, dt, _op), flags, context);
            // SAFETY: as promised by our caller.
            unsafe { call::<D>($text, e, &r, whole((buf, desc), (result, result_desc))) }
        }
    };
}
entry!(alltoall, "fi_alltoall", FI_ALLTOALL);
entry!(allgather, "fi_allgather", FI_ALLGATHER);
entry!(allreduce, "fi_allreduce", FI_ALLREDUCE, op op);
entry!(reduce_scatter, "fi_reduce_scatter", FI_REDUCE_SCATTER, op op);
entry!(reduce, "fi_reduce", FI_REDUCE, root root, op op);
entry!(scatter, "fi_scatter", FI_SCATTER, root root);
entry!(gather, "fi_gather", FI_GATHER, root root);

/// The operation of a message: its buffers are lists. The count is that of the input, or, at a
/// member of a scatter that is not the root, of the result.
unsafe extern "C" fn msg<D: Domain>(
    e: *mut fid_ep,
    m: *const fi_msg_collective,
    resultv: *mut fi_ioc,
    result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    // SAFETY: the message is NULL or valid, its lists have as many elements as it says, and their
    // memory is lent until completion.
    unsafe {
        let Some(m) = m.as_ref() else {
            return -(FI_EINVAL as isize);
        };
        let lists = || -> Result<(UserMem, UserMem)> {
            if m.coll == FI_BARRIER {
                return Ok((UserMem::EMPTY, UserMem::EMPTY));
            }
            let input = pieces((m.msg_iov, m.desc, m.iov_count), m.datatype)?;
            Ok((
                input,
                pieces((resultv, result_desc, result_count), m.datatype)?,
            ))
        };
        let (input, result) = match lists() {
            Ok(l) => l,
            Err(err) => return -(err as isize),
        };
        let size = crate::hmem::arith::size_of(m.datatype).unwrap_or(1);
        let count = count_of::<D>(m, e, input.len() / size, result.len() / size);
        let r = req(
            (m.coll, m.coll_addr, m.root_addr, count, m.datatype, m.op),
            flags,
            m.context,
        );
        call::<D>("fi_collective msg", e, &r, |_| Ok((input, result)))
    }
}

/// Elements per member, from the lengths of a message's lists.
///
/// # Safety
/// `e` is NULL or an endpoint of ours.
unsafe fn count_of<D: Domain>(
    m: &fi_msg_collective,
    e: *mut fid_ep,
    input: usize,
    result: usize,
) -> usize {
    let members = || -> Result<usize> {
        // SAFETY: as promised by the caller.
        let b = unsafe { ep::<D>(e)? };
        b.domain.members(b.id()?, m.coll_addr)
    };
    match m.coll {
        FI_SCATTER => result,
        FI_ALLTOALL | FI_REDUCE_SCATTER => input / members().unwrap_or(1),
        _ => input,
    }
}

impl<D: Domain> Tables<D> {
    /// fi_collective(3)
    pub(crate) const COLLECTIVE_OPS: &'static fi_ops_collective = &fi_ops_collective {
        size: size_of::<fi_ops_collective>(),
        barrier: Some(barrier::<D>),
        broadcast: Some(broadcast::<D>),
        alltoall: Some(alltoall::<D>),
        allreduce: Some(allreduce::<D>),
        allgather: Some(allgather::<D>),
        reduce_scatter: Some(reduce_scatter::<D>),
        reduce: Some(reduce::<D>),
        scatter: Some(scatter::<D>),
        gather: Some(gather::<D>),
        msg: Some(msg::<D>),
        barrier2: Some(barrier2::<D>),
    };
}

/// fi_query_collective(3). FI_SCATTER as a flag asks for the reduce-scatter operation.
pub(crate) unsafe extern "C" fn query_collective<D: Domain>(
    d: *mut fid_domain,
    what: fi_collective_op,
    attr: *mut fi_collective_attr,
    flags: u64,
) -> c_int {
    guard_int("fi_query_collective", || {
        // SAFETY: `d` is a domain of ours, the attributes are NULL or valid.
        let (d, a) = unsafe { (of::<D>(d)?, attr.as_mut().ok_or(FI_EINVAL)?) };
        if a.mode != 0 {
            return Err(FI_EINVAL);
        }
        let what = match (what, flags) {
            (_, 0) => what,
            (FI_REDUCE | FI_REDUCE_SCATTER, f) if f == u64::from(FI_SCATTER) => FI_REDUCE_SCATTER,
            _ => return Err(FI_EBADFLAGS),
        };
        let (count, size) = d.query_collective(what, a.datatype, a.op)?;
        (a.datatype_attr.count, a.datatype_attr.size) = (count, size);
        a.max_members = u32::MAX as usize >> 1;
        Ok(())
    })
}

// ---- groups ------------------------------------------------------------------------------------

/// Body of a `fid_mc`.
struct GroupBody<D: Domain> {
    domain: Arc<D>,
    addr: OnceLock<fi_addr_t>,
}

/// fi_join_collective(3), as fi_join(3) with FI_COLLECTIVE.
///
/// # Safety
/// `addr` is a `fi_collective_addr`, `out` a place for a pointer, or NULL.
pub(crate) unsafe fn join<D: Domain>(
    b: &EpBody<D>,
    addr: *const c_void,
    flags: u64,
    out: *mut *mut fid_mc,
    context: *mut c_void,
) -> Result<()> {
    if flags & FI_COLLECTIVE == 0 {
        return Err(FI_ENOSYS);
    }
    let more = flags & !(FI_COLLECTIVE | FI_SEND | FI_RECV);
    if more != 0 {
        return Err(FI_EBADFLAGS);
    }
    // SAFETY: as promised by the caller; the set is NULL or ours.
    let (a, set) = unsafe {
        let a = addr
            .cast::<fi_collective_addr>()
            .as_ref()
            .ok_or(FI_EINVAL)?;
        (a, av_set::set::<D>(a.set)?)
    };
    if out.is_null() {
        return Err(FI_EINVAL);
    }
    let Some(eq) = b.eq.get() else {
        crate::warn_log!(
            FI_LOG_EP_CTRL,
            "fi_join_collective: no event queue is bound to the endpoint"
        );
        return Err(FI_ENOEQ);
    };
    let id = b.id()?;
    // Waiting for the event moves no endpoint along, as an event queue knows none: the thread does.
    b.domain.start_progress()?;
    if !b.domain.joinable(id, a.coll_addr) {
        return Err(FI_EINVAL);
    }
    let f = fid_mc {
        fid: new_fid(FI_CLASS_MC, context, Tables::<D>::GROUP_FI_OPS),
        fi_addr: NOBODY,
    };
    let handle = hand_out(
        f,
        GroupBody {
            domain: Arc::clone(&b.domain),
            addr: OnceLock::new(),
        },
    );
    let entry = fi_eq_entry {
        fid: handle.cast(),
        context,
        data: 0,
    };
    // SAFETY: any structure of plain integers and pointers may be looked at as bytes; this one has
    // no padding.
    let bytes = unsafe {
        core::slice::from_raw_parts((&raw const entry).cast::<u8>(), size_of::<fi_eq_entry>())
    };
    let event = EqEvent {
        event: FI_JOIN_COMPLETE,
        bytes: bytes.to_vec(),
        ..EqEvent::default()
    };
    let told = (Arc::clone(eq), event);
    let made = |addr| {
        // SAFETY: the handle was made above; nobody else has it yet.
        unsafe {
            (*handle).fi_addr = addr;
            if let Ok(g) = body::<fid_mc, GroupBody<D>>(handle) {
                let _ = g.addr.set(addr);
            }
            *out = handle;
        }
    };
    let joined = b.domain.join(id, &set.members(), told, &alloc, made);
    if joined.is_err() {
        // SAFETY: as above.
        unsafe { take::<fid_mc, GroupBody<D>>(handle)? };
    }
    joined
}

unsafe extern "C" fn group_close<D: Domain>(f: *mut fid) -> c_int {
    let close = || {
        // SAFETY: only groups have this table; the handle is taken when nothing speaks against it.
        unsafe {
            let b = body::<fid_mc, GroupBody<D>>(f.cast())?;
            b.domain.leave(*b.addr.get().ok_or(FI_EBADF)?)?;
            take::<fid_mc, GroupBody<D>>(f.cast())?;
        }
        Ok(())
    };
    // SAFETY: only objects of ours have this table.
    unsafe { guard_close(f, close) }
}

impl<D: Domain> Tables<D> {
    pub(crate) const GROUP_FI_OPS: &'static fi_ops = &ops(group_close::<D>, no_bind, no_control);
}
