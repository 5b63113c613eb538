//! The location of the runtime folder, and the error messages when it cannot be used.
//!
//! A login session has a folder for sockets and locks, named by `XDG_RUNTIME_DIR`. Under `su`, in containers and in
//! cron jobs this variable is often missing or names another user's folder; then the home folder is used. All commands
//! of a user must find the same runtime folder, or a login session would not see the disks of a cron job. So a folder
//! that exists is preferred to one that would have to be created, and the path in the home folder depends on no other
//! variable.
//!
//! Root in the user namespace of an ordinary user is that user outside, and has the same variables, so it finds the same
//! folder. In a container with its own files, where nothing names a session, it has `/run`.

use crate::error::{CliError, Exit, Result};
use pagefold_sys::rundir::{self, RunDir, RunDirError};
use pagefold_sys::userns;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The environment variable that names another runtime folder, which must pass the same checks.
pub const OVERRIDE: &str = "PAGEFOLD_RUNTIME_DIR";

/// The runtime folder of mounted images, inside that of disks. No disk can have this name.
pub(super) const IMAGES: &str = ".images";

/// The parent of root's runtime folder.
const OF_ROOT: &str = "/run";

/// The path of the runtime folder inside the home folder.
const IN_HOME: &str = ".local/state/pagefold";

/// The section on files and environment variables of the help and the manual page.
pub const HELP: &str = "\
Files:
  /run/pagefold              runtime folder of root
  $XDG_RUNTIME_DIR/pagefold  runtime folder of other users
  ~/.local/state/pagefold    runtime folder of other users without a login session (su, cron, a
                             container); a login session uses it too if it exists and
                             $XDG_RUNTIME_DIR/pagefold does not

  ~/.cache/pagefold          what was read from URLs ($XDG_CACHE_HOME/pagefold, if that is set)
  /var/cache/pagefold        the same, for root

  The runtime folder has a sub-folder for each running disk and each mounted image, with its lock,
  sockets, state and log. It must belong to the user and have mode 0700, and its path must not
  contain symbolic links or folders that others can write to; otherwise commands refuse to use it.

Environment:
  XDG_RUNTIME_DIR       parent of the runtime folder of a user other than root; ignored unless it is
                        a folder of that user. Root in a user namespace counts as such a user
  PAGEFOLD_RUNTIME_DIR  use this runtime folder instead; its parent must exist, and it must pass the
                        same checks
  PAGEFOLD_CACHE_DIR    folder for what is read from URLs; if empty, none
  XDG_CACHE_HOME        parent of that folder for users other than root
  NO_COLOR              if set, output has no colours, even on a terminal";

/// The path of the runtime folder of this user, which may not exist yet.
#[derive(Debug, PartialEq, Eq)]
pub struct Location {
    path: PathBuf,
    /// The folder that must exist already; missing folders below it are created. `None`: all but the last must exist.
    base: Option<PathBuf>,
}

impl Location {
    /// Chooses the runtime folder of this user. The error lists the ways to get one.
    pub fn find() -> Result<Self> {
        UserEnvironment::of_this_process().choose()
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether [`Location::open_or_create`] would create `missing`, so that its absence is no error.
    pub fn creates(&self, missing: &Path) -> bool {
        let below = |base: &PathBuf| missing.starts_with(base) && missing != base;
        missing == self.path || self.base.as_ref().is_some_and(below)
    }

    /// Opens the folder, and creates it if it is missing.
    pub fn open_or_create(&self) -> Result<RunDir> {
        let opened = match &self.base {
            Some(base) => RunDir::open_or_create_below(base, &self.path),
            None => RunDir::open_or_create(&self.path),
        };
        opened.map_err(|e| refused(&self.path, &e))
    }
}

/// Everything about the user and the environment that the choice depends on.
struct UserEnvironment {
    override_path: Option<PathBuf>,
    uid: u32,
    /// Whether the user is root, and [`OF_ROOT`] root's.
    is_root: bool,
    /// Whether the users are those of the system, not of a user namespace.
    has_system_users: bool,
    xdg: Option<PathBuf>,
    /// The usual folder of a login session of this user, which may exist though the variable is not set.
    session: PathBuf,
    home: Option<PathBuf>,
}

impl UserEnvironment {
    fn of_this_process() -> Self {
        let uid = rundir::effective_uid();
        UserEnvironment {
            override_path: std::env::var_os(OVERRIDE).map(PathBuf::from),
            uid,
            is_root: userns::is_root_of(Path::new(OF_ROOT)),
            has_system_users: userns::has_system_users(),
            xdg: std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from),
            session: format!("/run/user/{uid}").into(),
            home: std::env::home_dir(),
        }
    }

    fn choose(self) -> Result<Location> {
        let fixed = |path| Ok(Location { path, base: None });
        if let Some(path) = self.override_path.clone().filter(|p| !p.as_os_str().is_empty()) {
            return fixed(path);
        }
        let of_root = || fixed(Path::new(OF_ROOT).join("pagefold"));
        if self.is_root && self.has_system_users {
            return of_root();
        }
        // The user chose another folder than the usual one of a session: use it.
        if let Some(xdg) = &self.xdg
            && *xdg != self.session
            && (self.is_mine(xdg) || self.is_mine(&xdg.join("pagefold")))
        {
            return fixed(xdg.join("pagefold"));
        }
        if self.is_root {
            return of_root();
        }
        let session =
            self.is_mine(&self.session).then(|| Location { path: self.session.join("pagefold"), base: None });
        // The path of the home folder may contain links; its target is checked like any other path.
        let home = self.home.as_ref().and_then(|home| home.canonicalize().ok());
        let home = home
            .filter(|home| self.is_mine(home))
            .map(|home| Location { path: home.join(IN_HOME), base: Some(home) });
        let mut candidates: Vec<Location> = session.into_iter().chain(home).collect();
        match candidates.iter().position(|candidate| self.is_mine(&candidate.path)) {
            Some(existing) => Ok(candidates.swap_remove(existing)),
            None => candidates.into_iter().next().ok_or_else(|| self.no_location()),
        }
    }

    fn is_mine(&self, path: &Path) -> bool {
        path.is_absolute()
            && std::fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir() && meta.uid() == self.uid)
    }

    fn no_location(&self) -> CliError {
        let not_mine = |name: &str, path: &Option<PathBuf>| match path {
            Some(path) if !path.as_os_str().is_empty() => {
                format!("{name} ('{}') is not a folder of this user", path.display())
            }
            _ => format!("{name} is not set"),
        };
        CliError::new(
            Exit::Unavailable,
            format!(
                "there is no private folder for sockets and locks: {}, '{}' does not exist, and {}; log in with a \
                 session (ssh, a console, 'machinectl shell'), have root run 'loginctl enable-linger', or set HOME, \
                 XDG_RUNTIME_DIR or {OVERRIDE} to a folder that belongs to user {} and that nobody else can enter \
                 (mode 0700)",
                not_mine("XDG_RUNTIME_DIR", &self.xdg),
                self.session.display(),
                not_mine("the home folder", &self.home),
                self.uid
            ),
        )
    }
}

/// The error for a runtime folder that failed the checks, with advice.
pub fn refused(path: &Path, e: &RunDirError) -> CliError {
    let elsewhere = format!("or set {OVERRIDE} to a folder that only you can reach");
    let advice = match e {
        RunDirError::WrongMode { path, .. } => {
            format!("if the folder is yours, make it private: chmod 700 '{}'", path.display())
        }
        RunDirError::Missing(missing) if missing != path => {
            format!("create '{}' first, for this user alone (mode 0700), {elsewhere}", missing.display())
        }
        RunDirError::SharedParent { path, mode } if mode & 0o1000 == 0 => {
            format!(
                "if the folder is yours, keep others from writing: chmod go-w '{}', {elsewhere}",
                path.display()
            )
        }
        RunDirError::Sys(e) if e.errno == libc::EOVERFLOW => {
            "this user namespace does not map your user; make one that does: unshare --user --map-root-user --mount"
                .to_string()
        }
        RunDirError::Sys(_) => format!("check its permissions, {elsewhere}"),
        RunDirError::UnknownOwner { .. } => {
            format!("set {OVERRIDE} to a folder that this user has made, with mode 0700")
        }
        _ => format!("another user may have created it: see whose it is, then remove it, {elsewhere}"),
    };
    let why = e.to_string();
    let own = why.strip_prefix(&format!("'{}' ", path.display())).map(|rest| format!("it {rest}"));
    let why = own.unwrap_or(why);
    CliError::new(
        Exit::Unavailable,
        format!("the runtime folder '{}' is refused: {why}; {advice}", path.display()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// The environment of a user other than root. Its folders exist only if the test creates them.
    fn user(top: &Path) -> UserEnvironment {
        UserEnvironment {
            override_path: None,
            uid: rundir::effective_uid(),
            is_root: false,
            has_system_users: true,
            xdg: None,
            session: top.join("run/user/7"),
            home: Some(top.join("home")),
        }
    }

    fn top() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        (dir, path)
    }

    fn chosen(from: UserEnvironment) -> PathBuf {
        from.choose().unwrap().path
    }

    #[test]
    fn the_override_comes_first_and_root_uses_run() {
        let (_dir, top) = top();
        let root = |override_path: Option<&str>, xdg: Option<&Path>| {
            let override_path = override_path.map(PathBuf::from);
            chosen(UserEnvironment {
                override_path,
                is_root: true,
                xdg: xdg.map(PathBuf::from),
                ..user(&top)
            })
        };
        assert_eq!(root(None, None), Path::new("/run/pagefold"));
        assert_eq!(root(None, Some(&top)), Path::new("/run/pagefold"));
        assert_eq!(root(Some(""), None), Path::new("/run/pagefold"));
        assert_eq!(root(Some("/x/y"), None), Path::new("/x/y"));
        assert_eq!(
            chosen(UserEnvironment { override_path: Some("/x/y".into()), ..user(&top) }),
            Path::new("/x/y")
        );
    }

    #[test]
    fn root_of_a_user_namespace_is_an_ordinary_user_but_for_a_run_that_is_its_own() {
        let (_dir, top) = top();
        fs::create_dir_all(top.join("home")).unwrap();
        let root = |is_root, xdg: Option<PathBuf>| {
            chosen(UserEnvironment { is_root, has_system_users: false, xdg, ..user(&top) })
        };
        let xdg = Some(top.join("mine"));
        for is_root in [false, true] {
            fs::create_dir_all(top.join("mine")).unwrap();
            assert_eq!(root(is_root, xdg.clone()), top.join("mine/pagefold"));
        }
        for no_folder in [None, Some("relative".into()), Some(top.join("no"))] {
            assert_eq!(root(true, no_folder.clone()), Path::new("/run/pagefold"));
            assert_eq!(root(false, no_folder), top.join("home/.local/state/pagefold"));
        }
    }

    #[test]
    fn a_session_comes_before_the_home_folder_and_an_existing_folder_before_a_missing_one() {
        let (_dir, top) = top();
        fs::create_dir_all(top.join("home")).unwrap();
        let home = top.join("home/.local/state/pagefold");
        let session = top.join("run/user/7");
        // Without a session: the variable is missing, or names no folder of this user.
        for xdg in
            [None, Some("".into()), Some("relative".into()), Some(session.clone()), Some(top.join("no"))]
        {
            assert_eq!(chosen(UserEnvironment { xdg, ..user(&top) }), home);
        }
        // The folder of a session is found even without the variable.
        fs::create_dir_all(&session).unwrap();
        assert_eq!(chosen(user(&top)), session.join("pagefold"));
        // A session that begins later uses the folder that a cron job has created.
        fs::create_dir_all(&home).unwrap();
        assert_eq!(chosen(UserEnvironment { xdg: Some(session.clone()), ..user(&top) }), home);
        fs::create_dir(session.join("pagefold")).unwrap();
        assert_eq!(
            chosen(UserEnvironment { xdg: Some(session.clone()), ..user(&top) }),
            session.join("pagefold")
        );
        // A folder that the user chose is used.
        fs::create_dir(top.join("mine")).unwrap();
        let xdg = Some(top.join("mine"));
        assert_eq!(chosen(UserEnvironment { xdg, ..user(&top) }), top.join("mine/pagefold"));
    }

    #[test]
    fn the_folder_in_the_home_folder_is_created_and_private() {
        let (_dir, top) = top();
        fs::create_dir_all(top.join("real")).unwrap();
        std::os::unix::fs::symlink(top.join("real"), top.join("home")).unwrap();
        let location = user(&top).choose().unwrap();
        assert_eq!(location.path(), top.join("real/.local/state/pagefold"));
        location.open_or_create().unwrap();
        RunDir::open(location.path()).unwrap();
    }

    #[test]
    fn without_a_usable_folder_the_error_lists_every_remedy() {
        let (_dir, top) = top();
        for home in [None, Some(top.join("missing")), Some(top.clone())] {
            // The folders that exist belong to another user.
            let refused = UserEnvironment { home, uid: 65531, xdg: Some(top.clone()), ..user(&top) }
                .choose()
                .unwrap_err();
            assert_eq!(refused.exit, Exit::Unavailable);
            for word in ["XDG_RUNTIME_DIR", OVERRIDE, "HOME", "enable-linger", "65531"] {
                assert!(refused.message.contains(word), "{} lacks {word}", refused.message);
            }
            assert!(!refused.message.contains("disk"), "{}", refused.message);
        }
    }
}
