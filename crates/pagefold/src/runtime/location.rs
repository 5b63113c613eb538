//! Where the runtime folder is, and what to do when it is refused.
//!
//! A login session has a folder for such things, in `XDG_RUNTIME_DIR`. `su`, containers and cron have no session and
//! often no such variable, or that of another user; there the home folder serves. Every command of a user must come to
//! the same folder, or a disk made by cron would be invisible after a login: so a folder that exists already is
//! preferred to one that would have to be made, and the home folder's path depends on no other variable.

use crate::failure::{Exit, Failure, Outcome};
use pagefold_sys::rundir::{self, RunDir, RunDirError};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Names another runtime folder; it must pass the same checks.
pub const OVERRIDE: &str = "PAGEFOLD_RUNTIME_DIR";

/// Where the runtime folder is inside a home folder.
const IN_HOME: &str = ".local/state/pagefold";

/// For help and the manual page.
pub const HELP: &str = "\
Files:
  /run/pagefold              runtime folder of root
  $XDG_RUNTIME_DIR/pagefold  runtime folder of other users
  ~/.local/state/pagefold    the same where there is no login session (su, cron, a container); once it
                             exists, a session that has no runtime folder yet uses it too
  A sub-folder for each running disk and each mounted image holds its lock, sockets, state and log. The
  folder must belong to the user, have mode 0700, and not be reached through symbolic links or
  folders that others can write to; otherwise it is refused. It is never in a shared temporary folder.

Environment:
  XDG_RUNTIME_DIR       where the runtime folder of a user other than root is made, if it is a folder
                        of that user
  PAGEFOLD_RUNTIME_DIR  another runtime folder, with the same checks; its parent must exist
  NO_COLOR              no colours, even on a terminal";

/// The path of the runtime folder of this user, which may not exist yet.
#[derive(Debug, PartialEq, Eq)]
pub struct Location {
    path: PathBuf,
    /// The folder that must exist already; what is missing below it is made.
    base: Option<PathBuf>,
}

impl Location {
    /// The place for this user, or how to get one.
    pub fn find() -> Outcome<Self> {
        Surroundings::of_this_process().choose()
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether [`Location::open_or_create`] would make `missing`, so that its absence is no failure.
    pub fn makes(&self, missing: &Path) -> bool {
        let below = |base: &PathBuf| missing.starts_with(base) && missing != base;
        missing == self.path || self.base.as_ref().is_some_and(below)
    }

    /// Opens the folder, and makes it if it is missing.
    pub fn open_or_create(&self) -> Outcome<RunDir> {
        let opened = match &self.base {
            Some(base) => RunDir::open_or_create_below(base, &self.path),
            None => RunDir::open_or_create(&self.path),
        };
        opened.map_err(|e| refused(&self.path, &e))
    }
}

/// What the choice depends on.
struct Surroundings {
    wanted: Option<PathBuf>,
    uid: u32,
    is_root: bool,
    xdg: Option<PathBuf>,
    /// Where login sessions of this user have their folder, whether or not they say so.
    session: PathBuf,
    home: Option<PathBuf>,
}

impl Surroundings {
    fn of_this_process() -> Self {
        let uid = rundir::effective_uid();
        Surroundings {
            wanted: std::env::var_os(OVERRIDE).map(PathBuf::from),
            uid,
            is_root: uid == 0,
            xdg: std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from),
            session: format!("/run/user/{uid}").into(),
            home: std::env::home_dir(),
        }
    }

    fn choose(self) -> Outcome<Location> {
        let fixed = |path| Ok(Location { path, base: None });
        if let Some(path) = self.wanted.clone().filter(|p| !p.as_os_str().is_empty()) {
            return fixed(path);
        }
        if self.is_root {
            return fixed("/run/pagefold".into());
        }
        // Another folder than the session's was chosen by somebody, and is not second-guessed.
        if let Some(xdg) = &self.xdg
            && *xdg != self.session
            && (self.is_mine(xdg) || self.is_mine(&xdg.join("pagefold")))
        {
            return fixed(xdg.join("pagefold"));
        }
        let session =
            self.is_mine(&self.session).then(|| Location { path: self.session.join("pagefold"), base: None });
        // What leads to a home folder may be a link; what it leads to is checked like any other path.
        let home = self.home.as_ref().and_then(|home| home.canonicalize().ok());
        let home = home
            .filter(|home| self.is_mine(home))
            .map(|home| Location { path: home.join(IN_HOME), base: Some(home) });
        let mut places: Vec<Location> = session.into_iter().chain(home).collect();
        match places.iter().position(|place| self.is_mine(&place.path)) {
            Some(existing) => Ok(places.swap_remove(existing)),
            None => places.into_iter().next().ok_or_else(|| self.nowhere()),
        }
    }

    fn is_mine(&self, path: &Path) -> bool {
        path.is_absolute()
            && std::fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir() && meta.uid() == self.uid)
    }

    fn nowhere(&self) -> Failure {
        let not_mine = |name: &str, path: &Option<PathBuf>| match path {
            Some(path) if !path.as_os_str().is_empty() => {
                format!("{name} ('{}') is not a folder of this user", path.display())
            }
            _ => format!("{name} is not set"),
        };
        Failure::new(
            Exit::Unavailable,
            format!(
                "there is no private folder for sockets and locks: {}, '{}' is not there, and {}; log in where a session \
                 is made (ssh, a console, 'machinectl shell'), have root run 'loginctl enable-linger', or set HOME, \
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

/// The failure of a command whose runtime folder did not pass.
pub fn refused(path: &Path, e: &RunDirError) -> Failure {
    let elsewhere = format!("or set {OVERRIDE} to a folder that only you can reach");
    let advice = match e {
        RunDirError::WrongMode { path, .. } => {
            format!("if the folder is yours, make it private: chmod 700 '{}'", path.display())
        }
        RunDirError::Missing(missing) if missing != path => {
            format!("make '{}' first, for this user alone (mode 0700), {elsewhere}", missing.display())
        }
        RunDirError::SharedParent { path, mode } if mode & 0o1000 == 0 => {
            format!(
                "if the folder is yours, keep others from writing: chmod go-w '{}', {elsewhere}",
                path.display()
            )
        }
        RunDirError::Sys(_) => format!("check its permissions, {elsewhere}"),
        _ => format!("another user may have prepared it: see whose it is, then remove it, {elsewhere}"),
    };
    Failure::new(
        Exit::Unavailable,
        format!("the runtime folder '{}' is refused: {e}; {advice}", path.display()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Surroundings of a user who is not root, with folders that exist if a test makes them.
    fn user(top: &Path) -> Surroundings {
        Surroundings {
            wanted: None,
            uid: rundir::effective_uid(),
            is_root: false,
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

    fn chosen(from: Surroundings) -> PathBuf {
        from.choose().unwrap().path
    }

    #[test]
    fn an_override_comes_first_and_root_has_run() {
        let (_dir, top) = top();
        let root = |wanted: Option<&str>, xdg: Option<&Path>| {
            let wanted = wanted.map(PathBuf::from);
            chosen(Surroundings { wanted, is_root: true, xdg: xdg.map(PathBuf::from), ..user(&top) })
        };
        assert_eq!(root(None, None), Path::new("/run/pagefold"));
        assert_eq!(root(None, Some(&top)), Path::new("/run/pagefold"));
        assert_eq!(root(Some(""), None), Path::new("/run/pagefold"));
        assert_eq!(root(Some("/x/y"), None), Path::new("/x/y"));
        assert_eq!(chosen(Surroundings { wanted: Some("/x/y".into()), ..user(&top) }), Path::new("/x/y"));
    }

    #[test]
    fn a_session_comes_before_the_home_folder_and_what_exists_before_what_does_not() {
        let (_dir, top) = top();
        fs::create_dir_all(top.join("home")).unwrap();
        let home = top.join("home/.local/state/pagefold");
        let session = top.join("run/user/7");
        // Without a session, whatever the variable says of a folder that is not there or not this user's.
        for xdg in
            [None, Some("".into()), Some("relative".into()), Some(session.clone()), Some(top.join("no"))]
        {
            assert_eq!(chosen(Surroundings { xdg, ..user(&top) }), home);
        }
        // A session is found even if its variable was lost.
        fs::create_dir_all(&session).unwrap();
        assert_eq!(chosen(user(&top)), session.join("pagefold"));
        // What cron has made is seen by the session that begins later.
        fs::create_dir_all(&home).unwrap();
        assert_eq!(chosen(Surroundings { xdg: Some(session.clone()), ..user(&top) }), home);
        fs::create_dir(session.join("pagefold")).unwrap();
        assert_eq!(
            chosen(Surroundings { xdg: Some(session.clone()), ..user(&top) }),
            session.join("pagefold")
        );
        // A folder of the user's choice is taken as it is.
        fs::create_dir(top.join("mine")).unwrap();
        let xdg = Some(top.join("mine"));
        assert_eq!(chosen(Surroundings { xdg, ..user(&top) }), top.join("mine/pagefold"));
    }

    #[test]
    fn the_folder_in_the_home_folder_is_made_and_private() {
        let (_dir, top) = top();
        fs::create_dir_all(top.join("real")).unwrap();
        std::os::unix::fs::symlink(top.join("real"), top.join("home")).unwrap();
        let place = user(&top).choose().unwrap();
        assert_eq!(place.path(), top.join("real/.local/state/pagefold"));
        place.open_or_create().unwrap();
        RunDir::open(place.path()).unwrap();
    }

    #[test]
    fn with_no_place_at_all_every_way_out_is_named() {
        let (_dir, top) = top();
        for home in [None, Some(top.join("missing")), Some(top.clone())] {
            // What there is belongs to another user.
            let refused =
                Surroundings { home, uid: 65531, xdg: Some(top.clone()), ..user(&top) }.choose().unwrap_err();
            assert_eq!(refused.exit, Exit::Unavailable);
            for word in ["XDG_RUNTIME_DIR", OVERRIDE, "HOME", "enable-linger", "65531"] {
                assert!(refused.message.contains(word), "{} lacks {word}", refused.message);
            }
            assert!(!refused.message.contains("disk"), "{}", refused.message);
        }
    }
}
