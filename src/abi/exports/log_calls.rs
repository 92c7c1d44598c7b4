//! fi_log(3): lines of the application and of provider files.

use super::ProviderName;
use crate::abi::entry::entry;
use crate::core::log;
use crate::types::*;
use core::ffi::{c_char, c_int};

entry! {
    /// Second half of `fi_log`, behind its C shim.
    ///
    /// # Safety
    /// As fi_log in fi_log.h.
    pub fn log_line(
        prov: *const fi_provider as ProviderName,
        level: c_int,
        subsys: c_int,
        func: *const c_char as Option<String>,
        line: c_int,
        text: *const c_char as Option<String>,
    ) -> c_int = "fi_log" {
        log::line(
            prov.or_core(),
            level as u32,
            subsys as u32,
            func.as_deref().unwrap_or("?"),
            line as u32,
            text.as_deref().unwrap_or("").trim_end(),
        );
        Ok(())
    }
}

entry! {
    /// fi_log_enabled of fi_log(3): 1 when a line of that level and subsystem is printed.
    ///
    /// # Safety
    /// The pointer rules of [`crate::abi`].
    pub fn log_enabled(
        prov: *const fi_provider as ProviderName,
        level: fi_log_level,
        subsys: fi_log_subsys,
    ) -> c_int = "fi_log_enabled" {
        Ok(usize::from(log::enabled(prov.or_core(), level, subsys)))
    }
}

entry! {
    /// fi_log_ready of fi_log(3): as [`log_enabled`], at most once in two seconds for a call site.
    ///
    /// # Safety
    /// The pointer rules of [`crate::abi`].
    pub fn log_ready(
        prov: *const fi_provider as ProviderName,
        level: fi_log_level,
        subsys: fi_log_subsys,
        showtime: *mut u64 as Option<&mut u64>,
    ) -> c_int = "fi_log_ready" {
        const INTERVAL_MS: u64 = 2000;
        if !log::enabled(prov.or_core(), level, subsys) {
            return Ok(0);
        }
        let now = log::milliseconds();
        match showtime {
            Some(t) if now < *t => return Ok(0),
            Some(t) => *t = now + INTERVAL_MS,
            None => {}
        }
        Ok(1)
    }
}
