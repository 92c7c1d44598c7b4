//! Endpoints and shared receive contexts of a domain (fi_endpoint(3)).

use super::EfaDomain;
use crate::core::{Info, Result};
use crate::device::Device;
use crate::prov::contract::{
    busy_unless, Connections, Endpoints, EventTarget, OptionValue, Poster,
};
use crate::prov::efa::endpoint::{self, Ep, Srx};
use crate::prov::efa::ops;
use crate::types::*;
use std::convert::Infallible;
use std::sync::Arc;

impl EfaDomain {
    /// Runs `f` on an endpoint.
    fn with_ep<T>(&self, ep: u32, f: impl FnOnce(&mut Ep) -> T) -> Result<T> {
        self.lock_control().eps.get_mut(ep).map(f).ok_or(FI_EBADF)
    }
}

impl Endpoints for EfaDomain {
    fn open_ep(&self, info: &Info) -> Result<u32> {
        crate::core::memory::check()?;
        let mut s = self.lock_control();
        let e = Ep::new(info, self.direct(), s.dev.attr())?;
        Ok(s.eps.insert(e))
    }

    fn enable_ep(&self, ep: u32) -> Result<()> {
        let fd = endpoint::enable(&mut self.lock_control(), ep)?;
        self.watch(fd);
        Ok(())
    }

    fn close_ep(&self, ep: u32) -> Result<()> {
        self.send_deferred(ep);
        let (mut closed, fd) = endpoint::close(&mut self.lock_control(), ep)?;
        if let Some(fd) = fd {
            self.unwatch(fd);
        }
        // Outside the lock: this waits until the last packets are sent.
        drop(closed.live.take());
        let table = self.lock_control().table.clone();
        table.iter().for_each(|t| t.drop_done());
        if !closed.cut_off.is_empty() {
            endpoint::cancel_shared(&mut self.lock_control(), &closed);
        }
        Ok(())
    }

    fn alias_ep(&self, ep: u32, opens: bool) -> Result<()> {
        self.with_ep(ep, |e| match opens {
            true => e.aliases += 1,
            false => e.aliases -= 1,
        })
    }

    fn bind_av(&self, ep: u32, av: u32) -> Result<()> {
        self.with_ep(ep, |e| e.bind_av(av))?
    }

    fn bind_eq(&self, ep: u32, to: EventTarget) -> Result<()> {
        self.with_ep(ep, |e| e.eq = Some(to.eq))
    }

    fn bind_cq(&self, ep: u32, cq: u32, flags: u64) -> Result<()> {
        self.with_ep(ep, |e| e.bind_cq(cq, flags))?
    }

    fn bind_cntr(&self, ep: u32, cntr: u32, flags: u64) -> Result<()> {
        endpoint::bind_cntr(&mut self.lock_control(), ep, cntr, flags)
    }

    fn bind_srx(&self, ep: u32, srx: u32) -> Result<()> {
        self.with_ep(ep, |e| e.bind_srx(srx))?
    }

    fn op_flags(&self, ep: u32, recv: bool) -> Result<u64> {
        self.with_ep(ep, |e| e.op_flags(recv))
    }

    fn set_op_flags(&self, ep: u32, flags: u64) -> Result<()> {
        self.with_ep(ep, |e| e.set_op_flags(flags))?
    }

    fn option_kind(name: i32) -> Option<(&'static str, OptionValue)> {
        endpoint::options::option_kind(name)
    }

    fn get_option(&self, ep: u32, name: i32) -> Result<OptionValue> {
        self.with_ep(ep, |e| e.getopt(name))?
    }

    fn set_option(&self, ep: u32, name: i32, value: OptionValue) -> Result<()> {
        let dev = Arc::clone(&self.lock_control().dev);
        self.with_ep(ep, |e| e.setopt(name, value, &dev))?
    }

    fn name(&self, ep: u32) -> Result<Vec<u8>> {
        endpoint::name(&self.lock_control(), ep).map(|raw| raw.to_vec())
    }

    fn set_name(&self, ep: u32, raw: &[u8]) -> Result<()> {
        endpoint::set_name(&mut self.lock_control(), ep, raw)
    }

    fn cancel(&self, who: Poster, context: usize) -> Result<()> {
        ops::recv::cancel(&mut self.lock(), who, context)
    }

    fn open_contexts(&self, info: &Info) -> Result<Vec<u32>> {
        endpoint::open_contexts(&mut self.lock_control(), info)
    }

    fn close_context(&self, ep: u32, side: usize) {
        endpoint::close_context(&mut self.lock_control(), ep, side);
    }

    fn open_srx(&self, caps: Option<u64>, flags: u64) -> Result<u32> {
        Ok(Srx::open(&mut self.lock_control(), &self.info, caps, flags))
    }

    fn close_srx(&self, srx: u32) -> Result<()> {
        let mut s = self.lock_control();
        let used = s.eps.iter().any(|(_, e)| e.uses_srx(srx));
        busy_unless(!used, "shared receive context", "endpoints bound to it")?;
        Srx::close(&mut s, srx);
        Ok(())
    }
}

/// Reliable datagrams need no connections.
impl Connections for EfaDomain {
    type Passive = Infallible;
    type Request = Infallible;
}
