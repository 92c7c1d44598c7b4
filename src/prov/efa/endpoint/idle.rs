//! How often the adapter of an idle endpoint is polled (docs/design/023): a poll costs a system
//! call or a load from the device's memory, which is as much as several messages by a ring.

use super::LiveEndpoint;
use crate::device::QueuePair;
use crate::shm::ShmEndpoint;

/// After `IDLE_POLLS` empty polls the adapter is polled once every `IDLE_INTERVAL` calls while the
/// rings are used, and once every `QUIET_INTERVAL` calls when no active ring has had a record in
/// its last `QUIET_INTERVAL` polls and nothing is outstanding. An endpoint whose rings are not used
/// polls it once every `OTHERS_INTERVAL` calls while those of another endpoint are. Of endpoints
/// that report to one queue, reads that follow one another poll the adapters of a few that are
/// idle, in turn.
const IDLE_POLLS: u32 = 64;
const IDLE_INTERVAL: u32 = 1024;
const QUIET_INTERVAL: u32 = 128;
const OTHERS_INTERVAL: u32 = 32;

/// Polls of endpoints whose rings are not used, after which no ring of the domain counts as used.
const UNUSED: u32 = 1024;

/// Whether rings of any endpoint of a domain are used.
pub(crate) struct RingUse {
    /// Polls of endpoints whose rings are not used since one whose rings are.
    since: u32,
}

impl Default for RingUse {
    fn default() -> RingUse {
        RingUse { since: UNUSED }
    }
}

impl LiveEndpoint {
    /// Decides whether this poll includes the adapter, and counts the polls that do not.
    #[inline]
    pub(crate) fn take_adapter_due(&mut self, rings: &mut RingUse) -> bool {
        let due = !self.skip_adapter_poll(true, rings);
        if due {
            self.skipped_polls = 0;
        }
        due
    }

    /// Decides whether this poll skips the adapter, and counts the polls that do. An idle endpoint
    /// that is not `in_turn` is skipped.
    #[inline]
    pub(crate) fn skip_adapter_poll(&mut self, in_turn: bool, rings: &mut RingUse) -> bool {
        let skipped = self.skipped_polls;
        let used = |h: &ShmEndpoint| {
            let recently = skipped < QUIET_INTERVAL || h.rx.used_within(QUIET_INTERVAL);
            h.rx.in_use() && recently || h.tx.has_outstanding()
        };
        let seldom = match self.shm_ep.as_ref().is_some_and(used) {
            true => {
                rings.since = 0;
                skipped < IDLE_INTERVAL
            }
            false => {
                rings.since = rings.since.saturating_add(1);
                skipped < OTHERS_INTERVAL && rings.since < UNUSED
            }
        };
        let skips = self.empty_polls >= IDLE_POLLS && (!in_turn || seldom) && self.qp.idle();
        self.skipped_polls += u32::from(skips);
        skips
    }
}
