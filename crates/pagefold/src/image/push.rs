//! `image push`: publishes an image in a registry.

use super::open::path_failure;
use crate::cli::progress::Bar;
use crate::cli::{output, values};
use clap::{Args, ValueHint};
use pagefold_control::error::{CliError, Result};
use pagefold_control::media::Location;
use pagefold_control::text::counted;
use pagefold_image::format::superblock::{MAGIC, OFFSET};
use pagefold_image::verity::{Digest, Salt};
use pagefold_page::size::Human;
use pagefold_server::mount::media::{Publication, Pushed, TREE_SUFFIX, Upload, WholeHash, push};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
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
    /// Publish a list of a start too, as `image mount --record` writes it: an artifact that refers to the image
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub list: Option<PathBuf>,
    /// Longest time of a request; those that send contents have more, by their length
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub timeout: String,
}

/// Publishes the image, and prints its name by the digest of its manifest.
pub fn run(args: &PushArgs) -> Result<()> {
    let timeout_s = values::seconds("--timeout", &args.timeout)?;
    if !(1..=3600).contains(&timeout_s) {
        return Err(CliError::usage("--timeout is between a second and an hour"));
    }
    let annotations = annotations(&args.annotations)?;
    check_image(&args.image)?;
    let tree = match args.digest {
        None => None,
        Some(digest) => {
            let beside = || PathBuf::from(format!("{}{TREE_SUFFIX}", args.image.display()));
            let tree = upload(&args.merkle_tree.clone().unwrap_or_else(beside))?;
            Some((digest.to_string(), args.salt.to_string(), tree))
        }
    };
    let list = args.list.as_deref().map(upload).transpose()?;
    let (image, platform) = (upload(&args.image)?, args.platform.clone());
    let publication = Publication { image, tree, list, platform, annotations };
    let Pushed { manifest_digest, sent, sent_bytes, present } =
        push(&args.target, publication, Duration::from_secs(timeout_s), output::note)?;
    if sent + present > 0 && !output::is_quiet() {
        let blobs = counted(sent, "blob", "blobs");
        output::note(&format!("{blobs} sent, {}; {present} were there already", Human(sent_bytes)));
    }
    output::line(&format!("{}@{manifest_digest}", without_tag(&args.target)))
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

/// Opens a file, and hashes it.
fn upload(path: &Path) -> Result<Upload> {
    let failed = |e: std::io::Error| reading(path, &e);
    let file = File::open(path).map_err(failed)?;
    let total = file.metadata().map_err(failed)?.len();
    let (mut hash, mut buffer, mut bar) = (WholeHash::default(), vec![0; STEP_BYTES], Bar::new(true));
    let mut len_bytes = 0;
    loop {
        let len = match (&file).read(&mut buffer) {
            Ok(0) => break,
            Ok(len) => len,
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) => return Err(failed(e)),
        };
        hash.update(&buffer[..len]);
        len_bytes += len as u64;
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
