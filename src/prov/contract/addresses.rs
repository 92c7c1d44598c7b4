//! Addresses and address vectors (fi_av(3)).

use crate::core::Result;
use crate::types::*;

/// What fi_av_open(3) asks for.
pub struct AvAttr<'a> {
    /// FI_AV_TABLE or FI_AV_MAP.
    pub type_: fi_av_type,
    /// Expected entries.
    pub count: usize,
    /// Bits of an address that name a receive context.
    pub rx_ctx_bits: u32,
    /// Name under which processes of the host share it.
    pub name: Option<&'a str>,
    /// It only reads what another process inserts (FI_READ).
    pub reader: bool,
}

/// The attributes of an address vector.
#[derive(Clone, Copy, Debug)]
pub struct AvInfo {
    /// FI_AV_MAP or FI_AV_TABLE.
    pub type_: fi_av_type,
    /// Whether addresses may only be looked up (FI_READ).
    pub read_only: bool,
    /// One more than the largest address, also of those that were removed.
    pub end: usize,
}

/// Addresses of a domain.
pub trait Addresses {
    /// Bytes of a raw address that begins with these two.
    fn addr_len(head: [u8; 2]) -> Result<usize>;
    /// Text of a raw address (fi_av_straddr(3)).
    fn addr_text(raw: &[u8]) -> String;
    /// The raw address of a node and service, as fi_getinfo(3) would resolve it.
    fn resolve(&self, node: &str, service: Option<&str>) -> Result<Vec<u8>>;

    /// Opens an address vector and returns its number.
    fn open_av(&self, attr: &AvAttr) -> Result<u32>;
    /// Closes it; `FI_EBUSY` while an endpoint uses it.
    fn close_av(&self, av: u32) -> Result<()>;
    /// Its type, and how far it is filled.
    fn av_info(&self, av: u32) -> Result<AvInfo>;
    /// Counts the objects that refer to the vector: one more with `hold`, else one less.
    fn hold_av(&self, av: u32, hold: bool);
    /// Inserts a raw address; `FI_EADDRNOTAVAIL`, `FI_EINVAL` for one that cannot be reached.
    fn insert_addr(&self, av: u32, raw: &[u8]) -> Result<fi_addr_t>;
    /// Removes an address; `FI_ENOENT` for an unknown one.
    fn remove_addr(&self, av: u32, addr: fi_addr_t) -> Result<()>;
    /// The raw address of an entry.
    fn lookup_addr(&self, av: u32, addr: fi_addr_t) -> Result<Vec<u8>>;
}
