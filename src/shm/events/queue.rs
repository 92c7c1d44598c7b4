//! The queue of events of one endpoint, which its owner and the events thread share.

use super::*;

/// Events in an endpoint's queue, above which a peer that asks for more is cut off.
const QUEUED_MAX: usize = 1 << 16;

/// An event that the thread queues for an endpoint.
pub(crate) enum RingEvent {
    /// A peer has opened a ring to us; the number names the connection.
    Ring(u64, QpAddr, RingReader),
    /// A peer that we connected to reads our ring from now on; with its table of registered memory,
    /// if the system permits access.
    Accepted(u64, Option<RemoteMrTable>),
    /// CTS: the peer of this connection asks for the rest of a message: its number here, and there.
    Cts(u64, u32, u32),
    /// Wake-up: this connection's ring has a record, or room.
    Awake(u64),
    /// This connection has ended.
    End(u64),
}

/// The part of an endpoint that its owner and the events thread share.
pub(crate) struct EventQueue {
    pub news: AtomicBool,
    list: Mutex<Vec<RingEvent>>,
    /// Registered memory that is offered to peers.
    pub(super) table: Option<Arc<MrTable>>,
    /// Readable when an event is queued; the adapter's descriptor is in the set, too.
    pub wait: WaitSet,
    /// The endpoint is closed: it takes no callers.
    pub(super) closed: AtomicBool,
}

impl EventQueue {
    /// An empty queue.
    pub(crate) fn new(table: Option<Arc<MrTable>>) -> Result<EventQueue> {
        Ok(EventQueue {
            news: AtomicBool::new(false),
            list: Mutex::default(),
            table,
            wait: WaitSet::new()?,
            closed: AtomicBool::new(false),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<RingEvent>> {
        self.list.lock().unpoisoned()
    }

    /// Takes the events queued since the last call.
    pub(crate) fn take(&self) -> Vec<RingEvent> {
        let mut l = self.lock();
        self.news.store(false, Relaxed);
        core::mem::take(&mut l)
    }

    /// Takes the answer to our request on connection `id` out of the queue, if it has arrived. The
    /// end of the connection is returned, and stays in the queue as well.
    pub(crate) fn take_answer(&self, id: u64) -> Option<RingEvent> {
        let mut l = self.lock();
        if l.iter()
            .any(|n| matches!(n, RingEvent::End(conn) if *conn == id))
        {
            return Some(RingEvent::End(id));
        }
        let accepted = |n: &RingEvent| matches!(n, RingEvent::Accepted(conn, _) if *conn == id);
        l.iter().position(accepted).map(|at| l.remove(at))
    }

    pub(super) fn push(&self, n: RingEvent) {
        self.lock().push(n);
        self.signal();
    }

    /// Queues a wake-up, unless one of this connection is in the queue.
    pub(super) fn push_awake(&self, id: u64) {
        let mut l = self.lock();
        let same = |n: &RingEvent| matches!(n, RingEvent::Awake(conn) if *conn == id);
        if !l.iter().any(same) {
            l.push(RingEvent::Awake(id));
        }
        drop(l);
        self.signal();
    }

    /// Whether the queue has more events than peers that obey have reason to send.
    pub(super) fn is_full(&self) -> bool {
        self.lock().len() >= QUEUED_MAX
    }

    /// Reports that the queue has an event: sets the flag and makes the descriptor readable.
    pub(crate) fn signal(&self) {
        self.news.store(true, Release);
        self.wait.signal();
    }
}
