//! `disk saved`.

use super::bucket;
use super::chain::{self, ChainFile};
use super::salvage;
use crate::cli::{numbers, output, values};
use crate::image::open::{confine, path_failure};
use clap::{Args, ValueHint};
use pagefold_control::error::{CliError, Result};
use pagefold_control::report::saved::{SavedCodec, SavedDisk};
use pagefold_control::text;
use pagefold_page::PAGE_SIZE;
use pagefold_page::size::Human;
use pagefold_saved::{Head, Outline, Reader, SavedError};
use pagefold_server::confinement::Kind;
use pagefold_server::disk;
use std::fs::File;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};

/// The arguments of `disk saved`.
#[derive(Debug, Args)]
pub struct SavedArgs {
    /// File that `disk save` has written, or s3://, gs://, az:// or https://
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// Read all of it, and verify the checksums, the index and the digest. The files that an incremental save needs are
    /// read and verified too
    #[arg(long)]
    pub check: bool,
    /// Remove the objects that interrupted saves have left in a bucket. These are called KEY.ID, and the manifest KEY does
    /// not name them
    #[arg(long, conflicts_with = "check")]
    pub clean: bool,
    /// Least age of an object that --clean removes. A save that takes longer would lose its object
    #[arg(long, value_name = "TIME", default_value = "1d", requires = "clean")]
    pub older_than: String,
    /// Write what verifies of a damaged file to standard output, as a new saved disk. The other pages are lost in it: reading
    /// them is an error. They are listed, and the exit code is 6. FILE is not changed
    #[arg(long, conflicts_with_all = ["check", "clean", "json"])]
    pub salvage: bool,
    /// Print JSON with exact numbers
    #[arg(long)]
    pub json: bool,
}

/// Prints the properties of a saved disk. The process is confined before it parses the file.
pub fn run(args: &SavedArgs) -> Result<()> {
    match (bucket::location(&args.file), args.clean) {
        (Some(_), _) if args.salvage => {
            return Err(CliError::usage(
                "--salvage is for files; copy the objects of the bucket to files first",
            ));
        }
        (None, _) if args.salvage => return salvage::run(&args.file),
        (Some(location), true) => {
            return bucket::clean(&location, values::seconds("--older-than", &args.older_than)?, args.json);
        }
        (Some(location), false) => return bucket::show(&location, args.check, args.json),
        (None, true) => return Err(CliError::usage("--clean is for buckets: s3://, gs:// or az://")),
        (None, false) => {}
    }
    let what = || format!("reading '{}'", args.file.display());
    let file = File::open(&args.file).map_err(|e| path_failure(what(), &e))?;
    let parents = if args.check { parents(&args.file, &file)? } else { Vec::new() };
    confine(Kind::Printing)?;
    let outline = if args.check { check(&file) } else { Outline::read(&file) };
    let outline = outline.map_err(|e| chain::failure(&args.file, &e))?;
    for ChainFile { path, file, .. } in &parents {
        check(file).map_err(|e| chain::failure(path, &e))?;
    }
    print(&outline, args.check, args.json)
}

/// Prints what was read.
pub fn print(outline: &Outline, checked: bool, json: bool) -> Result<()> {
    let saved = report(outline, checked);
    if json {
        return output::json(&saved);
    }
    lines(&saved).iter().try_for_each(|line| output::line(line))
}

/// Opens the files that a saved disk needs. If its first bytes are not those of one, an error follows when it is read.
fn parents(path: &Path, mut file: &File) -> Result<Vec<ChainFile>> {
    let failed = |e| path_failure(format!("reading '{}'", path.display()), &e);
    let head = Head::read(&mut |bytes| {
        file.read_exact(bytes).map_err(|source| SavedError::Read { offset: 0, source })
    });
    file.rewind().map_err(failed)?;
    let Ok(head) = head else { return Ok(Vec::new()) };
    head.parent().map_or(Ok(Vec::new()), |parent| chain::parents(path, head.len_bytes(), parent))
}

/// Reads and verifies all of a saved disk.
pub fn check(file: impl Read) -> Result<Outline, SavedError> {
    let reader = Reader::with_digest(file)?;
    let header = reader.header().clone();
    Ok(Outline { header, totals: reader.finish()? })
}

fn report(outline: &Outline, checked: bool) -> SavedDisk {
    let Outline { header, totals } = outline;
    let codecs = header.codecs.iter().map(|codec| SavedCodec {
        name: codec.name.clone(),
        level: codec.level,
        dictionary_bytes: codec.dictionary.as_ref().map_or(0, |dictionary| dictionary.len() as u64),
    });
    let figures = disk::saved_figures(header, totals);
    let ratio = figures.pages as f64 * PAGE_SIZE as f64 / figures.file_bytes as f64;
    SavedDisk {
        saved_unix_s: header.saved_unix_s,
        parent_file: header.parent.as_ref().map(|parent| PathBuf::from(&parent.name)),
        chain_files: header.depth() + 1,
        codecs: codecs.collect(),
        ratio: (figures.pages > 0).then_some(ratio),
        checked,
        figures,
    }
}

fn lines(saved: &SavedDisk) -> Vec<String> {
    let figures = &saved.figures;
    let codec = |codec: &SavedCodec| match codec.level {
        Some(level) => format!("{}:{level}", codec.name),
        None => codec.name.clone(),
    };
    let codecs = saved.codecs.iter().filter(|codec| !codec.name.is_empty()).map(codec).collect::<Vec<_>>();
    let mut pages =
        vec![format!("{} ({})", numbers::count(figures.pages), Human(figures.pages.saturating_mul(4096)))];
    pages.extend(numbers::counts([
        (figures.same_filled_pages, "repeat a word"),
        (figures.raw_pages, "do not compress"),
        (figures.lost_pages, "are lost"),
    ]));
    let ratio = saved.ratio.map_or(String::new(), |ratio| format!(" ({ratio:.2}x)"));
    let row = |name: &str, value: String| format!("{name:<10} {value}");
    let mut lines = vec![
        row("size", format!("{} ({} bytes)", Human(figures.size_bytes), figures.size_bytes)),
        row("saved", text::time_text(i64::try_from(saved.saved_unix_s).unwrap_or(i64::MAX))),
        row("pages", pages.join("; ")),
        row("file", format!("{}{ratio}", Human(figures.file_bytes))),
        row("codecs", codecs.join(", ")),
        row("id", figures.id.clone()),
        row("digest", format!("sha256:{}", figures.digest)),
    ];
    if let Some(parent) = &saved.parent_file {
        let number = numbers::counted(u64::from(saved.chain_files) - 1, "file is", "files are");
        lines.push(row("needs", format!("'{}' beside it; {number} needed in all", parent.display())));
    }
    if saved.checked {
        lines.push(row("check", "all checksums, the index and the digest are right".into()));
    }
    lines
}
