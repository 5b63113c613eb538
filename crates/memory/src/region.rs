//! A region: its threads, its limits, and the calls of its owner.

use crate::config::{Eviction, RegionConfig, Service};
use crate::counters::{Counter, EvictionStats, FaultStats, MemoryStats, PageTimes, PoolStats, RegionStats};
use crate::error::{RangeError, RegionError};
use crate::evict::{ClockHand, Evictor};
use crate::fault::handlers::Handlers;
use crate::fault::registry::{REGIONS_MAX, RegisterError, Registered, register};
use crate::pager::{Pager, Pinned};
use crate::store_view::StoreView;
use pagefold_page::PAGE_SIZE;
use pagefold_store::{MemLimit, WritebackThread};
use pagefold_sys::signal;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::thread::JoinHandle;

/// The largest range, bytes.
const LEN_MAX_BYTES: u64 = 16 << 40;

/// A range of memory that is resident up to a limit; the rest of it is folded.
///
/// Threads and signal handlers read and write the range by address, as any other memory. The documentation of
/// [`Service`] says how system calls can use it. `madvise`, `mremap`, `mprotect` and `mlock` must not be used on it. A
/// forked child does not have the range.
pub struct Region {
    // Fields are dropped in this order: threads end before the objects that they use.
    evictors: Vec<JoinHandle<()>>,
    handlers: Option<Handlers>,
    registered: Option<Registered>,
    writeback_thread: Option<WritebackThread>,
    pager: Option<Arc<Pager>>,
}

/// A part of a region that stays resident, and may be a buffer of system calls, until this is dropped.
pub struct Pin<'a> {
    _pinned: Pinned<'a>,
    start: *mut u8,
    len_bytes: usize,
}

// SAFETY: it only returns the address, and pages are unpinned by atomic changes of their words, in any thread.
unsafe impl Send for Pin<'_> {}
// SAFETY: a shared pin only returns the address and the length; code that uses the address is itself responsible for
// it.
unsafe impl Sync for Pin<'_> {}

impl Pin<'_> {
    /// Returns the address of the first pinned byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start
    }

    /// Returns the number of pinned bytes.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }
}

/// A pinned part of a region with exclusive access to its bytes: a buffer that system calls can read and write.
pub struct PinMut<'a>(Pin<'a>);

impl Deref for PinMut<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped for as long as the region, which this borrows exclusively, so that no other reference into it
        // lives; users of the raw address are responsible for their own accesses. Memory of a region is initialised.
        unsafe { std::slice::from_raw_parts(self.0.start, self.0.len_bytes) }
    }
}

impl DerefMut for PinMut<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`; `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.0.start, self.0.len_bytes) }
    }
}

/// Refuses machines whose page size is not 4096 bytes.
fn check_page_size(bytes: usize) -> Result<(), RegionError> {
    match bytes {
        PAGE_SIZE => Ok(()),
        _ => Err(RegionError::PageSize { bytes }),
    }
}

fn check(config: &RegionConfig) -> Result<(), RegionError> {
    check_page_size(pagefold_sys::mem::page_size())?;
    if config.len_bytes == 0 || config.len_bytes > LEN_MAX_BYTES {
        return Err(RegionError::BadLength(config.len_bytes));
    }
    check_limit(config.limit_bytes)?;
    check_percent("max_pool_percent", config.max_pool_percent)?;
    check_percent("accept_threshold_percent", config.accept_threshold_percent)
}

fn check_percent(name: &'static str, percent: u8) -> Result<(), RegionError> {
    match percent {
        1..=100 => Ok(()),
        _ => Err(RegionError::BadPercent { name, percent }),
    }
}

fn check_limit(limit_bytes: u64) -> Result<(), RegionError> {
    match limit_bytes {
        RegionConfig::LIMIT_MIN_BYTES.. => Ok(()),
        _ => Err(RegionError::LimitTooSmall { limit_bytes, min_bytes: RegionConfig::LIMIT_MIN_BYTES }),
    }
}

impl Region {
    /// Makes a range of zeroes and starts its threads. Pages take memory only when they are touched; the working
    /// memory of the threads is allocated now.
    pub fn new(config: RegionConfig) -> Result<Self, RegionError> {
        check(&config)?;
        let (service, fold_threads, handler_threads) =
            (config.service, config.fold_threads, config.handler_threads);
        let pager = Arc::new(Pager::new(config)?);
        let mut region = Region {
            evictors: Vec::new(),
            handlers: None,
            registered: None,
            writeback_thread: None,
            pager: Some(pager.clone()),
        };
        if pager.store.writeback().is_some() {
            region.writeback_thread =
                Some(WritebackThread::start(pager.store.clone()).map_err(RegionError::Thread)?);
        }
        match service {
            Service::HandlerThreads => {
                let handlers = Handlers::start(&pager, handler_threads).map_err(RegionError::Thread)?;
                region.handlers = Some(handlers);
            }
            Service::FaultingThread => {
                let registered = register(pager.clone()).map_err(|e| match e {
                    RegisterError::Full => RegionError::TooMany(REGIONS_MAX),
                    RegisterError::Handler(e) => RegionError::System(e),
                })?;
                region.registered = Some(registered);
            }
        }
        let hand = Arc::new(ClockHand::new());
        for _ in 0..fold_threads.max(1) {
            let evictor = Evictor::new(pager.clone(), hand.clone())?;
            let thread = std::thread::Builder::new().name("pagefold-fold".into());
            let thread = signal::spawn_masked(thread, || evictor.run());
            region.evictors.push(thread.map_err(RegionError::Thread)?);
        }
        Ok(region)
    }

    #[allow(clippy::expect_used, reason = "taken only by drop, after which nobody has the region")]
    fn pager(&self) -> &Pager {
        self.pager.as_deref().expect("a region has its pager until it is dropped")
    }

    /// Returns the address of the first byte, which is aligned to a page.
    pub fn as_ptr(&self) -> *mut u8 {
        self.pager().range.base().as_ptr()
    }

    /// Returns the bytes of the range, a multiple of the page size.
    pub fn len_bytes(&self) -> usize {
        self.pager().range.len_bytes() / PAGE_SIZE * PAGE_SIZE
    }

    /// Returns the range's bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: mapped for as long as `self`, begins as zeroes, and is changed through `self` exclusively or through
        // the raw address, whose users are responsible for it. Eviction and faults keep the contents of pages.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len_bytes()) }
    }

    /// Returns the range's bytes, to be changed.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: mapped for as long as `self`, which is borrowed exclusively, so that no other reference lives; users
        // of the raw address are responsible for their own accesses. Eviction and faults keep the contents of pages.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len_bytes()) }
    }

    /// Makes a part of the range resident and keeps it so until the pin is dropped, so that it can be a buffer of a
    /// system call. A pin may cover at most half of the limit. The caller takes care that all pins together leave room
    /// to work.
    pub fn pin(&self, offset: usize, len_bytes: usize) -> Result<Pin<'_>, RangeError> {
        // A handler of another signal that touches the range must not interrupt this thread inside the engine.
        let _masked = signal::mask_asynchronous();
        let pinned = self.pager().pin(offset, len_bytes)?;
        Ok(Pin { _pinned: pinned, start: self.as_ptr().wrapping_add(offset), len_bytes })
    }

    /// Like [`Region::pin`], with exclusive access: returns the part as bytes that can be a buffer of system calls.
    ///
    /// ```
    /// # use pagefold_memory::{Region, RegionConfig};
    /// use std::io::Read;
    ///
    /// # if pagefold_sys::uffd::kernel_features().is_err() { return Ok(()); }
    /// let mut region = Region::new(RegionConfig::new(64 << 20, 8 << 20))?;
    /// std::fs::File::open("/dev/urandom")?.read_exact(&mut region.pin_mut(40 << 20, 1 << 20)?)?;
    /// assert!(region.bytes()[40 << 20..41 << 20].iter().any(|byte| *byte != 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pin_mut(&mut self, offset: usize, len_bytes: usize) -> Result<PinMut<'_>, RangeError> {
        self.pin(offset, len_bytes).map(PinMut)
    }

    /// Makes a part of the range zero, and releases the memory of its whole pages. After an error part of it may be
    /// zero.
    pub fn discard(&mut self, offset: usize, len_bytes: usize) -> Result<(), RangeError> {
        // SAFETY: borrowed exclusively, so there is no reference into the range.
        unsafe { self.discard_shared(offset, len_bytes) }
    }

    /// Like [`Region::discard`], while other threads use the rest of the range.
    ///
    /// # Safety
    /// There is no reference into the part, and nobody relies on its bytes.
    pub unsafe fn discard_shared(&self, offset: usize, len_bytes: usize) -> Result<(), RangeError> {
        let _masked = signal::mask_asynchronous();
        // SAFETY: the caller's duty.
        unsafe { self.pager().discard(offset, len_bytes) }
    }

    /// Changes the limit. If more is resident, the excess is folded from now on, in the background.
    pub fn set_limit(&self, limit_bytes: u64) -> Result<(), RegionError> {
        check_limit(limit_bytes)?;
        let budget = &self.pager().budget;
        budget.set_limit(limit_bytes / PAGE_SIZE as u64);
        budget.wake_evictors();
        Ok(())
    }

    /// Changes the limit of the pool, and the threshold, in percent of the limit, below which a pool that was full
    /// accepts pages again. Pages above a lower limit stay in the pool.
    pub fn set_pool_limit(&self, max_bytes: u64, accept_percent: u8) -> Result<(), RegionError> {
        check_percent("accept_threshold_percent", accept_percent)?;
        self.pager().limit.set(max_bytes, accept_percent);
        self.pager().store.set_mem_limit(MemLimit::Bytes(max_bytes));
        Ok(())
    }

    /// Returns how pages leave the range: never [`Eviction::Auto`].
    pub fn eviction(&self) -> Eviction {
        self.pager().eviction
    }

    /// Returns a view of the store of folded pages: its statistics, its upkeep, and writeback. The view gives no
    /// access to contents, which are the region's memory.
    pub fn store(&self) -> StoreView<'_> {
        StoreView::new(&self.pager().store)
    }

    /// Returns the counters. Never waits for a page or a medium.
    pub fn stats(&self) -> RegionStats {
        // The store's locks are taken below; a thread that makes room for a fault may need them.
        let _masked = signal::mask_asynchronous();
        stats(self.pager())
    }
}

fn stats(pager: &Pager) -> RegionStats {
    let bytes = |pages: u64| pages * PAGE_SIZE as u64;
    let count = |counter| pager.counters.get(counter);
    let time = |counter| pager.counters.time(counter);
    let store = pager.store.stats();
    let (neighbours_brought, neighbours_used) = pager.readahead.counts();
    let written_back = pager.store.writeback().map_or(0, |writeback| writeback.stats().bd.bd_writes);
    RegionStats {
        memory: MemoryStats {
            resident: bytes(pager.budget.in_use()),
            resident_max: bytes(pager.resident_max()),
            limit: bytes(pager.budget.limit()),
            pool: store.mm.mem_used_total,
            metadata_max: pager.table.len_bytes_max() + store.memory.slots + store.memory.links,
        },
        folded_bytes: bytes(pager.table.folded()),
        stored_bytes: store.mm.orig_data_size,
        compressed_bytes: store.mm.compr_data_size,
        faults: FaultStats {
            zero: count(Counter::FaultsZero),
            folded: count(Counter::FaultsFolded),
            staged: count(Counter::FaultsStaged),
            waited: count(Counter::FaultsWaited),
            already_resident: count(Counter::FaultsResident),
            failed: count(Counter::FaultsFailed),
            unreadable: count(Counter::ReadBackFail),
            memory_waits: count(Counter::MemoryWaits),
            time: time(Counter::FaultNs),
            wait_time: time(Counter::WaitNs),
        },
        neighbours_brought,
        neighbours_used,
        eviction: EvictionStats {
            staged: count(Counter::StagedPages),
            folded: count(Counter::FoldedPages),
            clean: count(Counter::CleanPages),
            copies_dropped: count(Counter::CopiesDropped),
            unmovable: count(Counter::Unmovable),
        },
        pool: PoolStats {
            pool_total_size: store.mm.mem_used_total,
            stored_pages: store.mm.orig_data_size / PAGE_SIZE as u64,
            same_filled_pages: store.mm.same_pages,
            stored_incompressible_pages: store.mm.huge_pages,
            pool_limit_hit: count(Counter::PoolLimitHit),
            written_back_pages: written_back,
            reject_alloc_fail: count(Counter::RejectAllocFail),
            reject_compress_fail: count(Counter::RejectCompressFail),
            reject_compress_poor: 0,
            reject_reclaim_fail: count(Counter::RejectReclaimFail),
            decompress_fail: count(Counter::DecompressFail),
        },
        times: PageTimes {
            same_filled_stored: count(Counter::SameFilledStored),
            same_filled_loaded: count(Counter::SameFilledLoaded),
            same_filled_store: time(Counter::SameFilledStoreNs),
            same_filled_load: time(Counter::SameFilledLoadNs),
            store: time(Counter::StoreNs),
            load: time(Counter::LoadNs),
        },
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let Some(pager) = self.pager.take() else { return };
        if !pager.fork_mark.is_same_process() {
            // A forked child has neither the range nor the threads: it forgets its copies of their handles.
            self.evictors.drain(..).for_each(std::mem::forget);
            std::mem::forget((
                self.handlers.take(),
                self.registered.take(),
                self.writeback_thread.take(),
                pager,
            ));
            return;
        }
        pager.budget.close();
        // A panic in a thread has been reported by the panic hook.
        self.evictors.drain(..).for_each(|thread| drop(thread.join()));
        self.handlers.take();
        self.registered.take();
        self.writeback_thread.take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_page_sizes_are_refused_by_name() {
        assert!(check_page_size(4096).is_ok());
        let error = check_page_size(16384).unwrap_err().to_string();
        assert!(error.contains("16384") && error.contains("4096"), "{error}");
    }

    #[test]
    fn bad_settings_are_refused_with_the_valid_values() {
        let error = |config| Region::new(config).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error(RegionConfig::new(0, 1 << 20)).contains("0 B"));
        assert!(error(RegionConfig::new(1 << 20, 4096)).contains("256 KiB"));
        let config = RegionConfig { accept_threshold_percent: 0, ..RegionConfig::new(1 << 20, 1 << 20) };
        assert!(error(config).contains("accept_threshold_percent"));
    }
}
