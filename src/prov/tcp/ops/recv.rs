//! Posting receives, and FI_PEEK, FI_CLAIM, FI_DISCARD and fi_cancel(3).

use crate::core::{memory, Result};
use crate::hmem::UserMem;
use crate::proto::ANY;
use crate::prov::contract::{Call, Entry, Poster, RecvReq};
use crate::prov::reports::endpoint::push_peek;
use crate::prov::reports::flags::{known, RECV_FLAGS};
use crate::prov::reports::reports;
use crate::prov::tcp::conn;
use crate::prov::tcp::ep::{TcpEp, MIN_MULTI_RECV};
use crate::prov::tcp::msg::{self, MsgState};
use crate::prov::tcp::recvq::{RecvMatch, RecvPlace, TcpRecv};
use crate::prov::tcp::state::TcpState;
use crate::types::*;

/// Flags that `fi_recvmsg` and `fi_trecvmsg` may carry.
const RX_FLAGS: u64 = RECV_FLAGS | FI_COMMIT_COMPLETE;

/// The receive queue of a poster, and the settings of its receives.
struct PostedAt {
    rxq: u32,
    wanted: RecvMatch,
    report: bool,
    flags: u64,
    min_multi: usize,
}

fn posted_at(s: &TcpState, by: Poster, r: &RecvReq) -> Result<PostedAt> {
    let tag = r.tag;
    match by {
        Poster::Ep(id) => {
            let ep = s.eps.get(id).ok_or(FI_EBADF)?;
            if !ep.enabled {
                return Err(FI_EOPBADSTATE);
            }
            // Without FI_DIRECTED_RECV the source is not looked at (fi_msg(3)).
            let any = r.src == FI_ADDR_UNSPEC || ep.msg.is_some();
            let src = if any || ep.caps & FI_DIRECTED_RECV == 0 {
                ANY
            } else {
                s.peer_of(ep, r.src)?
            };
            let flags = r.common.flags_or(ep.rx_flags);
            Ok(PostedAt {
                rxq: ep.rxq,
                wanted: RecvMatch { src, tag },
                report: reports(ep.rx, flags),
                flags,
                min_multi: ep.min_multi_recv,
            })
        }
        Poster::Srx(id) => {
            let x = s.srxs.get(id).ok_or(FI_EBADF)?;
            let directed = x.caps & FI_DIRECTED_RECV != 0 && r.src != FI_ADDR_UNSPEC;
            // The address is one of the endpoints' address vector. Connected endpoints have none.
            let src = match directed {
                false => ANY,
                true => {
                    let user = s.eps.get(answering(s, by).map_err(|_| FI_ENOAV)?);
                    match user.filter(|e| e.msg.is_none()) {
                        None => ANY,
                        Some(e) => s.peer_of(e, r.src)?,
                    }
                }
            };
            Ok(PostedAt {
                rxq: x.rxq,
                wanted: RecvMatch { src, tag },
                report: true,
                flags: r.common.flags_or(x.flags),
                min_multi: MIN_MULTI_RECV,
            })
        }
    }
}

/// The endpoint whose completion queue reports. A shared receive context has no queue of its own
/// and uses its first endpoint's. `FI_ENOCQ` while it has no endpoint.
fn answering(s: &TcpState, by: Poster) -> Result<u32> {
    match by {
        Poster::Ep(id) => Ok(id),
        Poster::Srx(x) => {
            let user = s.eps.iter().find(|(_, e)| e.srx == Some(x));
            user.map(|(id, _)| id).ok_or(FI_ENOCQ)
        }
    }
}

/// Makes the record of a receive; `multi` as [`TcpRecv::multi`].
#[inline(always)]
fn add_recv(s: &mut TcpState, r: &RecvReq, report: bool, multi: Option<usize>) -> u32 {
    s.recvs.insert(TcpRecv {
        context: r.common.context,
        flags: FI_RECV | if r.tag.is_some() { FI_TAGGED } else { FI_MSG },
        mem: r.mem,
        report,
        multi,
        used: 0,
        live: 0,
        closed: false,
    })
}

/// Posts a receive, or peeks, claims or discards.
#[inline]
pub(crate) fn recv(s: &mut TcpState, by: Poster, r: &RecvReq) -> Result<()> {
    known(r.common.flags, RX_FLAGS, "fi_recvmsg")?;
    memory::check_receive()?;
    let at = posted_at(s, by, r)?;
    let asked = r.common.flags.unwrap_or(0) & (FI_PEEK | FI_CLAIM | FI_DISCARD);
    if asked != 0 {
        return asked_for(s, by, r, &at, asked);
    }
    // Tagged buffers take several messages only with FI_TAGGED_MULTI_RECV, which is not offered.
    let multi = (r.tag.is_none() && at.flags & FI_MULTI_RECV != 0).then_some(at.min_multi);
    let recv = add_recv(s, r, at.report, multi);
    let q = s.rxqs.get_mut(at.rxq).ok_or(FI_EBADF)?;
    if multi.is_none() {
        let Some(number) = q.take(&at.wanted) else {
            q.post(&at.wanted, recv);
            flush_after_end(s, by);
            return Ok(());
        };
        give(s, number, recv, r.mem);
        return Ok(());
    }
    q.post(&at.wanted, recv);
    // Takes as many saved messages as match and fit.
    while let Some(q) = s.rxqs.get_mut(at.rxq) {
        let Some(m) = q.find(&at.wanted).and_then(|n| s.saved.get(n)) else {
            break;
        };
        let Some(p) = q.place(&mut s.recvs, m.from, m.tag, m.len) else {
            break;
        };
        if let Some(number) = q.take(&at.wanted) {
            conn::deliver(s, number, p);
        }
    }
    flush_after_end(s, by);
    Ok(())
}

/// No message arrives any more at an endpoint whose connection has ended: what it posts ends as
/// what it had posted before.
#[inline]
fn flush_after_end(s: &mut TcpState, by: Poster) {
    if let Poster::Ep(id) = by {
        let over = |e: &TcpEp| matches!(e.msg, Some(MsgState::Over));
        if s.eps.get(id).is_some_and(over) {
            msg::flush_receives(s, id);
        }
    }
}

/// Gives a saved message to a receive of one message.
fn give(s: &mut TcpState, number: u32, recv: u32, mem: UserMem) {
    if let Some(r) = s.recvs.get_mut(recv) {
        r.live += 1;
    }
    conn::deliver(s, number, RecvPlace::whole(recv, mem));
}

/// FI_PEEK, FI_CLAIM and FI_DISCARD (fi_msg(3), fi_tagged(3)): the completion queue reports the
/// result of a peek, `FI_ENOMSG` when there is no such message.
fn asked_for(s: &mut TcpState, by: Poster, r: &RecvReq, at: &PostedAt, asked: u64) -> Result<()> {
    if asked == FI_DISCARD {
        crate::warn_log!(
            FI_LOG_EP_DATA,
            "fi_recvmsg: FI_DISCARD: wanted together with FI_PEEK or FI_CLAIM"
        );
        return Err(FI_EBADFLAGS);
    }
    let id = answering(s, by)?;
    let q = s.rxqs.get_mut(at.rxq).ok_or(FI_EBADF)?;
    if asked & FI_PEEK != 0 {
        let found = if asked & (FI_CLAIM | FI_DISCARD) != 0 {
            q.take(&at.wanted)
        } else {
            q.find(&at.wanted)
        };
        if let Some(n) = found.filter(|_| asked & FI_CLAIM != 0) {
            q.claimed.insert(r.common.context, n);
        }
        report_peek(s, id, r, found);
        if let Some(n) = found.filter(|_| asked & FI_CLAIM == 0 && asked & FI_DISCARD != 0) {
            conn::discard(s, n);
        }
        return Ok(());
    }
    let Some(number) = q.claimed.remove(&r.common.context) else {
        crate::warn_log!(
            FI_LOG_EP_DATA,
            "fi_recvmsg: FI_CLAIM: no message was claimed with this context"
        );
        return Err(FI_EINVAL);
    };
    if asked & FI_DISCARD != 0 {
        report_peek(s, id, r, Some(number));
        conn::discard(s, number);
        return Ok(());
    }
    let recv = add_recv(s, r, at.report, None);
    give(s, number, recv, r.mem);
    Ok(())
}

/// The completion of a peek, or of a claimed message that was discarded.
fn report_peek(s: &mut TcpState, id: u32, r: &RecvReq, found: Option<u32>) {
    let Some(ep) = s.eps.get(id) else { return };
    let m = found.and_then(|n| s.saved.get(n));
    let kind = if r.tag.is_some() { FI_TAGGED } else { FI_MSG };
    let mut entry = Entry {
        context: r.common.context,
        flags: FI_RECV | kind,
        tag: r.tag.map_or(0, |t| t.0),
        src: FI_ADDR_NOTAVAIL,
        ..Entry::default()
    };
    if let Some(m) = m {
        entry.len = usize::try_from(m.len).unwrap_or(usize::MAX);
        entry.tag = m.tag.unwrap_or(0);
        entry.data = m.cq_data.unwrap_or(0);
        if m.cq_data.is_some() {
            entry.flags |= FI_REMOTE_CQ_DATA;
        }
        entry.src = s.source(ep, m.from);
    }
    let here = m.is_some();
    let Some(cq) = ep.rx.and_then(|b| s.cqs.get_mut(b.cq)) else {
        return;
    };
    push_peek(cq, entry, here);
}

/// fi_cancel(3): the first posted receive of this context ends with FI_ECANCELED. Where there is
/// none, its completion has been written.
pub(crate) fn cancel(s: &mut TcpState, by: Poster, context: usize) -> Result<()> {
    let rxq = match by {
        Poster::Ep(id) => s.eps.get(id).ok_or(FI_EBADF)?.rxq,
        Poster::Srx(id) => s.srxs.get(id).ok_or(FI_EBADF)?.rxq,
    };
    let recvs = &s.recvs;
    let q = s.rxqs.get_mut(rxq).ok_or(FI_EOPBADSTATE)?;
    let hit = q.cancel(|n| recvs.get(n).is_some_and(|r| r.context == context));
    let Some(number) = hit else {
        return Ok(());
    };
    let r = s.recvs.get_mut(number).ok_or(FI_ENOENT)?;
    if r.live > 0 {
        // Messages are arriving in its buffer: the receive ends with the last of them.
        r.closed = true;
        return Ok(());
    }
    let gone = s.recvs.remove(number);
    if let (Some(r), Ok(id)) = (gone, answering(s, by)) {
        s.recv_cancelled(id, &r, "the receive was cancelled by fi_cancel");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::stream::Stream;
    use crate::prov::contract::Common;
    use crate::prov::tcp::hostile::{connected, Connected};
    use crate::prov::tcp::wire::ByteOrder;

    /// As if the application had posted it before the peer hung up.
    #[test]
    fn a_receive_after_the_end_of_its_connection_is_cancelled() {
        let Connected {
            mut s, ep, conn, ..
        } = connected(ByteOrder::Host, Stream::pair().unwrap()).unwrap();
        conn::end(&mut s, conn, FI_ECONNRESET, "hung up");
        for flags in [None, Some(FI_MULTI_RECV)] {
            let r = RecvReq {
                mem: crate::hmem::leaked(&[0; 64]),
                src: FI_ADDR_UNSPEC,
                tag: None,
                common: Common {
                    flags,
                    ..Common::default()
                },
            };
            recv(&mut s, Poster::Ep(ep), &r).unwrap();
            let (_, cq) = s.cqs.iter_mut().next().unwrap();
            assert_eq!(cq.take_error().map(|e| e.err), Some(FI_ECANCELED));
        }
    }
}
