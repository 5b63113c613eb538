//! The broker's process: one thread that carries out requests, until its server ends.

use super::wire::{self, Answer, Failure, Operation};
use crate::keeper;
use crate::mount::lists::ListFile;
use pagefold_control::config::MountConfig;
use pagefold_control::error::{CliError, Result};
use pagefold_control::instance::state::MountState;
use pagefold_control::instance::{InstanceDir, RuntimeDir};
use pagefold_control::startup::KeptKind;
use pagefold_fuse::{MOUNT_NAME, OwnedMount, free_directory, mount_by_helper, mount_here};
use pagefold_sys::fusermount::Mounted;
use pagefold_sys::mounts::DeviceNumber;
use pagefold_sys::pidfd::Identity;
use pagefold_sys::privileges;
use pagefold_sys::{detach, fork, fusedev, rundir};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// The duties of a broker for the server of a mount, fixed when it is forked.
pub struct Duties {
    dir: InstanceDir,
    state: MountState,
    config: Box<MountConfig>,
    /// The request to start, JSON, for keepers; empty without one.
    start: Vec<u8>,
}

impl Duties {
    /// Those of the request `start` (`config`, and JSON). `state` is in the state file.
    pub fn new(dir: &InstanceDir, config: &MountConfig, state: MountState, start: &[u8]) -> Self {
        Duties { dir: dir.clone(), state, config: Box::new(config.clone()), start: start.to_vec() }
    }

    /// The mount point.
    pub fn mount_point(&self) -> &Path {
        &self.state.mount_point
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
                .and_then(|()| privileges::drop_capabilities_except(keeper::KEPT_BY_ROOT));
            if reduced.is_err() {
                return 1;
            }
        }
        let Some(stream) = fds.pop().map(UnixStream::from) else { return 1 };
        let former = duties.state.device.map(|(major, minor)| {
            let (path, device) = (duties.state.mount_point.clone(), DeviceNumber { major, minor });
            let mounted = Mounted::taken_over(path, device, rundir::effective_uid() != 0);
            Box::new(mounted) as Box<dyn OwnedMount>
        });
        let name = duties.dir.name().as_str().to_string();
        let start_keeper = keeper::starter(name, KeptKind::Image, duties.start.clone());
        let process = BrokerProcess { duties, server, mounted: former, list: None, start_keeper };
        u8::from(process.run(&stream).is_err())
    })?;
    Ok(())
}

struct BrokerProcess {
    duties: Duties,
    /// The server, which has forked this process.
    server: Option<Identity>,
    mounted: Option<Box<dyn OwnedMount>>,
    /// Opened by the first request that needs it.
    list: Option<ListFile>,
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
        let number = || {
            let bytes = payload.as_slice().try_into().map(u64::from_le_bytes);
            bytes.map_err(|_| CliError::failed("a request without its number"))
        };
        match operation {
            Operation::Mount => return self.mount(number()?),
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
            Operation::RemoveFiles => {
                let runtime = RuntimeDir::containing(&self.duties.dir)?;
                let _locked = runtime.lock()?;
                self.duties.dir.remove()?;
            }
        }
        Ok(Answer::default())
    }

    fn list(&mut self) -> Result<&ListFile> {
        let config = self.duties.config.record.as_ref();
        let config = config.ok_or_else(|| CliError::failed("no list is recorded"))?;
        match &mut self.list {
            Some(list) => Ok(list),
            list => Ok(list.insert(ListFile::open(config)?)),
        }
    }

    fn mount(&mut self, read_bytes: u64) -> std::result::Result<Answer, Failure> {
        let Duties { state, config, .. } = &self.duties;
        if self.mounted.is_some() {
            return Err(Failure::Taken { path: state.mount_point.clone() });
        }
        let read_bytes = usize::try_from(read_bytes).unwrap_or(usize::MAX);
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
        let (channel, mounted) = match rundir::effective_uid() {
            0 => mount_here(path, &request)?,
            _ => mount_by_helper(path, &request)?,
        };
        let DeviceNumber { major, minor } = mounted.device();
        self.duties.state.device = Some((major, minor));
        let is_by_helper = mounted.is_by_helper();
        self.mounted = Some(mounted);
        // Without it, the next server would not know which mount is its own.
        self.duties.dir.write_state(&self.duties.state)?;
        let payload = serde_json::to_vec(&(major, minor, is_by_helper));
        let payload = payload.map_err(|e| CliError::failed(e.to_string()))?;
        Ok(Answer { payload, fd: Some(channel.into()) })
    }

    fn take_turn(&mut self, former: Option<OwnedFd>) -> Result<()> {
        keeper::end_former(former)?;
        self.duties.state.server = self.server.clone().map(Into::into);
        self.duties.dir.write_state(&self.duties.state)
    }
}

fn nothing_mounted() -> CliError {
    CliError::failed("nothing is mounted")
}
