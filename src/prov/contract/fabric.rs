//! Fabrics (fi_fabric(3)).

use crate::core::opened::Opened;
use crate::core::Result;
use crate::types::*;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

/// A fabric: a name, an API version, children.
pub struct Fabric {
    /// Version of the interface that the caller asked for.
    pub api: u32,
    /// Its name.
    pub name: String,
    /// Known to fi_getinfo by its handle.
    pub opened: Opened,
    children: AtomicU32,
}

impl Fabric {
    /// A fabric of this name, for an application of API version `api`.
    pub fn new(name: &str, api: u32) -> Arc<Fabric> {
        Arc::new(Fabric {
            api,
            name: name.to_string(),
            opened: Opened::next(),
            children: AtomicU32::new(0),
        })
    }

    /// A child was opened.
    pub fn hold(&self) {
        self.children.fetch_add(1, Ordering::Relaxed);
    }

    /// A child was closed.
    pub fn release(&self) {
        self.children.fetch_sub(1, Ordering::Relaxed);
    }

    /// Closes it; `FI_EBUSY` while it has children.
    pub fn close(&self) -> Result<()> {
        busy_unless(
            self.children.load(Ordering::Relaxed) == 0,
            "fabric",
            "domains or event queues",
        )?;
        self.opened.close();
        Ok(())
    }
}

/// `FI_EBUSY`, with a log line, unless `free`.
pub fn busy_unless(free: bool, what: &str, users: &str) -> Result<()> {
    if free {
        return Ok(());
    }
    crate::warn_log!(
        FI_LOG_DOMAIN,
        "fi_close: this {what} still has open {users}"
    );
    Err(FI_EBUSY)
}
