//! Endpoints and shared receive contexts of a domain (fi_endpoint(3)).

use super::TcpDomain;
use crate::core::sockaddr as addr;
use crate::core::{Info, Result};
use crate::prov::contract::{
    busy_unless, Connections, Endpoints, EventTarget, OnRequest, OptionValue, Poster,
};
use crate::prov::progress_thread;
use crate::prov::tcp::ep::{self, TcpEp, TcpSrx};
use crate::prov::tcp::passive::{TcpPassive, TcpRequest};
use crate::prov::tcp::recvq::TcpRecvQueue;
use crate::prov::tcp::state::TcpState;
use crate::prov::tcp::wire::CONTROL_DATA_MAX;
use crate::prov::tcp::{conn, msg, ops};
use crate::types::*;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long sockets that are about to be closed may take nothing of what is queued, and how long
/// they are waited for in all.
const REST_STALL: Duration = Duration::from_secs(2);
const REST_WAIT: Duration = Duration::from_secs(10);

impl TcpDomain {
    /// Runs `f` on an endpoint.
    fn with_ep<T>(&self, ep: u32, f: impl FnOnce(&mut TcpEp) -> T) -> Result<T> {
        self.lock_control().eps.get_mut(ep).map(f).ok_or(FI_EBADF)
    }

    /// Waits a little, holding no lock, for the sockets of an endpoint's connections to take what
    /// is queued, before they are closed.
    fn send_rest(&self, ep: u32) {
        let begun = Instant::now();
        while begun.elapsed() < REST_WAIT {
            let Some(rest) = conn::send_rest(&mut self.lock_control(), ep) else {
                return;
            };
            if rest.full_for.min(begun.elapsed()) >= REST_STALL {
                return;
            }
            crate::device::wait::poll_fd(rest.full, libc::POLLOUT, 10);
        }
    }
}

impl Endpoints for TcpDomain {
    fn open_ep(&self, info: &Info) -> Result<u32> {
        crate::core::memory::check()?;
        let e = TcpEp::new(info)?;
        Ok(self.lock_control().eps.insert(e))
    }

    fn enable_ep(&self, ep: u32) -> Result<()> {
        ep::enable(&mut self.lock_control(), ep)
    }

    fn close_ep(&self, ep: u32) -> Result<()> {
        let closes = |s: &TcpState| s.eps.get(ep).is_some_and(|e| e.aliases == 0);
        if closes(&self.lock_control()) {
            self.send_rest(ep);
        }
        ep::close(&mut self.lock_control(), ep)
    }

    fn alias_ep(&self, ep: u32, opens: bool) -> Result<()> {
        self.with_ep(ep, |e| match opens {
            true => e.aliases += 1,
            false => e.aliases -= 1,
        })
    }

    fn bind_av(&self, ep: u32, av: u32) -> Result<()> {
        self.with_ep(ep, |e| {
            e.must_be_new("an address vector")?;
            if e.av.is_some() {
                return Err(FI_EINVAL);
            }
            e.av = Some(av);
            Ok(())
        })?
    }

    fn bind_eq(&self, ep: u32, to: EventTarget) -> Result<()> {
        self.with_ep(ep, |e| e.eq = Some(to))
    }

    fn bind_cq(&self, ep: u32, cq: u32, flags: u64) -> Result<()> {
        self.with_ep(ep, |e| e.bind_cq(cq, flags))?
    }

    fn bind_cntr(&self, ep: u32, cntr: u32, flags: u64) -> Result<()> {
        ep::bind_cntr(&mut self.lock_control(), ep, cntr, flags)
    }

    fn bind_srx(&self, ep: u32, srx: u32) -> Result<()> {
        self.with_ep(ep, |e| {
            e.must_be_new("a shared receive context")?;
            if e.srx.is_some() {
                return Err(FI_EINVAL);
            }
            e.srx = Some(srx);
            Ok(())
        })?
    }

    fn op_flags(&self, ep: u32, recv: bool) -> Result<u64> {
        self.with_ep(ep, |e| if recv { e.rx_flags } else { e.tx_flags })
    }

    fn set_op_flags(&self, ep: u32, flags: u64) -> Result<()> {
        self.with_ep(ep, |e| e.set_op_flags(flags))?
    }

    fn option_kind(name: i32) -> Option<(&'static str, OptionValue)> {
        ep::option_kind(name)
    }

    fn get_option(&self, ep: u32, name: i32) -> Result<OptionValue> {
        self.with_ep(ep, |e| e.get_option(name))?
    }

    fn set_option(&self, ep: u32, name: i32, value: OptionValue) -> Result<()> {
        self.with_ep(ep, |e| e.set_option(name, value))?
    }

    fn name(&self, ep: u32) -> Result<Vec<u8>> {
        self.with_ep(ep, |e| addr::to_raw(&e.addr))
    }

    fn set_name(&self, ep: u32, raw: &[u8]) -> Result<()> {
        let at = addr::from_raw(raw).ok_or(FI_EINVAL)?;
        self.with_ep(ep, |e| e.set_addr(at))?
    }

    fn cancel(&self, who: Poster, context: usize) -> Result<()> {
        ops::cancel(&mut self.lock(), who, context)
    }

    fn open_srx(&self, caps: Option<u64>, flags: u64) -> Result<u32> {
        let mut s = self.lock_control();
        let caps = caps.unwrap_or(self.caps);
        let rxq = s.rxqs.insert(TcpRecvQueue::default());
        Ok(s.srxs.insert(TcpSrx { caps, rxq, flags }))
    }

    fn close_srx(&self, srx: u32) -> Result<()> {
        let mut s = self.lock_control();
        let s = &mut *s;
        let used = s.eps.iter().any(|(_, e)| e.srx == Some(srx));
        busy_unless(!used, "shared receive context", "endpoints bound to it")?;
        let x = s.srxs.remove(srx).ok_or(FI_EBADF)?;
        ep::drop_receives(s, x.rxq);
        Ok(())
    }
}

impl Connections for TcpDomain {
    type Passive = TcpPassive;
    type Request = TcpRequest;

    fn open_passive(info: &Info) -> Result<TcpPassive> {
        TcpPassive::open(info)
    }

    fn listen(p: &TcpPassive, on_request: OnRequest<TcpRequest>) -> Result<()> {
        p.listen(on_request)
    }

    fn stop_listening(p: &TcpPassive) {
        p.stop();
    }

    fn passive_name(p: &TcpPassive) -> Result<Vec<u8>> {
        Ok(addr::to_raw(&p.addr()?))
    }

    fn set_passive_name(p: &TcpPassive, raw: &[u8]) -> Result<()> {
        p.set_addr(addr::from_raw(raw).ok_or(FI_EINVAL)?)
    }

    fn set_backlog(p: &TcpPassive, n: i32) -> Result<()> {
        p.set_backlog(n)
    }

    fn connection_data_size() -> usize {
        CONTROL_DATA_MAX
    }

    fn reject(r: TcpRequest, data: &[u8]) -> Result<()> {
        r.reject(data);
        Ok(())
    }

    fn open_requested_ep(&self, info: &Info, r: TcpRequest) -> Result<u32> {
        let e = TcpEp::of_request(info, r);
        Ok(self.lock_control().eps.insert(e))
    }

    fn open_ep_of_passive(&self, info: &Info, p: &TcpPassive) -> Result<u32> {
        let e = TcpEp::of_passive(info, p.take_socket()?);
        Ok(self.lock_control().eps.insert(e))
    }

    fn connect(self: &Arc<Self>, ep: u32, to: &[u8], data: &[u8]) -> Result<()> {
        let to = addr::from_raw(to).ok_or(FI_EINVAL)?;
        // An application that waits for the event reads no queue that would make progress.
        progress_thread::start(self)?;
        msg::connect(&mut self.lock_control(), ep, to, data)
    }

    fn accept(self: &Arc<Self>, ep: u32, data: &[u8]) -> Result<()> {
        progress_thread::start(self)?;
        msg::accept(&mut self.lock_control(), ep, data)
    }

    fn socket(&self, ep: u32) -> Result<i32> {
        msg::socket(&self.lock_control(), ep)
    }

    fn shutdown(&self, ep: u32) -> Result<()> {
        self.send_rest(ep);
        msg::shutdown(&mut self.lock_control(), ep)
    }

    fn peer_name(&self, ep: u32) -> Result<Vec<u8>> {
        Ok(addr::to_raw(&msg::peer(&self.lock_control(), ep)?))
    }
}
