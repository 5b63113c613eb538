//! The checksum of a stream's output: CRC-32 with the polynomial 0x04c11db7, the most significant bit first, from 0.

/// Bytes that one step takes.
const STEP_LEN: usize = 8;

/// `TABLES[n][b]` is the remainder of the byte `b` with `n` zero bytes after it.
static TABLES: [[u32; 256]; STEP_LEN] = tables();

const fn tables() -> [[u32; 256]; STEP_LEN] {
    let mut tables = [[0; 256]; STEP_LEN];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u32) << 24;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc >> 31 == 1 { crc << 1 ^ 0x04c1_1db7 } else { crc << 1 };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut zeros = 1;
    while zeros < STEP_LEN {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[zeros - 1][byte];
            tables[zeros][byte] = before << 8 ^ tables[0][(before >> 24) as usize];
            byte += 1;
        }
        zeros += 1;
    }
    tables
}

/// The checksum of `bytes`.
pub(super) fn crc32(bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<STEP_LEN>();
    let mut crc = 0;
    for word in words {
        let mixed = u64::from_be_bytes(*word) ^ u64::from(crc) << 32;
        let remainders =
            mixed.to_le_bytes().into_iter().zip(&TABLES).map(|(byte, table)| table[usize::from(byte)]);
        crc = remainders.fold(0, |all, remainder| all ^ remainder);
    }
    rest.iter().fold(crc, |crc, byte| crc << 8 ^ TABLES[0][usize::from((crc >> 24) as u8 ^ byte)])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One bit at a time.
    fn slow(bytes: &[u8]) -> u32 {
        let mut crc = 0u32;
        for byte in bytes {
            for bit in (0..8).rev() {
                let out = (crc >> 31) as u8 ^ byte >> bit & 1;
                crc = crc << 1 ^ if out == 1 { 0x04c1_1db7 } else { 0 };
            }
        }
        crc
    }

    #[test]
    fn the_checksum_is_that_of_a_plain_loop() {
        let bytes: Vec<u8> = (0..100u32).map(|i| ((i * i * 7919) >> 3) as u8).collect();
        for len in 0..bytes.len() {
            assert_eq!(crc32(&bytes[..len]), slow(&bytes[..len]), "{len}");
        }
        // The check value of CRC-32/CKSUM, without the inversion at its end.
        assert_eq!(crc32(b"123456789"), 0x89a1_897f);
    }
}
