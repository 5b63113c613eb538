//! An open image, as programs see it.

use crate::clusters::{Ahead, BUCKETS, Clusters, Formats, ReadStats, least_bytes};
use crate::core::Core;
use crate::node::Node;
use crate::read::superblock::Superblock;
use crate::read::{Algorithm, FileKind};
use crate::source::{Source, Window};
use crate::streams::Streams;
use crate::{ImageError, Nid};
use pagefold_backing::{Backing, Budget, BufferStats, Demand, FileBacking};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// The reserve that required reads have to themselves, at least: 64 pages.
const RESERVE_BYTES: u64 = 64 * 4096;

/// What read-ahead does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReadAhead {
    /// Nothing.
    Off,
    /// Takes what memory is free, and gives up what has no room.
    #[default]
    BestEffort,
    /// Waits for memory like a reader: only for measuring what that costs.
    Waiting,
}

/// How an image is opened.
#[derive(Clone)]
pub struct Options {
    /// Memory for everything that reading takes, bytes: compressed and decompressed data, decompressors, cache.
    pub memory_bytes: u64,
    /// What read-ahead does.
    pub read_ahead: ReadAhead,
    /// Threads that read ahead.
    pub read_ahead_threads: usize,
    /// Whether the cache keeps decompressed data that has been given to a reader. Off for those whose readers have a cache of
    /// their own, as the kernel has above a mount.
    pub keep_asked: bool,
    /// What the caller will [set aside](Budget::set_aside) of the budget for good, at least: a budget that is too small for
    /// reading and this is refused at once, with the sum. A [mount](crate::mount::LEAST_REPLY_BYTES) needs some.
    pub caller_bytes: u64,
    /// The further devices of the image, in the order of its table.
    pub devices: Vec<Arc<dyn Backing>>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            memory_bytes: 64 << 20,
            read_ahead: ReadAhead::BestEffort,
            read_ahead_threads: 2,
            keep_asked: true,
            caller_bytes: 0,
            devices: Vec::new(),
        }
    }
}

/// Counters of an image, and what its memory is used for.
#[derive(Debug, Clone, Copy)]
pub struct ImageStats {
    /// What reading has cost.
    pub reads: ReadStats,
    /// The budget.
    pub budget: BufferStats,
    /// Bytes of the budget that the cache holds and gives up when they are needed.
    pub cached_bytes: u64,
    /// Bytes read from the media, of whatever kind.
    pub read_bytes: u64,
    /// How long reads took: bucket `n` counts those of at least 2^n and less than 2^(n+1) nanoseconds.
    pub latency: [u64; BUCKETS],
}

/// An open image. Clones share it.
///
/// ```
/// use pagefold_image::{Image, Options};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let Some(path) = std::env::var_os("EXAMPLE_IMAGE") else { return Ok(()) };
/// let image = Image::open_file(std::path::Path::new(&path), Options::default())?;
/// let node = image.find(b"/etc/hostname")?;
/// let mut contents = vec![0; node.len_bytes() as usize];
/// node.read_at(0, &mut contents)?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Image(pub(crate) Arc<Shared>);

pub(crate) struct Shared {
    // Before the core, which its threads use.
    pub(crate) ahead: Option<Ahead>,
    pub(crate) core: Core,
    pub(crate) streams: Streams,
    reserve_bytes: u64,
}

impl Image {
    /// Opens the image that lies on `backing`.
    ///
    /// Reads its super block and the inodes of its own files. Refused: what is no image, what uses unknown features, an
    /// image for which more or fewer devices are given than it has, and a budget in which its largest need has no room.
    pub fn open(backing: Arc<dyn Backing>, options: Options) -> Result<Self, ImageError> {
        let source = Source::new(backing);
        let superblock = Superblock::read(&source)?;
        let needed = superblock.devices.len();
        match options.devices.len() {
            given if given < needed => return Err(ImageError::MissingDevices { needed, given }),
            given if given > needed => return Err(ImageError::SurplusDevices { needed, given }),
            _ => {}
        }
        let formats = Formats {
            lz4_window_bytes: superblock.algorithms.lz4_window_bytes.min(65_535),
            lzma_dict_bytes: superblock.algorithms.lzma_dict_bytes.unwrap_or(8 << 20),
            zstd_window_bytes: superblock.algorithms.zstd_window_log.map_or(1 << 20, |log| 1 << log),
        };
        let reserve_bytes = reserve_bytes(&superblock, &formats);
        let needed_bytes = reserve_bytes.saturating_add(options.caller_bytes);
        if options.memory_bytes < needed_bytes {
            let limit_bytes = options.memory_bytes;
            return Err(ImageError::TooLittleMemory { needed_bytes, limit_bytes });
        }
        let too_much = |e| ImageError::Budget { len_bytes: options.memory_bytes, source: Arc::new(e) };
        let limit = usize::try_from(options.memory_bytes).unwrap_or(usize::MAX);
        let budget = Budget::new(limit, reserve_bytes as usize).map_err(too_much)?;
        let windows = windows(&superblock);
        let source = Arc::new(source.with_devices(options.devices, windows));
        let clusters = Clusters::new(budget, formats, options.keep_asked);
        let demand = match options.read_ahead {
            ReadAhead::Off => None,
            ReadAhead::BestEffort => Some(Demand::BestEffort),
            ReadAhead::Waiting => Some(Demand::Required),
        };
        let start = |demand| Ahead::start(&clusters, &source, options.read_ahead_threads, demand);
        let ahead =
            demand.map(start).transpose().map_err(|e| ImageError::Threads { errno: e.raw_os_error() })?;
        let streams = Streams::new(options.memory_bytes / 4);
        let core = Core::new(source, superblock, clusters)?;
        Ok(Image(Arc::new(Shared { ahead, core, streams, reserve_bytes })))
    }

    /// Opens the image in a file or on a block device.
    pub fn open_file(path: &Path, options: Options) -> Result<Self, ImageError> {
        let failed = |source| ImageError::Medium { path: path.to_path_buf(), source: Arc::new(source) };
        let file = pagefold_backing::open_for_reading(path).map_err(|e| failed(e.into()))?;
        Self::open(Arc::new(FileBacking::for_reading(file).map_err(failed)?), options)
    }

    /// What it says of itself.
    pub fn superblock(&self) -> &Superblock {
        &self.0.core.superblock
    }

    /// The root directory. A root that is anything else is corrupt.
    pub fn root(&self) -> Result<Node, ImageError> {
        let root = self.node(self.superblock().root_nid)?;
        match root.kind() {
            FileKind::Directory => Ok(root),
            kind => {
                let what = format!("the root is {}, and should be a directory", kind.name());
                Err(ImageError::corrupt(root.inode().address, what))
            }
        }
    }

    /// The inode of this number, as directories give it.
    pub fn node(&self, nid: Nid) -> Result<Node, ImageError> {
        Node::open(self, nid)
    }

    /// The inode at this path from the root. Symbolic links are not followed.
    pub fn find(&self, path: &[u8]) -> Result<Node, ImageError> {
        let mut names = path.split(|&b| b == b'/').filter(|name| !name.is_empty() && *name != b".");
        names.try_fold(self.root()?, |node, name| node.lookup(name))
    }

    /// Counters.
    pub fn stats(&self) -> ImageStats {
        let core = &self.0.core;
        ImageStats {
            reads: core.clusters.counters.snapshot(),
            budget: core.clusters.budget.stats(),
            cached_bytes: core.clusters.cache.held_bytes(),
            read_bytes: core.source.read_bytes(),
            latency: core.clusters.latency.snapshot(),
        }
    }

    /// Bytes of the image and its further devices, as they are stored.
    pub fn media_bytes(&self) -> u64 {
        self.0.core.source.media_bytes()
    }

    /// The part of the budget that one read needs at most: what a caller takes of it for good must leave so much.
    pub fn reserve_bytes(&self) -> u64 {
        self.0.reserve_bytes
    }

    /// The budget, for memory of the caller's own that is to be counted in it.
    ///
    /// Whoever holds a grant must not read from the image meanwhile, as that may wait for memory that he holds. What is
    /// [set aside](Budget::set_aside) for good is another matter: it only makes the budget smaller.
    pub fn budget(&self) -> &Budget {
        &self.0.core.clusters.budget
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image").field("superblock", self.superblock()).finish_non_exhaustive()
    }
}

/// What required reads have to themselves: what one of them needs at most, and 64 pages at least.
fn reserve_bytes(superblock: &Superblock, formats: &Formats) -> u64 {
    let algorithms = [Algorithm::Lz4, Algorithm::MicroLzma, Algorithm::Deflate, Algorithm::Zstd];
    let used = algorithms.into_iter().filter(|&algorithm| superblock.algorithms.contains(algorithm));
    used.map(|algorithm| least_bytes(formats.of(algorithm))).fold(RESERVE_BYTES, u64::max)
}

/// Where the devices lie in the unified space.
fn windows(superblock: &Superblock) -> Vec<Window> {
    let window = |device: &crate::read::superblock::Device| {
        let bytes = |blocks: u64| blocks.saturating_mul(u64::from(superblock.block_bytes()));
        match device.unified_start {
            Some(start) => Window { start: bytes(start), len_bytes: bytes(device.blocks) },
            None => Window { start: 0, len_bytes: 0 },
        }
    };
    superblock.devices.iter().map(window).collect()
}
