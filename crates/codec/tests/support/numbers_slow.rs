//! Packed pages of the codec `numbers`, read and written bit by bit, from `docs/formats/numbers.md`: the slow twin of
//! `crates/codec/src/numbers`.

const PAGE_SIZE: usize = 4096;
const ROW_LEN: usize = 64;

/// How a page is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packing {
    pub lane_len: usize,
    pub is_delta: bool,
    pub shift: u32,
    pub width: u32,
    pub base: u64,
}

impl Packing {
    fn lane_bits(&self) -> u32 {
        8 * self.lane_len as u32
    }

    /// The lowest bits of a number, as many as a lane has.
    fn wrap(&self, number: u64) -> u64 {
        if self.lane_len == 8 { number } else { number & ((1 << self.lane_bits()) - 1) }
    }

    /// The position in the payload of a bit of a packed number, as byte and bit.
    fn place(&self, lane: usize, bit: u32) -> (usize, u32) {
        let columns = ROW_LEN / self.lane_len;
        let (row, column) = (lane / columns, lane % columns);
        let bit = row as u32 * self.width + bit;
        let (word, bit) = ((bit / self.lane_bits()) as usize, bit % self.lane_bits());
        ((word * columns + column) * self.lane_len + bit as usize / 8, bit % 8)
    }
}

fn lanes(page: &[u8], lane_len: usize) -> Vec<u64> {
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
    page.chunks(lane_len).map(number).collect()
}

/// Packs a page. Its numbers must fit.
#[allow(dead_code, reason = "the fuzz target only decodes")]
pub fn encode(page: &[u8], packing: Packing) -> Vec<u8> {
    let Packing { lane_len, is_delta, shift, width, base } = packing;
    let kind = lane_len.ilog2() as u8 + 1 + 4 * u8::from(is_delta);
    let mut bytes = vec![kind, shift as u8, width as u8];
    bytes.extend(&base.to_le_bytes()[..lane_len]);
    if is_delta {
        bytes.extend(&page[..ROW_LEN]);
    }
    let mut payload = vec![0; PAGE_SIZE / lane_len * width as usize / 8];
    let (columns, numbers) = (ROW_LEN / lane_len, lanes(page, lane_len));
    for (lane, number) in numbers.iter().enumerate() {
        let packed = match (is_delta, lane.checked_sub(columns)) {
            (false, _) => number.wrapping_sub(base),
            (true, Some(before)) => number.wrapping_sub(numbers[before]).wrapping_sub(base),
            (true, None) => 0,
        };
        let packed = packing.wrap(packed) >> shift;
        for bit in 0..width {
            let (byte, bit_of_byte) = packing.place(lane, bit);
            payload[byte] |= ((packed >> bit & 1) as u8) << bit_of_byte;
        }
    }
    bytes.extend(payload);
    bytes
}

/// Reads a packed page; `None` if the bytes are none.
pub fn decode(bytes: &[u8]) -> Option<Vec<u8>> {
    let (&kind, &shift, &width) = (bytes.first()?, bytes.get(1)?, bytes.get(2)?);
    let (lane_len, is_delta) = match kind {
        1..=4 => (1 << (kind - 1), false),
        5..=8 => (1 << (kind - 5), true),
        _ => return None,
    };
    let mut packing = Packing { lane_len, is_delta, shift: shift.into(), width: width.into(), base: 0 };
    if packing.shift >= packing.lane_bits() || packing.shift + packing.width > packing.lane_bits() {
        return None;
    }
    packing.base = lanes(bytes.get(3..3 + lane_len)?, lane_len)[0];
    let header_len = 3 + lane_len + if is_delta { ROW_LEN } else { 0 };
    if bytes.len() != header_len + PAGE_SIZE / lane_len * packing.width as usize / 8 {
        return None;
    }
    let (first_row, payload) = (lanes(&bytes[3 + lane_len..header_len], lane_len), &bytes[header_len..]);
    let columns = ROW_LEN / lane_len;
    let mut numbers: Vec<u64> = Vec::new();
    for lane in 0..PAGE_SIZE / lane_len {
        let bit = |bit| {
            let (byte, bit_of_byte) = packing.place(lane, bit);
            u64::from(payload[byte] >> bit_of_byte & 1) << bit
        };
        let packed = (0..packing.width).map(bit).sum::<u64>() << shift;
        let origin = match (is_delta, lane.checked_sub(columns)) {
            (false, _) => packing.base,
            (true, Some(before)) => numbers[before].wrapping_add(packing.base),
            (true, None) => *first_row.get(lane)?,
        };
        numbers.push(packing.wrap(origin.wrapping_add(packed)));
    }
    Some(numbers.iter().flat_map(|number| number.to_le_bytes()[..lane_len].to_vec()).collect())
}

/// Numbers without a pattern, from a seed.
#[allow(dead_code, reason = "the fuzz target has its own bytes")]
pub fn noise(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed.wrapping_mul(2).wrapping_add(0x9e37_79b9_7f4a_7c15);
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}
