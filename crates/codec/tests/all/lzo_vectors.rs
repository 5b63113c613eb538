//! Streams assembled by hand from the format's description, byte by byte.
//!
//! Both decoders read each. The streams include instructions that this crate's compressor never writes: the matches
//! of opcodes 0 to 15, the shortest zero runs, streams that end wrongly.

use pagefold_codec::lzo::{LzoError, decompress};

/// Checks that both decoders decode `stream` to `expect`, into exactly enough room and into more.
fn reads(stream: &[u8], expect: &[u8]) {
    for slack in [0, 1, 64] {
        let mut out = vec![0x55; expect.len() + slack];
        assert_eq!(decompress(stream, &mut out), Ok(expect.len()), "{stream:02x?}");
        assert_eq!(&out[..expect.len()], expect, "{stream:02x?}");
        assert_eq!(
            crate::support::lzo_reference::decode(stream, expect.len() + slack).as_deref(),
            Ok(expect)
        );
    }
    if let Some(room) = expect.len().checked_sub(1) {
        fails(stream, room, LzoError::OutputOverrun);
    }
}

/// Checks that both decoders reject `stream` with `error`, given `room` bytes of output.
fn fails(stream: &[u8], room: usize, error: LzoError) {
    assert_eq!(decompress(stream, &mut vec![0; room]), Err(error), "{stream:02x?}");
    assert_eq!(crate::support::lzo_reference::decode(stream, room), Err(error), "{stream:02x?}");
}

/// Concatenates `parts`.
fn joined(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

const END: &[u8] = &[0x11, 0x00, 0x00];

#[test]
fn empty_streams_decode_to_nothing() {
    // Three bytes: too short for a version, so 17 is the end marker's opcode.
    reads(END, b"");
    // Version prefix 17, 1; end marker: the shortest versioned stream, five bytes.
    reads(&joined(&[&[17, 1], END]), b"");
    // The same with an explicit version 0.
    reads(&joined(&[&[17, 0], END]), b"");
}

/// The worked examples of `docs/formats/lzo.md`.
#[test]
fn examples_of_the_documentation_decode() {
    reads(&[0x14, 0x61, 0x62, 0x63, 0x27, 0x09, 0x00, 0x5a, 0x11, 0x00, 0x00], b"abcabcabcabcZ");
    reads(
        &[0x11, 0x01, 0x12, 0x61, 0x1f, 0xfe, 0xff, 0xff, 0x62, 0x63, 0x11, 0x00, 0x00],
        &joined(&[b"a", &[0; 2051], b"bc"]),
    );
    reads(&[0x14, 0x61, 0x62, 0x63, 0x04, 0x00, 0x11, 0x00, 0x00], b"abcbc");
    fails(&[0x16, 0x61, 0x62, 0x63, 0x64, 0x65, 0x01, 0x00], 99, LzoError::LookbehindOverrun);
}

#[test]
fn literals_of_the_first_byte_decode() {
    // 17 + n announces n literals.
    for len in [1, 2, 3, 4, 5, 100, 237, 238] {
        let literals: Vec<u8> = (0..len).collect();
        reads(&joined(&[&[17 + len], &literals, END]), &literals);
        reads(&joined(&[&[17, 1, 17 + len], &literals, END]), &literals);
    }
}

#[test]
fn long_literals_decode() {
    // State 0 at the start: opcode 0..15 is a run of 3 + 1..15 literals.
    for len in [4usize, 5, 17, 18] {
        let literals: Vec<u8> = (0..len as u8).collect();
        reads(&joined(&[&[len as u8 - 3], &literals, END]), &literals);
    }
    // Opcode 0: 3 + 15 + 255 for each zero byte + the last byte.
    for (extra, len) in [(&[1][..], 19), (&[255], 273), (&[0, 1], 274), (&[0, 0, 7], 535)] {
        let literals: Vec<u8> = (0..len).map(|n| (n % 251) as u8).collect();
        reads(&joined(&[&[0], extra, &literals, END]), &literals);
    }
}

#[test]
fn near_matches_decode() {
    // "abcdefgh" (8 literals: 17 + 8 = 25), then 0x40..: 01 L DDD SS + H.
    // L = 0 (3 bytes), D = 7, S = 0, H = 0: distance 8: "abc".
    reads(&joined(&[&[25], b"abcdefgh", &[0b0101_1100, 0], END]), b"abcdefghabc");
    // L = 1 (4 bytes), D = 0, distance 1: overlaps itself. S = 2: two literals "xy".
    reads(&joined(&[&[25], b"abcdefgh", &[0b0110_0010, 0], b"xy", END]), b"abcdefghhhhhxy");
    // 1LLDDDSS: L = 3 (8 bytes), D = 2, distance 3.
    reads(&joined(&[&[25], b"abcdefgh", &[0b1110_1000, 0], END]), b"abcdefghfghfghfg");
    // H counts eights: distance 1 * 8 + 0 + 1 = 9, one too many after 8 bytes.
    fails(&joined(&[&[25], b"abcdefgh", &[0b1110_0000, 1], END]), 99, LzoError::LookbehindOverrun);
}

#[test]
fn middle_matches_decode() {
    // 001LLLLL: L = 31 (33 bytes), D = 0 (distance 1), S = 1.
    reads(&joined(&[&[18], b"a", &[0x3f, 0x01, 0x00], b"z", END]), &joined(&[&[b'a'; 34], b"z"]));
    // L = 0: 2 + 31 + 1 = 34 bytes; D = 1 (distance 2) is 0x0004.
    reads(&joined(&[&[19], b"ab", &[0x20, 1, 0x04, 0x00], END]), &b"ab".repeat(18));
    // 2 + 31 + 255 + 5 = 293.
    reads(&joined(&[&[18], b"a", &[0x20, 0, 5, 0x00, 0x00], END]), &[b'a'; 294]);
}

#[test]
fn short_opcodes_depend_on_the_state() {
    // 22 = 17 + 5 literals, state 4: opcode 0000DDSS is 3 bytes at 2049 + D + 4 H.
    let literals: Vec<u8> = (0..2060u32).map(|n| (n * 7 % 251) as u8).collect();
    // 0, then seven zero bytes and 257: 3 + 15 + 7 * 255 + 257 does not fit one byte:
    // 2060 = 18 + 8 * 255 + 2.
    let head = joined(&[&[0, 0, 0, 0, 0, 0, 0, 0, 0, 2], &literals]);
    // D = 1, H = 2: distance 2049 + 1 + 8 = 2058, that is from index 2. S = 1: literal "!".
    let mut expect = joined(&[&literals, &literals[2..5], b"!"]);
    reads(&joined(&[&head, &[0b0000_0101, 2], b"!", END]), &expect);
    // Now state 1: 0000DDSS is 2 bytes at 1 + D + 4 H. D = 3, H = 0: distance 4. S = 0.
    let two = [expect[expect.len() - 4], expect[expect.len() - 3]];
    expect.extend(two);
    reads(&joined(&[&head, &[0b0000_0101, 2], b"!", &[0b0000_1100, 0], END]), &expect);
    // Now state 0: the opcode is a literal run, 3 + 1.
    expect.extend(b"wxyz");
    reads(&joined(&[&head, &[0b0000_0101, 2], b"!", &[0b0000_1100, 0], &[1], b"wxyz", END]), &expect);
    // In state 4, three bytes from 2049 back are too far after five bytes.
    fails(&joined(&[&[22], b"abcde", &[0, 0], END]), 99, LzoError::LookbehindOverrun);
}

#[test]
fn far_matches_decode() {
    // 40000 literals: 18 + 156 * 255 + 202.
    let literals: Vec<u8> = (0..40_000u32).map(|n| (n * n % 253) as u8).collect();
    let head = joined(&[&[0], &[0; 156], &[202], &literals]);
    // 0001HLLL, H = 0, L = 3 (5 bytes), D = 100: distance 16484; word 100 << 2 | 0 = 0x0190.
    reads(&joined(&[&head, &[0x13, 0x90, 0x01], END]), &joined(&[&literals, &literals[23_516..23_521]]));
    // H = 1, D = 0: distance 32768, which is no end marker. L = 1 (3 bytes), S = 3.
    reads(
        &joined(&[&head, &[0x19, 0x03, 0x00], b"abc", END]),
        &joined(&[&literals, &literals[7_232..7_235], b"abc"]),
    );
    // L = 0: 2 + 7 + 1 = 10 bytes.
    reads(&joined(&[&head, &[0x18, 1, 0x00, 0x00], END]), &joined(&[&literals, &literals[7_232..7_242]]));
    // H = 1 and all of D set, distance 49151: too far here in version 0 ...
    let zero_run = joined(&[&head, &[0x18, 0xfc, 0xff, 0x00], END]);
    // (L = 0, so 0xfc is the extra length byte and ff 00 the distance: 2 + 7 + 252 bytes from 32768 + 63.)
    reads(
        &joined(&[&head, &[0x18, 0xfc, 0xff, 0x00], b"abc", END]),
        &joined(&[&literals, &literals[7_169..7_169 + 261], b"abc"]),
    );
    // ... and the same bytes are a run of 4 zeros in version 1.
    reads(&joined(&[&[17, 1], &zero_run]), &joined(&[&literals, &[0; 4]]));
}

#[test]
fn the_shortest_and_longest_zero_runs_decode() {
    for (opcode, more, len) in [(0x18, 0, 4), (0x1f, 0, 11), (0x18, 1, 12), (0x1b, 2, 23), (0x1f, 255, 2051)]
    {
        let stream = [
            17, 1, // version 1
            18, b'a',   // 17 + 1 literals, state 1
            opcode, // 00011LLL
            0xfc, 0xff, // all of D set, S = 0
            more, // X: length = (X << 3 | L) + 4
            17, 0, 0, // end marker
        ];
        reads(&stream, &joined(&[b"a", &vec![0; len]]));
    }
}

#[test]
fn zero_runs_after_every_state_and_before_every_literal_count_decode() {
    for before in 1..=5u8 {
        for after in 0..=3u8 {
            let stream = joined(&[
                &[17, 1],                         // version 1
                &[17 + before],                   // literals; state 1, 2, 3 or 4
                &b"ABCDE"[..usize::from(before)], //
                &[0x19, 0xfc | after, 0xff, 0],   // 1 + 4 zeros, S = after
                &b"xyz"[..usize::from(after)],    // those literals; state S
                &[0x18, 0xfc | 1, 0xff, 0],       // 4 zeros in state S, S = 1
                b"!",                             //
                &[0b0000_0000, 0],                // state 1: two bytes at distance 1
                END,
            ]);
            let expect = joined(&[
                &b"ABCDE"[..usize::from(before)],
                &[0; 5],
                &b"xyz"[..usize::from(after)],
                &[0; 4],
                b"!!!",
            ]);
            reads(&stream, &expect);
        }
    }
    // State 0 after a zero run: opcode 1 is a run of four literals.
    let stream = joined(&[&[17, 1, 18], b"A", &[0x18, 0xfc, 0xff, 0], &[1], b"wxyz", END]);
    reads(&stream, b"A\0\0\0\0wxyz");
}

#[test]
fn a_zero_run_cannot_come_first() {
    // After the prefix the rule of the first byte applies: 24 is 24 - 17 = 7 literals.
    let stream = joined(&[&[17, 1, 0x18], &[0xfc, 0xff, 0, 1, 2, 3, 4], END]);
    reads(&stream, &[0xfc, 0xff, 0, 1, 2, 3, 4]);
}

#[test]
fn zero_runs_need_version_1() {
    // The same bytes as a far match: L = 0, one extra length byte 0xfc ... before any output.
    let stream = joined(&[&[18], b"a", &[0x18, 0xfc, 0xff, 0x00], END]);
    fails(&stream, 9999, LzoError::LookbehindOverrun);
    reads(&joined(&[&[17, 1], &stream]), b"a\0\0\0\0");
}

#[test]
fn streams_that_end_wrongly_are_refused() {
    fails(&[], 9, LzoError::InputOverrun);
    fails(&[17], 9, LzoError::InputOverrun);
    fails(&[17, 0], 9, LzoError::InputOverrun);
    // Four bytes: no version, so an end marker and one byte too many.
    fails(&[17, 0, 0, 0], 9, LzoError::TrailingInput);
    // No end marker.
    fails(&[18, b'a'], 9, LzoError::InputOverrun);
    fails(&[18], 9, LzoError::InputOverrun);
    // The end marker's distance with length 4.
    fails(&[18, b'a', 18, 0, 0], 9, LzoError::BadEndMarker);
    // Length with extra bytes and no end.
    fails(&[18, b'a', 0x20, 0, 0, 0], 9, LzoError::InputOverrun);
    fails(&joined(&[&[17, 1], END, END]), 9, LzoError::TrailingInput);
    for version in 2..=255 {
        fails(&joined(&[&[17, version], END]), 9, LzoError::UnknownVersion(version));
    }
    // A zero run cut short before its fourth byte, and before its third.
    fails(&[17, 1, 18, b'a', 0x19, 0xfc, 0xff], 9999, LzoError::InputOverrun);
    fails(&[17, 1, 18, b'a', 0x19, 0xfc], 9999, LzoError::InputOverrun);
}

#[test]
fn lengths_beyond_any_destination_are_refused() {
    let stream = joined(&[&[18], b"a", &[0x20], &[0; 100_000], &[1, 0, 0], END]);
    fails(&stream, 4096, LzoError::OutputOverrun);
    let stream = joined(&[&[0], &[0; 100_000], &[1], b"abc"]);
    fails(&stream, 4096, LzoError::InputOverrun);
}
