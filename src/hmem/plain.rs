//! Copies of any length.

/// Longest copy handed to memcpy(3) at once. From 4 KiB on the C library takes `rep movsb` (threshold of glibc for
/// 32-byte vectors), which some processors carry out ten times slower when source and destination lie alike in their
/// pages, as rings and page-aligned buffers do; the vector loop for shorter copies has no such weakness.
const AT_ONCE: usize = 2048;

/// Copies `len` bytes.
///
/// # Safety
/// As for [`core::ptr::copy_nonoverlapping`]. Another process may write to either side meanwhile: then
/// the bytes are any.
#[inline]
pub unsafe fn copy_bytes(from: *const u8, to: *mut u8, len: usize) {
    let mut at = 0;
    while len - at > AT_ONCE {
        // SAFETY: a part of what the caller vouches for.
        unsafe { core::ptr::copy_nonoverlapping(from.add(at), to.add(at), AT_ONCE) };
        at += AT_ONCE;
    }
    // SAFETY: as above, the rest.
    unsafe { core::ptr::copy_nonoverlapping(from.add(at), to.add(at), len - at) };
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_byte_is_copied_and_no_more() {
        for len in [0, 1, 2047, 2048, 2049, 4096, 10_000] {
            let from: Vec<u8> = (0..len).map(|i| i as u8 | 1).collect();
            let mut to = vec![0; len + 1];
            // SAFETY: both are at least `len` long, and apart.
            unsafe { super::copy_bytes(from.as_ptr(), to.as_mut_ptr(), len) };
            assert_eq!((to[..len].to_vec(), to[len]), (from, 0));
        }
    }
}
