//! Opens the media of images, for the server of a mount and for commands alike.
//!
//! This is the one place that makes sources of what users name, and that verifies them. It has two steps, because a process
//! opens files with the user's rights and does everything else when it is confined: [`Media::open`] opens the files, and
//! [`Media::connect`] lets the fetcher ask servers, reads the beginnings of Merkle trees and compares them with the digests.

mod errors;
mod offset;
mod push;
pub(crate) mod stores;
mod whole;

pub use errors::verity_exit;
pub use offset::{Beginning, find_in_file};
pub use pagefold_remote::whole::{HashedSource, WholeHash};
pub use push::{Destination, Publication, Pushed, Upload};
pub use stores::{is_in_registry, store_settings};
pub use whole::Blob;

use crate::fetcher::{FetchedSource, Fetcher, ObjectId};
pub(crate) use errors::opening;
use errors::with_advice;
use pagefold_backing::{ByteSource, FileBacking};
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::media::{Location, MediaConfig, REGISTRY_TREE_SUFFIX, SCHEMES, VerityConfig};
use pagefold_image::verity::{Digest, Salt, VerifiedSource};
use pagefold_image::with_causes;
use pagefold_remote::stores::Store;
use pagefold_remote::whole::NamedObject as _;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The description, in messages, of a file that cannot hold an image.
pub const NO_MEDIUM: &str = "neither a file nor a block device";

/// The end of the name of a Merkle tree beside its image.
pub const TREE_SUFFIX: &str = ".verity";

/// The memory of commands without `--memory`.
pub const DEFAULT_MEMORY_BYTES: u64 = 64 << 20;

/// The media of an image. Files are open.
pub struct Media {
    /// The image, then its devices.
    media: Vec<Medium>,
    salt: Salt,
    /// The byte of the first medium at which the image begins.
    offset_bytes: u64,
}

/// Files that are open already, by their paths.
#[derive(Default)]
pub struct OpenFiles(BTreeMap<PathBuf, File>);

impl OpenFiles {
    /// The paths, in order.
    pub fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        self.0.keys()
    }

    /// Another descriptor of the file with this path, which `open` opens if it is not here yet.
    pub fn open<E: From<std::io::Error>>(
        &mut self,
        path: &Path,
        open: impl FnOnce(&Path) -> std::result::Result<File, E>,
    ) -> std::result::Result<File, E> {
        if let Some(file) = self.0.get(path) {
            return Ok(file.try_clone()?);
        }
        let file = open(path)?;
        self.0.insert(path.into(), file.try_clone()?);
        Ok(file)
    }

    /// The descriptors, in the order of the paths.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.values().map(AsFd::as_fd)
    }
}

impl FromIterator<(PathBuf, File)> for OpenFiles {
    fn from_iter<I: IntoIterator<Item = (PathBuf, File)>>(files: I) -> Self {
        OpenFiles(files.into_iter().collect())
    }
}

struct Medium {
    source: Opened,
    verity: Option<Verity>,
}

/// A location, and the source if it is a file.
struct Opened {
    location: Location,
    file: Option<Arc<dyn ByteSource>>,
}

struct Verity {
    digest: Digest,
    tree: Opened,
}

/// The sources of an image.
pub struct Sources {
    /// The image.
    pub image: Arc<dyn ByteSource>,
    /// The file or object that the image is in.
    pub beginning: Beginning,
    /// Its further devices.
    pub devices: Vec<Arc<dyn ByteSource>>,
    /// Those of the sources, and of the Merkle trees, that are on servers: for their versions.
    pub remote: Vec<Arc<FetchedSource>>,
    /// The image and those of the devices whose names are digests of all their bytes, in that order.
    pub blobs: Vec<Blob>,
    /// Notes on them for users.
    pub notes: Vec<String>,
    /// The part of the memory that is left for reading.
    pub memory_bytes: u64,
}

impl Media {
    /// Opens the image, its devices, and their Merkle trees, as far as they are files.
    pub fn open(config: &MediaConfig) -> Result<Self> {
        Self::open_with(config, &mut OpenFiles::default())
    }

    /// As [`Media::open`], with `files`: uses those that are there, and adds the others.
    pub fn open_with(config: &MediaConfig, files: &mut OpenFiles) -> Result<Self> {
        let verity = config.verity.as_ref();
        if let Some(verity) = verity {
            check_counts(verity, 1 + config.devices.len())?;
        }
        let salt = match verity {
            Some(verity) => verity.salt.parse().map_err(|e| CliError::usage(format!("--salt: {e}")))?,
            None => Salt::default(),
        };
        let open = |(n, location): (usize, &Location)| {
            let source = Opened::open(location, files)?;
            let verity = verity.map(|verity| open_tree(verity, n, location, files)).transpose()?;
            Ok(Medium { source, verity })
        };
        let media = config.all().enumerate().map(open).collect::<Result<Vec<_>>>()?;
        Ok(Media { media, salt, offset_bytes: config.offset_bytes })
    }

    /// Lets the fetcher of the configuration ask the servers for what is on them, and returns the sources, verified if there
    /// are digests. Fails if a tree does not belong to its digest. A part of `memory_bytes` is for ranges that servers sent.
    pub fn connect(self, memory_bytes: u64, fetcher: Option<&Arc<Fetcher>>) -> Result<Sources> {
        let Media { media, salt, offset_bytes } = self;
        let mut connector = Connector {
            fetcher,
            offset_bytes,
            beginning: None,
            remote: Vec::new(),
            blobs: Vec::new(),
            notes: Vec::new(),
        };
        let sources =
            media.into_iter().enumerate().map(|(number, medium)| connector.connect(number, medium, &salt));
        let mut sources = sources.collect::<Result<Vec<_>>>()?;
        let image = sources.remove(0);
        let Connector { beginning, remote, blobs, notes, .. } = connector;
        let beginning = beginning.ok_or_else(|| CliError::failed("no image was opened"))?;
        let memory_bytes = memory_bytes.saturating_sub(fetcher.map_or(0, |fetcher| fetcher.memory_bytes()));
        Ok(Sources { image, beginning, devices: sources, remote, blobs, notes, memory_bytes })
    }
}

impl Opened {
    fn open(location: &Location, files: &mut OpenFiles) -> Result<Self> {
        let file = match location {
            Location::File(path) => Some(open_file(path, files, &format!("opening '{location}'"))?),
            Location::Url(_) => None,
        };
        Ok(Opened { location: location.clone(), file })
    }
}

/// Why a verified source was not opened.
struct NotOpened {
    error: CliError,
    /// Whether its bytes or lengths are wrong.
    is_damage: bool,
}

impl From<CliError> for NotOpened {
    fn from(error: CliError) -> Self {
        NotOpened { error, is_damage: false }
    }
}

/// Makes sources of locations on servers, which a fetcher reads, and verifies.
struct Connector<'f> {
    fetcher: Option<&'f Arc<Fetcher>>,
    offset_bytes: u64,
    beginning: Option<Beginning>,
    remote: Vec<Arc<FetchedSource>>,
    blobs: Vec<Blob>,
    notes: Vec<String>,
}

impl Connector<'_> {
    fn connect(&mut self, number: usize, medium: Medium, salt: &Salt) -> Result<Arc<dyn ByteSource>> {
        let location = medium.source.location.clone();
        let (medium, of_registry) = self.with_verity_of_registry(number, medium)?;
        let first_remote = self.remote.len();
        let is_verified = medium.verity.is_some();
        let source = self.connect_verified(number, medium, of_registry.as_ref().unwrap_or(salt))?;
        if let Some(remote) = self.remote.get(first_remote).filter(|remote| remote.content_digest().is_some())
        {
            self.blobs.push(Blob { location, source: remote.clone(), is_verified });
        }
        Ok(source)
    }

    /// Lets an image in a registry be verified by the digest and salt that its manifest names, and returns that salt, unless
    /// the user names a digest. Without one, notes that nothing is verified.
    fn with_verity_of_registry(&mut self, number: usize, medium: Medium) -> Result<(Medium, Option<Salt>)> {
        let location = &medium.source.location;
        let found = match (&medium.verity, location, self.fetcher) {
            (None, Location::Url(name), Some(fetcher)) if Store::of(name) == Some(Store::Oci) => {
                fetcher.verity_of(number, &mut self.notes)?
            }
            _ => None,
        };
        let Some((digest, salt)) = found else { return Ok((medium, None)) };
        let tree = Opened { location: location.with_suffix(REGISTRY_TREE_SUFFIX), file: None };
        Ok((Medium { verity: Some(Verity { digest, tree }), ..medium }, Some(salt)))
    }

    /// Opens a medium, verified if it has a digest.
    fn connect_verified(
        &mut self,
        number: usize,
        medium: Medium,
        salt: &Salt,
    ) -> Result<Arc<dyn ByteSource>> {
        let Medium { source, verity } = medium;
        let Some(verity) = verity else { return self.open_object(&source, number, false) };
        let first_remote = self.remote.len();
        let opened = match self.open_verified(number, &source, &verity, salt) {
            Err(NotOpened { is_damage: true, .. })
                if self.remote[first_remote..].iter().any(|source| source.is_from_cache()) =>
            {
                // The cache may be wrong, and the servers were not asked yet.
                self.remote.truncate(first_remote);
                self.fetcher.map_or(Ok(()), |fetcher| fetcher.forget(number))?;
                self.open_verified(number, &source, &verity, salt)
            }
            opened => opened,
        };
        opened.map_err(|failure| failure.error)
    }

    fn open_verified(
        &mut self,
        number: usize,
        source: &Opened,
        verity: &Verity,
        salt: &Salt,
    ) -> std::result::Result<Arc<dyn ByteSource>, NotOpened> {
        let Verity { digest, tree } = verity;
        let data = self.open_object(source, number, false)?;
        let tree_source = self.open_object(tree, number, true).map_err(with_advice)?;
        match VerifiedSource::open(data, tree_source, *digest, salt) {
            Ok(source) => Ok(Arc::new(source)),
            Err(e) => {
                let location = &source.location;
                let what = format!("'{location}' with the Merkle tree '{}': {e}", tree.location);
                Err(NotOpened { error: CliError::new(verity_exit(&e), what), is_damage: e.is_damage() })
            }
        }
    }

    /// Opens the image, a device or a tree of this number.
    fn open_object(&mut self, source: &Opened, number: usize, is_tree: bool) -> Result<Arc<dyn ByteSource>> {
        let opened = match &source.file {
            Some(file) => file.clone(),
            None => {
                let fetcher = self.fetcher.ok_or_else(|| CliError::failed("no fetcher was started"))?;
                let source = Arc::new(FetchedSource::open(
                    fetcher,
                    ObjectId { medium: number, is_tree, layer: None },
                )?);
                self.remote.push(source.clone());
                source
            }
        };
        if number > 0 || is_tree {
            return Ok(opened);
        }
        self.beginning = Some(Beginning::new(opened.clone(), self.offset_bytes, &source.location));
        offset::section(opened, self.offset_bytes, &source.location)
    }
}

/// The location of the tree of medium `n`, which is at `location`.
pub(crate) fn tree_location(verity: &VerityConfig, n: usize, location: &Location) -> Location {
    verity.trees.get(n).cloned().unwrap_or_else(|| location.with_suffix(TREE_SUFFIX))
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

/// Opens the tree of medium `n`, whose location is `location`.
fn open_tree(verity: &VerityConfig, n: usize, location: &Location, files: &mut OpenFiles) -> Result<Verity> {
    let digest = verity.digests[n].parse().map_err(|e| CliError::usage(format!("--digest: {e}")))?;
    let tree = Opened::open(&tree_location(verity, n, location), files);
    Ok(Verity { digest, tree: tree.map_err(with_advice)? })
}

/// Whether a path begins like a URL.
fn has_unknown_scheme(path: &Path) -> bool {
    let scheme = path.to_str().and_then(|text| text.split_once("://")).map(|(scheme, _)| scheme);
    scheme.is_some_and(|scheme| !scheme.is_empty() && scheme.bytes().all(|b| b.is_ascii_alphanumeric()))
}

/// Opens a file or block device for reading. Errors begin with `what`.
fn open_file(
    path: &Path,
    files: &mut OpenFiles,
    what: &(impl Display + ?Sized),
) -> Result<Arc<dyn ByteSource>> {
    let taken_over = files.0.get(path).map(File::try_clone).transpose();
    let taken_over = taken_over.map_err(|e| CliError::io(what, &e))?;
    let file = taken_over.map_or_else(|| pagefold_backing::open_for_reading(path), Ok).map_err(|e| {
        let exit = match e.errno {
            libc::ENOENT if has_unknown_scheme(path) => {
                let schemes = SCHEMES.map(|scheme| format!("{scheme}://")).join(", ");
                let what =
                    format!("{what}: there is no such file; locations on servers begin with {schemes}");
                return CliError::new(Exit::NotFound, what);
            }
            libc::ENOENT | libc::ENOTDIR => Exit::NotFound,
            libc::EACCES | libc::EPERM => Exit::Unavailable,
            libc::ENOTBLK => return CliError::usage(format!("{what}: it is {NO_MEDIUM}")),
            _ => Exit::Failed,
        };
        CliError::new(exit, format!("{what}: {}", std::io::Error::from_raw_os_error(e.errno)))
    })?;
    let copy = file.try_clone().map_err(|e| CliError::io(what, &e))?;
    files.0.insert(path.into(), copy);
    let backing = FileBacking::for_reading(file);
    Ok(Arc::new(backing.map_err(|e| CliError::failed(format!("{what}: {}", with_causes(&e))))?))
}
