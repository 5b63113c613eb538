//! [`KeeperLink`]: a server's side of the connection to its keeper.

use super::link::{Link, Message, State};
use pagefold_control::error::{CliError, Result};
use pagefold_control::instance::InstanceDir;
use pagefold_control::startup::{ADOPT, KeptKind, SERVE, StartRequest};
use pagefold_sys::pidfd::Identity;
use pagefold_sys::ready;
use rustix::process::{Signal, set_parent_process_death_signal};
use std::fs::File;
use std::io::{Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The exit code of a server that has failed, and is followed by another one: that of a panic.
pub const FAILED: i32 = 101;
/// How long a new keeper may take to begin.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a keeper may take to end that has closed its connection.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// A guard of a disk or a mount that outlives this process: an error or a panic before its end exits without closing it, and
/// the keeper starts another server.
pub struct ExitOnFailure;

impl Drop for ExitOnFailure {
    fn drop(&mut self) {
        crate::log::finish();
        std::process::exit(FAILED);
    }
}

/// The beginning of a server that has a keeper.
pub enum Beginning {
    /// It is the first one, and talks to the command.
    New(UnixStream),
    /// It takes over what a former server has handed over.
    TakeOver {
        /// The request that the first server got, and has reported before it parsed the first foreign byte.
        start: Box<StartRequest>,
        /// The state. It comes from a process that has parsed foreign bytes.
        state: State,
    },
}

/// Starts a keeper, with this socket as its connection to the calling server.
pub type StartKeeper = Box<dyn Fn(OwnedFd) -> Result<()> + Send>;

/// The connection to the keeper.
pub struct KeeperLink {
    link: Link,
    name: String,
    kind: KeptKind,
    /// Whether there was no other server when the keeper started this one.
    is_only_server: bool,
    /// The request to start, JSON, for further keepers.
    start: Vec<u8>,
    start_keeper: StartKeeper,
    handed_over: Option<State>,
}

impl KeeperLink {
    /// Connects the server of the instance `name`. Until [`KeeperLink::become_independent`], the end of the keeper is that
    /// of a server that is new.
    pub fn begin(name: &str, kind: KeptKind, stream: UnixStream) -> Result<(Self, Beginning)> {
        let link = Link::over(stream)?;
        let (mut fds, mut payload) = (Vec::new(), Vec::new());
        let mut is_only_server = false;
        let mut start = Vec::new();
        let beginning = loop {
            match link.receive(&mut fds, &mut payload)? {
                Some(Message::Descriptors) => {}
                Some(Message::New) if fds.len() == 1 => {
                    let _ = set_parent_process_death_signal(Some(Signal::KILL));
                    break Beginning::New(UnixStream::from(fds.remove(0)));
                }
                Some(Message::Start) => start = std::mem::take(&mut payload),
                Some(Message::State) => {
                    let start = serde_json::from_slice(&start).map_err(|_| unexpected())?;
                    break Beginning::TakeOver { start: Box::new(start), state: State { fds, payload } };
                }
                Some(Message::Alone) => is_only_server = true,
                _ => return Err(unexpected()),
            }
        };
        let start_keeper = starter(name.into(), kind, start.clone(), Identity::of_self(), None);
        let link = KeeperLink {
            link,
            name: name.into(),
            kind,
            is_only_server,
            start,
            start_keeper,
            handed_over: None,
        };
        Ok((link, beginning))
    }

    /// Reports the request to start, before the first foreign byte is parsed: next servers trust it.
    pub fn report_start(&mut self, start: &StartRequest) -> Result<()> {
        self.start = serde_json::to_vec(start).map_err(|e| CliError::failed(e.to_string()))?;
        self.start_keeper =
            starter(self.name.clone(), self.kind, self.start.clone(), Identity::of_self(), None);
        self.link.send(Message::Start, &[], &self.start)
    }

    /// The request to start, JSON.
    pub fn start(&self) -> &[u8] {
        &self.start
    }

    /// Lets `start_keeper` start further keepers: another process, because this one is confined.
    pub fn start_keepers_by(&mut self, start_keeper: impl Fn(OwnedFd) -> Result<()> + Send + 'static) {
        self.start_keeper = Box::new(start_keeper);
    }

    /// From now on the server goes on if its keeper dies.
    pub fn become_independent(&self) {
        let _ = set_parent_process_death_signal(None);
    }

    /// Hands over what the next server needs, and waits until the keeper holds it.
    pub fn hand_over(&mut self, state: State) -> Result<()> {
        self.link.send_state(&state)?;
        self.expect(Message::Accepted)?;
        self.handed_over = Some(state);
        Ok(())
    }

    /// Hands over anew, because something has changed. If the keeper has just died, the next one gets it.
    pub fn hand_over_again(&mut self, state: State) -> Result<()> {
        let sent = self.link.send_state(&state).and_then(|()| self.expect_soon(Message::Accepted));
        match sent {
            // The end of the connection is noticed by the thread that replaces keepers.
            Err(e) if !ready::is_at_end(self.link.as_fd())? => Err(e),
            _ => {
                self.handed_over = Some(state);
                Ok(())
            }
        }
    }

    /// Notes what this server has taken over, for a keeper that it may have to start.
    pub fn note_taken_over(&mut self, state: State) {
        self.handed_over = Some(state);
    }

    /// Reports that this server can serve, and waits until it may. Returns the former server, if it lives: the caller ends it
    /// through its broker, so that nothing depends on the life of the keeper.
    ///
    /// If the keeper dies meanwhile and no former server lives, this one goes on.
    pub fn wait_for_turn(&self) -> Result<Option<OwnedFd>> {
        let sent = self.link.send(Message::Prepared, &[], &[]);
        let turn = sent.and_then(|()| self.expect(Message::Go));
        match turn {
            Err(_) if self.is_only_server && ready::is_at_end(self.link.as_fd())? => Ok(None),
            turn => Ok(turn?.pop()),
        }
    }

    /// Reports that this server serves what it has taken over.
    pub fn report_serving(&self) {
        let _ = self.link.send(Message::Serving, &[], &[]);
    }

    /// Reports why this server cannot take over.
    pub fn report_failure(&self, reason: &str) {
        // Without the message, the keeper sees the end.
        let _ = self.link.send(Message::Failed, &[], reason.as_bytes());
    }

    /// Reports that this server ends in an orderly way, and nothing is left to keep.
    pub fn report_end(&self) {
        let _ = self.link.send(Message::Done, &[], &[]);
    }

    /// Receives the message `expected`, and returns its descriptors.
    fn expect(&self, expected: Message) -> Result<Vec<OwnedFd>> {
        let mut fds = Vec::new();
        match self.link.receive(&mut fds, &mut Vec::new())? {
            Some(message) if message == expected => Ok(fds),
            _ => Err(unexpected()),
        }
    }

    /// Starts another keeper after the death of the former one, and hands everything over to it.
    ///
    /// Returns false if there is nothing to keep: the instance ends with this server.
    fn start_keeper(&mut self) -> Result<bool> {
        let Some(state) = &self.handed_over else { return Ok(false) };
        let (link, theirs) = Link::pair()?;
        // This process keeps no end of the keeper's socket, so that it notices the end of the keeper.
        (self.start_keeper)(theirs)?;
        link.send_state(state)?;
        self.link = link;
        self.expect_soon(Message::Accepted).map(|_| true)
    }

    /// Receives the message `expected` of a keeper that is not waiting for anything.
    fn expect_soon(&self, expected: Message) -> Result<Vec<OwnedFd>> {
        let [is_there] = ready::wait([self.link.as_fd()], Some(ACCEPT_TIMEOUT))?;
        match is_there {
            true => self.expect(expected),
            false => Err(CliError::failed("the keeper does not answer; perhaps it is stopped")),
        }
    }
}

/// Starts keepers as children of the calling process, with the rights of the calling thread, for `server`, which `start`, JSON,
/// has started. Ends the keeper that was started before, if it lives. With `dir`, fails if there is yet another keeper: the
/// server, which asks for a new one, may have been taken over.
pub fn starter(
    name: String,
    kind: KeptKind,
    start: Vec<u8>,
    server: Option<Identity>,
    dir: Option<InstanceDir>,
) -> StartKeeper {
    let before = Mutex::new(None::<Child>);
    Box::new(move |link| {
        let mut before = before.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mut former) = before.take() {
            let _ = former.kill();
            let _ = former.wait();
        }
        if let Some(keeper) = dir.as_ref().map(InstanceDir::keeper_process).transpose()?.flatten()
            && !keeper.wait(END_TIMEOUT)?
        {
            return Err(CliError::failed("the keeper lives"));
        }
        let Identity { pid, start_ticks, .. } =
            server.as_ref().ok_or_else(|| CliError::failed("the identity of the server is not known"))?;
        let failed = |e| CliError::io("starting a keeper", &e);
        let mut request = memory_file(&start).map_err(failed)?;
        request.rewind().map_err(failed)?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("pagefold").args([SERVE, &name, ADOPT, kind.name()]);
        command.args([pid.to_string(), start_ticks.to_string()]);
        *before = Some(command.stdin(link).stdout(request).spawn().map_err(failed)?);
        Ok(())
    })
}

/// A file in memory with these contents.
fn memory_file(contents: &[u8]) -> std::io::Result<File> {
    let made = rustix::fs::memfd_create("pagefold-start", rustix::fs::MemfdFlags::CLOEXEC);
    let mut file = File::from(made.map_err(|e| {
        let e = std::io::Error::from(e);
        std::io::Error::new(e.kind(), format!("creating a file in memory (memfd_create): {e}"))
    })?);
    file.write_all(contents)?;
    Ok(file)
}

/// Starts another keeper if that of `link` has died. Returns false if none could be started yet, and this should be tried
/// again after a pause.
pub fn replace_dead(link: &mut Option<KeeperLink>) -> bool {
    let Some(lost) = link else { return true };
    if !ready::is_at_end(lost.as_fd()).unwrap_or(true) {
        return true;
    }
    match lost.start_keeper() {
        Ok(true) => true,
        Ok(false) => {
            *link = None;
            true
        }
        Err(e) => {
            crate::log::warning(format_args!("no keeper could be started yet: {e}"));
            false
        }
    }
}

/// Readable when the keeper has died.
impl AsFd for KeeperLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

fn unexpected() -> CliError {
    CliError::failed("the keeper of this server has died, or sent an unexpected message")
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagefold_control::instance::keeper::{KeeperState, STATE};
    use std::borrow::Cow;

    #[test]
    fn no_keeper_is_started_while_another_lives() {
        let folder = tempfile::tempdir().unwrap();
        let dir = InstanceDir::at(folder.path().join("x")).unwrap();
        dir.create().unwrap();
        let this = Identity::of_self().unwrap();
        let state = KeeperState {
            keeper: Cow::Owned(this.clone().into()),
            restarts: 0,
            died_unix_s: None,
            end: None,
            is_held: false,
            requests: 0,
            failure: None,
        };
        std::fs::write(dir.path().join(STATE), serde_json::to_vec(&state).unwrap()).unwrap();
        let start = starter("x".into(), KeptKind::Image, Vec::new(), Some(this), Some(dir));
        let (_link, theirs) = Link::pair().unwrap();
        assert!(start(theirs).unwrap_err().to_string().contains("the keeper lives"));
    }
}
