//! Support of the end-to-end tests: runs the program with a private runtime folder.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

pub mod guest;
pub mod help;
pub mod writeback;
pub mod zram;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A private folder with a runtime folder. When dropped, it removes the disks that still run.
pub struct Sandbox {
    top: tempfile::TempDir,
    uid: Option<u32>,
}

impl Sandbox {
    pub fn new() -> Self {
        let top = tempfile::tempdir().unwrap();
        std::fs::set_permissions(top.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        Sandbox { top, uid: None }
    }

    /// A sandbox whose commands run as another user; needs root.
    pub fn for_user(uid: u32) -> Self {
        let mut sandbox = Sandbox::new();
        std::os::unix::fs::chown(sandbox.top.path(), Some(uid), Some(uid)).unwrap();
        // Copied by another process: if this one had the copy open for writing, a child that another test forks
        // meanwhile would inherit it, and running the copy would fail ("text file busy").
        let copied =
            Command::new("cp").arg(env!("CARGO_BIN_EXE_pagefold")).arg(sandbox.path("pagefold")).status();
        assert!(copied.unwrap().success());
        sandbox.uid = Some(uid);
        sandbox
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.top.path().canonicalize().unwrap().join(name)
    }

    pub fn runtime(&self) -> PathBuf {
        self.path("run")
    }

    pub fn command(&self, words: &str) -> Command {
        let program = match self.uid {
            Some(_) => self.path("pagefold"),
            None => env!("CARGO_BIN_EXE_pagefold").into(),
        };
        let mut command = Command::new(program);
        command.args(words.split_whitespace()).env("PAGEFOLD_RUNTIME_DIR", self.runtime());
        // No cache of remote images, unless a test names one.
        command.env("PAGEFOLD_CACHE_DIR", "");
        command.stdin(Stdio::null());
        if let Some(uid) = self.uid {
            use std::os::unix::process::CommandExt;
            command.uid(uid).gid(uid);
        }
        command
    }

    /// The same, with the output discarded.
    pub fn quietly(&self, words: &str) -> Command {
        let mut command = self.command(words);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Runs the program and waits for it.
    pub fn run(&self, words: &str) -> Ran {
        Ran::new(words, self.command(words).output().unwrap())
    }

    /// Runs the program, expects success, and returns its standard output.
    pub fn ok(&self, words: &str) -> String {
        self.run(words).succeeds()
    }

    /// The JSON of `disk show`.
    pub fn show(&self, name: &str) -> serde_json::Value {
        serde_json::from_str(&self.ok(&format!("disk show {name} --json"))).unwrap()
    }

    pub fn server_pid(&self, name: &str) -> i32 {
        self.show(name)["server"]["pid"].as_i64().unwrap() as i32
    }

    pub fn keeper_pid(&self, name: &str) -> i32 {
        let text = std::fs::read(self.runtime().join(name).join("keeper")).unwrap();
        let state: serde_json::Value = serde_json::from_slice(&text).unwrap();
        state["keeper"]["pid"].as_i64().unwrap() as i32
    }

    /// Kills the server of a disk and its keeper, if it has one, together, so that the contents are lost, and waits for their
    /// ends.
    pub fn kill_disk(&self, name: &str) {
        let server = self.server_pid(name);
        if self.show(name)["keeper"]["without_keeper"].is_string() {
            kill(server, "KILL");
            return wait_until("the server has exited", || !is_running(server));
        }
        let keeper = self.keeper_pid(name);
        // Stopped first, so that it starts no other server.
        for (pid, signal) in [(keeper, "STOP"), (server, "KILL"), (keeper, "KILL")] {
            kill(pid, signal);
        }
        wait_until("the keeper has exited", || !is_running(keeper));
        wait_until("the server has exited", || !is_running(server));
    }

    /// Aborts the FUSE connection of a disk with a loop device, as `umount -f` does.
    pub fn abort_export(&self, name: &str) {
        pagefold_sys::fusedev::abort(&self.runtime().join(name).join("mnt")).unwrap();
    }

    /// Expects that commands and the log of a disk say that its export has ended.
    pub fn assert_export_ended(&self, name: &str) {
        wait_until("the threads have ended", || self.show(name)["state"] == "export_ended");
        let reason = self.show(name)["export_failure"].as_str().unwrap().to_string();
        assert!(reason.contains("connection aborted"), "{reason}");
        let (shown, list) = (self.ok(&format!("disk show {name}")), self.ok("disk list"));
        let says = "the export has ended: every request fails";
        assert!(shown.contains(says) && shown.contains(&reason) && shown.contains("disk remove"), "{shown}");
        assert!(list.contains(says), "{list}");
        let log = || std::fs::read_to_string(self.runtime().join(name).join("log")).unwrap();
        wait_until("the end is logged", || log().contains("the export has ended") && log().contains(&reason));
    }

    /// The names in the runtime folder, except those that stay: the lock, the counter of names, the logs of servers
    /// that died, the folders of mounted images and of zram shells.
    pub fn left(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.runtime()).into_iter().flatten().flatten();
        let names = entries.map(|e| e.file_name().into_string().unwrap());
        names.filter(|n| ![".lock", ".counter", ".logs", ".images", ".shell"].contains(&n.as_str())).collect()
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // A failed test may have left a file system mounted on its disk.
        let _ = Command::new("umount").arg(self.path("mnt")).stderr(Stdio::null()).status();
        for name in self.left() {
            let _ = self.command(&format!("disk remove {name} --force")).output();
        }
    }
}

/// The result of a command.
#[derive(Debug)]
pub struct Ran {
    pub words: String,
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Ran {
    pub fn new(words: &str, output: Output) -> Self {
        Ran {
            words: words.to_string(),
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Expects success, and returns the standard output.
    pub fn succeeds(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.out
    }

    /// Expects a failure with the exit code `code` and a message that contains `says`.
    pub fn fails(&self, code: i32, says: &str) {
        assert_eq!(self.code, code, "{self:?}");
        assert!(self.err.contains(says), "{self:?} does not say {says:?}");
        assert!(self.err.contains("pagefold: error: "), "{self:?}");
    }
}

/// Sends a signal. (Not by the program `kill`, which a minimal system does not have.)
pub fn kill(pid: i32, signal: &str) {
    use rustix::process::Signal;
    let signal = match signal {
        "KILL" => Signal::KILL,
        "TERM" => Signal::TERM,
        "INT" => Signal::INT,
        "HUP" => Signal::HUP,
        "STOP" => Signal::STOP,
        "CONT" => Signal::CONT,
        other => panic!("no signal {other} here"),
    };
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// The reason that a test cannot interrupt programs: a shell starts background jobs with SIGINT ignored, and the
/// programs of the test inherit that.
pub fn no_interrupts() -> Option<&'static str> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap();
    (ignored & 1 << (libc::SIGINT - 1) != 0)
        .then_some("SIGINT is ignored here: run the tests in the foreground")
}

/// Keeps other tests from adding and removing swap areas: the kernel may find no room for a page just then, and kill its
/// process.
pub fn alone_with_swap() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn is_running(pid: i32) -> bool {
    // A zombie is not running.
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| !s.contains(") Z "))
}

/// Waits for a condition, for a minute at most.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "timeout: waited until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").unwrap().uid() == 0
}

/// The reason that the loop export cannot be tested here, if it cannot.
pub fn no_loop() -> Option<&'static str> {
    let opens = |p: &str| std::fs::OpenOptions::new().read(true).write(true).open(p).is_ok();
    match () {
        _ if !is_root() => Some("needs root"),
        _ if !opens("/dev/fuse") => Some("needs /dev/fuse"),
        _ if !opens("/dev/loop-control") => Some("needs /dev/loop-control"),
        _ => None,
    }
}

pub fn have(program: &str) -> bool {
    let found = |dir: PathBuf| dir.join(program).is_file();
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).chain(["/sbin".into(), "/usr/sbin".into()]).any(found)
}

pub fn sh(program: &str, args: &[&str]) {
    let path = format!("{}:/sbin:/usr/sbin", std::env::var("PATH").unwrap_or_default());
    let output = Command::new(program).args(args).env("PATH", path).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A minimal NBD client on a unix socket.
pub struct Nbd(std::os::unix::net::UnixStream);

impl Nbd {
    pub fn connect(socket: &Path) -> Self {
        Self::try_connect(socket).unwrap()
    }

    /// Whether a client can open the export.
    pub fn is_served(socket: &Path) -> bool {
        Self::try_connect(socket).is_ok()
    }

    pub fn try_connect(socket: &Path) -> std::io::Result<Self> {
        use std::io::{Read, Write};
        let mut s = std::os::unix::net::UnixStream::connect(socket)?;
        let mut hello = [0; 18];
        s.read_exact(&mut hello)?;
        assert_eq!(&hello[..16], b"NBDMAGICIHAVEOPT");
        // Fixed newstyle, no padding; then the default export by NBD_OPT_EXPORT_NAME.
        s.write_all(&3u32.to_be_bytes())?;
        s.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\0")?;
        let mut export = [0; 10];
        s.read_exact(&mut export)?;
        Ok(Nbd(s))
    }

    /// Sends a request, and returns the error number of the reply.
    fn request(&mut self, command: u16, offset: u64, len: u32, data: &[u8]) -> u32 {
        self.try_request(command, offset, len, data).unwrap()
    }

    /// The same; an error if the server disconnects.
    pub fn try_request(&mut self, command: u16, offset: u64, len: u32, data: &[u8]) -> std::io::Result<u32> {
        use std::io::{Read, Write};
        let mut r = 0x25609513u32.to_be_bytes().to_vec();
        r.extend([0, 0]);
        r.extend(command.to_be_bytes());
        r.extend([7; 8]);
        r.extend(offset.to_be_bytes());
        r.extend(len.to_be_bytes());
        r.extend(data);
        self.0.write_all(&r)?;
        let mut reply = [0; 16];
        self.0.read_exact(&mut reply)?;
        Ok(u32::from_be_bytes(reply[4..8].try_into().unwrap()))
    }

    /// Writes, and returns whether that succeeded.
    pub fn try_write(&mut self, offset: u64, data: &[u8]) -> bool {
        self.request(1, offset, data.len() as u32, data) == 0
    }

    /// Writes zeroes, and returns whether that succeeded.
    pub fn try_zero(&mut self, offset: u64, len: u32) -> bool {
        self.request(6, offset, len, &[]) == 0
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) {
        assert!(self.try_write(offset, data), "the server reports an error");
    }

    /// Reads; an error if the server disconnects.
    pub fn try_read(&mut self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        use std::io::Read;
        match self.try_request(0, offset, buf.len() as u32, &[])? {
            0 => self.0.read_exact(buf),
            errno => Err(std::io::Error::from_raw_os_error(errno as i32)),
        }
    }

    pub fn read(&mut self, offset: u64, buf: &mut [u8]) {
        use std::io::Read;
        assert_eq!(self.request(0, offset, buf.len() as u32, &[]), 0, "the server reports an error");
        self.0.read_exact(buf).unwrap();
    }
}
