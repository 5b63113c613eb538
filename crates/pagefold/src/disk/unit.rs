//! `disk unit`: systemd units for a disk that is restored at boot and saved.
//!
//! Three decisions shape the units. The service is `Type=forking` without a main process: it is active as long as its control
//! group has the server or the keeper of the disk, whichever of them were replaced. `KillMode=process` then means
//! that systemd kills neither: only `disk remove` ends them, after a save that did not fail. And the file system is a
//! separate mount unit, bound to the service, so that systemd orders all services that use a path on it, and unmounts it first.
//!
//! This module writes units and starts nothing.

use super::bucket;
use super::create::DiskOptions;
use super::request::CreateRequest;
use super::systemd::{argument, escape_path, value, word};
use crate::cli::{output, values};
use crate::image::open::path_failure;
use crate::image::target::Target;
use clap::{Args, FromArgMatches, ValueHint};
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::export_kind::ExportKind;
use pagefold_control::instance::{DEVICE_LINK, InstanceName};
use std::ffi::OsString;
use std::io::Write;
use std::path::{Component, Path, PathBuf};

/// The first line of all units: files without it are not replaced.
const HEADER: &str =
    "# Made by 'pagefold disk unit', which replaces this file. Local changes: systemctl edit.\n";
/// Where the administrator's units are.
const SYSTEM_UNITS: &str = "/etc/systemd/system";
/// The runtime folder of root, whose services have no variable that names another.
const RUNTIME_DIR: &str = "/run/pagefold";
/// The directory of the journal.
const JOURNAL: &str = "/var/log/journal";
/// How long systemd waits for a restore or a save.
const TIMEOUT: &str = "10min";

/// The arguments of `disk unit`.
#[derive(Debug, Args)]
pub struct UnitArgs {
    /// Name of the disk
    #[arg(value_name = "NAME")]
    pub name: String,
    /// File that the disk is restored from, if it exists, and saved to
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub save_to: Option<PathBuf>,
    /// Also save the disk at this interval, such as 10m or 1h
    #[arg(long, value_name = "TIME", requires = "save_to")]
    pub every: Option<String>,
    /// Mount the disk on this directory. A new disk gets an ext4 that begins with the files of the directory
    #[arg(long, value_name = "DIRECTORY", value_hint = ValueHint::DirPath)]
    pub mount: Option<PathBuf>,
    /// Write the units to files below DIRECTORY [default: /etc/systemd/system], and say what to type next. A file that
    /// this command has not made is not replaced
    #[arg(long, value_name = "DIRECTORY", value_hint = ValueHint::DirPath, num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = SYSTEM_UNITS)]
    pub install: Option<PathBuf>,
    /// The disk
    #[command(flatten)]
    pub disk: GivenOptions,
}

/// The options of a disk, and the words by which they were given, with absolute paths.
#[derive(Debug)]
pub struct GivenOptions {
    options: DiskOptions,
    words: Vec<OsString>,
}

impl FromArgMatches for GivenOptions {
    fn from_arg_matches(matches: &clap::ArgMatches) -> std::result::Result<Self, clap::Error> {
        Ok(GivenOptions { options: DiskOptions::from_arg_matches(matches)?, words: given_words(matches) })
    }

    fn update_from_arg_matches(
        &mut self,
        matches: &clap::ArgMatches,
    ) -> std::result::Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for GivenOptions {
    fn augment_args(command: clap::Command) -> clap::Command {
        DiskOptions::augment_args(command)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        DiskOptions::augment_args_for_update(command)
    }
}

/// The options of a disk among `matches` that the user gave, as words of a command line.
fn given_words(matches: &clap::ArgMatches) -> Vec<OsString> {
    let command = DiskOptions::augment_args(clap::Command::new("disk"));
    let mut words = Vec::new();
    for option in command.get_arguments() {
        let (id, name) = (option.get_id().as_str(), option.get_long().unwrap_or_default());
        if matches.value_source(id) != Some(clap::parser::ValueSource::CommandLine) {
            continue;
        }
        if !option.get_action().takes_values() {
            words.push(format!("--{name}").into());
            continue;
        }
        let is_path = matches!(option.get_value_hint(), ValueHint::FilePath | ValueHint::AnyPath);
        for given in matches.get_raw(id).into_iter().flatten() {
            let mut word = OsString::from(format!("--{name}="));
            match std::path::absolute(given) {
                Ok(path) if is_path => word.push(path),
                _ => word.push(given),
            }
            words.push(word);
        }
    }
    words
}

/// The checked arguments.
#[derive(Debug)]
struct Plan {
    program: String,
    name: InstanceName,
    options: Vec<String>,
    backing: Option<String>,
    save_to: Option<String>,
    every_s: Option<u64>,
    mount: Option<String>,
}

/// A unit: the name of its file, and the contents.
#[derive(Debug)]
struct Unit {
    name: String,
    text: String,
}

/// Prints the units, or writes them to files.
pub fn run(args: &UnitArgs) -> Result<()> {
    let program =
        std::env::current_exe().map_err(|e| CliError::io("finding the path of this program", &e))?;
    let plan = Plan::from_args(args, &program)?;
    let units = plan.units();
    let Some(folder) = &args.install else {
        let show = |unit: &Unit| format!("# {SYSTEM_UNITS}/{}\n{}", unit.name, unit.text);
        return output::text(&units.iter().map(show).collect::<Vec<_>>().join("\n"));
    };
    install(folder, &units, &plan)?;
    let enable = plan.enabled_units();
    output::line(&format!("next: systemctl daemon-reload && systemctl enable --now {enable}"))?;
    if plan.mount.as_deref().is_some_and(is_in_use_early) {
        output::note("programs have files open there: leave out --now, and restart the machine");
    }
    Ok(())
}

/// Whether programs that run from boot on have files below this directory open, or files of it.
fn is_in_use_early(mount: &str) -> bool {
    is_below(JOURNAL, mount) || is_below(mount, "/var")
}

/// Whether a path is the same as `folder`, or in it.
fn is_below(path: &str, folder: &str) -> bool {
    Path::new(path).starts_with(folder)
}

impl Plan {
    fn from_args(args: &UnitArgs, program: &Path) -> Result<Self> {
        if args.save_to.as_deref().is_some_and(|path| bucket::location(path).is_some()) {
            let what = "--save-to is a file; for a bucket, call 'disk create --restore-if-exists' and 'disk save' in units of your own";
            return Err(CliError::usage(what));
        }
        let save_to = args.save_to.as_deref().map(|path| absolute("--save-to", path)).transpose()?;
        let mount = args.mount.as_deref().map(mount_point).transpose()?;
        let every_s = args.every.as_deref().map(|text| values::seconds("--every", text)).transpose()?;
        if every_s == Some(0) {
            return Err(CliError::usage("--every: the interval is at least 1 second"));
        }
        let GivenOptions { options, words } = &args.disk;
        let words = words.iter().map(|word| text("an option", Path::new(word)));
        let mut words = words.collect::<Result<Vec<_>>>()?;
        if mount.is_some() {
            if options.listen.is_some() || options.export.0.is_some_and(|export| export != ExportKind::Loop) {
                return Err(CliError::usage(
                    "--mount needs the loop export; leave --export and --listen out",
                ));
            }
            if options.export.0.is_none() {
                words.push("--export=loop".into());
            }
        }
        let backing = options.backing.as_deref().map(|path| absolute("--backing", path)).transpose()?;
        for (option, path) in [("--save-to", &save_to), ("--backing", &backing)] {
            if let (Some(path), Some(mount)) = (path, &mount)
                && is_below(path, mount)
            {
                return Err(CliError::usage(format!(
                    "{option}: '{path}' would be on the disk itself, at '{mount}'"
                )));
            }
        }
        let name = InstanceName::parse(&args.name)?;
        check(options, save_to.as_deref())?;
        let program = text("the path of this program", program)?;
        Ok(Plan { program, name, options: words, backing, save_to, every_s, mount })
    }

    /// The name of the service, and the beginning of the names of those that save.
    fn service(&self) -> String {
        format!("pagefold-disk-{}", self.name)
    }

    fn mount_unit(&self) -> Option<String> {
        self.mount.as_deref().map(|at| format!("{}.mount", escape_path(at)))
    }

    /// The units to enable. The others start with them.
    fn enabled_units(&self) -> String {
        let first = match self.mount_unit() {
            // A shell would take a backslash away.
            Some(name) if name.contains('\\') => format!("'{name}'"),
            Some(name) => name,
            None => format!("{}.service", self.service()),
        };
        match self.every_s {
            Some(_) => format!("{first} {}-save.timer", self.service()),
            None => first,
        }
    }

    fn units(&self) -> Vec<Unit> {
        let mut units = vec![self.disk_service()];
        units.extend(self.mount_of_disk());
        if let (Some(file), Some(every_s)) = (&self.save_to, self.every_s) {
            units.extend([self.save_service(file), self.save_timer(every_s)]);
        }
        units
    }

    /// The command line of this program with these words.
    fn command(&self, words: &[&str]) -> String {
        let words = [self.program.as_str(), "disk"].into_iter().chain(words.iter().copied());
        words.map(argument).collect::<Vec<_>>().join(" ")
    }

    fn device_link(&self) -> String {
        format!("{RUNTIME_DIR}/{}/{DEVICE_LINK}", self.name)
    }

    fn disk_service(&self) -> Unit {
        let name = self.name.as_str();
        let mut text = format!("{HEADER}[Unit]\nDescription=Compressed RAM disk {name}\n");
        let folders =
            [&self.save_to, &self.backing, &self.mount].into_iter().flatten().map(|path| folder_of(path));
        let folders = folders.map(word).collect::<Vec<_>>().join(" ");
        if !folders.is_empty() {
            text += &format!("RequiresMountsFor={folders}\n");
        }
        text += "Wants=modprobe@fuse.service modprobe@loop.service\n\
                 After=modprobe@fuse.service modprobe@loop.service\n";
        if self.mount.is_some() {
            // Services of early boot must not wait for the system that waits for them.
            text += "DefaultDependencies=no\n\
                     After=systemd-modules-load.service systemd-tmpfiles-setup-dev.service systemd-remount-fs.service\n\
                     Conflicts=shutdown.target\nBefore=shutdown.target\n";
        }
        text += "\n[Service]\n\
                 # Active as long as a process of the disk runs, of which each may be replaced.\n\
                 Type=forking\nGuessMainPID=no\nOOMPolicy=continue\n\
                 # systemd kills no process of the disk: if the save fails, the disk stays.\nKillMode=process\n";
        text += &format!("TimeoutStartSec={TIMEOUT}\nTimeoutStopSec={TIMEOUT}\n");
        text +=
            "# The journal may have closed its files before the last save.\nStandardError=journal+console\n";
        let named = format!("--name={name}");
        let restore = self.save_to.as_ref().map(|file| format!("--restore-if-exists={file}"));
        let mut words = vec!["create", "--unless-running", &named];
        words.extend(restore.as_deref());
        words.extend(self.options.iter().map(String::as_str));
        text += &format!("ExecStart={}\n", self.command(&words));
        if let Some(mount) = &self.mount {
            text += "# blkid's exit code 2: nothing is on the device.\n\
                     ExecStartPost=/bin/sh -c 'blkid -p \"$$0\" >/dev/null; test $$? != 2 || { mkdir -p \"$$1\" && \
                     exec mkfs.ext4 -q -d \"$$1\" \"$$0\"; }'";
            text += &format!(" {} {}\n", argument(&self.device_link()), argument(mount));
        }
        if let Some(file) = &self.save_to {
            text += &format!("ExecStop={}\n", self.command(&["save", "--incremental", name, file]));
        }
        text += &format!("ExecStop={}\n", self.command(&["remove", "--force", name]));
        if self.mount.is_none() {
            text += "\n[Install]\nWantedBy=multi-user.target\n";
        }
        Unit { name: format!("{}.service", self.service()), text }
    }

    fn mount_of_disk(&self) -> Option<Unit> {
        let (mount, service) = (self.mount.as_deref()?, self.service());
        let journal = if is_below(JOURNAL, mount) { " systemd-journal-flush.service" } else { "" };
        let text = format!(
            "{HEADER}[Unit]\nDescription=Compressed RAM disk {} at {}\n\
             BindsTo={service}.service\nAfter={service}.service\nBefore=local-fs.target{journal}\n\n\
             [Mount]\nWhat={}\nWhere={}\nType=ext4\nOptions=discard,noatime\n\n\
             [Install]\nWantedBy=local-fs.target\n",
            self.name,
            value(mount),
            self.device_link(),
            value(mount),
        );
        Some(Unit { name: self.mount_unit()?, text })
    }

    fn save_service(&self, file: &str) -> Unit {
        let service = self.service();
        let text = format!(
            "{HEADER}[Unit]\nDescription=Save the compressed RAM disk {}\n\
             Requisite={service}.service\nAfter={service}.service\nRequiresMountsFor={}\n\n\
             [Service]\nType=oneshot\nExecStart={}\n",
            self.name,
            word(folder_of(file)),
            self.command(&["save", "--incremental", self.name.as_str(), file]),
        );
        Unit { name: format!("{service}-save.service"), text }
    }

    fn save_timer(&self, every_s: u64) -> Unit {
        let service = self.service();
        let text = format!(
            "{HEADER}[Unit]\nDescription=Save the compressed RAM disk {} now and then\n\
             BindsTo={service}.service\nAfter={service}.service\n\n\
             [Timer]\nOnActiveSec={every_s}s\nOnUnitInactiveSec={every_s}s\nAccuracySec=1s\n\n\
             [Install]\nWantedBy={service}.service\n",
            self.name,
        );
        Unit { name: format!("{service}-save.timer"), text }
    }
}

/// Checks the options as `disk create` does, the saved disk included, if it exists.
fn check(options: &DiskOptions, save_to: Option<&str>) -> Result<()> {
    if options.size.is_none() {
        return Err(CliError::usage("--size is missing, such as --size 512M: the size of a new disk"));
    }
    CreateRequest::check(options, save_to.map(Path::new))
}

/// The folder of an absolute path.
fn folder_of(path: &str) -> &str {
    match path.rsplit_once('/') {
        Some((folder, _)) if !folder.is_empty() => folder,
        _ => "/",
    }
}

fn mount_point(path: &Path) -> Result<String> {
    let at = absolute("--mount", path)?;
    match at.as_str() {
        "/" => Err(CliError::usage("--mount: the root directory is mounted before services start")),
        _ => Ok(at),
    }
}

/// The absolute path, without links followed, as text that a unit can have.
fn absolute(option: &str, path: &Path) -> Result<String> {
    let found = std::path::absolute(path);
    let found = found.map_err(|e| CliError::usage(format!("{option}: '{}': {e}", path.display())))?;
    if found.components().any(|part| part == Component::ParentDir) {
        return Err(CliError::usage(format!("{option}: '{}' contains '..'", path.display())));
    }
    // Without a slash at the end.
    text(option, &found.components().collect::<PathBuf>())
}

fn text(what: &str, path: &Path) -> Result<String> {
    let text = path.to_str().filter(|text| !text.chars().any(char::is_control));
    let refused = || CliError::usage(format!("{what}: '{}' cannot be written in a unit", path.display()));
    text.map(str::to_string).ok_or_else(refused)
}

/// Writes the units, each as a whole, and removes those of an earlier call that saved on a timer. Replaces no file of others.
fn install(folder: &Path, units: &[Unit], plan: &Plan) -> Result<()> {
    let paths: Vec<_> = units.iter().map(|unit| folder.join(&unit.name)).collect();
    for path in &paths {
        if !is_replaceable(path)? {
            let shown = path.display();
            return Err(CliError::new(
                Exit::Busy,
                format!(
                    "'{shown}' exists and was not made by this command; nothing was written: remove it first"
                ),
            ));
        }
    }
    for (unit, path) in units.iter().zip(&paths) {
        let target = Target::open(path)?;
        let written = target.file().write_all(unit.text.as_bytes());
        written.map_err(|e| target.failed(&e))?;
        target.complete()?;
        output::line(&format!("wrote {}", path.display()))?;
    }
    for name in ["save.timer", "save.service"].map(|end| format!("{}-{end}", plan.service())) {
        let path = folder.join(&name);
        if units.iter().all(|unit| unit.name != name) && path.exists() && is_replaceable(&path)? {
            let removed = std::fs::remove_file(&path);
            removed.map_err(|e| CliError::io(format!("removing '{}'", path.display()), &e))?;
            output::line(&format!("removed {}", path.display()))?;
        }
    }
    Ok(())
}

/// Whether this command has made the file, or there is none.
fn is_replaceable(path: &Path) -> Result<bool> {
    match std::fs::read(path) {
        Ok(contents) => Ok(contents.starts_with(HEADER.as_bytes())),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(true),
        Err(e) => Err(path_failure(format!("reading '{}'", path.display()), &e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::DiskCommand;
    use clap::Subcommand;

    fn plan(words: &[&str]) -> Result<Plan> {
        let command = DiskCommand::augment_subcommands(clap::Command::new("disk"));
        let matches = command.try_get_matches_from(["disk", "unit"].iter().chain(words)).unwrap();
        match DiskCommand::from_arg_matches(&matches).unwrap() {
            DiskCommand::Unit(args) => Plan::from_args(&args, Path::new("/usr/bin/pagefold")),
            other => panic!("{other:?}"),
        }
    }

    fn texts(words: &[&str]) -> Vec<(String, String)> {
        plan(words).unwrap().units().into_iter().map(|unit| (unit.name, unit.text)).collect()
    }

    #[test]
    fn options_of_the_disk_are_passed_on_with_absolute_paths() {
        let here = std::env::current_dir().unwrap();
        let words =
            ["x", "--size", "1G", "-c", "zstd:3", "--recompress-codec", "deflate:9", "--backing", "b c"];
        let [(name, text)] = &texts(&words)[..] else { panic!() };
        assert_eq!(name, "pagefold-disk-x.service");
        let backing = format!("\"--backing={}/b c\"", here.display());
        let wanted = format!(
            "\nExecStart=/usr/bin/pagefold disk create --unless-running --name=x --size=1G --codec=zstd:3 \
             --recompress-codec=deflate:9 {backing}\n"
        );
        assert!(text.contains(&wanted), "{text}");
        assert!(!text.contains("ExecStartPost") && !text.contains("disk save"), "{text}");
        assert!(text.contains("ExecStop=/usr/bin/pagefold disk remove --force x\n"), "{text}");
        assert!(text.contains(&format!("RequiresMountsFor={}\n", here.display())), "{text}");
    }

    #[test]
    fn the_units_of_a_mounted_disk_save_between_unmount_and_removal() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("50%")).unwrap();
        let srv = folder.path().display();
        let save_to = format!("--save-to={srv}/50%/log");
        let units = texts(&["log", "--size=1G", &save_to, "--every=10m", "--mount=/var/log/"]);
        let names: Vec<_> = units.iter().map(|(name, _)| name.as_str()).collect();
        let service = "pagefold-disk-log";
        assert_eq!(
            names,
            [
                format!("{service}.service"),
                "var-log.mount".into(),
                format!("{service}-save.service"),
                format!("{service}-save.timer")
            ]
        );
        let [disk, mount, save, timer] = [0, 1, 2, 3].map(|at: usize| units[at].1.as_str());
        let stop = format!(
            "ExecStop=/usr/bin/pagefold disk save --incremental log {srv}/50%%/log\n\
             ExecStop=/usr/bin/pagefold disk remove --force log\n"
        );
        let requires = format!("RequiresMountsFor={srv}/50%% /var\n");
        assert!(disk.contains(&stop) && disk.contains(&requires), "{disk}");
        assert!(
            disk.contains("--export=loop\n") && disk.contains("/run/pagefold/log/device /var/log\n"),
            "{disk}"
        );
        assert!(
            mount.contains("BindsTo=pagefold-disk-log.service\nAfter=pagefold-disk-log.service\n"),
            "{mount}"
        );
        assert!(mount.contains("Before=local-fs.target systemd-journal-flush.service\n"), "{mount}");
        assert!(mount.contains("=/run/pagefold/log/device\nWhere=/var/log\n"), "{mount}");
        assert!(
            save.contains(&format!(
                "ExecStart=/usr/bin/pagefold disk save --incremental log {srv}/50%%/log\n"
            )),
            "{save}"
        );
        assert!(timer.contains("OnUnitInactiveSec=600s\n"), "{timer}");
        let other = texts(&["x", "--size=1G", "--mount=/srv/a b-c"]);
        assert_eq!(other[1].0, r"srv-a\x20b\x2dc.mount");
        assert!(other[1].1.contains("Before=local-fs.target\n") && other[1].1.contains("Where=/srv/a b-c\n"));
    }

    #[test]
    fn mistakes_are_reported_now() {
        let cases: [(&[&str], &str); 10] = [
            (&["x"], "--size is missing"),
            (&["x", "--size=4X"], "--size"),
            (&["x", "--size=1G", "--codec=none-such"], "none-such"),
            (&[".x", "--size=1G"], "not a valid disk name"),
            (&["x", "--size=1G", "--save-to=/s", "--every=0"], "--every"),
            (&["x", "--size=1G", "--save-to=/srv/d/saved", "--mount=/srv/d"], "on the disk itself"),
            (&["x", "--size=1G", "--mount=/"], "--mount"),
            (&["x", "--size=1G", "--mount=/a/../b"], "'..'"),
            (&["x", "--size=1G", "--mount=/a", "--export=nbd"], "loop export"),
            (&["x", "--size=1G", "--save-to=/missing-folder/x"], "/missing-folder/x"),
        ];
        for (words, message) in cases {
            let failure = plan(words).unwrap_err();
            assert!(failure.message.contains(message), "{words:?}: {failure}");
        }
    }

    #[test]
    fn files_of_others_are_not_replaced_and_units_that_are_not_needed_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let with_timer = plan(&["x", "--size=1G", "--save-to=/x", "--every=1h"]).unwrap();
        install(folder, &with_timer.units(), &with_timer).unwrap();
        install(folder, &with_timer.units(), &with_timer).unwrap();
        let count = || std::fs::read_dir(folder).unwrap().count();
        assert_eq!(count(), 3);
        let without = plan(&["x", "--size=1G", "--mount=/srv/x"]).unwrap();
        std::fs::write(folder.join("srv-x.mount"), "[Mount]\n").unwrap();
        assert_eq!(install(folder, &without.units(), &without).unwrap_err().exit, Exit::Busy);
        assert_eq!(count(), 4);
        std::fs::remove_file(folder.join("srv-x.mount")).unwrap();
        install(folder, &without.units(), &without).unwrap();
        assert_eq!(count(), 2);
    }
}
