//! What a disk parks pages on, on both sides of the start of its server.
//!
//! The command opens the path, with its own rights, and makes the file where there is
//! none. The server gets the open file and makes a medium of it; the path it is told is
//! for showing only.

use super::config::{BackingConfig, ServeConfig};
use super::disk::Medium;
use crate::failure::{Exit, Failure, Outcome};
use crate::runtime::state::{BackingFile, CreatedFile};
use pagefold_backing::layer::{DelayLayer, DelayOptions, SystemClock};
use pagefold_backing::{Backing, FileBacking, FileOptions, OpenError, OpenOptions, Opened, open_backing};
use pagefold_page::PageCount;
use pagefold_page::size::Human;
use pagefold_store::parking::{LayoutKind, MAGIC};
use pagefold_sys::blockuse::BlockUse;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// How long a process that has ended may seem to hold what it parked on.
const LETTING_GO: Duration = Duration::from_secs(2);
/// Smallest that is of any use: a few segments of the log.
const MIN_BYTES: u64 = 4 * MIB;

/// What `disk create` was asked to park on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackingRequest {
    /// The file or device, absolute.
    pub path: PathBuf,
    /// Its size, if one was given.
    pub size_bytes: Option<u64>,
    /// Overwrite something else that is there.
    pub force: bool,
    /// Whether parked pages are compressed and packed; otherwise one page per block.
    pub compressed: bool,
    /// Most bytes a second that automatic parking writes, 0 for no bound.
    pub rate_bytes_per_s: u64,
    /// Most bytes that automatic parking writes within 24 hours, 0 for no bound.
    pub daily_bytes: u64,
    /// What every request takes at least, for benchmarks and tests.
    pub delay_us: u64,
}

/// An open backing, and what the server is told about it.
pub struct OpenBacking {
    /// Open, locked, and in nobody else's use.
    pub file: File,
    /// For the server.
    pub config: BackingConfig,
}

/// The size of a new file for a disk: room for every page uncompressed, for what stands around them, and
/// for the cleaner.
pub fn default_size_bytes(disk_bytes: u64) -> u64 {
    (disk_bytes.saturating_add(disk_bytes / 8)).saturating_add(16 * MIB).next_multiple_of(MIB)
}

/// Opens the backing with the rights of this process, or makes the file.
pub fn open(request: &BackingRequest, disk_bytes: u64) -> Outcome<OpenBacking> {
    let wanted_bytes = request.size_bytes.unwrap_or_else(|| default_size_bytes(disk_bytes));
    // A length that is not whole blocks would keep direct I/O away.
    let wanted_bytes = PageCount::covering(wanted_bytes).bytes().unwrap_or(wanted_bytes);
    let options = OpenOptions {
        size_bytes: Some(wanted_bytes),
        min_bytes: MIN_BYTES,
        magic: MAGIC,
        force: request.force,
    };
    let Opened { file, path, created, len_bytes, .. } = open_when_let_go(&request.path, &options)?;
    if request.size_bytes.is_some_and(|asked| asked != len_bytes && wanted_bytes != len_bytes) {
        return Err(Failure::usage(format!(
            "--backing-size: '{}' exists and has {} ({len_bytes} bytes); it is used as it is, so leave \
             --backing-size out",
            path.display(),
            Human(len_bytes)
        )));
    }
    let created = match created {
        true => {
            Some(CreatedFile::of(&file.metadata().map_err(|e| Failure::io("looking at the new file", &e))?))
        }
        false => None,
    };
    let config = BackingConfig {
        path,
        created,
        compressed: request.compressed,
        rate_bytes_per_s: request.rate_bytes_per_s,
        daily_bytes: request.daily_bytes,
        delay_us: request.delay_us,
    };
    Ok(OpenBacking { file, config })
}

/// The kernel takes io_uring's hold on a file away a moment after the process has ended that had it. So one
/// that is in use, and by nobody who can be named, may be free soon: as a rule after a `disk remove`.
fn open_when_let_go(path: &Path, options: &OpenOptions) -> Result<Opened, OpenError> {
    let deadline = Instant::now() + LETTING_GO;
    loop {
        match open_backing(path, options) {
            Err(OpenError::InUse { .. }) if Instant::now() < deadline => {}
            Err(OpenError::Claimed { uses, .. }) if !is_explained(&uses) && Instant::now() < deadline => {}
            opened => return opened,
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn is_explained(uses: &[BlockUse]) -> bool {
    uses.iter().any(|u| *u != BlockUse::Claimed)
}

/// The medium of a server, from the file it was handed.
pub fn medium(config: Option<&BackingConfig>, file: Option<File>) -> Outcome<Option<Medium>> {
    let (config, file) = match (config, file) {
        (None, None) => return Ok(None),
        (Some(config), Some(file)) => (config, file),
        _ => return Err(Failure::failed("the server was not handed what it was told of")),
    };
    let using = |e| Failure::failed(format!("using the backing '{}': {e}", config.path.display()));
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

/// The file that is removed with the disk.
pub fn to_remove(config: &ServeConfig) -> Option<BackingFile> {
    let backing = config.backing.as_ref()?;
    backing.created.map(|file| BackingFile { path: backing.path.clone(), file })
}

impl From<OpenError> for Failure {
    fn from(e: OpenError) -> Self {
        let exit = match &e {
            OpenError::InUse { .. } | OpenError::Claimed { .. } => Exit::Busy,
            OpenError::NotWritable { .. } => Exit::Unavailable,
            OpenError::Failed(e) => Failure::from(e.clone()).exit,
            OpenError::NoSize { .. }
            | OpenError::NoFolder { .. }
            | OpenError::TooSmall { .. }
            | OpenError::TooLarge { .. }
            | OpenError::SymbolicLink { .. }
            | OpenError::WrongType { .. }
            | OpenError::NotYours { .. }
            | OpenError::HoldsSomething { .. } => Exit::Usage,
        };
        let advice = match &e {
            OpenError::HoldsSomething { .. } | OpenError::NotYours { .. } => " with --force-backing",
            OpenError::TooLarge { .. } => " with --backing-size",
            _ => "",
        };
        Failure::new(exit, format!("--backing: {e}{advice}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_file_has_room_for_pages_that_do_not_compress() {
        assert_eq!(default_size_bytes(4096), 17 * MIB);
        assert_eq!(default_size_bytes(64 * MIB), 88 * MIB);
        assert_eq!(default_size_bytes(4 << 30), (4 << 30) + (512 + 16) * MIB);
        for disk_bytes in [1 << 20, 5 << 20, 3 << 30, 64 << 40] {
            assert!(default_size_bytes(disk_bytes) >= disk_bytes + disk_bytes / 256 + 8 * MIB);
        }
    }
}
