//! Calls that fail while an image is built: each call of each kind, one at a time. The result is an error with the file
//! and the reason, and nothing that is an image.

use super::{build_at, options, text, tree_of};
use crate::support::features::memory;
use pagefold_backing::layer::{ErrorLayer, When};
use pagefold_image::{Image, Options as ReadOptions};
use pagefold_image_build::content::{Content, Reader};
use pagefold_image_build::source::image;
use pagefold_image_build::tree::Body;
use pagefold_image_build::{BuildError, Dedupe, ImageFile, InodeId, Metadata, Options, Phase, Tree, build};
use std::cell::Cell;
use std::fs::{self, File};
use std::io;
use std::ops::{ControlFlow, Range};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const ENOSPC: i32 = 28;
const EIO: i32 = 5;

fn build_to(tree: &Tree, options: &Options, file: &dyn ImageFile) -> Result<(), BuildError> {
    build(tree, options, file, &mut |_| ControlFlow::Continue(())).map(|_| ())
}

fn is_image(path: &Path) -> bool {
    Image::open_file(path, ReadOptions::default()).is_ok()
}

/// Bytes that do not compress, or that do.
fn data(len: usize, compresses: bool) -> Vec<u8> {
    let noise = |i: u64| {
        let z = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 56
    };
    (0..len as u64).map(|i| noise(if compresses { i % 100 } else { i }) as u8).collect()
}

/// A file of which one call fails, a write after a quarter of its bytes.
struct FullFile {
    file: File,
    /// Calls before the one that fails.
    left: Cell<u64>,
    has_failed: Cell<bool>,
}

impl FullFile {
    fn is_due(&self) -> bool {
        let left = self.left.get();
        self.left.set(left.wrapping_sub(1));
        self.has_failed.set(self.has_failed.get() || left == 0);
        left == 0
    }
}

impl ImageFile for FullFile {
    fn set_len(&self, len_bytes: u64) -> io::Result<()> {
        if self.is_due() { Err(io::Error::from_raw_os_error(ENOSPC)) } else { self.file.set_len(len_bytes) }
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if self.is_due() {
            FileExt::write_all_at(&self.file, &bytes[..bytes.len() / 4], offset)?;
            return Err(io::Error::from_raw_os_error(ENOSPC));
        }
        FileExt::write_all_at(&self.file, bytes, offset)
    }
}

#[test]
fn each_write_may_find_no_space() {
    let work = tempfile::tempdir().unwrap();
    let (wanted, path) = (work.path().join("wanted"), work.path().join("image"));
    let mut tree = Tree::new(Metadata::default());
    for i in 0..8 {
        tree.add_bytes(format!("noise-{i}").as_bytes(), data(700_000 + i, false)).unwrap();
    }
    tree.add_bytes(b"text", data(1 << 20, true)).unwrap();
    for compression in ["none", "lz4", "zstd:1"] {
        // The contents are beginnings of each other.
        let options = Options { dedupe: Dedupe::Nothing, ..options(compression, 65536, true) };
        build_at(&wanted, &tree, &options);
        let mut calls = 0;
        loop {
            let file =
                FullFile { file: File::create(&path).unwrap(), left: calls.into(), has_failed: false.into() };
            let built = build_to(&tree, &options, &file);
            if !file.has_failed.get() {
                built.unwrap();
                break;
            }
            let error = built.unwrap_err();
            let BuildError::Write { source, .. } = &error else {
                panic!("{compression}, call {calls}: {error}")
            };
            assert_eq!(source.raw_os_error(), Some(ENOSPC));
            // The superblock is written last.
            assert!(!is_image(&path), "{compression}, call {calls}");
            calls += 1;
        }
        assert!(calls > 7, "{compression}: {calls} calls");
        assert!(fs::read(&wanted).unwrap() == fs::read(&path).unwrap(), "{compression}");
    }
}

/// A file whose calls are counted together with those of other files; one of them fails.
#[derive(Debug)]
struct FailingContent {
    path: PathBuf,
    bytes: Vec<u8>,
    ranges: Option<Vec<Range<u64>>>,
    /// Calls before the one that fails.
    left: Arc<AtomicU64>,
}

impl FailingContent {
    fn call(&self) -> Result<(), BuildError> {
        match self.left.fetch_sub(1, Ordering::Relaxed) {
            0 => {
                Err(BuildError::Source { path: self.path.clone(), source: io::Error::from_raw_os_error(EIO) })
            }
            _ => Ok(()),
        }
    }
}

impl Content for FailingContent {
    fn len_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn open(&self) -> Result<Box<dyn Reader + '_>, BuildError> {
        self.call()?;
        Ok(Box::new(FailingReader(self)))
    }
}

struct FailingReader<'c>(&'c FailingContent);

impl Reader for FailingReader<'_> {
    fn data_ranges(&self) -> Result<Option<Vec<Range<u64>>>, BuildError> {
        self.0.call()?;
        Ok(self.0.ranges.clone())
    }

    fn read_exact_at(&self, buf: &mut [u8], at: u64) -> Result<(), BuildError> {
        self.0.call()?;
        buf.copy_from_slice(&self.0.bytes[at as usize..][..buf.len()]);
        Ok(())
    }

    fn finish(&self) -> Result<(), BuildError> {
        self.0.call()
    }
}

#[test]
fn each_call_of_a_source_may_fail() {
    let work = tempfile::tempdir().unwrap();
    let path = work.path().join("image");
    let left = Arc::new(AtomicU64::new(0));
    let mut tree = Tree::new(Metadata::default());
    // A file of several segments, one that is mostly a hole, one with a hole, one that is not compressed, an empty one.
    let mut holes = vec![0; 8 << 20];
    holes[..4096].fill(1);
    for (name, bytes, ranges) in [
        ("a", data((16 << 20) + 1, true), None),
        ("b", holes.clone(), Some(vec![Range { start: 0, end: 4096 }])),
        ("c", holes[..8192].to_vec(), Some(vec![Range { start: 0, end: 4096 }])),
        ("plain", data(5000, true), None),
        ("empty", Vec::new(), None),
    ] {
        let content = FailingContent { path: name.into(), bytes, ranges, left: left.clone() };
        tree.add(InodeId::ROOT, name.as_bytes(), Metadata::default(), Body::Regular(Arc::new(content)))
            .unwrap();
    }
    let mut options = Options { threads: 2, ..options("lz4", 65536, true) };
    options.rules.push("plain=none").unwrap();
    for dedupe in [Dedupe::Files, Dedupe::Chunks] {
        let mut failed = Vec::new();
        for calls in 0.. {
            left.store(calls, Ordering::Relaxed);
            match build_to(&tree, &Options { dedupe, ..options.clone() }, &File::create(&path).unwrap()) {
                Ok(()) => break,
                Err(BuildError::Source { path, source }) => {
                    assert_eq!(source.raw_os_error(), Some(EIO));
                    failed.push(path);
                }
                Err(other) => panic!("call {calls}: {other}"),
            }
            assert!(!is_image(&path), "call {calls}");
        }
        assert!(
            is_image(&path) && left.load(Ordering::Relaxed) < 1 << 63,
            "a call failed and no error was reported"
        );
        // Opening, ranges, reading once or more, and the end. Chunks are found in a pass before, in
        // which a file that is mostly a hole is only opened.
        let count = |name: &str| failed.iter().filter(|path| **path == *Path::new(name)).count();
        let passes = if dedupe == Dedupe::Chunks { 2 } else { 1 };
        assert!(failed.chunk_by(|one, next| one <= next).count() == passes, "{failed:?}");
        assert_eq!((count("c"), count("plain"), count("empty")), (4 * passes, 4, 0), "{failed:?}");
        assert!(count("a") > 4 * passes && count("b") >= 4, "{failed:?}");
    }
}

#[test]
fn each_read_of_an_image_may_fail() {
    let work = tempfile::tempdir().unwrap();
    let (wanted, path) = (work.path().join("wanted"), work.path().join("image"));
    let mut tree = Tree::new(Metadata::default());
    for i in 0..4u8 {
        tree.add_bytes(format!("d/{i}").as_bytes(), data(70_000 + usize::from(i), i % 2 == 0)).unwrap();
    }
    let options = options("zstd:1", 65536, true);
    build_at(&wanted, &tree, &options);
    let bytes = fs::read(&wanted).unwrap();
    let mut failures = 0;
    for nth in 1.. {
        let layer = ErrorLayer::new(memory(&bytes));
        let control = layer.control();
        let Ok(source) = Image::open(Arc::new(layer), ReadOptions::default()) else {
            panic!("the image is whole")
        };
        control.fail_reads(When::Nth(nth), EIO);
        let file = File::create(&path).unwrap();
        match image::scan(&source, &[]).and_then(|scanned| build_to(&scanned.tree, &options, &file)) {
            Ok(()) => assert!(fs::read(&path).unwrap() == bytes, "read {nth}"),
            // A read of metadata is reported by the walk as it reports damage.
            Err(BuildError::Image { path: inner, .. } | BuildError::ImageFault { path: inner, .. }) => {
                assert!(!inner.as_os_str().is_empty());
                assert!(!is_image(&path), "read {nth}");
                failures += 1;
            }
            Err(other) => panic!("read {nth}: {other}"),
        }
        if control.injected() == 0 {
            break;
        }
    }
    assert!(failures >= 4, "{failures} reads failed");
}

/// A segment can take minutes with a slow compression: nobody waits for its end.
#[test]
fn a_build_ends_while_its_only_segment_is_compressed() {
    let tree = tree_of(&vec![("a".to_string(), text(6 << 20, 1))]);
    let options = Options { threads: 1, ..options("lzma:9", 1 << 20, false) };
    let file = tempfile::tempfile().unwrap();
    let mut done = Vec::new();
    let built = build(&tree, &options, &file, &mut |progress| {
        done.push((progress.phase, progress.done_bytes));
        match progress.phase {
            Phase::Scanning => ControlFlow::Continue(()),
            Phase::Writing => ControlFlow::Break(()),
        }
    });
    assert!(matches!(built, Err(BuildError::Interrupted)));
    assert_eq!(done.last(), Some(&(Phase::Writing, 0)), "{done:?}");
}
