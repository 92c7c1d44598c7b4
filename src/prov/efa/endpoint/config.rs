//! The settings of an endpoint as the data path uses them, computed when one of them changes.

use super::{EndpointKind, Ep};
use crate::proto::COLLECTIVE_TAG;
use crate::prov::contract::Call;
use crate::prov::efa::info::DGRAM_PREFIX;
use crate::prov::efa::ops::DELIVERED;
use crate::prov::reports::completion::CntrKind;
use crate::prov::reports::{reports, reports_call, CqBinding};
use crate::types::*;

/// See the module text.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DataPathConfig {
    /// Longest message, and injected one: untagged, tagged.
    pub(crate) message_max: [usize; 2],
    pub(crate) inject_max: [usize; 2],
    /// Whether the endpoint has RMA; its longest read or write, its longest injected write, bytes.
    pub(crate) rma: bool,
    pub(crate) rma_max: usize,
    pub(crate) inject_rma_max: usize,
    /// Whether messages have tags, and bits that a tag must not have.
    pub(crate) tags: bool,
    pub(crate) tag_forbidden: u64,
    /// Longest message that is one packet of the protocol; longest request of the adapter's.
    pub(crate) packet_max: usize,
    pub(crate) max_rdma: usize,
    /// How operations of the transmit side are reported if the call has no flags.
    tx: TxMode,
    /// Injected messages without flags end when they are delivered.
    injects_delivered: bool,
    /// Sends are counted.
    counts_sends: bool,
    /// The address vector, or `u32::MAX`.
    pub(crate) av: u32,
    /// The CQ of the transmit side.
    pub(crate) tx_cq: Option<u32>,
    /// Whether receives report success, and to which CQ.
    pub(crate) rx_entries: bool,
    pub(crate) rx_cq: Option<u32>,
    /// Receives wait in the endpoint's own queue, each for one message.
    pub(crate) receives_plain: bool,
    /// Receives are posted to the adapter.
    pub(crate) receives_native: bool,
    /// Receives may name a source (FI_DIRECTED_RECV); completions do (FI_SOURCE).
    pub(crate) directed: bool,
    pub(crate) source: bool,
    /// Every call is a request of the adapter's, whose completions are taken one by one.
    pub(crate) completes_in_place: bool,
    /// Packets are read in place, from the adapter's receive buffers.
    pub(crate) polls_packets: bool,
    /// The only CQ that this endpoint reports to, if `completes_in_place`; else `u32::MAX`.
    pub(crate) only_cq: u32,
    /// The CQ of received messages where they come from rings, or `u32::MAX`.
    pub(crate) ring_cq: u32,
    /// A counter is bound to the endpoint.
    pub(crate) counts: bool,
}

/// How an operation of the transmit side is reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TxMode {
    /// Success is reported by an entry in the completion queue.
    pub(crate) entry: bool,
    /// It ends when its message is in the receiver's memory (FI_DELIVERY_COMPLETE).
    pub(crate) delivery: bool,
}

impl DataPathConfig {
    /// Longest message of a kind.
    #[inline(always)]
    pub(crate) fn longest(&self, tagged: bool, injected: bool) -> usize {
        let [msg, tag] = if injected {
            self.inject_max
        } else {
            self.message_max
        };
        if tagged {
            tag
        } else {
            msg
        }
    }
}

impl Ep {
    /// How an operation of the transmit side is reported, from the flags of its call.
    #[inline(always)]
    pub(crate) fn tx_mode<C: Call>(&self, call: &C, injected: bool) -> TxMode {
        if C::PLAIN {
            let TxMode { entry, delivery } = self.config.tx;
            let entry = entry && !injected;
            return TxMode { entry, delivery };
        }
        let flags = call.flags_or(self.tx_flags);
        TxMode {
            entry: !call.unsignaled(injected) && reports_call(self.tx, flags, call),
            delivery: flags & DELIVERED != 0,
        }
    }

    /// As [`Ep::tx_mode`], of a message. A message whose completion is not reported needs no
    /// delivery report: MPI libraries have FI_DELIVERY_COMPLETE as the default of an endpoint, and
    /// inject most messages.
    #[inline(always)]
    pub(crate) fn send_mode<C: Call>(&self, call: &C, injected: bool) -> TxMode {
        if C::PLAIN && injected {
            return TxMode {
                entry: false,
                delivery: self.config.injects_delivered,
            };
        }
        let mode = self.tx_mode(call, injected);
        if C::PLAIN {
            return mode;
        }
        let reported = mode.entry || self.config.counts_sends || call.is_work();
        TxMode {
            delivery: mode.delivery && reported,
            ..mode
        }
    }

    /// Computes the configuration anew, after a setting has changed, and has routes chosen again.
    pub(in crate::prov::efa) fn configure_data_path(&mut self) {
        let o = &self.opts;
        let native = self.live.as_ref().and_then(|l| l.qp.native_ref());
        let rings = self
            .live
            .as_ref()
            .is_some_and(|l| self.kind.uses_shm(&l.qp));
        let completes_in_place = native.is_some_and(|q| q.completes_in_place());
        let [tx, rx] = [self.tx, self.rx].map(|b: Option<CqBinding>| b.map(|b| b.cq));
        // The prefix of a datagram's buffer (FI_MSG_PREFIX) is not sent.
        let prefix = if self.kind == EndpointKind::Dgram {
            DGRAM_PREFIX
        } else {
            0
        };
        let delivery = self.tx_flags & DELIVERED != 0;
        let counts_sends = self.cntrs.of(CntrKind::Send).is_some();
        self.config = DataPathConfig {
            message_max: [o.max_msg_size, o.max_tagged_size],
            inject_max: [o.inject_msg_size, o.inject_tagged_size].map(|n| n.saturating_add(prefix)),
            rma: match self.kind {
                EndpointKind::Rdm => true,
                EndpointKind::Direct => self.caps & FI_RMA != 0,
                EndpointKind::Dgram => false,
            },
            rma_max: o.max_rma_size,
            inject_rma_max: o.inject_rma_size,
            tags: self.kind == EndpointKind::Rdm,
            tag_forbidden: match self.caps & FI_COLLECTIVE {
                0 => 0,
                _ => COLLECTIVE_TAG,
            },
            packet_max: self.live.as_ref().map_or(0, |l| l.proto.eager_most()),
            max_rdma: self.max_rdma,
            tx: TxMode {
                entry: reports(self.tx, self.tx_flags),
                delivery,
            },
            injects_delivered: delivery && counts_sends,
            counts_sends,
            av: self.av.unwrap_or(u32::MAX),
            tx_cq: tx,
            rx_entries: reports(self.rx, self.rx_flags),
            rx_cq: rx,
            receives_plain: rings && self.srx.is_none() && self.rx_flags & FI_MULTI_RECV == 0,
            receives_native: completes_in_place,
            directed: self.caps & FI_DIRECTED_RECV != 0,
            source: self.caps & FI_SOURCE != 0,
            completes_in_place,
            polls_packets: self
                .live
                .as_ref()
                .is_some_and(|l| rings && l.qp.polls_packets()),
            only_cq: tx
                .or(rx)
                .filter(|q| completes_in_place && rx.is_none_or(|r| r == *q))
                .unwrap_or(u32::MAX),
            ring_cq: rx
                .filter(|_| rings && !completes_in_place)
                .unwrap_or(u32::MAX),
            counts: self.cntrs.any(&CntrKind::ALL),
        };
        if let Some(l) = &mut self.live {
            l.routes.clear();
        }
    }
}
