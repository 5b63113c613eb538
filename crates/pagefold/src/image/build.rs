//! `image build`: makes an image.

use super::build_args::{BuildArgs, options, patterns};
use super::build_source::{SourceReader, failure, source_failure};
use super::build_summary::{self, Built};
use super::further::Owners;
use super::open::reading_share;
use super::target::Target as OutFile;
use crate::cli::output;
use crate::cli::progress::Bar;
use pagefold_backing::FileBacking;
use pagefold_control::error::{CliError, Result};
use pagefold_control::text;
use pagefold_image::{Image, Options as ReadOptions};
use pagefold_image_build::source::{Scanned, UnreadableFile, UnreadableXattr};
use pagefold_image_build::{
    BuildError, Options, Pattern, Preset, RunningKernel, Sort, Summary, Tree, build, verify,
};
use pagefold_page::size::Human;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Memory for reading the superblock of the image that was built.
const READ_BYTES: u64 = 8 << 20;

/// Builds the image, and reports what is in it.
pub fn run(args: &BuildArgs) -> Result<()> {
    let (options, running) = options(args)?;
    if options.memory_bytes.is_some() {
        pagefold_sys::malloc::return_large_blocks();
    }
    // Each thread may have some files open, which it reads.
    pagefold_sys::beneath::raise_open_file_limit();
    let exclude = patterns(args)?;
    // The file stands first: it blocks signals, which threads would receive, and may be refused.
    let out = match args.further.in_place {
        true => OutFile::open_in_place(&args.out)?,
        false => OutFile::open_image(&args.out)?,
    };
    out.write_in_child(|out| build_in(args, exclude, &options, running, out))
}

/// Builds the image into `out`. The process is confined before it parses an archive or an image.
fn build_in(
    args: &BuildArgs,
    exclude: Vec<Pattern>,
    options: &Options,
    running: Option<RunningKernel>,
    out: &OutFile,
) -> Result<()> {
    let excluded = exclude.clone();
    // If OUT is a link, the image is made beside its target.
    let spill = options.spill(&out.temporary_folder()).map_err(failure)?;
    let (mut scanned, whole) = SourceReader { args, exclude, out, spill: &spill }.scan()?;
    change_metadata(&mut scanned, args)?;
    for pattern in excluded.iter().take(args.exclude.len()).filter(|pattern| !pattern.has_matched()) {
        output::note(&format!("--exclude '{}' matched nothing", pattern.text()));
    }
    let summary = build_image(&mut scanned, options, out, args)?;
    note_unreadable(&scanned);
    if args.verify {
        verify_image(out, &scanned.tree, &summary, args)?;
    }
    whole.finish(!args.json, || out.poll_interrupt())?;
    if out.poll_interrupt() {
        return Err(out.interrupted());
    }
    let read_options = ReadOptions { memory_bytes: READ_BYTES, ..ReadOptions::default() };
    let built = Some(out).filter(|_| args.further.offset_bytes == 0);
    let needs = built.and_then(|out| open_built(out, read_options).ok());
    let needs = needs.map(|image| image.superblock().required_kernel());
    out.complete()?;
    let rules = options.rules.patterns().take(args.rules.len());
    for pattern in rules.filter(|pattern| !pattern.has_matched()) {
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
    if let Some(kernel) = running.filter(|_| args.names_compression() || !args.rules.is_empty()) {
        note_refused(&kernel, options);
    }
    Ok(())
}

/// Builds the image; if that shows that files cannot be read which are to be left out, again without them.
fn build_image(scanned: &mut Scanned, options: &Options, out: &OutFile, args: &BuildArgs) -> Result<Summary> {
    loop {
        let mut bar = Bar::new(!args.json);
        let region = out.region(args.further.offset_bytes);
        let built = build(&scanned.tree, options, &region, &mut |progress| {
            bar.show_build(&progress);
            out.go_on()
        });
        drop(bar);
        let may_go_on = matches!(built, Ok(_) | Err(BuildError::Changed { .. }));
        if may_go_on && scanned.settle_read_errors(built.is_ok()).map_err(failure)? {
            output::note("the contents of some files cannot be read: building the image again without them");
            continue;
        }
        return built.map_err(|e| match e {
            BuildError::Interrupted => out.interrupted(),
            BuildError::Write { offset, source } => {
                CliError::io(format!("writing '{}' at byte {offset}", args.out.display()), &source)
            }
            e => source_failure(e, args),
        });
    }
}

/// Says what could not be read.
fn note_unreadable(scanned: &Scanned) {
    let note_more = |more: u64, one: &str, many: &str| {
        if more > 0 {
            output::note(&format!("not read: {} more", text::counted(more, one, many)));
        }
    };
    for UnreadableFile { path, reason } in scanned.unreadable.iter() {
        output::note(&format!("not read: '{}': {reason}", path.display()));
    }
    note_more(scanned.unreadable.count_unlisted(), "path", "paths");
    for UnreadableFile { path, reason } in scanned.zero_filled.iter() {
        output::note(&format!("not read in full: '{}': {reason}", path.display()));
    }
    note_more(scanned.zero_filled.count_unlisted(), "path in full", "paths in full");
    for UnreadableXattr { path, name, reason } in scanned.unreadable_xattrs.iter() {
        let attribute = match name.as_slice() {
            b"" => "the attributes".to_string(),
            name => format!("the attribute '{}'", String::from_utf8_lossy(name)),
        };
        output::note(&format!("not read: {attribute} of '{}': {reason}", path.display()));
    }
    note_more(scanned.unreadable_xattrs.count_unlisted(), "attribute", "attributes");
}

/// The reason for the compression, unless the user named it, or named a kernel.
fn reason(running: Option<&RunningKernel>, args: &BuildArgs) -> Option<String> {
    let is_default = !args.names_compression() && args.preset == Preset::Balanced;
    running.filter(|_| is_default).map(RunningKernel::reason)
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
    let bar = RefCell::new(Bar::new(!args.json));
    let mut done = 0;
    let verified = verify(&image, tree, &summary.digests, &mut |bytes| {
        done += bytes;
        bar.borrow_mut().show_bytes(done, summary.content_bytes(), format_args!("to {}", Human(done)));
        out.go_on()
    });
    drop(bar);
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
    let owners = args.owners();
    if owners == Owners::default() && args.mtime.is_none() {
        return Ok(());
    }
    let mut too_large = None;
    let changed = scanned.tree.change_metadata(|metadata| {
        metadata.uid = owners.uid.unwrap_or(metadata.uid);
        metadata.gid = owners.gid.unwrap_or(metadata.gid);
        if let Err(id) = metadata.shift_owners(owners.uid_offset, owners.gid_offset) {
            too_large = Some(id);
        }
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
