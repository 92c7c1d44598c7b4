//! The adapters and the objects that programs have created: protection domains, memory regions,
//! address handles, completion queues and queue pairs. `command` creates and destroys them,
//! `engine` moves packets between them.

use crate::config::Config;
use crate::counters::Counter;
use crate::shared::{Mapping, Shared};
use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// Identifies a context and the objects of that context.
pub type ContextId = u32;

/// Address handle number in completions from a sender without an address handle.
pub const UNKNOWN_AH: u16 = 0xffff;

/// A memory region.
pub struct Mr {
    pub context: ContextId,
    pub pd: u32,
    pub pid: u32,
    /// First address as peers and requests use it, and the program's address of that byte.
    pub iova: u64,
    pub start: u64,
    pub len: u64,
    pub access: u32,
    /// Mapping in this process, for a region of a dma-buf.
    pub mapped: Option<Mapping>,
}

/// Bits of [`Mr::access`].
pub const LOCAL_WRITE: u32 = 1;
pub const REMOTE_WRITE: u32 = 2;
pub const REMOTE_READ: u32 = 4;

impl Mr {
    /// The program's address of `len` bytes at `addr`, if the region contains them.
    pub fn place(&self, addr: u64, len: u64) -> Option<u64> {
        let off = addr.checked_sub(self.iova)?;
        let fits = off <= self.len && len <= self.len - off;
        fits.then(|| self.start + off)
    }
}

/// A completion channel: our end of it, and a copy of the program's.
pub struct Channel {
    pub ours: OwnedFd,
    pub theirs: OwnedFd,
    /// Inode of the program's end, which identifies the channel in later commands.
    pub inode: u64,
}

/// Memory of a completion queue: allocated by the adapter, or a dma-buf.
pub enum Entries {
    Own(Rc<Shared>),
    External(Mapping),
}

impl Entries {
    pub fn memory(&self) -> &Mapping {
        match self {
            Entries::Own(m) => m,
            Entries::External(m) => m,
        }
    }
}

/// A completion queue: the rings of its sub-queues, one after another.
pub struct Cq {
    pub ring: Entries,
    pub bell: Option<Rc<Shared>>,
    pub entry: usize,
    /// Entries of one sub-queue.
    pub depth: usize,
    /// Entries written, of each sub-queue.
    pub put: Vec<u64>,
    pub sgid: bool,
    /// Address of the program's `ibv_cq`, which events carry.
    pub user: u64,
    pub channel: Option<Rc<Channel>>,
    /// Whether the queue was ever armed, and the serial number of its last event.
    pub armed: bool,
    pub served: Option<u32>,
    pub events: u32,
    pub users: u32,
}

/// A queue of work requests, in memory shared with the program.
pub struct Ring {
    pub memory: Rc<Shared>,
    /// Offset of the first entry, and of the doorbell in the doorbells' page.
    pub at: usize,
    pub bell: usize,
    pub entry: usize,
    pub depth: u16,
    /// Entries taken.
    pub taken: u16,
}

/// Queue pair states as the kernel numbers them.
pub const RESET: u8 = 0;
pub const INIT: u8 = 1;
pub const RTR: u8 = 2;
pub const RTS: u8 = 3;
pub const SQD: u8 = 4;
pub const SQE: u8 = 5;
pub const ERR: u8 = 6;

/// A queue pair.
pub struct Qp {
    pub context: ContextId,
    pub adapter: u32,
    pub number: u16,
    pub pd: u32,
    pub state: u8,
    pub qkey: u32,
    pub sq_psn: u32,
    pub datagram: bool,
    pub unsolicited: bool,
    pub rnr_retry: u8,
    pub bells: Rc<Shared>,
    pub sq: Option<Ring>,
    pub rq: Option<Ring>,
    pub send_cq: u32,
    pub recv_cq: u32,
    pub sub: (usize, usize),
    pub cap: [u8; 20],
    /// Counters by handle, with what they count.
    pub counters: Vec<(u32, u32)>,
}

/// Identifies a queue pair: adapter and number.
pub type QpId = (u32, u16);

/// An opened device.
pub struct Context {
    pub adapter: u32,
    pub sock: OwnedFd,
    /// GET_CONTEXT has been called.
    pub ready: bool,
    pub next_handle: u32,
    pub next_map: u64,
    /// Protection domains, with how many objects use each.
    pub pds: HashMap<u32, u32>,
    /// Memory regions by handle: their keys.
    pub mrs: HashMap<u32, u32>,
    /// Address handles: their protection domain and GID.
    pub ahs: HashMap<u32, (u32, [u8; 16])>,
    /// By peer's GID: the address handle number, and how many handles refer to it.
    pub peers: HashMap<[u8; 16], (u16, u32)>,
    pub cqs: HashMap<u32, Cq>,
    pub qps: HashMap<u32, QpId>,
    pub counters: HashMap<u32, Counter>,
    pub channels: Vec<Rc<Channel>>,
    /// Our ends of the descriptors for asynchronous events, closed with the context.
    pub events: Vec<OwnedFd>,
    /// Memory that the program may map, by offset: the file, the position in it, and the length.
    pub maps: HashMap<u64, (Rc<Shared>, u64, u64)>,
}

impl Context {
    /// A freshly opened adapter.
    pub fn new(adapter: u32, sock: OwnedFd) -> Context {
        Context {
            adapter,
            sock,
            ready: false,
            next_handle: 1,
            next_map: 0x1000,
            pds: HashMap::new(),
            mrs: HashMap::new(),
            ahs: HashMap::new(),
            peers: HashMap::new(),
            cqs: HashMap::new(),
            qps: HashMap::new(),
            counters: HashMap::new(),
            channels: Vec::new(),
            events: Vec::new(),
            maps: HashMap::new(),
        }
    }

    /// A handle for a new object.
    pub fn handle(&mut self) -> u32 {
        self.next_handle += 1;
        self.next_handle
    }

    /// Lets the program map memory; returns the offset to map it at.
    pub fn offer(&mut self, memory: &Rc<Shared>, at: usize, len: usize) -> u64 {
        let key = self.next_map;
        let len = len.next_multiple_of(crate::shared::PAGE) as u64;
        self.next_map += len + 0x1000;
        self.maps.insert(key, (Rc::clone(memory), at as u64, len));
        key
    }
}

/// The adapters, with all contexts and objects.
pub struct Device {
    pub cfg: Config,
    pub contexts: BTreeMap<ContextId, Context>,
    pub qps: BTreeMap<QpId, Qp>,
    /// Memory regions by adapter and key.
    pub mrs: HashMap<(u32, u32), Mr>,
    next_qpn: u16,
    next_key: u32,
    pub net: crate::engine::Net,
}

/// Queue pairs per adapter.
pub const MAX_QP: u32 = 1024;

impl Device {
    /// Adapters without contexts.
    pub fn new(cfg: Config) -> Device {
        Device {
            net: crate::engine::Net::new(cfg.seed),
            cfg,
            contexts: BTreeMap::new(),
            qps: BTreeMap::new(),
            mrs: HashMap::new(),
            next_qpn: 0,
            next_key: 0x100,
        }
    }

    /// The adapter with this GID.
    pub fn adapter_of(&self, gid: &[u8; 16]) -> Option<u32> {
        (0..self.cfg.adapters).find(|n| self.cfg.gid_of(*n) == *gid)
    }

    /// A number for a new queue pair. Numbers are not reused soon, and differ modulo `MAX_QP`, the
    /// size of rdma-core's lookup table. `None` when there are too many queue pairs.
    pub fn qp_number(&mut self, adapter: u32) -> Option<u16> {
        let taken: Vec<u16> = self
            .qps
            .keys()
            .filter(|(a, _)| *a == adapter)
            .map(|(_, n)| n % MAX_QP as u16)
            .collect();
        for _ in 0..=u16::MAX {
            self.next_qpn = self.next_qpn.checked_add(1).unwrap_or(1);
            if !taken.contains(&(self.next_qpn % MAX_QP as u16)) {
                return Some(self.next_qpn);
            }
        }
        None
    }

    /// Registers memory; returns its key for local and remote use, 24 bits and never 0. `None`
    /// when the table is full.
    pub fn register(&mut self, adapter: u32, mr: Mr) -> Option<u32> {
        if self.mrs.len() >= self.cfg.max_mr as usize {
            return None;
        }
        loop {
            self.next_key = (self.next_key.wrapping_mul(5).wrapping_add(0x1235)) & 0xff_ffff;
            let key = self.next_key;
            if key != 0 && !self.mrs.contains_key(&(adapter, key)) {
                self.mrs.insert((adapter, key), mr);
                return Some(key);
            }
        }
    }

    /// Closes a context: removes its queue pairs and memory regions.
    pub fn close(&mut self, id: ContextId) {
        if let Some(c) = self.contexts.remove(&id) {
            for qp in c.qps.values() {
                self.qps.remove(qp);
            }
            for key in c.mrs.values() {
                self.mrs.remove(&(c.adapter, *key));
            }
        }
    }
}
