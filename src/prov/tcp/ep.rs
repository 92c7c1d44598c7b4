//! Endpoints (fi_endpoint(3)): their bindings, settings and connections.

use super::conn;
use super::msg::MsgState;
use super::passive::TcpRequest;
use super::recvq::{forget, TcpRecvQueue};
use super::state::TcpState;
use crate::core::hash::ByWords;
use crate::core::sockaddr as addr;
use crate::core::{params, Errno, Info, Result};
use crate::device::stream::{StreamListener, BACKLOG};
use crate::proto::PeerId;
use crate::prov::contract::{EventTarget, OptionValue};
use crate::prov::reports::completion::{BoundCntrs, CntrKind};
use crate::prov::reports::endpoint::{self, inject_fits};
use crate::prov::reports::CqBinding;
use crate::types::*;
use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::time::Instant;

/// Bytes that must be left in a multi-receive buffer for it to stay posted, unless set. As the C
/// library's: programs rely on it for messages up to this length, and a shared receive context has
/// no option to set it.
pub(crate) const MIN_MULTI_RECV: usize = 16 << 10;

/// A shared receive context.
#[derive(Debug)]
pub(crate) struct TcpSrx {
    pub caps: u64,
    pub rxq: u32,
    pub flags: u64,
}

/// A failed attempt to connect that no operation has reported.
#[derive(Debug)]
pub(crate) struct Unreached {
    pub peer: SocketAddr,
    pub why: Errno,
    pub at: Instant,
}

/// One endpoint.
pub(crate) struct TcpEp {
    pub caps: u64,
    pub tx_flags: u64,
    pub rx_flags: u64,
    pub inject: usize,
    /// Operations that wait for one connection's socket at most.
    pub tx_size: usize,
    pub av: Option<u32>,
    pub tx: Option<CqBinding>,
    pub rx: Option<CqBinding>,
    pub cntrs: BoundCntrs,
    pub eq: Option<EventTarget>,
    /// State of a connected endpoint's connection; `None` for RDM endpoints.
    pub msg: Option<MsgState>,
    pub srx: Option<u32>,
    /// Its receives: its own queue, or that of a shared receive context.
    pub rxq: u32,
    pub enabled: bool,
    pub aliases: u32,
    pub min_multi_recv: usize,
    /// Where peers reach it.
    pub addr: SocketAddr,
    pub listener: Option<StreamListener>,
    /// Accepted connections that have sent no request yet, the oldest first.
    pub callers: VecDeque<u32>,
    /// The last peer that could not be connected to, and why, where no operation has reported it.
    pub unreached: Option<Unreached>,
    /// Its connections, by peer.
    pub conns: HashMap<PeerId, u32, ByWords>,
}

/// Binds to `addr`, or to any port that FI_TCP_PORT_LOW_RANGE and -HIGH_RANGE allow.
pub(crate) fn bind(addr: SocketAddr) -> Result<StreamListener> {
    let p = params::tcp();
    let (low, high) = (p.port_low_range, p.port_high_range.min(65535));
    if addr.port() != 0 || high == 0 && low == 0 {
        return bind_exactly(addr);
    }
    if low == 0 || low > high {
        crate::warn_once!(
            FI_LOG_EP_CTRL,
            "FI_TCP_PORT_LOW_RANGE {}, FI_TCP_PORT_HIGH_RANGE {}: wanted 1 to 65535, the lower \
             first: endpoints take any port",
            p.port_low_range,
            p.port_high_range
        );
        return bind_exactly(addr);
    }
    let count = high - low + 1;
    let first = crate::device::host::random() as usize % count;
    // Two endpoints that do not listen yet could reuse one port: only where no other is left.
    for i in 0..2 * count {
        let port = low + (first + i) % count;
        let mut at = addr;
        at.set_port(u16::try_from(port).unwrap_or(0));
        match StreamListener::bind(at, i >= count) {
            Err(FI_EADDRINUSE) => {}
            r => return r.map_err(|e| cannot_bind(addr, e)),
        }
    }
    crate::warn_log!(
        FI_LOG_EP_CTRL,
        "fi_endpoint: cannot bind {addr}: all ports from FI_TCP_PORT_LOW_RANGE {low} to \
         FI_TCP_PORT_HIGH_RANGE {high} are taken"
    );
    Err(FI_EADDRNOTAVAIL)
}

/// Binds to `addr`, or to any free port.
fn bind_exactly(addr: SocketAddr) -> Result<StreamListener> {
    StreamListener::bind(addr, true).map_err(|e| cannot_bind(addr, e))
}

fn cannot_bind(addr: SocketAddr, e: Errno) -> Errno {
    let text = crate::core::errno::text(e);
    crate::warn_log!(FI_LOG_EP_CTRL, "fi_endpoint: cannot bind {addr}: {text}");
    e
}

/// The source address that `info` names.
pub(crate) fn source(info: &Info) -> SocketAddr {
    let src = info.src_addr.as_deref().and_then(addr::from_raw);
    src.unwrap_or_else(|| SocketAddr::from(([0, 0, 0, 0], 0)))
}

impl TcpEp {
    /// An endpoint as `info` describes it, bound to its address and not yet enabled. `FI_EINVAL`
    /// for an info of another endpoint type, `FI_EADDRINUSE` for a port that is taken.
    pub(crate) fn new(info: &Info) -> Result<TcpEp> {
        let type_ = info.ep.as_ref().map_or(FI_EP_RDM, |e| e.type_);
        if !matches!(type_, FI_EP_RDM | FI_EP_MSG) {
            crate::warn_log!(
                FI_LOG_EP_CTRL,
                "fi_endpoint: ep_attr->type: wanted {}, had FI_EP_RDM, FI_EP_MSG",
                crate::core::tostr::ep_type(type_)
            );
            return Err(FI_EINVAL);
        }
        inject_fits(info, params::tcp().inject_most())?;
        let msg = (type_ == FI_EP_MSG).then(MsgState::default);
        // FI_TCP_PORT_LOW_RANGE and -HIGH_RANGE are for those that listen.
        let listener = match &msg {
            Some(_) => bind_exactly(source(info))?,
            None => bind(source(info))?,
        };
        Ok(TcpEp::at(info, listener.addr(), Some(listener), msg))
    }

    /// A connected endpoint that connects from a passive one's address.
    pub(crate) fn of_passive(info: &Info, l: StreamListener) -> TcpEp {
        TcpEp::at(info, l.addr(), Some(l), Some(MsgState::New))
    }

    /// A connected endpoint for a request.
    pub(crate) fn of_request(info: &Info, r: TcpRequest) -> TcpEp {
        let addr = r.stream.local_addr().unwrap_or_else(|| source(info));
        TcpEp::at(info, addr, None, Some(MsgState::Requested(r)))
    }

    pub(super) fn at(
        info: &Info,
        addr: SocketAddr,
        listener: Option<StreamListener>,
        msg: Option<MsgState>,
    ) -> TcpEp {
        let tx = info.tx.as_ref();
        TcpEp {
            caps: info.caps,
            tx_flags: tx.map_or(0, |t| t.op_flags),
            rx_flags: info.rx.as_ref().map_or(0, |r| r.op_flags),
            inject: tx.map_or(0, |t| t.inject_size),
            tx_size: tx.map_or(0, |t| t.size).max(1),
            av: None,
            tx: None,
            rx: None,
            cntrs: BoundCntrs::default(),
            eq: None,
            msg,
            srx: None,
            rxq: u32::MAX,
            enabled: false,
            aliases: 0,
            min_multi_recv: MIN_MULTI_RECV,
            addr,
            listener,
            callers: VecDeque::new(),
            unreached: None,
            conns: HashMap::default(),
        }
    }

    /// The socket at which peers connect, once the endpoint is enabled. The socket of a connected
    /// endpoint is the one from which it connects.
    fn listens_at(&self) -> Option<&StreamListener> {
        self.listener.as_ref().filter(|_| self.msg.is_none())
    }

    /// `FI_EOPBADSTATE`, with a line, once it is enabled.
    pub(crate) fn must_be_new(&self, what: &str) -> Result<()> {
        crate::prov::reports::must_be_new(self.enabled, what)
    }

    /// See [`CqBinding::bind`]; `FI_EOPBADSTATE` once it is enabled.
    pub(crate) fn bind_cq(&mut self, cq: u32, flags: u64) -> Result<()> {
        self.must_be_new("a completion queue")?;
        CqBinding::bind(cq, flags, &mut self.tx, &mut self.rx)
    }

    /// Whether it reports to this queue.
    pub(crate) fn uses_cq(&self, id: u32) -> bool {
        [self.tx, self.rx].iter().flatten().any(|b| b.cq == id)
    }

    /// See [`endpoint::set_op_flags`].
    pub(crate) fn set_op_flags(&mut self, flags: u64) -> Result<()> {
        endpoint::set_op_flags(flags, &mut self.tx_flags, &mut self.rx_flags)
    }

    /// fi_setname(3): listens elsewhere. `FI_EOPBADSTATE` once it is enabled.
    pub(crate) fn set_addr(&mut self, at: SocketAddr) -> Result<()> {
        if self.enabled {
            return Err(FI_EOPBADSTATE);
        }
        if self.listener.as_ref().is_some_and(|l| l.addr() == at) {
            return Ok(());
        }
        let l = bind(at)?;
        self.addr = l.addr();
        self.listener = Some(l);
        Ok(())
    }

    /// Value of an option; `FI_ENOPROTOOPT` for an unknown one.
    pub(crate) fn get_option(&self, name: i32) -> Result<OptionValue> {
        match name {
            FI_OPT_MIN_MULTI_RECV => Ok(OptionValue::Size(self.min_multi_recv)),
            FI_OPT_CM_DATA_SIZE => Ok(OptionValue::Size(super::wire::CONTROL_DATA_MAX)),
            FI_OPT_MAX_MSG_SIZE | FI_OPT_MAX_TAGGED_SIZE | FI_OPT_MAX_RMA_SIZE => {
                Ok(OptionValue::Size(usize::MAX))
            }
            FI_OPT_INJECT_MSG_SIZE | FI_OPT_INJECT_TAGGED_SIZE | FI_OPT_INJECT_RMA_SIZE => {
                Ok(OptionValue::Size(self.inject))
            }
            // Every endpoint of ours can be called.
            FI_OPT_FIREWALL_ADDR => Ok(OptionValue::Int(0)),
            _ => Err(FI_ENOPROTOOPT),
        }
    }

    /// Sets an option. `FI_EINVAL` for a value that cannot be met.
    pub(crate) fn set_option(&mut self, name: i32, value: OptionValue) -> Result<()> {
        match (name, value) {
            (FI_OPT_MIN_MULTI_RECV, OptionValue::Size(n)) => self.min_multi_recv = n,
            (_, OptionValue::Size(n)) if self.get_option(name)? == OptionValue::Size(n) => {}
            // Messages have no maximum: a smaller one is a hint, which changes nothing here.
            (FI_OPT_MAX_MSG_SIZE | FI_OPT_MAX_TAGGED_SIZE | FI_OPT_MAX_RMA_SIZE, _) => {}
            (
                FI_OPT_INJECT_MSG_SIZE | FI_OPT_INJECT_TAGGED_SIZE | FI_OPT_INJECT_RMA_SIZE,
                OptionValue::Size(n),
            ) if n <= self.inject => {}
            (FI_OPT_CM_DATA_SIZE, _) => return Err(FI_ENOPROTOOPT),
            _ => {
                self.get_option(name)?;
                return Err(FI_EINVAL);
            }
        }
        Ok(())
    }
}

/// Name of an option of level FI_OPT_ENDPOINT, and a value of its type.
pub(crate) fn option_kind(name: i32) -> Option<(&'static str, OptionValue)> {
    let text = match name {
        FI_OPT_MIN_MULTI_RECV => "FI_OPT_MIN_MULTI_RECV",
        FI_OPT_CM_DATA_SIZE => "FI_OPT_CM_DATA_SIZE",
        FI_OPT_MAX_MSG_SIZE => "FI_OPT_MAX_MSG_SIZE",
        FI_OPT_MAX_TAGGED_SIZE => "FI_OPT_MAX_TAGGED_SIZE",
        FI_OPT_MAX_RMA_SIZE => "FI_OPT_MAX_RMA_SIZE",
        FI_OPT_INJECT_MSG_SIZE => "FI_OPT_INJECT_MSG_SIZE",
        FI_OPT_INJECT_TAGGED_SIZE => "FI_OPT_INJECT_TAGGED_SIZE",
        FI_OPT_INJECT_RMA_SIZE => "FI_OPT_INJECT_RMA_SIZE",
        _ => return None,
    };
    Some((text, OptionValue::Size(0)))
}

/// The poller's name for an endpoint's listener.
pub(crate) fn listener_name(ep: u32) -> u64 {
    1 << 32 | u64::from(ep)
}

/// fi_enable(3): `FI_ENOAV`, `FI_ENOEQ` and `FI_ENOCQ` name what is missing.
pub(crate) fn enable(s: &mut TcpState, id: u32) -> Result<()> {
    let ep = s.eps.get_mut(id).ok_or(FI_EBADF)?;
    if ep.enabled {
        return Ok(());
    }
    match &ep.msg {
        None => ep.av.map(|_| ()).ok_or(FI_ENOAV)?,
        Some(_) => ep.eq.as_ref().map(|_| ()).ok_or(FI_ENOEQ)?,
    }
    use CntrKind::*;
    let sends = ep.caps & (FI_SEND | FI_READ | FI_WRITE) != 0;
    let receives = ep.caps & FI_RECV != 0;
    let silent_tx = ep.tx.is_none() && !ep.cntrs.any(&[Send, Write, Read]);
    let silent_rx = ep.rx.is_none() && !ep.cntrs.any(&[Recv]);
    if sends && silent_tx || receives && silent_rx {
        crate::warn_log!(
            FI_LOG_EP_CTRL,
            "fi_enable: wanted a completion queue or a counter for each direction (fi_ep_bind)"
        );
        return Err(FI_ENOCQ);
    }
    ep.rxq = match ep.srx {
        Some(x) => s.srxs.get(x).ok_or(FI_EBADF)?.rxq,
        None => s.rxqs.insert(TcpRecvQueue::default()),
    };
    if let Some(l) = ep.listens_at() {
        l.listen(BACKLOG)?;
        s.poller.add(l.fd(), listener_name(id), true, false)?;
    }
    ep.enabled = true;
    attach_queues(s, id);
    Ok(())
}

/// Adds the domain's sockets to the wait sets of its queues and counters.
fn attach_queues(s: &mut TcpState, id: u32) {
    let Some(ep) = s.eps.get(id) else { return };
    let fd = s.poller.fd();
    for b in [ep.tx, ep.rx].into_iter().flatten() {
        if let Some(cq) = s.cqs.get_mut(b.cq) {
            cq.wait.attach(id, fd);
        }
    }
    for (_, c) in ep.cntrs.each() {
        if let Some(c) = s.cntrs.get_mut(c) {
            c.wait.attach(id, fd);
        }
    }
}

/// fi_ep_bind(3) with a counter. `FI_EBADFLAGS` for unknown kinds of operations,
/// `FI_EINVAL` where another counts them.
pub(crate) fn bind_cntr(s: &mut TcpState, id: u32, cntr: u32, flags: u64) -> Result<()> {
    let ep = s.eps.get_mut(id).ok_or(FI_EBADF)?;
    endpoint::check_cntr_kinds(flags)?;
    s.cntrs.get(cntr).ok_or(FI_EBADF)?;
    ep.cntrs.bind(cntr, flags)?;
    if ep.enabled {
        attach_queues(s, id);
    }
    Ok(())
}

/// Closes an endpoint and its connections; operations in flight report no completion.
pub(crate) fn close(s: &mut TcpState, id: u32) -> Result<()> {
    let ep = s.eps.get(id).ok_or(FI_EBADF)?;
    crate::prov::contract::busy_unless(ep.aliases == 0, "endpoint", "aliases")?;
    let conns = s.conns.select(|c| c.ep == id);
    for c in conns {
        conn::drop_conn(s, c);
    }
    let gone: HashSet<u32> = s.saved.select(|m| m.ep == id).into_iter().collect();
    let Some(ep) = s.eps.get_mut(id) else {
        return Ok(());
    };
    // An endpoint that was never enabled has no receive queue.
    if let Some(q) = s.rxqs.get_mut(ep.rxq) {
        q.drop_messages(|n| gone.contains(&n));
    }
    for n in gone {
        forget(s, n);
    }
    let Some(ep) = s.eps.remove(id) else {
        return Ok(());
    };
    s.paused_listeners.retain(|(e, _)| *e != id);
    if let Some(to) = &ep.eq {
        to.forget();
    }
    if let Some(l) = ep.listens_at().filter(|_| ep.enabled) {
        s.poller.remove(l.fd());
        // A forked child may have the socket as well.
        l.stop();
    }
    if ep.srx.is_none() {
        drop_receives(s, ep.rxq);
    }
    // A queue that other endpoints use still waits for the sockets.
    let fd = s.poller.fd();
    let mut cqs: Vec<u32> = [ep.tx, ep.rx].iter().flatten().map(|b| b.cq).collect();
    cqs.dedup();
    for b in cqs {
        if let Some(cq) = s.cqs.get_mut(b) {
            cq.wait
                .detach(id, if cq.wait.eps.len() > 1 { -1 } else { fd });
        }
    }
    let mut cntrs: Vec<u32> = ep.cntrs.each().map(|(_, c)| c).collect();
    cntrs.sort_unstable();
    cntrs.dedup();
    for c in cntrs {
        if let Some(c) = s.cntrs.get_mut(c) {
            c.wait
                .detach(id, if c.wait.eps.len() > 1 { -1 } else { fd });
        }
    }
    Ok(())
}

/// Removes a receive queue with its receives.
pub(crate) fn drop_receives(s: &mut TcpState, rxq: u32) {
    if let Some(mut q) = s.rxqs.remove(rxq) {
        while let Some(r) = q.cancel(|_| true) {
            s.recvs.free(r);
        }
    }
}
