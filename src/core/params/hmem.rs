//! Parameters of device memory (FI_HMEM), which all providers share.

use super::table::{param_kind, param_table};
use std::sync::OnceLock;

param_table! {
    HmemParams of None;
    hmem: text = None,
        "Comma list of the interfaces of device memory to use: system, cuda, rocr, neuron, \
         synapseai. Default: those that this machine has.";
    hmem_disable_p2p: flag = false,
        "Have no adapter read or write device memory itself: everything is copied. efa-direct, \
         which cannot do without, offers no FI_HMEM then.";
    hmem_cuda_use_dmabuf: flag = true,
        "Register CUDA memory with an adapter as a dma-buf, where driver and kernel can; else by \
         its address (nvidia-peermem).";
    hmem_cuda_enable_async_copy: flag = true,
        "Have copies of CUDA memory between processes of one host end later, while the program \
         goes on; else they are waited for.";
    hmem_cuda_use_gdrcopy: flag = true,
        "Copy a few bytes of CUDA memory by the processor, where GDRCopy (libgdrapi.so.2 and its \
         driver) is there; else by the driver.";
    shm_max_gdrcopy_size: size = 3072,
        "Most bytes of one copy by GDRCopy.";
    hmem_rocr_use_dmabuf: flag = true,
        "Register memory of AMD GPUs with an adapter as a dma-buf, else by its address.";
    hmem_neuron_use_dmabuf: flag = true,
        "Register Neuron memory with an adapter as a dma-buf, else by its address.";
    hmem_synapseai_use_dmabuf: flag = true,
        "Register Gaudi memory with an adapter as a dma-buf, else by its address.";
}

/// The values, read when this is called for the first time.
pub fn hmem() -> &'static HmemParams {
    static VALUES: OnceLock<HmemParams> = OnceLock::new();
    VALUES.get_or_init(HmemParams::read)
}

impl HmemParams {
    /// Whether an interface of this name may be used.
    pub fn permits(&self, name: &str) -> bool {
        let list = self.hmem.as_deref();
        list.is_none_or(|l| {
            l.split([',', ';'])
                .any(|n| n.trim().eq_ignore_ascii_case(name))
        })
    }
}
