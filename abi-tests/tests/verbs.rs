//! The parts of libibverbs and libefa that the verbs device declares, against the recorded facts
//! (`facts/verbs-efadv.json`).

use core::mem::{offset_of, size_of};
use fabric::device::verbs::sys::*;
use serde_json::Value;
use std::path::Path;

fn facts() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("facts/verbs-efadv.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn offset(f: &Value, of: &str, member: &str) -> u64 {
    let members = f["structs"][of]["members"].as_array().unwrap();
    let m = members.iter().find(|m| m["name"] == member);
    m.unwrap_or_else(|| panic!("{of}.{member}"))["offset"]
        .as_u64()
        .unwrap()
}

/// Compares member offsets, and with `=> whole` the size of structs that the library allocates.
macro_rules! same {
    ($f:expr, $n:ident, $($t:ident: $($m:ident),+ $(=> $size:ident)?;)*) => {$(
        $(
            let want = offset(&$f, stringify!($t), stringify!($m));
            let name = concat!(stringify!($t), ".", stringify!($m));
            assert_eq!(offset_of!($t, $m) as u64, want, "{name}");
            $n += 1;
        )+
        $(
            let _ = stringify!($size);
            let want = $f["structs"][stringify!($t)]["size"].as_u64().unwrap();
            assert_eq!(size_of::<$t>() as u64, want, stringify!($t));
        )?
    )*};
}

#[test]
fn declared_members_are_where_the_libraries_have_them() {
    let f = facts();
    let mut n = 0;
    same! { f, n,
        ibv_context: device, num_comp_vectors;
        ibv_pd: context;
        ibv_cq: context;
        ibv_comp_channel: context, fd;
        ibv_mr: context, pd, addr, length, handle, lkey, rkey => whole;
        ibv_qp: context, handle, qp_num => whole;
        ibv_qp_ex: qp_base, comp_mask, wr_id, wr_flags, wr_rdma_read, wr_rdma_write,
            wr_rdma_write_imm, wr_send,
            wr_send_imm, wr_set_ud_addr, wr_set_inline_data, wr_set_sge, wr_set_sge_list,
                wr_start, wr_complete, wr_abort;
        ibv_sge: addr, length, lkey => whole;
        ibv_recv_wr: wr_id, next, sg_list, num_sge => whole;
        ibv_wc: wr_id, status, opcode, vendor_err, byte_len, qp_num, src_qp, wc_flags,
            pkey_index, slid, sl => whole;
        ibv_qp_cap: max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data => whole;
        ibv_qp_init_attr_ex: qp_context, send_cq, recv_cq, cap, qp_type, sq_sig_all, comp_mask,
            pd, create_flags,
            source_qpn, send_ops_flags => whole;
        ibv_qp_attr: qp_state, qkey, sq_psn, cap, ah_attr, pkey_index, port_num, rnr_retry,
            rate_limit => whole;
        ibv_ah_attr: dlid, sl, is_global, port_num => whole;
        ibv_device_attr: fw_ver, vendor_id, vendor_part_id, max_qp, max_sge_rd, max_cq,
            max_mr => whole;
        ibv_port_attr: state, max_msg_sz, active_width, active_speed, phys_state,
            link_layer => whole;
        efadv_device_attr: max_sq_wr, max_rq_wr, max_sq_sge, max_rq_sge, inline_buf_size,
            device_caps, max_rdma_size => whole;
        efadv_qp_init_attr: comp_mask, driver_qp_type, flags, sl;
        efadv_ah_attr: comp_mask, ahn => whole;
        efadv_wq_attr: buffer, entry_size, num_entries, doorbell, max_batch, caps => whole;
        efadv_cq_attr: buffer, entry_size, num_entries, doorbell => whole;
        ibv_cq_init_attr_ex: cqe, cq_context, channel, comp_vector, wc_flags, comp_mask, flags,
            parent_domain => whole;
        efadv_cq_init_attr: comp_mask, wc_flags, flags => whole;
        ibv_comp_cntr: context, handle => whole;
        ibv_comp_cntr_init_attr: comp_mask, flags => whole;
        ibv_comp_cntr_caps: max_value, max_counters, supported_qp_attach_ops => whole;
        ibv_qp_attach_comp_cntr_attr: comp_mask, op_mask => whole;
        efadv_comp_cntr_init_attr: comp_mask, flags, comp_cntr_ext_mem, err_cntr_ext_mem => whole;
        efadv_mr_attr: ic_id_validity, recv_ic_id, rdma_read_ic_id, rdma_recv_ic_id => whole;
    }
    assert!(n > 100, "only {n} members compared");
}

#[test]
fn calls_of_a_context_are_where_the_library_has_them() {
    let f = facts();
    let ops = offset(&f, "ibv_context", "ops");
    for (call, at) in [
        ("poll_cq", offset_of!(ibv_context, poll_cq)),
        ("req_notify_cq", offset_of!(ibv_context, req_notify_cq)),
        ("post_recv", offset_of!(ibv_context, post_recv)),
    ] {
        let want = ops + offset(&f, "ibv_context_ops", call);
        assert_eq!(at as u64, want, "{call}");
    }
    // Offsets that `create_qp_ex` relies on.
    assert_eq!(offset(&f, "verbs_context", "context"), 368);
    assert_eq!(offset(&f, "verbs_context", "create_qp_ex"), 312);
    assert_eq!(offset(&f, "ibv_context", "abi_compat"), 320);
}
