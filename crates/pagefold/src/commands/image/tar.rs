//! `image extract --tar`.

use super::extract::ExtractArgs;
use super::open::{failure, path_bytes};
use super::{findings, limit, names};
use crate::cli::chart;
use crate::failure::{Failure, Outcome};
use pagefold_image::ReadAhead;
use pagefold_image::tar::{TarError, TarOptions, write};
use std::io::{BufWriter, ErrorKind, IsTerminal};
use std::path::PathBuf;

/// Writes the archive.
pub fn run(args: &ExtractArgs) -> Outcome<()> {
    if std::io::stdout().is_terminal() {
        return Err(Failure::usage("an archive is not for a terminal; send it to a file or a program"));
    }
    let image = args.image.open(ReadAhead::BestEffort)?;
    let max_bytes = limit::max_bytes(args.max_bytes.as_deref(), &image)?;
    let options = TarOptions { max_bytes, max_members: args.max_inodes };
    let paths: Vec<&PathBuf> = args.dir.iter().chain(&args.paths).collect();
    let paths: Vec<Vec<u8>> = paths.iter().map(|path| path_bytes(path).to_vec()).collect();
    let out = BufWriter::with_capacity(256 << 10, std::io::stdout().lock());
    let report = match write(&image, &paths, &options, out) {
        Ok(report) => report,
        Err(TarError::Write(e)) if e.kind() == ErrorKind::BrokenPipe => return Ok(()),
        Err(TarError::Write(e)) => return Err(Failure::io("writing to standard output", &e)),
        Err(e @ TarError::Limit { .. }) => return Err(Failure::failed(e.to_string())),
        Err(TarError::Image(e)) => {
            return Err(failure(&names::escaped(path_bytes(&args.image.image)), &e));
        }
    };
    findings::tell(&report.findings);
    match report.findings.errors() {
        0 => Ok(()),
        n => {
            let things = chart::counted(n, "thing is", "things are");
            Err(Failure::failed(format!("{things} wrong in the archive, or not in it")))
        }
    }
}
