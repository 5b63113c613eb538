//! `image copy`: copies an image from a server into a file, verified as a whole.

use super::open::{OffsetArgs, RemoteArgs, Then, VerityArgs, media_config, open_media};
use super::target::{Output, Target};
use crate::cli::output;
use crate::cli::progress::Bar;
use clap::{Args, ValueHint};
use pagefold_backing::ByteSource;
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::media::Location;
use pagefold_control::report::image::CopyReport;
use pagefold_image::with_causes;
use pagefold_page::size::Human;
use pagefold_server::mount::media::{DEFAULT_MEMORY_BYTES, Sources, WholeHash};
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// Bytes that are read at a time.
const STEP_BYTES: usize = 1 << 20;

/// The arguments of `image copy`.
#[derive(Debug, Args)]
pub struct CopyArgs {
    /// The image: a URL, a file, a block device, or an object of a bucket or registry. As http:// or https://,
    /// s3://bucket/key, az://container/blob, gs://bucket/object, or oci://registry/name:tag
    #[arg(value_name = "IMAGE", value_hint = ValueHint::AnyPath)]
    pub image: Location,
    #[command(flatten)]
    pub offset: OffsetArgs,
    /// The file to write
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    #[command(flatten)]
    pub verity: VerityArgs,
    #[command(flatten)]
    pub remote: RemoteArgs,
    /// Print JSON, and no progress
    #[arg(long)]
    pub json: bool,
}

/// Copies the image, and prints its length and SHA-256.
pub fn run(args: &CopyArgs) -> Result<()> {
    if args.file == Path::new("-") {
        return Err(CliError::usage(
            "the contents are verified when all of them are there, so they do not go to standard output; name a file",
        ));
    }
    // The file stands first: it blocks signals, which threads would receive.
    let target = Target::open_image(&args.file)?;
    let mut config = args.offset.with(media_config(&args.image, &[], &args.verity, &args.remote)?)?;
    config.remote.takes_whole = true;
    let opened = open_media(&config, DEFAULT_MEMORY_BYTES, Then::Copies, target.signals());
    let Sources { image, blobs, .. } = opened.map_err(|e| target.unless_interrupted(e))?;
    let hash = copy(args, &*image, &target)?;
    let (len_bytes, blob) = (image.len_bytes(), blobs.first());
    let sha256 = match blob {
        // All bytes are in the hash: nothing is read again.
        Some(blob) => blob.verify(hash, &mut |_| ControlFlow::Continue(()))?.unwrap_or_default(),
        None => hash.finish(),
    };
    target.complete()?;
    let is_verified = !args.verity.digest.is_empty() || blob.is_some_and(|blob| blob.is_verified);
    let checks = [(blob.is_some(), "manifest"), (is_verified, "merkle_tree")];
    let verified_by: Vec<String> =
        checks.into_iter().filter(|(was, _)| *was).map(|(_, name)| name.into()).collect();
    if args.json {
        return output::json(&CopyReport { image_bytes: len_bytes, sha256, verified_by });
    }
    output::line(&format!("{}, {sha256}", Human(len_bytes)))?;
    if verified_by.is_empty() && matches!(args.image, Location::Url(_)) {
        output::note(&format!("nothing verifies the contents of '{}'; --digest does", args.image));
    }
    Ok(())
}

/// Writes all of the image in order, and returns the hash of it.
fn copy(args: &CopyArgs, image: &dyn ByteSource, target: &Target) -> Result<WholeHash> {
    let total = image.len_bytes();
    let (mut hash, mut done) = (WholeHash::default(), 0);
    let mut buffer = vec![0; STEP_BYTES];
    let mut bar = Bar::new(!args.json);
    while done < total {
        let step = (total - done).min(STEP_BYTES as u64) as usize;
        let piece = &mut buffer[..step];
        image.read_at(done, piece).map_err(|e| match target.poll_interrupt() {
            // The user may have waited for a server that is away, and given up.
            true => target.interrupted(),
            false => {
                let exit = if e.is_mismatch() { Exit::Damaged } else { Exit::Failed };
                CliError::new(exit, format!("'{}': {}", args.image, with_causes(&e)))
            }
        })?;
        hash.update(piece);
        Output(target).write_all(piece).map_err(|e| target.failed(&e))?;
        done += step as u64;
        bar.show_bytes(done, total, format_args!("of {}", Human(total)));
    }
    Ok(hash)
}
