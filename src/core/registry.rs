//! The providers of this process, and fi_getinfo(3), which asks them.
//!
//! `abi` registers the library's own (`prov::visit`) and whatever `FI_PROVIDER_PATH` adds;
//! `layering` has the rules by which `FI_PROVIDER` and the provider name in the hints choose among
//! them. Rejected candidates leave a reason behind: one log line each at level info, which
//! `fi_info --why` shows.

use super::errno::Result;
use super::info::{FabricAttr, Info};
use super::layering::{self, ProviderFilter, ProviderRole};
use crate::core::sync::{RwLock, Unpoisoned};
use crate::types::*;
use std::sync::Arc;

/// Arguments of fi_getinfo(3), as a provider gets them.
#[derive(Default)]
pub struct Query<'a> {
    /// API version of the application, `FI_VERSION(major, minor)`.
    pub api: u32,
    /// Host or address; of the source when `flags` has `FI_SOURCE`, else of the destination.
    pub node: Option<&'a str>,
    /// Service or port, same side as `node`.
    pub service: Option<&'a str>,
    /// `FI_SOURCE`, `FI_NUMERICHOST`, `FI_RESCAN`, ...
    pub flags: u64,
    /// `None` when the application passed NULL.
    pub hints: Option<&'a Info>,
}

/// A provider as the registry sees it. Control path only, hence a trait object.
pub trait RegisteredProvider: Send + Sync {
    /// Name, as in `fabric_attr->prov_name`.
    fn name(&self) -> &str;
    /// What it does.
    fn role(&self) -> ProviderRole {
        ProviderRole::Core
    }
    /// Version, `FI_VERSION(major, minor)`.
    fn version(&self) -> u32;
    /// The newest API that it implements.
    fn api_version(&self) -> u32 {
        super::API_NEWEST
    }
    /// Address of its `struct fi_provider`, which stays.
    fn c_struct(&self) -> usize;
    /// Candidates that satisfy the query, best first; an empty list when there is none.
    fn getinfo(&self, q: &Query) -> Result<Vec<Info>>;
    /// fi_fabric(3): a handle whose operations are the provider's own.
    fn open_fabric(&self, attr: &FabricAttr, context: usize) -> Result<*mut fid_fabric>;
}

/// Decides which of several providers with the same name is kept: the one with the higher rank;
/// with equal rank the one registered first, or for `Version` the one with the higher version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Preference {
    /// Ranked by version.
    Version,
    /// Preferred to providers of rank `Version`.
    Found,
    /// Preferred to all others.
    Preferred,
}

type Registered = (Preference, Arc<dyn RegisteredProvider>);

static PROVIDERS: RwLock<Vec<Registered>> = RwLock::new(Vec::new());

/// Adds a provider, unless a registered one with the same name is preferred to it.
pub fn register(p: Arc<dyn RegisteredProvider>, rank: Preference) {
    add(&mut PROVIDERS.write().unpoisoned(), p, rank);
}

fn add(all: &mut Vec<Registered>, p: Arc<dyn RegisteredProvider>, rank: Preference) {
    let same = |(_, o): &&mut Registered| o.name().eq_ignore_ascii_case(p.name());
    let Some((old_rank, old)) = all.iter_mut().find(same) else {
        return all.push((rank, p));
    };
    let newer = rank == Preference::Version && p.version() > old.version();
    if rank > *old_rank || rank == *old_rank && newer {
        (*old_rank, *old) = (rank, p);
    }
}

/// Every registered provider, in the order of the answer.
pub fn providers() -> Vec<Arc<dyn RegisteredProvider>> {
    let all = PROVIDERS.read().unpoisoned();
    let mut list: Vec<_> = all.iter().map(|(_, p)| Arc::clone(p)).collect();
    list.sort_by_key(|p| layering::place(p.name()));
    list
}

/// The provider with this name; filters do not apply, because an info may have been made before
/// they changed. Of a layered name `core;utility` the part after the last `;` counts.
pub fn by_name(name: &str) -> Option<Arc<dyn RegisteredProvider>> {
    let last = name.rsplit(';').next().unwrap_or(name);
    providers()
        .into_iter()
        .find(|p| p.name().eq_ignore_ascii_case(last))
}

/// Names of the registered providers of which `keep` holds, for a line of the log.
pub fn names(keep: impl Fn(&dyn RegisteredProvider) -> bool) -> String {
    let all = providers();
    let kept: Vec<&str> = all
        .iter()
        .filter(|p| keep(&***p))
        .map(|p| p.name())
        .collect();
    match kept.as_slice() {
        [] => "none".to_string(),
        kept => kept.join(", "),
    }
}

/// The hooking provider of this name, with or without the prefix `ofi_hook_`; a line where there is
/// none.
pub fn hook(name: &str) -> Option<Arc<dyn RegisteredProvider>> {
    let long = format!("ofi_hook_{name}");
    let is_hook = |p: &Arc<dyn RegisteredProvider>| p.role() == ProviderRole::Hook;
    let hook = by_name(name).filter(is_hook);
    let hook = hook.or_else(|| by_name(&long).filter(is_hook));
    if hook.is_none() {
        let had = names(|p| p.role() == ProviderRole::Hook);
        crate::warn_log!(FI_LOG_CORE, "FI_HOOK: wanted {name}, had {had}");
    }
    hook
}

/// fi_getinfo(3) without pointers: `FI_ENOSYS` when the application is newer than the library,
/// `FI_ENODATA` when no candidate is left, else what the providers offer.
pub fn getinfo(q: &Query) -> Result<Vec<Info>> {
    if q.api > super::API_NEWEST {
        crate::warn_log!(
            FI_LOG_CORE,
            "fi_getinfo: API version {}.{} was asked for, this library implements {}.{}",
            super::major(q.api),
            super::minor(q.api),
            super::major(super::API_NEWEST),
            super::minor(super::API_NEWEST)
        );
        return Err(FI_ENOSYS);
    }
    if q.flags == FI_PROV_ATTR_ONLY {
        return attributes_only();
    }
    let variable = std::env::var("FI_PROVIDER").ok();
    let filter = ProviderFilter::new(variable.as_deref());
    let hint = q.hints.and_then(Info::prov_name);
    let internal = q.flags & layering::INTERNAL;
    let mut out = Vec::new();
    for p in providers() {
        let role = p.role();
        if role == ProviderRole::Hook
            || role == ProviderRole::Offload && internal & layering::OFFLOAD == 0
        {
            continue;
        }
        if internal & layering::WITH_HIDDEN == 0 && filter.hides(p.name(), role) {
            reject(p.name(), "FI_PROVIDER", variable.as_deref().unwrap_or(""));
            continue;
        }
        if !layering::answers(p.name(), role, hint, internal) {
            reject(p.name(), "fabric_attr->prov_name", hint.unwrap_or(""));
            continue;
        }
        if p.api_version() < q.api {
            let had = p.api_version();
            crate::info_log!(
                FI_LOG_CORE,
                "rejected {}: API version: wanted {}.{}, had {}.{}",
                p.name(),
                super::major(q.api),
                super::minor(q.api),
                super::major(had),
                super::minor(had)
            );
            continue;
        }
        match p.getinfo(q) {
            Ok(list) => out.extend(list.into_iter().map(|i| sign(i, q.api, &*p))),
            Err(e) => crate::info_log!(
                FI_LOG_CORE,
                "fi_getinfo: provider {} has nothing to offer: {}",
                p.name(),
                super::errno::text(e)
            ),
        }
    }
    if internal & !layering::OFFLOAD == 0 {
        out.retain(|i| named(i, q.hints) && !filter.drops(i.prov_name().unwrap_or("")));
        stream_sockets_first(&mut out);
    }
    if let Some(format) = wanted_format() {
        out.retain(|i| i.addr_format == format);
    }
    if out.is_empty() {
        if internal == 0 {
            explain_missing(hint, &filter);
        }
        Err(FI_ENODATA)
    } else {
        Ok(out)
    }
}

/// The format of addresses that FI_ADDR_FORMAT asks for (fi_getinfo(3)), if it names one.
fn wanted_format() -> Option<u32> {
    let name = std::env::var("FI_ADDR_FORMAT").ok()?;
    let known = (FI_SOCKADDR..=FI_ADDR_UCX).find(|f| {
        let own = super::tostr::addr_format(*f);
        own.eq_ignore_ascii_case(&name)
    });
    if known.is_none() {
        crate::warn_log!(
            FI_LOG_CORE,
            "FI_ADDR_FORMAT={name}: wanted the name of an address format, as FI_SOCKADDR_IN"
        );
    }
    known
}

/// Whether an info has the names of fabric and domain that the hints ask for.
fn named(i: &Info, hints: Option<&Info>) -> bool {
    let fits = |wanted: Option<&str>, had: Option<&str>| {
        wanted.is_none_or(|w| had.is_some_and(|h| w.eq_ignore_ascii_case(h)))
    };
    hints.is_none_or(|h| {
        fits(fabric_name(h), fabric_name(i)) && fits(domain_name(h), domain_name(i))
    })
}

fn fabric_name(i: &Info) -> Option<&str> {
    i.fabric.as_ref()?.name.as_deref()
}

fn domain_name(i: &Info) -> Option<&str> {
    i.domain.as_ref()?.name.as_deref()
}

/// Puts reliable datagrams of `tcp` before those of `tcp;ofi_rxm`, as the C library does.
fn stream_sockets_first(all: &mut Vec<Info>) {
    let is = |i: &Info, name: &str| {
        let named = i.prov_name().is_some_and(|n| n.eq_ignore_ascii_case(name));
        named && i.ep.as_ref().is_some_and(|e| e.type_ == FI_EP_RDM)
    };
    if !all.iter().any(|i| is(i, "tcp;ofi_rxm")) {
        return;
    }
    let (plain, mut others): (Vec<_>, Vec<_>) = all.drain(..).partition(|i| is(i, "tcp"));
    let at = others.iter().position(|i| is(i, "tcp;ofi_rxm"));
    let at = at.unwrap_or(others.len());
    others.splice(at..at, plain);
    *all = others;
}

/// A line for each provider that a name asked for and that is not here.
fn explain_missing(hint: Option<&str>, filter: &ProviderFilter) {
    let all = providers();
    let hinted = hint.into_iter().flat_map(|h| h.split(';'));
    let named = hinted.filter(|n| !n.starts_with('^')).chain(filter.parts());
    for name in named {
        let here = |p: &Arc<dyn RegisteredProvider>| p.name().eq_ignore_ascii_case(name);
        if name.is_empty() || all.iter().any(here) {
            continue;
        }
        let file = name.strip_prefix("ofi_").unwrap_or(name);
        crate::warn_log!(
            FI_LOG_CORE,
            "fi_getinfo: provider {name} is not here: wanted its file, lib{file}-fi.so, in a \
             folder of FI_PROVIDER_PATH; had {}",
            names(|_| true)
        );
    }
}

fn reject(name: &str, attr: &str, wanted: &str) {
    crate::info_log!(
        FI_LOG_CORE,
        "rejected {name}: {attr}: wanted {wanted}, had {name}"
    );
}

/// One bare info for every provider, as `FI_PROV_ATTR_ONLY` asks.
fn attributes_only() -> Result<Vec<Info>> {
    let all: Vec<Info> = providers()
        .iter()
        .map(|p| sign(Info::empty(), super::API_VERSION, &**p))
        .collect();
    if all.is_empty() {
        Err(FI_ENODATA)
    } else {
        Ok(all)
    }
}

/// Adds the provider's name: to the name of what it is layered over, if the info has one.
fn sign(mut i: Info, api: u32, p: &dyn RegisteredProvider) -> Info {
    let f = i.fabric.get_or_insert_with(Default::default);
    f.prov_name = match (f.prov_name.take(), p.role()) {
        (Some(below), ProviderRole::Utility) => Some(format!("{below};{}", p.name())),
        (Some(made), ProviderRole::Link) => Some(made),
        _ => Some(p.name().to_string()),
    };
    f.prov_version = p.version();
    f.api_version = api;
    i
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::info::EpAttr;

    struct Versioned(u32);

    impl RegisteredProvider for Versioned {
        fn name(&self) -> &str {
            "x"
        }
        fn version(&self) -> u32 {
            self.0
        }
        fn c_struct(&self) -> usize {
            0
        }
        fn getinfo(&self, _: &Query) -> Result<Vec<Info>> {
            Err(FI_ENODATA)
        }
        fn open_fabric(&self, _: &FabricAttr, _: usize) -> Result<*mut fid_fabric> {
            Err(FI_ENOSYS)
        }
    }

    #[test]
    fn of_one_name_the_rank_decides_then_the_version_or_the_order() {
        use Preference::*;
        let kept = |list: &[(u32, Preference)]| {
            let mut all = Vec::new();
            for (version, rank) in list {
                add(&mut all, Arc::new(Versioned(*version)), *rank);
            }
            assert_eq!(all.len(), 1);
            all[0].1.version()
        };
        assert_eq!(kept(&[(2, Version), (1, Version)]), 2);
        assert_eq!(kept(&[(1, Version), (2, Version)]), 2);
        assert_eq!(kept(&[(2, Version), (1, Found), (3, Found)]), 1);
        assert_eq!(kept(&[(2, Version), (1, Preferred), (3, Preferred)]), 1);
        assert_eq!(kept(&[(3, Found), (1, Preferred)]), 1);
        assert_eq!(kept(&[(1, Preferred), (3, Found)]), 1);
    }

    #[test]
    fn sockets_come_before_what_is_layered_over_them() {
        let info = |name: &str, type_| Info {
            ep: Some(EpAttr {
                type_,
                ..EpAttr::default()
            }),
            fabric: Some(FabricAttr {
                prov_name: Some(name.to_string()),
                ..FabricAttr::default()
            }),
            ..Info::default()
        };
        let mut all = vec![
            info("tcp;ofi_rxm", FI_EP_RDM),
            info("udp", FI_EP_DGRAM),
            info("tcp", FI_EP_MSG),
            info("tcp", FI_EP_RDM),
        ];
        stream_sockets_first(&mut all);
        let order: Vec<_> = all.iter().filter_map(Info::prov_name).collect();
        assert_eq!(order, ["tcp", "tcp;ofi_rxm", "udp", "tcp"]);
        assert_eq!(all[3].ep.as_ref().map(|e| e.type_), Some(FI_EP_MSG));
        let mut alone = vec![info("tcp", FI_EP_RDM), info("tcp", FI_EP_MSG)];
        stream_sockets_first(&mut alone);
        let first = alone.first().and_then(|i| i.ep.as_ref());
        assert_eq!(first.map(|e| e.type_), Some(FI_EP_RDM));
    }
}
