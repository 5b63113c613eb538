//! `image build`: makes an image.

use super::build_args::{BuildArgs, options, patterns};
use super::build_source::{SourceReader, failure, source_failure};
use super::build_summary::{self, Built};
use super::layer_cache;
use super::open::reading_share;
use super::target::Target as OutFile;
use super::{build_changes, build_notes};
use crate::cli::output;
use crate::cli::progress::Bar;
use pagefold_backing::FileBacking;
use pagefold_control::error::{CliError, Result};
use pagefold_image::{Image, Options as ReadOptions};
use pagefold_image_build::source::Scanned;
use pagefold_image_build::{
    BuildError, Options, Pattern, Preset, RunningKernel, Sort, Summary, Tree, XattrChanges, XattrFilter,
    build, verify,
};
use pagefold_page::size::Human;
use std::cell::RefCell;
use std::sync::Arc;

/// Memory for reading the superblock of the image that was built.
const READ_BYTES: u64 = 8 << 20;

/// Builds the image, and reports what is in it.
pub fn run(args: &BuildArgs) -> Result<()> {
    args.check_paths()?;
    if let Some(cache) = &args.layer_cache {
        return layer_cache::run(args, cache);
    }
    let (options, running) = options(args)?;
    if options.memory_bytes.is_some() {
        pagefold_sys::malloc::return_large_blocks();
    }
    // Each thread may have some files open, which it reads.
    pagefold_sys::beneath::raise_open_file_limit();
    let exclude = patterns(args)?;
    let xattrs = (args.xattrs.filter()?, args.xattrs.changes()?);
    // The file stands first: it blocks signals, which threads would receive, and may be refused.
    let out = match args.further.in_place {
        true => OutFile::open_in_place(args.out())?,
        false => OutFile::open_image(args.out())?,
    };
    out.write_in_child(|out| {
        let built = build_in(args, exclude, &xattrs, &options, running, out);
        // A read that waited for a server fails after a signal.
        built.map_err(|e| out.unless_interrupted(e))
    })
}

/// Builds the image into `out`. The process is confined before it parses an archive or an image.
fn build_in(
    args: &BuildArgs,
    exclude: Vec<Pattern>,
    (filter, changes): &(XattrFilter, XattrChanges),
    options: &Options,
    running: Option<RunningKernel>,
    out: &OutFile,
) -> Result<()> {
    let excluded = exclude.clone();
    // If OUT is a link, the image is made beside its target.
    let spill = options.spill(&out.temporary_folder()).map_err(failure)?;
    let (mut scanned, whole) = SourceReader { args, exclude, xattrs: filter, out, spill: &spill }.scan()?;
    build_changes::apply(&mut scanned, args, options.build_time, changes)?;
    for pattern in excluded.iter().take(args.exclude.len()).filter(|pattern| !pattern.has_matched()) {
        output::note(&format!("--exclude '{}' matched nothing", pattern.text()));
    }
    build_notes::unmatched_xattrs(filter, changes);
    let summary = build_image(&mut scanned, options, out, args)?;
    build_notes::unreadable(&scanned);
    build_notes::attributes(&scanned, args);
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
    let needs = needs.map(|image| image.required_kernel());
    out.complete()?;
    let rules = options.rules.patterns().take(args.rules.len());
    for pattern in rules.filter(|pattern| !pattern.has_matched()) {
        output::note(&format!("--rule '{}' decided for no file", pattern.text()));
    }
    let built = Built {
        out: args.out(),
        summary: &summary,
        needs,
        scanned: &scanned,
        running: running.as_ref(),
        reason: reason(running.as_ref(), args),
        nested: args.xattrs.nested(),
        has_list: matches!(options.sort, Sort::List(_)),
        threads: args.threads.count(),
    };
    match args.json {
        true => build_summary::print_json(&built),
        false => build_summary::print(&built),
    }?;
    if let Some(kernel) = running.filter(|_| args.names_compression() || !args.rules.is_empty()) {
        build_notes::refused(&kernel, options);
    }
    Ok(())
}

/// Builds the image; if that shows that files cannot be read which are to be left out, again without them.
pub fn build_image(
    scanned: &mut Scanned,
    options: &Options,
    out: &OutFile,
    args: &BuildArgs,
) -> Result<Summary> {
    loop {
        let mut bar = Bar::new(args.shows_progress());
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
        return built.map_err(|e| not_built(e, out, args));
    }
}

/// The error of a build.
pub fn not_built(error: BuildError, out: &OutFile, args: &BuildArgs) -> CliError {
    match error {
        BuildError::Interrupted => out.interrupted(),
        BuildError::Write { offset, source } => {
            CliError::io(format!("writing '{}' at byte {offset}", out.shown().display()), &source)
        }
        e => source_failure(e, args),
    }
}

/// The reason for the compression, unless the user named it, or named a kernel.
fn reason(running: Option<&RunningKernel>, args: &BuildArgs) -> Option<String> {
    let is_default = !args.names_compression() && args.preset == Preset::Balanced;
    running.filter(|_| is_default).map(RunningKernel::reason)
}

/// Compares the image with what went into it. It has its name only afterwards.
pub fn verify_image(out: &OutFile, tree: &Tree, summary: &Summary, args: &BuildArgs) -> Result<()> {
    let shown = out.shown().display();
    let memory_bytes = reading_share(args.memory_bytes()?);
    let options = ReadOptions { memory_bytes, ..ReadOptions::default() };
    let failed = |reason: String| CliError::failed(format!("'{shown}' was not written: {reason}"));
    let image = open_built(out, options).map_err(failed)?;
    let bar = RefCell::new(Bar::new(args.shows_progress()));
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
