//! Carrying out a schedule: its sends, receives and combinations, and its end.

use super::*;

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

    /// Why a member is gone.
    fn lost(&self, peer: PeerId) -> Option<Failure> {
        let gone = self.gone.iter().find(|(p, _)| *p == peer);
        gone.map(|(_, failure)| *failure)
    }
}

/// Carries out the steps of an operation until one has to wait.
pub(super) fn advance(s: &mut State, id: u32) {
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
                if let Some(failure) = r.lost(peer) {
                    // The steps with the other members spread the failure.
                    fail(s, id, failure);
                    next(s, id, 0);
                    continue;
                }
                let mark = r.failed.map(|f| f.errno as u32 as u64);
                match send(s, ep, id, peer, mem, mark) {
                    Ok(()) => started = 1,
                    Err(FI_EAGAIN) => return,
                    Err(errno) => fail(s, id, Failure { errno, status: 0 }),
                }
            }
            Step::Recv { from, into } => {
                let (ep, peer, mem) = (r.ep, r.peer(from), r.span(&into));
                let lost = r.lost(peer);
                match receive(s, ep, id, peer, mem) {
                    Ok(()) => started = 1,
                    Err(errno) => fail(s, id, Failure { errno, status: 0 }),
                }
                // A member that has done its part may be gone, and its message be here.
                if let Some(failure) = lost {
                    fail_receives(s, ep, peer, failure);
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
        next(s, id, started);
    }
}

/// Goes on to the next step, after one that has `started` a send or receive.
fn next(s: &mut State, id: u32, started: usize) {
    if let Some(r) = s.colls.running.get_mut(id) {
        r.at += 1;
        r.open += started;
    }
}

fn fail(s: &mut State, id: u32, failure: Failure) {
    if let Some(r) = s.colls.running.get_mut(id) {
        r.failed = r.failed.or(Some(failure));
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
        Err(_) => port.drop_op(ctx),
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

/// Fails the receives from a peer that has ended, and the sends to it that have not started.
pub(crate) fn peer_down(s: &mut State, id: u32, peer: PeerId, failure: Failure) {
    for (_, r) in s.colls.running.iter_mut() {
        if r.ep == id && r.members.contains(&peer) {
            r.gone.push((peer, failure));
        }
    }
    fail_receives(s, id, peer, failure);
}

/// Fails the posted receives from a peer.
fn fail_receives(s: &mut State, id: u32, peer: PeerId, failure: Failure) {
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
    match r.report_to {
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
        ReportTarget::Cq { context } => {
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
                None => q.push(entry),
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
