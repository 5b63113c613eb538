//! The options of the cache of what is read from URLs, and where it is by default.

use crate::cli::values;
use clap::{Args, ValueHint};
use pagefold_control::error::{CliError, Result};
use pagefold_control::media::CacheConfig;
use pagefold_sys::userns;
use std::path::{Path, PathBuf};

/// The environment variable that names the default folder; empty for none.
const OVERRIDE: &str = "PAGEFOLD_CACHE_DIR";
/// The parent of root's folder.
const OF_ROOT: &str = "/var/cache";
/// The smallest size, bytes.
const MIN_SIZE_BYTES: u64 = 16 << 20;

/// Where ranges that were read from URLs stay.
#[derive(Debug, Args)]
pub struct CacheArgs {
    /// Folder that keeps what is read from URLs. All commands and mounts of this user share it [default:
    /// ~/.cache/pagefold, and /var/cache/pagefold for root]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub cache: Option<PathBuf>,
    /// Largest size of that folder; what was used least recently leaves
    #[arg(long, value_name = "SIZE", default_value = "10G")]
    pub cache_size: String,
    /// Keep nothing of what is read from URLs on disk, and do not use what is there
    #[arg(long, conflicts_with_all = ["cache", "cache_size"])]
    pub no_cache: bool,
}

impl CacheArgs {
    /// The folder and its size; `None` without a cache.
    pub fn config(&self) -> Result<Option<CacheConfig>> {
        let size_bytes = values::bytes("--cache-size", &self.cache_size)?;
        if size_bytes < MIN_SIZE_BYTES {
            return Err(CliError::usage("--cache-size is at least 16M"));
        }
        let folder = match &self.cache {
            _ if self.no_cache => None,
            Some(folder) => Some(
                std::path::absolute(folder)
                    .map_err(|e| CliError::usage(format!("--cache '{}': {e}", folder.display())))?,
            ),
            None => Environment::of_this_process().default_folder(),
        };
        Ok(folder.map(|folder| CacheConfig { folder, size_bytes }))
    }
}

/// All that the default folder depends on.
struct Environment {
    override_path: Option<PathBuf>,
    /// Whether the user is root, and [`OF_ROOT`] root's.
    is_root: bool,
    /// Whether the users are those of the system, not of a user namespace, whose root is an ordinary user outside.
    has_system_users: bool,
    xdg: Option<PathBuf>,
    home: Option<PathBuf>,
}

impl Environment {
    fn of_this_process() -> Self {
        Environment {
            override_path: std::env::var_os(OVERRIDE).map(PathBuf::from),
            is_root: userns::is_root_of(Path::new(OF_ROOT)),
            has_system_users: userns::has_system_users(),
            xdg: std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from),
            home: std::env::home_dir(),
        }
    }

    /// The folder; `None` for a user without a home folder. A relative path in a variable is no path.
    fn default_folder(self) -> Option<PathBuf> {
        if let Some(path) = self.override_path {
            return Some(path).filter(|path| path.is_absolute());
        }
        let of_root = self.is_root.then(|| PathBuf::from(OF_ROOT));
        let parent = match of_root {
            of_root @ Some(_) if self.has_system_users => of_root,
            of_root => self.xdg.filter(|xdg| xdg.is_absolute()).or(of_root),
        };
        let in_home = |home: PathBuf| home.join(".cache");
        let home = self.home.filter(|home| home.is_absolute() && home.is_dir());
        parent.or(home.map(in_home)).map(|parent| parent.join("pagefold"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_follows_the_variables_and_needs_a_home() {
        let of = |has_system_users,
                  override_path: Option<&str>,
                  is_root,
                  xdg: Option<&str>,
                  home: Option<&str>| {
            let path = |text: Option<&str>| text.map(PathBuf::from);
            let (override_path, xdg, home) = (path(override_path), path(xdg), path(home));
            let environment = Environment { override_path, is_root, has_system_users, xdg, home };
            let found = environment.default_folder();
            found.map(|path| path.display().to_string())
        };
        let folder = |override_path, is_root, xdg, home| of(true, override_path, is_root, xdg, home);
        let some = |path: &str| Some(path.to_string());
        assert_eq!(folder(Some("/x"), true, Some("/y"), Some("/")), some("/x"));
        assert_eq!(folder(Some(""), true, Some("/y"), Some("/")), None);
        assert_eq!(folder(None, true, Some("/y"), Some("/")), some("/var/cache/pagefold"));
        assert_eq!(folder(None, false, Some("/y"), Some("/")), some("/y/pagefold"));
        assert_eq!(folder(None, false, Some("y"), Some("/")), some("/.cache/pagefold"));
        assert_eq!(folder(None, false, None, Some("/nonexistent")), None);
        assert_eq!(folder(None, false, None, None), None);
        // Root of a user namespace.
        assert_eq!(of(false, None, true, Some("/y"), Some("/")), some("/y/pagefold"));
        assert_eq!(of(false, None, true, None, Some("/")), some("/var/cache/pagefold"));
        assert_eq!(of(false, None, false, None, Some("/")), some("/.cache/pagefold"));
    }
}
