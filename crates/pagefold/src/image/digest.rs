//! `image digest`: computes the fs-verity digest of an image, and writes its Merkle tree.

use super::open::{OffsetArgs, RemoteArgs, Then, ThreadsArgs, open_media};
use super::target::{Output, Target};
use crate::cli::output;
use crate::cli::progress::Bar;
use clap::{Args, ValueHint};
use pagefold_backing::ByteSource;
use pagefold_control::error::{CliError, Result};
use pagefold_control::media::{Location, MediaConfig};
use pagefold_control::report::image::DigestReport;
use pagefold_image::verity::{Descriptor, Salt, VerityError, measure};
use pagefold_page::size::Human;
use pagefold_server::mount::media::{DEFAULT_MEMORY_BYTES, HashedSource, Sources, TREE_SUFFIX, verity_exit};
use std::io::Write;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How many times as long as its tree the data is, nearly.
const DATA_PER_TREE: u64 = 128;

/// The arguments of `image digest`.
#[derive(Debug, Args)]
pub struct DigestArgs {
    /// The image: a file, a block device, or a URL of http:// or https://
    #[arg(value_name = "IMAGE", value_hint = ValueHint::AnyPath)]
    pub image: Location,
    #[command(flatten)]
    pub offset: OffsetArgs,
    /// File to write the Merkle tree to [default: IMAGE.verity; none for a URL]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub out_merkle_tree: Option<PathBuf>,
    /// Write no Merkle tree
    #[arg(long, conflicts_with = "out_merkle_tree")]
    pub no_merkle_tree: bool,
    /// File to write fs-verity's descriptor to, whose SHA-256 is the digest
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub out_descriptor: Option<PathBuf>,
    /// Salt of all hashes: at most 32 bytes in hexadecimal
    #[arg(long, value_name = "HEX", default_value_t, hide_default_value = true)]
    pub salt: Salt,
    #[command(flatten)]
    pub remote: RemoteArgs,
    #[command(flatten)]
    pub threads: ThreadsArgs,
    /// Print JSON, and no progress
    #[arg(long)]
    pub json: bool,
}

/// Computes the digest, writes the files, and prints the digest.
pub fn run(args: &DigestArgs) -> Result<()> {
    let tree = match (&args.out_merkle_tree, args.no_merkle_tree) {
        (Some(path), _) => Some(path.clone()),
        (None, false) => match args.image.with_suffix(TREE_SUFFIX) {
            Location::File(path) => Some(path),
            Location::Url(_) => None,
        },
        (None, true) => None,
    };
    let (descriptor, tree_bytes) = match &tree {
        Some(path) => write_tree(args, path)?,
        None => (compute(args, None)?, None),
    };
    if let Some(path) = &args.out_descriptor {
        let target = Target::open(path)?;
        Output(&target).write_all(&descriptor.to_bytes()).map_err(|e| target.failed(&e))?;
        target.complete()?;
    }
    match args.json {
        false => output::line(&descriptor.digest().to_string()),
        true => output::json(&DigestReport {
            digest: descriptor.digest().to_string(),
            image_bytes: descriptor.data_bytes,
            merkle_tree_bytes: tree_bytes,
            salt: descriptor.salt.to_string(),
        }),
    }
}

/// Computes the digest, and writes the tree to `path`. Returns the length of the tree too.
fn write_tree(args: &DigestArgs, path: &Path) -> Result<(Descriptor, Option<u64>)> {
    // The file stands first: it blocks signals, which threads would receive.
    let target = Target::open_image(path)?;
    let descriptor = compute(args, Some(&target))?;
    let len_bytes = target.file().metadata().map_err(|e| target.failed(&e))?.len();
    target.complete()?;
    Ok((descriptor, Some(len_bytes)))
}

/// Computes the digest; the blocks of the tree go to `target`.
fn compute(args: &DigestArgs, target: Option<&Target>) -> Result<Descriptor> {
    let mut remote = args.remote.config(std::iter::once(&args.image))?;
    remote.takes_whole = true;
    let (image, devices) = (args.image.clone(), Vec::new());
    let config = args.offset.with(MediaConfig { image, offset_bytes: 0, devices, verity: None, remote })?;
    let signals = target.and_then(Target::signals);
    let opened = open_media(&config, DEFAULT_MEMORY_BYTES, Then::Copies, signals);
    let Sources { image: source, blobs, .. } = opened.map_err(|e| or_interrupted(target, e))?;
    let blob = blobs.into_iter().find(|blob| !blob.is_verified);
    if config.offset_bytes > 0 && blob.is_some() {
        // The bytes behind the offset are not all of those that the digest in the registry is of.
        return Err(CliError::usage(format!("--offset is not for '{}', whose name is a digest", args.image)));
    }
    let hashed = blob.as_ref().map(|blob| Arc::new(HashedSource::new(blob.source.clone())));
    // One thread reads in order, so that the digest in the registry is compared without a second pass.
    let (source, threads) = match &hashed {
        Some(hashed) => (hashed.clone() as Arc<dyn ByteSource>, 1),
        None => (source, args.threads.count()),
    };
    let total = source.len_bytes();
    let file = target.map(Target::file);
    let write = |offset: u64, node: &[u8; 4096]| file.map_or(Ok(()), |file| file.write_all_at(node, offset));
    let mut bar = Bar::new(!args.json);
    let measured = measure(&*source, &args.salt, threads, &write, &mut |done| {
        bar.show_bytes(done, total, format_args!("to {}", Human(done / DATA_PER_TREE)));
        target.map_or(ControlFlow::Continue(()), Target::go_on)
    });
    drop(bar);
    let descriptor = measured.map_err(|e| match (e, target) {
        (VerityError::Cancelled, Some(target)) => target.interrupted(),
        (e, target) => {
            or_interrupted(target, CliError::new(verity_exit(&e), format!("'{}': {e}", args.image)))
        }
    })?;
    if let Some((blob, hashed)) = blob.zip(hashed) {
        blob.verify(hashed.take(), &mut |_| ControlFlow::Continue(()))?;
    }
    Ok(descriptor)
}

/// The error of a failure, which is that of a signal if one has ended the writing.
fn or_interrupted(target: Option<&Target>, e: CliError) -> CliError {
    match target {
        Some(target) => target.unless_interrupted(e),
        None => e,
    }
}
