//! `image mount --kernel`: the kernel's own EROFS, once it is known that it can read the image.

use super::mount::refuse_unfit;
use super::open::jobs;
use super::tamper;
use crate::cli::{chart, output};
use crate::failure::{Exit, Failure, Outcome};
use crate::service::images::MountConfig;
use crate::service::images::server::image_failure;
use pagefold_backing::{Backing, FileBacking};
use pagefold_image::check::{CheckOptions, check};
use pagefold_image::{Image, Options, ReadAhead, with_causes};
use pagefold_sys::{SysError, loopdev, rundir};
use rustix::mount::MountFlags;
use std::ffi::CString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

/// A file or block device that the image is in, open: the kernel mounts the very file that was checked, whatever its path
/// leads to by then.
struct Medium<'a> {
    path: &'a Path,
    file: File,
}

/// Checks the image unless it is trusted, and mounts it.
pub fn run(config: &MountConfig, trusted: bool) -> Outcome<()> {
    if rundir::effective_uid() != 0 {
        return Err(Failure::new(Exit::Unavailable, "mounting with the kernel's EROFS needs root"));
    }
    // The kernel would put it on top of what is there.
    refuse_unfit(&config.mount_point)?;
    let paths = std::iter::once(&config.image).chain(&config.devices);
    let media = paths.map(|path| Medium::open(path)).collect::<Outcome<Vec<_>>>()?;
    if !trusted {
        media.iter().try_for_each(|medium| tamper::refuse_changeable(medium.path, &medium.file))?;
    }
    let image = open(config, &media)?;
    refuse_old_kernel(&image)?;
    if !trusted {
        refuse_unsound(config, &image)?;
    }
    mount(config, &media)
}

impl<'a> Medium<'a> {
    fn open(path: &'a Path) -> Outcome<Self> {
        let failed = |e| Failure::io(format!("opening '{}'", path.display()), &e);
        // A FIFO would make the opening wait for a writer.
        let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(failed)?;
        let kind = file.metadata().map_err(failed)?.file_type();
        match kind.is_file() || kind.is_block_device() {
            true => Ok(Medium { path, file }),
            false => {
                let what = format!("'{}' is neither a file nor a block device", path.display());
                Err(Failure::usage(what))
            }
        }
    }

    fn backing(&self) -> Outcome<Arc<dyn Backing>> {
        let what = || format!("reading '{}'", self.path.display());
        let file = self.file.try_clone().map_err(|e| Failure::io(what(), &e))?;
        let backing = FileBacking::for_reading(file);
        Ok(Arc::new(backing.map_err(|e| Failure::failed(format!("{}: {}", what(), with_causes(&e))))?))
    }

    /// A path that leads to the open file, in this process.
    fn own_path(&self) -> String {
        format!("/proc/self/fd/{}", self.file.as_raw_fd())
    }

    fn is_block_device(&self) -> bool {
        self.file.metadata().is_ok_and(|m| m.file_type().is_block_device())
    }
}

fn open(config: &MountConfig, media: &[Medium<'_>]) -> Outcome<Image> {
    let mut media = media.iter().map(Medium::backing).collect::<Outcome<Vec<_>>>()?.into_iter();
    let first = media.next().ok_or_else(|| Failure::failed("no image to open"))?;
    let (memory_bytes, read_ahead) = (config.memory_bytes, ReadAhead::Off);
    let options = Options { memory_bytes, devices: media.collect(), read_ahead, ..Options::default() };
    Image::open(first, options).map_err(|e| image_failure(&config.image, &e))
}

/// What an older kernel would refuse without a reason.
fn refuse_old_kernel(image: &Image) -> Outcome<()> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let needed = image.superblock().required_kernel().to_string();
    match (version(&release), version(&needed)) {
        (Some(has), Some(needs)) if has < needs => Err(Failure::new(
            Exit::Unavailable,
            format!("the image needs Linux {needed}, and this is {release}; mount it without --kernel"),
        )),
        _ => Ok(()),
    }
}

/// The first two numbers.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).filter(|part| !part.is_empty());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Refuses an image in which anything is wrong: the kernel would be parsing it.
fn refuse_unsound(config: &MountConfig, image: &Image) -> Outcome<()> {
    let checked = check(image, &CheckOptions { jobs: jobs(None), ..CheckOptions::default() }, &|_| ());
    let report = checked.map_err(|e| image_failure(&config.image, &e))?;
    match report.findings.errors() {
        0 => Ok(()),
        n => Err(Failure::failed(format!(
            "'{0}': {1} wrong with the image, and the kernel is not to read it; 'pagefold image check {0}{2}' tells \
             what, and --trusted mounts it all the same",
            config.image.display(),
            chart::counted(n, "thing is", "things are"),
            config.devices.iter().map(|path| format!(" --device {}", path.display())).collect::<String>(),
        ))),
    }
}

fn mount(config: &MountConfig, media: &[Medium<'_>]) -> Outcome<()> {
    let sources = media.iter().map(Medium::own_path).collect::<Vec<_>>();
    let outcome = match mount_sources(config, &sources) {
        // A kernel before 6.12 mounts block devices only.
        Err(e) if e.errno == libc::ENOTBLK => return by_loop_devices(config, media),
        outcome => outcome,
    };
    outcome.map_err(|e| refused(&e))
}

fn refused(e: &SysError) -> Failure {
    Failure::new(
        if e.errno == libc::EPERM { Exit::Unavailable } else { Exit::Failed },
        match e.errno {
            libc::ENODEV => {
                format!("{e}: the kernel has no EROFS; load the module 'erofs', or mount without --kernel")
            }
            libc::EBUSY => format!("{e}: the image, or the directory, is mounted already"),
            _ => format!("{e}; the kernel's log says more"),
        },
    )
}

/// Mounts the first of `sources`, of which the others are further devices.
fn mount_sources(config: &MountConfig, sources: &[String]) -> Result<(), SysError> {
    let what = || format!("mounting '{}' with the kernel's EROFS", config.image.display());
    let Some((source, devices)) = sources.split_first() else {
        return Err(SysError::new(what(), libc::EINVAL));
    };
    let data = devices.iter().map(|device| format!("device={device}")).collect::<Vec<_>>().join(",");
    let data = CString::new(data).map_err(|_| SysError::new(what(), libc::EINVAL))?;
    let mut flags = MountFlags::RDONLY;
    flags.set(MountFlags::NOSUID, !config.suid);
    flags.set(MountFlags::NODEV, !config.device_nodes);
    let outcome = rustix::mount::mount(source, &config.mount_point, "erofs", flags, data.as_c_str());
    outcome.map_err(|e| SysError::new(what(), e.raw_os_error()))
}

/// With a loop device on each file. The driver frees them when the image is unmounted.
fn by_loop_devices(config: &MountConfig, media: &[Medium<'_>]) -> Outcome<()> {
    let (mut open, mut sources) = (Vec::new(), Vec::new());
    for medium in media {
        if medium.is_block_device() {
            sources.push(medium.own_path());
            continue;
        }
        let attached = loopdev::attach_for_mount(&medium.file).map_err(|e| {
            let what = format!("this kernel mounts no files, and '{}'", medium.path.display());
            Failure::new(Exit::Unavailable, format!("{what} cannot be put on a loop device: {e}"))
        })?;
        sources.push(attached.1.display().to_string());
        open.push(attached.0);
    }
    mount_sources(config, &sources).map_err(|e| refused(&e))?;
    output::note("this kernel mounts no files (6.12 does): the image is on a loop device");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_number() {
        assert_eq!(version("6.18.44-fc-v595"), Some((6, 18)));
        assert!(version("5.4") < version("5.16") && version("5.16") < version("6.1"));
        assert_eq!(version("x"), None);
    }

    /// What a kernel before 6.12 needs works on later ones too.
    #[test]
    fn an_image_is_mounted_from_a_loop_device_that_goes_with_the_mount() {
        const TEST: &str = "an_image_is_mounted_from_a_loop_device_that_goes_with_the_mount";
        let made = |dir: &Path| {
            std::fs::write(dir.join("word"), "word").unwrap();
            std::process::Command::new("mkfs.erofs").arg(dir.with_extension("image")).arg(dir).output()
        };
        let top = tempfile::tempdir().unwrap();
        let (tree, at) = (top.path().join("tree"), top.path().join("at"));
        std::fs::create_dir(&tree).unwrap();
        std::fs::create_dir(&at).unwrap();
        if rundir::effective_uid() != 0 || loopdev::open_control().is_err() || made(&tree).is_err() {
            return pagefold_testkit::skipped!("{TEST}: needs root, loop devices and mkfs.erofs");
        }
        let config = MountConfig {
            image: tree.with_extension("image"),
            devices: Vec::new(),
            mount_point: at.clone(),
            memory_bytes: 8 << 20,
            threads: 0,
            allow_other: false,
            suid: false,
            device_nodes: false,
            read_ahead: crate::service::images::ReadAheadConfig::Off,
        };
        let media = [Medium::open(&config.image).unwrap()];
        match by_loop_devices(&config, &media) {
            Err(failure) if failure.message.contains("no EROFS") => {
                return pagefold_testkit::skipped!("{TEST}: {failure}");
            }
            outcome => outcome.unwrap(),
        }
        assert_eq!(std::fs::read_to_string(at.join("word")).unwrap(), "word");
        rustix::mount::unmount(&at, rustix::mount::UnmountFlags::empty()).unwrap();
        let left = loopdev::attached().unwrap();
        assert!(left.iter().all(|found| Path::new(&found.backing_file) != config.image), "{left:?}");
    }
}
