//! [`Kept`]: what the server of a mount hands over to its keeper, for the server that follows it.
//!
//! The descriptors are, in this order: the lock and the folder of the instance, the channels of FUSE, the control socket,
//! the socket to a command in the foreground, the files of the image. The rest is JSON, which only servers read: one of
//! another version takes over if it understands it. `docs/keeper.md` names the fields.

use super::media::OpenFiles;
use crate::keeper::State;
use pagefold_backing::ByteSource;
use pagefold_control::error::{CliError, Result};
use pagefold_control::startup::StartRequest;
use pagefold_fuse::{Agreement, Features, Offer, Settings};
use pagefold_image::mount::Taken;
use pagefold_remote::RemoteSource;
use pagefold_sys::SysError;
use pagefold_sys::mounts::DeviceNumber;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;

/// The version of [`Record`]. A server refuses a later one.
const VERSION: u32 = 1;

/// The part of a handover that is not descriptors.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Record {
    version: u32,
    /// The request that the first server got.
    start: StartRequest,
    /// The number of channels.
    channels: usize,
    /// Whether there is the socket to a command.
    has_command: bool,
    /// The paths of the files, for messages and as their names.
    files: Vec<PathBuf>,
    /// The versions of the objects on servers.
    versions: Vec<Version>,
    /// The file system's device number.
    device: (u32, u32),
    /// Whether `fusermount3` has mounted it.
    is_by_helper: bool,
    /// The features that the kernel offered, as bits of INIT.
    offered: u64,
    /// The agreement: features, background requests, and lengths in bytes.
    features: u64,
    max_background: u16,
    read_bytes: usize,
    write_bytes: usize,
    readahead_bytes: usize,
    scratch_bytes: usize,
}

/// The things that a server hands over, but for the channels.
pub struct Handover<'a> {
    pub start: &'a StartRequest,
    pub lock: BorrowedFd<'a>,
    pub control: BorrowedFd<'a>,
    pub command: Option<BorrowedFd<'a>>,
    pub files: &'a OpenFiles,
    pub versions: Vec<Version>,
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
    pub fn of(sources: &[Arc<RemoteSource>]) -> Vec<Self> {
        let of = |source: &Arc<RemoteSource>| Version {
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

impl Handover<'_> {
    /// The state, with duplicates of the descriptors.
    pub fn pack(
        &self,
        device: DeviceNumber,
        is_by_helper: bool,
        channels: &[BorrowedFd<'_>],
        agreement: &Agreement,
    ) -> Result<State> {
        let Agreement { offer, settings } = *agreement;
        let record = Record {
            version: VERSION,
            start: self.start.clone(),
            channels: channels.len(),
            has_command: self.command.is_some(),
            files: self.files.paths().cloned().collect(),
            versions: self.versions.clone(),
            device: (device.major, device.minor),
            is_by_helper,
            offered: offer.features.bits(),
            features: settings.features.bits(),
            max_background: settings.max_background,
            read_bytes: settings.read_bytes,
            write_bytes: settings.write_bytes,
            readahead_bytes: settings.readahead_bytes,
            scratch_bytes: settings.scratch_bytes,
        };
        let folder = File::open(&self.start.dir).map_err(|e| CliError::io("opening the instance", &e))?;
        let fds = std::iter::once(duplicate(self.lock))
            .chain(std::iter::once(Ok(folder.into())))
            .chain(channels.iter().map(|fd| duplicate(*fd)))
            .chain([self.control].into_iter().chain(self.command).map(duplicate))
            .chain(self.files.fds().map(duplicate));
        let payload = serde_json::to_vec(&record).map_err(|e| CliError::failed(e.to_string()))?;
        Ok(State { fds: fds.collect::<Result<_>>()?, payload })
    }
}

/// A handover of a former server, unpacked.
pub struct Kept {
    /// The request that the first server got.
    pub start: StartRequest,
    /// The mount.
    pub taken: Taken,
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
    pub fn of(State { fds, payload }: State) -> Result<Self> {
        let malformed = |why: &str| CliError::failed(format!("what the former server handed over: {why}"));
        let record: Record = serde_json::from_slice(&payload).map_err(|e| malformed(&e.to_string()))?;
        if record.version > VERSION {
            return Err(malformed("a later version of pagefold has written it"));
        }
        let copies = fds.iter().map(|fd| duplicate(fd.as_fd())).collect::<Result<Vec<_>>>()?;
        if fds.len() != 3 + record.channels + usize::from(record.has_command) + record.files.len() {
            return Err(malformed("the number of descriptors is wrong"));
        }
        let mut fds = fds.into_iter().skip(2);
        let channels: Vec<File> = fds.by_ref().take(record.channels).map(File::from).collect();
        let control = fds.next().map(UnixListener::from).ok_or_else(|| malformed("no control socket"))?;
        let command = fds.by_ref().take(usize::from(record.has_command)).map(UnixStream::from).next();
        let files = record.files.iter().cloned().zip(fds.map(File::from)).collect();
        let (major, minor) = record.device;
        let settings = Settings {
            features: Features::from_bits(record.features),
            max_background: record.max_background,
            read_bytes: record.read_bytes,
            write_bytes: record.write_bytes,
            readahead_bytes: record.readahead_bytes,
            scratch_bytes: record.scratch_bytes,
        };
        let taken = Taken {
            channels,
            agreement: Agreement { offer: Offer { features: Features::from_bits(record.offered) }, settings },
            device: DeviceNumber { major, minor },
            is_by_helper: record.is_by_helper,
        };
        let Record { start, versions, .. } = record;
        Ok(Kept { start, taken, control, command, files, versions, packed: State { fds: copies, payload } })
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

fn duplicate(fd: BorrowedFd<'_>) -> Result<OwnedFd> {
    fd.try_clone_to_owned().map_err(|e| SysError::io("duplicating a descriptor", &e).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagefold_control::config::{FuseUring, MountConfig, ReadAheadConfig, ServerConfig};
    use pagefold_control::media::{Location, MediaConfig, RemoteConfig};
    use std::os::unix::fs::MetadataExt as _;

    fn start(dir: PathBuf) -> StartRequest {
        let remote = RemoteConfig::default();
        let image = Location::File("/an/image".into());
        let config = MountConfig {
            media: MediaConfig { image, devices: Vec::new(), verity: None, remote },
            mount_point: "/mnt".into(),
            memory_bytes: 1 << 20,
            threads: 2,
            fuse_uring: FuseUring::Auto,
            allow_other: false,
            suid: false,
            device_nodes: false,
            read_ahead: ReadAheadConfig::Off,
            record: None,
            prefetch: None,
        };
        StartRequest { config: ServerConfig::Image(Box::new(config)), dir, foreground: false }
    }

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
        let start = start(dir.path().into());
        let settings = Settings::for_requests_of(1 << 20, 64);
        let agreement = Agreement { offer: Offer { features: Features::from_bits(1 << 39 | 5) }, settings };
        let handover = Handover {
            start: &start,
            lock: lock.1.as_fd(),
            control: control.as_fd(),
            command: None,
            files: &[image].into_iter().collect(),
            versions: vec![Version { len_bytes: 5, name: Some("a".into()) }],
        };
        let device = DeviceNumber { major: 0, minor: 77 };
        let channels = [first.1.as_fd(), second.1.as_fd()];
        let State { fds, payload } = handover.pack(device, true, &channels, &agreement).unwrap();
        assert_eq!(fds.len(), 6);
        let copies = || fds.iter().map(|fd| fd.try_clone().unwrap()).collect::<Vec<_>>();
        let kept = Kept::of(State { fds: copies(), payload: payload.clone() }).unwrap();
        assert_eq!((kept.taken.agreement, kept.taken.device), (agreement, device));
        assert!(kept.taken.is_by_helper && kept.command.is_none() && kept.packed.fds.len() == 6);
        assert_eq!((kept.start.dir.as_path(), &kept.start.config), (dir.path(), &start.config));
        assert_eq!(kept.taken.channels.iter().map(inode).collect::<Vec<_>>(), inodes[..2]);
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
        let newer = text.replace("\"version\":1", "\"version\":2");
        let unknown = text.replace("\"version\":1", "\"later\":[1],\"version\":1");
        assert!(unpack(copies(), unknown.as_bytes()).is_ok());
        for bytes in [newer.as_bytes(), b"", b"{}", &text.as_bytes()[..text.len() - 1]] {
            assert!(unpack(copies(), bytes).is_err());
        }
        for count in 0..6 {
            assert!(unpack(copies().into_iter().take(count).collect(), text.as_bytes()).is_err());
        }
    }
}
