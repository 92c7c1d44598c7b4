//! Bursts: short messages to one peer, one call after the other, share packets.
//!
//! A message that leaves at once takes its sender the whole way through the kernels of both hosts,
//! some 2 us between two of one machine; one that is added to a packet which waits takes 0.4. So
//! the first [`ALONE`] messages of a burst leave at once, and each further one is sent with
//! MSG_MORE (send(2)). The next call that makes progress or takes completions ends the burst, and
//! the packet leaves.
//!
//! An application that computes after a burst makes no such call for a while. Then the kernel
//! sends the packet when it is full or when the peer acknowledges what was before it, 0.2 s later
//! at worst. Messages are held only while the application is known to end its bursts soon (see
//! [`crate::core::burst`]). Messages posted with FI_MORE, and answers that one call sends, are held
//! in any case.
//!
//! Invariant: what is held is in the socket, so that it arrives although the process ends.

use super::state::TcpState;
use crate::core::burst::{BurstTrust, ALONE};
use crate::device::stream::Stream;

/// What a late burst costs: the peer's kernel may wait 40 ms before it acknowledges the messages
/// before.
const LATE: i32 = 16_384;

/// See the module text.
#[derive(Debug)]
pub(crate) struct Bursts {
    /// Calls so far that end a burst.
    ends: u32,
    /// There is something to do when the burst ends.
    open: bool,
    trust: BurstTrust,
    /// The next message was posted with FI_MORE.
    announced: bool,
    /// Messages come from a call that makes progress, which sends them off itself.
    answering: bool,
    /// Connections whose sockets hold messages.
    held: Vec<u32>,
    /// Messages may be held: not so while the system does it, by FI_TCP_NODELAY=0.
    allowed: bool,
}

/// A connection's part in the present burst.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ConnBurst {
    /// Which burst: `Bursts::ends` when it began.
    of: u32,
    count: u32,
    /// It is in `Bursts::held`.
    held: bool,
    /// Bytes that the socket holds.
    bytes: usize,
    /// Bytes of a packet ([`Stream::segment`]), once they are known.
    segment: Option<usize>,
}

impl ConnBurst {
    /// Bytes of a packet ([`Stream::segment`]).
    pub(super) fn segment(&mut self, stream: &Stream) -> usize {
        *self.segment.get_or_insert_with(|| stream.segment())
    }

    /// Adds a message of `len` bytes to the packet that waits, if it fits. A packet more, and the
    /// kernel would have the rest wait for an acknowledgement: 64 messages of 1 KiB took 12 us each
    /// so, and 2 alone.
    fn take_room(&mut self, len: usize, stream: &Stream) -> bool {
        let segment = self.segment(stream);
        let fits = self.bytes + len <= segment;
        self.bytes = if fits { self.bytes + len } else { 0 };
        fits
    }
}

impl Bursts {
    pub(super) fn new(allowed: bool) -> Bursts {
        Bursts {
            ends: 0,
            open: false,
            trust: BurstTrust::new(LATE),
            announced: false,
            answering: false,
            held: Vec::new(),
            allowed,
        }
    }

    /// Whether the next message has FI_MORE.
    #[inline]
    pub(super) fn announce(&mut self, more: bool) {
        self.announced = more;
    }

    /// Messages until [`answered`] come from a call that makes progress.
    #[inline]
    pub(super) fn answering(&mut self) {
        self.answering = true;
    }

    /// Whether a message of connection `id`, which is about to leave, is held.
    #[inline]
    pub(super) fn holds(
        &mut self,
        id: u32,
        conn: &mut ConnBurst,
        len: usize,
        stream: &Stream,
    ) -> bool {
        if conn.of != self.ends {
            *conn = ConnBurst {
                of: self.ends,
                segment: conn.segment,
                ..ConnBurst::default()
            };
        }
        conn.count += 1;
        let announced = core::mem::take(&mut self.announced);
        if !announced && conn.count <= ALONE || !self.allowed {
            return false;
        }
        self.open = true;
        let at_once = announced || self.answering;
        let trusted = !at_once && self.trust.may_wait(len);
        let holds = (at_once || trusted) && conn.take_room(len, stream);
        if trusted && !holds {
            self.trust.left_alone();
        }
        if holds && !conn.held {
            conn.held = true;
            self.held.push(id);
        }
        holds
    }
}

/// Ends the burst: what is held leaves.
#[inline]
pub(super) fn end(s: &mut TcpState) {
    s.bursts.ends = s.bursts.ends.wrapping_add(1);
    if s.bursts.open {
        leave(s);
    }
}

/// Ends [`Bursts::answering`].
#[inline]
pub(super) fn answered(s: &mut TcpState) {
    s.bursts.answering = false;
    if s.bursts.open {
        end(s);
    }
}

#[cold]
fn leave(s: &mut TcpState) {
    s.bursts.open = false;
    let mut held = core::mem::take(&mut s.bursts.held);
    for id in held.drain(..) {
        if let Some(c) = s.conns.get(id) {
            c.push();
        }
    }
    s.bursts.held = held;
    s.bursts.trust.end();
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::device::stream::StreamRead;
    use crate::device::wait::poll_fd;
    use crate::hmem::UserMem;
    use crate::prov::contract::{Common, MsgReq, SendData};
    use crate::prov::tcp::hostile::{connected, Connected};
    use crate::prov::tcp::ops::send;
    use crate::prov::tcp::wire::ByteOrder;

    /// A connection in bursts of messages of 100 bytes.
    struct BurstySender {
        bursts: Bursts,
        conn: ConnBurst,
        stream: Stream,
    }

    impl BurstySender {
        fn new(allowed: bool) -> BurstySender {
            let (stream, far) = Stream::tcp_pair().unwrap();
            stream.tune(true);
            drop(far);
            BurstySender {
                bursts: Bursts::new(allowed),
                conn: ConnBurst::default(),
                stream,
            }
        }

        fn holds(&mut self) -> bool {
            self.bursts.holds(7, &mut self.conn, 100, &self.stream)
        }
    }

    #[test]
    fn answers_of_one_call_are_held() {
        let mut by = BurstySender::new(true);
        assert!((0..10).all(|_| !by.holds()));
        by.bursts.ends += 1;
        by.bursts.answering();
        assert_eq!((0..10).filter(|_| by.holds()).count(), 10 - ALONE as usize);
    }

    #[test]
    fn one_message_in_a_packet_leaves_with_those_before_it() {
        let mut by = BurstySender::new(true);
        by.bursts.trust.trust();
        by.conn.segment = Some(450);
        let held: Vec<_> = (0..12).map(|_| by.holds()).collect();
        let (f, t) = (false, true);
        assert_eq!(held, [f, f, t, t, t, t, f, t, t, t, t, f]);
    }

    #[test]
    fn fi_more_holds_messages_where_holding_is_allowed() {
        for allowed in [true, false] {
            let mut by = BurstySender::new(allowed);
            by.bursts.announce(true);
            assert_eq!((by.holds(), by.holds()), (allowed, false));
            assert_eq!(by.bursts.held.len(), usize::from(allowed));
        }
    }

    fn send_all(s: &mut TcpState, ep: u32, messages: u8) {
        for n in 0..messages {
            let data = [n; 8];
            let r = MsgReq {
                data: SendData::Inject((&data[..]).into()),
                to: 0,
                tag: None,
                cq_data: None,
                common: Common::default(),
            };
            send(s, ep, &r).unwrap();
        }
    }

    /// The last byte of the messages that arrive: of all of them, or of those that are here.
    fn arrived(far: &mut Stream, messages: usize, wait: bool) -> Vec<u8> {
        let (mut all, mut room) = (Vec::new(), [0; 4096]);
        while all.len() < messages * 24 && (!wait || poll_fd(far.fd(), libc::POLLIN, 10_000)) {
            match far.recv(&UserMem::EMPTY, &mut room) {
                Ok(StreamRead::Bytes(n)) => all.extend_from_slice(&room[..n]),
                _ => break,
            }
        }
        all.chunks_exact(24).map(|m| m[23]).collect()
    }

    /// At the end of the burst, or without one.
    #[test]
    fn held_messages_arrive_with_or_without_an_end_of_the_burst() {
        let Connected {
            mut s, ep, mut far, ..
        } = connected(ByteOrder::Host, Stream::tcp_pair().unwrap()).unwrap();
        let all: Vec<u8> = (0..10).collect();
        s.bursts.trust.trust();
        send_all(&mut s, ep, 10);
        assert_eq!(s.bursts.held.len(), 1);
        end(&mut s);
        assert!(s.bursts.held.is_empty());
        assert_eq!(arrived(&mut far, 10, false), all);
        s.bursts.trust.trust();
        send_all(&mut s, ep, 10);
        assert_eq!(s.bursts.held.len(), 1);
        assert_eq!(arrived(&mut far, 10, true), all);
    }
}
