//! The shared library: the exported, versioned symbols of libfabric over the functions of
//! `fabric::abi`, and the global allocator, which is not part of the crate `fabric`, because
//! executables link that crate with their own.
//!
//! Each symbol is a jump instruction, because only the assembler's `.symver` gives one name several
//! versions; no attribute of Rust does. The two variadic exports are written in C (`varargs.c`).

use fabric::abi::{exports as api, Allocator};

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// Defines the C symbol `$stub`, which jumps to `$f`, with further assembler directives.
macro_rules! jump {
    ($stub:literal, $f:path, $($directive:expr),+) => {
        core::arch::global_asm!(
            concat!(".globl ", $stub),
            concat!(".type ", $stub, ",@function"),
            concat!($stub, ":"),
            #[cfg(target_arch = "x86_64")]
            "jmp {f}",
            #[cfg(target_arch = "aarch64")]
            "b {f}",
            $($directive),+,
            f = sym $f,
        );
    };
}

/// Exported symbols. `@@` marks the version that new programs link to.
macro_rules! symver {
    ($($stub:literal => $symbol:literal $f:path;)+) => {$(
        jump!($stub, $f, concat!(".symver ", $stub, ",", $symbol, ",remove"));
    )+};
}

jump!("fi_rs_log_line", api::log_line, ".hidden fi_rs_log_line");
jump!(
    "fi_rs_param_define",
    api::param_define,
    ".hidden fi_rs_param_define"
);

symver! {
    "__fi_getinfo_1_0" => "fi_getinfo@FABRIC_1.0" api::getinfo::<0>;
    "__fi_getinfo_1_1" => "fi_getinfo@FABRIC_1.1" api::getinfo::<1>;
    "__fi_getinfo_1_2" => "fi_getinfo@FABRIC_1.2" api::getinfo::<2>;
    "__fi_getinfo_1_3" => "fi_getinfo@FABRIC_1.3" api::getinfo::<3>;
    "__fi_getinfo_1_7" => "fi_getinfo@FABRIC_1.7" api::getinfo::<7>;
    "__fi_getinfo_1_8" => "fi_getinfo@FABRIC_1.8" api::getinfo::<8>;
    "__fi_getinfo_1_9" => "fi_getinfo@FABRIC_1.9" api::getinfo::<9>;
    "__fi_getinfo_1_10" => "fi_getinfo@@FABRIC_1.10" api::getinfo::<10>;
    "__fi_dupinfo_1_0" => "fi_dupinfo@FABRIC_1.0" api::dupinfo::<0>;
    "__fi_dupinfo_1_1" => "fi_dupinfo@FABRIC_1.1" api::dupinfo::<1>;
    "__fi_dupinfo_1_2" => "fi_dupinfo@FABRIC_1.2" api::dupinfo::<2>;
    "__fi_dupinfo_1_3" => "fi_dupinfo@FABRIC_1.3" api::dupinfo::<3>;
    "__fi_dupinfo_1_7" => "fi_dupinfo@FABRIC_1.7" api::dupinfo::<7>;
    "__fi_dupinfo_1_8" => "fi_dupinfo@FABRIC_1.8" api::dupinfo::<8>;
    "__fi_dupinfo_1_9" => "fi_dupinfo@FABRIC_1.9" api::dupinfo::<9>;
    "__fi_dupinfo_1_10" => "fi_dupinfo@@FABRIC_1.10" api::dupinfo::<10>;
    "__fi_freeinfo_1_0" => "fi_freeinfo@FABRIC_1.0" api::freeinfo::<0>;
    "__fi_freeinfo_1_1" => "fi_freeinfo@FABRIC_1.1" api::freeinfo::<1>;
    "__fi_freeinfo_1_2" => "fi_freeinfo@FABRIC_1.2" api::freeinfo::<2>;
    "__fi_freeinfo_1_3" => "fi_freeinfo@FABRIC_1.3" api::freeinfo::<3>;
    "__fi_freeinfo_1_7" => "fi_freeinfo@FABRIC_1.7" api::freeinfo::<7>;
    "__fi_freeinfo_1_8" => "fi_freeinfo@FABRIC_1.8" api::freeinfo::<8>;
    "__fi_freeinfo_1_9" => "fi_freeinfo@FABRIC_1.9" api::freeinfo::<9>;
    "__fi_freeinfo_1_10" => "fi_freeinfo@@FABRIC_1.10" api::freeinfo::<10>;
    "__fi_fabric_1_0" => "fi_fabric@FABRIC_1.0" api::fabric_1_0;
    "__fi_fabric_1_1" => "fi_fabric@@FABRIC_1.1" api::fabric;
    "__fi_fabric2_1_8" => "fi_fabric2@@FABRIC_1.8" api::fabric2;
    "__fi_open_1_5" => "fi_open@@FABRIC_1.5" api::open;
    "__fi_version_1_0" => "fi_version@@FABRIC_1.0" api::version;
    "__fi_strerror_1_0" => "fi_strerror@@FABRIC_1.0" api::strerror_c;
    "__fi_tostr_1_0" => "fi_tostr@@FABRIC_1.0" api::tostr;
    "__fi_tostr_r_1_4" => "fi_tostr_r@@FABRIC_1.4" api::tostr_r;
    "__fi_getparams_1_0" => "fi_getparams@@FABRIC_1.0" api::getparams;
    "__fi_freeparams_1_0" => "fi_freeparams@@FABRIC_1.0" api::freeparams;
    "__fi_param_get_1_0" => "fi_param_get@@FABRIC_1.0" api::param_get;
    "__fi_log_enabled_1_0" => "fi_log_enabled@@FABRIC_1.0" api::log_enabled;
    "__fi_log_ready_1_6" => "fi_log_ready@@FABRIC_1.6" api::log_ready;
}
