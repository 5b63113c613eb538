//! Giving up what a server no longer needs.
//!
//! Capabilities and no_new_privs belong to a thread and are inherited by threads
//! it starts later, so both are called before there are others. Nothing here can
//! be taken back.

use crate::SysError;
use rustix::process::{DumpableBehavior, Resource, Rlimit};
pub use rustix::thread::CapabilitySet;
use rustix::thread::CapabilitySets;

/// Keeps page data out of core dumps and away from debuggers of other processes of the same user.
pub fn forbid_dumps() -> Result<(), SysError> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|e| SysError::new("making the process not dumpable", e.raw_os_error()))?;
    rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })
        .map_err(|e| SysError::new("setting the core file limit to 0", e.raw_os_error()))
}

/// Makes sure that nothing this thread executes gains rights from a file (set-user-id programs).
pub fn forbid_new() -> Result<(), SysError> {
    rustix::thread::set_no_new_privs(true)
        .map_err(|e| SysError::new("setting no_new_privs", e.raw_os_error()))
}

/// The capabilities the loop door needs while it is being set up: mounting, then raising limits
/// and priorities, then locking memory.
pub const SET_UP: CapabilitySet =
    CapabilitySet::SYS_ADMIN.union(CapabilitySet::SYS_RESOURCE).union(CapabilitySet::IPC_LOCK);

/// Drops every capability of the calling thread except those in `keep` that it has.
///
/// The inheritable and ambient sets end empty. The bounding set is left alone: with no_new_privs
/// set it gives nothing.
pub fn drop_capabilities_except(keep: CapabilitySet) -> Result<(), SysError> {
    let failed = |e: rustix::io::Errno| SysError::new("dropping capabilities", e.raw_os_error());
    let now = rustix::thread::capabilities(None).map_err(failed)?;
    let sets = CapabilitySets {
        effective: now.effective & keep,
        permitted: now.permitted & keep,
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, sets).map_err(failed)?;
    match rustix::thread::clear_ambient_capability_set() {
        // A kernel without ambient capabilities has none to clear.
        Ok(()) | Err(rustix::io::Errno::INVAL) => Ok(()),
        Err(e) => Err(failed(e)),
    }
}

/// Drops every capability of the calling thread.
pub fn drop_capabilities() -> Result<(), SysError> {
    drop_capabilities_except(CapabilitySet::empty())
}

/// Files this process makes from now on are for its user alone.
pub fn private_files() {
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_can_drop_all_it_has() {
        // In a thread of its own: the other tests keep their rights.
        std::thread::spawn(|| {
            drop_capabilities_except(SET_UP).unwrap();
            let kept = rustix::thread::capabilities(None).unwrap();
            assert!(SET_UP.contains(kept.permitted));
            drop_capabilities().unwrap();
            let left = rustix::thread::capabilities(None).unwrap();
            assert_eq!(left.permitted | left.effective | left.inheritable, CapabilitySet::empty());
            forbid_new().unwrap();
            assert!(rustix::thread::no_new_privs().unwrap());
        })
        .join()
        .unwrap();
    }
}
