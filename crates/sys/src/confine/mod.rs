//! Confining a process that parses foreign bytes: a user that owns nothing, no capabilities, no files, few system calls.
//!
//! The boundary is the process: its rights are those of all its threads. So [`confine`] is called while there is one thread,
//! after everything that the process needs was opened, and before it parses the first foreign byte. Work that needs a right
//! later is done by another process, which parses nothing.
//!
//! | module | layer |
//! |---|---|
//! | `identity` | a user and group that own nothing, and no capabilities |
//! | `root` | of a process that creates files: a root directory in which it creates them |
//! | `files` | landlock: which files can be opened; no signals, TCP ports and abstract sockets of others |
//! | `calls` | seccomp: which system calls exist, and which kill the process |
//!
//! Each layer is applied as far as the kernel has it: [`InForce`] says what is in force, and why something is not. A layer
//! that is in force cannot be taken back. References: landlock(7), seccomp(2), credentials(7).

mod calls;
mod files;
mod identity;
mod root;

use crate::fork;
use crate::privileges::{self, CapabilitySet};
use crate::{SysError, failed};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether this process was root's before it was confined.
static IS_ROOTS: AtomicBool = AtomicBool::new(false);

/// The things that a process keeps although it is confined.
#[derive(Debug, Clone, Default)]
pub struct Wall {
    /// Whether a process of root becomes another user. Then it can open and signal nothing that is root's.
    pub changes_user: bool,
    /// Files that it may read, and directories with all that is in them.
    pub readable: Vec<PathBuf>,
    /// The same, for reading, writing, creating and removing.
    pub writable: Vec<PathBuf>,
    /// Whether it may make io_uring instances. Filters of system calls do not see the requests of these.
    pub has_rings: bool,
    /// Whether it asks servers. Then it may have connections, and the libraries that look up names may make other calls than
    /// those that only an attacker makes.
    pub asks_servers: bool,
    /// Numbers of ioctl(2) that it needs, beside the usual ones.
    pub ioctls: Vec<u64>,
    /// The files that it creates. It stays the user who shall own them.
    pub creates: Option<Creates>,
}

/// The files that a confined process creates. The process holds no directory open when it is confined.
#[derive(Debug, Clone)]
pub struct Creates {
    /// The directory in which it creates them, whose path is [`path_of`] afterwards.
    pub folder: PathBuf,
    /// Whether root's process creates devices, set-id bits, and attributes security.* and trusted.*.
    pub privileged: bool,
}

impl Creates {
    /// The capabilities that a process of root needs, to create files that belong to others.
    fn capabilities(&self) -> CapabilitySet {
        let owners = CapabilitySet::CHOWN | CapabilitySet::FOWNER | CapabilitySet::DAC_OVERRIDE;
        let privileged =
            CapabilitySet::FSETID | CapabilitySet::MKNOD | CapabilitySet::SETFCAP | CapabilitySet::SYS_ADMIN;
        if self.privileged { owners | privileged } else { owners }
    }
}

/// The layers in force in a confined process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InForce {
    /// The user that the process has become; `None` if it is that of its caller.
    pub user: Option<u32>,
    /// Whether files can be opened that the [`Wall`] does not name.
    pub files_are_confined: bool,
    /// Whether signals and abstract sockets are confined.
    pub scopes_are_confined: bool,
    /// Whether system calls are filtered.
    pub calls_are_filtered: bool,
    /// Why layers are not in force, a clause for each.
    pub missing: Vec<String>,
}

/// Confines the calling process, which has one thread. Fails if it has more, with EBUSY, or if it cannot give up its capabilities
/// or the right to gain new ones.
pub fn confine(wall: &Wall) -> Result<InForce, SysError> {
    fork::has_one_thread("confining this process")?;
    let mut in_force = InForce::default();
    let is_root = rustix::process::geteuid().is_root();
    if wall.changes_user && is_root {
        match identity::become_nobody() {
            Ok(user) => {
                in_force.user = Some(user);
                IS_ROOTS.store(true, Ordering::Relaxed);
            }
            Err(why) => in_force.missing.push(why),
        }
    }
    if let Some(creates) = &wall.creates
        && let Err(why) = root::enter(&creates.folder)
    {
        in_force.missing.push(why);
    }
    let kept = wall.creates.as_ref().map_or(CapabilitySet::empty(), Creates::capabilities);
    privileges::drop_capabilities_except(kept)?;
    privileges::set_no_new_privs()?;
    // A change of the user resets it.
    privileges::forbid_dumps()?;
    match files::confine(wall) {
        Ok(scopes) => (in_force.files_are_confined, in_force.scopes_are_confined) = (true, scopes),
        Err(why) => in_force.missing.push(why),
    }
    if in_force.files_are_confined && !in_force.scopes_are_confined {
        in_force.missing.push("signals and abstract sockets are not confined: that needs Linux 6.12".into());
    }
    match calls::filter(wall) {
        Ok(()) => in_force.calls_are_filtered = true,
        Err(why) => in_force.missing.push(why),
    }
    Ok(in_force)
}

/// The path in this process of the directory that [`Creates`] names.
pub fn path_of(folder: &Path) -> &Path {
    root::path_of(folder)
}

/// The user for whom this process works: its effective user, before [`confine`] changed that.
pub fn owner_uid() -> u32 {
    match IS_ROOTS.load(Ordering::Relaxed) {
        true => 0,
        false => rustix::process::geteuid().as_raw(),
    }
}

/// The id of the calling process as the argument of system calls.
fn own_pid() -> u64 {
    u64::from(rustix::process::getpid().as_raw_nonzero().get().unsigned_abs())
}

/// Sets the real, effective and saved user and group of the calling process, which has one thread.
fn set_ids(id: u32) -> Result<(), SysError> {
    use rustix::process::{Gid, Uid};
    use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
    let (user, group) = (Uid::from_raw(id), Gid::from_raw(id));
    set_thread_groups(&[]).map_err(failed("dropping the supplementary groups"))?;
    set_thread_res_gid(group, group, group).map_err(failed("changing the group"))?;
    set_thread_res_uid(user, user, user).map_err(failed("changing the user"))
}
