//! What a killed server leaves is cleaned up, and a door that fails half-way leaves nothing.
//!
//! These need processes of their own: to be killed, or to have their descriptors limited. The test
//! binary starts itself again with [`ROLE`] set, which makes one test play the server's part.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed unwrap is a failed test")]

mod support;

use crate::support::loop_device::{Aligned, Mounted, have, is_clean, open, open_direct, run, skip};
use pagefold_block::loopdoor::{CleanUp, DoorError, LoopDoor, LoopOptions, clean_up};
use pagefold_block::{BlockDevice, BlockError, RamDevice};
use pagefold_sys::blockuse::{self, BlockUse};
use pagefold_sys::loopdev::{self, LoopIdentity};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// The environment variable that makes [`plays_its_role`] a server: what to do, and a directory.
const ROLE: &str = "PAGEFOLD_TEST_ROLE";
/// What a server's one line of output begins with, among the test harness's own.
const READY: &str = "ready:";
const MIB: u64 = 1 << 20;

/// The other process's part. Without a role there is nothing to play.
#[test]
fn plays_its_role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (what, dir) = role.split_once(':').unwrap();
    match what {
        "serve" => serve(Path::new(dir)),
        "hang" => hang_in_itself(Path::new(dir)),
        "starve" => starve_of_descriptors(Path::new(dir)),
        "harden" => println!("\n{READY}{}", harden()),
        _ => panic!("no role {what}"),
    }
}

fn as_role(role: &str, dir: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "plays_its_role", "--nocapture", "--test-threads=1"]);
    command.env(ROLE, format!("{role}:{}", dir.display())).stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

fn serve(dir: &Path) {
    let _door = serve_device(dir, Arc::new(RamDevice::new(32 * MIB)));
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

fn serve_device(dir: &Path, device: Arc<dyn BlockDevice>) -> LoopDoor {
    let door = LoopDoor::start(device, dir, LoopOptions::default()).unwrap();
    let identity = door.identity();
    println!("\n{READY}{} {} {}", door.device_path().display(), identity.lo_device, identity.lo_inode);
    std::io::stdout().flush().unwrap();
    door
}

/// A device whose writes never end.
struct Endless(RamDevice);

impl BlockDevice for Endless {
    fn len_bytes(&self) -> u64 {
        self.0.len_bytes()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BlockError> {
        self.0.read_at(offset, buf)
    }
    fn write_at(&self, _: u64, _: &[u8]) -> Result<(), BlockError> {
        loop {
            std::thread::park();
        }
    }
    fn discard(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        self.0.discard(offset, len)
    }
    fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        self.0.write_zeroes(offset, len)
    }
    fn flush(&self) -> Result<(), BlockError> {
        Ok(())
    }
}

/// Waits, where no signal is heard, for pages that only this process could take.
fn hang_in_itself(dir: &Path) {
    let door = serve_device(dir, Arc::new(Endless(RamDevice::new(MIB))));
    let mut file = File::options().write(true).open(door.device_path()).unwrap();
    file.write_all(&[1; 4096]).unwrap();
    let _ = file.sync_all();
}

/// A server in another process, killed and cleaned up after on drop.
struct Server {
    child: Child,
    dir: tempfile::TempDir,
    device: PathBuf,
    identity: LoopIdentity,
}

impl Server {
    /// `None`, said on standard error, where there is no loop door.
    fn start(test: &str) -> Option<Self> {
        Server::start_as(test, "serve")
    }

    fn start_as(test: &str, role: &str) -> Option<Self> {
        open(test, Arc::new(RamDevice::new(MIB)))?;
        let dir = tempfile::tempdir().unwrap();
        let mut child = as_role(role, dir.path()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines.map(Result::unwrap).find_map(|l| l.strip_prefix(READY).map(str::to_string)).unwrap();
        let fields: Vec<_> = line.split(' ').collect();
        let identity =
            LoopIdentity { lo_device: fields[1].parse().unwrap(), lo_inode: fields[2].parse().unwrap() };
        Some(Server { child, dir, device: fields[0].into(), identity })
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Not waited for before: it may be one that only the clean-up lets go.
        let _ = self.child.kill();
        let _ = clean_up(self.dir.path(), Some(self.identity));
        let _ = self.child.wait();
        let _ = clean_up(self.dir.path(), Some(self.identity));
    }
}

#[test]
fn killed_server_is_cleaned_up_with_its_record_and_without() {
    for with_record in [true, false] {
        let Some(mut server) = Server::start("killed_server_is_cleaned_up_with_its_record_and_without")
        else {
            return;
        };
        let bytes = Aligned::new(MIB as usize, 5);
        open_direct(&server.device).write_all_at(&bytes, 0).unwrap();
        server.kill();
        // The dead device answers, with an error, and still tells what it stood on.
        let mut page = Aligned::new(4096, 0);
        let error = open_direct(&server.device).read_exact_at(&mut page, 0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
        assert_eq!(loopdev::identity(&server.device), Ok(Some(server.identity)));
        let done = clean_up(server.dir.path(), with_record.then_some(server.identity)).unwrap();
        let want = CleanUp { detached: vec![server.device.clone()], open: vec![], unmounted: true };
        assert_eq!(done, want);
        assert!(is_clean(server.dir.path()));
        assert_eq!(clean_up(server.dir.path(), Some(server.identity)), Ok(CleanUp::default()));
        // The place can be used again at once.
        let again = LoopDoor::start(Arc::new(RamDevice::new(MIB)), server.dir.path(), LoopOptions::default());
        again.unwrap().stop().unwrap();
    }
}

#[test]
fn killed_server_with_cached_writes_and_a_lost_mount_point_is_cleaned_up() {
    const TEST: &str = "killed_server_with_cached_writes_and_a_lost_mount_point_is_cleaned_up";
    let Some(mut server) = Server::start(TEST) else { return };
    // Dirty pages in the device's cache, which nobody will ever take.
    let mut cached = File::options().write(true).open(&server.device).unwrap();
    cached.write_all(&vec![9; 8 * MIB as usize]).unwrap();
    server.kill();
    run("umount", &["-l", server.dir.path().to_str().unwrap()]);
    let done = clean_up(server.dir.path(), Some(server.identity)).unwrap();
    assert_eq!((done.open, done.unmounted), (vec![server.device.clone()], false));
    drop(cached);
    assert_ne!(loopdev::identity(&server.device), Ok(Some(server.identity)));
    assert!(is_clean(server.dir.path()));
}

/// Whether some thread of the process is in a sleep that no signal ends.
fn sleeps_for_good(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.map(|t| t.path().join("stat")).any(|stat| {
        let text = std::fs::read_to_string(stat).unwrap_or_default();
        text.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('D'))
    })
}

#[test]
fn killed_server_that_hangs_in_itself_is_let_go() {
    let Some(mut server) = Server::start_as("killed_server_that_hangs_in_itself_is_let_go", "hang") else {
        return;
    };
    while !sleeps_for_good(server.child.id()) {
        std::thread::yield_now();
    }
    server.child.kill().unwrap();
    assert_eq!(server.child.try_wait().unwrap(), None);
    let done = clean_up(server.dir.path(), None).unwrap();
    assert!(done.unmounted);
    server.child.wait().unwrap();
    assert_ne!(loopdev::identity(&server.device), Ok(Some(server.identity)));
    assert!(is_clean(server.dir.path()));
}

#[test]
fn killed_server_under_a_mounted_file_system_waits_for_its_users() {
    const TEST: &str = "killed_server_under_a_mounted_file_system_waits_for_its_users";
    if !have(TEST, &["mkfs.ext4", "mount", "umount"]) {
        return;
    }
    let Some(mut server) = Server::start(TEST) else { return };
    run("mkfs.ext4", &["-q", "-F", server.device.to_str().unwrap()]);
    let at = tempfile::tempdir().unwrap();
    let mounted = Mounted::new(&server.device, at.path());
    std::fs::write(at.path().join("unsynced"), vec![3; MIB as usize]).unwrap();
    server.kill();
    for _ in 0..2 {
        let Err(DoorError::InUse { device, uses }) = clean_up(server.dir.path(), Some(server.identity))
        else {
            panic!("cleaned up under a mount");
        };
        assert_eq!(device, server.device);
        let mount_point = at.path().canonicalize().unwrap();
        assert_eq!(uses, [BlockUse::Mounted { mount_point }]);
    }
    drop(mounted);
    // A lazy unmount may let go a moment later; the claim then is the kernel's.
    while !blockuse::claims(&server.device).unwrap().is_empty() {
        std::thread::yield_now();
    }
    clean_up(server.dir.path(), Some(server.identity)).unwrap();
    assert!(is_clean(server.dir.path()));
}

#[test]
fn clean_up_of_a_place_that_never_was_finds_nothing() {
    if !rustix::process::geteuid().is_root() {
        skip::<()>("clean_up_of_a_place_that_never_was_finds_nothing", "it needs root");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(clean_up(dir.path(), None), Ok(CleanUp::default()));
    assert_eq!(clean_up(&dir.path().join("a/b"), None), Ok(CleanUp::default()));
}

#[test]
fn start_refused_any_descriptor_leaves_nothing() {
    if open("start_refused_any_descriptor_leaves_nothing", Arc::new(RamDevice::new(MIB))).is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let out = as_role("starve", dir.path()).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{text}\n{}", String::from_utf8_lossy(&out.stderr));
    assert!(is_clean(dir.path()));
}

/// Starts a door with room for no more descriptors, then one, then two, until it opens.
fn starve_of_descriptors(dir: &Path) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let whole = getrlimit(Resource::Nofile);
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let threads_before = threads();
    let lowest_free = std::os::fd::AsRawFd::as_raw_fd(&File::open("/dev/null").unwrap()) as u64;
    let mut refused = 0;
    loop {
        setrlimit(Resource::Nofile, Rlimit { current: Some(lowest_free + refused), ..whole }).unwrap();
        let outcome = LoopDoor::start(Arc::new(RamDevice::new(MIB)), dir, LoopOptions::default());
        setrlimit(Resource::Nofile, whole).unwrap();
        match outcome {
            Ok(mut door) => {
                door.stop().unwrap();
                break;
            }
            Err(e) => println!("{refused} more descriptors: {e}"),
        }
        assert!(is_clean(dir), "left behind with {refused} more descriptors");
        refused += 1;
    }
    // Each step of the way was refused once: the channel, its clone, the file, the loop device.
    assert!(refused >= 4, "refused only {refused} times");
    while threads() > threads_before {
        std::thread::yield_now();
    }
}

#[test]
fn hardened_server_has_hardened_threads() {
    const TEST: &str = "hardened_server_has_hardened_threads";
    if open(TEST, Arc::new(RamDevice::new(MIB))).is_none() {
        return;
    }
    let out = as_role("harden", Path::new("/")).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{text}\n{}", String::from_utf8_lossy(&out.stderr));
    match text.lines().find_map(|l| l.strip_prefix(READY)).unwrap() {
        "" => {}
        refused => {
            skip::<()>(TEST, &format!("not all of it is allowed here: {refused}"));
        }
    }
}

/// Checks what was made, and names what was not allowed.
fn harden() -> String {
    // The harness runs this in a thread; what counts is that the door's threads start after it.
    let report = pagefold_sys::harden::for_swap();
    let dir = tempfile::tempdir().unwrap();
    let mut door =
        LoopDoor::start(Arc::new(RamDevice::new(MIB)), dir.path(), LoopOptions::default()).unwrap();
    let threads = door.threads();
    assert_eq!(threads.threads, LoopOptions::default().threads);
    assert_eq!(threads.all_io_flushers(), report.io_flusher.is_ok());
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let locked = status.lines().find_map(|l| l.strip_prefix("VmLck:")).unwrap().trim();
    assert_eq!(locked != "0 kB", report.memory_locked.is_ok());
    let score = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap();
    assert_eq!(score.trim() == "-1000", report.oom_protected.is_ok());
    door.stop().unwrap();
    report.refused().iter().map(|e| e.to_string()).collect::<Vec<_>>().join("; ")
}
