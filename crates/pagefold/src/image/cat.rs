//! `image cat`.

use super::open::{ImageArgs, failure, path_bytes};
use super::{limit, names};
use crate::cli::each::each;
use clap::Args;
use pagefold_control::error::{CliError, Result};
use pagefold_image::read::FileKind;
use pagefold_image::{Image, Node, ReadAhead};
use pagefold_page::size::Human;
use pagefold_server::mount::image_failure;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Size of the buffer, bytes.
const PIECE_BYTES: usize = 1 << 20;

/// The arguments of `image cat`.
#[derive(Debug, Args)]
pub struct CatArgs {
    #[command(flatten)]
    pub image: ImageArgs,
    /// Files in the image
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<PathBuf>,
    /// Most bytes to print [default: to a file: nine tenths of the free space; otherwise: 3072 times the size of the
    /// image, but at least 1 GiB]
    #[arg(long, value_name = "SIZE")]
    pub max_bytes: Option<String>,
}

/// The limit on printed bytes.
struct Limit {
    max_bytes: u64,
    left_bytes: u64,
}

/// Prints the files in order. An error of one does not stop the others.
pub fn run(args: &CatArgs) -> Result<()> {
    let image = args.image.open(ReadAhead::BestEffort)?;
    let max_bytes = limit::max_bytes(args.max_bytes.as_deref(), &image, std::io::stdout())?;
    let mut limit = Limit { max_bytes, left_bytes: max_bytes };
    let mut is_closed = false;
    each(&args.paths, "files were not printed completely", |path| {
        if !is_closed {
            is_closed = !print(&image, path, &mut limit)?;
        }
        Ok(())
    })
}

/// Prints a file, whose path is for messages.
pub fn print_node(image: &Image, node: &Node, path: &[u8]) -> Result<()> {
    let max_bytes = limit::max_bytes(None, image, std::io::stdout())?;
    print_regular(node, &names::escaped(path), &mut Limit { max_bytes, left_bytes: max_bytes }).map(|_| ())
}

/// Prints one file. Returns false if the reader has closed the pipe.
fn print(image: &Image, path: &Path, limit: &mut Limit) -> Result<bool> {
    let shown = names::escaped(path_bytes(path));
    let node = image.resolve(path_bytes(path)).map_err(|e| failure(path_bytes(path), &e))?;
    print_regular(&node, &shown, limit)
}

fn print_regular(node: &Node, shown: &str, limit: &mut Limit) -> Result<bool> {
    if node.kind() != FileKind::Regular {
        return Err(CliError::failed(format!("{shown}: it is {}, not a regular file", node.kind().name())));
    }
    copy(node, &mut std::io::stdout().lock(), shown, limit)
}

fn copy(node: &Node, out: &mut impl Write, shown: &str, limit: &mut Limit) -> Result<bool> {
    let len = usize::try_from(node.len_bytes()).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
    let mut buf = vec![0; len];
    let mut at = 0;
    loop {
        let mut failure = None;
        let read = node.read_readable(at, &mut buf, &mut |bytes, e| {
            failure.get_or_insert_with(|| (bytes.start, e.clone()));
        });
        // The part before a fault is printed, and nothing after it.
        let n = failure.as_ref().map_or(read, |(start, _)| (start - at) as usize);
        let allowed = limit.left_bytes.min(n as u64) as usize;
        limit.left_bytes -= allowed as u64;
        let written = out.write_all(&buf[..allowed]).and_then(|()| out.flush());
        match written {
            Err(e) if e.kind() == ErrorKind::BrokenPipe => return Ok(false),
            Err(e) => return Err(CliError::io("writing to standard output", &e)),
            Ok(()) if allowed < n => {
                let max = Human(limit.max_bytes);
                let what = format!("{shown}: the output ends at {max}, the limit; raise it with --max-bytes");
                return Err(CliError::failed(what));
            }
            Ok(()) if let Some((start, e)) = &failure => {
                return Err(image_failure(format_args!("{shown}: byte {start}"), e));
            }
            Ok(()) if n < buf.len() || n == 0 => return Ok(true),
            Ok(()) => at += n as u64,
        }
    }
}
