//! Run-time parameters: environment variables that a provider defines before it reads them
//! (fi_param_define(3), fi_getparams(3)).
//!
//! This module keeps the definitions, for `fi_getparams` and `fi_info -e`. Parameter `tx_size` of
//! provider `efa` is the variable `FI_EFA_TX_SIZE`; parameter `tx_size` of the core would be
//! `FI_TX_SIZE`. `FI_PREFER_SYSCONFIG` and configuration files are not supported: the environment
//! is the only source.

mod efa;
mod hmem;
mod table;
mod tcp;

pub(crate) use efa::SOFT_WORDS;
pub use efa::{efa, EfaParams};
pub use hmem::hmem;
pub use tcp::{tcp, TcpParams, INJECT_MOST};

use super::errno::Result;
use crate::core::sync::{Mutex, MutexGuard, Unpoisoned};
use crate::types::*;
use std::sync::OnceLock;

/// One defined parameter.
#[derive(Clone, Debug)]
pub struct Param {
    /// Name of the environment variable.
    pub env: String,
    /// How its text is read.
    pub kind: fi_param_type,
    /// Help text.
    pub help: String,
}

/// A parameter known at compile time, defined by [`define_all`].
pub struct Def {
    /// Name without the `FI_` or `FI_EFA_` prefix, lower case.
    pub name: &'static str,
    /// How its text is read.
    pub kind: fi_param_type,
    /// What it does, its unit and default.
    pub help: &'static str,
}

static DEFINED: Mutex<Vec<Param>> = Mutex::new(Vec::new());

/// Name of the environment variable of `name` of provider `prov` (`None`: the core's).
pub fn env_name(prov: Option<&str>, name: &str) -> String {
    let full = match prov {
        Some(p) => format!("FI_{p}_{name}"),
        None => format!("FI_{name}"),
    };
    full.to_ascii_uppercase()
}

fn defined() -> MutexGuard<'static, Vec<Param>> {
    DEFINED.lock().unpoisoned()
}

/// The libfabric that has loaded us as a provider file: it lists our providers' parameters and has
/// their values.
pub trait ParamHost: Send + Sync {
    /// Takes over a definition.
    fn define(&self, name: &str, kind: fi_param_type, help: &str);
    /// As [`get`].
    fn get(&self, name: &str, kind: fi_param_type) -> Result<Value>;
}

/// A host library, and the name of the provider that it has loaded.
struct HostParams {
    prov: String,
    host: Box<dyn ParamHost>,
}

static HOST: OnceLock<HostParams> = OnceLock::new();

/// Defines and reads the parameters of provider `prov` through `host` from now on. Later calls have
/// no effect.
pub fn set_host(prov: &str, host: Box<dyn ParamHost>) {
    let prov = prov.to_string();
    let _ = HOST.set(HostParams { prov, host });
}

fn host_of(prov: Option<&str>) -> Option<&'static dyn ParamHost> {
    let host = HOST.get().filter(|h| prov == Some(&*h.prov));
    host.map(|h| &*h.host)
}

/// Defines a parameter; a second definition of the same name replaces the first.
pub fn define(prov: Option<&str>, name: &str, kind: fi_param_type, help: &str) {
    let env = env_name(prov, name);
    if let Some(h) = host_of(prov) {
        h.define(name, kind, help);
    }
    let mut all = defined();
    all.retain(|p| p.env != env);
    all.push(Param {
        env,
        kind,
        help: help.to_string(),
    });
}

/// Defines a whole table.
pub fn define_all(prov: Option<&str>, table: &[Def]) {
    for d in table {
        define(prov, d.name, d.kind, d.help);
    }
}

/// Everything defined so far, in order of definition.
pub fn all() -> Vec<Param> {
    defined().clone()
}

/// A parameter's value, read as its definition says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// `FI_PARAM_STRING`
    Str(String),
    /// `FI_PARAM_INT`
    Int(i32),
    /// `FI_PARAM_BOOL`
    Bool(bool),
    /// `FI_PARAM_SIZE_T`
    Size(usize),
}

/// Value of a defined parameter: `FI_ENOENT` when it was never defined, `FI_ENODATA` when the
/// environment does not set it, `FI_EINVAL` (with a log line) when its text cannot be read.
pub fn get(prov: Option<&str>, name: &str) -> Result<Value> {
    let env = env_name(prov, name);
    let kind = defined()
        .iter()
        .find(|p| p.env == env)
        .map(|p| p.kind)
        .ok_or(FI_ENOENT)?;
    if let Some(h) = host_of(prov) {
        match h.get(name, kind) {
            // The host has no parameters, or none of this name or type: read the environment.
            Err(FI_ENOSYS | FI_EINVAL | FI_ENOENT) => {}
            other => return other,
        }
    }
    let text = std::env::var(&env).map_err(|_| FI_ENODATA)?;
    parse(kind, &text).ok_or_else(|| {
        crate::warn_log!(
            FI_LOG_CORE,
            "{env}=\"{text}\" is ignored: wanted {}",
            type_name(kind)
        );
        FI_EINVAL
    })
}

/// The name of a type in log lines.
pub fn type_name(kind: fi_param_type) -> &'static str {
    match kind {
        FI_PARAM_STRING => "String",
        FI_PARAM_INT => "Integer",
        FI_PARAM_BOOL => "Boolean (0/1, on/off, true/false, yes/no)",
        FI_PARAM_SIZE_T => "size_t",
        _ => "Unknown",
    }
}

fn parse(kind: fi_param_type, text: &str) -> Option<Value> {
    match kind {
        FI_PARAM_STRING => Some(Value::Str(text.to_string())),
        FI_PARAM_INT => i32::try_from(integer(text)?).ok().map(Value::Int),
        // -1 stands for no limit, as in fi_tcp(7) of the C library.
        FI_PARAM_SIZE_T => match integer(text)? {
            -1 => Some(Value::Size(usize::MAX)),
            n => usize::try_from(n).ok().map(Value::Size),
        },
        FI_PARAM_BOOL => match text.trim().to_ascii_lowercase().as_str() {
            "0" | "off" | "false" | "no" => Some(Value::Bool(false)),
            "1" | "on" | "true" | "yes" => Some(Value::Bool(true)),
            _ => None,
        },
        _ => None,
    }
}

/// Decimal, 0x hexadecimal or 0 octal, as strtol(3) with base 0 reads it.
fn integer(text: &str) -> Option<i128> {
    let t = text.trim();
    let (neg, t) = match t.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, t.strip_prefix('+').unwrap_or(t)),
    };
    let v = if let Some(hex) = t.strip_prefix("0x").or(t.strip_prefix("0X")) {
        i128::from_str_radix(hex, 16).ok()?
    } else if t.len() > 1 && t.starts_with('0') {
        i128::from_str_radix(&t[1..], 8).ok()?
    } else {
        t.parse().ok()?
    };
    Some(if neg { -v } else { v })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_their_type_says() {
        assert_eq!(parse(FI_PARAM_INT, "0x10"), Some(Value::Int(16)));
        assert_eq!(parse(FI_PARAM_INT, "-3"), Some(Value::Int(-3)));
        assert_eq!(parse(FI_PARAM_SIZE_T, "-3"), None);
        assert_eq!(parse(FI_PARAM_SIZE_T, "010"), Some(Value::Size(8)));
        assert_eq!(parse(FI_PARAM_BOOL, "YES"), Some(Value::Bool(true)));
        assert_eq!(parse(FI_PARAM_BOOL, "maybe"), None);
    }

    #[test]
    fn an_undefined_parameter_is_not_an_unset_one() {
        assert_eq!(get(Some("test_a"), "never_defined"), Err(FI_ENOENT));
        define(Some("test_a"), "known", FI_PARAM_INT, "a number");
        assert_eq!(get(Some("test_a"), "known"), Err(FI_ENODATA));
    }
}
