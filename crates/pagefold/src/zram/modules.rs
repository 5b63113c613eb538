//! The programs that stand for modprobe and rmmod in a zram shell: a script in a directory that is first in PATH, and
//! also mounted over the real program, for callers that use its path.
//!
//! On most systems modprobe, rmmod, lsmod and others are links to one program, kmod, which acts by its name. The script
//! then is mounted over kmod and runs the real one for everything but zram. A program with many more names, such as
//! busybox, is not covered: it may be the shell itself.

use pagefold_control::error::{CliError, Result};
use pagefold_sys::mountns;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

const SCRIPT: &str = include_str!("modprobe.sh");
/// The programs that the script stands for.
const REPLACED: [&str; 2] = ["modprobe", "rmmod"];
/// The other names of kmod.
const OTHERS: [&str; 5] = ["kmod", "lsmod", "insmod", "modinfo", "depmod"];
/// Where the programs are if PATH does not say it.
const DIRS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];

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

/// The program with a name, without symbolic links.
fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut dirs = std::env::split_paths(&path).chain(DIRS.iter().map(PathBuf::from));
    dirs.find_map(|dir| dir.join(name).canonicalize().ok().filter(|program| program.is_file()))
}
