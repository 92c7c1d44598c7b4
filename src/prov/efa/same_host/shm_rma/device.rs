//! Reads and writes of a peer's device memory that this process can open: the device copies, and
//! the peer takes no part.
//!
//! A copy is started when its access is posted, and polls ask the oldest whether it is over, so
//! that many are under way at once: a device that several processes use takes turns of
//! milliseconds. An access to or from host memory, which takes longer, is copied in parts.

use super::cma_batch::{send_event, RefusedAccess};
use super::port::RmaRings;
use crate::hmem::UserMem;
use crate::proto::PeerId;
use crate::prov::efa::same_host::DEVICE_BUDGET;
use crate::shm::RmaDenied;
use crate::transport::{Completion, RemoteAddr, Status};
use std::collections::VecDeque;

/// Bytes of a part of an access between devices.
const DEVICE_PART: usize = 256 << 20;
/// Most copies under way; with half as many the caller is asked to poll.
const COPIES: usize = 128;

/// An access to device memory of a peer.
pub(super) struct DeviceAccess {
    pub write: bool,
    pub mem: UserMem,
    pub done: Completion,
    pub cq_data: Option<u64>,
    /// The target takes an event of the access.
    pub wants_event: bool,
    copied: usize,
    /// The copy of the next part, which is under way.
    copy: Option<u32>,
}

impl DeviceAccess {
    /// An access of which nothing is copied.
    pub(super) fn new(
        write: bool,
        mem: UserMem,
        done: Completion,
        (cq_data, wants_event): (Option<u64>, bool),
    ) -> DeviceAccess {
        DeviceAccess {
            write,
            mem,
            done,
            cq_data,
            wants_event,
            copied: 0,
            copy: None,
        }
    }

    /// The next part of the local memory, and the remote address of that part.
    fn part(&self) -> (UserMem, RemoteAddr) {
        let most = match self.mem.is_host() {
            true => DEVICE_BUDGET,
            false => DEVICE_PART,
        };
        let mut at = self.done.remote;
        at.addr = at.addr.wrapping_add(self.copied as u64);
        (self.mem.part(self.copied, most), at)
    }
}

/// What a poll has found, or done, for one access.
enum CopyStep {
    /// The copy that was asked for is under way.
    Copying,
    /// The next copy was started.
    Started,
    /// The next copy, or the event for the target, has to wait.
    Waits,
    Ended,
    Denied(RmaDenied),
}

/// What limits the copies under way: their number, and bytes of host memory that this call has
/// started to copy.
#[derive(Default)]
struct CopyLimits {
    running: usize,
    host: usize,
}

impl CopyLimits {
    /// Whether no copy can be started, of `all` accesses.
    fn reached(&self, all: usize) -> bool {
        self.running == all || self.running >= COPIES || self.host >= DEVICE_BUDGET
    }
}

impl DeviceAccess {
    /// Asks whether the copy is over that is under way, and starts the next.
    fn step<R: RmaRings>(&mut self, rings: &mut R, limits: &mut CopyLimits) -> CopyStep {
        let peer = self.done.peer;
        if let Some(n) = self.copy {
            let Some(over) = rings.poll_device_copy(n) else {
                return CopyStep::Copying;
            };
            limits.running -= 1;
            self.copy = None;
            match over {
                Ok(()) => self.copied += self.part().0.len(),
                Err(denied) => return CopyStep::Denied(denied),
            }
        }
        let len = self.mem.len();
        if self.copied >= len {
            let what = (len, self.cq_data, self.write);
            return match !self.wants_event || send_event(rings, &self.done, what) {
                true => CopyStep::Ended,
                false => CopyStep::Waits,
            };
        }
        if limits.reached(usize::MAX) {
            return CopyStep::Waits;
        }
        let (part, at) = self.part();
        match rings.start_device_copy(peer, at, self.write, &part) {
            Ok(Some(n)) => {
                self.copy = Some(n);
                limits.running += 1;
                limits.host += if self.mem.is_host() { part.len() } else { 0 };
                CopyStep::Started
            }
            Ok(None) => {
                // Later accesses must not take the places that this one waits for.
                limits.host = DEVICE_BUDGET;
                CopyStep::Waits
            }
            Err(denied) => CopyStep::Denied(denied),
        }
    }
}

/// The accesses that the device copies, or will.
#[derive(Default)]
pub(super) struct DeviceCopies {
    accesses: VecDeque<DeviceAccess>,
    limits: CopyLimits,
    refused: Vec<RefusedAccess>,
}

impl DeviceCopies {
    /// 0 when there is nothing to do for a poll.
    #[inline(always)]
    pub(super) fn load(&self) -> usize {
        self.accesses.len() | self.refused.len()
    }

    /// Whether accesses to this peer are under way.
    pub(super) fn has_outstanding_to(&self, peer: PeerId) -> bool {
        let refused = self.refused.iter().any(|r| r.done.peer == peer);
        refused || self.accesses.iter().any(|a| a.done.peer == peer)
    }

    /// Takes the accesses that the adapter has to carry out.
    pub(super) fn take_refused(&mut self) -> Vec<RefusedAccess> {
        core::mem::take(&mut self.refused)
    }

    /// Begins an access. Returns whether the caller should poll.
    pub(super) fn begin<R: RmaRings>(
        &mut self,
        rings: &mut R,
        a: DeviceAccess,
        ended: &mut Vec<(Completion, Status)>,
    ) -> bool {
        let all_started = self.limits.running == self.accesses.len();
        self.accesses.push_back(a);
        self.limits.host = 0;
        if let Some(a) = self.accesses.back_mut().filter(|_| all_started) {
            if let CopyStep::Denied(denied) = a.step(rings, &mut self.limits) {
                self.deny(self.accesses.len() - 1, denied, ended);
            }
        }
        !all_started || self.limits.running >= COPIES / 2
    }

    /// Takes note of copies that are over, and starts others.
    pub(super) fn poll<R: RmaRings>(
        &mut self,
        rings: &mut R,
        ended: &mut Vec<(Completion, Status)>,
    ) {
        let (mut at, mut asks) = (0, true);
        self.limits.host = 0;
        while let Some(a) = self.accesses.get_mut(at) {
            // A stream makes copies in order: behind one that is under way none is asked for.
            let step = match a.copy.is_some() && !asks {
                true => CopyStep::Copying,
                false => a.step(rings, &mut self.limits),
            };
            match step {
                CopyStep::Copying | CopyStep::Started | CopyStep::Waits => {
                    asks &= !matches!(step, CopyStep::Copying);
                    if !asks && self.limits.reached(self.accesses.len()) {
                        return;
                    }
                    at += 1;
                }
                CopyStep::Ended => {
                    ended.extend(self.accesses.remove(at).map(|a| (a.done, Status::Ok)));
                }
                CopyStep::Denied(denied) => self.deny(at, denied, ended),
            }
        }
    }

    /// Ends the access at `at` with an error, or leaves it to the adapter.
    fn deny(&mut self, at: usize, denied: RmaDenied, ended: &mut Vec<(Completion, Status)>) {
        let Some(a) = self.accesses.remove(at) else {
            return;
        };
        let a = RefusedAccess {
            write: a.write,
            mem: a.mem,
            done: a.done,
            cq_data: a.cq_data,
        };
        a.denied(denied, ended, &mut self.refused);
    }
}
