//! One disk in its server: the store, behind a tracker of refused writes and a meter.
//!
//! Requests of exports pass `Metered` -> `RefusalTracker` -> `StoreDevice` -> `Store`. Requests of commands use the
//! store directly. [`Passes`] runs the passes on request, and starts automatic writeback and recompression.

pub mod block_state;
mod codec;
mod medium;
mod passes;
pub mod recompress_report;
mod refusal_tracker;
mod selection;
mod store;
pub mod writeback_report;

pub use codec::{check as check_codec, default_level, help as codec_help, list as codec_list};
pub use medium::{Medium, medium};
pub use passes::Passes;
pub use selection::{AGE_MAX_S, of as selection_of, recompress_request};
pub use store::{OWN_BYTES, RESERVE_BYTES, TABLE_BYTES_PER_GIB, check_limit, limit};

use pagefold_block::{BlockDevice, Metered, RamDevice};
use pagefold_control::config::{DiskConfig, RecompressAfter};
use pagefold_control::error::{CliError, Result};
use pagefold_control::instance::InstanceName;
use pagefold_control::report::disk::WriteState;
use pagefold_store::Store;
use refusal_tracker::RefusalTracker;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// A disk.
pub struct Disk {
    name: InstanceName,
    created_unix_s: u64,
    dictionary_bytes: u64,
    medium: Option<Medium>,
    store: Arc<Store>,
    recompress_after: Vec<RecompressAfter>,
    refusals: Arc<RefusalTracker>,
    device: Arc<Metered<Arc<dyn BlockDevice>>>,
}

impl Disk {
    /// Creates an empty disk. Former contents of the medium are lost.
    pub fn new(name: InstanceName, config: &DiskConfig, medium: Option<Medium>) -> Result<Self> {
        let dictionary_bytes = config.codec.dictionary.as_ref().map_or(0, |d| d.len() as u64);
        let created_unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let store = store::store(config, medium.as_ref())?;
        let refusals = Arc::new(RefusalTracker::new(store.clone()));
        let served: Arc<dyn BlockDevice> = match config.uncompressed {
            true => Arc::new(RamDevice::new(config.size_bytes)),
            false => refusals.clone(),
        };
        let device = Arc::new(Metered::new(served));
        let recompress_after = config.recompress_after.clone();
        Ok(Disk { name, created_unix_s, dictionary_bytes, medium, store, recompress_after, refusals, device })
    }

    /// Its name.
    pub fn name(&self) -> &InstanceName {
        &self.name
    }

    /// Its size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.device.len_bytes()
    }

    /// When it was created, seconds since 1970.
    pub fn created_unix_s(&self) -> u64 {
        self.created_unix_s
    }

    /// Length of the codec's dictionary, 0 for none.
    pub fn dictionary_bytes(&self) -> u64 {
        self.dictionary_bytes
    }

    /// The device that the export serves.
    pub fn device(&self) -> Arc<dyn BlockDevice> {
        self.device.clone()
    }

    /// The meter of requests.
    pub fn meter(&self) -> &Metered<Arc<dyn BlockDevice>> {
        &self.device
    }

    /// The store.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Whether it accepts writes, and if not the reason.
    pub fn write_state(&self) -> WriteState {
        self.refusals.state()
    }

    /// When it last refused a write, seconds since 1970.
    pub fn last_refused_write_unix_s(&self) -> Option<u64> {
        self.refusals.last_unix_s()
    }

    /// The medium that it writes pages back to; `None` without a backing.
    pub fn backing(&self) -> Option<&Medium> {
        self.medium.as_ref()
    }

    /// The rules of automatic recompression.
    pub fn recompress_after(&self) -> &[RecompressAfter] {
        &self.recompress_after
    }

    /// The age from which on pages are compressed with the codec of `priority` automatically, seconds.
    pub fn recompressed_after_s(&self, priority: u8) -> Option<u64> {
        self.recompress_after.iter().find(|rule| rule.priority == priority).map(|rule| rule.age_s)
    }

    /// Discards all pages, in memory and on the backing.
    pub fn discard_all_pages(&self) -> Result<()> {
        let all = self.store.discard(0, self.store.len_bytes());
        all.map_err(|e| CliError::failed(format!("discarding all pages: {e}")))
    }
}
