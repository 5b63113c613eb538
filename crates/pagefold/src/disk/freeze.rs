//! The moment of `disk save` for a file system on a loop device: frozen, where that can be done.
//!
//! A guard process (`pagefold_sys::freeze`) freezes and thaws. This module decides whether to freeze, and says why not. It
//! prints nothing while the file system is frozen: the reader of a message may wait for it.

use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::instance::InstanceDir;
use pagefold_control::report::saved::{Consistency, SaveMoment};
use pagefold_sys::SysError;
use pagefold_sys::blockuse::{self, BlockUse};
use pagefold_sys::freeze::{FreezeGuard, Thawed};
use pagefold_sys::mounts::{self, DeviceNumber, Mount};
use pagefold_sys::privileges::{CapabilitySet, has_capability};
use pagefold_sys::signal::Termination;
use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The types of file systems that are frozen: those whose frozen state was tested here.
const TYPES: [&str; 2] = ["ext4", "xfs"];

/// The freezing of the file system on a disk, for one save.
pub enum Freezer {
    /// A guard can freeze it.
    Guarded {
        /// The guard.
        guard: FreezeGuard,
        /// The mount point, for messages.
        mount_point: PathBuf,
        /// How it was thawed, when that is over.
        thawed: Option<Thawed>,
    },
    /// It is not frozen, for this reason.
    Not(String),
}

impl Freezer {
    /// Prepares the freeze of the file system that is mounted from the loop device of a disk, if there is one. Must be called
    /// before this process starts threads. Fails if `target`, where the save goes, is on that file system.
    pub fn prepare(dir: &InstanceDir, target: &Path, is_wanted: bool) -> Result<Self> {
        let Some(device) = dir.read_state().and_then(|state| state.loop_device()) else {
            return Ok(Freezer::Not("programs use the disk without a file system of this machine".into()));
        };
        if !is_wanted {
            return Ok(Freezer::Not("--no-freeze".into()));
        }
        let number = blockuse::device_number(&device)?;
        let mount = match mounted(&device, number)? {
            Ok(mount) => mount,
            Err(why) => return Ok(Freezer::Not(why)),
        };
        refuse_inside(number, &mount.mount_point, dir, target)?;
        let Some(root) = open_root(&mount, number) else {
            let hidden = format!("another file system hides '{}'", mount.mount_point.display());
            return Ok(Freezer::Not(hidden));
        };
        match FreezeGuard::start(root) {
            Ok(guard) => Ok(Freezer::Guarded { guard, mount_point: mount.mount_point, thawed: None }),
            Err(e) => Ok(Freezer::Not(e.to_string())),
        }
    }

    /// Freezes the file system. A failure is noted: the save goes on. Fails after a signal.
    pub fn freeze(&mut self, signals: &Termination) -> Result<()> {
        let Freezer::Guarded { guard, .. } = self else { return Ok(()) };
        match guard.freeze(signals.as_fd()) {
            Ok(true) => {}
            Ok(false) => return Err(CliError::failed("interrupted: the disk was not saved")),
            Err(e) => *self = Freezer::Not(not_frozen(&e)),
        }
        Ok(())
    }

    /// Whether it is frozen now.
    pub fn is_frozen(&self) -> bool {
        matches!(self, Freezer::Guarded { guard, .. } if guard.is_frozen())
    }

    /// Thaws the file system, if it is frozen: the save has its moment, or has failed.
    pub fn thaw(&mut self) {
        if let Freezer::Guarded { guard, thawed, .. } = self
            && guard.is_frozen()
        {
            *thawed = Some(guard.thaw());
        }
    }

    /// The state of the file system in the save, for the report.
    pub fn moment(&self) -> SaveMoment {
        let not = |why: &str| SaveMoment { not_frozen: Some(why.into()), ..SaveMoment::default() };
        match self {
            Freezer::Not(why) => not(why),
            Freezer::Guarded { thawed: Some(Thawed::OnRequest(time)), .. } => SaveMoment {
                consistency: Consistency::Frozen,
                frozen_ns: Some(time.as_nanos() as u64),
                not_frozen: None,
            },
            Freezer::Guarded { .. } => not("it was thawed before the server began to save, after a second"),
        }
    }

    /// The mount point of the file system that was frozen.
    pub fn frozen_at(&self) -> Option<&Path> {
        match self {
            Freezer::Guarded { mount_point, thawed: Some(Thawed::OnRequest(_)), .. } => Some(mount_point),
            _ => None,
        }
    }
}

fn not_frozen(e: &SysError) -> String {
    match e.errno {
        libc::EBUSY => "another program has frozen the file system".into(),
        _ => e.to_string(),
    }
}

/// The mount of the file system on the device, or the reason that there is none to freeze.
fn mounted(device: &Path, number: DeviceNumber) -> Result<std::result::Result<Mount, String>> {
    let claims = blockuse::claims(device)?;
    let Some(claim) = claims.iter().find(|claim| !matches!(claim, BlockUse::Open { .. })) else {
        return Ok(Err("no file system is mounted from the disk".into()));
    };
    if !matches!(claim, BlockUse::Mounted { .. }) {
        return Ok(Err(format!("the disk is {claim}")));
    }
    let found = mounts::all()?.into_iter().filter(|mount| mount.device == number);
    let found: Vec<_> = found.collect();
    let is_visible = |mount: &Mount| open_root(mount, number).is_some();
    let mount = found.iter().find(|mount| is_visible(mount)).or(found.first()).cloned();
    Ok(match mount {
        Some(mount) if !TYPES.contains(&mount.fs_type.as_str()) => {
            Err(format!("it is not known how {} is after a freeze", mount.fs_type))
        }
        Some(_) if !has_capability(CapabilitySet::SYS_ADMIN) => Err("it needs CAP_SYS_ADMIN".into()),
        Some(mount) => Ok(mount),
        None => Err("its file system has no device number".into()),
    })
}

/// Opens the root of a mount; `None` if another file system is mounted over it.
fn open_root(mount: &Mount, number: DeviceNumber) -> Option<File> {
    // A file can be mounted on a pipe.
    let opened =
        OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&mount.mount_point).ok()?;
    let is_same = opened.metadata().is_ok_and(|found| DeviceNumber::from_dev_t(found.dev()) == number);
    is_same.then_some(opened)
}

/// Fails if a file that the save needs is on the file system to freeze: the save would wait for itself.
fn refuse_inside(number: DeviceNumber, mount_point: &Path, dir: &InstanceDir, target: &Path) -> Result<()> {
    let device_of = |path: &Path| path.metadata().ok().map(|found| DeviceNumber::from_dev_t(found.dev()));
    let target_device = match target == Path::new("-") {
        true => rustix::fs::fstat(std::io::stdout()).ok().map(|found| DeviceNumber::from_dev_t(found.st_dev)),
        false => device_of(target).or_else(|| device_of(folder_of(target))),
    };
    let what = match () {
        () if target_device == Some(number) => "the saved disk would be written",
        () if device_of(dir.path()) == Some(number) => "the disk has its log and its sockets",
        () => return Ok(()),
    };
    let at = mount_point.display();
    Err(CliError::new(
        Exit::Usage,
        format!(
            "{what} on the file system at '{at}', which is on the disk itself and is frozen for the save; choose \
             another place, or save it without with --no-freeze"
        ),
    ))
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."))
}
