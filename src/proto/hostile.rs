//! Harness of a connected peer that sends arbitrary packets to one [`Endpoint`]: for the fuzz
//! target `proto_hostile` and a test with random seeds.
//!
//! A byte string is a script: it chooses what the application posts, which packets the peer sends,
//! and when the adapter finishes a packet or a read. The harness's [`Port`] checks every effect:
//!
//! - bytes are stored only where a posted receive, a read, a fetching atomic or a region expects
//!   them;
//! - an operation completes once, and only when no adapter read writes to its memory;
//! - calls of [`Port::expect`] come in pairs;
//! - what the endpoint keeps for the peer stays below its budget.
//!
//! A script ends with the peer's death, after which every operation must have completed.

mod port;

use super::*;
use crate::core::script::Script;
use crate::types::*;
use crate::wire::{Opt, Repr, Rta, RtaKind, Rtm, RtmKind, Rtr, Rtw, RtwKind, HEADER_MAX};
use port::{AppMemory, HostilePort, PostedKind, Use};

const MTU: usize = 512;
const PEER: PeerId = 1;
/// Bytes that the endpoint may keep of early messages; see [`Config::early_max`].
const EARLY_MAX: usize = 16 << 10;
const UNEXPECTED_MAX: usize = 256 << 10;
const REGION_LEN: u64 = 4096;
const KEY: u64 = 0x1122_3344_5566_7788;

/// One endpoint and the hostile peer.
struct Bench {
    ep: Endpoint,
    rq: RecvQueue,
    port: HostilePort,
}

/// The first `len` bytes of the peer's region.
fn region(len: u64) -> Iovs {
    let piece = RmaIov {
        addr: 0,
        len,
        key: KEY,
    };
    Iovs::new(&[piece]).unwrap_or_default()
}

impl Bench {
    fn iovs(&mut self) -> Iovs {
        let s = &mut self.port.script;
        let key = if s.one_in(8) { 0 } else { KEY };
        let v = RmaIov {
            addr: s.length(),
            len: s.length(),
            key,
        };
        let more = RmaIov {
            addr: 0,
            len: s.length(),
            key,
        };
        let both = [v, more];
        let n = if s.one_in(8) { 2 } else { 1 };
        Iovs::new(both.get(..n).unwrap_or(&both)).unwrap_or_default()
    }

    /// Sends a packet from the peer. The script selects its fields; numbers are mostly ones in use.
    fn packet(&mut self) {
        let repr = self.header();
        let s = &mut self.port.script;
        let mut bytes = vec![0; HEADER_MAX];
        let n = repr.emit(Some(9), &mut bytes);
        bytes.truncate(n);
        let payload = (s.length() as usize).min(MTU.saturating_sub(n));
        bytes.resize(n + payload, 0x5a);
        if s.one_in(32) {
            let at = usize::from(s.byte()) % bytes.len().max(1);
            let value = s.byte();
            if let Some(b) = bytes.get_mut(at) {
                *b = value;
            }
        }
        self.ep.packet(PEER, &bytes, &mut self.rq, &mut self.port);
    }

    /// The header of a packet of the peer.
    fn header(&mut self) -> Repr {
        let iovs = self.iovs();
        let s = &mut self.port.script;
        let (id, other) = (s.below(6), s.below(6));
        let msg_id = if s.one_in(16) {
            s.length() as u32
        } else {
            s.below(12)
        };
        let (length, offset, extra) = (s.length(), s.length(), s.length());
        let opt = Opt {
            cq_data: s.flip().then_some(7),
            ..Opt::default()
        };
        let tag = s.flip().then(|| u64::from(s.below(2)));
        let receipt = s.flip().then_some(other);
        let kind = s.below(24);
        let rtm = |kind, after_nack| {
            Repr::Rtm(Rtm {
                msg_id,
                tag,
                opt,
                kind,
                receipt,
                after_nack,
            })
        };
        let rtw = |kind, after_nack| {
            Repr::Rtw(Rtw {
                opt,
                to: iovs,
                kind,
                receipt,
                after_nack,
            })
        };
        match kind {
            0 => rtm(RtmKind::Eager, false),
            1 => rtm(RtmKind::Medium { length, offset }, false),
            2 => rtm(
                RtmKind::LongCts {
                    length,
                    send_id: id,
                    credits: 1,
                },
                false,
            ),
            3 => rtm(
                RtmKind::LongCts {
                    length,
                    send_id: id,
                    credits: 1,
                },
                true,
            ),
            4 | 5 => rtm(
                RtmKind::LongRead {
                    length,
                    send_id: id,
                    from: iovs,
                },
                false,
            ),
            6 => rtm(
                RtmKind::RuntRead {
                    length,
                    send_id: id,
                    offset,
                    runt: extra,
                    from: iovs,
                },
                false,
            ),
            7 => rtw(RtwKind::Eager, false),
            8 => rtw(
                RtwKind::LongCts {
                    length,
                    send_id: id,
                    credits: 1,
                },
                false,
            ),
            9 => rtw(
                RtwKind::LongRead {
                    length,
                    send_id: id,
                    from: iovs,
                },
                false,
            ),
            10 => Repr::Rtr(Rtr {
                opt,
                from: iovs,
                length,
                recv_id: id,
                window: s.flip().then_some(extra as u32),
            }),
            11 => Repr::Rta(Rta {
                msg_id,
                opt,
                to: iovs,
                datatype: FI_UINT64,
                op: FI_SUM,
                kind: match s.below(3) {
                    0 => RtaKind::Write,
                    1 => RtaKind::WriteReceipt(id),
                    _ => RtaKind::Fetch(id),
                },
            }),
            _ => self.answer_header(kind, [id, other, msg_id], [length, offset]),
        }
    }

    /// The header of a packet about an operation of either side.
    fn answer_header(
        &mut self,
        kind: u32,
        [id, other, msg_id]: [u32; 3],
        [length, offset]: [u64; 2],
    ) -> Repr {
        let (tx, rx) = (self.ep.number(true, id), self.ep.number(false, id));
        let s = &mut self.port.script;
        match kind {
            12 | 13 => Repr::Cts {
                send_id: tx,
                recv_id: other,
                length,
                read: s.flip(),
            },
            14..=16 => Repr::CtsData {
                recv_id: rx,
                length,
                offset,
            },
            17 => Repr::ReadRsp {
                recv_id: rx,
                send_id: other,
                length,
            },
            18 | 19 => Repr::AtomRsp {
                recv_id: tx,
                length,
            },
            20 => Repr::Eor {
                send_id: tx,
                recv_id: other,
            },
            21 => Repr::ReadNack {
                send_id: tx,
                recv_id: other,
            },
            22 => Repr::Receipt { tx_id: tx, msg_id },
            _ => Repr::PeerError {
                op_id: if other % 2 == 0 { tx } else { rx },
                kind: s.below(4),
                errno: other,
            },
        }
    }

    /// The application posts something.
    fn post(&mut self) {
        let script = &mut self.port.script;
        let (what, len) = (script.below(6), u64::from(script.byte()) * 16);
        let tag = script.flip().then_some(0);
        let multi = script.one_in(8);
        match what {
            0 | 1 => self.post_recv(len, tag, multi),
            2 => self.post_send(len, tag),
            3 => self.post_write(len),
            4 => self.post_read(len),
            _ => self.post_atomic(),
        }
    }

    fn post_recv(&mut self, len: u64, tag: Option<u64>, multi: bool) {
        let ctx = self.port.add(Use::Destination, len);
        let a = RecvArgs {
            src: ANY,
            ctx,
            len,
            tagged: tag.is_some(),
            tag: 0,
            ignore: 1,
            multi: multi.then_some(64),
        };
        if let Some(u) = self.rq.post(&a) {
            let place = Place::whole(ctx, len);
            self.ep
                .start_unexpected(place, &u, &mut self.rq, &mut self.port);
        }
        if multi {
            while let Some((u, p)) = self.rq.fill(&a, |r| r.what.context as u32) {
                self.ep
                    .start_unexpected(p, &u, &mut self.rq, &mut self.port);
            }
        }
    }

    fn post_send(&mut self, len: u64, tag: Option<u64>) {
        let ctx = self.port.add(Use::Source, len);
        let receipt = self.port.script.flip();
        let a = SendArgs {
            peer: PEER,
            ctx,
            len,
            tag,
            cq_data: None,
            receipt,
            inject: false,
        };
        let r = self.ep.send(&a, &mut self.port);
        self.posted(ctx, r);
    }

    fn post_write(&mut self, len: u64) {
        let ctx = self.port.add(Use::Source, len);
        let a = WriteArgs {
            peer: PEER,
            ctx,
            len,
            to: region(len),
            cq_data: None,
            inject: false,
        };
        let r = self.ep.write(&a, &mut self.port);
        self.posted(ctx, r);
    }

    fn post_read(&mut self, len: u64) {
        let ctx = self.port.add(Use::Destination, len);
        let a = ReadArgs {
            peer: PEER,
            ctx,
            len,
            from: region(len),
        };
        let r = self.ep.read(&a, &mut self.port);
        self.posted(ctx, r);
    }

    fn post_atomic(&mut self) {
        let fetch = self.port.script.flip();
        let used = if fetch { Use::Destination } else { Use::Source };
        let ctx = self.port.add(used, 8);
        let a = AtomicArgs {
            peer: PEER,
            ctx,
            to: region(8),
            datatype: FI_UINT64,
            op: FI_SUM,
            kind: match fetch {
                true => AtomicKind::Fetch,
                false => AtomicKind::Write { receipt: true },
            },
            data: &[1; 8],
        };
        let r = self.ep.atomic(&a, &mut self.port);
        self.posted(ctx, r);
    }

    /// A call that was refused has done nothing: its memory is the application's again.
    fn posted(&mut self, ctx: u32, r: crate::core::Result<()>) {
        if r.is_err() {
            let m = self.port.memory.remove(&ctx);
            assert!(m.is_some(), "a refused operation has completed");
        }
    }

    /// Completes one packet or read, with or without an error.
    fn finish(&mut self, at: usize, failed: bool) {
        let f = failed.then_some(Failure {
            errno: FI_EIO,
            status: 8,
        });
        match self.port.posted.swap_remove(at) {
            PostedKind::Packet(id) => self.ep.packet_done(id, f, &mut self.port),
            PostedKind::Read { id, into } => {
                if let Some(m) = self.port.memory.get_mut(&into.ctx) {
                    m.reads -= 1;
                }
                self.ep.read_done(id, f, &mut self.rq, &mut self.port);
            }
        }
    }

    fn step(&mut self) {
        match self.port.script.below(8) {
            0 | 1 => self.post(),
            2..=4 => self.packet(),
            5 if !self.port.posted.is_empty() => {
                let n = self.port.posted.len() as u32;
                let at = self.port.script.below(n) as usize;
                let failed = self.port.script.one_in(8);
                self.finish(at, failed);
            }
            6 => self.ep.progress(&mut self.port),
            _ => {
                let id = self.port.script.below(8);
                if self.port.script.one_in(64) {
                    let why = Failure {
                        errno: FI_ECONNABORTED,
                        status: 13,
                    };
                    self.ep.peer_down(PEER, why, &mut self.rq, &mut self.port);
                } else if self.port.script.flip() {
                    let target = |m: &AppMemory| matches!(m.used, Use::Target { .. });
                    if self.port.memory.get(&id).is_some_and(target) {
                        let reads = self.ep.close_targets(|ctx| ctx == id);
                        for read in reads {
                            self.cancel(read);
                        }
                    }
                }
            }
        }
        assert!(
            self.ep.early_bytes(PEER) <= EARLY_MAX,
            "early messages beyond their budget"
        );
        assert!(
            self.rq.bytes() <= UNEXPECTED_MAX + MTU + 4096,
            "unexpected messages"
        );
    }

    /// The adapter takes back all reads of transfer `id`.
    fn cancel(&mut self, id: u32) {
        let of = |p: &PostedKind| matches!(p, PostedKind::Read { id: i, .. } if *i == id);
        while let Some(at) = self.port.posted.iter().position(of) {
            self.finish(at, true);
        }
    }
}

/// An endpoint whose peer and adapter a script drives.
fn bench(bytes: &[u8]) -> Bench {
    let cfg = Config {
        id: 0,
        mtu: MTU,
        raw_addr: [1; 32],
        device_version: 0xefa2,
        connid: 5,
        features: crate::wire::extra::RDMA_READ,
        hmem_p2p: None,
        policy: Policy {
            max_medium: 1500,
            min_read: 2500,
            min_read_write: 2500,
            read_segment: 700,
            runt: if bytes.len().is_multiple_of(2) {
                0
            } else {
                600
            },
        },
        early_max: EARLY_MAX,
    };
    Bench {
        ep: Endpoint::new(cfg),
        rq: RecvQueue::default(),
        port: HostilePort::new(Script::new(bytes)),
    }
}

/// Runs a script. Panics where an invariant of the module text does not hold.
pub fn run(bytes: &[u8]) {
    let mut b = bench(bytes);
    while !b.port.script.over() {
        // As in the provider: senders wait while too many bytes are unexpected.
        if b.rq.bytes() > UNEXPECTED_MAX {
            break;
        }
        b.step();
    }
    let why = Failure {
        errno: FI_ECONNABORTED,
        status: 13,
    };
    b.ep.peer_down(PEER, why, &mut b.rq, &mut b.port);
    while !b.port.posted.is_empty() {
        b.finish(0, true);
    }
    b.ep.peer_down(PEER, why, &mut b.rq, &mut b.port);
    assert_eq!(
        (b.ep.sending(), b.ep.receiving()),
        (0, 0),
        "operations are left over"
    );
    assert_eq!(b.port.awaited, 0, "answers are still awaited");
    let left = |m: &&AppMemory| !matches!(m.used, Use::Destination);
    assert_eq!(b.port.memory.values().find(left).map(|m| m.used), None);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::script;

    /// Found by the fuzz target: a read that waits for its answer ends, and its number goes to
    /// another operation.
    #[test]
    fn an_unanswered_read_that_ends_is_forgotten() {
        run(&[
            10, 255, 255, 255, 255, 255, 158, 42, 33, 39, 33, 33, 33, 33, 46, 255, 255, 255, 255,
            255, 58, 138, 10, 158, 158, 158, 42, 1, 1, 255, 0, 0, 41, 33, 255, 255, 255, 255, 158,
        ]);
    }

    /// The first bytes of the C library's runting read can be the whole message. Its sender is done
    /// when they have left: an EOR would end another operation of this number.
    #[test]
    fn a_runting_read_that_reads_nothing_sends_no_eor() {
        for (length, eors) in [(64, 0), (100, 1)] {
            // The script lets the adapter take every packet and read.
            let mut b = bench(&[10; 64]);
            let ctx = b.port.add(Use::Destination, 100);
            let posted = b.rq.post(&RecvArgs {
                src: ANY,
                ctx,
                len: 100,
                tagged: false,
                tag: 0,
                ignore: 0,
                multi: None,
            });
            assert!(posted.is_none());
            let piece = RmaIov {
                addr: 0,
                len: length,
                key: KEY,
            };
            let request = Repr::Rtm(Rtm {
                msg_id: 0,
                tag: None,
                opt: Opt::default(),
                kind: RtmKind::RuntRead {
                    length,
                    send_id: 3,
                    offset: 0,
                    runt: 64,
                    from: Iovs::new(&[piece]).unwrap(),
                },
                receipt: None,
                after_nack: false,
            });
            let mut bytes = vec![0; HEADER_MAX];
            let n = request.emit(Some(9), &mut bytes);
            bytes.truncate(n);
            bytes.resize(n + 64, 0x5a);
            b.ep.packet(PEER, &bytes, &mut b.rq, &mut b.port);
            while !b.port.posted.is_empty() {
                b.finish(0, false);
            }
            assert_eq!((b.port.completions, b.port.eors), (1, eors));
        }
    }

    #[test]
    fn a_hostile_peer_breaks_no_invariant() {
        let failed = script::failing(crate::proto::sim::seeds(3000), run);
        assert!(failed.is_empty(), "seeds {failed:?}");
    }
}
