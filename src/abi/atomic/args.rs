//! What calls of fi_atomic(3) pass: buffers in elements, the remote side, messages.

use crate::abi::entry::FromC;
use crate::abi::transfer::*;
use crate::core::iovs::{Iovs, RmaIov, MAX_IOV};
use crate::core::Result;
use crate::hmem::{arith, UserMem};
use crate::prov::contract::*;
use crate::types::*;
use core::ffi::c_void;

/// Bytes of `count` elements.
pub(super) fn bytes(count: usize, dt: fi_datatype) -> Result<usize> {
    let size = arith::size_of(dt).ok_or(FI_EOPNOTSUPP)?;
    count.checked_mul(size).ok_or(FI_EINVAL)
}

/// Several buffers in elements: a list, and NULL or as many descriptors.
#[derive(Clone, Copy)]
pub(crate) struct ElementBuffers {
    list: *const fi_ioc,
    desc: Desc,
    count: usize,
}

impl ElementBuffers {
    /// The memory, as elements of this type. `FI_EINVAL` for a list that is missing or longer than
    /// `iov_limit`.
    pub(crate) fn mem(&self, dt: fi_datatype) -> Result<UserMem> {
        let ElementBuffers { list, desc, count } = *self;
        if count == 0 {
            return Ok(UserMem::EMPTY);
        }
        if list.is_null() || count > crate::hmem::MAX_SEGS {
            crate::warn_log!(
                FI_LOG_EP_DATA,
                "iov_count: wanted {count}, at most {} (iov_limit)",
                crate::hmem::MAX_SEGS
            );
            return Err(FI_EINVAL);
        }
        let size = arith::size_of(dt).ok_or(FI_EOPNOTSUPP)?;
        // SAFETY: the list has `count` elements, whose memory is lent until completion.
        unsafe {
            let v = (0..).zip(core::slice::from_raw_parts(list, count));
            UserMem::of_kinds(v.map(|(i, v)| {
                let len = v.count.saturating_mul(size);
                (v.addr.cast_const(), len, kind_of(desc, i))
            }))
            .ok_or(FI_EINVAL)
        }
    }
}

impl FromC<(*const fi_ioc, Desc, usize)> for ElementBuffers {
    unsafe fn from_c((list, desc, count): (*const fi_ioc, Desc, usize)) -> Result<Self> {
        Ok(ElementBuffers { list, desc, count })
    }
}

impl FromC<(*mut fi_ioc, Desc, usize)> for ElementBuffers {
    unsafe fn from_c((list, desc, count): (*mut fi_ioc, Desc, usize)) -> Result<Self> {
        let list = list.cast_const();
        Ok(ElementBuffers { list, desc, count })
    }
}

/// The remote side of an atomic, and what it does there.
#[derive(Clone, Copy)]
pub(super) struct RemoteOp {
    pub peer: fi_addr_t,
    pub addr: u64,
    pub key: u64,
    pub datatype: fi_datatype,
    pub op: fi_op,
}

impl RemoteOp {
    /// A request for as many elements as there are bytes of data, or of results when it only
    /// reads.
    pub(super) fn request(
        self,
        data: SendData<'_>,
        fetch: Fetch,
        context: *mut c_void,
    ) -> Result<AtomicReq<SendData<'_>>> {
        let len = match fetch {
            Fetch::Former(m) if self.op == FI_ATOMIC_READ => m.len(),
            _ => data.len(),
        };
        let remote = RmaIov {
            addr: self.addr,
            len: len as u64,
            key: self.key,
        };
        let to = Iovs::new(&[remote]).ok_or(FI_EINVAL)?;
        Ok(self.with(data, fetch, to, plain(context)))
    }

    #[inline(always)]
    pub(super) fn with<B, M, T, C>(
        self,
        data: B,
        fetch: Fetch<M>,
        to: T,
        common: C,
    ) -> AtomicReq<B, M, T, C> {
        AtomicReq {
            data,
            fetch,
            peer: self.peer,
            to,
            datatype: self.datatype,
            op: self.op,
            common,
        }
    }
}

/// What a `*atomicmsg` call passes.
pub(crate) struct AtomicMsgArgs<'a> {
    operands: ElementBuffers,
    remote: &'a [fi_rma_ioc],
    addr: fi_addr_t,
    pub datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
}

/// `FI_EINVAL` without remote pieces.
impl FromC<*const fi_msg_atomic> for AtomicMsgArgs<'_> {
    unsafe fn from_c(m: *const fi_msg_atomic) -> Result<Self> {
        // SAFETY: the message is NULL or valid, with its lists; their memory is lent until
        // completion.
        unsafe {
            let m = m.as_ref().ok_or(FI_EINVAL)?;
            if m.rma_iov.is_null() {
                return Err(FI_EINVAL);
            }
            Ok(AtomicMsgArgs {
                operands: FromC::from_c((m.msg_iov, m.desc, m.iov_count))?,
                remote: core::slice::from_raw_parts(m.rma_iov, m.rma_iov_count.min(16)),
                addr: m.addr,
                datatype: m.datatype,
                op: m.op,
                context: m.context,
            })
        }
    }
}

impl AtomicMsgArgs<'_> {
    /// The request, given to `f`.
    pub(crate) fn request<T>(
        &self,
        fetch: Fetch,
        flags: u64,
        f: impl FnOnce(AtomicReq<SendData>) -> Result<T>,
    ) -> Result<T> {
        // The operand of a read is ignored (fi_atomic(3)), and may be NULL.
        let mem = match self.op {
            FI_ATOMIC_READ => UserMem::EMPTY,
            _ => self.operands.mem(self.datatype)?,
        };
        let mut list = [RmaIov::default(); MAX_IOV];
        for (to, v) in list.iter_mut().zip(self.remote) {
            *to = RmaIov {
                addr: v.addr,
                len: bytes(v.count, self.datatype)? as u64,
                key: v.key,
            };
        }
        let to = list.get(..self.remote.len()).and_then(Iovs::new);
        let to = to.ok_or(FI_EINVAL)?;
        with_data(mem, flags, |data| {
            f(AtomicReq {
                data,
                fetch,
                peer: self.addr,
                to,
                datatype: self.datatype,
                op: self.op,
                common: flagged(self.context, flags),
            })
        })
    }

    /// Where the former values go.
    pub(crate) fn former(&self, result: &ElementBuffers) -> Result<Fetch> {
        former(result, self.datatype)
    }

    /// What is compared with, and where the former values go.
    pub(crate) fn compare(&self, with: &ElementBuffers, result: &ElementBuffers) -> Result<Fetch> {
        compare(with, result, self.datatype)
    }
}

/// Where the former values go.
pub(super) fn former(result: &ElementBuffers, dt: fi_datatype) -> Result<Fetch> {
    Ok(Fetch::Former(result.mem(dt)?))
}

/// What is compared with, and where the former values go.
pub(super) fn compare(
    with: &ElementBuffers,
    result: &ElementBuffers,
    dt: fi_datatype,
) -> Result<Fetch> {
    Ok(Fetch::Compare(result.mem(dt)?, with.mem(dt)?))
}

/// The buffers of an atomic with one piece each: all have as many elements.
#[derive(Clone, Copy)]
pub(super) struct Operands {
    data: (*const c_void, *mut c_void),
    pub count: usize,
    compare: Option<(*const c_void, *mut c_void)>,
    result: Option<(*const c_void, *mut c_void)>,
}

impl FromC<(*const c_void, usize, *mut c_void)> for Operands {
    #[inline(always)]
    unsafe fn from_c((buf, count, desc): (*const c_void, usize, *mut c_void)) -> Result<Self> {
        Ok(Operands {
            data: (buf, desc),
            count,
            compare: None,
            result: None,
        })
    }
}

type FetchArgs = (*const c_void, usize, *mut c_void, *mut c_void, *mut c_void);

impl FromC<FetchArgs> for Operands {
    #[inline(always)]
    unsafe fn from_c((buf, count, desc, result, result_desc): FetchArgs) -> Result<Self> {
        Ok(Operands {
            data: (buf, desc),
            count,
            compare: None,
            result: Some((result.cast_const(), result_desc)),
        })
    }
}

type CompareArgs = (
    *const c_void,
    usize,
    *mut c_void,
    *const c_void,
    *mut c_void,
    *mut c_void,
    *mut c_void,
);

impl FromC<CompareArgs> for Operands {
    #[inline(always)]
    unsafe fn from_c(args: CompareArgs) -> Result<Self> {
        let (buf, count, desc, with, compare_desc, result, result_desc) = args;
        Ok(Operands {
            data: (buf, desc),
            count,
            compare: Some((with, compare_desc)),
            result: Some((result.cast_const(), result_desc)),
        })
    }
}

impl Operands {
    /// As buffers of elements of this type: operands, values to compare with, former values.
    #[inline(always)]
    pub(super) fn buffers(
        &self,
        dt: fi_datatype,
    ) -> Result<(Buffer, Option<Buffer>, Option<Buffer>)> {
        let len = bytes(self.count, dt)?;
        // SAFETY: each has as many elements as the caller says, and is lent until completion.
        let buffer = |(buf, desc): (_, _)| unsafe { Buffer::new(buf, len, desc) };
        Ok((
            buffer(self.data),
            self.compare.map(buffer),
            self.result.map(buffer),
        ))
    }
}

/// The operands of an injecting atomic.
pub(super) struct InjectOperands {
    pub buf: *const c_void,
    pub count: usize,
}

impl FromC<(*const c_void, usize)> for InjectOperands {
    #[inline(always)]
    unsafe fn from_c((buf, count): (*const c_void, usize)) -> Result<Self> {
        Ok(InjectOperands { buf, count })
    }
}
