//! The programs that stand for modprobe and rmmod in a zram shell: a script in a directory that is first in PATH, and
//! also mounted over the real program, for callers that use its path.
//!
//! On most systems modprobe, rmmod, lsmod and others are links to one program, kmod, which acts by its name. The script
//! then is mounted over kmod and runs the real one for everything but zram. A program with many more names, such as
//! busybox, is not covered: it may be the shell itself.

use pagefold_control::error::{CliError, Result};
use pagefold_sys::mountns;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

const SCRIPT: &str = include_str!("modprobe.sh");
/// The programs that the script stands for.
const REPLACED: [&str; 2] = ["modprobe", "rmmod"];
/// The other names of kmod.
const OTHERS: [&str; 5] = ["kmod", "lsmod", "insmod", "modinfo", "depmod"];
/// Where programs are if PATH does not say it.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Makes the script and the links to the real programs in `private`, and covers the real programs. Returns the directory
/// to be first in PATH.
pub fn replace(private: &Path) -> Result<PathBuf> {
    let (bin, real) = (private.join("bin"), private.join("real"));
    let failed = |e| CliError::io(format!("making programs in '{}'", private.display()), &e);
    fs::create_dir(&bin).and_then(|()| fs::create_dir(&real)).map_err(failed)?;
    let script = bin.join(REPLACED[0]);
    let quoted = format!("'{}'", real.display().to_string().replace('\'', r"'\''"));
    fs::write(&script, SCRIPT.replace("@REAL@", &quoted)).map_err(failed)?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).map_err(failed)?;
    symlink(REPLACED[0], bin.join(REPLACED[1])).map_err(failed)?;
    let mut covered: Vec<(PathBuf, PathBuf)> = Vec::new();
    for name in REPLACED {
        let Some(program) = find(name) else { continue };
        let file_name = program.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        if !REPLACED.contains(&file_name) && file_name != OTHERS[0] {
            symlink(&program, real.join(name)).map_err(failed)?;
        } else if let Some((_, copy)) = covered.iter().find(|(known, _)| *known == program) {
            symlink(copy, real.join(name)).map_err(failed)?;
        } else {
            let copy = private.join(format!("real-{file_name}"));
            fs::write(&copy, "").map_err(failed)?;
            mountns::bind(&program, &copy)?;
            for name in [name].iter().chain(OTHERS.iter().filter(|_| file_name == OTHERS[0])) {
                symlink(&copy, real.join(name)).map_err(failed)?;
            }
            covered.push((program, copy));
        }
    }
    for (program, _) in covered {
        mountns::bind(&script, &program)?;
    }
    Ok(bin)
}

/// The PATH of this process, or the usual one if it has none.
pub fn search_path() -> OsString {
    path_or_default(std::env::var_os("PATH"))
}

fn path_or_default(path: Option<OsString>) -> OsString {
    // An empty PATH, and an empty element, would stand for the current directory.
    path.filter(|path| !path.is_empty()).unwrap_or_else(|| DEFAULT_PATH.into())
}

/// The program with a name, without symbolic links.
fn find(name: &str) -> Option<PathBuf> {
    find_in(&search_path(), name)
}

/// Finds a program in the absolute directories of `path` and in the usual ones. A relative directory is another one for
/// each caller.
fn find_in(path: &OsStr, name: &str) -> Option<PathBuf> {
    let dirs = std::env::split_paths(path).filter(|dir| dir.is_absolute());
    let mut dirs = dirs.chain(std::env::split_paths(DEFAULT_PATH));
    dirs.find_map(|dir| dir.join(name).canonicalize().ok().filter(|program| program.is_file()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;
    use std::process::Command;

    /// The script with a sysfs in a directory: two disks, and a `hot_remove` that shows what was written last.
    struct Script {
        dir: tempfile::TempDir,
    }

    impl Script {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let at = |path: &str| dir.path().join(path);
            for name in ["bin", "real", "sys/block", "sys/class/zram-control"] {
                fs::create_dir_all(at(name)).unwrap();
            }
            for disk in ["zram0", "zram1"] {
                symlink("/", at("sys/block").join(disk)).unwrap();
            }
            let text = SCRIPT.replace("@REAL@", at("real").to_str().unwrap());
            fs::write(at("script"), text.replace("/sys/", at("sys/").to_str().unwrap())).unwrap();
            for name in REPLACED.iter().chain(&OTHERS) {
                fs::write(at("real").join(name), "#!/bin/sh\necho real \"$@\"\n").unwrap();
                fs::set_permissions(at("real").join(name), fs::Permissions::from_mode(0o755)).unwrap();
                symlink("../script", at("bin").join(name)).unwrap();
            }
            Script { dir }
        }

        /// Runs a command line. Returns its exit code, its output, and what it wrote to `hot_remove`.
        fn run(&self, line: &str) -> (i32, String, String) {
            let written = self.dir.path().join("sys/class/zram-control/hot_remove");
            fs::write(&written, "").unwrap();
            let (name, words) = line.split_once(' ').unwrap();
            let mut command = Command::new("sh");
            command.arg(self.dir.path().join("bin").join(name)).args(words.split(' '));
            let output = command.output().unwrap();
            let out = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
            (output.status.code().unwrap(), out, fs::read_to_string(written).unwrap())
        }
    }

    #[test]
    fn commands_that_name_zram_never_run_the_real_program_to_load_or_unload() {
        let script = Script::new();
        for line in [
            "modprobe zram",
            "modprobe -a zram",
            "modprobe -qb -- zram",
            "modprobe -C /etc/x -d/x --wait 5 zram num_devices=3",
            "modprobe --config=x zram --first-time",
            "modprobe -rn zram",
        ] {
            assert_eq!(script.run(line), (0, String::new(), String::new()), "{line}");
        }
        for line in [
            "modprobe -r zram",
            "modprobe -rv zram",
            "modprobe -rq -- zram",
            "modprobe zram -vr",
            "modprobe --remove zram",
            "rmmod zram",
            "rmmod -fsv zram",
        ] {
            assert_eq!(script.run(line), (0, String::new(), "1\n".into()), "{line}");
        }
        for line in [
            "modprobe -x zram",
            "modprobe -rx zram",
            "modprobe --unknown zram",
            "modprobe -D zram",
            "modprobe -a zram loop",
            "modprobe -r loop zram",
            "modprobe loop zram",
            "modprobe -C zram",
            "modprobe -- zram -r",
            "rmmod -r zram",
            "rmmod zram loop",
            "rmmod zram.ko",
            "insmod /lib/zram.ko.xz",
            "insmod zram",
            "kmod load zram",
        ] {
            let (code, out, removed) = script.run(line);
            assert!(code == 1 && out.contains("in a zram shell") && removed.is_empty(), "{line}: {out}");
        }
    }

    #[test]
    fn the_real_programs_do_everything_else() {
        let script = Script::new();
        for line in ["modprobe -ra loop", "modprobe zram_other", "rmmod -x loop", "modinfo zram", "lsmod -h"]
        {
            let words = line.split_once(' ').unwrap().1;
            assert_eq!(script.run(line), (0, format!("real {words}\n"), String::new()), "{line}");
        }
    }

    #[test]
    fn a_missing_or_empty_path_is_the_usual_one() {
        for path in [None, Some(OsString::new())] {
            assert_eq!(path_or_default(path), DEFAULT_PATH);
        }
        assert_eq!(path_or_default(Some("/opt".into())), "/opt");
        assert!(std::env::split_paths(DEFAULT_PATH).all(|dir| dir.is_absolute()));
    }

    #[test]
    fn relative_directories_of_the_path_are_ignored() {
        let name = "pagefold-test-program";
        // Tests run in the directory of the crate, which is where an empty element leads.
        let dir = tempfile::Builder::new().prefix("path").tempdir_in(".").unwrap();
        let program = dir.path().canonicalize().unwrap().join(name);
        fs::write(&program, "").unwrap();
        let relative = Path::new(dir.path().file_name().unwrap());
        assert!(relative.join(name).exists());
        assert_eq!(find_in(relative.as_os_str(), name), None);
        assert_eq!(find_in(OsStr::new(""), "Cargo.toml"), None);
        assert_eq!(find_in(program.parent().unwrap().as_os_str(), name), Some(program));
    }
}
