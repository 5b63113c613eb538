//! The arguments of `image build`, and the options of the image that they say.

use super::build_xattrs::XattrArgs;
use super::further::{Further, Owners};
use super::open::{OffsetArgs, RemoteArgs, ThreadsArgs, VerityArgs, path_failure};
use crate::cli::values::{self, one_of};
use clap::{Args, ValueHint};
use pagefold_control::error::{CliError, Result};
use pagefold_control::media::Location;
use pagefold_image_build::source::Whiteouts;
use pagefold_image_build::source::directory::{HardLinks, Unreadables};
use pagefold_image_build::{
    CLUSTER_BYTES_MAX, Compression, Dedupe, LIST_BYTES_MAX, Options, Pattern, Preset, RunningKernel, Sort,
    SortList, Target,
};
use pagefold_page::size::Human;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The value of `--compression` that leaves the choice to a sample of each file.
const AUTO: &str = "auto";
/// Shortest window of LZ4 in an image, bytes.
const LZ4_WINDOW_BYTES_MIN: u32 = 4 << 10;

/// The arguments of `image build`.
#[derive(Debug, Args)]
pub struct BuildArgs {
    /// Directories, archives or images to read, and last OUT, the file to write. The image gets their files. An archive is
    /// plain, or compressed by gzip, zstd or xz; - for one from standard input. Several sources are layers of a container,
    /// the lowest first: archives, images, and images in registries (oci://registry/name:tag) with all their layers.
    /// They are merged. Compressed archives, those from standard input, and layers in registries need space
    /// beside OUT, decompressed. OUT gets its name when the image is complete; an existing file is replaced then
    #[arg(value_name = "SOURCE", required = true, value_hint = ValueHint::AnyPath)]
    pub paths: Vec<PathBuf>,
    /// Fill a layer cache of containerd from SOURCE, and write no OUT. It gets images of the layers. SOURCE are images in
    /// registries (oci://registry/name:tag). Each layer that is not there yet becomes DIR/sha256/XX/HEX.erofs, named by
    /// its diffID, with whiteouts for overlay mounts; layers that are there are not fetched. Several layers are built at
    /// a time
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub layer_cache: Option<PathBuf>,
    /// A further device of SOURCE, if that is an image on several devices. Can be repeated, in the order of the image's
    /// device table
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub device: Vec<Location>,
    #[command(flatten)]
    pub offset: OffsetArgs,
    #[command(flatten)]
    pub verity: VerityArgs,
    #[command(flatten)]
    pub remote: RemoteArgs,
    /// Oldest Linux that has to mount the image, such as 5.15 or 6.12 [default: the running one, with its
    /// configuration]
    #[arg(long, value_name = "VERSION")]
    pub kernel: Option<String>,
    /// Purpose of the image, which chooses compression and clusters. fast: lz4 in clusters of 16K; balanced: the
    /// defaults below; small: lzma:9 in clusters of 1M where the kernel has it. Other options replace what it chooses
    #[arg(long, value_name = "NAME", default_value = "balanced", hide_possible_values = true)]
    #[arg(value_parser = one_of([("fast", "", Preset::Fast), ("balanced", "", Preset::Balanced), ("small", "", Preset::Small)]))]
    pub preset: Preset,
    /// Compression: lz4, lz4hc[:1-12], zstd[:1-22], deflate[:1-12], lzma[:0-9]. Or none; or auto: the default or that
    /// of --preset, but none for files whose sample does not compress, and a low level for those in which a high one
    /// finds nothing more [default: zstd:12; lz4hc:9 for versions before 6.12, and if the running kernel has no zstd
    /// for EROFS]
    #[arg(short = 'z', long, value_name = "NAME[:LEVEL]")]
    pub compression: Option<String>,
    /// Compression of the files that match a pattern, as in '*.so=lz4hc:12'. Patterns match names or paths
    /// (usr/share/**=zstd:19). The first rule that matches a file decides. Can be repeated
    #[arg(long = "rule", value_name = "PATTERN=NAME[:LEVEL]")]
    pub rules: Vec<String>,
    /// Largest compressed cluster: a multiple of 4K, up to 1M. Larger ones make the image smaller and small reads slower
    /// [default: 128K with zstd, 64K with others; for kernels before 5.13 4K]
    #[arg(long, short = 'C', value_name = "SIZE")]
    pub cluster: Option<String>,
    /// How far back LZ4 may refer, 4K to 64K. Decoding needs as much memory
    #[arg(long, value_name = "SIZE", default_value = "64K")]
    pub lz4_window: String,
    /// Store the ends of files in whole blocks, not with the metadata
    #[arg(long)]
    pub no_tail_packing: bool,
    /// Store small files, and the ends of others, each on its own. They are not packed together then, and directories
    /// are not compressed
    #[arg(long)]
    pub no_fragments: bool,
    /// Compress inodes too, if there are 1024 or more. --preset small does that where the kernel reads them (Linux from
    /// 6.17 on, which calls it experimental)
    #[arg(long, overrides_with = "no_compressed_metadata")]
    pub compressed_metadata: bool,
    /// Store inodes uncompressed
    #[arg(long)]
    pub no_compressed_metadata: bool,
    /// Store directories uncompressed. Otherwise they are compressed in the packed file, if there are 1024 inodes or more and
    /// the kernel reads them (Linux from 6.1 on)
    #[arg(long)]
    pub no_compressed_directories: bool,
    /// Equal contents that are stored once: parts of files, files, or none. chunks: equal files and equal parts of
    /// compressed files, which are found by reading all files twice; files: equal files; none: nothing. Compressed
    /// files share contents from Linux 6.1 on [default: chunks; with --preset fast files]
    #[arg(long, value_name = "KIND", hide_possible_values = true)]
    #[arg(value_parser = one_of([("chunks", "", Dedupe::Chunks), ("files", "", Dedupe::Files), ("none", "", Dedupe::Nothing)]))]
    pub dedupe: Option<Dedupe>,
    /// Order of the contents: similarity, path, or a file with a list of paths. It holds for the small files, which are
    /// stored together, and for the others. similarity: small files with the same extension follow each other, and
    /// versions of a file. A list has the paths as a program reads them when it starts: one on each line, # begins a
    /// comment. Files in the list come first, the others follow by similarity
    #[arg(long, value_name = "ORDER", default_value = "similarity", value_hint = ValueHint::FilePath)]
    pub sort: PathBuf,
    /// Leave out what matches a pattern, with all below it. A pattern without a slash is compared with names, one with
    /// a slash with paths from SOURCE. Can be repeated
    #[arg(long, value_name = "GLOB")]
    pub exclude: Vec<String>,
    /// Form of whiteouts: files .wh.NAME, by which a container layer removes NAME. files: files of these names; overlay:
    /// device 0:0 as NAME, and for .wh..wh..opq the attribute trusted.overlay.opaque; overlay-user: the same
    /// with attributes user.overlay.*, for overlay mounts with the option userxattr, as rootless containers have them
    /// [default: files; of several layers, and of layers in registries: none, they are applied]
    #[arg(long, value_name = "KIND", hide_possible_values = true)]
    #[arg(value_parser = one_of([("files", "", Whiteouts::Files), ("overlay", "", Whiteouts::Overlay), ("overlay-user", "", Whiteouts::OverlayUser)]))]
    pub whiteouts: Option<Whiteouts>,
    /// Store each name of a hard link as a separate file, with equal contents. Also for file systems that give one inode
    /// number to several files (some union, network and FUSE file systems)
    #[arg(long)]
    pub hard_dereference: bool,
    /// Read tar archives that were written one after another. Blocks of zeroes, with which an archive ends, are passed over
    #[arg(long)]
    pub ignore_zeros: bool,
    /// keep, or ignore, which is --hard-dereference
    #[arg(long, value_name = "KIND", hide = true, conflicts_with = "hard_dereference")]
    #[arg(value_parser = one_of([("keep", "", HardLinks::Keep), ("ignore", "", HardLinks::Ignore)]))]
    pub hard_links: Option<HardLinks>,
    /// Leave directories empty that are on other file systems
    #[arg(long)]
    pub one_file_system: bool,
    /// Leave out what cannot be read, and say so, in place of failing. That is files, and the names in directories that
    /// cannot be read. With =zeroes, files whose contents cannot be read stay, with zeroes in place of the bytes that
    /// cannot be read
    #[arg(long, value_name = "KIND", hide_possible_values = true)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "omit")]
    #[arg(value_parser = one_of([("omit", "", Unreadables::LeaveOut), ("zeroes", "", Unreadables::Zeroes)]))]
    pub ignore_unreadable: Option<Unreadables>,
    /// Make root the owner of all files
    #[arg(long)]
    pub all_root: bool,
    /// Add this number to all user and group numbers. That is owners, entries of access lists, and the users whose
    /// namespaces capabilities hold for
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "all_root")]
    pub uid_offset: u32,
    /// Give all files this time, in seconds since 1970: it makes inodes smaller. Otherwise, if the environment has
    /// SOURCE_DATE_EPOCH, newer files get that time
    #[arg(long, value_name = "SECONDS", allow_hyphen_values = true)]
    pub mtime: Option<i64>,
    #[command(flatten)]
    pub xattrs: XattrArgs,
    /// Read the finished image, and compare it with what went into it
    #[arg(long)]
    pub verify: bool,
    /// Name of the volume, up to 15 bytes
    #[arg(long, short = 'L', value_name = "NAME", default_value = "")]
    pub label: String,
    #[command(flatten)]
    pub threads: ThreadsArgs,
    /// Memory that the command may take, about [default: no limit]. Fewer threads compress if it is too little for all,
    /// and file metadata beyond it goes to a temporary file next to OUT. Takes 64M or more, depending on the
    /// compression
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<String>,
    /// Print JSON with exact numbers, and no progress
    #[arg(long)]
    pub json: bool,
    /// Choices that have no option here.
    #[arg(skip)]
    pub further: Further,
}

impl BuildArgs {
    /// Whether each name of a hard link becomes a separate file.
    pub fn separates_links(&self) -> bool {
        self.hard_dereference || self.hard_links == Some(HardLinks::Ignore)
    }

    /// The sources: several are layers, the lowest first.
    pub fn sources(&self) -> &[PathBuf] {
        match self.layer_cache {
            Some(_) => &self.paths,
            None => self.paths.split_last().map_or(&[], |(_, sources)| sources),
        }
    }

    /// The source, or the lowest one.
    pub fn source(&self) -> &Path {
        self.sources().first().map_or(Path::new(""), PathBuf::as_path)
    }

    /// The image to write.
    pub fn out(&self) -> &Path {
        self.paths.last().map_or(Path::new(""), PathBuf::as_path)
    }

    /// Whether progress is shown: not where several images are built at once.
    pub fn shows_progress(&self) -> bool {
        !self.json && self.layer_cache.is_none()
    }

    /// Fails if there is no source.
    pub fn check_paths(&self) -> Result<()> {
        if self.sources().is_empty() {
            let what = format!(
                "'{}' is the only path; name the image to write too, as the last one",
                self.out().display()
            );
            return Err(CliError::usage(what));
        }
        Ok(())
    }

    /// The limit of memory, bytes.
    pub fn memory_bytes(&self) -> Result<Option<u64>> {
        self.memory.as_ref().map(|text| values::bytes("--memory", text)).transpose()
    }

    /// The changes of owners.
    pub fn owners(&self) -> Owners {
        let root = self.all_root.then_some(0);
        match self.further.owners {
            Owners { uid, gid, uid_offset: 0, gid_offset: 0 } => Owners {
                uid: uid.or(root),
                gid: gid.or(root),
                uid_offset: self.uid_offset,
                gid_offset: self.uid_offset,
            },
            owners => Owners { uid: owners.uid.or(root), gid: owners.gid.or(root), ..owners },
        }
    }

    /// Whether the user named the compression of all files that no rule names.
    pub fn names_compression(&self) -> bool {
        self.compression.as_ref().is_some_and(|text| text != AUTO)
    }
}

/// The patterns of `--exclude`.
pub fn patterns(args: &BuildArgs) -> Result<Vec<Pattern>> {
    let parsed = args.exclude.iter().map(|text| Pattern::parse(text));
    let parsed = parsed.collect::<std::result::Result<Vec<_>, _>>();
    let mut all = parsed.map_err(|e| CliError::usage(format!("--exclude: {e}")))?;
    all.extend(args.further.exclude.iter().cloned());
    Ok(all)
}

/// The order of `--sort`: a word, or the path of a file with a list.
fn sort(order: &Path) -> Result<Sort> {
    match order.to_str() {
        Some("similarity") => return Ok(Sort::Similarity),
        Some("path") => return Ok(Sort::Path),
        _ => {}
    }
    let shown = order.display();
    let read = File::open(order).and_then(|file| {
        let mut text = Vec::new();
        file.take(LIST_BYTES_MAX as u64 + 1).read_to_end(&mut text).map(|_| text)
    });
    let text = read.map_err(|e| {
        path_failure(format!("--sort: reading the list '{shown}' (or write similarity or path)"), &e)
    })?;
    SortList::parse(&text).map(Sort::List).map_err(|e| CliError::usage(format!("--sort: '{shown}' is {e}")))
}

/// The options of the image, and the running kernel if the image is for that one.
pub fn options(args: &BuildArgs) -> Result<(Options, Option<RunningKernel>)> {
    let usage = |option: &str| {
        let option = option.to_string();
        move |e: String| CliError::usage(format!("{option}: {e}"))
    };
    let (defaults, running) = match &args.kernel {
        Some(text) => {
            let target = Target::parse(text).ok_or_else(|| {
                CliError::usage(format!("--kernel: '{text}' is no version; name one as in 6.12"))
            })?;
            (Options::for_target(target), None)
        }
        None => {
            let what = "finding out what the running kernel can mount (--kernel names another one)";
            let kernel = RunningKernel::probe().map_err(|e| CliError::io(what, &e))?;
            (kernel.options(), Some(kernel))
        }
    };
    let (threads, memory_bytes) = (args.threads.count(), args.memory_bytes()?);
    let mut options = Options { threads, memory_bytes, ..defaults };
    let target = options.target;
    let decodes = |algorithm| match &running {
        Some(kernel) => target.decodes(algorithm) && kernel.refuses(algorithm).is_none(),
        None => target.usually_decodes(algorithm),
    };
    let has_metabox = running.as_ref().map_or(target.has_metabox(), RunningKernel::has_metabox);
    args.preset.apply(&mut options, decodes, has_metabox);
    options.choose_by_sample = args.compression.as_ref().is_some_and(|text| text == AUTO);
    if let Some(text) = args.compression.as_ref().filter(|_| args.names_compression()) {
        let compression = Compression::parse(text)
            .map_err(|e| CliError::usage(format!("--compression: {e}; '{AUTO}' chooses for each file")))?;
        match args.preset {
            Preset::Balanced => options = options.with_compression(compression),
            // The clusters are those of the preset.
            Preset::Fast | Preset::Small => options.compression = compression,
        }
    }
    for rule in &args.rules {
        options.rules.push(rule).map_err(usage("--rule"))?;
    }
    let size = |name: &str, text: &str, max: u64| -> Result<u32> {
        let bytes = values::bytes(name, text)?;
        u32::try_from(bytes).ok().filter(|_| bytes <= max).ok_or_else(|| {
            CliError::usage(format!("{name}: {} is too much; up to {}", Human(bytes), Human(max)))
        })
    };
    if let Some(text) = &args.cluster {
        options.cluster_bytes = size("--cluster", text, CLUSTER_BYTES_MAX.into())?;
    }
    // A distance of 65536 cannot be expressed, so a window of 64K reaches one byte less far.
    let window_bytes = size("--lz4-window", &args.lz4_window, 64 << 10)?;
    if window_bytes < LZ4_WINDOW_BYTES_MIN {
        let what =
            format!("--lz4-window: {} is too little; from 4 KiB to 64 KiB", Human(window_bytes.into()));
        return Err(CliError::usage(what));
    }
    options.lz4_window_bytes = window_bytes - 1;
    options.tail_packing &= !args.no_tail_packing;
    options.fragments &= !args.no_fragments;
    options.compress_metadata =
        (options.compress_metadata || args.compressed_metadata) && !args.no_compressed_metadata;
    options.compress_directories &= !args.no_compressed_directories;
    options.sort = sort(&args.sort)?;
    options.dedupe = args.dedupe.unwrap_or(options.dedupe);
    options.digests = args.verify;
    options.volume_name = args.label.clone().into_bytes();
    args.further.rules.iter().for_each(|rule| options.rules.add(rule.clone()));
    options.form = args.further.form;
    options.is_index = args.further.is_index;
    options.build_time = match args.further.build_time {
        None => source_date_epoch()?,
        given => given,
    };
    Ok((options, running))
}

/// The time of creation that the environment gives (reproducible-builds.org).
fn source_date_epoch() -> Result<Option<i64>> {
    let Some(text) = std::env::var_os("SOURCE_DATE_EPOCH") else { return Ok(None) };
    let seconds = text.to_str().and_then(|text| text.parse().ok());
    seconds.map(Some).ok_or_else(|| {
        let text = text.display();
        CliError::usage(format!("SOURCE_DATE_EPOCH is '{text}'; it has to be seconds since 1970"))
    })
}
