//! The running kernel, and the images that it can mount: by its version and by its configuration.
//!
//! Images are built for the running kernel unless the user names another one. All sources are optional, because a
//! container or a distribution may lack each of them: the configuration in `/proc`, `/boot` or `/lib/modules`, the list
//! of installed modules, the list of registered file systems, and the features in `/sys/fs/erofs`. If no source
//! contains the configuration, the rule for the version decides ([`Target::default_algorithm`]).

use super::compression::{Compression, Method};
use super::options::{BLOCK_BYTES, Options};
use super::target::Target;
use flate2::read::MultiGzDecoder;
use pagefold_image::format::config::Algorithm;
use pagefold_image::format::features::{FIRST_KERNEL, algorithm_kernel, option};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Longest configuration that is read, bytes, decompressed. Debian's has 280 KiB.
const CONFIG_BYTES_MAX: u64 = 4 << 20;

/// The running kernel, as far as it is known.
#[derive(Debug, Clone)]
pub struct RunningKernel {
    release: String,
    version: Target,
    config: Option<Config>,
    /// The reason that the kernel has no EROFS, if that is known.
    lacks_erofs: Option<String>,
    /// Names of the features of EROFS that the kernel lists.
    features: Option<BTreeSet<String>>,
}

/// The configuration of a kernel.
#[derive(Debug, Clone)]
struct Config {
    /// The file that it was read from, as users know it.
    path: PathBuf,
    text: String,
}

impl Config {
    fn is_set(&self, option: &str) -> bool {
        self.value(option).is_some()
    }

    /// `y` or `m`; `None` if the option is not set.
    fn value(&self, option: &str) -> Option<&str> {
        let mut values = self.text.lines().filter_map(|line| line.strip_prefix(option)?.strip_prefix('='));
        values.find(|value| ["y", "m"].contains(value))
    }
}

impl RunningKernel {
    /// Reads what the system says about its kernel.
    pub fn probe() -> io::Result<Self> {
        Self::probe_in(Path::new("/"))
    }

    /// As [`RunningKernel::probe`], with `root` in place of the root directory.
    pub fn probe_in(root: &Path) -> io::Result<Self> {
        let release = match fs::read_to_string(root.join("proc/sys/kernel/osrelease")) {
            Ok(release) => release.trim().to_owned(),
            // Without /proc the system call says the same.
            Err(_) if root == Path::new("/") => {
                rustix::system::uname().release().to_string_lossy().into_owned()
            }
            Err(error) => return Err(error),
        };
        let version = Target::parse(&release)
            .ok_or_else(|| io::Error::other(format!("the kernel's version is '{release}'")))?;
        let config = read_config(root, &release);
        let features = names_in(&root.join("sys/fs/erofs/features"));
        let lacks_erofs = lacks_erofs(root, &release, version, config.as_ref());
        Ok(RunningKernel { release, version, config, lacks_erofs, features })
    }

    /// The release, as `uname -r` prints it.
    pub fn release(&self) -> &str {
        &self.release
    }

    /// The version that images are built for. A kernel that is older than EROFS mounts none, so its images are for the
    /// oldest one that does.
    pub fn target(&self) -> Target {
        self.version.max(Target(FIRST_KERNEL))
    }

    /// The options of images that the kernel mounts.
    pub fn options(&self) -> Options {
        let compression = Some(Compression::of(self.choice().0));
        let mut options = Options::for_target(self.target()).with_compression(compression);
        if let Some(features) = &self.features {
            if !features.contains("big_pcluster") {
                options.cluster_bytes = BLOCK_BYTES;
            }
            options.tail_packing &= features.contains("ztailpacking");
            options.fragments &= features.contains("fragments");
        }
        options
    }

    /// Whether the kernel reads compressed inodes.
    pub fn has_metabox(&self) -> bool {
        let is_listed = self.features.as_ref().is_none_or(|features| features.contains("metabox"));
        is_listed && self.target().has_metabox()
    }

    /// The reason for the compression of [`RunningKernel::options`], as a clause.
    pub fn reason(&self) -> String {
        self.choice().1
    }

    /// The reason that the kernel does not mount images with this algorithm, as a clause; `None` if it does, or if the
    /// configuration is not known. Versions are the business of [`Target::decodes`].
    pub fn refuses(&self, algorithm: Algorithm) -> Option<String> {
        if let Some(reason) = &self.lacks_erofs {
            return Some(reason.clone());
        }
        let config = self.config.as_ref()?;
        let options = [option::ZIP, option::of_algorithm(algorithm)];
        let missing = options.into_iter().find(|option| !config.is_set(option))?;
        Some(format!("{missing} is not set in {}", config.path.display()))
    }

    /// The compression for images of this kernel, and the reason for it.
    fn choice(&self) -> (Method, String) {
        let zstd = option::of_algorithm(Algorithm::Zstd);
        if let Some(reason) = self.refuses(Algorithm::Zstd) {
            return (Method::Lz4Hc, reason);
        }
        if !self.version.decodes(Algorithm::Zstd) {
            let first = algorithm_kernel(Algorithm::Zstd);
            return (Method::Lz4Hc, format!("Linux before {first} has no Zstandard"));
        }
        match (&self.config, self.target().default_algorithm()) {
            (Some(config), _) => (Method::Zstd, format!("{zstd} is set in {}", config.path.display())),
            (None, Algorithm::Zstd) => {
                (Method::Zstd, "its configuration cannot be read, and its version has Zstandard".into())
            }
            (None, _) => (
                Method::Lz4Hc,
                "its configuration cannot be read, and many of its version have LZ4 only".into(),
            ),
        }
    }
}

/// Reads the configuration from the first file that has one.
fn read_config(root: &Path, release: &str) -> Option<Config> {
    let paths = [
        "proc/config.gz".to_owned(),
        format!("boot/config-{release}"),
        format!("lib/modules/{release}/config"),
        format!("lib/modules/{release}/build/.config"),
    ];
    paths.into_iter().find_map(|path| {
        let file = File::open(root.join(&path)).ok()?;
        let mut text = String::new();
        let read = match path.ends_with(".gz") {
            true => MultiGzDecoder::new(file).take(CONFIG_BYTES_MAX).read_to_string(&mut text),
            false => file.take(CONFIG_BYTES_MAX).read_to_string(&mut text),
        };
        read.ok()?;
        // A file without options is no configuration, and does not show that none is set.
        let is_config = text.lines().any(|line| line.starts_with("CONFIG_"));
        is_config.then(|| Config { path: Path::new("/").join(path), text })
    })
}

/// Returns the reason that the kernel has no EROFS; `None` if it has, or if that is not known.
fn lacks_erofs(root: &Path, release: &str, version: Target, config: Option<&Config>) -> Option<String> {
    if version < Target(FIRST_KERNEL) {
        return Some(format!("EROFS came with Linux {FIRST_KERNEL}"));
    }
    let registered = fs::read_to_string(root.join("proc/filesystems")).unwrap_or_default();
    if root.join("sys/fs/erofs").is_dir() || registered.split_whitespace().any(|name| name == "erofs") {
        return None;
    }
    match config.map(|config| (config.value(option::EROFS), &config.path)) {
        Some((None, path)) => return Some(format!("{} is not set in {}", option::EROFS, path.display())),
        Some((Some("y"), _)) => return None,
        _ => {}
    }
    // A container has no modules of its host, so only an existing list shows that a module is missing.
    let folder = Path::new("lib/modules").join(release);
    let installed = fs::read_to_string(root.join(&folder).join("modules.dep")).ok()?;
    let built_in = fs::read_to_string(root.join(&folder).join("modules.builtin")).unwrap_or_default();
    let is_there = |list: &str| list.lines().any(|line| line.contains("/erofs.ko"));
    if is_there(&installed) || is_there(&built_in) {
        return None;
    }
    Some(format!("no module erofs is in {}", Path::new("/").join(folder).display()))
}

/// The names in a directory; `None` if there are none.
fn names_in(directory: &Path) -> Option<BTreeSet<String>> {
    let entries = fs::read_dir(directory).ok()?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    Some(names.collect::<BTreeSet<_>>()).filter(|names| !names.is_empty())
}

#[cfg(test)]
mod tests;
