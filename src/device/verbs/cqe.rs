//! A completion queue entry as the adapter writes it (`providers/efa/efa_io_defs.h` of rdma-core).
//! Its fields are decoded on demand.

use super::rings::WqeOp;
use super::sys::*;

/// Operation code of a write in a completion.
const WRITE: u8 = WqeOp::Write as u8;

/// The words of a completion.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cqe {
    /// Slot, status, flags, queue pair number; for a receive, the length.
    first: u64,
    /// For a receive: address handle and queue pair number of the sender, immediate data.
    second: u64,
    /// Upper bits of the length of a peer's write.
    third: u64,
}

/// Queue type in the first word: send queue, receive queue.
const SENT: u64 = 1 << 25;
const CAME: u64 = 2 << 25;

/// The kinds of completions that the fast path handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CqeKind {
    /// A work request of ours has succeeded.
    Sent,
    /// A message has come.
    Received,
    /// Something else: an error, or a peer's write.
    Other,
}

impl Cqe {
    /// A completion of these words of its entry.
    #[inline]
    pub(super) fn new([first, second, third]: [u64; 3]) -> Cqe {
        Cqe {
            first,
            second,
            third,
        }
    }

    /// Adds the last word.
    pub(super) fn with(self, third: u64) -> Cqe {
        Cqe { third, ..self }
    }

    /// Number of the queue pair.
    pub(super) fn qpn(&self) -> u16 {
        (self.first >> 32) as u16
    }

    /// The kind of the completion.
    #[inline(always)]
    pub(super) fn kind(&self) -> CqeKind {
        const STATUS: u64 = 0xff << 16;
        const QUEUE: u64 = 3 << 25;
        match self.first & (STATUS | QUEUE) {
            SENT => CqeKind::Sent,
            CAME if self.op() != WRITE => CqeKind::Received,
            _ => CqeKind::Other,
        }
    }

    #[inline]
    fn flags(&self) -> u8 {
        (self.first >> 24) as u8
    }

    #[inline]
    fn op(&self) -> u8 {
        self.flags() >> 4 & 7
    }

    /// The slot of the completed work request.
    #[inline]
    pub(super) fn slot(&self) -> u16 {
        self.first as u16
    }

    /// Whether the completion is of the send queue.
    #[inline]
    pub(super) fn sent(&self) -> bool {
        self.flags() >> 1 & 3 == 1
    }

    /// Whether the fast path handles the completion: a success, and no peer's write.
    #[inline]
    pub(super) fn on_fast_path(&self) -> bool {
        self.kind() != CqeKind::Other
    }

    /// Bytes received.
    #[inline]
    pub(super) fn bytes(&self) -> u32 {
        let low = (self.first >> 48) as u32;
        match self.op() {
            WRITE => low | (self.third as u32 & 0xffff) << 16,
            _ => low,
        }
    }

    /// Address handle and queue pair of the sender.
    #[inline]
    pub(super) fn from(&self) -> (u16, u16) {
        (self.second as u16, (self.second >> 16) as u16)
    }

    /// Immediate data of the message.
    #[inline]
    pub(super) fn imm(&self) -> Option<u32> {
        let data = ((self.second >> 32) as u32).swap_bytes();
        (self.flags() & 8 != 0).then_some(data)
    }

    /// The completion as libibverbs would report it; `recv` marks receives in `wr_id`.
    pub(super) fn wc(&self, recv: u64) -> ibv_wc {
        let status = (self.first >> 16) as u8;
        let wc = ibv_wc {
            wr_id: self.slot().into(),
            // Only 0 is a status of libibverbs, too (IBV_WC_SUCCESS); callers read `vendor_err`.
            status: status.into(),
            vendor_err: status.into(),
            ..ibv_wc::default()
        };
        if self.sent() {
            return wc;
        }
        let unasked = self.flags() >> 7 != 0;
        ibv_wc {
            wr_id: if unasked { 0 } else { recv | wc.wr_id },
            byte_len: self.bytes(),
            slid: self.from().0,
            src_qp: self.from().1.into(),
            imm_data: self.imm().unwrap_or(0),
            wc_flags: self.imm().map_or(0, |_| WC_WITH_IMM),
            opcode: match self.op() {
                WRITE => IBV_WC_RECV_RDMA_WITH_IMM,
                _ => IBV_WC_RECV,
            },
            ..wc
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_is_told_by_its_words() {
        let sent = Cqe::new([SENT | 7, 0, 0]);
        assert!(sent.sent() && sent.on_fast_path() && sent.slot() == 7);
        assert_eq!(sent.wc(1 << 63).wr_id, 7);
        assert!(!Cqe::new([SENT | 9 << 16, 0, 0]).on_fast_path());
        // The completion of our own write is not a peer's write.
        let write = u64::from(WRITE) << 28;
        assert!(Cqe::new([SENT | write, 0, 0]).on_fast_path());

        let imm = 8 << 24;
        let from = 5 | 6 << 16 | u64::from(0x0102_0304_u32.swap_bytes()) << 32;
        let came = Cqe::new([CAME | imm | 3 | 100 << 48, from, 0]);
        assert!(!came.sent() && came.on_fast_path());
        assert_eq!((came.bytes(), came.from()), (100, (5, 6)));
        assert_eq!(came.imm(), Some(0x0102_0304));
        let wc = came.wc(1 << 63);
        assert_eq!((wc.wr_id, wc.byte_len, wc.slid), (1 << 63 | 3, 100, 5));

        let theirs = Cqe::new([CAME | imm | write | 1 << 48, from, 2]);
        assert!(!theirs.on_fast_path());
        assert_eq!(theirs.bytes(), 1 | 2 << 16);
        assert_eq!(theirs.wc(0).opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    }
}
