//! The options of `mkfs.erofs`: those that are taken, with what they set, and those that are refused.
//!
//! A new option of `image build` becomes one here by a row of the table.

use super::mkfs::{Mkfs, PROGRAM};
use super::mkfs_values::{
    exclude, set_block, set_chunks, set_clean, set_cluster, set_compressors, set_directories, set_filter,
    set_metadata, set_sort, set_strip, set_tar, set_times, set_uuid, set_xattr_tolerance,
};
use super::table::{Opt, Refused, Value, number, text};
use super::{extended, print_version};
use pagefold_control::error::Result;
use pagefold_image::format::features::incompat;
use pagefold_image_build::source::Whiteouts;
use pagefold_image_build::{InodeForm, Pattern};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// The option by which this program tells itself that standard input is an archive of SOURCE.
pub const ARCHIVED: &str = "--pagefold-archived";

/// The options.
pub const OPTIONS: &[Opt<Mkfs>] = &[
    Opt { name: "-V", value: Value::None, help: "print the version", set: set_version },
    Opt { name: "--version", value: Value::None, help: "print the version", set: set_version },
    Opt { name: "-h", value: Value::None, help: "print this help", set: set_help },
    Opt { name: "--help", value: Value::None, help: "print this help", set: set_help },
    Opt {
        name: ARCHIVED,
        value: Value::None,
        help: "",
        set: |mkfs, _| {
            mkfs.is_archived = true;
            Ok(())
        },
    },
    Opt { name: "-b", value: Value::Required("#"), help: "bytes of a block: 4096", set: set_block },
    Opt {
        name: "-d",
        value: Value::Required("#"),
        help: "how much to print, 0 to 9; 0: only errors",
        set: |mkfs, value| {
            mkfs.is_quiet |= number::<u8>(value)? == 0;
            Ok(())
        },
    },
    Opt {
        name: "-x",
        value: Value::Required("#"),
        help: "store attributes once that more than this many files have [default: 2]; below 0: leave all out",
        set: set_xattr_tolerance,
    },
    Opt {
        name: "-z",
        value: Value::Required("X[,level=Y][:...]"),
        help: "compress with lz4, lz4hc, lzma, deflate, libdeflate or zstd; further ones are for --compress-hints",
        set: set_compressors,
    },
    Opt {
        name: "-C",
        value: Value::Required("#"),
        help: "largest cluster, bytes [default: 4096]",
        set: set_cluster,
    },
    Opt {
        name: "-E",
        value: Value::Required("X[,...]"),
        help: "features: dedupe, fragments, ztailpacking, ^inline_data and others",
        set: |mkfs, value| extended::apply(mkfs, text(value)?),
    },
    Opt {
        name: "-L",
        value: Value::Required("X"),
        help: "name of the volume, up to 15 bytes",
        set: |mkfs, value| {
            mkfs.build.label = text(value)?.into();
            Ok(())
        },
    },
    Opt {
        name: "-m",
        value: Value::Required("#"),
        help: "compress inodes, in clusters of up to # bytes",
        set: set_metadata,
    },
    Opt {
        name: "-T",
        value: Value::Required("#"),
        help: "time of creation and of all files, seconds since 1970",
        set: |mkfs, value| {
            mkfs.time = Some(number(value)?);
            Ok(())
        },
    },
    Opt {
        name: "--all-time",
        value: Value::None,
        help: "-T is the time of all files too (default)",
        set: |mkfs, _| {
            mkfs.is_mkfs_time = false;
            Ok(())
        },
    },
    Opt {
        name: "--mkfs-time",
        value: Value::None,
        help: "-T is the time of creation only",
        set: |mkfs, _| {
            mkfs.is_mkfs_time = true;
            Ok(())
        },
    },
    Opt { name: "-U", value: Value::Required("X"), help: "UUID; or clear, or random", set: set_uuid },
    Opt { name: "--zD", value: Value::Optional("0|1"), help: "compress directories", set: set_directories },
    Opt {
        name: "--MZ",
        value: Value::Optional("0|[id]"),
        help: "nothing: inodes always lie together",
        set: nothing,
    },
    Opt {
        name: "--all-root",
        value: Value::None,
        help: "make root the owner of all files",
        set: |mkfs, _| {
            mkfs.build.all_root = true;
            Ok(())
        },
    },
    Opt { name: "--async-queue-limit", value: Value::Required("#"), help: "nothing", set: nothing },
    Opt {
        name: "--aufs",
        value: Value::None,
        help: "turn whiteouts .wh.NAME of layers into those of overlayfs",
        set: |mkfs, _| {
            mkfs.build.whiteouts = Some(Whiteouts::Overlay);
            Ok(())
        },
    },
    Opt {
        name: "--chunksize",
        value: Value::Required("#"),
        help: "store files in chunks of # bytes, equal ones once, uncompressed",
        set: set_chunks,
    },
    Opt {
        name: "--clean",
        value: Value::Optional("data"),
        help: "copy all data of a source that is an image",
        set: set_clean,
    },
    Opt {
        name: "--compress-hints",
        value: Value::Required("X"),
        help: "file with the clusters and compressors of files",
        set: |mkfs, value| {
            mkfs.hints = Some(value.into());
            Ok(())
        },
    },
    Opt {
        name: "--exclude-path",
        value: Value::Required("X"),
        help: "leave out this path of the source",
        set: |mkfs, value| exclude(mkfs, Pattern::of_path(text(value)?)),
    },
    Opt {
        name: "--exclude-regex",
        value: Value::Required("X"),
        help: "leave out paths that match an extended regular expression",
        set: |mkfs, value| exclude(mkfs, Pattern::regex(text(value)?)),
    },
    Opt {
        name: "--force-uid",
        value: Value::Required("#"),
        help: "make this user the owner of all files",
        set: |mkfs, value| {
            mkfs.build.further.owners.uid = Some(number(value)?);
            Ok(())
        },
    },
    Opt {
        name: "--force-gid",
        value: Value::Required("#"),
        help: "make this group the group of all files",
        set: |mkfs, value| {
            mkfs.build.further.owners.gid = Some(number(value)?);
            Ok(())
        },
    },
    Opt {
        name: "--uid-offset",
        value: Value::Required("#"),
        help: "add # to all numbers of users",
        set: |mkfs, value| {
            mkfs.build.further.owners.uid_offset = number(value)?;
            Ok(())
        },
    },
    Opt {
        name: "--file-contexts",
        value: Value::Required("X"),
        help: "take labels of SELinux from a file of file_contexts(5)",
        set: |mkfs, value| {
            mkfs.build.xattrs.file_contexts = Some(value.into());
            Ok(())
        },
    },
    Opt {
        name: "--fs-config-file",
        value: Value::Required("X"),
        help: "take owners, modes and capabilities of all files from a text",
        set: |mkfs, value| {
            mkfs.fs_config = Some(value.into());
            Ok(())
        },
    },
    Opt {
        name: "--gid-offset",
        value: Value::Required("#"),
        help: "add # to all numbers of groups",
        set: |mkfs, value| {
            mkfs.build.further.owners.gid_offset = number(value)?;
            Ok(())
        },
    },
    Opt {
        name: "--hard-dereference",
        value: Value::None,
        help: "store each hard link as a file",
        set: |mkfs, _| {
            mkfs.build.hard_dereference = true;
            Ok(())
        },
    },
    Opt {
        name: "--ignore-mtime",
        value: Value::None,
        help: "give files the time of creation where that makes inodes shorter",
        set: |mkfs, _| set_times(mkfs, InodeForm::Lossless, InodeForm::WithoutTimes),
    },
    Opt {
        name: "--preserve-mtime",
        value: Value::None,
        help: "keep the times of files (default)",
        set: |mkfs, _| set_times(mkfs, InodeForm::WithoutTimes, InodeForm::Lossless),
    },
    Opt {
        name: "--mount-point",
        value: Value::Required("X"),
        help: "the folder with which paths of --fs-config-file begin",
        set: |mkfs, value| {
            mkfs.mount_point = value.as_bytes().to_vec();
            Ok(())
        },
    },
    Opt {
        name: "--offset",
        value: Value::Required("#"),
        help: "where the image begins in FILE, bytes",
        set: |mkfs, value| {
            mkfs.build.further.offset_bytes = number(value)?;
            Ok(())
        },
    },
    Opt {
        name: "--ovlfs-strip",
        value: Value::Optional("0|1"),
        help: "remove whiteouts and attributes of overlayfs that SOURCE has; 0: keep them (default)",
        set: set_strip,
    },
    Opt {
        name: "--quiet",
        value: Value::None,
        help: "print only errors",
        set: |mkfs, _| {
            mkfs.is_quiet = true;
            Ok(())
        },
    },
    Opt {
        name: "--sort",
        value: Value::Required("path|none"),
        help: "order of data; none: an order of the builder's choice",
        set: set_sort,
    },
    Opt {
        name: "--tar",
        value: Value::Optional("f|i"),
        help: "SOURCE is a tar archive [default: -]; i: its contents stay there",
        set: set_tar,
    },
    Opt {
        name: "--ungzip",
        value: Value::Optional(""),
        help: "nothing: compressed archives are recognised",
        set: set_filter,
    },
    Opt {
        name: "--unxz",
        value: Value::Optional(""),
        help: "nothing: compressed archives are recognised",
        set: set_filter,
    },
    Opt {
        name: "--workers",
        value: Value::Required("#"),
        help: "number of threads [default: that of CPUs]",
        set: |mkfs, value| {
            mkfs.build.threads.threads = Some(number::<u16>(value)?.clamp(1, 256));
            Ok(())
        },
    },
    Opt {
        name: "--xattr-prefix",
        value: Value::Required("X"),
        help: "store long beginnings of names of attributes once (all that are worth it)",
        set: |mkfs, _| mkfs.require_if(true, incompat::XATTR_PREFIXES),
    },
    Opt {
        name: "--zfeature-bits",
        value: Value::Required("#"),
        help: "features of -E as bits",
        set: |mkfs, value| extended::apply_bits(mkfs, number(value)?),
    },
];

/// Those that are refused.
pub const REFUSED: &[Refused] = &[
    Refused {
        name: "--blobdev",
        why: "contents stay in the archive with --tar=i, or in images; else leave it out",
    },
    Refused { name: "--block-list-file", why: "Android's tools for updates need it; use their mkfs.erofs" },
    Refused { name: "--dsunit", why: "data begins at blocks of 4096 bytes; leave it out" },
    Refused { name: "--fsalignblks", why: "an image ends with its last block; make FILE longer afterwards" },
    Refused { name: "--gzinfo", why: "build a full image, with --tar=f" },
    Refused { name: "--incremental", why: "build the image again from all sources" },
    Refused { name: "--max-extent-bytes", why: "leave it out: an extent decodes to 12 MiB at most" },
    Refused {
        name: "--oci",
        why: "use 'pagefold image build oci://registry/name:tag FILE', for an image in a registry",
    },
    Refused { name: "--product-out", why: "Android's tools for updates need it; use their mkfs.erofs" },
    Refused { name: "--root-xattr-isize", why: "it reserves space for --incremental; leave it out" },
    Refused { name: "--s3", why: "copy the files from the bucket, and build an image from the directory" },
    Refused { name: "--vmdk-desc", why: "it is for images on several devices" },
    Refused {
        name: "--xattr-inode-digest",
        why: "leave it out; 'pagefold image digest' makes a digest of the image",
    },
];

fn nothing(_: &mut Mkfs, _: &OsStr) -> Result<()> {
    Ok(())
}

fn set_version(mkfs: &mut Mkfs, _: &OsStr) -> Result<()> {
    mkfs.print = Some(|| print_version(PROGRAM.name));
    Ok(())
}

fn set_help(mkfs: &mut Mkfs, _: &OsStr) -> Result<()> {
    mkfs.print = Some(|| PROGRAM.print_help());
    Ok(())
}
