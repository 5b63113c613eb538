//! Where the runtime folder is, and what to do when it is refused.

use crate::failure::{Exit, Failure, Outcome};
use pagefold_sys::rundir::RunDirError;
use std::path::{Path, PathBuf};

/// Names another runtime folder; it must pass the same checks.
pub const OVERRIDE: &str = "PAGEFOLD_RUNTIME_DIR";

/// For help and the manual page.
pub const HELP: &str = "\
Files:
  /run/pagefold              runtime folder of root
  $XDG_RUNTIME_DIR/pagefold  runtime folder of other users
  A sub-folder for each running disk holds its lock, control socket, NBD socket, state and log. The
  folder must belong to the user, have mode 0700, and not be reached through symbolic links or
  folders that others can write to; otherwise it is refused. It is never in a shared temporary folder.

Environment:
  XDG_RUNTIME_DIR       where the runtime folder of a user other than root is made
  PAGEFOLD_RUNTIME_DIR  another runtime folder, with the same checks; its parent must exist
  NO_COLOR              no colours, even on a terminal";

/// The path of the runtime folder of this user.
pub fn path() -> Outcome<PathBuf> {
    choose(
        std::env::var_os(OVERRIDE).map(PathBuf::from),
        pagefold_sys::rundir::effective_uid() == 0,
        std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from),
    )
}

fn choose(wanted: Option<PathBuf>, is_root: bool, xdg: Option<PathBuf>) -> Outcome<PathBuf> {
    if let Some(path) = wanted.filter(|p| !p.as_os_str().is_empty()) {
        return Ok(path);
    }
    if is_root {
        return Ok("/run/pagefold".into());
    }
    match xdg {
        Some(dir) if dir.is_absolute() => Ok(dir.join("pagefold")),
        _ => Err(Failure::new(
            Exit::Unavailable,
            "there is no place for running disks: XDG_RUNTIME_DIR is not set to an absolute path; log in \
             through a session that sets it, or set it to a folder of yours with mode 0700 on tmpfs, such \
             as /run/user/UID",
        )),
    }
}

/// The failure of a command whose runtime folder did not pass.
pub fn refused(path: &Path, e: &RunDirError) -> Failure {
    let advice = match e {
        RunDirError::WrongMode { path, .. } => {
            format!("if the folder is yours, make it private: chmod 700 '{}'", path.display())
        }
        RunDirError::Missing(missing) if missing != path => {
            format!("make '{}' first, for this user alone (mode 0700)", missing.display())
        }
        RunDirError::Sys(_) => "check its permissions".to_string(),
        _ => "another user may have prepared it; see whose it is, then remove it or choose a folder that \
              only you can reach"
            .to_string(),
    };
    Failure::new(
        Exit::Unavailable,
        format!("the runtime folder '{}' is refused: {e}; {advice}", path.display()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_has_run_and_others_have_xdg_and_nobody_has_tmp() {
        let ok = |w: Option<&str>, root, x: Option<&str>| {
            choose(w.map(PathBuf::from), root, x.map(PathBuf::from)).unwrap()
        };
        assert_eq!(ok(None, true, None), Path::new("/run/pagefold"));
        assert_eq!(ok(None, true, Some("/run/user/0")), Path::new("/run/pagefold"));
        assert_eq!(ok(None, false, Some("/run/user/7")), Path::new("/run/user/7/pagefold"));
        assert_eq!(ok(Some("/x/y"), false, None), Path::new("/x/y"));
        assert_eq!(ok(Some(""), true, None), Path::new("/run/pagefold"));
        for xdg in [None, Some(""), Some("relative")] {
            let refused = choose(None, false, xdg.map(PathBuf::from)).unwrap_err();
            assert_eq!(refused.exit, Exit::Unavailable);
        }
    }
}
