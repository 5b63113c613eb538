//! Confining servers and commands: which files and system calls each kind keeps.
//!
//! [`pagefold_sys::confine`] applies the layers. `SECURITY.md` says what is promised for each kind.

use pagefold_control::error::Result;
use pagefold_control::report::ConfinementReport;
use pagefold_sys::confine::{self, InForce, Wall, owner_uid};
use pagefold_sys::{injected_panic, privileges};
use std::path::PathBuf;

/// The environment variable that turns confinement off, to debug a server: `PAGEFOLD_CONFINEMENT=off`.
const VARIABLE: &str = "PAGEFOLD_CONFINEMENT";
/// Files about the machine: its CPUs, the policy of memory that glibc's malloc reads, and whether FUSE has rings.
const READABLE: [&str; 3] =
    ["/sys/devices/system/cpu", "/proc/sys/vm/overcommit_memory", "/sys/module/fuse/parameters/enable_uring"];
/// ioctl(2): `FUSE_DEV_IOC_CLONE`.
const CLONE_CHANNEL: u64 = 0x8004_E500;
/// ioctl(2): `BLKDISCARD`, on a backing.
const BLKDISCARD: u64 = 0x1277;
/// Files about the machine that writeback and the reserve of a disk read: its pressure and available memory.
const READABLE_BY_DISKS: [&str; 2] = ["/proc/pressure", "/proc/meminfo"];

/// The kind of a process that parses foreign bytes.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// That of a mounted image.
    Image {
        /// Whether it asks servers, and so needs files with names, certificates and credentials, and programs.
        is_remote: bool,
        /// Whether requests come through io_uring.
        rings: bool,
    },
    /// That of a disk.
    Disk {
        /// Whether requests, or I/O to a backing, may use io_uring.
        rings: bool,
    },
    /// A command that reads an image and prints.
    Printing {
        /// Whether it asks servers.
        is_remote: bool,
    },
}

/// Confines the calling process, which has one thread, as one of this kind.
pub fn confine(kind: Kind) -> Result<ConfinementReport> {
    let (is_remote, rings) = match kind {
        Kind::Image { is_remote, rings } => (is_remote, rings),
        Kind::Disk { rings } => (false, rings),
        Kind::Printing { is_remote } => (is_remote, false),
    };
    let why = match std::env::var_os(VARIABLE).is_some_and(|value| value == "off") {
        true => Some(format!("{VARIABLE}=off turns it off")),
        false if is_remote => Some("a server that asks other servers is not confined yet".into()),
        false => None,
    };
    if let Some(why) = why {
        if let Kind::Image { .. } | Kind::Disk { .. } = kind {
            privileges::drop_capabilities()?;
            privileges::forbid_dumps()?;
            if owner_uid() == 0 {
                // Programs that users name for logins may gain privileges.
                privileges::set_no_new_privs()?;
            }
        }
        return Ok(ConfinementReport { missing: vec![why], ..ConfinementReport::default() });
    }
    let injected = injected_panic::file().and_then(|file| file.parent().map(Into::into));
    let of_disk = match kind {
        Kind::Disk { .. } => READABLE_BY_DISKS.map(PathBuf::from).to_vec(),
        _ => Vec::new(),
    };
    let wall = Wall {
        changes_user: injected.is_none(),
        readable: READABLE.map(Into::into).into_iter().chain(of_disk).collect(),
        writable: injected.into_iter().collect(),
        has_rings: rings,
        ioctls: vec![CLONE_CHANNEL, BLKDISCARD],
    };
    let InForce { user, files_are_confined, scopes_are_confined, calls_are_filtered, missing } =
        confine::confine(&wall)?;
    Ok(ConfinementReport {
        user,
        files: files_are_confined,
        signals: scopes_are_confined,
        system_calls: calls_are_filtered,
        missing,
    })
}
