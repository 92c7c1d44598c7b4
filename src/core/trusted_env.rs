//! Environment variables that can run code or write files: in a set-uid program they would do so
//! with the program's rights, although the environment is the caller's.

use std::fs;
use std::io::ErrorKind;

/// `AT_SECURE` of getauxval(3).
const AT_SECURE: usize = 23;

/// As [`std::env::var`], and `None` in a program with other rights than its caller's, as with
/// secure_getenv(3).
pub fn trusted_var(name: &str) -> Option<String> {
    let text = std::env::var(name).ok()?;
    (!has_foreign_rights()).then_some(text)
}

/// Whether this process has other rights than who has started it, or may have.
fn has_foreign_rights() -> bool {
    match fs::read("/proc/self/auxv") {
        Ok(vector) => is_secure(&vector),
        // Without the file system the kernel's word is missing.
        Err(e) if e.kind() == ErrorKind::NotFound => false,
        // The system hides it from such a process, and from one that must not be traced.
        Err(_) => fs::read_to_string("/proc/self/status").map_or(true, |s| !has_own_ids(&s)),
    }
}

/// Whether all user ids and all group ids in a status of proc(5) are the same, and no capability
/// is there that the user has not.
fn has_own_ids(status: &str) -> bool {
    let value = |name| status.lines().find_map(|l| l.strip_prefix(name));
    let ids = |name| value(name).map(|v| v.split_whitespace().collect::<Vec<_>>());
    let same = |ids: Option<Vec<&str>>| {
        ids.is_some_and(|all| all.len() > 1 && all.windows(2).all(|w| w[0] == w[1]))
    };
    let root = ids("Uid:").is_some_and(|all| all.first() == Some(&"0"));
    let none = value("CapPrm:").is_some_and(|v| v.trim().bytes().all(|b| b == b'0'));
    same(ids("Uid:")) && same(ids("Gid:")) && (root || none)
}

/// Whether an auxiliary vector, pairs of words, has `AT_SECURE` set.
fn is_secure(vector: &[u8]) -> bool {
    let word = |w: &[u8]| w.try_into().map_or(0, usize::from_ne_bytes);
    let pairs = vector.chunks_exact(2 * size_of::<usize>());
    let mut pairs = pairs.map(|p| p.split_at(size_of::<usize>()));
    pairs.any(|(name, value)| word(name) == AT_SECURE && word(value) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_uid_program_has_its_mark_in_the_auxiliary_vector() {
        let vector = |secure: usize| -> Vec<u8> {
            let words = [6, 4096, AT_SECURE, secure, 0, 0];
            words.iter().flat_map(|w| w.to_ne_bytes()).collect()
        };
        assert!(is_secure(&vector(1)));
        assert!(!is_secure(&vector(0)) && !is_secure(&[]));
        assert_eq!(trusted_var("PATH"), std::env::var("PATH").ok());
    }

    #[test]
    fn a_program_that_must_not_be_traced_is_judged_by_its_ids() {
        let status = |uid: &str, caps: &str| {
            format!("Name:\tx\nUid:\t{uid}\nGid:\t7\t7\t7\t7\nCapPrm:\t{caps}\n")
        };
        assert!(has_own_ids(&status("5\t5\t5\t5", "0000000000000000")));
        assert!(has_own_ids(&status("0\t0\t0\t0", "000001ffffffffff")));
        assert!(!has_own_ids(&status("5\t0\t0\t0", "000001ffffffffff")));
        assert!(!has_own_ids(&status("5\t5\t5\t5", "0000000000002000")));
        assert!(!has_own_ids(""));
    }
}
