//! Invariant: a page compresses into any destination that is long enough; liblz4 and the slow decoder, which checks the
//! rules for the end of a block, decompress it to the same page; and the compressor writes nothing after the
//! destination. The input is the destination's length and the bytes that fill the page.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pagefold_codec::{Codec, CodecSpec};
use pagefold_fuzz::codec::guarded;
use pagefold_fuzz::codec::lz4_slow::{Extent, decode};

const PAGE_SIZE: usize = 4096;

fuzz_target!(|data: &[u8]| {
    let Some((capacity, fill)) = data.split_first_chunk::<2>() else { return };
    if fill.is_empty() {
        return;
    }
    let mut page: Vec<u8> = fill.iter().take(PAGE_SIZE).copied().collect();
    // Short inputs repeat, each time with one byte changed, so that there are many sequences.
    while page.len() < PAGE_SIZE {
        let at = page.len();
        page.extend(fill.iter().take(PAGE_SIZE - at));
        page[at] ^= at as u8;
    }
    let mut stream = Codec::new(&CodecSpec::named("lz4")).unwrap().stream().unwrap();
    for capacity in [usize::from(u16::from_le_bytes(*capacity)) % (2 * PAGE_SIZE + 1), 2 * PAGE_SIZE] {
        let (result, dst) = guarded(capacity, |dst| stream.compress(&page, dst));
        let Ok(len) = result else {
            assert!(capacity < PAGE_SIZE + PAGE_SIZE / 255 + 16, "{capacity} bytes are enough");
            continue;
        };
        let mut decompressed = vec![0; PAGE_SIZE];
        assert_eq!(stream.decompress(&dst[..len], &mut decompressed), Ok(PAGE_SIZE));
        assert!(decompressed == page);
        assert!(decode(&dst[..len], PAGE_SIZE, PAGE_SIZE, Extent::All).as_deref() == Some(&page[..]));
    }
});
