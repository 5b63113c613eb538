//! Invariant: a page compresses with the codec `numbers` and decompresses to the same page, a packed one by the slow twin
//! too; and any bytes decompress as the slow twin says, or as an LZ4 block. The input is a length of lanes, and numbers that
//! fill the page; and it is compressed bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pagefold_codec::{Codec, CodecSpec, Stream};
use pagefold_fuzz::codec::numbers_slow;

const PAGE_SIZE: usize = 4096;

fuzz_target!(|data: &[u8]| {
    let mut stream = Codec::new(&CodecSpec::named("numbers")).unwrap().stream().unwrap();
    decode(&mut *stream, data);
    let Some((&kind, fill)) = data.split_first() else { return };
    let page = page(kind, fill);
    let mut bytes = vec![0xee; 2 * PAGE_SIZE];
    let len = stream.compress(&page, &mut bytes).unwrap();
    bytes.truncate(len);
    assert!(decode(&mut *stream, &bytes).as_deref() == Some(&page[..]));
    // The header alone with other bytes behind it.
    if bytes.len() > fill.len() {
        bytes[..fill.len()].copy_from_slice(fill);
        decode(&mut *stream, &bytes);
    }
});

/// Decompresses bytes, and compares with the slow twin if they are a packed page.
fn decode(stream: &mut dyn Stream, bytes: &[u8]) -> Option<Vec<u8>> {
    let mut page = vec![0xa5; PAGE_SIZE];
    let decoded = stream.decompress(bytes, &mut page).ok().map(|len| page[..len].to_vec());
    if bytes.first().is_some_and(|kind| (1..=8).contains(kind)) {
        assert!(decoded == numbers_slow::decode(bytes));
    }
    decoded
}

/// Makes a page of lanes: the bytes of the input are differences, or numbers, or the page itself.
fn page(kind: u8, fill: &[u8]) -> Vec<u8> {
    let lane_len = 1 << (kind & 3);
    let (mut number, mut page) = (0_u64, Vec::new());
    while page.len() < PAGE_SIZE {
        let at = page.len() / lane_len;
        let byte = fill.get(at % fill.len().max(1)).copied().unwrap_or(kind);
        let scaled = u64::from(byte) << (kind >> 4 & 7);
        number = if kind & 4 != 0 { number.wrapping_add(scaled) } else { scaled.wrapping_sub(77) };
        if kind & 8 != 0 && at.is_multiple_of(fill.len() + 1) {
            number = number.rotate_left(byte.into());
        }
        page.extend(&number.to_le_bytes()[..lane_len]);
    }
    page.truncate(PAGE_SIZE);
    page
}
