//! The JSON of the commands on images, except that of mounts ([`super::mount`]).
//!
//! Names, paths, targets and attributes of images are bytes. If they are not UTF-8, the text has U+FFFD for invalid
//! bytes, and the field `<field>_hex` has all bytes as hexadecimal digits.

use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The JSON of `image ls`: each entry is on one line. Files that cannot be read are missing, and the exit code is 6.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Entries {
    /// The files and directories.
    pub entries: Vec<Entry>,
}

/// A file or directory of an image.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Entry {
    /// Path in the image.
    pub path: String,
    /// All bytes of a path that is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_hex: Option<String>,
    /// `regular`, `directory`, `symlink`, `char_device`, `block_device`, `fifo` or `socket`.
    pub kind: String,
    /// Kind and permissions, octal, such as `100644`.
    pub mode: String,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Hard links.
    pub nlink: u32,
    /// Length of the contents; 0 for devices, FIFOs and sockets.
    pub size_bytes: u64,
    /// Time of the last change, seconds since 1970.
    pub mtime_s: i64,
    /// The fraction of that second.
    pub mtime_ns: u32,
    /// Number of the inode.
    pub nid: u64,
    /// Major number of a device; only devices have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_major: Option<u32>,
    /// Minor number of a device; only devices have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_minor: Option<u32>,
    /// Target of a symbolic link; only links have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// All bytes of a target that is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_hex: Option<String>,
}

/// The JSON of `image show` for a file or directory in the image. `X` is the array of its extents.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FileReport<X = Vec<ExtentReport>> {
    /// The fields that `image ls` has too.
    #[serde(flatten)]
    pub entry: Entry,
    /// `compact` (32 bytes) or `extended` (64 bytes).
    pub inode_form: String,
    /// Place of the inode.
    pub at: Place,
    /// How the contents are stored: `plain`, `inline`, `compressed_full`, `compressed_compact` or `chunks`; only inodes
    /// with contents have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layout: Option<String>,
    /// Extended attributes.
    pub xattrs: Vec<Xattr>,
    /// The parts of the contents.
    pub extents: X,
}

/// An extended attribute.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Xattr {
    /// Name, with its prefix.
    pub name: String,
    /// All bytes of a name that is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name_hex: Option<String>,
    /// Value.
    pub value: String,
    /// All bytes of a value that is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_hex: Option<String>,
}

/// A place in the image: in a device, or in the metabox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Place {
    /// Number of the device; 0 is the image. Absent in the metabox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<u16>,
    /// `true` in the metabox, and absent elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metabox: Option<bool>,
    /// Offset there.
    pub offset_bytes: u64,
}

/// A part of a file's contents.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ExtentReport {
    /// Offset in the file, bytes.
    pub start: u64,
    /// Length in the file.
    pub len_bytes: u64,
    /// `hole`, `plain`, `interlaced`, `compressed` or `fragment`.
    pub place: String,
    /// Place in the image; absent for holes and fragments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Place>,
    /// Stored length; only compressed and interlaced extents have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stored_bytes: Option<u32>,
    /// Compression; only compressed extents have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub algorithm: Option<String>,
    /// Whether the extent is a prefix of the cluster's contents; only compressed extents have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix_only: Option<bool>,
    /// Offset in the packed file; only fragments have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packed_offset: Option<u64>,
}

/// The JSON of `image show` for an image.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ImageReport {
    /// Label.
    pub label: String,
    /// All bytes of a label that is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label_hex: Option<String>,
    /// UUID.
    pub uuid: String,
    /// When the image was built, seconds since 1970; null if it does not contain the time.
    pub built_unix_s: Option<i64>,
    /// Size of a block.
    pub block_bytes: u32,
    /// Blocks of the image.
    pub blocks: u64,
    /// Inodes.
    pub inodes: u64,
    /// Length of the image, to the end of its file, and of its devices.
    pub media_bytes: u64,
    /// The byte of the file at which the image begins (`--offset`).
    pub offset_bytes: u64,
    /// Further devices.
    pub devices: usize,
    /// Features of the format.
    pub features: FeaturesReport,
    /// The oldest kernel that mounts the image.
    pub kernel: String,
    /// Options of the kernel's configuration that the image needs.
    pub kernel_options: Vec<KernelOption>,
    /// The compressions.
    pub algorithms: Vec<AlgorithmReport>,
    /// Statistics of the files.
    pub tree: TreeReport,
    /// The uses of the bytes of the image; null if `--memory` is too small to find out.
    pub usage: Option<UsageReport>,
    /// Errors that were found.
    pub errors: u64,
}

/// Features of an image.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FeaturesReport {
    /// Those without which a reader must refuse the image.
    pub required: Vec<String>,
    /// Those that a reader may ignore.
    pub ignorable: Vec<String>,
    /// Bits of ignorable features that pagefold does not know.
    pub unknown_bits: u32,
}

/// An option of the kernel's configuration.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KernelOption {
    /// Its name.
    pub name: String,
    /// Without the option the kernel refuses the image (`mount`), ignores attributes (`attributes`) or needs a loop
    /// device (`file`).
    pub need: String,
}

/// A compression of an image.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AlgorithmReport {
    /// `lz4`, `lzma`, `deflate` or `zstd`.
    pub name: String,
    /// Window; null for LZMA, and if the image does not contain it.
    pub window_bytes: Option<u64>,
    /// Dictionary of LZMA; null for others.
    pub dictionary_bytes: Option<u64>,
    /// Largest cluster of LZ4; null for others.
    pub max_cluster_bytes: Option<u64>,
}

/// Statistics of the files of an image. Sums saturate, because damaged files can have any length.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TreeReport {
    /// Names in directories.
    pub names: u64,
    /// Inodes by kind, and the length of their contents.
    pub kinds: BTreeMap<String, AmountReport>,
    /// Inodes by the layout of their contents.
    pub layouts: BTreeMap<String, AmountReport>,
    /// Extents by their place.
    pub extents: BTreeMap<String, AmountReport>,
    /// Inodes with extended attributes.
    pub with_xattrs: u64,
    /// Inodes with `security.` attributes.
    pub with_security: u64,
    /// Inodes with access control lists.
    pub with_access_lists: u64,
    /// Length of all contents.
    pub content_bytes: u64,
    /// Contents that are stored uncompressed.
    pub plain_bytes: u64,
    /// Compressed clusters, each counted once, and their stored length.
    pub clusters: AmountReport,
    /// Contents of further extents in these clusters.
    pub shared: AmountReport,
    /// `content_bytes` divided by the bytes stored for them; null if none are.
    pub ratio: Option<f64>,
}

/// How many, and how many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AmountReport {
    /// How many.
    pub count: u64,
    /// Bytes of these.
    pub bytes: u64,
}

/// The uses of the bytes of an image.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UsageReport {
    /// Bytes by use: clusters of `lz4`, `lzma`, `deflate` and `zstd`, `plain` and `inline` contents, `fragments`,
    /// `directories`, `inodes`, `indexes`, `xattrs`, `metabox`, `superblock`, and `unused`.
    pub parts: BTreeMap<String, u64>,
    /// The sum of these.
    pub total_bytes: u64,
    /// Contents in fragments.
    pub fragment_bytes: u64,
    /// Contents that share stored bytes with others.
    pub shared_bytes: u64,
    /// Stored bytes that sharing saves.
    pub saved_bytes: u64,
    /// The files that take most.
    pub largest: Vec<FileUsageReport>,
    /// The files of 64 KiB and more that compress worst, by `fraction`.
    pub worst: Vec<FileUsageReport>,
}

/// The stored bytes of a file.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FileUsageReport {
    /// Path in the image.
    pub path: String,
    /// All bytes of a path that is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_hex: Option<String>,
    /// Length of the contents.
    pub len_bytes: u64,
    /// Bytes stored for them.
    pub stored_bytes: u64,
    /// `stored_bytes` divided by `len_bytes`; null of an empty file.
    pub fraction: Option<f64>,
}

/// The JSON of `image build`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BuildReport {
    /// The kernel that the image was built for.
    pub kernel: String,
    /// The release of the running kernel; null with `--kernel`.
    pub kernel_release: Option<String>,
    /// Why the compression was chosen; null if the command line names it or a kernel.
    pub compression_reason: Option<String>,
    /// Threads that compressed.
    pub threads: usize,
    /// Threads that were wanted; there are fewer if memory is short.
    pub threads_wanted: usize,
    /// Inodes.
    pub inodes: u64,
    /// Of these, directories.
    pub directories: u64,
    /// Length of all contents.
    pub content_bytes: u64,
    /// Length of the image.
    pub image_bytes: u64,
    /// Of these, metadata.
    pub metadata_bytes: u64,
    /// `content_bytes` divided by `image_bytes`; 0 without contents.
    pub ratio: f64,
    /// Contents by compression, those in fragments included.
    pub stored: Vec<CompressionReport>,
    /// Files with an end in the packed file.
    pub fragments: StoredReport,
    /// Files with the contents of another; their `stored_bytes` are not shared.
    pub duplicates: StoredReport,
    /// Parts of files that other files have too.
    pub shared_parts: ContentsReport,
    /// Paths of the list that says which files come first; null without a list.
    pub listed: Option<ListedReport>,
    /// The files that took most time.
    pub slowest: Vec<SlowFile>,
    /// Files that `--ignore-unreadable` left out.
    pub unreadable_count: u64,
    /// The first 1000 of these.
    pub unreadable: Vec<String>,
    /// The same with reasons.
    pub unreadable_reasons: Vec<UnreadableFile>,
    /// Files that `--ignore-unreadable=zeroes` kept, with zeroes in place of contents that could not be read.
    pub zero_filled_count: u64,
    /// The first 1000 of these.
    pub zero_filled: Vec<UnreadableFile>,
    /// Extended attributes that could not be read, and were left out.
    pub unreadable_xattrs_count: u64,
    /// The first 1000 of these.
    pub unreadable_xattrs: Vec<UnreadableXattr>,
    /// Extended attributes that images cannot contain.
    pub dropped_xattrs: u64,
    /// Labels of the host that were left out, such as `security.selinux`; only of directories.
    pub host_labels: u64,
    /// Names of whiteouts of overlayfs in the source, devices 0:0.
    pub overlay_whiteouts: u64,
    /// Attributes of overlayfs in the source, without those that are escaped.
    pub overlay_xattrs: u64,
}

/// The contents with one compression.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CompressionReport {
    /// Such as `zstd:12`, or `plain`.
    pub compression: String,
    /// Files and bytes.
    #[serde(flatten)]
    pub stored: StoredReport,
}

/// Files, their contents, and what these take in the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StoredReport {
    /// Files.
    pub files: u64,
    /// Bytes of their contents.
    pub content_bytes: u64,
    /// Bytes stored for these.
    pub stored_bytes: u64,
}

/// Files and their contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ContentsReport {
    /// Files.
    pub files: u64,
    /// Bytes of contents.
    pub content_bytes: u64,
}

/// Paths of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListedReport {
    /// Paths that are in the tree.
    pub found: u64,
    /// Paths that are not.
    pub missing: u64,
}

/// A file that took much time.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SlowFile {
    /// Path in the image.
    pub path: String,
    /// All bytes of a path that is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_hex: Option<String>,
    /// The time.
    pub seconds: f64,
}

/// An extended attribute that could not be read.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UnreadableXattr {
    /// The path of its file.
    pub path: String,
    /// All bytes of a path that is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_hex: Option<String>,
    /// Its name; empty for all attributes of a file whose names could not be read.
    pub name: String,
    /// All bytes of a name that is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name_hex: Option<String>,
    /// The error.
    pub reason: String,
}

/// A file that could not be read.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UnreadableFile {
    /// Its path.
    pub path: String,
    /// All bytes of a path that is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_hex: Option<String>,
    /// The error.
    pub reason: String,
}

/// Defects of an image. `F` is the array of findings.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FindingsReport<F = Vec<FindingReport>> {
    /// Number of errors.
    pub errors: u64,
    /// Number of warnings.
    pub warnings: u64,
    /// The first 10 000 of them.
    pub findings: F,
}

/// A defect of an image.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FindingReport {
    /// `error` or `warning`.
    pub severity: String,
    /// Path in the image; empty if the defect belongs to no file.
    pub path: String,
    /// All bytes of a path that is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_hex: Option<String>,
    /// The defect in words.
    pub what: String,
    /// The rule that is broken (`image check --help`), or null.
    pub rule: Option<String>,
    /// The place in the image, or null.
    pub at: Option<Place>,
}

/// The JSON of `image check`. `F` is the array of findings.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CheckReport<F = Vec<FindingReport>> {
    /// Inodes that were checked.
    pub inodes: u64,
    /// Names in directories.
    pub names: u64,
    /// Bytes of contents that were decoded.
    pub decoded_bytes: u64,
    /// Whether everything was checked: no limit was reached.
    pub complete: bool,
    /// The defects.
    #[serde(flatten)]
    pub findings: FindingsReport<F>,
}

/// The JSON of `image extract`. `F` is the array of findings.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ExtractReport<F = Vec<FindingReport>> {
    /// Files that were created.
    pub files: u64,
    /// Further hard links to these.
    pub links: u64,
    /// Names that are copies, because the hard link was refused.
    pub copied_links: u64,
    /// Bytes of contents.
    pub written_bytes: u64,
    /// Device nodes that were left out without `--privileged`.
    pub skipped_devices: u64,
    /// Files whose set-user-ID or set-group-ID bit was left out.
    pub skipped_set_id: u64,
    /// Attributes `security.*` and `trusted.*` that were left out without `--privileged`.
    pub skipped_xattrs: u64,
    /// Attributes that the file system does not support.
    pub unsupported_xattrs: u64,
    /// Whether a signal ended the command early.
    pub interrupted: bool,
    /// The defects.
    #[serde(flatten)]
    pub findings: FindingsReport<F>,
}

/// The JSON of `image copy`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CopyReport {
    /// Length of the image.
    pub image_bytes: u64,
    /// Its SHA-256, as `sha256:` and digits.
    pub sha256: String,
    /// The digests that the contents agree with: `manifest` (the digest in a registry), `merkle_tree` (`--digest`), both, or nothing.
    pub verified_by: Vec<String>,
}

/// The JSON of `image build --layer-cache`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LayerCacheReport {
    /// The layers of all images, each once, in the order of their digests.
    pub layers: Vec<CachedLayer>,
}

/// A layer in a layer cache.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CachedLayer {
    /// Its diffID, as `sha256:` and digits.
    pub diff_id: String,
    /// Its file.
    #[serde(with = "crate::path")]
    #[cfg_attr(feature = "schema", schemars(with = "crate::path::PathForm"))]
    pub path: PathBuf,
    /// Length of the file.
    pub image_bytes: u64,
    /// Whether this command built it; otherwise the cache had it already.
    pub built: bool,
}

/// The JSON of `image push`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PushReport {
    /// The name of the image by the digest of its manifest.
    pub name: String,
    /// The digest of the manifest, as `sha256:` and digits.
    pub manifest_digest: String,
    /// Blobs that were sent.
    pub sent_blobs: u64,
    /// Their length.
    pub sent_bytes: u64,
    /// Blobs that the registry had already.
    pub present_blobs: u64,
}

/// The JSON of `image digest`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DigestReport {
    /// The fs-verity digest, as `sha256:` and digits.
    pub digest: String,
    /// Length of the image.
    pub image_bytes: u64,
    /// Length of the Merkle tree; null if none was written.
    pub merkle_tree_bytes: Option<u64>,
    /// The salt, hexadecimal.
    pub salt: String,
}
