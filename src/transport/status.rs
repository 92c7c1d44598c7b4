//! Status of a completed operation.

/// Status of a completed operation. The numbers are those of EFA completions
/// (`efa_io_comp_status`), so that `fi_cq_strerror` explains those of either adapter.
// The names are those of the adapter's status codes.
#[allow(clippy::enum_variant_names)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    Ok = 0,
    Flushed = 1,
    LocalQpError = 2,
    LocalUnsupported = 3,
    LocalBadHandle = 4,
    LocalBadKey = 5,
    LocalBadLength = 6,
    RemoteBadAddress = 7,
    RemoteAbort = 8,
    RemoteBadQpn = 9,
    RemoteNotReady = 10,
    RemoteBadLength = 11,
    RemoteBadStatus = 12,
    RemoteUnresponsive = 13,
    RemoteUnknownPeer = 14,
    RemoteUnreachable = 15,
    RemoteMismatch = 18,
    /// Only the software adapter reports a bad key apart from a bad address.
    RemoteBadKey = 64,
    /// Not from an adapter: the interface of a device failed to copy device memory.
    LocalCopyFailed = 65,
    /// As [`Status::LocalCopyFailed`], of the memory that the peer accessed.
    RemoteCopyFailed = 66,
}

impl Status {
    /// Decodes the status that a peer sent (software adapter).
    pub fn from_wire(v: u32) -> Status {
        match v {
            0 => Status::Ok,
            7 => Status::RemoteBadAddress,
            9 => Status::RemoteBadQpn,
            10 => Status::RemoteNotReady,
            11 => Status::RemoteBadLength,
            64 => Status::RemoteBadKey,
            66 => Status::RemoteCopyFailed,
            _ => Status::RemoteAbort,
        }
    }

    /// The status of a number from `prov_errno`.
    pub fn from_code(v: i32) -> Option<Status> {
        use Status::*;
        [
            Ok,
            Flushed,
            LocalQpError,
            LocalUnsupported,
            LocalBadHandle,
            LocalBadKey,
            LocalBadLength,
            RemoteBadAddress,
            RemoteAbort,
            RemoteBadQpn,
            RemoteNotReady,
            RemoteBadLength,
            RemoteBadStatus,
            RemoteUnresponsive,
            RemoteUnknownPeer,
            RemoteUnreachable,
            RemoteMismatch,
            RemoteBadKey,
            LocalCopyFailed,
            RemoteCopyFailed,
        ]
        .into_iter()
        .find(|s| *s as i32 == v)
    }

    /// The errno of a completion that ends with this status.
    pub fn errno(self) -> crate::core::Errno {
        use crate::types::*;
        match self {
            Status::Ok => FI_SUCCESS,
            Status::Flushed => FI_ECANCELED,
            Status::LocalQpError
            | Status::LocalUnsupported
            | Status::LocalBadHandle
            | Status::LocalBadKey
            | Status::RemoteMismatch
            | Status::RemoteBadAddress => FI_EINVAL,
            Status::LocalBadLength | Status::RemoteBadLength => FI_EMSGSIZE,
            Status::RemoteAbort | Status::RemoteUnresponsive => FI_ECONNABORTED,
            Status::RemoteUnknownPeer => FI_ENOTCONN,
            Status::RemoteUnreachable => FI_EHOSTUNREACH,
            Status::RemoteBadStatus => FI_EREMOTEIO,
            Status::LocalCopyFailed | Status::RemoteCopyFailed => FI_EIO,
            Status::RemoteBadQpn => FI_ENOTCONN,
            Status::RemoteNotReady => FI_ENORX,
            Status::RemoteBadKey => FI_EKEYREJECTED,
        }
    }

    /// What the status means and what to check, for `fi_cq_strerror`.
    pub fn text(self) -> &'static str {
        match self {
            Status::Ok => "success",
            Status::Flushed => "flushed: the queue pair was closed with this operation under way",
            Status::LocalQpError => "the local queue pair is in error state",
            Status::LocalUnsupported => "the adapter does not support this operation",
            Status::LocalBadHandle => {
                "the adapter does not know the peer's address handle any more"
            }
            Status::LocalBadKey => {
                "the local buffer is not in the memory region of its descriptor, or that was closed"
            }
            Status::LocalBadLength => "the local buffer is shorter than the data",
            Status::RemoteBadAddress => {
                "the remote address range is outside the memory region of the key presented"
            }
            Status::RemoteAbort => "the peer aborted the operation",
            Status::RemoteBadQpn => {
                "no such queue pair: the peer has closed its endpoint or was restarted, or sees \
                 this one at another address than before"
            }
            Status::RemoteNotReady => "receiver not ready: the peer has no receive buffer left",
            Status::RemoteBadLength => "the message is longer than the peer can take",
            Status::RemoteUnresponsive => {
                "no answer from the peer: process gone, host down or network cut"
            }
            Status::RemoteBadStatus => "the peer's adapter answered with a status of no meaning",
            Status::RemoteUnknownPeer => {
                "the peer does not know us: its address vector must hold our address before it can \
                 be read or written"
            }
            Status::RemoteUnreachable => {
                "no way to the peer: another availability zone, or a security group that forbids it"
            }
            Status::RemoteMismatch => "the peer's adapter lacks a feature that the operation needs",
            Status::LocalCopyFailed => {
                "device memory could not be copied (the log names the function and its error); \
                 the peer may have zeros"
            }
            Status::RemoteCopyFailed => {
                "the peer's device memory could not be copied (its log names the function and its \
                 error)"
            }
            Status::RemoteBadKey => {
                "the remote key is unknown to the peer, or does not permit this access there"
            }
        }
    }
}
