//! Fabrics and domains that are open. fi_getinfo(3) takes their handles as hints, to restrict what
//! it returns, and returns the first open ones of the names that it returns (fi_fabric(3),
//! fi_domain(3)): Open MPI opens one domain for several of its components so.

use super::check::Mismatch;
use super::info::{DomainAttr, FabricAttr, Info};
use super::process::PerProcess;
use crate::core::sync::Mutex;
use crate::types::*;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of a fabric or domain, also while fi_getinfo does not return it (yet).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened(u64);

#[derive(Clone, Debug)]
struct OpenObject {
    handle: usize,
    /// Handles are used again later.
    number: Opened,
    provider: String,
    fabric: String,
    domain: Option<OpenDomain>,
}

#[derive(Clone, Debug)]
struct OpenDomain {
    name: String,
    /// The handle of its fabric.
    of: usize,
    offer: DomainOffer,
}

/// What a domain offers its endpoints.
#[derive(Clone, Copy, Debug)]
struct DomainOffer {
    caps: u64,
    mode: u64,
    mr_mode: i32,
    threading: fi_threading,
    ep_type: fi_ep_type,
}

impl DomainOffer {
    fn of(info: &Info) -> DomainOffer {
        let d = info.domain.as_ref();
        DomainOffer {
            caps: info.caps | d.map_or(0, |d| d.caps),
            mode: info.mode | d.map_or(0, |d| d.mode),
            mr_mode: d.map_or(0, |d| d.mr_mode),
            threading: d.map_or(0, |d| d.threading),
            ep_type: info.ep.as_ref().map_or(FI_EP_UNSPEC, |e| e.type_),
        }
    }

    /// Whether endpoints of `wanted` find in the domain what that promises.
    fn serves(&self, wanted: &DomainOffer) -> bool {
        wanted.caps & !self.caps == 0
            && wanted.mode & self.mode == self.mode
            && wanted.mr_mode == self.mr_mode
            && wanted.threading == self.threading
            && wanted.ep_type == self.ep_type
    }
}

/// In the order in which they were opened. The child of a fork has opened nothing.
static LIST: PerProcess<Mutex<Vec<OpenObject>>> = PerProcess::new();

fn with<T>(f: impl FnOnce(&mut Vec<OpenObject>) -> T) -> T {
    f(&mut LIST.lock())
}

impl Opened {
    /// The number of an object that is about to be opened.
    pub fn next() -> Opened {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Opened(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// It is a fabric, and open.
    pub fn fabric(self, handle: usize, provider: &str, name: &str) {
        with(|l| {
            l.push(OpenObject {
                handle,
                number: self,
                provider: provider.to_string(),
                fabric: name.to_string(),
                domain: None,
            });
        });
    }

    /// It is a domain of the fabric `of`, and open as `info` describes it.
    pub fn domain(self, handle: usize, of: Opened, info: &Info) {
        let name = info.domain.as_ref().and_then(|d| d.name.clone());
        with(|l| {
            if let Some(f) = l.iter().find(|e| e.number == of).cloned() {
                l.push(OpenObject {
                    handle,
                    number: self,
                    domain: Some(OpenDomain {
                        name: name.unwrap_or_default(),
                        of: f.handle,
                        offer: DomainOffer::of(info),
                    }),
                    ..f
                });
            }
        });
    }

    /// It is closed.
    pub fn close(self) {
        with(|l| l.retain(|e| e.number != self));
    }
}

impl OpenObject {
    /// Candidates of a provider get its name last.
    fn is_fabric(&self, f: &FabricAttr) -> bool {
        let same = f.prov_name.as_ref().is_none_or(|p| *p == self.provider);
        same && f.name.as_ref() == Some(&self.fabric)
    }

    fn is_domain(&self, f: &FabricAttr, d: &DomainAttr) -> bool {
        let name = self.domain.as_ref().map(|d| &d.name);
        self.is_fabric(f) && name.is_some() && name == d.name.as_ref()
    }

    fn mismatch(&self, attr: &'static str, had: Option<&String>) -> Mismatch {
        let name = self.domain.as_ref().map_or(&self.fabric, |d| &d.name);
        Mismatch {
            attr,
            wanted: format!("{name} of provider {}", self.provider),
            had: had.cloned().unwrap_or_default(),
        }
    }
}

/// Whether a candidate is of the fabric and the domain whose handles the hints have. What is not
/// open in this process restricts nothing: an info may have been kept for longer than the object.
pub fn check(have: &Info, hints: &Info) -> Result<(), Mismatch> {
    let fabric = hints.fabric.as_ref().map_or(0, |f| f.fabric);
    let domain = hints.domain.as_ref().map_or(0, |d| d.domain);
    let (Some(f), Some(d)) = (&have.fabric, &have.domain) else {
        return Ok(());
    };
    if fabric == 0 && domain == 0 {
        return Ok(());
    }
    with(|l| {
        for e in l.iter() {
            if e.handle == fabric && !(e.domain.is_none() && e.is_fabric(f)) {
                return Err(e.mismatch("fabric_attr->fabric", f.name.as_ref()));
            }
            if e.handle == domain && !e.is_domain(f, d) {
                return Err(e.mismatch("domain_attr->domain", d.name.as_ref()));
            }
        }
        Ok(())
    })
}

/// Fills in the handles of an info that is complete otherwise and fulfils the hints: the hints'
/// own, else those of the first fabric and domain that are open under its names and have what it
/// promises.
pub fn fill(info: &mut Info, hints: Option<&Info>) {
    let wanted = DomainOffer::of(info);
    let (Some(f), Some(d)) = (&mut info.fabric, &mut info.domain) else {
        return;
    };
    let fabric = hints
        .and_then(|h| h.fabric.as_ref())
        .map_or(0, |f| f.fabric);
    let domain = hints
        .and_then(|h| h.domain.as_ref())
        .map_or(0, |d| d.domain);
    with(|l| {
        let domain = l.iter().find(|e| e.handle == domain && e.is_domain(f, d));
        let of = domain.and_then(|e| e.domain.as_ref()).map(|d| d.of);
        let is_fabric = |e: &&OpenObject| e.domain.is_none() && e.is_fabric(f);
        let named = |e: &&OpenObject| e.handle == fabric || Some(e.handle) == of;
        let first = || l.iter().find(is_fabric);
        let fabric = l.iter().filter(is_fabric).find(named).or_else(first);
        f.fabric = fabric.map_or(0, |e| e.handle);
        let serves = |e: &&OpenObject| {
            let own = e.domain.as_ref().filter(|d| d.of == f.fabric);
            own.is_some_and(|d| d.offer.serves(&wanted))
        };
        let first = || l.iter().filter(serves).find(|e| e.is_domain(f, d));
        d.domain = domain.or_else(first).map_or(0, |e| e.handle);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(provider: &str, fabric: &str, domain: &str) -> Info {
        Info {
            fabric: Some(FabricAttr {
                prov_name: Some(provider.to_string()),
                name: Some(fabric.to_string()),
                ..FabricAttr::default()
            }),
            domain: Some(DomainAttr {
                name: Some(domain.to_string()),
                ..DomainAttr::default()
            }),
            ..Info::default()
        }
    }

    fn handles(i: &Info) -> (usize, usize) {
        let fabric = i.fabric.as_ref().map_or(0, |f| f.fabric);
        (fabric, i.domain.as_ref().map_or(0, |d| d.domain))
    }

    #[test]
    fn handles_restrict_what_is_offered_and_are_offered_while_open() {
        let mut a = info("p", "net", "first");
        let mut b = info("p", "net", "second");
        let mut c = info("q", "net", "first");
        let (f, d) = (Opened::next(), Opened::next());
        f.fabric(0x10, "p", "net");
        d.domain(0x20, f, &b);
        for (i, handle) in [(&mut a, 0), (&mut b, 0x20)] {
            fill(i, None);
            assert_eq!(handles(i), (0x10, handle));
        }
        fill(&mut c, None);
        assert_eq!(handles(&c), (0, 0));
        // An info is a hint as it was returned.
        assert!(check(&b, &b).is_ok());
        let refused = check(&a, &b).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "domain_attr->domain: wanted second of provider p, had first"
        );
        assert_eq!(check(&c, &a).unwrap_err().attr, "fabric_attr->fabric");
        // A domain that needs another mode of registration is not offered, unless it is asked for.
        let mut other = b.clone();
        other.domain.as_mut().unwrap().mr_mode = FI_MR_LOCAL;
        let hints = other.clone();
        fill(&mut other, None);
        assert_eq!(handles(&other), (0x10, 0));
        fill(&mut other, Some(&hints));
        assert_eq!(handles(&other), (0x10, 0x20));
        d.close();
        // What is closed restricts nothing.
        let old = b.clone();
        assert!(check(&a, &old).is_ok());
        fill(&mut b, Some(&old));
        assert_eq!(handles(&b), (0x10, 0));
        f.close();
        fill(&mut b, None);
        assert_eq!(handles(&b), (0, 0));
    }
}
