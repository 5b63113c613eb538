//! Opens the backing of a new disk.
//!
//! The command opens the path with the user's rights, or creates the file. The server gets the open file.

use pagefold_control::backing::{OpenError, OpenOptions, Opened, open_backing};
use pagefold_control::config::BackingConfig;
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::instance::state::CreatedFile;
use pagefold_page::PageCount;
use pagefold_page::size::Human;
use pagefold_store::writeback::MAGIC;
use pagefold_sys::blockuse::BlockUse;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// How long the kernel may take to release the backing of a process that has exited.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);
/// Smallest usable backing, bytes: a few segments of the log.
const MIN_BYTES: u64 = 4 * MIB;

/// The checked options of `disk create` about the backing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackingRequest {
    /// The file or device, absolute.
    pub path: PathBuf,
    /// `--backing-size`.
    pub size_bytes: Option<u64>,
    /// Whether to overwrite other data, or to use a file of another user.
    pub force: bool,
    /// Whether written-back pages are compressed and packed; otherwise one page per block.
    pub compressed: bool,
    /// Rate limit of automatic writeback, 0 for none.
    pub rate_bytes_per_s: u64,
    /// Most bytes that automatic writeback writes within 24 hours, 0 for no limit.
    pub daily_bytes: u64,
    /// Delay added to every request, for benchmarks and tests.
    pub delay_us: u64,
}

/// An open backing.
pub struct OpenBacking {
    /// The file or device, locked.
    pub file: File,
    /// Its description for the server.
    pub config: BackingConfig,
}

/// The default size of a new backing file: space for all pages uncompressed, for headers, and for the cleaner.
pub fn default_size_bytes(disk_bytes: u64) -> u64 {
    (disk_bytes.saturating_add(disk_bytes / 8)).saturating_add(16 * MIB).next_multiple_of(MIB)
}

/// Opens the backing, or creates the file.
pub fn open(request: &BackingRequest, disk_bytes: u64) -> Result<OpenBacking> {
    let wanted_bytes = request.size_bytes.unwrap_or_else(|| default_size_bytes(disk_bytes));
    // Direct I/O needs a length of whole blocks.
    let wanted_bytes = PageCount::covering(wanted_bytes).bytes().unwrap_or(wanted_bytes);
    let options = OpenOptions {
        size_bytes: Some(wanted_bytes),
        min_bytes: MIN_BYTES,
        magic: MAGIC,
        force: request.force,
    };
    let Opened { file, path, created, len_bytes, .. } =
        open_when_released(&request.path, &options).map_err(open_failure)?;
    if request.size_bytes.is_some_and(|size| size != len_bytes && wanted_bytes != len_bytes) {
        return Err(CliError::usage(format!(
            "--backing-size: '{}' exists and has {} ({len_bytes} bytes); it is used in this size, so leave \
             --backing-size out",
            path.display(),
            Human(len_bytes)
        )));
    }
    let created = match created {
        true => {
            Some(CreatedFile::of(&file.metadata().map_err(|e| CliError::io("examining the new file", &e))?))
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

/// Opens the backing, and tries again for a while if it is in use for no known reason: the kernel releases files of
/// io_uring a moment after the process has exited, for instance after `disk remove`.
fn open_when_released(path: &Path, options: &OpenOptions) -> Result<Opened, OpenError> {
    let deadline = Instant::now() + RELEASE_TIMEOUT;
    loop {
        match open_backing(path, options) {
            Err(OpenError::InUse { .. }) if Instant::now() < deadline => {}
            Err(OpenError::Claimed { uses, .. }) if !has_known_user(&uses) && Instant::now() < deadline => {}
            opened => return opened,
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn has_known_user(uses: &[BlockUse]) -> bool {
    uses.iter().any(|u| *u != BlockUse::Claimed)
}

/// The error for a backing that cannot be opened, with the option that helps.
fn open_failure(e: OpenError) -> CliError {
    let exit = match &e {
        OpenError::InUse { .. } | OpenError::Claimed { .. } => Exit::Busy,
        OpenError::NotWritable { .. } => Exit::Unavailable,
        OpenError::Failed(e) => CliError::from(e.clone()).exit,
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
    CliError::new(exit, format!("--backing: {e}{advice}"))
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
