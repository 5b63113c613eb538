//! `image cat`.

use super::open::{ImageArgs, failure, path_bytes};
use crate::cli::output;
use crate::failure::{Failure, Outcome};
use clap::Args;
use pagefold_image::read::FileKind;
use pagefold_image::with_causes;
use pagefold_image::{Image, Node, ReadAhead};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Bytes written at a time.
const PIECE_BYTES: usize = 1 << 20;

/// `image cat`.
#[derive(Debug, Args)]
pub struct CatArgs {
    #[command(flatten)]
    pub image: ImageArgs,
    /// Files in the image
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<PathBuf>,
}

/// Prints the files one after the other. One that fails does not keep those behind it back.
pub fn run(args: &CatArgs) -> Outcome<()> {
    let image = args.image.open(ReadAhead::BestEffort)?;
    let mut first_failure = None;
    for path in &args.paths {
        match print(&image, path) {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(failure) => {
                if let Some(Failure { message, .. }) = first_failure.replace(failure) {
                    output::error(&message);
                }
            }
        }
    }
    first_failure.map_or(Ok(()), Err)
}

/// False if nobody reads on.
fn print(image: &Image, path: &Path) -> Outcome<bool> {
    let shown = super::names::escaped(path_bytes(path));
    let node = image.resolve(path_bytes(path)).map_err(|e| failure(&shown, &e))?;
    if node.kind() != FileKind::Regular {
        return Err(Failure::failed(format!("{shown}: it is {}, not a regular file", node.kind().name())));
    }
    copy(&node, &mut std::io::stdout().lock(), &shown)
}

fn copy(node: &Node, out: &mut impl Write, shown: &str) -> Outcome<bool> {
    let len = usize::try_from(node.len_bytes()).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
    let mut buf = vec![0; len];
    let mut at = 0;
    loop {
        let read = node.read_at(at, &mut buf);
        let n = read.map_err(|e| Failure::failed(format!("{shown}: byte {at}: {}", with_causes(&e))))?;
        let written = out.write_all(&buf[..n]).and_then(|()| out.flush());
        match written {
            Err(e) if e.kind() == ErrorKind::BrokenPipe => return Ok(false),
            Err(e) => return Err(Failure::io("writing to standard output", &e)),
            Ok(()) if n < buf.len() || n == 0 => return Ok(true),
            Ok(()) => at += n as u64,
        }
    }
}
