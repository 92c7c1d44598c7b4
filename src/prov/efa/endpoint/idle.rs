//! How often the adapter of an idle endpoint is polled (docs/design/023): a poll costs a system
//! call or a load from the device's memory, which is as much as several messages by a ring.

use super::LiveEndpoint;
use crate::device::host::now;
use crate::device::QueuePair;
use crate::shm::ShmEndpoint;

/// After `IDLE_POLLS` empty polls the adapter is polled once every `IDLE_INTERVAL` calls while the
/// rings are used, and once every `QUIET_INTERVAL` calls when no active ring has had a record in
/// its last `QUIET_INTERVAL` polls and nothing is outstanding. An endpoint whose rings are not used
/// polls it once every `SELDOM_INTERVAL` calls while those of another endpoint are, and after
/// `LONG_IDLE_POLLS` empty polls that are system calls: the calls in between take no longer than
/// one. Of endpoints that report to one queue, reads that follow one another poll the adapters of a
/// few that are idle, in turn.
const IDLE_POLLS: u32 = 64;
const IDLE_INTERVAL: u32 = 1024;
const QUIET_INTERVAL: u32 = 128;
const SELDOM_INTERVAL: u32 = 32;
const LONG_IDLE_POLLS: u32 = 1024;

/// Polls of endpoints whose rings are not used, after which no ring of the domain counts as used.
const UNUSED: u32 = 1024;

/// Where a poll is a system call and several endpoints are polled in turn, an idle one is polled
/// once in so many nanoseconds for each of them, up to `MOST_NS`.
const EACH_NS: u64 = 2_000;
const MOST_NS: u64 = 64_000;

/// What the endpoints of a domain have to do, as far as it concerns how often idle ones are polled.
pub(crate) struct DomainUse {
    /// Polls of endpoints whose rings are not used since one whose rings are.
    since_rings: u32,
    /// The endpoint that was polled last.
    last: u32,
    /// Endpoints of the domain.
    endpoints: u32,
}

impl Default for DomainUse {
    fn default() -> DomainUse {
        DomainUse {
            since_rings: UNUSED,
            last: 0,
            endpoints: 0,
        }
    }
}

impl DomainUse {
    /// An endpoint was opened or closed, and there are so many now.
    pub(crate) fn endpoints(&mut self, count: usize) {
        self.endpoints = count as u32;
    }
}

impl LiveEndpoint {
    /// Decides whether this poll includes the adapter, and counts the polls that do not.
    #[inline]
    pub(crate) fn take_adapter_due(&mut self, id: u32, all: &mut DomainUse) -> bool {
        let due = !self.skip_adapter_poll(id, true, all);
        if due {
            self.skipped_polls = 0;
        }
        due
    }

    /// Decides whether this poll of endpoint `id` skips the adapter, and counts the polls that do.
    /// An idle endpoint that is not `in_turn` is skipped. A second decision within a poll, as
    /// [`LiveEndpoint::take_adapter_due`] makes it, agrees with a first one that did not skip: the
    /// endpoint counts as polled alone then.
    #[inline]
    pub(crate) fn skip_adapter_poll(
        &mut self,
        id: u32,
        in_turn: bool,
        all: &mut DomainUse,
    ) -> bool {
        let alone = core::mem::replace(&mut all.last, id) == id;
        let skipped = self.skipped_polls;
        let used = |h: &ShmEndpoint| {
            let recently = skipped < QUIET_INTERVAL || h.rx.used_within(QUIET_INTERVAL.into());
            h.rx.in_use() && recently || h.tx.has_outstanding()
        };
        let seldom = match self.shm_ep.as_ref().is_some_and(used) {
            true => {
                all.since_rings = 0;
                skipped < IDLE_INTERVAL
            }
            false => {
                all.since_rings = all.since_rings.saturating_add(1);
                let long = self.costly_poll && self.empty_polls >= LONG_IDLE_POLLS;
                skipped < SELDOM_INTERVAL && (long || all.since_rings < UNUSED)
            }
        };
        let skips = self.empty_polls >= IDLE_POLLS
            && (!in_turn || seldom || !alone && self.polled_lately(all))
            && self.qp.idle();
        self.skipped_polls += u32::from(skips);
        skips
    }

    /// Of an idle endpoint that is polled in turn with others: whether its adapter was polled a
    /// short while ago. Otherwise it is now.
    #[inline(never)]
    fn polled_lately(&mut self, all: &DomainUse) -> bool {
        let now = now();
        let interval = MOST_NS.min(EACH_NS * u64::from(all.endpoints));
        let lately = self.costly_poll && now.saturating_sub(self.idle_poll_at) < interval;
        if !lately {
            self.idle_poll_at = now;
        }
        lately
    }
}
