//! `fsck.erofs`: its options, and the arguments of `image check` or `image extract` that they become.
//!
//! The check always decodes all contents, as the original does with `--extract`.

use super::print_version;
use super::table::{Opt, Program, Refused, Value, defaults, number};
use crate::cli::output;
use crate::image::check::{self, CheckArgs};
use crate::image::extract::{self, ExtractArgs};
use pagefold_control::error::Result;
use pagefold_control::media::Location;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// The choices of a command line.
#[derive(Default)]
struct Fsck {
    devices: Vec<Location>,
    offset_bytes: u64,
    /// The directory of `--extract=`.
    extract_to: Option<PathBuf>,
    is_forced: bool,
    overwrites: bool,
    keeps_owners: Option<bool>,
    keeps_modes: Option<bool>,
    has_xattrs: bool,
    is_quiet: bool,
    print: Option<fn() -> Result<()>>,
}

const PROGRAM: Program<Fsck> = Program {
    name: "fsck.erofs",
    usage: "IMAGE",
    about: "Checks the EROFS image IMAGE by decoding everything in it, or extracts it, with pagefold.",
    options: OPTIONS,
    refused: REFUSED,
};

const OPTIONS: &[Opt<Fsck>] = &[
    Opt { name: "-V", value: Value::None, help: "print the version", set: set_version },
    Opt { name: "--version", value: Value::None, help: "print the version", set: set_version },
    Opt { name: "-h", value: Value::None, help: "print this help", set: set_help },
    Opt { name: "--help", value: Value::None, help: "print this help", set: set_help },
    Opt {
        name: "-d",
        value: Value::Required("#"),
        help: "how much to print, 0 to 9; 0: only errors",
        set: |fsck, value| {
            fsck.is_quiet |= number::<u8>(value)? == 0;
            Ok(())
        },
    },
    Opt { name: "-p", value: Value::None, help: "nothing: 'dump.erofs -S' prints the ratio", set: nothing },
    Opt { name: "-a", value: Value::None, help: "nothing: an image is never changed", set: nothing },
    Opt { name: "-A", value: Value::None, help: "nothing: an image is never changed", set: nothing },
    Opt { name: "-y", value: Value::None, help: "nothing: an image is never changed", set: nothing },
    Opt {
        name: "--device",
        value: Value::Required("X"),
        help: "a further device of the image; can be repeated",
        set: |fsck, value| {
            fsck.devices.push(value.to_os_string().into());
            Ok(())
        },
    },
    Opt {
        name: "--extract",
        value: Value::Optional("X"),
        help: "extract into the directory X; without X: check",
        set: |fsck, value| {
            fsck.extract_to = Some(PathBuf::from(value)).filter(|_| !value.is_empty());
            Ok(())
        },
    },
    Opt {
        name: "--force",
        value: Value::None,
        help: "allow extraction into the root directory",
        set: |fsck, _| set(&mut fsck.is_forced, true),
    },
    Opt {
        name: "--offset",
        value: Value::Required("#"),
        help: "where the image begins in the file, bytes",
        set: |fsck, value| set(&mut fsck.offset_bytes, number(value)?),
    },
    Opt {
        name: "--overwrite",
        value: Value::None,
        help: "extract into a directory that is not empty",
        set: |fsck, _| set(&mut fsck.overwrites, true),
    },
    Opt {
        name: "--no-overwrite",
        value: Value::None,
        help: "refuse a directory that is not empty (default)",
        set: |fsck, _| set(&mut fsck.overwrites, false),
    },
    Opt {
        name: "--preserve",
        value: Value::None,
        help: "both of the next two",
        set: |fsck, _| keep_all(fsck, true),
    },
    Opt {
        name: "--preserve-owner",
        value: Value::None,
        help: "set owners (default for root)",
        set: |fsck, _| set(&mut fsck.keeps_owners, Some(true)),
    },
    Opt {
        name: "--preserve-perms",
        value: Value::None,
        help: "set set-ID bits too, and make devices (default for root)",
        set: |fsck, _| set(&mut fsck.keeps_modes, Some(true)),
    },
    Opt {
        name: "--no-preserve",
        value: Value::None,
        help: "both of the next two",
        set: |fsck, _| keep_all(fsck, false),
    },
    Opt {
        name: "--no-preserve-owner",
        value: Value::None,
        help: "leave files to the user who extracts",
        set: |fsck, _| set(&mut fsck.keeps_owners, Some(false)),
    },
    Opt {
        name: "--no-preserve-perms",
        value: Value::None,
        help: "leave out set-ID bits and devices; the umask does not count",
        set: |fsck, _| set(&mut fsck.keeps_modes, Some(false)),
    },
    Opt {
        name: "--xattrs",
        value: Value::None,
        help: "extract extended attributes",
        set: |fsck, _| set(&mut fsck.has_xattrs, true),
    },
    Opt {
        name: "--no-xattrs",
        value: Value::None,
        help: "leave out extended attributes (default)",
        set: |fsck, _| set(&mut fsck.has_xattrs, false),
    },
];

const REFUSED: &[Refused] = &[
    Refused {
        name: "--nid",
        why: "the image is checked as a whole; 'pagefold image extract IMAGE DIR PATH' extracts a part",
    },
    Refused { name: "--no-sbcrc", why: "an image with a wrong checksum is damaged" },
    Refused {
        name: "--path",
        why: "the image is checked as a whole; 'pagefold image extract IMAGE DIR PATH' extracts a part",
    },
    Refused { name: "--xattr-inode-digest", why: "the digests in attributes are not compared; leave it out" },
];

fn nothing(_: &mut Fsck, _: &OsStr) -> Result<()> {
    Ok(())
}

fn set<T>(choice: &mut T, value: T) -> Result<()> {
    *choice = value;
    Ok(())
}

fn keep_all(fsck: &mut Fsck, keeps: bool) -> Result<()> {
    (fsck.keeps_owners, fsck.keeps_modes) = (Some(keeps), Some(keeps));
    Ok(())
}

fn set_version(fsck: &mut Fsck, _: &OsStr) -> Result<()> {
    set(&mut fsck.print, Some(|| print_version(PROGRAM.name)))
}

fn set_help(fsck: &mut Fsck, _: &OsStr) -> Result<()> {
    set(&mut fsck.print, Some(|| PROGRAM.print_help()))
}

impl Fsck {
    fn extract_args(&self, image: &OsStr, dir: &Path) -> Result<ExtractArgs> {
        let is_root = dir.canonicalize().is_ok_and(|dir| dir == Path::new("/"));
        if is_root && !self.is_forced {
            return Err(PROGRAM.error("--extract: this is the root directory; --force allows that"));
        }
        let is_privileged = rustix::process::geteuid().is_root();
        let mut args: ExtractArgs = defaults(&[image, dir.as_os_str()])?;
        args.image.media.device.clone_from(&self.devices);
        args.image.media.offset.offset = self.offset_bytes.to_string();
        args.overwrite = self.overwrites;
        args.no_xattrs = !self.has_xattrs;
        args.no_owner = !self.keeps_owners.unwrap_or(is_privileged);
        args.privileged = self.keeps_modes.unwrap_or(is_privileged) && is_privileged;
        Ok(args)
    }
}

/// Checks or extracts an image, as the words say.
pub fn run(words: &[OsString]) -> Result<()> {
    let mut fsck = Fsck::default();
    let operands = PROGRAM.parse(words, &mut fsck)?;
    if let Some(print) = fsck.print {
        return print();
    }
    let [image] = &operands[..] else {
        return Err(PROGRAM.error("name one IMAGE"));
    };
    output::set_quiet(fsck.is_quiet);
    if let Some(dir) = &fsck.extract_to {
        return extract::run(&fsck.extract_args(image, dir)?);
    }
    let mut args: CheckArgs = defaults(&[image])?;
    args.image.media.device = fsck.devices;
    args.image.media.offset.offset = fsck.offset_bytes.to_string();
    check::run(&args)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<ExtractArgs> {
        let words: Vec<_> = line.split(' ').map(OsString::from).collect();
        let mut fsck = Fsck::default();
        let operands = PROGRAM.parse(&words, &mut fsck)?;
        let dir = fsck.extract_to.clone().unwrap();
        fsck.extract_args(&operands[0], &dir)
    }

    #[test]
    fn options_become_those_of_extract() {
        let args = parsed("--extract=d --overwrite --xattrs --no-preserve --device=b -dy a").err();
        assert!(args.is_some_and(|e| e.message.contains("-d: 'y'")), "-d takes the rest of its word");
        let args = parsed("--extract=d --overwrite --xattrs --no-preserve --device=b -d1 -ay a").unwrap();
        assert!(args.overwrite && !args.no_xattrs && args.no_owner && !args.privileged);
        assert_eq!((args.dir, args.image.media.device.len()), ("d".into(), 1));
        let args = parsed("--extract=d --offset=4096 a").unwrap();
        assert_eq!(args.image.media.offset.offset, "4096");
        assert!(!args.overwrite && args.no_xattrs);
        assert!(parsed("--extract=/ a").is_err() && parsed("--extract=/ --force a").is_ok());
        let error = parsed("--extract=d --nid=36 a").unwrap_err().message;
        assert!(error.contains("--nid is not possible"), "{error}");
    }
}
