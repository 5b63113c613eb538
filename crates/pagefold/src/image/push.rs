//! `image push`: publishes an image in a registry.

use super::open::path_failure;
use crate::cli::progress::Bar;
use crate::cli::{output, values};
use clap::{Args, ValueHint};
use pagefold_backing::{BackingError, ByteSource, FileBacking};
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::media::Location;
use pagefold_control::report::image::PushReport;
use pagefold_control::text::counted;
use pagefold_image::format::superblock::{MAGIC, OFFSET};
use pagefold_image::startup::StartList;
use pagefold_image::startup::list::LIST_BYTES_MAX;
use pagefold_image::verity::{Digest, Salt, VerifiedSource};
use pagefold_image::with_causes;
use pagefold_page::size::Human;
use pagefold_server::mount::media::{
    Destination, Publication, Pushed, TREE_SUFFIX, Upload, WholeHash, verity_exit,
};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Bytes that are read at a time.
const STEP_BYTES: usize = 1 << 20;

/// The arguments of `image push`.
#[derive(Debug, Args)]
pub struct PushArgs {
    /// The image, a file
    #[arg(value_name = "IMAGE", value_hint = ValueHint::FilePath)]
    pub image: PathBuf,
    /// The name in the registry: oci://registry/name:tag. An image that the tag named before stays there by its digest
    #[arg(value_name = "TARGET")]
    pub target: Location,
    /// The platform that the configuration names, such as linux/arm64 [default: this machine's]
    #[arg(long, value_name = "OS/ARCH")]
    pub platform: Option<String>,
    /// An annotation of the manifest, as in org.opencontainers.image.version=1.0. Can be repeated
    #[arg(long = "annotation", value_name = "NAME=TEXT")]
    pub annotations: Vec<String>,
    /// Publish the Merkle tree of this digest too. `image digest` prints the digest. Mounts then verify what they read
    #[arg(long, value_name = "sha256:HEX")]
    pub digest: Option<Digest>,
    /// The Merkle tree, for --digest [default: IMAGE.verity]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "digest")]
    pub merkle_tree: Option<PathBuf>,
    /// The salt of the digest, in hexadecimal
    #[arg(long, value_name = "HEX", default_value_t, hide_default_value = true, requires = "digest")]
    pub salt: Salt,
    /// Publish a list of a start too, as `image mount --record` writes it. It becomes an artifact that refers to the
    /// image
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub list: Option<PathBuf>,
    /// Longest time of a request; those that send contents have more, by their length
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub timeout: String,
    /// Print JSON, and no progress
    #[arg(long)]
    pub json: bool,
}

/// Publishes the image, and prints its name by the digest of its manifest.
pub fn run(args: &PushArgs) -> Result<()> {
    let timeout_s = values::seconds("--timeout", &args.timeout)?;
    if !(1..=3600).contains(&timeout_s) {
        return Err(CliError::usage("--timeout is between a second and an hour"));
    }
    let annotations = annotations(&args.annotations)?;
    // A wrong name shows before a long image is hashed.
    let destination = Destination::of(&args.target, args.platform.as_deref(), output::note)?;
    check_image(&args.image)?;
    let list = args.list.as_deref().map(list).transpose()?;
    let image = open(&args.image)?;
    let shows = !args.json;
    let (image, tree) = match args.digest {
        None => (upload(&args.image, image.0, &*image.1, shows)?, None),
        Some(digest) => {
            let beside = || PathBuf::from(format!("{}{TREE_SUFFIX}", args.image.display()));
            let path = args.merkle_tree.clone().unwrap_or_else(beside);
            let tree = open(&path)?;
            let verified = VerifiedSource::open(image.1, tree.1.clone(), digest, &args.salt);
            let verified = verified.map_err(|e| {
                let (image, tree) = (args.image.display(), path.display());
                CliError::new(verity_exit(&e), format!("'{image}' with the Merkle tree '{tree}': {e}"))
            })?;
            // Reading it compares the image with all of the tree.
            let image = upload(&args.image, image.0, &verified, shows)?;
            let tree = upload(&path, tree.0, &*tree.1, shows)?;
            (image, Some((digest.to_string(), args.salt.to_string(), tree)))
        }
    };
    let publication = Publication { image, tree, list, annotations };
    let Pushed { manifest_digest, sent, sent_bytes, present } =
        destination.push(publication, Duration::from_secs(timeout_s))?;
    let name = format!("{}@{manifest_digest}", without_tag(&args.target));
    if args.json {
        let (sent_blobs, present_blobs) = (sent, present);
        return output::json(&PushReport { name, manifest_digest, sent_blobs, sent_bytes, present_blobs });
    }
    if sent + present > 0 && !output::is_quiet() {
        let blobs = counted(sent, "blob", "blobs");
        output::note(&format!("{blobs} sent, {}; {present} were there already", Human(sent_bytes)));
    }
    output::line(&name)
}

fn annotations(texts: &[String]) -> Result<BTreeMap<String, String>> {
    let pairs = texts.iter().map(|text| match text.split_once('=') {
        Some((name, text)) if !name.is_empty() => Ok((name.to_string(), text.to_string())),
        _ => Err(CliError::usage(format!("--annotation: '{text}' is not NAME=TEXT"))),
    });
    pairs.collect()
}

fn reading(path: &Path, e: &std::io::Error) -> CliError {
    path_failure(format!("reading '{}'", path.display()), e)
}

/// Refuses a file that does not begin as an image: registries would serve it as one.
fn check_image(path: &Path) -> Result<()> {
    let mut magic = [0; 4];
    match File::open(path).and_then(|file| file.read_exact_at(&mut magic, OFFSET)) {
        Ok(()) if u32::from_le_bytes(magic) == MAGIC => Ok(()),
        Err(e) if e.kind() != ErrorKind::UnexpectedEof => Err(reading(path, &e)),
        _ => Err(CliError::usage(format!("'{}' is no EROFS image", path.display()))),
    }
}

/// Opens a file, to send it and to read it.
fn open(path: &Path) -> Result<(File, Arc<dyn ByteSource>)> {
    let failed = |e: std::io::Error| reading(path, &e);
    let file = File::open(path).map_err(failed)?;
    let source = FileBacking::for_reading(file.try_clone().map_err(failed)?);
    let source = source.map_err(|e| reading_source(path, &e))?;
    Ok((file, Arc::new(source)))
}

fn reading_source(path: &Path, e: &BackingError) -> CliError {
    let exit = if e.is_mismatch() { Exit::Damaged } else { Exit::Failed };
    CliError::new(exit, format!("reading '{}': {}", path.display(), with_causes(e)))
}

/// Opens a list. Refuses one of which a mount would leave something out.
fn list(path: &Path) -> Result<Upload> {
    let (file, source) = open(path)?;
    let mut text = vec![0; source.len_bytes().min(LIST_BYTES_MAX as u64 + 1) as usize];
    source.read_at(0, &mut text).map_err(|e| reading_source(path, &e))?;
    let StartList { entries, malformed, is_cut } = StartList::parse(&text);
    let shown = path.display();
    if entries.is_empty() || malformed > 0 {
        let lines = counted(malformed, "malformed line", "malformed lines");
        let what = format!(
            "'{shown}' is no list of a start: it has {} and {lines}; 'pagefold image mount --record' writes one",
            counted(entries.len() as u64, "entry", "entries")
        );
        return Err(CliError::usage(what));
    }
    if is_cut {
        return Err(CliError::usage(format!("'{shown}' is longer than lists of a start may be; shorten it")));
    }
    // It is short.
    upload(path, file, &*source, false)
}

/// Hashes what is read of a file.
fn upload(path: &Path, file: File, source: &dyn ByteSource, shows_progress: bool) -> Result<Upload> {
    let total = source.len_bytes();
    let (mut hash, mut buffer, mut bar) =
        (WholeHash::default(), vec![0; STEP_BYTES], Bar::new(shows_progress));
    let mut len_bytes = 0;
    while len_bytes < total {
        let step = (total - len_bytes).min(STEP_BYTES as u64) as usize;
        let piece = &mut buffer[..step];
        source.read_at(len_bytes, piece).map_err(|e| reading_source(path, &e))?;
        hash.update(piece);
        len_bytes += step as u64;
        bar.show_bytes(len_bytes, total, format_args!("of {} hashed", Human(total)));
    }
    Ok(Upload { file, len_bytes, digest: hash.finish() })
}

fn without_tag(target: &Location) -> String {
    let text = target.to_string();
    let name_at = text.rfind('/').unwrap_or(0);
    let end = text[name_at..].find(':').map_or(text.len(), |colon| name_at + colon);
    text[..end].to_string()
}
