//! External providers: `lib*-fi.so` from the directories of `FI_PROVIDER_PATH` (fi_provider(3)),
//! or from `libfabric` beside the library.
//!
//! Each exports `fi_prov_ini`, which returns a `struct fi_provider`. Directories are separated by
//! colons; `+FILE` among them is a file to be preferred to all of its name, and `@` in front of the
//! list puts files before the library's own providers, whatever their versions. A file that is
//! broken, of another architecture, or crashes (`probe`) is named in one line and left out.

use super::info;
use super::layout::V1_10;
use crate::core::info::FabricAttr;
use crate::core::layering::ProviderRole;
use crate::core::registry::{self, Preference, Query, RegisteredProvider};
use crate::core::trusted_env::trusted_var;
use crate::core::{version, Info, Result};
use crate::types::*;
use core::ffi::c_void;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A loaded provider.
pub(crate) struct External {
    name: String,
    /// Valid for good: it lives as long as its library, which is never unloaded.
    raw: *const fi_provider,
}

// SAFETY: a provider's functions may be called from any thread (fi_provider(3)); the struct they
// come from lives as long as its library, which is never unloaded.
unsafe impl Send for External {}
// SAFETY: as above.
unsafe impl Sync for External {}

impl RegisteredProvider for External {
    fn name(&self) -> &str {
        &self.name
    }

    fn role(&self) -> ProviderRole {
        // SAFETY: `raw` is valid for good.
        ProviderRole::of(&self.name, unsafe { (*self.raw).getinfo.is_some() })
    }

    fn version(&self) -> u32 {
        // SAFETY: `raw` is valid for good.
        unsafe { (*self.raw).version }
    }

    fn api_version(&self) -> u32 {
        // SAFETY: `raw` is valid for good.
        unsafe { (*self.raw).fi_version }
    }

    fn c_struct(&self) -> usize {
        self.raw as usize
    }

    fn getinfo(&self, q: &Query) -> Result<Vec<Info>> {
        let c = |s: Option<&str>| s.and_then(|s| CString::new(s).ok());
        let (node, service) = (c(q.node), c(q.service));
        let ptr = |s: &Option<CString>| s.as_ref().map_or(core::ptr::null(), |s| s.as_ptr());
        let hints = q
            .hints
            .map_or(core::ptr::null_mut(), |h| info::write(h, &V1_10));
        if q.hints.is_some() && hints.is_null() {
            return Err(FI_ENOMEM);
        }
        let mut list: *mut fi_info = core::ptr::null_mut();
        // SAFETY: the function is called as its header declares; both lists are freed here.
        unsafe {
            let f = (*self.raw).getinfo.ok_or(FI_ENOSYS)?;
            let r = f(q.api, ptr(&node), ptr(&service), q.flags, hints, &mut list);
            info::free_list(hints, &V1_10);
            if r != 0 {
                return Err(r.wrapping_neg());
            }
            let mut out = Vec::new();
            let mut at = list;
            while let Some(i) = info::read(at, &V1_10) {
                out.push(i);
                at = (*at).next;
            }
            info::free_list(list, &V1_10);
            Ok(out)
        }
    }

    fn open_fabric(&self, attr: &FabricAttr, context: usize) -> Result<*mut fid_fabric> {
        let mut i = Info::empty();
        i.fabric = Some(attr.clone());
        let raw = info::write(&i, &V1_10);
        if raw.is_null() {
            return Err(FI_ENOMEM);
        }
        let mut out = core::ptr::null_mut();
        // SAFETY: the function is called as its header declares; the attributes are freed here.
        unsafe {
            let f = (*self.raw).fabric.ok_or(FI_ENOSYS)?;
            let r = f((*raw).fabric_attr, &mut out, context as *mut c_void);
            info::free_list(raw, &V1_10);
            if r != 0 {
                return Err(r.wrapping_neg());
            }
            if self.role() != ProviderRole::Hook {
                (*out).api_version = attr.api_version;
            }
        }
        Ok(out)
    }
}

/// What `FI_PROVIDER_PATH` says: folders to search, or files to prefer, in its order.
#[derive(Debug, PartialEq)]
struct Search<'a> {
    /// Files come before the library's own providers whatever their versions (`@`).
    found_first: bool,
    /// Folders, and (`true`) preferred files.
    places: Vec<(bool, &'a Path)>,
}

impl<'a> Search<'a> {
    /// `default` is searched where no folder is named.
    fn of(text: &'a str, default: Option<&'a Path>) -> Search<'a> {
        let (found_first, list) = match text.strip_prefix('@') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let place = |p: &'a str| match p.strip_prefix('+') {
            Some(file) => (true, Path::new(file)),
            None => (false, Path::new(p)),
        };
        let mut places: Vec<_> = list
            .split(':')
            .filter(|p| !p.is_empty())
            .map(place)
            .collect();
        if places.iter().all(|(preferred, _)| *preferred) {
            places.extend(default.map(|d| (false, d)));
        }
        Search {
            found_first,
            places,
        }
    }
}

/// `libfabric` beside the library itself, if that is a folder.
fn default_folder() -> Option<PathBuf> {
    // SAFETY: the answer has its place, and its name stays as long as the library.
    let name = unsafe {
        let mut at: libc::Dl_info = core::mem::zeroed();
        let found = libc::dladdr(default_folder as *const c_void, &mut at) != 0;
        if found && !at.dli_fname.is_null() {
            info::string(at.dli_fname)
        } else {
            None
        }
    };
    let dir = Path::new(&name?).parent()?.join("libfabric");
    dir.is_dir().then_some(dir)
}

/// Loads what `FI_PROVIDER_PATH` names, or what the default folder has.
pub(crate) fn load_all() {
    let text = trusted_var("FI_PROVIDER_PATH").unwrap_or_default();
    let default = default_folder();
    let search = Search::of(&text, default.as_deref());
    let rank = match search.found_first {
        true => Preference::Found,
        false => Preference::Version,
    };
    let mut files = Vec::new();
    for (preferred, place) in &search.places {
        match preferred {
            true => files.push((place.to_path_buf(), Preference::Preferred)),
            false => files.extend(files_of(place).into_iter().map(|f| (f, rank))),
        }
    }
    let all: Vec<PathBuf> = files.iter().map(|(f, _)| f.clone()).collect();
    let crashing = super::probe::crashing(&all);
    for (file, rank) in files {
        let loaded = match crashing.contains(&file) {
            true => Err("it ends the process when it is initialised".to_string()),
            false => register(&file, rank),
        };
        if let Err(why) = loaded {
            crate::warn_log!(FI_LOG_CORE, "provider file {}: {why}", file.display());
        }
    }
}

/// The provider files of a folder, in the order of their names.
fn files_of(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir) else {
        crate::warn_log!(
            FI_LOG_CORE,
            "FI_PROVIDER_PATH: {} is no readable directory",
            dir.display()
        );
        return Vec::new();
    };
    let is_file = |p: &PathBuf| {
        p.file_name()
            .is_some_and(|n| n.to_string_lossy().ends_with("-fi.so"))
    };
    let mut files: Vec<PathBuf> = entries
        .filter_map(|e| e.ok().map(|e| e.path()))
        .filter(is_file)
        .collect();
    files.sort();
    files
}

/// Loads a provider file, which stays loaded for good, and calls its `fi_prov_ini`.
pub(super) fn initialise(file: &Path) -> core::result::Result<&'static fi_provider, String> {
    let path = CString::new(file.as_os_str().as_bytes()).map_err(|e| e.to_string())?;
    // SAFETY: loading a library that the administrator named runs its initialisers; the entry
    // point is called as fi_prov.h declares it.
    unsafe {
        let lib = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        if lib.is_null() {
            return Err(super::info::string(libc::dlerror()).unwrap_or_default());
        }
        let ini: *mut c_void = libc::dlsym(lib, c"fi_prov_ini".as_ptr());
        if ini.is_null() {
            return Err("no fi_prov_ini in it".into());
        }
        let ini: unsafe extern "C" fn() -> *mut fi_provider = core::mem::transmute(ini);
        Ok(ini().as_ref().ok_or("fi_prov_ini returned nothing")?)
    }
}

fn register(file: &Path, rank: Preference) -> core::result::Result<(), String> {
    let p = initialise(file)?;
    // SAFETY: the name is a string, as fi_prov.h says.
    let name = unsafe { super::info::string(p.name) }.ok_or("it has no name")?;
    if p.fi_version < version(1, 3) {
        return Err(format!("it was built for libfabric {}", p.fi_version >> 16));
    }
    if p.fabric.is_none() {
        return Err("it has no fabric function".into());
    }
    crate::info_log!(
        FI_LOG_CORE,
        "provider {name} loaded from {}",
        file.display()
    );
    registry::register(Arc::new(External { name, raw: p }), rank);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_names_folders_and_preferred_files() {
        let default = Path::new("/lib/libfabric");
        let of = |text| {
            let s = Search::of(text, Some(default));
            let places: Vec<_> = s
                .places
                .iter()
                .map(|(p, at)| (*p, at.to_str().unwrap()))
                .collect();
            (s.found_first, places)
        };
        assert_eq!(of(""), (false, vec![(false, "/lib/libfabric")]));
        assert_eq!(of("@"), (true, vec![(false, "/lib/libfabric")]));
        assert_eq!(of("/a::/b"), (false, vec![(false, "/a"), (false, "/b")]));
        assert_eq!(of("@/a"), (true, vec![(false, "/a")]));
        let preferred = (true, "/x/liba-fi.so");
        assert_eq!(
            of("+/x/liba-fi.so"),
            (false, vec![preferred, (false, "/lib/libfabric")])
        );
        assert_eq!(
            of("/a:+/x/liba-fi.so"),
            (false, vec![(false, "/a"), preferred])
        );
        assert_eq!(Search::of("", None).places, []);
    }
}
