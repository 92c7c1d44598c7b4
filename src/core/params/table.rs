//! Typed tables of parameters: one line for each gives its type, default and text.

use super::{define, env_name, get, Value};
use crate::types::*;

pub(super) const STR: fi_param_type = FI_PARAM_STRING;
pub(super) const INT: fi_param_type = FI_PARAM_INT;
pub(super) const BOOL: fi_param_type = FI_PARAM_BOOL;
pub(super) const SIZE: fi_param_type = FI_PARAM_SIZE_T;

/// A kind of value: its type in C, its type here, and how it is read. Numbers that are negative or
/// cannot be read count as not set.
macro_rules! param_kind {
    (text, $use:ident $(, $rest:tt)*) => {
        param_kind!(@$use STR, Option<String>, text $(, $rest)*)
    };
    (flag, $use:ident $(, $rest:tt)*) => {
        param_kind!(@$use BOOL, bool, flag $(, $rest)*)
    };
    (choice, $use:ident $(, $rest:tt)*) => {
        param_kind!(@$use BOOL, Option<bool>, choice $(, $rest)*)
    };
    (int, $use:ident $(, $rest:tt)*) => {
        param_kind!(@$use INT, usize, size $(, $rest)*)
    };
    (size, $use:ident $(, $rest:tt)*) => {
        param_kind!(@$use SIZE, usize, size $(, $rest)*)
    };
    (limit, $use:ident $(, $rest:tt)*) => {
        param_kind!(@$use SIZE, Option<usize>, limit $(, $rest)*)
    };
    (@c $c:expr, $t:ty, $read:ident) => { $c };
    (@field $c:expr, $t:ty, $read:ident) => { $t };
    (@value $c:expr, $t:ty, $read:ident, $prov:expr, $name:expr, $default:expr) => {
        $read(($prov, $name), $default)
    };
}

/// Makes the type of a table: a field for each parameter, its value where the environment sets
/// nothing, and how it is defined and read.
macro_rules! param_table {
    ($table:ident of $prov:expr; $($name:ident: $kind:ident = $default:expr, $help:expr;)+) => {
        /// Values of the parameters.
        pub struct $table {
            $(#[doc = $help] pub $name: param_kind!($kind, field),)+
        }

        impl $table {
            /// What holds where the environment sets nothing.
            pub const DEFAULT: $table = $table { $($name: $default,)+ };

            /// Defines the parameters, and reads them.
            fn read() -> $table {
                use $crate::core::params::table::*;
                let d = $table::DEFAULT;
                $({
                    let name = ($prov, stringify!($name));
                    define_one(name, param_kind!($kind, c), $help, &d.$name);
                })+
                $table {
                    $($name: param_kind!(
                        $kind, value, ($prov), (stringify!($name)), (d.$name)
                    ),)+
                }
            }
        }
    };
}
pub(super) use {param_kind, param_table};

/// A parameter: its provider, `None` for the core, and its name.
type ParamName = (Option<&'static str>, &'static str);

pub(super) fn text(name: ParamName, _: Option<String>) -> Option<String> {
    match get(name.0, name.1) {
        Ok(Value::Str(v)) => Some(v),
        _ => None,
    }
}

pub(super) fn choice(name: ParamName, default: Option<bool>) -> Option<bool> {
    match get(name.0, name.1) {
        Ok(Value::Bool(v)) => Some(v),
        _ => default,
    }
}

pub(super) fn flag(name: ParamName, default: bool) -> bool {
    choice(name, None).unwrap_or(default)
}

pub(super) fn limit(name: ParamName, default: Option<usize>) -> Option<usize> {
    match get(name.0, name.1) {
        Ok(Value::Size(v)) => Some(v),
        Ok(Value::Int(v)) => usize::try_from(v).ok().or_else(|| {
            // -1 stands for the default, as with the C library.
            if v != -1 {
                let name = env_name(name.0, name.1);
                crate::warn_log!(FI_LOG_CORE, "{name}={v} is ignored: wanted 0 or more");
            }
            default
        }),
        _ => default,
    }
}

pub(super) fn size(name: ParamName, default: usize) -> usize {
    limit(name, Some(default)).unwrap_or(default)
}

/// How a default reads in a help text.
pub(super) trait DefaultText {
    fn default_text(&self) -> Option<String>;
}

impl DefaultText for bool {
    fn default_text(&self) -> Option<String> {
        Some(u8::from(*self).to_string())
    }
}

impl DefaultText for usize {
    fn default_text(&self) -> Option<String> {
        Some(self.to_string())
    }
}

/// The help text itself describes the default.
impl<T> DefaultText for Option<T> {
    fn default_text(&self) -> Option<String> {
        None
    }
}

pub(super) fn define_one(
    name: ParamName,
    kind: fi_param_type,
    help: &str,
    default: &impl DefaultText,
) {
    match default.default_text() {
        Some(d) => define(name.0, name.1, kind, &format!("{help} Default {d}.")),
        None => define(name.0, name.1, kind, help),
    }
}
