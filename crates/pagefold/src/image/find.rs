//! Finds a mounted image by an argument: the directory that it is mounted on, or the path or URL of the image.
//!
//! A file system whose server is dead or hangs must not be touched: paths are resolved without that.

use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::instance::mounts as served_mounts;
use pagefold_control::media::Location;
use pagefold_sys::mounts;
use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};

/// Most symbolic links that are followed at the end of a path, as in Linux.
const MAX_LINKS: usize = 40;

/// The directory that `target` names: a directory with a mount, or one on which the image `target` is mounted. An
/// error lists the directories of an image that is mounted on several.
pub fn mount_point(target: &Path) -> Result<PathBuf> {
    let location = Location::from(target.as_os_str().to_os_string());
    let path = match &location {
        Location::File(path) => resolve_or_missing(path)?,
        Location::Url(_) => location.name(),
    };
    if mounts::at(&path)?.is_some() {
        return Ok(path);
    }
    let found = served_mounts::find_any(|state| state.mount_point == path || state.image == path)?;
    let mut points: Vec<PathBuf> = found.into_iter().map(|(_, state)| state.mount_point).collect();
    points.sort();
    points.dedup();
    match points.as_slice() {
        [] => Err(not_found(&path)),
        [point] => Ok(point.clone()),
        _ if points.contains(&path) => Ok(path),
        several => {
            let list: Vec<_> = several.iter().map(|point| format!("'{}'", point.display())).collect();
            let (image, list) = (path.display(), list.join(", "));
            Err(CliError::usage(format!(
                "'{image}' is mounted on several directories: {list}; name one of them"
            )))
        }
    }
}

/// The error for a path that is neither a mounted image nor a directory with one.
pub fn not_found(path: &Path) -> CliError {
    let what = format!(
        "no image is mounted on '{0}', and '{0}' is no mounted image; 'pagefold image mounts' lists what is mounted",
        path.display()
    );
    CliError::new(Exit::NotFound, what)
}

/// Fails if something is mounted at `mount_point`, without touching that, or if it is not a directory.
pub fn check_mount_point(mount_point: &Path) -> Result<()> {
    if mounts::occupant(mount_point)?.is_some() {
        let what = format!(
            "something is mounted on '{0}' already; 'pagefold image unmount {0}' unmounts an image",
            mount_point.display()
        );
        return Err(CliError::new(Exit::Busy, what));
    }
    // A look at a mount point of autofs would wait for the mount.
    match mounts::at(mount_point)?.is_some() || mount_point.is_dir() {
        true => Ok(()),
        false => Err(CliError::usage(format!("'{}' is not a directory", mount_point.display()))),
    }
}

/// Resolves a path to an absolute one without symbolic links. The file must exist.
///
/// Does not touch a file system that is mounted there. So links at the end of the path are followed one by one, and
/// only where nothing is mounted.
pub fn resolve(path: &Path) -> std::io::Result<PathBuf> {
    match follow(path)? {
        (found, None) => Ok(found),
        (_, Some(missing)) => Err(missing),
    }
}

/// As [`resolve`], but the file may be missing: an image may have been removed after it was mounted.
fn resolve_or_missing(path: &Path) -> Result<PathBuf> {
    match follow(path) {
        Ok((found, _)) => Ok(found),
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Err(not_found(path)),
        Err(e) => Err(CliError::io(format!("'{}'", path.display()), &e)),
    }
}

/// The path without symbolic links, and the error if there is no file.
fn follow(path: &Path) -> std::io::Result<(PathBuf, Option<Error>)> {
    let mut wanted = path.to_path_buf();
    for _ in 0..MAX_LINKS {
        let whole = std::path::absolute(&wanted)?;
        let (Some(parent), Some(name)) = (whole.parent(), whole.file_name()) else {
            return Ok((whole.canonicalize()?, None));
        };
        let parent = parent.canonicalize()?;
        let found = parent.join(name);
        if mounts::at(&found).map_err(Error::other)?.is_some() {
            return Ok((found, None));
        }
        match std::fs::read_link(&found) {
            Ok(target) => wanted = parent.join(target),
            // It exists, and is no link.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => return Ok((found, None)),
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok((found, Some(e))),
            Err(e) => return Err(e),
        }
    }
    Err(Error::from_raw_os_error(libc::ELOOP))
}
