//! Tracks writes that the store refuses for lack of room, and logs the first and the end of them.
//!
//! File systems may hide such an error: ext4 returns success for the program's write and sync, and loses the page. So
//! the disk reports itself, in `disk show`, `disk list` and its log, that it refuses writes.
//!
//! The lock is taken by refused writes, by writes that succeed after one was refused, and by reports. Other writes read
//! one flag.

use crate::log;
use pagefold_block::{BlockDevice, BlockError, Extent, StoreDevice};
use pagefold_control::report::disk::WriteState;
use pagefold_control::text;
use pagefold_store::{MemLimit, Store};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Shortest interval between two log lines about refused writes.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// Shortest interval between two checks for room by writes that succeed while others are refused.
const ROOM_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The device of a store, with tracking of refused writes.
pub struct RefusalTracker {
    inner: StoreDevice,
    store: Arc<Store>,
    /// Whether the recorded state is not `Ok`; read by writes without the lock.
    is_refusing: AtomicBool,
    refusals: Mutex<Refusals>,
}

/// The refused writes so far.
struct Refusals {
    state: WriteState,
    /// Writes refused since the state was last `Ok`.
    count: u64,
    /// Writes refused since the device was made.
    total: u64,
    last_unix_s: Option<u64>,
    last_log: Option<Instant>,
    last_room_check: Option<Instant>,
}

impl RefusalTracker {
    /// A device on `store`.
    pub fn new(store: Arc<Store>) -> Self {
        let refusals = Refusals {
            state: WriteState::Ok,
            count: 0,
            total: 0,
            last_unix_s: None,
            last_log: None,
            last_room_check: None,
        };
        RefusalTracker {
            inner: StoreDevice::new(store.clone()),
            store,
            is_refusing: AtomicBool::new(false),
            refusals: Mutex::new(refusals),
        }
    }

    /// Whether writes are accepted now, and if not the reason.
    pub fn state(&self) -> WriteState {
        match self.lock().state {
            // The recorded state is out of date if no write came since there is room again.
            WriteState::LimitReached if self.has_room() => WriteState::Ok,
            state => state,
        }
    }

    /// How many writes were refused.
    pub fn total(&self) -> u64 {
        self.lock().total
    }

    /// When a write was last refused, seconds since 1970.
    pub fn last_unix_s(&self) -> Option<u64> {
        self.lock().last_unix_s
    }

    fn lock(&self) -> MutexGuard<'_, Refusals> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the memory limit leaves room for a page, however badly it compresses.
    fn has_room(&self) -> bool {
        let mm = self.store.stats().mm;
        mm.mem_limit == 0 || mm.mem_used_total.saturating_add(MemLimit::LEAST_BYTES) <= mm.mem_limit
    }

    /// Records the result of a write, and returns it.
    fn record(&self, result: Result<(), BlockError>) -> Result<(), BlockError> {
        match &result {
            Ok(()) if self.is_refusing.load(Relaxed) => self.record_success(),
            Err(e @ BlockError::NoSpace { .. }) => self.record_refusal(WriteState::LimitReached, e),
            Err(e @ BlockError::NoMemory { .. }) => self.record_refusal(WriteState::NoMemory, e),
            _ => {}
        }
        result
    }

    #[cold]
    fn record_refusal(&self, state: WriteState, error: &BlockError) {
        let now = Instant::now();
        let mut refusals = self.lock();
        let is_new = refusals.state != state;
        refusals.state = state;
        refusals.count += 1;
        refusals.total += 1;
        refusals.last_unix_s = SystemTime::now().duration_since(UNIX_EPOCH).ok().map(|d| d.as_secs());
        self.is_refusing.store(true, Relaxed);
        if is_new && refusals.last_log.is_none_or(|at| now.duration_since(at) >= LOG_INTERVAL) {
            refusals.last_log = Some(now);
            let backing = match self.store.writeback() {
                Some(writeback) => format!("; writing back: {}", writeback.condition()),
                None => String::new(),
            };
            log::error(format_args!("{}: {error}{backing}", state.in_words()));
        }
    }

    /// Ends the state: `LimitReached` if there is room again, `NoMemory` in any case. Does nothing if the last call was
    /// less than [`ROOM_CHECK_INTERVAL`] ago.
    #[cold]
    fn record_success(&self) {
        let now = Instant::now();
        let mut refusals = self.lock();
        if refusals.last_room_check.is_some_and(|at| now.duration_since(at) < ROOM_CHECK_INTERVAL) {
            return;
        }
        refusals.last_room_check = Some(now);
        if refusals.state == WriteState::LimitReached && !self.has_room() {
            return;
        }
        refusals.state = WriteState::Ok;
        let count = std::mem::take(&mut refusals.count);
        self.is_refusing.store(false, Relaxed);
        let writes = text::counted(count, "write was", "writes were");
        log::info(format_args!("writes succeed again; {writes} refused"));
    }
}

impl BlockDevice for RefusalTracker {
    fn len_bytes(&self) -> u64 {
        self.inner.len_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BlockError> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), BlockError> {
        self.record(self.inner.write_at(offset, data))
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        self.inner.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        self.record(self.inner.write_zeroes(offset, len))
    }

    fn flush(&self) -> Result<(), BlockError> {
        self.inner.flush()
    }

    fn extent(&self, offset: u64, len: u64) -> Extent {
        self.inner.extent(offset, len)
    }

    fn waits_for_medium(&self, offset: u64, len: u64) -> bool {
        self.inner.waits_for_medium(offset, len)
    }

    fn waits_for_room(&self, len: u64) -> bool {
        self.inner.waits_for_room(len)
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

    fn device(limit_bytes: u64) -> (RefusalTracker, Arc<Store>) {
        let config = StoreConfig { mem_limit: MemLimit::Bytes(limit_bytes), ..StoreConfig::new(1 << 20) };
        let store = Arc::new(Store::new(config).unwrap());
        (RefusalTracker::new(store.clone()), store)
    }

    #[test]
    fn the_state_is_limit_reached_until_there_is_room() {
        let (device, store) = device(16 * 4096);
        assert_eq!((device.state(), device.last_unix_s()), (WriteState::Ok, None));
        let refused = (0..64).find(|i| device.write_at(i * 4096, &noise(i + 1)).is_err());
        assert!(refused.is_some_and(|i| i >= 8), "{refused:?}");
        assert_eq!(device.state(), WriteState::LimitReached);
        assert!(device.last_unix_s().is_some());
        // The success of a page that needs no memory does not end the state.
        device.write_at(0, &[0; 4096]).unwrap();
        device.write_at(0, &noise(1)).unwrap_or_default();
        assert!(device.lock().count > 0);
        device.discard(0, 1 << 20).unwrap();
        assert_eq!(device.state(), WriteState::Ok);
        // A success with room ends the state, and the next refusal begins it anew.
        device.lock().last_room_check = None;
        device.write_at(0, &noise(1)).unwrap();
        let state = device.lock().state;
        assert_eq!((state, device.lock().count), (WriteState::Ok, 0));
        store.set_mem_limit(MemLimit::Bytes(4096));
        device.write_at(4096, &noise(2)).unwrap_err();
        assert_eq!(device.state(), WriteState::LimitReached);
        store.set_mem_limit(MemLimit::Off);
        assert_eq!(device.state(), WriteState::Ok);
        assert!(device.total() >= 2, "the state is ok, and what was refused is not forgotten");
    }

    #[test]
    fn the_smallest_limit_has_room_for_any_page() {
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
