//! A region: its threads, its limits, and the calls of its owner.

use crate::advice::Advice;
use crate::budget::RegionShare;
use crate::budget::check_limit;
use crate::config::{Eviction, RegionConfig, Service, check, check_len, check_percent};
use crate::error::{RangeError, RegionError};
use crate::evict::{ClockHand, Evictor};
use crate::fault::handlers::Handlers;
use crate::fault::registry::{REGIONS_MAX, RegisterError, Registered, register};
use crate::owned_pin::OwnedPin;
use crate::pager::Pager;
use crate::parts::{Parts, PinnedSlice, PinnedSliceMut, resolve};
use crate::source::Source;
use crate::stats::{self, Pressure, RegionStats};
use crate::store_view::StoreView;
use pagefold_page::{PAGE_SIZE, PageCount};
use pagefold_store::{MemLimit, WritebackThread};
use pagefold_sys::{sigbus, signal};
use std::fs::File;
use std::io;
use std::ops::RangeBounds;
use std::sync::Arc;
use std::thread::JoinHandle;

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
    /// The region's place in a shared budget.
    share: Option<Arc<RegionShare>>,
    /// Bytes of the range that the owner has, in whole pages; the rest of the reserved range is not in use.
    len_bytes: usize,
}

impl Region {
    /// Makes a range of zeroes and starts its threads. Pages take memory only when they are touched; the working
    /// memory of the threads is allocated now.
    pub fn new(config: RegionConfig) -> Result<Self, RegionError> {
        Self::with_source(config, None)
    }

    /// Makes a range that begins with the bytes of a file, and reads each page when it is touched first. Changes stay
    /// in the region: the file is only read. `len_bytes` of the settings may be less than the file has; bytes behind
    /// the end of the file are zero.
    ///
    /// A page that leaves the range is compressed, as in other regions. If the pool is full and the page still equals
    /// the file's bytes, it is dropped, and read from the file again. So the pool can be much smaller than the file.
    ///
    /// The file must not change while the region exists. If its size or the time of its last modification differs from
    /// what it was at this call, a page that has to be read fails: pinning it is an error, and an access ends the
    /// program with SIGBUS. The kernel's time stamps have a granularity of some milliseconds: a change directly after
    /// this call may be missed.
    ///
    /// ```
    /// # use pagefold_memory::{Region, RegionConfig};
    /// use std::fs::File;
    ///
    /// # if pagefold_sys::uffd::kernel_features().is_err() { return Ok(()); }
    /// let region = Region::from_file(File::open("/bin/sh")?, RegionConfig::new(0, 1 << 20))?;
    /// assert_eq!(&region.bytes()[1..4], b"ELF");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_file(file: File, config: RegionConfig) -> Result<Self, RegionError> {
        let source = Source::new(file)?;
        let len_bytes = config.len_bytes.max(source.len_bytes());
        Self::with_source(RegionConfig { len_bytes, ..config }, Some(source))
    }

    fn with_source(mut config: RegionConfig, source: Option<Source>) -> Result<Self, RegionError> {
        check(&config)?;
        if config.service == Service::FaultingThread {
            sigbus::thread::check()?;
        }
        config.bound_limit();
        let len_bytes = PageCount::covering(config.len_bytes).0 as usize * PAGE_SIZE;
        let (service, fold_threads, handler_threads) =
            (config.service, config.fold_threads, config.handler_threads);
        let (budget, limit_bytes) = (config.budget.clone(), config.limit_bytes);
        let pager = Arc::new(Pager::new(config, source)?);
        let mut region = Region {
            evictors: Vec::new(),
            handlers: None,
            registered: None,
            writeback_thread: None,
            pager: Some(pager.clone()),
            share: None,
            len_bytes,
        };
        if let Some(budget) = budget {
            region.share = Some(pager.join(&budget, limit_bytes)?);
        }
        if pager.store.writeback().is_some() {
            region.writeback_thread =
                Some(WritebackThread::start(pager.store.clone()).map_err(RegionError::Thread)?);
        }
        match service {
            Service::HandlerThreads => {
                region.handlers = Some(Handlers::start(&pager, handler_threads)?);
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
        self.len_bytes
    }

    /// Returns the bytes to which [`Region::resize`] can change the range at most.
    pub fn max_len_bytes(&self) -> usize {
        self.pager().range.len_bytes()
    }

    /// Changes the size of the range to `len_bytes`, rounded up to whole pages, and at most
    /// [`Region::max_len_bytes`]. The range stays at its address. New bytes are zero; bytes that are cut off are
    /// lost, and their memory is released.
    ///
    /// ```
    /// # use pagefold_memory::{Region, RegionConfig};
    /// # if pagefold_sys::uffd::kernel_features().is_err() { return Ok(()); }
    /// let config = RegionConfig { max_len_bytes: Some(1 << 30), ..RegionConfig::new(1 << 20, 8 << 20) };
    /// let mut region = Region::new(config)?;
    /// region.bytes_mut().fill(1);
    /// region.resize(64 << 20)?;
    /// assert_eq!((region.bytes()[0], region.bytes()[(64 << 20) - 1]), (1, 0));
    /// # Ok::<(), pagefold_memory::RegionError>(())
    /// ```
    pub fn resize(&mut self, len_bytes: u64) -> Result<(), RegionError> {
        check_len(len_bytes)?;
        let max_len_bytes = self.max_len_bytes() as u64;
        if len_bytes > max_len_bytes {
            return Err(RegionError::BeyondMax { len_bytes, max_len_bytes });
        }
        let (old, new) = (self.len_bytes, PageCount::covering(len_bytes).0 as usize * PAGE_SIZE);
        if new < old {
            self.discard(new..)?;
        }
        self.len_bytes = new;
        Ok(())
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

    /// Returns all bytes of the range as one slice, to be divided among threads, and the calls for parts of that slice.
    ///
    /// Threads divide the slice as any other, so that no two of them have the same bytes, and pin, load, store and
    /// discard their parts at the same time. This fills two halves of a region by system calls:
    ///
    /// ```
    /// # use pagefold_memory::{Region, RegionConfig};
    /// use std::fs::File;
    /// use std::io::Read;
    ///
    /// # if pagefold_sys::uffd::kernel_features().is_err() { return Ok(()); }
    /// let mut region = Region::new(RegionConfig::new(16 << 20, 4 << 20))?;
    /// let (bytes, parts) = region.parts();
    /// std::thread::scope(|scope| {
    ///     for half in bytes.chunks_mut(8 << 20) {
    ///         scope.spawn(move || parts.read_from(File::open("/dev/urandom")?.take(1 << 20), half));
    ///     }
    /// });
    /// assert!(region.bytes()[8 << 20..9 << 20].iter().any(|byte| *byte != 0));
    /// # Ok::<(), pagefold_memory::RegionError>(())
    /// ```
    pub fn parts(&mut self) -> (&mut [u8], Parts<'_>) {
        // SAFETY: as for `bytes_mut`. `Parts` uses bytes only through slices that its caller passes.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len_bytes()) };
        (bytes, Parts::new(self.pager()))
    }

    /// Makes a part of the range resident and keeps it so until the pin is dropped. The pin is the part's bytes, which
    /// system calls can read. Any number of pins may exist at once, in any threads, and may overlap.
    ///
    /// A pin may cover at most half of the limit. The caller takes care that all pins together leave room to work.
    pub fn pin(&self, range: impl RangeBounds<usize>) -> Result<PinnedSlice<'_>, RangeError> {
        let range = resolve(range, self.len_bytes())?;
        let start = self.as_ptr().wrapping_add(range.start);
        // SAFETY: the part lies in the range, which is mapped for as long as `self`. As for `bytes`, it is changed
        // only through the raw address, whose users are responsible for it.
        unsafe { PinnedSlice::new(self.pager(), range, start) }
    }

    /// Like [`Region::pin`], with exclusive access: system calls can read and write the part. [`Region::parts`] is for
    /// several such pins at once.
    ///
    /// ```
    /// # use pagefold_memory::{Region, RegionConfig};
    /// use std::io::Read;
    ///
    /// # if pagefold_sys::uffd::kernel_features().is_err() { return Ok(()); }
    /// let mut region = Region::new(RegionConfig::new(64 << 20, 8 << 20))?;
    /// std::fs::File::open("/dev/urandom")?.read_exact(&mut region.pin_mut(40 << 20..41 << 20)?)?;
    /// assert!(region.bytes()[40 << 20..41 << 20].iter().any(|byte| *byte != 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pin_mut(&mut self, range: impl RangeBounds<usize>) -> Result<PinnedSliceMut<'_>, RangeError> {
        let range = resolve(range, self.len_bytes())?;
        let (bytes, parts) = self.parts();
        parts.pin_mut(&mut bytes[range])
    }

    /// Like [`Region::pin`] without a borrow: the pin lends no bytes, and keeps their pages resident as long as it lives.
    /// The part cannot be discarded meanwhile. It is for callers that use the region by its address, as C does.
    pub fn pin_owned(&self, range: impl RangeBounds<usize>) -> Result<OwnedPin, RangeError> {
        let range = resolve(range, self.len_bytes())?;
        match &self.pager {
            Some(pager) => OwnedPin::new(pager.clone(), range),
            None => unreachable!("a region has its pager until it is dropped"),
        }
    }

    /// Reads from `reader`, a file or a socket, into a part of the range, until the part is full or the reader ends.
    /// Returns the number of bytes read. The bytes behind these keep their contents.
    ///
    /// The part may be larger than the limit. After an error, some of it may have been read.
    ///
    /// ```
    /// # use pagefold_memory::{Region, RegionConfig};
    /// use std::fs::File;
    ///
    /// # if pagefold_sys::uffd::kernel_features().is_err() { return Ok(()); }
    /// let mut region = Region::new(RegionConfig::new(64 << 20, 1 << 20))?;
    /// let len_bytes = region.read_from(File::open("/proc/self/exe")?, ..)?;
    /// assert_eq!(&region.bytes()[1..4], b"ELF");
    /// region.write_to(File::create("/dev/null")?, ..len_bytes)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read_from(&mut self, reader: impl io::Read, range: impl RangeBounds<usize>) -> io::Result<usize> {
        let range = resolve(range, self.len_bytes())?;
        let (bytes, parts) = self.parts();
        parts.read_from(reader, &mut bytes[range])
    }

    /// Writes a part of the range to `writer`, a file or a socket. The part may be larger than the limit. After an
    /// error, some of it may have been written.
    pub fn write_to(&self, writer: impl io::Write, range: impl RangeBounds<usize>) -> io::Result<()> {
        let range = resolve(range, self.len_bytes())?;
        Parts::new(self.pager()).write_to(writer, &self.bytes()[range])
    }

    /// Copies the bytes from `offset` on to a buffer. Pages stay where they are: those that are not resident are
    /// decompressed straight into the buffer, without a fault, and take no memory of the limit. That is the fastest way to
    /// go once over much more data than the limit, in parts of some 100 KiB.
    ///
    /// A page whose contents are lost is an error, unless another thread accesses it at that moment: then it is an ordinary
    /// access.
    ///
    /// ```
    /// # use pagefold_memory::{Region, RegionConfig};
    /// # if pagefold_sys::uffd::kernel_features().is_err() { return Ok(()); }
    /// let mut region = Region::new(RegionConfig::new(64 << 20, 8 << 20))?;
    /// let mut part = vec![7; 256 << 10];
    /// for offset in (0..64 << 20).step_by(part.len()) {
    ///     region.write_part(offset, &part)?;
    /// }
    /// region.read_part(50 << 20, &mut part)?;
    /// assert!(part.iter().all(|byte| *byte == 7));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read_part(&self, offset: usize, to: &mut [u8]) -> Result<(), RangeError> {
        self.check_bytes(offset, to.len())?;
        // A handler of another signal that touches the range must not interrupt this thread inside the engine.
        let _masked = signal::mask_asynchronous();
        self.pager().read_part(offset, to)
    }

    /// Reads items of `len_bytes` bytes at many offsets, and calls `each` with the index in `offsets` and the bytes of each,
    /// in order. Pages stay where they are, as with [`Region::read_part`]. A page is decompressed once for items that
    /// follow each other in it, so sorted offsets take the least time. Asynchronous signals of this thread wait
    /// until the call ends.
    ///
    /// After an error, which is that of `read_part`, `each` has been called for the items before.
    pub fn read_items(
        &self,
        offsets: &[usize],
        len_bytes: usize,
        mut each: impl FnMut(usize, &[u8]),
    ) -> Result<(), RangeError> {
        let _masked = signal::mask_asynchronous();
        self.pager().read_items(offsets, len_bytes, &mut each)
    }

    /// Copies a buffer to the bytes from `offset` on. Whole pages that are not resident are compressed straight from the
    /// buffer, without a fault, if they were compressed before or less than an eighth of the limit is left. After an error,
    /// some of the bytes may have been changed.
    pub fn write_part(&mut self, offset: usize, from: &[u8]) -> Result<(), RangeError> {
        // SAFETY: borrowed exclusively, so there is no reference into the range.
        unsafe { self.write_part_shared(offset, from) }
    }

    /// Like [`Region::write_part`], while other threads use the rest of the range by its raw address. [`Parts::write_part`] is
    /// the safe way for threads that have slices.
    ///
    /// # Safety
    /// There is no reference into the part, and nobody relies on its bytes.
    pub unsafe fn write_part_shared(&self, offset: usize, from: &[u8]) -> Result<(), RangeError> {
        self.check_bytes(offset, from.len())?;
        let _masked = signal::mask_asynchronous();
        // SAFETY: the caller's duty.
        unsafe { self.pager().write_part(offset, from) }
    }

    fn check_bytes(&self, offset: usize, len_bytes: usize) -> Result<(), RangeError> {
        resolve(offset..offset.saturating_add(len_bytes), self.len_bytes()).map(drop)
    }

    /// Says how the program is going to use a part of the range. No advice changes contents.
    ///
    /// ```
    /// # use pagefold_memory::{Region, RegionConfig};
    /// use pagefold_memory::Advice;
    ///
    /// # if pagefold_sys::uffd::kernel_features().is_err() { return Ok(()); }
    /// let region = Region::new(RegionConfig::new(64 << 20, 8 << 20))?;
    /// let (index, log) = (..16 << 20, 16 << 20..);
    /// region.advise(index, Advice::Random)?;
    /// region.advise(log, Advice::Sequential)?;
    /// region.advise(20 << 20..21 << 20, Advice::WillNeed)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn advise(&self, range: impl RangeBounds<usize>, advice: Advice) -> Result<(), RangeError> {
        let range = resolve(range, self.len_bytes())?;
        self.pager().advise(range.start, range.len(), advice)
    }

    /// Makes a part of the range zero, and releases the memory of its whole pages. After an error some of it may be
    /// zero.
    pub fn discard(&mut self, range: impl RangeBounds<usize>) -> Result<(), RangeError> {
        // SAFETY: borrowed exclusively, so there is no reference into the range.
        unsafe { self.discard_shared(range) }
    }

    /// Like [`Region::discard`], while other threads use the rest of the range by its raw address.
    /// [`Parts::discard`] is the safe way for threads that have slices.
    ///
    /// # Safety
    /// There is no reference into the part, and nobody relies on its bytes.
    pub unsafe fn discard_shared(&self, range: impl RangeBounds<usize>) -> Result<(), RangeError> {
        let range = resolve(range, self.len_bytes())?;
        let _masked = signal::mask_asynchronous();
        // SAFETY: the caller's duty.
        unsafe { self.pager().discard(range.start, range.len()) }
    }

    /// Returns the limit on resident memory at this moment, bytes. It costs a few instructions.
    pub fn limit_bytes(&self) -> u64 {
        self.pager().budget.limit() * PAGE_SIZE as u64
    }

    /// Returns whether less than an eighth of the limit is left. Then a part that is not needed for the moment should be
    /// discarded, unless it will be used again very soon: it would be compressed for nothing. It costs a few instructions.
    pub fn is_tight(&self) -> bool {
        self.pager().budget.is_tight()
    }

    /// Changes the limit. If more is resident, the excess is folded from now on, in the background. In a shared budget,
    /// this is the most of it that the region may have.
    pub fn set_limit(&self, limit_bytes: u64) -> Result<(), RegionError> {
        check_limit(limit_bytes)?;
        if let Some(share) = &self.share {
            share.set_max_bytes(limit_bytes);
            return Ok(());
        }
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

    /// Returns whether memory that system calls use must be pinned: the thread that touches a page serves its fault
    /// ([`Service::FaultingThread`], or no `kernel_faults`), or the kernel cannot move pages (before Linux 6.8, or
    /// [`Eviction::Protect`]). [`Region::read_from`] and the other calls of a region take pins by themselves.
    pub fn needs_pins(&self) -> bool {
        self.pager().needs_pins()
    }

    /// Returns a view of the store of folded pages: its statistics, its upkeep, and writeback. The view gives no
    /// access to contents, which are the region's memory.
    pub fn store(&self) -> StoreView<'_> {
        StoreView::new(&self.pager().store)
    }

    /// Returns the counters. Never waits for a page or a medium.
    pub fn stats(&self) -> RegionStats {
        stats::collect(self.pager())
    }

    /// Returns whether the region is under pressure, which takes less than all counters.
    pub fn pressure(&self) -> Pressure {
        stats::pressure(self.pager())
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
                self.share.take(),
                pager,
            ));
            return;
        }
        if let Some(share) = self.share.take() {
            share.leave();
        }
        pager.budget.close();
        // A panic in a thread has been reported by the panic hook.
        self.evictors.drain(..).for_each(|thread| drop(thread.join()));
        self.handlers.take();
        self.registered.take();
        self.writeback_thread.take();
    }
}
