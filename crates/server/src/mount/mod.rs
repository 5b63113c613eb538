//! The server of a mounted image.
//!
//! New threads inherit the capabilities of the thread that starts them, so each part of the set-up runs in a thread
//! with the right ones. The main thread opens the files with the user's rights. A thread without capabilities asks servers,
//! opens the image and starts the threads of read-ahead. Another mounts, drops its capabilities, and starts the threads that
//! serve FUSE requests. A third starts the control socket. Only the main thread keeps the capability to unmount; it
//! reads nothing of the image and waits for the end.

pub mod cache;
mod lists;
pub mod media;
mod report;
mod shares;

use crate::socket::{ControlSocket, RequestHandler};
use crate::startup::StartupChannel;
use cache::OpenedCache;
use lists::{ListFile, Prefetch, Recording};
use media::{Media, Sources};
use pagefold_control::config::{FuseUring, MountConfig, ReadAheadConfig};
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::instance::state::MountState;
use pagefold_control::instance::{InstanceDir, RuntimeDir};
use pagefold_control::media::Location;
use pagefold_control::protocol::{Request, Response};
use pagefold_control::report::writeback::PassProgress;
use pagefold_control::startup::Ready;
use pagefold_image::mount::{LEAST_REPLY_BYTES, Mount, MountError, MountOptions};
use pagefold_image::startup::Recorder;
use pagefold_image::with_causes;
use pagefold_image::{Image, ImageError, Options};
use pagefold_page::size::Human;
use pagefold_remote::RemoteSource;
use pagefold_sys::privileges::{self, CapabilitySet};
use pagefold_sys::signal::Termination;
use pagefold_sys::{SysError, pidfd, ready, rundir};
use report::MountSession;
use std::fmt::Display;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

/// Serves a mounted image until it is unmounted or a signal ends it. The caller holds the lock of the instance.
pub fn run(config: &MountConfig, dir: &InstanceDir, channel: StartupChannel) -> Result<()> {
    if matches!(config.media.image, Location::Url(_)) {
        // Ranges of servers come by many threads, and leave by others: their gaps took 15 MiB beyond the budget.
        pagefold_sys::malloc::share_one_heap();
    }
    let begun = Instant::now();
    privileges::set_private_umask();
    let is_root = rundir::effective_uid() == 0;
    if is_root {
        // Other users mount with the set-user-id program fusermount3, which must gain privileges.
        privileges::set_no_new_privs()?;
    }
    let signals = Termination::listen()?;
    let media = Media::open(&config.media, |text| crate::log::warning(format_args!("{text}")))?;
    let list_file = config.record.as_ref().map(ListFile::open).transpose()?;
    let prefetch = config.prefetch.as_deref().map(Prefetch::open).transpose()?;
    let keep = if is_root { CapabilitySet::SYS_ADMIN } else { CapabilitySet::empty() };
    privileges::drop_capabilities_except(keep)?;
    dir.write_state(&MountState {
        image: config.media.image.name(),
        mount_point: config.mount_point.clone(),
        server: pidfd::Identity::of_self().map(Into::into),
    })?;
    let Opened { image, remote, notes, cache } = run_in_thread(|| {
        privileges::drop_capabilities()?;
        let opened = open_image(config, media)?;
        prefetch.as_ref().map(|prefetch| prefetch.start(&opened.image)).transpose()?;
        Ok(opened)
    })?;
    let recording = list_file.map(|file| file.start(image.superblock().root_nid)).transpose()?;
    let warnings = image.short_devices();
    let mut warnings: Vec<_> =
        warnings.iter().map(|short| format!("{short}; reads of the missing part fail")).collect();
    warnings.extend(notes);
    warnings.extend(cache.iter().filter_map(OpenedCache::warning).map(String::from));
    warnings.extend(prefetch.as_ref().and_then(Prefetch::warning));
    let recorder = recording.as_ref().map(|recording| recording.recorder());
    let is_remote = !remote.is_empty();
    let mut mount = run_in_thread(|| mount(config, image.clone(), recorder, is_remote))?;
    if config.media.remote.authorization.is_some() || config.media.remote.stores.is_some() {
        // Not before: the helper that mounts for users looks at this process.
        privileges::forbid_dumps()?;
    }
    let without_rings =
        crate::transport::warning(mount.transport()).filter(|_| config.fuse_uring == FuseUring::On);
    warnings.extend(without_rings.clone());
    let session = MountSession {
        config: config.clone(),
        image,
        threads: mount.threads(),
        transport: crate::transport::name(mount.transport()),
        without_rings,
        rings: crate::transport::rings(mount.transport()),
        max_read_bytes: mount.read_bytes(),
        requests: mount.requests(),
        remote,
        cache,
        begun,
        first_read: mount.first_read(),
        recording: recording.clone(),
        prefetch,
    };
    run_in_thread(|| {
        privileges::drop_capabilities()?;
        ControlSocket::bind(&dir.control_path())?.serve(Arc::new(session))
    })?;
    channel.ready(&Ready {
        device: config.mount_point.display().to_string(),
        export: "fuse".into(),
        swap_warning: None,
        warnings,
    })?;
    wait_for_end(&mount, &signals, channel, recording.as_deref())?;
    mount.stop().map_err(|e| failure(&e))?;
    // After the last read. An error must not leave the folder behind.
    let recorded = recording.map_or(Ok(()), |recording| recording.finish());
    let runtime = RuntimeDir::containing(dir)?;
    let _locked = runtime.lock()?;
    dir.remove().and(recorded)
}

/// Runs `make` in a separate thread and waits for it. Threads started by `make` inherit the capabilities of that
/// thread.
fn run_in_thread<T: Send>(make: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|s| s.spawn(make).join())
        .unwrap_or_else(|_| Err(CliError::failed("setting up the mount: a thread panicked")))
}

/// An image, those of its sources that are on servers, and their cache.
struct Opened {
    image: Image,
    remote: Vec<Arc<RemoteSource>>,
    /// Notes on them for users.
    notes: Vec<String>,
    cache: Option<OpenedCache>,
}

fn open_image(config: &MountConfig, media: Media) -> Result<Opened> {
    let Sources { image, devices, remote, notes, cache, memory_bytes, .. } =
        media.connect(config.memory_bytes)?;
    let options = Options {
        memory_bytes,
        read_ahead: read_ahead(config.read_ahead),
        // The kernel caches what it has read.
        cache_full_reads: false,
        caller_bytes: LEAST_REPLY_BYTES,
        devices,
        ..Options::default()
    };
    let image = Image::open(image, options).map_err(|e| {
        let failure = failure_of(config, &e);
        match (e, config.memory_bytes - memory_bytes) {
            (ImageError::TooLittleMemory { .. }, bytes @ 1..) => {
                let what = format!("{failure}; {} of --memory is for what servers send", Human(bytes));
                CliError::new(failure.exit, what)
            }
            _ => failure,
        }
    })?;
    Ok(Opened { image, remote, notes, cache })
}

fn read_ahead(config: ReadAheadConfig) -> pagefold_image::ReadAhead {
    match config {
        ReadAheadConfig::Off => pagefold_image::ReadAhead::Off,
        ReadAheadConfig::BestEffort => pagefold_image::ReadAhead::BestEffort,
        ReadAheadConfig::Waiting => pagefold_image::ReadAhead::Waiting,
    }
}

fn mount(
    config: &MountConfig,
    image: Image,
    recorder: Option<Arc<Recorder>>,
    is_remote: bool,
) -> Result<Mount> {
    let uring = match config.fuse_uring {
        // Each CPU has few threads: those that wait for a server would keep all requests of their CPU waiting.
        FuseUring::Auto => !is_remote,
        FuseUring::On => true,
        FuseUring::Off => false,
    };
    let options = MountOptions {
        threads: config.threads,
        uring,
        allow_other: config.allow_other,
        suid: config.suid,
        devices: config.device_nodes,
        source: config.media.image.name().into(),
        // Requests to servers should be under way long before the kernel needs their bytes.
        reads_ahead_beside_kernel: is_remote || config.read_ahead == ReadAheadConfig::Waiting,
        recorder,
        ..MountOptions::default()
    };
    let drop_all = || -> Result<(), SysError> { privileges::drop_capabilities() };
    Mount::new_then(image, &config.mount_point, &options, drop_all).map_err(|e| match e {
        MountError::Image(e) => failure_of(config, &e),
        e => failure(&e),
    })
}

/// The error for a failure of an image, with its causes. The message begins with `what`.
pub fn image_failure(what: impl Display, error: &ImageError) -> CliError {
    let exit = match error {
        ImageError::NotFound { .. } | ImageError::ParentNotDirectory { .. } => Exit::NotFound,
        ImageError::MissingDevices { .. }
        | ImageError::SurplusDevices { .. }
        | ImageError::TooLittleMemory { .. } => Exit::Usage,
        error if error.is_damage() => Exit::Damaged,
        _ => Exit::Failed,
    };
    CliError::new(exit, format!("{what}: {}", with_causes(error)))
}

fn failure_of(config: &MountConfig, error: &ImageError) -> CliError {
    image_failure(format_args!("'{}'", config.media.image), error)
}

fn failure(error: &MountError) -> CliError {
    let exit = match error {
        MountError::Taken { .. } => Exit::Busy,
        MountError::NoFuse(_) | MountError::NotPermitted(_) | MountError::Helper { .. } => Exit::Unavailable,
        _ => Exit::Failed,
    };
    let what = match error {
        // The device is there, so the module is loaded.
        MountError::NoFuse(e) if matches!(e.errno, libc::EACCES | libc::EPERM) => format!(
            "FUSE cannot be used: {e}; let this user open /dev/fuse (mode 0666, as systems set it), and install \
             fusermount3 (package fuse3)"
        ),
        error => with_causes(error).to_string(),
    };
    CliError::new(exit, what)
}

/// Waits until the image is unmounted, a signal comes, or the command in the foreground exits. Meanwhile it ends the
/// recording when its time is over.
fn wait_for_end(
    mount: &Mount,
    signals: &Termination,
    channel: StartupChannel,
    recording: Option<&Recording>,
) -> Result<()> {
    let foreground = channel.into_foreground_socket();
    // Without a command in the foreground, the third descriptor is one that is polled anyway.
    let third = foreground.as_ref().map_or(mount.ended(), |socket| socket.as_fd());
    loop {
        let remaining = recording.and_then(Recording::remaining);
        let [signalled, ended, exited] = ready::wait([signals.as_fd(), mount.ended(), third], remaining)?;
        if let Some(recording) = recording
            && recording.remaining().is_some_and(|left| left.is_zero())
        {
            // The report has the error, and so has the end of the server.
            let _ = recording.finish();
        }
        if ended || exited || (signalled && signals.take().is_some()) {
            return Ok(());
        }
    }
}

/// Answers the requests of commands for the report; refuses others.
impl RequestHandler for MountSession {
    fn handle(&self, request: Request, _: &mut dyn FnMut(&PassProgress) -> bool) -> Response {
        match request {
            Request::Show {} => Response::Mount(Box::new(report::report(self))),
            _ => {
                Response::Refused(CliError::usage("the server of a mounted image does not know this request"))
            }
        }
    }

    fn reply_sent(&self) {}
}
