//! Mount namespaces: a thread gets its own copy of all mounts, and changes that.
//!
//! A mount namespace belongs to threads, and new processes and threads inherit it from the thread that starts them. So
//! one thread of a process can have another view of the files than the rest. Reference: mount_namespaces(7), mount(2).

use crate::mounts::DeviceNumber;
use crate::{SysError, failed};
use rustix::fs::{CWD, FileType, Mode};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Gives the calling thread its own mount namespace. Mounts that it makes are not seen outside. Those that are made or
/// undone outside later are seen inside if the mounts over which they are made are shared, as systemd makes all mounts.
///
/// The thread also gets its own working directory, root and umask. Needs CAP_SYS_ADMIN.
pub fn unshare() -> Result<(), SysError> {
    // SAFETY: with CLONE_NEWNS the call changes which mounts this thread sees, and no memory.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return Err(SysError::last("making a mount namespace"));
    }
    let receives_only = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", receives_only).map_err(|e| {
        let why = match e {
            rustix::io::Errno::INVAL => {
                ": '/' is no mount point, as in a plain chroot; run 'mount --bind DIR DIR' before 'chroot DIR'"
            }
            _ => "",
        };
        SysError::new(format!("separating the mounts of the new mount namespace{why}"), e.raw_os_error())
    })
}

/// Shares the mounts of the calling thread's namespace: namespaces that programs make of it later see what is mounted and
/// unmounted here, if they do not ask for private mounts.
pub fn share() -> Result<(), SysError> {
    rustix::mount::mount_change("/", MountPropagationFlags::SHARED | MountPropagationFlags::REC)
        .map_err(failed("sharing the mounts of the namespace"))
}

/// Makes the file or directory `from` visible at `to` too, which must exist and be of the same kind.
pub fn bind(from: &Path, to: &Path) -> Result<(), SysError> {
    rustix::mount::mount_bind(from, to).map_err(|e| binding_failed(from, to, e))
}

/// Binds as [`bind`] does, with all mounts below `from`.
pub fn bind_with_submounts(from: &Path, to: &Path) -> Result<(), SysError> {
    rustix::mount::mount_bind_recursive(from, to).map_err(|e| binding_failed(from, to, e))
}

fn binding_failed(from: &Path, to: &Path, e: rustix::io::Errno) -> SysError {
    SysError::new(format!("mounting {} over {}", from.display(), to.display()), e.raw_os_error())
}

/// Mounts an empty tmpfs, whose root has mode 0755.
pub fn mount_tmpfs(at: &Path) -> Result<(), SysError> {
    rustix::mount::mount("pagefold", at, "tmpfs", MountFlags::empty(), c"mode=755")
        .map_err(|e| SysError::new(format!("mounting a tmpfs at {}", at.display()), e.raw_os_error()))
}

/// Mounts an overlay: the contents of `lower`, with changes that go to `upper`. `work` is an empty directory on the file
/// system of `upper`.
pub fn mount_overlay(lower: &Path, upper: &Path, work: &Path, at: &Path) -> Result<(), SysError> {
    let what = || format!("mounting an overlay at {}", at.display());
    let mut options = Vec::new();
    for (name, path) in [("lowerdir=", lower), (",upperdir=", upper), (",workdir=", work)] {
        options.extend_from_slice(name.as_bytes());
        for &byte in path.as_os_str().as_bytes() {
            // These would end the path.
            if b"\\,:".contains(&byte) {
                options.push(b'\\');
            }
            options.push(byte);
        }
    }
    let options = CString::new(options).map_err(|_| SysError::new(what(), libc::EINVAL))?;
    rustix::mount::mount("pagefold", at, "overlay", MountFlags::empty(), options.as_c_str())
        .map_err(|e| SysError::new(what(), e.raw_os_error()))
}

/// Unmounts what is mounted at `at`, even if it is in use. Succeeds if nothing is.
pub fn detach(at: &Path) -> Result<(), SysError> {
    match rustix::mount::unmount(at, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
        Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => Ok(()),
        Err(e) => Err(SysError::new(format!("unmounting {}", at.display()), e.raw_os_error())),
    }
}

/// Makes a node of the block device, with the permission bits `mode` as far as the umask allows.
pub fn make_block_node(path: &Path, device: DeviceNumber, mode: u32) -> Result<(), SysError> {
    let number = rustix::fs::makedev(device.major, device.minor);
    rustix::fs::mknodat(CWD, path, FileType::BlockDevice, Mode::from_raw_mode(mode), number)
        .map_err(|e| SysError::new(format!("making {}", path.display()), e.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_in_a_plain_chroot_has_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let path = CString::new(dir.path().as_os_str().as_bytes()).unwrap();
        let inside = std::thread::spawn(move || {
            // SAFETY: both calls change the root folder of this thread alone, and no memory.
            let changed = unsafe { libc::unshare(libc::CLONE_FS) == 0 && libc::chroot(path.as_ptr()) == 0 };
            changed.then(unshare)
        });
        match inside.join().unwrap() {
            None => pagefold_testkit::skipped!("the_error_in_a_plain_chroot_has_the_reason: needs root"),
            Some(Err(e)) if e.errno == libc::EPERM => {
                pagefold_testkit::skipped!("the_error_in_a_plain_chroot_has_the_reason: {e}");
            }
            Some(result) => {
                let e = result.unwrap_err();
                assert!(e.errno == libc::EINVAL && e.what.contains("mount --bind DIR DIR"), "{e}");
            }
        }
    }

    #[test]
    fn mounts_of_a_thread_with_its_own_namespace_are_not_seen_outside() {
        let dir = tempfile::tempdir().unwrap();
        let (path, inner) = (dir.path().to_path_buf(), dir.path().join("inner"));
        let inside = std::thread::spawn(move || -> Result<bool, SysError> {
            unshare()?;
            mount_tmpfs(&path)?;
            std::fs::create_dir(path.join("inner")).unwrap();
            bind(Path::new("/proc"), &path.join("inner"))?;
            let seen = path.join("inner/self").exists();
            detach(&path.join("inner"))?;
            detach(&path.join("inner"))?;
            Ok(seen && !path.join("inner/self").exists())
        });
        match inside.join().unwrap() {
            Err(e) if e.errno == libc::EPERM => {
                pagefold_testkit::skipped!(
                    "mounts_of_a_thread_with_its_own_namespace_are_not_seen_outside: {e}"
                );
            }
            result => assert_eq!(result, Ok(true)),
        }
        assert!(!inner.exists());
    }
}
