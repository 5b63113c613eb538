//! The processes that die: this program, run again with the name of a part in an environment variable.

use pagefold_sys::sharedmem::SharedMemory;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// The variable that makes a process of this program a child: the part that it runs, with its arguments.
const PART: &str = "PAGEFOLD_KEPT_PART";
/// The descriptors that a child has: the memory of the store, the notes, and the medium of the backing.
const MEMORY_FD: i32 = 700;
const NOTES_FD: i32 = 701;
const MEDIUM_FD: i32 = 702;
/// glibc copies long ranges by vector instructions then. A single `rep movsb` would be stepped over byte by byte.
const TUNABLES: &str =
    "glibc.cpu.x86_rep_movsb_threshold=0x7fffffff:glibc.cpu.x86_rep_stosb_threshold=0x7fffffff";

/// Files that parent and child share.
pub struct Shared {
    /// The memory of the store.
    pub memory: SharedMemory,
    /// Facts that the child notes for the parent.
    pub notes: File,
    /// The medium of the store's backing; empty if it has none.
    pub medium: File,
}

impl Shared {
    /// Creates empty files.
    pub fn new() -> Self {
        let memory = SharedMemory::new().unwrap();
        Shared { memory, notes: memory_file(), medium: memory_file() }
    }
}

/// Creates an empty file in memory.
pub fn memory_file() -> File {
    file_of(&SharedMemory::new().unwrap())
}

/// Another descriptor of shared memory, as a file.
pub fn file_of(memory: &SharedMemory) -> File {
    memory.as_fd().try_clone_to_owned().unwrap().into()
}

/// Starts a child that runs `part`.
pub fn start(part: &str, shared: &Shared) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child::child", "--nocapture", "--test-threads=1"]);
    command
        .env(PART, part)
        .env("GLIBC_TUNABLES", TUNABLES)
        .env_remove("RUST_BACKTRACE")
        .stdout(Stdio::null());
    let fds = [
        (shared.memory.as_fd().as_raw_fd(), MEMORY_FD),
        (shared.notes.as_raw_fd(), NOTES_FD),
        (shared.medium.as_raw_fd(), MEDIUM_FD),
    ];
    // SAFETY: `dup2` may be called between fork and exec; the descriptors are open as long as `shared`.
    unsafe {
        command.pre_exec(move || {
            for (from, to) in fds {
                if libc::dup2(from, to) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
    command.spawn().unwrap()
}

/// Not a test by itself: the process that dies.
#[test]
fn child() {
    let Ok(part) = std::env::var(PART) else { return };
    let owned = |fd| {
        // SAFETY: the parent has opened it for this process, and this is the only value that owns it.
        unsafe { OwnedFd::from_raw_fd(fd) }
    };
    let memory = SharedMemory::from_fd(owned(MEMORY_FD), false);
    let shared = Shared { memory, notes: owned(NOTES_FD).into(), medium: owned(MEDIUM_FD).into() };
    match part.split_once(' ').unwrap() {
        #[cfg(target_arch = "x86_64")]
        ("step", name) => crate::step::run_child(name, shared),
        #[cfg(target_arch = "x86_64")]
        ("recovery", name) => crate::step::run_recovery(name, shared),
        #[cfg(target_arch = "x86_64")]
        ("pair", words) => crate::step::pairs::run_child(words, shared),
        #[cfg(target_arch = "x86_64")]
        ("toy", _) => crate::step::toy::run_child(shared),
        ("kills", words) => crate::kills::run_child(words, shared),
        ("tamper", words) => crate::tamper::run_child(words, shared),
        _ => panic!("no part {part}"),
    }
}
