//! The arguments that the commands on images have in common, opening an image, and the errors of that.

use super::cache::CacheArgs;
use super::whole::WholeCheck;
use super::worker;
use crate::cli::{output, values};
use clap::{Args, ValueHint};
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::media::{
    AUTHORIZATION_VARIABLE, Location, MediaConfig, RemoteConfig, Secret, VerityConfig,
};
use pagefold_image::verity::{Digest, Salt};
use pagefold_image::{Image, ImageError, Options, ReadAhead};
use pagefold_server::confinement::{self, Kind};
use pagefold_server::fetcher::Fetcher;
use pagefold_server::mount::image_failure;
use pagefold_server::mount::media::{DEFAULT_MEMORY_BYTES, Media, Sources, store_settings};
use pagefold_sys::confine::Creates;
use pagefold_sys::signal::Termination;
use std::env::VarError;
use std::fmt::Display;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::LazyLock;

/// The longest time of a read, seconds.
const MAX_TIMEOUT_S: u64 = 3600;

/// The image and its devices.
#[derive(Debug, Args)]
pub struct MediaArgs {
    /// The image: a file, a block device, a URL, or an object of a bucket or registry. As http:// or https://,
    /// s3://bucket/key, az://container/blob, gs://bucket/object, or oci://registry/name:tag
    #[arg(value_name = "IMAGE", value_hint = ValueHint::AnyPath)]
    pub image: Location,
    #[command(flatten)]
    pub offset: OffsetArgs,
    /// A further device of an image on several devices. Can be repeated, in the order of the image's device table
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub device: Vec<Location>,
    #[command(flatten)]
    pub verity: VerityArgs,
    #[command(flatten)]
    pub remote: RemoteArgs,
}

/// The place of an image in a larger file.
#[derive(Debug, Args)]
pub struct OffsetArgs {
    /// Byte at which the image begins, in a larger file. Such as a container, the image of a disk with partitions, firmware or a
    /// self-extracting program; the error about a file that does not begin with an image names the byte if it finds one
    #[arg(long, value_name = "SIZE", default_value = "0", hide_default_value = true)]
    pub offset: String,
}

/// The digests of an image and its devices.
#[derive(Debug, Args)]
pub struct VerityArgs {
    /// Verify all that is read: the digest of the image, as `image digest` prints it. Images on several devices need one for
    /// each: the option is repeated, first for the image, then for each --device
    #[arg(long, value_name = "sha256:HEX")]
    pub digest: Vec<Digest>,
    /// The Merkle tree of the image, for --digest. Can be repeated, for the devices [default: IMAGE.verity]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "digest")]
    pub merkle_tree: Vec<Location>,
    /// The salt of the digests, in hexadecimal
    #[arg(long, value_name = "HEX", default_value_t, hide_default_value = true, requires = "digest")]
    pub salt: Salt,
}

/// How servers are asked for images.
#[derive(Debug, Args)]
pub struct RemoteArgs {
    /// Longest time of a read from a URL; then it fails
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub timeout: String,
    /// The platform of an image in a registry that has several, such as linux/arm64 [default: this machine's]
    #[arg(long, value_name = "OS/ARCH")]
    pub platform: Option<String>,
    #[command(flatten)]
    pub cache: CacheArgs,
}

/// The image, and the memory for reading it.
#[derive(Debug, Args)]
pub struct ImageArgs {
    #[command(flatten)]
    pub media: MediaArgs,
    /// Most memory for reading: compressed and decompressed data, decompressors, cache
    #[arg(long, short = 'm', value_name = "SIZE", default_value = "64M")]
    pub memory: String,
}

/// Least memory for reading an image, bytes: enough for clusters of all algorithms.
const READING_BYTES_MIN: u64 = 16 << 20;

/// The number of threads of commands that work on all files of an image.
#[derive(Debug, Args)]
pub struct ThreadsArgs {
    /// Number of threads [default: number of CPUs]
    #[arg(long, short = 'j', value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,
}

impl ImageArgs {
    /// Opens the image, to read parts of it and print them. The process can open nothing else afterwards.
    pub fn open(&self, read_ahead: ReadAhead) -> Result<Image> {
        Ok(self.open_media(read_ahead, Then::Prints, false, None)?.0)
    }

    /// Opens the image, to read all of it; the second value compares it with the digest in a registry then. After one of the
    /// `signals`, which are blocked, waiting for a server fails.
    pub fn open_whole(
        &self,
        read_ahead: ReadAhead,
        then: Then<'_>,
        signals: Option<&Termination>,
    ) -> Result<(Image, WholeCheck)> {
        self.open_media(read_ahead, then, true, signals)
    }

    fn open_media(
        &self,
        read_ahead: ReadAhead,
        then: Then<'_>,
        takes_whole: bool,
        signals: Option<&Termination>,
    ) -> Result<(Image, WholeCheck)> {
        // Each thread decodes with buffers of some MiB, and would keep them beyond the budget after it has freed them.
        pagefold_sys::malloc::return_large_blocks();
        let memory_bytes = values::bytes("--memory", &self.memory)?;
        let mut media = self.media.config()?;
        media.remote.takes_whole = takes_whole;
        open_image(&media, memory_bytes, read_ahead, then, signals)
    }

    /// The error for a failure of the image as a whole.
    pub fn failure(&self, error: &ImageError) -> CliError {
        image_failure(format_args!("'{}'", self.media.image), error)
    }
}

impl MediaArgs {
    /// The media to open, with the paths as they were typed.
    pub fn config(&self) -> Result<MediaConfig> {
        let config = media_config(&self.image, &self.device, &self.verity, &self.remote)?;
        self.offset.with(config)
    }
}

impl OffsetArgs {
    /// The offset, bytes.
    pub fn bytes(&self) -> Result<u64> {
        values::bytes("--offset", &self.offset)
    }

    /// The media, with an image that begins here.
    pub fn with(&self, media: MediaConfig) -> Result<MediaConfig> {
        let offset_bytes = self.bytes()?;
        // The digest in the manifest is that of the whole object.
        if offset_bytes > 0 && media.image.is_in_registry() {
            let what = format!("--offset is not for images in registries, such as '{}'", media.image);
            return Err(CliError::usage(what));
        }
        Ok(MediaConfig { offset_bytes, ..media })
    }
}

/// The media of a command, with the credentials that they need.
pub fn media_config(
    image: &Location,
    devices: &[Location],
    verity: &VerityArgs,
    remote: &RemoteArgs,
) -> Result<MediaConfig> {
    let verity = verity.config();
    let trees = verity.iter().flat_map(|verity| &verity.trees);
    let remote = remote.config(std::iter::once(image).chain(devices).chain(trees))?;
    Ok(MediaConfig { image: image.clone(), offset_bytes: 0, devices: devices.to_vec(), verity, remote })
}

impl RemoteArgs {
    /// The time, the cache, and the credentials that these locations need: of the environment, of files, and of programs
    /// that the files name.
    pub fn config<'a>(&self, locations: impl Iterator<Item = &'a Location>) -> Result<RemoteConfig> {
        self.config_for(locations, false)
    }

    /// The same; with `wants_archives`, of an index an image whose layers are archives is chosen.
    pub fn config_for<'a>(
        &self,
        locations: impl Iterator<Item = &'a Location>,
        wants_archives: bool,
    ) -> Result<RemoteConfig> {
        let timeout_s = values::seconds("--timeout", &self.timeout)?;
        if !(1..=MAX_TIMEOUT_S).contains(&timeout_s) {
            return Err(CliError::usage("--timeout is between a second and an hour"));
        }
        let authorization = match std::env::var(AUTHORIZATION_VARIABLE) {
            Ok(value) => Some(Secret(value)),
            Err(VarError::NotPresent) => None,
            Err(VarError::NotUnicode(_)) => {
                return Err(CliError::usage(format!("{AUTHORIZATION_VARIABLE} is no text")));
            }
        };
        let stores = store_settings(locations, self.platform.as_deref(), wants_archives, output::note)?;
        let (timeout_ms, cache) = (timeout_s * 1000, self.cache.config()?);
        Ok(RemoteConfig { timeout_ms, authorization, stores, cache, ..RemoteConfig::default() })
    }
}

impl VerityArgs {
    /// The digests, with the paths as they were typed; `None` without --digest.
    pub fn config(&self) -> Option<VerityConfig> {
        let config = || VerityConfig {
            digests: self.digest.iter().map(Digest::to_string).collect(),
            trees: self.merkle_tree.clone(),
            salt: self.salt.to_string(),
        };
        (!self.digest.is_empty()).then(config)
    }
}

/// The memory for reading an image while another one is built, of the memory of the command.
pub fn reading_share(limit_bytes: Option<u64>) -> u64 {
    let share = limit_bytes.map_or(u64::MAX, |bytes| bytes / 8);
    share.clamp(READING_BYTES_MIN, DEFAULT_MEMORY_BYTES)
}

/// The use that a command makes of an image.
#[derive(Debug, Clone, Copy)]
pub enum Then<'a> {
    /// It prints, or writes to a file that is open.
    Prints,
    /// It creates files.
    Creates(&'a Creates),
    /// It parses nothing of the image: it copies or hashes the bytes, and is not confined.
    Copies,
}

/// Opens the media of an image. Notes say when there is no cache, or when it begins to fail. After one of the `signals`, which
/// are blocked, waiting for a server fails.
pub fn open_media(
    media: &MediaConfig,
    memory_bytes: u64,
    then: Then<'_>,
    signals: Option<&Termination>,
) -> Result<Sources> {
    let opened = Media::open(media)?;
    let fetcher = Fetcher::start(media, memory_bytes, output::note)?;
    if let Some((fetcher, signals)) = fetcher.as_ref().zip(signals) {
        fetcher.end_on(signals)?;
    }
    match then {
        Then::Prints => confine(Kind::Printing)?,
        Then::Creates(creates) => confine(Kind::Creating(creates.clone()))?,
        Then::Copies => {}
    }
    fetcher.iter().filter_map(|fetcher| fetcher.without_cache()).for_each(output::note);
    opened.connect(memory_bytes, fetcher.as_ref())
}

/// Confines this process, before it parses the first hostile byte.
pub fn confine(kind: Kind) -> Result<()> {
    default_threads();
    confinement::confine(kind)?;
    worker::stay_with_parent();
    Ok(())
}

/// Opens an image with its further devices, to read all of it.
pub fn open_image(
    media: &MediaConfig,
    memory_bytes: u64,
    read_ahead: ReadAhead,
    then: Then<'_>,
    signals: Option<&Termination>,
) -> Result<(Image, WholeCheck)> {
    let Sources { image, beginning, devices, blobs, memory_bytes, .. } =
        open_media(media, memory_bytes, then, signals)?;
    let whole = WholeCheck::of(blobs)?;
    let options =
        Options { memory_bytes, read_ahead, cache_full_reads: false, devices, ..Options::default() };
    let image = Image::open(image, options).map_err(|e| beginning.explain(e));
    Ok((image.map_err(|e| image_failure(format_args!("'{}'", media.image), &e))?, whole))
}

impl ThreadsArgs {
    /// The number of threads.
    pub fn count(&self) -> usize {
        self.threads.map_or_else(default_threads, usize::from)
    }
}

/// The default number of threads: that of CPUs.
pub fn default_threads() -> usize {
    // Once, before the process is confined: the limits of control groups are in files.
    static THREADS: LazyLock<usize> =
        LazyLock::new(|| std::thread::available_parallelism().map_or(2, usize::from).min(256));
    *THREADS
}

/// The error for a failure at a path in an image.
pub fn failure(path: &[u8], error: &ImageError) -> CliError {
    image_failure(super::names::escaped(path), error)
}

/// The error for a file or directory outside the image, with the exit code for a missing one.
pub fn path_failure(what: impl Display, e: &std::io::Error) -> CliError {
    match e.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => {
            CliError::new(Exit::NotFound, format!("{what}: {e}"))
        }
        _ => CliError::io(what, e),
    }
}

/// The bytes of a path in an image, as the user typed it.
pub fn path_bytes(path: &Path) -> &[u8] {
    use std::os::unix::ffi::OsStrExt;
    path.as_os_str().as_bytes()
}
