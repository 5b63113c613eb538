//! Helpers of the loop export's tests: exports that are removed on drop, and external tools.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed unwrap is a failed test")]
#![allow(dead_code, missing_docs, reason = "shared by tests that each use a part")]

use pagefold_block::loop_export::{ExportError, LoopExport, LoopOptions};
use pagefold_block::{BlockDevice, BlockError, RamDevice};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// An export in a temporary directory. Dropping it, also in a panic, closes the export and removes the directory.
pub struct TestExport {
    pub export: LoopExport,
    pub dir: tempfile::TempDir,
}

impl TestExport {
    pub fn path(&self) -> &Path {
        self.export.device_path()
    }
}

/// Opens an export on `device`, or prints that `test` is skipped and returns `None`.
pub fn open(test: &str, device: Arc<dyn BlockDevice>) -> Option<TestExport> {
    let dir = tempfile::tempdir().unwrap();
    match LoopExport::start(device, dir.path(), LoopOptions::default()) {
        Ok(export) => Some(TestExport { export, dir }),
        Err(ExportError::Unavailable(why)) => skip(test, &why.to_string()),
        Err(e) => panic!("{e}"),
    }
}

pub fn skip<T>(test: &str, why: &str) -> Option<T> {
    pagefold_testkit::skipped!("{test}: {why}");
    None
}

/// Returns whether all of `tools` are installed; prints that `test` is skipped if not.
pub fn have(test: &str, tools: &[&str]) -> bool {
    let dirs = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
    let missing = tools.iter().find(|t| !dirs.iter().any(|d| Path::new(d).join(t).exists()));
    missing.is_none_or(|t| skip::<()>(test, &format!("{t} is not installed")).is_some())
}

/// Runs a command that must succeed, and returns its output.
pub fn run(program: &str, args: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(args).env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    let out = command.output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{program} {args:?}: {}\n{text}", out.status);
    text
}

/// A mount that is unmounted on drop.
pub struct Mounted(pub PathBuf);

impl Mounted {
    pub fn new(device: &Path, at: &Path) -> Self {
        std::fs::create_dir_all(at).unwrap();
        run("mount", &[device.to_str().unwrap(), at.to_str().unwrap()]);
        Mounted(at.to_path_buf())
    }

    pub fn unmount(self) {
        run("umount", &[self.0.to_str().unwrap()]);
        std::mem::forget(self);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

pub fn open_direct(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(path).unwrap()
}

/// Whether nothing is mounted at `dir` and no loop device is attached to a file below it.
///
/// Reads sysfs, to avoid opening the devices of other tests.
pub fn is_clean(dir: &Path) -> bool {
    let dir = dir.parent().unwrap().canonicalize().unwrap().join(dir.file_name().unwrap());
    let below = format!("{}/", dir.display());
    let devices = std::fs::read_dir("/sys/block").unwrap().flatten();
    let mut backing =
        devices.filter_map(|d| std::fs::read_to_string(d.path().join("loop/backing_file")).ok());
    pagefold_sys::mounts::at(&dir).unwrap().is_none() && backing.all(|b| !b.starts_with(&below))
}

/// A layer that records the requests that reach the device.
pub struct Recorder {
    pub inner: RamDevice,
    pub reads: Mutex<Vec<(u64, u64)>>,
    pub writes: Mutex<Vec<(u64, u64)>>,
    pub zeroes: Mutex<Vec<(u64, u64)>>,
    pub flushes: AtomicUsize,
    pub discards: AtomicUsize,
}

impl Recorder {
    pub fn new(len_bytes: u64) -> Arc<Self> {
        Arc::new(Recorder {
            inner: RamDevice::new(len_bytes),
            reads: Mutex::default(),
            writes: Mutex::default(),
            zeroes: Mutex::default(),
            flushes: AtomicUsize::new(0),
            discards: AtomicUsize::new(0),
        })
    }
}

impl BlockDevice for Recorder {
    fn len_bytes(&self) -> u64 {
        self.inner.len_bytes()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BlockError> {
        self.reads.lock().unwrap().push((offset, buf.len() as u64));
        self.inner.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), BlockError> {
        self.writes.lock().unwrap().push((offset, data.len() as u64));
        self.inner.write_at(offset, data)
    }
    fn discard(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        self.discards.fetch_add(1, Ordering::SeqCst);
        self.inner.discard(offset, len)
    }
    fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        self.zeroes.lock().unwrap().push((offset, len));
        self.inner.write_zeroes(offset, len)
    }
    fn flush(&self) -> Result<(), BlockError> {
        self.flushes.fetch_add(1, Ordering::SeqCst);
        self.inner.flush()
    }
}
