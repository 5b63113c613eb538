//! Kernels as folders with the files that the probe reads.

use super::*;
use flate2::Compression as GzipLevel;
use flate2::write::GzEncoder;
use std::io::Write;

const FULL: &str = "CONFIG_EROFS_FS=m\nCONFIG_EROFS_FS_ZIP=y\nCONFIG_EROFS_FS_ZIP_ZSTD=y\n";
const MODULES: &str = "kernel/fs/ext4/ext4.ko: \nkernel/fs/erofs/erofs.ko.xz: kernel/fs/netfs/netfs.ko.xz\n";

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), GzipLevel::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

/// Probes a kernel of this release with these files.
fn probe(release: &str, files: &[(&str, &[u8])]) -> RunningKernel {
    let root = tempfile::tempdir().unwrap();
    let release_line = format!("{release}\n");
    for (path, bytes) in files.iter().chain([&("proc/sys/kernel/osrelease", release_line.as_bytes())]) {
        let path = root.path().join(path.replace("RELEASE", release));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    RunningKernel::probe_in(root.path()).unwrap()
}

/// The compression and the reason for it.
fn chosen(release: &str, files: &[(&str, &[u8])]) -> (String, String) {
    let kernel = probe(release, files);
    (kernel.options().compression.unwrap().to_string(), kernel.reason())
}

#[track_caller]
fn expect(release: &str, files: &[(&str, &[u8])], compression: &str, reason: &str) {
    let (found, why) = chosen(release, files);
    assert_eq!((found.as_str(), why.contains(reason)), (compression, true), "{release}: {why}");
}

#[test]
fn the_configuration_decides_wherever_it_is() {
    let zipped = gzip(FULL);
    for (path, bytes) in [
        ("proc/config.gz", zipped.as_slice()),
        ("boot/config-RELEASE", FULL.as_bytes()),
        ("lib/modules/RELEASE/config", FULL.as_bytes()),
        ("lib/modules/RELEASE/build/.config", FULL.as_bytes()),
    ] {
        let shown = format!("CONFIG_EROFS_FS_ZIP_ZSTD is set in /{}", path.replace("RELEASE", "6.12.1-x"));
        expect("6.12.1-x", &[(path, bytes)], "zstd:12", &shown);
        expect("6.10.0", &[(path, bytes)], "zstd:12", "is set in");
        // A vendor may have added the option to an older version, of which nothing else is known.
        expect("6.9.0", &[(path, bytes)], "lz4hc:9", "before 6.10");
    }
}

#[test]
fn a_kernel_without_an_option_gets_lz4() {
    let config = |text: &str| gzip(text);
    for (text, reason) in [
        (
            "CONFIG_EROFS_FS=y\nCONFIG_EROFS_FS_ZIP=y\n",
            "CONFIG_EROFS_FS_ZIP_ZSTD is not set in /proc/config.gz",
        ),
        ("CONFIG_EROFS_FS=y\n# CONFIG_EROFS_FS_ZIP is not set\n", "CONFIG_EROFS_FS_ZIP is not set"),
        ("# CONFIG_EROFS_FS is not set\nCONFIG_EXT4_FS=y\n", "CONFIG_EROFS_FS is not set in"),
        // The name of another option begins with that of this one.
        ("CONFIG_EROFS_FS=y\nCONFIG_EROFS_FS_ZIP=y\nCONFIG_EROFS_FS_ZIP_ZSTD_X=y\n", "ZSTD is not set"),
    ] {
        expect("6.18.0", &[("proc/config.gz", &config(text))], "lz4hc:9", reason);
    }
    let kernel =
        probe("6.18.0", &[("proc/config.gz", &config("CONFIG_EROFS_FS=y\nCONFIG_EROFS_FS_ZIP=y\n"))]);
    assert_eq!(kernel.refuses(Algorithm::Lz4), None);
    assert!(kernel.refuses(Algorithm::MicroLzma).unwrap().contains("CONFIG_EROFS_FS_ZIP_LZMA"));
}

#[test]
fn a_kernel_whose_module_is_not_installed_gets_lz4() {
    let (config, other) = (("boot/config-RELEASE", FULL.as_bytes()), b"kernel/fs/ext4/ext4.ko:\n".as_slice());
    let modules = "lib/modules/RELEASE/modules.dep";
    expect("6.18.0", &[config, (modules, other)], "lz4hc:9", "no module erofs is in /lib/modules/6.18.0");
    expect("6.18.0", &[(modules, other)], "lz4hc:9", "no module erofs");
    expect("6.18.0", &[config, (modules, MODULES.as_bytes())], "zstd:12", "is set");
    let built_in = ("lib/modules/RELEASE/modules.builtin", b"kernel/fs/erofs/erofs.ko\n".as_slice());
    expect("6.18.0", &[built_in, (modules, other)], "zstd:12", "its version has Zstandard");
    let registered = ("proc/filesystems", b"nodev\tproc\n\terofs\n".as_slice());
    expect("6.18.0", &[registered, (modules, other)], "zstd:12", "its version has Zstandard");
}

#[test]
fn without_a_configuration_the_version_decides() {
    expect("6.12.94-amd64", &[], "zstd:12", "its configuration cannot be read");
    expect("6.11.0", &[], "lz4hc:9", "LZ4 only");
    expect("5.10.0", &[], "lz4hc:9", "before 6.10");
    // Neither file is a configuration.
    expect(
        "6.12.0",
        &[("proc/config.gz", b"damaged"), ("boot/config-RELEASE", b"")],
        "zstd:12",
        "cannot be read",
    );
}

#[test]
fn kernels_older_than_erofs_get_images_for_the_first_one_with_it() {
    let kernel = probe("4.19.0", &[]);
    assert_eq!(kernel.target(), Target::new(5, 4));
    assert!(kernel.reason().contains("EROFS came with Linux 5.4"));
    assert!(kernel.options().check().is_ok());
}

#[test]
fn features_that_the_kernel_does_not_list_are_not_used() {
    let with = |names: &[&str]| {
        let files: Vec<_> = names.iter().map(|name| format!("sys/fs/erofs/features/{name}")).collect();
        let files: Vec<_> = files.iter().map(|path| (path.as_str(), b"supported\n".as_slice())).collect();
        let options = probe("6.12.0", &files).options();
        (options.cluster_bytes, options.tail_packing)
    };
    assert_eq!(with(&["big_pcluster", "ztailpacking"]), (128 << 10, true));
    assert_eq!(with(&["big_pcluster"]), (128 << 10, false));
    assert_eq!(with(&["zero_padding"]), (4096, false));
    assert_eq!(with(&[]), (128 << 10, true));
}

#[test]
fn a_version_that_is_none_is_an_error() {
    let root = tempfile::tempdir().unwrap();
    assert!(RunningKernel::probe_in(root.path()).is_err());
    fs::create_dir_all(root.path().join("proc/sys/kernel")).unwrap();
    fs::write(root.path().join("proc/sys/kernel/osrelease"), "plan9\n").unwrap();
    assert!(RunningKernel::probe_in(root.path()).unwrap_err().to_string().contains("'plan9'"));
}
