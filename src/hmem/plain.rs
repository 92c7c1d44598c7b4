//! Copies of any length.

use core::mem::size_of;

/// Longest copy handed to memcpy(3) at once. From 4 KiB on the C library takes `rep movsb` (threshold of glibc for
/// 32-byte vectors), which some processors carry out ten times slower when source and destination lie alike in their
/// pages, as rings and page-aligned buffers do; the vector loop for shorter copies has no such weakness.
const AT_ONCE: usize = 2048;

/// Copies `len` bytes.
///
/// # Safety
/// As for [`core::ptr::copy_nonoverlapping`]. Another process may write to either side meanwhile: then
/// the bytes are any.
#[inline(always)]
pub unsafe fn copy_bytes(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: as the caller vouches.
    unsafe {
        if len <= 16 {
            copy_few(from, to, len);
        } else {
            copy_more(from, to, len);
        }
    }
}

/// # Safety
/// As [`copy_bytes`].
#[inline(never)]
unsafe fn copy_more(from: *const u8, to: *mut u8, len: usize) {
    let mut at = 0;
    while len - at > AT_ONCE {
        // SAFETY: a part of what the caller vouches for.
        unsafe { core::ptr::copy_nonoverlapping(from.add(at), to.add(at), AT_ONCE) };
        at += AT_ONCE;
    }
    // SAFETY: as above, the rest.
    unsafe { core::ptr::copy_nonoverlapping(from.add(at), to.add(at), len - at) };
}

/// Copies up to 16 bytes, most often 8, without a call: as two words that may overlap.
///
/// # Safety
/// As [`copy_bytes`].
#[inline(always)]
unsafe fn copy_few(from: *const u8, to: *mut u8, len: usize) {
    /// The first and the last bytes, both read before one is written.
    macro_rules! ends {
        ($t:ty) => {{
            let last = len - size_of::<$t>();
            let (a, b) = (
                from.cast::<$t>().read_unaligned(),
                from.add(last).cast::<$t>().read_unaligned(),
            );
            to.cast::<$t>().write_unaligned(a);
            to.add(last).cast::<$t>().write_unaligned(b);
        }};
    }
    // SAFETY: every access lies in the `len` bytes that the caller vouches for.
    unsafe {
        match len {
            8.. => ends!(u64),
            4.. => ends!(u32),
            2.. => ends!(u16),
            1 => to.write(from.read()),
            0 => {}
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_byte_is_copied_and_no_more() {
        for len in (0..40).chain([2047, 2048, 2049, 4096, 10_000]) {
            let from: Vec<u8> = (0..len).map(|i| i as u8 | 1).collect();
            let mut to = vec![0; len + 1];
            // SAFETY: both are at least `len` long, and apart.
            unsafe { super::copy_bytes(from.as_ptr(), to.as_mut_ptr(), len) };
            assert_eq!((to[..len].to_vec(), to[len]), (from, 0));
        }
    }
}
