//! Tests that `clean_up` removes the loop device and mount of a killed server, and that a failed start leaves nothing.
//!
//! The servers run in separate processes, which the tests kill or limit in descriptors. The test binary starts itself
//! again with [`ROLE`] set; the test [`child_process`] then acts as the server.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed unwrap is a failed test")]

mod support;

use crate::support::loop_device::{Mounted, have, is_clean, open, open_direct, run, skip};
use pagefold_block::loop_export::{CleanUp, ExportError, LoopExport, LoopOptions, clean_up};
use pagefold_block::{BlockDevice, BlockError, RamDevice};
use pagefold_page::AlignedBytes;
use pagefold_sys::blockuse::{self, BlockUse};
use pagefold_sys::loopdev::{self, LoopIdentity};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// The environment variable that makes [`child_process`] act: `ROLE:DIRECTORY`.
const ROLE: &str = "PAGEFOLD_TEST_ROLE";
/// Prefix of the line that a child process prints, which distinguishes it from the output of the test harness.
const READY: &str = "ready:";
const MIB: u64 = 1 << 20;

/// The code of the child processes. In the test process, which has no [`ROLE`], it does nothing.
#[test]
fn child_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (role, dir) = role.split_once(':').unwrap();
    match role {
        "serve" => serve(Path::new(dir)),
        "hang" => hang_in_own_disk(Path::new(dir)),
        "starve" => start_with_few_descriptors(Path::new(dir)),
        "harden" => println!("\n{READY}{}", harden()),
        _ => panic!("unknown role {role}"),
    }
}

fn child_command(role: &str, dir: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child_process", "--nocapture", "--test-threads=1"]);
    command.env(ROLE, format!("{role}:{}", dir.display())).stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

fn serve(dir: &Path) {
    let _export = serve_device(dir, Arc::new(RamDevice::new(32 * MIB)));
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

fn serve_device(dir: &Path, device: Arc<dyn BlockDevice>) -> LoopExport {
    let export = LoopExport::start(device, dir, LoopOptions::default()).unwrap();
    let identity = export.identity();
    println!("\n{READY}{} {} {}", export.device_path().display(), identity.lo_device, identity.lo_inode);
    std::io::stdout().flush().unwrap();
    export
}

/// A device whose writes never return.
struct StuckWrites(RamDevice);

impl BlockDevice for StuckWrites {
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

/// Syncs pages to the process's own disk, which never takes them: an uninterruptible sleep.
fn hang_in_own_disk(dir: &Path) {
    let export = serve_device(dir, Arc::new(StuckWrites(RamDevice::new(MIB))));
    let mut file = File::options().write(true).open(export.device_path()).unwrap();
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
    /// Starts a server. Prints that `test` is skipped and returns `None` where the loop export is unavailable.
    fn start(test: &str) -> Option<Self> {
        Server::start_as(test, "serve")
    }

    fn start_as(test: &str, role: &str) -> Option<Self> {
        open(test, Arc::new(RamDevice::new(MIB)))?;
        let dir = tempfile::tempdir().unwrap();
        let mut child = child_command(role, dir.path()).spawn().unwrap();
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
        // Do not wait for the server before the first clean-up: it may hang until its connection is aborted.
        let _ = self.child.kill();
        let _ = clean_up(self.dir.path(), Some(self.identity));
        let _ = self.child.wait();
        let _ = clean_up(self.dir.path(), Some(self.identity));
    }
}

#[test]
fn clean_up_after_a_killed_server_works_with_and_without_its_identity() {
    for with_identity in [true, false] {
        let Some(mut server) =
            Server::start("clean_up_after_a_killed_server_works_with_and_without_its_identity")
        else {
            return;
        };
        let bytes = AlignedBytes::new(MIB as usize, 5);
        open_direct(&server.device).write_all_at(&bytes, 0).unwrap();
        server.kill();
        // The loop device still fails requests with an error and reports the file that it was attached to.
        let mut page = AlignedBytes::new(4096, 0);
        let error = open_direct(&server.device).read_exact_at(&mut page, 0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
        assert_eq!(loopdev::identity(&server.device), Ok(Some(server.identity)));
        let done = clean_up(server.dir.path(), with_identity.then_some(server.identity)).unwrap();
        let want = CleanUp { detached: vec![server.device.clone()], open: vec![], unmounted: true };
        assert_eq!(done, want);
        assert!(is_clean(server.dir.path()));
        assert_eq!(clean_up(server.dir.path(), Some(server.identity)), Ok(CleanUp::default()));
        // The mount point can be used again at once.
        let again =
            LoopExport::start(Arc::new(RamDevice::new(MIB)), server.dir.path(), LoopOptions::default());
        again.unwrap().stop().unwrap();
    }
}

#[test]
fn clean_up_detaches_a_device_with_dirty_pages_whose_mount_is_gone() {
    const TEST: &str = "clean_up_detaches_a_device_with_dirty_pages_whose_mount_is_gone";
    let Some(mut server) = Server::start(TEST) else { return };
    // Dirty pages in the device's cache, which no server will ever write.
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

/// Whether some thread of the process is in an uninterruptible sleep.
fn sleeps_uninterruptibly(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.map(|t| t.path().join("stat")).any(|stat| {
        let text = std::fs::read_to_string(stat).unwrap_or_default();
        text.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('D'))
    })
}

#[test]
fn clean_up_ends_a_killed_server_that_hangs_in_its_own_disk() {
    let Some(mut server) =
        Server::start_as("clean_up_ends_a_killed_server_that_hangs_in_its_own_disk", "hang")
    else {
        return;
    };
    while !sleeps_uninterruptibly(server.child.id()) {
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
fn clean_up_refuses_while_the_device_of_a_killed_server_is_mounted() {
    const TEST: &str = "clean_up_refuses_while_the_device_of_a_killed_server_is_mounted";
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
        let Err(ExportError::InUse { device, uses }) = clean_up(server.dir.path(), Some(server.identity))
        else {
            panic!("cleaned up under a mount");
        };
        assert_eq!(device, server.device);
        let mount_point = at.path().canonicalize().unwrap();
        assert_eq!(uses, [BlockUse::Mounted { mount_point }]);
    }
    drop(mounted);
    // After a lazy unmount the kernel may claim the device a moment longer.
    while !blockuse::claims(&server.device).unwrap().is_empty() {
        std::thread::yield_now();
    }
    clean_up(server.dir.path(), Some(server.identity)).unwrap();
    assert!(is_clean(server.dir.path()));
}

#[test]
fn clean_up_of_an_unused_or_missing_mount_point_succeeds() {
    if !rustix::process::geteuid().is_root() {
        skip::<()>("clean_up_of_an_unused_or_missing_mount_point_succeeds", "it needs root");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(clean_up(dir.path(), None), Ok(CleanUp::default()));
    assert_eq!(clean_up(&dir.path().join("a/b"), None), Ok(CleanUp::default()));
}

#[test]
fn start_that_fails_for_lack_of_descriptors_leaves_nothing() {
    if open("start_that_fails_for_lack_of_descriptors_leaves_nothing", Arc::new(RamDevice::new(MIB)))
        .is_none()
    {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let out = child_command("starve", dir.path()).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{text}\n{}", String::from_utf8_lossy(&out.stderr));
    assert!(is_clean(dir.path()));
}

/// Starts an export with a limit of no more descriptors, then one more, then two more, until it opens.
fn start_with_few_descriptors(dir: &Path) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let whole = getrlimit(Resource::Nofile);
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let threads_before = threads();
    let lowest_free = std::os::fd::AsRawFd::as_raw_fd(&File::open("/dev/null").unwrap()) as u64;
    let mut refused = 0;
    loop {
        setrlimit(Resource::Nofile, Rlimit { current: Some(lowest_free + refused), ..whole }).unwrap();
        let started = LoopExport::start(Arc::new(RamDevice::new(MIB)), dir, LoopOptions::default());
        setrlimit(Resource::Nofile, whole).unwrap();
        match started {
            Ok(mut export) => {
                export.stop().unwrap();
                break;
            }
            Err(e) => println!("{refused} more descriptors: {e}"),
        }
        assert!(is_clean(dir), "left behind with {refused} more descriptors");
        refused += 1;
    }
    // At least these steps each failed once: the channel, its clone, the file, the loop device.
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
    let out = child_command("harden", Path::new("/")).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{text}\n{}", String::from_utf8_lossy(&out.stderr));
    match text.lines().find_map(|l| l.strip_prefix(READY)).unwrap() {
        "" => {}
        refused => {
            skip::<()>(TEST, &format!("some hardening is not allowed here: {refused}"));
        }
    }
}

/// Hardens this process, checks the effects on an export, and returns the steps that were not allowed.
fn harden() -> String {
    // The harness runs this in a thread. The export's threads start afterwards and inherit the settings.
    let report = pagefold_sys::harden::for_swap();
    let dir = tempfile::tempdir().unwrap();
    let mut export =
        LoopExport::start(Arc::new(RamDevice::new(MIB)), dir.path(), LoopOptions::default()).unwrap();
    let threads = export.disk().threads();
    assert_eq!(threads.threads, LoopOptions::default().threads);
    assert_eq!(threads.threads == threads.io_flushers, report.io_flusher.is_ok());
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let locked = status.lines().find_map(|l| l.strip_prefix("VmLck:")).unwrap().trim();
    assert_eq!(locked != "0 kB", report.memory_locked.is_ok());
    let score = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap();
    assert_eq!(score.trim() == "-1000", report.oom_protected.is_ok());
    export.stop().unwrap();
    report.refused().iter().map(|e| e.to_string()).collect::<Vec<_>>().join("; ")
}
