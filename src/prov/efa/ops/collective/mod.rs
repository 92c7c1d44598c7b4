//! Collective groups and the operations under way in them (fi_collective(3)).
//!
//! A [`Group`] is an ordered list of peers. A collective operation runs a schedule (`proto::coll`)
//! over tagged messages of its own: the tag has [`COLLECTIVE_TAG`], the group's number and the
//! operation's number in the group, and the receive queue keeps such messages apart from the
//! application's.
//!
//! Joining is itself an allreduce, of numbers that every member proposes; the largest, hashed with
//! the members' addresses, numbers the group. A member that fails continues the schedule but sends
//! its errno with its messages, and a posted receive makes the adapter watch its sender: so every
//! member learns that a member has died.

mod groups;
mod running;

use groups::hash;
pub(crate) use groups::{join, joinable, leave};
use running::advance;
pub(crate) use running::{peer_down, progress, run};

use crate::core::slab::Slab;
use crate::core::Result;
use crate::device::QueuePair;
use crate::hmem::arith::{self, Element};
use crate::hmem::{combine, copy, Owned, UserMem};
use crate::proto::coll::{Area, Rank, Schedule, Span, Step};
use crate::proto::{Failure, PeerId, Port, RecvArgs, SendArgs, COLLECTIVE_TAG};
use crate::prov::contract::{Alloc, CollReq, Entry, Eq, EqEvent, ErrEntry, Needs};
use crate::prov::efa::domain::State;
use crate::prov::efa::endpoint::LiveEndpoint;
use crate::prov::efa::ops::{live_port, UserOp, TX_FLAGS};
use crate::prov::efa::port::{ep_port, EpPort};
use crate::prov::reports::completion::CntrKind;
use crate::prov::reports::flags::known;
use crate::transport::Completion;
use crate::types::*;
use std::collections::HashMap;
use std::sync::Arc;

/// Marks addresses of groups and of address vector sets among `fi_addr_t`.
const GROUP_ADDR: u64 = 1 << 62;
/// Address of a set that is not joined yet (fi_av_set_addr(3)): a set is named by its handle.
pub(crate) const SET_ADDR: fi_addr_t = GROUP_ADDR | 0xffff_ffff;
/// Marks messages of a group that is being formed.
const JOIN_TAG: u64 = COLLECTIVE_TAG | 1 << 62;
/// Bits of a tag that number an operation within its group.
const SEQ_BITS: u32 = 30;

/// Members of a collective, as one endpoint sees them.
#[derive(Debug)]
pub(crate) struct Group {
    ep: u32,
    members: Box<[PeerId]>,
    addrs: Box<[fi_addr_t]>,
    me: usize,
    /// Part of the tags of its operations; the hash of the members while the group is being formed.
    id: u32,
    seq: u64,
    joined: bool,
}

/// Where the end of a schedule is reported.
enum ReportTarget {
    /// Always, also with FI_SELECTIVE_COMPLETION: most calls have no flags to ask for it by.
    Cq { context: usize },
    Joined {
        eq: Arc<Eq>,
        event: EqEvent,
        group: u32,
    },
}

/// A schedule being carried out.
struct RunningCollective {
    ep: u32,
    members: Box<[PeerId]>,
    schedule: Schedule,
    at: usize,
    /// Sends and receives that have not ended.
    open: usize,
    input: UserMem,
    result: UserMem,
    scratch: Owned,
    combine: Option<(Element, usize)>,
    tag: u64,
    failed: Option<Failure>,
    /// Members that are gone: nothing more is sent to them, and nothing expected from them.
    gone: Vec<(PeerId, Failure)>,
    report_to: ReportTarget,
}

/// Groups and operations of a domain.
#[derive(Default)]
pub(crate) struct CollectiveState {
    groups: Slab<Group>,
    running: Slab<RunningCollective>,
    /// Sends and receives that have ended since the last look.
    pub ended: Vec<(u32, Option<Failure>)>,
    /// How often groups of the same members were formed, by endpoint and hash.
    joins: HashMap<(u32, u32), u64>,
    /// The number that this process proposes for the next group.
    next: u64,
}

impl CollectiveState {
    /// Whether a peer is a member of a group.
    pub(crate) fn mentions(&self, p: PeerId) -> bool {
        self.groups.iter().any(|(_, g)| g.members.contains(&p))
            || self.running.iter().any(|(_, r)| r.members.contains(&p))
    }

    /// Operations under way.
    #[inline(always)]
    pub(crate) fn load(&self) -> usize {
        self.running.len()
    }
}

/// Memory of operations that were under way when their endpoint was closed; to be dropped after the
/// queue pair.
pub(crate) struct DeferredDrop(#[allow(dead_code)] Vec<RunningCollective>);

fn group(s: &State, ep: u32, addr: fi_addr_t) -> Result<(u32, &Group)> {
    let at = (addr ^ GROUP_ADDR) as u32;
    let g = s.colls.groups.get(at);
    match g.filter(|g| addr >> 32 == GROUP_ADDR >> 32 && g.ep == ep && g.joined) {
        Some(g) => Ok((at, g)),
        None => {
            crate::warn_log!(
                FI_LOG_EP_DATA,
                "coll_addr {addr:#x}: wanted the address of a group this endpoint has joined \
                 (FI_JOIN_COMPLETE)"
            );
            Err(FI_EINVAL)
        }
    }
}

/// Whether an operation of this kind combines values.
fn combines(what: fi_collective_op) -> bool {
    matches!(what, FI_ALLREDUCE | FI_REDUCE | FI_REDUCE_SCATTER)
}

/// How values of a datatype are combined. `FI_EOPNOTSUPP` for datatypes and operations that do not
/// exist, or are no reduction.
fn element(what: fi_collective_op, dt: fi_datatype, op: fi_op) -> Result<(Option<Element>, usize)> {
    if what == FI_BARRIER {
        return Ok((None, 0));
    }
    let size = arith::size_of(dt).ok_or(FI_EOPNOTSUPP)?;
    if !combines(what) {
        return Ok((None, size));
    }
    if op > FI_BXOR {
        return Err(FI_EOPNOTSUPP);
    }
    let f = arith::element(dt, op).ok_or(FI_EOPNOTSUPP)?;
    Ok((Some(f), size))
}

/// Largest number of elements, and the size of one (fi_query_collective(3)); errors as
/// [`collective`].
pub(crate) fn query(what: fi_collective_op, dt: fi_datatype, op: fi_op) -> Result<(usize, usize)> {
    if what > FI_GATHER {
        return Err(FI_EOPNOTSUPP);
    }
    let (_, size) = element(what, dt, op)?;
    Ok((isize::MAX as usize / size.max(1), size))
}

/// Members of a group.
pub(crate) fn members(s: &State, ep: u32, addr: fi_addr_t) -> Result<usize> {
    group(s, ep, addr).map(|(_, g)| g.members.len())
}

struct CollectiveParams {
    rank: Rank,
    root: usize,
    size: usize,
    combine: Option<Element>,
    needs: Needs,
}

fn has_collectives(s: &State, ep: u32) -> Result<()> {
    if s.eps.get(ep).ok_or(FI_EBADF)?.caps & FI_COLLECTIVE != 0 {
        return Ok(());
    }
    crate::warn_log!(FI_LOG_EP_DATA, "info->caps: wanted FI_COLLECTIVE for this");
    Err(FI_EOPNOTSUPP)
}

fn shape(s: &State, ep: u32, r: &CollReq) -> Result<CollectiveParams> {
    has_collectives(s, ep)?;
    let (_, g) = group(s, ep, r.group)?;
    let (combine, size) = element(r.what, r.datatype, r.op)?;
    let n = g.members.len();
    let rank = Rank { n, me: g.me };
    let rooted = matches!(r.what, FI_BROADCAST | FI_REDUCE | FI_SCATTER | FI_GATHER);
    let root = match g.addrs.iter().position(|a| *a == r.root) {
        Some(at) => at,
        None if !rooted => 0,
        None => {
            crate::warn_log!(
                FI_LOG_EP_DATA,
                "root_addr {:#x}: wanted a member of the group",
                r.root
            );
            return Err(FI_EINVAL);
        }
    };
    // Lengths must not overflow, with room for partial results.
    let one = r.count.checked_mul(size).ok_or(FI_EINVAL)?;
    let all = one.checked_mul(n).filter(|b| *b <= isize::MAX as usize / 2);
    let all = all.ok_or(FI_EINVAL)?;
    let only = |b: usize| if g.me == root { b } else { 0 };
    let (input, result) = match r.what {
        FI_BARRIER => (0, 0),
        FI_BROADCAST => (one, 0),
        FI_ALLTOALL => (all, all),
        FI_ALLREDUCE => (one, one),
        FI_ALLGATHER => (one, all),
        FI_REDUCE_SCATTER => (all, one),
        FI_REDUCE => (one, only(one)),
        FI_SCATTER => (only(all), one),
        FI_GATHER => (one, only(all)),
        _ => return Err(FI_EOPNOTSUPP),
    };
    Ok(CollectiveParams {
        rank,
        root,
        size,
        combine,
        needs: Needs { input, result },
    })
}

/// Starts a collective operation on the buffers that `mem` makes from what is needed of them.
/// `FI_EBADFLAGS` for FI_TRIGGER and unknown flags, `FI_EOPNOTSUPP` without FI_COLLECTIVE or for an
/// operation the datatype does not have,
/// `FI_EINVAL` for a group that was not joined, a root that is no member, or buffers that are too
/// short.
pub(crate) fn collective(
    s: &mut State,
    ep: u32,
    r: &CollReq,
    mem: impl FnOnce(Needs) -> Result<(UserMem, UserMem)>,
    alloc: Alloc,
) -> Result<()> {
    known(r.common.flags, TX_FLAGS | FI_COLLECTIVE, "a collective")?;
    let x = shape(s, ep, r)?;
    let (input, result) = mem(x.needs)?;
    if input.len() < x.needs.input || result.len() < x.needs.result {
        crate::warn_log!(
            FI_LOG_EP_DATA,
            "collective: buffers of {} and {} bytes: wanted {:?}",
            input.len(),
            result.len(),
            x.needs
        );
        return Err(FI_EINVAL);
    }
    let len = r.count * x.size;
    let schedule = match r.what {
        FI_BARRIER => Schedule::barrier(x.rank),
        FI_BROADCAST => Schedule::broadcast(x.rank, x.root, r.count, x.size),
        FI_ALLTOALL => Schedule::alltoall(x.rank, len),
        FI_ALLREDUCE => Schedule::allreduce(x.rank, r.count, x.size),
        FI_ALLGATHER => Schedule::allgather(x.rank, len),
        FI_REDUCE_SCATTER => Schedule::reduce_scatter(x.rank, r.count, x.size),
        FI_REDUCE => Schedule::reduce(x.rank, x.root, r.count, x.size),
        FI_SCATTER => Schedule::scatter(x.rank, x.root, len),
        _ => Schedule::gather(x.rank, x.root, len),
    };
    let (at, _) = group(s, ep, r.group)?;
    let g = s.colls.groups.get_mut(at).ok_or(FI_EINVAL)?;
    let seq = g.seq & ((1 << SEQ_BITS) - 1);
    g.seq += 1;
    let scratch = alloc(schedule.scratch);
    let running = RunningCollective {
        ep,
        members: g.members.clone(),
        tag: COLLECTIVE_TAG | u64::from(g.id) << SEQ_BITS | seq,
        schedule,
        at: 0,
        open: 0,
        input,
        result,
        scratch,
        combine: x.combine.map(|f| (f, x.size)),
        failed: None,
        gone: Vec::new(),
        report_to: ReportTarget::Cq {
            context: r.common.context,
        },
    };
    begin(s, running);
    Ok(())
}

/// Adds an operation and carries out its first steps, until one has to wait.
fn begin(s: &mut State, r: RunningCollective) {
    let ep = r.ep;
    let id = s.colls.running.insert(r);
    advance(s, id);
    run(s, ep);
}

/// Removes the operations of an endpoint that is closed.
pub(crate) fn drop_ep(s: &mut State, ep: u32) -> DeferredDrop {
    s.colls.joins.retain(|(e, _), _| *e != ep);
    let running = &mut s.colls.running;
    let mine = running.select(|r| r.ep == ep).into_iter();
    DeferredDrop(mine.filter_map(|i| running.remove(i)).collect())
}
