//! Invariant: whatever is in a file of the cache of remote objects, reading it does not panic, returns blocks of the right
//! length, and returns a block whose bytes were damaged only if they are the right ones. Blocks that nothing has touched are
//! found, and after all of it the file can be written and read.
//!
//! The first byte chooses between raw bytes as the file and a recipe. A recipe contains the length of the object, the
//! blocks that are stored, and the offsets and values of bytes that overwrite parts of the file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagefold_fuzz::{damages, media};
use pagefold_remote::cache::{Cache, CachedObject, Key, MIN_SIZE_BYTES};
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

const BLOCK: u64 = 32 << 10;

/// One folder for the whole run, which the process that ends last leaves behind.
static CACHE: LazyLock<(PathBuf, Arc<Cache>)> = LazyLock::new(|| {
    let folder = media::folder("cache");
    let cache = Cache::open(&folder, MIN_SIZE_BYTES, Box::new(|_| ())).unwrap();
    (folder, cache)
});

fuzz_target!(|data: &[u8]| {
    let Some((&choice, data)) = data.split_first() else { return };
    let key = Key::of_digest("fuzz", "", "");
    let (folder, cache) = &*CACHE;
    let path = folder.join(key.file_name());
    if choice & 1 == 0 {
        fs::write(&path, data).unwrap();
        if let Some(found) = cache.find(&key) {
            check_lengths(&found);
        }
        let len_bytes = u64::from_le_bytes(data.get(16..24).map_or([1; 8], |b| b.try_into().unwrap()));
        cache.object(&key, len_bytes).iter().for_each(check_lengths);
        cache.used_bytes();
        cache.remove(&key);
        return;
    }
    let mut recipe = data.iter().copied();
    let len_bytes = 1 + u64::from(recipe.next().unwrap_or(0)) * 4099;
    let object = cache.object(&key, len_bytes).unwrap();
    let stored = u64::from(recipe.next().unwrap_or(0)) % (object.blocks() + 1);
    object.write(0, &(0..stored).map(|block| right(len_bytes, block)).collect::<Vec<_>>());
    let damaged = damage(&File::options().write(true).open(&path).unwrap(), &mut recipe);
    let touches = |range: &Range<u64>| damaged.iter().any(|d| d.start < range.end && range.start < d.end);
    for object in
        [Some(object), cache.find(&key)].into_iter().flatten().filter(|o| o.len_bytes() == len_bytes)
    {
        for block in 0..object.blocks() {
            let (checksum, data) = places(len_bytes, block);
            let read = object.read(&(block..block + 1));
            match read.first() {
                Some(_) if touches(&checksum) => {}
                Some(bytes) => assert!(block < stored && *bytes == right(len_bytes, block)),
                None => assert!(block >= stored || touches(&checksum) || touches(&data)),
            }
        }
    }
    let object = cache.object(&key, len_bytes).unwrap();
    object.write(0, &[right(len_bytes, 0)]);
    assert!(object.read(&(0..1)) == [right(len_bytes, 0)]);
    cache.remove(&key);
});

fn right(len_bytes: u64, block: u64) -> Vec<u8> {
    vec![block as u8 + 1; (len_bytes - block * BLOCK).min(BLOCK) as usize]
}

fn check_lengths(object: &CachedObject) {
    let blocks = object.blocks();
    let ends = [0..blocks.min(40), blocks.saturating_sub(40)..blocks];
    for block in ends.into_iter().flatten() {
        for bytes in object.read(&(block..block + 1)) {
            assert_eq!(bytes.len() as u64, (object.len_bytes() - block * BLOCK).min(BLOCK));
        }
    }
}

/// Where the checksum and the bytes of a block are, by docs/formats/remote-cache.md.
fn places(len_bytes: u64, block: u64) -> (Range<u64>, Range<u64>) {
    let data_start = (4096 + len_bytes.div_ceil(16 * BLOCK) * 512).next_multiple_of(4096);
    let checksum = 4096 + block / 16 * 512 + 256 + block % 16 * 16;
    let data = data_start + block * BLOCK;
    (checksum..checksum + 16, data..data_start + ((block + 1) * BLOCK).min(len_bytes))
}

/// Overwrites bytes of the file behind the page of the header, and returns their ranges.
fn damage(file: &File, recipe: &mut impl Iterator<Item = u8>) -> Vec<Range<u64>> {
    let mut damaged = Vec::new();
    for (at, byte) in damages(recipe) {
        let at = 4096 + at as u64 * if byte & 1 == 1 { 16 } else { 1 };
        let count = u64::from(byte >> 3) + 1;
        file.write_all_at(&vec![byte; count as usize], at).unwrap();
        damaged.push(at..at + count);
    }
    damaged
}
