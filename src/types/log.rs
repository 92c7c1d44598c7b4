//! Mirror of `<rdma/providers/fi_log.h>`: values and layouts only. Behaviour is documented in
//! fi_provider(3).

use core::ffi::c_uint;

#[allow(unused_imports)]
use super::*;

/// `enum fi_log_subsys`; see fi_provider(3).
pub type fi_log_subsys = c_uint;
pub const FI_LOG_CORE: fi_log_subsys = 0;
pub const FI_LOG_FABRIC: fi_log_subsys = 1;
pub const FI_LOG_DOMAIN: fi_log_subsys = 2;
pub const FI_LOG_EP_CTRL: fi_log_subsys = 3;
pub const FI_LOG_EP_DATA: fi_log_subsys = 4;
pub const FI_LOG_AV: fi_log_subsys = 5;
pub const FI_LOG_CQ: fi_log_subsys = 6;
pub const FI_LOG_EQ: fi_log_subsys = 7;
pub const FI_LOG_MR: fi_log_subsys = 8;
pub const FI_LOG_CNTR: fi_log_subsys = 9;

/// `enum fi_log_level`; see fi_provider(3).
pub type fi_log_level = c_uint;
pub const FI_LOG_WARN: fi_log_level = 0;
pub const FI_LOG_TRACE: fi_log_level = 1;
pub const FI_LOG_INFO: fi_log_level = 2;
pub const FI_LOG_DEBUG: fi_log_level = 3;
