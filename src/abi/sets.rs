//! Poll sets and wait sets (fi_poll(3)): queues and counters watched together.
//!
//! A poll set remembers the handles that were added and looks at each when asked. A wait set
//! watches the wait objects of queues, event queues and counters opened with FI_WAIT_SET.

use super::entry::{entry, ControlArg, FromC, OutParam, OutParams};
use super::handles::AnyObject;
use super::object::*;
use super::waiting::{chosen, put_descriptor, wait_obj};
use crate::core::sync::Unpoisoned;
use crate::core::sync::{Mutex, MutexGuard};
use crate::core::Result;
use crate::prov::contract::*;
use crate::types::*;
use core::ffi::{c_int, c_void};
use core::mem::size_of;
use std::sync::{Arc, Weak};

/// Body of a `fid_poll`.
pub(crate) struct PollBody<D: Domain> {
    _domain: Arc<D>,
    members: Mutex<Vec<PollMember<D>>>,
}

/// A queue or counter of a poll set.
struct PollMember<D: Domain> {
    fid: *mut fid,
    what: Member<D>,
    /// The sum of a counter when it was last looked at.
    seen: u64,
}

// SAFETY: the handle is the application's, which keeps it open while it is in the set; only its
// context is read, and its address compared.
unsafe impl<D: Domain> Send for PollMember<D> {}

impl<D: Domain> PollMember<D> {
    /// Whether there is something to read, or a counter has changed since it was last `marked` as
    /// seen.
    fn has_news(&mut self, marked: bool) -> Result<bool> {
        match &self.what {
            Member::Cq(d, id) => d.find_completions(*id),
            Member::Eq(q) => Ok(q.upgrade().is_some_and(|q| !q.is_empty())),
            Member::Cntr(d, id) => {
                let (value, errors) = d.read_cntr(*id)?;
                let now = value.wrapping_add(errors);
                let news = self.seen != now;
                if marked {
                    self.seen = now;
                }
                Ok(news)
            }
        }
    }

    /// The context of its handle, as it is now.
    fn context(&self) -> *mut c_void {
        // SAFETY: members are open, as fi_poll(3) asks.
        unsafe { (*self.fid).context }
    }
}

/// A queue or counter as a handle.
impl<D: Domain> FromC<*mut fid> for PollMember<D> {
    unsafe fn from_c(fid: *mut fid) -> Result<Self> {
        // SAFETY: as promised by the caller.
        let (what, seen) = match unsafe { FromC::from_c(fid)? } {
            AnyObject::<D>::Cq(q) => (Member::Cq(Arc::clone(&q.domain), q.id), 0),
            AnyObject::Cntr(c) => {
                let seen = c.domain.read_cntr(c.id)?.0;
                (Member::Cntr(Arc::clone(&c.domain), c.id), seen)
            }
            _ => return Err(FI_EINVAL),
        };
        Ok(PollMember { fid, what, seen })
    }
}

impl<D: Domain> PollBody<D> {
    fn lock(&self) -> MutexGuard<'_, Vec<PollMember<D>>> {
        self.members.lock().unpoisoned()
    }
}

entry! {
    pub(crate) fn poll_open<D: Domain>(
        domain: *mut fid_domain as &Arc<D>,
        attr: *mut fi_poll_attr as Option<&fi_poll_attr>,
        out: *mut *mut fid_poll as OutParam<*mut fid_poll>,
    ) -> c_int = "fi_poll_open" {
        if attr.is_some_and(|a| a.flags != 0) {
            return Err(FI_EBADFLAGS);
        }
        let context = core::ptr::null_mut();
        let f = fid_poll {
            fid: new_fid(FI_CLASS_POLL, context, Tables::<D>::POLL_FI_OPS),
            ops: table(Tables::<D>::POLL_OPS),
        };
        let b = PollBody {
            _domain: Arc::clone(domain),
            members: Mutex::default(),
        };
        out.put(hand_out(f, b));
        Ok(())
    }
}

close! {
    fn poll_close<D: Domain>(_b: PollBody<D> as fid_poll) {
        Ok(())
    }
}

entry! {
    fn poll_add<D: Domain>(
        p: *mut fid_poll as &PollBody<D>,
        member: *mut fid as PollMember<D>,
        flags: u64,
    ) -> c_int = "fi_poll_add" {
        if flags != 0 {
            return Err(FI_EBADFLAGS);
        }
        let mut members = p.lock();
        if !members.iter().any(|m| m.fid == member.fid) {
            members.push(member);
        }
        Ok(())
    }
}

entry! {
    fn poll_del<D: Domain>(
        p: *mut fid_poll as &PollBody<D>,
        member: *mut fid,
        flags: u64,
    ) -> c_int = "fi_poll_del" {
        if flags != 0 {
            return Err(FI_EBADFLAGS);
        }
        p.lock().retain(|m| m.fid != member);
        Ok(())
    }
}

/// Where the contexts of queues and counters go.
struct Contexts(OutParams<*mut c_void>);

impl FromC<(*mut *mut c_void, c_int)> for Contexts {
    unsafe fn from_c((at, count): (*mut *mut c_void, c_int)) -> Result<Self> {
        let count = usize::try_from(count).unwrap_or(0);
        // SAFETY: the caller has NULL, or as many places as it says.
        unsafe { FromC::from_c((at, count)) }.map(Contexts)
    }
}

entry! {
    fn poll<D: Domain>(
        p: *mut fid_poll as &PollBody<D>,
        (contexts: *mut *mut c_void, count: c_int) as contexts: Contexts,
    ) -> c_int = "fi_poll" {
        let Contexts(contexts) = contexts;
        let mut n = 0;
        for m in p.lock().iter_mut() {
            // To ask makes progress, and marks what is new as seen, unless it has no room.
            let room = n < contexts.count();
            if m.has_news(room)? && room {
                if contexts.is_null() {
                    return Err(FI_EINVAL);
                }
                contexts.put(n, m.context());
                n += 1;
            }
        }
        Ok(n)
    }
}

impl<D: Domain> Tables<D> {
    pub(crate) const POLL_FI_OPS: &'static fi_ops = &ops(poll_close::<D>, no_bind, no_control);
}
impl<D: Domain> Tables<D> {
    pub(crate) const POLL_OPS: &'static fi_ops_poll = &fi_ops_poll {
        size: size_of::<fi_ops_poll>(),
        poll: Some(poll::<D>),
        poll_add: Some(poll_add::<D>),
        poll_del: Some(poll_del::<D>),
    };
}

// ---- wait sets -------------------------------------------------------------------------------

/// Something a wait set watches.
pub(crate) enum Member<D: Domain> {
    Cq(Arc<D>, u32),
    Cntr(Arc<D>, u32),
    Eq(Weak<Eq>),
}

impl<D: Domain> Clone for Member<D> {
    fn clone(&self) -> Member<D> {
        match self {
            Member::Cq(d, id) => Member::Cq(Arc::clone(d), *id),
            Member::Cntr(d, id) => Member::Cntr(Arc::clone(d), *id),
            Member::Eq(q) => Member::Eq(Weak::clone(q)),
        }
    }
}

/// Body of a `fid_wait`.
pub(crate) struct WaitBody<D: Domain> {
    set: WaitSet,
    /// FI_WAIT_FD or FI_WAIT_POLLFD.
    obj: fi_wait_obj,
    members: Mutex<Vec<WaitMember<D>>>,
}

/// What a wait set watches.
struct WaitMember<D: Domain> {
    /// Of its wait object.
    fd: i32,
    what: Member<D>,
    /// Value and errors of a counter that a call of fi_wait has reported.
    seen: (u64, u64),
}

impl<D: Domain> Clone for WaitMember<D> {
    fn clone(&self) -> WaitMember<D> {
        let what = self.what.clone();
        WaitMember { what, ..*self }
    }
}

impl<D: Domain> WaitBody<D> {
    /// Watches a queue or counter, whose wait object has this descriptor.
    pub(crate) fn add(&self, fd: i32, what: Member<D>) {
        self.set.add(fd);
        let seen = (0, 0);
        self.lock().push(WaitMember { fd, what, seen });
    }

    fn lock(&self) -> MutexGuard<'_, Vec<WaitMember<D>>> {
        self.members.lock().unpoisoned()
    }

    /// The queue or counter of this descriptor is closed.
    pub(crate) fn remove(&self, fd: i32) {
        self.set.remove(fd);
        self.lock().retain(|m| m.fd != fd);
    }

    /// Stores the counters' values. Returns whether one has changed since the last call.
    fn take_counter_changes(&self) -> Result<bool> {
        let mut changed = false;
        for m in self.snapshot() {
            if let Member::Cntr(d, id) = m.what {
                let now = d.read_cntr(id)?;
                let mut all = self.lock();
                let own = all.iter_mut().find(|own| own.fd == m.fd);
                changed |= own.is_some_and(|m| core::mem::replace(&mut m.seen, now) != now);
            }
        }
        Ok(changed)
    }

    /// Prepares to wait. Returns for how many milliseconds at most (negative: no limit);
    /// `FI_EAGAIN` when a member has something to read.
    fn arm(&self) -> Result<c_int> {
        let mut most = -1;
        for m in self.snapshot() {
            most = shorter(
                most,
                match m.what {
                    Member::Cq(d, id) => d.arm_cq(id)?,
                    // It may have changed since it was read.
                    Member::Cntr(d, id) => d.arm_cntr(id, m.seen.0.saturating_add(1), m.seen.1)?,
                    Member::Eq(q) => match q.upgrade() {
                        Some(q) if !q.is_empty() => return Err(FI_EAGAIN),
                        _ => -1,
                    },
                },
            );
        }
        Ok(most)
    }

    /// As [`WaitBody::arm`], for an application that waits for the descriptor (fi_trywait(3)).
    pub(crate) fn try_wait(&self) -> Result<c_int> {
        match self.take_counter_changes()? {
            true => Err(FI_EAGAIN),
            false => self.arm(),
        }
    }

    /// The members, to be used without the lock: their calls take others.
    fn snapshot(&self) -> Vec<WaitMember<D>> {
        self.lock().clone()
    }
}

entry! {
    pub(crate) fn wait_open<D: Domain>(
        _fabric: *mut fid_fabric,
        attr: *mut fi_wait_attr as &fi_wait_attr,
        out: *mut *mut fid_wait as OutParam<*mut fid_wait>,
    ) -> c_int = "fi_wait_open" {
        if attr.flags != 0 {
            return Err(FI_EBADFLAGS);
        }
        wait_obj(
            "fi_wait_open",
            attr.wait_obj,
            &[FI_WAIT_UNSPEC, FI_WAIT_FD, FI_WAIT_POLLFD],
        )?;
        let context = core::ptr::null_mut();
        let f = fid_wait {
            fid: new_fid(FI_CLASS_WAIT, context, Tables::<D>::WAIT_FI_OPS),
            ops: table(Tables::<D>::WAIT_OPS),
        };
        let b = Arc::new(WaitBody::<D> {
            set: WaitSet::new()?,
            obj: chosen(attr.wait_obj),
            members: Mutex::default(),
        });
        out.put(hand_out(f, b));
        Ok(())
    }
}

close! {
    fn wait_close<D: Domain>(b: Arc<WaitBody<D>> as fid_wait) {
        if !b.lock().is_empty() {
            crate::warn_log!(
                FI_LOG_FABRIC,
                "fi_close: this wait set still has queues or counters"
            );
            return Err(FI_EBUSY);
        }
        Ok(())
    }
}

entry! {
    fn wait_control<D: Domain>(
        b: *mut fid as &Arc<WaitBody<D>>,
        command: c_int,
        arg: *mut c_void as ControlArg,
    ) -> c_int = "fi_control" {
        match command {
            FI_GETWAIT => return put_descriptor(&arg, b.obj, Ok(b.set.fd())),
            // SAFETY: FI_GETWAITOBJ's is a place for an enum fi_wait_obj.
            FI_GETWAITOBJ => unsafe { arg.place::<fi_wait_obj>()? }.put(b.obj),
            _ => return Err(FI_ENOSYS),
        }
        Ok(())
    }
}

entry! {
    /// fi_wait(3): 0 when something can be read, `FI_ETIMEDOUT` after `timeout` milliseconds.
    fn wait<D: Domain>(w: *mut fid_wait as &Arc<WaitBody<D>>, timeout: c_int) -> c_int
        = "fi_wait"
    {
        let b = Arc::clone(w);
        let until = deadline(timeout);
        loop {
            if b.take_counter_changes()? {
                return Ok(());
            }
            let left = remaining(until);
            let most = match b.arm() {
                Ok(most) => most,
                Err(FI_EAGAIN) => return b.take_counter_changes().map(|_| ()),
                Err(e) => return Err(e),
            };
            if left == 0 {
                return Err(FI_ETIMEDOUT);
            }
            if b.set.wait(shorter(left, most)) {
                return b.take_counter_changes().map(|_| ());
            }
        }
    }
}

impl<D: Domain> Tables<D> {
    pub(crate) const WAIT_FI_OPS: &'static fi_ops =
        &ops(wait_close::<D>, no_bind, wait_control::<D>);
}
impl<D: Domain> Tables<D> {
    pub(crate) const WAIT_OPS: &'static fi_ops_wait = &fi_ops_wait {
        size: size_of::<fi_ops_wait>(),
        wait: Some(wait::<D>),
    };
}
