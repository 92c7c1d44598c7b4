//! Offsets and sizes of the Rust mirrors, as the compiler sees them, for comparison with the facts.
//! One line per struct; members that C leaves nameless go by the name they have in Rust.

pub mod constants;

use core::mem::{offset_of, size_of};
use fabric::types::*;

/// Name, size, and (member, offset) of one struct.
pub type Layout = (&'static str, usize, Vec<(&'static str, usize)>);

macro_rules! layouts {
    ($($s:ident { $($m:ident)* })*) => {
        vec![$((
            stringify!($s),
            size_of::<$s>(),
            vec![$((stringify!($m), offset_of!($s, $m)),)*],
        ),)*]
    };
}

/// Layouts of all structs.
pub fn all() -> Vec<Layout> {
    layouts! {
        fi_alias { fid flags }
        fi_atomic_attr { count size }
        fi_av_attr { r#type rx_ctx_bits count ep_per_node name map_addr flags }
        fi_av_set_attr { count start_addr end_addr stride comm_key_size comm_key flags }
        fi_bus_attr { bus_type attr }
        fi_cntr_attr { events wait_obj wait_set flags xpu_ctx }
        fi_collective_addr { set coll_addr }
        fi_collective_attr { op datatype datatype_attr max_members mode }
        fi_context { internal }
        fi_context2 { internal }
        fi_cq_attr { size flags format wait_obj signaling_vector wait_cond wait_set xpu_ctx }
        fi_cq_data_entry { op_context flags len buf data }
        fi_cq_entry { op_context }
        fi_cq_err_entry { op_context flags len buf data tag olen err prov_errno err_data
            err_data_size src_addr }
        fi_cq_msg_entry { op_context flags len }
        fi_cq_tagged_entry { op_context flags len buf data tag }
        fi_deferred_work { context threshold triggering_cntr completion_cntr op_type op }
        fi_device_attr { name device_id device_version vendor_id driver firmware }
        fi_domain_attr { domain name threading control_progress progress resource_mgmt av_type
            mr_mode mr_key_size cq_data_size cq_cnt ep_cnt tx_ctx_cnt rx_ctx_cnt max_ep_tx_ctx
            max_ep_rx_ctx max_ep_stx_ctx max_ep_srx_ctx cntr_cnt mr_iov_limit caps mode auth_key
            auth_key_size max_err_data mr_cnt tclass max_ep_auth_key max_group_id max_cntr_value
            max_err_cntr_value max_xpu_ctx_cnt }
        fi_efa_comp_cntr_init_attr { comp_mask flags reserved comp_cntr_ext_mem err_cntr_ext_mem }
        fi_efa_cq_attr { buffer entry_size num_entries }
        fi_efa_cq_init_attr { flags ext_mem_dmabuf }
        fi_efa_feature_ops { query }
        fi_efa_memory_location { ptr dmabuf r#type reserved }
        fi_efa_mr_attr { ic_id_validity recv_ic_id rdma_read_ic_id rdma_recv_ic_id }
        fi_efa_ops_domain { query_mr }
        fi_efa_ops_gda { query_addr query_qp_wqs query_cq cq_open_ext get_mr_lkey cntr_open_ext }
        fi_efa_wq_attr { buffer entry_size num_entries doorbell max_batch caps }
        fi_ep_attr { r#type protocol protocol_version max_msg_size msg_prefix_size
            max_order_raw_size max_order_war_size max_order_waw_size mem_tag_format tx_ctx_cnt
            rx_ctx_cnt auth_key_size auth_key xpu_ctx }
        fi_eq_attr { size flags wait_obj signaling_vector wait_set }
        fi_eq_cm_entry { fid info data }
        fi_eq_entry { fid context data }
        fi_eq_err_entry { fid context data err prov_errno err_data err_data_size }
        fi_fabric_attr { fabric name prov_name prov_version api_version }
        fi_fid_export { fid flags context }
        fi_fid_var { name val }
        fi_hmem_override_ops { size copy_from_hmem_iov copy_to_hmem_iov }
        fi_info { next caps mode addr_format src_addrlen dest_addrlen src_addr dest_addr handle
            tx_attr rx_attr ep_attr domain_attr fabric_attr nic }
        fi_ioc { addr count }
        fi_link_attr { address mtu speed state network_type }
        fi_mr_attr { src iov_count access offset requested_key context auth_key_size auth_key
            iface device hmem_data page_size base_mr sub_mr_cnt }
        fi_mr_auth_key { av src_addr }
        fi_mr_dmabuf { fd offset len base_addr }
        fi_mr_map_raw { flags base_addr raw_key key_size key }
        fi_mr_modify { flags attr }
        fi_mr_raw_attr { flags base_addr raw_key key_size }
        fi_mr_xpu_desc { buf len flags ctx }
        fi_msg { msg_iov desc iov_count addr context data }
        fi_msg_atomic { msg_iov desc iov_count addr rma_iov rma_iov_count datatype op context
            data }
        fi_msg_collective { msg_iov desc iov_count coll_addr root_addr coll datatype op context }
        fi_msg_compare { msg_iov desc iov_count }
        fi_msg_fetch { msg_iov desc iov_count }
        fi_msg_rma { msg_iov desc iov_count addr rma_iov rma_iov_count context data }
        fi_msg_tagged { msg_iov desc iov_count addr tag ignore context data }
        fi_mutex_cond { mutex cond }
        fi_op_atomic { ep msg flags }
        fi_op_cntr { cntr value }
        fi_op_compare_atomic { ep msg fetch compare flags }
        fi_op_fetch_atomic { ep msg fetch flags }
        fi_op_msg { ep msg flags }
        fi_op_rma { ep msg flags }
        fi_op_tagged { ep msg flags }
        fi_ops { size close bind control ops_open tostr ops_set }
        fi_ops_atomic { size write writev writemsg inject readwrite readwritev readwritemsg
            compwrite compwritev compwritemsg writevalid readwritevalid compwritevalid }
        fi_ops_av { size insert insertsvc insertsym remove lookup straddr av_set insert_auth_key
            lookup_auth_key set_user_id lookup2 }
        fi_ops_av_owner { size query ep_addr }
        fi_ops_av_set { size set_union intersect diff insert remove addr }
        fi_ops_av_set_owner { size members }
        fi_ops_cm { size setname getname getpeer connect listen accept reject shutdown join }
        fi_ops_cntr { size read readerr add set wait adderr seterr export_xpu }
        fi_ops_cntr_owner { size inc incerr }
        fi_ops_collective { size barrier broadcast alltoall allreduce allgather reduce_scatter
            reduce scatter gather msg barrier2 }
        fi_ops_cq { size read readfrom readerr sread sreadfrom signal strerror export_xpu }
        fi_ops_cq_owner { size write writeerr }
        fi_ops_domain { size av_open cq_open endpoint scalable_ep cntr_open poll_open stx_ctx
            srx_ctx query_atomic query_collective endpoint2 xpu_ctx }
        fi_ops_ep { size cancel getopt setopt tx_ctx rx_ctx rx_size_left tx_size_left export_xpu }
        fi_ops_eq { size read readerr write sread strerror }
        fi_ops_fabric { size domain passive_ep eq_open wait_open trywait domain2 }
        fi_ops_log { size enabled ready log }
        fi_ops_mem_monitor { size start stop subscribe unsubscribe valid }
        fi_ops_mem_notify { size notify }
        fi_ops_mr { size reg regv regattr }
        fi_ops_msg { size recv recvv recvmsg send sendv sendmsg inject senddata injectdata }
        fi_ops_poll { size poll poll_add poll_del }
        fi_ops_rma { size read readv readmsg write writev writemsg inject writedata injectdata }
        fi_ops_srx_owner { size get_msg get_tag queue_msg queue_tag foreach_unspec_addr
            free_entry }
        fi_ops_srx_peer { size start_msg start_tag discard_msg discard_tag }
        fi_ops_tagged { size recv recvv recvmsg send sendv sendmsg inject senddata injectdata }
        fi_ops_transfer_peer { size complete comperr }
        fi_ops_wait { size wait }
        fi_ops_xpu_ctx { size query }
        fi_param { name r#type help_string value }
        fi_pci_attr { domain_id bus_id device_id function_id }
        fi_peer_av_context { size av }
        fi_peer_av_set_context { size av_set }
        fi_peer_cntr_context { size cntr }
        fi_peer_cq_context { size cq }
        fi_peer_domain_context { size domain }
        fi_peer_eq_context { size eq }
        fi_peer_match_attr { addr msg_size tag }
        fi_peer_rx_entry { srx addr msg_size tag cq_data flags context count desc peer_context
            owner_context iov }
        fi_peer_srx_context { size srx }
        fi_peer_transfer_context { size info ep peer_ops }
        fi_poll_attr { flags }
        fi_profile_desc { id datatype_sel datatype flags size name desc }
        fi_profile_ops { size reset query_vars query_events read_var reg_callback start_reads
            end_reads }
        fi_provider { version fi_version context name getinfo fabric cleanup }
        fi_recv_context { ep context }
        fi_rma_ioc { addr count key }
        fi_rma_iov { addr len key }
        fi_rx_attr { caps mode op_flags msg_order comp_order total_buffered_recv size iov_limit }
        fi_trigger_threshold { cntr threshold }
        fi_trigger_var { datatype count addr value }
        fi_trigger_xpu { count iface device var }
        fi_triggered_context { event_type trigger }
        fi_triggered_context2 { event_type trigger }
        fi_tx_attr { caps mode op_flags msg_order comp_order inject_size size iov_limit
            rma_iov_limit tclass }
        fi_wait_attr { wait_obj flags }
        fi_wait_pollfd { change_index nfds fd }
        fi_xpu_attr { iface device ops }
        fi_xpu_ctx_attr { caps av_addr_size mr_desc_size }
        fi_xpu_ops { size alloc import free }
        fid { fclass context ops }
        fid_av { fid ops }
        fid_av_set { fid ops }
        fid_cntr { fid ops }
        fid_cq { fid ops }
        fid_domain { fid ops mr }
        fid_ep { fid ops cm msg rma tagged atomic collective }
        fid_eq { fid ops }
        fid_fabric { fid ops api_version }
        fid_logging { fid ops }
        fid_mc { fid fi_addr }
        fid_mem_monitor { fid export_ops import_ops }
        fid_mr { fid mem_desc key }
        fid_nic { fid device_attr bus_attr link_attr prov_attr }
        fid_peer_av { fid owner_ops }
        fid_peer_av_set { fid owner_ops }
        fid_peer_cntr { fid owner_ops }
        fid_peer_cq { fid owner_ops }
        fid_peer_srx { ep_fid owner_ops peer_ops }
        fid_pep { fid ops cm }
        fid_poll { fid ops }
        fid_profile { fid ops }
        fid_stx { fid ops }
        fid_wait { fid ops }
        fid_xpu { fclass prov_id prov_ctx }
        fid_xpu_cntr { fid }
        fid_xpu_cq { fid }
        fid_xpu_ctx { fid ops }
        fid_xpu_ep { fid }
    }
}
