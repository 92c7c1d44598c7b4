//! The socket filter (socket(7), SO_ATTACH_FILTER): classic BPF programs.

use crate::device::soft::{packet, seal};

/// Datagrams that the kernel passes to a socket; it drops the others at their sender's cost.
pub(crate) enum SocketFilter {
    /// Datagrams that present this verification tag, and HELLOs that present this key and token.
    /// `open`: or no token.
    Open {
        vtag: u32,
        qkey: u32,
        token: u64,
        open: bool,
    },
    /// Datagrams sealed by one of these keys.
    Sealed([u32; 2]),
}

impl SocketFilter {
    /// The program, which passes a datagram whole or drops it.
    pub(super) fn program(&self) -> Vec<libc::sock_filter> {
        // Filters see a datagram from its UDP header on, and load big-endian numbers.
        const UDP: usize = 8;
        let step = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter {
            code: code as u16,
            jt,
            jf,
            k,
        };
        let load = |size: u32, at: usize| {
            step(libc::BPF_LD | size | libc::BPF_ABS, 0, 0, (UDP + at) as u32)
        };
        let equal =
            |k: u32, jt: u8, jf: u8| step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, jt, jf, k);
        let answer = |k: u32| step(libc::BPF_RET | libc::BPF_K, 0, 0, k);
        let magic = |m: u16| u32::from(m.swap_bytes());
        let (drop, pass) = (answer(0), answer(u32::MAX));
        match *self {
            SocketFilter::Open {
                vtag,
                qkey,
                token,
                open,
            } => {
                let word = |v: u64| (v as u32).swap_bytes();
                // A service that is open takes HELLOs without a token, others only with theirs.
                let also = if open { 0 } else { token };
                vec![
                    load(libc::BPF_H, 0),
                    equal(magic(packet::MAGIC), 0, 14),
                    load(libc::BPF_B, packet::KIND_AT),
                    equal(packet::HELLO.into(), 2, 0),
                    load(libc::BPF_W, packet::VTAG_AT),
                    equal(vtag.swap_bytes(), 11, 10),
                    load(libc::BPF_W, packet::VTAG_AT),
                    equal(qkey.swap_bytes(), 0, 8),
                    load(libc::BPF_W, packet::DST_AT),
                    equal(word(also), 0, 2),
                    load(libc::BPF_W, packet::DST_AT + 4),
                    equal(word(also >> 32), 5, 0),
                    load(libc::BPF_W, packet::DST_AT),
                    equal(word(token), 0, 2),
                    load(libc::BPF_W, packet::DST_AT + 4),
                    equal(word(token >> 32), 1, 0),
                    drop,
                    pass,
                ]
            }
            SocketFilter::Sealed([first, second]) => vec![
                load(libc::BPF_H, 0),
                equal(magic(seal::MAGIC), 0, 3),
                load(libc::BPF_W, seal::KEY_AT),
                equal(first.swap_bytes(), 2, 0),
                equal(second.swap_bytes(), 1, 0),
                drop,
                pass,
            ],
        }
    }
}
