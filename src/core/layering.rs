//! Which providers answer to a name: the rules of the C library, so that a program's provider
//! names give the same infos with either library.
//!
//! A provider name may be layered, `core;utility`: a utility provider (`ofi_*`) implements
//! endpoints over another provider's. It calls fi_getinfo and fi_fabric for what is below it, with
//! [`CORE_ONLY`]. [`answers`] chooses among the registered providers by the name in the hints;
//! [`ProviderFilter`] is `FI_PROVIDER`, which hides providers beforehand and drops infos
//! afterwards.

/// Flags of fi_getinfo that providers pass to the core; no public header defines them.
pub const GETINFO_INTERNAL: u64 = 1 << 58;
/// Only core providers, for a utility provider.
pub const CORE_ONLY: u64 = 1 << 59;
/// Providers that `FI_PROVIDER` hides, too.
pub const WITH_HIDDEN: u64 = 1 << 60;
/// Offload providers, too.
pub const OFFLOAD: u64 = 1 << 61;
/// All of them.
pub const INTERNAL: u64 = GETINFO_INTERNAL | CORE_ONLY | WITH_HIDDEN | OFFLOAD;

/// What a provider does, which its name says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProviderRole {
    /// Reaches an adapter, a socket or memory.
    Core,
    /// Implements endpoints over those of another provider.
    Utility,
    /// Carries out collectives for other providers (`off_*`).
    Offload,
    /// Joins several providers (`lnx`).
    Link,
    /// Wraps the fabrics of others (`FI_HOOK`); has no fi_getinfo.
    Hook,
}

impl ProviderRole {
    /// The role of a provider of this name, with a getinfo function or without.
    pub fn of(name: &str, getinfo: bool) -> ProviderRole {
        let starts = |prefix: &str| starts_with(name, prefix);
        match () {
            () if !getinfo => ProviderRole::Hook,
            () if starts("ofi_") => ProviderRole::Utility,
            () if starts("off_") => ProviderRole::Offload,
            () if name.eq_ignore_ascii_case("lnx") => ProviderRole::Link,
            () => ProviderRole::Core,
        }
    }
}

fn starts_with(name: &str, prefix: &str) -> bool {
    let head = name.as_bytes().get(..prefix.len());
    head.is_some_and(|h| h.eq_ignore_ascii_case(prefix.as_bytes()))
}

fn is_utility(name: &str) -> bool {
    starts_with(name, "ofi_")
}

/// Core providers that utility providers use only where the application names the pair.
const UNLAYERED: [&str; 6] = ["sockets", "shm", "efa", "psm3", "ucx", "cxi"];

fn layered_by_itself(name: &str) -> bool {
    !UNLAYERED.iter().any(|n| n.eq_ignore_ascii_case(name)) && !is_utility(name)
}

/// Order of providers in the answer; others follow in the order of registration.
const ORDER: [&str; 14] = [
    "efa", "psm2", "opx", "usnic", "verbs", "cxi", "psm3", "ucx", "ofi_rxm", "ofi_rxd", "shm",
    "udp", "tcp", "sockets",
];

/// Place of a provider in the answer.
pub fn place(name: &str) -> usize {
    let found = ORDER.iter().position(|n| n.eq_ignore_ascii_case(name));
    found.unwrap_or(ORDER.len())
}

/// Whether a provider answers a query with this name in the hints, and these flags. The rules:
///
/// 1. `^name` at the end leaves a provider out.
/// 2. One core provider: itself, and the utility providers over it, unless it is one of those that
///    are layered only by name.
/// 3. One utility provider: it answers, over any core provider.
/// 4. A pair, in either order: the utility provider, which asks for the other.
/// 5. Otherwise the rightmost name.
pub fn answers(name: &str, role: ProviderRole, hint: Option<&str>, flags: u64) -> bool {
    let mut wanted: Vec<&str> = hint.map_or(Vec::new(), |h| h.split(';').collect());
    while let Some(left_out) = wanted.last().and_then(|n| n.strip_prefix('^')) {
        if left_out.eq_ignore_ascii_case(name) {
            return false;
        }
        wanted.pop();
    }
    let core_only = flags & CORE_ONLY != 0;
    if core_only && role != ProviderRole::Core {
        return false;
    }
    let utility = role == ProviderRole::Utility;
    let wanted = match wanted.as_slice() {
        [""] => return false,
        [] => return !core_only || layered_by_itself(name),
        [core] if utility && !is_utility(core) => return layered_by_itself(core),
        [utility, core] if is_utility(utility) && !is_utility(core) => utility,
        [.., last] => last,
    };
    wanted.eq_ignore_ascii_case(name)
}

/// `FI_PROVIDER`: a comma list of names, which may be layered, or of names to leave out after a
/// leading `^`.
#[derive(Debug, Default)]
pub struct ProviderFilter {
    names: Option<Vec<String>>,
    negated: bool,
}

impl ProviderFilter {
    /// As the variable says; no filter where it is missing or empty.
    pub fn new(text: Option<&str>) -> ProviderFilter {
        let Some(text) = text.filter(|t| !t.is_empty()) else {
            return ProviderFilter::default();
        };
        let (negated, list) = match text.strip_prefix('^') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let names = list.split(',').map(str::trim).filter(|n| !n.is_empty());
        ProviderFilter {
            names: Some(names.map(str::to_string).collect()),
            negated,
        }
    }

    /// Whether a provider is not to be asked. A list of names leaves out core providers alone:
    /// the others work over those that it has.
    pub fn hides(&self, name: &str, role: ProviderRole) -> bool {
        let Some(names) = &self.names else {
            return false;
        };
        if !self.negated && role != ProviderRole::Core {
            return false;
        }
        let own = names.iter().any(|n| n.eq_ignore_ascii_case(name));
        let below = |n: &String| {
            n.split_once(';')
                .is_some_and(|(c, _)| c.eq_ignore_ascii_case(name))
        };
        match self.negated {
            true => own,
            false => !own && !names.iter().any(below),
        }
    }

    /// Whether an info of this (layered) provider name is dropped from the answer.
    pub fn drops(&self, name: &str) -> bool {
        let Some(names) = &self.names else {
            return false;
        };
        let below = |n: &String| {
            let rest = name.get(n.len()..).unwrap_or("");
            starts_with(name, n) && (rest.is_empty() || rest.starts_with(';'))
        };
        names.iter().any(below) == self.negated
    }

    /// The names, without `;`.
    pub fn parts(&self) -> impl Iterator<Item = &str> {
        let names = self.names.iter().flatten();
        names.flat_map(|n| n.split(';'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(hint: Option<&str>, flags: u64) -> Vec<&'static str> {
        let all = ["efa", "ofi_rxm", "ofi_rxd", "shm", "udp", "tcp", "lnx"];
        all.into_iter()
            .filter(|n| answers(n, ProviderRole::of(n, true), hint, flags))
            .collect()
    }

    #[test]
    fn a_name_is_answered_by_its_provider_and_those_over_it() {
        assert_eq!(answered(None, 0).len(), 7);
        assert_eq!(answered(Some("TCP"), 0), ["ofi_rxm", "ofi_rxd", "tcp"]);
        assert_eq!(answered(Some("efa"), 0), ["efa"]);
        assert_eq!(answered(Some("ofi_rxm"), 0), ["ofi_rxm"]);
        assert_eq!(answered(Some("tcp;ofi_rxm"), 0), ["ofi_rxm"]);
        assert_eq!(answered(Some("ofi_rxm;tcp"), 0), ["ofi_rxm"]);
        assert_eq!(answered(Some("shm;ofi_rxm"), 0), ["ofi_rxm"]);
        assert_eq!(answered(Some("tcp;ofi_rxm;ofi_x"), 0), [""; 0]);
        assert_eq!(answered(Some(""), 0), [""; 0]);
        assert_eq!(answered(Some("^tcp;^shm"), 0).len(), 5);
    }

    #[test]
    fn a_utility_provider_asks_core_providers_alone() {
        assert_eq!(answered(Some("^ofi_rxm"), CORE_ONLY), ["udp", "tcp"]);
        assert_eq!(answered(Some("tcp;^ofi_rxm"), CORE_ONLY), ["tcp"]);
        assert_eq!(answered(Some("shm;^ofi_rxm"), CORE_ONLY), ["shm"]);
    }

    #[test]
    fn fi_provider_hides_core_providers_and_drops_infos() {
        use ProviderRole::*;
        let hidden = |f: &str| {
            let f = ProviderFilter::new(Some(f));
            [("efa", Core), ("tcp", Core), ("ofi_rxm", Utility)].map(|(n, r)| f.hides(n, r))
        };
        let dropped = |f: &str| {
            let f = ProviderFilter::new(Some(f));
            ["efa", "tcp", "tcp;ofi_rxm", "tcp;ofi_rxmore"].map(|n| f.drops(n))
        };
        assert_eq!(hidden("efa"), [false, true, false]);
        assert_eq!(hidden("EFA, tcp"), [false; 3]);
        assert_eq!(hidden("tcp;ofi_rxm"), [true, false, false]);
        assert_eq!(hidden("^tcp;ofi_rxm"), [false; 3]);
        assert_eq!(hidden("^ofi_rxm,efa"), [true, false, true]);
        assert_eq!(hidden(""), [false; 3]);
        assert_eq!(dropped("tcp"), [true, false, false, false]);
        assert_eq!(dropped("tcp;ofi_rxm"), [true, true, false, true]);
        assert_eq!(dropped("^tcp;ofi_rxm"), [false, false, true, false]);
        assert_eq!(dropped(""), [false; 4]);
    }
}
