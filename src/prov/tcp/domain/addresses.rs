//! Address vectors (fi_av(3)) and memory regions (fi_mr(3)) of a domain.

use super::TcpDomain;
use crate::core::sockaddr as addr;
use crate::core::Result;
use crate::device::DmaBuf;
use crate::hmem::UserMem;
use crate::prov::contract::{busy_unless, Addresses, AvAttr, AvInfo, MemoryRegions, Mr};
use crate::prov::reports::completion::bind_region;
use crate::prov::reports::endpoint::check_region_kinds;
use crate::prov::tcp::peers::TcpAv;
use crate::prov::tcp::{conn, info};
use crate::types::*;
use std::sync::atomic::Ordering;

impl Addresses for TcpDomain {
    fn addr_len(head: [u8; 2]) -> Result<usize> {
        addr::addr_len(head)
    }

    fn addr_text(raw: &[u8]) -> String {
        addr::from_raw(raw).map_or(String::new(), |a| addr::to_text(&a))
    }

    fn resolve(&self, node: &str, service: Option<&str>) -> Result<Vec<u8>> {
        let mut list = info::resolve(node, service, 0)?;
        // A numeric address is taken as it is.
        if node.parse::<std::net::IpAddr>().is_err() {
            list.retain(|a| info::format_fits(self.addr_format, a));
        }
        let v4 = list.iter().find(|a| a.is_ipv4());
        let first = v4.or(list.first()).ok_or(FI_EADDRNOTAVAIL)?;
        Ok(addr::to_raw(first))
    }

    fn open_av(&self, attr: &AvAttr) -> Result<u32> {
        if attr.name.is_some() || attr.rx_ctx_bits > 0 {
            crate::warn_log!(
                FI_LOG_AV,
                "fi_av_open: provider tcp has no address vectors with a name or rx_ctx_bits"
            );
            return Err(FI_ENOSYS);
        }
        let v = TcpAv::new(attr.type_, attr.count);
        Ok(self.lock_control().avs.insert(v))
    }

    fn close_av(&self, id: u32) -> Result<()> {
        let mut s = self.lock_control();
        let s = &mut *s;
        let used = s.avs.get(id).is_some_and(|a| a.users > 0)
            || s.eps.iter().any(|(_, e)| e.av == Some(id));
        busy_unless(!used, "address vector", "endpoints bound to it")?;
        let mut v = s.avs.remove(id).ok_or(FI_EBADF)?;
        v.clear(&mut s.peers);
        Ok(())
    }

    fn av_info(&self, id: u32) -> Result<AvInfo> {
        let s = self.lock_control();
        let v = s.avs.get(id).ok_or(FI_EBADF)?;
        Ok(AvInfo {
            type_: v.type_,
            read_only: false,
            end: v.end(),
        })
    }

    fn hold_av(&self, id: u32, hold: bool) {
        if let Some(v) = self.lock_control().avs.get_mut(id) {
            v.users = if hold { v.users + 1 } else { v.users - 1 };
        }
    }

    fn insert_addr(&self, id: u32, raw: &[u8]) -> Result<fi_addr_t> {
        let a = addr::from_raw(raw).ok_or(FI_EINVAL)?;
        if a.ip().is_unspecified() || a.port() == 0 {
            return Err(FI_EADDRNOTAVAIL);
        }
        let mut s = self.lock_control();
        let s = &mut *s;
        let v = s.avs.get_mut(id).ok_or(FI_EBADF)?;
        Ok(v.insert(a, &mut s.peers))
    }

    fn remove_addr(&self, id: u32, fi_addr: fi_addr_t) -> Result<()> {
        let mut s = self.lock_control();
        let s = &mut *s;
        let v = s.avs.get_mut(id).ok_or(FI_EBADF)?;
        v.remove(fi_addr, &mut s.peers)
    }

    fn lookup_addr(&self, id: u32, fi_addr: fi_addr_t) -> Result<Vec<u8>> {
        let s = self.lock_control();
        let peer = s.avs.get(id).ok_or(FI_EBADF)?.peer(fi_addr)?;
        let a = s.peers.addr(peer).ok_or(FI_EINVAL)?;
        Ok(addr::to_raw(&a))
    }
}

impl MemoryRegions for TcpDomain {
    fn reg_mr(&self, mem: UserMem, from: Option<DmaBuf>, access: u64, wanted: u64) -> Result<Mr> {
        crate::core::memory::check()?;
        if from.is_some() || !mem.is_host() {
            crate::warn_log!(
                FI_LOG_MR,
                "fi_mr_reg: provider tcp reaches host memory only (FI_HMEM_SYSTEM)"
            );
            return Err(FI_EOPNOTSUPP);
        }
        let (key, _) = self.lock_control().mem.insert(mem, access, Some(wanted))?;
        self.mrs.fetch_add(1, Ordering::Relaxed);
        Ok(Mr { key })
    }

    fn close_mr(&self, mr: &Mr) -> Result<()> {
        let mut s = self.lock_control();
        s.mem.remove(mr.key)?;
        conn::region_closed(&mut s, mr.key);
        s.mr_cntrs.retain(|(key, _, _)| *key != mr.key);
        self.mrs.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }

    fn bind_mr(&self, mr: &Mr, cntr: u32, kinds: u64) -> Result<()> {
        check_region_kinds(kinds)?;
        let mut s = self.lock_control();
        s.cntrs.get(cntr).ok_or(FI_EBADF)?;
        bind_region(&mut s.mr_cntrs, mr.key, cntr, kinds);
        Ok(())
    }
}
