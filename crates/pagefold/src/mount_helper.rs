//! The command line of a mount helper, by which mount(8), fstab(5) and systemd mount images.
//!
//! For a file system of type `pagefold`, mount(8) runs `mount.pagefold IMAGE DIR -o OPTIONS`, a link to this program. For one
//! of type `fuse.pagefold`, the helper of libfuse runs `pagefold IMAGE DIR -o OPTIONS`. Both become
//! `pagefold image mount -q`: its options are written with underscores or hyphens (`allow_other`, `memory=64M`). Options that
//! every mount may have, and that mean nothing for a read-only one, are passed over. Others are errors: an option that
//! restricts a mount must not be lost without a word. Reference: mount(8), "External helpers"; mount.fuse3(8).

use clap::ArgAction;
use pagefold_control::error::{CliError, Result};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// The names under which the program is a mount helper.
const NAMES: [&str; 2] = ["mount.pagefold", "mount.fuse.pagefold"];

/// Options that mean nothing here: those of the mount table, and those that only writing would follow. `suid` and `dev` are
/// among them, because mount.fuse3 passes them always: `--suid` and `--dev` are for trusted images.
const PASSED_OVER: &[&[u8]] = &[
    b"ro",
    b"rw",
    b"defaults",
    b"auto",
    b"noauto",
    b"nofail",
    b"_netdev",
    b"user",
    b"users",
    b"owner",
    b"group",
    b"nouser",
    b"nousers",
    b"suid",
    b"nosuid",
    b"dev",
    b"nodev",
    b"exec",
    b"atime",
    b"noatime",
    b"relatime",
    b"norelatime",
    b"strictatime",
    b"nostrictatime",
    b"diratime",
    b"nodiratime",
    b"lazytime",
    b"nolazytime",
    b"sync",
    b"async",
    b"dirsync",
    b"iversion",
    b"noiversion",
    b"mand",
    b"nomand",
    b"silent",
    b"loud",
    b"loop",
    b"default_permissions",
];
/// The beginnings of options for other programs, such as `x-systemd.automount`, and of the name of the user who mounts.
const PASSED_OVER_PREFIXES: [&[u8]; 6] = [b"x-", b"X-", b"comment=", b"fsname=", b"subtype=", b"user="];

/// The thing to do.
pub enum Wanted {
    /// To run a command with these arguments, the first of which is the name of the program.
    Command(Vec<OsString>),
    /// Nothing.
    Nothing,
}

/// Translates the arguments of a helper. Others stay as they are. `command` is the definition of the command line.
pub fn arguments(given: Vec<OsString>, command: &clap::Command) -> Result<Wanted> {
    let name = given.first().map(Path::new).and_then(Path::file_name);
    let is_helper = name.is_some_and(|name| NAMES.iter().any(|helper| name == *helper));
    // A file named like a command is not mounted in this way.
    let is_like_helper = match given.get(1..) {
        Some([image, dir, rest @ ..]) => {
            let is_word = |word: &OsString| !word.as_bytes().starts_with(b"-");
            let is_command = command.get_subcommands().any(|sub| image == sub.get_name());
            is_word(image)
                && is_word(dir)
                && !is_command
                && rest.iter().any(|word| word.as_bytes().starts_with(b"-o"))
        }
        _ => false,
    };
    match is_helper || is_like_helper {
        true => helper(&given, command),
        false => Ok(Wanted::Command(given)),
    }
}

fn helper(given: &[OsString], command: &clap::Command) -> Result<Wanted> {
    let mut helper = Helper { operands: Vec::new(), options: Vec::new(), is_sloppy: false };
    let mut words = given.iter().skip(1);
    let mut lists = Vec::new();
    while let Some(word) = words.next() {
        let bytes = word.as_bytes();
        match bytes {
            b"-s" => helper.is_sloppy = true,
            // To do everything but the mount.
            b"-f" => return Ok(Wanted::Nothing),
            b"-n" | b"-v" | b"-r" | b"-w" => {}
            b"-o" | b"-t" => {
                let value = words
                    .next()
                    .ok_or_else(|| CliError::usage(format!("{} has no value", word.display())))?;
                if bytes == b"-o" {
                    lists.push(value.as_bytes());
                }
            }
            [b'-', b'o', list @ ..] => lists.push(list),
            [b'-', ..] => {
                let what = format!("a mount helper does not know the option {}", word.display());
                return Err(CliError::usage(what));
            }
            _ => helper.operands.push(word.clone()),
        }
    }
    let [image, dir] = &helper.operands[..] else {
        return Err(CliError::usage("usage: mount.pagefold IMAGE DIR [-o OPTION,OPTION...]"));
    };
    if !lists.is_empty() && has(&lists, b"nofail") && is_missing(image) {
        return Ok(Wanted::Nothing);
    }
    let (image, dir) = (image.clone(), dir.clone());
    for option in lists.iter().flat_map(|list| list.split(|byte| *byte == b',')) {
        helper.add(option, command)?;
    }
    let fixed = ["pagefold", "image", "mount", "-q"].map(OsString::from);
    let operands = [OsString::from("--"), image, dir];
    Ok(Wanted::Command(fixed.into_iter().chain(helper.options).chain(operands).collect()))
}

fn has(lists: &[&[u8]], wanted: &[u8]) -> bool {
    lists.iter().any(|list| list.split(|byte| *byte == b',').any(|option| option == wanted))
}

/// Whether the image is a file that does not exist.
fn is_missing(image: &OsStr) -> bool {
    let is_url = image.as_bytes().windows(3).any(|window| window == b"://");
    !is_url && Path::new(image).symlink_metadata().is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound)
}

/// A helper's command line, while it is translated.
struct Helper {
    operands: Vec<OsString>,
    /// The options of `image mount`.
    options: Vec<OsString>,
    /// Whether unknown options are passed over.
    is_sloppy: bool,
}

impl Helper {
    fn add(&mut self, option: &[u8], command: &clap::Command) -> Result<()> {
        let passed_over = |option: &[u8]| {
            PASSED_OVER.contains(&option)
                || PASSED_OVER_PREFIXES.iter().any(|prefix| option.starts_with(prefix))
        };
        if option.is_empty() || passed_over(option) {
            return Ok(());
        }
        let (name, value) = match option.iter().position(|byte| *byte == b'=') {
            Some(at) => (&option[..at], Some(&option[at + 1..])),
            None => (option, None),
        };
        let long = String::from_utf8_lossy(name).replace('_', "-");
        let takes_value = takes_value(&long, command);
        match (takes_value, value) {
            (Some(true), Some(value)) => {
                let option = [format!("--{long}=").as_bytes(), value].concat();
                self.options.push(OsString::from_vec(option));
                Ok(())
            }
            (Some(false), None) => {
                self.options.push(format!("--{long}").into());
                Ok(())
            }
            (Some(true), None) => {
                Err(CliError::usage(format!("the mount option {long} needs a value: {long}=...")))
            }
            (Some(false), Some(_)) => Err(CliError::usage(format!("the mount option {long} has no value"))),
            (None, _) if self.is_sloppy => Ok(()),
            (None, None) if option == b"noexec" => Err(CliError::usage(
                "the mount option 'noexec' is not possible: programs in an image can be run; mount(8) adds it to 'user' and \
                 'users': write 'user,exec' or 'users,exec'",
            )),
            (None, _) => Err(CliError::usage(format!(
                "unknown mount option '{}': those of 'pagefold image mount' can be used, such as allow_other and \
                 memory=64M",
                String::from_utf8_lossy(option)
            ))),
        }
    }
}

/// Whether this option of `image mount` takes a value; `None` if there is none that a mount of a table can have.
fn takes_value(long: &str, command: &clap::Command) -> Option<bool> {
    let mount = command.find_subcommand("image")?.find_subcommand("mount")?;
    let found = mount.get_arguments().find(|argument| argument.get_long() == Some(long))?;
    let is_usable = !matches!(long, "foreground" | "suid" | "dev" | "help");
    is_usable.then(|| matches!(found.get_action(), ArgAction::Set | ArgAction::Append))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(line: &str) -> Result<Option<String>> {
        let words = line.split(' ').map(OsString::from).collect();
        Ok(match arguments(words, &crate::commands::command())? {
            Wanted::Nothing => None,
            Wanted::Command(words) => Some(words.join(OsStr::new(" ")).into_string().unwrap()),
        })
    }

    #[test]
    fn lines_of_fstab_become_commands() {
        let lines = [
            (
                "/sbin/mount.pagefold a.erofs m -o ro,nofail,allow_other,memory=64M,x-systemd.automount",
                "pagefold image mount -q --allow-other --memory=64M -- a.erofs m",
            ),
            ("mount.fuse.pagefold a m -n -o rw", "pagefold image mount -q -- a m"),
            ("pagefold a m -o rw,dev,suid", "pagefold image mount -q -- a m"),
            ("mount.pagefold a m -o ro,nosuid,nodev,user=joe", "pagefold image mount -q -- a m"),
            (
                "pagefold oci://r/n:t m -ono_readahead",
                "pagefold image mount -q --no-readahead -- oci://r/n:t m",
            ),
            ("mount.pagefold a m -s -o inode64,threads=2", "pagefold image mount -q --threads=2 -- a m"),
            ("mount.pagefold a m -o ro,loop,offset=12345", "pagefold image mount -q --offset=12345 -- a m"),
            ("mount.pagefold -t fuse.x a m", "pagefold image mount -q -- a m"),
            ("pagefold image mount a m", "pagefold image mount a m"),
            ("pagefold image tar a -o b", "pagefold image tar a -o b"),
        ];
        for (line, wanted) in lines {
            // The image exists for none of them, which only nofail looks at.
            let line = line.replace("nofail,", "");
            assert_eq!(translated(&line).unwrap().as_deref(), Some(wanted), "{line}");
        }
        assert_eq!(translated("mount.pagefold /nonexistent m -o nofail").unwrap(), None);
        assert_eq!(translated("mount.pagefold a m -f -o memory=1").unwrap(), None);
    }

    #[test]
    fn options_without_a_meaning_here_are_errors() {
        for (options, says) in [
            ("noexec,nosuid,nodev,user=joe", "write 'user,exec'"),
            ("context=x", "unknown mount option 'context=x'"),
            ("foreground", "unknown"),
            ("memory", "memory=..."),
            ("allow_other=1", "has no value"),
        ] {
            let failure = translated(&format!("mount.pagefold a m -o {options}")).unwrap_err();
            assert!(failure.message.contains(says), "{options}: {failure}");
        }
        for line in
            ["mount.pagefold a", "mount.pagefold a m x", "mount.pagefold a m -N 5", "mount.pagefold a m -o"]
        {
            assert!(translated(line).is_err(), "{line}");
        }
    }
}
