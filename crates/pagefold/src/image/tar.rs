//! `image tar`: writes a tar archive.

use super::open::{ImageArgs, Then, path_bytes};
use super::target::{Output, Target};
use super::whole::WholeCheck;
use super::{findings, limit};
use clap::{Args, ValueHint};
use pagefold_control::error::{CliError, Result};
use pagefold_image::tar::{TarError, TarOptions, TarReport, write};
use pagefold_image::{Image, ReadAhead};
use std::io::{BufWriter, ErrorKind, IsTerminal};
use std::path::{Path, PathBuf};

/// Bytes that are written at a time.
const BUFFER_BYTES: usize = 256 << 10;

/// The arguments of `image tar`.
#[derive(Debug, Args)]
pub struct TarArgs {
    #[command(flatten)]
    pub image: ImageArgs,
    /// Files and directories in the image to write [default: all]
    #[arg(value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Write the archive to this file; - for standard output. The file gets its name when the archive is complete
    #[arg(short = 'o', value_name = "FILE", default_value = "-", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// Most bytes to write [default: to a file: nine tenths of the free space; otherwise: 3072 times the size of the
    /// image, but at least 1 GiB]
    #[arg(long, value_name = "SIZE")]
    pub max_bytes: Option<String>,
    /// Most files in the archive
    #[arg(long, value_name = "N", default_value_t = 1 << 24)]
    pub max_inodes: u64,
}

/// Writes the archive.
pub fn run(args: &TarArgs) -> Result<()> {
    if args.file == Path::new("-") {
        return write_to_stdout(args)?.map_or(Ok(()), |report| print(&report));
    }
    let target = Target::open(&args.file)?;
    if target.file().is_terminal() {
        return Err(terminal_refused());
    }
    target.write_in_child(|target| print(&write_to_file(args, target)?))
}

/// Prints what was wrong, and fails if something was.
fn print(report: &TarReport) -> Result<()> {
    findings::print_text(&report.findings);
    findings::check(&report.findings, "wrong or missing in the archive")
}

/// Compares an image in a registry with its digest, if all of it was wanted.
fn finish(args: &TarArgs, whole: WholeCheck, is_interrupted: impl FnMut() -> bool) -> Result<()> {
    if args.paths.is_empty() { whole.finish(true, is_interrupted) } else { Ok(()) }
}

/// Returns `None` if the reader has closed the pipe.
fn write_to_stdout(args: &TarArgs) -> Result<Option<TarReport>> {
    let out = std::io::stdout();
    if out.is_terminal() {
        return Err(terminal_refused());
    }
    let (image, whole) = args.image.open_whole(ReadAhead::BestEffort, Then::Prints, None)?;
    let options = options(args, limit::max_bytes(args.max_bytes.as_deref(), &image, &out)?);
    match archive(args, &image, &options, out.lock()) {
        Err(TarError::Write(e)) if e.kind() == ErrorKind::BrokenPipe => Ok(None),
        result => {
            let report = result.map_err(|e| failure(args, "standard output", e))?;
            finish(args, whole, || false)?;
            Ok(Some(report))
        }
    }
}

fn write_to_file(args: &TarArgs, target: &Target) -> Result<TarReport> {
    let opened = args.image.open_whole(ReadAhead::BestEffort, Then::Prints, target.signals());
    let (image, whole) = opened.map_err(|e| target.unless_interrupted(e))?;
    let options = options(args, limit::max_bytes(args.max_bytes.as_deref(), &image, target.file())?);
    let shown = format!("'{}'", args.file.display());
    let report =
        archive(args, &image, &options, Output(target)).map_err(|e| match target.poll_interrupt() {
            true => CliError::failed(format!("interrupted: {shown} was not written")),
            false => failure(args, &shown, e),
        })?;
    finish(args, whole, || target.poll_interrupt())?;
    target.complete()?;
    Ok(report)
}

fn terminal_refused() -> CliError {
    CliError::usage(
        "an archive cannot be printed on a terminal; redirect it to a program, or name a file with -o",
    )
}

fn options(args: &TarArgs, max_bytes: u64) -> TarOptions {
    TarOptions { max_bytes, max_members: args.max_inodes }
}

fn archive(
    args: &TarArgs,
    image: &Image,
    options: &TarOptions,
    out: impl std::io::Write,
) -> Result<TarReport, TarError> {
    let paths: Vec<Vec<u8>> = args.paths.iter().map(|path| path_bytes(path).to_vec()).collect();
    write(image, &paths, options, BufWriter::with_capacity(BUFFER_BYTES, out))
}

/// The error for an archive that could not be written completely to `output`.
fn failure(args: &TarArgs, output: &str, error: TarError) -> CliError {
    match error {
        TarError::Write(e) => CliError::io(format!("writing to {output}"), &e),
        TarError::Limit { what } if args.file != Path::new("-") => {
            CliError::failed(format!("{what}; {output} was not written"))
        }
        TarError::Limit { .. } => CliError::failed(error.to_string()),
        TarError::Image(e) => args.image.failure(&e),
    }
}
