//! Opens the media of images, for the server of a mount and for commands alike.
//!
//! This is the one place that makes sources of what users name, and that verifies them. It has two steps, because a
//! server opens files with the user's rights and does everything else without capabilities: [`Media::open`] opens the
//! files and the folder of the cache, and [`Media::connect`] asks servers, reads the beginnings of Merkle trees and
//! compares them with the digests.

mod errors;
mod stores;
mod whole;

pub use errors::verity_exit;
pub use pagefold_remote::whole::{HashedSource, WholeHash};
pub use stores::store_settings;
pub use whole::Blob;

use super::cache::OpenedCache;
use super::shares::CacheShares;
use errors::{opening, with_advice};
use pagefold_backing::{ByteSource, FileBacking};
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::media::{
    Location, MediaConfig, REGISTRY_TREE_SUFFIX, RemoteConfig, SCHEMES, VerityConfig,
};
use pagefold_image::verity::{Digest, Salt, VerifiedSource};
use pagefold_image::with_causes;
use pagefold_remote::cache::Key;
use pagefold_remote::stores::Store;
use pagefold_remote::{Options, RemoteSource, Secret, Url};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use stores::Stores;

/// The description, in messages, of a file that cannot hold an image.
pub const NO_MEDIUM: &str = "neither a file nor a block device";

/// The end of the name of a Merkle tree beside its image.
pub const TREE_SUFFIX: &str = ".verity";

/// The memory of commands without `--memory`.
pub const DEFAULT_MEMORY_BYTES: u64 = 64 << 20;
/// Threads that fetch ahead of readers of a remote image or device.
const AHEAD_THREADS: usize = 3;

/// The media of an image. Files are open.
pub struct Media {
    /// The image, then its devices.
    media: Vec<Medium>,
    salt: Salt,
    remote: RemoteConfig,
    cache: Option<OpenedCache>,
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
    /// Its further devices.
    pub devices: Vec<Arc<dyn ByteSource>>,
    /// Those of the sources, and of the Merkle trees, that are on servers: for their counters.
    pub remote: Vec<Arc<RemoteSource>>,
    /// The image and those of the devices whose names are digests of all their bytes, in that order.
    pub blobs: Vec<Blob>,
    /// Notes on them for users.
    pub notes: Vec<String>,
    /// Their cache on disk.
    pub cache: Option<OpenedCache>,
    /// The part of the memory that is left for reading.
    pub memory_bytes: u64,
}

impl Media {
    /// Opens the image, its devices, and their Merkle trees, as far as they are files, and the cache of the others. `report`
    /// gets a sentence when the cache begins to fail.
    pub fn open(config: &MediaConfig, report: fn(&str)) -> Result<Self> {
        Self::open_with(config, &mut OpenFiles::default(), report)
    }

    /// As [`Media::open`], with `files`: uses those that are there, and adds the others.
    pub fn open_with(config: &MediaConfig, files: &mut OpenFiles, report: fn(&str)) -> Result<Self> {
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
        let remote = config.remote.clone();
        let cache = remote.cache.as_ref().filter(|_| media.iter().any(Medium::is_remote));
        let cache = cache.map(|cache| OpenedCache::open(cache, report));
        Ok(Media { media, salt, remote, cache })
    }

    /// Does the same as [`Media::connect`], and reports why there is no cache, if there is none.
    pub fn connect_reporting(self, memory_bytes: u64, report: fn(&str)) -> Result<Sources> {
        self.cache.iter().filter_map(OpenedCache::warning).for_each(report);
        self.connect(memory_bytes)
    }

    /// Asks the servers for what is on them, and returns the sources, verified if there are digests. Fails if a tree does
    /// not belong to its digest. A part of `memory_bytes` is for ranges that servers sent.
    pub fn connect(self, memory_bytes: u64) -> Result<Sources> {
        let Media { media, salt, remote, cache } = self;
        let images = media.iter().filter(|medium| medium.source.file.is_none()).count();
        let trees = media.iter().filter(|medium| medium.has_remote_tree()).count();
        let shares = CacheShares::of(memory_bytes, images, trees);
        let image_origin = match media.first().map(|medium| &medium.source.location) {
            Some(Location::Url(url)) => Url::parse(url).ok().map(|url| url.origin()),
            _ => None,
        };
        let stores = Stores::new(&remote)?;
        let mut connector = Connector {
            config: remote,
            image_origin,
            stores,
            cache,
            shares,
            remote: Vec::new(),
            blobs: Vec::new(),
            notes: Vec::new(),
        };
        let sources = media.into_iter().map(|medium| connector.connect(medium, &salt));
        let mut sources = sources.collect::<Result<Vec<_>>>()?;
        let image = sources.remove(0);
        let Connector { remote, blobs, notes, cache, .. } = connector;
        let memory_bytes = memory_bytes.saturating_sub(shares.total_bytes);
        Ok(Sources { image, devices: sources, remote, blobs, notes, cache, memory_bytes })
    }
}

impl Medium {
    /// Whether its Merkle tree is on a server, or may be: a manifest of a registry may name one.
    fn has_remote_tree(&self) -> bool {
        match (&self.verity, &self.source.location) {
            (Some(verity), _) => verity.tree.file.is_none(),
            (None, Location::Url(name)) => Store::of(name) == Some(Store::Oci),
            (None, Location::File(_)) => false,
        }
    }

    /// Whether it or its Merkle tree is on a server.
    fn is_remote(&self) -> bool {
        self.source.file.is_none() || self.verity.as_ref().is_some_and(|verity| verity.tree.file.is_none())
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

/// Makes sources of locations on servers.
struct Connector {
    config: RemoteConfig,
    /// The server of the image, which gets the credentials.
    image_origin: Option<String>,
    stores: Stores,
    cache: Option<OpenedCache>,
    shares: CacheShares,
    remote: Vec<Arc<RemoteSource>>,
    blobs: Vec<Blob>,
    notes: Vec<String>,
}

impl Connector {
    fn connect(&mut self, medium: Medium, salt: &Salt) -> Result<Arc<dyn ByteSource>> {
        let location = medium.source.location.clone();
        let (medium, of_registry) = self.with_verity_of_registry(medium)?;
        let first_remote = self.remote.len();
        let is_verified = medium.verity.is_some();
        let source = self.connect_verified(medium, of_registry.as_ref().unwrap_or(salt))?;
        if let Some(remote) = self.remote.get(first_remote).filter(|remote| remote.content_digest().is_some())
        {
            self.blobs.push(Blob { location, source: remote.clone(), is_verified });
        }
        Ok(source)
    }

    /// Lets an image in a registry be verified by the digest and salt that its manifest names, and returns that salt, unless
    /// the user names a digest. Without one, notes that nothing is verified.
    fn with_verity_of_registry(&mut self, medium: Medium) -> Result<(Medium, Option<Salt>)> {
        let location = &medium.source.location;
        let found = match medium.verity {
            Some(_) => None,
            None => self.stores.verity_of(location, &mut self.notes)?,
        };
        let Some((digest, salt)) = found else { return Ok((medium, None)) };
        let tree = Opened { location: location.with_suffix(REGISTRY_TREE_SUFFIX), file: None };
        Ok((Medium { verity: Some(Verity { digest, tree }), ..medium }, Some(salt)))
    }

    /// Opens a medium, verified if it has a digest.
    fn connect_verified(&mut self, medium: Medium, salt: &Salt) -> Result<Arc<dyn ByteSource>> {
        let Medium { source, verity } = medium;
        let Some(verity) = verity else { return self.open_image(&source, None) };
        let [data_key, tree_key] =
            ["data", "tree"].map(|role| Key::of_digest(role, &verity.digest.to_string(), &salt.to_string()));
        let first_remote = self.remote.len();
        let opened = self.open_verified(&source, &verity, salt, data_key, tree_key);
        let opened = match opened {
            Err(NotOpened { is_damage: true, .. })
                if self.remote[first_remote..].iter().any(|source| source.is_from_cache()) =>
            {
                // The cache may be wrong, and the servers were not asked yet.
                let cache = self.cache.iter();
                cache.for_each(|cache| [data_key, tree_key].iter().for_each(|key| cache.remove(key)));
                self.remote.truncate(first_remote);
                self.open_verified(&source, &verity, salt, data_key, tree_key)
            }
            opened => opened,
        };
        opened.map_err(|failure| failure.error)
    }

    fn open_verified(
        &mut self,
        source: &Opened,
        verity: &Verity,
        salt: &Salt,
        data_key: Key,
        tree_key: Key,
    ) -> std::result::Result<Arc<dyn ByteSource>, NotOpened> {
        let Verity { digest, tree: Opened { location: tree_location, file } } = verity;
        let data = self.open_image(source, Some(data_key))?;
        let tree = match file {
            Some(file) => file.clone(),
            None => self
                .open_url(tree_location, self.shares.tree_bytes, 0, Some(tree_key))
                .map_err(with_advice)?,
        };
        match VerifiedSource::open(data, tree, *digest, salt) {
            Ok(source) => Ok(Arc::new(source)),
            Err(e) => {
                let location = &source.location;
                let what = format!("'{location}' with the Merkle tree '{tree_location}': {e}");
                Err(NotOpened { error: CliError::new(verity_exit(&e), what), is_damage: e.is_damage() })
            }
        }
    }

    /// Opens an image or a device, which has a key if it is verified.
    fn open_image(&mut self, source: &Opened, content: Option<Key>) -> Result<Arc<dyn ByteSource>> {
        let Opened { location, file } = source;
        let ahead_threads = if self.config.read_ahead { AHEAD_THREADS } else { 0 };
        match file {
            Some(file) => Ok(file.clone()),
            None => self.open_url(location, self.shares.image_bytes, ahead_threads, content),
        }
    }

    fn open_url(
        &mut self,
        location: &Location,
        cache_bytes: usize,
        ahead_threads: usize,
        content: Option<Key>,
    ) -> Result<Arc<dyn ByteSource>> {
        let Location::Url(url) = location else { return Err(CliError::failed("a file was not opened")) };
        let timeout = Duration::from_millis(self.config.timeout_ms);
        let cache = self.cache.as_ref().and_then(|cache| cache.for_source(content));
        let (authorization, is_verified) = (None, content.is_some());
        let options = Options { timeout, cache_bytes, ahead_threads, authorization, is_verified, cache };
        let opened = match Store::of(url) {
            Some(Store::Oci) => self.stores.open_oci(location, url, &options)?,
            Some(_) => self.stores.open_object(location, url, &options)?,
            None => {
                let url = Url::parse(url).map_err(|e| CliError::usage(format!("'{location}': {e}")))?;
                let is_of_image = self.image_origin == Some(url.origin());
                let authorization = self.config.authorization.as_ref().filter(|_| is_of_image);
                let authorization = authorization.map(|secret| Secret(secret.0.clone()));
                RemoteSource::open(&url, Options { authorization, ..options })
            }
        };
        let source = Arc::new(opened.map_err(|e| opening(location, &e))?);
        self.remote.push(source.clone());
        Ok(source)
    }
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
    let tree = verity.trees.get(n).cloned().unwrap_or_else(|| location.with_suffix(TREE_SUFFIX));
    Ok(Verity { digest, tree: Opened::open(&tree, files).map_err(with_advice)? })
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
