//! A disk of the `pagefold` program: making it, asking it, changing it, ending it.

use super::config::{Config, Export, Medium, Memory};
use crate::model::{Seen, SeenBacking, log_geometry};
use crate::part::{Context, Fault};
use crate::process::{self, Ran};
use serde_json::Value;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long a command may take. Nothing that is asked here has to wait for a medium.
const COMMAND: Duration = Duration::from_secs(60);
/// How long a file may be held by the rings of a process that has ended.
const RINGS: Duration = Duration::from_secs(5);
/// The disk's name.
const NAME: &str = "x";

/// A disk that runs.
pub struct Server<'a> {
    context: &'a Context,
    /// Its process.
    pub pid: u32,
    /// Path of its device, or its NBD URI.
    pub device: String,
    config: &'a Config,
}

/// What making a disk came to.
pub enum Made<'a> {
    /// It runs.
    Running(Server<'a>),
    /// Such a configuration is refused before anything is made, for this reason.
    Refused(String),
}

fn pagefold(context: &Context, args: &[&str]) -> Result<Ran, Fault> {
    process::run(context, &context.settings.program, args, COMMAND)
}

impl<'a> Server<'a> {
    /// Makes the disk of this configuration.
    pub fn create(context: &'a Context, config: &'a Config) -> Result<Made<'a>, Fault> {
        let size = config.size_bytes.to_string();
        let mut args = vec!["disk", "create", "-q", "--name", NAME, "--size", &size, "--codec", config.codec];
        args.extend(["--door", if config.export == Export::Loop { "loop" } else { "nbd" }]);
        let memory = match config.memory {
            Memory::Default => None,
            Memory::Unlimited => Some(0),
            Memory::Bytes(bytes) => Some(bytes),
        };
        let memory = memory.map(|bytes| bytes.to_string());
        if let Some(memory) = &memory {
            args.extend(["--memory", memory]);
        }
        let path = medium(context, config)?;
        let (len, delay);
        if let (Some(path), Some(backing)) = (&path, &config.backing) {
            (len, delay) = (backing.len_bytes.to_string(), backing.delay_us.to_string());
            args.extend(["--backing", path, "--backing-delay", &delay]);
            if backing.is_given {
                args.extend(["--backing-size", &len]);
            }
            args.extend(["--compressed-writeback", if backing.compressed { "on" } else { "off" }]);
        }
        let ran = pagefold(context, &args)?;
        if ran.code == 2 {
            return Ok(Made::Refused(ran.err.trim().to_string()));
        }
        let device = ran.ok()?.trim().to_string();
        let mut server = Server { context, pid: 0, device, config };
        let pid = server.show()?.pointer("/server/pid").and_then(Value::as_u64);
        server.pid = pid.and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0);
        config.attributes.iter().try_for_each(|words| server.set(words)?.ok().map(drop))?;
        Ok(Made::Running(server))
    }

    /// `disk show --json`.
    pub fn show(&self) -> Result<Value, Fault> {
        let args = ["disk", "show", NAME, "--json"];
        let shown =
            process::run_quietly(self.context, &self.context.settings.program, &args, COMMAND)?.ok()?;
        serde_json::from_str(&shown).map_err(|e| Fault::failed("disk show --json", e))
    }

    /// `disk set` with these words.
    pub fn set(&self, words: &str) -> Result<Ran, Fault> {
        let mut args = vec!["disk", "set", NAME];
        args.extend(words.split(' '));
        pagefold(self.context, &args)
    }

    /// `disk park` with this selection. A pass may find a full or failing medium, so its exit code says nothing.
    pub fn park(&self, words: &str) -> Result<Ran, Fault> {
        let mut args = vec!["disk", "park", NAME, "--json"];
        args.extend(words.split(' '));
        pagefold(self.context, &args)
    }

    /// `disk remove`.
    pub fn remove(&self) -> Result<(), Fault> {
        pagefold(self.context, &["disk", "remove", NAME])?.ok().map(drop)
    }

    /// `disk list`, which clears what dead servers have left.
    pub fn list(&self) -> Result<(), Fault> {
        pagefold(self.context, &["disk", "list"])?.ok().map(drop)
    }

    /// The NBD socket.
    pub fn socket(&self) -> PathBuf {
        self.context.runtime().1.join(NAME).join("nbd.sock")
    }

    /// What the model asks of what was shown.
    pub fn seen(&self, shown: &Value) -> Seen {
        let number = |pointer: &str| shown.pointer(pointer).and_then(Value::as_u64);
        let layout_is_log = shown.pointer("/parking/layout").and_then(Value::as_str) == Some("log");
        let condition = shown.pointer("/parking/condition").and_then(Value::as_str).unwrap_or_default();
        let is_small = self.config.backing.as_ref().is_some_and(|b| matches!(b.medium, Medium::Full { .. }));
        let backing = shown.get("parking").filter(|p| p.is_object()).map(|_| {
            let capacity_bytes = number("/parking/capacity_bytes").unwrap_or(0);
            let segment = log_geometry(capacity_bytes + (1 << 20)).1;
            SeenBacking {
                capacity_bytes,
                segment_bytes: layout_is_log.then_some(segment),
                pages: number("/parking/pages").unwrap_or(0),
                bytes: number("/parking/bytes").unwrap_or(0),
                is_closed: is_small || ["fails", "used up"].iter().any(|word| condition.contains(word)),
                condition: condition.to_string(),
            }
        });
        Seen {
            in_use_bytes: number("/memory/pool_bytes").unwrap_or(0),
            limit_bytes: number("/memory/limit_bytes"),
            machine_bytes: process::available_bytes(),
            backing,
        }
    }
}

/// Makes what the backing lies on, and returns its path.
fn medium(context: &Context, config: &Config) -> Result<Option<String>, Fault> {
    let Some(backing) = &config.backing else { return Ok(None) };
    let file = context.path("backing").display().to_string();
    let limit = Duration::from_secs(30);
    match backing.medium {
        Medium::File => Ok(Some(file)),
        Medium::Device => {
            let made = std::fs::File::create(&file).and_then(|f| f.set_len(backing.len_bytes));
            made.map_err(|e| Fault::failed(&file, e))?;
            let device = process::run(context, "losetup", &["--find", "--show", &file], limit)?.ok()?;
            Ok(Some(device.trim().to_string()))
        }
        Medium::Full { free_bytes } => {
            let dir = context.path("small");
            std::fs::create_dir(&dir).map_err(|e| Fault::failed(dir.display(), e))?;
            let (dir, options) = (dir.display().to_string(), format!("size={free_bytes},mode=0700"));
            process::run(context, "mount", &["-t", "tmpfs", "-o", &options, "soak", &dir], limit)?.ok()?;
            Ok(Some(format!("{dir}/backing")))
        }
    }
}

/// Takes away what [`medium`] made.
pub fn take_medium_away(context: &Context, config: &Config) -> Result<(), Fault> {
    let limit = Duration::from_secs(30);
    match config.backing.as_ref().map(|b| b.medium) {
        Some(Medium::Device) => {
            let file = context.path("backing").display().to_string();
            let listed =
                process::run(context, "losetup", &["--noheadings", "-O", "NAME", "-j", &file], limit)?
                    .ok()?;
            for device in listed.split_whitespace() {
                process::run(context, "losetup", &["-d", device], limit)?.ok()?;
            }
            Ok(())
        }
        Some(Medium::Full { .. }) => {
            let dir = context.path("small").display().to_string();
            // Rings keep a file open for a moment after the process that had them has ended.
            let deadline = Instant::now() + RINGS;
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
