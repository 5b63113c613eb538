//! Start-up lists on images with all features: the bytes that are fetched are those that reading needs.

use crate::support::{reference_image, reference_names};
use pagefold_image::backing::{BackingError, ByteSource, FileBacking, Prefetched};
use pagefold_image::read::FileKind;
use pagefold_image::startup::{PrefetchCounters, StartList, prefetch};
use pagefold_image::{Image, Node, Options, ReadAhead};
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

/// A source that notes what is read and prefetched.
struct Noting {
    file: FileBacking,
    read: Mutex<Vec<Range<u64>>>,
    prefetched: Mutex<Vec<Range<u64>>>,
}

impl ByteSource for Noting {
    fn len_bytes(&self) -> u64 {
        self.file.len_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BackingError> {
        self.read.lock().unwrap().push(offset..offset + buf.len() as u64);
        self.file.read_at(offset, buf)
    }

    fn prefetch(&self, offset: u64, len_bytes: u64) -> Prefetched {
        self.prefetched.lock().unwrap().push(offset..offset + len_bytes);
        Prefetched::Done
    }

    fn describe(&self) -> String {
        "a test".to_string()
    }
}

impl Noting {
    fn open(name: &str) -> (Arc<Self>, Image) {
        let file = FileBacking::for_reading(std::fs::File::open(reference_image(name)).unwrap()).unwrap();
        let source = Arc::new(Noting { file, read: Mutex::default(), prefetched: Mutex::default() });
        let options = Options { read_ahead: ReadAhead::Off, ..Options::default() };
        (source.clone(), Image::open(source, options).unwrap())
    }
}

/// The regular files with contents below a directory, with their paths.
fn files(directory: &Node, path: &str, found: &mut Vec<(String, Node)>) {
    for entry in directory.entries().unwrap() {
        let entry = entry.unwrap();
        let (Ok(name), Ok(node)) = (String::from_utf8(entry.name), directory.image().node(entry.nid)) else {
            continue;
        };
        let path = format!("{path}/{name}");
        match node.kind() {
            FileKind::Directory => files(&node, &path, found),
            FileKind::Regular if node.len_bytes() > 0 => found.push((path, node)),
            _ => {}
        }
    }
}

fn covers(ranges: &[Range<u64>], at: u64) -> bool {
    ranges.iter().any(|range| range.contains(&at))
}

/// The slow twin of the plan is reading itself: what it reads is what was fetched, except metadata.
#[test]
fn the_stored_bytes_of_files_are_fetched_and_not_much_else() {
    for name in reference_names() {
        let (_, image) = Noting::open(name);
        let mut found = Vec::new();
        files(&image.root().unwrap(), "", &mut found);
        let mut checked = 0;
        for (path, node) in found.iter().step_by(found.len() / 25 + 1) {
            let (source, image) = Noting::open(name);
            let (start, len) = (node.len_bytes() / 3, node.len_bytes().div_ceil(2).min(300_000));
            let list = StartList::parse(format!("{path}\t{start}\t{len}\n").as_bytes());
            let counters = PrefetchCounters::default();
            prefetch(&image, &list, &counters, &AtomicBool::new(false));
            let stats = counters.stats();
            assert!(stats.has_ended && (stats.entries, stats.skipped) == (1, 0), "{name} {path}: {stats:?}");
            let prefetched = source.prefetched.lock().unwrap().clone();
            let fetched_bytes: u64 = prefetched.iter().map(|range| range.end - range.start).sum();
            assert_eq!((stats.planned_bytes, stats.done_bytes), (fetched_bytes, fetched_bytes));

            let known = [prefetched, source.read.lock().unwrap().clone()].concat();
            let (reader, image) = Noting::open(name);
            let node = image.find(path.as_bytes()).unwrap();
            reader.read.lock().unwrap().clear();
            node.read_at(start, &mut vec![0; len as usize]).unwrap();
            let read = reader.read.lock().unwrap().clone();
            // A tail behind an inode may be in the next block of metadata.
            let missing =
                read.iter().filter(|range| !(covers(&known, range.start) && covers(&known, range.end - 1)));
            let missing: u64 = missing.map(|range| range.end - range.start).sum();
            assert!(missing <= 16 << 10, "{name} {path}: {missing} bytes are missing");
            let read_bytes: u64 = read.iter().map(|range| range.end - range.start).sum();
            // An inline tail may have been read with the inode.
            let gaps = (read.len() as u64 + 1) * (32 << 10);
            assert!(fetched_bytes <= read_bytes + gaps, "{name} {path}: {fetched_bytes} of {read_bytes}");
            checked += u64::from(fetched_bytes > 0);
        }
        assert!(checked > 5, "{name}: {checked}");
    }
}

#[test]
fn entries_that_do_not_fit_are_counted_and_a_stop_ends_a_prefetch() {
    let (source, image) = Noting::open("zstd");
    let mut found = Vec::new();
    files(&image.root().unwrap(), "", &mut found);
    let (path, len) = (&found[0].0, found[0].1.len_bytes());
    let text = format!("{path}\t{len}\t1\n{path}/x\t0\t1\n/none\n/\t0\t0\n{path}\t0\t{}\n", u64::MAX);
    let (list, counters) = (StartList::parse(text.as_bytes()), PrefetchCounters::default());
    prefetch(&image, &list, &counters, &AtomicBool::new(false));
    let stats = counters.stats();
    assert_eq!((stats.entries, stats.skipped), (5, 3), "{stats:?}");
    // Whatever a list says, no more than the image.
    let all: String = found.iter().map(|(path, _)| format!("{path}\n")).collect();
    let (list, counters) = (StartList::parse(all.repeat(30).as_bytes()), PrefetchCounters::default());
    prefetch(&image, &list, &counters, &AtomicBool::new(false));
    assert!(counters.stats().planned_bytes <= source.len_bytes(), "{:?}", counters.stats());
    source.prefetched.lock().unwrap().clear();
    prefetch(&image, &list, &PrefetchCounters::default(), &AtomicBool::new(true));
    assert_eq!(source.prefetched.lock().unwrap().len(), 0);
}
