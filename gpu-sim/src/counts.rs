//! How often each library of the process has called each function. A process reads its counts with
//! `gpu_sim_calls`; `GPU_SIM_COUNTS` names a file that gets a line for each count at exit.

use core::ffi::{c_char, c_void, CStr};
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Mutex, MutexGuard, Once};

type Calls = BTreeMap<(String, &'static str), u64>;

fn calls() -> MutexGuard<'static, Calls> {
    static CALLS: Mutex<Calls> = Mutex::new(Calls::new());
    CALLS.lock().unwrap_or_else(|e| e.into_inner())
}

/// The file, and first address, of the object that an address of code is in.
fn object(at: *mut c_void) -> Option<(String, usize)> {
    // SAFETY: a plain structure, of which zero is a value.
    let mut i: libc::Dl_info = unsafe { core::mem::zeroed() };
    // SAFETY: the address is looked up, not touched; there is a place for the answer.
    if unsafe { libc::dladdr(at, &mut i) } == 0 || i.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the name is a string of the loader's.
    let path = unsafe { CStr::from_ptr(i.dli_fname) }.to_string_lossy();
    let name = path.rsplit('/').next().unwrap_or_default().to_string();
    Some((name, i.dli_fbase as usize))
}

/// Counts a call of `function`, by the library that made it.
pub fn count_call(function: &'static str) {
    static AT_EXIT: Once = Once::new();
    AT_EXIT.call_once(|| {
        // SAFETY: the function is of this library, which is not unloaded.
        unsafe { libc::atexit(report) };
    });
    let mut stack = [core::ptr::null_mut(); 12];
    // SAFETY: there is room for so many addresses.
    let n = unsafe { libc::backtrace(stack.as_mut_ptr(), stack.len() as i32) };
    let own = object(count_call as fn(&'static str) as *mut c_void).map(|(_, base)| base);
    let frames = stack.iter().take(usize::try_from(n).unwrap_or(0));
    let caller = frames
        .filter_map(|f| object(*f))
        .find(|(_, base)| Some(*base) != own);
    let caller = caller.map_or_else(|| "?".to_string(), |(name, _)| name);
    *calls().entry((caller, function)).or_default() += 1;
}

extern "C" fn report() {
    let Some(path) = std::env::var_os("GPU_SIM_COUNTS") else {
        return;
    };
    let mut lines = String::new();
    for ((library, function), n) in calls().iter() {
        lines += &format!("{} {library} {function} {n}\n", std::process::id());
    }
    let file = std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(path);
    if let Ok(mut f) = file {
        let _ = f.write_all(lines.as_bytes());
    }
}

/// Calls so far of a function whose name begins with `function`, by a library whose file name
/// begins with `library`.
///
/// # Safety
/// Both are strings.
#[no_mangle]
pub unsafe extern "C" fn gpu_sim_calls(library: *const c_char, function: *const c_char) -> u64 {
    // SAFETY: as promised by the caller.
    let [library, function] =
        [library, function].map(|s| unsafe { CStr::from_ptr(s) }.to_string_lossy());
    let all = calls();
    let such = all
        .iter()
        .filter(|((l, f), _)| l.starts_with(&*library) && f.starts_with(&*function));
    such.map(|(_, n)| n).sum()
}
