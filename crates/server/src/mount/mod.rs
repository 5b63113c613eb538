//! The server of a mounted image.
//!
//! New threads inherit the capabilities of the thread that starts them, so each part of the set-up runs in a thread
//! with the right ones. The main thread opens the files with the user's rights. A thread without capabilities asks servers,
//! opens the image and starts the threads of read-ahead. Another mounts, drops its capabilities, and starts the threads that
//! serve FUSE requests. A third starts the control socket. Only the main thread keeps the capability to unmount; it
//! reads nothing of the image and waits for the end.

pub mod cache;
mod kept;
mod lists;
pub mod media;
mod report;
mod shares;

use crate::keeper::{self, ExitOnFailure, FAILED, Handover, KeeperLink, State};
use crate::socket::{ControlSocket, RequestHandler};
use crate::startup::StartupChannel;
use cache::OpenedCache;
pub use kept::Kept;
use kept::Version;
use lists::{ListFile, Prefetch, Recording};
use media::{Media, OpenFiles, Sources};
use pagefold_control::config::{FuseUring, MountConfig, ReadAheadConfig};
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::instance::state::MountState;
use pagefold_control::instance::{InstanceDir, RuntimeDir};
use pagefold_control::media::Location;
use pagefold_control::protocol::{Request, Response};
use pagefold_control::report::writeback::PassProgress;
use pagefold_control::startup::{ENDED, Ready, StartRequest};
use pagefold_fuse::{Keep, KeptMount};
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
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a server waits before it tries again to start a keeper.
const KEEPER_PAUSE: Duration = Duration::from_secs(1);
/// How long a server whose first thread has ended waits before it looks for other events.
const FIRST_END_PAUSE: Duration = Duration::from_millis(100);

/// How the server of a mount begins.
pub enum Origin<'a> {
    /// It mounts the image.
    New {
        /// The socket to the command.
        channel: StartupChannel,
        /// The request of the command.
        start: &'a StartRequest,
        /// The lock of the instance.
        lock: &'a OwnedFd,
    },
    /// A former server has mounted it.
    TakenOver(Box<Kept>),
}

/// Serves a mounted image until it is unmounted or a signal ends it. A keeper, if there is one, starts another server when
/// this one dies. The caller holds the lock of the instance.
pub fn run(
    config: &MountConfig,
    dir: &InstanceDir,
    origin: Origin<'_>,
    keeper: &mut Option<KeeperLink>,
) -> Result<()> {
    if matches!(config.media.image, Location::Url(_)) {
        // Ranges of servers come by many threads, and leave by others: their gaps took 15 MiB beyond the budget.
        pagefold_sys::malloc::share_one_heap();
    }
    privileges::set_private_umask();
    if rundir::effective_uid() == 0 {
        // Other users mount with the set-user-id program fusermount3, which must gain privileges.
        privileges::set_no_new_privs()?;
    }
    let signals = Termination::listen()?;
    let is_new = matches!(origin, Origin::New { .. });
    let served = serve(config, dir, origin, keeper).inspect_err(|failure| {
        if !is_new {
            // The former server serves on, or the keeper tries again.
            keeper.take().iter().for_each(|keeper| keeper.report_failure(&failure.message));
        }
    })?;
    let ended = served.wait_for_end(&signals, keeper);
    served.end(dir, ended)
}

/// A mount that is served.
struct Served {
    /// Dropped before the mount.
    guard: Option<ExitOnFailure>,
    mount: Mount,
    recording: Option<Arc<Recording>>,
    /// The socket to a command in the foreground.
    command: Option<UnixStream>,
}

fn serve(
    config: &MountConfig,
    dir: &InstanceDir,
    mut origin: Origin<'_>,
    keeper: &mut Option<KeeperLink>,
) -> Result<Served> {
    let begun = Instant::now();
    let mut files = match &mut origin {
        Origin::New { .. } => OpenFiles::default(),
        Origin::TakenOver(kept) => std::mem::take(&mut kept.files),
    };
    let media =
        Media::open_with(&config.media, &mut files, |text| crate::log::warning(format_args!("{text}")))?;
    let list_file = origin.optional(config.record.as_ref().map(ListFile::open))?;
    let prefetch = origin.optional(config.prefetch.as_deref().map(Prefetch::open))?;
    let is_root = rundir::effective_uid() == 0;
    let keep = if is_root { CapabilitySet::SYS_ADMIN } else { CapabilitySet::empty() };
    privileges::drop_capabilities_except(keep)?;
    if let Origin::New { .. } = origin {
        write_state(config, dir)?;
    }
    let Opened { image, remote, notes, cache } = run_in_thread(|| {
        privileges::drop_capabilities()?;
        let opened = open_image(config, media)?;
        prefetch.as_ref().map(|prefetch| prefetch.start(&opened.image)).transpose()?;
        Ok(opened)
    })?;
    let root = image.superblock().root_nid;
    let recording = origin.optional(list_file.map(|file| file.start(root)))?;
    let mut warnings = warnings(&image, notes, cache.as_ref(), prefetch.as_ref());
    let recorder = recording.as_ref().map(|recording| recording.recorder());
    let options = options(config, recorder, !remote.is_empty());
    let versions = Version::of(&remote);
    if let Origin::TakenOver(kept) = &origin {
        kept.check_versions(&versions)?;
    }
    let (mount, control, startup, command) = match origin {
        Origin::New { channel, start, lock } => {
            let control = ControlSocket::bind(&dir.control_path())?;
            let command = channel.foreground_socket()?;
            let handover = Handover {
                start,
                lock: lock.as_fd(),
                control: control.as_fd(),
                command: command.as_ref().map(AsFd::as_fd),
            };
            let pack = |mount: &KeptMount| kept::pack(&handover, mount, &files, &versions);
            let image = image.clone();
            let mount = run_in_thread(|| mount(config, image, &options, &pack, keeper.as_mut()))?;
            (mount, control, Some(channel), command)
        }
        Origin::TakenOver(kept) => take_over(config, dir, &image, &options, *kept, keeper.as_mut())?,
    };
    let is_kept = mount.kept() == Some(&Ok(())) && keeper.is_some();
    // If a new server fails before the command confirms it, nothing stays mounted.
    let mut guard = (is_kept && startup.is_none()).then(|| ExitOnFailure);
    keeper.iter().for_each(KeeperLink::become_independent);
    if config.media.remote.authorization.is_some() || config.media.remote.stores.is_some() {
        // Not before: the helper that mounts for users looks at this process.
        privileges::forbid_dumps()?;
    }
    let without_rings =
        crate::transport::warning(mount.transport()).filter(|_| config.fuse_uring == FuseUring::On);
    warnings.extend(without_rings.clone());
    let session = MountSession {
        config: config.clone(),
        dir: dir.clone(),
        image,
        threads: mount.threads(),
        transport: crate::transport::name(mount.transport()),
        without_rings,
        rings: crate::transport::rings(mount.transport()),
        not_kept: crate::transport::not_kept(mount.kept(), mount.transport()),
        max_read_bytes: mount.read_bytes(),
        requests: mount.requests(),
        remote,
        cache,
        begun,
        panics: mount.panics(),
        first_read: mount.first_read(),
        recording: recording.clone(),
        prefetch,
    };
    run_in_thread(|| {
        privileges::drop_capabilities()?;
        control.serve(Arc::new(session))
    })?;
    // Before the command can kill this server: from now on its death is not that of the mount.
    keeper.iter().for_each(KeeperLink::report_serving);
    if let Some(channel) = startup {
        channel.ready(&Ready {
            device: config.mount_point.display().to_string(),
            export: "fuse".into(),
            swap_warning: None,
            warnings,
        })?;
        guard = is_kept.then(|| ExitOnFailure);
    }
    Ok(Served { guard, mount, recording, command })
}

/// Waits until this server may take the mount over, and serves it. Returns what a new mount has too; no command waits for
/// it.
fn take_over(
    config: &MountConfig,
    dir: &InstanceDir,
    image: &Image,
    options: &MountOptions,
    kept: Kept,
    keeper: Option<&mut KeeperLink>,
) -> Result<(Mount, ControlSocket, Option<StartupChannel>, Option<UnixStream>)> {
    let Kept { mount, control, command, packed, .. } = kept;
    let keeper = keeper.ok_or_else(|| CliError::failed("there is no keeper"))?;
    keeper.wait_for_turn()?;
    keeper.note_taken_over(packed);
    write_state(config, dir)?;
    // Before the mount: an error after it would unmount.
    let control = ControlSocket::taken_over(control)?;
    let mount = run_in_thread(|| {
        privileges::drop_capabilities()?;
        Mount::take_over(image.clone(), &config.mount_point, options, mount)
            .map_err(|e| mount_failure(config, e))
    })?;
    Ok((mount, control, None, command))
}

/// The warnings of a new mount, each a clause.
fn warnings(
    image: &Image,
    notes: Vec<String>,
    cache: Option<&OpenedCache>,
    prefetch: Option<&Prefetch>,
) -> Vec<String> {
    let short = image.short_devices();
    let short = short.iter().map(|short| format!("{short}; reads of the missing part fail"));
    let of_cache = cache.and_then(OpenedCache::warning).map(String::from);
    short.chain(notes).chain(of_cache).chain(prefetch.and_then(Prefetch::warning)).collect()
}

impl Origin<'_> {
    /// The parts of a list, which a server can do without that takes over: nobody is there to read an error.
    fn optional<T>(&self, made: Option<Result<T>>) -> Result<Option<T>> {
        match (self, made) {
            (Origin::TakenOver(_), Some(Err(e))) => {
                crate::log::warning(format_args!("{e}"));
                Ok(None)
            }
            (_, made) => made.transpose(),
        }
    }
}

fn write_state(config: &MountConfig, dir: &InstanceDir) -> Result<()> {
    dir.write_state(&MountState {
        image: config.media.image.name(),
        mount_point: config.mount_point.clone(),
        server: pidfd::Identity::of_self().map(Into::into),
    })
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

fn options(config: &MountConfig, recorder: Option<Arc<Recorder>>, is_remote: bool) -> MountOptions {
    MountOptions {
        threads: config.threads,
        // A dead server's requests do not come again from a ring: only if the user insists.
        uring: config.fuse_uring == FuseUring::On,
        allow_other: config.allow_other,
        suid: config.suid,
        devices: config.device_nodes,
        source: config.media.image.name().into(),
        // Requests to servers should be under way long before the kernel needs their bytes.
        reads_ahead_beside_kernel: is_remote || config.read_ahead == ReadAheadConfig::Waiting,
        recorder,
        ..MountOptions::default()
    }
}

fn mount(
    config: &MountConfig,
    image: Image,
    options: &MountOptions,
    pack: &(dyn Fn(&KeptMount) -> Result<State> + Sync),
    keeper: Option<&mut KeeperLink>,
) -> Result<Mount> {
    let drop_all = || -> Result<(), SysError> { privileges::drop_capabilities() };
    let keep = keeper.map(|keeper| -> Keep<'_> {
        Box::new(|mount| pack(&mount).and_then(|state| keeper.hand_over(state)).map_err(|e| e.to_string()))
    });
    Mount::new_kept(image, &config.mount_point, options, drop_all, keep).map_err(|e| mount_failure(config, e))
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

fn mount_failure(config: &MountConfig, error: MountError) -> CliError {
    match error {
        MountError::Image(e) => failure_of(config, &e),
        e => failure(&e),
    }
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

impl Served {
    /// Unmounts, and cleans up.
    fn end(mut self, dir: &InstanceDir, ended: Result<()>) -> Result<()> {
        match (ended, self.guard.take()) {
            (Ok(()), guard) => std::mem::forget(guard),
            (Err(e), guard) => {
                crate::log::error(format_args!("{e}"));
                drop(guard);
                return Err(e);
            }
        }
        self.mount.stop().map_err(|e| failure(&e))?;
        // After the last read. An error must not leave the folder behind.
        let recorded = self.recording.map_or(Ok(()), |recording| recording.finish());
        let runtime = RuntimeDir::containing(dir)?;
        let _locked = runtime.lock()?;
        dir.remove().and(recorded)?;
        if let Some(mut command) = self.command {
            // It may have gone.
            let _ = command.write_all(&[ENDED, b"\n"].concat());
        }
        Ok(())
    }

    /// Waits until the image is unmounted, a signal comes, or the command in the foreground exits. Meanwhile it ends the
    /// recording when its time is over, and replaces a dead keeper.
    fn wait_for_end(&self, signals: &Termination, keeper: &mut Option<KeeperLink>) -> Result<()> {
        let Served { mount, recording, command, .. } = self;
        loop {
            let remaining = recording.as_ref().and_then(|recording| recording.remaining());
            // A descriptor that is polled anyway stands for one that is missing.
            let fds = [
                signals.as_fd(),
                mount.ended(),
                mount.first_end(),
                command.as_ref().map_or(mount.ended(), AsFd::as_fd),
                keeper.as_ref().map_or(mount.ended(), AsFd::as_fd),
            ];
            let [signalled, ended, first_ended, exited, keeper_ended] = ready::wait(fds, remaining)?;
            if let Some(recording) = recording
                && recording.remaining().is_some_and(|left| left.is_zero())
            {
                // The report has the error, and so has the end of the server.
                let _ = recording.finish();
            }
            // If the keeper has just died, another one is started first.
            if first_ended
                && !keeper_ended
                && keeper.is_some()
                && mount.kept() == Some(&Ok(()))
                && let Some(why) = mount.failure()
            {
                // The next server has all its threads, and no panics behind it.
                crate::log::error(format_args!("{why}"));
                crate::log::finish();
                std::process::exit(FAILED);
            }
            if ended || exited || (signalled && signals.take().is_some()) {
                return Ok(());
            }
            if keeper_ended && keeper.is_some() {
                if !keeper::replace_dead(keeper) {
                    ready::wait([signals.as_fd(), mount.ended()], Some(KEEPER_PAUSE))?;
                }
            } else if first_ended {
                // All threads end together, unless one has failed and there is no keeper: the others serve on.
                ready::wait([signals.as_fd(), mount.ended()], Some(FIRST_END_PAUSE))?;
            }
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
