//! The duties of a broker for the server of a disk: its mount, its loop device, its files.
//!
//! Commands trust the state file of a disk: it names the loop device, the mount and the backing file that they remove. So the
//! broker composes it, of what the command asked for and of what the broker has made itself. Of the server it takes the size.

use super::wire::{self, Answer, AttachRequest, Attached, Failure, LoopStatus, Operation};
use crate::keeper;
use pagefold_block::fuse::FILE_NAME;
use pagefold_block::loop_export::{LocalLoop, LoopRequest, OwnedLoop, Users};
use pagefold_control::config::DiskConfig;
use pagefold_control::error::{CliError, Result};
use pagefold_control::export_kind::ExportKind;
use pagefold_control::instance::InstanceDir;
use pagefold_control::instance::state::{ExportState, LoopBackingFile, Server, State};
use pagefold_control::startup::KeptKind;
use pagefold_fuse::{MOUNT_NAME, OwnedMount, free_directory, mount_here};
use pagefold_sys::loopdev::{Detach, LoopIdentity};
use pagefold_sys::mounts::DeviceNumber;
use pagefold_sys::privileges::{self, CapabilitySet};
use pagefold_sys::{fusedev, iolock};
use serde::de::DeserializeOwned;
use std::fs::{DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The duties for the server of a disk.
pub struct DiskDuties {
    /// The contents of the state file.
    state: State,
    export: ExportKind,
    sector_bytes: u32,
    /// The mount point of the loop export, without symbolic links.
    mount_point: PathBuf,
    attached: Option<LocalLoop>,
}

impl DiskDuties {
    /// Those of a disk whose state file has the contents `state`.
    pub fn new(dir: &InstanceDir, config: &DiskConfig, state: State) -> Result<Self> {
        let resolved = dir.path().canonicalize();
        let folder = resolved.map_err(|e| CliError::io("resolving the folder of the disk", &e))?;
        let mount_point = folder.join(dir.mount_path().file_name().unwrap_or_default());
        let attached = former_loop(&state, mount_point.join(FILE_NAME));
        let sector_bytes = config.sector_size.bytes();
        Ok(DiskDuties { state, export: config.export, sector_bytes, mount_point, attached })
    }

    pub(super) fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    pub(super) fn kind(&self) -> KeptKind {
        KeptKind::Disk(self.export)
    }

    /// Whether its pages are a file of a mount.
    pub(super) fn has_mount(&self) -> bool {
        self.export.facts().uses_fuse
    }

    pub(super) fn server(&self) -> Option<&Server> {
        self.state.server.as_ref()
    }

    /// Whether commands have nothing to clean up when the server has ended.
    pub(super) fn ends_with_its_files(&self) -> bool {
        !self.export.facts().outlives_server && self.state.backing.is_none()
    }

    pub(super) fn mount(
        &self,
        read_bytes: usize,
    ) -> std::result::Result<(File, Box<dyn OwnedMount>), Failure> {
        if !self.has_mount() {
            return Err(CliError::failed("this disk has no mount").into());
        }
        let path = &self.mount_point;
        let made = DirBuilder::new().mode(0o700).create(path);
        made.map_err(|e| CliError::io(format!("creating '{}'", path.display()), &e))?;
        let request = fusedev::Request::private(MOUNT_NAME, read_bytes);
        Ok(mount_here(free_directory(path)?, &request)?)
    }

    /// Records the server in the state file. The users of the disk matter more than commands, which do not find the server if this
    /// fails; the server logs the error of the next attempt, when it records the size.
    pub(super) fn take_turn(&mut self, dir: &InstanceDir, server: Option<Server>) {
        self.state.server = server;
        let _ = dir.write_state(&self.state);
    }

    /// Carries out a request that only the servers of disks make. `mounted` is the file system that this broker has mounted.
    pub(super) fn carry_out(
        &mut self,
        dir: &InstanceDir,
        mounted: Option<DeviceNumber>,
        operation: Operation,
        Answer { payload, fd }: Answer,
    ) -> std::result::Result<Answer, Failure> {
        let number = || wire::number(&payload);
        match operation {
            Operation::Attach => {
                let mounted = mounted.ok_or_else(|| CliError::failed("nothing is mounted"))?;
                return Ok(json(&self.attach(dir, mounted, parsed(&payload)?)?)?);
            }
            Operation::LoopStatus => return Ok(json(&self.loop_status()?)?),
            Operation::BeginResize => {
                let users = if number()? == 0 { Users::Ignore } else { Users::Refuse };
                self.attached()?.begin_resize(users)?;
            }
            Operation::FinishResize => self.attached()?.finish_resize(number()?)?,
            Operation::Detach => {
                let how = if number()? == 0 { Detach::WhenLastUserCloses } else { Detach::IfUnclaimed };
                self.attached()?.detach(how)?;
            }
            Operation::Reopen => {
                let file = File::from(fd.ok_or_else(|| CliError::failed("a request without its file"))?);
                return Ok(Answer { fd: Some(iolock::reopen(&file)?.into()), ..Answer::default() });
            }
            Operation::RecordSize => {
                self.state.size_bytes = number()?;
                dir.write_state(&self.state)?;
            }
            // Without the folder, no command finds the disk.
            Operation::MarkEnded => match dir.mark_ended() {
                Err(e) if dir.exists() => return Err(e.into()),
                _ => {}
            },
            _ => return Err(CliError::failed("an unknown request to the broker of a disk").into()),
        }
        Ok(Answer::default())
    }

    /// Attaches a loop device. From then on, nothing needs the right to mount.
    fn attach(
        &mut self,
        dir: &InstanceDir,
        mounted: DeviceNumber,
        AttachRequest { read_ahead_kib, io_kib }: AttachRequest,
    ) -> std::result::Result<Attached, Failure> {
        if self.attached.is_some() {
            return Err(CliError::failed("a loop device is attached already").into());
        }
        let file = self.mount_point.join(FILE_NAME);
        let request = LoopRequest { sector_bytes: self.sector_bytes, read_ahead_kib, io_kib };
        let attached = LocalLoop::attach(&file, mounted, &request)?;
        let (path, LoopIdentity { lo_device, lo_inode }) =
            (attached.path().to_path_buf(), attached.identity());
        self.attached = Some(attached);
        self.state.export = Some(ExportState::Loop {
            device: Some(path.clone()),
            backing: Some(LoopBackingFile { device: lo_device, inode: lo_inode }),
            mount_point: dir.mount_path(),
        });
        // The next server takes it from there.
        dir.write_state(&self.state)?;
        privileges::drop_capabilities_except(keeper::KEPT_BY_ROOT.difference(CapabilitySet::SYS_ADMIN))?;
        Ok(Attached { path, identity: (lo_device, lo_inode) })
    }

    fn loop_status(&self) -> Result<LoopStatus> {
        let attached = self.attached()?;
        let claims = attached.claims();
        Ok(LoopStatus {
            is_attached: attached.is_attached(),
            len_bytes: attached.len_bytes().ok(),
            claims: claims.into_iter().map(Into::into).collect(),
        })
    }

    fn attached(&self) -> Result<&LocalLoop> {
        self.attached.as_ref().ok_or_else(|| CliError::failed("no loop device is attached"))
    }
}

/// The loop device that a former server's broker has recorded in the state file.
fn former_loop(state: &State, file: PathBuf) -> Option<LocalLoop> {
    let Some(ExportState::Loop { device: Some(path), backing: Some(backing), .. }) = &state.export else {
        return None;
    };
    let identity = LoopIdentity { lo_device: backing.device, lo_inode: backing.inode };
    Some(LocalLoop::taken_over(path.clone(), identity, file))
}

fn parsed<T: DeserializeOwned>(payload: &[u8]) -> Result<T> {
    serde_json::from_slice(payload).map_err(|e| CliError::failed(format!("a malformed request: {e}")))
}

fn json(answer: &impl serde::Serialize) -> Result<Answer> {
    let payload = serde_json::to_vec(answer).map_err(|e| CliError::failed(e.to_string()))?;
    Ok(Answer { payload, fd: None })
}
