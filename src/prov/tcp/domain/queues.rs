//! Completion queues of a domain (fi_cq(3)): reading, which makes progress on its connections, and
//! waiting.

use super::TcpDomain;
use crate::core::yielding::YieldBackoff;
use crate::core::{errno, Errno, Result};
use crate::device::host;
use crate::prov::contract::*;
use crate::prov::reports::blocking::{self, Armed, BlockingQueues};
use crate::prov::reports::cq::Cq;
use crate::prov::reports::domain::{note_yield, ReportingDomain};
use crate::prov::reports::PolledObject;
use crate::prov::tcp::progress::{progress, progress_for, settle};
use crate::types::*;
use std::sync::Arc;

/// Connections that are asked, before a yield, where their peers run.
const PEERS_ASKED: usize = 16;

impl TcpDomain {
    /// Yields the processor after empty polls: a polling caller may keep its peer from running.
    #[cold]
    pub(super) fn yield_processor(&self, polled: PolledObject) -> Errno {
        let (peer_here, yields_alone) = {
            let s = &mut *self.lock();
            let conns = s.conns.iter().take(PEERS_ASKED);
            let peer_here = conns.filter_map(|(_, c)| c.shares_processor()).max();
            let polled = polled.backoff_and_eps(&mut s.cqs, &mut s.cntrs);
            (peer_here, polled.is_some_and(|(p, _)| p.yields_alone()))
        };
        let ran = YieldBackoff::yield_to_peer(peer_here, yields_alone, host::context_switches);
        note_yield(&mut *self.lock(), polled, ran);
        FI_EAGAIN
    }

    /// For how long the application may sleep where a call of the library's own may for `most`
    /// milliseconds: the progress thread keeps the time limits of connections, if there is one.
    pub(super) fn sleep_limit(&self, most: i32) -> i32 {
        match self.thread.started() {
            true => -1,
            false => most,
        }
    }
}

impl CompletionQueues for TcpDomain {
    fn open_cq(self: &Arc<Self>, size: usize, wait_obj: fi_wait_obj) -> Result<OpenedQueue> {
        self.insert_cq(Cq::new(size, wait_obj)?)
    }

    fn close_cq(&self, id: u32) -> Result<()> {
        let mut s = self.lock_control();
        let used = s.eps.iter().any(|(_, e)| e.uses_cq(id));
        busy_unless(!used, "completion queue", "endpoints bound to it")?;
        s.cqs.remove(id).map(|_| ()).ok_or(FI_EBADF)
    }

    #[inline]
    fn read_cq<const NAMED: bool>(
        &self,
        id: u32,
        count: usize,
        each: impl Fn(usize, &Entry) + Copy,
    ) -> Result<usize> {
        {
            let mut s = self.lock_for_progress();
            let cq = s.cqs.get_mut(id).ok_or(FI_EBADF)?;
            let n = cq.take_ready(count, each);
            if n > 0 {
                return Ok(n);
            }
            progress_for(&mut s, PolledObject::Cq(id));
            let cq = s.cqs.get_mut(id).ok_or(FI_EBADF)?;
            cq.moved();
            let n = cq.take(count, each);
            if n > 0 {
                cq.backoff.note_found();
                return Ok(n);
            }
            if cq.error_next() {
                return Err(FI_EAVAIL);
            }
            if cq.note_empty_poll().is_some() {
                drop(s);
                self.end_empty_poll();
                return Err(FI_EAGAIN);
            }
        }
        Err(self.yield_processor(PolledObject::Cq(id)))
    }

    fn sread_cq(
        &self,
        id: u32,
        count: usize,
        threshold: usize,
        timeout_ms: i32,
        each: impl Fn(usize, &Entry) + Copy,
    ) -> Result<usize> {
        blocking::sread(self, id, count, threshold, timeout_ms, each)
    }

    fn read_cq_error(&self, id: u32) -> Result<ErrEntry> {
        let mut s = self.lock_for_progress();
        let cq = s.cqs.get_mut(id).ok_or(FI_EBADF)?;
        if !cq.error_next() {
            progress(&mut s);
        }
        s.cqs.get_mut(id).and_then(Cq::take_error).ok_or(FI_EAGAIN)
    }

    fn error_text(prov_errno: i32) -> String {
        errno::text(prov_errno).to_string()
    }

    fn find_completions(&self, id: u32) -> Result<bool> {
        let mut s = self.lock_for_progress();
        progress_for(&mut s, PolledObject::Cq(id));
        self.has_completions(s, id)
    }

    fn arm_cq(&self, id: u32) -> Result<i32> {
        let (_, most) = blocking::arm(self, id)?;
        Ok(self.sleep_limit(most))
    }

    fn signal_cq(&self, id: u32) -> Result<()> {
        self.interrupt_cq(id)
    }
}

impl BlockingQueues for TcpDomain {
    fn prepare_cq(&self, id: u32) -> Result<Armed> {
        let mut s = self.lock_for_progress();
        let most = settle(&mut s);
        let cq = s.cqs.get_mut(id).ok_or(FI_EBADF)?;
        cq.arm().map(|set| (set, most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::registry::Query;
    use crate::core::sockaddr as addr;
    use crate::core::version;
    use crate::prov::tcp::conn::ConnState;
    use crate::prov::tcp::wire::{emit_control, ControlKind, Hello, RDM_VERSION};
    use crate::prov::tcp::Tcp;
    use std::io::Write;
    use std::net::TcpListener;

    /// An endpoint of the default kind, and the address of a listener.
    struct CallingEndpoint {
        d: std::sync::Arc<TcpDomain>,
        cq: u32,
        cntr: u32,
        ep: u32,
        to: fi_addr_t,
    }

    fn caller_of(there: &TcpListener) -> CallingEndpoint {
        let q = Query {
            api: version(1, 21),
            node: Some("127.0.0.1"),
            ..Query::default()
        };
        let all = Tcp.getinfo(&q).unwrap();
        let rdm = |i: &&crate::core::Info| i.ep.as_ref().unwrap().type_ == FI_EP_RDM;
        let mut info = all.iter().find(rdm).unwrap().clone();
        info.domain.as_mut().unwrap().progress = FI_PROGRESS_MANUAL;
        let fabric = info.fabric.as_ref().unwrap().name.clone().unwrap();
        let d = TcpDomain::open(Fabric::new(&fabric, version(1, 21)), info.clone()).unwrap();
        let attr = AvAttr {
            type_: FI_AV_TABLE,
            count: 1,
            rx_ctx_bits: 0,
            name: None,
            reader: false,
        };
        let av = d.open_av(&attr).unwrap();
        let cq = d.open_cq(0, FI_WAIT_FD).unwrap().id;
        let cntr = d.open_cntr(FI_CNTR_EVENTS_COMP, FI_WAIT_FD).unwrap().id;
        let ep = d.open_ep(&info).unwrap();
        d.bind_av(ep, av).unwrap();
        d.bind_cq(ep, cq, FI_TRANSMIT | FI_RECV).unwrap();
        d.bind_cntr(ep, cntr, FI_SEND).unwrap();
        d.enable_ep(ep).unwrap();
        let raw = addr::to_raw(&there.local_addr().unwrap());
        let to = d.insert_addr(av, &raw).unwrap();
        CallingEndpoint {
            d,
            cq,
            cntr,
            ep,
            to,
        }
    }

    /// What a refused call reads may give the connection's number to another peer's connection.
    #[test]
    fn a_call_that_had_to_wait_is_refused_even_when_its_connection_opens() {
        let there = TcpListener::bind("127.0.0.1:0").unwrap();
        let CallingEndpoint { d, ep, to, .. } = caller_of(&there);
        let inject = || {
            d.send(
                ep,
                &MsgReq {
                    data: SendData::Inject((&[1u8; 8][..]).into()),
                    to,
                    tag: None,
                    cq_data: None,
                    common: Common::default(),
                },
            )
        };
        let state = || {
            let s = d.lock();
            let state = s.conns.iter().next().map(|(_, c)| c.state);
            state
        };
        assert_eq!(inject(), Err(FI_EAGAIN));
        let (mut far, _) = there.accept().unwrap();
        while state() != Some(ConnState::Requested) {
            assert_eq!(inject(), Err(FI_EAGAIN));
        }
        let hello = Hello {
            version: RDM_VERSION,
            features: 0,
            port: there.local_addr().unwrap().port(),
            pid: 1,
        };
        let answer = emit_control(ControlKind::Accept, &hello.emit());
        far.write_all(&answer).unwrap();
        while state() == Some(ConnState::Requested) {
            assert_eq!(inject(), Err(FI_EAGAIN));
        }
        assert_eq!((state(), inject()), (Some(ConnState::Open), Ok(())));
    }

    /// Only a call that makes progress tries again to connect to a peer that has hung up.
    #[test]
    fn blocked_calls_return_while_a_connection_is_being_made() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let CallingEndpoint {
            d,
            cq,
            cntr,
            ep,
            to,
        } = caller_of(&listener);
        assert_eq!((d.arm_cq(cq), d.arm_cntr(cntr, 1, 0)), (Ok(-1), Ok(-1)));
        let send = MsgReq {
            data: SendData::User(crate::hmem::leaked(&[1; 8])),
            to,
            tag: None,
            cq_data: None,
            common: Common::default(),
        };
        d.send(ep, &send).unwrap();
        drop(listener.accept().unwrap());
        let limited = |most: Result<i32>| most.is_ok_and(|most| most >= 0);
        // The connection, and then its end.
        while !limited(d.arm_cq(cq)) {
            std::thread::yield_now();
        }
        assert!(limited(d.arm_cq(cq)) && limited(d.arm_cntr(cntr, 1, 0)));
    }

    #[test]
    fn of_queues_read_in_turn_few_reads_make_progress() {
        let there = TcpListener::bind("127.0.0.1:0").unwrap();
        let CallingEndpoint { d, cq, cntr, .. } = caller_of(&there);
        let progress_of = |read: &dyn Fn()| {
            let before = d.lock().turns;
            read();
            d.lock().turns - before
        };
        let read_cq = || {
            let read = d.read_cq::<false>(cq, 1, |_, _| {});
            assert_eq!(read, Err(FI_EAGAIN));
        };
        let read_cntr = || assert_eq!(d.read_cntr(cntr), Ok((0, 0)));
        let last_progress = |at| d.lock().progressed_at = at;
        // The first read, and further reads of one queue alone.
        assert_eq!(progress_of(&read_cq), 1);
        assert_eq!(progress_of(&read_cq), 1);
        last_progress(u64::MAX);
        assert_eq!(progress_of(&read_cntr), 0);
        last_progress(0);
        assert_eq!(progress_of(&read_cntr), 1);
        last_progress(u64::MAX);
        assert_eq!(progress_of(&read_cq), 0);
        assert_eq!(progress_of(&read_cntr), 1);
    }
}
