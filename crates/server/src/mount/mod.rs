//! The server of a mounted image.
//!
//! The order of the set-up is important:
//!
//! 1. While there is one thread: the files, the state file and the control socket, with the user's rights, and two processes
//!    that keep these rights for what is done later: the broker (`crate::broker`), to mount, to unmount, to write a list, and
//!    the fetcher (`crate::fetcher`), to ask servers for an image that is there.
//! 2. The process is confined. From then on no thread has a right that serving does not need.
//! 3. The image is opened: the first foreign bytes are parsed. Threads of read-ahead, of FUSE and of the control socket start.
//!
//! A server that takes a mount over has only the request of the first one to begin with, which the keeper has from before the
//! image was opened. It unpacks what its predecessor handed over when it is confined: that one has parsed the image.
//!
//! The main thread waits for the end, and lets the broker unmount.

pub mod cache;
mod kept;
pub(crate) mod lists;
pub mod media;
mod report;
pub(crate) mod shares;

use crate::broker::{Broker, ByBroker, Duties};
use crate::confinement::{self, Kind};
use crate::fetcher::{FetchedSource, Fetcher};
use crate::keeper::{self, ExitOnFailure, FAILED, Handover, KeeperLink, State};
use crate::socket::{ControlSocket, RequestHandler};
use crate::startup::StartupChannel;
use kept::{Kept, Version};
use lists::{Prefetch, Recording};
use media::{Media, OpenFiles, Sources};
use pagefold_control::config::{FuseUring, MountConfig, ReadAheadConfig};
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::instance::InstanceDir;
use pagefold_control::instance::state::MountState;
use pagefold_control::protocol::{Request, Response};
use pagefold_control::report::ConfinementReport;
use pagefold_control::report::writeback::PassProgress;
use pagefold_control::startup::{ENDED, Ready};
use pagefold_fuse::{Keep, KeptMount};
use pagefold_image::mount::{LEAST_REPLY_BYTES, Mount, MountError, MountOptions};
use pagefold_image::startup::Recorder;
use pagefold_image::with_causes;
use pagefold_image::{Image, ImageError, Options};
use pagefold_page::size::Human;
use pagefold_sys::privileges;
use pagefold_sys::signal::Termination;
use pagefold_sys::{detach, pidfd, ready};
use report::MountSession;
use std::fmt::Display;
use std::fs::File;
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
        /// The lock of the instance.
        lock: &'a OwnedFd,
    },
    /// A former server has mounted it, and handed this over.
    TakenOver(State),
}

/// Serves a mounted image until it is unmounted or a signal ends it. A keeper, if there is one, starts another server when
/// this one dies. The caller holds the lock of the instance.
pub fn run(
    config: &MountConfig,
    dir: &InstanceDir,
    origin: Origin<'_>,
    keeper: &mut Option<KeeperLink>,
) -> Result<()> {
    privileges::set_private_umask();
    let signals = Termination::listen()?;
    let begun = Instant::now();
    let served = match origin {
        Origin::New { channel, lock } => serve_new(config, dir, channel, lock, keeper, begun)?,
        Origin::TakenOver(state) => {
            serve_again(config, dir, state, keeper, begun).inspect_err(|failure| {
                // The former server serves on, or the keeper tries again.
                keeper.take().iter().for_each(|keeper| keeper.report_failure(&failure.message));
            })?
        }
    };
    let ended = served.wait_for_end(&signals, keeper);
    served.end(ended)
}

/// A mount that is served.
struct Served {
    /// Dropped before the mount.
    guard: Option<ExitOnFailure>,
    mount: Mount,
    broker: Arc<Broker>,
    fetcher: Option<Arc<Fetcher>>,
    recording: Option<Arc<Recording>>,
    /// The socket to a command in the foreground.
    command: Option<UnixStream>,
}

/// A server that has opened the image.
struct Prepared {
    opened: Opened,
    fetcher: Option<Arc<Fetcher>>,
    broker: Arc<Broker>,
    confinement: ConfinementReport,
    options: MountOptions,
    versions: Vec<Version>,
    recording: Option<Arc<Recording>>,
    prefetch: Option<Prefetch>,
    begun: Instant,
}

fn serve_new(
    config: &MountConfig,
    dir: &InstanceDir,
    channel: StartupChannel,
    lock: &OwnedFd,
    keeper: &mut Option<KeeperLink>,
    begun: Instant,
) -> Result<Served> {
    let mut files = OpenFiles::default();
    let media = Media::open_with(&config.media, &mut files)?;
    let prefetch = config.prefetch.as_deref().map(|path| Prefetch::open(path, &mut files)).transpose()?;
    let folder = File::open(dir.path()).map_err(|e| CliError::io("opening the instance", &e))?;
    let control = ControlSocket::bind(&dir.control_path())?;
    let state = MountState {
        image: config.media.image.name(),
        mount_point: config.mount_point.clone(),
        server: pidfd::Identity::of_self().map(Into::into),
        device: None,
    };
    dir.write_state(&state)?;
    let duties = Duties::new(dir, config, state, keeper.as_ref().map_or(&[], KeeperLink::start));
    let confined = Confined::new(config, duties, keeper)?;
    let prepared = Prepared::new(config, media, prefetch, confined, begun, true)?;
    let command = channel.foreground_socket()?;
    let handover = Handover {
        lock: lock.as_fd(),
        folder: folder.as_fd(),
        control: control.as_fd(),
        command: command.as_ref().map(AsFd::as_fd),
    };
    let keep = keeper.as_mut().map(|keeper| -> Keep<'_> {
        let pack = |mount: &KeptMount| kept::pack(&handover, mount, &files, &prepared.versions);
        Box::new(move |mount| {
            pack(&mount).and_then(|state| keeper.hand_over(state)).map_err(|e| e.to_string())
        })
    });
    let by_broker = ByBroker(prepared.broker.clone());
    let mount = Mount::new_kept(prepared.opened.image.clone(), &prepared.options, &by_broker, keep)
        .map_err(|e| mount_failure(config, e))?;
    let is_kept = mount.kept() == Some(&Ok(())) && keeper.is_some();
    keeper.iter().for_each(KeeperLink::become_independent);
    let mut warnings = warnings(&prepared);
    warnings.extend(without_rings(config, &mount));
    let mut served = prepared.serve(config, dir, mount, control, command)?;
    // Before the command can kill this server: from now on its death is not that of the mount.
    keeper.iter().for_each(KeeperLink::report_serving);
    // If a new server fails before the command confirms it, nothing stays mounted.
    channel.ready(&Ready {
        device: config.mount_point.display().to_string(),
        export: "fuse".into(),
        swap_warning: None,
        warnings,
    })?;
    if is_kept {
        served.become_kept();
    }
    Ok(served)
}

/// Waits until this server may take the mount over, and serves it. No command waits for it.
fn serve_again(
    config: &MountConfig,
    dir: &InstanceDir,
    state: State,
    keeper: &mut Option<KeeperLink>,
    begun: Instant,
) -> Result<Served> {
    let state_file = dir.read_state_as::<MountState>();
    let state_file = state_file.ok_or_else(|| CliError::failed("the state file cannot be read"))?;
    let link = keeper.as_mut().ok_or_else(|| CliError::failed("there is no keeper"))?;
    let duties = Duties::new(dir, config, state_file, link.start());
    let confined = Confined::new(config, duties, keeper)?;
    let mut kept = Kept::of(state)?;
    let mut files = std::mem::take(&mut kept.files);
    let media = Media::open_with(&config.media, &mut files)?;
    let prefetch = config.prefetch.as_deref().map(|path| Prefetch::open(path, &mut files)).transpose();
    let prefetch = or_without(prefetch);
    let prepared = Prepared::new(config, media, prefetch, confined, begun, false)?;
    kept.check_versions(&prepared.versions)?;
    let Kept { mount, control, command, packed, .. } = kept;
    let link = keeper.as_mut().ok_or_else(|| CliError::failed("there is no keeper"))?;
    prepared.broker.take_turn(link.wait_for_turn()?)?;
    link.note_taken_over(packed);
    // Before the mount: an error after it would unmount.
    let control = ControlSocket::taken_over(control)?;
    let mounted = prepared.broker.former_mount(mount.device, mount.is_by_helper);
    let mount = Mount::take_over(prepared.opened.image.clone(), mounted, &prepared.options, mount)
        .map_err(|e| mount_failure(config, e))?;
    let guard = ExitOnFailure;
    link.become_independent();
    let mut served = prepared.serve(config, dir, mount, control, command)?;
    link.report_serving();
    std::mem::forget(guard);
    served.become_kept();
    Ok(served)
}

/// The part of a list of a server that takes over, which can do without it: nobody is there to read an error.
fn or_without<T>(made: Result<Option<T>>) -> Option<T> {
    made.unwrap_or_else(|e| {
        crate::log::warning(format_args!("{e}"));
        None
    })
}

/// A process that is confined, and those that work for it.
struct Confined {
    broker: Arc<Broker>,
    /// If the image is on a server.
    fetcher: Option<Arc<Fetcher>>,
    confinement: ConfinementReport,
}

impl Confined {
    /// Forks the fetcher and the broker, and confines this process.
    fn new(config: &MountConfig, duties: Duties, keeper: &mut Option<KeeperLink>) -> Result<Self> {
        let log = |text: &str| crate::log::warning(format_args!("{text}"));
        let fetcher = Fetcher::start(&config.media, config.memory_bytes, log)?;
        let broker = Broker::start(duties)?;
        detach::new_session();
        if let Some(keeper) = keeper {
            let broker = broker.clone();
            keeper.start_keepers_by(move |link| broker.start_keeper(link.as_fd()));
        }
        let rings = config.fuse_uring == FuseUring::On;
        let confinement = confinement::confine(Kind::Image { rings })?;
        Ok(Confined { broker, fetcher, confinement })
    }
}

impl Prepared {
    fn new(
        config: &MountConfig,
        media: Media,
        prefetch: Option<Prefetch>,
        Confined { broker, fetcher, confinement }: Confined,
        begun: Instant,
        is_new: bool,
    ) -> Result<Self> {
        let opened = open_image(config, media, fetcher.as_ref())?;
        prefetch.as_ref().map(|prefetch| prefetch.start(&opened.image)).transpose()?;
        let root = opened.image.superblock().root_nid;
        let record = |config| {
            broker.check_list()?;
            let broker = broker.clone();
            Ok(Recording::start(config, root, Box::new(move |text| broker.write_list(text))))
        };
        let recording = match (is_new, config.record.as_ref().map(record).transpose()) {
            (true, recording) => recording?,
            (false, recording) => or_without(recording),
        };
        let recorder = recording.as_ref().map(|recording| recording.recorder());
        let options = options(config, recorder, !opened.remote.is_empty());
        let versions = Version::of(&opened.remote);
        Ok(Prepared { opened, fetcher, broker, confinement, options, versions, recording, prefetch, begun })
    }

    /// Lets commands connect.
    fn serve(
        self,
        config: &MountConfig,
        dir: &InstanceDir,
        mount: Mount,
        control: ControlSocket,
        command: Option<UnixStream>,
    ) -> Result<Served> {
        let Prepared { opened, fetcher, broker, confinement, recording, prefetch, begun, .. } = self;
        let session = MountSession {
            config: config.clone(),
            dir: dir.clone(),
            image: opened.image,
            threads: mount.threads(),
            transport: crate::transport::name(mount.transport()),
            without_rings: without_rings(config, &mount),
            rings: crate::transport::rings(mount.transport()),
            not_kept: crate::transport::not_kept(mount.kept(), mount.transport()),
            confinement,
            max_read_bytes: mount.read_bytes(),
            requests: mount.requests(),
            panics: mount.panics(),
            fetcher: fetcher.clone(),
            begun,
            first_read: mount.first_read(),
            recording: recording.clone(),
            prefetch,
        };
        control.serve(Arc::new(session))?;
        Ok(Served { guard: None, mount, broker, fetcher, recording, command })
    }
}

/// The warning that rings do not serve, if the user wants them.
fn without_rings(config: &MountConfig, mount: &Mount) -> Option<String> {
    crate::transport::warning(mount.transport()).filter(|_| config.fuse_uring == FuseUring::On)
}

/// The warnings of a new mount, each a clause.
fn warnings(prepared: &Prepared) -> Vec<String> {
    let Prepared { opened, fetcher, prefetch, .. } = prepared;
    let short = opened.image.short_devices();
    let short = short.iter().map(|short| format!("{short}; reads of the missing part fail"));
    let notes = opened.notes.iter().cloned();
    let of_cache = fetcher.as_ref().and_then(|fetcher| fetcher.without_cache()).map(String::from);
    short.chain(notes).chain(of_cache).chain(prefetch.as_ref().and_then(Prefetch::warning)).collect()
}

/// An image, and those of its sources that are on servers.
struct Opened {
    image: Image,
    remote: Vec<Arc<FetchedSource>>,
    /// Notes on them for users.
    notes: Vec<String>,
}

fn open_image(config: &MountConfig, media: Media, fetcher: Option<&Arc<Fetcher>>) -> Result<Opened> {
    let Sources { image, beginning, devices, remote, notes, memory_bytes, .. } =
        media.connect(config.memory_bytes, fetcher)?;
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
        let e = beginning.explain(e);
        let failure = failure_of(config, &e);
        match (e, config.memory_bytes - memory_bytes) {
            (ImageError::TooLittleMemory { .. }, bytes @ 1..) => {
                let what = format!("{failure}; {} of --memory is for what servers send", Human(bytes));
                CliError::new(failure.exit, what)
            }
            _ => failure,
        }
    })?;
    Ok(Opened { image, remote, notes })
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
    /// Notes that another server follows when this one ends by a failure.
    fn become_kept(&mut self) {
        self.guard = Some(ExitOnFailure);
        self.fetcher.iter().for_each(|fetcher| fetcher.end_process_with_it());
    }

    /// Unmounts, and cleans up.
    fn end(mut self, ended: Result<()>) -> Result<()> {
        match (ended, self.guard.take()) {
            (Ok(()), guard) => std::mem::forget(guard),
            (Err(e), guard) => {
                crate::log::error(format_args!("{e}"));
                drop(guard);
                return Err(e);
            }
        }
        self.mount.stop().map_err(|e| failure(&e))?;
        self.fetcher.iter().for_each(|fetcher| fetcher.end());
        // After the last read. An error must not leave the folder behind.
        let recorded = self.recording.map_or(Ok(()), |recording| recording.finish());
        self.broker.remove_files().and(recorded)?;
        if let Some(mut command) = self.command {
            // It may have gone.
            let _ = command.write_all(&[ENDED, b"\n"].concat());
        }
        Ok(())
    }

    /// Waits until the image is unmounted, a signal comes, or the command in the foreground exits. Meanwhile it ends the
    /// recording when its time is over, and replaces a dead keeper.
    fn wait_for_end(&self, signals: &Termination, keeper: &mut Option<KeeperLink>) -> Result<()> {
        let Served { mount, broker, fetcher, recording, command, .. } = self;
        let (mut broker, mut fetcher) = (Some(broker), fetcher.as_ref());
        loop {
            let remaining = recording.as_ref().and_then(|recording| recording.remaining());
            // A descriptor that is polled anyway stands for one that is missing.
            let fds = [
                signals.as_fd(),
                mount.ended(),
                mount.first_end(),
                command.as_ref().map_or(mount.ended(), AsFd::as_fd),
                keeper.as_ref().map_or(mount.ended(), AsFd::as_fd),
                broker.map_or(mount.ended(), AsFd::as_fd),
                fetcher.map_or(mount.ended(), AsFd::as_fd),
            ];
            let [signalled, ended, first_ended, exited, keeper_ended, broker_ended, fetcher_ended] =
                ready::wait(fds, remaining)?;
            if let Some(recording) = recording
                && recording.remaining().is_some_and(|left| left.is_zero())
            {
                // The report has the error, and so has the end of the server.
                let _ = recording.finish();
            }
            let lost = match () {
                () if broker_ended && broker.is_some() && !ended => Some("broker"),
                () if fetcher_ended && fetcher.is_some() && !ended => Some("fetcher"),
                () => None,
            };
            let failure = mount.failure().filter(|_| first_ended);
            let failure = failure.or_else(|| lost.map(|lost| format!("the {lost} of this server has died")));
            let is_kept = keeper.is_some() && mount.kept() == Some(&Ok(()));
            // If the keeper has just died, another one is started first.
            if let Some(why) = failure
                && is_kept
                && !keeper_ended
            {
                // The next server has all its threads, a broker, a fetcher, and no panics behind it.
                crate::log::error(format_args!("{why}"));
                crate::log::finish();
                std::process::exit(FAILED);
            }
            if let Some(lost) = lost.filter(|_| !is_kept) {
                crate::log::warning(format_args!(
                    "the {lost} of this server has died; 'image unmount' unmounts"
                ));
                match lost {
                    "broker" => broker = None,
                    _ => fetcher = None,
                }
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
    fn handle(
        &self,
        request: Request,
        _: Vec<OwnedFd>,
        _: &mut dyn FnMut(&PassProgress) -> bool,
    ) -> Response {
        match request {
            Request::Show {} => Response::Mount(Box::new(report::report(self))),
            _ => {
                Response::Refused(CliError::usage("the server of a mounted image does not know this request"))
            }
        }
    }

    fn reply_sent(&self) {}
}
