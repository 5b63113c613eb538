//! 842 streams: assembled by hand from the format's description, hostile, and of the crate's own compressor. Both
//! decoders read each.

use crate::support::c842_reference::decode;
use pagefold_codec::c842::{C842Error, Workspace, compress, compress_bound, decompress};
use proptest::prelude::*;

/// Writes bits into bytes, and the end of a stream.
#[derive(Default)]
struct Bits(Vec<bool>);

impl Bits {
    fn put(mut self, number: u32, count: u32) -> Self {
        self.0.extend((0..count).rev().map(|bit| number >> bit & 1 == 1));
        self
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        for byte in bytes {
            self = self.put(u32::from(*byte), 8);
        }
        self
    }

    fn padded(&self) -> Vec<u8> {
        let mut bits = self.0.clone();
        bits.resize(bits.len().next_multiple_of(64), false);
        bits.chunks(8).map(|byte| byte.iter().fold(0, |all, bit| all << 1 | u8::from(*bit))).collect()
    }

    /// The stream with an end whose checksum is that of `output`.
    fn end(self, output: &[u8]) -> Vec<u8> {
        let mut crc = 0u32;
        for byte in output {
            crc ^= u32::from(*byte) << 24;
            (0..8).for_each(|_| crc = crc << 1 ^ if crc >> 31 == 1 { 0x04c1_1db7 } else { 0 });
        }
        self.put(0x1e, 5).put(crc, 32).padded()
    }
}

/// A stream that begins with a phrase of plain bytes.
fn after(phrase: &[u8; 8]) -> Bits {
    Bits::default().put(0, 5).bytes(phrase)
}

/// Checks that both decoders have the same result with this room, and write nothing else. Returns it.
fn agree(stream: &[u8], room: usize) -> Result<Vec<u8>, C842Error> {
    let mut out = vec![0x5a; room + 16];
    let fast = decompress(stream, &mut out[..room]).map(|len| out[..len].to_vec());
    assert_eq!(fast, decode(stream, room), "{stream:02x?}");
    assert_eq!(out[room..], [0x5a; 16]);
    fast
}

/// Checks that both decoders decode what `bits` and an end are to `expect`.
fn reads(bits: Bits, expect: &[u8]) {
    let stream = bits.end(expect);
    assert_eq!(agree(&stream, expect.len()).as_deref(), Ok(expect));
    assert_eq!(agree(&stream, expect.len() + 9).as_deref(), Ok(expect));
    if let Some(room) = expect.len().checked_sub(1) {
        assert_eq!(agree(&stream, room), Err(C842Error::OutputOverrun));
    }
}

/// Checks that both decoders refuse the stream.
fn fails(stream: &[u8], error: C842Error) {
    assert_eq!(agree(stream, 4096), Err(error));
}

#[test]
fn the_empty_stream_is_an_end() {
    reads(Bits::default(), b"");
    assert_eq!(agree(&[0xf0, 0, 0, 0, 0, 0, 0, 0], 0), Ok(vec![]));
    fails(&[], C842Error::InputOverrun);
    fails(&[0xf0, 0, 0, 0], C842Error::InputOverrun);
}

#[test]
fn the_example_of_the_documentation_decodes() {
    let bits = after(b"abcdefgh").put(0x1b, 5).put(0, 6).put(0x1d, 5).put(4, 3).bytes(b"abcd");
    reads(bits, b"abcdefghabcdefghabcd");
}

#[test]
fn each_way_to_write_a_half_decodes_in_each_half() {
    // Pairs "ab" "cd" "ef" "gh" are 0 to 3, quads "abcd" "efgh" are 0 and 1.
    let put = |bits: Bits, way: u32| match way {
        0 => bits.bytes(b"wxyz"),
        1 => bits.bytes(b"wx").put(2, 8),
        2 => bits.put(1, 8).bytes(b"wx"),
        3 => bits.put(3, 8).put(0, 8),
        _ => bits.put(1, 9),
    };
    let decoded: [&[u8]; 5] = [b"wxyz", b"wxef", b"cdwx", b"ghab", b"efgh"];
    for first in 0..5 {
        for second in 0..5 {
            let bits = put(put(after(b"abcdefgh").put(5 * first + second, 5), first), second);
            let halves = [decoded[first as usize], decoded[second as usize]].concat();
            reads(bits, &[b"abcdefgh", &halves[..]].concat());
        }
    }
    reads(after(b"abcdefgh").put(0x19, 5).put(0, 8), b"abcdefghabcdefgh");
}

#[test]
fn repeats_and_zeros_decode() {
    for count in [1usize, 2, 63, 64] {
        let bits = after(b"abcdefgh").put(0x1b, 5).put(count as u32 - 1, 6);
        reads(bits, &b"abcdefgh".repeat(count + 1));
    }
    reads(Bits::default().put(0x1c, 5).put(0x1b, 5).put(2, 6), &[0; 32]);
    fails(&Bits::default().put(0x1b, 5).put(0, 6).end(b""), C842Error::NotYetWritten);
}

#[test]
fn short_phrases_end_a_stream() {
    for count in 1..8 {
        let bytes = &b"ABCDEFG"[..count];
        let bits = || after(b"abcdefgh").put(0x1d, 5).put(count as u32, 3).bytes(bytes);
        reads(bits(), &[b"abcdefgh", bytes].concat());
        fails(&bits().put(0x1c, 5).end(b"x"), C842Error::NotAtEnd);
    }
    fails(&Bits::default().put(0x1d, 5).put(0, 3).end(b""), C842Error::EmptyShortPhrase);
}

#[test]
fn an_index_names_only_what_was_written() {
    for (way, index, bits, expect) in [(4, 1, 9, Ok(())), (4, 2, 9, Err(())), (4, 511, 9, Err(()))] {
        let stream = after(b"abcdefgh").put(5 * way, 5).put(index, bits).bytes(b"wxyz");
        match expect {
            Ok(()) => reads(stream, b"abcdefghefghwxyz"),
            Err(()) => fails(&stream.end(b""), C842Error::NotYetWritten),
        }
    }
    // Not even the first half of the same phrase.
    let own = Bits::default().put(1, 5).bytes(b"abcd").bytes(b"ab").put(0, 8);
    fails(&own.end(b"abcdabab"), C842Error::NotYetWritten);
    fails(&Bits::default().put(0x19, 5).put(0, 8).end(b""), C842Error::NotYetWritten);
}

#[test]
fn rings_forget_what_is_too_far_back() {
    // After 64 phrases the ring of pairs is full; the 65th replaces pairs 0 to 3.
    let phrase = |i: u32| [i as u8, 1, i as u8, 2, i as u8, 3, i as u8, 4];
    let numbered = |count: u32| (0..count).fold(Bits::default(), |bits, i| bits.put(0, 5).bytes(&phrase(i)));
    let content = |count: u32| (0..count).flat_map(phrase).collect::<Vec<u8>>();
    let with_pair = |count, index| numbered(count).put(5, 5).bytes(b"ab").put(index, 8).bytes(b"cdef");
    for (count, index, pair) in [(64, 0, [0, 1]), (64, 255, [63, 4]), (65, 0, [64, 1]), (65, 4, [1, 1])] {
        let end = [b"ab", &pair[..], b"cdef"].concat();
        reads(with_pair(count, index), &[content(count), end].concat());
    }
    // 2048 bytes: the rings of quads and of phrases.
    for (count, index, of) in [(256, 0, 0), (256, 255, 255), (257, 0, 256), (257, 1, 1), (300, 44, 44)] {
        let bits = numbered(count).put(0x19, 5).put(index, 8);
        reads(bits, &[content(count), phrase(of).to_vec()].concat());
        let bits = numbered(count).put(0x18, 5).put(2 * index, 9).put(2 * index + 1, 9);
        reads(bits, &[content(count), phrase(of).to_vec()].concat());
    }
}

#[test]
fn the_end_is_checked() {
    fails(&after(b"abcdefgh").end(b"abcdefgi"), C842Error::Checksum);
    let stream = after(b"abcdefgh").end(b"abcdefgh");
    // 69 + 37 bits: 22 bits of padding.
    for bit in 0..22 {
        let mut bad = stream.clone();
        bad[15 - bit / 8] |= 1 << (bit % 8);
        fails(&bad, C842Error::Padding);
    }
    fails(&[&stream[..], &[0; 8]].concat(), C842Error::Padding);
    fails(&[&stream[..], &[0]].concat(), C842Error::Padding);
    fails(&stream[..15], C842Error::Padding);
    fails(&stream[..13], C842Error::InputOverrun);
    for opcode in [0x1a, 0x1f] {
        fails(&after(b"abcdefgh").put(opcode, 5).end(b""), C842Error::UnknownOpcode(opcode as u8));
    }
}

/// The bits that the best instruction for each phrase takes, found by trying all of them in all rings.
fn fewest_bits(data: &[u8]) -> usize {
    let find = |at: usize, len: usize, ring: usize| {
        let end = at - at % 8;
        (end.saturating_sub(ring)..end).step_by(len).any(|from| data[from..from + len] == data[at..at + len])
    };
    let mut bits = 0;
    let (mut at, mut repeats) = (0, 0);
    while at + 8 <= data.len() {
        let phrase = &data[at..at + 8];
        let is_repeat = at >= 8 && phrase == &data[at - 8..at];
        repeats = if is_repeat { repeats + 1 } else { 0 };
        let half = |at: usize| {
            let pairs: usize = [at, at + 2].map(|at| if find(at, 2, 512) { 8 } else { 16 }).iter().sum();
            if find(at, 4, 2048) { 9 } else { pairs }
        };
        bits += match phrase {
            _ if is_repeat => {
                if repeats % 64 == 1 {
                    11
                } else {
                    0
                }
            }
            [0, 0, 0, 0, 0, 0, 0, 0] => 5,
            _ if find(at, 8, 2048) => 13,
            _ => 5 + half(at) + half(at + 4),
        };
        at += 8;
    }
    let short = data.len() - at;
    bits + if short > 0 { 8 + 8 * short } else { 0 } + 37
}

/// Compresses, checks the length, decompresses with both decoders, and returns the stream.
fn round_trip(data: &[u8]) -> Vec<u8> {
    let mut stream = vec![0; compress_bound(data.len())];
    let mut work = Workspace::new();
    let len = compress(&mut work, data, &mut stream).unwrap();
    stream.truncate(len);
    assert_eq!(len, fewest_bits(data).div_ceil(64) * 8);
    assert_eq!(agree(&stream, data.len()).as_deref(), Ok(data));
    let mut exact = vec![0; len];
    assert_eq!(compress(&mut work, data, &mut exact), Ok(len));
    assert_eq!(exact, stream);
    assert_eq!(compress(&mut work, data, &mut exact[..len - 1]), Err(C842Error::OutputOverrun));
    stream
}

/// Data with copies of all lengths and distances, zeros and repeats.
fn data(picks: &[(u16, u16)]) -> Vec<u8> {
    let mut data = b"a seed !".to_vec();
    for (from, kind) in picks {
        let from = usize::from(*from) % data.len();
        match kind % 8 {
            0 => data.resize(data.len() + usize::from(kind / 8 % 40), 0),
            1 => (0..usize::from(kind / 8 % 600)).for_each(|_| data.push(data[data.len() - 8])),
            len => (0..usize::from(len) * 2).for_each(|at| data.push(data[(from & !1) + at])),
        }
        data.extend(kind.to_le_bytes());
    }
    data.truncate(64 << 10);
    data
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn data_round_trips_in_the_fewest_bits(picks in proptest::collection::vec(any::<(u16, u16)>(), 0..300)) {
        round_trip(&data(&picks));
    }

    #[test]
    fn decoders_agree_on_random_bytes(stream in proptest::collection::vec(any::<u8>(), 0..200), room in 0..3000usize) {
        let _ = agree(&stream, room);
        let plain = after(b"pagefold").bytes(&stream).padded();
        let _ = agree(&plain, room);
    }

    #[test]
    fn decoders_agree_on_mutated_streams(
        picks in proptest::collection::vec(any::<(u16, u16)>(), 1..60),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
        slack in 0..20usize,
    ) {
        let data = data(&picks);
        let mut stream = round_trip(&data);
        let _ = agree(&stream[..cut.index(stream.len())], data.len());
        for (at, byte) in changes {
            let at = at.index(stream.len());
            stream[at] = byte;
            let _ = agree(&stream, data.len() + slack);
        }
    }
}

#[test]
fn the_longest_source_round_trips() {
    let mut word = 1u64;
    let noise: Vec<u8> = (0..64 << 10)
        .map(|_| {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (word >> 56) as u8
        })
        .collect();
    for len in [0, 1, 7, 8, 9, 4096, 64 << 10] {
        round_trip(&noise[..len]);
        round_trip(&vec![7; len]);
        round_trip(&noise[..len].iter().map(|byte| byte & 1).collect::<Vec<_>>());
    }
}
