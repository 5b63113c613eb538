//! The values of options of `mkfs.erofs`.

use super::compressor::Compressor;
use super::mkfs::Mkfs;
use super::table::{number, text};
use crate::cli::values;
use pagefold_control::error::{CliError, Result};
use pagefold_image::format::features::{self, incompat};
use pagefold_image_build::{BLOCK_BYTES, CHUNK_BYTES_MAX, CLUSTER_BYTES_MAX, InodeForm, Pattern};
use pagefold_sys::entropy::random_u64;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

pub fn set_block(mkfs: &mut Mkfs, value: &OsStr) -> Result<()> {
    mkfs.block_bytes = Some(number(value)?);
    Ok(())
}

pub fn set_xattr_tolerance(mkfs: &mut Mkfs, value: &OsStr) -> Result<()> {
    let tolerance: i32 = number(value)?;
    mkfs.build.xattrs.no_xattrs = tolerance < 0;
    if let Ok(most) = u32::try_from(tolerance) {
        mkfs.build.further.form.xattr_shared_min = most.saturating_add(1);
    }
    Ok(())
}

pub fn set_compressors(mkfs: &mut Mkfs, value: &OsStr) -> Result<()> {
    mkfs.compressors = Compressor::parse_all(text(value)?)?;
    for compressor in &mkfs.compressors {
        let kernel = features::algorithm_kernel(compressor.compression.method.algorithm());
        mkfs.kernel = mkfs.kernel.max(kernel);
    }
    Ok(())
}

pub fn set_chunks(mkfs: &mut Mkfs, value: &OsStr) -> Result<()> {
    let bytes = values::bytes("the size", text(value)?)?;
    let is_possible =
        |bytes: &u32| bytes.is_power_of_two() && (BLOCK_BYTES..=CHUNK_BYTES_MAX).contains(bytes);
    let bytes = u32::try_from(bytes).ok().filter(is_possible).ok_or_else(|| {
        CliError::usage(format!("chunks of {bytes} bytes: choose a power of two, 4096 to {CHUNK_BYTES_MAX}"))
    })?;
    mkfs.chunk_bytes = Some(bytes);
    mkfs.require_if(true, incompat::CHUNKED_FILE)
}

/// The length of a cluster in a value, bytes.
fn cluster(value: &str) -> Result<u32> {
    let bytes = values::bytes("the size", value)?;
    let is_possible =
        bytes > 0 && bytes.is_multiple_of(BLOCK_BYTES.into()) && bytes <= CLUSTER_BYTES_MAX.into();
    let bytes = u32::try_from(bytes).ok().filter(|_| is_possible);
    bytes.ok_or_else(|| {
        CliError::usage(format!("clusters of {value} bytes: choose a multiple of 4096, up to 1048576"))
    })
}

pub fn set_cluster(mkfs: &mut Mkfs, value: &OsStr) -> Result<()> {
    let bytes = cluster(text(value)?)?;
    mkfs.cluster_bytes = Some(bytes);
    mkfs.require_if(bytes > BLOCK_BYTES, incompat::BIG_PCLUSTER)
}

pub fn set_metadata(mkfs: &mut Mkfs, value: &OsStr) -> Result<()> {
    let value = text(value)?;
    if value.contains(':') {
        return Err(CliError::usage("metadata is compressed as files are; leave out the compressor"));
    }
    cluster(value)?;
    mkfs.build.compressed_metadata = true;
    mkfs.build.no_compressed_metadata = false;
    mkfs.require_if(true, incompat::METABOX)
}

pub fn set_uuid(mkfs: &mut Mkfs, value: &OsStr) -> Result<()> {
    let uuid = match text(value)? {
        "clear" => [0; 16],
        "random" => random_uuid()?,
        text => parse_uuid(text).ok_or_else(|| {
            CliError::usage(format!("'{text}' is no UUID, as c1b9d5a2-f162-11cf-9ece-0020afc76f16 is"))
        })?,
    };
    mkfs.build.further.form.uuid = Some(uuid);
    Ok(())
}

fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let groups: Vec<_> = text.split('-').map(str::len).collect();
    let digits = text.replace('-', "");
    let is_uuid = groups == [8, 4, 4, 4, 12] && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_uuid.then(|| u128::from_str_radix(&digits, 16).ok().map(u128::to_be_bytes)).flatten()
}

/// A UUID of version 4, RFC 9562.
fn random_uuid() -> Result<[u8; 16]> {
    let bits = u128::from(random_u64()?) << 64 | u128::from(random_u64()?);
    let mut bytes = bits.to_be_bytes();
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Ok(bytes)
}

/// Directories are compressed in the packed file.
pub fn set_directories(mkfs: &mut Mkfs, value: &OsStr) -> Result<()> {
    let on = value != "0";
    mkfs.build.no_compressed_directories = !on;
    if on {
        mkfs.build.no_fragments = false;
    }
    mkfs.require_if(on, incompat::FRAGMENTS)
}

pub fn set_clean(mkfs: &mut Mkfs, value: &OsStr) -> Result<()> {
    mkfs.is_clean = matches!(text(value)?, "" | "data");
    match mkfs.is_clean {
        true => Ok(()),
        false => Err(CliError::usage("only data is possible: the image has all contents of its source")),
    }
}

pub fn exclude(mkfs: &mut Mkfs, pattern: std::result::Result<Pattern, String>) -> Result<()> {
    mkfs.build.further.exclude.push(pattern.map_err(CliError::usage)?);
    Ok(())
}

/// Changes the form of inodes from one to another, unless a feature has forced a third one.
pub fn set_times(mkfs: &mut Mkfs, from: InodeForm, to: InodeForm) -> Result<()> {
    let form = &mut mkfs.build.further.form.inodes;
    if *form == from {
        *form = to;
    }
    Ok(())
}

pub fn set_sort(mkfs: &mut Mkfs, value: &OsStr) -> Result<()> {
    mkfs.build.sort = match text(value)? {
        "path" => "path".into(),
        "none" => "similarity".into(),
        other => return Err(CliError::usage(format!("'{other}' is no order; there are path and none"))),
    };
    Ok(())
}

pub fn set_tar(mkfs: &mut Mkfs, value: &OsStr) -> Result<()> {
    mkfs.is_tar = true;
    mkfs.build.further.is_index = match text(value)? {
        "" | "f" => false,
        "i" => true,
        mode => {
            return Err(CliError::usage(format!("={mode} is not possible; use --tar=f or --tar=i")));
        }
    };
    Ok(())
}

pub fn set_strip(mkfs: &mut Mkfs, value: &OsStr) -> Result<()> {
    mkfs.build.xattrs.strip_overlay = match value.as_bytes() {
        b"" | b"1" => true,
        b"0" => false,
        _ => return Err(CliError::usage("the value is 0 or 1")),
    };
    Ok(())
}

pub fn set_filter(_: &mut Mkfs, value: &OsStr) -> Result<()> {
    match value.is_empty() {
        true => Ok(()),
        false => Err(CliError::usage("the decompressed archive is not kept; leave out the file")),
    }
}
