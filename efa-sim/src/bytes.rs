//! Fields of structures as bytes, by offset: requests of the kernel ABI and entries of queues.

/// Reads fields; bytes beyond the end read as zero, as the kernel treats a structure shorter than
/// its own.
pub struct Fields<'a>(pub &'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&self, off: usize) -> [u8; N] {
        let mut b = [0; N];
        let from = self.0.get(off..).unwrap_or(&[]);
        for (to, v) in b.iter_mut().zip(from) {
            *to = *v;
        }
        b
    }

    pub fn u8(&self, off: usize) -> u8 {
        self.array::<1>(off)[0]
    }

    pub fn u16(&self, off: usize) -> u16 {
        u16::from_le_bytes(self.array(off))
    }

    pub fn u32(&self, off: usize) -> u32 {
        u32::from_le_bytes(self.array(off))
    }

    pub fn u64(&self, off: usize) -> u64 {
        u64::from_le_bytes(self.array(off))
    }

    pub fn gid(&self, off: usize) -> [u8; 16] {
        self.array(off)
    }
}

/// Writes fields.
pub struct FieldWriter(pub Vec<u8>);

impl FieldWriter {
    /// `len` zero bytes.
    pub fn new(len: usize) -> FieldWriter {
        FieldWriter(vec![0; len])
    }

    pub fn put(&mut self, off: usize, bytes: &[u8]) -> &mut FieldWriter {
        self.0[off..off + bytes.len()].copy_from_slice(bytes);
        self
    }

    pub fn u8(&mut self, off: usize, v: u8) -> &mut FieldWriter {
        self.put(off, &[v])
    }

    pub fn u16(&mut self, off: usize, v: u16) -> &mut FieldWriter {
        self.put(off, &v.to_le_bytes())
    }

    pub fn u32(&mut self, off: usize, v: u32) -> &mut FieldWriter {
        self.put(off, &v.to_le_bytes())
    }

    pub fn u64(&mut self, off: usize, v: u64) -> &mut FieldWriter {
        self.put(off, &v.to_le_bytes())
    }
}
