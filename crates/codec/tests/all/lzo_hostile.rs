//! On hostile streams the fast LZO decoder and the reference decoder agree on every byte and every error.

use pagefold_codec::lzo::{Variant, Workspace, compress, compress_bound, decompress};
use proptest::prelude::*;

/// Checks that both decoders return the same result, and that the fast one writes nothing past its slice.
fn agree(stream: &[u8], room: usize) {
    let mut out = vec![0x5a; room + 64];
    let fast = decompress(stream, &mut out[..room]).map(|len| out[..len].to_vec());
    assert_eq!(fast, crate::support::lzo_reference::decode(stream, room), "room for {room}: {stream:02x?}");
    assert_eq!(out[room..], [0x5a; 64]);
}

/// An instruction, in most cases a valid one.
#[derive(Clone, Debug)]
struct Instruction {
    kind: u8,
    opcode: u8,
    operands: [u8; 4],
    excess: u16,
    literals: Vec<u8>,
}

fn instruction() -> impl Strategy<Value = Instruction> {
    let operand =
        prop_oneof![3 => Just(0u8), 3 => 0..8u8, 1 => Just(0xfcu8), 1 => Just(0xffu8), 1 => any::<u8>()];
    (
        0..8u8,
        any::<u8>(),
        proptest::array::uniform4(operand),
        1..700u16,
        proptest::collection::vec(any::<u8>(), 18),
    )
        .prop_map(|(kind, opcode, operands, excess, literals)| Instruction {
            kind,
            opcode,
            operands,
            excess,
            literals,
        })
}

impl Instruction {
    /// Appends its bytes, given the state before; returns the state after.
    fn write(&self, state: usize, out: &mut Vec<u8>) -> usize {
        let (opcode, operands) = (self.opcode, self.operands);
        let literals = match self.kind {
            0 if state == 0 => {
                let len = opcode % 15 + 1;
                out.push(len);
                out.extend(self.literals.iter().cycle().take(usize::from(len) + 3));
                return 4;
            }
            0 | 1 if state != 0 => {
                out.extend([opcode & 15, operands[0]]);
                opcode & 3
            }
            0..=2 => {
                out.extend([opcode | 64, operands[0]]);
                opcode & 3
            }
            3 | 4 => {
                let low = operands[0] << 2 | operands[1] & 3;
                out.push(32 | opcode & 31);
                self.write_excess(opcode & 31, out);
                out.extend([low, operands[2]]);
                low & 3
            }
            5 => {
                let low = operands[0];
                out.push(16 | opcode & 15);
                self.write_excess(opcode & 7, out);
                out.extend([low, operands[2]]);
                low & 3
            }
            _ => {
                let low = 0xfc | operands[0] & 3;
                out.extend([0x18 | opcode & 7, low, 0xff, operands[1]]);
                low & 3
            }
        };
        out.extend(&self.literals[..usize::from(literals)]);
        usize::from(literals)
    }

    fn write_excess(&self, field: u8, out: &mut Vec<u8>) {
        if field == 0 {
            out.resize(out.len() + usize::from(self.excess / 255), 0);
            out.push((self.excess % 255) as u8);
        }
    }
}

fn assembled() -> impl Strategy<Value = Vec<u8>> {
    (any::<bool>(), 0..60u8, proptest::collection::vec(instruction(), 0..60)).prop_map(
        |(versioned, first, instructions)| {
            let mut out = if versioned { vec![17, 1] } else { Vec::new() };
            out.push(17 + first + 1);
            out.extend(0..=first);
            let mut state = usize::from(first + 1).min(4);
            for instruction in instructions {
                state = instruction.write(state, &mut out);
            }
            out.extend([17, 0, 0]);
            out
        },
    )
}

/// Compresses data with all kinds of matches.
fn compressed(rle: bool, picks: &[(u16, u16)]) -> Vec<u8> {
    let mut data = vec![1, 2, 3, 4, 5, 6, 7, 8];
    for (from, len) in picks {
        let from = usize::from(*from) % data.len();
        (0..usize::from(*len % 50)).for_each(|at| data.push(data[from + at]));
        data.push(*len as u8);
        if from % 5 == 0 {
            data.resize(data.len() + usize::from(*len % 600), 0);
        }
    }
    let variant = if rle { Variant::LzoRle } else { Variant::Lzo };
    let mut out = vec![0; compress_bound(data.len())];
    let len = compress(variant, &mut Workspace::new(), &data, &mut out).unwrap();
    out.truncate(len);
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn decoders_agree_on_random_bytes(stream in proptest::collection::vec(any::<u8>(), 0..300), room in 0..6000usize) {
        agree(&stream, room);
        agree(&[&[17, 1], &stream[..]].concat(), room);
        agree(&[&[17, 1, 60][..], &[7; 43], &stream[..]].concat(), room);
    }

    #[test]
    fn decoders_agree_on_assembled_streams(stream in assembled(), room in 0..5000usize) {
        agree(&stream, room);
        agree(&stream, 100_000);
        if let Ok(data) = crate::support::lzo_reference::decode(&stream, 100_000) {
            agree(&stream, data.len());
            agree(&stream, data.len().saturating_sub(1));
        }
    }

    #[test]
    fn decoders_agree_on_mutated_streams(
        rle: bool,
        picks in proptest::collection::vec(any::<(u16, u16)>(), 1..60),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
        slack in 0..100usize,
    ) {
        let mut stream = compressed(rle, &picks);
        let len = crate::support::lzo_reference::decode(&stream, usize::MAX).unwrap().len();
        agree(&stream, len + slack);
        agree(&stream, len.saturating_sub(slack));
        agree(&stream[..cut.index(stream.len())], len + slack);
        for (at, byte) in changes {
            let at = at.index(stream.len());
            stream[at] = byte;
            agree(&stream, len + slack);
            agree(&stream, len);
        }
    }
}

#[test]
fn decoders_agree_on_every_truncation_and_every_destination_length() {
    for rle in [false, true] {
        let picks: Vec<(u16, u16)> = (0..40u16).map(|n| (n.wrapping_mul(7919), n * 31 + 3)).collect();
        let stream = compressed(rle, &picks);
        let len = crate::support::lzo_reference::decode(&stream, usize::MAX).unwrap().len();
        for cut in 0..stream.len() {
            agree(&stream[..cut], len);
        }
        for room in 0..len + 64 {
            agree(&stream, room);
        }
    }
}

/// All streams of up to three bytes after a little output, in both versions.
#[test]
fn decoders_agree_on_every_short_stream() {
    for prefix in [&[20, 1, 2, 3][..], &[17, 1, 20, 1, 2, 3], &[21, 1, 2, 3, 4], &[]] {
        for value in 0..1u32 << 16 {
            let [a, b, ..] = value.to_le_bytes();
            agree(&[prefix, &[a, b, 17, 0, 0]].concat(), 40);
            agree(&[prefix, &[a, b]].concat(), 40);
        }
    }
}
