//! `disk create`: creates the folder of the instance, opens the backing, starts the server, and prints the device.
//!
//! If any step fails or a signal comes, the command undoes the steps before it.

use super::backing::{self, OpenBacking};
use super::export_arg::ExportArg;
use super::request::{CreateRequest, Mode};
use super::sector_arg::SectorArg;
use super::{command, find, notes};
use crate::cli::fuse_uring::FuseUringArg;
use crate::cli::output;
use clap::{Args, ValueEnum, ValueHint};
use pagefold_control::client::Client;
use pagefold_control::config::{DiskConfig, ServerConfig};
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::instance::state::State;
use pagefold_control::instance::{InstanceDir, NewInstance, RuntimeDir};
use pagefold_control::removal;
use pagefold_control::startup::{self, PassedFds, Ready, StartedServer};
use pagefold_sys::signal::Termination;
use serde::Serialize;
use std::fs::File;
use std::path::PathBuf;
use std::process::ExitCode;

/// The arguments of `disk create`.
#[derive(Debug, Args)]
pub struct CreateArgs {
    /// Size of the device, such as 4G or 512M; rounded up to a multiple of 4096 bytes. It may exceed the memory of the
    /// machine: only written pages take memory. In sizes, K, M, G, T, P and E are powers of 1024, also as KB or KiB
    #[arg(long, short = 's', value_name = "SIZE")]
    pub size: String,
    /// Name of the disk: 1 to 32 characters of A-Z a-z 0-9 . _ -, not starting with . or - [default: disk0, disk1, ...;
    /// a number is used once]
    #[arg(long, short = 'n', value_name = "NAME")]
    pub name: Option<String>,
    /// Compression algorithm, see below; a level can follow, as in zstd:3
    #[arg(long, short = 'c', value_name = "CODEC[:LEVEL]", default_value = "lz4")]
    pub codec: String,
    /// Compression level, if the codec has levels, see below
    #[arg(long, short = 'l', value_name = "LEVEL", allow_negative_numbers = true)]
    pub level: Option<i32>,
    /// File with a compression dictionary, if the codec takes one, see below
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub dictionary: Option<PathBuf>,
    /// Codec to compress pages with again on request (`disk recompress`), with a level if wanted, such as zstd:9. Can be
    /// repeated; with those of --recompress-after, which come first, a disk has up to three, with priorities from 1
    #[arg(long, value_name = "CODEC[:LEVEL]")]
    pub recompress_codec: Vec<String>,
    /// Compress pages again that were not accessed for AGE, such as 10m=zstd:3, with at most a quarter of one CPU, and
    /// only while CPUs and disks of the machine are not busy. A page that is written gets the first codec. Can be repeated,
    /// for denser codecs at greater ages. Ages above 8192 seconds count as 8192
    #[arg(long, value_name = "AGE=CODEC[:LEVEL]")]
    pub recompress_after: Vec<String>,
    /// Most memory for stored pages and the buffers of rings (--fuse-uring), such as 2G; 0 for no limit. Writes that need more
    /// fail, and no stored page is lost. The server needs more memory: up to 96M for itself, 16M of reserve for a loop
    /// device, and 6M of tables for each 1G written [default: half of the machine's memory]
    #[arg(long, short = 'm', value_name = "SIZE")]
    pub memory: Option<String>,
    /// File or block device that cold pages are written back to when memory is nearly used up. A file that does not
    /// exist is created, sparse and with mode 0600, in a directory that exists, and is removed with the disk; an
    /// existing file or device stays. Pages on the backing are not encrypted, and are lost when the disk is removed or
    /// its server dies
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath, conflicts_with = "uncompressed")]
    pub backing: Option<PathBuf>,
    /// Size of a new backing file. An existing file or device is used in its full size, and a different size is refused
    /// [default: 9/8 of the size of the disk + 16 MiB: room for all pages uncompressed]
    #[arg(long, value_name = "SIZE", requires = "backing")]
    pub backing_size: Option<String>,
    /// Use a backing although it contains other data, which is overwritten, or is a file of another user. A backing
    /// that is in use is refused in any case
    #[arg(long, requires = "backing")]
    pub force_backing: bool,
    /// on: write back pages compressed and packed; off: one uncompressed page per block, as zram does
    #[arg(long, value_enum, value_name = "on|off", requires = "backing")]
    #[arg(default_value_t = OnOff::On, hide_possible_values = true)]
    pub compressed_writeback: OnOff,
    /// Most bytes per second that automatic writeback writes, such as 50M/s [default: no limit]
    #[arg(long, value_name = "SIZE/s", requires = "backing")]
    pub writeback_rate: Option<String>,
    /// Most bytes that automatic writeback writes within 24 hours, such as 20G, to limit the wear of flash
    /// [default: no limit]
    #[arg(long, value_name = "SIZE", requires = "backing")]
    pub writeback_daily: Option<String>,
    /// Delay every request to the backing by so many microseconds, for benchmarks and tests
    #[arg(long, value_name = "US", requires = "backing", default_value_t = 0, hide = true)]
    pub backing_delay: u64,
    /// How programs access the disk
    #[arg(long, value_enum, default_value_t = ExportArg::AUTO)]
    pub export: ExportArg,
    /// Whether the loop export's requests come through io_uring instead of /dev/fuse; auto: where the kernel offers it, unless the
    /// disk has a backing. The buffers of its rings are part of --memory, and take at most an eighth of it and 32M
    #[arg(long, value_enum, value_name = "auto|on|off", default_value_t = FuseUringArg::Auto)]
    pub fuse_uring: FuseUringArg,
    /// Size of the loop device's sectors. 512 is for images of disks and file systems that were made for it, such as cloud
    /// images and FAT; a write of less than a page then reads the rest of it. Clients of NBD can read and write any bytes
    #[arg(long, value_enum, value_name = "BYTES", default_value_t = SectorArg::Page)]
    pub sector_size: SectorArg,
    /// Serve NBD over TCP on this address, or the first one of this host name, instead of a unix socket; port 0 for any.
    /// An address that other machines can reach needs the three TLS files. Without TLS, every user of this machine can
    /// read and write the disk
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: Option<String>,
    /// Certificate chain of the NBD server, PEM
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    #[arg(requires_all = ["listen", "tls_key", "tls_client_ca"])]
    pub tls_cert: Option<PathBuf>,
    /// Private key of the NBD server, PEM
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    #[arg(requires_all = ["listen", "tls_cert", "tls_client_ca"])]
    pub tls_key: Option<PathBuf>,
    /// CA certificates, PEM: clients need a certificate signed by one of them
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    #[arg(requires_all = ["listen", "tls_cert", "tls_key"])]
    pub tls_client_ca: Option<PathBuf>,
    /// Stay in the foreground until Ctrl-C, SIGTERM or `disk remove`. When the command ends, the server ends too,
    /// unless its loop device is in use: then it serves on
    #[arg(long, short = 'f')]
    pub foreground: bool,
    /// Run COMMAND with 'sh -c' when the disk is ready, with PAGEFOLD_NAME and PAGEFOLD_DEVICE in its environment, and
    /// remove the disk when it ends. The exit code is that of COMMAND, or 128 plus the number of the signal that killed
    /// it, or 125 if pagefold itself failed. A loop device that is in use then is not removed
    #[arg(long, value_name = "COMMAND", value_hint = ValueHint::CommandString, conflicts_with_all = ["foreground", "json"])]
    pub run: Option<String>,
    /// Print JSON instead of the device: its name, device, export and size
    #[arg(long)]
    pub json: bool,
    /// Serve plain memory without compression, for comparison in benchmarks of exports
    #[arg(long, hide = true)]
    pub uncompressed: bool,
}

/// The values of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnOff {
    /// On
    On,
    /// Off
    Off,
}

/// Examples for the long help.
pub const EXAMPLES: &str = "\
Examples:
  pagefold disk create --size 4G
  pagefold disk create --size 64G --backing /var/cache/scratch.backing --memory 1G
  pagefold disk create --size 16G --name scratch --codec zstd --level 3 --memory 2G
  mkfs.ext4 \"$(pagefold disk create --size 4G --export loop)\"
  pagefold disk create --size 4G --run 'mkfs.ext4 \"$PAGEFOLD_DEVICE\" && build-on \"$PAGEFOLD_DEVICE\"'";

/// Creates a disk. With `--run`, a failure has an exit code that commands do not use.
pub fn run(args: &CreateArgs) -> Result<ExitCode> {
    let created = create(args);
    match args.run {
        Some(_) => created.map_err(command::of_runner),
        None => created,
    }
}

fn create(args: &CreateArgs) -> Result<ExitCode> {
    let mut request = CreateRequest::from_args(args)?;
    // From here on, a signal makes the command clean up and exit.
    let signals = Termination::listen()?;
    let runtime = RuntimeDir::open_or_create()?;
    let new = match create_instance(&runtime, &request) {
        Err(e) if e.exit == Exit::Busy && free_name_of_dead_disk(&runtime, &request)? => {
            create_instance(&runtime, &request)
        }
        result => result,
    }?;
    let dir = new.dir.clone();
    let opened = open_backing(&new, &mut request);
    let started = match opened.and_then(|file| start(&runtime, &new, &request, file, &signals)) {
        Ok(started) => started,
        Err(failure) => {
            drop(new);
            clean_up(&runtime, &dir);
            return Err(failure);
        }
    };
    // The server holds a duplicate of the lock.
    drop(new);
    notes::print(dir.name(), &request.config, &started.ready);
    // Printed before the start is confirmed: if the device cannot be reported, the disk must not stay.
    if let Err(failure) = print_device(&request, &dir, &started) {
        started.end();
        // If this fails, the only harm is that messages say the server died.
        let _ = dir.mark_ended();
        clean_up(&runtime, &dir);
        return Err(CliError::new(failure.exit, format!("{failure}; no disk was created")));
    }
    match &request.mode {
        Mode::Background => started.detach().map(drop).inspect_err(|_| clean_up(&runtime, &dir))?,
        Mode::Foreground => serve_in_foreground(&runtime, &dir, started, &signals)?,
        Mode::Run(command) => return serve_while(command, &runtime, &dir, started, &signals),
    }
    Ok(ExitCode::SUCCESS)
}

/// The JSON of `disk create`.
#[derive(Serialize)]
struct CreatedDisk<'a> {
    name: &'a str,
    device: &'a str,
    export: &'a str,
    size_bytes: u64,
}

/// Prints the device, or JSON that contains it; nothing for the user of `--run`, who sees the output of the command.
fn print_device(request: &CreateRequest, dir: &InstanceDir, started: &StartedServer) -> Result<()> {
    let Ready { device, export, .. } = &started.ready;
    match request.mode {
        Mode::Run(_) => Ok(()),
        _ if request.json => output::deliver_json(&CreatedDisk {
            name: dir.name().as_str(),
            device,
            export,
            size_bytes: request.config.size_bytes,
        }),
        _ => output::deliver_line(device),
    }
}

fn create_instance(runtime: &RuntimeDir, request: &CreateRequest) -> Result<NewInstance> {
    let locked = runtime.lock()?;
    locked.sweep(output::note)?;
    locked.create(request.name.as_ref())
}

/// If the taken name belongs to a disk whose server is dying or dead, waits for its end and cleans up. Returns whether the
/// name is free now; an error says what keeps it.
fn free_name_of_dead_disk(runtime: &RuntimeDir, request: &CreateRequest) -> Result<bool> {
    let Some(dir) = request.name.as_ref().map(|name| runtime.instance(name)) else {
        return Ok(false);
    };
    let response = Client::connect(&dir).and_then(|mut client| client.get("size"));
    let Some(cleanup) = response.err().and_then(|e| find::wait_and_clean_up(runtime, &dir, &e)) else {
        return Ok(false);
    };
    let name = dir.name();
    cleanup.result.map_err(|e| {
        let message = format!(
            "the name '{name}' is that of a disk whose server has died, and which cannot be cleaned up yet: {e}; or choose \
             another name"
        );
        CliError::new(Exit::Busy, message)
    })?;
    output::note(&cleanup.message);
    Ok(true)
}

/// Opens the backing, and records a file that was created for it in the state file at once, so that later commands
/// remove it.
fn open_backing(new: &NewInstance, request: &mut CreateRequest) -> Result<Option<File>> {
    let Some(backing) = &request.backing else {
        return Ok(None);
    };
    let OpenBacking { file, config } = backing::open(backing, request.config.size_bytes)?;
    request.config.backing = Some(config);
    let recorded = write_first_state(new, &request.config);
    recorded.inspect_err(|_| {
        // Later commands do not know of the file. If removing it fails too, the first error says more.
        let _ = request.config.created_backing().map(|file| file.remove());
    })?;
    Ok(Some(file))
}

/// Writes the state file before the server is started, which writes it from then on.
fn write_first_state(new: &NewInstance, config: &DiskConfig) -> Result<()> {
    new.dir.write_state(&State {
        name: new.dir.name().clone(),
        server: None,
        size_bytes: config.size_bytes,
        created_unix_s: 0,
        export: None,
        backing: config.created_backing(),
    })
}

/// Starts a server with the export that the user chose, or with the first that is available here. Other errors end the
/// command.
fn start(
    runtime: &RuntimeDir,
    new: &NewInstance,
    request: &CreateRequest,
    backing: Option<File>,
    signals: &Termination,
) -> Result<StartedServer> {
    let try_export = |export| {
        let config = DiskConfig { export, ..request.config.clone() };
        let fds = PassedFds { lock: &new.lock, backing: backing.as_ref() };
        startup::start(
            &ServerConfig::Disk(Box::new(config)),
            &new.dir,
            &fds,
            request.mode.attachment(),
            signals,
        )
    };
    let mut kind = request.config.export;
    for next in &request.fallbacks {
        let reason = match (kind.facts().unavailable_reason)() {
            Some(reason) => reason,
            None => match try_export(kind) {
                Err(e) if e.exit == Exit::Unavailable => {
                    // Remove what the failed attempt left (loop device, mount, files), but keep the folder and its lock.
                    runtime.lock()?.clean_up_attempt(&new.dir)?;
                    write_first_state(new, &request.config)?;
                    e.message
                }
                result => return result,
            },
        };
        let (access, title) = (kind.facts().access, next.facts().title);
        output::note(&format!("using the {title} export, because {access} cannot be used here: {reason}"));
        kind = *next;
    }
    try_export(kind)
}

/// Waits until a server in the foreground has exited. A signal removes the disk.
fn serve_in_foreground(
    runtime: &RuntimeDir,
    dir: &InstanceDir,
    started: StartedServer,
    signals: &Termination,
) -> Result<()> {
    let mut attached = started.into_foreground().inspect_err(|_| clean_up(runtime, dir))?;
    loop {
        match attached.wait(signals)? {
            Some(ended) => {
                clean_up(runtime, dir);
                return ended;
            }
            // Somebody has removed the folder, with the control socket, but the server is running.
            None if !dir.control_path().exists() => attached.terminate()?,
            None => {
                if let Err(failure) = removal::request(dir, true) {
                    output::error(&format!("{failure}; the disk stays"));
                }
            }
        }
    }
}

/// Runs a command, removes the disk when it has ended, and returns the exit code of the command.
fn serve_while(
    command: &str,
    runtime: &RuntimeDir,
    dir: &InstanceDir,
    started: StartedServer,
    signals: &Termination,
) -> Result<ExitCode> {
    let device = started.ready.device.clone();
    let attached = started.into_foreground().inspect_err(|_| clean_up(runtime, dir))?;
    let code = command::run(command, dir, &device, signals);
    let Some(ended) = command::remove_disk(dir, attached, signals)? else {
        // A disk that stays is no success.
        return code.map(|code| ExitCode::from(if code == 0 { Exit::RunnerFailed as u8 } else { code }));
    };
    clean_up(runtime, dir);
    match (code?, ended) {
        (0, Err(failure)) => Err(failure),
        (code, ended) => {
            ended.unwrap_or_else(|failure| output::error(&failure.message));
            Ok(ExitCode::from(code))
        }
    }
}

/// Cleans up after a server that has exited, unless another command has done so, or has created a disk of this name
/// since.
fn clean_up(runtime: &RuntimeDir, dir: &InstanceDir) {
    if !dir.exists() {
        return;
    }
    match runtime.lock() {
        Ok(locked) if dir.exists() && !dir.is_alive() => {
            let cleanup = locked.clean_up(dir);
            if cleanup.result.is_err() {
                output::note(&cleanup.message);
            }
        }
        Ok(_) => {}
        Err(e) => output::note(&e.message),
    }
}
