//! Noticing writes that the disk refuses because it has no room for them.
//!
//! A file system may keep such an error to itself: ext4 answers the program's write and sync with success and
//! loses the page. So the disk remembers by itself that it refuses writes, for `disk show` and `disk list`, and
//! tells its log. It refuses nothing: the store does.

use super::log;
use crate::cli::chart;
use pagefold_block::{BlockDevice, BlockError, Extent, StoreDevice};
use pagefold_store::{MemLimit, Store};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How often, at most, the log is told that writes are refused.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// How often, at most, a write that succeeds while others are refused looks for room.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Why a disk refuses writes now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WriteState {
    /// It does not.
    Ok,
    /// The memory limit is reached, and no page can be written back.
    LimitReached,
    /// The system has no memory.
    NoMemory,
}

impl WriteState {
    /// For people.
    pub fn in_words(self) -> &'static str {
        match self {
            WriteState::Ok => "ok",
            WriteState::LimitReached => "limit reached: writes fail",
            WriteState::NoMemory => "no memory: writes fail",
        }
    }
}

/// A store's device that remembers refused writes.
pub struct RefusedWrites {
    inner: StoreDevice,
    store: Arc<Store>,
    /// Whether the state is anything but `Ok`, for writes to look at without the lock.
    refuses: AtomicBool,
    memory: Mutex<Memory>,
}

/// What is remembered.
struct Memory {
    state: WriteState,
    /// Writes refused since the state was last `Ok`.
    refused: u64,
    last_unix_s: Option<u64>,
    logged: Option<Instant>,
    looked: Option<Instant>,
}

impl RefusedWrites {
    /// A device on `store`.
    pub fn new(store: Arc<Store>) -> Self {
        let memory =
            Memory { state: WriteState::Ok, refused: 0, last_unix_s: None, logged: None, looked: None };
        RefusedWrites {
            inner: StoreDevice::new(store.clone()),
            store,
            refuses: AtomicBool::new(false),
            memory: Mutex::new(memory),
        }
    }

    /// Whether writes are refused now, and why.
    pub fn state(&self) -> WriteState {
        match self.lock().state {
            // Nobody may have written since there is room again.
            WriteState::LimitReached if self.has_room() => WriteState::Ok,
            state => state,
        }
    }

    /// When a write was last refused, seconds since 1970.
    pub fn last_unix_s(&self) -> Option<u64> {
        self.lock().last_unix_s
    }

    fn lock(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether any page can be stored, as far as the limit goes.
    fn has_room(&self) -> bool {
        let mm = self.store.stats().mm;
        mm.mem_limit == 0 || mm.mem_used_total.saturating_add(MemLimit::LEAST_BYTES) <= mm.mem_limit
    }

    fn seen(&self, result: Result<(), BlockError>) -> Result<(), BlockError> {
        match &result {
            Ok(()) if self.refuses.load(Relaxed) => self.succeeded(),
            Err(e @ BlockError::NoSpace { .. }) => self.refused(WriteState::LimitReached, e),
            Err(e @ BlockError::NoMemory { .. }) => self.refused(WriteState::NoMemory, e),
            _ => {}
        }
        result
    }

    #[cold]
    fn refused(&self, state: WriteState, error: &BlockError) {
        let now = Instant::now();
        let mut memory = self.lock();
        let is_new = memory.state != state;
        memory.state = state;
        memory.refused += 1;
        memory.last_unix_s = SystemTime::now().duration_since(UNIX_EPOCH).ok().map(|d| d.as_secs());
        self.refuses.store(true, Relaxed);
        if is_new && memory.logged.is_none_or(|at| now.duration_since(at) >= LOG_INTERVAL) {
            memory.logged = Some(now);
            let backing = match self.store.parking() {
                Some(parking) => format!("; writing back: {}", parking.condition()),
                None => String::new(),
            };
            log::error(format_args!("{}: {error}{backing}", state.in_words()));
        }
    }

    #[cold]
    fn succeeded(&self) {
        let now = Instant::now();
        let mut memory = self.lock();
        if memory.looked.is_some_and(|at| now.duration_since(at) < LOOK_INTERVAL) {
            return;
        }
        memory.looked = Some(now);
        if memory.state == WriteState::LimitReached && !self.has_room() {
            return;
        }
        memory.state = WriteState::Ok;
        let refused = std::mem::take(&mut memory.refused);
        self.refuses.store(false, Relaxed);
        let refused = chart::counted(refused, "write was", "writes were");
        log::info(format_args!("writes succeed again; {refused} refused"));
    }
}

impl BlockDevice for RefusedWrites {
    fn len_bytes(&self) -> u64 {
        self.inner.len_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BlockError> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), BlockError> {
        self.seen(self.inner.write_at(offset, data))
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        self.inner.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        self.seen(self.inner.write_zeroes(offset, len))
    }

    fn flush(&self) -> Result<(), BlockError> {
        self.inner.flush()
    }

    fn extent(&self, offset: u64, len: u64) -> Extent {
        self.inner.extent(offset, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagefold_store::StoreConfig;

    /// A page that does not compress.
    fn noise(seed: u64) -> [u8; 4096] {
        let mut x = seed * 2 + 1;
        std::array::from_fn(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x as u8
        })
    }

    fn device(limit_bytes: u64) -> (RefusedWrites, Arc<Store>) {
        let config = StoreConfig { mem_limit: MemLimit::Bytes(limit_bytes), ..StoreConfig::new(1 << 20) };
        let store = Arc::new(Store::new(config).unwrap());
        (RefusedWrites::new(store.clone()), store)
    }

    #[test]
    fn the_state_says_that_writes_fail_until_there_is_room() {
        let (device, store) = device(16 * 4096);
        assert_eq!((device.state(), device.last_unix_s()), (WriteState::Ok, None));
        let refused = (0..64).find(|i| device.write_at(i * 4096, &noise(i + 1)).is_err());
        assert!(refused.is_some_and(|i| i >= 8), "{refused:?}");
        assert_eq!(device.state(), WriteState::LimitReached);
        assert!(device.last_unix_s().is_some());
        // A page that needs no memory says nothing of the others.
        device.write_at(0, &[0; 4096]).unwrap();
        device.write_at(0, &noise(1)).unwrap_or_default();
        assert!(device.lock().refused > 0);
        device.discard(0, 1 << 20).unwrap();
        assert_eq!(device.state(), WriteState::Ok);
        // The next refusal is one of a new kind again.
        device.lock().looked = None;
        device.write_at(0, &noise(1)).unwrap();
        let state = device.lock().state;
        assert_eq!((state, device.lock().refused), (WriteState::Ok, 0));
        store.set_mem_limit(MemLimit::Bytes(4096));
        device.write_at(4096, &noise(2)).unwrap_err();
        assert_eq!(device.state(), WriteState::LimitReached);
        store.set_mem_limit(MemLimit::Off);
        assert_eq!(device.state(), WriteState::Ok);
    }

    #[test]
    fn the_least_limit_takes_any_page() {
        for random in 0..=4096usize {
            let (device, _) = device(MemLimit::LEAST_BYTES);
            let mut page = noise(random as u64);
            page[random..].fill(7);
            device.write_at(0, &page).unwrap();
        }
        let (device, _) = device(MemLimit::LEAST_BYTES - 1);
        device.write_at(0, &noise(1)).unwrap_err();
    }
}
