//! Registration cache, for memory that the application did not register itself.
//!
//! Registration pins pages, which takes longer than sending their contents, and applications reuse
//! the same buffers. A [`Cache`] keeps the registrations made for operations, by address, until the
//! application unmaps, moves or empties the memory (`monitor`), or the limits are exceeded. Each
//! operation holds a reference to its registration, so that no registration is withdrawn while an
//! operation uses it.

mod monitor;

use crate::core::sync::{Mutex, MutexGuard, Unpoisoned};
use crate::core::Result;
use core::ops::Range;
use monitor::{Listener, Monitor};
use std::sync::Arc;

/// Shorter memory is not cached: it seldom needs a registration, and there are many such buffers.
const LEAST: usize = 16 << 10;

/// Hard limit on cached registrations: a look-up is a linear search.
const MOST: usize = 1 << 16;

/// A cached registration.
struct CachedMr<T> {
    start: usize,
    end: usize,
    rights: i32,
    value: Arc<T>,
    used: u64,
    /// The memory was unmapped, moved or emptied since the registration.
    gone: bool,
}

/// The cached registrations, unordered. Nothing is allocated or freed under the list's lock (see
/// `monitor`): the list never grows beyond its initial capacity.
struct LruList<T> {
    all: Vec<CachedMr<T>>,
    bytes: usize,
    /// Invalid registrations that are still in the list.
    gone: usize,
    /// Uses so far.
    clock: u64,
    /// Index of the last hit.
    last: usize,
}

/// Limits of a cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub count: usize,
    pub bytes: usize,
}

/// See the module text. Thread safe.
pub(crate) struct Cache<T: Send + Sync + 'static> {
    monitor: &'static Monitor,
    list: Arc<Mutex<LruList<T>>>,
    limits: Limits,
}

impl<T> CachedMr<T> {
    fn fits(&self, addr: usize, end: usize, rights: i32) -> bool {
        let around = self.start <= addr && end <= self.end;
        around && !self.gone && self.rights & rights == rights
    }
}

impl<T> LruList<T> {
    fn find(&mut self, addr: usize, end: usize, rights: i32) -> Option<Arc<T>> {
        let fits = |k: &CachedMr<T>| k.fits(addr, end, rights);
        let at = match self.all.get(self.last) {
            Some(k) if fits(k) => self.last,
            _ => self.all.iter().position(fits)?,
        };
        self.last = at;
        self.clock += 1;
        let k = self.all.get_mut(at)?;
        k.used = self.clock;
        Some(Arc::clone(&k.value))
    }

    /// Adds a registration; `false` when there is no room.
    fn put(&mut self, mut k: CachedMr<T>, limits: Limits) -> bool {
        let len = k.end - k.start;
        let room = self.all.len() < limits.count.min(self.all.capacity());
        let room = room && len <= limits.bytes.saturating_sub(self.bytes);
        if room {
            self.clock += 1;
            k.used = self.clock;
            self.bytes += len;
            self.all.push(k);
        }
        room
    }

    /// Removes one registration: an invalid one or, if the list exceeds `limits`, the least
    /// recently used that no operation holds.
    fn take(&mut self, limits: Limits) -> Option<CachedMr<T>> {
        let full = self.all.len() > limits.count || self.bytes > limits.bytes;
        let free = |k: &CachedMr<T>| k.gone || full && Arc::strong_count(&k.value) == 1;
        let all = self.all.iter().enumerate().filter(|(_, k)| free(k));
        let (at, _) = all.min_by_key(|(_, k)| (!k.gone, k.used))?;
        let k = self.all.swap_remove(at);
        self.gone -= usize::from(k.gone);
        self.bytes -= k.end - k.start;
        Some(k)
    }
}

impl<T: Send + Sync + 'static> Listener for Mutex<LruList<T>> {
    fn invalidate(&self, from: usize, to: usize) {
        let mut l = self.lock().unpoisoned();
        let mut gone = 0;
        for k in &mut l.all {
            if !k.gone && k.start < to && from < k.end {
                k.gone = true;
                gone += 1;
            }
        }
        l.gone += gone;
    }

    fn exclude_watched(&self, range: &mut Range<usize>, page: usize) {
        let l = self.lock().unpoisoned();
        let kept = l.all.iter().filter(|k| !k.gone);
        for kept in kept.filter_map(|k| monitor::pages(k.start, k.end, page)) {
            let apart = kept.end <= range.start || range.end <= kept.start;
            if apart {
                continue;
            }
            // Of a range on both sides of another the longer side remains.
            let before = range.start..kept.start.max(range.start);
            let after = kept.end.min(range.end)..range.end;
            *range = match before.len() > after.len() {
                true => before,
                false => after,
            };
        }
    }
}

impl<T: Send + Sync + 'static> Cache<T> {
    /// An empty cache; `None` where the system does not report changes of the address space.
    pub(crate) fn new(mut limits: Limits) -> Option<Cache<T>> {
        let monitor = Monitor::get()?;
        limits.count = limits.count.min(MOST);
        let list = Arc::new(Mutex::new(LruList {
            all: Vec::with_capacity(limits.count),
            bytes: 0,
            gone: 0,
            clock: 0,
            last: 0,
        }));
        let joined = monitor.join(Arc::clone(&list) as Arc<dyn Listener>);
        joined.then_some(Cache {
            monitor,
            list,
            limits,
        })
    }

    /// A registration of these bytes with at least these rights: as [`Cache::get_kept`], or a new
    /// one that ends with its user. Errors: those of `make`.
    pub(crate) fn get(
        &self,
        addr: usize,
        len: usize,
        rights: i32,
        mut make: impl FnMut() -> Result<T>,
    ) -> Result<Arc<T>> {
        match self.get_kept(addr, len, rights, &mut make)? {
            Some(v) => Ok(v),
            None => make().map(Arc::new),
        }
    }

    /// A cached registration of these bytes with at least these rights, or a new one from `make`,
    /// which is cached; `None` where that is not possible, because the memory is short, or cannot
    /// be watched. Errors: those of `make`.
    pub(crate) fn get_kept(
        &self,
        addr: usize,
        len: usize,
        rights: i32,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<Option<Arc<T>>> {
        let end = addr.saturating_add(len);
        if len < LEAST || !self.monitor.settle() {
            return Ok(None);
        }
        let (hit, gone) = {
            let mut l = self.list();
            (l.find(addr, end, rights), l.gone)
        };
        if gone > 0 {
            // Their memory is pinned until they are withdrawn.
            self.shrink(self.limits);
        }
        if hit.is_some() {
            return Ok(hit);
        }
        let mut notices_read = self.monitor.notices_read();
        if !self.monitor.watch(addr, end) {
            return Ok(None);
        }
        let Limits { count, bytes } = self.limits;
        // Makes room for this registration. What is evicted may have been watched in its place.
        if self.shrink(Limits {
            count: count.saturating_sub(1),
            bytes: bytes.saturating_sub(len),
        }) {
            notices_read = self.monitor.notices_read();
            if !self.monitor.watch(addr, end) {
                return Ok(None);
            }
        }
        let value = Arc::new(make()?);
        let k = CachedMr {
            start: addr,
            end,
            rights,
            value: Arc::clone(&value),
            used: 0,
            gone: false,
        };
        let mut l = self.list();
        // A notice since `notices_read` was read may concern this memory: then the registration is
        // not cached. The monitor finds it in the list for any later notice.
        let same = self.monitor.notices_read() == notices_read;
        let put = same && l.put(k, self.limits);
        drop(l);
        if !put {
            self.monitor.unwatch(addr, end);
        }
        Ok(Some(value))
    }

    /// Returns whether a registration was evicted.
    fn shrink(&self, limits: Limits) -> bool {
        let mut any = false;
        loop {
            let evicted = self.list().take(limits);
            let Some(k) = evicted else {
                return any;
            };
            // Unmapped addresses may be mapped anew, and watched for another registration.
            if !k.gone {
                self.monitor.unwatch(k.start, k.end);
            }
            any = true;
        }
    }

    /// Evicts all registrations that no operation holds; whether there was one.
    pub(crate) fn clear(&self) -> bool {
        self.shrink(Limits { count: 0, bytes: 0 })
    }

    fn list(&self) -> MutexGuard<'_, LruList<T>> {
        self.list.lock().unpoisoned()
    }
}

impl<T: Send + Sync + 'static> Drop for Cache<T> {
    fn drop(&mut self) {
        let listener: Arc<dyn Listener> = Arc::clone(&self.list) as _;
        self.monitor.leave(&listener);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: usize = 64 << 10;

    /// Maps memory with these flags; 0 on failure. With MAP_FIXED the range has to be this test's:
    /// other tests map and unmap at the same time.
    fn map(at: usize, len: usize, flags: i32) -> usize {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping, or one in the place of ours.
        let p = unsafe { libc::mmap(at as *mut _, len, prot, flags, -1, 0) };
        if p == libc::MAP_FAILED {
            0
        } else {
            p as usize
        }
    }

    fn map_anywhere() -> usize {
        let at = map(0, PAGES, 0);
        assert_ne!(at, 0);
        at
    }

    fn unmap(at: usize, len: usize) {
        // SAFETY: mapped above, and nothing refers to it.
        assert_eq!(unsafe { libc::munmap(at as *mut _, len) }, 0);
    }

    const MANY: Limits = Limits {
        count: 100,
        bytes: usize::MAX,
    };

    /// Serialises the tests: memory that one test unmaps keeps the other test's cache from adding
    /// registrations.
    static ALONE: Mutex<()> = Mutex::new(());

    #[test]
    fn what_is_kept_goes_with_its_memory() {
        let _alone = ALONE.lock().unpoisoned();
        let Some(c) = Cache::<u32>::new(MANY) else {
            return;
        };
        let mut n = 0;
        let mut get = |at: usize, len: usize, rights: i32| {
            let made = || {
                n += 1;
                Ok(n)
            };
            *c.get(at, len, rights, made).unwrap()
        };
        let at = map_anywhere();
        let first = get(at, PAGES, 3);
        assert_eq!(get(at, PAGES, 1), first, "fewer rights");
        assert_eq!(get(at + 4096, 40_000, 3), first, "a part");
        assert_ne!(get(at, PAGES, 4), first, "other rights");
        assert_ne!(get(at, 100, 1), first, "too short to be kept");
        unmap(at, PAGES);
        // Unmapped as a whole, and other memory mapped in its place.
        let (at, first) = (0..100)
            .find_map(|_| {
                let at = map_anywhere();
                let first = get(at, PAGES, 3);
                unmap(at, PAGES);
                // Another test may have mapped the range first.
                let again = map(at, PAGES, libc::MAP_FIXED_NOREPLACE);
                (again == at).then_some((at, first))
            })
            .unwrap();
        let second = get(at, PAGES, 3);
        assert_ne!(second, first);
        // Unmapped in part.
        unmap(at, 12_288);
        let third = get(at + 16384, 32768, 3);
        assert_ne!(third, second);
        // Emptied.
        // SAFETY: ours, and nothing is in it.
        let emptied = unsafe { libc::madvise((at + 16384) as *mut _, 8192, libc::MADV_DONTNEED) };
        assert_eq!(emptied, 0);
        assert_ne!(get(at + 16384, 32768, 3), third);
        // Replaced without being unmapped first.
        let fourth = get(at + 16384, 32768, 3);
        let rest = (at + 12_288, PAGES - 12_288);
        assert_eq!(map(rest.0, rest.1, libc::MAP_FIXED), rest.0);
        assert_ne!(get(at + 16384, 32768, 3), fourth);
        unmap(rest.0, rest.1);
    }

    #[test]
    fn the_longest_unused_make_room_and_those_in_use_stay() {
        let _alone = ALONE.lock().unpoisoned();
        let Some(c) = Cache::<usize>::new(Limits { count: 2, ..MANY }) else {
            return;
        };
        let at: Vec<usize> = (0..3).map(|_| map_anywhere()).collect();
        let held = c.get(at[0], PAGES, 1, || Ok(0)).unwrap();
        let of = |i: usize| *c.get(at[i], PAGES, 1, || Ok(10 + i)).unwrap();
        assert_eq!((of(1), of(0)), (11, 0));
        // The third evicts the second: the first is in use.
        assert_eq!(of(2), 12);
        assert_eq!(of(0), 0);
        assert_eq!(*c.get(at[1], PAGES, 1, || Ok(99)).unwrap(), 99);
        drop(held);
        c.clear();
        assert_eq!(of(0), 10);
        assert!(c.clear() && !c.clear(), "room can be made once");
        for a in at {
            unmap(a, PAGES);
        }
    }

    /// The number of mappings that have some of this memory.
    fn mappings(at: usize, end: usize) -> usize {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let number = |s: &str| usize::from_str_radix(s, 16).ok();
        let ranges = maps.lines().filter_map(|l| {
            let (from, rest) = l.split_once('-')?;
            Some((number(from)?, number(rest.split_once(' ')?.0)?))
        });
        ranges.filter(|(f, t)| *f < end && at < *t).count()
    }

    #[test]
    fn what_is_evicted_is_not_watched_any_more() {
        let _alone = ALONE.lock().unpoisoned();
        let Some(c) = Cache::<usize>::new(Limits { count: 4, ..MANY }) else {
            return;
        };
        let many = 200;
        let len = many * 2 * PAGES;
        let at = map(0, len, 0);
        assert_ne!(at, 0);
        for i in 0..many {
            c.get(at + i * 2 * PAGES, PAGES, 1, || Ok(i)).unwrap();
        }
        let left = mappings(at, at + len);
        assert!(left <= 9, "{left} mappings");
        // Neighbours share a page. The eviction of one leaves the other watched.
        c.clear();
        let first = at + PAGES / 2 + 100;
        let of = |from: usize, v: usize| *c.get(from, PAGES, 1, || Ok(v)).unwrap();
        of(first, 1);
        of(first + PAGES, 2);
        for i in 10..13 {
            of(at + i * 2 * PAGES, i);
        }
        assert_eq!(of(first + PAGES, 9), 2);
        assert_ne!(of(first, 8), 1, "was not evicted");
        assert_eq!(of(first + PAGES, 9), 2);
        // SAFETY: ours, and nothing is in it.
        let emptied = unsafe { libc::madvise((at + 2 * PAGES - 4096) as *mut _, 4096, 4) };
        assert_eq!(emptied, 0);
        assert_eq!(of(first + PAGES, 9), 9, "not watched");
        c.clear();
        assert_eq!(mappings(at, at + len), 1);
        unmap(at, len);
    }

    fn linux_since(major: u32, minor: u32) -> bool {
        let text = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let mut numbers = text.split('.').map_while(|n| n.parse::<u32>().ok());
        (numbers.next(), numbers.next()) >= (Some(major), Some(minor))
    }

    /// The kernel gives addresses away again before it reports that they were unmapped.
    #[test]
    fn what_another_thread_unmaps_is_not_found() {
        let _alone = ALONE.lock().unpoisoned();
        let Some(c) = Cache::<()>::new(MANY) else {
            return;
        };
        std::thread::scope(|s| {
            // See `monitor` about Linux before 5.15.
            for _ in 0..if linux_since(5, 15) { 2 } else { 1 } {
                s.spawn(|| {
                    for _ in 0..2_000 {
                        let at = map_anywhere();
                        let mut made = false;
                        let new = || {
                            made = true;
                            Ok(())
                        };
                        c.get(at, PAGES, 1, new).unwrap();
                        assert!(made, "found a registration of memory that was unmapped");
                        unmap(at, PAGES);
                    }
                });
            }
        });
    }

    #[test]
    fn freeing_threads_do_not_wait_for_lookups() {
        let _alone = ALONE.lock().unpoisoned();
        let few = Limits {
            count: 20,
            bytes: 2 << 20,
        };
        let Some(c) = Cache::<(usize, usize)>::new(few) else {
            return;
        };
        let c = Arc::new(c);
        let threads = (0..3u64).map(|seed| {
            let c = Arc::clone(&c);
            std::thread::spawn(move || {
                let mut rng = crate::core::rng::Rng::new(seed);
                for _ in 0..1500 {
                    // On the heap, at its end, or in a mapping of its own: free(3) returns watched
                    // memory to the system.
                    let b = vec![1u8; LEAST + rng.bits() as usize % (300 << 10)];
                    let (at, len) = (b.as_ptr() as usize, b.len());
                    let v = c.get(at, len, 1, || Ok((at, at + len))).unwrap();
                    assert!(v.0 <= at && at + len <= v.1);
                }
            })
        });
        for t in threads.collect::<Vec<_>>() {
            t.join().unwrap();
        }
    }
}
