//! Environment variables that can run code or write files: a set-uid program is started by somebody
//! whose environment must not do so with the program's rights.

use std::io::ErrorKind;

/// `AT_SECURE` of getauxval(3).
const AT_SECURE: usize = 23;

/// As [`std::env::var`], and `None` in a program with other rights than its caller's, as with
/// secure_getenv(3).
pub fn trusted_var(name: &str) -> Option<String> {
    let text = std::env::var(name).ok()?;
    (!has_foreign_rights()).then_some(text)
}

/// Whether this process has other rights than who has started it.
fn has_foreign_rights() -> bool {
    match std::fs::read("/proc/self/auxv") {
        Ok(vector) => is_secure(&vector),
        // The system hides it from such a process.
        Err(e) => e.kind() == ErrorKind::PermissionDenied,
    }
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
}
