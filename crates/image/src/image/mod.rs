//! The API of an open image: [`Image`], and its inodes, [`Node`].
//!
//! A node holds a reference to its image, so the image stays open while nodes exist; the last reference joins the
//! read-ahead threads and closes the media. Reading is done in [`crate::core`], in the caller's thread; this module
//! opens images, measures reads, and queues read-ahead.

mod node;

pub use node::{DirEntry, Entries, Extents, MAX_LINK_BYTES, Node};

use crate::budget::{Budget, BudgetStats};
use crate::clusters::{Clusters, Formats, Prefetcher, ReadStats, least_bytes};
use crate::core::Core;
use crate::format::features::{FLAT_DEVICES_KERNEL, KernelVersion};
use crate::read::superblock::Superblock;
use crate::read::xattr::Prefixes;
use crate::read::{Bytes, FileKind};
use crate::source::{Source, UnifiedRange};
use crate::streams::Streams;
use crate::{Address, ImageError, Nid, Result};
use pagefold_backing::{ByteSource, Demand, FileBacking};
use pagefold_page::latency::Latency;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// The smallest reserve of the budget, to which only required reads have access: 64 pages.
const RESERVE_BYTES: u64 = 64 * 4096;

/// The policy of read-ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReadAhead {
    /// No read-ahead.
    Off,
    /// Uses free memory of the budget, and skips clusters for which there is no room.
    #[default]
    BestEffort,
    /// Waits for memory as a reader does: only for measuring what that costs.
    Waiting,
}

/// How an image is opened.
#[derive(Clone)]
pub struct Options {
    /// The budget for all memory that reading takes, bytes: compressed and decompressed data, decompressors, cache.
    pub memory_bytes: u64,
    /// The policy of read-ahead.
    pub read_ahead: ReadAhead,
    /// Threads that read ahead.
    pub read_ahead_threads: usize,
    /// Whether decompressed data that a reader wants in full is cached as well. Off if the readers have their own
    /// cache, as the kernel has above a mount.
    pub cache_full_reads: bool,
    /// Bytes that the caller will permanently [reserve](Budget::reserve) from the budget, at least. Opening fails
    /// if the budget is smaller than this and the needs of reading together; the error has the sum. A
    /// [mount](crate::mount::LEAST_REPLY_BYTES) needs some.
    pub caller_bytes: u64,
    /// The further devices of the image, in the order of its table. None are needed if the image's medium goes on with their
    /// contents.
    pub devices: Vec<Arc<dyn ByteSource>>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            memory_bytes: 64 << 20,
            read_ahead: ReadAhead::BestEffort,
            read_ahead_threads: 2,
            cache_full_reads: true,
            caller_bytes: 0,
            devices: Vec::new(),
        }
    }
}

/// Counters of an image and the use of its memory.
#[derive(Debug, Clone, Copy)]
pub struct ImageStats {
    /// Counters of reads.
    pub reads: ReadStats,
    /// Use of the budget.
    pub budget: BudgetStats,
    /// Bytes of the budget that the cache holds; they are evicted when requests need them.
    pub cached_bytes: u64,
    /// Bytes read from the media in total.
    pub read_bytes: u64,
    /// How long reads took.
    pub latency: Latency,
}

/// A device of an image that is shorter than the image says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShortDevice {
    /// 0: the image itself. The devices of the table are numbered from 1.
    pub device: u16,
    /// Its size.
    pub len_bytes: u64,
    /// The size in the super block or in the table of devices.
    pub expected_bytes: u64,
}

impl fmt::Display for ShortDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ShortDevice { device, len_bytes: len, expected_bytes: expected } = self;
        match device {
            0 => write!(f, "the image has {len} bytes, and its super block says {expected}: it is cut off"),
            n => write!(
                f,
                "device {n} has {len} bytes, and the table of devices says {expected}: it is cut off"
            ),
        }
    }
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
    // Dropped first: joins the read-ahead threads, which hold references to the clusters and the source.
    pub(crate) prefetcher: Option<Prefetcher>,
    pub(crate) core: Core,
    pub(crate) streams: Streams,
    reserve_bytes: u64,
}

impl Image {
    /// Opens the image stored in `source`.
    ///
    /// Reads the superblock and the inodes of the packed file and the metabox. Fails if the medium holds no EROFS
    /// image, if the image uses unknown features, if the number of devices differs from its table, or if the budget is
    /// smaller than the most that one read may need.
    pub fn open(source: Arc<dyn ByteSource>, options: Options) -> Result<Self> {
        let source = Source::new(source);
        let superblock = Superblock::read(&source)?;
        let needed = superblock.devices.len();
        let unified_ranges = unified_ranges(&superblock);
        let is_flat = needed > 0 && options.devices.is_empty() && has_all(&source, &unified_ranges)?;
        match options.devices.len() {
            0 if is_flat => {}
            given if given < needed => return Err(ImageError::MissingDevices { needed, given }),
            given if given > needed => return Err(ImageError::SurplusDevices { needed, given }),
            _ => {}
        }
        let formats = Formats {
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
        let source = Arc::new(match is_flat {
            true => source.flat(unified_ranges),
            false => source.with_devices(options.devices, unified_ranges),
        });
        let clusters = Clusters::new(budget, formats, options.cache_full_reads);
        let demand = match options.read_ahead {
            ReadAhead::Off => None,
            ReadAhead::BestEffort => Some(Demand::BestEffort),
            ReadAhead::Waiting => Some(Demand::Required),
        };
        let start = |demand| Prefetcher::start(&clusters, &source, options.read_ahead_threads, demand);
        let prefetcher =
            demand.map(start).transpose().map_err(|e| ImageError::Threads { errno: e.raw_os_error() })?;
        let streams = Streams::new(options.memory_bytes / 4);
        let core = Core::new(source, superblock, clusters)?;
        Ok(Image(Arc::new(Shared { prefetcher, core, streams, reserve_bytes })))
    }

    /// Ends the image's own read-ahead, for readers that have a better one.
    pub(crate) fn end_read_ahead(&self) {
        if let Some(prefetcher) = &self.0.prefetcher {
            prefetcher.end();
        }
    }

    /// Opens the image in a file or on a block device.
    pub fn open_file(path: &Path, options: Options) -> Result<Self> {
        let failed = |source| ImageError::Medium { path: path.to_path_buf(), source: Arc::new(source) };
        let file = pagefold_backing::open_for_reading(path).map_err(|e| failed(e.into()))?;
        Self::open(Arc::new(FileBacking::for_reading(file).map_err(failed)?), options)
    }

    /// The image's superblock.
    pub fn superblock(&self) -> &Superblock {
        &self.0.core.superblock
    }

    /// The first version of Linux that mounts the image as it is here: with its devices, or from one file that has them all.
    pub fn required_kernel(&self) -> KernelVersion {
        let needed = self.superblock().required_kernel();
        if self.0.core.source.is_flat() { needed.max(FLAT_DEVICES_KERNEL) } else { needed }
    }

    /// Returns the root directory. Fails if the root inode is not a directory.
    pub fn root(&self) -> Result<Node> {
        let root = self.node(self.superblock().root_nid)?;
        match root.kind() {
            FileKind::Directory => Ok(root),
            kind => {
                let what = format!("the root is {}, but must be a directory", kind.name());
                Err(ImageError::corrupt(root.inode().address, what))
            }
        }
    }

    /// Reads the inode with this number, as found in directory entries.
    pub fn node(&self, nid: Nid) -> Result<Node> {
        Node::open(self, nid)
    }

    /// Finds the inode at this path from the root. Symbolic links are not followed; see [`Image::resolve`].
    pub fn find(&self, path: &[u8]) -> Result<Node> {
        let mut names = path.split(|&b| b == b'/').filter(|name| !name.is_empty() && *name != b".");
        names.try_fold(self.root()?, |node, name| node.lookup(name))
    }

    /// Returns a snapshot of the counters.
    pub fn stats(&self) -> ImageStats {
        let core = &self.0.core;
        ImageStats {
            reads: core.clusters.decoding.counters.snapshot(),
            budget: core.clusters.decoding.budget.stats(),
            cached_bytes: core.clusters.cache.held_bytes(),
            read_bytes: core.source.read_bytes(),
            latency: core.clusters.latency.snapshot(),
        }
    }

    /// Stored size of the image and its further devices, bytes.
    pub fn media_bytes(&self) -> u64 {
        self.0.core.source.media_bytes()
    }

    /// Stored bytes of the image and its devices, as far as it uses them: what [limits of work](crate::work) grow with.
    pub fn stored_bytes(&self) -> u64 {
        self.0.core.stored_bytes()
    }

    /// The bytes of metadata as they are stored, decoded if they are in the metabox. They are read through the cache.
    pub fn metadata(&self) -> &dyn Bytes {
        &self.0.core
    }

    /// The stored bytes of contents, which the cache does not keep. An address in the metabox is an error.
    pub fn stored(&self) -> &dyn Bytes {
        &*self.0.core.source
    }

    /// Returns the number of bytes from `at` to the end of its device or of the metabox.
    pub fn bytes_left_at(&self, at: Address) -> Result<u64> {
        self.0.core.bytes_left_at(at)
    }

    /// Whether an address belongs to the device that it names, and not to a device mapped into its address space.
    pub fn is_own(&self, at: Address) -> bool {
        self.0.core.source.is_own(at)
    }

    /// Returns the number of the device that holds `at`, and the position in it. 0 is the image's own medium.
    pub fn own_address(&self, at: Address) -> Result<(usize, u64)> {
        self.0.core.source.own_address(at)
    }

    /// Length of the image's own medium, bytes. It may be longer than the superblock says: in one file, what follows the image
    /// begins only there.
    pub fn own_bytes(&self) -> u64 {
        self.0.core.source.len_bytes(0).unwrap_or(0)
    }

    /// The prefixes of names of attributes, of which the table of long ones was read when the image was opened.
    pub fn prefixes(&self) -> &Prefixes {
        &self.0.core.prefixes
    }

    /// Devices that are shorter than the image says, the image itself among them: they are cut off.
    pub fn short_devices(&self) -> Vec<ShortDevice> {
        let superblock = self.superblock();
        let further = superblock.devices.iter().map(|device| device.blocks);
        let block_bytes = u64::from(superblock.block_bytes());
        let one = |(device, blocks): (u16, u64)| {
            let expected_bytes = blocks.saturating_mul(block_bytes);
            let len_bytes = self.0.core.source.len_bytes(device).ok()?;
            // A builder may leave out the padding of the last block.
            let is_short = expected_bytes > len_bytes.checked_next_multiple_of(block_bytes)?;
            is_short.then_some(ShortDevice { device, len_bytes, expected_bytes })
        };
        (0..).zip(std::iter::once(superblock.blocks).chain(further)).filter_map(one).collect()
    }

    /// The image itself, if it lacks a part of its last block. Readers notice only if they need the missing bytes: a builder may
    /// have left out the padding.
    pub fn cut_block(&self) -> Option<ShortDevice> {
        let superblock = self.superblock();
        let expected_bytes = superblock.blocks.checked_mul(superblock.block_bytes().into())?;
        let len_bytes = self.0.core.source.len_bytes(0).ok()?;
        let missing = expected_bytes.checked_sub(len_bytes)?;
        let is_cut = (1..u64::from(superblock.block_bytes())).contains(&missing);
        is_cut.then_some(ShortDevice { device: 0, len_bytes, expected_bytes })
    }

    /// Bytes of the budget that one read needs at most. A caller that sets memory aside permanently must leave this
    /// much.
    pub fn reserve_bytes(&self) -> u64 {
        self.0.reserve_bytes
    }

    /// The budget, to which a caller can charge its own memory too.
    ///
    /// The holder of a grant must not read from the image: the read could wait for memory that the holder has, a
    /// deadlock. Memory that is [reserved](Budget::reserve) only makes the budget smaller, and may be held while
    /// reading.
    pub fn budget(&self) -> &Budget {
        &self.0.core.clusters.decoding.budget
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image").field("superblock", self.superblock()).finish_non_exhaustive()
    }
}

/// Size of the reserve for required reads: the most that one of them needs, and 64 pages at least.
fn reserve_bytes(superblock: &Superblock, formats: &Formats) -> u64 {
    superblock
        .algorithms
        .iter()
        .map(|algorithm| least_bytes(formats.of(algorithm)))
        .fold(RESERVE_BYTES, u64::max)
}

/// Whether the image's own medium has the contents of all devices, each at its place in the unified address space.
fn has_all(source: &Source, ranges: &[UnifiedRange]) -> Result<bool> {
    let len_bytes = source.len_bytes(0)?;
    Ok(ranges.iter().all(|range| {
        range.start > 0 && range.start.checked_add(range.len_bytes).is_some_and(|end| end <= len_bytes)
    }))
}

/// Computes the ranges of the devices in the unified address space.
fn unified_ranges(superblock: &Superblock) -> Vec<UnifiedRange> {
    let range = |device: &crate::read::superblock::Device| {
        let bytes = |blocks: u64| blocks.saturating_mul(u64::from(superblock.block_bytes()));
        match device.unified_start {
            Some(start) => UnifiedRange { start: bytes(start), len_bytes: bytes(device.blocks) },
            None => UnifiedRange { start: 0, len_bytes: 0 },
        }
    };
    superblock.devices.iter().map(range).collect()
}
