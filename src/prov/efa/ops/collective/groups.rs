//! Joining and leaving a group (fi_join_collective(3)).

use super::*;

/// 32 bits of everything in `words`, for numbers of groups.
pub(super) fn hash(words: impl IntoIterator<Item = u64>) -> u32 {
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
    let own = s.peers.learn(&own);
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
        gone: Vec::new(),
        report_to: ReportTarget::Joined { eq, event, group },
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
    let busy = s.colls.running.iter().any(|(_, r)| match r.report_to {
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
