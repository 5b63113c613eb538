//! A disk of the `pagefold` program, with the commands that create, show, change and remove it, and its backing's
//! medium.

use super::config::{Config, Export, Medium, Memory};
use super::lives;
use crate::case::Context;
use crate::model::{BackingState, StoreState, log_geometry};
use crate::process::{self, CommandOutput};
use crate::verdict::{Fault, FaultKind};
use rustix::process::Signal;
use serde_json::Value;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Time limit of a command. None of these commands has to wait for a medium.
const COMMAND: Duration = Duration::from_secs(60);
/// How long io_uring rings may keep a file open after their process has ended.
const RING_CLEANUP: Duration = Duration::from_secs(5);
/// The disk's name: that of the first device of a zram shell.
pub const NAME: &str = "zram0";

/// A running disk.
pub struct Server<'a> {
    context: &'a Context,
    /// Process id of its server.
    pub pid: u32,
    /// Path of its device, or its NBD URI.
    pub device: String,
    config: &'a Config,
}

/// The result of [`Server::create`].
pub enum Created<'a> {
    /// The disk runs.
    Running(Server<'a>),
    /// `disk create` refused the configuration (exit code 2), for this reason.
    Refused(String),
}

fn pagefold(context: &Context, args: &[&str]) -> Result<CommandOutput, Fault> {
    process::run(context, &context.settings.program, args, COMMAND)
}

impl<'a> Server<'a> {
    /// Creates the disk of this configuration.
    pub fn create(context: &'a Context, config: &'a Config) -> Result<Created<'a>, Fault> {
        if config.by_attributes {
            let server = Server::create_without_size(context, config)?;
            lives::configure(context, &server, config)?;
            return Ok(Created::Running(server));
        }
        let size = config.size_bytes.to_string();
        let mut args =
            vec!["disk", "create", "-q", "--name", NAME, "--size", &size, "--codec", config.codec.name];
        args.extend(["--export", if config.export == Export::Loop { "loop" } else { "nbd" }]);
        let memory = match config.memory {
            Memory::Default => None,
            Memory::Unlimited => Some(0),
            Memory::Bytes(bytes) => Some(bytes),
        };
        let memory = memory.map(|bytes| bytes.to_string());
        if let Some(memory) = &memory {
            args.extend(["--memory", memory]);
        }
        let path = create_medium(context, config)?;
        let (len, delay);
        if let (Some(path), Some(backing)) = (&path, &config.backing) {
            (len, delay) = (backing.len_bytes.to_string(), backing.delay_us.to_string());
            args.extend(["--backing", path, "--backing-delay", &delay]);
            if backing.is_given {
                args.extend(["--backing-size", &len]);
            }
            args.extend(["--compressed-writeback", if backing.compressed { "on" } else { "off" }]);
        }
        let further = further_codecs(config);
        args.extend(further.iter().map(String::as_str));
        let ran = pagefold(context, &args)?;
        if ran.code == 2 {
            return Ok(Created::Refused(ran.err.trim().to_string()));
        }
        let device = ran.ok()?.trim().to_string();
        let server = Server::new(context, config, device)?;
        config.attributes.iter().try_for_each(|words| server.set(words)?.ok().map(drop))?;
        Ok(Created::Running(server))
    }

    /// Creates a disk as scripts for zram do, by reading `hot_add`.
    fn create_without_size(context: &'a Context, config: &'a Config) -> Result<Self, Fault> {
        let args = ["-q", "zram-shell", "--", "cat", "/sys/class/zram-control/hot_add"];
        let number = pagefold(context, &args)?.ok()?;
        if number != "0\n" {
            return Err(Fault::failed("hot_add", format!("the first device has the number {number:?}")));
        }
        let server = Server::new(context, config, String::new())?;
        let device = server.show()?["device"].as_str().unwrap_or_default().to_string();
        Ok(Server { device, ..server })
    }

    fn new(context: &'a Context, config: &'a Config, device: String) -> Result<Self, Fault> {
        let server = Server { context, pid: 0, device, config };
        let pid = server.show()?.pointer("/server/pid").and_then(Value::as_u64);
        Ok(Server { pid: pid.and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0), ..server })
    }

    /// The same disk in another life.
    pub fn reborn(&self, config: &'a Config) -> Self {
        Server { config, device: self.device.clone(), ..*self }
    }

    /// Runs `disk show --json`.
    pub fn show(&self) -> Result<Value, Fault> {
        let args = ["disk", "show", NAME, "--json"];
        let shown =
            process::run_quietly(self.context, &self.context.settings.program, &args, COMMAND)?.ok()?;
        serde_json::from_str(&shown).map_err(|e| Fault::failed("disk show --json", e))
    }

    /// Runs `disk set` with these attributes.
    pub fn set(&self, words: &str) -> Result<CommandOutput, Fault> {
        let mut args = vec!["disk", "set", NAME];
        args.extend(words.split(' '));
        pagefold(self.context, &args)
    }

    /// Runs `disk set` with one attribute, whose value may contain spaces.
    pub fn set_one(&self, attribute: &str) -> Result<CommandOutput, Fault> {
        pagefold(self.context, &["disk", "set", NAME, attribute])
    }

    /// Runs a command that compresses pages again, of these arguments: to its end, or until it is interrupted after
    /// a while. Returns the exit code; a command that does not end is a fault.
    pub fn recompress(&self, args: &[&str], interrupt_after: Duration) -> Result<i32, Fault> {
        let line = format!("pagefold disk {}", args.join(" "));
        let failed = |e| Fault::failed(&line, e);
        let log =
            || std::fs::File::options().create(true).append(true).open(self.context.path("recompress.log"));
        let mut command = process::command(self.context, &self.context.settings.program);
        command.arg("disk").args(args);
        command.stdout(log().map_err(failed)?).stderr(log().map_err(failed)?);
        let (began, mut child) = (Instant::now(), command.spawn().map_err(failed)?);
        let ended = process::wait(&mut child, interrupt_after).map_err(failed)?;
        let is_interrupted = ended.is_none();
        let ended = match ended {
            Some(status) => Some(status),
            None => {
                process::signal(child.id(), Signal::INT);
                process::wait(&mut child, COMMAND).map_err(failed)?
            }
        };
        let Some(status) = ended else {
            let stacks = process::stacks(self.pid);
            process::kill_group(child.id());
            return Err(Fault::new(
                FaultKind::Hang,
                format!("no end {COMMAND:?} after SIGINT: {line}\n{stacks}"),
            ));
        };
        let code = status.code().unwrap_or(-1);
        let how = if is_interrupted { ", interrupted" } else { "" };
        println!("+ {line}: {code} in {:?}{how}", began.elapsed());
        Ok(if is_interrupted && code == 1 { 0 } else { code })
    }

    /// Runs `disk writeback` with this selection. A pass may find a full or failing medium, so callers ignore the
    /// exit code.
    pub fn write_back(&self, words: &str) -> Result<CommandOutput, Fault> {
        let mut args = vec!["disk", "writeback", NAME, "--json"];
        args.extend(words.split(' '));
        pagefold(self.context, &args)
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
        let number = |pointer: &str| shown.pointer(pointer).and_then(Value::as_u64);
        let layout_is_log = shown.pointer("/writeback/layout").and_then(Value::as_str) == Some("log");
        let condition = shown.pointer("/writeback/condition").and_then(Value::as_str).unwrap_or_default();
        let is_small = self.config.backing.as_ref().is_some_and(|b| matches!(b.medium, Medium::Full { .. }));
        let backing = shown.get("writeback").filter(|p| p.is_object()).map(|_| {
            let capacity_bytes = number("/writeback/capacity_bytes").unwrap_or(0);
            let segment = log_geometry(capacity_bytes + (1 << 20)).1;
            BackingState {
                capacity_bytes,
                segment_bytes: layout_is_log.then_some(segment),
                pages: number("/writeback/pages").unwrap_or(0),
                bytes: number("/writeback/bytes").unwrap_or(0),
                is_closed: is_small || ["fails", "used up"].iter().any(|word| condition.contains(word)),
                condition: condition.to_string(),
            }
        });
        StoreState {
            in_use_bytes: number("/memory/pool_bytes").unwrap_or(0),
            limit_bytes: number("/memory/limit_bytes"),
            machine_bytes: process::available_bytes(),
            workers: self.config.workers(),
            backing,
        }
    }
}

/// The options of `disk create` for the further codecs.
fn further_codecs(config: &Config) -> Vec<String> {
    let options = config.further_codecs.iter().map(|further| match further.after_s {
        Some(age_s) => format!("--recompress-after={age_s}={}", further.codec),
        None => format!("--recompress-codec={}", further.codec),
    });
    options.collect()
}

/// The name of a file of this life of a disk.
fn file_name(config: &Config, name: &str) -> String {
    if config.life == 0 { name.to_string() } else { format!("{name}-{}", config.life) }
}

/// Makes the medium of the backing, and returns the backing's path. An attribute takes only a file that exists.
pub fn create_medium(context: &Context, config: &Config) -> Result<Option<String>, Fault> {
    let Some(backing) = &config.backing else { return Ok(None) };
    let file = context.path(&file_name(config, "backing")).display().to_string();
    let limit = Duration::from_secs(30);
    let make = |file: &str| {
        let made = std::fs::File::create(file).and_then(|f| f.set_len(backing.len_bytes));
        made.map_err(|e| Fault::failed(file, e))
    };
    match backing.medium {
        Medium::File => {
            if config.by_attributes {
                make(&file)?;
            }
            Ok(Some(file))
        }
        Medium::Device => {
            make(&file)?;
            let device = process::run(context, "losetup", &["--find", "--show", &file], limit)?.ok()?;
            Ok(Some(device.trim().to_string()))
        }
        Medium::Full { free_bytes } => {
            let dir = context.path(&file_name(config, "small"));
            std::fs::create_dir(&dir).map_err(|e| Fault::failed(dir.display(), e))?;
            let (dir, options) = (dir.display().to_string(), format!("size={free_bytes},mode=0700"));
            process::run(context, "mount", &["-t", "tmpfs", "-o", &options, "soak", &dir], limit)?.ok()?;
            let file = format!("{dir}/backing");
            if config.by_attributes {
                make(&file)?;
            }
            Ok(Some(file))
        }
    }
}

/// Removes what [`create_medium`] made.
pub fn remove_medium(context: &Context, config: &Config) -> Result<(), Fault> {
    let limit = Duration::from_secs(30);
    match config.backing.as_ref().map(|b| b.medium) {
        Some(Medium::Device) => {
            let file = context.path(&file_name(config, "backing")).display().to_string();
            // The device stays until the kernel has closed the files of io_uring rings, shortly after their process has
            // ended. If it stays longer, `ending` reports it as left.
            let deadline = Instant::now() + RING_CLEANUP;
            loop {
                let listed =
                    process::run(context, "losetup", &["--noheadings", "-O", "NAME", "-j", &file], limit)?
                        .ok()?;
                if listed.trim().is_empty() || Instant::now() >= deadline {
                    return Ok(());
                }
                for device in listed.split_whitespace() {
                    process::run(context, "losetup", &["-d", device], limit)?;
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        Some(Medium::Full { .. }) => {
            let dir = context.path(&file_name(config, "small")).display().to_string();
            // The kernel closes the files of io_uring rings shortly after their process has ended.
            let deadline = Instant::now() + RING_CLEANUP;
            loop {
                let ran = process::run(context, "umount", &[&dir], limit)?;
                if ran.code == 0 || Instant::now() >= deadline {
                    return ran.ok().map(drop);
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        Some(Medium::File) | None => Ok(()),
    }
}
