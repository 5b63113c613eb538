//! [`Status`]: what a keeper tells commands, in its state file, and people, in the log. It allocates nothing after its
//! start.

use pagefold_control::instance::keeper::{KeeperState, STATE, STATE_BYTES_MAX, STATE_NEW, ServerEnd};
use pagefold_control::instance::state::Server;
use pagefold_page::DateTime;
use pagefold_sys::pidfd::Identity;
use rustix::fs::{Mode, OFlags};
use std::borrow::Cow;
use std::fmt::Arguments;
use std::io::{Cursor, Write};
use std::os::fd::OwnedFd;
use std::time::{SystemTime, UNIX_EPOCH};

/// Longest reason that is kept, bytes.
const FAILURE_BYTES_MAX: usize = 1024;

/// The figures of the state file.
pub struct Status {
    identity: Option<Server>,
    pub restarts: u64,
    died_unix_s: Option<u64>,
    end: Option<ServerEnd>,
    pub is_held: bool,
    requests: u64,
    failed: bool,
    failure: String,
}

impl Status {
    /// That of this process, before its server has died.
    pub fn new() -> Self {
        Status {
            identity: Identity::of_self().map(Into::into),
            restarts: 0,
            died_unix_s: None,
            end: None,
            is_held: false,
            requests: 0,
            failed: false,
            failure: String::with_capacity(FAILURE_BYTES_MAX),
        }
    }

    /// Continues the history of a former keeper, whose state file is in the folder `dir`.
    pub fn continue_from(&mut self, dir: &OwnedFd) {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mut text = [0u8; STATE_BYTES_MAX];
        let opened = rustix::fs::openat(dir, STATE, flags, Mode::empty());
        let len = opened.and_then(|file| rustix::io::read(&file, &mut text)).unwrap_or(0);
        if let Ok(state) = serde_json::from_slice::<KeeperState<'_>>(&text[..len]) {
            self.restarts = state.restarts;
            self.died_unix_s = state.died_unix_s;
            self.end = state.end;
            self.requests = state.requests;
        }
    }

    /// Notes that a server has died.
    pub fn note_death(&mut self, end: ServerEnd) {
        self.end = Some(end);
        self.died_unix_s = Some(now_unix_s());
    }

    /// Notes that a request of a command is done. A failure has a reason, of which the beginning is kept.
    pub fn note_request(&mut self, failure: Option<&[u8]>) {
        self.requests += 1;
        self.failed = failure.is_some();
        self.failure.clear();
        for c in failure.unwrap_or_default().utf8_chunks().flat_map(|chunk| chunk.valid().chars()) {
            let c = if c.is_control() { ' ' } else { c };
            if self.failure.len() + c.len_utf8() > FAILURE_BYTES_MAX {
                break;
            }
            self.failure.push(c);
        }
    }

    /// Writes the state file in the folder `dir`, so that a reader sees the old one or the new one, whole. A failure is
    /// ignored: the mount matters more.
    pub fn write(&self, dir: &OwnedFd) {
        let Some(keeper) = self.identity.as_ref().map(Cow::Borrowed) else { return };
        let state = KeeperState {
            keeper,
            restarts: self.restarts,
            died_unix_s: self.died_unix_s,
            end: self.end,
            is_held: self.is_held,
            requests: self.requests,
            failure: self.failed.then_some(Cow::Borrowed(self.failure.as_str())),
        };
        let mut text = Cursor::new([0u8; STATE_BYTES_MAX]);
        if serde_json::to_writer(&mut text, &state).is_err() {
            return;
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let Ok(file) = rustix::fs::openat(dir, STATE_NEW, flags, Mode::RUSR | Mode::WUSR) else { return };
        let len = text.position() as usize;
        if rustix::io::write(&file, &text.get_ref()[..len]) == Ok(len) {
            let _ = rustix::fs::renameat(dir, STATE_NEW, dir, STATE);
        }
    }
}

/// Adds a line to the log, which is standard error, unless that would block: it may be a terminal that is stopped.
pub fn log(text: Arguments<'_>) {
    let DateTime { year, month, day, hour, minute, second } =
        DateTime::of_unix(i64::try_from(now_unix_s()).unwrap_or(i64::MAX));
    let mut line = Cursor::new([0u8; 512]);
    // A line that is too long is cut.
    let _ = writeln!(line, "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} keeper: {text}");
    let len = line.position() as usize;
    if pagefold_sys::ready::is_writable(rustix::stdio::stderr()) {
        let _ = rustix::io::write(rustix::stdio::stderr(), &line.get_ref()[..len]);
    }
}

fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}
