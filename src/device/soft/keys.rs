//! The key file: secrets that the hosts of a cluster share and that seal packets on every interface
//! except loopback.
//!
//! `FI_EFA_SOFT_KEY_FILE` names the file. It is text with one or two keys, each a line of 64
//! hexadecimal digits; empty lines and lines that begin with `#` are ignored. The first key seals
//! datagrams that are sent, both keys open datagrams that are received. Programs read the file when
//! they open a domain. To change keys while programs run: add the new key as the second on every
//! host; when every program has been started since, make the new key the first; when every program
//! has been started once more, remove the old key.
//!
//! The value `require` names no file: a domain then opens on loopback only.

use crate::core::{params, Result};
use crate::types::*;
use ring::{aead, hkdf, hmac};
use std::io::Read;
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::sync::Arc;

/// Bytes of a key.
const KEY: usize = 32;
/// Longest key file that is read.
const FILE_MAX: u64 = 64 << 10;
const NAME: &str = "FI_EFA_SOFT_KEY_FILE";

/// Random number of one sender, from which its packet key is derived.
pub(crate) type Salt = [u8; 16];

/// The keys of a key file, in its order.
pub(crate) struct Keys(Vec<Key>);

struct Key {
    id: u32,
    secret: [u8; KEY],
}

impl core::fmt::Debug for Keys {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} keys", self.0.len())
    }
}

impl Keys {
    /// Reads the text of a key file; the error describes what is wrong.
    pub(crate) fn parse(text: &str) -> core::result::Result<Keys, String> {
        let mut keys: Vec<Key> = Vec::new();
        for (i, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wanted = || format!("line {}: wanted {} hexadecimal digits", i + 1, 2 * KEY);
            if line.len() != 2 * KEY || !line.is_ascii() {
                return Err(wanted());
            }
            let mut secret = [0; KEY];
            for (n, to) in secret.iter_mut().enumerate() {
                let digits = line.get(2 * n..2 * n + 2).unwrap_or("");
                // `from_str_radix` would take a sign.
                if !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
                    return Err(wanted());
                }
                *to = u8::from_str_radix(digits, 16).map_err(|_| wanted())?;
            }
            let mac = hmac::Key::new(hmac::HMAC_SHA256, &secret);
            let tag = hmac::sign(&mac, b"libfabric efasoft key id");
            let id = tag
                .as_ref()
                .first_chunk()
                .map_or(0, |b| u32::from_le_bytes(*b));
            if keys.iter().any(|k| k.id == id) {
                return Err(format!("line {}: the same key again", i + 1));
            }
            keys.push(Key { id, secret });
        }
        match keys.len() {
            1 | 2 => Ok(Keys(keys)),
            n => Err(format!("{n} keys: wanted one or two")),
        }
    }

    /// Id of the key that seals.
    pub(crate) fn first(&self) -> u32 {
        self.0.first().map_or(0, |k| k.id)
    }

    /// Ids of the keys; the id of a single key twice.
    pub(crate) fn ids(&self) -> [u32; 2] {
        let mut all = self.0.iter().map(|k| k.id);
        let first = all.next().unwrap_or(0);
        [first, all.next().unwrap_or(first)]
    }

    /// Packet key of the sender `salt` under the key `id`, if there is such a key.
    pub(crate) fn derive(&self, id: u32, salt: &Salt) -> Option<aead::LessSafeKey> {
        let key = self.0.iter().find(|k| k.id == id)?;
        let secret = hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(&key.secret);
        let info: [&[u8]; 1] = [b"libfabric efasoft packets"];
        let okm = secret.expand(&info, &aead::AES_256_GCM).ok()?;
        Some(aead::LessSafeKey::new(aead::UnboundKey::from(okm)))
    }
}

/// Value of the parameter; `None` on loopback, where packets are not sealed.
fn named(ip: IpAddr) -> Option<&'static str> {
    let path = params::efa().soft_key_file.as_deref();
    path.filter(|_| !ip.is_loopback())
}

/// Whether packets of a socket on `ip` are sealed, which leaves less space for payload.
pub(crate) fn wanted(ip: IpAddr) -> bool {
    named(ip).is_some()
}

/// The keys for sockets on `ip`; `None` on loopback, and where no key file is named. `FI_EACCES`
/// when the file cannot be read or others can, or keys are required and none is named; `FI_EINVAL`
/// when it is not a key file. Each with a log line.
pub(crate) fn load(ip: IpAddr) -> Result<Option<Arc<Keys>>> {
    let Some(path) = named(ip) else {
        return Ok(None);
    };
    let (errno, why) = match path {
        "require" => (
            FI_EACCES,
            format!("packets on {ip} have to be sealed: wanted the path of a key file"),
        ),
        _ => match read(path) {
            Ok(keys) => return Ok(Some(Arc::new(keys))),
            Err(e) => e,
        },
    };
    crate::warn_log!(FI_LOG_FABRIC, "{NAME}={path}: {why}");
    Err(errno)
}

fn read(path: &str) -> core::result::Result<Keys, (i32, String)> {
    let denied = |e: std::io::Error| (FI_EACCES, e.to_string());
    let mut options = std::fs::OpenOptions::new();
    // O_NONBLOCK: opening a FIFO does not block.
    options.read(true).custom_flags(libc::O_NONBLOCK);
    let file = options.open(path).map_err(denied)?;
    let meta = file.metadata().map_err(denied)?;
    // SAFETY: takes nothing and cannot fail.
    let me = unsafe { libc::geteuid() };
    // A file of root may be readable by its group, whose members are trusted with the keys.
    let open = if meta.uid() == 0 { 0o027 } else { 0o077 };
    if !meta.is_file() || !(meta.uid() == me || meta.uid() == 0) || meta.mode() & open != 0 {
        let why = format!(
            "mode {:o}, owner {}: wanted a file of user {me} that nobody else can read (chmod \
             600), or one of root that at most its group can",
            meta.mode() & 0o7777,
            meta.uid()
        );
        return Err((FI_EACCES, why));
    }
    let mut text = String::new();
    file.take(FILE_MAX)
        .read_to_string(&mut text)
        .map_err(denied)?;
    Keys::parse(&text).map_err(|why| (FI_EINVAL, why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn line(byte: u8) -> String {
        format!("{byte:02x}").repeat(KEY)
    }

    #[test]
    fn a_key_file_has_one_or_two_keys() {
        let two = format!("# new\n{}\n\n  {}  \n", line(1), line(0xAB).to_uppercase());
        let keys = Keys::parse(&two).unwrap();
        let other = Keys::parse(&line(0xab)).unwrap();
        assert_eq!(keys.0.len(), 2);
        assert_eq!(keys.0[1].id, other.first());
        assert_ne!(keys.first(), other.first());
        for bad in [
            String::new(),
            line(1)[1..].to_string(),
            line(1).replace('1', "+"),
            [line(1), line(1)].join("\n"),
            [line(1), line(2), line(3)].join("\n"),
            "ä".repeat(KEY),
        ] {
            assert!(Keys::parse(&bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_key_file_that_others_can_read_is_refused() {
        let path = std::env::temp_dir().join(format!("efa-keys-{}", std::process::id()));
        let name = path.to_str().unwrap();
        std::fs::write(&path, line(7)).unwrap();
        for (mode, good) in [(0o600, true), (0o400, true), (0o644, false), (0o620, false)] {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            assert_eq!(read(name).map_err(|e| e.0).is_ok(), good, "{mode:o}");
        }
        std::fs::remove_file(&path).unwrap();
        for bad in [name, "/", "/dev/null"] {
            assert_eq!(
                read(bad).map(|_| ()).map_err(|e| e.0),
                Err(FI_EACCES),
                "{bad}"
            );
        }
    }
}
