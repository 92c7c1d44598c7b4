//! Entry points of collectives, fi_collective(3): joining a group, and operations in it.
//!
//! How long the buffers of a call must be depends on the group and on the caller's place in it: the
//! provider says so (`coll::Needs`), and only that much of them is looked at.

use super::atomic::ElementBuffers;
use super::av_set::SetBody;
use super::entry::{entry, FromC, OutParam};
use super::ep::EpBody;
use super::handles::AnyObject;
use super::object::*;
use super::transfer::{flagged, plain, Buffer, Desc};
use crate::core::Result;
use crate::hmem::{Owned, UserMem};
use crate::prov::contract::*;
use crate::types::*;
use core::ffi::{c_int, c_void};
use core::mem::size_of;
use core::ptr::null_mut;
use std::sync::{Arc, OnceLock};

/// Scratch memory of an operation.
fn alloc(len: usize) -> Owned {
    // SAFETY: `coll` keeps it with the operation, and beyond the endpoint's closing until its queue
    // pair is gone.
    unsafe { Owned::new(len) }
}

/// Carries a call out: `mem` makes its buffers from what it needs of them.
fn start<D: Domain>(
    e: &EpBody<D>,
    r: &CollReq,
    mem: impl FnOnce(Needs) -> Result<(UserMem, UserMem)>,
) -> Result<()> {
    e.domain.collective(e.id()?, r, mem, &alloc)
}

/// The buffers of a call with one piece each: both have as many bytes as the group needs, until
/// completion.
struct CollBuffers {
    input: (*const c_void, *mut c_void),
    count: usize,
    result: (*const c_void, *mut c_void),
}

impl CollBuffers {
    fn mem(&self, n: Needs) -> Result<(UserMem, UserMem)> {
        // SAFETY: the caller has as many bytes as the group needs of it, or passes NULL.
        let buffer = |(buf, desc): (_, _), len| unsafe { Buffer::new(buf, len, desc) };
        let result = buffer(self.result, n.result).mem()?;
        Ok((buffer(self.input, n.input).mem()?, result))
    }
}

impl FromC<(*mut c_void, usize, *mut c_void)> for CollBuffers {
    unsafe fn from_c((buf, count, desc): (*mut c_void, usize, *mut c_void)) -> Result<Self> {
        Ok(CollBuffers {
            input: (buf.cast_const(), desc),
            count,
            result: (core::ptr::null(), null_mut()),
        })
    }
}

type InOutArgs = (*const c_void, usize, *mut c_void, *mut c_void, *mut c_void);

impl FromC<InOutArgs> for CollBuffers {
    unsafe fn from_c((buf, count, desc, result, result_desc): InOutArgs) -> Result<Self> {
        Ok(CollBuffers {
            input: (buf, desc),
            count,
            result: (result.cast_const(), result_desc),
        })
    }
}

/// What a call of fi_collective(3) has in common: kind, group, root, count, datatype, operation.
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

/// The root of collectives that have none.
const NO_ROOT: fi_addr_t = FI_ADDR_NOTAVAIL;

entry! {
    fn barrier<D: Domain>(
        e: *mut fid_ep as &EpBody<D>,
        group: fi_addr_t,
        context: *mut c_void,
    ) -> isize = "fi_barrier" {
        let r = req((FI_BARRIER, group, NO_ROOT, 0, FI_VOID, FI_NOOP), 0, context);
        start(e, &r, |_| Ok((UserMem::EMPTY, UserMem::EMPTY)))
    }
}

entry! {
    fn barrier2<D: Domain>(
        e: *mut fid_ep as &EpBody<D>,
        group: fi_addr_t,
        flags: u64,
        context: *mut c_void,
    ) -> isize = "fi_barrier2" {
        let r = req((FI_BARRIER, group, NO_ROOT, 0, FI_VOID, FI_NOOP), flags, context);
        start(e, &r, |_| Ok((UserMem::EMPTY, UserMem::EMPTY)))
    }
}

entry! {
    fn broadcast<D: Domain>(
        e: *mut fid_ep as &EpBody<D>,
        (buf: *mut c_void, count: usize, desc: *mut c_void) as buffers: CollBuffers,
        group: fi_addr_t,
        root: fi_addr_t,
        dt: fi_datatype,
        flags: u64,
        context: *mut c_void,
    ) -> isize = "fi_broadcast" {
        let r = req((FI_BROADCAST, group, root, buffers.count, dt, FI_NOOP), flags, context);
        start(e, &r, |n| buffers.mem(n))
    }
}

/// Entry points with input and result; some have a root, some an operation, one has both.
macro_rules! collective {
    ($name:ident, $text:literal, $what:ident $(, root $root:ident)? $(, op $op:ident)?) => {
        entry! {
            fn $name<D: Domain>(
                e: *mut fid_ep as &EpBody<D>,
                (
                    buf: *const c_void,
                    count: usize,
                    desc: *mut c_void,
                    result: *mut c_void,
                    result_desc: *mut c_void
                ) as buffers: CollBuffers,
                group: fi_addr_t,
                $($root: fi_addr_t,)?
                dt: fi_datatype,
                $($op: fi_op,)?
                flags: u64,
                context: *mut c_void,
            ) -> isize = $text {
                let (_root, _op) = (NO_ROOT, FI_NOOP);
                $(let _root = $root;)?
                $(let _op = $op;)?
                let r = req(($what, group, _root, buffers.count, dt, _op), flags, context);
                start(e, &r, |n| buffers.mem(n))
            }
        }
    };
}
collective!(alltoall, "fi_alltoall", FI_ALLTOALL);
collective!(allgather, "fi_allgather", FI_ALLGATHER);
collective!(allreduce, "fi_allreduce", FI_ALLREDUCE, op op);
collective!(reduce_scatter, "fi_reduce_scatter", FI_REDUCE_SCATTER, op op);
collective!(reduce, "fi_reduce", FI_REDUCE, root root, op op);
collective!(scatter, "fi_scatter", FI_SCATTER, root root);
collective!(gather, "fi_gather", FI_GATHER, root root);

/// What a collective's `msg` call passes.
struct CollMsgArgs<'a> {
    msg: &'a fi_msg_collective,
    input: ElementBuffers,
}

impl FromC<*const fi_msg_collective> for CollMsgArgs<'_> {
    unsafe fn from_c(m: *const fi_msg_collective) -> Result<Self> {
        // SAFETY: the message is NULL or valid, with its lists; their memory is lent until
        // completion.
        unsafe {
            let msg = m.as_ref().ok_or(FI_EINVAL)?;
            let input = FromC::from_c((msg.msg_iov, msg.desc, msg.iov_count))?;
            Ok(CollMsgArgs { msg, input })
        }
    }
}

entry! {
    /// The operation of a message: its buffers are lists. The count is that of the input, or, at a
    /// member of a scatter that is not the root, of the result.
    fn msg<D: Domain>(
        e: *mut fid_ep as &EpBody<D>,
        m: *const fi_msg_collective as CollMsgArgs,
        (resultv: *mut fi_ioc, result_desc: Desc, result_count: usize) as result: ElementBuffers,
        flags: u64,
    ) -> isize = "fi_collective msg" {
        let (m, input) = (m.msg, m.input);
        let (input, result) = match m.coll {
            FI_BARRIER => (UserMem::EMPTY, UserMem::EMPTY),
            _ => (input.mem(m.datatype)?, result.mem(m.datatype)?),
        };
        let size = crate::hmem::arith::size_of(m.datatype).unwrap_or(1);
        let count = count_of(m, e, input.len() / size, result.len() / size);
        let args = (m.coll, m.coll_addr, m.root_addr, count, m.datatype, m.op);
        start(e, &req(args, flags, m.context), |_| Ok((input, result)))
    }
}

/// Elements per member, from the lengths of a message's lists.
fn count_of<D: Domain>(m: &fi_msg_collective, e: &EpBody<D>, input: usize, result: usize) -> usize {
    let members = || e.domain.members(e.id()?, m.coll_addr);
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

entry! {
    /// fi_query_collective(3). FI_SCATTER as a flag asks for the reduce-scatter operation.
    pub(crate) fn query_collective<D: Domain>(
        d: *mut fid_domain as &Arc<D>,
        what: fi_collective_op,
        attr: *mut fi_collective_attr as &mut fi_collective_attr,
        flags: u64,
    ) -> c_int = "fi_query_collective" {
        if attr.mode != 0 {
            return Err(FI_EINVAL);
        }
        let what = match (what, flags) {
            (_, 0) => what,
            (FI_REDUCE | FI_REDUCE_SCATTER, f) if f == u64::from(FI_SCATTER) => FI_REDUCE_SCATTER,
            _ => return Err(FI_EBADFLAGS),
        };
        let (count, size) = d.query_collective(what, attr.datatype, attr.op)?;
        (attr.datatype_attr.count, attr.datatype_attr.size) = (count, size);
        attr.max_members = u32::MAX as usize >> 1;
        Ok(())
    }
}

// ---- groups ------------------------------------------------------------------------------------

/// Body of a `fid_mc`.
pub(crate) struct GroupBody<D: Domain> {
    domain: Arc<D>,
    addr: OnceLock<fi_addr_t>,
}

/// What is joined: the group that the new one is part of, and its members.
pub(crate) struct JoinArgs<'a, D: Domain> {
    group: fi_addr_t,
    set: &'a SetBody<D>,
}

/// The address of fi_join(3) with FI_COLLECTIVE.
impl<D: Domain> FromC<*const fi_collective_addr> for JoinArgs<'_, D> {
    unsafe fn from_c(addr: *const fi_collective_addr) -> Result<Self> {
        // SAFETY: as promised by the caller; the set is NULL or ours.
        unsafe {
            let a = addr.as_ref().ok_or(FI_EINVAL)?;
            let group = a.coll_addr;
            match FromC::from_c(a.set.cast_mut().cast::<fid>())? {
                AnyObject::Set(set) => Ok(JoinArgs { group, set }),
                _ => Err(FI_EINVAL),
            }
        }
    }
}

/// fi_join_collective(3), as fi_join(3) with FI_COLLECTIVE.
pub(crate) fn join<D: Domain>(
    b: &EpBody<D>,
    args: &JoinArgs<D>,
    flags: u64,
    out: OutParam<*mut fid_mc>,
    context: *mut c_void,
) -> Result<()> {
    if flags & !(FI_COLLECTIVE | FI_SEND | FI_RECV) != 0 {
        return Err(FI_EBADFLAGS);
    }
    let Some(eq) = b.eq.get() else {
        crate::warn_log!(
            FI_LOG_EP_CTRL,
            "fi_join_collective: no event queue is bound to the endpoint"
        );
        return Err(FI_ENOEQ);
    };
    let id = b.id()?;
    // An event queue has no endpoints, so that waiting for the event makes no progress: the thread
    // does.
    b.domain.start_progress()?;
    if !b.domain.joinable(id, args.group) {
        return Err(FI_EINVAL);
    }
    let f = fid_mc {
        fid: new_fid(FI_CLASS_MC, context, Tables::<D>::GROUP_FI_OPS),
        fi_addr: FI_ADDR_NOTAVAIL,
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
    let report = (Arc::clone(eq), event);
    let made = |addr| {
        // SAFETY: the handle was made above, and is handed out here.
        unsafe {
            (*handle).fi_addr = addr;
            if let Ok(g) = body::<fid_mc, GroupBody<D>>(handle) {
                let _ = g.addr.set(addr);
            }
        }
        out.put(handle);
    };
    let joined = b.domain.join(id, &args.set.members(), report, &alloc, made);
    if joined.is_err() {
        // SAFETY: as above.
        unsafe { take::<fid_mc, GroupBody<D>>(handle)? };
    }
    joined
}

close! {
    fn group_close<D: Domain>(b: GroupBody<D> as fid_mc) {
        b.domain.leave(*b.addr.get().ok_or(FI_EBADF)?)
    }
}

impl<D: Domain> Tables<D> {
    pub(crate) const GROUP_FI_OPS: &'static fi_ops = &ops(group_close::<D>, no_bind, no_control);
}
