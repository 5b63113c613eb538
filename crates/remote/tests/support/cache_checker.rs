//! A second reader of the files of a cache, made from docs/formats/remote-cache.md alone: it compares all that the cache
//! would be believed with the source. It is slow, and shares no code with the cache.

#![allow(dead_code, reason = "each test program uses a part of this module")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::path::Path;
use twox_hash::XxHash3_128;

const BLOCK: usize = 32 << 10;

/// Compares the blocks of all files whose object has the length of `source`. Returns how many there are; panics if one
/// differs from the source.
pub fn check(folder: &Path, source: &[u8]) -> usize {
    let mut believed = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "ranges1") {
            believed += check_file(&path, source);
        }
    }
    believed
}

fn check_file(path: &Path, source: &[u8]) -> usize {
    // A file may be removed at this moment.
    let Ok(file) = std::fs::read(path) else { return 0 };
    let number = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
    let long = |at: usize| file.get(at..at + 16).map(|bytes| u128::from_le_bytes(bytes.try_into().unwrap()));
    let has_header = file.len() >= 80
        && file[..8] == *b"PFRANGES"
        && file[8..16] == [1, 0, 0, 0, 0, 0x80, 0, 0]
        && long(64) == Some(XxHash3_128::oneshot(&file[..64]))
        && number(16) == source.len() as u64;
    if !has_header {
        return 0;
    }
    let key: String = file[24..56].iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(path.file_name().unwrap().to_str().unwrap(), format!("{key}.ranges1"));
    let groups = source.len().div_ceil(16 * BLOCK);
    let data_start = (4096 + 512 * groups).div_ceil(4096) * 4096;
    let mut believed = 0;
    for (block, right) in source.chunks(BLOCK).enumerate() {
        let checksum = long(4096 + block / 16 * 512 + 256 + block % 16 * 16).unwrap_or(0);
        let at = data_start + block * BLOCK;
        let Some(bytes) = file.get(at..at + right.len()) else { continue };
        let seed = number(24).wrapping_add(block as u64);
        if checksum != 0 && XxHash3_128::oneshot_with_seed(seed, bytes) == checksum {
            assert!(bytes == right, "block {block} of {} is wrong, and would be believed", path.display());
            believed += 1;
        }
    }
    believed
}
