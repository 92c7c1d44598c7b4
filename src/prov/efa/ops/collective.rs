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

use crate::core::slab::Slab;
use crate::core::{Errno, Result};
use crate::device::QueuePair;
use crate::hmem::arith::{self, Element};
use crate::hmem::{combine, copy, Owned, UserMem};
use crate::proto::coll::{Area, Rank, Schedule, Span, Step};
use crate::proto::{Failure, PeerId, Port, RecvArgs, SendArgs, COLLECTIVE_TAG};
use crate::prov::contract::{Alloc, Call, CollReq, Entry, Eq, EqEvent, ErrEntry, Needs};
use crate::prov::efa::domain::State;
use crate::prov::efa::endpoint::LiveEndpoint;
use crate::prov::efa::ops::live_port;
use crate::prov::efa::ops::UserOp;
use crate::prov::efa::port::{ep_port, EpPort};
use crate::prov::reports::completion::CntrKind;
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
    Cq {
        context: usize,
        report: bool,
    },
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
    told: ReportTarget,
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
/// `FI_EOPNOTSUPP` without FI_COLLECTIVE or for an operation the datatype does not have,
/// `FI_EINVAL` for a group that was not joined, a root that is no member, or buffers that are too
/// short.
pub(crate) fn collective(
    s: &mut State,
    ep: u32,
    r: &CollReq,
    mem: impl FnOnce(Needs) -> Result<(UserMem, UserMem)>,
    alloc: Alloc,
) -> Result<()> {
    let e = s.eps.get(ep).ok_or(FI_EBADF)?;
    let flags = r.common.flags_or(e.tx_flags);
    let report = crate::prov::reports::reports(e.tx, flags);
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
        told: ReportTarget::Cq {
            context: r.common.context,
            report,
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

// ---- joining -----------------------------------------------------------------------------------

/// 32 bits of everything in `words`, for numbers of groups.
fn hash(words: impl IntoIterator<Item = u64>) -> u32 {
    let mut h = 0xcbf2_9ce4_8422_2325u64;
    for w in words {
        for b in w.to_le_bytes() {
            h = (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    (h ^ h >> 32) as u32
}

/// fi_join_collective(3): a new group of the members `addrs`, and its address. `event` goes to the
/// event queue when all have joined. `FI_EINVAL` when an address is not in the address vector or
/// none is the endpoint's own, `FI_EOPBADSTATE` before fi_enable.
pub(crate) fn join(
    s: &mut State,
    ep: u32,
    addrs: &[fi_addr_t],
    (eq, event): (Arc<Eq>, EqEvent),
    alloc: Alloc,
) -> Result<fi_addr_t> {
    has_collectives(s, ep)?;
    let e = s.eps.get_mut(ep).ok_or(FI_EBADF)?;
    let own = e.live.as_ref().ok_or(FI_EOPBADSTATE)?.qp.addr();
    let av = e.av.and_then(|a| s.avs.get(a)).ok_or(FI_ENOAV)?;
    let mut members = Vec::with_capacity(addrs.len());
    for a in addrs {
        members.push(av.peer(*a, &mut s.peers)?);
    }
    let own = s.peers.of(&own);
    let Some(me) = members.iter().position(|p| *p == own) else {
        crate::warn_log!(
            FI_LOG_EP_CTRL,
            "fi_join_collective: the set of {} addresses: wanted the endpoint's own among them",
            members.len()
        );
        return Err(FI_EINVAL);
    };
    let words = members.iter().flat_map(|p| {
        let a = s.peers.addr(*p).copied().unwrap_or_default();
        let gid = u128::from_le_bytes(a.gid);
        let qp = u64::from(a.qpn) << 32 | u64::from(a.qkey);
        [gid as u64, (gid >> 64) as u64, qp]
    });
    let set = hash(words);
    let times = s.colls.joins.entry((ep, set)).or_default();
    let tag = JOIN_TAG | u64::from(set) << SEQ_BITS | *times & ((1 << SEQ_BITS) - 1);
    *times += 1;
    let rank = Rank {
        n: members.len(),
        me,
    };
    let schedule = Schedule::allreduce(rank, 1, 8);
    // Behind the schedule's own scratch memory: what we propose, and what comes out.
    let used = schedule.scratch;
    let scratch = alloc(used + 16);
    let (input, result) = (scratch.mem().part(used, 8), scratch.mem().part(used + 8, 8));
    input.store(0, &s.colls.next.to_ne_bytes());
    s.colls.next += 1;
    let members: Box<[PeerId]> = members.into();
    let group = s.colls.groups.insert(Group {
        ep,
        members: members.clone(),
        addrs: addrs.into(),
        me,
        id: set,
        seq: 0,
        joined: false,
    });
    let max = arith::element(FI_UINT64, FI_MAX).ok_or(FI_EOPNOTSUPP)?;
    let running = RunningCollective {
        ep,
        members,
        schedule,
        at: 0,
        open: 0,
        input,
        result,
        scratch,
        combine: Some((max, 8)),
        tag,
        failed: None,
        told: ReportTarget::Joined { eq, event, group },
    };
    begin(s, running);
    Ok(GROUP_ADDR | u64::from(group))
}

/// Whether an address may be given to fi_join_collective(3): that of a set or of a group.
pub(crate) fn joinable(s: &State, ep: u32, addr: fi_addr_t) -> bool {
    addr == FI_ADDR_NOTAVAIL || addr == SET_ADDR || group(s, ep, addr).is_ok()
}

/// Leaves a group. `FI_EBUSY` while an operation of it is under way.
pub(crate) fn leave(s: &mut State, addr: fi_addr_t) -> Result<()> {
    let at = (addr ^ GROUP_ADDR) as u32;
    let g = s.colls.groups.get(at).ok_or(FI_EBADF)?;
    let tag = COLLECTIVE_TAG | u64::from(g.id) << SEQ_BITS;
    let busy = s.colls.running.iter().any(|(_, r)| match r.told {
        ReportTarget::Joined { group, .. } => group == at,
        ReportTarget::Cq { .. } => r.ep == g.ep && r.tag >> SEQ_BITS == tag >> SEQ_BITS,
    });
    if busy {
        crate::warn_log!(
            FI_LOG_EP_CTRL,
            "fi_close: an operation of this collective group is under way"
        );
        return Err(FI_EBUSY);
    }
    s.colls.groups.remove(at);
    Ok(())
}

/// Removes the operations of an endpoint that is closed.
pub(crate) fn drop_ep(s: &mut State, ep: u32) -> DeferredDrop {
    s.colls.joins.retain(|(e, _), _| *e != ep);
    let running = &mut s.colls.running;
    let mine = running.select(|r| r.ep == ep).into_iter();
    DeferredDrop(mine.filter_map(|i| running.remove(i)).collect())
}

// ---- carrying out ------------------------------------------------------------------------------

/// Handles sends and receives that have ended, and continues the operations that waited for them.
#[cold]
pub(crate) fn run(s: &mut State, ep: u32) {
    while !s.colls.ended.is_empty() {
        for (id, failed) in core::mem::take(&mut s.colls.ended) {
            if let Some(r) = s.colls.running.get_mut(id) {
                r.open = r.open.saturating_sub(1);
                r.failed = r.failed.or(failed);
            }
        }
        advance_all(s, ep);
    }
}

/// As [`run`], also for operations that found no room.
#[cold]
pub(crate) fn progress(s: &mut State, ep: u32) {
    advance_all(s, ep);
    run(s, ep);
}

fn advance_all(s: &mut State, ep: u32) {
    for id in s.colls.running.select(|r| r.ep == ep) {
        advance(s, id);
    }
}

impl RunningCollective {
    fn span(&self, v: &Span) -> UserMem {
        let all = match v.area {
            Area::Input => &self.input,
            Area::Result => &self.result,
            Area::Scratch => return self.scratch.mem().part(v.at, v.len),
        };
        all.part(v.at, v.len)
    }

    fn peer(&self, rank: usize) -> PeerId {
        self.members.get(rank).copied().unwrap_or(PeerId::MAX)
    }
}

/// Carries out the steps of an operation until one has to wait.
fn advance(s: &mut State, id: u32) {
    loop {
        let Some(r) = s.colls.running.get(id) else {
            return;
        };
        let Some(step) = r.schedule.steps.get(r.at).copied() else {
            if r.open == 0 {
                finish(s, id);
            }
            return;
        };
        let mut started = 0;
        match step {
            Step::Wait if r.open > 0 => return,
            Step::Wait => {}
            Step::Send { to, from } => {
                let (ep, peer, mem) = (r.ep, r.peer(to), r.span(&from));
                let mark = r.failed.map(|f| f.errno as u32 as u64);
                match send(s, ep, id, peer, mem, mark) {
                    Ok(()) => started = 1,
                    Err(FI_EAGAIN) => return,
                    Err(e) => fail(s, id, e),
                }
            }
            Step::Recv { from, into } => {
                let (ep, peer, mem) = (r.ep, r.peer(from), r.span(&into));
                match receive(s, ep, id, peer, mem) {
                    Ok(()) => started = 1,
                    Err(e) => fail(s, id, e),
                }
            }
            // What a failed operation has in its buffers is of no use.
            _ if r.failed.is_some() => {}
            Step::Copy { from, into } => copy(&r.span(&from), &r.span(&into)),
            Step::Combine { low, high, into } => {
                if let Some((f, size)) = r.combine {
                    combine(f, size, &r.span(&low), &r.span(&high), &r.span(&into));
                }
            }
        }
        if let Some(r) = s.colls.running.get_mut(id) {
            r.at += 1;
            r.open += started;
        }
    }
}

fn fail(s: &mut State, id: u32, errno: Errno) {
    if let Some(r) = s.colls.running.get_mut(id) {
        r.failed = r.failed.or(Some(Failure { errno, status: 0 }));
    }
}

fn step_op(ep: u32, id: u32, mem: UserMem, peer: PeerId, kind: u64) -> UserOp {
    let done = Completion {
        len: mem.len(),
        flags: (kind | FI_COLLECTIVE) as u32,
        peer,
        ..Completion::default()
    };
    let mut op = UserOp::new(ep, mem, done);
    op.collective = Some(id);
    op
}

fn send(
    s: &mut State,
    id: u32,
    coll: u32,
    peer: PeerId,
    mem: UserMem,
    mark: Option<u64>,
) -> Result<()> {
    let tag = s.colls.running.get(coll).map(|r| r.tag);
    live_port!(s, id, None => _ep, proto, port);
    let ctx = port.ops.insert(step_op(id, coll, mem, peer, FI_SEND));
    let args = SendArgs {
        peer,
        ctx,
        len: mem.len() as u64,
        tag,
        cq_data: mark,
        receipt: false,
        inject: false,
    };
    let sent = proto.send(&args, &mut port);
    match sent {
        Ok(()) => port.qp.ring(),
        Err(_) => drop(port.ops.remove(ctx)),
    }
    sent
}

/// Makes the adapter watch a peer from which nothing has come yet; `on` false: no longer.
fn watch(s: &mut State, id: u32, peer: PeerId, on: bool) -> Result<()> {
    live_port!(s, id, None => _ep, _proto, port);
    port.expect(peer, on);
    Ok(())
}

fn receive(s: &mut State, id: u32, coll: u32, peer: PeerId, mem: UserMem) -> Result<()> {
    let tag = s.colls.running.get(coll).map_or(0, |r| r.tag);
    watch(s, id, peer, true)?;
    let ctx = s.ops.insert(step_op(id, coll, mem, peer, FI_RECV));
    let args = RecvArgs {
        src: peer,
        ctx,
        len: mem.len() as u64,
        tagged: true,
        tag,
        ignore: 0,
        multi: None,
    };
    let rxq = s.eps.get(id).ok_or(FI_EBADF)?.rxq;
    crate::prov::efa::ops::recv::post(s, rxq, &args)
}

/// Fails the receives from a dead peer.
pub(crate) fn peer_down(s: &mut State, id: u32, peer: PeerId, failure: Failure) {
    let Some(rxq) = s.eps.get(id).map(|e| e.rxq) else {
        return;
    };
    let Some(q) = s.rxqs.get_mut(rxq) else { return };
    let ops = &s.ops;
    let mut hit = Vec::new();
    while let Some(ctx) = q.cancel_collective(|c| ops.get(c).is_some_and(|o| o.done.peer == peer)) {
        hit.push(ctx);
    }
    for ctx in hit {
        let _ = watch(s, id, peer, false);
        if let Some(coll) = s.ops.remove(ctx).and_then(|o| o.collective) {
            s.colls.ended.push((coll, Some(failure)));
        }
    }
}

/// All of a schedule is done.
fn finish(s: &mut State, id: u32) {
    let Some(r) = s.colls.running.remove(id) else {
        return;
    };
    match r.told {
        ReportTarget::Joined {
            eq,
            mut event,
            group,
        } => {
            let mut agreed = [0; 8];
            r.result.load(0, &mut agreed);
            let agreed = u64::from_ne_bytes(agreed);
            s.colls.next = s.colls.next.max(agreed + 1);
            match (r.failed, s.colls.groups.get_mut(group)) {
                (None, Some(g)) => {
                    g.id = hash([u64::from(g.id), agreed]);
                    g.joined = true;
                }
                (failed, _) => event.err = failed.map_or(FI_ECANCELED, |f| f.errno),
            }
            eq.push(event);
        }
        ReportTarget::Cq { context, report } => {
            let Some(ep) = s.eps.get(r.ep) else { return };
            match r.failed {
                None => ep.cntrs.count(&mut s.cntrs, CntrKind::Write, 0),
                Some(_) => ep.cntrs.count_error(&mut s.cntrs, CntrKind::Write),
            }
            let Some(q) = ep.tx.and_then(|b| s.cqs.get_mut(b.cq)) else {
                return;
            };
            let entry = Entry {
                context,
                flags: FI_COLLECTIVE,
                src: FI_ADDR_NOTAVAIL,
                ..Entry::default()
            };
            match r.failed {
                None if report => q.push(entry),
                None => {}
                Some(f) => q.push_error(ErrEntry {
                    entry,
                    err: f.errno,
                    prov_errno: i32::from(f.status),
                    text: format!(
                        "collective operation in a group of {}: a member failed or is gone: {}",
                        r.members.len(),
                        crate::core::errno::text(f.errno)
                    ),
                    ..ErrEntry::default()
                }),
            }
        }
    }
}
