//! `disk create`: creates the folder of the instance, opens the backing, starts the server, and prints the device.
//!
//! If any step fails or a signal comes, the command undoes the steps before it.

use super::backing::{self, OpenBacking};
use super::bucket::Fetching;
use super::create::CreateArgs;
use super::request::{CreateRequest, Mode};
use super::restore::SavedInput;
use super::{command, find, notes, running};
use crate::cli::output;
use pagefold_control::client::Client;
use pagefold_control::config::{DiskConfig, ServerConfig};
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::export_kind::ExportKind;
use pagefold_control::instance::state::State;
use pagefold_control::instance::{InstanceDir, NewInstance, RuntimeDir};
use pagefold_control::removal;
use pagefold_control::report::disk::CreatedDisk;
use pagefold_control::startup::{self, PassedFds, Ready, StartedServer};
use pagefold_sys::signal::Termination;
use pagefold_sys::userns;
use std::fs::File;
use std::process::ExitCode;

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
    if args.unless_running
        && let Some(report) = running::find(&runtime, &request)?
    {
        print_created(&request, &report)?;
        return Ok(ExitCode::SUCCESS);
    }
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
            // A server that finds the end of a saved disk too early does not know why.
            let fetching = request.restore.as_ref().and_then(|input| input.fetching.as_ref());
            let failure = fetching.and_then(Fetching::failure).unwrap_or(failure);
            drop(new);
            clean_up(&runtime, &dir);
            return Err(failure);
        }
    };
    // The server holds a duplicate of the lock.
    drop(new);
    notes::print(dir.name(), &request.config, &started.ready);
    if let Some(restore) = request.config.restore.as_ref().filter(|restore| restore.is_lazy) {
        let (name, path) = (dir.name(), restore.path.display());
        output::note(&format!(
            "leave '{path}' as it is until the disk has all its pages: 'disk show {name}' says so then"
        ));
    }
    // Printed before the start is confirmed: if the device cannot be reported, the disk must not stay.
    let linked = link_device(&dir, &started.ready);
    if let Err(failure) = linked.and_then(|()| print_device(&request, &dir, &started)) {
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

/// Makes the link to a loop device in the folder of the disk.
fn link_device(dir: &InstanceDir, ready: &Ready) -> Result<()> {
    if !ready.device.starts_with("/dev/") {
        return Ok(());
    }
    let link = dir.device_link_path();
    let linked = std::os::unix::fs::symlink(&ready.device, &link);
    linked.map_err(|e| CliError::io(format!("making the link '{}'", link.display()), &e))
}

/// Prints the device; nothing for the user of `--run`, who sees the output of the command.
fn print_device(request: &CreateRequest, dir: &InstanceDir, started: &StartedServer) -> Result<()> {
    let Ready { device, export, .. } = &started.ready;
    match request.mode {
        Mode::Run(_) => Ok(()),
        _ => print_created(
            request,
            &CreatedDisk {
                name: dir.name().to_string(),
                device: device.clone(),
                export: export.clone(),
                size_bytes: request.config.size_bytes,
            },
        ),
    }
}

/// Prints the device, or JSON that contains it.
fn print_created(request: &CreateRequest, created: &CreatedDisk) -> Result<()> {
    match request.json {
        true => output::print_json(created),
        false => output::print_line(&created.device),
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
        let restore = request.restore.as_ref().map(|input| &input.file);
        let restore_parents = request.restore.as_ref().map_or(&[][..], |input| &input.parents);
        let fds = PassedFds { lock: &new.lock, backing: backing.as_ref(), restore, restore_parents };
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
                    match request.restore.as_ref().map(SavedInput::rewind).transpose()? {
                        Some(false) => return Err(restored_once(e, *next)),
                        _ => e.message,
                    }
                }
                result => return result,
            },
        };
        let (access, title) = (kind.facts().access, next.facts().title);
        output::note(&format!("using the {title} export, because {access} cannot be used here: {reason}"));
        kind = *next;
    }
    try_export(kind).map_err(|failure| in_user_namespace(kind, failure))
}

/// The failure of an export after which another one cannot be tried.
fn restored_once(failure: CliError, next: ExportKind) -> CliError {
    let why = "the saved disk came through a pipe and may have been read already";
    let message =
        format!("{}; {why}; run the command again with --export {}", failure.message, next.facts().name);
    CliError { message, ..failure }
}

/// Adds what to do to the failure of an export that user namespaces do not have.
fn in_user_namespace(kind: ExportKind, failure: CliError) -> CliError {
    if failure.exit != Exit::Unavailable || kind != ExportKind::Loop || userns::has_system_users() {
        return failure;
    }
    let advice = "loop devices need root outside of user namespaces; create the disk with --export nbd";
    CliError { message: format!("{}; {advice}", failure.message), ..failure }
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
