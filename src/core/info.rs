//! `struct fi_info` without pointers: the attributes of a candidate, or the hints of an application
//! (fi_getinfo(3)).
//!
//! `abi::info` fills an [`Info`] from the caller's hints, whatever symbol version they came by;
//! [`super::check`] compares hints with each candidate, [`super::alter`] shapes the answer, and
//! `abi::info` writes it out in the caller's own layout. Field names and units are those of
//! fi_getinfo(3), fi_domain(3) and fi_endpoint(3).

// Each field is one of the C struct's, which the man pages describe.
#![allow(missing_docs)]

use crate::types::*;

/// One candidate or one set of hints. An attribute group is `None` where the caller passed NULL.
#[derive(Clone, Debug, Default)]
pub struct Info {
    pub caps: u64,
    pub mode: u64,
    pub addr_format: u32,
    pub src_addr: Option<Vec<u8>>,
    pub dest_addr: Option<Vec<u8>>,
    /// `fid_t handle`, passed through untouched.
    pub handle: usize,
    pub tx: Option<TxAttr>,
    pub rx: Option<RxAttr>,
    pub ep: Option<EpAttr>,
    pub domain: Option<DomainAttr>,
    pub fabric: Option<FabricAttr>,
    pub nic: Option<Nic>,
}

/// `struct fi_tx_attr`
#[derive(Clone, Debug, Default)]
pub struct TxAttr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub inject_size: usize,
    pub size: usize,
    pub iov_limit: usize,
    pub rma_iov_limit: usize,
    pub tclass: u32,
}

/// `struct fi_rx_attr`
#[derive(Clone, Debug, Default)]
pub struct RxAttr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub total_buffered_recv: usize,
    pub size: usize,
    pub iov_limit: usize,
}

/// `struct fi_ep_attr`
#[derive(Clone, Debug, Default)]
pub struct EpAttr {
    pub type_: fi_ep_type,
    pub protocol: u32,
    pub protocol_version: u32,
    pub max_msg_size: usize,
    pub msg_prefix_size: usize,
    pub max_order_raw_size: usize,
    pub max_order_war_size: usize,
    pub max_order_waw_size: usize,
    pub mem_tag_format: u64,
    pub tx_ctx_cnt: usize,
    pub rx_ctx_cnt: usize,
    pub auth_key: Option<Vec<u8>>,
    pub auth_key_size: usize,
    /// `struct fid_xpu_ctx *`, passed through untouched.
    pub xpu_ctx: usize,
}

/// `struct fi_domain_attr`
#[derive(Clone, Debug, Default)]
pub struct DomainAttr {
    /// `struct fid_domain *`, see `core/opened.rs`.
    pub domain: usize,
    pub name: Option<String>,
    pub threading: fi_threading,
    pub control_progress: fi_progress,
    pub progress: fi_progress,
    pub resource_mgmt: fi_resource_mgmt,
    pub av_type: fi_av_type,
    pub mr_mode: i32,
    pub mr_key_size: usize,
    pub cq_data_size: usize,
    pub cq_cnt: usize,
    pub ep_cnt: usize,
    pub tx_ctx_cnt: usize,
    pub rx_ctx_cnt: usize,
    pub max_ep_tx_ctx: usize,
    pub max_ep_rx_ctx: usize,
    pub max_ep_stx_ctx: usize,
    pub max_ep_srx_ctx: usize,
    pub cntr_cnt: usize,
    pub mr_iov_limit: usize,
    pub caps: u64,
    pub mode: u64,
    pub auth_key: Option<Vec<u8>>,
    pub auth_key_size: usize,
    pub max_err_data: usize,
    pub mr_cnt: usize,
    pub tclass: u32,
    pub max_ep_auth_key: usize,
    pub max_group_id: u32,
    pub max_cntr_value: u64,
    pub max_err_cntr_value: u64,
    pub max_xpu_ctx_cnt: usize,
}

/// `struct fi_fabric_attr`
#[derive(Clone, Debug, Default)]
pub struct FabricAttr {
    /// `struct fid_fabric *`, see `core/opened.rs`.
    pub fabric: usize,
    pub name: Option<String>,
    pub prov_name: Option<String>,
    pub prov_version: u32,
    pub api_version: u32,
}

/// `struct fid_nic` and the attributes that it points to.
#[derive(Clone, Debug, Default)]
pub struct Nic {
    pub device: Option<DeviceAttr>,
    pub bus: Option<BusAttr>,
    pub link: Option<LinkAttr>,
}

/// `struct fi_device_attr`
#[derive(Clone, Debug, Default)]
pub struct DeviceAttr {
    pub name: Option<String>,
    pub device_id: Option<String>,
    pub device_version: Option<String>,
    pub vendor_id: Option<String>,
    pub driver: Option<String>,
    pub firmware: Option<String>,
}

/// `struct fi_bus_attr`
#[derive(Clone, Debug, Default)]
pub struct BusAttr {
    pub bus_type: fi_bus_type,
    pub domain_id: u16,
    pub bus_id: u8,
    pub device_id: u8,
    pub function_id: u8,
}

/// `struct fi_link_attr`; `speed` in bits per second.
#[derive(Clone, Debug, Default)]
pub struct LinkAttr {
    pub address: Option<String>,
    pub mtu: usize,
    pub speed: usize,
    pub state: fi_link_state,
    pub network_type: Option<String>,
}

impl Info {
    /// An info with every attribute group present and zero, as fi_allocinfo(3) makes it.
    pub fn empty() -> Info {
        Info {
            tx: Some(TxAttr::default()),
            rx: Some(RxAttr::default()),
            ep: Some(EpAttr::default()),
            domain: Some(DomainAttr::default()),
            fabric: Some(FabricAttr::default()),
            ..Info::default()
        }
    }

    /// Name of the provider asked for or offered, if any.
    pub fn prov_name(&self) -> Option<&str> {
        self.fabric.as_ref()?.prov_name.as_deref()
    }

    /// Whether the application serialises its calls to the domain (FI_THREAD_DOMAIN).
    pub fn has_serial_calls(&self) -> bool {
        let d = self.domain.as_ref();
        d.is_some_and(|d| d.threading == FI_THREAD_DOMAIN)
    }

    /// Whether the library makes progress without calls of the application (FI_PROGRESS_AUTO).
    pub fn has_auto_progress(&self) -> bool {
        let d = self.domain.as_ref();
        d.is_some_and(|d| d.progress == FI_PROGRESS_AUTO)
    }
}
