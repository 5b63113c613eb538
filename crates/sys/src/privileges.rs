//! Dropping privileges that a server no longer needs.
//!
//! Capabilities and no_new_privs belong to a thread, and threads that it starts later inherit them; so the caller drops
//! them before it starts other threads. Dropped privileges cannot be regained.

use crate::{SysError, failed};
use rustix::process::{DumpableBehavior, Resource, Rlimit};
pub use rustix::thread::CapabilitySet;
use rustix::thread::CapabilitySets;

/// Turns off core dumps of this process, and keeps other processes of the same user from debugging it, so that page
/// data stays private.
pub fn forbid_dumps() -> Result<(), SysError> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(failed("making the process not dumpable"))?;
    rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })
        .map_err(failed("setting the core file limit to 0"))
}

/// Sets no_new_privs: programs that this thread executes gain no rights from set-user-id bits or file capabilities.
pub fn set_no_new_privs() -> Result<(), SysError> {
    rustix::thread::set_no_new_privs(true).map_err(failed("setting no_new_privs"))
}

/// Whether no_new_privs is set for the calling thread. `false` if that is unknown.
pub fn has_no_new_privs() -> bool {
    rustix::thread::no_new_privs().unwrap_or(false)
}

/// Whether the calling thread has a capability, in its user namespace.
pub fn has_capability(capability: CapabilitySet) -> bool {
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(capability))
}

/// The capabilities that the loop export needs during its setup, for mounting, raising limits and priorities, and
/// locking memory.
pub const SET_UP: CapabilitySet =
    CapabilitySet::SYS_ADMIN.union(CapabilitySet::SYS_RESOURCE).union(CapabilitySet::IPC_LOCK);

/// Drops the capabilities of the calling thread that are not in `keep`.
///
/// Empties the inheritable and ambient sets. The bounding set stays: with no_new_privs it grants nothing.
pub fn drop_capabilities_except(keep: CapabilitySet) -> Result<(), SysError> {
    let failed = failed("dropping capabilities");
    let now = rustix::thread::capabilities(None).map_err(failed)?;
    let sets = CapabilitySets {
        effective: now.effective & keep,
        permitted: now.permitted & keep,
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, sets).map_err(failed)?;
    match rustix::thread::clear_ambient_capability_set() {
        // EINVAL: the kernel has no ambient capabilities.
        Ok(()) | Err(rustix::io::Errno::INVAL) => Ok(()),
        Err(e) => Err(failed(e)),
    }
}

/// Drops every capability of the calling thread.
pub fn drop_capabilities() -> Result<(), SysError> {
    drop_capabilities_except(CapabilitySet::empty())
}

/// Sets the umask so that only this process's user can access new files.
pub fn set_private_umask() {
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_can_drop_all_its_capabilities() {
        // In a separate thread, so that other tests keep their capabilities.
        std::thread::spawn(|| {
            drop_capabilities_except(SET_UP).unwrap();
            let remaining = rustix::thread::capabilities(None).unwrap();
            assert!(SET_UP.contains(remaining.permitted));
            drop_capabilities().unwrap();
            let left = rustix::thread::capabilities(None).unwrap();
            assert_eq!(left.permitted | left.effective | left.inheritable, CapabilitySet::empty());
            set_no_new_privs().unwrap();
            assert!(rustix::thread::no_new_privs().unwrap());
        })
        .join()
        .unwrap();
    }
}
