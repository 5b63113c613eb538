//! The medium that a disk writes back to.
//!
//! The command has opened the file or device with the user's rights and passed it to the server, when the disk was created or
//! with the change of `backing_dev`. The server opens no paths.

use pagefold_backing::layer::{DelayLayer, DelayOptions, SystemClock};
use pagefold_backing::{Backing, FileBacking, FileOptions};
use pagefold_control::backing::{OpenError, OpenOptions, open_backing};
use pagefold_control::config::BackingConfig;
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::instance::state::CreatedFile;
use pagefold_page::PAGE_SIZE;
use pagefold_store::writeback::{LayoutKind, MAGIC};
use std::fmt::Display;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How long a server waits for requests of the former one.
const FORMER_IO_TIMEOUT: Duration = Duration::from_secs(60);

/// Opens a file anew, so that this server has an open file that the next one can wait for; `None` if that is impossible.
pub type Reopen<'a> = &'a dyn Fn(&File) -> Option<File>;

/// The medium of a disk, with the settings of writeback.
#[derive(Clone)]
pub struct Medium {
    /// The medium itself.
    pub backing: Arc<dyn Backing>,
    /// Its file, for the next server.
    pub file: Arc<File>,
    /// The same, opened anew for this server; `None` if that was impossible.
    pub alone: Option<Arc<File>>,
    /// The delay that is added to every request, microseconds.
    pub delay_us: u64,
    /// Its path, for reports.
    pub path: PathBuf,
    /// The identity of the file, if it was created for the disk and is removed with it.
    pub created: Option<CreatedFile>,
    /// The layout of pages on it.
    pub layout: LayoutKind,
    /// Rate limit of automatic writeback, 0 for none.
    pub rate_bytes_per_s: u64,
    /// Most bytes that automatic writeback writes within 24 hours, 0 for no limit.
    pub daily_bytes: u64,
}

/// Opens a file or block device that exists, as zram's `backing_dev` does, and returns it with its path. Files are an extension:
/// zram takes block devices only. With `force`, other data on a device is overwritten; that in a file never is.
///
/// For commands: the path means what they may open.
pub fn open_named(path: &Path, force: bool) -> Result<(File, PathBuf)> {
    if !path.is_absolute() {
        return Err(not_absolute(path));
    }
    if is_name_of_shell(path) {
        let message = format!(
            "backing_dev: '{}' is a name that only the shell has; a disk in memory is no backing (EINVAL)",
            path.display()
        );
        return Err(CliError::usage(message).with_errno(libc::EINVAL));
    }
    // The kernel takes no files, so a mistake costs no file there, and must cost none here.
    let force = force && std::fs::metadata(path).is_ok_and(|meta| !meta.is_file());
    let options = OpenOptions { size_bytes: None, min_bytes: PAGE_SIZE as u64, magic: MAGIC, force };
    let opened = open_backing(path, &options).map_err(|e| open_failure(path, &e))?;
    Ok((opened.file, opened.path))
}

impl Medium {
    /// The medium on what [`open_named`] has returned.
    pub fn of((file, path): (File, PathBuf), reopen: Reopen<'_>) -> Result<Self> {
        let (backing, file) = file_backing(file, &path)?;
        Ok(Medium {
            backing: Arc::new(backing),
            alone: reopen(&file).map(Arc::new),
            file,
            delay_us: 0,
            path,
            created: None,
            layout: LayoutKind::Log,
            rate_bytes_per_s: 0,
            daily_bytes: 0,
        })
    }

    /// The medium for the store of a disk that outlives its server: it waits for the requests of the former server, and
    /// the next one for those of this.
    pub fn backing_alone(&self) -> Result<Arc<dyn Backing>> {
        let alone = self.alone.as_ref().map(|file| file.try_clone()).transpose();
        let alone = alone.map_err(|e| using(&self.path, &e))?;
        let options = FileOptions::default();
        let backing = FileBacking::reopened_alone(&self.file, alone, options, FORMER_IO_TIMEOUT);
        Ok(delayed(backing.map_err(|e| using(&self.path, &e))?, self.delay_us))
    }
}

fn using(path: &Path, e: &dyn Display) -> CliError {
    CliError::failed(format!("using the backing '{}': {e}", path.display()))
}

fn file_backing(file: File, path: &Path) -> Result<(FileBacking, Arc<File>)> {
    let other = file.try_clone().map_err(|e| using(path, &e))?;
    let backing = FileBacking::new(file, FileOptions::default()).map_err(|e| using(path, &e))?;
    Ok((backing, Arc::new(other)))
}

/// Whether the path is `/dev/zramN`. In the shell that is a disk of pagefold, here it may be the kernel's.
fn is_name_of_shell(path: &Path) -> bool {
    let number = path.to_str().and_then(|path| path.strip_prefix("/dev/zram"));
    number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

/// The error for a path that is not absolute, with the error number that the kernel most likely returns: the server has
/// another working directory than the writer.
fn not_absolute(path: &Path) -> CliError {
    const NAME_LEN_MAX: usize = 255;
    let errno = match path.iter().any(|name| name.len() > NAME_LEN_MAX) {
        _ if path.as_os_str().is_empty() => libc::EISDIR,
        true => libc::ENAMETOOLONG,
        false => libc::ENOENT,
    };
    CliError::usage(format!("backing_dev takes an absolute path, not '{}'", path.display())).with_errno(errno)
}

/// The error for a path that cannot be opened, with the error number that the kernel returns.
fn open_failure(path: &Path, e: &OpenError) -> CliError {
    let (exit, errno) = match e {
        OpenError::InUse { .. } | OpenError::Claimed { .. } => (Exit::Busy, libc::EBUSY),
        OpenError::NoSize { .. } | OpenError::NoFolder { .. } => (Exit::NotFound, libc::ENOENT),
        OpenError::NotWritable { errno, .. } => (Exit::Unavailable, *errno),
        OpenError::WrongType { .. } if path.is_dir() => (Exit::Usage, libc::EISDIR),
        OpenError::WrongType { .. } | OpenError::HoldsSomething { .. } | OpenError::NotYours { .. } => {
            (Exit::Usage, libc::ENOTBLK)
        }
        OpenError::Failed(e) => (Exit::Failed, e.errno),
        _ => (Exit::Usage, libc::EINVAL),
    };
    CliError::new(exit, format!("backing_dev: {e}")).with_errno(errno)
}

/// Makes the medium from the configuration and the open file; `None` if the disk has no backing.
pub fn medium(
    config: Option<&BackingConfig>,
    file: Option<File>,
    reopen: Reopen<'_>,
) -> Result<Option<Medium>> {
    let (config, file) = match (config, file) {
        (None, None) => return Ok(None),
        (Some(config), Some(file)) => (config, file),
        _ => return Err(CliError::failed("the configuration and the open backing do not match")),
    };
    let (backing, file) = file_backing(file, &config.path)?;
    Ok(Some(Medium {
        backing: delayed(backing, config.delay_us),
        alone: reopen(&file).map(Arc::new),
        file,
        delay_us: config.delay_us,
        path: config.path.clone(),
        created: config.created,
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
