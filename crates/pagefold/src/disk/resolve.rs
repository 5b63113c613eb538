//! Resolves the disk that a user names: by its name, its device, its NBD URI or socket, or a directory on which a file
//! system on it is mounted.
//!
//! A text with a slash is a path or a URI, anything else is a name. A device may be named by any path that leads to it,
//! such as a link in `/dev/disk`.

use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::instance::state::ExportState;
use pagefold_control::instance::{InstanceDir, InstanceName, LockedRuntimeDir};
use pagefold_sys::mounts::DeviceNumber;
use pagefold_sys::{blockuse, mounts};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// The thing that the user named.
enum Target<'t> {
    Uri(&'t str),
    /// A block device, or that of a mounted file system.
    Device(DeviceNumber),
    /// A unix socket.
    Socket {
        device: u64,
        inode: u64,
    },
}

/// The folder of the disk that `text` names, which for a name need not exist. The caller holds the lock of the runtime
/// folder.
pub fn resolve(locked: &LockedRuntimeDir, text: &str) -> Result<InstanceDir> {
    if !text.contains('/') {
        return Ok(locked.instance(&InstanceName::parse(text)?));
    }
    let target = target(text)?;
    let is_meant = |dir: &InstanceDir| target.as_ref().is_some_and(|target| is_of(dir, target));
    locked.instances()?.into_iter().find(is_meant).ok_or_else(|| no_disk_at(text))
}

/// The error for a path or URI that is not that of a disk.
pub fn no_disk_at(text: &str) -> CliError {
    CliError::new(
        Exit::NotFound,
        format!(
            "'{text}' is not the device, NBD URI, NBD socket or mount point of a disk; 'pagefold disk list' lists the \
             disks"
        ),
    )
}

/// Looks up what `text` is; `None` if no disk can be meant.
fn target(text: &str) -> Result<Option<Target<'_>>> {
    if text.contains("://") {
        return Ok(Some(Target::Uri(text)));
    }
    let failed = |e: &std::io::Error| match e.kind() {
        std::io::ErrorKind::NotFound => CliError::new(Exit::NotFound, format!("'{text}': {e}")),
        _ => CliError::io(format!("'{text}'"), e),
    };
    let path = Path::new(text).canonicalize().map_err(|e| failed(&e))?;
    let metadata = path.metadata().map_err(|e| failed(&e))?;
    let kind = metadata.file_type();
    Ok(match () {
        () if kind.is_block_device() => Some(Target::Device(DeviceNumber::from_dev_t(metadata.rdev()))),
        () if kind.is_socket() => Some(Target::Socket { device: metadata.dev(), inode: metadata.ino() }),
        () if kind.is_dir() => mounts::at(&path)?.map(|mount| Target::Device(mounted_device(&mount))),
        () => None,
    })
}

/// The block device of a mounted file system. A file system that can be on several devices, such as btrfs, has a device
/// number without a device; then the source of the mount is the device.
fn mounted_device(mount: &mounts::Mount) -> DeviceNumber {
    match mount.device.major {
        0 => blockuse::device_number(Path::new(&mount.source)).unwrap_or(mount.device),
        _ => mount.device,
    }
}

fn is_of(dir: &InstanceDir, target: &Target) -> bool {
    let Some(state) = dir.read_state() else { return false };
    let Some(export) = &state.export else { return false };
    // Every export is named, so that a further one has to say which targets name it.
    match (target, export) {
        (Target::Uri(wanted), ExportState::Nbd { uri }) => {
            *wanted == uri.as_str() || socket_of(wanted).is_some_and(|socket| socket_of(uri) == Some(socket))
        }
        (Target::Socket { device, inode }, ExportState::Nbd { .. }) => {
            let socket = dir.nbd_path().symlink_metadata();
            socket.is_ok_and(|socket| (socket.dev(), socket.ino()) == (*device, *inode))
        }
        (Target::Device(number), ExportState::Loop { .. }) => {
            let device = state.loop_device().and_then(|device| blockuse::device_number(&device).ok());
            device == Some(*number)
        }
        (Target::Device(_), ExportState::Nbd { .. })
        | (Target::Uri(_) | Target::Socket { .. }, ExportState::Loop { .. }) => false,
    }
}

/// The socket in an NBD URI, whatever name of an export it contains: a socket has one export.
fn socket_of(uri: &str) -> Option<&str> {
    uri.strip_prefix("nbd+unix://")?.split_once("?socket=").map(|(_, socket)| socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_of_a_uri_does_not_depend_on_the_export_name() {
        assert_eq!(socket_of("nbd+unix:///x?socket=/run/nbd.sock"), Some("/run/nbd.sock"));
        assert_eq!(socket_of("nbd+unix:///?socket=/run/nbd.sock"), Some("/run/nbd.sock"));
        assert_eq!(socket_of("nbd://localhost/?socket=/run/nbd.sock"), None);
        assert_eq!(socket_of("nbd+unix:///x"), None);
    }
}
