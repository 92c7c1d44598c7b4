//! The thread that waits for what shared memory cannot tell: callers, wake-ups, and the end of
//! peers.
//!
//! One per process, started with the first endpoint; it sleeps in epoll(7). What it hears it puts
//! before the endpoint ([`Shared`]), which looks at one flag with every poll and makes no system
//! call of its own.

use super::bed::Bed;
use super::claim::{Back, Ledger};
use super::reader::Reader;
use super::ring::barrier;
use super::sock::{self, accept, hear, Heard};
use super::table::{Table, Visit};
use super::Sent;
use crate::core::sync::{Mutex, MutexGuard};
use crate::core::Result;
use crate::device::wait::{poll_fd, WaitSet};
use crate::device::{host, QpAddr};
use crate::types::*;
use std::collections::HashMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, OnceLock, Weak};

/// What an endpoint hears of.
pub enum News {
    /// A peer has opened a ring to us; the number names the connection.
    Ring(u64, QpAddr, Reader),
    /// The peer we have called reads our ring from now on, and may let us into its memory.
    Accepted(u64, Option<Visit>),
    /// The peer of this connection wants the rest of a message: its number here, and there.
    Cts(u64, u32, u32),
    /// There is something in this connection's ring, or room.
    Awake(u64),
    /// This connection has ended.
    End(u64),
}

/// An endpoint as its owner and the thread share it.
pub struct Shared {
    pub news: AtomicBool,
    list: Mutex<Vec<News>>,
    /// What peers may know of our memory.
    table: Option<Arc<Table>>,
    /// Readable when there is something; the adapter's descriptor is in it, too.
    pub wait: WaitSet,
}

impl Shared {
    /// Nothing heard yet.
    pub fn new(table: Option<Arc<Table>>) -> Result<Shared> {
        Ok(Shared {
            news: AtomicBool::new(false),
            list: Mutex::default(),
            table,
            wait: WaitSet::new()?,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<News>> {
        self.list.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// What was heard since the last time.
    pub fn take(&self) -> Vec<News> {
        let mut l = self.lock();
        self.news.store(false, Relaxed);
        core::mem::take(&mut l)
    }

    /// The answer to our call on connection `id`, if it has come. That the connection has ended is
    /// still told to whoever takes the news.
    pub fn answer(&self, id: u64) -> Option<News> {
        let mut l = self.lock();
        if l.iter()
            .any(|n| matches!(n, News::End(conn) if *conn == id))
        {
            return Some(News::End(id));
        }
        let accepted = |n: &News| matches!(n, News::Accepted(conn, _) if *conn == id);
        l.iter().position(accepted).map(|at| l.remove(at))
    }

    fn tell(&self, n: News) {
        self.lock().push(n);
        self.rouse();
    }

    /// There is something to look at.
    pub fn rouse(&self) {
        self.news.store(true, Release);
        self.wait.signal();
    }
}

enum What {
    Listener(OwnedFd),
    /// A caller, whose ring we read, its process, and whether that has ended.
    Caller(OwnedFd, i32, Arc<AtomicBool>),
    /// A peer that we have called, and its process; the descriptor is the endpoint's to write to,
    /// too.
    Called(Arc<OwnedFd>, i32),
}

struct Watched {
    ep: Weak<Shared>,
    what: What,
    /// Where a caller is, once it has said so.
    from: OnceLock<QpAddr>,
}

impl Watched {
    /// The peer's process, 0 where it cannot be seen.
    fn process(&self) -> i32 {
        match self.what {
            What::Listener(_) => 0,
            What::Caller(_, pid, _) | What::Called(_, pid) => pid,
        }
    }
}

/// What the thread watches.
#[derive(Default)]
struct State {
    all: HashMap<u64, Watched>,
    /// Numbers given.
    last: u64,
    /// Peers' processes.
    processes: HashMap<i32, Process>,
}

/// A peer's process. Its connections do not tell of its end: a socket may live on in a process that
/// its owner has forked, and ends before its owner does.
struct Process {
    fd: OwnedFd,
    connections: Vec<u64>,
    /// To be told of its end, also when its connections have ended.
    gone: Vec<Weak<AtomicBool>>,
}

impl State {
    /// Watches no more.
    fn remove(&mut self, id: u64) -> Option<Watched> {
        let w = self.all.remove(&id)?;
        if let Some(p) = self.processes.get_mut(&w.process()) {
            p.connections.retain(|c| *c != id);
            let own = |g: &Weak<AtomicBool>| match &w.what {
                What::Caller(_, _, gone) => core::ptr::eq(g.as_ptr(), Arc::as_ptr(gone)),
                _ => false,
            };
            p.gone.retain(|g| g.strong_count() > usize::from(own(g)));
            if p.connections.is_empty() && p.gone.is_empty() {
                self.processes.remove(&w.process());
            }
        }
        Some(w)
    }
}

/// Added to the number of a process: it has ended.
const DEATH: u64 = 1 << 63;

/// A descriptor of a process; `None` where it cannot be seen from here, or the system is older than
/// Linux 5.3.
fn process(pid: i32) -> Option<OwnedFd> {
    if pid <= 0 {
        return None;
    }
    // SAFETY: plain numbers are passed; the descriptor, which exec closes, is owned from here on.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0)?;
        Some(OwnedFd::from_raw_fd(fd))
    }
}

/// See the module text.
pub struct Thread {
    epoll: OwnedFd,
    watched: Mutex<State>,
    /// Accesses to look after, and what tells of new ones.
    ledgers: Mutex<Vec<Guarded>>,
    bell: WaitSet,
    /// A descriptor that is given up for a moment when there is none left.
    spare: Mutex<Option<OwnedFd>>,
}

/// Accesses that nobody may ask about any more.
struct Guarded {
    ledger: Arc<Ledger>,
    /// How far they were at the last look, and for how many looks there have been none.
    seen: Option<u64>,
    idle: u32,
}

/// Callers that are accepted in one go.
const CALLERS: usize = 64;
/// Milliseconds between two looks, and how many without accesses are enough.
const LOOK: i32 = 1;
const IDLE: u32 = 8;
/// So many accesses are taken back at once.
const BATCH: usize = 64;
/// The bell's number; others begin at 1.
const BELL: u64 = 0;

static THREAD: OnceLock<Result<Thread>> = OnceLock::new();

impl Thread {
    /// The thread of this process, started when it is first asked for. `FI_EMFILE` without a
    /// descriptor, `FI_EAGAIN` without a thread.
    pub fn get() -> Result<&'static Thread> {
        let t = THREAD.get_or_init(|| {
            // SAFETY: plain numbers are passed; the descriptor is owned from here on.
            let epoll = unsafe {
                let fd = libc::epoll_create1(libc::EPOLL_CLOEXEC);
                if fd < 0 {
                    return Err(FI_EMFILE);
                }
                OwnedFd::from_raw_fd(fd)
            };
            let bell = WaitSet::new()?;
            let mut e = libc::epoll_event {
                events: libc::EPOLLIN as u32,
                u64: BELL,
            };
            // SAFETY: `e` outlives the call.
            unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, bell.fd(), &mut e) };
            Ok(Thread {
                spare: Mutex::new(epoll.try_clone().ok()),
                epoll,
                watched: Mutex::default(),
                ledgers: Mutex::default(),
                bell,
            })
        });
        static STARTED: AtomicBool = AtomicBool::new(false);
        let t = t.as_ref().map_err(|e| *e)?;
        if !STARTED.swap(true, SeqCst) {
            host::start(c"fi-shm", || t.run()).inspect_err(|_| STARTED.store(false, SeqCst))?;
        }
        Ok(t)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.watched.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn watch(&self, ep: Weak<Shared>, what: What) -> u64 {
        let fd = match &what {
            What::Listener(f) | What::Caller(f, _, _) => f.as_raw_fd(),
            What::Called(f, _) => f.as_raw_fd(),
        };
        let mut w = self.lock();
        w.last += 1;
        let id = w.last;
        let add = |fd: i32, id: u64| {
            let mut e = libc::epoll_event {
                events: (libc::EPOLLIN | libc::EPOLLRDHUP) as u32,
                u64: id,
            };
            // SAFETY: `e` outlives the call.
            unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut e) };
        };
        add(fd, id);
        let from = OnceLock::new();
        let watched = Watched { ep, what, from };
        let pid = watched.process();
        let gone = match &watched.what {
            What::Caller(_, _, gone) => Some(Arc::downgrade(gone)),
            _ => None,
        };
        w.all.insert(id, watched);
        if let Some(p) = w.processes.get_mut(&pid) {
            p.connections.push(id);
            p.gone.extend(gone);
        } else if let Some(fd) = process(pid) {
            add(fd.as_raw_fd(), pid as u64 | DEATH);
            let p = Process {
                fd,
                connections: vec![id],
                gone: gone.into_iter().collect(),
            };
            w.processes.insert(pid, p);
        }
        id
    }

    /// Listens for an endpoint.
    pub fn listen(&self, ep: &Arc<Shared>, fd: OwnedFd) -> u64 {
        self.watch(Arc::downgrade(ep), What::Listener(fd))
    }

    /// Watches the end of a peer that an endpoint has called.
    pub fn called(&self, ep: &Arc<Shared>, fd: Arc<OwnedFd>, pid: i32) -> u64 {
        self.watch(Arc::downgrade(ep), What::Called(fd, pid))
    }

    /// Lets go of a listener or connection, which closes it.
    pub fn forget(&self, id: u64) {
        // Closing takes it out of the epoll set.
        drop(self.lock().remove(id));
    }

    /// Wakes the peer that has called us on connection `id`.
    #[cold]
    pub fn wake(&self, id: u64) {
        if let Some(What::Caller(c, _, _)) = self.lock().all.get(&id).map(|w| &w.what) {
            sock::wake(c);
        }
    }

    /// Asks the caller of an endpoint that is at `from` for the rest of a message (see
    /// [`sock::send_cts`]).
    #[cold]
    pub fn send_cts(&self, ep: &Arc<Shared>, from: &QpAddr, number: u32, here: u32) -> Sent {
        let w = self.lock();
        let own = |w: &&Watched| {
            core::ptr::eq(w.ep.as_ptr(), Arc::as_ptr(ep)) && w.from.get() == Some(from)
        };
        let Some(What::Caller(c, _, _)) = w.all.values().find(own).map(|w| &w.what) else {
            return Sent::Elsewhere;
        };
        match sock::send_cts(c, number, here) {
            Ok(()) => Sent::Done,
            Err(FI_EAGAIN) => Sent::Busy,
            Err(_) => Sent::Elsewhere,
        }
    }

    /// Whether the process at the other end of a connection has ended, heard of or not.
    #[cold]
    pub fn peer_exited(&self, id: u64) -> bool {
        let w = self.lock();
        let Some(x) = w.all.get(&id) else { return true };
        match (w.processes.get(&x.process()), &x.what) {
            (Some(p), _) => poll_fd(p.fd.as_raw_fd(), libc::POLLIN, 0),
            (None, What::Called(c, _)) => poll_fd(c.as_raw_fd(), libc::POLLRDHUP, 0),
            _ => false,
        }
    }

    /// A process has ended, and its connections with it.
    #[cold]
    fn process_ended(&self, pid: i32) {
        let Some(p) = self.lock().processes.remove(&pid) else {
            return;
        };
        for gone in p.gone.iter().filter_map(Weak::upgrade) {
            gone.store(true, SeqCst);
        }
        for id in p.connections {
            self.ready(id, true);
        }
    }

    /// Takes in what is heard on listener or connection `id`, the last of it when its process has
    /// `died`.
    fn ready(&self, id: u64, died: bool) {
        let mut fresh = Vec::new();
        let mut w = self.lock();
        let Some(x) = w.all.get(&id) else { return };
        let Some(ep) = x.ep.upgrade() else {
            w.remove(id);
            return;
        };
        let mut ended = false;
        match &x.what {
            What::Listener(l) => {
                for _ in 0..CALLERS {
                    match accept(l) {
                        Ok(Some(caller)) => fresh.push(caller),
                        Ok(None) => break,
                        Err(_) => {
                            self.refuse_one(l);
                            break;
                        }
                    }
                }
            }
            What::Caller(c, pid, gone) => loop {
                match hear(c) {
                    Heard::Nothing => break,
                    Heard::Wake => ep.tell(News::Awake(id)),
                    Heard::Ring(from, fd) => {
                        let ring = match sock::owns(&from, *pid) {
                            true => Bed::open(fd).ok(),
                            false => None,
                        };
                        let table = ep.table.as_ref().map(|t| t.offer());
                        // A caller whose ring is not mapped, or who does not hear of it, sends by
                        // the adapter.
                        let ring = ring.filter(|_| sock::answer(c, table).is_ok());
                        let Some(map) = ring.map(Arc::new) else {
                            ended = true;
                            break;
                        };
                        if let Some(t) = &ep.table {
                            t.visitor(&map, gone);
                        }
                        // A second ring on one connection is of the same caller.
                        let from = *x.from.get_or_init(|| from);
                        ep.tell(News::Ring(id, from, Reader::new(map)));
                    }
                    Heard::Accepted(_) | Heard::Cts(..) | Heard::End => {
                        ended = true;
                        break;
                    }
                }
            },
            What::Called(c, pid) => match hear(c) {
                Heard::Nothing => {}
                Heard::Wake => ep.tell(News::Awake(id)),
                Heard::Cts(number, there) => ep.tell(News::Cts(id, number, there)),
                Heard::Accepted(table) => {
                    let visit = table.and_then(|(probe, fd)| Visit::new(*pid, fd, probe));
                    ep.tell(News::Accepted(id, visit));
                }
                _ => ended = true,
            },
        }
        if ended || died {
            if let What::Caller(_, pid, gone) = &x.what {
                // Of a process that we cannot see the connection is all there is.
                gone.fetch_or(died || !w.processes.contains_key(pid), SeqCst);
            }
            w.remove(id);
            drop(w);
            ep.tell(News::End(id));
            return;
        }
        drop(w);
        for (fd, pid) in fresh {
            let gone = Arc::new(AtomicBool::new(false));
            self.watch(Arc::downgrade(&ep), What::Caller(fd, pid, gone));
        }
    }

    /// Without a descriptor for a caller: it is told so by the end of its connection, for which one
    /// is kept in reserve, and sends by the adapter.
    #[cold]
    fn refuse_one(&self, listener: &OwnedFd) {
        let mut spare = self.spare.lock().unwrap_or_else(|e| e.into_inner());
        match spare.take() {
            Some(s) => drop(s),
            // None is left at all: a moment for others to give some back.
            None => std::thread::sleep(std::time::Duration::from_millis(1)),
        }
        crate::warn_limited!(
            FI_LOG_EP_CTRL,
            "shm: no file descriptor left for a caller (ulimit -n): it is reached by the adapter"
        );
        drop(accept(listener));
        *spare = self.epoll.try_clone().ok();
    }

    fn guarded(&self) -> MutexGuard<'_, Vec<Guarded>> {
        self.ledgers.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Sees to it that accesses are done although nobody asks about them.
    #[cold]
    pub fn look_after(&self, ledger: &Arc<Ledger>) {
        ledger.watched.store(true, SeqCst);
        self.guarded().push(Guarded {
            ledger: Arc::clone(ledger),
            seen: None,
            idle: 0,
        });
        self.bell.signal();
    }

    /// Looks at the accesses it looks after. Whether there are such.
    fn look(&self) -> bool {
        let mut all = self.guarded();
        all.retain_mut(Guarded::look);
        !all.is_empty()
    }

    /// Waits up to `most` milliseconds (-1: for ever) for something to hear, and takes it in. The
    /// bell is for the thread itself: it stops when that is `answered`.
    fn hear(&self, most: i32, answered: bool) -> bool {
        let mut e = [libc::epoll_event { events: 0, u64: 0 }; 64];
        // SAFETY: `e` has room for the events asked for.
        let n = unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), e.as_mut_ptr(), 64, most) };
        let mut some = false;
        for ev in e.iter().take(usize::try_from(n).unwrap_or(0)) {
            let heard = ev.u64;
            some |= heard != BELL;
            match heard {
                BELL if answered => self.bell.clear(),
                BELL => {}
                id if id & DEATH != 0 => self.process_ended((id & !DEATH) as i32),
                id => self.ready(id, false),
            }
        }
        some
    }

    fn run(&self) {
        let mut guards = false;
        loop {
            self.hear(if guards { LOOK } else { -1 }, true);
            guards = self.look();
        }
    }

    /// Does what the thread has to do just now, in its place: whoever polls in vain on the
    /// processor that it would run on may keep it from running for milliseconds. Whether there was
    /// something.
    pub fn attend() -> bool {
        let t = THREAD.get().and_then(|t| t.as_ref().ok());
        t.is_some_and(|t| t.hear(0, false))
    }
}

impl Guarded {
    /// Takes back what the target has not touched since the last look. Whether another look is due.
    fn look(&mut self) -> bool {
        // Its peer is gone, or its endpoint closed.
        if Arc::strong_count(&self.ledger) == 1 {
            return false;
        }
        let pending = self.ledger.pending();
        if pending.is_none() {
            self.seen = None;
            self.idle += 1;
            if self.idle < IDLE {
                return true;
            }
            // Whoever writes another one after this rings the bell; what was written before, we
            // see.
            self.ledger.watched.store(false, SeqCst);
            barrier();
            if self.ledger.pending().is_none() {
                return false;
            }
            self.ledger.watched.store(true, SeqCst);
        }
        self.idle = 0;
        if self.seen == pending {
            while matches!(self.ledger.take_back(BATCH), Back::Did(n) if n > 0) {}
            self.seen = None;
        } else {
            self.seen = pending;
        }
        true
    }
}
