//! The engine behind a disk: a store made from a disk's configuration.

use super::codecs;
use super::config::{DoorChoice, ServeConfig};
use super::disk::Medium;
use super::log;
use crate::failure::{Exit, Failure, Outcome};
use pagefold_page::size::Human;
use pagefold_store::parking::{AttachError, ParkConfig};
use pagefold_store::{MemLimit, Store, StoreConfig, StoreError};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Memory kept ready for a disk that may be swapped to, bytes.
pub const RESERVE_BYTES: u64 = 16 << 20;

/// The most that a server takes for itself, bytes: the program, threads' stacks, streams, buffers of the export and of
/// writing back. Measured with every codec and export it is 40 to 65 MiB; the soak holds servers to this.
pub const OWN_BYTES: u64 = 96 << 20;

/// Tables for a GiB of pages written, bytes: a slot of 16 bytes for each, and 8 bytes of links for each frame in use.
pub const TABLE_BYTES_PER_GIB: u64 = 6 << 20;

/// Pages that cannot be read back, of which the log tells.
const FAILURES_TOLD: u32 = 1000;

/// Makes the store, empty, and lets it park on the medium.
pub fn store(config: &ServeConfig, medium: Option<&Medium>) -> Outcome<Arc<Store>> {
    let parameters = StoreConfig {
        codec: codecs::spec(&config.codec),
        mem_limit: config.mem_limit_bytes.map_or(MemLimit::Half, limit),
        // Only a loop device can be swapped to.
        reserve_bytes: (config.door == DoorChoice::Loop).then_some(RESERVE_BYTES),
        ..StoreConfig::new(config.size_bytes)
    };
    let mut store = Store::new(parameters).map_err(failed)?;
    if let Some(medium) = medium {
        let park = ParkConfig { backing: medium.backing.clone(), layout: medium.layout };
        store.attach(park).map_err(failed)?;
    }
    if let (Some(medium), Some(parking)) = (medium, store.parking()) {
        parking.policy().set_rate_bytes_per_s(medium.rate_bytes_per_s);
        parking.policy().set_daily_bytes(medium.daily_bytes);
        let told = AtomicU32::new(0);
        parking.on_failure(move |e| log_failure(e, told.fetch_add(1, Relaxed)));
    }
    Ok(Arc::new(store))
}

/// Says which page could not be read back, and where it is. A program that reads such a page again and
/// again does not fill the log.
fn log_failure(e: &StoreError, before: u32) {
    match before {
        0..FAILURES_TOLD => log::error(format_args!("{e}")),
        FAILURES_TOLD => log::error(format_args!("further pages that cannot be read back are only counted")),
        _ => {}
    }
}

fn failed(e: StoreError) -> Failure {
    let exit = match e {
        StoreError::BadLength(_) | StoreError::Codec(_) => Exit::Usage,
        StoreError::Attach(AttachError::TooSmall { .. } | AttachError::TooLarge { .. }) => Exit::Usage,
        StoreError::SetUp(_) => Exit::Unavailable,
        _ => Exit::Failed,
    };
    Failure::new(exit, format!("setting up the store: {e}"))
}

/// Refuses a limit, as people write it, with which not even one page can be stored.
pub fn check_limit(bytes: u64) -> Result<(), String> {
    match bytes {
        1..MemLimit::LEAST_BYTES => Err(format!(
            "with {bytes} bytes of memory not every page can be stored; the least is {} ({} bytes), and 0 is no limit",
            Human(MemLimit::LEAST_BYTES),
            MemLimit::LEAST_BYTES
        )),
        _ => Ok(()),
    }
}

/// A limit as people write it: 0 is none.
pub fn limit(bytes: u64) -> MemLimit {
    match bytes {
        0 => MemLimit::Off,
        bytes => MemLimit::Bytes(bytes),
    }
}
