//! [`Kept`]: what the server of a mount hands over to its keeper, for the server that follows it.
//!
//! The descriptors of its kind are the files of the image. `docs/keeper.md` names the fields.

use super::media::OpenFiles;
use crate::fetcher::FetchedSource;
use crate::keeper::{Handover, State, Unpacked, malformed};
use pagefold_backing::ByteSource;
use pagefold_control::error::{CliError, Result};
use pagefold_fuse::KeptMount;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;

/// The part of a mount in the record of a handover.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Record {
    /// The paths of the files, for messages and as their names.
    #[serde(with = "pagefold_control::path::list")]
    files: Vec<PathBuf>,
    /// The versions of the objects on servers.
    versions: Vec<Version>,
}

/// The state of a server of this mount, with duplicates of the descriptors.
pub fn pack(
    handover: &Handover<'_>,
    mount: &KeptMount,
    files: &OpenFiles,
    versions: &[Version],
) -> Result<State> {
    let record = Record { files: files.paths().cloned().collect(), versions: versions.to_vec() };
    handover.pack(Some(mount), record, files.fds())
}

/// The version of an object on a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    len_bytes: u64,
    /// Absent if the object was opened without asking for it: then its bytes are verified.
    name: Option<String>,
}

impl Version {
    /// Those of sources.
    pub fn of(sources: &[Arc<FetchedSource>]) -> Vec<Self> {
        let of = |source: &Arc<FetchedSource>| Version {
            len_bytes: source.len_bytes(),
            name: source.version_name(),
        };
        sources.iter().map(of).collect()
    }

    fn matches(&self, other: &Self) -> bool {
        self.len_bytes == other.len_bytes
            && (self.name.is_none() || other.name.is_none() || self.name == other.name)
    }
}

/// A handover of a former server, unpacked.
pub struct Kept {
    /// The mount.
    pub mount: KeptMount,
    /// The control socket.
    pub control: UnixListener,
    /// The socket to a command in the foreground.
    pub command: Option<UnixStream>,
    /// The files of the image.
    pub files: OpenFiles,
    versions: Vec<Version>,
    /// The state again, with duplicates of the descriptors, for a further keeper.
    pub packed: State,
}

impl Kept {
    /// Unpacks it.
    pub fn of(state: State) -> Result<Self> {
        let Unpacked { mount, control, command, own, own_fds, packed, .. } = Unpacked::of(state)?;
        let Record { files, versions } = own;
        let mount = mount.filter(|_| files.len() == own_fds.len());
        let mount = mount.ok_or_else(|| malformed("it is not that of a mount"))?;
        let files = files.into_iter().zip(own_fds.into_iter().map(File::from)).collect();
        Ok(Kept { mount, control, command, files, versions, packed })
    }

    /// Fails if servers have other versions of the objects than those that were mounted: the kernel has cached parts of
    /// them.
    pub fn check_versions(&self, found: &[Version]) -> Result<()> {
        let same = self.versions.len() == found.len();
        match same && self.versions.iter().zip(found).all(|(kept, found)| kept.matches(found)) {
            true => Ok(()),
            false => Err(CliError::failed(
                "the image has changed on its server; unmount it, and mount the new one".to_string(),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagefold_fuse::{Agreement, Features, Offer, Settings};
    use pagefold_sys::mounts::DeviceNumber;
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt as _;

    #[test]
    fn a_handover_is_unpacked_as_it_was_and_a_malformed_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let open = |name: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, name).unwrap();
            (path.clone(), File::open(path).unwrap())
        };
        let control = UnixListener::bind(dir.path().join("socket")).unwrap();
        let (lock, first, second, image) = (open("lock"), open("first"), open("second"), open("image"));
        let inode = |file: &File| file.metadata().unwrap().ino();
        let inodes = [inode(&first.1), inode(&second.1), inode(&image.1)];
        let folder = File::open(dir.path()).unwrap();
        let settings = Settings::for_requests_of(1 << 20, 64);
        let agreement = Agreement { offer: Offer { features: Features::from_bits(1 << 39 | 5) }, settings };
        let handover = Handover {
            lock: lock.1.as_fd(),
            folder: folder.as_fd(),
            control: control.as_fd(),
            command: None,
        };
        let device = DeviceNumber { major: 0, minor: 77 };
        let channels = vec![first.1, second.1];
        let mount = KeptMount { channels, agreement, device, is_by_helper: true };
        let versions = [Version { len_bytes: 5, name: Some("a".into()) }];
        let files = [image].into_iter().collect();
        let State { fds, payload } = pack(&handover, &mount, &files, &versions).unwrap();
        assert_eq!(fds.len(), 6);
        let copies = || fds.iter().map(|fd| fd.try_clone().unwrap()).collect::<Vec<_>>();
        let kept = Kept::of(State { fds: copies(), payload: payload.clone() }).unwrap();
        assert_eq!((kept.mount.agreement, kept.mount.device), (agreement, device));
        assert!(kept.mount.is_by_helper && kept.command.is_none() && kept.packed.fds.len() == 6);
        assert_eq!(kept.mount.channels.iter().map(inode).collect::<Vec<_>>(), inodes[..2]);
        assert_eq!(
            kept.files.fds().map(|fd| inode(&fd.try_clone_to_owned().unwrap().into())).next().unwrap(),
            inodes[2]
        );

        let other = |len_bytes, name: Option<&str>| vec![Version { len_bytes, name: name.map(String::from) }];
        for (found, is_same) in [
            (other(5, Some("a")), true),
            (other(5, None), true),
            (other(5, Some("b")), false),
            (other(6, Some("a")), false),
            (Vec::new(), false),
        ] {
            assert_eq!(kept.check_versions(&found).is_ok(), is_same, "{found:?}");
        }
        let text = String::from_utf8(payload).unwrap();
        let unpack = |fds, payload: &[u8]| Kept::of(State { fds, payload: payload.to_vec() });
        let newer = text.replace("\"version\":2", "\"version\":3");
        let unknown = text.replace("\"version\":2", "\"later\":[1],\"version\":2");
        assert!(unpack(copies(), unknown.as_bytes()).is_ok());
        for bytes in [newer.as_bytes(), b"", b"{}", &text.as_bytes()[..text.len() - 1]] {
            assert!(unpack(copies(), bytes).is_err());
        }
        for count in 0..6 {
            assert!(unpack(copies().into_iter().take(count).collect(), text.as_bytes()).is_err());
        }
    }
}
