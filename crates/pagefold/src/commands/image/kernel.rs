//! `image mount --kernel`: the kernel's own EROFS, once it is known that it can read the image.

use super::mount::refuse_unfit;
use super::open::jobs;
use crate::cli::{chart, output};
use crate::failure::{Exit, Failure, Outcome};
use crate::service::images::MountConfig;
use crate::service::images::server::{image_failure, open_medium};
use pagefold_image::check::{CheckOptions, check};
use pagefold_image::{Image, Options, ReadAhead};
use pagefold_sys::{SysError, rundir};
use rustix::mount::MountFlags;
use std::ffi::CString;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Checks the image unless it is trusted, and mounts it.
pub fn run(config: &MountConfig, trusted: bool) -> Outcome<()> {
    if rundir::effective_uid() != 0 {
        return Err(Failure::new(Exit::Unavailable, "mounting with the kernel's EROFS needs root"));
    }
    // The kernel would put it on top of what is there.
    refuse_unfit(&config.mount_point)?;
    let image = open(config)?;
    refuse_old_kernel(&image)?;
    if !trusted {
        refuse_unsound(config, &image)?;
    }
    mount(config)
}

fn open(config: &MountConfig) -> Outcome<Image> {
    let device = |path: &PathBuf| open_medium(path, &format!("opening '{}'", path.display()));
    let devices = config.devices.iter().map(device).collect::<Outcome<_>>()?;
    let read_ahead = ReadAhead::Off;
    let options = Options { memory_bytes: config.memory_bytes, devices, read_ahead, ..Options::default() };
    Image::open_file(&config.image, options).map_err(|e| image_failure(&config.image, &e))
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

fn mount(config: &MountConfig) -> Outcome<()> {
    match mount_directly(config) {
        Ok(()) => Ok(()),
        // A kernel before 6.12 mounts block devices only.
        Err(e) if e.errno == libc::ENOTBLK => by_loop_device(config),
        Err(e) => Err(Failure::new(
            if e.errno == libc::EPERM { Exit::Unavailable } else { Exit::Failed },
            match e.errno {
                libc::ENODEV => format!(
                    "{e}: the kernel has no EROFS; load the module 'erofs', or mount without --kernel"
                ),
                libc::EBUSY => format!("{e}: the image, or the directory, is mounted already"),
                _ => format!("{e}; the kernel's log says more"),
            },
        )),
    }
}

fn options(config: &MountConfig) -> Outcome<String> {
    let one = |path: &PathBuf| match path.to_str() {
        Some(text) if !text.contains(',') => Ok(format!("device={text}")),
        _ => Err(Failure::usage(format!("the kernel takes no device named '{}'", path.display()))),
    };
    Ok(config.devices.iter().map(one).collect::<Outcome<Vec<_>>>()?.join(","))
}

fn mount_directly(config: &MountConfig) -> Result<(), SysError> {
    let what = || format!("mounting '{}' with the kernel's EROFS", config.image.display());
    let invalid = |_| SysError::new(what(), libc::EINVAL);
    let data = options(config).map_err(|f| SysError::new(f.message, libc::EINVAL))?;
    let data = CString::new(data).map_err(|e| invalid(e.into_vec()))?;
    let mut flags = MountFlags::RDONLY;
    flags.set(MountFlags::NOSUID, !config.suid);
    flags.set(MountFlags::NODEV, !config.device_nodes);
    let outcome = rustix::mount::mount(&config.image, &config.mount_point, "erofs", flags, data.as_c_str());
    outcome.map_err(|e| SysError::new(what(), e.raw_os_error()))
}

/// With mount(8), which makes a loop device that goes with the mount.
fn by_loop_device(config: &MountConfig) -> Outcome<()> {
    let is_block = |path: &Path| path.metadata().is_ok_and(|m| m.file_type().is_block_device());
    if config.devices.iter().any(|path| !is_block(path)) {
        return Err(Failure::usage(
            "this kernel takes further devices only as block devices: put a loop device on each file \
             (losetup), and name those",
        ));
    }
    let mut words = vec!["ro".to_string(), "loop".to_string()];
    words.extend((!config.suid).then(|| "nosuid".to_string()));
    words.extend((!config.device_nodes).then(|| "nodev".to_string()));
    words.extend(Some(options(config)?).filter(|text| !text.is_empty()));
    let mut command = Command::new("mount");
    command.args(["-t", "erofs", "-o", &words.join(","), "--"]).arg(&config.image).arg(&config.mount_point);
    let output = command.output().map_err(|e| Failure::io("starting mount(8)", &e))?;
    if !output.status.success() {
        return Err(Failure::failed(String::from_utf8_lossy(&output.stderr).trim().to_string()));
    }
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
}
