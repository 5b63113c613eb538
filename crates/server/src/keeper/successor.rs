//! [`KeeperLink`]: a server's side of the connection to its keeper.

use super::link::{Link, Message, State};
use pagefold_control::error::{CliError, Result};
use pagefold_control::startup::{ADOPT, KeptKind, SERVE};
use pagefold_sys::pidfd::Process;
use pagefold_sys::ready;
use pagefold_sys::respawn::Started;
use rustix::process::{Signal, set_parent_process_death_signal};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The exit code of a server that has failed, and is followed by another one: that of a panic.
pub const FAILED: i32 = 101;
/// How long a new keeper may take to begin.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(10);

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
    TakeOver(State),
}

/// The connection to the keeper.
pub struct KeeperLink {
    link: Link,
    name: String,
    kind: KeptKind,
    /// Whether there was no other server when the keeper started this one.
    is_only_server: bool,
    /// The keeper, if this process has started it.
    child: Option<Child>,
    handed_over: Option<State>,
}

impl KeeperLink {
    /// Connects the server of the instance `name`. Until [`KeeperLink::become_independent`], the end of the keeper is that
    /// of a server that is new.
    pub fn begin(name: &str, kind: KeptKind, stream: UnixStream) -> Result<(Self, Beginning)> {
        let link = Link::over(stream)?;
        let (mut fds, mut payload) = (Vec::new(), Vec::new());
        let mut is_only_server = false;
        let beginning = loop {
            match link.receive(&mut fds, &mut payload)? {
                Some(Message::Descriptors) => {}
                Some(Message::New) if fds.len() == 1 => {
                    let _ = set_parent_process_death_signal(Some(Signal::KILL));
                    break Beginning::New(UnixStream::from(fds.remove(0)));
                }
                Some(Message::State) => break Beginning::TakeOver(State { fds, payload }),
                Some(Message::Alone) => is_only_server = true,
                _ => return Err(unexpected()),
            }
        };
        let (name, child, handed_over) = (name.into(), None, None);
        Ok((KeeperLink { link, name, kind, is_only_server, child, handed_over }, beginning))
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

    /// Reports that this server can serve, and waits until it may. The former one has ended then: this one kills it, so that
    /// nothing depends on the life of the keeper.
    ///
    /// If the keeper dies meanwhile and no former server lives, this one goes on.
    pub fn wait_for_turn(&self) -> Result<()> {
        let sent = self.link.send(Message::Prepared, &[], &[]);
        let turn = sent.and_then(|()| self.expect(Message::Go));
        let former = match turn {
            Err(_) if self.is_only_server && ready::is_at_end(self.link.as_fd())? => Vec::new(),
            turn => turn?,
        };
        for former in former.into_iter().map(Process::from) {
            former.kill()?;
            former.wait(Duration::MAX)?;
        }
        Ok(())
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

    /// Starts another keeper after the death of the former one, and hands everything over to it. It inherits the rights of
    /// the calling thread.
    ///
    /// Returns false if there is nothing to keep: the instance ends with this server.
    fn start_keeper(&mut self) -> Result<bool> {
        if let Some(mut former) = self.child.take() {
            let _ = former.kill();
            let _ = former.wait();
        }
        let Some(state) = &self.handed_over else { return Ok(false) };
        let (link, theirs) = Link::pair()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("pagefold").args([SERVE, &self.name, ADOPT, self.kind.name()]);
        let child = command.stdin(theirs).stdout(Stdio::null()).spawn();
        self.child = Some(child.map_err(|e| CliError::io("starting a keeper", &e))?);
        // This process keeps no end of the keeper's socket, so that it notices the end of the keeper.
        drop(command);
        let this = Started::this()?;
        link.send(Message::Server, &[this.process.as_fd()], &this.pid.to_le_bytes())?;
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
