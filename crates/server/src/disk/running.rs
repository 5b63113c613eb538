//! A disk with a size: its store, behind a tracker of refused writes and a meter.

use super::refusal_tracker::RefusalTracker;
use super::restoring::Restoring;
use super::saved_source::{SavedFile, SavedSource};
use super::{Medium, Setup, store};
use pagefold_block::{BlockDevice, Metered, RamDevice};
use pagefold_control::config::RecompressAfter;
use pagefold_control::error::{CliError, Result};
use pagefold_page::size::Human;
use pagefold_store::Store;
use pagefold_sys::sharedmem::SharedMemory;
use std::sync::{Arc, Mutex, PoisonError};

/// The largest size of a disk, bytes.
pub const SIZE_MAX_BYTES: u64 = 64 << 40;

/// The properties of a disk that do not depend on its settings.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunningOptions {
    /// Serve plain memory in place of the store, which then stays empty.
    pub uncompressed: bool,
    /// Whether the device may be swapped to, so that the store needs a reserve of memory.
    pub has_reserve: bool,
}

/// The parts of a disk that it has as long as it has a size.
pub struct RunningDisk {
    /// The store.
    pub store: Arc<Store>,
    /// The medium that it writes pages back to; `None` without a backing.
    pub medium: Option<Medium>,
    /// Length of the codec's dictionary, 0 for none.
    pub dictionary_bytes: u64,
    /// The rules of automatic recompression.
    pub recompress_after: Vec<RecompressAfter>,
    /// The writes that it refuses for lack of memory.
    pub refusals: Arc<RefusalTracker>,
    /// The meter of requests.
    pub meter: Arc<Metered>,
    /// The restore with which it began.
    restoring: Mutex<Option<Arc<Restoring>>>,
}

impl RunningDisk {
    /// An empty store of `size_bytes` with the settings in `setup`. Former contents of the medium are lost. Its contents are
    /// in `memory`, an empty file, if the disk outlives its server.
    pub fn new(
        setup: &Setup,
        size_bytes: u64,
        options: RunningOptions,
        memory: Option<SharedMemory>,
    ) -> Result<Self> {
        if size_bytes > SIZE_MAX_BYTES {
            return Err(too_large());
        }
        let store = store::store(setup, size_bytes, options.has_reserve, memory)?;
        Ok(Self::over(store, setup, options))
    }

    /// The store of a server that has died. Its contents are in `memory`, on the medium and, if that server was restoring
    /// the disk, in the files `restore`.
    pub fn recovered(
        setup: &Setup,
        size_bytes: u64,
        options: RunningOptions,
        memory: SharedMemory,
        restore: Vec<SavedFile>,
    ) -> Result<Self> {
        let store = store::recovered(setup, size_bytes, options.has_reserve, memory)?;
        let running = Self::over(store, setup, options);
        // Otherwise the restore had ended, and the files are not needed.
        if running.store.is_restoring() {
            let source = Arc::new(SavedSource::again(restore, setup));
            running.begin_restore(Arc::new(Restoring::new(source)));
        }
        Ok(running)
    }

    fn over(store: Arc<Store>, setup: &Setup, options: RunningOptions) -> Self {
        let refusals = Arc::new(RefusalTracker::new(store.clone()));
        let served: Arc<dyn BlockDevice> = match options.uncompressed {
            true => Arc::new(RamDevice::new(store.len_bytes())),
            false => refusals.clone(),
        };
        RunningDisk {
            store,
            medium: setup.medium.clone(),
            dictionary_bytes: setup.primary().dictionary.map_or(0, |d| d.len() as u64),
            recompress_after: setup.recompress_after.clone(),
            refusals,
            meter: Arc::new(Metered::new(served)),
            restoring: Mutex::default(),
        }
    }

    /// Lets the store have the pages of a saved disk, before it is used.
    pub fn begin_restore(&self, restoring: Arc<Restoring>) {
        if let Some(source) = restoring.source() {
            self.store.begin_restore(source);
            *self.restoring.lock().unwrap_or_else(PoisonError::into_inner) = Some(restoring);
        }
    }

    /// The restore in progress, if there is one.
    pub fn restoring(&self) -> Option<Arc<Restoring>> {
        let restoring = self.restoring.lock().unwrap_or_else(PoisonError::into_inner).clone();
        restoring.filter(|restoring| restoring.source().is_some())
    }

    /// The device that the export serves.
    pub fn device(&self) -> Arc<dyn BlockDevice> {
        self.meter.clone()
    }

    /// The age from which on pages are compressed with the codec of `priority` automatically, seconds.
    pub fn recompressed_after_s(&self, priority: u8) -> Option<u64> {
        self.recompress_after.iter().find(|rule| rule.priority == priority).map(|rule| rule.age_s)
    }
}

/// The error for a size above [`SIZE_MAX_BYTES`].
pub fn too_large() -> CliError {
    let message = format!("the size is more than {} (ENOMEM)", Human(SIZE_MAX_BYTES));
    CliError::usage(message).with_errno(libc::ENOMEM)
}
