//! [`RunningDisks`]: the disks of the runtime folder, by requests to their servers.

use super::{ClassReport, Disks, Errno, number_after};
use pagefold_control::client::Client;
use pagefold_control::config::{DiskConfig, ServerConfig};
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::export_kind::ExportKind;
use pagefold_control::instance::loop_device::refuse_if_open;
use pagefold_control::instance::{InstanceDir, InstanceName, NewInstance, RuntimeDir};
use pagefold_control::removal;
use pagefold_control::startup::{self, Attachment, PassedFds};
use pagefold_server::attributes::{self, Syntax};
use pagefold_sys::signal::Termination;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long a server may take to exit after it closed its device.
const END_TIMEOUT: Duration = Duration::from_secs(30);
/// The codec of a new disk, until `comp_algorithm` is written: that of any disk. The kernel's depends on its configuration.
const DEFAULT_CODEC: &str = "lz4";

/// The disks of this user that have a name `zramN` and a loop device.
pub struct RunningDisks {
    signals: Arc<Termination>,
    log: Box<dyn Fn(&str) + Send + Sync>,
    /// The messages that were logged and are not repeated.
    logged: Mutex<BTreeSet<String>>,
}

impl RunningDisks {
    /// `signals`: those that end a start that is under way. `log` is called with a sentence about each error that a file
    /// can only return as a number, and about each dead server.
    pub fn new(signals: Arc<Termination>, log: impl Fn(&str) + Send + Sync + 'static) -> Self {
        RunningDisks { signals, log: Box::new(log), logged: Mutex::default() }
    }

    /// The folder of a running disk, and its device. ENODEV if there is none.
    fn find(&self, number: u32) -> Result<(RuntimeDir, InstanceDir, PathBuf)> {
        let runtime = RuntimeDir::open()?.ok_or_else(|| no_disk(number))?;
        let dir = runtime.instance(&name(number)?);
        // Most lookups are for names that do not exist: they need no lock.
        if !dir.exists() {
            return Err(no_disk(number));
        }
        // The holder of the lock may wait for this: a command in the shell reads `/sys/block`. A dead disk is then there a
        // little longer.
        let is_alive = runtime.try_lock()?.is_none_or(|_locked| dir.is_alive());
        match device_of(&dir).filter(|_| is_alive) {
            Some(device) => Ok((runtime, dir, device)),
            None => Err(no_disk(number)),
        }
    }

    /// Whether a message is logged for the first time.
    fn is_new(&self, message: &str) -> bool {
        self.logged.lock().unwrap_or_else(PoisonError::into_inner).insert(message.to_string())
    }

    fn connect(&self, number: u32) -> Result<Client> {
        Client::connect(&self.find(number)?.1)
    }

    /// Makes a request that changes nothing.
    fn ask<T>(&self, number: u32, request: impl FnMut(&mut Client) -> Result<T>) -> Result<T> {
        Client::ask(&self.find(number)?.1, request)
    }

    fn list(&self) -> Result<Vec<u32>> {
        let Some(runtime) = RuntimeDir::open()? else { return Ok(Vec::new()) };
        // See `find`.
        let alive = match runtime.try_lock()? {
            Some(locked) => locked.sweep(|message| (self.log)(message))?,
            None => runtime.instances()?,
        };
        let with_device = alive.iter().filter(|dir| device_of(dir).is_some());
        let mut numbers: Vec<_> = with_device.filter_map(|dir| number_of(dir.name())).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    fn create(&self) -> Result<u32> {
        let runtime = RuntimeDir::open_or_create()?;
        let (new, number) = self.create_instance(&runtime)?;
        // As the kernel's, a new device has no size, no limit, and one codec.
        let config = ServerConfig::Disk(Box::new(DiskConfig::new(0, DEFAULT_CODEC, ExportKind::Loop)));
        let fds = PassedFds { lock: &new.lock, backing: None, restore: None, restore_parents: &[] };
        let started = startup::start(&config, &new.dir, &fds, Attachment::Detached, &self.signals);
        let NewInstance { dir, lock } = new;
        // The server holds a duplicate of the lock.
        drop(lock);
        let ready = started.and_then(|started| started.detach_and_reap()).inspect_err(|_| {
            let cleaned = removal::clean_up(&runtime, &dir);
            cleaned.err().iter().for_each(|e| (self.log)(&e.message));
        })?;
        let unsafe_swap = "not safe as swap here; 'pagefold disk show' says why";
        let unsafe_swap = ready.swap_warning.map(|_| unsafe_swap.to_string());
        for warning in unsafe_swap.into_iter().chain(ready.warnings) {
            if self.is_new(&warning) {
                (self.log)(&format!("disk '{}': {warning}", dir.name()));
            }
        }
        Ok(number)
    }

    fn create_instance(&self, runtime: &RuntimeDir) -> Result<(NewInstance, u32)> {
        let locked = runtime.lock()?;
        locked.sweep(|message| (self.log)(message))?;
        for number in 0..=u32::MAX {
            if !locked.instance(&name(number)?).path().exists() {
                return Ok((locked.create(Some(&name(number)?))?, number));
            }
        }
        Err(CliError::new(Exit::Busy, "there is no free number for a disk"))
    }

    /// Removes a disk. Fails as busy if it is in use.
    pub fn remove(&self, number: u32) -> Result<()> {
        let (runtime, dir, _) = self.find(number)?;
        let processes = dir.processes()?;
        refuse_if_open(&dir)?;
        match removal::request(&dir, false) {
            // The server died meanwhile: clean up after it.
            Err(e) if e.exit == Exit::NotFound => {}
            result => result?,
        }
        if !processes.wait(END_TIMEOUT)? {
            let seconds = END_TIMEOUT.as_secs();
            return Err(CliError::failed(format!(
                "the server of {} has not exited after {seconds} s",
                dir.title()
            )));
        }
        removal::clean_up(&runtime, &dir).map(drop)
    }

    /// Logs the sentence of an error, and returns its number.
    fn errno<T>(&self, what: std::fmt::Arguments, result: Result<T>) -> std::result::Result<T, Errno> {
        result.map_err(|e| {
            let errno = errno_of(&e);
            if errno.0 != libc::ENODEV {
                (self.log)(&format!("{what}: {e} ({errno})"));
            }
            errno
        })
    }
}

impl Disks for RunningDisks {
    fn numbers(&self) -> std::result::Result<Vec<u32>, Errno> {
        // The tree lists disks again and again: an error that stays is logged once.
        self.list().map_err(|e| {
            let errno = errno_of(&e);
            let line = format!("listing disks: {e} ({errno})");
            if self.is_new(&line) {
                (self.log)(&line);
            }
            errno
        })
    }

    fn device(&self, number: u32) -> std::result::Result<PathBuf, Errno> {
        let found = self.find(number).map(|(_, _, device)| device);
        self.errno(format_args!("finding zram{number}"), found)
    }

    fn read(&self, number: u32, attribute: &str) -> std::result::Result<String, Errno> {
        let value = self.ask(number, |client| client.get(attribute));
        self.errno(format_args!("reading '{attribute}' of zram{number}"), value)
    }

    fn write(&self, number: u32, attribute: &str, text: &str) -> std::result::Result<(), Errno> {
        let files = attributes::open_files([(attribute, text)], Syntax::Kernel);
        let written =
            self.connect(number).and_then(|mut client| client.write_attribute(attribute, text, &files));
        self.errno(format_args!("writing {text:?} to '{attribute}' of zram{number}"), written)
    }

    fn block_state(&self, number: u32, first: u64) -> std::result::Result<(String, Option<u64>), Errno> {
        let piece = self.ask(number, |client| client.block_state_piece(first, None));
        self.errno(format_args!("reading 'block_state' of zram{number}"), piece)
    }

    fn classes(&self, number: u32) -> std::result::Result<Vec<ClassReport>, Errno> {
        let classes = self.ask(number, Client::classes);
        self.errno(format_args!("reading 'classes' of zram{number}"), classes)
    }

    fn hot_add(&self) -> std::result::Result<u32, Errno> {
        self.errno(format_args!("hot_add"), self.create())
    }

    fn hot_remove(&self, number: u32) -> std::result::Result<(), Errno> {
        self.errno(format_args!("hot_remove of {number}"), self.remove(number))
    }
}

fn name(number: u32) -> Result<InstanceName> {
    InstanceName::parse(&format!("zram{number}"))
}

fn number_of(name: &InstanceName) -> Option<u32> {
    number_after("zram", OsStr::new(name.as_str()))
}

fn device_of(dir: &InstanceDir) -> Option<PathBuf> {
    dir.read_state()?.loop_device()
}

fn no_disk(number: u32) -> CliError {
    CliError::new(Exit::NotFound, format!("there is no disk 'zram{number}' with a loop device"))
}

/// The error number of a file's read or write: that of zram, if zram has the case.
fn errno_of(e: &CliError) -> Errno {
    Errno(e.errno.unwrap_or(match e.exit {
        Exit::Busy => libc::EBUSY,
        Exit::Usage => libc::EINVAL,
        Exit::NotFound => libc::ENODEV,
        Exit::Unavailable => libc::EPERM,
        Exit::Ok | Exit::Failed | Exit::Damaged => libc::EIO,
        Exit::RunnerFailed | Exit::NotExecutable | Exit::NoCommand => libc::EIO,
    }))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;

    #[test]
    fn errors_have_the_number_of_zram_or_that_of_their_exit_code() {
        let number = |exit| errno_of(&CliError::new(exit, "")).0;
        assert_eq!((number(Exit::Busy), number(Exit::Usage)), (libc::EBUSY, libc::EINVAL));
        assert_eq!((number(Exit::NotFound), number(Exit::Failed)), (libc::ENODEV, libc::EIO));
        assert_eq!(errno_of(&CliError::usage("").with_errno(libc::E2BIG)).0, libc::E2BIG);
    }

    #[test]
    fn only_names_with_a_number_are_devices() {
        let number = |text: &str| number_of(&InstanceName::parse(text).unwrap());
        assert_eq!((number("zram12"), number("zram012"), number("disk1")), (Some(12), None, None));
    }
}
