//! Restoring a saved disk into a new one: before its device is there, or while it is used.
//!
//! A restore while the disk is used reads the ends of the files and their indexes' roots now, and leaves the pages to
//! [`Restoring`]. The other way, which a pipe needs, reads all of them in order.
//!
//! The confined server parses the file. Pages whose codec the disk has too, with the same dictionary, are stored as they
//! are; others are decompressed and written. A file that is incomplete or damaged fails the start of the server, and
//! nothing is left of the disk.
//!
//! The files of a chain are read from the newest to the full save, so that each page is stored once, and the disk never needs
//! more memory than its contents do.

use super::restoring::Restoring;
use super::route::{self, Route, config_of};
use super::saved_source::SavedSource;
use super::{Disk, RunningDisk, Setup};
use crate::log;
use pagefold_codec::PerCpuStream;
use pagefold_control::config::{DiskConfig, RestoreConfig};
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::text::counted;
use pagefold_page::size::Human;
use pagefold_page::{PAGE_SIZE, Page, PageIndex};
use pagefold_saved::{CodecRecord, Header, Lookup, PageForm, Parent, Reader, SavedError, Totals};
use pagefold_store::{SavedContents, Store, StoreError, WritebackThread};
use pagefold_sys::lazybits::LazyBits;
use pagefold_sys::ready;
use std::fs::File;
use std::io::{self, Chain, Cursor, ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A saved disk whose header was read.
pub struct Restore<'a> {
    config: DiskConfig,
    files: Files<'a>,
}

/// The files of its chain, the newest first.
enum Files<'a> {
    /// All are read before the disk is ready.
    InOrder(Vec<SavedFile<'a>>),
    /// Pages are read while the disk is used.
    ByIndex(Vec<(PathBuf, File)>, Vec<Lookup>),
}

/// A file of a chain.
struct SavedFile<'a> {
    path: PathBuf,
    reader: Reader<Chain<Cursor<Vec<u8>>, Input<'a>>>,
}

/// The file, which may be a pipe into which nobody writes for long. Reading it fails when the command has gone, or a
/// signal has come.
struct Input<'a> {
    file: File,
    /// The socket to the command, which sends nothing before the disk is ready.
    command: BorrowedFd<'a>,
    signals: BorrowedFd<'a>,
}

impl Read for Input<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            match ready::wait([self.command, self.signals, self.file.as_fd()], None) {
                Ok([true, ..]) => return Err(io::Error::other("the command that restores has gone")),
                Ok([_, true, _]) => return Err(io::Error::other("a signal has ended the server")),
                Ok(_) => {}
                Err(e) => return Err(io::Error::from_raw_os_error(e.errno)),
            }
            match self.file.read(bytes) {
                // Another process that has the pipe took what was there, or has made it non-blocking.
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
    }
}

impl<'a> Restore<'a> {
    /// Reads the header of the saved disk in the configuration, if there is one, and of the files of its chain in `parents`.
    /// The restore fails when `command` is at its end, or `signals` is readable.
    pub fn begin(
        config: &DiskConfig,
        file: Option<File>,
        parents: Vec<File>,
        command: BorrowedFd<'a>,
        signals: BorrowedFd<'a>,
    ) -> Result<Option<Self>> {
        let Some(restored) = config.restore.clone() else { return Ok(None) };
        let file = file.ok_or_else(|| CliError::usage("the saved disk was not passed to the server"))?;
        let open = |path: PathBuf, head: Vec<u8>, file: File| -> Result<SavedFile<'a>> {
            let input = Cursor::new(head).chain(Input { file, command, signals });
            let reader = Reader::open(input).map_err(|e| failure(&path, &e))?;
            Ok(SavedFile { path, reader })
        };
        let mut config = config.clone();
        if restored.is_lazy {
            return Self::by_index(config, restored, file, parents).map(Some);
        }
        let newest = open(restored.path, restored.head, file)?;
        let header = newest.reader.header();
        fit(&mut config, header, restored.takes_codecs, &newest.path)?;
        let mut files = vec![newest];
        for (path, file) in restored.parents.into_iter().zip(parents) {
            files.push(open(path, Vec::new(), file)?);
        }
        Ok(Some(Restore { config, files: Files::InOrder(files) }))
    }

    /// Reads the ends of the files.
    fn by_index(
        mut config: DiskConfig,
        restored: RestoreConfig,
        file: File,
        parents: Vec<File>,
    ) -> Result<Self> {
        let paths = std::iter::once(restored.path).chain(restored.parents);
        let files: Vec<_> = paths.zip(std::iter::once(file).chain(parents)).collect();
        let open = |(path, file): &(PathBuf, File)| Lookup::open(file).map_err(|e| failure(path, &e));
        let lookups = files.iter().map(open).collect::<Result<Vec<_>>>()?;
        let newest = lookups[0].header().clone();
        fit(&mut config, &newest, restored.takes_codecs, &files[0].0)?;
        let mut expected = newest.parent;
        for ((path, _), lookup) in files.iter().zip(&lookups).skip(1) {
            let (header, totals) = (lookup.header(), lookup.totals());
            let is = |parent: &Parent| parent.is(header.id, header.depth(), totals.digest);
            if !expected.as_ref().is_some_and(is) || header.len_bytes != newest.len_bytes {
                return Err(not_the_parent(path));
            }
            expected = header.parent.clone();
        }
        missing_parent(expected)?;
        Ok(Restore { config, files: Files::ByIndex(files, lookups) })
    }

    /// The configuration of the disk, with the codecs of the saved one if it gets these.
    pub fn config(&self) -> &DiskConfig {
        &self.config
    }

    /// Restores the saved disk into the new one, or begins to: of each page the contents in the newest file that has it.
    pub fn run(self, disk: &Disk) -> Result<()> {
        let live = disk.running_or_error()?;
        match self.files {
            Files::InOrder(files) => read_all(files, disk, &live),
            Files::ByIndex(files, lookups) => {
                let lost: u64 = lookups.iter().map(|lookup| lookup.totals().lost_pages).sum();
                let source = SavedSource::new(files, lookups, &disk.setup());
                let source = source.map_err(|e| CliError::new(Exit::Damaged, format!("restoring: {e}")))?;
                live.begin_restore(Arc::new(Restoring::new(Arc::new(source))));
                warn_of_lost(lost);
                Ok(())
            }
        }
    }
}

/// Reads all pages of the files of a chain into a new disk.
fn read_all(files: Vec<SavedFile<'_>>, disk: &Disk, live: &RunningDisk) -> Result<()> {
    // At the memory limit, pages go to the backing.
    let thread = live.store.writeback().map(|_| WritebackThread::start(live.store.clone()));
    let _thread = thread.transpose().map_err(|e| CliError::io("starting the thread that writes back", &e))?;
    let mut pages = Pages::new(live, files[0].reader.header())?;
    let mut expected: Option<Parent> = None;
    for (at, file) in files.into_iter().enumerate() {
        let path = file.path.clone();
        let header = file.reader.header().clone();
        let totals = file.run(&disk.setup(), &mut pages)?;
        let is_expected = match &expected {
            None => at == 0,
            Some(parent) => {
                parent.is(header.id, header.depth(), totals.digest) && header.len_bytes == pages.len_bytes
            }
        };
        if !is_expected {
            return Err(not_the_parent(&path));
        }
        expected = header.parent;
    }
    missing_parent(expected)?;
    log::info(format_args!("restored {}", counted(pages.stored, "page", "pages")));
    warn_of_lost(pages.lost);
    Ok(())
}

/// Gives a disk the codecs of the saved one, if it gets these, and refuses one that is too small for it.
fn fit(config: &mut DiskConfig, saved: &Header, takes_codecs: bool, path: &Path) -> Result<()> {
    if takes_codecs {
        take_codecs(config, &saved.codecs);
    }
    match saved.len_bytes > config.size_bytes {
        true => Err(too_small(path, saved.len_bytes)),
        false => Ok(()),
    }
}

/// Fails if the last file of a chain has a parent.
fn missing_parent(expected: Option<Parent>) -> Result<()> {
    let Some(parent) = expected else { return Ok(()) };
    let name = parent.name.display();
    Err(CliError::failed(format!("the parent '{name}' was not passed to the server")))
}

fn warn_of_lost(pages: u64) {
    if pages > 0 {
        let lost = counted(pages, "page", "pages");
        log::warning(format_args!("{lost} were lost before they were saved: reading them is an error"));
    }
}

/// Gives a disk the codecs of a saved one.
fn take_codecs(config: &mut DiskConfig, codecs: &[CodecRecord]) {
    let mut codecs = codecs.iter().map(config_of);
    if let Some(primary) = codecs.next() {
        config.codec = primary;
        config.further_codecs = codecs.take(pagefold_store::FURTHER_CODECS_MAX).collect();
    }
}

/// The pages that a restore has stored.
struct Pages<'a> {
    live: &'a RunningDisk,
    /// Of the saved disk.
    len_bytes: u64,
    /// The pages that a file of the chain had; `None`: the file has no parent, and its pages are checked for being there
    /// once.
    known: Option<LazyBits>,
    stored: u64,
    lost: u64,
}

impl<'a> Pages<'a> {
    fn new(live: &'a RunningDisk, newest: &Header) -> Result<Self> {
        let known = newest.parent.as_ref().map(|_| LazyBits::new(newest.page_count())).transpose()?;
        Ok(Pages { live, len_bytes: newest.len_bytes, known, stored: 0, lost: 0 })
    }

    /// Stores a page, unless a newer file had it.
    fn store(&mut self, routes: &mut [Route], index: PageIndex, form: PageForm<'_>) -> Result<(), PageError> {
        if let Some(known) = &self.known {
            if known.contains(index.0) {
                return Ok(());
            }
            known.insert(index.0);
            if form == PageForm::SameFilled(0) {
                return Ok(());
            }
        }
        store_page(self.live, routes, index, form)?;
        self.stored += 1;
        self.lost += u64::from(form == PageForm::Lost);
        Ok(())
    }
}

impl SavedFile<'_> {
    /// Stores the pages of the file, and verifies it.
    fn run(mut self, setup: &Setup, pages: &mut Pages<'_>) -> Result<Totals> {
        let mut routes = self.routes(setup)?;
        let path = self.path;
        while let Some(block) = self.reader.next_block().map_err(|e| failure(&path, &e))? {
            for (page, form) in block.pages() {
                pages.store(&mut routes, PageIndex(page), form).map_err(|e| e.at(&path))?;
            }
        }
        self.reader.finish().map_err(|e| failure(&path, &e))
    }

    fn routes(&self, setup: &Setup) -> Result<Vec<Route>> {
        route::routes(setup, &self.reader.header().codecs).map_err(|e| {
            let path = self.path.display();
            CliError::new(Exit::Damaged, format!("restoring '{path}': its codec cannot be used: {e}"))
        })
    }
}

/// The reason why a page was not stored.
enum PageError {
    Store(StoreError),
    Twice(PageIndex),
    Undecodable(PageIndex),
}

impl PageError {
    fn at(self, path: &Path) -> CliError {
        let path = path.display();
        match self {
            PageError::Store(StoreError::NoMemory { source, .. }) => CliError::failed(format!(
                "restoring '{path}': its pages do not fit the memory of the disk ({source}); raise --memory, or add a \
                 --backing"
            ))
            .with_errno(libc::ENOMEM),
            PageError::Store(e) => CliError::failed(format!("restoring '{path}': {e}")),
            PageError::Twice(page) => {
                CliError::new(Exit::Damaged, format!("restoring '{path}': page {page} is there twice"))
            }
            PageError::Undecodable(page) => {
                CliError::new(Exit::Damaged, format!("restoring '{path}': page {page} does not decode"))
            }
        }
    }
}

fn store_page(
    live: &RunningDisk,
    routes: &mut [Route],
    index: PageIndex,
    form: PageForm<'_>,
) -> Result<(), PageError> {
    let store: &Store = &live.store;
    let contents = match form {
        PageForm::SameFilled(word) => SavedContents::SameFilled(word),
        PageForm::Raw(page) => SavedContents::Raw(page),
        PageForm::Lost => SavedContents::Lost,
        PageForm::Compressed { codec, bytes } => match routes.get_mut(usize::from(codec)) {
            Some(Route::AsTheyAre(priority)) => SavedContents::Compressed { priority: *priority, bytes },
            Some(Route::Decompressed(stream)) => return write_decompressed(store, stream, index, bytes),
            None => return Err(PageError::Undecodable(index)),
        },
    };
    match store.restore(index, contents).map_err(PageError::Store)? {
        true => Ok(()),
        false => Err(PageError::Twice(index)),
    }
}

fn write_decompressed(
    store: &Store,
    stream: &mut PerCpuStream,
    index: PageIndex,
    bytes: &[u8],
) -> Result<(), PageError> {
    if store.is_stored(index) {
        return Err(PageError::Twice(index));
    }
    let mut page: Page = [0; PAGE_SIZE];
    match stream.stream.decompress(bytes, &mut page) {
        Ok(PAGE_SIZE) => store.write(index.0 * PAGE_SIZE as u64, &page).map_err(PageError::Store),
        _ => Err(PageError::Undecodable(index)),
    }
}

/// The error for a disk that is smaller than the saved one.
fn too_small(path: &Path, len_bytes: u64) -> CliError {
    CliError::usage(format!(
        "--size: the disk saved in '{}' has {len_bytes} bytes ({}); choose at least as many, or leave --size out",
        path.display(),
        Human(len_bytes)
    ))
}

/// The error for a file that is not the one that its successor in the chain was made from.
fn not_the_parent(path: &Path) -> CliError {
    let path = path.display();
    CliError::new(
        Exit::Damaged,
        format!("restoring '{path}': it is not the save that the next one goes on from"),
    )
}

/// The error for a saved disk that cannot be read.
fn failure(path: &Path, e: &SavedError) -> CliError {
    let message = format!("restoring '{}': {e}", path.display());
    match e {
        // Not `Unavailable`, after which another export is tried.
        SavedError::Read { .. } | SavedError::Newer { .. } | SavedError::Features { .. } => {
            CliError::failed(message)
        }
        SavedError::NotSaved => CliError::usage(message),
        SavedError::Truncated { .. } | SavedError::Damaged { .. } => CliError::new(Exit::Damaged, message),
    }
}
