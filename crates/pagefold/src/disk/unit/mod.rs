//! `disk unit`: systemd units for a disk that is restored at boot and saved.
//!
//! Three decisions shape the units. The service is `Type=forking` without a main process: it is active as long as its control
//! group has the server or the keeper of the disk, whichever of them were replaced. `KillMode=process` then means
//! that systemd kills neither: only `disk remove` ends them, after a save that did not fail. And the file system is a
//! separate mount unit, bound to the service, so that systemd orders all services that use a path on it, and unmounts it first.
//!
//! This module writes units and starts nothing. It has the arguments and checks them; `places` knows what has to be mounted,
//! `text` the units, `install` their files.

mod install;
mod places;
mod text;

use super::bucket;
use super::create::DiskOptions;
use super::request::CreateRequest;
use super::systemd::escape_path;
use crate::cli::{output, values};
use clap::{Args, FromArgMatches, ValueHint};
use pagefold_control::error::{CliError, Result};
use pagefold_control::export_kind::ExportKind;
use pagefold_control::instance::InstanceName;
use places::{Place, absolute, folder_of, is_below, text};
use std::collections::HashSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use text::Unit;

/// The first line of all units: files without it are not replaced.
const HEADER: &str =
    "# Made by 'pagefold disk unit', which replaces this file. Local changes: systemctl edit.\n";
/// Where the administrator's units are.
const SYSTEM_UNITS: &str = "/etc/systemd/system";
/// The runtime folder of root, whose services have no variable that names another.
const RUNTIME_DIR: &str = "/run/pagefold";
/// The directory of the journal.
const JOURNAL: &str = "/var/log/journal";
/// How long systemd waits for a restore or a save, at least, and the speed that a slow medium has.
const TIMEOUT_MIN_S: u64 = 600;
const SLOW_BYTES_PER_S: u64 = 4 << 20;

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
    save_to: Option<Place>,
    every_s: Option<u64>,
    /// The folders that have to be mounted before the disk is made or saved.
    folders: Vec<String>,
    timeout_s: u64,
    mount: Option<String>,
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
    install::install(folder, &units, &plan)?;
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

impl Plan {
    fn from_args(args: &UnitArgs, program: &Path) -> Result<Self> {
        if args.save_to.as_deref().is_some_and(|path| bucket::location(path).is_some()) {
            let what = "--save-to is a file; for a bucket, call 'disk create --restore-if-exists' and 'disk save' in units of your own";
            return Err(CliError::usage(what));
        }
        let save_to = args.save_to.as_deref().map(|path| Place::of("--save-to", path)).transpose()?;
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
            words.retain(|word| !word.starts_with("--export="));
            words.push("--export=loop".into());
        }
        let backing = options.backing.as_deref().map(|path| absolute("--backing", path)).transpose()?;
        refuse_places(save_to.as_ref(), backing.as_deref(), mount.as_deref())?;
        let name = InstanceName::parse(&args.name)?;
        let size_bytes = check(options, save_to.as_ref())?;
        let timeout_s = TIMEOUT_MIN_S.max(size_bytes / SLOW_BYTES_PER_S);
        let program = text("the path of this program", program)?;
        let dictionary = options.dictionary.as_deref();
        let dictionary = dictionary.map(|path| absolute("--dictionary", path)).transpose()?;
        let mut folders: Vec<_> = save_to.iter().flat_map(|place| place.folders.clone()).collect();
        let others = [backing.as_ref(), mount.as_ref(), dictionary.as_ref(), Some(&program)];
        folders.extend(others.into_iter().flatten().map(|path| folder_of(path).to_string()));
        let mut seen = HashSet::new();
        folders.retain(|folder| seen.insert(folder.clone()));
        Ok(Plan { program, name, options: words, backing, save_to, every_s, folders, timeout_s, mount })
    }

    /// The name of the service without its suffix.
    fn service(&self) -> String {
        format!("pagefold-disk-{}", self.name)
    }

    /// The name of the service and the timer that save, without their suffix.
    fn save(&self) -> String {
        format!("pagefold-save-{}", self.name)
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
            Some(_) => format!("{first} {}.timer", self.save()),
            None => first,
        }
    }
}

/// Refuses files that cannot be where they are named.
fn refuse_places(save_to: Option<&Place>, backing: Option<&str>, mount: Option<&str>) -> Result<()> {
    let Some(mount) = mount else { return Ok(()) };
    let on_disk = |option: &str, path: &str| {
        Err(CliError::usage(format!("{option}: '{path}' would be on the disk itself, at '{mount}'")))
    };
    if let Some(path) = backing.filter(|path| is_below(path, mount)) {
        return on_disk("--backing", path);
    }
    let Some(place) = save_to else { return Ok(()) };
    if place.is_below(mount) {
        return on_disk("--save-to", &place.path);
    }
    match &place.network_fs {
        // Its mount waits for the network, which waits for the local file systems, of which the disk is one.
        Some(fs_type) => Err(CliError::usage(format!(
            "--save-to: '{}' is on a network file system ({fs_type}), which is mounted after --mount is; choose a file on a \
             local one",
            place.path
        ))),
        None => Ok(()),
    }
}

/// Checks the options as `disk create` does, the saved disk included, if it exists. Returns the size of the disk.
fn check(options: &DiskOptions, save_to: Option<&Place>) -> Result<u64> {
    if options.size.is_none() {
        return Err(CliError::usage("--size is missing, such as --size 512M: the size of a new disk"));
    }
    if options.uncompressed && save_to.is_some() {
        return Err(CliError::usage("--save-to: a disk with --uncompressed cannot be saved"));
    }
    CreateRequest::check(options, save_to.map(|place| Path::new(&place.path)))
}

fn mount_point(path: &Path) -> Result<String> {
    let at = absolute("--mount", path)?;
    match at.as_str() {
        "/" => Err(CliError::usage("--mount: the root directory is mounted before services start")),
        _ => Ok(at),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::DiskCommand;
    use clap::Subcommand;

    pub(in crate::disk::unit) fn plan(words: &[&str]) -> Result<Plan> {
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
        assert!(text.contains(&format!("RequiresMountsFor={} /usr/bin\n", here.display())), "{text}");
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
                "pagefold-save-log.service".into(),
                "pagefold-save-log.timer".into()
            ]
        );
        let [disk, mount, save, timer] = [0, 1, 2, 3].map(|at: usize| units[at].1.as_str());
        let stop = format!(
            "ExecStop=/usr/bin/pagefold disk save --incremental log {srv}/50%%/log\n\
             ExecStop=/usr/bin/pagefold disk remove --force log\n"
        );
        let requires = format!("RequiresMountsFor={srv}/50%% /var /usr/bin\n");
        assert!(disk.contains(&stop) && disk.contains(&requires), "{disk}");
        assert!(
            disk.contains("--export=loop\n")
                && disk.contains(&format!("/run/pagefold/log/device /var/log {srv}/50%%/log\n")),
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
        let cases: [(&[&str], &str); 13] = [
            (&["x"], "--size is missing"),
            (&["x", "--size=4X"], "--size"),
            (&["x", "--size=1G", "--codec=none-such"], "none-such"),
            (&[".x", "--size=1G"], "not a valid disk name"),
            (&["x", "--size=1G", "--save-to=/s", "--every=0"], "--every"),
            (&["x", "--size=1G", "--save-to=/srv/saved", "--mount=/srv"], "on the disk itself"),
            (&["x", "--size=1G", "--mount=/"], "--mount"),
            (&["x", "--size=1G", "--mount=/a "], "cannot be written"),
            (&["x", "--size=1G", "--save-to=/dev/../proc/x", "--mount=/proc"], "'..'"),
            (&["x", "--size=1G", "--uncompressed", "--save-to=/x"], "cannot be saved"),
            (&["x", "--size=1G", "--mount=/a/../b"], "'..'"),
            (&["x", "--size=1G", "--mount=/a", "--export=nbd"], "loop export"),
            (&["x", "--size=1G", "--save-to=/missing-folder/x"], "/missing-folder"),
        ];
        for (words, message) in cases {
            let failure = plan(words).unwrap_err();
            assert!(failure.message.contains(message), "{words:?}: {failure}");
        }
    }
}
