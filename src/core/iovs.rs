//! Lists of registered remote memory, as an operation names it (`struct fi_rma_iov`).

/// Pieces of remote memory one request may name.
pub const MAX_IOV: usize = 4;

/// A piece of registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RmaIov {
    /// Virtual address; offset into the region when the application chooses the keys.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// Key of the region.
    pub key: u64,
}

/// Up to [`MAX_IOV`] pieces of registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Iovs {
    list: [RmaIov; MAX_IOV],
    count: u8,
}

impl Iovs {
    /// These pieces; `None` when there are too many.
    pub fn new(pieces: &[RmaIov]) -> Option<Iovs> {
        let mut v = Iovs::default();
        v.list.get_mut(..pieces.len())?.copy_from_slice(pieces);
        v.count = pieces.len() as u8;
        Some(v)
    }

    /// The pieces.
    pub fn as_slice(&self) -> &[RmaIov] {
        self.list.get(..self.count as usize).unwrap_or(&[])
    }

    /// How many pieces there are.
    pub fn count(&self) -> u32 {
        u32::from(self.count)
    }

    /// The first `len` bytes of these pieces; `None` when they are shorter.
    pub fn first(&self, len: u64) -> Option<Iovs> {
        let mut cut = *self;
        let mut left = len;
        cut.count = 0;
        for v in cut.list.iter_mut().take(self.count as usize) {
            v.len = v.len.min(left);
            left -= v.len;
            cut.count += 1;
            if left == 0 {
                return Some(cut);
            }
        }
        None
    }

    /// Bytes of all pieces together; `None` when that overflows.
    pub fn total(&self) -> Option<u64> {
        self.as_slice()
            .iter()
            .try_fold(0u64, |n, v| n.checked_add(v.len))
    }
}
