//! Loop devices: a regular file as a block device.
//!
//! This module finds and configures a free loop device, and detaches it. The number of a loop device may be reused by
//! another process, so [`detach_if`] detaches a device only if its backing file is still the one with the
//! [`LoopIdentity`] that was recorded. Reference: loop(4) and the kernel's `include/uapi/linux/loop.h`.

use crate::mounts::DeviceNumber;
use crate::{SysError, done};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The control device of the loop driver, which returns the numbers of free loop devices.
pub const CONTROL: &str = "/dev/loop-control";

const LOOP_CLR_FD: libc::Ioctl = 0x4C01;
const LOOP_GET_STATUS64: libc::Ioctl = 0x4C05;
const LOOP_SET_CAPACITY: libc::Ioctl = 0x4C07;
const LOOP_CONFIGURE: libc::Ioctl = 0x4C0A;
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4C82;
const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// Attempts to get and configure a free loop device: another process may configure the same one first.
const ATTACH_TRIES: usize = 64;

/// `struct loop_info64`. All fields are plain integers: any bytes are a valid value.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct LoopInfo64 {
    lo_device: u64,
    lo_inode: u64,
    lo_rdevice: u64,
    lo_offset: u64,
    lo_sizelimit: u64,
    lo_number: u32,
    lo_encrypt_type: u32,
    lo_encrypt_key_size: u32,
    lo_flags: u32,
    lo_file_name: [[u8; 32]; 2],
    lo_crypt_name: [[u8; 32]; 2],
    lo_encrypt_key: [u8; 32],
    lo_init: [u64; 2],
}

/// `struct loop_config`.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo64,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<LoopInfo64>() == 232 && size_of::<LoopConfig>() == 304);
/// The backing file of a loop device, as the loop driver identifies it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LoopIdentity {
    /// The device number of the backing file's file system, as `stat` encodes it.
    pub lo_device: u64,
    /// The inode number of the backing file.
    pub lo_inode: u64,
}

impl LoopIdentity {
    fn of(info: &LoopInfo64) -> Self {
        LoopIdentity { lo_device: info.lo_device, lo_inode: info.lo_inode }
    }

    /// The device number of the backing file's file system.
    pub fn file_system(&self) -> DeviceNumber {
        DeviceNumber::from_dev_t(self.lo_device)
    }
}

/// A loop device in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachedLoop {
    /// The device node, `/dev/loopN`.
    pub path: PathBuf,
    /// Its backing file.
    pub identity: LoopIdentity,
    /// The path of that file when it was attached, as sysfs shows it. For messages only: the file may have moved since.
    pub backing_file: OsString,
}

/// Why no loop device could be attached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// `/dev/loop-control` is missing or forbidden, or the kernel (before 5.8) has no LOOP_CONFIGURE.
    #[error("no loop device is available here: {0}")]
    Unavailable(SysError),
    /// The driver attached the file without direct I/O, which would cache every page twice.
    #[error("the loop driver does not do direct I/O on this file")]
    NoDirectIo,
    /// A system call failed for another reason.
    #[error("{0}")]
    Failed(SysError),
}

/// How [`detach_if`] treats a device in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detach {
    /// Leaves it attached if it is mounted, swapped to, or otherwise claimed.
    IfUnclaimed,
    /// Detaches it when its last user closes it, which may be now.
    WhenLastUserCloses,
}

/// The result of [`detach_if`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detached {
    /// The device is free.
    Now,
    /// The device was free or gone before, or has another backing file: it was left alone.
    NotOurs,
    /// The device is mounted, swapped to, or otherwise claimed: it was left alone.
    Claimed,
    /// A process has the device open; the driver frees it when the last one closes it.
    WhenClosed,
}

/// Opens the control device. Fails if this process may not use loop devices.
pub fn open_control() -> Result<File, SysError> {
    let opened = OpenOptions::new().read(true).write(true).open(CONTROL);
    opened.map_err(|e| SysError::io(format!("opening {CONTROL}"), &e))
}

/// Attaches `file` to a free loop device, with sectors of `sector_bytes` and direct I/O.
///
/// The device is not auto-cleared: it stays attached until [`detach_if`], also when other processes open and close it.
/// If this process serves `file` (FUSE), another thread must serve it during the call.
pub fn attach(file: &File, sector_bytes: u32) -> Result<AttachedLoop, AttachError> {
    let (device, path) = configure_a_free_one(file, sector_bytes, LO_FLAGS_DIRECT_IO)?;
    verified(device, path)
}

/// Attaches `file` to a free loop device for a read-only mount. Returns the open device and the path of its node.
///
/// The device is auto-cleared: the driver frees it when its last user closes it. So the caller keeps the device open
/// until it is mounted, and then drops it.
pub fn attach_for_mount(file: &File) -> Result<(File, PathBuf), AttachError> {
    configure_a_free_one(file, 0, LO_FLAGS_READ_ONLY | LO_FLAGS_AUTOCLEAR)
}

fn configure_a_free_one(file: &File, sector_bytes: u32, flags: u32) -> Result<(File, PathBuf), AttachError> {
    let control = open_control().map_err(AttachError::Unavailable)?;
    for _ in 0..ATTACH_TRIES {
        // SAFETY: this request takes no argument and returns a number.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
        if number < 0 {
            return Err(AttachError::Unavailable(SysError::last("finding a free loop device")));
        }
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let device = open(&path, 0).map_err(AttachError::Unavailable)?;
        match configure(&device, file, sector_bytes, flags) {
            Ok(()) => return Ok((device, path)),
            Err(e) if e.errno == libc::EBUSY => continue,
            Err(e) if matches!(e.errno, libc::ENOTTY | libc::EPERM | libc::EACCES) => {
                return Err(AttachError::Unavailable(e));
            }
            Err(e) => return Err(AttachError::Failed(e)),
        }
    }
    Err(AttachError::Unavailable(SysError::new(
        "configuring a free loop device before other processes do",
        libc::EBUSY,
    )))
}

fn configure(device: &File, file: &File, sector_bytes: u32, flags: u32) -> Result<(), SysError> {
    let info = LoopInfo64 { lo_flags: flags, ..LoopInfo64::default() };
    let fd = file.as_raw_fd().unsigned_abs();
    let config = LoopConfig { fd, block_size: sector_bytes, info, reserved: [0; 8] };
    // SAFETY: the argument points to a whole `loop_config`, which the kernel only reads.
    done(
        unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) },
        || "configuring a loop device",
    )
}

/// Reads the device's status, and detaches the file again if the driver does not use direct I/O.
fn verified(device: File, path: PathBuf) -> Result<AttachedLoop, AttachError> {
    let error = match status(&device) {
        Ok(Some(info)) if info.lo_flags & LO_FLAGS_DIRECT_IO != 0 => {
            let identity = LoopIdentity::of(&info);
            let backing_file = backing_file(&path).unwrap_or_default();
            return Ok(AttachedLoop { path, identity, backing_file });
        }
        Ok(_) => AttachError::NoDirectIo,
        Err(e) => AttachError::Failed(e),
    };
    let _ = clear(&device);
    Err(error)
}

/// Opens a device for reading and writing, with these flags of open(2) too.
pub fn open(path: &Path, flags: i32) -> Result<File, SysError> {
    let opened = OpenOptions::new().read(true).write(true).custom_flags(flags | libc::O_CLOEXEC).open(path);
    opened.map_err(|e| SysError::io(format!("opening {}", path.display()), &e))
}

fn clear(device: &File) -> Result<(), SysError> {
    // SAFETY: this request takes no argument.
    done(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CLR_FD, 0) }, || "detaching a loop device")
}

/// The device's status; `None` if no file is attached.
fn status(device: &File) -> Result<Option<LoopInfo64>, SysError> {
    let mut info = LoopInfo64::default();
    // SAFETY: the argument points to a whole `loop_info64`, which the kernel only writes.
    match unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, &raw mut info) } {
        0 => Ok(Some(info)),
        _ => match SysError::last("reading the status of a loop device") {
            e if e.errno == libc::ENXIO => Ok(None),
            e => Err(e),
        },
    }
}

/// The backing file of the loop device `path`; `None` if the device is free or does not exist.
pub fn identity(path: &Path) -> Result<Option<LoopIdentity>, SysError> {
    Ok(open_attached(path)?.map(|(_, identity)| identity))
}

/// Opens a loop device, with the identity of its backing file; `None` if the device is free or does not exist.
fn open_attached(path: &Path) -> Result<Option<(File, LoopIdentity)>, SysError> {
    // Open for reading: closing a device that was open for writing makes udev probe it again.
    match File::open(path).map_err(|e| SysError::io(format!("opening {}", path.display()), &e)) {
        Ok(device) => Ok(status(&device)?.map(|info| (device, LoopIdentity::of(&info)))),
        Err(e) if matches!(e.errno, libc::ENOENT | libc::ENXIO) => Ok(None),
        Err(e) => Err(e),
    }
}

/// The backing file of an open block device, with its path as sysfs shows it; `None` if the device is neither a loop
/// device nor a partition of one. The path is that of the time of attaching: compare the file that is there now with
/// the identity.
pub fn backing_of(device: &File) -> Result<Option<(LoopIdentity, PathBuf)>, SysError> {
    use std::os::unix::fs::MetadataExt;
    let metadata = device.metadata().map_err(|e| SysError::io("looking at a block device", &e))?;
    let number = DeviceNumber::from_dev_t(metadata.rdev());
    let here = format!("/sys/dev/block/{number}");
    let name = ["loop", "../loop"].map(|dir| format!("{here}/{dir}/backing_file"));
    let Some(mut path) = name.iter().find_map(|name| std::fs::read(name).ok()) else { return Ok(None) };
    path.truncate(path.trim_ascii_end().len());
    Ok(status(device)?.map(|info| (LoopIdentity::of(&info), OsString::from_vec(path).into())))
}

/// Detaches the loop device `path` if its backing file is `expected`.
///
/// With [`Detach::IfUnclaimed`], one descriptor claims and detaches the device, so no process can mount it in between.
/// The driver writes dirty cached pages first: if this process serves the backing file, another thread must serve it,
/// or its FUSE connection must be aborted, for this call to return.
pub fn detach_if(path: &Path, expected: LoopIdentity, how: Detach) -> Result<Detached, SysError> {
    let device = match open_if(path, expected, how == Detach::IfUnclaimed)? {
        Ok(device) => device,
        Err(refused) => return Ok(refused),
    };
    clear(&device)?;
    drop(device);
    Ok(if identity(path)? == Some(expected) { Detached::WhenClosed } else { Detached::Now })
}

/// Opens the loop device `path` if its backing file is `expected`. With `claim`, no process can mount it or swap to it
/// until the file is closed. Otherwise returns [`Detached::NotOurs`], or [`Detached::Claimed`].
///
/// Only a device with the expected backing file is claimed, not for a moment another one, whose owner could not mount
/// it then: the backing file stays attached while any file of the device is open, and this opens it twice.
pub fn open_if(path: &Path, expected: LoopIdentity, claim: bool) -> Result<Result<File, Detached>, SysError> {
    let _attached = match open_attached(path)? {
        Some((device, found)) if found == expected => device,
        _ => return Ok(Err(Detached::NotOurs)),
    };
    match open(path, if claim { libc::O_EXCL } else { 0 }) {
        Ok(device) => Ok(Ok(device)),
        Err(e) if e.errno == libc::EBUSY => Ok(Err(Detached::Claimed)),
        Err(e) => Err(e),
    }
}

/// Gives an open loop device the size that its backing file has now.
pub fn set_capacity(device: &File) -> Result<(), SysError> {
    // SAFETY: this request takes no argument.
    done(
        unsafe { libc::ioctl(device.as_raw_fd(), LOOP_SET_CAPACITY, 0) },
        || "changing the size of a loop device",
    )
}

/// The size that a loop device has, bytes. Does not open it.
pub fn len_bytes(path: &Path) -> Result<u64, SysError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let file = format!("/sys/block/{name}/size");
    let sectors = std::fs::read_to_string(&file).map_err(|e| SysError::io(format!("reading {file}"), &e))?;
    let sectors = sectors.trim().parse::<u64>();
    Ok(512 * sectors.map_err(|_| SysError::new(format!("reading {file}"), libc::EINVAL))?)
}

/// All loop devices with a backing file.
///
/// Opens each of them for a moment. Devices whose status cannot be read are left out.
pub fn attached() -> Result<Vec<AttachedLoop>, SysError> {
    const DIR: &str = "/sys/block";
    let entries = std::fs::read_dir(DIR).map_err(|e| SysError::io(format!("reading {DIR}"), &e))?;
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let path = Path::new("/dev").join(entry.file_name());
        let Some(backing_file) = backing_file(&path) else { continue };
        if let Ok(Some(identity)) = identity(&path) {
            found.push(AttachedLoop { path, identity, backing_file });
        }
    }
    Ok(found)
}

fn backing_file(path: &Path) -> Option<OsString> {
    let name = path.file_name()?.to_str()?;
    let mut bytes = std::fs::read(format!("/sys/block/{name}/loop/backing_file")).ok()?;
    bytes.truncate(bytes.trim_ascii_end().len());
    Some(OsString::from_vec(bytes))
}

/// Sets one attribute of the device's request queue, such as `read_ahead_kb`.
pub fn set_queue(path: &Path, attribute: &str, value: u64) -> Result<(), SysError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let file = format!("/sys/block/{name}/queue/{attribute}");
    std::fs::write(&file, value.to_string()).map_err(|e| SysError::io(format!("setting {file}"), &e))
}
