//! The broker's process: one thread that carries out requests, until its server ends.

use super::disk::DiskDuties;
use super::wire::{self, Answer, Failure, Operation};
use crate::keeper;
use crate::mount::lists::ListFile;
use pagefold_control::config::MountConfig;
use pagefold_control::error::{CliError, Result};
use pagefold_control::instance::state::{MountState, Server};
use pagefold_control::instance::{InstanceDir, RuntimeDir};
use pagefold_control::startup::KeptKind;
use pagefold_fuse::{MOUNT_NAME, OwnedMount, free_directory, mount_by_helper, mount_here};
use pagefold_sys::fusermount::{self, Mounted};
use pagefold_sys::mounts::DeviceNumber;
use pagefold_sys::pidfd::{Identity, Process};
use pagefold_sys::privileges::{self, CapabilitySet};
use pagefold_sys::{detach, fork, fusedev, harden, ready, rundir};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// The duties of a broker, fixed when it is forked.
pub struct Duties {
    dir: InstanceDir,
    object: Object,
    /// The request to start, JSON, for keepers; empty without one.
    start: Vec<u8>,
}

/// The object that a broker has duties for.
enum Object {
    Mount(MountDuties),
    Disk(DiskDuties),
}

struct MountDuties {
    state: MountState,
    config: Box<MountConfig>,
    /// Opened by the first request that needs it.
    list: Option<ListFile>,
}

impl Duties {
    /// Those of the request `start` (`config`, and JSON). `state` is in the state file.
    pub fn new(dir: &InstanceDir, config: &MountConfig, state: MountState, start: &[u8]) -> Self {
        let object = Object::Mount(MountDuties { state, config: Box::new(config.clone()), list: None });
        Duties { dir: dir.clone(), object, start: start.to_vec() }
    }

    /// Those for the server of a disk.
    pub fn of_disk(dir: &InstanceDir, disk: DiskDuties, start: &[u8]) -> Self {
        Duties { dir: dir.clone(), object: Object::Disk(disk), start: start.to_vec() }
    }

    /// The mount point.
    pub fn mount_point(&self) -> &Path {
        match &self.object {
            Object::Mount(mount) => &mount.state.mount_point,
            Object::Disk(disk) => disk.mount_point(),
        }
    }

    /// Whether nothing but its files is left of the instance when its server has ended.
    fn ends_with_its_files(&self) -> bool {
        match &self.object {
            Object::Mount(_) => true,
            Object::Disk(disk) => disk.ends_with_its_files(),
        }
    }

    /// The capabilities of a broker of root.
    fn capabilities(&self) -> CapabilitySet {
        match &self.object {
            Object::Disk(disk) if !disk.has_mount() => {
                keeper::KEPT_BY_ROOT.difference(CapabilitySet::SYS_ADMIN)
            }
            _ => keeper::KEPT_BY_ROOT,
        }
    }

    fn kind(&self) -> KeptKind {
        match &self.object {
            Object::Mount(_) => KeptKind::Image,
            Object::Disk(disk) => disk.kind(),
        }
    }

    /// The mount of a former server, which this broker unmounts. That of a disk is unmounted by commands.
    fn former_mount(&self) -> Option<Box<dyn OwnedMount>> {
        let Object::Mount(MountDuties { state, .. }) = &self.object else { return None };
        let (major, minor) = state.device?;
        let (path, device) = (state.mount_point.clone(), DeviceNumber { major, minor });
        Some(Box::new(Mounted::taken_over(path, device, fusermount::is_needed())))
    }
}

/// Forks the process, at the other end of `stream`.
pub fn start(duties: Duties, stream: UnixStream) -> Result<()> {
    let server = Identity::of_self();
    fork::fork_with(vec![stream.into()], move |mut fds| {
        detach::set_name(c"pagefold-broker");
        // The file of the log is closed here.
        drop(std::panic::take_hook());
        if rundir::effective_uid() == 0 {
            // Other users mount with the set-user-id program fusermount3, which must gain privileges.
            let reduced = privileges::set_no_new_privs()
                .and_then(|()| privileges::forbid_dumps())
                .and_then(|()| privileges::drop_capabilities_except(duties.capabilities()));
            if reduced.is_err() {
                return 1;
            }
        }
        let Some(stream) = fds.pop().map(UnixStream::from) else { return 1 };
        let Ok(end) = stream.try_clone() else { return 1 };
        if duties.kind().is_for_swap() {
            // Its pages may be on the disk, while no server serves that.
            let _ = harden::lock_memory_again();
        }
        let name = duties.dir.name().as_str().to_string();
        let (start, dir) = (duties.start.clone(), duties.dir.clone());
        let start_keeper = keeper::starter(name, duties.kind(), start, server.clone(), Some(dir));
        let mounted = duties.former_mount();
        let process = BrokerProcess { duties, server, mounted, end, start_keeper };
        u8::from(process.run(&stream).is_err())
    })?;
    Ok(())
}

struct BrokerProcess {
    duties: Duties,
    /// The server, which has forked this process.
    server: Option<Identity>,
    mounted: Option<Box<dyn OwnedMount>>,
    /// A duplicate of the connection, to be polled.
    end: UnixStream,
    start_keeper: keeper::StartKeeper,
}

impl BrokerProcess {
    /// Carries out requests. When the server has ended, the mount is left to the next one, or to the command that cleans up.
    fn run(mut self, stream: &UnixStream) -> Result<()> {
        wire::answer(stream, Ok(Answer::default()))?;
        let result = loop {
            match wire::receive_request(stream) {
                Ok(Some((operation, request))) => {
                    let result = self.carry_out(operation, request);
                    if let Err(e) = wire::answer(stream, result) {
                        break Err(e);
                    }
                }
                Ok(None) => break Ok(()),
                Err(e) => break Err(e),
            }
        };
        self.mounted.take().into_iter().for_each(OwnedMount::leave);
        result
    }

    fn carry_out(
        &mut self,
        operation: Operation,
        Answer { payload, fd }: Answer,
    ) -> std::result::Result<Answer, Failure> {
        let number = || wire::number(&payload);
        match operation {
            Operation::Mount => return self.mount(usize::try_from(number()?).unwrap_or(usize::MAX)),
            Operation::OpenChannel => {
                return Ok(Answer { fd: Some(fusedev::open()?.into()), ..Answer::default() });
            }
            Operation::SetReadAhead => {
                let mounted = self.mounted.as_ref().ok_or_else(nothing_mounted)?;
                mounted.set_read_ahead(number()?)?;
            }
            Operation::Unmount => self.mounted.as_mut().map_or(Ok(()), |mounted| mounted.unmount())?,
            Operation::TakeTurn => self.take_turn(fd)?,
            Operation::StartKeeper => {
                (self.start_keeper)(fd.ok_or_else(|| CliError::failed("a request without its socket"))?)?;
            }
            Operation::CheckList => self.list()?.check()?,
            Operation::WriteList => self.list()?.write(&payload)?,
            Operation::RemoveFiles if !self.duties.ends_with_its_files() => {
                return Err(CliError::failed("commands clean up after this server").into());
            }
            Operation::RemoveFiles if self.duties.dir.exists() => {
                let runtime = RuntimeDir::containing(&self.duties.dir)?;
                let _locked = runtime.lock()?;
                self.duties.dir.remove()?;
            }
            Operation::RemoveFiles => {}
            Operation::Attach
            | Operation::LoopStatus
            | Operation::BeginResize
            | Operation::FinishResize
            | Operation::Detach
            | Operation::Reopen
            | Operation::RecordSize
            | Operation::MarkEnded => {
                let Duties { dir, object: Object::Disk(disk), .. } = &mut self.duties else {
                    return Err(CliError::failed("this is the broker of a mount").into());
                };
                let mounted = self.mounted.as_ref().map(|mounted| mounted.device());
                return disk.carry_out(dir, mounted, operation, Answer { payload, fd });
            }
        }
        Ok(Answer::default())
    }

    fn list(&mut self) -> Result<&ListFile> {
        let none = || CliError::failed("no list is recorded");
        let Object::Mount(MountDuties { config, list, .. }) = &mut self.duties.object else {
            return Err(none());
        };
        let config = config.record.as_ref().ok_or_else(none)?;
        match list {
            Some(list) => Ok(list),
            list => Ok(list.insert(ListFile::open(config)?)),
        }
    }

    fn mount(&mut self, read_bytes: usize) -> std::result::Result<Answer, Failure> {
        if self.mounted.is_some() {
            return Err(Failure::Taken { path: self.duties.mount_point().to_path_buf() });
        }
        let (channel, mounted) = match &self.duties.object {
            Object::Mount(mount) => mount.mount(read_bytes)?,
            Object::Disk(disk) => disk.mount(read_bytes)?,
        };
        let DeviceNumber { major, minor } = mounted.device();
        let is_by_helper = mounted.is_by_helper();
        self.mounted = Some(mounted);
        if let Duties { dir, object: Object::Mount(MountDuties { state, .. }), .. } = &mut self.duties {
            state.device = Some((major, minor));
            // Without it, the next server would not know which mount is its own.
            dir.write_state(state)?;
        }
        detach::new_session();
        let payload = serde_json::to_vec(&(major, minor, is_by_helper));
        let payload = payload.map_err(|e| CliError::failed(e.to_string()))?;
        Ok(Answer { payload, fd: Some(channel.into()) })
    }

    fn take_turn(&mut self, former: Option<OwnedFd>) -> Result<()> {
        let server = self.server.clone().map(Into::into);
        let Duties { dir, object, .. } = &mut self.duties;
        if let Some(former) = former {
            let recorded = match &*object {
                Object::Mount(mount) => mount.state.server.as_ref(),
                Object::Disk(disk) => disk.server(),
            };
            end_former(recorded, former.into(), &self.end)?;
        }
        match object {
            Object::Mount(MountDuties { state, .. }) => {
                state.server = server;
                dir.write_state(state)
            }
            Object::Disk(disk) => {
                disk.take_turn(dir, server);
                Ok(())
            }
        }
    }
}

impl MountDuties {
    fn mount(&self, read_bytes: usize) -> std::result::Result<(File, Box<dyn OwnedMount>), Failure> {
        let MountDuties { state, config, .. } = self;
        let request = fusedev::Request {
            source: state.image.as_os_str(),
            read_only: true,
            allow_other: config.allow_other,
            checks_modes: true,
            programs: true,
            suid: config.suid,
            devices: config.device_nodes,
            ..fusedev::Request::private(MOUNT_NAME, read_bytes)
        };
        let path = free_directory(&state.mount_point)?;
        Ok(match fusermount::is_needed() {
            false => mount_here(path, &request)?,
            true => mount_by_helper(path, &request)?,
        })
    }
}

/// Ends the former server, and waits for that. A server could hand over the descriptor of any process: so the process that the
/// state file names is killed, and the one that was handed over only waited for.
/// `end` is readable at the end of the server that asks for it.
fn end_former(recorded: Option<&Server>, former: Process, end: &UnixStream) -> Result<()> {
    let recorded = recorded.map(|server| Process::open(&server.into())).transpose()?.flatten();
    recorded.map_or(Ok(()), |process| process.kill())?;
    match ready::wait([former.as_fd(), end.as_fd()], None)? {
        [true, _] => Ok(()),
        _ => Err(CliError::failed("the server has ended while it took its turn")),
    }
}

fn nothing_mounted() -> CliError {
    CliError::failed("nothing is mounted")
}
