//! Memory copies: of any length, and to memory in another processor's cache.

use core::mem::size_of;

/// Longest copy passed to memcpy(3) at once. From 4 KiB on, glibc uses `rep movsb` (its threshold
/// for 32-byte vectors), which is ten times slower on some processors when source and destination
/// have the same offset in their pages, as rings and page-aligned buffers have. The vector loop for
/// shorter copies is not affected.
const AT_ONCE: usize = 2048;

/// Copies `len` bytes.
///
/// # Safety
/// As for [`core::ptr::copy_nonoverlapping`]. Another process may write to either side meanwhile;
/// the copied bytes are then unspecified.
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

/// Longest copy that [`copy_across`] does in vectors, bytes: for 8 KiB the string instruction takes
/// nine tenths of their time.
const VECTORS_MAX: usize = 4096;

/// Defines a hint to the processor that lines will be used: the instructions on x86-64 and aarch64.
macro_rules! hint {
    ($(#[$doc:meta])* $name:ident, [$($x86:expr),+], [$($arm:expr),+]) => {
        $(#[$doc])*
        #[inline(always)]
        pub fn $name(p: *const u8) {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            // SAFETY: a hint, which reads and writes nothing.
            unsafe {
                core::arch::asm!($($x86),+, in(reg) p, options(nostack, preserves_flags));
            }
            #[cfg(all(target_arch = "aarch64", not(miri)))]
            // SAFETY: a hint, which reads and writes nothing.
            unsafe {
                core::arch::asm!($($arm),+, in(reg) p, options(nostack, preserves_flags));
            }
            #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
            let _ = p;
        }
    };
}

hint!(
    /// Requests the line at `p`, which will be read.
    prefetch_read,
    ["prefetcht0 [{}]"],
    ["prfm pldl1keep, [{}]"]
);
hint!(
    /// Requests the line at `p`, which will be written, from the cache that has it. Stores leave
    /// the processor in order: each would wait for its line, 20 ns on some processors, where lines
    /// that were requested before come all together.
    prefetch_write,
    ["prefetchw [{}]"],
    ["prfm pstl1keep, [{}]"]
);
hint!(
    /// As [`prefetch_write`], the line at `p` and the fifteen behind it: an instruction each.
    prefetch_write_16,
    [
        "prefetchw [{0} + 0]", "prefetchw [{0} + 64]",
        "prefetchw [{0} + 128]", "prefetchw [{0} + 192]",
        "prefetchw [{0} + 256]", "prefetchw [{0} + 320]",
        "prefetchw [{0} + 384]", "prefetchw [{0} + 448]",
        "prefetchw [{0} + 512]", "prefetchw [{0} + 576]",
        "prefetchw [{0} + 640]", "prefetchw [{0} + 704]",
        "prefetchw [{0} + 768]", "prefetchw [{0} + 832]",
        "prefetchw [{0} + 896]", "prefetchw [{0} + 960]"
    ],
    [
        "prfm pstl1keep, [{0}, #0]", "prfm pstl1keep, [{0}, #64]",
        "prfm pstl1keep, [{0}, #128]", "prfm pstl1keep, [{0}, #192]",
        "prfm pstl1keep, [{0}, #256]", "prfm pstl1keep, [{0}, #320]",
        "prfm pstl1keep, [{0}, #384]", "prfm pstl1keep, [{0}, #448]",
        "prfm pstl1keep, [{0}, #512]", "prfm pstl1keep, [{0}, #576]",
        "prfm pstl1keep, [{0}, #640]", "prfm pstl1keep, [{0}, #704]",
        "prfm pstl1keep, [{0}, #768]", "prfm pstl1keep, [{0}, #832]",
        "prfm pstl1keep, [{0}, #896]", "prfm pstl1keep, [{0}, #960]"
    ]
);

/// Whether `rep movsb` is fast on this processor for all addresses: Intel processors with ERMS.
/// Other processors are slow when both have the same offset in their pages.
#[cfg(target_arch = "x86_64")]
#[cold]
fn has_strings() -> bool {
    // Miri has no such instruction.
    if cfg!(miri) {
        return false;
    }
    let vendor = core::arch::x86_64::__cpuid(0);
    let intel = [vendor.ebx, vendor.edx, vendor.ecx] == [0x756e_6547, 0x4965_6e69, 0x6c65_746e];
    intel && std::arch::is_x86_feature_detected!("ermsb")
}

/// As [`copy_bytes`], to memory that is in another processor's cache; [`prefetch_write`] has
/// requested its first lines.
///
/// # Safety
/// As for [`copy_bytes`].
#[inline(always)]
pub unsafe fn copy_across(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: as the caller vouches.
    unsafe {
        if len <= VECTORS_MAX {
            copy_bytes(from, to, len);
        } else {
            copy_string(from, to, len);
        }
    }
}

/// Copies as one instruction: a line that is overwritten completely needs no transfer of its old
/// contents, only ownership.
///
/// # Safety
/// As [`copy_bytes`].
#[inline(never)]
unsafe fn copy_string(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        static STRINGS: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
        if *STRINGS.get_or_init(has_strings) {
            // SAFETY: reads and writes what the caller vouches for; the direction flag is clear
            // (psABI).
            unsafe {
                core::arch::asm!("rep movsb",
                    inout("rcx") len => _, inout("rsi") from => _, inout("rdi") to => _,
                    options(nostack, preserves_flags));
            }
            return;
        }
    }
    // SAFETY: as the caller vouches.
    unsafe { copy_more(from, to, len) };
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
    /// Copies the first and the last word; both are read before either is written.
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
        for len in (0..40).chain([64, 65, 511, 512, 2047, 2048, 2049, 4096, 4097, 10_000]) {
            let from: Vec<u8> = (0..len).map(|i| i as u8 | 1).collect();
            let mut to = vec![0; len + 1];
            // SAFETY: both are at least `len` long, and apart.
            unsafe { super::copy_bytes(from.as_ptr(), to.as_mut_ptr(), len) };
            assert_eq!((&to[..len], to[len]), (&from[..], 0));
            to.fill(0);
            // SAFETY: as above.
            unsafe { super::copy_across(from.as_ptr(), to.as_mut_ptr(), len) };
            assert_eq!((&to[..len], to[len]), (&from[..], 0));
        }
    }
}
