//! `image mount --kernel`: checks an image, and mounts it with the kernel's EROFS.

use super::find;
use super::findings;
use super::open::{default_threads, path_failure};
use super::tamper;
use crate::cli::output;
use pagefold_backing::{ByteSource, FileBacking};
use pagefold_control::config::MountConfig;
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::media::Location;
use pagefold_image::{Image, ImageError, Options, ReadAhead, with_causes};
use pagefold_image_check::{CheckOptions, check};
use pagefold_server::mount::image_failure;
use pagefold_server::mount::media::NO_MEDIUM;
use pagefold_sys::mounts::MountTarget;
use pagefold_sys::{SysError, loopdev, rundir};
use rustix::mount::MountFlags;
use std::ffi::CString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

/// An open file or block device of the image. The kernel mounts the open file, so what it mounts is what was checked.
struct Medium<'a> {
    path: &'a Path,
    file: File,
}

/// Checks the image unless it is trusted, and mounts it. `assume_local`: its file system counts as a local one.
pub fn run(config: &MountConfig, trusted: bool, assume_local: bool) -> Result<()> {
    if rundir::effective_uid() != 0 {
        return Err(CliError::new(Exit::Unavailable, "mounting with the kernel's EROFS needs root"));
    }
    // The kernel would mount it on top of another mount.
    find::check_mount_point(&config.mount_point)?;
    let media = config.media.all().map(Medium::open).collect::<Result<Vec<_>>>()?;
    if !trusted {
        media
            .iter()
            .try_for_each(|medium| tamper::refuse_changeable(medium.path, &medium.file, assume_local))?;
    }
    let image = open(config, &media)?;
    refuse_old_kernel(&image)?;
    if !trusted {
        refuse_damaged(config, &image)?;
    }
    mount(config, &media)
}

impl<'a> Medium<'a> {
    fn open(location: &'a Location) -> Result<Self> {
        let Location::File(path) = location else {
            return Err(CliError::usage(format!(
                "the kernel mounts files and block devices, and '{location}' is a URL; mount it without --kernel"
            )));
        };
        let failed = |e| path_failure(format!("opening '{}'", path.display()), &e);
        // Without O_NONBLOCK, opening a FIFO would wait for a writer.
        let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(failed)?;
        let kind = file.metadata().map_err(failed)?.file_type();
        match kind.is_file() || kind.is_block_device() {
            true => Ok(Medium { path, file }),
            false => {
                let what = format!("opening '{}': it is {NO_MEDIUM}", path.display());
                Err(CliError::usage(what))
            }
        }
    }

    fn backing(&self) -> Result<Arc<dyn ByteSource>> {
        let what = || format!("reading '{}'", self.path.display());
        let file = self.file.try_clone().map_err(|e| CliError::io(what(), &e))?;
        let backing = FileBacking::for_reading(file);
        Ok(Arc::new(backing.map_err(|e| CliError::failed(format!("{}: {}", what(), with_causes(&e))))?))
    }

    /// A path in /proc to the open file.
    fn own_path(&self) -> String {
        format!("/proc/self/fd/{}", self.file.as_raw_fd())
    }

    fn is_block_device(&self) -> bool {
        self.file.metadata().is_ok_and(|m| m.file_type().is_block_device())
    }
}

fn open(config: &MountConfig, media: &[Medium<'_>]) -> Result<Image> {
    let mut media = media.iter().map(Medium::backing).collect::<Result<Vec<_>>>()?.into_iter();
    let first = media.next().ok_or_else(|| CliError::failed("no image to open"))?;
    let (memory_bytes, read_ahead) = (config.memory_bytes, ReadAhead::Off);
    let options = Options { memory_bytes, devices: media.collect(), read_ahead, ..Options::default() };
    Image::open(first, options).map_err(|e| failure(config, &e))
}

/// Fails if the kernel is too old for the image: mount(2) would fail without saying why.
fn refuse_old_kernel(image: &Image) -> Result<()> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let needed = image.required_kernel().to_string();
    match (version(&release), version(&needed)) {
        (Some(has), Some(needs)) if has < needs => Err(CliError::new(
            Exit::Unavailable,
            format!("the image needs Linux {needed}, and this is {release}; mount it without --kernel"),
        )),
        _ => Ok(()),
    }
}

/// The major and minor number of a version.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).filter(|part| !part.is_empty());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Checks the image, and fails if there are errors: damaged images must not reach the kernel's parser.
fn refuse_damaged(config: &MountConfig, image: &Image) -> Result<()> {
    let checked =
        check(image, &CheckOptions { threads: default_threads(), ..CheckOptions::default() }, &|_| ());
    let report = checked.map_err(|e| failure(config, &e))?;
    let image = &config.media.image;
    let devices: String = config.media.devices.iter().map(|device| format!(" --device {device}")).collect();
    let what = format!(
        "wrong with the image, so it is not mounted; 'pagefold image check {image}{devices}' lists the errors, and \
         --trusted mounts it nevertheless"
    );
    findings::check(&report.findings, &what)
        .map_err(|e| CliError { message: format!("'{image}': {}", e.message), ..e })
}

fn failure(config: &MountConfig, error: &ImageError) -> CliError {
    image_failure(format_args!("'{}'", config.media.image), error)
}

fn mount(config: &MountConfig, media: &[Medium<'_>]) -> Result<()> {
    let sources = media.iter().map(Medium::own_path).collect::<Vec<_>>();
    match mount_sources(config, &sources) {
        // A kernel before 6.12 mounts block devices only.
        Err(e) if e.errno == libc::ENOTBLK => mount_by_loop_devices(config, media),
        result => result.map_err(|e| mount_failed(&e)),
    }
}

fn mount_failed(e: &SysError) -> CliError {
    CliError::new(
        if e.errno == libc::EPERM { Exit::Unavailable } else { Exit::Failed },
        match e.errno {
            libc::ENODEV => {
                format!("{e}: the kernel has no EROFS; load the module 'erofs', or mount without --kernel")
            }
            libc::EBUSY => format!("{e}: the image, or the directory, is mounted already"),
            _ => format!("{e}; see the kernel's log (dmesg)"),
        },
    )
}

/// Mounts the first of `sources`, with the others as further devices.
fn mount_sources(config: &MountConfig, sources: &[String]) -> Result<(), SysError> {
    let what = || format!("mounting '{}' with the kernel's EROFS", config.media.image);
    let Some((source, devices)) = sources.split_first() else {
        return Err(SysError::new(what(), libc::EINVAL));
    };
    let data = devices.iter().map(|device| format!("device={device}")).collect::<Vec<_>>().join(",");
    let data = CString::new(data).map_err(|_| SysError::new(what(), libc::EINVAL))?;
    let mut flags = MountFlags::RDONLY;
    flags.set(MountFlags::NOSUID, !config.suid);
    flags.set(MountFlags::NODEV, !config.device_nodes);
    let target = MountTarget::open(&config.mount_point)?;
    let result = rustix::mount::mount(source, target.path(), "erofs", flags, data.as_c_str());
    result.map_err(|e| SysError::new(what(), e.raw_os_error()))
}

/// Mounts the image from loop devices attached to its files. The driver detaches them when the image is unmounted.
fn mount_by_loop_devices(config: &MountConfig, media: &[Medium<'_>]) -> Result<()> {
    // Kept open until the mount holds the devices: the driver detaches one that nobody has open.
    let mut attached_devices = Vec::new();
    let mut sources = Vec::new();
    for medium in media {
        if medium.is_block_device() {
            sources.push(medium.own_path());
            continue;
        }
        let attached = loopdev::attach_for_mount(&medium.file).map_err(|e| {
            let what = format!("this kernel cannot mount files, and '{}'", medium.path.display());
            CliError::new(Exit::Unavailable, format!("{what} cannot be attached to a loop device: {e}"))
        })?;
        sources.push(attached.1.display().to_string());
        attached_devices.push(attached.0);
    }
    mount_sources(config, &sources).map_err(|e| mount_failed(&e))?;
    output::note(
        "this kernel cannot mount files (Linux 6.12 can), so the image is attached to a loop device",
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagefold_control::media::MediaConfig;

    #[test]
    fn versions_compare_by_number() {
        assert_eq!(version("6.18.44-fc-v595"), Some((6, 18)));
        assert!(version("5.4") < version("5.16") && version("5.16") < version("6.1"));
        assert_eq!(version("x"), None);
    }

    /// Kernels before 6.12 need loop devices; the test runs on later kernels too.
    #[test]
    fn the_loop_device_of_a_mount_is_detached_when_it_is_unmounted() {
        const TEST: &str = "the_loop_device_of_a_mount_is_detached_when_it_is_unmounted";
        let mkfs = |dir: &Path| {
            std::fs::write(dir.join("word"), "word").unwrap();
            std::process::Command::new("mkfs.erofs").arg(dir.with_extension("image")).arg(dir).output()
        };
        let top = tempfile::tempdir().unwrap();
        let (tree, at) = (top.path().join("tree"), top.path().join("at"));
        std::fs::create_dir(&tree).unwrap();
        std::fs::create_dir(&at).unwrap();
        if rundir::effective_uid() != 0 || loopdev::open_control().is_err() || mkfs(&tree).is_err() {
            return pagefold_testkit::skipped!("{TEST}: needs root, loop devices and mkfs.erofs");
        }
        let config = MountConfig {
            media: MediaConfig::of(tree.with_extension("image")),
            mount_point: at.clone(),
            memory_bytes: 8 << 20,
            threads: 0,
            fuse_uring: Default::default(),
            allow_other: false,
            suid: false,
            device_nodes: false,
            read_ahead: pagefold_control::config::ReadAheadConfig::Off,
            record: None,
            prefetch: None,
        };
        let media = [Medium::open(&config.media.image).unwrap()];
        match mount_by_loop_devices(&config, &media) {
            Err(failure) if failure.message.contains("no EROFS") => {
                return pagefold_testkit::skipped!("{TEST}: {failure}");
            }
            result => result.unwrap(),
        }
        assert_eq!(std::fs::read_to_string(at.join("word")).unwrap(), "word");
        rustix::mount::unmount(&at, rustix::mount::UnmountFlags::empty()).unwrap();
        // Other programs may have the device open for a moment, to look at it.
        let is_left = || {
            let attached = loopdev::attached().unwrap();
            attached.iter().any(|found| Path::new(&found.backing_file) == config.media.image.name())
        };
        let begun = std::time::Instant::now();
        while is_left() {
            assert!(begun.elapsed().as_secs() < 10, "the device is still attached");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}
