//! `image build`: makes an image.

use super::build_source::{self, WhiteoutsArg, failure};
use super::build_summary::{self, Built};
use super::open::{RemoteArgs, ThreadsArgs, VerityArgs, reading_share};
use super::target::Target as OutFile;
use crate::cli::output;
use crate::cli::progress::{BuildBar, BytesBar};
use clap::{Args, ValueEnum, ValueHint};
use pagefold_backing::FileBacking;
use pagefold_control::error::{CliError, Result};
use pagefold_control::media::Location;
use pagefold_control::text;
use pagefold_image::{Image, Options as ReadOptions};
use pagefold_image_build::source::Scanned;
use pagefold_image_build::{
    BuildError, CLUSTER_BYTES_MAX, Compression, Dedupe, Options, Preset, RunningKernel, Sort, Summary,
    Target, Tree, build, verify,
};
use pagefold_page::size::{self, Human};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The value of `--compression` that leaves the choice to a sample of each file.
const AUTO: &str = "auto";
/// Shortest window of LZ4 in an image, bytes.
const LZ4_WINDOW_BYTES_MIN: u32 = 4 << 10;

/// The arguments of `image build`.
#[derive(Debug, Args)]
pub struct BuildArgs {
    /// Directory, tar archive (plain, or compressed by gzip, zstd or xz), or image, whose files the image gets; - for an
    /// archive from standard input. Compressed archives and those from standard input need room for the decompressed
    /// archive beside OUT
    #[arg(value_name = "SOURCE", value_hint = ValueHint::AnyPath)]
    pub source: PathBuf,
    /// File to write. It gets its name when the image is complete; an existing file is replaced then
    #[arg(value_name = "OUT", value_hint = ValueHint::FilePath)]
    pub out: PathBuf,
    /// A further device of SOURCE, if that is an image on several devices. Can be repeated, in the order of the image's
    /// device table
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub device: Vec<Location>,
    #[command(flatten)]
    pub verity: VerityArgs,
    #[command(flatten)]
    pub remote: RemoteArgs,
    /// Oldest Linux that has to mount the image: 5.4, 5.10, 5.15, 6.1, 6.6, 6.12, 6.18, or another version [default:
    /// the running one, with its configuration]
    #[arg(long, value_name = "VERSION")]
    pub kernel: Option<String>,
    /// Purpose of the image, which chooses compression and clusters: fast (lz4 in clusters of 16K), balanced (the defaults
    /// below), or small (lzma:9 in clusters of 1M where the kernel has it). Other options replace what it chooses
    #[arg(long, value_name = "NAME", default_value = "balanced", hide_possible_values = true)]
    pub preset: PresetArg,
    /// Compression: lz4, lz4hc[:1-12], zstd[:1-22], deflate[:1-12], lzma[:0-9], none, or auto (the default or that of
    /// --preset, but none for files whose sample does not compress, and a low level for those in which a high one finds
    /// nothing more) [default: zstd:12; lz4hc:9 for versions before 6.12, and if the running kernel has no zstd for EROFS]
    #[arg(short = 'z', long, value_name = "NAME[:LEVEL]")]
    pub compression: Option<String>,
    /// Compression of the files that match a pattern, as in '*.so=lz4hc:12' or 'usr/share/**=zstd:19'. The first rule
    /// that matches a file decides. Can be repeated
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
    /// Store small files, and the ends of others, each on its own, and not together in the packed file. Directories are not
    /// compressed then
    #[arg(long)]
    pub no_fragments: bool,
    /// Compress inodes too, if there are 1024 or more, as --preset small does where the kernel reads them (Linux from 6.17
    /// on, which calls it experimental)
    #[arg(long, overrides_with = "no_compressed_metadata")]
    pub compressed_metadata: bool,
    /// Store inodes uncompressed
    #[arg(long)]
    pub no_compressed_metadata: bool,
    /// Store directories uncompressed. Otherwise they are compressed in the packed file, if there are 1024 inodes or more and
    /// the kernel reads them (Linux from 6.1 on)
    #[arg(long)]
    pub no_compressed_directories: bool,
    /// Store once: equal files and equal parts of compressed files (chunks), equal files (files), or nothing (none).
    /// Compressed files share contents from Linux 6.1 on. Parts are found by reading all files twice [default: chunks; with
    /// --preset fast files]
    #[arg(long, value_name = "KIND", hide_possible_values = true)]
    pub dedupe: Option<DedupeArg>,
    /// Order of the contents of small files, which are stored together, and of the others: similarity (small files with
    /// the same extension follow each other, and versions of a file), path, or a file with a list of paths, as a program
    /// reads them when it starts: one on each line, # begins a comment. Files in the list come first, the others follow by
    /// similarity
    #[arg(long, value_name = "ORDER", default_value = "similarity", value_hint = ValueHint::FilePath)]
    pub sort: PathBuf,
    /// Leave out what matches a pattern, with all below it. A pattern without a slash is compared with names, one with
    /// a slash with paths from SOURCE. Can be repeated
    #[arg(long, value_name = "GLOB")]
    pub exclude: Vec<String>,
    /// Whiteouts of a container's layer, which are files .wh.NAME in archives: as files of these names, or as overlayfs
    /// has them (device 0:0 as NAME, and for .wh..wh..opq the attribute trusted.overlay.opaque) [default: files]
    #[arg(long, value_name = "KIND", hide_possible_values = true)]
    pub whiteouts: Option<WhiteoutsArg>,
    /// Leave directories empty that are on other file systems
    #[arg(long)]
    pub one_file_system: bool,
    /// Leave out files that cannot be read, and the names in directories that cannot be read, and say so, in place of
    /// failing
    #[arg(long)]
    pub ignore_unreadable: bool,
    /// Make root the owner of all files
    #[arg(long)]
    pub all_root: bool,
    /// Add this number to all user and group numbers
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "all_root")]
    pub uid_offset: u32,
    /// Give all files this time, in seconds since 1970: it makes inodes smaller
    #[arg(long, value_name = "SECONDS", allow_hyphen_values = true)]
    pub mtime: Option<i64>,
    /// Read the finished image, and compare it with what went into it
    #[arg(long)]
    pub verify: bool,
    /// Name of the volume, up to 15 bytes
    #[arg(long, short = 'L', value_name = "NAME", default_value = "")]
    pub label: String,
    #[command(flatten)]
    pub threads: ThreadsArgs,
    /// Memory that the command may take, about: fewer threads compress if it is too little for all, and what is known of
    /// the files goes to a temporary file beside OUT if there are many. Takes 64M or more, depending on the compression
    /// [default: no limit]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<String>,
    /// Print JSON with exact numbers, and no progress
    #[arg(long)]
    pub json: bool,
}

impl BuildArgs {
    /// The limit of memory, bytes.
    pub fn memory_bytes(&self) -> Result<Option<u64>> {
        let parsed = self.memory.as_ref().map(|text| size::parse(text)).transpose();
        parsed.map_err(|e| CliError::usage(format!("--memory: {e}")))
    }
}

/// Memory for reading the superblock of the image that was built.
const READ_BYTES: u64 = 8 << 20;

/// The purpose of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PresetArg {
    /// Built and read fast
    Fast,
    /// Small, and not slower to read
    Balanced,
    /// As small as possible
    Small,
}

/// The data that an image stores once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DedupeArg {
    /// Equal parts of files
    Chunks,
    /// Equal files
    Files,
    /// Nothing
    None,
}

/// Builds the image, and reports what is in it.
pub fn run(args: &BuildArgs) -> Result<()> {
    let (options, running) = options(args)?;
    if options.memory_bytes.is_some() {
        pagefold_sys::malloc::return_large_blocks();
    }
    // Each thread may have some files open, which it reads.
    pagefold_sys::beneath::raise_open_file_limit();
    let exclude = build_source::patterns(args)?;
    let excluded = exclude.clone();
    // The file stands first: it blocks signals, which threads would receive, and may be refused.
    let out = OutFile::open_image(&args.out)?;
    // If OUT is a link, the image is made beside its target.
    let directory = out.path().parent().unwrap_or(Path::new("."));
    let spill = options.spill(directory).map_err(failure)?;
    let (mut scanned, whole) = build_source::scan(args, exclude, &out, &spill)?;
    change_metadata(&mut scanned, args)?;
    for (path, reason) in scanned.unreadable.iter() {
        output::note(&format!("not read: '{}': {reason}", path.display()));
    }
    if scanned.unreadable.count_unlisted() > 0 {
        let more = text::counted(scanned.unreadable.count_unlisted(), "path", "paths");
        output::note(&format!("not read: {more} more"));
    }
    for pattern in excluded.iter().filter(|pattern| !pattern.has_matched()) {
        output::note(&format!("--exclude '{}' matched nothing", pattern.text()));
    }
    let bar = RefCell::new(BuildBar::new(!args.json));
    let built = build(&scanned.tree, &options, out.file(), &mut |progress| {
        bar.borrow_mut().show(&progress);
        if out.poll_interrupt() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    bar.borrow().end();
    let summary = built.map_err(|e| match e {
        BuildError::Interrupted => out.interrupted(),
        BuildError::Write { offset, source } => {
            CliError::io(format!("writing '{}' at byte {offset}", args.out.display()), &source)
        }
        e => failure(e),
    })?;
    if args.verify {
        verify_image(&out, &scanned.tree, &summary, args)?;
    }
    whole.finish(!args.json, || out.poll_interrupt())?;
    if out.poll_interrupt() {
        return Err(out.interrupted());
    }
    let read_options = ReadOptions { memory_bytes: READ_BYTES, ..ReadOptions::default() };
    let needs = open_built(&out, read_options).ok().map(|image| image.superblock().required_kernel());
    out.complete()?;
    for pattern in options.rules.patterns().filter(|pattern| !pattern.has_matched()) {
        output::note(&format!("--rule '{}' decided for no file", pattern.text()));
    }
    let built = Built {
        out: &args.out,
        summary: &summary,
        needs,
        scanned: &scanned,
        running: running.as_ref(),
        reason: reason(running.as_ref(), args),
        has_list: matches!(options.sort, Sort::List(_)),
        threads: args.threads.count(),
    };
    match args.json {
        true => build_summary::print_json(&built),
        false => build_summary::print(&built),
    }?;
    if let Some(kernel) = running.filter(|_| names_compression(args) || !args.rules.is_empty()) {
        note_refused(&kernel, &options);
    }
    Ok(())
}

/// The reason for the compression, unless the user named it, or named a kernel.
fn reason(running: Option<&RunningKernel>, args: &BuildArgs) -> Option<String> {
    let is_default = !names_compression(args) && args.preset == PresetArg::Balanced;
    running.filter(|_| is_default).map(RunningKernel::reason)
}

/// Whether the user named the compression of all files that no rule names.
fn names_compression(args: &BuildArgs) -> bool {
    args.compression.as_ref().is_some_and(|text| text != AUTO)
}

/// Says which of the algorithms that the user named the running kernel does not have. The image is of use nevertheless:
/// `image mount` needs no kernel with EROFS.
fn note_refused(kernel: &RunningKernel, options: &Options) {
    let algorithms = options.compressions().into_iter().map(|compression| compression.method.algorithm());
    let reasons: BTreeSet<_> = algorithms.filter_map(|algorithm| kernel.refuses(algorithm)).collect();
    for reason in reasons {
        output::note(&format!("the running kernel cannot mount the image itself: {reason}"));
    }
}

/// Compares the image with what went into it. It has its name only afterwards.
fn verify_image(out: &OutFile, tree: &Tree, summary: &Summary, args: &BuildArgs) -> Result<()> {
    let shown = args.out.display();
    let memory_bytes = reading_share(args.memory_bytes()?);
    let options = ReadOptions { memory_bytes, ..ReadOptions::default() };
    let failed = |reason: String| CliError::failed(format!("'{shown}' was not written: {reason}"));
    let image = open_built(out, options).map_err(failed)?;
    let bar = RefCell::new(BytesBar::new(!args.json));
    let mut done = 0;
    let verified = verify(&image, tree, &summary.digests, &mut |bytes| {
        done += bytes;
        bar.borrow_mut().show(done, summary.content_bytes(), done);
        if out.poll_interrupt() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    bar.borrow().end();
    verified.map_err(|e| failed(pagefold_image::with_causes(&e).to_string()))
}

/// Opens the image that was built.
fn open_built(out: &OutFile, options: ReadOptions) -> std::result::Result<Image, String> {
    // The permissions of the file are those of the one that it replaces: it may not be opened again.
    let file = out.file().try_clone().map_err(|e| e.to_string())?;
    let source = FileBacking::for_reading(file).map_err(|e| e.to_string())?;
    Image::open(Arc::new(source), options).map_err(|e| pagefold_image::with_causes(&e).to_string())
}

/// Applies the options that replace owners and times.
fn change_metadata(scanned: &mut Scanned, args: &BuildArgs) -> Result<()> {
    if !args.all_root && args.uid_offset == 0 && args.mtime.is_none() {
        return Ok(());
    }
    let mut too_large = None;
    let mut shift = |id: &mut u32| match id.checked_add(args.uid_offset).filter(|sum| *sum != u32::MAX) {
        Some(sum) => *id = sum,
        None => too_large = Some(*id),
    };
    let changed = scanned.tree.change_metadata(|metadata| {
        if args.all_root {
            (metadata.uid, metadata.gid) = (0, 0);
        }
        shift(&mut metadata.uid);
        shift(&mut metadata.gid);
        if let Some(seconds) = args.mtime {
            metadata.mtime.seconds = seconds;
            metadata.mtime.nanoseconds = 0;
        }
    });
    changed.map_err(failure)?;
    match too_large {
        None => Ok(()),
        Some(id) => Err(CliError::usage(format!(
            "--uid-offset: user or group {id} would become more than 4294967294, the greatest number"
        ))),
    }
}

/// The options of the image, and the running kernel if the image is for that one.
fn options(args: &BuildArgs) -> Result<(Options, Option<RunningKernel>)> {
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
    let preset = match args.preset {
        PresetArg::Fast => Preset::Fast,
        PresetArg::Balanced => Preset::Balanced,
        PresetArg::Small => Preset::Small,
    };
    let target = options.target;
    let decodes = |algorithm| match &running {
        Some(kernel) => target.decodes(algorithm) && kernel.refuses(algorithm).is_none(),
        None => target.usually_decodes(algorithm),
    };
    let has_metabox = running.as_ref().map_or(target.has_metabox(), RunningKernel::has_metabox);
    preset.apply(&mut options, decodes, has_metabox);
    options.choose_by_sample = args.compression.as_ref().is_some_and(|text| text == AUTO);
    if let Some(text) = args.compression.as_ref().filter(|_| names_compression(args)) {
        let compression = Compression::parse(text)
            .map_err(|e| CliError::usage(format!("--compression: {e}; '{AUTO}' chooses for each file")))?;
        match args.preset {
            PresetArg::Balanced => options = options.with_compression(compression),
            // The clusters are those of the preset.
            PresetArg::Fast | PresetArg::Small => options.compression = compression,
        }
    }
    for rule in &args.rules {
        options.rules.push(rule).map_err(usage("--rule"))?;
    }
    let size = |name: &str, text: &str, max: u64| -> Result<u32> {
        let bytes = size::parse(text).map_err(|e| CliError::usage(format!("{name}: {e}")))?;
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
    options.sort = build_source::sort(&args.sort)?;
    match args.dedupe {
        Some(DedupeArg::Chunks) => options.dedupe = Dedupe::Chunks,
        Some(DedupeArg::Files) => options.dedupe = Dedupe::Files,
        Some(DedupeArg::None) => options.dedupe = Dedupe::Nothing,
        None => {}
    }
    options.digests = args.verify;
    options.volume_name = args.label.clone().into_bytes();
    options.build_time = source_date_epoch()?;
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
