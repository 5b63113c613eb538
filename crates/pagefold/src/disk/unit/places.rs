//! The places that a unit needs: folders that have to be mounted, and how that is said to systemd.
//!
//! A folder of a file system that is not mounted yet is empty, and looks like one in which nothing was saved. So the units
//! name the folder as it was given and without its symbolic links, and the mount point above it has to be one when they start.

use super::super::systemd::escape_path;
use crate::image::open::path_failure;
use crate::image::target::target_of_link;
use pagefold_control::error::{CliError, Result};
use pagefold_sys::mounts::{self, Mount};
use std::path::{Component, Path, PathBuf};

/// File systems whose mounts wait for the network, as systemd knows them. FUSE ones are called `fuse.NAME`.
const NETWORK_FS: [&str; 18] = [
    "afs",
    "ceph",
    "cifs",
    "davfs",
    "gfs",
    "gfs2",
    "glusterfs",
    "lustre",
    "ncp",
    "ncpfs",
    "nfs",
    "nfs4",
    "ocfs2",
    "pvfs2",
    "smb3",
    "smbfs",
    "sshfs",
    "orangefs",
];

/// A file of a unit.
#[derive(Debug)]
pub struct Place {
    /// Its absolute path, as it was given.
    pub path: String,
    /// Its folder, the same without symbolic links, and that of the file to which it is a link.
    pub folders: Vec<String>,
    /// The mount point above the file, if that is not the root directory.
    pub mount_point: Option<String>,
    /// The type of the file system there, if its mount waits for the network.
    pub network_fs: Option<String>,
}

impl Place {
    /// The place of a file whose folder exists.
    pub fn of(option: &str, path: &Path) -> Result<Self> {
        let path = absolute(option, path)?;
        let given = folder_of(&path);
        let failed = |e: &std::io::Error| path_failure(format!("{option}: looking at '{path}'"), e);
        let mut folders = vec![given.to_string()];
        let mut add = |folder: &Path| -> Result<PathBuf> {
            let real = folder.canonicalize().map_err(|e| failed(&e))?;
            let shown = text(option, &real)?;
            if !folders.contains(&shown) {
                folders.push(shown);
            }
            Ok(real)
        };
        let named = add(Path::new(given))?;
        // The file itself may be a link to another folder.
        let file = target_of_link(&named.join(path.rsplit('/').next().unwrap_or_default()));
        let file = file.map_err(|e| failed(&e))?;
        let real = add(file.parent().unwrap_or(Path::new("/")))?;
        let mount = above(mounts::all()?, &real);
        let network_fs = mount.as_ref().map(|mount| mount.fs_type.clone()).filter(|name| is_network(name));
        let mount_point = mount.map(|mount| mount.mount_point).filter(|at| at != Path::new("/"));
        let mount_point = mount_point.map(|at| text(option, &at)).transpose()?;
        Ok(Place { folders, mount_point, network_fs, path })
    }

    /// Whether the file would be in this directory, or in one below it.
    pub fn is_below(&self, directory: &str) -> bool {
        self.folders.iter().any(|folder| is_below(folder, directory))
    }
}

/// The mount that a path without symbolic links lies on: the last one with the longest mount point.
fn above(mounts: Vec<Mount>, path: &Path) -> Option<Mount> {
    let above = mounts.into_iter().filter(|mount| path.starts_with(&mount.mount_point));
    above.max_by_key(|mount| mount.mount_point.components().count())
}

fn is_network(fs_type: &str) -> bool {
    NETWORK_FS.contains(&fs_type.strip_prefix("fuse.").unwrap_or(fs_type))
}

/// Whether a path is the same as `folder`, or in it.
pub fn is_below(path: &str, folder: &str) -> bool {
    Path::new(path).starts_with(folder)
}

/// The folder of an absolute path.
pub fn folder_of(path: &str) -> &str {
    match path.rsplit_once('/') {
        Some((folder, _)) if !folder.is_empty() => folder,
        _ => "/",
    }
}

/// The unit of a device node, which the kernel or its modules may make later than the system starts.
pub fn device_unit(path: &str) -> Option<String> {
    is_below(path, "/dev").then(|| format!("{}.device", escape_path(path)))
}

/// The absolute path, without links followed, as text that a unit can have.
pub fn absolute(option: &str, path: &Path) -> Result<String> {
    let found = std::path::absolute(path);
    let found = found.map_err(|e| CliError::usage(format!("{option}: '{}': {e}", path.display())))?;
    if found.components().any(|part| part == Component::ParentDir) {
        return Err(CliError::usage(format!("{option}: '{}' contains '..'", path.display())));
    }
    // Without a slash at the end.
    text(option, &found.components().collect::<PathBuf>())
}

/// A path as text that a unit can have, also as a whole value: systemd takes spaces at its ends away, and a backslash at
/// its end for a line that goes on.
pub fn text(what: &str, path: &Path) -> Result<String> {
    let is_possible =
        |text: &&str| !text.chars().any(char::is_control) && !text.ends_with('\\') && text.trim() == *text;
    let refused = || CliError::usage(format!("{what}: '{}' cannot be written in a unit", path.display()));
    path.to_str().filter(is_possible).map(str::to_string).ok_or_else(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(at: &str, fs_type: &str) -> Mount {
        let device = mounts::DeviceNumber::from_dev_t(1);
        Mount { device, mount_point: at.into(), fs_type: fs_type.into(), source: "x".into() }
    }

    #[test]
    fn a_path_lies_on_the_last_mount_of_its_longest_mount_point() {
        let mounts = || {
            vec![mount("/", "ext4"), mount("/srv", "autofs"), mount("/srv", "nfs4"), mount("/srv/a", "xfs")]
        };
        for (path, fs_type) in
            [("/srv/b", "nfs4"), ("/srv/a/c", "xfs"), ("/srvx", "ext4"), ("/srv/ab", "nfs4"), ("/", "ext4")]
        {
            assert_eq!(above(mounts(), Path::new(path)).unwrap().fs_type, fs_type, "{path}");
        }
        assert!(is_network("fuse.sshfs") && is_network("nfs") && !is_network("fuse.pagefold"));
    }

    #[test]
    fn a_link_is_followed_to_the_folder_and_its_mount() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("/proc", &link).unwrap();
        let place = Place::of("--save-to", &link.join("saved")).unwrap();
        assert_eq!(place.folders, [link.to_str().unwrap(), "/proc"]);
        assert_eq!(place.mount_point.as_deref(), Some("/proc"));
        assert!(place.is_below("/proc") && place.is_below(folder.path().to_str().unwrap()));
        assert!(Place::of("--save-to", &folder.path().join("none/saved")).is_err());
        // A link to a file that does not exist yet.
        let file = folder.path().join("saved");
        std::os::unix::fs::symlink("/proc/saved", &file).unwrap();
        let place = Place::of("--save-to", &file).unwrap();
        assert_eq!(place.folders, [folder.path().to_str().unwrap(), "/proc"]);
        assert_eq!(place.mount_point.as_deref(), Some("/proc"));
    }

    #[test]
    fn paths_that_a_unit_would_change_are_refused() {
        for path in ["/a\n", "/a\\", "/a ", "/b\u{7f}"] {
            assert!(text("--mount", Path::new(path)).is_err(), "{path:?}");
        }
        assert_eq!(text("--mount", Path::new("/a b\\c")).unwrap(), "/a b\\c");
    }
}
