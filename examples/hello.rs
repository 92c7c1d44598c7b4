//! A message from one process to another, by its tag: `hello.c` in Rust, over the crate itself.
//!
//! ```text
//! cargo run --example hello                prints the command for the other side, and waits
//! cargo run --example hello -- ADDRESS     sends one
//! ```
//!
//! The crate has the C interface, as `libfabric.so.1` has it: tables of functions, pointers and
//! errno values. A program that links the shared library instead declares the four functions that
//! it imports and goes on in the same way.

use fabric::abi::exports::{dupinfo, fabric as fi_fabric, freeinfo, getinfo, strerror};
use fabric::types::*;
use std::ffi::{c_int, c_void, CStr};
use std::mem::zeroed;
use std::ptr::{null, null_mut};

const TAG: u64 = 42;

/// Ends the program with the error's text if `ret` is negative.
fn ok(ret: isize, call: &str) -> usize {
    usize::try_from(ret).unwrap_or_else(|_| {
        // SAFETY: the texts are static.
        let text = unsafe { CStr::from_ptr(strerror(ret.unsigned_abs() as c_int)) };
        eprintln!("{call}: {}", text.to_string_lossy());
        std::process::exit(1);
    })
}

/// Calls function `$call` of the table `$ops` of the object `$fid`.
macro_rules! call {
    ($fid:expr, $ops:ident, $call:ident $(, $arg:expr)*) => {
        (*(*$fid).$ops).$call.expect(stringify!($call))($fid, $($arg),*)
    };
}

macro_rules! done {
    ($($call:tt)+) => { ok(call!($($call)+) as isize, stringify!($($call)+)) };
}

/// Polls for one completion; returns its length.
unsafe fn next(cq: *mut fid_cq) -> usize {
    // SAFETY: a completion is plain data; the queue is open.
    unsafe {
        let mut entry: fi_cq_tagged_entry = zeroed();
        loop {
            let ret = call!(cq, ops, read, (&raw mut entry).cast::<c_void>(), 1);
            match ret {
                r if r == -(FI_EAGAIN as isize) => std::thread::yield_now(),
                r => {
                    ok(r, "fi_cq_read");
                    return entry.len;
                }
            }
        }
    }
}

unsafe fn close(f: *mut fid) {
    // SAFETY: the object is open, and nothing uses it any more.
    unsafe { ok((*(*f).ops).close.expect("close")(f) as isize, "fi_close") };
}

fn main() {
    let to = std::env::args().nth(1);
    // SAFETY: each object is used as its man page says, and closed once, children first.
    unsafe {
        let hints = dupinfo::<10>(null());
        (*(*hints).ep_attr).r#type = FI_EP_RDM;
        (*hints).caps = FI_TAGGED;
        (*hints).mode = FI_CONTEXT | FI_CONTEXT2;
        let mut info: *mut fi_info = null_mut();
        let ret = getinfo::<10>(1 << 16 | 18, null(), null(), 0, hints, &mut info);
        ok(ret as isize, "fi_getinfo");
        let mut fabric: *mut fid_fabric = null_mut();
        ok(
            fi_fabric((*info).fabric_attr, &mut fabric, null_mut()) as isize,
            "fi_fabric",
        );
        let mut domain: *mut fid_domain = null_mut();
        done!(fabric, ops, domain, info, &mut domain, null_mut());
        let mut cq: *mut fid_cq = null_mut();
        let mut cq_attr: fi_cq_attr = zeroed();
        cq_attr.format = FI_CQ_FORMAT_TAGGED;
        done!(domain, ops, cq_open, &mut cq_attr, &mut cq, null_mut());
        let mut av: *mut fid_av = null_mut();
        let mut av_attr: fi_av_attr = zeroed();
        done!(domain, ops, av_open, &mut av_attr, &mut av, null_mut());
        let mut ep: *mut fid_ep = null_mut();
        done!(domain, ops, endpoint, info, &mut ep, null_mut());
        let f = &raw mut (*ep).fid;
        let bind = (*(*f).ops).bind.expect("bind");
        ok(
            bind(f, &raw mut (*cq).fid, FI_TRANSMIT | FI_RECV) as isize,
            "fi_ep_bind",
        );
        ok(bind(f, &raw mut (*av).fid, 0) as isize, "fi_ep_bind");
        let control = (*(*f).ops).control.expect("control");
        ok(control(f, FI_ENABLE, null_mut()) as isize, "fi_enable");

        let mut context: fi_context2 = zeroed();
        let context = (&raw mut context).cast::<c_void>();
        match to {
            None => {
                let mut address = [0u8; 256];
                let mut len = address.len();
                let name = address.as_mut_ptr().cast::<c_void>();
                let getname = (*(*ep).cm).getname.expect("getname");
                ok(getname(f, name, &mut len) as isize, "fi_getname");
                let digits: String = address[..len].iter().map(|b| format!("{b:02x}")).collect();
                println!("{} {digits}", std::env::args().next().unwrap_or_default());
                let mut text = [0u8; 64];
                let at = text.as_mut_ptr().cast::<c_void>();
                let any = FI_ADDR_UNSPEC;
                done!(
                    ep,
                    tagged,
                    recv,
                    at,
                    text.len(),
                    null_mut(),
                    any,
                    TAG,
                    0,
                    context
                );
                let len = next(cq);
                println!("got {:?}", String::from_utf8_lossy(&text[..len]));
            }
            Some(digits) => {
                let byte = |at| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
                let address: Vec<u8> = (0..digits.len()).step_by(2).map_while(byte).collect();
                let mut peer = 0;
                let raw = address.as_ptr().cast::<c_void>();
                done!(av, ops, insert, raw, 1, &mut peer, 0, null_mut());
                let text = "hello";
                let at = text.as_ptr().cast::<c_void>();
                // FI_EAGAIN: the queue is full, or the connection to the peer is being set up.
                loop {
                    let ret = call!(
                        ep,
                        tagged,
                        send,
                        at,
                        text.len(),
                        null_mut(),
                        peer,
                        TAG,
                        context
                    );
                    if ret != -(FI_EAGAIN as isize) {
                        ok(ret, "fi_tsend");
                        break;
                    }
                    call!(cq, ops, read, null_mut(), 0);
                }
                next(cq);
            }
        }
        for f in [f, &raw mut (*av).fid, &raw mut (*cq).fid] {
            close(f);
        }
        close(&raw mut (*domain).fid);
        close(&raw mut (*fabric).fid);
        freeinfo::<10>(info);
        freeinfo::<10>(hints);
    }
}
