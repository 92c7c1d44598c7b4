//! `libefa-fi.so`: provider `efa` as a file that another libfabric loads (fi_provider(3)). It
//! exports `fi_prov_ini` alone, over `fabric::abi::provider_file`.

use core::ffi::c_void;
use fabric::abi::{provider_file, Allocator};
use fabric::types::fi_provider;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// # Safety
/// As [`provider_file::ini`].
unsafe extern "C" fn ini(caller: *const c_void) -> *mut fi_provider {
    // SAFETY: as promised by the caller.
    unsafe { provider_file::ini(caller, c"efa") }
}

// `fi_prov_ini` passes its return address to `ini`, which finds the calling library by it.
core::arch::global_asm!(
    ".globl fi_prov_ini",
    ".type fi_prov_ini,@function",
    "fi_prov_ini:",
    #[cfg(target_arch = "x86_64")]
    "mov rdi, [rsp]",
    #[cfg(target_arch = "x86_64")]
    "jmp {f}",
    #[cfg(target_arch = "aarch64")]
    "mov x0, x30",
    #[cfg(target_arch = "aarch64")]
    "b {f}",
    f = sym ini,
);
