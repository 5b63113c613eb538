//! `image cat`.

use super::limit;
use super::open::{ImageArgs, failure, path_bytes};
use crate::cli::output;
use crate::failure::{Failure, Outcome};
use clap::Args;
use pagefold_image::read::FileKind;
use pagefold_image::with_causes;
use pagefold_image::{Image, Node, ReadAhead};
use pagefold_page::size::Human;
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
    /// Most bytes to print [default: into a file nine tenths of what is free there; else 3072 times the image, and
    /// 1 GiB at least]
    #[arg(long, value_name = "SIZE")]
    pub max_bytes: Option<String>,
}

/// How much may still be printed.
struct Limit {
    max_bytes: u64,
    left_bytes: u64,
}

/// Prints the files one after the other. One that fails does not keep those behind it back.
pub fn run(args: &CatArgs) -> Outcome<()> {
    let image = args.image.open(ReadAhead::BestEffort)?;
    let max_bytes = limit::max_bytes(args.max_bytes.as_deref(), &image)?;
    let mut limit = Limit { max_bytes, left_bytes: max_bytes };
    let mut first_failure = None;
    for path in &args.paths {
        match print(&image, path, &mut limit) {
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
fn print(image: &Image, path: &Path, limit: &mut Limit) -> Outcome<bool> {
    let shown = super::names::escaped(path_bytes(path));
    let node = image.resolve(path_bytes(path)).map_err(|e| failure(&shown, &e))?;
    if node.kind() != FileKind::Regular {
        return Err(Failure::failed(format!("{shown}: it is {}, not a regular file", node.kind().name())));
    }
    copy(&node, &mut std::io::stdout().lock(), &shown, limit)
}

fn copy(node: &Node, out: &mut impl Write, shown: &str, limit: &mut Limit) -> Outcome<bool> {
    let len = usize::try_from(node.len_bytes()).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
    let mut buf = vec![0; len];
    let mut at = 0;
    loop {
        let read = node.read_at(at, &mut buf);
        let n = read.map_err(|e| Failure::failed(format!("{shown}: byte {at}: {}", with_causes(&e))))?;
        let allowed = limit.left_bytes.min(n as u64) as usize;
        limit.left_bytes -= allowed as u64;
        let written = out.write_all(&buf[..allowed]).and_then(|()| out.flush());
        match written {
            Err(e) if e.kind() == ErrorKind::BrokenPipe => return Ok(false),
            Err(e) => return Err(Failure::io("writing to standard output", &e)),
            Ok(()) if allowed < n => {
                let max = Human(limit.max_bytes);
                let what = format!("{shown}: the output ends at {max}, the limit; raise it with --max-bytes");
                return Err(Failure::failed(what));
            }
            Ok(()) if n < buf.len() || n == 0 => return Ok(true),
            Ok(()) => at += n as u64,
        }
    }
}
