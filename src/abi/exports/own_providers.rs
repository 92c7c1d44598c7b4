//! The library's own providers as entries of the registry (`core::registry`).

use crate::abi::{fabric, object};
use crate::core::info::FabricAttr;
use crate::core::layering::INTERNAL;
use crate::core::registry::{self, Preference, Query, RegisteredProvider};
use crate::core::{Info, Result, API_VERSION};
use crate::prov::contract::{Provider, ProviderVisitor};
use crate::types::*;
use core::ptr::null_mut;
use std::ffi::CString;
use std::sync::{Arc, Once};

/// A provider of the library's own, and the address of its `struct fi_provider`, for hooks.
struct Native<P>(P, usize);

impl<P: Provider> Native<P> {
    fn new(p: P) -> Native<P> {
        let name = CString::new(p.name()).unwrap_or_default();
        let about = Box::leak(Box::new(fi_provider {
            version: p.version(),
            fi_version: API_VERSION,
            context: fi_context {
                internal: [null_mut(); 4],
            },
            name: name.into_raw(),
            getinfo: None,
            fabric: None,
            cleanup: None,
        }));
        let at = &raw const *about as usize;
        Native(p, at)
    }
}

impl<P: Provider> RegisteredProvider for Native<P> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn version(&self) -> u32 {
        self.0.version()
    }

    fn getinfo(&self, q: &Query) -> Result<Vec<Info>> {
        let flags = q.flags & !INTERNAL;
        self.0.getinfo(&Query { flags, ..*q })
    }

    fn open_fabric(&self, attr: &FabricAttr, context: usize) -> Result<*mut fid_fabric> {
        fabric::open(&self.0, attr, context)
    }

    fn c_struct(&self) -> usize {
        self.1
    }
}

struct RegisterEach;

impl ProviderVisitor for RegisterEach {
    fn visit<P: Provider>(&mut self, p: P) {
        p.define_params();
        registry::register(Arc::new(Native::new(p)), Preference::Version);
    }
}

/// Registers the library's own providers, once.
pub(crate) fn register_own() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        object::watch_forks();
        crate::prov::visit(&mut RegisterEach);
    });
}
