//! The medium that a disk writes back to.
//!
//! The command has opened the file or device with the user's rights and passed it to the server, which never opens a
//! path.

use pagefold_backing::layer::{DelayLayer, DelayOptions, SystemClock};
use pagefold_backing::{Backing, FileBacking, FileOptions};
use pagefold_control::config::BackingConfig;
use pagefold_control::error::{CliError, Result};
use pagefold_store::writeback::LayoutKind;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The medium of a disk, with the settings of writeback.
pub struct Medium {
    /// The medium itself.
    pub backing: Arc<dyn Backing>,
    /// Its path, for reports.
    pub path: PathBuf,
    /// Whether the file was created for the disk and is removed with it.
    pub created: bool,
    /// The layout of pages on it.
    pub layout: LayoutKind,
    /// Rate limit of automatic writeback, 0 for none.
    pub rate_bytes_per_s: u64,
    /// Most bytes that automatic writeback writes within 24 hours, 0 for no limit.
    pub daily_bytes: u64,
}

/// Makes the medium from the configuration and the open file; `None` if the disk has no backing.
pub fn medium(config: Option<&BackingConfig>, file: Option<File>) -> Result<Option<Medium>> {
    let (config, file) = match (config, file) {
        (None, None) => return Ok(None),
        (Some(config), Some(file)) => (config, file),
        _ => return Err(CliError::failed("the configuration and the open backing do not match")),
    };
    let using = |e| CliError::failed(format!("using the backing '{}': {e}", config.path.display()));
    let backing = FileBacking::new(file, FileOptions::default()).map_err(using)?;
    Ok(Some(Medium {
        backing: delayed(backing, config.delay_us),
        path: config.path.clone(),
        created: config.created.is_some(),
        layout: if config.compressed { LayoutKind::Log } else { LayoutKind::Blocks },
        rate_bytes_per_s: config.rate_bytes_per_s,
        daily_bytes: config.daily_bytes,
    }))
}

fn delayed(backing: FileBacking, delay_us: u64) -> Arc<dyn Backing> {
    let delay = Duration::from_micros(delay_us);
    match delay_us {
        0 => Arc::new(backing),
        _ => {
            let options = DelayOptions { delay, ..DelayOptions::default() };
            Arc::new(DelayLayer::new(backing, options, Arc::new(SystemClock::new())))
        }
    }
}
