//! Starting a program from its open file, without allocating memory: for a process that must start a new server just
//! when memory has run out.
//!
//! [`Program::new`] prepares the arguments; [`Program::start`] only makes system calls: fork(2), fexecve(3),
//! pidfd_open(2). The program is that of the open file, whatever lies at its path by now.

use crate::SysError;
use crate::pidfd::{Lifeline, Process};
use rustix::process::{Pid, WaitIdOptions};
use std::ffi::{CString, c_char};
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The prepared arguments of a program.
pub struct Program {
    /// Holds what `pointers` points to.
    _arguments: Vec<CString>,
    pointers: Vec<*const c_char>,
}

/// A process that was started, by this process or another one.
pub struct Started {
    /// Its id, for messages.
    pub pid: i32,
    /// Its descriptor.
    pub process: Process,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It has exited with this code.
    Code(i32),
    /// This signal has ended it.
    Signal(i32),
    /// It is the child of another process, which alone learns that.
    Unknown,
}

/// Opens the file of a program, for [`Program::start`].
pub fn open_program(path: &Path) -> Result<File, SysError> {
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path);
    opened.map_err(|e| SysError::io(format!("opening '{}'", path.display()), &e))
}

impl Program {
    /// Prepares the arguments, the name of the program first. Fails if one contains a zero byte.
    pub fn new(arguments: &[&str]) -> Result<Self, SysError> {
        let zero = |_| SysError::new("preparing a program's arguments", libc::EINVAL);
        let arguments = arguments.iter().map(|argument| CString::new(*argument).map_err(zero));
        let arguments = arguments.collect::<Result<Vec<_>, _>>()?;
        let pointers = arguments.iter().map(|argument| argument.as_ptr());
        let pointers = pointers.chain(std::iter::once(std::ptr::null())).collect();
        Ok(Program { _arguments: arguments, pointers })
    }

    /// Starts the program `file` with `stdin` as its standard input, with this process's environment, standard output and
    /// standard error, and with no signal blocked. Allocates no memory.
    pub fn start(&self, file: &File, stdin: BorrowedFd<'_>) -> Result<Started, SysError> {
        unsafe extern "C" {
            static environ: *const *const c_char;
        }
        // SAFETY: the child makes only calls that are safe in a signal handler, on descriptors and on memory that it has a
        // copy of, and then becomes another program or exits: it never returns from this block.
        let pid = unsafe {
            let pid = libc::fork();
            if pid == 0 {
                let mut none = std::mem::zeroed();
                libc::sigemptyset(&raw mut none);
                libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
                if libc::dup2(stdin.as_raw_fd(), 0) == 0 {
                    // By execveat(2), or by a path in /proc where that does not exist.
                    libc::fexecve(file.as_raw_fd(), self.pointers.as_ptr(), environ);
                }
                libc::_exit(127);
            }
            pid
        };
        Started::of_child(pid, None)
    }
}

impl Started {
    /// The child that fork(2) has just returned, which has the other end of `lifeline`, if there is one.
    pub(crate) fn of_child(pid: i32, lifeline: Option<Lifeline>) -> Result<Self, SysError> {
        let started = Pid::from_raw(pid).filter(|_| pid > 0);
        let pid = started.ok_or_else(|| SysError::last("starting a process (fork)"))?;
        let process = lifeline.map_or_else(|| Process::of_pid(pid), |lifeline| Ok(lifeline.process(pid)));
        let process = process.inspect_err(|_| {
            // It is a child that nobody has waited for, so the id is its own.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
        })?;
        Ok(Started { pid: pid.as_raw_nonzero().get(), process })
    }

    /// The calling process.
    pub fn this() -> Result<Self, SysError> {
        let pid = rustix::process::getpid();
        Ok(Started { pid: pid.as_raw_nonzero().get(), process: Process::of_pid(pid)? })
    }

    /// How it ended; waits for that.
    pub fn wait(&self) -> End {
        let fd = self.process.as_fd();
        loop {
            match rustix::process::waitid(self.process.wait_id(), WaitIdOptions::EXITED) {
                Err(rustix::io::Errno::INTR) => {}
                Ok(Some(status)) => {
                    let by_signal = status.terminating_signal().map(End::Signal);
                    let exited = status.exit_status().map(End::Code);
                    return by_signal.or(exited).unwrap_or(End::Unknown);
                }
                Ok(None) | Err(_) => {
                    // Of another parent: only its end can be seen.
                    let _ = crate::ready::wait([fd], None);
                    return End::Unknown;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_program_is_started_from_its_open_file_and_its_end_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program");
        std::fs::copy("/bin/sh", &path).unwrap();
        let file = open_program(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let script = "read line; echo \"$line\" >&0; [ \"$line\" = die ] && kill -9 $$; exit 7";
        let program = Program::new(&["sh", "-c", script]).unwrap();
        for (line, end) in [("go\n", End::Code(7)), ("die\n", End::Signal(9))] {
            let started = program.start(&file, theirs.as_fd()).unwrap();
            ours.write_all(line.as_bytes()).unwrap();
            let mut answer = vec![0; line.len()];
            ours.read_exact(&mut answer).unwrap();
            assert_eq!(answer, line.as_bytes());
            assert_eq!(started.wait(), end);
            started.process.terminate().unwrap();
        }
        assert!(open_program(&path).is_err() && Program::new(&["a\0b"]).is_err());
        let started = program.start(&File::open("/dev/null").unwrap(), theirs.as_fd()).unwrap();
        assert_eq!(started.wait(), End::Code(127));
    }
}
