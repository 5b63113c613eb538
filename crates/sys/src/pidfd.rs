//! Signalling a process without the risk that its id has been reused; and the memory use of this process.
//!
//! A process id may belong to another process by the time that it is used. A [`Process`] is a descriptor of one process
//! (pidfd). It is opened by id, and then the process's start time is compared with the recorded one, so that a reused
//! id is noticed before a signal is sent.
//!
//! Some sandboxes refuse pidfd_open(2): old seccomp profiles, gVisor. There a process still knows its children, whose ids are
//! theirs until it waits for them: see `Lifeline`.

use crate::{SysError, failed, timer};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, PidfdFlags, Signal, WaitId};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// The identity of a process across reuse of its id: its start time and the boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The process id.
    pub pid: i32,
    /// Field 22 of `/proc/PID/stat`, clock ticks since boot.
    pub start_ticks: u64,
    /// The kernel's random id of this boot.
    pub boot_id: String,
}

impl Identity {
    /// The identity of a running process; `None` if no process has this id.
    pub fn of(pid: i32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        Some(Identity { pid, start_ticks: start_ticks(&stat)?, boot_id: boot_id.trim().to_string() })
    }

    /// The identity of the calling process.
    pub fn of_self() -> Option<Self> {
        Identity::of(i32::try_from(std::process::id()).ok()?)
    }
}

/// Parses the start time. The name in `stat` may contain spaces and parentheses, so fields are counted from the last
/// `)`.
fn start_ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// Whether a signal has stopped a process, so that it answers nothing until another one continues it.
pub fn is_stopped(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    state(&stat) == Some("T")
}

/// Parses the state, the first field after the name.
fn state(stat: &str) -> Option<&str> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().next()
}

/// A descriptor of one process, which stays that process's when its id is reused.
#[derive(Debug)]
pub struct Process {
    fd: OwnedFd,
    /// The id of a child whose descriptor is that of its [`Lifeline`], and no pidfd.
    child: Option<Pid>,
}

/// A pipe whose other end only a child has, so that its end is that of the child: in place of a pidfd.
#[derive(Debug)]
pub(crate) struct Lifeline {
    ours: OwnedFd,
    childs: OwnedFd,
}

impl Lifeline {
    /// Makes one for the next child, if pidfd_open(2) is refused.
    pub(crate) fn if_needed() -> Result<Option<Self>, SysError> {
        match rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty()) {
            Err(Errno::NOSYS | Errno::PERM) => {
                let made = rustix::pipe::pipe_with(PipeFlags::CLOEXEC);
                let (ours, childs) = made.map_err(failed("making a pipe for a child process"))?;
                Ok(Some(Lifeline { ours, childs }))
            }
            _ => Ok(None),
        }
    }

    /// The end that the child keeps as long as it lives.
    pub(crate) fn of_child(self) -> OwnedFd {
        self.childs
    }

    /// The child with this id, which has the other end.
    pub(crate) fn process(self, pid: Pid) -> Process {
        Process { fd: self.ours, child: Some(pid) }
    }
}

/// The error of pidfd_open(2), with the name of the call if a sandbox refuses it.
fn not_opened(what: String) -> impl FnOnce(Errno) -> SysError {
    move |e| match e {
        Errno::NOSYS | Errno::PERM => {
            let needs = "a sandbox or a kernel before Linux 5.3 refuses pidfd_open, which this needs";
            SysError::new(format!("{what}: {needs}"), e.raw_os_error())
        }
        e => SysError::new(what, e.raw_os_error()),
    }
}

impl Process {
    /// Opens the process with this identity; `None` if it has ended, even if another process has its id.
    pub fn open(identity: &Identity) -> Result<Option<Self>, SysError> {
        let Some(pid) = Pid::from_raw(identity.pid).filter(|_| identity.pid > 0) else {
            return Ok(None);
        };
        let fd = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(fd) => fd,
            Err(Errno::SRCH) => return Ok(None),
            Err(e) => return Err(not_opened(format!("opening process {}", identity.pid))(e)),
        };
        // The descriptor is open now, so /proc describes this process or, if it has ended, a later one with this id.
        let process = Process { fd, child: None };
        Ok((Identity::of(identity.pid).as_ref() == Some(identity)).then_some(process))
    }

    /// The child with this id, which nobody has waited for, or the calling process.
    pub(crate) fn of_pid(pid: Pid) -> Result<Self, SysError> {
        let opened = rustix::process::pidfd_open(pid, PidfdFlags::empty());
        let fd = opened.map_err(not_opened("opening a process".into()))?;
        Ok(Process { fd, child: None })
    }

    /// Waits for the end of this process by its descriptor, or by the id of a child without one.
    pub(crate) fn wait_id(&self) -> WaitId<'_> {
        self.child.map_or(WaitId::PidFd(self.fd.as_fd()), WaitId::Pid)
    }

    /// Sends SIGTERM. Succeeds if the process has ended.
    pub fn terminate(&self) -> Result<(), SysError> {
        self.send_signal(Signal::TERM)
    }

    /// Sends the signal with this number. Succeeds if the process has ended.
    pub fn send(&self, number: i32) -> Result<(), SysError> {
        let signal = Signal::from_named_raw(number);
        self.send_signal(signal.ok_or_else(|| SysError::new("signalling a process", libc::EINVAL))?)
    }

    /// Sends SIGKILL. Succeeds if the process has ended.
    pub fn kill(&self) -> Result<(), SysError> {
        self.send_signal(Signal::KILL)
    }

    fn send_signal(&self, signal: Signal) -> Result<(), SysError> {
        let sent = match self.child {
            // The id is the child's until somebody waits for it, after which callers do not signal it.
            Some(pid) => rustix::process::kill_process(pid, signal),
            None => rustix::process::pidfd_send_signal(&self.fd, signal),
        };
        match sent {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(e) => Err(failed("signalling a process")(e)),
        }
    }

    /// Waits until the process has ended; returns `false` if it still runs after `limit`.
    pub fn wait(&self, limit: Duration) -> Result<bool, SysError> {
        let deadline = timer::deadline(Instant::now(), limit);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            match rustix::event::poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&timeout)) {
                Ok(0) => return Ok(false),
                Ok(_) => return Ok(true),
                Err(Errno::INTR) => {}
                Err(e) => return Err(failed("waiting for a process")(e)),
            }
        }
    }
}

/// A descriptor that another process has opened, and handed over.
impl From<OwnedFd> for Process {
    fn from(fd: OwnedFd) -> Self {
        Process { fd, child: None }
    }
}

/// Readable when the process has ended.
impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The resident memory (RSS) of the calling process, bytes; `None` if it cannot be read.
pub fn own_rss_bytes() -> Option<u64> {
    statm_bytes(1).ok()
}

/// A number of `/proc/self/statm`, counted from 0, in bytes.
fn statm_bytes(at: usize) -> Result<u64, SysError> {
    Statm::open()?.bytes(at)
}

/// The file `/proc/self/statm` of the process that opened it, which it can read after it was confined.
#[derive(Debug)]
pub(crate) struct Statm(std::fs::File);

impl Statm {
    const PATH: &str = "/proc/self/statm";

    pub(crate) fn open() -> Result<Self, SysError> {
        let opened = std::fs::File::open(Self::PATH);
        opened.map(Statm).map_err(|e| SysError::io(format!("opening {}", Self::PATH), &e))
    }

    /// The number at this position, counted from 0, in bytes.
    pub(crate) fn bytes(&self, at: usize) -> Result<u64, SysError> {
        // Seven numbers of 20 digits at most.
        let mut text = [0; 256];
        let len = std::os::unix::fs::FileExt::read_at(&self.0, &mut text, 0);
        let len = len.map_err(|e| SysError::io(format!("reading {}", Self::PATH), &e))?;
        let text = String::from_utf8_lossy(&text[..len]);
        let pages = text.split_ascii_whitespace().nth(at).and_then(|pages| pages.parse::<u64>().ok());
        let bytes = pages.and_then(|pages| pages.checked_mul(rustix::param::page_size() as u64));
        let what = || format!("{} has no number at position {at}", Self::PATH);
        bytes.ok_or_else(|| SysError::new(what(), libc::EINVAL))
    }
}

/// The peak resident memory of the calling process, bytes; `None` if it cannot be read.
pub fn own_peak_rss_bytes() -> Option<u64> {
    status_bytes("self", "VmHWM:")
}

/// An amount of memory in `/proc/PID/status`, such as that of `VmRSS:`, in bytes; `None` if the process is gone.
pub fn status_bytes(pid: &str, field: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let amount = status.lines().find_map(|line| line.strip_prefix(field))?;
    amount.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_not_far_below_the_resident_memory() {
        let (now, peak) = (own_rss_bytes().unwrap(), own_peak_rss_bytes().unwrap());
        assert!(now > 0 && peak >= now / 2, "{now} {peak}");
    }

    #[test]
    fn a_child_is_found_killed_and_then_gone() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let identity = Identity::of(child.id() as i32).unwrap();
        let process = Process::open(&identity).unwrap().unwrap();
        assert!(!process.wait(Duration::ZERO).unwrap());
        process.kill().unwrap();
        assert!(process.wait(Duration::from_secs(60)).unwrap());
        child.wait().unwrap();
        assert!(Process::open(&identity).unwrap().is_none());
    }

    #[test]
    fn a_later_process_with_the_same_id_is_another() {
        let mut identity = Identity::of_self().unwrap();
        assert!(Process::open(&identity).unwrap().is_some());
        identity.start_ticks += 1;
        assert!(Process::open(&identity).unwrap().is_none());
    }

    #[test]
    fn a_stopped_process_is_noticed() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        assert!(!is_stopped(pid) && !is_stopped(0));
        let signal = |signal| rustix::process::kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
        signal(Signal::STOP);
        while !is_stopped(pid) {
            std::thread::yield_now();
        }
        signal(Signal::CONT);
        while is_stopped(pid) {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(state("1 (a) T (b) S 0"), Some("S"));
    }

    #[test]
    fn start_ticks_are_parsed_after_a_name_with_parentheses() {
        let tail = (4..=52).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
        assert_eq!(start_ticks(&format!("7 (a) 1 (b) R {tail}")), Some(22));
        assert_eq!(start_ticks("7 (a"), None);
    }

    #[test]
    fn this_process_has_resident_memory() {
        assert!(own_rss_bytes().unwrap() > 1 << 16);
    }
}
