//! `image mount`: creates the folder of the instance, starts the server, and waits until it has mounted the image.

use super::open::{MediaArgs, path_failure};
use super::{find, kernel, mount_advice};
use crate::cli::output;
use crate::cli::values::{self, fuse_uring};
use clap::{Args, ValueHint};
use pagefold_control::config::{FuseUring, MountConfig, ReadAheadConfig, RecordConfig, ServerConfig};
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::instance::mounts as served_mounts;
use pagefold_control::instance::{InstanceDir, NewInstance, RuntimeDir};
use pagefold_control::media::{Location, MediaConfig, VerityConfig};
use pagefold_control::startup::{self, Attachment, PassedFds, StartedServer};
use pagefold_server::mount::media::TREE_SUFFIX;
use pagefold_sys::signal::Termination;
use pagefold_sys::{rundir, userns};
use std::path::{Path, PathBuf};

/// The longest time of a recording with a limit, seconds.
const MAX_RECORD_S: u64 = 24 * 3600;

/// The arguments of `image mount`.
#[derive(Debug, Args)]
pub struct MountArgs {
    #[command(flatten)]
    pub media: MediaArgs,
    /// Directory to mount it on
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,
    /// Most memory for reading. It is for compressed and decompressed data, decompressors, cache and replies. Pages
    /// that the kernel caches are not counted
    #[arg(long, short = 'm', value_name = "SIZE", default_value = "64M", conflicts_with = "kernel")]
    pub memory: String,
    /// Number of threads that serve requests from /dev/fuse [default: number of CPUs + 1, at most 4]. Through io_uring, each
    /// possible CPU has one or two
    #[arg(long, short = 'j', value_name = "N", conflicts_with = "kernel", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,
    /// Whether requests come through io_uring instead of /dev/fuse. 'auto' means off, because a mount with io_uring fails
    /// when its server dies. The buffers of the rings are part of --memory, and take at most a fourth of it
    #[arg(long, value_parser = fuse_uring(), value_name = "auto|on|off", default_value = "auto", conflicts_with = "kernel")]
    pub fuse_uring: FuseUring,
    /// Let all users access the files, not only the user who mounts. The modes, owners and access lists in the image
    /// decide what each can read. Users other than root need 'user_allow_other' in /etc/fuse.conf
    #[arg(long, conflicts_with = "kernel")]
    pub allow_other: bool,
    /// Let set-user-id bits in the image have effect. Root only, for trusted images
    #[arg(long)]
    pub suid: bool,
    /// Let device nodes in the image have effect. Root only, for trusted images
    #[arg(long)]
    pub dev: bool,
    /// Stay in the foreground until Ctrl-C, SIGTERM or unmounting. The mount ends with the command
    #[arg(long, short = 'f', conflicts_with = "kernel")]
    pub foreground: bool,
    /// Let the server not read ahead of the kernel. It decompresses nothing, and asks servers for nothing, before the
    /// kernel requests it. The server of a local image that root mounts never does
    #[arg(long, conflicts_with = "kernel")]
    pub no_readahead: bool,
    /// Write what is read from now on into this start-up list. In the order of first use, when the image is unmounted,
    /// or after --record-for. `image mount --prefetch` and `image build --sort` read it
    #[arg(long, value_name = "LIST", value_hint = ValueHint::FilePath, conflicts_with = "kernel")]
    pub record: Option<PathBuf>,
    /// Write the list of --record after this time, and go on without recording
    #[arg(long, value_name = "TIME", requires = "record")]
    pub record_for: Option<String>,
    /// Fetch what this start-up list names, in its order and in the background
    #[arg(long, value_name = "LIST", value_hint = ValueHint::FilePath, conflicts_with = "kernel")]
    pub prefetch: Option<PathBuf>,
    /// Let read-ahead wait for memory, for measurements
    #[arg(long, conflicts_with_all = ["kernel", "no_readahead"], hide = true)]
    pub wait_readahead: bool,
    /// Mount with the kernel's EROFS instead of a server. For local images that you trust, whose files are often looked
    /// up or listed again, or are large. The image is checked first, because a damaged image can crash the kernel. All
    /// users have access; the modes, owners and access lists in the image decide what each can read
    #[arg(long, conflicts_with = "digest")]
    pub kernel: bool,
    /// Do not check the image before --kernel
    #[arg(long, requires = "kernel")]
    pub trusted: bool,
    /// Take the image's file system for a local one. No server and no other machine can change files of such a one
    /// after the check of --kernel. Needed where it is none of the known ones, or an overlay of them
    #[arg(long, requires = "kernel", conflicts_with = "trusted")]
    pub assume_local: bool,
}

/// Mounts an image.
pub fn run(args: &MountArgs) -> Result<()> {
    let config = config(args)?;
    if args.kernel {
        refuse_offset(&config.media)?;
        return kernel::run(&config, args.trusted, args.assume_local);
    }
    let signals = Termination::listen()?;
    let runtime = RuntimeDir::open_or_create_images()?;
    let new = create_instance(&runtime, &config)?;
    let dir = new.dir.clone();
    let fds = PassedFds { lock: &new.lock, backing: None, restore: None, restore_parents: &[] };
    let server_config = ServerConfig::Image(Box::new(config));
    let attachment = if args.foreground { Attachment::Foreground } else { Attachment::Detached };
    let started = match startup::start(&server_config, &new.dir, &fds, attachment, &signals) {
        Ok(started) => started,
        Err(failure) => {
            drop(new);
            clean_up(&runtime);
            return Err(mount_advice::add(failure));
        }
    };
    // The server holds a duplicate of the lock.
    drop(new);
    print_notes(args, &started);
    match args.foreground {
        false => started.detach().map(|_| ()).inspect_err(|_| clean_up(&runtime)),
        true => serve_in_foreground(&runtime, &dir, started, &signals),
    }
}

/// Fails if the image is a part of a file: the kernel mounts whole ones.
fn refuse_offset(media: &MediaConfig) -> Result<()> {
    let (offset, image) = (media.offset_bytes, &media.image);
    match offset {
        0 => Ok(()),
        _ => Err(CliError::usage(format!(
            "--kernel mounts whole files and devices; attach the image with 'losetup --read-only --offset {offset} --find \
             --show {image}' and mount the loop device, or mount it without --kernel"
        ))),
    }
}

/// Prints the notes on a new mount.
fn print_notes(args: &MountArgs, started: &StartedServer) {
    started.ready.warnings.iter().for_each(|warning| output::note(warning));
    if rundir::effective_uid() == 0 && !args.allow_other {
        output::note("only root can access the files; mount with --allow-other for other users");
    }
}

fn config(args: &MountArgs) -> Result<MountConfig> {
    let memory_bytes = values::bytes("--memory", &args.memory)?;
    if (args.suid || args.dev) && rundir::effective_uid() != 0 {
        return Err(CliError::usage("--suid and --dev are for root"));
    }
    if args.dev && !userns::has_system_users() {
        return Err(CliError::usage(
            "--dev has no effect in a user namespace: the kernel opens no devices there",
        ));
    }
    Ok(MountConfig {
        media: media(args)?,
        mount_point: find::resolve(&args.dir).map_err(|e| no_mount_point(&args.dir, &e))?,
        memory_bytes,
        threads: args.threads.map_or(0, usize::from),
        fuse_uring: args.fuse_uring,
        allow_other: args.allow_other,
        suid: args.suid,
        device_nodes: args.dev,
        read_ahead: match (args.no_readahead, args.wait_readahead) {
            (true, _) => ReadAheadConfig::Off,
            (_, true) => ReadAheadConfig::Waiting,
            _ => ReadAheadConfig::BestEffort,
        },
        record: record(args)?,
        prefetch: args.prefetch.as_deref().map(absolute_list).transpose()?,
    })
}

/// The list to write.
fn record(args: &MountArgs) -> Result<Option<RecordConfig>> {
    let Some(path) = &args.record else { return Ok(None) };
    let limit_s = args.record_for.as_deref().map(|text| values::seconds("--record-for", text)).transpose()?;
    if limit_s.is_some_and(|limit_s| !(1..=MAX_RECORD_S).contains(&limit_s)) {
        return Err(CliError::usage("--record-for is between a second and a day"));
    }
    Ok(Some(RecordConfig { path: absolute_list(path)?, limit_s }))
}

fn absolute_list(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|e| unusable(path, &e))
}

/// The error for a directory that an image cannot be mounted on, with advice if there is none.
fn no_mount_point(path: &Path, e: &std::io::Error) -> CliError {
    let failure = unusable(path, e);
    match failure.exit {
        Exit::NotFound => CliError::new(failure.exit, format!("{failure}; create the directory first")),
        _ => failure,
    }
}

/// The media, with absolute paths.
fn media(args: &MountArgs) -> Result<MediaConfig> {
    let mut media = absolute_media(args.media.config()?)?;
    media.remote.read_ahead = !args.no_readahead;
    Ok(media)
}

/// Makes all paths absolute, because the server may run in another directory.
fn absolute_media(media: MediaConfig) -> Result<MediaConfig> {
    // The name of a Merkle tree is made of the name of the image, which may be a link.
    let verity = media.verity.as_ref().map(|verity| {
        let default_trees = media.all().skip(verity.trees.len()).map(|image| image.with_suffix(TREE_SUFFIX));
        let trees = verity.trees.iter().cloned().chain(default_trees);
        let trees = trees.map(|tree| with_path(&tree, |path| std::path::absolute(path)));
        Ok::<_, CliError>(VerityConfig { trees: trees.collect::<Result<_>>()?, ..verity.clone() })
    });
    let absolute = |location: &Location| with_path(location, Path::canonicalize);
    let devices = media.devices.iter().map(absolute).collect::<Result<_>>()?;
    Ok(MediaConfig { image: absolute(&media.image)?, devices, verity: verity.transpose()?, ..media })
}

/// The location with the path that `of` makes of that of a file.
fn with_path(location: &Location, of: impl Fn(&Path) -> std::io::Result<PathBuf>) -> Result<Location> {
    match location {
        Location::File(path) => of(path).map(Location::File).map_err(|e| unusable(path, &e)),
        url => Ok(url.clone()),
    }
}

fn unusable(path: &Path, e: &std::io::Error) -> CliError {
    path_failure(format_args!("'{}'", path.display()), e)
}

fn create_instance(runtime: &RuntimeDir, config: &MountConfig) -> Result<NewInstance> {
    let locked = runtime.lock()?;
    served_mounts::sweep(&locked, output::note)?;
    find::check_mount_point(&config.mount_point)?;
    locked.create(None)
}

/// Cleans up after servers that have exited.
fn clean_up(runtime: &RuntimeDir) {
    let result = runtime.lock().and_then(|locked| served_mounts::sweep(&locked, |_| ()));
    if let Err(failure) = result {
        output::note(&format!("not all could be cleaned up: {failure}"));
    }
}

/// Waits until a server in the foreground has exited. A signal ends it, and it unmounts.
fn serve_in_foreground(
    runtime: &RuntimeDir,
    dir: &InstanceDir,
    started: StartedServer,
    signals: &Termination,
) -> Result<()> {
    let mut attached = started.into_foreground().inspect_err(|_| clean_up(runtime))?;
    let ended = attached.wait(signals)?;
    let result = ended.unwrap_or_else(|| {
        attached.end();
        Ok(())
    });
    if dir.exists() {
        clean_up(runtime);
    }
    result
}
