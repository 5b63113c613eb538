//! One disk as its server holds it: the engine, and the meter in front of it.

use super::config::ServeConfig;
use super::engine;
use super::refused::{RefusedWrites, WriteState};
use crate::cli::request::DiskName;
use crate::failure::{Failure, Outcome};
use pagefold_backing::Backing;
use pagefold_block::{BlockDevice, Metered, RamDevice};
use pagefold_store::Store;
use pagefold_store::parking::LayoutKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// What a disk parks pages on.
pub struct Medium {
    /// The medium itself.
    pub backing: Arc<dyn Backing>,
    /// Where it is, for showing.
    pub path: PathBuf,
    /// Whether it is removed with the disk.
    pub created: bool,
    /// How pages lie on it.
    pub layout: LayoutKind,
    /// Most bytes a second that are written to it without being asked for, 0 for no bound.
    pub rate_bytes_per_s: u64,
    /// Most bytes that are written to it within 24 hours without being asked for, 0 for no bound.
    pub daily_bytes: u64,
}

/// A disk: what doors serve, and what commands ask and change.
pub struct Disk {
    name: DiskName,
    created_unix_s: u64,
    dictionary_bytes: u64,
    medium: Option<Medium>,
    store: Arc<Store>,
    writes: Arc<RefusedWrites>,
    device: Arc<Metered<Arc<dyn BlockDevice>>>,
}

impl Disk {
    /// A new, empty disk. What the medium held is lost.
    pub fn new(name: DiskName, config: &ServeConfig, medium: Option<Medium>) -> Outcome<Self> {
        let dictionary_bytes = config.codec.dictionary.as_ref().map_or(0, |d| d.len() as u64);
        let created_unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let store = engine::store(config, medium.as_ref())?;
        let writes = Arc::new(RefusedWrites::new(store.clone()));
        let served: Arc<dyn BlockDevice> = match config.uncompressed {
            true => Arc::new(RamDevice::new(config.size_bytes)),
            false => writes.clone(),
        };
        let device = Arc::new(Metered::new(served));
        Ok(Disk { name, created_unix_s, dictionary_bytes, medium, store, writes, device })
    }

    /// Its name.
    pub fn name(&self) -> &DiskName {
        &self.name
    }

    /// Its size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.device.len_bytes()
    }

    /// When it was made, seconds since 1970.
    pub fn created_unix_s(&self) -> u64 {
        self.created_unix_s
    }

    /// Length of the codec's dictionary, 0 for none.
    pub fn dictionary_bytes(&self) -> u64 {
        self.dictionary_bytes
    }

    /// What a door serves.
    pub fn device(&self) -> Arc<dyn BlockDevice> {
        self.device.clone()
    }

    /// The meter.
    pub fn meter(&self) -> &Metered<Arc<dyn BlockDevice>> {
        &self.device
    }

    /// The engine.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Whether it refuses writes now, and why.
    pub fn write_state(&self) -> WriteState {
        self.writes.state()
    }

    /// When it last refused a write, seconds since 1970.
    pub fn last_refused_write_unix_s(&self) -> Option<u64> {
        self.writes.last_unix_s()
    }

    /// What it parks pages on.
    pub fn backing(&self) -> Option<&Medium> {
        self.medium.as_ref()
    }

    /// Forgets every page, wherever it is.
    pub fn forget_all_pages(&self) -> Outcome<()> {
        let all = self.store.discard(0, self.store.len_bytes());
        all.map_err(|e| Failure::failed(format!("forgetting all pages: {e}")))
    }
}
