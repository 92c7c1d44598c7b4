//! Default flags of calls without flags of their own: those of the endpoint, which its domain
//! applies, or of an alias (fi_ep_alias(3)), or of an endpoint that injects by default (FI_INJECT
//! in `op_flags`), which are applied here.

use super::ep::EpBody;
use super::transfer::{copied, TransferRequest};
use crate::core::{Info, Result};
use crate::prov::contract::{names_receives, Domain, OptionValue, Poster};
use crate::types::*;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Default flags of one direction that are applied here, if any. fi_control(3) changes them.
pub(crate) struct DefaultFlags(AtomicU64);

impl DefaultFlags {
    const NONE: u64 = u64::MAX;

    pub(crate) fn new(flags: Option<u64>) -> DefaultFlags {
        DefaultFlags(AtomicU64::new(flags.unwrap_or(Self::NONE)))
    }

    #[inline(always)]
    pub(crate) fn get(&self) -> Option<u64> {
        Some(self.0.load(Relaxed)).filter(|f| *f != Self::NONE)
    }

    fn set(&self, flags: Option<u64>) {
        self.0.store(flags.unwrap_or(Self::NONE), Relaxed);
    }
}

/// The endpoint whose domain carries calls without flags out, if any. It follows from the flags
/// and from whose handle it is; to ask both costs 5 instructions in each call that sends.
pub(crate) struct PlainEndpoint(AtomicU32);

impl PlainEndpoint {
    const NONE: u32 = u32::MAX;

    pub(crate) fn new(id: Option<u32>) -> PlainEndpoint {
        PlainEndpoint(AtomicU32::new(id.unwrap_or(Self::NONE)))
    }

    #[inline(always)]
    pub(crate) fn get(&self) -> Option<u32> {
        Some(self.0.load(Relaxed)).filter(|id| *id != Self::NONE)
    }
}

impl<D: Domain> EpBody<D> {
    /// Applies the defaults of the `tx_attr` that it is opened with.
    pub(crate) fn with_defaults(mut self, info: &Info) -> EpBody<D> {
        if let Some(t) = &info.tx {
            self.inject_size = t.inject_size;
            self.set_endpoint_defaults(t.op_flags);
        }
        self
    }

    /// Has calls that send, write or read use these flags; `None` leaves them to the domain.
    fn set_tx_defaults(&self, flags: Option<u64>) {
        self.tx_flags.set(flags);
        let plain = match (flags, self.who) {
            (None, Poster::Ep(id)) => id,
            _ => PlainEndpoint::NONE,
        };
        self.plain_tx.0.store(plain, Relaxed);
    }

    /// Leaves the flags of an endpoint to its domain, unless they have FI_INJECT.
    fn set_endpoint_defaults(&self, flags: u64) {
        self.set_tx_defaults(Some(flags).filter(|f| f & FI_INJECT != 0));
    }

    /// FI_SETOPSFLAG of an endpoint.
    pub(super) fn set_op_flags(&self, flags: u64) -> Result<()> {
        self.domain.set_op_flags(self.id()?, flags)?;
        if flags & FI_TRANSMIT != 0 {
            self.set_endpoint_defaults(flags & !FI_TRANSMIT);
        }
        Ok(())
    }

    /// FI_SETOPSFLAG of an alias. `FI_EINVAL` unless it names one direction.
    pub(super) fn set_alias_flags(&self, flags: u64) -> Result<()> {
        let plain = Some(flags & !(FI_TRANSMIT | FI_RECV));
        match names_receives(flags)? {
            false => self.set_tx_defaults(plain),
            true => self.rx_flags.set(plain),
        }
        Ok(())
    }
}

/// Carries out a request without flags whose default `flags` have FI_INJECT: its data, if they are
/// few enough, are the caller's again when this returns.
#[cold]
pub(super) fn inject<D: Domain, R: TransferRequest>(
    b: &EpBody<D>,
    mut r: R,
    flags: u64,
) -> Result<()> {
    if r.injected() {
        return r.start(&*b.domain, b.who);
    }
    // The options of a provider may bound some kinds below `tx_attr->inject_size`.
    let limit = match b.domain.get_option(b.id()?, R::INJECT_LIMIT) {
        Ok(OptionValue::Size(n)) => n.min(b.inject_size),
        _ => b.inject_size,
    };
    match r.lent().filter(|m| m.len() <= limit) {
        Some(mem) => {
            r.common().flags = Some(flags);
            let copy = copied(&mem)?;
            r.start_with(&copy, &*b.domain, b.who)
        }
        None => {
            r.common().flags = Some(flags & !FI_INJECT);
            r.start(&*b.domain, b.who)
        }
    }
}
