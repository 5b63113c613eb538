//! [`RegionError::hint`], what to allow a process whose region was not made because of one of its limits.
//!
//! The bindings for C and for Python add it to their messages. It goes by the number of the error, not by the step that
//! failed: a thread needs a descriptor, memory and a place in a table of tasks, and each may be what is missing.

use crate::error::RegionError;
use crate::store::{SourceError, StoreError};
use pagefold_page::size::Human;
use pagefold_sys::uffd::OpenError;
use rustix::process::{Resource, getrlimit};

impl RegionError {
    /// Returns the error number of the system call that failed, if one did and this is known.
    pub fn errno(&self) -> Option<i32> {
        match self {
            RegionError::Store(StoreError::SetUp(SourceError::NoMemory(error)))
            | RegionError::Userfaultfd(OpenError::Failed(error))
            | RegionError::System(error) => Some(error.errno),
            RegionError::Thread(error) => error.raw_os_error(),
            _ => None,
        }
    }

    /// Returns which limit of the process or the system is to be raised, if one is the likely reason: the end of a
    /// sentence, without a full stop.
    pub fn hint(&self) -> Option<String> {
        match self.errno()? {
            libc::EMFILE => Some(
                "a region has some file descriptors: allow this process more of them (RLIMIT_NOFILE, ulimit -n)".into(),
            ),
            libc::ENFILE => {
                Some("the system has as many open files as it may: allow more of them (fs.file-max)".into())
            }
            libc::EAGAIN if matches!(self, RegionError::Thread(_)) => Some(
                "a region has some threads: allow more of them (RLIMIT_NPROC, ulimit -u; pids.max of the control group)"
                    .to_owned()
                    + &address_space().map(|text| format!("; or {text}")).unwrap_or_default(),
            ),
            libc::ENOMEM => address_space(),
            _ => None,
        }
    }
}

/// Returns what to do about the limit on the address space, if there is one.
fn address_space() -> Option<String> {
    let limit = getrlimit(Resource::As).current?;
    Some(format!(
        "the address space of this process is limited to {} (RLIMIT_AS, ulimit -v). A region reserves addresses, not \
         memory: raise that limit, or make a region with a smaller size or capacity",
        Human(limit)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagefold_sys::SysError;
    use std::io;

    #[test]
    fn the_hint_goes_by_the_number_of_the_error() {
        let thread = |errno| RegionError::Thread(io::Error::from_raw_os_error(errno));
        let system = |errno| RegionError::System(SysError::new("doing it", errno));
        let has = |error: RegionError, word: &str| error.hint().is_some_and(|text| text.contains(word));
        assert!(has(thread(libc::EAGAIN), "RLIMIT_NPROC"));
        for error in [thread(libc::EMFILE), system(libc::EMFILE)] {
            assert!(has(error, "RLIMIT_NOFILE"));
        }
        assert!(has(system(libc::ENFILE), "fs.file-max"));
        assert_eq!(system(libc::EINVAL).hint(), None);
        assert_eq!(thread(libc::EPERM).hint(), None);
        assert_eq!(system(libc::EAGAIN).hint(), None);
        assert_eq!(RegionError::NotAFile.hint(), None);
        let set_up = SourceError::NoMemory(SysError::new("reserving", libc::ENOMEM));
        assert_eq!(RegionError::Store(StoreError::SetUp(set_up)).errno(), Some(libc::ENOMEM));
    }
}
