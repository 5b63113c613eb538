//! Makes the store of a disk from its settings.

use super::codec;
use super::{Medium, PRIORITY_COUNT, Setup};
use crate::log;
use pagefold_backing::Backing;
use pagefold_codec::Codec;
use pagefold_control::config::CodecConfig;
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::text::counted;
use pagefold_page::size::Human;
use pagefold_store::writeback::{AttachError, LayoutKind, WritebackConfig};
use pagefold_store::{MemLimit, Recovered, Store, StoreConfig, StoreError};
use pagefold_sys::sharedmem::SharedMemory;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Reserve of memory of a disk that may be used as swap, bytes.
pub const RESERVE_BYTES: u64 = 16 << 20;

/// Most memory that a server takes beside pages, tables and reserve, bytes: program, stacks, streams, buffers of
/// writeback and of the export but for those of rings, which are a part of the limit of pages. 40 to 65 MiB were measured with all codecs and exports; the soak checks that no server
/// takes more than this.
pub const OWN_BYTES: u64 = 96 << 20;

/// Tables for each GiB of written pages, bytes: 16 bytes of slot for each page, and 8 bytes of links for each frame in
/// use.
pub const TABLE_BYTES_PER_GIB: u64 = 6 << 20;

/// Most pages that cannot be read back and are logged one by one.
const MAX_LOGGED_FAILURES: u32 = 1000;

/// The limit of the memory for stored pages.
pub fn memory_limit(setup: &Setup) -> MemLimit {
    setup.mem_limit_bytes.map_or(MemLimit::Half, limit)
}

/// The rest of a limit after `bytes` were taken, with room for a page at least. No limit stays none.
pub fn without(limit: MemLimit, bytes: u64) -> MemLimit {
    match limit {
        MemLimit::Off => MemLimit::Off,
        limit => MemLimit::Bytes(limit.bytes().saturating_sub(bytes).max(MemLimit::LEAST_BYTES)),
    }
}

/// Makes an empty store that writes back to the medium, if there is one. Its contents are in `memory`, an empty file, if the
/// disk outlives its server.
pub fn store(
    setup: &Setup,
    size_bytes: u64,
    has_reserve: bool,
    memory: Option<SharedMemory>,
) -> Result<Arc<Store>> {
    let config = config(setup, size_bytes, has_reserve);
    let is_kept = memory.is_some();
    let made = match memory {
        Some(memory) => Store::new_kept(config, memory),
        None => Store::new(config),
    };
    let mut store = made.map_err(failed)?;
    if let Some(medium) = &setup.medium {
        let backing = if is_kept { medium.backing_alone()? } else { medium.backing.clone() };
        attach(&mut store, backing, setup.layout)?;
    }
    configure(&store, setup);
    Ok(Arc::new(store))
}

/// Whether the memory of another server can be used, as far as that can be seen while it lives.
pub fn check_memory(setup: &Setup, size_bytes: u64, memory: &SharedMemory) -> Result<()> {
    match size_bytes {
        0 => Ok(()),
        _ => Store::check_kept(&config(setup, size_bytes, false), memory).map_err(failed),
    }
}

/// Makes the store of a server that has died, of its memory and its medium.
pub fn recovered(
    setup: &Setup,
    size_bytes: u64,
    has_reserve: bool,
    memory: SharedMemory,
) -> Result<Arc<Store>> {
    let backing = setup.medium.as_ref().map(Medium::backing_alone).transpose()?;
    let recovered = Store::recover(config(setup, size_bytes, has_reserve), memory, backing);
    let (store, Recovered { pages, lost_pages, .. }) = recovered.map_err(failed)?;
    log::info(format_args!("recovered {}", counted(pages, "page", "pages")));
    if lost_pages > 0 {
        let lost = counted(lost_pages, "page is", "pages are");
        log::error(format_args!("{lost} lost: reading them is an error until they are written again"));
    }
    configure(&store, setup);
    Ok(Arc::new(store))
}

fn config(setup: &Setup, size_bytes: u64, has_reserve: bool) -> StoreConfig {
    let spec = |config: &CodecConfig| codec::spec(&codec::applicable(config));
    StoreConfig {
        codec: spec(&setup.primary()),
        further_codecs: std::array::from_fn(|at| setup.codec(at + 1).map(spec)),
        // Idle marks and automatic recompression need ages on every disk.
        access_times: true,
        mem_limit: memory_limit(setup),
        same_filled: setup.same_filled,
        reserve_bytes: has_reserve.then_some(RESERVE_BYTES),
        ..StoreConfig::new(size_bytes)
    }
}

/// Sets what a store with a medium can change while it is used.
fn configure(store: &Store, setup: &Setup) {
    let (Some(medium), Some(writeback)) = (&setup.medium, store.writeback()) else { return };
    let (settings, wanted) = (writeback.settings(), &setup.writeback);
    settings.promote.store(wanted.promote.load());
    settings.promote_window_s.store(wanted.promote_window_s.load());
    settings.writeback_limit.store(wanted.writeback_limit.load());
    settings.writeback_limit_enabled.store(wanted.writeback_limit_enabled.load());
    settings.set_writeback_batch_size(wanted.writeback_batch_size());
    writeback.policy().rate_bytes_per_s.store(medium.rate_bytes_per_s);
    writeback.policy().daily_bytes.store(medium.daily_bytes);
    let logged = AtomicU32::new(0);
    writeback.on_failure(move |e| log_failure(e, logged.fetch_add(1, Relaxed)));
}

/// Refuses codecs that do not take their parameters, as `store` does.
pub fn check_codecs(setup: &Setup) -> Result<()> {
    let check = |config: &CodecConfig| {
        let codec = Codec::new(&codec::spec(&codec::applicable(config)));
        codec.map(drop).map_err(|e| failed(StoreError::Codec(e)))
    };
    check(&setup.primary())?;
    (1..PRIORITY_COUNT).filter_map(|priority| setup.codec(priority)).try_for_each(check)
}

/// Attaches the medium. One that is too small for the segments of the log gets a page in each block.
fn attach(store: &mut Store, backing: Arc<dyn Backing>, layout: LayoutKind) -> Result<()> {
    let config = |layout| WritebackConfig { backing: backing.clone(), layout };
    match store.attach(config(layout)) {
        Err(StoreError::Attach(AttachError::TooSmall { .. })) if layout == LayoutKind::Log => {
            store.attach(config(LayoutKind::Blocks)).map_err(failed)
        }
        attached => attached.map_err(failed),
    }
}

/// Logs which page could not be read back, and its place on the medium. `before` counts the earlier failures: their
/// number is limited, because a program may read such a page again and again.
fn log_failure(e: &StoreError, before: u32) {
    match before {
        0..MAX_LOGGED_FAILURES => log::error(format_args!("{e}")),
        MAX_LOGGED_FAILURES => {
            log::error(format_args!("further pages that cannot be read back are only counted"))
        }
        _ => {}
    }
}

fn failed(e: StoreError) -> CliError {
    let exit = match e {
        StoreError::BadLength(_) | StoreError::Codec(_) => Exit::Usage,
        StoreError::Attach(AttachError::TooSmall { .. } | AttachError::TooLarge { .. }) => Exit::Usage,
        StoreError::SetUp(_) => Exit::Unavailable,
        _ => Exit::Failed,
    };
    let errno = match e {
        StoreError::SetUp(_) => libc::ENOMEM,
        _ => libc::EINVAL,
    };
    CliError::new(exit, format!("setting up the store: {e}")).with_errno(errno)
}

/// Refuses a memory limit that leaves no room for a single page; 0, no limit, is accepted.
pub fn check_limit(bytes: u64) -> Result<(), String> {
    match bytes {
        1..MemLimit::LEAST_BYTES => Err(format!(
            "{bytes} bytes are too few to store any page; the smallest limit is {} ({} bytes), and 0 means no limit",
            Human(MemLimit::LEAST_BYTES),
            MemLimit::LEAST_BYTES
        )),
        _ => Ok(()),
    }
}

/// Converts a memory limit as users write it: 0 means no limit.
pub fn limit(bytes: u64) -> MemLimit {
    match bytes {
        0 => MemLimit::Off,
        bytes => MemLimit::Bytes(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_limit_is_taken_and_none_stays_none() {
        assert_eq!(without(MemLimit::Off, 1 << 20), MemLimit::Off);
        assert_eq!(without(MemLimit::Bytes(8 << 20), 1 << 20), MemLimit::Bytes(7 << 20));
        assert_eq!(without(MemLimit::Bytes(8 << 20), 9 << 20), MemLimit::Bytes(MemLimit::LEAST_BYTES));
        let half = MemLimit::Half.bytes();
        assert_eq!(without(MemLimit::Half, 4096), MemLimit::Bytes(half - 4096));
    }
}
