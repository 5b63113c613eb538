//! Confining servers and commands: which files and system calls each kind keeps.
//!
//! [`pagefold_sys::confine`] applies the layers. `SECURITY.md` says what is promised for each kind.

use pagefold_control::error::Result;
use pagefold_control::report::ConfinementReport;
use pagefold_sys::confine::{self, Creates, InForce, Wall, owner_uid};
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
#[derive(Debug, Clone)]
pub enum Kind {
    /// That of a mounted image.
    Image {
        /// Whether requests come through io_uring.
        rings: bool,
    },
    /// That of a disk.
    Disk {
        /// Whether requests, or I/O to a backing, may use io_uring.
        rings: bool,
    },
    /// The process that serves the files of zram.
    Tree,
    /// A command that reads an image or an archive, and prints, or writes to files that are open.
    Printing,
    /// A command that reads an image and creates files.
    Creating(Creates),
    /// A fetcher that runs no programs.
    Fetcher {
        /// The folder of the cache on disk.
        cache: Option<PathBuf>,
    },
}

/// Confines the calling process, which has one thread, as one of this kind.
pub fn confine(kind: Kind) -> Result<ConfinementReport> {
    let rings = matches!(kind, Kind::Image { rings: true } | Kind::Disk { rings: true });
    if std::env::var_os(VARIABLE).is_some_and(|value| value == "off") {
        if let Kind::Image { .. } | Kind::Disk { .. } | Kind::Tree | Kind::Fetcher { .. } = kind {
            privileges::drop_capabilities()?;
            privileges::forbid_dumps()?;
            if owner_uid() == 0 {
                privileges::set_no_new_privs()?;
            }
        }
        let why = format!("{VARIABLE}=off turns it off");
        return Ok(ConfinementReport { missing: vec![why], ..ConfinementReport::default() });
    }
    if let Kind::Fetcher { cache } = kind {
        // It keeps the user, whose files credentials and certificates are.
        let (readable, writable) = (vec!["/".into()], cache.into_iter().collect());
        return apply(&Wall { readable, writable, asks_servers: true, ..Wall::default() });
    }
    let injected = injected_panic::file().and_then(|file| file.parent().map(Into::into));
    let further = match kind {
        Kind::Disk { .. } => READABLE_BY_DISKS.map(PathBuf::from).to_vec(),
        Kind::Tree => vec!["/sys".into()],
        _ => Vec::new(),
    };
    let creates = match kind {
        Kind::Creating(creates) => Some(creates),
        _ => None,
    };
    let wall = Wall {
        changes_user: injected.is_none() && creates.is_none(),
        readable: READABLE.map(Into::into).into_iter().chain(further).collect(),
        writable: injected.into_iter().collect(),
        has_rings: rings,
        ioctls: vec![CLONE_CHANNEL, BLKDISCARD],
        creates,
        ..Wall::default()
    };
    apply(&wall)
}

fn apply(wall: &Wall) -> Result<ConfinementReport> {
    let InForce { user, files_are_confined, scopes_are_confined, calls_are_filtered, missing } =
        confine::confine(wall)?;
    Ok(ConfinementReport {
        user,
        files: files_are_confined,
        signals: scopes_are_confined,
        system_calls: calls_are_filtered,
        missing,
    })
}
