//! A disk of the `pagefold` program, with the commands that create, show, change and remove it, and its backing's
//! medium.

use super::config::{Config, Medium};
use crate::case::Context;
use crate::model::{BackingState, StoreState, log_geometry};
use crate::process::{self, Ended, Rules, number};
use crate::verdict::{Fault, OrFault, require};
use pagefold_sys::mem::Available;
use rustix::process::Signal;
use serde_json::Value;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// Time limit of a command. None of these commands has to wait for a medium.
const COMMAND: Duration = Duration::from_secs(60);
/// How long io_uring rings may keep a file open after their process has ended.
const RING_CLEANUP: Duration = Duration::from_secs(5);
/// The disk's name: that of the first device of a zram shell.
pub const NAME: &str = "zram0";

/// A running disk.
pub struct Server<'a> {
    context: &'a Context,
    /// Process id of its server, which may be replaced.
    pid: Arc<AtomicU32>,
    /// Path of its device, or its NBD URI.
    pub device: String,
    config: &'a Config,
}

fn pagefold(context: &Context, args: &[&str]) -> Result<Ended, Fault> {
    process::run(context, &context.program, args, COMMAND)
}

impl<'a> Server<'a> {
    /// Runs `disk create`. The inner error is the reason why it refused the options (exit code 2).
    pub fn create(context: &'a Context, config: &'a Config) -> Result<Result<Self, String>, Fault> {
        let options = config.options(create_medium(context, config)?);
        let words = ["disk", "create", "-q", "--name", NAME].into_iter();
        let args: Vec<_> = words.chain(options.iter().map(String::as_str)).collect();
        let ended = pagefold(context, &args)?;
        if ended.code == 2 {
            return Ok(Err(ended.err.trim().to_string()));
        }
        let device = ended.ok()?.text().trim().to_string();
        let server = Server::new(context, config, device)?;
        config.attributes.iter().try_for_each(|words| server.set(words)?.ok().map(drop))?;
        Ok(Ok(server))
    }

    /// Creates a disk as scripts for zram do, by reading `hot_add`.
    pub fn create_without_size(context: &'a Context, config: &'a Config) -> Result<Self, Fault> {
        let args = ["-q", "zram-shell", "--", "cat", "/sys/class/zram-control/hot_add"];
        let number = pagefold(context, &args)?.ok()?.text();
        require!(number == "0\n", Failed, "hot_add: the first device has the number {number:?}");
        let server = Server::new(context, config, String::new())?;
        let device = server.show()?["device"].as_str().unwrap_or_default().to_string();
        Ok(Server { device, ..server })
    }

    fn new(context: &'a Context, config: &'a Config, device: String) -> Result<Self, Fault> {
        let server = Server { context, pid: Arc::default(), device, config };
        server.note_pid(&server.show()?);
        Ok(server)
    }

    /// Process id of its server.
    pub fn pid(&self) -> u32 {
        self.pid.load(Relaxed)
    }

    fn note_pid(&self, shown: &Value) {
        self.pid.store(u32::try_from(number(shown, "/server/pid")).unwrap_or(0), Relaxed);
    }

    /// Process id of its keeper; `None` if it has none.
    pub fn keeper(&self) -> Option<u32> {
        let text = std::fs::read(self.context.runtime().1.join(NAME).join("keeper")).ok()?;
        let state: Value = serde_json::from_slice(&text).ok()?;
        u32::try_from(number(&state, "/keeper/pid")).ok()
    }

    /// Kills the server, or lets a command replace it, and waits for the next one. A disk with rings has none.
    pub fn replace(&self, by_command: bool) -> Result<(), Fault> {
        if self.show()?.pointer("/keeper/without_keeper").is_some_and(|why| !why.is_null()) {
            return Ok(());
        }
        let former = self.pid();
        match by_command {
            true => drop(pagefold(self.context, &["disk", "restart", NAME])?.ok()?),
            false => process::signal(former, Signal::KILL),
        }
        let is_replaced = process::wait_until(COMMAND, || {
            self.note_pid(&self.show()?);
            Ok(self.pid() != former)
        })?;
        require!(is_replaced, Leftover, "no server has followed process {former}");
        Ok(())
    }

    /// Kills the keeper, and waits for the next one.
    pub fn replace_keeper(&self) -> Result<(), Fault> {
        let Some(former) = self.keeper() else { return Ok(()) };
        process::signal(former, Signal::KILL);
        let is_replaced =
            process::wait_until(COMMAND, || Ok(self.keeper().is_some_and(|keeper| keeper != former)))?;
        require!(is_replaced, Leftover, "no keeper has followed process {former}");
        Ok(())
    }

    /// The same disk in another life.
    pub fn reborn(&self, config: &'a Config) -> Self {
        Server { config, device: self.device.clone(), pid: self.pid.clone(), context: self.context }
    }

    /// Runs `disk show --json`.
    pub fn show(&self) -> Result<Value, Fault> {
        self.disk(&["show", NAME, "--json"], Rules { limit: COMMAND, signal: None, is_quiet: true })?
            .ok()?
            .json()
    }

    fn disk(&self, args: &[&str], rules: Rules) -> Result<Ended, Fault> {
        let mut command = process::command(self.context, &self.context.program);
        command.arg("disk").args(args);
        process::finish(self.context, command, rules)
    }

    /// Runs a command of disks, with this disk and these words as arguments. Its failure may be justified: a pass may
    /// find a full or failing medium.
    pub fn command(&self, name: &str, words: &str) -> Result<Ended, Fault> {
        let args: Vec<_> = ["disk", name, NAME].into_iter().chain(words.split(' ')).collect();
        pagefold(self.context, &args)
    }

    /// Runs `disk set` with these attributes.
    pub fn set(&self, words: &str) -> Result<Ended, Fault> {
        self.command("set", words)
    }

    /// Runs `disk set` with one attribute, whose value may contain spaces.
    pub fn set_one(&self, attribute: &str) -> Result<Ended, Fault> {
        pagefold(self.context, &["disk", "set", NAME, attribute])
    }

    /// Runs a command that compresses pages again, of these arguments: to its end, or until it is interrupted after
    /// a while. Then the exit code is 0 where the interruption is its reason. A command that does not end is a fault.
    pub fn recompress(&self, args: &[&str], interrupt_after: Duration) -> Result<Ended, Fault> {
        let limit = interrupt_after + COMMAND;
        let signal = Some((interrupt_after, Signal::INT));
        let mut ended = self.disk(args, Rules { limit, signal, is_quiet: false })?;
        ended.code = if ended.is_signalled && ended.code == 1 { 0 } else { ended.code };
        Ok(ended)
    }

    /// Runs `disk remove`.
    pub fn remove(&self) -> Result<(), Fault> {
        pagefold(self.context, &["disk", "remove", NAME])?.ok().map(drop)
    }

    /// Runs `disk list`, which cleans up after dead servers.
    pub fn list(&self) -> Result<(), Fault> {
        pagefold(self.context, &["disk", "list"])?.ok().map(drop)
    }

    /// Path of the NBD socket.
    pub fn socket(&self) -> PathBuf {
        self.context.runtime().1.join(NAME).join("nbd.sock")
    }

    /// The state for the model, from the output of [`Server::show`].
    pub fn state(&self, shown: &Value) -> StoreState {
        let writeback = &shown["writeback"];
        let condition = writeback["condition"].as_str().unwrap_or_default();
        let is_small = self.config.backing.as_ref().is_some_and(|b| matches!(b.medium, Medium::Full { .. }));
        let backing = writeback.is_object().then(|| {
            let capacity_bytes = number(writeback, "/capacity_bytes");
            let segment = log_geometry(capacity_bytes + (1 << 20)).1;
            BackingState {
                capacity_bytes,
                segment_bytes: (writeback["layout"] == "log").then_some(segment),
                pages: number(writeback, "/pages"),
                bytes: number(writeback, "/bytes"),
                is_closed: is_small || ["fails", "used up"].iter().any(|word| condition.contains(word)),
                condition: condition.to_string(),
            }
        });
        StoreState {
            in_use_bytes: number(shown, "/memory/pool_bytes"),
            limit_bytes: shown["memory"]["limit_bytes"].as_u64(),
            machine_bytes: Available::open().bytes(),
            workers: self.config.workers(),
            backing,
        }
    }
}

/// The path of a file of this life of a disk.
fn file_of(context: &Context, config: &Config, name: &str) -> PathBuf {
    match config.life {
        0 => context.path(name),
        life => context.path(&format!("{name}-{life}")),
    }
}

/// Makes the medium of the backing, and returns the backing's path. An attribute takes only a file that exists.
pub fn create_medium(context: &Context, config: &Config) -> Result<Option<String>, Fault> {
    let Some(backing) = &config.backing else { return Ok(None) };
    let mut file = file_of(context, config, "backing");
    if let Medium::Full { free_bytes } = backing.medium {
        let dir = file_of(context, config, "small");
        std::fs::create_dir(&dir).or_fault(dir.display())?;
        let (text, options) = (dir.display().to_string(), format!("size={free_bytes},mode=0700"));
        process::run(context, "mount", &["-t", "tmpfs", "-o", &options, "soak", &text], COMMAND)?.ok()?;
        file = dir.join("backing");
    }
    let path = file.display().to_string();
    if config.by_attributes || backing.medium == Medium::Device {
        let made = std::fs::File::create(&file).and_then(|f| f.set_len(backing.len_bytes));
        made.or_fault(&path)?;
    }
    if backing.medium != Medium::Device {
        return Ok(Some(path));
    }
    let device = process::run(context, "losetup", &["--find", "--show", &path], COMMAND)?.ok()?;
    Ok(Some(device.text().trim().to_string()))
}

/// Removes what [`create_medium`] made. The kernel closes the files of io_uring rings shortly after their process has
/// ended. If it takes longer, `ending` reports what is left.
pub fn remove_medium(context: &Context, config: &Config) -> Result<(), Fault> {
    let path = |name: &str| file_of(context, config, name).display().to_string();
    let removed = match config.backing.as_ref().map(|b| b.medium) {
        Some(Medium::Device) => process::wait_until(RING_CLEANUP, || {
            let args = ["--noheadings", "-O", "NAME", "-j", &path("backing")];
            let devices = process::run(context, "losetup", &args, COMMAND)?.ok()?.text();
            for device in devices.split_whitespace() {
                process::run(context, "losetup", &["-d", device], COMMAND)?;
            }
            Ok(devices.trim().is_empty())
        }),
        Some(Medium::Full { .. }) => process::wait_until(RING_CLEANUP, || {
            Ok(process::run(context, "umount", &[&path("small")], COMMAND)?.code == 0)
        }),
        Some(Medium::File) | None => Ok(true),
    };
    removed.map(drop)
}
