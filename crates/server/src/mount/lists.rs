//! The start-up lists of a mount: recording one, and fetching what one names.
//!
//! The server reads the list to fetch before it is confined. Its broker opens the directory of the list to write, and creates
//! the file there under a temporary name, and renames it. Whether that is possible is found out at the start, not when the
//! recording ends.

use super::media::OpenFiles;
use pagefold_control::config::RecordConfig;
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::report::mount::{PrefetchReport, RecordReport, RecordState};
use pagefold_image::startup::list::LIST_BYTES_MAX;
use pagefold_image::startup::{PrefetchCounters, Record, Recorder, StartList, prefetch};
use pagefold_image::{Image, Nid};
use pagefold_sys::SysError;
use pagefold_sys::beneath::Folder;
use pagefold_sys::timer;
use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The place of a list that is to be written.
pub struct ListFile {
    path: PathBuf,
    folder: Folder,
    name: OsString,
}

impl ListFile {
    /// Opens the directory of the list.
    pub fn open(config: &RecordConfig) -> Result<Self> {
        let path = config.path.clone();
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(CliError::usage(format!("--record: '{}' is no name of a file", path.display())));
        };
        if path.is_dir() {
            return Err(CliError::usage(format!("--record: '{}' is a directory", path.display())));
        }
        let name = name.to_os_string();
        match Folder::open(parent) {
            Ok(folder) => Ok(ListFile { path, folder, name }),
            Err(e) => Err(unwritable(&path, &e)),
        }
    }

    /// Fails if the list could not be written.
    pub fn check(&self) -> Result<()> {
        let made = self.create().and_then(|_| self.folder.remove(&temporary()));
        made.map_err(|e| unwritable(&self.path, &e))
    }

    /// Creates the file under its temporary name, for its owner alone.
    fn create(&self) -> std::result::Result<File, SysError> {
        // A server that was killed has left it.
        self.folder.remove(&temporary())?;
        self.folder.make_file(&temporary(), 0o600)
    }

    /// Writes the list, in place of a file of its name.
    pub fn write(&self, text: &[u8]) -> Result<()> {
        let failed = |e: SysError| unwritable(&self.path, &e);
        let written = self.create().and_then(|mut file| {
            let written = file.write_all(text).and_then(|()| file.sync_all());
            written.map_err(|e| SysError::io("writing the file", &e))?;
            self.folder.rename(&temporary(), self.name.as_bytes())
        });
        written.map_err(|e| {
            // The remaining file has a temporary name; the error of the writing is the one to report.
            let _ = self.folder.remove(&temporary());
            failed(e)
        })
    }
}

/// The name of the file until it is complete.
fn temporary() -> Vec<u8> {
    format!(".pagefold-{}.part", std::process::id()).into_bytes()
}

fn unwritable(path: &Path, error: &SysError) -> CliError {
    let exit = match error.errno {
        libc::ENOENT | libc::ENOTDIR => Exit::NotFound,
        libc::EACCES | libc::EPERM => Exit::Unavailable,
        _ => Exit::Failed,
    };
    CliError::new(exit, format!("--record: writing the list '{}': {error}", path.display()))
}

/// Writes the list with this text.
pub type WriteList = Box<dyn Fn(&[u8]) -> Result<()> + Send + Sync>;

/// A recording, under way or written.
pub struct Recording {
    recorder: Arc<Recorder>,
    end: Option<Instant>,
    path: PathBuf,
    write: WriteList,
    /// The report on the written list, and the error; `None` while the recording is under way.
    outcome: Mutex<Option<(RecordReport, Result<()>)>>,
}

impl Recording {
    /// Begins the recording of an image with this root. `write` writes the list in the end.
    pub fn start(config: &RecordConfig, root: Nid, write: WriteList) -> Arc<Self> {
        let limit = config.limit_s.map(Duration::from_secs);
        let end = limit.map(|limit| timer::deadline(Instant::now(), limit));
        let (recorder, outcome) = (Arc::new(Recorder::new(root)), Mutex::new(None));
        Arc::new(Recording { recorder, end, path: config.path.clone(), write, outcome })
    }

    /// The recorder, for the file system.
    pub fn recorder(&self) -> Arc<Recorder> {
        self.recorder.clone()
    }

    /// The time that is left; `None` if the recording ends with the mount, or has ended.
    pub fn remaining(&self) -> Option<Duration> {
        let end = self.end.filter(|_| self.outcome().is_none());
        end.map(|end| end.saturating_duration_since(Instant::now()))
    }

    fn outcome(&self) -> Option<(RecordReport, Result<()>)> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends the recording and writes the list. Later calls return the result of the first.
    pub fn finish(&self) -> Result<()> {
        if let Some((_, written)) = self.outcome() {
            return written;
        }
        let Record { text, entries, lost } = self.recorder.stop();
        let written = (self.write)(&text);
        let state = if written.is_ok() { RecordState::Written } else { RecordState::Failed };
        let error = written.as_ref().err().map(ToString::to_string);
        let report = RecordReport { list: self.path.clone(), state, entries, lost, error };
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some((report, written.clone()));
        written
    }

    /// The state, for reports.
    pub fn report(&self) -> RecordReport {
        let list = self.path.clone();
        let recording =
            RecordReport { list, state: RecordState::Recording, entries: 0, lost: 0, error: None };
        self.outcome().map_or(recording, |(report, _)| report)
    }
}

/// Reads a file from the beginning, wherever its position is, which other processes share.
struct Positioned<'f> {
    file: &'f File,
    offset: u64,
}

impl Read for Positioned<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let read = match self.file.read_at(buf, self.offset) {
            // A pipe has no positions.
            Err(e) if e.raw_os_error() == Some(libc::ESPIPE) => self.file.read(buf)?,
            read => read?,
        };
        self.offset += read as u64;
        Ok(read)
    }
}

/// A list to fetch, and how far that is.
pub struct Prefetch {
    path: PathBuf,
    list: Arc<StartList>,
    counters: Arc<PrefetchCounters>,
    stop: Arc<AtomicBool>,
}

impl Prefetch {
    /// Reads the list, from `files` if it is there; adds it otherwise.
    pub fn open(path: &Path, files: &mut OpenFiles) -> Result<Self> {
        let text = files.open(path, |path| File::open(path)).and_then(|file| {
            let mut text = Vec::new();
            let mut at = Positioned { file: &file, offset: 0 };
            at.by_ref().take(LIST_BYTES_MAX as u64 + 1).read_to_end(&mut text).map(|_| text)
        });
        let what = || format!("--prefetch: reading the list '{}'", path.display());
        let text = text.map_err(|e| match e.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => {
                CliError::new(Exit::NotFound, format!("{}: {e}", what()))
            }
            _ => CliError::io(what(), &e),
        })?;
        let list = Arc::new(StartList::parse(&text));
        Ok(Prefetch { path: path.into(), list, counters: Arc::default(), stop: Arc::default() })
    }

    /// The faults of the list, for a note.
    pub fn warning(&self) -> Option<String> {
        let shown = self.path.display();
        let (malformed, is_cut) = (self.list.malformed, self.list.is_cut);
        match (malformed, is_cut) {
            (0, false) => None,
            (0, true) => Some(format!("'{shown}' is too long; the end of it is left out")),
            (n, cut) => {
                let end = if cut { ", and it is too long; the end of it is left out" } else { "" };
                Some(format!("'{shown}' has lines that are left out, because they are no entries: {n}{end}"))
            }
        }
    }

    /// Starts the thread that fetches. It has the capabilities of the caller, and ends with the process.
    pub fn start(&self, image: &Image) -> Result<()> {
        let (image, list) = (image.clone(), self.list.clone());
        let (counters, stop) = (self.counters.clone(), self.stop.clone());
        let thread = std::thread::Builder::new().name("prefetch".to_string());
        let started = thread.spawn(move || prefetch(&image, &list, &counters, &stop));
        started.map(drop).map_err(|e| CliError::io("starting the thread of --prefetch", &e))
    }

    /// How far it is, for reports.
    pub fn report(&self) -> PrefetchReport {
        let stats = self.counters.stats();
        PrefetchReport {
            list: self.path.clone(),
            list_entries: self.list.entries.len() as u64,
            malformed: self.list.malformed,
            entries: stats.entries,
            skipped: stats.skipped,
            planned_bytes: stats.planned_bytes,
            done_bytes: stats.done_bytes,
            left_out_bytes: stats.left_out_bytes,
            has_ended: stats.has_ended,
        }
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        self.stop.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_list_is_written_as_a_whole_for_its_owner_and_replaces_another() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("list");
        let config = |path: &Path| RecordConfig { path: path.into(), limit_s: Some(0) };
        let open = |path: &Path| ListFile::open(&config(path));
        let start = |path: &Path| {
            let list = open(path).unwrap();
            list.check().unwrap();
            Recording::start(&config(path), Nid(1), Box::new(move |text| list.write(text)))
        };
        std::fs::write(&path, "before").unwrap();
        let recording = start(&path);
        assert_eq!(recording.remaining(), Some(Duration::ZERO));
        assert_eq!(recording.report().state, RecordState::Recording);
        assert_eq!(std::fs::read(&path).unwrap(), b"before");
        recording.finish().unwrap();
        assert!(std::fs::read_to_string(&path).unwrap().starts_with("# pagefold start-up list 1"));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);
        std::fs::remove_file(&path).unwrap();
        recording.finish().unwrap();
        assert!(!path.exists() && recording.remaining().is_none());
        assert_eq!(recording.report().state, RecordState::Written);

        let error = |path: &Path| open(path).err().unwrap();
        assert_eq!(error(dir.path()).exit, Exit::Usage);
        assert_eq!(error(Path::new("/")).exit, Exit::Usage);
        assert_eq!(error(&dir.path().join("none/list")).exit, Exit::NotFound);
        // The directory goes away before the end.
        let below = dir.path().join("below");
        std::fs::create_dir(&below).unwrap();
        let recording = start(&below.join("list"));
        std::fs::remove_dir(&below).unwrap();
        let error = recording.finish().unwrap_err();
        assert!(error.to_string().contains("--record: writing the list"), "{error}");
        assert_eq!(recording.report().state, RecordState::Failed);
    }
}
