//! Checks that only root can change an image after `mount --kernel` has checked it.
//!
//! The kernel reads a mounted image as long as it is mounted, so a check is worthless if the file can change. The file
//! must belong to root, only root may have write permission, no process may have it open for writing, and its file system
//! must be known to be local: those of servers and of other machines keep no such promise. The same
//! holds for the file behind a loop device. Changes by root are not prevented. The directories of the path do not
//! matter, because the open file is mounted.

use pagefold_control::error::{CliError, Exit, Result};
use pagefold_sys::{lease, loopdev};
use std::fs::{File, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
/// The file systems that are known to be local, by their types in statfs(2): nothing but this kernel changes their files.
/// On others, such as NFS, SMB, 9p, Ceph and FUSE, a server or another machine can. An overlay may have layers on any.
const LOCAL: [u64; 18] = [
    0xef53,      // ext2, ext3, ext4
    0x5846_5342, // XFS
    0x9123_683e, // Btrfs
    0xf2f5_2010, // F2FS
    0xca45_1a4e, // bcachefs
    0x2fc1_2fc1, // ZFS
    0x3153_464a, // JFS
    0x3434,      // NILFS
    0x5265_4973, // ReiserFS
    0x0102_1994, // tmpfs
    0x8584_58f6, // ramfs
    0xe0f5_e1e2, // EROFS
    0x7371_7368, // SquashFS
    0x28cd_3d45, // cramfs
    0x9660,      // ISO 9660
    0x1501_3346, // UDF
    0x4d44,      // FAT
    0x2011_bab0, // exFAT
];
/// Most loop devices on top of each other.
const MAX_NESTED: usize = 8;

fn is_local(file_system: u64) -> bool {
    // The type has 32 bits, and its sign may be extended.
    LOCAL.contains(&(file_system & 0xffff_ffff))
}

/// Fails if users other than root can change a file or block device. `assume_local`: every file system counts as local.
pub fn refuse_changeable(path: &Path, file: &File, assume_local: bool) -> Result<()> {
    match change_risk(file, None, assume_local)? {
        None => Ok(()),
        Some(reason) => Err(CliError::new(
            Exit::Failed,
            format!(
                "'{0}': {reason}, so it could change after the check; give the file to root alone (chown root, chmod \
                 go-w), mount it without --kernel, or use --trusted",
                path.display()
            ),
        )),
    }
}

/// The reason that users other than root can change the file, as the end of a message; `None` if they cannot. `under`:
/// the file is behind a loop device, and this many more may follow.
fn change_risk(file: &File, under: Option<usize>, assume_local: bool) -> Result<Option<String>> {
    let failed = |e: std::io::Error| CliError::io("checking who can change the image", &e);
    let metadata = file.metadata().map_err(failed)?;
    if metadata.uid() != 0 {
        return Ok(Some(format!("user {} owns it", metadata.uid())));
    }
    if metadata.mode() & OTHERS_WRITE != 0 {
        return Ok(Some("everybody may write to it".into()));
    }
    if metadata.file_type().is_block_device() {
        return device_change_risk(file, &metadata, under.unwrap_or(MAX_NESTED), assume_local);
    }
    // With an access list, the group bits are the mask of all its entries.
    if metadata.mode() & GROUP_WRITES != 0 {
        return Ok(Some(format!("group {}, or users on its access list, may write to it", metadata.gid())));
    }
    let file_system = rustix::fs::fstatfs(file).map_err(|e| failed(e.into()))?;
    if !assume_local && !is_local(file_system.f_type as u64) {
        let what = "its file system is not known to be local (--assume-local says that it is)";
        return Ok(Some(what.to_string()));
    }
    if under.is_some() {
        // The loop device itself may have it open for writing, so the check would say nothing.
        return Ok(None);
    }
    match lease::is_open_for_writing(file).map_err(|e| CliError::failed(e.to_string()))? {
        Some(true) => Ok(Some("a program has it open for writing".into())),
        Some(false) | None => Ok(None),
    }
}

/// The same for a block device that belongs to root. Members of its group can write to all disks and are as powerful as
/// root, so only an access list is a risk.
fn device_change_risk(
    device: &File,
    metadata: &Metadata,
    nested: usize,
    assume_local: bool,
) -> Result<Option<String>> {
    let lists = rustix::fs::fgetxattr(device, "system.posix_acl_access", &mut [0u8; 0][..]);
    if metadata.mode() & GROUP_WRITES != 0 && lists.is_ok_and(|len| len > 0) {
        return Ok(Some("users on its access list may write to it".into()));
    }
    let on_file = loopdev::backing_of(device).map_err(|e| CliError::failed(e.to_string()))?;
    let Some((identity, path)) = on_file else { return Ok(None) };
    let unknown = || format!("it is a loop device whose file '{}' cannot be found", path.display());
    let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&path);
    let Ok(backing) = opened else { return Ok(Some(unknown())) };
    let found = backing.metadata().map_err(|e| CliError::io("checking who can change the image", &e))?;
    if (found.dev(), found.ino()) != (identity.lo_device, identity.lo_inode) || nested == 0 {
        return Ok(Some(unknown()));
    }
    let shown = path.display();
    let reason = change_risk(&backing, Some(nested - 1), assume_local)?;
    Ok(reason.map(|reason| format!("it is a loop device on '{shown}', and {reason}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_of_servers_and_overlays_are_not_local() {
        for (local, others) in [
            // ext4, XFS, Btrfs, tmpfs; FUSE, NFS, SMB 1 and 2, 9p, Ceph, AFS, overlay, GFS2, OCFS2.
            (true, &[0xef53, 0x5846_5342, 0x9123_683e, 0xffff_ffff_9123_683e, 0x0102_1994][..]),
            (
                false,
                &[
                    0x6573_5546,
                    0x6969,
                    0xff53_4d42,
                    0xfe53_4d42,
                    0x0102_1997,
                    0x00c3_6400,
                    0x5346_414f,
                    0x794c_7630,
                    0x0116_1970,
                    0x7461_636f,
                ],
            ),
        ] {
            others.iter().for_each(|magic| assert_eq!(is_local(*magic), local, "{magic:x}"));
        }
        // Open for reading only.
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        let file = File::open(&path).unwrap();
        let magic = rustix::fs::fstatfs(&file).unwrap().f_type as u64;
        let is_roots = file.metadata().unwrap().uid() == 0;
        assert_eq!(change_risk(&file, None, true).unwrap().is_none(), is_roots);
        assert_eq!(change_risk(&file, None, false).unwrap().is_none(), is_roots && is_local(magic));
    }
}
