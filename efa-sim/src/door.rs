//! Protocol between a program under `efa-sim run` and the device process, on one SOCK_SEQPACKET
//! connection per opened device: a request, then its reply, one at a time. The device reads and
//! writes the caller's memory itself, as a kernel would, so that requests carry addresses;
//! descriptors travel with replies.
//!
//! This file is compiled into both sides.

/// Environment variable: path of the device process's socket.
pub const SOCKET: &str = "EFA_SIM_SOCKET";
/// Environment variable: number of adapters.
pub const ADAPTERS: &str = "EFA_SIM_ADAPTERS";
/// Device numbers: `MAJOR`, `MINOR` + number of the adapter, as the kernel has them.
pub const MAJOR: u32 = 231;
pub const MINOR: u32 = 192;

/// Kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Op {
    /// The first request: opens adapter `a`.
    Open = 1,
    /// `ioctl` with the header at address `a`.
    Ioctl = 2,
    /// `write` of `b` bytes at address `a`.
    Write = 3,
    /// `mmap` of `b` bytes at offset `a`.
    Map = 4,
}

/// A request. `pid` is the process whose memory the addresses refer to.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Request {
    pub op: u32,
    pub pid: u32,
    pub a: u64,
    pub b: u64,
}

/// A reply, with a descriptor or without.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Reply {
    /// 0, or the errno.
    pub error: i32,
    /// Bytes (4 or 8) that the number of the descriptor takes at `store_at`; 0: it is not stored.
    pub store_width: u32,
    pub store_at: u64,
    /// With `Map`: offset in the descriptor's file.
    pub value: u64,
}

/// Sizes of both, in bytes.
pub const REQUEST: usize = core::mem::size_of::<Request>();
pub const REPLY: usize = core::mem::size_of::<Reply>();
