//! A region: its threads, its limits, and what its owner can do with it.

use crate::config::{Eviction, RegionConfig, Service};
use crate::counters::{Counter, EvictionStats, FaultStats, MemoryStats, PageTimes, PoolStats, RegionStats};
use crate::error::{RangeError, RegionError};
use crate::evict::{Evictor, Hand};
use crate::fault::handlers::Handlers;
use crate::fault::registry::{REGIONS_MAX, RegisterError, Registered, register};
use crate::pager::{Pager, Pinned};
use crate::store_view::StoreView;
use pagefold_page::PAGE_SIZE;
use pagefold_store::MemLimit;
use pagefold_store::parking::Parker;
use pagefold_sys::signal;
use std::sync::Arc;
use std::thread::JoinHandle;

/// The largest range, bytes.
const LEN_MAX_BYTES: u64 = 16 << 40;

/// A range of memory that is resident up to a limit, the rest of it folded.
///
/// It is memory like any other: threads and signal handlers read and write it by address, and pages come and go behind
/// their backs. What to know of system calls: [`Service`]. `madvise`, `mremap`, `mprotect` and `mlock` are not for it; a
/// forked child does not have it.
pub struct Region {
    // In this order: threads end before what they use goes.
    evictors: Vec<JoinHandle<()>>,
    handlers: Option<Handlers>,
    registered: Option<Registered>,
    parker: Option<Parker>,
    pager: Option<Arc<Pager>>,
}

/// A part of a region that stays resident, and may be given to system calls, until this is dropped.
pub struct Pin<'a> {
    _pinned: Pinned<'a>,
    start: *mut u8,
    len_bytes: usize,
}

// SAFETY: the address is only handed out, and pages are unpinned by atomic changes of their words, in any thread.
unsafe impl Send for Pin<'_> {}
// SAFETY: a shared pin only hands out the address and the length; whoever uses the address answers for it.
unsafe impl Sync for Pin<'_> {}

impl Pin<'_> {
    /// The first byte pinned.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start
    }

    /// Bytes pinned.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }
}

/// That a machine's pages are the ones this was made for.
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
    /// A range of zeroes. Takes memory only as it is touched, but for the threads' working memory.
    pub fn new(config: RegionConfig) -> Result<Self, RegionError> {
        check(&config)?;
        let (service, fold_threads, handler_threads) =
            (config.service, config.fold_threads, config.handler_threads);
        let pager = Arc::new(Pager::new(config)?);
        let mut region = Region {
            evictors: Vec::new(),
            handlers: None,
            registered: None,
            parker: None,
            pager: Some(pager.clone()),
        };
        if pager.store.parking().is_some() {
            region.parker = Some(Parker::start(pager.store.clone()).map_err(RegionError::Thread)?);
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
        let hand = Arc::new(Hand::new());
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

    /// The first byte, at a page.
    pub fn as_ptr(&self) -> *mut u8 {
        self.pager().range.base().as_ptr()
    }

    /// Bytes of the range: whole pages.
    pub fn len_bytes(&self) -> usize {
        self.pager().range.len_bytes() / PAGE_SIZE * PAGE_SIZE
    }

    /// The range's bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: mapped for as long as `self`, begins as zeroes, and is changed through `self` exclusively or through
        // the raw address, whose users answer for it. Pages that come and go keep their contents.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len_bytes()) }
    }

    /// The range's bytes, to be changed.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: mapped for as long as `self`, which is borrowed exclusively, so that no other reference lives; users of
        // the raw address answer for what they do beside it. Pages that come and go keep their contents.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len_bytes()) }
    }

    /// Brings a part of the range in and keeps it in until the pin is dropped, so that it can be given to a system
    /// call. At most half of the limit, all pins together being the caller's care.
    pub fn pin(&self, offset: usize, len_bytes: usize) -> Result<Pin<'_>, RangeError> {
        // A handler of another signal that touches the range must not find this thread inside the engine.
        let _masked = signal::mask_all();
        let pinned = self.pager().pin(offset, len_bytes)?;
        Ok(Pin { _pinned: pinned, start: self.as_ptr().wrapping_add(offset), len_bytes })
    }

    /// Makes a part of the range zero, and gives up what whole pages of it took. After an error some of it may be.
    pub fn discard(&mut self, offset: usize, len_bytes: usize) -> Result<(), RangeError> {
        // SAFETY: borrowed exclusively, so there is no reference into the range.
        unsafe { self.discard_shared(offset, len_bytes) }
    }

    /// [`Region::discard`] beside other threads.
    ///
    /// # Safety
    /// There is no reference into the part, and nobody relies on its bytes.
    pub unsafe fn discard_shared(&self, offset: usize, len_bytes: usize) -> Result<(), RangeError> {
        let _masked = signal::mask_all();
        // SAFETY: the caller's duty.
        unsafe { self.pager().discard(offset, len_bytes) }
    }

    /// Changes the limit. What is over a smaller one is folded from now on, in the background.
    pub fn set_limit(&self, limit_bytes: u64) -> Result<(), RegionError> {
        check_limit(limit_bytes)?;
        let left = &self.pager().left;
        left.set_limit(limit_bytes / PAGE_SIZE as u64);
        left.call();
        Ok(())
    }

    /// Changes the limit of the pool, and the threshold in percent of it below which pages are accepted again once it was
    /// reached. What is over a smaller limit stays.
    pub fn set_pool_limit(&self, max_bytes: u64, accept_percent: u8) -> Result<(), RegionError> {
        check_percent("accept_threshold_percent", accept_percent)?;
        self.pager().limit.set(max_bytes, accept_percent);
        self.pager().store.set_mem_limit(MemLimit::Bytes(max_bytes));
        Ok(())
    }

    /// How pages are taken from the program: never [`Eviction::Auto`].
    pub fn eviction(&self) -> Eviction {
        self.pager().eviction
    }

    /// The store of folded pages: its statistics, its upkeep, and writing back. Not its contents, which are the region's
    /// memory.
    pub fn store(&self) -> StoreView<'_> {
        StoreView::new(&self.pager().store)
    }

    /// The counters. Waits for no page and no medium.
    pub fn stats(&self) -> RegionStats {
        // The store's locks are taken, which a thread that makes room for a fault may need.
        let _masked = signal::mask_all();
        stats(self.pager())
    }
}

fn stats(pager: &Pager) -> RegionStats {
    let bytes = |pages: u64| pages * PAGE_SIZE as u64;
    let count = |counter| pager.counters.get(counter);
    let time = |counter| pager.counters.time(counter);
    let store = pager.store.stats();
    let (neighbours_brought, neighbours_used) = pager.ahead.counts();
    let written_back = pager.store.parking().map_or(0, |parking| parking.stats().bd.bd_writes);
    RegionStats {
        memory: MemoryStats {
            resident: bytes(pager.left.in_use()),
            resident_max: bytes(pager.resident_max()),
            limit: bytes(pager.left.limit()),
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
            there: count(Counter::FaultsThere),
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
        if !pager.mark.is_same_process() {
            // A forked child has neither the range nor the threads; what it has is the parent's, or nobody's.
            self.evictors.drain(..).for_each(std::mem::forget);
            std::mem::forget((self.handlers.take(), self.registered.take(), self.parker.take(), pager));
            return;
        }
        pager.left.close();
        // A panic in a thread has been reported by the panic hook.
        self.evictors.drain(..).for_each(|thread| drop(thread.join()));
        self.handlers.take();
        self.registered.take();
        self.parker.take();
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
    fn bad_settings_are_refused_with_what_would_do() {
        let error = |config| Region::new(config).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error(RegionConfig::new(0, 1 << 20)).contains("0 B"));
        assert!(error(RegionConfig::new(1 << 20, 4096)).contains("256 KiB"));
        let config = RegionConfig { accept_threshold_percent: 0, ..RegionConfig::new(1 << 20, 1 << 20) };
        assert!(error(config).contains("accept_threshold_percent"));
    }
}
