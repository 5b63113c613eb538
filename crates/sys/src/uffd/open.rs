//! Opening a userfaultfd context; if the system refuses, the error says which permission would allow it.
//!
//! There are two ways to open a context: the system call, and the device `/dev/userfaultfd` (Linux 6.1). Every process
//! may make the call if the context serves only faults of user mode (Linux 5.11); otherwise it needs a privilege. The
//! device is controlled by its file permissions alone. Containers often forbid the call by seccomp.

use super::{Uffd, abi};
use crate::{Errno, SysError};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The device that opens contexts.
pub const DEVICE: &str = "/dev/userfaultfd";

/// A feature of userfaultfd that not every kernel has. Reference: UFFDIO_API(2const).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// Write protection of anonymous memory (Linux 5.7).
    PagefaultFlagWp,
    /// A fault becomes SIGBUS in the thread that faulted (Linux 4.14).
    Sigbus,
    /// Messages contain the thread id (Linux 4.14).
    ThreadId,
    /// Messages contain the exact address, not only the page (Linux 5.18).
    ExactAddress,
    /// Accesses to a page can be made to fail with SIGBUS (Linux 6.6).
    Poison,
    /// Pages can be moved (Linux 6.8).
    Move,
}

impl Feature {
    /// `UFFD_FEATURE_*` of `include/uapi/linux/userfaultfd.h`, and the feature for messages.
    const fn facts(self) -> (u64, &'static str) {
        match self {
            Feature::PagefaultFlagWp => (1 << 0, "write protection (PAGEFAULT_FLAG_WP, Linux 5.7)"),
            Feature::Sigbus => (1 << 7, "faults as signals (SIGBUS, Linux 4.14)"),
            Feature::ThreadId => (1 << 8, "thread numbers (THREAD_ID, Linux 4.14)"),
            Feature::ExactAddress => (1 << 11, "exact addresses (EXACT_ADDRESS, Linux 5.18)"),
            Feature::Poison => (1 << 14, "poisoned pages (POISON, Linux 6.6)"),
            Feature::Move => (1 << 16, "moving of pages (MOVE, Linux 6.8)"),
        }
    }

    const fn bit(self) -> u64 {
        self.facts().0
    }
}

impl std::fmt::Display for Feature {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.facts().1)
    }
}

/// The features of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features(u64);

impl Features {
    /// Whether the kernel has this feature.
    pub fn has(self, feature: Feature) -> bool {
        self.0 & feature.bit() != 0
    }
}

/// How to open a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UffdOptions {
    /// A fault becomes SIGBUS with its address in the thread that faulted, and no message is sent. System calls that
    /// access a missing page fail with EFAULT.
    pub sigbus: bool,
    /// The context also serves faults of the kernel, in system calls that access the memory. Needs a privilege.
    pub kernel_faults: bool,
    /// Faults have the address of the access, not only of its page.
    pub exact_address: bool,
}

impl UffdOptions {
    fn needed(self) -> impl Iterator<Item = Feature> {
        let sigbus = self.sigbus.then_some(Feature::Sigbus);
        let exact_address = self.exact_address.then_some(Feature::ExactAddress);
        sigbus.into_iter().chain(exact_address)
    }

    fn flags(self) -> i32 {
        let mode = if self.kernel_faults { 0 } else { abi::UFFD_USER_MODE_ONLY };
        libc::O_CLOEXEC | libc::O_NONBLOCK | mode
    }
}

/// Why no context could be opened, and which permission or kernel would allow it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The kernel was built without userfaultfd, or seccomp hides the call.
    #[error(
        "this kernel has no userfaultfd: it was built without CONFIG_USERFAULTFD, or seccomp hides the call"
    )]
    Absent,
    /// The kernel cannot restrict a context to faults of user mode.
    #[error("this kernel's userfaultfd cannot be restricted to faults of user mode; Linux 5.11 can")]
    NoUserModeOnly,
    /// Not even a context for faults of user mode is allowed.
    #[error(
        "userfaultfd is not allowed here: the system call says {call}, {DEVICE} says {device}; to allow it, \
         let the container's seccomp profile pass the system call userfaultfd, or give read and write \
         permission on {DEVICE}"
    )]
    Forbidden {
        /// The error of the system call.
        call: Errno,
        /// The error of the device.
        device: Errno,
    },
    /// A context for faults of the kernel needs a privilege that this process does not have.
    #[error(
        "userfaultfd for faults of the kernel is not allowed here: the system call says {call}, {DEVICE} \
         says {device}; any of these allows it: the capability CAP_SYS_PTRACE; \
         vm.unprivileged_userfaultfd=1; read and write permission on {DEVICE}; the first two need a \
         container's seccomp profile to pass the system call userfaultfd"
    )]
    KernelFaultsForbidden {
        /// The error of the system call.
        call: Errno,
        /// The error of the device.
        device: Errno,
    },
    /// The kernel is too old, or was built without this feature.
    #[error("this kernel's userfaultfd lacks {0}")]
    Lacks(Feature),
    /// A system call failed for another reason, such as too many open descriptors.
    #[error(transparent)]
    Failed(#[from] SysError),
}

/// The features of this kernel's userfaultfd. Opens a context for faults of user mode and closes it again.
pub fn kernel_features() -> Result<Features, OpenError> {
    negotiate(&context(UffdOptions::default())?, 0)
        .map_err(|e| failed("negotiating the userfaultfd interface", e))
}

impl Uffd {
    /// Opens a new context. It serves only faults of user mode, unless `kernel_faults` is set, which needs a privilege;
    /// the error says which.
    ///
    /// Tries the system call first, then [`DEVICE`]. The descriptor is close-on-exec and nonblocking.
    pub fn open(open: &UffdOptions) -> Result<Uffd, OpenError> {
        let open = *open;
        let fd = context(open)?;
        match negotiate(&fd, open.needed().fold(0, |bits, feature| bits | feature.bit())) {
            Ok(features) => Ok(Uffd { fd, features }),
            // The kernel does not say which of the features it lacks.
            Err(Errno(libc::EINVAL)) => {
                let features = kernel_features()?;
                match open.needed().find(|feature| !features.has(*feature)) {
                    Some(feature) => Err(OpenError::Lacks(feature)),
                    None => Err(failed("negotiating the userfaultfd interface", Errno(libc::EINVAL))),
                }
            }
            Err(e) => Err(failed("negotiating the userfaultfd interface", e)),
        }
    }
}

fn failed(what: &str, Errno(errno): Errno) -> OpenError {
    OpenError::Failed(SysError::new(what, errno))
}

/// Opens a context by the system call or, if that fails, by the device. The interface is not negotiated yet.
fn context(open: UffdOptions) -> Result<OwnedFd, OpenError> {
    let call = match by_call(open.flags()) {
        Ok(fd) => return Ok(fd),
        Err(e) => e,
    };
    let device = match by_device(open.flags()) {
        Ok(fd) => return Ok(fd),
        Err(e) => e,
    };
    refusal(open, call, device)
}

/// Chooses the error from the error numbers of the system call and of the device.
fn refusal<T>(open: UffdOptions, call: Errno, device: Errno) -> Result<T, OpenError> {
    Err(match (call.0, device.0) {
        (libc::EINVAL, _) if !open.kernel_faults => OpenError::NoUserModeOnly,
        (libc::ENOSYS, libc::ENOENT) => OpenError::Absent,
        (libc::EPERM | libc::EACCES | libc::ENOSYS, libc::ENOENT | libc::EACCES | libc::EPERM) => {
            match open.kernel_faults {
                true => OpenError::KernelFaultsForbidden { call, device },
                false => OpenError::Forbidden { call, device },
            }
        }
        (libc::EPERM | libc::EACCES | libc::ENOSYS, _) => failed(&format!("opening {DEVICE}"), device),
        _ => failed("opening a userfaultfd", call),
    })
}

fn by_call(flags: i32) -> Result<OwnedFd, Errno> {
    // SAFETY: the call takes flags only.
    owned(unsafe { libc::syscall(libc::SYS_userfaultfd, flags) })
}

fn by_device(flags: i32) -> Result<OwnedFd, Errno> {
    use rustix::fs::{Mode, OFlags};
    let device = rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| Errno(e.raw_os_error()))?;
    // SAFETY: this request takes flags only.
    owned(unsafe { libc::ioctl(device.as_raw_fd(), abi::USERFAULTFD_IOC_NEW, flags) }.into())
}

/// Converts the result of a call that makes a descriptor.
fn owned(returned: libc::c_long) -> Result<OwnedFd, Errno> {
    match i32::try_from(returned) {
        // SAFETY: the kernel has just made this descriptor, and nothing else owns it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(Errno::last()),
    }
}

/// Turns features on (UFFDIO_API), which is possible once per context. Returns the features that the kernel has.
fn negotiate(fd: &OwnedFd, features: u64) -> Result<Features, Errno> {
    let mut api = abi::Api { api: abi::UFFD_API, features, ioctls: 0 };
    // SAFETY: the argument points to a whole `uffdio_api`, which the kernel reads and writes.
    match unsafe { libc::ioctl(fd.as_raw_fd(), abi::UFFDIO_API, &raw mut api) } {
        0 => Ok(Features(api.features)),
        _ => Err(Errno::last()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kernel_faults: bool, call: i32, device: i32) -> String {
        let open = UffdOptions { kernel_faults, ..UffdOptions::default() };
        refusal::<()>(open, Errno(call), Errno(device)).unwrap_err().to_string()
    }

    #[test]
    fn errors_name_the_permission_that_would_help() {
        let privileged = message(true, libc::EPERM, libc::EACCES);
        for way in ["CAP_SYS_PTRACE", "vm.unprivileged_userfaultfd=1", DEVICE, "seccomp"] {
            assert!(privileged.contains(way), "{privileged}");
        }
        let plain = message(false, libc::EPERM, libc::ENOENT);
        assert!(plain.contains("seccomp") && plain.contains(DEVICE) && !plain.contains("CAP_"), "{plain}");
        assert!(message(false, libc::ENOSYS, libc::ENOENT).contains("CONFIG_USERFAULTFD"));
        assert!(message(false, libc::EINVAL, libc::ENOENT).contains("5.11"));
        assert!(message(true, libc::EMFILE, libc::EMFILE).contains("Too many open files"));
        assert!(message(false, libc::EPERM, libc::EMFILE).contains("Too many open files"));
    }

    #[test]
    fn the_error_of_an_old_kernel_names_the_missing_feature() {
        assert!(OpenError::Lacks(Feature::Move).to_string().contains("MOVE, Linux 6.8"));
    }
}
