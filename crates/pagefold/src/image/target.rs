//! The file that a command writes as a whole: its name has the complete file, or what was there before.
//!
//! The file is written under a temporary name in the same directory, and renamed when it is complete. Without that the
//! temporary file is removed, also after Ctrl-C or SIGTERM, and at the limit of the length of files. Only SIGKILL and
//! SIGQUIT leave it; commands that save a disk or fill a layer cache remove such a file of others
//! ([`Target::remove_abandoned`]). A device or a pipe is written directly, and so is a file that callers of `mkfs.erofs` have
//! open.
//!
//! The crate `tempfile`, which the tests use, would make only one function here shorter (`create_beside`). The rest
//! would stay: noticing signals, replacing the target of a link, writing to a device, and copying permissions.

use super::open::path_failure;
use super::region::Region;
use super::worker::{self, Parent};
use pagefold_control::error::{CliError, Result};
use pagefold_image_build::source::directory::OutputFolder;
use pagefold_sys::entropy::random_u64;
use pagefold_sys::lease;
use pagefold_sys::signal::{Termination, ignore_file_size_signal};
use std::cell::{Cell, OnceCell};
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Temporary names that are tried.
const MAX_NAMES: u32 = 100;
/// The beginning and the end of a temporary name, with 16 hexadecimal digits between them.
const TEMPORARY_BEGIN: &str = ".pagefold-";
const TEMPORARY_END: &str = ".part";
/// The age of a temporary file that is not written any more, where its writer may be on another machine.
const ABANDONED_AGE: Duration = Duration::from_secs(3600);
/// File systems of this machine alone, by `f_type` of statfs(2): ext4, xfs, btrfs, f2fs, tmpfs, overlay.
const LOCAL_FS: [u32; 6] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0102_1994, 0x794c_7630];
/// Links that are followed, as many as the kernel follows.
const LINKS_MAX: usize = 40;

/// A file that is being written.
pub struct Target {
    /// The name that the user chose, for messages.
    shown: PathBuf,
    file: File,
    /// The state of a file that does not have its name yet; `None` for a device or a pipe.
    unnamed: Option<Unnamed>,
    /// Whether the file or device was there, and is written as it is, without a temporary name.
    is_in_place: bool,
    is_interrupted: Cell<bool>,
    /// In a worker, the process that gives the file its name.
    parent: OnceCell<Parent>,
}

fn output_folder(metadata: std::fs::Metadata) -> OutputFolder {
    OutputFolder {
        inode: (metadata.dev(), metadata.ino()),
        mtime: (metadata.mtime(), metadata.mtime_nsec() as u32),
    }
}

/// A file with a temporary name. Removes it when dropped, unless it has been renamed.
struct Unnamed {
    temporary: PathBuf,
    path: PathBuf,
    /// Whether `temporary` is no longer a name of the file: another process may use it.
    is_renamed: Cell<bool>,
    /// The folder of both, as it was before.
    folder: Option<OutputFolder>,
    signals: Termination,
}

impl Target {
    /// Opens the file for writing. A link is followed; the file that it points to is replaced, or made.
    ///
    /// Blocks signals, so it must be called before threads are started: they would receive them.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_with(path, 0o666)
    }

    /// The same; only its owner may use a file that is made.
    pub fn open_private(path: &Path) -> Result<Self> {
        Self::open_with(path, 0o600)
    }

    /// Removes the temporary files beside `path` that killed commands have left: those that nobody has open for writing.
    pub fn remove_abandoned(path: &Path) {
        let Ok(path) = target_of_link(path) else { return };
        let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
        let entries = folder.read_dir().into_iter().flatten().flatten();
        for entry in entries.filter(|entry| is_temporary_name(&entry.file_name())) {
            let file = OpenOptions::new()
                .read(true)
                .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
                .open(entry.path());
            let Ok(file) = file else { continue };
            // Where that is not known, they stay. So do those that cannot be removed: nothing depends on it.
            if is_abandoned(&file) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    fn open_with(path: &Path, mode: u32) -> Result<Self> {
        let failed = |e: Error| path_failure(format!("writing '{}'", path.display()), &e);
        // A write beyond the limit becomes an error, after which the file is removed.
        ignore_file_size_signal();
        let existing = match path.metadata() {
            Ok(metadata) => Some(metadata),
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            Err(e) => return Err(failed(e)),
        };
        let (file, unnamed) = match existing {
            Some(metadata) if metadata.is_dir() => {
                return Err(CliError::usage(format!(
                    "'{}' is a directory; name a file in it",
                    path.display()
                )));
            }
            Some(metadata) if !metadata.is_file() => {
                (OpenOptions::new().write(true).open(path).map_err(failed)?, None)
            }
            existing => {
                let signals = Termination::listen()?;
                let path = match existing {
                    Some(_) => path.canonicalize(),
                    None => target_of_link(path),
                };
                let path = path.map_err(failed)?;
                let folder = path.parent().and_then(|folder| folder.metadata().ok()).map(output_folder);
                let (file, temporary) =
                    create_beside(&path, if existing.is_some() { 0o600 } else { mode }).map_err(failed)?;
                // From here on, every failure removes the file.
                let unnamed = Unnamed { temporary, path, is_renamed: Cell::new(false), folder, signals };
                if let Some(replaced) = existing {
                    file.set_permissions(replaced.permissions()).map_err(failed)?;
                }
                (file, Some(unnamed))
            }
        };
        let (is_interrupted, parent) = (Cell::new(false), OnceCell::new());
        Ok(Target { shown: path.into(), file, unnamed, is_in_place: false, is_interrupted, parent })
    }

    /// Opens a file or block device that is there, to write into it: others have it open, or it has more than the image. A
    /// missing file is made as by [`open_image`](Self::open_image).
    pub fn open_in_place(path: &Path) -> Result<Self> {
        let is_writable = |metadata: &std::fs::Metadata| {
            metadata.is_file() || FileTypeExt::is_block_device(&metadata.file_type())
        };
        if !path.metadata().is_ok_and(|metadata| is_writable(&metadata)) {
            return Self::open_image(path);
        }
        ignore_file_size_signal();
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.map_err(|e| path_failure(format!("writing '{}'", path.display()), &e))?;
        let (is_interrupted, parent) = (Cell::new(false), OnceCell::new());
        Ok(Target { shown: path.into(), file, unnamed: None, is_in_place: true, is_interrupted, parent })
    }

    /// The part of the file from byte `offset_bytes` on, for an image.
    pub fn region(&self, offset_bytes: u64) -> Region<'_> {
        let is_file = self.file.metadata().is_ok_and(|metadata| metadata.is_file());
        Region { file: &self.file, offset_bytes, is_whole_file: is_file && offset_bytes == 0 }
    }

    /// The folder for temporary files that become as long as the image, or longer.
    pub fn temporary_folder(&self) -> PathBuf {
        let is_device = self.is_in_place && self.file.metadata().is_ok_and(|metadata| !metadata.is_file());
        match self.path().parent() {
            _ if is_device => std::env::temp_dir(),
            // A relative name has an empty parent.
            Some(folder) if folder != Path::new("") => folder.into(),
            _ => PathBuf::from("."),
        }
    }

    /// Opens a file that is written at any position: a device or a pipe is refused.
    pub fn open_image(path: &Path) -> Result<Self> {
        if path == Path::new("-") {
            return Err(CliError::usage(
                "an image is not written in order, so not to standard output; name a file",
            ));
        }
        // Opening a pipe would wait for a reader, and opening a device may have effects.
        match path.metadata() {
            Ok(metadata) if !metadata.is_file() && !metadata.is_dir() => Err(CliError::usage(format!(
                "'{}' is no regular file; name a file, and copy it to a device afterwards",
                path.display()
            ))),
            _ => Self::open(path),
        }
    }

    /// The name that the user chose, for messages.
    pub fn shown(&self) -> &Path {
        &self.shown
    }

    /// The path that the file has until it is complete.
    pub fn path(&self) -> &Path {
        self.unnamed.as_ref().map_or(&self.shown, |unnamed| &unnamed.temporary)
    }

    /// The folder of the file as it was before the file was made, which changes its time.
    pub fn folder(&self) -> Option<OutputFolder> {
        self.unnamed.as_ref()?.folder
    }

    /// The signals that end the writing; `None` for a device or a pipe.
    pub fn signals(&self) -> Option<&Termination> {
        self.unnamed.as_ref().map(|unnamed| &unnamed.signals)
    }

    /// Whether a signal has ended the writing, now or before.
    pub fn poll_interrupt(&self) -> bool {
        if self.unnamed.as_ref().is_some_and(|unnamed| unnamed.signals.take().is_some()) {
            self.is_interrupted.set(true);
        }
        self.is_interrupted.get()
    }

    /// Whether to go on: not after a signal.
    pub fn go_on(&self) -> ControlFlow<()> {
        if self.poll_interrupt() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Whether a signal has ended the writing.
    pub fn is_interrupted(&self) -> bool {
        self.is_interrupted.get()
    }

    /// The error for a signal that has ended the writing.
    pub fn interrupted(&self) -> CliError {
        CliError::failed(format!("interrupted: '{}' was not written", self.shown.display()))
    }

    /// The error of a failure, which is that of a signal if one has ended the writing.
    pub fn unless_interrupted(&self, e: CliError) -> CliError {
        if self.poll_interrupt() { self.interrupted() } else { e }
    }

    /// The error of a failed write, which a signal may have caused.
    pub fn failed(&self, e: &Error) -> CliError {
        match self.is_interrupted() {
            true => self.interrupted(),
            false => CliError::io(format!("writing '{}'", self.shown.display()), e),
        }
    }

    /// Runs `work`, which writes the file and completes it, in a child process, so that the child can be confined. This
    /// process must have one thread. If the child fails, this process ends as the child did, and the file is removed.
    pub fn write_in_child(self, work: impl FnOnce(&Target) -> Result<()>) -> Result<()> {
        let signals = self.unnamed.as_ref().map(|unnamed| &unnamed.signals);
        let end = worker::run(
            signals,
            || self.complete(),
            |parent| {
                self.parent.get_or_init(|| parent);
                work(&self)
            },
        );
        drop(self);
        worker::finish(end?)
    }

    /// Gives the complete file its name.
    pub fn complete(&self) -> Result<()> {
        if let Some(parent) = self.parent.get() {
            parent.complete();
            return Ok(());
        }
        self.complete_by(File::sync_all, |temporary, path| std::fs::rename(temporary, path))
    }

    /// Does what [`complete`](Self::complete) does, by these calls, which tests let fail.
    fn complete_by(
        &self,
        sync: impl FnOnce(&File) -> std::io::Result<()>,
        rename: impl FnOnce(&Path, &Path) -> std::io::Result<()>,
    ) -> Result<()> {
        let failed = |e: Error| CliError::io(format!("writing '{}'", self.shown.display()), &e);
        let Some(unnamed) = &self.unnamed else {
            return if self.is_in_place { sync(&self.file).map_err(failed) } else { Ok(()) };
        };
        // Errors of writing that the system has deferred must show before the old file is replaced.
        let renamed = sync(&self.file).and_then(|()| rename(&unnamed.temporary, &unnamed.path));
        unnamed.is_renamed.set(renamed.is_ok());
        renamed.map_err(failed)
    }
}

impl Drop for Unnamed {
    fn drop(&mut self) {
        if !self.is_renamed.get() {
            // If removing fails, a file with a temporary name stays; the command reports why the file is not complete.
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}

/// Writes to a [`Target`]; fails after a signal.
pub struct Output<'a>(pub &'a Target);

impl Write for Output<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self.0.poll_interrupt() {
            true => Err(Error::other("interrupted")),
            false => (&self.0.file).write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Follows links to a file that does not exist, and returns the path of that.
pub fn target_of_link(path: &Path) -> std::io::Result<PathBuf> {
    let mut path = path.to_path_buf();
    for _ in 0..LINKS_MAX {
        match path.read_link() {
            // A relative target begins in the folder of the link.
            Ok(target) => path = path.parent().unwrap_or(Path::new("")).join(target),
            Err(_) => return Ok(path),
        }
    }
    Err(Error::from_raw_os_error(rustix::io::Errno::LOOP.raw_os_error()))
}

/// Creates a file of this mode with a temporary name in the directory of `path`. Only its owner may use one that replaces a
/// file, whose permissions it gets next. The name is random: processes of several containers may have the same number, and
/// write to the same folder.
fn create_beside(path: &Path, mode: u32) -> std::io::Result<(File, PathBuf)> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(mode);
    let random = || random_u64().map_err(|e| Error::from_raw_os_error(e.errno));
    let mut tried = 0;
    loop {
        let temporary = path.with_file_name(format!("{TEMPORARY_BEGIN}{:016x}{TEMPORARY_END}", random()?));
        match options.open(&temporary) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists && tried < MAX_NAMES => tried += 1,
            Err(e) => return Err(e),
            // Another command may have taken it for abandoned, in the moment before this one counted as its writer.
            Ok(file) if temporary.symlink_metadata().is_ok() => return Ok((file, temporary)),
            Ok(_) if tried < MAX_NAMES => tried += 1,
            Ok(_) => return Err(ErrorKind::AlreadyExists.into()),
        }
    }
}

/// Whether nobody writes the file. On a file system that other machines may use, the kernel knows its own writers only.
fn is_abandoned(file: &File) -> bool {
    let Ok(metadata) = file.metadata() else { return false };
    let is_old = || metadata.modified().is_ok_and(|at| at.elapsed().is_ok_and(|age| age > ABANDONED_AGE));
    let is_local = rustix::fs::fstatfs(file).is_ok_and(|found| LOCAL_FS.contains(&(found.f_type as u32)));
    metadata.is_file()
        && (is_local || is_old())
        && matches!(lease::is_open_for_writing(file), Ok(Some(false)))
}

fn is_temporary_name(name: &OsStr) -> bool {
    let digits =
        name.to_str().and_then(|name| name.strip_prefix(TEMPORARY_BEGIN)?.strip_suffix(TEMPORARY_END));
    digits.is_some_and(|digits| digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_files_that_nobody_writes_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let used = Target::open(&path).unwrap();
        let (file, left) = create_beside(&path, 0o600).unwrap();
        let others = [".pagefold-0123.part", ".pagefold-0123456789abcdeg.part", "0123456789abcdef.part"];
        for name in others {
            std::fs::write(directory.path().join(name), "").unwrap();
        }
        Target::remove_abandoned(&path);
        assert!(left.exists(), "it is open for writing");
        drop(file);
        Target::remove_abandoned(&path);
        assert!(!left.exists());
        used.complete().unwrap();
        assert_eq!(directory.path().read_dir().unwrap().count(), 1 + others.len());
    }

    /// A full disk shows itself when the file is synced, or when its directory needs space for the name.
    #[test]
    fn a_file_that_cannot_be_completed_leaves_what_was_there() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        let full = || Err(Error::from_raw_os_error(28));
        for is_there in [false, true] {
            for fails_at_sync in [true, false] {
                if is_there {
                    std::fs::write(&path, "before").unwrap();
                }
                let target = Target::open_image(&path).unwrap();
                Output(&target).write_all(b"half").unwrap();
                let failed = match fails_at_sync {
                    true => target.complete_by(|_| full(), |_, _| unreachable!("it is not synced")),
                    false => target.complete_by(File::sync_all, |_, _| full()),
                };
                drop(target);
                let message = failed.unwrap_err().to_string();
                assert!(message.contains("writing '") && message.contains("/image'"), "{message}");
                assert!(message.contains("No space left"), "{message}");
                let left: Vec<_> =
                    std::fs::read_dir(&directory).unwrap().map(|e| e.unwrap().file_name()).collect();
                assert_eq!(left, if is_there { vec!["image"] } else { vec![] });
                assert!(!is_there || std::fs::read(&path).unwrap() == b"before");
            }
        }
        let target = Target::open_image(&path).unwrap();
        Output(&target).write_all(b"after").unwrap();
        target.complete().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"after");
    }

    /// Another builder may take the temporary name as soon as it is free.
    #[test]
    fn a_file_that_got_its_name_leaves_the_temporary_name_to_others() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        let targets = [(); 2].map(|()| Target::open_image(&path).unwrap());
        let temporary = targets.each_ref().map(|target| target.path().to_path_buf());
        assert_ne!(temporary[0], temporary[1]);
        let own = format!(".pagefold-{}-", std::process::id());
        assert!(!temporary[0].to_str().unwrap().contains(&own), "{temporary:?}");
        let [first, second] = targets;
        let renamed = first.complete_by(File::sync_all, |from, to| {
            std::fs::rename(from, to)?;
            std::fs::write(from, "another")
        });
        renamed.unwrap();
        assert_eq!(std::fs::read(&temporary[0]).unwrap(), b"another");
        drop(second);
        assert!(path.exists() && !temporary[1].exists());
    }

    #[test]
    fn a_link_to_a_file_that_does_not_exist_stays_a_link() {
        let directory = tempfile::tempdir().unwrap();
        let (first, second) = (directory.path().join("first"), directory.path().join("second"));
        std::os::unix::fs::symlink("second", &first).unwrap();
        std::os::unix::fs::symlink(directory.path().join("file"), &second).unwrap();
        let target = Target::open_image(&first).unwrap();
        Output(&target).write_all(b"contents").unwrap();
        target.complete().unwrap();
        assert_eq!(std::fs::read(directory.path().join("file")).unwrap(), b"contents");
        assert!(first.is_symlink() && second.is_symlink());
        std::os::unix::fs::symlink("loop", directory.path().join("loop")).unwrap();
        assert!(Target::open_image(&directory.path().join("loop")).is_err());
    }

    /// Opening a pipe for writing would wait for a reader.
    #[test]
    fn a_pipe_is_refused_as_an_image_without_opening_it() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        let error = Target::open_image(&pipe).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error.contains("is no regular file"), "{error}");
    }
}
