//! The root directory of a process that creates files: the directory in which it creates them.
//!
//! landlock does not confine changes of metadata (chmod, chown, times, attributes), and filters of system calls do not see
//! paths. So the process gets a view of the directory without a parent: a copy of the mount that is attached nowhere, in which
//! no device can be opened, no program started, and no link followed. The working directory becomes another such view, of the
//! process's own descriptors, which replaces `/proc`: see `pathhandle`.
//!
//! The process needs CAP_SYS_ADMIN and CAP_SYS_CHROOT for that, and has neither afterwards, unless it creates what needs the
//! former; the calls that mount or change the root are deadly then. Reference: open_tree(2), mount_setattr(2), chroot(2).

use crate::{SysError, failed, pathhandle};
use rustix::fs::{CWD, FileType, Mode, OFlags, StatVfsMountFlags, fstat, open};
use rustix::mount::{OpenTreeFlags, open_tree};
use rustix::path::Arg;
use rustix::pipe::pipe;
use rustix::process::{chroot, fchdir};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether this process has such a root.
static IS_ENTERED: AtomicBool = AtomicBool::new(false);

/// `MOUNT_ATTR_NOSUID`, `NODEV`, `NOEXEC` and `NOSYMFOLLOW`.
const IS_TARGET: u64 = 0x2 | 0x4 | 0x8 | 0x20_0000;
/// `MOUNT_ATTR_NODEV`.
const NO_DEVICES: u64 = 0x4;
/// `MOUNT_ATTR_RDONLY`.
const READ_ONLY: u64 = 0x1;

/// The argument of mount_setattr(2).
#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns_fd: u64,
}

/// Makes `folder` the root directory of the calling process, which has one thread. Returns the reason that this is
/// impossible; then the root and the working directory are as before.
pub(super) fn enter(folder: &Path) -> Result<(), String> {
    try_enter(folder).map_err(|e| format!("changes of metadata are not confined: {e}"))
}

/// The path of `folder` in this process.
pub(super) fn path_of(folder: &Path) -> &Path {
    if IS_ENTERED.load(Ordering::Relaxed) { Path::new("/") } else { folder }
}

fn try_enter(folder: &Path) -> Result<(), SysError> {
    // Before the views of this function, which are directories, are opened.
    restrict_descriptors()?;
    let view = view_of(CWD, folder, OpenTreeFlags::AT_RECURSIVE)?;
    let is_read_only = rustix::fs::fstatvfs(&view).map_err(failed("looking at a mount"))?.f_flag;
    let is_read_only = is_read_only.contains(StatVfsMountFlags::RDONLY);
    // Nothing is extracted to mounts below the directory, and one of procfs would be a way out.
    set_attributes(&view, libc::AT_RECURSIVE, IS_TARGET | READ_ONLY, 0)?;
    if !is_read_only {
        set_attributes(&view, 0, 0, READ_ONLY)?;
    }
    let descriptors = view_of(CWD, "/proc/self/fd", OpenTreeFlags::empty())?;
    let opened = |path| open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let before = opened(c".").map_err(failed("opening the working directory"))?;
    let changing = failed("changing the root directory");
    fchdir(&view).map_err(changing)?;
    let changed = chroot(c".").and_then(|()| fchdir(&descriptors));
    if let Err(e) = changed {
        // It was the working directory before.
        let _ = fchdir(&before);
        return Err(changing(e));
    }
    drop(before);
    // The kernel takes a view apart when its last descriptor is closed.
    std::mem::forget((view, descriptors));
    pathhandle::find_descriptors_in_working_directory();
    IS_ENTERED.store(true, Ordering::Relaxed);
    Ok(())
}

/// A copy of a mount, with `path` below `at` as its root, that is attached nowhere.
fn view_of(at: BorrowedFd<'_>, path: impl Arg, flags: OpenTreeFlags) -> Result<OwnedFd, SysError> {
    let flags = flags | OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    open_tree(at, path, flags).map_err(failed("copying a mount"))
}

/// Sets and clears attributes of the first mount of a view, or of all with AT_RECURSIVE.
fn set_attributes(view: &OwnedFd, flags: i32, set: u64, clear: u64) -> Result<(), SysError> {
    let attributes = MountAttr { set, clear, propagation: 0, userns_fd: 0 };
    // SAFETY: the path is a literal, and the structure lives during the call, which only reads it.
    let set = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            view.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | flags,
            &raw const attributes,
            size_of::<MountAttr>(),
        )
    };
    if set == 0 { Ok(()) } else { Err(SysError::last("restricting a mount")) }
}

/// Takes from the open descriptors what their use does not need. They keep their numbers:
/// - A directory, from which paths lead out of the root, and a file that is open for its path only, becomes a pipe's end.
/// - A file that is only read, and a device such as `/dev/null`, is opened again in a view of it that is read-only: its metadata
///   cannot be changed. Descriptors whose files cannot be opened again stay as they are.
fn restrict_descriptors() -> Result<(), SysError> {
    const LIST: &str = "/proc/self/fd";
    let listing = |e| SysError::io(format!("reading {LIST}"), &e);
    let numbers: Vec<RawFd> = std::fs::read_dir(LIST)
        .map_err(listing)?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    let nothing = pipe().map_err(failed("making a pipe"))?.0;
    for number in numbers {
        // SAFETY: the call has no pointers. It fails for the descriptor of the listing, which is closed.
        let flags = unsafe { libc::fcntl(number, libc::F_GETFL) };
        if flags < 0 {
            continue;
        }
        // SAFETY: it is open, and stays so: this is the only thread.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        let stat = fstat(fd).map_err(failed("looking at a descriptor"))?;
        let flags = OFlags::from_bits_retain(flags.unsigned_abs());
        let is_read = !flags.intersects(OFlags::WRONLY | OFlags::RDWR);
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => replace(number, &nothing)?,
            _ if flags.contains(OFlags::PATH) => replace(number, &nothing)?,
            FileType::CharacterDevice => {
                opened_read_only(fd, flags).map_or(Ok(()), |to| replace(number, &to))?
            }
            FileType::RegularFile | FileType::BlockDevice if is_read => {
                opened_read_only(fd, flags).map_or(Ok(()), |to| replace(number, &to))?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Opens a file again, in a read-only view; `None` if that is impossible.
fn opened_read_only(fd: BorrowedFd<'_>, flags: OFlags) -> Option<OwnedFd> {
    let view = view_of(fd, "", OpenTreeFlags::AT_EMPTY_PATH).ok()?;
    set_attributes(&view, 0, READ_ONLY, 0).ok()?;
    let path = format!("/proc/self/fd/{}", view.as_raw_fd());
    let opened = open(path, flags | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).ok();
    // A read-only mount does not keep a device from being opened for writing.
    set_attributes(&view, 0, NO_DEVICES, 0).ok()?;
    std::mem::forget(view);
    opened
}

/// Lets a descriptor of this process be that of another file.
fn replace(number: RawFd, by: &OwnedFd) -> Result<(), SysError> {
    // SAFETY: the call has no pointers. The number stays that of an open descriptor, so values that own it stay valid. Those
    // that own a directory do not exist: the caller holds none open.
    match unsafe { libc::dup3(by.as_raw_fd(), number, libc::O_CLOEXEC) } {
        -1 => Err(SysError::last("replacing a descriptor")),
        _ => Ok(()),
    }
}
