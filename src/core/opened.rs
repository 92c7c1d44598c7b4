//! Fabrics and domains that are open. fi_getinfo(3) takes their handles as hints, to restrict what
//! it returns, and returns the first open ones of the names that it returns (fi_fabric(3),
//! fi_domain(3)): Open MPI opens one domain for several of its components so.

use super::check::Mismatch;
use super::info::{DomainAttr, FabricAttr, Info};
use super::process::PerProcess;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;

/// An object is open as long as this lives, unless it is closed before.
#[derive(Debug)]
pub struct Opened(u64);

#[derive(Clone, Debug)]
struct OpenObject {
    handle: usize,
    /// As in [`Opened`]: handles are used again later.
    number: u64,
    provider: String,
    fabric: String,
    /// Of a domain: its name, and the handle of its fabric.
    domain: Option<(String, usize)>,
}

/// In the order in which they were opened. The child of a fork has opened nothing.
static LIST: PerProcess<Mutex<Vec<OpenObject>>> = PerProcess::new();

fn with<T>(f: impl FnOnce(&mut Vec<OpenObject>) -> T) -> T {
    f(&mut LIST.lock())
}

impl Opened {
    /// A fabric was opened.
    pub fn fabric(handle: usize, provider: &str, name: &str) -> Opened {
        let opened = Opened::new();
        with(|l| {
            l.push(OpenObject {
                handle,
                number: opened.0,
                provider: provider.to_string(),
                fabric: name.to_string(),
                domain: None,
            });
        });
        opened
    }

    fn new() -> Opened {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Opened(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The object is closed.
    pub fn close(&self) {
        with(|l| l.retain(|e| e.number != self.0));
    }

    /// A domain of this fabric was opened.
    pub fn domain(&self, handle: usize, name: &str) -> Opened {
        let opened = Opened::new();
        with(|l| {
            if let Some(f) = l.iter().find(|e| e.number == self.0).cloned() {
                l.push(OpenObject {
                    handle,
                    number: opened.0,
                    domain: Some((name.to_string(), f.handle)),
                    ..f
                });
            }
        });
        opened
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.close();
    }
}

impl OpenObject {
    /// Candidates of a provider get its name last.
    fn is_fabric(&self, f: &FabricAttr) -> bool {
        let same = f.prov_name.as_ref().is_none_or(|p| *p == self.provider);
        same && f.name.as_ref() == Some(&self.fabric)
    }

    fn is_domain(&self, f: &FabricAttr, d: &DomainAttr) -> bool {
        let name = self.domain.as_ref().map(|(name, _)| name);
        self.is_fabric(f) && name.is_some() && name == d.name.as_ref()
    }

    fn mismatch(attr: &'static str, found: Option<&OpenObject>, had: Option<&String>) -> Mismatch {
        let wanted = match found {
            None => "an open object".to_string(),
            Some(e) => {
                let name = e.domain.as_ref().map_or(&e.fabric, |(name, _)| name);
                format!("{name} of provider {}", e.provider)
            }
        };
        let had = had.cloned().unwrap_or_default();
        Mismatch { attr, wanted, had }
    }
}

/// Whether a candidate is of the fabric and the domain whose handles the hints have.
pub fn check(have: &Info, hints: &Info) -> Result<(), Mismatch> {
    let wanted = |handle: Option<usize>| handle.filter(|h| *h != 0);
    let fabric = wanted(hints.fabric.as_ref().map(|f| f.fabric));
    let domain = wanted(hints.domain.as_ref().map(|d| d.domain));
    let (Some(f), Some(d)) = (&have.fabric, &have.domain) else {
        return Ok(());
    };
    if fabric.is_none() && domain.is_none() {
        return Ok(());
    }
    with(|l| {
        let find = |handle| l.iter().find(|e| e.handle == handle);
        if let Some(e) = fabric.map(find) {
            if !e.is_some_and(|e| e.domain.is_none() && e.is_fabric(f)) {
                return Err(OpenObject::mismatch(
                    "fabric_attr->fabric",
                    e,
                    f.name.as_ref(),
                ));
            }
        }
        if let Some(e) = domain.map(find) {
            if !e.is_some_and(|e| e.is_domain(f, d)) {
                return Err(OpenObject::mismatch(
                    "domain_attr->domain",
                    e,
                    d.name.as_ref(),
                ));
            }
        }
        Ok(())
    })
}

/// Fills in the handles of an info that fulfils the hints: the hints' own, else those of the first
/// fabric and domain that are open under its names.
pub fn fill(info: &mut Info, hints: Option<&Info>) {
    let (Some(f), Some(d)) = (&mut info.fabric, &mut info.domain) else {
        return;
    };
    f.fabric = hints
        .and_then(|h| h.fabric.as_ref())
        .map_or(0, |f| f.fabric);
    d.domain = hints
        .and_then(|h| h.domain.as_ref())
        .map_or(0, |d| d.domain);
    with(|l| {
        let of = l.iter().find(|e| e.handle == d.domain);
        if let (0, Some((_, fabric))) = (f.fabric, of.and_then(|e| e.domain.as_ref())) {
            f.fabric = *fabric;
        }
        if f.fabric == 0 {
            let open = l.iter().find(|e| e.domain.is_none() && e.is_fabric(f));
            f.fabric = open.map_or(0, |e| e.handle);
        }
        if d.domain == 0 {
            let of_fabric =
                |e: &&OpenObject| e.domain.as_ref().is_some_and(|(_, of)| *of == f.fabric);
            let open = l.iter().filter(of_fabric).find(|e| e.is_domain(f, d));
            d.domain = open.map_or(0, |e| e.handle);
        }
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
        let f = Opened::fabric(0x10, "p", "net");
        let d = f.domain(0x20, "second");
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
        drop(d);
        assert!(check(&b, &b).is_err());
        fill(&mut b, None);
        assert_eq!(handles(&b), (0x10, 0));
        drop(f);
        fill(&mut b, None);
        assert_eq!(handles(&b), (0, 0));
    }
}
