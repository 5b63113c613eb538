//! The server process of a mounted image.
//!
//! The files are opened with what rights the user has; then a thread without any opens the image and starts the
//! threads that read ahead, and another mounts, gives its right up, and starts those that answer. Only the main
//! thread keeps the right to unmount, and it reads nothing of the image: it waits for the end.

use super::report::Serving;
use super::state::MountState;
use super::{MountConfig, MountReport};
use crate::failure::{Exit, Failure, Outcome};
use crate::runtime::{DiskDir, Runtime};
use crate::service::Ready;
use crate::service::control::{Answer, Control};
use crate::service::parked::PassProgress;
use crate::service::protocol::{Request, Response};
use crate::service::startup::Line;
use pagefold_backing::{Backing, FileBacking};
use pagefold_image::mount::{LEAST_REPLY_BYTES, Mount, MountError, MountOptions};
use pagefold_image::with_causes;
use pagefold_image::{Image, ImageError, Options};
use pagefold_sys::privileges::{self, CapabilitySet};
use pagefold_sys::signal::Termination;
use pagefold_sys::{SysError, pidfd, ready, rundir};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

/// Serves a mount until it is unmounted or told to end. The lock is held by the caller all the while.
pub fn run(config: &MountConfig, dir: &DiskDir, line: Line) -> Outcome<()> {
    privileges::private_files();
    let is_root = rundir::effective_uid() == 0;
    if is_root {
        // The helper that mounts for other users gains its rights from its file.
        privileges::forbid_new()?;
    }
    let signals = Termination::listen()?;
    let media = std::iter::once(&config.image).chain(&config.devices);
    let media = media
        .map(|path| open_medium(path, &format!("opening '{}'", path.display())))
        .collect::<Outcome<Vec<_>>>()?;
    let keep = if is_root { CapabilitySet::SYS_ADMIN } else { CapabilitySet::empty() };
    privileges::drop_capabilities_except(keep)?;
    dir.write_state(&MountState {
        image: config.image.clone(),
        mount_point: config.mount_point.clone(),
        server: pidfd::Identity::of_self().map(Into::into),
    })?;
    let image = aside(|| {
        privileges::drop_capabilities()?;
        open_image(config, media)
    })?;
    let mut mount = aside(|| mount(config, image.clone()))?;
    let teller = Teller {
        config: config.clone(),
        image,
        serving: Serving {
            threads: mount.threads(),
            max_read_bytes: mount.read_bytes(),
            requests: mount.requests(),
        },
    };
    aside(|| {
        privileges::drop_capabilities()?;
        Control::bind(&dir.control_path())?.serve(Arc::new(teller))
    })?;
    line.ready(&Ready {
        device: config.mount_point.display().to_string(),
        door: "fuse".into(),
        warnings: Vec::new(),
    })?;
    wait_for_the_end(&mount, &signals, line)?;
    mount.stop().map_err(|e| failure(&e))?;
    let runtime = Runtime::around(dir)?;
    let _lock = runtime.lock()?;
    dir.remove()
}

/// Runs `make` in a thread of its own, which threads that it starts inherit their rights from.
fn aside<T: Send>(make: impl FnOnce() -> Outcome<T> + Send) -> Outcome<T> {
    std::thread::scope(|s| s.spawn(make).join())
        .unwrap_or_else(|_| Err(Failure::failed("setting up the mount: a thread panicked")))
}

/// The medium in a file or on a block device, to be read. `what` is said of a failure.
pub fn open_medium(path: &Path, what: &str) -> Outcome<Arc<dyn Backing>> {
    let opened = pagefold_backing::open_for_reading(path);
    let file = opened.map_err(|e| Failure::from(SysError::new(format!("{what}: {}", e.what), e.errno)))?;
    let backing = FileBacking::for_reading(file);
    Ok(Arc::new(backing.map_err(|e| Failure::failed(format!("{what}: {}", with_causes(&e))))?))
}

fn open_image(config: &MountConfig, media: Vec<Arc<dyn Backing>>) -> Outcome<Image> {
    let mut media = media.into_iter();
    let first = media.next().ok_or_else(|| Failure::failed("no image to open"))?;
    let options = Options {
        memory_bytes: config.memory_bytes,
        read_ahead: config.read_ahead.into(),
        // The kernel keeps what it was given.
        keep_asked: false,
        caller_bytes: LEAST_REPLY_BYTES,
        devices: media.collect(),
        ..Options::default()
    };
    Image::open(first, options).map_err(|e| image_failure(&config.image, &e))
}

fn mount(config: &MountConfig, image: Image) -> Outcome<Mount> {
    let options = MountOptions {
        threads: config.threads,
        allow_other: config.allow_other,
        suid: config.suid,
        devices: config.device_nodes,
        source: config.image.clone().into(),
        ..MountOptions::default()
    };
    let then = || -> Result<(), SysError> { privileges::drop_capabilities() };
    Mount::new_then(image, &config.mount_point, &options, then).map_err(|e| match e {
        MountError::Image(e) => image_failure(&config.image, &e),
        e => failure(&e),
    })
}

/// A failure of the image at `path`, with what caused it.
pub fn image_failure(path: &Path, error: &ImageError) -> Failure {
    let exit = match error {
        ImageError::MissingDevices { .. }
        | ImageError::SurplusDevices { .. }
        | ImageError::TooLittleMemory { .. } => Exit::Usage,
        _ => Exit::Failed,
    };
    Failure::new(exit, format!("'{}': {}", path.display(), with_causes(error)))
}

fn failure(error: &MountError) -> Failure {
    let exit = match error {
        MountError::Taken { .. } => Exit::Busy,
        MountError::NoFuse(_) | MountError::NotPermitted(_) | MountError::Helper { .. } => Exit::Unavailable,
        _ => Exit::Failed,
    };
    Failure::new(exit, with_causes(error))
}

/// Returns when nothing is served any more, or somebody wants it to end.
fn wait_for_the_end(mount: &Mount, signals: &Termination, line: Line) -> Outcome<()> {
    let lifeline = line.into_lifeline();
    // Without a lifeline its place is taken by a descriptor that is polled anyway.
    let third = lifeline.as_ref().map_or(mount.ended(), |l| l.as_fd());
    loop {
        let [signalled, ended, cut] = ready::wait([signals.as_fd(), mount.ended(), third], None)?;
        if ended || cut || (signalled && signals.take().is_some()) {
            return Ok(());
        }
    }
}

/// What answers commands.
struct Teller {
    config: MountConfig,
    image: Image,
    serving: Serving,
}

impl Answer for Teller {
    fn answer(&self, request: Request, _: &mut dyn FnMut(&PassProgress) -> bool) -> Response {
        match request {
            Request::Show {} => {
                let report = MountReport::of(&self.config, &self.image, &self.serving);
                Response::Mount(Box::new(report))
            }
            _ => {
                Response::Refused(Failure::usage("that is a request to a disk, and this is a mounted image"))
            }
        }
    }

    fn answered(&self) {}
}
