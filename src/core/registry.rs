//! The providers of this process and the rules by which fi_getinfo(3) asks them.
//!
//! `abi` registers the library's own (`prov::visit`) and whatever `FI_PROVIDER_PATH` adds;
//! `FI_PROVIDER` and the provider name in the hints choose among them. Rejected candidates leave a
//! reason behind: one log line each at level info, which `fi_info --why` shows.

use super::errno::Result;
use super::info::{FabricAttr, Info};
use crate::types::*;
use std::sync::{Arc, RwLock};

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
    /// Version, `FI_VERSION(major, minor)`.
    fn version(&self) -> u32;
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
    add(
        &mut PROVIDERS.write().unwrap_or_else(|e| e.into_inner()),
        p,
        rank,
    );
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

/// Every registered provider, in order of preference.
pub fn providers() -> Vec<Arc<dyn RegisteredProvider>> {
    let all = PROVIDERS.read().unwrap_or_else(|e| e.into_inner());
    all.iter().map(|(_, p)| Arc::clone(p)).collect()
}

/// The provider with this name; filters do not apply, because an info may have been made before
/// they changed. Of a layered name `core;utility` the part after the last `;` counts.
pub fn by_name(name: &str) -> Option<Arc<dyn RegisteredProvider>> {
    let last = name.rsplit(';').next().unwrap_or(name);
    providers()
        .into_iter()
        .find(|p| p.name().eq_ignore_ascii_case(last))
}

/// `FI_PROVIDER`: a comma list of names, or of names to leave out after a leading `^`.
fn env_allows(filter: Option<&str>, name: &str) -> bool {
    let Some(f) = filter.filter(|f| !f.is_empty()) else {
        return true;
    };
    let (exclude, list) = match f.strip_prefix('^') {
        Some(rest) => (true, rest),
        None => (false, f),
    };
    let mut names = list
        .split(',')
        .flat_map(|s| s.split(';'))
        .map(str::trim)
        .filter(|s| !s.is_empty());
    names.any(|n| n.eq_ignore_ascii_case(name)) != exclude
}

/// The provider name in the hints: names separated by `;`, a leading `^` leaves one out.
fn hint_allows(hint: Option<&str>, name: &str) -> bool {
    let Some(h) = hint else { return true };
    let mut wanted = false;
    let mut any = false;
    for part in h.split(';') {
        match part.strip_prefix('^') {
            Some(out) if out.eq_ignore_ascii_case(name) => return false,
            Some(_) => {}
            None => {
                any = true;
                wanted |= part.eq_ignore_ascii_case(name);
            }
        }
    }
    wanted || !any
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
    let filter = std::env::var("FI_PROVIDER").ok();
    let hint_name = q.hints.and_then(Info::prov_name);
    if q.flags == FI_PROV_ATTR_ONLY {
        return attributes_only();
    }
    let mut out = Vec::new();
    for p in providers() {
        if !env_allows(filter.as_deref(), p.name()) {
            reject(p.name(), "FI_PROVIDER", filter.as_deref().unwrap_or(""));
            continue;
        }
        if !hint_allows(hint_name, p.name()) {
            reject(p.name(), "fabric_attr->prov_name", hint_name.unwrap_or(""));
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
    if out.is_empty() {
        Err(FI_ENODATA)
    } else {
        Ok(out)
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

fn sign(mut i: Info, api: u32, p: &dyn RegisteredProvider) -> Info {
    let f = i.fabric.get_or_insert_with(Default::default);
    f.prov_name = Some(p.name().to_string());
    f.prov_version = p.version();
    f.api_version = api;
    i
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fi_provider_includes_and_excludes() {
        assert!(env_allows(None, "efa"));
        assert!(env_allows(Some("efa,tcp"), "EFA"));
        assert!(!env_allows(Some("tcp"), "efa"));
        assert!(!env_allows(Some("^efa"), "efa"));
        assert!(env_allows(Some("^tcp"), "efa"));
    }

    struct Versioned(u32);

    impl RegisteredProvider for Versioned {
        fn name(&self) -> &str {
            "x"
        }
        fn version(&self) -> u32 {
            self.0
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
    fn a_provider_name_in_the_hints_may_exclude() {
        assert!(hint_allows(None, "efa"));
        assert!(hint_allows(Some("EFA"), "efa"));
        assert!(!hint_allows(Some(""), "efa"));
        assert!(!hint_allows(Some("tcp"), "efa"));
        assert!(hint_allows(Some("^tcp"), "efa"));
        assert!(!hint_allows(Some("^tcp;^efa"), "efa"));
    }
}
