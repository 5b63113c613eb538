//! Opens the media of images, for the server of a mount and for commands alike.
//!
//! This is the one place that makes sources of paths and verifies them. It has two steps, because a server opens files
//! with the user's rights and everything else without capabilities: [`Media::open`] opens the files, and
//! [`Media::verified`] reads the beginnings of Merkle trees and compares them with the digests.

use pagefold_backing::{ByteSource, FileBacking};
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::media::{MediaConfig, VerityConfig};
use pagefold_image::verity::{Digest, Salt, VerifiedSource, VerityError};
use pagefold_image::with_causes;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The description, in messages, of a file that cannot hold an image.
pub const NO_MEDIUM: &str = "neither a file nor a block device";

/// The end of the name of a Merkle tree beside its image.
pub const TREE_SUFFIX: &str = ".verity";

/// The open media of an image.
pub struct Media {
    /// The image, then its devices.
    media: Vec<Medium>,
    salt: Salt,
}

struct Medium {
    path: PathBuf,
    source: Arc<dyn ByteSource>,
    verity: Option<Verity>,
}

struct Verity {
    digest: Digest,
    tree_path: PathBuf,
    tree: Arc<dyn ByteSource>,
}

/// The sources of an image.
pub struct Sources {
    /// The image.
    pub image: Arc<dyn ByteSource>,
    /// Its further devices.
    pub devices: Vec<Arc<dyn ByteSource>>,
}

impl Media {
    /// Opens the image, its devices, and their Merkle trees.
    pub fn open(config: &MediaConfig) -> Result<Self> {
        let verity = config.verity.as_ref();
        if let Some(verity) = verity {
            check_counts(verity, 1 + config.devices.len())?;
        }
        let salt = match verity {
            Some(verity) => verity.salt.parse().map_err(|e| CliError::usage(format!("--salt: {e}")))?,
            None => Salt::default(),
        };
        let open = |(n, path): (usize, &PathBuf)| {
            let source = open_medium(path, &format!("opening '{}'", path.display()))?;
            let verity = verity.map(|verity| open_tree(verity, n, path)).transpose()?;
            Ok(Medium { path: path.clone(), source, verity })
        };
        Ok(Media { media: config.all().enumerate().map(open).collect::<Result<_>>()?, salt })
    }

    /// Returns the sources, verified if there are digests. Fails if a tree does not belong to its digest.
    pub fn verified(self) -> Result<Sources> {
        let Media { media, salt } = self;
        let mut sources =
            media.into_iter().map(|medium| medium.verified(&salt)).collect::<Result<Vec<_>>>()?;
        let image = sources.remove(0);
        Ok(Sources { image, devices: sources })
    }
}

impl Medium {
    fn verified(self, salt: &Salt) -> Result<Arc<dyn ByteSource>> {
        let Some(Verity { digest, tree_path, tree }) = self.verity else { return Ok(self.source) };
        match VerifiedSource::open(self.source, tree, digest, salt) {
            Ok(source) => Ok(Arc::new(source)),
            Err(e) => {
                let what =
                    format!("'{}' with the Merkle tree '{}': {e}", self.path.display(), tree_path.display());
                Err(CliError::new(verity_exit(&e), what))
            }
        }
    }
}

/// The exit code for a failure of a digest.
pub fn verity_exit(error: &VerityError) -> Exit {
    if error.is_damage() { Exit::Damaged } else { Exit::Failed }
}

/// The path of the Merkle tree beside an image.
pub fn tree_beside(image: &Path) -> PathBuf {
    let mut name = image.as_os_str().to_os_string();
    name.push(TREE_SUFFIX);
    name.into()
}

fn check_counts(verity: &VerityConfig, media: usize) -> Result<()> {
    let (digests, trees) = (verity.digests.len(), verity.trees.len());
    match () {
        () if digests != media => Err(CliError::usage(format!(
            "{digests} digests for an image and {} devices: --digest names one for each, or none at all",
            media - 1
        ))),
        () if trees > media => {
            Err(CliError::usage(format!("{trees} Merkle trees for an image and {} devices", media - 1)))
        }
        () => Ok(()),
    }
}

/// Opens the tree of medium `n`, whose path is `path`.
fn open_tree(verity: &VerityConfig, n: usize, path: &Path) -> Result<Verity> {
    let digest = verity.digests[n].parse().map_err(|e| CliError::usage(format!("--digest: {e}")))?;
    let tree_path = verity.trees.get(n).cloned().unwrap_or_else(|| tree_beside(path));
    let tree = open_medium(&tree_path, &format!("opening the Merkle tree '{}'", tree_path.display()));
    let tree = tree.map_err(|e| match e.exit {
        Exit::NotFound => CliError::new(e.exit, format!("{e}; 'pagefold image digest' makes it")),
        _ => e,
    })?;
    Ok(Verity { digest, tree_path, tree })
}

/// Opens a file or block device for reading. Errors begin with `what`.
pub fn open_medium(path: &Path, what: &(impl Display + ?Sized)) -> Result<Arc<dyn ByteSource>> {
    let file = pagefold_backing::open_for_reading(path).map_err(|e| {
        let exit = match e.errno {
            libc::ENOENT | libc::ENOTDIR => Exit::NotFound,
            libc::EACCES | libc::EPERM => Exit::Unavailable,
            libc::ENOTBLK => return CliError::usage(format!("{what}: it is {NO_MEDIUM}")),
            _ => Exit::Failed,
        };
        CliError::new(exit, format!("{what}: {}", std::io::Error::from_raw_os_error(e.errno)))
    })?;
    let backing = FileBacking::for_reading(file);
    Ok(Arc::new(backing.map_err(|e| CliError::failed(format!("{what}: {}", with_causes(&e))))?))
}
