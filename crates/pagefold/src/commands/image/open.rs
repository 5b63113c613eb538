//! What all commands on images have in common: which image, how much memory, and opening it.

use crate::failure::{Exit, Failure, Outcome};
use crate::service::images::server::open_medium;
use clap::{Args, ValueHint};
use pagefold_image::with_causes;
use pagefold_image::{Image, ImageError, Options, ReadAhead};
use pagefold_page::size;
use std::path::{Path, PathBuf};

/// Which image, and how it is read.
#[derive(Debug, Args)]
pub struct ImageArgs {
    /// The image: a file or a block device
    #[arg(value_name = "IMAGE", value_hint = ValueHint::AnyPath)]
    pub image: PathBuf,
    /// A further device of the image, in the order of its table. Can be repeated
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub device: Vec<PathBuf>,
    /// Memory for reading: compressed and decompressed data, decompressors, cache
    #[arg(long, short = 'm', value_name = "SIZE", default_value = "64M")]
    pub memory: String,
}

impl ImageArgs {
    /// Opens the image.
    pub fn open(&self, read_ahead: ReadAhead) -> Outcome<Image> {
        let memory_bytes = size::parse(&self.memory).map_err(|e| Failure::usage(format!("--memory: {e}")))?;
        let devices = self
            .device
            .iter()
            .map(|path| open_medium(path, &format!("--device: '{}'", path.display())))
            .collect::<Outcome<_>>()?;
        let options = Options { memory_bytes, read_ahead, keep_asked: false, devices, ..Options::default() };
        Image::open_file(&self.image, options).map_err(|e| failure(&self.image.display().to_string(), &e))
    }
}

/// Threads, if none were asked for: the machine's.
pub fn jobs(asked: Option<u16>) -> usize {
    let of_machine = || std::thread::available_parallelism().map_or(2, usize::from).min(256);
    asked.map_or_else(of_machine, usize::from)
}

/// An error with what it was about.
pub fn failure(what: &str, error: &ImageError) -> Failure {
    let exit = match error {
        ImageError::NotFound { .. } => Exit::NotFound,
        ImageError::MissingDevices { .. }
        | ImageError::SurplusDevices { .. }
        | ImageError::TooLittleMemory { .. } => Exit::Usage,
        ImageError::Medium { source, .. } => match denied(source.as_ref()) {
            true => Exit::Unavailable,
            false => Exit::Failed,
        },
        _ => Exit::Failed,
    };
    Failure::new(exit, format!("{what}: {}", with_causes(error)))
}

fn denied(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut error = Some(error);
    while let Some(e) = error {
        if let Some(sys) = e.downcast_ref::<pagefold_sys::SysError>() {
            return matches!(sys.errno, libc::EACCES | libc::EPERM);
        }
        error = e.source();
    }
    false
}

/// A path in an image, as typed: bytes.
pub fn path_bytes(path: &Path) -> &[u8] {
    use std::os::unix::ffi::OsStrExt;
    path.as_os_str().as_bytes()
}
