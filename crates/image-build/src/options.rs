//! The caller's choices.

use super::chunk_files::{CHUNK_BYTES_MAX, ChunkForm};
use super::compression::{Compression, Method};
use super::form::Form;
use super::rules::Rules;
use super::sort::Sort;
use super::target::Target;
use crate::{BuildError, Result};
use pagefold_image::format::config::{Algorithm, LZ4_WINDOW_BYTES_DEFAULT};
use pagefold_image::format::features::{self, incompat};

/// Bytes of a block. All kernels mount this size.
pub const BLOCK_BYTES: u32 = 4096;
/// Largest cluster, bytes.
pub const CLUSTER_BYTES_MAX: u32 = 1 << 20;
/// Default of the largest cluster with Zstandard, bytes: a reference reaches all of what precedes it in the cluster.
const ZSTD_CLUSTER_BYTES: u32 = 128 << 10;
/// That with other methods; 64 KiB are also as far as LZ4 refers.
const CLUSTER_BYTES: u32 = 64 << 10;
/// Smallest window of LZ4, bytes; smaller ones compress badly and save nothing.
const LZ4_WINDOW_BYTES_MIN: u32 = 4095;

/// Length of the longest file that is packed with LZMA, in clusters.
const LZMA_PACKED_CLUSTERS: u32 = 4;

/// Images with fewer inodes have no metabox.
const METADATA_INODES_MIN: usize = 1024;

/// The contents that an image stores once though the source has them several times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dedupe {
    /// None.
    Nothing,
    /// Those of equal files.
    Files,
    /// Also equal parts of compressed files, where that saves some 6 KiB.
    Chunks,
}

/// The caller's choices. The image depends on these, on the tree, and on nothing else: not on
/// `threads`, `memory_bytes` or `digests`.
#[derive(Debug, Clone)]
pub struct Options {
    /// The oldest kernel that has to mount the image.
    pub target: Target,
    /// Compression of files that no rule names; `None` stores them plain.
    pub compression: Option<Compression>,
    /// Compression by path.
    pub rules: Rules,
    /// Whether a sample decides on the compression of a file: `compression`, its method at a
    /// [low level](Compression::light) where a higher one finds nothing more, or none if the sample does not become 5 %
    /// smaller. Files that a rule names are not sampled, nor are those that are not longer than a cluster.
    pub choose_by_sample: bool,
    /// Largest cluster, bytes: a multiple of [`BLOCK_BYTES`], at most [`CLUSTER_BYTES_MAX`].
    pub cluster_bytes: u32,
    /// Greatest distance of LZ4's matches, bytes, up to 65535. A decoder needs as much memory.
    pub lz4_window_bytes: u32,
    /// Whether ends of files that are shorter than a block are stored with the metadata.
    pub tail_packing: bool,
    /// Whether files that are not longer than a cluster, and such ends of others, are compressed together; with LZMA, unless
    /// samples decide, files of up to four clusters, about what a cluster decodes to. Only for targets that have a packed
    /// file, from 6.1 on, and for the files that get `compression`.
    pub fragments: bool,
    /// The contents that the image stores once. Compressed files share contents only for targets that know clusters of
    /// several files, from 6.1 on.
    pub dedupe: Dedupe,
    /// Whether inodes are compressed, if there are many, together with what stands after them. Only for targets that have a
    /// metabox, from 6.17 on. These kernels call it experimental when they mount such an image.
    pub compress_metadata: bool,
    /// Whether directories are compressed, if there are many inodes: they become fragments, and so lie in the packed file,
    /// after all other fragments. Has no effect without [`fragments`](Self::fragments), nor on images that may have 16 TiB.
    /// The default where the target has fragments.
    pub compress_directories: bool,
    /// Whether the image has metadata alone, and its source, an archive or images, are its further devices. Kernels read that from
    /// 5.16 on; from 6.4 on with the blocks of archives, and with the devices behind the image in one file. Contents cannot be
    /// compressed then.
    pub is_index: bool,
    /// The order of contents.
    pub sort: Sort,
    /// Threads that compress; 0: one for each CPU.
    pub threads: usize,
    /// Bytes of memory that the build may take, about; `None`: no limit. The [`Spill`](super::Spill) of the tree bounds
    /// what it takes for each file ([`Options::spill`]); fewer threads compress if there is no room for all.
    pub memory_bytes: Option<u64>,
    /// Time of creation, seconds since 1970. `None`: the newest time in the tree. If it is before all times of files,
    /// or 136 years after, no inode is compact.
    pub build_time: Option<i64>,
    /// The volume's name, up to 15 bytes.
    pub volume_name: Vec<u8>,
    /// The form in which all of that is stored.
    pub form: Form,
    /// Whether contents are hashed while they are read, so that the image can be verified.
    pub digests: bool,
    /// First block of contents, for tests of images whose addresses need 48 bits. The blocks before it are a hole.
    #[doc(hidden)]
    pub first_data_block: u64,
    /// Images with fewer inodes compress neither them nor directories: that would save some blocks, and cost each reader
    /// some time. Tests have small images that do.
    #[doc(hidden)]
    pub metadata_inodes_min: usize,
}

impl Options {
    /// The defaults for a target.
    pub fn for_target(target: Target) -> Self {
        let method = match target.default_algorithm() {
            Algorithm::Zstd => Method::Zstd,
            _ => Method::Lz4Hc,
        };
        Options {
            target,
            compression: None,
            rules: Rules::default(),
            choose_by_sample: false,
            cluster_bytes: if target.has_big_clusters() { CLUSTER_BYTES } else { BLOCK_BYTES },
            lz4_window_bytes: LZ4_WINDOW_BYTES_DEFAULT,
            tail_packing: target.has(incompat::ZTAILPACKING),
            fragments: target.has(incompat::FRAGMENTS),
            dedupe: Dedupe::Chunks,
            compress_metadata: false,
            compress_directories: target.has(incompat::FRAGMENTS),
            is_index: false,
            sort: Sort::default(),
            threads: 0,
            memory_bytes: None,
            build_time: None,
            volume_name: Vec::new(),
            form: Form::default(),
            digests: false,
            first_data_block: 0,
            metadata_inodes_min: METADATA_INODES_MIN,
        }
        .with_compression(Some(Compression::of(method)))
    }

    /// Replaces the compression, and with it the largest cluster: Zstandard has 128 KiB by default, others 64. Images that
    /// have clusters of a block keep these.
    pub fn with_compression(self, compression: Option<Compression>) -> Self {
        let cluster_bytes = match compression {
            _ if self.cluster_bytes == BLOCK_BYTES => BLOCK_BYTES,
            Some(Compression { method: Method::Zstd, .. }) => ZSTD_CLUSTER_BYTES,
            _ => CLUSTER_BYTES,
        };
        Options { compression, cluster_bytes, ..self }
    }

    /// Threads that compress, if there is memory for them.
    pub(crate) fn thread_count(&self) -> usize {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            threads => threads,
        }
    }

    /// The compression of files in which a long search for matches finds nothing, if samples decide.
    pub(crate) fn light(&self) -> Option<Compression> {
        self.compression.filter(|_| self.choose_by_sample).map(Compression::light)
    }

    /// Longest file, bytes, that is a fragment as a whole, of those that get `compression`. Samples are for files that are
    /// longer.
    pub(crate) fn packed_bytes_max(&self) -> u32 {
        match self.compression {
            // A shorter file would not fill a cluster, and would begin without anything to refer to.
            Some(Compression { method: Method::Lzma, .. }) if !self.choose_by_sample => {
                LZMA_PACKED_CLUSTERS * self.cluster_bytes
            }
            _ => self.cluster_bytes,
        }
    }

    /// All compressions that files may get, without repetition.
    pub fn compressions(&self) -> Vec<Compression> {
        let light = self.light();
        let mut all: Vec<_> =
            self.compression.into_iter().chain(light).chain(self.rules.compressions()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Checks the options against each other and the target.
    pub(crate) fn check(&self) -> Result<()> {
        let refuse = |what: String| Err(BuildError::Options { what });
        let (target, cluster) = (self.target, self.cluster_bytes);
        if target.0 < features::FIRST_KERNEL {
            return refuse(format!("Linux {target} has no EROFS; it came with {}", features::FIRST_KERNEL));
        }
        if cluster == 0 || !cluster.is_multiple_of(BLOCK_BYTES) || cluster > CLUSTER_BYTES_MAX {
            return refuse(format!("clusters of {cluster} bytes: choose a multiple of 4K, up to 1M"));
        }
        if cluster > BLOCK_BYTES && !target.has_big_clusters() {
            return refuse(format!("Linux {target} reads clusters of 4K only; choose 4K, or a later kernel"));
        }
        if self.tail_packing && !target.has(incompat::ZTAILPACKING) {
            return refuse(format!("Linux {target} has no tail packing; it came with 5.17"));
        }
        if self.fragments && !target.has(incompat::FRAGMENTS) {
            return refuse(format!("Linux {target} has no fragments; they came with 6.1"));
        }
        if self.compress_metadata && !target.has_metabox() {
            let first = features::first_kernel(incompat::METABOX);
            return refuse(format!("Linux {target} has no compressed metadata; it came with {first}"));
        }
        if let Some(ChunkForm { bytes, .. }) = self.form.chunks {
            if !bytes.is_power_of_two() || !(BLOCK_BYTES..=CHUNK_BYTES_MAX).contains(&bytes) {
                return refuse(format!(
                    "chunks of {bytes} bytes: choose a power of two, 4096 to {CHUNK_BYTES_MAX}"
                ));
            }
            if !target.has(incompat::CHUNKED_FILE) {
                return refuse(format!("Linux {target} has no files in chunks; they came with 5.15"));
            }
            if !self.compressions().is_empty() {
                return refuse("files in chunks are not compressed; choose one of the two".into());
            }
        }
        if self.is_index {
            if !target.has(incompat::DEVICE_TABLE) || !target.has(incompat::CHUNKED_FILE) {
                return refuse(format!(
                    "Linux {target} has no further devices of images; they came with 5.16"
                ));
            }
            if !self.compressions().is_empty() || self.form.chunks.is_some() || self.fragments {
                return refuse(
                    "contents that stay on devices are neither compressed nor stored in chunks".into(),
                );
            }
        }
        let is_invalid = |bytes: &u32| *bytes == 0 || !bytes.is_multiple_of(BLOCK_BYTES) || *bytes > cluster;
        if let Some(bytes) = self.rules.clusters().find(is_invalid) {
            return refuse(format!(
                "a rule has clusters of {bytes} bytes: choose a multiple of 4K, up to {cluster}"
            ));
        }
        for compression in self.compressions() {
            let algorithm = compression.method.algorithm();
            if !target.decodes(algorithm) {
                let first = features::algorithm_kernel(algorithm);
                return refuse(format!("Linux {target} does not read {compression}; it came with {first}"));
            }
        }
        if !(LZ4_WINDOW_BYTES_MIN..=LZ4_WINDOW_BYTES_DEFAULT).contains(&self.lz4_window_bytes) {
            return refuse(format!("a window of {} bytes: LZ4 has 4095 to 65535", self.lz4_window_bytes));
        }
        if self.volume_name.len() > 15 || self.volume_name.contains(&0) {
            return refuse("a volume's name has up to 15 bytes, and no NUL".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_follow_the_compression() {
        let clusters = |target, text: &str| {
            Options::for_target(target).with_compression(Compression::parse(text).unwrap()).cluster_bytes
        };
        let new = Target::new(6, 12);
        assert_eq!(Options::for_target(new).cluster_bytes, 128 << 10);
        assert_eq!([clusters(new, "lz4hc"), clusters(new, "zstd:3")], [64 << 10, 128 << 10]);
        assert_eq!(clusters(Target::new(5, 10), "lz4hc"), BLOCK_BYTES);
    }

    #[test]
    fn an_option_that_the_target_cannot_read_is_refused() {
        let old = Options::for_target(Target::new(5, 10));
        assert!(old.check().is_ok());
        assert!(Options { cluster_bytes: 8192, ..old.clone() }.check().is_err());
        assert!(Options { tail_packing: true, ..old.clone() }.check().is_err());
        assert!(Options { compress_metadata: true, ..old.clone() }.check().is_err());
        let zstd = Some(Compression::of(Method::Zstd));
        assert!(Options { compression: zstd, ..old.clone() }.check().is_err());
        assert!(Options { lz4_window_bytes: 65536, ..old.clone() }.check().is_err());
        assert!(Options { volume_name: vec![b'x'; 16], ..old }.check().is_err());
        assert!(Options::for_target(Target::new(5, 4)).check().is_ok());
        assert!(Options::for_target(Target::new(5, 3)).check().is_err());
    }
}
