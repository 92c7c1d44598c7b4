//! Data transfer and collectives of a domain's endpoints: each call takes the domain's lock once.

use super::{EfaDomain, State};
use crate::core::{Errno, Result};
use crate::device::{Device, QueuePair};
use crate::hmem::UserMem;
use crate::proto::AtomicKind;
use crate::prov::contract::*;
use crate::prov::efa::ops::atomic::AtomicRoom;
use crate::prov::efa::ops::{self, collective, deferred};
use crate::prov::efa::progress::progress;
use crate::prov::efa::select::ROUTE_PENDING;
use crate::shm::ShmEndpoint;
use crate::types::*;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the first operation to a peer on this host waits for the reply to its ring request,
/// without the lock: an application that has sent one message need not poll for it to leave.
const ROUTE_WAIT: Duration = Duration::from_millis(10);
/// How long fi_close of an endpoint waits for its deferred operations to start.
const CLOSE_WAIT: Duration = Duration::from_secs(1);
/// Time between two checks of them.
const CLOSE_PAUSE: Duration = Duration::from_micros(100);

impl EfaDomain {
    /// The result of an operation. One that is kept because its peer has been called succeeds, once
    /// the peer has answered or a moment later.
    #[inline(always)]
    fn answered(&self, ep: u32, sent: Result<()>) -> Result<()> {
        match sent {
            Ok(()) => Ok(()),
            Err(e) => self.not_started(ep, e),
        }
    }

    #[cold]
    #[inline(never)]
    fn not_started(&self, ep: u32, e: Errno) -> Result<()> {
        match e {
            ROUTE_PENDING => {
                self.wait_for_answer(ep);
                Ok(())
            }
            e => {
                // What was posted with FI_MORE goes out when a call fails (fi_msg(3)).
                if let Some(qp) = self.lock().eps.get_mut(ep).and_then(|e| e.qp_mut()) {
                    qp.ring();
                }
                Err(e)
            }
        }
    }

    /// Starts what is deferred, because an endpoint is about to be closed: a message that the
    /// application has injected is still sent. At most [`CLOSE_WAIT`].
    pub(super) fn send_deferred(&self, ep: u32) {
        let until = Instant::now() + CLOSE_WAIT;
        // What is behind a fence may never start.
        let starts = || {
            let s = self.lock_control();
            let e = s.eps.get(ep).filter(|e| e.aliases == 0);
            e.is_some_and(|e| e.deferred.firsts().any(|w| !w.is_fenced()))
        };
        while starts() && Instant::now() < until {
            self.wait_for_answer(ep);
            std::thread::sleep(CLOSE_PAUSE);
        }
    }

    fn wait_for_answer(&self, ep: u32) {
        let until = Instant::now() + ROUTE_WAIT;
        let mut of = None;
        loop {
            // The peer's event thread replies, whatever its application does; do our thread's work
            // here.
            crate::shm::poll_events();
            crate::shm::clear_answers();
            // Also for a thread that closes an endpoint.
            let mut s = self.lock_control();
            progress(&mut s, ep);
            // An answer that was found becomes a route with the next look.
            if shm_endpoint(&s, ep).is_some_and(ShmEndpoint::lost) {
                progress(&mut s, ep);
            }
            let answer = shm_endpoint(&s, ep).and_then(|h| h.tx.pending_answer());
            drop(s);
            // The peer that was called last; another may be stopped.
            let answer = answer.filter(|a| *of.get_or_insert(a.conn) == a.conn);
            match answer {
                Some(answer) if Instant::now() < until => answer.wait(1),
                _ => return,
            }
        }
    }
}

fn shm_endpoint(s: &State, ep: u32) -> Option<&ShmEndpoint> {
    s.eps.get(ep)?.live.as_ref()?.shm_ep.as_ref()
}

impl Transfers for EfaDomain {
    #[inline(always)]
    fn send<D: SendBuffer, C: Call>(&self, ep: u32, r: &MsgReq<D, C>) -> Result<()> {
        let sent = ops::send(&mut self.lock(), ep, r);
        self.answered(ep, sent)
    }

    #[inline(always)]
    fn recv<M: RecvBuffer, C: Call>(&self, who: Poster, r: &RecvReq<M, C>) -> Result<()> {
        ops::recv::recv(&mut self.lock(), who, r)
    }

    #[inline(always)]
    fn rma<D: SendBuffer, C: Call>(&self, ep: u32, r: &RmaReq<D, C>) -> Result<()> {
        let sent = ops::rma::rma(&mut self.lock(), ep, r);
        self.answered(ep, sent)
    }

    #[inline(always)]
    fn atomic<D: SendBuffer, M: RecvBuffer, T: AtomicMemory, C: Call>(
        &self,
        ep: u32,
        r: &AtomicReq<D, M, T, C>,
    ) -> Result<()> {
        let sent = ops::atomic::atomic(&mut self.lock(), ep, r);
        self.answered(ep, sent)
    }

    fn atomic_count(&self, dt: fi_datatype, op: fi_op, call: AtomicCall) -> Result<usize> {
        let kind = match call {
            AtomicCall::Write => AtomicKind::Write { receipt: true },
            AtomicCall::Fetch => AtomicKind::Fetch,
            AtomicCall::Compare => AtomicKind::Compare,
        };
        let room = AtomicRoom::of(self.lock_control().dev.attr());
        ops::atomic::atomic_count(room, dt, op, kind)
    }

    fn trigger(&self, t: Trigger) -> Result<()> {
        deferred::trigger(&mut self.lock(), t)
    }

    fn cancel_work(&self, name: usize) -> Result<()> {
        deferred::cancel(&mut self.lock_control(), name)
    }

    fn flush_work(&self) {
        deferred::flush(&mut self.lock_control());
    }
}

impl Collectives for EfaDomain {
    const SET_ADDR: fi_addr_t = collective::SET_ADDR;

    fn query_collective(
        &self,
        what: fi_collective_op,
        dt: fi_datatype,
        op: fi_op,
    ) -> Result<(usize, usize)> {
        collective::query(what, dt, op)
    }

    fn collective(
        &self,
        ep: u32,
        r: &CollReq,
        mem: impl FnOnce(Needs) -> Result<(UserMem, UserMem)>,
        alloc: Alloc,
    ) -> Result<()> {
        collective::collective(&mut self.lock(), ep, r, mem, alloc)
    }

    fn members(&self, ep: u32, group: fi_addr_t) -> Result<usize> {
        collective::members(&self.lock(), ep, group)
    }

    fn joinable(&self, ep: u32, addr: fi_addr_t) -> bool {
        collective::joinable(&self.lock_control(), ep, addr)
    }

    fn join(
        &self,
        ep: u32,
        addrs: &[fi_addr_t],
        report_to: (Arc<Eq>, EqEvent),
        alloc: Alloc,
        made: impl FnOnce(fi_addr_t),
    ) -> Result<()> {
        let mut s = self.lock_control();
        made(collective::join(&mut s, ep, addrs, report_to, alloc)?);
        Ok(())
    }

    fn leave(&self, group: fi_addr_t) -> Result<()> {
        collective::leave(&mut self.lock_control(), group)
    }
}
