//! `image mount`.

use super::kernel;
use crate::cli::output;
use crate::failure::{Exit, Failure, Outcome};
use crate::runtime::{DiskDir, NewDisk, Runtime};
use crate::service::config::Serving;
use crate::service::images::{self, MountConfig, ReadAheadConfig};
use crate::service::{self, Handed, Started};
use clap::{Args, ValueHint};
use pagefold_page::size;
use pagefold_sys::signal::Termination;
use pagefold_sys::{mounts, rundir};
use std::path::{Path, PathBuf};

/// `image mount`.
#[derive(Debug, Args)]
pub struct MountArgs {
    /// The image: a file or a block device
    #[arg(value_name = "IMAGE", value_hint = ValueHint::AnyPath)]
    pub image: PathBuf,
    /// Directory to mount it on
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,
    /// A further device of the image, in the order of its table. Can be repeated
    #[arg(long, value_name = "FILE", value_hint = ValueHint::AnyPath)]
    pub device: Vec<PathBuf>,
    /// Memory for reading: compressed and decompressed data, decompressors, cache, answers. Pages that the
    /// kernel caches are not counted
    #[arg(long, short = 'm', value_name = "SIZE", default_value = "64M", conflicts_with = "kernel")]
    pub memory: String,
    /// Threads that answer requests [default: one more than CPUs, at most 4]
    #[arg(long, value_name = "N", conflicts_with = "kernel", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,
    /// Let other users in too; modes, owners and access lists of the image decide what they may read
    #[arg(long, conflicts_with = "kernel")]
    pub allow_other: bool,
    /// Let set-user-id programs of the image give the rights of their owner. Only for root, and for
    /// images that root trusts
    #[arg(long)]
    pub suid: bool,
    /// Let device nodes of the image lead to devices. Only for root, and for images that root trusts
    #[arg(long)]
    pub dev: bool,
    /// Serve from this process, until Ctrl-C, SIGTERM or unmounting
    #[arg(long, short = 'f', conflicts_with = "kernel")]
    pub foreground: bool,
    /// Decompress nothing before it is asked for
    #[arg(long, conflicts_with = "kernel")]
    pub no_readahead: bool,
    /// Let read-ahead wait for memory: shows what it costs
    #[arg(long, conflicts_with_all = ["kernel", "no_readahead"], hide = true)]
    pub wait_readahead: bool,
    /// Mount with the kernel's EROFS instead, if it can read the image. The image is checked first: a
    /// broken one may break the kernel. All users get in, as modes, owners and access lists of the image say
    #[arg(long)]
    pub kernel: bool,
    /// Do not check the image first
    #[arg(long, requires = "kernel")]
    pub trusted: bool,
}

/// Mounts an image.
pub fn run(args: &MountArgs) -> Outcome<()> {
    let config = config(args)?;
    if args.kernel {
        return kernel::run(&config, args.trusted);
    }
    let signals = Termination::listen()?;
    let runtime = Runtime::open_or_create_images()?;
    let new = make(&runtime, &config)?;
    let dir = new.dir.clone();
    let handed = Handed { lock: &new.lock, backing: None };
    let serving = Serving::Image(config);
    let started = match service::start(&serving, &new.dir, &handed, args.foreground, &signals) {
        Ok(started) => started,
        Err(failure) => {
            drop(new);
            clear(&runtime);
            return Err(failure);
        }
    };
    // The server holds a duplicate of the lock.
    drop(new);
    match args.foreground {
        false => started.release().map(|_| ()).inspect_err(|_| clear(&runtime)),
        true => attend(&runtime, &dir, started, &signals),
    }
}

fn config(args: &MountArgs) -> Outcome<MountConfig> {
    let memory_bytes = size::parse(&args.memory).map_err(|e| Failure::usage(format!("--memory: {e}")))?;
    if (args.suid || args.dev) && rundir::effective_uid() != 0 {
        return Err(Failure::usage("--suid and --dev are for root"));
    }
    Ok(MountConfig {
        image: absolute(&args.image)?,
        devices: args.device.iter().map(|path| absolute(path)).collect::<Outcome<_>>()?,
        mount_point: mount_point(&args.dir)?,
        memory_bytes,
        threads: args.threads.map_or(0, usize::from),
        allow_other: args.allow_other,
        suid: args.suid,
        device_nodes: args.dev,
        read_ahead: match (args.no_readahead, args.wait_readahead) {
            (true, _) => ReadAheadConfig::Off,
            (_, true) => ReadAheadConfig::Waiting,
            _ => ReadAheadConfig::BestEffort,
        },
    })
}

fn absolute(path: &Path) -> Outcome<PathBuf> {
    path.canonicalize().map_err(|e| unusable(path, &e))
}

fn unusable(path: &Path, e: &std::io::Error) -> Failure {
    let exit = if e.kind() == std::io::ErrorKind::NotFound { Exit::NotFound } else { Exit::Failed };
    Failure::new(exit, format!("'{}': {e}", path.display()))
}

/// Links followed at the end of the path of a mount point, as Linux does.
const MAX_LINKS: usize = 40;

/// The path, free of links, of what is mounted on or may be. What a mount point carries is not asked: its server may be dead,
/// or never answer. So links of the last name are followed here, and only where nothing is mounted.
pub fn mount_point(path: &Path) -> Outcome<PathBuf> {
    let mut wanted = path.to_path_buf();
    for _ in 0..MAX_LINKS {
        let whole = std::path::absolute(&wanted).map_err(|e| unusable(path, &e))?;
        let (Some(parent), Some(name)) = (whole.parent(), whole.file_name()) else {
            return absolute(&whole);
        };
        let parent = parent.canonicalize().map_err(|e| unusable(path, &e))?;
        let found = parent.join(name);
        if mounts::at(&found)?.is_some() {
            return Ok(found);
        }
        match std::fs::read_link(&found) {
            Ok(target) => wanted = parent.join(target),
            // There, and no link.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => return Ok(found),
            Err(e) => return Err(unusable(path, &e)),
        }
    }
    Err(unusable(path, &std::io::Error::from_raw_os_error(libc::ELOOP)))
}

/// Refuses what carries a mount, without asking that, and what is no directory.
pub fn refuse_unfit(mount_point: &Path) -> Outcome<()> {
    if mounts::at(mount_point)?.is_some() {
        let what = format!("something is mounted on '{}' already", mount_point.display());
        return Err(Failure::new(Exit::Busy, what));
    }
    match mount_point.is_dir() {
        true => Ok(()),
        false => Err(Failure::usage(format!("'{}' is not a directory", mount_point.display()))),
    }
}

fn make(runtime: &Runtime, config: &MountConfig) -> Outcome<NewDisk> {
    let locked = runtime.lock()?;
    images::sweep(&locked)?;
    refuse_unfit(&config.mount_point)?;
    locked.make(None)
}

/// Clears what a server that is gone left.
fn clear(runtime: &Runtime) {
    let cleared = runtime.lock().and_then(|locked| images::sweep_quietly(&locked));
    if let Err(failure) = cleared {
        output::note(&format!("not all could be cleaned up: {failure}"));
    }
}

/// Stays with a server in the foreground until it ends; a signal unmounts.
fn attend(runtime: &Runtime, dir: &DiskDir, started: Started, signals: &Termination) -> Outcome<()> {
    let mut attached = started.attach().inspect_err(|_| clear(runtime))?;
    let ended = attached.wait(signals)?;
    let outcome = ended.unwrap_or_else(|| {
        attached.end();
        Ok(())
    });
    if dir.exists() {
        clear(runtime);
    }
    outcome
}
