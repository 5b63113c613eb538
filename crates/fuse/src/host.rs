//! [`FuseMount`], a mounted file system and the session threads that serve it.

use crate::answer::Access;
use crate::negotiate::Agreement;
use crate::session::{self, KeepChannels, Serving, SessionEnd, SessionThreads, Transport};
use crate::{FileSystem, FuseError, MOUNT_NAME};
use pagefold_sys::SysError;
use pagefold_sys::confine;
use pagefold_sys::fusedev::{self, Request};
use pagefold_sys::fusermount::{HelperError, Mounted};
use pagefold_sys::mounts::{self, DeviceNumber, MountPoint};
use std::fmt::Debug;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

/// Time limit for the session threads to end after their connection was aborted.
const JOIN_TIMEOUT: Duration = Duration::from_secs(10);

/// The process that makes the mount.
#[derive(Clone, Copy)]
pub enum Mounter<'a> {
    /// This process, which needs the privilege to mount.
    ThisProcess,
    /// `fusermount3`, for users without that privilege.
    Helper,
    /// Another process, because this one is confined.
    Broker(&'a dyn Broker),
}

/// A process with the rights to mount, for a confined one.
pub trait Broker {
    /// Mounts as `request` says, at the mount point that the broker knows. Returns the channel and the mount.
    fn mount(&self, request: &Request<'_>) -> Result<(File, Box<dyn OwnedMount>), FuseError>;
}

/// A mount that its owner unmounts.
pub trait OwnedMount: Debug + Send + Sync {
    /// The mount point.
    fn path(&self) -> &Path;

    /// The device number of the file system.
    fn device(&self) -> DeviceNumber;

    /// Whether `fusermount3` has made it.
    fn is_by_helper(&self) -> bool;

    /// Opens an unconnected channel.
    fn open_channel(&self) -> Result<File, SysError>;

    /// Sets the read-ahead of the kernel for files of the mount, KiB.
    fn set_read_ahead(&self, kib: u64) -> Result<(), SysError>;

    /// Aborts the connection and unmounts, even if the mount is in use. It may be called again.
    fn unmount(&mut self) -> Result<(), HelperError>;

    /// Leaves the mount to another process: from now on, dropping this does not unmount.
    fn leave(self: Box<Self>);
}

impl OwnedMount for Mounted {
    fn path(&self) -> &Path {
        self.path()
    }

    fn device(&self) -> DeviceNumber {
        self.device()
    }

    fn is_by_helper(&self) -> bool {
        self.is_by_helper()
    }

    fn open_channel(&self) -> Result<File, SysError> {
        fusedev::open()
    }

    fn set_read_ahead(&self, kib: u64) -> Result<(), SysError> {
        match self.is_by_helper() {
            true => Err(SysError::new("setting the read-ahead of a mount", libc::EPERM)),
            false => fusedev::set_read_ahead(self.device(), kib),
        }
    }

    fn unmount(&mut self) -> Result<(), HelperError> {
        self.unmount()
    }

    fn leave(self: Box<Self>) {
        (*self).leave();
    }
}

/// The things that another process needs to serve a mount after this one.
#[derive(Debug)]
pub struct KeptMount {
    /// The channels of all threads. The kernel fails the requests of a channel when its last descriptor is closed.
    pub channels: Vec<File>,
    /// The result of the negotiation with the kernel, which takes place only once.
    pub agreement: Agreement,
    /// The device number of the file system.
    pub device: DeviceNumber,
    /// Whether `fusermount3` has mounted it.
    pub is_by_helper: bool,
}

impl KeptMount {
    /// The same, with duplicates of the channels.
    pub fn try_clone(&self) -> Result<Self, SysError> {
        let channels = self.channels.iter().map(File::try_clone).collect::<std::io::Result<_>>();
        let channels = channels.map_err(|e| SysError::io("duplicating a descriptor", &e))?;
        Ok(KeptMount { channels, ..*self })
    }
}

/// Hands a mount to a process that outlives this one, before the first request is received. An error says why that is
/// impossible.
pub type Keep<'a> = Box<dyn FnOnce(KeptMount) -> Result<(), String> + 'a>;

/// A mounted file system and the session threads that serve it. Dropping it unmounts and ends the threads.
#[derive(Debug)]
pub struct FuseMount {
    /// `None` once the threads were joined.
    session: Option<SessionThreads>,
    transport: Transport,
    panics: Arc<AtomicU64>,
    /// A call of [`FuseMount::stop`] has waited for the threads in vain, so the drop does not wait again.
    timed_out: bool,
    mounted: Box<dyn OwnedMount>,
}

/// Resolves `path` to the absolute path, without symbolic links, of an existing directory on which nothing is mounted.
pub fn free_directory(path: &Path) -> Result<PathBuf, FuseError> {
    match mounts::mount_point(path)? {
        MountPoint::Free(path) => Ok(path),
        MountPoint::Taken(path) => Err(FuseError::Taken { path }),
    }
}

impl FuseMount {
    /// Mounts `file_system` at `mount_point`, a path from [`free_directory`], and starts the session threads.
    ///
    /// Calls `after_mount` on this thread after the mount and before the start of the threads, so that it can drop
    /// the privileges that only the mount needs: the threads inherit those of this thread. With [`Mounter::Helper`]
    /// there is no privilege to drop, and `after_mount` is not called. After a failure nothing stays mounted or
    /// running.
    pub fn new(
        file_system: impl FileSystem,
        mount_point: PathBuf,
        request: &Request<'_>,
        mounter: Mounter<'_>,
        serving: impl Into<Serving>,
        after_mount: impl FnOnce() -> Result<(), SysError>,
    ) -> Result<Self, FuseError> {
        Self::new_kept(file_system, mount_point, request, mounter, serving, after_mount, None)
    }

    /// As [`FuseMount::new`], for a mount that outlives this process: `keep` hands it to a process that lives on. Another one
    /// can then [take the mount over](Self::take_over).
    pub fn new_kept(
        file_system: impl FileSystem,
        mount_point: PathBuf,
        request: &Request<'_>,
        mounter: Mounter<'_>,
        serving: impl Into<Serving>,
        after_mount: impl FnOnce() -> Result<(), SysError>,
        keep: Option<Keep<'_>>,
    ) -> Result<Self, FuseError> {
        let (channel, mounted) = match mounter {
            Mounter::ThisProcess => {
                let made = mount_here(mount_point, request)?;
                after_mount()?;
                made
            }
            Mounter::Helper => mount_by_helper(mount_point, request)?,
            Mounter::Broker(broker) => broker.mount(request)?,
        };
        let keep = keep.map(|keep| keep_channels(&*mounted, keep));
        let open = || mounted.open_channel();
        let access = access(request.allow_other);
        let session = session::start(file_system, channel, &open, access, serving.into(), keep)?;
        Ok(Self::served(session, mounted))
    }

    /// Serves a mount whose server has died, or is killed before this is called. `kept` is what the [`Keep`] of its first
    /// server got. After a failure the mount is as it was, for another attempt.
    pub fn take_over(
        file_system: impl FileSystem,
        mount_point: PathBuf,
        allow_other: bool,
        kept: KeptMount,
    ) -> Result<Self, FuseError> {
        let mounted = Mounted::taken_over(mount_point, kept.device, kept.is_by_helper);
        Self::take_over_mount(file_system, Box::new(mounted), allow_other, kept)
    }

    /// As [`FuseMount::take_over`], for a mount that another process unmounts.
    pub fn take_over_mount(
        file_system: impl FileSystem,
        mounted: Box<dyn OwnedMount>,
        allow_other: bool,
        kept: KeptMount,
    ) -> Result<Self, FuseError> {
        let KeptMount { channels, agreement, .. } = kept;
        match session::take_over(file_system, channels, access(allow_other), &agreement) {
            Ok(session) => Ok(Self::served(session, mounted)),
            Err(e) => {
                mounted.leave();
                Err(e)
            }
        }
    }

    fn served(session: SessionThreads, mounted: Box<dyn OwnedMount>) -> Self {
        let (transport, panics) = (session.transport().clone(), session.panics());
        FuseMount { session: Some(session), transport, panics, timed_out: false, mounted }
    }

    /// Whether the mount outlives the process, or why it does not. `None` if nobody asked for that.
    pub fn kept(&self) -> Option<&Result<(), String>> {
        self.session.as_ref()?.kept()
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        self.mounted.path()
    }

    /// How requests reach the session threads.
    pub fn transport(&self) -> &Transport {
        &self.transport
    }

    /// The counter of requests that panicked and failed with EIO, of a [stateless](FileSystem::IS_STATELESS) file system.
    pub fn panics(&self) -> Arc<AtomicU64> {
        self.panics.clone()
    }

    /// The end of the session threads, or of the first one; `None` while all serve, and after [`FuseMount::stop`].
    pub fn end(&self) -> Option<SessionEnd> {
        self.session.as_ref()?.end()
    }

    /// A descriptor that is readable from the end of the first session thread on, for `poll`; `None` after
    /// [`FuseMount::stop`].
    pub fn first_end(&self) -> Option<BorrowedFd<'_>> {
        Some(self.session.as_ref()?.first_end())
    }

    /// The device number of the file system.
    pub fn device(&self) -> DeviceNumber {
        self.mounted.device()
    }

    /// Sets the read-ahead of the kernel for files of the mount, KiB. Fails if `fusermount3` has mounted.
    pub fn set_read_ahead(&self, kib: u64) -> Result<(), SysError> {
        self.mounted.set_read_ahead(kib)
    }

    /// Aborts the connection, unmounts, and waits up to ten seconds for the session threads to end.
    ///
    /// Can be repeated after a failure: while threads still serve, each call waits for them and fails again.
    pub fn stop(&mut self) -> Result<(), FuseError> {
        self.stop_within(JOIN_TIMEOUT)
    }

    fn stop_within(&mut self, timeout: Duration) -> Result<(), FuseError> {
        self.mounted.unmount().map_err(|error| match (self.mounted.is_by_helper(), error) {
            (false, HelperError::System(error)) => FuseError::System(error),
            (_, source) => FuseError::Helper { path: self.path().to_path_buf(), source },
        })?;
        let joined = join(&mut self.session, timeout);
        self.timed_out = self.session.is_some();
        joined
    }
}

impl Drop for FuseMount {
    fn drop(&mut self) {
        // A caller that wants the error calls `stop` first.
        let _ = self.stop_within(if self.timed_out { Duration::ZERO } else { JOIN_TIMEOUT });
    }
}

/// Mounts at `mount_point`, a path from [`free_directory`]. Needs the privilege to mount.
pub fn mount_here(
    mount_point: PathBuf,
    request: &Request<'_>,
) -> Result<(File, Box<dyn OwnedMount>), FuseError> {
    let channel = fusedev::open().map_err(FuseError::Open)?;
    let mounted = Mounted::new(&channel, mount_point, request).map_err(FuseError::Mount)?;
    Ok((channel, Box::new(mounted)))
}

/// Mounts in the same way, with `fusermount3`.
pub fn mount_by_helper(
    mount_point: PathBuf,
    request: &Request<'_>,
) -> Result<(File, Box<dyn OwnedMount>), FuseError> {
    // The helper opens another channel. This process opens one only to check that the user may.
    fusedev::open().map_err(FuseError::Open)?;
    let (channel, mounted) = Mounted::by_helper(mount_point.clone(), &helper_options(request))
        .map_err(|source| FuseError::Helper { path: mount_point, source })?;
    Ok((channel, Box::new(mounted)))
}

/// Hands duplicates of the channels to `keep`.
fn keep_channels<'k>(mounted: &dyn OwnedMount, keep: Keep<'k>) -> KeepChannels<'k> {
    let (device, is_by_helper) = (mounted.device(), mounted.is_by_helper());
    Box::new(move |channels, agreement| {
        let duplicates = channels.iter().map(|fd| fd.try_clone_to_owned().map(File::from));
        let channels = duplicates.collect::<std::io::Result<_>>();
        let channels = channels.map_err(|e| SysError::io("duplicating a descriptor", &e).to_string())?;
        keep(KeptMount { channels, agreement: *agreement, device, is_by_helper })
    })
}

/// Waits for the session threads to end, and takes the handle once they have. Leaves it there on a timeout.
fn join(session: &mut Option<SessionThreads>, timeout: Duration) -> Result<(), FuseError> {
    let deadline = Instant::now() + timeout;
    while session.as_ref().is_some_and(|threads| !threads.are_finished()) {
        if Instant::now() >= deadline {
            // Another mount namespace has a copy of the mount, or another process moved the mount, or the helper
            // could not abort the connection and files are open.
            return Err(FuseError::Session("the FUSE threads still serve after unmounting".into()));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    session.take().map_or(Ok(()), SessionThreads::join)
}

/// Negotiates the FUSE protocol with the kernel and starts the session threads for `channel`, which is mounted already.
///
/// [`FuseMount::new`] does this for the mount that it makes. Another caller may have mounted in a mount namespace of
/// which the session threads are no part. The threads end when the file system is unmounted. `open` opens the unconnected
/// channels of further threads: a confined process cannot.
pub fn serve(
    file_system: impl FileSystem,
    channel: File,
    open: &dyn Fn() -> Result<File, SysError>,
    allow_other: bool,
    serving: impl Into<Serving>,
) -> Result<SessionThreads, FuseError> {
    session::start(file_system, channel, open, access(allow_other), serving.into(), None)
}

fn access(allow_other: bool) -> Access {
    if allow_other { Access::Anybody } else { Access::Only(confine::owner_uid()) }
}

/// The mount options for `fusermount3`, which never allows set-user-id programs and device files.
fn helper_options(request: &Request<'_>) -> String {
    let unless = |condition: bool, option: &'static str| if condition { "" } else { option };
    format!(
        "{}nosuid,nodev,{}{}fsname={},subtype={MOUNT_NAME},max_read={}{}",
        unless(!request.read_only, "ro,"),
        unless(request.programs, "noexec,"),
        unless(!request.checks_modes, "default_permissions,"),
        escaped(&request.source.to_string_lossy()),
        request.max_read_bytes,
        unless(!request.allow_other, ",allow_other"),
    )
}

/// Escapes a value in a list of mount options, in which a bare comma would end it.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace(',', "\\,")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    #[test]
    fn a_request_becomes_options_of_the_helper() {
        let private = Request::private(MOUNT_NAME, 4096);
        assert_eq!(
            helper_options(&private),
            "nosuid,nodev,noexec,fsname=pagefold,subtype=pagefold,max_read=4096"
        );
        let source = OsStr::new("a,b\\c");
        let shared = Request { source, read_only: true, allow_other: true, checks_modes: true, ..private };
        assert_eq!(
            helper_options(&Request { programs: true, ..shared }),
            "ro,nosuid,nodev,default_permissions,fsname=a\\,b\\\\c,subtype=pagefold,max_read=4096,allow_other"
        );
    }

    #[test]
    fn waiting_for_threads_that_still_serve_fails_each_time() {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let _ = ended.recv();
            Ok(())
        });
        let mut session = Some(SessionThreads::from(thread));
        for _ in 0..2 {
            assert!(matches!(join(&mut session, Duration::ZERO), Err(FuseError::Session(_))));
        }
        drop(end);
        join(&mut session, JOIN_TIMEOUT).unwrap();
        assert!(session.is_none());
        join(&mut session, Duration::ZERO).unwrap();
    }

    #[test]
    fn a_mount_point_is_an_existing_directory() {
        let missing = Path::new("/nonexistent/mount");
        assert!(matches!(free_directory(missing), Err(FuseError::System(e)) if e.errno == libc::ENOENT));
        assert!(matches!(free_directory(Path::new("/proc")), Err(FuseError::Taken { .. })));
    }
}
