//! [`CalledDisks`]: the disks of another process; and [`answer`], that process's side.
//!
//! The process that serves the tree is confined: it can open no control socket, and start no server. So it calls the command
//! that has forked it. Each call has a pair of sockets, one end of which goes to the command: calls that take as long as
//! writeback does delay no others. A call and its answer are a line of JSON each. Both processes are of the same program,
//! so the messages have no version.
//!
//! The command takes the caller for hostile: it reads and writes only attributes whose modes allow that, and answers a
//! limited number of calls at once.

use super::{ClassReport, Disks, Errno};
use crate::files::ATTRIBUTE_FILES;
use pagefold_control::protocol;
use pagefold_sys::handover;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::{BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The longest call, bytes: JSON takes up to six for one of the text that is written, which has a page.
const CALL_BYTES_MAX: u64 = 64 << 10;
/// The longest answer, bytes: a piece of `block_state`.
const ANSWER_BYTES_MAX: u64 = 16 << 20;
/// Most calls that are answered at once. The tree makes fewer; more fail with EIO.
const CALLS_MAX: usize = 256;
/// The time in which a call arrives whole.
const CALL_LIMIT: Duration = Duration::from_secs(10);

/// A call: a function of [`Disks`].
#[derive(Debug, Serialize, Deserialize)]
enum Call {
    Numbers,
    Device { number: u32 },
    Read { number: u32, attribute: String },
    Write { number: u32, attribute: String, text: String },
    BlockState { number: u32, first: u64 },
    Classes { number: u32 },
    HotAdd,
    HotRemove { number: u32 },
    Debugfs,
}

/// The disks of the process at the other end of a stream.
pub struct CalledDisks(Mutex<UnixStream>);

impl CalledDisks {
    /// Those of the process that [answers](answer) at the other end.
    pub fn new(stream: UnixStream) -> Self {
        CalledDisks(Mutex::new(stream))
    }

    /// Makes a call, and waits for its answer: an error number, which is EIO if there is none.
    fn call<T: DeserializeOwned>(&self, call: &Call) -> Result<T, Errno> {
        self.try_call(call).unwrap_or(Err(libc::EIO)).map_err(Errno)
    }

    fn try_call<T: DeserializeOwned>(&self, call: &Call) -> Option<Result<T, i32>> {
        let (ours, theirs) = UnixStream::pair().ok()?;
        // The buffer of a socket has room for a call.
        (&ours).write_all(&protocol::line(call).ok()?).ok()?;
        handover::send_fd(&*self.0.lock().unwrap_or_else(PoisonError::into_inner), &theirs).ok()?;
        drop(theirs);
        let answer = protocol::read_line(&mut BufReader::new(&ours), ANSWER_BYTES_MAX).ok()??;
        serde_json::from_slice(&answer).ok()
    }
}

impl Disks for CalledDisks {
    fn numbers(&self) -> Result<Vec<u32>, Errno> {
        self.call(&Call::Numbers)
    }

    fn device(&self, number: u32) -> Result<PathBuf, Errno> {
        self.call(&Call::Device { number })
    }

    fn read(&self, number: u32, attribute: &str) -> Result<String, Errno> {
        self.call(&Call::Read { number, attribute: attribute.into() })
    }

    fn write(&self, number: u32, attribute: &str, text: &str) -> Result<(), Errno> {
        self.call(&Call::Write { number, attribute: attribute.into(), text: text.into() })
    }

    fn block_state(&self, number: u32, first: u64) -> Result<(String, Option<u64>), Errno> {
        self.call(&Call::BlockState { number, first })
    }

    fn classes(&self, number: u32) -> Result<Vec<ClassReport>, Errno> {
        self.call(&Call::Classes { number })
    }

    fn hot_add(&self) -> Result<u32, Errno> {
        self.call(&Call::HotAdd)
    }

    fn hot_remove(&self, number: u32) -> Result<(), Errno> {
        self.call(&Call::HotRemove { number })
    }

    fn debugfs(&self, _: &Path) -> Vec<OsString> {
        let names: Vec<String> = self.call(&Call::Debugfs).unwrap_or_default();
        names.into_iter().map(OsString::from).collect()
    }
}

/// Answers the calls of [`CalledDisks`] at the other end of `stream`, each in a thread, until that end is closed. `debugfs` is
/// the directory whose names the caller may know.
pub fn answer(stream: &UnixStream, disks: &Arc<dyn Disks>, debugfs: &Path) {
    let debugfs: Arc<Path> = debugfs.into();
    while let Ok(Some(call)) = handover::recv_fd(stream) {
        // Without an answer, the caller sees the end of the socket.
        if Arc::strong_count(&debugfs) <= CALLS_MAX {
            let (disks, debugfs) = (disks.clone(), debugfs.clone());
            let answer = move || answer_call(&UnixStream::from(call), &*disks, &debugfs);
            let _ = std::thread::Builder::new().name("call".into()).spawn(answer);
        }
    }
}

/// Answers one call, if it is one.
fn answer_call(stream: &UnixStream, disks: &dyn Disks, debugfs: &Path) {
    let limited = stream.set_read_timeout(Some(CALL_LIMIT));
    let Ok(Ok(Some(line))) =
        limited.map(|()| protocol::read_line(&mut BufReader::new(stream), CALL_BYTES_MAX))
    else {
        return;
    };
    let Ok(call) = serde_json::from_slice(&line) else { return };
    let answer = match call {
        Call::Numbers => line_of(disks.numbers()),
        Call::Device { number } => line_of(disks.device(number)),
        Call::Read { number, attribute } => {
            line_of(allowed(&attribute, 0o444).and_then(|()| disks.read(number, &attribute)))
        }
        Call::Write { number, attribute, text } => {
            line_of(allowed(&attribute, 0o222).and_then(|()| disks.write(number, &attribute, &text)))
        }
        Call::BlockState { number, first } => line_of(disks.block_state(number, first)),
        Call::Classes { number } => line_of(disks.classes(number)),
        Call::HotAdd => line_of(disks.hot_add()),
        Call::HotRemove { number } => line_of(disks.hot_remove(number)),
        Call::Debugfs => {
            let names = disks.debugfs(debugfs).into_iter();
            line_of(Ok(names.filter_map(|name| name.into_string().ok()).collect::<Vec<_>>()))
        }
    };
    // The caller may have ended.
    let _ = answer.map(|line| { stream }.write_all(&line));
}

fn line_of<T: Serialize>(result: Result<T, Errno>) -> pagefold_control::error::Result<Vec<u8>> {
    protocol::line(&result.map_err(|errno| errno.0))
}

/// Fails unless there is an attribute whose mode has one of the bits of `access`.
fn allowed(attribute: &str, access: u16) -> Result<(), Errno> {
    let is_allowed = ATTRIBUTE_FILES.iter().any(|file| file.name == attribute && file.mode & access != 0);
    if is_allowed { Ok(()) } else { Err(Errno(libc::EACCES)) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;

    /// One disk, whose functions answer with their arguments.
    struct OneDisk;

    impl Disks for OneDisk {
        fn numbers(&self) -> Result<Vec<u32>, Errno> {
            Ok(vec![3])
        }

        fn device(&self, number: u32) -> Result<PathBuf, Errno> {
            if number == 3 { Ok("/dev/loop7".into()) } else { Err(Errno(libc::ENODEV)) }
        }

        fn read(&self, number: u32, attribute: &str) -> Result<String, Errno> {
            Ok(format!("{attribute} of {number}"))
        }

        fn write(&self, _: u32, _: &str, text: &str) -> Result<(), Errno> {
            if text == "\"\0\n" { Ok(()) } else { Err(Errno(libc::EINVAL)) }
        }

        fn block_state(&self, _: u32, first: u64) -> Result<(String, Option<u64>), Errno> {
            Ok(("x".repeat(1 << 20), Some(first + 1)))
        }

        fn classes(&self, _: u32) -> Result<Vec<ClassReport>, Errno> {
            Ok(Vec::new())
        }

        fn hot_add(&self) -> Result<u32, Errno> {
            std::thread::sleep(Duration::from_millis(50));
            Ok(4)
        }

        fn hot_remove(&self, _: u32) -> Result<(), Errno> {
            Err(Errno(libc::EBUSY))
        }
    }

    fn called() -> (CalledDisks, std::thread::JoinHandle<()>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let disks: Arc<dyn Disks> = Arc::new(OneDisk);
        let thread = std::thread::spawn(move || answer(&theirs, &disks, Path::new("/nonexistent")));
        (CalledDisks::new(ours), thread)
    }

    #[test]
    fn each_function_is_called_in_the_other_process() {
        let (disks, thread) = called();
        assert_eq!((disks.numbers(), disks.device(3)), (Ok(vec![3]), Ok("/dev/loop7".into())));
        assert_eq!(disks.device(1), Err(Errno(libc::ENODEV)));
        assert_eq!(disks.read(3, "disksize").unwrap(), "disksize of 3");
        assert_eq!(disks.write(3, "disksize", "\"\0\n"), Ok(()));
        assert_eq!(disks.write(3, "disksize", "x"), Err(Errno(libc::EINVAL)));
        let (text, next) = disks.block_state(3, 8).unwrap();
        assert_eq!((text.len(), next), (1 << 20, Some(9)));
        assert_eq!((disks.classes(3), disks.hot_remove(3)), (Ok(vec![]), Err(Errno(libc::EBUSY))));
        assert_eq!(disks.debugfs(Path::new("/")), Vec::<OsString>::new());
        std::thread::scope(|scope| {
            let adds: Vec<_> = (0..50).map(|_| scope.spawn(|| disks.hot_add())).collect();
            assert!(adds.into_iter().all(|add| add.join().unwrap() == Ok(4)));
        });
        drop(disks);
        thread.join().unwrap();
    }

    #[test]
    fn a_hostile_caller_reaches_no_other_attributes_and_gets_no_answer_to_nonsense() {
        let (disks, thread) = called();
        for attribute in ["", "mem_limit", "no_such_attribute", "../disksize"] {
            assert_eq!(disks.read(3, attribute), Err(Errno(libc::EACCES)), "{attribute}");
        }
        for attribute in ["", "mm_stat", "no_such_attribute"] {
            assert_eq!(disks.write(3, attribute, "1"), Err(Errno(libc::EACCES)), "{attribute}");
        }
        for nonsense in ["\n", "{}\n", "\"Nothing\"\n", &format!("\"{}\"\n", "x".repeat(70_000))] {
            let (ours, theirs) = UnixStream::pair().unwrap();
            (&ours).write_all(nonsense.as_bytes()).unwrap();
            handover::send_fd(&*disks.0.lock().unwrap(), &theirs).unwrap();
            drop(theirs);
            let answer = protocol::read_line(&mut BufReader::new(&ours), 100);
            assert!(matches!(answer, Ok(None) | Err(_)), "{answer:?}");
        }
        assert_eq!(disks.numbers(), Ok(vec![3]));
        // A descriptor is missing: the other side ends.
        handover::send_optional_fd(&*disks.0.lock().unwrap(), None::<UnixStream>).unwrap();
        thread.join().unwrap();
    }
}
