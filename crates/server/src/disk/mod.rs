//! One disk in its server: its settings, and while it has a size its store.
//!
//! Requests of exports pass `ReplaceableDevice` -> `Metered` -> `RefusalTracker` -> `StoreDevice` -> `Store`. Requests of
//! commands use the store directly. [`Passes`] runs the passes on request, and starts automatic writeback and
//! recompression.
//!
//! The life of a disk: it is made without a size ([`Setup`]), gets one, and with it a store ([`RunningDisk`]), and loses both
//! when it is reset. [`DiskLock`] is held during these changes. The server of the disk makes them, because the export
//! takes part in them. They may take seconds, and reading the settings or the store does not wait for them.

pub mod block_state;
mod codec;
mod kept;
mod medium;
mod passes;
mod recent;
pub mod recompress_report;
mod refusal_tracker;
mod restore;
mod restoring;
mod route;
mod running;
mod save;
mod saved_source;
mod sectors;
mod selection;
mod setup;
mod store;
pub mod writeback_report;

pub use codec::{
    check as check_codec, default_level, help as codec_help, list as codec_list, plain as plain_codec,
};
pub use kept::{DiskRecord, KeptDisk};
pub use medium::{Medium, Reopen, medium, open_named};
pub use passes::Passes;
pub use restore::Restore;
pub use running::{RunningDisk, RunningOptions, SIZE_MAX_BYTES, too_large};
pub use save::figures as saved_figures;
pub use selection::{AGE_MAX_S, of as selection_of, recompress_request};
pub use setup::{PRIORITY_COUNT, Setup};
pub use store::{
    OWN_BYTES, RESERVE_BYTES, TABLE_BYTES_PER_GIB, check_codecs, check_limit, check_memory, limit,
    memory_limit,
};

use pagefold_block::{BlockDevice, ReplaceableDevice};
use pagefold_control::config::DiskConfig;
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::instance::InstanceName;
use pagefold_page::PAGE_SIZE;
use pagefold_store::{MemLimit, Store};
use pagefold_sys::sharedmem::SharedMemory;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long commands may use a store after a reset.
const FORMER_STORE_TIMEOUT: Duration = Duration::from_secs(5);

/// A disk.
pub struct Disk {
    name: InstanceName,
    created_unix_s: u64,
    options: RunningOptions,
    device: Arc<ReplaceableDevice>,
    /// The memory of its stores, one after the other; `None` if the disk does not outlive its server.
    memory: Option<SharedMemory>,
    /// Held by a [`DiskLock`].
    changing: Mutex<()>,
    /// Locked only to copy or exchange the references in it.
    present: RwLock<DiskState>,
}

/// The settings and the store that a disk has at present.
struct DiskState {
    setup: Arc<Setup>,
    live: Option<Arc<RunningDisk>>,
}

/// The lock of a disk: its holder is the only one that changes the settings and the store.
pub struct DiskLock<'a> {
    disk: &'a Disk,
    _changing: MutexGuard<'a, ()>,
}

impl Disk {
    /// Creates an empty disk, with a size if the configuration has one. Former contents of the medium are lost. `memory`, an
    /// empty file, is that of the contents, if they outlive the process.
    pub fn new(
        name: InstanceName,
        config: &DiskConfig,
        medium: Option<Medium>,
        memory: Option<SharedMemory>,
    ) -> Result<Self> {
        let disk = Disk::without_size(name, now_unix_s(), config, Setup::new(config, medium), memory);
        if config.size_bytes > 0 {
            disk.lock().set_running(Some(Arc::new(disk.new_running(config.size_bytes)?)));
        }
        Ok(disk)
    }

    /// The disk that a former server of this configuration had. `kept` is its state, whose store, if there is one, is
    /// recovered.
    pub fn recovered(name: InstanceName, config: &DiskConfig, kept: KeptDisk) -> Result<Self> {
        let KeptDisk { created_unix_s, size_bytes, setup, memory, applied, restore } = kept;
        let disk = Disk::without_size(name, created_unix_s, config, setup, Some(memory.try_clone()?));
        match size_bytes {
            // The former server may have died in the middle of a reset.
            0 => {
                drop(memory);
                disk.empty_memory()?;
            }
            size_bytes => {
                let running =
                    RunningDisk::recovered(&disk.setup(), size_bytes, disk.options, memory, restore)?;
                applied.apply(&running);
                disk.lock().set_running(Some(Arc::new(running)));
            }
        }
        Ok(disk)
    }

    /// The same disk, created at this time, seconds since 1970.
    pub fn created_at(self, created_unix_s: u64) -> Self {
        Disk { created_unix_s, ..self }
    }

    fn without_size(
        name: InstanceName,
        created_unix_s: u64,
        config: &DiskConfig,
        setup: Setup,
        memory: Option<SharedMemory>,
    ) -> Self {
        Disk {
            name,
            created_unix_s,
            options: RunningOptions {
                uncompressed: config.uncompressed,
                has_reserve: config.export.facts().is_for_swap,
            },
            device: Arc::default(),
            memory,
            changing: Mutex::new(()),
            present: RwLock::new(DiskState { setup: Arc::new(setup), live: None }),
        }
    }

    /// The parts of a disk of this size, with an empty store.
    pub fn new_running(&self, size_bytes: u64) -> Result<RunningDisk> {
        self.empty_memory()?;
        let memory = self.memory.as_ref().map(SharedMemory::try_clone).transpose()?;
        RunningDisk::new(&self.setup(), size_bytes, self.options, memory)
    }

    /// Whether it serves plain memory, and its store stays empty.
    pub fn is_uncompressed(&self) -> bool {
        self.options.uncompressed
    }

    /// The memory of its stores; `None` if the disk does not outlive its server.
    pub fn memory(&self) -> Option<&SharedMemory> {
        self.memory.as_ref()
    }

    /// Returns the memory of the former store to the system. Fails as busy if a command uses that store, and does not end
    /// soon.
    pub fn empty_memory(&self) -> Result<()> {
        let Some(memory) = &self.memory else { return Ok(()) };
        let deadline = Instant::now() + FORMER_STORE_TIMEOUT;
        while !memory.is_only_value() {
            if Instant::now() >= deadline {
                let what =
                    "the former contents of the disk are still in use by another command (EBUSY); try again";
                return Err(CliError::new(Exit::Busy, what).with_errno(libc::EBUSY));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(memory.set_len(0)?)
    }

    /// Its name.
    pub fn name(&self) -> &InstanceName {
        &self.name
    }

    /// Its size in bytes, 0 if it has none yet.
    pub fn size_bytes(&self) -> u64 {
        self.device.len_bytes()
    }

    /// When it was created, seconds since 1970.
    pub fn created_unix_s(&self) -> u64 {
        self.created_unix_s
    }

    /// The device that the export serves, as long as the disk exists. Without a size its length is 0.
    pub fn device(&self) -> Arc<dyn BlockDevice> {
        self.device.clone()
    }

    /// The parts that it has while it has a size.
    pub fn running(&self) -> Option<Arc<RunningDisk>> {
        self.present.read().unwrap_or_else(PoisonError::into_inner).live.clone()
    }

    /// Its settings.
    pub fn setup(&self) -> Arc<Setup> {
        self.present.read().unwrap_or_else(PoisonError::into_inner).setup.clone()
    }

    /// Those parts, or zram's error for a disk without a size.
    pub fn running_or_error(&self) -> Result<Arc<RunningDisk>> {
        self.running().ok_or_else(has_no_size)
    }

    /// Its store, or zram's error for a disk without a size.
    pub fn store(&self) -> Result<Arc<Store>> {
        Ok(self.running_or_error()?.store.clone())
    }

    /// Waits until no other thread changes the settings or the store.
    pub fn lock(&self) -> DiskLock<'_> {
        let changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        DiskLock { disk: self, _changing: changing }
    }

    /// Takes `bytes` of the memory for stored pages for buffers of the export. Without a limit there is nothing to take
    /// from. The limit of stored pages can be changed later, and is then independent of the buffers.
    pub fn take_for_export(&self, bytes: u64) -> Result<()> {
        self.lock().change_setup(|setup| {
            let MemLimit::Bytes(left) = store::without(memory_limit(setup), bytes) else { return Ok(()) };
            setup.mem_limit_bytes = Some(left);
            if let Some(live) = self.running() {
                live.store.set_mem_limit(limit(left));
            }
            Ok(())
        })
    }

    /// Changes settings that are fixed while the disk has a size. Then this fails as zram does.
    pub fn change_setup(&self, change: impl FnOnce(&mut Setup) -> Result<()>) -> Result<()> {
        let lock = self.lock();
        match self.running() {
            None => lock.change_setup(change),
            Some(_) => Err(has_size()),
        }
    }
}

impl DiskLock<'_> {
    /// Changes the settings. They stay as they are if `change` fails, and are read unchanged while it runs.
    pub fn change_setup(&self, change: impl FnOnce(&mut Setup) -> Result<()>) -> Result<()> {
        let mut setup = Setup::clone(&self.disk.setup());
        change(&mut setup)?;
        self.exchange(|present| DiskState { setup: Arc::new(setup), live: present.live.clone() });
        Ok(())
    }

    /// Sets the parts that the disk has while it has a size. Waits for requests of exports to the old ones.
    pub fn set_running(&self, live: Option<Arc<RunningDisk>>) {
        self.disk.device.replace(live.as_ref().map(|live| live.device()));
        self.exchange(|present| DiskState { setup: present.setup.clone(), live });
    }

    /// Makes the disk one without size and with the default settings. Waits for requests of exports.
    pub fn clear(&self) {
        self.disk.device.replace(None);
        self.exchange(|_| DiskState { setup: Arc::default(), live: None });
    }

    fn exchange(&self, new: impl FnOnce(&DiskState) -> DiskState) {
        let mut present = self.disk.present.write().unwrap_or_else(PoisonError::into_inner);
        let new = new(&present);
        let old = std::mem::replace(&mut *present, new);
        drop(present);
        // This may free a store, which takes a while.
        drop(old);
    }
}

/// The present time, seconds since 1970.
pub fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// The warning for a device with sectors of 4096 bytes whose contents were made for 512.
pub fn sector_warning(live: &RunningDisk) -> Option<String> {
    let (store, mut first) = (&live.store, [0; PAGE_SIZE]);
    // A report does not wait for the backing.
    if store.len_bytes() < PAGE_SIZE as u64 || store.waits_for_medium(0, PAGE_SIZE as u64) {
        return None;
    }
    store.read(0, &mut first).ok()?;
    let contents = sectors::made_for_512(&first, store.len_bytes())?;
    Some(format!(
        "the contents look like {contents} made for sectors of 512 bytes, and this device has 4096: programs may not find \
         it; create the disk with --sector-size 512"
    ))
}

/// zram's error for what needs a disk with a size.
pub fn has_no_size() -> CliError {
    CliError::new(Exit::Failed, "the disk has no size yet; set its attribute disksize first (EINVAL)")
        .with_errno(libc::EINVAL)
}

/// zram's error for a change that needs a disk without a size.
pub fn has_size() -> CliError {
    let message = "the disk has a size already, and this is fixed then; set reset=1 first, which discards all pages \
                   (EBUSY)";
    CliError::new(Exit::Busy, message).with_errno(libc::EBUSY)
}
