//! Address vectors with a name (fi_av(3)): one process inserts, others of the same user read.
//!
//! A file in `/dev/shm` holds the raw addresses in the order of their indices, so that an index is
//! the same `fi_addr_t` in every process. An index without an address is all zero. The process that
//! created the file removes it when the vector is closed.

use super::addr;
use crate::core::Result;
use crate::device::host::user;
use crate::types::*;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

/// See the module text.
#[derive(Debug)]
pub(crate) struct SharedAv {
    file: File,
    path: PathBuf,
    reader: bool,
}

impl SharedAv {
    /// Creates the vector of this name, or opens it for reading. `FI_EINVAL` for a name that is
    /// empty, has a slash or is longer than 200 bytes, `FI_ENOENT` when there is no vector to read,
    /// `FI_EACCES` for a file of another user.
    pub(crate) fn open(name: &str, reader: bool) -> Result<SharedAv> {
        if name.is_empty() || name.contains('/') || name.len() > 200 {
            crate::warn_log!(
                FI_LOG_AV,
                "fi_av_open: name {name:?}: wanted 1 to 200 characters and no slash"
            );
            return Err(FI_EINVAL);
        }
        let path = PathBuf::from(format!("/dev/shm/libfabric-av-{}-{name}", user()));
        let mut how = OpenOptions::new();
        how.read(true).custom_flags(libc::O_NOFOLLOW);
        if !reader {
            // A killed process leaves its file behind: an existing file is truncated.
            how.write(true).create(true).truncate(true).mode(0o600);
        }
        let file = how.open(&path).map_err(|e| {
            let errno = e.raw_os_error().unwrap_or(FI_EIO);
            if reader && errno == FI_ENOENT {
                // No warning: applications open a vector to find out whether they are the first.
                crate::info_log!(
                    FI_LOG_AV,
                    "fi_av_open: no vector {name:?} to read: {path:?}"
                );
            } else {
                crate::warn_log!(FI_LOG_AV, "fi_av_open: {path:?}: {e}");
            }
            errno
        })?;
        if file.metadata().map_or(true, |m| m.uid() != user()) {
            crate::warn_log!(FI_LOG_AV, "fi_av_open: {path:?} is another user's");
            return Err(FI_EACCES);
        }
        Ok(SharedAv { file, path, reader })
    }

    /// Whether another process inserts.
    pub(crate) fn reader(&self) -> bool {
        self.reader
    }

    /// Writes the address of an index. Addresses that a reader inserts stay in its process.
    pub(crate) fn put(&self, at: u32, raw: &[u8; addr::LEN]) -> Result<()> {
        if self.reader {
            return Ok(());
        }
        self.file
            .write_all_at(raw, u64::from(at) * addr::LEN as u64)
            .map_err(|e| e.raw_os_error().unwrap_or(FI_EIO))
    }

    /// All addresses, by index.
    pub(crate) fn read(&self) -> Result<Vec<[u8; addr::LEN]>> {
        let io = |e: std::io::Error| e.raw_os_error().unwrap_or(FI_EIO);
        let len = self.file.metadata().map_err(io)?.len() as usize;
        let mut bytes = vec![0u8; len / addr::LEN * addr::LEN];
        self.file.read_exact_at(&mut bytes, 0).map_err(io)?;
        Ok(bytes
            .chunks_exact(addr::LEN)
            .filter_map(|c| c.first_chunk().copied())
            .collect())
    }
}

impl Drop for SharedAv {
    fn drop(&mut self) {
        if !self.reader {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
