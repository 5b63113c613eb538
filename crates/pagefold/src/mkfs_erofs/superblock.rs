//! The superblock as `dump.erofs -s` prints it, and as udev reads it.

use crate::image::overview::uuid;
use pagefold_control::text::time_text;
use pagefold_image::format::features::{self, compat, incompat};
use pagefold_image::format::superblock::MAGIC;
use pagefold_image::read::superblock::Superblock;
use pagefold_image::tree_stats::algorithm_name;

/// Bytes of the superblock, and of one of its extension slots.
const BASE_BYTES: u64 = 128;
const SLOT_BYTES: u64 = 16;

/// Prints the fields, a row each.
pub fn text(superblock: &Superblock) -> String {
    let mut text = String::new();
    let mut row = |name: &str, value: String| text.push_str(&format!("{:<45} {value}\n", format!("{name}:")));
    row("Filesystem magic number", format!("{MAGIC:#X}").replace("0X", "0x"));
    row("Filesystem blocksize", superblock.block_bytes().to_string());
    row("Filesystem blocks", superblock.blocks.to_string());
    row("Filesystem inode metadata start block", superblock.meta_blkaddr.to_string());
    row("Filesystem shared xattr metadata start block", superblock.xattr_blkaddr.to_string());
    row("Filesystem root nid", superblock.root_nid.0.to_string());
    if let Some(nid) = superblock.packed_nid {
        row("Filesystem packed nid", nid.0.to_string());
    }
    if let Some(nid) = superblock.metabox_nid {
        row("Filesystem metabox nid", nid.0.to_string());
    }
    if superblock.incompat & incompat::COMPR_CFGS != 0 {
        let names: Vec<_> = superblock.algorithms.iter().map(algorithm_name).collect();
        row("Filesystem compr_algs", names.join(" "));
    } else {
        row("Filesystem lz4_max_distance", superblock.algorithms.lz4_window_bytes.to_string());
    }
    let slots = u64::from(superblock.metabox_nid.is_some());
    row("Filesystem sb_size", (BASE_BYTES + slots * SLOT_BYTES).to_string());
    row("Filesystem inode count", superblock.inos.to_string());
    let created = superblock.epoch.saturating_add(superblock.build_time.into());
    row("Filesystem created", date(created));
    row("Filesystem compatible features", compatible(superblock.compat));
    row("Filesystem incompatible features", names(superblock.incompat, &incompat::ALL));
    row("Filesystem UUID", uuid(&superblock.uuid));
    if superblock.incompat != 0 {
        row("Required upstream Linux kernel version", superblock.required_kernel().to_string());
    }
    text
}

/// The identity of the image, as blkid(8) prints it for udev.
pub fn udev(superblock: &Superblock) -> String {
    let uuid = uuid(&superblock.uuid);
    let label = superblock.volume_name();
    // udev(7) replaces other characters in the same way.
    let is_safe = |byte: &u8| byte.is_ascii_alphanumeric() || b"#+-.:=@_".contains(byte);
    let label: String =
        label.iter().map(|byte| if is_safe(byte) { char::from(*byte) } else { '_' }).collect();
    let label = if label.is_empty() { label } else { format!("ID_FS_LABEL={label}\n") };
    format!("{label}ID_FS_UUID={uuid}\nID_FS_UUID_ENC={uuid}\nID_FS_TYPE=erofs\nID_FS_USAGE=filesystem\n")
}

/// The names of the bits, each with a blank after it. A bit with two meanings has two names.
fn names(bits: u32, table: &[features::Feature]) -> String {
    let (known, _) = features::split(bits, table);
    known.iter().map(|feature| feature.name.replace('/', " ") + " ").collect()
}

fn compatible(bits: u32) -> String {
    names(bits, &compat::ALL).replace("sb_chksum", "sb_csum").replace("xattr_filter", "xattr_name_filter")
}

/// The time as ctime(3) prints it, in UTC.
fn date(seconds: i64) -> String {
    const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let weekday = WEEKDAYS[seconds.div_euclid(86_400).rem_euclid(7) as usize];
    let text = time_text(seconds);
    let parts = || {
        let (day, time) = text.split_once(' ')?;
        let mut numbers = day.rsplitn(3, '-');
        let day: u32 = numbers.next()?.parse().ok()?;
        let month: usize = numbers.next()?.parse().ok()?;
        let month = MONTHS.get(month.checked_sub(1)?)?;
        Some(format!("{weekday} {month} {day:>2} {time} {}", numbers.next()?))
    };
    parts().unwrap_or_else(|| text.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_ctime() {
        assert_eq!(date(0), "Thu Jan  1 00:00:00 1970");
        assert_eq!(date(1_795_975_823), "Sun Nov 29 18:10:23 2026");
        assert_eq!(date(-1), "Wed Dec 31 23:59:59 1969");
    }

    #[test]
    fn bits_have_the_names_of_erofs_utils() {
        assert_eq!(names(0x23, &incompat::ALL), "lz4_0padding compr_cfgs big_pcluster fragments dedupe ");
        assert_eq!(compatible(0x3), "sb_csum mtime ");
    }
}
