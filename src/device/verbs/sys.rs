//! The functions of libibverbs and libefa, and their structures (`layout`). The libraries are
//! loaded by `dlopen` at first use, so that this library loads on machines without them.

mod layout;

use crate::hmem::dl::find;
use crate::types::*;
use core::ffi::{c_char, c_int, c_uint, c_void, CStr};
pub use layout::*;
use std::sync::OnceLock;

/// `ibv_query_qp_data_in_order`: a queue pair, an operation (`enum ibv_wr_opcode`), flags; the
/// answer with [`ORDER_RETURN_CAPS`] is a set of capabilities.
type QueryOrder = unsafe extern "C" fn(*mut ibv_qp, c_int, u32) -> c_int;
type QueryMr = unsafe extern "C" fn(*mut ibv_mr, *mut efadv_mr_attr, u32) -> c_int;
type MaxSqDepth = unsafe extern "C" fn(*mut ibv_context, *mut efadv_sq_depth_attr, u32) -> c_int;
type QueryWqs =
    unsafe extern "C" fn(*mut ibv_qp, *mut efadv_wq_attr, *mut efadv_wq_attr, u32) -> c_int;
type QueryCq = unsafe extern "C" fn(*mut ibv_cq, *mut efadv_cq_attr, u32) -> c_int;

type CreateCq = unsafe extern "C" fn(
    *mut ibv_context,
    *mut ibv_cq_init_attr_ex,
    *mut efadv_cq_init_attr,
    u32,
) -> *mut ibv_cq;

type RegDmaBuf = unsafe extern "C" fn(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;

type CreateCounter = unsafe extern "C" fn(
    *mut ibv_context,
    *mut ibv_comp_cntr_init_attr,
    *mut efadv_comp_cntr_init_attr,
    u32,
) -> *mut ibv_comp_cntr;
type ChangeCounter = unsafe extern "C" fn(*mut ibv_comp_cntr, u64) -> c_int;
type ReadCounter = unsafe extern "C" fn(*mut ibv_comp_cntr, *mut u64) -> c_int;
type AttachCounter = unsafe extern "C" fn(
    *mut ibv_qp,
    *mut ibv_comp_cntr,
    *mut ibv_qp_attach_comp_cntr_attr,
) -> c_int;

/// The functions of counters; each pair is for successes and for errors.
pub struct CounterFunctions {
    pub create: CreateCounter,
    pub destroy: unsafe extern "C" fn(*mut ibv_comp_cntr) -> c_int,
    pub set: [ChangeCounter; 2],
    pub raise: [ChangeCounter; 2],
    pub read: [ReadCounter; 2],
    pub attach: AttachCounter,
    pub caps: unsafe extern "C" fn(*mut ibv_context, *mut ibv_comp_cntr_caps, usize) -> c_int,
}

impl CounterFunctions {
    /// `None` when one of them is missing.
    ///
    /// # Safety
    /// The libraries are libibverbs and libefa, open for ever.
    unsafe fn load(verbs: *mut c_void, efa: *mut c_void) -> Option<CounterFunctions> {
        // SAFETY: the functions of these names have these types.
        unsafe {
            Some(CounterFunctions {
                create: find(efa, c"efadv_create_comp_cntr")?,
                destroy: find(verbs, c"ibv_destroy_comp_cntr")?,
                set: [
                    find(verbs, c"ibv_set_comp_cntr")?,
                    find(verbs, c"ibv_set_err_comp_cntr")?,
                ],
                raise: [
                    find(verbs, c"ibv_inc_comp_cntr")?,
                    find(verbs, c"ibv_inc_err_comp_cntr")?,
                ],
                read: [
                    find(verbs, c"ibv_read_comp_cntr")?,
                    find(verbs, c"ibv_read_err_comp_cntr")?,
                ],
                attach: find(verbs, c"ibv_qp_attach_comp_cntr")?,
                caps: find(verbs, c"_ibv_query_comp_cntr_caps")?,
            })
        }
    }
}

/// Declares a table of functions with a field for each symbol.
macro_rules! functions {
    ($($lib:ident: $name:ident($($t:ty),*) $(-> $r:ty)?;)*) => {
        /// Functions of libibverbs and libefa.
        pub struct Lib {
            $(pub $name: unsafe extern "C" fn($($t),*) $(-> $r)?,)*
            /// Not in every version.
            pub efadv_query_qp_wqs: Option<QueryWqs>,
            pub efadv_query_cq: Option<QueryCq>,
            pub efadv_query_mr: Option<QueryMr>,
            pub efadv_get_max_sq_depth: Option<MaxSqDepth>,
            pub ibv_reg_dmabuf_mr: Option<RegDmaBuf>,
            pub efadv_create_cq: Option<CreateCq>,
            pub counters: Option<CounterFunctions>,
            pub ibv_query_qp_data_in_order: Option<QueryOrder>,
            /// Since rdma-core 39.
            pub ibv_is_fork_initialized: Option<unsafe extern "C" fn() -> c_int>,
        }

        impl Lib {
            /// Loads both libraries and all functions; the error names what is missing.
            fn load() -> Result<Lib, String> {
                let verbs = open(c"libibverbs.so.1")?;
                let efa = open(c"libefa.so.1")?;
                // SAFETY: the functions of these names have these types (rdma-core's headers).
                let lib = unsafe { Lib {
                    efadv_query_qp_wqs: find(efa, c"efadv_query_qp_wqs"),
                    efadv_query_cq: find(efa, c"efadv_query_cq"),
                    efadv_query_mr: find(efa, c"efadv_query_mr"),
                    efadv_get_max_sq_depth: find(efa, c"efadv_get_max_sq_depth"),
                    ibv_reg_dmabuf_mr: find(verbs, c"ibv_reg_dmabuf_mr"),
                    efadv_create_cq: find(efa, c"efadv_create_cq"),
                    counters: CounterFunctions::load(verbs, efa),
                    ibv_query_qp_data_in_order: find(verbs, c"ibv_query_qp_data_in_order"),
                    ibv_is_fork_initialized: find(verbs, c"ibv_is_fork_initialized"),
                    $($name: {
                        let name = concat!(stringify!($name), "\0");
                        let name = CStr::from_bytes_with_nul(name.as_bytes()).unwrap_or(c"");
                        let at = if stringify!($lib) == "efa" { efa } else { verbs };
                        find(at, name)
                            .ok_or(concat!("no ", stringify!($name), " in lib", stringify!($lib)))?
                    },)*
                } };
                if lib.efadv_query_qp_wqs.is_none() || lib.efadv_query_cq.is_none() {
                    crate::info_log!(
                        FI_LOG_FABRIC,
                        "libefa does not give its queues out (rdma-core before 59): they are \
                         driven through it"
                    );
                }
                Ok(lib)
            }
        }
    };
}

functions! {
    ibverbs: ibv_fork_init() -> c_int;
    ibverbs: ibv_get_device_list(*mut c_int) -> *mut *mut c_void;
    ibverbs: ibv_free_device_list(*mut *mut c_void);
    ibverbs: ibv_get_device_name(*mut c_void) -> *const c_char;
    ibverbs: ibv_open_device(*mut c_void) -> *mut ibv_context;
    ibverbs: ibv_close_device(*mut ibv_context) -> c_int;
    ibverbs: ibv_query_device(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    ibverbs: ibv_query_port(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    ibverbs: ibv_query_gid(*mut ibv_context, u8, c_int, *mut [u8; 16]) -> c_int;
    ibverbs: ibv_alloc_pd(*mut ibv_context) -> *mut ibv_pd;
    ibverbs: ibv_dealloc_pd(*mut ibv_pd) -> c_int;
    ibverbs: ibv_reg_mr(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    ibverbs: ibv_dereg_mr(*mut ibv_mr) -> c_int;
    ibverbs: ibv_create_comp_channel(*mut ibv_context) -> *mut ibv_comp_channel;
    ibverbs: ibv_destroy_comp_channel(*mut ibv_comp_channel) -> c_int;
    ibverbs: ibv_create_cq(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int)
        -> *mut ibv_cq;
    ibverbs: ibv_destroy_cq(*mut ibv_cq) -> c_int;
    ibverbs: ibv_get_cq_event(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ibverbs: ibv_ack_cq_events(*mut ibv_cq, c_uint);
    ibverbs: ibv_modify_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    ibverbs: ibv_destroy_qp(*mut ibv_qp) -> c_int;
    ibverbs: ibv_qp_to_qp_ex(*mut ibv_qp) -> *mut ibv_qp_ex;
    ibverbs: ibv_create_ah(*mut ibv_pd, *mut ibv_ah_attr) -> *mut c_void;
    ibverbs: ibv_destroy_ah(*mut c_void) -> c_int;
    efa: efadv_query_device(*mut ibv_context, *mut efadv_device_attr, u32) -> c_int;
    efa: efadv_query_ah(*mut c_void, *mut efadv_ah_attr, u32) -> c_int;
    efa: efadv_create_qp_ex(
        *mut ibv_context, *mut ibv_qp_init_attr_ex, *mut efadv_qp_init_attr, u32) -> *mut ibv_qp;
}

/// `ibv_create_qp_ex`, an inline function of the headers: calls an operation of the
/// `verbs_context` that contains the `ibv_context`.
///
/// # Safety
/// The context is open, the attributes are valid.
pub unsafe fn create_qp_ex(c: *mut ibv_context, init: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
    type Create = unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp;
    /// Offsets in `verbs_context`: of the `ibv_context` and of the operation. `EXTENDED` is the
    /// offset in `ibv_context` of the mark (`abi_compat`) that it lies in a `verbs_context`.
    const CONTEXT: usize = 368;
    const CALL: usize = 312;
    const EXTENDED: usize = 320;
    // SAFETY: a context with this mark lies in a `verbs_context`, whose operation is valid or NULL.
    unsafe {
        let at = c.cast::<u8>();
        if at.add(EXTENDED).cast::<usize>().read() != usize::MAX {
            return core::ptr::null_mut();
        }
        let call = at.sub(CONTEXT).add(CALL).cast::<Option<Create>>().read();
        call.map_or(core::ptr::null_mut(), |f| f(c, init))
    }
}

fn open(name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: the name is a C string. The library is never closed.
    let p = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if !p.is_null() {
        return Ok(p);
    }
    // SAFETY: the text of a call that has just failed in this thread is a C string, or NULL.
    let why = unsafe {
        libc::dlerror()
            .cast_const()
            .as_ref()
            .map(|s| CStr::from_ptr(s))
    };
    Err(match why {
        Some(why) => why.to_string_lossy().into_owned(),
        None => format!("{} is not there", name.to_string_lossy()),
    })
}

/// The libraries, or why they cannot be used. They are looked for until they are found.
pub fn lib() -> Result<&'static Lib, String> {
    static LIB: OnceLock<Lib> = OnceLock::new();
    match LIB.get() {
        Some(lib) => Ok(lib),
        None => Lib::load().map(|lib| LIB.get_or_init(|| lib)),
    }
}
