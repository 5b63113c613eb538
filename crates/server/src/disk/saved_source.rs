//! [`SavedSource`]: the files of a saved disk from which a disk is being restored while it is used.
//!
//! A page is in the newest file of the chain whose index names it. Leaves of the indexes and the last blocks are cached, in
//! bounded memory. Each part is verified by its checksum; because a block of another save has a valid one too, the time of
//! the last change of the file is compared after each read, and if that has changed, header and trailer are. So a file that
//! is changed or truncated meanwhile fails reads, and never makes other bytes of them. Its name may be removed.
//!
//! The next server gets the descriptors again ([`SavedSource::again`]). A file that has changed by then does not keep it from
//! serving the disk: only the pages that are still there cannot be read.

use super::Setup;
use super::recent::Cache;
use super::route::{self, Route};
use pagefold_page::{PAGE_SIZE, Page, PageIndex};
use pagefold_saved::{BlockBytes, Leaf, Lookup, PageForm, Place, SavedError};
use pagefold_store::{FetchedContents, PageSource, SavedContents, TakeFetched};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Leaves of indexes in memory, beside one for each file. One has up to 256 KiB.
const CACHED_LEAVES: usize = 16;
/// For how long a leaf that could not be read is not read again.
const FAILED_TIME: Duration = Duration::from_secs(5);
/// Most codecs of the files that the disk does not have, for which memory is needed. A disk has four.
const CODECS_MAX: usize = 8;
/// Blocks in memory. One has up to 256 KiB.
const CACHED_BLOCKS: usize = 4;

/// A file of a chain, and how it is recognised.
pub struct SavedFile {
    /// Its path, for messages.
    pub path: PathBuf,
    /// The open file.
    pub file: File,
    /// The identity in its header.
    pub id: [u8; 16],
    /// The digest in its trailer.
    pub digest: [u8; 32],
}

/// The files of a chain, the newest first.
pub struct SavedSource {
    files: Vec<SavedFile>,
    /// Their indexes, or the reason why they cannot be used.
    opened: Result<Vec<OpenedFile>, String>,
    leaves: Mutex<Cache<(usize, usize), Leaf>>,
    /// Leaves that could not be read, when and why.
    failed: Mutex<Cache<(usize, usize), (Instant, String)>>,
    blocks: Mutex<Cache<(usize, u64), BlockBytes>>,
    /// Fetches that run.
    fetches: AtomicUsize,
}

struct OpenedFile {
    lookup: Lookup,
    routes: Mutex<Vec<Route>>,
    /// The last change of the file when it was compared with `lookup`.
    stamp: Mutex<Stamp>,
}

/// The time of the last change of a file, and its length.
type Stamp = (i64, i64, u64);

/// The place of a page: the file and the place in it.
type FilePlace = (usize, Place);

impl SavedSource {
    /// The source of these files, which were read up to `lookups`, for a disk with the settings `setup`.
    pub fn new(files: Vec<(PathBuf, File)>, lookups: Vec<Lookup>, setup: &Setup) -> Result<Self, String> {
        let saved = |((path, file), lookup): ((PathBuf, File), &Lookup)| SavedFile {
            path,
            file,
            id: lookup.header().id,
            digest: lookup.totals().digest,
        };
        let files: Vec<_> = files.into_iter().zip(&lookups).map(saved).collect();
        let opened = open(&files, lookups, setup)?;
        Ok(Self::of(files, Ok(opened)))
    }

    /// The source of a former server.
    pub fn again(files: Vec<SavedFile>, setup: &Setup) -> Self {
        let lookup = |saved: &SavedFile| {
            let lookup = Lookup::open(&saved.file).map_err(|e| at(&saved.path, &e))?;
            match (lookup.header().id, lookup.totals().digest) == (saved.id, saved.digest) {
                true => Ok(lookup),
                false => Err(changed(&saved.path)),
            }
        };
        let lookups = files.iter().map(lookup).collect::<Result<Vec<_>, _>>();
        let opened = lookups.and_then(|lookups| open(&files, lookups, setup));
        Self::of(files, opened)
    }

    fn of(files: Vec<SavedFile>, opened: Result<Vec<OpenedFile>, String>) -> Self {
        let leaves = Mutex::new(Cache::new(CACHED_LEAVES + files.len()));
        let blocks = Mutex::new(Cache::new(CACHED_BLOCKS));
        let failed = Mutex::new(Cache::new(CACHED_LEAVES));
        SavedSource { files, opened, leaves, failed, blocks, fetches: AtomicUsize::new(0) }
    }

    /// The files, the newest first.
    pub fn files(&self) -> &[SavedFile] {
        &self.files
    }

    /// The number of pages in all files. One that is in several files counts in each.
    pub fn total_pages(&self) -> u64 {
        let pages = |opened: &OpenedFile| opened.lookup.totals().pages;
        self.opened.iter().flatten().map(pages).fold(0, u64::saturating_add)
    }

    /// The leaves of the indexes, by file and number: those of the newest file first.
    pub fn leaves(&self) -> Result<Vec<(usize, usize)>, String> {
        let opened = self.opened.as_ref().map_err(Clone::clone)?;
        let of_file = |(at, opened): (usize, &OpenedFile)| {
            (0..opened.lookup.leaf_count()).map(move |leaf| (at, leaf)).collect::<Vec<_>>()
        };
        Ok(opened.iter().enumerate().flat_map(of_file).collect())
    }

    /// A leaf.
    pub fn leaf(&self, (at, number): (usize, usize)) -> io::Result<Arc<Leaf>> {
        let opened = self.opened(at)?;
        if let Some(leaf) = lock(&self.leaves).get(&(at, number)) {
            return Ok(leaf);
        }
        if let Some(reason) = self.failure_of((at, number)) {
            return Err(io::Error::other(reason));
        }
        match self.read(at, |file| opened.lookup.read_leaf(file, number)) {
            Ok(leaf) => Ok(lock(&self.leaves).add((at, number), leaf)),
            Err(e) => {
                lock(&self.failed).add((at, number), (Instant::now(), e.to_string()));
                Err(e)
            }
        }
    }

    /// The reason why a leaf could not be read a moment ago. A discard asks for each page of it.
    fn failure_of(&self, leaf: (usize, usize)) -> Option<String> {
        let failed = lock(&self.failed).get(&leaf)?;
        (failed.0.elapsed() < FAILED_TIME).then(|| failed.1.clone())
    }

    /// The pages that a leaf may name.
    pub fn span_of_leaf(&self, (at, number): (usize, usize)) -> Range<u64> {
        let Ok(opened) = self.opened(at) else { return 0..0 };
        let first = |leaf| opened.lookup.first_page(leaf);
        let end = opened.lookup.header().page_count();
        first(number).unwrap_or(end)..first(number + 1).unwrap_or(end)
    }

    /// Whether a thread fetches a page.
    pub fn is_busy(&self) -> bool {
        self.fetches.load(Relaxed) > 0
    }

    /// The place of a page in the newest file that has it.
    pub fn locate(&self, page: u64) -> io::Result<Option<FilePlace>> {
        for at in 0..self.files.len() {
            let leaf = self.opened(at)?.lookup.leaf_of(page).map(|leaf| self.leaf((at, leaf))).transpose()?;
            if let Some(place) = leaf.and_then(|leaf| leaf.find(page)) {
                return Ok(Some((at, place)));
            }
        }
        Ok(None)
    }

    /// The same by the leaves in memory; `None` if one is missing.
    fn locate_in_memory(&self, page: u64) -> Option<FilePlace> {
        for at in 0..self.files.len() {
            let Some(number) = self.opened(at).ok()?.lookup.leaf_of(page) else { continue };
            let leaf = lock(&self.leaves).get(&(at, number))?;
            if let Some(place) = leaf.find(page) {
                return Some((at, place));
            }
        }
        None
    }

    fn opened(&self, at: usize) -> io::Result<&OpenedFile> {
        let opened = self.opened.as_ref().map_err(|e| io::Error::other(e.clone()))?;
        opened.get(at).ok_or_else(|| io::Error::other("a file of the saved disk is missing"))
    }

    fn block(&self, at: usize, offset: u64) -> io::Result<Arc<BlockBytes>> {
        let opened = self.opened(at)?;
        if let Some(block) = lock(&self.blocks).get(&(at, offset)) {
            return Ok(block);
        }
        let block = self.read(at, |file| opened.lookup.read_block(file, offset))?;
        Ok(lock(&self.blocks).add((at, offset), block))
    }

    /// Reads a part of a file, which is still the one that was opened.
    fn read<T>(&self, at: usize, read: impl FnOnce(&File) -> Result<T, SavedError>) -> io::Result<T> {
        let (saved, opened) = (&self.files[at], self.opened(at)?);
        let part = read(&saved.file);
        let now = stamp(&saved.file)?;
        let mut known = lock(&opened.stamp);
        if *known != now {
            if !opened.lookup.is_same(&saved.file) {
                return Err(io::Error::other(changed(&saved.path)));
            }
            *known = now;
        }
        part.map_err(|e| io::Error::other(self::at(&saved.path, &e)))
    }

    fn fetch_block(&self, index: u64, take: &mut TakeFetched) -> io::Result<()> {
        let Some((at, place)) = self.locate(index)? else { return Ok(()) };
        let damaged = |what| {
            let e = SavedError::Damaged { offset: place.offset, what };
            io::Error::other(self::at(&self.files[at].path, &e))
        };
        let bytes = self.block(at, place.offset)?;
        let block = bytes.block().map_err(|e| io::Error::other(e.to_string()))?;
        let mut is_found = false;
        for (entry, (page, form)) in (0..).zip(block.pages()) {
            let is_wanted = page == index && entry == place.entry;
            let here = (at, Place { offset: place.offset, entry });
            // A newer file may have the page, or the index may name another block. No leaf is read for the pages beside: a
            // forged block could need thousands.
            if !is_wanted && self.locate_in_memory(page) != Some(here) {
                continue;
            }
            let mut plain: Page = [0; PAGE_SIZE];
            match self.contents(at, form, &mut plain) {
                Some(contents) => take(PageIndex(page), contents),
                None if is_wanted => return Err(damaged("a page does not decode")),
                None => {}
            }
            is_found |= is_wanted;
        }
        match is_found {
            true => Ok(()),
            false => Err(damaged("the index names a page that the block does not have")),
        }
    }

    /// The contents of a page of a file; `None` if they do not decode.
    fn contents<'a>(
        &self,
        at: usize,
        form: PageForm<'a>,
        plain: &'a mut Page,
    ) -> Option<FetchedContents<'a>> {
        let saved = match form {
            PageForm::SameFilled(word) => SavedContents::SameFilled(word),
            PageForm::Raw(page) => SavedContents::Raw(page),
            PageForm::Lost => SavedContents::Lost,
            PageForm::Compressed { codec, bytes } => {
                match lock(&self.opened(at).ok()?.routes).get_mut(usize::from(codec))? {
                    Route::AsTheyAre(priority) => SavedContents::Compressed { priority: *priority, bytes },
                    Route::Decompressed(stream) => {
                        let decompressed = stream.stream.decompress(bytes, plain).ok();
                        return decompressed
                            .filter(|len| *len == PAGE_SIZE)
                            .map(|_| FetchedContents::Plain(plain));
                    }
                }
            }
        };
        Some(FetchedContents::Saved(saved))
    }
}

impl PageSource for SavedSource {
    fn fetch(&self, index: PageIndex, take: &mut TakeFetched) -> io::Result<()> {
        self.fetches.fetch_add(1, Relaxed);
        let fetched = self.fetch_block(index.0, take);
        self.fetches.fetch_sub(1, Relaxed);
        fetched
    }

    fn next_page(&self, range: Range<PageIndex>) -> Option<PageIndex> {
        let start = range.start.0;
        let next_in = |at: usize| -> io::Result<Option<u64>> {
            let lookup = &self.opened(at)?.lookup;
            let leaf = lookup.leaf_of(start);
            let here = leaf.map(|leaf| self.leaf((at, leaf))).transpose()?;
            let next_leaf = leaf.map_or(0, |leaf| leaf + 1);
            Ok(here.and_then(|leaf| leaf.next_page(start)).or_else(|| lookup.first_page(next_leaf)))
        };
        // A page of which that cannot be found out counts as there.
        let next = (0..self.files.len()).filter_map(|at| next_in(at).unwrap_or(Some(start))).min();
        next.map(PageIndex).filter(|next| next < &range.end && range.start < range.end)
    }
}

fn open(files: &[SavedFile], lookups: Vec<Lookup>, setup: &Setup) -> Result<Vec<OpenedFile>, String> {
    let mut further = 0;
    let opened = |(saved, lookup): (&SavedFile, Lookup)| {
        let routes = route::routes(setup, &lookup.header().codecs);
        let routes =
            routes.map_err(|e| format!("the codec of '{}' cannot be used: {e}", saved.path.display()))?;
        further += routes.iter().filter(|route| matches!(route, Route::Decompressed(_))).count();
        if further > CODECS_MAX {
            return Err(format!(
                "more than {CODECS_MAX} codecs are not those of the disk; restore with --restore-now"
            ));
        }
        let stamp = stamp(&saved.file).map_err(|e| format!("reading '{}': {e}", saved.path.display()))?;
        // Changes between the first read and the stamp are noticed, too.
        match lookup.is_same(&saved.file) {
            true => Ok(OpenedFile { lookup, routes: Mutex::new(routes), stamp: Mutex::new(stamp) }),
            false => Err(changed(&saved.path)),
        }
    };
    files.iter().zip(lookups).map(opened).collect()
}

fn stamp(file: &File) -> io::Result<Stamp> {
    let metadata = file.metadata()?;
    Ok((metadata.mtime(), metadata.mtime_nsec(), metadata.len()))
}

fn at(path: &Path, e: &SavedError) -> String {
    format!("'{}': {e}", path.display())
}

fn changed(path: &Path) -> String {
    format!("'{}' has changed since the restore began", path.display())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagefold_saved::{Header, Parent, PlainOutput, Writer};
    use std::collections::BTreeMap;
    use std::os::unix::fs::FileExt;

    const PAGES: u64 = 20_000;

    /// Files with their paths.
    type Files = Vec<(PathBuf, File)>;

    /// A file with these pages, each of which repeats its word.
    fn saved(pages: impl Iterator<Item = (u64, u64)>, parent: Option<&Lookup>) -> (File, Lookup) {
        let parent = parent.map(|parent| Parent {
            id: parent.header().id,
            digest: parent.totals().digest,
            depth: parent.header().depth() + 1,
            name: "before".into(),
        });
        let id = [parent.as_ref().map_or(0, |parent| parent.depth as u8) + 1; 16];
        let header = Header { parent, ..Header::new(PAGES * PAGE_SIZE as u64, id) };
        let mut writer = Writer::new(PlainOutput::new(Vec::new()), &header).unwrap();
        pages.for_each(|(page, word)| writer.add(page, PageForm::SameFilled(word)).unwrap());
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&writer.finish().unwrap().1.into_inner(), 0).unwrap();
        let lookup = Lookup::open(&file).unwrap();
        (file, lookup)
    }

    /// A chain of three files, and the words of all pages in it.
    fn chain() -> (Files, Vec<Lookup>, BTreeMap<u64, u64>) {
        let (mut files, mut lookups, mut truth) = (Vec::new(), Vec::<Lookup>::new(), BTreeMap::new());
        for (round, step) in [3, 7, 11].into_iter().enumerate() {
            // Also zeroes, and in an order that is not that of the disk.
            let word = |page: u64| if page % 5 == round as u64 { 0 } else { page << 8 | round as u64 };
            let pages = || {
                let pages = (0..PAGES).filter(move |page| page % step == 0 && page / 2000 != 4);
                pages.clone().filter(|page| page % 2 == 1).chain(pages.filter(|page| page % 2 == 0))
            };
            let (file, lookup) = saved(pages().map(|page| (page, word(page))), lookups.first());
            truth.extend(pages().map(|page| (page, word(page))));
            files.insert(0, (PathBuf::from(format!("file {round}")), file));
            lookups.insert(0, lookup);
        }
        (files, lookups, truth)
    }

    /// The pages that a fetch of one passes.
    fn fetched(source: &SavedSource, page: u64) -> io::Result<BTreeMap<u64, u64>> {
        let mut taken = BTreeMap::new();
        source.fetch(PageIndex(page), &mut |index, contents| {
            let FetchedContents::Saved(SavedContents::SameFilled(word)) = contents else { panic!() };
            assert!(taken.insert(index.0, word).is_none());
        })?;
        Ok(taken)
    }

    #[test]
    fn a_page_is_that_of_the_newest_file_that_has_it() {
        let (files, lookups, truth) = chain();
        let source = SavedSource::new(files, lookups, &Setup::default()).unwrap();
        for page in (0..PAGES).step_by(13).chain([PAGES - 1]) {
            let taken = fetched(&source, page).unwrap();
            assert_eq!(taken.get(&page), truth.get(&page), "{page}");
            assert!(taken.iter().all(|(page, word)| truth.get(page) == Some(word)));
            let next = source.next_page(PageIndex(page)..PageIndex(PAGES));
            assert_eq!(next.map(|next| next.0), truth.range(page..).next().map(|(page, _)| *page), "{page}");
        }
        assert_eq!(source.next_page(PageIndex(1)..PageIndex(3)), None);
        let pages = source.leaves().unwrap().into_iter();
        let mut all: Vec<_> =
            pages.flat_map(|number| source.leaf(number).unwrap().pages().collect::<Vec<_>>()).collect();
        all.sort_unstable();
        all.dedup();
        assert!(all.iter().eq(truth.keys()));
    }

    #[test]
    fn the_next_server_recognises_its_files_and_no_others() {
        let (files, lookups, truth) = chain();
        let source = SavedSource::new(files, lookups, &Setup::default()).unwrap();
        let again = || {
            let copy = |saved: &SavedFile| SavedFile {
                path: saved.path.clone(),
                file: saved.file.try_clone().unwrap(),
                id: saved.id,
                digest: saved.digest,
            };
            SavedSource::again(source.files().iter().map(copy).collect(), &Setup::default())
        };
        assert_eq!(fetched(&again(), 21).unwrap().get(&21), truth.get(&21));
        // The file before becomes that of another disk.
        let (other, _) = saved((0..PAGES).map(|page| (page, page + 1)), None);
        let mut bytes = vec![0; other.metadata().unwrap().len() as usize];
        other.read_exact_at(&mut bytes, 0).unwrap();
        source.files()[2].file.write_all_at(&bytes, 0).unwrap();
        let changed = again();
        assert!(fetched(&changed, 21).is_err() && changed.leaves().is_err());
        // A page of which nothing is known counts as there.
        assert_eq!(changed.next_page(PageIndex(1)..PageIndex(3)), Some(PageIndex(1)));
        // The server that has the old index sees it too, but for pages that it has in memory.
        for page in (0..PAGES).step_by(101) {
            if let Ok(taken) = fetched(&source, page) {
                assert!(taken.iter().all(|(page, word)| truth.get(page) == Some(word)), "{page}");
            }
        }
    }
}
