//! Starting operations: sends, reads and writes (fi_msg(3), fi_tagged(3), fi_rma(3)); receives in
//! `recv`.

mod recv;

pub(crate) use recv::{cancel, recv};

use super::conn::{conn_for, post, Conn, ConnState, Then};
use super::progress::poll_sockets;
use super::state::{TcpState, TxOp};
use super::wire::{Head, XnetOp, DELIVERY_COMPLETE};
use crate::core::iovs::{Iovs, RmaIov};
use crate::core::{memory, params, Result};
use crate::hmem::{InjectBuf, UserMem};
use crate::prov::contract::{Call, Common, MsgReq, RmaReq, SendBuffer, SendData};
use crate::prov::reports::completion::{reported, rma_flags, send_flags, CntrKind};
use crate::prov::reports::flags::{known, SEND_FLAGS};
use crate::prov::reports::reports;
use crate::transport::Completion;
use crate::types::*;

/// Flags that `fi_sendmsg`, `fi_tsendmsg`, `fi_writemsg` and `fi_readmsg` may carry.
const TX_FLAGS: u64 = SEND_FLAGS | FI_COMMIT_COMPLETE;
/// Completion levels for which the peer has to answer.
const CONFIRMED: u64 =
    FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE | FI_COMMIT_COMPLETE;

/// A checked operation of the transmit side, and its connection.
struct TxStart {
    conn: u32,
    op: TxOp,
}

/// Checks an operation, and finds its connection.
#[inline]
fn start(
    s: &mut TcpState,
    id: u32,
    to: fi_addr_t,
    data: &SendData,
    (common, flags): (&Common, u32),
) -> Result<TxStart> {
    memory::check_operation()?;
    let ep = s.eps.get(id).ok_or(FI_EBADF)?;
    if !ep.enabled {
        return Err(FI_EOPBADSTATE);
    }
    if data.injected() && data.len() > ep.inject {
        return too_long(data.len(), ep.inject);
    }
    let given = common.flags_or(ep.tx_flags);
    let unsignaled = common.unsignaled(data.injected());
    let kind = CntrKind::of(flags);
    // An injected message whose success is not reported asks for no confirmation: MPI libraries
    // have a confirmed completion level as the default of an endpoint, and inject most messages.
    let counted = ep.cntrs.of(kind).is_some();
    let end_is_reported = kind != CntrKind::Send || !unsignaled || counted;
    let mut op = TxOp {
        ep: id,
        done: Completion {
            context: common.context,
            len: data.len(),
            flags,
            report: reported(!unsignaled && reports(ep.tx, given)),
            ..Completion::default()
        },
        confirmed: given & CONFIRMED != 0 && end_is_reported,
        silent: unsignaled,
    };
    let tx_size = ep.tx_size;
    let conn = match &ep.msg {
        None => {
            let peer = s.peer_of(ep, to)?;
            op.done.peer = peer;
            conn_for(s, id, peer, unsignaled)?
        }
        Some(m) => {
            let n = m.conn()?;
            let open = s.conns.get(n).is_some_and(|c| c.state == ConnState::Open);
            open.then_some(n).ok_or(FI_ENOTCONN)?
        }
    };
    // The end of an unsignaled operation is not reported, so that the endpoint may be closed at
    // once: the data has to be in the socket, not to wait for a connection.
    let waits = |c: &Conn| !has_room(c, tx_size, data) || unsignaled && c.state != ConnState::Open;
    if s.conns.get(conn).is_some_and(waits) {
        // Makes progress for callers that try again without reading a queue. What is read may
        // replace the connection, and its number is another peer's then: the next call finds it.
        poll_sockets(s);
        return Err(FI_EAGAIN);
    }
    s.bursts.announce(given & FI_MORE != 0);
    Ok(TxStart { conn, op })
}

/// Most operations that wait for one peer's socket, and bytes of those that were copied.
const QUEUE_MAX: usize = 1 << 16;
const COPIES_MAX: usize = 64 << 20;
/// Nanoseconds in which the socket takes nothing, for one more operation than `tx_size`.
const EACH_NS: u64 = 50_000;

/// Whether one more operation with this data may wait for the socket: up to `tx_size` at once, and
/// one more for each [`EACH_NS`] in which the socket takes nothing. MPI libraries do nothing else
/// while a send is refused: a peer that computes would hold up all others. Senders that the
/// receiver cannot keep up with are held up.
#[inline(always)]
fn has_room(c: &Conn, tx_size: usize, data: &SendData) -> bool {
    c.queued() < tx_size || may_wait(c, tx_size, data)
}

/// As [`has_room`], of a queue that has `tx_size` operations or more.
#[cold]
fn may_wait(c: &Conn, tx_size: usize, data: &SendData) -> bool {
    let copied = if data.injected() { data.len() } else { 0 };
    let most = QUEUE_MAX.min(COPIES_MAX / copied.max(1));
    let more = c.queued() - tx_size;
    c.queued() < most && c.full_for() / EACH_NS > more as u64
}

#[cold]
fn too_long(len: usize, limit: usize) -> Result<TxStart> {
    crate::warn_log!(
        FI_LOG_EP_DATA,
        "inject (tx_attr->inject_size) of {len} bytes: at most {limit}"
    );
    Err(FI_EMSGSIZE)
}

fn then(st: &TxStart) -> Then {
    match st.op.confirmed {
        true => Then::Acknowledged(st.op),
        false => Then::Done(st.op),
    }
}

/// Tagged messages longer than this part of what a receiver keeps are announced: should it keep no
/// more, its connection is not read, and what comes behind the message waits with it.
const ANNOUNCED_PART: usize = 16;

/// Sends a message. `FI_EAGAIN` when too many messages wait for the peer's socket, `FI_EINVAL` for
/// an unknown destination, `FI_EMSGSIZE` when an injected message is longer than the limit.
#[inline]
pub(crate) fn send(s: &mut TcpState, id: u32, r: &MsgReq<SendData>) -> Result<()> {
    known(r.common.flags, TX_FLAGS, "fi_sendmsg")?;
    let flags = send_flags(r.tag.is_some());
    let st = start(s, id, r.to, &r.data, (&r.common, flags))?;
    let op = if r.tag.is_some() {
        XnetOp::Tagged
    } else {
        XnetOp::Msg
    };
    let mut h = Head::new(op, r.data.len() as u64);
    h.cq_data = r.cq_data;
    h.tag = r.tag.unwrap_or(0);
    if st.op.confirmed {
        h.flags = DELIVERY_COMPLETE;
    }
    if let (XnetOp::Tagged, SendData::User(mem)) = (op, &r.data) {
        let kept = s.saved_total / ANNOUNCED_PART;
        if mem.len() > params::tcp().max_saved_size.min(kept) {
            if let Some(done) = announce(s, &st, &h, mem) {
                return done;
            }
        }
    }
    post(s, st.conn, &h, &r.data, then(&st));
    Ok(())
}

/// Announces a long message (RTS) to a peer that supports announcements. `None`: the caller sends
/// the message.
fn announce(s: &mut TcpState, st: &TxStart, h: &Head, mem: &UserMem) -> Option<Result<()>> {
    let c = s.conns.get_mut(st.conn)?;
    let number = c.next_announcement()?;
    let Some(number) = number else {
        return Some(Err(FI_EAGAIN));
    };
    c.announced(number, st.op, *mem);
    let h = Head {
        op: XnetOp::TaggedRts,
        op_data: number,
        announced: mem.len() as u64,
        payload: 0,
        ..*h
    };
    post(
        s,
        st.conn,
        &h,
        &SendData::Inject(InjectBuf::default()),
        Then::Nothing,
    );
    Some(Ok(()))
}

/// Reads or writes remote memory. Errors as [`send`].
#[inline]
pub(crate) fn rma(s: &mut TcpState, id: u32, r: &RmaReq<SendData>) -> Result<()> {
    let iov = RmaIov {
        addr: r.addr,
        len: r.data.len() as u64,
        key: r.key,
    };
    access(s, id, r, Iovs::new(&[iov]).unwrap_or_default())
}

/// As [`rma`], with several pieces of remote memory, of which the local memory's length is used.
/// `FI_EINVAL` when the local memory is longer than they are together.
pub(crate) fn rma_pieces(
    s: &mut TcpState,
    id: u32,
    r: &RmaReq<SendData>,
    remote: &Iovs,
) -> Result<()> {
    let len = r.data.len() as u64;
    let Some(used) = remote.first(len) else {
        crate::warn_log!(
            FI_LOG_EP_DATA,
            "fi_readmsg or fi_writemsg: {} pieces of remote memory of {:?} bytes together, wanted \
             as many as the local memory has, {len}, or more",
            remote.count(),
            remote.total()
        );
        return Err(FI_EINVAL);
    };
    access(s, id, r, used)
}

#[inline]
fn access(s: &mut TcpState, id: u32, r: &RmaReq<SendData>, iovs: Iovs) -> Result<()> {
    let call = if r.write { "fi_writemsg" } else { "fi_readmsg" };
    known(r.common.flags, TX_FLAGS, call)?;
    let st = start(s, id, r.peer, &r.data, (&r.common, rma_flags(r.write)))?;
    if r.write {
        let mut h = Head::new(XnetOp::Write, r.data.len() as u64);
        (h.iovs, h.cq_data) = (iovs, r.cq_data);
        if st.op.confirmed {
            h.flags = DELIVERY_COMPLETE;
        }
        post(s, st.conn, &h, &r.data, then(&st));
    } else {
        let mut h = Head::new(XnetOp::ReadReq, 0);
        h.iovs = iovs;
        let then = Then::Answered(st.op, r.data.lent());
        post(
            s,
            st.conn,
            &h,
            &SendData::Inject(InjectBuf::default()),
            then,
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::stream::{Stream, StreamRead};
    use crate::prov::reports::cntr::Cntr;
    use crate::prov::tcp::hostile::{connected, Connected};
    use crate::prov::tcp::wire::{parse, ByteOrder};

    /// Whether a message of 8 bytes asks its receiver for a confirmation.
    fn asks(s: &mut TcpState, ep: u32, far: &mut Stream, flags: Option<u64>) -> bool {
        let r = MsgReq {
            data: SendData::Inject((&[1u8; 8][..]).into()),
            to: 0,
            tag: None,
            cq_data: None,
            common: Common {
                flags,
                ..Common::default()
            },
        };
        send(s, ep, &r).unwrap();
        let mut bytes = [0; 64];
        let Ok(StreamRead::Bytes(n)) = far.recv(&UserMem::EMPTY, &mut bytes) else {
            panic!("nothing was sent");
        };
        parse(&bytes[..n - 8], ByteOrder::Host).unwrap().wants_ack()
    }

    /// MPICH injects short messages through endpoints with FI_TRANSMIT_COMPLETE.
    #[test]
    fn a_message_is_confirmed_only_if_its_completion_is_reported() {
        let Connected {
            mut s, ep, mut far, ..
        } = connected(ByteOrder::Host, Stream::pair().unwrap()).unwrap();
        s.eps.get_mut(ep).unwrap().tx_flags = FI_COMPLETION | FI_TRANSMIT_COMPLETE;
        assert!(!asks(&mut s, ep, &mut far, None));
        let flags = FI_INJECT | FI_COMPLETION | FI_TRANSMIT_COMPLETE;
        assert!(asks(&mut s, ep, &mut far, Some(flags)));
        let cntr = s
            .cntrs
            .insert(Cntr::new(FI_CNTR_EVENTS_COMP, FI_WAIT_NONE).unwrap());
        s.eps
            .get_mut(ep)
            .unwrap()
            .cntrs
            .bind(cntr, FI_SEND)
            .unwrap();
        assert!(asks(&mut s, ep, &mut far, None));
    }

    /// MPI libraries do nothing else while a send is refused.
    #[test]
    fn a_peer_that_computes_is_sent_more_than_its_socket_takes() {
        let Connected {
            mut s,
            ep,
            conn,
            far: _far,
        } = connected(ByteOrder::Host, Stream::pair().unwrap()).unwrap();
        s.eps.get_mut(ep).unwrap().tx_size = 256;
        let mut posted = |full_for: u64, data: &SendData| {
            s.conns.get_mut(conn).unwrap().set_full_for(full_for);
            let post = |_: &usize| {
                let m = MsgReq {
                    data: *data,
                    to: 0,
                    tag: None,
                    cq_data: None,
                    common: Common::default(),
                };
                send(&mut s, ep, &m) == Ok(())
            };
            (0..100_000).take_while(post).count()
        };
        let bytes = [0; 4096];
        let inject = SendData::Inject((&bytes[..]).into());
        let hour = 3_600_000_000_000;
        // Until the socket is full, and a little more on a slow machine.
        posted(0, &inject);
        posted(hour, &inject);
        assert_eq!(posted(hour, &inject), 0);
        let long = posted(hour, &SendData::User(crate::hmem::leaked(&bytes)));
        assert_eq!(long, QUEUE_MAX - COPIES_MAX / bytes.len());
    }
}
