//! [`check_commands`]: whether the kernel takes FUSE commands through io_uring from this process.
//!
//! A security module, such as SELinux, Smack or one in BPF, may allow io_uring and forbid its commands to devices. A mount
//! that has negotiated rings cannot return to `/dev/fuse`, so the refusal has to show before the negotiation. A
//! registration of an entry shows it: the kernel asks the security modules first, and otherwise answers with EAGAIN as
//! long as the mount is not negotiated. This module does not find out whether a command is allowed later: a policy may
//! change, and then the registration or the ring fails.

use super::{FuseRing, PAGE, STOP, StopEvent};
use crate::SysError;
use io_uring::types::{SubmitArgs, Timespec};
use std::fs::File;
use std::io;

/// How long the answer may take. The kernel answers at once; one that waited for the negotiation would wait forever.
const ANSWER_SECONDS: u64 = 1;

const WHAT: &str =
    "checking that FUSE commands through io_uring are allowed (a security module may forbid them)";

/// Checks that commands to `channel`, whose mount is not negotiated yet, are allowed.
///
/// Fails if the kernel refuses them, does not know them, or does not answer within a second. The kernel may start a worker
/// for the calling thread, which ends soon after that thread.
pub fn check_commands(channel: &File) -> Result<(), SysError> {
    let failed = |e: io::Error| SysError::io(WHAT, &e);
    let stop = StopEvent::new()?;
    let mut ring = FuseRing::new(channel, 0, 1, PAGE, &stop)?;
    let command = ring.registration(0);
    ring.push(command).map_err(failed)?;
    let limit = Timespec::new().sec(ANSWER_SECONDS);
    match ring.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&limit)) {
        Err(e) if e.raw_os_error() != Some(libc::ETIME) => return Err(failed(e)),
        _ => {}
    }
    let answer = ring.ring.completion().find(|done| done.user_data() != STOP).map(|done| -done.result());
    match answer {
        None => Err(SysError::new(WHAT, libc::ETIMEDOUT)),
        Some(errno @ (libc::EPERM | libc::EACCES | libc::EOPNOTSUPP | libc::ENOSYS)) => {
            Err(SysError::new(WHAT, errno))
        }
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    /// Neither an ordinary file nor a channel without a mount takes commands. Mounts that take them are in the tests of
    /// exports and images over rings.
    #[test]
    fn files_that_take_no_commands_are_found_out() {
        let begun = Instant::now();
        let Ok(channel) = crate::fusedev::open() else {
            return pagefold_testkit::skipped!("files_that_take_no_commands_are_found_out: no /dev/fuse");
        };
        if let Err(e) = FuseRing::new(&channel, 0, 1, PAGE, &StopEvent::new().unwrap()) {
            return pagefold_testkit::skipped!("files_that_take_no_commands_are_found_out: {e}");
        }
        let file = tempfile::tempfile().unwrap();
        let errno = |file: &File| check_commands(file).unwrap_err().errno;
        assert_eq!((errno(&file), errno(&channel)), (libc::EOPNOTSUPP, libc::EPERM));
        assert!(begun.elapsed().as_secs() < ANSWER_SECONDS);
        let error = check_commands(&file).unwrap_err().to_string();
        assert!(error.contains("a security module may forbid them"), "{error}");
    }
}
