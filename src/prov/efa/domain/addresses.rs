//! Address vectors of a domain (fi_av(3)).

use super::EfaDomain;
use crate::core::registry::Query;
use crate::core::Result;
use crate::prov::contract::{busy_unless, Addresses, AvAttr, AvInfo};
use crate::prov::efa::av::Av;
use crate::prov::efa::{addr, info, peers};
use crate::types::*;

impl Addresses for EfaDomain {
    fn addr_len(_: [u8; 2]) -> Result<usize> {
        Ok(addr::LEN)
    }

    fn addr_text(raw: &[u8]) -> String {
        addr::from_raw(raw).map_or(String::new(), |a| addr::to_text(&a))
    }

    fn resolve(&self, node: &str, service: Option<&str>) -> Result<Vec<u8>> {
        let q = Query {
            api: crate::core::API_VERSION,
            node: Some(node),
            service,
            flags: 0,
            hints: None,
        };
        let list = info::getinfo(&q)?;
        let dest = list.first().and_then(|i| i.dest_addr.clone());
        dest.ok_or(FI_EADDRNOTAVAIL)
    }

    fn open_av(&self, attr: &AvAttr) -> Result<u32> {
        let mut v = Av::new(attr.type_, attr.count, attr.rx_ctx_bits);
        let mut s = self.lock_control();
        if let Some(name) = attr.name {
            v.share(name, attr.reader, &mut s.peers)?;
        }
        Ok(s.avs.insert(v))
    }

    fn close_av(&self, id: u32) -> Result<()> {
        let mut s = self.lock_control();
        // Also by endpoints that are not enabled yet.
        let used = s.avs.get(id).is_some_and(|a| a.users > 0)
            || s.eps.iter().any(|(_, e)| e.av() == Some(id));
        busy_unless(!used, "address vector", "endpoints bound to it")?;
        let s = &mut *s;
        let v = s.avs.remove(id).ok_or(FI_EBADF)?;
        v.peers().for_each(|p| s.peers.note_removed(p));
        peers::reclaim_all(s);
        Ok(())
    }

    fn av_info(&self, id: u32) -> Result<AvInfo> {
        let s = self.lock_control();
        let v = s.avs.get(id).ok_or(FI_EBADF)?;
        Ok(AvInfo {
            type_: v.type_,
            read_only: v.read_only(),
            end: v.end(),
        })
    }

    fn hold_av(&self, id: u32, hold: bool) {
        if let Some(v) = self.lock_control().avs.get_mut(id) {
            v.users = if hold { v.users + 1 } else { v.users - 1 };
        }
    }

    fn insert_addr(&self, id: u32, raw: &[u8]) -> Result<fi_addr_t> {
        let mut s = self.lock_control();
        let s = &mut *s;
        let v = s.avs.get_mut(id).ok_or(FI_EBADF)?;
        let at = v.insert_reached(raw, &mut s.peers, &*s.dev);
        peers::readdress(s);
        peers::renew(s, id);
        at
    }

    fn remove_addr(&self, id: u32, fi_addr: fi_addr_t) -> Result<()> {
        let mut s = self.lock_control();
        let s = &mut *s;
        let av = s.avs.get_mut(id).ok_or(FI_EBADF)?;
        if av.read_only() {
            // Its indices are those of the process that inserts.
            crate::warn_log!(
                FI_LOG_AV,
                "fi_av_remove: the vector was opened with FI_READ"
            );
            return Err(FI_EINVAL);
        }
        let peer = av.peer(fi_addr, &mut s.peers);
        if av.remove(fi_addr)? {
            peer.into_iter().for_each(|p| s.peers.note_removed(p));
            peers::reclaim(s);
        }
        Ok(())
    }

    fn lookup_addr(&self, id: u32, fi_addr: fi_addr_t) -> Result<Vec<u8>> {
        let s = self.lock_control();
        let a = s.avs.get(id).ok_or(FI_EBADF)?.lookup(fi_addr)?;
        Ok(addr::to_raw(&a).to_vec())
    }
}
